"""Pass ``forward-stores``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from ir.core import DROPPED, Block, Graph, Module, Operation, Value
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.loops._dependence import is_in_bounds, is_inside, may_conflict
from passes.loops._loops import body, is_loop, outermost, tag_of
from passes.loops._memory import Access, accesses_of, all_accesses, memory_of, same_place, stored_value

_LOADS = ("memref.load", "vector.load")
_STORES = ("memref.store", "vector.store")
_SAME_MEMORY = ("memref.reshape", "memref.view")


@dataclass(frozen=True)
class ForwardStores(Pass):
    """Uses stored and loaded values again instead of loading them; removes stores that nothing reads.

    Before::

        memref.store(%s, %C[%i, %j])
        %c = memref.load(%C[%i, %j]) : f32
        %y = math.exp(%c) : f32
        memref.store(%y, %C[%i, %j])

    After::

        %y = math.exp(%s) : f32
        memref.store(%y, %C[%i, %j])

    - A load gives the value that was last stored to, or loaded from, the same place in front of it, in its block or one
      around it, when no write in between may mean an element of it.
    - A store is removed when another one to the same place follows in its block and nothing in between may read it, and
      when it writes to memory that no operation reads after it, or at all.  So a buffer that is only written vanishes.

    The dependence test decides what may mean the same.  Stores and loads that might be outside their buffer stay, unless
    another access fails in their place.
    """

    loops: tuple[str, ...] = ()
    """tags of loops: values are only used again within one round of those; empty for the whole graph, which takes more time"""

    keeps_types: ClassVar[bool] = True

    def is_local(self) -> bool:
        """Whether it looks at nests one by one."""
        return bool(self.loops)

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            while _Forwarder(graph, context, self.loops).run():
                changed = True
        return changed


@dataclass(frozen=True, slots=True)
class _Known:
    """The value of the elements that an access means."""

    access: Access
    value: Value


class _Forwarder:
    def __init__(self, graph: Graph, context: PassContext, loops: Collection[str]) -> None:
        self.graph = graph
        self.context = context
        self.loops = loops

    def run(self) -> bool:
        """Goes through the graph once; returns whether anything changed."""
        tops = [body(op) for op in self.graph.walk() if is_loop(op) and tag_of(op) in self.loops] if self.loops else [self.graph.block]
        loads = sum(self._forward(top, []) for top in tops)
        stores = sum(map(self._overwritten, [block for top in tops for block in _blocks(top)])) + self._unread()
        self.context.count("loads replaced", loads)
        self.context.count("stores removed", stores)
        return loads + stores > 0

    # -- loads -----------------------------------------------------------------------------------------------------

    def _forward(self, block: Block, known: list[_Known]) -> int:
        count = 0
        for op in block:
            if op.regions:
                known = _untouched(known, all_accesses([op]), block)
                count += sum(self._forward(inner, list(known)) for region in op.regions for inner in region.blocks)
                continue
            for access in accesses_of(op):
                if access.writes:
                    known = _untouched(known, [access], block)
                    if op.name in _STORES and not access.partial:
                        known.append(_Known(access, stored_value(op)))
                elif op.name in _LOADS and not access.partial:
                    value = _find(known, access, op.result)
                    if value is None:
                        known.append(_Known(access, op.result))
                    else:
                        _replace(op, value)
                        count += 1
        return count

    # -- stores ----------------------------------------------------------------------------------------------------

    def _overwritten(self, block: Block) -> int:
        """Removes stores of a block that a later one makes useless."""
        count = 0
        for op in list(block):
            if op.name in _STORES and self._is_dead(op, block):
                op.erase()
                count += 1
        return count

    def _is_dead(self, op: Operation, block: Block) -> bool:
        (access,) = accesses_of(op)
        later = op.next
        while later is not None:
            touched = all_accesses([later])
            if may_conflict([access], [a for a in touched if not a.writes], block):
                return False
            if not later.regions and any(a.writes and same_place(access, a) for a in touched):
                return True
            later = later.next
        ends_here = access.memory.kind == "alloc" and is_inside(access.memory.base, block)
        return ends_here and is_in_bounds(access)

    def _unread(self) -> int:
        """Removes loads without uses, and all stores to buffers that nothing reads, with the buffers.

        With ``loops`` only buffers that one nest has for itself.
        """
        count = 0
        for op in list(self.graph.walk()):
            if op.name in _LOADS and not op.result.has_uses and all(map(is_in_bounds, accesses_of(op))):
                op.erase()
                count += 1
        for op in [op for op in self.graph.walk() if op.name == "memref.alloc"]:
            uses = list(_uses_of_memory(op.result))
            if self.loops and not self._is_private(uses):
                continue
            if all(_only_writes(use, op.result) for use in uses):
                for user in reversed(uses):
                    user.erase()
                op.erase()
                count += len(uses) + 1
        return count

    def _is_private(self, uses: Iterable[Operation]) -> bool:
        nests = {outermost(use) for use in uses if use.name not in _SAME_MEMORY}
        return len(nests) < 2 and all(nest.block is self.graph.block for nest in nests)


def _untouched(known: Iterable[_Known], accesses: Iterable[Access], block: Block) -> list[_Known]:
    """What is still known behind operations with these accesses."""
    writes = [a for a in accesses if a.writes]
    return [k for k in known if not may_conflict([k.access], writes, block)]


def _find(known: Iterable[_Known], access: Access, result: Value) -> Value | None:
    return next((k.value for k in known if k.value.type == result.type and same_place(k.access, access)), None)


def _replace(op: Operation, value: Value) -> None:
    """Uses a value instead of a load; a name that a person gave wins over a derived one."""
    graph, name, derived = op.graph, op.result.name, op.result.auto_named
    op.result.replace_all_uses_with(value)
    op.erase()
    if graph is not None and value.auto_named and not derived and name != DROPPED:
        graph.rename(value, name)


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block:
        for region in op.regions:
            for inner in region.blocks:
                yield from _blocks(inner)


def _uses_of_memory(buffer: Value) -> Iterator[Operation]:
    """Operations that use a buffer, or the same memory under another shape; each behind what it uses."""
    for user in buffer.users:
        yield user
        if user.name in _SAME_MEMORY:
            yield from _uses_of_memory(user.result)


def _only_writes(op: Operation, base: Value) -> bool:
    """Whether an operation that uses the memory of ``base`` does nothing but write to it, and can't fail."""
    if op.name in _SAME_MEMORY:
        return True
    if op.name == "memref.copy":
        source, target = (memory_of(v) for v in op.operands)
        return target.base is base and source.base is not base
    return op.name in _STORES and is_in_bounds(accesses_of(op)[0])
