"""Accesses to memory: which operation reads or writes which elements of which buffer.

Two buffers are the same memory when they are one value, or reshapes of one.  Buffers of different ``memref.alloc`` are
different memory, and so is what ``memref.from_tensor`` shows, which nothing can write.  Parameters that are buffers may be
one array: the caller decides.  Views of one arena are different memory when their bytes are provably apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ir.core import Operation, Parameter, Value
from ir.dims import Dim, DimExpr, product
from ir.opdef import PRESENT
from ir.rewriter import is_pure
from ir.types import MemRefType
from passes.loops._loops import accesses as written_accesses

Alias = Literal["same", "maybe", "never"]
Windows = dict[Value, tuple[Dim, Dim]]
"""The first byte of views, and the one behind the last."""
Kind = Literal["alloc", "tensor", "inout", "parameter", "unknown"]

_SINGLE = {"memref.load": False, "memref.store": True, "vector.load": False, "vector.store": True}
_NO_ACCESS = ("memref.alloc", "memref.from_tensor", "memref.reshape", "memref.view", "memref.dim", "memref.prefetch", "memref.is_aligned")
_NAMES = ("memref.from_tensor", "memref.of_inout", "memref.reshape", "memref.view")
_CONTROL = ("scf", "linalg")


@dataclass(frozen=True, slots=True)
class Memory:
    """What a buffer is a part of: the value that made it, and the view into it if there is one."""

    base: Value
    kind: Kind
    view: Value | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """One read or write.  ``indices`` are expressions over values; None stands for anything in the buffer.

    ``sizes`` are the lengths of the runs from the indices on; with ``partial`` the last one may be shorter.
    """

    op: Operation
    buffer: Value
    memory: Memory
    indices: tuple[Dim, ...] | None
    sizes: tuple[int, ...]
    writes: bool
    partial: bool = False
    runs: tuple[int | None, ...] = ()  # the sizes as they are written

    @property
    def type(self) -> MemRefType:
        assert isinstance(self.buffer.type, MemRefType)
        return self.buffer.type


def memory_of(buffer: Value) -> Memory:
    """The memory that a buffer stands for."""
    view: Value | None = None
    at = buffer
    while True:
        op = at.defining_op
        if op is None:
            return Memory(at, "parameter" if isinstance(at, Parameter) else "unknown", view)
        if op.name == "memref.reshape":
            at = op.operands[0]
        elif op.name == "memref.view":
            view = view if view is not None else at
            at = op.operands[0]
        elif op.name == "memref.from_tensor":
            return Memory(op.operands[0], "tensor", view)
        elif op.name == "memref.of_inout":
            return Memory(op.operands[0], "inout", view)
        else:
            return Memory(at, "alloc" if op.name == "memref.alloc" else "unknown", view)


def alias(a: Memory, b: Memory, windows: Windows | None = None) -> Alias:
    """Whether two memories are the same, have nothing in common, or may overlap; ``windows`` keeps what is known of views."""
    if a.base is b.base:
        if a.view is b.view:
            return "same"
        return "never" if a.view is not None and b.view is not None and _apart(a.view, b.view, {} if windows is None else windows) else "maybe"
    if _space(a) != _space(b):
        return "never"  # memory on a GPU's chip, and that around it
    kinds = {a.kind, b.kind}
    if kinds == {"parameter"} or "unknown" in kinds:
        return "maybe"
    return "never"


def _space(memory: Memory) -> str:
    type_ = memory.base.type
    return type_.space if isinstance(type_, MemRefType) else ""


def _apart(a: Value, b: Value, windows: Windows) -> bool:
    (start_a, stop_a), (start_b, stop_b) = _window(a, windows), _window(b, windows)
    return _not_negative(start_b - stop_a) or _not_negative(start_a - stop_b)


def _window(view: Value, windows: Windows) -> tuple[Dim, Dim]:
    """First byte and the one behind the last of a view; counted in what the outermost view is a part of."""
    found = windows.get(view)
    if found is None:
        assert isinstance(view.type, MemRefType)
        start: Dim = 0
        op = view.defining_op
        while op is not None and op.name in ("memref.view", "memref.reshape"):
            if op.name == "memref.view":
                offset: Any = op.attributes["offset"]
                start = start + offset
            op = op.operands[0].defining_op
        found = windows[view] = start, start + product(view.type.shape) * view.type.dtype.itemsize
    return found


def _not_negative(dim: Dim) -> bool:
    if isinstance(dim, int):
        return dim >= 0
    return isinstance(dim, DimExpr) and all(c >= 0 and all(isinstance(a, str) for a in m) for m, c in dim.terms)


def accesses_of(op: Operation) -> list[Access]:
    """What one operation reads and writes itself, not in its regions.

    An operation that is not known counts as reading and writing all of its buffers.
    """
    name = op.name
    if name in _SINGLE:
        return [_single(op, _SINGLE[name])]
    if name in _NO_ACCESS:
        return []
    if op.definition.is_terminator:  # a buffer that is handed on may be read by anyone
        return [_whole(op, v, False) for v in op.operands if isinstance(v.type, MemRefType)]
    buffers = list(dict.fromkeys(v for v in op.operands if isinstance(v.type, MemRefType)))
    if name in ("memref.to_tensor", "builtin.reads"):
        return [_whole(op, buffer, False) for buffer in op.operands]
    if name == "memref.copy":
        return [_whole(op, op.operands[0], False), _whole(op, op.operands[1], True)]
    return [_whole(op, b, w) for b in buffers for w in (False, True)]


def _single(op: Operation, writes: bool) -> Access:
    (access,) = written_accesses(op)
    indices = tuple(i.expr for i in access.indices)
    runs = tuple(i.size for i in access.indices)
    partial = bool(op.attributes.get(PRESENT))
    return Access(op, access.buffer, memory_of(access.buffer), indices, tuple(s or 1 for s in runs), writes, partial, runs)


def _whole(op: Operation, buffer: Value, writes: bool) -> Access:
    return Access(op, buffer, memory_of(buffer), None, (), writes)


def all_accesses(ops: Iterable[Operation]) -> list[Access]:
    """What operations and all inside them read and write, in order."""
    return [a for op in ops for inner in op.walk() for a in accesses_of(inner)]


def written_between(memory: Memory, first: Operation, last: Operation) -> bool:
    """Whether an operation between two of one block may write to a memory.

    Those that use the memory are looked at, which are few, unless it is known under other names, too.
    """
    writers = None if memory.kind in ("parameter", "unknown") else _writers(memory)
    if writers is not None and not writers:
        return False
    at = first.next
    while at is not None and at is not last:
        if writers is None and any(a.writes and alias(a.memory, memory) != "never" for a in all_accesses([at])):
            return True
        if writers is not None and at in writers:
            return True
        at = at.next
    return False


def _writers(memory: Memory) -> set[Operation] | None:
    """The operations that may write to a memory, and all around them; None when it is handed to operations that may call it something else."""
    found: set[Operation] = set()
    pending = [memory.base]
    while pending:
        value = pending.pop()
        for op in value.users:
            if op.name in _NAMES:
                pending += op.results
            elif not isinstance(value.type, MemRefType):
                continue
            elif (op.regions and op.definition.dialect != "linalg") or op.definition.is_terminator or _gives_buffers(op):
                return None
            elif any(a.writes and alias(a.memory, memory) != "never" for a in accesses_of(op)):
                at: Operation | None = op
                while at is not None and at not in found:
                    found.add(at)
                    at = at.block.parent.parent if at.block is not None and at.block.parent is not None else None
    return found


def _gives_buffers(op: Operation) -> bool:
    return any(isinstance(r.type, MemRefType) for r in op.results)


def stored_value(op: Operation) -> Value:
    """The value that a store writes."""
    return op.operand_uses[0].value


def is_movable(op: Operation) -> bool:
    """Whether an operation does nothing that others notice: a pure one, new memory, or a hint."""
    return is_pure(op) or op.name in ("memref.alloc", "memref.prefetch")


def has_other_effect(op: Operation) -> bool:
    """Whether the operation, or one inside it, has an effect other than reading and writing buffers (print, assert, ...)."""
    for inner in op.walk():
        definition = inner.definition
        if definition.pure or definition.is_terminator or definition.dialect in _CONTROL or inner.name in _SINGLE:
            continue
        if inner.name not in ("memref.alloc", "memref.copy", "memref.to_tensor", "memref.prefetch"):
            return True
    return False


def same_place(a: Access, b: Access) -> bool:
    """Whether two accesses mean the same elements whenever both run with the same values."""
    return (
        a.indices is not None
        and a.indices == b.indices
        and a.sizes == b.sizes
        and alias(a.memory, b.memory) == "same"
        and a.type.shape == b.type.shape
        and a.type.dtype == b.type.dtype
        and not a.partial
        and not b.partial
    )
