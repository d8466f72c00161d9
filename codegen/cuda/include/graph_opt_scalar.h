/* What operations on scalars mean, for kernels that graph-opt writes: the device and the host compile these same lines.

   Included by graph_opt_device.h and graph_opt_host.h, which define GO_DEVICE, what functions of the device begin with, and may define
   some functions themselves, by better instructions: GO_HAS_HALF, GO_HAS_BF16, GO_HAS_DOT4 say so.  Nothing here needs a header of a
   toolkit or of the C library except for the functions of <cmath>, which device compilers know without.

   Integers wrap around (signed overflow is undefined in C++, so sums are made of unsigned numbers), division and conversion are total,
   floats round at every step: compile without contraction of products and sums, without fast math.  */
#ifndef GRAPH_OPT_SCALAR_H
#define GRAPH_OPT_SCALAR_H

typedef long long go_index;

/* Types of 16 bits are for storage; they are computed in float, and rounded. */
struct go_half { unsigned short bits; };
struct go_bf16 { unsigned short bits; };

/* -- bits ------------------------------------------------------------------------------------------------------------- */

#ifdef __CUDA_ARCH__
GO_DEVICE int go_as_int(float x) { return __float_as_int(x); }
GO_DEVICE float go_as_float(int x) { return __int_as_float(x); }
GO_DEVICE long long go_as_long(double x) { return __double_as_longlong(x); }
GO_DEVICE double go_as_double(long long x) { return __longlong_as_double(x); }
#else
GO_DEVICE int go_as_int(float x) { int y; __builtin_memcpy(&y, &x, sizeof y); return y; }
GO_DEVICE float go_as_float(int x) { float y; __builtin_memcpy(&y, &x, sizeof y); return y; }
GO_DEVICE long long go_as_long(double x) { long long y; __builtin_memcpy(&y, &x, sizeof y); return y; }
GO_DEVICE double go_as_double(long long x) { double y; __builtin_memcpy(&y, &x, sizeof y); return y; }
#endif

GO_DEVICE go_half go_half_bits(int bits) { go_half y = {(unsigned short)bits}; return y; }
GO_DEVICE go_bf16 go_bf16_bits(int bits) { go_bf16 y = {(unsigned short)bits}; return y; }

#define GO_INFINITY go_as_float(0x7f800000)
#define GO_NAN go_as_float(0x7fc00000)
#define GO_INFINITY64 go_as_double(0x7ff0000000000000LL)
#define GO_NAN64 go_as_double(0x7ff8000000000000LL)

/* -- floats of 16 bits ------------------------------------------------------------------------------------------------ */

#ifndef GO_HAS_HALF
GO_DEVICE float go_half_bits_to_float(unsigned short half)
{
  const int sign = (half & 0x8000) << 16, rest = half & 0x7fff;
  if (rest >= 0x7c00) return go_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000 : 0));
  if (rest >= 0x400) return go_as_float(sign | ((rest << 13) + 0x38000000));
  return go_as_float(sign | go_as_int((float)rest * 5.9604644775390625e-8f));
}

GO_DEVICE unsigned short go_float_to_half_bits(float x)
{
  const int bits = go_as_int(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (unsigned short)(sign | 0x7e00);
  if (size >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
  /* what is below 2**-14 has its last bit at 2**-24: a sum with 0.5 rounds there */
  if (size < 0x38800000) return (unsigned short)(sign | (go_as_int(go_as_float(size) + 0.5f) - 0x3f000000));
  return (unsigned short)(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}
#endif

#ifndef GO_HAS_BF16
GO_DEVICE unsigned short go_float_to_bf16_bits(float x)
{
  const unsigned bits = (unsigned)go_as_int(x);
  return (unsigned short)(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#endif

GO_DEVICE float go_to_float(go_half x) { return go_half_bits_to_float(x.bits); }
GO_DEVICE float go_to_float(go_bf16 x) { return go_as_float((int)((unsigned)x.bits << 16)); }
GO_DEVICE go_half go_to_half(float x) { return go_half_bits(go_float_to_half_bits(x)); }
GO_DEVICE go_bf16 go_to_bf16(float x) { return go_bf16_bits(go_float_to_bf16_bits(x)); }

/* A double as the float that, rounded to 16 bits, gives what one rounding would: its last bit is 1 where it is not exact. */
GO_DEVICE float go_odd_float(double x)
{
  const float y = (float)x;
  const double back = (double)y, size = back < 0 ? -back : back, wanted = x < 0 ? -x : x;
  if (back == x || x != x || wanted == GO_INFINITY64) return y;
  return go_as_float((go_as_int(y) - (size > wanted ? 1 : 0)) | 1);
}

GO_DEVICE go_half go_to_half64(double x) { return go_to_half(go_odd_float(x)); }
GO_DEVICE go_bf16 go_to_bf16_64(double x) { return go_to_bf16(go_odd_float(x)); }

/* x * y + z of doubles that were 16 bits: the product is exact, and the sum is rounded to odd. */
GO_DEVICE double go_odd_fma(double x, double y, double z)
{
  const double product = x * y, total = product + z, back = total - product;
  const double error = (product - (total - back)) + (z - back);
  if (!(error < 0 || error > 0)) return total; /* exact, or NaN, which infinities give */
  const long long bits = go_as_long(total);
  return go_as_double((bits - ((bits ^ go_as_long(error)) < 0 ? 1 : 0)) | 1);
}

GO_DEVICE go_half go_fma_half(go_half x, go_half y, go_half z)
{
  return go_to_half64(go_odd_fma((double)go_to_float(x), (double)go_to_float(y), (double)go_to_float(z)));
}

GO_DEVICE go_bf16 go_fma_bf16(go_bf16 x, go_bf16 y, go_bf16 z)
{
  return go_to_bf16_64(go_odd_fma((double)go_to_float(x), (double)go_to_float(y), (double)go_to_float(z)));
}

GO_DEVICE go_half go_neg_half(go_half x) { return go_half_bits(x.bits ^ 0x8000); }
GO_DEVICE go_bf16 go_neg_bf16(go_bf16 x) { return go_bf16_bits(x.bits ^ 0x8000); }
GO_DEVICE go_half go_abs_half(go_half x) { return go_half_bits(x.bits & 0x7fff); }
GO_DEVICE go_bf16 go_abs_bf16(go_bf16 x) { return go_bf16_bits(x.bits & 0x7fff); }
GO_DEVICE go_half go_copysign_half(go_half x, go_half y) { return go_half_bits((x.bits & 0x7fff) | (y.bits & 0x8000)); }
GO_DEVICE go_bf16 go_copysign_bf16(go_bf16 x, go_bf16 y) { return go_bf16_bits((x.bits & 0x7fff) | (y.bits & 0x8000)); }

/* -- largest and smallest: NaN wins, -0 is below +0 ------------------------------------------------------------------- */

#ifdef __CUDA_ARCH__
GO_DEVICE float go_max(float x, float y) { return x != x || y != y ? x + y : fmaxf(x, y); }
GO_DEVICE float go_min(float x, float y) { return x != x || y != y ? x + y : fminf(x, y); }
#else
GO_DEVICE float go_max(float x, float y)
{
  if (x != x || y != y) return x + y;
  return x == y ? go_as_float(go_as_int(x) & go_as_int(y)) : x > y ? x : y; /* -0 and +0 are equal, and differ in one bit */
}

GO_DEVICE float go_min(float x, float y)
{
  if (x != x || y != y) return x + y;
  return x == y ? go_as_float(go_as_int(x) | go_as_int(y)) : x < y ? x : y;
}
#endif

GO_DEVICE double go_max64(double x, double y)
{
  if (x != x || y != y) return x + y;
  return x == y ? go_as_double(go_as_long(x) & go_as_long(y)) : x > y ? x : y;
}

GO_DEVICE double go_min64(double x, double y)
{
  if (x != x || y != y) return x + y;
  return x == y ? go_as_double(go_as_long(x) | go_as_long(y)) : x < y ? x : y;
}

/* -- integers --------------------------------------------------------------------------------------------------------- */

/* A divisor of 0 is refused before; here it gives 0, so that nothing traps. */
#define GO_INTEGERS(NAME, T, U)                                                                            \
  GO_DEVICE T go_add_##NAME(T x, T y) { return (T)((U)x + (U)y); }                                         \
  GO_DEVICE T go_sub_##NAME(T x, T y) { return (T)((U)x - (U)y); }                                         \
  GO_DEVICE T go_mul_##NAME(T x, T y) { return (T)((U)x * (U)y); }                                         \
  GO_DEVICE T go_neg_##NAME(T x) { return (T)((U)0 - (U)x); }                                              \
  GO_DEVICE T go_abs_##NAME(T x) { return x < 0 ? go_neg_##NAME(x) : x; }                                  \
  GO_DEVICE T go_max_##NAME(T x, T y) { return x > y ? x : y; }                                            \
  GO_DEVICE T go_min_##NAME(T x, T y) { return x < y ? x : y; }                                            \
  GO_DEVICE T go_shl_##NAME(T x, int n) { return (T)((U)x << n); }                                         \
  GO_DEVICE T go_shr_##NAME(T x, int n) { return (T)((U)x >> n); }                                         \
  GO_DEVICE T go_div_##NAME(T x, T y) { return y == -1 ? go_neg_##NAME(x) : y == 0 ? 0 : x / y; }          \
  GO_DEVICE T go_rem_##NAME(T x, T y) { return y == -1 || y == 0 ? 0 : x % y; }                            \
  GO_DEVICE T go_mod_##NAME(T x, T y)                                                                      \
  {                                                                                                        \
    const T rest = go_rem_##NAME(x, y);                                                                    \
    return rest != 0 && (rest ^ y) < 0 ? rest + y : rest;                                                  \
  }                                                                                                        \
  GO_DEVICE T go_floordiv_##NAME(T x, T y)                                                                 \
  {                                                                                                        \
    const T rest = go_rem_##NAME(x, y);                                                                    \
    return go_div_##NAME(x, y) - (rest != 0 && (rest ^ y) < 0 ? 1 : 0);                                    \
  }                                                                                                        \
  GO_DEVICE T go_ceildiv_##NAME(T x, T y)                                                                  \
  {                                                                                                        \
    const T rest = go_rem_##NAME(x, y);                                                                    \
    return go_div_##NAME(x, y) + (rest != 0 && (rest ^ y) >= 0 ? 1 : 0);                                   \
  }
GO_INTEGERS(i32, int, unsigned)
GO_INTEGERS(i64, long long, unsigned long long)
#undef GO_INTEGERS

/* acc and the four products of bytes, those of x without a sign */
#ifndef GO_HAS_DOT4
GO_DEVICE int go_dot4(int x, int y, int acc)
{
  unsigned sum = (unsigned)acc;
  for (int n = 0; n < 32; n += 8) sum += (unsigned)((int)((unsigned)x >> n & 255) * (int)(signed char)((unsigned)y >> n & 255));
  return (int)sum;
}
#endif

/* the same where no byte of x is above 127 */
#ifdef __CUDA_ARCH__
GO_DEVICE int go_dot4_small(int x, int y, int acc) { return __dp4a(x, y, acc); }
#else
GO_DEVICE int go_dot4_small(int x, int y, int acc) { return go_dot4(x, y, acc); }
#endif

/* sums of bytes: nothing is carried from one to the next */
GO_DEVICE int go_add4(int x, int y)
{
  const unsigned low = 0x7f7f7f7fu;
  return (int)((((unsigned)x & low) + ((unsigned)y & low)) ^ (((unsigned)x ^ (unsigned)y) & ~low));
}

/* -- floats to integers: toward zero, to the nearest bound, NaN to 0 -------------------------------------------------- */

#define GO_SATURATE(NAME, T, LOW, HIGH)                                                                                        \
  GO_DEVICE T go_to_##NAME(float x)                                                                                            \
  {                                                                                                                            \
    return x != x ? (T)0 : x <= (float)(LOW) ? (T)(LOW) : x >= (float)(HIGH) ? (T)(HIGH) : (T)x;                               \
  }                                                                                                                            \
  GO_DEVICE T go_to_##NAME##_64(double x)                                                                                      \
  {                                                                                                                            \
    return x != x ? (T)0 : x <= (double)(LOW) ? (T)(LOW) : x >= (double)(HIGH) ? (T)(HIGH) : (T)x;                             \
  }
GO_SATURATE(i8, signed char, -128, 127)
GO_SATURATE(u8, unsigned char, 0, 255)
GO_SATURATE(i16, short, -32768, 32767)
GO_SATURATE(i32, int, -2147483647 - 1, 2147483647)
GO_SATURATE(i64, long long, -9223372036854775807LL - 1, 9223372036854775807LL)
#undef GO_SATURATE

/* An integer of 64 bits as bf16 with one rounding: of large ones the low bits are put into one. */
GO_DEVICE go_bf16 go_i64_to_bf16(long long x)
{
  const bool small = x >= -(1LL << 53) && x <= 1LL << 53;
  return go_to_bf16_64(small ? (double)x : (double)(x >> 10 | ((x & 1023) != 0 ? 1 : 0)) * 1024.0);
}

/* -- functions -------------------------------------------------------------------------------------------------------- */

GO_DEVICE double go_ldexp64(double x, long long n)
{
  return ldexp(x, (int)(n > 5000 ? 5000 : n < -5000 ? -5000 : n)); /* beyond, everything is 0 or infinite */
}

GO_DEVICE double go_normcdf64(double x)
{
  const double scaled = x * -0.7071067811865476;
  const double rest = fma(x, 4.833646656726457e-17, fma(x, -0.7071067811865476, -scaled));
  const double found = erfc(scaled);
  const double half = (found + exp(scaled * -scaled) * -1.1283791670955126 * rest) * 0.5;
  return half == half ? half : found * 0.5;
}

GO_DEVICE double go_gelu64(double x) { return x == -GO_INFINITY64 ? -0.0 : x * go_normcdf64(x); }

GO_DEVICE double go_sigmoid64(double x)
{
  const double small = exp(-fabs(x));
  return (x >= 0.0 ? 1.0 : small) / (1.0 + small);
}

/* exp(x) is denormal where the result is not, its root is not; -inf * 0 would be NaN */
GO_DEVICE double go_silu64(double x)
{
  const double root = exp(fabs(x) * -0.5), finite = x < -1500.0 ? -1500.0 : x;
  return (x >= 0.0 ? x : finite * root * root) / (1.0 + root * root);
}

GO_DEVICE double go_gelu_tanh64(double x)
{
  const double third = x * 0.044715 * x * x;
  return (x < -50.0 ? -50.0 : x) * go_sigmoid64((x + third) * 1.5957691216057308);
}

#include "graph_opt_math.h"

#endif
