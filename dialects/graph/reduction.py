"""Reductions: many elements along some axes become one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dialects.graph._shapes import normalize_axes, normalize_axis
from dialects.graph._special import ieee_maximum, ieee_minimum
from ir.dims import Dim
from ir.opdef import Boolean, ExecutionError, Float, Numeric, Tensor, TypeProblem, op
from ir.types import DType, TensorType, i64

Axes = tuple[int, ...] | None

# -- what they share ---------------------------------------------------------------------------------------------------


def _without(shape: tuple[Dim, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[Dim, ...]:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _reduced(x: TensorType, axes: Axes, keepdims: bool) -> TensorType:
    return x.with_shape(_without(x.shape, normalize_axes(axes, x.rank), keepdims))


def _reduced_nonempty(x: TensorType, axes: Axes, keepdims: bool, initial: int | float | None = None) -> TensorType:
    _check_initial(initial, x.dtype)
    for axis in normalize_axes(axes, x.rank):
        if x.shape[axis] == 0 and initial is None:
            raise TypeProblem(f"{x} has no elements along axis {axis}, so there is none to choose", operand="x")
    return _reduced(x, axes, keepdims)


def _check_initial(initial: int | float | None, dtype: DType) -> None:
    if initial is None:
        return
    if dtype.is_float:
        try:
            float(initial)
        except OverflowError:
            raise TypeProblem(f"initial={initial} is too large", attribute="initial") from None
        return
    if isinstance(initial, float):
        hint = f"write initial={int(initial)}" if initial.is_integer() else None
        raise TypeProblem(f"initial of a tensor of {dtype} is an integer, found {initial}", attribute="initial", hint=hint)
    if not dtype.min_value <= initial <= dtype.max_value:
        raise TypeProblem(f"initial={initial} does not fit in {dtype} ({dtype.min_value} to {dtype.max_value})", attribute="initial")


def _axes_of(x: Tensor, axes: Axes) -> tuple[int, ...]:
    return normalize_axes(axes, x.ndim)


def _require_elements(operation: str, x: Tensor, axes: tuple[int, ...]) -> None:
    for axis in axes:
        if x.shape[axis] == 0:
            raise ExecutionError(f"{operation} of a tensor of shape {list(x.shape)}: there are no elements along axis {axis}")


def _reduce(ufunc: Any, x: Tensor, axes: tuple[int, ...], keepdims: bool, **options: Any) -> Tensor:
    return np.asarray(ufunc.reduce(x, axis=axes, keepdims=keepdims, **options))


def _total(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """The sum from (positive) zero on, in the element type of the array."""
    return _reduce(np.add, x, axes, keepdims, dtype=x.dtype, initial=0)


def _average(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    count = math.prod(x.shape[a] for a in axes)
    return np.asarray(np.true_divide(_total(x, axes, keepdims), np.float64(count)))


# -- sums --------------------------------------------------------------------------------------------------------------


@op(infer=_reduced, exact=True, name="sum")
def sum_(x: Numeric, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum along some axes, or of all elements.

    ``axes`` may be negative and in any order, none may stand twice; ``[]`` reduces nothing (each element is a sum of
    its own).  The reduced axes go, or stay with size 1 with ``keepdims``.  The element type stays: integers wrap around
    (two's complement; cast first to sum in a wider type), floats are summed in float64 and rounded once.

    A sum starts from +0, so the empty sum is +0, and so is one of negative zeros only.  A NaN, or +inf and -inf together,
    make NaN.  2**25 ones in f32 give 2**25.

    Example::

        graph @example(%x: f32[B, S, 4]) -> f32[B, 4] {
          %y = sum(%x, axes=[1])
          return %y
        }

    Example, everything::

        graph @example(%x: i32[B, 3]) -> i32[] {
          %y = sum(%x)
          return %y
        }

    Example, keeping the axes::

        graph @example(%x: f16[B, 5]) -> f16[B, 1] {
          %y = sum(%x, axes=[-1], keepdims=true)
          return %y
        }
    """
    return _total(x, _axes_of(x, axes), keepdims)


@op(infer=_reduced)
def mean(x: Float, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean along some axes, or of all elements.

    The sum (see ``sum`` for ``axes`` and ``keepdims``) divided by the number of elements, in float64, rounded once; so
    nothing overflows on the way in f32 or f16.  Over no elements it is NaN, and a NaN makes NaN.  Floats only: the mean
    of integers needs a rounding, so cast them first.

    Example::

        graph @example(%x: f32[B, 6]) -> f32[B] {
          %y = mean(%x, axes=[1])
          return %y
        }

    Example, of everything::

        graph @example(%x: f16[B, S]) -> f16[1, 1] {
          %y = mean(%x, keepdims=true)
          return %y
        }
    """
    return _average(x, _axes_of(x, axes), keepdims)


@op(infer=_reduced, composite=True)
def variance(x: Float, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean of the squared distances from the mean, along some axes or of all elements.

    ``mean(square(x - mean(x)))``, in two passes in float64, rounded once: never negative, and without the cancellation of
    ``mean(x*x) - mean(x)**2``.  It divides by the number of elements N (not N-1).  ``axes`` and ``keepdims`` are those of
    ``sum``.  A NaN or an infinity makes NaN; over no elements it is NaN; of one finite element it is 0.

    Example::

        graph @example(%x: f32[B, 6]) -> f32[B, 1] {
          %y = variance(%x, axes=[-1], keepdims=true)
          return %y
        }
    """
    along = _axes_of(x, axes)
    distance = x - _average(x, along, True)
    return _average(distance * distance, along, keepdims)


@op(infer=_reduced)
def prod(x: Numeric, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """The product along some axes, or of all elements.

    ``axes`` and ``keepdims`` are those of ``sum``.  The element type stays: integers wrap around, floats are multiplied in
    float64 and rounded once.  The empty product is 1.  A NaN, or a zero and an infinity together, make NaN.

    Example::

        graph @example(%x: f32[B, 3]) -> f32[B] {
          %y = prod(%x, axes=[1])
          return %y
        }

    Example, of everything::

        graph @example(%x: i64[S]) -> i64[] {
          %y = prod(%x)
          return %y
        }
    """
    return _reduce(np.multiply, x, _axes_of(x, axes), keepdims, dtype=x.dtype)


def _check_cumsum(x: TensorType, axis: int) -> TensorType:
    normalize_axis(axis, x.rank)
    return x


@op(infer=_check_cumsum, exact=True)
def cumsum(x: Numeric, *, axis: int = -1) -> Tensor:
    """The running sum along an axis: element i is the sum of the elements 0 to i.

    Shape and element type stay; integers wrap around, floats are summed in float64 and each result is rounded once (so
    rounding errors don't add up along the axis).  Sums start from +0, as in ``sum``.  From a NaN on everything is NaN.
    Rank 1 or more.

    Example::

        graph @example(%x: f32[B, S]) -> f32[B, S] {
          %y = cumsum(%x)
          return %y
        }

    Example, along the first axis::

        graph @example(%x: i32[S, 3]) -> i32[S, 3] {
          %y = cumsum(%x, axis=0)
          return %y
        }
    """
    running = np.add.accumulate(x, axis=axis, dtype=x.dtype)
    return np.asarray(running + x.dtype.type(0))  # -0 + 0 is +0


# -- extremes ----------------------------------------------------------------------------------------------------------


def _extreme_from(x: Tensor, axes: tuple[int, ...], keepdims: bool, initial: int | float | None, largest: bool) -> Tensor:
    """The extreme of the elements and of ``initial``, when there is one."""
    if initial is None:
        _require_elements("max" if largest else "min", x, axes)
        return _extreme(x, axes, keepdims, largest)
    first = np.full((), initial, x.dtype)
    if any(x.shape[a] == 0 for a in axes):
        shape = np.any(x, axis=axes, keepdims=keepdims).shape
        return np.full(shape, first)
    return (ieee_maximum if largest else ieee_minimum)(_extreme(x, axes, keepdims, largest), first)


def _extreme(x: Tensor, axes: tuple[int, ...], keepdims: bool, largest: bool) -> Tensor:
    """numpy's reduction, with -0 < +0 (numpy returns whichever it meets)."""
    found = _reduce(np.maximum if largest else np.minimum, x, axes, keepdims)
    if x.dtype.kind != "f":
        return found
    winner = 0.0 if largest else -0.0
    has_winner = _reduce(np.logical_or, (x == 0) & (np.signbit(x) != largest), axes, keepdims)
    return np.where(found == 0, np.where(has_winner, winner, -winner), found)


@op(infer=_reduced_nonempty, exact=True, name="max")
def max_(x: Numeric, *, axes: Axes = None, keepdims: bool = False, initial: int | float | None = None) -> Tensor:
    """The largest element along some axes, or of all.

    ``axes`` and ``keepdims`` are those of ``sum``.  A NaN anywhere, the last place included, makes NaN, and -0 is less than
    +0, so the order of the elements doesn't matter.

    ``initial`` counts as one more element; that of a float type is rounded to it, that of an integer type fits in it.
    It is the result for an axis of no elements, which is an error without it, when the program is compiled if the
    dimension is known then, else when it runs.

    Example::

        graph @example(%x: f32[B, 7]) -> f32[B] {
          %y = max(%x, axes=[1])
          return %y
        }

    Example, of an axis that may be empty::

        graph @example(%x: f32[B, S]) -> f32[B] {
          %y = max(%x, axes=[1], initial=-inf)
          return %y
        }

    Example, of integers::

        graph @example(%x: u8[2, 3]) -> u8[1, 3] {
          %y = max(%x, axes=[0], keepdims=true)
          return %y
        }
    """
    return _extreme_from(x, _axes_of(x, axes), keepdims, initial, largest=True)


@op(infer=_reduced_nonempty, exact=True, name="min")
def min_(x: Numeric, *, axes: Axes = None, keepdims: bool = False, initial: int | float | None = None) -> Tensor:
    """The smallest element along some axes, or of all.

    ``axes`` and ``keepdims`` are those of ``sum``.  A NaN anywhere, the last place included, makes NaN, and -0 is less than
    +0, so the order of the elements doesn't matter.

    ``initial`` counts as one more element; that of a float type is rounded to it, that of an integer type fits in it.
    It is the result for an axis of no elements, which is an error without it, when the program is compiled if the
    dimension is known then, else when it runs.

    Example::

        graph @example(%x: f32[B, 7]) -> f32[B] {
          %y = min(%x, axes=[1])
          return %y
        }

    Example, of an axis that may be empty::

        graph @example(%x: i64[B, S]) -> i64[S] {
          %y = min(%x, axes=[0], initial=9223372036854775807)
          return %y
        }

    Example, of everything::

        graph @example(%x: i32[2, 3]) -> i32[] {
          %y = min(%x)
          return %y
        }
    """
    return _extreme_from(x, _axes_of(x, axes), keepdims, initial, largest=False)


def _infer_position(x: TensorType, axis: int, keepdims: bool) -> TensorType:
    along = normalize_axis(axis, x.rank)
    return _reduced_nonempty(x, (along,), keepdims).with_dtype(i64)


@op(infer=_infer_position, exact_bits=True)
def argmax(x: Numeric, *, axis: int = -1, keepdims: bool = False) -> Tensor:
    """The position of the largest element along an axis, as i64.

    Of equal elements the first counts (-0 and +0 are equal here); a NaN counts as the largest, the first one wins.  The
    axis goes, or stays with size 1 with ``keepdims``.  An axis of no elements is an error, when the program is compiled if
    the dimension is known then, else when it runs.  Rank 1 or more.

    Example::

        graph @example(%x: f32[B, 7]) -> i64[B] {
          %i = argmax(%x)
          return %i
        }

    Example, of integers::

        graph @example(%x: i32[4, S]) -> i64[1, S] {
          %i = argmax(%x, axis=0, keepdims=true)
          return %i
        }
    """
    _require_elements("argmax", x, (axis,))
    return np.asarray(np.argmax(_comparable(x), axis=axis, keepdims=keepdims))


@op(infer=_infer_position, exact_bits=True)
def argmin(x: Numeric, *, axis: int = -1, keepdims: bool = False) -> Tensor:
    """The position of the smallest element along an axis, as i64.

    Of equal elements the first counts (-0 and +0 are equal here); a NaN counts as the smallest here, the first one wins,
    so that the position is that of what ``min`` gives.  The axis goes, or stays with size 1 with ``keepdims``.  An axis of
    no elements is an error, when the program is compiled if the dimension is known then, else when it runs.  Rank 1 or
    more.

    Example::

        graph @example(%x: f32[B, 7]) -> i64[B] {
          %i = argmin(%x)
          return %i
        }
    """
    _require_elements("argmin", x, (axis,))
    return np.asarray(np.argmin(_comparable(x), axis=axis, keepdims=keepdims))


def _comparable(x: Tensor) -> Tensor:
    """The array in a type that numpy itself compares (bf16 is not one)."""
    return x.astype(np.float32) if x.dtype.kind == "V" else x


# -- truth -------------------------------------------------------------------------------------------------------------


@op(infer=_reduced, exact_bits=True, name="any")
def any_(x: Boolean, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether one of the elements is true, along some axes or of all.

    ``axes`` and ``keepdims`` are those of ``sum``; bool to bool.  Of no elements it is false.

    Example::

        graph @example(%x: bool[B, 3]) -> bool[B] {
          %y = any(%x, axes=[1])
          return %y
        }
    """
    return _reduce(np.logical_or, x, _axes_of(x, axes), keepdims)


@op(infer=_reduced, exact_bits=True, name="all")
def all_(x: Boolean, *, axes: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether all elements are true, along some axes or of all.

    ``axes`` and ``keepdims`` are those of ``sum``; bool to bool.  Of no elements it is true.

    Example::

        graph @example(%x: bool[B, 3]) -> bool[] {
          %y = all(%x)
          return %y
        }
    """
    return _reduce(np.logical_and, x, _axes_of(x, axes), keepdims)


# -- log-sum-exp -------------------------------------------------------------------------------------------------------


def _infer_logsumexp(x: TensorType, axis: int, keepdims: bool) -> TensorType:
    return _reduced(x, (normalize_axis(axis, x.rank),), keepdims)


@op(infer=_infer_logsumexp, composite=True)
def logsumexp(x: Float, *, axis: int = -1, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) along an axis, without overflow.

    ``m + log(sum(exp(x - m)))`` with the largest element m along the axis (0 where m is infinite), in float64, rounded
    once.  All -inf, or no elements, give -inf; a +inf gives +inf unless there is a NaN; a NaN makes NaN.  The axis goes,
    or stays with size 1 with ``keepdims``.  Rank 1 or more.

    Example::

        graph @example(%x: f32[B, 6]) -> f32[B] {
          %y = logsumexp(%x)
          return %y
        }

    Example, along the first axis::

        graph @example(%x: f16[4, S]) -> f16[1, S] {
          %y = logsumexp(%x, axis=0, keepdims=true)
          return %y
        }
    """
    largest = np.maximum.reduce(x, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    total = np.add.reduce(np.exp(x - shift), axis=axis, keepdims=True)
    result = np.log(total) + shift
    return result if keepdims else np.squeeze(result, axis=axis)
