"""The loops of ``digit_linear`` for many rows and weights of 4 bits, on processors whose units for products are what is short.

Half of the products of the highest digits are saved by S. Winograd's inner product ("A new algorithm for inner product", IEEE Transactions on
Computers C-17, 1968).  With two elements a, b of a row of activations, and v, w of a row of weights,

    a * v + b * w = (a + w) * (b + v) - a * b - w * v

of which the last two terms belong to one row alone, so they are summed up once for all products with it.  What takes the place of a product
are two additions of bytes, which other units do meanwhile.  Here b is 16 elements behind a in a block of 32.  The sums must be bytes: the
highest digit of an activation is between -120 and 120, and a weight between 0 and 15, so ``a + 120 + w`` is one without a sign and ``b - 8 + v`` one
with a sign.  So what a sum has too much is, for each pair, (a + 120) * (b - 8) of the activations, and (w + 120) * (v - 8) + 960 of the weights.
Lower digits need all of their bytes, and are multiplied one by one.

Three digits save two multiplications of floats besides.  Their scale s is a power of two, so the sum of a digit may be counted in the bits of
a float: it starts from the bits of 1.5 * 2^23 units, a unit being 256^digit * s * 2^-24, and what the float is more than at its start is the
sum times this unit.  The three are added exactly but for the last addition, where everything that joins sums of digits rounds (:func:`joined`).
Scales of weights are multiplied by 2^24, so that units have room at both ends of f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from dialects.arith.cast import trunci
from dialects.arith.dot import add4, dot4
from dialects.arith.floats import addf, mulf, subf
from dialects.arith.integers import addi, subi
from dialects.graph.digits import BLOCK, HIGHEST, ROWS, WORDS, Format
from dialects.vector import multi_reduction
from ir.core import Value
from ir.dims import Dim
from ir.types import DType, f32, i8, i32
from passes.loops._blocks import alloc, bits_as, column, filled, like, load, number, store
from passes.loops._weights import Area, Packed, Unpacked, typed

if TYPE_CHECKING:
    from passes.loops._digits import Product

_HALF = WORDS // 2
"""Words of a block between those that are paired."""
_BIASES = HIGHEST, -8
"""What is added to the highest digits of the first and of the second half of a block."""
_UNIT = 24
"""The unit of the lowest digit's sum is a scale times 2 ** -24."""


def is_paired(format_: Format) -> bool:
    """Whether weights leave the bytes of sums room."""
    return format_.bits == 4


class Pairs:
    """The digits of rows for these loops, and what sums start from: ``[rows, blocks]`` of so many words.

    ``split_digits`` makes them.  Behind the digits of a block, of which the highest are biased, there are four words for what the sum of
    each digit starts from (of one or two digits, the highest one's alone).  For three digits there are four more, with the bits of the floats
    that are subtracted in the end: those of the lower ones once more, since words that are loaded once would take registers all the time.
    """

    def __init__(self, memory: Value, rows: Dim, blocks: Dim, digits: int, fewest: int) -> None:
        self.memory, self.rows, self.blocks, self.digits, self.fewest = memory, rows, blocks, digits, fewest
        self.starts = WORDS * digits
        self.floats = self.starts + 4
        self.words = _words(digits)

    @staticmethod
    def bytes(rows: Dim, blocks: Dim, digits: int) -> Dim:
        """How much memory they take."""
        return rows * blocks * (4 * _words(digits))

    def seen(self, dtype: DType, name: str, *shape: Dim) -> Value:
        """The memory of the rows with the shape of one."""
        return typed(self.memory, dtype, self.rows, *shape, name=f"{self.memory.name}.{name}")


def _words(digits: int) -> int:
    """Words of a block: a multiple of 16 bytes."""
    return WORDS * digits + (8 if digits == 3 else 4)


class PairStores:
    """What ``split_digits`` stores as pairs: some blocks of a row, as vectors ``[blocks, 2, lanes]``."""

    def __init__(self, pairs: Pairs, group: int, lanes: int) -> None:
        self.pairs, self.group, self.lanes = pairs, group, lanes
        self.bytes = pairs.seen(i8, "bytes", pairs.blocks, 4 * pairs.words // lanes, lanes)
        self.words = pairs.seen(i32, "words", pairs.blocks, pairs.words)
        self.nothing = number(0, i32, "nothing")
        if pairs.digits == 3:
            self.units = [number(1.5 * 2.0 ** (23 - _UNIT + 8 * n), f32, "units") for n in range(3)]

    def store(self, digits: Sequence[Value], scale: Value, row: Dim, block: Dim) -> None:
        """Stores digits as i32, of which only the highest ones have nothing above, and the starts of sums."""
        blocks, runs = (block, self.group), BLOCK // self.lanes
        *low, high = digits
        high = addi(high, column(_BIASES), name="biased")  # made here: nests that use vectors from outside are not alike
        for n, digit in enumerate((*low, high)):
            cut = trunci(digit, result_type=like(digit, i8), name=f"digit.{n}")
            store(cut, self.bytes, row, blocks, (runs * n, runs), (0, self.lanes))
        products = multi_reduction(high, kind="mul", axes=(1,), name="products")
        both = multi_reduction(products, kind="add", axes=(1,), name="both")
        starts = [self.nothing]
        if self.pairs.digits == 3:
            starts = [bits_as(mulf(scale, unit), i32, "start") for unit in self.units]
            for n, start in enumerate(starts):
                store(start, self.words, row, blocks, self.pairs.floats + n)
        *lower, highest = starts
        for n, start in enumerate(lower):
            store(start, self.words, row, blocks, self.pairs.starts + n)
        store(subi(highest, both, name="start"), self.words, row, blocks, self.pairs.starts + self.pairs.digits - 1)


class PairPanel(Unpacked):
    """Weights of a panel for these loops: besides bytes and scales, what the sums of the highest digits have too much on their account."""

    def __init__(self, format_: Format, blocks: int, digits: int) -> None:
        super().__init__(format_, blocks)
        self.digits = digits
        self.starts = alloc("starts", i32, blocks, ROWS)
        first, second = _BIASES
        self.first, self.second = (number(int.from_bytes(bytes([b & 255] * 4), "little", signed=True), i32, "bias") for b in _BIASES)
        self.constant, self.nothing = number(-BLOCK // 2 * first * second, i32, "constant"), number(0, i32, "nothing")
        self.unit = number(2.0**_UNIT, f32, "unit")

    def put(self, source: Packed, b: Dim, block: Dim, place: tuple[int, int]) -> None:
        total, halves = self.constant, {}
        for word, found in source.words(block, *place):
            store(found, self.numbers, b, word, place)
            halves[word] = found
        for word in range(_HALF):
            total = dot4(add4(halves[_HALF + word], self.first), add4(halves[word], self.second), total, name="total")
        store(subi(self.nothing, total), self.starts, b, place)
        for part in range(1 + source.weights.format.minimum):
            factors = source.factors(part, block, *place)
            store(mulf(factors, self.unit) if part == 0 and self.digits == 3 else factors, self.parts, b, part, place)


class PairLoops:
    """What adds blocks of panels that are unpacked to all rows.

    Half as many columns are worked on at a time as elsewhere, as the sums of bytes take registers, too; of rows that are left over, half as many
    rows.
    """

    def __init__(self, product: Product, pairs: Pairs) -> None:
        self.product, self.pairs = product, pairs
        self.words = pairs.seen(i32, "words", pairs.blocks * pairs.words)

    @staticmethod
    def most(product: Product) -> int:
        """How many blocks are unpacked at a time: half as many as without pairs, so that a panel is read soon after it was unpacked."""
        return max(1, product.shape.blocks // 2)

    def add(self, source: PairPanel, panel: Dim, start: Dim, count: int) -> None:
        """Adds blocks of a panel from ``start`` on, which are block 0 and so on of the source."""

        def block(b: Dim, area: Area, sums: Value) -> Value:
            return self._block(source, b, start + b, area, sums)

        shape = self.product.shape
        rows = [n for n in (shape.paired, shape.paired // 2) if n > 1]
        self.product.blocks(panel, start, count, (*rows, 1), max(1, shape.columns // 2), block)

    def _load(self, area: Area, block: Dim, place: int, name: str) -> Value:
        """A word of a block of each of some rows."""
        return load(self.words, area.run, self.pairs.words * block + place, keep=True, name=name)

    def _block(self, source: PairPanel, b: Dim, block: Dim, area: Area, sums: Value) -> Value:
        """Adds a block (``b`` of the source) to the sums of an area."""
        product, count = self.product, self.pairs.digits
        numbers = dict(source.words(b, area.column, area.columns))
        exact = [self._start(source, b, block, digit, area) for digit in range(count)]
        for word in range(_HALF):
            v, w = numbers[word], numbers[_HALF + word]
            for digit in range(count):
                places = (WORDS * digit + at for at in (word, _HALF + word))
                x, y = (self._load(area, block, place, "four") for place in places)
                if digit == count - 1:
                    exact[digit] = dot4(add4(w, x), add4(v, y), exact[digit], name=f"exact.{digit}")
                else:
                    exact[digit] = dot4(v, x, exact[digit], small=True, name=f"exact.{digit}")
                    exact[digit] = dot4(w, y, exact[digit], small=True, name=f"exact.{digit}")
        if count < 3:
            return product.join(exact, source, b, block, area, sums)
        factor, whole = source.factors(0, b, area.column, area.columns), self._joined(exact, block, area)
        return product.add(factor, whole, source, b, block, area, sums)

    def _start(self, source: PairPanel, b: Dim, block: Dim, digit: int, area: Area) -> Value:
        """What the sum of a digit starts from."""
        product, pairs = self.product, self.pairs
        is_last, parts = digit == pairs.digits - 1, []
        if is_last:
            parts.append(load(source.starts, b, (area.column, area.columns), name="start"))
        if is_last or pairs.digits == 3:
            parts.append(self._load(area, block, pairs.starts + digit, "start"))
        if product.weights.format.offset:
            parts.append(product.taken_away(block, digit, area))
        if not parts:
            return filled(product.nothing, area.rows, area.columns)
        return reduce(addi, parts)

    def _joined(self, exact: Sequence[Value], block: Dim, area: Area) -> Value:
        """The sums of three digits as one float, rounded once; times the scale and 2 ** -24."""
        parts = []
        for digit, found in enumerate(exact):
            start = self._load(area, block, self.pairs.floats + digit, "start")
            parts.append(subf(bits_as(found, f32), bits_as(start, f32)))
        low, middle, high = parts
        return addf(addf(high, middle), low)  # type: ignore[no-any-return]
