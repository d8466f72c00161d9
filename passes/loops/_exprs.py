"""Index expressions over values.

In a layout an expression names operands by position (``%3``), and every occurrence of a value is an operand of its own.
Passes compare and change expressions over values instead: ``%i`` stands for the value called i wherever it occurs, so
equal expressions are equal objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir.core import Block, Operation, Value
from ir.dims import Dim, DimExpr, substitute, symbol, symbols_of
from ir.layout import LAYOUT, AccessArg, Argument, BindArg, IndexExpr, LoopDim, OperandArg, RangeArg, layout_of
from ir.opdef import PRESENT


def value_symbol(value: Value) -> DimExpr:
    """The expression that stands for a value."""
    return symbol(f"%{value.name}")


def over_values(op: Operation, expr: Dim) -> Dim:
    """An expression of the operation's layout with values in the place of operand positions."""
    if not isinstance(expr, DimExpr):
        return expr
    bindings = {n: value_symbol(op.operand_uses[int(n[1:])].value) for n in symbols_of(expr) if n.startswith("%")}
    return substitute(expr, bindings) if bindings else expr


def replace_values(expr: Dim, bindings: Mapping[Value, Dim]) -> Dim:
    """An expression over values with some of them replaced."""
    return substitute(expr, {f"%{v.name}": e for v, e in bindings.items()})


def map_expressions(op: Operation, change: Callable[[Dim], Dim], values: Mapping[str, Value]) -> None:
    """Changes every expression of a layout in place; ``change`` gets and gives expressions over values.

    ``values`` has the values that new expressions mention, by name (``graph.names``, as a rule).
    """
    arguments: list[Argument] = []
    operands: list[Value] = []

    def operand(position: int) -> int:
        operands.append(op.operand_uses[position].value)
        return len(operands) - 1

    def expr(old: Dim) -> Dim:
        return to_operands(change(over_values(op, old)), operands, values)

    def access(old: AccessArg) -> AccessArg:
        position = operand(old.position)
        return AccessArg(position, tuple(IndexExpr(expr(i.expr), i.size) for i in old.indices))

    for argument in layout_of(op):
        if isinstance(argument, OperandArg):
            arguments.append(OperandArg(operand(argument.position)))
        elif isinstance(argument, AccessArg):
            arguments.append(access(argument))
        elif isinstance(argument, RangeArg):
            arguments.append(RangeArg(expr(argument.start), expr(argument.stop), expr(argument.step)))
        elif isinstance(argument, LoopDim):
            arguments.append(LoopDim(argument.name, expr(argument.bound), argument.reduce))
        elif isinstance(argument.source, AccessArg):
            arguments.append(BindArg(access(argument.source)))
        else:
            arguments.append(BindArg(OperandArg(operand(argument.source.position))))
    operands += op.operands[len(op.operand_uses) - present_count(op) :]
    op.set_operands(operands)
    op.set_attribute(LAYOUT, tuple(arguments))  # type: ignore[arg-type]


def to_operands(expr: Dim, operands: list[Value], values: Mapping[str, Value]) -> Dim:
    """An expression over values as one of a layout; the values it mentions are appended to ``operands``."""
    bindings: dict[str, Dim] = {}
    for name in symbols_of(expr):
        if name.startswith("%"):
            operands.append(values[name[1:]])
            bindings[name] = symbol(f"%{len(operands) - 1}")
    return substitute(expr, bindings) if bindings else expr


def present_count(op: Operation) -> int:
    """How many optional operands (``valid=%n``) stand behind those of the layout."""
    present = op.attributes.get(PRESENT, ())
    assert isinstance(present, tuple)
    return len(present)


def access_operands(
    buffer: Value, indices: Sequence[Dim], sizes: Sequence[int | None], values: Mapping[str, Value], operands: list[Value]
) -> AccessArg:
    """An access at expressions over values, its operands appended to ``operands``."""
    operands.append(buffer)
    position = len(operands) - 1
    return AccessArg(position, tuple(IndexExpr(to_operands(e, operands, values), s) for e, s in zip(indices, sizes, strict=True)))


def is_inside(value: Value, block: Block) -> bool:
    """Whether a value is defined in a block or in a region below it."""
    at = value.owner if isinstance(value.owner, Block) else value.owner.block
    while at is not None:
        if at is block:
            return True
        outer = at.parent.parent if at.parent is not None else None
        at = outer.block if outer is not None else None
    return False
