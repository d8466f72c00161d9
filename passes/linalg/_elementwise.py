"""Scalar bodies of the elementwise operations.

``COMPUTED`` get their operands in the type that is computed in, and their result is rounded once; ``MOVED`` get the
stored elements and keep their bits.  A body that raises NotImplementedError leaves the operation as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dialects.arith.bits import andi, ori, shli, shrsi, shrui, xori
from dialects.arith.cast import bitcast, extf, extsi, extui, fptosi, fptoui, sitofp, trunci, uitofp
from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.constant import constant
from dialects.arith.floats import addf, divf, maximumf, minimumf, mulf, negf, remf, subf
from dialects.arith.integers import (
    addi,
    divsi,
    divui,
    floordivsi,
    maxsi,
    maxui,
    minsi,
    minui,
    modsi,
    muli,
    remsi,
    remui,
    subi,
)
from dialects.math import exact, functions
from ir.core import Operation, Value
from ir.dims import Dim
from ir.evaluate import round_to
from ir.types import DType, ScalarType, f64, index
from passes.linalg._activations import ACTIVATIONS
from passes.linalg._nests import Access, Lowering, narrow, number, scalar_dtype, tensor_type, widen

Body = Callable[..., Value]


def _by_kind(floats: Any, signed: Any, unsigned: Any = None) -> Body:
    """The operation for the element type of the first operand."""

    def body(op: Operation, x: Value, *rest: Value) -> Value:
        kind = scalar_dtype(x).kind
        chosen = floats if kind == "float" else (unsigned or signed) if kind == "uint" else signed
        return chosen(x, *rest)  # type: ignore[no-any-return]

    return body


def _plain(definition: Any) -> Body:
    return lambda op, *operands: definition(*operands)


def compare(x: Value, y: Value, predicate: str) -> Value:
    """Whether scalars of one type compare as ``predicate`` says."""
    definition = cmpf if scalar_dtype(x).is_float else cmpi
    return definition(x, y, predicate=predicate)  # type: ignore[no-any-return]


def _compared(predicate: str) -> Body:
    return lambda op, x, y: compare(x, y, predicate)


def _like(x: Value, value: float | int) -> Value:
    return number(value, scalar_dtype(x))


# -- functions of one operand ------------------------------------------------------------------------------------------


def _neg(op: Operation, x: Value) -> Value:
    return negf(x) if scalar_dtype(x).is_float else subi(_like(x, 0), x)  # type: ignore[no-any-return]


def _abs(op: Operation, x: Value) -> Value:
    kind = scalar_dtype(x).kind
    return x if kind == "uint" else exact.absf(x) if kind == "float" else exact.absi(x)


def _sign(op: Operation, x: Value) -> Value:
    """Zeros and NaN are their own sign."""
    zero = _like(x, 0)
    found = x
    if scalar_dtype(x).kind != "uint":
        found = select(compare(x, zero, "lt"), _like(x, -1), x)
    return select(compare(x, zero, "gt"), _like(x, 1), found)  # type: ignore[no-any-return]


def _is_inf(op: Operation, x: Value) -> Value:
    return compare(exact.absf(x), _like(x, math.inf), "eq")


def _is_finite(op: Operation, x: Value) -> Value:
    return compare(exact.absf(x), _like(x, math.inf), "lt")


def _square(op: Operation, x: Value) -> Value:
    return mulf(x, x) if scalar_dtype(x).is_float else muli(x, x)  # type: ignore[no-any-return]


# -- division ----------------------------------------------------------------------------------------------------------


def _double(x: Value) -> Value:
    """Quotients of floats are rounded to whole numbers in f64, where they are far from them or exact."""
    return x if scalar_dtype(x) == f64 else extf(x, result_type=ScalarType(f64))  # type: ignore[no-any-return]


def _differ_in_sign(x: Value, y: Value) -> Value:
    zero = _like(x, 0)
    return xori(compare(x, zero, "lt"), compare(y, zero, "lt"))  # type: ignore[no-any-return]


def _floor_mod(x: Value, y: Value) -> tuple[Value, Value]:
    """The remainder with the sign of y, and whether it differs from that with the sign of x."""
    rest = remf(x, y)
    zero = _like(x, 0)
    moved = andi(compare(rest, zero, "ne"), _differ_in_sign(rest, y))
    found = select(moved, addf(rest, y), rest)
    return select(compare(found, zero, "eq"), exact.copysign(zero, y), found), moved


def _mod(op: Operation, x: Value, y: Value) -> Value:
    kind = scalar_dtype(x).kind
    if kind != "float":
        return remui(x, y) if kind == "uint" else modsi(x, y)  # type: ignore[no-any-return]
    return _floor_mod(_double(x), _double(y))[0]


def _whole_quotient(x: Value, y: Value) -> Value:
    """x / y rounded toward zero where that is finite; of a multiple of y it is whole but for its rounding."""
    return exact.roundeven(divf(subf(x, remf(x, y)), y))  # type: ignore[no-any-return]


def _floordiv(op: Operation, x: Value, y: Value) -> Value:
    kind = scalar_dtype(x).kind
    if kind != "float":
        return divui(x, y) if kind == "uint" else floordivsi(x, y)  # type: ignore[no-any-return]
    x, y = _double(x), _double(y)
    zero, quotient = _like(x, 0), divf(x, y)
    whole = _whole_quotient(x, y)
    _, moved = _floor_mod(x, y)
    down = select(moved, subf(whole, _like(x, 1)), whole)
    signed = select(compare(down, zero, "eq"), exact.copysign(zero, quotient), down)
    return select(compare(y, zero, "eq"), quotient, signed)  # type: ignore[no-any-return]


def _truncdiv(op: Operation, x: Value, y: Value) -> Value:
    kind = scalar_dtype(x).kind
    if kind != "float":
        return divui(x, y) if kind == "uint" else divsi(x, y)  # type: ignore[no-any-return]
    x, y = _double(x), _double(y)
    quotient = divf(x, y)
    signed = exact.copysign(_whole_quotient(x, y), quotient)
    return select(compare(y, _like(x, 0), "eq"), quotient, signed)  # type: ignore[no-any-return]


# -- bits and choices --------------------------------------------------------------------------------------------------


def _bit_not(op: Operation, x: Value) -> Value:
    dtype = scalar_dtype(x)
    return xori(x, number(dtype.max_value if dtype.kind == "uint" else -1, dtype))  # type: ignore[no-any-return]


def _clamp(op: Operation, x: Value) -> Value:
    stored = tensor_type(op.result).dtype
    for name, bodies in (("low", (maximumf, maxsi, maxui)), ("high", (minimumf, minsi, minui))):
        bound = op.attribute(name)
        if bound is not None:
            assert isinstance(bound, (int, float))
            value = float(round_to(np.array(bound, np.float64), stored)) if stored.is_float else bound
            x = _by_kind(*bodies)(op, x, _like(x, value))
    return x


# -- conversion --------------------------------------------------------------------------------------------------------


def convert(x: Value, dtype: DType) -> Value:
    """A scalar of another element type by value, as ``cast`` converts."""
    have = scalar_dtype(x)
    if have == dtype:
        return x
    if index in (have, dtype):
        raise NotImplementedError
    type_ = ScalarType(dtype)
    if dtype.kind == "bool":
        return compare(x, number(0, have), "ne")
    if have.is_float and dtype.is_float:
        return _convert_float(x, dtype)
    if have.is_float:
        return (fptoui if dtype.kind == "uint" else fptosi)(x, result_type=type_)  # type: ignore[no-any-return]
    if dtype.is_float:
        return (sitofp if have.kind == "int" else uitofp)(x, result_type=type_)  # type: ignore[no-any-return]
    if have.kind == "bool":
        return extui(x, result_type=type_)  # type: ignore[no-any-return]
    if have.bits == dtype.bits:
        return bitcast(x, result_type=type_)  # type: ignore[no-any-return]
    if have.bits > dtype.bits:
        return trunci(x, result_type=type_)  # type: ignore[no-any-return]
    return (extui if have.kind == "uint" else extsi)(x, result_type=type_)  # type: ignore[no-any-return]


def _convert_float(x: Value, dtype: DType) -> Value:
    if dtype.bits > scalar_dtype(x).bits:
        return extf(x, result_type=ScalarType(dtype))  # type: ignore[no-any-return]
    return narrow(widen(x), dtype)  # f16 and bf16 meet in f32


def _cast(op: Operation, x: Value) -> Value:
    dtype = op.attribute("dtype")
    assert isinstance(dtype, DType)
    return convert(x, dtype)


def _bitcast(op: Operation, x: Value) -> Value:
    dtype = tensor_type(op.result).dtype
    return x if scalar_dtype(x) == dtype else bitcast(x, result_type=ScalarType(dtype))


COMPUTED: dict[str, Body] = {
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "square": _square,
    "floor": _plain(exact.floor),
    "ceil": _plain(exact.ceil),
    "round": _plain(exact.roundeven),
    "trunc": _plain(exact.trunc),
    **{n: _plain(getattr(functions, n)) for n in ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "erf", "erfc")},
    "reciprocal": lambda op, x: divf(_like(x, 1), x),
    "isnan": _plain(exact.isnan),
    "isinf": _is_inf,
    "isfinite": _is_finite,
    "add": _by_kind(addf, addi),
    "sub": _by_kind(subf, subi),
    "mul": _by_kind(mulf, muli),
    "div": _plain(divf),
    "floordiv": _floordiv,
    "mod": _mod,
    "truncdiv": _truncdiv,
    "rem": _by_kind(remf, remsi, remui),
    "maximum": _by_kind(maximumf, maxsi, maxui),
    "minimum": _by_kind(minimumf, minsi, minui),
    "pow": _plain(functions.powf),  # of integers see _powers.py
    "clamp": _clamp,
    "equal": _compared("eq"),
    "not_equal": _compared("ne"),
    "less": _compared("lt"),
    "less_equal": _compared("le"),
    "greater": _compared("gt"),
    "greater_equal": _compared("ge"),
    **ACTIVATIONS,
}

MOVED: dict[str, Body] = {
    "shift_left": _plain(shli),
    "shift_right": lambda op, x, y: (shrui if scalar_dtype(x).kind == "uint" else shrsi)(x, y),
    "bit_and": _plain(andi),
    "bit_or": _plain(ori),
    "bit_xor": _plain(xori),
    "bit_not": _bit_not,
    "logical_and": _plain(andi),
    "logical_or": _plain(ori),
    "logical_xor": _plain(xori),
    "logical_not": lambda op, x: xori(x, number(True, scalar_dtype(x))),
    "where": _plain(select),
    "cast": _cast,
    "bitcast": _bitcast,
}


def broadcast_access(buffer: Value, shape: tuple[Dim, ...], names: tuple[Dim, ...]) -> Access:
    """The element of an operand at a place of the result: aligned at the end, dimensions of 1 at 0."""
    names = names[len(names) - len(shape) :]
    return Access(buffer, tuple(0 if d == 1 else n for d, n in zip(shape, names, strict=True)))


def elementwise(low: Lowering) -> list[Value]:
    """One nest over the result."""
    name = low.op.definition.name
    return nest(low, MOVED.get(name) or COMPUTED[name], computed=name in COMPUTED)


def nest(low: Lowering, scalar_body: Body, *, computed: bool) -> list[Value]:
    """One nest over the result with a body of its own, on what is stored or in the type that is computed in."""
    op = low.op
    result = tensor_type(op.result)
    loops = low.loops(result.shape)
    names: tuple[Dim, ...] = tuple(n.name for n in loops)
    fixed = [low.single_constant(v) for v in op.operands]
    reads = [
        broadcast_access(low.buffer(v), tensor_type(v).shape, names) for v, number_ in zip(op.operands, fixed, strict=True) if number_ is None
    ]

    def body(*scalars: Value) -> Value:
        given = iter(scalars[:-1])
        operands = [next(given) if c is None else constant(c) for c in fixed]
        if not computed:
            return scalar_body(op, *operands)
        found = scalar_body(op, *map(widen, operands))
        return narrow(found, result.dtype) if result.dtype.is_float else found

    buffer = low.result_buffer()
    low.generic(loops, reads, Access(buffer, names), body)
    return [buffer]


def can_lower(op: Operation) -> bool:
    """Whether the elements have types that the bodies are for."""
    return index not in [tensor_type(v).dtype for v in (*op.operands, *op.results)]
