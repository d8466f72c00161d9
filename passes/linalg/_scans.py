"""Nests of positions of extremes, and running sums."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.arith.bits import ori
from dialects.arith.cast import extsi, index_cast
from dialects.arith.comparison import select
from dialects.arith.floats import addf
from dialects.arith.integers import addi, minsi
from ir.core import Value
from ir.dims import Dim
from ir.types import ScalarType, f64, i32, i64
from passes.linalg._bodies import Place, axis_of, load, parallel, require_elements, serial, size_of, store, to_double
from passes.linalg._elementwise import compare
from passes.linalg._nests import Access, Loop, Lowering, narrow, number, tensor_type, wide_dtype, widen
from passes.linalg._reductions import extreme_of


def place_of_extreme(low: Lowering) -> list[Value]:
    """``argmax`` and ``argmin``: a nest over the result, with two reductions inside, that of the extreme and that of the
    first place where it stands; neither depends on an order."""
    op = low.op
    x, axis = tensor_type(op.operands[0]), axis_of(low)
    source = low.operand("x")
    with low.builder:
        require_elements(source, axis, f"{op.definition.name}: {{x}} has no elements along axis {axis}, so there is none to choose")
    names = low.names(x.rank)
    kept = [Loop(n, d) for i, (n, d) in enumerate(zip(names, x.shape, strict=True)) if i != axis]
    along = Loop(names[axis], x.shape[axis])
    target: list[Dim] = [n.name for n in kept]
    if op.attribute("keepdims"):
        target.insert(axis, 0)
    wide, read = wide_dtype(x.dtype), Access(source, tuple(names))
    choose, start = extreme_of(wide, largest=op.definition.name == "argmax")
    count, most = size_of(low, source, axis), along.bound
    short = isinstance(most, int) and most < 2**31  # 16 places to a register, as elements

    def number_of(place: Value) -> Value:
        return index_cast(place, result_type=ScalarType(i32)) if short else place  # type: ignore[no-any-return]

    def body(_: Value) -> Value:
        best = low.reduce([along], [read], number(start, wide), lambda a, acc: choose(acc, widen(a)))
        end = number(most, i32) if isinstance(most, int) and short else count()

        def first(stored: Value, place: Value) -> Value:
            a = widen(stored)
            found = compare(a, best, "eq")
            if wide.is_float:
                found = ori(found, compare(a, a, "ne"))  # where there is a NaN, it is the best
            return minsi(place, select(found, number_of(low.index(along)), end))  # type: ignore[no-any-return]

        place = low.reduce([along], [read], end, first)
        return (extsi if short else index_cast)(place, result_type=ScalarType(i64))  # type: ignore[no-any-return]

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

        serial(0, result.shape[axis], [number(0, f64 if floats else result.dtype)], step, tag="serial")

    with low.builder:
        parallel([1 if i == axis else d for i, d in enumerate(result.shape)], row)
    return [buffer]
