"""lower-attention reads heads where the products before have stored them, and stores where the product behind reads."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load

import graph_opt
from ir.core import Module
from ir.interpreter import Interpreter
from passes.infra.verify_exec import same_bits

PLAIN = """graph @main(%q: f32[B, 4, {S}, 8], %k: f32[B, 2, T, 8], %v: f32[B, 2, T, 8]) -> f32[B, 4, {S}, 8] {{
  %o = attention(%q, %k, %v{options})
  return %o
}}
"""
SPLIT = """graph @main(%x: f32[B, {S}, 48], %y: f32[B, T, 40]) -> {results} {{
  %q0 = slice(%x, starts=[8], ends=[40], axes=[2])
  %k0 = slice(%y, starts=[0], ends=[16], axes=[2])
  %v0 = slice(%y, starts=[24], ends=[40], axes=[2])
  %q1 = reshape(%q0, shape=[B, {S}, 4, 8])
  %k1 = reshape(%k0, shape=[B, T, 2, 8])
  %v1 = reshape(%v0, shape=[B, T, 2, 8])
  %q = transpose(%q1, perm=[0, 2, 1, 3])
  %k = transpose(%k1, perm=[0, 2, 1, 3])
  %v = transpose(%v1, perm=[0, 2, 1, 3])
  %o = attention(%q, %k, %v{options})
  %t = transpose(%o, perm=[0, 2, 1, 3])
  %j = reshape(%t, shape=[B, {S}, 32])
  return {returned}
}}
"""


def split(steps: str = "S", options: str = "", returned: str = "%j", results: str = "") -> str:
    return SPLIT.format(S=steps, options=options, returned=returned, results=results or f"f32[B, {steps}, 32]")


def heads(x: np.ndarray, start: int, count: int) -> np.ndarray:
    found = x[:, :, start : start + 8 * count].reshape(*x.shape[:2], count, 8)
    return np.ascontiguousarray(found.transpose(0, 2, 1, 3))


def moving_nests(text: str) -> tuple[Module, int]:
    """The program behind lower-attention, and how many nests are left of those that split and join heads."""
    module = load(text)
    apply(module, "O2,lower-attention")
    return module, sum(op.name == "linalg.generic" for op in module.main.block)


def test_what_is_left() -> None:
    """Of four nests that move heads the one of the values, which every tile of queries reads again; none for few queries."""
    assert moving_nests(split())[1] == 1
    assert moving_nests(split("3"))[1] == 0
    module, left = moving_nests(split(returned="%j, %q", results="(f32[B, S, 32], f32[B, 4, S, 8])"))
    assert left == 2 and len(module.main.results) == 2  # a result is a value of its own
    assert moving_nests(split(returned="%j, %o", results="(f32[B, S, 32], f32[B, 4, S, 8])"))[1] == 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 13, 48, 50])
def test_bits(steps: int, causal: bool) -> None:
    """The same bits as from heads that lie apart, for few queries and for many, written as a number or open."""
    options = ", causal=true" if causal else ""
    rng = np.random.default_rng(steps)
    for batch, keys in ((1, 50), (2, 131), (3, steps)):
        x = rng.standard_normal((batch, steps, 48), dtype=np.float32)
        y = rng.standard_normal((batch, keys, 40), dtype=np.float32)
        want = graph_opt.compile(graph_opt.parse(PLAIN.format(S="S", options=options)))(heads(x, 8, 4), heads(y, 0, 2), heads(y, 24, 2))
        want = want.transpose(0, 2, 1, 3).reshape(batch, steps, 32)
        for text in (split("S", options), *([split(str(steps), options)] if steps < 4 else [])):
            found = graph_opt.compile(graph_opt.parse(text), threads=1 + steps % 2)(x, y)
            assert same_bits(np.ascontiguousarray(want), found), (batch, keys, text)


def test_in_the_interpreter() -> None:
    module, _ = moving_nests(split("2"))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype=np.float32) for s in ((2, 2, 48), (2, 20, 40))]
    (want,) = Interpreter(load(split("2"))).run(load(split("2")).main, arrays)
    (found,) = Interpreter(module).run(module.main, arrays)
    assert np.allclose(want, found, rtol=1e-5, atol=1e-6)


def test_what_is_written_meanwhile_is_copied_before() -> None:
    """The source of the moved elements changes between the copy and the attention: the copy stays."""
    text = """graph @main(%A: memref<f32[3, 2, 8]>, %k: f32[2, 4, 8], %v: f32[2, 4, 8]) -> f32[2, 3, 8] {
  %Q = memref.alloc() : memref<f32[2, 3, 8]>
  linalg.generic(i < 2, j < 3, l < 8, %a = %A[j, i, l], %to = %Q[i, j, l]) {
    yield %a
  }
  linalg.generic(i < 3, j < 2, l < 8, %old = %A[i, j, l]) {
    %zero = arith.constant(0.0) : f32
    yield %zero
  }
  %q = memref.to_tensor(%Q) : f32[2, 3, 8]
  %o = attention(%q, %k, %v) : f32[2, 3, 8]
  return %o
}
"""
    module = load(text)
    apply(module, "lower-attention")
    assert sum(op.name == "linalg.generic" for op in module.main.block) == 2
