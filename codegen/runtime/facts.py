"""What a run has to know of a graph besides its signature: buffers that it writes, sizes that may be too large.

They are looked up once, so that the operations need not be there when the program comes out of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.core import Graph, Operation, Parameter, Value
from ir.diagnostics import AnyLocation, Diagnostic, GraphError
from ir.interpreter import MEMORY_LIMIT
from ir.layout import AccessArg, layout_of
from ir.types import MemRefType, TensorType, byte_count, substitute_type

_READERS = ("memref.load", "vector.load", "memref.to_tensor", "memref.dim", "memref.reshape", "memref.view", "memref.prefetch", "memref.is_aligned")


@dataclass(frozen=True, slots=True)
class Writing:
    """The first operation that writes a buffer of the caller: its name in messages, and its place."""

    name: str
    loc: AnyLocation | None


@dataclass(frozen=True, slots=True)
class Sized:
    """A tensor or buffer that takes memory: its type, what messages call it, its place.  ``made``: by ``memref.alloc``."""

    type: TensorType | MemRefType
    what: str
    location: AnyLocation | None
    made: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """``written`` are buffers among the parameters, by position; ``sized`` is what may be too large, each type once."""

    written: dict[int, Writing] = field(default_factory=dict)
    sized: tuple[Sized, ...] = ()

    @staticmethod
    def of(graph: Graph) -> Facts:
        """The facts of a graph with all its operations."""
        return Facts({p.index: Writing(op.definition.text_name, op.loc) for p, op in _written_buffers(graph).items()}, tuple(_sized(graph)))

    def check_sizes(self, bindings: dict[str, int]) -> None:
        """Raises GraphError for a tensor or a buffer that needs more than MEMORY_LIMIT bytes, or has a negative dimension."""
        for item in self.sized:
            type_ = substitute_type(item.type, bindings)
            assert isinstance(type_, (TensorType, MemRefType))
            size = byte_count(type_.dtype, type_.shape)
            if isinstance(size, int) and size > MEMORY_LIMIT:
                raise GraphError(Diagnostic(f"{item.what} needs {size} bytes, the limit is {MEMORY_LIMIT}", item.location))
            if item.made and any(isinstance(d, int) and d < 0 for d in type_.shape):
                raise GraphError(Diagnostic(f"memref.alloc: a dimension of {type_} is negative", item.location))


def _sized(graph: Graph) -> list[Sized]:
    found: dict[tuple[TensorType | MemRefType, bool], Sized] = {}
    for op in graph.block:
        made = op.definition.full_name == "memref.alloc"
        for result in op.results:
            type_ = result.type
            if isinstance(type_, TensorType) or (made and isinstance(type_, MemRefType)):
                what = f"memref.alloc: %{result.name}" if made else f"%{result.name}: {type_}"
                found.setdefault((type_, made), Sized(type_, what, result.location, made))
    return list(found.values())


def _written_buffers(graph: Graph) -> dict[Parameter, Operation]:
    """The buffers among the parameters that the graph may write, each with the first operation that does."""
    origin: dict[Value, Parameter] = {p: p for p in graph.parameters if isinstance(p.type, MemRefType)}
    written: dict[Parameter, Operation] = {}
    if not origin:
        return written
    for op in graph.walk():
        sources = [origin[v] for v in op.operands if v in origin]
        if not sources:
            continue
        inner = [a for region in op.regions for block in region.blocks for a in block.arguments]
        for value in (*op.results, *inner):
            if isinstance(value.type, MemRefType):
                origin[value] = sources[0]
        for value in _stored_to(op):
            if value in origin:
                written.setdefault(origin[value], op)
    return written


def _stored_to(op: Operation) -> list[Value]:
    name = op.definition.full_name
    if name in ("memref.store", "vector.store"):
        return [op.operands[a.position] for a in layout_of(op) if isinstance(a, AccessArg)]
    if name == "memref.copy":
        return [op.operands[1]]
    if name in _READERS or op.definition.dialect in ("scf", "gpu"):  # those of gpu write memory on the chip
        return []
    return list(op.operands)
