"""Whether the output of a nest may lie in the memory of an input that is not needed afterwards.

It may when nothing is read (or written) through the input at a place that the output has been written to before.  So for
each pair of an access to the input and a store to the output that may mean the same element, the access must come first:
in the same round of all loops around both and earlier in the text, or in an earlier round of a serial loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

from ir.attributes import attribute_key
from ir.core import Operation, Value
from ir.dims import Dim, DimExpr, substitute, symbol, symbols_of
from ir.layout import LoopDim
from ir.types import MemRefType
from passes.loops._dependence import Dependence, variables_of
from passes.loops._loops import LOOPS, Bind, read_layout
from passes.loops._loops import Access as WrittenAccess
from passes.loops._memory import Access, accesses_of
from passes.memory._lifetimes import Buffer, written_positions

_MOST_PAIRS = 512
"""Pairs of accesses in one nest that are looked at; with more, the answer is no."""
_NESTS = ("linalg.generic", "linalg.reduce")


class TakingOver:
    """The question for the nests of one graph.  ``names`` gives the alloc that a value is the memory of.

    Layers of a model are equal but for the names of values, so answers are kept by structure.
    """

    def __init__(self, names: Mapping[Value, Value]) -> None:
        self.names = names
        self._structures: dict[Operation, tuple[int, dict[Value, int]] | None] = {}
        self._numbers: dict[Hashable, int] = {}  # of structures, which are long
        self._known: dict[tuple[int, int, int], bool] = {}

    def may(self, nest: Operation, old: Buffer, new: Buffer) -> bool:
        """Whether ``new``, which ``nest`` is the first to touch, may be the memory of ``old``, which it is the last to touch."""
        if old.viewed or new.viewed:  # places are compared as elements of one size
            return False
        if old.size != new.size or old.type.dtype.itemsize != new.type.dtype.itemsize:
            return False
        if nest.name == "memref.copy":  # reads all elements before it writes one
            return nest.operands[0].type == nest.operands[1].type
        if nest not in self._structures:
            self._structures[nest] = self._structure(nest)
        found = self._structures[nest]
        if found is None:
            return False
        structure, numbers = found
        key = (structure, numbers[old.value], numbers[new.value])
        if key not in self._known:
            judge = _in_nests if any(op.name in _NESTS for op in nest.walk()) else _in_loops
            self._known[key] = judge(nest, self.names, old.value, new.value)
        return self._known[key]

    def _structure(self, nest: Operation) -> tuple[int, dict[Value, int]] | None:
        """The number of what a nest is, and those of the values in it; None where threads come in any order."""
        if any(op.name == "gpu.launch" for op in nest.walk()):
            return None
        structure, numbers = _structure(nest, self.names)
        return self._numbers.setdefault(structure, len(self._numbers)), numbers


def _structure(nest: Operation, names: Mapping[Value, Value]) -> tuple[Hashable, dict[Value, int]]:
    """What a nest is but for the names of values, and the numbers of the values in it."""
    numbers: dict[Value, int] = {}
    parts: list[Hashable] = []

    def number(value: Value) -> int:
        if value not in numbers:
            root = names.get(value, value)
            numbers[value] = len(numbers)
            made = value.defining_op.name if value.defining_op is not None else ""
            parts.append((value.type, made, -1 if root is value else number(root)))
        return numbers[value]

    for op in nest.walk():
        attributes = tuple((n, attribute_key(a)) for n, a in sorted(op.attributes.items()))
        operands = tuple(number(u.value) for u in op.operand_uses)
        arguments = tuple(number(a) for r in op.regions for b in r.blocks for a in b.arguments)
        sizes = tuple(len(b) for r in op.regions for b in r.blocks)
        parts.append((op.name, sizes, attributes, operands, arguments, tuple(map(number, op.results))))
    return tuple(parts), numbers


# -- loops: the dependence test ----------------------------------------------------------------------------------------


def _in_loops(nest: Operation, names: Mapping[Value, Value], old: Value, new: Value) -> bool:
    if nest.name not in LOOPS:
        return False
    found = [a for op in nest.walk() for a in accesses_of(op)]
    before = [a for a in found if names.get(a.buffer) is old]
    after = [a for a in found if names.get(a.buffer) is new and a.writes]
    if len(before) * len(after) > _MOST_PAIRS or any(a.indices is None for a in (*before, *after)):
        return False
    return all(_comes_first(a, w, nest) for a in before for w in after)


def _comes_first(access: Access, store: Access, nest: Operation) -> bool:
    loops, order = _common_loops(access.op, store.op, nest)
    if order is None:
        return False
    variables = [v for loop in loops for v in variables_of(loop)]
    serial = [loop.name == "scf.for" for loop in loops for _ in variables_of(loop)]
    assert nest.block is not None
    test = Dependence(access, replace(store, memory=access.memory), [(v, v) for v in variables], nest.block)
    for directions in test.directions():
        place = next((i for i, d in enumerate(directions) if d != "="), None)
        if place is None:
            if not order:
                return False
        elif not serial[place] or directions[place] == ">":
            return False
    return True


def _common_loops(a: Operation, b: Operation, nest: Operation) -> tuple[list[Operation], bool | None]:
    """The loops around both, outermost first, and whether ``a`` comes before ``b`` in one round of them (never both
    counts, too); None where that is not known."""
    left, right = _path(a, nest), _path(b, nest)
    common = [x for x, y in zip(left, right, strict=False) if x is y]
    loops = [op for op in common if op.name in LOOPS and op is not a and op is not b]
    if len(common) == len(left) or len(common) == len(right):
        return loops, None
    x, y = left[len(common)], right[len(common)]
    return loops, x.block is not y.block or _is_before(x, y)


def _path(op: Operation, outermost: Operation) -> list[Operation]:
    """The operations from the outermost one down to ``op``."""
    path = [op]
    while path[-1] is not outermost:
        block = path[-1].block
        assert block is not None and block.parent is not None and block.parent.parent is not None
        path.append(block.parent.parent)
    return path[::-1]


def _is_before(a: Operation, b: Operation) -> bool:
    at: Operation | None = a
    while at is not None and at is not b:
        at = at.next
    return at is b


# -- nests of linalg: equal index maps ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """One access in a nest; in ``indices`` every loop dimension has a name of its own."""

    path: list[Operation]
    indices: tuple[Dim, ...]
    shape: tuple[Dim, ...]
    writes: bool


def _in_nests(nest: Operation, names: Mapping[Value, Value], old: Value, new: Value) -> bool:
    if nest.name != "linalg.generic" or any(op.regions and op.name not in (*_NESTS, "scf.if") for op in nest.walk()):
        return False
    before: list[_Place] = []
    after: list[_Place] = []
    for op in nest.walk():
        for value, place in _places(op, nest):
            if names.get(value) is old:
                before.append(place)
            elif names.get(value) is new and place.writes:
                after.append(place)
        if op.name not in (*_NESTS, "memref.prefetch") and any(names.get(v) in (old, new) for v in op.operands):
            return False  # memref.load and the like
    return all(_is_earlier(a, w) for a in before for w in after)


def _places(op: Operation, nest: Operation) -> Iterator[tuple[Value, _Place]]:
    """The accesses of one operation; what a nest stores to is also read."""
    if op.name not in _NESTS:
        return
    path = _path(op, nest)
    bindings: dict[str, Dim] = {}
    for level, around in enumerate(path):
        bindings.update((d.name, symbol(f"{d.name}@{level}.{_number(around)}")) for d in _dims(around))
    written = [op.operands[p] for p in written_positions(op)] if op.name == "linalg.generic" else []
    sources = [f.source for f in read_layout(op) if isinstance(f, Bind) and isinstance(f.source, WrittenAccess)]
    for number, source in enumerate(sources):
        assert isinstance(source.buffer.type, MemRefType)
        indices = tuple(substitute(i.expr, bindings) for i in source.indices)
        stores = number >= len(sources) - len(written)
        yield source.buffer, _Place(path, indices, source.buffer.type.shape, False)
        if stores:
            yield source.buffer, _Place(path, indices, source.buffer.type.shape, True)


def _dims(op: Operation) -> list[LoopDim]:
    return [f for f in read_layout(op) if isinstance(f, LoopDim)] if op.name in _NESTS else []


def _number(op: Operation) -> int:
    """The place of an operation in its block: with that of all around it, it tells loops apart."""
    number = 0
    while op.prev is not None:
        op, number = op.prev, number + 1
    return number


def _is_earlier(access: _Place, store: _Place) -> bool:
    """Whether an access comes before a store wherever both mean the same element."""
    if access.shape != store.shape:
        return False
    common = [x for x, y in zip(access.path, store.path, strict=False) if x is y]
    dims = {f"{d.name}@{level}.{_number(op)}" for level, op in enumerate(common) for d in _dims(op)}
    if not _same_round(access.indices, store.indices, dims):
        return False
    if len(common) == len(store.path):  # the store ends a round of the nest that the access stands in
        return len(common) < len(access.path) or not access.writes
    if len(common) == len(access.path):  # the access begins (or, a store, ends) a round that the store stands in
        return not access.writes
    x, y = access.path[len(common)], store.path[len(common)]
    return x.block is not y.block or _is_before(x, y)


def _same_round(a: tuple[Dim, ...], b: tuple[Dim, ...], dims: set[str]) -> bool:
    """Whether equal places mean equal values of all the given loop dimensions."""
    fixed: set[str] = set()
    progress = True
    while progress:
        progress = False
        for left, right in zip(a, b, strict=True):
            names = [n for n in symbols_of(left) if "@" in n]
            free = [n for n in names if n not in fixed]
            computed = any(n.startswith("%") for n in symbols_of(left))  # maybe another value in another round
            if left == right and len(free) == 1 and set(names) <= dims and not computed and _is_linear(left, free[0]):
                fixed.add(free[0])
                progress = True
    return dims <= fixed


def _is_linear(expr: Dim, name: str) -> bool:
    """Whether an expression is a number times ``name``, plus what does not mention it."""
    assert isinstance(expr, DimExpr)
    mentioning = [m for m, _ in expr.terms if name in symbols_of(DimExpr(((m, 1),)))]
    return mentioning == [(name,)]
