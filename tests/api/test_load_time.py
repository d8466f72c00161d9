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
