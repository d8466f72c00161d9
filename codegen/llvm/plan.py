"""Where the memory of buffers is, and who writes it: what the main function must know beforehand."""

from __future__ import annotations

from collections.abc import Mapping

from ir.core import Graph, Operation, Parameter, Value
from ir.layout import AccessArg, layout_of
from ir.structure import Copies
from ir.types import MemRefType

_WRITES = ("memref.store", "vector.store")


def root_of(value: Value, mapping: Mapping[Value, Value] | None = None) -> Value:
    """The allocation, parameter or tensor that a buffer is a part of; ``mapping`` has values that stand in the place of others."""
    while mapping is None or value not in mapping:
        op = value.defining_op
        if op is None or op.definition.full_name not in ("memref.reshape", "memref.view", "memref.from_tensor", "memref.of_inout"):
            return value
        value = op.operand_uses[0].value
    return root_of(mapping[value])


def written(op: Operation, copies: Copies) -> list[Value]:
    """Roots of the buffers that an operation writes, operations inside of it included."""
    found: dict[Value, None] = {}
    _find_written(op, copies, None, found)
    return list(found)


def _find_written(op: Operation, copies: Copies, mapping: Mapping[Value, Value] | None, found: dict[Value, None]) -> None:
    name = op.definition.full_name
    if name in _WRITES:
        access = layout_of(op)[1]
        assert isinstance(access, AccessArg)
        found[root_of(op.operand_uses[access.position].value, mapping)] = None
    elif name == "memref.copy":
        found[root_of(op.operand_uses[1].value, mapping)] = None
    if op.regions:
        copy = copies.get(op)
        inside = copy.mapping if copy is not None and copy.locations is not None else mapping
        for region in op.regions:
            for block in region.blocks:
                for inner in block:
                    _find_written(inner, copies, inside, found)


def effects(op: Operation) -> bool:
    """Whether an operation writes memory, itself or in its regions."""
    return any(o.definition.full_name in _WRITES or o.definition.full_name == "memref.copy" for o in op.walk())


def has_shared_loop(op: Operation) -> bool:
    """Whether there is a loop that threads share inside of the operation."""
    return any(o.definition.full_name == "scf.parallel" and o.attribute("mapping") == "threads" for o in op.walk() if o is not op)


def writes_later(graph: Graph, op: Operation, source: Value, copies: Copies) -> bool:
    """Whether something behind ``op`` may write the memory of ``source``; arrays of parameters may overlap."""
    root = root_of(source)
    following = op.next
    while following is not None:
        for target in written(following, copies):
            if target is root or (isinstance(target, Parameter) and isinstance(root, Parameter)):
                return True
        following = following.next
    return False


def result_memory(graph: Graph, copies: Copies) -> dict[Value, int]:
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
        aligned = isinstance(root.type, MemRefType) and root.type.align > root.type.dtype.itemsize  # results begin anywhere
        if not aligned and not writes_later(graph, op, source, copies):
            found[root] = position
    return found
