"""Nests of positions of extremes, and running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dialects.arith.cast import index_cast
from dialects.arith.comparison import select
from dialects.arith.floats import addf
from dialects.arith.integers import addi
from ir.core import Value
from ir.dims import Dim
from ir.types import ScalarType, f64, i64, index
from passes.linalg._bodies import Place, axis_of, exceeds, load, parallel, require_elements, serial, store, to_double
from passes.linalg._nests import Access, Loop, Lowering, narrow, number, tensor_type, wide_dtype, widen


def place_of_extreme(low: Lowering) -> list[Value]:
    """``argmax`` and ``argmin``: a nest over the result, with a reduction of the best element and its place inside."""
    op = low.op
    x, axis = tensor_type(op.operands[0]), axis_of(low)
    largest = op.definition.name == "argmax"
    source = low.operand("x")
    with low.builder:
        require_elements(source, axis, f"{op.definition.name}: {{x}} has no elements along axis {axis}, so there is none to choose")
    names = low.names(x.rank)
    kept = [Loop(n, d) for i, (n, d) in enumerate(zip(names, x.shape, strict=True)) if i != axis]
    along = Loop(names[axis], x.shape[axis])
    target: list[Dim] = [n.name for n in kept]
    if op.attribute("keepdims"):
        target.insert(axis, 0)
    wide = wide_dtype(x.dtype)
    # the first element is no better than this only when it is this itself, and then its place is right as well
    worst: float | int = -math.inf if largest else math.inf
    if not wide.is_float:
        worst = wide.min_value if largest else wide.max_value

    def step(stored: Value, best: Value, place: Value) -> Sequence[Value]:
        element = widen(stored)
        better = exceeds(element, best, "gt" if largest else "lt")
        return select(better, element, best), select(better, low.index(along), place)

    def body(_: Value) -> Value:
        _, place = low.reduce_all([along], [Access(source, tuple(names))], [number(worst, wide), number(0, index)], step)
        return index_cast(place, result_type=ScalarType(i64))  # type: ignore[no-any-return]

    buffer = low.result_buffer()
    low.generic(kept, [], Access(buffer, tuple(target)), body)
    return [buffer]


def running_sum(low: Lowering) -> list[Value]:
    """``cumsum``: a serial loop along the axis; floats are summed in f64, and each sum is rounded once."""
    result, axis = tensor_type(low.op.result), axis_of(low)
    source, buffer = low.operand("x"), low.result_buffer()
    floats = result.dtype.is_float

    def row(places: list[Place]) -> None:
        def step(at: Value, total: Value) -> Sequence[Value]:
            here = [*places[:axis], at, *places[axis + 1 :]]
            element = load(source, here)
            total = addf(total, to_double(element)) if floats else addi(total, element)
            store(narrow(total, result.dtype), buffer, here)
            return [total]

        serial(0, result.shape[axis], [number(0, f64 if floats else result.dtype)], step, tag="reduce")

    with low.builder:
        parallel([1 if i == axis else d for i, d in enumerate(result.shape)], row)
    return [buffer]
