"""map-rope: the bits of machine code of the CPU; one table for all embeddings with the same positions."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load
from test_lower_rope import data, rope

import graph_opt
from ir.core import Module
from ir.interpreter import Interpreter
from passes.infra.verify_exec import same_bits

BEFORE = "O1,decompose{keep=[rope]},lower-to-linalg,fuse,collapse"


def mapped(text: str) -> Module:
    module = load(text)
    apply(module, f"{BEFORE},map-rope")
    assert "graph.rope" not in {op.name for op in module.walk()}
    return module


@pytest.mark.parametrize(("written", "shape"), [
    ("S, 8", (3, 8)), ("H, S, 64", (3, 5, 64)), ("B, 2, S, 16", (2, 2, 3, 16)), ("2, S, 2", (2, 3, 2)), ("B, H, S, 50", (1, 2, 7, 50)),
    ("H, S, 64", (0, 5, 64)), ("H, S, 64", (2, 0, 64)),
])  # fmt: skip
def test_bits(written: str, shape: tuple[int, ...]) -> None:
    text = rope(written, "interleaved=true, base=100000.0")
    x, p = data(shape)
    if x.size > 60:
        x[..., 0, 3], x[..., 1, 1], x[..., -1, :] = np.nan, np.inf, -0.0
    want = graph_opt.compile(graph_opt.parse(text))(x, p)
    for reverse in (False, True):
        module = mapped(text)
        assert same_bits(want, Interpreter(module, reverse_parallel=reverse).run(module.main, [x, p])[0])


def test_heads_that_are_split_off_are_read_in_place_and_share_a_table() -> None:
    text = """graph @main(%x: f32[S, 96], %p: i64[S]) -> (f32[4, S, 16], f32[2, S, 16]) {
      %a = slice(%x, axes=[1], starts=[0], ends=[64])
      %b = slice(%x, axes=[1], starts=[64], ends=[96])
      %as = reshape(%a, shape=[S, 4, 16])
      %bs = reshape(%b, shape=[S, 2, 16])
      %at = transpose(%as, perm=[1, 0, 2])
      %bt = transpose(%bs, perm=[1, 0, 2])
      %q = rope(%at, %p, interleaved=true)
      %k = rope(%bt, %p, interleaved=true)
      return %q, %k
    }"""
    module = mapped(text)
    assert [op.attribute("tag") for op in module.main.block if op.name == "gpu.launch"] == ["rope.table", "rope", "rope"]
    assert not any(op.name == "linalg.generic" for op in module.main.block)
    x, p = np.random.default_rng(0).standard_normal((5, 96), dtype=np.float32), np.arange(5)
    for a, b in zip(graph_opt.compile(graph_opt.parse(text))(x, p), Interpreter(module).run(module.main, [x, p]), strict=True):
        assert same_bits(a, b)
