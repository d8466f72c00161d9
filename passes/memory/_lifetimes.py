"""When the buffers of a graph hold something: which operations of the top level touch them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ir.core import Block, Graph, Operation, Use, Value
from ir.dims import Dim, UnknownDim, product
from ir.layout import LAYOUT, AccessArg, BindArg, layout_of
from ir.types import MemRefType, u8
from passes.memory._sizes import ALIGNMENT

_READERS = ("memref.load", "vector.load", "linalg.reduce", "memref.to_tensor")
_NO_ACCESS = ("memref.dim", "memref.prefetch", "memref.is_aligned")
_LIKE_ACCESSES = ("memref.copy", "memref.to_tensor")
"""Operations that take whole buffers and keep none of them."""


@dataclass(eq=False)
class Buffer:
    """Memory that is made at the top level, with the operations (by their number there) between which it is needed."""

    value: Value
    size: Dim
    touches: list[int] = field(default_factory=list)
    viewed: bool = False
    """whether its bytes are read or written as elements of another type, too"""

    @property
    def first(self) -> int:
        return self.touches[0]

    @property
    def last(self) -> int:
        return self.touches[-1]

    @property
    def type(self) -> MemRefType:
        assert isinstance(self.value.type, MemRefType)
        return self.value.type


class Lifetimes:
    """The buffers of one graph that can be moved into an arena, and what they are called (``memref.reshape``, ``memref.view``)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.order = list(graph.block)
        self.names: dict[Value, Value] = {}
        """every value that is the memory of an alloc of the top level -> the alloc"""
        self.buffers: list[Buffer] = []
        self.results: list[Buffer] = []
        """those that are the memory of a result"""
        self.unused: list[Operation] = []
        numbers = {op: i for i, op in enumerate(self.order)}
        for op in self.order:
            if op.name == "memref.alloc":
                self._collect(op, numbers)

    def _collect(self, alloc: Operation, numbers: dict[Operation, int]) -> None:
        names = {alloc.result: alloc.result}
        uses = list(_uses_through_names(alloc.result, names))
        if not any(alloc.result.users):
            self.unused.append(alloc)
            return
        if not _can_move(alloc) or not all(map(_keeps_nothing, uses)):
            return
        found = self.results if _is_result(self.graph, numbers, uses) else self.buffers
        touches = sorted({numbers[top_level(u.owner, self.graph.block)] for u in uses if u.owner.name not in _NO_ACCESS})
        if touches:
            assert isinstance(alloc.result.type, MemRefType)
            self.names.update(names)
            viewed = any(v.defining_op is not None and v.defining_op.name == "memref.view" for v in names)
            found.append(Buffer(alloc.result, product(alloc.result.type.shape) * alloc.result.type.dtype.itemsize, touches, viewed))


def _uses_through_names(root: Value, names: dict[Value, Value]) -> Iterator[Use]:
    """Uses of a buffer, of its reshapes and of views of it, which are added to ``names``; they themselves are no uses."""
    pending = [root]
    while pending:
        for use in pending.pop().uses:
            if use.owner.name in ("memref.reshape", "memref.view"):
                names[use.owner.result] = root
                pending.append(use.owner.result)
            else:
                yield use


def _can_move(alloc: Operation) -> bool:
    """Whether a view can stand in its place; an arena is left alone."""
    type_ = alloc.result.type
    assert isinstance(type_, MemRefType)
    if type_.space or type_.align > ALIGNMENT or any(isinstance(d, UnknownDim) for d in type_.shape):
        return False
    return not (type_.dtype == u8 and len(type_.shape) == 1 and any(op.name == "memref.view" for op in alloc.result.users))


def _keeps_nothing(use: Use) -> bool:
    """Whether a use only reads or writes elements (or asks for a size), so that the memory is free afterwards."""
    op = use.owner
    if op.name in (*_LIKE_ACCESSES, *_NO_ACCESS):
        return True
    return LAYOUT in op.attributes and use.index in _accessed(op)


def _accessed(op: Operation) -> set[int]:
    """Numbers of the operands that stand in accesses, and nowhere else."""
    sources = [a.source if isinstance(a, BindArg) else a for a in layout_of(op)]
    return {s.position for s in sources if isinstance(s, AccessArg)} - {getattr(s, "position", None) for s in sources if not isinstance(s, AccessArg)}


def writes(use: Use) -> bool:
    """Whether a use may change the memory."""
    op = use.owner
    if op.name in (*_READERS, *_NO_ACCESS):
        return False
    if op.name == "memref.copy":
        return use.index == 1
    if op.name == "linalg.generic":
        return any(position == use.index for position in written_positions(op))
    return True


def written_positions(generic: Operation) -> list[int]:
    """Numbers of the operands that a nest stores to: those of the last bindings, as many as are yielded."""
    terminator = generic.regions[0].block.terminator
    count = len(terminator.operand_uses) if terminator is not None else 0
    positions = [a.source.position for a in layout_of(generic) if isinstance(a, BindArg)]
    return positions[len(positions) - count :]


def _is_result(graph: Graph, numbers: dict[Operation, int], uses: list[Use]) -> bool:
    """Whether the memory can be that of a result: it is taken out as a tensor that is returned and nothing else, and not
    written any more.  The code generator has it made by the caller then."""
    last_write = max((numbers[top_level(u.owner, graph.block)] for u in uses if writes(u)), default=-1)
    for use in uses:
        op = use.owner
        if op.name == "memref.to_tensor" and op.block is graph.block and numbers[op] > last_write:
            users = op.result.users
            if users and all(u is graph.block.terminator for u in users):
                return True
    return False


def top_level(op: Operation, block: Block) -> Operation:
    """The operation of ``block`` that is ``op`` or around it."""
    while op.block is not block:
        assert op.block is not None and op.block.parent is not None and op.block.parent.parent is not None
        op = op.block.parent.parent
    return op
