"""memref and vector: memory, accesses, blocks, reductions; in float64 mode too."""

import itertools

import numpy as np
import pytest

from dialects import vector
from dialects.graph._special import ieee_maximum
from dialects.graph.reduction import sum_
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import DTYPES, ScalarType, VectorType
from ir.verifier import verify_module


def load(text):
    module = parse_module(text)
    verify_module(module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def run(text, *arrays, **options):
    module = load(text)
    return Interpreter(module, **options).run(module.graphs["main"], list(arrays))


def program(parameters, body, result=""):
    lines = "".join(f"  {line}\n" for line in body.strip().splitlines())
    return f"graph @main({parameters}){' -> ' + result if result else ''} {{\n{lines}  return{' %y' if result else ''}\n}}\n"


# -- memory ------------------------------------------------------------------------------------------------------------

ROUND = """
%A = memref.from_tensor(%x)
%M = memref.alloc() : memref<{0}[B, 4]>
memref.copy(%A, %M)
%y = memref.to_tensor(%M)
"""


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_tensor_to_buffer_and_back(dtype):
    x = (np.arange(12).reshape(3, 4) % 5).astype(DTYPES[dtype].numpy)
    for double in (False, True):
        (y,) = run(program(f"%x: {dtype}[B, 4]", ROUND.format(dtype), f"{dtype}[B, 4]"), x, double=double)
        assert np.array_equal(x.astype(np.float64), y.astype(np.float64))


def test_types_are_inferred():
    module = load(program("%x: f32[B, 4]", "%A = memref.from_tensor(%x)\n%y = memref.to_tensor(%A)", "f32[B, 4]"))
    Interpreter(module)
    with pytest.raises(GraphError, match="declared"):
        load(program("%x: f32[B, 4]", "%A = memref.from_tensor(%x) : memref<f32[B, 5]>"))


def test_a_tensor_is_read_only():
    body = "%A = memref.from_tensor(%x)\n%c = arith.constant(1.0) : f32\n"
    x = np.zeros(8, np.float32)
    for store in ["memref.store(%c, %A[0])", "memref.copy(%A, %A)", "%v = vector.broadcast(%c) : vector<f32[8]>\nvector.store(%v, %A[0:+8])"]:
        with pytest.raises(GraphError, match="read-only"):
            run(program("%x: f32[8]", body + store), x)
    inner = "linalg.generic(i < 8, %a = %A[i]) {\n    yield %c\n  }"
    with pytest.raises(GraphError, match="read-only"):
        run(program("%x: f32[8]", body + inner), x)
    assert not x.any()


def test_to_tensor_is_a_copy():
    body = "%y = memref.to_tensor(%A)\n%c = arith.constant(1.0) : f32\nmemref.store(%c, %A[0])"
    a = np.zeros(2, np.float32)
    (y,) = run(program("%A: memref<f32[2]>", body, "f32[2]"), a)
    assert y.tolist() == [0, 0] and a.tolist() == [1, 0]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "bool"])
def test_unwritten_memory_shows(dtype, double):
    arena = "%R = memref.alloc() : memref<u8[24*N]>\n%M = memref.view(%R, offset=0) : memref<{0}[N, 3]>"
    for make in ["%M = memref.alloc() : memref<{0}[N, 3]>", arena]:
        text = program("%x: i32[N]", make.format(dtype) + "\n%y = memref.to_tensor(%M)", f"{dtype}[N, 3]")
        (y,) = run(text, np.zeros(2, np.int32), double=double)
        assert y.shape == (2, 3)
        if DTYPES[dtype].is_float:
            assert np.isnan(y.astype(np.float64)).all()
        elif dtype == "bool":
            assert y.all()
        else:
            assert (y > np.iinfo(y.dtype).max // 2).all()


def test_alloc_needs_a_type():
    for declared, message in [("", "not written"), (" : f32[4]", "a memref"), (" : memref<f32[?]>", "is '\\?'")]:
        with pytest.raises(GraphError, match=message):
            load(program("%x: f32[4]", f"%M = memref.alloc(){declared}"))
    with pytest.raises(GraphError, match="no operands"):
        load(program("%x: f32[4]", "%M = memref.alloc(%x) : memref<f32[4]>"))
    with pytest.raises(GraphError, match="dimension Z is in no parameter's type"):
        load(program("%x: f32[4]", "%M = memref.alloc() : memref<f32[Z]>"))
    with pytest.raises(GraphError, match="the limit is"):
        run(program("%x: f32[4]", f"%M = memref.alloc() : memref<f32[{2**60}]>"), np.zeros(4, np.float32))


def test_reshape_is_the_same_memory():
    body = "%F = memref.reshape(%A) : memref<f32[2*N]>\n%c = arith.constant(7.0) : f32\nmemref.store(%c, %F[3])"
    a = np.zeros((3, 2), np.float32)
    run(program("%A: memref<f32[N, 2]>", body), a)
    assert a.tolist() == [[0, 0], [0, 7], [0, 0]]
    with pytest.raises(GraphError, match="not contiguous"):
        run(program("%A: memref<f32[N, 2]>", body), np.zeros((2, 3), np.float32).T)
    for declared, message in [("memref<f32[3*N]>", "elements"), ("memref<i32[2*N]>", "no elements of i32"), ("f32[2*N]", "a memref")]:
        with pytest.raises(GraphError, match=message):
            load(program("%A: memref<f32[N, 2]>", f"%F = memref.reshape(%A) : {declared}"))


ARENA = """
%R = memref.alloc() : memref<u8[40*N]>
%S = memref.view(%R, offset=0) : memref<f32[N]>
%T = memref.view(%R, offset=4*N) : memref<f64[N]>
%U = memref.view(%R, offset=12*N) : memref<f16[N, 2]>
%V = memref.view(%R, offset=16*N) : memref<i64[N]>
linalg.generic(i < N, %a = %A[i], %s = %S[i], %t = %T[i], %u = %U[i, 0], %v = %V[i]) {
    %third = arith.constant(3.0) : f32
    %q = arith.divf(%a, %third) : f32
    %w = arith.extf(%q) : f64
    %h = arith.truncf(%q) : f16
    %n = arith.fptosi(%a) : i64
    yield %q, %w, %h, %n
  }
linalg.generic(i < N, %s1 = %S[i], %t1 = %T[i], %u1 = %U[i, 0], %v1 = %V[i], %c = %C[i, 0], %d = %C[i, 1], %e = %C[i, 2], %f = %C[i, 3]) {
    %p1 = arith.extf(%s1) : f64
    %q1 = arith.extf(%u1) : f64
    %r1 = arith.sitofp(%v1) : f64
    yield %p1, %t1, %q1, %r1
  }
"""


def test_arena():
    a, c = np.arange(1, 5, dtype=np.float32), np.zeros((4, 4))
    text = program("%A: memref<f32[N]>, %C: memref<f64[N, 4]>", ARENA)
    run(text, a, c)
    third = a / np.float32(3)
    assert np.array_equal(c, np.stack([third, third, third.astype(np.float16), a], axis=1))
    run(text, a, c, double=True)  # views of narrow floats keep the digits of float64
    assert np.array_equal(c, np.stack([a.astype(np.float64) / 3] * 3 + [a], axis=1))


def test_views_share_the_arena():
    body = """
%R = memref.alloc() : memref<u8[64]>
%S = memref.view(%R, offset=8) : memref<f32[2, 4]>
%T = memref.view(%R, offset=16) : memref<f32[6]>
memref.copy(%A, %S)
%F = memref.reshape(%S) : memref<f32[8]>
%c = arith.constant(9.0) : f32
memref.store(%c, %F[7])
%y = memref.to_tensor(%T)
"""
    for double in (False, True):
        (y,) = run(program("%A: memref<f32[2, 4]>", body, "f32[6]"), np.arange(8, dtype=np.float32).reshape(2, 4), double=double)
        assert y.tolist() == [2, 3, 4, 5, 6, 9]


BYTES = """
%W = memref.from_tensor(%x)
%V = memref.view(%W, offset=32) : memref<i32[4, 8]>
%S = memref.view(%W, offset=0) : memref<f16[80]>
%D = memref.alloc() : memref<i8[4, 32]>
scf.for(%i = 0 to 4) {
  %v = vector.load(%V[%i, 0:+8]) : vector<i32[8]>
  scf.for(%j = 0 to 8) {
    %e = memref.load(%V[%i, %j]) : i32
    %b = arith.trunci(%e) : i8
    memref.store(%b, %D[%i, 4*%j])
    memref.store(%b, %D[%i, 4*%j+1])
    memref.store(%b, %D[%i, 4*%j+2])
    memref.store(%b, %D[%i, 4*%j+3])
    yield
  }
  yield
}
%E = memref.view(%D, offset=0) : memref<i32[32]>
%h = memref.load(%S[%n]) : f16
%f = arith.extf(%h) : f32
memref.store(%f, %C[0])
%w = memref.load(%E[31]) : i32
%g = arith.sitofp(%w) : f32
memref.store(%g, %C[1])
"""


@pytest.mark.parametrize("double", [False, True])
def test_views_of_bytes(double):
    """Of a tensor with several dimensions, and of bytes that are written one by one."""
    x = np.random.default_rng(5).integers(0, 256, (2, 2, 40), np.uint8)
    x.reshape(-1).view(np.float16)[:] = np.arange(80) / 8
    c = np.zeros(2, np.float32)
    text = program("%x: u8[2, 2, 40], %C: memref<f32[2]>", "%n = arith.constant(77) : index" + BYTES)
    run(text, x, c, double=double)
    last = int(x.reshape(-1)[32:].view(np.int8)[4 * 31])
    assert c.tolist() == [77 / 8, np.array([last] * 4, np.int8).view(np.int32)[0].astype(np.float32)]


def test_views_of_planned_bytes():
    """Integers in an arena lie together when floats take more room, so that views of views see their bytes."""
    body = """
%R = memref.alloc() : memref<u8[96]>
%F = memref.view(%R, offset=0) : memref<f32[8]>
%D = memref.view(%R, offset=32) : memref<i8[2, 16]>
%W = memref.view(%D, offset=16) : memref<i32[4]>
%third = arith.constant(0.1) : f32
memref.store(%third, %F[7])
%i = arith.constant([1, -2, 3, -4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]) : vector<i8[16]>
vector.store(%i, %D[1, 0:+16])
%w = memref.load(%W[3]) : i32
memref.store(%w, %C[0])
"""
    for double in (False, True):
        c = np.zeros(1, np.int32)
        run(program("%C: memref<i32[1]>", body), c, double=double)
        assert c.view(np.int8).tolist() == [13, 14, 15, 16]


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ("offset=2) : memref<f32[4]>", "offset 2 is not a multiple of 4"),
        ("offset=20) : memref<f32[4]>", "bytes 20 to 36 are outside"),
        ("offset=-4) : memref<f32[4]>", "outside"),
        ("offset=0) : f32[4]", "a memref"),
        ("offset=0)", "not written"),
        ("offset=?) : memref<f32[4]>", "is '\\?'"),
    ],
)
def test_wrong_views(view, message):
    with pytest.raises(GraphError, match=message):
        load(program("%x: f32[N]", f"%R = memref.alloc() : memref<u8[32]>\n%M = memref.view(%R, {view}"))


def test_symbolic_views_are_checked_when_they_run():
    text = program("%x: f32[N]", "%R = memref.alloc() : memref<u8[32]>\n%M = memref.view(%R, offset=3*N) : memref<f32[N]>")
    run(text, np.zeros(4, np.float32))
    with pytest.raises(GraphError, match=r"bytes 24 to 56 are outside memref<u8.32.>"):
        run(text, np.zeros(8, np.float32))
    with pytest.raises(GraphError, match="offset 9 is not a multiple of 4"):
        run(text, np.zeros(3, np.float32))
    with pytest.raises(GraphError, match="needs attribute 'offset'"):
        load(program("%A: memref<u8[8]>", "%M = memref.view(%A) : memref<f32[2]>"))
    with pytest.raises(GraphError, match="expected an arena"):
        load(program("%A: memref<f32[8]>", "%M = memref.view(%A, offset=0) : memref<f32[2]>"))
    with pytest.raises(GraphError, match=r"bytes 4 to 28 are outside memref<i8.3, 8.>"):
        load(program("%A: memref<i8[3, 8]>", "%M = memref.view(%A, offset=4) : memref<f32[6]>"))
    with pytest.raises(GraphError, match="not contiguous"):
        gaps = np.zeros((6, 16), np.uint8)[:, :8]
        run(program("%A: memref<u8[6, 8]>", "%M = memref.view(%A, offset=0) : memref<f32[2, 6]>"), gaps)


def test_dim():
    c = np.zeros(2, np.int64)
    body = "%b = memref.dim(%A, axis=0)\nmemref.store(%b, %C[0])\n%s = memref.dim(%A, axis=1)\nmemref.store(%s, %C[1])"
    run(program("%A: memref<f32[B, S]>, %C: memref<index[2]>", body), np.zeros((3, 5), np.float32), c)
    assert c.tolist() == [3, 5]
    with pytest.raises(GraphError, match="out of range"):
        load(program("%A: memref<f32[B, S]>", "%b = memref.dim(%A, axis=2)"))


def test_copies():
    a, c = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    run(program("%A: memref<f32[N]>, %C: memref<f32[N]>", "memref.copy(%A, %C)"), a, c)
    assert c.tolist() == [0, 1, 2]
    overlapping = """
%S = memref.view(%R, offset=0) : memref<f32[3]>
%T = memref.view(%R, offset=4) : memref<f32[3]>
memref.copy(%S, %T)
"""
    arena = np.arange(4, dtype=np.float32)
    run(program("%R: memref<u8[16]>", overlapping), arena.view(np.uint8))
    assert arena.tolist() == [0, 0, 1, 2]
    for target in ["memref<f32[M]>", "memref<i32[N]>", "memref<f32[N, 1]>"]:
        with pytest.raises(GraphError, match="can't be copied"):
            load(program(f"%A: memref<f32[N]>, %C: {target}", "memref.copy(%A, %C)"))


# -- accesses ----------------------------------------------------------------------------------------------------------


def test_indices_are_expressions():
    expressions = ["%i", "-%i+N-1", "%i*%i mod N", "(%i+1) floordiv 2", "(%i+1) ceildiv 2", "min(%i+1, N-1)", "max(%i-2, 0)"]
    functions = [
        lambda i: i,
        lambda i: 4 - i,
        lambda i: i * i % 5,
        lambda i: (i + 1) // 2,
        lambda i: -(-(i + 1) // 2),
        lambda i: min(i + 1, 4),
        lambda i: max(i - 2, 0),
    ]
    a = np.arange(5, dtype=np.float32) * 10
    for expression, function in zip(expressions, functions, strict=True):
        body = f"scf.for(%i = 0 to N) {{\n  %x = memref.load(%A[{expression}]) : f32\n  memref.store(%x, %C[%i])\n}}"
        c = np.zeros(5, np.float32)
        run(program("%A: memref<f32[N]>, %C: memref<f32[N]>", body), a, c)
        assert c.tolist() == [a[function(i)] for i in range(5)], expression


@pytest.mark.parametrize("index", ["%i", "%i-1", "4", "%i floordiv (%i-4)"])
def test_out_of_bounds(index):
    body = f"scf.for(%i = 0 to 5) {{\n  %x = memref.load(%A[{index}])\n  memref.store(%x, %A[{index}])\n}}"
    with pytest.raises(GraphError, match=r"is outside dimension 0 of size 4|division by zero in an index"):
        run(program("%A: memref<f32[4]>", body), np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("%x = memref.load(%A)", "expected one access"),
        ("%x = memref.load(%A[0])", "has 2 dimensions, found 1 indices"),
        ("%x = memref.load(%A[0, 0:+4])", "single elements"),
        ("%x = memref.load(%A[0, %c])", "expected an index here, found f32"),
        ("%x = memref.load(%A[0, %k])", "expected an index here, found i64"),
        ("%x = memref.load(%A[0, Z])", "dimension Z is in no parameter's type"),
        ("%x = memref.load(%t[0, 0])", "expected a memref, found f32"),
        ("%x = memref.load(%A[0, 0]) : f64", "declared f64"),
        ("memref.store(%A[0, 0], %A[0, 0])", "a value and an access"),
        ("memref.store(%k, %A[0, 0])", "is f32, found i64"),
        ("memref.store(%c, %A[0, 0:+2])", "single elements"),
        ("%x = vector.load(%A[0:+0, 0])", "one element or more"),
        ("%x = vector.load(%A[0:+2, 0], valid=%k)", "expected an index"),
        ("%x = vector.load(%A[0:+2, 0], valid=3)", "expected a value"),
        ("%x = vector.load(%A[0:+2, 0], pad=1.0)", "write valid=%n too"),
        ("%x = vector.load(%B[0:+2], valid=%i, pad=1.0)", "no value of i32"),
        ("%x = vector.load(%A[0:+2, 0], valid=%i, pad=true)", "no value of f32"),
        ("%x = vector.load(%A[0:+2, 0], mask=%i)", "no optional operand 'mask'"),
        ("vector.store(%c, %A[0:+2, 0])", "expected vector<f32.2, 1.>"),
        ("vector.store(%v, %A[0:+2, 0:+1])", "expected vector<f32.2, 1.> for this block"),
        ("scf.for(%q = 0 to %k) {\n  }", "expected an index here, found i64"),
        ("scf.for(%q = 0 to Z) {\n  }", "dimension Z"),
        ("linalg.generic(p < Z, %o = %B[p]) {\n    yield %o\n  }", "dimension Z"),
        ("linalg.generic(p < 4, %o = %B[q]) {\n    yield %o\n  }", "dimension q"),
    ],
)
def test_wrong_accesses(call, message):
    body = f"""
%c = arith.constant(1.0) : f32
%k = arith.constant(1) : i64
%i = arith.constant(1) : index
%v = arith.constant(1.0) : vector<f32[2]>
{call}
"""
    with pytest.raises(GraphError, match=message):
        load(program("%A: memref<f32[4, 4]>, %B: memref<i32[4]>, %t: f32[4, 4]", body))


def test_the_message_points_at_the_operand():
    loop = "%r = scf.for(%i = 0 to 4, %s = %k) {\n    %x = memref.load(%A[%i + %s])\n    yield %s\n  }"
    with pytest.raises(GraphError) as caught:
        load(program("%A: memref<f32[4]>, %k: i64[]", loop))
    assert "expected an index here, found i64[]" in str(caught.value) and ":3:32: " in str(caught.value)


def test_rank_zero():
    c = np.zeros((), np.float32)
    run(program("%C: memref<f32[]>", "%c = arith.constant(2.0) : f32\nmemref.store(%c, %C[])\n%d = memref.load(%C[])\nmemref.store(%d, %C[])"), c)
    assert c == 2


# -- vectors -----------------------------------------------------------------------------------------------------------


def test_blocks():
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    c = np.zeros((4, 6), np.float32)
    body = "%i = arith.constant(1) : index\n%v = vector.load(%A[%i:+2, 1:+3]) : vector<f32[2, 3]>\nvector.store(%v, %C[%i+1:+2, 0:+3])"
    run(program("%A: memref<f32[4, 6]>, %C: memref<f32[4, 6]>", body), a, c)
    want = np.zeros_like(c)
    want[2:4, 0:3] = a[1:3, 1:4]
    assert np.array_equal(c, want)
    with pytest.raises(GraphError, match="elements 2 to 5 are outside dimension 0 of size 4"):
        run(program("%A: memref<f32[4, 6]>", "%v = vector.load(%A[2:+3, 0])"), a)
    with pytest.raises(GraphError, match="elements -1 to 2"):
        run(program("%A: memref<f32[4, 6]>", "%v = vector.load(%A[0, -1:+3])"), a)


def test_a_loaded_vector_does_not_change():
    body = "%v = vector.load(%A[0:+2])\n%z = arith.constant(5.0) : f32\nmemref.store(%z, %A[0])\nvector.store(%v, %C[0:+2])"
    a, c = np.float32([1, 2]), np.zeros(2, np.float32)
    run(program("%A: memref<f32[2]>, %C: memref<f32[2]>", body), a, c)
    assert c.tolist() == [1, 2] and a.tolist() == [5, 2]


PADS = [("f32", "-inf", -np.inf), ("f16", "0.1", np.float16(0.1)), ("i8", "-7", -7), ("bool", "true", True), ("f32", None, 0)]


@pytest.mark.parametrize(("dtype", "pad", "value"), PADS)
@pytest.mark.parametrize("valid", [-3, 0, 1, 3, 4, 9])
def test_valid(dtype, pad, value, valid):
    a = np.ones((2, 5)).astype(DTYPES[dtype].numpy)
    c = np.zeros((2, 4), a.dtype)
    c[:] = 1
    padding = "" if pad is None else f", pad={pad}"
    body = f"%n = arith.constant({valid}) : index\n%v = vector.load(%A[0:+2, 1:+4], valid=%n{padding})\nvector.store(%v, %C[0:+2, 0:+4])"
    run(program(f"%A: memref<{dtype}[2, 5]>, %C: memref<{dtype}[2, 4]>", body), a, c)
    count = min(max(valid, 0), 4)
    want = np.full((2, 4), value).astype(a.dtype)
    want[:, :count] = 1
    assert np.array_equal(c, want)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 16, 19])
def test_remainders(n):
    body = """
%n = memref.dim(%A, axis=0)
scf.for(%i = 0 to N step 8) {
    %left = arith.subi(%n, %i) : index
    %a = vector.load(%A[%i:+8], valid=%left) : vector<f32[8]>
    %r = arith.addf(%a, %a) : vector<f32[8]>
    vector.store(%r, %C[%i:+8], valid=%left)
  }
"""
    a = np.arange(n, dtype=np.float32)
    c = np.full(n, -1, np.float32)
    run(program("%A: memref<f32[N]>, %C: memref<f32[N]>", body), a, c)
    assert np.array_equal(c, 2 * a)


def test_valid_elements_must_be_inside():
    text = program("%A: memref<f32[5]>", "%n = arith.constant(3) : index\n%v = vector.load(%A[3:+8], valid=%n)\nvector.store(%v, %A[3:+8], valid=%n)")
    with pytest.raises(GraphError, match="elements 3 to 6 are outside dimension 0 of size 5"):
        run(text, np.zeros(5, np.float32))


def test_shapes_of_vectors():
    v = np.arange(6, dtype=np.int32).reshape(2, 3)
    i32 = DTYPES["i32"]
    assert np.array_equal(vector.broadcast_(v[:, :1], result_type=VectorType(i32, (4, 2, 3))), np.broadcast_to(v[:, :1], (4, 2, 3)))
    assert np.array_equal(vector.broadcast_(v[1, 1], result_type=VectorType(i32, (2,))), [4, 4])
    assert np.array_equal(vector.reshape(v, result_type=VectorType(i32, (3, 1, 2))), v.reshape(3, 1, 2))
    assert np.array_equal(vector.transpose(v, perm=(1, 0)), v.T)
    assert np.array_equal(vector.extract(v, position=(1,)), v[1]) and vector.extract(v, position=(1, 2)) == 5
    changed = vector.insert(np.int32([7, 8, 9]), v, position=(0,))
    assert changed.tolist() == [[7, 8, 9], [3, 4, 5]] and v[0, 0] == 0
    assert vector.insert(np.int32(7), v, position=(1, 0)).tolist() == [[0, 1, 2], [7, 4, 5]]
    assert vector.step(result_type=VectorType(DTYPES["index"], (4,))).tolist() == [0, 1, 2, 3]


def failing_vector_calls():
    v = np.zeros((2, 3), np.float32)
    f32, i8 = DTYPES["f32"], DTYPES["i8"]
    yield "can't be broadcast", lambda: vector.broadcast_(v, result_type=VectorType(f32, (3, 2)))
    yield "can't be broadcast", lambda: vector.broadcast_(v, result_type=VectorType(f32, (1, 3)))
    yield "a vector of f32", lambda: vector.broadcast_(v, result_type=VectorType(i8, (2, 3)))
    yield "a vector of f32", lambda: vector.broadcast_(v, result_type=ScalarType(f32))
    yield "different numbers", lambda: vector.reshape(v, result_type=VectorType(f32, (5,)))
    yield "no order", lambda: vector.transpose(v, perm=(0, 0))
    yield "position 2 is outside dimension 0", lambda: vector.extract(v, position=(2,))
    yield "position -1", lambda: vector.extract(v, position=(0, -1))
    yield "1 to 2 numbers", lambda: vector.extract(v, position=())
    yield "1 to 2 numbers", lambda: vector.extract(v, position=(0, 0, 0))
    yield "at this position", lambda: vector.insert(np.float32(1), v, position=(0,))
    yield "can count it", lambda: vector.step(result_type=VectorType(i8, (129,)))
    yield "can count it", lambda: vector.step(result_type=VectorType(f32, (2,)))
    yield "names an axis twice", lambda: vector.multi_reduction(v, kind="add", axes=(0, 0))
    yield "out of range", lambda: vector.multi_reduction(v, kind="add", axes=(2,))
    yield "one of", lambda: vector.multi_reduction(v, kind="and", axes=(0,))
    yield "no elements", lambda: vector.multi_reduction(v[:0], kind="max", axes=(0,))
    yield "numbers", lambda: vector.multi_reduction(v > 0, kind="max", axes=(0,))


@pytest.mark.parametrize(("message", "call"), list(failing_vector_calls()))
def test_wrong_vector_calls(message, call):
    with pytest.raises(GraphError, match=message):
        call()


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "i32", "i8", "u8"])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (2, 1), (0, 1, 2), (-1,), ()])
def test_reductions(dtype, axes):
    generator = np.random.default_rng(3)
    v = (generator.standard_normal((3, 4, 5)) * 50).astype(np.int64).astype(DTYPES[dtype].numpy)
    out = vector.multi_reduction(v, kind="add", axes=axes)
    want = sum_(v, axes=axes)
    assert out.dtype == v.dtype and out.shape == want.shape and np.array_equal(out, want)
    wide = v.astype(np.float64 if DTYPES[dtype].is_float else np.int64)
    for kind, function in [("max", np.max), ("min", np.min), ("mul", np.prod)]:
        got = vector.multi_reduction(v, kind=kind, axes=axes)
        with np.errstate(all="ignore"):
            expected = np.asarray(function(wide, axis=tuple(axes))).astype(v.dtype)
        if kind != "mul" or dtype not in ("f64", "f32"):
            assert np.array_equal(got, expected, equal_nan=True), kind
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_special_values_of_reductions():
    nan, inf = np.nan, np.inf
    for row in itertools.product([0.0, -0.0, nan, inf, -inf, 1.0], repeat=3):
        v = np.float32(row)
        got = vector.multi_reduction(v, kind="max", axes=(0,))
        want = ieee_maximum(ieee_maximum(v[0], v[1]), v[2])
        assert np.array_equal(got, want, equal_nan=True) and (np.isnan(want) or np.signbit(got) == np.signbit(want))
    assert not np.signbit(vector.multi_reduction(np.float32([-0.0, -0.0]), kind="add", axes=(0,)))
    assert vector.multi_reduction(np.float32([1e8, 1, -1e8]), kind="add", axes=(0,)) == 1
    assert vector.multi_reduction(np.int8([100, 100]), kind="add", axes=(0,)) == -56


def test_dimensions_without_a_run_may_be_left_out():
    body = """
scf.for(%i = 0 to 3) {
  %a = vector.load(%A[%i, 1:+4]) : vector<f32[4]>
  vector.store(%a, %C[%i, 0:+4])
  yield
}
%n = arith.constant(2) : index
%b = vector.load(%A[2, 0:+4], valid=%n, pad=7.0) : vector<f32[4]>
vector.store(%b, %C[2, 0:+4], valid=%n)
"""
    a, c = np.arange(18, dtype=np.float32).reshape(3, 6), np.zeros((3, 4), np.float32)
    run(program("%A: memref<f32[3, 6]>, %C: memref<f32[3, 4]>", body), a, c)
    assert c.tolist() == [[1, 2, 3, 4], [7, 8, 9, 10], [12, 13, 15, 16]]
    with pytest.raises(GraphError, match="declared"):
        load(program("%A: memref<f32[3, 6]>", "%a = vector.load(%A[0:+1, 1:+4]) : vector<f32[4]>"))


def test_shuffle():
    x, y = np.arange(4, dtype=np.int32), np.arange(4, 8, dtype=np.int32)
    assert vector.shuffle(x, y, mask=(7, 0, 0, 4, 3)).tolist() == [7, 0, 0, 4, 3]
    wrong = [("%a, %b, mask=[0, 8]", "from 0 to 7"), ("%a, %b, mask=[]", "from 0 to 7"), ("%a, %c, mask=[0]", "expected vector<i32.4.>")]
    for arguments, message in wrong:
        body = "%a = vector.step() : vector<i32[4]>\n%b = vector.step() : vector<i32[4]>\n%c = vector.step() : vector<i32[2]>\n"
        with pytest.raises(GraphError, match=message):
            load(program("%A: memref<f32[3, 6]>", f"{body}%s = vector.shuffle({arguments})"))
