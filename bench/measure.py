"""The measurement: every engine in turns, block by block."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import Array, Case
from bench.quiet import first, undisturbed
from bench.team import Member
from graph_opt.limits import LOADS, level_of

PAUSE = 0.01
"""Seconds between blocks, in which the waiting threads of the last engine fall asleep."""

TOGETHER = 8
"""Cases that are made ready before they are timed: other benchmarks may run meanwhile."""


@dataclass
class Timing:
    """Seconds for one call: the medians of the blocks, and the fastest call."""

    blocks: list[float] = field(default_factory=list)
    best: float = float("inf")

    @property
    def median(self) -> float:
        """The median block."""
        return statistics.median(self.blocks)


@dataclass
class Row:
    """A case with all that was measured."""

    case: Case
    timings: dict[str, Timing] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Operations a second and bytes a second of the level that holds the case, sampled in the same rounds."""
    notes: list[str] = field(default_factory=list)

    def limit(self) -> tuple[float, str] | None:
        """The least seconds that the machine takes, and what bounds it; None where nothing does, or it wasn't measured."""
        flops, nbytes = self.case.flops, self.case.nbytes
        if not self.rates or not (flops or nbytes):
            return None
        level = level_of(nbytes)
        rate = {name: statistics.median(found) for name, found in self.rates.items()}
        return max((flops / rate["f32"], "f32"), (nbytes / rate[level], level))

    def with_loads(self) -> float | None:
        """The least seconds that multiply-adds take which load their factors from the nearest cache; None where the limit isn't theirs."""
        limit = self.limit()
        if limit is None or limit[1] != "f32" or LOADS not in self.rates:
            return None
        return self.case.flops / statistics.median(self.rates[LOADS])

    def best_peer(self, peers: Iterable[str]) -> str | None:
        """The fastest of some engines."""
        there = [name for name in peers if name in self.timings]
        return min(there, key=lambda name: self.timings[name].median, default=None)


@dataclass(frozen=True)
class Plan:
    """How long is measured."""

    rounds: int
    milliseconds: float


def measure(cases: Sequence[Case], members: Sequence[Member], machine: Member | None, plan: Plan, tell: Callable[[Row], None]) -> list[Row]:
    """Measures the cases, some at a time: they are made ready first, then timed one after the other; ``tell`` hears of every one."""
    rows = [Row(case) for case in cases]
    for start in range(0, len(rows), TOGETHER):
        some = [(row, _prepare(row, members)) for row in rows[start : start + TOGETHER]]
        with undisturbed():
            for row, ready in some:
                if ready:
                    _time(row, ready, machine, plan)
        for row, ready in some:
            for member in ready:
                member.ask("drop", case=row.case.name)
            tell(row)
    return rows


def _prepare(row: Row, members: Sequence[Member]) -> list[Member]:
    """The engines that can run the case; their results are compared."""
    ready: list[Member] = []
    with tempfile.TemporaryDirectory() as folder:
        files = {member.name: Path(folder) / f"{i}.npz" for i, member in enumerate(members)}
        for member in members:
            member.tell("prepare", case=row.case.name, results=str(files[member.name]))
        for member in members:
            answer = member.hear()
            if "error" in answer or "missing" in answer:
                row.notes.append(f"{member.name}: {answer.get('error') or answer.get('missing')}")
            elif "seconds" in answer:
                ready.append(member)
        results = {m.name: _load(files[m.name]) for m in ready}
    row.notes += differences({name: found for name, found in results.items() if found}, row.case.tolerance)
    return ready


def _load(path: Path) -> list[Array]:
    with np.load(path) as stored:
        return [stored[name] for name in stored.files]


def differences(results: dict[str, list[Array]], tolerance: float) -> list[str]:
    """A line for every engine whose results are not those of the first."""
    lines: list[str] = []
    names = list(results)
    for name in names[1:]:
        error = max((distance(a, b) for a, b in zip(results[names[0]], results[name], strict=False)), default=0.0)
        if len(results[name]) != len(results[names[0]]) or not error <= tolerance:
            lines.append(f"{name} and {names[0]} differ by {error:.1e} of the largest element")
    return lines


def distance(a: Array, b: Array) -> float:
    """The largest difference, as a part of the largest element; infinite for other shapes."""
    if a.size != b.size:
        return float("inf")
    a64, b64 = (np.asarray(x, np.float64).ravel() for x in (a, b))
    return float(np.abs(a64 - b64).max(initial=0.0) / max(np.abs(b64).max(initial=0.0), 1e-30))


def _time(row: Row, ready: Sequence[Member], machine: Member | None, plan: Plan) -> None:
    for member in ready:  # a first block, in which its threads find their places, doesn't count
        _turn(member, "time", case=row.case.name, milliseconds=plan.milliseconds)
    for number in range(plan.rounds):
        if machine is not None:
            _add_rates(row, _turn(machine, "sample", level=level_of(row.case.nbytes), milliseconds=plan.milliseconds / 3))
        turn = number % len(ready)
        for member in [*ready[turn:], *ready[:turn]]:
            _add_block(row, member.name, _turn(member, "time", case=row.case.name, milliseconds=plan.milliseconds))


def _turn(member: Member, do: str, **request: Any) -> dict[str, Any]:
    """Something to be timed, when the last engine has come to rest."""
    time.sleep(PAUSE)
    with first(member.process):
        return member.ask(do, **request)


def _add_rates(row: Row, answer: dict[str, Any]) -> None:
    if "error" in answer:
        row.notes.append(f"machine: {answer['error']}")
    for name, found in answer.get("rates", {}).items():
        row.rates.setdefault(name, []).extend(found)


def _add_block(row: Row, name: str, answer: dict[str, Any]) -> None:
    if "error" in answer:
        row.notes.append(f"{name}: {answer['error']}")
        return
    timing = row.timings.setdefault(name, Timing())
    timing.blocks.append(answer["median"])
    timing.best = min(timing.best, answer["best"])
