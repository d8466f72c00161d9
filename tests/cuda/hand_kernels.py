"""Kernels written by hand in the words of the headers, each synchronisation and bound marked: for tests of the emulation and the headers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from codegen.cuda.sanitized import Job

HEADER = '#include "graph_opt_device.h"\n'

REDUCTION = (
    HEADER
    + """
extern "C" __global__ void __launch_bounds__(128) row_sums(const float *__restrict__ x, float *y, long long n)
{
  float *partial = (float *)go_shared();
  const go_index t = go_thread(), row = go_block_x();
  float sum = 0.0f;
  for (go_index i = t; i < (n + 127) / 128 * 128; i += 128) {
    if (GO_MARK_BOUND(0, i < n)) sum += x[row * n + i];
  }
  sum = go_warp_reduce_add(sum, 32);
  if (t % 32 == 0) partial[t / 32] = sum;
  GO_MARK_SYNC(1, go_barrier());
  const float total = partial[0] + partial[1] + partial[2] + partial[3];
  for (go_index i = t; i < (n + 127) / 128 * 128; i += 128) {
    if (GO_MARK_BOUND(2, i < n)) y[row * n + i] = total;
  }
}
"""
)
REDUCTION_MARKS = (0, 1, 2)

MATMUL = (
    HEADER
    + """
// y[M, N] = a[M, K] b[K, N]: tiles of 16 x 16, 16 steps of k at a time, two stages; K and N are multiples of 4.
extern "C" __global__ void __launch_bounds__(64) tiled(const float *__restrict__ a, const float *__restrict__ b, float *y, long long M,
                                                        long long N, long long K)
{
  float *As = (float *)go_shared(), *Bs = As + 2 * 16 * 16;
  const go_index t = go_thread(), row = t / 4, column = t % 4 * 4, top = go_block_y() * 16, left = go_block_x() * 16;
  go_vec<float, 4> sums = go_splat<float, 4>(0.0f);
  const go_index steps = (K + 15) / 16;
  const bool inside = GO_MARK_BOUND(0, top + row < M);
  for (go_index s = 0; s <= steps; ++s) {
    if (s < steps) {
      float *to = As + s % 2 * 256 + row * 16 + column;
      go_cp_async<16>(to, a + (inside ? (top + row) * K + s * 16 + column : 0), GO_MARK_VALID(1, inside ? 4 * (K - s * 16 - column) : 0, 16));
      to = Bs + s % 2 * 256 + row * 16 + column;
      const bool exists = GO_MARK_BOUND(2, s * 16 + row < K);
      go_cp_async<16>(to, b + (exists ? (s * 16 + row) * N + left + column : 0), GO_MARK_VALID(3, exists ? 4 * (N - left - column) : 0, 16));
    }
    GO_MARK_SYNC(4, go_cp_commit());
    if (s > 0) {
      GO_MARK_SYNC(5, go_cp_wait<1>());
      GO_MARK_SYNC(6, go_barrier());
      const float *A = As + (s - 1) % 2 * 256, *B = Bs + (s - 1) % 2 * 256;
      for (int k = 0; k < 16; ++k) {
        sums = go_fma(go_splat<float, 4>(A[row * 16 + k]), go_load_aligned<4>(B + k * 16 + column), sums);
      }
      GO_MARK_SYNC(7, go_barrier());
    }
  }
  if (GO_MARK_BOUND(8, top + row < M)) {
    go_store_valid(y + (top + row) * N + left + column, sums, GO_MARK_VALID(9, N - left - column, 4));
  }
}
"""
)
MATMUL_MARKS = tuple(range(10))

PRODUCT = (
    HEADER
    + """
// y[16, 8] = a[16, 16] b[16, 8] by one warp: ldmatrix, mma.
extern "C" __global__ void __launch_bounds__(32) product(const go_bf16 *__restrict__ a, const go_bf16 *__restrict__ b, float *y)
{
  go_bf16 *A = (go_bf16 *)go_shared(), *B = A + 16 * 24;
  const go_index lane = go_thread();
  go_store_aligned(A + lane / 2 * 24 + lane % 2 * 8, go_load_aligned<8>(a + lane / 2 * 16 + lane % 2 * 8));
  if (GO_MARK_BOUND(0, lane < 16)) go_store_aligned(B + lane * 8, go_load_aligned<8>(b + lane * 8));
  GO_MARK_SYNC(1, go_warp_barrier());
  const go_vec<go_bf16, 8> left = go_ldmatrix<4, false>(A + lane % 16 * 24 + lane / 16 * 8);
  const go_vec<go_bf16, 4> right = go_ldmatrix<2, true>(B + lane % 16 * 8);
  const go_vec<float, 4> sums = go_mma(left, right, go_splat<float, 4>(0.0f));
  const go_index row = lane / 4, column = lane % 4 * 2;
  y[row * 8 + column] = sums[0];
  y[row * 8 + column + 1] = sums[1];
  y[(row + 8) * 8 + column] = sums[2];
  y[(row + 8) * 8 + column + 1] = sums[3];
}
"""
)
PRODUCT_MARKS = (0, 1)


def integers(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Small integers as floats: sums of their products are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def reduction_job(n: int = 300, rows: int = 3) -> tuple[Job, np.ndarray[Any, Any]]:
    """Sums of rows, and what comes out."""
    x = integers((rows, n), 1)
    job = Job(REDUCTION)
    y = job.buffer(np.zeros_like(x))
    job.launch("row_sums", (rows,), 128, 16, [job.buffer(x), y, n])
    job.output(y, x.nbytes)
    return job, np.broadcast_to(x.sum(axis=1, keepdims=True), x.shape)


def matmul_job(m: int = 19, n: int = 20, k: int = 36) -> tuple[Job, np.ndarray[Any, Any]]:
    """A product by tiles with double buffering, and what comes out."""
    a, b = integers((m, k), 2), integers((k, n), 3)
    job = Job(MATMUL)
    y = job.buffer(np.zeros((m, n), np.float32))
    job.launch("tiled", (-(-n // 16), -(-m // 16)), 64, 4096, [job.buffer(a), job.buffer(b), y, m, n, k])
    job.output(y, 4 * m * n)
    return job, a @ b


def product_job() -> tuple[Job, np.ndarray[Any, Any]]:
    """A product by a warp's matrix instruction, and what comes out."""
    a, b = integers((16, 16), 4, ml_dtypes.bfloat16), integers((16, 8), 5, ml_dtypes.bfloat16)
    job = Job(PRODUCT)
    y = job.buffer(np.zeros((16, 8), np.float32))
    job.launch("product", (1,), 32, 2 * (16 * 24 + 16 * 8), [job.buffer(a), job.buffer(b), y])
    job.output(y, 4 * 16 * 8)
    return job, a.astype(np.float32) @ b.astype(np.float32)
