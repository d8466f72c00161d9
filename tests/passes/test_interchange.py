"""interchange: nests that may be swapped compute the same bits, others are left and say why."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs, matmul
from memory_programs import changed, left, program
from pass_checks import load, optimize

from passes.loops._loops import is_loop, tag_of

SIZES = [{"M": 3, "N": 4}, {"M": 1, "N": 5}, {"M": 0, "N": 2}, {"M": 5, "N": 5}]
SWAP = "interchange{outer=i, inner=j}"


def nest(outer: str, inner: str, body: str) -> str:
    return program(f"""
  {outer} {{
    {inner} {{
{body}
      yield
    }}
    yield
  }}""")


def tags(module: object) -> list[str]:
    return [tag_of(op) for op in module.walk() if is_loop(op)]  # type: ignore[attr-defined]


FOR_I, FOR_J = 'scf.for(%i = 1 to M, tag="i")', 'scf.for(%j = 1 to N, tag="j")'
ALL_I, ALL_J = 'scf.parallel(%i = 1 to M, tag="i")', 'scf.parallel(%j = 1 to N, tag="j")'


def step(di: int, dj: int) -> str:
    """An element from the one at a distance."""
    return f"%x = memref.load(%C[%i+{di}, %j+{dj}]) : f32\n%y = arith.addf(%x, %x) : f32\nmemref.store(%y, %C[%i, %j])"


@pytest.mark.parametrize(("di", "dj"), [(-1, -1), (-1, 0), (0, -1), (0, 0)])
def test_serial_loops_with_kept_directions(di: int, dj: int) -> None:
    after = changed(nest(FOR_I, FOR_J, step(di, dj)), SWAP, SIZES)
    assert tags(after) == ["j", "i"]


def test_serial_loops_with_a_turned_direction() -> None:
    inner = 'scf.for(%j = 0 to N-1, tag="j")'
    assert left(nest(FOR_I, inner, step(-1, 1)), SWAP) == ["loops not swapped: a dependence would change its direction"]
    # an anti-dependence: what is read is overwritten later
    outer = 'scf.for(%i = 0 to M-1, tag="i")'
    assert left(nest(outer, FOR_J, step(1, -1)), SWAP) == ["loops not swapped: a dependence would change its direction"]


def test_parallel_loops() -> None:
    body = "%x = memref.load(%A[%j-1, %i]) : f32\nmemref.store(%x, %C[%i, %j])"
    after = changed(nest(ALL_I, ALL_J, body).replace("N]", "M]").replace("to N", "to M"), SWAP, SIZES)
    assert tags(after) == ["j", "i"]


def test_a_serial_loop_inside_a_parallel_one() -> None:
    after = changed(nest(ALL_I, FOR_J, step(0, -1)), SWAP, SIZES)
    assert [op.name for op in after.walk() if is_loop(op)] == ["scf.for", "scf.parallel"]
    # rounds of %i are independent by what scf.parallel means, so that the two buffers need not be told apart
    after = changed(nest(ALL_I, FOR_J, "%x = memref.load(%A[%i, %j-1]) : f32\nmemref.store(%x, %C[%i, %j])"), SWAP, SIZES)
    assert [op.name for op in after.walk() if is_loop(op)] == ["scf.for", "scf.parallel"]


def test_a_parallel_loop_inside_a_serial_one() -> None:
    after = changed(nest(FOR_I, ALL_J, step(-1, 0)), SWAP, SIZES)
    assert [op.name for op in after.walk() if is_loop(op)] == ["scf.parallel", "scf.for"]
    reason = "loops not swapped: a dependence would change its direction"  # rounds of j would depend on each other
    assert left(nest(FOR_I, ALL_J, step(-1, -1)), SWAP) == [reason]


def test_bounds() -> None:
    triangle = 'scf.parallel(%j = %i to N, tag="j")'
    store = "%x = memref.load(%A[%i, %j]) : f32\nmemref.store(%x, %C[%i, %j])"
    assert left(nest(ALL_I, triangle, store), SWAP) == ["loops not swapped: bounds depend on the other loop"]


def test_carried_values() -> None:
    text = program("""
  %zero = arith.constant(0.0) : f32
  %t = scf.for(%i = 0 to M, %a = %zero, tag="i") {
    %s = scf.for(%j = 0 to N, %b = %a, tag="j") {
      %x = memref.load(%A[%i, %j]) : f32
      %y = arith.addf(%b, %x) : f32
      yield %y
    } : f32
    yield %s
  } : f32
  memref.store(%t, %C[0, 0])""")
    assert left(text, SWAP) == ["loops not swapped: values are carried"]


def test_nests_that_are_not_perfect() -> None:
    text = program("""
  scf.parallel(%i = 0 to M, tag="i") {
    %x = memref.load(%A[%i, 0]) : f32
    scf.parallel(%j = 0 to N, tag="j") {
      memref.store(%x, %C[%i, %j])
      yield
    }
    yield
  }""")
    assert left(text, SWAP) == ["loops not swapped: the nest is not perfect"]
    assert left(text, "interchange{outer=j, inner=i}") == []


def test_loops_in_between() -> None:
    text = """
graph @main(%C: memref<f32[M, N, 3]>) {
  scf.for(%i = 1 to M, tag="i") {
    scf.parallel(%k = 0 to 3, tag="k") {
      scf.for(%j = 1 to N, tag="j") {
        %x = memref.load(%C[%i-1, %j-1, %k]) : f32
        %y = arith.mulf(%x, %x) : f32
        memref.store(%y, %C[%i, %j, %k])
        yield
      }
      yield
    }
    yield
  }
  return
}"""
    assert tags(changed(text, SWAP, SIZES)) == ["j", "k", "i"]
    turned = text.replace("%j = 1 to N", "%j = 0 to N-1").replace("%j-1, %k", "%j+1, %k")
    assert left(turned, SWAP) == ["loops not swapped: a dependence would change its direction"]


def test_parameters_may_be_one_array() -> None:
    body = "%x = memref.load(%A[%j-1, %i]) : f32\nmemref.store(%x, %C[%i, %j])"
    text = nest(FOR_I, FOR_J, body).replace("N]", "M]").replace("to N", "to M")
    assert left(text, SWAP) == ["loops not swapped: a dependence would change its direction"]


def test_tiles() -> None:
    """The point loop of one dimension changes places with the tile loop of the other."""
    pipeline = "tile{loop=m, size=8},tile{loop=n, size=48},interchange{outer=m, inner=n.tile}"
    after = optimize(matmul("M", "N", "K"), pipeline.split(",interchange")[0])
    shapes = [((m, k), (k, n), (n,)) for m, n, k in [(9, 49, 3), (1, 47, 2), (8, 48, 0)]]
    module = load(str(after))
    swapped = optimize(str(after), "interchange{outer=m, inner=n.tile}")
    assert_same_runs(module, swapped, shapes)
    assert tags(swapped) == ["m.tile", "n.tile", "m", "n", "k"]
    assert left(str(swapped), "interchange{outer=n.tile, inner=n}") == ["loops not swapped: bounds depend on the other loop"]


def test_text() -> None:
    text = nest(ALL_I, 'scf.parallel(%j = 1 to N step 2, tag="j", mapping="threads")', "memref.store(%x, %C[%i, %j])")
    text = text.replace("  scf.parallel(%i", "  %x = arith.constant(1.0) : f32\n  scf.parallel(%i", 1)
    assert str(optimize(text, SWAP)) == program("""\
  %x = arith.constant(1.0) : f32
  scf.parallel(%j = 1 to N step 2, tag="j", mapping="threads") {
    scf.parallel(%i = 1 to M, tag="i") {
      memref.store(%x, %C[%i, %j])
      yield
    }
    yield
  }""")
