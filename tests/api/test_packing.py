"""Weights that are packed when a program is loaded: the bits of the reference, and no mapping that stays."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

import graph_opt
from codegen.llvm.emit import emit_graph
from dialects.graph.digits import FORMATS, ROWS, pack_rows
from graph_opt.packing import LoadTimeInterpreter, let_go, pack, program_text, unmapped
from ir.interpreter import Interpreter
from ir.types import DTYPES


def blocks(dtype: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Any bytes."""
    stored = DTYPES[dtype].numpy
    rng = np.random.default_rng(seed + rows)
    return rng.integers(0, 256, rows * columns * stored.itemsize, np.uint8).view(stored).reshape(rows, columns)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", FORMATS)
def test_same_bytes(dtype: str, threads: int) -> None:
    for columns in (1, 3, 0):
        for rows in [(32,), (64,), (1,), (31,), (33,), (32, 32), (5, 40, 7), (70, 26), (0,), (3, 0, 29)]:
            matrices = [blocks(dtype, n, columns, seed) for seed, n in enumerate(rows)]
            place = np.full((-(-sum(rows) // ROWS), columns, FORMATS[dtype].bytes), 0xAA, np.uint8)
            packed = pack(matrices, threads, place)
            assert packed is place and np.array_equal(packed, pack_rows(*matrices)), (rows, columns)


@pytest.mark.parametrize("dtype", FORMATS)
def test_loops_need_no_checks(dtype: str) -> None:
    module = graph_opt.parse(program_text(FORMATS[dtype]))
    assert not [s.template for s in emit_graph(module, module.main).sites if "outside" in s.template]


def test_in_a_load_time_graph() -> None:
    """As a result, as what another operation reads, and twice."""
    module = graph_opt.parse("""graph @main(%a: q8_0[33, 64], %b: q8_0[3, 64]) -> (u8[2, 2, 1088], u8[2, 2, 1088], u8[2, 1, 1088]) {
      %p = pack_rows(%a, %b)
      %q = pack_rows(%a)
      %r = slice(%q, starts=[0], ends=[1], axes=[1])
      return %p, %p, %r
    }
    """)
    arrays = [blocks("q8_0", 33, 2), blocks("q8_0", 3, 2)]
    want = Interpreter(module).run(module.main, arrays)
    found = LoadTimeInterpreter(module, threads=2).run(module.main, arrays)
    assert all(map(np.array_equal, want, found))


def test_into_places() -> None:
    module = graph_opt.parse("""graph @main() -> (u8[1, 1, 576], u8[1, 1, 576]) {
      %w = initial(@other, result=0) : q4_0[7, 32]
      %p = pack_rows(%w)
      return %p, %p
    }

    graph @other() -> q4_0[7, 32] {
      %w = weight(@f, "w") : q4_0[7, 32]
      return %w
    }
    """.replace("graph @main", 'file @f = "w.gguf"\n\ngraph @main', 1))

    class Source:
        def names(self) -> list[str]:
            return ["w"]

        def info(self, name: str) -> tuple[object, tuple[int, ...]]:
            return DTYPES["q4_0"], (7, 32)

        def read(self, name: str) -> np.ndarray:
            return blocks("q4_0", 7, 1)

        def close(self) -> None:
            pass

    targets = [np.ones((1, 1, 576), np.uint8) for _ in range(2)]
    LoadTimeInterpreter(module, {"f": Source()}).run_into(module.main, targets)
    assert all(np.array_equal(t, pack_rows(blocks("q4_0", 7, 1))) for t in targets)


def test_arrays_of_mapped_files_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)))
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapping, np.float32, 16, 64).reshape(4, 4)
    copy = unmapped(array)
    assert copy.tobytes() == array.tobytes() and copy.ctypes.data % 64 == 0 and unmapped(copy) is copy
    del array
    gc.collect()
    mapping.close()
    own = np.zeros((2, 3))
    assert unmapped(own) is own and unmapped(own.T).base is own


def test_mapped_arrays_can_be_let_go_and_read_again(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 5 * mmap.PAGESIZE + 100, np.uint8)
    path = tmp_path / "bytes"
    path.write_bytes(content.tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for start, count in ((0, 10), (100, 3 * mmap.PAGESIZE), (5 * mmap.PAGESIZE, 100)):
        array = np.frombuffer(mapping, np.uint8, count, start)
        let_go(array)
        assert np.array_equal(array, content[start : start + count])
    own = np.ones(5)
    let_go(own)
    assert np.array_equal(own, np.ones(5))
