"""pack: what is read from panels is what was read before; weights are packed by tensor operations, once."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from loop_programs import assert_same_runs, matmul
from pass_checks import load, operations, optimize

import graph_opt
from ir.core import Module, Region
from ir.inputs import GeneratedWeights
from ir.printer import print_module
from passes.infra.verify_exec import same_bits
from passes.loops import pack
from passes.pipelines import PRESETS

TILES = "tile{loop=n, size=48, outside=m},tile{loop=m, size=8},"
PEELS = ",peel{loop=m.tile, sizes=[4, 2, 1]},peel{loop=n.tile, sizes=[32, 16]}"
RUN = "pack{loop=n.tile, stored_only=false}"
FILE = 'file @f = "w.safetensors"\n'


def with_weight(m: str, n: str, k: str, *, transposed: bool = False, dtype: str = "f32") -> str:
    """The matrix product with a weight as its right factor, maybe stored as [n, k]."""
    shape = f"{n}, {k}" if transposed else f"{k}, {n}"
    text = matmul(m, n, k).replace(f"%b: f32[{k}, {n}], ", "")
    text = text.replace(f"  %B = memref.from_tensor(%b) : memref<f32[{k}, {n}]>", f"  %B = memref.from_tensor(%b) : memref<{dtype}[{shape}]>")
    text = text.replace("  %A = ", f'  %b = weight(@f, "b") : {dtype}[{shape}]\n  %A = ', 1)
    if transposed:
        text = text.replace("%B[%k, %j]", "%B[%j, %k]")
    if dtype != "f32":
        text = text.replace(") : f32\n        %t", f") : {dtype}\n        %yw = arith.extf(%y) : f32\n        %t")
        text = text.replace("fma(%x, %y,", "fma(%x, %yw,")
    return FILE + text


def run(text: str, pipeline: str, shapes: list[tuple[tuple[int, ...], ...]]) -> Module:
    """The module after the pipeline, which must compute the same bits."""
    before = load(text)
    sources = {"f": GeneratedWeights(before, "f")} if before.files else {}
    after = optimize(text, pipeline, sources)
    assert_same_runs(before, after, shapes, sources=sources)
    return after


def reads(module: Module, name: str) -> list[str]:
    """The loads from buffers whose name starts so."""
    return [part.partition("])")[0] + "]" for part in print_module(module).split("memref.load(") if part.startswith(f"%{name}")]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [17, 48, 49, 130])
def test_weights(n: int, transposed: bool) -> None:
    text = with_weight("M", str(n), "2", transposed=transposed)
    for pipeline in (TILES + "pack", TILES + "pack" + PEELS):
        after = run(text, pipeline, [((m, 2), (n,)) for m in (0, 3)])
        assert any("%B.panels[" in r for r in reads(after, "B.panels")) == (n != 48 or transposed)


def test_text_of_a_weight() -> None:
    after = optimize(with_weight("M", "97", "5"), TILES + "pack{loop=n.tile}", {"f": GeneratedWeights(load(with_weight("M", "97", "5")), "f")})
    lines = [line.strip() for line in print_module(after).splitlines()]
    at = lines.index('%b = weight(@f, "b") : f32[5, 97]')
    assert lines[at + 1 : at + 5] == [
        "%b.pad = pad(%b, low=[0, 0], high=[0, 47]) : f32[5, 144]",
        "%b.reshape = reshape(%b.pad, shape=[5, 3, 48]) : f32[5, 3, 48]",
        "%b.panels = transpose(%b.reshape, perm=[1, 0, 2]) : f32[3, 5, 48]",
        "%B.panels = memref.from_tensor(%b.panels) : memref<f32[3, 5, 48]>",
    ]
    assert "%y = memref.load(%B.panels[%jt floordiv 48, %k, %j-%jt]) : f32" in lines
    assert not any("memref.from_tensor(%b)" in line for line in lines)


def test_text_of_a_transposed_weight() -> None:
    text = with_weight("M", "96", "5", transposed=True)
    lines = [line.strip() for line in print_module(run(text, TILES + "pack", [((3, 5), (96,))])).splitlines()]
    at = lines.index('%b = weight(@f, "b") : f32[96, 5]')
    assert lines[at + 1 : at + 3] == [
        "%b.reshape = reshape(%b, shape=[2, 48, 5]) : f32[2, 48, 5]",
        "%b.panels = transpose(%b.reshape, perm=[0, 2, 1]) : f32[2, 5, 48]",
    ]


def test_pieces_of_the_last_tile_read_its_panel() -> None:
    after = run(with_weight("M", "147", "5"), TILES + "pack,peel{loop=n.tile, sizes=[2, 1]}", [((2, 5), (147,))])
    assert reads(after, "B.panels") == [
        "%B.panels[%jt floordiv 48, %k, %j-%jt]",
        "%B.panels[3, %k.1, %j.1-144]",
        "%B.panels[3, %k.2, %j.2-144]",
    ]


def test_packed_at_load_time() -> None:
    after = run(with_weight("M", "97", "5"), TILES + "pack" + PEELS + ",hoist-to-init", [((m, 5), (97,)) for m in (0, 3)])
    main, init = after.graphs["main"], after.graphs["main.init"]
    assert [op.definition.name for op in init.block] == ["weight", "pad", "reshape", "transpose", "return"]
    assert [op.definition.name for op in main.block if op.definition.dialect == "graph"] == ["initial", "return"]


def test_weights_of_other_types() -> None:
    run(with_weight("M", "97", "3", dtype="f16"), TILES + "pack" + PEELS, [((3, 3), (97,))])
    run(with_weight("M", "50", "3", dtype="bf16", transposed=True), TILES + "pack" + PEELS, [((3, 3), (50,))])


def twice(second: str) -> str:
    """Two nests that read one weight, the second one with another index."""
    text = with_weight("1", "97", "97").replace("%k = 0 to 97", "%k = 0 to 2")
    start, end = text.index("  scf.parallel(%i"), text.index("  %c = memref.to_tensor")
    nest = text[start:end]
    nest = re.sub(r"%([a-z]+)", r"%\g<1>2", nest)
    return text[:end] + nest.replace("%B[%k2, %j2]", second) + text[end:]


@pytest.mark.parametrize("second, count", [("%B[%k2, %j2]", 1), ("%B[%j2, %k2]", 2), ("%B[%k2, %k2]", 1)])
def test_nests_share_panels_of_the_same_layout(second: str, count: int) -> None:
    after = run(twice(second), TILES + "pack", [((1, 97), (97,))])
    assert operations(after).count("transpose") == count
    assert operations(after).count("memref.from_tensor") == 2 + count + ("%k2, %k2" in second)


def test_parameters_stay_by_default() -> None:
    text = matmul("M", "97", "5")
    assert not reads(run(text, TILES + "pack", [((3, 5), (5, 97), (97,))]), "B.panels")


@pytest.mark.parametrize("n", ["N", "97", "144"])
def test_packing_when_it_runs(n: str) -> None:
    text = matmul("M", n, "K")
    sizes = (0, 1, 48, 51) if n == "N" else (int(n),)
    shapes = [((m, k), (k, s), (s,)) for s in sizes for m, k in ((3, 2), (0, 2))]
    for pipeline in (TILES + RUN, TILES + RUN + ",pack{loop=m.tile, stored_only=false}" + PEELS):
        after = run(text, pipeline, shapes)
        assert reads(after, "B.panels") and bool(reads(after, "A.panels")) == ("m.tile, stored" in pipeline)


def test_text_of_packing_when_it_runs() -> None:
    text = print_module(run(matmul("M", "N", "K"), TILES + RUN, []))
    start = text.index("  %B.panels")
    expected = """  %B.panels = memref.alloc() : memref<f32[N ceildiv 48, K, 48]>
  scf.parallel(%B.i = 0 to K, tag="row") {
    scf.parallel(%B.i.1 = 0 to N step 48, tag="n.tile") {
      scf.parallel(%B.i.2 = %B.i.1 to min(%B.i.1+48, N), tag="col") {
        %B.load = memref.load(%B[%B.i, %B.i.2]) : f32
        memref.store(%B.load, %B.panels[%B.i.1 floordiv 48, %B.i, -%B.i.1+%B.i.2])
        yield
      }
      yield
    }
    yield
  }
"""
    assert text[start:].startswith(expected)


def test_batched_factors_keep_their_batch() -> None:
    text = """
graph @main(%a: f32[2, M, 3], %b: f32[2, 50, 3]) -> f32[2, M, 50] {
  %A = memref.from_tensor(%a) : memref<f32[2, M, 3]>
  %B = memref.from_tensor(%b) : memref<f32[2, 50, 3]>
  %C = memref.alloc() : memref<f32[2, M, 50]>
  scf.parallel(%h = 0 to 2, tag="row") {
    scf.parallel(%i = 0 to M, tag="m") {
      scf.parallel(%j = 0 to 50, tag="n") {
        %zero = arith.constant(0.0) : f32
        %s = scf.for(%k = 0 to 3, %acc = %zero, tag="k") {
          %x = memref.load(%A[%h, %i, %k]) : f32
          %y = memref.load(%B[%h, %j, %k]) : f32
          %t = math.fma(%x, %y, %acc) : f32
          yield %t
        } : f32
        memref.store(%s, %C[%h, %i, %j])
        yield
      }
      yield
    }
    yield
  }
  %c = memref.to_tensor(%C) : f32[2, M, 50]
  return %c
}
"""
    after = run(text, TILES + RUN + PEELS, [((2, m, 3), (2, 50, 3)) for m in (0, 1, 9)])
    assert reads(after, "B.panels")[0] == "%B.panels[%h, %jt floordiv 48, %k, %j-%jt]"


def test_what_the_nest_writes_stays() -> None:
    text = matmul("4", "97", "4").replace("  scf.parallel(%i", "  memref.copy(%B, %D)\n  scf.parallel(%i", 1)
    text = text.replace("  %C = ", "  %D = memref.alloc() : memref<f32[4, 97]>\n  %C = ").replace("load(%B[%k, %j])", "load(%D[%k, %j])")
    assert reads(run(text, TILES + RUN, [((4, 4), (4, 97), (97,))]), "D.panel")
    text = text.replace("memref.store(%r, %C[%i, %j])", "memref.store(%r, %D[%i, %j])").replace("to_tensor(%C)", "to_tensor(%D)")
    before, after = load(text), optimize(text, TILES + RUN)
    assert not reads(after, "D.panel") and before


@pytest.mark.parametrize("index", ["%k, 2*%j", "%k+%j, %j", "%k, %j+%i", "2*%k, %j", "%k, %j+1", "0, %j", "%i, %j"])
def test_other_indices_stay(index: str) -> None:
    text = matmul("2", "97", "2").replace("%b: f32[2, 97]", "%b: f32[200, 200]").replace("memref<f32[2, 97]>\n  %V", "memref<f32[200, 200]>\n  %V")
    text = text.replace("%B[%k, %j]", f"%B[{index}]")
    after = run(text, TILES + RUN, [((2, 2), (200, 200), (97,))])
    assert not reads(after, "B.panel")


@pytest.mark.parametrize("index, panel", [("%k+2, %j", "panel[%k+2"), ("%k, %j+48", "panels[(%jt floordiv 48)+1, %k")])
def test_indices_may_be_moved(index: str, panel: str) -> None:
    text = matmul("2", "97", "2").replace("%b: f32[2, 97]", "%b: f32[200, 200]").replace("memref<f32[2, 97]>\n  %V", "memref<f32[200, 200]>\n  %V")
    text = text.replace("%B[%k, %j]", f"%B[{index}]")
    after = run(text, TILES + RUN + PEELS, [((2, 2), (200, 200), (97,))])
    assert reads(after, "B.panel")[0] == f"%B.{panel}, %j-%jt]"


def test_mostly_padding_is_not_packed() -> None:
    """A few columns in a wide tile: reading them as they are costs less."""
    text = with_weight("M", "3", "5", transposed=True).replace('tag="n"', 'tag="x"')
    text = text.replace("%j = 0 to 3", "%jt = 0 to 3 step 16").replace('tag="x") {', 'tag="n.tile") {\n scf.parallel(%j = %jt to min(%jt+16, 3)) {')
    text = text.replace("%C[%i, %j])\n      yield", "%C[%i, %j])\n      yield } yield")
    assert not reads(run(text, "pack", [((2, 5), (3,))]), "B.panels")


MANY = "pack{loop=n.tile, stored_only=false, rows=5}"


@pytest.mark.parametrize(("m", "packed"), [("4", False), ("5", True), ("16", True)])
def test_known_rows_decide(m: str, packed: bool) -> None:
    text = matmul(m, "100", "3")
    after = run(text, TILES + MANY + PEELS, [((int(m), 3), (3, 100), (100,))])
    assert bool(reads(after, "B.panel")) == packed and "scf.if" not in print_module(after)


@pytest.mark.parametrize("crosswise", [False, True])
def test_near_panels_are_wide(crosswise: bool) -> None:
    """What is copied for many rows is widened then, and not in the loop over steps."""
    shape = (52, 2) if crosswise else (2, 52)
    text = matmul("5", "52", "2").replace("%b: f32[2, 52]", f"%b: f32{[*shape]}")
    buffer = f"  %narrow = cast(%b, dtype=bf16)\n  %B = memref.from_tensor(%narrow) : memref<bf16{[*shape]}>"
    text = text.replace("  %B = memref.from_tensor(%b) : memref<f32[2, 52]>", buffer)
    load = f"memref.load(%B[{'%j, %k' if crosswise else '%k, %j'}]) : bf16\n        %w = arith.extf(%y) : f32"
    text = text.replace("memref.load(%B[%k, %j]) : f32", load).replace("fma(%x, %y,", "fma(%x, %w,")
    after = run(text, TILES + MANY + PEELS, [((5, 2), shape, (52,))])
    assert "memref<f32[2, 48]>" in print_module(after) and reads(after, "B.panel")
    assert not any(op.name == "arith.extf" for loop in after.walk() if loop.name == "scf.for" for op in loop.walk())


def test_unknown_rows_make_two_versions() -> None:
    """Lines of 2 KiB and more, and many of them: the number of rows is looked at when the program runs."""
    text = matmul("M", "512", "64")
    after = run(text, TILES + MANY + PEELS, [])
    (choice,) = [op for op in after.walk() if op.name == "scf.if"]
    first, second = (" ".join(op.operands[0].name for op in r.block.first.walk() if op.name == "memref.load") for r in choice.regions)  # type: ignore[union-attr]
    assert {"B", "B.panel"} <= set(first.split()) and "B.panel" not in second
    assert next(op.results[0].type.shape for op in after.walk() if op.name == "memref.alloc" and "panel" in op.results[0].name) == (64, 48)  # type: ignore[union-attr]
    near = run(matmul("M", "100", "64"), TILES + MANY, [((3, 64), (64, 100), (100,))])
    assert "scf.if" not in print_module(near)


def test_all_sizes_open() -> None:
    """Where the length of lines is open too, it is looked at as well."""
    program = graph_opt.parse("graph @main(%x: f32[M, K], %w: f32[K, N]) {\n  %y = matmul(%x, %w)\n  return %y\n}\n")
    multiply = graph_opt.compile(program)
    assert "scf.if" in print_module(multiply.module)
    numbers = np.random.default_rng(0)
    for m, k, n in ((32, 64, 512), (31, 64, 512), (33, 63, 512), (32, 64, 511), (40, 65, 700), (0, 64, 512), (32, 0, 512), (32, 64, 0), (1, 1, 1)):
        x, w = (numbers.integers(-9, 9, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        assert np.array_equal(multiply(x, w), x @ w), (m, k, n)


def test_both_versions_compute_the_same() -> None:
    """Machine code, whose preset packs for 32 rows or more; whole numbers, so that every order gives the same bits."""
    program = graph_opt.parse("graph @main(%x: f32[M, 70], %w: f32[70, 515]) {\n  %y = matmul(%x, %w)\n  return %y\n}\n")
    assert "scf.if" in print_module(graph_opt.compile(program, pipeline="cpu").module)
    multiply = graph_opt.compile(program)
    numbers = np.random.default_rng(0)
    w = numbers.integers(-9, 9, (70, 515)).astype(np.float32)
    for rows in (0, 1, 31, 32, 33, 64, 100):
        x = numbers.integers(-9, 9, (rows, 70)).astype(np.float32)
        assert np.array_equal(multiply(x, w), x @ w), rows


def test_panels_of_unknown_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room for their lines, they are made in the round that reads them; as columns are cut, so is what fills them."""
    monkeypatch.setattr(pack, "NEAR", 48 * 4 * 6)
    text = matmul("M", "N", "K")
    after = run(text, TILES + MANY + PEELS, [])
    choices = [op for op in after.walk() if op.name == "scf.if"]
    assert len(choices) == 2 and choices[1].block is choices[0].regions[0].block
    panels = [op.results[0].type.shape for op in after.walk() if op.name == "memref.alloc" and "panel" in op.results[0].name]  # type: ignore[union-attr]
    assert panels.count((6, 48)) == 4 and len(panels) == 5, "for whole tiles, 32, 16 and less columns"
    fills = [line.strip() for line in print_module(after).splitlines() if "%B.i.1" in line and 'tag="col"' in line]
    assert [re.sub(r"\.\d", "", f.partition(" = ")[2].partition(",")[0]) for f in fills] == [
        "%jt to %jt+48", "%jt to %jt+32", "%jt to %jt+16", "%jt to min(%jt+16",
    ]  # fmt: skip


@pytest.mark.parametrize(("m", "near"), [("5", True), ("8", True), ("9", False), ("17", False)])
def test_many_rows_are_packed_in_front(m: str, near: bool) -> None:
    """Rows that a cache would lose from one panel to the next: all panels are made in front, so that rows can go in blocks."""
    text = matmul(m, "50", "2")
    after = run(text, TILES + MANY.replace("rows=5", "rows=5, front=9") + PEELS, [((int(m), 2), (2, 50), (50,))])
    shapes = {op.results[0].type.shape for op in after.walk() if op.name == "memref.alloc" and "panel" in op.results[0].name}  # type: ignore[union-attr]
    assert shapes == ({(2, 48)} if near else {(2, 2, 48)}) and "scf.if" not in print_module(after)


def test_unknown_rows_may_be_packed_in_front() -> None:
    """That is looked at in the version for many rows alone."""
    after = optimize(matmul("M", "512", "64"), TILES + MANY.replace("rows=5", "rows=5, front=40") + PEELS)
    many, front = [op for op in after.walk() if op.name == "scf.if"]
    assert front.block is many.regions[0].block

    def sources(region: Region) -> set[str]:
        loads = [op for part in region.block for op in part.walk() if op.name == "memref.load"]
        return {load.operands[0].name.partition(".")[2].rstrip(".123") for load in loads if load.operands[0].name.startswith("B")}

    assert [sources(r) for r in front.regions] == [{"", "panel"}, {"", "panels"}] and sources(many.regions[1]) == {""}


@pytest.mark.parametrize("threads", [1, 2])
def test_machine_code_of_all_versions(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes open, with room for 32 and 24 lines and for less than 130 rows: the bits of a program for few rows, whatever is chosen."""
    monkeypatch.setattr(pack, "NEAR", 48 * 4 * 32)
    program = graph_opt.parse("graph @main(%x: f32[M, K], %w: f32[K, N]) {\n  %y = matmul(%x, %w)\n  return %y\n}\n")
    pipeline = PRESETS["cpu"].replace("versions=2048", "versions=24").replace("block-long-sums{", "block-long-sums{bytes=3000, ")
    pipeline = pipeline.replace("front=600", "front=130")
    multiply = graph_opt.compile(program, pipeline=pipeline, threads=threads)
    assert 'tag="k.block"' in str(multiply) and "N floordiv 64" in str(multiply) and "(129)" in str(multiply)
    rng = np.random.default_rng(0)
    for m, k, n in itertools.product((31, 32, 129, 130), (0, 1, 24, 25, 32, 33, 100), (512, 576, 700)):
        x, w = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
        y = multiply(x, w)
        assert y.shape == (m, n) and np.allclose(y, x @ w, atol=1e-4)
        for row in (0, m // 2, m - 1):
            assert same_bits(multiply(x[row : row + 1], w)[0], y[row]), (m, k, n, row)


@pytest.mark.parametrize(("m", "k"), [("M", "K"), ("64", "2048")])
def test_two_panels_share_the_room(m: str, k: str) -> None:
    """Gate and up: both panels of a round together are near, and on the stack."""
    text = f"graph @main(%x: f32[{m}, {k}], %g: f32[{k}, N], %u: f32[{k}, N]) -> f32[{m}, N] {{\n  %a = matmul(%x, %g)\n  %b = matmul(%x, %u)\n"
    multiply = graph_opt.compile(graph_opt.parse(text + "  %s = silu(%a)\n  %y = mul(%s, %b)\n  return %y\n}\n"))
    rng = np.random.default_rng(0)
    x, g, u = (rng.standard_normal(s, dtype=np.float32) / 9 for s in ((64, 2048), (2048, 512), (2048, 512)))
    a = x @ g
    assert np.allclose(multiply(x, g, u), a / (1 + np.exp(-a)) * (x @ u), atol=1e-4)
