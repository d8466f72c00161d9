"""fission: the epilogue of a reduction in a band of its own; same bits, and the reasons where it can't be."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs, matmul
from memory_programs import assert_same_memory, changed, left, program
from pass_checks import load, optimize

from ir.core import Module
from passes.loops._loops import is_loop, tag_of

SPLIT = "fission{loops=[m, n], after=k}"
TILES = "tile{loop=m, size=8},tile{loop=n, size=48},interchange{outer=m, inner=n.tile}"
SIZES = [{"M": 3, "N": 4}, {"M": 1, "N": 5}, {"M": 0, "N": 2}, {"M": 9, "N": 3}]
SHAPES = [((m, k), (k, n), (n,)) for m, n, k in [(9, 49, 3), (1, 47, 2), (8, 48, 0), (0, 3, 2)]]


def tags(module: Module) -> list[str]:
    return [tag_of(op) for op in module.walk() if is_loop(op)]


def band(body: str, parameters: str = "%A: memref<f32[M, N]>, %C: memref<f32[M, N]>") -> str:
    """A sum over a row inside a band, ``%s``, and what is done with it."""
    return program(
        f"""
  scf.parallel(%i = 0 to M, tag="m") {{
    scf.parallel(%j = 0 to N, tag="n") {{
      %zero = arith.constant(0.0) : f32
      %s = scf.for(%k = 0 to N, %acc = %zero, tag="k") {{
        %a = memref.load(%A[%i, %k]) : f32
        %t = math.fma(%a, %a, %acc) : f32
        yield %t
      }} : f32
{body}
      yield
    }}
    yield
  }}""",
        parameters,
    )


def allocs(module: Module) -> list[str]:
    return [str(op.result.type) for op in module.walk() if op.name == "memref.alloc"]


@pytest.mark.parametrize("tiles", ["", f"{TILES},"])
def test_matmul(tiles: str) -> None:
    text = matmul("M", "N", "K")
    after = optimize(text, f"{tiles}{SPLIT}") if not tiles else optimize(str(optimize(text, TILES)), SPLIT)
    assert_same_runs(load(text), after, SHAPES)
    assert tags(after)[-5:] == ["m", "n", "k", "m.e", "n.e"]
    assert allocs(after) == ["memref<f32[M, N]>"]


def test_rows() -> None:
    """A band of one loop."""
    after = optimize(matmul("M", "N", "K"), "fission{loops=n, after=k, suffix=.x}")
    assert tags(after) == ["m", "n", "k", "n.x"]
    assert_same_runs(load(matmul("M", "N", "K")), after, SHAPES)


def test_a_value_that_is_read_again_waits_in_a_buffer() -> None:
    body = """
      %old = memref.load(%C[%i, %j]) : f32
      %r = arith.addf(%old, %s) : f32
      memref.store(%r, %C[%i, %j])"""
    text = band(body)
    assert allocs(changed(text, SPLIT, SIZES)) == ["memref<f32[M, N]>"]
    assert allocs(changed(text.replace("to M", "to min(M, 2)"), SPLIT, SIZES)) == ["memref<f32[2, N]>"]
    tiled = optimize(str(optimize(text, TILES)), SPLIT)
    assert allocs(tiled) == ["memref<f32[8, 48]>"]
    assert_same_memory(load(text), tiled, [*SIZES, {"M": 9, "N": 49}])


def test_another_element_type_waits_in_a_buffer() -> None:
    body = "%r = arith.truncf(%s) : f16\nmemref.store(%r, %C[%i, %j])"
    after = changed(band(body, "%A: memref<f32[M, N]>, %C: memref<f16[M, N]>"), SPLIT, SIZES)
    assert allocs(after) == ["memref<f32[M, N]>"]


def test_two_values() -> None:
    """One waits in the output, one in a buffer."""
    body = """
      %p = scf.for(%k2 = 0 to N, %acc2 = %zero, tag="k") {
        %b = memref.load(%A[%i, %k2]) : f32
        %u = arith.maximumf(%b, %acc2) : f32
        yield %u
      } : f32
      %r = arith.subf(%s, %p) : f32
      memref.store(%r, %C[%i, %j])"""
    after = changed(band(body), SPLIT, SIZES)
    assert allocs(after) == ["memref<f32[M, N]>"]
    assert tags(after) == ["m", "n", "k", "k", "m.e", "n.e"]

    def in_first_band(body: str) -> list[str]:
        text = band(body.replace("%C[", "%X[")).replace("  scf.parallel(%i", "  %X = memref.alloc() : memref<f32[M, N]>\n  scf.parallel(%i", 1)
        after = changed(text.replace("  return", "  memref.copy(%X, %C)\n  return"), SPLIT, SIZES)
        return next([inner.name for inner in op.regions[0].block] for op in after.walk() if tag_of(op) == "n")

    assert in_first_band(body)[1:5] == ["scf.for", "memref.store", "scf.for", "memref.store"]
    reads = body.replace("%A[%i, %k2]", "%C[%i, %j]")  # the output is still read behind the first value
    reads = reads.replace("%p = scf", "memref.store(%zero, %C[%i, %j])\n%p = scf")
    assert in_first_band(reads)[1:6] == ["scf.for", "memref.store", "scf.for", "memref.store", "memref.store"]


def test_two_outputs() -> None:
    parameters = "%A: memref<f32[M, N]>, %C: memref<f32[M, N]>"
    body = """
      %e = math.exp(%s) : f32
      memref.store(%s, %X[%i, %j])
      memref.store(%e, %C[%i, %j])"""
    text = band(body, parameters).replace("  scf.parallel(%i", "  %X = memref.alloc() : memref<f32[M, N]>\n  scf.parallel(%i", 1)
    assert allocs(changed(text, SPLIT, SIZES)) == ["memref<f32[M, N]>"]


def test_what_only_the_epilogue_needs_moves_there() -> None:
    text = band("%r = arith.mulf(%s, %b) : f32\n%q = arith.addf(%r, %zero) : f32\nmemref.store(%q, %C[%i, %j])")
    text = text.replace("      %zero =", "      %b = memref.load(%A[%i, %j]) : f32\n      %zero =", 1)
    after = changed(text, SPLIT, SIZES)
    names = [[op.name for op in loop.regions[0].block] for loop in after.walk() if tag_of(loop) in ("n", "n.e")]
    assert names == [
        ["arith.constant", "scf.for", "memref.store", "graph.yield"],
        ["memref.load", "arith.constant", "memref.load", "arith.mulf", "arith.addf", "memref.store", "graph.yield"],
    ]


def test_a_load_does_not_move_behind_a_store() -> None:
    """What is loaded in front of a store to the same element is kept."""
    parameters = "%A: memref<f32[M, N]>, %C: memref<f32[M, N]>, %D: memref<f32[M, N]>"
    text = band("%r = arith.mulf(%s, %old) : f32\nmemref.store(%r, %D[%i, %j])", parameters)
    for operands in ("%old, %old", "%one, %one"):  # the value is needed in both parts, or in the second one only
        before = f"""
      %one = arith.constant(1.0) : f32
      %old = memref.load(%C[%i, %j]) : f32
      %twice = arith.addf({operands}) : f32
      memref.store(%twice, %C[%i, %j])
      %zero ="""
        after = changed(text.replace("      %zero =", before, 1), SPLIT, SIZES)
        first = next(op for op in after.walk() if tag_of(op) == "n")
        assert "memref.load" in [op.name for op in first.regions[0].block]


def test_an_index_that_is_computed() -> None:
    """The scalar can't wait in an element that only the epilogue knows."""
    body = """
      %nothing = arith.constant(0) : index
      %row = arith.addi(%i, %nothing) : index
      %r = math.exp(%s) : f32
      memref.store(%r, %C[%row, %j])"""
    assert allocs(changed(band(body), SPLIT, SIZES)) == ["memref<f32[M, N]>"]


def test_reasons() -> None:
    body = "%o = memref.load(%C[%i, %j]) : f32\n%r = arith.addf(%o, %s) : f32\nmemref.store(%r, %C[%i, %j])"
    outer = band(body).replace('  scf.parallel(%i = 0 to M, tag="m") {', '  scf.for(%z = 0 to 2) {\n  scf.parallel(%i = 0 to M, tag="m") {')
    outer = outer.replace("  return", "yield }\n  return")
    assert left(outer, SPLIT) == ["bands not split: the size of the band is not known"]
    body = "%q = vector.extract(%v, position=[0, 0]) : f32\n%r = arith.addf(%q, %s) : f32\nmemref.store(%r, %C[%i, %j])"
    load_row = "%v = vector.load(%A[%i, 0:+2]) : vector<f32[1, 2]>\n%zero ="
    element = "%w = vector.extract(%v, position=[0, 1]) : f32\n%t = math.fma(%a, %w, %acc)"
    vector = band(body).replace("%zero =", load_row, 1).replace("%t = math.fma(%a, %a, %acc)", element)
    assert left(vector, SPLIT) == ["bands not split: a value that is no scalar is needed in both parts"]


def test_nothing_to_split() -> None:
    assert left(band("memref.store(%s, %C[%i, %j])"), SPLIT) == []
    serial = band("%r = math.exp(%s) : f32\nmemref.store(%r, %C[%i, %j])").replace("scf.parallel", "scf.for")
    assert left(serial, SPLIT) == []


def test_text() -> None:
    text = band("%r = math.exp(%s) : f32\nmemref.store(%r, %C[%i, %j])").replace("0 to M", "0 to 8").replace('"m")', '"m", mapping="threads")')
    assert str(optimize(text, SPLIT)) == program("""\
  scf.parallel(%i = 0 to 8, tag="m", mapping="threads") {
    scf.parallel(%j = 0 to N, tag="n") {
      %zero = arith.constant(0.0) : f32
      %s = scf.for(%k = 0 to N, %acc = %zero, tag="k") {
        %a = memref.load(%A[%i, %k]) : f32
        %t = math.fma(%a, %a, %acc) : f32
        yield %t
      } : f32
      memref.store(%s, %C[%i, %j])
      yield
    }
    yield
  }
  scf.parallel(%i.1 = 0 to 8, tag="m.e", mapping="threads") {
    scf.parallel(%j.1 = 0 to N, tag="n.e") {
      %s.load = memref.load(%C[%i.1, %j.1]) : f32
      %r = math.exp(%s.load) : f32
      memref.store(%r, %C[%i.1, %j.1])
      yield
    }
    yield
  }""")
