"""Moving elements of vectors that differ between threads: the same as for one thread, behind a first axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects.gpu._execution import APART, Lanes
from dialects.graph._shapes import normalize_axes
from dialects.vector import dot4
from ir.core import Operation


def _broadcast(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    array, shape = operands[0].array, interpreter.static_type(op.results[0]).shape
    inner = array.reshape(len(array), *(1,) * (len(shape) - array.ndim + 1), *array.shape[1:])
    return (Lanes(np.broadcast_to(inner, (len(array), *shape))),)


def _reshape(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    array = operands[0].array
    return (Lanes(array.reshape(len(array), *interpreter.static_type(op.results[0]).shape)),)


def _transpose(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    perm: Any = op.attribute("perm")
    return (Lanes(np.transpose(operands[0].array, (0, *(p + 1 for p in perm)))),)


def _extract(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    position: Any = op.attribute("position")
    return (Lanes(np.ascontiguousarray(operands[0].array[(slice(None), *position)])),)


def _insert(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    position: Any = op.attribute("position")
    x, vector = map(environment.block_state.all_of, operands)
    result = np.array(vector)
    result[(slice(None), *position)] = x
    return (Lanes(result),)


def _shuffle(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    mask: Any = op.attribute("mask")
    x, y = map(environment.block_state.all_of, operands)
    return (Lanes(np.concatenate([x, y], axis=1)[:, list(mask)]),)


def _dot4(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    a, b = map(environment.block_state.all_of, operands)
    return (Lanes(np.stack([dot4(x, y) for x, y in zip(a, b, strict=True)])),)


def _multi_reduction(interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
    axes: Any = op.attribute("axes")
    array = operands[0].array
    attributes = {**op.attributes, "axes": tuple(a + 1 for a in normalize_axes(axes, array.ndim - 1))}
    types = [interpreter.concrete_type(op.results[0], environment)]
    dtypes = [environment.dtypes[op.operands[0]]]
    return (Lanes(op.definition.evaluate([array], ["v"], attributes, types, dtypes, interpreter.double)[0]),)


APART |= {
    "vector.broadcast": _broadcast,
    "vector.reshape": _reshape,
    "vector.transpose": _transpose,
    "vector.extract": _extract,
    "vector.insert": _insert,
    "vector.shuffle": _shuffle,
    "vector.dot4": _dot4,
    "vector.multi_reduction": _multi_reduction,
}
