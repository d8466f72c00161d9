/* What kernels are written in, for a GPU: nvcc and NVRTC, sm_75 and later.  All inline assembly of the project stands here.

   A compiler for the CPU gets graph_opt_host.h instead, which has the same names.  */
#ifndef GRAPH_OPT_DEVICE_H
#define GRAPH_OPT_DEVICE_H

#if !defined(__CUDACC__)
#include "graph_opt_host.h"
#else

#define GO_DEVICE static __device__ __forceinline__
#define GO_MEMBER __device__ __forceinline__
#define GO_CONSTANT __host__ __device__ constexpr
#define GO_AT
#define GO_HERE
#define GO_ALL_LANES 0xffffffffu

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define GO_OLD 1 /* sm_75: no cp.async, no products of bf16, of tf32, or of 16 x 8 x 16 */
#endif

/* -- scalars ---------------------------------------------------------------------------------------------------------- */

#define GO_HAS_DOT4 1
GO_DEVICE int go_dot4(int x, int y, int acc)
{
  int r;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(acc));
  return r;
}

#define GO_HAS_HALF 1
GO_DEVICE float go_half_bits_to_float(unsigned short x)
{
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}
GO_DEVICE unsigned short go_float_to_half_bits(float x)
{
  unsigned short r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

#ifndef GO_OLD
#define GO_HAS_BF16 1
GO_DEVICE unsigned short go_float_to_bf16_bits(float x)
{
  unsigned short r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
#endif

#include "graph_opt_scalar.h"

/* The bits of the nearest tf32 (10 bits behind the point), ties away from zero. */
GO_DEVICE unsigned go_tf32_bits(float x)
{
#ifdef GO_OLD
  return x != x ? 0x7fffffffu : (__float_as_uint(x) + 0x1000u) & ~0x1fffu;
#else
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
#endif
}

GO_DEVICE int go_swap(int *p, int old, int value) { return atomicCAS(p, old, value); }
GO_DEVICE int go_peek(const int *p) { return *(const volatile int *)p; }

/* -- threads ---------------------------------------------------------------------------------------------------------- */

GO_DEVICE go_index go_thread() { return (go_index)threadIdx.x; }
GO_DEVICE go_index go_block_x() { return (go_index)blockIdx.x; }
GO_DEVICE go_index go_block_y() { return (go_index)blockIdx.y; }
GO_DEVICE go_index go_block_z() { return (go_index)blockIdx.z; }
GO_DEVICE void go_barrier() { __syncthreads(); }
GO_DEVICE void go_warp_barrier() { __syncwarp(); }

extern __shared__ __align__(128) unsigned char go_shared_memory[];
/* The block's dynamic shared memory. */
GO_DEVICE unsigned char *go_shared() { return go_shared_memory; }

/* -- memory ----------------------------------------------------------------------------------------------------------- */

template <int SIZE> struct go_word { typedef uint4 type; }; /* the widest access that divides a size */
template <> struct go_word<1> { typedef unsigned char type; };
template <> struct go_word<2> { typedef unsigned short type; };
template <> struct go_word<4> { typedef unsigned type; };
template <> struct go_word<8> { typedef uint2 type; };

template <int N, class T> GO_DEVICE void go_move(T *to, const T *from)
{
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = from[i];
}

template <int N, class T> GO_DEVICE void go_move_aligned(T *to, const T *from)
{
  constexpr int size = N * (int)sizeof(T), width = size % 16 == 0 ? 16 : size & -size;
  typedef typename go_word<width>::type word;
#pragma unroll
  for (int i = 0; i < size / width; ++i) reinterpret_cast<word *>(to)[i] = reinterpret_cast<const word *>(from)[i];
}

/* -- shuffles --------------------------------------------------------------------------------------------------------- */

/* What a value is in a register, and back. */
GO_DEVICE float go_carried(float x) { return x; }
GO_DEVICE double go_carried(double x) { return x; }
GO_DEVICE long long go_carried(long long x) { return x; }
GO_DEVICE int go_carried(int x) { return x; }
GO_DEVICE int go_carried(go_half x) { return x.bits; }
GO_DEVICE int go_carried(go_bf16 x) { return x.bits; }
template <class T> struct go_carrier {
  template <class C> static GO_MEMBER T back(C x) { return (T)x; }
};
template <> struct go_carrier<go_half> {
  static GO_MEMBER go_half back(int x) { return go_half_bits(x); }
};
template <> struct go_carrier<go_bf16> {
  static GO_MEMBER go_bf16 back(int x) { return go_bf16_bits(x); }
};

template <class T> GO_DEVICE T go_shuffle_xor(T x, int by, int width = 32)
{
  return go_carrier<T>::back(__shfl_xor_sync(GO_ALL_LANES, go_carried(x), by, width));
}
template <class T> GO_DEVICE T go_shuffle_down(T x, int by, int width = 32)
{
  return go_carrier<T>::back(__shfl_down_sync(GO_ALL_LANES, go_carried(x), by, width));
}
template <class T> GO_DEVICE T go_shuffle_up(T x, int by, int width = 32)
{
  return go_carrier<T>::back(__shfl_up_sync(GO_ALL_LANES, go_carried(x), by, width));
}
template <class T> GO_DEVICE T go_shuffle_index(T x, int lane, int width = 32)
{
  return go_carrier<T>::back(__shfl_sync(GO_ALL_LANES, go_carried(x), lane, width));
}

#include "graph_opt_vector.h"

/* -- asynchronous copies ---------------------------------------------------------------------------------------------- */

/* Copies 4, 8 or 16 bytes from global to shared memory; those from valid on become 0 and are not read. */
template <int BYTES> GO_DEVICE void go_cp_async(void *to, const void *from, go_index valid = BYTES)
{
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes");
  const int size = valid >= BYTES ? BYTES : valid > 0 ? (int)valid : 0;
#ifdef GO_OLD
  if (size == BYTES) {
    go_move_aligned<BYTES>((unsigned char *)to, (const unsigned char *)from);
  } else {
    for (int i = 0; i < BYTES; ++i) ((unsigned char *)to)[i] = i < size ? ((const unsigned char *)from)[i] : (unsigned char)0;
  }
#else
  const unsigned target = (unsigned)__cvta_generic_to_shared(to);
  const size_t source = __cvta_generic_to_global(from);
  if (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(BYTES), "r"(size) : "memory");
  }
#endif
}

/* Closes a group of copies. */
GO_DEVICE void go_cp_commit()
{
#ifndef GO_OLD
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most PENDING groups of this thread are open. */
template <int PENDING> GO_DEVICE void go_cp_wait()
{
#ifndef GO_OLD
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

/* -- tensor cores ----------------------------------------------------------------------------------------------------- */

/* COUNT matrices of 8 x 8 values of 16 bits; lane l has the address of row l mod 8 of matrix l / 8. */
template <int COUNT, bool TRANSPOSED, class T> GO_DEVICE go_vec<T, 2 * COUNT> go_ldmatrix(const T *row)
{
  static_assert(sizeof(T) == 2 && (COUNT == 1 || COUNT == 2 || COUNT == 4), "1, 2 or 4 matrices of 16-bit values");
  const unsigned at = (unsigned)__cvta_generic_to_shared(row);
  unsigned r[4] = {0, 0, 0, 0};
  if (COUNT == 1 && !TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(at) : "memory");
  } else if (COUNT == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(at) : "memory");
  } else if (COUNT == 2 && !TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
  } else if (COUNT == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
  } else if (!TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  }
  go_vec<T, 2 * COUNT> result;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    result.v[2 * i].bits = (unsigned short)(r[i] & 0xffff);
    result.v[2 * i + 1].bits = (unsigned short)(r[i] >> 16);
  }
  return result;
}

/* Values i and i + 1 as one register. */
template <class V> GO_DEVICE unsigned go_pair(const V &v, int i) { return (unsigned)v.v[i].bits | (unsigned)v.v[i + 1].bits << 16; }

/* c + a b of 16 x 16 by 16 x 8 values; the fragments are those of mma.m16n8k16 in the PTX ISA. */
GO_DEVICE go_vec<float, 4> go_mma(const go_vec<go_half, 8> &a, const go_vec<go_half, 4> &b, const go_vec<float, 4> &c)
{
  go_vec<float, 4> d = c;
#ifdef GO_OLD
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3]) : "r"(go_pair(a, 0)), "r"(go_pair(a, 2)), "r"(go_pair(b, 0)));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3]) : "r"(go_pair(a, 4)), "r"(go_pair(a, 6)), "r"(go_pair(b, 2)));
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3])
               : "r"(go_pair(a, 0)), "r"(go_pair(a, 2)), "r"(go_pair(a, 4)), "r"(go_pair(a, 6)), "r"(go_pair(b, 0)), "r"(go_pair(b, 2)));
#endif
  return d;
}

#ifdef GO_OLD
/* One step along k where no instruction does it: rows g and g + 8 of a are in lane 4 g + k_lane (low, high), columns 2 t and 2 t + 1 of
   b in lanes 8 t + k_lane and 8 t + 4 + k_lane (right). */
GO_DEVICE void go_mma_step(go_vec<float, 4> &d, float low, float high, float right, int k_lane)
{
  const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const float a0 = __shfl_sync(GO_ALL_LANES, low, 4 * g + k_lane), a1 = __shfl_sync(GO_ALL_LANES, high, 4 * g + k_lane);
  const float b0 = __shfl_sync(GO_ALL_LANES, right, 8 * t + k_lane), b1 = __shfl_sync(GO_ALL_LANES, right, 8 * t + 4 + k_lane);
  d.v[0] = fmaf(a0, b0, d.v[0]);
  d.v[1] = fmaf(a0, b1, d.v[1]);
  d.v[2] = fmaf(a1, b0, d.v[2]);
  d.v[3] = fmaf(a1, b1, d.v[3]);
}
#endif

GO_DEVICE go_vec<float, 4> go_mma(const go_vec<go_bf16, 8> &a, const go_vec<go_bf16, 4> &b, const go_vec<float, 4> &c)
{
  go_vec<float, 4> d = c;
#ifdef GO_OLD
#pragma unroll
  for (int k = 0; k < 16; ++k) {
    const int at = 4 * (k / 8) + k % 2;
    go_mma_step(d, go_to_float(a.v[at]), go_to_float(a.v[at + 2]), go_to_float(b.v[2 * (k / 8) + k % 2]), k % 8 / 2);
  }
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3])
               : "r"(go_pair(a, 0)), "r"(go_pair(a, 2)), "r"(go_pair(a, 4)), "r"(go_pair(a, 6)), "r"(go_pair(b, 0)), "r"(go_pair(b, 2)));
#endif
  return d;
}

/* c + a b of 16 x 8 by 8 x 8 floats, a and b rounded to tf32 first; mma.m16n8k8. */
GO_DEVICE go_vec<float, 4> go_mma_tf32(const go_vec<float, 4> &a, const go_vec<float, 2> &b, const go_vec<float, 4> &c)
{
  go_vec<float, 4> d = c;
#ifdef GO_OLD
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int at = 2 * (k / 4);
    go_mma_step(d, __uint_as_float(go_tf32_bits(a.v[at])), __uint_as_float(go_tf32_bits(a.v[at + 1])),
                __uint_as_float(go_tf32_bits(b.v[k / 4])), k % 4);
  }
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d.v[0]), "+f"(d.v[1]), "+f"(d.v[2]), "+f"(d.v[3])
               : "r"(go_tf32_bits(a.v[0])), "r"(go_tf32_bits(a.v[1])), "r"(go_tf32_bits(a.v[2])), "r"(go_tf32_bits(a.v[3])),
                 "r"(go_tf32_bits(b.v[0])), "r"(go_tf32_bits(b.v[1])));
#endif
  return d;
}

/* -- marks: only a build for the CPU can leave out what they mark ----------------------------------------------------- */

#define GO_MARK_SYNC(id, call) call
#define GO_MARK_BOUND(id, condition) (condition)
#define GO_MARK_VALID(id, n, full) (n)

#endif
#endif
