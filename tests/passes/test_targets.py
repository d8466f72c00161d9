"""Presets of other processors: blocks that fit their registers, and the same bits from all of them."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt
from passes.pipelines import OTHER_TARGETS, PRESETS, TARGETS, load_pipeline, preset_for

PROGRAM = """graph @main(%x: f32[M, 37], %w: f32[37, {columns}], %b: f32[{columns}]) -> (f32[M, {columns}], f32[M, {columns}]) {{
  %h = matmul(%x, %w)
  %h1 = add(%h, %b)
  %y = silu(%h1)
  %z = layernorm(%y)
  %p = softmax(%z)
  return %y, %p
}}
"""


@pytest.mark.parametrize("name", TARGETS)
def test_blocks_fit_the_registers(name: str) -> None:
    target = TARGETS[name]
    text = {**PRESETS, **OTHER_TARGETS}[name]
    assert "$" not in text and load_pipeline(name)
    sizes, area = (part.split("=")[1] for part in ("size=" + text.split("size=[")[1].split("]")[0], "area=" + text.split("area=")[1].split("}")[0]))
    for columns in map(int, sizes.split(",")):
        vectors, rows = columns // target.lanes, int(area) // columns
        assert columns % target.lanes == 0
        assert vectors * rows + vectors + 1 <= target.registers, "accumulators, a line of one factor, an element of the other"
        assert 3 * vectors * rows >= 2 * target.registers, "most registers accumulate"


def test_the_preset_for_a_machine() -> None:
    assert preset_for(["sse2", "avx2", "avx512f"]) == "cpu"
    assert preset_for(["sse2", "avx2", "avx512f", "amx-int8"]) == "cpu-amx"
    assert preset_for(["sse2", "sse4a", "avx2", "avx512f"]) == "cpu-zen"
    assert preset_for(["sse2", "sse4a", "avx2"]) == "cpu-avx2"
    assert preset_for(["sse2", "avx2"]) == "cpu-avx2"
    assert preset_for(["neon"]) == preset_for([]) == "cpu-neon"


@pytest.mark.parametrize("columns", [3, 48, 64, 77])
def test_same_bits(columns: int) -> None:
    rng = np.random.default_rng(columns)
    w, b = rng.standard_normal((37, columns), np.float32), rng.standard_normal(columns, np.float32)
    text = PROGRAM.format(columns=columns)
    programs = [graph_opt.compile(graph_opt.parse(text), constants={"w": w, "b": b}, pipeline=name) for name in TARGETS]
    for rows in (0, 1, 5, 8, 13, 50):
        x = rng.standard_normal((rows, 37), np.float32)
        first, *others = [program(x) for program in programs]
        for other in others:
            assert all(np.array_equal(a.view(np.int32), b.view(np.int32)) for a, b in zip(first, other, strict=True))
