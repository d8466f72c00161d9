"""A measured program as a table for people, and as data for programs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.llvm.jit import host
from graph_opt.bench import Part, Report, SourceOp

_LONG = 3  # operations of a row that are written out


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest, and the middle half over the median."""
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    median = statistics.median(values)
    return {"median": median, "min": min(values), "max": max(values), "spread": (quarters[2] - quarters[0]) / median if median else 0.0}


def to_json(report: Report) -> dict[str, Any]:
    """Everything, in seconds, operations, bytes and shares from 0 to 1."""
    whole = report.undisturbed
    lost = {name: statistics.median(seconds) for name, seconds in (("between", report.between), ("calling", report.calling))}
    return {
        "graph": report.graph,
        "cpu": host()[0],
        "threads": report.threads,
        "dims": report.dims,
        "inputs": report.inputs,
        "rounds": len(report.calls),
        "calls_per_round": report.block,
        "limits": {"peak": report.limits.peak, "read": report.limits.read},
        "call": {"seconds": spread(report.calls), **_rates(report, statistics.median(report.calls), report)},
        "call_with_clocks": {"seconds": spread(report.timed_calls)},
        "parts": [_part(report, p, whole) for p in report.parts],
        **{name: {"seconds": seconds, "share": seconds / whole} for name, seconds in lost.items()},
        "sum": {"seconds": whole},
    }


def _rates(report: Report, seconds: float, of: Part | Report) -> dict[str, Any]:
    limit, bound = report.limits.time(of.flops, of.nbytes, dots=of.dots)
    return {
        "flops": of.flops, "bytes": of.nbytes, "flops_per_second": of.flops / seconds, "bytes_per_second": of.nbytes / seconds,
        "limit_seconds": limit, "bound": bound, "of_limit": limit / seconds,
    }  # fmt: skip


def _part(report: Report, part: Part, whole: float) -> dict[str, Any]:
    median = statistics.median(part.seconds)
    return {
        "ops": [{"op": o.name, "result": o.result, "file": o.file, "line": o.line} for o in part.ops],
        "stored": part.stored,
        "counted": part.known,
        "seconds": spread(part.seconds),
        "share": median / whole,
        **_rates(report, max(median, 1e-12), part),
    }


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass
class _Row:
    """Parts that do the same to other buffers, as the layers of a model do."""

    parts: list[Part]

    @property
    def total(self) -> float:
        return sum(statistics.median(p.seconds) for p in self.parts)


def to_text(report: Report) -> str:
    """The call in some lines, then a table of its parts, those that take longest first."""
    lines = [*_head(report), ""]
    whole = report.undisturbed
    heads = ["time", "n", "share", "GFLOP/s", "GB/s", "limit", "of limit", "bound", "lines", "what"]
    rows = [_cells(report, row, whole) for row in sorted(_rows(report.parts), key=lambda r: -r.total)]
    rest = [
        (statistics.median(report.between), "lost to barriers, and to what is between loops"),
        (statistics.median(report.calling), "lost to the call"),
        (whole, "all of it"),
    ]
    lines += table([heads, *rows, *([duration(seconds), "", f"{seconds / whole:.1%}", *[""] * 6, what] for seconds, what in rest)])
    return "\n".join(lines) + "\n"


def _head(report: Report) -> list[str]:
    read = ", ".join(f"{level} {rate / 1e9:.0f}" for level, rate in report.limits.read.items())
    inputs = ", ".join(f"{name}: {type_}" for name, type_ in report.inputs.items())
    dims = "".join(f", {name} = {size}" for name, size in report.dims.items())
    calls = spread(report.calls)
    rates = _rates(report, calls["median"], report)
    middle = f"{len(report.calls)} rounds of {report.block} {'call' if report.block == 1 else 'calls'}, middle half within {calls['spread']:.1%}"
    return [
        f"@{report.graph}({inputs}){dims}",
        f"{report.threads} {'thread' if report.threads == 1 else 'threads'} on {host()[0]}: "
        f"{', '.join(f'{peak / 1e9:.0f} GFLOP/s of {dtype}' for dtype, peak in report.limits.peak.items())}; read in GB/s: {read}",
        f"a call: {duration(calls['median'])} (least {duration(calls['min'])}, most {duration(calls['max'])}; {middle})",
        f"{report.flops / 1e6:.6g} MFLOP and {report.nbytes / 1e6:.6g} MB at least: {rates['flops_per_second'] / 1e9:.1f} GFLOP/s, "
        f"{rates['bytes_per_second'] / 1e9:.1f} GB/s, {rates['of_limit']:.0%} of the limit ({duration(rates['limit_seconds'])}, {rates['bound']})",
    ]


def _rows(parts: Sequence[Part]) -> list[_Row]:
    """A layer that is called again has the same operations, and names that begin with that of the call's result."""
    found: dict[Any, _Row] = {}
    for part in parts:
        places = tuple((o.name, o.file, o.line) for o in part.ops)
        names = tuple(name.partition(".")[2] for name in part.stored)
        found.setdefault((places, names, part.flops, part.nbytes, part.known), _Row([])).parts.append(part)
    return list(found.values())


def _cells(report: Report, row: _Row, whole: float) -> list[str]:
    part, count = row.parts[0], len(row.parts)
    seconds = max(row.total / count, 1e-12)
    share = f"{row.total / whole:.1%}"
    what = described(part)
    if not part.known:
        return [duration(seconds), str(count), share, *[""] * 5, lines_of(part.ops), what]
    rates = _rates(report, seconds, part)
    return [
        duration(seconds), str(count), share, f"{part.flops / seconds / 1e9:.1f}", f"{part.nbytes / seconds / 1e9:.1f}",
        duration(rates["limit_seconds"]), f"{rates['of_limit']:.0%}", rates["bound"], lines_of(part.ops), what,
    ]  # fmt: skip


def described(part: Part) -> str:
    """The operations, as they were written, and what they leave in memory."""
    names = list(dict.fromkeys(o.name for o in part.ops))
    text = ", ".join(names[:_LONG]) + (f" and {len(names) - _LONG} more" if len(names) > _LONG else "")
    stored = ", ".join(f"%{n}" for n in part.stored[:_LONG]) + (", ..." if len(part.stored) > _LONG else "")
    return " -> ".join(t for t in (text, stored) if t)


def lines_of(ops: Iterable[SourceOp]) -> str:
    """Where they stand: lines, with the file where there are several files."""
    by_file: dict[str, set[int]] = {}
    for op in ops:
        by_file.setdefault(op.file, set()).add(op.line)
    texts = []
    for file, lines in by_file.items():
        span = f"{min(lines)}-{max(lines)}" if len(lines) > 1 else str(min(lines))
        texts.append(span if len(by_file) == 1 else f"{Path(file).name}:{span}")
    return ", ".join(texts)


def table(rows: list[list[str]]) -> list[str]:
    """Columns of one width: numbers to the right, words to the left."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    words = len(widths) - 3
    lines = ["  ".join(c.ljust(w) if i >= words else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) for r in rows]
    return [line.rstrip() for line in lines]


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            number = seconds * factor
            return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f} {unit}"
    return f"{seconds:.2f} s"
