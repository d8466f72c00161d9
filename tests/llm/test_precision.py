"""What is said about precisions."""

from __future__ import annotations

from graph_opt.llm.precision import MEASURED, precision_cost
from passes.graph.quantize_products import PRECISIONS


def test_coarser_ones_say_what_they_cost() -> None:
    assert precision_cost("f32") is precision_cost("float") is precision_cost("unknown") is None
    assert (precision_cost("int8") or "").startswith("activations are off by up to 2^-7.90 of the largest of 32; ")
    assert (precision_cost("int16") or "").startswith("activations are off by up to 2^-15.91 of the largest of 32; ")
    assert set(MEASURED) == {digits for digits in PRECISIONS.values() if 1 <= digits < 3}
