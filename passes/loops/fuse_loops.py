"""Pass ``fuse-loops``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core import Block, Module, Operation, Value
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.loops._dependence import conflicts, variables_of
from passes.loops._loops import Bind, body, initial_values, is_loop, move_into, ranges, read_layout, tag_of, write_layout
from passes.loops._memory import all_accesses, has_other_effect, is_movable


@dataclass(frozen=True)
class FuseLoops(Pass):
    """Makes one loop of neighbours that run through the same range.

    Before::

        scf.parallel(%i = 0 to M, tag="row") {
          memref.store(%x, %T[%i])
          yield
        }
        scf.parallel(%p = 0 to M, tag="row") {
          %t = memref.load(%T[%p]) : f32
          memref.store(%t, %C[%p])
          yield
        }

    After ``fuse-loops{loop=row}``::

        scf.parallel(%i = 0 to M, tag="row") {
          memref.store(%x, %T[%i])
          %t = memref.load(%T[%i]) : f32
          memref.store(%t, %C[%i])
          yield
        }

    Two loops with tags among ``loop`` and equal bounds are fused when only operations without effect (and new buffers)
    stand between them, which move in front, and the second one uses no result of the first.  No dependence may be
    broken: two accesses may mean the same memory in the same round only; in serial loops also in a later round of the
    second one.  Serial loops carry the values of both afterwards; a serial and a parallel loop with one range become a
    serial one, with its tag.  Otherwise the first one's tag stays.

    Loops inside are fused after those around them; the statistics tell why neighbours stay apart.
    """

    loop: tuple[str, ...] = ("row",)
    """tags of the loops that may become one"""
    inside: str = ""
    """tag of a loop that they have to stand in; empty for any place"""

    keeps_types: ClassVar[bool] = True

    def is_local(self) -> bool:
        """Whether the loops to be fused stand inside of nests."""
        return bool(self.inside)

    def run(self, module: Module, context: PassContext) -> bool:
        fused = 0
        for graph in walk_graphs(module):
            fused += self._fuse(graph.block, context, not self.inside)
        context.count("loops fused", fused)
        return fused > 0

    def _fuse(self, block: Block, context: PassContext, here: bool) -> int:
        count = 0
        op = block.first if here else None
        while op is not None:
            other = self._neighbour(op)
            reason = _obstacle(op, other) if other is not None else ""
            if other is not None and reason is None:
                _merge(op, other)
                count += 1
                continue
            if reason:
                context.count(f"loops not fused: {reason}")
            op = op.next
        for op in block:
            inside = here or (is_loop(op) and tag_of(op) == self.inside)
            count += sum(self._fuse(inner, context, inside) for region in op.regions for inner in region.blocks)
        return count

    def _neighbour(self, loop: Operation) -> Operation | None:
        """The next loop behind one to be fused, when it is one as well."""
        if not is_loop(loop) or tag_of(loop) not in self.loop:
            return None
        other = loop.next
        while other is not None and not is_loop(other):
            other = other.next
        return other if other is not None and tag_of(other) in self.loop else None


def _obstacle(first: Operation, second: Operation) -> str | None:
    """Why two neighbours may not be fused."""
    assert first.block is not None
    if ranges(first) != ranges(second):
        return "their ranges differ"
    mixed = first.name != second.name
    if first.attributes.get("mapping") != second.attributes.get("mapping") or (mixed and len(ranges(first)) > 1):
        return "their kinds differ"
    results = set(first.results)
    for op in _between(first, second):
        if not is_movable(op) or op.definition.traps:
            return "something stands between them"
        if not results.isdisjoint(op.operands):
            return "the second one needs the result of the first"
    if any(not results.isdisjoint(op.operands) for op in second.walk()):
        return "the second one needs the result of the first"
    if has_other_effect(first) and has_other_effect(second):
        return "the order of effects would change"
    pairs = list(zip(variables_of(first), variables_of(second), strict=True))
    broken = {"<", ">"} if first.name == second.name == "scf.parallel" else {">"}
    for directions in conflicts(all_accesses([first]), all_accesses([second]), pairs, first.block):
        if broken.intersection(directions):
            return "a dependence would be broken"
    return None


def _between(first: Operation, second: Operation) -> list[Operation]:
    found = []
    op = first.next
    while op is not None and op is not second:
        found.append(op)
        op = op.next
    return found


def _merge(first: Operation, second: Operation) -> None:
    """Moves the second loop's body into the first one, which carries the values of both."""
    block, target, source = first.block, body(first), body(second)
    assert block is not None
    for op in _between(first, second):
        move_into(op, block, first)
    for old, new in zip(variables_of(second), variables_of(first), strict=True):
        old.replace_all_uses_with(new)
    if first.name != second.name and second.name == "scf.for":
        first.definition = second.definition
        first.attributes = {**first.attributes, "tag": tag_of(second)}
    carried = _carry_more(first, second)
    yielded = source.terminator
    assert yielded is not None and target.terminator is not None
    moved = [op for op in source if op is not yielded]
    for op in moved:
        move_into(op, target, target.terminator)
    target.terminator.set_operands([*target.terminator.operands, *yielded.operands])
    if moved and moved[0].trivia is None:
        moved[0].trivia, second.trivia = second.trivia, None
    _take_over(second, carried)


def _carry_more(first: Operation, second: Operation) -> list[tuple[Value, Value]]:
    """Makes a loop carry what another one carries, too; returns the values that take the place of the other's."""
    block, following = first.block, first.next
    assert block is not None
    initial = initial_values(second)
    if not initial:
        return []
    write_layout(first, [*read_layout(first), *map(Bind, initial)])
    replaced: list[tuple[Value, Value]] = []
    for old in body(second).arguments[1:]:
        replaced.append((old, body(first).add_argument(old.name, old.type)))
    first.remove()
    count = len(first.results)
    added = [Value(r.name, r.type, first, count + i) for i, r in enumerate(second.results)]
    first.results = (*first.results, *added)
    block.insert_before(following, first)
    replaced += zip(second.results, added, strict=True)
    for old, new in replaced:
        old.replace_all_uses_with(new)
    return replaced


def _take_over(second: Operation, replaced: list[tuple[Value, Value]]) -> None:
    """Removes the second loop; what stands for its values gets their names."""
    graph = second.graph
    assert graph is not None
    names = [(new, old.name, old.auto_named) for old, new in replaced]
    second.erase()
    for new, name, derived in names:
        graph.rename(new, name)
        new.auto_named = derived
