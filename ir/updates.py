"""In-place updates: which operation makes a new version of which ``inout`` parameter.

Operations stay functions of values: ``cache_update`` returns a new tensor.  What makes the update one in place is that
the tensors form a chain of versions from the parameter on, each updated at most once; the last version is what the
caller's array holds afterwards.
"""

from __future__ import annotations

from ir.attributes import GraphRef
from ir.core import Graph, Module, Operation, Parameter, Use, Value


def updated_operands(op: Operation, module: Module | None) -> list[tuple[Use, Value]]:
    """(use, new version) of every operand that ``op`` updates."""
    definition = op.definition
    if definition.updates is not None:
        use = op.operand_use(definition.updates)
        return [(use, op.results[0])] if use is not None else []
    if definition.full_name == "graph.call" and module is not None:
        callee = module.graphs.get(op.attributes["callee"].name)  # type: ignore[union-attr]
        if callee is not None:
            assert isinstance(op.attributes["callee"], GraphRef)
            positions = [i for i, p in enumerate(callee.parameters) if p.inout]
            first = len(op.results) - len(positions)
            if first >= 0:
                return [(op.operand_uses[i], op.results[first + k]) for k, i in enumerate(positions) if i < len(op.operand_uses)]
    return []


def final_versions(graph: Graph, module: Module | None) -> dict[Parameter, Value]:
    """The last version of every ``inout`` parameter."""
    latest: dict[Value, Parameter] = {p: p for p in graph.parameters if p.inout}
    final: dict[Parameter, Value] = {p: p for p in graph.parameters if p.inout}
    for op in graph.block:
        for use, result in updated_operands(op, module):
            parameter = latest.get(use.value)
            if parameter is not None:
                latest[result] = parameter
                final[parameter] = result
    return final
