"""What kernels do wrong, and is found: races, barriers that are missing or stand where only some threads go, copies nobody waits for."""

import ml_dtypes
import numpy as np
import pytest

import dialects  # noqa: F401  its operations
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.verifier import verify_module
from tests.dialects.gpu_programs import MATMUL, ROWS, matmul_inputs

bf16 = np.dtype(ml_dtypes.bfloat16)


def kernel(body, threads=64, grid="%bx = 0 to 1"):
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    head = "graph @main(%A: memref<f32[256]>, %J: memref<i32[256]>, %C: memref<f32[256]>) {\n"
    return f"{head}  gpu.launch({grid}, threads={threads}) {{\n    %t = gpu.thread_id() : index\n{lines}    yield\n  }}\n  return\n}}\n"


def run(text, *arrays):
    module = parse_module(text)
    verify_module(module)
    given = arrays or (np.arange(256, dtype=np.float32), np.zeros(256, np.int32), np.zeros(256, np.float32))
    Interpreter(module).run(module.graphs["main"], list(given))


def refused(text, *arrays):
    with pytest.raises(GraphError) as caught:
        run(text, *arrays)
    return str(caught.value)


def without(text, line):
    """The program without one line."""
    lines = text.splitlines(keepends=True)
    return "".join(lines[:line] + lines[line + 1 :])


# -- barriers left out -------------------------------------------------------------------------------------------------

SYNC = [i for i, line in enumerate(MATMUL.splitlines()) if any(name in line for name in ("gpu.barrier", "gpu.cp_wait", "gpu.cp_commit"))]


@pytest.mark.parametrize("line", SYNC, ids=[f"{i}-{MATMUL.splitlines()[i].strip()}" for i in SYNC])
def test_matmul_needs_each_barrier_wait_and_commit(line):
    message = refused(without(MATMUL, line), *matmul_inputs(64, 64, 64, bf16))
    assert "with no barrier between" in message or "no gpu.cp_wait has waited for it" in message


def test_a_reduction_needs_its_barrier():
    text = ROWS.replace("    gpu.barrier()\n", "")
    message = refused(text, np.ones((1, 64), np.float32), np.zeros((1, 64), np.float32))
    assert "memref.load: thread 1 reads %parts[0], which thread 0 writes too, with no barrier between" in message
    assert '%p = memref.load(%parts[0])' in message  # the place


# -- one element, two threads ------------------------------------------------------------------------------------------

SHARED = "%s = gpu.alloc() : memref<f32[8, 16], shared>\n%x = memref.load(%A[%t]) : f32\n%row = affine.apply(%t floordiv 16) : index\n"
WRITE = "memref.store(%x, %s[%row, %t mod 16])"
TWO = "%v = vector.broadcast(%x) : vector<f32[2]>\nvector.store(%v, %s[%row, %t mod 15:+2], valid=%t)"
FLAT = f"{WRITE}\n%f = memref.reshape(%s) : memref<f32[128], shared>\n%y = memref.load(%f[-%t+63]) : f32"
READ = "%y = memref.load(%s[-%row+3, %t mod 16]) : f32\nmemref.store(%y, %C[%t])"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{WRITE}\n{READ}", "thread 0 reads %s[3, 0], which thread 48 writes too"),
        (f'{WRITE}\ngpu.barrier(scope="warp")\n{READ}', "thread 0 reads %s[3, 0], which thread 48 writes too"),
        (f"{READ}\n{WRITE}", "thread 0 writes %s[0, 0], which thread 48 reads too"),
        ("memref.store(%x, %s[1, %t mod 16])", "writes %s[1, 0], which thread 48 writes too"),
        ("memref.store(%x, %s[7, 15])", "thread 0 writes %s[7, 15], which thread 63 writes too"),
        (f"%y = memref.load(%s[2, 3]) : f32\n{WRITE}", "thread 35 writes %s[2, 3], which several threads read too"),
        (TWO, "thread 1 writes %s[0, 1], which thread 15 writes too"),
        (FLAT, "thread 0 reads %f[63], which thread 63"),
    ],
)  # fmt: skip
def test_races(body, message):
    found = refused(kernel(SHARED + body))
    assert message in found and "with no barrier between" in found


@pytest.mark.parametrize(
    "body",
    [
        f"{WRITE}\ngpu.barrier()\n{READ}\ngpu.barrier()\n{WRITE}",
        f'{WRITE}\ngpu.barrier(scope="warp")\n%y = memref.load(%s[%row, -(%t mod 16)+15]) : f32',  # within a warp
        f"{WRITE}\n%y = memref.load(%s[%row, %t mod 16]) : f32\n{WRITE.replace('%x', '%y')}",  # each thread its own
        "%y = memref.load(%s[0, 0]) : f32\n%z = memref.load(%s[0, 0]) : f32",
    ],
)
def test_what_is_in_order(body):
    run(kernel(SHARED + body))


def test_a_warp_barrier_orders_a_warp_alone():
    """Readers of one warp, then a writer: in order for the warp of the readers, not for another one."""
    body = """
%two = arith.constant(32) : index
%low = arith.cmpi(%t, %two, predicate="lt") : bool
%n = arith.constant(0) : index
%one = arith.constant({}) : index
%me = arith.cmpi(%t, %one, predicate="eq") : bool
scf.if(%low) {{
  %y = memref.load(%s[5, 5]) : f32
  yield
}}
gpu.barrier(scope="warp")
scf.if(%me) {{
  memref.store(%x, %s[5, 5])
  yield
}}"""
    run(kernel(SHARED + body.format(7)))
    assert "thread 40 writes %s[5, 5], which several threads of warp 0 read too" in refused(kernel(SHARED + body.format(40)))


@pytest.mark.parametrize("operation", ['gpu.shuffle(%x, by=1)', 'gpu.warp_reduce(%x, kind="add")'])
def test_shuffles_order_no_memory(operation):
    body = f"{WRITE}\n%z = {operation} : f32\n%y = memref.load(%s[%row, -(%t mod 16)+15]) : f32"
    assert "with no barrier between" in refused(kernel(SHARED + body))


def test_ldmatrix_reads_for_the_whole_warp():
    """A row that its own thread has stored is still read by others."""
    body = """
%s = gpu.alloc() : memref<f16[32, 8], shared>
%z = arith.constant(1.0) : vector<f16[1, 8]>
vector.store(%z, %s[%t, 0:+8])
{}
%m = gpu.ldmatrix(%s[%t, 0:+8], count=4) : vector<f16[8]>"""
    assert "several threads of warp 0 read %s[0, 0], which thread 0 writes too" in refused(kernel(body.format(""), 32))
    run(kernel(body.format('gpu.barrier(scope="warp")'), 32))


def test_shared_memory_in_one_place():
    """A plan that puts two buffers into the same place is wrong where both are needed."""
    body = """
%p = gpu.alloc(offset=0) : memref<f32[64], shared>
%q = gpu.alloc(offset=128) : memref<f16[32], shared>
%x = memref.load(%A[%t]) : f32
memref.store(%x, %p[%t])
{}
%h = arith.truncf(%x) : f16
memref.store(%h, %q[%t floordiv 2])"""
    one = body.replace("%t floordiv 2", "%t").replace("f16[32]", "f16[64]")
    assert "thread 0 writes %q[0], which thread 32 writes too" in refused(kernel(one.format("")))
    run(kernel(one.format("gpu.barrier()")))


# -- global memory -----------------------------------------------------------------------------------------------------

FAR = "%y = memref.load(%C[{}]) : f32\ngpu.barrier()\nmemref.store(%x, %C[64*%bx+%t])"


@pytest.mark.parametrize(
    ("body", "grid", "message"),
    [
        ("memref.store(%x, %C[%t floordiv 2])", "%bx = 0 to 1", "thread 0 writes %C[0], which thread 1 writes too"),
        ("memref.store(%x, %C[%t])\n%y = memref.load(%C[%t+1]) : f32", "%bx = 0 to 1", "thread 0 reads %C[1], which thread 1 writes too"),
        ("memref.store(%x, %C[32*%bx+%t])", "%bx = 0 to 3", "thread 0 writes %C[32], which another block writes in the same launch"),
        (FAR.format(0), "%bx = 0 to 2", "thread 0 reads %C[0], which another block writes"),
        (FAR.format(64), "%bx = 0 to 2", "thread 0 writes %C[64], which other blocks read"),
        (FAR.format(128), "%bx = 0 to 3", "thread 0 writes %C[128], which other blocks read"),
    ],
)
def test_races_in_global_memory(body, grid, message):
    assert message in refused(kernel(f"%x = memref.load(%A[%t]) : f32\n{body}", grid=grid))


def test_blocks_and_launches_are_in_order():
    run(kernel("%x = memref.load(%C[64*%bx+%t]) : f32\nmemref.store(%x, %C[64*%bx+%t])\n%y = memref.load(%A[0]) : f32", grid="%bx = 0 to 4"))
    one = "gpu.launch(%{0} = 0 to 1, threads=1) {{\n    %z{0} = memref.load(%C[0]) : f32\n    memref.store(%z{0}, %C[0])\n    yield\n  }}\n  "
    run(kernel("gpu.barrier()").replace("  return", "  " + one.format("a") + one.format("b") + "return"))


COPIED = "%s = gpu.alloc() : memref<f32[256], shared>\n%l = gpu.alloc() : memref<f32[256], local>\n"


def test_whole_buffers():
    run(kernel(COPIED + "memref.copy(%A, %l)\n%x = memref.load(%l[%t]) : f32\nmemref.store(%x, %C[%t])"))
    run(kernel(COPIED + "memref.copy(%A, %s)\n%x = memref.load(%s[5]) : f32", 1))
    assert "thread 0 writes %s[0], which thread 63 writes too" in refused(kernel(COPIED + "memref.copy(%A, %s)"))
    assert "thread 0 writes %C[0], which thread 63 writes too" in refused(kernel(COPIED + "memref.copy(%A, %C)"))


# -- copies ------------------------------------------------------------------------------------------------------------

COPY = "%s = gpu.alloc() : memref<f32[64], shared>\ngpu.cp_async(%A[%t:+1], %s[%t:+1])\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%y = memref.load(%s[%t]) : f32", "thread 0 reads %s[0], where a gpu.cp_async of thread 0 is under way"),
        ("gpu.cp_commit()\ngpu.barrier()\n%y = memref.load(%s[-%t+63]) : f32", "reads %s[63], where a gpu.cp_async of thread 63 is under way"),
        ("gpu.cp_wait(pending=0)\n%y = memref.load(%s[%t]) : f32", "is under way: no gpu.cp_wait has waited"),  # not closed by a commit
        ("gpu.cp_commit()\ngpu.cp_wait(pending=0)\n%y = memref.load(%s[-%t+63]) : f32", "thread 0 reads %s[63], which thread 63 writes too"),
        ("gpu.cp_commit()", "thread 0 ends while its gpu.cp_async into %s is under way"),
        ("%y = memref.load(%A[0]) : f32\nmemref.store(%y, %s[%t])", "thread 0 writes %s[0], where a gpu.cp_async of thread 0 is under way"),
    ],
)
def test_copies_that_nobody_waits_for(body, message):
    assert message in refused(kernel(COPY + body))


def test_copies_that_are_waited_for():
    run(kernel(COPY + "gpu.cp_commit()\ngpu.cp_wait(pending=0)\n%y = memref.load(%s[%t]) : f32\ngpu.barrier()\n%z = memref.load(%s[-%t+63]) : f32"))


def test_places_that_are_not_aligned():
    body = "%s = gpu.alloc() : memref<f32[256], shared>\ngpu.cp_async(%A[{}:+2], %s[{}:+2])\ngpu.cp_commit()\ngpu.cp_wait(pending=0)"
    run(kernel(body.format("2*%t", "2*%t")))
    assert "byte 4 of %A is no multiple of 8 (thread 0 of the block)" in refused(kernel(body.format("2*%t+1", "2*%t")))
    assert "byte 4 of %s is no multiple of 8 (thread 0 of the block)" in refused(kernel(body.format("2*%t", "2*%t+1")))
    rows = "%s = gpu.alloc() : memref<f16[32, 12], shared>\n%m = gpu.ldmatrix(%s[%t mod 32, 0:+8], count=1) : vector<f16[2]>"
    assert "byte 24 of %s is no multiple of 16" in refused(kernel(rows))


# -- threads that go different ways ------------------------------------------------------------------------------------

PREPARED = """
%s = gpu.alloc() : memref<f32[64], shared>
%none = arith.constant(0) : index
%five = arith.constant(5) : index
%half = arith.constant(32) : index
%x = memref.load(%A[%t]) : f32
"""


def condition(make, inside):
    return f"{PREPARED}{make}\nscf.if(%c) {{\n  {inside}\n  yield\n}}"


BARRIER, WARP, REDUCE = "gpu.barrier()", 'gpu.barrier(scope="warp")', '%r = gpu.warp_reduce(%x, kind="add") : f32'
COMPARE = '%c = arith.cmpi({}, {}, predicate="{}") : bool'
LOOP = "scf.for(%i = {} to {} step {}) {{\n  {}\n  yield\n}}"


@pytest.mark.parametrize(
    ("make", "inside", "cause"),
    [
        (COMPARE.format("%t", "%five", "lt"), BARRIER, "%t, gpu.thread_id"),
        (COMPARE.format("%t", "%half", "lt"), BARRIER, "%t, gpu.thread_id"),
        (COMPARE.format("%t", "%half", "le"), WARP, "%t, gpu.thread_id"),
        (COMPARE.format("%t", "%five", "lt"), REDUCE, "%t, gpu.thread_id"),
        ("%w = affine.apply((%t+5*%bx) floordiv 32) : index\n" + COMPARE.format("%w", "%five", "eq"), WARP, "%t, gpu.thread_id"),
        ("%w = affine.apply(%t floordiv 16) : index\n" + COMPARE.format("%w", "%five", "eq"), WARP, "%t, gpu.thread_id"),
        ('%c = arith.cmpf(%x, %x, predicate="lt") : bool', "%m = gpu.shuffle(%x, by=1) : f32", "%t, gpu.thread_id"),
        ("%y = memref.load(%s[%t]) : f32\n" + '%c = arith.cmpf(%y, %y, predicate="lt") : bool', WARP, "%t, gpu.thread_id"),
        ('%y = gpu.warp_reduce(%x, kind="max") : f32\n%c = arith.cmpf(%y, %y, predicate="lt") : bool', BARRIER, "%y, gpu.warp_reduce"),
    ],
)
def test_choices_that_differ_between_threads(make, inside, cause):
    message = refused(kernel(condition(make, inside)))
    scope = "block" if inside == BARRIER else "warp"
    assert f"all threads of the {scope} must come here, but %c decides about it: it may differ between them" in message
    assert message.splitlines()[1].strip() == inside, "the place"
    assert cause in message or "it comes from" in message


@pytest.mark.parametrize(
    ("make", "inside"),
    [
        (COMPARE.format("%t", "%half", "lt"), WARP),
        (COMPARE.format("%half", "%t", "le"), REDUCE),
        (COMPARE.format("%bx", "%five", "lt"), BARRIER),
        ("%w = affine.apply((%t+64*%bx) floordiv 32) : index\n" + COMPARE.format("%w", "%five", "eq"), REDUCE),
        ("%w = affine.apply((%t mod 64) floordiv 32) : index\n" + COMPARE.format("%w", "%five", "eq"), REDUCE),
        ("%w = affine.apply(%t-%t mod 32) : index\n" + COMPARE.format("%w", "%five", "eq"), WARP),
        ("%j = memref.load(%J[%bx]) : i32\n%k = arith.index_cast(%j) : index\n" + COMPARE.format("%k", "%five", "eq"), BARRIER),
        ('%y = gpu.warp_reduce(%x, kind="max") : f32\n%c = arith.cmpf(%y, %y, predicate="lt") : bool', WARP),
        ('%y = gpu.shuffle(%x, mode="index", by=0) : f32\n%c = arith.cmpf(%y, %y, predicate="lt") : bool', WARP),
        ("%n = memref.dim(%A, axis=0) : index\n" + COMPARE.format("%n", "%five", "eq"), BARRIER),
    ],
)
def test_choices_that_are_the_same(make, inside):
    run(kernel(condition(make, inside), grid="%bx = 0 to 2"))


DIFFERENT = [("%t", 64, BARRIER), ("%t", 64, WARP), ("0", "%t floordiv 32", BARRIER), ("%t floordiv 2", 64, REDUCE)]


@pytest.mark.parametrize(("start", "stop", "inside"), DIFFERENT)
def test_rounds_that_differ_between_threads(start, stop, inside):
    message = refused(kernel(PREPARED + LOOP.format(start, stop, 32, inside)))
    assert "but %t decides about it: the rounds of the loop over %i depend on it and it may differ between them" in message


@pytest.mark.parametrize(("start", "stop", "inside"), [("%bx", 64, BARRIER), ("%t floordiv 32", 64, REDUCE), ("0", "%t-%t mod 32+1", WARP)])
def test_rounds_that_are_the_same(start, stop, inside):
    run(kernel(PREPARED + LOOP.format(start, stop, 16, inside)))


def test_values_that_rounds_make_different():
    """A carried value is the same in the first round only."""
    body = """
%same = arith.constant(0.0) : f32
%z = scf.for(%i = 0 to 4, %acc = %same) {
  %c = arith.cmpf(%acc, %same, predicate="lt") : bool
  scf.if(%c) {
    gpu.barrier()
    yield
  }
  %q = arith.addf(%acc, %x) : f32
  yield %q
} : f32"""
    assert "%c decides about it" in refused(kernel(PREPARED + body))


def test_threads_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch):
    """What the verifier would refuse, found by the interpreter, too."""
    text = kernel(condition(COMPARE.format("%t", "%five", "lt"), BARRIER))
    monkeypatch.setattr("dialects.gpu.launch.check_together", lambda op, scope: None)
    assert "thread 0 waits at gpu.barrier for thread 5, which does not come" in refused(text)


# -- where operations stand --------------------------------------------------------------------------------------------

S = "%s = gpu.alloc() : memref<f32[64], shared>\n"
H = "%s = gpu.alloc() : memref<f16[8, 8], shared>\n"
X = "%x = memref.load(%A[%t]) : f32\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph @main() {\n  %t = gpu.thread_id() : index\n  return\n}\n", "only the threads of a gpu.launch can do this"),
        ("graph @main() {\n  gpu.barrier()\n  return\n}\n", "only the threads of a gpu.launch can do this"),
        ("graph @main() {\n  gpu.cp_wait(pending=0)\n  return\n}\n", "only the threads of a gpu.launch can do this"),
        ("graph @main() {\n  %s = gpu.alloc() : memref<f32[4], shared>\n  return\n}\n", "only the threads of a gpu.launch can do this"),
        (kernel("gpu.launch(%y = 0 to 4, threads=1) {\n  yield\n}"), "a kernel can't launch kernels"),
        (kernel("scf.for(%i = 0 to 4) {\n  %l = gpu.alloc() : memref<f32[4], shared>\n  yield\n}"), "a shared buffer is for the whole run"),
        (kernel("%l = gpu.alloc() : memref<f32[60000], shared>"), "needs 240000 bytes, a block has 232448 bytes of shared memory"),
        (kernel("%l = gpu.alloc() : memref<f32[40000], local>"), "needs 160000 bytes, a thread has 131072 bytes of local memory"),
        (kernel("%l = gpu.alloc(offset=232320) : memref<f32[64], shared>"), "needs 256 bytes from byte 232320 on"),
        (kernel("%l = gpu.alloc(offset=64) : memref<f32[64], shared>"), "expected a multiple of 128, found 64"),
        (kernel("%l = gpu.alloc(offset=0) : memref<f32[64], local>"), "only shared buffers have a place in shared memory"),
        (kernel("%l = gpu.alloc() : memref<f32[4]>"), "expected a declared buffer, shared or local"),
        (kernel("%l = gpu.alloc() : memref<f32[4], shared>\n%v = memref.reshape(%l) : memref<f32[2, 2]>"), "is no memory of memref<f32[4], shared>"),
        (kernel("gpu.barrier()", 2000), "expected 1 to 1024 threads, found 2000"),
        (kernel("gpu.barrier()", "1, min_blocks=99"), "expected 0 to 32 blocks, found 99"),
        (kernel("gpu.barrier()", grid="%bx = 1 to 4"), "expected one to three ranges from 0"),
        (kernel("gpu.barrier()", grid="%bx = 0 to 4, %by = 0 to 4, %bz = 0 to 4, %bw = 0 to 4"), "expected one to three ranges from 0"),
        (kernel('gpu.barrier(scope="grid")'), 'expected "block" or "warp", found "grid"'),
        (kernel(X + '%r = gpu.warp_reduce(%x, kind="add") : f32', 48), "the 48 threads of the launch are no whole groups of 32"),
        (kernel(X + '%r = gpu.warp_reduce(%x, kind="sub") : f32'), 'found "sub"'),
        (kernel(X + '%r = gpu.warp_reduce(%x, kind="and") : f32'), 'expected an integer or a bool for kind="and", found f32'),
        (kernel(X + '%r = gpu.warp_reduce(%x, kind="add", width=3) : f32'), "expected a power of two up to 32, found 3"),
        (kernel(X + "%r = gpu.shuffle(%x) : f32"), "whose value is not said"),
        (kernel(X + "%r = gpu.shuffle(%x, by=1, lane=%t) : f32"), "a lane is the number of a thread"),
        (kernel(X + "%r = gpu.shuffle(%x, by=8, width=8) : f32"), "expected 0 to 7, found 8"),
        (kernel(X + '%r = gpu.shuffle(%x, mode="index", lane=%x) : f32'), "expected an index as the number of a thread"),
        (kernel(S + "gpu.cp_async(%A[%t:+3], %s[%t:+3])"), "expected 4, 8 or 16 bytes, found 3 elements of f32"),
        (kernel(S + "gpu.cp_async(%A[%t:+1], %s[%t:+2])"), "1 elements can't be copied to 2"),
        (kernel("%s = gpu.alloc() : memref<i32[64], shared>\ngpu.cp_async(%A[%t:+1], %s[%t:+1])"), "elements of f32 can't be copied to memref<i32"),
        (kernel("gpu.cp_async(%A[%t:+1], %C[%t:+1])"), "expected a shared buffer, found memref<f32[256]>"),
        (kernel(S + "gpu.cp_async(%s[%t:+1], %s[%t:+1])"), "expected a buffer in global memory"),
        (kernel(S + "gpu.cp_async(%A[%t], %s[%t])"), "expected a run of elements along the last axis alone"),
        (kernel("gpu.cp_wait(pending=-1)"), "expected 0 or more, found -1"),
        (kernel("%s = gpu.alloc() : memref<f32[8, 8], shared>\n%m = gpu.ldmatrix(%s[%t, 0:+8], count=1) : vector<f32[2]>"), "buffer of bf16 or f16"),
        (kernel(H + "%m = gpu.ldmatrix(%s[%t, 0:+8], count=3) : vector<f16[6]>"), "expected 1, 2 or 4, found 3"),
        (kernel(H + "%m = gpu.ldmatrix(%s[%t, 0:+4], count=1) : vector<f16[2]>"), "expected a run of 8 elements"),
    ],
)  # fmt: skip
def test_what_is_refused(text, message):
    found = refused(text)
    assert message in found, found
    assert "^" in found, "a place"


MMA = "%a = arith.constant(1.0) : {}\n%b = arith.constant(1.0) : {}\n%c = arith.constant(1.0) : {}\n%r = gpu.mma(%a, %b, %c{}) : vector<f32[4]>"


@pytest.mark.parametrize(
    ("types", "precision", "message"),
    [
        (("vector<f32[4]>", "vector<f32[2]>", "vector<f32[4]>"), "", "products of f32 are rounded to tf32"),
        (("vector<f16[8]>", "vector<f16[4]>", "vector<f32[4]>"), ', precision="tf32"', "tf32 multiplies f32"),
        (("vector<f16[8]>", "vector<bf16[4]>", "vector<f32[4]>"), "", "expected vector<f16[4]> beside vector<f16[8]>"),
        (("vector<f16[8]>", "vector<f16[4]>", "vector<f16[4]>"), "", "expected vector<f32[4]>, found vector<f16[4]>"),
        (("vector<f32[8]>", "vector<f16[4]>", "vector<f32[4]>"), "", "expected vector<bf16[8]>, vector<f16[8]> or, for tf32"),
        (("vector<f16[8]>", "vector<f16[4]>", "vector<f32[4]>"), ', precision="exact"', 'expected "tf32", or nothing for bf16 and f16'),
    ],
)
def test_products_that_there_are_not(types, precision, message):
    assert message in refused(kernel(MMA.format(*types, precision)))
