"""Dimensions of tensors: integers, symbolic expressions, or unknown.

A symbolic dimension is a polynomial with integer coefficients over *atoms*: names (``B``) and opaque functions of
dimensions (``S floordiv 2``, ``min(S, 128)``).  Polynomials are kept in a canonical form, so that equal expressions
compare equal.  Dimensions are never negative; symbols stand for any integer >= 0 unless a ``where`` clause says more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Union

MAX_TERMS = 1000


class DimensionTooLarge(ArithmeticError):
    """A product of sums has too many terms."""


class UnknownDim:
    """``?``: a dimension that is not known yet.  Arithmetic with it stays unknown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "?"

    def _absorb(self, other: Dim) -> UnknownDim:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _absorb


UNKNOWN_DIM = UnknownDim()


@dataclass(frozen=True, slots=True)
class DimFunction:
    """An opaque function of dimensions: ``floordiv``, ``ceildiv``, ``mod``, ``min`` or ``max``."""

    kind: str
    args: tuple[Dim, ...]

    def __str__(self) -> str:
        if self.kind in ("min", "max"):
            return f"{self.kind}({', '.join(format_dim(a) for a in self.args)})"
        left, right = (format_dim(a) if _is_simple(a) else f"({format_dim(a)})" for a in self.args)
        return f"{left} {self.kind} {right}"


Atom = Union[str, DimFunction]
Monomial = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class DimExpr:
    """A canonical polynomial: sorted (monomial, coefficient) pairs, no zero coefficients, never a plain integer."""

    terms: tuple[tuple[Monomial, int], ...]

    def __repr__(self) -> str:
        return format_dim(self)

    def __add__(self, other: Dim) -> Dim:
        return _combine(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _combine(self, other, -1)

    def __rsub__(self, other: Dim) -> Dim:
        return _combine(other, self, -1)

    def __mul__(self, other: Dim) -> Dim:
        return _multiply(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)


Dim = Union[int, DimExpr, UnknownDim]


def symbol(name: str) -> DimExpr:
    """The dimension called ``name``."""
    return DimExpr((((name,), 1),))


def _terms(dim: int | DimExpr) -> dict[Monomial, int]:
    if isinstance(dim, int):
        return {(): dim} if dim else {}
    return dict(dim.terms)


@lru_cache(maxsize=4096)
def _monomial_key(monomial: Monomial) -> tuple[int, list[str]]:
    return (-len(monomial), [str(a) for a in monomial])


def _term_key(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    return _monomial_key(term[0])


def _from_terms(terms: Mapping[Monomial, int]) -> int | DimExpr:
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    return DimExpr(tuple(sorted(kept, key=_term_key)))


def _combine(a: Dim, b: Dim, sign: int) -> Dim:
    if isinstance(a, UnknownDim) or isinstance(b, UnknownDim):
        return UNKNOWN_DIM
    terms = _terms(a)
    for monomial, coefficient in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + sign * coefficient
    return _from_terms(terms)


def _multiply(a: Dim, b: Dim) -> Dim:
    if isinstance(a, UnknownDim) or isinstance(b, UnknownDim):
        return UNKNOWN_DIM
    terms: dict[Monomial, int] = {}
    if isinstance(a, DimExpr) and isinstance(b, DimExpr) and len(a.terms) * len(b.terms) > MAX_TERMS:
        raise DimensionTooLarge(f"a dimension has at most {MAX_TERMS} terms when it is multiplied out")
    for left, c in _terms(a).items():
        for right, d in _terms(b).items():
            monomial = tuple(sorted(left + right, key=str))
            terms[monomial] = terms.get(monomial, 0) + c * d
    return _from_terms(terms)


def is_static(dim: Dim) -> bool:
    """Whether ``dim`` is a plain integer."""
    return isinstance(dim, int)


def _function(kind: str, *args: Dim) -> Dim:
    return DimExpr((((DimFunction(kind, args),), 1),))


def _split_divisible(a: DimExpr, divisor: int) -> tuple[Dim, Dim]:
    """``a = divisor * quotient + rest`` with every divisible term in the quotient."""
    quotient = {m: c // divisor for m, c in a.terms if c % divisor == 0}
    rest = {m: c for m, c in a.terms if c % divisor}
    return _from_terms(quotient), _from_terms(rest)


def _rounded_down(a: DimExpr, divisor: int) -> Dim | None:
    """x when ``a`` is written as ``x - (x mod divisor)``."""
    for monomial, coefficient in a.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        if coefficient == -1 and isinstance(atom, DimFunction) and atom.kind == "mod" and atom.args[1] == divisor:
            if _combine(atom.args[0], _from_terms({monomial: 1}), -1) == a:
                return atom.args[0]
    return None


def floordiv(a: Dim, b: Dim) -> Dim:
    """a / b rounded down.  Raises ZeroDivisionError for a zero divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(a, UnknownDim) or isinstance(b, UnknownDim):
        return UNKNOWN_DIM
    if b == 0:
        raise ZeroDivisionError("division of a dimension by zero")
    exact = exact_div(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int) and b > 0 and isinstance(a, DimExpr):
        quotient, rest = _split_divisible(a, b)
        if quotient != 0:
            return quotient + floordiv(rest, b)
        whole = _rounded_down(a, b)
        if whole is not None:
            return floordiv(whole, b)
    return _function("floordiv", a, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """a / b rounded up.  Raises ZeroDivisionError for a zero divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    if isinstance(a, UnknownDim) or isinstance(b, UnknownDim):
        return UNKNOWN_DIM
    if b == 0:
        raise ZeroDivisionError("division of a dimension by zero")
    exact = exact_div(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int) and b > 0 and isinstance(a, DimExpr):
        quotient, rest = _split_divisible(a, b)
        if quotient != 0:
            return quotient + ceildiv(rest, b)
    return _function("ceildiv", a, b)


def mod(a: Dim, b: Dim) -> Dim:
    """The remainder of :func:`floordiv`.  Raises ZeroDivisionError for a zero divisor."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(a, UnknownDim) or isinstance(b, UnknownDim):
        return UNKNOWN_DIM
    if b == 0:
        raise ZeroDivisionError("division of a dimension by zero")
    if exact_div(a, b) is not None:
        return 0
    if isinstance(b, int) and b > 0 and isinstance(a, DimExpr):
        quotient, rest = _split_divisible(a, b)
        if quotient != 0:
            return mod(rest, b)
    return _function("mod", a, b)


def _extremum(kind: str, pick: Callable[[Iterable[int]], int], dims: Iterable[Dim]) -> Dim:
    unique: dict[Dim, None] = {}
    constants: list[int] = []
    for dim in dims:
        if isinstance(dim, UnknownDim):
            return UNKNOWN_DIM
        if isinstance(dim, int):
            constants.append(dim)
        else:
            unique[dim] = None
    if constants:
        constant = pick(constants)
        if not unique:
            return constant
        unique[constant] = None
    args = tuple(sorted(unique, key=format_dim))
    return args[0] if len(args) == 1 else _function(kind, *args)


def dim_min(*dims: Dim) -> Dim:
    """The smallest of one or more dimensions."""
    return _extremum("min", min, dims)


def dim_max(*dims: Dim) -> Dim:
    """The largest of one or more dimensions."""
    return _extremum("max", max, dims)


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements of a shape; Python integers, so it never overflows."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def exact_div(a: Dim, b: Dim) -> Dim | None:
    """The quotient when ``b`` divides ``a`` for every value of the symbols (b is one term), else None."""
    if isinstance(a, UnknownDim) or isinstance(b, UnknownDim):
        return UNKNOWN_DIM
    if b == 0:
        return None
    if a == b:
        return 1
    if a == 0:
        return 0
    divisor = list(_terms(b).items())
    if len(divisor) != 1:
        return None
    monomial, coefficient = divisor[0]
    quotient: dict[Monomial, int] = {}
    for left, c in _terms(a).items():
        rest = list(left)
        for atom in monomial:
            if atom not in rest:
                return None
            rest.remove(atom)
        if c % coefficient:
            return None
        quotient[tuple(rest)] = c // coefficient
    return _from_terms(quotient)


def symbols_of(dim: Dim) -> dict[str, None]:
    """The names in ``dim``, in order of appearance (a dictionary used as an ordered set)."""
    found: dict[str, None] = {}
    if isinstance(dim, DimExpr):
        for monomial, _ in dim.terms:
            for atom in monomial:
                if isinstance(atom, str):
                    found[atom] = None
                else:
                    for arg in atom.args:
                        found.update(symbols_of(arg))
    return found


_FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": mod,
    "min": dim_min,
    "max": dim_max,
}


def apply_function(kind: str, *args: Dim) -> Dim:
    """The named function (``floordiv``, ``ceildiv``, ``mod``, ``min``, ``max``) of dimensions."""
    return _FUNCTIONS[kind](*args)


def substitute(dim: Dim, bindings: Mapping[str, Dim], known: dict[Monomial, Dim] | None = None) -> Dim:
    """``dim`` with names replaced; names that ``bindings`` lacks stay.  ``known`` is filled with what products become with these bindings."""
    if not isinstance(dim, DimExpr):
        return dim
    if len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
        alone = dim.terms[0][0][0]
        if isinstance(alone, str):  # a name: most expressions are
            return bindings.get(alone, dim)
    total: dict[Monomial, int] = {}
    for monomial, coefficient in dim.terms:
        value = known.get(monomial) if known is not None else None
        if value is None:
            value = _substitute_product(monomial, bindings)
            if known is not None:
                known[monomial] = value
        if isinstance(value, UnknownDim):
            return UNKNOWN_DIM
        for left, factor in (((), value),) if isinstance(value, int) else value.terms:
            total[left] = total.get(left, 0) + coefficient * factor
    return _from_terms(total)


def _substitute_product(monomial: Monomial, bindings: Mapping[str, Dim]) -> Dim:
    value: Dim = 1
    for atom in monomial:
        if isinstance(atom, str):
            value = value * bindings.get(atom, symbol(atom))
        else:
            value = value * apply_function(atom.kind, *(substitute(a, bindings) for a in atom.args))
    return value


def compatible(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are equal, or may be because one is unknown."""
    return isinstance(a, UnknownDim) or isinstance(b, UnknownDim) or a == b


def merge(a: Dim, b: Dim) -> Dim:
    """The better known of two compatible dimensions."""
    return b if isinstance(a, UnknownDim) else a


def _is_simple(dim: Dim) -> bool:
    if not isinstance(dim, DimExpr):
        return not (isinstance(dim, int) and dim < 0)
    (monomial, coefficient), *rest = dim.terms
    return not rest and coefficient == 1 and len(monomial) == 1 and (isinstance(monomial[0], str) or monomial[0].kind in ("min", "max"))


def _format_atom(atom: Atom) -> str:
    if isinstance(atom, str) or atom.kind in ("min", "max"):
        return str(atom)
    return f"({atom})"


def format_dim(dim: Dim) -> str:
    """The text of a dimension; it parses back to an equal one."""
    if not isinstance(dim, DimExpr):
        return str(dim)
    return _format_expr(dim)


@lru_cache(maxsize=4096)
def _format_expr(dim: DimExpr) -> str:
    if len(dim.terms) == 1:
        (monomial, coefficient), = dim.terms
        if coefficient == 1 and len(monomial) == 1:
            return str(monomial[0])
    parts: list[str] = []
    for monomial, coefficient in dim.terms:
        atoms = "*".join(_format_atom(a) for a in monomial)
        size = abs(coefficient)
        text = atoms if atoms and size == 1 else f"{size}*{atoms}" if atoms else str(size)
        if not parts:
            parts.append(text if coefficient > 0 else f"-{text}")
        else:
            parts.append(f"{'+' if coefficient > 0 else '-'}{text}")
    return "".join(parts)
