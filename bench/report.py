"""The result as tables and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.engines import OURS, PEERS, READ, C
from bench.measure import Row
from graph_opt.limits import LOADS

HEAD = ("work", "limit", "by", "ours", "of limit", "with loads", "best peer", "", "speed", "C loop", "speed", "wanted", "")
SHOWN = {LOADS: "f32 with loads"}
NOISY = 1.2
"""A median so much above the best block is marked."""


@dataclass(frozen=True)
class Run:
    """What was measured, and how."""

    threads: int
    rounds: int
    milliseconds: float
    versions: dict[str, str]
    rows: Sequence[Row]


def shown(seconds: float) -> str:
    """A time with its unit."""
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if seconds < 999.5 * scale or unit == "s":
            value = seconds / scale
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.1f} {unit}" if value >= 9.95 else f"{value:.2f} {unit}"
    raise AssertionError


def table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))) + " |" for row in rows]
    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


# -- what is wanted -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """One thing that is wanted of a row: ``value`` should be at least ``least``."""

    what: str
    value: float
    least: float

    @property
    def met(self) -> bool:
        """Whether it is so."""
        return self.value >= self.least


def wishes(row: Row, threads: int) -> list[Wish]:
    """What is wanted of a row, as far as it was measured."""
    ours = row.timings.get(OURS)
    if ours is None:
        return []
    found, target, limit, peer, loop = [], row.case.target, row.limit(), row.best_peer(PEERS), row.timings.get(C)
    if threads == 1:
        if target.share is not None and limit is not None:
            found.append(Wish(f"{target.share:.0%} of limit", limit[0] / ours.median, target.share))
        if target.c_loop is not None and loop is not None:
            found.append(Wish(f"{target.c_loop:g} x C", loop.median / ours.median, target.c_loop))
        if target.read is not None and READ in row.timings:
            found.append(Wish(f"{target.read:g} x read", row.timings[READ].median / ours.median, target.read))
        if target.microseconds is not None:
            found.append(Wish(f"{target.microseconds:g} us", target.microseconds / 1e6 / ours.median, 1.0))
    if peer is not None:
        least = target.peers if threads == 1 else 1.0
        found.append(Wish(f"{least:g} x peers", row.timings[peer].median / ours.median, least))
    return found


def verdict(row: Row, threads: int) -> tuple[str, str]:
    """What is wanted, and what of it is missed by how much."""
    all_of = wishes(row, threads)
    missed = [f"{w.what} missed by {1 - w.value / w.least:.0%}" for w in all_of if not w.met]
    return ", ".join(w.what for w in all_of), ", ".join(missed) or ("met" if all_of else "")


# -- tables ---------------------------------------------------------------------------------------------------------------


def summary(run: Run) -> str:
    """Ours beside the limit, the best peer and the loop in C."""
    lines = [HEAD]
    for row in run.rows:
        ours, limit, peer, loop = row.timings.get(OURS), row.limit(), row.best_peer(PEERS), row.timings.get(C)
        loads = row.with_loads()

        def against(seconds: float | None, ours: Any = ours) -> str:
            return f"{seconds / ours.median:.2f}" if ours and seconds is not None else ""

        lines.append((
            row.case.name,
            shown(limit[0]) if limit else "",
            limit[1] if limit else "",
            mark(row, OURS),
            f"{limit[0] / ours.median:.0%}" if ours and limit else "",
            f"{loads / ours.median:.0%}" if ours and loads else "",
            peer or "",
            mark(row, peer) if peer else "",
            against(row.timings[peer].median if peer else None),
            mark(row, C),
            against(loop.median if loop else None),
            *verdict(row, run.threads),
        ))  # fmt: skip
    return table(lines)


def mark(row: Row, engine: str) -> str:
    """The median of an engine; ~ says that it is far from its best block."""
    timing = row.timings.get(engine)
    if timing is None:
        return ""
    return shown(timing.median) + (" ~" if timing.median > NOISY * min(timing.blocks) else "")


def details(run: Run, what: str, cell: Callable[[Row, str], str]) -> str:
    """A table of all engines."""
    engines = [name for name in (OURS, *PEERS, C, READ) if any(name in row.timings for row in run.rows)]
    return table([(what, *engines), *((row.case.name, *(cell(row, name) for name in engines)) for row in run.rows)])


def fastest(row: Row, engine: str) -> str:
    """The fastest call of an engine."""
    return shown(row.timings[engine].best) if engine in row.timings else ""


def machine_line(run: Run) -> str:
    """The limits over the whole run: medians, and how far they went."""
    rates: dict[str, list[float]] = {}
    for row in run.rows:
        for name, found in row.rates.items():
            rates.setdefault(name, []).append(statistics.median(found))
    units = {name: "GFLOP/s" if name in ("f32", LOADS) else "GB/s" for name in rates}
    parts = [f"{SHOWN.get(n, n)} {statistics.median(f) / 1e9:.1f} ({min(f) / 1e9:.1f} to {max(f) / 1e9:.1f}) {units[n]}" for n, f in rates.items()]
    return "limits: " + ", ".join(parts) if parts else "limits: not measured"


def text(run: Run) -> str:
    """The whole report."""
    threads = "1 thread" if run.threads == 1 else f"{run.threads} threads"
    notes = [f"- {row.case.name}: {note}" for row in run.rows for note in row.notes]
    return "\n".join([
        f"# {threads}, medians of {run.rounds} blocks of {run.milliseconds:g} ms, engines in turns", "",
        "speed: their time / ours, above 1 ours is faster; ~: the median is more than 1.2 of the best block; with loads: of the rate of "
        "multiply-adds that load their factors from the nearest cache", "",
        machine_line(run), "",
        "; ".join(v for v in dict.fromkeys(run.versions.values()) if v), "",
        summary(run), "",
        details(run, "median", mark), "",
        details(run, "fastest call", fastest), "",
        *notes,
    ])  # fmt: skip


# -- JSON -----------------------------------------------------------------------------------------------------------------


def as_json(run: Run) -> str:
    """Everything that was measured."""
    rows = [
        {
            "name": row.case.name, "flops": row.case.flops, "bytes": row.case.nbytes, "limit": row.limit(), "rates": row.rates,
            "engines": {name: {"median": t.median, "best": t.best, "blocks": t.blocks} for name, t in row.timings.items()},
            "wishes": [{"what": w.what, "value": w.value, "least": w.least} for w in wishes(row, run.threads)], "notes": row.notes,
        }
        for row in run.rows
    ]  # fmt: skip
    head = {"threads": run.threads, "rounds": run.rounds, "milliseconds": run.milliseconds, "versions": run.versions}
    return json.dumps({**head, "rows": rows}, indent=1)
