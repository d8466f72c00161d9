"""block-sums: a matrix that is multiplied by one row is read line after line, and the same bits."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from loop_programs import assert_same_runs
from pass_checks import load, optimize

import graph_opt
from codegen.llvm.emit import emit_graph
from ir.core import Module
from ir.diagnostics import GraphError
from ir.printer import print_module
from passes.infra.verify_exec import same_bits
from passes.pipelines import load_pipeline

COLUMNS = "peel{loop=n.tile, sizes=[32, 16]},vectorize{loops=[n]},"


def product(n: str, k: str, dtype: str = "f32") -> str:
    """One row by a matrix, with something added, in tiles of 48 columns."""
    load_ = f"%b = memref.load(%B[%k, %j]) : {dtype}"
    if dtype != "f32":
        load_ = load_.replace("%b", "%narrow") + "\n        %b = arith.extf(%narrow) : f32"
    return f"""graph @main(%x: f32[{k}], %w: {dtype}[{k}, {n}], %v: f32[{n}]) -> f32[{n}] {{
  %X = memref.from_tensor(%x) : memref<f32[{k}]>
  %B = memref.from_tensor(%w) : memref<{dtype}[{k}, {n}]>
  %V = memref.from_tensor(%v) : memref<f32[{n}]>
  %Y = memref.alloc() : memref<f32[{n}]>
  scf.parallel(%jt = 0 to {n} step 48, tag="n.tile") {{
    scf.parallel(%j = %jt to min(%jt+48, {n}), tag="n") {{
      %zero = arith.constant(0.0) : f32
      %s = scf.for(%k = 0 to {k}, %acc = %zero, tag="k") {{
        %a = memref.load(%X[%k]) : f32
        {load_}
        %t = math.fma(%a, %b, %acc) : f32
        yield %t
      }} : f32
      %c = memref.load(%V[%j]) : f32
      %r = arith.addf(%s, %c) : f32
      memref.store(%r, %Y[%j])
      yield
    }}
    yield
  }}
  %y = memref.to_tensor(%Y) : f32[{n}]
  return %y
}}
"""


def lines(module: Module, *parts: str) -> list[str]:
    """The lines of a program with one of some words, each up to its type."""
    found = [line.strip().partition(" : ")[0] for line in print_module(module).splitlines()]
    return [line for line in found if any(p in line for p in parts)]


def test_text() -> None:
    """Two pieces of a line, as threads share them; what is left of the columns is done with the last one."""
    text = product("1000", "32")
    after = optimize(text, COLUMNS + "block-sums")
    left = ["960 to min(48*max(%jtb-479, 0)+960, 992) step 32", "992 to min(1000, 48*max(%jtb-479, 0)+992) step 16"]
    assert lines(after, "scf.", "sums", "left") == [
        'scf.parallel(%jtb = 0 to 960 step 480, tag="n.block") {',
        "%s.sums = memref.alloc()",
        "%s.left = memref.alloc()",
        'scf.parallel(%jt.3 = %jtb to %jtb+480 step 48, tag="n.tile") {',
        "vector.store(%zero.broadcast.1, %s.sums[%jt.3-%jtb:+48])",
        f'scf.parallel(%jt.1.1 = {left[0]}, tag="n.tile") {{',
        "vector.store(%zero.1.broadcast.1, %s.left[%jt.1.1-960:+32])",
        f'scf.parallel(%jt.2.1 = {left[1]}, tag="n.tile") {{',
        "vector.store(%zero.2.broadcast.1, %s.left[%jt.2.1-960:+16])",
        'scf.for(%kt = 0 to 32 step 8, tag="k.tile") {',
        'scf.parallel(%jt.4 = %jtb to %jtb+480 step 48, tag="n.tile") {',
        "%s.3.before = vector.load(%s.sums[%jt.4-%jtb:+48])",
        '%s.3 = scf.for(%k.3 = %kt to %kt+8, %acc.3 = %s.3.before, tag="k.step") {',
        "vector.store(%s.3, %s.sums[%jt.4-%jtb:+48])",
        f'scf.parallel(%jt.1.2 = {left[0]}, tag="n.tile") {{',
        "%s.1.1.before = vector.load(%s.left[%jt.1.2-960:+32])",
        '%s.1.1 = scf.for(%k.1.1 = %kt to %kt+8, %acc.1.1 = %s.1.1.before, tag="k.step") {',
        "vector.store(%s.1.1, %s.left[%jt.1.2-960:+32])",
        f'scf.parallel(%jt.2.2 = {left[1]}, tag="n.tile") {{',
        "%s.2.1.before = vector.load(%s.left[%jt.2.2-960:+16])",
        '%s.2.1 = scf.for(%k.2.1 = %kt to %kt+8, %acc.2.1 = %s.2.1.before, tag="k.step") {',
        "vector.store(%s.2.1, %s.left[%jt.2.2-960:+16])",
        'scf.parallel(%jt.5 = %jtb to %jtb+480 step 48, tag="n.tile") {',
        "%s.4.1 = vector.load(%s.sums[%jt.5-%jtb:+48])",
        f'scf.parallel(%jt.1.3 = {left[0]}, tag="n.tile") {{',
        "%s.1.2.1 = vector.load(%s.left[%jt.1.3-960:+32])",
        f'scf.parallel(%jt.2.3 = {left[1]}, tag="n.tile") {{',
        "%s.2.2.1 = vector.load(%s.left[%jt.2.3-960:+16])",
    ]
    assert lines(optimize(text, COLUMNS + "block-sums{columns=100}"), "n.block") == ['scf.parallel(%jtb = 0 to 960 step 144, tag="n.block") {']
    assert not lines(optimize(product("960", "32"), COLUMNS + "block-sums"), "left")


def test_more_than_a_tile_is_left() -> None:
    """Then it is no work for the last piece."""
    text = product("960", "32")
    start, end = text.index("  scf.parallel(%jt"), text.index("  %y = memref")
    more = text[start:end].replace("960", "1020").replace("%jt = 0", "%jt = 960").replace("48", "20")
    for name in ("jt", "j", "zero", "s", "k", "acc", "a", "b", "t", "c", "r"):
        more = re.sub(rf"%{name}\b", f"%{name}.o", more)
    both = re.sub(r"960\]", "1020]", text[:end] + more + text[end:])
    peeled = "peel{loop=n.tile, sizes=[]},vectorize{loops=[n]}"
    after = optimize(both, f"{peeled},block-sums")
    assert lines(after, "n.block") and not lines(after, "left") and len(lines(after, 'tag="k")')) == 1
    rest = ",plan-memory,unroll-vectors"
    one, other = (graph_opt.compile(graph_opt.parse(both), pipeline=p + rest) for p in (peeled, f"{peeled},block-sums"))
    arrays = [np.random.default_rng(0).standard_normal(size, dtype=np.float32) for size in (32, (32, 1020), 1020)]
    assert same_bits(one(*arrays), other(*arrays))


@pytest.mark.parametrize(("n", "k"), [("520", "33"), ("513", "33"), ("527", "34"), ("528", "K"), ("N", "K")])
def test_same_bits(n: str, k: str) -> None:
    text = product(n, k)
    after = optimize(text, COLUMNS + "block-sums{columns=130}")
    assert "n.block" in print_module(after)
    for columns in (int(n),) if n != "N" else (0, 1, 47, 48, 49, 143, 150, 300):
        for steps in (int(k),) if k != "K" else (0, 1, 7, 8, 9):
            if columns * steps < 2500:
                assert_same_runs(load(text), after, [((steps,), (steps, columns), (columns,))])


@pytest.mark.parametrize(("n", "k"), [("1100", "37"), ("N", "K")])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_machine_code(n: str, k: str, dtype: str) -> None:
    """One thread and two, beside the same without the pass."""
    text = product(n, k, dtype)
    rest = "{},plan-memory,parallelize,unroll-vectors"
    programs = [
        graph_opt.compile(graph_opt.parse(text), pipeline=COLUMNS + rest.format(pass_), threads=threads)
        for pass_, threads in (("widen-sums", 1), ("block-sums", 1), ("block-sums{columns=96, steps=3}", 2))
    ]
    assert "n.block" not in str(programs[0]) and "n.block" in str(programs[1]) and "n.block" in str(programs[2])
    rng = np.random.default_rng(0)
    open_sizes = ((0, 3), (3, 0), (1, 1), (15, 33), (17, 33), (47, 33), (48, 40), (95, 9), (700, 41), (4200, 64))
    for columns, steps in open_sizes if n == "N" else ((1100, 37),):
        x, v = (rng.standard_normal(size).astype(np.float32) for size in (steps, columns))
        w = rng.standard_normal((steps, columns)).astype(np.float32 if dtype == "f32" else ml_dtypes.bfloat16)
        w[:1, :3] = [[np.nan, -np.inf, -0.0][:columns]] if columns and steps else w[:1, :3]
        first, *others = (p(x, w, v) for p in programs)
        assert all(same_bits(first, other) for other in others), (columns, steps)


def test_no_checks() -> None:
    def checks(pass_: str) -> int:
        module = optimize(product("N", "K"), f"{COLUMNS}{pass_}unroll-vectors")
        return emit_graph(module, module.main).text.count("@g_main.fail(")

    assert checks("block-sums,") <= checks("")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1000", "300"),  # lines are near each other
        ("%B[%k, %j]", "%B[%k, 0]"),  # one number of each line
        ("%B[%k, %j]", "%B[3, %j]"),  # always the same line
        ("%k = 0 to 32", "%k = 1 to 32"),
        ("%t = math.fma", "memref.store(%a, %X[0])\n        %t = math.fma"),
    ],
)
def test_what_stays(old: str, new: str) -> None:
    text = product("1000", "32").replace(old, new)
    if "store" in new:
        text = text.replace("%X = memref.from_tensor(%x)", "%X = memref.alloc()")
    assert "n.block" not in print_module(optimize(text, COLUMNS + "block-sums"))
    for options in ("steps=1", "columns=0"):
        with pytest.raises(GraphError, match="two lines or more, and a piece a column"):
            load_pipeline(f"block-sums{{{options}}}")


def test_in_the_preset() -> None:
    """A parameter times one row: tiles that divide the columns, whole lines."""
    program = graph_opt.parse("graph @main(%x: f32[1, 64], %w: f32[64, 1024]) -> f32[1, 1024] {\n  %y = matmul(%x, %w)\n  return %y\n}\n")
    multiply = graph_opt.compile(program, pipeline="cpu")
    assert 'step 512, tag="n.block"' in str(multiply) and "step 64" in str(multiply)
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 9, (1, 64)).astype(np.float32), rng.integers(-9, 9, (64, 1024)).astype(np.float32)
    assert np.array_equal(multiply(x, w), x @ w)
