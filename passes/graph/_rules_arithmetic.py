"""Rules of ``canonicalize`` for arithmetic: each keeps every bit, for NaN (but for its payload), infinities and -0.

Trap: ``x + 0`` is not x for floats (-0 + 0 is +0), ``x - x`` and ``x * 0`` are not 0 (NaN, infinities); sums are not
regrouped and divisions do not become multiplications.
"""

from __future__ import annotations

import math

from dialects.graph.activation import relu
from dialects.graph.arithmetic import (
    add,
    bit_and,
    bit_not,
    bit_or,
    bit_xor,
    div,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    pow_,
    rem,
    shift_left,
    shift_right,
    sub,
    truncdiv,
)
from dialects.graph.cast import bitcast, cast
from dialects.graph.comparison import clamp
from dialects.graph.effects import dropout
from dialects.graph.elementwise import abs_, ceil, exp, floor, neg, round_, sign, square, trunc
from ir.attributes import attribute_key
from ir.core import Operation, Value
from ir.types import DType, boolean
from passes.graph._rules import (
    Rule,
    Table,
    always,
    constant_to_the_right,
    element_type,
    filled,
    first,
    is_float,
    is_integer,
    is_signed,
    is_unsigned,
    left,
    not_float,
    of,
    right,
    same,
    second,
    source,
    splat,
    under,
)

# -- made by rules -----------------------------------------------------------------------------------------------------


def _negated(op: Operation) -> Value:
    return neg(first(op))  # type: ignore[no-any-return]


def _negated_second(op: Operation) -> Value:
    return neg(second(op))  # type: ignore[no-any-return]


def _add_of_neg(op: Operation) -> Value | None:
    if source(second(op), neg) is not None:
        return sub(first(op), under(op, 1))  # type: ignore[no-any-return]
    if source(first(op), neg) is not None:
        return sub(second(op), under(op, 0))  # type: ignore[no-any-return]
    return None


def _sub_of_neg(op: Operation) -> Value | None:
    return add(first(op), under(op, 1)) if source(second(op), neg) is not None else None


def _both_negated(op: Operation) -> Value | None:
    if source(first(op), neg) is None or source(second(op), neg) is None:
        return None
    return op.definition(under(op, 0), under(op, 1))  # type: ignore[no-any-return]


def _without_inner(op: Operation) -> Value:
    """``op(inner(x)) -> op(x)``."""
    return op.definition(under(op))  # type: ignore[no-any-return]


def _neutral_extreme(largest: bool) -> Rule:
    """``maximum(x, lowest) -> x`` and ``minimum(x, highest) -> x``."""

    def rule(op: Operation) -> Value | None:
        dtype, number = element_type(first(op)), splat(second(op))
        if dtype is None or number is None:
            return None
        neutral = (-math.inf if largest else math.inf) if dtype.is_float else dtype.min_value if largest else dtype.max_value
        return first(op) if number == neutral else None

    return rule


# -- clamp and dropout -------------------------------------------------------------------------------------------------


def _unbounded(op: Operation) -> Value | None:
    low, high = op.attribute("low"), op.attribute("high")
    return first(op) if low in (None, -math.inf) and high in (None, math.inf) else None


def _clamped_twice(op: Operation) -> Value | None:
    inner = source(first(op), clamp)
    if inner is None or any(attribute_key(op.attribute(n)) != attribute_key(inner.attribute(n)) for n in ("low", "high")):
        return None
    return first(op)


def _drops_nothing(op: Operation) -> Value | None:
    return first(op) if not op.attribute("training") or op.attribute("p") == 0.0 else None


# -- casts -------------------------------------------------------------------------------------------------------------


def _own_type(op: Operation) -> Value | None:
    return first(op) if element_type(first(op)) == op.attribute("dtype") else None


_SIGNIFICAND = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
_EXPONENT = {"f64": 11, "f32": 8, "f16": 5, "bf16": 8}


def _holds_all(wide: DType, narrow: DType) -> bool:
    """Whether every value of ``narrow`` is one of ``wide``, so that a cast between them loses nothing."""
    if narrow == boolean:
        return wide != boolean
    if narrow.is_float and wide.is_float:
        return _SIGNIFICAND[wide.name] >= _SIGNIFICAND[narrow.name] and _EXPONENT[wide.name] >= _EXPONENT[narrow.name]
    # not integers in floats: a float saturates on its way to an integer, an integer wraps around
    return narrow.is_integer and wide.is_integer and wide.min_value <= narrow.min_value and narrow.max_value <= wide.max_value


def _cast_of_cast(op: Operation) -> Value | None:
    inner = source(first(op), cast)
    if inner is None:
        return None
    outermost, middle, origin = op.attribute("dtype"), element_type(first(op)), element_type(first(inner))
    assert isinstance(outermost, DType)
    if middle is None or origin is None:
        return None
    wraps_twice = all(d.is_integer for d in (origin, middle, outermost)) and outermost.bits <= middle.bits
    if not _holds_all(middle, origin) and not wraps_twice:
        return None
    return first(inner) if origin == outermost else cast(first(inner), dtype=outermost)


def _bitcast_of_bitcast(op: Operation) -> Value | None:
    inner = source(first(op), bitcast)
    if inner is None:
        return None
    return first(inner) if element_type(first(inner)) == op.attribute("dtype") else bitcast(first(inner), dtype=op.attribute("dtype"))


# -- the tables --------------------------------------------------------------------------------------------------------

_WHOLE = (floor, ceil, round_, trunc)

TWO_OPERANDS: Table = {
    add: [
        # c + x -> x + c
        constant_to_the_right(add),
        # x + -0.0 -> x (x + 0.0 is not: -0.0 + 0.0 is 0.0)
        right(-0.0, first, is_float),
        # x + 0 -> x (integers)
        right(0, first, is_integer),
        # x + -y -> x - y
        _add_of_neg,
    ],
    sub: [
        # x - 0 -> x
        right(0.0, first, is_float),
        right(0, first, is_integer),
        # x - x -> 0 (integers; inf - inf is NaN)
        same(filled(0), is_integer),
        # -0.0 - x -> -x (0.0 - x is not: 0.0 - 0.0 is 0.0)
        left(-0.0, _negated_second, is_float),
        # 0 - x -> -x (integers)
        left(0, _negated_second, is_integer),
        # x - -y -> x + y
        _sub_of_neg,
    ],
    mul: [
        # c * x -> x * c
        constant_to_the_right(mul),
        # x * 1 -> x
        right(1, first),
        # x * -1 -> -x
        right(-1, _negated, is_signed),
        # x * 0 -> 0 (integers; NaN * 0 and inf * 0 are NaN, -1 * 0.0 is -0.0)
        right(0, filled(0), is_integer),
        # -x * -y -> x * y
        _both_negated,
    ],
    div: [
        # x / 1 -> x
        right(1, first),
        # x / -1 -> -x
        right(-1, _negated),
        # -x / -y -> x / y
        _both_negated,
    ],
    floordiv: [
        # x floordiv 1 -> x (integers)
        right(1, first, is_integer),
    ],
    truncdiv: [
        # truncdiv(x, 1) -> x (integers)
        right(1, first, is_integer),
    ],
    mod: [
        # x mod 1 -> 0 (integers)
        right(1, filled(0), is_integer),
    ],
    rem: [
        # rem(x, 1) -> 0 (integers)
        right(1, filled(0), is_integer),
    ],
    pow_: [
        # pow(x, 1) -> x
        right(1, first),
        # pow(x, 0) -> 1, for NaN too
        right(0, filled(1), is_integer),
        right(0.0, filled(1), is_float),
        right(-0.0, filled(1), is_float),
    ],
    maximum: [
        # maximum(c, x) -> maximum(x, c)
        constant_to_the_right(maximum),
        # maximum(x, x) -> x
        same(first),
        # maximum(x, lowest) -> x
        _neutral_extreme(largest=True),
    ],
    minimum: [
        # minimum(c, x) -> minimum(x, c)
        constant_to_the_right(minimum),
        # minimum(x, x) -> x
        same(first),
        # minimum(x, highest) -> x
        _neutral_extreme(largest=False),
    ],
    shift_left: [
        # x << 0 -> x
        right(0, first),
    ],
    shift_right: [
        # x >> 0 -> x
        right(0, first),
    ],
    bit_and: [
        # c & x -> x & c
        constant_to_the_right(bit_and),
        # x & x -> x
        same(first),
        # x & 0 -> 0
        right(0, filled(0)),
        # x & -1 -> x
        right(-1, first),
        right(255, first, is_unsigned),
    ],
    bit_or: [
        # c | x -> x | c
        constant_to_the_right(bit_or),
        # x | x -> x
        same(first),
        # x | 0 -> x
        right(0, first),
    ],
    bit_xor: [
        # c ^ x -> x ^ c
        constant_to_the_right(bit_xor),
        # x ^ x -> 0
        same(filled(0)),
        # x ^ 0 -> x
        right(0, first),
    ],
}

ONE_OPERAND: Table = {
    neg: [
        # -(-x) -> x
        of(neg, under),
    ],
    bit_not: [
        # ~~x -> x
        of(bit_not, under),
    ],
    abs_: [
        # abs(x) -> x (unsigned)
        always(first, is_unsigned),
        # abs(f(x)) -> f(x) where f is never below +0
        of((abs_, relu, square, exp), first, is_float),
        # abs(abs(x)) -> abs(x) (integers: the smallest one stays itself)
        of((abs_, relu), first, not_float),
        # abs(-x) -> abs(x)
        of(neg, _without_inner, is_signed),
    ],
    square: [
        # (-x)^2 -> x^2, abs(x)^2 -> x^2
        of((neg, abs_), _without_inner),
    ],
    relu: [
        # relu(x) -> x (unsigned)
        always(first, is_unsigned),
        # relu(f(x)) -> f(x) where f is never below +0
        of((relu, abs_, square, exp), first, is_float),
        # relu(relu(x)) -> relu(x)
        of(relu, first),
    ],
    # floor(ceil(x)) -> ceil(x), and so on: what is whole stays
    floor: [of(_WHOLE, first)],
    ceil: [of(_WHOLE, first)],
    round_: [of(_WHOLE, first)],
    trunc: [of(_WHOLE, first)],
    sign: [
        # sign(sign(x)) -> sign(x)
        of(sign, first),
    ],
    clamp: [
        # clamp(x) -> x, with bounds that are infinite too
        _unbounded,
        # clamp(clamp(x, a, b), a, b) -> clamp(x, a, b)
        _clamped_twice,
    ],
    dropout: [
        # dropout(x) -> x outside of training, or with p = 0
        _drops_nothing,
    ],
    cast: [
        # cast to its own type -> x
        _own_type,
        # cast(cast(x, b), c) -> cast(x, c), where b holds all values of x, or integers are cut down step by step
        _cast_of_cast,
    ],
    bitcast: [
        # bitcast to its own type -> x
        _own_type,
        # bitcast(bitcast(x, b), c) -> bitcast(x, c)
        _bitcast_of_bitcast,
    ],
}
