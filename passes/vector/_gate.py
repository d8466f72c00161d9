"""sigmoid and silu of f32, and the product with a gate that silu is made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, negf, subf
from dialects.math import absf, fma
from ir.core import Value
from passes.vector._exponential import exp
from passes.vector._kit import Kit

SHIFT, SHIFT_FACTOR = 39.79400634765625, 5.220145767100658e-18
"""A multiple of 2**-17, so that numbers of f32 from 64 to 128 can be reduced by it exactly, and exp(-SHIFT) within 1.4e-14."""
FAR = 64.0
"""From where 1 + exp(-(size - SHIFT)) is 1 in f32."""
LOWEST = -127.0
"""Where silu is -0 in f32 in any case."""

Number = Callable[[float, str], Value]
"""Makes a constant of f32; the text is a name for readers."""


def sigmoid(kit: Kit, x: Value) -> Value:
    """1 / (1 + e) for x >= 0, e / (1 + e) below, with e = exp(-abs(x)), which never overflows."""
    one, small = kit.f(1.0, "one"), exp(kit, negf(absf(x)))
    above = cmpf(x, kit.f(0.0, "zero"), predicate="ge")
    return divf(select(above, one, small), addf(one, small))  # type: ignore[no-any-return]


def silu(kit: Kit, x: Value) -> Value:
    """x with the gate of x; limited first, for -inf * 0 would be NaN."""
    finite = kit.at_least(x, LOWEST, "silu_low")
    return gated(finite, absf(finite), kit.f, partial(exp, kit))


def gated(x: Value, size: Value, number: Number, exponential: Callable[[Value], Value], lost: Value | None = None) -> Value:
    """x / (1 + exp(-size)) for x >= 0, x * exp(-size) / (1 + exp(-size)) below, of f32; ``lost`` belongs to size.

    The exponential can be denormal where x times it is not, so from FAR on it is taken of a smaller size; the factor that makes
    up for it comes last.
    """
    one, zero = number(1.0, "one"), number(0.0, "zero")
    far = cmpf(size, number(FAR, "gate_far"), predicate="ge")
    small = exponential(subf(select(far, number(SHIFT, "gate_shift"), zero), size))
    if lost is not None:
        small = fma(small, negf(lost), small)
    below = mulf(mulf(x, small), select(far, number(SHIFT_FACTOR, "gate_factor"), one))
    return divf(select(cmpf(x, zero, predicate="ge"), x, below), addf(one, small))  # type: ignore[no-any-return]
