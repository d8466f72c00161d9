"""shrink-buffers: temporaries of the size of one round; same bits, and the reasons why they stay."""

from __future__ import annotations

import pytest
from memory_programs import assert_same_memory, changed, left, program
from pass_checks import load, optimize

from ir.core import Module

SHRINK = "shrink-buffers"
SIZES = [{"M": m, "N": n} for m, n in [(9, 5), (8, 3), (1, 1), (0, 4), (17, 2)]]
TILES = """
  %T = memref.alloc() : memref<f32[M, N]>
  scf.parallel(%it = 0 to M step 8) {
    scf.parallel(%jt = 0 to N step 4) {
      scf.parallel(%i = %it to min(%it+8, M), %j = %jt to min(%jt+4, N)) {
        %a = memref.load(%A[%i, %j]) : f32
        memref.store(%a, %T[%i, %j])
        yield
      }
      scf.parallel(%p = %it to min(%it+8, M), %q = %jt to min(%jt+4, N)) {
        %t = memref.load(%T[%p, %q]) : f32
        %e = math.exp(%t) : f32
        memref.store(%e, %C[%p, %q])
        yield
      }
      yield
    }
    yield
  }"""


def shapes(module: Module) -> list[str]:
    """Types of all buffers, with the depth of their place."""
    found = []
    for op in module.walk():
        if op.name == "memref.alloc":
            depth, block = 0, op.block
            while block is not None and block.parent is not None and block.parent.parent is not None:
                depth, block = depth + 1, block.parent.parent.block
            found.append(f"{depth} {op.result.type}")
    return found


def test_tiles() -> None:
    text = program(TILES)
    assert shapes(load(text)) == ["0 memref<f32[M, N]>"]
    assert shapes(changed(text, SHRINK, SIZES)) == ["2 memref<f32[8, 4]>"]


def test_text() -> None:
    assert """\
    scf.parallel(%jt = 0 to N step 4) {
      %T = memref.alloc() : memref<f32[8, 4]>
      scf.parallel(%i = %it to min(%it+8, M), %j = %jt to min(%jt+4, N)) {
        %a = memref.load(%A[%i, %j]) : f32
        memref.store(%a, %T[%i-%it, %j-%jt])
""" in str(optimize(program(TILES), SHRINK))


def test_neighbours_in_the_tile() -> None:
    """Windows that begin at different places."""
    text = program(TILES.replace("%i = %it to min(%it+8, M)", "%i = max(%it-1, 0) to min(%it+8, M)"))
    assert left(text, SHRINK) == ["buffers left: rounds share elements"]
    moved = TILES.replace("f32[M, N]>", "f32[M+2, N]>", 1).replace("%T[%i,", "%T[%i+1,").replace("%T[%p,", "%T[%p+2,")
    after = changed(program(moved.replace("%p = %it to min(%it+8, M)", "%p = %it to min(%it+7, M-1)")), SHRINK, SIZES)
    assert shapes(after) == ["2 memref<f32[8, 4]>"]
    assert "%T[%i-%it, %j-%jt]" in str(after) and "%T[-%it+%p+1, -%jt+%q]" in str(after)


def test_the_loop_that_shares() -> None:
    """Rows are read across the column tiles: the buffer moves into the outer loop only, and only when its size is known."""
    text = program(TILES.replace("%T[%p, %q]", "%T[%p, 0]").replace("scf.parallel(%jt", "scf.for(%jt"))
    assert left(text, SHRINK) == ["buffers left: rounds share elements"]
    known = text.replace("N]>", "6]>").replace("to N", "to 6").replace(", N)", ", 6)")
    assert shapes(changed(known, SHRINK, SIZES)) == ["1 memref<f32[8, 6]>"]


def test_rounds_of_a_serial_loop() -> None:
    """What the round before has written must stay."""
    text = program("""
  %T = memref.alloc() : memref<f32[2]>
  %zero = arith.constant(0.0) : f32
  scf.for(%i = 0 to M) {
    %a = memref.load(%A[%i, 0]) : f32
    {}
    memref.store(%a, %T[0])
    %t = memref.load(%T[0]) : f32
    memref.store(%t, %C[%i, 0])
    yield
  }""")
    assert shapes(changed(text.replace("{}", ""), SHRINK, SIZES)) == ["1 memref<f32[1]>"]
    read = text.replace("{}", "%u = memref.load(%T[0]) : f32\nmemref.store(%u, %A[%i, 0])").replace("f32[2]", "f32[1]")
    assert left(read, SHRINK) == ["buffers left: rounds share elements"]


def test_scalars() -> None:
    """With forward-stores a buffer that is stored and read at one point is no buffer."""
    text = program("""
  %T = memref.alloc() : memref<f32[M, N]>
  scf.parallel(%i = 0 to M) {
    scf.parallel(%j = 0 to N) {
      %a = memref.load(%A[%i, %j]) : f32
      memref.store(%a, %T[%i, %j])
      %t = memref.load(%T[%i, %j]) : f32
      %e = math.exp(%t) : f32
      memref.store(%e, %C[%i, %j])
      yield
    }
    yield
  }""")
    assert shapes(changed(text, SHRINK, SIZES)) == ["2 memref<f32[1, 1]>"]
    assert shapes(changed(text, f"{SHRINK},forward-stores", SIZES)) == []


def test_vectors() -> None:
    text = program("""
  %T = memref.alloc() : memref<f32[M, 16]>
  scf.parallel(%i = 0 to M) {
    scf.parallel(%j = 0 to 16 step 4) {
      %a = vector.load(%A[%i, %j:+4]) : vector<f32[1, 4]>
      vector.store(%a, %T[%i, %j:+4])
      yield
    }
    scf.parallel(%k = 0 to 16) {
      %t = memref.load(%T[%i, -%k+15]) : f32
      memref.store(%t, %C[%i, %k])
      yield
    }
    yield
  }""", "%A: memref<f32[M, 16]>, %C: memref<f32[M, 16]>")
    assert shapes(changed(text, SHRINK, SIZES)) == ["1 memref<f32[1, 16]>"]


@pytest.mark.parametrize(
    ("old", "new", "options", "reason"),
    [
        ("%jt = 0", "%jt = 0", "{limit=127}", "the part of a round is too large"),
        ("  scf.parallel(%it", "  memref.copy(%A, %T)\n  scf.parallel(%it", "", "used as a whole"),
        ("%j = %jt to min(%jt+4, N)", "%j = %jt to N", "", "rounds share elements"),
        ("%T[%p, %q]", "%T[%p*%p, %q]", "", "rounds share elements"),
    ],
)
def test_reasons(old: str, new: str, options: str, reason: str) -> None:
    found = left(program(TILES.replace(old, new, 1)), SHRINK + options)
    assert found == [f"buffers left: {reason}"]


def test_rows_of_unknown_size() -> None:
    text = TILES.replace("%jt = 0 to N step 4", "%jt = 0 to 1").replace("min(%jt+4, N)", "N")
    assert left(program(text), SHRINK) == ["buffers left: the part of a round is not known"]


def test_after_fission() -> None:
    """A scalar that waits between two bands needs a tile only."""
    text = program("""
  %T = memref.alloc() : memref<f32[M, N]>
  scf.parallel(%i = 0 to M, tag="m") {
    scf.parallel(%j = 0 to N, tag="n") {
      %a = memref.load(%A[%i, %j]) : f32
      memref.store(%a, %T[%i, %j])
      %zero = arith.constant(0.0) : f32
      %s = scf.for(%k = 0 to N, %acc = %zero, tag="k") {
        %x = memref.load(%A[%i, %k]) : f32
        %y = math.fma(%x, %x, %acc) : f32
        yield %y
      } : f32
      %t = memref.load(%T[%i, %j]) : f32
      %d = arith.divf(%t, %s) : f32
      memref.store(%d, %C[%i, %j])
      yield
    }
    yield
  }""")
    module = load(text)
    tiled = optimize(text, "tile{loop=m, size=8},tile{loop=n, size=4},interchange{outer=m, inner=n.tile}")
    after = optimize(str(optimize(str(tiled), "fission{loops=[m, n], after=k}")), SHRINK)
    assert shapes(after) == ["2 memref<f32[8, 4]>"]
    assert_same_memory(module, after, SIZES)
