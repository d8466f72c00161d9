"""exp, expm1 and tanh of f32.

The argument is reduced to r = x - n ln(2), abs(r) <= ln(2) / 2, with ln(2) in two parts (Cody and Waite, Software Manual for
the Elementary Functions, 1980); exp(r) is a polynomial.  All coefficients here and in the other modules were fitted in
float64 to the least greatest relative error, by least squares with Lawson's weights, and rounded one after the other from
the lowest power on, with the others fitted again each time.
"""

from __future__ import annotations

import math

from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, subf
from dialects.math.exact import absf, copysign, fma
from ir.core import Value
from passes.vector._kit import Kit

LOG2_E = math.log2(math.e)
LN2_HIGH, LN2_LOW = 0.693147182464599609375, -1.904654299957768e-09  # the nearest float, and what it lacks

EXP = (1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.04166825860738754, 0.008368668146431446, 0.0013821301981806755)
"""exp(r) within 3.1e-9."""
EXPM1 = (0.5, 0.16666549444198608, 0.04166685417294502, 0.00836596917361021, 0.0013898183824494481)
"""(exp(r) - 1 - r) / r**2, so that exp(r) - 1 is within 1.4e-8."""
TANH = (-0.33333060145378113, 0.13314810395240784, -0.05036460980772972)
"""(tanh(x) - x) / x**3 in x**2 for abs(x) <= 0.3, so that tanh(x) is within 1.3e-8."""


def exp(kit: Kit, x: Value, *, decaying: bool = False) -> Value:
    """Limits first: what is beyond them overflows or is 0 anyway.

    For x <= 0 one power of two is enough, with a polynomial that is 2**30 times too small: their product is rounded once, denormal or not.
    From -109 on that power is 0: what is hidden, as scores that are -inf, underflows nowhere, which takes machines a hundred times as long.
    """
    if decaying:
        r, bits = reduced(kit, kit.at_least(x, -109.0, "exp_low"), 127 + 30)
        return mulf(kit.polynomial(r, [c * 2.0**-30 for c in EXP], "exp"), kit.power_of_two(bits))  # type: ignore[no-any-return]
    limited = kit.at_least(x, -104.0, "exp_low")
    r, bits = reduced(kit, kit.at_most(limited, 89.0, "exp_high"), 254)
    return kit.scaled(kit.polynomial(r, EXP, "exp"), bits)


def reduced(kit: Kit, x: Value, bias: int) -> tuple[Value, Value]:
    """x - n ln(2), and an integer whose low 9 bits are those of n + bias."""
    n, bits = kit.rounded_multiple(x, kit.f(LOG2_E, "log2_e"), bias)
    return fma(n, kit.f(-LN2_LOW, "ln2_low_neg"), fma(n, kit.f(-LN2_HIGH, "ln2_neg"), x)), bits


def expm1(kit: Kit, x: Value) -> Value:
    """2 * (2**(n-1) * expm1(r) + (2**(n-1) - 0.5)), since 2**n itself would overflow; x where that is the result."""
    limited = kit.at_most(kit.at_least(x, -20.0, "expm1_low"), 89.0, "exp_high")
    n, bits = kit.rounded_multiple(limited, kit.f(LOG2_E, "log2_e"), 126)
    r = fma(n, kit.f(-LN2_LOW, "ln2_low_neg"), fma(n, kit.f(-LN2_HIGH, "ln2_neg"), limited))
    reduced = fma(mulf(r, r), kit.polynomial(r, EXPM1, "expm1"), r)
    scale = kit.power_of_two(bits)
    half = fma(scale, reduced, subf(scale, kit.f(0.5, "half")))
    tiny = cmpf(absf(x), kit.f(2.0**-25, "tiny"), predicate="lt")
    return select(tiny, x, addf(half, half))  # type: ignore[no-any-return]


def tanh(kit: Kit, x: Value) -> Value:
    """e / (e + 2) with e = expm1(2 * abs(x)) and the sign of x; near 0, where its three roundings add up, a polynomial.

    The reduction is that of abs(x) by multiples of ln(2) / 2; one constant is enough, for its error is small where e is.
    """
    size = kit.at_most(absf(x), 10.0, "tanh_high")
    n, bits = kit.rounded_multiple(size, kit.f(2 * LOG2_E, "log2_e_twice"), 128)
    r = fma(n, kit.f(-0.5 * LN2_HIGH, "ln2_half_neg"), size)
    doubled = [c * 2.0 ** (k + 1) for k, c in enumerate(EXPM1)]
    half = fma(mulf(r, r), kit.polynomial(r, doubled, "tanh_expm1_"), r)  # of expm1(2 * r)
    twice = kit.power_of_two(bits)
    e = fma(twice, half, fma(twice, kit.f(0.5, "half"), kit.f(-1.0, "minus_one")))
    far = divf(e, addf(e, kit.f(2.0, "two")))
    square = mulf(size, size)
    near = fma(mulf(square, size), kit.polynomial(square, TANH, "tanh"), size)
    small = cmpf(size, kit.f(0.3, "tanh_near"), predicate="lt")
    return copysign(select(small, near, far), x)  # type: ignore[no-any-return]
