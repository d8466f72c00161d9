"""Finds accesses of one element by two threads in no order.

For every element of a buffer that threads share a *shadow* remembers who wrote it and who read it last, and when.  The clock counts
barriers: two accesses are in order when the barrier of the block has been between them, or, for threads of one warp, that of the warp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ir.opdef import ExecutionError

_NOBODY = -1
_MANY = -(2**30)
"""In the place of a reader: threads of several warps; ``-2 - w`` stands for several of warp w."""
_SEVERAL_BLOCKS = -1

Cells = Any


class Shadow:
    """Who has touched the elements of one piece of memory; ``cell`` bytes have an entry of their own."""

    _FIELDS = ("writer", "written", "reader", "read", "pending", "writing_block", "reading_block")

    def __init__(self, root: Any, cell: int) -> None:
        self.root = root  # held, so that the address stays its own
        self.address, end = np.lib.array_utils.byte_bounds(root)
        self.cell = cell
        count = -(-(end - self.address) // cell)
        # zeros, which take memory where they are touched only; who is nobody (-1), a thread or several, plus one
        self.writer = np.zeros(count, np.int32)
        self.written = np.zeros(count, np.int32)
        self.reader = np.zeros(count, np.int32)
        self.read = np.zeros(count, np.int32)
        self.pending = np.zeros(count, np.int32)
        self.writing_block = np.zeros(count, np.int32)
        self.reading_block = np.zeros(count, np.int32)

    def cells(self, buffer: Any, index: tuple[Any, ...]) -> Cells:
        """The entries of elements: the places along each axis, arrays that broadcast; each element has its own along a new last axis."""
        first = int(buffer.__array_interface__["data"][0]) - self.address
        size = buffer.itemsize
        step = math.gcd(self.cell, size, first, *buffer.strides)
        if step != self.cell:
            self._refine(step)
        at = np.int64(first // self.cell)
        for places, stride in zip(index, buffer.strides, strict=True):
            at = at + places * (stride // self.cell)
        parts = size // self.cell
        return np.asarray(at)[..., None] + np.arange(parts) if parts > 1 else np.asarray(at)[..., None]

    def _refine(self, cell: int) -> None:
        factor = self.cell // cell
        for name in self._FIELDS:
            setattr(self, name, np.repeat(getattr(self, name), factor))
        self.cell = cell


class Access:
    """What one operation touches: elements of a buffer, by threads."""

    def __init__(self, name: str, buffer: Any, index: tuple[Any, ...], lanes: Any, mask: Any = None) -> None:
        """``index`` has the places along each axis, arrays that broadcast to ``[threads, ...]``; ``mask``, alike, the elements meant."""
        self.name = name
        self.buffer = buffer
        self.index = index
        self.lanes = lanes
        self.mask = mask

    def place(self, number: int) -> str:
        """The element of a flat position among those touched."""
        shape = self._shape()
        flat = np.arange(math.prod(shape)).reshape(shape)
        if self.mask is not None:
            flat = flat[np.broadcast_to(self.mask, shape)]
        at = np.unravel_index(int(flat.reshape(-1)[number]), shape)
        return f"%{self.name}[{', '.join(str(int(np.broadcast_to(i, shape)[at])) for i in self.index)}]"

    def _shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(np.shape(i) for i in self.index), (len(self.lanes), *(1,) * self._rank()))

    def _rank(self) -> int:
        return max((np.ndim(i) for i in self.index), default=1) - 1 if self.index else 0

    def cells(self, shadow: Shadow) -> tuple[Cells, Any, int]:
        """Entries and their threads, both flat, and how many entries an element has."""
        at = shadow.cells(self.buffer, self.index)
        shape = (*self._shape(), at.shape[-1])
        who = np.broadcast_to(self.lanes.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        at = np.broadcast_to(at, shape)
        if self.mask is not None:
            mask = np.broadcast_to(self.mask, shape[:-1])
            at, who = at[mask], who[mask]
        return at.reshape(-1), who.reshape(-1), shape[-1]


class Races:
    """The accesses of the threads of one launch, block after block."""

    def __init__(self, threads: int, blocks: int) -> None:
        self.clock = 0
        self.block = 0
        self.block_barrier = 0
        self.warp_barrier = np.zeros(-(-threads // 32), np.int32)
        self.alone = threads == 1
        self.several_blocks = blocks > 1
        self._shadows: dict[int, Shadow] = {}
        self.watched: set[int] = set()
        """addresses of the memory outside of the launch that it writes"""

    def start_block(self) -> None:
        """Threads of another block come."""
        self.block += 1
        self.meet_block()

    def meet_block(self) -> None:
        """A barrier of the block."""
        self.clock += 1
        self.block_barrier = self.clock
        self.warp_barrier[:] = self.clock

    def meet_warps(self, warps: Any) -> None:
        """A barrier of some warps."""
        self.clock += 1
        self.warp_barrier[warps] = self.clock

    def watch(self, buffer: Any) -> None:
        """The launch writes this memory."""
        self.watched.add(id(root_of(buffer)))

    def shadow(self, buffer: Any, shared: bool) -> Shadow | None:
        """The shadow of a buffer's memory; None where no two threads can be in each other's way."""
        root = root_of(buffer)
        if buffer.size == 0 or (self.alone and (shared or not self.several_blocks)) or (not shared and id(root) not in self.watched):
            return None
        found = self._shadows.get(id(root))
        if found is None:
            found = self._shadows[id(root)] = Shadow(root, buffer.itemsize)
        return found

    def forget(self, buffer: Any) -> None:
        """The buffer's memory is given back."""
        self._shadows.pop(id(root_of(buffer)), None)

    # -- accesses ------------------------------------------------------------------------------------------------------

    def read(self, access: Access, shared: bool, together: bool = False) -> None:
        """Raises ExecutionError when something is read that another thread writes.

        What a warp reads ``together`` all its threads read, though only one of them says where it is.
        """
        shadow = self.shadow(access.buffer, shared)
        if shadow is None:
            return
        cells, who, parts = access.cells(shadow)
        self._check_pending(access, shadow, cells, who, parts, "read")
        writer = shadow.writer[cells] - 1
        reader = -2 - who // 32 if together else who
        self._refuse(self._unordered(writer, shadow.written[cells], reader), access, reader, parts, "read", writer, "write")
        if self.several_blocks and not shared:
            other = shadow.writing_block[cells]
            self._refuse_block((other != 0) & (other != self.block), access, who, parts, "read", other, "write")
            seen = shadow.reading_block[cells]
            shadow.reading_block[cells] = np.where((seen == 0) | (seen == self.block), self.block, _SEVERAL_BLOCKS)
        self._remember_readers(shadow, cells, who)
        if together:
            seen = shadow.reader[cells]
            shadow.reader[cells] = np.where(seen == who + 1, -1 - who // 32, seen)

    def write(self, access: Access, shared: bool) -> None:
        """Raises ExecutionError when something is written that another thread reads or writes."""
        shadow = self.shadow(access.buffer, shared)
        if shadow is None:
            return
        cells, who, parts = access.cells(shadow)
        self._check_pending(access, shadow, cells, who, parts, "write")
        for other, time, verb in ((shadow.writer[cells] - 1, shadow.written[cells], "write"), (shadow.reader[cells] - 1, shadow.read[cells], "read")):
            self._refuse(self._unordered(other, time, who), access, who, parts, "write", other, verb)
        shadow.writer[cells] = who + 1
        last = shadow.writer[cells] - 1
        self._refuse(last != who, access, who, parts, "write", last, "write")
        shadow.written[cells] = self.clock
        if self.several_blocks and not shared:
            for blocks, verb in ((shadow.writing_block[cells], "write"), (shadow.reading_block[cells], "read")):
                self._refuse_block((blocks != 0) & (blocks != self.block), access, who, parts, "write", blocks, verb)
            shadow.writing_block[cells] = self.block

    def begin(self, access: Access) -> None:
        """A copy that has started: nobody may touch its elements."""
        shadow = self.shadow(access.buffer, True)
        self.write(access, True)
        if shadow is not None:
            cells, who, _ = access.cells(shadow)
            shadow.pending[cells] = who + 1

    def land(self, access: Access) -> None:
        """A copy that has landed: its thread sees it."""
        shadow = self.shadow(access.buffer, True)
        if shadow is not None:
            cells, who, _ = access.cells(shadow)
            shadow.pending[cells] = _NOBODY + 1
            shadow.writer[cells] = who + 1
            shadow.written[cells] = self.clock

    def _unordered(self, other: Any, time: Any, who: Any) -> Any:
        """Which accesses by ``other`` at a time are in no order with one by ``who`` now."""
        if self.alone:
            return np.zeros(1, bool)
        recent = (other != _NOBODY) & (other != who) & (time >= self.block_barrier)
        if not recent.any():
            return recent
        warp = _warp_of(who)
        return recent & ((_warp_of(other) != warp) | (time >= self.warp_barrier[warp]))

    def _remember_readers(self, shadow: Shadow, cells: Cells, who: Any) -> None:
        if self.alone:
            return
        warp = who // 32
        before, time = shadow.reader[cells] - 1, shadow.read[cells]
        other = (before != _NOBODY) & (before != who) & (time >= self.block_barrier)
        same_warp = _warp_of(before) == warp
        several = other & same_warp & (time >= self.warp_barrier[warp])
        many = other & ~same_warp
        shadow.reader[cells] = who + 1
        last = shadow.reader[cells] - 1
        several |= (last != who) & (last // 32 == warp)
        many |= last // 32 != warp
        if several.any():
            shadow.reader[cells[several]] = -1 - warp[several]
            many |= _warp_of(shadow.reader[cells] - 1) != warp  # readers of other warps in this very operation
        shadow.reader[cells[many]] = _MANY + 1
        shadow.read[cells] = self.clock

    # -- complaints ----------------------------------------------------------------------------------------------------

    def _check_pending(self, access: Access, shadow: Shadow, cells: Cells, who: Any, parts: int, verb: str) -> None:
        pending = shadow.pending[cells] - 1
        found = pending != _NOBODY
        if found.any():
            at = int(np.argmax(found))
            raise ExecutionError(
                f"thread {who[at]} {verb}s {access.place(at // parts)}, where a gpu.cp_async of thread {pending[at]} is under way: "
                "no gpu.cp_wait has waited for it"
            )

    def _refuse(self, found: Any, access: Access, who: Any, parts: int, verb: str, others: Any, other_verb: str) -> None:
        if not found.any():
            return
        at = int(np.argmax(found))
        here, there = _doing(int(who[at]), verb), _doing(int(others[at]), other_verb)
        raise ExecutionError(f"{here} {access.place(at // parts)}, which {there} too, with no barrier between")

    def _refuse_block(self, found: Any, access: Access, who: Any, parts: int, verb: str, others: Any, other_verb: str) -> None:
        if not found.any():
            return
        at = int(np.argmax(found))
        what = f"other blocks {other_verb}" if others[at] == _SEVERAL_BLOCKS else f"another block {other_verb}s"
        raise ExecutionError(f"thread {who[at]} {verb}s {access.place(at // parts)}, which {what} in the same launch")


def _doing(who: int, verb: str) -> str:
    if who >= 0:
        return f"thread {who} {verb}s"
    return f"several threads {verb}" if who == _MANY else f"several threads of warp {-2 - who} {verb}"


def _warp_of(reader: Any) -> Any:
    """The warp of a thread, or of several threads of one; for those of several warps a number that no warp has."""
    return np.where(reader >= 0, reader // 32, -2 - reader)


def root_of(buffer: Any) -> Any:
    """The array whose memory a view shows."""
    while isinstance(buffer.base, np.ndarray):
        buffer = buffer.base
    return buffer
