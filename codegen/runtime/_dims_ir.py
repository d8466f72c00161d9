"""Dimension expressions as LLVM IR in 64 bits, with bounds that prove that nothing overflows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ir.dims import Dim, DimExpr, DimFunction, symbols_of

DIMENSION_LIMIT = 2**31 - 1
"""The largest dimension that the fast path takes."""

_WORD = 2**63 - 1


class Unsupported(Exception):
    """An expression that can't be computed in 64 bits for sure."""


@dataclass(frozen=True, slots=True)
class Number:
    """A constant or register, and the least and largest value that it can have."""

    text: str
    low: int
    high: int

    @staticmethod
    def of(value: int) -> Number:
        return Number(str(value), value, value)


class Lines:
    """IR text that is being written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def name(self) -> str:
        """A register that was not used yet."""
        self._count += 1
        return f"%v{self._count}"

    def add(self, line: str) -> None:
        """A line without a result."""
        self.lines.append(f"  {line}")

    def let(self, expression: str) -> str:
        """The register that holds the result of an instruction."""
        name = self.name()
        self.lines.append(f"  {name} = {expression}")
        return name

    def label(self, name: str) -> None:
        """Begins a block."""
        self.lines.append(f"{name}:")

    def all_of(self, conditions: list[str]) -> str:
        """Whether all the conditions hold."""
        result = "true"
        for condition in conditions:
            result = condition if result == "true" else self.let(f"and i1 {result}, {condition}")
        return result


class DimWriter:
    """Writes instructions that compute dimensions from named ones."""

    def __init__(self, out: Lines) -> None:
        self.out = out
        self.known: dict[str, Number] = {}

    def _checked(self, text: str, low: int, high: int) -> Number:
        if low < -_WORD or high > _WORD:
            raise Unsupported
        return Number(text, low, high)

    def sum(self, a: Number, b: Number) -> Number:
        if a.text == "0":
            return b
        if b.text == "0":
            return a
        return self._checked(self.out.let(f"add i64 {a.text}, {b.text}"), a.low + b.low, a.high + b.high)

    def difference(self, a: Number, b: Number) -> Number:
        return self._checked(self.out.let(f"sub i64 {a.text}, {b.text}"), a.low - b.high, a.high - b.low)

    def product(self, a: Number, b: Number) -> Number:
        if a.text == "1":
            return b
        if b.text == "1":
            return a
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return self._checked(self.out.let(f"mul i64 {a.text}, {b.text}"), min(corners), max(corners))

    def value(self, dim: Dim) -> Number:
        """The value of an expression of known names.  Raises Unsupported."""
        if isinstance(dim, int):
            return self._checked(str(dim), dim, dim)
        if not isinstance(dim, DimExpr):
            raise Unsupported
        total = Number.of(0)
        for monomial, coefficient in dim.terms:
            term = Number.of(coefficient)
            for atom in monomial:
                term = self.product(term, self._atom(atom))
            total = self.sum(total, term)
        return total

    def _atom(self, atom: str | DimFunction) -> Number:
        if isinstance(atom, str):
            if atom not in self.known:
                raise Unsupported
            return self.known[atom]
        arguments = [self.value(a) for a in atom.args]
        if atom.kind in ("min", "max"):
            pick: Callable[..., int] = min if atom.kind == "min" else max
            result = arguments[0]
            for other in arguments[1:]:
                smaller = self.out.let(f"icmp {'slt' if atom.kind == 'min' else 'sgt'} i64 {result.text}, {other.text}")
                text = self.out.let(f"select i1 {smaller}, i64 {result.text}, i64 {other.text}")
                result = Number(text, pick(result.low, other.low), pick(result.high, other.high))
            return result
        a, b = arguments
        if b.low <= 0 or atom.kind not in ("floordiv", "ceildiv", "mod"):
            raise Unsupported
        if atom.kind == "mod":
            return self._mod(a, b)
        if atom.kind == "floordiv":
            return self._floordiv(a, b)
        return self.difference(Number.of(0), self._floordiv(self.difference(Number.of(0), a), b))

    def _floordiv(self, a: Number, b: Number) -> Number:
        text = self.out.let(f"sdiv i64 {a.text}, {b.text}")
        if a.low < 0:
            rest = self.out.let(f"srem i64 {a.text}, {b.text}")
            below = self.out.let(f"icmp slt i64 {rest}, 0")
            text = self.out.let(f"add i64 {text}, {self.out.let(f'sext i1 {below} to i64')}")
        corners = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
        return Number(text, min(corners), max(corners))

    def _mod(self, a: Number, b: Number) -> Number:
        text = self.out.let(f"srem i64 {a.text}, {b.text}")
        if a.low < 0:
            below = self.out.let(f"icmp slt i64 {text}, 0")
            more = self.out.let(f"select i1 {below}, i64 {b.text}, i64 0")
            text = self.out.let(f"add i64 {text}, {more}")
        return Number(text, 0, b.high - 1)

    # -- finding names ---------------------------------------------------------------------------------------------

    def bind(self, dim: Dim, size: str, conditions: list[str]) -> bool:
        """Reads ``dim = size``: finds the one name that is open, or compares; False when more than one is open."""
        open_names = [n for n in symbols_of(dim) if n not in self.known]
        given = Number(size, 0, DIMENSION_LIMIT)
        if not open_names:
            conditions.append(self.out.let(f"icmp eq i64 {self.value(dim).text}, {size}"))
            return True
        if len(open_names) > 1:
            return False
        assert isinstance(dim, DimExpr)
        (name,) = open_names
        with_name = [(m, c) for m, c in dim.terms if (name in m) or any(isinstance(a, DimFunction) and name in symbols_of(_as_dim(a)) for a in m)]
        if len(with_name) != 1 or with_name[0][0] != (name,):
            raise Unsupported
        coefficient = with_name[0][1]
        rest: Dim = 0
        for monomial, c in dim.terms:
            if monomial != (name,):
                rest = rest + DimExpr(((monomial, c),)) if monomial else rest + c
        value = given if isinstance(rest, int) and rest == 0 else self.difference(given, self.value(rest))
        if coefficient != 1:
            left = self.out.let(f"srem i64 {value.text}, {coefficient}")
            conditions.append(self.out.let(f"icmp eq i64 {left}, 0"))
            value = Number(self.out.let(f"sdiv i64 {value.text}, {coefficient}"), value.low, value.high)
        conditions.append(self.out.let(f"icmp ule i64 {value.text}, {DIMENSION_LIMIT}"))  # and so not negative
        self.known[name] = Number(value.text, 0, DIMENSION_LIMIT)
        return True


def _as_dim(function: DimFunction) -> Dim:
    return DimExpr((((function,), 1),))
