"""Numpy code that operations on tensors and operations on scalars share, so that both give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dialects.graph._special import first_position, format_position
from ir.evaluate import round_to
from ir.opdef import ExecutionError
from ir.types import DType, bf16


def _refuse(name: str, what: str, bad: NDArray[Any], x: NDArray[Any], y: NDArray[Any]) -> None:
    """Raises ExecutionError naming the first element where ``bad``, a mask with the shape of ``y``, is true."""
    if not bad.any():
        return
    bad, x, y = np.broadcast_arrays(bad, x, y)
    position = first_position(bad)
    if position is not None:  # an empty x leaves no element to compute
        raise ExecutionError(f"{name}: {what}{format_position(position)}: x is {x[position]}, y is {y[position]}")


def refuse_zero(name: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Raises ExecutionError where the integer divisor ``y`` is 0."""
    _refuse(name, "integer division by zero", y == 0, x, y)


def refuse_negative(name: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Raises ExecutionError where the integer exponent ``y`` is negative."""
    _refuse(name, "negative exponent of an integer", y < 0, x, y)


def refuse_amount(name: str, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Raises ExecutionError where ``y`` is no amount that the bits of ``x`` can be shifted by."""
    bits = x.dtype.itemsize * 8
    _refuse(name, f"shift amount outside 0..{bits - 1}", (y < 0) | (y >= bits), x, y)


def truncated_quotient(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """The quotient of integers rounded toward zero; the smallest by -1 wraps around."""
    down = np.floor_divide(x, y)
    inexact = x - down * y != 0
    return down + (inexact & ((x < 0) != (y < 0))).astype(down.dtype)  # type: ignore[no-any-return]


def saturate(x: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Floats to integers: toward zero, to the nearest bound outside the range, NaN to 0."""
    lowest, highest = float(dtype.min_value), float(dtype.max_value)  # highest of 64 bits rounds up to 2**63
    above, below = x >= highest, x <= lowest
    inside = np.where(above | below | np.isnan(x), 0.0, x).astype(np.int64).astype(dtype.numpy)
    limits = np.array([dtype.min_value, dtype.max_value], dtype.numpy)
    return np.where(above, limits[1], np.where(below, limits[0], inside))


def to_float(x: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """``x`` in a float type; the one rounding is left to the framework, which in float64 mode does without, where float64 has the numbers."""
    if x.dtype.kind == "f":
        return x
    big = (x >= 2**53) | (x <= -(2**53)) if x.dtype.itemsize == 8 else np.False_
    if not np.any(big):
        return x.astype(np.float64)
    if dtype == bf16:
        # Rounding to float64 first would be one rounding too many; 54 bits with a sticky last one are exact there.
        kept = (x >> 10) | ((x & 1023) != 0)
        x = np.where(big, kept.astype(np.float64) * 1024.0, x.astype(np.float64))
    return round_to(x, dtype)
