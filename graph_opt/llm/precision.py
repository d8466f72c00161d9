"""What coarser precisions cost."""

from __future__ import annotations

import math

from dialects.graph.digits import LARGEST

MEASURED = {2: (0.0013, 0.007), 1: (0.25, 1.6)}
"""How far the logits of SmolLM2-135M (Q4_1) were off behind texts, by digits: root of the mean square, and the most."""


def precision_cost(precision: str) -> str | None:
    """How exact a precision is that is coarser than f32, in words; None for others.

    Half a unit of the last digit, with what rounding the scale adds.
    """
    if precision == "f32":
        return None
    from passes.graph.quantize_products import PRECISIONS

    digits = PRECISIONS.get(precision, 0)
    if not 1 <= digits < 3:
        return None
    bits = math.floor(-math.log2(0.5 / LARGEST[digits]) * 100) / 100
    rms, most = MEASURED[digits]
    return f"activations are off by up to 2^-{bits:.2f} of the largest of 32; logits of SmolLM2-135M were off by {rms} (rms), {most} at most"
