"""Pass ``block-sums``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Block, Module, Operation, Value
from ir.dims import Dim, dim_max, dim_min, exact_div
from ir.layout import LAYOUT, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure, walk_graphs
from ir.types import DType, MemRefType, VectorType
from passes.infra.base import Pass, PassContext
from passes.loops._loops import (
    Access,
    accesses,
    body,
    clone_before,
    create_loop,
    depends_on,
    end_loop,
    extent,
    initial_values,
    is_loop,
    loops_tagged,
    number_layout,
    parent,
    set_initial_values,
    set_range,
    single_range,
    tag_of,
    upper_bound,
    value_symbol,
    variable,
)

FAR = 2048
"""Bytes from one line to the next from which on going down a column is slow."""

PIECES = 2
"""Pieces of a line that there are at least, as threads share them, while they are not too short."""


@dataclass(frozen=True)
class BlockSums(Pass):
    """Reads a matrix that is multiplied by one row line after line, a few lines at a time, not column after column.

    Before::

        scf.parallel(%jt = 0 to 4032 step 48, tag="n.tile") {
          %s = scf.for(%k = 0 to 4096, %acc = %zero, tag="k") {
            %a = memref.load(%X[%k]) : f32
            %b = vector.load(%W[%k, %jt:+48]) : vector<f32[1, 48]>
            %t = math.fma(%a, %b, %acc) : vector<f32[1, 48]>
            yield %t
          } : vector<f32[1, 48]>
          vector.store(%s, %Y[0, %jt:+48])
          yield
        }

    After ``block-sums{steps=8}``::

        scf.parallel(%jtb = 0 to 4032 step 2016, tag="n.block") {
          %s.sums = memref.alloc() : memref<f32[2016]>
          scf.parallel(%jt.1 = %jtb to min(%jtb+2016, 4032) step 48, tag="n.tile") {
            vector.store(%zero, %s.sums[%jt.1-%jtb:+48])
            yield
          }
          scf.for(%kt = 0 to 4096 step 8, tag="k.tile") {
            scf.parallel(%jt.2 = %jtb to min(%jtb+2016, 4032) step 48, tag="n.tile") {
              %s.before = vector.load(%s.sums[%jt.2-%jtb:+48]) : vector<f32[48]>
              %s.1 = scf.for(%k.1 = %kt to %kt+8, %acc.1 = %s.before, tag="k.step") {
                ...
              } : vector<f32[1, 48]>
              vector.store(%s.1, %s.sums[%jt.2-%jtb:+48])
              yield
            }
            yield
          }
          scf.parallel(%jt = %jtb to min(%jtb+2016, 4032) step 48, tag="n.tile") {
            %s = vector.load(%s.sums[%jt-%jtb:+48]) : vector<f32[48]>
            vector.store(%s, %Y[0, %jt:+48])
            yield
          }
          yield
        }

    A tile of columns that goes through all lines of a matrix meets another page with each, and no neighbours.  Sums that wait in
    a near memory let whole pieces of lines be read one after the other.  Each sum has the same terms in the same order, and is
    the same number in memory as in a register.

    Loops behind it that do what is left of the columns, less than a tile of them, become a part of the last piece, with sums of their own.

    Pieces have at most ``columns`` columns, and at least an eighth of that while there are two of them, which threads share.  Loops stay that
    hold other loops over steps, or whose lines are less than 2 KiB apart.
    """

    loop: str = "n.tile"
    """tag of the loops over tiles of columns"""
    sums: str = "k"
    """tag of the loop in each that goes through the lines"""
    steps: int = 8
    """lines that are read at a time"""
    columns: int = 2048
    """most columns of a piece"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 2 or self.columns < 1:
            raise ValueError("a block has two lines or more, and a piece a column")

    def run(self, module: Module, context: PassContext) -> bool:
        made = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                found = self._sum(loop) if loop.block is not None else None  # it may be what was left of an earlier one
                if found is not None:
                    self._block(loop, found)
                    made += 1
        context.count("sums in blocks", made)
        return made > 0

    def _sum(self, tiles: Operation) -> Operation | None:
        """The loop over lines in a loop over tiles of columns, where that is to be changed."""
        found = self._lines(tiles)
        bounds = single_range(tiles)
        if found is None or bounds is None or not isinstance(bounds.step, int):
            return None
        length, most = extent(bounds), extent(_range(found))
        if (isinstance(length, int) and length < 4 * bounds.step) or (isinstance(most, int) and most < 4 * self.steps):
            return None
        return found if any(_goes_down(op, tiles, found) for op in body(found)) else None

    def _lines(self, tiles: Operation) -> Operation | None:
        """The loop over lines in a loop over tiles of columns that can be done a few lines at a time."""
        bounds = single_range(tiles)
        loops = [op for op in body(tiles) if is_loop(op)]
        if tiles.name != "scf.parallel" or bounds is None or not isinstance(bounds.step, int) or not loops or parent(tiles) is not None:
            return None
        found = loops[0]
        lines = single_range(found)
        if found.name != "scf.for" or tag_of(found) != self.sums or lines is None or lines.start != 0 or lines.step != 1 or len(found.results) != 1:
            return None
        if depends_on(extent(lines), body(tiles).arguments) or not _is_row(found.results[0].type, bounds.step):
            return None
        before = _before(found)
        inside = [op for op in body(found) if not op.definition.is_terminator]
        if not all(is_pure(op) and not op.regions for op in before) or not all(_only_reads(op) for op in inside):
            return None
        return found

    def _left(self, tiles: Operation, sums: Operation) -> list[Operation]:
        """The loops behind one that do what is left of the columns, less than a tile."""
        found: list[Operation] = []
        bounds = single_range(tiles)
        assert bounds is not None and isinstance(bounds.step, int)
        at, end = tiles.next, bounds.stop
        while at is not None and is_loop(at) and tag_of(at) == self.loop:
            columns, lines = single_range(at), self._lines(at)
            if columns is None or lines is None or columns.start != end or single_range(lines) != single_range(sums):
                break
            if (most := upper_bound(columns.stop - bounds.stop)) is None or most > bounds.step:
                break
            found.append(at)
            at, end = at.next, columns.stop
        return found

    def _block(self, tiles: Operation, sums: Operation) -> None:
        bounds, lines = _range(tiles), _range(sums)
        type_ = sums.results[0].type
        assert isinstance(bounds.step, int) and isinstance(type_, VectorType) and tiles.block is not None
        left = self._left(tiles, sums)
        size = self._piece(extent(bounds), bounds.step)
        outer = create_loop(
            Builder(tiles.block, tiles, loc=tiles.loc),
            "scf.parallel",
            RangeArg(bounds.start, _one_at_least(bounds) if left else bounds.stop, size),
            name=f"{variable(tiles).name}b",
            tag=f"{self.loop.partition('.')[0]}.block",
        )
        outer.trivia, tiles.trivia = tiles.trivia, None
        start = value_symbol(variable(outer))
        whole = exact_div(extent(bounds), size) is not None
        piece = RangeArg(start, start + size if whole else dim_min(start + size, bounds.stop), bounds.step)
        builder = Builder(body(outer), loc=tiles.loc)
        name = sums.results[0].name
        parts = [_Sums(_memory(builder, type_.dtype, size, f"{name}.sums"), start, type_, tiles, piece)]
        if left:  # the last piece does it, too
            memory = _memory(builder, type_.dtype, 2 * bounds.step, f"{name}.left")
            last = bounds.step * dim_max(0, start + size - bounds.stop + 1)
            for loop in left:
                row, columns = self._lines(loop), _range(loop)
                assert row is not None and isinstance(row.results[0].type, VectorType)
                there = RangeArg(columns.start, dim_min(columns.stop, columns.start + last), columns.step)
                parts.append(_Sums(memory, bounds.stop, row.results[0].type, loop, there))
        for part in parts:
            part.begin(body(outer))
        bounds = RangeArg(lines.start, lines.stop, self.steps)
        blocks = create_loop(builder, "scf.for", bounds, name=f"{variable(sums).name}t", tag=f"{self.sums}.tile")
        first = value_symbol(variable(blocks))
        last_line = first + self.steps if exact_div(lines.stop, self.steps) is not None else dim_min(first + self.steps, lines.stop)
        for part in parts:
            part.go_on(body(blocks), RangeArg(first, last_line, 1), f"{self.sums}.step")
        end_loop(blocks)
        for part in parts:
            part.end(body(outer))
        end_loop(outer)
        for part in parts:
            part.tiles.erase()

    def _piece(self, length: Dim, step: int) -> int:
        """The columns of a piece, a multiple of a tile."""
        size = self.columns // 2
        if isinstance(length, int):
            size = min(self.columns, max(-(-length // PIECES), self.columns // 8))
        return max(1, -(-size // step)) * step


@dataclass(frozen=True)
class _Sums:
    """The sums of a loop over tiles in memory: each method makes a part of the work, for the columns of a ``piece``."""

    memory: Value
    start: Dim
    type: VectorType
    tiles: Operation
    piece: RangeArg

    def begin(self, block: Block) -> None:
        """Stores what the sums start from."""
        tiles = self._copy(block)
        sums = self._sums(tiles)
        self._store(tiles, initial_values(sums)[0], sums)
        for op in [*_behind(sums), sums]:
            op.erase()

    def go_on(self, block: Block, lines: RangeArg, tag: str) -> None:
        """Adds the terms of some lines."""
        tiles = self._copy(block)
        sums = self._sums(tiles)
        for op in _behind(sums):
            op.erase()
        set_range(sums, lines)
        sums.set_attribute("tag", tag)
        set_initial_values(sums, [self._load(tiles, sums, f"{sums.results[0].name}.before")])
        self._store(tiles, sums.results[0], body(tiles).terminator)

    def end(self, block: Block) -> None:
        """What follows the sums."""
        tiles = self._copy(block)
        sums = self._sums(tiles)
        sums.results[0].replace_all_uses_with(self._load(tiles, sums, sums.results[0].name))
        sums.erase()

    def _copy(self, block: Block) -> Operation:
        tiles = clone_before(self.tiles, None, block)
        set_range(tiles, self.piece)
        return tiles

    def _sums(self, tiles: Operation) -> Operation:
        return next(op for op in body(tiles) if is_loop(op))

    def _place(self, tiles: Operation) -> list[IndexExpr]:
        return [IndexExpr(value_symbol(variable(tiles)) - self.start, self.type.shape[-1])]

    def _store(self, tiles: Operation, value: Value, before: Operation | None) -> None:
        builder = Builder(body(tiles), before, loc=tiles.loc)
        if len(self.type.shape) > 1:
            value = _reshaped(builder, value, self.type.shape[-1:])
        _create(builder, "vector.store", [value, Access(self.memory, tuple(self._place(tiles)))], [])

    def _load(self, tiles: Operation, before: Operation, name: str) -> Value:
        builder = Builder(body(tiles), before, loc=tiles.loc)
        row = VectorType(self.type.dtype, self.type.shape[-1:])
        loaded = _create(builder, "vector.load", [Access(self.memory, tuple(self._place(tiles)))], [row], name).result
        return loaded if row == self.type else _reshaped(builder, loaded, self.type.shape)


def _memory(builder: Builder, dtype: DType, size: int, name: str) -> Value:
    attributes: Any = {LAYOUT: ()}
    return builder.create(REGISTRY["memref.alloc"], [], attributes, result_types=[MemRefType(dtype, (size,))], name=name).result


def _range(loop: Operation) -> RangeArg:
    bounds = single_range(loop)
    assert bounds is not None
    return bounds


def _one_at_least(bounds: RangeArg) -> Dim:
    """Where a loop ends that has one round, even if it had none."""
    length = extent(bounds)
    return bounds.stop if isinstance(length, int) and length > 0 else dim_max(bounds.stop, bounds.start + 1)


def _reshaped(builder: Builder, value: Value, shape: Sequence[int]) -> Value:
    assert isinstance(value.type, VectorType)
    return builder.create(REGISTRY["vector.reshape"], [value], {}, result_types=[VectorType(value.type.dtype, tuple(shape))]).result


def _create(builder: Builder, name: str, forms: list[Any], types: list[Any], label: str | None = None) -> Operation:
    graph = builder.block.graph
    assert graph is not None
    operands, layout = number_layout(forms, graph)
    attributes: Any = {LAYOUT: layout}
    return builder.create(REGISTRY[name], operands, attributes, result_types=types, name=label)


def _before(op: Operation) -> list[Operation]:
    assert op.block is not None
    found = []
    for other in op.block:
        if other is op:
            break
        found.append(other)
    return found


def _behind(op: Operation) -> list[Operation]:
    """The operations behind one, the last one first, but for the terminator."""
    found, at = [], op.next
    while at is not None and not at.definition.is_terminator:
        found.append(at)
        at = at.next
    return found[::-1]


def _is_row(type_: Any, width: int) -> bool:
    """Whether a value is a vector of so many numbers."""
    return isinstance(type_, VectorType) and type_.dtype.is_float and type_.shape[-1] == width and all(n == 1 for n in type_.shape[:-1])


def _only_reads(op: Operation) -> bool:
    return not op.regions and (is_pure(op) or op.name in ("memref.load", "vector.load"))


def _goes_down(op: Operation, tiles: Operation, lines: Operation) -> bool:
    """Whether an operation loads the columns of a tile from a line of a matrix, the next of which is far."""
    if op.name != "vector.load" or "valid" in op.definition.operand_names(op):
        return False
    (access,) = accesses(op)
    *outer, last = access.indices
    type_ = access.buffer.type
    assert isinstance(type_, MemRefType)
    across = [i for i in outer if depends_on(i.expr, [variable(lines)])]
    apart = type_.shape[-1]
    far = not isinstance(apart, int) or apart * type_.dtype.itemsize >= FAR
    return bool(across) and across[-1] is outer[-1] and last.size is not None and depends_on(last.expr, [variable(tiles)]) and far
