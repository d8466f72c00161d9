"""unroll-jam: several rounds of a parallel loop at once, with the same bits; what is shared, what is left over, what stays."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load, operations
from vector_checks import assert_same, body, check, random_arrays, transformed

from graph_opt.native import compile_native
from ir.clone import clone_module

SUMS = """
graph @main(%A: memref<f32[M, N]>, %g: memref<f32[N]>, %C: memref<f32[M, N]>) {
  %zero = arith.constant(0.0) : f32
  scf.parallel(%i = 0 to M, tag="row") {
    %s = scf.for(%k = 0 to N, %acc = %zero, tag="reduce") {
      %a = memref.load(%A[%i, %k]) : f32
      %t = arith.addf(%acc, %a) : f32
      yield %t
    } : f32
    %r = arith.addf(%s, %zero) : f32
    scf.parallel(%j = 0 to N, tag="col") {
      %b = memref.load(%A[%i, %j]) : f32
      %w = memref.load(%g[%j]) : f32
      %p = math.fma(%b, %w, %r) : f32
      memref.store(%p, %C[%i, %j])
      yield
    }
    yield
  }
  return
}
"""
SIZES = [{"M": m, "N": n} for m, n in ((0, 3), (1, 3), (3, 2), (4, 5), (5, 0), (7, 1), (8, 3), (11, 4))]


def test_the_text() -> None:
    after = check(SUMS.replace("%g: memref<f32[N]>, ", "").replace("%g[%j]", "%A[0, %j]"), "unroll-jam{by=2}", *SIZES)
    assert body(after)[1:22] == [
        'scf.parallel(%i.1 = 0 to M-(M mod 2) step 2, tag="row") {',
        '%s.1, %s.1.1 = scf.for(%k.1 = 0 to N, %acc.1 = %zero, %acc.2 = %zero, tag="reduce") {',
        "%a.1 = memref.load(%A[%i.1, %k.1]) : f32",
        "%a.2 = memref.load(%A[%i.1+1, %k.1]) : f32",
        "%t.1 = arith.addf(%acc.1, %a.1) : f32",
        "%t.2 = arith.addf(%acc.2, %a.2) : f32",
        "yield %t.1, %t.2",
        "} : f32, f32",
        "%r.1 = arith.addf(%s.1, %zero) : f32",
        "%r.2 = arith.addf(%s.1.1, %zero) : f32",
        'scf.parallel(%j.1 = 0 to N, tag="col") {',
        "%b.1 = memref.load(%A[%i.1, %j.1]) : f32",
        "%b.2 = memref.load(%A[%i.1+1, %j.1]) : f32",
        "%w.1 = memref.load(%A[0, %j.1]) : f32",
        "%w.2 = memref.load(%A[0, %j.1]) : f32",
        "%p.1 = math.fma(%b.1, %w.1, %r.1) : f32",
        "%p.2 = math.fma(%b.2, %w.2, %r.2) : f32",
        "memref.store(%p.1, %C[%i.1, %j.1])",
        "memref.store(%p.2, %C[%i.1+1, %j.1])",
        "yield",
        "}",
    ]
    assert 'scf.parallel(%i = M-(M mod 2) to M, tag="row") {' in str(after)


@pytest.mark.parametrize("by", [2, 3, 4])
def test_any_number_of_rounds(by: int) -> None:
    check(SUMS, f"unroll-jam{{by={by}}}", *SIZES)
    check(SUMS, f"split-reduction{{lanes=2}},unroll-jam{{by={by}}},unroll-vectors", *SIZES, exact=True)
    for rows in range(by, 10):
        after = check(SUMS.replace("M", str(rows)), f"unroll-jam{{by={by}}}", {"N": 3})
        assert str(after).count('tag="row"') == (1 if rows % by == 0 else 2)


def test_the_innermost_of_nested_rows() -> None:
    text = SUMS.replace('scf.parallel(%i = 0 to M, tag="row") {', 'scf.parallel(%h = 0 to 4, tag="row") {\n  scf.parallel(%i = 0 to M, tag="row") {')
    text = text.replace("yield\n  }\n  return", "yield\n  }\n  yield\n  }\n  return").replace("memref<f32[M, N]>", "memref<f32[4, M, N]>")
    text = text.replace("[%i, ", "[%h, %i, ")
    after = check(text, "unroll-jam{by=2}", *SIZES)
    assert 'scf.parallel(%h = 0 to 4, tag="row") {' in str(after) and "step 2" in str(after)


def test_what_is_the_same_is_done_once() -> None:
    """Loads of memory that nothing in the loop writes: the buffers are no parameters."""
    text = SUMS.replace("%g: memref<f32[N]>, %C", "%C").replace("  %zero", "  %g = memref.alloc() : memref<f32[N]>\n  memref.copy(%A, %g)\n  %zero")
    text = text.replace("memref<f32[M, N]>", "memref<f32[N]>", 0).replace("memref.copy(%A, %g)", "memref.store(%one, %g[0])")
    text = text.replace("  %g = ", "  %one = arith.constant(1.0) : f32\n  %g = ")
    after = load(text)
    apply(after, "unroll-jam{by=4}")
    names = operations(after)
    assert names.count("memref.load") == (4 + 4 + 1) + 3


def test_the_variable_as_a_number() -> None:
    text = SUMS.replace(
        "%r = arith.addf(%s, %zero) : f32", "%n = arith.index_cast(%i) : i32\n    %f = arith.sitofp(%n) : f32\n    %r = arith.addf(%s, %f) : f32"
    )
    assert "affine.apply(%i.1+1)" in str(check(text, "unroll-jam{by=2}", *SIZES))


def test_choices_that_are_the_same() -> None:
    text = SUMS.replace(
        "%r = arith.addf(%s, %zero) : f32",
        """%n = memref.dim(%A, axis=1) : index
    %two = arith.constant(2) : index
    %many = arith.cmpi(%n, %two, predicate="gt") : bool
    %r = scf.if(%many) {
      %q = arith.addf(%s, %s) : f32
      yield %q
    } {
      yield %s
    } : f32
    scf.if(%many) {
      memref.store(%r, %C[%i, 0])
      yield
    }""",
    )
    after = check(text, "unroll-jam{by=2}", *SIZES)
    assert str(after).count("scf.if") == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scf.parallel(%i = 0 to M", "scf.for(%i = 0 to M"),
        ("scf.parallel(%i = 0 to M", "scf.parallel(%i = 0 to M step 2"),
        ("scf.parallel(%i = 0 to M", "scf.parallel(%i = 0 to 3"),
        ("scf.for(%k = 0 to N", "scf.for(%k = 0 to min(%i, N)"),
        ("%r = arith.addf", "%T = memref.alloc() : memref<f32[4]>\n    %r = arith.addf"),
        ("%r = arith.addf", '%ok = arith.cmpf(%s, %s, predicate="eq") : bool\n    cf.assert(%ok, message="NaN")\n    %r = arith.addf'),
        ('tag="row"', 'tag="m"'),
    ],
)  # fmt: skip
def test_loops_that_stay(old: str, new: str) -> None:
    before, after, _ = transformed(SUMS.replace(old, new), "unroll-jam")
    assert str(before) == str(after)


def test_no_more_than_fits() -> None:
    """A row of 1024 floats is 4 KiB."""
    text = SUMS.replace("N]", "1024]").replace("to N", "to 1024").replace("f32[N", "f32[1024")
    for limit, step in ((16384, "step 4"), (16383, "step 2"), (8192, "step 2"), (8191, "")):
        after = load(text)
        apply(after, f"unroll-jam{{bytes={limit}}}")
        assert ("step" in str(after)) == bool(step) and step in str(after)


@pytest.mark.parametrize(("block", "step"), [("f32[1, 48]", "step 4"), ("f32[6, 16]", "step 4"), ("f32[4, 32]", "step 2"), ("f32[8, 48]", "")])
def test_no_more_sums_than_registers_hold(block: str, step: str) -> None:
    """Products with a block of sums each: 1536 bytes are 24 registers."""
    after = load(BLOCKS.replace("BLOCK", block).replace("ROWS", block[4]).replace("COLUMNS", block[7:9]))
    apply(after, "unroll-jam")
    assert ("step" in str(after)) == bool(step) and step in str(after)


BLOCKS = """
graph @main(%A: memref<f32[L, ROWS, K]>, %B: memref<f32[L, K, COLUMNS]>, %C: memref<f32[L, ROWS, COLUMNS]>) {
  %zero = arith.constant(0.0) : vector<BLOCK>
  scf.parallel(%i = 0 to L, tag="row") {
    %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {
      %a = vector.load(%A[%i, 0:+ROWS, %k:+1]) : vector<f32[ROWS, 1]>
      %b = vector.load(%B[%i, %k:+1, 0:+COLUMNS]) : vector<f32[1, COLUMNS]>
      %t = math.fma(%a, %b, %acc) : vector<BLOCK>
      yield %t
    } : vector<BLOCK>
    vector.store(%s, %C[%i, 0:+ROWS, 0:+COLUMNS])
    yield
  }
  return
}
"""

SOFTMAX = "graph @main(%x: f32[{M}, {N}]) -> f32[{M}, {N}] {{\n  %y = softmax(%x)\n  return %y\n}}\n"
NORM = "graph @main(%x: f32[{M}, {N}], %w: f32[{N}]) -> f32[{M}, {N}] {{\n  %y = layernorm(%x, weight=%w)\n  return %y\n}}\n"


@pytest.mark.parametrize("text", [SOFTMAX, NORM], ids=["softmax", "layernorm"])
def test_rows_have_the_same_bits_in_any_batch(text: str) -> None:
    """A row alone, in a group, and among those that are left over."""
    width = 83
    x = np.random.default_rng(0).standard_normal((11, width)).astype(np.float32)
    weight = [np.random.default_rng(1).standard_normal(width).astype(np.float32)] if text is NORM else []
    rows = []
    for sizes in ({"M": "M", "N": "N"}, {"M": "M", "N": width}):
        module = load(text.format(**sizes))
        apply(module, "cpu")
        assert "step 4" in str(module)
        program = compile_native(module, module.main, {})
        for start, stop in ((0, 11), (0, 1), (3, 8), (7, 11), (2, 6)):
            rows.append((start, np.array(program(x[start:stop].copy(), *weight))))
    whole = rows[0][1]
    for start, found in rows:
        assert found.tobytes() == whole[start : start + len(found)].tobytes()


def test_native_code_of_what_is_jammed() -> None:
    for sizes in SIZES:
        module = load(SUMS)
        jammed = clone_module(module)
        apply(jammed, "split-reduction,unroll-jam,unroll-vectors")
        before = clone_module(module)
        apply(before, "split-reduction,unroll-vectors")
        arrays = random_arrays(module, sizes)
        assert_same(before, jammed, arrays)
        want, found = [a.copy() for a in arrays], [a.copy() for a in arrays]
        compile_native(before, before.main, {})(*want)
        compile_native(jammed, jammed.main, {})(*found)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(want, found, strict=True))
