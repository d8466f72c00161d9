"""Pass ``merge-launches``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ir.builder import Builder
from ir.core import Block, Module, Operation, Value
from ir.dims import Dim
from ir.rewriter import is_pure, move_before
from passes.gpu._kernels import launch, less, value_of, when
from passes.gpu._nests import device_graphs, hand_over, host_blocks
from passes.infra.base import Pass, PassContext
from passes.loops._blocks import active
from passes.loops._loops import body, extent, move_into, ranges
from passes.loops._memory import alias, all_accesses

_FOR_HOST = ("memref.alloc", "memref.from_tensor", "memref.of_inout", "memref.view", "memref.reshape", "memref.dim")


@dataclass(frozen=True)
class MergeLaunches(Pass):
    """Makes one launch of neighbours that have nothing to do with each other, so that they run side by side and are waited for once.

    Before::

        gpu.launch(%x = 0 to A, threads=256, name="q") {
          ...
        }
        gpu.launch(%y = 0 to B, threads=256, name="k") {
          ...
        }

    After::

        gpu.launch(%part = 0 to A+B, threads=256, name="q.k", tag="merged") {
          %bound = affine.apply(A) : index
          %is_first = arith.cmpi(%part, %bound, predicate="lt") : bool
          scf.if(%is_first) {
            %x = affine.apply(%part) : index
            ...
          } {
            %y = affine.apply(%part-A) : index
            ...
          }
        }

    Merged are launches along one axis with equally many threads (see ``tags``), without shared memory, barriers and checks, none of which
    writes what another one reads or writes.  All threads of a block take the same branch.  Names, sizes and scalars between them go in front.
    """

    keeps_types: ClassVar[bool] = True

    tags: tuple[str, ...] = ("elements", "rope")
    """the kinds of kernels that are merged"""
    most: int = 4
    """launches that become one, at most"""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError("most: expected 1 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in device_graphs(module):
            for block in list(host_blocks(graph.block)):
                for group in self._groups(block):
                    _merge(group)
                    context.count("launches merged", len(group))
                    changed = True
        return changed

    def _groups(self, block: Block) -> list[list[Operation]]:
        """Launches that follow each other and can run together."""
        found: list[list[Operation]] = []
        group: list[Operation] = []
        for op in block:
            if op.name == "gpu.launch" and self._is_simple(op):
                if group and not (len(group) < self.most and _fits(group, op)):
                    found.append(group)
                    group = []
                group.append(op)
            elif group and not _is_for_host(op):
                found.append(group)
                group = []
        return [g for g in [*found, group] if len(g) > 1]

    def _is_simple(self, op: Operation) -> bool:
        """Whether threads of a launch work on their own."""
        if op.attribute("tag") not in self.tags or op.attribute("min_blocks") or len(ranges(op)) != 1:
            return False
        inside = [n for n in op.walk() if n is not op]
        gpu = [n for n in inside if n.definition.dialect == "gpu" and n.name != "gpu.thread_id"]
        local = all(n.name == "gpu.alloc" and getattr(n.results[0].type, "space", "") == "local" for n in gpu)
        return local and not any(n.name == "cf.assert" for n in inside)


def _is_for_host(op: Operation) -> bool:
    """Whether an operation computes a name, a size or a number: it may as well stand in front of launches."""
    return not op.regions and not op.definition.is_terminator and (op.name in _FOR_HOST or is_pure(op))


def _fits(group: Sequence[Operation], op: Operation) -> bool:
    """Whether a launch may run beside others."""
    if op.attribute("threads") != group[0].attribute("threads"):
        return False
    first, second = ([a for a in all_accesses(ops) if a.type.space != "local"] for ops in (group, [op]))
    return not any((a.writes or b.writes) and alias(a.memory, b.memory) != "never" for a in first for b in second)


def _merge(group: Sequence[Operation]) -> None:
    """Puts launches into one, where the last one stands."""
    first, last = group[0], group[-1]
    block = first.block
    assert block is not None
    for op in _between(first, last):
        if op not in group:
            move_before(op, first, block)
    counts = [extent(ranges(op)[0]) for op in group]
    total: Dim = 0
    for count in counts:
        total = total + count
    threads = first.attribute("threads")
    assert isinstance(threads, int)
    names = [str(op.attribute("name") or "") for op in group]
    with Builder(block, last.next, loc=first.loc):
        made = launch([("part", total)], threads, lambda part: _branches(group, counts, part), name=".".join(filter(None, names)), tag="merged")
    for op in group:
        hand_over(op, made) if op.trivia is not None else None
        op.erase()


def _branches(group: Sequence[Operation], counts: Sequence[Dim], part: Dim) -> None:
    """Each body for the blocks that were its own; ``part`` counts from the first one."""
    if len(group) == 1:
        _body(group[0], part)
        return
    rest = part - counts[0]
    when(less(part, counts[0], "is_first"), lambda: _body(group[0], part), lambda: _branches(group[1:], counts[1:], rest))


def _body(op: Operation, part: Dim) -> None:
    block = body(op)
    variable: Value = block.arguments[0]
    variable.replace_all_uses_with(value_of(part, variable.name))
    for inner in list(block):
        if not inner.definition.is_terminator:
            move_into(inner, active().block)


def _between(first: Operation, last: Operation) -> list[Operation]:
    found, at = [], first.next
    while at is not None and at is not last:
        found.append(at)
        at = at.next
    return found
