"""Pass ``fuse-into-launches``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ir.core import Module, Operation, Value
from ir.dims import symbols_of
from ir.rewriter import is_pure
from ir.types import MemRefType, ScalarType
from passes.gpu._consumers import find_copy, store_where_copied
from passes.gpu._nests import device_graphs, hand_over, host_blocks, inside_of, is_host_control
from passes.gpu._producers import Producer, find_producer, fuse, loads_of, rows_of, terms_of
from passes.gpu._rows import Reduction
from passes.gpu._single_rows import gather_rows
from passes.infra.base import Pass, PassContext
from passes.loops._loops import clone_before, parent
from passes.loops._memory import alias, all_accesses

_READS_A_ROW = "digits"
_READS_ELEMENTS = "digits.split"
_FOR_HOST = ("memref.alloc", "memref.from_tensor", "memref.of_inout", "memref.view", "memref.reshape", "memref.dim", "memref.load")


@dataclass(frozen=True)
class FuseIntoLaunches(Pass):
    """Computes what a product of one row reads inside its kernel, so that nobody has to wait for another one.

    Before::

        scf.parallel(%i = 0 to S, tag="row") {
          scf.parallel(%j = 0 to 1536, tag="col") {
            %g = memref.load(%gate[%i, %j]) : f32
            %u = memref.load(%up[%i, %j]) : f32
            %s = math.silu(%g) : f32
            %m = arith.mulf(%s, %u) : f32
            memref.store(%m, %hidden[%i, %j])
            yield
          }
          yield
        }
        gpu.launch(%panel = 0 to 18, %tile = 0 to S, threads=512, name="down", tag="digits") {
          ...
          %x = memref.load(%hidden[%tile, 32*%block+%lane]) : f32

    After::

        gpu.launch(%panel = 0 to 18, %tile = 0 to S, threads=512, name="down", tag="digits") {
          ...
          %g = memref.load(%gate[%tile, 32*%block+%lane]) : f32
          %u = memref.load(%up[%tile, 32*%block+%lane]) : f32
          %s = math.silu(%g) : f32
          %m = arith.mulf(%s, %u) : f32

    With few rows a launch costs more than what it computes, and every block of a product needs the whole row. So each computes it again:
    elements where they are loaded; sums along a row (norms) by all threads, whose terms lie in shared memory and are added in the
    order of ``split-reduction``, so bits stay the same. What others read, too, is stored by the first block of each row.

    Producers are nests over elements, and over rows of known length, in front of a kernel that ``map-digits`` has made: a product that
    splits its own row, or a ``split_digits`` (elements only). Where the number of rows chooses between kernels, the nest goes in front of
    those that cannot take it. A kernel is left alone whose shared memory would exceed ``shared`` bytes, or that writes what the nest reads.

    A nest behind a kernel that only copies what that has stored (rotated keys into a cache) goes, too: the kernel stores it there.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    shared: int = 65536
    """bytes of shared memory that a kernel may have with what it takes over"""

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in device_graphs(module):
            for block in list(host_blocks(graph.block)):
                changed |= bool(gather_rows(block))
                for op in list(block):
                    producer = find_producer(op)
                    if producer is not None:
                        changed |= self._place(producer, context)
                for op in list(block):
                    copy = find_copy(op)
                    if copy is not None and store_where_copied(copy):
                        context.count("copies of what kernels store")
                        changed = True
        return changed

    def _place(self, producer: Producer, context: PassContext) -> bool:
        """Puts a nest into what comes next; False where it stays."""
        nest, target = producer.nest, _next_effect(producer.nest.next)
        if target is None or not self._takes(producer, target):
            return False
        if target.trivia is None:
            hand_over(nest, target)
        if target.name == "gpu.launch":
            fuse(producer, target, _kept(producer, target))
            nest.erase()
            context.count("nests fused into kernels")
        else:
            copies = [clone_before(nest, region.block.first, region.block) for region in target.regions]
            nest.erase()
            for copy in copies:
                again = find_producer(copy)
                assert again is not None
                self._place(again, context)
        for buffer in (*producer.stores, *producer.scalars):
            _erase_unused(buffer)
        return True

    def _takes(self, producer: Producer, target: Operation) -> bool:
        """Whether a kernel, or one behind a choice, can compute what it reads of a nest."""
        if target.name == "gpu.launch":
            return self._fits(producer, target)
        if target.name != "scf.if" or target.results or len(target.regions) != 2 or not is_host_control(target):
            return False
        nexts = [_next_effect(region.block.first) for region in target.regions]
        return any(op is not None and self._takes(producer, op) for op in nexts)

    def _fits(self, producer: Producer, launch: Operation) -> bool:
        tag, loads = launch.attribute("tag"), loads_of(producer, launch)
        if tag not in (_READS_A_ROW, _READS_ELEMENTS) or not loads or any(_uses(launch, b, loads) for b in producer.stores):
            return False
        row = rows_of(loads[0])
        if any(len(rows_of(op)) != len(producer.row) for op in loads):
            return False
        if producer.has_sums or _kept(producer, launch):
            arguments = {f"%{a.name}" for a in launch.regions[0].block.arguments}
            if tag != _READS_A_ROW or any(rows_of(op) != row for op in loads):
                return False
            if any(n.startswith("%") and n not in arguments for p in row for n in symbols_of(p)):
                return False
        if _shared_bytes(launch) + _needed_bytes(producer) > self.shared:
            return False
        written = [a for a in all_accesses([launch]) if a.writes]
        return all(alias(a.memory, b.memory) == "never" for a in producer.accesses for b in written)


def _next_effect(op: Operation | None) -> Operation | None:
    """The first operation from one on that is more than a name, a size or a number that is read."""
    while op is not None and not op.regions and (is_pure(op) or op.name in _FOR_HOST):
        op = op.next
    return None if op is None or op.definition.is_terminator else op


def _kept(producer: Producer, launch: Operation) -> list[Value]:
    """The buffers of a nest that others than a kernel read, where it runs."""
    return [b for b in producer.stores if any(_may_follow(u, launch) for u in _all_users(b) if not inside_of(u, producer.nest))]


def _all_users(buffer: Value) -> list[Operation]:
    """What uses a buffer, or a view of it."""
    found = []
    for user in buffer.users:
        found += [n for r in user.results for n in _all_users(r)] if user.name in ("memref.view", "memref.reshape") else [user]
    return found


def _erase_unused(buffer: Value) -> None:
    """Erases memory that nothing uses any more."""
    for user in list(buffer.users):
        if user.name in ("memref.view", "memref.reshape"):
            _erase_unused(user.result)
    made = buffer.defining_op
    if made is not None and made.block is not None and not buffer.has_uses:
        made.erase()


def _may_follow(op: Operation, launch: Operation) -> bool:
    """Whether an operation runs in the same runs as a kernel, and is no part of it: it does not stand in another branch."""
    around = _path(launch)
    for outer, inside in zip(_path(op), around, strict=False):
        if outer is not inside:
            return outer.block is inside.block
    return False


def _path(op: Operation) -> list[Operation]:
    """The operations around one, outermost first, and itself."""
    path = [op]
    while (outer := parent(path[-1])) is not None:
        path.append(outer)
    return path[::-1]


def _uses(launch: Operation, buffer: Value, loads: Sequence[Operation]) -> bool:
    """Whether a kernel uses a buffer, or a view of it, in other ways than by loads of elements."""
    for user in buffer.users:
        if inside_of(user, launch):
            if user not in loads:
                return True
        elif user.name in ("memref.view", "memref.reshape") and any(_uses(launch, r, ()) for r in user.results):
            return True
    return False


def _shared_bytes(launch: Operation) -> int:
    """What a kernel has of shared memory."""
    types = [op.results[0].type for op in launch.regions[0].block if op.name == "gpu.alloc"]
    return sum(_bytes(t.shape, t.dtype.itemsize) for t in types if isinstance(t, MemRefType) and t.space == "shared")


def _needed_bytes(producer: Producer) -> int:
    total = 0
    for step in producer.steps:
        if isinstance(step, Reduction):
            for value in terms_of(step)[0]:
                assert isinstance(value.type, ScalarType)
                total += _bytes([step.count], value.type.dtype.itemsize)
    return total


def _bytes(shape: Sequence[object], itemsize: int) -> int:
    for size in shape:
        assert isinstance(size, int)
        itemsize *= size
    return -(-itemsize // 128) * 128
