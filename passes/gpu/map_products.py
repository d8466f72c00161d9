"""Pass ``map-products``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ir.builder import Builder
from ir.core import Module, Operation
from ir.types import f32
from passes.gpu._kernels import less, when
from passes.gpu._nests import device_graphs, host_blocks
from passes.gpu._product_cores import build_cores, narrow_type
from passes.gpu._product_narrow import narrow_factors
from passes.gpu._product_nests import NoProduct, ProductNest, find_product
from passes.gpu._product_rows import build_rows
from passes.gpu._product_schedules import (
    CORES,
    FEW,
    ROWS_TRIED,
    TILES,
    USUAL,
    CoreSchedule,
    RowSchedule,
    TileSchedule,
    choose_rows,
    choose_tile,
    most_rows,
)
from passes.gpu._product_tiles import build_tiles
from passes.infra.base import Pass, PassContext
from passes.loops._loops import is_loop, tag_of

Tier = Literal["auto", "rows", "tiles", "cores"]
Schedule = RowSchedule | CoreSchedule | TileSchedule
Table = tuple[TileSchedule | CoreSchedule, ...]


@dataclass(frozen=True)
class MapProducts(Pass):
    """Turns matrix products, with all that is fused behind them, into kernels.

    Before::

        scf.parallel(%i = 0 to M, tag="m") {
          scf.parallel(%j = 0 to N, tag="n") {
            %zero = arith.constant(0.0) : f32
            %h = scf.for(%k = 0 to K, %acc = %zero, tag="k") {
              %a = memref.load(%A[%i, %k]) : f32
              %w = memref.load(%W[%k, %j]) : f32
              %s = math.fma(%a, %w, %acc) : f32
              yield %s
            } : f32
            %r = math.silu(%h) : f32
            memref.store(%r, %C[%i, %j])
            yield
          }
          yield
        }

    After, shortened::

        gpu.launch(%block = 0 to (M ceildiv 64)*(N ceildiv 64), threads=128, min_blocks=4, name="C", tag="product") {
          ...
          %sums = scf.for(%tile = 0 to K floordiv 16, %acc = %zeros) {
            gpu.cp_wait(pending=1)
            gpu.barrier()
            ... gpu.cp_async(%A[...], %A.tile[...], valid=%left) ...
            %more = scf.for(%k = 0 to 16, %part = %acc) {
              %a = vector.load(%A.tile[%slot, %k, %row:+4]) : vector<f32[4]>
              ...
          }
          ... math.silu, stores where there are rows and columns ...
        }

    There are three tiers, which ``--statistics`` counts. What is chosen depends on types and sizes only:

    - ``rows``: where there are at most 8 rows (or a matrix times a vector), reading the matrix is the work. Blocks have few columns, so that
      every multiprocessor reads, and keep several tiles on their way to shared memory; one thread does the chain of an element. Elements
      of bf16 and f16 are widened as they are used.
    - ``cores``: where all factors are bf16, or all are f16, and sums are f32, `mma.sync` multiplies them (``tensor_cores=false`` leaves that).
      A factor that was widened in front of the nest is read where it is narrow. ``tf32=true`` rounds factors in f32 to tf32 and does
      them here, too: a loss of 13 bits, which nothing but this option asks for.
    - ``tiles``: everything else. A thread has up to 64 elements in registers.

    Where the number of rows isn't known, there are kernels for several, and an ``scf.if`` of the host takes one by the size of the call; no
    choice among ``rows`` and ``tiles`` changes a bit.

    In ``rows`` and ``tiles`` every element is one chain of multiply-adds over ascending k from zero, so it has the bits that machine code
    for a processor gives it; a last tile of fewer steps is done with exactly these, since 0 in the place of a factor would add NaN where
    the other one is infinite. The tensor cores add in an order of their own, in about f32; both factors are 0 behind the last step,
    so no infinity or NaN comes from there, and a sum of -0 may become 0. Their order is the same for all tiles, but not that of ``rows``:
    in bf16 and f16 a product of few rows may differ from one of many in the last bit, which ``tensor_cores=false`` avoids.

    Tiles of shared memory are filled by asynchronous copies of 16 bytes where rows are multiples of that, and of 8 or 4 otherwise; elements
    that must be widened (or that something cheap computes) go through registers, a tile ahead. Products with the same factor share its
    tiles; those with other numbers of steps follow each other. What stands behind the sums is done on the elements of each thread, for
    4 (``cores``: 2) neighbouring columns at once where that is what its loads and stores are.

    Left to other passes are nests in which a factor goes along rows and columns both, what is no chain of multiply-adds, and checks
    beside a product; ``--statistics`` says why.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"  # bits, but for what the tensor cores add
    keeps_types: ClassVar[bool] = True

    tier: Tier = "auto"
    """the tier, where it is possible; otherwise what the rule above says"""
    tile: str = ""
    """rows and columns of tiles, such as 128x64; empty to choose by sizes"""
    tensor_cores: bool = True
    """whether products of bf16 and f16 are done by tensor cores"""
    tf32: bool = False
    """whether products of f32 are rounded to tf32 and done by tensor cores"""
    versions: bool = True
    """whether the host chooses between kernels where the number of rows isn't known when it is compiled"""

    def __post_init__(self) -> None:
        names = [s.name for s in TILES] + [s.name for s in CORES]
        if self.tile and self.tile not in names:
            raise ValueError(f"tile: expected one of {', '.join(dict.fromkeys(names))}")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in device_graphs(module):
            for block in list(host_blocks(graph.block)):
                for op in list(block):
                    if op.block is block and op.name == "scf.parallel" and any(is_loop(o) and tag_of(o) == "k" for o in op.walk()):
                        changed |= self._map(op, context)
        return changed

    def _map(self, op: Operation, context: PassContext) -> bool:
        try:
            nest = find_product(op)
            if (self.tensor_cores or most_rows(nest) <= FEW) and self.tier != "tiles" and narrow_factors(nest):
                nest = find_product(op)
        except NoProduct as reason:
            context.count(f"products left: {reason}")
            return False
        versions = self._versions(nest)
        for _, schedule in versions:
            context.count(f"products {_described(nest, schedule)}")
        with Builder.before_op(op) as builder:
            self._choose(nest, versions)
        made = builder.created[0]
        made.trivia, op.trivia = op.trivia, None
        op.erase()
        return True

    def _choose(self, nest: ProductNest, versions: list[tuple[int, Schedule]]) -> None:
        """The kernel of the first version that has rows enough, on the host; the last one has."""
        (rows, schedule), *others = versions
        if not others:
            _build(nest, schedule)
        else:
            when(less(nest.rows, rows + 1, "few_rows"), lambda: _build(nest, schedule), lambda: self._choose(nest, others))

    def _versions(self, nest: ProductNest) -> list[tuple[int, Schedule]]:
        """Schedules, and up to how many rows each is used."""
        if self.tier == "rows":
            return [(0, choose_rows(nest))]
        table = self._table(nest)
        named = [s for s in table if s.name == self.tile]
        if named:
            return [(0, named[0])]
        most = most_rows(nest)
        if isinstance(nest.rows, int) or most <= FEW or not self.versions:
            rows = most if isinstance(nest.rows, int) or most <= FEW else min(most, USUAL)
            return [(0, self._schedule(nest, table, rows))]
        tried = [FEW, *(n for n in ROWS_TRIED if n < most), most]
        found: list[tuple[int, Schedule]] = []
        for rows in tried:
            schedule = self._schedule(nest, table, rows)
            if found and found[-1][1] == schedule:
                found.pop()
            found.append((rows, schedule))
        return found

    def _schedule(self, nest: ProductNest, table: Table, rows: int) -> Schedule:
        if rows <= FEW and self.tier == "auto":
            return choose_rows(nest)
        return choose_tile(nest, table, rows)

    def _table(self, nest: ProductNest) -> Table:
        plain = all(f.is_plain and f.stored == f32 for p in nest.products for f in (p.rows, p.columns))
        cores = (self.tensor_cores and narrow_type(nest) is not None) or (self.tf32 and plain)
        return CORES if cores and self.tier != "tiles" else TILES


def _build(nest: ProductNest, schedule: Schedule) -> None:
    if isinstance(schedule, RowSchedule):
        build_rows(nest, schedule)
    elif isinstance(schedule, CoreSchedule):
        build_cores(nest, schedule, "" if narrow_type(nest) is not None else "tf32")
    else:
        build_tiles(nest, schedule)


def _described(nest: ProductNest, schedule: Schedule) -> str:
    if isinstance(schedule, RowSchedule):
        return "of few rows"
    if isinstance(schedule, CoreSchedule):
        return f"by tensor cores in {narrow_type(nest) or 'tf32'}, tiles of {schedule.name}"
    return f"in tiles of {schedule.name}"
