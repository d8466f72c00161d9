"""Arrays of block-quantized elements: ``q4_0``, ``q4_1``, ``q8_0``.

The array of a tensor ``q4_1[N, K]`` is a structured numpy array of shape ``[N, K / 32]``, one record per block, whose
bytes are those of a GGUF file.  Element i < 16 of a 4-bit block is the low half of byte i, element i + 16 the high
half.  With the scale d and the minimum m of its block, an element q is worth

    q4_0:  d * (q - 8)        q4_1:  d * q + m        q8_0:  d * q

in exact arithmetic, which :func:`dequantize` rounds once.  (In f32 that is what ``fma(d, q, m)`` gives, and ``d * q + m`` too,
since the product of 11 and at most 8 bits is exact.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ir.evaluate import round_to
from ir.types import DType, storage_shape, tensor_shape

__all__ = ["dequantize", "quants", "storage_shape", "tensor_shape"]


def quants(array: NDArray[Any]) -> NDArray[Any]:
    """The integers of blocks, [..., blocks, 32] in i16, that a scale multiplies: -8 to 7, 0 to 15 or -128 to 127."""
    stored = array["qs"]
    if stored.dtype == np.int8:
        return stored.astype(np.int16)
    nibbles = np.concatenate([stored & 15, stored >> 4], axis=-1).astype(np.int16)
    return nibbles if _has_minimum(array) else nibbles - 8  # type: ignore[no-any-return]


def dequantize(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The numbers that blocks stand for, rounded once to a float type (nearest, ties to even); f64 holds them exactly.

    Scales that are NaN, infinite or subnormal behave as in IEEE arithmetic: ``inf * 0`` is NaN.
    """
    d = array["d"].astype(np.float64)[..., None]
    with np.errstate(all="ignore"):
        values = d * quants(array)  # multiples of 2**-24 below 2**23: exact in f64, with the minimum added too
        if _has_minimum(array):
            values += array["m"].astype(np.float64)[..., None]
    return round_to(values.reshape(*array.shape[:-1], array.shape[-1] * values.shape[-1]), dtype)


def _has_minimum(array: NDArray[Any]) -> bool:
    return "m" in (array.dtype.names or ())
