"""Nests of matrix products and reductions: over the result, with a reduction inside.

f16 and bf16 are summed in f32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from dialects.arith.bits import andi, ori
from dialects.arith.cast import index_cast, sitofp
from dialects.arith.floats import addf, divf, maximumf, minimumf, mulf
from dialects.arith.integers import addi, maxsi, maxui, minsi, minui, muli
from dialects.graph._shapes import normalize_axes
from dialects.math.exact import fma
from ir.core import Operation, Value
from ir.dims import Dim
from ir.types import DType, MemRefType, ScalarType, i64, index
from passes.linalg._bodies import require_elements, size
from passes.linalg._elementwise import broadcast_access
from passes.linalg._nests import Access, Loop, Lowering, narrow, number, tensor_type, wide_dtype, widen

# -- matrix products ---------------------------------------------------------------------------------------------------


def _factor(buffer: Value, shape: tuple[Dim, ...], batch: tuple[Dim, ...], matrix: tuple[Dim, ...]) -> Access:
    """The element of a factor: its batch dimensions broadcast, its own last indices."""
    own = len(matrix)
    outer = broadcast_access(buffer, shape[: len(shape) - own], batch)
    return Access(buffer, (*outer.indices, *matrix))


_STORED = ("graph.weight", "graph.constant", "graph.initial")


def _rows(low: Lowering, rows: str, name: str) -> Value:
    """The buffer of a factor; that of the ``rows``, which are read again for every block of columns, wide.

    The other factor is widened in the product's loops, vector by vector, and so is what is stored with the program.
    """
    tensor, buffer = low.op.operand(name), low.operand(name)
    assert tensor is not None and low.op.block is not None
    type_ = tensor_type(tensor)
    if name != rows or type_.dtype == wide_dtype(type_.dtype) or (tensor.defining_op is not None and tensor.defining_op.name in _STORED):
        return buffer
    if (low.op.block, tensor) in low.wide:
        return low.wide[low.op.block, tensor]
    wide = low.wide[low.op.block, tensor] = low.alloc(wide_dtype(type_.dtype), type_.shape, f"{tensor.name}.wide")
    loops = low.loops(type_.shape)
    place = tuple(n.name for n in loops)
    low.generic(loops, [Access(buffer, place)], Access(wide, place), lambda x, _: widen(x))
    return wide


def matmul(low: Lowering) -> list[Value]:
    """One chain of fused multiply-adds over ascending k from zero for each element.

    Rows of f16 and bf16 are widened in front.
    """
    op = low.op
    a, b, result = tensor_type(op.operands[0]), tensor_type(op.operands[1]), tensor_type(op.result)
    transposed_a, transposed_b = op.attribute("transpose_a"), op.attribute("transpose_b")
    *outer, k = low.names(result.rank + 1)
    names: tuple[Dim, ...] = tuple(outer)
    batch = names[: result.rank - (a.rank > 1) - (b.rank > 1)]
    rest = list(names[len(batch) :])
    row: tuple[Dim, ...] = (rest.pop(0), k) if a.rank > 1 else (k,)
    column: tuple[Dim, ...] = (k, rest.pop(0)) if b.rank > 1 else (k,)
    inner = a.shape[-2] if transposed_a else a.shape[-1]
    one_column = b.rank == 1 or result.shape[-1] == 1
    left = _factor(_rows(low, "b" if one_column else "a", "a"), a.shape, batch, row[::-1] if transposed_a else row)
    right = _factor(_rows(low, "b" if one_column else "a", "b"), b.shape, batch, column[::-1] if transposed_b else column)
    loops = [Loop(n, d) for n, d in zip(outer, result.shape, strict=True)]

    def step(x: Value, y: Value, total: Value) -> Value:
        if result.dtype.is_float:
            return fma(widen(x), widen(y), total)  # type: ignore[no-any-return]
        return addi(total, muli(x, y))  # type: ignore[no-any-return]

    def body(_: Value) -> Value:
        zero = number(0, wide_dtype(result.dtype))
        return narrow(low.reduce([Loop(k, inner)], [left, right], zero, step), result.dtype)

    buffer = low.result_buffer()
    low.generic(loops, [], Access(buffer, names), body)
    return [buffer]


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduced_axes(op: Operation) -> tuple[int, ...]:
    axes: Any = op.attribute("axes")
    return normalize_axes(axes, tensor_type(op.operands[0]).rank)


def _nest(
    low: Lowering,
    start: float | int | bool,
    step: Callable[[Value, Value], Value],
    finish: Callable[[Value], Value] = lambda x: x,
) -> list[Value]:
    """For every element of the result: ``start``, then ``step`` with every element of the operand, then ``finish``.

    Both work in the type that is computed in; the result is rounded once.
    """
    op = low.op
    x, result = tensor_type(op.operands[0]), tensor_type(op.result)
    axes = _reduced_axes(op)
    names = low.names(x.rank)
    kept = [Loop(names[i], d) for i, d in enumerate(x.shape) if i not in axes]
    reduced = [Loop(names[i], x.shape[i]) for i in axes]
    target: Sequence[Dim] = [n.name for n in kept]
    if op.attribute("keepdims"):
        target = [0 if i in axes else n for i, n in enumerate(names)]
    source, buffer = low.operand("x"), low.result_buffer()
    read = Access(source, tuple(names))

    def body(_: Value) -> Value:
        wide = number(start, wide_dtype(result.dtype))
        total = low.reduce(reduced, [read], wide, lambda a, o: step(o, widen(a)))
        return narrow(finish(total), result.dtype)

    low.generic(kept, [], Access(buffer, tuple(target)), body)
    return [buffer]


def summed(low: Lowering) -> list[Value]:
    """``sum``."""
    return _nest(low, 0, addf if tensor_type(low.op.result).dtype.is_float else addi)


def multiplied(low: Lowering) -> list[Value]:
    """``prod``."""
    return _nest(low, 1, mulf if tensor_type(low.op.result).dtype.is_float else muli)


def averaged(low: Lowering) -> list[Value]:
    """``mean``: a sum that is divided."""
    wide = wide_dtype(tensor_type(low.op.result).dtype)
    count = _count(low, low.operand("x"), _reduced_axes(low.op), wide)
    return _nest(low, 0, addf, lambda total: divf(total, count))


def _count(low: Lowering, buffer: Value, axes: Sequence[int], dtype: DType) -> Value:
    """How many elements there are along some axes, as a float, in front of the nests.

    What is not known yet is asked for once in a block: a question about a buffer would keep the nests around it apart.
    """
    assert isinstance(buffer.type, MemRefType) and low.op.block is not None
    shape = buffer.type.shape
    fixed = math.prod(d for a in axes if isinstance(d := shape[a], int))
    extents = tuple(shape[a] for a in axes)
    if all(isinstance(d, int) for d in extents):
        with low.builder:
            return number(fixed, dtype)
    key = (low.op.block, extents, dtype)
    if key not in low.counts:
        low.counts[key] = _open_count(low, buffer, axes, fixed, dtype)
    return low.counts[key]


def _open_count(low: Lowering, buffer: Value, axes: Sequence[int], fixed: int, dtype: DType) -> Value:
    assert isinstance(buffer.type, MemRefType)
    shape = buffer.type.shape
    with low.builder:
        sizes = [index_cast(size(buffer, a), result_type=ScalarType(i64)) for a in axes if not isinstance(shape[a], int)]
        if fixed != 1:
            sizes.append(number(fixed, i64))
        return sitofp(functools.reduce(muli, sizes), result_type=ScalarType(dtype))  # type: ignore[no-any-return]


def extreme_of(dtype: DType, *, largest: bool) -> tuple[Callable[[Value, Value], Value], float | int]:
    """The operation that chooses the larger, or smaller, of two elements, and what it never prefers."""
    if dtype.is_float:
        return (maximumf, -math.inf) if largest else (minimumf, math.inf)
    if dtype.kind == "uint":
        return (maxui, dtype.min_value) if largest else (minui, dtype.max_value)
    return (maxsi, dtype.min_value) if largest else (minsi, dtype.max_value)


def extreme(low: Lowering) -> list[Value]:
    """``max`` and ``min``."""
    dtype, initial = tensor_type(low.op.result).dtype, low.op.attribute("initial")
    choose, start = extreme_of(dtype, largest=low.op.definition.name == "max")
    if initial is not None:
        assert isinstance(initial, (int, float))
        start = initial
    else:
        source = low.operand("x")
        with low.builder:
            for axis in _reduced_axes(low.op):
                require_elements(source, axis, f"{low.op.definition.name}: {{x}} has no elements along axis {axis}, so there is none to choose")
    return _nest(low, start, choose)


def truth(low: Lowering) -> list[Value]:
    """``any`` and ``all``."""
    every = low.op.definition.name == "all"
    return _nest(low, every, andi if every else ori)


def can_reduce(op: Operation) -> bool:
    """Whether the elements have a type that the bodies are for."""
    return tensor_type(op.result).dtype != index
