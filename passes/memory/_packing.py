"""Places in an arena for blocks of memory that are needed at different times.

A plan has to be right for all sizes, which is proved by comparing expressions, and good for any, which is judged by
example sizes: the arena over the most bytes that are needed at once, at the worst of the examples.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import gt

from ir.dims import Dim
from passes.memory._amounts import Amount, Amounts
from passes.memory._lifetimes import Buffer
from passes.memory._sizes import Sizes

_ROUNDS = 60
"""Most orders that are tried after the first ones; fewer when there are many blocks."""
_WORK = 6000
"""Most blocks that are placed in those rounds."""
_GOOD = 1.02
"""The arena over the bound at which no other plan is looked for."""
_POOR = 2.0
"""The arena over the bound at which an order is given up, unless all are that bad."""


@dataclass(eq=False)
class Block:
    """Memory for buffers that take it over from each other: one size, needed from the first operation to the last."""

    buffers: list[Buffer] = field(default_factory=list)

    @property
    def size(self) -> Dim:
        return self.buffers[0].size

    @property
    def first(self) -> int:
        return self.buffers[0].first

    @property
    def last(self) -> int:
        return self.buffers[-1].last


@dataclass(frozen=True)
class Packing:
    """Offsets of blocks, how large the arena is, and the most bytes that are needed at once (an expression, for it may be
    another operation at other sizes)."""

    offsets: dict[Block, Dim]
    total: Dim
    bound: Dim


def pack(blocks: Sequence[Block], sizes: Sizes) -> Packing:
    """The best of several plans: blocks in some orders, each at the lowest place that is free while it is needed."""
    best: _Plan | None = None
    for coarse in (False, True):
        problem = _Problem(blocks, sizes, coarse)
        found = problem.search()
        if best is None or found.score < best.score:
            best = found
        if best.score[0] <= _GOOD:
            break
    assert best is not None
    problem = best.problem
    total = problem.amounts.largest(best.ends)
    if not all(t <= a for t, a in zip(total.values, problem.alone, strict=True)):  # never more than without sharing
        best, total = problem.side_by_side()
    return Packing({b: o.dim for b, o in zip(blocks, best.offsets, strict=True)}, total.dim, problem.bound())


@dataclass
class _Plan:
    problem: _Problem
    order: list[int]
    offsets: list[Amount]
    ends: list[Amount]
    score: tuple[float, float]
    """the arena over the bound at the worst of the example sizes, and on average"""


class _Problem:
    """Blocks by number, with their sizes rounded in one way, and which of them are needed together."""

    def __init__(self, blocks: Sequence[Block], sizes: Sizes, coarse: bool) -> None:
        self.blocks = blocks
        self.amounts = Amounts(sizes)
        self.sizes = [self.amounts.of(sizes.aligned(b.size, coarse)) for b in blocks]
        self.together = _together(blocks)
        self.alone = [sum(at) for at in zip(*(s.values for s in self.sizes), strict=True)]
        exact = [self.amounts.of(sizes.aligned(b.size)) for b in blocks]
        self._live = _live_sets(blocks)
        self.most = [max((sum(at[i] for i in live) for live in self._live), default=0) for at in zip(*(s.values for s in exact), strict=True)]
        self._exact = exact

    def bound(self) -> Dim:
        """The most bytes that are needed at once; of many operations only those that are the largest for some sizes."""
        totals = dict.fromkeys(self.amounts.total([self._exact[i] for i in live]) for live in self._live)
        kept = [t for t in totals if any(v == m for v, m in zip(t.values, self.most, strict=True))]
        return self.amounts.largest(kept or totals).dim

    def search(self) -> _Plan:
        """Some good orders first, then changes of the best one: what ended at the top goes to an earlier place."""
        orders = self._orders()
        best = self._best_of(orders, _POOR) or self._best_of(orders, math.inf)
        assert best is not None
        generator = random.Random(len(self.blocks))
        for _ in range(min(_ROUNDS, _WORK // max(1, len(self.blocks)))):
            if best.score[0] <= _GOOD:
                break
            found = self.place(self._changed(best, generator), best.score[0])
            if found is not None and found.score <= best.score:
                best = found
        return best

    def _best_of(self, orders: Sequence[list[int]], limit: float) -> _Plan | None:
        """The best plan for some orders, or the first one that is good; None when all are over the limit."""
        best: _Plan | None = None
        for order in orders:
            found = self.place(order, limit if best is None else best.score[0])
            if found is not None and (best is None or found.score < best.score):
                best = found
                if best.score[0] <= _GOOD:
                    break
        return best

    def _orders(self) -> list[list[int]]:
        mean = [sum(v / max(1, m) for v, m in zip(s.values, self.most, strict=True)) for s in self.sizes]
        length = [b.last - b.first + 1 for b in self.blocks]
        first = [b.first for b in self.blocks]
        numbers = range(len(self.blocks))
        return [
            sorted(numbers, key=lambda i: (-mean[i], first[i], i)),
            sorted(numbers, key=lambda i: (-mean[i] * length[i], first[i], i)),
            sorted(numbers, key=lambda i: (-length[i], first[i], -mean[i], i)),
            sorted(numbers, key=lambda i: (first[i], -length[i], -mean[i], i)),
            sorted(numbers, key=lambda i: (max(self.sizes[i].values), first[i], i)),
        ]

    def _changed(self, plan: _Plan, generator: random.Random) -> list[int]:
        """An order in which a block that lies at the top, at the worst sizes, comes earlier; or two blocks change places."""
        order = list(plan.order)
        ratios = [max((e.values[at] for e in plan.ends), default=0) / max(1, m) for at, m in enumerate(self.most)]
        worst = ratios.index(max(ratios))
        height = max(e.values[worst] for e in plan.ends)
        top = [i for i in order if plan.ends[i].values[worst] == height]
        moved = generator.choice(top)
        if generator.random() < 0.5:  # what it lies on, instead
            below = [j for j in self.together[moved] if plan.ends[j].values[worst] == plan.offsets[moved].values[worst]]
            moved = generator.choice(below) if below else moved
        place = order.index(moved)
        order.pop(place)
        order.insert(generator.randint(0, place), moved)
        return order

    def place(self, order: Sequence[int], limit: float = math.inf) -> _Plan | None:
        """Each block at the lowest offset that is free all the time that it is needed.

        None when the arena comes to more than ``limit`` over the bound: a poor order has the most to compare.
        """
        zero = self.amounts.of(0)
        offsets = [zero] * len(self.blocks)
        ends = [zero] * len(self.blocks)
        placed = [False] * len(self.blocks)
        most = [m * (limit + 1e-4) if m else math.inf for m in self.most]  # ratios are compared to four places
        for i in order:
            if self.sizes[i] is not zero:
                taken = dict.fromkeys((offsets[j], ends[j]) for j in self.together[i] if placed[j])
                offsets[i] = self._lowest(self.sizes[i], list(taken))
                ends[i] = self.amounts.add(offsets[i], self.sizes[i])
                placed[i] = True
                if any(map(gt, ends[i].values, most)):
                    return None
        heights = [max(at) for at in zip(*(e.values for e in ends), strict=True)]
        ratios = [h / m if m else 1.0 for h, m in zip(heights, self.most, strict=True)]
        return _Plan(self, list(order), offsets, ends, (round(max(ratios), 4), sum(ratios)))

    def _lowest(self, size: Amount, taken: list[tuple[Amount, Amount]]) -> Amount:
        """The lowest offset at which a block overlaps none of the others, given by where they begin and end."""
        amounts = self.amounts
        ends = list(dict.fromkeys(end for _, end in taken))
        for candidate in sorted([amounts.of(0), *ends], key=lambda a: a.weight):
            behind = amounts.add(candidate, size)
            if all(amounts.at_most(behind, start) or amounts.at_most(end, candidate) for start, end in taken):
                return candidate
        taken = sorted(taken, key=lambda t: t[1].weight)
        for number in range(2, len(taken)):  # behind the lower ones of them, whichever ends last, and below the others
            candidate = amounts.largest([end for _, end in taken[:number]])
            behind = amounts.add(candidate, size)
            if all(amounts.at_most(behind, start) for start, _ in taken[number:]):
                return candidate
        return amounts.largest(ends)

    def side_by_side(self) -> tuple[_Plan, Amount]:
        """Nothing shared."""
        offsets, at = [], self.amounts.of(0)
        for size in self.sizes:
            offsets.append(at)
            at = self.amounts.add(at, size)
        return _Plan(self, [], offsets, offsets, (0.0, 0.0)), at


def _together(blocks: Sequence[Block]) -> list[list[int]]:
    """For each block the others that are needed at some time when it is."""
    found: list[list[int]] = [[] for _ in blocks]
    open_: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].first):
        open_ = [j for j in open_ if blocks[j].last >= blocks[i].first]
        for j in open_:
            found[i].append(j)
            found[j].append(i)
        open_.append(i)
    return found


def _live_sets(blocks: Sequence[Block]) -> list[list[int]]:
    """The blocks that are needed at once: at each time at which one begins, as no later time before the next has more."""
    found: list[list[int]] = []
    open_: list[int] = []
    order = sorted(range(len(blocks)), key=lambda i: blocks[i].first)
    for number, i in enumerate(order):
        open_ = [j for j in open_ if blocks[j].last >= blocks[i].first] + [i]
        if number + 1 == len(order) or blocks[order[number + 1]].first > blocks[i].first:
            found.append(list(open_))
    return found
