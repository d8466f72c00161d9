"""Pass ``schedule``."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dialects.graph.constant import constant, initial, weight
from dialects.graph.effects import assert_
from dialects.graph.indexing import flip, slice_, split
from dialects.graph.shape import expand, flatten, reshape, squeeze, transpose, unsqueeze
from ir.core import Block, Graph, Module, Operation, Value
from ir.diagnostics import GraphError
from ir.dims import substitute
from ir.inputs import choose_sizes
from ir.rewriter import move_before
from ir.types import TensorType
from ir.updates import updated_operands
from passes.infra.base import Pass, PassContext

_KEPT = (constant, weight, initial)
"""Their data is there before the program runs, wherever they stand."""
_VIEWS = (reshape, flatten, squeeze, unsqueeze, transpose, expand, slice_, flip, split)
"""Their results may turn out to be the memory of the operand."""


@dataclass(frozen=True)
class Schedule(Pass):
    """Orders operations so that less memory is in use at a time.

    Before (both exponentials are alive together)::

        %a = exp(%x) : f32[1024, 1024]
        %b = exp(%y) : f32[1024, 1024]
        %s = sum(%a, axes=[1]) : f32[1024]
        %t = sum(%b, axes=[1]) : f32[1024]

    After::

        %a = exp(%x) : f32[1024, 1024]
        %s = sum(%a, axes=[1]) : f32[1024]
        %b = exp(%y) : f32[1024, 1024]
        %t = sum(%b, axes=[1]) : f32[1024]

    List scheduling: of the operations whose operands are there, the one comes next that allocates least beyond what it
    frees; of equal ones the one that came first before.  Parameters, weights and constants cost nothing, as they exist
    anyway, and neither does an update in place.  An order is taken only if its estimated peak is below that of the
    present one, and this is repeated until none is, so a second run finds nothing.  Symbolic dimensions get example
    sizes that keep the ``where`` clause.  ``--statistics`` shows both peaks.  A graph with unknown types stays as it is.

    Effects (print, assert, cache updates, calls) keep their order among each other, what may fail stays behind an
    assert in front of it, and an update in place stays behind the reads of the older version.  Operations inside of
    regions are not moved.
    """

    order: Literal["memory", "source"] = "memory"
    """memory: what needs little of it; source: as written"""

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in module.graphs.values() if self.order == "memory" else ():
            sizes = _Sizes.of(graph, module)
            if sizes is None:
                continue
            before = list(graph.block)[:-1]
            first_peak = peak = _peak(before, graph.results, sizes)
            best = before
            while True:
                candidate = _Scheduler(best, graph.results, module, sizes).run()
                found = _peak(candidate, graph.results, sizes)
                if found >= peak:
                    break
                best, peak = candidate, found
            context.count("bytes at the peak before", first_peak)
            context.count("bytes at the peak after", peak)
            if best is not before:
                _reorder(graph.block, best)
                changed = True
        return changed


def _reorder(block: Block, order: Sequence[Operation]) -> None:
    for op in order:
        move_before(op, block.terminator, block)


# -- how much memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sizes:
    """Bytes of the values that a graph allocates."""

    bytes: Mapping[Value, int]

    @staticmethod
    def of(graph: Graph, module: Module) -> _Sizes | None:
        """None when a type is unknown, or no sizes fit the ``where`` clause."""
        try:
            names = choose_sizes(graph)
        except GraphError:
            return None
        found: dict[Value, int] = {}
        for op in graph.block:
            for result in op.results:
                size = _bytes(result, names)
                if size is None:
                    return None
                found[result] = 0 if op.definition in _KEPT else size
            found.update((version, 0) for _, version in updated_operands(op, module))
        return _Sizes(found)


def _bytes(value: Value, names: Mapping[str, int]) -> int | None:
    if not isinstance(value.type, TensorType):
        return None
    size = substitute(value.type.nbytes, names)
    return size if isinstance(size, int) else None


def _uses(op: Operation) -> dict[Value, None]:
    """The values that an operation needs, those used inside its regions included."""
    if not op.regions:
        return dict.fromkeys(op.operands)
    return {v: None for nested in op.walk() for v in nested.operands}


def _peak(order: Sequence[Operation], returned: Sequence[Value], sizes: _Sizes) -> int:
    """Bytes in use where most are: operands and results of an operation exist together."""
    uses = [_uses(op) for op in order]
    last: dict[Value, int] = {}
    for i, values in enumerate(uses):
        last.update(dict.fromkeys(values, i))
    last.update(dict.fromkeys(returned, len(order)))
    live = peak = 0
    for i, op in enumerate(order):
        live += sum(sizes.bytes[r] for r in op.results)
        peak = max(peak, live)
        ended = [v for v in uses[i] if last[v] == i] + [r for r in op.results if r not in last]
        live -= sum(sizes.bytes.get(v, 0) for v in ended)
    return peak


# -- which order -------------------------------------------------------------------------------------------------------


class _Scheduler:
    """One pass of list scheduling over the operations of a block, given in their present order.

    Operations are known by their number in that order.
    """

    def __init__(self, order: Sequence[Operation], returned: Sequence[Value], module: Module, sizes: _Sizes) -> None:
        self.order = order
        self.sizes = sizes
        self.returned = set(returned)
        self.uses = [_uses(op) for op in order]
        self.users: dict[Value, dict[int, None]] = {}  # that still have to come
        for i, values in enumerate(self.uses):
            for value in values:
                self.users.setdefault(value, {})[i] = None
        self.kept = [i for i, op in enumerate(order) if op.definition in _KEPT]
        self.kept_operands: list[list[int]] = [[] for _ in order]
        self.before: list[dict[int, None]] = [{} for _ in order]  # what has to come first; what is kept is there anyway
        self._keep_definitions()
        self._keep_effects(module)
        self.after: list[list[int]] = [[] for _ in order]
        for i, needed in enumerate(self.before):
            for j in needed:
                self.after[j].append(i)
        self.waiting = [len(b) for b in self.before]
        self.ready: list[tuple[int, int]] = []

    # -- what has to come first ------------------------------------------------------------------------------------

    def _keep_definitions(self) -> None:
        position = {op: i for i, op in enumerate(self.order)}
        for i, values in enumerate(self.uses):
            for value in values:
                op = value.defining_op
                if op is not None and op in position:
                    needed = position[op]
                    if op.definition in _KEPT:
                        self.kept_operands[i].append(needed)
                    else:
                        self.before[i][needed] = None

    def _keep_effects(self, module: Module) -> None:
        effect = guard = None
        for i, op in enumerate(self.order):
            nested = list(op.walk()) if op.regions else [op]
            if any(not n.definition.pure and not n.definition.is_terminator for n in nested):
                if effect is not None:
                    self.before[i][effect] = None
                effect = i
            if guard is not None and any(n.definition.traps for n in nested):
                self.before[i][guard] = None
            if op.definition is assert_:
                guard = i
            for use, _ in updated_operands(op, module):
                self.before[i].update(dict.fromkeys(r for r in self._readers(use.value) if r < i))

    def _readers(self, value: Value) -> list[int]:
        """Operations that read a value, or something that may be the same memory."""
        found: dict[int, None] = {}
        values = [value]
        while values:
            for i in self.users.get(values.pop(), {}):
                if i not in found:
                    found[i] = None
                    if self.order[i].definition in _VIEWS:
                        values.extend(self.order[i].results)
        return list(found)

    # -- choosing --------------------------------------------------------------------------------------------------

    def run(self) -> list[Operation]:
        """The operations in the new order."""
        for i in range(len(self.order)):
            self._offer(i)
        result: list[int] = []
        kept, pending = iter([*self.kept, len(self.order)]), dict.fromkeys(self.kept)
        next_kept = next(kept)
        done = [False] * len(self.order)
        while self.ready:
            growth, i = heapq.heappop(self.ready)
            if done[i] or growth != self._growth(i):
                continue  # it was offered again with its present growth
            done[i] = True
            first = []
            while next_kept < i:  # constants in front of an operation stay in front of it
                first.append(next_kept)
                next_kept = next(kept)
            for j in (*first, *self.kept_operands[i]):
                if j in pending:
                    del pending[j]
                    result.append(j)
            result.append(i)
            self._finish(i)
        return [self.order[i] for i in (*result, *pending)]

    def _offer(self, i: int) -> None:
        if self.waiting[i] == 0 and self.order[i].definition not in _KEPT:
            heapq.heappush(self.ready, (self._growth(i), i))

    def _finish(self, i: int) -> None:
        """Offers what operation ``i`` makes possible, and what frees more now."""
        for value in self.uses[i]:
            users = self.users[value]
            del users[i]
            if len(users) == 1 and value not in self.returned:
                self._offer(next(iter(users)))
        for j in self.after[i]:
            self.waiting[j] -= 1
            self._offer(j)

    def _growth(self, i: int) -> int:
        """Bytes that an operation allocates beyond those that it frees, as things stand."""
        op, sizes = self.order[i], self.sizes.bytes
        allocated = sum(sizes[r] for r in op.results if r in self.users or r in self.returned)
        freed = sum(sizes.get(v, 0) for v in self.uses[i] if len(self.users[v]) == 1 and v not in self.returned)
        return allocated - freed
