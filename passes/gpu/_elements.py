"""Nests over elements: each thread takes a run of neighbours, which it loads and stores 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ir.builder import Builder
from ir.clone import clone_operation
from ir.core import Block, Operation, Value
from ir.dims import Dim, ceildiv, exact_div, substitute, symbols_of
from ir.types import MemRefType
from passes.gpu._kernels import LINE, is_multiple, launch, less, local, named, split_index, thread, value_of, when
from passes.gpu._nests import ParallelNest, hand_over, kernel_name, make_serial, move_body, set_variable
from passes.loops._blocks import active, load, loop, store
from passes.loops._loops import Access, accesses, depends_on, value_symbol
from passes.loops._memory import alias, all_accesses, memory_of, stored_value

MOST = 16
"""Elements of one run at most: 16 of one byte."""


@dataclass(frozen=True)
class Run:
    """A load or store of neighbours: ``front`` are its other indices, ``offset`` is what the last one adds to the variable."""

    op: Operation
    buffer: Value
    front: tuple[Dim, ...]
    offset: Dim

    @property
    def type(self) -> MemRefType:
        assert isinstance(self.buffer.type, MemRefType)
        return self.buffer.type

    @property
    def stores(self) -> bool:
        return self.op.name == "memref.store"

    @property
    def key(self) -> tuple[Value, tuple[Dim, ...], Dim]:
        return self.buffer, self.front, self.offset

    def is_aligned(self, width: int) -> bool:
        """Whether the run starts at a multiple of ``width`` elements from the start of its memory when the variable does."""
        row = self.type.shape[-1]
        if not is_multiple(self.offset, width) or (len(self.front) > 0 and not is_multiple(row, width)):
            return False
        return starts_aligned(self.buffer, min(LINE, width * self.type.dtype.itemsize))


def starts_aligned(buffer: Value, size: int) -> bool:
    """Whether memory starts at a multiple of some bytes: all that is allocated or handed in does; of views the offset says it."""
    op = buffer.defining_op
    while op is not None and op.name in ("memref.view", "memref.reshape"):
        if op.name == "memref.view":
            offset: Any = op.attributes["offset"]
            if not is_multiple(offset, size):
                return False
        op = op.operands[0].defining_op
    return True


def find_runs(nest: ParallelNest) -> list[Run] | None:
    """The accesses of a straight body that are to neighbours along the innermost variable; None when a store is not among them.

    Only memory that the body does not write is loaded in runs: a load behind a store must see it.
    """
    variable = nest.variables[-1]
    own = value_symbol(variable)
    written = [a for a in all_accesses(list(nest.body)) if a.writes]
    if not written or any(a.op.block is not nest.body for a in written):
        return None
    ops = list(nest.body)
    behind = all_accesses(ops[ops.index(written[0].op) + 1 :])
    if any(not b.writes and alias(b.memory, a.memory) != "never" for b in behind for a in written):
        return None  # stores of a run come behind all its elements: too late for such a load
    runs = []
    for op in nest.body:
        if op.name not in ("memref.load", "memref.store"):
            continue
        (access,) = accesses(op)
        places = [i.expr for i in access.indices]
        run = _run_of(op, access, places, own, variable) if places else None
        if run is None and op.name == "memref.store":
            return None
        if run is not None and (run.stores or not any(alias(memory_of(run.buffer), a.memory) != "never" for a in written)):
            runs.append(run)
    buffers = [r.buffer for r in runs if r.stores]
    return runs if len(set(buffers)) == len(buffers) else None


def find_loads(ops: Iterable[Operation], variable: Value) -> list[Run]:
    """The loads of neighbours along a variable among operations that store nothing."""
    own, runs = value_symbol(variable), []
    for op in ops:
        if op.name == "memref.load":
            (access,) = accesses(op)
            places = [i.expr for i in access.indices]
            run = _run_of(op, access, places, own, variable) if places else None
            if run is not None:
                runs.append(run)
    return runs


def _run_of(op: Operation, access: Access, places: Sequence[Dim], own: Dim, variable: Value) -> Run | None:
    offset = places[-1] - own
    if depends_on(offset, [variable]) or any(depends_on(p, [variable]) for p in places[:-1]):
        return None
    inside = {f"%{r.name}" for o in op.block or () for r in o.results}
    if any(n in inside for p in (*places[:-1], offset) for n in symbols_of(p)):
        return None  # at a place that the body computes
    return Run(op, access.buffer, tuple(places[:-1]), offset)


def run_width(nest: ParallelNest, runs: Sequence[Run]) -> int:
    """How many neighbours one thread takes: 16 bytes of the smallest elements, a power of two that all stores and the nest allow.

    Of the largest elements it takes two loads at most: more of them would leave gaps between those of neighbouring threads.
    """
    count = nest.counts[-1]
    sizes = [r.type.dtype.itemsize for r in runs]
    width = min(MOST, LINE // min(sizes), max(1, 2 * LINE // max(sizes)))
    ragged = len(nest.variables) == 1 and not isinstance(count, int)
    while width > 1 and not (all(r.is_aligned(width) for r in runs if r.stores) and (ragged or exact_div(count, width) is not None)):
        width //= 2
    return width


def launch_runs(nest: ParallelNest, runs: Sequence[Run], width: int, threads: int) -> None:
    """Replaces a nest by a kernel whose threads take runs of ``width`` neighbours."""
    loop_ = nest.loops[0]
    block, anchor, name = loop_.block, loop_.next, kernel_name(loop_) or "elements"
    assert block is not None
    *outer, inner = nest.counts
    pieces = ceildiv(inner, width)
    whole = exact_div(inner, width) is not None
    kept = [r for r in runs if r.is_aligned(width)]
    symbols = [f"%{v.name}" for v in nest.variables[:-1]]
    total: Dim = pieces
    for count in outer:
        total = count * total
    loop_.remove()

    def kernel(at_block: Dim) -> None:
        lines = {r.key: local(f"{r.buffer.name}.run", r.type.dtype, width) for r in kept}
        at = named("run", threads * at_block + thread())

        def work() -> None:
            *places, piece = split_index(at, [*outer, pieces])
            piece = named("piece", piece)
            places = [named(v.name, p) for v, p in zip(nest.variables, places, strict=False)]
            for variable, place in zip(nest.variables, places, strict=False):
                variable.replace_all_uses_with(value_of(place, variable.name))
            where = dict(zip(symbols, places, strict=True))
            if whole:
                _Run(nest, kept, lines, width, width * piece, where).build()
                return
            start = named("start", width * piece)
            rest = clone_body(nest)
            when(
                less(start + (width - 1), inner, "whole"),
                lambda: _Run(nest, kept, lines, width, width * piece, where).build(),
                lambda: _tail(rest, start, inner),
            )

        if whole:
            when(less(at, total), work)
        else:
            work()  # behind the end there is no whole run, and nothing left over

    with Builder(block, anchor, loc=loop_.loc):
        made = launch([("block", ceildiv(total, threads))], threads, kernel, name=name, tag="elements")
    hand_over(loop_, made)


def clone_body(nest: ParallelNest) -> tuple[Block, Value]:
    """A copy of the body of a nest, and the variable that stands in it for the innermost one."""
    block = Block()
    variable = block.add_argument(nest.variables[-1].name, nest.variables[-1].type)
    mapping = {nest.variables[-1]: variable}
    for op in nest.body:
        block.append(clone_operation(op, mapping))
    return block, variable


def _tail(rest: tuple[Block, Value], start: Dim, stop: Dim) -> None:
    block, variable = rest

    def element(at: Dim) -> None:
        set_variable(variable, at)
        move_body(block, active().block)

    loop(variable.name, start, stop, 1, element)


class _Run:
    """What a thread does with a whole run: loads, the body for each element in memory of its own, stores."""

    def __init__(
        self, nest: ParallelNest, runs: Sequence[Run], lines: Mapping[Any, Value], width: int, start: Dim, where: Mapping[str, Dim]
    ) -> None:
        self.nest, self.runs, self.lines, self.width, self.start, self.where = nest, runs, lines, width, start, where

    def build(self) -> None:
        """Builds all of it."""
        loaded = {r.key: r for r in self.runs if not r.stores}
        for run in loaded.values():
            for at, size in self._pieces(run):
                found = load(run.buffer, *self._front(run), (self._place(run) + at, size), name=run.op.results[0].name)
                store(found, self.lines[run.key], (at, size))
        loop("u", 0, self.width, 1, self._element)
        for run in self.runs:
            if run.stores:
                for at, size in self._pieces(run):
                    store(load(self.lines[run.key], (at, size)), run.buffer, *self._front(run), (self._place(run) + at, size))

    def _pieces(self, run: Run) -> list[tuple[int, int]]:
        size = min(self.width, max(1, LINE // run.type.dtype.itemsize))
        return [(at, size) for at in range(0, self.width, size)]

    def _front(self, run: Run) -> list[Dim]:
        return [substitute(p, self.where) for p in run.front]

    def _place(self, run: Run) -> Dim:
        return self.start + substitute(run.offset, self.where)

    def _element(self, at: Dim) -> None:
        block = active().block
        move_body(self.nest.body, block)
        for run in self.runs:
            line = self.lines[run.key]
            with Builder.before_op(run.op):
                if run.stores:
                    store(stored_value(run.op), line, at)
                else:
                    value = load(line, at, name=run.op.results[0].name)
                    run.op.results[0].replace_all_uses_with(value)
            run.op.erase()
        variable = self.nest.variables[-1]
        if variable.has_uses:
            with Builder(block, block.first):
                set_variable(variable, self.start + at)
        for op in list(block):
            make_serial(op)
