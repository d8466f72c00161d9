"""Machine code reads and writes nothing outside of its memory: all of it lies between pages that nobody may touch."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.checks import all_examples
from tests.guarded import ROOT, Guarded, run_in_process
from tests.properties.test_native import ATTENTION, LAYERNORM, MIXED, MLP, SIZES, SOFTMAX

EXAMPLES = [text for name, _, text in all_examples() if name.startswith("graph.")]


def test_memory() -> None:
    for size in (0, 1, 7, 4096, 4097):
        end, start = Guarded(size, "end"), Guarded(size, "start", 64)
        assert (end.address + size) % 4096 == 0 and start.address % 4096 == 0
        assert end.memory.nbytes == size
        end.check()
    near = Guarded(10, "end", 64)
    assert near.address % 64 == 0
    near._outside[1][0] = 0
    with pytest.raises(AssertionError, match="outside"):
        near.check()


TOUCHES = {
    "a read behind the end": "m = Guarded(8, 'end'); ctypes.string_at(m.address + 8, 1)",
    "a read in front of the start": "m = Guarded(8, 'start'); ctypes.string_at(m.address - 1, 1)",
    "a write to what is read only": "m = Guarded(8, 'end'); m.freeze(); ctypes.memset(m.address, 0, 1)",
}


@pytest.mark.parametrize("name", TOUCHES)
def test_an_access_outside_ends_the_process(name: str) -> None:
    code = f"import ctypes\nfrom tests.guarded import Guarded\n{TOUCHES[name]}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGBUS)


def test_a_process_that_ends_is_told() -> None:
    """What comes back from the process says which program it was."""
    fine = "graph @main(%x: f32[N]) -> f32[N] {\n  %y = exp(%x)\n  return %y\n}"
    assert run_in_process([(fine, [{"N": 5}]), (fine, [{"N": 0}])]) == 8
    with pytest.raises(AssertionError, match="M"):
        run_in_process([(fine, [{"N": 5}]), (fine.replace("N", "M"), [{"N": 5}])])


@pytest.mark.parametrize("part", range(6))
def test_examples(part: int) -> None:
    assert run_in_process([(text, None) for text in EXAMPLES[part::6]]) > 50


def test_edges_of_tiles() -> None:
    """Products, softmax, layernorm and attention whose sizes are one more, one less, or a multiple of a tile."""
    programs: list[tuple[str, list[dict[str, int]]]] = []
    for n in SIZES:
        programs.append((MLP.format(K=7, N=n, activation="silu"), [{"M": m} for m in (1, 3, 8, 15, 17, 33)]))
    sizes = [(m, n, SIZES[(m + n) % 16]) for m in SIZES for n in SIZES if (m + n) % 7 == 0]
    programs.append((MLP.format(K="K", N="N", activation="gelu"), [{"M": m, "N": n, "K": k} for m, n, k in sizes]))
    for rows in (SOFTMAX, LAYERNORM):
        programs.append((rows.format(N="N"), [{"M": m, "N": n} for n in SIZES for m in (1, 3)]))
        programs.extend((rows.format(N=n), [{"M": m} for m in (1, 5)]) for n in (7, 17, 65))
    programs.append((ATTENTION.format(S="S", D="D"), [{"M": 1, "S": s, "D": SIZES[s % 16]} for s in SIZES[:11]]))
    programs.append((MIXED.format(), [{"M": m} for m in SIZES[:9]]))
    assert run_in_process(programs) > 900
