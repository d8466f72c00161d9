"""widen-panels: narrow panels are widened by the first tile of rows, and the same bits."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from pass_checks import apply, load, optimize
from test_prefetch import panels

import graph_opt
from codegen.llvm.emit import emit_graph
from ir.core import Module, Operation, Region
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.infra.verify_exec import same_bits
from passes.pipelines import PRESETS, load_pipeline

PEELED = "peel{loop=m.tile, sizes=[4, 2, 1]},vectorize{loops=[m, n]},"
NARROW = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def narrow(rows: str, steps: str = "5", dtype: str = "bf16") -> str:
    """A product whose second factor lies in narrow panels."""
    text = panels(rows, steps).replace(f"%P: memref<f32[2, {steps}, 48]>", f"%p: {dtype}[2, {steps}, 48]")
    text = text.replace("  %zero =", f"  %P = memref.from_tensor(%p) : memref<{dtype}[2, {steps}, 48]>\n  %zero =", 1)
    text = text.replace("%j-%jt]) : f32", f"%j-%jt]) : {dtype}\n            %w = arith.extf(%b) : f32")
    return text.replace("fma(%a, %b,", "fma(%a, %w,")


def lines(module: Module, *parts: str) -> list[str]:
    """The lines of a program with one of some words, each up to its type."""
    found = [line.strip().partition(" : ")[0] for line in print_module(module).splitlines()]
    return [line for line in found if any(p in line for p in parts)]


def assert_same(before: str, after: Module, rows: int, steps: int = 5, dtype: str = "bf16") -> None:
    """The bits of the same vectors without the pass for random numbers, NaN and infinities, in any order of parallel rounds."""
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((rows, steps)).astype(np.float32)
    p = rng.standard_normal((2, steps, 48)).astype(NARROW[dtype])
    if p.size:
        p.reshape(-1)[:4] = [np.nan, np.inf, -0.0, 1e-7]
    want = np.full((rows, 96), 7, np.float32)
    module = load(before)
    apply(module, PEELED.removesuffix(","))
    Interpreter(module).run(module.main, [a, p, want])
    for reverse in (False, True):
        found = np.full((rows, 96), 7, np.float32)
        Interpreter(after, reverse_parallel=reverse).run(after.main, [a, p, found])
        assert same_bits(want, found)


def test_whole_tiles() -> None:
    """The first of four tiles stores what it widens, the others load that."""
    after = optimize(narrow("32"), PEELED + "prefetch,widen-panels")
    assert lines(after, "m.tile", "vector.load(%P", "extf(", "wide", "prefetch") == [
        "%P.wide = memref.alloc()",
        'scf.parallel(%it.1 = 0 to 8 step 8, tag="m.tile") {',
        "memref.prefetch(%P[%jt floordiv 48, %k.1+8, 0])",
        "memref.prefetch(%P[%jt floordiv 48, %k.1+8, 32])",
        "%b.load.1 = vector.load(%P[%jt floordiv 48, %k.1, 0:+48])",
        "%w.1 = arith.extf(%b.1)",
        "vector.store(%w.1, %P.wide[%k.1, 0:+48])",
        'scf.parallel(%it = 8 to 32 step 8, tag="m.tile") {',
        *(f"memref.prefetch(%P.wide[%k+8, {start}])" for start in (0, 16, 32)),
        "%w.2 = vector.load(%P.wide[%k, 0:+48])",
    ]
    assert_same(narrow("32"), after, 32)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 15, 16, 17, 31])
def test_known_rows(rows: int, dtype: str) -> None:
    text = narrow(str(rows), dtype=dtype)
    after = optimize(text, PEELED + "widen-panels")
    kept = rows >= 16
    assert bool(lines(after, "wide")) == kept, "less than two tiles of rows widen for themselves"
    assert len(lines(after, "extf")) == (1 if kept else len(lines(after, "m.tile")))
    assert_same(text, after, rows, dtype=dtype)


def is_inside(op: Operation, region: Region) -> bool:
    """Whether an operation stands in a region."""
    while op.block is not None and op.block.parent is not None:
        if op.block.parent is region:
            return True
        assert op.block.parent.parent is not None
        op = op.block.parent.parent
    return False


@pytest.mark.parametrize("blocks", ["", "block-rows{size=48},"])
def test_rows_known_when_it_runs(blocks: str) -> None:
    """Two versions, of which that for less than two tiles stays as it was."""
    text = narrow("M")
    after = optimize(text, f"{PEELED}{blocks}prefetch{{across=n.tile}}")
    apply(after, "widen-panels")
    once = print_module(after)
    apply(after, "widen-panels")
    assert print_module(after) == once
    (choice,) = [op for op in after.walk() if op.name == "scf.if"]
    many, few = (str([op.name for op in choice.walk() if op.block is not None and is_inside(op, r)]) for r in choice.regions)
    assert "memref.alloc" in many and many.count("arith.extf") == 1
    assert "memref.alloc" not in few and few.count("arith.extf") == 4
    for rows in (0, 1, 8, 15, 16, 23, 47, 97):
        assert_same(text, after, rows)


def test_no_checks() -> None:
    """What is kept is read and written without checks."""

    def checks(pass_: str) -> int:
        module = optimize(narrow("M", "K"), f"{PEELED}block-rows{{size=48}},prefetch{{across=n.tile}},{pass_}unroll-vectors")
        return emit_graph(module, module.main).text.count("@g_main.fail(")

    assert checks("widen-panels,") == checks("")


def test_two_factors_and_their_bytes() -> None:
    """Gate and up: both are kept where there is room."""
    text = narrow("32")
    second = (
        "%b2 = memref.load(%P[1-%jt floordiv 48, %k, %j-%jt]) : bf16",
        "%w2 = arith.extf(%b2) : f32",
        "%u = math.fma(%a, %w2, %acc) : f32",
        "%t = math.fma(%a, %w, %u)",
    )
    text = text.replace("%t = math.fma(%a, %w, %acc)", "\n            ".join(second))
    both = optimize(text, PEELED + "widen-panels")
    assert [len(lines(both, p)) for p in ("alloc", "extf", "vector.store(%w")] == [2, 2, 2]
    one = optimize(text, PEELED + "widen-panels{bytes=1900}")
    assert [len(lines(one, p)) for p in ("alloc", "extf", "vector.store(%w")] == [1, 3, 1]
    for after in (both, one):
        assert_same(text, after, 32)
    assert not lines(optimize(text, PEELED + "widen-panels{bytes=900}"), "wide")
    with pytest.raises(GraphError, match="a panel takes a byte"):
        load_pipeline("widen-panels{bytes=0}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%P[%jt floordiv 48, %k,", "%P[%it floordiv 8 mod 2, %k,"),  # another panel for each tile of rows
        ("to 5, %acc", "to K, %acc"),  # nobody knows how many lines
        ("%P[%jt floordiv 48, %k, %j-%jt]", "%P[%jt floordiv 48, 4-%k, %j-%jt]"),
        ("%k, %j-%jt]) : bf16", "%k, 0]) : bf16"),  # a single number
        ("%p: bf16[2, 5, 48]", "%P: memref<bf16[2, 5, 48]>"),  # it may be what is written
    ],
)
def test_what_stays(old: str, new: str) -> None:
    text = narrow("32", "K" if "K" in new else "5")
    text = text if "K" in new else text.replace(old, new)
    text = text.replace("  %P = memref.from_tensor(%p) : memref<bf16[2, 5, 48]>\n", "") if "%P:" in new else text
    assert old not in text and new in text
    assert "wide" not in print_module(optimize(text, PEELED + "widen-panels"))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("rows", ["M", "40"])
def test_machine_code(dtype: str, rows: str) -> None:
    """Weights stay narrow, and give the bits of wide ones."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((70, 37)).astype(NARROW[dtype])
    w[0, :3] = [np.inf, -0.0, 6e-8]
    program = "graph @main(%x: f32[{0}, 37], %w: {1}[70, 37]) -> f32[{0}, 70] {{\n{2}  %y = linear(%x, %v)\n  %z = silu(%y)\n  return %z\n}}\n"
    text = program.format(rows, dtype, "  %v = cast(%w, dtype=f32)\n")
    stored = graph_opt.compile(graph_opt.parse(text), constants={"w": w}, pipeline=PRESETS["cpu"])
    text = program.format(rows, "f32", "").replace("%v", "%w")
    wide = graph_opt.compile(graph_opt.parse(text), constants={"w": w.astype(np.float32)}, pipeline=PRESETS["cpu"])
    assert re.search(rf"\.panels = memref.from_tensor.*memref<{dtype}\[2, 37, 48\]>", str(stored)), "what is packed stays narrow"
    for m in (40,) if rows == "40" else (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 128, 257):
        x = rng.standard_normal((m, 37)).astype(np.float32)
        assert same_bits(stored(x), wide(x))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("rows", ["M", "16", "40"])
def test_blocks_of_long_sums(dtype: str, rows: str) -> None:
    """A block of a long sum keeps its own lines of a panel, counted from where it starts; threads give the same bits."""
    rng = np.random.default_rng(2)
    w = rng.standard_normal((37, 70)).astype(NARROW[dtype])
    w[0, :3] = [np.nan, -0.0, 6e-8]
    program = "graph @main(%x: f32[{0}, 37], %w: {1}[37, 70]) -> f32[{0}, 70] {{\n{2}  %y = matmul(%x, %v)\n  %z = exp(%y)\n  return %z\n}}\n"
    text = program.format(rows, dtype, "  %v = cast(%w, dtype=f32)\n")
    short = PRESETS["cpu"].replace("block-long-sums{", "block-long-sums{bytes=2000, ")
    blocked = [graph_opt.compile(graph_opt.parse(text), constants={"w": w}, pipeline=short, threads=n) for n in (1, 2)]
    assert "k.block" in str(blocked[0])
    kept = re.findall(r"%w\.buffer\.panels\.wide\S* = memref.alloc\(\) : memref<f32\[(\d+), 48\]>", str(blocked[0]))
    assert set(kept) == {"10", "7"}, "four blocks of 10 steps, of which the last one has 7"
    whole = graph_opt.compile(
        graph_opt.parse(program.format(rows, "f32", "").replace("%v", "%w")), constants={"w": w.astype(np.float32)}, pipeline=PRESETS["cpu"]
    )
    for m in (int(rows),) if rows != "M" else (0, 1, 7, 8, 15, 16, 17, 33, 128, 257):
        x = rng.standard_normal((m, 37)).astype(np.float32)
        for f in blocked:
            assert same_bits(f(x), whole(x))
