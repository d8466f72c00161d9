/* Vectors of the values that one thread has, their loads and stores, the errors of kernels, and reductions of a warp: the part of
   graph_opt_device.h and graph_opt_host.h that is the same in both.  They define before: GO_DEVICE, GO_MEMBER (member functions),
   GO_CONSTANT (functions of constants), GO_AT / GO_HERE (the host hands on the line of a call), go_move, go_move_aligned,
   go_swap and go_peek.  */
#ifndef GRAPH_OPT_VECTOR_H
#define GRAPH_OPT_VECTOR_H

/* The largest power of two that divides the size, 16 at most. */
GO_CONSTANT int go_alignment(int size) { return size > 0 && size % 16 != 0 ? (size & -size) : 16; }

template <class T, int N> struct alignas(go_alignment(N * (int)sizeof(T))) go_vec {
  T v[N > 0 ? N : 1];
  GO_MEMBER T &operator[](int i) { return v[i]; }
  GO_MEMBER const T &operator[](int i) const { return v[i]; }
};

#define GO_EACH _Pragma("unroll") for (int i = 0; i < N; ++i)

template <class T, int N> GO_DEVICE go_vec<T, N> go_splat(T x)
{
  go_vec<T, N> r;
  GO_EACH r.v[i] = x;
  return r;
}

/* Of float and double; integers would have to wrap around. */
#define GO_BINARY(OP)                                                                           \
  template <class T, int N>                                                                     \
  GO_DEVICE go_vec<T, N> operator OP(const go_vec<T, N> &a, const go_vec<T, N> &b)              \
  {                                                                                             \
    static_assert((T)0.5 != (T)0, "arithmetic of vectors is that of float and double");         \
    go_vec<T, N> r;                                                                             \
    GO_EACH r.v[i] = a.v[i] OP b.v[i];                                                          \
    return r;                                                                                   \
  }
GO_BINARY(+)
GO_BINARY(-)
GO_BINARY(*)
GO_BINARY(/)
#undef GO_BINARY

GO_DEVICE float go_fma(float a, float b, float c) { return fmaf(a, b, c); }
GO_DEVICE double go_fma(double a, double b, double c) { return fma(a, b, c); }
template <class T, int N> GO_DEVICE go_vec<T, N> go_fma(const go_vec<T, N> &a, const go_vec<T, N> &b, const go_vec<T, N> &c)
{
  go_vec<T, N> r;
  GO_EACH r.v[i] = go_fma(a.v[i], b.v[i], c.v[i]);
  return r;
}

/* -- loads and stores ------------------------------------------------------------------------------------------------- */

/* In words of 16, 8, 4 or 2 bytes: p is aligned as go_vec<T, N> is.  go_move_aligned(to, from) copies a vector so. */
template <int N, class T> GO_DEVICE go_vec<T, N> go_load_aligned(const T *p GO_AT)
{
  go_vec<T, N> r;
  go_move_aligned<N>(r.v, p GO_HERE);
  return r;
}
template <class T, int N> GO_DEVICE void go_store_aligned(T *p, const go_vec<T, N> &v GO_AT) { go_move_aligned<N>(p, v.v GO_HERE); }

/* Value by value; go_move(to, from) does that. */
template <int N, class T> GO_DEVICE go_vec<T, N> go_load(const T *p)
{
  go_vec<T, N> r;
  go_move<N>(r.v, p);
  return r;
}
template <class T, int N> GO_DEVICE void go_store(T *p, const go_vec<T, N> &v) { go_move<N>(p, v.v); }

/* The first n values, the others are pad; n may be negative, or more than N. */
template <int N, class T> GO_DEVICE go_vec<T, N> go_load_valid(const T *p, go_index n, T pad)
{
  go_vec<T, N> r;
  GO_EACH r.v[i] = i < n ? p[i] : pad;
  return r;
}
template <class T, int N> GO_DEVICE void go_store_valid(T *p, const go_vec<T, N> &v, go_index n)
{
  GO_EACH if (i < n) p[i] = v.v[i];
}

/* In words where all values are valid. */
template <int N, class T> GO_DEVICE go_vec<T, N> go_load_valid_aligned(const T *p, go_index n, T pad GO_AT)
{
  if (n >= N) return go_load_aligned<N>(p GO_HERE);
  return go_load_valid<N>(p, n, pad);
}
template <class T, int N> GO_DEVICE void go_store_valid_aligned(T *p, const go_vec<T, N> &v, go_index n GO_AT)
{
  if (n >= N) {
    go_store_aligned(p, v GO_HERE);
  } else {
    go_store_valid(p, v, n);
  }
}

/* -- errors ----------------------------------------------------------------------------------------------------------- */

/* What is left of a run that failed, all zero before: the number of the site + 1, and its two values. */
struct go_state {
  int failed;
  int reserved;
  long long values[2];
  long long more[5];
};

GO_DEVICE bool go_failed(const go_state *state) { return go_peek(&state->failed) != 0; }

/* The first thread that fails is the one that counts. */
GO_DEVICE void go_fail(go_state *state, go_index site, go_index first, go_index second)
{
  if (go_swap(&state->failed, 0, (int)site + 1) == 0) {
    state->values[0] = first;
    state->values[1] = second;
  }
}

/* -- what lanes of a warp do together --------------------------------------------------------------------------------- */

/* go_shuffle of a vector: value by value. */
#define GO_SHUFFLE(NAME)                                                                                             \
  template <class T, int N> GO_DEVICE go_vec<T, N> NAME(const go_vec<T, N> &x, int by, int width = 32 GO_AT) \
  {                                                                                                                  \
    go_vec<T, N> r;                                                                                                  \
    GO_EACH r.v[i] = NAME(x.v[i], by, width GO_HERE);                                                                \
    return r;                                                                                                        \
  }
GO_SHUFFLE(go_shuffle_xor)
GO_SHUFFLE(go_shuffle_down)
GO_SHUFFLE(go_shuffle_up)
GO_SHUFFLE(go_shuffle_index)
#undef GO_SHUFFLE

/* Two lanes' values as one.  Integers wrap around; 16-bit floats are computed in float and rounded. */
GO_DEVICE float go_join_add(float a, float b) { return a + b; }
GO_DEVICE double go_join_add(double a, double b) { return a + b; }
GO_DEVICE go_half go_join_add(go_half a, go_half b) { return go_to_half(go_to_float(a) + go_to_float(b)); }
GO_DEVICE go_bf16 go_join_add(go_bf16 a, go_bf16 b) { return go_to_bf16(go_to_float(a) + go_to_float(b)); }
template <class T> GO_DEVICE T go_join_add(T a, T b) { return (T)((unsigned long long)a + (unsigned long long)b); }
GO_DEVICE float go_join_mul(float a, float b) { return a * b; }
GO_DEVICE double go_join_mul(double a, double b) { return a * b; }
GO_DEVICE go_half go_join_mul(go_half a, go_half b) { return go_to_half(go_to_float(a) * go_to_float(b)); }
GO_DEVICE go_bf16 go_join_mul(go_bf16 a, go_bf16 b) { return go_to_bf16(go_to_float(a) * go_to_float(b)); }
template <class T> GO_DEVICE T go_join_mul(T a, T b) { return (T)((unsigned long long)a * (unsigned long long)b); }
GO_DEVICE float go_join_max(float a, float b) { return go_max(a, b); }
GO_DEVICE double go_join_max(double a, double b) { return go_max64(a, b); }
GO_DEVICE go_half go_join_max(go_half a, go_half b) { return go_to_half(go_max(go_to_float(a), go_to_float(b))); }
GO_DEVICE go_bf16 go_join_max(go_bf16 a, go_bf16 b) { return go_to_bf16(go_max(go_to_float(a), go_to_float(b))); }
template <class T> GO_DEVICE T go_join_max(T a, T b) { return a > b ? a : b; }
GO_DEVICE float go_join_min(float a, float b) { return go_min(a, b); }
GO_DEVICE double go_join_min(double a, double b) { return go_min64(a, b); }
GO_DEVICE go_half go_join_min(go_half a, go_half b) { return go_to_half(go_min(go_to_float(a), go_to_float(b))); }
GO_DEVICE go_bf16 go_join_min(go_bf16 a, go_bf16 b) { return go_to_bf16(go_min(go_to_float(a), go_to_float(b))); }
template <class T> GO_DEVICE T go_join_min(T a, T b) { return a < b ? a : b; }
template <class T> GO_DEVICE T go_join_and(T a, T b) { return (T)(a & b); }
template <class T> GO_DEVICE T go_join_or(T a, T b) { return (T)(a | b); }

/* For d = width / 2, ..., 2, 1 a lane joins its value with that of lane xor d, so all lanes get the same. */
#define GO_WARP_REDUCE(KIND)                                                                                                   \
  template <class T> GO_DEVICE T go_warp_reduce_##KIND(T x, int width = 32 GO_AT)                                      \
  {                                                                                                                            \
    _Pragma("unroll") for (int d = width / 2; d > 0; d /= 2) x = go_join_##KIND(x, go_shuffle_xor(x, d, width GO_HERE));       \
    return x;                                                                                                                  \
  }
GO_WARP_REDUCE(add)
GO_WARP_REDUCE(mul)
GO_WARP_REDUCE(max)
GO_WARP_REDUCE(min)
GO_WARP_REDUCE(and)
GO_WARP_REDUCE(or)
#undef GO_WARP_REDUCE
#undef GO_EACH

#endif
