"""Kernels of products in tiles of registers: every element is one chain of multiply-adds over ascending k, as on a processor."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.math.exact import fma
from dialects.vector import reshape
from ir.core import Value
from ir.dims import Dim, ceildiv, dim_min, floordiv, mod, product
from ir.types import VectorType
from passes.gpu._kernels import LINE, barrier, launch, local, named, split_index, thread, warp_of
from passes.gpu._nests import kernel_name
from passes.gpu._product_nests import Factor, Product, ProductNest
from passes.gpu._product_pipeline import pipelined
from passes.gpu._product_results import Patches, write_results
from passes.gpu._product_scalars import Scalars
from passes.gpu._product_schedules import MOST_SUMS, TileSchedule, registers
from passes.gpu._product_staging import Problem, Shape, Tile, stage
from passes.loops._blocks import filled, load, loop, store

SQUARE = 4
"""Rows and columns of a square: 16 bytes of f32."""
NEAR = 8
"""Rows of tiles that blocks go through column by column, so that blocks that run at one time read the same tiles."""


def tile_places(nest: ProductNest, block: Dim, rows: int, columns: int) -> tuple[dict[Value, Dim], Dim, Dim]:
    """Which batch and tile a block works on: places of the loops around, and the first row and column."""
    down, across = ceildiv(nest.rows, rows), ceildiv(nest.columns, columns)
    places: dict[Value, Dim] = {}
    if nest.around:
        batch = split_index(named("batch", floordiv(block, down * across)), [d for _, d in nest.around])
        places = {v: named(v.name, p) for (v, _), p in zip(nest.around, batch, strict=True)}
        block = named("tile", mod(block, down * across))
    if isinstance(down, int) and down <= NEAR:
        row, column = mod(block, down), floordiv(block, down)
    else:
        group = named("group", NEAR * floordiv(block, NEAR * across))
        height = named("height", dim_min(down - group, NEAR))
        inside = named("inside", mod(block, NEAR * across))
        row, column = group + mod(inside, height), floordiv(inside, height)
    return places, named("row0", rows * row), named("column0", columns * column)


def grid_of(nest: ProductNest, rows: int, columns: int) -> list[tuple[str, Dim]]:
    """One block for each tile of each batch."""
    return [("block", ceildiv(nest.rows, rows) * ceildiv(nest.columns, columns) * product(d for _, d in nest.around))]


def build_tiles(nest: ProductNest, schedule: TileSchedule) -> None:
    """Builds the kernel of a nest with the active builder."""
    launch(
        grid_of(nest, schedule.rows, schedule.columns), schedule.threads, lambda block: _Kernel(nest, schedule, block).build(),
        name=kernel_name(nest.top) or "product", tag="product", min_blocks=_blocks(nest, schedule),
    )  # fmt: skip


def _blocks(nest: ProductNest, schedule: TileSchedule) -> int:
    """How many blocks a multiprocessor shall have at a time: as many as are asked for, where their registers are surely enough."""
    places = [*(d for _, d in nest.around), nest.rows, nest.columns, *(p.extent for p in nest.products)]
    many = nest.around and not all(isinstance(d, int) for d in places)
    return 0 if many or registers(nest, schedule) > MOST_SUMS else schedule.min_blocks


class _Kernel:
    def __init__(self, nest: ProductNest, schedule: TileSchedule, block: Dim) -> None:
        self.nest, self.schedule = nest, schedule
        self.thread = thread()
        warp, lane = warp_of(self.thread)
        self.places, self.row0, self.column0 = tile_places(nest, block, schedule.rows, schedule.columns)
        down, across = schedule.squares
        self.row = named("row.in", 16 * down * floordiv(warp, schedule.warps[1]) + SQUARE * floordiv(lane, 8))
        self.column = named("column.in", 32 * across * mod(warp, schedule.warps[1]) + SQUARE * mod(lane, 8))

    def build(self) -> None:
        """The sums of all groups, then what is done with them."""
        down, across = self.schedule.squares
        found: dict[Product, Value] = {}
        for number, group in enumerate(self.nest.groups):
            if number:
                barrier()
            sums = self._sums(group)
            for place, p in enumerate(group):
                buffer = local(f"{p.result.name}.sums", p.dtype, down, SQUARE, across, SQUARE)
                for n, value in enumerate(sums[place * down * across : (place + 1) * down * across]):
                    store(value, buffer, n // across, (0, SQUARE), n % across, (0, SQUARE))
                found[p] = buffer

        def place_of(p: Dim, r: Dim, q: Dim) -> tuple[Dim, Dim]:
            return self.row0 + self.row + 16 * p + r, self.column0 + self.column + 32 * q

        patches = Patches([("p", down), ("r", SQUARE), ("q", across)], SQUARE, place_of, self.schedule.rows, self.schedule.columns)
        write_results(self.nest, patches, self.places, found)

    def _sums(self, group: Sequence[Product]) -> list[Value]:
        s, nest = self.schedule, self.nest
        problem = Problem(self.thread, s.threads, self.places, group[0].extent)
        pad = LINE // group[0].dtype.itemsize

        def shape(factor: Factor, rows: bool) -> Shape:
            if rows:
                return Shape(factor, s.rows, nest.rows, self.row0, k_last=False, pad=pad)
            return Shape(factor, s.columns, nest.columns, self.column0, k_last=False, pad=pad)

        tiles = stage(problem, group, shape, s.depth, s.stages)
        down, across = s.squares

        def steps(slot: Dim, count: Dim, sums: Sequence[Value]) -> Sequence[Value]:
            return loop("k", 0, count, 1, lambda k, *carried: self._step(group, tiles, slot, k, carried), sums)

        start = [s for p in group for s in [filled(start_of(p), SQUARE, SQUARE)] * (down * across)]
        return pipelined(list(tiles.values()), group[0].extent, s.depth, start, steps, steps)

    def _step(self, group: Sequence[Product], tiles: dict[object, Tile], slot: Dim, k: Dim, sums: Sequence[Value]) -> list[Value]:
        """One multiply-add for every sum."""
        down, across = self.schedule.squares
        read: dict[object, list[Value]] = {}
        found: list[Value] = []
        for n, p in enumerate(group):
            if p.rows.key not in read:
                memory = tiles[p.rows.key].memory
                runs = [load(memory, slot, k, (self.row + 16 * i, SQUARE), name="a") for i in range(down)]
                read[p.rows.key] = [reshape(v, result_type=VectorType(p.dtype, (SQUARE, 1)), name="a") for v in runs]
            if p.columns.key not in read:
                memory = tiles[p.columns.key].memory
                read[p.columns.key] = [load(memory, slot, k, (self.column + 32 * j, SQUARE), name="b") for j in range(across)]
            for i, a in enumerate(read[p.rows.key]):
                for j, b in enumerate(read[p.columns.key]):
                    first, second = (a, b) if p.rows_first else (b, a)
                    found.append(fma(first, second, sums[(n * down + i) * across + j], name="sum"))
        return found


def start_of(product_: Product) -> Value:
    """What a sum starts from, as a constant of the kernel."""
    made = product_.start.defining_op
    assert made is not None
    scalars = Scalars({}, {})
    scalars.build([made])
    return scalars.value(product_.start)
