"""The nests of attention with few queries: every block of keys by itself, and then what joins the blocks."""

from __future__ import annotations

from dialects.arith.floats import mulf
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod
from ir.types import f32
from passes.linalg._views import View
from passes.loops._attention import KEYS, LANES, Nests, Problem, Sight
from passes.loops._blocks import alloc, least, load, loop, most, parallel, prefetch, reshaped, store


def most_queries(group: int, rows: int) -> int:
    """How many queries are few: with all heads that share a key head no more than ``rows``."""
    return rows // group


def _padded(size: int) -> int:
    """Numbers in whole lines of memory, which no two threads write; what a block has is a multiple of ``KEYS`` bytes then."""
    return -(-size // 32) * 32


class Ahead:
    """Hints for the keys and values of the next block, which are spread over all that is done with this one.

    The memory of a cache is read once for each query, and there is much more to wait for than to compute.  Hints in a burst would wait
    for each other, and while there are none, memory has nothing to do.  So half of them are given while keys are turned (which takes
    about half of the time), a quarter with the products, and a quarter while values are added up.  They ask for the cache behind the
    nearest one, which has room for a block and more loads under way.  Behind the last block of a head comes the first one of the next
    head; what would be beyond the last key of the last head are hints for that key itself, which is near.
    """

    def __init__(self, problem: Problem, batch: Dim, head: Dim, block: Dim, keys: Dim, columns: int) -> None:
        over = most("over", floordiv(block, KEYS) + 2 - ceildiv(keys, KEYS), 0)
        carry = least("carry", over, problem.key_heads - 1 - head)  # 1: the next one is the first of the next head
        self.problem, self.batch, self.head, self.columns = problem, batch, head + carry, columns
        self.next, self.last = (1 - carry) * (block + KEYS), keys - 1
        self.alike = problem.width == problem.value_width

    def turning(self, key: Dim, d: Dim) -> None:
        """With a square of ``LANES`` keys: half as many keys and values, of the first half of the block."""

        def row(r: Dim) -> None:
            place = self._row(floordiv(key, 2) + r)
            self._hint(self.problem.k, place, d, 1)
            if self.alike:
                self._hint(self.problem.v, place, d, 1)

        loop("ahead", 0, LANES // 2, 1, row)

    def multiplying(self, key: Dim, d: Dim) -> None:
        """With a number of ``columns`` keys: so that ``LANES`` numbers make half as many keys, of the second half of the block."""
        first = KEYS // 2 + floordiv(key, 2) + floordiv(self.columns * mod(d, LANES), 2 * LANES)
        for r in range(max(1, self.columns // (2 * LANES))):
            self._hint(self.problem.k, self._row(first + r), d, 1)

    def adding(self, key: Dim, column: Dim, columns: int) -> None:
        """With some columns of a value: half of those of a value of the second half; all of one, where no other hints were given."""
        if not self.alike:
            self._hint(self.problem.v, self._row(key), column, columns)
        elif columns < 2 * LANES:
            self._hint(self.problem.v, self._row(KEYS // 2 + floordiv(key, 2)), column, columns)
        else:
            half = columns // 2
            self._hint(self.problem.v, self._row(KEYS // 2 + floordiv(key, 2)), column + half * mod(key, 2), half)

    def _row(self, row: Dim) -> Dim:
        return least("ahead", self.next + row, self.last)

    def _hint(self, view: View, row: Dim, column: Dim, columns: int) -> None:
        prefetch(view.buffer, *view.at(self.batch, self.head, row, (column, columns)), locality=2)


class Decode(Nests):
    """All queries of the heads that share a key head at once where their number is known, else one query after the other."""

    def __init__(self, problem: Problem, common: Sight | None, rows: int, columns: int) -> None:
        steps = problem.queries
        self.steps = steps if isinstance(steps, int) else 1
        self.rounds: Dim = 1 if isinstance(steps, int) else steps
        self.most_rounds = 1 if isinstance(steps, int) else most_queries(problem.group, rows)
        count = problem.group * self.steps
        area = rows * columns
        while 2 * columns <= KEYS and 4 * count * columns <= area:  # fewer rows, wider blocks: as many sums at a time
            columns *= 2
        super().__init__(problem, common, count, columns, [n % self.steps for n in range(count)])

    def alloc(self) -> None:
        p = self.problem
        places = p.batch, p.key_heads, ceildiv(p.keys, KEYS), self.most_rounds
        self.all_most, self.all_sums = (alloc(name, f32, *places, _padded(self.lanes_of_rows)) for name in ("all.most", "all.sums"))
        self.all_values = alloc("all.values", f32, *places, self.rows, _padded(p.value_width))

    def build(self) -> None:
        p = self.problem
        self.blocks = ceildiv(self.seen(), KEYS)
        parallel([("b", 0, p.batch), ("h", 0, p.key_heads), ("n", 0, self.blocks)], self._block, tag="keys.block")
        parallel([("b", 0, p.batch), ("h", 0, p.key_heads), ("s", 0, self.rounds)], self._join, tag="query")

    def _block(self, b: Dim, h: Dim, n: Dim) -> None:
        p, block = self.problem, KEYS * n
        sight = self.sight(b)
        self.alloc_scores()
        q, panels = alloc("q.tile", f32, self.rows, p.width), alloc("keys.panel", f32, KEYS // self.columns, p.width, self.columns)
        count = most("count", least("at.most", sight.keys - block, KEYS), 0)

        more = not isinstance(p.keys, int) or p.keys > KEYS
        ahead = Ahead(p, b, h, block, sight.keys, self.columns) if more else None

        def turned(at: Dim) -> None:
            first = block + at
            there = least("some", LANES * ceildiv(count - at, LANES), p.keys - first, self.columns)
            hints = None if ahead is None else lambda j, d: ahead.turning(at + j, d)
            self.turn(b, h, first, there, panels, (floordiv(at, self.columns),), hints)

        loop("p", 0, count, self.columns, turned)
        loop("s", 0, self.rounds, 1, lambda s: self._round(b, h, n, s, sight, count, q, panels, ahead))

    def _round(
        self, b: Dim, h: Dim, n: Dim, s: Dim, sight: Sight, count: Dim, q: Value, panels: Value, ahead: Ahead | None
    ) -> None:  # fmt: skip
        p, block = self.problem, KEYS * n
        if p.q.is_plain and self.rounds == 1:
            rows = reshaped(p.q.buffer, p.batch, p.key_heads, self.rows, p.width)
            store(mulf(load(rows, b, h, (0, self.rows), (0, p.width), name="q"), self.scale), q, (0, self.rows), (0, p.width))
        else:

            def scaled(r: Dim) -> None:
                found = load(p.q.buffer, *p.q.at(b, *self._place(h, s, r), (0, p.width)), name="q")
                store(mulf(found, self.scale), q, r, (0, p.width))

            loop("row", 0, self.rows, 1, scaled)

        def panel(at: Dim, d: Dim, width: int) -> Value:
            return load(panels, floordiv(at, self.columns), d, (0, width), name="key")

        self.products(q, 0, panel, 0, count, self.columns, hints=None if ahead is None else ahead.multiplying)
        self.apply_mask(b, block, count, lambda r: self._place(h, s, r), alike=p.group == 1)
        self.hide(sight, self.steps * s, block, count)
        self.exponentials(count)
        for found, target in zip(self._of_block(), (self.all_most, self.all_sums), strict=True):
            store(found, target, b, h, n, s, (0, self.lanes_of_rows))

        def keep(values: Value, column: Dim, columns: int) -> None:
            store(values, self.all_values, b, h, n, s, (0, self.rows), (column, columns))

        self.weighted(b, h, block, count, self.columns, keep, None if ahead is None else ahead.adding)

    def _join(self, b: Dim, h: Dim, s: Dim) -> None:
        p = self.problem
        self.alloc_weights()
        most_so_far, sums_so_far = self.so_far("most.so.far", self.rows), self.so_far("sums.so.far", self.rows)
        values = alloc("values", f32, self.rows, p.value_width)
        self.start(most_so_far, sums_so_far, values, self.rows)

        def join(n: Dim) -> None:
            numbers = b, h, n, s, (0, self.lanes_of_rows)
            largest, sums = (load(x, *numbers, name=f"{m}.block") for x, m in ((self.all_most, "most"), (self.all_sums, "sum")))
            self.join_sums(most_so_far, sums_so_far, 0, largest, sums)
            found = load(self.all_values, b, h, n, s, (0, self.rows), (0, p.value_width), name="values.block")
            self.join_values(values, 0, found, 0, p.value_width)

        loop("n", 0, self.blocks, 1, join, tag="keys.block")

        def finished(r: Dim) -> None:
            places = p.out.at(b, *self._place(h, s, r), (0, p.value_width))
            self.finish(sums_so_far, values, r, lambda row: store(row, p.out.buffer, *places))

        loop("row", 0, self.rows, 1, finished)

    def _place(self, key_head: Dim, turn: Dim, row: Dim) -> tuple[Dim, Dim]:
        """Head and query of a row, when it is the turn of the queries of a round."""
        return self.problem.group * key_head + floordiv(row, self.steps), self.steps * turn + mod(row, self.steps)
