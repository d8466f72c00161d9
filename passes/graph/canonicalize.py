"""Pass ``canonicalize``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.core import Module, Operation, Value
from ir.diagnostics import GraphError
from ir.opdef import OpDef
from ir.rewriter import Rewrite, rewrite_greedily
from ir.types import is_known
from passes.graph import _rules_arithmetic, _rules_logic, _rules_shape
from passes.graph._rules import Rule
from passes.infra.base import Pass, PassContext


def _rewrite(rule: Rule) -> Rewrite:
    """The rule where it fits: on one result of known type, replaced by a value of the same type."""

    def apply(op: Operation) -> Value | None:
        if len(op.results) != 1 or not is_known(op.result.type):
            return None
        try:
            value = rule(op)
        except GraphError:  # what the rule builds does not exist for these types
            return None
        return value if value is not None and value.type == op.result.type else None

    return apply


_REWRITES: dict[OpDef, Sequence[Rewrite]] = {
    definition: [_rewrite(rule) for rule in rules]
    for table in (_rules_arithmetic.ONE_OPERAND, _rules_arithmetic.TWO_OPERANDS, _rules_logic.TABLE, _rules_shape.TABLE)
    for definition, rules in table.items()
}


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Simplifies operations by algebra that keeps every bit.

    Before::

        %one = constant(1.0) : f32[]
        %a = mul(%one, %x) : f32[B, 4]
        %b = transpose(%a) : f32[4, B]
        %c = transpose(%b) : f32[B, 4]
        %d = add(%k, %c) : f32[B, 4]

    After::

        %d = add(%x, %k) : f32[B, 4]

    The rules are tables keyed by operation (``passes/graph/_rules_*.py``), applied until none applies.  Each is right for
    NaN (whose payload may change), infinities, -0 and every element type that it is applied to; constants of any shape
    count if they don't change the result's shape.  So ``x * 1`` and ``x - 0`` are x, but ``x + 0`` is not for floats
    (-0 + 0 is +0), ``x - x`` and ``x * 0`` are 0 for integers only, and a pair of casts that rounds on its way stays.
    Nothing is regrouped: (a * b) * c is rounded differently from a * (b * c).

    Constants come to the right of commutative operations.  Operations that the rules leave without use are removed;
    what was unused before is left to ``dce``.
    """

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in module.graphs.values():
            changed |= rewrite_greedily(graph, _REWRITES, lambda op: context.count("operations simplified"))
        return changed
