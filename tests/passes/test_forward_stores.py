"""forward-stores: values instead of memory, fewer stores; same bits in the memory that is left."""

from __future__ import annotations

import pytest
from loop_programs import assert_same_runs, matmul
from memory_programs import assert_same_memory, changed, left, program
from pass_checks import load, optimize

from ir.core import Module

FORWARD = "forward-stores"
SIZES = [{"N": n} for n in (1, 2, 5, 9)]
BUFFERS = "%A: memref<f32[N]>, %C: memref<f32[N]>"


def straight(body: str, parameters: str = BUFFERS) -> str:
    return program("  %T = memref.alloc() : memref<f32[N]>\n  memref.copy(%C, %T)\n" + body + "\n  memref.copy(%T, %C)", parameters)


def count(module: Module, name: str) -> int:
    return sum(op.name == name for op in module.walk())


def loads_and_stores(module: Module) -> tuple[int, int]:
    return count(module, "memref.load"), count(module, "memref.store")


def loop(body: str) -> str:
    return straight(f"  scf.for(%i = 0 to N) {{\n{body}\n    yield\n  }}")


def test_store_to_load() -> None:
    after = changed(loop("""
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %T[%i])
    %t = memref.load(%T[%i]) : f32
    %u = arith.addf(%t, %t) : f32
    memref.store(%u, %T[%i])"""), FORWARD, SIZES)
    assert loads_and_stores(after) == (1, 1)


def test_what_lies_in_between() -> None:
    between = """
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %T[%i])
    memref.store(%a, %T[{}])
    %t = memref.load(%T[%i]) : f32
    memref.store(%t, %A[%i])"""
    apart = loop(between.format("%i+1")).replace("= 0 to N", "= 0 to N-1")
    assert loads_and_stores(changed(apart, FORWARD, SIZES)) == (1, 3)
    assert left(loop(between.format("max(%i-1, 0)")), FORWARD) == []


def test_loads_are_merged() -> None:
    text = loop("""
    %a = memref.load(%A[%i]) : f32
    %b = memref.load(%A[%i]) : f32
    %c = arith.mulf(%a, %b) : f32
    scf.for(%j = 0 to 2) {
      %d = memref.load(%A[%i]) : f32
      %e = arith.addf(%c, %d) : f32
      memref.store(%e, %T[%i])
      yield
    }""")
    assert loads_and_stores(changed(text, FORWARD, SIZES)) == (1, 1)
    written = text.replace("memref.store(%e, %T[%i])", "memref.store(%e, %T[%i])\n      memref.store(%e, %A[%i])")
    assert loads_and_stores(changed(written, FORWARD, SIZES)) == (2, 2)  # the load in the inner loop sees its last round


def test_parameters_may_be_one_array() -> None:
    text = program("""
  scf.for(%i = 0 to N) {
    %a = memref.load(%A[%i]) : f32
    memref.store(%one, %C[%i])
    %b = memref.load(%A[%i]) : f32
    %c = arith.addf(%a, %b) : f32
    memref.store(%c, %C[%i])
    yield
  }""".replace("  scf", "  %one = arith.constant(1.0) : f32\n  scf", 1), BUFFERS)
    assert left(text, FORWARD) == []
    assert str(optimize(text, FORWARD)) == str(load(text))


def test_overwritten_stores() -> None:
    text = loop("""
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %T[%i])
    BETWEEN
    memref.store(%one, %T[%i])""").replace("  scf", "  %one = arith.constant(1.0) : f32\n  scf", 1)
    assert loads_and_stores(changed(text.replace("BETWEEN", ""), FORWARD, SIZES)) == (0, 1)
    other = "%t = memref.load(%T[0]) : f32\nmemref.store(%t, %A[%i])"
    assert loads_and_stores(optimize(text.replace("BETWEEN", other), FORWARD)) == (2, 3)
    copied = "memref.copy(%T, %A)"
    assert loads_and_stores(optimize(text.replace("BETWEEN", copied), FORWARD)) == (1, 2)
    chosen = '%p = arith.cmpf(%a, %one, predicate="lt") : bool\nscf.if(%p) {\nmemref.store(%one, %T[%i])\nyield\n}'
    assert loads_and_stores(changed(text.replace("BETWEEN", chosen), FORWARD, SIZES)) == (1, 2)
    # not always overwritten
    maybe = text.replace("memref.store(%one, %T[%i])", "").replace("    BETWEEN\n", chosen + "\n")
    assert loads_and_stores(optimize(maybe, FORWARD)) == (1, 2)


def test_buffers_that_nothing_reads() -> None:
    text = program("""
  %T = memref.alloc() : memref<f32[N, 2]>
  %R = memref.reshape(%T) : memref<f32[2*N]>
  %one = arith.constant(1.0) : f32
  scf.for(%i = 0 to N) {
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %T[%i, 0])
    memref.store(%a, %R[2*%i+1])
    memref.store(%one, %C[%i])
    yield
  }""", BUFFERS)
    after = changed(text, FORWARD, SIZES)
    assert loads_and_stores(after) == (0, 1) and count(after, "memref.alloc") == count(after, "memref.reshape") == 0
    outside = text.replace("%T[%i, 0]", "%T[%i, 2]")
    assert count(optimize(outside, FORWARD), "memref.alloc") == 1  # its error stays
    returned = text.replace("%one = ", "%x = memref.to_tensor(%T) : f32[N, 2]\nprint(%x)\n%one = ")
    assert count(optimize(returned, FORWARD), "memref.alloc") == 1


def test_memory_of_a_round() -> None:
    after = changed(loop("""
    %S = memref.alloc() : memref<f32[2]>
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %S[0])
    %b = memref.load(%S[0]) : f32
    memref.store(%b, %T[%i])
    memref.store(%b, %S[1])"""), FORWARD, SIZES)
    assert loads_and_stores(after) == (1, 1) and count(after, "memref.alloc") == 1


def test_vectors() -> None:
    text = program("""
  %T = memref.alloc() : memref<f32[8]>
  %a = vector.load(%A[0:+4]) : vector<f32[4]>
  vector.store(%a, %T[4:+4])
  {}
  %t = vector.load(%T[4:+4]) : vector<f32[4]>
  vector.store(%t, %C[0:+4])
  %u = memref.load(%T[5]) : f32
  memref.store(%u, %C[4])""", "%A: memref<f32[8]>, %C: memref<f32[8]>")
    after = changed(text.replace("{}", "vector.store(%a, %T[0:+4])"), FORWARD, [{}])
    assert count(after, "vector.load") == 1 and count(after, "memref.load") == 1
    after = optimize(text.replace("{}", "vector.store(%a, %T[3:+4])"), FORWARD)
    assert count(after, "vector.load") == 2
    valid = text.replace("{}", "%n = memref.dim(%A, axis=0) : index\nvector.store(%a, %T[4:+4], valid=%n)")
    assert count(optimize(valid, FORWARD), "vector.load") == 2


@pytest.mark.parametrize("pipeline", [FORWARD, f"fission{{loops=[m, n], after=k}},{FORWARD}"])
def test_matmul_stays_right(pipeline: str) -> None:
    text = matmul("M", "N", "K")
    assert_same_runs(load(text), optimize(text, pipeline), [((m, k), (k, n), (n,)) for m, n, k in [(3, 4, 2), (1, 5, 0)]])


def test_after_hoisting() -> None:
    """Memory form to registers: the element is stored once, behind the loop."""
    text = straight("""
  %zero = arith.constant(0.0) : f32
  scf.for(%i = 0 to N) {
    memref.store(%zero, %T[%i])
    scf.for(%k = 0 to N) {
      %a = memref.load(%A[%k]) : f32
      %t = memref.load(%T[%i]) : f32
      %u = math.fma(%a, %a, %t) : f32
      memref.store(%u, %T[%i])
      yield
    }
    %r = memref.load(%T[%i]) : f32
    %e = math.exp(%r) : f32
    memref.store(%e, %T[%i])
    yield
  }""")
    after = optimize(text, f"hoist-accumulators,{FORWARD}")
    assert loads_and_stores(after) == (1, 1)
    assert_same_memory(load(text), after, SIZES)


def test_text() -> None:
    text = loop("""
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %T[%i])  // the first
    %t = memref.load(%T[%i]) : f32
    %u = arith.addf(%t, %t) : f32
    memref.store(%u, %T[%i])""")
    assert """\
    %a = memref.load(%A[%i]) : f32
    %u = arith.addf(%a, %a) : f32
    memref.store(%u, %T[%i])
    yield
""" in str(optimize(text, FORWARD))


def test_only_within_rounds() -> None:
    """With tags of loops, what a loop has stored is not known behind it, nor in another one."""
    text = straight("""
  scf.for(%i = 0 to N, tag="a") {
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %T[%i])
    %t = memref.load(%T[%i]) : f32
    memref.store(%t, %A[%i])
    yield
  }
  scf.for(%j = 0 to N, tag="b") {
    %b = memref.load(%A[%j]) : f32
    memref.store(%b, %T[%j])
    %u = memref.load(%T[%j]) : f32
    memref.store(%u, %A[%j])
    yield
  }""")
    assert loads_and_stores(changed(text, "forward-stores{loops=[a]}", SIZES)) == (3, 4)
    assert loads_and_stores(changed(text, "forward-stores{loops=[a, b]}", SIZES)) == (2, 4)
    assert loads_and_stores(optimize(text, "forward-stores{loops=[c]}")) == (4, 4)
