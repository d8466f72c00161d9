"""``unroll-vectors``: pieces of at most 16 lanes, the same bits before and after."""

import re
import time

import numpy as np
import pytest
from pass_checks import load
from vector_checks import MATMUL, assert_same, body, check, random_arrays, transformed, vector_types

from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.types import VectorType, f32
from passes.infra.base import PassContext
from passes.pipelines import load_pipeline

PASS = "unroll-vectors"


def program(parameters: str, lines: str) -> str:
    """A program without loops around it."""
    return f"graph @main({parameters}) {{\n{lines.strip()}\nreturn\n}}\n"


def check_pieces(text: str, *sizes: dict[str, int], pipeline: str = PASS, lanes: int = 16, exact: bool = False) -> list[str]:
    """The lines after the pass; all vectors are pieces, and elementwise operations have operands of one shape."""
    after = check(text, pipeline, *sizes, exact=exact)
    assert all(len(t.shape) == 1 and 2 <= t.shape[0] <= lanes for t in vector_types(after)), vector_types(after)
    for op in after.walk():
        if op.definition.elementwise:
            shapes = {t.shape if isinstance(t, VectorType) else () for t in (v.type for v in (*op.operands, *op.results))}
            assert len(shapes) == 1, f"{op.name}: {shapes}"
    return body(after)


def test_a_small_matrix_product():
    text = """
graph @main(%A: memref<f32[M, K]>, %B: memref<f32[K, N]>, %C: memref<f32[M, N]>) {
  %zero = arith.constant(0.0) : vector<f32[2, 20]>
  %s = scf.for(%k = 0 to K, %acc = %zero) {
    %a = vector.load(%A[1:+2, %k]) : vector<f32[2, 1]>
    %b = vector.load(%B[%k, 3:+20]) : vector<f32[1, 20]>
    %t = math.fma(%a, %b, %acc) : vector<f32[2, 20]>
    yield %t
  } : vector<f32[2, 20]>
  vector.store(%s, %C[1:+2, 3:+20])
  return
}
"""
    assert check_pieces(text, {"M": 3, "K": 4, "N": 25}) == [
        "%zero = arith.constant(0.0) : vector<f32[16]>",
        "%zero.1 = arith.constant(0.0) : vector<f32[4]>",
        "%s, %s.1, %s.2, %s.3 = scf.for(%k = 0 to K, %acc = %zero, %acc.1 = %zero.1, %acc.2 = %zero, %acc.3 = %zero.1) {",
        "%a = memref.load(%A[1, %k]) : f32",
        "%a.x4 = vector.broadcast(%a) : vector<f32[4]>",
        "%a.x16 = vector.broadcast(%a) : vector<f32[16]>",
        "%a.1 = memref.load(%A[2, %k]) : f32",
        "%a.x4.1 = vector.broadcast(%a.1) : vector<f32[4]>",
        "%a.x16.1 = vector.broadcast(%a.1) : vector<f32[16]>",
        "%b = vector.load(%B[%k, 3:+16]) : vector<f32[16]>",
        "%b.1 = vector.load(%B[%k, 19:+4]) : vector<f32[4]>",
        "%t = math.fma(%a.x16, %b, %acc) : vector<f32[16]>",
        "%t.1 = math.fma(%a.x4, %b.1, %acc.1) : vector<f32[4]>",
        "%t.2 = math.fma(%a.x16.1, %b, %acc.2) : vector<f32[16]>",
        "%t.3 = math.fma(%a.x4.1, %b.1, %acc.3) : vector<f32[4]>",
        "yield %t, %t.1, %t.2, %t.3",
        "} : vector<f32[16]>, vector<f32[4]>, vector<f32[16]>, vector<f32[4]>",
        "vector.store(%s, %C[1, 3:+16])",
        "vector.store(%s.1, %C[1, 19:+4])",
        "vector.store(%s.2, %C[2, 3:+16])",
        "vector.store(%s.3, %C[2, 19:+4])",
    ]


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_the_matrix_product_with_its_epilogue(lanes):
    pipeline = f"vectorize{{loops=[m, n]}},unroll-vectors{{lanes={lanes}}}"
    sizes = ({"M": 16, "N": 100, "K": 5}, {"M": 8, "N": 48, "K": 1}, {"M": 8, "N": 3, "K": 0}, {"M": 0, "N": 3, "K": 4})
    lines = check_pieces(MATMUL, *sizes, pipeline=pipeline, lanes=lanes)
    assert sum("math.fma" in line for line in lines) == 8 * 48 // lanes
    assert sum("vector.store" in line for line in lines) == 8 * 48 // lanes
    assert sum("memref.load" in line for line in lines) == 8
    assert sum("vector.broadcast" in line for line in lines) == 8  # the zeros are constants


def test_speed():
    """Microseconds an operation; generous, since machines differ."""
    module = load(MATMUL)
    vectorize, unroll = load_pipeline("vectorize{loops=[m, n]},unroll-vectors")
    vectorize.run(module, PassContext())
    start = time.process_time()
    unroll.run(module, PassContext())
    assert time.process_time() - start < 0.2


def test_masks():
    parameters = "%A: memref<f32[B, N]>, %C: memref<f32[B, N]>"
    text = program(
        parameters,
        """
%n = memref.dim(%A, axis=1) : index
scf.for(%j = 0 to N step 33) {
  %left = arith.subi(%n, %j) : index
  %a = vector.load(%A[0:+2, %j:+33], valid=%left, pad=2.5) : vector<f32[2, 33]>
  %t = math.exp(%a) : vector<f32[2, 33]>
  vector.store(%t, %C[0:+2, %j:+33], valid=%left)
  yield
}
""",
    )
    lines = check_pieces(text, *({"B": 2, "N": n} for n in (1, 15, 16, 17, 31, 32, 33, 34, 70)))
    assert "%a.1 = vector.load(%A[0, %j+16:+16], valid=%left.16, pad=2.5) : vector<f32[16]>" in lines
    assert sum(line.startswith("scf.if") or "= scf.if" in line for line in lines) == 4


def test_a_known_number_of_valid_lanes():
    text = program(
        "%A: memref<f32[1, 40]>, %C: memref<f32[1, 48]>",
        """
%n = arith.constant(20) : index
%a = vector.load(%A[0, 0:+48], valid=%n, pad=-1.0) : vector<f32[1, 48]>
vector.store(%a, %C[0, 0:+48])
%b = vector.load(%A[0, 20:+48], valid=%n) : vector<f32[48]>
vector.store(%b, %C[0, 1:+48], valid=%n)
""",
    )
    assert check_pieces(text) == [
        "%n = arith.constant(20) : index",
        "%n.16 = arith.constant(4) : index",
        "%a = vector.load(%A[0, 0:+16]) : vector<f32[16]>",
        "%a.1 = vector.load(%A[0, 16:+16], valid=%n.16, pad=-1.0) : vector<f32[16]>",
        "%a.2 = arith.constant(-1.0) : vector<f32[16]>",
        "vector.store(%a, %C[0, 0:+16])",
        "vector.store(%a.1, %C[0, 16:+16])",
        "vector.store(%a.2, %C[0, 32:+16])",
        "%b = vector.load(%A[0, 20:+16]) : vector<f32[16]>",
        "%b.1 = vector.load(%A[0, 36:+16], valid=%n.16) : vector<f32[16]>",
        "%b.2 = arith.constant(0.0) : vector<f32[16]>",
        "vector.store(%b, %C[0, 1:+16])",
        "vector.store(%b.1, %C[0, 17:+16], valid=%n.16)",
    ]


def test_columns_and_single_elements():
    text = program(
        "%A: memref<f32[4, 4]>, %x: memref<f32[]>, %C: memref<f32[4, 4]>, %D: memref<f32[]>",
        """
%a = vector.load(%A[0:+4, 2]) : vector<f32[4]>
%b = vector.load(%A[0:+4, 1]) : vector<f32[4, 1]>
%one = vector.load(%A[3, 3]) : vector<f32[1, 1]>
%s = vector.load(%x[]) : vector<f32[]>
%t = arith.addf(%a, %one) : vector<f32[1, 4]>
%u = arith.addf(%b, %s) : vector<f32[4, 1]>
%v = arith.mulf(%t, %u) : vector<f32[4, 4]>
vector.store(%v, %C[0:+4, 0:+4])
vector.store(%a, %C[0:+4, 3])
vector.store(%u, %C[0:+4, 0:+1])
vector.store(%s, %D[])
""",
    )
    lines = check_pieces(text)
    assert sum("vector.insert" in line for line in lines) == 3 and "memref.store(%s, %D[])" in lines


@pytest.mark.parametrize("shape", ["3, 4", "16, 16", "2, 32", "5, 1", "1, 7", "17, 3", "1, 16"])
def test_transposes(shape):
    m, n = shape.split(", ")
    text = program(
        f"%A: memref<f32[{shape}]>, %C: memref<f32[{n}, {m}]>",
        f"""
%a = vector.load(%A[0:+{m}, 0:+{n}]) : vector<f32[{shape}]>
%t = vector.transpose(%a, perm=[1, 0]) : vector<f32[{n}, {m}]>
vector.store(%t, %C[0:+{n}, 0:+{m}])
""",
    )
    lines = check_pieces(text)
    if "1" not in shape.split(", "):
        assert not any("vector.insert" in line for line in lines) or m == "17", "pieces are shuffled"


@pytest.mark.parametrize(("shape", "lanes"), [((32, 16), 16), ((16, 48), 16), ((8, 8), 8), ((4, 12), 4)])
def test_transposes_of_squares_take_few_shuffles(shape, lanes):
    m, n = shape
    text = program(
        f"%A: memref<f32[{m}, {n}]>, %C: memref<f32[{n}, {m}]>",
        f"""
%a = vector.load(%A[0:+{m}, 0:+{n}]) : vector<f32[{m}, {n}]>
%t = vector.transpose(%a, perm=[1, 0]) : vector<f32[{n}, {m}]>
vector.store(%t, %C[0:+{n}, 0:+{m}])
""",
    )
    lines = check_pieces(text, lanes=lanes, pipeline=f"unroll-vectors{{lanes={lanes}}}")
    assert sum("vector.shuffle" in line for line in lines) == m * n // lanes * (lanes.bit_length() - 1)


def test_transposes_of_rows_move_nothing():
    text = program(
        "%A: memref<f32[2, 3, 16]>, %C: memref<f32[3, 2, 16]>",
        """
%a = vector.load(%A[0:+2, 0:+3, 0:+16]) : vector<f32[2, 3, 16]>
%t = vector.transpose(%a, perm=[1, 0, 2]) : vector<f32[3, 2, 16]>
vector.store(%t, %C[0:+3, 0:+2, 0:+16])
""",
    )
    assert all("vector.load" in line or "vector.store" in line for line in check_pieces(text))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *[("48", "3, 16"), ("3, 16", "48"), ("2, 24", "48"), ("6, 8", "3, 16"), ("12", "3, 4")],
        *[("4, 1", "4"), ("4", "4, 1"), ("1, 33", "33"), ("3, 11", "33, 1")],
    ],
)
def test_reshapes(source, target):
    runs = [", ".join(f"0:+{d}" for d in s.split(", ")) for s in (source, target)]
    text = program(
        f"%A: memref<i32[{source}]>, %C: memref<i32[{target}]>",
        f"""
%a = vector.load(%A[{runs[0]}]) : vector<i32[{source}]>
%t = vector.reshape(%a) : vector<i32[{target}]>
vector.store(%t, %C[{runs[1]}])
""",
    )
    check_pieces(text)


def test_parts():
    text = program(
        "%A: memref<f32[2, 3, 20]>, %C: memref<f32[20]>, %D: memref<f32[3, 20]>, %E: memref<f32[2, 3, 20]>, %x: memref<f32[4]>",
        """
%a = vector.load(%A[0:+2, 0:+3, 0:+20]) : vector<f32[2, 3, 20]>
%row = vector.extract(%a, position=[1, 2]) : vector<f32[20]>
%block = vector.extract(%a, position=[1]) : vector<f32[3, 20]>
%e = vector.extract(%a, position=[0, 1, 17]) : f32
%f = math.exp(%e) : f32
memref.store(%f, %x[1])
vector.store(%row, %C[0:+20])
vector.store(%block, %D[0:+3, 0:+20])
%b = vector.insert(%row, %a, position=[0, 1]) : vector<f32[2, 3, 20]>
%c = vector.insert(%block, %b, position=[0]) : vector<f32[2, 3, 20]>
%d = vector.insert(%f, %c, position=[1, 1, 19]) : vector<f32[2, 3, 20]>
vector.store(%d, %E[0:+2, 0:+3, 0:+20])
%col = vector.load(%x[0:+1]) : vector<f32[1]>
%g = vector.insert(%e, %col, position=[0]) : vector<f32[1]>
%h = vector.extract(%g, position=[0]) : f32
memref.store(%h, %x[2])
%q = vector.shuffle(%row, %row, mask=[39, 1, 21, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 0]) : vector<f32[19]>
vector.store(%q, %C[1:+19])
""",
    )
    check_pieces(text)


def test_numbers_and_constants():
    numbers = ", ".join(map(str, range(10, 30)))
    text = program(
        "%C: memref<i32[40]>, %D: memref<i32[20]>, %E: memref<i32[2, 3]>, %F: memref<bool[32]>",
        f"""
%s = vector.step() : vector<i32[40]>
vector.store(%s, %C[0:+40])
%k = arith.constant([{numbers}]) : vector<i32[20]>
vector.store(%k, %D[0:+20])
%m = arith.constant([[1, 2, 3], [1, 2, 3]]) : vector<i32[2, 3]>
%one = vector.step() : vector<i32[1]>
%n = arith.addi(%m, %one) : vector<i32[2, 3]>
vector.store(%n, %E[0:+2, 0:+3])
%t = vector.step() : vector<i32[32]>
%c = arith.constant(17) : i32
%b = arith.cmpi(%t, %c, predicate="lt") : vector<bool[32]>
vector.store(%b, %F[0:+32])
""",
    )
    lines = check_pieces(text)
    assert sum(line.startswith("%m") for line in lines) == 1, "equal rows are one constant"
    assert not any(line.startswith("%c = ") for line in lines), "the scalar is not needed any more"


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "u8"])
@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
def test_reductions(dtype, kind):
    if kind == "mul" and dtype.startswith("f"):
        dtype = "f64"  # products of ten numbers are exact there
    lines = f"%a = vector.load(%A[0:+3, 0:+2, 0:+21]) : vector<{dtype}[3, 2, 21]>\n"
    results = {"0": "2, 21", "1": "3, 21", "2": "3, 2", "0, 1": "21", "1, 2": "3", "0, 2": "2"}
    parameters = [f"%A: memref<{dtype}[3, 2, 21]>", f"%S: memref<{dtype}[]>"]
    if kind == "mul" and dtype == "f64":
        results = {"0": "2, 21", "1": "3, 21", "0, 1": "21"}
    for n, (axes, rest) in enumerate(results.items()):
        parameters.append(f"%C{n}: memref<{dtype}[{rest}]>")
        runs = ", ".join(f"0:+{d}" for d in rest.split(", "))
        lines += f'%r{n} = vector.multi_reduction(%a, kind="{kind}", axes=[{axes}]) : vector<{dtype}[{rest}]>\nvector.store(%r{n}, %C{n}[{runs}])\n'
    if len(results) > 3:
        lines += f'%s = vector.multi_reduction(%a, kind="{kind}", axes=[0, 1, 2]) : {dtype}\nmemref.store(%s, %S[])\n'
    check_pieces(program(", ".join(parameters), lines), exact=True)


@pytest.mark.parametrize(("rows", "width", "shuffles"), [(12, 16, 24), (16, 16, 30), (3, 16, 10), (5, 8, 12), (2, 4, 4)])
@pytest.mark.parametrize("kind", ["add", "max"])
def test_reductions_of_several_rows(rows, width, shuffles, kind):
    text = program(
        f"%A: memref<f32[{rows}, {width}]>, %C: memref<f32[{rows}]>",
        f"""
%a = vector.load(%A[0:+{rows}, 0:+{width}]) : vector<f32[{rows}, {width}]>
%r = vector.multi_reduction(%a, kind="{kind}", axes=[1]) : vector<f32[{rows}]>
vector.store(%r, %C[0:+{rows}])
""",
    )
    lines = check_pieces(text, exact=True)
    joined = sum("vector.shuffle" in line for line in lines)
    assert shuffles <= joined <= shuffles + 1, "two for every two pieces, and one for the rows that there are"
    a = random_arrays(load(text), {})[0]
    after = transformed(text, PASS)[1]
    c = np.zeros(rows, np.float32)
    Interpreter(after, {}).run(after.graphs["main"], [a, c])
    halves = a
    while kind == "add" and halves.shape[1] > 1:
        halves = halves[:, : halves.shape[1] // 2] + halves[:, halves.shape[1] // 2 :]
    assert np.array_equal(c, halves[:, 0] if kind == "add" else a.max(axis=1)), "the order of each row is the one it has alone"


def test_choices_and_carried_values():
    text = program(
        "%flag: memref<bool[K]>, %A: memref<f32[K, 2, 20]>, %C: memref<f32[2, 20]>, %D: memref<i64[K]>",
        """
%zero = arith.constant(0.0) : f32
%z = vector.broadcast(%zero) : vector<f32[2, 20]>
%start = arith.constant(1) : i64
%s, %count, %one = scf.for(%k = 0 to K, %acc = %z, %n = %start, %w = %zero) {
  %f = memref.load(%flag[%k]) : bool
  %a = vector.load(%A[%k, 0:+2, 0:+20]) : vector<f32[1, 2, 20]>
  %b = vector.reshape(%a) : vector<f32[2, 20]>
  %t, %m = scf.if(%f) {
    %u = arith.addf(%acc, %b) : vector<f32[2, 20]>
    %e = vector.extract(%u, position=[1, 19]) : f32
    yield %u, %e
  } {
    %v = arith.select(%f, %b, %acc) : vector<f32[2, 20]>
    yield %v, %w
  } : vector<f32[2, 20]>, f32
  memref.store(%n, %D[%k])
  %p = arith.addi(%n, %start) : i64
  yield %t, %p, %m
} : vector<f32[2, 20]>, i64, f32
%r = arith.addf(%s, %one) : vector<f32[2, 20]>
vector.store(%r, %C[0:+2, 0:+20])
""",
    )
    lines = check_pieces(text, {"K": 5}, {"K": 1}, {"K": 0})
    assert "%one.x16 = vector.broadcast(%one) : vector<f32[16]>" in lines


def test_scalars_are_broadcast_where_they_are_defined():
    text = """
graph @main(%A: memref<f32[B, 64]>, %x: memref<f32[1]>, %C: memref<f32[B, 64]>) {
  %s = memref.load(%x[0]) : f32
  scf.for(%i = 0 to B) {
    scf.for(%j = 0 to 64 step 16) {
      %a = vector.load(%A[%i, %j:+16]) : vector<f32[1, 16]>
      %t = arith.addf(%a, %s) : vector<f32[1, 16]>
      %u = arith.mulf(%t, %s) : vector<f32[1, 16]>
      vector.store(%u, %C[%i, %j:+16])
      yield
    }
    yield
  }
  return
}
"""
    lines = check_pieces(text, {"B": 3})
    assert lines[1] == "%s.x16 = vector.broadcast(%s) : vector<f32[16]>" and sum("broadcast" in line for line in lines) == 1


def test_programs_without_vectors_stay():
    text = "graph @main(%A: memref<f32[B]>) {\n  scf.for(%i = 0 to B) {\n    yield\n  }\n  return\n}\n"
    before, after, _ = transformed(text, PASS)
    assert str(before) == str(after)


def test_comments_stay():
    parameters = "%A: memref<f32[1, 32]>, %C: memref<f32[1, 32]>"
    text = program(parameters, "// read\n%a = vector.load(%A[0, 0:+32])\n// write\nvector.store(%a, %C[0, 0:+32])")
    assert [line for line in check_pieces(text) if line.startswith("//")] == ["// read", "// write"]


def test_an_empty_loop_keeps_its_start():
    text = program(
        "%A: memref<f32[1, 32]>, %C: memref<f32[1, 32]>",
        """
%a = vector.load(%A[0, 0:+32]) : vector<f32[1, 32]>
%r = scf.for(%i = 0 to 0, %v = %a) {
  %w = arith.addf(%v, %v) : vector<f32[1, 32]>
  yield %w
} : vector<f32[1, 32]>
vector.store(%r, %C[0, 0:+32])
""",
    )
    check_pieces(text)


def test_several_nests_use_their_own_names():
    nest = MATMUL[MATMUL.index("  scf.parallel") : MATMUL.rindex("  return")]
    other = re.sub(r"%(jt|it|i|j|k|s|acc|a|b|c|d|r|t)\b", r"%\1.other", nest)
    before, after, _ = transformed(MATMUL.replace(nest, nest + other), f"vectorize{{loops=[m, n]}},{PASS}")
    assert vector_types(after) == {VectorType(f32, (16,))}
    assert assert_same(before, after, random_arrays(before, {"M": 8, "N": 50, "K": 3}))


def test_wrong_options():
    with pytest.raises(GraphError, match="2 or more"):
        load_pipeline("unroll-vectors{lanes=1}")
