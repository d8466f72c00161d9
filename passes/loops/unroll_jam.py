"""Pass ``unroll-jam``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Block, Graph, Module, Operation, Region, Value
from ir.dims import Dim, substitute
from ir.layout import LAYOUT, ExpressionArg, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure, walk_graphs
from ir.types import ScalarType, Type, VectorType, index
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    body,
    change_form,
    clone_before,
    create_loop,
    depends_on,
    end_loop,
    extent,
    initial_values,
    is_loop,
    loops_tagged,
    number_layout,
    plain_uses,
    ranges,
    read_layout,
    remainder,
    set_range,
    tag_of,
    upper_bound,
    value_symbol,
    variable,
    write_layout,
)
from passes.loops._memory import Access, accesses_of, alias, all_accesses, has_other_effect

Copies = list[dict[Value, Value]]
"""What stands for the values of the loop's body in each of its rounds that become one."""


@dataclass(frozen=True)
class UnrollJam(Pass):
    """Does several rounds of a parallel loop at once, operation by operation.

    Before::

        scf.parallel(%i = 0 to 128, tag="row") {
          %s = scf.for(%k = 0 to N step 16, %acc = %zero, tag="reduce") {
            %a = vector.load(%A[%i, %k:+16]) : vector<f32[16]>
            %t = arith.addf(%acc, %a) : vector<f32[16]>
            yield %t
          } : vector<f32[16]>
          vector.store(%s, %C[%i, 0:+16])
          yield
        }

    After ``unroll-jam{by=2}``::

        scf.parallel(%i = 0 to 128 step 2, tag="row") {
          %s, %s.1 = scf.for(%k = 0 to N step 16, %acc = %zero, %acc.1 = %zero, tag="reduce") {
            %a = vector.load(%A[%i, %k:+16]) : vector<f32[16]>
            %a.1 = vector.load(%A[%i+1, %k:+16]) : vector<f32[16]>
            %t = arith.addf(%acc, %a) : vector<f32[16]>
            %t.1 = arith.addf(%acc.1, %a.1) : vector<f32[16]>
            yield %t, %t.1
          } : vector<f32[16]>, vector<f32[16]>
          vector.store(%s, %C[%i, 0:+16])
          vector.store(%s.1, %C[%i+1, 0:+16])
          yield
        }

    A sum waits for itself at every step; sums of several rows don't wait for each other.  What is the same in all rounds is
    computed, and loaded, once.  Rounds that are left over keep a loop of their own behind.

    It is done for the innermost loops with tag ``loop``, of ``by`` rounds or more, in which a loop carries something, where nothing else has an
    effect and loops inside run through the same range in every round; for as many rounds, at most ``by``, as read no more than
    ``bytes`` together, and as have sums that registers hold: a block of a product, say one of many, fills them alone.

    The rounds of an ``scf.parallel`` don't depend on each other, so the bits stay.
    """

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    loop: str = "row"
    """tag of the loops"""
    by: int = 4
    """how many rounds at once, at most"""
    bytes: int = 32768
    """what they may read of their own, often more than once: as much as the nearest cache holds"""
    carried: int = 1536
    """bytes that a loop inside may carry in all of them: what registers hold beside what sums are made of"""

    def __post_init__(self) -> None:
        if self.by < 2:
            raise ValueError("by: expected 2 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            for op in loops_tagged(graph, self.loop):
                count = self._count(op)
                if count > 1:
                    _Jam(graph, op, count).run()
                    context.count("loops with rounds at once")
                    changed = True
        return changed

    def _count(self, loop: Operation) -> int:
        """How many rounds of a loop are done at once; 1 for a loop that stays."""
        bounds = ranges(loop)
        if loop.name != "scf.parallel" or len(bounds) != 1 or bounds[0].step != 1 or not _can_jam(loop):
            return 1
        most = upper_bound(extent(bounds[0]))
        if most is not None and most < self.by:
            return 1  # what is left over of another loop, or nearly nothing
        count, read = self.by, bytes_of_a_round(loop)
        carried = _carried_bytes(loop)
        while count > 1 and (count * read > self.bytes or count * carried > self.carried):
            count //= 2
        return count


def _can_jam(loop: Operation) -> bool:
    inside = [op for op in loop.walk() if op is not loop]
    if has_other_effect(loop) or not any(op.name == "scf.for" and op.results for op in inside):
        return False
    varying = _varying(loop)
    for op in inside:
        if op.name == "memref.alloc" or (op.regions and not is_loop(op) and op.name != "scf.if"):
            return False
        if is_loop(op) and tag_of(op) == tag_of(loop):
            return False
        if is_loop(op) and (len(ranges(op)) != 1 or any(depends_on(d, varying) for r in ranges(op) for d in (r.start, r.stop))):
            return False
        if op.name == "scf.if" and not varying.isdisjoint(op.operands):
            return False
    return True


def _varying(loop: Operation) -> set[Value]:
    """Values inside that may differ between rounds."""
    varying = {variable(loop)}
    written = _written(loop)
    for op in loop.walk():
        if op is loop or op.definition.is_terminator:
            continue
        if op.regions:
            varying.update(op.results)
            for region in op.regions:
                varying.update(region.block.arguments[len(ranges(op)) if is_loop(op) else 0 :])
        elif not _can_share(op, written) or not varying.isdisjoint(op.operands):
            varying.update(op.results)
    return varying


def _written(loop: Operation) -> list[Access]:
    return [a for a in all_accesses([loop]) if a.writes]


def _can_share(op: Operation, written: Sequence[Access]) -> bool:
    """Whether an operation gives the same whenever it has the same operands."""
    if is_pure(op):
        return True
    if op.name not in ("memref.load", "vector.load"):
        return op.name == "memref.prefetch"
    return all(alias(a.memory, w.memory) == "never" for a in accesses_of(op) for w in written)


def _carried_bytes(loop: Operation) -> int:
    """The most that a loop inside carries from round to round."""
    return max((sum(_bytes(r.type) for r in op.results) for op in loop.walk() if op is not loop and is_loop(op)), default=0)


def _bytes(type_: Type) -> int:
    assert isinstance(type_, VectorType | ScalarType)
    return type_.dtype.itemsize * math.prod(type_.shape if isinstance(type_, VectorType) else ())


def bytes_of_a_round(loop: Operation) -> int:
    """How many bytes a round reads of buffers that it has a part of its own in, as far as that is known.

    What it only writes need not stay near.
    """
    parts: dict[Value, int] = {}
    for access in all_accesses([loop]):
        at = next((n for n, d in enumerate(access.indices or ()) if depends_on(d, [variable(loop)])), None)
        if at is not None and not access.writes:
            rest = access.type.shape[at + 1 :]
            parts[access.buffer] = math.prod(d for d in rest if isinstance(d, int)) * access.type.dtype.bits // 8
    return sum(parts.values())


class _Jam:
    """One loop, of which ``count`` rounds become one."""

    def __init__(self, graph: Graph, loop: Operation, count: int) -> None:
        self.graph, self.loop, self.count = graph, loop, count
        self.written = _written(loop)
        self.places: list[Dim | None] = []

    def run(self) -> None:
        """Puts a loop over groups of rounds in front of the loop, which keeps what is left over, if anything."""
        loop, block = self.loop, self.loop.block
        assert block is not None
        (bounds,) = ranges(loop)
        rest = remainder(extent(bounds), self.count)
        builder = Builder(block, loop, loc=loop.loc)
        groups = create_loop(builder, loop.name, RangeArg(bounds.start, bounds.stop - rest, self.count), name=variable(loop).name, tag=tag_of(loop))
        groups.trivia, loop.trivia = loop.trivia, None
        with Builder(body(groups), loc=loop.loc) as inside:
            self._block(body(loop), inside, self._rounds(groups, inside))
        end_loop(groups)
        if rest == 0:
            loop.erase()
        else:
            set_range(loop, RangeArg(bounds.stop - rest, bounds.stop, 1))

    def _rounds(self, groups: Operation, builder: Builder) -> Copies:
        """The variable of every round: an expression in accesses, a value where something computes with it."""
        old, first = variable(self.loop), variable(groups)
        places = [value_symbol(first) + n for n in range(self.count)]
        if not plain_uses(old):
            self.places = list(places)
            return [{old: first} for _ in places]
        self.places = [None for _ in places]
        copies: Copies = [{old: first}]
        for place in places[1:]:
            operands, layout = number_layout([ExpressionArg(place)], self.graph)
            attributes: Any = {LAYOUT: layout}
            new = builder.create(REGISTRY["affine.apply"], operands, attributes, result_types=[ScalarType(index)], name=old.name)
            copies.append({old: new.result})
        return copies

    def _block(self, block: Block, builder: Builder, copies: Copies) -> list[Value]:
        """Copies of the operations of a block, of one operation for all rounds after the other; returns what they yield."""
        for op in block:
            if op.definition.is_terminator:
                return [c.get(v, v) for c in copies for v in op.operands]
            if op.regions:
                self._nest(op, builder, copies)
            else:
                self._copy(op, builder, copies)
        return []

    def _copy(self, op: Operation, builder: Builder, copies: Copies) -> None:
        old = variable(self.loop)
        same = old not in op.operands and all(c.get(v, v) is copies[0].get(v, v) for c in copies[1:] for v in op.operands)
        shared = same and _can_share(op, self.written)
        for n, copy in enumerate(copies):
            if n and shared:
                copy.update((r, copies[0][r]) for r in op.results)
                continue
            new = clone_before(op, None, builder.block, copy)
            place = self.places[n]
            if n and place is not None and old in op.operands:
                moved = {f"%{copy[old].name}": place}
                write_layout(new, [change_form(f, partial(substitute, bindings=moved)) for f in read_layout(new)])

    def _nest(self, op: Operation, builder: Builder, copies: Copies) -> None:
        """One loop, or choice, for those of all rounds; values of the first round stand for those that are the same in all."""
        new = self._loop(op, builder, copies) if is_loop(op) else self._choice(op, builder, copies)
        count = len(op.results)
        for n, copy in enumerate(copies):
            copy.update(zip(op.results, new.results[n * count : (n + 1) * count], strict=True))

    def _loop(self, op: Operation, builder: Builder, copies: Copies) -> Operation:
        (bounds,) = ranges(op)
        names = {f"%{v.name}": value_symbol(copies[0][v]) for v in op.operands if v in copies[0]}
        start, stop = (substitute(d, names) if names else d for d in (bounds.start, bounds.stop))
        initial = [c.get(v, v) for c in copies for v in initial_values(op)]
        new = create_loop(
            builder, op.name, RangeArg(start, stop, bounds.step), name=variable(op).name, tag=tag_of(op), initial=initial, like=op
        )
        first, *carried = body(op).arguments
        for n, copy in enumerate(copies):
            copy[first] = variable(new)
            copy.update(zip(carried, body(new).arguments[1 + n * len(carried) :], strict=False))
        with Builder(body(new), loc=op.loc) as inside:
            yielded = self._block(body(op), inside, copies)
        end_loop(new, yielded)
        return new

    def _choice(self, op: Operation, builder: Builder, copies: Copies) -> Operation:
        types = [r.type for r in op.results] * self.count
        regions = [Region() for _ in op.regions]
        condition = op.operands[0]
        name = op.results[0].name if op.results else None
        new = builder.create(
            op.definition, [copies[0].get(condition, condition)], op.attributes, regions=regions, result_types=types, name=name
        )
        for old, region in zip(op.regions, new.regions, strict=True):
            with Builder(region.block, loc=op.loc) as inside:
                inside.create(yield_, self._block(old.block, inside, copies))
        return new
