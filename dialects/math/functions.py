"""Exponentials, logarithms, powers, roots, trigonometry and error functions of scalars and vectors.

Those that the graph dialect has too give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects._scalars import Operand, binary, same
from dialects.graph import _special
from ir.opdef import FloatScalar, op


def _exp(x: Operand, *, decaying: bool) -> Operand:
    return same(x)


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
