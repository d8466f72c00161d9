"""lower-rope: interleaved pairs as vectors; the numbers of the operation, and the bits of what it is decomposed into."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load, optimize

import graph_opt
from ir.core import Module
from ir.interpreter import Interpreter
from passes.infra.base import PassContext
from passes.infra.verify_exec import compare_modules, same_bits
from passes.loops.lower_rope import LowerRope
from passes.pipelines import PRESETS

KEPT = "decompose{keep=[rope]}"


def rope(shape: str, options: str = "interleaved=true", positions: str = "i64[S]", dtype: str = "f32") -> str:
    return f"""graph @main(%x: {dtype}[{shape}], %p: {positions}) -> {dtype}[{shape}] {{
  %y = rope(%x, %p, {options})
  return %y
}}
"""


def without(text: str) -> str:
    """The preset, in which rope is decomposed."""
    return PRESETS["cpu"].replace(", rope]", "]") if text else ""


def data(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape, dtype=np.float32), rng.integers(-3000, 3000, shape[-2])


@pytest.mark.parametrize(("written", "shape"), [
    ("S, 8", (3, 8)), ("H, S, 64", (3, 5, 64)), ("B, 2, S, 16", (2, 2, 3, 16)), ("2, S, 2", (2, 3, 2)), ("B, H, S, 50", (1, 2, 7, 50)),
    ("3, S, 34", (3, 1, 34)), ("H, S, 64", (0, 5, 64)), ("H, S, 64", (2, 0, 64)),
])  # fmt: skip
def test_bits(written: str, shape: tuple[int, ...]) -> None:
    """The same as those of the decomposed operation, for any number of threads and kind of register."""
    text = rope(written, "interleaved=true, base=100000.0")
    x, p = data(shape)
    want = graph_opt.compile(graph_opt.parse(text), pipeline=without(text))(x, p)
    exact = graph_opt.compile(graph_opt.parse(text), device="reference")(x, p)
    assert np.allclose(want, exact, rtol=1e-5, atol=1e-6)
    for pipeline, threads in (("cpu", 2), ("cpu-avx2", 1), ("cpu-neon", 1)):
        assert same_bits(graph_opt.compile(graph_opt.parse(text), pipeline=pipeline, threads=threads)(x, p), want), pipeline


def test_special_values() -> None:
    """NaN and infinities spoil only their pair, zeros keep their sign."""
    text = rope("S, 34")
    x, p = data((9, 34))
    x[0, 3], x[1, 32], x[2, 5], x[3] = np.nan, np.inf, -np.inf, -0.0
    p[3], p[4] = 0, 2**40
    want = graph_opt.compile(graph_opt.parse(text), pipeline=without(text))(x, p)
    found = graph_opt.compile(graph_opt.parse(text))(x, p)
    assert np.isnan(found[0, 2:4]).all() and (~np.isfinite(found)).sum() == 6
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(found), nan) and same_bits(np.where(nan, np.float32(0), found), np.where(nan, np.float32(0), want))


def test_in_the_interpreter() -> None:
    for shape in ("S, 8", "2, S, 34", "1, 2, S, 16"):
        text = rope(shape)
        outcome = compare_modules(load(text), optimize(text, f"{KEPT},lower-rope"), LowerRope.preserves)
        assert outcome.mismatch is None and outcome.skipped is None


def lowered(text: str, pipeline: str) -> Module:
    module: Module = load(text)
    apply(module, pipeline)
    return module


@pytest.mark.parametrize(("text", "stays"), [
    (rope("H, S, 8"), True),
    (rope("H, S, 8", "interleaved=true, rotary_dim=8"), True),
    (rope("H, S, 8", "interleaved=true, rotary_dim=4"), False),
    (rope("H, S, 8", "interleaved=false"), False),
    (rope("H, S, 8", positions="i32[S]"), False),
    (rope("B, H, S, 8", positions="i64[B, S]"), False),
    (rope("H, S, 8", dtype="f16"), False),
    (rope("A, B, H, S, 8"), False),
    (rope("H, S, 2*D"), False),
])  # fmt: skip
def test_what_is_lowered(text: str, stays: bool) -> None:
    assert any(op.name == "graph.rope" for op in lowered(text, KEPT).walk()) == stays
    module = lowered(text, PRESETS["cpu"])
    assert not any(op.name == "graph.rope" for op in module.walk())
    if not stays:
        assert not LowerRope().run(load(text), PassContext())


TWO = """graph @main(%x: f32[S, 48], %p: i64[S]) -> (f32[2, S, 16], f32[1, S, 16], f32[2, S, 16]) {
  %a.0 = slice(%x, starts=[0], ends=[32], axes=[1])
  %b.0 = slice(%x, starts=[32], ends=[48], axes=[1])
  %a.1 = reshape(%a.0, shape=[S, 2, 16])
  %b.1 = reshape(%b.0, shape=[S, 1, 16])
  %a.2 = transpose(%a.1, perm=[1, 0, 2])
  %b.2 = transpose(%b.1, perm=[1, 0, 2])
  %a = rope(%a.2, %p, interleaved=true)
  %b = rope(%b.2, %p, interleaved=true)
  %c = rope(%a, %p, interleaved=true, base=500.0)
  return %a, %b, %c
}
"""


def test_tables_are_shared_and_heads_read_in_place() -> None:
    module = lowered(TWO, PRESETS["cpu"])
    assert sum(op.name == "math.cos" for op in module.walk()) == 2, "one for each base"
    nests = lowered(TWO, "O2,lower-rope").main.block
    assert not any(op.name == "linalg.generic" for op in nests), "heads are not copied"
    x, p = data((5, 48))
    found = graph_opt.compile(graph_opt.parse(TWO))(x, p)
    want = graph_opt.compile(graph_opt.parse(TWO), pipeline=without(TWO))(x, p)
    assert all(same_bits(f, w) for f, w in zip(found, want, strict=True))


def test_the_last_level_has_the_bits_of_machine_code() -> None:
    module = lowered(rope("2, S, 34"), "cpu")
    x, p = data((2, 3, 34))
    (found,) = Interpreter(module).run(module.main, [x, p])
    assert same_bits(np.asarray(found), graph_opt.compile(graph_opt.parse(rope("2, S, 34")))(x, p))
