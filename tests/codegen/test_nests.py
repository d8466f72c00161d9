"""Nests that are called instead of written again: the text is the one that writing all of them gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import graph_opt
from codegen.llvm.emit import emit_graph
from codegen.llvm.main import MainWriter
from codegen.llvm.nests import KnownNests
from codegen.llvm.writer import Unit
from graph_opt.levels import preset_of
from ir.clone import clone_module
from ir.core import Module
from ir.printer import print_module
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

DIGITS = """
graph @layer(%x: f32[S, 64], %w: q4_1[64, 64]) -> f32[S, 64] {
  %h = linear(%x, %w)
  %y = add(%h, %x)
  return %y
}

graph @main(%x: f32[S, 64], %v: q4_1[64, 64], %w: q4_1[64, 64]) -> f32[S, 64] {
  %a = call(@layer, %x, %v)
  %b = call(@layer, %a, %w)
  %c = call(@layer, %b, %v)
  return %c
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


def stands_in(module: Module) -> PassManager:
    """Lowers a module whose copies are stand-ins."""
    manager = PassManager(load_pipeline("cpu"), fold_twins=True, stand_in="main")
    manager.run(module)
    return manager


def same_code(module: Module) -> Module:
    """Checks that stand-ins give the code, the places and the module that copies give; returns that."""
    other = clone_module(module)
    manager = stands_in(module)
    mine = emit_graph(module, module.main, copies=manager.copies)
    PassManager(load_pipeline("cpu"), fold_twins=True).run(other)
    theirs = emit_graph(other, other.main)
    assert mine.text == theirs.text
    assert list(mine.sites) == list(theirs.sites)
    manager.complete()
    assert print_module(module) == print_module(other)
    return module


@pytest.mark.parametrize("text", [LAYERS, CACHES, DIGITS])
def test_stand_ins(text):
    same_code(graph_opt.parse(text))


@pytest.mark.parametrize("seed", range(20))
def test_stand_ins_in_random_programs(seed):
    module = doubled(random_module(seed))
    if module is None or level_is_low(clone_module(module)):
        pytest.skip("it updates arrays, or has no machine code")
    same_code(module)


def test_stand_ins_share_operations():
    """What is in a stand-in are the operations of the original; one on its own is made where code for it can't be called."""
    module = graph_opt.parse(CACHES)
    manager = stands_in(module)
    walked = list(module.main.walk())
    assert len(set(walked)) < len(walked)
    main = MainWriter(Unit("f"), module.main, [], copies=manager.copies)
    for op, copy in manager.copies.items():
        real = main.known_nests.real(op)
        assert (real is op) == (copy.locations is None)
        assert copy.locations is None or not set(real.walk()) & set(copy.original.walk())
    manager.complete()
    after = list(module.main.walk())
    assert len(set(after)) == len(after) == len(walked)


@pytest.mark.parametrize("text", [LAYERS, CACHES, DIGITS])
def test_stand_ins_that_can_not_be_called(text, monkeypatch):
    """They are written out, every one."""
    monkeypatch.setattr(KnownNests, "find", lambda self, op: setattr(self, "_asked", None))
    same_code(graph_opt.parse(text))


def test_errors_in_stand_ins_are_where_the_copies_are():
    """The second of two equal calls fails: the message has its place."""
    text = CACHES.replace("%start: i64[], %w: f32[8, 8]) -> f32[S, 8] {\n  %y0", "%s0: i64[], %s1: i64[], %w: f32[8, 8]) -> f32[S, 8] {\n  %y0")
    text = text.replace("%c0, %start", "%c0, %s0").replace("%c1, %start", "%c1, %s1").replace("%c2, %start", "%c2, %s0")
    executable, reference = graph_opt.compile(graph_opt.parse(text)), graph_opt.compile(graph_opt.parse(text), device="reference")
    for starts in ((0, 9), (9, 0), (-1, 1)):
        arguments = [np.zeros((3, 8), np.float32), *(np.zeros((5, 8), np.float32) for _ in range(3)), *map(np.array, starts)]
        found = []
        for each in (executable, reference):
            with pytest.raises(graph_opt.GraphError) as caught:
                each(*arguments, np.zeros((8, 8), np.float32))
            found.append(str(caught.value))
        assert found[0] == found[1]


def test_a_compiled_module_is_complete():
    """Whoever asks for the program gets all of it, also when several do at a time."""
    expected = graph_opt.parse(CACHES)
    PassManager(load_pipeline(preset_of("loops")), fold_twins=True).run(expected)
    executable = graph_opt.compile(graph_opt.parse(CACHES))
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda _: str(executable), range(4))} == {str(expected)}


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
