"""Tensors of four dimensions as they lie in memory: in a buffer of their own, or in another one, in another order.

A nest that only moves elements (heads split off and put in front of the sequence) needn't run where what reads its result can
read each element where it came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from ir.core import Operation, Value
from ir.dims import Dim, DimExpr, substitute, symbol, symbols_of
from ir.types import MemRefType
from passes.linalg._fusion import Indices, Nest, is_nest, plain_name, root, top_level, written_memory
from passes.loops._memory import alias, memory_of

Place = Union[Dim, tuple[Dim, int]]
"""An index, or the first one and how many."""

AXES: tuple[Dim, ...] = tuple(symbol(f"view.{n}") for n in range(4))
"""What indices of a buffer are written in."""
_ROW, _COLUMN = "view.2", "view.3"


@dataclass(frozen=True)
class View:
    """A tensor of the given shape: its element at ``AXES`` is that of the buffer at ``indices``."""

    buffer: Value
    shape: tuple[Dim, ...]
    indices: Indices = AXES

    @property
    def is_plain(self) -> bool:
        """Whether the tensor has the buffer to itself, in the order of its dimensions."""
        return self.indices == AXES

    def at(self, *places: Place) -> list[Place]:
        """The places in the buffer of places in the tensor; runs are along rows or columns, and stay runs."""
        starts = {f"view.{n}": p[0] if isinstance(p, tuple) else p for n, p in enumerate(places)}
        runs = {f"view.{n}": p[1] for n, p in enumerate(places) if isinstance(p, tuple)}
        found: list[Place] = []
        for index in self.indices:
            sizes = [runs[n] for n in symbols_of(index) if n in runs]
            start = substitute(index, starts)
            found.append((start, sizes[0]) if sizes else start)
        return found


def moved_from(buffer: Value, reader: Operation) -> tuple[Operation, View] | None:
    """The nest that fills a buffer by moving elements alone, and where they come from, if they are still there for ``reader``."""
    nests = [u for u in buffer.users if u.name == "linalg.generic"]
    others = {u.name for u in buffer.users} - {"linalg.generic", "memref.to_tensor"}
    made = buffer.defining_op
    if len(nests) != 1 or others or made is None or made.name != "memref.alloc" or nests[0].block is not reader.block:
        return None
    nest = _move(nests[0])
    if nest is None or nest.outputs[0].buffer is not buffer:
        return None
    view = _view(nest, nest.outputs[0].indices, buffer, nest.reads[0].buffer, nest.reads[0].indices)
    if view is None:
        return None
    source, at = memory_of(root(view.buffer)), nest.op.next
    while at is not None and at is not reader:
        if any(alias(memory_of(m), source) != "never" for m in written_memory(at)):
            return None
        at = at.next
    return (nest.op, view) if at is reader else None


def moved_to(buffer: Value, writer: Operation) -> tuple[Operation, View] | None:
    """The nest that does nothing but move what a buffer holds, and where to, if ``writer`` can store it there itself."""
    if len(buffer.users) != 1 or buffer.users[0].name != "linalg.generic" or buffer.users[0].block is not writer.block:
        return None
    nest = _move(buffer.users[0])
    if nest is None or nest.reads[0].buffer is not buffer:
        return None
    target = nest.outputs[0].buffer
    made = target.defining_op
    if made is None or made.name != "memref.alloc" or made.block is not writer.block:
        return None
    view = _view(nest, nest.reads[0].indices, buffer, target, nest.outputs[0].indices)
    if view is None or not all(size == 1 or _mentions(view, axis) for axis, size in zip(AXES, view.shape, strict=True)):
        return None
    later: set[Operation] = set()
    at = nest.op.next
    while at is not None:
        later.add(at)
        at = at.next
    return (nest.op, view) if all(u is nest.op or top_level(u) in later for u in target.users) else None


def _mentions(view: View, axis: Dim) -> bool:
    return any(n == str(axis) for e in view.indices for n in symbols_of(e))


def _move(op: Operation) -> Nest | None:
    """The nest when it stores one element that it has read, and nothing else."""
    if not is_nest(op):
        return None
    nest = Nest(op)
    if len(nest.reads) != 1 or len(nest.outputs) != 1 or nest.block.first is not nest.block.terminator:
        return None
    return nest if nest.outputs[0].value is nest.reads[0].argument and not nest.outputs[0].argument.has_uses else None


def _view(nest: Nest, places: Indices, tensor: Value, buffer: Value, indices: Indices) -> View | None:
    """A tensor, whose element at ``places`` is that of a buffer at ``indices``, as a view of the buffer."""
    assert isinstance(tensor.type, MemRefType)
    shape = tensor.type.shape
    if len(shape) > 4:
        return None
    axes = AXES[4 - len(shape) :]
    bound: dict[str, Dim] = {}
    for place, axis, size in zip(places, axes, shape, strict=True):
        name = plain_name(place)
        if name is None or name in bound:
            if place == 0 and size == 1:
                continue
            return None
        bound[name] = axis
    if sorted(bound) != sorted(nest.names) or any(d.bound != s for d in nest.dims for a, s in zip(axes, shape, strict=True) if bound[d.name] == a):
        return None
    if any(s.startswith("%") for e in indices for s in symbols_of(e)):
        return None
    found = View(buffer, (1,) * (4 - len(shape)) + shape, tuple(substitute(e, bound) for e in indices))
    return found if _runs_stay_runs(found.indices) else None


def _runs_stay_runs(indices: Sequence[Dim]) -> bool:
    """Whether columns are neighbours in the last index, and rows go one by one in another."""
    rows = [n for n, e in enumerate(indices) if _ROW in symbols_of(e)]
    columns = [n for n, e in enumerate(indices) if _COLUMN in symbols_of(e)]
    if len(rows) != 1 or columns != [len(indices) - 1] or rows == columns:
        return False
    return _steps_by_one(indices[rows[0]], _ROW) and _steps_by_one(indices[-1], _COLUMN)


def _steps_by_one(expr: Dim, name: str) -> bool:
    return isinstance(expr, DimExpr) and [c for m, c in expr.terms if name in m] == [1] and all(m == (name,) for m, _ in expr.terms if name in m)
