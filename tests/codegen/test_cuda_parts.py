"""Large programs are compiled in parts."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt
from codegen.cuda import host_build, parts
from codegen.cuda.emit import HEADER, emit_program
from codegen.cuda.emulation import EmulatedDriver
from codegen.cuda.parts import parts_of
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline

CHAIN = """
graph @main(%x: f32[64, 5], %w: f32[5, 7]) -> (f32[64, 7], f32[64, 5]) {
  %s = softmax(%x, axis=1)
  %h = matmul(%s, %w)
  %y = softmax(%h, axis=0)
  %c = cumsum(%x, axis=0)
  %z = cumsum(%c, axis=1)
  return %y, %z
}
"""


def _program():
    module = graph_opt.parse(CHAIN)
    PassManager(load_pipeline("cuda")).run(module)
    return emit_program(module, module.main)


def test_all_kernels_are_in_one_part(monkeypatch):
    monkeypatch.setattr(parts, "KERNELS", 1)
    program = _program()
    assert len(program.kernels) >= 3
    assert parts_of(program, 1) == [(program.source, program.kernels)]
    for most in (2, 3, 100):
        found = parts_of(program, most)
        assert len(found) == min(most, len(program.kernels))
        assert sorted(k.name for _, kernels in found for k in kernels) == sorted(k.name for k in program.kernels)
        for source, kernels in found:
            assert source.count(HEADER) == 1 and host_build.kernel_names(source) == [k.name for k in kernels]
        assert found == parts_of(program, most)


def test_small_programs_are_one_text():
    program = _program()
    assert parts_of(program, 8)[0][0] == program.source or len(program.kernels) >= 2 * parts.KERNELS


@pytest.mark.skipif(host_build.why_not("") is not None, reason=str(host_build.why_not("")))
def test_kernels_of_several_modules(monkeypatch):
    """A program whose kernels are in three libraries computes what it does with one."""
    generator = np.random.default_rng(0)
    given = [generator.standard_normal(s).astype(np.float32) for s in ((64, 5), (5, 7))]
    expected = graph_opt.compile(graph_opt.parse(CHAIN), device="cpu")(*given)
    monkeypatch.setattr(parts, "KERNELS", 1)
    monkeypatch.setattr(EmulatedDriver, "builders", lambda self: 3)
    loaded = []
    load = EmulatedDriver.load_module
    monkeypatch.setattr(EmulatedDriver, "load_module", lambda self, image: (loaded.append(image), load(self, image))[1])
    found = graph_opt.compile(graph_opt.parse(CHAIN), device="cuda-emulated")(*given)
    assert len(set(loaded)) == 3
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
