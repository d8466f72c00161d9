"""sigmoid and silu of f32, and gelu by tanh, which is silu but for the argument of the exponential.

All three are a / (1 + exp(-z)) for either sign of z.  To keep exp(-z) from overflowing where the result is no zero yet, both terms
of the denominator are made 2**64 times smaller, and the quotient is so much too large.
"""

from __future__ import annotations

import math

from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, negf, subf
from dialects.math.exact import fma
from ir.core import Value
from passes.vector._exponential import shifted_exp
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
TANH_HIGHEST, TANH_LOWEST = 6.0, -11.0
"""The same limits for gelu by tanh."""


def sigmoid(kit: Kit, x: Value) -> Value:
    """The numerator is 2**SHIFT, so that a denormal result is rounded once."""
    limited = kit.at_most(kit.at_least(x, LOWEST, "gate_low"), HIGHEST, "gate_high")
    small = kit.f(2.0**SHIFT, "gate_shift")
    return divf(small, addf(shifted_exp(kit, negf(limited), SHIFT), small))  # type: ignore[no-any-return]


def silu(kit: Kit, x: Value) -> Value:
    """x / (1 + exp(-x)); x is limited first, for -inf / inf would be NaN."""
    finite = kit.at_least(x, LOWEST, "gate_low")
    return _gated(kit, finite, shifted_exp(kit, negf(kit.at_most(finite, HIGHEST, "gate_high")), SHIFT), HIGHEST, "gate_high")


def gelu_tanh(kit: Kit, x: Value) -> Value:
    """x / (1 + 2**(-x * slope)).

    The power makes the absolute error of the exponent, up to 160, a relative one.  So the slope is kept in two parts; what it loses
    is known exactly, as a difference from SLOPE_HIGH is, and what its square loses by a fused multiply-add.
    """
    finite = kit.at_least(x, TANH_LOWEST, "gelu_tanh_low")
    s = kit.at_most(finite, TANH_HIGHEST, "gelu_tanh_high")
    cubic, start = kit.f(-CUBIC_HIGH, "gelu_tanh_cubic"), kit.f(-SLOPE_HIGH, "gelu_tanh_slope")
    square = mulf(s, s)
    slope = fma(square, cubic, start)
    lost = fma(fma(s, s, negf(square)), cubic, fma(square, cubic, subf(start, slope)))
    lost = addf(lost, fma(square, kit.f(CUBIC_HIGH - CUBIC, "gelu_tanh_cubic_low"), kit.f(SLOPE_HIGH - SLOPE, "gelu_tanh_slope_low")))
    n, bits = kit.rounded_multiple(s, slope, 127 + SHIFT)
    r = fma(s, lost, fma(s, slope, negf(n)))
    power = mulf(kit.polynomial(r, EXP2, "exp2_"), kit.power_of_two(bits))
    return _gated(kit, finite, power, TANH_HIGHEST, "gelu_tanh_high")


def _gated(kit: Kit, x: Value, power: Value, highest: float, name: str) -> Value:
    """x / (1 + power / 2**SHIFT) for x up to ``highest``, x above."""
    small = kit.f(2.0**SHIFT, "gate_shift")
    gated = mulf(divf(x, addf(power, small)), small)
    return select(cmpf(x, kit.f(highest, name), predicate="gt"), x, gated)  # type: ignore[no-any-return]
