"""The type that a composite operation computes in: f32 for f16 and bf16, else the element type itself."""

from __future__ import annotations

import numpy as np

from ir.evaluate import round_to
from ir.types import DType, bf16, f16, f32


def wide_dtype(dtype: DType) -> DType:
    """The type that floats of ``dtype`` are computed in."""
    return f32 if dtype in (f16, bf16) else dtype


def rounded(value: float, dtype: DType) -> float:
    """``value`` as a number of the type that ``dtype`` is computed in."""
    return float(round_to(np.array(value, np.float64), wide_dtype(dtype)))
