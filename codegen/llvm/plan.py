"""Where the memory of buffers is, and who writes it: what the main function must know beforehand."""

from __future__ import annotations

from ir.core import Graph, Operation, Parameter, Value
from ir.layout import AccessArg, layout_of

_WRITES = ("memref.store", "vector.store")


def root_of(value: Value) -> Value:
    """The allocation, parameter or tensor that a buffer is a part of."""
    op = value.defining_op
    while op is not None and op.definition.full_name in ("memref.reshape", "memref.view", "memref.from_tensor", "memref.of_inout"):
        value = op.operand_uses[0].value
        op = value.defining_op
    return value


def written(op: Operation) -> list[Value]:
    """Roots of the buffers that an operation writes, operations inside of it included."""
    found: dict[Value, None] = {}
    for nested in op.walk():
        name = nested.definition.full_name
        if name in _WRITES:
            access = layout_of(nested)[1]
            assert isinstance(access, AccessArg)
            found[root_of(nested.operand_uses[access.position].value)] = None
        elif name == "memref.copy":
            found[root_of(nested.operand_uses[1].value)] = None
    return list(found)


def effects(op: Operation) -> bool:
    """Whether an operation writes memory, itself or in its regions."""
    return bool(written(op))


def has_shared_loop(op: Operation) -> bool:
    """Whether there is a loop that threads share inside of the operation."""
    return any(o.definition.full_name == "scf.parallel" and o.attribute("mapping") == "threads" for o in op.walk() if o is not op)


def writes_later(graph: Graph, op: Operation, source: Value) -> bool:
    """Whether something behind ``op`` may write the memory of ``source``; arrays of parameters may overlap."""
    root = root_of(source)
    following = op.next
    while following is not None:
        for target in written(following):
            if target is root or (isinstance(target, Parameter) and isinstance(root, Parameter)):
                return True
        following = following.next
    return False


def result_memory(graph: Graph) -> dict[Value, int]:
    """Allocations that can be in the memory of a result (by position), so that nothing is copied at the end."""
    found: dict[Value, int] = {}
    for position, value in enumerate(graph.results):
        op = value.defining_op
        if op is None or op.definition.full_name != "memref.to_tensor" or op.block is not graph.block:
            continue
        source = op.operand_uses[0].value
        root = source
        while root.defining_op is not None and root.defining_op.definition.full_name == "memref.reshape":
            root = root.defining_op.operand_uses[0].value
        made = root.defining_op
        if made is None or made.definition.full_name != "memref.alloc" or made.block is not graph.block or root in found:
            continue
        if not writes_later(graph, op, source):
            found[root] = position
    return found
