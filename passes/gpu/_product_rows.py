"""Kernels of products with few rows: reading the matrix is the work, so all threads keep copies of it on their way.

Every element is still one chain of multiply-adds over ascending k, which one thread does; it waits for each of them, so what counts is
that there are threads enough for all elements, and that the tiles are there when they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dialects.arith.cast import extf
from dialects.math.exact import fma
from ir.core import Value
from ir.dims import Dim, ceildiv, dim_min, floordiv, mod, product
from ir.types import ScalarType, VectorType
from passes.gpu._kernels import LINE, barrier, launch, less, local, named, split_index, thread, when
from passes.gpu._nests import kernel_name
from passes.gpu._product_nests import Factor, Product, ProductNest
from passes.gpu._product_pipeline import pipelined
from passes.gpu._product_results import Patches, write_results
from passes.gpu._product_schedules import FEW, RowSchedule
from passes.gpu._product_staging import Problem, Shape, Tile, stage
from passes.gpu._product_tiles import start_of
from passes.loops._blocks import load, loop, store

CHAIN = 16
"""Multiply-adds of a thread (of all its rows) while the numbers of the next ones are loaded: enough to cover the way from shared memory."""


def build_rows(nest: ProductNest, schedule: RowSchedule) -> None:
    """Builds the kernel of a nest with the active builder."""
    rows = min(FEW, nest.rows) if isinstance(nest.rows, int) else FEW
    blocks = ceildiv(nest.rows, max(1, rows)) * ceildiv(nest.columns, schedule.columns) * product(d for _, d in nest.around)
    launch(
        [("block", blocks)], schedule.threads, lambda block: _Kernel(nest, schedule, max(1, rows), block).build(),
        name=kernel_name(nest.top) or "product", tag="product",
    )  # fmt: skip


class _Kernel:
    """Neighbouring threads have neighbouring columns; groups of threads have the rows, up to ``each`` in one thread."""

    def __init__(self, nest: ProductNest, schedule: RowSchedule, rows: int, block: Dim) -> None:
        self.nest, self.schedule = nest, schedule
        self.thread = thread()
        groups = schedule.threads // schedule.columns
        self.each = -(-rows // groups)
        self.groups = -(-rows // self.each)
        self.size = 1 << (self.each * self.groups - 1).bit_length()
        down, across = ceildiv(nest.rows, rows), ceildiv(nest.columns, schedule.columns)
        batch = split_index(block, [*(d for _, d in nest.around), down, across])
        self.places = {v: named(v.name, p) for (v, _), p in zip(nest.around, batch, strict=False)}
        self.row0, self.column0 = named("row0", rows * batch[-2]), named("column0", schedule.columns * batch[-1])
        self.column = named("column.in", mod(self.thread, schedule.columns))
        # threads without rows have those of the last ones: what they do is in vain, but nowhere else
        self.row = named("row.in", dim_min(self.each * floordiv(self.thread, schedule.columns), self.each * (self.groups - 1)))

    def build(self) -> None:
        """The sums of all groups, then what is done with them."""
        found: dict[Product, Value] = {}
        for n, group in enumerate(self.nest.groups):
            if n:
                barrier()
            for p in group:
                found[p] = local(f"{p.result.name}.sums", p.dtype, self.each, 1)
                for r in range(self.each):
                    store(start_of(p), found[p], r, 0)
            self._sums(group, found)

        def place_of(r: Dim) -> tuple[Dim, Dim]:
            return self.row0 + self.row + r, self.column0 + self.column

        patches = Patches([("r", self.each)], 1, place_of, self.each * self.groups, self.schedule.columns)
        self._working("has_sums", lambda: write_results(self.nest, patches, self.places, found))

    def _working(self, name: str, inside: Callable[[], None]) -> None:
        """What only threads do that have elements; ``name`` is that of the condition."""
        working = self.groups * self.schedule.columns
        if working == self.schedule.threads:
            inside()
        else:
            when(less(self.thread, working, name), inside)

    def _sums(self, group: Sequence[Product], sums: dict[Product, Value]) -> None:
        s, nest = self.schedule, self.nest
        problem = Problem(self.thread, s.threads, self.places, group[0].extent)

        def shape(factor: Factor, rows: bool) -> Shape:
            own = factor.own
            k_last = rows or own is None or not factor.runs_along(own)
            pad = LINE // (factor.dtype if rows else factor.stored).itemsize if k_last else 0
            size, extent, first = (self.size, nest.rows, self.row0) if rows else (s.columns, nest.columns, self.column0)
            return Shape(factor, size, extent, first, k_last, pad, raw=not rows)  # rows are widened once for all columns

        tiles = stage(problem, group, shape, s.depth, s.stages)

        def whole(slot: Dim, count: Dim, _: Sequence[Value]) -> Sequence[Value]:
            self._working("is_needed", lambda: _Chain(self, group, tiles, slot, found=sums).whole(s.depth))
            return []

        def rest(slot: Dim, count: Dim, _: Sequence[Value]) -> Sequence[Value]:
            self._working("is_needed", lambda: _Chain(self, group, tiles, slot, found=sums).rest(count))
            return []

        pipelined(list(tiles.values()), group[0].extent, s.depth, [], whole, rest)


class _Chain:
    """The multiply-adds of a thread with one tile: while it does some steps, it loads the numbers of the next ones."""

    def __init__(self, kernel: _Kernel, group: Sequence[Product], tiles: dict[object, Tile], slot: Dim, found: dict[Product, Value]) -> None:
        self.kernel, self.group, self.tiles, self.slot, self.sums = kernel, group, tiles, slot, found
        self.places: dict[object, list[Dim]] = {}
        for p in group:
            self.places.setdefault(p.rows.key, [kernel.row + r for r in range(kernel.each)])
            self.places.setdefault(p.columns.key, [kernel.column])
        self.by = max(4, CHAIN // (kernel.each * len(group)))

    def whole(self, depth: int) -> None:
        """All steps of a tile."""
        by = self.by
        now, following = self._buffers("now"), self._buffers("next")
        self._load(now, 0)

        def steps(k: Dim, *carried: Value) -> Sequence[Value]:
            self._load(following, k + by)
            found = self._add(now, carried)
            for key, buffer in now.items():
                for n in range(len(self.places[key])):
                    store(load(following[key], n, (0, by)), buffer, n, (0, by))
            return found

        found = loop("k", 0, depth - by, by, steps, self._start())
        self._end(self._add(now, found))

    def rest(self, count: Dim) -> None:
        """Some steps, one by one."""

        def step(k: Dim, *carried: Value) -> Sequence[Value]:
            numbers = {key: [self._number(key, at, k) for at in places] for key, places in self.places.items()}
            return self._multiply_add(numbers, carried)

        self._end(loop("k", 0, count, 1, step, self._start()))

    def _buffers(self, name: str) -> dict[object, Value]:
        found: dict[object, Value] = {}
        for key, places in self.places.items():
            tile = self.tiles[key]
            found[key] = local(f"{tile.memory.name}.{name}", tile.factor.dtype, len(places), self.by)
        return found

    def _start(self) -> list[Value]:
        return [load(self.sums[p], r, 0) for p in self.group for r in range(self.kernel.each)]

    def _end(self, found: Sequence[Value]) -> None:
        for n, value in enumerate(found):
            store(value, self.sums[self.group[n // self.kernel.each]], n % self.kernel.each, 0)

    def _load(self, buffers: dict[object, Value], k: Dim) -> None:
        """The numbers of the steps from k on, widened."""
        for key, places in self.places.items():
            tile = self.tiles[key]
            for n, at in enumerate(places):
                if tile.shape.k_last:
                    run = load(tile.memory, self.slot, at, (k, self.by), name="x")
                    if tile.shape.dtype != tile.factor.dtype:
                        run = extf(run, result_type=VectorType(tile.factor.dtype, (self.by,)), name="x")
                    store(run, buffers[key], n, (0, self.by))
                else:
                    loop("i", 0, self.by, 1, lambda i, key=key, at=at, n=n: store(self._number(key, at, k + i), buffers[key], n, i))  # type: ignore[misc]

    def _add(self, buffers: dict[object, Value], sums: Sequence[Value]) -> list[Value]:
        """The multiply-adds of some steps."""

        def step(i: Dim, *carried: Value) -> Sequence[Value]:
            numbers = {key: [load(buffers[key], n, i, name="x") for n in range(len(places))] for key, places in self.places.items()}
            return self._multiply_add(numbers, carried)

        return loop("i", 0, self.by, 1, step, sums)

    def _multiply_add(self, numbers: dict[object, list[Value]], sums: Sequence[Value]) -> list[Value]:
        found: list[Value] = []
        for p in self.group:
            (b,) = numbers[p.columns.key]
            for a in numbers[p.rows.key]:
                first, second = (a, b) if p.rows_first else (b, a)
                found.append(fma(first, second, sums[len(found)], name="sum"))
        return found

    def _number(self, key: object, own: Dim, k: Dim) -> Value:
        """One step of one row or column, widened."""
        tile = self.tiles[key]
        found = load(tile.memory, *((self.slot, own, k) if tile.shape.k_last else (self.slot, k, own)), name="x")
        wide = tile.shape.dtype != tile.factor.dtype
        return extf(found, result_type=ScalarType(tile.factor.dtype), name="x") if wide else found  # type: ignore[no-any-return]
