"""hoist-accumulators: elements that a loop updates are carried; same bits, and the reasons where they can't be."""

from __future__ import annotations

import pytest
from memory_programs import changed, left, program
from pass_checks import optimize

from ir.core import Module

HOIST = "hoist-accumulators"
SIZES = [{"M": 3, "N": 4, "K": 5}, {"M": 1, "N": 1, "K": 1}, {"M": 2, "N": 3, "K": 0}, {"M": 0, "N": 2, "K": 2}]
PRODUCT = "%A: memref<f32[M, K]>, %B: memref<f32[K, N]>, %C: memref<f32[M, N]>"


def loops(module: Module) -> list[list[str]]:
    """What the bodies of serial loops hold."""
    return [[inner.name for inner in op.regions[0].block] for op in module.walk() if op.name == "scf.for"]


def product(inside: str, before: str = "memref.store(%zero, %T[%i, %j])", after: str = "", k: str = "K") -> str:
    """A product in memory form, over a buffer that is no parameter."""
    return program(
        f"""
  %zero = arith.constant(0.0) : f32
  %T = memref.alloc() : memref<f32[M, N]>
  memref.copy(%C, %T)
  scf.parallel(%i = 0 to M, tag="m") {{
    scf.parallel(%j = 0 to N, tag="n") {{
      {before}
      scf.for(%k = 0 to {k}, tag="k") {{
        {inside}
        yield
      }}
      {after}
      yield
    }}
    yield
  }}
  memref.copy(%T, %C)""",
        PRODUCT,
    )


STEP = """
        %a = memref.load(%A[%i, %k]) : f32
        %b = memref.load(%B[%k, %j]) : f32
        %c = memref.load(%T[%i, %j]) : f32
        %t = math.fma(%a, %b, %c) : f32
        memref.store(%t, %T[%i, %j])"""


@pytest.mark.parametrize("before", ["memref.store(%zero, %T[%i, %j])", ""])
def test_matmul(before: str) -> None:
    assert loops(changed(product(STEP, before), HOIST, SIZES)) == [["memref.load", "memref.load", "math.fma", "graph.yield"]]


def test_text() -> None:
    text = str(optimize(product(STEP), HOIST))
    assert """\
      memref.store(%zero, %T[%i, %j])
      %c.in = memref.load(%T[%i, %j]) : f32
      %c.out = scf.for(%k = 0 to K, %c = %c.in, tag="k") {
        %a = memref.load(%A[%i, %k]) : f32
        %b = memref.load(%B[%k, %j]) : f32
        %t = math.fma(%a, %b, %c) : f32
        yield %t
      } : f32
      memref.store(%c.out, %T[%i, %j])
""" in text


def test_through_several_loops() -> None:
    """Tiles of the reduction: the inner loop first, then what is left of it in the outer one."""
    text = product(STEP).replace('scf.for(%k = 0 to K, tag="k") {', 'scf.for(%kt = 0 to K step 2) {\n scf.for(%k = %kt to min(%kt+2, K), tag="k") {')
    text = text.replace("memref.store(%t, %T[%i, %j])", "memref.store(%t, %T[%i, %j])\n yield }")
    after = changed(text, HOIST, SIZES)
    assert loops(after) == [["scf.for", "graph.yield"], ["memref.load", "memref.load", "math.fma", "graph.yield"]]


def test_several_elements() -> None:
    """Two sums and a value that is carried already; one update reads the other one."""
    text = program("""
  %zero = arith.constant(0.0) : f32
  %T = memref.alloc() : memref<f32[2]>
  memref.store(%zero, %T[0])
  memref.store(%zero, %T[1])
  %last = scf.for(%k = 0 to K, %was = %zero) {
    %a = memref.load(%A[%k]) : f32
    %p = memref.load(%T[0]) : f32
    %q = memref.load(%T[1]) : f32
    memref.store(%p, %T[1])
    %s = arith.addf(%a, %q) : f32
    memref.store(%s, %T[0])
    %again = memref.load(%T[0]) : f32
    %u = math.fma(%again, %was, %q) : f32
    yield %u
  } : f32
  %x = memref.load(%T[0]) : f32
  %y = memref.load(%T[1]) : f32
  memref.store(%x, %C[0])
  memref.store(%y, %C[1])
  memref.store(%last, %C[2])""", "%A: memref<f32[K]>, %C: memref<f32[3]>")
    after = changed(text, HOIST, [{"K": k} for k in (0, 1, 2, 5)])
    assert loops(after) == [["memref.load", "arith.addf", "math.fma", "graph.yield"]]


def test_vectors() -> None:
    text = program("""
  %T = memref.alloc() : memref<f32[8]>
  %zero = arith.constant(0.0) : vector<f32[8]>
  vector.store(%zero, %T[0:+8])
  scf.for(%k = 0 to K) {
    %a = vector.load(%A[%k, 0:+8]) : vector<f32[1, 8]>
    %v = vector.reshape(%a) : vector<f32[8]>
    %t = vector.load(%T[0:+8]) : vector<f32[8]>
    %u = math.fma(%v, %v, %t) : vector<f32[8]>
    vector.store(%u, %T[0:+8])
    yield
  }
  memref.copy(%T, %C)""", "%A: memref<f32[K, 8]>, %C: memref<f32[8]>")
    after = changed(text, HOIST, [{"K": k} for k in (0, 1, 4)])
    assert loops(after) == [["vector.load", "vector.reshape", "math.fma", "graph.yield"]]
    masked = text.replace("vector.load(%T[0:+8])", "vector.load(%T[0:+8], valid=%n)")
    masked = masked.replace("%zero =", "%n = memref.dim(%A, axis=0) : index\n%zero =")
    assert left(masked, HOIST) == ["elements left in memory: another access may mean it"]


def reasons(text: str) -> list[str]:
    return [r.removeprefix("elements left in memory: ") for r in left(text, HOIST)]


def test_reasons() -> None:
    assert reasons(product(STEP.replace("%T[%i, %j])", "%T[%i, %k])"), k="min(K, N)")) == ["its index changes"]
    neighbour = STEP + "\n%n = memref.load(%T[%i, max(%k-1, 0)]) : f32"
    assert reasons(product(neighbour, k="min(K, N)")) == ["another access may mean it"]
    inner = '%p = arith.cmpf(%t, %zero, predicate="lt") : bool\nscf.if(%p) {\nmemref.store(%t, %T[%i, %j])\nyield\n}'
    choice = STEP.replace("memref.store(%t, %T[%i, %j])", inner)
    assert reasons(product(choice)) == ["it is accessed in an inner region"]
    parameter = STEP.replace("%T", "%C")
    assert reasons(product(parameter)) == ["another access may mean it"]  # the caller may give one array for two


def test_loops_without_rounds() -> None:
    """What may be outside the buffer is not touched when the loop is not run."""
    outside = STEP.replace("%T[%i, %j]", "%T[%i, %j+N]")
    assert reasons(product(outside, k="0*K")) == ["the loop may run no round"]
    assert reasons(product(outside)) == ["the loop may run no round"]
    once = product(STEP.replace("%T[%i, %j]", "%T[0, 0]").replace("%k]", "0]").replace("[%k", "[0"), "").replace("%j = 0 to N", "%j = 0 to 1")
    # all rounds of the parallel loops would store the element, though only those with rounds of the serial one do
    assert reasons(once) == ["the loop may run no round"]
    shared = once.replace("alloc() : memref<f32[M, N]>", "alloc() : memref<f32[1, 1]>").replace("memref.copy(%C, %T)", "")
    shared = shared.replace("memref.copy(%T, %C)", "%t00 = memref.load(%T[0, 0]) : f32\nmemref.store(%t00, %C[0, 0])")
    assert reasons(shared) == ["the loop may run no round"]  # though the element is there
    fixed = product(STEP, "", k="3").replace("%A[%i, %k]", "%A[%i, 0]").replace("%B[%k, %j]", "%B[0, %j]")
    assert loops(changed(fixed, HOIST, SIZES[:2])) == [["memref.load", "memref.load", "math.fma", "graph.yield"]]
