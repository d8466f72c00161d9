"""Who does what: work of one thread, work that is shared when there is enough, and where all wait."""

from __future__ import annotations

import re

import numpy as np
import pytest

import graph_opt
from codegen.llvm.emit import emit_graph
from codegen.llvm.turns import SHARED_WORK, SHARING_COST
from codegen.runtime.processors import PROCESSORS
from ir.diagnostics import GraphError

f = np.float32


def chain(*works: str) -> str:
    """y = x reversed, once for each loop that is shared; ``works`` say how much the loops are, "" for one that is not shared."""
    lines = ["graph @main(%x: f32[N]) -> f32[N] {", "  %B0 = memref.from_tensor(%x) : memref<f32[N]>"]
    for i, work in enumerate(works):
        mapping = f', mapping="threads", work={work}' if work else ""
        lines += [
            f"  %B{i + 1} = memref.alloc() : memref<f32[N]>",
            f"  scf.parallel(%i{i} = 0 to N{mapping}) {{",
            f"    %v{i} = memref.load(%B{i}[N - 1 - %i{i}]) : f32",
            f"    memref.store(%v{i}, %B{i + 1}[%i{i}])",
            "    yield",
            "  }",
        ]
    lines += [f"  %y = memref.to_tensor(%B{len(works)}) : f32[N]", "  return %y", "}", ""]
    return "\n".join(lines)


def barriers(text: str) -> tuple[int, int]:
    """How many barriers the main function has, and how many of them depend on the sizes."""
    module = graph_opt.parse(text)
    main = emit_graph(module, module.main).text.split("\n}\n")[0]
    return len(re.findall(r"call i32 @g_main\.barrier", main)), len(re.findall(r"^wait\d+:", main, re.MULTILINE))


@pytest.mark.parametrize(("works", "wanted"), [
    (["", ""], (0, 0)),
    (["100", ""], (0, 0)),
    ([f"{SHARED_WORK}", ""], (1, 0)),
    (["", f"{SHARED_WORK}", ""], (2, 0)),
    ([f"{SHARED_WORK}", f"{SHARED_WORK}"], (1, 0)),
    (["N", "N"], (1, 1)),
    (["N", ""], (1, 1)),
    (["", "N", f"{SHARED_WORK}"], (2, 1)),
])  # fmt: skip
def test_only_who_needs_it_waits(works: list[str], wanted: tuple[int, int]) -> None:
    assert barriers(chain(*works)) == wanted


@pytest.mark.parametrize("works", [
    ["N", "N"], ["N", "", "2*N"], ["", "N", "1000000", "N"], ["1000000", "N", "N*N", "", "N"], ["N ceildiv 8", "max(N, 5000)", "N mod 5000"],
])  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_size(monkeypatch: pytest.MonkeyPatch, works: list[str], threads: int) -> None:
    monkeypatch.setenv(PROCESSORS, "3")
    call = graph_opt.compile(graph_opt.parse(chain(*works)), threads=threads)
    for size in (0, 1, 2, 100, 4095, 4096, 4097, 20_000):
        x = np.arange(size, dtype=f)
        for _ in range(20):
            np.testing.assert_array_equal(call(x), x if len(works) % 2 == 0 else x[::-1])


@pytest.mark.parametrize(("works", "size", "wanted"), [
    (["12*N", "N*N"], 1000, 12_000 + 1_000_000 - 2 * SHARING_COST),
    (["10000*N", "N*N", "N"], 100, 1_000_000 + 10_000 - 2 * SHARING_COST),
    (["20000*(N ceildiv 8)", "20000*(N floordiv 8)", "20000*(N mod 8)", "20000*min(N, 3)"], 13, 20_000 * (2 + 1 + 5 + 3) - 4 * SHARING_COST),
    (["max(N, 20000)"], 13, 20_000 - SHARING_COST),
    (["10000*N", "20000", ""], 7, 90_000 - 2 * SHARING_COST),
    (["N*N*N*N"], 2**31 - 1, float((2**31 - 1) ** 4)),
])  # fmt: skip
def test_how_much_there_is_to_do(works: list[str], size: int, wanted: float) -> None:
    call = graph_opt.compile(graph_opt.parse(chain(*works)))
    assert call._program._work(np.array([size]).ctypes.data) == pytest.approx(wanted)  # type: ignore[attr-defined]


def test_nobody_knows_how_much() -> None:
    text = chain("N").replace(", work=N", "")
    call = graph_opt.compile(graph_opt.parse(text))
    assert call._program._work(np.array([5]).ctypes.data) == float("inf")  # type: ignore[attr-defined]


def test_loops_around_count() -> None:
    text = """graph @main(%C: memref<f32[N, 8]>) {
  %one = arith.constant(1.0) : f32
  scf.for(%r = 0 to N step 4) {
    scf.parallel(%i = 0 to 8, mapping="threads", work=20000) {
      memref.store(%one, %C[%r, %i])
      yield
    }
    yield
  }
  return
}
"""
    call = graph_opt.compile(graph_opt.parse(text))
    assert call._program._work(np.array([10]).ctypes.data) == 3 * (20_000 - SHARING_COST)  # type: ignore[attr-defined]


CHOICE = """graph @main(%x: f32[N]) -> f32[N] {
  %A = memref.from_tensor(%x) : memref<f32[N]>
  %B = memref.alloc() : memref<f32[N]>
  %n = affine.apply(2*N) : index
  %four = arith.constant(4) : index
  %few = arith.cmpi(%n, %four, predicate="le") : bool
  scf.if(%few) {
    scf.parallel(%i = 0 to N, mapping="threads", work=50000) {
      %v = memref.load(%A[%i]) : f32
      memref.store(%v, %B[%i])
      yield
    }
    yield
  } {
    scf.parallel(%j = 0 to N, mapping="threads", work=900000) {
      %w = memref.load(%A[%j]) : f32
      memref.store(%w, %B[%j])
      yield
    }
    yield
  }
  %y = memref.to_tensor(%B) : f32[N]
  return %y
}
"""


@pytest.mark.parametrize(("size", "work"), [(0, 50_000), (2, 50_000), (3, 900_000)])
def test_a_choice_by_sizes_counts_what_is_chosen(size: int, work: int) -> None:
    call = graph_opt.compile(graph_opt.parse(CHOICE))
    assert call._program._work(np.array([size]).ctypes.data) == work - SHARING_COST  # type: ignore[attr-defined]
    both = CHOICE.replace("%n = affine.apply(2*N) : index", "%z = memref.dim(%A, axis=0) : index\n  %n = arith.muli(%z, %z) : index")
    call = graph_opt.compile(graph_opt.parse(both))
    assert call._program._work(np.array([size]).ctypes.data) == work - SHARING_COST  # type: ignore[attr-defined]


def test_what_nobody_writes_is_read_at_once() -> None:
    """A number of an argument is read without waiting for the work before, one of a buffer is not."""
    text = chain(f"{SHARED_WORK}", f"{SHARED_WORK}")
    assert barriers(text) == (1, 0)
    for buffer, waits in (("B0", 1), ("B1", 2)):
        read = text.replace("  %B2 = memref.alloc", f"  %v = memref.load(%{buffer}[0]) : f32\n  %B2 = memref.alloc")
        assert barriers(read) == (waits, 0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mapping", ["", ', mapping="threads", work=1', ', mapping="threads", work=N', ', mapping="threads"'])
def test_nothing_is_done_behind_a_failure(monkeypatch: pytest.MonkeyPatch, threads: int, mapping: str) -> None:
    """Also where nobody waits between what fails and what follows."""
    monkeypatch.setenv(PROCESSORS, "2")
    text = f"""graph @main(%A: memref<i64[N]>, %C: memref<f32[N]>) {{
  %one = arith.constant(1.0) : f32
  %zero = arith.constant(0) : i64
  scf.for(%i = 0 to N) {{
    %a = memref.load(%A[%i]) : i64
    %fine = arith.cmpi(%a, %zero, predicate="ge") : bool
    cf.assert(%fine, message="a negative number")
    memref.store(%a, %A[%i])
    yield
  }}
  scf.parallel(%j = 0 to N{mapping}) {{
    memref.store(%one, %C[%j])
    yield
  }}
  return
}}
"""
    call = graph_opt.compile(graph_opt.parse(text), threads=threads)
    a, c = np.arange(50), np.zeros(50, f)
    call(a, c)
    assert c.tolist() == [1] * 50
    a[7], c[:] = -1, 0
    for _ in range(20):
        with pytest.raises(GraphError, match="a negative number"):
            call(a, c)
    assert c.tolist() == [0] * 50
