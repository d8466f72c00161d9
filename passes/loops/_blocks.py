"""Building loops over blocks of buffers: what the lowerings of whole operations to n-d vectors share.

Places are expressions of dimensions and of values (:func:`passes.loops._loops.value_symbol`), as they are written: loops hand their
variables to their bodies in this form.  Everything is built with the active builder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from dialects.arith.cast import bitcast, index_cast
from dialects.arith.constant import constant
from dialects.memref import reshape
from dialects.vector import broadcast_
from ir.attributes import Dense
from ir.builder import Builder, current_builder
from ir.builtin import yield_
from ir.core import Graph, Region, Value
from ir.dims import Dim
from ir.evaluate import round_to
from ir.layout import LAYOUT, ExpressionArg, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.types import DType, MemRefType, ScalarType, VectorType, i32, index
from passes.loops._loops import Access, Form, body, create_loop, end_loop, number_layout, value_symbol

Run = tuple[Dim, int]
"""Elements from a place on: ``(i, 8)`` is ``%i:+8``."""
Place = Union[Dim, Run]
Range = tuple[str, Dim, Dim]
"""The name of a loop variable, where it starts and where it stops."""


LINE = 64
"""Bytes that come near together."""


def active() -> Builder:
    """The builder that new operations go to."""
    builder = current_builder()
    assert builder is not None
    return builder


def _graph() -> Graph:
    graph = active().block.graph
    assert graph is not None
    return graph


def _create(name: str, forms: Sequence[Form], types: Sequence[Any], *, valid: Value | None = None, label: str | None = None) -> Any:
    operands, layout = number_layout(forms, _graph())
    attributes: Any = {LAYOUT: layout}
    optional = {} if valid is None else {"valid": valid}
    return active().create(REGISTRY[name], operands, attributes, optional=optional, result_types=types, name=label)


# -- numbers and vectors -----------------------------------------------------------------------------------------------


def number(value: float | bool, dtype: DType, name: str | None = None) -> Value:
    """A constant scalar."""
    array = round_to(np.array(value, np.float64), dtype) if dtype.is_float else np.array(value, dtype.numpy)
    return constant(Dense(array, dtype), name=name)  # type: ignore[no-any-return]


def filled(value: Value, *shape: int) -> Value:
    """A vector of equal elements."""
    assert isinstance(value.type, ScalarType)
    return broadcast_(value, result_type=VectorType(value.type.dtype, shape), name=f"{value.name}s")  # type: ignore[no-any-return]


def like(value: Value, dtype: DType) -> ScalarType | VectorType:
    """The type of a value with other elements."""
    return VectorType(dtype, value.type.shape) if isinstance(value.type, VectorType) else ScalarType(dtype)


def bits_as(value: Value, dtype: DType, name: str | None = None) -> Value:
    """The bits of a value as another type of the same width."""
    return bitcast(value, result_type=like(value, dtype), name=name)  # type: ignore[no-any-return]


def column(numbers: Sequence[int]) -> Value:
    """A constant with one i32 for each row: a vector of one column."""
    return constant(Dense(np.array(numbers, np.int32).reshape(-1, 1), i32))  # type: ignore[no-any-return]


# -- index arithmetic --------------------------------------------------------------------------------------------------


def index_value(kind: str, *expressions: Dim, name: str) -> Value:
    """``affine.apply``, ``affine.min`` or ``affine.max`` of expressions."""
    op = _create(f"affine.{kind}", [ExpressionArg(e) for e in expressions], [ScalarType(index)], label=name)
    return op.result  # type: ignore[no-any-return]


def least(name: str, *expressions: Dim) -> Dim:
    """The smallest of some expressions under a name; a number where all are."""
    return _named("min", name, expressions)


def most(name: str, *expressions: Dim) -> Dim:
    """The largest of some expressions under a name; a number where all are."""
    return _named("max", name, expressions)


def _named(kind: str, name: str, expressions: Sequence[Dim]) -> Dim:
    numbers = [e for e in expressions if isinstance(e, int)]
    if len(numbers) == len(expressions):
        return min(numbers) if kind == "min" else max(numbers)
    return value_symbol(index_value(kind, *expressions, name=name))


def to_i32(kind: str, *expressions: Dim, name: str) -> Value:
    """The same as an i32; it must fit."""
    return index_cast(index_value(kind, *expressions, name=name), result_type=ScalarType(i32))  # type: ignore[no-any-return]


def index_of(buffer: Value, place: Dim) -> Dim:
    """An element of a buffer of i64 as an index."""
    return value_symbol(index_cast(load(buffer, place), result_type=ScalarType(index)))


# -- memory ------------------------------------------------------------------------------------------------------------


def buffer_type(buffer: Value) -> MemRefType:
    """The type of a value that is a buffer."""
    assert isinstance(buffer.type, MemRefType)
    return buffer.type


def alloc(name: str, dtype: DType, *shape: Dim) -> Value:
    """New memory."""
    attributes: Any = {LAYOUT: ()}
    return active().create(REGISTRY["memref.alloc"], [], attributes, result_types=[MemRefType(dtype, shape)], name=name).result


def reshaped(buffer: Value, *shape: Dim) -> Value:
    """The same memory under another shape."""
    type_ = MemRefType(buffer_type(buffer).dtype, shape)
    return buffer if buffer.type == type_ else reshape(buffer, result_type=type_, name=f"{buffer.name}.view")


def _access(buffer: Value, places: Sequence[Place]) -> Access:
    return Access(buffer, tuple(IndexExpr(*p) if isinstance(p, tuple) else IndexExpr(p) for p in places))


def load(buffer: Value, *places: Place, valid: Value | None = None, keep: bool = False, name: str | None = None) -> Value:
    """A block as a vector of the runs, or the element at single places as a scalar.

    ``keep`` keeps dimensions of size 1 for single places; ``valid`` limits what is read of the last run, the others are 0.
    """
    dtype = buffer_type(buffer).dtype
    runs = tuple(p[1] for p in places if isinstance(p, tuple))
    if not runs:
        return _create("memref.load", [_access(buffer, places)], [ScalarType(dtype)], label=name).result  # type: ignore[no-any-return]
    shape = tuple(p[1] if isinstance(p, tuple) else 1 for p in places) if keep else runs
    return _create("vector.load", [_access(buffer, places)], [VectorType(dtype, shape)], valid=valid, label=name).result  # type: ignore[no-any-return]


def store(value: Value, buffer: Value, *places: Place, valid: Value | None = None) -> None:
    """Writes a vector to a block, or a scalar to an element; ``valid`` limits what is written of the last run."""
    name = "vector.store" if isinstance(value.type, VectorType) else "memref.store"
    _create(name, [value, _access(buffer, places)], (), valid=valid)


def prefetch(buffer: Value, *places: Place, locality: int = 3, write: bool = False) -> None:
    """Hints that bring a run along the last dimension near, line by line; ``locality`` and ``write`` as ``memref.prefetch`` has them."""
    *front, last = places
    start, size = last if isinstance(last, tuple) else (last, 1)
    for at in range(0, size, max(1, LINE // buffer_type(buffer).dtype.itemsize)):
        made = _create("memref.prefetch", [_access(buffer, [*front, start + at])], ())
        if locality != 3:
            made.set_attribute("locality", locality)
        if write:
            made.set_attribute("write", True)


# -- loops and choices -------------------------------------------------------------------------------------------------


def loop(
    name: str, start: Dim, stop: Dim, step: Dim, inside: Callable[..., Any], carried: Sequence[Value] = (), *,
    tag: str = "", result: str | None = None,
) -> list[Value]:  # fmt: skip
    """An ``scf.for``: ``inside`` gets the variable and what is carried, and returns what is carried on (None for nothing).

    ``result`` names the (first) result.
    """
    outer = active()
    made = create_loop(outer, "scf.for", RangeArg(start, stop, step), name=name, tag=tag, initial=carried)
    block = body(made)
    with Builder(block, origin=outer.origin, loc=outer.loc):
        found = inside(value_symbol(block.arguments[0]), *block.arguments[1:])
    end_loop(made, [] if found is None else [found] if isinstance(found, Value) else list(found))
    if result is not None:
        _graph().rename(made.results[0], result)
    return list(made.results)


def parallel(ranges: Sequence[Range], inside: Callable[..., None], tag: str) -> None:
    """An ``scf.parallel``; ``inside`` gets its variables."""
    outer = active()
    region = Region()
    for name, _, _ in ranges:
        region.block.add_argument(name, ScalarType(index))
    made = _create_with_region("scf.parallel", [RangeArg(start, stop, 1) for _, start, stop in ranges], [region], {"tag": tag})
    with Builder(region.block, origin=outer.origin, loc=outer.loc):
        inside(*(value_symbol(a) for a in made.regions[0].block.arguments))
    end_loop(made)


def choose(condition: Value, yes: Callable[[], None], no: Callable[[], None]) -> None:
    """An ``scf.if`` without results."""
    outer = active()
    regions = [Region(), Region()]
    _create_with_region("scf.if", [condition], regions, {})
    for region, build in zip(regions, (yes, no), strict=True):
        with Builder(region.block, origin=outer.origin, loc=outer.loc) as inner:
            build()
            inner.create(yield_, [])


def _create_with_region(name: str, forms: Sequence[Form], regions: Sequence[Region], attributes: Any) -> Any:
    operands, layout = number_layout(forms, _graph())
    given: Any = {LAYOUT: layout, **attributes}
    return active().create(REGISTRY[name], operands, given, regions=regions, result_types=())
