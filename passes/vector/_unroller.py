"""Writing operations on n-d vectors as operations on pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dialects._tiles import is_tile
from dialects.arith.comparison import cmpi
from dialects.arith.constant import constant
from dialects.arith.dot import dot4
from dialects.arith.floats import addf, maximumf, minimumf, mulf
from dialects.arith.integers import addi, maxsi, maxui, minsi, minui, muli, subi
from dialects.graph._shapes import normalize_axes
from dialects.vector import insert, shuffle, step
from ir.attributes import Dense
from ir.builtin import yield_
from ir.core import Block, Graph, Operation, Region, Trivia, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.evaluate import round_to
from ir.layout import LAYOUT, AccessArg, BindArg, IndexExpr, OperandArg, RangeArg, layout_of
from ir.opdef import PRESENT, REGISTRY, OpDef
from ir.types import DType, ScalarType, Type, VectorType, boolean, i32, index
from passes.loops._indices import Operands, of_value
from passes.vector._pieces import Element, Pieces, is_of_squares, piece_type, shape_of


class Unroller(Pieces):
    """Rewrites a graph.  Old operations are taken out as they are replaced, and erased at the end."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes)
        self._removed: list[Operation] = []
        self._valid: dict[tuple[Value, int], Value] = {}

    def graph(self, graph: Graph) -> bool:
        """Rewrites all operations; returns whether anything changed."""
        for op in list(graph.block):
            if not op.regions:
                self._operation(op)
            elif any(not self._is_settled(o) for o in op.walk()):
                block, anchor = op.block, op.next
                assert block is not None
                op.remove()  # names are given once, when it comes back
                self._nest(op, block, anchor)
        for op in reversed(self._removed):
            op.erase()
        for op in self.spread_constants:
            if not op.result.has_uses:
                op.erase()
        return bool(self._removed)

    def _is_settled(self, op: Operation) -> bool:
        """Whether an operation (without its regions) stays as it is."""
        if is_tile(op):
            return True
        vector = scalar = False
        for value in (*(u.value for u in op.operand_uses), *op.results):
            type_ = value.type
            if type(type_) is VectorType:
                if not self.is_settled(type_):
                    return False
                vector = True
            elif type(type_) is ScalarType:
                scalar = True
        definition = op.definition
        if vector and scalar and definition.elementwise:
            return False
        return definition.full_name not in ("vector.load", "vector.store") or _is_row(layout_of(op)[-1])

    def _region(self, block: Block) -> None:
        for op in list(block):
            self._operation(op)

    def _operation(self, op: Operation) -> None:
        if op.definition.is_terminator:
            if not self._is_settled(op):
                op.set_operands([p for v in op.operands for p in self.of(v)])
            return
        block, anchor = op.block, op.next
        assert block is not None
        if op.regions:
            if self._is_settled(op):
                for region in op.regions:
                    self._region(region.block)
                return
            op.remove()
            self._nest(op, block, anchor)
            return
        if self._is_settled(op):
            return
        name = op.definition.full_name
        handler = Unroller._elementwise if op.definition.elementwise else _HANDLERS.get(name)
        if handler is None:
            raise GraphError(Diagnostic(f"{op.definition.text_name}: vectors like {_first_vector(op)} can't be unrolled here", op.loc))
        previous = op.prev
        op.remove()
        self._removed.append(op)
        self.block, self.anchor, self.loc = block, anchor, op.loc
        handler(self, op)
        if op.trivia is not None:
            first = previous.next if previous is not None else block.first
            if first is not None:
                _move_comments(op, first)

    # -- elementwise -----------------------------------------------------------------------------------------------

    def _elementwise(self, op: Operation) -> None:
        result = op.results[0]
        shape = shape_of(result)
        columns = [self.aligned(v, shape) for v in op.operands]
        types = self.types(result.type)
        definition, attributes, name, loc = op.definition, op.attributes, (result.name,), op.loc
        insert_before, anchor = self.block.insert_before, self.anchor
        pieces = []
        for operands, type_ in zip(zip(*columns, strict=True), types, strict=True):
            new = Operation(definition, operands, attributes, (), (type_,), name, loc)
            insert_before(anchor, new)
            pieces.append(new.results[0])
        self.define(result, pieces)

    def _constant(self, op: Operation) -> None:
        dense, result = op.attributes["value"], op.results[0]
        assert isinstance(dense, Dense)
        rows = dense.array.reshape(-1, shape_of(result)[-1])
        made: dict[bytes, Value] = {}
        pieces = []
        for row in rows:
            at = 0
            for width in self.widths(rows.shape[-1]):
                part = row[at] if width == 1 else row[at : at + width]
                at += width
                key = bytes([width]) + part.tobytes()
                if key not in made:
                    made[key] = self.constant(np.asarray(part), dense.dtype, result.name)
                pieces.append(made[key])
        self.define(result, pieces)

    def _step(self, op: Operation) -> None:
        result = op.results[0]
        assert isinstance(result.type, VectorType)
        dtype, at, pieces = result.type.dtype, 0, []
        for width in self.widths(result.type.shape[0]):
            if at == 0 and width > 1:
                pieces.append(self.make(step, (), None, piece_type(dtype, width), result.name))
            else:
                numbers = np.arange(at, at + width)
                pieces.append(self.constant(numbers if width > 1 else numbers[0], dtype, result.name))
            at += width
        self.define(result, pieces)

    # -- moving elements -------------------------------------------------------------------------------------------

    def _broadcast(self, op: Operation) -> None:
        self.define(op.results[0], self.aligned(op.operands[0], shape_of(op.results[0])))

    def _reshape(self, op: Operation) -> None:
        (source,), result = op.operands, op.results[0]
        if shape_of(source)[-1] == shape_of(result)[-1]:
            self.define(result, self.of(source))
        else:
            self.define(result, self.regroup(self.elements(source), shape_of(result), result.name))

    def _transpose(self, op: Operation) -> None:
        (source,), result = op.operands, op.results[0]
        shape, perm = shape_of(source), _numbers(op, "perm")
        if perm[-1] == len(shape) - 1:
            pieces, count = self.of(source), len(self.widths(shape[-1]))
            rows = np.arange(math.prod(shape[:-1])).reshape(shape[:-1]).transpose(perm[:-1])
            self.define(result, [p for r in rows.reshape(-1).tolist() for p in pieces[r * count : r * count + count]])
            return
        if perm == (1, 0) and is_of_squares(shape, self.lanes):
            self.define(result, self.transposed(self.of(source), shape, result.name))
            return
        elements = self.elements(source)
        order = np.arange(math.prod(shape)).reshape(shape).transpose(perm)
        self.define(result, self.regroup([elements[n] for n in order.reshape(-1).tolist()], shape_of(result), result.name))

    def _shuffle(self, op: Operation) -> None:
        x, y = op.operands
        both, result = [*self.elements(x), *self.elements(y)], op.results[0]
        self.define(result, self.regroup([both[n] for n in _numbers(op, "mask")], shape_of(result), result.name))

    def _extract(self, op: Operation) -> None:
        (source,), result = op.operands, op.results[0]
        begin, count = _part(shape_of(source), _numbers(op, "position"))
        elements = self.elements(source)[begin : begin + count]
        if not isinstance(result.type, VectorType):
            self.define(result, [self.element(elements[0], result.name)])
        else:
            self.define(result, self.regroup(elements, shape_of(result), result.name))

    def _insert(self, op: Operation) -> None:
        x, target = op.operands
        result, shape = op.results[0], shape_of(target)
        begin, count = _part(shape, _numbers(op, "position"))
        pieces = list(self.of(target))
        widths = self.widths(shape[-1])
        row, at = divmod(begin, shape[-1])
        first = row * len(widths)
        if count > 1 or isinstance(x.type, VectorType):
            new = self.of(x) if isinstance(x.type, VectorType) else [x]
            pieces[first : first + len(new)] = new
        else:
            place, lane = first + at // self.lanes, at % self.lanes
            old = pieces[place]
            pieces[place] = x if isinstance(old.type, ScalarType) else self.make(insert, (x, old), {"position": (lane,)}, old.type, result.name)
        self.define(result, pieces)

    # -- memory ----------------------------------------------------------------------------------------------------

    def _load(self, op: Operation) -> None:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        result, block = op.results[0], tuple(i.size or 1 for i in access.indices) or (1,)
        assert isinstance(result.type, VectorType)
        dtype, name = result.type.dtype, result.name
        operands, valid = _split_valid(op)
        pieces = []
        for offset, width, indices in self._places(access, block):
            new = AccessArg(access.position, indices)
            pieces.append(self._load_piece(op, operands, new, dtype, width, None if valid is None else (valid, offset), name))
        if shape_of(result)[-1] == block[-1]:
            self.define(result, pieces)
        else:
            widths = self.widths(block[-1]) * math.prod(block[:-1])
            elements = [(p, lane) for p, w in zip(pieces, widths, strict=True) for lane in range(w)]
            self.define(result, self.regroup(elements, shape_of(result), name))

    def _places(self, access: AccessArg, block: tuple[int, ...]) -> list[tuple[int, int, tuple[IndexExpr, ...]]]:
        """Offset along the last axis, width and indices of the pieces of a block."""
        if not access.indices:
            return [(0, 1, ())]
        leading = [[IndexExpr(i.expr + n) for n in range(s)] for i, s in zip(access.indices[:-1], block[:-1], strict=True)]
        last, at = [], 0
        for width in self.widths(block[-1]):
            last.append((at, width, IndexExpr(access.indices[-1].expr + at, width if width > 1 else None)))
            at += width
        return [(at, width, (*row, end)) for row in itertools.product(*leading) for at, width, end in last]

    def _load_piece(
        self, op: Operation, operands: list[Value], access: AccessArg, dtype: DType, width: int, limit: tuple[Value, int] | None, name: str
    ) -> Value:
        type_, attributes = piece_type(dtype, width), {LAYOUT: (access,)}
        plain = REGISTRY["vector.load"] if width > 1 else REGISTRY["memref.load"]
        valid = None if limit is None else self._remaining(limit[0], limit[1], width)
        if valid is None:
            return self.make(plain, operands, attributes, type_, name)
        pad: Any = op.attribute("pad")
        filler = round_to(np.array(float(pad)), dtype) if dtype.is_float else np.array(pad, dtype.numpy)
        if isinstance(valid, int):  # no lane
            return self.constant(filler if width == 1 else np.full(width, filler), dtype, name)
        if width > 1:
            masked = {**op.attributes, LAYOUT: (access,)}
            return self.make(plain, [*operands, valid], masked, type_, name)
        return self._if_any(
            valid,
            name,
            type_,
            lambda: self.make(plain, operands, attributes, type_, name),
            lambda: self.constant(filler, dtype, name),
        )

    def _if_any(self, valid: Value, name: str, type_: Type, some: Callable[[], Value], none: Callable[[], Value]) -> Value:
        """``some`` where valid > 0, else ``none``."""
        positive = self._positive(valid)
        regions = []
        place = self.block, self.anchor
        for build in (some, none):
            region = Region()
            self.block, self.anchor = region.block, None
            value = build()
            region.block.append(Operation(yield_, [value]))
            regions.append(region)
        self.block, self.anchor = place
        return self.make(REGISTRY["scf.if"], [positive], {LAYOUT: (OperandArg(0),)}, type_, name, regions)

    def _positive(self, valid: Value) -> Value:
        zero = self.constant(np.array(0), index, "zero")
        return self.make(cmpi, [valid, zero], {"predicate": "gt"}, ScalarType(boolean), f"{valid.name}.any")

    def _remaining(self, valid: Value, offset: int, width: int) -> Value | int | None:
        """How many lanes of a piece at an offset are valid: None for all, 0 for none, else a value."""
        source = valid.defining_op
        if source is not None and source.definition is constant:
            dense = source.attributes["value"]
            assert isinstance(dense, Dense)
            left = int(dense.array) - offset
            if left >= width:
                return None
            if left <= 0:
                return 0
        if offset == 0:
            return valid
        found = self._valid.get((valid, offset))
        if found is None:
            place = self.block, self.anchor, self.loc
            self.behind(valid)
            name = f"{valid.name}.{offset}"
            if source is not None and source.definition is constant:
                found = self.constant(np.array(left), index, name)
            else:
                found = self.make(subi, [valid, self.constant(np.array(offset), index, f"c{offset}")], None, ScalarType(index), name)
            self._valid[valid, offset] = found
            self.block, self.anchor, self.loc = place
        return found

    def _store(self, op: Operation) -> None:
        stored, access = layout_of(op)
        assert isinstance(stored, OperandArg) and isinstance(access, AccessArg)
        value = op.operand_uses[stored.position].value
        block = tuple(i.size or 1 for i in access.indices) or (1,)
        pieces = self.of(value) if shape_of(value)[-1] == block[-1] else self.regroup(self.elements(value), block, value.name)
        operands, valid = _split_valid(op)
        past: dict[str, Any] = {"nontemporal": True} if op.attribute("nontemporal") else {}
        for piece, (offset, width, indices) in zip(pieces, self._places(access, block), strict=True):
            operands[stored.position] = piece
            layout = {LAYOUT: (stored, AccessArg(access.position, indices)), **(past if width > 1 else {})}
            left = None if valid is None else self._remaining(valid, offset, width)
            definition = REGISTRY["vector.store"] if width > 1 else REGISTRY["memref.store"]
            if left is None:
                self._effect(definition, operands, layout)
            elif isinstance(left, Value):
                if width > 1:
                    self._effect(definition, [*operands, left], {**layout, PRESENT: ("valid",)})
                else:
                    self._store_if_any(left, definition, operands, layout)

    def _effect(self, definition: OpDef, operands: Sequence[Value], attributes: Any, regions: Sequence[Region] = ()) -> None:
        self.block.insert_before(self.anchor, Operation(definition, operands, attributes, regions, loc=self.loc))

    def _store_if_any(self, valid: Value, definition: OpDef, operands: Sequence[Value], layout: Any) -> None:
        positive = self._positive(valid)
        region = Region()
        region.block.append(Operation(definition, operands, layout, loc=self.loc))
        region.block.append(Operation(yield_, []))
        self._effect(REGISTRY["scf.if"], [positive], {LAYOUT: (OperandArg(0),)}, [region])

    # -- products --------------------------------------------------------------------------------------------------

    def _dot4(self, op: Operation) -> None:
        """Row by row, one word after the other."""
        a, b = op.operands
        result, (rows, words), columns = op.results[0], shape_of(a), shape_of(b)[1]
        widths, numbers, lines = self.widths(columns), self.elements(a), self.of(b)
        zeros = [self.constant(np.zeros((w,) if w > 1 else (), np.int32), i32, "zero") for w in widths]
        pieces = []
        for row in range(rows):
            sums = list(zeros)
            for word in range(words):
                four = self.element(numbers[row * words + word], a.name)
                for at, width in enumerate(widths):
                    operands = lines[word * len(widths) + at], self.spread(four, width), sums[at]
                    sums[at] = self.make(dot4, operands, None, sums[at].type, result.name)
            pieces += sums
        self.define(result, pieces)

    # -- reductions ------------------------------------------------------------------------------------------------

    def _reduction(self, op: Operation) -> None:
        (source,), result, shape = op.operands, op.results[0], shape_of(op.operands[0])
        found, kind = normalize_axes(_numbers(op, "axes"), len(shape)), op.attributes["kind"]
        assert isinstance(kind, str)
        dtype = source.type.dtype  # type: ignore[union-attr]
        definition, name = _combiner(kind, dtype), result.name
        widths, pieces = self.widths(shape[-1]), self.of(source)
        kept = [n for n in range(len(shape) - 1) if n not in found]
        order = np.arange(math.prod(shape[:-1])).reshape(shape[:-1])
        order = np.moveaxis(order, kept, range(len(kept))).reshape(math.prod(shape[n] for n in kept), -1)
        rows = []
        for group in order.tolist():
            columns = [[pieces[r * len(widths) + c] for r in group] for c in range(len(widths))]
            rows.append([self._tree(definition, column, name) for column in columns])
        if len(shape) - 1 in found:
            elements = self._across_rows(definition, rows, name)
            scalars = [e[0] for e in elements]
            reduced = self.regroup(elements, shape_of(result), name) if isinstance(result.type, VectorType) else scalars
        else:
            reduced = [p for row in rows for p in row]
        if kind == "add" and dtype.is_float:  # a sum starts from +0, so it is never -0
            zero = self.constant(np.zeros((), dtype.numpy), dtype, f"{name}.zero")
            reduced = [self.make(addf, [p, self.spread(zero, _width(p))], None, p.type, name) for p in reduced]
        self.define(result, reduced)

    def _tree(self, definition: OpDef, values: list[Value], name: str) -> Value:
        """Values of one type combined by halves."""
        while len(values) > 1:
            half = (len(values) + 1) // 2
            low, high = values[:half], values[half:]
            values = [self.make(definition, (a, b), None, a.type, name) for a, b in zip(low, high, strict=False)] + low[len(high) :]
        return values[0]

    def _across_rows(self, definition: OpDef, rows: list[list[Value]], name: str) -> list[Element]:
        """Each of the rows combined to one element.

        Rows of one whole piece are combined together, in the same order as alone: two pieces that hold some rows become one that
        holds all of them, with half as many lanes for each.
        """
        width = _width(rows[0][0])
        if len(rows) < 2 or len(rows[0]) > 1 or width < 2 or width & (width - 1):
            return [(self._across(definition, row, name), 0) for row in rows]
        pieces = [row[0] for row in rows]
        held = [[n] for n in range(len(rows))]  # which rows a piece holds
        half = width // 2
        while half:
            pairs = [(n, min(n + 1, len(pieces) - 1)) for n in range(0, len(pieces), 2)]
            low = tuple(n for n in range(2 * width) if n // half % 2 == 0)
            masks = low, tuple(n + half for n in low)
            joined = []
            for a, b in pairs:
                parts = [self.make(shuffle, (pieces[a], pieces[b]), {"mask": m}, pieces[a].type, name) for m in masks]
                joined.append(self.make(definition, parts, None, pieces[a].type, name))
            held = [held[a] + held[b] for a, b in pairs]
            pieces, half = joined, half // 2
        places: dict[int, Element] = {}
        for piece, some in zip(pieces, held, strict=True):
            for lane, row in enumerate(some):
                places.setdefault(row, (piece, lane))
        return [places[n] for n in range(len(rows))]

    def _across(self, definition: OpDef, row: list[Value], name: str) -> Value:
        """The pieces of a row combined to a scalar."""
        by_width: dict[int, list[Value]] = {}
        for piece in row:
            by_width.setdefault(_width(piece), []).append(piece)
        scalars = []
        for pieces in by_width.values():
            value = self._tree(definition, pieces, name)
            while _width(value) > 1:
                width = _width(value)
                if width % 2:
                    scalars.append(self.element((value, width - 1), name))
                half = width // 2
                low = [(value, n) for n in range(half)]
                high = [(value, n) for n in range(half, 2 * half)]
                parts = self.assemble(low, name), self.assemble(high, name)
                value = self.make(definition, parts, None, parts[0].type, name)
            scalars.append(value)
        return self._tree(definition, scalars, name)

    # -- loops and choices -----------------------------------------------------------------------------------------

    def _nest(self, op: Operation, block: Block, anchor: Operation | None) -> None:
        """Rewrites a detached operation with regions and puts it, or the one in its place, in front of ``anchor``."""
        if self._is_settled(op):
            for region in op.regions:
                self._region(region.block)
            block.insert_before(anchor, op)
            return
        attributes: Mapping[str, Any] = op.attributes
        operands = op.operands
        if op.definition.full_name == "scf.for":
            operands, layout = self._expanded(op)
            attributes = {**attributes, LAYOUT: layout}
            _expand_arguments(self, op.regions[0].block)
        elif op.definition.full_name != "scf.if":
            raise GraphError(Diagnostic(f"{op.definition.text_name}: vectors like {_first_vector(op)} can't be unrolled here", op.loc))
        regions, op.regions = op.regions, ()
        for region in regions:
            region.parent = None
            self._region(region.block)
        types = [t for r in op.results for t in self.types(r.type)]
        names = [r.name for r in op.results for _ in self.types(r.type)]
        new = Operation(op.definition, operands, attributes, regions, types, names, op.loc)
        _move_comments(op, new)
        block.insert_before(anchor, new)
        at = 0
        for result in op.results:
            count = len(self.types(result.type))
            self.define(result, list(new.results[at : at + count]))
            at += count
        self._removed.append(op)

    def _expanded(self, op: Operation) -> tuple[list[Value], tuple[Any, ...]]:
        """The operands and the layout of a loop that carries pieces."""
        bounds, *binds = layout_of(op)
        assert isinstance(bounds, RangeArg)
        indices = Operands()
        arguments: list[Any] = [RangeArg(*(indices.over(op, d, of_value) for d in (bounds.start, bounds.stop, bounds.step)))]
        operands = list(indices.values)
        for bind in binds:
            assert isinstance(bind, BindArg) and isinstance(bind.source, OperandArg)
            for piece in self.of(op.operand_uses[bind.source.position].value):
                arguments.append(BindArg(OperandArg(len(operands))))
                operands.append(piece)
        return operands, tuple(arguments)


def _expand_arguments(pieces: Pieces, block: Block) -> None:
    """Puts arguments for pieces in the place of those for vectors."""
    old, block.arguments = block.arguments, []
    for argument in old:
        if pieces.is_settled(argument.type):
            argument.index = len(block.arguments)
            block.arguments.append(argument)
        else:
            pieces.found[argument] = [block.add_argument(argument.name, t) for t in pieces.types(argument.type)]


def _split_valid(op: Operation) -> tuple[list[Value], Value | None]:
    """The operands of an access without ``valid``, and that."""
    operands = op.operands
    valid = operands.pop() if PRESENT in op.attributes else None
    return operands, valid


def _is_row(access: Any) -> bool:
    """Whether an access has one run, along the last axis."""
    return access.indices[-1].size is not None and all(i.size is None for i in access.indices[:-1])


def _numbers(op: Operation, name: str) -> tuple[int, ...]:
    """An attribute that is a list of integers."""
    found: Any = op.attributes[name]
    return tuple(found)


def _part(shape: tuple[int, ...], position: Sequence[int]) -> tuple[int, int]:
    """Where a part of a vector begins in row-major order, and how many elements it has."""
    strides = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    return sum(p * s for p, s in zip(position, strides, strict=False)), math.prod(shape[len(position) :])


def _width(piece: Value) -> int:
    return piece.type.shape[0] if isinstance(piece.type, VectorType) else 1


def _combiner(kind: str, dtype: DType) -> OpDef:
    if dtype.is_float:
        return {"add": addf, "mul": mulf, "max": maximumf, "min": minimumf}[kind]
    unsigned = dtype.kind == "uint"
    return {"add": addi, "mul": muli, "max": maxui if unsigned else maxsi, "min": minui if unsigned else minsi}[kind]


def _first_vector(op: Operation) -> Type:
    return next(v.type for v in (*op.operands, *op.results) if isinstance(v.type, VectorType))


def _move_comments(old: Operation, new: Operation) -> None:
    if old.trivia is not None and new.trivia is None:
        trivia, old.trivia = old.trivia, None
        new.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)


_HANDLERS: dict[str, Callable[[Unroller, Operation], None]] = {
    "arith.constant": Unroller._constant,
    "vector.broadcast": Unroller._broadcast,
    "vector.dot4": Unroller._dot4,
    "vector.extract": Unroller._extract,
    "vector.insert": Unroller._insert,
    "vector.load": Unroller._load,
    "vector.multi_reduction": Unroller._reduction,
    "vector.reshape": Unroller._reshape,
    "vector.shuffle": Unroller._shuffle,
    "vector.step": Unroller._step,
    "vector.store": Unroller._store,
    "vector.transpose": Unroller._transpose,
}
