"""Pass ``map-rows``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ir.core import Module, Operation
from passes.gpu._nests import device_graphs, host_blocks
from passes.gpu._row_blocks import LongRows, threads_for
from passes.gpu._row_lanes import ShortRows, can_be_short
from passes.gpu._rows import find_rows
from passes.gpu._single_rows import gather_rows
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class MapRows(Pass):
    """Turns nests over rows, with sums along them, into kernels: 16 threads for a short row, a block for a long one.

    Before::

        scf.parallel(%i = 0 to B, tag="row") {
          %zero = arith.constant(0.0) : f32
          %s = scf.for(%j = 0 to 64, %acc = %zero, tag="reduce") {
            %a = memref.load(%A[%i, %j]) : f32
            %t = arith.addf(%acc, %a) : f32
            yield %t
          } : f32
          scf.parallel(%k = 0 to 64, tag="col") {
            %b = memref.load(%A[%i, %k]) : f32
            %q = arith.divf(%b, %s) : f32
            memref.store(%q, %C[%i, %k])
            yield
          }
          yield
        }

    After::

        gpu.launch(%block = 0 to B ceildiv 8, threads=128, name="C", tag="rows") {
          %t = gpu.thread_id() : index
          %lane = affine.apply(%t mod 16) : index
          %row = affine.apply(8*%block+(%t floordiv 16)) : index
          ...
          %A.lanes = gpu.alloc() : memref<f32[4], local>
          scf.for(%k = 0 to 4) {
            %load = memref.load(%A[%i, 16*%k+%lane]) : f32
            memref.store(%load, %A.lanes[%k])
            yield
          }
          %none = arith.constant(-0.0) : f32
          %for = scf.for(%k.1 = 0 to 4, %acc = %none) {
            %a = memref.load(%A.lanes[%k.1]) : f32
            %t.1 = arith.addf(%acc, %a) : f32
            yield %t.1
          } : f32
          %s.lanes = gpu.warp_reduce(%for, kind="add", width=16) : f32
          %s = arith.addf(%zero, %s.lanes) : f32
          ...
        }

    Sums of floats have the order that ``split-reduction`` gives them, 16 lanes and a tree, so the bits are those of machine code for
    CPUs; what ``split-reduction`` leaves alone is one chain. Extremes, integers and such are reduced by all threads.

    A row is short when all its loops have a known number of rounds, ``short`` at most. Each of 16 threads has one lane of it: what several
    loops load, and memory that is used within one row only (the exponentials of softmax), is in its registers. There
    are no barriers. Threads of a warp without a row go along with the last row, and store nothing.

    A long row, or one of unknown length, has a block. All threads compute the terms of a sum into shared memory, a piece at a time, and
    one warp adds them; terms that lie in shared memory anyway are added from there. Loops over columns take runs of 16 bytes where
    they are aligned. Memory of one row is shared memory up to 64 KiB. A barrier stands where a step touches what another
    thread may have stored before, or the other way around.

    Reductions on top of a graph (a single row: norms and choices of one token) are one row, together with the scalars and the loops over
    up to 16384 elements that have to do with them.

    A nest stays as it is when its loops do something else than to carry values (stores, checks, loops inside), and when its sums go
    across columns: there neighbouring threads take neighbouring columns (``map-serial``).
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    short: int = 1024
    """rounds of loops along a row that 16 threads run, at most; an eighth of it where elements have 8 bytes"""
    threads: int = 128
    """threads of a block of short rows, a multiple of 32"""

    def __post_init__(self) -> None:
        if self.threads % 32 or not 32 <= self.threads <= 1024:
            raise ValueError("threads: expected a multiple of 32 up to 1024")
        if self.short < 0:
            raise ValueError("short: expected 0 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in device_graphs(module):
            for block in list(host_blocks(graph.block)):
                gather_rows(block)
                for op in list(block):
                    if op.name == "scf.parallel":
                        changed |= self._map(op, context)
        return changed

    def _map(self, op: Operation, context: PassContext) -> bool:
        rows = find_rows(op)
        if rows is None:
            return False
        if can_be_short(rows, self.short):
            ShortRows(rows, self.threads).build()
            context.count("short rows")
            return True
        LongRows(rows, threads_for(rows.counts)).build()
        context.count("long rows")
        return True
