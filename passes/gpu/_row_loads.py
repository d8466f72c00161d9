"""Loads along long rows, 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ir.core import Operation, Value
from ir.dims import Dim
from ir.types import boolean
from passes.gpu._bodies import Special
from passes.gpu._elements import Run, find_loads
from passes.gpu._kernels import LINE, local
from passes.loops._blocks import load, store

if TYPE_CHECKING:
    from passes.gpu._row_blocks import LongRows


class Loads:
    """Loads along a row that each thread does 16 bytes at a time, as far as they are aligned, for ``width`` neighbours."""

    def __init__(self, rows: LongRows, ops: Iterable[Operation], variable: Value, count: Dim) -> None:
        self.rows, self.variable = rows, variable
        found = [r for r in find_loads(ops, variable) if r.type.dtype != boolean]
        width = min((LINE // r.type.dtype.itemsize for r in found), default=1)
        while width > 1 and (not isinstance(count, int) or count % width or not any(r.is_aligned(width) for r in found)):
            width //= 2
        self.width = width
        self.runs = [r for r in found if width > 1 and r.is_aligned(width)]

    def load(self, start: Dim) -> dict[Operation, Value]:
        """Loads what neighbours from ``start`` on need; the memory in which it is then, for each load."""
        lines: dict[Operation, Value] = {}
        known: dict[object, Value] = {}
        for run in self.runs:
            if run.key not in known:
                line = known[run.key] = local(f"{run.buffer.name}.run", run.type.dtype, self.width)
                buffer, front, place = place_of(self.rows, run, start)
                size = min(self.width, LINE // run.type.dtype.itemsize)
                for at in range(0, self.width, size):
                    store(load(buffer, *front, (place + at, size), name=run.op.results[0].name), line, (at, size))
            lines[run.op] = known[run.key]
        return lines

    def near(self, lines: Mapping[Operation, Value], u: Dim) -> Special:
        """What stands for the loads of neighbour ``u``."""

        def special(op: Operation) -> bool:
            line = lines.get(op)
            if line is None:
                return self.rows.near(op)
            self.rows.copier.become(op.results[0], load(line, u, name=op.results[0].name))
            return True

        return special


def place_of(rows: LongRows, run: Run, start: Dim) -> tuple[Value, list[Dim], Dim]:
    """The buffer of a run, its other indices and its first place in the kernel."""
    buffer = rows.shared.get(run.buffer, run.buffer)
    front = run.front[rows.rows.prefix :] if run.buffer in rows.shared else run.front
    return buffer, [rows.copier.expr(p) for p in front], start + rows.copier.expr(run.offset)
