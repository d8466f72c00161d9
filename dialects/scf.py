"""Structured control flow: loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ir.core import Operation
from ir.layout import BindArg, OperandArg, RangeArg, evaluate_expr, layout_of
from ir.opdef import ExecutionError, RegionOpDef, TypeProblem, register
from ir.types import UNKNOWN, ScalarType, Type, index, merge_types


class For(RegionOpDef):
    """A counted loop that may carry values from one round to the next.

    ``scf.for(%i = a to b step c, %acc = %init)`` runs its region for i = a, a + c, ... while i < b (c > 0).  The region
    gets i, of type ``index``, and the carried values; what it yields are the carried values of the next round, and
    after the last round the results.  A loop that runs no round gives its initial values.

    Raises an error for a step that is not positive.

    Example::

        graph @example(%x: f32[B, 4], %n: f32[B, 4]) -> f32[B, 4] {
          %s = scf.for(%i = 0 to B step 2, %acc = %x) {
            %t = add(%acc, %n) : f32[B, 4]
            yield %t
          } : f32[B, 4]
          return %s
        }
    """

    def __init__(self) -> None:
        super().__init__("for", "scf", result_count=None, exact=True)

    def verify(self, op: Operation) -> None:
        """One range first, then bindings of plain values, and one region."""
        layout = layout_of(op)
        if not layout or not isinstance(layout[0], RangeArg):
            raise TypeProblem("expected a range first: scf.for(%i = a to b step c, ...)")
        for argument in layout[1:]:
            if not isinstance(argument, BindArg) or not isinstance(argument.source, OperandArg):
                raise TypeProblem("expected bindings %acc = %init behind the range")
        if len(op.regions) != 1:
            raise TypeProblem("expected one region")

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        return [ScalarType(index), *(operand_types[p] for p in self._inits(op))]

    def _inits(self, op: Operation) -> list[int]:
        sources = [a.source for a in layout_of(op) if isinstance(a, BindArg)]
        return [s.position for s in sources if isinstance(s, OperandArg)]

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        inits = self._inits(op)
        if len(yielded or ()) != len(inits):
            raise TypeProblem(f"the region yields {len(yielded or ())} values, but {len(inits)} are carried")
        results = []
        for position, type_ in zip(inits, yielded or (), strict=True):
            merged = merge_types(operand_types[position], type_)
            if merged is None:
                raise TypeProblem(f"the region yields {type_} for a value that starts as {operand_types[position]}", operand=position)
            results.append(merged)
        return tuple(results) if results else tuple(UNKNOWN for _ in op.results)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        layout = layout_of(op)
        bounds = layout[0]
        assert isinstance(bounds, RangeArg)
        start, stop, step = (evaluate_expr(e, operands, environment.names) for e in (bounds.start, bounds.stop, bounds.step))
        if step <= 0:
            raise ExecutionError(f"the step is {step}, it must be positive")
        block = op.regions[0].block
        inits = self._inits(op)
        carried = [operands[p] for p in inits]
        dtypes = [environment.dtypes[op.operands[p]] for p in inits]
        for number in range(start, stop, step):
            values = [np.int64(number), *carried]
            for argument, value, dtype in zip(block.arguments, values, [index, *dtypes], strict=True):
                environment.arrays[argument] = value
                environment.dtypes[argument] = dtype
            interpreter.run_block(block, environment, keep=True)
            terminator = block.terminator
            carried = [environment.arrays[v] for v in terminator.operands] if terminator is not None else []
        return tuple(carried)


register(For())
