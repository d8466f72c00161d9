"""Plots of a report: the roofline, and the speed beside the best peer and beside all of them."""

from __future__ import annotations

import json
import statistics
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.engines import LLAMA_CPP, OURS, PEERS, READ, C

COLORS = {
    OURS: "#000000", "numpy": "#4c78a8", "torch": "#e45756", "torch.compile": "#f2a59f", "onnxruntime": "#54a24b", "onnxruntime fused": "#a5d39b",
    "openvino": "#b279a2", "jax": "#f58518", LLAMA_CPP: "#9d755d", C: "#9d9d9d", READ: "#d3d3d3",
}  # fmt: skip
HEIGHT = 0.32
"""Inches for a row."""


def plot(report: Path) -> list[Path]:
    """Draws what a JSON report holds, beside it; gives the files.  Raises ImportError without matplotlib."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("Agg")
    look = {"svg.hashsalt": "graph-opt", "svg.fonttype": "none", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    matplotlib.rcParams.update(look)
    found = json.loads(report.read_text())
    drawn = []
    for name, draw in (("roofline", roofline), ("ratios", ratios), ("shares", shares)):
        figure = draw(found)
        if figure is None:
            continue
        target = report.with_name(f"{report.stem}-{name}.svg")
        figure.savefig(target, bbox_inches="tight", metadata={"Date": None})
        import_module("matplotlib.pyplot").close(figure)
        drawn.append(target)
    return drawn


def _median(row: dict[str, Any], engine: str) -> float | None:
    timing = row["engines"].get(engine)
    return None if timing is None else float(timing["median"])


def _rates(report: dict[str, Any]) -> dict[str, float]:
    """The median of every limit."""
    names = {name for row in report["rows"] for name in row["rates"]}
    return {name: statistics.median(r for row in report["rows"] for r in row["rates"].get(name, [])) for name in names}


def _title(report: dict[str, Any], what: str) -> str:
    return f"{what}, {report['threads']} thread{'s' if report['threads'] > 1 else ''}"


def roofline(report: dict[str, Any]) -> Any:
    """Operations a second over operations a byte, under the roofs of every level; None where nothing was counted."""
    rates = _rates(report)
    counted = [row for row in report["rows"] if row["flops"] and row["bytes"] and _median(row, OURS)]
    if not counted or "f32" not in rates:
        return None
    figure, axes = import_module("matplotlib.pyplot").subplots(figsize=(8, 5))
    intensities = [row["flops"] / row["bytes"] for row in counted]
    low, high = min(intensities) / 2, max(intensities) * 2
    for level in ("L2", "L3", "DRAM"):
        if level not in rates:
            continue
        knee = rates["f32"] / rates[level]
        xs = [low, min(max(knee, low), high), high]
        axes.plot(xs, [min(rates["f32"], x * rates[level]) / 1e9 for x in xs], color="#bbbbbb", linewidth=1, zorder=1)
        axes.annotate(f"{level} {rates[level] / 1e9:.0f} GB/s", (low, low * rates[level] / 1e9), color="#888888", fontsize=7, va="bottom")
    axes.annotate(f"multiply-adds {rates['f32'] / 1e9:.0f} GFLOP/s", (high, rates["f32"] / 1e9), color="#888888", fontsize=7, ha="right", va="bottom")
    for engine in (*PEERS, OURS):
        points = [(row["flops"] / row["bytes"], row["flops"] / seconds / 1e9) for row in counted if (seconds := _median(row, engine))]
        if points:
            size = 28 if engine == OURS else 14
            axes.scatter(*zip(*points, strict=True), s=size, color=COLORS[engine], label=engine, zorder=3 if engine == OURS else 2, linewidths=0)
    axes.set(xscale="log", yscale="log", xlabel="operations for a byte", ylabel="GFLOP/s", title=_title(report, "Roofline"))
    axes.legend(frameon=False, fontsize=7, loc="lower right")
    return figure


def ratios(report: dict[str, Any]) -> Any:
    """Their time / ours for every engine, a row for each work; None where there is nothing to compare."""
    rows = [row for row in report["rows"] if _median(row, OURS) and any(_median(row, name) for name in (*PEERS, C))]
    if not rows:
        return None
    figure, axes = _rows_figure([row["name"] for row in rows])
    for engine in (*PEERS, C):
        points = [(seconds / row["engines"][OURS]["median"], i) for i, row in enumerate(rows) if (seconds := _median(row, engine))]
        if points:
            axes.scatter(*zip(*points, strict=True), s=22, color=COLORS[engine], label=engine, marker="D" if engine == C else "o", linewidths=0)
    axes.axvline(1, color="#000000", linewidth=1, zorder=1)
    axes.set(xscale="log", xlabel="their time / ours: right of the line ours is faster", title=_title(report, "Speed beside others"))
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def shares(report: dict[str, Any]) -> Any:
    """How much of the limit of the machine ours and the best peer reach; None where it wasn't measured."""
    rows = [row for row in report["rows"] if row["limit"] and _median(row, OURS)]
    if not rows:
        return None
    figure, axes = _rows_figure([row["name"] for row in rows])
    for i, row in enumerate(rows):
        peers = [seconds for name in PEERS if (seconds := _median(row, name))]
        axes.barh(i - 0.2, row["limit"][0] / row["engines"][OURS]["median"], 0.38, color="#000000", label="ours" if i == 0 else None)
        if peers:
            axes.barh(i + 0.2, row["limit"][0] / min(peers), 0.38, color="#bbbbbb", label="best peer" if i == 0 else None)
    axes.axvline(1, color="#888888", linewidth=1, zorder=0)
    axes.set(xlabel="part of the limit: operations at the peak, or bytes at the bandwidth of their level", title=_title(report, "Share of the limit"))
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _rows_figure(names: list[str]) -> tuple[Any, Any]:
    """Axes with a line for every name, the first on top."""
    figure, axes = import_module("matplotlib.pyplot").subplots(figsize=(8, 1 + HEIGHT * len(names)))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    return figure, axes
