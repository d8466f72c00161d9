"""How an operation with accesses, ranges, bindings or loop dimensions writes its arguments.

The layout of such an operation is an attribute, a tuple of the argument forms below.  Dimension expressions in it may
mention symbols, loop dimensions (by name) and operands (``%0`` is operand 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from ir.dims import Dim, DimExpr, apply_function, symbol

if TYPE_CHECKING:
    from ir.core import Operation

LAYOUT = "operand.layout"


@dataclass(frozen=True, slots=True)
class OperandArg:
    """``%x``: operand ``position`` as it is."""

    position: int


@dataclass(frozen=True, slots=True)
class IndexExpr:
    """One index of an access: an expression, with ``:+size`` for a run of elements."""

    expr: Dim
    size: int | None = None


@dataclass(frozen=True, slots=True)
class AccessArg:
    """``%A[i, %j:+8]``: elements of operand ``position``."""

    position: int
    indices: tuple[IndexExpr, ...]


@dataclass(frozen=True, slots=True)
class RangeArg:
    """``%i = a to b step c``: defines a region argument that runs from a to b (exclusive)."""

    start: Dim
    stop: Dim
    step: Dim


@dataclass(frozen=True, slots=True)
class BindArg:
    """``%acc = %init`` or ``%x = %A[i]``: defines a region argument that starts as, or stands for, the source."""

    source: OperandArg | AccessArg


@dataclass(frozen=True, slots=True)
class LoopDim:
    """``i < N`` or ``reduce k < K``: a named iteration dimension."""

    name: str
    bound: Dim
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class ExpressionArg:
    """``%i + 8``: an index expression, of an operation that takes nothing else."""

    expr: Dim


Argument = Union[OperandArg, AccessArg, RangeArg, BindArg, LoopDim, ExpressionArg]


def layout_of(op: Operation) -> tuple[Argument, ...]:
    """The argument forms of an operation whose definition has a layout."""
    return op.attributes[LAYOUT]  # type: ignore[return-value]


def operand_symbol(position: int) -> Dim:
    """The expression that stands for operand ``position``."""
    return symbol(f"%{position}")


def defines_argument(argument: Argument) -> bool:
    """Whether the form defines a region argument."""
    return isinstance(argument, (RangeArg, BindArg))


def wrap(value: int) -> int:
    """The number of 64 bits, with a sign, that is equal modulo 2**64."""
    return (value + 2**63) % 2**64 - 2**63


def evaluate_expr(expr: Dim, operands: Sequence[int], names: Mapping[str, int], wraps: bool = False) -> int:
    """The integer value of an expression, given operand values and named dimensions.

    With ``wraps`` it is computed in 64 bits, as machines do: sums and products modulo 2**64, functions of such numbers.
    Raises KeyError for a name without a value, ZeroDivisionError where the divisor of an expression is 0.
    """
    if isinstance(expr, int):
        return expr
    if not isinstance(expr, DimExpr):
        raise KeyError(str(expr))
    total = 0
    for monomial, coefficient in expr.terms:
        value = coefficient
        for atom in monomial:
            if not isinstance(atom, str):
                arguments = [evaluate_expr(a, operands, names, wraps) for a in atom.args]
                value *= apply_function(atom.kind, *arguments)  # type: ignore[assignment]  # of integers an integer
            elif atom.startswith("%"):
                value *= int(operands[int(atom[1:])])
            else:
                value *= names[atom]
        total += value
    return wrap(total) if wraps else total
