"""How products are cut into tiles: schedules are data, and a rule chooses one.  No choice changes a bit of the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.core import Graph
from ir.dims import Dim, product, substitute, symbols_of
from passes.gpu._product_nests import ProductNest

PROCESSORS = 132
"""Multiprocessors that blocks are spread over when a size is chosen (H100, H200); fewer only run more blocks each."""
USUAL = 512
"""What a dimension is taken for whose size is not known when it is compiled."""
FEW = 8
"""Rows of a product up to which it is a matter of reading the matrix."""
ROOM = 64 << 10
"""Bytes of shared memory that a block uses at most: every architecture from sm_75 on has them."""
SHALLOWEST = 32
"""Steps of a tile at least, in a product of few rows."""
ROWS_TRIED = (64, 1024, 1 << 16)
"""Numbers of rows for which a kernel is chosen where they aren't known when it is compiled; the host takes the first that is enough."""


@dataclass(frozen=True)
class _Schedule:
    """A tile of ``rows`` by ``columns`` of a result, ``depth`` steps at a time; ``warps`` are those along rows and columns."""

    rows: int
    columns: int
    depth: int
    warps: tuple[int, int]
    stages: int
    quality: float  # the part of the time that is multiply-adds, estimated
    min_blocks: int = 1

    @property
    def name(self) -> str:
        """How the option ``tile`` calls it."""
        return f"{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps[0] * self.warps[1]


@dataclass(frozen=True)
class TileSchedule(_Schedule):
    """A tile whose elements are summed up one by one.

    The threads of a warp stand in 4 rows of 8; each has squares of 4 by 4 elements, 16 rows and
    32 columns apart, so that what a warp reads of shared memory at once lies in different banks.
    """

    @property
    def squares(self) -> tuple[int, int]:
        """Squares of a thread along rows and columns."""
        return self.rows // (16 * self.warps[0]), self.columns // (32 * self.warps[1])

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return 16 * self.squares[0] * self.squares[1]


TILES = (
    TileSchedule(128, 128, 16, (4, 2), 3, 0.9, 2),
    TileSchedule(128, 64, 16, (4, 2), 3, 0.8, 2),
    TileSchedule(64, 64, 16, (2, 2), 3, 0.7, 4),
    TileSchedule(32, 64, 16, (2, 2), 4, 0.5, 4),
    TileSchedule(32, 32, 16, (2, 1), 4, 0.4, 4),
    TileSchedule(16, 32, 16, (1, 1), 4, 0.3, 4),
)
"""Schedules of products in f32 and f64, the largest first."""
MOST_SUMS = 64
"""Registers for sums of a thread, of all products of a nest together: half of those that two blocks of 256 threads leave it."""


@dataclass(frozen=True)
class CoreSchedule(_Schedule):
    """A tile for the tensor cores; ``warps`` along rows and columns have 16-row and 8-column fragments each."""

    @property
    def fragments(self) -> tuple[int, int]:
        """Fragments of a warp along rows and columns."""
        return self.rows // (16 * self.warps[0]), self.columns // (8 * self.warps[1])

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return 4 * self.fragments[0] * self.fragments[1]


CORES = (
    CoreSchedule(128, 128, 32, (2, 4), 4, 1.0, 2),
    CoreSchedule(128, 64, 32, (4, 2), 4, 0.8, 2),
    CoreSchedule(64, 64, 32, (2, 2), 4, 0.6, 2),
    CoreSchedule(32, 64, 32, (2, 2), 4, 0.4, 2),
    CoreSchedule(16, 32, 32, (1, 2), 4, 0.25, 2),
)
"""Schedules of products in bf16, f16 and tf32, the largest first."""


@dataclass(frozen=True)
class RowSchedule:
    """A product of few rows: a block has ``columns`` of them, ``threads`` bring what is multiplied, ``depth`` steps at a time."""

    columns: int
    depth: int
    threads: int
    stages: int


ROWS = (
    RowSchedule(64, 64, 128, 4),
    RowSchedule(32, 128, 128, 4),
    RowSchedule(16, 128, 128, 5),
    RowSchedule(8, 256, 128, 5),
)
"""Schedules of products with few rows, the one with most columns first: fewer where a matrix has few, so that every multiprocessor reads."""


def limit_of(dim: Dim, graph: Graph, usual: int) -> int:
    """What a size may be: a known one as it is, another at its limit by ``where``, and ``usual`` where there is none."""
    limits: dict[str, Dim] = {n: _limit(n, graph, 0) for n in symbols_of(dim)}
    if 0 in limits.values():
        return usual
    found = substitute(dim, limits)
    return max(1, found) if isinstance(found, int) else usual


def _limit(name: str, graph: Graph, usual: int) -> int:
    limits = []
    for constraint in graph.constraints:
        for (left, right), sign in zip(zip(constraint.dims, constraint.dims[1:], strict=False), constraint.comparisons, strict=True):
            if str(left) == name and isinstance(right, int) and sign in ("<", "<=", "=="):
                limits.append(right - (sign == "<"))
            if str(right) == name and isinstance(left, int) and sign in (">", ">=", "=="):
                limits.append(left - (sign == ">"))
    return min((max(1, n) for n in limits), default=usual)


def _graph(nest: ProductNest) -> Graph:
    graph = nest.top.graph
    assert graph is not None
    return graph


def most_rows(nest: ProductNest) -> int:
    """How many rows a product has at most; the last of ``ROWS_TRIED`` where that isn't known."""
    return limit_of(nest.rows, _graph(nest), ROWS_TRIED[-1])


def _batches(nest: ProductNest) -> int:
    return limit_of(product(d for _, d in nest.around), _graph(nest), USUAL)


def registers(nest: ProductNest, schedule: TileSchedule | CoreSchedule) -> int:
    """Registers that the sums of a thread take."""
    return schedule.sums * sum(p.dtype.itemsize // 4 for p in nest.products)


def choose_tile(nest: ProductNest, table: Sequence[TileSchedule | CoreSchedule], rows: int) -> TileSchedule | CoreSchedule:
    """The schedule whose slowest multiprocessor is done first, for so many rows.

    That is the number of tiles that it has, times their size, by how well the time is used; all sums of a nest must fit into registers.
    """
    columns, batches = limit_of(nest.columns, _graph(nest), USUAL), _batches(nest)

    def cost(s: TileSchedule | CoreSchedule) -> float:
        blocks = batches * -(-rows // s.rows) * -(-columns // s.columns)
        return -(-blocks // PROCESSORS) * s.rows * s.columns / s.quality

    fitting = [s for s in table if registers(nest, s) <= MOST_SUMS] or [table[-1]]
    return min(fitting, key=cost)


def choose_rows(nest: ProductNest) -> RowSchedule:
    """The schedule with most columns of which there still is a block for nearly every multiprocessor; else the one with fewest.

    Its tiles are not longer than the sums, where these are known, and so short that three fit into shared memory.
    """
    columns = limit_of(nest.columns, _graph(nest), USUAL) * _batches(nest)
    found = next((s for s in ROWS if columns >= s.columns * PROCESSORS * 9 // 10), ROWS[-1])
    depth = found.depth
    step = found.columns * sum(f.stored.itemsize for f in {p.columns.key: p.columns for p in nest.products}.values())
    short = all(isinstance(p.extent, int) for p in nest.products)
    while depth > SHALLOWEST and (3 * depth * step > ROOM or (short and all(p.extent < depth for p in nest.products))):  # type: ignore[operator]
        depth //= 2
    return replace(found, depth=depth)
