"""parallelize: the outermost parallel loop of every nest with enough work is shared."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs, matmul, total
from pass_checks import apply, load, optimize

from ir.core import Module
from ir.printer import print_module
from passes.loops._loops import ranges, tag_of

TILES = "tile{loop=n, size=48, outside=m},tile{loop=m, size=8},"


def shared(module: Module) -> list[str]:
    """Tags of the loops that are shared."""
    return [tag_of(op) for op in module.walk() if op.attributes.get("mapping") == "threads"]


def kinds(module: Module) -> list[str]:
    """Loops with their tags, in order."""
    return [f"{op.definition.name} {tag_of(op)}" for op in module.walk() if op.name in ("scf.for", "scf.parallel")]


def copies(rows: str, columns: str, *, step: int = 1, outer: str = "parallel") -> str:
    """A nest of two loops that moves elements."""
    return f"""
graph @main(%x: f32[{rows}, {columns}]) -> f32[{rows}, {columns}] {{
  %X = memref.from_tensor(%x) : memref<f32[{rows}, {columns}]>
  %C = memref.alloc() : memref<f32[{rows}, {columns}]>
  scf.{outer}(%i = 0 to {rows} step {step}, tag="row") {{
    scf.parallel(%j = 0 to {columns}, tag="col") {{
      %v = memref.load(%X[%i, %j]) : f32
      memref.store(%v, %C[%i, %j])
      yield
    }}
    yield
  }}
  %c = memref.to_tensor(%C) : f32[{rows}, {columns}]
  return %c
}}
"""


def test_the_outermost_loop_is_shared() -> None:
    after = optimize(matmul("M", "1536", "K"), TILES + "parallelize")
    assert 'scf.parallel(%jt = 0 to 1536 step 48, tag="n.tile", mapping="threads", work=' in print_module(after)
    assert shared(after) == ["n.tile"]


def test_the_numbers_stay() -> None:
    text = matmul("M", "N", "K")
    pipeline = TILES + "peel{loop=m.tile, sizes=[4, 2, 1]},peel{loop=n.tile, sizes=[16]},parallelize{work=1}"
    shapes = [((m, 2), (2, n), (n,)) for m, n in [(0, 3), (3, 0), (1, 1), (15, 49), (9, 97)]]
    assert_same_runs(load(text), optimize(text, pipeline), shapes)


@pytest.mark.parametrize(("rows", "columns", "work", "tags"), [
    ("8", "8", 16384, []),
    ("8", "8", 576, ["row"]),
    ("8", "8", 577, []),
    ("B", "8", 16384, ["row"]),
    ("64", "N", 16384, ["row"]),
    ("0", "N", 1, []),
    ("128", "64", 16384, ["row"]),
])  # fmt: skip
def test_work_decides(rows: str, columns: str, work: int, tags: list[str]) -> None:
    assert shared(optimize(copies(rows, columns), f"parallelize{{work={work}}}")) == tags


def test_expensive_operations_count_more() -> None:
    text = copies("8", "8").replace("memref.store(%v", "%e = math.exp(%v) : f32\n      memref.store(%e")
    assert shared(optimize(text, f"parallelize{{work={25 * 64}}}")) == ["row"]
    assert not shared(optimize(text, f"parallelize{{work={25 * 64 + 1}}}"))


def test_vectors_count_by_machine_vectors() -> None:
    text = """
graph @main(%X: memref<f32[4, 160]>, %C: memref<f32[4, 160]>) {
  scf.parallel(%i = 0 to 4) {
    %v = vector.load(%X[%i, 0:+160]) : vector<f32[1, 160]>
    vector.store(%v, %C[%i, 0:+160])
    yield
  }
  return
}
"""
    assert shared(optimize(text, "parallelize{work=360}")) == [""]
    assert not shared(optimize(text, "parallelize{work=361}"))


@pytest.mark.parametrize("rows", ["1", "2", "3"])
def test_a_short_loop_changes_places(rows: str) -> None:
    text = copies(rows, "N")
    after = optimize(text, "parallelize")
    assert kinds(after) == ["parallel col", "parallel row"]
    assert shared(after) == ["col"]
    assert_same_runs(load(text), after, [((int(rows), n),) for n in (0, 1, 7)])


def test_a_short_loop_with_a_short_one_inside_is_shared() -> None:
    assert shared(optimize(copies("3", "2"), "parallelize{work=1}")) == ["row"]
    assert shared(optimize(copies("1", "2"), "parallelize{work=1}")) == []


def test_what_is_short_can_be_said() -> None:
    text = copies("6", "N")
    assert shared(optimize(text, "parallelize")) == ["row"]
    assert shared(optimize(text, "parallelize{few=7}")) == ["col"]


def test_bounds_that_depend_keep_their_place() -> None:
    text = copies("3", "900").replace("%j = 0 to", "%j = %i to")
    assert shared(optimize(text, "parallelize{work=1}")) == ["col"]
    assert kinds(optimize(text, "parallelize{work=1}")) == ["for row", "parallel col"]


def test_serial_loops_and_choices_around() -> None:
    text = copies("B", "900", outer="for")
    assert shared(optimize(text, "parallelize{work=1000}")) == ["col"]
    assert not shared(optimize(text, "parallelize{work=100000}"))
    choice = copies("B", "900").replace("  scf.parallel(%i", "  %t = arith.constant(true) : bool\n  scf.if(%t) {\n  scf.parallel(%i")
    choice = choice.replace("  %c = ", "  yield\n  }\n  %c = ")
    assert shared(optimize(choice, "parallelize")) == ["row"]


def test_loops_that_carry_values_run_alone() -> None:
    assert shared(optimize(total("N"), "parallelize")) == ["col"]


def test_pieces_of_columns_share_rows() -> None:
    """The last tile of columns is one round; its rows are many."""
    text = matmul("M", "80", "K")
    after = optimize(text, TILES + "peel{loop=m.tile, sizes=[4, 2, 1]},peel{loop=n.tile, sizes=[32]},parallelize")
    assert [k for k in kinds(after) if "n.tile" in k or "m.tile" in k] == ["for n.tile", *["parallel m.tile"] * 4] * 2
    assert 'scf.parallel(%it = 0 to M-(M mod 8) step 8, tag="m.tile", mapping="threads", work=' in print_module(after)
    assert set(shared(after)) == {"m.tile"}
    assert_same_runs(load(text), after, [((m, 2), (2, 80), (80,)) for m in (0, 1, 15)])


def test_what_all_threads_run_has_no_memory_of_its_own() -> None:
    """Memory inside a loop belongs to the thread that runs it, so such a loop is not opened."""
    text = copies("2", "900").replace("    scf.parallel(%j", "    %T = memref.alloc() : memref<f32[4]>\n    scf.parallel(%j")
    assert shared(optimize(text, "parallelize{work=1}")) == ["row"]


def test_memory_made_in_a_serial_loop_is_not_shared() -> None:
    text = copies("B", "900", outer="for").replace("    scf.parallel(%j", "    %T = memref.alloc() : memref<f32[4]>\n    scf.parallel(%j")
    assert not shared(optimize(text, "parallelize{work=1}"))


def test_twice_changes_nothing() -> None:
    module = load(copies("3", "900"))
    assert any(r.changed for r in apply(module, "parallelize{work=1}").records)
    assert not any(r.changed for r in apply(module, "parallelize{work=1}").records)


@pytest.mark.parametrize(("rows", "columns", "work"), [
    ("64", "1000", "576000"),
    ("B", "8", "72*B"),
    ("B", "C", "9*B*C"),
    ("B", "C+1", "9*B*C+9*B"),
])  # fmt: skip
def test_the_work_is_written_down(rows: str, columns: str, work: str) -> None:
    text = copies(rows, columns)
    after = optimize(text, "parallelize")
    assert f'tag="row", mapping="threads", work={work})' in print_module(after)
    assert print_module(load(print_module(after))) == print_module(after)


def test_work_that_nobody_knows_is_left_out() -> None:
    text = copies("B", "C").replace("scf.parallel(%j = 0 to C", "scf.parallel(%j = 0 to C step %i + 1")
    assert 'tag="row", mapping="threads")' in print_module(optimize(text, "parallelize"))


def test_steps_round_up() -> None:
    assert 'mapping="threads", work=72*(B ceildiv 16))' in print_module(optimize(copies("B", "8", step=16), "parallelize"))


def merged(text: str, options: str = "") -> list[list[str]]:
    """The ranges of the loops that are shared."""
    module = optimize(text, f"parallelize{options}")
    return [[f"{r.start} to {r.stop}" for r in ranges(op)] for op in module.walk() if op.attributes.get("mapping") == "threads"]


def nest_of_three(outer: str, middle: str, *, inner: str = "600") -> str:
    text = copies(middle, inner).replace("graph @main(", f"graph @main(%e: f32[{outer}], ")
    text = text.replace("  scf.parallel(%i", f"  scf.parallel(%h = 0 to {outer}) {{\n  scf.parallel(%i")
    return text.replace("  %c = ", "  yield\n  }\n  %c = ")


@pytest.mark.parametrize(("outer", "middle", "inner", "wanted"), [
    ("B", "9", "600", ["0 to B", "0 to 9"]),
    ("9", "5", "6000", ["0 to 9", "0 to 5"]),
    ("9", "5", "400", ["0 to 9"]),
    ("16", "5", "6000", ["0 to 16"]),
    ("B", "9", "N", ["0 to B", "0 to 9"]),
    ("B", "9", "50", ["0 to B"]),
    ("5", "N", "6000", ["0 to 5", "0 to N"]),
])  # fmt: skip
def test_short_loops_are_merged(outer: str, middle: str, inner: str, wanted: list[str]) -> None:
    text = nest_of_three(outer, middle, inner=inner)
    assert merged(text) == [wanted]
    if inner.isdigit():
        assert merged(text, "{grain=1000000000}") == [[wanted[0]]]


def test_bounds_that_depend_are_not_merged() -> None:
    text = nest_of_three("B", "9", inner="6000").replace("%i = 0 to 9", "%i = %h to 9")
    assert merged(text) == [["0 to B"]]


def test_merged_loops_do_the_same() -> None:
    text = """
graph @main(%x: f32[B, 3, S]) -> f32[B, 3, S] {
  %X = memref.from_tensor(%x) : memref<f32[B, 3, S]>
  %C = memref.alloc() : memref<f32[B, 3, S]>
  scf.parallel(%b = 0 to B) {
    scf.parallel(%h = 0 to 3) {
      scf.parallel(%s = 0 to S) {
        %v = memref.load(%X[%b, 2 - %h, %s]) : f32
        memref.store(%v, %C[%b, %h, %s])
        yield
      }
      yield
    }
    yield
  }
  %c = memref.to_tensor(%C) : f32[B, 3, S]
  return %c
}
"""
    after = optimize(text, "parallelize")
    assert "scf.parallel(%b = 0 to B, %h = 0 to 3, mapping=\"threads\", work=27*B*S)" in print_module(after)
    assert_same_runs(load(text), after, [((b, 3, s),) for b in (0, 1, 4) for s in (0, 1, 5)])


def test_work_of_bounds_that_are_values() -> None:
    text = copies("B", "C").replace("    scf.parallel(%j = 0 to C", "    %n = affine.min(2*%i + 1, C) : index\n    scf.parallel(%j = 0 to %n")
    assert 'tag="row", mapping="threads", work=9*B*C+B)' in print_module(optimize(text, "parallelize"))
