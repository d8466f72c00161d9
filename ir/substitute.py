"""Replacing symbolic dimensions by other dimensions, in everything that may mention them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ir.attributes import Attribute
from ir.core import Constraint, Operation
from ir.dims import Dim, DimExpr, substitute
from ir.layout import AccessArg, BindArg, ExpressionArg, IndexExpr, LoopDim, RangeArg
from ir.types import TYPE_CLASSES, substitute_type

Bindings = Mapping[str, Dim]


def substitute_attribute(value: Attribute, bindings: Bindings) -> Attribute:
    """An attribute with symbols replaced; names that ``bindings`` lacks stay."""
    if isinstance(value, tuple):
        return tuple(substitute_attribute(v, bindings) for v in value)
    if isinstance(value, DimExpr):
        return substitute(value, bindings)
    if isinstance(value, TYPE_CLASSES):
        return substitute_type(value, bindings)
    return _substitute_argument(value, bindings)  # type: ignore[no-any-return]


def _substitute_argument(value: Any, bindings: Bindings) -> Any:
    """The same for the forms of a layout."""
    if isinstance(value, LoopDim):
        return LoopDim(value.name, substitute(value.bound, bindings), value.reduce)
    if isinstance(value, RangeArg):
        return RangeArg(*(substitute(d, bindings) for d in (value.start, value.stop, value.step)))
    if isinstance(value, AccessArg):
        return AccessArg(value.position, tuple(IndexExpr(substitute(i.expr, bindings), i.size) for i in value.indices))
    if isinstance(value, ExpressionArg):
        return ExpressionArg(substitute(value.expr, bindings))
    if isinstance(value, BindArg):
        return BindArg(_substitute_argument(value.source, bindings))
    return value


def substitute_operation(op: Operation, bindings: Bindings) -> None:
    """Replaces symbols in the attributes and types of an operation and of all inside it, in place."""
    for nested in op.walk():
        if nested.attributes:
            nested.attributes = {k: substitute_attribute(v, bindings) for k, v in nested.attributes.items()}
        for result in nested.results:
            result.type = substitute_type(result.type, bindings)
        for region in nested.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.type = substitute_type(argument.type, bindings)


def substitute_constraint(constraint: Constraint, bindings: Bindings) -> Constraint:
    """A condition with symbols replaced."""
    return Constraint(tuple(substitute(d, bindings) for d in constraint.dims), constraint.comparisons)
