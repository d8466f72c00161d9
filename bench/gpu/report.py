"""The report as Markdown, as JSON, and as a paragraph for docs/performance.md."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.gpu.row import Row
from bench.gpu.timing import Plan
from bench.gpu.work import COMPILED, COPY, EAGER, OURS
from bench.report import shown, table

NOISY = 0.2
"""A spread from the fastest to the slowest block so much of the median is marked."""
_HEAD = ("work", "ours", "rate", COPY, EAGER, COMPILED, "wanted", "is", "")


@dataclass
class Run:
    """What was measured, and where.  ``label`` is "measured" or "emulated", which has no times."""

    label: str
    card: Mapping[str, str]
    versions: Mapping[str, str]
    plan: Plan
    before: Mapping[str, str]
    after: Mapping[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M %Z"))

    @property
    def emulated(self) -> bool:
        """Whether there are no times."""
        return self.label == "emulated"

    @property
    def failed(self) -> list[Row]:
        """Rows whose results are wrong, or that broke."""
        return [r for r in self.rows if r.bad]


def rate(row: Row) -> str:
    """Operations or bytes a second."""
    if OURS not in row.timings:
        return ""
    seconds = row.timings[OURS].median
    if row.part in ("products", "mlp"):
        return f"{row.flops / seconds / 1e12:.1f} TFLOP/s"
    return f"{row.nbytes / seconds / 1e9:.0f} GB/s" if row.nbytes else ""


def mark(row: Row, name: str) -> str:
    """A median; ~ says that blocks were far apart."""
    timing = row.timings.get(name)
    return "" if timing is None else shown(timing.median) + (" ~" if timing.spread > NOISY else "")


def reached(row: Row) -> str:
    """What there is of what is wanted."""
    if row.wanted is None or OURS not in row.timings:
        return ""
    if not row.wanted.peer:
        return shown(row.timings[OURS].median)
    speed = row.speed(row.wanted.peer)
    return "" if speed is None else f"{speed:.0%}" if row.wanted.least < 1 else f"{speed:.2f} x"


def verdict(row: Row) -> str:
    """In a word."""
    if row.bad:
        return "WRONG" if row.check else "BROKEN"
    return {None: "", True: "met", False: "missed"}[row.met]


def _tables(rows: Sequence[Row]) -> list[str]:
    """A table for each part."""
    parts = list(dict.fromkeys(r.part for r in rows))
    found = []
    for part in parts:
        lines: list[Sequence[str]] = [_HEAD]
        for row in (r for r in rows if r.part == part):
            wanted = row.wanted.text if row.wanted else ""
            lines.append((row.name, mark(row, OURS), rate(row), *(mark(row, n) for n in (COPY, EAGER, COMPILED)), wanted, reached(row), verdict(row)))
        others = list(dict.fromkeys(n for r in rows if r.part == part for n in r.timings if n not in _HEAD))
        if others:
            head = (*_HEAD[:3], *others, *_HEAD[4:5], *_HEAD[6:])
            lines = [head]
            for row in (r for r in rows if r.part == part):
                wanted = row.wanted.text if row.wanted else ""
                names = (*others, EAGER)
                lines.append((row.name, mark(row, OURS), rate(row), *(mark(row, n) for n in names), wanted, reached(row), verdict(row)))
        found += [table(lines), ""]
    return found


def _emulated_table(rows: Sequence[Row]) -> list[str]:
    """What was compared; no times."""
    return [table([("work", "results", "", "note"), *((r.name, r.check, verdict(r), "; ".join(r.notes)) for r in rows)]), ""]


def said(facts: Mapping[str, str]) -> str:
    """Facts in one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def text(run: Run) -> str:
    """The whole report."""
    lines = [f"# GPU, {run.label}, {run.date}", "", said(run.card), ""]
    if run.versions:
        lines += [said(run.versions), ""]
    if run.emulated:
        lines += ["Kernels ran on the CPU, one thread after the other: nothing is said about speed.", ""]
        return "\n".join([*lines, *_emulated_table(run.rows)])
    for when, facts in (("before", run.before), ("after", run.after)):
        if facts:
            lines += [f"nvidia-smi {when}: {said(facts)}", ""]
    lines += [
        f"Medians of {run.plan.rounds} blocks of {run.plan.seconds * 1e3:g} ms, in turns, of replayed graphs, by the device's events; decode and "
        "launch by the host's clock. ~: from the fastest to the slowest block is more than a fifth. `copy` is the driver's, of as many bytes. Data "
        "are larger than the L2 cache several times where a bandwidth is meant.",
        "",
        *_tables(run.rows),
        *(f"- {r.name}: {'; '.join([*([r.check] if r.check else []), *r.notes])}" for r in run.rows if r.check or r.notes),
        "",
    ]
    return "\n".join(lines)


def paragraph(run: Run) -> str:
    """For the section "GPU" of docs/performance.md: one line for each thing that is wanted."""
    clocks = f"; clock {run.after['clocks.sm']} of {run.after['clocks.max.sm']}" if "clocks.sm" in run.after else ""
    where = f"{run.card.get('card', '?')} (driver {run.before.get('driver_version', '?')}{clocks}; {said(run.versions)})"
    head = f"{run.label.capitalize()} {run.date} on {where}."
    rows = [(r.name, mark(r, OURS), rate(r), r.wanted.text if r.wanted else "", reached(r), verdict(r)) for r in run.rows]
    return "\n".join([head, "", table([("work", "ours", "rate", "wanted", "is", ""), *rows]), ""])


def as_json(run: Run) -> str:
    """Everything."""
    facts = {"card": dict(run.card), "versions": dict(run.versions), "before": dict(run.before), "after": dict(run.after)}
    plan = {"rounds": run.plan.rounds, "seconds": run.plan.seconds}
    return json.dumps({"label": run.label, "date": run.date, **facts, "plan": plan, "rows": [r.as_json() for r in run.rows]}, indent=1)
