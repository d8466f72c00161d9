"""Scalars between nests: what was loaded on top of a graph is computed again in the kernels that use it.

The host knows dimensions and constants, and computes with them; all else is in memory that only kernels read.
"""

from __future__ import annotations

from dialects.gpu.launch import captured_values
from ir.builder import Builder
from ir.core import Block, Operation, Value
from ir.rewriter import is_pure
from ir.types import ScalarType, VectorType
from passes.gpu._kernels import launch
from passes.gpu._nests import is_host_control, is_host_value, is_lowered
from passes.loops._blocks import Place, alloc, load, store
from passes.loops._loops import body, clone_before, parent
from passes.loops._memory import alias, all_accesses, memory_of, written_between

_EFFECTS = ("memref.store", "vector.store", "cf.assert")


def is_serial(op: Operation) -> bool:
    """Whether an operation that the host comes to is for one thread: a store, a check, a loop or a choice without nests for all."""
    if op.name in _EFFECTS:
        return True
    return op.name in ("scf.for", "scf.if") and not is_host_control(op) and is_lowered(op) and not any(n.name == "gpu.launch" for n in op.walk())


def keep_results(block: Block) -> bool:
    """Stores the scalars that loops and choices of one thread result in, and loads them behind."""
    changed = False
    for op in list(block):
        if not op.results or not is_serial(op):
            continue
        for result in op.results:
            if result.has_uses:
                _keep(result)
                changed = True
    return changed


def _keep(value: Value) -> Value:
    """Stores a value in memory of its own behind where it is made; uses what is loaded from there instead."""
    op = value.defining_op
    assert op is not None and op.block is not None and isinstance(value.type, (ScalarType, VectorType))
    shape = value.type.shape if isinstance(value.type, VectorType) else (1,)
    places: list[Place] = [(0, size) for size in shape] if isinstance(value.type, VectorType) else [0]
    with Builder(op.block, op.next, origin=value.name, loc=op.loc):
        buffer = alloc(f"{value.name}.kept", value.type.dtype, *shape)
        again = load(buffer, *places, name=f"{value.name}.again")
        value.replace_all_uses_with(again)
    loaded = again.defining_op
    with Builder(op.block, loaded, origin=value.name, loc=op.loc):
        store(value, buffer, *places)
    return again


def bring_scalars(kernel: Operation) -> bool:
    """Computes scalars that a kernel uses, and the host does not know, inside of it."""
    found = [v for v in captured_values(kernel) if not is_host_value(v)]
    if not found:
        return False
    inside = body(kernel)
    first = inside.first
    mapping: dict[Value, Value] = {}
    for value in found:
        _bring(value, kernel, inside, first, mapping)
    for op in kernel.walk():
        if op is not kernel:
            for use in op.operand_uses:
                if use.value in mapping:
                    use.set(mapping[use.value])
    return True


def _bring(value: Value, kernel: Operation, inside: Block, first: Operation | None, mapping: dict[Value, Value]) -> None:
    """Copies what a value is made of to the start of a kernel."""
    if value in mapping or is_host_value(value):
        return
    op = value.defining_op
    assert op is not None, "a scalar that no kernel can compute"
    if op.name in ("memref.load", "vector.load") and _is_written(op, kernel):
        value = _store_at_once(op, mapping)
        op = value.defining_op
        assert op is not None
    for operand in op.operands:
        _bring(operand, kernel, inside, first, mapping)
    copy = clone_before(op, first, inside, dict(mapping))
    for old, new in zip(op.results, copy.results, strict=True):
        mapping[old] = new


def _is_written(load_: Operation, kernel: Operation) -> bool:
    """Whether the memory of a load may have changed until all threads of a kernel have loaded it."""
    memory = memory_of(load_.operands[0])
    if kernel.attribute("threads") != 1 and any(a.writes and alias(a.memory, memory) != "never" for a in all_accesses([kernel])):
        return True
    at: Operation | None = kernel
    while at is not None and at.block is not load_.block:
        at = parent(at)
    assert at is not None
    if at is not kernel and at.next is not None:
        at = at.next  # a loop around the kernel may write in an earlier round
    return written_between(memory, load_, at)


def _store_at_once(op: Operation, mapping: dict[Value, Value]) -> Value:
    """Keeps what a load finds in memory of its own, by a kernel in its place; gives the load of that."""
    again = _keep(op.result)
    made = op.next
    while made is not None and made.name not in ("memref.store", "vector.store"):
        made = made.next
    assert made is not None and op.block is not None
    with Builder(op.block, made, loc=op.loc):
        kernel = launch([("block", 1)], 1, lambda _: None, name=op.result.name, tag="serial")
    end = body(kernel).terminator
    for moved in (op, made):
        moved.remove()
        body(kernel).insert_before(end, moved)
    bring_scalars(kernel)
    return again


def drop_scalars(block: Block) -> bool:
    """Erases scalars of a block the host runs that no kernel asks it for any more."""
    changed = False
    for op in reversed(list(block)):
        if op.regions or not op.results or any(r.has_uses for r in op.results):
            continue
        if op.name in ("memref.load", "vector.load") or (is_pure(op) and op.definition.dialect in ("arith", "math", "affine", "vector")):
            op.erase()
            changed = True
    return changed
