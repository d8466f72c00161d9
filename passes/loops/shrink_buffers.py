"""Pass ``shrink-buffers``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ir.core import Block, Module, Operation
from ir.dims import Dim
from ir.layout import IndexExpr
from ir.rewriter import walk_graphs
from ir.types import MemRefType
from passes.infra.base import Pass, PassContext
from passes.loops._dependence import is_carried, limits_in
from passes.loops._loops import Access as Place
from passes.loops._loops import is_loop, move_into, parent, read_layout, write_layout
from passes.loops._memory import Access, accesses_of, same_place


@dataclass(frozen=True)
class ShrinkBuffers(Pass):
    """Moves temporary buffers into the loops that use them, as small as one round needs.

    Before::

        %T = memref.alloc() : memref<f32[M, N]>
        scf.parallel(%it = 0 to M step 8, tag="m.tile") {
          scf.parallel(%i = %it to min(%it+8, M)) {... memref.store(%s, %T[%i, %j]) ...}
          scf.parallel(%p = %it to min(%it+8, M)) {... memref.load(%T[%p, %q]) ...}
          yield
        }

    After::

        scf.parallel(%it = 0 to M step 8, tag="m.tile") {
          %T = memref.alloc() : memref<f32[8, 64]>
          scf.parallel(%i = %it to min(%it+8, M)) {... memref.store(%s, %T[%i-%it, %j]) ...}
          scf.parallel(%p = %it to min(%it+8, M)) {... memref.load(%T[%p-%it, %q]) ...}
          yield
        }

    A buffer moves into the innermost loop around all of its uses for which all of these hold:

    - it is used by single loads and stores only;
    - what a round reads it has stored itself, in the same place, or no other round stores it (what nothing has stored is not
      specified);
    - the indices of a round differ by known numbers, so that its part of the buffer has a known size, of ``limit`` bytes at
      most.

    A buffer of one element, stored and loaded in one block, is then a scalar for ``forward-stores``.
    """

    limit: int = 32768

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        shrunk = 0
        for graph in walk_graphs(module):
            for op in [op for op in graph.walk() if op.name == "memref.alloc"]:
                uses = _uses(op)
                if uses is None:
                    context.count("buffers left: used as a whole")
                elif uses:
                    shrunk += self._shrink(op, uses, context)
        context.count("buffers shrunk", shrunk)
        return shrunk > 0

    def _shrink(self, alloc: Operation, uses: list[Access], context: PassContext) -> bool:
        reason = ""
        for block in _blocks_around_all(alloc, uses):
            if _is_shared(alloc, uses, block):
                reason = reason or "rounds share elements"
                continue
            windows = _windows(uses, block)
            if windows is None:
                reason = reason or "the part of a round is not known"
                continue
            type_ = alloc.result.type
            assert isinstance(type_, MemRefType)
            if math.prod(size for _, size in windows) * type_.dtype.itemsize > self.limit:
                reason = reason or "the part of a round is too large"
                continue
            shape = tuple(size for _, size in windows)
            if alloc.block is block and shape == type_.shape:
                break
            _move(alloc, uses, block, windows)
            return True
        if reason:
            context.count(f"buffers left: {reason}")
        return False


def _uses(alloc: Operation) -> list[Access] | None:
    """The loads and stores of a buffer; None when something else uses it."""
    found: list[Access] = []
    for user in alloc.result.users:
        accesses = accesses_of(user)
        if len(accesses) != 1 or accesses[0].indices is None:
            return None
        found += accesses
    return found


def _blocks_around_all(alloc: Operation, uses: list[Access]) -> Iterator[Block]:
    """The blocks that hold all uses, from the innermost one out to that of the buffer."""
    block = uses[0].op.block
    while block is not None:
        if all(_holds(block, a.op) for a in uses):
            yield block
        if block is alloc.block:
            return
        outer = block.parent.parent if block.parent is not None else None
        block = outer.block if outer is not None else None


def _holds(block: Block, op: Operation) -> bool:
    at: Operation | None = op
    while at is not None and at.block is not block:
        at = parent(at)
    return at is not None


def _is_shared(alloc: Operation, uses: list[Access], block: Block) -> bool:
    """Whether a round of a loop between the buffer and a block may read what another round has written."""
    writes = [a for a in uses if a.writes]
    reads = [a for a in uses if not a.writes and not any(_covers(w, a, block) for w in writes)]
    at = block
    while at is not alloc.block:
        outer = at.parent.parent if at.parent is not None else None
        assert outer is not None and outer.block is not None
        if is_loop(outer) and is_carried(writes, reads, outer):
            return True
        at = outer.block
    return False


def _covers(write: Access, read: Access, block: Block) -> bool:
    """Whether what is read was written in the same run of a block for sure: by a store to the same place in front of it."""
    home = write.op.block
    if home is None or not same_place(write, read) or not _holds(block, write.op) or not _holds(home, read.op):
        return False
    at: Operation | None = write.op
    while at is not None and not any(inner is read.op for inner in at.walk()):
        at = at.next
    return at is not None


def _windows(uses: list[Access], block: Block) -> list[tuple[Dim, int]] | None:
    """For each dimension where the elements of one run of a block begin, and how many there are; None where that is not known."""
    found: list[tuple[Dim, int]] = []
    for axis, dim in enumerate(uses[0].type.shape):
        ranges = [_extremes(a, axis, block) for a in uses]
        choices = [w for low in ranges[0][0] if (w := _window(low, ranges)) is not None]
        if isinstance(dim, int):
            choices.append((0, dim))
        if not choices:
            return None
        found.append(min(choices, key=lambda c: c[1]))
    return found


def _extremes(access: Access, axis: int, block: Block) -> tuple[list[Dim], list[Dim]]:
    """The first and the last index of an access in one run of a block, each in a few forms."""
    assert access.indices is not None
    lows, highs = limits_in(access, access.indices[axis], block)
    return lows, [h + access.sizes[axis] - 1 for h in highs]


def _window(base: Dim, ranges: list[tuple[list[Dim], list[Dim]]]) -> tuple[Dim, int] | None:
    """The elements from ``base`` on (a known number before or behind it) that all accesses stay in."""
    first: list[int] = []
    last: list[int] = []
    for lows, highs in ranges:
        below = [d for low in lows if isinstance(d := low - base, int)]
        above = [d for high in highs if isinstance(d := high - base, int)]
        if not below or not above:
            return None
        first.append(max(below))
        last.append(min(above))
    return base + min(first), max(1, max(last) - min(first) + 1)


def _move(alloc: Operation, uses: list[Access], block: Block, windows: list[tuple[Dim, int]]) -> None:
    """Makes the buffer one of its block, with a smaller shape, and counts indices from where it begins now."""
    if alloc.block is not block:
        move_into(alloc, block, block.first)
    buffer = alloc.result
    assert isinstance(buffer.type, MemRefType)
    buffer.type = dataclasses.replace(buffer.type, shape=tuple(size for _, size in windows))
    for access in uses:
        forms = read_layout(access.op)
        place = forms[-1]
        assert isinstance(place, Place)
        indices = tuple(IndexExpr(i.expr - base, i.size) for i, (base, _) in zip(place.indices, windows, strict=True))
        write_layout(access.op, [*forms[:-1], Place(buffer, indices)])
