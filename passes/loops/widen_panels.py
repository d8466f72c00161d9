"""Pass ``widen-panels``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import Dim, substitute, symbol
from ir.layout import LAYOUT, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure, walk_graphs
from ir.types import MemRefType, VectorType
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    Access,
    accesses,
    body,
    clone_before,
    depends_on,
    extent,
    is_loop,
    loops_tagged,
    number_layout,
    set_range,
    single_range,
    tag_of,
    value_symbol,
    variable,
)
from passes.loops._versions import is_for_few, two_versions
from passes.loops.pack import is_written
from passes.loops.prefetch import LINE


@dataclass(frozen=True)
class WidenPanels(Pass):
    """Keeps what the first tile of rows has widened of a narrow factor (f16, bf16) for the tiles behind it.

    Before::

        scf.parallel(%jt = 0 to 96 step 48, tag="n.tile") {
          scf.parallel(%it = 0 to 64 step 8, tag="m.tile") {
            %s = scf.for(%k = 0 to 576, %acc = %zero, tag="k") {
              %a = vector.load(%A[%it:+8, %k]) : vector<f32[8, 1]>
              %b = vector.load(%B.panels[%jt floordiv 48, %k, 0:+48]) : vector<bf16[1, 1, 48]>
              %b.row = vector.reshape(%b) : vector<bf16[1, 48]>
              %b.wide = arith.extf(%b.row) : vector<f32[1, 48]>
              %t = math.fma(%a, %b.wide, %acc) : vector<f32[8, 48]>
              ...

    After ``widen-panels``::

        scf.parallel(%jt = 0 to 96 step 48, tag="n.tile") {
          %B.panels.wide = memref.alloc() : memref<f32[576, 48]>
          scf.parallel(%it.1 = 0 to 8 step 8, tag="m.tile") {
            %s.1 = scf.for(%k.1 = 0 to 576, %acc.1 = %zero, tag="k") {
              %a.1 = vector.load(%A[%it.1:+8, %k.1]) : vector<f32[8, 1]>
              %b.1 = vector.load(%B.panels[%jt floordiv 48, %k.1, 0:+48]) : vector<bf16[1, 1, 48]>
              %b.row.1 = vector.reshape(%b.1) : vector<bf16[1, 48]>
              %b.wide.1 = arith.extf(%b.row.1) : vector<f32[1, 48]>
              vector.store(%b.wide.1, %B.panels.wide[%k.1, 0:+48])
              ...
          scf.parallel(%it = 8 to 64 step 8, tag="m.tile") {
            %s = scf.for(%k = 0 to 576, %acc = %zero, tag="k") {
              %a = vector.load(%A[%it:+8, %k]) : vector<f32[8, 1]>
              %b.wide = vector.load(%B.panels.wide[%k, 0:+48]) : vector<f32[1, 48]>
              %t = math.fma(%a, %b.wide, %acc) : vector<f32[8, 48]>
              ...

    Widening is exact, so numbers are the same in both forms; it takes the units that multiply.  What is widened stays in a
    near cache: at most ``bytes`` for each round of the loop with tag ``loop``.  The factor stays narrow in memory, and less than two
    full tiles of rows read it as before.  Where the number of tiles is known only when the program runs, there are two
    versions of the loop.

    The loop with tag ``loop`` must hold parallel loops and pure operations only; tiles of rows are those with tag ``rows``.
    """

    loop: str = "n.tile"
    """tag of the loops over panels"""
    rows: str = "m.tile"
    """tag of the loops over tiles of rows"""
    steps: str = "k"
    """tag of the loops in them that read a panel"""
    bytes: int = 512 * 1024
    """what is kept at most of the panels of one round"""
    ahead: int = 8
    """steps from a hint to the load of a line that is kept, where there were hints for narrow ones (see ``prefetch``)"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bytes < 1 or self.ahead < 1:
            raise ValueError("a panel takes a byte at least, and a hint is for a later step")

    def run(self, module: Module, context: PassContext) -> bool:
        kept = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                kept += self._keep(loop)
        context.count("panels widened once", kept)
        return kept > 0

    def _keep(self, panels: Operation) -> int:
        loops = [op for op in body(panels) if is_loop(op)]
        tiles = [op for op in loops if tag_of(op) == self.rows]
        if panels.name != "scf.parallel" or any(op.name != "scf.parallel" for op in loops) or not tiles:
            return 0
        if not all(op in loops or is_pure(op) or op.definition.is_terminator or op.name == "memref.alloc" for op in body(panels)):
            return 0
        first, *others = tiles
        bounds = single_range(first)
        found = self._chosen(panels, first)
        if bounds is None or not isinstance(bounds.step, int) or not found or _is_kept(first, self.steps):
            return 0
        length = extent(bounds)
        if isinstance(length, int) and length < 2 * bounds.step:
            return 0
        if not isinstance(length, int) and (is_for_few(panels) or not two_versions(panels, [(length, 2 * bounds.step)])):
            return 0
        head = clone_before(first, first, body(panels))
        head.trivia, first.trivia = first.trivia, None
        set_range(head, RangeArg(bounds.start, bounds.start + bounds.step, bounds.step))
        set_range(first, RangeArg(bounds.start + bounds.step, bounds.stop, bounds.step))
        others = [first, *others]
        for widened in found:
            _store_and_read(widened, panels, head, others, self.steps, self.ahead)
        return len(found)

    def _chosen(self, panels: Operation, first: Operation) -> list[Widened]:
        """What is widened in a tile of rows, as far as there is room for it."""
        found: list[Widened] = []
        left = self.bytes
        for widened in _all_widened(panels, first, self.steps):
            if widened not in found and widened.nbytes <= left and not is_written(widened.access.buffer, panels):
                found.append(widened)
                left -= widened.nbytes
        return found


def _is_kept(tiles: Operation, steps: str) -> bool:
    """Whether a tile of rows stores what it widens already."""
    widening = [op for loop in _step_loops(tiles, steps) for op in body(loop) if _loaded(op) is not None]
    return any(u.name == "vector.store" for op in widening for u in op.results[0].users)


@dataclass(frozen=True)
class Widened:
    """A vector that each step of a loop loads and widens: the place in value form, with ``STEP`` for the step, and the type.

    Steps go from ``start`` on, which is not 0 in a block of a long sum.
    """

    access: Access
    start: Dim
    lines: int
    type: VectorType

    @property
    def nbytes(self) -> int:
        return self.lines * self.type.shape[-1] * self.type.dtype.itemsize


STEP = "%step"


def _all_widened(panels: Operation, tiles: Operation, steps: str) -> Iterator[Widened]:
    for loop in _step_loops(tiles, steps):
        for op in body(loop):
            widened = _widened(op, loop, panels)
            if widened is not None:
                yield widened


def _step_loops(tiles: Operation, steps: str) -> list[Operation]:
    return [op for op in body(tiles) if op.name == "scf.for" and tag_of(op) == steps]


def _widened(op: Operation, loop: Operation, panels: Operation) -> Widened | None:
    """What an ``arith.extf`` of a loop widens, when the place in each step depends on nothing else inside of the panel's round."""
    load = _loaded(op)
    bounds = single_range(loop)
    if load is None or load.block is not body(loop) or bounds is None or bounds.step != 1:
        return None
    lines = extent(bounds)
    if not isinstance(lines, int):
        return None
    (access,) = accesses(load)
    *outer, last = access.indices
    type_, at = op.results[0].type, variable(loop)
    inside = [v for o in panels.walk() if o is not panels for v in (*o.results, *(a for r in o.regions for a in r.block.arguments))]
    fixed = [i for i in access.indices if i.expr != value_symbol(at)]
    if not isinstance(type_, VectorType) or last.size != type_.shape[-1] or any(n != 1 for n in type_.shape[:-1]):
        return None
    if len(fixed) != len(outer) or last not in fixed or any(depends_on(i, inside) for i in (bounds.start, *(f.expr for f in fixed))):
        return None
    places = tuple(IndexExpr(_with_step(i.expr, at), i.size) for i in access.indices)
    return Widened(Access(access.buffer, places), bounds.start, lines, type_)


def _loaded(op: Operation) -> Operation | None:
    """The load of a whole vector that is only read to be widened by ``op``."""
    if op.name != "arith.extf":
        return None
    source = op.operands[0]
    load = source.defining_op
    while load is not None and load.name == "vector.reshape" and len(source.users) == 1:
        source = load.operands[0]
        load = source.defining_op
    if load is None or load.name != "vector.load" or len(source.users) != 1 or "valid" in load.definition.operand_names(load):
        return None
    return load


def _with_step(expr: Dim, at: Value) -> Dim:
    return substitute(expr, {f"%{at.name}": symbol(STEP)})


def _store_and_read(widened: Widened, panels: Operation, head: Operation, others: Sequence[Operation], steps: str, ahead: int) -> None:
    """The first tile stores what it widens, the others read that."""
    buffer, attributes = widened.access.buffer, {LAYOUT: ()}
    made = MemRefType(widened.type.dtype, (widened.lines, widened.type.shape[-1]))
    builder = Builder(body(panels), body(panels).first, loc=panels.loc)
    kept = builder.create(REGISTRY["memref.alloc"], [], attributes, result_types=[made], name=f"{buffer.name}.wide").result  # type: ignore[arg-type]
    stored = False
    for tiles in (head, *others):
        for loop in _step_loops(tiles, steps):
            place = Access(kept, (IndexExpr(value_symbol(variable(loop)) - widened.start), IndexExpr(0, widened.type.shape[-1])))
            for op in list(body(loop)):
                if op.block is None or _widened(op, loop, panels) != widened:
                    continue
                if tiles is not head:
                    _read(op, place, buffer, loop, ahead)
                elif not stored:
                    _create(Builder(body(loop), op.next, loc=op.loc), "vector.store", [op.results[0], place], [])
                    stored = True


def _read(op: Operation, place: Access, narrow: Value, loop: Operation, ahead: int) -> None:
    """Loads wide numbers instead of widening; hints for the narrow ones that are read soon go to them."""
    load, wide_type = _loaded(op), op.results[0].type
    assert load is not None and isinstance(wide_type, VectorType)
    wide = _create(Builder(body(loop), load, loc=load.loc), "vector.load", [place], [wide_type], op.results[0].name)
    op.results[0].replace_all_uses_with(wide.result)
    source: Operation | None = op
    while source is not None and not source.results[0].has_uses:
        before = source.operands[0].defining_op if source is not load else None
        source.erase()
        source = before
    hints = [o for o in body(loop) if o.name == "memref.prefetch" and _is_for_later_step(accesses(o)[0], narrow, variable(loop))]
    for hint in hints:
        hint.erase()
    if hints:
        step, last = place.indices
        for start in range(0, last.size or 1, LINE // wide_type.dtype.itemsize):
            later = Access(place.buffer, (IndexExpr(step.expr + ahead), IndexExpr(start)))
            _create(Builder(body(loop), wide, loc=load.loc), "memref.prefetch", [later], [])


def _is_for_later_step(hint: Access, narrow: Value, at: Value) -> bool:
    return hint.buffer is narrow and any(depends_on(i.expr, [at]) for i in hint.indices[:-1])


def _create(builder: Builder, name: str, forms: list[Any], types: list[Any], label: str | None = None) -> Operation:
    graph = builder.block.graph
    assert graph is not None
    operands, layout = number_layout(forms, graph)
    attributes: Any = {LAYOUT: layout}
    return builder.create(REGISTRY[name], operands, attributes, result_types=types, name=label)
