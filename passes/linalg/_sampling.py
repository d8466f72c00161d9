"""Nests of random choices: the arithmetic of splitmix64 (see ``dialects/graph/_random.py``) on i64 scalars, which wrap around."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dialects.arith.bits import andi, shrui, xori
from dialects.arith.cast import index_cast, sitofp
from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.floats import addf, divf, mulf
from dialects.arith.integers import addi, minsi, muli, subi
from dialects.graph._shapes import normalize_axis
from ir.core import Value
from ir.dims import Dim
from ir.types import DType, ScalarType, boolean, f64, i64, index
from passes.linalg._bodies import (
    Place,
    buffer_type,
    check,
    load,
    negation,
    parallel,
    require_elements,
    serial,
    size,
    size_of,
    store,
    to_double,
    to_i64,
    when,
)
from passes.linalg._heaps import RowHeap
from passes.linalg._nests import Access, Loop, Lowering, narrow, number, tensor_type, wide_dtype
from passes.linalg._sorting import count_passes, replaced

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
"""Bits of a significand."""


# -- the generator -----------------------------------------------------------------------------------------------------


def _wrapped(value: int) -> Value:
    """An unsigned number of 64 bits as i64."""
    return number(value - (1 << 64) if value >> 63 else value, i64)


def _mix(z: Value) -> Value:
    z = muli(xori(z, shrui(z, number(30, i64))), _wrapped(_FIRST))
    z = muli(xori(z, shrui(z, number(27, i64))), _wrapped(_SECOND))
    return xori(z, shrui(z, number(31, i64)))  # type: ignore[no-any-return]


def _stream(seed: Value) -> Value:
    """What the numbers of a seed, as i64, have in common."""
    return _mix(addi(seed, _wrapped(_GOLDEN)))


def _random(stream: Value, counter: Value, dtype: DType = f64) -> Value:
    """The number in [0, 1) for a counter, cut off to the precision of a float type."""
    place = index_cast(counter, result_type=ScalarType(i64))
    bits = _mix(addi(stream, muli(addi(place, number(1, i64)), _wrapped(_GOLDEN))))
    kept, wide = _PRECISION[dtype.name], wide_dtype(dtype)
    upper = shrui(bits, number(64 - kept, i64))
    return narrow(mulf(sitofp(upper, result_type=ScalarType(wide)), number(math.ldexp(1.0, -kept), wide)), dtype)


def _seed(low: Lowering) -> Value:
    """The stream of the operand ``seed``, in front of the nests."""
    seed = low.operand("seed")
    with low.builder:
        return _stream(to_i64(load(seed, [])))


def _counter(low: Lowering, buffer: Value, loops: Sequence[Loop]) -> Callable[[], Value]:
    """The row-major number of an element, as an index, for the body of a nest over a buffer."""
    sizes = [size_of(low, buffer, axis) for axis in range(1, len(loops))]

    def build() -> Value:
        found: Value | None = None
        for extent, loop in zip([None, *sizes], loops, strict=False):
            at = low.index(loop)
            found = at if found is None or extent is None else addi(muli(found, extent()), at)
        return found if found is not None else number(0, index)

    return build


# -- elementwise -------------------------------------------------------------------------------------------------------


def uniform(low: Lowering) -> list[Value]:
    """``uniform``: a nest over the result."""
    result = tensor_type(low.op.result)
    stream = _seed(low)
    buffer = low.result_buffer()
    loops = low.loops(result.shape)
    counter = _counter(low, buffer, loops)
    low.generic(loops, [], Access(buffer, tuple(n.name for n in loops)), lambda _: _random(stream, counter(), result.dtype))
    return [buffer]


def dropout(low: Lowering) -> list[Value]:
    """``dropout``; without training the same memory.  Quotients are rounded once, from f64."""
    op, source = low.op, low.operand("x")
    if not op.attribute("training"):
        return [source]
    p, seed = op.attribute("p"), op.attribute("seed")
    assert isinstance(p, float) and isinstance(seed, int)
    result = tensor_type(op.result)
    with low.builder:
        stream = _stream(_wrapped(seed & (1 << 64) - 1))
    buffer = low.result_buffer()
    loops = low.loops(result.shape)
    names: tuple[Dim, ...] = tuple(n.name for n in loops)
    counter = _counter(low, buffer, loops)

    def body(x: Value, _: Value) -> Value:
        kept = cmpf(_random(stream, counter()), number(p, f64), predicate="ge")
        quotient = narrow(divf(to_double(x), number(1.0 - p, f64)), result.dtype)
        return select(kept, quotient, number(0, result.dtype))  # type: ignore[no-any-return]

    low.generic(loops, [Access(source, names)], Access(buffer, names), body)
    return [buffer]


# -- rows --------------------------------------------------------------------------------------------------------------


def top_p(low: Lowering) -> list[Value]:
    """``top_p``: a heap of each row gives the largest until there are enough; as a rule that is soon."""
    source, buffer, p = low.operand("probs"), low.result_buffer(), low.op.attribute("p")
    assert isinstance(p, float)
    shape = buffer_type(source).shape
    axis, dtype = len(shape) - 1, buffer_type(source).dtype

    with low.builder:
        heap = RowHeap(low, source, axis)

        def row(places: list[Place]) -> None:
            heap.build(places)

            def drop(at: Value) -> Sequence[Value]:
                store(number(0, dtype), buffer, replaced(places, axis, at))
                return ()

            serial(0, shape[axis], [], drop)

            def step(at: Value, total: Value, more: Value) -> Sequence[Value]:
                def keep() -> Sequence[Value]:
                    here = replaced(places, axis, heap.pop(places, subi(heap.count, at)))
                    element = load(source, here)
                    store(element, buffer, here)
                    reached = addf(total, to_double(element))
                    return reached, negation(cmpf(reached, number(p, f64), predicate="ge"))

                return when(more, keep, lambda: (total, more))

            serial(0, shape[axis], [number(0, f64), number(True, boolean)], step)

        parallel(replaced(shape, axis, 1), row)
    return [buffer]


class _Multinomial:
    """The parts of ``multinomial`` that a row goes through."""

    def __init__(self, low: Lowering) -> None:
        self.low = low
        self.source = low.operand("probs")
        self.shape = buffer_type(self.source).shape
        self.axis = normalize_axis(-1, len(self.shape))
        samples = low.op.attribute("num_samples")
        assert isinstance(samples, int)
        self.samples = samples
        self.stream = _seed(low)
        self.result = low.result_buffer()
        with low.builder:
            message = "multinomial: {x} has nothing to choose from: its last dimension is 0"
            require_elements(self.source, self.axis, message)
            self.sizes = [size(self.source, a) for a in range(self.axis)]
            self.count = size(self.source, self.axis)
            extent = self.shape[self.axis]
            # halvings until a range that holds a place, or the end of the row, is empty
            self.halvings: Place | Dim = extent.bit_length() if isinstance(extent, int) else count_passes(addi(self.count, number(1, index)))[0]
            self.running = low.alloc(f64, self.shape, f"{low.origin}.running")
            parallel(self.shape[: self.axis], self._row)

    def _row(self, places: list[Place]) -> None:
        total, last = self._sum(places)
        zero, row = number(0, index), number(0, index)
        for extent, place in zip(self.sizes, places, strict=True):
            row = addi(muli(row, extent), place if isinstance(place, Value) else zero)
        first = muli(row, number(self.samples, index))

        def sample(at: Value) -> Sequence[Value]:
            target = mulf(_random(self.stream, addi(first, at)), total)
            # where u * total rounds up to a tiny total
            chosen = minsi(self._first_above(places, target), last)
            store(index_cast(chosen, result_type=ScalarType(i64)), self.result, [*places, at])
            return ()

        serial(0, self.samples, [], sample)

    def _sum(self, places: list[Place]) -> tuple[Value, Value]:
        """Stores the running sums of a row; gives the total, and the last place whose weight is not 0."""
        shown = [p for p in places if isinstance(p, Value)]
        one = f"row [{', '.join('{p}' if isinstance(p, Value) else '0' for p in places)}] of probs" if places else "probs"

        def where(first: int) -> tuple[str, list[Value]]:
            """The row in a message whose values so far are ``first``."""
            if first + len(shown) > 2:
                return "a row of probs", []
            text = one
            for n in range(len(shown)):
                text = text.replace("{p}", f"{{{first + n}}}", 1)
            return text, shown

        def step(at: Value, total: Value, last: Value) -> Sequence[Value]:
            weight = to_double(load(self.source, [*places, at]))
            total = addf(total, weight)
            store(total, self.running, [*places, at])
            text, values = where(1)
            sound = negation(cmpf(weight, number(0, f64), predicate="lt"))
            check(sound, f"multinomial: element {{0}} of {text} is negative", [at, *values])
            some = cmpf(weight, number(0, f64), predicate="ne")
            return total, select(some, at, last)

        total, last = serial(0, self.shape[self.axis], [number(0, f64), number(0, index)], step, tag="serial")
        text, values = where(0)
        for bad, name in ((0.0, "0.0"), (math.inf, "inf")):
            good = cmpf(total, number(bad, f64), predicate="ne")
            check(good, f"multinomial: the sum of {text} is {name}, expected a finite number > 0", values)
        check(cmpf(total, total, predicate="eq"), f"multinomial: the sum of {text} is nan, expected a finite number > 0", values)
        return total, last

    def _first_above(self, places: list[Place], target: Value) -> Value:
        """The first place whose running sum is above ``target``, or the size of the row: a binary search."""

        def step(_: Value, low: Value, high: Value) -> Sequence[Value]:
            one = number(1, index)
            middle = shrui(addi(low, high), one)
            last = subi(self.count, one)  # what is looked at when the range is empty
            above = cmpf(load(self.running, [*places, minsi(middle, last)]), target, predicate="gt")
            left = andi(above, cmpi(low, high, predicate="lt"))
            right = andi(negation(above), cmpi(low, high, predicate="lt"))
            return select(right, addi(middle, one), low), select(left, middle, high)

        return serial(0, self.halvings, [number(0, index), self.count], step)[0]


def multinomial(low: Lowering) -> list[Value]:
    """``multinomial``: running sums of each row, then a binary search for each sample."""
    return [_Multinomial(low).result]
