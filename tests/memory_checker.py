"""Judges memory plans without the planner: by watching every read and write of a run, byte by byte, and by poison.

The rule is about values, not about lifetimes: whatever a buffer reads must have been written through the same buffer
last (a reshape is the same buffer, and so is a view of a buffer that is no arena).  Two buffers that are alive at once and share a byte break it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.clone import clone_module
from ir.core import Module, Operation, Value
from ir.dims import substitute
from ir.inputs import GeneratedWeights
from ir.interpreter import Interpreter
from ir.layout import AccessArg, BindArg, layout_of
from ir.types import MemRefType, u8
from passes.infra.base import PassContext
from passes.memory.poison import Poison, touching_operations

_MADE = ("memref.alloc", "memref.view", "memref.reshape")
_WHOLE = ("memref.copy", "memref.to_tensor")


class Overlap(AssertionError):
    """A buffer reads what another one has written, or what nothing has."""


class _Watched(np.ndarray):
    """A buffer that tells of its reads and writes."""

    watcher: Watcher
    owner: Value
    places: Any
    """the byte of each element in the memory that it lies in"""
    written: Any
    """per byte of the memory: the number of the buffer that has written it, -1 for none"""

    def __getitem__(self, place: Any) -> Any:
        self.watcher.reads(self, place)
        return self.view(np.ndarray)[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self.view(np.ndarray)[place] = value
        self.watcher.writes(self, place)


class Watcher(Interpreter):
    """Runs a program and checks every read.  Raises :class:`Overlap`."""

    def __init__(self, module: Module, *args: Any, **options: Any) -> None:
        super().__init__(module, *args, **options)
        self.numbers: dict[Value, int] = {}
        self.values: list[Value] = []
        self.memories: dict[Value, tuple[int, Any]] = {}
        self.nests: list[tuple[list[bool], list[int]]] = []
        self.accesses = 0

    # -- what is watched -------------------------------------------------------------------------------------------

    def run_operation(self, op: Operation, environment: Any) -> None:
        if op.name in _WHOLE and isinstance(environment.arrays[op.operands[0]], _Watched):
            self.nests.append(([], [0]))
            self.reads(environment.arrays[op.operands[0]], ...)
            self.nests.pop()
        source = environment.arrays[op.operands[0]] if op.name == "memref.view" else None
        if isinstance(source, _Watched):  # to make a view is no read
            environment.arrays[op.operands[0]] = source.view(np.ndarray)
        self.nests.append((_unused_reads(op, environment), [0]))
        try:
            super().run_operation(op, environment)
        finally:
            self.nests.pop()
        if isinstance(source, _Watched):
            environment.arrays[op.operands[0]] = source
        if op.name in _MADE:
            array = environment.arrays[op.result]
            if op.name == "memref.alloc":
                self.memories[op.result] = (_address(array), np.full(array.nbytes, -1, np.int64))
            root, owner = _root(op.result)
            if root in self.memories and not (op.result is root and _is_arena(root)):
                environment.arrays[op.result] = self._watch(array, root, owner)

    def _watch(self, array: Any, root: Value, owner: Value) -> _Watched:
        address, written = self.memories[root]
        watched = array.view(_Watched)
        watched.watcher, watched.owner, watched.written = self, owner, written
        places = np.full(array.shape, _address(array) - address, np.int64)
        for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
            places += (np.arange(size) * stride).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        watched.places = places
        if owner not in self.numbers:
            self.numbers[owner] = len(self.values)
            self.values.append(owner)
        return watched

    # -- what happens ----------------------------------------------------------------------------------------------

    def reads(self, array: _Watched, place: Any) -> None:
        unused, counter = self.nests[-1]
        if unused:
            counter[0] += 1
            if unused[(counter[0] - 1) % len(unused)]:
                return
        self.accesses += 1
        found = array.written[_bytes(array, place)]
        wrong = found[found != self.numbers[array.owner]]
        if wrong.size:
            who = "nothing has written" if wrong[0] == -1 else f"%{self.values[int(wrong[0])].name} has written last"
            raise Overlap(f"%{array.owner.name} reads bytes that {who}")

    def writes(self, array: _Watched, place: Any) -> None:
        self.accesses += 1
        array.written[_bytes(array, place)] = self.numbers[array.owner]


def _bytes(array: _Watched, place: Any) -> Any:
    starts = np.asarray(array.places[place]).reshape(-1, 1)
    return (starts + np.arange(array.dtype.itemsize)).reshape(-1)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _root(value: Value) -> tuple[Value, Value]:
    """The alloc that a buffer lies in, and the buffer that it is by name: the view of an arena, or the alloc."""
    owner: Value | None = None
    op = value.defining_op
    while op is not None and op.name in ("memref.reshape", "memref.view"):
        if op.name == "memref.view":
            owner = op.result
        value = op.operands[0]
        op = value.defining_op
    return value, owner if owner is not None and _is_arena(value) else value


def _is_arena(value: Value) -> bool:
    """Whether the memory that an alloc makes is for views of it alone."""
    assert isinstance(value.type, MemRefType)
    return value.type.dtype == u8 and len(value.type.shape) == 1 and any(u.name == "memref.view" for u in value.users)


def _unused_reads(op: Operation, environment: Any) -> list[bool]:
    """Which of the reads of watched buffers are for nothing, in one round: a nest is given the old elements of its outputs, too."""
    if op.name in ("linalg.generic", "linalg.reduce"):
        sources = [a.source for a in layout_of(op) if isinstance(a, BindArg) and isinstance(a.source, AccessArg)]
        arrays = [environment.arrays[op.operands[s.position]] for s in sources]
        arguments = op.regions[0].block.arguments
        return [not a.has_uses for a, array in zip(arguments, arrays, strict=False) if isinstance(array, _Watched)]
    if op.name in ("memref.load", "vector.load"):
        return [not op.result.has_uses]
    return []


def check_plan(module: Module, name: str, arrays: Sequence[Any], sources: Mapping[str, Any] | None = None) -> int:
    """Runs a graph forwards and with its parallel loops backwards; returns how many accesses were watched.

    Raises :class:`Overlap` for a read that sees another buffer's bytes.
    """
    given = dict(sources) if sources is not None else {f: GeneratedWeights(module, f) for f in module.files}
    count = 0
    for backwards in (False, True):
        watcher = Watcher(module, given, quiet=True, reverse_parallel=backwards)
        watcher.run(module.graphs[name], [np.array(a) for a in arrays])
        count += watcher.accesses
    return count


# -- bounds ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Demand:
    """Bytes of a planned graph at given sizes."""

    arena: int
    at_once: int
    """bytes of the arena that hold, at the operation where they are most, what was or will be read (or is being written)"""
    between: int
    """the most that some plan would need even if every operation worked in place: what is held from one operation to the next"""
    separate: int
    """all buffers beside each other"""
    views: int
    """how many buffers are held at once at most"""
    buffers: int
    """how many there are"""


def demand(module: Module, name: str, sizes: Mapping[str, int]) -> Demand:
    """What the views of an arena are needed for, found by walking the printed program; shares no code with the planner."""
    graph = module.graphs[name]
    ranges: dict[Operation, tuple[int, int]] = {}
    arenas: dict[Value, int] = {}
    for op in graph.block:
        if op.name == "memref.view" and op.operands[0].defining_op is not None and op.operands[0].defining_op.name == "memref.alloc":
            start, count = _number(op.attributes["offset"], sizes), 1
            assert isinstance(op.result.type, MemRefType)
            for dim in op.result.type.shape:
                count *= _number(dim, sizes)
            ranges[op] = (start, start + count * op.result.type.dtype.itemsize)
            arena = op.operands[0].type
            assert isinstance(arena, MemRefType)
            arenas[op.operands[0]] = _number(arena.shape[0], sizes)
    numbers = {op: n for n, op in enumerate(graph.block)}
    times = {op: [numbers[t] for t in touching] for op in ranges if (touching := touching_operations(op.result, graph))}
    at_once = between = views = 0
    for now in range(len(numbers)):
        held = sorted(ranges[op] for op, at in times.items() if at[0] <= now <= at[-1])
        covered, behind = 0, 0
        for start, end in held:
            covered += max(0, end - max(start, behind))
            behind = max(behind, end)
        kept = sum(ranges[op][1] - ranges[op][0] for op, at in times.items() if at[0] <= now < at[-1])
        at_once, between, views = max(at_once, covered), max(between, kept), max(views, len(held))
    return Demand(sum(arenas.values()), at_once, between, sum(end - start for start, end in ranges.values()), views, len(ranges))


def _number(dim: Any, sizes: Mapping[str, int]) -> int:
    value = substitute(dim, sizes)
    assert isinstance(value, int)
    return value


# -- poison ------------------------------------------------------------------------------------------------------------


def poisoned(module: Module) -> Module:
    """A copy in which garbage (NaN, large numbers) is stored to every view of an arena behind the last operation that
    touches it (the pass ``poison``); a plan that is right gives the same bits."""
    copy = clone_module(module)
    Poison().run(copy, PassContext())
    return copy
