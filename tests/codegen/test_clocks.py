"""Code with clocks: how long each top-level loop takes, beside the same results."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from codegen.llvm.emit import emit_graph
from tests.codegen.code_checks import main_program
from tests.codegen.native_graph import NativeGraph

BODY = """%A = memref.from_tensor(%x)
%C = memref.alloc() : memref<f32[N]>
%D = memref.alloc() : memref<f32[N]>
scf.parallel(%i = 0 to N, mapping="threads") {
  %a = memref.load(%A[%i]) : f32
  %b = arith.addf(%a, %a) : f32
  memref.store(%b, %C[%i])
  yield
}
scf.for(%r = 0 to 3) {
  scf.parallel(%j = 0 to N, mapping="threads") {
    %c = memref.load(%C[%j]) : f32
    memref.store(%c, %D[%j])
    yield
  }
  yield
}
scf.for(%k = 0 to N) {
  %d = memref.load(%D[%k]) : f32
  memref.store(%d, %C[%k])
  yield
}
%y = memref.to_tensor(%C)"""


def test_no_clocks_unless_asked() -> None:
    module = main_program("%x: f32[N]", BODY, "f32[N]")
    plain, timed = emit_graph(module, module.main), emit_graph(module, module.main, clocks=True)
    assert "counter" not in plain.text and not plain.timed
    assert "counter" in timed.text
    assert [op.name for op in timed.timed] == ["scf.parallel", "scf.parallel", "scf.for", "graph.return"]
    assert timed.timed[1].block is not module.main.block


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_times_add_up(threads: int) -> None:
    module = main_program("%x: f32[N]", BODY, "f32[N]")
    native = NativeGraph(module, module.main, clocks=True)
    clocks = (ctypes.c_int64 * 4).from_address(native.code.address(native.native.clocks_name))
    x = np.arange(100_000, dtype=np.float32)
    assert list(clocks) == [0, 0, 0, 0]
    last = [0, 0, 0, 0]
    for _ in range(3):
        np.testing.assert_array_equal(native.run([x], threads)[0], x + x)
        assert all(now > before for now, before in zip(clocks, last, strict=True))
        last = list(clocks)
        assert sum(last[:3]) <= last[3]
