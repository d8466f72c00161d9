"""Pass ``peel``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ir.core import DROPPED, Block, Graph, Module, Operation
from ir.dims import Dim, DimExpr, DimFunction, dim_max, dim_min, substitute
from ir.layout import RangeArg
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.loops._dependence import Dependence
from passes.loops._loops import (
    Form,
    body,
    change_form,
    clone_before,
    extent,
    has_layout,
    initial_values,
    is_loop,
    is_nonnegative,
    loops_tagged,
    minimum_terms,
    parent,
    plain_uses,
    ranges,
    read_layout,
    remainder,
    replace_atom,
    set_initial_values,
    set_range,
    single_range,
    upper_bound,
    value_symbol,
    variable,
    write_layout,
)
from passes.loops._memory import alias, all_accesses, is_movable


@dataclass(frozen=True)
class Peel(Pass):
    """Splits a loop over tiles into whole tiles and a remainder of smaller ones.

    Before::

        scf.parallel(%jt = 0 to N step 48, tag="n.tile") {
          scf.parallel(%j = %jt to min(%jt+48, N), tag="n") {
            memref.store(%x, %C[%j])
            yield
          }
          yield
        }

    After ``peel{loop=n.tile, sizes=[16]}``::

        scf.parallel(%jt = 0 to N-(N mod 48) step 48, tag="n.tile") {
          scf.parallel(%j = %jt to %jt+48, tag="n") {
            memref.store(%x, %C[%j])
            yield
          }
          yield
        }
        scf.parallel(%jt.1 = N-(N mod 48) to N-(N mod 16) step 16, tag="n.tile") {
          scf.parallel(%j.1 = %jt.1 to %jt.1+16, tag="n") {
            memref.store(%x, %C[%j.1])
            yield
          }
          yield
        }
        scf.parallel(%jt.2 = N-(N mod 16) to N step 16, tag="n.tile") {
          scf.parallel(%j.2 = %jt.2 to min(%jt.2+16, N), tag="n") {
            memref.store(%x, %C[%j.2])
            yield
          }
          yield
        }

    The loop has tag ``loop``, a known step, and loops inside that run from its variable to ``min(%jt+step, N)``.  The
    ``sizes`` below the step take what is left over, each from where the one before it ended; the rest, less than the
    last of them, keeps its ``min`` (there is none when that is 1).  Loops that known extents show to be empty are left
    out.  In the pieces of the remainder the variable only stands for where the inner loop starts; everywhere else the
    start of the last tile takes its place, so what was packed by whole tiles is read right.  With ``exact``, what is left over is one tile
    of its own size where that is known: five rows are then one loop over what they read, where tiles of 4 and 1 would be two.

    Whole tiles and one clamped rest run in the same order as before.  Smaller pieces are made only where the loops inside
    are all that has an effect, and one of these holds: there is one, inside parallel loops at most; or one, directly
    inside, that goes on from what the outer loop carries; or rounds depend on each other only where the inner variable has
    the same value (the dependence test).  The statistics count other loops.
    """

    loop: str = "n.tile"
    """tag of the loops over tiles"""
    sizes: tuple[int, ...] = (32, 16)
    """smaller tiles for what is left over"""
    exact: bool = False
    """one tile for what is left over, where its size is known"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if any(s < 1 for s in self.sizes):
            raise ValueError("a tile has one round or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                tiles = Tiles.of(graph, loop)
                if tiles is None:
                    continue
                sizes = self.sizes if tiles.can_split() else ()
                if sizes != self.sizes:
                    context.count("loops whose remainder stays whole")
                if sizes and self.exact and (left := tiles.left()):
                    sizes = (left,)
                changed |= tiles.peel(sorted({s for s in sizes if s < tiles.step}, reverse=True))
                context.count("loops peeled")
        return changed


@dataclass(frozen=True)
class Piece:
    """A part of the range of a loop over tiles; ``whole`` says that no tile in it is cut off."""

    start: Dim
    stop: Dim
    step: int
    whole: bool


@dataclass
class Tiles:
    """A loop over tiles: its range, and the ends ``min(%jt+step, N)`` of its tiles as they are written."""

    graph: Graph
    loop: Operation
    bounds: RangeArg
    step: int
    ends: list[Dim]
    variable_name: str

    @staticmethod
    def of(graph: Graph, loop: Operation) -> Tiles | None:
        """What is known about a loop; None when it isn't one over tiles that may be cut off."""
        bounds = single_range(loop)
        if bounds is None or not isinstance(bounds.step, int) or bounds.step < 2:
            return None
        start = value_symbol(variable(loop))
        limits = (start + bounds.step, *minimum_terms(bounds.stop))
        ends: dict[Dim, None] = {}
        for op in reversed(variable(loop).users):
            for inner in ranges(op) if is_loop(op) else ():
                terms = minimum_terms(inner.stop)
                if inner.start == start and len(terms) > 1 and limits[0] in terms and all(t in limits for t in terms):
                    ends[inner.stop] = None
        return Tiles(graph, loop, bounds, bounds.step, list(ends), variable(loop).name) if ends else None

    def inner(self) -> list[Operation]:
        """The loops that run through a tile."""
        start = value_symbol(variable(self.loop))
        return [op for op in reversed(variable(self.loop).users) if is_loop(op) and any(self._is_tile(r, start) for r in ranges(op))]

    def _is_tile(self, bounds: RangeArg, start: Dim) -> bool:
        return bounds.start == start and bounds.step == 1 and bounds.stop in self.ends

    def can_split(self) -> bool:
        """Whether a tile may be run in pieces, one after the other."""
        inner = self.inner()
        if any(single_range(i) is None for i in inner) or plain_uses(variable(self.loop)) or not self._only_effects(body(self.loop), inner):
            return False
        if initial_values(self.loop) or any(i.results for i in inner):
            return self._carries_on(inner)
        return (len(inner) == 1 and self._stands_in_parallel_loops(inner[0])) or self._is_independent(inner)

    def _carries_on(self, inner: Sequence[Operation]) -> bool:
        """Whether the one loop inside goes on from what the outer one carries, and nothing else does."""
        block = body(self.loop)
        return (
            len(inner) == 1
            and block.terminator is not None
            and initial_values(inner[0]) == block.arguments[1:]
            and block.terminator.operands == list(inner[0].results)
        )

    def _stands_in_parallel_loops(self, inner: Operation) -> bool:
        around = parent(inner)
        while around is not None and around is not self.loop:
            if around.name != "scf.parallel":
                return False
            around = parent(around)
        return True

    def _is_independent(self, inner: Sequence[Operation]) -> bool:
        """Whether rounds of the loops inside depend on each other only where the variable has the same value."""
        if any(is_loop(op) and any(o in inner for o in op.walk()) for i in inner for op in body(i)):
            return False
        reached = [(variable(i), all_accesses(body(i))) for i in inner]
        for (source, before), (sink, after) in itertools.product(reached, reached):
            for a, b in itertools.product(before, after):
                if (a.writes or b.writes) and any(d != ("=",) for d in Dependence(a, b, [(source, sink)], body(self.loop)).directions()):
                    return False
        return True

    def _only_effects(self, block: Block, inner: Sequence[Operation]) -> bool:
        """Whether all else in a block may run again for every piece: it reads what doesn't change, at most."""
        written = [a for i in inner for a in all_accesses([i]) if a.writes]
        for op in block:
            if op in inner or op.definition.is_terminator or is_movable(op):
                continue
            if op.regions and any(o in inner for o in op.walk()):
                if not all(self._only_effects(region.block, inner) for region in op.regions):
                    return False
            elif op.name in ("memref.load", "vector.load"):
                if any(alias(a.memory, w.memory) != "never" for a in all_accesses([op]) for w in written):
                    return False
            else:
                return False
        return True

    # -- pieces ----------------------------------------------------------------------------------------------------

    def left(self) -> int:
        """How much whole tiles leave over; 0 where that isn't known."""
        known = extent(self.bounds)
        return known % self.step if isinstance(known, int) and known > 0 else 0

    def pieces(self, sizes: Sequence[int]) -> list[Piece]:
        """Whole tiles, tiles of smaller sizes, and what is left, without those that are known to be empty."""
        start, stop = self.bounds.start, self.bounds.stop
        if not is_nonnegative(stop - start, self.graph):
            stop = dim_max(start, stop)
        found: list[Piece] = []
        left, at = stop - start, start
        for size in (self.step, *sizes):
            bound = upper_bound(left)
            if bound is None or bound >= size:
                left = remainder(left, size)
                found.append(Piece(at, stop - left, size, True))
                at = stop - left
        found.append(Piece(at, self.bounds.stop if at == start else stop, sizes[-1] if sizes else self.step, False))
        sizes_of = [(p, p.stop - p.start) for p in found]
        return [p for p, size in sizes_of if not (isinstance(size, int) and size <= 0)]

    def peel(self, sizes: Sequence[int]) -> bool:
        """Splits the loop; returns whether anything changed."""
        pieces = self.pieces(sizes)
        if pieces == [Piece(self.bounds.start, self.bounds.stop, self.step, False)]:
            return False
        loop = self.loop
        block, anchor = loop.block, loop.next
        assert block is not None
        last = pieces[0].stop if pieces and pieces[0].step == self.step else self.bounds.start
        copies = [loop, *(clone_before(loop, anchor, block) for _ in pieces[1:])]
        for piece, copy in zip(pieces, copies, strict=False):
            self._fit(copy, piece, last)
        if pieces:
            _chain(copies)
        else:
            for result, value in zip(loop.results, initial_values(loop), strict=True):
                result.replace_all_uses_with(value)
            loop.erase()
        return True

    def _fit(self, copy: Operation, piece: Piece, last: Dim) -> None:
        """Makes a copy of the loop run through one piece; ``last`` is where the tile begins that is cut off."""
        here = value_symbol(variable(copy))
        renaming = {f"%{self.variable_name}": here}
        ends = [substitute(e, renaming) for e in self.ends]
        set_range(copy, RangeArg(piece.start, piece.stop, piece.step))
        if piece.step == self.step and not piece.whole:
            return
        bindings = {f"%{variable(copy).name}": last}

        def whole(dim: Dim) -> Dim:
            for end in ends:
                dim = replace_atom(dim, _function(end), here + self.step)
            return dim

        def part(form: Form) -> Form:
            if isinstance(form, RangeArg) and form.start == here and form.stop in ends:
                limits = [t for t in minimum_terms(form.stop) if t != here + self.step]
                return RangeArg(here, dim_min(here + piece.step, *(() if piece.whole else limits)), form.step)
            return change_form(form, lambda dim: substitute(dim, bindings))

        for op in [o for o in variable(copy).users if has_layout(o)]:
            forms = read_layout(op)
            new = [change_form(f, whole) if piece.step == self.step else part(f) for f in forms]
            if new != forms:
                write_layout(op, new)


def _function(dim: Dim) -> DimFunction:
    """The function that an expression is."""
    assert isinstance(dim, DimExpr)
    atom = dim.terms[0][0][0]
    assert isinstance(atom, DimFunction)
    return atom


def _chain(loops: Sequence[Operation]) -> None:
    """Lets each loop go on from what the one before it carried; what is used outside is the last one's."""
    graph = loops[0].graph
    assert graph is not None
    names = [(r.name, r.auto_named) for r in loops[0].results]
    for old, new in zip(loops[0].results, loops[-1].results, strict=True):
        if old is not new:
            old.replace_all_uses_with(new)
    for before, after in zip(loops, loops[1:], strict=False):
        if before.results:
            set_initial_values(after, before.results)
    for loop in loops[:-1]:
        for result, (name, _) in zip(loop.results, names, strict=True):
            graph.rename(result, f"{name}.t" if name != DROPPED else name)
            result.auto_named = True
    for result, (name, derived) in zip(loops[-1].results, names, strict=True):
        graph.rename(result, name)
        result.auto_named = derived
