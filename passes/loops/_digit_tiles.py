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
from dialects.graph.digits import BLOCK, ROWS
from dialects.memref import view
from dialects.vector import dot4
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv
from ir.types import MemRefType, VectorType, i8, i32
from passes.loops._blocks import alloc, filled, least, load, loop, number, parallel, prefetch, store

if TYPE_CHECKING:
    from passes.loops._digits import Activations, Product, Unpacked, Weights

TERM_BITS = 12
"""Bits of a number that a tile holds in two bytes."""
_WORDS = BLOCK // 4
_GROUP = 8
"""Tiles of rows that go through all panels, one panel after the other, before the next ones do: the next cache holds their terms."""
_JOINED = 8
"""Rows that are joined at a time: their sums fill half of 32 registers."""
_AT_ONCE = 2
"""Terms whose products are under way at once: with two columns of tiles each, these and what they read fill 8 registers."""
_NEAR = 36 << 10
"""Bytes of what is read and what waits at a time: three quarters of a cache of 48 KiB."""


def is_wide(digits: int, weights: Weights) -> bool:
    """Whether activations are two numbers of 12 bits."""
    return digits == 3 and weights.format.bits == 4


class Terms:
    """The terms of all tiles of rows, the last one filled with zeros: ``words[tiles, blocks, terms, 16, words]``."""

    def __init__(self, x: Activations, weights: Weights) -> None:
        self.x, self.wide = x, is_wide(x.digits, weights)
        self.count, self.size = (2, 2 * _WORDS) if self.wide else (x.digits, _WORDS)
        self.blocks, self.tiles = weights.blocks, ceildiv(x.rows, MOST)
        self.groups = ceildiv(self.tiles, _GROUP)
        self.bytes = alloc("terms", i8, self.tiles, self.blocks, self.count, MOST, 4 * self.size)
        type_ = MemRefType(i32, (self.tiles, self.blocks, self.count, MOST, self.size))
        self.words = view(self.bytes, offset=0, result_type=type_, name="terms.words")

    def fill(self) -> None:
        """Makes them, tile by tile."""
        if self.wide:
            self._constants()

        none = filled(number(0, i32, "none"), self.size)

        def tile(t: Dim) -> None:
            count = least("count", MOST, self.x.rows - MOST * t) if self._is_ragged else MOST

            def rows(b: Dim) -> None:
                loop("row", 0, count, 1, lambda r: self._split(t, b, r) if self.wide else self._copied(t, b, r), tag="terms")
                if self._is_ragged:
                    for term in range(self.count):
                        loop("row", count, MOST, 1, lambda r, n=term: store(none, self.words, t, b, n, r, (0, self.size)), tag="terms")

            loop("block", 0, self.blocks, 1, rows, tag="terms")

        parallel([("tile", 0, self.tiles)], tile, tag="terms")

    @property
    def _is_ragged(self) -> bool:
        """Whether the last tile may have less than 16 rows."""
        return not isinstance(self.x.rows, int) or self.x.rows % MOST != 0

    def _copied(self, tile: Dim, block: Dim, row: Dim) -> None:
        """Digits are terms."""
        for digit in range(self.count):
            found = load(self.x.words, MOST * tile + row, ((block * self.count + digit) * _WORDS, _WORDS), name="four")
            store(found, self.words, tile, block, digit, row, (0, _WORDS))

    def _constants(self) -> None:
        self.byte, self.twice = number(8, i32, "byte"), number(16, i32, "twice")
        self.bits, self.half = number(TERM_BITS, i32, "bits"), number(1 << TERM_BITS - 1, i32, "half")
        self.four, self.low = number(4, i32, "four"), number(15, i32, "low")

    def _split(self, tile: Dim, block: Dim, row: Dim) -> None:
        """Three digits of the activations of a block as two numbers: the rest below 2**11, and what is left of them over 2**12."""
        x = self.x
        place = MOST * tile + row
        wide = VectorType(i32, (BLOCK,))
        found = [load(x.bytes, place, ((block * 3 + digit) * BLOCK, BLOCK), name="digit") for digit in range(3)]
        d0, d1, d2 = (extsi(digit, result_type=wide) for digit in found)
        whole = addi(addi(shli(d2, self.twice), shli(d1, self.byte)), d0, name="whole")
        high = shrsi(addi(whole, self.half), self.bits, name="high")
        for term, some in enumerate((subi(whole, shli(high, self.bits), name="rest"), high)):
            for part, value in enumerate((andi(some, self.low), shrsi(some, self.four))):
                store(trunci(value, result_type=VectorType(i8, (BLOCK,))), self.bytes, tile, block, term, row, (part * BLOCK, BLOCK))


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
        total, end = self.product.x.rows, _GROUP * self.group + _GROUP

        def tile(t: Dim) -> None:
            if start == 0:
                self._ask_for_results(t)
            self._multiply(t, start, count)
            begin, stop = MOST * t, least("stop", MOST * t + MOST, total)
            whole = begin + _JOINED * floordiv(stop - begin, _JOINED)
            loop("row", begin, whole, _JOINED, lambda row: self._join(t, row, _JOINED, start, count), tag="join")
            if not isinstance(total, int) or total % _JOINED:
                loop("row", whole, stop, 1, lambda row: self._join(t, row, 1, start, count), tag="join")

        loop("tile", _GROUP * self.group, least("tiles", self.terms.tiles, end), 1, tile, tag="tiles")

    def _ask_for_results(self, tile: Dim) -> None:
        """Hints for the lines that the first sums are stored to: nobody has touched them lately."""
        place = ROWS * self.panel, ROWS
        loop("row", MOST * tile, MOST * tile + MOST, 1, lambda row: prefetch(self.product.out, row, place, write=True), tag="ask")

    def _multiply(self, tile: Dim, start: Dim, count: int) -> None:
        """The products of all blocks."""
        terms, size = self.terms, self.terms.size

        def block(b: Dim) -> None:
            columns = range(0, ROWS, MOST)
            numbers = [load(self.source.numbers, b, (0, size), (c, MOST), name="bytes") for c in columns]
            for low in range(0, terms.count, _AT_ONCE):
                made = []
                for term in range(low, min(low + _AT_ONCE, terms.count)):
                    four = load(terms.words, tile, start + b, term, (0, MOST), (0, size), name="four")
                    made += [(dot4(four, n, name=f"exact.{term}"), term, c) for c, n in zip(columns, numbers, strict=True)]
                for exact, term, column in made:
                    store(exact, self.exact, b, term, (0, MOST), (column, MOST))

        loop("block", 0, count, 1, block, tag="multiply")

    def _join(self, tile: Dim, row: Dim, rows: int, start: Dim, count: int) -> None:
        """Adds what waits to the sums of some rows of a tile."""
        product = self.product

        def block(b: Dim, sums: Value) -> Value:
            exact = [load(self.exact, b, n, (row - MOST * tile, rows), (0, ROWS), name=f"exact.{n}") for n in range(self.terms.count)]
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
