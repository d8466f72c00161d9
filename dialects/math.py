"""Mathematical functions of scalars and vectors, the bodies of loop nests.

They are those of the graph dialect and give the same bits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dialects._scalars import Operand, binary, broadcast, require_same_dtype, same, with_dtype
from dialects.graph import _special
from ir.opdef import FloatScalar, IntegerScalar, SignedScalar, op
from ir.types import boolean, f64


def _three(a: Operand, b: Operand, c: Operand) -> Operand:
    return broadcast(require_same_dtype(("a", a), ("b", b), ("c", c)), ("a", a), ("b", b), ("c", c))


def _ldexp(x: Operand, n: Operand) -> Operand:
    return broadcast(x.dtype, ("x", x), ("n", n))


def _exp(x: Operand, *, decaying: bool) -> Operand:
    return same(x)


def _to_bool(x: Operand) -> Operand:
    return with_dtype(x, boolean)


@op(infer=_exp, dialect="math", elementwise=True)
def exp(x: FloatScalar, *, decaying: bool = False) -> Any:
    """e to the power of x.

    exp(-inf) is 0, exp(inf) is inf, NaN stays NaN.  Results that overflow are inf, small ones are denormal before they are 0.
    ``decaying`` promises that x is at most 0 or NaN; what is made of it then takes less time, and is wrong for x above 60.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.exp(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.exp(x)


@op(infer=same, dialect="math", elementwise=True)
def expm1(x: FloatScalar) -> Any:
    """e to the power of x, minus 1; accurate near 0.

    expm1(-0) is -0, expm1(-inf) is -1, expm1(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.expm1(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.expm1(x)


@op(infer=same, dialect="math", elementwise=True)
def log(x: FloatScalar) -> Any:
    """The natural logarithm of x.

    log of either zero is -inf, log(inf) is inf; negative numbers and NaN give NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.log(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.log(x)


@op(infer=same, dialect="math", elementwise=True)
def log1p(x: FloatScalar) -> Any:
    """The natural logarithm of 1 + x; accurate near 0.

    log1p(-0) is -0, log1p(-1) is -inf, log1p(inf) is inf; numbers below -1 and NaN give NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.log1p(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.log1p(x)


@op(infer=same, dialect="math", elementwise=True)
def sqrt(x: FloatScalar) -> Any:
    """The square root of x, correctly rounded.

    sqrt(-0) is -0, sqrt(inf) is inf; negative numbers and NaN give NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.sqrt(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.sqrt(x)


@op(infer=same, dialect="math", elementwise=True)
def rsqrt(x: FloatScalar) -> Any:
    """1 / sqrt(x), at most 1 ulp from exact.

    rsqrt(+0) is inf, rsqrt(-0) is -inf, rsqrt(inf) is 0; negative numbers and NaN give NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.rsqrt(%a) : f32
            yield %r
          }
          return
        }
    """
    return 1.0 / np.sqrt(x)


@op(infer=same, dialect="math", elementwise=True)
def sin(x: FloatScalar) -> Any:
    """The sine of x (radians).

    Accurate for large x too.  sin(-0) is -0; infinities and NaN give NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.sin(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.sin(x)


@op(infer=same, dialect="math", elementwise=True)
def cos(x: FloatScalar) -> Any:
    """The cosine of x (radians).

    Accurate for large x too.  Infinities and NaN give NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.cos(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.cos(x)


@op(infer=same, dialect="math", elementwise=True)
def tan(x: FloatScalar) -> Any:
    """The tangent of x (radians).

    Accurate for large x too.  tan(-0) is -0; infinities and NaN give NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.tan(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.tan(x)


@op(infer=same, dialect="math", elementwise=True)
def tanh(x: FloatScalar) -> Any:
    """The hyperbolic tangent of x.

    Accurate near 0; tanh(-0) is -0, tanh of an infinity is 1 with its sign, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.tanh(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.tanh(x)


@op(infer=same, dialect="math", elementwise=True)
def erf(x: FloatScalar) -> Any:
    """The error function 2/sqrt(pi) * integral of exp(-t*t) from 0 to x.

    Accurate near 0; erf(-0) is -0, erf of an infinity is 1 with its sign, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.erf(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.erf(np.asarray(x))


@op(infer=same, dialect="math", elementwise=True)
def erfc(x: FloatScalar) -> Any:
    """The complement 1 - erf(x), accurate where erf(x) is near 1.

    erfc(inf) is 0, erfc(-inf) is 2, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.erfc(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.erfc(np.asarray(x))


@op(infer=same, dialect="math", elementwise=True)
def normcdf(x: FloatScalar) -> Any:
    """The distribution function of the standard normal distribution, 0.5 * erfc(-x / sqrt(2)).

    Accurate where it is small too: the quotient is not rounded before the exponential, which far below 0 would magnify
    its error.  normcdf(-inf) is 0, normcdf(inf) is 1, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.normcdf(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.normcdf(np.asarray(x))


@op(infer=same, dialect="math", elementwise=True)
def gelu(x: FloatScalar) -> Any:
    """x * normcdf(x), rounded once.

    A product of its own would lose digits where ``normcdf`` is denormal and the result is not.  gelu(-0) is -0, gelu(-inf) is
    -0 (the limit), gelu(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.gelu(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.where(np.isneginf(x), -0.0, x * _special.normcdf(np.asarray(x)))


@op(infer=same, dialect="math", elementwise=True)
def gelu_tanh(x: FloatScalar) -> Any:
    """x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 * x^3)), which is gelu with tanh in the place of erf, rounded once.

    gelu_tanh(-0) is -0, gelu_tanh(-inf) is -0 (the limit), gelu_tanh(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.gelu_tanh(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.gelu_tanh(x)


@op(infer=same, dialect="math", elementwise=True)
def sigmoid(x: FloatScalar) -> Any:
    """1 / (1 + exp(-x)).

    Accurate where it is small too, down to denormals: below 0 it is exp(x) / (1 + exp(x)).  sigmoid(-inf) is 0,
    sigmoid(inf) is 1, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.sigmoid(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.sigmoid(np.asarray(x))


@op(infer=same, dialect="math", elementwise=True)
def silu(x: FloatScalar) -> Any:
    """x * sigmoid(x), rounded once.

    A product of its own would lose digits where ``sigmoid`` is denormal and the result is not.  silu(-0) is -0, silu(-inf) is
    -0 (the limit), silu(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.silu(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.silu(np.asarray(x))


@op(infer=same, dialect="math", elementwise=True, exact=True)
def absf(x: FloatScalar) -> Any:
    """The absolute value of a float.

    absf(-0) is +0, absf(-inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.absf(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.abs(x)


@op(infer=same, dialect="math", elementwise=True, exact=True)
def floor(x: FloatScalar) -> Any:
    """The largest whole number not above x.

    Zeros keep their sign; inf and NaN stay.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.floor(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.floor(x)


@op(infer=same, dialect="math", elementwise=True, exact=True)
def ceil(x: FloatScalar) -> Any:
    """The smallest whole number not below x.

    Zeros keep their sign, and ceil(-0.5) is -0; inf and NaN stay.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.ceil(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.ceil(x)


@op(infer=same, dialect="math", elementwise=True, exact=True)
def roundeven(x: FloatScalar) -> Any:
    """The whole number nearest to x; halves go to the even one.

    So 0.5 gives 0, 1.5 and 2.5 give 2, -0.5 gives -0.  inf and NaN stay.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.roundeven(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.rint(x)


@op(infer=same, dialect="math", elementwise=True, exact=True)
def trunc(x: FloatScalar) -> Any:
    """x without its fraction: rounded toward zero.

    The sign stays, so trunc(-0.5) is -0; inf and NaN stay.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.trunc(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.trunc(x)


@op(infer=same, dialect="math", elementwise=True, exact=True)
def absi(x: SignedScalar) -> Any:
    """The absolute value of a signed integer; the smallest one stays itself.

    Example::

        graph @example(%A: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.absi(%a) : i32
            yield %r
          }
          return
        }
    """
    return np.abs(x)


@op(infer=binary, dialect="math", elementwise=True)
def powf(x: FloatScalar, y: FloatScalar) -> Any:
    """x to the power of y, of floats.

    IEEE 754 ``pow``: powf(x, 0) is 1 and powf(1, y) is 1, for NaN too; a negative x with a y that is not whole gives
    NaN; powf(0, y) with negative y is inf, with the sign of x when y is odd.  Scalars and vectors broadcast like numpy's
    arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = math.powf(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return np.power(x, y)


@op(infer=binary, dialect="math", elementwise=True, exact=True)
def copysign(x: FloatScalar, y: FloatScalar) -> Any:
    """x with the sign of y, which may be that of a zero or NaN.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = math.copysign(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return np.copysign(x, y)


@op(infer=_ldexp, dialect="math", elementwise=True)
def ldexp(x: FloatScalar, n: IntegerScalar) -> Any:
    """x times 2 to the power of the integer n, rounded once.

    Any n is allowed: what is too large becomes inf, what is too small is denormal before it is 0.  Zeros, infinities and
    NaN stay.  Scalars and vectors broadcast like numpy's arrays.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<i32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = math.ldexp(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return np.ldexp(x, np.clip(np.asarray(n, np.int64), -5000, 5000).astype(np.int32))  # beyond, everything is 0 or inf


@op(infer=_to_bool, dialect="math", elementwise=True, exact_bits=True)
def isnan(x: FloatScalar) -> Any:
    """Whether x is NaN: a bool.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<bool[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.isnan(%a) : bool
            yield %r
          }
          return
        }
    """
    return np.isnan(x)


@op(infer=_three, dialect="math", elementwise=True, exact=True, needs_output_type=True)
def fma(a: FloatScalar, b: FloatScalar, c: FloatScalar, *, output_type: Operand) -> Any:
    """a * b + c with one rounding (fused multiply-add, IEEE 754-2019 section 5.4.1).

    The reference computes f32 and narrower in float64, where the product is exact and the sum is rounded to odd, so
    that the rounding to the result's type is the only one; for f64 it computes with fractions.

    Scalars and vectors broadcast like numpy's arrays; the operands have one element type.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(p < S, %x = %A[p], %o = %C[p]) {
            %f = math.fma(%x, %x, %o) : f32
            yield %f
          }
          return
        }
    """
    if output_type.dtype == f64:
        return _exact_fma(*np.broadcast_arrays(a, b, c))
    product = a * b  # exact for widened f32 operands: 24 + 24 bits
    total = product + c
    with np.errstate(all="ignore"):
        # error of the sum, exactly (Knuth, TAOCP vol. 2, 4.2.2 theorem B); round to odd when there is one
        back = total - product
        error = (product - (total - back)) + (c - back)
    return _round_to_odd(np.asarray(total), np.asarray(error))


def _round_to_odd(total: Any, error: Any) -> Any:
    bits = total.reshape(-1).view(np.uint64).copy()
    wrong = error.reshape(-1)
    inexact = np.isfinite(total.reshape(-1)) & np.isfinite(wrong) & (wrong != 0)
    away = np.signbit(wrong) != np.signbit(total.reshape(-1))  # the true sum is nearer to zero
    bits = np.where(inexact & away, bits - np.uint64(1), bits)
    bits = np.where(inexact, bits | np.uint64(1), bits)
    return bits.view(np.float64).reshape(total.shape)


def _exact_fma(a: Any, b: Any, c: Any) -> Any:
    result = np.asarray(a * b + c)  # right for infinities and NaN, and for the sign of an exact zero
    out = result.reshape(-1)
    for i, (x, y, z) in enumerate(zip(a.flat, b.flat, c.flat, strict=True)):
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact:
            try:
                out[i] = exact.numerator / exact.denominator  # Python rounds quotients of integers once
            except OverflowError:
                out[i] = np.copysign(np.inf, float(exact > 0) - 0.5)
    return out.reshape(result.shape)
