"""Programs of split activations and packed weights, and weights for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dialects.graph.digits import FORMATS as _FORMATS
from dialects.graph.digits import ROWS
from ir.types import DTYPES

FORMATS = tuple(_FORMATS)


def random_weights(format_: str, rows: int, size: int, seed: int = 0) -> NDArray[Any]:
    """Blocks of all kinds of numbers, with scales as models have them."""
    generator, dtype = np.random.default_rng(seed), DTYPES[format_].numpy
    found = np.zeros((rows, size // 32), dtype)
    for name in dtype.names or ():
        shape, element = found[name].shape, found[name].dtype
        numbers = generator.integers(0, 256, shape).astype(np.uint8).view(element) if name == "qs" else generator.standard_normal(shape) * 0.02
        found[name] = numbers
    return found


def product_text(format_: str, rows: int, size: int, digits: int, count: str | int = "S") -> str:
    """``count`` rows of ``size`` numbers times ``rows`` rows of weights; with 0 digits as floats."""
    panels, blocks = -(-rows // ROWS), size // 32
    if digits:
        body = f"  %d, %s, %t = split_digits(%x, digits={digits})\n  %y = digit_linear(%d, %s, %t, %p, rows={rows})\n"
    else:
        body = f"  %y = packed_linear(%x, %p, rows={rows})\n"
    types = f"%x: f32[{count}, {size}], %p: u8[{panels}, {blocks}, {_FORMATS[format_].bytes}]"
    return f"graph @main({types}) -> f32[{count}, {rows}] {{\n{body}  return %y\n}}\n"
