/* What kernels are written in, for the CPU: the names of graph_opt_device.h, for g++.  It serves tests and the device "cuda-emulated".

   graph_opt_host.cc runs the threads of a block as fibers, one at a time; a thread runs until it comes to a barrier or to something that
   the lanes of a warp do together.  Who doesn't come is reported with thread and line, copies land only when they are waited for, aligned
   accesses are checked, and what hasn't been stored is garbage (NaN).  With -fsanitize=thread a CUDA thread is a thread for TSan, and only
   barriers order what the threads of a block do.  */
#ifndef GRAPH_OPT_HOST_H
#define GRAPH_OPT_HOST_H

#include <math.h>

#define __global__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("go_static_shared")))
#define GO_DEVICE static inline
#define GO_MEMBER inline
#define GO_CONSTANT constexpr
#define GO_AT , int line = __builtin_LINE()
#define GO_HERE , line

#include "graph_opt_scalar.h"

/* -- what graph_opt_host.cc does -------------------------------------------------------------------------------------- */

struct go_copy {
  unsigned char *to;
  const unsigned char *from;
  int bytes, valid;
};

enum go_place { GO_AT_BARRIER, GO_AT_WARP_BARRIER, GO_AT_SHUFFLE, GO_AT_LDMATRIX, GO_AT_MMA };

extern "C" {
extern go_index go_now_thread, go_now_block[3];
extern unsigned char *go_now_shared;
extern int go_removed_mark;
void go_meet(int place, int line);
void go_exchange(int place, int line, const void *mine, int size);
const void *go_peer(int lane, int line); /* what a lane brought to the last go_exchange */
void go_misaligned(const void *address, int bytes, int line);
void go_copy_issue(const go_copy *copy, const unsigned *words, int line); /* words: read for the sanitizers alone */
void go_copy_close(void);
bool go_copy_land(int pending, go_copy *copy);
}

GO_DEVICE int go_swap(int *p, int old, int value)
{
  __atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return old;
}
GO_DEVICE int go_peek(const int *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }

/* -- threads ---------------------------------------------------------------------------------------------------------- */

GO_DEVICE go_index go_thread() { return go_now_thread; }
GO_DEVICE go_index go_block_x() { return go_now_block[0]; }
GO_DEVICE go_index go_block_y() { return go_now_block[1]; }
GO_DEVICE go_index go_block_z() { return go_now_block[2]; }
GO_DEVICE unsigned char *go_shared() { return go_now_shared; }
GO_DEVICE void go_barrier(int line = __builtin_LINE()) { go_meet(GO_AT_BARRIER, line); }
GO_DEVICE void go_warp_barrier(int line = __builtin_LINE()) { go_meet(GO_AT_WARP_BARRIER, line); }

/* -- memory ----------------------------------------------------------------------------------------------------------- */

GO_DEVICE void go_check_aligned(const void *address, int bytes, int line)
{
  if ((unsigned long long)address % (unsigned)bytes != 0) go_misaligned(address, bytes, line);
}

/* Accesses to memory are as wide as can be: ThreadSanitizer remembers the last four of each 8 bytes, so bytes would hide a race. */
template <int SIZE> struct go_word { typedef unsigned long long __attribute__((may_alias)) type; };
template <> struct go_word<1> { typedef unsigned char __attribute__((may_alias)) type; };
template <> struct go_word<2> { typedef unsigned short __attribute__((may_alias)) type; };
template <> struct go_word<4> { typedef unsigned __attribute__((may_alias)) type; };

/* Value by value, or in words where both places allow it. */
template <int N, class T> GO_DEVICE void go_move(T *to, const T *from)
{
  constexpr int size = N * (int)sizeof(T);
  typedef go_word<4>::type word;
  if (sizeof(T) < 4 && size % 4 == 0 && ((unsigned long long)to | (unsigned long long)from) % 4 == 0) {
    for (int i = 0; i < size / 4; ++i) ((word *)to)[i] = ((const word *)from)[i];
  } else {
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}

template <int N, class T> GO_DEVICE void go_move_aligned(T *to, const T *from GO_AT)
{
  constexpr int size = N * (int)sizeof(T), width = size % 16 == 0 ? 16 : size & -size;
  typedef typename go_word<width>::type word;
  go_check_aligned(to, width, line);
  go_check_aligned(from, width, line);
  for (int i = 0; i < size / (int)sizeof(word); ++i) ((word *)to)[i] = ((const word *)from)[i];
}

/* -- shuffles --------------------------------------------------------------------------------------------------------- */

template <class T> GO_DEVICE T go_taken(T x, int source, int width, int line)
{
  const int lane = (int)(go_now_thread % 32), first = lane / width * width;
  go_exchange(GO_AT_SHUFFLE, line, &x, (int)sizeof x);
  return source < first || source >= first + width ? x : *(const T *)go_peer(source, line);
}
template <class T> GO_DEVICE T go_shuffle_xor(T x, int by, int width = 32 GO_AT)
{
  return go_taken(x, (int)(go_now_thread % 32) ^ by, width, line);
}
template <class T> GO_DEVICE T go_shuffle_down(T x, int by, int width = 32 GO_AT)
{
  return go_taken(x, (int)(go_now_thread % 32) + by, width, line);
}
template <class T> GO_DEVICE T go_shuffle_up(T x, int by, int width = 32 GO_AT)
{
  return go_taken(x, (int)(go_now_thread % 32) - by, width, line);
}
template <class T> GO_DEVICE T go_shuffle_index(T x, int lane, int width = 32 GO_AT)
{
  return go_taken(x, (int)(go_now_thread % 32) / width * width + (lane & (width - 1)), width, line);
}

#include "graph_opt_vector.h"

/* -- asynchronous copies ---------------------------------------------------------------------------------------------- */

/* What a copy puts into its target, word by word; what is not valid is not read. */
GO_DEVICE void go_copy_read(const go_copy *copy, unsigned *words)
{
  for (int i = 0; i < copy->bytes / 4; ++i) {
    const int left = copy->valid - 4 * i;
    words[i] = left >= 4 ? ((const go_word<4>::type *)copy->from)[i] : 0;
    for (int k = 0; k < left && left < 4; ++k) words[i] |= (unsigned)copy->from[4 * i + k] << 8 * k;
  }
}

/* The copy is done in go_cp_wait; until then the target holds garbage.  Both places are touched here, too, for the sanitizers. */
template <int BYTES> GO_DEVICE void go_cp_async(void *to, const void *from, go_index valid = BYTES GO_AT)
{
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "4, 8 or 16 bytes");
  const go_copy copy = {(unsigned char *)to, (const unsigned char *)from, BYTES, valid >= BYTES ? BYTES : valid > 0 ? (int)valid : 0};
  unsigned words[4];
  go_check_aligned(to, BYTES, line);
  go_check_aligned(from, BYTES, line);
  go_copy_read(&copy, words);
  for (int i = 0; i < BYTES / 4; ++i) ((go_word<4>::type *)to)[i] = 0x7fff7fffu;
  go_copy_issue(&copy, words, line);
}
GO_DEVICE void go_cp_commit() { go_copy_close(); }
template <int PENDING> GO_DEVICE void go_cp_wait()
{
  unsigned words[4];
  for (go_copy copy; go_copy_land(PENDING, &copy);) {
    go_copy_read(&copy, words);
    for (int i = 0; i < copy.bytes / 4; ++i) ((go_word<4>::type *)copy.to)[i] = words[i];
  }
}

/* -- tensor cores ----------------------------------------------------------------------------------------------------- */

template <int COUNT, bool TRANSPOSED, class T> GO_DEVICE go_vec<T, 2 * COUNT> go_ldmatrix(const T *row GO_AT)
{
  static_assert(sizeof(T) == 2 && (COUNT == 1 || COUNT == 2 || COUNT == 4), "1, 2 or 4 matrices of 16-bit values");
  const int lane = (int)(go_now_thread % 32);
  if (lane < 8 * COUNT) go_check_aligned(row, 16, line);
  go_exchange(GO_AT_LDMATRIX, line, &row, (int)sizeof row);
  go_vec<T, 2 * COUNT> r;
  for (int i = 0; i < 2 * COUNT; ++i) {
    const int two = 2 * (lane % 4) + i % 2, at = TRANSPOSED ? two : lane / 4;
    const T *from = *(const T *const *)go_peer(8 * (i / 2) + at, line);
    r.v[i] = from[TRANSPOSED ? lane / 4 : two];
  }
  return r;
}

/* What a lane brings to a product of 16 x K by K x 8 values. */
template <class T, int A, int B> struct go_fragments {
  go_vec<T, A> a;
  go_vec<T, B> b;
};

/* c + the sum of K products of row i of a and column j of b, in double, rounded once.  A value (row, k) of a is in lane
   4 (row mod 8) + at(k), b's (k, column) in lane 4 column + at(k), where a lane has PAIR neighbours of k. */
template <int K, int PAIR, class T, int A, int B>
GO_DEVICE go_vec<float, 4> go_product(const go_vec<T, A> &a, const go_vec<T, B> &b, const go_vec<float, 4> &c, float (*number)(T), int line)
{
  typedef go_fragments<T, A, B> fragments;
  const fragments mine = {a, b};
  const int g = (int)(go_now_thread % 32) / 4, t = (int)(go_now_thread % 32) % 4;
  go_exchange(GO_AT_MMA, line, &mine, (int)sizeof mine);
  double sums[4] = {c.v[0], c.v[1], c.v[2], c.v[3]};
  for (int k = 0; k < K; ++k) {
    const int lane = k % (4 * PAIR) / PAIR, half = k / (4 * PAIR), in = k % PAIR;
    const fragments *left = (const fragments *)go_peer(4 * g + lane, line);
    const double low = number(left->a.v[2 * PAIR * half + in]), high = number(left->a.v[2 * PAIR * half + PAIR + in]);
    for (int j = 0; j < 2; ++j) {
      const fragments *right = (const fragments *)go_peer(4 * (2 * t + j) + lane, line);
      const double x = number(right->b.v[PAIR * half + in]);
      sums[j] += low * x;
      sums[2 + j] += high * x;
    }
  }
  go_vec<float, 4> d;
  for (int i = 0; i < 4; ++i) d.v[i] = (float)sums[i];
  return d;
}

GO_DEVICE float go_tf32(float x) { return x != x ? x : go_as_float((int)(((unsigned)go_as_int(x) + 0x1000u) & ~0x1fffu)); }

GO_DEVICE go_vec<float, 4> go_mma(const go_vec<go_half, 8> &a, const go_vec<go_half, 4> &b, const go_vec<float, 4> &c GO_AT)
{
  return go_product<16, 2>(a, b, c, go_to_float, line);
}
GO_DEVICE go_vec<float, 4> go_mma(const go_vec<go_bf16, 8> &a, const go_vec<go_bf16, 4> &b, const go_vec<float, 4> &c GO_AT)
{
  return go_product<16, 2>(a, b, c, go_to_float, line);
}
GO_DEVICE go_vec<float, 4> go_mma_tf32(const go_vec<float, 4> &a, const go_vec<float, 2> &b, const go_vec<float, 4> &c GO_AT)
{
  return go_product<8, 1>(a, b, c, go_tf32, line);
}

/* -- marks: what a mutation test leaves out --------------------------------------------------------------------------- */

#define GO_MARK_SYNC(id, call) ((id) == go_removed_mark ? (void)0 : (void)(call))
#define GO_MARK_BOUND(id, condition) ((id) == go_removed_mark || (condition))
#define GO_MARK_VALID(id, n, full) ((id) == go_removed_mark ? (full) : (n))

/* -- the list of kernels ---------------------------------------------------------------------------------------------- */

struct go_kernel {
  const char *name;
  void (*call)(void *function, void **arguments);
  void *function;
  int count;
  const int *sizes;
};
extern "C" void go_register(const go_kernel *kernel);

template <int... I> struct go_numbers {};
template <int N, int... I> struct go_count : go_count<N - 1, N - 1, I...> {};
template <int... I> struct go_count<0, I...> { typedef go_numbers<I...> type; };

template <class... A> struct go_caller {
  template <int... I> static void spread(void (*function)(A...), void **arguments, go_numbers<I...>) { function(*(A *)arguments[I]...); }
  static void call(void *function, void **arguments)
  {
    spread((void (*)(A...))function, arguments, typename go_count<(int)sizeof...(A)>::type());
  }
};
struct go_registration {
  go_kernel kernel;
  template <class... A> go_registration(const char *name, void (*function)(A...))
  {
    static const int sizes[] = {(int)sizeof(A)..., 0};
    kernel = {name, go_caller<A...>::call, (void *)function, (int)sizeof...(A), sizes};
    go_register(&kernel);
  }
};
#define GO_REGISTER(name) static go_registration go_registration_##name(#name, name);

#endif
