// Loops over rows by hand, with the compiler's vectors: a measure of what memory-bound work can reach.
// gcc -O3 -march=native -mprefer-vector-width=512 -fno-math-errno -fno-trapping-math -fopenmp -shared -fPIC rows.c -o rows.so -lm
//
// Every function takes the rows, the columns (a multiple of 64), inputs, weights, results, and then how many threads do it how often.
#include <math.h>
#include <string.h>

#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
typedef float vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * WIDTH)));
#define ALL(x) ((vec){} + (x))
#define AT(p, i) (*(vec *)((p) + (i)))
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vec smaller(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE vec inverse(vec x) { vec y = (vec)_mm512_rcp14_ps((__m512)x); return y * (2.0f - x * y); }
#else
INLINE vec larger(vec a, vec b) { ivec m = a > b; return (vec)(((ivec)a & m) | ((ivec)b & ~m)); }
INLINE vec smaller(vec a, vec b) { return -larger(-a, -b); }
INLINE vec inverse(vec x) { return 1.0f / x; }
#endif
// Lanes are added, or compared, in halves.
#if defined(__AVX512F__)
INLINE float sum(vec v) { return _mm512_reduce_add_ps((__m512)v); }
INLINE float largest(vec v) { return _mm512_reduce_max_ps((__m512)v); }
#else
#if WIDTH == 8
#define LANES {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define LANES {0, 1, 2, 3}
#endif
#define TURNED(v, by) __builtin_shuffle(v, (ivec)LANES + (by))
INLINE float sum(vec v) {
#pragma GCC unroll 4
  for (int by = WIDTH / 2; by; by /= 2) v += TURNED(v, by);
  return v[0];
}
INLINE float largest(vec v) {
#pragma GCC unroll 4
  for (int by = WIDTH / 2; by; by /= 2) v = larger(v, TURNED(v, by));
  return v[0];
}
#endif

// exp for x <= 88: 2^n times a polynomial; n is rounded by adding 1.5 * 2^23, whose low bits then hold it.
INLINE vec exponential(vec x) {
  x = larger(x, ALL(-87.0f));
  vec t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
  vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = ((((1.9875691e-4f * r + 1.3981999e-3f) * r + 8.3334519e-3f) * r + 4.1665795e-2f) * r + 1.6666665e-1f) * r + 0.5f;
  p = p * (r * r) + (r + 1.0f);
  return (vec)((ivec)p + ((ivec)t << 23));
}

INLINE void softmax_row(long c, const float *x, float *o) {
  vec m[4], s[4];
  for (int u = 0; u < 4; u++) m[u] = AT(x, u * WIDTH), s[u] = ALL(0.0f);
  for (long j = 0; j < c; j += 4 * WIDTH)
    for (int u = 0; u < 4; u++) m[u] = larger(m[u], AT(x, j + u * WIDTH));
  vec most = ALL(largest(larger(larger(m[0], m[1]), larger(m[2], m[3]))));
  for (long j = 0; j < c; j += 4 * WIDTH)
    for (int u = 0; u < 4; u++) {
      vec e = exponential(AT(x, j + u * WIDTH) - most);
      s[u] += e;
      AT(o, j + u * WIDTH) = e;
    }
  float scale = 1.0f / sum(s[0] + s[1] + (s[2] + s[3]));
  for (long j = 0; j < c; j += WIDTH) AT(o, j) *= scale;
}

INLINE void layernorm_row(long c, const float *x, const float *w, const float *b, float *o) {
  vec s[4], q[4];
  for (int u = 0; u < 4; u++) s[u] = q[u] = ALL(0.0f);
  for (long j = 0; j < c; j += 4 * WIDTH)
    for (int u = 0; u < 4; u++) s[u] += AT(x, j + u * WIDTH);
  float mean = sum(s[0] + s[1] + (s[2] + s[3])) / c;
  for (long j = 0; j < c; j += 4 * WIDTH)
    for (int u = 0; u < 4; u++) {
      vec d = AT(x, j + u * WIDTH) - mean;
      q[u] += d * d;
    }
  float scale = 1.0f / sqrtf(sum(q[0] + q[1] + (q[2] + q[3])) / c + 1e-5f);
  for (long j = 0; j < c; j += WIDTH) AT(o, j) = (AT(x, j) - mean) * (scale * AT(w, j)) + AT(b, j);
}

INLINE void rmsnorm_row(long c, const float *x, const float *w, float *o) {
  vec q[4];
  for (int u = 0; u < 4; u++) q[u] = ALL(0.0f);
  for (long j = 0; j < c; j += 4 * WIDTH)
    for (int u = 0; u < 4; u++) q[u] += AT(x, j + u * WIDTH) * AT(x, j + u * WIDTH);
  float scale = 1.0f / sqrtf(sum(q[0] + q[1] + (q[2] + q[3])) / c + 1e-5f);
  for (long j = 0; j < c; j += WIDTH) AT(o, j) = AT(x, j) * scale * AT(w, j);
}

INLINE void add_rmsnorm_row(long c, const float *x, const float *y, const float *w, float *o, float *h) {
  vec q[4];
  for (int u = 0; u < 4; u++) q[u] = ALL(0.0f);
  for (long j = 0; j < c; j += 4 * WIDTH)
    for (int u = 0; u < 4; u++) {
      vec a = AT(x, j + u * WIDTH) + AT(y, j + u * WIDTH);
      AT(h, j + u * WIDTH) = a;
      q[u] += a * a;
    }
  float scale = 1.0f / sqrtf(sum(q[0] + q[1] + (q[2] + q[3])) / c + 1e-5f);
  for (long j = 0; j < c; j += WIDTH) AT(o, j) = AT(h, j) * scale * AT(w, j);
}

INLINE vec sigmoid(vec x) { return inverse(1.0f + exponential(smaller(0.0f - x, ALL(80.0f)))); }

INLINE void gelu_tanh_row(long c, const float *x, float *o) {
  for (long j = 0; j < c; j += WIDTH) {
    vec a = AT(x, j);
    AT(o, j) = a * sigmoid(a * (a * a * 0.0713548162726f + 1.59576912161f));
  }
}

// Abramowitz and Stegun 7.1.26: erf(z) = 1 - p(t) exp(-z z), t = 1 / (1 + 0.3275911 z).
INLINE void gelu_row(long c, const float *x, float *o) {
  for (long j = 0; j < c; j += WIDTH) {
    vec a = AT(x, j), z = larger(a, -a) * 0.70710678f, t = inverse(1.0f + 0.3275911f * z);
    vec p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    vec tail = 0.5f * a * p * exponential(-z * z);
    ivec positive = a > 0.0f;
    AT(o, j) = (vec)(((ivec)(a - tail) & positive) | ((ivec)tail & ~positive));
  }
}

INLINE void silu_mul_row(long c, const float *x, const float *y, float *o) {
  for (long j = 0; j < c; j += WIDTH) AT(o, j) = AT(x, j) * AT(y, j) * sigmoid(AT(x, j));
}

#define REPEAT(threads, times, r, row)                                  \
  for (long n = 0; n < times; n++) {                                    \
    if (threads == 1)                                                   \
      for (long i = 0; i < r; i++) row;                                 \
    else {                                                              \
      _Pragma("omp parallel for num_threads(threads) schedule(static)") \
      for (long i = 0; i < r; i++) row;                                 \
    }                                                                   \
  }

void softmax(long r, long c, float *x, float *o, int threads, int times) { REPEAT(threads, times, r, softmax_row(c, x + i * c, o + i * c)) }
void layernorm(long r, long c, float *x, float *w, float *b, float *o, int threads, int times) { REPEAT(threads, times, r, layernorm_row(c, x + i * c, w, b, o + i * c)) }
void rmsnorm(long r, long c, float *x, float *w, float *o, int threads, int times) { REPEAT(threads, times, r, rmsnorm_row(c, x + i * c, w, o + i * c)) }
void add_rmsnorm(long r, long c, float *x, float *y, float *w, float *o, float *h, int threads, int times) { REPEAT(threads, times, r, add_rmsnorm_row(c, x + i * c, y + i * c, w, o + i * c, h + i * c)) }
void gelu(long r, long c, float *x, float *o, int threads, int times) { REPEAT(threads, times, r, gelu_row(c, x + i * c, o + i * c)) }
void gelu_tanh(long r, long c, float *x, float *o, int threads, int times) { REPEAT(threads, times, r, gelu_tanh_row(c, x + i * c, o + i * c)) }
void silu_mul(long r, long c, float *x, float *y, float *o, int threads, int times) { REPEAT(threads, times, r, silu_mul_row(c, x + i * c, y + i * c, o + i * c)) }
