"""Nests that read and write at places which tensors of indices say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dialects.arith.bits import andi
from dialects.arith.comparison import cmpi
from dialects.arith.integers import subi
from ir.core import Value
from ir.dims import Dim
from ir.types import boolean, index
from passes.linalg._bodies import (
    Described,
    Place,
    axis_of,
    buffer_type,
    check,
    from_start,
    load,
    parallel,
    require_elements,
    serial,
    size_of,
    store,
    to_index,
)
from passes.linalg._nests import Access, Lowering, number, tensor_type
from passes.linalg._quantized import gathered_blocks


def check_indices(low: Lowering, indices: Value, x: Value, axis: int, tensor: Value) -> Callable[[], Value]:
    """A nest that looks at every index before one is used, so an empty result does not hide one that is wrong.

    ``tensor`` is what lies in the buffer ``x``.  Returns what makes the size of the axis in a body.
    """
    name, shown = low.op.definition.name, low.op.attribute("axis")
    extent = buffer_type(x).shape[axis]
    loops = low.loops(buffer_type(indices).shape)
    count = size_of(low, x, axis)
    described = Described()
    where = " at position [{1}]" if len(loops) == 1 else ""  # there is no room for more
    bound = described.dim(extent)
    message = f"{name}: {name} index {{0}}{where} is out of range for axis {shown}: expected -{bound} <= index < {bound}"

    def body(stored: Value) -> None:
        if extent == 0:
            empty = Described()
            check(number(False, boolean), f"{name}: no index is in range: dimension {axis} of {empty.type(tensor)} is 0", (), empty)
        require_elements(x, axis, f"{name}: no index is in range: dimension {axis} of {{x}} is 0", tensor)
        at = to_index(stored)
        lowest = number(-extent, index) if isinstance(extent, int) else subi(number(0, index), count())
        inside = andi(cmpi(at, lowest, predicate="ge"), cmpi(at, count(), predicate="lt"))
        check(inside, message, [at, *([low.index(loops[0])] if where else [])], described)

    low.generic(loops, [Access(indices, tuple(n.name for n in loops))], None, body)
    return count


def gathered(low: Lowering) -> list[Value]:
    """``gather``: a nest over the result, with the index in its body."""
    axis = axis_of(low)
    source, indices = low.operand("x"), low.operand("indices")
    count = check_indices(low, indices, source, axis, low.op.operands[0])
    if tensor_type(low.op.operands[0]).dtype.is_block:
        return [gathered_blocks(low, source, indices, axis, count)]
    rank = len(buffer_type(indices).shape)
    loops = low.loops(tensor_type(low.op.result).shape)
    names: tuple[Dim, ...] = tuple(n.name for n in loops)

    def body(stored: Value, _: Value) -> Value:
        at = from_start(to_index(stored), count())
        return load(source, [*names[:axis], at, *names[axis + rank :]])

    buffer = low.result_buffer()
    low.generic(loops, [Access(indices, names[axis : axis + rank])], Access(buffer, names), body)
    return [buffer]


def gathered_elements(low: Lowering) -> list[Value]:
    """``gather_elements``: the same with an index for every element."""
    axis = axis_of(low)
    source, indices = low.operand("x"), low.operand("indices")
    count = check_indices(low, indices, source, axis, low.op.operands[0])
    loops = low.loops(tensor_type(low.op.result).shape)
    names: tuple[Dim, ...] = tuple(n.name for n in loops)

    def body(stored: Value, _: Value) -> Value:
        return load(source, [*names[:axis], from_start(to_index(stored), count()), *names[axis + 1 :]])

    buffer = low.result_buffer()
    low.generic(loops, [Access(indices, names)], Access(buffer, names), body)
    return [buffer]


def scattered(low: Lowering) -> list[Value]:
    """``scatter``: a copy, then serial loops over the indices, so that the last of equal ones wins."""
    axis = axis_of(low)
    source, indices, updates = low.operand("x"), low.operand("indices"), low.operand("updates")
    count = check_indices(low, indices, source, axis, low.op.operands[0])
    shape, counted = buffer_type(source).shape, buffer_type(indices).shape
    buffer = low.result_buffer()
    loops = low.loops(shape)
    names = tuple(n.name for n in loops)
    low.copy(loops, Access(source, names), Access(buffer, names))

    def over_indices(outer: list[Place], at: list[Place]) -> None:
        if len(at) == len(counted):
            target = from_start(to_index(load(indices, at)), count())
            parallel(shape[axis + 1 :], lambda inner: move([*outer, *at, *inner], [*outer, target, *inner]), tag="col")
            return

        def deeper(next_: Value) -> Sequence[Value]:
            over_indices(outer, [*at, next_])
            return ()

        serial(0, counted[len(at)], [], deeper)

    def move(source_places: list[Place], target_places: list[Place]) -> None:
        store(load(updates, source_places), buffer, target_places)

    with low.builder:
        parallel(shape[:axis], lambda outer: over_indices(outer, []))
    return [buffer]
