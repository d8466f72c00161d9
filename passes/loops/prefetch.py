"""Pass ``prefetch``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.layout import LAYOUT, IndexExpr
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.loops._loops import Access, accesses, depends_on, loops_tagged, number_layout, variable

LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True)
class Prefetch(Pass):
    """Asks for what later rounds of a loop read.

    Before::

        %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {
          %b = vector.load(%B.panels[%p, %k, 0:+48]) : vector<f32[1, 48]>
          ...

    After ``prefetch{loop=k, ahead=8}``::

        %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {
          memref.prefetch(%B.panels[%p, %k+8, 0])
          memref.prefetch(%B.panels[%p, %k+8, 16])
          memref.prefetch(%B.panels[%p, %k+8, 32])
          %b = vector.load(%B.panels[%p, %k, 0:+48]) : vector<f32[1, 48]>
          ...

    Loads of vectors are prefetched that move by whole lines from round to round: the variable of the loop is in an index
    before the last one.  A hint changes no result, and may point behind the buffer.
    """

    loop: str = "k"
    """tag of the loops"""
    ahead: int = 8
    """rounds from a hint to the load that it is for"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ahead < 1:
            raise ValueError("a hint is for a later round")

    def run(self, module: Module, context: PassContext) -> bool:
        made = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                if any(op.name == "memref.prefetch" for op in loop.regions[0].block):
                    continue
                for op in [o for o in loop.regions[0].block if o.name == "vector.load"]:
                    made += self._hints(op, variable(loop))
        context.count("hints made", made)
        return made > 0

    def _hints(self, load: Operation, at: Value) -> int:
        (access,) = accesses(load)
        *outer, last = access.indices
        if last.size is None or depends_on(last.expr, [at]) or not any(depends_on(i.expr, [at]) for i in outer):
            return 0
        if any(i.size is not None and i.size > 1 for i in outer):
            return 0
        graph, block = load.graph, load.block
        assert graph is not None and block is not None
        step = LINE // access.buffer.type.dtype.itemsize  # type: ignore[union-attr]
        later = [IndexExpr(i.expr + self.ahead if depends_on(i.expr, [at]) else i.expr) for i in outer]
        for start in range(0, last.size, step):
            operands, layout = number_layout([Access(access.buffer, (*later, IndexExpr(last.expr + start)))], graph)
            attributes: Any = {LAYOUT: layout}
            Builder(block, load, loc=load.loc).create(REGISTRY["memref.prefetch"], operands, attributes, result_types=())
        return -(-last.size // step)
