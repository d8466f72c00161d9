"""powf of f32; see :mod:`passes.vector._exponential` for where the coefficients come from.

The error of log2(x) is multiplied by y, up to 150, and is then a relative one of the result.  So the logarithm is kept in two
floats whose sum is good to about 2**-44; the error of a product is found by a fused multiply-add, that of a sum by subtraction
(Dekker, "A floating-point technique for extending the available precision", Numer. Math. 18, 1971).
"""

from __future__ import annotations

import math

from dialects.arith.bits import andi, ori
from dialects.arith.cast import sitofp
from dialects.arith.comparison import cmpf, select
from dialects.arith.floats import addf, divf, mulf, negf, subf
from dialects.arith.integers import addi, subi
from dialects.math.exact import absf, copysign, fma, roundeven
from ir.core import Value
from ir.types import f32
from passes.vector._kit import Kit, from_bits, to_bits, with_dtype
from passes.vector._logarithm import exponent_bits, normalized

EXP2 = (1.0, 0.6931471824645996, 0.24022647738456726, 0.05550359562039375, 0.009618500247597694, 0.0013390976237133145, 0.00015328907466027886)
"""2**r for abs(r) <= 0.5, within 3e-9."""
FIRST, FIRST_LOW = 2.885390043258667, 3.851926067000022e-08  # 2 / ln(2)
THIRD, THIRD_LOW = 0.9617967009544373, -7.028461812552678e-09  # a third of that
LOG2 = (0.5770779848098755, 0.41220593452453613, 0.32001161575317383, 0.2817215323448181)
"""The other terms of log2((1 + s) / (1 - s)) = s * (FIRST + THIRD * z + LOG2(z) * z**2), with z = s**2 <= 0.0295, within 1e-13."""

Pair = tuple[Value, Value]
"""A number as a float and a small correction."""


def _quotient(kit: Kit, m: Value) -> Pair:
    """(m - 1) / (m + 1), for m from sqrt(0.5) to sqrt(2)."""
    one = kit.f(1.0, "one")
    f, d = subf(m, one), addf(m, one)  # the difference is exact
    lost = subf(m, subf(d, one))
    inverse = divf(one, d)
    s = mulf(f, inverse)
    rest = fma(negf(s), lost, fma(negf(s), d, f))
    return s, mulf(rest, inverse)


def _log2_near_one(kit: Kit, m: Value) -> Pair:
    s, s_low = _quotient(kit, m)
    z = mulf(s, s)
    z_low = fma(addf(s, s), s_low, fma(s, s, negf(z)))
    tail, third, first = kit.polynomial(z, LOG2, "log2_", 5), kit.f(THIRD, "log2_3"), kit.f(FIRST, "log2_1")
    t = fma(z, tail, third)
    t_low = addf(fma(z, tail, subf(third, t)), kit.f(THIRD_LOW, "log2_3_low"))
    p = mulf(z, t)
    p_low = fma(z, t_low, fma(z_low, t, fma(z, t, negf(p))))
    u = addf(first, p)
    u_low = addf(addf(subf(first, u), p), addf(p_low, kit.f(FIRST_LOW, "log2_1_low")))
    log = mulf(s, u)
    return log, fma(s, u_low, fma(s_low, u, fma(s, u, negf(log))))


def _log2(kit: Kit, size: Value) -> Pair:
    """Of a number >= 0: exactly 0 for 1, -inf for 0, inf and NaN for themselves (with corrections that say nothing)."""
    normal, moved = normalized(kit, size)
    exponent = exponent_bits(kit, normal)
    near, near_low = _log2_near_one(kit, from_bits(subi(to_bits(normal), exponent)))
    whole = addi(exponent, moved)
    n = mulf(sitofp(whole, result_type=with_dtype(whole, f32)), kit.f(2.0**-23, "unit"))
    log = addf(n, near)
    low = addf(addf(subf(n, log), near), near_low)
    log = select(cmpf(size, kit.f(math.inf, "inf"), predicate="lt"), log, size)
    return select(cmpf(size, kit.f(0.0, "zero"), predicate="eq"), kit.f(-math.inf, "minus_inf"), log), low


def _exp2(kit: Kit, x: Value, low: Value) -> Value:
    limited = kit.at_most(kit.at_least(x, -200.0, "exp2_low"), 200.0, "exp2_high")
    low = select(cmpf(absf(x), kit.f(200.0, "exp2_high"), predicate="lt"), low, kit.f(0.0, "zero"))
    n, bits = kit.rounded_multiple(limited, kit.f(1.0, "one"), 254)
    return kit.scaled(kit.polynomial(addf(subf(limited, n), low), EXP2, "exp2_"), bits)


def powf(kit: Kit, x: Value, y: Value) -> Value:
    """2**(y * log2(abs(x))) with the sign that y's being odd gives; the rules for special values are those of IEEE 754 ``pow``."""
    zero, one = kit.f(0.0, "zero"), kit.f(1.0, "one")
    log, log_low = _log2(kit, absf(x))
    product = mulf(y, log)
    low = fma(y, log_low, fma(y, log, negf(product)))
    of_one = cmpf(log, zero, predicate="eq")  # to the power of infinities and NaN too
    size = _exp2(kit, select(of_one, zero, product), select(of_one, zero, low))
    half = mulf(y, kit.f(0.5, "half"))
    whole = cmpf(roundeven(y), y, predicate="eq")
    odd = andi(whole, cmpf(roundeven(half), half, predicate="ne"))
    signed = copysign(size, select(odd, x, one))
    not_negative = ori(cmpf(x, zero, predicate="ge"), cmpf(x, kit.f(-math.inf, "minus_inf"), predicate="eq"))
    result = select(ori(whole, not_negative), signed, kit.f(math.nan, "nan"))
    return select(cmpf(y, zero, predicate="eq"), one, result)  # type: ignore[no-any-return]
