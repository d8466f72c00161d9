"""Powers."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.arith.bits import andi, shrui
from dialects.arith.comparison import cmpi, select
from dialects.arith.integers import muli
from ir.core import Operation, Value
from passes.linalg._bodies import check, serial, to_i64
from passes.linalg._elementwise import compare, elementwise, nest
from passes.linalg._nests import Lowering, number, scalar_dtype, tensor_type


def power(low: Lowering) -> list[Value]:
    """``pow``; of integers a product of squares, over the bits of the exponent."""
    if tensor_type(low.op.result).dtype.is_float:
        return elementwise(low)
    return nest(low, _integer_power, computed=True)


def _integer_power(op: Operation, x: Value, y: Value) -> Value:
    dtype = scalar_dtype(x)
    zero, one = number(0, dtype), number(1, dtype)
    if dtype.kind != "uint":
        message = "pow: negative exponent of an integer: x is {0}, y is {1}"
        check(compare(y, zero, "ge"), message, [to_i64(x), to_i64(y)])

    def step(_: Value, product: Value, square: Value, rest: Value) -> Sequence[Value]:
        odd = cmpi(andi(rest, one), zero, predicate="ne")
        return select(odd, muli(product, square), product), muli(square, square), shrui(rest, one)

    bits = dtype.bits if dtype.kind == "uint" else dtype.bits - 1
    return serial(0, bits, [one, x, y], step)[0]
