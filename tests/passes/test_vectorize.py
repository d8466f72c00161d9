"""``vectorize``: what becomes a vector, what stays and why; the same bits before and after."""

import numpy as np
import pytest
from vector_checks import MATMUL, assert_same, body, check, random_arrays, transformed

from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.pipelines import load_pipeline

PASS = "vectorize{loops=[m, n]}"


def nest(parameters: str, inner: str, before: str = "", loops: str = "%i = 0 to 4|%j = 0 to 8", where: str = "") -> str:
    """A program with one perfect nest, tags m and n."""
    lines = [f"graph @main({parameters}){where} {{", *before.strip().splitlines()]
    heads = list(zip(loops.split("|"), ("m", "n"), strict=False))
    lines += [f'scf.parallel({head}, tag="{tag}") {{' for head, tag in heads]
    lines += [*inner.strip().splitlines(), *["yield\n}"] * len(heads), "return\n}"]
    return "\n".join(lines) + "\n"


def left(text: str, pipeline: str = PASS) -> str:
    """Why a nest stays as it is."""
    before, after, statistics = transformed(text, pipeline)
    assert str(before) == str(after)
    (reason,) = statistics
    return reason.removeprefix("left: ")


def test_a_matrix_product_with_its_epilogue():
    after = check(MATMUL, PASS, {"M": 16, "N": 100, "K": 5}, {"M": 8, "N": 48, "K": 1}, {"M": 8, "N": 3, "K": 0}, {"M": 0, "N": 3, "K": 4})
    assert body(after)[3:-2] == [
        "%j.dim = memref.dim(%B, axis=1) : index",
        "%j.subi = arith.subi(%j.dim, %jt) : index",
        "%zero.broadcast = vector.broadcast(%zero) : vector<f32[8, 48]>",
        '%s = scf.for(%k = 0 to K, %acc = %zero.broadcast, tag="k") {',
        "%a = vector.load(%A[%it:+8, %k]) : vector<f32[8, 1]>",
        "%b = vector.load(%B[%k, %jt:+48], valid=%j.subi) : vector<f32[1, 48]>",
        "%t = math.fma(%a, %b, %acc) : vector<f32[8, 48]>",
        "yield %t",
        "} : vector<f32[8, 48]>",
        "%c.load = vector.load(%bias[%jt:+48], valid=%j.subi) : vector<f32[48]>",
        "%c = vector.reshape(%c.load) : vector<f32[1, 48]>",
        "%d = arith.addf(%s, %c) : vector<f32[8, 48]>",
        "%r = arith.maximumf(%d, %zero) : vector<f32[8, 48]>",
        "vector.store(%r, %C[%it:+8, %jt:+48], valid=%j.subi)",
        "yield",
        "}",
    ]


def test_nothing_written_beyond_the_edge():
    before, after, _ = transformed(MATMUL, PASS)
    arrays = random_arrays(before, {"M": 8, "N": 50, "K": 3})
    wide = np.full((8, 100), 7, np.float32)
    arrays[-1] = wide[:, :50].copy()
    assert_same(before, after, arrays)


def test_a_packed_operand_is_read_without_a_mask():
    parameters = "%A: memref<f32[B, 7]>, %P: memref<f32[3, 7, 48]>, %C: memref<f32[B, 100]>"
    text = f"""
graph @main({parameters}) {{
  %zero = arith.constant(0.0) : f32
  scf.parallel(%jt = 0 to 100 step 48) {{
    scf.parallel(%i = 0 to 4, tag="m") {{
      scf.parallel(%j = %jt to min(%jt+48, 100), tag="n") {{
        %s = scf.for(%k = 0 to 7, %acc = %zero) {{
          %a = memref.load(%A[%i, %k]) : f32
          %b = memref.load(%P[%jt floordiv 48, %k, %j-%jt]) : f32
          %t = math.fma(%a, %b, %acc) : f32
          yield %t
        }} : f32
        memref.store(%s, %C[%i, %j])
        yield
      }}
      yield
    }}
    yield
  }}
  return
}}
"""
    lines = body(check(text, PASS, {"B": 4}))
    assert "%b.load = vector.load(%P[%jt floordiv 48, %k, 0:+48]) : vector<f32[1, 1, 48]>" in lines
    assert "%b = vector.reshape(%b.load) : vector<f32[1, 48]>" in lines
    assert "%j.subi = arith.subi(%j.constant, %jt) : index" in lines


def test_transposed_accesses():
    text = nest(
        "%A: memref<f32[8, 4]>, %D: memref<f32[8, 2, 4]>, %C: memref<f32[8, 5, 4]>, %E: memref<f32[4, 8]>",
        """
%a = memref.load(%A[%j, %i]) : f32
%d = memref.load(%D[%j, 1, %i]) : f32
%s = arith.subf(%a, %d) : f32
memref.store(%s, %C[%j, 3, %i])
memref.store(%s, %E[%i, %j])
""",
    )
    assert body(check(text, PASS)) == [
        "%a.load = vector.load(%A[0:+8, 0:+4]) : vector<f32[8, 4]>",
        "%a = vector.transpose(%a.load, perm=[1, 0]) : vector<f32[4, 8]>",
        "%d.load = vector.load(%D[0:+8, 1, 0:+4]) : vector<f32[8, 1, 4]>",
        "%d.load.reshape = vector.reshape(%d.load) : vector<f32[8, 4]>",
        "%d = vector.transpose(%d.load.reshape, perm=[1, 0]) : vector<f32[4, 8]>",
        "%s = arith.subf(%a, %d) : vector<f32[4, 8]>",
        "%s.transpose = vector.transpose(%s, perm=[1, 0]) : vector<f32[8, 4]>",
        "vector.store(%s.transpose, %C[0:+8, 3, 0:+4])",
        "vector.store(%s, %E[0:+4, 0:+8])",
    ]


def test_three_axes_in_every_order():
    text = """
graph @main(%A: memref<f32[4, 2, 3]>, %B: memref<f32[3, 4]>, %C: memref<f32[3, 4, 2]>) {
  scf.parallel(%x = 0 to 2, tag="x") {
    scf.parallel(%y = 0 to 3, tag="y") {
      scf.parallel(%z = 0 to 4, tag="z") {
        %a = memref.load(%A[%z, %x, %y]) : f32
        %b = memref.load(%B[%y, %z]) : f32
        %t = arith.subf(%a, %b) : f32
        memref.store(%t, %C[%y, %z, %x])
        yield
      }
      yield
    }
    yield
  }
  return
}
"""
    lines = body(check(text, "vectorize{loops=[x, y, z]}"))
    assert lines[1] == "%a = vector.transpose(%a.load, perm=[1, 2, 0]) : vector<f32[2, 3, 4]>"
    assert lines[3] == "%b = vector.reshape(%b.load) : vector<f32[1, 3, 4]>"


def test_scalars_stay_scalars():
    text = nest(
        "%A: memref<f32[B, 8]>, %x: memref<f32[2]>, %C: memref<f32[B, 8]>",
        """
%s = memref.load(%x[1]) : f32
%e = math.exp(%s) : f32
%a = memref.load(%A[%i, %j]) : f32
%t = arith.mulf(%a, %e) : f32
memref.store(%t, %C[%i, %j])
""",
    )
    lines = body(check(text, PASS, {"B": 4}))
    assert lines[0] == "%s = memref.load(%x[1]) : f32" and lines[1] == "%e = math.exp(%s) : f32"


def test_an_invariant_is_broadcast_for_a_store():
    text = nest("%A: memref<f32[4]>, %C: memref<f32[4, 8]>", "%a = memref.load(%A[%i]) : f32\nmemref.store(%a, %C[%i, %j])")
    assert "%a.broadcast = vector.broadcast(%a) : vector<f32[4, 8]>" in body(check(text, PASS))


def test_one_loop_of_a_matrix_of_rank_three():
    text = nest(
        "%A: memref<f32[3, 2, 8]>, %C: memref<f32[3, 2, 8]>",
        "%a = memref.load(%A[2, 1, %j]) : f32\n%t = math.exp(%a) : f32\nmemref.store(%t, %C[1, 0, %j])",
        loops="%j = 2 to 8",
    )
    assert body(check(text.replace('tag="m"', 'tag="n"'), "vectorize{loops=[n]}")) == [
        "%a = vector.load(%A[2, 1, 2:+6]) : vector<f32[6]>",
        "%t = math.exp(%a) : vector<f32[6]>",
        "vector.store(%t, %C[1, 0, 2:+6])",
    ]


def test_a_loop_of_one_round_is_no_axis():
    text = nest(
        "%A: memref<f32[9, 16]>, %C: memref<f32[9, 8]>",
        "%a = memref.load(%A[2*%i+1, %j]) : f32\n%n = arith.index_cast(%i) : i32\n%f = arith.sitofp(%n) : f32\n"
        "%t = arith.addf(%a, %f) : f32\nmemref.store(%t, %C[%i, %j])",
        loops="%i = 3 to 4|%j = 0 to 8",
    )
    lines = body(check(text, PASS))
    assert "%a = vector.load(%A[7, 0:+8]) : vector<f32[1, 8]>" in lines and "%n = arith.index_cast(%i.constant) : i32" in lines


def test_loop_variables_as_numbers():
    text = nest(
        "%x: memref<i64[B]>, %C: memref<i32[8, B]>, %D: memref<f32[8, B]>",
        """
%s = arith.addi(%i, %j) : index
%n = arith.index_cast(%s) : i32
memref.store(%n, %C[%i, %j])
%m = arith.index_cast(%j) : i64
%f = arith.sitofp(%m) : f32
memref.store(%f, %D[%i, %j])
""",
        loops="%i = %t to %t+4|%j = B-8 to B",
        before="%t = arith.constant(3) : index",
    )
    lines = body(check(text, PASS, {"B": 9}))
    assert "%i = arith.addi(%t, %i.step.reshape) : vector<index[4, 1]>" in lines
    assert "%s = arith.addi(%i, %j) : vector<index[4, 8]>" in lines


def test_inner_loops_and_choices():
    text = nest(
        "%A: memref<f32[4, K]>, %B: memref<f32[K, 8]>, %flag: memref<bool[K]>, %C: memref<f32[4, 8]>, %D: memref<f32[3, 4, 8]>",
        """
%s, %u = scf.for(%k = 0 to K, %acc = %zero, %last = %zero) {
  %f = memref.load(%flag[%k]) : bool
  %a = memref.load(%A[%i, %k]) : f32
  %t, %v = scf.if(%f) {
    %b = memref.load(%B[%k, %j]) : f32
    %p = math.fma(%a, %b, %acc) : f32
    yield %p, %a
  } {
    yield %acc, %zero
  } : f32, f32
  yield %t, %v
} : f32, f32
%r = arith.addf(%s, %u) : f32
memref.store(%r, %C[%i, %j])
scf.parallel(%q = 0 to 3) {
  %g = memref.load(%flag[%q]) : bool
  scf.if(%g) {
    memref.store(%u, %D[%q, %i, %j])
    yield
  }
  yield
}
""",
        before="%zero = arith.constant(0.0) : f32",
    )
    lines = body(check(text, PASS, {"K": 6}, {"K": 3}))
    assert "} : vector<f32[4, 8]>, vector<f32[4, 1]>" in lines


def test_a_convolution():
    text = nest(
        "%X: memref<f32[3, 12]>, %W: memref<f32[4, 3, 5]>, %C: memref<f32[4, 8]>",
        """
%s = scf.for(%c = 0 to 3, %outer = %zero) {
  %q = scf.for(%k = 0 to 5, %acc = %outer) {
    %x = memref.load(%X[%c, %j+%k]) : f32
    %w = memref.load(%W[%i, %c, %k]) : f32
    %t = math.fma(%x, %w, %acc) : f32
    yield %t
  } : f32
  yield %q
} : f32
memref.store(%s, %C[%i, %j])
""",
        before="%zero = arith.constant(0.0) : f32",
    )
    assert "%x = vector.load(%X[%c, %k:+8]) : vector<f32[1, 8]>" in body(check(text, PASS))


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_narrow_and_wide_floats(dtype):
    text = nest(
        f"%A: memref<{dtype}[4, 8]>, %C: memref<{dtype}[4, 8]>",
        f"%a = memref.load(%A[%i, %j]) : {dtype}\n%b = memref.load(%A[%i, 0]) : {dtype}\n"
        f"%t = arith.mulf(%a, %b) : {dtype}\nmemref.store(%t, %C[%i, %j])",
    )
    check(text, PASS)


def test_conversions_and_integers():
    text = nest(
        "%A: memref<f16[4, 8]>, %B: memref<i8[8]>, %C: memref<i32[4, 8]>, %D: memref<bool[4, 8]>",
        """
%a = memref.load(%A[%i, %j]) : f16
%w = arith.extf(%a) : f32
%n = arith.fptosi(%w) : i32
%b = memref.load(%B[%j]) : i8
%e = arith.extsi(%b) : i32
%two = arith.constant(2) : i32
%h = arith.divsi(%e, %two) : i32
%m = arith.maxsi(%n, %h) : i32
%less = arith.cmpi(%n, %e, predicate="lt") : bool
%r = arith.select(%less, %m, %two) : i32
%q = arith.shli(%r, %two) : i32
memref.store(%q, %C[%i, %j])
memref.store(%less, %D[%i, %j])
""",
    )
    lines = body(check(text, PASS))
    assert "%two = arith.constant(2) : i32" in lines and "%h = arith.divsi(%e, %two) : vector<i32[1, 8]>" in lines


MASKED = """
graph @main(%A: memref<i32[N]>, %C: memref<i32[N]>, %x: memref<i32[1]>) {
  scf.parallel(%jt = START to N step 8) {
    scf.parallel(%j = %jt to min(%jt+8, STOP), tag="n") {
      %a = memref.load(%A[%j]) : i32
      %b = memref.load(%x[0]) : i32
      %t = BODY
      memref.store(%t, %C[%j])
      yield
    }
    yield
  }
  return
}
"""


def test_divisions_in_partial_tiles():
    text = MASKED.replace("START", "0").replace("STOP", "N")
    assert left(text.replace("BODY", "arith.divsi(%b, %a) : i32"), "vectorize{loops=[n]}") == "arith.divsi in lanes that may be unused"
    after = check(text.replace("BODY", "arith.addi(%a, %b) : i32"), "vectorize{loops=[n]}", {"N": 13}, {"N": 8}, {"N": 1}, {"N": 0})
    assert "scf.if" not in str(after)
    before, after, _ = transformed(text.replace("BODY", "arith.divsi(%a, %b) : i32"), "vectorize{loops=[n]}")
    arrays = [np.arange(11, dtype=np.int32), np.zeros(11, np.int32), np.array([3], np.int32)]
    assert_same(before, after, arrays)
    arrays[2][0] = 0
    with pytest.raises(GraphError, match="division by zero"):
        Interpreter(after).run(after.graphs["main"], arrays)


def test_a_partial_tile_that_may_have_no_round():
    """What does not vary may fail: it is not run for a tile that is empty."""
    text = MASKED.replace("START", "0").replace("STOP", "N-3").replace("BODY", "arith.divsi(%a, %b) : i32")
    before, after, _ = transformed(text, "vectorize{loops=[n]}")
    assert body(after).count("scf.if(%some) {") == 1
    for n in (0, 1, 3, 4, 11, 12):
        arrays = [np.arange(n, dtype=np.int32), np.full(n, 5, np.int32), np.array([2 if n > 3 else 0], np.int32)]
        want, found = [a.copy() for a in arrays], [a.copy() for a in arrays]
        Interpreter(before).run(before.graphs["main"], want)
        Interpreter(after).run(after.graphs["main"], found)
        assert all(map(np.array_equal, want, found))


STORE = "memref.store(%a, %C[%i, %j])"
ROW = "%a = memref.load(%A[%i, %j]) : f32\n"


@pytest.mark.parametrize(
    ("inner", "loops", "reason"),
    [
        (ROW.replace("%j]", "2*%j]") + STORE, None, "a loop variable with a factor in an index"),
        (ROW.replace("%j]", "7-%j]") + STORE, None, "a loop variable with a factor in an index"),
        (ROW.replace("%i, %j]", "%i, %j+%i]") + STORE, None, "two loop variables in one index"),
        (ROW.replace("%i, %j]", "%j, %j]") + STORE, None, "a loop variable in two indices"),
        (ROW.replace("%j]", "%j mod 4]") + STORE, None, "an index that is not affine in a loop variable"),
        (ROW.replace("%j]", "%i*%j]") + STORE, None, "an index that is not affine in a loop variable"),
        ("%n = memref.load(%I[%j]) : index\n" + ROW.replace("%j]", "%n]") + STORE, None, "an index that varies is computed (gather or scatter)"),
        (ROW + "memref.store(%a, %C[%i, 0])", None, "a store to one place in all rounds"),
        (ROW + "memref.store(%a, %D[])", None, "a store to one place in all rounds"),
        (ROW + '%f = arith.cmpf(%a, %a, predicate="lt") : bool\nscf.if(%f) {\n' + STORE + "\nyield\n}", None, "a choice that varies"),
        (ROW + "scf.for(%k = 0 to %j) {\n" + STORE + "\nyield\n}", None, "an inner loop whose bounds vary"),
        ("%T = memref.alloc() : memref<f32[2]>\n" + ROW + STORE, None, "memref.alloc in the loop"),
        (ROW + "%v = vector.broadcast(%a) : vector<f32[2]>\n" + STORE, None, "vector.broadcast of a value that varies"),
        (ROW + STORE, "%i = 0 to 4|%j = 0 to 8 step 2", "a loop with a step"),
        (ROW + STORE, "%i = 0 to 4|%j = %i to %i+8", "a loop whose bounds depend on another one"),
        (ROW + STORE, "%i = 0 to B|%j = 0 to 8", "a loop without a constant number of rounds"),
        (ROW + STORE, "%i = 0 to min(8, B)|%j = 0 to 8", "a loop without a constant number of rounds"),
        (ROW + STORE, "%i = 0 to 8|%j = 0 to 0", "a loop without a constant number of rounds"),
        (ROW + STORE, "%i = 0 to 64|%j = 0 to 64", "more than 1024 elements"),
        (ROW.replace("%i, %j]", "%j, %i]") + STORE, "%i = 0 to 4|%j = 0 to min(8, B)", "a loop of partial tiles is not the last index"),
    ],
)
def test_what_stays(inner, loops, reason):
    parameters = "%A: memref<f32[B, B]>, %C: memref<f32[B, B]>, %D: memref<f32[]>, %I: memref<index[B]>"
    assert left(nest(parameters, inner, loops=loops or "%i = 0 to 4|%j = 0 to 8")) == reason


def test_what_is_no_nest_is_not_touched():
    for text in (
        MATMUL.replace('tag="m"', 'tag="rows"'),
        MATMUL.replace('tag="m") {', 'tag="m") {\n%one = arith.constant(1.0) : f32'),
        MATMUL.replace('%i = %it to %it+8, tag="m"', '%i = %it to %it+8, %z = 0 to 1, tag="m"'),
    ):
        before, after, statistics = transformed(text, PASS)
        assert str(before) == str(after) and not statistics


def test_an_inner_nest_of_one_that_stays():
    inner = """
scf.parallel(%p = 0 to 2, tag="m") {
  scf.parallel(%q = 0 to 2, tag="n") {
    %a = memref.load(%A[%p, %q]) : f32
    memref.store(%a, %C[%i, %j, %p, %q])
    yield
  }
  yield
}
%n = memref.load(%A[0, %j*%j]) : f32
"""
    text = nest("%A: memref<f32[4, 64]>, %C: memref<f32[4, 8, 2, 2]>", inner)
    before, after, statistics = transformed(text, PASS)
    assert statistics == {"left: an index that is not affine in a loop variable": 1, "nests vectorized": 1}
    assert_same(before, after, random_arrays(before, {}))


def test_comments_stay():
    text = nest("%A: memref<f32[4, 8]>, %C: memref<f32[4, 8]>", ROW + STORE).replace("scf.parallel(%i", "// the block\nscf.parallel(%i")
    assert body(check(text, PASS))[0] == "// the block"


def test_wrong_options():
    with pytest.raises(GraphError, match="one tag or more"):
        load_pipeline("vectorize{loops=[]}")
