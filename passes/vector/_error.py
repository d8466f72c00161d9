"""erf, erfc, normcdf and gelu of f32; see :mod:`passes.vector._exponential` for where the coefficients come from."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import divf, mulf, negf, subf
from dialects.math.exact import absf, copysign, fma
from ir.core import Value
from passes.vector._exponential import EXP, EXPM1, LN2_HIGH, LN2_LOW, LOG2_E
from passes.vector._kit import Kit
from passes.vector._power import EXP2

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
    (1.5731725692749023, 1.7068002223968506, 0.8890257477760315, 0.2679722011089325, 0.046732962131500244, 0.003889836370944977),
    (3.1463451385498047, 1.9806617498397827, 0.6532507538795471, 0.1170954555273056, 0.009751271456480026),
)
"""a, q and p: exp(x**2 / 2) * normcdf(-x) is q(x) / (a * x * q(x) + p(x)) within 7e-9 for 0 <= x <= 14.5.

The last digits are those, of many tried, for which the rounded evaluation is off least; so is the size of q and p, which decides
how often a rounding happens just above a power of two, where it is relatively large.
"""
ERFC = (
    1.7724539041519165,
    (1.65625, 2.559702157974243, 1.897908091545105, 0.8151127099990845, 0.20294047892093658, 0.02426113747060299),
    (1.65625, 1.4929531812667847, 0.7018253207206726, 0.1797979772090912, 0.02150171808898449),
)
"""The same for exp(x**2) * erfc(x), within 4e-9 for 0 <= x <= 10.3."""

GELU = (
    2.506645917892456,
    (0.776123046875, 0.692566990852356, 0.29277074337005615, 0.06569187343120575, 0.006725125014781952),
    (1.55224609375, 0.6781811714172363, 0.16676515340805054, 0.016743218526244164),
)
"""a, q and p of a shorter form of NORMCDF, within 1.8e-8 for 0 <= x <= 14.4.

Instead of exp(x**2 / 2) it has 2**(c * x**2), where c is the float nearest to log2(e) / 2.  a is what the approximation is best for; the
size of q and p is such that roundings are small near -0.14, where the result is just below a power of two, and the ratio just above.
"""

SHIFT = 40
"""Tails have powers of two from -152 to 0, which are made so much larger."""

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
    """exp(-factor * size**2) times a ratio q / (a * size * q + p).

    ``factor`` is a power of two.  What size**2 loses to rounding is added to the reduced argument, since its absolute error is
    a relative one of the result.  The form of the ratio is one in which the error of q cancels where it has grown, for large
    sizes.  The result is rounded once where it is denormal: the product with the power of two is far from the ends of the range.
    """
    square = mulf(size, size)
    lost = fma(size, size, negf(square))
    scale = kit.f(-factor, f"{name}_factor")
    argument = mulf(square, scale)
    n, bits = kit.rounded_multiple(argument, kit.f(LOG2_E, "log2_e"), 127 + SHIFT)
    r = fma(n, kit.f(-LN2_LOW, "ln2_low_neg"), fma(n, kit.f(-LN2_HIGH, "ln2_neg"), argument))
    r = fma(lost, scale, r)
    growth = fma(mulf(r, r), kit.polynomial(r, EXP[2:], "exp", 2), r)  # exp(r) - 1
    slope, q, p = mills
    steep = kit.f(slope, f"{name}_a")
    top, rest = kit.polynomial(size, q, f"{name}_q"), kit.polynomial(size, p, f"{name}_p")
    line = mulf(size, steep)
    rest = fma(fma(size, steep, negf(line)), top, rest)  # with what the product lost
    ratio = divf(top, fma(line, top, rest))
    tail = mulf(fma(ratio, growth, ratio), kit.power_of_two(bits))
    return mulf(tail, kit.f(2.0**-SHIFT, "tail_shift"))  # type: ignore[no-any-return]


def normcdf(kit: Kit, x: Value) -> Value:
    """The tail for negative x, 1 minus it else."""
    size = kit.at_most(absf(x), 14.5, "normcdf_high")
    tail = _tail(kit, size, 0.5, NORMCDF, "normcdf")
    below = cmpf(x, kit.f(0.0, "zero"), predicate="lt")
    return select(below, tail, subf(kit.f(1.0, "one"), tail))  # type: ignore[no-any-return]


def gelu(kit: Kit, x: Value) -> Value:
    """maximum(x, 0) - size * normcdf(-size), for either sign of x; -0 stays, since it is the larger one here.

    As there is an error in any case, fewer instructions do than for normcdf.  The exponent is size * slope, as an exact product, and
    what ``slope`` lost to rounding.  The product of size and q is numerator and part of the denominator, so that its error cancels,
    too.  The power of two is 2**SHIFT too large until the end, where one rounding makes the difference.
    """
    size = kit.at_most(absf(x), 14.4, "gelu_high")
    steep = kit.f(-0.5 * LOG2_E, "gelu_slope")
    slope = mulf(size, steep)
    n, bits = kit.rounded_multiple(size, slope, 127 + SHIFT)
    lost = fma(size, steep, negf(slope))
    r = fma(size, lost, fma(size, slope, negf(n)))
    growth = mulf(r, kit.polynomial(r, EXP2[1:], "exp2_", 1))  # 2**r - 1
    a, q, p = GELU
    top = mulf(size, kit.polynomial(size, q, "gelu_q"))
    ratio = divf(top, fma(top, kit.f(a, "gelu_a"), kit.polynomial(size, p, "gelu_p")))
    tail = mulf(fma(ratio, growth, ratio), kit.power_of_two(bits))
    return kit.above_zero_less(x, tail, SHIFT)


def erfc(kit: Kit, x: Value) -> Value:
    """The tail for positive x, 2 minus it else."""
    size = kit.at_most(absf(x), 10.25, "erfc_high")
    tail = _tail(kit, size, 1.0, ERFC, "erfc")
    below = cmpf(x, kit.f(0.0, "zero"), predicate="lt")
    return select(below, subf(kit.f(2.0, "two"), tail), tail)  # type: ignore[no-any-return]
