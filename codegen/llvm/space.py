"""What is known about index values: loop variables, named dimensions, functions of them; and proofs of inequalities.

An index check that can be proved is not emitted, so the hot loops have none.  A proof replaces atoms by their bounds,
the innermost ones first, until a number is left; it works on integers, so that what is left may be rounded.  Proofs are
about mathematical integers while code computes modulo 2**64: facts come only from expressions that are too small for
the difference to show (named dimensions are at most ``SYMBOL_LIMIT``, and so are products of them; programs check that).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from codegen.llvm.polynomials import Monomial, Poly, add, as_number, constant, divide_by_content, multiply, scale, split_constant
from ir.core import Constraint, Value
from ir.dims import Dim, DimExpr, DimFunction

SYMBOL_LIMIT = 1 << 40
SMALL = 1 << 62
_FUEL = 300


class Atom:
    """One unknown integer.

    ``meaning`` is what proofs put in its place; ``lowers`` and ``uppers`` are (s, p) with s * atom >= p and s * atom <= p;
    ``cases`` (of min and max) are the polynomials it is one of.  ``value`` or ``function`` says how code computes it.
    """

    __slots__ = ("number", "name", "value", "function", "meaning", "described", "lowers", "uppers", "cases", "picks", "magnitude", "nonnegative")

    def __init__(self, number: int, magnitude: int) -> None:
        self.number = number
        self.name = ""
        self.value: Value | None = None
        self.function: tuple[str, tuple[Poly, ...]] | None = None
        self.meaning: Poly = {(number,): 1}
        self.described = False  # whether its meaning is another polynomial
        self.lowers: list[tuple[int, Poly]] = []
        self.uppers: list[tuple[int, Poly]] = []
        self.cases: tuple[Poly, ...] = ()
        self.picks = ""
        self.magnitude = magnitude
        self.nonnegative = False

    def means(self, meaning: Poly) -> None:
        """Puts another polynomial in its place in proofs."""
        self.meaning = meaning
        self.described = True


class Space:
    """The atoms of one graph."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.symbols: dict[str, Poly] = {}
        self.values: dict[Value, Poly] = {}
        self.guarded: dict[Monomial, None] = {}  # products of named dimensions that must stay below SYMBOL_LIMIT
        self.hypotheses: list[Poly] = []
        self.lasting = 0  # how many of them, the first ones, hold everywhere
        self._inside: dict[tuple[frozenset[tuple[Monomial, int]], int], tuple[int, int]] = {}
        self._functions: dict[tuple[object, ...], Poly] = {}
        self._proved: dict[frozenset[tuple[Monomial, int]], tuple[int | None, int | None]] = {}

    # -- atoms -----------------------------------------------------------------------------------------------------

    def _atom(self, magnitude: int) -> Atom:
        atom = Atom(len(self.atoms), magnitude)
        self.atoms.append(atom)
        return atom

    def symbol(self, name: str) -> Poly:
        """The named dimension."""
        found = self.symbols.get(name)
        if found is None:
            atom = self._atom(SYMBOL_LIMIT)
            atom.name = name
            atom.nonnegative = True
            atom.lowers.append((1, {}))
            found = self.symbols[name] = {(atom.number,): 1}
        return found

    def value(self, value: Value) -> Poly:
        """A value of type ``index``; opaque unless it was described before."""
        found = self.values.get(value)
        if found is None:
            found = self.values[value] = self._opaque(value)
        return found

    def _opaque(self, value: Value) -> Poly:
        atom = self._atom(1 << 63)
        atom.value = value
        return {(atom.number,): 1}

    def describe(self, value: Value, poly: Poly) -> None:
        """Says that a value is a polynomial; forgotten when it is so large that computing it may wrap around."""
        if self.is_exact(poly):
            self.values[value] = poly

    def counter(self, value: Value, start: Poly, stop: Poly, step: Poly) -> None:
        """Describes a loop variable that runs from start to stop."""
        distance = add(self.expand(stop), self.expand(start), -1)
        step_number = as_number(step)
        magnitude = self.magnitude(start) + self.magnitude(stop)
        if magnitude > SMALL:
            return
        atom = self._atom(magnitude)
        atom.value = value
        self.values[value] = {(atom.number,): 1}
        if step_number is None or step_number <= 1:
            self._at_least(atom, self.expand(start))
            self._at_most(atom, add(self.expand(stop), constant(-1)))
            atom.nonnegative = self.prove(atom.meaning)
            return
        rounds = self._atom(magnitude)
        rounds.nonnegative = True
        rounds.lowers.append((1, {}))
        for limit in self._limits(distance):
            fact = divide_by_content(add(add(limit, constant(-1)), rounds.meaning, -step_number))
            factor = -fact[(rounds.number,)]
            rounds.uppers.append((factor, add(fact, rounds.meaning, factor)))
        atom.means(add(self.expand(start), rounds.meaning, step_number))
        atom.nonnegative = self.prove(atom.meaning)

    def _limits(self, poly: Poly) -> list[Poly]:
        """What a polynomial is at most: itself, and with each of its terms in the place of a minimum, which may be a multiple."""
        for monomial, coefficient in poly.items():
            atom = self.atoms[monomial[0]] if len(monomial) == 1 and coefficient == 1 else None
            if atom is not None and atom.picks == "min":
                return [*(add(add(poly, atom.meaning, -1), case) for case in atom.cases), poly]
        return [poly]

    @staticmethod
    def _at_least(atom: Atom, bound: Poly) -> None:
        atom.lowers.append((1, bound))

    @staticmethod
    def _at_most(atom: Atom, bound: Poly) -> None:
        atom.uppers.append((1, bound))

    # -- expressions -----------------------------------------------------------------------------------------------

    def convert(self, expr: Dim, operands: Sequence[Value] = ()) -> Poly:
        """The polynomial of an expression; ``%0`` in it is operand 0."""
        if isinstance(expr, int):
            return constant(expr)
        assert isinstance(expr, DimExpr), expr
        total: Poly = {}
        for monomial, coefficient in expr.terms:
            if not monomial:
                total = add(total, {(): coefficient})
                continue
            term: Poly | None = None
            for atom in monomial:
                factor = self.factor(atom, operands)
                term = factor if term is None else multiply(term, factor)
            assert term is not None
            total = add(total, term, coefficient)
        return total

    def factor(self, atom: str | DimFunction, operands: Sequence[Value]) -> Poly:
        """The polynomial of one factor of an expression."""
        if not isinstance(atom, str):
            return self.function(atom.kind, tuple(self.convert(a, operands) for a in atom.args))
        if atom.startswith("%"):
            return self.value(operands[int(atom[1:])])
        return self.symbol(atom)

    def function(self, kind: str, args: tuple[Poly, ...]) -> Poly:
        """``floordiv``, ``ceildiv``, ``mod``, ``min`` or ``max`` of polynomials."""
        numbers = [as_number(a) for a in args]
        if kind in ("floordiv", "ceildiv", "mod") and numbers[1] is not None and numbers[1] == 1:
            return {} if kind == "mod" else args[0]
        if len(args) == 1:
            return args[0]
        key = (kind, *(frozenset(a.items()) for a in args))
        found = self._functions.get(key)
        if found is None:
            # what is kept for the whole graph must not rest on what only holds in the region that is being written
            local, self.hypotheses = self.hypotheses, self.hypotheses[: self.lasting]
            found = self._functions[key] = self._new_function(kind, args)
            self.hypotheses = local
        return found

    def _new_function(self, kind: str, args: tuple[Poly, ...]) -> Poly:
        if not all(map(self.is_exact, args)):
            return self._function_atom(kind, args, None)  # code may see another number than a proof
        expanded = tuple(map(self.expand, args))
        if kind in ("min", "max"):
            meaning = self._extremum(kind, expanded)
        else:
            divisor = as_number(expanded[1])
            if divisor is None or divisor <= 0:
                return self._function_atom(kind, args, None)
            if kind == "floordiv":
                meaning = self._floordiv(expanded[0], divisor)
            elif kind == "mod":
                meaning = add(expanded[0], self._floordiv(expanded[0], divisor), -divisor)
            else:
                meaning = scale(self._floordiv(scale(expanded[0], -1), divisor), -1)
        if as_number(meaning) is not None:
            return meaning
        return self._function_atom(kind, args, meaning)

    def _function_atom(self, kind: str, args: tuple[Poly, ...], meaning: Poly | None) -> Poly:
        atom = self._atom(self._size_of_function(kind, args) if all(map(self.is_exact, args)) else 1 << 63)
        atom.function = (kind, args)
        if meaning is not None:
            atom.means(meaning)
            atom.nonnegative = self.prove(meaning)
        return {(atom.number,): 1}

    def _size_of_function(self, kind: str, args: Sequence[Poly]) -> int:
        """A bound of the absolute value of a function."""
        sizes = [self.magnitude(a) for a in args]
        divisor = as_number(args[1]) if kind in ("floordiv", "ceildiv") else None
        if divisor is not None and divisor > 0:
            return sizes[0] // divisor + 1
        return min(sizes) if kind == "min" and all(map(self.prove, args)) else max(sizes)

    def _extremum(self, kind: str, args: tuple[Poly, ...]) -> Poly:
        kept: list[Poly] = []
        sign = 1 if kind == "min" else -1
        for arg in args:
            if any(self.prove(add(scale(arg, sign), k, -sign)) for k in kept):
                continue
            kept = [k for k in kept if not self.prove(add(scale(k, sign), arg, -sign))]
            kept.append(arg)
        if len(kept) == 1:
            return kept[0]
        key = ("proof", kind, *(frozenset(a.items()) for a in kept))
        if key not in self._functions:
            atom = self._atom(self._size_of_function(kind, kept))
            atom.cases = tuple(kept)
            atom.picks = kind
            for arg in kept:
                (self._at_most if kind == "min" else self._at_least)(atom, arg)
            atom.nonnegative = all(map(self.prove, kept)) if kind == "min" else any(map(self.prove, kept))
            self._functions[key] = atom.meaning
        return self._functions[key]

    def _floordiv(self, a: Poly, divisor: int) -> Poly:
        """What a floordiv divisor is for proofs: divisible terms leave, and what stays may be known to be 0."""
        quotient = {m: q for m, c in a.items() if (q := c // divisor) and (not m or c % divisor == 0)}
        rest = {m: r for m, c in a.items() if (r := c % divisor if not m or c % divisor == 0 else c)}
        inside = as_number(rest)
        if inside is not None or (self.prove(rest) and self.prove(add(constant(divisor - 1), rest, -1))):
            return quotient
        key = ("proof", "floordiv", frozenset(rest.items()), divisor)
        if key not in self._functions:
            atom = self._atom(self.magnitude(rest) // divisor + 1)
            atom.uppers.append((divisor, rest))
            atom.lowers.append((divisor, add(rest, constant(1 - divisor))))
            atom.nonnegative = self.prove(rest)
            if atom.nonnegative:
                atom.lowers.append((1, {}))
            self._functions[key] = atom.meaning
        return add(quotient, self._functions[key])

    def magnitude(self, poly: Poly) -> int:
        """A bound of the absolute value."""
        return sum(abs(coefficient) * self._size(monomial) for monomial, coefficient in poly.items())

    def _size(self, monomial: Monomial) -> int:
        """A bound of a product.  One of named dimensions, or of sums of them divided and rounded up, is looked at before a run."""
        if len(monomial) > 1:
            total: Poly = {(): 1}
            divisors = 1
            for number in monomial:
                divided, divisor = self._in_names(number)
                total, divisors = multiply(total, divided), divisors * divisor
            if total:
                self.guarded.update(dict.fromkeys(tuple(sorted(names)) for names in total if len(names) > 1))
                return -(-sum(factor * (SYMBOL_LIMIT if names else 1) for names, factor in total.items()) // divisors)
        return math.prod(self.atoms[n].magnitude for n in monomial)

    def _in_names(self, number: int) -> tuple[Poly, int]:
        """A polynomial of named dimensions, and what it is divided by, that are not less than an atom that is 0 or more; else nothing.

        That is x + 16 and 16 for (x + 1) ceildiv 16.
        """
        atom = self.atoms[number]
        if atom.name:
            return {(number,): 1}, 1
        if atom.function is not None and atom.function[0] == "ceildiv":
            divided, divisor = atom.function[1][0], as_number(atom.function[1][1])
            if divisor is not None and divisor > 0 and all(c > 0 and all(self.atoms[n].name for n in m) for m, c in divided.items()):
                return add(divided, constant(divisor - 1)), divisor
        return {}, 1

    def is_exact(self, poly: Poly) -> bool:
        """Whether code computes the polynomial without wrapping around."""
        if self.magnitude(poly) <= SMALL:
            return True
        return len(poly) == 1 and all(c == 1 and len(m) == 1 and self._is_one_number(self.atoms[m[0]]) for m, c in poly.items())

    @staticmethod
    def _is_one_number(atom: Atom) -> bool:
        """Whether an atom is a value, or the smallest or largest of some: that can't wrap around, however large they are."""
        return atom.value is not None or (atom.described and atom.function is not None and atom.function[0] in ("min", "max"))

    def expand(self, poly: Poly) -> Poly:
        """The polynomial with every atom replaced by its meaning."""
        atoms = self.atoms
        if not any(atoms[n].described for m in poly for n in m):
            return poly
        total: Poly = {}
        for monomial, coefficient in poly.items():
            term: Poly = {(): 1}
            for number in monomial:
                term = multiply(term, atoms[number].meaning)
            total = add(total, term, coefficient)
        return total

    # -- proofs ----------------------------------------------------------------------------------------------------

    def prove(self, poly: Poly) -> bool:
        """Whether the polynomial is known never to be negative."""
        rest, number = split_constant(poly)
        if not rest:
            return number >= 0
        key = frozenset(rest.items())
        smallest, largest = self._proved.get(key, (None, None))  # constants with which it was proved, and was not
        if smallest is not None and number >= smallest:
            return True
        if largest is None or number > largest:
            if self._prove(add(self.expand(rest), constant(number)), [_FUEL]):
                self._proved[key] = (number, largest)
                return True
            self._proved[key] = (smallest, number)
        if not self.hypotheses:
            return False
        expanded = add(self.expand(rest), constant(number))
        return any(self._prove(add(expanded, self.expand(h), -1), [_FUEL]) for h in self.hypotheses)

    def inside(self, at: Poly, count: int, size: Poly) -> bool:
        """Whether elements ``at`` to ``at + count`` are known to be in a dimension.

        Accesses of unrolled code differ in constants, so what was proved is kept with the range of them that it holds for.
        ``size`` is one of the polynomials of a buffer's type, which are kept.
        """
        rest, number = split_constant(at)
        if not rest:
            total = as_number(size)
            if total is not None:
                return number >= 0 and number + count <= total
        key = (frozenset(rest.items()), id(size))
        low, high = self._inside.get(key, (1, 0))
        if low <= number and number + count <= high:
            return True
        if not self.prove(at) or not self.prove(add(add(size, at, -1), constant(-count))):
            return False
        if not self.hypotheses:
            self._inside[key] = (number, number + count) if low > high else (min(low, number), max(high, number + count))
        return True

    def _prove(self, poly: Poly, fuel: list[int]) -> bool:
        poly = divide_by_content(poly)
        atoms = self.atoms
        top, possible = -1, True
        for monomial, coefficient in poly.items():
            if monomial:
                top = max(top, monomial[-1])
                possible = possible and coefficient > 0 and all(atoms[n].nonnegative for n in monomial)
            else:
                possible = possible and coefficient >= 0
        if possible:
            return True
        fuel[0] -= 1
        if top < 0 or fuel[0] < 0:
            return False
        linear = self._coefficient(poly, top)
        if linear is None:
            return False
        cofactor, others, positive = linear
        atom = atoms[top]
        for factor, bound in atom.lowers if positive else atom.uppers:
            weaker = add(scale(others, factor), multiply(cofactor, bound))
            if self._prove(add(weaker, constant(factor - 1)), fuel):
                return True
        if atom.cases and positive == (atom.picks == "min"):
            return all(self._prove(add(others, multiply(cofactor, c)), fuel) for c in atom.cases)
        return False

    def _coefficient(self, poly: Poly, number: int) -> tuple[Poly, Poly, bool] | None:
        """(cofactor, rest, whether the cofactor is positive) of ``cofactor * atom + rest``; None when its sign is not known."""
        cofactor: Poly = {}
        others: Poly = {}
        for monomial, coefficient in poly.items():
            if monomial and monomial[-1] == number:
                left = monomial[:-1]
                if left and (left[-1] == number or not all(self.atoms[n].nonnegative for n in left)):
                    return None
                cofactor[left] = coefficient
            else:
                others[monomial] = coefficient
        signs = {c > 0 for c in cofactor.values()}
        return (cofactor, others, signs.pop()) if len(signs) == 1 else None

    # -- facts of the program --------------------------------------------------------------------------------------

    def constrain(self, constraints: Sequence[Constraint]) -> None:
        """Takes the conditions of a ``where`` clause as facts."""
        for constraint in constraints:
            for comparison, left, right in zip(constraint.comparisons, constraint.dims, constraint.dims[1:], strict=False):
                self._compare(comparison, left, right)
        self.lasting = len(self.hypotheses)

    def _compare(self, comparison: str, left: Dim, right: Dim) -> None:
        if comparison in (">", ">="):
            left, right, comparison = right, left, comparison.replace(">", "<")
        if comparison == "==":
            if not self._multiple(left, right):
                self._compare("<=", left, right)
                self._compare("<=", right, left)
            return
        small, large = self.convert(left), self.convert(right)
        difference = add(large, add(small, constant(1 if comparison == "<" else 0)), -1)
        rest, number = split_constant(difference)
        if self.magnitude(difference) > SMALL:
            return
        if len(rest) == 1 and len(next(iter(rest))) == 1:
            ((monomial, coefficient),) = rest.items()
            atom = self.atoms[monomial[0]]
            if atom.name and abs(coefficient) == 1 and not atom.described:
                if coefficient > 0:
                    atom.lowers.insert(0, (1, constant(-number)))
                else:
                    atom.uppers.append((1, constant(number)))
                return
        self.hypotheses.append(difference)

    def _multiple(self, left: Dim, right: Dim) -> bool:
        """``S mod 16 == 0`` makes S a multiple of a new atom."""
        if right != 0 or not isinstance(left, DimExpr) or len(left.terms) != 1:
            return False
        (monomial, coefficient), = left.terms
        function = monomial[0] if len(monomial) == 1 and coefficient == 1 else None
        if not isinstance(function, DimFunction) or function.kind != "mod" or not isinstance(function.args[1], int):
            return False
        name = function.args[0]
        if not isinstance(name, DimExpr) or len(name.terms) != 1 or name.terms[0][1] != 1 or len(name.terms[0][0]) != 1:
            return False
        symbol = name.terms[0][0][0]
        if not isinstance(symbol, str):
            return False
        ((number,),) = self.symbol(symbol)
        quotient = self._atom(SYMBOL_LIMIT)
        quotient.nonnegative = True
        quotient.lowers.append((1, {}))
        atom = self.atoms[number]
        if atom.described:
            return False
        atom.means(scale(quotient.meaning, function.args[1]))
        return True
