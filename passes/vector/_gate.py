"""sigmoid and silu of f32, and gelu by tanh, which is silu but for the argument of the exponential.

silu(x) is maximum(x, 0) - size / (1 + exp(size)) for either sign of x, and size its absolute value.  To keep exp(size) from
overflowing where the result is no zero yet, both terms of the denominator are made 2**64 times smaller, and the quotient is so much
too large.
"""

from __future__ import annotations

import math

from dialects.arith.floats import addf, divf, mulf, negf, subf
from dialects.math.exact import absf, fma
from ir.core import Value
from passes.vector._exponential import EXP, reduced
from passes.vector._kit import Kit
from passes.vector._power import EXP2

SHIFT = -64
HIGHEST = 43.0
"""From where 1 + exp(-x) is 1; exp(-HIGHEST) * 2**SHIFT is no denormal yet."""
LOWEST = -127.0
"""Where silu is -0 and sigmoid 0 in any case; exp(-LOWEST) * 2**SHIFT does not overflow."""

SLOPE = 2.0 * math.sqrt(2.0 / math.pi) * math.log2(math.e)
"""With CUBIC: gelu by tanh is x / (1 + 2**(-x * (SLOPE + CUBIC * x**2)))."""
CUBIC = 0.044715 * SLOPE
SLOPE_HIGH, CUBIC_HIGH = 2357.0 / 1024.0, 0.10294324159622192
"""Near them: so few digits that differences from it are exact, and the nearest float."""
TANH_LOWEST = -11.0
"""The limit for gelu by tanh."""


def sigmoid(kit: Kit, x: Value) -> Value:
    """1 / (1 + exp(-x)); the numerator is 2**SHIFT, so that a denormal result is rounded once."""
    limited = kit.at_most(kit.at_least(x, LOWEST, "gate_low"), HIGHEST, "gate_high")
    return divf(kit.f(2.0**SHIFT, "gate_shift"), _one_and_exp(kit, negf(limited)))  # type: ignore[no-any-return]


def silu(kit: Kit, x: Value) -> Value:
    """The exponential is that of the size."""
    size = kit.at_most(absf(x), -LOWEST, "gate_size")
    return kit.above_zero_less(x, divf(size, _one_and_exp(kit, size)), -SHIFT)


def gelu_tanh(kit: Kit, x: Value) -> Value:
    """The exponential is 2**(size * slope).

    The power makes the absolute error of the exponent, up to 160, a relative one.  So the slope is kept in two parts; what it loses
    is known exactly, as a difference from SLOPE_HIGH is, and what its square loses by a fused multiply-add.
    """
    size = kit.at_most(absf(x), -TANH_LOWEST, "gelu_tanh_size")
    cubic, start = kit.f(CUBIC_HIGH, "gelu_tanh_cubic"), kit.f(SLOPE_HIGH, "gelu_tanh_slope")
    square = mulf(size, size)
    slope = fma(square, cubic, start)
    lost = fma(fma(size, size, negf(square)), cubic, fma(square, cubic, subf(start, slope)))
    lost = addf(lost, fma(square, kit.f(CUBIC - CUBIC_HIGH, "gelu_tanh_cubic_low"), kit.f(SLOPE - SLOPE_HIGH, "gelu_tanh_slope_low")))
    n, bits = kit.rounded_multiple(size, slope, 127 + SHIFT)
    r = fma(size, lost, fma(size, slope, negf(n)))
    divisor = _one_and(kit, kit.polynomial(r, EXP2, "exp2_"), bits)
    return kit.above_zero_less(x, divf(size, divisor), -SHIFT)


def _one_and_exp(kit: Kit, x: Value) -> Value:
    """2**SHIFT * (1 + exp(x)), where the exponential is no denormal then and does not overflow."""
    r, bits = reduced(kit, x, 127 + SHIFT)
    return _one_and(kit, kit.polynomial(r, EXP, "exp"), bits)


def _one_and(kit: Kit, factor: Value, bits: Value) -> Value:
    """2**SHIFT plus ``factor`` times the power of two that ``bits`` are the exponent of."""
    return fma(factor, kit.power_of_two(bits), kit.f(2.0**SHIFT, "gate_shift"))  # type: ignore[no-any-return]
