"""A heap of the elements of a row: the largest comes first, and only as many as are asked for cost time."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.arith.bits import andi, ori, shrui
from dialects.arith.comparison import cmpi, select
from dialects.arith.integers import addi, minsi, subi
from ir.core import Value
from ir.dims import Dim
from ir.types import boolean, index
from passes.linalg._bodies import Place, buffer_type, exceeds, load, negation, serial, size, store, when
from passes.linalg._nests import Lowering, number, widen
from passes.linalg._sorting import count_passes, replaced


class RowHeap:
    """The places along an axis as a binary heap, in descending order of the elements (a NaN is the largest).

    Of equal elements the one with the lower place comes first.  What does not depend on the row is built where the heap is
    made, in front of the loops over rows.
    """

    def __init__(self, low: Lowering, source: Value, axis: int) -> None:
        shape = buffer_type(source).shape
        self.source, self.axis = source, axis
        self.extent = shape[axis]
        self.places = low.alloc(index, shape, f"{low.origin}.places")
        self.count = size(source, axis)
        self.levels: Place | Dim
        """How often one can go down from the top."""
        if isinstance(self.extent, int):
            self.levels = max(self.extent.bit_length() - 1, 0)
        else:
            self.levels = subi(count_passes(addi(self.count, number(1, index)))[0], number(1, index))

    def _at(self, row: Sequence[Place], place: Place) -> list[Place]:
        return replaced(row, self.axis, place)

    def build(self, row: Sequence[Place]) -> None:
        """Makes a heap of one row; what stands in ``row`` for the axis means nothing."""

        def begin(at: Value) -> Sequence[Value]:
            store(at, self.places, self._at(row, at))
            return ()

        serial(0, self.extent, [], begin)
        half = shrui(self.count, number(1, index))

        def settle(at: Value) -> Sequence[Value]:
            top = subi(subi(half, number(1, index)), at)
            self._sift(row, top, load(self.places, self._at(row, top)), self.count)
            return ()

        serial(0, half, [], settle)

    def pop(self, row: Sequence[Place], count: Value) -> Value:
        """Takes the first of ``count`` places out."""
        top, zero = load(self.places, self._at(row, 0)), number(0, index)
        left = subi(count, number(1, index))
        self._sift(row, zero, load(self.places, self._at(row, left)), left)
        return top

    def _before(self, row: Sequence[Place], first: Value, second: Value) -> Value:
        """Whether a place comes before another one."""
        x, y = (widen(load(self.source, self._at(row, p))) for p in (first, second))
        tie = andi(negation(exceeds(y, x)), cmpi(first, second, predicate="lt"))
        return ori(exceeds(x, y), tie)  # type: ignore[no-any-return]

    def _sift(self, row: Sequence[Place], start: Value, hand: Value, count: Value) -> None:
        """Moves a place down from ``start`` to where it belongs among ``count`` of them."""
        last = subi(self.count, number(1, index))

        def step(_: Value, at: Value, moving: Value) -> Sequence[Value]:
            one = number(1, index)
            left = addi(addi(at, at), one)
            right = addi(left, one)

            def down() -> Sequence[Value]:
                # where there is no right child, any place will do
                first, second = (load(self.places, self._at(row, minsi(p, last))) for p in (left, right))
                use_right = andi(cmpi(right, count, predicate="lt"), self._before(row, second, first))
                child, place = select(use_right, right, left), select(use_right, second, first)
                swap = self._before(row, place, hand)
                store(select(swap, place, hand), self.places, self._at(row, at))
                return select(swap, child, at), swap

            return when(andi(moving, cmpi(left, count, predicate="lt")), down, lambda: (at, number(False, boolean)))

        at, _ = serial(0, self.levels, [start, number(True, boolean)], step)
        store(hand, self.places, self._at(row, at))
