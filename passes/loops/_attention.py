"""The nests of attention: tiles of queries or blocks of keys, an online softmax, and what joins blocks.

Keys come in blocks of ``KEYS``.  For every query and block there are the largest score m of the block, the sum l of exp(score - m), and
the sum o of exp(score - m) times the values; two blocks with m, l, o become one by

    m' = max(m1, m2)    l' = exp(m1 - m') * l1 + exp(m2 - m') * l2    o' likewise

from the first key on.  Neither the blocks nor the order in which anything is added depend on how queries are tiled, on threads, or on
whether blocks are joined as they come (:class:`Prefill`) or computed apart (:class:`passes.loops._few_queries.Decode`), so the bits
don't either.  In a block, a
score is one chain of multiply-adds, l is 16 lanes of ascending keys that are added by halves, and o is one chain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.floats import addf, divf, maximumf, mulf, subf
from dialects.arith.integers import addi, minsi
from dialects.math.exact import fma
from dialects.math.functions import exp
from dialects.vector import multi_reduction, step, transpose
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod
from ir.types import VectorType, boolean, f32, i32
from passes.linalg._views import View
from passes.loops._blocks import (
    alloc,
    buffer_type,
    column,
    filled,
    index_of,
    index_value,
    least,
    load,
    loop,
    most,
    number,
    parallel,
    prefetch,
    reshaped,
    store,
    to_i32,
)

KEYS = 128
"""Keys of a block: part of what the results are, so it is no option."""
LANES = 16
"""Keys of a step inside a block; the same for every machine, as sums are in 16 lanes."""
MOST = 1 << 16
"""Numbers of a tile: its queries and what becomes of them are on the stack."""
LOWEST = -3.4028234663852886e38
"""What the largest score starts from, so that a query that sees no key gives zeros."""


@dataclass(frozen=True)
class Problem:
    """One attention: views of four dimensions (``[B, H, S, D]`` and so on), and what hides keys.

    ``length`` has one element for each batch, or one for all of them.
    """

    q: View
    k: View
    v: View
    out: View
    group: int
    scale: float
    causal: bool
    mask: Value | None
    length: Value | None
    constants: dict[Hashable, Value] = field(compare=False)
    """what the attentions of a graph have in common, made in front of the first one"""

    @property
    def has_one_length(self) -> bool:
        """Whether all of the batch sees equally many keys."""
        return self.length is None or buffer_type(self.length).shape == (1,)

    @property
    def batch(self) -> Dim:
        return self.q.shape[0]

    @property
    def heads(self) -> Dim:
        return self.q.shape[1]

    @property
    def key_heads(self) -> Dim:
        return self.k.shape[1]

    @property
    def queries(self) -> Dim:
        return self.q.shape[2]

    @property
    def keys(self) -> Dim:
        return self.k.shape[2]

    @property
    def width(self) -> int:
        width = self.q.shape[3]
        assert isinstance(width, int)
        return width

    @property
    def value_width(self) -> int:
        width = self.v.shape[3]
        assert isinstance(width, int)
        return width


@dataclass(frozen=True)
class Sight:
    """How far queries see: query i sees the keys below ``min(keys, i + shift)``, or below ``keys`` when nothing is causal."""

    keys: Dim
    shift: Dim | None

    def end(self, query: Dim) -> Sequence[Dim]:
        """What the number of keys that a query sees is the smallest of."""
        return (self.keys,) if self.shift is None else (query + self.shift, self.keys)


def sight_of(problem: Problem, batch: Dim) -> Sight:
    """How far the queries of a batch see."""
    p = problem
    if p.length is None:
        return Sight(p.keys, p.keys - p.queries + 1 if p.causal else None)
    given = index_of(p.length, 0 if p.has_one_length else batch)
    length = least("length", most("least.length", given, 0), p.keys + p.queries)
    return Sight(least("seen", length, p.keys), length - p.queries + 1 if p.causal else None)


@dataclass
class Nests:
    """What both forms are made of.  ``rows`` queries are worked on at a time, ``columns`` keys or values at a time."""

    problem: Problem
    common: Sight | None  # how far the queries of all batches see, where that is the same
    rows: int
    columns: int
    offsets: Sequence[int]  # of the queries of a block of rows, from the first one on
    scores: Value = field(init=False)  # of a block of rows and keys, then their exponentials

    def __post_init__(self) -> None:
        self.zero = self._constant("zero", lambda: number(0.0, f32, "zero"))
        self.one = self._constant("one", lambda: number(1.0, f32, "one"))
        self.lowest = self._constant("lowest", lambda: number(LOWEST, f32, "lowest"))
        self.hidden = self._constant("hidden", lambda: number(float("-inf"), f32, "hidden"))
        self.scale = self._constant(("scale", self.problem.scale), lambda: number(self.problem.scale, f32, "scale"))
        self.lanes = self._constant("lanes", lambda: step(result_type=VectorType(i32, (LANES,)), name="lanes"))
        self.spread: Value | None = None
        if self.problem.causal and any(self.offsets):
            self.spread = self._constant(("spread", *self.offsets), lambda: column(self.offsets))

    def _constant(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """One value for all layers of a model: so their nests are alike."""
        made = self.problem.constants
        if key not in made:
            made[key] = make()
        return made[key]

    def alloc(self) -> None:
        """Makes the memory that loops hand to each other; it is the graph's own."""
        raise NotImplementedError

    def build(self) -> None:
        """Builds the loops."""
        raise NotImplementedError

    # -- memory of a block of rows ---------------------------------------------------------------------------------

    def alloc_scores(self) -> None:
        """Memory for the scores of a block of rows and keys, and for what is found in them."""
        self.scores = alloc("scores", f32, self.rows, KEYS)
        self.most, self.most_column = self._numbers("most")
        self.sums, _ = self._numbers("sums")
        for numbers in (self.most, self.sums):
            store(filled(self.zero, self.lanes_of_rows), numbers, (0, self.lanes_of_rows))

    def alloc_weights(self) -> None:
        """Memory for what joins blocks; numbers for each row are written as vectors and read as columns."""
        self.old_weights, self.old_column = self._numbers("old")
        self.new_weights, self.new_column = self._numbers("new")

    def _numbers(self, name: str) -> tuple[Value, Value]:
        as_column = alloc(name, f32, self.lanes_of_rows, 1)
        return reshaped(as_column, self.lanes_of_rows), as_column

    @property
    def lanes_of_rows(self) -> int:
        """Numbers for each row fill registers: in lanes that nobody writes, what is left there may be denormal, and slow."""
        return 1 << max(2, (self.rows - 1).bit_length()) if self.rows > 1 else 1

    def so_far(self, name: str, rows: int) -> Value:
        """Memory for a number for each of some rows, block by block of them."""
        return alloc(name, f32, rows // self.rows, self.lanes_of_rows)

    # -- how far queries see ---------------------------------------------------------------------------------------

    def sight(self, batch: Dim) -> Sight:
        """How far the queries of a batch see."""
        return self.common if self.common is not None else sight_of(self.problem, batch)

    def seen(self) -> Dim:
        """Keys behind which nobody sees any, whatever the batch."""
        return self.problem.keys if self.common is None else self.common.keys

    # -- scores ----------------------------------------------------------------------------------------------------

    def products(
        self, q: Value, at: Dim, panel: Callable[[Dim, Dim, int], Value], start: Dim, stop: Dim, width: int,
        prepare: Callable[[Dim], None] | None = None,
    ) -> None:  # fmt: skip
        """Scores of the keys from ``start`` to ``stop``, ``width`` at a time; ``panel`` loads some of the keys' d-th numbers.

        ``prepare`` is called for each of these blocks.
        """

        def one(p: Dim) -> None:
            if prepare is not None:
                prepare(p)

            def add(d: Dim, total: Value) -> Value:
                return fma(load(q, (at, self.rows), d, keep=True, name="q"), panel(p, d, width), total, name="sum")  # type: ignore[no-any-return]

            (found,) = loop("d", 0, self.problem.width, 1, add, [filled(self.zero, self.rows, width)], result="score")
            store(found, self.scores, (0, self.rows), (p, width))

        loop("p", start, stop, width, one)

    def hide(self, sight: Sight, first: Dim, block: Dim, count: Dim) -> None:
        """Scores of keys that a row does not see become -inf."""
        end = least("first.end", *sight.end(first))
        if sight.shift is None and isinstance(sight.keys, int) and sight.keys % LANES == 0:
            return

        def one(p: Dim) -> None:
            left = to_i32("min", sight.keys - block - p, LANES, name="left")
            if sight.shift is not None:
                here = to_i32("min", first + sight.shift - block - p, LANES, name="here")
                left = minsi(here if self.spread is None else addi(self.spread, here), left)
            seen = cmpi(self.lanes, left, predicate="lt", name="seen")
            score = load(self.scores, (0, self.rows), (p, LANES), name="score")
            store(select(seen, score, self.hidden), self.scores, (0, self.rows), (p, LANES))

        loop("p", LANES * most("from", floordiv(end - block, LANES), 0), count, LANES, one)

    def apply_mask(self, batch: Dim, block: Dim, count: Dim, place: Callable[[Dim], tuple[Dim, Dim]], alike: bool) -> None:
        """Adds a mask of floats, or hides what one of bools says; ``place`` are head and query of a row, ``alike`` if rows share a head."""
        mask = self.problem.mask
        if mask is None:
            return
        shape = buffer_type(mask).shape
        uniform = shape[2] == 1 and (alike or shape[1] == 1)

        def masked(p: Dim, row: Dim) -> None:
            head, query = place(row)
            places = [0 if size == 1 else at for size, at in zip(shape, (batch, head, query), strict=False)]
            if shape[3] == 1:
                found = load(mask, *places, 0, name="mask")
            else:
                whole = isinstance(shape[3], int) and shape[3] % LANES == 0
                valid = None if whole else index_value("apply", shape[3] - block - p, name="valid")
                found = load(mask, *places, (block + p, LANES), valid=valid, name="mask")
            rows = (0, self.rows) if uniform else row
            old = load(self.scores, rows, (p, LANES), name="score")
            is_bool = buffer_type(mask).dtype == boolean
            store(select(found, old, self.hidden) if is_bool else addf(old, found), self.scores, rows, (p, LANES))

        def one(p: Dim) -> None:
            if uniform:
                masked(p, 0)
            else:
                loop("row", 0, self.rows, 1, lambda row: masked(p, row))

        loop("p", 0, count, LANES, one)

    # -- softmax of a block ----------------------------------------------------------------------------------------

    def exponentials(self, count: Dim) -> None:
        """The largest score of each row, the exponentials of all in their place, and their sums.

        NaN is not looked for: a row that has one is NaN by its sum.
        """

        def larger(p: Dim, found: Value) -> Value:
            score = load(self.scores, (0, self.rows), (p, LANES), name="score")
            return select(cmpf(score, found, predicate="gt"), score, found, name="larger")  # type: ignore[no-any-return]

        (found,) = loop("p", 0, count, LANES, larger, [filled(self.lowest, self.rows, LANES)], result="largest.lanes")
        store(multi_reduction(found, kind="max", axes=(1,), name="largest"), self.most, (0, self.rows))
        some = next((n for n in (4, 3, 5) if self.rows % n == 0), self.rows)

        def rows(row: Dim) -> None:
            largest = load(self.most_column, (row, some), 0, keep=True, name="largest")

            def add(p: Dim, total: Value) -> Value:
                score = load(self.scores, (row, some), (p, LANES), name="score")
                e = exp(subf(score, largest), decaying=True, name="weight")
                store(e, self.scores, (row, some), (p, LANES))
                return addf(total, e, name="sum")  # type: ignore[no-any-return]

            (total,) = loop("p", 0, count, LANES, add, [filled(self.zero, some, LANES)], result="sum.lanes")
            store(multi_reduction(total, kind="add", axes=(1,), name="sum"), self.sums, (row, some))

        loop("row", 0, self.rows, some, rows)

    # -- values and joining ----------------------------------------------------------------------------------------

    def weighted(
        self, batch: Dim, head: Dim, block: Dim, count: Dim, columns: int, use: Callable[[Value, Dim, int], None],
        hints: Callable[[Dim, Dim, int], None] | None = None,
    ) -> None:  # fmt: skip
        """The values of a block, weighted and added up: ``use`` gets some columns of it, where they begin, and how many they are.

        ``hints`` is called for each value and some columns of it.
        """
        v, width = self.problem.v, self.problem.value_width

        def one(column: Dim, columns: int) -> None:
            def add(j: Dim, total: Value) -> Value:
                weight = load(self.scores, (0, self.rows), j, keep=True, name="weight")
                value = load(v.buffer, *v.at(batch, head, block + j, (column, columns)), name="value")
                if hints is not None:
                    hints(j, column, columns)
                return fma(weight, value, total, name="sum")  # type: ignore[no-any-return]

            (found,) = loop("j", 0, count, 1, add, [filled(self.zero, self.rows, columns)], result="weighted")
            use(found, column, columns)

        whole = width - width % columns
        if whole:
            loop("column", 0, whole, columns, lambda column: one(column, columns))
        if width > whole:
            one(whole, width - whole)

    def join_sums(self, most_so_far: Value, sums_so_far: Value, at: Dim, largest: Value, sums: Value) -> None:
        """Joins a block with those before it; leaves the weights of both."""
        place, all_rows = floordiv(at, self.rows), (0, self.lanes_of_rows)
        old, total = load(most_so_far, place, all_rows, name="most.before"), load(sums_so_far, place, all_rows, name="sum.before")
        both = select(cmpf(old, largest, predicate="gt"), old, largest, name="most.now")
        before, now = exp(subf(old, both), decaying=True, name="weight.before"), exp(subf(largest, both), decaying=True, name="weight.now")
        store(both, most_so_far, place, all_rows)
        store(fma(sums, now, mulf(total, before), name="sum.now"), sums_so_far, place, all_rows)
        store(before, self.old_weights, all_rows)
        store(now, self.new_weights, all_rows)

    def join_values(self, so_far: Value, at: Dim, values: Value, column: Dim, columns: int) -> None:
        """The same for some columns of the values."""
        before = load(self.old_column, (0, self.rows), 0, keep=True, name="weight.before")
        now = load(self.new_column, (0, self.rows), 0, keep=True, name="weight.now")
        old = load(so_far, (at, self.rows), (column, columns), name="values.before")
        store(fma(values, now, mulf(old, before), name="values.now"), so_far, (at, self.rows), (column, columns))

    def _of_block(self) -> tuple[Value, Value]:
        """The largest scores and the sums of the block that was worked on last."""
        all_rows = 0, self.lanes_of_rows
        return load(self.most, all_rows, name="most.block"), load(self.sums, all_rows, name="sum.block")

    def start(self, most_so_far: Value, sums_so_far: Value, values: Value, rows: int) -> None:
        """Before the first block."""

        for n in range(rows // self.rows):
            store(filled(self.lowest, self.lanes_of_rows), most_so_far, n, (0, self.lanes_of_rows))
            store(filled(self.zero, self.lanes_of_rows), sums_so_far, n, (0, self.lanes_of_rows))
        nothing = filled(self.zero, self.problem.value_width)
        loop("row", 0, rows, 1, lambda row: store(nothing, values, row, (0, self.problem.value_width)))

    def finish(self, sums: Value, values: Value, row: Dim, store_to: Callable[[Value], None]) -> None:
        """A row of the result: what was added up by the sum, which is 1 or more where there is any; never -0."""
        inverse = divf(self.one, maximumf(load(sums, floordiv(row, self.rows), mod(row, self.rows), name="sum"), self.one), name="inverse")
        store_to(fma(load(values, row, (0, self.problem.value_width), name="row"), inverse, self.zero))

    # -- keys by columns -------------------------------------------------------------------------------------------

    def turn(self, batch: Dim, head: Dim, first: Dim, count: Dim, target: Value, places: Sequence[Dim]) -> None:
        """A panel: a row of ``columns`` for each number of the keys from ``first`` on; zeros behind the ``count`` keys that there are.

        ``count`` is a multiple of ``LANES``, except where it ends with the last key.
        """
        k, width = self.problem.k, self.problem.width

        def square(j: Dim, d: Dim, size: int) -> None:
            found = load(k.buffer, *k.at(batch, head, (first + j, LANES), (d, size)), name="keys")
            store(transpose(found, perm=(1, 0), name="turned"), target, *places, (d, size), (j, LANES))

        def keys(j: Dim) -> None:
            whole = width - width % LANES
            if whole:
                loop("d", 0, whole, LANES, lambda d: square(j, d, LANES))
            if width > whole:
                square(j, whole, width - whole)

        full = LANES * floordiv(count, LANES)
        loop("j", 0, full, LANES, keys)
        if full == self.columns:
            return
        nothing = filled(self.zero, LANES)
        loop("j", full, self.columns, LANES, lambda j: loop("d", 0, width, 1, lambda d: store(nothing, target, *places, d, (j, LANES))))
        if isinstance(self.problem.keys, int) and self.problem.keys % LANES == 0:
            return

        def number_by_number(j: Dim) -> None:
            def turned(d: Dim) -> None:
                store(load(k.buffer, *k.at(batch, head, first + full + j, d), name="key"), target, *places, d, full + j)

            loop("d", 0, width, 1, turned)

        loop("j", 0, mod(count, LANES), 1, number_by_number)


class Prefill(Nests):
    """Tiles of queries, each of which goes through the blocks of keys that it sees."""

    def __init__(self, problem: Problem, common: Sight | None, rows: int, columns: int, queries: int) -> None:
        size = problem.queries
        rows = min(rows, size) if isinstance(size, int) else rows
        super().__init__(problem, common, rows, columns, range(rows))
        tiles = max(1, min(queries, MOST // (problem.width + problem.value_width)) // rows)
        self.tile = rows * (min(tiles, -(-size // rows)) if isinstance(size, int) else tiles)

    def alloc(self) -> None:
        p = self.problem
        self.panels = alloc("keys.panels", f32, p.batch, p.key_heads, ceildiv(p.keys, self.columns), p.width, self.columns)

    def build(self) -> None:
        p = self.problem
        panels = ceildiv(self.seen(), self.columns)
        parallel([("b", 0, p.batch), ("h", 0, p.key_heads), ("c", 0, panels)], self._panel, tag="keys")
        tiles = ceildiv(p.queries, self.tile)
        if p.causal and tiles != 1:  # a short tile together with a long one, so that all rounds are about as much work
            parallel([("b", 0, p.batch), ("h", 0, p.heads), ("t", 0, ceildiv(tiles, 2))], lambda b, h, t: self._two(b, h, t, tiles), tag="query")
        else:
            parallel([("b", 0, p.batch), ("h", 0, p.heads), ("t", 0, tiles)], self._tile, tag="query")

    def _two(self, b: Dim, h: Dim, t: Dim, tiles: Dim) -> None:
        """The t-th tile from the front and from the back."""

        def one(side: Dim) -> None:
            self._tile(b, h, least("tile", most("tile.from", t + side * (tiles - 1 - 2 * t), 0), tiles - 1))

        loop("side", 0, least("sides", tiles - 2 * t, 2), 1, one)

    def _panel(self, b: Dim, h: Dim, c: Dim) -> None:
        first = self.columns * c
        whole = isinstance(self.problem.keys, int) and self.problem.keys % self.columns == 0
        self.turn(b, h, first, self.columns if whole else least("some", self.problem.keys - first, self.columns), self.panels, (b, h, c))

    def _tile(self, b: Dim, h: Dim, t: Dim) -> None:
        p = self.problem
        first = self.tile * t
        stop = least("stop", first + self.tile, p.queries)
        sight = self.sight(b)
        self.alloc_scores()
        self.alloc_weights()
        self.q = alloc("q.tile", f32, self.tile, p.width)
        self.values = alloc("values", f32, self.tile, p.value_width)
        self.most_so_far, self.sums_so_far = self.so_far("most.so.far", self.tile), self.so_far("sums.so.far", self.tile)
        self.start(self.most_so_far, self.sums_so_far, self.values, self.tile)

        def scaled(i: Dim) -> None:
            store(mulf(load(p.q.buffer, *p.q.at(b, h, i, (0, p.width)), name="q"), self.scale), self.q, i - first, (0, p.width))

        loop("i", first, stop, 1, scaled)
        loop("i", stop, first + self.tile, 1, lambda i: store(filled(self.zero, p.width), self.q, i - first, (0, p.width)))
        end = least("end", *sight.end(stop - 1))
        loop("block", 0, end, KEYS, lambda block: self._block(b, h, first, stop, block, sight), tag="keys.block")

        def finished(i: Dim) -> None:
            self.finish(self.sums_so_far, self.values, i - first, lambda row: store(row, p.out.buffer, *p.out.at(b, h, i, (0, p.value_width))))

        loop("i", first, stop, 1, finished)

    def _block(self, b: Dim, h: Dim, first: Dim, stop: Dim, block: Dim, sight: Sight) -> None:
        """One block of keys, for those rows of the tile that see any of it."""
        begin: Dim = 0
        if sight.shift is not None:
            begin = self.rows * most("begin", floordiv(block - sight.shift + 1 - first, self.rows), 0)
        loop("row", begin, least("rows", stop - first, self.tile), self.rows, lambda row: self._rows(b, h, first, row, block, sight))

    def _rows(self, b: Dim, h: Dim, first: Dim, row: Dim, block: Dim, sight: Sight) -> None:
        p, query = self.problem, first + row
        end = least("rows.end", *sight.end(query + (self.rows - 1)))
        count = most("count", least("at.most", end - block, KEYS), 0)
        key_head = floordiv(h, p.group)

        def panel(at: Dim, d: Dim, width: int) -> Value:
            lane = 0 if width == self.columns else mod(at, self.columns)
            return load(self.panels, b, key_head, floordiv(block + at, self.columns), d, (lane, width), name="key")

        share = -(-self.rows * self.columns // KEYS)

        def ask(at: Dim) -> None:
            """With the first block, lines of the result are brought near, some rows with each panel: they are written at the end."""
            start = share * floordiv(at, self.columns)
            stop = start + most("ask", share - block, 0)
            loop("r", start, stop, 1, lambda r: prefetch(p.out.buffer, *p.out.at(b, h, query + r, (0, p.value_width))))

        half = self.columns // 2
        if half < LANES:
            self.products(self.q, row, panel, 0, count, self.columns, ask)
        else:  # the last half of a panel is not needed everywhere
            wide = self.columns * floordiv(count + (half - 1), self.columns)
            self.products(self.q, row, panel, 0, wide, self.columns, ask)
            self.products(self.q, row, panel, wide, count, half)
        self.apply_mask(b, block, count, lambda r: (h, least("query", query + r, p.queries - 1)), alike=True)
        self.hide(sight, query, block, count)
        self.exponentials(count)
        self.join_sums(self.most_so_far, self.sums_so_far, row, *self._of_block())
        self.weighted(b, key_head, block, count, self.columns, lambda o, c, n: self.join_values(self.values, row, o, c, n))
