"""Nests that only copy what a kernel has stored: the kernel can store it where they would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.core import Block, Operation, Value
from ir.dims import Dim, substitute, symbols_of
from ir.layout import IndexExpr
from ir.rewriter import is_pure
from ir.types import MemRefType
from passes.gpu._nests import inside_of, is_lowered, parallel_nest
from passes.loops._loops import Access, accesses, move_into, read_layout, value_symbol, write_layout
from passes.loops._memory import alias, all_accesses, memory_of, stored_value

_PASSED = ("memref.alloc", "memref.from_tensor", "memref.of_inout", "memref.view", "memref.reshape", "memref.dim", "memref.load", "cf.assert")
"""What may stand between a kernel and a copy: nothing here writes, and a check fails before or behind the kernel alike."""


@dataclass(frozen=True)
class Copy:
    """A nest that copies all of ``source`` into another buffer: the element at ``variables`` to ``places``."""

    nest: Operation
    source: Value
    variables: Sequence[Dim]
    target: Value
    places: Sequence[Dim]


def find_copy(op: Operation) -> Copy | None:
    """What a nest copies, if it does nothing else."""
    if op.name != "scf.parallel" or not is_lowered(op):
        return None
    nest = parallel_nest(op)
    inside = [o for o in nest.body if not o.definition.is_terminator]
    if [o.name for o in inside] != ["memref.load", "memref.store"] or not nest.starts_at_zero():
        return None
    load, store = inside
    (read,), (written,) = accesses(load), accesses(store)
    source, places = read.buffer, [i.expr for i in read.indices]
    variables, made = [value_symbol(v) for v in nest.variables], source.defining_op
    if stored_value(store) is not load.results[0] or made is None or made.name != "memref.alloc":
        return None
    assert isinstance(source.type, MemRefType)
    if places != variables or list(source.type.shape) != list(nest.counts):
        return None
    if alias(memory_of(source), memory_of(written.buffer)) != "never":
        return None
    return Copy(op, source, variables, written.buffer, [i.expr for i in written.indices])


def store_where_copied(copy: Copy) -> bool:
    """Makes the kernel that fills the source of a copy store into its target; False where it can't."""
    launch = _writer(copy)
    if launch is None or not _only_stores(copy, launch):
        return False
    stores = [op for op in launch.walk() if op.name in ("memref.store", "vector.store") and memory_of(_target(op)).base is copy.source]
    moved = [_moved(copy, op) for op in stores]
    block = copy.nest.block
    assert block is not None
    if any(m is None for m in moved):
        return False
    move_into(launch, block, copy.nest)  # what says where to is known there
    for op, access in zip(stores, moved, strict=True):
        old = _target(op)
        write_layout(op, [access if isinstance(f, Access) and f.buffer is old else f for f in read_layout(op)])  # type: ignore[misc]
    copy.nest.erase()
    _erase(copy.source)
    return True


def _writer(copy: Copy) -> Operation | None:
    """The kernel in front of a copy."""
    assert copy.nest.block is not None
    before = list(_before(copy.nest.block, copy.nest))
    for op in reversed(before):
        if op.name == "gpu.launch":
            return op
        if op.regions or not (is_pure(op) or op.name in _PASSED):
            return None
    return None


def _before(block: Block, end: Operation) -> Sequence[Operation]:
    found = []
    for op in block:
        if op is end:
            break
        found.append(op)
    return found


def _only_stores(copy: Copy, launch: Operation) -> bool:
    """Whether a kernel does nothing but fill the source of a copy, which nobody else knows, and has nothing to do with the target."""
    for access in all_accesses([launch]):
        if access.writes and (access.memory.base is not copy.source or access.indices is None):
            if access.type.space not in ("shared", "local"):
                return False
        elif not access.writes and alias(access.memory, memory_of(copy.source)) != "never":
            return False
        if alias(access.memory, memory_of(copy.target)) != "never":
            return False
    return all(inside_of(u, launch) or inside_of(u, copy.nest) for u in _users(copy.source))


def _users(buffer: Value) -> list[Operation]:
    """What uses a buffer, under any name."""
    found = []
    for user in buffer.users:
        found += _users(user.results[0]) if user.name == "memref.reshape" else [user]
    return found


def _target(op: Operation) -> Value:
    return accesses(op)[0].buffer


def _moved(copy: Copy, op: Operation) -> Access | None:
    """Where a store goes instead; None where that is no run of neighbours."""
    (access,) = accesses(op)
    places = _places(access, copy.source)
    if places is None:
        return None
    mapping: Mapping[str, Dim] = {str(v): p.expr for v, p in zip(copy.variables, places, strict=True)}
    size = places[-1].size if places else None
    if any(p.size is not None for p in places[:-1]):
        return None
    *front, last = copy.places
    own = str(copy.variables[-1])
    if size is not None and (last != copy.variables[-1] or any(own in symbols_of(p) for p in front)):
        return None
    return Access(copy.target, (*(IndexExpr(substitute(p, mapping)) for p in front), IndexExpr(substitute(last, mapping), size)))


def _places(access: Access, source: Value) -> list[IndexExpr] | None:
    """The indices of a store as those of the buffer itself, of which it may see a view with other dimensions of one."""
    if access.buffer is source:
        return list(access.indices)
    view, type_ = access.buffer.type, source.type
    made = access.buffer.defining_op
    assert isinstance(view, MemRefType) and isinstance(type_, MemRefType)
    if made is None or made.name != "memref.reshape" or made.operands[0] is not source:
        return None
    if [d for d in view.shape if d != 1] != [d for d in type_.shape if d != 1]:
        return None
    found = iter([i for i, d in zip(access.indices, view.shape, strict=True) if d != 1])
    return [IndexExpr(0) if d == 1 else next(found) for d in type_.shape]


def _erase(buffer: Value) -> None:
    """Erases memory that nothing uses any more, and names of it."""
    for user in list(buffer.users):
        user.erase()
    assert buffer.defining_op is not None
    buffer.defining_op.erase()
