"""Functions of top-level operations that are written already: an operation that is like another one is only called.

Two operations are alike when one is the other with other values from outside (see :mod:`ir.structure`), and the same is known
about these: types and alignments of buffers, whether they may be written, which expressions integers are.  What was known when
the first one was written must still hold; so its function is right for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from codegen.llvm.native import Site
from codegen.llvm.polynomials import Poly
from codegen.llvm.types import is_constant
from codegen.llvm.writer import Writer
from ir.clone import clone_operation
from ir.core import Operation, Value
from ir.structure import Copies, Copy, Structure, structure_of
from ir.types import MemRefType, ScalarType


@dataclass(frozen=True)
class Call:
    """A function, its arguments as a call has them, and the sites in it."""

    function: str
    passed: str
    sites: list[Site]


@dataclass
class _Written:
    """A function that there is, and how its arguments come from the values of the operation that it was written for."""

    function: str
    op: Operation
    outside: list[Value]
    imported: list[Value | int]
    places: list[str]
    types: list[str]
    sites: list[Site]
    facts: frozenset[Any]


class KnownNests:
    """What the main function ``main`` can call."""

    def __init__(self, main: Writer, copies: Copies) -> None:
        self.main = main
        self.copies = dict(copies)
        self._real: dict[Operation, Operation] = {}
        self._skeletons: dict[Operation, tuple[int, list[Value]]] = {}
        self._numbers: dict[Structure, int] = {}
        self._known: dict[Any, _Written] = {}
        self._asked: tuple[Any, list[Value], frozenset[Any]] | None = None
        self._facts_alone: dict[int, tuple[Poly, frozenset[Any], set[int]]] = {}

    def find(self, op: Operation) -> Call | None:
        """The call that does what an operation says, if there is a function for it."""
        self._asked = None
        if op.results:
            return None
        structure, outside = self._structure(op)
        facts = self._facts(outside)
        self._asked = structure, outside, facts
        written = self._known.get(structure)
        if written is None or not written.facts <= facts:
            return None
        places, passed = self._arguments(written.imported, dict(zip(written.outside, outside, strict=True)))
        if places != written.places:
            return None  # two of the values are one here, or were
        text = "".join(f", {t} {p}" for t, p in zip(written.types, passed, strict=True))
        return Call(written.function, text, _sites(written, op, self.copies.get(op)))

    def real(self, op: Operation) -> Operation:
        """The operation itself, or what a stand-in stands for."""
        copy = self.copies.get(op)
        if copy is None or copy.locations is None:
            return op
        if op not in self._real:
            self._real[op] = clone_operation(copy.original, dict(copy.mapping), locations=copy.locations)
        return self._real[op]

    def remember(self, op: Operation, function: str, writer: Writer) -> None:
        """Notes the function that was written for the operation that :meth:`find` has not found."""
        if self._asked is None:
            return
        structure, outside, facts = self._asked
        places, _ = self._arguments(writer.imported, {})
        types = [t for t, _ in writer.arguments.values()]
        self._known.setdefault(structure, _Written(function, op, outside, writer.imported, places, types, list(writer.sites), facts))

    def _structure(self, op: Operation) -> tuple[Any, list[Value]]:
        """What is equal for operations that are alike, and the values from outside; of a copy it is known from what it is a copy of."""
        original, mapping = self._original(op)
        number, outside = self._skeleton(original)
        if mapping:
            outside = [mapping.get(v, v) for v in outside]
            if len(set(outside)) < len(outside):  # two of the values are one here
                number, outside = self._skeleton(self.real(op))
        return (number, *map(self._describe, outside)), outside

    def _original(self, op: Operation) -> tuple[Operation, Mapping[Value, Value]]:
        """What an operation is a copy of, or inside of a copy of; itself otherwise."""
        found = self.copies.get(op)
        if found is None:
            around = op.block.parent.parent if op.block is not None and op.block.parent is not None else None
            original, mapping = self._original(around) if around is not None else (None, {})
            if around is None or original is None or original is around:
                return op, {}
            for region, other in zip(around.regions, original.regions, strict=True):
                for block, same in zip(region.blocks, other.blocks, strict=True):
                    for mine, theirs in zip(block, same, strict=True):
                        self.copies.setdefault(mine, Copy(theirs, mapping))
            found = self.copies[op]
        return found.original, found.mapping

    def _skeleton(self, op: Operation) -> tuple[int, list[Value]]:
        found = self._skeletons.get(op)
        if found is None:
            structure, outside = structure_of(op, lambda value: None)
            found = self._skeletons[op] = self._numbers.setdefault(structure, len(self._numbers)), outside
        return found

    def _describe(self, value: Value) -> Any:
        """What has to agree about values from outside for code to be the same."""
        type_ = value.type
        if isinstance(type_, MemRefType):
            buffer = self.main.buffer(value)
            return (type_, buffer.align, buffer.readonly)
        if isinstance(type_, ScalarType) and not type_.dtype.is_float:
            known = self.main.space.values.get(value)
            return (type_, None if known is None or self._number(value) is not None else frozenset(known.items()))
        return type_

    def _number(self, value: Value) -> int | None:
        """The number of the atom that a value is, when nothing else is known about it than hypotheses."""
        space = self.main.space
        known = list(space.values.get(value, {}).items())
        if len(known) != 1 or known[0][1] != 1 or len(known[0][0]) != 1:
            return None
        atom = space.atoms[known[0][0][0]]
        told = atom.described or atom.lowers or atom.uppers or atom.cases or atom.nonnegative
        return atom.number if atom.value is value and not told else None

    def _facts(self, outside: list[Value]) -> frozenset[Any]:
        """What is known not to be negative, with values from outside by their position."""
        positions = {n: -1 - at for at, v in enumerate(outside) if isinstance(v.type, ScalarType) and (n := self._number(v)) is not None}
        return frozenset(self._fact(h, positions) for h in self.main.space.hypotheses)

    def _fact(self, hypothesis: Poly, positions: dict[int, int]) -> frozenset[Any]:
        """A hypothesis with positions in the place of some numbers; what it is without any is kept, since every nest asks for all of them."""
        kept = self._facts_alone.get(id(hypothesis))
        if kept is None:
            alone = frozenset(hypothesis.items())
            kept = self._facts_alone[id(hypothesis)] = hypothesis, alone, {n for monomial in hypothesis for n in monomial}
        if positions.keys().isdisjoint(kept[2]):
            return kept[1]
        return frozenset((tuple(sorted(positions.get(n, n) for n in monomial)), c) for monomial, c in hypothesis.items())

    def _arguments(self, imported: list[Value | int], here: dict[Value, Value]) -> tuple[list[str], list[str]]:
        """For every value that a function has taken from outside where it comes from: constants, and numbers of arguments; and the arguments."""
        numbers: dict[str, int] = {}
        places = []
        for item in imported:
            if isinstance(item, int):
                name = self.main.symbol(item)
            else:
                value = here.get(item, item)
                name = self.main.buffer(value).pointer if isinstance(value.type, MemRefType) else self.main.name(value)
            places.append(name if is_constant(name) else f"argument {numbers.setdefault(name, len(numbers))}")
        return places, list(numbers)


def _sites(written: _Written, op: Operation, copy: Copy | None) -> list[Site]:
    """The sites of a function where it stands for another operation."""
    if not written.sites:
        return []
    locations = {} if copy is None or copy.locations is None else copy.locations
    inside = copy is not None and copy.original is written.op and copy.locations is not None  # the very operations, but for the outermost
    here = {written.op: op} if inside else dict(zip(written.op.walk(), op.walk(), strict=True))
    found = []
    for site in written.sites:
        if site.operation is not None:
            there = here.get(site.operation, site.operation)
            location = there.loc if there is op or there.loc is None else locations.get(there.loc, there.loc)
            found.append(replace(site, operation=there, location=location))
    return found
