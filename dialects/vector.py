"""Vectors: register blocks of one or more dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ir.core import Operation
from ir.layout import AccessArg, evaluate_expr, layout_of
from ir.opdef import ExecutionError, RegionOpDef, TypeProblem, register
from ir.types import UNKNOWN, MemRefType, Type, UnknownType, VectorType


class Load(RegionOpDef):
    """A block of a buffer as a vector.

    ``vector.load(%A[%i:+8, k])`` reads 8 consecutive elements along the first dimension at one index of the second;
    the result has one dimension per index, of size 1 where none is written.

    Raises an error for elements outside the buffer.

    Example::

        graph @example(%A: memref<f32[16, 4]>, %C: memref<f32[16, 4]>) {
          %t = vector.load(%A[4:+8, 2]) : vector<f32[8, 1]>
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("load", "vector", result_count=1, pure=False, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """One access and no region."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], AccessArg) or op.regions:
            raise TypeProblem("expected one access: vector.load(%A[%i:+8, 0])")
        if any(i.size is not None and i.size < 1 for i in layout[0].indices):
            raise TypeProblem("a run has one element or more")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        buffer = operand_types[access.position]
        if isinstance(buffer, UnknownType):
            return (UNKNOWN,)
        if not isinstance(buffer, MemRefType):
            raise TypeProblem(f"expected a memref, found {buffer}", operand=access.position)
        if len(buffer.shape) != len(access.indices):
            raise TypeProblem(f"{buffer} has {len(buffer.shape)} dimensions, found {len(access.indices)} indices", operand=access.position)
        return (VectorType(buffer.dtype, tuple(i.size or 1 for i in access.indices)),)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        buffer = operands[access.position]
        block = []
        for axis, item in enumerate(access.indices):
            start, count = evaluate_expr(item.expr, operands, environment.names), item.size or 1
            if start < 0 or start + count > buffer.shape[axis]:
                raise ExecutionError(f"elements {start} to {start + count} are outside dimension {axis} of size {buffer.shape[axis]}")
            block.append(slice(start, start + count))
        return (np.array(buffer[tuple(block)]),)


register(Load())
