"""Comparing sizes that are expressions of named dimensions.

A dimension is 0 or more, so a polynomial without negative coefficients is never negative; a ``where`` clause says more.
Every answer "yes" is a proof; "no" means that none was found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ir.core import Graph
from ir.diagnostics import GraphError
from ir.dims import Dim, DimExpr, DimFunction, Monomial, UnknownDim, apply_function, ceildiv, dim_max, product, substitute, symbol, symbols_of
from ir.inference import plain_symbol
from ir.inputs import choose_sizes
from ir.signature import constraint_holds
from ir.types import type_symbols
from passes.infra.base import PassContext

ALIGNMENT = 64
"""Bytes; what every buffer begins at a multiple of."""

_EXAMPLES = (128, 96, 160, 64, 256, 32, 512, 16, 8, 4, 2, 1, 1024, 2048, 4096, 0)
_SPREAD = (128, 1, 1024, 16)
_MOST_EXAMPLES = 16
_MOST_WAYS = 32


class Sizes:
    """What is known of the named dimensions of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._ways: list[tuple[dict[str, Dim], dict[Monomial, Dim]]] = [(way, {}) for way in _substitutions(graph)]
        self._known: dict[tuple[Dim, Dim], bool] = {}
        self._signs: dict[Dim, bool] = {}
        self._examples = _examples(graph)
        self._multiples = _multiples(graph)

    def examples(self, dim: Dim) -> tuple[int, ...]:
        """The values of an expression for some sizes that the graph may have, different ones."""
        if isinstance(dim, int):
            return (dim,) * len(self._examples)
        assert isinstance(dim, DimExpr)
        return tuple(_value(dim, example) for example in self._examples)

    @property
    def example(self) -> dict[str, int]:
        """Some sizes that the graph may have: those for which figures are told."""
        return self._examples[0]

    def report(self, context: PassContext, name: str, dim: Dim) -> None:
        """Tells a number of bytes: for example sizes, and the expression."""
        if isinstance(dim, int):
            context.count(name, dim)
        else:
            at = ", ".join(f"{n}={self.example[n]}" for n in symbols_of(dim))
            context.count(f"{name} ({dim}), for {at}", self.examples(dim)[0])

    def at_most(self, a: Dim, b: Dim) -> bool:
        """Whether ``a <= b`` for all sizes that the graph may have."""
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        if isinstance(a, UnknownDim) or isinstance(b, UnknownDim):
            return False
        if a == b:
            return True
        key = (a, b)
        if key not in self._known:
            self._known[key] = self._compare(a, b)
        return self._known[key]

    def _compare(self, a: Dim, b: Dim) -> bool:
        extreme = next(_extremes(a), None)
        if extreme is not None:  # all of max(x, y) must be at most b, one of min(x, y)
            answers = (self.at_most(_replace(a, extreme, x), b) for x in extreme.args)
            return all(answers) if extreme.kind == "max" else any(answers)
        extreme = next(_extremes(b), None)
        if extreme is not None:
            answers = (self.at_most(a, _replace(b, extreme, x)) for x in extreme.args)
            return any(answers) if extreme.kind == "max" else all(answers)
        return self._is_nonnegative(b - a)

    def _is_nonnegative(self, difference: Dim) -> bool:
        found = self._signs.get(difference)
        if found is None:
            found = self._signs[difference] = self._prove_nonnegative(difference)
        return found

    def _prove_nonnegative(self, difference: Dim) -> bool:
        if any(v < 0 for v in self.examples(difference)):  # found sooner than that there is no proof
            return False
        if any(_nonnegative(substitute(difference, way, known) if way else difference) for way, known in self._ways):
            return True
        for atom, coefficient in _roundings(difference):
            rounded = ALIGNMENT * DimExpr((((atom,), 1),))
            if coefficient < 0:  # rounding x up stays at most y where x is, and y is a multiple itself
                rest = difference + rounded
                if self._is_aligned(rest):
                    return self._is_nonnegative(rest - atom.args[0])
            else:
                return self._is_nonnegative(difference - rounded + atom.args[0])
        return False

    def largest(self, dims: Iterable[Dim]) -> Dim:
        """The largest of some expressions, as one of them where that is known."""
        kept: list[Dim] = []
        for dim in dims:
            if not any(self.at_most(dim, k) for k in kept):
                kept = [k for k in kept if not self.at_most(k, dim)]
                kept.append(dim)
        return dim_max(*kept) if kept else 0

    def aligned(self, size: Dim, coarse: bool = False) -> Dim:
        """A multiple of ``ALIGNMENT`` that is at least ``size``.

        ``coarse`` gives a polynomial, which can be compared better: no factor of a product is rounded up, but every coefficient
        is; otherwise the sum is rounded.
        """
        if coarse:
            size = _relaxed(size)
        if isinstance(size, int):
            return -(-size // ALIGNMENT) * ALIGNMENT
        if self._is_aligned(size):
            return size
        if coarse and isinstance(size, DimExpr) and all(c > 0 for _, c in size.terms):
            return DimExpr(tuple((m, -(-c // ALIGNMENT) * ALIGNMENT) for m, c in size.terms))
        return ceildiv(size, ALIGNMENT) * ALIGNMENT

    def _is_aligned(self, size: Dim) -> bool:
        if isinstance(size, int):
            return size % ALIGNMENT == 0
        multiplied = substitute(size, self._multiples) if self._multiples else size
        return isinstance(multiplied, DimExpr) and all(c % ALIGNMENT == 0 for _, c in multiplied.terms)


def _examples(graph: Graph) -> list[dict[str, int]]:
    """Sizes, small and large, that meet the conditions of a graph; never none."""
    names: dict[str, None] = {}
    values = [*graph.parameters, *(r for op in graph.walk() for r in op.results)]
    for value in values:
        names.update(type_symbols(value.type))
    chosen = dict.fromkeys(names, _EXAMPLES[0])
    with contextlib.suppress(GraphError):  # no sizes meet the conditions: they only guide the choice between right plans
        chosen |= choose_sizes(graph, sizes=_EXAMPLES)
    found = [chosen]
    for number in range(1, _MOST_EXAMPLES if len(chosen) > 1 else len(_SPREAD) if chosen else 1):
        given = {n: _SPREAD[(number // len(_SPREAD) ** (at % 2) + at // 2 * number) % len(_SPREAD)] for at, n in enumerate(chosen)}
        if given not in found and all(constraint_holds(c, given) for c in graph.constraints):
            found.append(given)
    return found


def _value(dim: DimExpr, sizes: Mapping[str, int]) -> int:
    """What an expression is for sizes of its names."""
    total = 0
    for monomial, coefficient in dim.terms:
        for atom in monomial:
            if isinstance(atom, str):
                coefficient *= sizes.get(atom, _EXAMPLES[0])
            else:
                found = apply_function(atom.kind, *(_value(a, sizes) if isinstance(a, DimExpr) else a for a in atom.args))
                assert isinstance(found, int)
                coefficient *= found
        total += coefficient
    return total


def _nonnegative(dim: Dim) -> bool:
    if isinstance(dim, int):
        return dim >= 0
    return isinstance(dim, DimExpr) and all(c > 0 and all(map(_is_nonnegative_atom, m)) for m, c in dim.terms)


def _is_nonnegative_atom(atom: str | DimFunction) -> bool:
    if isinstance(atom, str):
        return True
    if atom.kind in ("floordiv", "ceildiv", "mod"):
        divisor = atom.args[1]
        return isinstance(divisor, int) and divisor > 0 and (atom.kind == "mod" or _nonnegative(atom.args[0]))
    found = map(_nonnegative, atom.args)
    return any(found) if atom.kind == "max" else all(found)


def _relaxed(size: Dim) -> Dim:
    """A size, or a bit more, in which no factor of a product is rounded up: ``48*K*(N ceildiv 48)`` is at most ``K*N+47*K``."""
    if not isinstance(size, DimExpr):
        return size
    total: Dim = 0
    for monomial, coefficient in size.terms:
        factors: list[Dim] = []
        for atom in monomial:
            divisor = atom.args[1] if isinstance(atom, DimFunction) and atom.kind == "ceildiv" and len(monomial) > 1 else 0
            if isinstance(atom, DimFunction) and isinstance(divisor, int) and divisor > 0 and coefficient % divisor == 0:
                coefficient //= divisor
                factors.append(atom.args[0] + (divisor - 1))
            else:
                factors.append(DimExpr((((atom,), 1),)))
        total = total + coefficient * product(factors)
    return total


def _roundings(dim: Dim) -> list[tuple[DimFunction, int]]:
    """Terms that are multiples of something rounded up to ``ALIGNMENT``, with their factors, the negative ones first."""
    found = []
    for monomial, coefficient in dim.terms if isinstance(dim, DimExpr) else ():
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, DimFunction) and atom.kind == "ceildiv" and atom.args[1] == ALIGNMENT and coefficient % ALIGNMENT == 0:
            found.append((atom, coefficient))
    return sorted(found, key=lambda f: f[1] > 0)


def _extremes(dim: Dim) -> Iterator[DimFunction]:
    """``min`` and ``max`` that stand alone, with a positive factor: what is larger in them makes the whole larger."""
    for monomial, coefficient in dim.terms if isinstance(dim, DimExpr) else ():
        atom = monomial[0] if len(monomial) == 1 else None
        if isinstance(atom, DimFunction) and atom.kind in ("min", "max") and coefficient > 0:
            yield atom


def _replace(dim: Dim, atom: DimFunction, by: Dim) -> Dim:
    """``dim`` with ``by`` for an extreme that :func:`_extremes` found."""
    assert isinstance(dim, DimExpr)
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        total = total + (by * coefficient if monomial == (atom,) else DimExpr(((monomial, coefficient),)))
    return total


# -- what a ``where`` clause says --------------------------------------------------------------------------------------


def _inequalities(graph: Graph) -> list[tuple[Dim, Dim]]:
    """Pairs (a, b) with a <= b."""
    found: list[tuple[Dim, Dim]] = []
    for constraint in graph.constraints:
        for left, comparison, right in zip(constraint.dims, constraint.comparisons, constraint.dims[1:], strict=False):
            if comparison in ("<=", "=="):
                found.append((left, right))
            if comparison in (">=", "=="):
                found.append((right, left))
            if comparison == "<":
                found.append((left + 1, right))
            if comparison == ">":
                found.append((right + 1, left))
    return found


def _substitutions(graph: Graph) -> list[dict[str, Dim]]:
    """Ways of writing symbols by others that are 0 or more: ``B`` as ``B + 1`` where ``1 <= B``, ``S`` as ``128 - S`` where
    ``S <= 128``.  What is not negative after any of them is never negative."""
    ways: list[dict[str, Dim]] = [{}]
    for low, high in _inequalities(graph):
        more: list[dict[str, Dim]] = []
        name = plain_symbol(high)
        if name is not None and name not in symbols_of(low):
            more += [_extend(w, name, low + symbol(name)) for w in ways]
        name = plain_symbol(low)
        if name is not None and name not in symbols_of(high):
            more += [_extend(w, name, high - symbol(name)) for w in ways]
        ways = (ways + [w for w in more if w])[:_MOST_WAYS]
    return ways


def _extend(way: dict[str, Dim], name: str, value: Dim) -> dict[str, Dim]:
    """``way`` with one more symbol; nothing where symbols would be written by each other."""
    if name in way or any(n in way for n in symbols_of(value) if n != name):
        return {}
    return {**{n: v for n, v in way.items() if name not in symbols_of(v)}, name: value}


def _multiples(graph: Graph) -> dict[str, Dim]:
    """Symbols as multiples of what a ``where`` clause says divides them."""
    found: dict[str, Dim] = {}
    for constraint in graph.constraints:
        pairs: Sequence[tuple[Dim, str, Dim]] = list(zip(constraint.dims, constraint.comparisons, constraint.dims[1:], strict=False))
        for left, comparison, right in pairs:
            atom = left.terms[0][0][0] if isinstance(left, DimExpr) and len(left.terms) == 1 and len(left.terms[0][0]) == 1 else None
            if comparison == "==" and right == 0 and isinstance(atom, DimFunction) and atom.kind == "mod":
                name, divisor = plain_symbol(atom.args[0]), atom.args[1]
                if name is not None and isinstance(divisor, int) and divisor > 1:
                    found[name] = divisor * symbol(name)
    return found
