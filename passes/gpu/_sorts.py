"""Kernels that put rows in order: networks of comparisons in shared memory, and merging of what they have sorted.

The order is that of ``sort``: a NaN behind every number, and of equal elements the one with the lower index first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dialects.arith.bits import andi, ori, shrui, xori
from dialects.arith.cast import index_cast
from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.floats import addf
from dialects.arith.integers import addi, subi
from ir.core import Value
from ir.dims import Dim, ceildiv, product
from ir.types import DType, ScalarType, boolean, f64, i32, index
from passes.gpu._kernels import barrier, launch, less, named, shared, split_index, thread, value_of, when
from passes.linalg._bodies import exceeds, to_double
from passes.linalg._nests import widen
from passes.linalg._sorting import count_passes
from passes.loops._blocks import alloc, buffer_type, index_value, load, loop, number, store
from passes.loops._loops import value_symbol

LARGEST = 2048
"""Elements that one block sorts in shared memory at most."""
SMALLER = 1024
"""The same where the length of rows is not known, or only the first of each piece are kept."""

SMALLEST = 64
"""Elements of a piece at least: a comparison for each thread of a warp."""
FEW = 256
"""Up to how many of the first elements are found piece by piece, and then among those."""


@dataclass(frozen=True)
class RowsOf:
    """The rows of a buffer along an axis; of one of two halves of it where ``half`` is given, which is its first index."""

    buffer: Value
    axis: int
    half: Dim | None = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The dimensions of what the rows are of."""
        return buffer_type(self.buffer).shape[0 if self.half is None else 1 :]

    @property
    def others(self) -> list[Dim]:
        """The dimensions that rows are counted along."""
        return [*self.shape[: self.axis], *self.shape[self.axis + 1 :]]

    @property
    def length(self) -> Dim:
        """How many elements a row has."""
        return self.shape[self.axis]

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return buffer_type(self.buffer).dtype

    def load(self, row: Sequence[Dim], at: Dim) -> Value:
        """An element of a row."""
        return load(self.buffer, *self._front(), *row[: self.axis], at, *row[self.axis :])

    def _front(self) -> list[Dim]:
        return [] if self.half is None else [self.half]

    def store(self, value: Value, row: Sequence[Dim], at: Dim) -> None:
        """Writes an element of a row; a place in a row as the type of integers that the buffer has."""
        if value.type == ScalarType(index) and self.dtype != index:
            value = index_cast(value, result_type=ScalarType(self.dtype))
        store(value, self.buffer, *self._front(), *row[: self.axis], at, *row[self.axis :])


def precedes(x: Value, y: Value, descending: bool) -> Value:
    """Whether x comes strictly before y."""
    first, second = (x, y) if descending else (y, x)
    return exceeds(widen(first), widen(second))


def _negated(x: Value) -> Value:
    return xori(x, number(True, boolean))  # type: ignore[no-any-return]


def piece_size(length: Dim, kept: int | None = None) -> int:
    """How many elements of a row a block sorts: a power of two."""
    if not isinstance(length, int) or (kept is not None and length > LARGEST):
        return SMALLER
    return max(SMALLEST, min(LARGEST, 1 << (length - 1).bit_length()))


def sort_pieces(
    name: str, source: RowsOf, descending: bool, kept: int | None, values: RowsOf | None, places: RowsOf | None, known: RowsOf | None = None
) -> None:
    """Sorts pieces of each row, each by a block, and stores the first ``kept`` of each (all for None), one piece behind the other.

    ``known`` has the place of each element of the source, otherwise it is the index.
    """
    length, size = source.length, piece_size(source.length, kept)
    pieces = ceildiv(length, size)
    rows: Dim = product(source.others)
    threads = size // 2

    def kernel(block: Dim) -> None:
        elements, order = shared(f"{name}.elements", source.dtype, size), shared(f"{name}.order", i32, size)
        at = thread()
        *row, piece = split_index(block, [*source.others, pieces])
        row = [named("row", r) for r in row]
        first = named("first", size * piece)
        count = named("count", length if pieces == 1 else value_symbol(index_value("min", length - first, size, name="count")))

        def begin(e: Dim) -> None:
            store(index_cast(value_of(e), result_type=ScalarType(i32)), order, e)
            when(less(e, count), lambda: store(source.load(row, first + e), elements, e))

        loop("e", at, size, threads, begin)
        barrier()
        _network(elements, order, count, size, at, descending)

        def put(e: Dim) -> None:
            place = value_symbol(index_cast(load(order, e), result_type=ScalarType(index), name="place"))
            to = named("to", (size if kept is None else kept) * piece + e)
            if values is not None:
                values.store(load(elements, e), row, to)
            if places is not None:
                found = value_of(first + place, "place") if known is None else known.load(row, first + place)
                places.store(found, row, to)

        end = count if kept is None else value_symbol(index_value("min", count, kept, name="end"))
        loop("e", at, end, threads, put)

    launch([("block", rows * pieces)], threads, kernel, name=name, tag="sort")


def _network(elements: Value, order: Value, count: Dim, size: int, at: Dim, descending: bool) -> None:
    """A bitonic network: after round p pieces of 2**(p+1) are in order, every second one backwards.

    ``order`` says where an element came from, which decides between equal ones; what came from behind ``count`` is behind everything.
    """
    one = number(1, index)
    thread_value = value_of(at)

    def merge(p: Dim, width: Value) -> list[Value]:
        def stage(_: Dim, stride: Value) -> list[Value]:
            low = value_symbol(addi(thread_value, subi(thread_value, andi(thread_value, subi(stride, one))), name="low"))
            high = value_symbol(addi(value_of(low), stride, name="high"))
            backwards = cmpi(andi(value_of(low), width), number(0, index), predicate="ne", name="backwards")
            exchange(low, high, backwards)
            barrier()
            return [shrui(stride, one)]

        loop("q", 0, p + 1, 1, stage, [shrui(width, one)])
        return [addi(width, width)]

    def exchange(low: Dim, high: Dim, backwards: Value) -> None:
        x, y = load(elements, low, name="x"), load(elements, high, name="y")
        from_x, from_y = load(order, low), load(order, high)
        last = index_cast(value_of(count), result_type=ScalarType(i32))
        both_there = andi(cmpi(from_x, last, predicate="lt"), cmpi(from_y, last, predicate="lt"))
        earlier = cmpi(from_y, from_x, predicate="lt")
        by_element = ori(precedes(y, x, descending), andi(_negated(precedes(x, y, descending)), earlier))
        wrong = select(both_there, by_element, earlier, name="wrong")

        def swap() -> None:
            for buffer, first, second in ((elements, x, y), (order, from_x, from_y)):
                store(second, buffer, low)
                store(first, buffer, high)

        when(xori(wrong, backwards, name="swap"), swap)

    loop("p", 0, size.bit_length() - 1, 1, merge, [number(2, index)])


def merge_rows(
    name: str, source: RowsOf, work: RowsOf, order: RowsOf | None, size: int, descending: bool, values: RowsOf | None, places: RowsOf | None
) -> None:
    """Merges pieces of ``size`` elements of each row, a block for each row: every element looks for its place among those of its neighbour.

    ``work`` and ``order`` are two halves each, of which the first holds the pieces.
    """
    length, threads = source.length, SMALLER
    final = values if values is not None else places
    assert final is not None
    kept = final.length

    def kernel(block: Dim) -> None:
        at = thread()
        row = [named("row", r) for r in split_index(block, source.others)]
        passes, half = _passes(ceildiv(length, size))

        def double(p: Dim, width: Value, read: Value, write: Value) -> list[Value]:
            loop("e", at, length, threads, lambda e: _merge(row, work, order, e, width, read, write, p + size.bit_length(), descending))
            barrier()
            return [addi(width, width), write, read]

        loop("p", 0, passes, 1, double, [number(size, index), number(0, index), number(1, index)])

        def put(e: Dim) -> None:
            if values is not None:
                values.store(RowsOf(work.buffer, work.axis, half).load(row, e), row, e)
            if places is not None:
                assert order is not None
                places.store(RowsOf(order.buffer, order.axis, half).load(row, e), row, e)

        loop("e", at, kept, threads, put)

    launch([("block", product(source.others))], threads, kernel, name=name, tag="sort")


def _passes(pieces: Dim) -> tuple[Dim, Dim]:
    """How often pieces are merged by two, and the half in which the result is."""
    if isinstance(pieces, int):
        found = max(pieces - 1, 0).bit_length()
        return found, found % 2
    passes, half = count_passes(value_of(pieces))
    return value_symbol(passes), value_symbol(half)


def _merge(
    row: Sequence[Dim], work: RowsOf, order: RowsOf | None, e: Dim, width: Value, read: Value, write: Value, steps: Dim, descending: bool
) -> None:
    """Stores an element of one of two runs where it belongs in both."""
    one, at, length = number(1, index), value_of(e), value_of(work.length)
    source = RowsOf(work.buffer, work.axis, value_symbol(read))
    x = source.load(row, e)
    is_second = cmpi(andi(at, width), number(0, index), predicate="ne", name="second")
    start = subi(at, andi(at, subi(addi(width, width), one)), name="start")
    other = select(is_second, start, addi(start, width))
    stop = addi(other, width)
    first, last = (select(cmpi(v, length, predicate="lt"), v, length) for v in (other, stop))

    def look(_: Dim, low: Value, high: Value) -> list[Value]:
        middle = shrui(addi(low, high), one)
        inside = cmpi(low, high, predicate="lt")
        y = source.load(row, value_symbol(select(inside, middle, start, name="middle")))
        before = select(is_second, _negated(precedes(x, y, descending)), precedes(y, x, descending))
        right, left = andi(inside, before), andi(inside, _negated(before))
        return [select(right, addi(middle, one), low), select(left, middle, high)]

    found, _ = loop("s", 0, steps, 1, look, [first, last])
    to = value_symbol(addi(addi(start, andi(at, subi(width, one))), subi(found, first), name="to"))
    store(x, work.buffer, value_symbol(write), *row, to)
    if order is not None:
        store(RowsOf(order.buffer, order.axis, value_symbol(read)).load(row, e), order.buffer, value_symbol(write), *row, to)


def sort_rows(name: str, source: RowsOf, descending: bool, values: RowsOf | None, places: RowsOf | None) -> None:
    """Puts rows in order: the first elements, as many as the results have, and where they stood."""
    final = values if values is not None else places
    assert final is not None
    kept, length, rows = final.length, source.length, product(source.others)
    if kept == 0 or rows == 0:
        return
    if isinstance(length, int) and length <= LARGEST:
        sort_pieces(name, source, descending, kept if isinstance(kept, int) else None, values, places)
    elif isinstance(length, int) and isinstance(kept, int) and kept <= FEW:
        _first_of_pieces(name, source, descending, kept, values, places)
    else:
        size = piece_size(length)
        work = RowsOf(alloc(f"{name}.work", source.dtype, 2, *source.others, length), len(source.others), 0)
        order = None
        if places is not None:
            order = RowsOf(alloc(f"{name}.order", index, 2, *source.others, length), len(source.others), 0)
        sort_pieces(name, source, descending, None, work, order)
        merge_rows(name, source, work, order, size, descending, values, places)


def _first_of_pieces(name: str, source: RowsOf, descending: bool, kept: int, values: RowsOf | None, places: RowsOf | None) -> None:
    """The first elements of each piece, and so on among those, until they fit into one piece."""
    others = len(source.others)
    known: RowsOf | None = None
    while isinstance(source.length, int) and source.length > LARGEST:
        length = source.length
        pieces = -(-length // SMALLER)
        left = (pieces - 1) * kept + min(kept, length - (pieces - 1) * SMALLER)
        found = RowsOf(alloc(f"{name}.best", source.dtype, *source.others, left), others)
        where = RowsOf(alloc(f"{name}.best.places", index, *source.others, left), others)
        sort_pieces(name, source, descending, kept, found, where, known)
        source, known = found, where
    sort_pieces(name, source, descending, kept, values, places, known)


def keep_most_probable(name: str, source: RowsOf, result: RowsOf, p: float) -> None:
    """``top_p``: the largest of each row, in order, until their sum reaches ``p``; zeros in the place of the others.

    All threads of a block add up the sorted row, each for itself, in f64; then they share the writing.
    """
    rows, length = product(source.others), source.length
    if rows == 0 or length == 0:
        return
    others, threads = len(source.others), 128
    ordered = RowsOf(alloc(f"{name}.ordered", source.dtype, *source.others, length), others)
    places = RowsOf(alloc(f"{name}.places", index, *source.others, length), others)
    sort_rows(name, source, True, ordered, places)

    def kernel(block: Dim) -> None:
        at = thread()
        row = [named("row", r) for r in split_index(block, source.others)]

        def step(e: Dim, total: Value, kept: Value, more: Value) -> list[Value]:
            reached = addf(total, to_double(ordered.load(row, e)))
            goes_on = andi(more, _negated(cmpf(reached, number(p, f64), predicate="ge")))
            return [select(more, reached, total), select(more, addi(kept, number(1, index)), kept), goes_on]

        _, kept, _ = loop("e", 0, length, 1, step, [number(0.0, f64), number(0, index), number(True, boolean)])

        def put(e: Dim) -> None:
            chosen = select(less(e, value_symbol(kept)), ordered.load(row, e), number(0.0, source.dtype))
            result.store(chosen, row, value_symbol(places.load(row, e)))

        loop("e", at, length, threads, put)

    launch([("block", rows)], threads, kernel, name=name, tag="sort")
