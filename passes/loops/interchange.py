"""Pass ``interchange``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core import Module, Operation
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.loops._dependence import Direction, conflicts, variables_of
from passes.loops._loops import body, depends_on, inner_loop, is_loop, loops_tagged, ranges, tag_of
from passes.loops._memory import all_accesses, has_other_effect


@dataclass(frozen=True)
class Interchange(Pass):
    """Swaps two loops of a perfect nest.

    Before::

        scf.parallel(%i = 0 to M, tag="m") {
          scf.parallel(%jt = 0 to N step 48, tag="n.tile") {
            memref.store(%x, %C[%i, %jt])
            yield
          }
          yield
        }

    After ``interchange{outer=m, inner=n.tile}``::

        scf.parallel(%jt = 0 to N step 48, tag="n.tile") {
          scf.parallel(%i = 0 to M, tag="m") {
            memref.store(%x, %C[%i, %jt])
            yield
          }
          yield
        }

    The loop with tag ``inner`` stands in the one with tag ``outer``, directly or with other loops in between, and each of
    them holds nothing but the next one.  The two change places when all of these hold; the statistics tell why not:

    - no bounds depend on a variable that would no longer be outside of them (the loop inside a tile stays inside);
    - none carries values, whose order counts;
    - no dependence changes its direction, and none comes to be between rounds of a parallel loop.  Rounds of a parallel
      loop don't depend on each other, so that parallel loops may always change places.
    """

    outer: str = "m"
    inner: str = "n.tile"

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        swapped = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.outer):
                nest = self._nest(loop) if tag_of(loop) == self.outer else None  # an earlier swap may have changed it
                if nest is None:
                    continue
                reason = obstacle(nest)
                if reason is None:
                    swap_loops(nest[0], nest[-1])
                    swapped += 1
                else:
                    context.count(f"loops not swapped: {reason}")
        context.count("loops swapped", swapped)
        return swapped > 0

    def _nest(self, outer: Operation) -> list[Operation] | None:
        """The loops from the outer one to the inner one; None when there is no such inner loop."""
        nest = [outer]
        while (loop := inner_loop(nest[-1])) is not None:
            nest.append(loop)
            if tag_of(loop) == self.inner:
                return nest
        return nest[:1] if any(is_loop(op) and tag_of(op) == self.inner for op in outer.walk() if op is not outer) else None


def obstacle(nest: list[Operation]) -> str | None:
    """Why the first and the last loop may not change places."""
    if len(nest) == 1:
        return "the nest is not perfect"
    if any(loop.results for loop in nest):
        return "values are carried"
    order = [nest[-1], *nest[1:-1], nest[0]]
    for position, loop in enumerate(order):
        inside = [v for inner in order[position:] for v in body(inner).arguments]
        if any(depends_on(bound, inside) for r in ranges(loop) for bound in (r.start, r.stop, r.step)):
            return "bounds depend on the other loop"
    if all(loop.name == "scf.parallel" for loop in nest):
        return None
    if has_other_effect(nest[0]):
        return "the order of effects would change"
    assert nest[0].block is not None
    variables = [v for loop in nest for v in variables_of(loop)]
    counts = [len(variables_of(loop)) for loop in nest]
    accesses = all_accesses(body(nest[-1]))
    for direction in conflicts(accesses, accesses, [(v, v) for v in variables], nest[0].block):
        if not _stays(direction, nest, counts):
            return "a dependence would change its direction"
    return None


def _stays(direction: tuple[Direction, ...], nest: list[Operation], counts: list[int]) -> bool:
    """Whether two accesses, with rounds in these directions, run in the same order after the loops have changed places."""
    parts: list[tuple[Direction, ...]] = []
    for count in counts:
        parts.append(direction[sum(map(len, parts)) : sum(map(len, parts)) + count])
    before = _first(parts, nest)
    after = _first([parts[-1], *parts[1:-1], parts[0]], [nest[-1], *nest[1:-1], nest[0]])
    if before is None or before == "any":  # one round, or rounds of a parallel loop, which do not meet
        return True
    return before == after


def _first(parts: list[tuple[Direction, ...]], loops: list[Operation]) -> str | None:
    """Which of two rounds comes first; None for the same, "any" where a parallel loop leaves it open."""
    for part, loop in zip(parts, loops, strict=True):
        if any(d != "=" for d in part):
            return "any" if loop.name == "scf.parallel" else part[0]
    return None


def swap_loops(outer: Operation, inner: Operation) -> None:
    """Gives each of two loops what makes the other one: kind, bounds, variables, attributes."""
    operands = outer.operands, inner.operands
    outer.set_operands(operands[1])
    inner.set_operands(operands[0])
    outer.definition, inner.definition = inner.definition, outer.definition
    outer.attributes, inner.attributes = inner.attributes, outer.attributes
    outer.loc, inner.loc = inner.loc, outer.loc
    first, second = body(outer), body(inner)
    first.arguments, second.arguments = second.arguments, first.arguments
    for block in (first, second):
        for argument in block.arguments:
            argument.owner = block
