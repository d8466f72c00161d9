"""Pass ``fuse``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core import Graph, Module, Operation
from ir.rewriter import is_pure, walk_graphs
from passes.infra.base import Pass, PassContext
from passes.linalg._fusion import is_nest
from passes.linalg._joining import drop_unit_dims, inline_producer, join_nests, remove_unread, sink_tensors, through_reshapes
from passes.linalg._rows import join_rows


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
    costly value more than once.
    """

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            changed |= _fuse_graph(graph, context)
        return changed


def _fuse_graph(graph: Graph, context: PassContext) -> bool:
    if not any(op.name == "linalg.generic" for op in graph.block):
        return False
    before = context.statistics.copy()
    remove_dead_buffers(graph, context)  # what they read holds nothing in its place
    sink_tensors(graph, context)
    drop_unit_dims(graph, context)
    through_reshapes(graph, context)
    for inline in (True, False):
        again = True
        while again:
            again = False
            for op in list(graph.block):
                if op.block is not None and is_nest(op):
                    again |= _into(op, context, moves_only=inline)
    join_rows(graph, context)
    remove_dead_buffers(graph, context)
    return context.statistics != before


def _into(consumer: Operation, context: PassContext, moves_only: bool) -> bool:
    """Joins everything that can be with a nest that reads it; returns whether anything was."""
    changed = False
    while True:
        joined = inline_producer(consumer, context, moves_only)
        if joined is None and not moves_only:
            joined = join_nests(consumer, context)
        if joined is None:
            return changed
        consumer, changed = joined, True


def remove_dead_buffers(graph: Graph, context: PassContext) -> None:
    """Erases buffers that nothing reads, and the nests that only write to them."""
    for op in reversed(list(graph.block)):
        if op.block is None:
            continue
        if op.name == "memref.alloc":
            if remove_unread(op.results[0]):
                context.count("buffers removed")
        elif op.results and not any(r.has_uses for r in op.results) and is_pure(op) and op.definition.dialect in ("memref", "arith", "graph"):
            op.erase()
            context.count("operations removed")
