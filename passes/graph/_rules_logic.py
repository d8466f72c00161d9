"""Rules of ``canonicalize`` for comparisons, logic and ``where``."""

from __future__ import annotations

from dialects.graph.comparison import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    where,
)
from dialects.graph.shape import expand
from ir.core import Operation, Value
from ir.types import boolean
from passes.graph._rules import (
    Table,
    constant_to_the_right,
    element_type,
    filled,
    first,
    is_number,
    not_float,
    of,
    result_shape,
    right,
    same,
    source,
    splat,
    under,
)


def _not(op: Operation) -> Value:
    return logical_not(first(op))  # type: ignore[no-any-return]


# -- comparisons -------------------------------------------------------------------------------------------------------

_OPPOSITES = {equal: not_equal, not_equal: equal}
_ORDER_OPPOSITES = {less: greater_equal, greater_equal: less, greater: less_equal, less_equal: greater}


def _not_of_comparison(op: Operation) -> Value | None:
    inner = source(first(op), *_OPPOSITES, *_ORDER_OPPOSITES)
    if inner is None:
        return None
    dtype = element_type(first(inner))
    if inner.definition in _OPPOSITES:
        return _OPPOSITES[inner.definition](*inner.operands)  # type: ignore[no-any-return]
    if dtype is None or dtype.is_float:  # a NaN is neither below nor at or above
        return None
    return _ORDER_OPPOSITES[inner.definition](*inner.operands)  # type: ignore[no-any-return]


# -- where -------------------------------------------------------------------------------------------------------------


def _in_shape_of(op: Operation, value: Value) -> Value:
    return value if value.type == op.result.type else expand(value, shape=result_shape(op))


def _where_constant(op: Operation) -> Value | None:
    cond, x, y = op.operands
    chosen = splat(cond)
    return None if chosen is None else _in_shape_of(op, x if chosen else y)


def _where_same(op: Operation) -> Value | None:
    _, x, y = op.operands
    return _in_shape_of(op, x) if x is y else None


def _where_of_bools(op: Operation) -> Value | None:
    cond, x, y = op.operands
    if element_type(x) != boolean:
        return None
    if is_number(x, True) and is_number(y, False):
        return cond
    if is_number(x, False) and is_number(y, True) and cond.type == op.result.type:
        return logical_not(cond)  # type: ignore[no-any-return]
    return None


def _where_not(op: Operation) -> Value | None:
    inner = source(first(op), logical_not)
    if inner is None:
        return None
    _, x, y = op.operands
    return where(first(inner), y, x)  # type: ignore[no-any-return]


TABLE: Table = {
    equal: [
        # c == x -> x == c
        constant_to_the_right(equal),
        # x == x -> true (not floats: NaN is not equal to itself)
        same(filled(True, boolean), not_float),
        # x == true -> x
        right(True, first, lambda d: d == boolean),
        # x == false -> not x
        right(False, _not, lambda d: d == boolean),
    ],
    not_equal: [
        # c != x -> x != c
        constant_to_the_right(not_equal),
        # x != x -> false (not floats)
        same(filled(False, boolean), not_float),
        # x != false -> x
        right(False, first, lambda d: d == boolean),
        # x != true -> not x
        right(True, _not, lambda d: d == boolean),
    ],
    less: [
        # c < x -> x > c
        constant_to_the_right(greater),
        # x < x -> false, for NaN too
        same(filled(False, boolean)),
    ],
    greater: [
        # c > x -> x < c
        constant_to_the_right(less),
        # x > x -> false, for NaN too
        same(filled(False, boolean)),
    ],
    less_equal: [
        # c <= x -> x >= c
        constant_to_the_right(greater_equal),
        # x <= x -> true (not floats)
        same(filled(True, boolean), not_float),
    ],
    greater_equal: [
        # c >= x -> x <= c
        constant_to_the_right(less_equal),
        # x >= x -> true (not floats)
        same(filled(True, boolean), not_float),
    ],
    logical_and: [
        # c and x -> x and c
        constant_to_the_right(logical_and),
        # x and x -> x
        same(first),
        # x and true -> x
        right(True, first),
        # x and false -> false
        right(False, filled(False)),
    ],
    logical_or: [
        # c or x -> x or c
        constant_to_the_right(logical_or),
        # x or x -> x
        same(first),
        # x or false -> x
        right(False, first),
        # x or true -> true
        right(True, filled(True)),
    ],
    logical_xor: [
        # c xor x -> x xor c
        constant_to_the_right(logical_xor),
        # x xor x -> false
        same(filled(False)),
        # x xor false -> x
        right(False, first),
        # x xor true -> not x
        right(True, _not),
    ],
    logical_not: [
        # not not x -> x
        of(logical_not, under),
        # not x == y -> x != y; not x < y -> x >= y (not floats)
        _not_of_comparison,
    ],
    where: [
        # where(true, x, y) -> x, where(false, x, y) -> y
        _where_constant,
        # where(c, x, x) -> x
        _where_same,
        # where(c, true, false) -> c, where(c, false, true) -> not c
        _where_of_bools,
        # where(not c, x, y) -> where(c, y, x)
        _where_not,
    ],
}
