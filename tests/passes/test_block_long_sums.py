"""block-long-sums: products with long sums block by block, with the sums in the result's memory between; the same bits."""

from __future__ import annotations

import re

import numpy as np
import pytest
from loop_programs import assert_same_runs
from pass_checks import apply, load, optimize

from ir.diagnostics import GraphError
from ir.inputs import GeneratedWeights
from ir.printer import print_module
from passes.pipelines import OTHER_TARGETS, PRESETS, load_pipeline
from tests.codegen.code_checks import check
from tests.codegen.native_graph import NativeGraph

STEPS = "block-long-sums{bytes=400}"
"""Blocks of two or three lines of 48 f32, 192 bytes each."""


def product(rows: str, steps: str, columns: int = 96, init: str = "0.0", behind: bool = True) -> str:
    """``exp(A @ B)`` with B in panels of 48 columns, in whole tiles of 8 rows and in single rows."""
    after = """
      scf.parallel(%i = %it to %it+8, tag="m.e") {
        %c = vector.load(%C[%i, %jt:+48]) : vector<f32[48]>
        %e = math.exp(%c) : vector<f32[48]>
        vector.store(%e, %C[%i, %jt:+48])
        yield
      }"""
    return f"""graph @main(%A: memref<f32[{rows}, {steps}]>, %P: memref<f32[{columns // 48}, {steps}, 48]>) -> f32[{rows}, {columns}] {{
  %C = memref.alloc() : memref<f32[{rows}, {columns}]>
  %zero = arith.constant({init}) : f32
  scf.parallel(%jt = 0 to {columns} step 48, tag="n.tile") {{
    scf.parallel(%it = 0 to {rows}-({rows} mod 8) step 8, tag="m.tile") {{
      %none = vector.broadcast(%zero) : vector<f32[8, 48]>
      %s = scf.for(%k = 0 to {steps}, %acc = %none, tag="k") {{
        %a = vector.load(%A[%it:+8, %k]) : vector<f32[8, 1]>
        %l = vector.load(%P[%jt floordiv 48, %k, 0:+48]) : vector<f32[1, 1, 48]>
        %b = vector.reshape(%l) : vector<f32[1, 48]>
        %t = math.fma(%a, %b, %acc) : vector<f32[8, 48]>
        yield %t
      }} : vector<f32[8, 48]>
      vector.store(%s, %C[%it:+8, %jt:+48]){after if behind else ""}
      yield
    }}
    scf.parallel(%it.1 = {rows}-({rows} mod 8) to {rows}, tag="m.tile") {{
      %none.1 = vector.broadcast(%zero) : vector<f32[1, 48]>
      %s.1 = scf.for(%k.1 = 0 to {steps}, %acc.1 = %none.1, tag="k") {{
        %a.1 = vector.load(%A[%it.1, %k.1]) : vector<f32[1, 1]>
        %l.1 = vector.load(%P[%jt floordiv 48, %k.1, 0:+48]) : vector<f32[1, 1, 48]>
        %b.1 = vector.reshape(%l.1) : vector<f32[1, 48]>
        %t.1 = math.fma(%a.1, %b.1, %acc.1) : vector<f32[1, 48]>
        yield %t.1
      }} : vector<f32[1, 48]>
      vector.store(%s.1, %C[%it.1, %jt:+48])
      yield
    }}
    yield
  }}
  %y = memref.to_tensor(%C) : f32[{rows}, {columns}]
  return %y
}}
"""


def loops(text: str, pipeline: str = STEPS, word: str = 'tag="k') -> list[str]:
    """What opens loops over steps and over blocks of them."""
    lines = print_module(optimize(text, pipeline)).splitlines()
    return [line.strip().partition("(")[2].partition(",")[0] for line in lines if word in line]


def test_blocks() -> None:
    """The first block starts from zero, those between are a loop, the last one goes on to what follows."""
    text = print_module(optimize(product("M", "9"), STEPS))
    assert loops(product("M", "9")) == [
        "%k.3 = 0 to 2", "%k.1.2 = 0 to 2", "%kb = 2 to 8 step 2", "%k.4 = %kb to %kb+2", "%k.1.3 = %kb to %kb+2", "%k = 8 to 9", "%k.1 = 8 to 9",
        "%k.2 = 0 to 9", "%k.1.1 = 0 to 9",
    ]  # fmt: skip
    first, _, few = text.partition("%k = 8 to 9")
    assert "math.exp" not in first and few.count("math.exp") == 2 and few.index("math.exp") < few.index("%k.2 = 0 to 9") < few.rindex("math.exp")
    assert text.count(".before = vector.load(%C") == 4, "of whole tiles and single rows, in the blocks between and in the last one"
    assert len(loops(product("16", "9"))) == 7, "one version where rows are known"


@pytest.mark.parametrize(("steps", "found"), [("2", []), ("3", ["0 to 2", "2 to 3"]), ("4", ["0 to 2", "2 to 4"]), ("N", [])])
def test_how_many(steps: str, found: list[str]) -> None:
    """No block where one is enough or steps are not known; no loop over blocks for two of them."""
    lines = [line.partition(" = ")[2] for line in loops(product("M" if steps == "N" else "16", steps))]
    assert lines == ([s for s in found for _ in range(2)] or [f"0 to {steps}"] * 2)


@pytest.mark.parametrize("m", [0, 1, 7, 8, 17])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 6, 11])
def test_same_bits(m: int, k: int) -> None:
    text = product("M", str(k))
    assert_same_runs(load(text), optimize(text, STEPS), [((m, k), (2, k, 48))])


def test_what_stays() -> None:
    """Few tiles of rows; rows as they lie instead of panels; sums that something else needs, or that are not stored at once; done already."""
    assert len(loops(product("15", "9"))) == 2 and len(loops(product("16", "9"))) == 7
    assert loops(product("M", "9"), f"{STEPS},{STEPS}") == loops(product("M", "9"))
    text = product("48", "9", behind=False)
    assert len(loops(text)) == 7
    needed = text.replace("vector.store(%s, %C", "%n = arith.negf(%s) : vector<f32[8, 48]>\n      vector.store(%n, %C")
    stored = "vector.store(%s, %C[%it:+8, %jt:+48])"
    twice = text.replace(stored, f"{stored}\n      {stored}")
    other = text.replace("%s = scf.for", "vector.store(%none, %C[%it:+8, %jt:+48])\n      %s = scf.for")
    flat = text.replace("floordiv 48, %k, 0", "floordiv 48, 0, 0").replace("floordiv 48, %k.1, 0", "floordiv 48, 0, 0")
    given = text.replace("%P: ", "%C: memref<f32[48, 96]>, %P: ").replace("  %C = memref.alloc() : memref<f32[48, 96]>\n", "")
    for changed in (needed, twice, other, flat, given):
        assert len(loops(changed)) == 2, changed


@pytest.mark.parametrize(("rows", "found"), [("15", 2), ("16", 6), ("M", 8)])
def test_narrow_factors(rows: str, found: int) -> None:
    """They count as wide as they are when ``widen-panels`` has widened them, which is for two tiles of rows and more."""
    text = re.sub(
        r"(%l\S* = vector.load\(%P\[.*) : vector<f32", r"\1 : vector<bf16", product(rows, "9").replace("%P: memref<f32[", "%P: memref<bf16[")
    )
    text = re.sub(r"%b(\S*) = vector.reshape\((%l\S*)\) : vector<f32", r"%n\1 = vector.reshape(\2) : vector<bf16", text)
    text = re.sub(r"( *%n(\S*) = vector.reshape.*\n)", r"\1        %b\2 = arith.extf(%n\2) : vector<f32[1, 48]>\n", text)
    assert len([line for line in loops(text, "block-long-sums{bytes=600}") if not line.startswith("%kb")]) == found
    assert len(loops(text, "block-long-sums{bytes=1800}")) == 2


def test_hints_and_rows() -> None:
    """Hints for the next panel are for the piece that comes next; blocks of rows are as large as the steps of a block allow."""
    after = optimize(product("128", "9"), f"{STEPS},prefetch{{across=n.tile}}")
    hints = [line.strip() for line in print_module(after).splitlines() if "locality=2" in line]
    assert hints == [
        "memref.prefetch(%P[(%jt.1 floordiv 48)+1, 0, 6*(%it.2 floordiv 8)+3*%k.2], locality=2)",
        "memref.prefetch(%P[(%jt.2 floordiv 48)+1, %kb, 6*(%it.3 floordiv 8)+3*%k.3-3*%kb], locality=2)",
        "memref.prefetch(%P[(%jt floordiv 48)+1, 8, 3*(%it floordiv 8)+3*%k-24], locality=2)",
    ]
    after = optimize(product("M", "9"), f"{STEPS},block-rows{{bytes=12288}}")
    assert re.findall('step ([0-9]+), tag="m.block"', print_module(after)) == ["128", "64", "64"], "%C is read again, 192 bytes of a row"


def test_options() -> None:
    with pytest.raises(GraphError, match="a byte at least"):
        load_pipeline("block-long-sums{bytes=0}")


@pytest.mark.parametrize("target", ["cpu", *OTHER_TARGETS])
def test_whole_products(target: str) -> None:
    """A product with a weight and what follows it, with blocks and without: the same bits."""
    text = """file @f = "w.safetensors"
graph @main(%x: f32[B, 11], %v: f32[50]) -> f32[B, 50] {
  %w = weight(@f, "w") : f32[11, 50]
  %t = matmul(%x, %w)
  %u = add(%t, %v)
  %y = maximum(%u, %v)
  return %y
}
"""
    pipeline = {**PRESETS, **OTHER_TARGETS}[target]
    used = "block-long-sums{loop=n.tile, rows=m.tile, sums=k}"
    assert used in pipeline
    before, after = load(text), load(text)
    sources = {"f": GeneratedWeights(before, "f")}
    apply(before, pipeline.replace(f"{used},", ""), sources)
    apply(after, pipeline.replace(used, "block-long-sums{bytes=200}"), sources)
    assert "k.block" in print_module(after) and "k.block" not in print_module(before)
    assert_same_runs(before, after, [((b, 11), (50,)) for b in (0, 1, 31, 49)], sources=sources)


@pytest.mark.parametrize("k", [3, 9])
def test_native(k: int) -> None:
    """Machine code, with threads that share the loops in a block, has the interpreter's bits."""
    module = optimize(product("M", str(k), behind=False), f"{STEPS},parallelize{{work=1}},unroll-vectors")
    native = NativeGraph(module, module.graphs["main"])
    rng = np.random.default_rng(0)
    for m in (0, 1, 8, 50):
        check(module, *(rng.standard_normal(s, dtype=np.float32) for s in ((m, k), (2, k, 48))), threads=(1, 2), native=native)
