"""Reductions on top of a graph: what follows each other there becomes a nest with one row, which many threads can share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dialects.gpu.launch import captured_values
from ir.builder import Builder
from ir.core import Block, Operation, Value
from ir.dims import is_static
from ir.layout import RangeArg
from ir.rewriter import is_pure, move_before
from ir.types import ScalarType
from passes.gpu._nests import is_host_control, is_lowered, own_buffers, parallel_nest
from passes.gpu._rows import reduction_of
from passes.loops._blocks import alloc, load, store
from passes.loops._loops import body, create_loop, end_loop
from passes.loops._memory import all_accesses

_MOST_COLUMNS = 16384
"""Elements that one block may go through when a kernel of its own would have more threads."""
_FOR_HOST = ("memref.alloc", "memref.from_tensor", "memref.of_inout", "memref.view", "memref.reshape", "memref.dim")


@dataclass
class _Group:
    """Operations that follow each other, ``between`` are those for the host that go in front of them."""

    ops: list[Operation] = field(default_factory=list)
    between: list[Operation] = field(default_factory=list)
    made: set[Value] = field(default_factory=set)
    touched: set[Value] = field(default_factory=set)
    length: int = 0
    """Operations up to the last one that has an effect."""

    def add(self, op: Operation) -> None:
        self.ops.append(op)
        self.made.update(op.results)
        found = all_accesses([op])
        self.touched.update(a.memory.base for a in found)
        if op.regions or op.name == "memref.store":
            self.length = len(self.ops)

    def uses(self, op: Operation) -> bool:
        """Whether an operation uses a value of the group."""
        return any(v in self.made for v in (*op.operands, *(captured_values(op) if op.regions else ())))

    def belongs(self, op: Operation) -> bool:
        """Whether an operation has to do with the group: by a value, or by memory."""
        return self.uses(op) or any(a.memory.base in self.touched for a in all_accesses([op]))


def gather_rows(block: Block) -> list[Operation]:
    """Makes nests of one row of the reductions in a block, with the scalars and short loops that belong to them."""
    found = []
    op = block.first
    while op is not None:
        if _is_reduction(op):
            wrapper = _wrap(_group(op))
            found.append(wrapper)
            op = wrapper
        op = op.next
    return found


def _is_reduction(op: Operation) -> bool:
    return op.name == "scf.for" and bool(op.results) and is_lowered(op) and not is_host_control(op) and reduction_of(op) is not None


def _group(first: Operation) -> _Group:
    """The operations from a reduction on that may be run with it."""
    group = _Group()
    group.add(first)
    op = first.next
    while op is not None and not op.definition.is_terminator:
        scalar = all(isinstance(r.type, ScalarType) for r in op.results) and not op.regions
        if _is_reduction(op) or _are_columns(op):
            if not group.belongs(op):
                break
            group.add(op)
        elif op.name in ("memref.load", "memref.store") or (scalar and is_pure(op) and group.uses(op)):
            group.add(op)
        elif (op.name in _FOR_HOST or (scalar and is_pure(op))) and not group.uses(op):
            group.between.append(op)
        else:
            break
        op = op.next
    group.ops = group.ops[: group.length]
    return group


def _are_columns(op: Operation) -> bool:
    """Whether an operation is a loop over few elements, with a straight body."""
    if op.name != "scf.parallel" or not is_lowered(op) or own_buffers(op):
        return False
    nest = parallel_nest(op)
    inside = [n for o in nest.body for n in o.walk()]
    few = is_static(nest.total) and isinstance(nest.total, int) and nest.total <= _MOST_COLUMNS
    return few and nest.starts_at_zero() and not any(n.name in ("scf.for", "scf.parallel", "cf.assert") for n in inside)


def _wrap(group: _Group) -> Operation:
    """Puts a group into a parallel loop of one round."""
    first, members = group.ops[0], set(group.ops)
    block = first.block
    assert block is not None
    for op in _before_last(group):
        move_before(op, first, block)
    kept = [r for op in group.ops for r in op.results if any(not _inside(u, members) for u in r.users)]
    with Builder(block, first, loc=first.loc) as builder:
        buffers = [alloc(f"{v.name}.kept", v.type.dtype, 1) for v in kept if isinstance(v.type, ScalarType)]
        wrapper = create_loop(builder, "scf.parallel", RangeArg(0, 1, 1), name="row", tag="row")
    with Builder(block, wrapper.next, loc=first.loc):
        again = [load(b, 0, name=v.name) for v, b in zip(kept, buffers, strict=True)]
    for op in group.ops:
        move_before(op, None, body(wrapper))
    with Builder(body(wrapper), loc=first.loc):
        for value, buffer, new in zip(kept, buffers, again, strict=True):
            for use in value.uses:
                if not _inside(use.owner, members):
                    use.set(new)
            store(value, buffer, 0)
    end_loop(wrapper)
    return wrapper


def _before_last(group: _Group) -> Sequence[Operation]:
    """What stands between the operations of a group."""
    last = group.ops[-1]
    found, at = [], group.ops[0].next
    between = set(group.between)
    while at is not None and at is not last:
        if at in between:
            found.append(at)
        at = at.next
    return found


def _inside(op: Operation, members: set[Operation]) -> bool:
    """Whether an operation is one of the members, or stands in one."""
    at: Operation | None = op
    while at is not None:
        if at in members:
            return True
        region = at.block.parent if at.block is not None else None
        at = region.parent if region is not None else None
    return False
