"""Nests of matrix products and reductions: a nest that stores the start, and one that goes on from what is stored.

f16 and bf16 are summed in a buffer of f32, which a last nest rounds.
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
from dialects.math import fma
from dialects.memref import dim
from ir.core import Operation, Value
from ir.dims import Dim
from ir.types import MemRefType, ScalarType, i64, index
from passes.linalg._elementwise import broadcast_access
from passes.linalg._nests import Access, Loop, Lowering, narrow, number, tensor_type, wide_dtype, widen

# -- matrix products ---------------------------------------------------------------------------------------------------


def _factor(buffer: Value, shape: tuple[Dim, ...], batch: tuple[Dim, ...], matrix: tuple[Dim, ...]) -> Access:
    """The element of a factor: its batch dimensions broadcast, its own last indices."""
    own = len(matrix)
    outer = broadcast_access(buffer, shape[: len(shape) - own], batch)
    return Access(buffer, (*outer.indices, *matrix))


def matmul(low: Lowering) -> list[Value]:
    """One chain of fused multiply-adds over ascending k from zero for each element."""
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
    left = _factor(low.operand("a"), a.shape, batch, row[::-1] if transposed_a else row)
    right = _factor(low.operand("b"), b.shape, batch, column[::-1] if transposed_b else column)
    loops = [Loop(n, d) for n, d in zip(outer, result.shape, strict=True)]

    def step(x: Value, y: Value, total: Value) -> Value:
        if result.dtype.is_float:
            return fma(widen(x), widen(y), total)  # type: ignore[no-any-return]
        return addi(total, muli(x, y))  # type: ignore[no-any-return]

    def sums(buffer: Value) -> None:
        low.fill(buffer, 0)
        low.generic([*loops, Loop(k, inner, reduce=True)], [left, right], Access(buffer, names), step)

    return [_accumulated(low, sums, lambda x: x)]


def _accumulated(low: Lowering, build: Callable[[Value], None], finish: Callable[[Value], Value], plain: bool = True) -> Value:
    """The result of ``build``, which works in a wide buffer, after ``finish``; ``plain`` says that that does nothing."""
    result = tensor_type(low.op.result)
    wide = wide_dtype(result.dtype)
    if plain and wide == result.dtype:
        buffer = low.result_buffer()
        build(buffer)
        return buffer
    sums = low.alloc(wide, result.shape, f"{low.origin}.wide")
    build(sums)
    buffer = low.result_buffer()
    loops = low.loops(result.shape)
    names: tuple[Dim, ...] = tuple(n.name for n in loops)
    low.generic(loops, [Access(sums, names)], Access(buffer, names), lambda a, _: narrow(finish(a), result.dtype))
    return buffer


# -- reductions --------------------------------------------------------------------------------------------------------


def _reduced_axes(op: Operation) -> tuple[int, ...]:
    axes: Any = op.attribute("axes")
    return normalize_axes(axes, tensor_type(op.operands[0]).rank)


def _nest(low: Lowering, buffer: Value, start: float | int | bool, step: Callable[[Value, Value], Value]) -> None:
    """``start`` in every element, then ``step`` with every element of the operand."""
    op = low.op
    x = tensor_type(op.operands[0])
    axes = _reduced_axes(op)
    names = low.names(x.rank)
    kept = [Loop(names[i], d) for i, d in enumerate(x.shape) if i not in axes]
    reduced = [Loop(names[i], x.shape[i], reduce=True) for i in axes]
    if op.attribute("keepdims"):
        target: Sequence[Dim] = [0 if i in axes else n for i, n in enumerate(names)]
    else:
        target = [n.name for n in kept]
    low.fill(buffer, start)
    low.generic([*kept, *reduced], [Access(low.operand("x"), tuple(names))], Access(buffer, tuple(target)), lambda a, o: step(o, a))


def summed(low: Lowering) -> list[Value]:
    """``sum``."""
    add = addf if tensor_type(low.op.result).dtype.is_float else addi
    return [_accumulated(low, lambda buffer: _nest(low, buffer, 0, lambda o, a: add(o, widen(a))), lambda x: x)]


def multiplied(low: Lowering) -> list[Value]:
    """``prod``."""
    mul = mulf if tensor_type(low.op.result).dtype.is_float else muli
    return [_accumulated(low, lambda buffer: _nest(low, buffer, 1, lambda o, a: mul(o, widen(a))), lambda x: x)]


def averaged(low: Lowering) -> list[Value]:
    """``mean``: a sum, and a nest that divides."""
    wide = wide_dtype(tensor_type(low.op.result).dtype)
    count = _count(low, low.operand("x"), _reduced_axes(low.op))

    def finish(total: Value) -> Value:
        return divf(total, sitofp(count, result_type=ScalarType(wide)))  # type: ignore[no-any-return]

    return [_accumulated(low, lambda buffer: _nest(low, buffer, 0, lambda o, a: addf(o, widen(a))), finish, plain=False)]


def _count(low: Lowering, buffer: Value, axes: Sequence[int]) -> Value:
    """How many elements there are along some axes, as i64, in front of the nests."""
    assert isinstance(buffer.type, MemRefType)
    shape = buffer.type.shape
    fixed = math.prod(d for a in axes if isinstance(d := shape[a], int))
    with low.builder:
        sizes = [index_cast(dim(buffer, axis=a), result_type=ScalarType(i64)) for a in axes if not isinstance(shape[a], int)]
        if fixed != 1 or not sizes:
            sizes.append(number(fixed, i64))
        return functools.reduce(muli, sizes)  # type: ignore[no-any-return, arg-type]


def extreme(low: Lowering) -> list[Value]:
    """``max`` and ``min``."""
    dtype, initial = tensor_type(low.op.result).dtype, low.op.attribute("initial")
    largest = low.op.definition.name == "max"
    if dtype.is_float:
        choose = maximumf if largest else minimumf
        start: float | int = -math.inf if largest else math.inf
    else:
        signed, unsigned = (maxsi, maxui) if largest else (minsi, minui)
        choose = unsigned if dtype.kind == "uint" else signed
        start = dtype.min_value if largest else dtype.max_value
    if initial is not None:
        assert isinstance(initial, (int, float))
        start = initial
    buffer = low.result_buffer()
    _nest(low, buffer, start, lambda o, a: narrow(choose(widen(o), widen(a)), dtype))
    return [buffer]


def truth(low: Lowering) -> list[Value]:
    """``any`` and ``all``."""
    every = low.op.definition.name == "all"
    buffer = low.result_buffer()
    _nest(low, buffer, every, lambda o, a: (andi if every else ori)(o, a))
    return [buffer]


def can_reduce(op: Operation) -> bool:
    """Whether the nests say all: an extreme of no elements is an error, which no nest reports."""
    if tensor_type(op.result).dtype == index:
        return False
    if op.definition.name not in ("max", "min") or op.attribute("initial") is not None:
        return True
    shape = tensor_type(op.operands[0]).shape
    return all(isinstance(shape[a], int) and shape[a] != 0 for a in _reduced_axes(op))
