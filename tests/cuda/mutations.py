"""The mutation test: every barrier, wait, commit and bound of every kernel is removed in turn, and something must notice.

The list of removals is what the emitter has marked.  One build for each sanitizer serves all of them: the marks ask at run time.  What may
notice: AddressSanitizer and UndefinedBehaviorSanitizer (a bound), ThreadSanitizer (a barrier), the emulation itself (threads that don't meet,
copies that nobody waited for), other results.  A removal that nothing notices is a barrier or bound that nobody needs.

``python -m tests.cuda.mutations [NAME ...]`` tries everything, or the programs of these names, and prints what was found by what.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from codegen.cuda.module import Mark
from tests.cuda.mutation_programs import IDLE, SUBJECTS, Subject
from tests.cuda.program_jobs import Compiled, compile_marked, job_of

SANITIZERS: tuple[Literal["address", "thread"], ...] = ("address", "thread")


@dataclass
class Found:
    """What came of the removals of one program: by mark, what noticed.  ``whole``: what is wrong with the program as it is."""

    subject: Subject
    compiled: Compiled
    noticed: dict[int, str] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Everything that can be removed."""
        marks: tuple[Mark, ...] = self.compiled.program.marks
        return marks

    @property
    def open(self) -> list[Mark]:
        """Marks whose removal nobody has noticed."""
        return [m for m in self.marks if m.number not in self.noticed]

    @property
    def idle(self) -> list[Mark]:
        """Those of them that guard no memory, or nothing in this program: see :meth:`saves_work`."""
        return [m for m in self.open if self.saves_work(m)]

    @property
    def missed(self) -> list[Mark]:
        """The others: barriers and bounds that can be removed without anybody noticing."""
        return [m for m in self.open if not self.saves_work(m)]

    def saves_work(self, mark: Mark) -> bool:
        """Whether a mark is one of the conditions of :data:`IDLE`, or spare in this program."""
        names = (self.condition(mark), mark.operation)
        if any(name in names and kernel == mark.kernel for name, kernel, _ in self.subject.spare):
            return True
        return any(self.subject.name.startswith(start) and self.condition(mark) == name for start, name in IDLE)

    def line(self, mark: Mark) -> str:
        """The line of CUDA C with a mark."""
        needle = f"GO_MARK_{mark.kind.upper()}({mark.number},"
        return next((line.strip() for line in self.compiled.program.source.splitlines() if needle in line), "")

    def condition(self, mark: Mark) -> str:
        """The name of the condition of a bound, without the number that tells it from others of that name."""
        found = re.search(rf"GO_MARK_BOUND\({mark.number}, \(([a-zA-Z_]+?)(?:_\d+)*\)\)", self.line(mark))
        return found[1] if found else ""

    def describe(self, mark: Mark) -> str:
        """A mark with its line of CUDA C."""
        return f"{self.subject.name}: {mark.kind} {mark.number} ({mark.operation}) of {mark.kernel}: {self.line(mark)}"


def remove_all(subject: Subject) -> Found:
    """Removes everything that is marked in a program's kernels, one by one, until something notices or all sizes have been tried."""
    compiled = compile_marked(subject.program, subject.pipeline)
    found = Found(subject, compiled)
    for sizes in subject.sizes:
        inputs = subject.inputs(compiled.graph, sizes)
        results: dict[str, list[bytes]] = {}
        for sanitize in SANITIZERS:
            job, _ = job_of(compiled, inputs)
            launched = set(job.launched)
            marks = [m.number for m in found.open if m.kernel in launched]
            results[sanitize], (whole, *others) = job.run(sanitize, marks, seconds=60)
            if whole.noticed:
                found.whole.append(f"{subject.name} {sizes}: {whole.what}: {whole.report[:3000]}")
            found.noticed.update({o.mark: o.what for o in others if o.noticed})
        if results["address"] != results["thread"]:
            found.whole.append(f"{subject.name} {sizes}: the results under {' and '.join(SANITIZERS)} differ")
        found.whole += backwards(found, inputs, results["address"])
    return found


def backwards(found: Found, inputs: Sequence[np.ndarray[Any, Any]], expected: list[bytes]) -> Iterator[str]:
    """Runs threads and blocks from the last one to the first: the results must be the same.

    So a removal is noticed that lets a block write what another one writes after it.
    """
    job, _ = job_of(found.compiled, inputs, reverse=True)
    launched = set(job.launched)
    results, (_, *others) = job.run("address", [m.number for m in found.open if m.kernel in launched], seconds=60)
    found.noticed.update({o.mark: f"{o.what} backwards" for o in others if o.noticed})
    if results != expected:
        yield f"{found.compiled.graph.name}: other results when threads and blocks run from the last one to the first"


def summary(found: Found, seconds: float) -> str:
    """One line: how many removals of which kind, and what noticed how many."""
    kinds = Counter(m.kind for m in found.marks)
    by = Counter(found.noticed.values())
    rest = (f", {len(found.idle)} idle" if found.idle else "") + (f", {len(found.missed)} MISSED" if found.missed else "")
    parts = ", ".join(f"{n} {what}" for what, n in sorted(by.items()))
    counted = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    kernels = len(found.compiled.program.kernels)
    return f"{found.subject.name}: {kernels} kernels, {len(found.marks)} removals ({counted}): {parts}{rest} [{seconds:.1f} s]"


def main(names: Sequence[str]) -> int:
    total = missed = idle = broken = 0
    for subject in SUBJECTS:
        if names and subject.name not in names:
            continue
        start = time.monotonic()
        try:
            found = remove_all(subject)
        except Exception as error:
            broken += 1
            print(f"{subject.name}: FAILED: {type(error).__name__}: {str(error)[:500]}", flush=True)
            continue
        total += len(found.marks)
        missed += len(found.missed)
        idle += len(found.idle)
        broken += len(found.whole)
        print(summary(found, time.monotonic() - start), flush=True)
        for mark in found.missed:
            print(f"  MISSED {found.describe(mark)}")
        for problem in found.whole:
            print(f"  BROKEN {problem}")
    noticed = total - missed - idle
    print(f"{total} removals: {noticed} noticed, {idle} of conditions that only save work, {missed} missed; {broken} programs are wrong as they are")
    return 1 if missed or broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
