"""Launches of kernels, and the barrier of a block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dialects._access import check_expressions, number
from dialects.gpu import _control, _lane_vectors  # noqa: F401  what loops, choices and vectors mean for the threads of a block
from dialects.gpu._execution import WARP, BlockState, KernelEnvironment, Lanes, block_of
from dialects.gpu._places import launch_around, require_launch
from dialects.gpu._races import Races
from dialects.gpu._uniformity import check_together
from ir.core import Operation, Value
from ir.layout import AccessArg, RangeArg, layout_of
from ir.opdef import AttributeSpec, ExecutionError, RegionOpDef, TypeProblem, register
from ir.types import ScalarType, Type, index

MAX_THREADS = 1024
"""Threads that a block may have (CUDA C++ Programming Guide, technical specifications)."""

_THREADS = AttributeSpec("threads", int, 1, required=True, positional=False)
_MIN_BLOCKS = AttributeSpec("min_blocks", int, 0, required=False, positional=False)
_NAME = AttributeSpec("name", str, "", required=False, positional=False)
_TAG = AttributeSpec("tag", str, "", required=False, positional=False)


def captured_values(op: Operation) -> list[Value]:
    """Values from outside that the regions of an operation use, in order of their first use."""
    inside: set[Value] = set()
    for region in op.regions:
        inside.update(region.block.arguments)
    found: dict[Value, None] = {}
    for nested in op.walk():
        if nested is op:
            continue
        inside.update(nested.results)
        for region in nested.regions:
            inside.update(region.block.arguments)
        for value in nested.operands:
            if value not in inside:
                found[value] = None
    return list(found)


def written_values(op: Operation) -> set[Value]:
    """Buffers that stores in the regions of ``op`` write, and what they are views of."""
    found = {_target(n) for n in op.walk() if n.name in ("memref.store", "vector.store", "memref.copy")}
    pending = list(found)
    while pending:
        made = pending.pop().defining_op
        if made is not None and made.name in ("memref.view", "memref.reshape") and made.operands[0] not in found:
            found.add(made.operands[0])
            pending.append(made.operands[0])
    return found


def _target(op: Operation) -> Value:
    """The buffer that a store or a copy writes."""
    if op.name == "memref.copy":
        return op.operands[1]
    return op.operands[next(a.position for a in layout_of(op) if isinstance(a, AccessArg))]


class Launch(RegionOpDef):
    """Runs a kernel: ``threads`` threads for each block of a grid.

    ``gpu.launch(%x = 0 to M ceildiv 64, %y = 0 to 4, threads=128)`` runs its region for all combinations of the block numbers (one to
    three ranges from 0 in steps of 1, the first one is the fastest), and in each block for every thread; ``gpu.thread_id`` tells which
    one it is.  Blocks may run in any order or at the same time, so none may read or write what another one writes.  The threads of
    a block see each other's stores behind a ``gpu.barrier``.

    ``name`` is what the kernel is called in CUDA C; ``tag`` is a name by which passes address the launch.  ``min_blocks`` blocks are to
    fit on a multiprocessor at a time: so many registers at most has a thread (0: as many as it likes).

    Raises an error when two threads use one element and one of them writes it, with no barrier between (blocks: in one launch), when
    only some threads come to what they do together, and when a ``gpu.cp_async`` is not waited for.

    Example::

        graph @example(%A: memref<f32[N]>, %C: memref<f32[N]>) {
          gpu.launch(%b = 0 to N ceildiv 8, threads=8) {
            %t = gpu.thread_id() : index
            %i = affine.apply(8*%b+%t) : index
            %n = memref.dim(%A, axis=0) : index
            %inside = arith.cmpi(%i, %n, predicate="lt") : bool
            scf.if(%inside) {
              %a = memref.load(%A[%i]) : f32
              %r = arith.negf(%a) : f32
              memref.store(%r, %C[%i])
              yield
            }
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("launch", "gpu", [_THREADS, _MIN_BLOCKS, _NAME, _TAG], result_count=0, exact=True)

    def verify(self, op: Operation) -> None:
        """One to three ranges from 0 in steps of 1, a number of threads that a block may have, and one region."""
        layout = layout_of(op)
        if not 1 <= len(layout) <= 3 or not all(isinstance(a, RangeArg) and a.start == 0 and a.step == 1 for a in layout):
            raise TypeProblem("expected one to three ranges from 0: gpu.launch(%x = 0 to M, threads=128)")
        if len(op.regions) != 1:
            raise TypeProblem("expected one region")
        if launch_around(op) is not None:
            raise TypeProblem("a kernel can't launch kernels", hint="put the launch behind the one that it stands in")
        threads: Any = op.attribute("threads")
        if not 1 <= threads <= MAX_THREADS:
            raise TypeProblem(f"expected 1 to {MAX_THREADS} threads, found {threads}", attribute="threads")
        min_blocks: Any = op.attribute("min_blocks")
        if not 0 <= min_blocks <= 32:
            raise TypeProblem(f"expected 0 to 32 blocks, found {min_blocks}", attribute="min_blocks")

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        for bounds in layout_of(op):
            assert isinstance(bounds, RangeArg)
            check_expressions(op, operand_types, (bounds.stop,))
        return [ScalarType(index) for _ in layout_of(op)]

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        if yielded:
            raise TypeProblem(f"the region yields {len(yielded)} values, but a launch has no results")
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        if isinstance(environment, KernelEnvironment):
            raise ExecutionError("a kernel can't launch kernels")
        sizes = [number(a.stop, operands, environment.names) for a in layout_of(op) if isinstance(a, RangeArg)]
        threads: Any = op.attribute("threads")
        captured = captured_values(op)
        races = Races(threads, math.prod(max(n, 0) for n in sizes))
        for value in written_values(op) & set(captured):
            races.watch(environment.arrays[value])
        block = op.regions[0].block
        ranges = [range(n) for n in reversed(sizes)]
        for point in itertools.product(*(r[::-1] for r in ranges) if interpreter.reverse_parallel else ranges):
            state = BlockState(threads, np.arange(threads), races)
            inner = KernelEnvironment(environment, captured, state)
            for argument, at in zip(block.arguments, reversed(point), strict=True):
                inner.arrays[argument] = np.int64(at)
                inner.dtypes[argument] = index
            races.start_block()
            interpreter.run_block(block, inner, keep=True)
            state.finish()
        return ()


class ThreadId(RegionOpDef):
    """The number of this thread in its block, from 0; 32 neighbours are a warp.

    Example::

        graph @example(%C: memref<index[8]>) {
          gpu.launch(%b = 0 to 1, threads=8) {
            %t = gpu.thread_id() : index
            memref.store(%t, %C[%t])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("thread_id", "gpu", result_count=1, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """No operands."""
        if layout_of(op) or op.regions:
            raise TypeProblem("expected no operands: gpu.thread_id() : index")
        require_launch(op)

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        return (ScalarType(index),)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        threads = block_of(environment).threads
        return (np.int64(0) if threads == 1 else Lanes(np.arange(threads)),)


class Barrier(RegionOpDef):
    """Waits until every thread of the block (``scope="warp"``: of the warp) is here, and sees what they have stored until then.

    All threads must come to the same barrier, so it may not stand where only some go: inside of a choice or a loop whose condition or
    rounds depend on the thread.  For the barrier of a warp they may depend on the number of the warp, ``%t floordiv 32``, or ``%t < 64``.
    Nothing else puts accesses of several threads in order: shuffles and products of a warp don't.

    Example, neighbours change places::

        graph @example(%A: memref<f32[8]>, %C: memref<f32[8]>) {
          gpu.launch(%b = 0 to 1, threads=8) {
            %t = gpu.thread_id() : index
            %s = gpu.alloc() : memref<f32[8], shared>
            %a = memref.load(%A[%t]) : f32
            memref.store(%a, %s[%t])
            gpu.barrier()
            %c = memref.load(%s[-%t+7]) : f32
            memref.store(%c, %C[%t])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        scope = AttributeSpec("scope", str, "block", required=False, positional=False)
        super().__init__("barrier", "gpu", [scope], result_count=0, pure=False, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """No operands; the scope is a block or a warp."""
        if layout_of(op) or op.regions:
            raise TypeProblem("expected no operands: gpu.barrier()")
        if op.attribute("scope") not in ("block", "warp"):
            raise TypeProblem(f'expected "block" or "warp", found "{op.attribute("scope")}"', attribute="scope")
        require_launch(op)
        check_together(op, str(op.attribute("scope")))

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        warps = op.attribute("scope") == "warp"
        state.meet(op, WARP if warps else state.threads)
        if warps:
            state.races.meet_warps(np.unique(state.active // WARP))
        else:
            state.races.meet_block()
        return ()


register(Launch())
register(ThreadId())
register(Barrier())
