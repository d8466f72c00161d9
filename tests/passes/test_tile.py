"""tile: strip-mined loops compute the same bits, and look as the docstring says."""

from __future__ import annotations

import itertools

import pytest
from loop_programs import assert_same_runs, matmul, total
from pass_checks import apply, load, optimize

from ir.core import Operation
from ir.diagnostics import GraphError
from ir.printer import print_module
from passes.loops._loops import ranges, tag_of
from passes.loops._versions import asked_by
from passes.pipelines import load_pipeline

BOTH = "tile{loop=n, size=48, outside=m},tile{loop=m, size=8}"
SIZES = (0, 1, 7, 47, 48, 49, 97)


def headers(text: str) -> list[str]:
    """The lines that open loops, without their indentation."""
    return [line.strip().removesuffix(" {") for line in text.splitlines() if "scf." in line]


@pytest.mark.parametrize("m, n", [(0, 5), (1, 48), (3, 49), (9, 97), (7, 0), (8, 47), (2, 1), (2, 7)])
def test_matmul_with_static_sizes(m: int, n: int) -> None:
    text = matmul(str(m), str(n), "5")
    assert_same_runs(load(text), optimize(text, BOTH), [((m, 5), (5, n), (n,))])


def test_matmul_with_sizes_of_the_run() -> None:
    text = matmul("M", "N", "K")
    shapes = [((m, k), (k, n), (n,)) for m, n, k in [(0, 48, 2), (1, 47, 2), (9, 49, 3), (8, 97, 2), (3, 0, 2), (2, 7, 0), (17, 1, 1)]]
    assert_same_runs(load(text), optimize(text, BOTH), shapes)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_carried_values_pass_through(size: int, symbolic: bool) -> None:
    text = total("N" if symbolic else str(size))
    after = optimize(text, "tile{loop=reduce, size=16},tile{loop=col, size=48}")
    assert_same_runs(load(text), after, [((size,), (3,))])


def test_text() -> None:
    text = print_module(optimize(matmul("M", "1536", "K"), BOTH))
    assert headers(text) == [
        'scf.parallel(%jt = 0 to 1536 step 48, tag="n.tile")',
        'scf.parallel(%it = 0 to M step 8, tag="m.tile")',
        'scf.parallel(%i = %it to min(%it+8, M), tag="m")',
        'scf.parallel(%j = %jt to %jt+48, tag="n")',
        '%s = scf.for(%k = 0 to K, %acc = %zero, tag="k")',
    ]


def test_text_of_a_carrying_loop() -> None:
    text = print_module(optimize(total("N"), "tile{loop=reduce, size=16, outer=blocks}"))
    assert headers(text)[:2] == [
        '%sum, %count = scf.for(%it = 0 to N step 16, %acc.1 = %zero, %c.1 = %one, tag="blocks")',
        '%sum.t, %count.t = scf.for(%i = %it to min(%it+16, N), %acc = %acc.1, %c = %c.1, tag="reduce")',
    ]


def test_a_start_that_is_not_zero_counts() -> None:
    text = print_module(optimize(total("50"), "tile{loop=col, size=48}"))
    assert headers(text)[1:] == [
        'scf.parallel(%jt = 2 to 50 step 48, tag="col.tile")',
        'scf.parallel(%j = %jt to %jt+48, tag="col")',
    ]


@pytest.mark.parametrize("extent, sizes, chosen", [(96, "[64, 48]", 48), (128, "[64, 48]", 64), (100, "[64, 48]", 48), (20, "48", 32), (1, "8", 8)])
def test_choice_of_the_size(extent: int, sizes: str, chosen: int) -> None:
    module = optimize(matmul("M", str(extent), "3"), f"tile{{loop=n, size={sizes}}}")
    tiles = [op for op in module.walk() if op.name == "scf.parallel" and tag_of(op) == "n.tile"]
    assert [ranges(op)[0].step for op in tiles] == [chosen]


def test_an_unknown_extent_takes_the_last_size() -> None:
    text = print_module(optimize(matmul("M", "N", "3"), "tile{loop=n, size=[64, 48]}"))
    assert 'scf.parallel(%jt = 0 to N step 48, tag="n.tile")' in text


def test_tiles_of_tiles() -> None:
    pipeline = "tile{loop=m, size=16, outer=m.block},tile{loop=m, size=8}"
    text = matmul("M", "3", "2")
    after = optimize(text, pipeline)
    assert headers(print_module(after))[:3] == [
        'scf.parallel(%it = 0 to M step 16, tag="m.block")',
        'scf.parallel(%it.1 = %it to min(%it+16, M) step 8, tag="m.tile")',
        'scf.parallel(%i = %it.1 to min(%it.1+8, M), tag="m")',
    ]
    assert_same_runs(load(text), after, [((m, 2), (2, 3), (3,)) for m in (0, 1, 15, 16, 17, 33)])


def test_outside_needs_a_body_without_other_effects() -> None:
    text = matmul("4", "96", "3").replace("    scf.parallel(%j", "    memref.store(%w, %C[%i, 0])\n    scf.parallel(%j")
    text = text.replace("  scf.parallel(%i", "  %w = arith.constant(7.0) : f32\n  scf.parallel(%i")
    after = optimize(text, BOTH)
    tags = [tag_of(op) for op in after.walk() if op.name.startswith("scf.")]
    assert tags == ["m.tile", "m", "n.tile", "n", "k"]
    assert_same_runs(load(text), after, [((4, 3), (3, 96), (96,))])


def test_outside_needs_bounds_from_outside() -> None:
    text = matmul("4", "96", "3").replace("%j = 0 to 96", "%j = %i to 96")
    after = optimize(text, "tile{loop=n, size=48, outside=m}")
    assert [tag_of(op) for op in after.walk() if op.name == "scf.parallel"] == ["m", "n.tile", "n"]


def test_other_loops_stay() -> None:
    text = """
graph @main(%C: memref<f32[S, 8]>) {
  %x = arith.constant(1.0) : f32
  scf.parallel(%i = 0 to S, %j = 0 to 8, tag="n") {
    memref.store(%x, %C[%i, %j])
    yield
  }
  scf.parallel(%i1 = 0 to S step 2, tag="n") {
    memref.store(%x, %C[%i1, 0])
    yield
  }
  return
}
"""
    module = load(text)
    before = print_module(module)
    assert not any(r.changed for r in apply(module, "tile{loop=n, size=4}").records)
    assert print_module(module) == before


def test_no_size_is_an_error() -> None:
    for size in ("0", "[]", "[8, -1]"):
        with pytest.raises(GraphError, match="one round or more"):
            apply(load(total("4")), f"tile{{loop=n, size={size}}}")


def test_comments_stay() -> None:
    text = total("N").replace("  %sum, %count", "  // a sum\n  %sum, %count")
    after = optimize(text, "tile{loop=reduce, size=4}")
    lines = [line.strip() for line in print_module(after).splitlines()]
    at = lines.index("// a sum")
    assert lines[at + 1].endswith('tag="reduce.tile") {')


def test_kinds_of_loops_stay() -> None:
    after = optimize(total("40"), "tile{loop=reduce, size=16},tile{loop=col, size=8}")

    def kind(tag: str) -> list[str]:
        found: list[Operation] = [op for op in after.walk() if op.name.startswith("scf.") and tag_of(op) == tag]
        return [op.name for op in found]

    assert (kind("reduce.tile"), kind("col.tile")) == (["scf.for"], ["scf.parallel"])


FEW = [("1", "192", 64), ("6", "192", 64), ("7", "192", 48), ("M", "192", 48), ("4", "96", 48), ("4", "100", 48), ("4", "N", 48)]


@pytest.mark.parametrize(("m", "n", "size"), FEW)
def test_few_rows(m: str, n: str, size: int) -> None:
    """Rows that do not fill a tile leave the choice, and the widest size that divides is taken."""
    text = matmul(m, n, "3")
    after = optimize(text, "tile{loop=n, size=[48, 64, 48], outside=m, rounds=48, few=6}")
    assert f'step {size}, tag="n.tile"' in print_module(after)
    rows, columns = int(m.replace("M", "2")), int(n.replace("N", "50"))
    assert_same_runs(load(text), after, [((rows, 3), (3, columns), (columns,))])


@pytest.mark.parametrize(("m", "memory", "size"), [("1", 2303, 48), ("1", 2304, 64), ("2", 2303, 64), ("M", 2303, 48)])
def test_one_row_and_a_matrix_from_memory(m: str, memory: int, size: int) -> None:
    """3 lines of 192 numbers are 2304 bytes."""
    after = optimize(matmul(m, "192", "3"), f"tile{{loop=n, size=[48, 64, 48], outside=m, rounds=48, few=6, memory={memory}}}")
    assert f'step {size}, tag="n.tile"' in print_module(after)


@pytest.mark.parametrize(("n", "rows"), [("48", 8), ("64", 6), ("96", 8), ("640", 6), ("7", 8)])
def test_area(n: str, rows: int) -> None:
    """What the registers hold: 8 rows of 48 columns, 6 of 64."""
    after = optimize(matmul("M", n, "3"), "tile{loop=n, size=[48, 64, 48], outside=m},tile{loop=m, size=8, area=384}")
    assert f'step {rows}, tag="m.tile"' in print_module(after)
    with pytest.raises(GraphError, match="an area is 0"):
        load_pipeline("tile{area=-1}")


@pytest.mark.parametrize(("rows", "size"), [("47", 48), ("48", 64), ("M", 48)])
def test_rounds(rows: str, size: int) -> None:
    """A choice among sizes only where many rows are known."""
    after = optimize(matmul(rows, "640", "3"), "tile{loop=n, size=[48, 64, 48], outside=m, rounds=48}")
    assert f'step {size}, tag="n.tile"' in print_module(after)
    after = optimize(matmul(rows, "64", "3"), "tile{loop=n, size=[48, 64, 48], outside=m, rounds=48}")
    assert 'step 64, tag="n.tile"' in print_module(after), "a remainder of 16 columns would be a quarter of the work"


def test_across() -> None:
    """Few lines at a time where they are read along another loop, and nothing reads them again."""

    def size(text: str) -> str:
        lowered = print_module(optimize(text, "lower-to-linalg,fuse,lower-to-loops,tile{loop=n, size=48, outside=m, across=16}"))
        return lowered.split(', tag="n.tile"')[0].rsplit("step ", 1)[1]

    text = "graph @main(%a: f32[{}, K], %b: f32[N, K]) -> f32[{}, N] {{\n  %t = transpose(%b, perm=[1, 0])\n  %c = matmul(%a, %t)\n  return %c\n}}\n"
    plain = "graph @main(%a: f32[{}, K], %b: f32[K, N]) -> f32[{}, N] {{\n  %c = matmul(%a, %b)\n  return %c\n}}\n"
    assert (size(text.format(1, 1)), size(text.format(9, 9)), size(plain.format(1, 1))) == ("16", "48", "48")


@pytest.mark.parametrize(("m", "n", "k", "asked"), [
    ("M", "N", "K", ["M", "-K+9", "N", "-(N mod 6)+6", "N mod 4"]),
    ("8", "N", "9", ["N", "-(N mod 6)+6", "N mod 4"]),
    ("7", "N", "K", []),  # few rows
    ("M", "N", "10", []),  # too many lines
    ("M", "12", "K", []),  # known
])  # fmt: skip
def test_versions_of_unknown_columns(m: str, n: str, k: str, asked: list[str]) -> None:
    """A wide tile for what it divides and the other does not, and many rows and columns, and few lines."""
    text = matmul(m, n, k)
    after = optimize(text, "tile{loop=n, size=[4, 6, 4], outside=m, rounds=8, versions=9}")
    choices = [op for op in after.walk() if op.name == "scf.if"]
    assert len(choices) == (1 if asked else 0)
    if asked:
        assert [str(size) for size, _ in asked_by(choices[0].operands[0])] == asked
        assert [op.attributes["tag"] for r in choices[0].regions for op in r.block if op.name == "scf.parallel"] == ["n.tile", "n.tile"]
        assert "to 6*(N floordiv 6) step 6" in print_module(after) and "to N step 4" in print_module(after)
    known = {"M": (8,), "N": (48, 54, 50), "K": (1,)}
    for rows, columns, steps in itertools.product(*(known.get(s, (int(s) if s.isdigit() else 0,)) for s in (m, n, k))):
        assert_same_runs(load(text), after, [((rows, steps), (steps, columns), (columns,))])


def test_a_single_number_is_no_line() -> None:
    """A load without indices in a nest with open sizes."""
    text = matmul("M", "N", "K").replace("  %A = ", "  %single = memref.alloc() : memref<f32[]>\n  %A = ", 1)
    text = text.replace("        %x = ", "        %o = memref.load(%single[]) : f32\n        %x = ", 1)
    assert "memref.load(%single[])" in text
    assert "scf.if" in print_module(optimize(text, "tile{loop=n, size=[4, 6, 4], outside=m, rounds=8, versions=9}"))
