"""peel: whole tiles, smaller ones and a clamped rest cover every element once."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs, matmul, total
from pass_checks import load, optimize

from ir.printer import print_module
from passes.loops._loops import tag_of

TILES = "tile{loop=n, size=48, outside=m},tile{loop=m, size=8},"
ROWS = TILES + "peel{loop=m.tile, sizes=[4, 2, 1]}"
EXACT = TILES + "peel{loop=m.tile, sizes=[4, 2, 1], exact=true}"
BOTH = TILES + "peel{loop=m.tile, sizes=[4, 2, 1]},peel{loop=n.tile, sizes=[32, 16]}"


def loops(text: str, *names: str) -> list[str]:
    """The ranges of loops whose tag is among ``names``."""
    found = [line.strip() for line in text.splitlines() if any(f'tag="{n}"' in line for n in names)]
    return [line.partition("(")[2].rpartition(", tag")[0] for line in found]


@pytest.mark.parametrize("m, n", [(0, 5), (1, 48), (3, 49), (9, 97), (7, 0), (8, 47), (2, 1), (15, 7), (16, 95), (1, 96 + 33)])
def test_matmul_with_static_sizes(m: int, n: int) -> None:
    text = matmul(str(m), str(n), "2")
    assert_same_runs(load(text), optimize(text, BOTH), [((m, 2), (2, n), (n,))])


def test_matmul_with_sizes_of_the_run() -> None:
    text = matmul("M", "N", "K")
    sizes = [(0, 48, 2), (1, 47, 2), (9, 49, 1), (2, 97, 1), (3, 0, 2), (2, 7, 0), (15, 1, 1), (1, 129, 1)]
    assert_same_runs(load(text), optimize(text, BOTH), [((m, k), (k, n), (n,)) for m, n, k in sizes])


@pytest.mark.parametrize("size", [0, 1, 2, 7, 10, 47, 48, 49, 97])
@pytest.mark.parametrize("symbolic", [False, True])
def test_carried_values_and_other_starts(size: int, symbolic: bool) -> None:
    text = total("N" if symbolic else str(size))
    pipeline = "tile{loop=reduce, size=16},tile{loop=col, size=8},peel{loop=reduce.tile, sizes=[4]},peel{loop=col.tile, sizes=[3, 1]}"
    assert_same_runs(load(text), optimize(text, pipeline), [((size,), (3,))])


def test_tiles_of_tiles() -> None:
    pipeline = "tile{loop=m, size=12, outer=m.block},tile{loop=m, size=8},peel{loop=m.tile, sizes=[4, 2, 1]},peel{loop=m.block, sizes=[]}"
    text = matmul("M", "3", "2")
    assert_same_runs(load(text), optimize(text, pipeline), [((m, 2), (2, 3), (3,)) for m in (0, 1, 7, 9, 12, 15, 23, 35)])


def test_text_of_rows() -> None:
    text = print_module(optimize(matmul("M", "1536", "K"), ROWS))
    assert loops(text, "m.tile", "m") == [
        "%it = 0 to M-(M mod 8) step 8",
        "%i = %it to %it+8",
        "%it.1 = M-(M mod 8) to M-(M mod 4) step 4",
        "%i.1 = %it.1 to %it.1+4",
        "%it.2 = M-(M mod 4) to M-(M mod 2) step 2",
        "%i.2 = %it.2 to %it.2+2",
        "%it.3 = M-(M mod 2) to M",
        "%i.3 = %it.3 to %it.3+1",
    ]
    assert loops(text, "n.tile", "n") == ["%jt = 0 to 1536 step 48"] + [f"%j{s} = %jt to %jt+48" for s in ("", ".1", ".2", ".3")]


@pytest.mark.parametrize(
    ("m", "tiles"),
    [
        ("7", ["%it = 0 to 7 step 7", "%i = %it to %it+7"]),
        ("8", ["%it = 0 to 8 step 8", "%i = %it to %it+8"]),
        ("21", ["%it = 0 to 16 step 8", "%i = %it to %it+8", "%it.1 = 16 to 21 step 5", "%i.1 = %it.1 to %it.1+5"]),
        ("17", ["%it = 0 to 16 step 8", "%i = %it to %it+8", "%it.1 = 16 to 17", "%i.1 = %it.1 to %it.1+1"]),
    ],
)
def test_rows_left_over_are_one_tile(m: str, tiles: list[str]) -> None:
    assert loops(print_module(optimize(matmul(m, "96", "3"), EXACT)), "m.tile", "m") == tiles


def test_what_is_left_of_an_open_number_stays_in_pieces() -> None:
    text = matmul("M", "96", "3")
    assert print_module(optimize(text, EXACT)) == print_module(optimize(text, ROWS))


@pytest.mark.parametrize("m", [0, 1, 6, 7, 8, 9, 13, 16, 23])
def test_rows_of_one_tile_are_the_same_numbers(m: int) -> None:
    text = matmul(str(m), "49", "3")
    assert_same_runs(load(text), optimize(text, f"{EXACT},peel{{loop=n.tile, sizes=[32, 16]}}"), [((m, 3), (3, 49), (49,))])


def test_text_of_columns() -> None:
    text = print_module(optimize(matmul("4", "N", "K"), TILES + "peel{loop=n.tile, sizes=[16, 32]}"))
    assert loops(text, "n.tile", "n") == [
        "%jt = 0 to N-(N mod 48) step 48",
        "%j = %jt to %jt+48",
        "%jt.1 = N-(N mod 48) to -((N mod 48) mod 32)+N step 32",
        "%j.1 = %jt.1 to %jt.1+32",
        "%jt.2 = -((N mod 48) mod 32)+N to N-(N mod 16) step 16",
        "%j.2 = %jt.2 to %jt.2+16",
        "%jt.3 = N-(N mod 16) to N step 16",
        "%j.3 = %jt.3 to min(%jt.3+16, N)",
    ]


@pytest.mark.parametrize(
    ("n", "tiles"),
    [
        (96, ["%jt = 0 to 96 step 48"]),
        (97, ["%jt = 0 to 96 step 48", "%jt.1 = 96 to 97 step 16"]),
        (128, ["%jt = 0 to 96 step 48", "%jt.1 = 96 to 128 step 32"]),
        (40, ["%jt = 0 to 32 step 32", "%jt.1 = 32 to 40 step 16"]),
        (10, ["%jt = 0 to 10 step 16"]),
        (0, ["%jt = 0 to 0 step 16"]),
    ],
)
def test_static_extents_have_no_empty_loops(n: int, tiles: list[str]) -> None:
    assert loops(print_module(optimize(matmul("M", str(n), "3"), TILES + "peel{loop=n.tile, sizes=[32, 16]}")), "n.tile") == tiles


def test_the_rest_alone() -> None:
    text = print_module(optimize(matmul("M", "N", "3"), TILES + "peel{loop=n.tile, sizes=[]}"))
    assert loops(text, "n.tile") == ["%jt = 0 to N-(N mod 48) step 48", "%jt.1 = N-(N mod 48) to N step 48"]


BACKWARD = """
graph @main(%x: f32[N]) -> f32[N] {
  %X = memref.from_tensor(%x) : memref<f32[N]>
  %C = memref.alloc() : memref<f32[N]>
  scf.parallel(%jt = 0 to N step 8, tag="n.tile") {
    %T = memref.alloc() : memref<f32[8]>
    scf.parallel(%j = %jt to min(%jt+8, N), tag="n") {
      %v = memref.load(%X[%j]) : f32
      memref.store(%v, %T[%j-%jt])
      yield
    }
    scf.parallel(%j2 = %jt to min(%jt+8, N), tag="n") {
      %w = memref.load(%T[min(%jt+8, N)-1-%j2]) : f32
      memref.store(%w, %C[%j2])
      yield
    }
    yield
  }
  %c = memref.to_tensor(%C) : f32[N]
  return %c
}
"""


def test_tiles_that_depend_on_each_other_inside_stay_whole() -> None:
    after = optimize(BACKWARD, "peel{loop=n.tile, sizes=[4, 1]}")
    assert [tag_of(op) for op in after.walk() if op.name == "scf.parallel"] == ["n.tile", "n", "n"] * 2
    assert_same_runs(load(BACKWARD), after, [((n,),) for n in (0, 1, 7, 8, 9, 23)])


def test_the_variable_elsewhere_is_the_start_of_the_tile() -> None:
    """What counts from the start of a whole tile does so in the pieces too."""
    text = """
graph @main(%x: f32[N floordiv 8 + 1, 8], %y: f32[N]) -> f32[N] {
  %X = memref.from_tensor(%x) : memref<f32[N floordiv 8 + 1, 8]>
  %C = memref.alloc() : memref<f32[N]>
  scf.parallel(%jt = 0 to N step 8, tag="n.tile") {
    scf.parallel(%j = %jt to min(%jt+8, N), tag="n") {
      %v = memref.load(%X[%jt floordiv 8, %j-%jt]) : f32
      memref.store(%v, %C[%j])
      yield
    }
    yield
  }
  %c = memref.to_tensor(%C) : f32[N]
  return %c
}
"""
    after = optimize(text, "peel{loop=n.tile, sizes=[4, 2]}")
    assert len(loops(print_module(after), "n.tile")) == 4
    assert_same_runs(load(text), after, [((n // 8 + 1, 8), (n,)) for n in (0, 1, 7, 8, 9, 15, 22)])


def test_effects_beside_the_inner_loop_happen_once() -> None:
    text = BACKWARD.partition("    scf.parallel(%j2")[0] + """    %o = memref.load(%T[0]) : f32
    memref.store(%o, %C[%jt])
    yield
  }
  %c = memref.to_tensor(%C) : f32[N]
  return %c
}
"""
    text = text.replace("  scf.parallel(%jt", "  memref.copy(%X, %C)\n  scf.parallel(%jt")
    after = optimize(text, "peel{loop=n.tile, sizes=[4, 1]}")
    assert len(loops(print_module(after), "n.tile")) == 2
    assert_same_runs(load(text), after, [((n,),) for n in (0, 1, 7, 8, 9, 23)])


def test_serial_rounds_between_stay_in_order() -> None:
    """With a serial loop between, pieces would run its rounds in another order than whole tiles."""
    text = """
graph @main(%x: f32[N]) -> f32[N] {
  %X = memref.from_tensor(%x) : memref<f32[N]>
  %C = memref.alloc() : memref<f32[N]>
  memref.copy(%X, %C)
  scf.for(%jt = 0 to N step 8, tag="n.tile") {
    scf.for(%k = 0 to 2) {
      scf.for(%j = %jt to min(%jt+8, N), tag="n") {
        %v = memref.load(%C[max(%j-1, 0)]) : f32
        %w = memref.load(%C[min(%j+1, N-1)]) : f32
        %s = arith.addf(%v, %w) : f32
        memref.store(%s, %C[%j])
        yield
      }
      yield
    }
    yield
  }
  %c = memref.to_tensor(%C) : f32[N]
  return %c
}
"""
    after = optimize(text, "peel{loop=n.tile, sizes=[4, 1]}")
    assert len(loops(print_module(after), "n.tile")) == 2
    assert_same_runs(load(text), after, [((n,),) for n in (1, 7, 8, 9, 23)])


def test_rounds_that_meet_only_in_one_place_may_be_split() -> None:
    """Two loops through a tile, the second in a serial loop: every element goes its own way."""
    text = """
graph @main(%x: f32[N]) -> f32[N] {
  %X = memref.from_tensor(%x) : memref<f32[N]>
  %C = memref.alloc() : memref<f32[N]>
  scf.parallel(%jt = 0 to N step 8, tag="n.tile") {
    %T = memref.alloc() : memref<f32[8]>
    scf.parallel(%j = %jt to min(%jt+8, N), tag="n") {
      %v = memref.load(%X[%j]) : f32
      memref.store(%v, %T[%j-%jt])
      yield
    }
    scf.for(%k = 0 to 3) {
      scf.parallel(%j2 = %jt to min(%jt+8, N), tag="n") {
        %w = memref.load(%T[%j2-%jt]) : f32
        %s = arith.addf(%w, %w) : f32
        memref.store(%s, %T[%j2-%jt])
        memref.store(%s, %C[%j2])
        yield
      }
      yield
    }
    yield
  }
  %c = memref.to_tensor(%C) : f32[N]
  return %c
}
"""
    after = optimize(text, "peel{loop=n.tile, sizes=[4, 1]}")
    assert len(loops(print_module(after), "n.tile")) == 3
    assert_same_runs(load(text), after, [((n,),) for n in (0, 1, 7, 8, 9, 23)])


@pytest.mark.parametrize("change", [('yield %t\n', 'yield %u\n'), ("%acc = %run", "%acc = %one")])
def test_what_else_is_done_to_a_carried_value_happens_once(change: tuple[str, str]) -> None:
    text = """
graph @main(%x: f32[N], %z: f32[1]) -> f32[1] {
  %X = memref.from_tensor(%x) : memref<f32[N]>
  %S = memref.alloc() : memref<f32[1]>
  %zero = arith.constant(0.0) : f32
  %one = arith.constant(1.0) : f32
  %sum = scf.for(%it = 0 to N step 8, %run = %zero, tag="n.tile") {
    %t = scf.for(%i = %it to min(%it+8, N), %acc = %run) {
      %v = memref.load(%X[%i]) : f32
      %p = arith.addf(%v, %acc) : f32
      yield %p
    } : f32
    %u = arith.addf(%t, %run) : f32
    yield %t
  } : f32
  memref.store(%sum, %S[0])
  %s = memref.to_tensor(%S) : f32[1]
  return %s
}
"""
    shapes = [((n,), (1,)) for n in (0, 1, 7, 8, 15, 23)]
    for program, count in ((text, 3), (text.replace(*change), 2)):
        after = optimize(program, "peel{loop=n.tile, sizes=[4, 1]}")
        assert len(loops(print_module(after), "n.tile")) == count
        assert_same_runs(load(program), after, shapes)
