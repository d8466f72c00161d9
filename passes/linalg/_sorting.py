"""Loops that put elements in order: sort, argsort, topk.

In copies of the tensor, and in buffers of indices, in rows along the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dialects.arith.bits import andi, ori
from dialects.arith.cast import index_cast
from dialects.arith.comparison import cmpi, select
from dialects.arith.integers import addi, minsi, subi
from ir.core import Value
from ir.dims import Dim
from ir.types import ScalarType, boolean, i64, index
from passes.linalg._bodies import Described, Place, axis_of, buffer_type, check, exceeds, load, parallel, serial, size, store, when
from passes.linalg._nests import Access, Lowering, number, tensor_type, widen

_SELECTED = 64
"""Up to how many elements ``topk`` keeps a sorted list of them instead of sorting the row."""


def replaced(places: Sequence[Any], axis: int, place: Any) -> list[Any]:
    """The same list with another entry for one axis."""
    return [*places[:axis], place, *places[axis + 1 :]]


# -- a row -------------------------------------------------------------------------------------------------------------


class RowSorter:
    """A stable merge sort along an axis, from runs of one element upwards.

    The runs go back and forth between the two halves of a buffer: pass number p reads half p mod 2.  With ``places`` a
    buffer of indices goes along.  All that does not depend on the row is built in front of the loops over rows, where the
    sorter is made.
    """

    def __init__(self, low: Lowering, source: Value, axis: int, *, descending: bool, places: bool) -> None:
        type_ = buffer_type(source)
        self.source, self.axis, self.descending = source, axis, descending
        self.extent = type_.shape[axis]
        self.elements = low.alloc(type_.dtype, (2, *type_.shape), f"{low.origin}.elements")
        self.places = low.alloc(index, (2, *type_.shape), f"{low.origin}.places") if places else None
        self.count = size(source, axis)
        self.passes: Place | Dim
        self.half: Place | Dim
        """The half that is in order at the end."""
        if isinstance(self.extent, int):
            self.passes = max(self.extent - 1, 0).bit_length()
            self.half = self.passes % 2
        else:
            self.passes, self.half = count_passes(self.count)

    def element(self, at: Sequence[Any]) -> Value:
        """An element of what is in order."""
        return load(self.elements, [self.half, *at])

    def place(self, at: Sequence[Any]) -> Value:
        """The index that it had along the axis."""
        assert self.places is not None
        return load(self.places, [self.half, *at])

    def sort(self, row: Sequence[Place]) -> None:
        """Sorts one row; what stands in ``row`` for the axis means nothing."""

        def begin(at: Value) -> Sequence[Value]:
            here = replaced(row, self.axis, at)
            store(load(self.source, here), self.elements, [0, *here])
            if self.places is not None:
                store(at, self.places, [0, *here])
            return ()

        serial(0, self.extent, [], begin)

        def double_runs(_: Value, width: Value, read: Value, write: Value) -> Sequence[Value]:
            twice = addi(width, width)

            def two_runs(start: Value) -> Sequence[Value]:
                self._merge(row, start, minsi(addi(start, width), self.count), minsi(addi(start, twice), self.count), read, write)
                return ()

            serial(0, self.extent, [], two_runs, step=twice)
            return twice, write, read

        serial(0, self.passes, [number(1, index), number(0, index), number(1, index)], double_runs)

    def _merge(self, row: Sequence[Place], start: Value, middle: Value, end: Value, read: Value, write: Value) -> None:
        last, one = subi(self.count, number(1, index)), number(1, index)

        def step(at: Value, left: Value, right: Value) -> Sequence[Value]:
            # a run that has come to its end is not asked, so any place will do
            first, second = ([read, *replaced(row, self.axis, minsi(p, last))] for p in (left, right))
            to = [write, *replaced(row, self.axis, at)]
            x, y = load(self.elements, first), load(self.elements, second)
            overtakes = exceeds(widen(y), widen(x)) if self.descending else exceeds(widen(x), widen(y))
            none_left, some_right = cmpi(left, middle, predicate="ge"), cmpi(right, end, predicate="lt")
            chosen = ori(none_left, andi(some_right, overtakes))
            store(select(chosen, y, x), self.elements, to)
            if self.places is not None:
                store(select(chosen, load(self.places, second), load(self.places, first)), self.places, to)
            return select(chosen, left, addi(left, one)), select(chosen, addi(right, one), right)

        serial(start, end, [start, middle], step)


def count_passes(count: Value) -> tuple[Value, Value]:
    """How many times runs of one element have to be doubled, and that number mod 2."""
    zero, one = number(0, index), number(1, index)

    def step(_: Value, width: Value, passes: Value, half: Value, other: Value) -> Sequence[Value]:
        more = cmpi(width, count, predicate="lt")
        return addi(width, width), select(more, addi(passes, one), passes), select(more, other, half), select(more, half, other)

    _, passes, half, _ = serial(0, 62, [one, zero, zero, one], step)
    return passes, half


def _sorted_rows(low: Lowering, source: Value, axis: int, *, descending: bool, places: bool) -> RowSorter:
    """Sorts all rows."""
    with low.builder:
        sorter = RowSorter(low, source, axis, descending=descending, places=places)
        parallel(replaced(buffer_type(source).shape, axis, 1), sorter.sort)
    return sorter


def _over_result(low: Lowering, number_: int, body: Callable[[Sequence[Dim]], Value]) -> Value:
    """A nest over a result."""
    buffer = low.result_buffer(number_)
    loops = low.loops(tensor_type(low.op.results[number_]).shape)
    names: tuple[Dim, ...] = tuple(n.name for n in loops)
    low.generic(loops, [], Access(buffer, names), lambda _: body(names))
    return buffer


# -- operations --------------------------------------------------------------------------------------------------------


def in_order(low: Lowering) -> list[Value]:
    """``sort`` and ``argsort``: each row is sorted, then a nest over the result takes what is wanted."""
    places = low.op.definition.name == "argsort"
    sorter = _sorted_rows(low, low.operand("x"), axis_of(low), descending=bool(low.op.attribute("descending")), places=places)
    return [_over_result(low, 0, lambda names: _as_i64(sorter.place(names)) if places else sorter.element(names))]


def _as_i64(place: Value) -> Value:
    return index_cast(place, result_type=ScalarType(i64))  # type: ignore[no-any-return]


def largest(low: Lowering) -> list[Value]:
    """``topk``: the first of a sorted row, or for few of them a list that is kept in order."""
    axis, source, k = axis_of(low), low.operand("x"), low.op.attribute("k")
    assert isinstance(k, int)
    extent = buffer_type(source).shape[axis]
    if not isinstance(extent, int):
        with low.builder:
            check_count(source, axis, k)
    descending = bool(low.op.attribute("largest"))
    if k <= _SELECTED and extent != k:
        best = _selected_rows(low, source, axis, k, descending)
        values = _over_result(low, 0, lambda names: load(source, replaced(names, axis, load(best, names))))
        return [values, _over_result(low, 1, lambda names: _as_i64(load(best, names)))]
    sorter = _sorted_rows(low, source, axis, descending=descending, places=True)
    return [_over_result(low, 0, sorter.element), _over_result(low, 1, lambda names: _as_i64(sorter.place(names)))]


def check_count(source: Value, axis: int, k: int) -> None:
    """Checks that rows along an axis have k elements."""
    enough = cmpi(size(source, axis), number(k, index), predicate="ge")
    described = Described()
    elements = f"{described.dim(buffer_type(source).shape[axis])} elements along axis {axis} of {described.type(source)}"
    check(enough, f"topk: k={k} is more than the {elements}", (), described)


def _selected_rows(low: Lowering, source: Value, axis: int, k: int, descending: bool) -> Value:
    """Goes through each row with a sorted list of the k best places so far, in a buffer that it returns."""
    shape = buffer_type(source).shape
    with low.builder:
        best = low.alloc(index, replaced(shape, axis, k), f"{low.origin}.places")

        def row(places: list[Place]) -> None:
            def element(at: Place) -> Value:
                return widen(load(source, replaced(places, axis, at)))

            def better(x: Value, y: Value) -> Value:
                return exceeds(x, y) if descending else exceeds(y, x)

            def insert(at: Value, length: Place | Dim) -> tuple[Value, ...]:
                """Moves what is worse one place on; returns what falls out at the end."""

                def step(slot: Value, hand: Value, placed: Value) -> Sequence[Value]:
                    here = replaced(places, axis, slot)
                    found = load(best, here)
                    swap = ori(placed, better(element(hand), element(found)))
                    store(select(swap, hand, found), best, here)
                    return select(swap, found, hand), swap

                return serial(0, length, [at, number(False, boolean)], step)

            def begin(at: Value) -> Sequence[Value]:
                hand, _ = insert(at, at)
                store(hand, best, replaced(places, axis, at))
                return ()

            def further(at: Value) -> Sequence[Value]:
                worst = element(load(best, replaced(places, axis, k - 1)))

                def enter() -> Sequence[Value]:
                    insert(at, k)
                    return ()

                when(better(element(at), worst), enter)
                return ()

            serial(0, k, [], begin)
            serial(k, shape[axis], [], further)

        if k:
            parallel(replaced(shape, axis, 1), row)
    return best
