"""narrow-buffers: what was rounded to f16 or bf16 is kept so in memory."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_checks import loops
from pass_checks import apply, load

from ir.clone import clone_module
from ir.core import Module
from ir.inputs import generate_inputs
from ir.interpreter import Interpreter
from ir.printer import print_module

TWO = """graph @main(%x: {t}[B, 8], %w: {t}[8, 16], %v: {t}[16, 4]) -> {t}[B, 4] {{
  %h = matmul(%x, %w)
  %y = {f}
  %z = matmul(%y, %v)
  return %z
}}
"""


def narrowed(module: Module) -> int:
    statistics = apply(module, "narrow-buffers").records[0].statistics
    return int(statistics.get("buffers narrowed", 0))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("function", ["silu(%h)", "relu(%h)", "add(%h, %h)"])
def test_bits_stay(dtype: str, function: str) -> None:
    module = loops(TWO.format(t=dtype, f=function))
    before = clone_module(module)
    assert narrowed(module) == 1, print_module(module)
    again = print_module(module)
    assert narrowed(module) == 0 and print_module(module) == again
    load(again)
    for rows in (0, 1, 5):
        for kind in ("real", "special"):
            arrays = generate_inputs(before, before.main, {"B": rows}, seed=rows, kind=kind)
            found, wanted = (Interpreter(m).run(m.main, arrays)[0] for m in (module, before))
            assert found.tobytes() == wanted.tobytes()


def test_f32_stays() -> None:
    module = loops(TWO.format(t="f32", f="silu(%h)"))
    assert narrowed(module) == 0


def test_other_stores_keep_it_wide() -> None:
    text = """graph @main(%x: memref<bf16[4]>, %y: memref<f32[4]>) {
  %b = memref.alloc() : memref<f32[4]>
  scf.parallel(%i = 0 to 4) {
    %a = memref.load(%x[%i]) : bf16
    %w = arith.extf(%a) : f32
    %s = arith.addf(%w, %w) : f32
    %n = arith.truncf(%s) : bf16
    %e = arith.extf(%n) : f32
    memref.store(%OTHER, %b[%i])
    memref.store(%e, %b[%i])
    yield
  }
  scf.parallel(%j = 0 to 4) {
    %l = memref.load(%b[%j]) : f32
    memref.store(%l, %y[%j])
    yield
  }
  return
}
"""
    assert narrowed(load(text.replace("OTHER", "e"))) == 1
    assert narrowed(load(text.replace("OTHER", "s"))) == 0  # not rounded
    assert narrowed(load(text.replace("    memref.store(%e, %b[%i])\n", "").replace("OTHER", "w"))) == 0  # a copy
    copied = text.replace("  scf.parallel(%j", "  memref.copy(%b, %y)\n  scf.parallel(%j").replace("OTHER", "e")
    assert narrowed(load(copied)) == 0
    module = load(text.replace("OTHER", "e"))
    narrowed(module)
    import ml_dtypes

    x, y = np.array([1, 2.5, -0.0, np.nan], ml_dtypes.bfloat16), np.zeros(4, np.float32)
    Interpreter(module).run(module.main, [x, y])
    assert np.array_equal(y, x.astype(np.float32) * 2, equal_nan=True)
