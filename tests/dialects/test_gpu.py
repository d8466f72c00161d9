"""The gpu dialect: what its operations give, for threads one by one compared with numpy, and what they refuse."""

import ml_dtypes
import numpy as np
import pytest

from dialects.gpu._fragments import to_tf32
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import DTYPES
from ir.verifier import verify_module
from passes.infra.base import PassContext
from tests.checks import baseline, check_pass, default_passes
from tests.checks import load as load_module
from tests.dialects.gpu_programs import MATMUL, ROWS, matmul_inputs

bf16 = np.dtype(ml_dtypes.bfloat16)


def load(text):
    module = parse_module(text)
    verify_module(module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def run(text, *arrays, **options):
    module = load(text)
    Interpreter(module, **options).run(module.graphs["main"], list(arrays))


def kernel(parameters, body, threads=32, grid="%bx = 0 to 1"):
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    head = f"graph @main({parameters}) {{\n  gpu.launch({grid}, threads={threads}) {{\n    %t = gpu.thread_id() : index\n"
    return f"{head}{lines}    yield\n  }}\n  return\n}}\n"


def per_thread(operation, in_type="f32", out_type=None, threads=32, before=""):
    """A kernel that computes %c of each thread from its %a."""
    out = out_type or in_type
    body = f"{before}\n%a = memref.load(%A[%t]) : {in_type}\n%c = {operation} : {out}\nmemref.store(%c, %C[%t])"
    return kernel(f"%A: memref<{in_type}[{threads}]>, %C: memref<{out}[{threads}]>", body.strip("\n"), threads)


def refused(text, *arrays):
    with pytest.raises(GraphError) as caught:
        run(text, *arrays)
    return str(caught.value)


# -- shuffles and reductions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 8, 32])
@pytest.mark.parametrize("mode", ["xor", "down", "up", "index"])
def test_shuffle(mode, width):
    a = np.arange(64, dtype=np.int32) * 3
    for by in {0, width // 2, width - 1}:
        c = np.zeros(64, np.int32)
        run(per_thread(f'gpu.shuffle(%a, mode="{mode}", by={by}, width={width})', "i32", threads=64), a, c)
        for t in range(64):
            first = t // width * width
            source = {"xor": t ^ by, "down": t + by, "up": t - by, "index": first + by}[mode]
            assert c[t] == a[source if first <= source < first + width else t]


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool", "index"])
def test_shuffle_from_a_lane_of_each_threads_own(dtype):
    a = (np.arange(64) % 5).astype(DTYPES[dtype].numpy)
    c = np.zeros_like(a)
    run(per_thread('gpu.shuffle(%a, mode="index", lane=%l, width=16)', dtype, threads=64, before="%l = affine.apply(7*%t-3) : index"), a, c)
    assert all(c[t] == a[t // 16 * 16 + (7 * t - 3) % 16] for t in range(64))


def halves(values, combine):
    """The reduction in the order that is written: by halves."""
    while len(values) > 1:
        half = len(values) // 2
        values = [combine(x, y) for x, y in zip(values[:half], values[half:], strict=True)]
    return values[0]


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("width", [1, 4, 32])
def test_sums_of_a_warp_are_rounded_at_each_step(dtype, width):
    kind = DTYPES[dtype].numpy
    a = np.random.default_rng(0).standard_normal(64).astype(kind)
    c = np.zeros_like(a)
    run(per_thread(f'gpu.warp_reduce(%a, kind="add", width={width})', dtype, threads=64), a, c)
    for first in range(0, 64, width):
        wanted = halves(list(a[first : first + width]), lambda x, y: (np.float64(x) + np.float64(y)).astype(kind))
        assert (c[first : first + width] == wanted).all()


def test_maximum_and_minimum_of_a_warp():
    a = np.float32([0.0] * 31 + [-0.0])
    for kind, negative in (("max", False), ("min", True)):
        c = np.ones(32, np.float32)
        run(per_thread(f'gpu.warp_reduce(%a, kind="{kind}")'), a, c)
        assert (c == 0).all() and (np.signbit(c) == negative).all()
    a[7] = np.nan
    run(per_thread('gpu.warp_reduce(%a, kind="max")'), a, c)
    assert np.isnan(c).all()
    run(per_thread('gpu.warp_reduce(%a, kind="min", width=4)'), a, c)
    assert np.isnan(c).tolist() == [False] * 4 + [True] * 4 + [False] * 24


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min", "and", "or"])
@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8", "index"])
def test_reductions_of_integers_wrap_around(kind, dtype):
    a = np.random.default_rng(1).integers(100, 120, 32).astype(DTYPES[dtype].numpy)
    c = np.zeros_like(a)
    run(per_thread(f'gpu.warp_reduce(%a, kind="{kind}")', dtype), a, c)
    function = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or}[kind]
    with np.errstate(over="ignore"):
        assert (c == function.reduce(a, dtype=a.dtype)).all()


def test_reductions_of_bools():
    a = np.zeros(32, bool)
    a[3] = True
    c = np.zeros(32, bool)
    run(per_thread('gpu.warp_reduce(%a, kind="or", width=8)', "bool"), a, c)
    assert c.tolist() == [True] * 8 + [False] * 24
    run(per_thread('gpu.warp_reduce(%a, kind="and", width=1)', "bool"), a, c)
    assert (c == a).all()


def test_a_value_that_is_the_same_for_all():
    c = np.zeros(32, np.float32)
    text = kernel("%C: memref<f32[32]>", '%x = arith.constant(0.1) : f32\n%y = gpu.warp_reduce(%x, kind="add") : f32\nmemref.store(%y, %C[%t])')
    run(text, c)
    assert (c == halves([np.float32(0.1)] * 32, lambda x, y: x + y)).all()


# -- tensor cores ------------------------------------------------------------------------------------------------------


def mma_inputs(dtype, k):
    rng = np.random.default_rng(3)
    a, b = rng.integers(-9, 10, (16, k)).astype(dtype), rng.integers(-9, 10, (k, 8)).astype(dtype)
    return a, b, rng.integers(-9, 10, (16, 8)).astype(np.float32)


def held(matrix, places):
    """What each lane holds: the PTX ISA's tables, one lane and one element at a time."""
    return np.array([[matrix[r, c] for r, c in places(lane)] for lane in range(32)], matrix.dtype)


def places_a16(lane):
    g, q = lane // 4, lane % 4
    return [(g + 8 * (i in (2, 3, 6, 7)), 2 * q + (i & 1) + 8 * (i >= 4)) for i in range(8)]


def places_b16(lane):
    return [(2 * (lane % 4) + (i & 1) + 8 * (i >= 2), lane // 4) for i in range(4)]


def places_a32(lane):
    g, q = lane // 4, lane % 4
    return [(g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4)]


def places_b32(lane):
    return [(lane % 4, lane // 4), (lane % 4 + 4, lane // 4)]


def places_c(lane):
    return [(lane // 4 + 8 * (i >= 2), 2 * (lane % 4) + (i & 1)) for i in range(4)]


def mma_kernel(dtype, na, nb, precision=""):
    body = f"""
%a = vector.load(%A[{na}*%t:+{na}]) : vector<{dtype}[{na}]>
%b = vector.load(%B[{nb}*%t:+{nb}]) : vector<{dtype}[{nb}]>
%c = vector.load(%C[4*%t:+4]) : vector<f32[4]>
%r = gpu.mma(%a, %b, %c{precision}) : vector<f32[4]>
vector.store(%r, %C[4*%t:+4])"""
    return kernel(f"%A: memref<{dtype}[{32 * na}]>, %B: memref<{dtype}[{32 * nb}]>, %C: memref<f32[128]>", body)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_mma_of_16_bits(dtype):
    a, b, c = mma_inputs(DTYPES[dtype].numpy, 16)
    fragments = held(c, places_c).reshape(-1)
    run(mma_kernel(dtype, 8, 4), held(a, places_a16).reshape(-1), held(b, places_b16).reshape(-1), fragments)
    assert (fragments.reshape(32, 4) == held(a.astype(np.float32) @ b.astype(np.float32) + c, places_c)).all()


def test_mma_of_tf32():
    a, b, c = mma_inputs(np.float32, 8)
    a[2, 3] = 1 + 2.0**-11  # half way between two numbers of 10 bits: away from zero
    fragments = held(c, places_c).reshape(-1)
    run(mma_kernel("f32", 4, 2, ', precision="tf32"'), held(a, places_a32).reshape(-1), held(b, places_b32).reshape(-1), fragments)
    a[2, 3] = 1 + 2.0**-10
    assert (fragments.reshape(32, 4) == held(a @ b + c, places_c)).all()


def test_rounding_to_tf32():
    x = np.float32([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, 1 + 3 * 2.0**-11, 0.0, -0.0, np.inf, -np.inf, np.nan, 3.4028235e38, 1e-45])
    y = to_tf32(x)
    assert y[:4].tolist() == [1 + 2.0**-10, -1 - 2.0**-10, 1.0, 1 + 2.0**-9]
    assert (y[4:8] == x[4:8]).all() and np.signbit(y[5]) and np.isnan(y[8])
    assert np.isinf(y[9]) and y[10] == 0


def test_mma_is_rounded_once():
    a, b = np.ones(256, bf16), np.zeros(128, bf16)
    b[:] = 2.0**-24
    c = np.ones(128, np.float32)
    run(mma_kernel("bf16", 8, 4), a, b, c)
    assert (c == np.float32(1 + 16 * 2.0**-24)).all()
    c = np.full(128, np.inf, np.float32)
    run(mma_kernel("bf16", 8, 4), np.full(256, -np.inf).astype(bf16), b, c)
    assert np.isnan(c).all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_ldmatrix(count, transposed, dtype):
    body = f"""
%s = gpu.alloc() : memref<{dtype}[{8 * count}, 24], shared>
scf.for(%i = %t to {8 * count}*16 step 32) {{
  %x = memref.load(%A[%i floordiv 16, %i mod 16]) : {dtype}
  memref.store(%x, %s[%i floordiv 16, %i mod 16 + 8])
  yield
}}
gpu.barrier()
%m = gpu.ldmatrix(%s[%t, 16:+8], count={count}, transposed={str(transposed).lower()}) : vector<{dtype}[{2 * count}]>
vector.store(%m, %C[{2 * count}*%t:+{2 * count}])"""
    a = np.arange(8 * count * 16).reshape(8 * count, 16).astype(DTYPES[dtype].numpy)
    c = np.zeros(64 * count, a.dtype)
    run(kernel(f"%A: memref<{dtype}[{8 * count}, 16]>, %C: memref<{dtype}[{64 * count}]>", body), a, c)
    for lane in range(32):
        for m in range(count):
            matrix = a[8 * m : 8 * m + 8, 8:]
            row, column = lane // 4, 2 * (lane % 4)
            wanted = [matrix[column + i, row] if transposed else matrix[row, column + i] for i in (0, 1)]
            assert c[2 * count * lane + 2 * m : 2 * count * lane + 2 * m + 2].tolist() == wanted


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "run_"), [("f32", 1), ("f32", 4), ("bf16", 2), ("bf16", 8), ("u8", 4), ("i8", 16), ("f64", 1), ("i64", 2)])
@pytest.mark.parametrize("valid", [-3, 0, 1, 10**6])
def test_copies(dtype, run_, valid):
    body = f"""
%s = gpu.alloc() : memref<{dtype}[32, {2 * run_}], shared>
%v = affine.apply(%t+{valid}) : index
gpu.cp_async(%A[%t, {run_}:+{run_}], %s[%t, {run_}:+{run_}], valid=%v)
gpu.cp_commit()
gpu.cp_wait(pending=0)
gpu.barrier()
%x = vector.load(%s[-%t+31, {run_}:+{run_}]) : vector<{dtype}[1, {run_}]>
vector.store(%x, %C[%t, 0:+{run_}])"""
    a = (np.arange(64 * run_) % 100 + 1).reshape(32, 2 * run_).astype(DTYPES[dtype].numpy)
    c = np.zeros((32, run_), a.dtype)
    run(kernel(f"%A: memref<{dtype}[32, {2 * run_}]>, %C: memref<{dtype}[32, {run_}]>", body), a, c)
    wanted = np.where(np.arange(run_) < np.arange(32)[:, None] + valid, a[:, run_:], 0)
    assert (c == wanted[::-1]).all()


def test_what_a_copy_leaves_out_may_be_outside():
    body = """
%s = gpu.alloc() : memref<f32[128], shared>
%v = affine.apply(N-4*%t) : index
gpu.cp_async(%A[4*%t:+4], %s[4*%t:+4], valid=%v)
gpu.cp_commit()
gpu.cp_wait(pending=0)
%x = vector.load(%s[4*%t:+4]) : vector<f32[4]>
vector.store(%x, %C[4*%t:+4])"""
    for n in (0, 1, 5, 128):
        a, c = np.arange(n, dtype=np.float32) + 1, np.full(128, np.nan, np.float32)
        run(kernel("%A: memref<f32[N]>, %C: memref<f32[128]>", body), a, c)
        assert (c[:n] == a).all() and (c[n:] == 0).all()
    text = kernel("%A: memref<f32[N]>, %C: memref<f32[128]>", body.replace(", valid=%v", ""))
    message = refused(text, np.zeros(9, np.float32), np.zeros(128, np.float32))
    assert "elements 8 to 12 are outside dimension 0 of size 9 (thread 2 of the block)" in message


def test_copies_in_stages():
    """Each wait covers the groups that it should, in any order of the stages."""
    for pending, landed in ((0, 3), (1, 2), (2, 1), (3, 0), (9, 0)):
        start = "\n".join(f"gpu.cp_async(%A[{i}, %t:+1], %s[{i}, %t:+1])\ngpu.cp_commit()" for i in range(3))
        for stage in range(3):
            read = f"%x = memref.load(%s[{stage}, %t]) : f32\nmemref.store(%x, %C[%t])\ngpu.cp_wait(pending=0)"
            body = f"%s = gpu.alloc() : memref<f32[3, 32], shared>\n{start}\ngpu.cp_wait(pending={pending})\n{read}"
            text = kernel("%A: memref<f32[3, 32]>, %C: memref<f32[32]>", body)
            a, c = np.arange(96, dtype=np.float32).reshape(3, 32), np.zeros(32, np.float32)
            if stage < landed:
                run(text, a, c)
                assert (c == a[stage]).all()
            else:
                assert "where a gpu.cp_async of thread 0 is under way" in refused(text, a, c)


# -- control and memory of threads -------------------------------------------------------------------------------------


def test_threads_go_different_ways():
    body = """
%zero = arith.constant(0) : i32
%five = arith.constant(5) : index
%low = arith.cmpi(%t, %five, predicate="lt") : bool
%r = scf.if(%low) {
  %s = scf.for(%i = 0 to %t, %acc = %zero) {
    %v = memref.load(%A[%i]) : i32
    %n = arith.addi(%acc, %v) : i32
    yield %n
  } : i32
  yield %s
} {
  %w = memref.load(%A[%t-5]) : i32
  yield %w
} : i32
memref.store(%r, %C[%t])"""
    a, c = np.arange(1, 28, dtype=np.int32), np.zeros(32, np.int32)
    run(kernel("%A: memref<i32[27]>, %C: memref<i32[32]>", body), a, c)
    assert c.tolist() == [sum(range(1, t + 1)) if t < 5 else t - 4 for t in range(32)]


def test_what_is_left_out_does_not_fail():
    """A division and an access that only some threads may do."""
    body = """
%a = memref.load(%A[%t]) : i32
%zero = arith.constant(0) : i32
%some = arith.cmpi(%a, %zero, predicate="ne") : bool
%r = scf.if(%some) {
  %q = arith.divsi(%seven, %a) : i32
  yield %q
} {
  yield %zero
} : i32
memref.store(%r, %C[%t])"""
    a, c = np.arange(-16, 16, dtype=np.int32), np.zeros(32, np.int32)
    run(kernel("%A: memref<i32[32]>, %C: memref<i32[32]>", "%seven = arith.constant(7) : i32" + body), a, c)
    assert c.tolist() == [int(7 / x) if x else 0 for x in a.tolist()]
    wrong = "%seven = arith.constant(7) : i32\n%a = memref.load(%A[%t]) : i32\n%q = arith.divsi(%seven, %a) : i32"
    wrong = kernel("%A: memref<i32[32]>, %C: memref<i32[32]>", wrong)
    assert "division by zero" in refused(wrong, a, c)


def test_local_memory():
    body = """
%l = gpu.alloc() : memref<f32[2, 4], local>
%flat = memref.reshape(%l) : memref<f32[8], local>
scf.for(%i = 0 to 8) {
  %v = memref.load(%A[%i, %t]) : f32
  memref.store(%v, %flat[%i])
  yield
}
%n = memref.dim(%l, axis=1) : index
%x = vector.load(%l[0:+2, %t mod 4]) : vector<f32[2, 1]>
%y = vector.reshape(%x) : vector<f32[2]>
%z = vector.transpose(%x, perm=[1, 0]) : vector<f32[1, 2]>
%s = vector.multi_reduction(%y, kind="add", axes=[0]) : f32
%w = vector.broadcast(%s) : vector<f32[2]>
%e = vector.extract(%z, position=[0, 1]) : f32
%u = vector.insert(%e, %w, position=[0]) : vector<f32[2]>
vector.store(%u, %C[%t, 0:+2])"""
    a, c = np.random.default_rng(0).integers(0, 9, (8, 32)).astype(np.float32), np.zeros((32, 2), np.float32)
    run(kernel("%A: memref<f32[8, 32]>, %C: memref<f32[32, 2]>", body), a, c)
    for t in range(32):
        x, y = a[t % 4, t], a[4 + t % 4, t]
        assert c[t].tolist() == [y, x + y]


def test_views_of_bytes_on_the_chip():
    body = """
%l = gpu.alloc() : memref<u8[64], local>
%f = memref.view(%l, offset=16) : memref<f32[4], local>
%s = gpu.alloc() : memref<u8[256], shared>
%g = memref.view(%s, offset=128) : memref<f32[32], shared>
%x = memref.load(%A[%t]) : f32
memref.store(%x, %f[2])
%y = memref.load(%f[2]) : f32
memref.store(%y, %g[%t])
gpu.barrier()
%z = memref.load(%g[-%t+31]) : f32
memref.store(%z, %C[%t])"""
    a, c = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    run(kernel("%A: memref<f32[32]>, %C: memref<f32[32]>", body), a, c)
    assert (c == a[::-1]).all()


def test_grids():
    text = kernel("%C: memref<index[2, 3, 4, 2]>", "memref.store(%t, %C[%z, %y, %x, %t])", 2, "%x = 0 to 4, %y = 0 to 3, %z = 0 to 2")
    for reverse in (False, True):
        c = np.full((2, 3, 4, 2), 9, np.int64)
        run(text, c, reverse_parallel=reverse)
        assert (c == [0, 1]).all()
    c = np.zeros((0,), np.float32)
    run(kernel("%C: memref<f32[N]>", "%x = memref.load(%C[%bx]) : f32", 2, "%bx = 0 to N"), c)  # no block at all


def test_an_assertion_of_one_thread():
    body = '%five = arith.constant(5) : index\n%ok = arith.cmpi(%t, %five, predicate="ne") : bool\n'
    body += 'cf.assert(%ok, v0=%t, message="thread {0} is wrong")'
    assert "thread 5 is wrong" in refused(kernel("%A: memref<f32[1]>", body), np.zeros(1, np.float32))


# -- whole kernels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"reverse_parallel": True}, {"double": True}], ids=["", "reverse", "double"])
@pytest.mark.parametrize("shape", [(64, 64, 64), (33, 40, 40), (1, 8, 8), (31, 32, 32), (32, 72, 8), (5, 0, 8)])
def test_matmul(shape, options):
    a, b, c = matmul_inputs(*shape, bf16)
    run(MATMUL, a, b, c, **options)
    assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()


@pytest.mark.parametrize("shape", [(3, 0), (2, 1), (2, 63), (2, 64), (1, 65), (0, 5), (3, 130)])
def test_rows(shape):
    a = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    c = np.zeros_like(a)
    run(ROWS, a, c)
    assert (c == a - a.sum(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("text", [MATMUL, ROWS], ids=["matmul", "rows"])
def test_passes_leave_kernels_right(text):
    """No pass moves anything past a barrier or out of a launch: all run on kernels, with the same numbers."""
    runs = baseline(load_module(text), limit=2)
    for pass_ in default_passes().values():
        check_pass(pass_, runs)


def test_memory_of_a_kernel_is_not_reused_by_it():
    """Threads come in any order: what one writes isn't in the place of what another may still read, host loop or not."""
    text = """graph @main(%C: memref<f32[32]>) {
  %a = memref.alloc() : memref<f32[32]>
  %b = memref.alloc() : memref<f32[32]>
  gpu.launch(%x = 0 to 1, threads=32) {
    %t = gpu.thread_id() : index
    %v = arith.constant(2.0) : f32
    memref.store(%v, %a[%t])
    yield
  }
  scf.for(%i = 0 to 1) {
    gpu.launch(%y = 0 to 1, threads=32) {
      %u = gpu.thread_id() : index
      %w = memref.load(%a[%u]) : f32
      memref.store(%w, %b[-%u+31])
      yield
    }
    yield
  }
  memref.copy(%b, %C)
  return
}
"""
    module = load_module(text)
    default_passes()["plan-memory"].run(module, PassContext())
    assert "offset=128" in print_module(module)
    c = np.zeros(32, np.float32)
    Interpreter(module).run(module.graphs["main"], [c])
    assert (c == 2).all()
