"""Functions of one tensor, elementwise: signs, rounding, exponentials, trigonometry, classification of floats."""

from __future__ import annotations

import numpy as np

from dialects.graph import _special
from ir.opdef import Float, Numeric, Tensor, op
from ir.types import TensorType, boolean


def _same(x: TensorType) -> TensorType:
    return x


def _to_bool(x: TensorType) -> TensorType:
    return x.with_dtype(boolean)


@op(infer=_same, elementwise=True, exact=True)
def neg(x: Numeric) -> Tensor:
    """-x, elementwise.

    Floats only change their sign, so neg(+0) is -0.  Integers wrap around: the smallest one stays itself, unsigned
    ones give 2^bits - x.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = neg(%x)
          return %y
        }

    Example, integers::

        graph @example(%x: i32[N]) -> i32[N] {
          %y = neg(%x)
          return %y
        }
    """
    return np.negative(x)


@op(infer=_same, elementwise=True, exact=True)
def abs_(x: Numeric) -> Tensor:
    """The absolute value of x, elementwise.

    abs(-0) is +0, abs(-inf) is inf, NaN stays NaN.  Integers wrap around: the smallest one stays itself.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = abs(%x)
          return %y
        }

    Example, integers::

        graph @example(%x: i32[N]) -> i32[N] {
          %y = abs(%x)
          return %y
        }
    """
    return np.abs(x)


@op(infer=_same, elementwise=True, exact=True)
def sign(x: Numeric) -> Tensor:
    """1 where x is positive, -1 where it is negative, elementwise.

    Zeros keep their sign: sign(-0) is -0.  NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = sign(%x)
          return %y
        }

    Example, integers::

        graph @example(%x: i32[N]) -> i32[N] {
          %y = sign(%x)
          return %y
        }
    """
    result = np.sign(x)
    return np.copysign(result, x) if x.dtype.kind == "f" else result


@op(infer=_same, elementwise=True, exact=True)
def floor(x: Float) -> Tensor:
    """The largest whole number not above x, elementwise.

    Zeros keep their sign; inf and NaN stay.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = floor(%x)
          return %y
        }
    """
    return np.floor(x)


@op(infer=_same, elementwise=True, exact=True)
def ceil(x: Float) -> Tensor:
    """The smallest whole number not below x, elementwise.

    Zeros keep their sign, and ceil(-0.5) is -0; inf and NaN stay.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = ceil(%x)
          return %y
        }
    """
    return np.ceil(x)


@op(infer=_same, elementwise=True, exact=True)
def round_(x: Float) -> Tensor:
    """The whole number nearest to x, elementwise; halves go to the even one.

    So 0.5 gives 0, 1.5 and 2.5 give 2, -0.5 gives -0.  inf and NaN stay.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = round(%x)
          return %y
        }
    """
    return np.rint(x)


@op(infer=_same, elementwise=True, exact=True)
def trunc(x: Float) -> Tensor:
    """x without its fraction, elementwise: rounded toward zero.

    The sign stays, so trunc(-0.5) is -0; inf and NaN stay.

    Example::

        graph @example(%x: f16[B, 4]) -> f16[B, 4] {
          %y = trunc(%x)
          return %y
        }
    """
    return np.trunc(x)


@op(infer=_same, elementwise=True)
def exp(x: Float) -> Tensor:
    """e to the power of x, elementwise.

    exp(-inf) is 0, exp(inf) is inf, NaN stays NaN.  Results that overflow are inf (f32: above 88.72); small ones are
    denormal before they are 0 (f32: between -87.34 and -103.97).

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = exp(%x)
          return %y
        }
    """
    return np.exp(x)


@op(infer=_same, elementwise=True)
def expm1(x: Float) -> Tensor:
    """e to the power of x, minus 1, elementwise; accurate near 0.

    expm1(-0) is -0, expm1(-inf) is -1, expm1(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = expm1(%x)
          return %y
        }
    """
    return np.expm1(x)


@op(infer=_same, elementwise=True)
def log(x: Float) -> Tensor:
    """The natural logarithm of x, elementwise.

    log of either zero is -inf, log(inf) is inf; negative numbers and NaN give NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %a = abs(%x)
          %y = log(%a)
          return %y
        }
    """
    return np.log(x)


@op(infer=_same, elementwise=True)
def log1p(x: Float) -> Tensor:
    """The natural logarithm of 1 + x, elementwise; accurate near 0.

    log1p(-0) is -0, log1p(-1) is -inf, log1p(inf) is inf; numbers below -1 and NaN give NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %a = abs(%x)
          %y = log1p(%a)
          return %y
        }
    """
    return np.log1p(x)


@op(infer=_same, elementwise=True)
def sqrt(x: Float) -> Tensor:
    """The square root of x, elementwise, correctly rounded.

    sqrt(-0) is -0, sqrt(inf) is inf; negative numbers and NaN give NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %a = abs(%x)
          %y = sqrt(%a)
          return %y
        }
    """
    return np.sqrt(x)


@op(infer=_same, elementwise=True)
def rsqrt(x: Float) -> Tensor:
    """1 / sqrt(x), elementwise, at most 1 ulp from exact.

    rsqrt(+0) is inf, rsqrt(-0) is -inf, rsqrt(inf) is 0; negative numbers and NaN give NaN.  Denormal x are not taken
    for 0.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %a = abs(%x)
          %y = rsqrt(%a)
          return %y
        }
    """
    return 1.0 / np.sqrt(x)


@op(infer=_same, elementwise=True)
def reciprocal(x: Float) -> Tensor:
    """1 / x, elementwise, correctly rounded.

    The reciprocal of +0 is inf, of -0 -inf, of an infinity 0 with its sign; NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = reciprocal(%x)
          return %y
        }
    """
    return 1.0 / x


@op(infer=_same, elementwise=True, exact=True)
def square(x: Numeric) -> Tensor:
    """x * x, elementwise.

    Floats round once, integers wrap around (two's complement).

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = square(%x)
          return %y
        }

    Example, integers::

        graph @example(%x: i32[N]) -> i32[N] {
          %y = square(%x)
          return %y
        }
    """
    return x * x


@op(infer=_same, elementwise=True)
def sin(x: Float) -> Tensor:
    """The sine of x (radians), elementwise.

    Accurate for large x too: the argument is reduced with more digits than the type has.  sin(-0) is -0; infinities
    and NaN give NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = sin(%x)
          return %y
        }
    """
    return np.sin(x)


@op(infer=_same, elementwise=True)
def cos(x: Float) -> Tensor:
    """The cosine of x (radians), elementwise.

    Accurate for large x too: the argument is reduced with more digits than the type has.  Infinities and NaN give NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = cos(%x)
          return %y
        }
    """
    return np.cos(x)


@op(infer=_same, elementwise=True)
def tan(x: Float) -> Tensor:
    """The tangent of x (radians), elementwise.

    Accurate for large x too: the argument is reduced with more digits than the type has.  tan(-0) is -0; infinities
    and NaN give NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = tan(%x)
          return %y
        }
    """
    return np.tan(x)


@op(infer=_same, elementwise=True)
def tanh(x: Float) -> Tensor:
    """The hyperbolic tangent of x, elementwise.

    Accurate near 0, where it is x; tanh(-0) is -0, tanh of an infinity is 1 with its sign, NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = tanh(%x)
          return %y
        }
    """
    return np.tanh(x)


@op(infer=_same, elementwise=True)
def erf(x: Float) -> Tensor:
    """The error function 2/sqrt(pi) * integral of exp(-t*t) from 0 to x, elementwise.

    Accurate near 0, where it is 2/sqrt(pi) * x; erf(-0) is -0, erf of an infinity is 1 with its sign, NaN stays NaN.
    Computed by the rational approximations of W. J. Cody, Math. Comp. 23 (1969) 631-637.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = erf(%x)
          return %y
        }
    """
    return _special.erf(x)


@op(infer=_to_bool, elementwise=True, exact_bits=True)
def isnan(x: Float) -> Tensor:
    """Whether x is NaN, elementwise: a tensor of bool.

    Example::

        graph @example(%x: f32[B, 4]) -> bool[B, 4] {
          %y = isnan(%x)
          return %y
        }
    """
    return np.isnan(x)


@op(infer=_to_bool, elementwise=True, exact_bits=True)
def isinf(x: Float) -> Tensor:
    """Whether x is inf or -inf, elementwise: a tensor of bool.

    The rounded value decides: a f16 product that overflowed is infinite, wherever its value is kept.

    Example::

        graph @example(%x: f16[B, 4]) -> bool[B, 4] {
          %y = isinf(%x)
          return %y
        }
    """
    return np.isinf(x)


@op(infer=_to_bool, elementwise=True, exact_bits=True)
def isfinite(x: Float) -> Tensor:
    """Whether x is neither infinite nor NaN, elementwise: a tensor of bool.

    Example::

        graph @example(%x: f32[B, 4]) -> bool[B, 4] {
          %y = isfinite(%x)
          return %y
        }
    """
    return np.isfinite(x)
