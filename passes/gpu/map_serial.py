"""Pass ``map-serial``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.builder import Builder
from ir.core import Block, Module, Operation
from passes.gpu._kernels import launch
from passes.gpu._nests import (
    device_graphs,
    hoist_buffers,
    host_blocks,
    is_lowered,
    kernel_name,
    launch_rounds,
    make_serial,
    own_buffers,
    parallel_nest,
    swap_into_parallel,
)  # fmt: skip
from passes.gpu._scalars import bring_scalars, drop_scalars, is_serial, keep_results
from passes.infra.base import Pass, PassContext
from passes.loops._loops import body, move_into
from passes.loops._memory import alias, all_accesses, is_movable, memory_of


@dataclass(frozen=True)
class MapSerial(Pass):
    """Turns all that is left into kernels in the simplest way, so that every program can run on a GPU.

    Before::

        scf.parallel(%i = 0 to B, tag="row") {
          scf.for(%j = 0 to 8) {
            %x = memref.load(%A[%i, %j]) : f32
            memref.store(%x, %C[%i, 7-%j])
            yield
          }
          yield
        }

    After::

        gpu.launch(%block = 0 to B ceildiv 64, threads=64, name="C", tag="serial") {
          %t = gpu.thread_id() : index
          %round = affine.apply(64*%block+%t) : index
          %at = affine.apply(%round) : index
          %bound = affine.apply(B) : index
          %inside = arith.cmpi(%at, %bound, predicate="lt") : bool
          scf.if(%inside) {
            %i = affine.apply(%round) : index
            scf.for(%j = 0 to 8) {
              %x = memref.load(%A[%i, %j]) : f32
              memref.store(%x, %C[%i, 7-%j])
              yield
            }
            yield
          }
          yield
        }

    A parallel loop (with those that are all it holds) becomes a kernel with one thread per round; loops inside are run by that thread.
    Serial loops, stores and checks on top become a kernel of one thread, neighbours the same one. A scalar that was loaded, and
    what is computed from it, is computed again inside each kernel that uses it; where its memory is written before, or a serial
    loop has it as a result, it is kept in memory of one element.

    A serial loop that holds a parallel one whose rounds never meet in memory (rows of scatter) changes places with it.
    A serial loop or a choice that holds nests stays for the host when nothing that it asks for comes from memory: its nests
    become kernels. Otherwise one thread runs all of it.
    """

    keeps_types: ClassVar[bool] = True

    threads: int = 64
    """threads of a block"""

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= 1024:
            raise ValueError("threads: expected 1 to 1024")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in device_graphs(module):
            for block in list(host_blocks(graph.block)):
                changed |= self._block(block, context)
        return changed

    def _block(self, block: Block, context: PassContext) -> bool:
        for op in list(block):
            if is_serial(op):
                swap_into_parallel(op)
        changed = keep_results(block)
        pending: list[Operation] = []
        for op in list(block):
            if op.name == "scf.parallel" and is_lowered(op):
                changed |= self._close(pending, context)
                self._rounds(op, context)
                changed = True
            elif is_serial(op):
                pending.append(op)
            elif not _may_pass(op, pending):
                changed |= self._close(pending, context)
        changed |= self._close(pending, context)
        for op in list(block):
            if op.name == "gpu.launch":
                changed |= bring_scalars(op)
        return drop_scalars(block) or changed

    def _rounds(self, loop: Operation, context: PassContext) -> None:
        """One thread for each round of a parallel loop."""
        hoist_buffers(loop)
        nest = parallel_nest(loop)
        launch_rounds(nest, self.threads, "serial")
        context.count("parallel loops mapped")

    def _close(self, pending: list[Operation], context: PassContext) -> bool:
        """One kernel of one thread for operations that follow each other."""
        if not pending:
            return False
        for op in pending:
            for buffer in own_buffers(op):
                made = buffer.defining_op
                assert made is not None and pending[0].block is not None
                move_into(made, pending[0].block, pending[0])
        names = [name for op in pending if (name := kernel_name(op)) is not None]
        with Builder.before_op(pending[-1]):
            made = launch([("block", 1)], 1, lambda _: None, name=names[0] if names else "check", tag="serial")
        for op in pending:
            move_into(op, body(made), body(made).terminator)
            make_serial(op)
        context.count("kernels of one thread")
        pending.clear()
        return True


def _may_pass(op: Operation, pending: list[Operation]) -> bool:
    """Whether what is pending may run behind an operation that stands behind it."""
    if not pending:
        return True
    if op.name == "memref.load":
        memory = memory_of(op.operands[0])
        return not any(a.writes and alias(a.memory, memory) != "never" for a in all_accesses(pending))
    if op.name in ("memref.to_tensor", "memref.copy") or op.regions or op.definition.dialect == "graph":
        return False
    return is_movable(op) or op.name in ("memref.of_inout", "memref.from_tensor")
