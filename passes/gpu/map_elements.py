"""Pass ``map-elements``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.core import Module, Operation
from passes.gpu._elements import find_runs, launch_runs, run_width
from passes.gpu._nests import device_graphs, host_blocks, is_lowered, launch_rounds, own_buffers, parallel_nest
from passes.gpu._transposing import find_across, launch_tiles
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class MapElements(Pass):
    """Turns nests over elements into kernels: neighbouring threads take neighbouring elements, 16 bytes each.

    Before::

        scf.parallel(%i = 0 to B, tag="row") {
          scf.parallel(%j = 0 to 64, tag="col") {
            %a = memref.load(%A[%i, %j]) : f32
            %b = memref.load(%bias[%j]) : f32
            %r = arith.addf(%a, %b) : f32
            memref.store(%r, %C[%i, %j])
            yield
          }
          yield
        }

    After::

        gpu.launch(%block = 0 to (16*B) ceildiv 256, threads=256, name="C", tag="elements") {
          %A.run = gpu.alloc() : memref<f32[4], local>
          %bias.run = gpu.alloc() : memref<f32[4], local>
          %C.run = gpu.alloc() : memref<f32[4], local>
          %t = gpu.thread_id() : index
          %run = affine.apply(256*%block+%t) : index
          %bound = affine.apply(16*B) : index
          %inside = arith.cmpi(%run, %bound, predicate="lt") : bool
          scf.if(%inside) {
            %piece = affine.apply(%run mod 16) : index
            %i = affine.apply(%run floordiv 16) : index
            %a = vector.load(%A[%i, 4*%piece:+4]) : vector<f32[4]>
            vector.store(%a, %A.run[0:+4])
            ...
            scf.for(%u = 0 to 4) {
              ...
              memref.store(%r, %C.run[%u])
              yield
            }
            %load = vector.load(%C.run[0:+4]) : vector<f32[4]>
            vector.store(%load, %C[%i, 4*%piece:+4])
            yield
          }
          yield
        }

    A nest is taken when it is parallel loops around a straight body that stores, without checks. The index space is counted through
    from the innermost variable outwards, so no thread is idle where rows are short. A thread takes a run of neighbours (16
    bytes of the smallest elements) where the length of rows and what is added to the variable show that every run is aligned;
    what one loop over all elements of unknown number leaves over is done element by element. What does not follow the innermost
    variable is loaded as a scalar. Otherwise a thread takes one element.

    Where something is read along the loop tagged ``cross`` (transposes), a block goes through a tile of shared memory, whose rows are
    padded by one bank: reads and writes are along neighbours.
    """

    keeps_types: ClassVar[bool] = True

    threads: int = 256
    """threads of a block, a multiple of 64"""

    def __post_init__(self) -> None:
        if self.threads % 64 or not 64 <= self.threads <= 1024:
            raise ValueError("threads: expected a multiple of 64 up to 1024")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in device_graphs(module):
            for block in list(host_blocks(graph.block)):
                for op in list(block):
                    if op.name == "scf.parallel" and is_lowered(op):
                        changed |= self._map(op, context)
        return changed

    def _map(self, op: Operation, context: PassContext) -> bool:
        nest = parallel_nest(op)
        inside = [n for o in nest.body for n in o.walk()]
        if any(n.name in ("scf.for", "scf.parallel", "cf.assert") for n in inside) or own_buffers(op) or nest.total == 0:
            return False
        if not any(n.name == "memref.store" for n in inside):
            return False
        across = find_across(nest)
        if across is not None:
            launch_tiles(nest, across, self.threads)
            context.count("nests read across")
            return True
        runs = find_runs(nest) if nest.starts_at_zero() else None
        width = run_width(nest, runs) if runs else 1
        if runs is None or width == 1:
            launch_rounds(nest, self.threads, "elements")
            context.count("nests by single elements")
        else:
            launch_runs(nest, runs, width, self.threads)
            context.count("nests by runs")
        return True
