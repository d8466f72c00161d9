"""The kernels of attention: tiles of rows that go through blocks of keys, or blocks of keys by themselves, and what joins those.

The numbers are those of :mod:`passes.loops._attention` (docs/attention.md), operation by operation, so they are the bits of machine code of
the CPU.  Keys come in blocks of ``KEYS`` = 128, from key 0 on.  For a query and a block

    s[j]  = one chain of fma over ascending d of (q[d] * scale) * k[j, d] from 0; then the mask is added, and hidden keys are -inf
    m     = the largest s, NaN aside, at least LOWEST
    p[j]  = exp(s[j] - m)
    l     = 16 lanes: lane i is p[i] + p[i + 16] + ... in ascending order; the lanes are added by halves
    o     = one chain of fma over ascending j of p[j] * v[j] from 0

and blocks are joined in ascending order from m = LOWEST, l = 0, o = 0, with M = max(m1, m2), a = exp(m1 - M), b = exp(m2 - M):

    l' = fma(l2, b, l1 * a)        o' = fma(o2, b, o1 * a)

The result is fma(o, 1 / max(l, 1), 0).  Both kernels below are one piece of code (:class:`Blocks`), in which threads only choose where a chain
runs, never what it adds; whether blocks are joined as they come or by a launch of their own (:class:`Join`) changes nothing.

A row is a query of one of the ``group`` heads that share a key head: row r is query r floordiv group of head r mod group, so one tile of
keys in shared memory serves all of them, and a causal tile ends with the keys that its last query sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.constant import constant
from dialects.arith.floats import addf, divf, maximumf, mulf, subf
from dialects.math.exact import fma
from dialects.math.functions import exp
from dialects.vector import extract, multi_reduction
from ir.attributes import Dense
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod, substitute
from ir.types import boolean, f32, i32
from passes.gpu._async_copies import cp_async, cp_commit, cp_wait
from passes.gpu._kernels import barrier, both, equal, is_multiple, launch, less, local, named, shared, thread, warp_reduce, when
from passes.linalg._views import View
from passes.loops._attention import KEYS, LANES, LOWEST, Problem, Sight, sight_of
from passes.loops._blocks import alloc, buffer_type, filled, index_value, least, load, loop, most, number, store, to_i32

THREADS = 128
"""Threads of a block."""
STEPS = KEYS // LANES
"""Keys of a lane in a block."""
_PAD = 4
"""Numbers behind each row in shared memory, so that neighbouring rows are in other banks and rows still begin at 16 bytes."""
_ACCUMULATORS = 64
"""Numbers of a result that a thread keeps in registers, at most."""


@dataclass(frozen=True)
class Tiling:
    """Who does what in a block of ``THREADS`` threads.

    ``rows`` rows are worked on; keys and values are brought near ``keys`` at a time.  For scores threads stand ``row_lanes`` by the rest along
    rows and keys; for the result ``value_lanes`` by the rest along rows and columns, of which each takes ``columns`` neighbours at a time.
    """

    rows: int
    row_lanes: int
    keys: int
    value_lanes: int
    columns: int

    @property
    def key_lanes(self) -> int:
        return THREADS // self.row_lanes

    @property
    def column_lanes(self) -> int:
        return THREADS // self.value_lanes

    @property
    def thread_rows(self) -> int:
        """Rows of a thread in the scores."""
        return self.rows // self.row_lanes

    @property
    def value_rows(self) -> int:
        """Rows of a thread in the result."""
        return self.rows // self.value_lanes

    def pieces(self, width: int) -> int:
        """How many times ``columns`` columns of a result of some width a thread has."""
        return -(-width // (self.columns * self.column_lanes))

    def fits(self, width: int, value_width: int, shared_bytes: int) -> bool:
        """Whether registers and so much shared memory hold it."""
        wide = max(_padded(width), _padded(value_width))
        numbers = self.rows * _padded(width) + 2 * self.keys * wide + self.rows * (STEPS + 1) * LANES + 4 * self.rows
        return self.value_rows * self.columns * self.pieces(value_width) <= _ACCUMULATORS and 4 * numbers <= shared_bytes


def tiling_of_many(width: int, value_width: int, rows: int, shared_bytes: int) -> Tiling:
    """Tiles of ``rows`` rows; fewer rows, and then fewer keys at a time, where registers or shared memory would not hold them."""
    columns = next(n for n in (4, 2, 1) if value_width % n == 0)
    tilings = [Tiling(16 * n, 16, keys, 16, columns) for keys in (32, 16, 8) for n in (4, 2, 1) if 16 * n <= max(rows, 16)]
    return next((t for t in tilings if t.fits(width, value_width, shared_bytes)), tilings[-1])


def tiling_of_few(width: int, value_width: int, rows: int, shared_bytes: int) -> Tiling | None:
    """For so many rows, all of which one block of threads works on with a block of keys; None where they are too many."""
    columns = next(n for n in (4, 2, 1) if value_width % n == 0)
    candidates = [
        Tiling(4, 1, KEYS, 2, 1), Tiling(16, 4, KEYS, 2, 1), Tiling(16, 4, 32, 2, 1),
        *(Tiling(16 * n, 16, keys, 16, columns) for keys in (32, 16, 8) for n in (1, 2, 4)),
    ]  # fmt: skip
    return next((t for t in candidates if t.rows >= rows and t.fits(width, value_width, shared_bytes)), None)


def _padded(width: int) -> int:
    return -(-width // 4) * 4 + _PAD


def run_of(view: View, width: int) -> int:
    """How many neighbours of a row one thread may load at once: what every row of the view begins at a multiple of."""
    last = buffer_type(view.buffer).shape[-1]
    start = substitute(view.indices[-1], {"view.3": 0})
    return next(n for n in (4, 2, 1) if width % n == 0 and is_multiple(last, n) and is_multiple(start, n))


class Blocks:
    """Rows of a key head by blocks of keys.

    With ``split`` a block of threads has one block of keys, and what it finds goes to ``self.most``, ``self.sums`` and ``self.values``, which
    :class:`Join` joins.  Otherwise it goes through all that its rows see, joins them, and stores the result.
    """

    def __init__(self, problem: Problem, tiling: Tiling, split: bool) -> None:
        self.p, self.t, self.split = problem, tiling, split
        self.total = problem.group * problem.queries
        self.pieces = tiling.pieces(problem.value_width)
        self.steps = KEYS // tiling.keys
        self.upfront = split and self.steps == 1
        if split:
            places = problem.batch, problem.key_heads, ceildiv(problem.keys, KEYS), tiling.rows
            self.all_most, self.all_sums = (alloc(name, f32, *places) for name in ("all.most", "all.sums"))
            self.all_values = alloc("all.values", f32, *places, problem.value_width)

    def build(self, name: str) -> None:
        """The launch."""
        across = ceildiv(self.p.keys, KEYS) if self.split else ceildiv(self.total, self.t.rows)
        grid = [("x", across), ("h", self.p.key_heads), ("b", self.p.batch)]
        # shared memory leaves room for one or two blocks; compilers that hope for more spill registers
        launch(grid, THREADS, self._kernel, name=name, tag="attention", min_blocks=1)

    # -- the kernel ------------------------------------------------------------------------------------------------

    def _kernel(self, x: Dim, h: Dim, b: Dim) -> None:
        p, t = self.p, self.t
        self.batch, self.head = b, h
        self.wide = max(_padded(p.width), _padded(p.value_width))
        self.q = shared("q.tile", f32, t.rows, _padded(p.width))
        self.near = shared("near", f32, 2, t.keys, self.wide)
        self.scores = shared("scores", f32, t.rows, STEPS + 1, LANES)
        self.most, self.sums, self.old, self.new = (shared(n, f32, t.rows) for n in ("most", "sums", "old", "new"))
        self.q_rows, self.k_rows = local("q.rows", f32, t.thread_rows, 4), local("k.rows", f32, t.keys // t.key_lanes, 4)
        self.weights, self.factors = local("weights", f32, t.value_rows, 4), local("factors", f32, t.value_rows, 1)
        self.masks = local("masks", f32, STEPS) if p.mask is not None else None
        self.zero, self.one, self.lowest = number(0.0, f32, "zero"), number(1.0, f32, "one"), number(LOWEST, f32, "lowest")
        self.hidden, self.scale = number(float("-inf"), f32, "hidden"), number(p.scale, f32, "scale")
        self.thread = thread()
        self.row_lane, self.key_lane = self._lanes("row", t.key_lanes)
        self.value_lane, self.column_lane = self._lanes("value", t.column_lanes)
        self.sight = sight_of(p, b)
        begin = self._range(x)
        self._load_queries()
        self._start(begin)
        totals = loop(
            "block", begin, self.end, KEYS, self._block, [filled(self.zero, t.value_rows, t.columns) for _ in range(self.pieces)],
            tag="keys.block", result="values",
        )  # fmt: skip
        if not self.split:
            barrier()  # for rows that see no key: nothing else stands between their sums and who reads them
            self._each(totals, self._finish)

    def _lanes(self, name: str, size: int) -> tuple[Dim, Dim]:
        return named(f"{name}.lane", floordiv(self.thread, size)), named(f"{name}.other", mod(self.thread, size))

    def _range(self, x: Dim) -> Dim:
        """The first key, and behind which key nobody of the block sees any (``self.end``); which rows there are."""
        if self.split:
            self.first: Dim = 0
            begin = named("begin", KEYS * x)
            self.block_number = x
            self.end = least("end", begin + KEYS, self.sight.keys)
            return begin
        # the last tiles, which have most to do in a causal attention, begin first
        tiles = ceildiv(self.total, self.t.rows)
        self.first = named("first", self.t.rows * (tiles - 1 - x) if self.p.causal else self.t.rows * x)
        last = least("last", self.first + (self.t.rows - 1), self.total - 1)
        self.end = least("end", *self.sight.end(floordiv(last, self.p.group)))
        return 0

    def _place(self, row: Dim) -> tuple[Dim, Dim]:
        """Head and query of a row."""
        return self.p.group * self.head + mod(row, self.p.group), floordiv(row, self.p.group)

    def _shared_out(self, name: str, count: int, work: Callable[[Dim], None]) -> None:
        """``work(i)`` for all i below ``count``, by all threads."""
        if count % THREADS == 0 and count // THREADS > 1:
            loop(name, 0, count // THREADS, 1, lambda n: work(THREADS * n + self.thread))
        elif count % THREADS == 0:
            work(self.thread)
        else:
            loop(name, self.thread, count, THREADS, work)

    def _load_queries(self) -> None:
        """The tile's queries, scaled; zeros behind the last row; what no block has been joined with."""
        run = run_of(self.p.q, self.p.width)
        across = self.p.width // run
        nothing = filled(self.zero, run)

        def some(i: Dim) -> None:
            row, column = named("row", floordiv(i, across)), named("column", run * mod(i, across))
            at = self.first + row

            def scaled() -> None:
                found = load(self.p.q.buffer, *self.p.q.at(self.batch, *self._place(at), (column, run)), name="q")
                store(mulf(found, self.scale), self.q, row, (column, run))

            when(less(at, self.total), scaled, lambda: store(nothing, self.q, row, (column, run)))

        self._shared_out("i", self.t.rows * across, some)
        if not self.split:

            def none(i: Dim) -> None:
                store(self.lowest, self.most, i)
                store(self.zero, self.sums, i)

            loop("i", self.thread, self.t.rows, THREADS, none)

    # -- memory ----------------------------------------------------------------------------------------------------

    def _fetch(self, values: bool, first: Dim, slot: Dim, there: str = "") -> None:
        """Asks for keys or values from one on; those behind the last one are zeros.  ``there`` names what is asked first: if there are any."""
        view, width = (self.p.v, self.p.value_width) if values else (self.p.k, self.p.width)
        run = run_of(view, width)
        across = width // run

        def some(i: Dim) -> None:
            row, column = named("row", floordiv(i, across)), named("column", run * mod(i, across))
            valid = index_value("apply", run * (self.end - first - row), name="valid")
            places = view.at(self.batch, self.head, first + row, (column, run))
            cp_async(view.buffer, places, self.near, [slot, row, (column, run)], valid=valid)

        if there:
            when(less(first, self.end, there), lambda: self._shared_out("i", self.t.keys * across, some))
        else:
            self._shared_out("i", self.t.keys * across, some)

    def _start(self, begin: Dim) -> None:
        self._fetch(False, begin, 0, "is_seen")
        cp_commit()
        if self.upfront:
            self._fetch(True, begin, 1, "is_seen")
            cp_commit()

    def _step(self, values: bool, block: Dim, step: Dim) -> Dim:
        """Waits for the keys or values of a step and asks for the next ones; gives the place where they are."""
        offset = self.steps if values else 0
        cp_wait(1 if self.upfront and not values else 0)
        barrier()
        if not self.upfront:
            following = self.t.keys * (step + 1)

            def after() -> None:
                if values:
                    self._fetch(False, block + KEYS, 0, "is_seen")
                else:
                    self._fetch(True, block, self.steps % 2)

            if self.steps == 1:
                after()
            else:
                when(
                    less(step, self.steps - 1, "more"),
                    lambda: self._fetch(values, block + following, named("slot", mod(step + (offset + 1), 2)), "any_keys"), after,
                )  # fmt: skip
            cp_commit()
        return named("place", mod(step + offset, 2))

    # -- a block of keys -------------------------------------------------------------------------------------------

    def _block(self, block: Dim, *totals: Value) -> Sequence[Value]:
        def scores(step: Dim) -> None:
            place = self._step(False, block, step)
            when(less(block + self.t.keys * step, self.end, "any_keys"), lambda: self._scores(step, place))

        self._each_step(scores)
        barrier()
        self._softmax(block)

        def values(step: Dim, *sums: Value) -> Sequence[Value]:
            return self._values(block, step, self._step(True, block, step), sums)

        nothing = [filled(self.zero, self.t.value_rows, self.t.columns) for _ in range(self.pieces)]
        found = self._each_step(values, nothing)
        if self.split:
            self._each(found, self._keep)
            return totals
        before, now = self._column(self.old, "before"), self._column(self.new, "now")
        return [fma(new, now, mulf(total, before), name="values.now") for new, total in zip(found, totals, strict=True)]

    def _each_step(self, inside: Callable[..., Any], carried: Sequence[Value] = ()) -> Sequence[Value]:
        """``inside`` for each part of a block of keys that is brought near at a time."""
        if self.steps > 1:
            return loop("step", 0, self.steps, 1, inside, carried, result="weighted" if carried else None)
        return inside(0, *carried) or ()

    def _scores(self, step: Dim, place: Dim) -> None:
        """Scores of the rows and the keys that are near: a chain for each."""
        t, width = self.t, self.p.width
        keys = t.keys // t.key_lanes

        def add(d: Dim, total: Value, run: int) -> Value:
            for i in range(t.thread_rows):
                store(load(self.q, self.row_lane + t.row_lanes * i, (d, run), name="q"), self.q_rows, i, (0, run))
            for j in range(keys):
                store(load(self.near, place, self.key_lane + t.key_lanes * j, (d, run), name="k"), self.k_rows, j, (0, run))

            def one(n: Dim, total: Value) -> Value:
                q, k = load(self.q_rows, (0, t.thread_rows), n, keep=True, name="q"), load(self.k_rows, (0, keys), n, name="k")
                return fma(q, k, total, name="score")  # type: ignore[no-any-return]

            return loop("n", 0, run, 1, one, [total], result="score")[0]

        found = filled(self.zero, t.thread_rows, keys)
        whole = width - width % 4
        if whole:
            (found,) = loop("d", 0, whole, 4, lambda d, total: add(d, total, 4), [found], result="score")
        if width > whole:
            found = add(whole, found, width - whole)
        for i in range(t.thread_rows):
            for j in range(keys):
                key = t.keys * step + self.key_lane + t.key_lanes * j
                score = extract(found, position=(i, j), name="score")
                store(score, self.scores, self.row_lane + t.row_lanes * i, floordiv(key, LANES), mod(key, LANES))

    def _softmax(self, block: Dim) -> None:
        """Hides what rows don't see; the largest scores, exponentials in their place, and sums: half a warp for each row."""
        lane = named("lane", mod(self.thread, LANES))
        half = named("half", floordiv(self.thread, LANES))
        halves = THREADS // LANES
        keys = constant(Dense(np.arange(0, KEYS, LANES, dtype=np.int32), i32), name="keys")

        def row(at: Dim) -> None:
            place = at, (0, STEPS), lane
            query = self._place(self.first + at)
            score = self._masked(load(self.scores, *place, name="score"), block + lane, query)
            limit = to_i32("min", *(e - block - lane for e in self.sight.end(query[1])), KEYS, name="limit")
            score = select(cmpi(keys, limit, predicate="lt", name="seen"), score, self.hidden, name="score")
            lowest = filled(self.lowest, STEPS)
            largest = multi_reduction(select(cmpf(score, lowest, predicate="gt"), score, lowest), kind="max", axes=(0,), name="largest")
            largest = warp_reduce(largest, "max", LANES, name="largest")
            e = exp(subf(score, largest), decaying=True, name="weight")
            store(e, self.scores, *place)
            total = extract(e, position=(0,), name="sum")
            for n in range(1, STEPS):
                total = addf(total, extract(e, position=(n,)), name="sum")
            total = warp_reduce(total, "add", LANES, name="sum")
            when(equal(lane, 0, "first"), lambda: self._join(at, largest, total))

        if self.t.rows >= halves:
            loop("row", 0, self.t.rows // halves, 1, lambda n: row(named("at", halves * n + half)))
        else:
            when(less(floordiv(self.thread, 2 * LANES), self.t.rows // 2, "busy"), lambda: row(half))

    def _masked(self, score: Value, key: Dim, query: tuple[Dim, Dim]) -> Value:
        """The scores of a lane with the mask."""
        mask = self.p.mask
        if mask is None:
            return score
        assert self.masks is not None
        masks, shape = self.masks, buffer_type(mask).shape
        is_bool = buffer_type(mask).dtype == boolean
        head, at = query
        front = (self.batch, head, least("query", at, self.p.queries - 1))
        places = [0 if size == 1 else place for size, place in zip(shape, front, strict=False)]

        def one(n: Dim) -> None:
            def found() -> None:
                x = load(mask, *places, 0 if shape[3] == 1 else key + LANES * n, name="mask")
                store(select(x, self.zero, self.hidden) if is_bool else x, masks, n)

            when(less(key + LANES * n, self.p.keys), found, lambda: store(self.zero, masks, n))

        loop("n", 0, STEPS, 1, one)
        found = load(masks, (0, STEPS), name="mask")
        if is_bool:
            return select(cmpf(found, self.zero, predicate="eq"), score, self.hidden, name="score")  # type: ignore[no-any-return]
        return addf(score, found, name="score")  # type: ignore[no-any-return]

    def _join(self, row: Dim, largest: Value, total: Value) -> None:
        """Joins a block with those before it, and leaves the weights of both; or keeps it."""
        if self.split:
            places = self.batch, self.head, self.block_number, row
            store(largest, self.all_most, *places)
            store(total, self.all_sums, *places)
            return
        old, sums = load(self.most, row, name="most.before"), load(self.sums, row, name="sum.before")
        now, weights = joined(old, sums, largest, total)
        for value, target in zip((*now, *weights), (self.most, self.sums, self.old, self.new), strict=True):
            store(value, target, row)

    def _values(self, block: Dim, step: Dim, place: Dim, sums: Sequence[Value]) -> Sequence[Value]:
        """Adds the weighted values that are near, in ascending order."""
        t = self.t
        left = least("left", 4 * ceildiv(self.end - block - t.keys * step, 4), t.keys)
        columns = [self._columns(n) for n in range(self.pieces)]

        def four(j: Dim, *sums: Value) -> Sequence[Value]:
            key = t.keys * step + j
            for i in range(t.value_rows):
                found = load(self.scores, self.value_lane + t.value_lanes * i, floordiv(key, LANES), (mod(key, LANES), 4), name="weights")
                store(found, self.weights, i, (0, 4))

            def one(n: Dim, *sums: Value) -> Sequence[Value]:
                weight = load(self.weights, (0, t.value_rows), n, keep=True, name="weight")
                values = [load(self.near, place, j + n, (column, t.columns), name="value") for column in columns]
                return [fma(weight, value, total, name="sum") for value, total in zip(values, sums, strict=True)]

            return loop("n", 0, 4, 1, one, list(sums), result="weighted")

        return loop("j", 0, left, 4, four, list(sums), result="weighted")

    # -- results ---------------------------------------------------------------------------------------------------

    def _columns(self, piece: int) -> Dim:
        """The first column of a piece: what would be behind the last column is the last piece once more."""
        t = self.t
        start = t.columns * (self.column_lane + t.column_lanes * piece)
        if (piece + 1) * t.columns * t.column_lanes <= self.p.value_width:
            return start
        return least("column", start, self.p.value_width - t.columns)

    def _column(self, numbers: Value, name: str) -> Value:
        """A number for each of the thread's rows, as a column."""
        for i in range(self.t.value_rows):
            store(load(numbers, self.value_lane + self.t.value_lanes * i, name=name), self.factors, i, 0)
        return load(self.factors, (0, self.t.value_rows), 0, keep=True, name=name)

    def _each(self, found: Sequence[Value], put: Callable[[Value, Dim, Dim], None]) -> None:
        """``put(vector, row, column)`` for all rows and pieces of the thread that there are."""
        t, width = self.t, self.p.value_width
        for piece, values in enumerate(found):
            column = self._columns(piece)
            start = t.columns * (self.column_lane + t.column_lanes * piece)
            for i in range(t.value_rows):
                row = self.value_lane + t.value_lanes * i
                inside = [less(self.first + row, self.total)]
                if (piece + 1) * t.columns * t.column_lanes > width:
                    inside.append(less(start, width))
                when(both(*inside), partial(_put_row, put, values, i, row, column))

    def _keep(self, values: Value, row: Dim, column: Dim) -> None:
        store(values, self.all_values, self.batch, self.head, self.block_number, row, (column, self.t.columns))

    def _finish(self, values: Value, row: Dim, column: Dim) -> None:
        result = fma(values, inverse(load(self.sums, row, name="sum"), self.one), self.zero)
        store(result, self.p.out.buffer, *self.p.out.at(self.batch, *self._place(self.first + row), (column, self.t.columns)))


def _put_row(put: Callable[[Value, Dim, Dim], None], values: Value, i: int, row: Dim, column: Dim) -> None:
    put(extract(values, position=(i,), name="row"), row, column)


def joined(old: Value, sums: Value, largest: Value, total: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]]:
    """The largest score and the sum of what was before and a block, and the weights of both."""
    larger = select(cmpf(old, largest, predicate="gt"), old, largest, name="most.now")
    before, now = exp(subf(old, larger), decaying=True, name="weight.before"), exp(subf(largest, larger), decaying=True, name="weight.now")
    return (larger, fma(total, now, mulf(sums, before), name="sum.now")), (before, now)


def inverse(total: Value, one: Value) -> Value:
    """What a row is multiplied with: its sum is 1 or more where there is any key."""
    return divf(one, maximumf(total, one), name="inverse")  # type: ignore[no-any-return]


class Join:
    """Joins the blocks of rows, which :class:`Blocks` has kept, in ascending order: a block of threads for a row, a thread for a column."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.p = blocks, blocks.p

    def build(self, name: str) -> None:
        """The launch."""
        threads = -(-self.p.value_width // 32) * 32
        launch([("row", self.blocks.total), ("h", self.p.key_heads), ("b", self.p.batch)], threads, self._kernel, name=name, tag="attention.join")

    def _kernel(self, row: Dim, h: Dim, b: Dim) -> None:
        column = thread("column")
        if self.p.value_width % 32 == 0:
            self._column(row, h, b, column)
        else:
            when(less(column, self.p.value_width), lambda: self._column(row, h, b, column))

    def _column(self, row: Dim, h: Dim, b: Dim, column: Dim) -> None:
        p, kept = self.p, self.blocks
        zero, one, lowest = number(0.0, f32, "zero"), number(1.0, f32, "one"), number(LOWEST, f32, "lowest")
        sight: Sight = sight_of(p, b)

        def join(n: Dim, old: Value, sums: Value, values: Value) -> Sequence[Value]:
            largest, total = (load(x, b, h, n, row, name=name) for x, name in ((kept.all_most, "most.block"), (kept.all_sums, "sum.block")))
            found = load(kept.all_values, b, h, n, row, column, name="values.block")
            (most_now, sum_now), (before, now) = joined(old, sums, largest, total)
            return most_now, sum_now, fma(found, now, mulf(values, before), name="values.now")

        blocks = ceildiv(most("seen", sight.keys, 0), KEYS)
        _, total, values = loop("n", 0, blocks, 1, join, [lowest, zero, zero], tag="keys.block", result="most.so.far")
        result = fma(values, inverse(total, one), zero)
        group = p.group
        store(result, p.out.buffer, *p.out.at(b, group * h + mod(row, group), floordiv(row, group), column))
