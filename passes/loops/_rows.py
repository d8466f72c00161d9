"""Nests that go through rows, and what they touch along a row: what the passes that look after memory have in common."""

from __future__ import annotations

from ir.core import Graph, Operation
from ir.dims import substitute
from ir.types import MemRefType
from passes.loops._loops import Access, depends_on, is_loop, parent, single_range, tag_of, value_symbol, variable

LINE = 64
"""Bytes of a cache line."""

ALONG = ("col", "col.tile", "reduce")
"""Tags of loops that go along a row."""


def row_nests(graph: Graph) -> list[Operation]:
    """The loops over rows, and those over all elements of arrays."""
    return [op for op in graph.walk() if is_loop(op) and (tag_of(op) == "row" or _is_flat(op))]


def _is_flat(loop: Operation) -> bool:
    """A loop over all elements of arrays, which stands in no loop over rows."""
    if tag_of(loop) not in ("col", "col.tile"):
        return False
    outer = parent(loop)
    while outer is not None and outer.name == "scf.if":
        outer = parent(outer)
    return outer is None or not is_loop(outer)


def moves(access: Access, loop: Operation, row: Operation | None) -> bool:
    """Whether rounds of a loop touch neighbouring runs of a row, and those of the loop over rows other rows."""
    *outer, last = access.indices
    at, bounds = variable(loop), single_range(loop)
    if bounds is None or last.size is None or not isinstance(last.size, int) or any(i.size is not None and i.size > 1 for i in outer):
        return False
    following = substitute(last.expr, {f"%{at.name}": value_symbol(at) + bounds.step})
    if following - last.expr != bounds.step or any(depends_on(i.expr, [at]) for i in outer):
        return False
    return row is None or any(depends_on(i.expr, [variable(row)]) for i in outer)


def type_of(access: Access) -> MemRefType:
    """The type of the buffer that is accessed."""
    assert isinstance(access.buffer.type, MemRefType)
    return access.buffer.type
