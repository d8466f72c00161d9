"""Loops and choices that hand on tensors: the tensors get buffers outside, which rounds and branches write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dialects.memref import copy
from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Operation, Value
from ir.opdef import REGISTRY
from ir.types import ScalarType, TensorType, is_known
from passes.linalg._fusion import root
from passes.linalg._nests import Lowering
from passes.loops._loops import Bind, Form, number_layout, read_layout


def hands_on_tensors(op: Operation) -> bool:
    """Whether an operation is a loop or a choice with tensors of known types among its results."""
    if op.name not in ("scf.for", "scf.if"):
        return False
    tensors = [r for r in op.results if not isinstance(r.type, ScalarType)]
    return bool(tensors) and all(isinstance(r.type, TensorType) and is_known(r.type) for r in tensors)


def enter(low: Lowering, op: Operation) -> list[Value | None]:
    """Makes the buffers, one for each result that is a tensor; those of a loop start as the initial values."""
    low.begin(op)
    buffers: list[Value | None] = []
    for number, result in enumerate(op.results):
        if not isinstance(result.type, TensorType):
            buffers.append(None)
            continue
        buffer = low.alloc(result.type.dtype, result.type.shape, f"{result.name}.buffer")
        buffers.append(buffer)
        if op.name == "scf.for":
            initial = read_layout(op)[1 + number]
            assert isinstance(initial, Bind) and isinstance(initial.source, Value)
            low.builder.create(copy, [low.buffer(initial.source), buffer])
            low.set_buffer(op.regions[0].block.arguments[1 + number], buffer)
    return buffers


def leave(low: Lowering, op: Operation, buffers: Sequence[Value | None]) -> None:
    """Replaces the operation, whose regions are lowered, by one that hands on no tensors."""
    for region in op.regions:
        terminator = region.block.terminator
        assert terminator is not None
        _store_yielded(low, terminator, buffers)
    low.begin(op)
    made = _without_tensors(op, buffers)
    low.builder.before = made.next
    kept = iter(made.results)
    values = [next(kept) if b is None else low.tensor_of(b, r) for b, r in zip(buffers, op.results, strict=True)]
    names = [r.name for r in op.results]
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    graph = op.graph
    assert graph is not None
    op.erase()
    for value, name in zip(values, names, strict=True):
        graph.rename(value, name)
        value.auto_named = True


def _store_yielded(low: Lowering, terminator: Operation, buffers: Sequence[Value | None]) -> None:
    """Copies what a region yields into the buffers; by way of others where one of them is yielded in another's place."""
    low.begin(terminator)
    pairs = [(low.buffer(v), b) for v, b in zip(terminator.operands, buffers, strict=True) if b is not None]
    pairs = [(source, target) for source, target in pairs if source is not target]
    targets = [target for _, target in pairs]
    if any(root(source) in targets for source, _ in pairs):
        detour = []
        for source, target in pairs:
            type_ = source.type
            between = low.alloc(type_.dtype, type_.shape, f"{target.name}.next")  # type: ignore[union-attr]
            low.builder.create(copy, [source, between])
            detour.append((between, target))
        pairs = detour
    for source, target in pairs:
        low.builder.create(copy, [source, target])
    kept = [v for v, b in zip(terminator.operands, buffers, strict=True) if b is None]
    block = terminator.block
    assert block is not None
    terminator.erase()
    Builder(block, loc=terminator.loc).create(yield_, kept)


def _without_tensors(op: Operation, buffers: Sequence[Value | None]) -> Operation:
    """The same loop or choice around the same regions, without what is a tensor."""
    forms: list[Form] = read_layout(op)
    graph = op.graph
    assert graph is not None and op.block is not None
    if op.name == "scf.for":
        forms = [forms[0], *(f for f, b in zip(forms[1:], buffers, strict=True) if b is None)]
        block = op.regions[0].block
        dropped = [a for a, b in zip(block.arguments[1:], buffers, strict=True) if b is not None]
        for argument in dropped:
            if argument.has_uses:  # an operation without a lowering reads it
                builder = Builder(block, block.first)
                buffer = buffers[argument.index - 1]
                assert buffer is not None
                argument.replace_all_uses_with(builder.create(REGISTRY["memref.to_tensor"], [buffer]).result)
            graph._release(argument.name)
        block.arguments = [a for a in block.arguments if a not in dropped]
        for index, argument in enumerate(block.arguments):
            argument.index = index
    regions, op.regions = op.regions, ()
    for region in regions:  # their names are still those of the graph; the new operation claims them again
        for inner in region.blocks[0]:
            graph._forget_names(inner)
        for argument in region.blocks[0].arguments:
            graph._release(argument.name)
    operands, layout = number_layout(forms, graph)
    attributes: Any = {**op.attributes, "operand.layout": layout}
    types = [r.type for r, b in zip(op.results, buffers, strict=True) if b is None]
    made = Builder(op.block, op, loc=op.loc).create(op.definition, operands, attributes, regions=regions, result_types=types)
    return made

