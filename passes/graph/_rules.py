"""What the rule tables of ``canonicalize`` are written with.

A rule looks at one operation and returns the value that stands for its result, or None.  Rules may return a value of
another type than the result's: it is then not used, so ``x * 1 -> x`` needs no word about broadcasting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dialects.graph.constant import constant, full
from ir.attributes import Dense
from ir.core import Operation, Value
from ir.evaluate import round_to
from ir.opdef import OpDef
from ir.types import DType, TensorType

Rule = Callable[[Operation], "Value | None"]
Table = dict[OpDef, Sequence[Rule]]
Condition = Callable[[DType], bool]
Number = bool | int | float


# -- types -------------------------------------------------------------------------------------------------------------


def tensor_type(value: Value) -> TensorType | None:
    """The type, when it is that of a tensor."""
    return value.type if isinstance(value.type, TensorType) else None


def element_type(value: Value) -> DType | None:
    """The element type, when it is known."""
    return value.type.dtype if isinstance(value.type, TensorType) else None


def result_shape(op: Operation) -> tuple[Any, ...]:
    """The dimensions of the only result."""
    assert isinstance(op.result.type, TensorType)
    return op.result.type.shape


def is_float(dtype: DType) -> bool:
    return dtype.is_float


def is_integer(dtype: DType) -> bool:
    return dtype.is_integer


def is_signed(dtype: DType) -> bool:
    """Floats and signed integers."""
    return dtype.is_float or dtype.kind == "int"


def is_unsigned(dtype: DType) -> bool:
    return dtype.kind == "uint"


def not_float(dtype: DType) -> bool:
    return not dtype.is_float


def any_type(dtype: DType) -> bool:
    return True


# -- constants ---------------------------------------------------------------------------------------------------------


def is_constant(value: Value) -> bool:
    """Whether the value is written in the program."""
    op = value.defining_op
    return op is not None and op.definition in (constant, full)


def splat(value: Value) -> Number | None:
    """The number that every element of a constant is, bit for bit; None when there is none."""
    op = value.defining_op
    if op is None:
        return None
    if op.definition is constant:
        dense = op.attributes["value"]
        assert isinstance(dense, Dense)
        return _common_element(dense)
    if op.definition is full:
        number, dtype = op.attribute("value"), op.attribute("dtype")
        assert isinstance(number, (bool, int, float)) and isinstance(dtype, DType)
        return float(round_to(np.array(float(number)), dtype)) if dtype.is_float else number
    return None


def _common_element(dense: Dense) -> Number | None:
    if dense.array.size == 0:
        return None
    flat = dense.array.reshape(-1)
    raw = flat.view(f"u{dense.dtype.itemsize}")
    if not bool((raw == raw[0]).all()):
        return None
    element = flat[0]
    if dense.dtype.is_float:
        return float(element)
    return bool(element) if dense.dtype.kind == "bool" else int(element)


def is_number(value: Value, number: Number) -> bool:
    """Whether all elements are ``number``; the sign of a zero counts."""
    found = splat(value)
    if found is None or found != number:
        return False
    return math.copysign(1.0, found) == math.copysign(1.0, number) if isinstance(found, float) else True


def filled(number: Number, dtype: DType | None = None) -> Rule:
    """Makes the result's shape filled with ``number``."""

    def make(op: Operation) -> Value | None:
        element = dtype or element_type(op.result)
        assert element is not None
        number_ = float(number) if element.is_float else number
        return full(shape=result_shape(op), value=number_, dtype=element)  # type: ignore[no-any-return]

    return make


# -- patterns ----------------------------------------------------------------------------------------------------------


def first(op: Operation) -> Value:
    """The first operand."""
    return op.operands[0]


def second(op: Operation) -> Value:
    """The second operand."""
    return op.operands[1]


def source(value: Value, *definitions: OpDef) -> Operation | None:
    """The operation that makes ``value``, when it is one of ``definitions``."""
    op = value.defining_op
    return op if op is not None and op.definition in definitions else None


def _holds(op: Operation, when: Condition) -> bool:
    dtype = element_type(op.operands[0])
    return dtype is not None and when(dtype)


def right(number: Number, make: Rule, when: Condition = any_type) -> Rule:
    """For ``op(x, number)``."""
    return lambda op: make(op) if is_number(second(op), number) and _holds(op, when) else None


def left(number: Number, make: Rule, when: Condition = any_type) -> Rule:
    """For ``op(number, y)``."""
    return lambda op: make(op) if is_number(first(op), number) and _holds(op, when) else None


def same(make: Rule, when: Condition = any_type) -> Rule:
    """For ``op(x, x)``."""
    return lambda op: make(op) if first(op) is second(op) and _holds(op, when) else None


def always(make: Rule, when: Condition = any_type) -> Rule:
    """For every operation on an element type."""
    return lambda op: make(op) if _holds(op, when) else None


def of(inner: OpDef | Sequence[OpDef], make: Rule, when: Condition = any_type) -> Rule:
    """For ``op(inner(x))``; ``make`` still gets the outer operation."""
    definitions = (inner,) if isinstance(inner, OpDef) else tuple(inner)
    return lambda op: make(op) if source(first(op), *definitions) is not None and _holds(op, when) else None


def under(op: Operation, position: int = 0) -> Value:
    """x of ``op(inner(x))``."""
    inner = op.operands[position].defining_op
    assert inner is not None
    return inner.operands[0]


def constant_to_the_right(swapped: OpDef) -> Rule:
    """``op(c, x) -> swapped(x, c)``."""

    def rule(op: Operation) -> Value | None:
        x, y = op.operands
        if not is_constant(x) or is_constant(y):
            return None
        return swapped(y, x, **op.attributes)  # type: ignore[no-any-return]

    return rule
