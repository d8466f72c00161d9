"""Building inside nests: elements at computed places, serial loops, checks.

All build with the active builder.  A place is an index of a buffer: a value of type index, or an expression of loop
dimensions and named dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from dialects.arith.bits import andi, xori
from dialects.arith.cast import index_cast
from dialects.arith.comparison import cmpi, select
from dialects.arith.integers import addi
from dialects.graph._shapes import normalize_axis
from dialects.memref import dim
from ir.builder import Builder, current_builder
from ir.builtin import yield_
from ir.core import Region, Value
from ir.dims import Dim, DimExpr
from ir.inference import plain_symbol
from ir.layout import LAYOUT, AccessArg, BindArg, IndexExpr, OperandArg, RangeArg, operand_symbol
from ir.opdef import REGISTRY
from ir.types import MemRefType, ScalarType, TensorType, Type, boolean, f64, i64, index
from passes.linalg._elementwise import compare, convert
from passes.linalg._nests import Lowering, number, scalar_dtype, tensor_type

Place = Union[Value, int, DimExpr]


def active() -> Builder:
    """The builder that new operations go to."""
    builder = current_builder()
    assert builder is not None
    return builder


def buffer_type(buffer: Value) -> MemRefType:
    """The type of a value that is a buffer."""
    assert isinstance(buffer.type, MemRefType)
    return buffer.type


def axis_of(low: Lowering) -> int:
    """The operation's axis in its first operand, counted from 0."""
    axis: Any = low.op.attribute("axis")
    return normalize_axis(axis, tensor_type(low.op.operands[0]).rank)


# -- elements ----------------------------------------------------------------------------------------------------------


def _expression(place: Place | Dim, operands: list[Value]) -> Dim:
    if not isinstance(place, Value):
        return place
    operands.append(place)
    return operand_symbol(len(operands) - 1)


def load(buffer: Value, places: Sequence[Place | Dim]) -> Value:
    """One element."""
    operands = [buffer]
    access = AccessArg(0, tuple(IndexExpr(_expression(p, operands)) for p in places))
    attributes: Any = {LAYOUT: (access,)}
    return active().create(REGISTRY["memref.load"], operands, attributes, result_types=[ScalarType(buffer_type(buffer).dtype)]).result


def store(value: Value, buffer: Value, places: Sequence[Place | Dim]) -> None:
    """Writes one element."""
    operands = [value, buffer]
    access = AccessArg(1, tuple(IndexExpr(_expression(p, operands)) for p in places))
    attributes: Any = {LAYOUT: (OperandArg(0), access)}
    active().create(REGISTRY["memref.store"], operands, attributes, result_types=())


# -- numbers -----------------------------------------------------------------------------------------------------------


def to_index(x: Value) -> Value:
    """An integer of any type as an index."""
    if scalar_dtype(x) == index:
        return x
    return index_cast(convert(x, i64), result_type=ScalarType(index))  # type: ignore[no-any-return]


def to_i64(x: Value) -> Value:
    """An integer of any type as i64."""
    return index_cast(x, result_type=ScalarType(i64)) if scalar_dtype(x) == index else convert(x, i64)


def to_double(x: Value) -> Value:
    """A float as f64."""
    return convert(x, f64)


def size(buffer: Value, axis: int) -> Value:
    """How many elements there are along an axis, as an index.

    What has a name is asked of a tensor, where one in front of the buffer has it: a question about a buffer that a nest fills would
    keep that nest apart from its readers.
    """
    extent = buffer_type(buffer).shape[axis]
    if isinstance(extent, int):
        return number(extent, index)  # type: ignore[no-any-return]
    source = _tensor_with(extent, buffer) if plain_symbol(extent) is not None else None
    return dim(buffer, axis=axis) if source is None else dim(source, axis=buffer_type(source).shape.index(extent))  # type: ignore[no-any-return]


def _tensor_with(extent: Dim, buffer: Value) -> Value | None:
    """The memory of a tensor that has a named dimension, made in front of a buffer in the same block."""
    op = buffer.defining_op
    while op is not None:
        if op.name == "memref.from_tensor" and extent in buffer_type(op.result).shape:
            return op.result
        op = op.prev
    return None


def size_of(low: Lowering, buffer: Value, axis: int) -> Callable[[], Value]:
    """:func:`size` for bodies of nests: one that is known is a constant in each, another is read in front of them."""
    if isinstance(buffer_type(buffer).shape[axis], int):
        return lambda: size(buffer, axis)
    with low.builder:
        found = size(buffer, axis)
    return lambda: found


def exceeds(x: Value, y: Value, predicate: str = "gt") -> Value:
    """Whether x comes strictly behind y, when a NaN is behind every number; ``"lt"`` is for the opposite direction."""
    if not scalar_dtype(x).is_float:
        return compare(x, y, predicate)
    opposite = {"gt": "le", "lt": "ge"}[predicate]
    behind = negation(compare(x, y, opposite))  # a NaN on either side makes this true
    return andi(behind, compare(y, y, "eq"))  # type: ignore[no-any-return]


def negation(x: Value) -> Value:
    """A bool turned around."""
    return xori(x, number(True, boolean))  # type: ignore[no-any-return]


def from_start(at: Value, count: Value) -> Value:
    """An index that may count from the end (-1 is the last) as one that counts from the start."""
    return select(cmpi(at, number(0, index), predicate="lt"), addi(at, count), at)  # type: ignore[no-any-return]


# -- loops -------------------------------------------------------------------------------------------------------------


def _inside(arguments: Sequence[tuple[str, Type]], build: Callable[..., Sequence[Value]]) -> Region:
    """A region that yields what ``build`` makes of its arguments."""
    region, outer = Region(), active()
    for name, type_ in arguments:
        region.block.add_argument(f"{outer.origin}.{name}" if outer.origin else name, type_)
    with Builder(region.block, origin=outer.origin, loc=outer.loc) as builder:
        builder.create(yield_, build(*region.block.arguments))
    return region


def serial(
    start: Place | Dim,
    stop: Place | Dim,
    inits: Sequence[Value],
    body: Callable[..., Sequence[Value]],
    *,
    step: Place | Dim = 1,
    tag: str = "",
) -> tuple[Value, ...]:
    """An ``scf.for``: ``body`` gets the loop variable and what is carried, and returns the next values of that."""
    region = _inside([("at", ScalarType(index)), *(("acc", v.type) for v in inits)], body)
    operands: list[Value] = []
    bounds = RangeArg(*(_expression(p, operands) for p in (start, stop, step)))
    first = len(operands)
    layout = (bounds, *(BindArg(OperandArg(first + i)) for i in range(len(inits))))
    attributes: Any = {LAYOUT: layout, "tag": tag}
    types = [v.type for v in inits]
    return active().create(REGISTRY["scf.for"], [*operands, *inits], attributes, regions=[region], result_types=types).results


def parallel(shape: Sequence[Dim], body: Callable[[list[Place]], None], tag: str = "row") -> None:
    """Nested ``scf.parallel`` loops; ``body`` gets an index for each dimension (0 for one of size 1)."""

    def level(places: list[Place]) -> None:
        if len(places) == len(shape):
            body(places)
            return
        extent = shape[len(places)]
        if extent == 1:
            level([*places, 0])
            return

        def inner(at: Value) -> Sequence[Value]:
            level([*places, at])
            return ()

        region = _inside([("at", ScalarType(index))], inner)
        attributes: Any = {LAYOUT: (RangeArg(0, extent, 1),), "tag": tag}
        active().create(REGISTRY["scf.parallel"], [], attributes, regions=[region], result_types=())

    level([])


def when(condition: Value, then: Callable[[], Sequence[Value]], otherwise: Callable[[], Sequence[Value]] | None = None) -> tuple[Value, ...]:
    """An ``scf.if``; without ``otherwise`` it has no results."""
    regions = [_inside([], build) for build in (then, otherwise) if build is not None]
    terminator = regions[0].block.terminator
    assert terminator is not None
    attributes: Any = {LAYOUT: (OperandArg(0),)}
    types = [v.type for v in terminator.operands]
    return active().create(REGISTRY["scf.if"], [condition], attributes, regions=regions, result_types=types).results


# -- checks ------------------------------------------------------------------------------------------------------------


def check(condition: Value, message: str, values: Sequence[Value] = (), described: Described | None = None) -> None:
    """A ``cf.assert``; ``{0}`` and ``{1}`` in the message stand for the values, of type index or i64."""
    attributes: Any = {LAYOUT: (OperandArg(0),), "message": message, "dims": tuple(described.dims if described else ())}
    optional = {f"v{n}": v for n, v in enumerate(values)}
    active().create(REGISTRY["cf.assert"], [condition], attributes, optional=optional, result_types=())


@dataclass
class Described:
    """Sizes and types in a message: symbolic dimensions are those of the run, ``known`` ones have a text of their own."""

    known: dict[Dim, str] = field(default_factory=dict)
    dims: list[Dim] = field(default_factory=list)

    def dim(self, extent: Dim) -> str:
        """A dimension."""
        if isinstance(extent, int):
            return str(extent)
        if extent not in self.known:
            self.known[extent] = f"{{{2 + len(self.dims)}}}"
            self.dims.append(extent)
        return self.known[extent]

    def type(self, value: Value) -> str:
        """The type of a tensor, or of the one in a buffer."""
        type_ = value.type if isinstance(value.type, TensorType) else buffer_type(value)
        return f"{type_.dtype}[{', '.join(map(self.dim, type_.shape))}]"


def require_elements(buffer: Value, axis: int, message: str, shown: Value | None = None) -> None:
    """Checks that a buffer has elements along an axis, if that is not known; ``{x}`` in the message is its type, or that of ``shown``."""
    extent = buffer_type(buffer).shape[axis]
    if isinstance(extent, int):
        return
    some = cmpi(size(buffer, axis), number(0, index), predicate="ne")
    described = Described({extent: "0"})
    check(some, message.replace("{x}", described.type(buffer if shown is None else shown)), (), described)
