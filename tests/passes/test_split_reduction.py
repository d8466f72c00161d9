"""``split-reduction``: sums in lanes and by halves, the same numbers on exact data, an order that depends on N alone."""

import numpy as np
import pytest
from vector_checks import assert_same, body, check, random_arrays, transformed

from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.pipelines import load_pipeline

ROWS = """
graph @main(%A: memref<{dtype}[M, N]>, %C: memref<{dtype}[M]>) {{
  %init = arith.constant({init}) : {dtype}
  scf.parallel(%i = 0 to M, tag="row") {{
    %s = scf.for(%k = {start} to {stop}, %acc = %init, tag="reduce") {{
      %a = memref.load(%A[%i, %k]) : {dtype}
      %t = {op}
      yield %t
    }} : {dtype}
    memref.store(%s, %C[%i])
    yield
  }}
  return
}}
"""


def rows(op: str = "arith.addf(%acc, %a) : f32", dtype: str = "f32", init: str = "0", start: str = "0", stop: str = "N") -> str:
    return ROWS.format(op=op, dtype=dtype, init=init, start=start, stop=stop)


def static(n: int, **options: str) -> str:
    return rows(**options).replace("N", str(n))


def left(text: str) -> str:
    """Why a loop stays as it is."""
    before, after, statistics = transformed(text, "split-reduction")
    assert str(before) == str(after)
    (reason,) = statistics
    return reason.removeprefix("left: ")


def test_the_text():
    after = check(rows(), "split-reduction{lanes=4}", {"M": 2, "N": 7}, exact=True)
    assert body(after)[2:-3] == [
        "%s.none = arith.constant(-0.0) : vector<f32[4]>",
        '%s.lanes = scf.for(%k = 0 to N-(N mod 4) step 4, %acc = %s.none, tag="reduce") {',
        "%a = vector.load(%A[%i, %k:+4]) : vector<f32[4]>",
        "%t = arith.addf(%acc, %a) : vector<f32[4]>",
        "yield %t",
        "} : vector<f32[4]>",
        "%s.lanes.1 = scf.for(%k.1 = N-(N mod 4) to N step 4, %acc.1 = %s.lanes) {",
        "%k.dim = memref.dim(%A, axis=1) : index",
        "%k.subi = arith.subi(%k.dim, %k.1) : index",
        "%a.1 = vector.load(%A[%i, %k.1:+4], valid=%k.subi) : vector<f32[4]>",
        "%t.1 = arith.addf(%acc.1, %a.1) : vector<f32[4]>",
        "%k.step = vector.step() : vector<index[4]>",
        '%k.used = arith.cmpi(%k.step, %k.subi, predicate="lt") : vector<bool[4]>',
        "%t.used = arith.select(%k.used, %t.1, %acc.1) : vector<f32[4]>",
        "yield %t.used",
        "} : vector<f32[4]>",
        "%s.low = vector.shuffle(%s.lanes.1, %s.lanes.1, mask=[0, 1]) : vector<f32[2]>",
        "%s.high = vector.shuffle(%s.lanes.1, %s.lanes.1, mask=[2, 3]) : vector<f32[2]>",
        "%s.halves = arith.addf(%s.low, %s.high) : vector<f32[2]>",
        "%s.low.1 = vector.extract(%s.halves, position=[0]) : f32",
        "%s.high.1 = vector.extract(%s.halves, position=[1]) : f32",
        "%s.halves.1 = arith.addf(%s.low.1, %s.high.1) : f32",
        "%s = arith.addf(%init, %s.halves.1) : f32",
    ]


@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 31, 32, 33, 48])
def test_every_number_of_rounds(n):
    check(rows(), "split-reduction", {"M": 2, "N": n}, exact=True)
    if n > 1:
        check(static(n), "split-reduction", {"M": 2}, exact=True)
        check(static(n), "split-reduction,unroll-vectors", {"M": 2}, exact=True)


def canonical(row: np.ndarray, lanes: int = 16) -> np.float32:
    """The order that the pass promises, in f32."""
    partial = np.full(lanes, -0.0, np.float32)
    for start in range(0, len(row), lanes):
        part = row[start : start + lanes]
        partial[: len(part)] = partial[: len(part)] + part
    while len(partial) > 1:
        half = len(partial) // 2
        partial = partial[:half] + partial[half:]
    return np.float32(0) + partial[0]


@pytest.mark.parametrize("n", [2, 3, 5, 8, 9, 15, 16, 17, 40, 100])
def test_the_order_depends_on_the_number_of_rounds_alone(n):
    a = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32) * np.float32(1e3)
    for text in (rows(), static(n), rows(start="0", stop="N")):
        _, after, statistics = transformed(text, "split-reduction")
        assert statistics == {"loops split": 1}
        c = np.zeros(3, np.float32)
        Interpreter(after).run(after.graphs["main"], [a, c])
        assert c.tobytes() == np.array([canonical(r) for r in a]).tobytes()


def test_a_small_known_number_takes_fewer_lanes():
    assert "arith.constant(-0.0) : vector<f32[8]>" in str(check(static(5), "split-reduction", {"M": 2}, exact=True))
    assert "valid" not in str(check(static(8), "split-reduction", {"M": 2}, exact=True))
    assert "scf.for" not in str(check(static(16), "split-reduction", {"M": 2}, exact=True))
    text = str(check(static(37), "split-reduction", {"M": 2}, exact=True))
    assert "%k = 0 to 32 step 16" in text and "vector.load(%A[%i, 32:+16], valid=%k.constant)" in text


def test_extremes_and_integers_take_more_lanes():
    for op, dtype in (("arith.maximumf(%acc, %a) : f32", "f32"), ("arith.addi(%acc, %a) : i32", "i32")):
        sizes = [{"M": 8, "N": n} for n in (200, 64, 63, 5, 1)]
        assert "step 64" in str(check(rows(op, dtype), "split-reduction,unroll-vectors", *sizes))
        assert "step 64" in str(check(static(131, op=op, dtype=dtype), "split-reduction,unroll-vectors", {"M": 8}))
        assert "step 16" in str(check(static(100, op=op, dtype=dtype), "split-reduction", {"M": 8}))


@pytest.mark.parametrize(
    ("op", "dtype", "init"),
    [
        ("arith.addf(%a, %acc) : f64", "f64", "1"),
        ("arith.addf(%a, %acc) : f16", "f16", "1"),
        ("math.fma(%a, %a, %acc) : f32", "f32", "3"),
        ("arith.maximumf(%acc, %a) : f32", "f32", "-inf"),
        ("arith.minimumf(%acc, %a) : f32", "f32", "2"),
        ("arith.addi(%acc, %a) : i32", "i32", "5"),
        ("arith.muli(%acc, %a) : i64", "i64", "3"),
        ("arith.maxsi(%acc, %a) : i8", "i8", "-128"),
        ("arith.minsi(%acc, %a) : i16", "i16", "100"),
        ("arith.maxui(%acc, %a) : u8", "u8", "0"),
        ("arith.minui(%acc, %a) : u8", "u8", "255"),
        ("arith.andi(%acc, %a) : u8", "u8", "251"),
        ("arith.andi(%acc, %a) : i32", "i32", "-2"),
        ("arith.ori(%acc, %a) : i32", "i32", "0"),
        ("arith.xori(%acc, %a) : i32", "i32", "1"),
        ("arith.andi(%acc, %a) : bool", "bool", "true"),
        ("arith.ori(%acc, %a) : bool", "bool", "false"),
    ],
)
def test_every_operation(op, dtype, init):
    for text in (rows(op, dtype, init), static(19, op=op, dtype=dtype, init=init), static(3, op=op, dtype=dtype, init=init)):
        check(text, "split-reduction,unroll-vectors", {"M": 16, "N": 21}, {"M": 1, "N": 33}, exact=True)


CHOICE = '%g = arith.cmpf(%a, %acc, predicate="gt") : bool\n      %t = arith.select(%g, %a, %acc) : f32'


def chosen(text: str, choice: str = CHOICE) -> str:
    return text.replace("%t = arith.addf(%acc, %a) : f32", choice)


@pytest.mark.parametrize(("predicate", "init"), [("gt", "-inf"), ("gt", "3"), ("lt", "inf"), ("lt", "nan")])
def test_choices_of_the_larger_or_smaller(predicate: str, init: str) -> None:
    """They are extremes that ignore NaN."""
    choice = CHOICE.replace("gt", predicate)
    for text in (rows(init=init), static(200, init=init), static(19, init=init), static(3, init=init)):
        check(chosen(text, choice), "split-reduction,unroll-vectors", {"M": 16, "N": 21}, {"M": 1, "N": 200}, exact=True)
    assert "step 64" in str(check(chosen(static(131, init=init), choice), "split-reduction,unroll-vectors", {"M": 8}))
    before, after, _ = transformed(chosen(rows(init=init), choice), "split-reduction")
    a = np.random.default_rng(0).standard_normal((4, 75)).astype(np.float32)
    a[0, 3], a[1, 70:], a[2], a[3, ::2] = np.nan, np.nan, np.nan, [np.inf, -np.inf] * 19
    assert_same(before, after, [a, np.ones(4, np.float32)])


def test_other_choices_stay() -> None:
    for old, new in (("gt", "ge"), ("%a, %acc) : f32", "%acc, %a) : f32"), ("cmpf(%a, %acc", "cmpf(%acc, %a")):
        assert left(chosen(rows(), CHOICE.replace(old, new))) == "a carried value that is used more than once"


def test_products_of_powers_of_two():
    text = rows("arith.mulf(%acc, %a) : f32", init="1")
    before, after, _ = transformed(text, "split-reduction")
    a = np.exp2(np.random.default_rng(0).integers(-2, 3, (2, 21))).astype(np.float32)
    assert_same(before, after, [a, np.zeros(2, np.float32)])


def test_special_values():
    """NaN, infinities and negative zeros come out as in the serial order."""
    for op, init in (("arith.addf(%acc, %a) : f32", "-0.0"), ("arith.maximumf(%acc, %a) : f32", "-inf"), ("arith.minimumf(%acc, %a) : f32", "inf")):
        before, after, _ = transformed(rows(op, init=init), "split-reduction")
        a = np.full((5, 19), -0.0, np.float32)
        a[1, 17] = np.nan
        a[2, 3] = np.inf
        a[3, 18] = -np.inf
        a[4, 0] = 0.0
        assert_same(before, after, [a, np.ones(5, np.float32)])


def test_a_start_that_is_not_zero():
    text = rows(start="%i", stop="N-1").replace("scf.parallel(%i", "scf.for(%i")
    after = check(text, "split-reduction{lanes=4}", {"M": 12, "N": 9}, {"M": 3, "N": 1}, exact=True)
    assert "max(" in str(after)
    check(rows(start="3", stop="20"), "split-reduction", {"M": 2, "N": 20}, exact=True)


SOFTMAX = """
graph @main(%A: memref<f32[M, N]>, %E: memref<f32[M, N]>, %S: memref<f32[M]>, %Q: memref<f32[M]>) {
  %zero = arith.constant(0.0) : f32
  %low = arith.constant(-inf) : f32
  %T = memref.alloc() : memref<f32[M, N]>
  scf.parallel(%i = 0 to M, tag="row") {
    %m = scf.for(%k = 0 to N, %acc = %low, tag="reduce") {
      %a = memref.load(%A[%i, %k]) : f32
      %t = arith.maximumf(%acc, %a) : f32
      yield %t
    } : f32
    %s, %q = scf.for(%k.1 = 0 to N, %acc.1 = %zero, %acc.2 = %zero, tag="reduce") {
      %b = memref.load(%A[%i, %k.1]) : f32
      %d = arith.subf(%b, %m) : f32
      %n = arith.index_cast(%k.1) : i32
      %f = arith.sitofp(%n) : f32
      %e = arith.mulf(%d, %f) : f32
      memref.store(%e, %T[%i, %k.1])
      %x = memref.load(%T[%i, %k.1]) : f32
      %u = arith.addf(%acc.1, %x) : f32
      %v = math.fma(%d, %d, %acc.2) : f32
      %w = arith.addf(%v, %m) : f32
      yield %u, %w
    } : f32, f32
    memref.store(%s, %S[%i])
    memref.store(%q, %Q[%i])
    yield
  }
  memref.copy(%T, %E)
  return
}
"""


def test_several_values_stores_and_chains():
    after = check(SOFTMAX, "split-reduction", {"M": 2, "N": 21}, {"M": 3, "N": 16}, {"M": 1, "N": 3}, exact=True)
    assert any("vector.store(%e.1, %T[%i, %k" in line and ":+16], valid=%k" in line for line in body(after))
    check(SOFTMAX, "split-reduction,unroll-vectors", {"M": 2, "N": 21}, exact=True)
    check(SOFTMAX.replace("N", "21"), "split-reduction{lanes=8},unroll-vectors{lanes=4}", {"M": 2}, exact=True)


def test_an_inner_loop_of_two():
    text = """
graph @main(%A: memref<i32[K, N]>, %C: memref<i32[]>) {
  %zero = arith.constant(0) : i32
  %s = scf.for(%k = 0 to K, %outer = %zero, tag="reduce") {
    %t = scf.for(%n = 0 to N, %acc = %zero, tag="reduce") {
      %a = memref.load(%A[%k, %n]) : i32
      %b = arith.addi(%acc, %a) : i32
      yield %b
    } : i32
    %u = arith.addi(%outer, %t) : i32
    yield %u
  } : i32
  memref.store(%s, %C[])
  return
}
"""
    before, after, statistics = transformed(text, "split-reduction")
    assert statistics == {"loops split": 1, "left: vector.load of a value that varies": 1}
    assert_same(before, after, random_arrays(before, {"K": 3, "N": 20}))


ADD = "arith.addf(%acc, %a) : f32"
CHAIN = "a carried value that is no chain of one associative operation"
UNUSED = "arith.divsi in lanes that may be unused"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (rows("arith.subf(%acc, %a) : f32"), CHAIN),
        (rows("math.fma(%acc, %a, %a) : f32"), CHAIN),
        (rows("arith.addf(%acc, %acc) : f32"), "a carried value that is used more than once"),
        (rows(f"{ADD}\n%u = arith.maximumf(%t, %a) : f32").replace("yield %t", "yield %u"), CHAIN),
        (rows(f"{ADD}\nmemref.store(%t, %C[%i])"), "a carried value that is used more than once"),
        (rows(f"{ADD}\nmemref.store(%a, %C[%i])"), "a store to one place in all rounds"),
        (rows().replace("[%i, %k]", "[%k, %i]"), "a loop variable that is not the last index"),
        (rows().replace("[%i, %k]", "[%i, 2*%k]"), "a loop variable with a factor in an index"),
        (rows(f"{ADD}\nmemref.store(%a, %A[%i, %k+1])"), "rounds that may depend on each other through memory"),
        (rows("arith.addf(%a, %a) : f32").replace("yield %t\n", "yield %acc\n"), "a carried value that is no reduction"),
        (rows(stop="1"), "fewer than two rounds"),
        (rows("arith.divsi(%a, %a) : i32\n%u = arith.addi(%acc, %t) : i32", "i32").replace("yield %t", "yield %u"), UNUSED),
        (rows(stop="2*N").replace("M, N", "M, 2*N"), "no buffer around has dimension N"),
    ],
)
def test_what_stays(text, reason):
    assert left(text) == reason


def test_other_loops_are_not_touched():
    for text in (rows().replace('"reduce"', '"k"'), rows().replace("N, %acc", "N step 2, %acc")):
        before, after, statistics = transformed(text, "split-reduction")
        assert str(before) == str(after) and not statistics


def test_wrong_options():
    for lanes in (0, 1, 12):
        with pytest.raises(GraphError, match="power of two"):
            load_pipeline(f"split-reduction{{lanes={lanes}}}")
