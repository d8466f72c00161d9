"""Integer polynomials over numbered atoms: what index expressions are while code is made.

A polynomial is a dictionary from monomials (sorted tuples of atom numbers, ``()`` for the constant) to coefficients that
are not zero.  Polynomials are not changed once they are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

Monomial = tuple[int, ...]
Poly = dict[Monomial, int]

ZERO: Poly = {}


def constant(number: int) -> Poly:
    """The polynomial that is a number."""
    return {(): number} if number else ZERO


def add(a: Poly, b: Poly, factor: int = 1) -> Poly:
    """a + factor * b."""
    if not b or not factor:
        return a
    result = dict(a)
    for monomial, coefficient in b.items():
        total = result.get(monomial, 0) + factor * coefficient
        if total:
            result[monomial] = total
        else:
            result.pop(monomial, None)
    return result


def scale(a: Poly, factor: int) -> Poly:
    """factor * a."""
    if factor == 1:
        return a
    return {m: c * factor for m, c in a.items()} if factor else ZERO


def multiply(a: Poly, b: Poly) -> Poly:
    """a * b."""
    if len(b) == 1 and () in b:
        return scale(a, b[()])
    if len(a) == 1 and () in a:
        return scale(b, a[()])
    result: Poly = {}
    for left, c in a.items():
        for right, d in b.items():
            monomial = tuple(sorted(left + right)) if left and right else left or right
            total = result.get(monomial, 0) + c * d
            if total:
                result[monomial] = total
            else:
                result.pop(monomial, None)
    return result


def product(factors: Iterable[Poly]) -> Poly:
    """The product of any number of polynomials."""
    result: Poly = {(): 1}
    for factor in factors:
        result = multiply(result, factor)
    return result


def as_number(a: Poly) -> int | None:
    """The number that the polynomial is; None when it has atoms."""
    if not a:
        return 0
    return a[()] if len(a) == 1 and () in a else None


def split_constant(a: Poly) -> tuple[Poly, int]:
    """The polynomial without its constant, and the constant."""
    if () not in a:
        return a, 0
    return {m: c for m, c in a.items() if m}, a[()]


def divide_by_content(a: Poly) -> Poly:
    """A polynomial that is >= 0 for the same integers: coefficients without their common divisor, the constant rounded down."""
    divisor = 0
    for monomial, coefficient in a.items():
        if monomial:
            divisor = math.gcd(divisor, coefficient)
            if divisor == 1:
                return a
    if divisor <= 1:
        return a
    return {m: q for m, c in a.items() if (q := c // divisor)}


def divisor_of(a: Poly) -> int:
    """A number that divides every value of the polynomial; 0 for the polynomial 0."""
    divisor = 0
    for coefficient in a.values():
        divisor = math.gcd(divisor, coefficient)
    return divisor
