"""sin, cos and tan of f32; see :mod:`passes.vector._exponential` for where the coefficients come from.

The argument is reduced by multiples of pi/2 in integers, exactly for every float: of the product with 2/pi only what counts
modulo 4 is computed, from the 96 bits of 2/pi that matter for the exponent (Payne and Hanek, "Radian reduction for
trigonometric functions", SIGNUM Newsletter 18, 1983).  No float is nearer to a multiple of pi/2 than 2**-30 of it, so of the 62
bits behind the point more than f32 needs are left.
"""

from __future__ import annotations

import math

from dialects.arith.bits import andi, ori, shli, shrui, xori
from dialects.arith.cast import extsi, sitofp, truncf, trunci
from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.floats import divf, mulf
from dialects.arith.integers import addi, maxsi, muli, subi
from dialects.math.exact import absf, fma
from ir.core import Value
from ir.types import f32, f64, i32, i64
from passes.vector._kit import Kit, from_bits, to_bits, with_dtype

SIN = (-0.16666653752326965, 0.008332106284797192, -0.00019507846445776522)
"""(sin(x) - x) / x**3 in x**2 for abs(x) <= pi / 4, so that sin(x) is within 4.2e-9."""
COS = (0.04166664555668831, -0.0013887308305129409, 2.4432101781712845e-05)
"""(cos(x) - 1 + x**2 / 2) / x**4 likewise, so that cos(x) is within 1.2e-10."""
TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
"""The bits of 2 / pi behind the point, 32 each, and 32 zeros in front of them."""
NEAR = 0.785
"""Below, nothing has to be reduced."""

_ROUNDS = 5
"""In so many words of 2 / pi the bits for some exponent can begin."""


def sin(kit: Kit, x: Value) -> Value:
    """Of the size of x, with the sign of x."""
    quarter, sine, cosine = _reduced(kit, x)
    size = select(_is_odd(kit, quarter), cosine, sine)
    return _finished(kit, x, size, quarter, odd=True)


def cos(kit: Kit, x: Value) -> Value:
    """The sine a quarter further."""
    quarter, sine, cosine = _reduced(kit, x)
    size = select(_is_odd(kit, quarter), sine, cosine)
    return _finished(kit, x, size, addi(quarter, kit.i(1, "one_bit")), odd=False)


def tan(kit: Kit, x: Value) -> Value:
    """sin / cos, or -cos / sin where the quarter is odd."""
    quarter, sine, cosine = _reduced(kit, x)
    odd = _is_odd(kit, quarter)
    quotient = divf(select(odd, cosine, sine), select(odd, sine, cosine))
    return _finished(kit, x, quotient, shli(quarter, kit.i(1, "one_bit")), odd=True)


def _is_odd(kit: Kit, quarter: Value) -> Value:
    one = kit.i(1, "one_bit")
    return cmpi(andi(quarter, one), one, predicate="eq")  # type: ignore[no-any-return]


def _finished(kit: Kit, x: Value, size: Value, quarter: Value, *, odd: bool) -> Value:
    """The other sign where the second bit of ``quarter`` says so, and for negative x of an odd function; NaN for infinities and NaN."""
    sign = shli(andi(quarter, kit.i(2, "two_bits")), kit.i(30, "thirty"))
    if odd:
        sign = xori(sign, andi(to_bits(x), kit.i(-(2**31), "sign_bit")))
    signed = from_bits(xori(to_bits(size), sign))
    finite = cmpf(absf(x), kit.f(math.inf, "inf"), predicate="lt")
    return select(finite, signed, kit.f(math.nan, "nan"))  # type: ignore[no-any-return]


def _reduced(kit: Kit, x: Value) -> tuple[Value, Value, Value]:
    """How many quarters of a turn the size of x is next to (modulo 4), and the sine and cosine of the rest."""
    size = absf(x)
    quarter, rest = _quarters(kit, size)
    near = cmpf(size, kit.f(NEAR, "trigonometric_near"), predicate="lt")
    quarter, rest = select(near, kit.i(0, "no_bits"), quarter), select(near, size, rest)
    square = mulf(rest, rest)
    sine = fma(mulf(square, rest), kit.polynomial(square, SIN, "sin"), rest)
    half = fma(square, kit.f(-0.5, "minus_half"), kit.f(1.0, "one"))
    cosine = fma(mulf(square, square), kit.polynomial(square, COS, "cos"), half)
    return quarter, sine, cosine


def _quarters(kit: Kit, size: Value) -> tuple[Value, Value]:
    """size * 2 / pi modulo 4 as the nearest whole number, and what is left as an angle."""
    bits = to_bits(size)
    long = with_dtype(bits, i64)
    digits = ori(andi(bits, kit.i(0x7FFFFF, "digits_mask")), kit.i(0x800000, "leading_digit"))
    place = maxsi(subi(shrui(bits, kit.i(23, "mantissa_bits")), kit.i(120, "first_place")), kit.i(0, "no_bits"))
    number = extsi(digits, result_type=long)
    high, middle, low = (muli(number, w) for w in _window(kit, place))
    word = kit.long(32, "word_bits")
    turns = addi(addi(shli(high, word), middle), shrui(low, word))  # the last 62 bits are behind the point
    count = shrui(addi(turns, kit.long(1 << 61, "half_quarter")), kit.long(62, "quarter_bits"))
    rest = sitofp(subi(turns, shli(count, kit.long(62, "quarter_bits"))), result_type=with_dtype(bits, f64))
    angle = truncf(mulf(rest, kit.double(math.pi / 2 * 2.0**-62, "quarter_turn")), result_type=with_dtype(bits, f32))
    return trunci(count, result_type=with_dtype(bits, i32)), angle


def _window(kit: Kit, place: Value) -> list[Value]:
    """Three words of the bits of 2 / pi from a place on."""
    first = shrui(place, kit.i(5, "five"))
    later = [cmpi(first, kit.i(n, f"word{n}"), predicate="ge") for n in range(1, _ROUNDS)]
    shift = extsi(andi(place, kit.i(31, "in_word")), result_type=with_dtype(place, i64))
    pairs = [kit.long((a << 32 | b) - (a >> 31 << 64), f"two_over_pi{n}") for n, (a, b) in enumerate(zip(TWO_OVER_PI, TWO_OVER_PI[1:], strict=False))]
    words = []
    for n in range(3):
        chosen = pairs[n]
        for number, flag in enumerate(later, n + 1):
            chosen = select(flag, pairs[number], chosen)
        words.append(shrui(shli(chosen, shift), kit.long(32, "word_bits")))
    return words
