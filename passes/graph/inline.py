"""Pass ``inline``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ir.attributes import GraphRef
from ir.clone import clone_operation
from ir.core import DROPPED, Graph, Module, Operation, Trivia, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim, UnknownDim
from ir.inference import unify_call
from ir.printer import format_constraint
from ir.references import reachable_graphs
from ir.rewriter import replace_op
from ir.signature import constraint_holds
from ir.substitute import substitute_constraint, substitute_operation
from ir.types import merge_types, type_symbols
from ir.updates import final_versions
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class Inline(Pass):
    """Replaces calls by the bodies of the graphs they call.

    Before::

        graph @layer(%x: f32[N, 4], %w: f32[4, 4]) -> f32[N, 4] {
          %h = matmul(%x, %w)
          %r = relu(%h)
          return %r
        }

        graph @main(%x: f32[B, 4], %w: f32[4, 4]) -> f32[B, 4] {
          %y = call(@layer, %x, %w)
          return %y
        }

    After::

        graph @main(%x: f32[B, 4], %w: f32[4, 4]) -> f32[B, 4] {
          %y.h = matmul(%x, %w) : f32[B, 4]
          %y = relu(%y.h) : f32[B, 4]
          return %y
        }

    A value of the callee is named after the call's first result and itself; what the call returns keeps the call's
    names.  The callee's symbolic dimensions become those of the operands, in types and attributes.  Conditions of its
    ``where`` clause are handed to the caller; one that can't hold is an error here.  An ``inout`` parameter becomes the
    caller's array, whose last version the call returns.  Comments of the call stay, those in the callee are not copied;
    operations keep their place in the text of the callee.

    Graphs that were called and no longer are, are removed, but for ``@main``.  A call stays where the operands' types
    leave a dimension of the callee open, and where the caller would grow beyond ``limit`` operations.
    """

    keep: bool = False
    """keep graphs that are no longer called"""
    limit: int = 10_000
    """operations that a graph may grow to"""

    def run(self, module: Module, context: PassContext) -> bool:
        called = _called(module)
        sizes: dict[str, int] = {}
        inlined = 0
        for graph in _callees_first(module):
            sizes[graph.name] = sum(1 for _ in graph.walk())
            while count := self._inline_calls(graph, module, sizes):
                inlined += count
        context.count("calls inlined", inlined)
        removed = 0 if self.keep else _remove(module, called)
        return inlined > 0 or removed > 0

    def _inline_calls(self, graph: Graph, module: Module, sizes: dict[str, int]) -> int:
        """Goes once through the calls of a graph; returns how many it replaced."""
        inlined = 0
        for op in [op for op in graph.walk() if op.definition.full_name == "graph.call"]:
            callee = _callee(op, module)
            bindings = unify_call(callee, [v.type for v in op.operands])
            grown = sizes[graph.name] + sizes[callee.name] - 2  # without the call and the callee's return
            if grown > self.limit or not _binds_all(callee, bindings):
                continue
            _hand_over_constraints(op, callee, graph, bindings)
            _inline(op, callee, module, bindings)
            sizes[graph.name] = grown
            inlined += 1
        return inlined


# -- which calls -------------------------------------------------------------------------------------------------------


def _callee(op: Operation, module: Module) -> Graph:
    reference = op.attributes["callee"]
    assert isinstance(reference, GraphRef)
    return module.graphs[reference.name]


def _called(module: Module) -> dict[str, None]:
    """Names of the graphs that are called."""
    return {_callee(op, module).name: None for op in module.walk() if op.definition.full_name == "graph.call"}


def _callees_first(module: Module) -> list[Graph]:
    """All graphs, each behind those that it calls; so a body that is copied has no calls left that can be replaced."""
    order: dict[str, None] = {}
    entered: set[str] = set()
    for root in module.graphs:
        stack = [root]
        while stack:
            name = stack[-1]
            if name in entered:
                stack.pop()
                order[name] = None
                continue
            entered.add(name)
            calls = [_callee(op, module).name for op in module.graphs[name].walk() if op.definition.full_name == "graph.call"]
            stack += [n for n in dict.fromkeys(calls) if n not in entered]
    return [module.graphs[n] for n in order]


def _binds_all(callee: Graph, bindings: Mapping[str, Dim]) -> bool:
    """Whether every symbolic dimension of the callee is known in the caller."""
    symbols: dict[str, None] = {}
    for parameter in callee.parameters:
        symbols.update(type_symbols(parameter.type))
    return all(n in bindings and not isinstance(bindings[n], UnknownDim) for n in symbols)


def _remove(module: Module, called: Mapping[str, None]) -> int:
    """Removes graphs that were called and are not any more, directly or from graphs that stay."""
    needed = reachable_graphs(module, [n for n in module.graphs if n not in called or n == "main"])
    unneeded = [n for n in module.graphs if n not in needed]
    for name in unneeded:
        _keep_comments(module.graphs.pop(name), module)
    return len(unneeded)


def _keep_comments(graph: Graph, module: Module) -> None:
    """Hands the comments that stand by themselves above a removed graph (a licence, say) to the first one that stays."""
    detached = graph.trivia.detached if graph.trivia is not None else ()
    heir = next((g for g in module.graphs.values() if not g.bare), None)
    if heir is None:
        module.comments = detached + module.comments
    elif detached:
        heir.trivia = heir.trivia or Trivia()
        heir.trivia.detached = detached + heir.trivia.detached


# -- one call ----------------------------------------------------------------------------------------------------------


def _hand_over_constraints(op: Operation, callee: Graph, graph: Graph, bindings: Mapping[str, Dim]) -> None:
    for constraint in callee.constraints:
        here = substitute_constraint(constraint, bindings)
        if all(isinstance(d, int) for d in here.dims):
            if not constraint_holds(here, {}):
                message = f"graph @{callee.name} wants {format_constraint(constraint)}, here {format_constraint(here)}"
                raise GraphError(Diagnostic(message, op.loc))
        elif here not in graph.constraints:
            graph.constraints = (*graph.constraints, here)


def _inline(op: Operation, callee: Graph, module: Module, bindings: Mapping[str, Dim]) -> None:
    """Puts a copy of the callee's body in front of the call and erases the call."""
    assert op.block is not None
    prefix = next((r.name for r in op.results if r.name != DROPPED), callee.name)
    mapping: dict[Value, Value] = dict(zip(callee.parameters, op.operands, strict=True))
    for inner in callee.block:
        if inner.definition.is_terminator:
            break
        clone = clone_operation(inner, mapping, lambda name: name if name == DROPPED else f"{prefix}.{name}")
        if bindings:
            substitute_operation(clone, bindings)
        op.block.insert_before(op, clone)
        for result in clone.results:
            result.auto_named = True
    final = final_versions(callee, module)
    returned = [*callee.results, *(final[p] for p in callee.parameters if p.inout)]
    values = [mapping[v] for v in returned]
    for value, result in zip(values, op.results, strict=True):
        if value.defining_op is not None:  # what the call declares may say more
            value.type = merge_types(value.type, result.type) or value.type
    replace_op(op, values)
