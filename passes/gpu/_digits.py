"""The kernels of products with packed weights: a lane of a warp for each of the 32 rows of a panel.

Sums of integers are exact, and what is rounded is rounded as in :mod:`passes.loops._digits`, in the same order: so a row has the bits that
machine code of the CPU gives, alone and among others.  With i0, i1, i2 the exact sums of each digit over a block of 32 steps,

    f = fma(float((i2 << 8) + i1), 256, float(i0));    y = fma(d * s, f, y);    y = fma(m, s * sum X, y)

over ascending blocks.  A word of weights of a panel is 32 neighbours of 4 bytes, one for each lane.  Of few rows weights go through shared
memory, in asynchronous copies of 16 bytes that are all under way before the first one is needed; of many rows every load of a warp is 128
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from dialects.arith.bits import andi, ori, shli, shrui
from dialects.arith.cast import extf, extsi, index_cast
from dialects.arith.comparison import cmpi, select
from dialects.arith.dot import dot4
from dialects.arith.floats import mulf
from dialects.arith.integers import addi, muli
from dialects.graph.digits import BLOCK, ROWS, WORDS
from dialects.math.exact import fma
from dialects.vector import extract
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod, product
from ir.types import ScalarType, f16, f32, i32, index
from passes.gpu._async_copies import cp_async, cp_commit, cp_wait
from passes.gpu._kernels import (
    WARP,
    barrier,
    both,
    equal,
    launch,
    less,
    local,
    named,
    shared,
    shuffle,
    split_index,
    thread,
    value_of,
    warp_of,
    warp_reduce,
    when,
)
from passes.linalg._bodies import check, to_index
from passes.loops._blocks import buffer_type, filled, least, load, loop, number, reshaped, store
from passes.loops._digits import Activations, joined
from passes.loops._loops import value_symbol
from passes.loops._packed import Values
from passes.loops._split import Split
from passes.loops._weights import Weights

_LOW = 0x0F0F0F0F
_SHARED = 60 * 1024
"""Bytes of shared memory for the blocks of a panel: weights, and what waits to be added."""
_WARPS = 16
"""Warps that share the blocks of a panel, at most."""
_TOGETHER = 4
"""Warps of a block of threads that work on their own."""


def _warps(total: Dim, inside: Callable[[Dim, Dim], None], name: str, tag: str) -> None:
    """A launch with a warp for each number below ``total``: ``inside`` gets the number and the lane."""

    def kernel(x: Dim) -> None:
        warp, lane = warp_of(thread())
        at = named("at", _TOGETHER * x + warp)
        if isinstance(total, int) and total % _TOGETHER == 0:
            inside(at, lane)
        else:
            when(less(at, total), lambda: inside(at, lane))

    launch([("x", ceildiv(total, _TOGETHER))], _TOGETHER * WARP, kernel, name=name, tag=tag)


class WarpSplit(Split):
    """``split_digits``: a warp for each block of 32 numbers, a lane for each number."""

    def __init__(self, name: str, x: Value, digits: Value, scales: Value, sums: Value) -> None:
        super().__init__(x, digits, scales, sums)
        self.name = name

    def build(self) -> None:
        """The launch."""

        def one(at: Dim, lane: Dim) -> None:
            self.lane = lane
            self.first = equal(lane, 0, "first")
            self.start()
            row, block = (named(n, p) for n, p in zip(("row", "block"), split_index(at, (self.rows, self.blocks)), strict=True))
            self.block(row, block)

        _warps(self.rows * self.blocks, one, self.name, "digits.split")

    def load(self, row: Dim, block: Dim) -> Value:
        return load(self.x, row, BLOCK * block + self.lane, name="x")

    def reduce(self, x: Value, kind: Literal["add", "max"], name: str) -> Value:
        return warp_reduce(x, kind, name=name)

    def store_digit(self, digit: Value, row: Dim, block: Dim, number: int) -> None:
        store(digit, self.digits, row, block, number, self.lane)

    def store(self, value: Value, buffer: Value, *places: Dim) -> None:
        when(self.first, lambda: store(value, buffer, *places))


class LaneWeights:
    """Packed weights of a panel, for the row of a lane."""

    def __init__(self, weights: Weights, panel: Dim, lane: Dim) -> None:
        self.weights, self.panel, self.lane = weights, panel, lane
        self.low, self.four = number(_LOW, i32, "low"), number(4, i32, "four")

    def words(self, block: Dim) -> Iterator[tuple[int, Value]]:
        """The words of a block, each four unsigned bytes, and their numbers."""
        halves = self.weights.format.bits == 4
        for word in range(WORDS // 2 if halves else WORDS):
            found = self.word(block, word)
            if halves:
                yield word, andi(found, self.low, name="lower")
                yield WORDS // 2 + word, andi(shrui(found, self.four), self.low, name="upper")
            else:
                yield word, found

    def factor(self, part: int, block: Dim) -> Value:
        """The scale (part 0) or minimum (part 1) of a block as f32."""
        name = ("scale", "minimum")[part]
        return extf(self.half(block, part, f"{name}.half"), result_type=ScalarType(f32), name=name)  # type: ignore[no-any-return]

    def word(self, block: Dim, number: int) -> Value:
        """A word of the lane's row as it is stored."""
        return load(self.weights.words, self.panel, block, ROWS * number + self.lane, name="stored")

    def half(self, block: Dim, part: int, name: str) -> Value:
        """The scale or minimum of the lane's row as it is stored."""
        return load(self.weights.halves, self.panel, block, self.weights.format.numbers // 2 + ROWS * part + self.lane, name=name)


class StagedWeights(LaneWeights):
    """Weights of a panel that every warp copies to shared memory itself, for the blocks that it multiplies."""

    def __init__(self, weights: Weights, panel: Dim, lane: Dim, places: int) -> None:
        super().__init__(weights, panel, lane)
        format_ = weights.format
        self.place: Dim = 0
        self.near = shared("weights.near", i32, places, format_.numbers // 4)
        self.near_factors = shared("factors.near", f16, places, ROWS * (1 + format_.minimum))

    def fetch(self, block: Dim, place: Dim) -> None:
        """Begins to copy a block to a place, 16 bytes with each lane."""
        numbers, factors = self.weights.format.numbers, 2 * ROWS * (1 + self.weights.format.minimum)
        for first in range(0, numbers // 4, 4 * WARP):
            at = 4 * self.lane + first
            cp_async(self.weights.words, [self.panel, block, (at, 4)], self.near, [place, (at, 4)])

        def some() -> None:
            source = [self.panel, block, (numbers // 2 + 8 * self.lane, 8)]
            cp_async(self.weights.halves, source, self.near_factors, [place, (8 * self.lane, 8)])

        when(less(self.lane, factors // 16, "has_factors"), some)

    def word(self, block: Dim, number: int) -> Value:
        return load(self.near, self.place, ROWS * number + self.lane, name="stored")

    def half(self, block: Dim, part: int, name: str) -> Value:
        return load(self.near_factors, self.place, ROWS * part + self.lane, name=name)


class StoredDigits:
    """Activations as ``split_digits`` has stored them."""

    def __init__(self, x: Activations) -> None:
        self.rows, self.digits, self.stored = x.rows, x.digits, x

    def begin(self, lane: Dim, places: int) -> None:
        """In front of all blocks; ``places`` are where those of a panel may be kept at a time."""

    def prepare(self, row: Dim, block: Dim, place: Dim) -> None:
        """In front of a block; a barrier of the warp follows."""

    def words(self, row: Dim, block: Dim, digit: int, first: int) -> Value:
        """Four words of a digit, from one on."""
        return load(self.stored.words, row, ((block * self.digits + digit) * WORDS + first, 4), name="digits")

    def factors(self, row: Dim, block: Dim) -> tuple[Value, Value]:
        """The scale, and the scale times the sum of the integers."""
        found = load(self.stored.scales, row, (2 * block, 2), name="scales")
        return extract(found, position=(0,), name="s"), extract(found, position=(1,), name="total")

    def sum(self, row: Dim, block: Dim, digit: int) -> Value:
        """The sum of a digit."""
        assert self.stored.sums is not None
        return load(self.stored.sums, row, block * self.digits + digit, name="sum")


class OwnDigits(StoredDigits):
    """One row of floats: a warp splits the blocks that it multiplies, once for each panel, so nobody has to wait for another kernel."""

    def __init__(self, x: Value, digits: int) -> None:
        *front, size = buffer_type(x).shape
        self.rows, self.digits = product(front), digits
        self.x = reshaped(x, self.rows, size)

    def begin(self, lane: Dim, places: int) -> None:
        self.lane, self.near = lane, shared("digits.near", i32, places, self.digits, WORDS)

    def prepare(self, row: Dim, block: Dim, place: Dim) -> None:
        self.split, self.place = _SplitBlock(self.x, self.digits, self.lane), place
        self.split.block(row, block)
        for n, digit in enumerate(self.split.found):
            word = self._word(digit)
            when(equal(mod(self.lane, 4), 0, "first"), partial(store, word, self.near, place, n, floordiv(self.lane, 4)))

    def _word(self, digit: Value) -> Value:
        """The digits of a lane and the next three ones as one word."""
        word = byte = andi(extsi(digit, result_type=ScalarType(i32)), number(255, i32, "byte"))
        for n in (1, 2, 3):
            word = ori(word, shli(shuffle(byte, mode="down", by=n, name="next"), number(8 * n, i32, "move")), name="word")
        return word  # type: ignore[no-any-return]

    def words(self, row: Dim, block: Dim, digit: int, first: int) -> Value:
        return load(self.near, self.place, digit, (first, 4), name="digits")

    def factors(self, row: Dim, block: Dim) -> tuple[Value, Value]:
        return self.split.once[0], self.split.once[1]

    def sum(self, row: Dim, block: Dim, digit: int) -> Value:
        return self.split.sums_found[digit]


class _SplitBlock(Split):
    """A block in the lanes of a warp: nothing is stored."""

    def __init__(self, x: Value, digits: int, lane: Dim) -> None:
        self.x, self.count, self.lane = x, digits, lane
        self.scales: Any = "scales"
        self.sums: Any = "sums"
        self.found: list[Value] = []
        self.sums_found: list[Value] = []
        self.once: dict[int, Value] = {}
        self.start()

    def load(self, row: Dim, block: Dim) -> Value:
        return load(self.x, row, BLOCK * block + self.lane, name="x")

    def reduce(self, x: Value, kind: Literal["add", "max"], name: str) -> Value:
        return warp_reduce(x, kind, name=name)

    def store_digit(self, digit: Value, row: Dim, block: Dim, number: int) -> None:
        self.found.append(digit)

    def store(self, value: Value, buffer: Any, *places: Dim) -> None:
        if buffer == "sums":
            self.sums_found.append(value)
        else:
            assert isinstance(places[-1], int)
            self.once[places[-1]] = value


class LaneProduct:
    """``digit_linear``: ``rows`` rows of activations at a time.

    With ``shared_steps`` the warps of a block of threads have a panel in common: each computes some of the blocks of 32 steps, exactly, and
    then one warp for each row adds them in order.  Otherwise a warp goes through all blocks of its panel and rows.
    """

    def __init__(self, x: StoredDigits, weights: Weights, out: Value, rows: int, shared_steps: bool, name: str) -> None:
        blocks = weights.blocks
        assert isinstance(blocks, int)
        self.x, self.weights, self.rows, self.shared_steps, self.name = x, weights, rows, shared_steps, name
        self.blocks, self.columns = blocks, buffer_type(out).shape[-1]
        self.out = reshaped(out, x.rows, self.columns)

    def build(self) -> None:
        """The launch."""
        tiles, panels = ceildiv(self.x.rows, self.rows), self.weights.panels
        if self.shared_steps:
            format_ = self.weights.format  # bytes of a block: what waits to be added, weights, digits
            kept = (2 * self.rows + format_.minimum) * 4 * ROWS + 4 * self.rows + format_.bytes + BLOCK * self.x.digits
            piece = min(self.blocks, _SHARED // kept)
            self.pieces = -(-self.blocks // piece)
            piece = -(-self.blocks // self.pieces)
            self.rounds = -(-piece // max(self.rows, min(piece, _WARPS)))
            self.warps = max(-(-piece // self.rounds), min(self.rows, _WARPS))
            self.piece = self.warps * self.rounds
            launch([("panel", panels), ("tile", tiles)], WARP * self.warps, self._together, name=self.name, tag="digits", min_blocks=1)
        else:
            launch([("x", ceildiv(tiles, _TOGETHER)), ("panel", panels)], WARP * _TOGETHER, self._alone, name=self.name, tag="digits")

    # -- a warp for some rows and a panel --------------------------------------------------------------------------

    def _alone(self, x: Dim, panel: Dim) -> None:
        warp, lane = warp_of(thread())
        self._begin(LaneWeights(self.weights, panel, lane), _TOGETHER * x + warp)

        def rows() -> None:
            def block(b: Dim, sums: Value) -> Value:
                factor, exact, minimum = self._block(b, 0)
                sums = fma(factor, exact, sums, name="sums")
                return sums if minimum is None else fma(minimum, load(self.totals, (0, self.rows), 1, keep=True, name="total"), sums, name="sums")

            (sums,) = loop("block", 0, self.blocks, 1, block, [filled(self.zero, self.rows, 1)], tag="block", result="sums")
            for i in range(self.rows):
                self._store(extract(sums, position=(i, 0)), self.first + i, lane)

        when(less(self.first, self.x.rows, "busy"), rows)

    # -- warps that share the steps --------------------------------------------------------------------------------

    def _together(self, panel: Dim, tile: Dim) -> None:
        minimum, rows = self.weights.format.minimum, self.rows
        self.kept = shared("kept", f32, self.piece, 2 * rows + minimum, ROWS)
        if minimum:
            self.kept_totals = shared("totals.kept", f32, self.piece, rows)
        sum_ = local("sum", f32, 1)
        warp, lane = warp_of(thread())
        staged = StagedWeights(self.weights, panel, lane, self.piece)
        self._begin(staged, tile)
        self.x.begin(lane, self.piece)
        store(self.zero, sum_, 0)

        def piece(start: Dim) -> None:
            self._each(warp, start, lambda block, place: staged.fetch(block, place))
            cp_commit()
            self._each(warp, start, lambda block, place: self._keep(staged, block, place))
            barrier()
            when(less(warp, rows, "adds"), lambda: self._add(sum_, start, warp, lane))
            if self.pieces > 1:
                barrier()

        if self.pieces > 1:
            loop("piece", 0, self.pieces * self.piece, self.piece, piece)
        else:
            piece(0)
        when(less(warp, rows, "adds"), lambda: self._store(load(sum_, 0, name="sum"), self.first + warp, lane))

    def _each(self, warp: Dim, start: Dim, inside: Callable[[Dim, Dim], None]) -> None:
        """``inside(block, place)`` for the blocks of a warp in a piece."""

        def one(n: Dim) -> None:
            place = named("place", warp + self.warps * n)
            block = named("block", start + place)
            if self.pieces * self.piece == self.blocks:
                inside(block, place)
            else:
                when(less(block, self.blocks), lambda: inside(block, place))

        if self.rounds > 1:
            loop("round", 0, self.rounds, 1, one)
        else:
            one(0)

    def _keep(self, staged: StagedWeights, block: Dim, place: Dim) -> None:
        """Computes a block, exactly, for all rows, and leaves it and its factors at a place."""
        staged.place = place
        lane = staged.lane
        factor, exact, minimum = self._block(block, place)
        for i in range(self.rows):
            for n, value in enumerate((factor, exact)):
                store(extract(value, position=(i, 0)), self.kept, place, 2 * i + n, lane)
        if minimum is not None:
            store(minimum, self.kept, place, 2 * self.rows, lane)
            first = equal(lane, 0, "first")
            for i in range(self.rows):
                when(first, partial(store, load(self.totals, i, 1, name="total"), self.kept_totals, place, i))

    def _add(self, sum_: Value, start: Dim, row: Dim, lane: Dim) -> None:
        """Adds the blocks of a piece to the sum of a row, in ascending order."""

        def one(b: Dim, total: Value) -> Value:
            factor, exact = (load(self.kept, b, 2 * row + n, lane, name=name) for n, name in enumerate(("factor", "exact")))
            total = fma(factor, exact, total, name="sum")
            if not self.weights.format.minimum:
                return total
            minimum = load(self.kept, b, 2 * self.rows, lane, name="minimum")
            return fma(minimum, load(self.kept_totals, b, row, name="total"), total, name="sum")  # type: ignore[no-any-return]

        count = self.blocks if self.pieces == 1 else least("count", self.blocks - start, self.piece)
        (total,) = loop("b", 0, count, 1, one, [load(sum_, 0, name="before")], tag="block", result="sum")
        store(total, sum_, 0)

    # -- a block ---------------------------------------------------------------------------------------------------

    def _begin(self, source: LaneWeights, tile: Dim) -> None:
        self.zero, self.nothing = number(0.0, f32, "zero"), number(0, i32, "nothing")
        self.eight, self.base = number(8, i32, "eight"), number(256.0, f32, "base")
        self.offset = number(-self.weights.format.offset, i32, "offset")
        self.four_words, self.totals = local("four.words", i32, self.rows, 4), local("totals", f32, self.rows, 2)
        if self.weights.format.offset:
            self.starts = local("starts", i32, self.rows, self.x.digits)
        self.source, self.panel = source, source.panel
        self.first = named("first", self.rows * tile)

    def _rows(self) -> Iterator[tuple[int, Dim]]:
        """The rows of the tile; behind the last one it is the last one once more, whose sums nobody stores."""
        for i in range(self.rows):
            yield i, least("row", self.first + i, self.x.rows - 1) if self.rows > 1 else self.first

    def _block(self, block: Dim, place: Dim) -> tuple[Value, Value, Value | None]:
        """Of a block and all rows: the scale, the exact sum, and the minimum of the lane's weights."""
        digits, places = self.x.digits, list(self._rows())
        if self.shared_steps:
            for _, row in places:
                self.x.prepare(row, block, place)
            cp_wait(0)
            barrier("warp")
        words = dict(self.source.words(block))
        scale = self.source.factor(0, block)
        minimum = self.source.factor(1, block) if self.weights.format.minimum else None
        for i, row in places:
            for n, value in enumerate(self.x.factors(row, block)):
                store(value, self.totals, i, n)
            if self.weights.format.offset:
                for digit in range(digits):
                    store(self.x.sum(row, block, digit), self.starts, i, digit)
        exact = []
        for digit in range(digits):
            total = filled(self.nothing, self.rows, 1)
            if self.weights.format.offset:
                total = muli(load(self.starts, (0, self.rows), digit, keep=True, name="sum"), self.offset)
            for first in range(0, WORDS, 4):
                for i, row in places:
                    store(self.x.words(row, block, digit, first), self.four_words, i, (0, 4))
                for n in range(4):
                    four = load(self.four_words, (0, self.rows), n, keep=True, name="four")
                    total = dot4(words[first + n], four, total, small=self.weights.format.bits == 4, name=f"exact.{digit}")
            exact.append(total)
        s = load(self.totals, (0, self.rows), 0, keep=True, name="s")
        return mulf(scale, s, name="factor"), joined(exact, self.eight, self.base), minimum

    def _store(self, value: Value, row: Dim, lane: Dim) -> None:
        """Stores the result of a lane, if there is such a row and column."""
        column = ROWS * self.panel + lane
        inside = []
        if self.rows > 1:
            inside.append(less(row, self.x.rows))
        if not (isinstance(self.columns, int) and self.columns % ROWS == 0):
            inside.append(less(column, self.columns))
        if inside:
            when(both(*inside), lambda: store(value, self.out, row, column))
        else:
            store(value, self.out, row, column)


class LaneFloats:
    """``packed_linear``: a warp for ``rows`` rows and a panel; weights become floats in registers, sums are one chain over all steps."""

    def __init__(self, x: Value, weights: Weights, out: Value, rows: int, name: str) -> None:
        *front, size = buffer_type(x).shape
        blocks = weights.blocks
        assert isinstance(blocks, int)
        self.total, self.blocks, self.columns = product(front), blocks, buffer_type(out).shape[-1]
        self.x, self.out = reshaped(x, self.total, size), reshaped(out, self.total, self.columns)
        self.weights, self.rows, self.name = weights, rows, name

    def build(self) -> None:
        """The launch."""
        tiles = ceildiv(self.total, self.rows)
        _warps(tiles * self.weights.panels, self._warp, self.name, "digits.floats")

    def _warp(self, at: Dim, lane: Dim) -> None:
        tile, panel = (named(n, p) for n, p in zip(("tile", "panel"), split_index(at, (0, self.weights.panels)), strict=True))
        first = named("first", self.rows * tile)
        self.source, self.values = LaneWeights(self.weights, panel, lane), Values(self.weights)
        self.near = local("x.near", f32, self.rows, 4)
        zero = number(0.0, f32, "zero")
        nothing = filled(zero, self.rows, 1)
        (sums,) = loop("block", 0, self.blocks, 1, lambda b, sums: self._block(b, first, sums), [nothing], tag="block", result="sums")
        column = ROWS * panel + lane
        for i in range(self.rows):
            value = extract(sums, position=(i, 0))
            inside = both(less(first + i, self.total), less(column, self.columns))
            when(inside, partial(store, value, self.out, first + i, column))

    def _block(self, block: Dim, first: Dim, sums: Value) -> Value:
        scale = self.source.factor(0, block)
        minimum = self.source.factor(1, block) if self.weights.format.minimum else None
        for word, found in sorted(self.source.words(block), key=lambda pair: pair[0]):
            for i in range(self.rows):
                row = least("row", first + i, self.total - 1)
                store(load(self.x, row, (BLOCK * block + 4 * word, 4), name="x"), self.near, i, (0, 4))
            for n in range(4):
                moved = shrui(found, self.values.moves[n]) if n else found
                weight = self.values.value(andi(moved, self.values.byte) if n < 3 else moved, scale, minimum)
                sums = fma(load(self.near, (0, self.rows), n, keep=True, name="a"), weight, sums, name="sums")
        return sums


def gather_rows(weights: Weights, ids: Value, out: Value, rows: int, named_: str, name: str) -> None:
    """``packed_embedding``: a thread looks at each id first; then a warp takes each block of 32 numbers from its panel."""
    shape = buffer_type(ids).shape
    _check_ids(ids, rows, named_, name)
    total, blocks = product(shape), weights.blocks
    assert isinstance(blocks, int)
    flat, out = reshaped(ids, total), reshaped(out, total, blocks, BLOCK)

    def block(at: Dim, lane: Dim) -> None:
        i, b = (named(n, p) for n, p in zip(("i", "block"), split_index(at, (total, blocks)), strict=True))
        found = to_index(load(flat, i, name="id"))
        from_end = cmpi(found, number(0, index, "none"), predicate="lt", name="from.end")
        place = value_symbol(select(from_end, addi(found, number(rows, index, "count")), found, name="row"))
        store(_one_weight(weights, floordiv(place, ROWS), mod(place, ROWS), b, lane), out, i, b, lane)

    _warps(total * blocks, block, name, "digits.gather")


def _one_weight(weights: Weights, panel: Dim, row: Dim, block: Dim, step: Dim) -> Value:
    """The number of a row at a step of a block."""
    values, format_ = Values(weights), weights.format
    within = mod(step, BLOCK // 2) if format_.bits == 4 else step
    word = load(weights.words, panel, block, ROWS * floordiv(within, 4) + row, name="word")
    move = 8 * mod(within, 4) + (4 * floordiv(step, BLOCK // 2) if format_.bits == 4 else 0)
    moved = shrui(word, index_cast(value_of(move, "move"), result_type=ScalarType(i32)))
    stored = andi(moved, number(15, i32, "half") if format_.bits == 4 else values.byte, name="stored")

    def factor(part: int) -> Value:
        found = load(weights.halves, panel, block, format_.numbers // 2 + ROWS * part + row, name="half")
        return extf(found, result_type=ScalarType(f32))  # type: ignore[no-any-return]

    return values.value(stored, factor(0), factor(1) if format_.minimum else None)


def _check_ids(ids: Value, rows: int, named_: str, name: str) -> None:
    """Looks at all ids."""
    shape: Sequence[Dim] = buffer_type(ids).shape
    total, threads = product(shape), 128
    flat = reshaped(ids, total)
    where = " at position [{1}]" if len(shape) == 1 else ""  # there is no room for more
    message = f"{named_}: {named_} index {{0}}{where} is out of range for axis 0: expected -{rows} <= index < {rows}"

    def look(at: Dim) -> None:
        found = to_index(load(flat, at, name="id"))
        lowest, count = number(-rows, index, "lowest"), number(rows, index, "count")
        inside = andi(cmpi(found, lowest, predicate="ge"), cmpi(found, count, predicate="lt"))
        check(inside, message, [found, *([value_of(at)] if where else [])])

    def kernel(x: Dim) -> None:
        at = named("at", threads * x + thread())
        when(less(at, total), lambda: look(at))

    launch([("x", ceildiv(total, threads))], threads, kernel, name=f"{name}.check", tag="check")
