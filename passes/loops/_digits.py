"""The loops of ``digit_linear``: panels of 32 rows of weights, blocks of 32 steps, a few rows of activations at a time.

A sum of integers is exact, and what joins the blocks is written once (:func:`joined`), so the bits of a row don't depend on how
many rows are worked on at once, on where numbers are unpacked, or on threads.

Weights are read in one of two ways.  Of few rows the packed numbers themselves are read, and their halves are taken apart in registers
(:class:`Packed`).  Of many rows, a panel is unpacked to bytes first, which all rows read from the nearest cache (:class:`Unpacked`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dialects.arith.bits import shli
from dialects.arith.cast import sitofp
from dialects.arith.comparison import cmpi
from dialects.arith.dot import dot4
from dialects.arith.floats import mulf
from dialects.arith.integers import addi, muli
from dialects.graph.digits import BLOCK, ROWS, WORDS
from dialects.math.exact import fma
from ir.core import Value
from ir.dims import Dim, floordiv
from ir.types import VectorType, f32, i32
from passes.loops._blocks import (
    LINE,
    buffer_type,
    choose,
    filled,
    index_value,
    load,
    loop,
    number,
    parallel,
    prefetch,
    reshaped,
    store,
)
from passes.loops._digit_pairs import PairLoops, PairPanel, Pairs
from passes.loops._digit_tiles import TERM_BITS, Terms, Tiles
from passes.loops._weights import Area, Packed, Source, Unpacked, Weights, typed


@dataclass(frozen=True)
class Shape:
    """How much is worked on at a time: ``rows`` of activations by ``columns`` rows of weights, and steps in pieces of ``blocks``.

    ``few`` rows or more are many, for which weights are unpacked; ``ahead`` and ``near`` are how many bytes further hints go.  In pairs,
    ``paired`` rows are worked on at a time.
    """

    rows: int
    columns: int
    blocks: int
    few: int
    ahead: int
    near: int
    paired: int = 0


@dataclass(frozen=True)
class Activations:
    """What ``split_digits`` made of rows: ``words[rows, blocks * digits * 8]``, ``scales[rows, 2 * blocks]``, ``sums[rows, blocks * digits]``.

    ``bytes`` are those of the words, one by one; ``sums`` are for weights with an offset.
    """

    words: Value
    bytes: Value
    scales: Value
    sums: Value | None
    digits: int

    @property
    def rows(self) -> Dim:
        return buffer_type(self.words).shape[0]


def activations_of(digits: Value, scales: Value, sums: Value | None) -> Activations:
    """Views of digits with any dimensions in front."""
    *front, blocks, count, _ = buffer_type(digits).shape
    assert isinstance(count, int)
    rows: Dim = 1
    for size in front:
        rows = rows * size
    words = typed(digits, i32, rows, blocks * count * WORDS, name=f"{digits.name}.words")
    bytes_ = reshaped(digits, rows, blocks * count * BLOCK)
    totals = reshaped(sums, rows, blocks * count) if sums is not None else None
    return Activations(words, bytes_, reshaped(scales, rows, 2 * blocks), totals, count)


Hints = Callable[[int], None]
"""Gives the hints that belong to one of ``WORDS`` places in the code of a block."""


class Product:
    """One product; what all its loops share.  Many rows are multiplied as tiles or in pairs if digits have that form."""

    def __init__(self, x: Activations, weights: Weights, out: Value, shape: Shape, form: Terms | Pairs | None = None) -> None:
        rows, columns = x.rows, buffer_type(out).shape[-1]
        self.x, self.weights, self.shape = x, weights, shape
        self.out, self.columns = reshaped(out, rows, columns), columns
        self.zero, self.nothing = number(0.0, f32, "zero"), number(0, i32, "nothing")
        self.eight, self.base = number(8, i32, "eight"), number(256.0, f32, "base")
        self.offset = number(-weights.format.offset, i32, "offset")
        self.few = shape.few if form is None else form.fewest
        self.terms, self.pairs = form if isinstance(form, Terms) else None, form if isinstance(form, Pairs) else None
        if self.terms is not None and self.terms.wide:
            self.term = number(float(1 << TERM_BITS), f32, "term")

    def build(self) -> None:
        """All loops, for a number of rows that may be open."""
        rows = self.x.rows
        if isinstance(rows, int):
            (self._many if rows >= self.few else self._few)()
            return
        enough = cmpi(index_value("apply", rows, name="rows"), index_value("apply", self.few, name="few"), predicate="ge")
        choose(enough, self._many, self._few)

    def _few(self) -> None:
        """Panel by panel, as they are packed."""

        def panel(p: Dim) -> None:
            source, shape = Packed(self.weights, p), self.shape

            def block(b: Dim, area: Area, sums: Value) -> Value:
                return self._block(source, b, b, area, sums, lambda n: self._hints(p, b, area.column, n))

            self.blocks(p, 0, self.weights.blocks, (shape.rows, 1), shape.columns, block)

        parallel([("panel", 0, self.weights.panels)], panel, tag="panel")

    def _many(self) -> None:
        """Panel by panel: unpacked, a piece of the steps after the other, and read by all rows."""
        total, terms = self.weights.blocks, self.terms
        assert isinstance(total, int)
        size = _part_of(total, self._most())
        words = terms.seen(i32, "words", terms.size) if terms is not None else None
        pairs = PairLoops(self, self.pairs) if self.pairs is not None else None

        def panel(p: Dim, group: Dim = 0) -> None:
            source = Packed(self.weights, p)
            unpacked, add = self._unpacked(size, p, group, words, pairs)

            def piece(start: Dim, count: int) -> None:
                unpacked.fill(source, start, count, self.shape.columns, hints=terms is None)
                add(start, count)

            piece(0, size)
            whole = total // size * size
            if size < whole:
                loop("piece", size, whole, size, lambda start: piece(start, size), tag="pieces")
            if whole < total:
                piece(whole, total - whole)

        panels = ("panel", 0, self.weights.panels)
        if terms is None or terms.groups == 1:
            parallel([panels], panel, tag="panel")
        else:
            parallel([("group", 0, terms.groups), panels], lambda g, p: panel(p, g), tag="panel")

    def _most(self) -> int:
        """How many blocks are unpacked at a time."""
        if self.terms is not None:
            return Tiles.most(self, self.terms)
        return self.shape.blocks if self.pairs is None else PairLoops.most(self)

    def _unpacked(
        self, size: int, panel: Dim, group: Dim, words: Value | None, pairs: PairLoops | None
    ) -> tuple[Unpacked, Callable[[Dim, int], None]]:  # fmt: skip
        """Memory for a panel's weights, and what adds its blocks to the sums: so many, from a number on, which is block 0 of the memory."""
        format_, terms = self.weights.format, self.terms
        if terms is not None and words is not None:
            unpacked = Unpacked(format_, size, terms.wide)
            return unpacked, Tiles(self, terms, words, unpacked, panel, group).add
        if pairs is not None:
            paired = PairPanel(format_, size, self.x.digits)
            return paired, lambda start, count: pairs.add(paired, panel, start, count)
        unpacked = Unpacked(format_, size)

        def add(start: Dim, count: int) -> None:
            def block(b: Dim, area: Area, sums: Value) -> Value:
                return self._block(unpacked, b, start + b, area, sums)

            self.blocks(panel, start, count, (self.shape.rows, 1), self.shape.columns, block)

        return unpacked, add

    def blocks(
        self, panel: Dim, start: Dim, count: Dim, sizes: Sequence[int], columns: int, add_block: Callable[[Dim, Area, Value], Value]
    ) -> None:  # fmt: skip
        """Adds blocks from ``start`` on to all rows of a panel, so many columns at a time.

        ``sizes`` are how many rows are worked on at a time, each for what the ones before have left; the last one is 1.  ``add_block`` adds a
        block, by its number from ``start`` on, to the sums of an area.
        """

        def tile(area: Area) -> None:
            def add(sums: Value) -> list[Value]:
                return loop("block", 0, count, 1, lambda b, s: add_block(b, area, s), [sums], tag="block", result="sums")

            self.update(panel, area, add, new=start == 0)

        def across(row: Dim, rows: int) -> None:
            if columns == ROWS:
                tile(Area(row, rows, 0, columns))
            else:
                loop("column", 0, ROWS, columns, lambda c: tile(Area(row, rows, c, columns)), tag="columns")

        done: Dim = 0
        for size in sizes:
            whole = done + size * floordiv(self.x.rows - done, size)
            if whole != done:
                loop("row", done, whole, size, lambda r, size=size: across(r, size), tag="rows")
            done = whole

    def update(self, panel: Dim, area: Area, add: Callable[[Value], Sequence[Value]], new: bool) -> None:
        """Stores what ``add`` makes of the sums of an area; ``new`` ones are 0."""
        place = area.run, (ROWS * panel + area.column, area.columns)
        left = self._left(panel, area.column)
        (found,) = add(filled(self.zero, area.rows, area.columns) if new else load(self.out, *place, valid=left, name="before"))
        store(found, self.out, *place, valid=left)

    def _left(self, panel: Dim, column: Dim) -> Value | None:
        """How many columns there are from one on, where the last panel is not full."""
        if isinstance(self.columns, int) and self.columns % ROWS == 0:
            return None
        return index_value("apply", self.columns - ROWS * panel - column, name="left")

    def _hints(self, panel: Dim, block: Dim, column: Dim, number: int) -> None:
        """Hints for the numbers of blocks further on, of this panel or of the next ones: those that belong to one of ``WORDS`` places.

        Far ones ask for the cache behind the nearest, which has room for more loads under way; near ones bring numbers from there.
        """
        size, columns = self.weights.format.bytes, self.shape.columns
        lines = size * columns // (LINE * ROWS)
        first, last = (n * lines // WORDS for n in (number, number + 1))
        for ahead, locality in ((self.shape.ahead, 2), (self.shape.near, 3)):
            if ahead and first < last:
                place = size // ROWS * column + LINE * first, LINE * (last - first)
                prefetch(self.weights.packed, panel, block + ahead // size, place, locality=locality)

    # -- a block ---------------------------------------------------------------------------------------------------

    def _block(self, source: Source, b: Dim, block: Dim, area: Area, sums: Value, hints: Hints | None = None) -> Value:
        """Adds a block (``b`` of the source) to the sums of an area."""
        x = self.x
        exact = [self._start(block, digit, area) for digit in range(x.digits)]
        for number_, (word, found) in enumerate(source.words(b, area.column, area.columns)):
            if hints is not None:
                hints(number_)  # between other loads, as many at once would wait for each other
            for digit in range(x.digits):
                four = load(x.words, area.run, (block * x.digits + digit) * WORDS + word, keep=True, name="four")
                exact[digit] = dot4(found, four, exact[digit], small=self.weights.format.bits == 4, name=f"exact.{digit}")
        return self.join(exact, source, b, block, area, sums)

    def join(
        self, exact: Sequence[Value], source: Source, b: Dim, block: Dim, area: Area, sums: Value, wide: bool = False
    ) -> Value:  # fmt: skip
        """Adds the exact sums of the digits of a block (``b`` of the source) to the sums of an area.

        ``wide`` ones are two numbers, of which the second one counts 2**12 times.
        """
        scale = load(self.x.scales, area.run, 2 * block, keep=True, name="s")
        factor = mulf(source.factors(0, b, area.column, area.columns), scale)
        whole = fma(to_float(exact[1]), self.term, to_float(exact[0])) if wide else joined(exact, self.eight, self.base)
        return self.add(factor, whole, source, b, block, area, sums)

    def add(self, factor: Value, whole: Value, source: Source, b: Dim, block: Dim, area: Area, sums: Value) -> Value:
        """Adds a factor times the sums of a block, and what its minimums give, to the sums of an area."""
        sums = fma(factor, whole, sums)
        if not self.weights.format.minimum:
            return sums
        total = load(self.x.scales, area.run, 2 * block + 1, keep=True, name="total")
        return fma(source.factors(1, b, area.column, area.columns), total, sums)  # type: ignore[no-any-return]

    def _start(self, block: Dim, digit: int, area: Area) -> Value:
        """What the sums of a digit start from."""
        return self.taken_away(block, digit, area) if self.weights.format.offset else filled(self.nothing, area.rows, area.columns)

    def taken_away(self, block: Dim, digit: int, area: Area) -> Value:
        """What the offset of the numbers takes away from the sums of a digit."""
        assert self.x.sums is not None
        found = load(self.x.sums, area.run, block * self.x.digits + digit, keep=True, name="sum")
        return muli(found, self.offset)  # type: ignore[no-any-return]


def _part_of(total: int, most: int) -> int:
    """The size of pieces of at most so many: one that leaves no rest, unless that is less than half of what is allowed."""
    divisor = next(n for n in range(min(most, total), 0, -1) if total % n == 0)
    return divisor if 2 * divisor >= min(most, total) else -(-total // -(-total // most))


def to_float(x: Value) -> Value:
    """Exact integers as f32."""
    assert isinstance(x.type, VectorType)
    return sitofp(x, result_type=VectorType(f32, x.type.shape))  # type: ignore[no-any-return]


def joined(exact: Sequence[Value], eight: Value, base: Value) -> Value:
    """The sums of all digits as one float: up to two digits are one exact integer.  ``eight`` is 8 and ``base`` 256.0."""
    *low, high = exact
    if low:
        high = addi(shli(high, eight), low[-1])
    return to_float(high) if len(exact) < 3 else fma(to_float(high), base, to_float(exact[0]))
