"""What ``fuse`` knows about a graph while it joins nests: who uses which memory, where, and what each nest does.

Nothing here walks the program again: facts about an operation are kept until it changes, those of two joined nests are put
together, and the users of every buffer are kept by the root of its memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ir.core import Graph, Operation, Value
from ir.types import MemRefType
from passes.infra.decisions import Rule, Step
from passes.linalg._fusion import (
    ALIASES,
    Indices,
    Nest,
    Output,
    aliases,
    is_nest,
    is_product,
    plain_name,
    root,
    written_memory,
)
from passes.loops._loops import accesses
from passes.loops._memory import Memory, alias, memory_of

_FREE = ("arith.constant", "linalg.index")
_CHEAP_MATH = ("fma", "absf", "absi", "copysign")
_COSTLY = ("arith.divf", "arith.remf", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.floordivsi", "arith.modsi", "math.sqrt")
NESTS = ("linalg.generic", "linalg.reduce")
_HARMLESS = ("memref.alloc", "memref.prefetch", "memref.to_tensor", "linalg.generic")
"""Operations that an error may come before or after."""


@dataclass(slots=True)
class Facts:
    """What an operation of the graph's own block does, with all inside it."""

    accessing: list[Operation]
    """those inside that have accesses, in order"""
    reads: dict[Value, None]
    """memory that is accessed, but for what is only written"""
    writes: list[Value]
    """memory that is written, once for each operation that does"""
    touched: dict[Value, None]
    """memory that is used in any way"""
    size: int
    cost: int
    """what one round takes, in simple operations"""
    contraction: bool = False
    reduction: bool = False
    effects: bool = False
    """whether it may stop the program"""
    loops: bool = False
    """whether there are regions inside"""
    stores: bool = False
    indices: bool = False
    """whether a body asks for its place"""


def cost_of(op: Operation) -> int:
    """What computing an operation of a body takes, in simple operations."""
    if op.name in _FREE or op.definition.is_terminator:
        return 0
    costly = op.regions or op.name in _COSTLY or (op.definition.dialect == "math" and op.definition.name not in _CHEAP_MATH)
    return 100 if costly else 1


def tensor_name(memory: Value) -> str:
    """The name of the tensor that memory was made for."""
    return memory.name.removesuffix(".buffer")


@dataclass
class Nests:
    """The index of one graph."""

    graph: Graph
    position: dict[Operation, float] = field(default_factory=dict)
    users: dict[Value, dict[Operation, None]] = field(default_factory=dict)
    """operations of the graph's own block by the memory that they use"""
    writers: dict[Value, dict[Operation, None]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    """what the nests were before any were joined (see :mod:`passes.infra.decisions`)"""
    members: dict[Operation, dict[int, None]] = field(default_factory=dict)
    """the steps that a nest is made of"""
    rules: dict[tuple[Value, int], Rule] = field(default_factory=dict)
    """how the memory that a step reads came into its nest"""
    readers: dict[Value, dict[int, None]] = field(default_factory=dict)
    """steps by the memory that they read"""
    makers: dict[Value, list[int]] = field(default_factory=dict)
    """steps by the memory that they write"""
    read_once: set[Value] = field(default_factory=set)
    """memory of which every reader reads each element once"""
    touched: dict[Operation, None] = field(default_factory=dict)
    """nests that may be joined with others now: what kept them apart may be gone"""
    _facts: dict[Operation, Facts] = field(default_factory=dict)
    _views: dict[Operation, Nest] = field(default_factory=dict)
    _memory: dict[Value, Memory] = field(default_factory=dict)
    _barriers: list[float] = field(default_factory=list)
    _by_base: dict[Value, list[Value]] = field(default_factory=dict)
    _open: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, op in enumerate(self.graph.block):
            self.position[op] = number
            if not op.definition.pure and op.name not in _HARMLESS:
                self._barriers.append(number)
            if op.name not in ALIASES:
                self._enter(op)
            if op.name == "linalg.generic":
                self._number(op)
        for memory in self.writers:
            found = self._memory_of(memory)
            self._by_base.setdefault(found.base, []).append(memory)
            if found.kind in ("parameter", "unknown"):
                self._open.append(memory)

    def _number(self, op: Operation) -> None:
        """Makes a step of a nest."""
        facts, number = self.facts(op), len(self.steps)
        arguments = op.regions[0].block.arguments
        origin = arguments[-1].name.rpartition(".")[0] if arguments else op.name
        self.steps.append(Step(tensor_name(facts.writes[0]) if facts.writes else f"{origin} (check)", op.loc))
        self.members[op] = {number: None}
        for memory in facts.reads:
            self.readers.setdefault(memory, {})[number] = None
        for memory in dict.fromkeys(facts.writes):
            self.makers.setdefault(memory, []).append(number)

    def _enter(self, op: Operation) -> None:
        facts = self.facts(op)
        for memory in facts.touched:
            self.users.setdefault(memory, {})[op] = None
        for memory in facts.writes:
            self.writers.setdefault(memory, {})[op] = None

    def _leave(self, op: Operation, memory: Iterable[Value]) -> None:
        for value in memory:
            self.users.get(value, {}).pop(op, None)
            self.writers.get(value, {}).pop(op, None)

    # -- looking -------------------------------------------------------------------------------------------------------

    def facts(self, op: Operation) -> Facts:
        """What an operation of the graph's own block does."""
        found = self._facts.get(op)
        if found is None:
            found = self._facts[op] = self._look(op)
        return found

    def _look(self, op: Operation) -> Facts:
        facts = Facts([], {}, written_memory(op), {}, 0, 0)
        counts: dict[Value, int] = {}
        for inner in op.walk():
            facts.size += 1
            if inner.name not in ALIASES:
                facts.touched.update((root(v), None) for v in inner.operands if isinstance(v.type, MemRefType))
            facts.effects |= inner.name == "cf.assert"
            facts.stores |= inner.name == "memref.store"
            facts.indices |= inner.name == "linalg.index"
            facts.loops |= bool(inner.regions) and inner is not op
            found = [buffer for buffer, _ in self._places(inner)]
            if found or inner.name in NESTS:
                facts.accessing.append(inner)
            for buffer in found:
                memory = root(buffer)
                counts[memory] = counts.get(memory, 0) + 1
            if inner.name == "linalg.generic":
                for output in self.view(inner).outputs:
                    if not output.argument.has_uses:
                        counts[root(output.buffer)] -= 1
            elif inner.name == "linalg.reduce":
                facts.reduction |= bool(self.view(inner).dims)
                facts.contraction |= is_product(self.view(inner))
        if op.regions:
            facts.cost = sum(map(cost_of, op.regions[0].block))
        facts.reads.update((m, None) for m, n in counts.items() if n)
        return facts

    def view(self, op: Operation) -> Nest:
        """A nest, read."""
        found = self._views.get(op)
        if found is None:
            found = self._views[op] = Nest(op)
        return found

    def views(self, op: Operation) -> Iterator[Nest]:
        """All nests and reductions inside an operation, itself first."""
        for inner in list(self.facts(op).accessing):
            if inner.name in NESTS:
                yield self.view(inner)

    def accesses(self, op: Operation) -> Iterator[tuple[Value, Indices]]:
        """Every element access inside an operation: buffer and indices, in value form."""
        for inner in self.facts(op).accessing:
            yield from self._places(inner)

    def _places(self, op: Operation) -> list[tuple[Value, Indices]]:
        """The accesses of one operation."""
        if op.name in NESTS:
            nest = self.view(op)
            return [*((r.buffer, r.indices) for r in nest.reads), *((o.buffer, o.indices) for o in nest.outputs)]
        return [(a.buffer, tuple(i.expr for i in a.indices)) for a in accesses(op)]

    def is_before(self, first: Operation, last: Operation) -> bool:
        """Whether one operation of the graph's own block stands before another."""
        return self.position[first] < self.position[last]

    def sole_writer(self, buffer: Value) -> Operation | None:
        """The nest that alone writes to the memory of a buffer, which is the graph's own."""
        memory = root(buffer)
        made = memory.defining_op
        if made is None or made.name != "memref.alloc" or made.block is not self.graph.block:
            return None
        writers = self.writers.get(memory, {})
        writer = next(iter(writers), None)
        return writer if len(writers) == 1 and writer is not None and is_nest(writer) else None

    def writer_of(self, buffer: Value) -> Nest | None:
        """The nest of :meth:`sole_writer` when it stores what it yields."""
        op = self.sole_writer(buffer)
        nest = self.view(op) if op is not None else None
        return nest if nest is not None and any(o.buffer is root(buffer) for o in nest.outputs) else None

    # -- memory --------------------------------------------------------------------------------------------------------

    def _memory_of(self, memory: Value) -> Memory:
        found = self._memory.get(memory)
        if found is None:
            found = self._memory[memory] = memory_of(memory)
        return found

    def may_alias(self, a: Value, b: Value) -> bool:
        """Whether two roots may share memory: views of one arena, or parameters, for which a caller may pass one array."""
        return a is b or alias(self._memory_of(a), self._memory_of(b)) != "never"

    def touch(self, memory: Iterable[Value], other: Sequence[Value] | dict[Value, None]) -> bool:
        """Whether some of one may be some of the other."""
        return any(self.may_alias(a, b) for a in memory for b in other)

    def _written_like(self, memory: Value) -> Sequence[Value]:
        """Written memory that may be the same."""
        found = self._memory_of(memory)
        if found.kind == "unknown":
            return list(self.writers)
        return [m for m in dict.fromkeys((*self._by_base.get(found.base, ()), *self._open)) if self.may_alias(m, memory)]

    def written_between(self, memory: Value, first: Operation, last: Operation) -> bool:
        """Whether an operation between two others may write to some memory."""
        start, stop = self.position[first], self.position[last]
        return any(start < self.position[w] < stop for m in self._written_like(memory) for w in self.writers.get(m, ()))

    def written_behind(self, memory: Value, first: Operation) -> list[Operation]:
        """The operations behind one that may write to some memory."""
        start = self.position[first]
        return [w for m in self._written_like(memory) for w in self.writers.get(m, ()) if self.position[w] > start]

    def used_between(self, memory: Iterable[Value], first: Operation, last: Operation) -> bool:
        """Whether an operation between two others uses some memory."""
        start, stop = self.position[first], self.position[last]
        return any(start < self.position[u] < stop for m in memory for u in self.users.get(m, ()))

    def barrier_between(self, first: Operation, last: Operation) -> bool:
        """Whether something between two operations has effects beside those on memory of nests."""
        at = bisect_right(self._barriers, self.position[first])
        return at < len(self._barriers) and self._barriers[at] < self.position[last]

    def refresh(self) -> None:
        """Looks at all operations again, behind changes that were not told."""
        for index in (self.users, self.writers, self._facts, self._views):
            index.clear()
        for number, op in enumerate(self.graph.block):
            self.position[op] = number
            if op.name not in ALIASES:
                self._enter(op)

    # -- changing ------------------------------------------------------------------------------------------------------

    def moved_before(self, op: Operation, place: Operation) -> None:
        """Says that an operation that writes nothing stands in front of another now."""
        self.position[op] = self.position[place] - 0.5

    def changed(self, op: Operation) -> None:
        """Says that an operation of the graph's own block is another one now."""
        old = self._forget(op)
        self._leave(op, old.touched)
        self._enter(op)

    def _forget(self, op: Operation) -> Facts:
        facts = self._facts.pop(op)
        for inner in facts.accessing:
            self._views.pop(inner, None)
        self._views.pop(op, None)
        return facts

    def removed(self, op: Operation) -> None:
        """Says that an operation is gone."""
        self._leave(op, self._forget(op).touched)
        self.position.pop(op)
        self.members.pop(op, None)

    def joined(self, producer: Operation, consumer: Operation, nest: Operation, forwarded: Iterable[Value], dropped: Iterable[Value]) -> None:
        """Says that two nests are one, in the place of the consumer, which may be one of them.

        ``forwarded`` is memory that the consumer doesn't read any more, ``dropped`` what nothing does.
        """
        here, place = self.position[consumer], (producer, consumer)
        first, second = (self._forget(op) for op in place)
        members = {**self.members.pop(producer, {}), **self.members.pop(consumer, {})}
        for op, facts in zip(place, (first, second), strict=True):
            if op is not nest:
                self._leave(op, facts.touched)
                self.position.pop(op)
        self.position[nest], self.members[nest] = here, members
        gone, read = set(dropped), set(forwarded)
        inner = [op for op in (*first.accessing, *second.accessing) if op not in place]
        self._facts[nest] = Facts(
            [nest, *inner],
            dict.fromkeys((*first.reads, *(m for m in second.reads if m not in read))),
            [m for m in (*first.writes, *second.writes) if m not in gone],
            dict.fromkeys(m for m in (*first.touched, *second.touched) if m not in gone),
            first.size + second.size - 2,
            first.cost + second.cost,
            first.contraction or second.contraction,
            first.reduction or second.reduction,
            first.effects or second.effects,
            first.loops or second.loops,
            first.stores or second.stores,
            first.indices or second.indices,
        )
        self._leave(nest, gone)
        self._enter(nest)

    def disturb(self, producer: Operation, consumer: Operation, memory: Iterable[Value]) -> None:
        """Notes the nests for which something may be different once the consumer has what the producer makes in some memory.

        Other readers of it may be its only ones then; and the producer no longer stands where it did, between others that share
        memory with it.
        """
        for value in memory:
            self.touched.update((u, None) for u in self.users[value] if is_nest(u))
        start, stop = self.position[producer], self.position[consumer]
        for value in self.facts(producer).reads:
            if value in self.writers:
                self.touched.update((u, None) for u in self.users[value] if start < self.position[u] < stop and is_nest(u))

    def in_order(self, ops: Iterable[Operation]) -> list[Operation]:
        """Operations that are still there, as they stand."""
        return sorted((op for op in ops if op.block is not None), key=self.position.__getitem__)

    def replaced(self, producer: Operation, consumer: Operation, nest: Operation) -> None:
        """Says that a new nest stands for two, in the place of the consumer."""
        self.position[nest] = self.position[consumer]
        self.members[nest] = {**self.members.pop(producer, {}), **self.members.pop(consumer, {})}
        for op in (producer, consumer):
            self.removed(op)
        self._enter(nest)

    def note(self, rule: Rule, memory: Iterable[Value], consumer: Operation) -> None:
        """Notes how what the consumer reads came into its nest."""
        inside = self.members.get(consumer, {})
        for value in memory:
            for step in self.readers.get(value, ()):
                if step in inside:
                    self.rules[value, step] = rule


def output_to(nest: Nest, buffer: Value) -> Output | None:
    """The output that fills the buffer: every element once, in a place that is made of plain loop dimensions."""
    found = [o for o in nest.outputs if o.buffer is buffer]
    if len(found) != 1 or not isinstance(buffer.type, MemRefType):
        return None
    names = [plain_name(e) for e, size in zip(found[0].indices, buffer.type.shape, strict=True) if not (e == 0 and size == 1)]
    if None in names or sorted(map(str, names)) != sorted(nest.names):
        return None
    return None if found[0].argument.has_uses else found[0]


def erase_buffer(memory: Value) -> None:
    """Erases an ``memref.alloc`` that nothing uses, and what shares its memory."""
    for value in reversed(aliases(memory)):
        if value.defining_op is not None:
            value.defining_op.erase()
