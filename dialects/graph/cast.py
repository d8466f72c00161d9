"""Changing the element type: by value (cast) or by bits (bitcast)."""

from __future__ import annotations

import numpy as np

from dialects._numerics import saturate, to_float
from ir.opdef import Numeric, Tensor, TypeProblem, op
from ir.types import DType, TensorType


def _cast(x: TensorType, dtype: DType) -> TensorType:
    return x.with_dtype(dtype)


def _bitcast(x: TensorType, dtype: DType) -> TensorType:
    if dtype.kind == "bool":
        raise TypeProblem("bool has no bits to reinterpret", attribute="dtype", hint="write cast(..., dtype=bool), or not_equal with 0")
    if dtype.bits != x.dtype.bits:
        raise TypeProblem(
            f"{dtype} has {dtype.bits} bits, the elements of {x} have {x.dtype.bits}",
            attribute="dtype",
            hint=f"write cast(..., dtype={dtype.name}) to convert values",
        )
    return x.with_dtype(dtype)


@op(infer=_cast, elementwise=True, exact=True)
def cast(x: Tensor, *, dtype: DType) -> Tensor:
    """x converted by value to another element type, elementwise.

    - Float to float rounds once, to nearest, ties to even; what is too large becomes inf (f16: from 65520 on),
      denormals are kept, NaN stays NaN (its payload is not specified).  Two casts in a row round twice.
    - Float to integer rounds toward zero and saturates: what is too large gives the largest integer, what is too small
      the smallest, and NaN gives 0.
    - Integer to integer wraps around (two's complement).
    - Integer to float rounds once, to nearest, ties to even.
    - To bool: whether x is not 0; so NaN is true and -0 is false.
    - From bool: 0 or 1.

    Example::

        graph @example(%x: f32[B, 4]) -> f16[B, 4] {
          %y = cast(%x, dtype=f16)
          return %y
        }

    Example, to integers::

        graph @example(%x: f32[B, 4]) -> i8[B, 4] {
          %y = cast(%x, dtype=i8)
          return %y
        }

    Example, from integers::

        graph @example(%x: i64[N]) -> bf16[N] {
          %y = cast(%x, dtype=bf16)
          return %y
        }
    """
    if dtype.is_float:
        return to_float(x, dtype)
    if dtype.kind == "bool":
        return x != 0  # type: ignore[no-any-return]
    if x.dtype.kind == "f":
        return saturate(x, dtype)
    return x.astype(dtype.numpy)


@op(infer=_bitcast, elementwise=True, exact_bits=True)
def bitcast(x: Numeric, *, dtype: DType) -> Tensor:
    """The bits of x taken as another element type of the same width, elementwise.

    f32 and i32, f64 and i64, f16, bf16 and i16, i8 and u8.  Nothing is rounded: the payload of a NaN survives.

    Example::

        graph @example(%x: f32[B, 4]) -> i32[B, 4] {
          %y = bitcast(%x, dtype=i32)
          return %y
        }

    Example, to floats::

        graph @example(%x: i16[N]) -> bf16[N] {
          %y = bitcast(%x, dtype=bf16)
          return %y
        }
    """
    return np.array(x, order="C").view(dtype.numpy)
