"""Pass ``plan-shared``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dialects.gpu._places import SHARED_ALIGNMENT, SHARED_LIMIT, byte_size
from ir.core import Block, Module, Operation, Use, Value
from ir.diagnostics import Diagnostic, GraphError
from passes.infra.base import Pass, PassContext


@dataclass(frozen=True)
class PlanShared(Pass):
    """Gives the shared buffers of each kernel their places in the shared memory of a block.

    Before::

        gpu.launch(%b = 0 to 4, threads=32) {
          %t = gpu.thread_id() : index
          %p = gpu.alloc() : memref<f32[32], shared>
          %q = gpu.alloc() : memref<f32[32], shared>
          memref.store(%x, %p[%t])
          gpu.barrier()
          %y = memref.load(%p[-%t+31]) : f32
          gpu.barrier()
          memref.store(%y, %q[%t])
          ...
        }

    After (nobody needs ``%p`` any more when the first thread stores into ``%q``)::

        gpu.launch(%b = 0 to 4, threads=32) {
          %t = gpu.thread_id() : index
          %p = gpu.alloc(offset=0) : memref<f32[32], shared>
          %q = gpu.alloc(offset=0) : memref<f32[32], shared>
          memref.store(%x, %p[%t])
          gpu.barrier()
          %y = memref.load(%p[-%t+31]) : f32
          gpu.barrier()
          memref.store(%y, %q[%t])
          ...
        }

    Offsets are multiples of 128 bytes.  Barriers of the block at the top of the kernel, outside of loops and choices, divide it into
    phases; a buffer is needed from the phase that first touches it to the last one (a loop belongs to one phase, whatever barriers are
    in it), and two buffers share memory when they are needed in different phases.  What ``gpu.cp_async`` writes is needed until a
    ``gpu.cp_wait(pending=0)`` at the top has waited for it, too.  Buffers that nothing touches are removed.  A kernel that needs more
    than ``limit`` bytes is refused.
    """

    limit: int = SHARED_LIMIT
    """bytes of shared memory that a block may have"""

    needs_types: ClassVar[bool] = False
    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for launch in [op for op in module.walk() if op.name == "gpu.launch"]:
            changed |= self._plan(launch, context)
        return changed

    def _plan(self, launch: Operation, context: PassContext) -> bool:
        block = launch.regions[0].block
        unused = [op for op in _allocs(block) if not op.result.has_uses]
        for op in unused:
            op.erase()
        buffers = [_Buffer(op, *_phases(op, block)) for op in _allocs(block)]
        total = 0
        changed = bool(unused)
        for buffer in sorted(buffers, key=lambda b: -b.size):  # large ones first; equal ones in the order of the text
            buffer.offset = _lowest([b for b in buffers if b.offset >= 0 and b.together(buffer)], buffer.size)
            total = max(total, buffer.offset + buffer.size)
            if buffer.alloc.attribute("offset") != buffer.offset:
                changed = True
        if total > self.limit:
            raise GraphError(_complaint(launch, buffers, total, self.limit))
        for buffer in buffers:
            buffer.alloc.set_attribute("offset", buffer.offset)
        if buffers:
            context.count("bytes of shared memory planned", total)
            context.count("bytes without sharing", sum(b.size for b in buffers))
        return changed


@dataclass(eq=False)
class _Buffer:
    """A shared buffer, the first and last phase that need it, and its place once it has one."""

    alloc: Operation
    first: int
    last: int
    offset: int = -1

    @property
    def size(self) -> int:
        """Bytes up to where the next buffer may begin."""
        return -(-byte_size(self.alloc) // SHARED_ALIGNMENT) * SHARED_ALIGNMENT

    def together(self, other: _Buffer) -> bool:
        """Whether some phase needs both."""
        return self.first <= other.last and other.first <= self.last


def _allocs(block: Block) -> list[Operation]:
    return [op for op in block if op.name == "gpu.alloc" and op.result.type.space == "shared"]  # type: ignore[union-attr]


def _lowest(others: list[_Buffer], size: int) -> int:
    """The lowest place that overlaps none of the others."""
    at = 0
    for other in sorted(others, key=lambda b: b.offset):
        if at + size <= other.offset:
            break
        at = max(at, other.offset + other.size)
    return at


# -- when buffers are needed -------------------------------------------------------------------------------------------


def _phases(alloc: Operation, block: Block) -> tuple[int, int]:
    """The first and the last phase of the kernel that need a buffer."""
    touching = list(_uses(alloc.result))
    tops = {_top(use.owner, block) for use in touching}
    copied = [use.owner for use in touching if use.owner.name == "gpu.cp_async"]
    phase, first, last = 0, -1, -1
    landed = True
    for op in block:
        if op in tops:
            first, last = phase if first < 0 else first, phase
            landed = landed and not any(_top(c, block) is op for c in copied)
        elif not landed:
            last = phase  # copies into it may still be under way
        if op.name == "gpu.cp_wait" and op.attribute("pending") == 0 and all(map(_is_committed, copied)):
            landed = True
        if op.name == "gpu.barrier" and op.attribute("scope") == "block":
            phase += 1
    return max(first, 0), max(last, 0)


def _uses(value: Value) -> Iterator[Use]:
    """What touches a buffer, or a view of it."""
    for use in value.uses:
        yield use
        if use.owner.name in ("memref.reshape", "memref.view"):
            yield from _uses(use.owner.result)


def _top(op: Operation, block: Block) -> Operation:
    """The operation of ``block`` that is ``op`` or around it."""
    while op.block is not block:
        assert op.block is not None and op.block.parent is not None and op.block.parent.parent is not None
        op = op.block.parent.parent
    return op


def _is_committed(copy: Operation) -> bool:
    """Whether a ``gpu.cp_commit`` behind the copy, in the same block, closes its group."""
    op = copy.next
    while op is not None:
        if op.name == "gpu.cp_commit":
            return True
        op = op.next
    return False


def _complaint(launch: Operation, buffers: list[_Buffer], total: int, limit: int) -> Diagnostic:
    largest = sorted(buffers, key=lambda b: -b.size)[:3]
    notes = [(f"%{b.alloc.result.name} needs {b.size} bytes", b.alloc.loc) for b in largest]
    name = launch.attribute("name")
    what = f"kernel {name}" if name else "a kernel"
    return Diagnostic(f"plan-shared: {what} needs {total} bytes of shared memory, a block has {limit}", launch.loc, notes=list(notes))
