"""Pass ``block-rows``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.builder import Builder
from ir.core import Module, Operation
from ir.dims import Dim, dim_max, floordiv
from ir.layout import IndexExpr, RangeArg
from ir.rewriter import is_pure, walk_graphs
from ir.types import MemRefType
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    Access,
    accesses,
    body,
    clone_before,
    create_loop,
    depends_on,
    end_loop,
    extent,
    is_loop,
    loops_tagged,
    parent_loop,
    set_range,
    single_range,
    static_extent,
    tag_of,
    value_symbol,
    variable,
)
from passes.loops._versions import is_for_few

LEAST = 6
"""Tiles of rows in a block: so many share the hints for the next panel (see ``prefetch``)."""


@dataclass(frozen=True)
class BlockRows(Pass):
    """Goes through all panels of a factor with one block of rows after the other, so that the rows stay near.

    Before::

        scf.parallel(%jt = 0 to 1536 step 48, tag="n.tile") {
          scf.parallel(%it = 0 to M-(M mod 8) step 8, tag="m.tile") {
            ...
          }
          scf.parallel(%it.1 = M-(M mod 8) to M-(M mod 4) step 4, tag="m.tile") {
            ...

    After ``block-rows{size=128}``::

        scf.parallel(%itb = 0 to 128*max(0, M floordiv 128-1) step 128, tag="m.block") {
          scf.parallel(%jt.1 = 0 to 1536 step 48, tag="n.tile") {
            scf.parallel(%it.2 = %itb to %itb+128 step 8, tag="m.tile") {
              ...
            }
          }
        }
        scf.parallel(%jt = 0 to 1536 step 48, tag="n.tile") {
          scf.parallel(%it = 128*max(0, M floordiv 128-1) to M-(M mod 8) step 8, tag="m.tile") {
            ...
          }
          scf.parallel(%it.1 = M-(M mod 8) to M-(M mod 4) step 4, tag="m.tile") {
            ...

    The rows of a factor are read again for every panel of the other one.  Those of a block, which are at most ``size``
    and as many as fit in ``bytes``, are still in a near cache then; the panels come from further away once for every
    block, for which hints are early enough.  What is left stays with the last block, which so never has few rows.

    The loop with tag ``loop`` must hold parallel loops and pure operations only; its first loop has tag ``rows`` and is
    cut.  Its rounds and those of the loops inside don't depend on each other, so they may run in any order.  The version of a nest
    for few rows stays as it is.
    """

    loop: str = "n.tile"
    """tag of the loops over panels"""
    rows: str = "m.tile"
    """tag of the loops over tiles of rows"""
    size: int = 128
    """the most rows of a block"""
    bytes: int = 512 * 1024
    """what the rows of a block take at most, as far as that leaves six tiles"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 1 or self.bytes < 1:
            raise ValueError("a block has a row and a byte at least")

    def run(self, module: Module, context: PassContext) -> bool:
        made = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                around = (parent_loop(loop), loop.prev)
                if not any(op is not None and is_loop(op) and tag_of(op) == "m.block" for op in around):  # is in blocks already
                    made += self._block(loop)
        context.count("loops over rows in blocks", made)
        return made > 0

    def _block(self, panels: Operation) -> bool:
        first = next((op for op in body(panels) if is_loop(op)), None)
        if is_for_few(panels):
            return False
        if panels.name != "scf.parallel" or first is None or first.name != "scf.parallel" or tag_of(first) != self.rows:
            return False
        bounds = single_range(first)
        rest = [op for op in body(panels) if op is not first and not op.definition.is_terminator]
        if bounds is None or not isinstance(bounds.step, int) or depends_on(bounds.start + bounds.stop, [variable(panels)]):
            return False
        if not all(op.name == "scf.parallel" or is_pure(op) for op in rest):
            return False
        length, size = extent(bounds), self._size(first, bounds.step)
        if size is None or (isinstance(length, int) and length <= size):
            return False
        whole = isinstance(length, int) and length % size == 0 and not any(is_loop(op) for op in rest)  # else what is left has company
        middle = bounds.stop if whole else bounds.start + size * dim_max(0, floordiv(length, size) - 1)
        if middle == bounds.start:
            return False
        self._blocks(panels, RangeArg(bounds.start, middle, size), bounds.step)
        set_range(first, RangeArg(middle, bounds.stop, bounds.step))
        if whole:
            panels.erase()
        return True

    def _blocks(self, panels: Operation, bounds: RangeArg, step: int) -> None:
        """The loop over blocks in front of the one over panels, of which it gets a copy with the rows of a block."""
        assert panels.block is not None and isinstance(bounds.step, int)
        builder = Builder(panels.block, panels, loc=panels.loc)
        rows = next(op for op in body(panels) if is_loop(op))
        blocks = create_loop(builder, "scf.parallel", bounds, name=f"{variable(rows).name}b", tag="m.block")
        blocks.trivia, panels.trivia = panels.trivia, None
        copy = clone_before(panels, None, body(blocks))
        end_loop(blocks)
        first, *others = [op for op in body(copy) if is_loop(op)]
        for op in others:
            op.erase()
        start = value_symbol(variable(blocks))
        set_range(first, RangeArg(start, start + bounds.step, step))

    def _size(self, rows: Operation, step: int) -> int | None:
        """Rows of a block, a multiple of ``step``; None where nothing is read that is the same for all panels."""
        most = 0
        for op in rows.walk():
            for access in accesses(op) if op.name in ("memref.load", "vector.load") else ():
                if any(depends_on(i.expr, [variable(rows)]) for i in access.indices):
                    most = max(most, _bytes_of_row(access, rows))
        if not most:
            return None
        return max(min(self.size, self.bytes // most), LEAST * step) // step * step


def _read_along(dim: Dim, index: IndexExpr, rows: Operation) -> int:
    """How many elements of a dimension are read: all, or the rounds of a loop inside that the index counts, or a run that no such loop moves."""
    moved = False
    for loop in [op for op in rows.walk() if is_loop(op) and op is not rows]:
        bounds = single_range(loop)
        if bounds is not None and index.expr == value_symbol(variable(loop)) and (known := static_extent(bounds)) is not None:
            return known
        moved = moved or depends_on(index.expr, body(loop).arguments)
    if index.size is not None and not moved:
        return index.size
    return dim if isinstance(dim, int) else 1


def _bytes_of_row(access: Access, rows: Operation) -> int:
    """The bytes of one row of a factor that loops inside go through; 1 when that is not known."""
    type_ = access.buffer.type
    assert isinstance(type_, MemRefType)
    size = type_.dtype.itemsize
    for dim, index in zip(type_.shape, access.indices, strict=True):
        if not depends_on(index.expr, [variable(rows)]):
            size *= _read_along(dim, index, rows)
    return max(size, 1)
