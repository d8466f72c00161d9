"""Comparisons, logic on bool, and choosing between values."""

from __future__ import annotations

import math

import numpy as np

from dialects.graph._shapes import broadcast_shapes, require_same_dtype
from dialects.graph._special import ieee_maximum, ieee_minimum
from ir.opdef import Boolean, Numeric, Tensor, TypeProblem, op
from ir.types import DType, TensorType, boolean


def _compare(x: TensorType, y: TensorType) -> TensorType:
    require_same_dtype(("x", x), ("y", y))
    return TensorType(boolean, broadcast_shapes(("x", x), ("y", y)))


def _where(cond: TensorType, x: TensorType, y: TensorType) -> TensorType:
    dtype = require_same_dtype(("x", x), ("y", y))
    return TensorType(dtype, broadcast_shapes(("cond", cond), ("x", x), ("y", y)))


def _same(x: TensorType) -> TensorType:
    return x


def _check_bound(name: str, value: int | float | None, dtype: DType) -> None:
    if value is None:
        return
    if isinstance(value, float) and not dtype.is_float:
        hint = f"write {name}={int(value)}" if value.is_integer() else None
        raise TypeProblem(f"{name} of a tensor of {dtype} is an integer, found {value}", attribute=name, hint=hint)
    if isinstance(value, float) and math.isnan(value):
        raise TypeProblem(f"{name} can't be nan", attribute=name)
    if dtype.is_integer and not dtype.min_value <= value <= dtype.max_value:
        raise TypeProblem(f"{name}={value} does not fit in {dtype} ({dtype.min_value} to {dtype.max_value})", attribute=name)


def _clamp(x: TensorType, low: int | float | None, high: int | float | None) -> TensorType:
    _check_bound("low", low, x.dtype)
    _check_bound("high", high, x.dtype)
    if low is not None and high is not None and low > high:
        raise TypeProblem(f"low={low} is above high={high}", attribute="low")
    return x


@op(infer=_compare, elementwise=True, commutative=True, exact_bits=True)
def equal(x: Tensor, y: Tensor) -> Tensor:
    """Whether x and y are equal, elementwise: a tensor of bool.

    Shapes broadcast by numpy's rule; both operands have the same element type, which may be bool.  -0 and +0 are equal;
    NaN equals nothing, itself included.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> bool[B, 4] {
          %z = equal(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i64[A, 1], %y: i64[1, B]) -> bool[A, B] {
          %z = equal(%x, %y)
          return %z
        }
    """
    return np.equal(x, y)


@op(infer=_compare, elementwise=True, commutative=True, exact_bits=True)
def not_equal(x: Tensor, y: Tensor) -> Tensor:
    """Whether x and y differ, elementwise: a tensor of bool.

    Shapes broadcast by numpy's rule; both operands have the same element type, which may be bool.  -0 and +0 don't
    differ; NaN differs from everything, itself included.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> bool[B, 4] {
          %z = not_equal(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i32[N], %y: i32[N]) -> bool[N] {
          %z = not_equal(%x, %y)
          return %z
        }
    """
    return np.not_equal(x, y)


@op(infer=_compare, elementwise=True, exact_bits=True)
def less(x: Numeric, y: Numeric) -> Tensor:
    """Whether x < y, elementwise: a tensor of bool.

    Shapes broadcast by numpy's rule; both operands have the same element type.  False where either is NaN; -0 is not
    less than +0.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> bool[B, 4] {
          %z = less(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i32[N], %y: i32[]) -> bool[N] {
          %z = less(%x, %y)
          return %z
        }
    """
    return np.less(x, y)


@op(infer=_compare, elementwise=True, exact_bits=True)
def less_equal(x: Numeric, y: Numeric) -> Tensor:
    """Whether x <= y, elementwise: a tensor of bool.

    Shapes broadcast by numpy's rule; both operands have the same element type.  False where either is NaN.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> bool[B, 4] {
          %z = less_equal(%x, %y)
          return %z
        }

    Example, the mask of causal attention::

        graph @example(%query: i64[S, 1], %key: i64[1, T]) -> bool[S, T] {
          %z = less_equal(%key, %query)
          return %z
        }
    """
    return np.less_equal(x, y)


@op(infer=_compare, elementwise=True, exact_bits=True)
def greater(x: Numeric, y: Numeric) -> Tensor:
    """Whether x > y, elementwise: a tensor of bool.

    Shapes broadcast by numpy's rule; both operands have the same element type.  False where either is NaN; +0 is not
    greater than -0.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> bool[B, 4] {
          %z = greater(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: u8[N], %y: u8[]) -> bool[N] {
          %z = greater(%x, %y)
          return %z
        }
    """
    return np.greater(x, y)


@op(infer=_compare, elementwise=True, exact_bits=True)
def greater_equal(x: Numeric, y: Numeric) -> Tensor:
    """Whether x >= y, elementwise: a tensor of bool.

    Shapes broadcast by numpy's rule; both operands have the same element type.  False where either is NaN.

    Example::

        graph @example(%x: f32[B, 4], %y: f32[4]) -> bool[B, 4] {
          %z = greater_equal(%x, %y)
          return %z
        }

    Example, integers::

        graph @example(%x: i32[N], %y: i32[N]) -> bool[N] {
          %z = greater_equal(%x, %y)
          return %z
        }
    """
    return np.greater_equal(x, y)


@op(infer=_compare, elementwise=True, commutative=True, exact_bits=True)
def logical_and(x: Boolean, y: Boolean) -> Tensor:
    """Whether both x and y are true, elementwise.

    Shapes broadcast by numpy's rule; the operands are bool (for the bits of integers write ``bit_and``).

    Example::

        graph @example(%x: bool[B, 4], %y: bool[4]) -> bool[B, 4] {
          %z = logical_and(%x, %y)
          return %z
        }
    """
    return np.logical_and(x, y)


@op(infer=_compare, elementwise=True, commutative=True, exact_bits=True)
def logical_or(x: Boolean, y: Boolean) -> Tensor:
    """Whether x or y or both are true, elementwise.

    Shapes broadcast by numpy's rule; the operands are bool (for the bits of integers write ``bit_or``).

    Example::

        graph @example(%x: bool[B, 4], %y: bool[4]) -> bool[B, 4] {
          %z = logical_or(%x, %y)
          return %z
        }
    """
    return np.logical_or(x, y)


@op(infer=_compare, elementwise=True, commutative=True, exact_bits=True)
def logical_xor(x: Boolean, y: Boolean) -> Tensor:
    """Whether exactly one of x and y is true, elementwise.

    Shapes broadcast by numpy's rule; the operands are bool (for the bits of integers write ``bit_xor``).

    Example::

        graph @example(%x: bool[B, 4], %y: bool[4]) -> bool[B, 4] {
          %z = logical_xor(%x, %y)
          return %z
        }
    """
    return np.logical_xor(x, y)


@op(infer=_same, elementwise=True, exact_bits=True)
def logical_not(x: Boolean) -> Tensor:
    """Whether x is false, elementwise.

    The operand is bool (for the bits of integers write ``bit_not``).

    Example::

        graph @example(%x: bool[B, 4]) -> bool[B, 4] {
          %z = logical_not(%x)
          return %z
        }
    """
    return np.logical_not(x)


@op(infer=_where, elementwise=True, exact_bits=True)
def where(cond: Boolean, x: Tensor, y: Tensor) -> Tensor:
    """x where cond is true, y where it is false, elementwise.

    All three shapes broadcast by numpy's rule; x and y have the same element type.  The chosen element keeps its bits
    (-0, the payload of a NaN), and the other one has no influence, whatever it is.

    Example::

        graph @example(%c: bool[B, 1], %x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = where(%c, %x, %y)
          return %z
        }

    Example, masking with a constant::

        graph @example(%c: bool[N], %x: i32[N]) -> i32[N] {
          %k = constant(-1) : i32[]
          %z = where(%c, %x, %k)
          return %z
        }
    """
    return np.where(cond, x, y)


@op(infer=_clamp, elementwise=True, exact=True)
def clamp(x: Numeric, *, low: int | float | None = None, high: int | float | None = None) -> Tensor:
    """x, but not below ``low`` and not above ``high``, elementwise: minimum(maximum(x, low), high).

    Either bound may be left out.  NaN stays NaN.  Bounds of a float tensor are rounded to its element type, and -0
    counts as smaller than +0, so that low=0 turns -0 into +0.  Bounds of an integer tensor are integers that fit in its
    element type.  ``low`` above ``high`` and nan are refused.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = clamp(%x, low=-1, high=0.5)
          return %y
        }

    Example, one bound::

        graph @example(%x: i32[N]) -> i32[N] {
          %y = clamp(%x, high=2)
          return %y
        }
    """
    result = x
    if low is not None:
        result = ieee_maximum(result, np.full((), low, x.dtype))
    if high is not None:
        result = ieee_minimum(result, np.full((), high, x.dtype))
    return result
