"""Buffers that nothing reads, and the nests that only write to them."""

from __future__ import annotations

from ir.core import Graph, Operation, Value
from ir.layout import BindArg, layout_of
from ir.rewriter import is_pure
from passes.infra.base import PassContext
from passes.linalg._fusion import Nest, aliases, has_effects_beside_memory, root, set_bindings, users_of_memory, written_memory


def remove_dead_buffers(graph: Graph, context: PassContext) -> None:
    """Erases buffers that nothing reads, and the nests that only write to them."""
    for op in reversed(list(graph.block)):
        if op.block is None:
            continue
        if op.name == "memref.alloc":
            if remove_unread(op.results[0]):
                context.count("buffers removed")
        elif op.results and not any(r.has_uses for r in op.results) and is_pure(op) and op.definition.dialect in ("memref", "arith", "graph"):
            op.erase()
            context.count("operations removed")


def only_writes(op: Operation, buffer: Value) -> bool:
    """Whether an operation does nothing with some memory but write it in nests."""
    memory = root(buffer)
    if op.name != "linalg.generic":
        return False
    bindings = [a.source for a in layout_of(op) if isinstance(a, BindArg)]
    terminator = op.regions[0].block.terminator
    first = len(bindings) - (len(terminator.operand_uses) if terminator is not None else 0)
    for position, (binding, argument) in enumerate(zip(bindings, op.regions[0].block.arguments, strict=True)):
        if root(op.operand_uses[binding.position].value) is memory and (position < first or argument.has_uses):
            return False
    return True


def drop_output(op: Operation, buffer: Value) -> None:
    """Takes a buffer that nothing reads out of a nest; a nest without any effect left is erased."""
    nest = Nest(op)
    memory = root(buffer)
    set_bindings(op, nest.reads, [o for o in nest.outputs if root(o.buffer) is not memory])
    while op.block is not None and not written_memory(op) and not has_effects_beside_memory(op) and op.name == "linalg.generic":
        parent = op.block.parent.parent if op.block.parent is not None else None
        op.erase()
        if parent is None:
            return
        op = parent


def remove_unread(buffer: Value) -> bool:
    """Erases a buffer of the graph's own that is only written, with what only writes to it; returns whether it was one."""
    memory = root(buffer)
    op = memory.defining_op
    if op is None or op.name != "memref.alloc":
        return False
    users = users_of_memory(memory)
    if any(not only_writes(u, memory) for u in users):
        return False
    for user in users:
        if user.block is not None:
            drop_output(user, memory)
    for view in reversed(aliases(memory)[1:]):
        if view.defining_op is not None:
            view.defining_op.erase()
    op.erase()
    return True
