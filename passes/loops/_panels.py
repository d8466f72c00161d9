"""Panels: a buffer in the order in which the tiles of a matrix product read it, and how they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dialects.arith.cast import extf
from dialects.graph.indexing import pad
from dialects.graph.shape import reshape, transpose
from dialects.memref import from_tensor
from ir.builder import Builder
from ir.core import Operation, Value
from ir.dims import Dim, UnknownDim, ceildiv, dim_min, floordiv
from ir.layout import LAYOUT, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.types import DType, MemRefType, ScalarType, TensorType
from passes.loops._loops import Access, body, create_loop, end_loop, number_layout, value_symbol, variable

LARGEST_PADDING = 4
"""Panels are at most so many times as large as what they are made of (the limit of ``hoist-to-init``, too)."""

LONGEST_ROW = 128
"""Rows of at most so many elements are read well as they are; panels are such rows."""


@dataclass(frozen=True)
class Panels:
    """A layout: ``width`` neighbours along axis ``column`` for each index of axis ``step``, panel by panel.

    The other axes stay in front: ``A[..., column, step]`` becomes ``P[..., panel, step, width]``.
    """

    column: int
    step: int
    width: int

    @property
    def crosswise(self) -> bool:
        """Whether lines of the panels are neighbours in the buffer: ``A[column, step]``."""
        return self.step > self.column

    def others(self, rank: int) -> list[int]:
        """The axes that stay as they are."""
        return [a for a in range(rank) if a not in (self.column, self.step)]

    def type_of(self, type_: MemRefType) -> MemRefType:
        """The type of the panels of a buffer."""
        shape = type_.shape
        count = ceildiv(shape[self.column], self.width)
        return MemRefType(type_.dtype, (*(shape[a] for a in self.others(len(shape))), count, shape[self.step], self.width))

    def fit(self, type_: MemRefType) -> bool:
        """Whether a buffer can have panels that are not mostly padding, and isn't in panels already."""
        columns, rank = type_.shape[self.column], len(type_.shape)
        if any(isinstance(d, UnknownDim) for d in type_.shape):
            return False
        if (self.step, self.column) == (rank - 2, rank - 1) and isinstance(columns, int):
            if columns <= LONGEST_ROW and (columns < 16 or columns % 16 == 0):
                return False
        return not isinstance(columns, int) or 0 < -(-columns // self.width) * self.width <= LARGEST_PADDING * columns

    def access(self, access: Access, panels: Value, tile: Dim, column: Dim) -> Access:
        """What an access to the buffer reads in the panels; ``tile`` is where the tile of ``column`` starts, at a panel."""
        offset = access.indices[self.column].expr - column
        places: list[Dim] = [access.indices[a].expr for a in self.others(len(access.indices))]
        places += [floordiv(tile + offset, self.width), access.indices[self.step].expr, column - tile]
        return Access(panels, tuple(map(IndexExpr, places)))


# -- stored tensors ----------------------------------------------------------------------------------------------------

_STORED = ("graph.weight", "graph.constant", "graph.initial")


def stored_tensor(buffer: Value) -> Value | None:
    """The tensor that a buffer holds, of known shape, that is there when the program is loaded or can be computed then."""
    op = buffer.defining_op
    while op is not None and op.name == "memref.reshape":
        op = op.operands[0].defining_op
    if op is None or op.name != "memref.from_tensor" or not _is_stored(op.operands[0]):
        return None
    return op.operands[0]


def _is_stored(tensor: Value) -> bool:
    op = tensor.defining_op
    if op is None or not isinstance(tensor.type, TensorType) or not tensor.type.is_static:
        return False
    if op.name in _STORED:
        return True
    definition = op.definition
    movable = definition.dialect == "graph" and definition.pure and not definition.traps and not op.regions
    return movable and bool(op.operands) and all(map(_is_stored, op.operands))


def pack_stored(tensor: Value, buffer: Value, panels: Panels) -> Value:
    """Operations behind a tensor that make the panels; gives a buffer that holds them.

    ``buffer`` holds the tensor, maybe under another shape, which is the one that is packed.
    """
    at = tensor.defining_op
    assert at is not None and at.block is not None and at.graph is not None
    assert isinstance(buffer.type, MemRefType) and isinstance(tensor.type, TensorType)
    shape: Any = buffer.type.shape
    origin = tensor.name
    with Builder(at.block, at.next, origin=origin, loc=at.loc):
        if shape != tensor.type.shape:
            tensor = reshape(tensor, shape=shape)
        tensor = _arranged(tensor, shape, panels)
        at.graph.rename(tensor, f"{origin}.panels")
        tensor.auto_named = True
        result: Value = from_tensor(tensor, name=f"{buffer.name}.panels")
    result.auto_named = True
    return result


def _arranged(tensor: Value, shape: Sequence[int], panels: Panels) -> Value:
    """Padded along the columns, which are split in two axes, of which the second goes to the end."""
    rank, column = len(shape), panels.column
    count = -(-shape[column] // panels.width)
    missing = count * panels.width - shape[column]
    if missing:
        tensor = pad(tensor, low=(0,) * rank, high=tuple(missing if a == column else 0 for a in range(rank)), value=_zero(tensor))
    tensor = reshape(tensor, shape=(*shape[:column], count, panels.width, *shape[column + 1 :]))

    def moved(axis: int) -> int:
        return axis + 1 if axis > column else axis

    order = (*map(moved, panels.others(rank)), column, moved(panels.step), column + 1)
    return transpose(tensor, perm=order) if order != tuple(range(rank + 1)) else tensor


def _zero(tensor: Value) -> int | bool:
    assert isinstance(tensor.type, TensorType)
    return False if tensor.type.dtype.kind == "bool" else 0


# -- other buffers -----------------------------------------------------------------------------------------------------


def pack_when_run(buffer: Value, panels: Panels, before: Operation, tag: str) -> Value | None:
    """A nest in front of ``before`` that fills new memory with the panels; None for a buffer that isn't there yet.

    Its loop over panels has a ``tag``, that of loops over tiles: it is cut like those that read the panels.  What the last one has more than
    the buffer is not filled.
    """
    graph = before.graph
    assert graph is not None and before.block is not None and isinstance(buffer.type, MemRefType)
    owner = buffer.owner.block if isinstance(buffer.owner, Operation) else buffer.owner
    if owner is not graph.block:
        return None
    builder = Builder(before.block, before, origin=buffer.name, loc=before.loc)
    type_ = panels.type_of(buffer.type)
    attributes: Any = {LAYOUT: ()}
    target = builder.create(REGISTRY["memref.alloc"], [], attributes, result_types=[type_], name=f"{buffer.name}.panels").result
    _Filling(buffer, target, panels).panels_of(builder, tag, [])
    return target


def pack_tile(buffer: Value, panels: Panels, tiles: Operation, stop: Dim, lines: int, dtype: DType) -> Value:
    """Memory inside a loop over tiles with the panel of each round, which is filled there and is near when it is read.

    It has room for ``lines`` lines.  ``stop`` is where the tile ends: loops up to there are cut like those that read them (see ``peel``).
    ``dtype`` is that of the buffer, or a wider one.
    """
    inside = Builder(body(tiles), body(tiles).first, origin=buffer.name, loc=tiles.loc)
    attributes: Any = {LAYOUT: ()}
    type_ = MemRefType(dtype, (lines, panels.width))
    target = inside.create(REGISTRY["memref.alloc"], [], attributes, result_types=[type_], name=f"{buffer.name}.panel").result
    _Filling(buffer, target, panels).panel(inside, value_symbol(variable(tiles)), stop, [], [])
    return target


class _Filling:
    """Loops over the elements of panels that copy what the buffer has, widened where panels are."""

    def __init__(self, buffer: Value, target: Value, panels: Panels) -> None:
        self.buffer = buffer
        self.target = target
        self.panels = panels
        assert isinstance(buffer.type, MemRefType) and isinstance(target.type, MemRefType)
        self.type = buffer.type
        self.dtype = target.type.dtype
        self.others = panels.others(len(buffer.type.shape))

    def panels_of(self, builder: Builder, tag: str, outer: list[Dim]) -> None:
        """The loops over all panels, inside those over the axes in front of which ``outer`` are the variables."""
        if len(outer) < len(self.others):
            loop = self._loop(builder, RangeArg(0, self.type.shape[self.others[len(outer)]], 1), "row")
            self.panels_of(self._inside(builder, loop), tag, [*outer, value_symbol(variable(loop))])
            end_loop(loop)
        elif self.panels.crosswise:
            self._tiles(builder, tag, lambda inside, start, stop, place: self.panel(inside, start, stop, outer, place), outer)
        else:  # as it lies in memory: a line goes to all panels before the next one
            lines = self._lines(builder)
            line = value_symbol(variable(lines))
            self._tiles(
                self._inside(builder, lines), tag,
                lambda inside, start, stop, place: self._columns(inside, line, start, stop, outer, place), outer,
            )  # fmt: skip
            end_loop(lines)

    def panel(self, builder: Builder, start: Dim, stop: Dim, outer: list[Dim], place: list[Dim]) -> None:
        """The loops over one panel, whose columns are those from ``start`` to ``stop``: ``place`` is where it is in all of them."""
        lines = self._lines(builder)
        self._columns(self._inside(builder, lines), value_symbol(variable(lines)), start, stop, outer, place)
        end_loop(lines)

    def _lines(self, builder: Builder) -> Operation:
        return self._loop(builder, RangeArg(0, self.type.shape[self.panels.step], 1), "cross" if self.panels.crosswise else "row")

    def _tiles(self, builder: Builder, tag: str, inside: Callable[[Builder, Dim, Dim, list[Dim]], None], outer: list[Dim]) -> None:
        """The loop over panels: ``inside`` gets a builder, where the columns start and stop, and the panel's place."""
        columns, width = self.type.shape[self.panels.column], self.panels.width
        loop = self._loop(builder, RangeArg(0, columns, width), tag)
        start = value_symbol(variable(loop))
        whole = isinstance(columns, int) and columns % width == 0
        stop = start + width if whole else dim_min(start + width, columns)
        inside(self._inside(builder, loop), start, stop, [*outer, floordiv(start, width)])
        end_loop(loop)

    def _columns(self, builder: Builder, line: Dim, start: Dim, stop: Dim, outer: list[Dim], place: list[Dim]) -> None:
        """The loop over the columns of a panel in one line."""
        columns = self._loop(builder, RangeArg(start, stop, 1), "col")
        column = value_symbol(variable(columns))
        with self._inside(builder, columns) as inner:
            self._store(inner, self._load(inner, [*outer, line], column), [*place, line, column - start])
        end_loop(columns)

    def _inside(self, builder: Builder, loop: Operation) -> Builder:
        return Builder(body(loop), loc=builder.loc, origin=builder.origin)

    def _loop(self, builder: Builder, bounds: RangeArg, tag: str) -> Operation:
        return create_loop(builder, "scf.parallel", bounds, name=f"{self.buffer.name}.i", tag=tag)

    def _load(self, builder: Builder, outer: list[Dim], column: Dim) -> Value:
        places: dict[int, Dim] = dict(zip(self.others, outer, strict=False))
        places[self.panels.column] = column
        places[self.panels.step] = outer[-1]
        access = Access(self.buffer, tuple(IndexExpr(places[a]) for a in range(len(self.type.shape))))
        value = self._create(builder, "memref.load", [access], [ScalarType(self.type.dtype)]).result
        if self.dtype == self.type.dtype:
            return value
        wide: Value = extf(value, result_type=ScalarType(self.dtype))
        return wide

    def _store(self, builder: Builder, value: Value, places: list[Dim]) -> None:
        self._create(builder, "memref.store", [value, Access(self.target, tuple(map(IndexExpr, places)))], [])

    def _create(self, builder: Builder, name: str, forms: list[Any], types: list[Any]) -> Operation:
        graph = builder.block.graph
        assert graph is not None
        operands, layout = number_layout(forms, graph)
        attributes: Any = {LAYOUT: layout}
        return builder.create(REGISTRY[name], operands, attributes, result_types=types)
