"""Copies from global to shared memory that go on while their thread computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dialects._access import check_access, write
from dialects.gpu._execution import block_of
from dialects.gpu._lane_memory import Places, valid_of
from dialects.gpu._places import require_launch
from dialects.gpu._races import Access, Races
from dialects.gpu.memory import garbage
from ir.core import Operation
from ir.layout import AccessArg, layout_of
from ir.opdef import AttributeSpec, OperandKind, OperandSpec, RegionOpDef, TypeProblem, register
from ir.types import ScalarType, Type, UnknownType, index

SIZES = (4, 8, 16)
"""Bytes that one copy may have."""

_VALID = OperandSpec("valid", OperandKind("an index", ("index",), (ScalarType,)), optional=True)


def run_of(access: AccessArg) -> int:
    """The elements that an access has along its last axis.  Raises TypeProblem when it has none, or a run along another axis."""
    sizes = [i.size for i in access.indices]
    if not sizes or sizes[-1] is None or sizes[-1] < 1 or any(s is not None for s in sizes[:-1]):
        raise TypeProblem("expected a run of elements along the last axis alone", operand=access.position, hint="write %A[%i, %j:+8]")
    return sizes[-1]


class CopyAsync(RegionOpDef):
    """Starts copying 4, 8 or 16 bytes from global to shared memory.

    ``gpu.cp_async(%A[%i, %j:+8], %S[%r, %c:+8])`` copies neighbours along the last axes.  With ``valid=%n`` only the first n elements are
    read (none for n <= 0, all from the size of the run on), and the others become 0; what is not read may be outside the buffer.  Both
    places are multiples of the size of the copy.

    The copy goes on while the thread does: until the ``gpu.cp_wait`` that covers it the elements hold anything, and nobody may use them.
    Other threads of the block see them behind a barrier after that.

    Raises an error for elements outside the buffers, and for a place that is not aligned.

    Example::

        graph @example(%A: memref<f32[N]>, %C: memref<f32[N]>) {
          gpu.launch(%b = 0 to N ceildiv 128, threads=32) {
            %t = gpu.thread_id() : index
            %s = gpu.alloc() : memref<f32[128], shared>
            %left = affine.apply(-128*%b-4*%t+N) : index
            gpu.cp_async(%A[128*%b+4*%t:+4], %s[4*%t:+4], valid=%left)
            gpu.cp_commit()
            gpu.cp_wait(pending=0)
            %a = vector.load(%s[4*%t:+4]) : vector<f32[4]>
            vector.store(%a, %C[128*%b+4*%t:+4], valid=%left)
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("cp_async", "gpu", (), [_VALID], result_count=0, pure=False, exact_bits=True, traps=True)

    def verify(self, op: Operation) -> None:
        """Two accesses with equally long runs along their last axes."""
        layout = layout_of(op)
        if len(layout) != 2 or not all(isinstance(a, AccessArg) for a in layout) or op.regions:
            raise TypeProblem("expected two accesses: gpu.cp_async(%A[%i, %j:+8], %S[%r, %c:+8])")
        require_launch(op)
        source, target = layout
        assert isinstance(source, AccessArg) and isinstance(target, AccessArg)
        if run_of(source) != run_of(target):
            raise TypeProblem(f"{run_of(source)} elements can't be copied to {run_of(target)}", operand=target.position)

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        source, target = layout_of(op)
        assert isinstance(source, AccessArg) and isinstance(target, AccessArg)
        read, written = check_access(op, source, operand_types), check_access(op, target, operand_types)
        position = self.operand_position(op, "valid")
        if position is not None and not isinstance(operand_types[position], UnknownType) and operand_types[position] != ScalarType(index):
            raise TypeProblem(f"expected an index as the number of valid elements, found {operand_types[position]}", operand=position)
        if read is not None and read.space != "":
            raise TypeProblem(f"expected a buffer in global memory, found {read}", operand=source.position)
        if written is not None and written.space != "shared":
            raise TypeProblem(f"expected a shared buffer, found {written}", operand=target.position, hint="gpu.alloc() : memref<f32[64], shared>")
        if read is not None and written is not None and read.dtype != written.dtype:
            raise TypeProblem(f"elements of {read.dtype} can't be copied to {written}", operand=target.position)
        if read is not None and run_of(source) * read.dtype.itemsize not in SIZES:
            count = run_of(source) * read.dtype.itemsize
            raise TypeProblem(f"expected 4, 8 or 16 bytes, found {run_of(source)} elements of {read.dtype}, {count} bytes", operand=source.position)
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        source, target = layout_of(op)
        assert isinstance(source, AccessArg) and isinstance(target, AccessArg)
        read = Places(op, source, operands, environment, valid_of(op, operands), as_runs=True)
        written = Places(op, target, operands, environment, as_runs=True)
        for places in (read, written):
            places.refuse_unaligned()
        read.touch(False, False)
        state.races.begin(written.as_access())
        data = read.read()
        written.write(garbage(data.dtype, written.shape))
        count = len(state.active)
        index = tuple(np.broadcast_to(i, (count, *written.runs)) for i in written.index)
        data = np.broadcast_to(data.reshape(-1, *(1,) * (len(written.runs) - 1), run_of(source)), (count, *written.runs))
        state.copies.append(Copy(written, state.active, index, data, state.commits[state.active]))
        return ()


@dataclass(eq=False)
class Copy:
    """Copies of one operation that are under way: of which threads, where to, what, and in which group of the thread each of them is."""

    places: Places
    lanes: Any
    index: tuple[Any, ...]
    data: Any
    groups: Any

    def land(self, which: Any, races: Races) -> bool:
        """Writes some of them (a mask), which are then done with; whether others are left."""
        places, left = self.places, ~which
        if which.any():
            index = tuple(i[which] for i in self.index)
            write(places.buffer, index, self.data[which])
            races.land(Access(places.name, places.buffer, index, self.lanes[which]))
            self.lanes, self.data, self.groups = self.lanes[left], self.data[left], self.groups[left]
            self.index = tuple(i[left] for i in self.index)
        return bool(left.any())


class CommitCopies(RegionOpDef):
    """Closes a group: the copies that this thread has started (``gpu.cp_async``) since the last one.

    Example::

        graph @example(%A: memref<f32[32]>, %C: memref<f32[32]>) {
          gpu.launch(%b = 0 to 1, threads=32) {
            %t = gpu.thread_id() : index
            %s = gpu.alloc() : memref<f32[32], shared>
            gpu.cp_async(%A[%t:+1], %s[%t:+1])
            gpu.cp_commit()
            gpu.cp_wait(pending=0)
            %a = memref.load(%s[%t]) : f32
            memref.store(%a, %C[%t])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("cp_commit", "gpu", result_count=0, pure=False, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """No operands."""
        if layout_of(op) or op.regions:
            raise TypeProblem("expected no operands: gpu.cp_commit()")
        require_launch(op)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        state.commits[state.active] += 1
        return ()


class WaitForCopies(RegionOpDef):
    """Waits until at most ``pending`` groups of this thread's copies are under way: all but the last ``pending`` closed ones have landed.

    Copies that no ``gpu.cp_commit`` has closed are not waited for.  The thread then sees what it has copied itself; what others have
    copied it sees behind a barrier.

    Example, two stages::

        graph @example(%A: memref<f32[32]>, %B: memref<f32[32]>, %C: memref<f32[32]>) {
          gpu.launch(%x = 0 to 1, threads=32) {
            %t = gpu.thread_id() : index
            %s = gpu.alloc() : memref<f32[2, 32], shared>
            gpu.cp_async(%A[%t:+1], %s[0, %t:+1])
            gpu.cp_commit()
            gpu.cp_async(%B[%t:+1], %s[1, %t:+1])
            gpu.cp_commit()
            gpu.cp_wait(pending=1)
            gpu.barrier()
            %a = memref.load(%s[0, -%t+31]) : f32
            gpu.cp_wait(pending=0)
            gpu.barrier()
            %b = memref.load(%s[1, -%t+31]) : f32
            %c = arith.addf(%a, %b) : f32
            memref.store(%c, %C[%t])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        pending = AttributeSpec("pending", int, 0, required=True, positional=False)
        super().__init__("cp_wait", "gpu", [pending], result_count=0, pure=False, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """No operands; a number of groups, 0 or more."""
        if layout_of(op) or op.regions:
            raise TypeProblem("expected no operands: gpu.cp_wait(pending=0)")
        require_launch(op)
        pending: Any = op.attribute("pending")
        if pending < 0:
            raise TypeProblem(f"expected 0 or more, found {pending}", attribute="pending")

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        pending: Any = op.attribute("pending")
        waiting = np.isin(np.arange(state.threads), state.active)
        done = np.where(waiting, state.commits - pending, 0)
        state.copies = [c for c in state.copies if c.land(c.groups < done[c.lanes], state.races)]
        return ()


register(CopyAsync())
register(CommitCopies())
register(WaitForCopies())
