"""The loops of ``digit_linear`` for many rows on a processor with tiles (:mod:`dialects._tiles`).

The activations of 16 rows and a block become *terms* first: a tile each, one behind the other, as the products read them.  A term is a
digit (a tile of 32 bytes a row), or, of three digits and weights of 4 bits, one of two numbers of 12 bits (64 bytes a row: the low 4 bits of
32 activations, and the other 8, which multiply weights times 16).  So two products do what three would.

For some blocks, the products of 16 rows with the 32 columns of a panel are made, tile by tile, and wait as integers in the nearest cache;
then they are joined, 8 rows at a time, by what joins them everywhere else: all sums are exact, so the bits are the same.  The two take
turns, since units that multiply tiles leave vectors half of their ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dialects._tiles import MOST
from dialects.arith.bits import andi, shli, shrsi
from dialects.arith.cast import extsi, trunci
from dialects.arith.integers import addi, muli, subi
from dialects.graph.digits import BLOCK, ROWS, WORDS
from dialects.memref import view
from dialects.vector import dot4
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod
from ir.types import DType, MemRefType, VectorType, i8, i32
from passes.loops._blocks import LINE, alloc, least, load, loop, number, parallel, prefetch, store

if TYPE_CHECKING:
    from passes.loops._digits import Activations, Product, Unpacked, Weights

TERM_BITS = 12
"""Bits of a number that a tile holds in two bytes."""
_GROUP = 8
"""Tiles of rows that go through all panels, one panel after the other, before the next ones do: the next cache holds their terms."""
_JOINED = 8
"""Rows that are joined at a time: their sums fill half of 32 registers."""
_AT_ONCE = 2
"""Terms whose products are under way at once: with two columns of tiles each, these and what they read fill 8 registers."""
_NEAR = 36 << 10
"""Bytes of what is read and what waits at a time: three quarters of a cache of 48 KiB."""


class Terms:
    """The terms of 16 rows or more, in memory that has so many bytes for each row.

    First come the rows that whole tiles leave over, one behind the other, ``rest[rows, blocks, terms, words]``, then tile by tile the others,
    ``words[tiles, blocks, terms, 16, words]``.  So the rest can be read as a tile, whose other rows are some numbers from behind.
    """

    def __init__(self, x: Activations, weights: Weights) -> None:
        self.x, self.wide = x, x.digits == 3 and weights.format.bits == 4
        self.count, self.size = (2, 2 * WORDS) if self.wide else (x.digits, WORDS)
        self.blocks, self.tiles, self.left = weights.blocks, floordiv(x.rows, MOST), mod(x.rows, MOST)
        self.groups = ceildiv(self.tiles, _GROUP)
        row = self.blocks * self.count * 4 * self.size
        memory = alloc("terms", i8, x.rows * row)

        def seen(dtype: DType, name: str, offset: Dim, *shape: Dim) -> Value:
            words = 4 * self.size if dtype == i8 else self.size
            return view(memory, offset=offset, result_type=MemRefType(dtype, (*shape, words)), name=f"terms.{name}")  # type: ignore[no-any-return]

        tiles, rows = (self.tiles, self.blocks, self.count, MOST), (x.rows, self.blocks, self.count)
        self.words = seen(i32, "words", self.left * row, *tiles)
        self.made = seen(i8, "bytes", self.left * row, *tiles) if self.wide else self.words
        if self.left != 0:
            self.rest = seen(i32, "rest", 0, *rows)
            self.rest_made = seen(i8, "rest.bytes", 0, *rows) if self.wide else self.rest

    def fill(self) -> None:
        """Makes them, tile by tile, and row by row what is left over."""
        if self.wide:
            self._constants()

        def tile(t: Dim) -> None:
            def rows(b: Dim) -> None:
                loop("row", 0, MOST, 1, lambda r: self._make(self.left + MOST * t + r, b, self.made, (t, b), (r,)), tag="terms")

            loop("block", 0, self.blocks, 1, rows, tag="terms")

        def row(r: Dim) -> None:
            loop("block", 0, self.blocks, 1, lambda b: self._make(r, b, self.rest_made, (r, b), ()), tag="terms")

        parallel([("tile", 0, self.tiles)], tile, tag="terms")
        if self.left != 0:
            parallel([("row", 0, self.left)], row, tag="terms")

    def of_tile(self, tile: Dim | None, block: Dim, term: int) -> Value:
        """The terms of a tile, or (for None) of the rows that are left over."""
        if tile is None:
            return load(self.rest, (0, MOST), block, term, (0, self.size), name="four")
        return load(self.words, tile, block, term, (0, MOST), (0, self.size), name="four")

    def _make(self, row: Dim, block: Dim, into: Value, front: tuple[Dim, ...], behind: tuple[Dim, ...]) -> None:
        """The terms of a row and a block, as bytes where they are wide, else as words, at a place that has the term's number in between."""
        if self.wide:
            self._split(row, block, into, front, behind)
            return
        for digit in range(self.count):  # digits are terms
            found = load(self.x.words, row, ((block * self.count + digit) * WORDS, WORDS), name="four")
            store(found, into, *front, digit, *behind, (0, WORDS))

    def _constants(self) -> None:
        self.byte, self.twice = number(8, i32, "byte"), number(16, i32, "twice")
        self.bits, self.half = number(TERM_BITS, i32, "bits"), number(1 << TERM_BITS - 1, i32, "half")
        self.four, self.low = number(4, i32, "four"), number(15, i32, "low")

    def _split(self, row: Dim, block: Dim, bytes_: Value, front: tuple[Dim, ...], behind: tuple[Dim, ...]) -> None:
        """Three digits of the activations of a block as two numbers: the rest below 2**11, and what is left of them over 2**12."""
        wide = VectorType(i32, (BLOCK,))
        found = [load(self.x.bytes, row, ((block * 3 + digit) * BLOCK, BLOCK), name="digit") for digit in range(3)]
        d0, d1, d2 = (extsi(digit, result_type=wide) for digit in found)
        whole = addi(addi(shli(d2, self.twice), shli(d1, self.byte)), d0, name="whole")
        high = shrsi(addi(whole, self.half), self.bits, name="high")
        for term, some in enumerate((subi(whole, shli(high, self.bits), name="rest"), high)):
            for part, value in enumerate((andi(some, self.low), shrsi(some, self.four))):
                store(trunci(value, result_type=VectorType(i8, (BLOCK,))), bytes_, *front, term, *behind, (part * BLOCK, BLOCK))


class Tiles:
    """The tiles of a group of rows, for one panel of weights."""

    def __init__(self, product: Product, terms: Terms, source: Unpacked, panel: Dim, group: Dim) -> None:
        self.product, self.terms, self.source, self.panel, self.group = product, terms, source, panel, group
        self.exact = alloc("exact", i32, source.blocks, terms.count, MOST, ROWS)

    @staticmethod
    def most(product: Product, terms: Terms) -> int:
        """How many blocks are unpacked and multiplied at a time."""
        read = terms.size * (ROWS + terms.count * MOST) + ROWS * (1 + product.weights.format.minimum)
        return max(1, _NEAR // (4 * (read + terms.count * MOST * ROWS)))

    def add(self, start: Dim, count: int) -> None:
        """Adds blocks from ``start`` on, which are block 0 and so on of the source."""
        terms, begin = self.terms, _GROUP * self.group

        def rows(tile: Dim | None, first: Dim, stop: Dim, size: int) -> None:
            if start == 0:
                self._ask_for_results(first)
            self._multiply(tile, start, count)
            loop("row", first, stop, size, lambda row: self._join(first, row, size, start, count), tag="join")

        def whole(t: Dim) -> None:
            first = terms.left + MOST * t
            self._ask_for_weights(t - begin, start, count)
            rows(t, first, first + MOST, _JOINED)

        loop("tile", begin, least("tiles", terms.tiles, begin + _GROUP), 1, whole, tag="tiles")
        if terms.left != 0:  # with the first group
            loop("rest", self.group, least("any", 1, terms.left), 1, lambda _: rows(None, 0, terms.left, 1), tag="rest")

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

    def _multiply(self, tile: Dim | None, start: Dim, count: int) -> None:
        """The products of all blocks with a tile (None: with what tiles leave over)."""
        terms, size = self.terms, self.terms.size

        def block(b: Dim) -> None:
            columns = range(0, ROWS, MOST)
            numbers = [load(self.source.numbers, b, (0, size), (c, MOST), name="bytes") for c in columns]
            for low in range(0, terms.count, _AT_ONCE):
                made = []
                for term in range(low, min(low + _AT_ONCE, terms.count)):
                    four = terms.of_tile(tile, start + b, term)
                    made += [(dot4(four, n, name=f"exact.{term}"), term, c) for c, n in zip(columns, numbers, strict=True)]
                for exact, term, column in made:
                    store(exact, self.exact, b, term, (0, MOST), (column, MOST))

        loop("block", 0, count, 1, block, tag="multiply")

    def _join(self, first: Dim, row: Dim, rows: int, start: Dim, count: int) -> None:
        """Adds what waits to the sums of some rows of a tile, whose first row is given."""
        product = self.product

        def block(b: Dim, sums: Value) -> Value:
            exact = [load(self.exact, b, n, (row - first, rows), (0, ROWS), name=f"exact.{n}") for n in range(self.terms.count)]
            if product.weights.format.offset:
                exact = [addi(x, less) for x, less in zip(exact, self._taken_away(start + b, row, rows), strict=True)]
            return product.join(exact, self.source, b, start + b, row, rows, 0, ROWS, sums, wide=self.terms.wide)

        def add(sums: Value) -> list[Value]:
            return loop("block", 0, count, 1, block, [sums], tag="join", result="sums")

        product.update(self.panel, row, rows, 0, ROWS, add, new=start == 0)

    def _taken_away(self, block: Dim, row: Dim, rows: int) -> Sequence[Value]:
        """What the offset of the numbers takes away from each term: together, offset * (sum 0 + 256 * sum 1 + 65536 * sum 2)."""
        product = self.product
        less = [product.taken_away(block, digit, row, rows) for digit in range(product.x.digits)]
        if not self.terms.wide:
            return less
        return [addi(less[0], muli(less[1], number(256, i32))), muli(less[2], number(1 << 16 - TERM_BITS, i32))]
