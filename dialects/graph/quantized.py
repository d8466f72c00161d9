"""Tensors whose elements are stored in blocks: ``q4_0``, ``q4_1``, ``q8_0``.

Other operations that take them: ``linear`` (the weight), ``embedding`` and ``gather`` (the table), ``dim``, ``print``, ``call``.
"""

from __future__ import annotations

from ir import blocks
from ir.opdef import Blocks, Tensor, TypeProblem, op
from ir.types import DType, TensorType, f32, f64


def _dequantize_type(x: TensorType, dtype: DType) -> TensorType:
    if not dtype.is_float:
        raise TypeProblem(f"blocks hold real numbers: expected a float type, found {dtype}", attribute="dtype", hint="write dtype=f32")
    return x.with_dtype(dtype)


@op(infer=_dequantize_type)
def dequantize(x: Blocks, *, dtype: DType = f32) -> Tensor:
    """The numbers that a tensor of blocks stands for.

    A block is 32 neighbours on the last axis with a scale d, and in ``q4_1`` a minimum m, both f16.  An element q is worth
    ``d * (q - 8)`` in ``q4_0`` (q from 0 to 15), ``d * q + m`` in ``q4_1`` (0 to 15) and ``d * q`` in ``q8_0`` (-128 to 127),
    rounded once to ``dtype``, to nearest, ties to even; f64 is exact.  In f32 that is ``fma(d, q, m)``, and ``d * q + m``
    too, since the product is exact.  Scales that are NaN or infinite give what the formula says: ``inf * 0`` is NaN.

    Example::

        graph @example(%w: q4_1[N, 64]) -> f32[N, 64] {
          %y = dequantize(%w)
          return %y
        }

    Example, to another type::

        graph @example(%w: q8_0[B, N, 32]) -> f16[B, N, 32] {
          %y = dequantize(%w, dtype=f16)
          return %y
        }
    """
    return blocks.dequantize(x, f64)  # which is rounded once afterwards
