"""Sums along long rows whose order is fixed: all threads compute terms, one warp adds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ir.core import Operation, Value
from ir.dims import Dim, floordiv, mod
from ir.types import DType, ScalarType
from passes.gpu._bodies import drop_unused
from passes.gpu._kernels import LINE, WARP, barrier, equal, less, local, named, results_when, shared, when
from passes.gpu._row_loads import Loads
from passes.gpu._rows import LANES, Reduction, chosen
from passes.loops._blocks import index_value, load, loop, store
from passes.loops._loops import accesses, body, value_symbol
from passes.loops._memory import all_accesses

if TYPE_CHECKING:
    from passes.gpu._row_blocks import LongRows

_PIECE = 4096
"""Terms that wait in shared memory at most."""
_PIECE_RUNNING = 2048
"""The same where running sums wait there, too."""
_PIECE_UNKNOWN = 1024
"""The same where the length of rows is not known."""


class OrderedSum:
    """A loop along a row in whose order additions happen: 16 chains and a tree, or one chain.

    The body is cut in three: the ``chain`` leads from carried values to carried values; ``terms`` do not depend on them, and all threads
    compute those that the chain wants into shared memory, a piece at a time; what follows from the chain and is stored (running sums) is
    computed by all threads again, from what the chain has left in shared memory.
    """

    def __init__(self, rows: LongRows, step: Reduction) -> None:
        self.rows, self.step, self.copier = rows, step, rows.copier
        self.block = body(step.op)
        self.variable, *self.carried = self.block.arguments
        self.lanes = 1 if step.in_order else LANES
        varying = self._varying()
        assert self.block.terminator is not None
        wanted = self._sources(self.block.terminator.operands)
        chain = [op for op in varying if op in wanted]
        self.after = [op for op in self.block if op.name == "memref.store" or (op in varying and op not in wanted)]
        self.kept = self._kept(chain)
        self.chain, self.waiting = self._cut(chain)
        self.waiting_buffers: dict[Value, Value] = {}
        self.kept_buffers: dict[Value, Value] = {}

    def _varying(self) -> list[Operation]:
        """The operations that depend on carried values, in order."""
        known, found = set(self.carried), []
        for op in self.block:
            if op is not self.block.terminator and op.results and any(v in known for v in op.operands):
                found.append(op)
                known.update(op.results)
        return found

    def _sources(self, values: Iterable[Value]) -> set[Operation]:
        """The operations of the body that values are made of."""
        found: set[Operation] = set()
        pending = list(values)
        while pending:
            op = pending.pop().defining_op
            if op is not None and op.block is self.block and op not in found:
                found.add(op)
                pending += op.operands
        return found

    def _kept(self, chain: Sequence[Operation]) -> list[Value]:
        """What the chain computes and carries, as far as operations behind it want it."""
        made = {*self.carried, *(r for op in chain for r in op.results)}
        return list(dict.fromkeys(v for op in self.after for v in op.operands if v in made))

    def _cut(self, chain: Sequence[Operation]) -> tuple[list[Operation], list[Value]]:
        """The chain, and the terms it wants; casts to wider numbers and loads from shared memory are done in the chain."""
        moved, waiting = set(chain), dict[Value, None]()
        assert self.block.terminator is not None
        pending = [v for op in chain for v in op.operands] + self.block.terminator.operands
        while pending:
            value = pending.pop(0)
            op = value.defining_op
            if op is None or op.block is not self.block or op in moved:
                continue
            if op.name in ("arith.extf", "arith.constant") or (op.name == "memref.load" and accesses(op)[0].buffer in self.rows.shared):
                moved.add(op)
                pending += op.operands
            else:
                waiting[value] = None
        return [op for op in self.block if op in moved], list(waiting)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Builds it."""
        count = self.step.count
        most = _PIECE_RUNNING if self.kept else _PIECE
        piece = min(most, -(-count // LANES) * LANES) if isinstance(count, int) else _PIECE_UNKNOWN
        initial = [self.copier.now(v) for v in self.step.initial] if self.step.in_order else self.step.identities()
        self.waiting_buffers = {v: self._room(v, "terms", piece) for v in self.waiting}
        self.kept_buffers = {v: self._room(v, "running", piece) for v in self.kept}
        if not self.waiting and not self.after:
            values = self._chain_of(0, count, initial)
        elif isinstance(count, int) and count <= piece:
            values = self._piece(0, count, initial, last=True)
        else:
            values = loop("piece", 0, count, piece, lambda p, *acc: self._piece(p, self._size(p, piece, count), list(acc)), initial)
        if any(r.has_uses for r in self.step.op.results):
            self._share(values)
        elif self.after:
            self.rows.touched += all_accesses([self.step.op])

    def _room(self, value: Value, what: str, piece: int) -> Value:
        return shared(f"{value.name}.{what}", _dtype(value), piece)

    def _size(self, start: Dim, piece: int, count: Dim) -> Dim:
        return value_symbol(index_value("min", count - start, piece, name="size"))

    def _piece(self, start: Dim, size: Dim, values: Sequence[Value], last: bool = False) -> list[Value]:
        """One piece: terms by all threads, the chain, what follows from it by all threads."""
        if self.waiting:
            wanted = self._sources(self.waiting)
            self._by_all(start, size, [op for op in self.block if op in wanted], self.waiting_buffers, {})
            barrier()
        found = self._chain_of(start, size, values)
        if self.after:
            barrier()
            wanted = self._sources(v for op in self.after for v in op.operands if v not in self.kept_buffers)
            chained = {op for v in self.kept_buffers if (op := v.defining_op) is not None}
            ops = [op for op in self.block if op in self.after or (op in wanted and op not in chained and op not in self._varying())]
            self._by_all(start, size, ops, {}, self.kept_buffers)
        if not last and not (self.waiting and self.after):
            barrier()  # otherwise those of the next piece keep apart who reads terms and running sums from who writes them
        return found

    def _by_all(self, start: Dim, size: Dim, ops: Sequence[Operation], put: dict[Value, Value], got: dict[Value, Value]) -> None:
        """All threads go through the rounds of a piece: ``got`` are values that wait in memory, ``put`` those that shall."""

        loads = Loads(self.rows, () if got else ops, self.variable, self.step.count)
        width = loads.width

        def element(at: Dim, lines: dict[Operation, Value], u: Dim, target: dict[Value, Value], to: Dim) -> None:
            place = self.copier.set(self.variable, start + at)
            for value, buffer in got.items():
                self.copier.become(value, load(buffer, at, name=value.name))
            self.copier.copy(ops, loads.near(lines, u))
            for value, buffer in target.items():
                store(self.copier.now(value), buffer, to)
            drop_unused(place)

        def neighbours(at: Dim) -> None:
            if width == 1:
                element(at, {}, 0, put, at)
                return
            lines = loads.load(start + at)
            rows = {value: local(f"{value.name}.run", _dtype(value), width) for value in put}
            loop("u", 0, width, 1, lambda u: element(at + u, lines, u, rows, u))
            for value, buffer in put.items():
                size = min(width, max(1, LINE // _dtype(value).itemsize))
                for first in range(0, width, size):
                    store(load(rows[value], (first, size)), buffer, (at + first, size))

        loop("e", width * self.rows.at, size, width * self.rows.threads, neighbours)

    # -- the chain ----------------------------------------------------------------------------------------------------

    def _chain_of(self, start: Dim, size: Dim, values: Sequence[Value]) -> list[Value]:
        """The chain over a piece, by the first warp; its lanes are lanes of the sum, twice."""

        def chain() -> list[Value]:
            if self.lanes == 1:
                return loop("k", 0, size, 1, lambda k, *acc: self._round(start, k, acc), values)
            lane = named("lane", mod(self.rows.at, LANES))
            full, rest = floordiv(size, LANES), mod(size, LANES)
            found: list[Value] = list(values)
            if full != 0:
                found = loop("k", 0, full, 1, lambda k, *acc: self._round(start, LANES * k + lane, acc), found)
            if rest == 0:
                return found
            if isinstance(rest, int):
                return self._last(start, LANES * full + lane, size, found)
            return loop("rest", LANES * full, size, LANES, lambda k, *acc: self._last(start, k + lane, size, acc), found)

        return results_when(less(self.rows.at, WARP, "adds"), chain, list(values))

    def _last(self, start: Dim, at: Dim, size: Dim, values: Sequence[Value]) -> list[Value]:
        """The round of which only some lanes are used."""
        place = value_symbol(index_value("min", at, size - 1, name="last"))
        used = less(at, size, "used")
        return [chosen(used, new, old) for new, old in zip(self._round(start, place, values), values, strict=True)]

    def _round(self, start: Dim, at: Dim, values: Sequence[Value]) -> list[Value]:
        self.copier.mapping.update(zip(self.carried, values, strict=True))
        for value, buffer in self.waiting_buffers.items():
            self.copier.become(value, load(buffer, at, name=value.name))
        place = self.copier.set(self.variable, start + at)
        self.copier.copy(self.chain, self.rows.near)
        drop_unused(place)

        def keep() -> None:
            for value, buffer in self.kept_buffers.items():
                store(self.copier.now(value), buffer, at)

        if self.kept_buffers:
            when(equal(self.rows.at, 0, "first"), keep)
        assert self.block.terminator is not None
        return [self.copier.now(v) for v in self.block.terminator.operands]

    def _share(self, values: Sequence[Value]) -> None:
        """Hands the result of the first warp to all threads."""
        step = self.step
        if not step.in_order:
            values = [step.across(n, v, LANES) for n, v in enumerate(values)]
        if self.rows.is_last(step.op):
            # only the first thread goes on with it, to store what it makes of it
            for n, value in enumerate(values):
                self.copier.become(step.op.results[n], value if step.in_order else step.combine(n, self.copier.now(step.initial[n]), value))
            self.rows.touched += all_accesses([step.op])
            return
        places = [self.rows.share(f"{r.name}.sum", v, step.dtype(n)) for n, (r, v) in enumerate(zip(step.op.results, values, strict=True))]
        self.rows.barrier()
        for n, place in enumerate(places):
            value = load(place, 0)
            result = value if step.in_order else step.combine(n, self.copier.now(step.initial[n]), value)
            self.copier.become(step.op.results[n], result)


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, ScalarType)
    return value.type.dtype
