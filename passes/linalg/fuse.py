"""Pass ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from ir.core import Graph, Module, Operation
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.linalg._dead import remove_dead_buffers
from passes.linalg._fusion import is_nest
from passes.linalg._joining import has_one_reader, is_plain, join_nests
from passes.linalg._nest_index import Nests
from passes.linalg._repeating import repeat_producer
from passes.linalg._rows import join_rows
from passes.linalg._simpler import drop_unit_dims, sink_tensors, through_reshapes
from passes.linalg._verdicts import decisions_of


@dataclass(frozen=True)
class Fuse(Pass):
    """Joins neighbouring loop nests, so that what passes between them needs no memory.

    Before::

        graph @main(%A: memref<f32[B, 8]>, %W: memref<f32[8, 4]>, %C: memref<f32[B, 4]>) {
          %T = memref.alloc() : memref<f32[B, 4]>
          linalg.generic(i < B, j < 4, %o = %T[i, j]) {
            %zero = arith.constant(0.0) : f32
            %sum = linalg.reduce(k < 8, %a = %A[i, k], %w = %W[k, j], %acc = %zero) {
              %s = math.fma(%a, %w, %acc) : f32
              yield %s
            } : f32
            yield %sum
          }
          linalg.generic(i < B, j < 4, %t = %T[i, j], %c = %C[i, j]) {
            %r = math.tanh(%t) : f32
            yield %r
          }
          return
        }

    After::

        graph @main(%A: memref<f32[B, 8]>, %W: memref<f32[8, 4]>, %C: memref<f32[B, 4]>) {
          linalg.generic(i < B, j < 4, %c = %C[i, j]) {
            %zero = arith.constant(0.0) : f32
            %sum = linalg.reduce(k < 8, %a = %A[i, k], %w = %W[k, j], %acc = %zero) {
              %s = math.fma(%a, %w, %acc) : f32
              yield %s
            } : f32
            %r = math.tanh(%sum) : f32
            yield %r
          }
          return
        }

    Three ways, each only where the program stays the same bit for bit:

    - A nest that only moves elements, or that computes little, is repeated where its result is read.
    - A nest is joined with one that reads its result at the very place that is being stored: the value is used as it is.
      It is stored too when something else reads it.
    - Nests over the same rows, of which some reduce along the rows, become one loop over the rows (softmax,
      normalizations).

    A nest stays apart when the order of its writes and reads can't be proven to stay, and when joining would compute a
    costly value more than once.  What is returned is stored as a value of its own.  ``graph-opt explain-fusion FILE`` says
    what was decided, and why.
    """

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            changed |= _fuse_graph(graph, context)
        return changed


class Stage(Enum):
    """In which order nests are joined.

    First what only moves elements.  Then values that one nest reads: what is behind a value with several readers is not yet
    joined with it, so that it can still be computed where it is read.  Then the rest.
    """

    MOVES = 1
    OWN = 2
    REST = 3


def _fuse_graph(graph: Graph, context: PassContext) -> bool:
    if not any(op.name == "linalg.generic" for op in graph.block):
        return False
    before = context.statistics.copy()
    remove_dead_buffers(graph, context)  # what they read holds nothing in its place
    drop_unit_dims(graph, context)
    through_reshapes(graph, context)
    nests = Nests(graph)
    sink_tensors(nests, context)
    for stage in Stage:
        pending = [op for op in graph.block if is_nest(op)]
        while pending:
            nests.touched.clear()
            for op in pending:
                if op.block is not None:
                    _into(nests, op, context, stage)
            pending = nests.in_order(nests.touched)
    join_rows(nests, context)
    remove_dead_buffers(graph, context)
    if context.decisions is not None:
        nests.refresh()
        context.decisions.append(decisions_of(nests))
    return context.statistics != before


def _into(nests: Nests, consumer: Operation, context: PassContext, stage: Stage) -> None:
    """Joins everything that can be with a nest that reads it."""
    while True:
        joined = None if stage is Stage.MOVES else join_nests(nests, consumer, context, is_plain)
        if joined is None:
            joined = consumer if repeat_producer(nests, consumer, context, moves_only=stage is Stage.MOVES) else None
        if joined is None and stage is not Stage.MOVES:
            joined = join_nests(nests, consumer, context, has_one_reader if stage is Stage.OWN else None)
        if joined is None:
            return
        consumer = joined
