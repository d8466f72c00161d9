"""Scalar bodies of the activation functions, for those that ``decompose`` has left.

sigmoid, silu and, of f32, gelu are operations of ``math``; most others are those of the decompositions where these are best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dialects import math as m
from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, negf, subf
from dialects.arith.integers import maxsi, maxui
from dialects.graph._wide import rounded
from ir.core import Operation, Value
from ir.types import f64
from passes.linalg._nests import number, scalar_dtype
from passes.vector._gate import gated

CUBIC = 0.044715
SLOPE = 2.0 * math.sqrt(2.0 / math.pi)


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
    return select(cmpf(x, _like(x, 0), predicate="gt"), x, mulf(_alpha(op, x), m.expm1(x)))  # type: ignore[no-any-return]


def _decayed(x: Value) -> Value:
    """exp(-abs(x)): never overflows."""
    return m.exp(negf(m.absf(x)))  # type: ignore[no-any-return]


def _sigmoid(op: Operation, x: Value) -> Value:
    return m.sigmoid(x)  # type: ignore[no-any-return]


def _silu(op: Operation, x: Value) -> Value:
    return m.silu(x)  # type: ignore[no-any-return]


def _softplus(op: Operation, x: Value) -> Value:
    zero = _like(x, 0)
    return addf(select(cmpf(x, zero, predicate="gt"), x, zero), m.log1p(_decayed(x)))  # type: ignore[no-any-return]


# -- x times a gate ----------------------------------------------------------------------------------------------------


def _finite(x: Value, lowest: float) -> Value:
    """x, but no lower than where the result is -0 anyway: -inf * 0 would be NaN."""
    bound = _like(x, lowest)
    return select(_less(x, bound), bound, x)  # type: ignore[no-any-return]


def _gated_f64(x: Value, argument: Value) -> Value:
    """x * sigmoid(argument) in f64: the root of the exponential is not denormal where the result is not."""
    root = m.exp(mulf(m.absf(argument), _like(x, -0.5)))
    below = mulf(mulf(x, root), root)
    above = select(cmpf(x, _like(x, 0), predicate="ge"), x, below)
    return divf(above, addf(_like(x, 1), mulf(root, root)))  # type: ignore[no-any-return]


def _gelu(op: Operation, x: Value) -> Value:
    if op.attribute("approximate") == "tanh":
        return _gelu_tanh(x)
    if scalar_dtype(x) != f64:
        return m.gelu(x)  # type: ignore[no-any-return]
    return mulf(_finite(x, -1500.0), mulf(_like(x, 0.5), m.erfc(mulf(x, _like(x, -math.sqrt(0.5))))))  # type: ignore[no-any-return]


def _gelu_tanh(x: Value) -> Value:
    """x * sigmoid(SLOPE * (x + CUBIC * x**3)).

    The exponential makes the absolute error of its argument a relative one, so in f32 the argument is kept in two parts, by
    the exact errors of products and sums (Dekker, Numer. Math. 18, 1971).
    """
    if scalar_dtype(x) == f64:
        finite = _finite(x, -50.0)
        cubic = mulf(mulf(mulf(_like(x, CUBIC), finite), finite), finite)
        return _gated_f64(finite, mulf(_like(x, SLOPE), addf(finite, cubic)))
    finite = _finite(x, -11.0)
    size = m.absf(finite)
    size = select(_less(_like(x, 11.0), size), _like(x, 11.0), size)
    (slope, slope_low), (cubic, cubic_low) = _two_parts(x, SLOPE), _two_parts(x, SLOPE * CUBIC)
    square = mulf(size, size)
    square_low = m.fma(size, size, negf(square))
    steep = mulf(cubic, square)
    steep_low = m.fma(cubic, square_low, m.fma(cubic_low, square, m.fma(cubic, square, negf(steep))))
    total, total_low = _sum(slope, steep)
    total_low = addf(total_low, addf(steep_low, slope_low))
    argument = mulf(size, total)
    lost = m.fma(size, total_low, m.fma(size, total, negf(argument)))
    return gated(finite, argument, lambda value, _: _like(x, value), m.exp, lost)


def _two_parts(x: Value, value: float) -> tuple[Value, Value]:
    high = rounded(value, scalar_dtype(x))
    return _like(x, high), _like(x, value - high)


def _sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b rounded, and its exact error (Knuth, TAOCP vol. 2, 4.2.2 theorem B)."""
    total = addf(a, b)
    back = subf(total, a)
    return total, addf(subf(a, subf(total, back)), subf(b, back))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "silu": _silu,
    "gelu": _gelu,
}
