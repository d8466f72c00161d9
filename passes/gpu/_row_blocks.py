"""Long rows, and rows of unknown length: a block of threads for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.builder import Builder
from ir.core import Block, Operation, Value
from ir.dims import Dim, exact_div, floordiv, mod
from ir.types import DType
from passes.gpu._bodies import Copier, drop_unused
from passes.gpu._elements import Run, find_runs, run_width
from passes.gpu._kernels import LINE, WARP, barrier, equal, launch, local, named, shared, split_index, thread, when
from passes.gpu._nests import ParallelNest, hand_over, parallel_nest
from passes.gpu._row_loads import Loads, place_of
from passes.gpu._row_sums import OrderedSum
from passes.gpu._rows import Reduction, Rows, has_large_elements, part_size, row_kernel_name
from passes.loops._blocks import load, loop, store
from passes.loops._loops import accesses, body
from passes.loops._memory import Access as Touched
from passes.loops._memory import alias, all_accesses, stored_value

_PRIVATE_BYTES = 64 * 1024
"""Shared memory that parts of a row take at most; larger ones stay in global memory, where caches hold them."""


def threads_for(counts: Sequence[Dim]) -> int:
    """Threads of a block for loops with so many rounds."""
    known = [n for n in counts if isinstance(n, int)]
    longest = max(known) if len(known) == len(counts) and known else 0
    return 128 if longest <= 2048 else 256 if longest <= 8192 else 512 if longest <= 32768 else 1024


class LongRows:
    """A kernel with one block per row."""

    def __init__(self, rows: Rows, threads: int) -> None:
        self.rows, self.nest, self.threads = rows, rows.nest, threads
        outer = rows.nest.loops[0]
        assert outer.graph is not None
        self.copier = Copier(outer.graph)
        self.shared: dict[Value, Value] = {}
        self.known: dict[Value, Value] = {}
        self.at: Dim = 0
        self.touched: list[Touched] = []

    def build(self) -> None:
        """Replaces the nest."""
        outer = self.nest.loops[0]
        with Builder.before_op(outer):
            name, grid = row_kernel_name(self.rows), [("block", self.nest.total)]
            # registers for functions of f64: left alone, compilers spill them to have more blocks
            blocks = 1024 // self.threads if has_large_elements(self.rows) else 0
            made = launch(grid, self.threads, self._kernel, name=name, tag="rows", min_blocks=blocks)
        hand_over(outer, made)
        outer.erase()
        for buffer in self.rows.private:
            if not buffer.has_uses and buffer.defining_op is not None:
                buffer.defining_op.erase()
        self.copier.rename()

    def _kernel(self, block: Dim) -> None:
        room = _PRIVATE_BYTES
        for buffer, type_ in self.rows.private.items():
            size = part_size(type_) * type_.dtype.itemsize
            if 0 < size <= room and buffer not in self.rows.scalars:
                room -= size
                self.shared[buffer] = shared(f"{buffer.name}.row", type_.dtype, *(int(d) for d in type_.shape))  # type: ignore[arg-type]
        self.at = thread()
        for variable, place in zip(self.nest.variables, split_index(block, self.nest.counts), strict=True):
            self.copier.set(variable, place)
        for step in self.rows.steps:
            found = [a for a in all_accesses([step]) if a.buffer not in self.rows.scalars]
            if self._meets(found):
                self.barrier()
            self.touched += found
            self._step(step)

    def _meets(self, found: Sequence[Touched]) -> bool:
        """Whether memory is touched that other threads have touched since they met, and one of both writes."""
        return any((a.writes or b.writes) and alias(a.memory, b.memory) != "never" for a in found for b in self.touched)

    def is_last(self, loop_: Operation) -> bool:
        """Whether only scalars follow a loop."""
        steps = self.rows.steps
        return not any(o.regions for o in steps[steps.index(loop_) + 1 :])

    def _step(self, step: Operation) -> None:
        if step.name == "scf.parallel":
            self._columns(parallel_nest(step))
        elif step.name == "scf.for":
            reduction = self.rows.reductions[step]
            if reduction.is_free:
                self._any_order(reduction)
            else:
                OrderedSum(self, reduction).build()
        elif step.name == "memref.store" and accesses(step)[0].buffer in self.rows.scalars:
            self.known[accesses(step)[0].buffer] = self.copier.now(stored_value(step))
        elif step.name == "memref.store":
            when(equal(self.at, 0, "first"), lambda: self.copier.copy([step], self.near))
        else:
            self.copier.copy([step], self.near)

    # -- memory of the row --------------------------------------------------------------------------------------------

    def near(self, op: Operation) -> bool:
        """Builds an access to a part of the row in shared memory."""
        if op.name not in ("memref.load", "memref.store"):
            return False
        (access,) = accesses(op)
        if op.name == "memref.load" and access.buffer in self.known:
            self.copier.mapping[op.results[0]] = self.known[access.buffer]
            return True
        buffer = self.shared.get(access.buffer)
        if buffer is None:
            return False
        places = [self.copier.expr(i.expr) for i in access.indices[self.rows.prefix :]]
        if op.name == "memref.store":
            store(self.copier.now(stored_value(op)), buffer, *places)
        else:
            self.copier.become(op.results[0], load(buffer, *places, name=op.results[0].name))
        return True

    # -- loops over columns -------------------------------------------------------------------------------------------

    def _columns(self, nest: ParallelNest) -> None:
        if len(nest.variables) > 1:
            total, counts = nest.total, nest.counts

            def element(at: Dim) -> None:
                places = [self.copier.set(v, p) for v, p in zip(nest.variables, split_index(at, counts), strict=True)]
                self.copier.copy(nest.body, self.near)
                for place in places:
                    drop_unused(place)

            loop("e", self.at, total, self.threads, element)
            return
        runs = find_runs(nest) or []
        width = run_width(nest, runs) if runs and exact_div(nest.counts[0], LINE) is not None else 1
        whole = Piece(self, nest.body, nest.variables[0], runs if width > 1 else [], width)
        loop(nest.variables[0].name, width * self.at, nest.counts[0], width * self.threads, whole.build)

    # -- reductions in any order --------------------------------------------------------------------------------------

    def _any_order(self, step: Reduction) -> None:
        block = body(step.op)
        variable, *carried = block.arguments

        loads = Loads(self, block, variable, step.count)

        def element(at: Dim, values: Sequence[Value], lines: Mapping[Operation, Value], u: Dim) -> list[Value]:
            self.copier.mapping.update(zip(carried, values, strict=True))
            place = self.copier.set(variable, at)
            self.copier.copy(block, loads.near(lines, u))
            drop_unused(place)
            assert block.terminator is not None
            return [self.copier.now(v) for v in block.terminator.operands]

        def neighbours(at: Dim, *values: Value) -> list[Value]:
            if loads.width == 1:
                return element(at, values, {}, 0)
            lines = loads.load(at)
            return loop("u", 0, loads.width, 1, lambda u, *acc: element(at + u, acc, lines, u), values)

        values = loop(variable.name, loads.width * self.at, step.count, loads.width * self.threads, neighbours, step.identities())
        values = [step.across(n, v, WARP) for n, v in enumerate(values)]
        if self.threads > WARP:
            values = self._across_warps(step, values)
        for n, value in enumerate(values):
            self.copier.become(step.op.results[n], step.combine(n, self.copier.now(step.initial[n]), value))

    def _across_warps(self, step: Reduction, values: Sequence[Value]) -> list[Value]:
        warps = self.threads // WARP
        parts = [shared(f"{r.name}.warps", step.dtype(n), warps) for n, r in enumerate(step.op.results)]
        warp, lane = named("warp", floordiv(self.at, WARP)), named("lane", mod(self.at, WARP))

        def put() -> None:
            for value, part in zip(values, parts, strict=True):
                store(value, part, warp)

        when(equal(lane, 0, "first"), put)
        self.barrier()
        return loop(
            "w", 1, warps, 1, lambda w, *acc: [step.combine(n, a, load(p, w)) for n, (a, p) in enumerate(zip(acc, parts, strict=True))],
            [load(part, 0) for part in parts],
        )  # fmt: skip

    def barrier(self) -> None:
        """All threads meet: what each has touched until now, the others may touch."""
        barrier()
        self.touched = []

    def share(self, name: str, value: Value, dtype: DType) -> Value:
        """A value of the first thread, for all; the caller puts a barrier between this and :func:`load`."""
        place = shared(name, dtype, 1)
        when(equal(self.at, 0, "first"), lambda: store(value, place, 0))
        return place


@dataclass
class Piece:
    """What a thread does with ``width`` neighbours: loads them 16 bytes at a time, goes through the body for each, and stores them."""

    rows: LongRows
    ops: Sequence[Operation] | Block
    variable: Value
    runs: Sequence[Run]
    width: int

    def build(self, start: Dim) -> None:
        """Builds it for neighbours from ``start`` on."""
        if self.width == 1:
            self._element(start, {}, 0)
            return
        kept = [r for r in self.runs if r.is_aligned(self.width)]
        lines = {r.key: local(f"{r.buffer.name}.run", r.type.dtype, self.width) for r in kept}
        for run in {r.key: r for r in kept if not r.stores}.values():
            for at, size in self._parts(run):
                buffer, front, place = place_of(self.rows, run, start)
                found = load(buffer, *front, (place + at, size), name=run.op.results[0].name)
                store(found, lines[run.key], (at, size))
        where = {r.op: lines[r.key] for r in kept}
        loop("u", 0, self.width, 1, lambda u: self._element(start + u, where, u))
        for run in [r for r in kept if r.stores]:
            for at, size in self._parts(run):
                buffer, front, place = place_of(self.rows, run, start)
                store(load(lines[run.key], (at, size)), buffer, *front, (place + at, size))

    def _parts(self, run: Run) -> list[tuple[int, int]]:
        size = min(self.width, max(1, LINE // run.type.dtype.itemsize))
        return [(at, size) for at in range(0, self.width, size)]

    def _element(self, at: Dim, lines: Mapping[Operation, Value], u: Dim) -> None:
        copier = self.rows.copier
        place = copier.set(self.variable, at)

        def special(op: Operation) -> bool:
            line = lines.get(op)
            if line is None:
                return self.rows.near(op)
            if op.name == "memref.store":
                store(copier.now(stored_value(op)), line, u)
            else:
                copier.become(op.results[0], load(line, u, name=op.results[0].name))
            return True

        copier.copy(self.ops, special)
        drop_unused(place)
