"""Pass ``tile``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ir.builder import Builder
from ir.core import DROPPED, Module, Operation
from ir.dims import Dim, DimExpr, dim_min, exact_div, floordiv, mod, symbols_of
from ir.layout import RangeArg
from ir.rewriter import is_pure, walk_graphs
from ir.types import MemRefType, byte_count
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    accesses,
    body,
    create_loop,
    depends_on,
    end_loop,
    extent,
    initial_values,
    is_loop,
    loops_tagged,
    minimum_terms,
    move_into,
    parent_loop,
    ranges,
    set_initial_values,
    set_range,
    single_range,
    static_extent,
    tag_of,
    value_symbol,
    variable,
)
from passes.loops._panels import stored_tensor
from passes.loops._versions import nest_of, two_versions

_FEW_TILES = 2
"""Tiles of a loop of which a remainder would be much of the work."""

_MANY_TILES = 8
"""Tiles of a loop from which on another size is worth a version: threads have something to share, and lines are far from each other."""


@dataclass(frozen=True)
class Tile(Pass):
    """Cuts loops into tiles of ``size`` rounds (strip-mining).

    Before::

        scf.parallel(%j = 0 to N, tag="n") {
          memref.store(%x, %C[%j])
          yield
        }

    After ``tile{loop=n, size=48}``::

        scf.parallel(%jt = 0 to N step 48, tag="n.tile") {
          scf.parallel(%j = %jt to min(%jt+48, N), tag="n") {
            memref.store(%x, %C[%j])
            yield
          }
          yield
        }

    Every loop with tag ``loop``, one range and step 1 gets a loop of the same kind around it, with tag ``outer``
    (``n.tile`` for loop ``n``).  The variable still counts elements, so the body stays as it is; ``min`` is left out
    where the extent is a multiple of the tile.  A list of sizes means the first that divides a known extent, else the
    last; a tile is never larger than a known extent rounded up to 16.  A loop that stands in a loop of tag ``outer``
    and starts at its variable is a tile already.

    ``outside=m`` puts the new loop around the loop ``m`` that the tiled one stands in, through parallel loops that do
    nothing else: ``tile{loop=n, size=48, outside=m}, tile{loop=m, size=8}`` makes the order n.tile, m.tile, m, n.

    ``rounds=48`` leaves the choice among several sizes to loops that are known to have so many rounds of the loop
    ``outside``; for others the last size is taken.  Wide tiles have few rows, and read what they share more often.  Loops
    of less than two tiles have the choice in any case: there a remainder would be much of the work.

    ``few=6`` is for loops that are known to have so many rounds of the loop ``outside``, or less, or none around them: rows do not
    fill a tile then, so it is the widest size that divides the extent.  More sums at a time wait for memory together.  One row reads a matrix
    of more than ``memory`` bytes faster in narrow tiles (see docs/performance.md), so it keeps the last size.

    ``across=16`` is the size for loops that read what is lines apart, each line along another loop, while there is no loop
    ``outside`` that reads it again: few lines at a time are read well.  What is stored with the program does not count,
    which ``pack`` puts in order.

    ``area`` limits the rounds of a tile together with those of the tiles around it, to what registers hold:
    ``tile{loop=m, size=8, area=384}`` takes 8 rows of 48 columns, and 6 of 64.

    ``versions`` makes two of a nest whose number of rounds is known only when the program runs, and which reads lines in them: one for
    a number that the wider tile divides and the last size does not, and at least ``rounds`` of the loop ``outside``.  Its value is for how
    many rounds of the loops inside, as a near cache holds so many lines of a tile.

    Rounds run in the same order as before.  ``outside`` changes it, for parallel loops whose rounds may run in any
    order; what has an effect besides the inner loop, or bounds that depend on a loop in between, keep the new loop where it
    was.
    """

    loop: str = "n"
    """tag of the loops to cut"""
    size: tuple[int, ...] = (48,)
    """rounds of a tile; of several, the first that divides a known extent, else the last"""
    outer: str = ""
    """tag of the new loops; empty for that of the old ones with ``.tile``"""
    outside: str = ""
    """tag of the loop that the new one goes around; empty for the old one"""
    rounds: int = 0
    """of several sizes the last, unless the loop ``outside`` is known to have so many rounds"""
    few: int = 0
    """up to so many rounds of the loop ``outside``, the widest size that divides; 0 for no difference"""
    memory: int = 32 * 1024 * 1024
    """bytes of what is read from which on no cache holds it"""
    across: int = 0
    """rounds of a tile that goes across lines; 0 for no difference"""
    area: int = 0
    """the most rounds of a tile together with the tiles around it; 0 for no limit"""
    versions: int = 0
    """rounds of serial loops inside up to which an unknown number of rounds gets a version for the wider tile; 0 for none"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.size or min(self.size) < 1:
            raise ValueError("a tile has one round or more")
        if self.area < 0:
            raise ValueError("an area is 0 (no limit) or more")

    def run(self, module: Module, context: PassContext) -> bool:
        tiled = 0
        for graph in walk_graphs(module):
            wide = {loop for loop in loops_tagged(graph, self.loop) if self.versions and self._make_versions(loop)}
            for loop in loops_tagged(graph, self.loop):
                tiled += self._tile(loop, self._wide if loop in wide else 0)
        context.count("loops tiled", tiled)
        return tiled > 0

    @property
    def _wide(self) -> int:
        """The first size that is wider than the last one; 0 where there is none."""
        return next((s for s in self.size if s > self.size[-1]), 0)

    def _tile(self, loop: Operation, wide: int) -> bool:
        bounds = single_range(loop)
        outer_tag = self.outer or f"{self.loop}.tile"
        if bounds is None or bounds.step != 1 or is_tile(loop, bounds, outer_tag):
            return False
        place = _place(loop, bounds, self.outside)
        lines = self.across and tag_of(place) != self.outside and _reads_across(loop)
        size = self._limited(loop, wide or (self.across if lines else self._choose(bounds, place, loop)))
        assert place.block is not None
        builder = Builder(place.block, place, loc=loop.loc)
        tiles = create_loop(
            builder,
            loop.name,
            RangeArg(bounds.start, bounds.stop, size),
            name=f"{variable(loop).name}t",
            tag=outer_tag,
            initial=initial_values(loop),
            like=loop,
        )
        tiles.trivia, place.trivia = place.trivia, None
        _enclose(tiles, place)
        start = value_symbol(variable(tiles))
        set_range(loop, RangeArg(start, _tile_end(start, size, bounds), 1))
        return True

    def _make_versions(self, loop: Operation) -> bool:
        """A version for a wider tile than the last size, for what it will turn out to divide, of a nest that has the choice."""
        bounds, size = single_range(loop), self._wide
        if not size or bounds is None or bounds.step != 1 or bounds.start != 0 or is_tile(loop, bounds, self.outer or f"{self.loop}.tile"):
            return False
        place = _place(loop, bounds, self.outside)
        columns, around = bounds.stop, single_range(place)
        if not isinstance(columns, DimExpr) or tag_of(place) != self.outside or around is None or not _reads_lines(loop):
            return False
        serial = [single_range(op) for op in loop.walk() if op.name == "scf.for"]
        steps = [extent(r) for r in serial if r is not None]
        least: list[tuple[Dim, int]] = [
            (extent(around), self.rounds),
            *((self.versions - s, 0) for s in dict.fromkeys(steps)),
            (columns, _MANY_TILES * size),
            (size - mod(columns, size), size),
            (mod(columns, self.size[-1]), 1),
        ]
        unknown = [(n, m) for n, m in least if isinstance(n, DimExpr)]
        if len(steps) < len(serial) or any(name.startswith("%") for n, _ in unknown for name in symbols_of(n)):
            return False
        if not all(n >= m for n, m in least if isinstance(n, int)) or not two_versions(nest_of(loop), unknown):
            return False
        set_range(loop, RangeArg(0, size * floordiv(columns, size), 1))
        return True

    def _choose(self, bounds: RangeArg, place: Operation, loop: Operation) -> int:
        known = static_extent(bounds)
        if known is None:
            return self.size[-1]
        free = known < _FEW_TILES * self.size[-1] or self._has_rounds(place) or (tag_of(place) != self.outside and _reads_lines(loop))
        sizes = self.size if free else self.size[-1:]
        if self._has_few(place) and not (tag_of(place) != self.outside and _reads_lines(loop)) and not self._streams(place, loop):
            sizes = (*sorted(self.size, reverse=True), self.size[-1])
        size = next((s for s in sizes if known % s == 0), sizes[-1])
        return min(size, max(1, -(-known // 16)) * 16)

    def _has_rounds(self, place: Operation) -> bool:
        around = single_range(place) if tag_of(place) == self.outside else None
        return not self.rounds or (around is not None and (static_extent(around) or 0) >= self.rounds)

    def _has_few(self, place: Operation) -> bool:
        """Whether the loop ``outside`` is known to have few rounds; a loop that stands in none is one round of it."""
        if tag_of(place) != self.outside:
            outer = parent_loop(place)
            return self.few > 0 and (outer is None or tag_of(outer) != self.outside)
        around = single_range(place)
        known = static_extent(around) if around is not None else None
        return known is not None and known <= self.few

    def _streams(self, place: Operation, loop: Operation) -> bool:
        """Whether one row goes through a matrix that comes from memory."""
        around = single_range(place) if tag_of(place) == self.outside else None
        if around is not None and static_extent(around) != 1:
            return False
        read = [a.buffer.type for op in loop.walk() if op.name == "memref.load" for a in accesses(op)]
        sizes = [byte_count(t.dtype, t.shape) for t in read if isinstance(t, MemRefType)]
        return any(isinstance(n, int) and n > self.memory for n in sizes)

    def _limited(self, loop: Operation, size: int) -> int:
        outer = parent_loop(loop)
        around = 1
        while outer is not None:
            step = ranges(outer)[0].step
            around *= step if isinstance(step, int) else 1
            outer = parent_loop(outer)
        return max(1, min(size, self.area // around)) if self.area else size


def _reads_lines(loop: Operation) -> bool:
    """Whether some load inside goes along lines, each round of a loop inside along another one, that are not stored with the program."""
    at = variable(loop)
    inner = [variable(op) for op in loop.walk() if op is not loop and is_loop(op)]
    for op in loop.walk():
        for access in [a for a in accesses(op) if a.indices] if op.name == "memref.load" else ():
            *outer, last = access.indices
            if depends_on(last.expr, [at]) and any(depends_on(i.expr, inner) for i in outer) and stored_tensor(access.buffer) is None:
                return True
    return False


def _reads_across(loop: Operation) -> bool:
    """Whether some load inside finds its elements one line apart, with the lines along a loop inside."""
    at = variable(loop)
    for op in loop.walk():
        for access in [a for a in accesses(op) if a.indices] if op.name == "memref.load" else ():
            *outer, last = access.indices
            along = any(depends_on(last.expr, [variable(inner)]) for inner in loop.walk() if inner is not loop and is_loop(inner))
            if along and not depends_on(last.expr, [at]) and any(depends_on(i.expr, [at]) for i in outer):
                if stored_tensor(access.buffer) is None:
                    return True
    return False


def is_tile(loop: Operation, bounds: RangeArg, outer_tag: str) -> bool:
    """Whether a loop runs through one tile (or a part of one) of a loop with tag ``outer_tag`` around it."""
    starts = [bounds.start]
    outer = parent_loop(loop)
    while outer is not None:
        if any(depends_on(s, body(outer).arguments) for s in starts):
            if tag_of(outer) == outer_tag:
                return True
            starts += [r.start for r in ranges(outer)]
        outer = parent_loop(outer)
    return False


def _tile_end(start: Dim, size: int, bounds: RangeArg) -> Dim:
    """Where a tile ends; bounds that are a multiple of its size away from the start don't cut it."""
    cutting = [t for t in minimum_terms(bounds.stop) if exact_div(t - bounds.start, size) is None]
    return dim_min(start + size, *cutting)


def _place(loop: Operation, bounds: RangeArg, outside: str) -> Operation:
    """The loop that the tile loop goes around: the one with tag ``outside`` when it may, else ``loop``."""
    at = loop
    while outside and loop.name == "scf.parallel":
        around = parent_loop(at)
        if around is None or around.name != "scf.parallel" or depends_on(bounds.start + bounds.stop, body(around).arguments):
            break
        if not all(op is at or op.definition.is_terminator or (is_pure(op) and not op.definition.traps) for op in body(around)):
            break
        at = around
        if tag_of(at) == outside:
            return at
    return loop


def _enclose(tiles: Operation, place: Operation) -> None:
    """Moves a loop into the tile loop in front of it, which carries the same values and takes over the results' names."""
    graph = tiles.graph
    assert graph is not None
    for old, new in zip(place.results, tiles.results, strict=True):
        old.replace_all_uses_with(new)
    move_into(place, body(tiles))
    if place.results:
        set_initial_values(place, body(tiles).arguments[1:])
    for old, new in zip(place.results, tiles.results, strict=True):
        name, derived = old.name, old.auto_named
        graph.rename(old, f"{name}.t" if name != DROPPED else name)
        graph.rename(new, name)
        old.auto_named, new.auto_named = True, derived
    end_loop(tiles, list(place.results))
