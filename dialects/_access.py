"""Accesses ``%A[i, %j:+8]``, ranges and loop dimensions: what operations that have them check and compute."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ir.core import Operation
from ir.dims import Dim, symbols_of
from ir.layout import LAYOUT, AccessArg, LoopDim, evaluate_expr, layout_of
from ir.opdef import ExecutionError, TypeProblem
from ir.types import MemRefType, ScalarType, Type, UnknownType, index, is_known, merge_types, type_symbols


def surrounding_dims(op: Operation) -> list[str]:
    """The loop dimensions of the nests that the operation stands in, outermost last."""
    found: list[str] = []
    block = op.block
    while block is not None and block.parent is not None and block.parent.parent is not None:
        outer = block.parent.parent
        if LAYOUT in outer.attributes:
            found += [a.name for a in layout_of(outer) if isinstance(a, LoopDim)]
        block = outer.block
    return found


def check_expressions(op: Operation, operand_types: Sequence[Type], expressions: Sequence[Dim], dims: Collection[str] = ()) -> None:
    """Raises TypeProblem for a name that is neither a dimension of the graph nor among ``dims``, and for a value that
    is no ``index``."""
    unknown: set[str] | None = None
    for expression in expressions:
        for name in symbols_of(expression):
            if name.startswith("%"):
                position = int(name[1:])
                type_ = operand_types[position]
                if not isinstance(type_, UnknownType) and type_ != ScalarType(index):
                    raise TypeProblem(f"expected an index here, found {type_}", operand=position, hint="arith.index_cast makes one of an integer")
            elif name not in dims:
                if unknown is None:
                    unknown = _names_without_meaning(op, expressions)
                if name in unknown:
                    raise TypeProblem(f"dimension {name} is in no parameter's type")


def _names_without_meaning(op: Operation, expressions: Sequence[Dim]) -> set[str]:
    """Names in expressions that are no dimensions of the graph or of a nest around, as far as all of these are known."""
    graph = op.graph
    if graph is None:
        return set()
    names = {n for e in expressions for n in symbols_of(e)}.difference(surrounding_dims(op))
    for parameter in graph.parameters:
        if not names or not is_known(parameter.type):
            return set()
        names -= type_symbols(parameter.type).keys()
    return names


def check_access(op: Operation, access: AccessArg, operand_types: Sequence[Type], dims: Collection[str] = ()) -> MemRefType | None:
    """The type of the buffer that is accessed, None while it is unknown.  Raises TypeProblem when the access doesn't fit."""
    check_expressions(op, operand_types, [i.expr for i in access.indices], dims)
    buffer = operand_types[access.position]
    if isinstance(buffer, UnknownType):
        return None
    if not isinstance(buffer, MemRefType):
        raise TypeProblem(f"expected a memref, found {buffer}", operand=access.position)
    if len(buffer.shape) != len(access.indices):
        raise TypeProblem(f"{buffer} has {len(buffer.shape)} dimensions, found {len(access.indices)} indices", operand=access.position)
    return buffer


def carried_types(operand_types: Sequence[Type], inits: Sequence[int], yielded: Sequence[Type], verb: str) -> tuple[Type, ...]:
    """The types of values that go from round to round: what they start as, merged with what the region yields.

    ``inits`` are the operands that they start as; ``verb`` says in a complaint what is done with them.  Raises
    TypeProblem for another number of values and for types that don't fit.
    """
    if len(yielded) != len(inits):
        raise TypeProblem(f"the region yields {len(yielded)} values, but {len(inits)} are {verb}")
    results = []
    for position, type_ in zip(inits, yielded, strict=True):
        merged = merge_types(operand_types[position], type_)
        if merged is None:
            raise TypeProblem(f"the region yields {type_} for a value that starts as {operand_types[position]}", operand=position)
        results.append(merged)
    return tuple(results)


def check_single(access: AccessArg) -> None:
    """Raises TypeProblem when the access has runs of elements."""
    if any(i.size is not None for i in access.indices):
        raise TypeProblem("an access here has single elements, not runs (:+)", operand=access.position)


def check_runs(access: AccessArg) -> None:
    """Raises TypeProblem for a run without elements."""
    if any(i.size is not None and i.size < 1 for i in access.indices):
        raise TypeProblem("a run has one element or more", operand=access.position)


def block_shape(access: AccessArg) -> tuple[int, ...]:
    """The shape of the vector that an access with runs stands for: 1 where none is written."""
    return tuple(i.size or 1 for i in access.indices)


def number(expression: Dim, operands: Sequence[Any], names: Mapping[str, int], wraps: bool = False) -> int:
    """The value of an index expression, computed in 64 bits with ``wraps``.  Raises ExecutionError when it has none."""
    try:
        return evaluate_expr(expression, operands, names, wraps)
    except KeyError as error:
        raise ExecutionError(f"{error.args[0]} has no value here") from None
    except ZeroDivisionError:
        raise ExecutionError("division by zero in an index") from None


def element(access: AccessArg, operands: Sequence[Any], names: Mapping[str, int]) -> tuple[int, ...]:
    """The place of the single element that is accessed.  Raises ExecutionError when it is outside the buffer."""
    place = tuple(number(i.expr, operands, names) for i in access.indices)
    for axis, (at, size) in enumerate(zip(place, operands[access.position].shape, strict=True)):
        if not 0 <= at < size:
            raise ExecutionError(f"index {at} is outside dimension {axis} of size {size}")
    return place


def block(access: AccessArg, operands: Sequence[Any], names: Mapping[str, int], valid: int | None = None) -> tuple[slice, ...] | None:
    """The part of the buffer that an access with runs stands for; None when there is no element in it.

    Of its last axis only the first ``valid`` elements are meant, all without it.  Raises ExecutionError for an element
    that is outside the buffer.
    """
    counts = list(block_shape(access))
    if valid is not None:
        counts[-1] = min(max(valid, 0), counts[-1])
    if 0 in counts:
        return None
    starts = [number(i.expr, operands, names) for i in access.indices]
    for axis, (start, count, size) in enumerate(zip(starts, counts, operands[access.position].shape, strict=True)):
        if start < 0 or start + count > size:
            raise ExecutionError(f"elements {start} to {start + count} are outside dimension {axis} of size {size}")
    return tuple(slice(s, s + c) for s, c in zip(starts, counts, strict=True))


def write(buffer: Any, place: Any, value: Any) -> None:
    """Stores to a buffer.  Raises ExecutionError when it is read-only."""
    if not buffer.flags.writeable:
        raise ExecutionError("the buffer is read-only")
    with np.errstate(all="ignore"):
        buffer[place] = value
