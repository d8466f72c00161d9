"""Runs machine code with all its memory between pages that nobody may touch: an access outside ends the process.

Every argument, the workspace and the state lie flush against such a page, once with their end and once with their start;
what a graph must not write is in pages that can only be read.  ``python -m tests.guarded`` reads programs, a line of
JSON each, runs them, and answers with a line each, so that the one that ends the process is known.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from codegen.runtime.abi import ALIGNMENT, MAIN, STATE_BYTES, STATE_CALLBACK, STATE_FAILED, WORKSPACE
from graph_opt.native import compile_native
from ir.core import Graph, Module
from ir.signature import array_type, bind_shapes
from ir.types import substitute_type
from passes.infra.verify_exec import same_bits
from tests.checks import Case, baseline, execute, generated_sources, is_written, load
from tests.native_checks import check_outputs, compile_checked, has_no_code

ROOT = Path(__file__).parents[1]
Side = Literal["end", "start"]
SIDES: tuple[Side, ...] = ("end", "start")
PAGE = mmap.PAGESIZE

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_NOTHING, _READ, _WRITE = 0, 1, 2
_PRIVATE_ANONYMOUS = 0x22
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


class Guarded:
    """Memory of ``size`` bytes between two pages without any access, flush against one of them."""

    def __init__(self, size: int, side: Side, alignment: int = 1) -> None:
        used = -(-size // alignment) * alignment
        pages = max(-(-used // PAGE), 1)
        self.length = (pages + 2) * PAGE
        base = _LIBC.mmap(None, self.length, _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError("mmap failed")
        self.base = int(base)
        self.first, self.inner = self.base + PAGE, pages * PAGE
        self._protect(self.base, PAGE, _NOTHING)
        self._protect(self.first + self.inner, PAGE, _NOTHING)
        self.address = self.first if side == "start" else self.first + self.inner - used
        self.memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address)) if size else np.empty(0, np.uint8)
        whole = np.ctypeslib.as_array((ctypes.c_uint8 * self.inner).from_address(self.first))
        whole[...] = 0xAA
        self._outside = [part for part in (whole[: self.address - self.first], whole[self.address - self.first + size :]) if part.size]

    def _protect(self, address: int, size: int, access: int) -> None:
        if _LIBC.mprotect(address, size, access):
            raise OSError(ctypes.get_errno(), "mprotect failed")

    def freeze(self) -> None:
        """From now on, the memory can only be read."""
        self._protect(self.first, self.inner, _READ)

    def check(self) -> None:
        """The rest of the pages is as it was."""
        assert all(np.all(part == 0xAA) for part in self._outside), "bytes outside were written"

    def array(self, like: np.ndarray) -> np.ndarray:
        """The elements of an array, here."""
        found: np.ndarray = self.memory.view(like.dtype).reshape(like.shape)
        found[...] = like
        return found

    def close(self) -> None:
        """Gives the memory back.  No array of it may be used any more."""
        _LIBC.munmap(self.base, self.length)


class GuardedGraph:
    """A graph compiled for this machine, with the stored tensors that the usual runtime would give it."""

    def __init__(self, module: Module, graph: Graph, case: Case) -> None:
        self.graph = graph
        self.program = compile_native(module, graph, generated_sources(module, case.kind))._program
        self.text, self.stored = self.program.text, self.program.stored
        self._main = MAIN(self.program.main_address)
        self._workspace = WORKSPACE(self.program.workspace_address)

    def run(self, arrays: Sequence[Any], side: Side, threads: int) -> list[np.ndarray] | None:
        """The results, and behind them what written parameters hold afterwards; None when the program stops with an error."""
        arrays = [np.ascontiguousarray(a) if np.ndim(a) else np.asarray(a) for a in arrays]
        names = bind_shapes(self.graph, [array_type(a, p) for a, p in zip(arrays, self.graph.parameters, strict=True)])
        dims = np.array([names[s] for s in self.text.symbols], np.int64)
        types: Any = [substitute_type(a.type, names) for a in self.text.arguments if a.kind == "result"]
        results = [np.zeros([int(d) for d in t.shape], t.dtype.numpy) for t in types]
        kept: list[Guarded] = []

        def guarded(array: np.ndarray, alignment: int = 1, frozen: bool = False) -> np.ndarray:
            memory = Guarded(array.nbytes, side, alignment)
            kept.append(memory)
            copy = memory.array(array)
            if frozen:
                memory.freeze()
            return copy

        try:
            given = [guarded(a, frozen=not is_written(p)) for a, p in zip(arrays, self.graph.parameters, strict=True)]
            made = [guarded(r) for r in results]
            for memory in kept[len(given) :]:
                memory.memory[...] = 0xAA  # not zero, which a result might be by chance
            for array in self.stored:
                guarded(np.asarray(array), ALIGNMENT, frozen=True)
            pointers = np.array([m.address for m in kept], np.uint64)
            dims, pointers = guarded(dims, frozen=True), guarded(pointers, frozen=True)
            shapes = kept[-2].address, kept[-1].address
            size = int(self._workspace(shapes[0]))
            guarded(np.full(size, 0xFF, np.uint8), ALIGNMENT)
            workspace_address = kept[-1].address
            state = guarded(np.zeros(STATE_BYTES, np.uint8), ALIGNMENT)
            callback = _CALLBACK(lambda site, data, shape: 0)
            state[STATE_CALLBACK : STATE_CALLBACK + 8].view(np.uint64)[0] = ctypes.cast(callback, ctypes.c_void_p).value or 0
            passed = (shapes[1], shapes[0], workspace_address, kept[-1].address)
            workers = [threading.Thread(target=self._main, args=(*passed, t, threads)) for t in range(1, threads)]
            for worker in workers:
                worker.start()
            self._main(*passed, 0, threads)
            for worker in workers:
                worker.join()
            for memory in kept:
                memory.check()
            if int(state[STATE_FAILED : STATE_FAILED + 4].view(np.int32)[0]):
                return None
            found = [*made, *(given[p.index] for p in self.graph.parameters if is_written(p))]
            return [np.array(a) for a in found]
        finally:
            for memory in kept:
                memory.close()


def check_guarded(text: str, cases: Sequence[Case] | None = None) -> int:
    """A program between guard pages, on both sides, with one and with two threads; returns how often it ran."""
    module = load(text)
    if cases is None:
        cases = baseline(module, limit=1).cases
    if has_no_code(module):
        return 0
    native = compile_checked(module)
    count = 0
    programs: dict[tuple[str, str], GuardedGraph] = {}
    for case in cases:
        key = (case.graph, case.kind if module.files else "")
        if key not in programs:
            programs[key] = GuardedGraph(native.lowered, native.lowered.graphs[case.graph], case)
        first: list[np.ndarray] | None = None
        for side, threads in itertools.product(SIDES, (1, 2)):
            found = programs[key].run(case.inputs, side, threads)
            if found is None:
                continue
            count += 1
            where = f"{case}, {side}, {threads} threads\n{text}"
            if first is None:
                check_outputs(module, case, found, where)
                first = found
            assert all(map(same_bits, first, found)), f"other bits; {where}"
    return count


def sized_cases(text: str, sizes: Sequence[dict[str, int]]) -> list[Case]:
    """Tame inputs for these sizes of the named dimensions, and what the interpreter makes of them."""
    from ir.inputs import generate_inputs

    module = load(text)
    found = []
    for chosen in sizes:
        inputs = generate_inputs(module, module.main, chosen, "real", 0, 1)
        found.append(Case(module.main.name, chosen, "real", inputs, execute(module, module.main.name, inputs, "real")))
    return found


def run_in_process(programs: Sequence[tuple[str, Sequence[dict[str, int]] | None]]) -> int:
    """Checks programs (with sizes, or those of the baseline) in a process of its own; returns how many runs there were.

    Raises AssertionError with the program that is wrong, or that ended the process.
    """
    lines = "".join(json.dumps({"text": text, "sizes": sizes}) + "\n" for text, sizes in programs)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.guarded"]
    done = subprocess.run(command, cwd=ROOT, input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for (text, sizes), answer in zip(programs, answers, strict=False):
        assert "error" not in answer, f"{answer['error']}\n{text}\n{sizes}"
    if len(answers) < len(programs):
        text, sizes = programs[len(answers)]
        raise AssertionError(f"the process ended with {done.returncode}\n{done.stderr[-3000:]}\n{text}\n{sizes}")
    return sum(a["runs"] for a in answers)


def main() -> None:
    """Programs from the standard input."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            cases = sized_cases(asked["text"], asked["sizes"]) if asked["sizes"] is not None else None
            answer: dict[str, Any] = {"runs": check_guarded(asked["text"], cases)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
