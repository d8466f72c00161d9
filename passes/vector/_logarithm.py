"""log, log1p and rsqrt of f32; see :mod:`passes.vector._exponential` for where the coefficients come from."""

from __future__ import annotations

import math

from dialects.arith.bits import andi
from dialects.arith.cast import sitofp
from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, subf
from dialects.arith.integers import addi, subi
from dialects.math.exact import copysign, fma
from dialects.math.functions import sqrt
from ir.core import Value
from ir.types import f32
from passes.vector._kit import Kit, from_bits, to_bits, with_dtype

LOG = (
    -0.5,
    0.3333333134651184,
    -0.2500081956386566,
    0.2000124156475067,
    -0.166234090924263,
    0.14201581478118896,
    -0.1315961331129074,
    0.12762197852134705,
    -0.0763639509677887,
)
"""(log(1 + f) - f) / f**2 for sqrt(0.5) <= 1 + f <= sqrt(2), so that log(1 + f) is within 5.9e-9."""

_ROOT_HALF = 0x3F3504F3  # bits of sqrt(0.5)
_EXPONENT = -0x00800000  # a mask


def exponent_bits(kit: Kit, x: Value) -> Value:
    """The exponent of x / m, with sqrt(0.5) <= m < sqrt(2), where the bits of a float have it."""
    shifted = subi(to_bits(x), kit.i(_ROOT_HALF, "root_half_bits"))
    return andi(shifted, kit.i(_EXPONENT, "exponent_mask"))  # type: ignore[no-any-return]


def _finish(kit: Kit, f: Value, exponent: Value) -> Value:
    """log(1 + f) and what the exponent adds."""
    near = fma(mulf(f, f), kit.polynomial(f, LOG, "log"), f)
    whole = sitofp(exponent, result_type=with_dtype(exponent, f32))
    return fma(whole, kit.f(math.log(2.0) * 2.0**-23, "ln2_unit"), near)  # type: ignore[no-any-return]


def _special(kit: Kit, x: Value, result: Value, pole: float, name: str) -> Value:
    """The result, but inf and NaN for themselves, -inf at the pole and NaN below."""
    result = select(cmpf(x, kit.f(math.inf, "inf"), predicate="lt"), result, x)
    start = kit.f(pole, name)
    result = select(cmpf(x, start, predicate="eq"), kit.f(-math.inf, "minus_inf"), result)
    return select(cmpf(x, start, predicate="lt"), kit.f(math.nan, "nan"), result)  # type: ignore[no-any-return]


def normalized(kit: Kit, x: Value) -> tuple[Value, Value]:
    """Denormals are multiplied by 2**23, so that their bits are like those of others; and bits to add to exponents for that."""
    denormal = cmpf(x, kit.f(2.0**-126, "least_normal"), predicate="lt")
    normal = select(denormal, mulf(x, kit.f(2.0**23, "two_23")), x)
    return normal, select(denormal, kit.i(-(23 << 23), "two_23_exponent"), kit.i(0, "no_bits"))


def log(kit: Kit, x: Value) -> Value:
    """n ln(2) + log(m) with x = 2**n m."""
    normal, moved = normalized(kit, x)
    exponent = exponent_bits(kit, normal)
    f = subf(from_bits(subi(to_bits(normal), exponent)), kit.f(1.0, "one"))
    return _special(kit, x, _finish(kit, f, addi(exponent, moved)), 0.0, "zero")


def log1p(kit: Kit, x: Value) -> Value:
    """With 2**n from 1 + x: f = x / 2**n + (1 / 2**n - 1) is rounded once, so the rounding of 1 + x does no harm.

    1 / 2**n may be denormal, four times that is not.
    """
    exponent = exponent_bits(kit, addf(x, kit.f(1.0, "one")))
    part = from_bits(subi(to_bits(x), exponent))
    scale = from_bits(subi(kit.i(0x40800000, "four_bits"), exponent))
    f = addf(part, fma(scale, kit.f(0.25, "quarter"), kit.f(-1.0, "minus_one")))
    return _special(kit, x, copysign(_finish(kit, f, exponent), x), -1.0, "minus_one")


def rsqrt(kit: Kit, x: Value) -> Value:
    """The root of the reciprocal, which halves the error of the first rounding; both are far from the ends of the range.

    What is not above 0 is told apart beside it, so that the result waits for one choice alone.
    """
    below, zero = cmpf(x, kit.f(1.0, "one"), predicate="lt"), kit.f(0.0, "zero")
    scale = select(below, kit.f(2.0**32, "two_32"), kit.f(2.0**-32, "two_32_inverse"))
    back = select(below, kit.f(2.0**16, "two_16"), kit.f(2.0**-16, "two_16_inverse"))
    root = mulf(sqrt(divf(kit.f(1.0, "one"), mulf(x, scale))), back)
    other = select(cmpf(x, zero, predicate="eq"), copysign(kit.f(math.inf, "inf"), x), kit.f(math.nan, "nan"))
    return select(cmpf(x, zero, predicate="gt"), root, other)  # type: ignore[no-any-return]
