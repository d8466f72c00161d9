"""Stand-ins for copies of nests, and how a graph becomes again what it was before they were put into it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ir.clone import clone_operation
from ir.core import Block, Operation, Region, Value
from ir.diagnostics import AnyLocation

Original = tuple[Operation, Operation]
"""A stand-in, and what it stands for."""


@dataclass
class StandIns:
    """Copies operations for code generation.

    What threads share is a function of its own there, and so is a nest in which they share nothing: a stand-in is enough for it,
    which gets the regions of the original when it is in its place (:meth:`Changes.insert`).  What is around them is copied.
    ``mapping``, ``rename`` and ``locations`` are those of :func:`ir.clone.clone_operation`; ``shared`` remembers which operations
    have loops inside that threads share.
    """

    mapping: dict[Value, Value]
    rename: Callable[[str], str]
    locations: Mapping[AnyLocation, AnyLocation]
    shared: dict[Operation, bool]
    inside: list[Original] = field(default_factory=list)

    def of(self, op: Operation) -> tuple[Operation, list[Original]]:
        """A copy of an operation, with the stand-ins that it is or that are in it."""
        self.inside = []
        return self._copy(op), self.inside

    def _copy(self, op: Operation) -> Operation:
        if not op.regions:
            return clone_operation(op, self.mapping, self.rename, self.locations)
        loc = op.loc if op.loc is None else self.locations.get(op.loc, op.loc)
        operands = [self.mapping.get(u.value, u.value) for u in op.operand_uses]
        around = self._is_around_shared(op)
        if not around and not op.results:
            found = Operation(op.definition, operands, None, (), (), (), loc)
            self.inside.append((found, op))
        elif not around or _is_shared(op):
            return clone_operation(op, self.mapping, self.rename, self.locations)
        else:
            regions = [Region([self._copy_block(b) for b in region.blocks]) for region in op.regions]
            names = [self.rename(r.name) for r in op.results]
            found = Operation(op.definition, operands, None, regions, [r.type for r in op.results], names, loc)
            self.mapping.update(zip(op.results, found.results, strict=True))
        found.attributes = op.attributes  # never changed, see Operation.set_attribute
        return found

    def _copy_block(self, block: Block) -> Block:
        copy = Block()
        for argument in block.arguments:
            self.mapping[argument] = copy.add_argument(self.rename(argument.name), argument.type)
        for op in block:
            copy.append(self._copy(op))
        return copy

    def _is_around_shared(self, op: Operation) -> bool:
        found = self.shared.get(op)
        if found is None:
            found = self.shared[op] = any(_is_shared(o) for o in op.walk() if o is not op)
        return found


def _is_shared(op: Operation) -> bool:
    return op.definition.full_name == "scf.parallel" and op.attribute("mapping") == "threads"


@dataclass
class Changes:
    """What was inserted into graphs and taken out of them, so that it can be undone, the last one first.

    ``needed`` are values that stand-ins stand for uses of.
    """

    needed: set[Value] = field(default_factory=set)
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def undo(self) -> None:
        """Makes everything what it was."""
        while self._undo:
            self._undo.pop()()
        self.needed = set()

    def insert(self, block: Block, anchor: Operation | None, op: Operation, inside: Sequence[Original] = ()) -> None:
        """Inserts an operation, and gives the stand-ins in it the regions of their originals."""
        block.insert_before(anchor, op)
        for copy, original in inside:
            copy.regions = original.regions

        def undo() -> None:
            for copy, _ in inside:
                copy.regions = ()
            op.erase()

        self._undo.append(undo)

    def take_out(self, op: Operation, unused: Collection[str]) -> None:
        """Takes out an operation, and of what it used the operations with the names ``unused`` that nobody else uses."""
        block, following, operands = op.block, op.next, op.operands
        op.remove()
        op.set_operands(())

        def undo() -> None:
            op.set_operands(operands)
            if block is not None:
                block.insert_before(following, op)

        self._undo.append(undo)
        for value in operands:
            self.take_out_unused(value, unused)

    def take_out_unused(self, value: Value, unused: Collection[str]) -> None:
        """Takes out what makes a value that nobody uses, if it has one of the names."""
        source = value.defining_op
        if source is None or source.block is None or source.definition.full_name not in unused:
            return
        if not value.has_uses and value not in self.needed:
            self.take_out(source, unused)
