"""Pass ``prefetch-rows``."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Graph, Module, Operation, Value
from ir.dims import Dim, dim_max, dim_min, product, substitute
from ir.layout import LAYOUT, IndexExpr
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    Access,
    accesses,
    body,
    depends_on,
    extent,
    is_loop,
    number_layout,
    parent,
    single_range,
    tag_of,
    upper_bound,
    value_symbol,
    variable,
)
from passes.loops._memory import Memory, memory_of
from passes.loops._rows import ALONG, LINE, moves, row_nests, type_of

FEW = 1024
"""Bytes of a part of a row behind which another row follows before a hint for what is behind the part could be of use."""

_ACCESSES = ("vector.load", "vector.store")
_SHORT = ("math.fma", "math.absf", "math.absi", "math.copysign", "math.sqrt", "math.isnan", "math.floor", "math.ceil", "math.trunc", "math.roundeven")
"""Operations of ``math`` that are an instruction or two."""


@dataclass(frozen=True)
class PrefetchRows(Pass):
    """Asks for the rows that a nest reads next, and for the places where it will write, while it computes.

    Before::

        scf.parallel(%i = 0 to 1024, tag="row") {
          scf.for(%j = 0 to 4096 step 16, tag="reduce") {
            %a = vector.load(%x[%i, %j:+16]) : vector<f32[1, 16]>
            %e = math.exp(%a) : vector<f32[1, 16]>
            vector.store(%e, %o[%i, %j:+16])
            ...

    After ``prefetch-rows``::

        scf.parallel(%i = 0 to 1024, tag="row") {
          scf.for(%j = 0 to 4096 step 16, tag="reduce") {
            memref.prefetch(%x[%i+1, %j])
            memref.prefetch(%o[%i, %j+256], write=true)
            %a = vector.load(%x[%i, %j:+16]) : vector<f32[1, 16]>
            ...

    The processor's own prefetcher stops at every page, starts again only when it has seen some lines, and asks for little while
    a long computation fills the window of operations.  A hint for every line keeps memory busy all the time: the first loop along
    a row asks for what lies ``ahead`` bytes further, in what is read and in what is written, since lines that will be overwritten
    have to be fetched, too.  Where that loop has little to compute and a later one has functions of ``math``, as the exponentials
    of a softmax, memory would idle in that: then it asks for the next row, unless that is ``longest`` bytes or more and would
    be far away again when its turn comes (where the length of rows is open, it asks for the same row then).

    Loops that go through a short part of each row, as those that fill a panel do, get no hints: what lies ``ahead`` is not read next.
    Nor does memory that is made in a loop, which is near.

    A nest whose arrays together are known to have ``small`` bytes or less gets none: near caches hold them.  A hint changes no
    result, and may point behind the buffer.
    """

    ahead: int = 1024
    """bytes from a hint to what it is for, in the same row"""
    longest: int = 131072
    """bytes of the rows of one round from which on the next are not asked for"""
    small: int = 262144
    """bytes of all arrays of a nest up to which it gets no hints"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ahead < LINE or self.longest < 0 or self.small < 0:
            raise ValueError("a hint is for a later line, and sizes are not negative")

    def run(self, module: Module, context: PassContext) -> bool:
        made = 0
        for graph in walk_graphs(module):
            for nest in row_nests(graph):
                made += self._hint_nest(nest, graph)
        context.count("hints made", made)
        return made > 0

    def _hint_nest(self, nest: Operation, graph: Graph) -> int:
        """Hints for one loop over rows, or over all of the elements."""
        if single_range(nest) is None or any(op.name == "memref.prefetch" for op in nest.walk()):
            return 0
        row = nest if tag_of(nest) == "row" else None
        streams = _streams(nest, row, self.ahead)
        if not streams or _known_bytes(s.sites[0].access for s in streams) <= self.small:
            return 0
        front = {loop: body(loop).first for stream in streams for loop in stream.loops}
        return sum(self._hint_stream(stream, row, front, graph) for stream in streams)

    def _hint_stream(self, stream: Stream, row: Operation | None, front: dict[Operation, Operation | None], graph: Graph) -> int:
        """Hints in front of one of the loops along a row, for all that it touches of one memory."""
        first = stream.sites[0]
        busy = next((loop for loop in stream.loops if _has_functions(loop)), first.loop)
        whole = None if first.writes or row is None or busy is first.loop else self._row_step(first.access, row)
        loop = first.loop if whole is None else busy
        sites = [s for s in stream.sites if s.loop is loop]
        written = any(s.writes for s in sites)
        made = 0
        for access in dict.fromkeys(s.access for s in sites):
            *outer, last = access.indices
            line = LINE // type_of(access).dtype.itemsize
            if whole is not None and row is not None:
                further = {f"%{variable(row).name}": value_symbol(variable(row)) + whole}
                outer = [IndexExpr(substitute(i.expr, further)) for i in outer]
                start = last.expr
            else:
                outer = [IndexExpr(i.expr) for i in outer]
                start = last.expr + self.ahead // type_of(access).dtype.itemsize
            for at in range(0, last.size or 1, line):
                _hint(front[loop], Access(access.buffer, (*outer, IndexExpr(start + at))), written, graph)
                made += 1
        return made

    def _row_step(self, access: Access, row: Operation) -> Dim | None:
        """How many rows further the next round of the loop over rows is; None where rows are too long, 0 if they turn out to be."""
        bounds, length = single_range(row), type_of(access).shape[-1]
        assert bounds is not None
        if not isinstance(bounds.step, int):
            return None
        most = -(-self.longest // (bounds.step * type_of(access).dtype.itemsize))  # a row has less than so many elements
        if isinstance(length, int):
            return bounds.step if length < most else None
        return dim_min(1, dim_max(0, most - length)) * bounds.step


@dataclass(frozen=True)
class Site:
    """A place where a loop along a row touches an element, or a run of them."""

    loop: Operation
    access: Access
    writes: bool


@dataclass(frozen=True)
class Stream:
    """What a nest touches of one memory, in order."""

    sites: list[Site]

    @property
    def loops(self) -> list[Operation]:
        """The loops along a row that touch it."""
        return list(dict.fromkeys(s.loop for s in self.sites))


def _streams(nest: Operation, row: Operation | None, ahead: int) -> list[Stream]:
    """What moves on with the row, or with the loop if there are no rows, and is touched along the row, for more than a short part."""
    found: dict[Memory, list[Site]] = {}
    computed = [v for op in nest.walk() if op is not nest for v in op.results]  # a hint in front has none of these
    for loop in [nest] if row is None else [op for op in body(nest) if is_loop(op) and tag_of(op) in ALONG]:
        for op in body(loop):
            if op.name in _ACCESSES and moves(accesses(op)[0], loop, row) and not _depends(accesses(op)[0], computed):
                (access,) = accesses(op)
                found.setdefault(memory_of(access.buffer), []).append(Site(loop, access, op.name == "vector.store"))
    parts = {memory for memory, sites in found.items() if all(_is_part(s, ahead) for s in sites)}
    return [Stream(sites) for memory, sites in found.items() if memory not in parts and not _is_made_in_loop(memory)]


def _is_part(site: Site, ahead: int) -> bool:
    """Whether a loop goes through less than ``ahead`` bytes, or few (``FEW``), of rows that are known to be no shorter, or not known."""
    bounds = single_range(site.loop)
    most = upper_bound(extent(bounds)) if bounds is not None else None
    type_ = type_of(site.access)
    length = type_.shape[-1]
    return most is not None and most * type_.dtype.itemsize < max(ahead, FEW) and not (isinstance(length, int) and length <= most)


def _is_made_in_loop(memory: Memory) -> bool:
    made = memory.base.defining_op
    return memory.kind == "alloc" and made is not None and parent(made) is not None


def _depends(access: Access, values: Collection[Value]) -> bool:
    """Whether a place goes by one of some values."""
    return any(depends_on(i.expr, values) for i in access.indices)


def _known_bytes(found: Iterable[Access]) -> float:
    """How large all arrays are; infinite when the size of one is known only when the program runs."""
    sizes = [product([*type_of(a).shape, type_of(a).dtype.itemsize]) for a in found]
    return sum(n if isinstance(n, int) else math.inf for n in sizes)


def _has_functions(loop: Operation) -> bool:
    """Whether a loop computes what is many instructions for an element."""
    return any(op.definition.dialect == "math" and op.name not in _SHORT for op in body(loop))


def _hint(before: Operation | None, access: Access, write: bool, graph: Graph) -> None:
    assert before is not None and before.block is not None
    operands, layout = number_layout([access], graph)
    attributes: dict[str, Any] = {LAYOUT: layout, **({"write": True} if write else {})}
    Builder(before.block, before, loc=before.loc).create(REGISTRY["memref.prefetch"], operands, attributes, result_types=())
