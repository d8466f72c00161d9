"""Expressions of C as text, with what is needed to put them into others: how tightly they bind, how large they are.

An integer has a bound of its absolute value, from which its type follows: ``int`` where that is enough, else ``go_index`` (64 bits).
"""

from __future__ import annotations

from dataclasses import dataclass

PRIMARY, UNARY, PRODUCT, SUM, SHIFT, ORDER, EQUALITY, BIT_AND, BIT_XOR, BIT_OR, AND, OR, CHOICE = range(13)
"""Levels of precedence, the ones that bind most tightly first."""

WIDE = 1 << 63
NARROW = 1 << 31
"""Numbers whose absolute value is below are ``int``."""


@dataclass(frozen=True, slots=True)
class Expr:
    """``cost`` counts operations, so that expressions don't grow without end; ``bound`` is for integers of type index.

    ``wide`` says that an integer of type index is a ``go_index`` in C, and no ``int``.
    """

    text: str
    level: int = PRIMARY
    cost: int = 0
    bound: int = WIDE
    wide: bool = True

    def at(self, level: int) -> str:
        """The text as an operand where operators up to ``level`` need no parentheses."""
        return self.text if self.level <= level else f"({self.text})"

    def left(self, level: int) -> str:
        """The text as left operand of an operator of ``level``; bit operations and comparisons inside get parentheses."""
        return self.at(level if level in (PRODUCT, SUM, AND, OR) else UNARY if level in (SHIFT, BIT_AND, BIT_XOR, BIT_OR) else SUM)

    def right(self, level: int) -> str:
        """The text as right operand of an operator of ``level`` that isn't associative."""
        if level in (PRODUCT, SUM):
            return self.at(level - 1)
        return self.at(level if level in (AND, OR) else UNARY if level >= BIT_AND or level == SHIFT else SUM)


def binary(x: Expr, operator: str, y: Expr, level: int) -> Expr:
    """``x operator y``."""
    if level in (AND, OR) and {x.level, y.level} & {AND, OR}:  # compilers warn of a && b || c
        left, right = (e.at(level if e.level == level else EQUALITY) for e in (x, y))
        return Expr(f"{left} {operator} {right}", level, x.cost + y.cost + 1)
    return Expr(f"{x.left(level)} {operator} {y.right(level)}", level, x.cost + y.cost + 1)


def call(function: str, *arguments: Expr) -> Expr:
    """``function(x, y)``."""
    return Expr(f"{function}({', '.join(a.text for a in arguments)})", PRIMARY, sum(a.cost for a in arguments) + 1)


def cast(type_: str, x: Expr) -> Expr:
    """``(type)x``."""
    return Expr(f"({type_}){x.at(PRIMARY)}", UNARY, x.cost + 1)


def integer(value: int) -> Expr:
    """A number of type index."""
    wide = not -NARROW < value < NARROW
    text = f"{value}LL" if wide else str(value)
    if value == -(1 << 63):
        text = "-9223372036854775807LL - 1"
    return Expr(text, PRIMARY if value >= 0 else SUM if value == -(1 << 63) else UNARY, 0, abs(value), wide)


def widened(x: Expr) -> Expr:
    """An integer of type index as a ``go_index``."""
    if not x.wide and x.text.lstrip("-").isdigit():
        return Expr(f"{x.text}LL", x.level, x.cost, x.bound, True)
    return x if x.wide else Expr(f"(go_index){x.at(PRIMARY)}", UNARY, x.cost, x.bound, True)


def _wrapping(function: str, x: Expr, y: Expr) -> Expr:
    """Numbers so large that the result may need more than 64 bits: it wraps around."""
    return Expr(f"{function}({x.text}, {y.text})", PRIMARY, x.cost + y.cost + 1)


def plus(x: Expr, y: Expr, known: int = WIDE) -> Expr:
    """x + y of type index, in 64 bits where 32 may not be enough; the absolute value is known to be at most ``known``."""
    bound = min(x.bound + y.bound, known)
    if bound >= WIDE:
        return _wrapping("go_add_i64", x, y)
    if not x.wide and not y.wide and bound >= NARROW:
        x = widened(x)
    if y.level == UNARY and y.text.startswith("-"):
        return Expr(f"{x.left(SUM)} - {y.text[1:]}", SUM, x.cost + y.cost + 1, bound, x.wide or y.wide)
    return Expr(f"{x.left(SUM)} + {y.left(SUM)}", SUM, x.cost + y.cost + 1, bound, x.wide or y.wide)


def minus(x: Expr, y: Expr) -> Expr:
    """x - y of type index."""
    bound = x.bound + y.bound
    if bound >= WIDE:
        return _wrapping("go_sub_i64", x, y)
    if not x.wide and not y.wide and bound >= NARROW:
        x = widened(x)
    return Expr(f"{x.left(SUM)} - {y.right(SUM)}", SUM, x.cost + y.cost + 1, bound, x.wide or y.wide)


def times(x: Expr, y: Expr, known: int = WIDE) -> Expr:
    """x * y of type index, whose absolute value is known to be at most ``known``."""
    bound = min(x.bound * y.bound, known)
    if x.text == "1":
        return y
    if y.text == "1":
        return x
    if bound >= WIDE:
        return _wrapping("go_mul_i64", x, y)
    if not x.wide and not y.wide and bound >= NARROW:
        x = widened(x)
    return Expr(f"{x.left(PRODUCT)} * {y.right(PRODUCT)}", PRODUCT, x.cost + y.cost + 1, bound, x.wide or y.wide)
