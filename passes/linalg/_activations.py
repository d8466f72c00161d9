"""Scalar bodies of the activation functions, for those that ``decompose`` has left.

sigmoid, silu, gelu by tanh and, of f32, gelu are operations of ``math``; most others are those of the decompositions where these are best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, mulf, negf
from dialects.arith.integers import maxsi, maxui
from dialects.graph._wide import rounded
from dialects.math import activation, exact, functions
from ir.core import Operation, Value
from ir.types import f64
from passes.linalg._nests import number, scalar_dtype


def _like(x: Value, value: float) -> Value:
    return number(value, scalar_dtype(x))


def _alpha(op: Operation, x: Value) -> Value:
    value = op.attribute("alpha")
    assert isinstance(value, (int, float))
    return _like(x, rounded(float(value), scalar_dtype(x)))


def _less(x: Value, y: Value) -> Value:
    return cmpf(x, y, predicate="lt")  # type: ignore[no-any-return]


def _relu(op: Operation, x: Value) -> Value:
    """NaN stays; -0 becomes +0."""
    zero = _like(x, 0)
    kind = scalar_dtype(x).kind
    if kind != "float":
        return (maxui if kind == "uint" else maxsi)(x, zero)  # type: ignore[no-any-return]
    return select(cmpf(x, zero, predicate="le"), zero, x)  # type: ignore[no-any-return]


def _leaky_relu(op: Operation, x: Value) -> Value:
    return select(cmpf(x, _like(x, 0), predicate="ge"), x, mulf(_alpha(op, x), x))  # type: ignore[no-any-return]


def _elu(op: Operation, x: Value) -> Value:
    return select(cmpf(x, _like(x, 0), predicate="gt"), x, mulf(_alpha(op, x), functions.expm1(x)))  # type: ignore[no-any-return]


def _decayed(x: Value) -> Value:
    """exp(-abs(x)): never overflows."""
    return functions.exp(negf(exact.absf(x)))  # type: ignore[no-any-return]


def _sigmoid(op: Operation, x: Value) -> Value:
    return activation.sigmoid(x)  # type: ignore[no-any-return]


def _silu(op: Operation, x: Value) -> Value:
    return activation.silu(x)  # type: ignore[no-any-return]


def _softplus(op: Operation, x: Value) -> Value:
    zero = _like(x, 0)
    return addf(select(cmpf(x, zero, predicate="gt"), x, zero), functions.log1p(_decayed(x)))  # type: ignore[no-any-return]


def _gelu(op: Operation, x: Value) -> Value:
    if op.attribute("approximate") == "tanh":
        return activation.gelu_tanh(x)  # type: ignore[no-any-return]
    if scalar_dtype(x) != f64:
        return activation.gelu(x)  # type: ignore[no-any-return]
    lowest = _like(x, -1500.0)  # -inf * 0 would be NaN
    finite = select(_less(x, lowest), lowest, x)
    return mulf(finite, mulf(_like(x, 0.5), functions.erfc(mulf(x, _like(x, -math.sqrt(0.5))))))  # type: ignore[no-any-return]


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "silu": _silu,
    "gelu": _gelu,
}
