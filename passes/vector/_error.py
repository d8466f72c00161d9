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
    2.5066282749176025,
    (1.0, 0.9131186604499817, 0.39384451508522034, 0.09057540446519852, 0.009633305482566357),
    (2.0, 0.9153796434402466, 0.22918838262557983, 0.024035433307290077, 2.45966975853662e-06),
)
"""a, q and p: exp(x**2 / 2) * normcdf(-x) is q(x) / (a * x * q(x) + p(x)) within 1.8e-8 for 0 <= x <= 14.5."""
ERFC = (
    1.7724539041519165,
    (1.0, 1.2918113470077515, 0.7881876230239868, 0.25642627477645874, 0.03858369588851929),
    (1.0, 0.6477376222610474, 0.2293865829706192, 0.03403772786259651, 4.7986936806410085e-06),
)
"""The same for exp(x**2) * erfc(x), within 1.8e-8 for 0 <= x <= 10.3."""

Mills = tuple[float, Sequence[float], Sequence[float]]


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


def _tail(kit: Kit, size: Value, factor: float, mills: Mills, name: str) -> Value:
    """exp(-factor * size**2) times a ratio q / (a * size * q + p); ``factor`` is a power of two.

    What size**2 loses to rounding is added to the reduced argument, since its absolute error is a relative one of the result.
    The form of the ratio is one in which the error of q cancels where it has grown, for large sizes.
    """
    square = mulf(size, size)
    lost = fma(size, size, negf(square))
    n, bits = kit.rounded_multiple(square, kit.f(-factor * LOG2_E, f"{name}_log2_e"), 254)
    s = fma(n, kit.f(LN2_HIGH / factor, f"{name}_ln2"), square)
    s = addf(fma(n, kit.f(LN2_LOW / factor, f"{name}_ln2_low"), s), lost)
    slopes = [c * (-factor) ** (k + 1) for k, c in enumerate(EXP[1:])]
    growth = mulf(s, kit.polynomial(s, slopes, f"{name}_exp"))  # exp(-factor * s) - 1
    slope, q, p = mills
    top = kit.polynomial(size, q, f"{name}_q")
    ratio = divf(top, fma(mulf(size, kit.f(slope, f"{name}_a")), top, kit.polynomial(size, p, f"{name}_p")))
    return kit.scaled(fma(ratio, growth, ratio), bits)


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
