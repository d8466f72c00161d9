"""Index expressions that stand on their own, and operations that compute them.

A layout numbers the operands of its operation; an :class:`Index` carries the values that it mentions along, so that it
can be put into another operation, or become a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dialects.arith.constant import constant
from dialects.arith.integers import addi, floordivsi, maxsi, minsi, modsi, muli, subi
from dialects.memref import dim as memref_dim
from ir.attributes import Attribute, Dense
from ir.core import Block, Operation, Value
from ir.dims import Dim, DimExpr, DimFunction, substitute, symbols_of
from ir.inference import plain_symbol
from ir.layout import operand_symbol
from ir.opdef import OpDef
from ir.types import MemRefType, index

Make = Callable[[OpDef, Sequence[Value], dict[str, Attribute]], Value]
"""Builds an operation with one result of type index."""


@dataclass(frozen=True)
class Index:
    """An expression in which ``%n`` is ``values[n]``."""

    dim: Dim
    values: tuple[Value, ...] = ()


class Operands:
    """The operands of an operation that is being built; a value is one operand, however often it occurs."""

    def __init__(self, values: Sequence[Value] = ()) -> None:
        self.values: list[Value] = []
        self._positions: dict[Value, int] = {}
        for value in values:
            self.add(value)

    def add(self, value: Value) -> int:
        """The position of a value."""
        found = self._positions.get(value)
        if found is None:
            found = self._positions[value] = len(self.values)
            self.values.append(value)
        return found

    def put(self, part: Index) -> Dim:
        """An expression over these operands."""
        if not part.values:
            return part.dim
        if plain_symbol(part.dim) == "%0":
            return operand_symbol(self.add(part.values[0]))
        return substitute(part.dim, {f"%{n}": operand_symbol(self.add(v)) for n, v in enumerate(part.values)})

    def over(self, op: Operation, dim: Dim, replace: Callable[[Value], Index]) -> Dim:
        """An expression of another operation's layout with its operands replaced."""
        if not isinstance(dim, DimExpr):
            return dim
        name = plain_symbol(dim)
        if name is not None:
            return self.put(replace(op.operand_uses[int(name[1:])].value)) if name.startswith("%") else dim
        names = [n for n in symbols_of(dim) if n.startswith("%")]
        return substitute(dim, {n: self.put(replace(op.operand_uses[int(n[1:])].value)) for n in names}) if names else dim


def of_value(value: Value) -> Index:
    """A value as an expression."""
    return Index(operand_symbol(0), (value,))


def index_of(op: Operation, dim: Dim, replace: Callable[[Value], Index] = of_value) -> Index:
    """An expression of an operation's layout on its own; equal values in it become one."""
    operands = Operands()
    dim = operands.over(op, dim, replace)
    return Index(dim, tuple(operands.values))


def combine(function: Callable[..., Dim], *parts: Index) -> Index:
    """A function of expressions."""
    operands = Operands()
    dim = function(*(operands.put(p) for p in parts))
    used = symbols_of(dim)
    kept = Operands()
    values = {f"%{n}": v for n, v in enumerate(operands.values) if f"%{n}" in used}
    if len(values) == len(operands.values):
        return Index(dim, tuple(operands.values))
    dim = substitute(dim, {n: operand_symbol(kept.add(v)) for n, v in values.items()})
    return Index(dim, tuple(kept.values))


def difference(a: Index, b: Index) -> Index:
    """a - b."""
    return combine(lambda x, y: x - y, a, b)


# -- as values ---------------------------------------------------------------------------------------------------------


Dimensions = dict[str, tuple[Value, int]]
"""A buffer and its axis for each named dimension."""


def find_dimensions(parts: Iterable[Index], before: Operation) -> Dimensions | str:
    """Where the named dimensions in expressions can be read in front of an operation; the name of one that can't be."""
    found: Dimensions = {}
    for part in parts:
        for name in symbols_of(part.dim):
            if not name.startswith("%") and name not in found:
                place = _find_dimension(name, before)
                if place is None:
                    return name
                found[name] = place
    return found


def _find_dimension(name: str, before: Operation) -> tuple[Value, int] | None:
    at: Operation | None = before
    while at is not None and at.block is not None:
        block: Block = at.block
        earlier = at.prev
        while earlier is not None:
            for result in earlier.results:
                axis = _axis_of(result, name)
                if axis is not None:
                    return result, axis
            earlier = earlier.prev
        for argument in block.arguments:
            axis = _axis_of(argument, name)
            if axis is not None:
                return argument, axis
        at = block.parent.parent if block.parent is not None else None
    return None


def _axis_of(value: Value, name: str) -> int | None:
    if isinstance(value.type, MemRefType):
        for axis, size in enumerate(value.type.shape):
            if plain_symbol(size) == name:
                return axis
    return None


def compute(part: Index, dimensions: Dimensions, make: Make) -> Value:
    """An expression as a value."""
    return _Computer(part, dimensions, make).sum(part.dim)


def number(value: int, make: Make) -> Value:
    """A constant index."""
    return make(constant, [], {"value": Dense(np.array(value, np.int64), index)})


class _Computer:
    def __init__(self, part: Index, dimensions: Dimensions, make: Make) -> None:
        self.part = part
        self.dimensions = dimensions
        self.make = make

    def sum(self, dim: Dim) -> Value:
        if isinstance(dim, int):
            return number(dim, self.make)
        assert isinstance(dim, DimExpr)
        terms = sorted(dim.terms, key=lambda term: term[1] < 0)  # positive ones first: the others are subtracted
        total: Value | None = None
        for monomial, coefficient in terms:
            subtracted = total is not None and coefficient < 0
            term = self._product(monomial, -coefficient if subtracted else coefficient)
            total = term if total is None else self.make(subi if subtracted else addi, [total, term], {})
        assert total is not None
        return total

    def _product(self, monomial: tuple[str | DimFunction, ...], coefficient: int) -> Value:
        factors = [self._atom(a) for a in monomial]
        if coefficient != 1 or not factors:
            factors.append(number(coefficient, self.make))
        result = factors[0]
        for factor in factors[1:]:
            result = self.make(muli, [result, factor], {})
        return result

    def _atom(self, atom: str | DimFunction) -> Value:
        if isinstance(atom, str):
            if atom.startswith("%"):
                return self.part.values[int(atom[1:])]
            buffer, axis = self.dimensions[atom]
            return self.make(memref_dim, [buffer], {"axis": axis})
        arguments = [self.sum(a) for a in atom.args]
        if atom.kind == "ceildiv":
            zero = number(0, self.make)
            down = self.make(floordivsi, [self.make(subi, [zero, arguments[0]], {}), arguments[1]], {})
            return self.make(subi, [zero, down], {})
        definition = {"min": minsi, "max": maxsi, "floordiv": floordivsi, "mod": modsi}[atom.kind]
        result = arguments[0]
        for argument in arguments[1:]:
            result = self.make(definition, [result, argument], {})
        return result
