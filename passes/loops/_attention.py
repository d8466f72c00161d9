"""The nests of attention: tiles of queries or blocks of keys, an online softmax, and what joins blocks.

Keys come in blocks of ``KEYS``.  For every query and block there are the largest score m of the block, the sum l of exp(score - m), and
the sum o of exp(score - m) times the values; two blocks with m, l, o become one by

    m' = max(m1, m2)    l' = exp(m1 - m') * l1 + exp(m2 - m') * l2    o' likewise

from the first key on.  Neither the blocks nor the order in which anything is added depend on how queries are tiled, on threads, or on
whether blocks are joined as they come (:class:`passes.loops._many_queries.Prefill`) or computed apart
(:class:`passes.loops._few_queries.Decode`), so the bits don't either.  In a block, a score is one chain of multiply-adds, l is 16 lanes of
ascending keys that are added by halves, and o is one chain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from dialects.arith.comparison import cmpf, cmpi, select
from dialects.arith.floats import addf, divf, maximumf, mulf, subf
from dialects.arith.integers import addi, minsi
from dialects.math.exact import fma
from dialects.math.functions import exp
from dialects.vector import multi_reduction, step
from ir.core import Value
from ir.dims import Dim, floordiv, mod
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
    reshaped,
    store,
    to_i32,
)

KEYS = 128
"""Keys of a block: part of what the results are, so it is no option."""
LANES = 16
"""Keys of a step inside a block; the same for every machine, as sums are in 16 lanes."""
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


def in_pieces(name: str, start: int, stop: int, size: int, one: Callable[[Dim, int], None]) -> None:
    """A loop over pieces of ``size``, and a shorter one behind: ``one`` gets where a piece begins, and its size."""
    whole = start + (stop - start) // size * size
    if whole > start:
        loop(name, start, whole, size, lambda at: one(at, size))
    if stop > whole:
        one(whole, stop - whole)


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

    def alloc_scores(self, rows: int) -> None:
        """Memory for the scores of some rows and a block of keys, and for what is found in them: the largest, and the sums."""
        self.scores = alloc("scores", f32, rows, KEYS)
        blocks = rows // self.rows
        self.most, self.most_column = self._numbers("most", blocks)
        self.sums, _ = self._numbers("sums", 1)
        self.lane_sums = alloc("lane.sums", f32, rows, LANES)
        for numbers, n in ((self.sums, 0), *((self.most, n) for n in range(blocks))):
            store(filled(self.zero, self.lanes_of_rows), numbers, n, (0, self.lanes_of_rows))

    def alloc_weights(self, rows: int) -> None:
        """Memory for what joins blocks, for some rows; numbers for each row are written as vectors and read as columns."""
        self.old_weights, self.old_column = self._numbers("old", rows // self.rows)
        self.new_weights, self.new_column = self._numbers("new", rows // self.rows)

    def _numbers(self, name: str, blocks: int) -> tuple[Value, Value]:
        as_column = alloc(name, f32, blocks * self.lanes_of_rows, 1)
        return reshaped(as_column, blocks, self.lanes_of_rows), as_column

    def _in_column(self, row: Dim) -> Dim:
        """Where the numbers of a row are in a column for some blocks of rows."""
        return self.lanes_of_rows * floordiv(row, self.rows) + mod(row, self.rows)

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

    def hide(self, row: Dim, sight: Sight, query: Dim, block: Dim, count: Dim) -> None:
        """Scores of keys that a row does not see become -inf; ``row`` is the first one, and has the query ``query``."""
        end, rows = least("first.end", *sight.end(query)), (row, self.rows)
        if sight.shift is None and isinstance(sight.keys, int) and sight.keys % LANES == 0:
            return

        def one(p: Dim) -> None:
            left = to_i32("min", sight.keys - block - p, LANES, name="left")
            if sight.shift is not None:
                here = to_i32("min", query + sight.shift - block - p, LANES, name="here")
                left = minsi(here if self.spread is None else addi(self.spread, here), left)
            seen = cmpi(self.lanes, left, predicate="lt", name="seen")
            score = load(self.scores, rows, (p, LANES), name="score")
            store(select(seen, score, self.hidden), self.scores, rows, (p, LANES))

        loop("p", LANES * most("from", floordiv(end - block, LANES), 0), count, LANES, one)

    def apply_mask(self, first: Dim, batch: Dim, block: Dim, count: Dim, place: Callable[[Dim], tuple[Dim, Dim]], alike: bool) -> None:
        """Adds a mask of floats, or hides what one of bools says, for the rows from ``first`` on.

        ``place`` are head and query of one of them, ``alike`` if they share a head.
        """
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
            rows = (first, self.rows) if uniform else first + row
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

    def largest(self, first: Dim, count: Dim) -> None:
        """The largest score of each row of the block from ``first`` on.

        NaN is not looked for: a row that has one is NaN by its sum.
        """

        def larger(p: Dim, found: Value) -> Value:
            score = load(self.scores, (first, self.rows), (p, LANES), name="score")
            return select(cmpf(score, found, predicate="gt"), score, found, name="larger")  # type: ignore[no-any-return]

        (found,) = loop("p", 0, count, LANES, larger, [filled(self.lowest, self.rows, LANES)], result="largest.lanes")
        place = floordiv(first, self.rows), (0, self.rows)
        store(multi_reduction(found, kind="max", axes=(1,), name="largest"), self.most, *place)

    def exponentials(self, first: Dim, count: Dim) -> None:
        """The exponentials of a block of rows in the place of their scores, and their sums."""
        some = next((n for n in (4, 3, 5) if self.rows % n == 0), self.rows)

        def rows(row: Dim) -> None:
            largest = load(self.most_column, (self._in_column(first) + row, some), 0, keep=True, name="largest")

            def add(p: Dim, total: Value) -> Value:
                score = load(self.scores, (first + row, some), (p, LANES), name="score")
                e = exp(subf(score, largest), decaying=True, name="weight")
                store(e, self.scores, (first + row, some), (p, LANES))
                return addf(total, e, name="sum")  # type: ignore[no-any-return]

            (total,) = loop("p", 0, count, LANES, add, [filled(self.zero, some, LANES)], result="sum.lanes")
            store(total, self.lane_sums, (first + row, some), (0, LANES))

        loop("row", 0, self.rows, some, rows)

    # -- values and joining ----------------------------------------------------------------------------------------

    def weighted(
        self, rows: tuple[Dim, int], batch: Dim, head: Dim, block: Dim, count: Dim, columns: tuple[Dim, int],
        hints: Callable[[Dim, Dim, int], None] | None = None, at_once: int = 1,
    ) -> Value:  # fmt: skip
        """Some columns of the values of a block, weighted and added up for some rows, ``at_once`` values in a round.

        ``hints`` is called for each value.
        """
        v = self.problem.v

        def add(j: Dim, total: Value) -> Value:
            weight = load(self.scores, rows, j, keep=True, name="weight")
            value = load(v.buffer, *v.at(batch, head, block + j, columns), name="value")
            if hints is not None:
                hints(j, *columns)
            return fma(weight, value, total, name="sum")  # type: ignore[no-any-return]

        def several(j: Dim, total: Value) -> Value:
            for n in range(at_once):
                total = add(j + n, total)
            return total

        total, whole = filled(self.zero, rows[1], columns[1]), at_once * floordiv(count, at_once)
        if whole != 0:
            (total,) = loop("j", 0, whole, at_once, several, [total], result="weighted")
        if whole != count:
            (total,) = loop("j", whole, count, 1, add, [total], result="weighted")
        return total

    def join_sums(self, most_so_far: Value, sums_so_far: Value, at: Dim, largest: Value, sums: Value) -> None:
        """Joins a block with those before it; leaves the weights of both."""
        place, all_rows = floordiv(at, self.rows), (0, self.lanes_of_rows)
        old, total = load(most_so_far, place, all_rows, name="most.before"), load(sums_so_far, place, all_rows, name="sum.before")
        both = select(cmpf(old, largest, predicate="gt"), old, largest, name="most.now")
        before, now = exp(subf(old, both), decaying=True, name="weight.before"), exp(subf(largest, both), decaying=True, name="weight.now")
        store(both, most_so_far, place, all_rows)
        store(fma(sums, now, mulf(total, before), name="sum.now"), sums_so_far, place, all_rows)
        store(before, self.old_weights, place, all_rows)
        store(now, self.new_weights, place, all_rows)

    def join_values(self, so_far: Value, rows: tuple[Dim, int], values: Value, columns: tuple[Dim, int]) -> None:
        """The same for some columns of the values; the rows are of one block."""
        at = self._in_column(rows[0]), rows[1]
        before = load(self.old_column, at, 0, keep=True, name="weight.before")
        now = load(self.new_column, at, 0, keep=True, name="weight.now")
        old = load(so_far, rows, columns, name="values.before")
        store(fma(values, now, mulf(old, before), name="values.now"), so_far, rows, columns)

    def found(self, first: Dim) -> tuple[Value, Value]:
        """The largest scores and the sums of a block of rows."""
        all_rows = 0, self.lanes_of_rows
        total = load(self.lane_sums, (first, self.rows), (0, LANES), name="sum.lanes")
        store(multi_reduction(total, kind="add", axes=(1,), name="sum"), self.sums, 0, (0, self.rows))
        return load(self.most, floordiv(first, self.rows), all_rows, name="most.block"), load(self.sums, 0, all_rows, name="sum.block")

    def start(self, most_so_far: Value, sums_so_far: Value, values: Value, rows: int, unseen: Dim) -> None:
        """Before the first block; ``unseen`` rows get no values from it."""

        for n in range(rows // self.rows):
            store(filled(self.lowest, self.lanes_of_rows), most_so_far, n, (0, self.lanes_of_rows))
            store(filled(self.zero, self.lanes_of_rows), sums_so_far, n, (0, self.lanes_of_rows))
        if unseen == 0:
            return
        nothing = filled(self.zero, self.problem.value_width)
        loop("row", 0, unseen, 1, lambda row: store(nothing, values, row, (0, self.problem.value_width)))

    def finish(self, sums: Value, values: Value, row: Dim, store_to: Callable[[Value], None]) -> None:
        """A row of the result: what was added up by the sum, which is 1 or more where there is any; never -0."""
        inverse = divf(self.one, maximumf(load(sums, floordiv(row, self.rows), mod(row, self.rows), name="sum"), self.one), name="inverse")
        store_to(fma(load(values, row, (0, self.problem.value_width), name="row"), inverse, self.zero))
