"""Loops to vectors: the rounds of a loop become the lanes of an axis.

What ``vectorize`` and ``split-reduction`` share.  :class:`Analysis` finds out along which axes every value of a body
differs and what can't be done; :class:`Emitter` then writes the body again, with a vector for every value that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dialects.vector import broadcast_, reshape, step, transpose
from ir.attributes import Attribute
from ir.builtin import yield_
from ir.core import Block, Operation, Region, Value
from ir.dims import Dim, DimExpr, symbols_of
from ir.layout import LAYOUT, AccessArg, Argument, BindArg, ExpressionArg, IndexExpr, OperandArg, RangeArg, layout_of
from ir.opdef import PRESENT, REGISTRY, OpDef
from ir.types import MemRefType, ScalarType, Type, VectorType, index
from passes.loops._indices import Dimensions, Index, Operands, compute, of_value

Arguments = tuple[Argument, ...]


class CannotVectorize(Exception):
    """Why a body stays as it is."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Axis:
    """The loop variable whose rounds become lanes, how many, and whether fewer of them may be run."""

    variable: Value
    size: int
    masked: bool = False

    @property
    def is_vector(self) -> bool:
        """Whether there is more than one round; otherwise the variable is just a number."""
        return self.size > 1 or self.masked


class Analysis:
    """Which axes (bits of a mask) every value of a body differs along.  Raises CannotVectorize where that ends.

    ``used`` are the loop variables that something computes with, not only accesses.
    """

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.axes = tuple(axes)
        self.numbers = {a.variable: n for n, a in enumerate(axes)}
        self.full = sum(1 << n for n, a in enumerate(axes) if a.is_vector)
        self.partial = sum(1 << n for n, a in enumerate(axes) if a.masked)
        self.masks: dict[Value, int] = {a.variable: self.full & 1 << n for n, a in enumerate(axes)}
        self.used: set[Value] = set()

    def mask(self, value: Value) -> int:
        """The axes of an operand."""
        if value in self.numbers:
            self.used.add(value)
        return self.masks.get(value, 0)

    def shape(self, mask: int) -> tuple[int, ...]:
        """The shape of a value that differs along some axes."""
        return tuple(a.size if mask >> n & 1 else 1 for n, a in enumerate(self.axes))

    def type(self, type_: Type, mask: int) -> Type:
        """The vector type for a scalar one."""
        if not mask:
            return type_
        assert isinstance(type_, ScalarType)
        return VectorType(type_.dtype, self.shape(mask))

    # -- operations ------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """All operations of a block."""
        for op in block:
            if not op.definition.is_terminator:
                self._operation(op)

    def _operation(self, op: Operation) -> None:
        handler = _ANALYSES.get(op.definition.full_name)
        if handler is not None:
            handler(self, op)
            return
        found = 0
        for value in op.operands:
            found |= self.mask(value)
        text = op.definition.text_name
        if found:
            if not op.definition.elementwise or op.definition.dialect == "graph":
                raise CannotVectorize(f"{text} of a value that varies")
            if not all(isinstance(v.type, ScalarType) for v in (*op.operands, *op.results)):
                raise CannotVectorize("vectors in the loop")
            if op.definition.traps and self.mask(op.operands[-1]) & self.partial:  # the divisor, or the amount of a shift
                raise CannotVectorize(f"{text} in lanes that may be unused")
        elif not op.definition.pure or op.regions:
            raise CannotVectorize(f"{text} in the loop")
        for result in op.results:
            self.masks[result] = found

    def axis_of(self, op: Operation, dim: Dim) -> int | None:
        """The axis that one index of an access runs along."""
        found: dict[int, int] = {}
        for name in symbols_of(dim):
            if not name.startswith("%"):
                continue
            value = op.operand_uses[int(name[1:])].value
            number = self.numbers.get(value)
            if number is None:
                if self.masks.get(value, 0):
                    raise CannotVectorize("an index that varies is computed (gather or scatter)")
            elif self.axes[number].is_vector:
                found[number] = found.get(number, 0) + _coefficient(dim, name)
        if len(found) > 1:
            raise CannotVectorize("two loop variables in one index")
        for number, coefficient in found.items():
            if coefficient == 1:
                return number
            if coefficient != 0:
                raise CannotVectorize("a loop variable with a factor in an index")
        return None

    def access(self, op: Operation, access: AccessArg) -> list[int | None]:
        """The axis of each index."""
        found = [self.axis_of(op, i.expr) for i in access.indices]
        runs = [n for n in found if n is not None]
        if len(set(runs)) < len(runs):
            raise CannotVectorize("a loop variable in two indices")
        if any(self.axes[n].masked for n in found[:-1] if n is not None):
            raise CannotVectorize("a loop of partial tiles is not the last index")
        return found

    def _load(self, op: Operation) -> None:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        self.masks[op.results[0]] = sum(1 << n for n in self.access(op, access) if n is not None)

    def _store(self, op: Operation) -> None:
        value, access = layout_of(op)
        assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
        self.mask(op.operand_uses[value.position].value)
        found = sum(1 << n for n in self.access(op, access) if n is not None)
        if found != self.full:
            raise CannotVectorize("a store to one place in all rounds")

    def _invariant(self, op: Operation) -> None:
        """An operation on index expressions, which has no form for vectors."""
        if any(self.masks.get(v, 0) for v in op.operands):
            raise CannotVectorize(f"{op.definition.text_name} of an index that varies")
        self.masks.update((r, 0) for r in op.results)

    # -- loops and choices -----------------------------------------------------------------------------------------

    def _same_bounds(self, op: Operation, bounds: RangeArg) -> None:
        for dim in (bounds.start, bounds.stop, bounds.step):
            for name in symbols_of(dim):
                value = op.operand_uses[int(name[1:])].value if name.startswith("%") else None
                if value is not None and self.masks.get(value, 0):
                    raise CannotVectorize("an inner loop whose bounds vary")

    def _for(self, op: Operation) -> None:
        layout = layout_of(op)
        assert isinstance(layout[0], RangeArg)
        self._same_bounds(op, layout[0])
        block = op.regions[0].block
        inits = initial_values(op)
        carried = [self.mask(v) for v in inits]
        while True:
            for argument, mask in zip(block.arguments[1:], carried, strict=True):
                self.masks[argument] = mask
            self.block(block)
            assert block.terminator is not None
            grown = [a | self.mask(v) for a, v in zip(carried, block.terminator.operands, strict=True)]
            if grown == carried:
                break
            carried = grown
        self._results(op, carried)

    def _results(self, op: Operation, masks: Sequence[int]) -> None:
        for result, mask in zip(op.results, masks, strict=True):
            if mask and not isinstance(result.type, ScalarType):
                raise CannotVectorize("vectors in the loop")
            self.masks[result] = mask

    def _parallel(self, op: Operation) -> None:
        for bounds in layout_of(op):
            assert isinstance(bounds, RangeArg)
            self._same_bounds(op, bounds)
        self.block(op.regions[0].block)

    def _if(self, op: Operation) -> None:
        if self.mask(op.operands[0]):
            raise CannotVectorize("a choice that varies")
        masks = [0] * len(op.results)
        for region in op.regions:
            self.block(region.block)
            assert region.block.terminator is not None
            masks = [a | self.mask(v) for a, v in zip(masks, region.block.terminator.operands, strict=True)]
        self._results(op, masks)


_ANALYSES: dict[str, Callable[[Analysis, Operation], None]] = {
    "memref.load": Analysis._load,
    "memref.store": Analysis._store,
    **dict.fromkeys(("affine.apply", "affine.min", "affine.max", "affine.align_down", "memref.prefetch"), Analysis._invariant),
    "scf.for": Analysis._for,
    "scf.parallel": Analysis._parallel,
    "scf.if": Analysis._if,
}


def _coefficient(dim: Dim, name: str) -> int:
    """The factor of a symbol in an expression.  Raises CannotVectorize when it is not linear in it."""
    assert isinstance(dim, DimExpr)
    found = 0
    for monomial, coefficient in dim.terms:
        if monomial == (name,):
            found = coefficient
        elif any(name == a if isinstance(a, str) else any(name in symbols_of(x) for x in a.args) for a in monomial):
            raise CannotVectorize("an index that is not affine in a loop variable")
    return found


def initial_values(op: Operation) -> list[Value]:
    """The initial values of what an ``scf.for`` carries."""
    sources = [a.source for a in layout_of(op) if isinstance(a, BindArg)]
    return [op.operand_uses[s.position].value for s in sources]


class Emitter:
    """Writes a body with vectors, in front of ``anchor`` (at the end of ``block`` for None).

    ``starts`` says what each loop variable is in lane 0; ``valid`` is how many lanes of the partial axis are used.
    ``mapping`` gives the new values of old ones; put in what the body takes from its loop.
    """

    def __init__(self, analysis: Analysis, block: Block, anchor: Operation | None, starts: dict[Value, Index], valid: Value | None = None) -> None:
        self.analysis = analysis
        self.block = block
        self.anchor = anchor
        self.starts = starts
        self.valid = valid
        self.loc: Any = None
        self.origin = ""  # what names of computed indices start with
        self.mapping: dict[Value, Value] = {}

    # -- building --------------------------------------------------------------------------------------------------

    def make(
        self,
        definition: OpDef,
        operands: Sequence[Value],
        attributes: Mapping[str, Any],
        types: Sequence[Type],
        names: Sequence[str] = (),
        regions: Sequence[Region] = (),
    ) -> Operation:
        """Builds an operation at the place where the emitter is."""
        op = Operation(definition, operands, attributes, regions, types, names, self.loc)
        self.block.insert_before(self.anchor, op)
        return op

    def make_index(self, definition: OpDef, operands: Sequence[Value], attributes: dict[str, Attribute]) -> Value:
        """Builds an operation on indices."""
        value = self.make(definition, operands, attributes, [ScalarType(index)], [self.origin + definition.name]).results[0]
        value.auto_named = True
        return value

    def shaped(self, definition: OpDef, value: Value, shape: tuple[int, ...], attributes: dict[str, Any] | None = None, name: str = "") -> Value:
        """A value in another shape."""
        assert isinstance(value.type, (ScalarType, VectorType))
        type_ = VectorType(value.type.dtype, shape)
        result = self.make(definition, [value], attributes or {}, [type_], [name or f"{value.name}.{definition.name}"]).results[0]
        result.auto_named = not name
        return result

    def spread(self, value: Value, type_: Type) -> Value:
        """A value broadcast to a type."""
        if value.type == type_:
            return value
        assert isinstance(type_, VectorType)
        return self.shaped(broadcast_, value, type_.shape)

    def value(self, old: Value) -> Value:
        """What stands for a value of the old body."""
        return self.mapping.get(old, old)

    def place(self, old: Value) -> Index:
        """What stands for a value in an index."""
        start = self.starts.get(old)
        return of_value(self.value(old)) if start is None else start

    # -- blocks ----------------------------------------------------------------------------------------------------

    def begin(self, dimensions: Dimensions) -> None:
        """Makes vectors of the loop variables that something computes with."""
        for number, axis in enumerate(self.analysis.axes):
            old = axis.variable
            if old not in self.analysis.used or old in self.mapping:
                continue
            start, self.origin = self.starts[old], f"{old.name}."
            if not axis.is_vector:
                self.mapping[old] = compute(start, dimensions, self.make_index)
                continue
            lanes = self.make(step, [], {}, [VectorType(index, (axis.size,))], [f"{old.name}.step"]).results[0]
            if len(self.analysis.axes) > 1:
                lanes = self.shaped(reshape, lanes, self.analysis.shape(1 << number))
            if start.dim != 0:
                first = compute(start, dimensions, self.make_index)
                lanes = self.make(REGISTRY["arith.addi"], [first, lanes], {}, [lanes.type], [old.name]).results[0]
            self.mapping[old] = lanes

    def body(self, block: Block) -> None:
        """Writes all operations but the terminator."""
        for op in block:
            if not op.definition.is_terminator:
                self.loc = op.loc
                _EMITTERS.get(op.definition.full_name, Emitter._plain)(self, op)

    def _region(self, old: Block, carried: Sequence[Type], results: Sequence[Type]) -> Region:
        """A region like an old one; ``carried`` are the types of its last arguments, ``results`` those of what it yields."""
        region = Region()
        new = region.block
        kept = len(old.arguments) - len(carried)
        for argument, type_ in zip(old.arguments, [*(a.type for a in old.arguments[:kept]), *carried], strict=True):
            self.mapping[argument] = new.add_argument(argument.name, type_)
        outer = self.block, self.anchor
        self.block, self.anchor = new, None
        self.body(old)
        assert old.terminator is not None
        self.loc = old.terminator.loc
        yielded = [self.spread(self.value(v), t) for v, t in zip(old.terminator.operands, results, strict=True)]
        self.make(yield_, yielded, {}, ())
        self.block, self.anchor = outer
        return region

    # -- operations ------------------------------------------------------------------------------------------------

    def _plain(self, op: Operation) -> None:
        """An elementwise operation, or one that is the same in all lanes."""
        attributes: Mapping[str, Any] = op.attributes
        if LAYOUT in attributes:
            operands, layout = self.relocate(op)
            attributes = {**attributes, LAYOUT: layout}
        else:
            operands = [self.value(v) for v in op.operands]
        types = [self.analysis.type(r.type, self.analysis.masks[r]) for r in op.results]
        self._finish(op, self.make(op.definition, operands, attributes, types, [r.name for r in op.results]))

    def _finish(self, old: Operation, new: Operation) -> None:
        for a, b in zip(old.results, new.results, strict=True):
            b.auto_named = a.auto_named
            self.mapping[a] = b

    def relocate(self, op: Operation, inits: Sequence[Value] | None = None) -> tuple[list[Value], Arguments]:
        """The operands and the layout of an operation over new values; ``inits`` are those of its bindings."""
        operands = Operands()
        given = iter(inits or ())

        def convert(argument: Argument) -> Argument:
            if isinstance(argument, OperandArg):
                return OperandArg(operands.add(self.value(op.operand_uses[argument.position].value)))
            if isinstance(argument, AccessArg):
                position = operands.add(self.value(op.operand_uses[argument.position].value))
                return AccessArg(position, tuple(IndexExpr(operands.over(op, i.expr, self.place), i.size) for i in argument.indices))
            if isinstance(argument, RangeArg):
                return RangeArg(*(operands.over(op, d, self.place) for d in (argument.start, argument.stop, argument.step)))
            if isinstance(argument, ExpressionArg):
                return ExpressionArg(operands.over(op, argument.expr, self.place))
            assert isinstance(argument, BindArg)
            return BindArg(OperandArg(operands.add(next(given))))

        layout = tuple(convert(a) for a in layout_of(op))
        present: Any = op.attributes.get(PRESENT, ())
        optional = op.operand_uses[len(op.operand_uses) - len(present) :]
        return [*operands.values, *(self.value(u.value) for u in optional)], layout

    def _block_access(self, op: Operation, old: AccessArg, operands: Operands) -> tuple[AccessArg, list[int]]:
        """An access with runs along the axes, and the axes of its runs."""
        axes = self.analysis.access(op, old)
        position = operands.add(self.value(op.operand_uses[old.position].value))
        indices = []
        for expr, number in zip(old.indices, axes, strict=True):
            size = None if number is None else self.analysis.axes[number].size
            indices.append(IndexExpr(operands.over(op, expr.expr, self.place), size))
        return AccessArg(position, tuple(indices)), [n for n in axes if n is not None]

    def _needs_mask(self, access: AccessArg, order: Sequence[int], buffer: Type) -> bool:
        """Whether lanes of the partial axis may be outside the buffer."""
        if not any(self.analysis.axes[n].masked for n in order):
            return False
        assert isinstance(buffer, MemRefType)
        last = access.indices[-1]
        assert last.size is not None
        rest = buffer.shape[-1] - (last.expr + last.size)
        return not (isinstance(rest, int) and rest >= 0)

    def _load(self, op: Operation) -> None:
        mask = self.analysis.masks[op.results[0]]
        if not mask:
            self._plain(op)
            return
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        buffer = op.operand_uses[access.position].value.type
        assert isinstance(buffer, MemRefType)
        operands = Operands()
        new, order = self._block_access(op, access, operands)
        attributes: dict[str, Any] = {LAYOUT: (new,)}
        values = operands.values
        if self._needs_mask(new, order, buffer):
            assert self.valid is not None
            attributes[PRESENT] = ("valid",)
            values = [*values, self.valid]
        wanted = self.analysis.shape(mask)
        sorted_ = order == sorted(order)
        short = tuple(self.analysis.axes[n].size for n in order)
        shape = short if short == wanted and sorted_ else tuple(i.size or 1 for i in new.indices)
        name = op.results[0].name
        plain = shape == wanted and sorted_
        result = self.make(REGISTRY["vector.load"], values, attributes, [VectorType(buffer.dtype, shape)], [name if plain else f"{name}.load"])
        value = result.results[0]
        if not sorted_:
            if shape != short:
                value = self.shaped(reshape, value, short)
            ascending = sorted(order)
            turned = tuple(self.analysis.axes[n].size for n in ascending)
            perm = tuple(order.index(n) for n in ascending)
            value = self.shaped(transpose, value, turned, {"perm": perm}, name if turned == wanted else "")
            shape = turned
        if shape != wanted:
            value = self.shaped(reshape, value, wanted, name=name)
        value.auto_named = op.results[0].auto_named
        self.mapping[op.results[0]] = value

    def _store(self, op: Operation) -> None:
        stored, access = layout_of(op)
        assert isinstance(stored, OperandArg) and isinstance(access, AccessArg)
        value = self.value(op.operand_uses[stored.position].value)
        if not self.analysis.full:
            values, layout = self.relocate(op)
            self.make(op.definition, values, {**op.attributes, LAYOUT: layout}, ())
            return
        operands = Operands([self._for_store(value, self.analysis.access(op, access))])
        new, order = self._block_access(op, access, operands)
        attributes: dict[str, Any] = {LAYOUT: (OperandArg(0), new)}
        values = list(operands.values)
        if any(self.analysis.axes[n].masked for n in order):
            assert self.valid is not None
            attributes[PRESENT] = ("valid",)
            values = [*values, self.valid]
        self.make(REGISTRY["vector.store"], values, attributes, ())

    def _for_store(self, value: Value, axes: Sequence[int | None]) -> Value:
        """A value in the shape of the block that it is stored to; ``axes`` are those of the indices."""
        block = tuple(1 if n is None else self.analysis.axes[n].size for n in axes)
        order = [n for n in axes if n is not None]
        scalar = value.type
        assert isinstance(scalar, (ScalarType, VectorType))
        value = self.spread(value, VectorType(scalar.dtype, self.analysis.shape(self.analysis.full)))
        ascending = sorted(order)
        short = tuple(self.analysis.axes[n].size for n in order)
        assert isinstance(value.type, VectorType)
        if list(order) != ascending:
            turned = tuple(self.analysis.axes[n].size for n in ascending)
            if value.type.shape != turned:
                value = self.shaped(reshape, value, turned)
            value = self.shaped(transpose, value, short, {"perm": tuple(ascending.index(n) for n in order)})
        assert isinstance(value.type, VectorType)
        if value.type.shape not in (short, block):
            value = self.shaped(reshape, value, block)
        return value

    def _for(self, op: Operation) -> None:
        types = [self.analysis.type(r.type, self.analysis.masks[r]) for r in op.results]
        inits = [self.spread(self.value(v), t) for v, t in zip(initial_values(op), types, strict=True)]
        operands, layout = self.relocate(op, inits)
        loc = self.loc
        region = self._region(op.regions[0].block, types, types)
        self.loc = loc
        names = [r.name for r in op.results]
        self._finish(op, self.make(op.definition, operands, {**op.attributes, LAYOUT: layout}, types, names, [region]))

    def _regions(self, op: Operation) -> None:
        """A parallel loop or a choice."""
        types = [self.analysis.type(r.type, self.analysis.masks[r]) for r in op.results]
        operands, layout = self.relocate(op)
        loc = self.loc
        regions = [self._region(r.block, (), types if op.results else ()) for r in op.regions]
        self.loc = loc
        names = [r.name for r in op.results]
        self._finish(op, self.make(op.definition, operands, {**op.attributes, LAYOUT: layout}, types, names, regions))


_EMITTERS: dict[str, Callable[[Emitter, Operation], None]] = {
    "memref.load": Emitter._load,
    "memref.store": Emitter._store,
    "scf.for": Emitter._for,
    "scf.parallel": Emitter._regions,
    "scf.if": Emitter._regions,
}
