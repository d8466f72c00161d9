"""Signs, rounding to whole numbers, and what else is exact, or rounded once, of scalars and vectors.

Those that the graph dialect has too give the same bits.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dialects._scalars import Operand, binary, broadcast, require_same_dtype, same, with_dtype
from ir.opdef import FloatScalar, IntegerScalar, SignedScalar, op
from ir.types import boolean, f64


def _three(a: Operand, b: Operand, c: Operand) -> Operand:
    return broadcast(require_same_dtype(("a", a), ("b", b), ("c", c)), ("a", a), ("b", b), ("c", c))


def _ldexp(x: Operand, n: Operand) -> Operand:
    return broadcast(x.dtype, ("x", x), ("n", n))


def _to_bool(x: Operand) -> Operand:
    return with_dtype(x, boolean)


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
