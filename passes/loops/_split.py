"""The loops of ``split_digits``: some blocks of a row after the other.

Everything is computed from bits of f32: ``arith.bitcast`` there and back makes a number f32 where the interpreter keeps more, so that
integers are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dialects._tiles import MOST
from dialects.arith.bits import andi, shli, shrsi, xori
from dialects.arith.cast import sitofp, trunci
from dialects.arith.comparison import cmpi, select
from dialects.arith.floats import addf, divf, mulf
from dialects.arith.integers import addi, maxsi, subi
from dialects.graph.digits import BLOCK, LARGEST, LEAST_SCALE, POWER_STEPS
from dialects.vector import multi_reduction, reshape
from ir.core import Value
from ir.dims import Dim, floordiv, mod, product
from ir.types import VectorType, f32, i8, i32
from passes.loops._blocks import Place, bits_as, buffer_type, choose, index_value, like, load, loop, number, parallel, reshaped, store
from passes.loops._digit_pairs import Pairs, PairStores
from passes.loops._digit_tiles import TERM_BITS, Terms

_INFINITY = 0x7F800000
_LARGEST = 0x7FFFFFFF
_SHIFT = 2.0**23


def _bits(value: float) -> int:
    return int(np.array(value, np.float32).view(np.int32))


def _stored(value: Value, name: str) -> Value:
    """A float as f32, whatever it is computed in."""
    return bits_as(bits_as(value, i32), f32, name)


def split_rows(
    x: Value, digits: Value, scales: Value, sums: Value | None, forms: Sequence[Terms | Pairs] = (), always: bool = True
) -> None:  # fmt: skip
    """Fills the results of ``split_digits`` (None: nobody reads it), and terms or pairs if there are rows enough.

    Then the digits are only filled if they are wanted ``always``.
    """
    SplitTogether(x, digits, scales, sums, forms, always).build()


class Split:
    """The numbers of a block: as one vector here; :class:`SplitTogether` and other kinds of code say how they load, reduce and store them."""

    only_digits = True
    """whether digits are stored, and nothing else"""

    def __init__(self, x: Value, digits: Value, scales: Value, sums: Value | None) -> None:
        *front, size = buffer_type(x).shape
        count = buffer_type(digits).shape[-2]
        assert isinstance(size, int) and isinstance(count, int)
        rows = product(front)
        self.rows, self.blocks, self.count = rows, size // BLOCK, count
        self.x, self.digits = reshaped(x, rows, size), reshaped(digits, rows, self.blocks, count, BLOCK)
        self.scales = reshaped(scales, rows, self.blocks, 2)
        self.sums = reshaped(sums, rows, self.blocks, count) if sums is not None else None

    def start(self) -> None:
        """Makes the constants of :meth:`block`."""
        count = self.count
        self.magnitude = number(_LARGEST, i32, "magnitude")
        self.infinity = number(_INFINITY, i32, "infinity")
        self.nothing, self.zero = number(0, i32, "nothing"), number(0.0, f32, "zero")
        self.nan = number(float("nan"), f32, "nan")
        shift = _SHIFT if count == 3 else 1.5 * _SHIFT
        self.shift, self.shift_bits = number(shift, f32, "shift"), number(_bits(shift), i32, "shift.bits")
        self.all = number(-1, i32, "all")
        self.least = number(_bits(LARGEST[count] * LEAST_SCALE), i32, "least")
        self.steps = [number(8 * n, i32, "step") for n in range(count)]
        self.halves = [number(sum(128 << 8 * m for m in range(n)), i32, "half") for n in range(count)]
        if count == 3:
            self.up, self.down = (number(n, i32, name) for n, name in zip(POWER_STEPS, ("up", "down"), strict=True))
            self.inverse, self.sign = number(254 << 23, i32, "inverse"), number(31, i32, "sign")
        else:
            self.limit = number(LARGEST[count], f32, "limit")

    def build(self) -> None:
        """The loops."""
        self.start()

        def row(i: Dim) -> None:
            loop("block", 0, self.blocks, self.together, lambda b: self.block(i, b), tag="split")

        parallel([("row", 0, self.rows)], row, tag="rows")

    @property
    def together(self) -> int:
        """Blocks that are split at a time."""
        return 1

    def load(self, row: Dim, block: Dim) -> Value:
        """The numbers of a block."""
        return load(self.x, row, (BLOCK * block, BLOCK), name="x")

    def reduce(self, x: Value, kind: Literal["add", "max"], name: str) -> Value:
        """The sum or the largest of a block's integers."""
        return multi_reduction(x, kind=kind, axes=(0,), name=name)  # type: ignore[no-any-return]

    def for_each(self, value: Value) -> Value:
        """What there is once for a block, for each of its numbers."""
        return value

    def store_integers(self, moved: Sequence[Value], scale: Value, row: Dim, block: Dim) -> None:
        """Stores the integers of a block, moved by each number of digits, whose scale is given."""
        for n, m in enumerate(moved):
            self.store_digit(trunci(m, result_type=like(m, i8), name=f"digit.{n}"), row, block, n)

    def store_digit(self, digit: Value, row: Dim, block: Dim, number: int) -> None:
        """Stores a digit of each number of a block."""
        store(digit, self.digits, row, block, number, (0, BLOCK))

    def store(self, value: Value, buffer: Value, *places: Dim) -> None:
        """Stores what there is once for a block."""
        store(value, buffer, *places)

    def block(self, row: Dim, block: Dim) -> None:
        """Splits a block."""
        x = self.load(row, block)
        found = bits_as(x, i32, "bits")
        sizes = andi(found, self.magnitude)
        largest = self.reduce(sizes, "max", "largest")
        finite = cmpi(largest, self.infinity, predicate="lt", name="finite")
        scale, factor = self._scale(maxsi(select(finite, largest, self.nothing), self.least))
        factor, all_or_none = self.for_each(factor), self.for_each(select(finite, self.all, self.nothing))
        integers = andi(self._integers(x, found, sizes, factor), all_or_none, name="integers")
        moved = self.moved(integers) if self.sums is not None or self.only_digits else [integers]
        totals = [self.reduce(m, "add", f"total.{n}") for n, m in enumerate(moved if self.sums is not None else moved[:1])]
        scale = select(finite, scale, self.nan)
        self.store_integers(moved, scale, row, block)
        if self.sums is not None:
            self._store_sums(self.sums, totals, row, block)
        self.store(scale, self.scales, row, block, 0)
        total = _stored(sitofp(totals[0], result_type=like(totals[0], f32)), "total")
        self.store(_stored(mulf(scale, total), "total"), self.scales, row, block, 1)

    def _store_sums(self, sums: Value, totals: Sequence[Value], row: Dim, block: Dim) -> None:
        for n, total in enumerate(totals):
            above = totals[n + 1 : n + 2]
            self.store(subi(total, shli(above[0], self.steps[1]), name=f"sum.{n}") if above else total, sums, row, block, n)

    def moved(self, integers: Value) -> list[Value]:
        """The n-th digit and 256 times the next one, for all digits; the first one is the integers themselves."""
        return [shrsi(addi(integers, self.halves[n]), self.steps[n]) if n else integers for n in range(self.count)]

    def _integers(self, x: Value, bits: Value, sizes: Value, factor: Value) -> Value:
        """What numbers times a factor are, rounded to even; ``sizes`` are the bits of their magnitudes.

        A number added to a float whose last bit counts one leaves its integer there; fptosi would be slow for what can't be here.  Of three
        digits only magnitudes, which are below 2**23, are small enough; less, below 2**22, are it with their signs.
        """
        if self.count < 3:
            scaled = _stored(mulf(x, factor), "scaled")
            return subi(bits_as(addf(scaled, self.shift), i32), self.shift_bits)  # type: ignore[no-any-return]
        scaled = _stored(mulf(bits_as(sizes, f32), factor), "scaled")
        size = subi(bits_as(addf(scaled, self.shift), i32), self.shift_bits)
        sign = shrsi(bits, self.sign)
        return subi(xori(size, sign), sign)  # type: ignore[no-any-return]

    def _scale(self, largest: Value) -> tuple[Value, Value]:
        """The scale for bits of the largest magnitude, and what numbers are multiplied with."""
        if self.count == 3:
            bits = subi(andi(addi(largest, self.up), self.infinity), self.down)
            return bits_as(bits, f32, "scale"), bits_as(subi(self.inverse, bits), f32, "factor")
        m = bits_as(largest, f32)
        return _stored(divf(m, self.limit), "scale"), _stored(divf(self.limit, m), "factor")


LANES = 16
"""Numbers of a register, where those are as large as they get."""
MOST_TOGETHER = 8
"""Blocks that are split together at most: they share shuffles for what is summed up, and their scales are a vector."""


class SplitTogether(Split):
    """Some blocks of a row as one vector ``[blocks, 2, 16]``."""

    def __init__(
        self, x: Value, digits: Value, scales: Value, sums: Value | None, forms: Sequence[Terms | Pairs], always: bool
    ) -> None:  # fmt: skip
        super().__init__(x, digits, scales, sums)
        self.group = next(n for n in range(MOST_TOGETHER, 0, -1) if self.blocks % n == 0)
        self.pieces = BLOCK // LANES, LANES
        self.x = reshaped(x, self.rows, self.blocks, *self.pieces)
        self.digits = reshaped(digits, self.rows, self.blocks, self.count, *self.pieces)
        self.forms, self.always, self.only_digits = forms, always, not forms

    def start(self) -> None:
        super().start()
        known = isinstance(self.rows, int)
        if self.forms and not known:
            rows, least = index_value("apply", self.rows, name="rows"), index_value("apply", self.forms[0].fewest, name="least")
            self.enough = cmpi(rows, least, predicate="ge", name="enough")
        self.terms = [(t, t.seen(i8, "bytes", *((2,) if t.wide else ()), *self.pieces)) for t in self.forms if isinstance(t, Terms)]
        self.pairs = [PairStores(p, self.group, LANES) for p in self.forms if isinstance(p, Pairs)]
        if any(t.wide for t, _ in self.terms):
            self.bits, self.half = number(TERM_BITS, i32, "bits"), number(1 << TERM_BITS - 1, i32, "half")
            self.four, self.low = number(4, i32, "four"), number(15, i32, "low")

    @property
    def together(self) -> int:
        return self.group

    def load(self, row: Dim, block: Dim) -> Value:
        return load(self.x, row, (block, self.group), (0, BLOCK // LANES), (0, LANES), name="x")

    def reduce(self, x: Value, kind: Literal["add", "max"], name: str) -> Value:
        return multi_reduction(x, kind=kind, axes=(1, 2), name=name)  # type: ignore[no-any-return]

    def for_each(self, value: Value) -> Value:
        assert isinstance(value.type, VectorType)
        return reshape(value, result_type=VectorType(value.type.dtype, (self.group, 1, 1)), name=value.name)  # type: ignore[no-any-return]

    def store_integers(self, moved: Sequence[Value], scale: Value, row: Dim, block: Dim) -> None:
        integers, *rest = moved

        def digits() -> None:
            super(SplitTogether, self).store_integers(moved if rest else self.moved(integers), scale, row, block)

        def forms() -> None:
            for some, seen in self.terms:
                found = integers if some.wide else moved if rest else self.moved(integers)
                self._store_terms(found, seen, (floordiv(row, MOST), (block, self.group)), mod(row, MOST))
            for pairs in self.pairs:
                pairs.store(moved if rest else self.moved(integers), scale, row, block)

        if self.always or not self.forms:
            digits()
        if isinstance(self.rows, int):
            forms()
        elif self.forms:
            choose(self.enough, forms, (lambda: None) if self.always else digits)

    def _store_terms(self, found: Value | Sequence[Value], into: Value, front: tuple[Place, ...], row: Dim) -> None:
        """Stores the integers of a block as terms: as two numbers, the rest below 2**11 and what is left over 2**12, or as digits."""
        runs = (0, BLOCK // LANES), (0, LANES)
        if not isinstance(found, Value):
            for n, m in enumerate(found):
                store(trunci(m, result_type=like(m, i8), name=f"digit.{n}"), into, *front, n, row, *runs)
            return
        high = shrsi(addi(found, self.half), self.bits, name="high")
        for term, some in enumerate((subi(found, shli(high, self.bits), name="rest"), high)):
            for part, value in enumerate((andi(some, self.low), shrsi(some, self.four))):
                store(trunci(value, result_type=like(value, i8)), into, *front, term, row, part, *runs)

    def store_digit(self, digit: Value, row: Dim, block: Dim, number: int) -> None:
        store(digit, self.digits, row, (block, self.group), number, (0, BLOCK // LANES), (0, LANES))

    def store(self, value: Value, buffer: Value, *places: Dim) -> None:
        row, block, number = places
        store(value, buffer, row, (block, self.group), number)
