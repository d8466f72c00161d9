"""What compiling does beside passes: a thread that reads ahead, fewer searches for garbage, results put where they stay."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

import graph_opt
from graph_opt.ahead import Ahead
from graph_opt.collector import OFTEN, fewer_collections
from graph_opt.load_time import LoadTime
from ir.core import Operation
from ir.interpreter import Interpreter


def test_ahead():
    main = threading.get_ident()
    assert Ahead(threading.get_ident).result() != main

    def fail() -> None:
        time.sleep(0.01)
        raise MemoryError("none")

    work = Ahead(fail)
    work.wait()
    with pytest.raises(MemoryError, match="none"):
        work.result()


def test_fewer_collections():
    before = gc.get_threshold()
    with fewer_collections(), fewer_collections():
        assert gc.get_threshold() == (OFTEN, *before[1:])
    assert gc.get_threshold() == before
    with pytest.raises(KeyError), fewer_collections():
        raise KeyError
    assert gc.get_threshold() == before
    with fewer_collections():
        gc.set_threshold(123, 4, 5)  # somebody else's wish stays
    assert gc.get_threshold() == (123, 4, 5)
    gc.set_threshold(0)
    with fewer_collections():
        assert gc.get_threshold()[0] == 0
    gc.set_threshold(*before)


def test_results_into_arrays():
    text = """graph @main() -> (f32[2, 3], f32[3, 2], f32[2, 3]) {
  %c = constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]) : f32[2, 3]
  %t = transpose(%c, perm=[1, 0])
  %n = neg(%c)
  return %n, %t, %n
}
"""
    module = graph_opt.parse(text)
    targets = [np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32), np.zeros((2, 3), np.float32)]
    Interpreter(module, {}).run_into(module.main, targets)
    for found, wanted in zip(targets, Interpreter(module, {}).run(module.main, []), strict=True):
        np.testing.assert_array_equal(found, wanted)


def operations() -> int:
    """How many there are, garbage included."""
    return sum(isinstance(o, Operation) for o in gc.get_objects())


def test_erased_operations_are_no_garbage():
    module = graph_opt.parse(
        """graph @main(%A: memref<f32[8]>) {
  scf.parallel(%i = 0 to 8) {
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %A[%i])
    yield
  }
  return
}
"""
    )
    loop = next(op for op in module.main.block if op.regions)
    gc.collect()
    gc.disable()
    try:
        before = operations()
        loop.erase()
        del loop
        assert operations() == before - 4
    finally:
        gc.enable()


WEIGHTS = """file @w = "w.npz"

graph @main(%x: f32[B, 64]) -> f32[B, 64] {
  %a = weight(@w, "a") : f32[64, 64]
  %b = weight(@w, "b") : f32[64, 64]
  %h = linear(%x, %a)
  %y = linear(%h, %b)
  return %y
}
"""


def test_weights_are_packed_meanwhile(monkeypatch, tmp_path):
    """The thread's results are taken if nothing has changed what it runs; else it is run again."""
    random = np.random.default_rng(0)
    arrays = {n: random.standard_normal((64, 64)).astype(np.float32) for n in "ab"}
    np.savez(tmp_path / "w.npz", **arrays)
    (tmp_path / "p.graph").write_text(WEIGHTS)
    found: list[int] = []
    results = LoadTime.results

    def counted(self, part):
        got = results(self, part)
        found.append(len(got))
        return got

    monkeypatch.setattr(LoadTime, "results", counted)
    x = random.standard_normal((3, 64)).astype(np.float32)
    once = graph_opt.compile(tmp_path / "p.graph")(x)
    np.testing.assert_allclose(once, x @ arrays["a"].T @ arrays["b"].T, rtol=1e-4, atol=1e-4)
    begin = LoadTime.begin

    def too_early(self, module):
        begin(self, module)
        self._text = "something else"

    monkeypatch.setattr(LoadTime, "begin", too_early)
    np.testing.assert_array_equal(graph_opt.compile(tmp_path / "p.graph")(x), once)
    assert found == [1, 0]


def test_missing_weights_are_told(tmp_path):
    np.savez(tmp_path / "w.npz", a=np.zeros((64, 64), np.float32))
    (tmp_path / "p.graph").write_text(WEIGHTS)
    with pytest.raises(graph_opt.GraphError, match="b"):
        graph_opt.compile(tmp_path / "p.graph")
