"""Pass ``pack``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Block, Graph, Module, Operation, Value
from ir.dims import Dim, DimExpr, product, symbols_of
from ir.layout import LAYOUT, IndexExpr
from ir.opdef import REGISTRY
from ir.references import load_time_graphs
from ir.rewriter import erase_if_dead, walk_graphs
from ir.types import DType, MemRefType, ScalarType, Type
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    Access,
    accesses,
    depends_on,
    extent,
    is_loop,
    loops_tagged,
    minimum_terms,
    move_into,
    number_layout,
    outermost,
    parent,
    ranges,
    single_range,
    value_symbol,
    variable,
    write_layout,
)
from passes.loops._memory import alias, all_accesses, memory_of
from passes.loops._panels import Panels, pack_stored, pack_tile, pack_when_run, stored_tensor
from passes.loops._versions import answers, is_chosen_by, nest_of, two_versions

NEAR = 512 * 1024
"""Bytes of panels that a thread keeps for itself; the caches that are near hold them."""

FAR = 2048
"""Bytes from one line to the next from which on reading down a column is slow."""

MANY = 64
"""Lines from which on that matters."""


@dataclass(frozen=True)
class Pack(Pass):
    """Reads what tiles of a matrix product read again and again from panels, in the order in which it is read.

    Before::

        %w = weight(@f, "w") : f32[96, 64]
        %B = memref.from_tensor(%w) : memref<f32[96, 64]>
        scf.parallel(%jt = 0 to 96 step 48, tag="n.tile") {
          scf.parallel(%j = %jt to %jt+48, tag="n") {
            %s = scf.for(%k = 0 to 64, %acc = %zero, tag="k") {
              %y = memref.load(%B[%j, %k]) : f32
              ...

    After ``pack{loop=n.tile}``::

        %w = weight(@f, "w") : f32[96, 64]
        %w.reshape = reshape(%w, shape=[2, 48, 64])
        %w.panels = transpose(%w.reshape, perm=[0, 2, 1])
        %B.panels = memref.from_tensor(%w.panels) : memref<f32[2, 64, 48]>
        scf.parallel(%jt = 0 to 96 step 48, tag="n.tile") {
          scf.parallel(%j = %jt to %jt+48, tag="n") {
            %s = scf.for(%k = 0 to 64, %acc = %zero, tag="k") {
              %y = memref.load(%B.panels[%jt floordiv 48, %k, %j-%jt]) : f32
              ...

    Loads are packed whose indices depend on the variable of a loop through one tile of the loop with tag ``loop`` in one
    place, on that of a serial loop around the load in another one, both with factor 1, and which are only read while
    the nest runs.  Other indices stay, in front.  What doesn't fill the last panel of a stored tensor is padded with zeros.

    The panels of weights, constants and ``initial`` values (and of what is computed from them alone) are made by
    operations on tensors, which ``hoist-to-init`` moves to the time when the program is loaded; nests that read the same
    in the same layout share them.  Without ``stored_only`` other buffers are packed too: a matrix panel by panel, in the round
    that reads it, while a panel has room near, others by a nest in front of the one that reads them, whose tiles ``peel`` cuts in the
    same way.  That is worth it when there are many ``rows``, rounds of the loops between the tiles and the columns.  Where their number
    is known only when the program runs, and lines may be far apart, there are two versions of the nest, of which it takes one; and
    two of the first one where the number of lines is not known.  A matrix whose columns are its lines is turned panel by panel for more
    than one row, those of a batch in front.

    While a round goes through all rows, a cache loses the first ones, so each panel asks for them again from far away.  From ``front``
    rows on a matrix is packed in front of the nest, line by line as it lies in memory, and ``block-rows`` can then go through the nest with
    some rows at a time; where their number is not known, that is one more version.

    Run it after ``tile``, and before ``peel``, which splits tiles in ways that panels don't follow.
    """

    loop: str = "n.tile"
    """tag of the loops over tiles"""
    stored_only: bool = True
    """only what is known when the program is loaded"""
    rows: int = 0
    """what is packed when the program runs is read for at least so many rows, as far as is known when compiling"""
    front: int = 0
    """rows from which on that is done in front of the nest; 0 for never, where a panel has room near"""

    keeps_types: ClassVar[bool] = True

    def is_idle(self, module: Module) -> bool:
        """Whether no nest has a load that could be packed."""
        at_load_time = load_time_graphs(module)
        for graph in walk_graphs(module):
            if graph.name not in at_load_time:
                packing = _Packing(graph, self)
                if any(True for tiles in loops_tagged(graph, self.loop) for _ in packing.candidates(tiles)):
                    return False
        return True

    def run(self, module: Module, context: PassContext) -> bool:
        at_load_time = load_time_graphs(module)
        packed = 0
        for graph in walk_graphs(module):
            if graph.name in at_load_time:
                continue
            packing = _Packing(graph, self)
            packing.make_versions(loops_tagged(graph, self.loop))
            for tiles in loops_tagged(graph, self.loop):
                packed += packing.tiles(tiles)
            packing.clean()
            context.count("buffers packed", len(packing.made) + len(packing.near))
        context.count("loads packed", packed)
        return packed > 0


class _Packing:
    """Packs buffers of one graph; ``made`` are the panels that there are, by what they hold and who may read them."""

    def __init__(self, graph: Graph, options: Pack) -> None:
        self.graph = graph
        self.loop, self.stored_only, self.rows, self.front = options.loop, options.stored_only, options.rows, options.front
        self.near: dict[tuple[Value, Panels, Operation, DType], Value] = {}
        self.made: dict[tuple[Value, Type, Panels, Operation | None], Value] = {}
        self.replaced: dict[Value, None] = {}
        self.sharing: dict[Operation, int] = {}

    def make_versions(self, loops: Sequence[Operation]) -> None:
        """Two versions of every nest that gains by packing only if it turns out to have many rows, or panels that a near cache holds."""
        if self.stored_only or not self.rows:
            return
        for tiles in loops:
            conditions = next(self._conditions(tiles), [])
            if conditions and answers(tiles, *conditions[0]) is None and not is_chosen_by(tiles, self.rows):
                two_versions(nest_of(tiles), conditions)
            for left in next(self._room(tiles), ()):
                if isinstance(left, DimExpr) and answers(tiles, left, 0) is None:
                    two_versions(nest_of(tiles), [(left, 0)])

    def _room(self, tiles: Operation) -> Iterator[tuple[Dim, Dim]]:
        """For loads whose panels may be near how many lines more there is room for, and how many rows more may read them there."""
        for load, column, width in self.candidates(tiles):
            (access,) = accesses(load)
            place = find_places(load, access, column, width)
            if place is not None and isinstance(access.buffer.type, MemRefType) and self._has_rows(load, variable(tiles), column):
                panels = Panels(*place, width)
                room = self._lines_left(load, access, panels, column, tiles)
                if (isinstance(room, DimExpr) or (isinstance(room, int) and room >= 0)) and panels.fit(access.buffer.type):
                    yield room, self._rows_left(variable(tiles), column)

    def _conditions(self, tiles: Operation) -> Iterator[list[tuple[Dim, int]]]:
        """For loads that can be packed when the program runs what must be how large for that, where it is not known yet."""
        for load, column, width in self.candidates(tiles):
            (access,) = accesses(load)
            place = find_places(load, access, column, width)
            if place is None or not isinstance(access.buffer.type, MemRefType) or stored_tensor(access.buffer) is not None:
                continue
            rows = rows_between(variable(tiles), column)
            if not isinstance(rows, DimExpr) or not Panels(*place, width).fit(access.buffer.type):
                continue
            sizes = ((rows, self.rows), *_lines_are_far(access.buffer.type, place[1]))
            if all(least <= size for size, least in sizes if isinstance(size, int)):
                yield [(size, least) for size, least in sizes if not isinstance(size, int)]

    def candidates(self, tiles: Operation) -> Iterator[tuple[Operation, Value, int]]:
        """Loads inside the tiles of a loop, with the variable of the tile and its size."""
        bounds = single_range(tiles)
        if bounds is None or not isinstance(bounds.step, int) or bounds.step < 2:
            return
        at = value_symbol(variable(tiles))
        if not is_multiple(bounds.start, bounds.step, self.graph):
            return
        for inner in list(tiles.walk()):
            if inner is tiles or not is_loop(inner):
                continue
            found = single_range(inner)
            if found is None or found.start != at or found.step != 1 or at + bounds.step not in minimum_terms(found.stop):
                continue
            for load in [op for op in inner.walk() if op.name == "memref.load"]:
                yield load, variable(inner), bounds.step

    def tiles(self, tiles: Operation) -> int:
        """Packs what one loop over tiles reads; returns how many loads changed."""
        return sum(self._load(load, variable(tiles), column, width) for load, column, width in self.candidates(tiles))

    def _load(self, load: Operation, tile: Value, column: Value, width: int) -> bool:
        (access,) = accesses(load)
        place = find_places(load, access, column, width)
        if place is None or not isinstance(access.buffer.type, MemRefType):
            return False
        panels = Panels(*place, width)
        nest = outermost(load)
        if not panels.fit(access.buffer.type) or is_written(access.buffer, nest):
            return False
        many = not self.stored_only and self._has_rows(load, tile, column)
        room = None if self.stored_only else self._lines_left(load, access, panels, column, _loop_of(tile))
        rows_left = self._rows_left(tile, column)
        near = room is not None and (room >= 0 if isinstance(room, int) else answers(load, room, 0) is True)
        near = near and (rows_left >= 0 if isinstance(rows_left, int) else answers(load, rows_left, 0) is not False)
        turned = not self.stored_only and panels.crosswise and rows_between(tile, column) != 1  # as few rows as there may be
        if near and (many or turned):
            self._pack_near(load, access, panels, tile, column)
            return True
        buffer = self._panels(access.buffer, panels, nest_of(load), many or turned)
        if buffer is None:
            return False
        write_layout(load, [panels.access(access, buffer, value_symbol(tile), value_symbol(column))])
        return True

    def _pack_near(self, load: Operation, access: Access, panels: Panels, tile: Value, column: Value) -> None:
        """Reads from a panel that each round of the loop over tiles makes for itself."""
        key = (access.buffer, panels, _loop_of(tile), read_dtype(load))
        if key not in self.near:
            bounds, lines = single_range(_loop_of(column)), access.buffer.type.shape[panels.step]  # type: ignore[union-attr]
            assert bounds is not None
            most = lines if isinstance(lines, int) else self._most_lines(load, panels, _loop_of(tile))
            self.near[key] = pack_tile(access.buffer, panels, _loop_of(tile), bounds.stop, most, read_dtype(load))
        places = (access.indices[panels.step], IndexExpr(value_symbol(column) - value_symbol(tile)))
        _read_wide(load, Access(self.near[key], places))
        self.replaced[access.buffer] = None

    def _lines_left(self, load: Operation, access: Access, panels: Panels, column: Value, tiles: Operation) -> Dim | None:
        """How many lines more a near panel has room for; None where none can be made in each round of a loop over tiles.

        That can be done for a matrix that is read at the tile's own columns.
        """
        type_ = access.buffer.type
        assert isinstance(type_, MemRefType)
        if tiles.name != "scf.parallel" or len(type_.shape) != 2 or stored_tensor(access.buffer) is not None:
            return None
        own = access.indices[panels.column].expr == value_symbol(column)
        return self._most_lines(load, panels, tiles) - type_.shape[panels.step] if own else None

    def _most_lines(self, load: Operation, panels: Panels, tiles: Operation) -> int:
        """The lines of a near panel; all that a round makes share the room."""
        if tiles not in self.sharing:
            found = (
                (access.buffer, find_places(op, access, column, width)) for op, column, width in self.candidates(tiles) for access in accesses(op)
            )
            self.sharing[tiles] = max(1, len({(buffer, place) for buffer, place in found if place is not None and stored_tensor(buffer) is None}))
        return NEAR // (panels.width * read_dtype(load).itemsize * self.sharing[tiles])

    def _rows_left(self, tile: Value, column: Value) -> Dim:
        """How many rows more may read a near panel."""
        rows = rows_between(tile, column) if self.front else None
        return 0 if rows is None else self.front - 1 - rows

    def _has_rows(self, load: Operation, tile: Value, column: Value) -> bool:
        if self.rows == 0:
            return True
        rows = rows_between(tile, column)
        if isinstance(rows, DimExpr):
            return answers(load, rows, self.rows) is True
        return isinstance(rows, int) and rows >= self.rows

    def clean(self) -> None:
        """Drops buffers that nothing reads any more."""
        for buffer in self.replaced:
            op = buffer.defining_op
            while op is not None and op.block is not None and op.name in ("memref.from_tensor", "memref.reshape"):
                source = op.operands[0].defining_op
                if not erase_if_dead(op):
                    break
                op = source

    def _panels(self, buffer: Value, panels: Panels, nest: Operation, at_run_time: bool) -> Value | None:
        tensor = stored_tensor(buffer)
        if tensor is None and not at_run_time:
            return None
        key = (tensor or buffer, buffer.type, panels, None if tensor else nest)
        made = self.made.get(key)
        if made is None:
            made = _pack_when_run(buffer, panels, nest, self.loop) if tensor is None else pack_stored(tensor, buffer, panels)
            if made is not None:
                self.made[key] = made
        if made is not None:
            self.replaced[buffer] = None
        return made


def _pack_when_run(buffer: Value, panels: Panels, nest: Operation, tag: str) -> Value | None:
    """Fills panels in front of a nest, or of the version of it that reads them; their memory is the graph's own."""
    made = pack_when_run(buffer, panels, nest, tag)
    top = outermost(nest)
    if made is not None and made.defining_op is not None and top is not nest and top.block is not None:
        move_into(made.defining_op, top.block, top)
    return made


def rows_between(tile: Value, column: Value) -> Dim | None:
    """How many rounds the loops between a tile and its columns have; None when that changes from round to round."""
    rows: Dim = 1
    loop = parent(_loop_of(column))
    while loop is not None and loop is not _loop_of(tile):
        bounds = single_range(loop) if is_loop(loop) else None
        if bounds is None:
            return None
        size = extent(bounds)
        if not any(n.startswith("%") for n in symbols_of(bounds.start)):  # else what a loop over tiles counts already
            if any(n.startswith("%") for n in symbols_of(size)):
                return None
            rows = rows * size
        loop = parent(loop)
    return rows


def _is_widened(load: Operation) -> bool:
    """Whether a number is only loaded to be widened."""
    users = load.results[0].users
    return bool(users) and all(u.name == "arith.extf" for u in users) and len({u.results[0].type for u in users}) == 1


def read_dtype(load: Operation) -> DType:
    """The type that a loaded number is computed with in."""
    value = load.results[0].users[0].results[0] if _is_widened(load) else load.results[0]
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


def _read_wide(load: Operation, access: Access) -> None:
    """Loads from another place, in which numbers are wide already."""
    if not _is_widened(load):
        write_layout(load, [access])
        return
    graph = load.graph
    assert graph is not None and load.block is not None
    operands, layout = number_layout([access], graph)
    attributes: Any = {LAYOUT: layout}
    builder, types = Builder(load.block, load, loc=load.loc), [ScalarType(read_dtype(load))]
    wide = builder.create(REGISTRY["memref.load"], operands, attributes, result_types=types, name=load.results[0].name).result
    for user in load.results[0].users:
        user.results[0].replace_all_uses_with(wide)
        user.erase()
    load.erase()


def _lines_are_far(type_: MemRefType, step: int) -> tuple[tuple[Dim, int], ...]:
    """What must be how large so that one step of the serial loop is 2 KiB or more, for many steps: reads that caches and pages
    don't like."""
    lines, apart = type_.shape[step], product(type_.shape[step + 1 :]) * type_.dtype.itemsize
    if isinstance(lines, int) and not isinstance(apart, int):  # not known to be far: no second version for few of them
        return (apart, FAR), (lines, MANY)
    return (apart, FAR), (lines * apart, MANY * FAR)


def _loop_of(variable_: Value) -> Operation:
    """The loop whose variable a value is."""
    assert isinstance(variable_.owner, Block) and variable_.owner.parent is not None and variable_.owner.parent.parent is not None
    return variable_.owner.parent.parent


def find_places(load: Operation, access: Access, column: Value, width: int) -> tuple[int, int] | None:
    """Where a load has the column and the variable of a serial loop around it as indices, and only there."""
    columns = _places(access, column)
    if len(columns) != 1:
        return None
    offset = access.indices[columns[0]].expr - value_symbol(column)
    if not isinstance(offset, int) or offset % width:
        return None
    outer = parent(load)
    while outer is not None:
        if outer.name == "scf.for" and variable(outer) is not column:
            steps = _places(access, variable(outer))
            if len(steps) == 1 and steps != columns and isinstance(access.indices[steps[0]].expr - value_symbol(variable(outer)), int):
                return columns[0], steps[0]
        outer = parent(outer)
    return None


def _places(access: Access, value: Value) -> list[int]:
    """The indices that depend on a value."""
    return [p for p, i in enumerate(access.indices) if depends_on(i.expr, [value])]


def is_multiple(dim: Dim, size: int, graph: Graph) -> bool:
    """Whether an expression is always a multiple of ``size``, from its factors and the steps of loops."""
    if isinstance(dim, int):
        return dim % size == 0
    if not isinstance(dim, DimExpr):
        return False
    return all(c % size == 0 or (len(m) == 1 and isinstance(m[0], str) and _steps_by(m[0], size, graph)) for m, c in dim.terms)


def _steps_by(name: str, size: int, graph: Graph) -> bool:
    value = graph.names.get(name[1:]) if name.startswith("%") else None
    loop = value.owner.parent.parent if value is not None and isinstance(value.owner, Block) and value.owner.parent is not None else None
    if value is None or loop is None or not is_loop(loop) or value.index >= len(ranges(loop)):
        return False
    bounds = ranges(loop)[value.index]
    return is_multiple(bounds.step, size, graph) and is_multiple(bounds.start, size, graph)


def is_written(buffer: Value, nest: Operation) -> bool:
    """Whether a nest may write to a buffer."""
    memory = memory_of(buffer)
    if memory.kind == "tensor":
        return False  # nothing can write it
    return any(a.writes and alias(a.memory, memory) != "never" for a in all_accesses([nest]))
