"""Pass ``nontemporal-stores``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dialects.memref import is_aligned, reshape
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import Dim, mod
from ir.rewriter import walk_graphs
from ir.types import MemRefType, byte_count
from passes.infra.base import Pass, PassContext
from passes.loops._loops import accesses, body, is_loop, parent, single_range, tag_of, value_symbol, variable
from passes.loops._memory import Memory, accesses_of, alias, memory_of
from passes.loops._rows import ALONG, LINE, moves, row_nests, type_of
from passes.loops._versions import two_versions


@dataclass(frozen=True)
class NontemporalStores(Pass):
    """Stores past the caches where rows are written to buffers that no cache would hold.

    Before::

        scf.parallel(%j = 0 to 4194304 step 64, tag="col.tile") {
          memref.prefetch(%C[%j+64], write=true)
          ...
          vector.store(%y, %C[%j:+64])
          yield
        }

    After ``nontemporal-stores``::

        %C.is.aligned = memref.is_aligned(%C, align=64) : bool
        scf.if(%C.is.aligned) {
          %C.aligned = memref.reshape(%C) : memref<f32[4194304], align=64>
          scf.parallel(%j = 0 to 4194304 step 64, tag="col.tile") {
            ...
            vector.store(%y, %C.aligned[%j:+64], nontemporal=true)
            yield
          }
          yield
        } {
          (as before)
        }

    An ordinary store reads the line that it writes to first, and what it puts into a cache is written to memory when other lines take
    its place: past the caches two thirds of that are saved for what is larger than they are.  What is smaller stays there for whoever
    reads it next, so that is for buffers of ``least`` bytes or more, in nests that do not read them themselves.

    Lines are written as a whole, so places must be multiples of 64 bytes: the lengths of rows and the steps of loops, which may be known when the
    program runs, and where the buffer begins, which is always asked then.  Loops that carry values stay as they are.
    """

    least: int = 1 << 24
    """bytes of a buffer from which on stores go past the caches"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.least < 0:
            raise ValueError("a size is not negative")

    def run(self, module: Module, context: PassContext) -> bool:
        made = 0
        for graph in walk_graphs(module):
            for nest in row_nests(graph):
                made += self._in_nest(nest)
        context.count("loops that store past the caches", made)
        return made > 0

    def _in_nest(self, nest: Operation) -> int:
        """Makes two versions of loops along a row, or of a loop over all elements."""
        row = nest if tag_of(nest) == "row" else None
        loops = [nest] if row is None else [op for op in body(nest) if is_loop(op) and tag_of(op) in ALONG]
        read = [a.memory for op in nest.walk() for a in accesses_of(op) if not a.writes]
        found = [(loop, self._stores(loop, row, read)) for loop in loops if not loop.results and not _is_chosen(loop)]
        return sum(_two_versions(loop, nest, stores, self._conditions(stores)) for loop, stores in found if stores)

    def _stores(self, loop: Operation, row: Operation | None, read: Sequence[Memory]) -> list[Operation]:
        """The stores of a loop to large buffers that the nest does not read."""
        return [
            op
            for op in body(loop)
            if op.name == "vector.store"
            and op.operand("valid") is None
            and _whole_lines(op, loop, row)
            and self._may_be_large(type_of(accesses(op)[0]))
            and all(alias(memory_of(accesses(op)[0].buffer), memory) == "never" for memory in read)
        ]

    def _may_be_large(self, type_: MemRefType) -> bool:
        size = byte_count(type_.dtype, type_.shape)
        return not isinstance(size, int) or size >= self.least

    def _conditions(self, stores: Sequence[Operation]) -> list[tuple[Dim, int]]:
        """What must be at least so large when the program runs: buffers, and -1 times what rows have more than whole lines."""
        found: dict[tuple[Dim, int], None] = {}
        for op in stores:
            type_ = type_of(accesses(op)[0])
            size = byte_count(type_.dtype, type_.shape)
            if not isinstance(size, int):
                found[size, self.least] = None
            if len(type_.shape) > 1 and not isinstance(type_.shape[-1], int):
                found[0 - mod(type_.shape[-1], LINE // type_.dtype.itemsize), 0] = None
        return list(found)


def _is_chosen(loop: Operation) -> bool:
    """Whether a loop is one of two versions already."""
    outer = parent(loop)
    conditions = [outer.operands[0]] if outer is not None and outer.name == "scf.if" else []
    for value in conditions:
        op = value.defining_op
        if op is not None and op.name == "memref.is_aligned":
            return True
        conditions += op.operands if op is not None and op.name == "arith.andi" else []
    return False


def _whole_lines(op: Operation, loop: Operation, row: Operation | None) -> bool:
    """Whether a store writes whole lines if its buffer begins with one, and rows whose length is not known are whole lines."""
    (access,) = accesses(op)
    type_, bounds = type_of(access), single_range(loop)
    if not moves(access, loop, row) or bounds is None:
        return False
    *_, last = access.indices
    behind = last.expr - value_symbol(variable(loop))
    length = type_.shape[-1] if len(type_.shape) > 1 and isinstance(type_.shape[-1], int) else 0
    numbers = (bounds.start, bounds.step, behind, last.size, length)
    return all(isinstance(n, int) and n * type_.dtype.itemsize % LINE == 0 for n in numbers)


def _two_versions(loop: Operation, nest: Operation, stores: Sequence[Operation], conditions: Sequence[tuple[Dim, int]]) -> bool:
    """Puts a loop whose stores go past the caches beside one that is as it was."""
    buffers = list(dict.fromkeys(accesses(op)[0].buffer for op in stores))
    if nest.block is None or any(_is_made_in(buffer, nest) for buffer in buffers):
        return False
    front = Builder(nest.block, nest, origin="rows", loc=nest.loc)
    aligned: list[Value] = [front.create(is_aligned, [b], {"align": LINE}, name=f"{b.name}.is.aligned").result for b in buffers]
    if not two_versions(loop, conditions, aligned):
        for value in aligned:
            value.defining_op.erase()  # type: ignore[union-attr]
        return False
    assert loop.block is not None
    builder = Builder(loop.block, loop, origin="rows", loc=loop.loc)
    for buffer in buffers:
        old = buffer.type
        assert isinstance(old, MemRefType)
        type_ = MemRefType(old.dtype, old.shape, old.space, LINE)
        places = builder.create(reshape, [buffer], {}, result_types=[type_], name=f"{buffer.name}.aligned").result
        for op in [op for op in stores if accesses(op)[0].buffer is buffer]:
            op.set_operands([places if v is buffer else v for v in op.operands])
            op.set_attribute("nontemporal", True)
    written = [memory_of(b) for b in buffers]
    for op in [op for op in body(loop) if op.name == "memref.prefetch" and memory_of(op.operands[0]) in written]:
        op.erase()
    return True


def _is_made_in(buffer: Value, nest: Operation) -> bool:
    at = buffer.defining_op
    while at is not None and at is not nest:
        at = parent(at)
    return at is nest
