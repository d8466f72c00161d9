"""Kernels written by hand, with what they compute in numpy."""

import numpy as np

MATMUL = """graph @main(%A: memref<bf16[M, 8*P]>, %B: memref<bf16[8*P, 8*Q]>, %C: memref<f32[M, 8*Q]>) {
  gpu.launch(%bx = 0 to 8*Q ceildiv 32, %by = 0 to M ceildiv 32, threads=128, name="matmul") {
    %t = gpu.thread_id() : index
    %warp = affine.apply(%t floordiv 32) : index
    %lane = affine.apply(%t mod 32) : index
    %As = gpu.alloc() : memref<bf16[2, 32, 40], shared>
    %Bs = gpu.alloc() : memref<bf16[2, 32, 40], shared>
    %r = affine.apply(%t floordiv 4) : index
    %c = affine.apply(8*(%t mod 4)) : index
    %va = affine.apply((8*P-%c)*min(1, max(0, M-32*%by-%r))) : index
    %vb = affine.apply((8*Q-32*%bx-%c)*min(1, max(0, 8*P-%r))) : index
    gpu.cp_async(%A[32*%by+%r, %c:+8], %As[0, %r, %c:+8], valid=%va)
    gpu.cp_async(%B[%r, 32*%bx+%c:+8], %Bs[0, %r, %c:+8], valid=%vb)
    gpu.cp_commit()
    %zero = arith.constant(0.0) : vector<f32[4]>
    %s0, %s1 = scf.for(%k = 0 to 8*P step 32, %acc0 = %zero, %acc1 = %zero) {
      %now = affine.apply((%k floordiv 32) mod 2) : index
      %next = affine.apply((%k floordiv 32 + 1) mod 2) : index
      %wa = affine.apply((8*P-%k-32-%c)*min(1, max(0, M-32*%by-%r))) : index
      %wb = affine.apply((8*Q-32*%bx-%c)*min(1, max(0, 8*P-%k-32-%r))) : index
      gpu.cp_async(%A[32*%by+%r, %k+32+%c:+8], %As[%next, %r, %c:+8], valid=%wa)
      gpu.cp_async(%B[%k+32+%r, 32*%bx+%c:+8], %Bs[%next, %r, %c:+8], valid=%wb)
      gpu.cp_commit()
      gpu.cp_wait(pending=1)
      gpu.barrier()
      %p0, %p1 = scf.for(%kk = 0 to 32 step 16, %q0 = %acc0, %q1 = %acc1) {
        %a = gpu.ldmatrix(%As[%now, 16*(%warp floordiv 2)+%lane mod 16, %kk+8*(%lane floordiv 16):+8], count=4) : vector<bf16[8]>
        %b = gpu.ldmatrix(%Bs[%now, %kk+%lane mod 16, 16*(%warp mod 2)+8*(%lane floordiv 16):+8], count=4, transposed=true) : vector<bf16[8]>
        %b0 = vector.shuffle(%b, %b, mask=[0, 1, 2, 3]) : vector<bf16[4]>
        %b1 = vector.shuffle(%b, %b, mask=[4, 5, 6, 7]) : vector<bf16[4]>
        %r0 = gpu.mma(%a, %b0, %q0) : vector<f32[4]>
        %r1 = gpu.mma(%a, %b1, %q1) : vector<f32[4]>
        yield %r0, %r1
      } : vector<f32[4]>, vector<f32[4]>
      gpu.barrier()
      yield %p0, %p1
    } : vector<f32[4]>, vector<f32[4]>
    gpu.cp_wait(pending=0)
    %row = affine.apply(32*%by+16*(%warp floordiv 2)+%lane floordiv 4) : index
    %col = affine.apply(32*%bx+16*(%warp mod 2)+2*(%lane mod 4)) : index
    %x0 = vector.shuffle(%s0, %s0, mask=[0, 1]) : vector<f32[2]>
    %y0 = vector.shuffle(%s0, %s0, mask=[2, 3]) : vector<f32[2]>
    %x1 = vector.shuffle(%s1, %s1, mask=[0, 1]) : vector<f32[2]>
    %y1 = vector.shuffle(%s1, %s1, mask=[2, 3]) : vector<f32[2]>
    %left0 = affine.apply((8*Q-%col)*min(1, max(0, M-%row))) : index
    %left1 = affine.apply((8*Q-%col-8)*min(1, max(0, M-%row))) : index
    %low0 = affine.apply((8*Q-%col)*min(1, max(0, M-%row-8))) : index
    %low1 = affine.apply((8*Q-%col-8)*min(1, max(0, M-%row-8))) : index
    vector.store(%x0, %C[%row, %col:+2], valid=%left0)
    vector.store(%x1, %C[%row, %col+8:+2], valid=%left1)
    vector.store(%y0, %C[%row+8, %col:+2], valid=%low0)
    vector.store(%y1, %C[%row+8, %col+8:+2], valid=%low1)
    yield
  }
  return
}
"""
"""A product in two stages: tiles of 32x32 come by cp_async while the warps multiply those before."""

ROWS = """graph @main(%A: memref<f32[M, N]>, %C: memref<f32[M, N]>) {
  gpu.launch(%m = 0 to M, threads=64, name="centre") {
    %t = gpu.thread_id() : index
    %parts = gpu.alloc() : memref<f32[2], shared>
    %zero = arith.constant(0.0) : f32
    %none = arith.constant(0) : index
    %sum = scf.for(%i = %t to N step 64, %acc = %zero) {
      %a = memref.load(%A[%m, %i]) : f32
      %next = arith.addf(%acc, %a) : f32
      yield %next
    } : f32
    %half = gpu.warp_reduce(%sum, kind="add") : f32
    %lane = affine.apply(%t mod 32) : index
    %first = arith.cmpi(%lane, %none, predicate="eq") : bool
    scf.if(%first) {
      memref.store(%half, %parts[%t floordiv 32])
      yield
    }
    gpu.barrier()
    %p = memref.load(%parts[0]) : f32
    %q = memref.load(%parts[1]) : f32
    %total = arith.addf(%p, %q) : f32
    scf.for(%j = %t to N step 64) {
      %d = memref.load(%A[%m, %j]) : f32
      %c = arith.subf(%d, %total) : f32
      memref.store(%c, %C[%m, %j])
      yield
    }
    yield
  }
  return
}
"""
"""Each row minus the sum of its elements: a reduction of the block, and rounds that differ between threads."""


def matmul_inputs(m: int, k: int, n: int, dtype: np.dtype) -> list[np.ndarray]:
    """Small integers, so that sums are exact, and a result that says where nothing was written."""
    rng = np.random.default_rng(m + k + n)
    a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
    return [a, b, np.full((m, n), np.nan, np.float32)]
