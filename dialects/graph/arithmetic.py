"""Arithmetic of two tensors, elementwise with numpy's broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dialects._numerics import refuse_amount, refuse_negative, refuse_zero, truncated_quotient
from dialects.graph._shapes import broadcast_shapes, require_same_dtype
from dialects.graph._special import ieee_maximum, ieee_minimum
from ir.opdef import Float, Integer, Numeric, Tensor, op
from ir.types import TensorType


def _broadcast(x: TensorType, y: TensorType) -> TensorType:
    dtype = require_same_dtype(("x", x), ("y", y))
    return TensorType(dtype, broadcast_shapes(("x", x), ("y", y)))


def _same(x: TensorType) -> TensorType:
    return x


def _is_integer(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "iu"


@op(infer=_broadcast, elementwise=True, commutative=True, exact=True)
def add(x: Numeric, y: Numeric) -> Tensor:
    """x + y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  Integers wrap around (two's
    complement), floats round once.  -0 + +0 is +0, inf + -inf is NaN.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = add(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i32[A, 1], %y: i32[1, B]) -> i32[A, B] {
          %z = add(%x, %y)
          return %z
        }
    """
    return x + y


@op(infer=_broadcast, elementwise=True, exact=True)
def sub(x: Numeric, y: Numeric) -> Tensor:
    """x - y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  Integers wrap around (two's
    complement), floats round once.  x - x is NaN where x is infinite or NaN.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[B, 1]) -> f32[B, 4] {
          %z = sub(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: u8[N], %y: u8[N]) -> u8[N] {
          %z = sub(%x, %y)
          return %z
        }
    """
    return x - y


@op(infer=_broadcast, elementwise=True, commutative=True, exact=True)
def mul(x: Numeric, y: Numeric) -> Tensor:
    """x * y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  Integers wrap around (two's
    complement), floats round once and keep denormals.  0 * inf is NaN, the sign of a zero is the product of the signs.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[]) -> f32[B, 4] {
          %z = mul(%x, %y)
          return %z
        }

    Example, half precision::

        graph @example(%x: f16[B, 3], %y: f16[3]) -> f16[B, 3] {
          %z = mul(%x, %y)
          return %z
        }
    """
    return x * y


@op(infer=_broadcast, elementwise=True)
def div(x: Float, y: Float) -> Tensor:
    """x / y of floats, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  The quotient is rounded once, by IEEE
    754: x / 0 is inf with the sign of the quotient, 0 / 0 and inf / inf are NaN.  Integers are divided by
    ``floordiv`` (rounds down) or ``truncdiv`` (rounds toward zero).

    Example::

        graph @example(%x: f32[B, 4], %y: f32[B, 1]) -> f32[B, 4] {
          %z = div(%x, %y)
          return %z
        }
    """
    return x / y


@op(infer=_broadcast, elementwise=True, exact=True, traps=True)
def floordiv(x: Numeric, y: Numeric) -> Tensor:
    """The quotient x / y rounded down, elementwise: -7 floordiv 2 is -4.

    Shapes broadcast by numpy's rule; both operands have the same element type.

    Integers: a division by zero is refused when the program runs; the smallest integer divided by -1 wraps around to
    itself.

    Floats: the exact quotient is rounded down, then to the element type; so 1 floordiv 0.1 is 9, although 1 / 0.1
    rounds to 10.  A zero result has the sign of x / y.  For y = 0 the result is x / y (inf or NaN); for infinite x it
    is NaN; for infinite y it is 0 or, when the signs differ and x is not 0, -1.  NaN gives NaN.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = floordiv(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i32[N]) -> i32[N] {
          %k = constant(3) : i32[]
          %z = floordiv(%x, %k)
          return %z
        }
    """
    if _is_integer(y):
        refuse_zero("floordiv", x, y)
    return np.floor_divide(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, exact=True, traps=True)
def mod(x: Numeric, y: Numeric) -> Tensor:
    """The remainder of ``floordiv``, elementwise; it has the sign of y: -7 mod 2 is 1.

    Shapes broadcast by numpy's rule; both operands have the same element type.

    Integers: a division by zero is refused when the program runs; the smallest integer mod -1 is 0.

    Floats: x - y * floordiv(x, y) of the exact quotient, rounded once (so -1e-20 mod 1 rounds to 1).  A zero result has
    the sign of y.  For y = 0 and for infinite x the result is NaN; for infinite y it is x when the signs agree or x is 0,
    else y.  NaN gives NaN.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = mod(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i64[N]) -> i64[N] {
          %k = constant(5)
          %z = mod(%x, %k)
          return %z
        }
    """
    if _is_integer(y):
        refuse_zero("mod", x, y)
    return np.mod(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, exact=True, traps=True)
def truncdiv(x: Numeric, y: Numeric) -> Tensor:
    """The quotient x / y rounded toward zero, elementwise: truncdiv of -7 and 2 is -3, as in C.

    Shapes broadcast by numpy's rule; both operands have the same element type.

    Integers: a division by zero is refused when the program runs; the smallest integer divided by -1 wraps around to
    itself.

    Floats: the exact quotient is rounded toward zero, then to the element type.  A zero result has the sign of x / y.
    For y = 0 the result is x / y (inf or NaN); for infinite x it is NaN; for infinite y it is 0.  NaN gives NaN.

    Example, integers::

        graph @example(%x: i32[N, 4]) -> i32[N, 4] {
          %k = constant([1, 2, -3, 4]) : i32[4]
          %z = truncdiv(%x, %k)
          return %z
        }

    Example::

        graph @example(%x: f32[B], %y: f32[B]) -> f32[B] {
          %z = truncdiv(%x, %y)
          return %z
        }
    """
    if _is_integer(y):
        refuse_zero("truncdiv", x, y)
        return truncated_quotient(x, y)
    quotient = x / y
    whole = np.rint((x - np.fmod(x, y)) / y)  # the quotient of a multiple is whole but for its rounding
    signed = np.copysign(whole, quotient)
    return np.where(y == 0, quotient, signed)


@op(infer=_broadcast, elementwise=True, exact=True, traps=True)
def rem(x: Numeric, y: Numeric) -> Tensor:
    """The remainder of ``truncdiv``, elementwise; it has the sign of x: rem of -7 and 2 is -1, as in C.

    Shapes broadcast by numpy's rule; both operands have the same element type.

    Integers: a division by zero is refused when the program runs; the remainder of the smallest integer and -1 is 0.

    Floats: exact (C's ``fmod``); a zero result has the sign of x.  For y = 0 and for infinite x the result is NaN; for
    infinite y it is x.  NaN gives NaN.

    Example, integers::

        graph @example(%x: i32[N]) -> i32[N] {
          %k = constant(-3) : i32[]
          %z = rem(%x, %k)
          return %z
        }

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = rem(%x, %y)
          return %z
        }
    """
    if _is_integer(y):
        refuse_zero("rem", x, y)
    return np.fmod(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, commutative=True, exact=True)
def maximum(x: Numeric, y: Numeric) -> Tensor:
    """The larger of x and y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  IEEE 754-2019 ``maximum``: NaN in either
    operand gives NaN, and -0 is smaller than +0, so that the order of the operands does not matter.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = maximum(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i32[N], %y: i32[]) -> i32[N] {
          %z = maximum(%x, %y)
          return %z
        }
    """
    return ieee_maximum(x, y)


@op(infer=_broadcast, elementwise=True, commutative=True, exact=True)
def minimum(x: Numeric, y: Numeric) -> Tensor:
    """The smaller of x and y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  IEEE 754-2019 ``minimum``: NaN in either
    operand gives NaN, and -0 is smaller than +0, so that the order of the operands does not matter.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = minimum(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: u8[N], %y: u8[]) -> u8[N] {
          %z = minimum(%x, %y)
          return %z
        }
    """
    return ieee_minimum(x, y)


@op(infer=_broadcast, elementwise=True, traps=True)
def pow_(x: Numeric, y: Numeric) -> Tensor:
    """x to the power of y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.

    Floats follow IEEE 754 ``pow``: pow(x, 0) is 1 and pow(1, y) is 1, for NaN too; a negative x with a y that is not
    whole gives NaN (also for y = 1/3); pow(0, y) with negative y is inf, with the sign of x when y is odd.

    Integers wrap around (two's complement); pow(0, 0) is 1; a negative exponent is refused when the program runs.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = pow(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i32[N], %y: i32[N]) -> i32[N] {
          %z = pow(%x, %y)
          return %z
        }
    """
    if _is_integer(y):
        refuse_negative("pow", x, y)
        y = np.maximum(y, 0)  # what is negative here is broadcast to nothing, but numpy would refuse it
    return np.power(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, traps=True)
def shift_left(x: Integer, y: Integer) -> Tensor:
    """The bits of x moved up by y places, elementwise; zeros come in.

    Shapes broadcast by numpy's rule; both operands have the same element type.  Bits that leave are lost (the result
    wraps around).  An amount below 0, or not below the number of bits of the type, is refused when the program runs.

    Example::

        graph @example(%x: i32[N]) -> i32[N] {
          %k = constant([3]) : i32[1]
          %z = shift_left(%x, %k)
          return %z
        }
    """
    refuse_amount("shift_left", x, y)
    return np.left_shift(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, traps=True)
def shift_right(x: Integer, y: Integer) -> Tensor:
    """The bits of x moved down by y places, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  The sign bit is repeated for signed
    types (so it rounds down: -1 stays -1), zeros come in for unsigned ones.  An amount below 0, or not below the number
    of bits of the type, is refused when the program runs.

    Example::

        graph @example(%x: i64[N]) -> i64[N] {
          %k = constant(2)
          %z = shift_right(%x, %k)
          return %z
        }

    Example, unsigned::

        graph @example(%x: u8[N]) -> u8[N] {
          %k = constant(4) : u8[]
          %z = shift_right(%x, %k)
          return %z
        }
    """
    refuse_amount("shift_right", x, y)
    return np.right_shift(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, commutative=True)
def bit_and(x: Integer, y: Integer) -> Tensor:
    """The bits set in both x and y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  For bool write ``logical_and``.

    Example::

        graph @example(%x: i32[N, 4], %y: i32[4]) -> i32[N, 4] {
          %z = bit_and(%x, %y)
          return %z
        }
    """
    return np.bitwise_and(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, commutative=True)
def bit_or(x: Integer, y: Integer) -> Tensor:
    """The bits set in x or y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  For bool write ``logical_or``.

    Example::

        graph @example(%x: u8[N, 4], %y: u8[4]) -> u8[N, 4] {
          %z = bit_or(%x, %y)
          return %z
        }
    """
    return np.bitwise_or(x, y)  # type: ignore[no-any-return]


@op(infer=_broadcast, elementwise=True, commutative=True)
def bit_xor(x: Integer, y: Integer) -> Tensor:
    """The bits set in one of x and y, elementwise.

    Shapes broadcast by numpy's rule; both operands have the same element type.  For bool write ``logical_xor``.

    Example::

        graph @example(%x: i64[N, 4], %y: i64[4]) -> i64[N, 4] {
          %z = bit_xor(%x, %y)
          return %z
        }
    """
    return np.bitwise_xor(x, y)  # type: ignore[no-any-return]


@op(infer=_same, elementwise=True)
def bit_not(x: Integer) -> Tensor:
    """Every bit of x turned over, elementwise; for signed types that is -x - 1.

    For bool write ``logical_not``.

    Example::

        graph @example(%x: i32[N, 4]) -> i32[N, 4] {
          %z = bit_not(%x)
          return %z
        }
    """
    return np.invert(x)  # type: ignore[no-any-return]
