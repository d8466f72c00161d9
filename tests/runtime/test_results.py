"""Memory of large results: aligned, theirs alone, used again when they are gone."""

from __future__ import annotations

import gc
import os
import pickle
import resource

import numpy as np
import pytest
from native_text import add_program

from codegen.llvm.jit import Code
from codegen.runtime.entry import make_entry
from codegen.runtime.numpy_api import find_interface
from codegen.runtime.results import LARGE

f = np.float32
interface = find_interface()
pytestmark = pytest.mark.skipif(interface is None or not interface.knows_handlers, reason="a numpy that is not known here")


def adder() -> object:
    made = make_entry(add_program(), print, print, Code.from_text)
    assert made is not None
    call = made.callable
    return lambda x: (call(x, x), made)[0]  # the entry lives as long as the function


@pytest.mark.parametrize("rows", [1, LARGE // 12, LARGE // 12 + 1, LARGE // 12 + 2, 5000, 200_000])
def test_results_are_ordinary_arrays(rows: int) -> None:
    add = adder()
    x = np.arange(3 * rows, dtype=f).reshape(rows, 3)
    y = add(x)  # type: ignore[operator]
    assert y.flags.owndata and y.flags.writeable and y.base is None and y.nbytes == x.nbytes
    assert y.nbytes < LARGE or y.ctypes.data % 64 == 0
    np.testing.assert_array_equal(y, x * 2)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(y)), y)
    y.resize((rows + 7, 3), refcheck=False)
    assert (y[-7:] == 0).all() and (y[:rows] == x * 2).all()
    y.resize((1, 3), refcheck=False)
    del y
    np.testing.assert_array_equal(add(x), x * 2)  # type: ignore[operator]


def test_no_two_results_share_memory() -> None:
    add = adder()
    rng = np.random.default_rng(0)
    alive: list[tuple[np.ndarray, float]] = []
    for step in range(3000):
        rows = int(rng.choice([1400, 1500, 2000, 2000, 2000, 3000, 9000]))
        value = float(step)
        alive.append((add(np.full((rows, 3), value, f)), value))  # type: ignore[operator]
        if len(alive) > 12:
            at = int(rng.integers(len(alive)))
            array, wanted = alive.pop(at)
            assert (array == 2 * wanted).all()
    ranges = sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a, _ in alive)
    assert all(end <= start for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False))


def test_memory_is_used_again() -> None:
    add = adder()
    x = np.ones((40_000, 3), f)
    first = add(x).ctypes.data  # type: ignore[operator]
    assert {add(x).ctypes.data for _ in range(10)} == {first}  # type: ignore[operator]
    view = add(x)[5:]  # type: ignore[operator]
    assert add(x).ctypes.data != first and (view == 2).all()  # type: ignore[operator]


def test_little_is_kept() -> None:
    def resident() -> int:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    add = adder()
    before = resident()
    for rows in range(100_000, 3_000_000, 100_000):  # 520 MB altogether
        add(np.broadcast_to(f(1), (rows, 3)).copy())  # type: ignore[operator]
    assert resident() - before < 400 << 20


def test_results_outlive_programs_and_forks() -> None:
    add = adder()
    y = add(np.ones((5000, 3), f))  # type: ignore[operator]
    del add
    gc.collect()
    child = os.fork()
    if child == 0:
        good = bool((y == 2).all())
        del y
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (y == 2).all()
