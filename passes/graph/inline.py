"""Pass ``inline``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.attributes import GraphRef
from ir.core import Graph, Module, Operation, Value, clone_operation
from ir.inference import unify_call
from ir.rewriter import replace_op
from ir.substitute import substitute_operation
from ir.updates import final_versions
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class Inline(Pass):
    """Replaces calls by the bodies of the graphs they call.

    Before::

        %y = call(@layer, %x, %w)

    After::

        %y.h = matmul(%x, %w)
        %y = relu(%y.h)

    A value of the callee is named after the call and itself; what the call returns keeps the call's names.  The
    callee's symbolic dimensions become those of the operands.  Its ``where`` clause is checked by a call only, and so
    is dropped.  Graphs that were called and no longer are, are removed.
    """

    needs_types: ClassVar[bool] = True

    keep: bool = False
    """keep graphs that are no longer called"""

    def run(self, module: Module, context: PassContext) -> bool:
        called: dict[str, None] = {}
        changed = False
        for graph in list(module.graphs.values()):
            while calls := [op for op in graph.walk() if op.definition.full_name == "graph.call"]:
                for op in calls:
                    called[_callee(op, module).name] = None
                    _inline(op, _callee(op, module))
                    context.count("calls inlined")
                changed = True
        if not self.keep:
            for name in called:
                del module.graphs[name]
        return changed


def _callee(op: Operation, module: Module) -> Graph:
    reference = op.attributes["callee"]
    assert isinstance(reference, GraphRef)
    return module.graphs[reference.name]


def _inline(op: Operation, callee: Graph) -> None:
    """Puts a copy of the callee's body in front of the call and erases the call."""
    assert op.block is not None
    bindings = unify_call(callee, [v.type for v in op.operands])
    prefix = next((r.name for r in op.results if r.name != "_"), callee.name)
    mapping: dict[Value, Value] = dict(zip(callee.parameters, op.operands, strict=True))
    for inner in callee.block:
        if inner.definition.is_terminator:
            break
        clone = clone_operation(inner, mapping, lambda name: name if name == "_" else f"{prefix}.{name}")
        if bindings:
            substitute_operation(clone, bindings)
        clone.loc = op.loc
        op.block.insert_before(op, clone)
        for result in clone.results:
            result.auto_named = True
    final = final_versions(callee, None)
    returned = [*callee.results, *(final[p] for p in callee.parameters if p.inout)]
    values = [mapping[v] for v in returned]
    replace_op(op, values)
