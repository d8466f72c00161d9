"""Packed weights as loops read them: as they are, or a panel of them unpacked to memory first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dialects.arith.bits import andi, shli, shrui
from dialects.arith.cast import extf
from dialects.graph.digits import ROWS, WORDS, Format
from dialects.memref import view
from ir.core import Value
from ir.dims import Dim
from ir.types import DType, MemRefType, VectorType, f16, f32, i32
from passes.loops._blocks import alloc, buffer_type, load, loop, number, prefetch, store

_LOW = 0x0F0F0F0F


@dataclass(frozen=True)
class Weights:
    """Packed weights as words and as halves."""

    packed: Value
    words: Value
    halves: Value
    format: Format

    @property
    def panels(self) -> Dim:
        return buffer_type(self.packed).shape[0]

    @property
    def blocks(self) -> Dim:
        return buffer_type(self.packed).shape[1]


def typed(buffer: Value, dtype: DType, *shape: Dim, name: str) -> Value:
    """Bytes as elements of a type."""
    return view(buffer, offset=0, result_type=MemRefType(dtype, shape), name=name)  # type: ignore[no-any-return]


def weights_of(packed: Value, format_: Format) -> Weights:
    """Views of packed weights."""
    panels, blocks, _ = buffer_type(packed).shape
    words = typed(packed, i32, panels, blocks, format_.bytes // 4, name=f"{packed.name}.words")
    halves = typed(packed, f16, panels, blocks, format_.bytes // 2, name=f"{packed.name}.halves")
    return Weights(packed, words, halves, format_)


@dataclass(frozen=True)
class Area:
    """Some rows of activations and some columns of a panel."""

    row: Dim
    rows: int
    column: Dim
    columns: int

    @property
    def run(self) -> tuple[Dim, int]:
        """The rows."""
        return self.row, self.rows


class Source:
    """Where weights come from: some columns of a panel, block by block."""

    def words(self, block: Dim, column: Dim, count: int) -> Iterator[tuple[int, Value]]:
        """The words of a block with four unsigned bytes each, one after the other: their number, and a vector with one for each column."""
        raise NotImplementedError

    def factors(self, part: int, block: Dim, column: Dim, count: int) -> Value:
        """The scales (part 0) or minimums (part 1) of a block as f32."""
        raise NotImplementedError


class Packed(Source):
    """Weights of a panel as they are packed; halves of bytes are taken apart here."""

    def __init__(self, weights: Weights, panel: Dim) -> None:
        self.weights, self.panel = weights, panel
        if weights.format.bits == 4:
            self.low, self.four = number(_LOW, i32, "low"), number(4, i32, "four")

    def words(self, block: Dim, column: Dim, count: int) -> Iterator[tuple[int, Value]]:
        halves = self.weights.format.bits == 4
        for word in range(WORDS // 2 if halves else WORDS):
            found = load(self.weights.words, self.panel, block, (ROWS * word + column, count), name="stored")
            if not halves:
                yield word, found
                continue
            yield word, andi(found, self.low, name="lower")
            yield WORDS // 2 + word, andi(shrui(found, self.four), self.low, name="upper")

    def factors(self, part: int, block: Dim, column: Dim, count: int) -> Value:
        at, name = self.weights.format.numbers // 2 + ROWS * part, ("scale", "minimum")[part]
        found = load(self.weights.halves, self.panel, block, (at + column, count), name=f"{name}.half")
        return extf(found, result_type=VectorType(f32, (count,)), name=name)  # type: ignore[no-any-return]


class Unpacked(Source):
    """Memory for so many blocks of a panel, as bytes and f32; ``wide`` ones have 16 times the bytes as well, behind them."""

    def __init__(self, format_: Format, blocks: int, wide: bool = False) -> None:
        self.blocks, self.wide = blocks, wide
        self.numbers = alloc("numbers", i32, blocks, (1 + wide) * WORDS, ROWS)
        self.parts = alloc("factors", f32, blocks, 1 + format_.minimum, ROWS)

    def fill(self, source: Packed, start: Dim, count: Dim, columns: int, hints: bool) -> None:
        """Unpacks blocks from one on; with ``hints`` those of the next panel are asked for meanwhile, as they are far away."""
        weights = source.weights

        def block(b: Dim) -> None:
            if hints:
                prefetch(weights.packed, source.panel + 1, start + b, (0, weights.format.bytes), locality=2)
            for column in range(0, ROWS, columns):
                self.put(source, b, start + b, (column, columns))

        loop("block", 0, count, 1, block, tag="unpack")

    def put(self, source: Packed, b: Dim, block: Dim, place: tuple[int, int]) -> None:
        """Unpacks some columns of a block, as block ``b``."""
        for word, found in source.words(block, *place):
            store(found, self.numbers, b, word, place)
            if self.wide:
                store(shli(found, source.four), self.numbers, b, WORDS + word, place)
        for part in range(1 + source.weights.format.minimum):
            store(source.factors(part, block, *place), self.parts, b, part, place)

    def words(self, block: Dim, column: Dim, count: int) -> Iterator[tuple[int, Value]]:
        for word in range(WORDS):
            yield word, load(self.numbers, block, word, (column, count), name="bytes")

    def factors(self, part: int, block: Dim, column: Dim, count: int) -> Value:
        return load(self.parts, block, part, (column, count), name=("scale", "minimum")[part])
