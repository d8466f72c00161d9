"""Kernels of products with few rows: reading the matrix is the work, so all threads keep copies of it on their way.

Every element is still one chain of multiply-adds over ascending k, which one thread does; it waits for each of them, so what counts is
that there are threads enough for all elements, and that the tiles are there when they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from dialects.arith.cast import extf
from dialects.math.exact import fma
from dialects.vector import extract
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod, product
from ir.types import ScalarType, VectorType
from passes.gpu._kernels import LINE, barrier, launch, less, local, named, split_index, thread, when
from passes.gpu._product_nests import Factor, Product, ProductNest
from passes.gpu._product_pipeline import pipelined
from passes.gpu._product_results import Patches, write_results
from passes.gpu._product_schedules import FEW, RowSchedule
from passes.gpu._product_staging import Problem, Shape, Tile, stage
from passes.gpu._product_tiles import start_of
from passes.gpu._threads import kernel_name
from passes.loops._blocks import load, loop, store

STEP = 4
"""Steps that are loaded together where they are neighbours: 16 bytes of f32."""


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
        self.row = named("row.in", self.each * floordiv(self.thread, schedule.columns))

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
        self._working(lambda: write_results(self.nest, patches, self.places, found))

    def _working(self, inside: object) -> None:
        """What only threads do that have elements."""
        working = self.groups * self.schedule.columns
        if working == self.schedule.threads:
            inside()  # type: ignore[operator]
        else:
            when(less(self.thread, working, "has_sums"), inside)  # type: ignore[arg-type]

    def _sums(self, group: Sequence[Product], sums: dict[Product, Value]) -> None:
        s, nest = self.schedule, self.nest
        problem = Problem(self.thread, s.threads, self.places, group[0].extent)

        def shape(factor: Factor, rows: bool) -> Shape:
            own = factor.own
            k_last = rows or own is None or not factor.runs_along(own)
            pad = LINE // factor.stored.itemsize if k_last else 0
            size, extent, first = (self.size, nest.rows, self.row0) if rows else (s.columns, nest.columns, self.column0)
            return Shape(factor, size, extent, first, k_last, pad, raw=True)

        tiles = stage(problem, group, shape, s.depth, s.stages)

        def steps(slot: Dim, count: Dim, by: int) -> None:
            start = [load(sums[p], r, 0) for p in group for r in range(self.each)]
            found = loop("k", 0, count, by, lambda k, *carried: self._step(group, tiles, slot, k, by, carried), start)
            for n, value in enumerate(found):
                store(value, sums[group[n // self.each]], n % self.each, 0)

        def whole(slot: Dim, count: Dim, _: Sequence[Value]) -> Sequence[Value]:
            self._working(lambda: steps(slot, count, STEP))
            return []

        def rest(slot: Dim, count: Dim, _: Sequence[Value]) -> Sequence[Value]:
            self._working(lambda: steps(slot, count, 1))
            return []

        pipelined(list(tiles.values()), group[0].extent, s.depth, [], whole, rest)

    def _step(self, group: Sequence[Product], tiles: dict[object, Tile], slot: Dim, k: Dim, by: int, sums: Sequence[Value]) -> list[Value]:
        """``by`` multiply-adds for every sum."""
        read: dict[object, list[list[Value]]] = {}
        found = list(sums)
        for n, p in enumerate(group):
            if p.rows.key not in read:
                read[p.rows.key] = [self._numbers(tiles[p.rows.key], slot, self.row + r, k, by) for r in range(self.each)]
            if p.columns.key not in read:
                read[p.columns.key] = [self._numbers(tiles[p.columns.key], slot, self.column, k, by)]
            (b,) = read[p.columns.key]
            for r, a in enumerate(read[p.rows.key]):
                for i in range(by):
                    first, second = (a[i], b[i]) if p.rows_first else (b[i], a[i])
                    at = n * self.each + r
                    found[at] = fma(first, second, found[at], name="sum")
        return found

    def _numbers(self, tile: Tile, slot: Dim, own: Dim, k: Dim, by: int) -> list[Value]:
        """Some steps of one row or column, widened."""
        factor, wide = tile.factor, tile.shape.dtype != tile.factor.dtype
        if by > 1 and tile.shape.k_last:
            run = load(tile.memory, slot, own, (k, by), name="x")
            if wide:
                run = extf(run, result_type=VectorType(factor.dtype, (by,)), name="x")
            return [extract(run, position=(i,), name="x") for i in range(by)]
        found = [load(tile.memory, *((slot, own, k + i) if tile.shape.k_last else (slot, k + i, own)), name="x") for i in range(by)]
        return [extf(v, result_type=ScalarType(factor.dtype), name="x") for v in found] if wide else found
