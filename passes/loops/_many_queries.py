"""The nests of attention with many queries: tiles of them, each of which goes through the blocks of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from dialects.arith.comparison import cmpi
from dialects.arith.floats import mulf
from dialects.math.exact import fma
from dialects.vector import transpose
from ir.core import Value
from ir.dims import Dim, ceildiv, floordiv, mod
from ir.types import f32
from passes.loops._attention import KEYS, LANES, Nests, Problem, Sight, in_pieces
from passes.loops._blocks import alloc, choose, filled, index_value, least, load, loop, most, parallel, prefetch, store

MOST = 1 << 16
"""Numbers of a tile: its queries, their scores, and what becomes of them are on the stack."""
AT_ONCE = 4
"""Numbers of a key, or keys, that are multiplied in a round: the end of 64 rounds is not foreseen by a processor, that of 16 is."""


class Prefill(Nests):
    """Tiles of queries, each of which goes through the blocks of keys that it sees.

    The rows of a tile are the queries of some heads that share their keys, as many as divide a block of rows: row r is query ``r floordiv
    share`` of head ``r mod share``.  So a block of rows is of fewer queries, which see keys that differ less, and less is left over.

    A block of keys is multiplied with all queries of the tile, panel by panel; then come the largest scores, the exponentials and their
    sums, one block of rows after the other; then the values.  So the values may have blocks of registers of their own: ``values``
    columns, and so many fewer rows that there are no more sums, unless these would be fewer rows than each has pieces of ``LANES`` columns.
    """

    def __init__(self, problem: Problem, common: Sight | None, rows: int, columns: int, queries: int, values: int) -> None:
        few = rows * columns // values
        self.share = share = gcd(problem.group, rows)
        size = problem.queries * share
        rows = min(rows, size) if isinstance(size, int) else rows
        super().__init__(problem, common, rows, columns, [n // share for n in range(rows)])
        self.wide: tuple[int, int] | None = (few, values) if few >= values // LANES and few < rows and rows % few == 0 else None
        tiles = max(1, min(queries, MOST // (problem.width + problem.value_width + KEYS)) // rows)
        self.tile = rows * (min(tiles, -(-size // rows)) if isinstance(size, int) else tiles)

    def alloc(self) -> None:
        p = self.problem
        self.panels = alloc("keys.panels", f32, p.batch, p.key_heads, ceildiv(p.keys, self.columns), p.width, self.columns)

    def build(self) -> None:
        p = self.problem
        panels = ceildiv(self.seen(), self.columns)
        parallel([("b", 0, p.batch), ("h", 0, p.key_heads), ("c", 0, panels)], self._panel, tag="keys")
        tiles, heads = ceildiv(p.queries, self.queries), p.key_heads * (p.group // self.share)
        if p.causal and tiles != 1:  # a short tile together with a long one, so that all rounds are about as much work
            parallel([("b", 0, p.batch), ("h", 0, heads), ("t", 0, ceildiv(tiles, 2))], lambda b, h, t: self._two(b, h, t, tiles), tag="query")
        else:
            parallel([("b", 0, p.batch), ("h", 0, heads), ("t", 0, tiles)], lambda b, h, t: self._tile(b, h, t, t + 1), tag="query")

    @property
    def queries(self) -> int:
        """Those of a tile."""
        return self.tile // self.share

    def _key_head(self, h: Dim) -> Dim:
        return floordiv(h, self.problem.group // self.share)

    def _place(self, h: Dim, first: Dim, row: Dim) -> tuple[Dim, Dim]:
        """Head and query of a row of the tile that begins with the query ``first``."""
        return h * self.share + mod(row, self.share), first + floordiv(row, self.share)

    def _two(self, b: Dim, h: Dim, t: Dim, tiles: Dim) -> None:
        """The t-th tile from the front and from the back."""

        def one(side: Dim) -> None:
            at = least("tile", most("tile.from", t + side * (tiles - 1 - 2 * t), 0), tiles - 1)
            self._tile(b, h, at, tiles - 1 - at + side)

        loop("side", 0, least("sides", tiles - 2 * t, 2), 1, one)

    def _panel(self, b: Dim, h: Dim, c: Dim) -> None:
        first = self.columns * c
        whole = isinstance(self.problem.keys, int) and self.problem.keys % self.columns == 0
        self._ask_for_keys(b, h, c)
        self._turn(b, h, first, self.columns if whole else least("some", self.problem.keys - first, self.columns), self.panels, (b, h, c))

    def _ask_for_keys(self, b: Dim, h: Dim, c: Dim) -> None:
        """Hints for the keys of the next panel, which may be the first one of the next head."""
        p = self.problem
        if not isinstance(p.keys, int):
            return
        panels = -(-p.keys // self.columns)
        head, first = h + floordiv(c + 1, panels), self.columns * mod(c + 1, panels)
        loop("r", 0, self.columns, 1, lambda r: prefetch(p.k.buffer, *p.k.at(b, head, first + r, (0, p.width)), locality=2), tag="ask")

    def _tile(self, b: Dim, h: Dim, t: Dim, after: Dim) -> None:
        """The t-th tile of some heads; ``after`` is the number of the next one."""
        p, share = self.problem, self.share
        first = self.queries * t
        stop = least("stop", first + self.queries, p.queries)
        sight = self.sight(b)
        self.alloc_scores(self.tile)
        self.alloc_weights(self.tile)
        self.q = alloc("q.tile", f32, self.tile, p.width)
        self.values = alloc("values", f32, self.tile, p.value_width)
        self.most_so_far, self.sums_so_far = self.so_far("most.so.far", self.tile), self.so_far("sums.so.far", self.tile)
        end = least("end", *sight.end(stop - 1))
        unseen = least("unseen", most("see.nothing", self._begin(sight, first, 0), self.tile * (1 - end)), self.tile)
        self.start(self.most_so_far, self.sums_so_far, self.values, self.tile, unseen)

        def scaled(n: Dim, i: Dim) -> None:
            query = load(p.q.buffer, *p.q.at(b, h * share + n, i, (0, p.width)), name="q")
            store(mulf(query, self.scale), self.q, share * (i - first) + n, (0, p.width))

        loop("head", 0, share, 1, lambda n: loop("i", first, stop, 1, lambda i: scaled(n, i)))
        loop("i", share * (stop - first), self.tile, 1, lambda row: store(filled(self.zero, p.width), self.q, row, (0, p.width)))
        queries = first, stop, self.queries * after
        loop("block", 0, end, KEYS, lambda block: self._block(b, h, queries, block, sight), tag="keys.block")

        def finished(n: Dim, i: Dim) -> None:
            out = p.out.at(b, h * share + n, i, (0, p.value_width))
            self.finish(self.sums_so_far, self.values, share * (i - first) + n, lambda row: store(row, p.out.buffer, *out))

        loop("head", 0, share, 1, lambda n: loop("i", first, stop, 1, lambda i: finished(n, i)))

    def _begin(self, sight: Sight, first: Dim, key: Dim) -> Dim:
        """The first block of rows that sees a key."""
        if sight.shift is None:
            return 0
        return self.rows * most("begin", floordiv(self.share * (key - sight.shift + 1 - first), self.rows), 0)

    def _count(self, sight: Sight, last: Dim, block: Dim) -> Dim:
        """How many keys of a block the query ``last`` sees."""
        return most("count", least("at.most", least("end", *sight.end(last)) - block, KEYS), 0)

    def _block(self, b: Dim, h: Dim, queries: tuple[Dim, Dim, Dim], block: Dim, sight: Sight) -> None:
        """One block of keys, for those rows of the tile that see any of it; the queries are the first one, the end, and the next tile's first."""
        first, stop, _ = queries
        rows = least("rows", self.share * (stop - first), self.tile)
        self._scores(b, h, queries, rows, self._count(sight, stop - 1, block), block, sight)
        begin = self._begin(sight, first, block)

        def count(row: Dim) -> Dim:
            return self._count(sight, first + floordiv(row, self.share) + (self.rows - 1) // self.share, block)

        def each(one: Callable[[Dim], None]) -> None:
            loop("row", begin, rows, self.rows, one)

        # one after the other, so that what has to wait in a block of rows waits beside others
        each(lambda row: self._largest(b, h, first, row, block, count(row), sight))
        each(lambda row: self.exponentials(row, count(row)))
        each(lambda row: self.join_sums(self.most_so_far, self.sums_so_far, row, *self.found(row)))
        self._values(b, self._key_head(h), first, (begin, rows), block, sight)

    def _scores(self, b: Dim, h: Dim, queries: tuple[Dim, Dim, Dim], rows: Dim, count: Dim, block: Dim, sight: Sight) -> None:
        """Panel by panel, for the rows that see any of it; the last half of a panel is not needed everywhere.

        With the first block of keys, lines of the result are brought near, a few at a time, and queries of the next tile: they are written
        at the end, and read then.
        """
        p, half, (first, _, after) = self.problem, self.columns // 2, queries
        key_head, share = self._key_head(h), -(-self.rows * self.columns // KEYS)

        def keys(at: Dim, d: Dim, width: int) -> Value:
            lane = 0 if width == self.columns else mod(at, self.columns)
            return load(self.panels, b, key_head, floordiv(block + at, self.columns), d, (lane, width), name="key")

        def ask(row: Dim, at: Dim) -> None:
            start = share * floordiv(at, self.columns)
            stop = start + most("ask", share - block, 0)

            def lines(r: Dim) -> None:
                prefetch(p.out.buffer, *p.out.at(b, *self._place(h, first, row + r), (0, p.value_width)))
                prefetch(p.q.buffer, *p.q.at(b, *self._place(h, after, row + r), (0, p.width)), locality=2)

            loop("r", start, stop, 1, lines)

        def score(at: Dim, width: int, start: Dim, stop: Dim) -> None:
            def one(row: Dim) -> None:
                ask(row, at)
                self._score(row, keys, at, width)

            loop("row", start, stop, self.rows, one)

        def panel(at: Dim) -> None:
            begin = self._begin(sight, first, block + at)
            if sight.shift is None or half < LANES:
                score(at, self.columns, begin, rows)
            else:
                whole = least("whole", self._begin(sight, first, block + at + half), rows)
                score(at, half, begin, whole)
                score(at, self.columns, whole, rows)

        wide = count if half < LANES else self.columns * floordiv(count + (half - 1), self.columns)
        loop("p", 0, wide, self.columns, panel)
        if half >= LANES:
            loop("p", wide, count, half, lambda at: score(at, half, self._begin(sight, first, block + at), rows))

    def _score(self, row: Dim, keys: Callable[[Dim, Dim, int], Value], at: Dim, width: int) -> None:
        """Scores of a block of rows and of ``width`` keys from ``at`` on; ``keys`` loads their d-th numbers."""
        rows = row, self.rows
        at_once = gcd(self.problem.width, AT_ONCE)

        def add(d: Dim, total: Value) -> Value:
            for n in range(at_once):
                total = fma(load(self.q, rows, d + n, keep=True, name="q"), keys(at, d + n, width), total, name="sum")
            return total

        (found,) = loop("d", 0, self.problem.width, at_once, add, [filled(self.zero, self.rows, width)], result="score")
        store(found, self.scores, rows, (at, width))

    def _largest(self, b: Dim, h: Dim, first: Dim, row: Dim, block: Dim, count: Dim, sight: Sight) -> None:
        """Hides scores of a block of rows, and finds the largest ones."""
        query = first + floordiv(row, self.share)

        def place(r: Dim) -> tuple[Dim, Dim]:
            head, at = self._place(h, query, r)
            return head, least("query", at, self.problem.queries - 1)

        self.apply_mask(row, b, block, count, place, alike=self.share == 1)
        self.hide(row, sight, query, block, count)
        self.largest(row, count)

    def _values(self, b: Dim, head: Dim, first: Dim, rows: tuple[Dim, Dim], block: Dim, sight: Sight) -> None:
        """The values of a block, weighted, added up, and joined with those before."""

        def some(at: Dim, size: int, columns: tuple[Dim, int]) -> None:
            count = self._count(sight, first + floordiv(at + (size - 1), self.share), block)
            found = self.weighted((at, size), b, head, block, count, columns, at_once=AT_ONCE)
            self._keep((at, size), found, columns, block)

        def all_rows(column: Dim, columns: int, size: int) -> None:
            def block_of_rows(row: Dim) -> None:
                if size == self.rows:
                    some(row, size, (column, columns))
                else:
                    loop("part", 0, self.rows, size, lambda part: some(row + part, size, (column, columns)))

            loop("row", *rows, self.rows, block_of_rows)

        width, whole = self.problem.value_width, 0
        if self.wide is not None:
            few, columns = self.wide
            whole = width - width % columns
            in_pieces("column", 0, whole, columns, lambda column, size: all_rows(column, size, few))
        in_pieces("column", whole, width, self.columns, lambda column, size: all_rows(column, size, self.rows))

    def _keep(self, rows: tuple[Dim, int], found: Value, columns: tuple[Dim, int], block: Dim) -> None:
        """Joins values with those of the blocks before; the first ones are only stored, as their weight is 1."""

        def first() -> None:
            store(found, self.values, rows, columns)

        if isinstance(self.problem.keys, int) and self.problem.keys <= KEYS:
            first()
        else:
            at, zero = (index_value("apply", e, name=name) for e, name in ((block, "here"), (0, "front")))
            choose(cmpi(at, zero, predicate="eq", name="is.first"), first, lambda: self.join_values(self.values, rows, found, columns))

    def _turn(self, batch: Dim, head: Dim, first: Dim, count: Dim, target: Value, places: Sequence[Dim]) -> None:
        """A panel: a row of ``columns`` for each number of the keys from ``first`` on; zeros behind the ``count`` keys that there are.

        ``count`` is a multiple of ``LANES``, except where it ends with the last key.
        """
        k, width = self.problem.k, self.problem.width

        def square(j: Dim, d: Dim, size: int) -> None:
            found = load(k.buffer, *k.at(batch, head, (first + j, LANES), (d, size)), name="keys")
            store(transpose(found, perm=(1, 0), name="turned"), target, *places, (d, size), (j, LANES))

        full = LANES * floordiv(count, LANES)
        loop("j", 0, full, LANES, lambda j: in_pieces("d", 0, width, LANES, lambda d, size: square(j, d, size)))
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
