"""Nests of softmax and log_softmax: the largest element of a row, the exponentials, their sum, and what it divides.

``decompose`` has left them, for three things can be said here that tensor operations can't say: the largest element may ignore
NaN, as the row is NaN through the sum; no argument of the exponential is positive; and a row is multiplied by the reciprocal of
its sum, which is 1 or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, subf
from dialects.graph._shapes import normalize_axis
from dialects.math import functions
from ir.core import Value
from ir.dims import DimExpr
from ir.types import DType
from passes.linalg._nests import Access, Loop, Lowering, narrow, number, tensor_type, wide_dtype, widen


@dataclass(frozen=True)
class _Rows:
    """The loops of one operation, and the buffers that it starts from."""

    low: Lowering
    names: list[DimExpr]
    loops: list[Loop]
    axis: int
    dtype: DType

    @classmethod
    def of(cls, low: Lowering) -> _Rows:
        x = tensor_type(low.op.operands[0])
        axis = low.op.attribute("axis")
        assert isinstance(axis, int)
        names = low.names(x.rank)
        return cls(low, names, [Loop(n, d) for n, d in zip(names, x.shape, strict=True)], normalize_axis(axis, x.rank), wide_dtype(x.dtype))

    @property
    def kept(self) -> list[Loop]:
        return [loop for i, loop in enumerate(self.loops) if i != self.axis]

    def element(self, buffer: Value) -> Access:
        """Of a buffer of the operand's shape."""
        return Access(buffer, tuple(self.names))

    def row(self, buffer: Value) -> Access:
        """Of a buffer with one element for each row."""
        return Access(buffer, tuple(loop.name for loop in self.kept))

    def alloc(self, name: str, *, rows: bool = False) -> Value:
        """Memory for what is computed on the way."""
        loops = self.kept if rows else self.loops
        return self.low.alloc(self.dtype, [loop.bound for loop in loops], f"{self.low.origin}.{name}.buffer")

    def largest(self, source: Value) -> Value:
        """The largest element of every row that is a number."""
        buffer = self.alloc("max", rows=True)

        def step(a: Value, largest: Value) -> Value:
            a = widen(a)
            return select(cmpf(a, largest, predicate="gt"), a, largest)  # type: ignore[no-any-return]

        def body(_: Value) -> Value:
            return self.low.reduce([self.loops[self.axis]], [self.element(source)], number(-math.inf, self.dtype), step)

        self.low.generic(self.kept, [], self.row(buffer), body)
        return buffer

    def each(self, reads: list[Access], write: Access, body: Callable[..., Value]) -> None:
        """A nest over all elements; ``body`` gets those that are read."""
        self.low.generic(self.loops, reads, write, lambda *scalars: body(*scalars[:-1]))

    def exponentials(self, source: Value, largest: Value) -> Value:
        """exp(x - the largest one), at most 1."""
        buffer = self.alloc("exp")
        reads = [self.element(source), self.row(largest)]
        self.each(reads, self.element(buffer), lambda x, most: functions.exp(subf(widen(x), most), decaying=True))
        return buffer

    def total(self, exponentials: Value, name: str, finish: Callable[[Value], Value]) -> Value:
        """Something of the sum of every row."""
        buffer = self.alloc(name, rows=True)

        def body(_: Value) -> Value:
            read, zero = self.element(exponentials), number(0, self.dtype)
            return finish(self.low.reduce([self.loops[self.axis]], [read], zero, lambda a, total: addf(total, a)))

        self.low.generic(self.kept, [], self.row(buffer), body)
        return buffer


def softmax(low: Lowering) -> list[Value]:
    """``softmax``."""
    rows, source, result = _Rows.of(low), low.operand("x"), low.result_buffer()
    dtype = tensor_type(low.op.result).dtype
    exponentials = rows.exponentials(source, rows.largest(source))
    inverse = rows.total(exponentials, "inverse", lambda total: divf(number(1, rows.dtype), total))
    reads = [rows.element(exponentials), rows.row(inverse)]
    rows.each(reads, rows.element(result), lambda e, factor: narrow(mulf(e, factor), dtype))
    return [result]


def log_softmax(low: Lowering) -> list[Value]:
    """``log_softmax``."""
    rows, source, result = _Rows.of(low), low.operand("x"), low.result_buffer()
    dtype = tensor_type(low.op.result).dtype
    largest = rows.largest(source)
    logs = rows.total(rows.exponentials(source, largest), "log", functions.log)
    reads = [rows.element(source), rows.row(largest), rows.row(logs)]
    rows.each(reads, rows.element(result), lambda x, most, log: narrow(subf(subf(widen(x), most), log), dtype))
    return [result]
