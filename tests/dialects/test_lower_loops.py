"""scf and linalg: loops, choices, whole programs of the lower levels against numpy."""

import numpy as np
import pytest

from dialects.arith import floats
from dialects.graph.activation import silu
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.rewriter import erase_if_dead
from ir.types import DTYPES
from ir.verifier import verify_module


def load(text) -> Module:
    module = parse_module(text)
    verify_module(module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def run(text, *arrays, **options):
    module = load(text)
    return Interpreter(module, **options).run(module.graphs["main"], list(arrays))


# -- choices -----------------------------------------------------------------------------------------------------------

CHOICE = """
graph @main(%A: memref<f32[S]>, %C: memref<f32[S, 2]>) {
  %zero = arith.constant(0.0) : f32
  scf.for(%i = 0 to S) {
    %a = memref.load(%A[%i])
    %less = arith.cmpf(%a, %zero, predicate="lt")
    %r, %s = scf.if(%less) {
      %n = arith.negf(%a)
      yield %n, %zero
    } {
      yield %a, %a
    }
    memref.store(%r, %C[%i, 0])
    memref.store(%s, %C[%i, 1])
  }
  return
}
"""


def test_choice():
    a, c = np.float32([1, -2, 0, np.nan, -np.inf]), np.full((5, 2), 9, np.float32)
    run(CHOICE, a, c)
    assert np.array_equal(c, np.float32([[1, 1], [2, 0], [0, 0], [np.nan, np.nan], [np.inf, 0]]), equal_nan=True)


def test_only_one_region_runs():
    text = """
graph @main(%A: memref<i32[S]>, %C: memref<i32[S]>) {
  %zero = arith.constant(0) : i32
  scf.for(%i = 0 to S) {
    %a = memref.load(%A[%i])
    %some = arith.cmpi(%a, %zero, predicate="ne")
    scf.if(%some) {
      %k = arith.constant(12) : i32
      %q = arith.divsi(%k, %a)
      memref.store(%q, %C[%i])
    }
  }
  return
}
"""
    c = np.full(4, -1, np.int32)
    run(text, np.int32([0, 5, -5, 0]), c)
    assert c.tolist() == [-1, 2, -2, -1]


def test_values_from_outside_stay_alive():
    text = """
graph @main(%A: memref<f32[S]>, %C: memref<f32[S]>) {
  %k = arith.constant(3.0) : f32
  %t = arith.constant(true) : bool
  scf.for(%i = 0 to S) {
    %x = scf.if(%t) {
      %m = arith.mulf(%k, %k)
      yield %m
    } {
      yield %k
    } : f32
    memref.store(%x, %C[%i])
  }
  %y = arith.addf(%k, %k)
  memref.store(%y, %A[0])
  return
}
"""
    a, c = np.zeros(3, np.float32), np.zeros(3, np.float32)
    run(text, a, c)
    assert c.tolist() == [9] * 3 and a[0] == 6


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("scf.if(%f) {\n  }", "expected a scalar of bool, found f32"),
        ("scf.if(%v) {\n  }", "expected a scalar of bool, found vector<bool.2.>"),
        ("scf.if(%c, %c) {\n  }", "expected one operand"),
        ("scf.if(%c)", "one or two regions, found 0"),
        ("scf.if(%c) {\n  } {\n  } {\n  }", "one or two regions, found 3"),
        ("%r = scf.if(%c) {\n    yield %f\n  }", "needs two regions"),
        ("scf.if(%c) {\n    yield %f\n  }", "no second one"),
        ("%r = scf.if(%c) {\n    yield %f\n  } {\n    yield %f, %f\n  }", "yields 1 values, the second one 2"),
        ("%r = scf.if(%c) {\n    yield %f\n  } {\n    yield %c\n  }", "yields f32 where the second one yields bool"),
        ("%r = scf.if(%c) {\n    yield %f\n  } {\n    yield %f\n  } : f64", "declared f64"),
        ("%r, %s = scf.if(%c) {\n    yield %f\n  } {\n    yield %f\n  }", "1 result here, but 2 are named"),
        ("%r = scf.if(%c) {\n    yield\n  } {\n    yield\n  }", "0 results here, but 1 are named"),
        ("scf.parallel(%i = 0 to 4) {\n    yield %i\n  }", "nothing is carried"),
        ("scf.parallel(%x = %f) {\n  }", "expected ranges"),
        ("scf.parallel() {\n  }", "expected ranges"),
        ("scf.parallel(%i = 0 to 4 step 0) {\n  }", "the step is 0"),
        ("scf.parallel(%i = 0 to %f) {\n  }", "expected an index"),
        ("scf.for(%i = 0 to 4 step -1) {\n  }", "the step is -1"),
        ("%r = scf.for(%i = 0 to 4) {\n  }", "0 results here, but 1 are named"),
        ("%r = scf.for(%i = 0 to 4, %a = %f) {\n    yield %c\n  }", "yields bool for a value that starts as f32"),
        ("%r = scf.for(%i = 0 to 4, %a = %f) {\n  }", "yields 0 values, but 1 are carried"),
    ],
)
def test_errors(code, message):
    constants = "  %c = arith.constant(true) : bool\n  %f = arith.constant(1.0) : f32\n  %v = arith.constant(true) : vector<bool[2]>\n"
    with pytest.raises(GraphError, match=message):
        load(f"graph @main() {{\n{constants}  {code}\n  return\n}}\n")


# -- loops -------------------------------------------------------------------------------------------------------------

ORDER = """
graph @main(%C: memref<index[2, N]>) {{
  %T = memref.alloc() : memref<index[]>
  %zero = arith.constant(0) : index
  %one = arith.constant(1) : index
  memref.store(%zero, %T[])
  scf.{0}(%i = 0 to 2, %j = 1 to N step 2) {{
    %t = memref.load(%T[])
    memref.store(%t, %C[%i, %j])
    %u = arith.addi(%t, %one)
    memref.store(%u, %T[])
  }}
  return
}}
"""


def test_order_of_parallel_rounds():
    c = np.full((2, 6), -1, np.int64)
    run(ORDER.format("parallel"), c)
    assert c[:, 1::2].tolist() == [[0, 1, 2], [3, 4, 5]] and (c[:, ::2] == -1).all()
    run(ORDER.format("parallel"), c, reverse_parallel=True)  # rounds that depend on each other show
    assert c[:, 1::2].tolist() == [[5, 4, 3], [2, 1, 0]] and (c[:, ::2] == -1).all()


def test_independent_rounds_may_run_in_reverse():
    text = """
graph @main(%A: memref<f32[B, S]>, %C: memref<f32[B, S]>) {
  scf.parallel(%i = 0 to B, %j = 0 to S) {
    %a = memref.load(%A[%i, %j])
    %r = math.tanh(%a)
    memref.store(%r, %C[%i, %j])
  }
  return
}
"""
    a = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    outs = [np.zeros_like(a) for _ in range(2)]
    for out, reverse in zip(outs, (False, True), strict=True):
        run(text, a, out, reverse_parallel=reverse)
    assert np.array_equal(*outs) and outs[0].any()


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 7, 1), (0, 7, 3), (2, 2, 1), (5, 2, 1), (-4, 3, 2)])
def test_rounds(start, stop, step):
    text = f"""
graph @main(%C: memref<index[]>) {{
  %zero = arith.constant(0) : index
  %a = arith.constant({start}) : index
  %b = arith.constant({stop}) : index
  %c = arith.constant({step}) : index
  %s = scf.for(%i = %a to %b step %c, %acc = %zero) {{
    %q = arith.muli(%i, %i)
    %t = arith.addi(%acc, %q)
    yield %t
  }}
  memref.store(%s, %C[])
  return
}}
"""
    c = np.zeros((), np.int64)
    run(text, c)
    assert c == sum(i * i for i in range(start, stop, step))
    with pytest.raises(GraphError, match="the step is 0, it must be positive"):
        run(text.replace(f"%c = arith.constant({step})", "%c = arith.constant(0)"), c)


def test_a_loop_with_effects_is_not_dead():
    module = load(ORDER.format("parallel"))
    (loop,) = [op for op in module.walk() if op.name == "scf.parallel"]
    assert not erase_if_dead(loop)
    module = load("graph @main() {\n  scf.for(%i = 0 to 4) {\n    %j = arith.addi(%i, %i)\n  }\n  return\n}\n")
    loop = next(iter(module.walk()))
    assert loop.name == "scf.for" and erase_if_dead(loop)


# -- programs ----------------------------------------------------------------------------------------------------------

MATMUL = """
graph @main(%x: f32[M, K], %w: f32[K, 8], %b: f32[8]) -> f32[M, 8] {
  %A = memref.from_tensor(%x)
  %B = memref.from_tensor(%w)
  %bias = memref.from_tensor(%b)
  %C = memref.alloc() : memref<f32[M, 8]>
  linalg.generic(i < M, j < 8, %c0 = %C[i, j]) {
    %zero = arith.constant(0.0) : f32
    yield %zero
  }
  linalg.generic(i < M, j < 8, reduce k < K, %a1 = %A[i, k], %b1 = %B[k, j], %c1 = %C[i, j]) {
    %s1 = math.fma(%a1, %b1, %c1)
    yield %s1
  }
  linalg.generic(i < M, j < 8, %v2 = %bias[j], %c2 = %C[i, j]) {
    %x2 = arith.addf(%c2, %v2)
    %n2 = arith.negf(%x2)
    %e2 = math.exp(%n2)
    %one = arith.constant(1.0) : f32
    %d2 = arith.addf(%one, %e2)
    %y2 = arith.divf(%x2, %d2)
    yield %y2
  }
  %y = memref.to_tensor(%C)
  return %y
}
"""

TILED = """
graph @main(%x: f32[M, K], %w: f32[K, 8], %b: f32[8]) -> f32[M, 8] {
  %A = memref.from_tensor(%x)
  %B = memref.from_tensor(%w)
  %bias = memref.from_tensor(%b)
  %R = memref.alloc() : memref<u8[32*M]>
  %C = memref.view(%R, offset=0) : memref<f32[M, 8]>
  %zero = arith.constant(0.0) : vector<f32[1, 8]>
  %one = arith.constant(1.0) : f32
  scf.parallel(%i = 0 to M) {
    %s = scf.for(%k = 0 to K, %acc = %zero) {
      %a = vector.load(%A[%i, %k])
      %bk = vector.load(%B[%k, 0:+8])
      %t = math.fma(%a, %bk, %acc)
      yield %t
    }
    %v = vector.load(%bias[0:+8])
    %x2 = arith.addf(%s, %v)
    %n2 = arith.negf(%x2)
    %e2 = math.exp(%n2)
    %d2 = arith.addf(%one, %e2)
    %y2 = arith.divf(%x2, %d2)
    vector.store(%y2, %C[%i, 0:+8])
  }
  %y = memref.to_tensor(%C)
  return %y
}
"""


@pytest.mark.parametrize("sizes", [(1, 1), (3, 7), (0, 3), (2, 0)])
def test_matmul_with_bias_and_silu(sizes):
    m, k = sizes
    generator = np.random.default_rng(5)
    x, w, b = (generator.standard_normal(s).astype(np.float32) for s in ((m, k), (k, 8), (8,)))
    (scalar,) = run(MATMUL, x, w, b)
    (tiled,) = run(TILED, x, w, b, reverse_parallel=True)
    assert scalar.tobytes() == tiled.tobytes()
    exact = x.astype(np.float64) @ w + b
    np.testing.assert_allclose(scalar, silu(exact), rtol=1e-5, atol=1e-6)
    for text in (MATMUL, TILED):  # float64 all the way, through buffers and arenas
        (wide,) = run(text, x, w, b, double=True)
        assert wide.dtype == np.float64
        np.testing.assert_allclose(wide, silu(exact), rtol=1e-13, atol=1e-14)


def test_half_precision_by_way_of_f32():
    """Extend, compute in f32 (rounding there), truncate: the bits of computing at once, for + - * / and sqrt."""
    body = """
graph @main(%A: memref<{0}[N]>, %B: memref<{0}[N]>, %C: memref<{0}[N]>) {{
  linalg.generic(i < N, %a = %A[i], %b = %B[i], %c = %C[i]) {{
    %x = arith.extf(%a) : f32
    %y = arith.extf(%b) : f32
    %r = arith.{1}(%x, %y) : f32
    %h = arith.truncf(%r) : {0}
    yield %h
  }}
  return
}}
"""
    generator = np.random.default_rng(2)
    for dtype in ("f16", "bf16"):
        numpy_dtype = DTYPES[dtype].numpy
        a, b = (generator.integers(0, 2**16, 3000).astype(np.uint16).view(numpy_dtype) for _ in range(2))
        for name in ("addf", "subf", "mulf", "divf"):
            out = np.zeros(3000, numpy_dtype)
            run(body.format(dtype, name), a, b, out)
            want = getattr(floats, name)(a, b)
            known = ~np.isnan(want.astype(np.float64))
            assert np.array_equal(known, ~np.isnan(out.astype(np.float64)))
            assert np.array_equal(out.view(np.uint16)[known], want.view(np.uint16)[known]), (dtype, name)
