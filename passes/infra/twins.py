"""Nests that are alike, of which passes see only the first one; see docs/compile-time.md.

A deep model is the same few nests again and again.  A pass that is ``local`` makes the same of each of them, so a run of
such passes works on one nest of every kind: :meth:`Folding.fold` takes the others out of their graphs, :meth:`Folding.unfold` puts
copies of what became of the first one in their places, or :meth:`Folding.stand_in` operations that code generation knows to be copies.
A pass that makes nests of operations that are alike need not make the others at all (:meth:`Folding.leave_out`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ir.attributes import attribute_key
from ir.clone import clone_operation
from ir.core import Block, Graph, Module, Operation, Parameter, Trivia, Value
from ir.diagnostics import AnyLocation
from ir.opdef import OpDef
from ir.structure import Copies, Copy, Structure, structure_of
from ir.types import MemRefType, VectorType
from passes.infra._stand_ins import Changes, StandIns
from passes.loops._memory import Windows, alias, memory_of

FENCE = OpDef("fence", "builtin", (), (), None, None, "Marks a place in a graph while nests are folded.", pure=False, result_count=0)
READS = OpDef("reads", "builtin", (), (), None, None, "Reads what a nest that was left out reads and does not write.", pure=False, result_count=0)

_ERASED = ("arith.constant", "memref.alloc", "memref.reshape")
_SMALLEST = 4
"""Nests of fewer operations are not worth the trouble."""


class _Names(dict[str, str]):
    """What names of the first nest are for another one; those that passes have derived from a name are derived from that of the other."""

    def __missing__(self, name: str) -> str:
        base, dot, suffix = name.rpartition(".")
        found = self[name] = f"{self[base]}.{suffix}" if dot else name
        return found


@dataclass
class _Nest:
    """One nest of a kind: a mark in front of it, or in its place, that uses what the nest uses of the graph.

    So passes that replace a value everywhere replace it there, too.  ``private`` are buffers that nothing else uses; they are
    no operands of the mark, since some passes ask for that.  Of nests that were left out, what they only read is used by ``reads``.
    """

    mark: Operation
    private: list[Value]
    reads: Operation | None = field(default=None, kw_only=True)

    def outside(self) -> list[Value]:
        """The values from outside, in an order that is the same for all nests of a kind."""
        return [*(self.reads.operands if self.reads is not None else ()), *self.mark.operands, *self.private]

    def marks(self) -> list[Operation]:
        return [self.mark] if self.reads is None else [self.reads, self.mark]


@dataclass
class _Twin(_Nest):
    """A nest that was taken out: what is called how, and comes from where, in the place of what in the first nest.

    ``holder`` stands in no block; it keeps the private buffers.
    """

    holder: Operation
    trivia: Trivia | None
    names: _Names = field(default_factory=lambda: _Names())
    locations: dict[AnyLocation, AnyLocation] = field(default_factory=dict)


@dataclass
class _Kind:
    """Nests that are alike.  What became of the first one stands between its mark and ``end``."""

    first: _Nest
    end: Operation
    twins: list[_Twin]

    def marks(self) -> list[Operation]:
        return [*self.first.marks(), self.end, *(mark for twin in self.twins for mark in twin.marks())]

    def made(self) -> list[Operation]:
        """What became of the first nest."""
        found = []
        op = self.first.mark.next
        while op is not None and op is not self.end:
            found.append(op)
            op = op.next
        return found


@dataclass(eq=False)
class Made:
    """What a pass has made of an operation with a result of that name, as if it were one nest, and the buffers that this reads, and writes."""

    name: str
    ops: list[Operation]
    reads: Sequence[Value]
    writes: Sequence[Value]
    loc: AnyLocation | None
    kind: _Kind | None = None


@dataclass
class Folding:
    """Nests that were taken out of the graphs of a module, or left out.

    ``known`` are the operations of the graphs' own blocks that were there; ``whole`` says whether all graphs were searched.
    """

    kinds: list[tuple[Graph, list[_Kind]]] = field(default_factory=list)
    known: set[Operation] = field(default_factory=set)
    changes: Changes = field(default_factory=Changes)
    whole: bool = False

    def leave_out(self, made: Made, op: Operation, reads: Sequence[Value], writes: Sequence[Value]) -> bool:
        """Leaves marks in front of an operation for what was made of another one, if that is still in one piece; says whether it is.

        The buffers are those that a copy would read and write; :func:`how_made` has to say the same of them as of the others'.
        """
        graph, block = op.graph, op.block
        assert graph is not None and block is not None
        if made.kind is None:
            if not _is_run(made.ops):
                return False
            first = _Nest(Operation(FENCE, made.writes), [], reads=Operation(READS, made.reads))
            for mark in first.marks():
                block.insert_before(made.ops[0], mark)
            made.kind = _Kind(first, block.insert_before(made.ops[-1].next, Operation(FENCE, ())), [])
            self._add(graph, [made.kind])
        twin = _Twin(Operation(FENCE, writes), [], Operation(FENCE, ()), None, reads=Operation(READS, reads))
        for mark in twin.marks():
            block.insert_before(op, mark)
        twin.names[made.name] = op.results[0].name
        twin.names.update((a.name, b.name) for a, b in zip(made.kind.first.outside(), twin.outside(), strict=True))
        if made.loc is not None and op.loc is not None:
            twin.locations[made.loc] = op.loc
        made.kind.twins.append(twin)
        return True

    def _add(self, graph: Graph, kinds: list[_Kind]) -> None:
        for known, found in self.kinds:
            if known is graph:
                found += kinds
                return
        self.kinds.append((graph, kinds))

    def fold(self, module: Module) -> None:
        """Takes nests out of which an equal one stands before, but for those in what others were left out for."""
        for graph in module.graphs.values():
            made = {op for g, kinds in self.kinds if g is graph for kind in kinds for op in kind.made()}
            kinds = [_take_out(graph, nests) for nests in _kinds(graph, made) if len(nests) > 1]
            if kinds:
                self._add(graph, kinds)
            if kinds or made:
                self.known.update(graph.block)
        self.whole = True

    def unfold(self) -> Copies:
        """Puts copies of what became of the first nest of every kind where the others were; returns which operations are copies."""
        self.changes.undo()
        copies: dict[Operation, Copy] = {}
        for graph, kinds in self.kinds:
            for maker, made, used in self._makers(graph, kinds):
                maker.make(made, used, copies)
            self._remove_marks(kinds)
        self.kinds = []
        return copies

    def stand_in(self, name: str) -> Copies:
        """Puts stand-ins where the nests of one graph were, and unfolds the others; :meth:`unfold` goes on from there."""
        here = [(g, kinds) for g, kinds in self.kinds if g.name == name and not any(isinstance(p.type, MemRefType) for p in g.parameters)]
        rest = Folding([pair for pair in self.kinds if pair not in here], self.known)
        copies = dict(rest.unfold())
        self.kinds = here
        shared: dict[Operation, bool] = {}
        for graph, kinds in here:
            for maker, made, used in self._makers(graph, kinds):
                maker.stand_in(made, used, copies, self.changes, shared)
            for kind in kinds:
                for mark in kind.marks():
                    self.changes.take_out(mark, _ERASED)
                for twin in kind.twins:
                    self.changes.take_out(twin.holder, ())
                    for value, first in zip(twin.private, kind.first.private, strict=True):
                        if first.defining_op is None:
                            for user in _dead_views(value):
                                self.changes.take_out_unused(user.result, _ERASED)
                            self.changes.take_out_unused(value, _ERASED)
        return copies

    def _makers(self, graph: Graph, kinds: list[_Kind]) -> Iterable[tuple[_Copies, list[Operation], list[Value]]]:
        """For every nest that was taken out what makes copies for it, of what, and the values from outside in that."""
        inside = {op for kind in kinds for op in kind.made()}
        order = {op: n for n, op in enumerate(graph.block)}
        derived = {_key(op, op.operands): op for op in order if op not in self.known and op not in inside and not op.regions}
        for kind in kinds:
            made = kind.made()
            used = _values_from_outside(made)
            for twin in kind.twins:
                yield _Copies(self, graph, kind.first, twin, derived, order), made, used

    def abandon(self) -> None:
        """Leaves the other nests out for good: for a text that shows where a pass has failed."""
        for _, kinds in self.kinds:
            self._remove_marks(kinds)

    def _remove_marks(self, kinds: list[_Kind]) -> None:
        for kind in kinds:
            for mark in kind.marks():
                used = mark.operands
                mark.erase()
                for value in used:
                    _erase_unused(value)
            for twin in kind.twins:
                twin.holder.set_operands([])
                for value, first in zip(twin.private, kind.first.private, strict=True):
                    if first.defining_op is None:  # it was erased, since nothing reads it
                        for user in _dead_views(value):
                            user.erase()
                        _erase_unused(value)


def how_made(buffers: Sequence[Value]) -> Hashable:
    """What passes may ask about buffers before nests use them: their types, how they are made, and which may be the same memory."""

    def describe(value: Value) -> Any:
        op = value.defining_op
        if op is not None and op.definition.full_name == "memref.alloc":
            return ("memref.alloc", value.type)
        return _description(value, describe)

    return tuple(describe(b) for b in buffers), _overlaps(buffers, {})


def _is_run(ops: Sequence[Operation]) -> bool:
    """Whether operations follow each other in one block."""
    return all(a.next is b for a, b in zip(ops, ops[1:], strict=False))


# -- which nests are alike -----------------------------------------------------------------------------------------------


def _kinds(graph: Graph, left: set[Operation]) -> list[list[tuple[Operation, list[Value]]]]:
    """The nests of a graph but some, with what they use from outside, by what they are."""
    found: dict[tuple[Structure, Any], list[tuple[Operation, list[Value]]]] = {}
    described: dict[Value, Any] = {}
    windows: Windows = {}

    def describe(value: Value) -> Any:
        if value not in described:
            described[value] = _description(value, describe)
        return described[value]

    for op in graph.block:
        if op.regions and not op.results and op not in left and not _is_small(op):
            structure, outside = structure_of(op, describe)
            found.setdefault((structure, _overlaps(outside, windows)), []).append((op, outside))
    return list(found.values())


def _is_small(op: Operation) -> bool:
    walk = op.walk()
    return sum(1 for _ in zip(walk, range(_SMALLEST), strict=False)) < _SMALLEST


def _description(value: Value, describe: Callable[[Value], Any]) -> Any:
    """What passes may ask about a value from outside of a nest: its type, and how it is made.

    Vectors are cut into pieces where they are made, so nests with different ones are different.
    """
    op = value.defining_op
    if isinstance(value.type, VectorType):
        return value
    if op is None:
        return ("parameter", value.type, isinstance(value, Parameter) and value.inout)
    name = op.definition.full_name
    if op.definition.dialect == "graph" or op.regions:
        return (name, value.type, value.index)
    if name == "memref.alloc":
        return (name, value.type, _is_private(value))
    attributes = tuple((k, attribute_key(a)) for k, a in sorted(op.attributes.items()) if name != "memref.view")
    return (name, value.type, attributes, tuple(describe(v) for v in op.operands))


def _is_private(value: Value) -> bool:
    """Whether a buffer is new memory that one operation of the graph's own block has for itself."""
    op = value.defining_op
    while op is not None and op.definition.full_name == "memref.reshape":
        op = op.operands[0].defining_op
    return op is not None and op.definition.full_name == "memref.alloc" and len(_nests_with(op.results[0], {})) == 1


def _nests_with(buffer: Value, found: dict[Operation, None]) -> dict[Operation, None]:
    """The operations of the graph's own block that use a buffer; at most some two of them."""
    for use in buffer.uses:
        op = use.owner
        if op.definition.full_name == "memref.reshape":
            _nests_with(op.results[0], found)
            continue
        while op.block is not None and op.block.parent is not None and op.block.parent.parent is not None:
            op = op.block.parent.parent
        found[op] = None
        if len(found) > 1:
            break
    return found


def _overlaps(outside: Sequence[Value], windows: Windows) -> tuple[Any, ...]:
    """Which buffers may be the same memory; where they lie in an arena does not matter."""
    memories = [(n, memory_of(v)) for n, v in enumerate(outside) if isinstance(v.type, MemRefType)]
    found = []
    for at, (n, a) in enumerate(memories):
        for m, b in memories[at + 1 :]:
            relation = alias(a, b, windows)
            if relation != "never":
                found.append((n, m, relation))
    return tuple(found)


# -- taking out, and copying ---------------------------------------------------------------------------------------------


def _take_out(graph: Graph, nests: list[tuple[Operation, list[Value]]]) -> _Kind:
    """Marks where the first nest begins and ends, and replaces the others by marks."""
    block = graph.block
    split = [([v for v in used if isinstance(v.type, VectorType) or _is_private(v)], used) for _, used in nests]
    nest = nests[0][0]
    twins = []
    for (op, _), (apart, used) in zip(nests, split, strict=True):
        mark = Operation(FENCE, [v for v in used if v not in apart])
        private = [v for v in apart if not isinstance(v.type, VectorType)]
        if op is nest:
            first = _Nest(mark, private)
        else:
            twin = _Twin(mark, private, Operation(FENCE, private), op.trivia)
            _note_names(nest, op, twin)
            twins.append(twin)
    for (op, _), marked in zip(nests, [first, *twins], strict=True):
        block.insert_before(op, marked.mark)
    end = block.insert_before(nest.next, Operation(FENCE, ()))
    for op, _ in nests[1:]:
        op.trivia = None
        op.erase()
    return _Kind(first, end, twins)


def _note_names(first: Operation, op: Operation, twin: _Twin) -> None:
    if first.loc is not None and op.loc is not None:
        twin.locations.setdefault(first.loc, op.loc)
    names = twin.names
    for a, b in zip(first.results, op.results, strict=True):
        names[a.name] = b.name
    for region, other in zip(first.regions, op.regions, strict=True):
        for block, same in zip(region.blocks, other.blocks, strict=True):
            for a, b in zip(block.arguments, same.arguments, strict=True):
                names[a.name] = b.name
            mine, theirs = block.first, same.first
            while mine is not None and theirs is not None:
                _note_names(mine, theirs, twin)
                mine, theirs = mine.next, theirs.next


def _values(op: Operation) -> list[Value]:
    return [*op.results, *(a for region in op.regions for block in region.blocks for a in block.arguments)]


def _values_from_outside(ops: list[Operation]) -> list[Value]:
    """The values that operations use and that are not made by them, or in them."""
    made = {v for op in ops for inner in op.walk() for v in _values(inner)}
    return list(dict.fromkeys(u.value for op in ops for inner in op.walk() for u in inner.operand_uses if u.value not in made))


def _dead_views(buffer: Value) -> list[Operation]:
    return [user for user in buffer.users if user.definition.full_name == "memref.reshape" and not user.result.has_uses]


def _erase_unused(value: Value) -> None:
    """Erases a constant or a buffer that only a mark has still used: passes erase what nobody uses behind them."""
    op = value.defining_op
    while op is not None and op.block is not None and op.definition.full_name in _ERASED and not op.results[0].has_uses:
        source = op.operands[0].defining_op if op.operand_uses else None
        op.erase()
        op = source


def _key(op: Operation, operands: Sequence[Value]) -> Any:
    """What an operation without regions would compute from other operands."""
    attributes = tuple((k, attribute_key(a)) for k, a in sorted(op.attributes.items()))
    return (op.definition, attributes, tuple(r.type for r in op.results), tuple(operands))


class _Copies:
    """What became of the first nest of a kind, once more for another one."""

    def __init__(
        self, folding: Folding, graph: Graph, first: _Nest, twin: _Twin, derived: dict[Any, Operation], order: dict[Operation, int]
    ) -> None:
        self.known = folding.known
        self.changes: Changes | None = None
        self.order = order
        self.graph = graph
        self.twin = twin
        self.derived = derived
        self.mapping: dict[Value, Value] = dict(zip(first.outside(), twin.outside(), strict=True))

    def make(self, ops: list[Operation], used: list[Value], copies: dict[Operation, Copy]) -> None:
        """Copies operations to the place of the nest, and notes the copies; ``used`` are the values from outside."""
        for value in used:
            self._outside(value)
        block, mark, trivia = self.graph.block, self.twin.mark, self.twin.trivia
        for op in ops:
            copy = block.insert_before(mark, clone_operation(op, self.mapping, self.twin.names.__getitem__, self.twin.locations))
            if op.regions:
                copies[copy] = Copy(op, self.mapping)
            if trivia is not None and (copy.regions or op is ops[-1]):
                copy.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)
                trivia = None

    def stand_in(
        self, ops: list[Operation], used: list[Value], copies: dict[Operation, Copy], changes: Changes, shared: dict[Operation, bool]
    ) -> None:
        """The same with stand-ins; ``shared`` remembers in which operations threads share loops."""
        self.changes = changes
        for value in used:
            self._outside(value)
        changes.needed.update(self.mapping.get(v, v) for v in used)
        for op in ops:
            copy, inside = StandIns(self.mapping, self.twin.names.__getitem__, self.twin.locations, shared).of(op)
            changes.insert(self.graph.block, self.twin.mark, copy, inside)
            copies.update((c, Copy(o, self.mapping, self.twin.locations)) for c, o in inside)
            if op.regions:
                copies.setdefault(copy, Copy(op, self.mapping))

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
        if copy is None or self.order.get(copy, -1) > self.order[self.twin.mark]:
            copy = self.derived[key] = clone_operation(op, dict(self.mapping), self.twin.names.__getitem__)
            place = _behind(operands, self.graph.block)
            if self.changes is None:
                self.graph.block.insert_before(place, copy)
            else:
                self.changes.insert(self.graph.block, place, copy)
        self.mapping.update(zip(op.results, copy.results, strict=True))


def _behind(values: tuple[Value, ...], block: Block) -> Operation | None:
    """The operation in front of which all of the values are known, as early as that can be."""
    makers = {v.defining_op for v in values if v.defining_op is not None}
    if not makers:
        return block.first
    if len(makers) == 1:
        return makers.pop().next
    return next(op for op in reversed(block) if op in makers).next
