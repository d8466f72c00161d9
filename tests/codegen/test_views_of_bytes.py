"""What loops over packed weights are made of: bytes as words and as f16, digits as bytes, on the stack and in arrays."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.llvm.jit import assembly, host_features
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.infra.base import PassContext
from passes.infra.registry import find_pass
from tests.codegen.code_checks import check, main_program
from tests.codegen.native_graph import NativeGraph

TILE = """
%W = memref.from_tensor(%w)
%B = memref.reshape(%W) : memref<u8[R*B*96]>
%Q = memref.view(%W, offset=0) : memref<i32[R, B, 24]>
%S = memref.view(%B, offset=0) : memref<f16[R, B, 48]>
%A = memref.from_tensor(%x)
%C = memref.alloc() : memref<f32[R, 16]>
%last = arith.constant(3) : index
scf.parallel(%r = 0 to R, mapping="threads") {
  %P = memref.alloc() : memref<i32[2, 16]>
  %zero = arith.constant(0.0) : vector<f32[16]>
  %s = scf.for(%b = 0 to B, %acc = %zero) {
    memref.prefetch(%W[%r, %b + 8, 0])
    %q = vector.load(%Q[%r, %b, 0:+16]) : vector<i32[16]>
    %mask = arith.constant(252645135) : vector<i32[16]>
    %four = arith.constant(4) : vector<i32[16]>
    %low = arith.andi(%q, %mask) : vector<i32[16]>
    %up = arith.shrui(%q, %four) : vector<i32[16]>
    %high = arith.andi(%up, %mask) : vector<i32[16]>
    vector.store(%low, %P[0, 0:+16])
    vector.store(%high, %P[1, 0:+16])
    %none = arith.constant(0) : vector<i32[16]>
    %a = memref.load(%A[%b, 0]) : i32
    %a16 = vector.broadcast(%a) : vector<i32[16]>
    %p = vector.load(%P[0, 0:+16]) : vector<i32[16]>
    %i = arith.dot4(%p, %a16, %none) : vector<i32[16]>
    %e = memref.load(%A[%b, 1]) : i32
    %e16 = vector.broadcast(%e) : vector<i32[16]>
    %o = vector.load(%P[1, 0:+16]) : vector<i32[16]>
    %j = arith.dot4(%o, %e16, %i) : vector<i32[16]>
    %f = arith.sitofp(%j) : vector<f32[16]>
    %h = vector.load(%S[%r, %b, 32:+16]) : vector<f16[16]>
    %d = arith.extf(%h) : vector<f32[16]>
    %first = arith.cmpi(%b, %last, predicate="lt") : bool
    %t = scf.if(%first) {
      %u = math.fma(%d, %f, %acc) : vector<f32[16]>
      yield %u
    } {
      yield %acc
    } : vector<f32[16]>
    yield %t
  } : vector<f32[16]>
  vector.store(%s, %C[%r, 0:+16])
  yield
}
%y = memref.to_tensor(%C)
"""


def packed(rows: int, blocks: int) -> np.ndarray:
    """Bytes with finite numbers where f16 stand."""
    rng = np.random.default_rng(rows)
    w = rng.integers(0, 256, (rows, blocks, 96), np.uint8)
    w[..., 64:] = rng.standard_normal((rows, blocks, 16)).astype(np.float16).view(np.uint8).reshape(rows, blocks, 32)
    return w


def test_a_tile_of_packed_weights() -> None:
    module = main_program("%w: u8[R, B, 96], %x: i32[B, 2]", TILE, "f32[R, 16]")
    native = NativeGraph(module, module.main)
    for rows, blocks in [(1, 1), (3, 5), (0, 4), (2, 0)]:
        check(module, packed(rows, blocks), np.random.default_rng(1).integers(-(2**31), 2**31, (blocks, 2), np.int32), native=native, threads=(1, 2))
    loop = native.native.text
    assert "is outside" not in str(native.native.sites), "accesses to views of whole buffers are proved"
    assert loop.count("llvm.prefetch") == 2
    if "avx512vnni" in host_features():
        text = assembly(loop)
        assert "vcvtph2ps" in text and text.count("vpdpbusd") == 2 and "prefetcht0" in text


DIGITS = """
%A = memref.from_tensor(%x)
%D = memref.alloc() : memref<i8[R, 3, 32]>
%S = memref.alloc() : memref<i32[R, 24]>
%T = memref.view(%D, offset=0) : memref<i32[R, 24]>
scf.parallel(%r = 0 to R, mapping="threads") {
  scf.for(%j = 0 to 32 step 16) {
    %v = vector.load(%A[%r, %j:+16]) : vector<f32[16]>
    %n = math.roundeven(%v) : vector<f32[16]>
    %i = arith.fptosi(%n) : vector<i32[16]>
    %d0 = arith.trunci(%i) : vector<i8[16]>
    vector.store(%d0, %D[%r, 0, %j:+16])
    %e0 = arith.extsi(%d0) : vector<i32[16]>
    %r0 = arith.subi(%i, %e0) : vector<i32[16]>
    %eight = arith.constant(8) : vector<i32[16]>
    %i1 = arith.shrsi(%r0, %eight) : vector<i32[16]>
    %d1 = arith.trunci(%i1) : vector<i8[16]>
    vector.store(%d1, %D[%r, 1, %j:+16])
    %e1 = arith.extsi(%d1) : vector<i32[16]>
    %r1 = arith.subi(%i1, %e1) : vector<i32[16]>
    %i2 = arith.shrsi(%r1, %eight) : vector<i32[16]>
    %d2 = arith.trunci(%i2) : vector<i8[16]>
    vector.store(%d2, %D[%r, 2, %j:+16])
    yield
  }
  yield
}
memref.copy(%T, %S)
%y = memref.to_tensor(%S)
"""


def test_digits_of_numbers() -> None:
    """Bytes are stored, words are read; the sum of the digits is the rounded number."""
    module = main_program("%x: f32[R, 32]", DIGITS, "i32[R, 24]")
    native = NativeGraph(module, module.main)
    x = np.random.default_rng(2).uniform(-7896959, 7896959, (5, 32)).astype(np.float32)
    x[0, :4] = 7896959, -7896959, 127.5, -128.5
    (y,) = check(module, x, native=native, threads=(1, 2))
    digits = y.view(np.int8).reshape(5, 3, 32).astype(np.int64)
    assert np.array_equal(digits[:, 0] + 256 * digits[:, 1] + 65536 * digits[:, 2], np.rint(x))
    special = np.tile(np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 0.5, -0.0, 1e-40], np.float32), (2, 4))
    check(module, special, native=native)
    if "avx512f" in host_features():
        text = assembly(native.native.text)
        assert "vpmovdb" in text and "vrndscaleps" in text


@pytest.mark.parametrize(("type_", "offset", "shape"), [("u8[N, 8]", "8*N-8", (3, 8)), ("i8[2, N, 4]", "4*N+12", (2, 3, 4))])
def test_views_that_are_outside(type_: str, offset: str, shape: tuple[int, ...]) -> None:
    module = main_program(f"%x: {type_}", f"%A = memref.from_tensor(%x)\n%V = memref.view(%A, offset={offset}) : memref<i32[N]>")
    wrong = np.zeros(shape, np.uint8 if type_[0] == "u" else np.int8)
    for run in (Interpreter(module).run, lambda graph, arrays: NativeGraph(module, graph).run(arrays)):
        with pytest.raises(GraphError, match=rf"bytes \d+ to \d+ are outside memref<{type_[:2]}.{', '.join(map(str, shape))}.>"):
            run(module.main, [wrong])


def test_a_plan_with_words_of_bytes() -> None:
    """plan-memory puts bytes into the arena, and what reads them as words with them."""
    module = main_program("%x: f32[R, 32]", DIGITS, "i32[R, 24]")
    for name in ("plan-memory", "poison"):
        find_pass(name)().run(module, PassContext())
    assert "%D = memref.view(%arena, offset=" in str(module) and "%T = memref.view(%D, offset=0)" in str(module)
    check(module, np.random.default_rng(4).uniform(-1e6, 1e6, (7, 32)).astype(np.float32), threads=(1, 2))
