"""Pass ``block-long-sums``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import Dim, floordiv
from ir.layout import LAYOUT, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure, walk_graphs
from ir.types import DType, MemRefType, Type, VectorType
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
    number_layout,
    parent,
    parent_loop,
    set_initial_values,
    set_range,
    single_range,
    tag_of,
    value_symbol,
    variable,
)
from passes.loops._memory import alias, all_accesses, memory_of
from passes.loops._versions import is_at_least, is_for_few, two_versions

_ROUNDS = 2
"""Tiles of rows from which on a panel is read again, and should still be near."""

BLOCK = "k.block"
"""The tag of loops over blocks."""


@dataclass(frozen=True)
class BlockLongSums(Pass):
    """Does products with long sums block by block, with the sums in the memory of the result between blocks.

    Before::

        scf.parallel(%jt = 0 to 960 step 48, tag="n.tile") {
          scf.parallel(%it = 0 to 256 step 8, tag="m.tile") {
            %s = scf.for(%k = 0 to 4096, %acc = %zero, tag="k") {
              %b = vector.load(%B.panels[%jt floordiv 48, %k, 0:+48]) : vector<f32[1, 1, 48]>
              ...
            }
            vector.store(%s, %C[%it:+8, %jt:+48])
            // what follows, on the rows of %C
            ...

    After ``block-long-sums{bytes=200000}``::

        // the steps from 0 to 1024, and nothing behind the store
        scf.for(%kb = 1024 to 3072 step 1024, tag="k.block") {
          scf.parallel(%jt = 0 to 960 step 48, tag="n.tile") {
            scf.parallel(%it = 0 to 256 step 8, tag="m.tile") {
              %c = vector.load(%C[%it:+8, %jt:+48]) : vector<f32[8, 48]>
              %s = scf.for(%k = %kb to %kb+1024, %acc = %c, tag="k") {
              ...
              vector.store(%s, %C[%it:+8, %jt:+48])
        }
        // the steps from 3072 on, and what follows

    A panel is read by all tiles of rows one after the other while hints bring the next one and the rows stay: with thousands of
    steps that is more than a near cache has.  A piece of a panel takes ``bytes`` at most.  The terms are added in the same order,
    and what is stored in between is what would have stayed in registers, so the bits are the same.

    It is for factors in panels and two tiles of rows or more, and a number of steps that is known, or that the version of the nest
    shows to be more than a block.  Where the number of rows is known
    only when the program runs, there are two versions of the nest.  A factor that is widened (f16, bf16) counts with the bytes that it
    has then, as ``widen-panels`` keeps it.
    """

    loop: str = "n.tile"
    """tag of the loops over panels"""
    rows: str = "m.tile"
    """tag of the loops over tiles of rows"""
    sums: str = "k"
    """tag of the loops over the steps of a sum"""
    bytes: int = 384 * 1024
    """what a piece of a panel takes at most"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bytes < 1:
            raise ValueError("a piece of a panel has a byte at least")

    def run(self, module: Module, context: PassContext) -> bool:
        made = 0
        for graph in walk_graphs(module):
            for panels in loops_tagged(graph, self.loop):
                sums = self._sums(panels)
                steps = self._steps(sums) if sums else None
                if steps is not None:
                    _make_versions(panels, sums[0])
                    self._block(panels, *steps)
                    made += 1
        context.count("products in blocks", made)
        return made > 0

    def _sums(self, panels: Operation) -> list[Operation]:
        """The loops over steps, one in each loop over tiles of rows; none where the product is not of the kind."""
        around = parent_loop(panels)
        if panels.name != "scf.parallel" or single_range(panels) is None or (around is not None and tag_of(around) == BLOCK):
            return []
        found = []
        for op in body(panels):
            if op.definition.is_terminator or (is_pure(op) and not op.regions):
                continue
            sums = self._sum_of_rows(op)
            if sums is None:
                return []
            found.append(sums)
        return found if found and _is_worth_it(found[0]) and not is_for_few(panels) else []

    def _sum_of_rows(self, rows: Operation) -> Operation | None:
        """The loop over steps in a loop over tiles of rows, whose result is stored at once in memory that only the result needs."""
        if rows.name != "scf.parallel" or tag_of(rows) != self.rows:
            return None
        loops = [op for op in body(rows) if is_loop(op)]
        if not loops or loops[0].name != "scf.for" or tag_of(loops[0]) != self.sums or len(loops[0].results) != 1:
            return None
        sums, store = loops[0], loops[0].next
        before = [op for op in _before(sums) if not is_pure(op) or op.regions]
        if before or store is None or store.name != "vector.store" or list(sums.results[0].users) != [store]:
            return None
        (access,) = accesses(store)
        memory = memory_of(access.buffer)
        type_ = sums.results[0].type
        if store.operand_uses[0].value is not sums.results[0] or memory.kind != "alloc" or "valid" in store.definition.operand_names(store):
            return None
        if not isinstance(type_, VectorType) or _type(access).dtype != type_.dtype:
            return None
        inside = all_accesses(body(sums))
        return sums if not any(a.writes or alias(a.memory, memory) != "never" for a in inside) else None

    def _steps(self, sums: list[Operation]) -> tuple[Dim, int] | None:
        """The number of all steps and of those of a block; None where one block is enough, or loops differ."""
        bounds = [single_range(s) for s in sums]
        first = bounds[0]
        if first is None or first.start != 0 or first.step != 1 or any(b != first for b in bounds):
            return None
        steps, lines = extent(first), _line_bytes(sums[0])
        if not lines:
            return None
        if not isinstance(steps, int):
            size = max(1, self.bytes // lines)
            return (steps, size) if is_at_least(sums[0], steps, size + 1) else None
        if steps * lines <= self.bytes:
            return None
        count = -(-steps * lines // self.bytes)
        return steps, -(-steps // count)

    def _block(self, panels: Operation, steps: Dim, size: int) -> None:
        assert panels.block is not None
        last = size * floordiv(steps - 1, size)
        first = clone_before(panels, panels, panels.block)
        first.trivia, panels.trivia = panels.trivia, None
        self._piece(first, RangeArg(0, size, 1), begins=True, ends=False)
        if not isinstance(last, int) or last > size:
            builder = Builder(panels.block, panels, loc=panels.loc)
            blocks = create_loop(builder, "scf.for", RangeArg(size, last, size), name=f"{self.sums}b", tag=BLOCK)
            at: Dim = value_symbol(variable(blocks))
            middle = clone_before(panels, None, body(blocks))
            end_loop(blocks)
            self._piece(middle, RangeArg(at, at + size, 1), begins=False, ends=False)
        self._piece(panels, RangeArg(last, steps, 1), begins=False, ends=True)

    def _piece(self, panels: Operation, steps: RangeArg, *, begins: bool, ends: bool) -> None:
        """Makes a copy of the loop over panels one block of the sums."""
        for rows in [op for op in body(panels) if is_loop(op)]:
            sums = next(op for op in body(rows) if is_loop(op))
            store = sums.next
            assert store is not None
            set_range(sums, steps)
            if not begins:
                (access,) = accesses(store)
                graph = sums.graph
                assert graph is not None
                operands, layout = number_layout([access], graph)
                attributes: Any = {LAYOUT: layout}
                types = (sums.results[0].type,)
                name = f"{sums.results[0].name}.before"
                builder = Builder(body(rows), sums, loc=store.loc)
                load = builder.create(REGISTRY["vector.load"], operands, attributes, result_types=types, name=name)
                set_initial_values(sums, [load.result])
            if not ends:
                while store.next is not None and not store.next.definition.is_terminator:
                    behind = [op for op in body(rows) if not op.definition.is_terminator][-1]
                    behind.erase()


def _before(op: Operation) -> list[Operation]:
    assert op.block is not None
    everything = list(op.block)
    return everything[: everything.index(op)]


def _is_worth_it(sums: Operation) -> bool:
    """Whether enough tiles of rows, or an unknown number, read a panel."""
    rows, step = _rows(sums)
    return step is not None and (not isinstance(rows, int) or rows >= _ROUNDS * step)


def _rows(sums: Operation) -> tuple[Dim, int | None]:
    """The rows of a product, as far as whole tiles have them, and those of a tile; None where they are not known."""
    rows = parent_loop(sums)
    bounds = single_range(rows) if rows is not None else None
    return (extent(bounds), bounds.step) if bounds is not None and isinstance(bounds.step, int) else (0, None)


def _make_versions(panels: Operation, sums: Operation) -> None:
    """A version without blocks for few rows, if nobody knows how many there are and no version is for many already."""
    rows, step = _rows(sums)
    if step is not None and not isinstance(rows, int) and parent(panels) is None:
        two_versions(panels, [(rows, _ROUNDS * step)])


def _lines(sums: Operation) -> Iterator[tuple[Operation, int]]:
    """The loads of lines of panels in a step, and how many numbers they have."""
    for op in body(sums):
        if op.name == "vector.load":
            (access,) = accesses(op)
            *outer, last = access.indices
            lines = len(outer) > 1 and depends_on(outer[-1].expr, [variable(sums)])
            if lines and last.size is not None and last.size > 1 and not depends_on(last.expr, [variable(sums)]):
                yield op, last.size


def _line_bytes(sums: Operation) -> int:
    """The bytes of the line of a panel that a step reads, widened if it is; 0 where a step reads none."""
    return sum(size * _element(_number(load).type).itemsize for load, size in _lines(sums))


def _number(load: Operation) -> Value:
    """What a step computes with of what it loads."""
    value = load.results[0]
    while len(value.users) == 1 and value.users[0].name in ("vector.reshape", "arith.extf"):
        value = value.users[0].results[0]
    return value


def _element(type_: Type | None) -> DType:
    assert isinstance(type_, VectorType)
    return type_.dtype


def _type(access: Access) -> MemRefType:
    assert isinstance(access.buffer.type, MemRefType)
    return access.buffer.type
