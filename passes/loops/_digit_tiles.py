"""The loops of ``digit_linear`` for many rows on a processor with tiles (:mod:`dialects._tiles`).

``split_digits`` leaves the activations of 16 rows and a block as *terms*: a tile each, one behind the other, as the products read them.
A term is a digit (a tile of 32 bytes a row), or, of three digits and weights of 4 bits, one of two numbers of 12 bits (64 bytes a row: the
low 4 bits of 32 activations, and the other 8, which multiply weights times 16).  So two products do what three would.

For some blocks, the products of 16 rows with the 32 columns of a panel are made, tile by tile, and wait as integers in the nearest cache;
then they are joined, 8 rows at a time, by what joins them everywhere else: all sums are exact, so the bits are the same.  The two take
turns, since units that multiply tiles leave vectors half of their ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dialects._tiles import MOST
from dialects.arith.integers import addi, muli
from dialects.graph.digits import ROWS, WORDS, Format
from dialects.memref import view
from dialects.vector import dot4
from ir.core import Value
from ir.dims import Dim, apply_function, ceildiv, floordiv, mod
from ir.types import DType, MemRefType, i32
from passes.loops._blocks import LINE, alloc, least, load, loop, most, number, prefetch, store
from passes.loops._weights import Area

if TYPE_CHECKING:
    from passes.loops._digits import Product
    from passes.loops._weights import Unpacked

TERM_BITS = 12
"""Bits of a number that a tile holds in two bytes."""
_FEWEST_WIDE = 10
"""Rows from which on a tile of numbers of 12 bits is worth it, full or not."""
_GROUP = 8
"""Tiles of rows that go through all panels, one panel after the other, before the next ones do: the next cache holds their terms.

The last group has half as many at least, and less than half as many more, where there are so many.
"""
_JOINED = 8
"""Rows that are joined at a time: their sums fill half of 32 registers."""
_AT_ONCE = 2
"""Terms whose products are under way at once: with two columns of tiles each, these and what they read fill 8 registers."""
_NEAR = 36 << 10
"""Bytes of what is read and what waits at a time: three quarters of a cache of 48 KiB."""


class Terms:
    """The terms of ``fewest`` rows or more, tile by tile: ``words[tiles, blocks, terms, 16, words]``.

    ``split_digits`` makes them.  The last tile may have rows that nobody has made, whose products nobody reads.
    """

    def __init__(self, memory: Value, rows: Dim, blocks: Dim, digits: int, wide: bool, fewest: int) -> None:
        self.memory, self.rows, self.blocks, self.wide, self.fewest = memory, rows, blocks, wide, fewest
        self.count, self.size = _terms_of(digits, wide)
        self.tiles, self.whole, self.left = ceildiv(rows, MOST), floordiv(rows, MOST), mod(rows, MOST)
        self.groups = apply_function("max", 1, floordiv(self.whole + _GROUP // 2, _GROUP))

    @staticmethod
    def bytes(rows: Dim, blocks: Dim, digits: int, wide: bool) -> Dim:
        """How much memory they take."""
        count, size = _terms_of(digits, wide)
        return ceildiv(rows, MOST) * MOST * blocks * (count * 4 * size)  # type: ignore[no-any-return]

    def seen(self, dtype: DType, name: str, *row: Dim) -> Value:
        """The memory as tiles of 16 rows of that shape."""
        shape = self.tiles, self.blocks, self.count, MOST, *row
        return view(self.memory, offset=0, result_type=MemRefType(dtype, shape), name=f"{self.memory.name}.{name}")  # type: ignore[no-any-return]


def _terms_of(digits: int, wide: bool) -> tuple[int, int]:
    """How many terms there are, and how many words of each."""
    return (2, 2 * WORDS) if wide else (digits, WORDS)


def fewest_rows(wide: bool) -> int:
    """From how many rows on terms are worth it: two products of 16 rows of 12-bit numbers take as long as three digits of some 10 rows."""
    return _FEWEST_WIDE if wide else MOST


def is_wide(digits: int, format_: Format) -> bool:
    """Whether terms are numbers of 12 bits."""
    return digits == 3 and format_.bits == 4


class Tiles:
    """The tiles of a group of rows, for one panel of weights."""

    def __init__(self, product: Product, terms: Terms, words: Value, source: Unpacked, panel: Dim, group: Dim) -> None:
        self.product, self.terms, self.words, self.source, self.panel, self.group = product, terms, words, source, panel, group
        self.exact = alloc("exact", i32, source.blocks, terms.count, MOST, ROWS)

    @staticmethod
    def most(product: Product, terms: Terms) -> int:
        """How many blocks are unpacked and multiplied at a time."""
        read = terms.size * (ROWS + terms.count * MOST) + ROWS * (1 + product.weights.format.minimum)
        return max(1, _NEAR // (4 * (read + terms.count * MOST * ROWS)))

    def add(self, start: Dim, count: int) -> None:
        """Adds blocks from ``start`` on, which are block 0 and so on of the source."""
        terms, begin = self.terms, _GROUP * self.group
        last = most("last", 0, self.group + 2 - terms.groups)  # 1 in the last group, which takes what is left
        end = least("end", terms.whole, begin + _GROUP + _GROUP * last)

        def multiply(tile: Dim) -> None:
            self._ask_for_weights(tile - begin, start, count)
            if start == 0:
                self._ask_for_results(MOST * tile)
            self._multiply(tile, start, count)

        def join(tile: Dim, first: Dim, stop: Dim, size: int) -> None:
            loop("row", first, stop, size, lambda row: self._join(MOST * tile, row, size, start, count), tag="join")

        def whole(tile: Dim) -> None:
            multiply(tile)
            join(tile, MOST * tile, MOST * tile + MOST, _JOINED)

        def rest(tile: Dim) -> None:
            multiply(tile)
            together = _JOINED * floordiv(terms.rows, _JOINED)
            join(tile, MOST * terms.whole, together, _JOINED)
            join(tile, together, terms.rows, 1)

        loop("tile", begin, end, 1, whole, tag="tiles")
        if terms.left != 0:
            loop("tile", terms.whole, least("rest", terms.tiles, end + 1), 1, rest, tag="rest")

    def _ask_for_weights(self, part: Dim, start: Dim, count: int) -> None:
        """Hints for one of as many parts of the next panel's blocks as there are tiles in a group: all at once would wait for each other."""
        packed, size = self.product.weights.packed, self.product.weights.format.bytes
        lines = -(-count * size // (LINE * _GROUP))
        for line in range(lines):
            prefetch(packed, self.panel + 1, start, LINE * (lines * part + line), locality=2)

    def _ask_for_results(self, first: Dim) -> None:
        """Hints for the lines that the first sums of a tile are stored to: nobody has touched them lately."""
        place = ROWS * self.panel, ROWS
        loop("row", first, first + MOST, 1, lambda row: prefetch(self.product.out, row, place, locality=2, write=True), tag="ask")

    def _multiply(self, tile: Dim, start: Dim, count: int) -> None:
        """The products of all blocks with a tile."""
        terms, size = self.terms, self.terms.size

        def block(b: Dim) -> None:
            columns = range(0, ROWS, MOST)
            numbers = [load(self.source.numbers, b, (0, size), (c, MOST), name="bytes") for c in columns]
            for low in range(0, terms.count, _AT_ONCE):
                made = []
                for term in range(low, min(low + _AT_ONCE, terms.count)):
                    four = load(self.words, tile, start + b, term, (0, MOST), (0, size), name="four")
                    made += [(dot4(four, n, name=f"exact.{term}"), term, c) for c, n in zip(columns, numbers, strict=True)]
                for exact, term, column in made:
                    store(exact, self.exact, b, term, (0, MOST), (column, MOST))

        loop("block", 0, count, 1, block, tag="multiply")

    def _join(self, first: Dim, row: Dim, rows: int, start: Dim, count: int) -> None:
        """Adds what waits to the sums of some rows of a tile, whose first row is given."""
        product, area = self.product, Area(row, rows, 0, ROWS)

        def block(b: Dim, sums: Value) -> Value:
            exact = [load(self.exact, b, n, (row - first, rows), (0, ROWS), name=f"exact.{n}") for n in range(self.terms.count)]
            if product.weights.format.offset:
                exact = [addi(x, less) for x, less in zip(exact, self._taken_away(start + b, area), strict=True)]
            return product.join(exact, self.source, b, start + b, area, sums, wide=self.terms.wide)

        def add(sums: Value) -> list[Value]:
            return loop("block", 0, count, 1, block, [sums], tag="join", result="sums")

        product.update(self.panel, area, add, new=start == 0)

    def _taken_away(self, block: Dim, area: Area) -> Sequence[Value]:
        """What the offset of the numbers takes away from each term: together, offset * (sum 0 + 256 * sum 1 + 65536 * sum 2)."""
        product = self.product
        less = [product.taken_away(block, digit, area) for digit in range(product.x.digits)]
        if not self.terms.wide:
            return less
        return [addi(less[0], muli(less[1], number(256, i32))), muli(less[2], number(1 << 16 - TERM_BITS, i32))]
