"""Tiles of factors in shared memory: how the threads of a block bring them there, stage by stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dialects.arith.cast import extf
from dialects.vector import extract
from ir.core import Value
from ir.dims import Dim, dim_min, exact_div, floordiv, mod
from ir.types import DType, VectorType
from passes.gpu._async_copies import cp_async
from passes.gpu._kernels import LINE, less, named, shared, when
from passes.gpu._product_nests import Factor, Product
from passes.gpu._product_scalars import Scalars, as_run, placed
from passes.gpu._product_schedules import ROOM
from passes.loops._blocks import index_value, load, loop, number, store

Mode = Literal["async", "held", "computed"]
SMALLEST = 4
"""Bytes of an asynchronous copy at least."""
NARROW = 8
"""Neighbours along k that a warp copies one by one where it turns a tile: 32 bytes of each of four rows, and no bank twice."""


@dataclass(frozen=True)
class Problem:
    """Where a block works: the thread, how many there are, batches as places of loop variables, and the steps of the sum."""

    thread: Dim
    threads: int
    places: Mapping[Value, Dim]
    steps: Dim


@dataclass(frozen=True)
class Shape:
    """A tile of a factor: ``size`` rows (or columns) of ``extent``, from ``first`` on.

    In shared memory it is ``[size, depth]`` with ``k_last``, otherwise ``[depth, size]``; ``pad`` elements lie between its rows.
    The elements are as they are in memory when ``raw``, otherwise widened.
    """

    factor: Factor
    size: int
    extent: Dim
    first: Dim
    k_last: bool
    pad: int
    raw: bool = False

    @property
    def dtype(self) -> DType:
        """The type of the elements in shared memory."""
        return self.factor.stored if self.raw and self.factor.is_stored else self.factor.dtype

    def dims(self, depth: int) -> tuple[int, int]:
        """The tile's dimensions in shared memory."""
        return (self.size, depth + self.pad) if self.k_last else (depth, self.size + self.pad)


@dataclass
class Tile:
    """The tiles of one factor, ``depth`` steps at a time, ``stages`` of them at once.

    How they get there: ``async`` copies (of 4 to 16 bytes) where nothing is computed; ``held`` are loaded in front of the work on another
    tile and stored behind it; ``computed`` ones are more than loads, and are done element by element.
    """

    problem: Problem
    shape: Shape
    depth: int
    stages: int
    memory: Value = field(init=False)
    mode: Mode = field(init=False)
    unit: int = field(init=False)  # neighbours that a thread takes at once

    def __post_init__(self) -> None:
        shape, factor = self.shape, self.shape.factor
        self.factor, self.size = factor, shape.size
        self.mode, self.unit = staging(shape, self.depth, self.problem.threads)
        self.k_fast = not (factor.own is not None and factor.runs_along(factor.own))
        fast, self.slow = (self.depth, self.size) if self.k_fast else (self.size, self.depth)
        lanes = min(fast // self.unit, self.problem.threads if self.k_fast == shape.k_last else NARROW)
        self.rows_at_once = self.problem.threads // lanes
        self.rounds = (-(-self.slow // self.rows_at_once), fast // (self.unit * lanes))
        self.spread = self.unit * lanes
        name = factor.access.buffer.name.removesuffix(".flat").removesuffix(".buffer")
        self.fast_place = named(f"{name}.fast", self.unit * mod(self.problem.thread, lanes))
        self.slow_place = named(f"{name}.slow", floordiv(self.problem.thread, lanes))
        self.memory = shared(f"{name}.tile", shape.dtype, self.stages, *shape.dims(self.depth))

    # -- bringing tiles ------------------------------------------------------------------------------------------------

    def begin(self, tile: Dim, slot: Dim, whole: bool = False) -> list[Value]:
        """Starts to bring a tile: copies, or loads that are handed to :meth:`finish`.

        ``whole`` promises that the sum has all steps of the tile.
        """
        if self.mode == "async":
            self._each(lambda own, k: self._copy(tile, slot, own, k, whole))
            return []
        if self.mode == "held":
            return [self._loaded(tile, own, k) for own, k in self._unrolled()]
        return []

    def finish(self, tile: Dim, slot: Dim, held: Sequence[Value]) -> None:
        """Stores what :meth:`begin` has loaded."""
        if self.mode == "held":
            for (own, k), value in zip(self._unrolled(), held, strict=True):
                self._guarded(own, k, lambda own=own, k=k, value=value: self._store(slot, own, k, value))  # type: ignore[misc]
        elif self.mode == "computed":
            self._each(lambda own, k: self._compute(tile, slot, own, k))

    def _each(self, one: Callable[[Dim, Dim], None]) -> None:
        """What a thread does, for all places in the tile that it has."""
        slow_rounds, fast_rounds = self.rounds

        def at(slow: Dim, fast: Dim) -> None:
            own, k = self._place(slow, fast)
            self._guarded(own, k, lambda: one(own, k))

        def along(slow: Dim) -> None:
            if fast_rounds == 1:
                at(slow, 0)
            else:
                loop("f", 0, fast_rounds, 1, lambda f: at(slow, f))

        if slow_rounds == 1:
            along(0)
        else:
            loop("s", 0, slow_rounds, 1, along)

    def _unrolled(self) -> list[tuple[Dim, Dim]]:
        return [self._place(s, f) for s in range(self.rounds[0]) for f in range(self.rounds[1])]

    def _place(self, slow_round: Dim, fast_round: Dim) -> tuple[Dim, Dim]:
        """Row (or column) and step in the tile."""
        fast = self.fast_place + self.spread * fast_round
        slow = self.slow_place + self.rows_at_once * slow_round
        return (slow, fast) if self.k_fast else (fast, slow)

    def _guarded(self, own: Dim, k: Dim, inside: Callable[[], None]) -> None:
        """Threads that have no place in the tile do nothing."""
        if self.slow % self.rows_at_once == 0:
            inside()
        else:
            when(less(own if self.k_fast else k, self.slow, "in_tile"), inside)

    def _goal(self, slot: Dim, own: Dim, k: Dim) -> list[Dim]:
        return [slot, own, k] if self.shape.k_last else [slot, k, own]

    def _places(self, tile: Dim, own: Dim, k: Dim) -> dict[Value, Dim]:
        """Loop variables at a place in the tile: behind the last row (or column) it is that one again, whose sums nobody uses."""
        places = {**self.problem.places, self.factor.k: self.depth * tile + k}
        if self.factor.own is not None:
            at = self.shape.first + own
            places[self.factor.own] = at if self.has_all or not self.is_clamped else dim_min(at, self.shape.extent - self.own_unit)
        return places

    @property
    def has_all(self) -> bool:
        """Whether all rows (or columns) of a tile are there."""
        spare = self.slow % self.rows_at_once != 0  # threads beyond the tile load what nobody stores
        return exact_div(self.shape.extent, self.size) is not None and not (spare and self.k_fast)

    @property
    def own_unit(self) -> int:
        """Neighbouring rows (or columns) that a thread takes at once."""
        return 1 if self.k_fast else self.unit

    @property
    def is_clamped(self) -> bool:
        """Whether the last rows (or columns) can be taken again where there are no more."""
        return exact_div(self.shape.extent, self.own_unit) is not None

    def _valid(self, tile: Dim, own: Dim, k: Dim, whole: bool) -> Value | None:
        """How many of ``unit`` neighbours are there; None for all."""
        rows = self.shape.extent - self.shape.first - own
        steps = self.problem.steps - self.depth * tile - k
        terms = [] if self.has_all or self.is_clamped else [rows]
        terms += [] if whole else [steps if self.k_fast else self.unit * steps]
        if not terms:
            return None
        return index_value("apply", terms[0], name="valid") if len(terms) == 1 else index_value("min", *terms, name="valid")

    def _copy(self, tile: Dim, slot: Dim, own: Dim, k: Dim, whole: bool) -> None:
        access = self.factor.access
        indices = placed(access, self._places(tile, own, k))
        goal = self._goal(slot, own, k)
        cp_async(access.buffer, as_run(indices, self.unit), self.memory, as_run(goal, self.unit), self._valid(tile, own, k, whole))

    def _loaded(self, tile: Dim, own: Dim, k: Dim) -> Value:
        access = self.factor.access
        indices = placed(access, self._places(tile, own, k))
        valid = self._valid(tile, own, k, whole=False)
        return load(access.buffer, *as_run(indices, self.unit), valid=valid, name=self.factor.loads[0].results[0].name)

    def _store(self, slot: Dim, own: Dim, k: Dim, value: Value) -> None:
        if self.factor.stored != self.shape.dtype:
            value = extf(value, result_type=VectorType(self.factor.dtype, (self.unit,)))
        goal = self._goal(slot, own, k)
        if self.unit == 1:
            store(extract(value, position=(0,)), self.memory, *goal)
        else:
            store(value, self.memory, *as_run(goal, self.unit))

    def _compute(self, tile: Dim, slot: Dim, own: Dim, k: Dim) -> None:
        goal = self._goal(slot, own, k)

        def there() -> None:
            scalars = Scalars(self._places(tile, own, k), {})
            scalars.build(self.factor.ops)
            store(scalars.value(self.factor.value), self.memory, *goal)

        zero = number(0.0 if self.factor.dtype.is_float else 0, self.factor.dtype)
        when(less(self.depth * tile + k, self.problem.steps, "in_steps"), there, lambda: store(zero, self.memory, *goal))


def staging(shape: Shape, depth: int, threads: int) -> tuple[Mode, int]:
    """How a factor gets to shared memory, and how many neighbours a thread takes at once: fewer where all threads have something to do then."""
    factor, own = shape.factor, shape.factor.own
    if not factor.is_stored:
        return "computed", 1
    along = own if own is not None and factor.runs_along(own) else factor.k if factor.runs_along(factor.k) else None
    unit, size = 1, factor.stored.itemsize
    if along is not None and (along is factor.k) == shape.k_last:
        unit = factor.unit(along, min(LINE // size, depth if shape.k_last else shape.size))
        while unit > 1 and shape.size * depth < unit * threads and (unit // 2 * size >= SMALLEST or shape.dtype != factor.stored):
            unit //= 2
    return ("async" if shape.dtype == factor.stored and unit * size >= SMALLEST else "held"), unit


def stage(
    problem: Problem, group: Sequence[Product], shape: Callable[[Factor, bool], Shape], depth: int, stages: int
) -> dict[object, Tile]:  # fmt: skip
    """The tiles of a group's factors by their keys: products may share one.  ``shape`` gets a factor, and whether it is one of rows.

    There are no more tiles at once than shared memory has room for.
    """
    shapes: dict[object, Shape] = {}
    for p in group:
        for factor, rows in ((p.rows, True), (p.columns, False)):
            if factor.key not in shapes:
                shapes[factor.key] = shape(factor, rows)
    size = sum(math.prod(s.dims(depth)) * s.dtype.itemsize for s in shapes.values())
    stages = max(2, min(stages, ROOM // size))
    return {key: Tile(problem, s, depth, stages) for key, s in shapes.items()}
