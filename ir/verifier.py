"""Checks that a module is well formed: what the parser guarantees for text, and passes must keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ir.core import DROPPED, Block, Graph, Module, Operation, Value
from ir.diagnostics import Diagnostics
from ir.inference import Inference
from ir.locate import use_location
from ir.opdef import PRESENT, TypeProblem, check_attributes
from ir.updates import updated_operands

if TYPE_CHECKING:
    from ir.weights import WeightSource


def verify_module(module: Module, report: Diagnostics | None = None, sources: Mapping[str, WeightSource] | None = None) -> None:
    """Structure, then types.  Raises :class:`GraphError` with everything found, or adds it to ``report``.

    A report that has complaints already is the parser's: it stands for the structure, and only types are checked.
    Operations that no text can spell out (too few operands, wrong attributes) have no types to check.
    """
    own = report if report is not None else Diagnostics()
    malformed = False
    for graph in module.graphs.values() if not own.items else ():
        verifier = _GraphVerifier(graph, module, own)
        verifier.run()
        malformed = malformed or verifier.malformed
    if not malformed:
        Inference(module, own, sources).run()
    if report is None:
        own.raise_if_any()


class _GraphVerifier:
    def __init__(self, graph: Graph, module: Module, report: Diagnostics) -> None:
        self.graph = graph
        self.module = module
        self.report = report
        self.visible: set[Value] = set()
        self.names: dict[str, Value] = {}
        self.malformed = False

    def run(self) -> None:
        graph = self.graph
        if graph.block.terminator is None or graph.block.terminator.definition.name != "return":
            self.report.error(f"graph @{graph.name} does not end in 'return'", graph.loc)
        elif len(graph.return_op.operand_uses) != len(graph.result_types):
            returned = len(graph.return_op.operand_uses)
            self.report.error(f"graph @{graph.name} declares {len(graph.result_types)} results, but {returned} are returned", graph.return_op.loc)
        self._block(graph.block)
        if not self.malformed:
            self._updates()

    def _block(self, block: Block) -> None:
        entered: list[Value] = list(block.arguments)
        for argument in block.arguments:
            self._define(argument)
        for op in block:
            self._operation(op)
            entered.extend(op.results)
            if op.definition.is_terminator and op.next is not None:
                self.report.error(f"'{op.definition.text_name}' must be the last operation", op.loc)
        self.visible.difference_update(entered)

    def _define(self, value: Value) -> None:
        self.visible.add(value)
        if value.name == DROPPED:
            if value.has_uses:
                self.report.error("%_ drops a result, it can't be used", value.location)
            return
        if self.names.setdefault(value.name, value) is not value or self.graph.names.get(value.name) is not value:
            self.report.error(f"two values are named %{value.name}", value.location)

    def _operation(self, op: Operation) -> None:
        for use in op.operand_uses:
            if use.value not in self.visible:
                self.report.error(f"%{use.value.name} is used where it is not defined", use_location(use))
        definition = op.definition
        if not definition.has_layout:
            present = op.attributes.get(PRESENT, ())
            assert isinstance(present, tuple)
            positional = len(op.operand_uses) - len(present)
            required = len(definition.required_operands)
            if positional < required or (positional > required and definition.variadic is None):
                self.report.error(f"'{definition.text_name}' takes {required} operands, found {positional}", op.loc)
                self.malformed = True
        if definition.result_count is not None and definition.result_count != len(op.results):
            self.report.error(f"'{definition.text_name}' has {definition.result_count} results, found {len(op.results)}", op.loc)
        try:
            check_attributes(definition, op.attributes)
        except TypeProblem as problem:
            self.report.error(problem.message, op.loc, hint=problem.hint)
            self.malformed = True
        for region in op.regions:
            for block in region.blocks:
                self._block(block)
        for result in op.results:
            self._define(result)

    def _updates(self) -> None:
        """An array is updated in place along one chain of versions that starts at an ``inout`` parameter."""
        versions: dict[Value, Operation | None] = {p: None for p in self.graph.parameters if p.inout}
        for op in self.graph.block:
            for use, result in updated_operands(op, self.module):
                earlier = versions.get(use.value)
                if use.value not in versions:
                    self.report.error(
                        f"%{use.value.name} can't be updated in place",
                        use_location(use),
                        hint="it must be a parameter marked inout, or the last update of one",
                    )
                elif earlier is not None:
                    notes = [("updated here before", earlier.loc)]
                    self.report.error(f"%{use.value.name} was already updated; use the newer version", use_location(use), notes=notes)
                else:
                    versions[use.value] = op
                versions[result] = None
