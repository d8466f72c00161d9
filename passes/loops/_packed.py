"""Packed weights as floats: ``packed_linear`` and ``packed_embedding``."""

from __future__ import annotations

from collections.abc import Callable

from dialects.arith.bits import andi, shrui
from dialects.arith.cast import extf, sitofp
from dialects.arith.comparison import cmpi, select
from dialects.arith.floats import mulf
from dialects.arith.integers import addi
from dialects.graph.digits import BLOCK, ROWS, WORDS
from dialects.math.exact import fma
from ir.core import Value
from ir.dims import Dim, floordiv, mod
from ir.types import ScalarType, VectorType, f32, i32, index
from passes.linalg._bodies import check, to_index
from passes.loops._blocks import alloc, buffer_type, filled, index_value, load, loop, number, parallel, reshaped, store
from passes.loops._digits import Shape
from passes.loops._loops import value_symbol
from passes.loops._weights import Packed, Weights


class FloatProduct:
    """``packed_linear``: a panel becomes floats in memory, a piece of the steps after the other, and all rows read it."""

    def __init__(self, x: Value, weights: Weights, out: Value, shape: Shape) -> None:
        *front, size = buffer_type(x).shape
        rows: Dim = 1
        for d in front:
            rows = rows * d
        self.rows, self.columns = rows, buffer_type(out).shape[-1]
        self.x, self.weights, self.shape = reshaped(x, rows, size), weights, shape
        self.out = reshaped(out, rows, self.columns)
        self.zero = number(0.0, f32, "zero")
        self.values = Values(weights)

    def build(self) -> None:
        """All loops."""
        total = self.weights.blocks
        assert isinstance(total, int)
        most = max(1, self.shape.blocks // 2)
        size = -(-total // -(-total // most))

        def panel(p: Dim) -> None:
            memory = alloc("floats", f32, size * BLOCK, ROWS)
            for start in range(0, total, size):
                count = min(size, total - start)
                loop("block", 0, count, 1, lambda b, s=start: self.values.unpack(p, s + b, memory, b, self.shape.columns), tag="unpack")
                self._steps(memory, p, start, count)

        parallel([("panel", 0, self.weights.panels)], panel, tag="panel")

    def _steps(self, memory: Value, panel: Dim, start: int, count: int) -> None:
        """Adds blocks from ``start`` on to all rows."""
        columns = self.shape.columns

        def tile(row: Dim, rows: int, column: Dim) -> None:
            def step(k: Dim, sums: Value) -> Value:
                a = load(self.x, (row, rows), BLOCK * start + k, keep=True, name="a")
                return fma(a, load(memory, k, (column, columns), name="w"), sums)  # type: ignore[no-any-return]

            place = (row, rows), (ROWS * panel + column, columns)
            left = None if self._is_whole else index_value("apply", self.columns - ROWS * panel - column, name="left")
            first = load(self.out, *place, valid=left, name="before") if start else filled(self.zero, rows, columns)
            (found,) = loop("k", 0, BLOCK * count, 1, step, [first], tag="step", result="sums")
            store(found, self.out, *place, valid=left)

        def across(row: Dim, rows: int) -> None:
            loop("column", 0, ROWS, columns, lambda c: tile(row, rows, c), tag="columns")

        whole = self.shape.rows * floordiv(self.rows, self.shape.rows)
        if whole != 0:
            loop("row", 0, whole, self.shape.rows, lambda r: across(r, self.shape.rows), tag="rows")
        if whole != self.rows:
            loop("row", whole, self.rows, 1, lambda r: across(r, 1), tag="rows")

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.columns, int) and self.columns % ROWS == 0


class Values:
    """Weights of a panel as floats."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.byte = number(255, i32, "byte")
        self.offset = number(-weights.format.offset, i32, "offset")
        self.moves = [number(8 * n, i32, "move") for n in range(4)]

    def unpack(self, panel: Dim, block: Dim, memory: Value, into: Dim, columns: int) -> None:
        """Stores the values of a block to block ``into`` of ``memory[steps, 32]``."""
        source = Packed(self.weights, panel)
        for column in range(0, ROWS, columns):
            scale = source.factors(0, block, column, columns)
            minimum = source.factors(1, block, column, columns) if self.weights.format.minimum else None
            for word, found in source.words(block, column, columns):
                for n in range(4):
                    moved = shrui(found, self.moves[n]) if n else found
                    value = self.value(andi(moved, self.byte) if n < 3 else moved, scale, minimum)
                    store(value, memory, BLOCK * into + 4 * word + n, (column, columns))

    def value(self, stored: Value, scale: Value, minimum: Value | None) -> Value:
        """What a stored number is worth."""
        if self.weights.format.offset:
            stored = addi(stored, self.offset)
        type_ = VectorType(f32, stored.type.shape) if isinstance(stored.type, VectorType) else ScalarType(f32)
        q = sitofp(stored, result_type=type_)
        return mulf(scale, q) if minimum is None else fma(scale, q, minimum)  # type: ignore[no-any-return]


def gather_rows(weights: Weights, ids: Value, out: Value, rows: int, named: str) -> None:
    """``packed_embedding``: all ids are looked at first, then every row is taken from its panel, word by word."""
    shape = buffer_type(ids).shape
    places: list[tuple[str, Dim, Dim]] = [(f"i{n}" if len(shape) > 1 else "i", 0, size) for n, size in enumerate(shape)]
    _check_ids(ids, rows, named, places)
    total: Dim = 1
    for size in shape:
        total = total * size
    blocks = weights.blocks
    ids, out = reshaped(ids, total), reshaped(out, total, blocks, BLOCK)
    values, count, zero = Values(weights), number(rows, index, "count"), number(0, index, "none")

    def row(i: Dim) -> None:
        found = to_index(load(ids, i, name="id"))
        at = value_symbol(select(cmpi(found, zero, predicate="lt"), addi(found, count), found))
        panel, lane = floordiv(at, ROWS), mod(at, ROWS)

        def block(b: Dim) -> None:
            _gather(weights, values, panel, lane, b, lambda k, value: store(value, out, i, b, k))

        loop("block", 0, blocks, 1, block, tag="gather")

    parallel([("row", 0, total)], row, tag="rows")


def _check_ids(ids: Value, rows: int, named: str, places: list[tuple[str, Dim, Dim]]) -> None:
    lowest, count = number(-rows, index, "lowest"), number(rows, index, "count")
    where = " at position [{1}]" if len(places) == 1 else ""  # there is no room for more
    message = f"{named}: {named} index {{0}}{where} is out of range for axis 0: expected -{rows} <= index < {rows}"

    def look(*at: Dim) -> None:
        found = to_index(load(ids, *at, name="id"))
        inside = andi(cmpi(found, lowest, predicate="ge"), cmpi(found, count, predicate="lt"))
        check(inside, message, [found, *([index_value("apply", at[0], name="at")] if where else [])])

    def nest(left: list[tuple[str, Dim, Dim]], at: list[Dim]) -> None:
        if not left:
            look(*at)
            return
        (name, start, stop), *rest = left
        loop(name, start, stop, 1, lambda i: nest(rest, [*at, i]), tag="check")

    nest(places, [])


def _gather(weights: Weights, values: Values, panel: Dim, lane: Dim, block: Dim, put: Callable[[Dim, Value], None]) -> None:
    """The 32 values of a block of a row."""
    source = Packed(weights, panel)
    half = weights.format.numbers // 2

    def factor(part: int) -> Value:
        found = load(weights.halves, panel, block, half + ROWS * part + lane, name="half")
        return extf(found, result_type=ScalarType(f32))  # type: ignore[no-any-return]

    scale = factor(0)
    minimum = factor(1) if weights.format.minimum else None
    for word in range(WORDS // 2 if weights.format.bits == 4 else WORDS):
        found = load(weights.words, panel, block, ROWS * word + lane, name="word")
        if weights.format.bits == 4:
            parts = ((word, andi(found, source.low)), (WORDS // 2 + word, andi(shrui(found, source.four), source.low)))
        else:
            parts = ((word, found),)  # type: ignore[assignment]
        for number_, four in parts:
            for n in range(4):
                moved = shrui(four, values.moves[n]) if n else four
                put(4 * number_ + n, values.value(andi(moved, values.byte) if n < 3 else moved, scale, minimum))
