"""Pass ``dce``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core import Module
from ir.references import all_references, load_time_graphs
from ir.rewriter import erase_if_dead
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class Dce(Pass):
    """Removes operations whose results nothing uses (dead code elimination).

    Before::

        %a = exp(%x)
        %b = neg(%x)
        return %b

    After::

        %b = neg(%x)
        return %b

    Operations with an effect (print, assert, cache updates, calls) stay.  A graph that runs when the program is loaded
    goes with the last operation that takes a result of it.
    """

    needs_types: ClassVar[bool] = False

    def run(self, module: Module, context: PassContext) -> bool:
        at_load_time = load_time_graphs(module)
        erased = 0
        for graph in module.graphs.values():
            for op in reversed(list(graph.walk())):
                if op.block is not None and erase_if_dead(op):
                    erased += 1
        for name in [n for n in at_load_time if n not in all_references(module)] if erased else ():
            del module.graphs[name]
        context.count("operations removed", erased)
        return erased > 0
