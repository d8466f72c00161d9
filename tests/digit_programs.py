"""Programs of split activations and packed weights, and weights for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dialects.graph.digits import FORMATS as _FORMATS
from dialects.graph.digits import LARGEST, ROWS
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


def extreme_weights(format_: str, rows: int, size: int) -> NDArray[Any]:
    """Random ones, of which some blocks have the largest, some the smallest numbers alone."""
    found = random_weights(format_, rows, size)
    found["qs"][0::3] = -1 if found["qs"].dtype == np.int8 else 0xFF
    found["qs"][1::3] = -128 if found["qs"].dtype == np.int8 else 0
    return found


def varied_activations(count: int, size: int) -> NDArray[Any]:
    """Rows of all kinds: outliers, one magnitude of both signs, the numbers at which terms and digits carry, zeros, denormals, NaN."""
    generator = np.random.default_rng(count)
    x = np.float32(generator.standard_normal((count, size)) * np.where(generator.random((count, size)) < 0.03, 100, 1))
    carries = np.array([2047, 2048, 2049, 127, 128, 255, 256, 32767, 32768, 8388607, 4095, 4096, 15, 16])
    x[2 % count] = np.where(generator.random(size) < 0.5, -1.0, 1.0)
    x[5 % count] = generator.choice(carries, size) * generator.choice([-1.0, 1.0], size)
    x[6 % count] = float(LARGEST[3]) - generator.integers(0, 3, size)
    x[7 % count], x[8 % count] = 0.0, 1e-41
    x[9 % count, 3] = np.nan
    return x


def product_text(format_: str, rows: int, size: int, digits: int, count: str | int = "S") -> str:
    """``count`` rows of ``size`` numbers times ``rows`` rows of weights; with 0 digits as floats."""
    panels, blocks = -(-rows // ROWS), size // 32
    if digits:
        body = f"  %d, %s, %t = split_digits(%x, digits={digits})\n  %y = digit_linear(%d, %s, %t, %p, rows={rows})\n"
    else:
        body = f"  %y = packed_linear(%x, %p, rows={rows})\n"
    types = f"%x: f32[{count}, {size}], %p: u8[{panels}, {blocks}, {_FORMATS[format_].bytes}]"
    return f"graph @main({types}) -> f32[{count}, {rows}] {{\n{body}  return %y\n}}\n"


_READ_BY_SEVERAL = """
graph @main(%x: f32[ROWS, 64], %p: u8[2, 2, 640], %r: u8[2, 2, 1088]) -> (f32[ROWS, 40], f32[ROWS, 40], f32[ROWS, 40] RESULT) {
  %d, %s, %t = split_digits(%x, digits=DIGITS)
  %y = digit_linear(%d, %s, %t, %p, rows=40)
  %z = digit_linear(%d, %s, %t, %r, rows=40)
  %u = digit_linear(%d, %s, %t, %p, rows=40)
  return %y, %z, %u RETURN
}
"""


def read_by_several(digits: int, rows: str, result: bool) -> str:
    """Products with weights of 4 and of 8 bits of the same digits, which may be a result as well."""
    text = _READ_BY_SEVERAL.replace("ROWS", rows).replace("DIGITS", str(digits)).replace("RETURN", ", %d" if result else "")
    return text.replace("RESULT", f", i8[{rows}, 2, {digits}, 32]" if result else "")
