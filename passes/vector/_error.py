"""erf, erfc and normcdf of f32; see :mod:`passes.vector._exponential` for where the coefficients come from."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, negf, subf
from dialects.math import absf, copysign, fma
from ir.core import Value
from passes.vector._exponential import EXP, EXPM1, LN2_HIGH, LN2_LOW, LOG2_E
from passes.vector._kit import Kit

ERF = (
    0.12837916612625122,
    0.6366195678710938,
    0.10277630388736725,
    -0.01914782077074051,
    -0.00016951491124927998,
    0.0016756972763687372,
    -0.0006373818032443523,
    0.00011886883294209838,
    -9.389123079017736e-06,
)
"""-log(erfc(x)) / x - 1 for 0 <= x <= 3.93, so that erf(x) is within 4.3e-9."""

NORMCDF = (
    (0.5, 0.4375946521759033, 0.18268218636512756, 0.040436673909425735, 0.004084065556526184),
    (1.0, 1.6730741262435913, 1.2002806663513184, 0.46800145506858826, 0.10136627405881882, 0.010237111710011959),
)
"""Numerator and denominator of exp(x**2 / 2) * normcdf(-x) for 0 <= x <= 14.5, within 1.9e-8."""
ERFC = (
    (1.0, 1.2380846738815308, 0.7310411334037781, 0.228858083486557, 0.03268177807331085),
    (1.0, 2.366464138031006, 2.401303291320801, 1.3242757320404053, 0.4056660830974579, 0.057926274836063385),
)
"""Numerator and denominator of exp(x**2) * erfc(x) for 0 <= x <= 10.3, within 1.5e-8."""


def erf(kit: Kit, x: Value) -> Value:
    """-expm1(-q) with the sign of x, where q = -log(erfc(abs(x))) is a polynomial: smooth, and without cancellation near 0.

    With -q = n ln(2) - s that is 1 - 2**n + 2**n * (1 - exp(-s)).
    """
    size = kit.at_most(absf(x), 3.93, "erf_high")
    q = fma(kit.polynomial(size, ERF, "erf"), size, size)
    n, bits = kit.rounded_multiple(q, kit.f(-LOG2_E, "log2_e_neg"), 127)
    s = fma(n, kit.f(LN2_HIGH, "ln2"), q)
    alternating = tuple(c * (-1.0) ** (k + 1) for k, c in enumerate(EXPM1))
    reduced = fma(mulf(s, s), kit.polynomial(s, alternating, "erf_expm1_"), s)
    scale = kit.power_of_two(bits)
    return copysign(fma(scale, reduced, subf(kit.f(1.0, "one"), scale)), x)  # type: ignore[no-any-return]


def _tail(kit: Kit, size: Value, factor: float, ratio: tuple[Sequence[float], Sequence[float]], name: str) -> Value:
    """exp(-factor * size**2) times a ratio of polynomials; ``factor`` is a power of two.

    What size**2 loses to rounding is added to the reduced argument, since its absolute error is a relative one of the result.
    """
    square = mulf(size, size)
    lost = fma(size, size, negf(square))
    n, bits = kit.rounded_multiple(square, kit.f(-factor * LOG2_E, f"{name}_log2_e"), 254)
    s = fma(n, kit.f(LN2_HIGH / factor, f"{name}_ln2"), square)
    s = addf(fma(n, kit.f(LN2_LOW / factor, f"{name}_ln2_low"), s), lost)
    exponential = kit.polynomial(s, tuple(c * (-factor) ** k for k, c in enumerate(EXP)), f"{name}_exp")
    numerator, denominator = (kit.polynomial(size, p, f"{name}_{s}") for p, s in zip(ratio, "pq", strict=True))
    return kit.scaled(divf(mulf(numerator, exponential), denominator), bits)


def normcdf(kit: Kit, x: Value) -> Value:
    """The tail for negative x, 1 minus it else."""
    size = kit.at_most(absf(x), 14.5, "normcdf_high")
    tail = _tail(kit, size, 0.5, NORMCDF, "normcdf")
    below = cmpf(x, kit.f(0.0, "zero"), predicate="lt")
    return select(below, tail, subf(kit.f(1.0, "one"), tail))  # type: ignore[no-any-return]


def erfc(kit: Kit, x: Value) -> Value:
    """The tail for positive x, 2 minus it else."""
    size = kit.at_most(absf(x), 10.25, "erfc_high")
    tail = _tail(kit, size, 1.0, ERFC, "erfc")
    below = cmpf(x, kit.f(0.0, "zero"), predicate="lt")
    return select(below, subf(kit.f(2.0, "two"), tail), tail)  # type: ignore[no-any-return]
