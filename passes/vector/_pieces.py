"""Pieces of vectors: what one machine vector or scalar holds of an n-d vector.

A vector is cut row by row along its last axis into pieces of at most ``lanes`` elements; a piece of one element is a
scalar.  :class:`Pieces` knows the pieces of every value and builds operations on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dialects.arith.constant import constant
from dialects.vector import broadcast_, extract, insert, shuffle
from ir.attributes import Dense
from ir.core import Block, Operation, Region, Value
from ir.opdef import OpDef
from ir.types import DType, ScalarType, Type, VectorType

Element = tuple[Value, int]
"""A lane of a piece; lane 0 of a scalar is the scalar."""


@lru_cache(maxsize=1024)
def piece_type(dtype: DType, width: int) -> Type:
    """The type of a piece."""
    return ScalarType(dtype) if width == 1 else VectorType(dtype, (width,))


@lru_cache(maxsize=1024)
def row_map(source: tuple[int, ...], target: tuple[int, ...]) -> list[int]:
    """For each row of a shape the row of an operand that is broadcast to it (both without their last axis)."""
    rows = np.arange(math.prod(source)).reshape((1,) * (len(target) - len(source)) + source)
    return np.broadcast_to(rows, target).reshape(-1).tolist()  # type: ignore[no-any-return]


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of a vector; a vector without dimensions has one row of one element."""
    assert isinstance(value.type, VectorType)
    return value.type.shape or (1,)


def is_of_squares(shape: tuple[int, ...], lanes: int) -> bool:
    """Whether a matrix is made of squares of ``lanes`` rows and columns (a power of two, 4 or more)."""
    return lanes >= 4 and lanes & (lanes - 1) == 0 and all(size % lanes == 0 for size in shape)


@lru_cache(maxsize=16)
def exchanges(lanes: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shuffles that transpose a square: step k puts two new rows in the place of every two that are 2**k apart.

    Each step moves one bit of the row's number into the lane's number.  The first two stay in groups of 4 lanes, the others move
    whole groups: machines have instructions for these.  At the end the two lowest bits of the row's number have changed places.
    """
    group = [(lane // 4 * 4, lane % 4) for lane in range(lanes)]
    found = [tuple(base + w // 2 + (lanes if w % 2 else 0) for base, w in group), tuple(base + w % 2 + (lanes if w > 1 else 0) for base, w in group)]
    pairs = [(low, tuple(n + 2 for n in low)) for low in found]
    groups = np.arange(2 * lanes).reshape(-1, 4)
    apart = (tuple(groups[0::2].reshape(-1).tolist()), tuple(groups[1::2].reshape(-1).tolist()))
    return pairs + [apart] * (lanes.bit_length() - 3)


class Pieces:
    """The pieces of all values, and the place where new operations go: in front of ``anchor`` in ``block``."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.block: Block
        self.anchor: Operation | None = None
        self.loc: Any = None
        self.found: dict[Value, list[Value]] = {}
        self._widths: dict[int, tuple[int, ...]] = {}
        self._spread: dict[tuple[Value, int], Value] = {}
        self.spread_constants: dict[Operation, None] = {}

    # -- what there is ---------------------------------------------------------------------------------------------

    def is_settled(self, type_: Type) -> bool:
        """Whether values of this type are one piece, as they are."""
        return type(type_) is not VectorType or (len(type_.shape) == 1 and 2 <= type_.shape[0] <= self.lanes)

    def widths(self, size: int) -> tuple[int, ...]:
        """The widths of the pieces of one row."""
        found = self._widths.get(size)
        if found is None:
            full, rest = divmod(size, self.lanes)
            found = self._widths[size] = (self.lanes,) * full + ((rest,) if rest else ())
        return found

    def of(self, value: Value) -> list[Value]:
        """The pieces of a value, row by row."""
        return [value] if self.is_settled(value.type) else self.found[value]

    def types(self, type_: Type) -> list[Type]:
        """The types of the pieces of a value."""
        if self.is_settled(type_):
            return [type_]
        assert isinstance(type_, VectorType)
        shape = type_.shape or (1,)
        return [piece_type(type_.dtype, w) for w in self.widths(shape[-1])] * math.prod(shape[:-1])

    def define(self, old: Value, pieces: list[Value]) -> None:
        """Says what stands for the result of an operation that goes away."""
        if self.is_settled(old.type):
            (new,) = pieces
            if new is not old:
                old.replace_all_uses_with(new)
        else:
            self.found[old] = pieces

    # -- building --------------------------------------------------------------------------------------------------

    def make(
        self,
        definition: OpDef,
        operands: Sequence[Value],
        attributes: Any,
        type_: Type,
        name: str,
        regions: Sequence[Region] = (),
    ) -> Value:
        """Builds an operation with one result."""
        op = Operation(definition, operands, attributes, regions, (type_,), (name,), self.loc)
        self.block.insert_before(self.anchor, op)
        return op.results[0]

    def constant(self, array: Any, dtype: DType, name: str) -> Value:
        """A constant scalar or vector."""
        type_ = VectorType(dtype, array.shape) if array.shape else ScalarType(dtype)
        return self.make(constant, (), {"value": Dense(array, dtype)}, type_, name)

    def spread(self, value: Value, width: int) -> Value:
        """A scalar in all lanes of a piece; built once, behind the definition of the scalar."""
        if width == 1:
            return value
        key = (value, width)
        found = self._spread.get(key)
        if found is None:
            found = self._spread[key] = self._build_spread(value, width)
        return found

    def _build_spread(self, value: Value, width: int) -> Value:
        assert isinstance(value.type, ScalarType)
        dtype, place = value.type.dtype, (self.block, self.anchor, self.loc)
        self.behind(value)
        source = value.defining_op
        name = f"{value.name}.x{width}"
        if source is not None and source.definition is constant:
            dense = source.attributes["value"]
            assert isinstance(dense, Dense)
            self.spread_constants[source] = None
            result = self.constant(np.full(width, dense.array), dtype, name)
        else:
            result = self.make(broadcast_, (value,), None, piece_type(dtype, width), name)
        result.auto_named = True
        self.block, self.anchor, self.loc = place
        return result

    def behind(self, value: Value) -> None:
        """Moves the place to where a value has just been defined."""
        source = value.defining_op
        if source is None:
            assert isinstance(value.owner, Block)
            self.block, self.anchor = value.owner, value.owner.first
        else:
            assert source.block is not None
            self.block, self.anchor, self.loc = source.block, source.next, source.loc

    # -- rearranging -----------------------------------------------------------------------------------------------

    def aligned(self, value: Value, shape: tuple[int, ...]) -> list[Value]:
        """The pieces of a value broadcast to a shape."""
        widths, rows = self.widths(shape[-1]), math.prod(shape[:-1])
        if not isinstance(value.type, VectorType):
            return [self.spread(value, w) for w in widths] * rows
        source, pieces = shape_of(value), self.of(value)
        if source == shape:
            return pieces
        mapped = row_map(source[:-1], shape[:-1])
        if source[-1] == shape[-1]:
            count = len(widths)
            return [p for r in mapped for p in pieces[r * count : r * count + count]]
        return [self.spread(pieces[r], w) for r in mapped for w in widths]

    def elements(self, value: Value) -> list[Element]:
        """All elements in row-major order."""
        shape = shape_of(value)
        widths = self.widths(shape[-1]) * math.prod(shape[:-1])
        return [(piece, lane) for piece, width in zip(self.of(value), widths, strict=True) for lane in range(width)]

    def regroup(self, elements: Sequence[Element], shape: tuple[int, ...], name: str) -> list[Value]:
        """The pieces of a vector that has these elements in row-major order."""
        pieces, at = [], 0
        for _ in range(math.prod(shape[:-1])):
            for width in self.widths(shape[-1]):
                pieces.append(self.assemble(elements[at : at + width], name))
                at += width
        return pieces

    def element(self, element: Element, name: str) -> Value:
        """One element as a scalar."""
        piece, lane = element
        if isinstance(piece.type, ScalarType):
            return piece
        assert isinstance(piece.type, VectorType)
        return self.make(extract, (piece,), {"position": (lane,)}, ScalarType(piece.type.dtype), name)

    def assemble(self, elements: Sequence[Element], name: str) -> Value:
        """One piece that has these elements."""
        first = elements[0][0]
        if len(elements) == 1:
            return self.element(elements[0], name)
        sources = list(dict.fromkeys(piece for piece, _ in elements))
        if len(sources) == 1:
            if isinstance(first.type, ScalarType):
                return self.spread(first, len(elements))
            assert isinstance(first.type, VectorType)
            if first.type.shape == (len(elements),) and all(lane == n for n, (_, lane) in enumerate(elements)):
                return first
        if all(s.type == first.type for s in sources) and isinstance(first.type, VectorType):
            return self._shuffled(elements, sources, name)
        dtype = first.type.dtype  # type: ignore[union-attr]
        result = self.spread(self.element(elements[0], name), len(elements))
        for lane, element in enumerate(elements):
            if element != elements[0]:
                result = self.make(insert, (self.element(element, name), result), {"position": (lane,)}, piece_type(dtype, len(elements)), name)
        return result

    def transposed(self, pieces: Sequence[Value], shape: tuple[int, ...], name: str) -> list[Value]:
        """The pieces of the transposed matrix, for one that is made of squares."""
        lanes = self.lanes
        down, across = shape[0] // lanes, shape[1] // lanes
        turned: list[Value] = []
        for c in range(across):
            squares = [self._turned([pieces[(r * lanes + n) * across + c] for n in range(lanes)], name) for r in range(down)]
            turned += [square[n] for n in range(lanes) for square in squares]
        return turned

    def _turned(self, rows: Sequence[Value], name: str) -> list[Value]:
        """The columns of a square: log2(lanes) steps of as many shuffles as there are rows."""
        found = list(rows)
        for step, masks in enumerate(exchanges(self.lanes)):
            for at in range(self.lanes):
                if not at & 1 << step:
                    other = at | 1 << step
                    both = found[at], found[other]
                    found[at], found[other] = (self.make(shuffle, both, {"mask": m}, both[0].type, name) for m in masks)
        return [found[n & ~3 | (n & 1) << 1 | (n & 2) >> 1] for n in range(self.lanes)]

    def _shuffled(self, elements: Sequence[Element], sources: list[Value], name: str) -> Value:
        """Elements of vectors of one type: two at a time."""
        type_ = sources[0].type
        assert isinstance(type_, VectorType)
        width = len(elements)
        if len(sources) > 2:
            half = len(sources) // 2
            parts: list[Value] = []
            for chosen in (sources[:half], sources[half:]):
                filler = (chosen[0], 0)
                parts.append(self.assemble([e if e[0] in chosen else _anywhere(n, filler, type_) for n, e in enumerate(elements)], name))
            low = set(sources[:half])
            mask = tuple(n if e[0] in low else width + n for n, e in enumerate(elements))
        else:
            parts = [sources[0], sources[-1]]
            size = type_.shape[0]
            mask = tuple(lane if piece is sources[0] else size + lane for piece, lane in elements)
        return self.make(shuffle, (parts[0], parts[-1]), {"mask": mask}, VectorType(type_.dtype, (width,)), name)


def _anywhere(lane: int, filler: Element, type_: VectorType) -> Element:
    """An element for a lane that is not used: the one that is there already, so that nothing needs to move."""
    return (filler[0], lane if lane < type_.shape[0] else 0)
