"""What a program is made of: values, uses, operations, blocks, regions, graphs, modules.

Operations are mutable and compared by identity.  A block keeps them in a linked list that may be changed while it is
walked; a value knows its uses.  Names belong to a graph and are unique in it; see :meth:`Graph.unique_name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ir.diagnostics import AnyLocation, Source
from ir.dims import Dim
from ir.types import UNKNOWN, Type

if TYPE_CHECKING:
    from ir.attributes import Attribute
    from ir.opdef import OpDef

EMPTY: Mapping[str, Any] = {}

DROPPED = "_"
"""Name of a result that the program does not use; any number of values may have it."""


@dataclass(slots=True)
class Trivia:
    """Comments and blank lines around an operation, kept so that they print again.

    ``detached`` are comment blocks that belong to the surrounding block (they outlive the operation); ``leading`` are
    the lines directly above; ``trailing`` stands behind it on its last line.
    """

    blank_before: bool = False
    detached: tuple[tuple[str, ...], ...] = ()
    leading: tuple[str, ...] = ()
    trailing: tuple[str, ...] = ()


class Use:
    """One operand slot: operation ``owner`` uses ``value`` as operand ``index``.  Uses of a value form a linked list."""

    __slots__ = ("value", "owner", "index", "next", "prev")

    def __init__(self, value: Value, owner: Operation, index: int) -> None:
        self.owner = owner
        self.index = index
        self.value = value  # as _link does; written out, since programs have many uses
        self.prev: Use | None = None
        following = self.next = value.first_use
        if following is not None:
            following.prev = self
        value.first_use = self

    def _link(self, value: Value) -> None:
        self.value = value
        self.prev = None
        self.next = value.first_use
        if self.next is not None:
            self.next.prev = self
        value.first_use = self

    def _unlink(self) -> None:
        if self.prev is None:
            self.value.first_use = self.next
        else:
            self.prev.next = self.next
        if self.next is not None:
            self.next.prev = self.prev

    def set(self, value: Value) -> None:
        """Uses another value instead."""
        if value is not self.value:
            self._unlink()
            self._link(value)


class Value:
    """The result of an operation or the argument of a block.

    ``name`` has no ``%``.  ``auto_named`` says that the name was derived by a pass, and so may be given up for a better one.
    """

    __slots__ = ("name", "type", "owner", "index", "first_use", "auto_named")

    def __init__(self, name: str, type_: Type, owner: Operation | Block, index: int) -> None:
        self.name = name
        self.type = type_
        self.owner = owner
        self.index = index
        self.first_use: Use | None = None
        self.auto_named = False

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"

    @property
    def defining_op(self) -> Operation | None:
        """The operation whose result this is; None for a block argument."""
        return self.owner if isinstance(self.owner, Operation) else None

    @property
    def uses(self) -> Iterator[Use]:
        """All uses, newest first; a use may be changed or removed while iterating."""
        use = self.first_use
        while use is not None:
            following = use.next
            yield use
            use = following

    @property
    def has_uses(self) -> bool:
        return self.first_use is not None

    @property
    def users(self) -> list[Operation]:
        """Operations that use this value, each once."""
        return list(dict.fromkeys(use.owner for use in self.uses))

    def replace_all_uses_with(self, value: Value) -> None:
        for use in self.uses:
            use.set(value)

    @property
    def location(self) -> AnyLocation | None:
        """Where the value is defined."""
        if isinstance(self, Parameter):
            return self.loc
        return self.owner.loc if isinstance(self.owner, Operation) else None


class Parameter(Value):
    """A parameter of a graph.  ``inout`` parameters are arrays that the graph updates in place."""

    __slots__ = ("inout", "loc", "trivia", "anchor")

    def __init__(self, name: str, type_: Type, owner: Block, index: int, *, inout: bool = False, loc: AnyLocation | None = None) -> None:
        super().__init__(name, type_, owner, index)
        self.inout = inout
        self.loc = loc
        self.trivia: Trivia | None = None
        self.anchor: Operation | None = None  # bare form: the operation that the ``input()`` stood in front of


class Operation:
    """One operation.  Build it with a :class:`ir.builder.Builder`, which also inserts and names it.

    ``results`` are its values; ``operands`` the values it uses; operands that are optional or variadic are laid out as
    ``operand_segments`` of its definition says.
    """

    __slots__ = ("definition", "operand_uses", "results", "attributes", "regions", "block", "prev", "next", "loc", "trivia")

    def __init__(
        self,
        definition: OpDef,
        operands: Sequence[Value],
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region] = (),
        result_types: Sequence[Type] = (),
        result_names: Sequence[str] = (),
        loc: AnyLocation | None = None,
    ) -> None:
        self.definition = definition
        self.operand_uses = [Use(v, self, i) for i, v in enumerate(operands)]
        self.results = _make_results(self, result_types, result_names) if result_types else ()
        self.attributes: Mapping[str, Attribute] = dict(attributes) if attributes else EMPTY
        self.regions = tuple(regions)
        for region in self.regions:
            region.parent = self
        self.block: Block | None = None
        self.prev: Operation | None = None
        self.next: Operation | None = None
        self.loc = loc
        self.trivia: Trivia | None = None

    @property
    def name(self) -> str:
        """Full name with its dialect, ``graph.matmul``."""
        return self.definition.full_name

    @property
    def operands(self) -> list[Value]:
        return [use.value for use in self.operand_uses]

    @property
    def result(self) -> Value:
        """The only result.  Raises ValueError when there is not exactly one."""
        if len(self.results) != 1:
            raise ValueError(f"{self.name} has {len(self.results)} results")
        return self.results[0]

    @property
    def graph(self) -> Graph | None:
        """The graph that the operation stands in."""
        return self.block.graph if self.block is not None else None

    def operand(self, name: str) -> Value | None:
        """The operand called ``name`` in the op's signature; None when it is optional and absent."""
        use = self.operand_use(name)
        return use.value if use is not None else None

    def operand_use(self, name: str) -> Use | None:
        """The use of the operand called ``name``."""
        position = self.definition.operand_position(self, name)
        return None if position is None else self.operand_uses[position]

    def set_operands(self, operands: Sequence[Value]) -> None:
        """Replaces all operands."""
        for use in self.operand_uses:
            use._unlink()
        self.operand_uses = [Use(v, self, i) for i, v in enumerate(operands)]

    def attribute(self, name: str) -> Attribute:
        """The attribute, or its default when it is not written."""
        if name in self.attributes:
            return self.attributes[name]
        return self.definition.attribute_default(name)

    def set_attribute(self, name: str, value: Attribute) -> None:
        """Gives an attribute a value; copies of the operation may share the others, so the mapping itself is never changed."""
        self.attributes = {**self.attributes, name: value}

    def walk(self) -> Iterator[Operation]:
        """This operation and all inside its regions, in order; those of a block may be erased and inserted meanwhile."""
        yield self
        if not self.regions:
            return
        around: list[tuple[Block, Operation | None]] = [(b, None) for b in _blocks_backwards(self)]
        while around:
            block, last = around.pop()
            op = block.first if last is None else block._behind(last)
            while op is not None:
                yield op
                if op.regions:
                    around.append((block, op))
                    around += [(b, None) for b in _blocks_backwards(op)]
                    break
                op = block._behind(op)

    def remove(self) -> None:
        """Takes the operation out of its block; it may be inserted again."""
        block = self.block
        if block is None:
            return
        graph = block.graph
        if graph is not None:
            graph._forget_names(self)
        block._unlink(self)

    def erase(self) -> None:
        """Removes the operation for good.  Its results must have no uses; comments of the block stay in the block."""
        for result in self.results:
            if result.has_uses:
                raise ValueError(f"%{result.name} is still used")
        if self.trivia is not None and self.block is not None and self.trivia.detached:
            _hand_over_comments(self)
        following = self.next
        self.remove()
        self.next = following  # a walk that stands here finds its way on
        _dismantle(self)


def _dismantle(op: Operation) -> None:
    """Takes an erased operation apart, with all inside it: without cycles memory is free at once, and not when Python looks for them."""
    for inner in list(op.walk()):
        for use in inner.operand_uses:
            use._unlink()
        inner.operand_uses = []
        for result in inner.results:
            result.owner = _NOWHERE
        for region in inner.regions:
            region.parent = None
            for block in region.blocks:
                block.parent = None
                for argument in block.arguments:
                    argument.owner = _NOWHERE
        if inner is not op:
            inner.block = inner.prev = None


def _make_results(op: Operation, types: Sequence[Type], names: Sequence[str]) -> tuple[Value, ...]:
    named = len(names)
    if len(types) == 1:
        return (Value(names[0] if named else "", types[0], op, 0),)
    return tuple([Value(names[i] if i < named else "", t, op, i) for i, t in enumerate(types)])


def _blocks_backwards(op: Operation) -> list[Block]:
    return [block for region in reversed(op.regions) for block in reversed(region.blocks)]


def _hand_over_comments(op: Operation) -> None:
    assert op.trivia is not None and op.block is not None
    if op.next is not None:
        heir = op.next.trivia = op.next.trivia or Trivia()
        heir.detached = op.trivia.detached + heir.detached
        heir.blank_before = heir.blank_before or op.trivia.blank_before
    else:
        op.block.comments = op.trivia.detached + op.block.comments


class Block:
    """A list of operations with arguments.  ``comments`` are those after the last operation."""

    __slots__ = ("arguments", "first", "last", "parent", "comments", "_graph")

    def __init__(self, parent: Region | None = None) -> None:
        self.arguments: list[Value] = []
        self.first: Operation | None = None
        self.last: Operation | None = None
        self.parent = parent
        self.comments: tuple[tuple[str, ...], ...] = ()
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph | None:
        """The graph that the block belongs to, directly or through its region."""
        if self._graph is not None:
            return self._graph
        op = self.parent.parent if self.parent is not None else None
        return op.graph if op is not None else None

    def __iter__(self) -> Iterator[Operation]:
        op = self.first
        while op is not None:
            yield op
            op = self._behind(op)

    def _behind(self, op: Operation) -> Operation | None:
        """The operation behind one that is in the block or was erased from it."""
        following = op.next
        while following is not None and following.block is not self:  # erased meanwhile
            following = following.next
        return following

    def __reversed__(self) -> Iterator[Operation]:
        op = self.last
        while op is not None:
            before = op.prev
            yield op
            op = before

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add_argument(self, name: str, type_: Type) -> Value:
        """Appends a block argument; the name is made unique when the block is in a graph."""
        value = Value(name, type_, self, len(self.arguments))
        self.arguments.append(value)
        graph = self.graph
        if graph is not None:
            graph._claim(value)
        return value

    def insert_before(self, anchor: Operation | None, op: Operation) -> Operation:
        """Inserts ``op`` before ``anchor``, at the end for None, and registers its names."""
        assert op.block is None, "operation is already in a block"
        self._link(anchor, op)
        graph = self.graph
        if graph is not None:
            graph._claim_names(op)
        return op

    def append(self, op: Operation) -> Operation:
        return self.insert_before(None, op)

    def _link(self, anchor: Operation | None, op: Operation) -> None:
        op.block = self
        op.next = anchor
        op.prev = self.last if anchor is None else anchor.prev
        if op.prev is None:
            self.first = op
        else:
            op.prev.next = op
        if anchor is None:
            self.last = op
        else:
            anchor.prev = op

    def _unlink(self, op: Operation) -> None:
        if op.prev is None:
            self.first = op.next
        else:
            op.prev.next = op.next
        if op.next is None:
            self.last = op.prev
        else:
            op.next.prev = op.prev
        op.block = op.prev = op.next = None

    @property
    def terminator(self) -> Operation | None:
        """The ``return`` or ``yield`` that ends the block."""
        return self.last if self.last is not None and self.last.definition.is_terminator else None


_NOWHERE = Block()
"""Where values are whose operation was erased."""


class Region:
    """The blocks inside an operation; structured control flow needs one."""

    __slots__ = ("blocks", "parent")

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks = list(blocks) or [Block()]
        self.parent: Operation | None = None
        for block in self.blocks:
            block.parent = self

    @property
    def block(self) -> Block:
        """The only block."""
        return self.blocks[0]


_SPECIAL = ("", DROPPED)
"""Names that are not claimed as they are."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """``1 <= B <= 8`` or ``T mod 16 == 0``: dimensions joined by comparisons."""

    dims: tuple[Dim, ...]
    comparisons: tuple[str, ...]


class Graph:
    """A function from tensors to tensors: parameters, one block that ends in ``return``, and a signature.

    ``result_names`` and ``result_types`` are the signature; a pass never changes the names.  ``bare`` asks for the
    form without a header, which is used as long as it says the same.
    """

    def __init__(self, name: str, *, bare: bool = False, loc: AnyLocation | None = None) -> None:
        self.name = name
        self.bare = bare
        self.loc = loc
        self.block = Block()
        self.block._graph = self
        self.result_names: list[str] = []
        self.result_types: list[Type] = []
        self.names_results = False  # the header writes result names even where the returned values imply them
        self.constraints: tuple[Constraint, ...] = ()
        self.trivia: Trivia | None = None
        self.names: dict[str, Value] = {}
        self._next_suffix: dict[str, int] = {}

    @property
    def parameters(self) -> list[Parameter]:
        return self.block.arguments  # type: ignore[return-value]

    def add_parameter(self, name: str, type_: Type = UNKNOWN, *, inout: bool = False, loc: AnyLocation | None = None) -> Parameter:
        """Appends a parameter; its name is made unique."""
        value = Parameter(name, type_, self.block, len(self.block.arguments), inout=inout, loc=loc)
        self.block.arguments.append(value)
        self._claim(value)
        return value

    @property
    def return_op(self) -> Operation:
        """The final ``return``.  Raises ValueError in an unfinished graph."""
        terminator = self.block.terminator
        if terminator is None:
            raise ValueError(f"graph @{self.name} has no return")
        return terminator

    @property
    def results(self) -> list[Value]:
        """The returned values."""
        return self.return_op.operands

    def walk(self) -> Iterator[Operation]:
        """All operations, nested ones included, in order."""
        for op in self.block:
            if op.regions:
                yield from op.walk()
            else:
                yield op

    def unique_name(self, base: str) -> str:
        """``base`` when it is free, else ``base.N`` with the smallest free N >= 1."""
        base = base or "v"
        if base not in self.names:
            return base
        number = self._next_suffix.get(base, 1)
        while f"{base}.{number}" in self.names:
            number += 1
        self._next_suffix[base] = number
        return f"{base}.{number}"

    def rename(self, value: Value, name: str) -> None:
        """Gives ``value`` a free name built from ``name``."""
        if self.names.get(value.name) is value:
            self._release(value.name)
        value.name = name
        self._claim(value)
        value.auto_named = False

    def _claim(self, value: Value) -> None:
        if value.name == DROPPED:
            return
        value.name = self.unique_name(value.name)
        self.names[value.name] = value

    def _release(self, name: str) -> None:
        if name == DROPPED:
            return
        del self.names[name]
        base, _, suffix = name.rpartition(".")
        if base and suffix.isdigit():  # the smallest free number may be this one now
            self._next_suffix.pop(base, None)

    def _claim_names(self, op: Operation) -> None:
        names = self.names
        for value in op.results:
            if value.name in names or value.name in _SPECIAL:
                self._claim(value)
            else:  # most of them; written out, since programs have many
                names[value.name] = value
        if op.regions:
            for region in op.regions:
                for block in region.blocks:
                    for argument in block.arguments:
                        self._claim(argument)
            for region in op.regions:
                for block in region.blocks:
                    inner = block.first
                    while inner is not None:
                        self._claim_names(inner)
                        inner = inner.next

    def _forget_names(self, op: Operation) -> None:
        for nested in op.walk():
            for value in nested.results:
                self._release(value.name)
            for region in nested.regions:
                for block in region.blocks:
                    for argument in block.arguments:
                        self._release(argument.name)


@dataclass(slots=True)
class WeightFile:
    """``file @w = "model.safetensors" sha256 "..."``: weights by reference.  ``path`` is relative to the program."""

    name: str
    path: str
    sha256: str | None = None
    loc: AnyLocation | None = None
    trivia: Trivia | None = None


class Module:
    """A whole program: graphs and files of weights, in the order they were written."""

    def __init__(self, source: Source | None = None) -> None:
        self.source = source
        self.graphs: dict[str, Graph] = {}
        self.files: dict[str, WeightFile] = {}
        self.version_line = False
        self.comments: tuple[tuple[str, ...], ...] = ()  # after the last item
        self.version_trivia: Trivia | None = None

    def add(self, graph: Graph) -> Graph:
        self.graphs[graph.name] = graph
        return graph

    @property
    def main(self) -> Graph:
        """``@main``, or the only graph.  Raises KeyError when neither exists."""
        if "main" in self.graphs:
            return self.graphs["main"]
        if len(self.graphs) == 1:
            return next(iter(self.graphs.values()))
        raise KeyError("main")

    def __str__(self) -> str:
        from ir.printer import print_module

        return print_module(self)

    def walk(self) -> Iterator[Operation]:
        """All operations of all graphs."""
        for graph in self.graphs.values():
            yield from graph.walk()
