"""Operations on tensors that become loops late, between ``memref.to_tensor`` and ``memref.from_tensor``: their operands as buffers."""

from __future__ import annotations

from dialects.memref import from_tensor, to_tensor
from ir.core import Operation, Trivia, Value
from ir.dims import Dim
from ir.types import MemRefType
from passes.linalg._views import View, moved_from
from passes.loops._blocks import reshaped
from passes.loops._memory import memory_of, written_between


def buffer_of(op: Operation, tensor: Value) -> Value:
    """The buffer that a tensor was taken out of, when nothing has written it since; else the tensor as a buffer."""
    source = tensor.defining_op
    if source is not None and source.definition is to_tensor and source.block is op.block:
        buffer = source.operands[0]
        if not written_between(memory_of(buffer), source, op):
            return buffer
    return from_tensor(tensor, name=f"{tensor.name}.buffer")  # type: ignore[no-any-return]


def of_rank(buffer: Value, rank: int) -> Value:
    """The buffer with dimensions of size 1 in front."""
    assert isinstance(buffer.type, MemRefType)
    shape: tuple[Dim, ...] = buffer.type.shape
    return reshaped(buffer, *((1,) * (rank - len(shape)) + shape))


def whole(buffer: Value) -> View:
    """A buffer as it is."""
    found = of_rank(buffer, 4)
    assert isinstance(found.type, MemRefType)
    return View(found, found.type.shape)


class Sources:
    """Buffers that an operation reads; nests that only move elements to them needn't run, it reads those where they come from."""

    def __init__(self, op: Operation) -> None:
        self.op = op
        self.skipped: dict[Value, Operation] = {}

    def view(self, buffer: Value) -> View:
        """Where the elements of a tensor are."""
        found = moved_from(buffer, self.op)
        if found is None:
            return whole(buffer)
        self.skipped[buffer] = found[0]
        return found[1]

    def remove(self) -> None:
        """Erases the nests that nothing needs any more."""
        for buffer, nest in self.skipped.items():
            if buffer.users == [nest] and buffer.defining_op is not None:
                nest.erase()
                buffer.defining_op.erase()


def replace(op: Operation, out: Value, tensor: Value, first: Operation) -> None:
    """Puts a buffer in the place of an operation's result; tensors that nobody reads any more go.

    ``first`` is the first operation that was made in its place: it gets the comments.
    """
    if op.trivia is not None:
        first.trivia = Trivia(op.trivia.blank_before, op.trivia.detached, op.trivia.leading, op.trivia.trailing)
        op.trivia = None
    for user in list(op.result.users):
        if user.definition is from_tensor and user.block is op.block:
            user.result.replace_all_uses_with(out)
            user.erase()
    operands = list(dict.fromkeys(op.operands))
    name = op.result.name
    op.result.replace_all_uses_with(tensor)
    graph = op.graph
    op.erase()
    assert graph is not None
    graph.rename(tensor, name)
    for value in (tensor, *operands):
        source = value.defining_op
        if source is not None and source.definition is to_tensor and not value.has_uses:
            source.erase()
