"""Pass ``unroll-vectors``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ir.core import Module
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.vector._unroller import Unroller


@dataclass(frozen=True)
class UnrollVectors(Pass):
    """Cuts vectors into pieces that fit in machine registers.

    Before::

        %s = scf.for(%k = 0 to K, %acc = %zero) {
          %a = vector.load(%A[%i:+2, %k]) : vector<f32[2, 1]>
          %b = vector.load(%B[%k, %j:+32]) : vector<f32[1, 32]>
          %t = math.fma(%a, %b, %acc) : vector<f32[2, 32]>
          yield %t
        } : vector<f32[2, 32]>

    After::

        %s, %s.1, %s.2, %s.3 = scf.for(%k = 0 to K, %acc = %zero.x16, %acc.1 = %zero.x16, %acc.2 = %zero.x16, %acc.3 = %zero.x16) {
          %a = memref.load(%A[%i, %k]) : f32
          %a.x16 = vector.broadcast(%a) : vector<f32[16]>
          %a.1 = memref.load(%A[%i+1, %k]) : f32
          %a.x16.1 = vector.broadcast(%a.1) : vector<f32[16]>
          %b = vector.load(%B[%k, %j:+16]) : vector<f32[16]>
          %b.1 = vector.load(%B[%k, %j+16:+16]) : vector<f32[16]>
          %t = math.fma(%a.x16, %b, %acc) : vector<f32[16]>
          %t.1 = math.fma(%a.x16, %b.1, %acc.1) : vector<f32[16]>
          %t.2 = math.fma(%a.x16.1, %b, %acc.2) : vector<f32[16]>
          %t.3 = math.fma(%a.x16.1, %b.1, %acc.3) : vector<f32[16]>
          yield %t, %t.1, %t.2, %t.3
        } : vector<f32[16]>, vector<f32[16]>, vector<f32[16]>, vector<f32[16]>

    Every vector becomes, row by row, pieces along its last axis of at most ``lanes`` elements (the last one may be
    narrower); a piece of one element is a scalar.  Loops and choices carry the pieces.  Scalars that meet vectors are
    broadcast where they are defined, so that elementwise operations have operands of one type.  Reshapes and transposes
    that move whole pieces vanish, others become shuffles.  Afterwards a vector has one dimension and 2 to ``lanes``
    elements.

    What multiplies tiles (:mod:`dialects._tiles`) stays whole; other products of matrices are written word by word.

    The numbers of ``vector.multi_reduction`` are combined in a fixed order (by halves: first rows, then pieces, then lanes)
    and rounded at every step; the bits of everything else stay.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    lanes: int = 16

    def __post_init__(self) -> None:
        if self.lanes < 2:
            raise ValueError("lanes: expected 2 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            changed |= Unroller(self.lanes).graph(graph)
        return changed
