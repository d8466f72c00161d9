"""Nests that move elements, and those that count: shapes, pieces, fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dialects.arith.cast import index_cast, sitofp
from dialects.arith.comparison import cmpi, select
from dialects.arith.integers import muli, subi
from dialects.graph._shapes import normalize_axes, normalize_axis
from dialects.memref import dim
from ir.core import Value
from ir.dims import Dim, dim_max, dim_min
from ir.types import ScalarType, i64, index
from passes.linalg._elementwise import broadcast_access, convert
from passes.linalg._nests import Access, Lowering, number, store, tensor_type


def _attribute(low: Lowering, name: str) -> Any:
    return low.op.attribute(name)


# -- shapes ------------------------------------------------------------------------------------------------------------


def reshaped(low: Lowering) -> list[Value]:
    """The same memory."""
    return [low.reshaped(low.operand("x"), tensor_type(low.op.result).shape)]


def transposed(low: Lowering) -> list[Value]:
    x = tensor_type(low.op.operands[0])
    perm = _attribute(low, "perm")
    axes = [a % x.rank for a in perm] if perm is not None else list(reversed(range(x.rank)))

    def place(names: Sequence[Dim]) -> list[Dim]:
        return [names[axes.index(a)] for a in range(x.rank)]

    return [_read_at(low, place)]


def _read_at(low: Lowering, place: Callable[[Sequence[Dim]], Sequence[Dim]], result: int = 0) -> Value:
    """A nest over a result that reads the first operand at a place of it."""
    source = low.buffer(low.op.operands[0])
    buffer = low.result_buffer(result)
    loops = low.loops(tensor_type(low.op.results[result]).shape)
    names = tuple(n.name for n in loops)
    low.copy(loops, Access(source, tuple(place(names))), Access(buffer, names))
    return buffer


def expanded(low: Lowering) -> list[Value]:
    shape = tensor_type(low.op.operands[0]).shape
    buffer = low.operand("x")
    return [_read_at(low, lambda names: broadcast_access(buffer, shape, tuple(names)).indices)]


def flipped(low: Lowering) -> list[Value]:
    x = tensor_type(low.op.operands[0])
    axes = normalize_axes(_attribute(low, "axes"), x.rank)
    return [_read_at(low, lambda names: [x.shape[i] - 1 - n if i in axes else n for i, n in enumerate(names)])]


def sliced(low: Lowering) -> list[Value]:
    x = tensor_type(low.op.operands[0])
    starts, axes = _attribute(low, "starts"), _attribute(low, "axes")
    steps = _attribute(low, "steps") or (1,) * len(starts)
    along = [normalize_axis(a, x.rank) for a in axes] if axes is not None else list(range(len(starts)))
    first: dict[int, tuple[Dim, int]] = {
        axis: (_first(x.shape[axis], start, step), step) for axis, start, step in zip(along, starts, steps, strict=True)
    }

    def place(names: Sequence[Dim]) -> list[Dim]:
        return [first[i][0] + n * first[i][1] if i in first else n for i, n in enumerate(names)]

    return [_read_at(low, place)]


def _first(size: Dim, start: Dim | None, step: int) -> Dim:
    """The position of the first element of a slice that has one."""
    if start is None:
        return 0 if step > 0 else size - 1
    if isinstance(start, int) and start < 0:
        return dim_max(0, size + start) if step > 0 else size + start
    # of a start behind the end nothing is selected when the step is positive
    return start if step > 0 else dim_min(start, size - 1)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _shifted(names: Sequence[Dim], axis: int, offset: Dim) -> tuple[Dim, ...]:
    return tuple(n + offset if i == axis else n for i, n in enumerate(names))


def concatenated(low: Lowering) -> list[Value]:
    """A nest for each operand."""
    axis = normalize_axis(_attribute(low, "axis"), tensor_type(low.op.result).rank)
    sources = [low.buffer(v) for v in low.op.operands]
    buffer = low.result_buffer()
    offset: Dim = 0
    for value, source in zip(low.op.operands, sources, strict=True):
        loops = low.loops(tensor_type(value).shape)
        names = tuple(n.name for n in loops)
        low.copy(loops, Access(source, names), Access(buffer, _shifted(names, axis, offset)))
        offset = offset + tensor_type(value).shape[axis]
    return [buffer]


def divided(low: Lowering) -> list[Value]:
    """A nest for each part."""
    axis = normalize_axis(_attribute(low, "axis"), tensor_type(low.op.operands[0]).rank)
    buffers: list[Value] = []
    offset: Dim = 0
    for number_, part in enumerate(low.op.results):
        buffers.append(_read_at(low, lambda names, offset=offset: _shifted(names, axis, offset), number_))  # type: ignore[misc]
        offset = offset + tensor_type(part).shape[axis]
    return buffers


def padded(low: Lowering) -> list[Value]:
    """A nest that fills, and one that copies."""
    source = low.operand("x")
    buffer = low.result_buffer()
    low.fill(buffer, _attribute(low, "value"))
    loops = low.loops(tensor_type(low.op.operands[0]).shape)
    names = tuple(n.name for n in loops)
    target = tuple(n + d for n, d in zip(names, _attribute(low, "low"), strict=True))
    low.copy(loops, Access(source, names), Access(buffer, target))
    return [buffer]


# -- without an operand ------------------------------------------------------------------------------------------------


def filled(low: Lowering) -> list[Value]:
    buffer = low.result_buffer()
    low.fill(buffer, _attribute(low, "value"))
    return [buffer]


def counted(low: Lowering) -> list[Value]:
    """``iota``."""
    result = tensor_type(low.op.result)
    axis = normalize_axis(_attribute(low, "axis"), result.rank)
    buffer = low.result_buffer()
    loops = low.loops(result.shape)

    def body(_: Value) -> Value:
        place = low.index(loops[axis])
        if result.dtype.is_float:
            return sitofp(place, result_type=ScalarType(result.dtype))  # type: ignore[no-any-return]
        if result.dtype == index:
            return place
        return convert(index_cast(place, result_type=ScalarType(i64)), result.dtype)

    low.generic(loops, [], Access(buffer, tuple(n.name for n in loops)), body)
    return [buffer]


def dimension(low: Lowering) -> list[Value]:
    """``dim``."""
    source = low.operand("x")
    axis = normalize_axis(_attribute(low, "axis"), tensor_type(low.op.operands[0]).rank)
    buffer = low.result_buffer()
    type_ = tensor_type(low.op.operands[0])
    with low.builder as builder:
        size = index_cast(dim(source, axis=axis), result_type=ScalarType(i64))
        if type_.dtype.is_block and axis == type_.rank - 1:
            size = muli(size, number(type_.dtype.block, i64))
        store(builder, size, buffer, [])
    return [buffer]


# -- triangles ---------------------------------------------------------------------------------------------------------


def triangle(low: Lowering) -> list[Value]:
    """``tril`` and ``triu``."""
    result = tensor_type(low.op.result)
    predicate = "le" if low.op.definition.name == "tril" else "ge"
    diagonal = _attribute(low, "diagonal")
    source = low.operand("x")
    buffer = low.result_buffer()
    loops = low.loops(result.shape)
    names = tuple(n.name for n in loops)

    def body(x: Value, _: Value) -> Value:
        distance = subi(low.index(loops[-1]), low.index(loops[-2]))
        kept = cmpi(distance, number(min(max(diagonal, -(2**62)), 2**62), index), predicate=predicate)
        return select(kept, x, number(0, result.dtype))  # type: ignore[no-any-return]

    low.generic(loops, [Access(source, names)], Access(buffer, names), body)
    return [buffer]
