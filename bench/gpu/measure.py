"""Measuring one work after the other; what breaks is told in its row, and the others go on."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu.ours import Prepared
from bench.gpu.peer import Torch
from bench.gpu.row import Row
from bench.gpu.timing import Calls, Clock, Plan
from bench.gpu.work import COPY, EAGER, OURS, Work, distance, listed
from codegen.cuda.compilers import CompilerFault
from codegen.cuda.device import Device
from codegen.cuda.emulation import LaunchFailed
from ir.diagnostics import GraphError

HOST_LIMIT = 1e9
"""Bytes, or operations, of works that numpy still computes where torch is missing."""


@dataclass
class Bench:
    """Where is measured, beside whom, how long."""

    device: Device
    torch: Torch | None
    plan: Plan

    @property
    def emulated(self) -> bool:
        """Whether nothing is timed."""
        return self.device.driver.emulated

    def run(self, row: Row, measure: Callable[[Row], None]) -> Row:
        """Fills a row; what goes wrong becomes one of its notes, and memory is given back in the end."""
        try:
            if self.torch is not None:
                with self.torch.on_our_stream():
                    measure(row)
            else:
                measure(row)
        except (GraphError, CompilerFault, LaunchFailed, RuntimeError, ValueError, TypeError, AssertionError, MemoryError) as error:
            row.bad = True
            row.timings = {}
            row.notes.append(f"{type(error).__name__}: {first_line(error)}")
        gc.collect()
        if self.torch is not None:
            self.torch.forget()
        self.device.trim()
        return row

    def peers(self, row: Row, names: Sequence[str]) -> Iterator[str]:
        """Those of torch that are there; the others are noted."""
        for name in names:
            if name == COPY:
                continue
            if self.torch is None:
                row.notes.append(f"{name} is left out: torch is not there")
            else:
                yield name


def first_line(error: BaseException) -> str:
    """What an error says, shortly."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]


def work_row(work: Work) -> Row:
    """An empty row."""
    return Row(work.name, work.part, work.nbytes, work.flops, work.wanted)


def measure_work(bench: Bench, work: Work, row: Row) -> None:
    """Compares results with those of numpy (emulated) or of torch, then times everybody in turns."""
    ours = Prepared(work, bench.device, bench.torch)
    ours.warm()
    works: dict[str, Calls] = {OURS: ours.call}
    kept: list[Any] = []
    if bench.emulated or (bench.torch is None and max(work.nbytes, work.flops) <= HOST_LIMIT):
        compare(row, ours.computed(), [r.astype("f4") for r in listed(work.numpy(*ours.given()))], work.tolerance, "numpy")
    elif bench.torch is None:
        row.notes.append("results are compared with nothing: they are too large for numpy")
    if bench.emulated:
        row.notes.append(f"emulated, {ours.launches} launches")
    for name in bench.peers(row, work.peers):
        assert bench.torch is not None
        try:
            calls, results = bench.torch.prepared(work.torch, ours.inputs, name)
        except Exception as error:  # torch's compiler fails in many ways, and is not what is measured here
            row.notes.append(f"{name} is left out: {type(error).__name__}: {first_line(error)}")
            continue
        if name == EAGER:
            apart = [bench.torch.distance(a, b) for a, b in zip(ours.results[0], results, strict=True)]
            judge(row, max(apart), work.tolerance, name)
        kept.append(results)
        works[name] = lambda n, calls=calls: calls[n % len(calls)]()  # type: ignore[misc]
    if bench.emulated:
        return
    if COPY in work.peers:
        arrays, works[COPY] = ours.copying()
        kept.append(arrays)
    row.timings = Clock(bench.device).in_turns(works, bench.plan)
    if COPY in row.timings:
        row.notes.append(f"the copy: {work.nbytes / row.timings[COPY].median / 1e9:.0f} GB/s")


def compare(row: Row, found: Sequence[Any], expected: Sequence[Any], tolerance: float, whose: str) -> None:
    """Notes how far results are apart."""
    judge(row, max((distance(a, b) for a, b in zip(found, expected, strict=True)), default=0.0), tolerance, whose)


def judge(row: Row, apart: float, tolerance: float, whose: str) -> None:
    """Notes that results are so far apart."""
    row.check = f"{apart:.1e} from {whose}"
    if not apart <= tolerance:
        row.bad = True
        row.notes.append(f"results differ from those of {whose} by {apart:.1e} of the largest element, {tolerance:.0e} is allowed")
