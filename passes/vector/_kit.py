"""What the expansions of ``expand-math`` share: constants in one place, polynomials, and powers of two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dialects.arith.bits import shli, shrui
from dialects.arith.cast import bitcast
from dialects.arith.comparison import cmpf, select
from dialects.arith.constant import constant
from dialects.arith.floats import mulf, subf
from dialects.arith.integers import subi
from dialects.math.exact import fma
from ir.attributes import Dense
from ir.builder import Builder
from ir.core import Graph, Operation, Value
from ir.types import DType, ScalarType, VectorType, f32, f64, i32, i64

ROUNDER = 1.5 * 2.0**23
"""A sum with it is rounded to a whole number, which its low bits hold (for numbers below 2**22)."""


def with_dtype(x: Value, dtype: DType) -> ScalarType | VectorType:
    """The type of ``x`` with another element type."""
    assert isinstance(x.type, (ScalarType, VectorType))
    return VectorType(dtype, x.type.shape) if isinstance(x.type, VectorType) else ScalarType(dtype)


def to_bits(x: Value) -> Value:
    """f32 as i32."""
    return bitcast(x, result_type=with_dtype(x, i32))  # type: ignore[no-any-return]


def from_bits(x: Value) -> Value:
    """i32 as f32."""
    return bitcast(x, result_type=with_dtype(x, f32))  # type: ignore[no-any-return]


class Kit:
    """Builds in the active builder; constants go to the top of the graph, each once."""

    def __init__(self, graph: Graph) -> None:
        self._block = graph.block
        self._last: Operation | None = None
        self._known: dict[tuple[DType, bytes], Value] = {}
        for op in graph.block:
            if op.definition is not constant:
                break
            self._last = op
            if isinstance(op.result.type, ScalarType):
                value = op.attribute("value")
                assert isinstance(value, Dense)
                self._known.setdefault((value.dtype, value.array.tobytes()), op.result)

    # -- constants -------------------------------------------------------------------------------------------------

    def f(self, value: float, name: str) -> Value:
        """A constant of f32; ``name`` is for readers, the first one stays."""
        return self._constant(np.array(value, np.float32), f32, name)

    def i(self, value: int, name: str) -> Value:
        """A constant of i32."""
        return self._constant(np.array(value, np.int64).astype(np.int32), i32, name)

    def long(self, value: int, name: str) -> Value:
        """A constant of i64."""
        return self._constant(np.array(value, np.int64), i64, name)

    def double(self, value: float, name: str) -> Value:
        """A constant of f64."""
        return self._constant(np.array(value, np.float64), f64, name)

    def _constant(self, array: np.ndarray[tuple[()], np.dtype[np.generic]], dtype: DType, name: str) -> Value:
        key = (dtype, array.tobytes())
        if key not in self._known:
            before = self._block.first if self._last is None else self._last.next
            with Builder(self._block, before):
                self._known[key] = constant(Dense(array, dtype), name=name)
            self._last = self._known[key].defining_op
        return self._known[key]

    # -- pieces of expansions --------------------------------------------------------------------------------------

    def polynomial(self, x: Value, coefficients: Sequence[float], name: str, first: int = 0) -> Value:
        """By Horner's rule in fused multiply-adds; the coefficients are written lowest power first.

        They are called ``name`` with numbers from ``first`` on.
        """
        numbers = [self.f(c, f"{name}{power}") for power, c in enumerate(coefficients, first)]
        result = numbers[-1]
        for number in reversed(numbers[:-1]):
            result = fma(result, x, number)
        return result

    def at_most(self, x: Value, limit: float, name: str) -> Value:
        """The smaller of x and a number that is not 0; NaN stays (one instruction)."""
        bound = self.f(limit, name)
        return select(cmpf(x, bound, predicate="gt"), bound, x)  # type: ignore[no-any-return]

    def at_least(self, x: Value, limit: float, name: str) -> Value:
        """The larger of x and a number that is not 0; NaN stays (one instruction)."""
        bound = self.f(limit, name)
        return select(cmpf(x, bound, predicate="lt"), bound, x)  # type: ignore[no-any-return]

    def rounded_multiple(self, x: Value, factor: Value, bias: int) -> tuple[Value, Value]:
        """The whole number n next to ``x * factor``, and an integer whose low 9 bits are those of n + bias.

        The way over the bits rounds where a run keeps floats wider.
        """
        rounder = self.f(ROUNDER + bias, "rounder")
        bits = to_bits(fma(x, factor, rounder))
        return subf(from_bits(bits), rounder), bits

    def power_of_two(self, bits: Value) -> Value:
        """The float with these low bits as its exponent: 2**n for the bias 127."""
        return from_bits(shli(bits, self.i(23, "mantissa_bits")))

    def scaled(self, x: Value, bits: Value) -> Value:
        """``x * 2**n`` rounded once, for x near 1, -300 < n < 257 and the bits of n with the bias 254.

        Only the second product is rounded: the first one is far from the ends of the range.
        """
        half = shrui(bits, self.i(1, "one_bit"))
        first, second = self.power_of_two(half), self.power_of_two(subi(bits, half))
        return mulf(mulf(x, first), second)  # type: ignore[no-any-return]

    def above_zero_less(self, x: Value, size: Value, shift: int) -> Value:
        """maximum(x, 0) - 2**-shift * size for size >= 0, rounded once; -0 - 0 is -0 and NaN stays."""
        zero = self.f(0.0, "zero")
        above = select(cmpf(zero, x, predicate="gt"), zero, x)  # in this order one instruction, which gives x when both are zeros
        return fma(size, self.f(-(2.0**-shift), f"shift_{abs(shift)}"), above)  # type: ignore[no-any-return]
