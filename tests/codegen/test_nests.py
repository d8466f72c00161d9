"""Nests that are called instead of written again: the text is the one that writing all of them gives."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt
from codegen.llvm.emit import emit_graph
from codegen.llvm.nests import KnownNests
from ir.core import Module
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline
from tests.generators import random_module
from tests.twin_programs import LAYERS, doubled

CACHES = """
graph @layer(%x: f32[S, 8], %cache: f32[T, 8] inout, %start: i64[], %w: f32[8, 8]) -> f32[S, 8] {
  %h = matmul(%x, %w)
  %c = cache_update(%cache, %h, %start)
  %m = matmul(%x, %c, transpose_b=true)
  %s = softmax(%m)
  %y = matmul(%s, %c)
  return %y
}

graph @main(%x: f32[S, 8], %c0: f32[T, 8] inout, %c1: f32[T, 8] inout, %c2: f32[T, 8] inout, %start: i64[], %w: f32[8, 8]) -> f32[S, 8] {
  %y0, %_ = call(@layer, %x, %c0, %start, %w)
  %y1, %_ = call(@layer, %y0, %c1, %start, %w)
  %y2, %_ = call(@layer, %y1, %c2, %start, %w)
  return %y2
}
"""


def lowered(module: Module) -> Module:
    PassManager(load_pipeline("cpu")).run(module)
    return module


def texts(module: Module, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, int]:
    """The text with and without what is known, and how many nests were called."""
    found = []
    find = KnownNests.find

    def counted(self, op):
        call = find(self, op)
        found.append(call is not None)
        return call

    monkeypatch.setattr(KnownNests, "find", counted)
    one = emit_graph(module, module.main).text
    monkeypatch.setattr(KnownNests, "find", lambda self, op: setattr(self, "_asked", None))
    return one, emit_graph(module, module.main).text, sum(found)


def test_layers(monkeypatch):
    known, written, _ = texts(lowered(graph_opt.parse(LAYERS)), monkeypatch)
    assert known == written


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_twice(seed, monkeypatch):
    module = doubled(random_module(seed))
    if module is None or level_is_low(module):
        pytest.skip("it updates arrays, or has no machine code")
    known, written, _ = texts(module, monkeypatch)
    assert known == written


def level_is_low(module: Module) -> bool:
    try:
        emit_graph(lowered(module), module.main)
    except graph_opt.GraphError:
        return True
    return False


def test_updates_in_place(monkeypatch):
    """What is known of an index that a nest is given must hold for the one of every other nest."""
    module = graph_opt.parse(CACHES)
    known, _, found = texts(lowered(graph_opt.parse(CACHES)), monkeypatch)
    assert found and "nest" in known
    monkeypatch.undo()
    executable, reference = graph_opt.compile(module), graph_opt.compile(module, device="reference")
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    w = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    for start in (0, 2):
        caches = [[np.zeros((5, 8), np.float32) for _ in range(3)] for _ in range(2)]
        mine = executable(x, *caches[0], np.array(start), w)
        other = reference(x, *caches[1], np.array(start), w)
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
        for a, b in zip(*caches, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for start in (3, -1):
        with pytest.raises(graph_opt.GraphError, match="cache_update"):
            executable(x, *caches[0], np.array(start), w)


@pytest.mark.parametrize("text", [LAYERS, CACHES])
def test_known_copies(text):
    """That nests are copies is known from folding, also of what stands inside of them; the text is the one that a look at them gives."""
    module = graph_opt.parse(text)
    manager = PassManager(load_pipeline("cpu"), fold_twins=True)
    manager.run(module)
    assert manager.copies or text is LAYERS  # whose layers differ
    assert emit_graph(module, module.main, copies=manager.copies).text == emit_graph(module, module.main).text


@pytest.mark.parametrize("text", [LAYERS, CACHES])
def test_copies_are_found(text, monkeypatch):
    """What is said of a copy is what a look at it would say."""
    from ir.structure import structure_of

    module = graph_opt.parse(text)
    manager = PassManager(load_pipeline("cpu"), fold_twins=True)
    manager.run(module)
    structure = KnownNests._structure

    def checked(self, op):
        key, outside = structure(self, op)
        assert outside == structure_of(op, lambda v: None)[1]
        assert structure_of(op, lambda v: None)[0] == structure_of(self._original(op)[0], lambda v: None)[0]
        return key, outside

    monkeypatch.setattr(KnownNests, "_structure", checked)
    emit_graph(module, module.main, copies=manager.copies)
