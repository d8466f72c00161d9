"""Nests that are alike, of which passes see only the first one; see docs/compile-time.md.

A deep model is the same few nests again and again.  A pass that is ``local`` makes the same of each of them, so a run of
such passes works on one nest of every kind: :func:`fold` takes the others out of their graphs, :meth:`Folding.unfold` puts
copies of what became of the first one in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ir.attributes import attribute_key
from ir.clone import clone_operation
from ir.core import Block, Graph, Module, Operation, Parameter, Trivia, Value
from ir.diagnostics import AnyLocation
from ir.opdef import OpDef
from ir.structure import Structure, structure_of
from ir.types import MemRefType
from passes.loops._memory import alias, memory_of

FENCE = OpDef("fence", "builtin", (), (), None, None, "Marks a place in a graph while nests are folded.", pure=False, result_count=0)

_SMALLEST = 4
"""Nests of fewer operations are not worth the trouble."""


@dataclass
class _Twin:
    """A nest that was taken out: the mark in its place, and what stands there for what in the first of its kind."""

    op: Operation
    place: Operation
    outside: list[Value]
    names: dict[str, str]
    locations: dict[AnyLocation, AnyLocation]


@dataclass
class _Kind:
    """Nests that are alike.  What became of the first one stands between ``begin`` and ``end``."""

    first: Operation
    outside: list[Value]
    twins: list[_Twin] = field(default_factory=list)
    begin: Operation | None = None
    end: Operation | None = None


@dataclass
class Folding:
    """Nests that were taken out of the graphs of a module."""

    kinds: list[tuple[Graph, list[_Kind]]] = field(default_factory=list)
    known: set[Operation] = field(default_factory=set)

    def unfold(self) -> None:
        """Puts copies of what became of the first nest of every kind where the others were."""
        for graph, kinds in self.kinds:
            inside = {op for kind in kinds for op in _between(kind)}
            order = {op: n for n, op in enumerate(graph.block)}
            derived = {_key(op, op.operands): op for op in order if op not in self.known and op not in inside and not op.regions}
            for kind in kinds:
                made = _between(kind)
                used = _values_from_outside(made)
                derivations = [v for v in used if v not in kind.outside]
                for twin in kind.twins:
                    _Copies(self, graph, kind, twin, derived, order).make(made, derivations)
            self._remove_marks(kinds)

    def abandon(self) -> None:
        """Leaves the other nests out for good: for a text that shows where a pass has failed."""
        for _, kinds in self.kinds:
            self._remove_marks(kinds)

    def _remove_marks(self, kinds: list[_Kind]) -> None:
        for kind in kinds:
            for mark in (kind.begin, kind.end, *(t.place for t in kind.twins)):
                if mark is not None and mark.block is not None:
                    mark.erase()
            for twin in kind.twins:
                twin.op.erase()


def fold(module: Module) -> Folding | None:
    """Takes nests out of which an equal one stands before; None when there are none."""
    folding = Folding()
    for graph in module.graphs.values():
        kinds = [k for k in _kinds(graph) if k.twins]
        if kinds:
            folding.kinds.append((graph, kinds))
            folding.known.update(graph.block)
            for kind in kinds:
                _take_out(graph, kind)
    return folding if folding.kinds else None


def _kinds(graph: Graph) -> list[_Kind]:
    """The nests of a graph by what they are."""
    found: dict[Structure, _Kind] = {}
    described: dict[Value, Any] = {}

    def describe(value: Value) -> Any:
        if value not in described:
            described[value] = _description(value, describe)
        return described[value]

    for op in graph.block:
        if not op.regions or op.results or _is_small(op):
            continue
        structure, outside = structure_of(op, describe)
        kind = found.get(key := (structure, _overlaps(outside)))
        if kind is None:
            found[key] = _Kind(op, outside)
        else:
            kind.twins.append(_Twin(op, Operation(FENCE, ()), outside, {}, {}))
    return list(found.values())


def _is_small(op: Operation) -> bool:
    walk = op.walk()
    return sum(1 for _ in zip(walk, range(_SMALLEST), strict=False)) < _SMALLEST


def _description(value: Value, describe: Callable[[Value], Any]) -> Any:
    """What passes may ask about a value from outside of a nest: its type, and how it is made."""
    op = value.defining_op
    if op is None:
        return ("parameter", value.type, isinstance(value, Parameter) and value.inout)
    name = op.definition.full_name
    if op.definition.dialect == "graph" or op.regions:
        return (name, value.type, value.index)
    attributes = tuple((k, attribute_key(a)) for k, a in sorted(op.attributes.items()) if name != "memref.view")
    return (name, value.type, attributes, tuple(describe(v) for v in op.operands))


def _overlaps(outside: list[Value]) -> tuple[Any, ...]:
    """Which buffers may be the same memory; where they lie in an arena does not matter."""
    memories = [(n, memory_of(v)) for n, v in enumerate(outside) if isinstance(v.type, MemRefType)]
    found = []
    for at, (n, a) in enumerate(memories):
        for m, b in memories[at + 1 :]:
            relation = alias(a, b)
            if relation != "never":
                found.append((n, m, relation))
    return tuple(found)


def _take_out(graph: Graph, kind: _Kind) -> None:
    """Marks where the first nest begins and ends, and replaces the others by marks."""
    block = graph.block
    kind.begin = block.insert_before(kind.first, Operation(FENCE, ()))
    kind.end = block.insert_before(kind.first.next, Operation(FENCE, ()))
    for twin in kind.twins:
        for mine, other in zip(kind.first.walk(), twin.op.walk(), strict=True):
            if mine.loc is not None and other.loc is not None:
                twin.locations.setdefault(mine.loc, other.loc)
            for a, b in zip(_values(mine), _values(other), strict=True):
                twin.names[a.name] = b.name
        block.insert_before(twin.op, twin.place)
        twin.op.remove()


def _values(op: Operation) -> list[Value]:
    return [*op.results, *(a for region in op.regions for block in region.blocks for a in block.arguments)]


def _values_from_outside(ops: list[Operation]) -> list[Value]:
    """The values that operations use and that are not made by them, or in them."""
    made = {v for op in ops for inner in op.walk() for v in _values(inner)}
    return list(dict.fromkeys(u.value for op in ops for inner in op.walk() for u in inner.operand_uses if u.value not in made))


def _between(kind: _Kind) -> list[Operation]:
    assert kind.begin is not None
    found = []
    op = kind.begin.next
    while op is not None and op is not kind.end:
        found.append(op)
        op = op.next
    return found


def _key(op: Operation, operands: Sequence[Value]) -> Any:
    """What an operation without regions would compute from other operands."""
    attributes = tuple((k, attribute_key(a)) for k, a in sorted(op.attributes.items()))
    return (op.definition, attributes, tuple(r.type for r in op.results), tuple(operands))


class _Copies:
    """What became of the first nest of a kind, once more for another one."""

    def __init__(
        self, folding: Folding, graph: Graph, kind: _Kind, twin: _Twin, derived: dict[Any, Operation], order: dict[Operation, int]
    ) -> None:
        self.known = folding.known
        self.order = order
        self.graph = graph
        self.twin = twin
        self.derived = derived
        self.mapping: dict[Value, Value] = dict(zip(kind.outside, twin.outside, strict=True))

    def make(self, ops: list[Operation], used: list[Value]) -> None:
        """Copies operations to the place of the nest; ``used`` are values from outside of it that it did not use before."""
        for value in used:
            self._outside(value)
        block, place, trivia = self.graph.block, self.twin.place, self.twin.op.trivia
        for op in ops:
            copy = block.insert_before(place, clone_operation(op, self.mapping, self._rename, self.twin.locations))
            if trivia is not None and (copy.regions or op is ops[-1]):
                copy.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)
                trivia = self.twin.op.trivia = None

    def _rename(self, name: str) -> str:
        names = self.twin.names
        found = names.get(name)
        if found is None:
            base, dot, suffix = name.rpartition(".")
            found = names[name] = f"{self._rename(base)}.{suffix}" if dot else name
        return found

    def _outside(self, value: Value) -> None:
        """Finds what stands for a value from outside; what passes made of values that differ is made again."""
        if value in self.mapping:
            return
        op = value.defining_op
        if op is None or op in self.known:
            return
        for operand in op.operands:
            self._outside(operand)
        operands = tuple(self.mapping.get(v, v) for v in op.operands)
        if operands == tuple(op.operands):
            return
        if op.regions or not op.definition.pure:
            raise RuntimeError(f"a local pass has made {op.name} outside of the nest that it is for")
        key = _key(op, operands)
        copy = self.derived.get(key)
        if copy is None or self.order.get(copy, -1) > self.order[self.twin.place]:
            copy = self.derived[key] = clone_operation(op, dict(self.mapping), self._rename)
            self.graph.block.insert_before(_behind(operands, self.graph.block), copy)
        self.mapping.update(zip(op.results, copy.results, strict=True))


def _behind(values: tuple[Value, ...], block: Block) -> Operation | None:
    """The operation in front of which all of the values are known, as early as that can be."""
    makers = {v.defining_op for v in values if v.defining_op is not None}
    if not makers:
        return block.first
    if len(makers) == 1:
        return makers.pop().next
    return next(op for op in reversed(block) if op in makers).next
