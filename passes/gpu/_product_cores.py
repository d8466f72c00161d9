"""Kernels of products by the tensor cores: bf16 and f16, and tf32 where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.vector import insert, reshape, shuffle
from ir.core import Value
from ir.dims import Dim, floordiv, mod
from ir.types import DType, VectorType, f32
from passes.gpu._async_copies import ldmatrix, mma
from passes.gpu._kernels import LINE, barrier, launch, local, named, thread, warp_of
from passes.gpu._nests import kernel_name
from passes.gpu._product_nests import Factor, Product, ProductNest
from passes.gpu._product_pipeline import pipelined
from passes.gpu._product_results import Patches, write_results
from passes.gpu._product_schedules import MOST_SUMS, CoreSchedule, registers
from passes.gpu._product_staging import Problem, Shape, Tile, stage
from passes.gpu._product_tiles import grid_of, start_of, tile_places
from passes.loops._blocks import filled, load, loop, number, store

NARROW_TYPES = ("bf16", "f16")
"""What the tensor cores multiply as it is."""


def narrow_type(nest: ProductNest) -> DType | None:
    """The 16-bit type in which all factors of a nest are stored, when there is one and sums are in f32."""
    found = {f.stored for p in nest.products for f in (p.rows, p.columns)}
    if len(found) != 1 or any(p.dtype != f32 or not p.rows.is_stored or not p.columns.is_stored for p in nest.products):
        return None
    (dtype,) = found
    return dtype if dtype.name in NARROW_TYPES else None


def build_cores(nest: ProductNest, schedule: CoreSchedule, precision: str = "") -> None:
    """Builds the kernel of a nest with the active builder; ``precision`` is tf32 for factors in f32."""
    launch(
        grid_of(nest, schedule.rows, schedule.columns), schedule.threads, lambda block: _Kernel(nest, schedule, block, precision).build(),
        name=kernel_name(nest.top) or "product", tag="product", min_blocks=_blocks(nest, schedule),
    )  # fmt: skip


def _blocks(nest: ProductNest, schedule: CoreSchedule) -> int:
    """How many blocks a multiprocessor shall have at a time: as many as are asked for, where all is copied 16 bytes at a time.

    Otherwise threads hold more places, or elements, than the registers of several blocks have room for.
    """
    for factor in (f for p in nest.products for f in (p.rows, p.columns)):
        along = factor.own if factor.own is not None and factor.runs_along(factor.own) else factor.k
        size = factor.stored.itemsize
        if not factor.runs_along(along) or factor.unit(along, LINE // size) * size < LINE:
            return 0
    return schedule.min_blocks if registers(nest, schedule) <= MOST_SUMS else 0


class _Kernel:
    """A warp has ``fragments`` of 16 rows and 8 columns; in each a thread has 2 neighbours of two rows, 8 apart."""

    def __init__(self, nest: ProductNest, schedule: CoreSchedule, block: Dim, precision: str) -> None:
        self.nest, self.schedule, self.precision = nest, schedule, precision
        self.thread = thread()
        warp, self.lane = warp_of(self.thread)
        self.places, self.row0, self.column0 = tile_places(nest, block, schedule.rows, schedule.columns)
        down, across = schedule.fragments
        self.row = named("warp.row", 16 * down * floordiv(warp, schedule.warps[1]))
        self.column = named("warp.column", 8 * across * mod(warp, schedule.warps[1]))
        self.eighth, self.in_eighth = named("lane.eighth", floordiv(self.lane, 8)), named("lane.in", mod(self.lane, 8))
        self.group, self.in_group = named("lane.group", floordiv(self.lane, 4)), named("lane.in_group", mod(self.lane, 4))

    def build(self) -> None:
        """The sums of all groups, then what is done with them."""
        down, across = self.schedule.fragments
        found: dict[Product, Value] = {}
        for n, group in enumerate(self.nest.groups):
            if n:
                barrier()
            sums = self._sums(group)
            for place, p in enumerate(group):
                buffer = local(f"{p.result.name}.sums", f32, down, 2, across, 2)
                for at, value in enumerate(sums[place * down * across : (place + 1) * down * across]):
                    square = reshape(value, result_type=VectorType(f32, (2, 2)))
                    store(square, buffer, at // across, (0, 2), at % across, (0, 2))
                found[p] = buffer

        def place_of(p: Dim, half: Dim, q: Dim) -> tuple[Dim, Dim]:
            return self.row0 + self.row + 16 * p + 8 * half + self.group, self.column0 + self.column + 8 * q + 2 * self.in_group

        patches = Patches([("p", down), ("half", 2), ("q", across)], 2, place_of, self.schedule.rows, self.schedule.columns)
        write_results(self.nest, patches, self.places, found)

    def _sums(self, group: Sequence[Product]) -> list[Value]:
        s, nest = self.schedule, self.nest
        down, across = s.fragments
        problem = Problem(self.thread, s.threads, self.places, group[0].extent)

        def shape(factor: Factor, rows: bool) -> Shape:
            own = factor.own
            k_last = own is None or not factor.runs_along(own)
            # rows of eight addresses lie in different banks: of 16-bit elements 16 bytes further each, of f32 4 or 8 banks
            pad = LINE // factor.stored.itemsize if k_last or not self.precision else 8
            size, extent, first = (s.rows, nest.rows, self.row0) if rows else (s.columns, nest.columns, self.column0)
            return Shape(factor, size, extent, first, k_last, pad, raw=True)

        tiles = stage(problem, group, shape, s.depth, s.stages)
        size = 8 if self.precision else 16

        def steps(slot: Dim, count: Dim, sums: Sequence[Value]) -> Sequence[Value]:
            return loop("k", 0, count, size, lambda k, *carried: self._step(group, tiles, slot, k, carried), sums)

        start = [v for p in group for v in [filled(start_of(p), 4)] * (down * across)]
        return pipelined(list(tiles.values()), group[0].extent, s.depth, start, steps, steps)

    def _step(self, group: Sequence[Product], tiles: dict[object, Tile], slot: Dim, k: Dim, sums: Sequence[Value]) -> list[Value]:
        """One product of fragments for every fragment of sums."""
        down, across = self.schedule.fragments
        read: dict[object, list[Value]] = {}
        found: list[Value] = []
        for n, p in enumerate(group):
            if p.rows.key not in read:
                read[p.rows.key] = self._rows(tiles[p.rows.key], slot, k)
            if p.columns.key not in read:
                read[p.columns.key] = self._columns(tiles[p.columns.key], slot, k)
            for i, a in enumerate(read[p.rows.key]):
                for j, b in enumerate(read[p.columns.key]):
                    found.append(mma(a, b, sums[(n * down + i) * across + j], precision=self.precision, name="sum"))
        return found

    def _rows(self, tile: Tile, slot: Dim, k: Dim) -> list[Value]:
        """The fragments of rows at a step: matrices of 8 rows and 8 steps, rows first."""
        if self.precision:
            places = [(self.group + 8 * (e % 2), self.in_group + 4 * (e // 2)) for e in range(4)]
            return [self._gathered(tile, slot, self.row + 16 * i, k, places, "a") for i in range(self.schedule.fragments[0])]
        found = []
        for i in range(self.schedule.fragments[0]):
            row = self.row + 16 * i
            if tile.shape.k_last:
                at: list[Dim] = [row + self.in_eighth + 8 * mod(self.eighth, 2), k + 8 * floordiv(self.eighth, 2)]
            else:
                at = [k + self.in_eighth + 8 * floordiv(self.eighth, 2), row + 8 * mod(self.eighth, 2)]
            found.append(ldmatrix(tile.memory, slot, at[0], (at[1], 8), count=4, transposed=not tile.shape.k_last, name="a"))
        return found

    def _columns(self, tile: Tile, slot: Dim, k: Dim) -> list[Value]:
        """The fragments of columns at a step, loaded in pairs: matrices of 8 columns and 8 steps, steps first."""
        across = self.schedule.fragments[1]
        if self.precision:
            places = [(self.group, self.in_group + 4 * e) for e in range(2)]
            return [self._gathered(tile, slot, self.column + 8 * j, k, places, "b") for j in range(across)]
        found: list[Value] = []
        for j in range(0, across, 2):
            column = self.column + 8 * j
            if tile.shape.k_last:
                at: list[Dim] = [column + self.in_eighth + 8 * floordiv(self.eighth, 2), k + 8 * mod(self.eighth, 2)]
            else:
                at = [k + self.in_eighth + 8 * mod(self.eighth, 2), column + 8 * floordiv(self.eighth, 2)]
            pair = ldmatrix(tile.memory, slot, at[0], (at[1], 8), count=4, transposed=not tile.shape.k_last, name="b")
            found += [shuffle(pair, pair, mask=tuple(range(4 * e, 4 * e + 4)), name="b") for e in range(2)]
        return found

    def _gathered(self, tile: Tile, slot: Dim, own: Dim, k: Dim, places: Sequence[tuple[Dim, Dim]], name: str) -> Value:
        """A fragment of f32, element by element."""
        found = filled(number(0.0, f32), len(places))
        for n, (row, step) in enumerate(places):
            at = [own + row, k + step] if tile.shape.k_last else [k + step, own + row]
            found = insert(load(tile.memory, slot, *at, name=name), found, position=(n,), name=name)
        return found
