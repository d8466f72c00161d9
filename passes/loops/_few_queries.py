"""The nests of attention with few queries: every block of keys by itself, and then what joins the blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from dialects.arith.comparison import cmpi
from dialects.arith.floats import mulf
from dialects.math.exact import fma
from dialects.vector import extract, transpose
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod
from ir.types import f32
from passes.linalg._views import View
from passes.loops._attention import KEYS, LANES, Nests, Problem, Sight, in_pieces
from passes.loops._blocks import alloc, choose, filled, index_value, least, load, loop, most, parallel, prefetch, reshaped, store
from passes.loops._squares import GROUP, SIDE, exchanged, turned


def most_queries(group: int, rows: int) -> int:
    """How many queries are few: with all heads that share a key head no more than ``rows``."""
    return rows // group


def _padded(size: int) -> int:
    """Numbers in whole lines of memory, which no two threads write; what a block has is a multiple of ``KEYS`` bytes then."""
    return -(-size // 32) * 32


QUARTERS = 4
"""Of the hints for the next block, one of so many parts is given while values are added up, the others with the scores."""


SHORT = KEYS // 2
"""A last block of fewer keys is not asked for by the one before: it has no time to ask for all of what comes behind it."""


class Ahead:
    """Hints for the keys and values of the next block, which are spread over all that is done with this one.

    The memory of a cache is read once for each query, and there is much more to wait for than to compute.  Hints in a burst would wait
    for each other, and while there are none, memory has nothing to do.  So they are given as time passes: three quarters with the
    scores, one while values are added up.  Keys and values take turns, and whole rows are asked for at once; where blocks of registers
    are too narrow for that, it is keys with the scores, and values with values.  They go to the cache behind the nearest one, which has
    room for a block and more loads under way.  Behind the last block of a head comes the first one of the next head, and before that
    already where the last one is short (``SHORT``); what would be beyond the last key of the last head are hints for that key itself,
    which is near.
    """

    def __init__(self, problem: Problem, batch: Dim, head: Dim, block: Dim, keys: Dim, columns: int) -> None:
        behind = floordiv(most("behind", keys - SHORT, 0), KEYS)
        over = most("over", floordiv(block, KEYS) + 1 - behind, 0)
        carry = least("carry", over, 1, problem.key_heads - 1 - head)  # 1: the next one is the first of the next head
        self.problem, self.batch, self.head = problem, batch, head + carry
        self.next, self.last = (1 - carry) * (block + KEYS), keys - 1
        width, columns = problem.value_width, min(columns, problem.value_width)
        self.together = problem.width == width and width % columns == 0 and columns % (QUARTERS * LANES) == 0

    def scoring(self, key: Dim, d: Dim) -> None:
        """With a square of ``LANES`` keys and numbers: rows of the part of the next block that stands where the square does in this one."""
        share, width = LANES - LANES // QUARTERS if self.together else LANES, self.problem.width
        first, size = floordiv(share * key, LANES), gcd(share * LANES, width)

        def piece(view: View, i: Dim) -> None:
            if width % LANES or size <= LANES:  # a line of each row
                self._hint(view, first + i, d, 1)
            else:
                at = share * d + size * i
                self._hint(view, first + floordiv(at, width), 0 if size == width else mod(at, width), size)

        for view in (self.problem.k, self.problem.v) if self.together else (self.problem.k,):
            count = share if width % LANES else share * LANES // max(size, LANES)
            loop("ahead", 0, count, 1, lambda i, view=view: piece(view, i))  # type: ignore[misc]

    def adding(self, key: Dim, column: Dim, columns: int) -> None:
        """With some columns of a value: a quarter of a row in the last quarter of the next block, or these columns of the next value."""
        if not self.together:
            self._hint(self.problem.v, key, column, columns)
            return
        part = columns // QUARTERS
        for view in (self.problem.k, self.problem.v):
            self._hint(view, KEYS - KEYS // QUARTERS + floordiv(key, QUARTERS), column + part * mod(key, QUARTERS), part)

    def _hint(self, view: View, row: Dim, column: Dim, columns: int) -> None:
        prefetch(view.buffer, *view.at(self.batch, self.head, least("ahead", self.next + row, self.last), (column, columns)), locality=2)


class KeysAhead:
    """Hints for keys alone, so many rows ahead of the square that is multiplied, whole rows in their order.

    Squares are read a line of each row after the other, which no prefetcher follows; where it follows values, which are read row by
    row, more hints are in its way.  Behind the last key of a head come the first ones of the next head.
    """

    def __init__(self, problem: Problem, batch: Dim, head: Dim, block: Dim, keys: Dim, rows: int) -> None:
        self.problem, self.batch, self.head, self.keys = problem, batch, head, keys
        self.first = block + rows

    def scoring(self, key: Dim, d: Dim) -> None:
        """With a square of ``LANES`` keys and numbers: its share of as many rows, or a line of each where rows can't be shared out."""
        p, width = self.problem, self.problem.width
        at = self.first + key
        over = least("over", most("behind", at + 1 - self.keys, 0), 1, p.key_heads - 1 - self.head)  # 1: in the next head
        first = at - over * LANES * ceildiv(self.keys, LANES)
        shared = width % LANES == 0 and LANES * LANES % width == 0
        count = LANES * LANES // width if shared else LANES
        share = floordiv(LANES * d, width) if shared else 0
        place = most("place", least("ahead", first + share, self.keys - count), 0)
        places = (0, width) if shared else (d, 1)

        def row(i: Dim) -> None:
            prefetch(p.k.buffer, *p.k.at(self.batch, self.head + over, place + i, places), locality=2)

        loop("ahead", 0, count, 1, row)

    def adding(self, key: Dim, column: Dim, columns: int) -> None:
        """Nothing."""


Hints = Ahead | KeysAhead


Row = Callable[[int], Value]
"""Loads a row of a square of keys."""
AT_ONCE = 4 * SIDE
"""Numbers of keys that are multiplied without a loop."""
MOST_ROWS = 8
"""With more rows a square, half of the next one, and all sums don't fit in 32 registers."""


class Decode(Nests):
    """All queries of the heads that share a key head at once where their number is known, else one query after the other."""

    def __init__(self, problem: Problem, common: Sight | None, rows: int, columns: int, ahead: int = 0, early: bool = False) -> None:
        self.ahead, self.early = ahead, early
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
        self.alloc_scores(self.rows)
        self.q = alloc("q.tile", f32, self.most_rounds * self.rows, p.width)
        self.all_scores = self.scores if self.rounds == 1 else alloc("all.scores", f32, self.most_rounds * self.rows, KEYS)
        self.turns = least("rounds", self.rounds, self.most_rounds)  # they are no more, which nobody could prove
        count = most("count", least("at.most", sight.keys - block, KEYS), 0)
        ahead = self._hints(b, h, block, sight.keys) if not isinstance(p.keys, int) or p.keys > KEYS else None
        self._each_round(lambda s: self._scale(b, h, s))
        self._scores(b, h, block, count, ahead)
        self._each_round(lambda s: self._round(b, h, n, s, sight, count, ahead))

    def _hints(self, b: Dim, h: Dim, block: Dim, keys: Dim) -> Hints:
        return KeysAhead(self.problem, b, h, block, keys, self.ahead) if self.ahead else Ahead(self.problem, b, h, block, keys, self.columns)

    def _each_round(self, inside: Callable[[Dim], None]) -> None:
        loop("s", 0, self.turns, 1, inside)

    def _scale(self, b: Dim, h: Dim, s: Dim) -> None:
        """Copies the queries of a round, scaled."""
        p = self.problem
        if p.q.is_plain and self.rounds == 1:
            rows = reshaped(p.q.buffer, p.batch, p.key_heads, self.rows, p.width)
            store(mulf(load(rows, b, h, (0, self.rows), (0, p.width), name="q"), self.scale), self.q, (0, self.rows), (0, p.width))
            return

        def scaled(r: Dim) -> None:
            found = load(p.q.buffer, *p.q.at(b, *self._place(h, s, r), (0, p.width)), name="q")
            store(mulf(found, self.scale), self.q, self.rows * s + r, (0, p.width))

        loop("row", 0, self.rows, 1, scaled)

    def _scores(self, b: Dim, h: Dim, block: Dim, count: Dim, ahead: Hints | None) -> None:
        """The scores of a block and all queries: squares of keys are turned in registers, and multiplied while they are there."""
        p, width = self.problem, self.problem.width
        behind = KEYS if isinstance(p.keys, int) and p.keys % LANES == 0 else p.keys - block
        whole = LANES * floordiv(least("there", count + LANES - 1, behind), LANES)

        if self.early and self.rounds == 1 and self.rows <= MOST_ROWS and width % LANES == 0:
            some = None if isinstance(behind, int) else index_value("apply", whole, name="whole")
            self._if_any(some, lambda: self._early_squares(b, h, block, whole, ahead))
        else:
            self._squares(b, h, block, whole, ahead)
        if not isinstance(behind, int):
            self._last_keys(b, h, block, whole, count)

    def _if_any(self, count: Value | None, build: Callable[[], None]) -> None:
        """What must not be done without any; None is known to be some."""
        if count is None:
            build()
        else:
            choose(cmpi(count, index_value("apply", 0, name="none"), predicate="gt", name="is.any"), build, lambda: None)

    def _squares(self, b: Dim, h: Dim, block: Dim, whole: Dim, ahead: Hints | None) -> None:
        """The scores of whole squares, one after the other."""
        p = self.problem

        def keys(j: Dim) -> None:
            def square(d: Dim, size: int) -> None:
                found = load(p.k.buffer, *p.k.at(b, h, (block + j, LANES), (d, size)), name="keys")
                turned = transpose(found, perm=(1, 0), name="turned")
                if ahead is not None:
                    ahead.scoring(j, d)
                self._add_products(j, d, [extract(turned, position=(i,), name="key") for i in range(size)])

            self._by_lanes(j, square)

        loop("j", 0, whole, LANES, keys)

    def _early_squares(self, b: Dim, h: Dim, block: Dim, whole: Dim, ahead: Hints | None) -> None:
        """The same, each square loaded and turned by half while the one before is multiplied.

        A processor does not look so far ahead that it would turn a square while it waits for the sums of the one before.
        """
        p, width = self.problem, self.problem.width

        def square(j: Dim, d: Dim) -> Row:
            """A square whose rows are known to be there."""
            return lambda i: load(p.k.buffer, *p.k.at(b, h, block + j + i, (d, SIDE)), name="keys")

        def next_square(j: Dim) -> Row:
            """The first one of the next keys: nobody can prove that its rows are there, so they are loaded, and looked at, together."""
            rows = load(p.k.buffer, *p.k.at(b, h, (block + least("next", j + LANES, whole - LANES), SIDE), (0, SIDE)), name="keys")
            return lambda i: extract(rows, position=(i,), name="key")

        def groups(row: Row, n: int) -> list[Value]:
            """Every fourth row from the n-th on, groups of elements exchanged."""
            return exchanged([row(i) for i in range(n, SIDE, GROUP)])

        def multiplied(here: Sequence[Value], total: Value, j: Dim, d: Dim, behind: Callable[[], Row]) -> tuple[list[Value], Value]:
            """The sums with the products of a square, and the groups of the one behind it."""
            if ahead is not None:
                ahead.scoring(j, d)
            row, found = behind(), []
            for n in range(GROUP):
                found += groups(row, n)
                for i, key in enumerate(turned(here[n::GROUP])):
                    number = load(self.q, (0, self.rows), d + GROUP * n + i, keep=True, name="q")
                    total = fma(number, key, total, name="sum")
            return found, total

        def several(start: Dim, size: int, behind: Callable[[], Row], j: Dim, total: Value, *first: Value) -> list[Value]:
            """The squares of some numbers, one after the other without a loop, where registers would be moved around."""
            here = list(first)
            for d in range(0, size, SIDE):
                following = behind if d + SIDE == size else lambda d=d: square(j, start + d + SIDE)  # type: ignore[misc]
                here, total = multiplied(here, total, j, start + d, following)
            return [total, *here]

        def keys(j: Dim, *here: Value) -> list[Value]:
            early = (width - 1) // AT_ONCE * AT_ONCE
            found = [filled(self.zero, self.rows, LANES), *here]
            if early:
                found = loop("d", 0, early, AT_ONCE, lambda d, *got: several(d, AT_ONCE, lambda: square(j, d + AT_ONCE), j, *got), found)
            total, *rest = several(early, width - early, lambda: next_square(j), j, *found)
            store(total, self.all_scores, (0, self.rows), (j, LANES))
            return rest

        loop("j", 0, whole, LANES, keys, [group for n in range(GROUP) for group in groups(square(0, 0), n)])

    def _last_keys(self, b: Dim, h: Dim, block: Dim, whole: Dim, count: Dim) -> None:
        """The scores of the keys behind whole squares."""
        p, width = self.problem, self.problem.width
        turned = alloc("turned.keys", f32, width, LANES)

        def last(j: Dim) -> None:
            """Fewer keys than a square has: what is behind them is not there, or belongs to somebody else."""
            nothing = filled(self.zero, LANES)
            loop("d", 0, width, 1, lambda d: store(nothing, turned, d, (0, LANES)))

            def key(i: Dim) -> None:
                loop("d", 0, width, 1, lambda d: store(load(p.k.buffer, *p.k.at(b, h, block + j + i, d), name="key"), turned, d, i))

            loop("i", 0, least("left", p.keys - block - j, LANES), 1, key)
            self._by_lanes(j, lambda d, size: self._add_products(j, d, [load(turned, d + i, (0, LANES), name="key") for i in range(size)]))

        loop("j", whole, count, LANES, last)

    def _by_lanes(self, j: Dim, square: Callable[[Dim, int], None]) -> None:
        """Goes through all numbers of ``LANES`` keys, some at a time, with scores of 0 to begin with."""
        width = self.problem.width
        zeros = filled(self.zero, self.rows, LANES)
        self._each_round(lambda s: store(zeros, self.all_scores, (self.rows * s, self.rows), (j, LANES)))
        in_pieces("d", 0, width, LANES, square)

    def _add_products(self, j: Dim, d: Dim, keys: Sequence[Value]) -> None:
        """Adds products to the scores of ``LANES`` keys: of their numbers from the d-th on."""

        def add(s: Dim) -> None:
            rows = self.rows * s, self.rows
            total = load(self.all_scores, rows, (j, LANES), name="score")
            for i, key in enumerate(keys):
                total = fma(load(self.q, rows, d + i, keep=True, name="q"), key, total, name="sum")
            store(total, self.all_scores, rows, (j, LANES))

        self._each_round(add)

    def _round(self, b: Dim, h: Dim, n: Dim, s: Dim, sight: Sight, count: Dim, ahead: Hints | None) -> None:
        """What becomes of the scores of a round."""
        p, block = self.problem, KEYS * n
        if self.all_scores is not self.scores:

            def take(j: Dim) -> None:
                store(load(self.all_scores, (self.rows * s, self.rows), (j, LANES), name="score"), self.scores, (0, self.rows), (j, LANES))

            loop("j", 0, count, LANES, take)
        self.apply_mask(0, b, block, count, lambda r: self._place(h, s, r), alike=p.group == 1)
        self.hide(0, sight, self.steps * s, block, count)
        self.largest(0, count)
        self.exponentials(0, count)
        for found, target in zip(self.found(0), (self.all_most, self.all_sums), strict=True):
            store(found, target, b, h, n, s, (0, self.lanes_of_rows))

        def keep(column: Dim, columns: int) -> None:
            found = self.weighted((0, self.rows), b, h, block, count, (column, columns), None if ahead is None else ahead.adding)
            store(found, self.all_values, b, h, n, s, (0, self.rows), (column, columns))

        in_pieces("column", 0, p.value_width, self.columns, keep)

    def _join(self, b: Dim, h: Dim, s: Dim) -> None:
        p = self.problem
        self.alloc_weights(self.rows)
        most_so_far, sums_so_far = self.so_far("most.so.far", self.rows), self.so_far("sums.so.far", self.rows)
        values = alloc("values", f32, self.rows, p.value_width)
        self.start(most_so_far, sums_so_far, values, self.rows, self.rows)

        def join(n: Dim) -> None:
            numbers = b, h, n, s, (0, self.lanes_of_rows)
            largest, sums = (load(x, *numbers, name=f"{m}.block") for x, m in ((self.all_most, "most"), (self.all_sums, "sum")))
            self.join_sums(most_so_far, sums_so_far, 0, largest, sums)
            found = load(self.all_values, b, h, n, s, (0, self.rows), (0, p.value_width), name="values.block")
            self.join_values(values, (0, self.rows), found, (0, p.value_width))

        loop("n", 0, self.blocks, 1, join, tag="keys.block")

        def finished(r: Dim) -> None:
            places = p.out.at(b, *self._place(h, s, r), (0, p.value_width))
            self.finish(sums_so_far, values, r, lambda row: store(row, p.out.buffer, *places))

        loop("row", 0, self.rows, 1, finished)

    def _place(self, key_head: Dim, turn: Dim, row: Dim) -> tuple[Dim, Dim]:
        """Head and query of a row, when it is the turn of the queries of a round."""
        return self.problem.group * key_head + floordiv(row, self.steps), self.steps * turn + mod(row, self.steps)
