"""Pass ``prefetch``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import Dim, ceildiv, dim_max, dim_min, floordiv, substitute
from ir.layout import LAYOUT, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from ir.types import MemRefType, VectorType, byte_count
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    Access,
    accesses,
    body,
    create_loop,
    depends_on,
    end_loop,
    extent,
    is_loop,
    loops_tagged,
    number_layout,
    parent,
    ranges,
    rounds,
    single_range,
    tag_of,
    value_symbol,
    variable,
)

LINE = 64
"""Bytes of a cache line."""

_SHARING = 2
"""Readers of a panel from which on they ask for the next one, each step for a part of it."""

_MANY = 3
"""Readers that can ask for all of it, so that nothing has to be looked for far ahead."""


@dataclass(frozen=True)
class Prefetch(Pass):
    """Asks for what later rounds of a loop read.

    Before::

        scf.parallel(%jt = 0 to 96 step 48, tag="n.tile") {
          scf.parallel(%it = 0 to 128 step 8, tag="m.tile") {
            %s = scf.for(%k = 0 to 64, %acc = %zero, tag="k") {
              %b = vector.load(%B.panels[%jt floordiv 48, %k, 0:+48]) : vector<f32[1, 1, 48]>
              ...

    After ``prefetch{loop=k, ahead=8, across=n.tile}``::

        scf.parallel(%jt = 0 to 96 step 48, tag="n.tile") {
          scf.parallel(%it = 0 to 128 step 8, tag="m.tile") {
            %s = scf.for(%k = 0 to 64, %acc = %zero, tag="k") {
              memref.prefetch(%B.panels[%jt floordiv 48, %k+8, 0])
              memref.prefetch(%B.panels[%jt floordiv 48, %k+8, 16])
              memref.prefetch(%B.panels[%jt floordiv 48, %k+8, 32])
              memref.prefetch(%B.panels[(%jt floordiv 48)+1, 0, 192*(%it floordiv 8)+3*%k], locality=2)
              %b = vector.load(%B.panels[%jt floordiv 48, %k, 0:+48]) : vector<f32[1, 1, 48]>
              ...

    Loads of vectors are prefetched that move by whole lines from round to round: the variable of the loop is in an index
    before the last one.  ``ahead`` rounds are enough for what a near cache holds.

    A panel is read by all tiles of rows (``m.tile``) one after the other, of which only the first one finds it far away.
    So while it is read, every step asks for its share of the next panel, the one of the next round of the loop with tag
    ``across``, which is then spread over the whole time.  One hint a step is too little for all of it with two tiles of rows,
    and with one there is nothing to spread: hints are further ahead then, up to ``far`` rounds, unless all panels together are so
    small (``near``) that a cache has kept them; when the number of tiles is known only when the program runs, the distance is
    computed from it.  Panels of more than ``memory`` bytes that are read once come from memory and go into the second cache (``locality=2``):
    the nearest one has no room for so many lines on their way.  A round takes as long as it has rows, so hints for one are less far ahead.

    Some processors bring what is read from one end to the other by themselves, and hints far ahead are in their way.  For up to ``stream``
    rows, for which panels can't come fast enough, hints are for the next round only then.

    A block of sums is stored to lines that nobody has asked for, beside what is added to it there (a residual), and the rows of the other
    factor are far away for the first panel that reads them (see ``block-rows``).  With ``results`` the loop has one over its rows in front
    that asks for these lines, and for the share of the next block of rows that falls to this panel::

        scf.for(%r = 0 to 8, tag="ask") {
          memref.prefetch(%C[%it+%r, %jt], write=true)
          ...
          memref.prefetch(%A[%it+%r+128, 16*(%jt floordiv 48)], locality=2)

    A hint changes no result, and may point behind the buffer.
    """

    loop: str = "k"
    """tag of the loops"""
    ahead: int = 8
    """rounds from a hint to the load that it is for"""
    across: str = ""
    """tag of the loops over panels; empty for no hints for the next panel"""
    far: int = 64
    """rounds from a hint to the load when few rounds read the same panel"""
    near: int = 512 * 1024
    """bytes of all panels up to which a near cache holds them anyway"""
    memory: int = 32 * 1024 * 1024
    """bytes of all panels from which on no cache holds them from one run to the next"""
    shared: int = 1
    """readers of a panel up to which one from memory is asked for as if it were read once, and no other before its turn"""
    stream: int = 0
    """rows up to which the processor itself has what is read next on its way; 0 for one that does not"""
    results: int = 0
    """bytes from which on a result, and what is joined to it, is asked for in front of the loop that adds; 0 for never"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ahead < 1 or self.far < self.ahead:
            raise ValueError("a hint is for a later round, and one for what is far away not for an earlier one")
        if self.shared < 1 or min(self.stream, self.results) < 0:
            raise ValueError("a panel has a reader, and rows and bytes are not negative")

    def run(self, module: Module, context: PassContext) -> bool:
        near, next_ = 0, 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                if any(op.name == "memref.prefetch" for op in loop.regions[0].block):
                    continue
                near += self._results(loop) if self.results else 0
                for load in [o for o in loop.regions[0].block if o.name == "vector.load"]:
                    panel = Panel.of(load, loop, self.across) if self.across else None
                    near += self._ahead(load, loop, panel)
                    next_ += panel is not None and not self._is_from_memory(panel.access, loop) and _next_panel(load, panel)
        context.count("hints made", near + next_)
        context.count("for the next panel", next_)
        return near + next_ > 0

    def _ahead(self, load: Operation, loop: Operation, panel: Panel | None) -> int:
        """Hints for the lines that a later round reads."""
        (access,), at = accesses(load), variable(loop)
        *outer, last = access.indices
        if last.size is None or depends_on(last.expr, [at]) or not any(depends_on(i.expr, [at]) for i in outer):
            return 0
        if any(i.size is not None and i.size > 1 for i in outer):
            return 0
        distance = self._distance(panel.readers) if panel is not None and not self._is_near(panel) else self.ahead
        attributes: dict[str, Any] = {}
        if self._is_from_memory(access, loop):
            distance, attributes = min(self.far, 2 * self.ahead * _rows(loop)), {"locality": 2}
        if _rows(loop) <= self.stream:
            distance = 1
        step = _line(access)
        later = [IndexExpr(i.expr + distance if depends_on(i.expr, [at]) else i.expr) for i in outer]
        for start in range(0, last.size, step):
            _hint(load, Access(access.buffer, (*later, IndexExpr(last.expr + start))), **attributes)
        return -(-last.size // step)

    def _results(self, loop: Operation) -> int:
        """Hints for the lines where the sums of a loop will be stored, row by row, and for those that are added to them there."""
        made = 0
        for store in [u for r in loop.results for u in r.users if u.name == "vector.store" and u.block is loop.block and u.operands[0] is r]:
            (access,) = accesses(store)
            if len(access.indices) < 2:
                continue
            later = [v for op in _from(loop) for v in op.results]
            asking = _asking(loop, access.indices[-2].size or 1)
            row = value_symbol(variable(asking))
            *outer, rows, last = access.indices
            made += self._row(asking, Access(access.buffer, (*outer, IndexExpr(rows.expr + row), last)), later, write=True)
            for rest, read in _behind(store, access.buffer):
                made += self._row(asking, _at(read, rest, row), later)
            for load in [o for o in body(loop) if o.name == "vector.load"]:
                following = _next_block(load, loop, row)
                made += self._row(asking, following, later, locality=2) if following is not None else 0
            if len(body(asking)) == 1:
                asking.erase()
        return made

    def _row(self, asking: Operation, access: Access, later: Sequence[Value], **attributes: Any) -> int:
        """Hints for the lines of a run, unless all of the buffer is near, or where it is is only known ``later``."""
        size, front, last = _size(access), body(asking).first, access.indices[-1]
        if front is None or (size is not None and size < self.results):
            return 0
        if access.buffer in later or any(depends_on(i.expr, later) for i in access.indices):
            return 0
        outer, line = [IndexExpr(i.expr) for i in access.indices[:-1]], _line(access)
        starts = range(0, last.size or 1, line)
        for start in starts:
            _hint(front, Access(access.buffer, (*outer, IndexExpr(last.expr + start))), **attributes)
        return len(starts)

    def _is_near(self, panel: Panel) -> bool:
        size = _size(panel.access)
        return size is not None and size <= self.near

    def _is_from_memory(self, access: Access, loop: Operation) -> bool:
        """Whether an access to panels, in a loop over their lines, finds each of them in memory, as there are many and few readers for each."""
        type_, size = access.buffer.type, _size(access)
        assert isinstance(type_, MemRefType)
        panels = len(type_.shape) >= 3 and access.indices[-1].expr == 0 and access.indices[-1].size == type_.shape[-1]
        return panels and size is not None and size > self.memory and _times_read(access, loop) <= self.shared

    def _distance(self, readers: Dim) -> Dim:
        """``ahead`` for three readers of a panel and more, ``far`` for one and none."""
        slope = -(-(self.far - self.ahead) // (_MANY - 1))
        return dim_max(self.ahead, dim_min(self.far, self.far + slope - slope * readers))


def _line(access: Access) -> int:
    """Elements of a line."""
    type_ = access.buffer.type
    assert isinstance(type_, MemRefType)
    return LINE // type_.dtype.itemsize


def _asking(loop: Operation, rows: int) -> Operation:
    """An empty loop over rows in front of another loop."""
    assert loop.block is not None
    asking = create_loop(Builder(loop.block, loop, loc=loop.loc), "scf.for", RangeArg(0, rows, 1), name="r", tag="ask")
    end_loop(asking)
    return asking


def _next_block(load: Operation, loop: Operation, row: Dim) -> Access | None:
    """The part of a row of the next block of rows (see ``block-rows``) that falls to one panel, when a load reads rows step by step.

    The rows of a block are read for every panel, but found far away only for the first one.
    """
    tiles = parent(loop)
    panels = parent(tiles) if tiles is not None else None
    blocks = parent(panels) if panels is not None else None
    if blocks is None or panels is None or tiles is None or tag_of(blocks) != "m.block" or not (is_loop(tiles) and is_loop(panels)):
        return None
    (access,), steps = accesses(load), single_range(loop)
    step, count = single_range(blocks), single_range(panels)
    if len(access.indices) < 2 or step is None or count is None or steps is None or single_range(tiles) is None or not isinstance(step.step, int):
        return None
    *outer, rows, last = access.indices
    number, length = rounds(count), extent(steps)
    if rows.expr != value_symbol(variable(tiles)) or last.expr != value_symbol(variable(loop)) or not number or not isinstance(length, int):
        return None
    line = _line(access)
    share = line * -(-length // (line * number))
    assert isinstance(count.step, int)
    place = steps.start + share * floordiv(value_symbol(variable(panels)) - count.start, count.step)
    return Access(access.buffer, (*outer, IndexExpr(rows.expr + row + step.step), IndexExpr(place, share)))


def _behind(store: Operation, result: Value) -> Iterator[tuple[Operation, Access]]:
    """Runs of other buffers that loops over rows behind a store read, with these loops: what is joined to sums."""
    for op in _from(store):
        if is_loop(op) and single_range(op) is not None:
            for load in [o for o in body(op) if o.name == "vector.load"]:
                (access,) = accesses(load)
                inside = [v for o in body(op) for v in o.results]
                moves = any(depends_on(i.expr, [variable(op)]) for i in access.indices[:-1])
                if access.buffer is not result and moves and not any(depends_on(i.expr, inside) for i in access.indices):
                    yield op, access


def _from(op: Operation) -> Iterator[Operation]:
    """An operation and those behind it in its block."""
    following: Operation | None = op
    while following is not None:
        yield following
        following = following.next


def _at(access: Access, loop: Operation, row: Dim) -> Access:
    """The run of a row of a loop, counted from its first."""
    bounds = single_range(loop)
    assert bounds is not None
    place = {f"%{variable(loop).name}": bounds.start + row}
    return Access(access.buffer, tuple(IndexExpr(substitute(i.expr, place), i.size) for i in access.indices))


def _rows(loop: Operation) -> int:
    """The rows of a block of sums that a loop carries."""
    types = [r.type for r in loop.results]
    return max((math.prod(t.shape[:-1]) for t in types if isinstance(t, VectorType)), default=1)


def _size(access: Access) -> int | None:
    """The bytes of a buffer of known size."""
    type_ = access.buffer.type
    assert isinstance(type_, MemRefType)
    size = byte_count(type_.dtype, type_.shape)
    return size if isinstance(size, int) else None


def _times_read(access: Access, loop: Operation) -> float:
    """How often the loops around an access meet the same elements; infinite where that is known only when the program runs."""
    places: list[Dim] = [i.expr for i in access.indices]
    outer: Operation | None = loop
    times = 1.0
    while outer is not None:
        if is_loop(outer):
            if any(depends_on(place, body(outer).arguments[: len(ranges(outer))]) for place in places):
                places += [d for r in ranges(outer) for d in (r.start, r.stop)]
            else:
                counts = [rounds(r) for r in ranges(outer)]
                times *= math.prod(math.inf if n is None else n for n in counts)
        outer = parent(outer)
    return times


@dataclass(frozen=True)
class Panel:
    """A load of one line of a panel, in a loop over its lines, in one over what reads it, in one over panels.

    Of the ``lines`` of a panel, which may be a block of all, ``first`` is the first.
    ``readers`` is how many full tiles of rows read a panel, ``reader`` the number of the one that the load stands in, None
    when it is not a full one; ``following`` are the indices of the next panel, without those of the element.
    """

    access: Access
    following: tuple[IndexExpr, ...]
    width: int
    first: Dim
    lines: Dim
    line: Dim
    readers: Dim
    reader: Dim | None

    @staticmethod
    def of(load: Operation, loop: Operation, across: str) -> Panel | None:
        """What a load is a part of; None where it doesn't read whole panels in their order."""
        (access,) = accesses(load)
        rows = parent(loop)
        tiles = parent(rows) if rows is not None else None
        bounds = single_range(loop)
        type_ = access.buffer.type
        assert isinstance(type_, MemRefType)
        if rows is None or tiles is None or bounds is None or tag_of(tiles) != across or rows.name != "scf.parallel" or len(type_.shape) < 3:
            return None
        *outer, panel, line, last = access.indices
        width, tile = type_.shape[-1], single_range(tiles)
        inside = [variable(tiles), variable(rows), variable(loop)]
        if tile is None or not isinstance(width, int) or last.expr != 0 or last.size != width or not isinstance(tile.step, int):
            return None
        if line.expr != value_symbol(variable(loop)) or bounds.step != 1 or any(depends_on(i.expr, inside) for i in outer):
            return None
        start = value_symbol(variable(tiles))
        following = substitute(panel.expr, {f"%{variable(tiles).name}": start + tile.step})
        if following != panel.expr + 1:
            return None
        first = next(op for op in body(tiles) if op.name == "scf.parallel" and tag_of(op) == tag_of(rows))
        readers, number = _rounds(first), _rounds(rows, value_symbol(variable(rows)))
        if readers is None or number is None:
            return None
        indices = (*(IndexExpr(i.expr) for i in outer), IndexExpr(following))
        return Panel(access, indices, width, bounds.start, extent(bounds), line.expr, readers, number if rows is first else None)


def _rounds(loop: Operation, until: Dim | None = None) -> Dim | None:
    """The number of rounds of a loop, or of those before the one in which its variable is ``until``."""
    bounds = single_range(loop)
    if bounds is None or not isinstance(bounds.step, int):
        return None
    return floordiv((bounds.stop if until is None else until) - bounds.start, bounds.step)


def _next_panel(load: Operation, panel: Panel) -> bool:
    """A hint for the share of the next panel that falls to one step of one reader."""
    if panel.reader is None or (isinstance(panel.readers, int) and panel.readers < _SHARING):
        return False
    share = ceildiv(panel.width, dim_max(1, panel.readers))
    place = (panel.reader * panel.lines + panel.line - panel.first) * share
    _hint(load, Access(panel.access.buffer, (*panel.following, IndexExpr(panel.first), IndexExpr(place))), locality=2)
    return True


def _hint(load: Operation, access: Access, **attributes: Any) -> None:
    graph, block = load.graph, load.block
    assert graph is not None and block is not None
    operands, layout = number_layout([access], graph)
    attributes[LAYOUT] = layout
    Builder(block, load, loc=load.loc).create(REGISTRY["memref.prefetch"], operands, attributes, result_types=())
