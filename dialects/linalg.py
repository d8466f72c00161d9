"""Structured operations: a loop nest with index maps and a scalar body."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ir.core import Operation
from ir.evaluate import round_to
from ir.layout import AccessArg, BindArg, LoopDim, evaluate_expr, layout_of
from ir.opdef import ExecutionError, RegionOpDef, TypeProblem, register
from ir.types import MemRefType, ScalarType, Type, UnknownType


class Generic(RegionOpDef):
    """A perfect loop nest: index maps from the loop dimensions to buffer elements, and a body of scalars.

    ``linalg.generic(i < N, reduce k < K, %a = %A[i, k], %o = %C[i]) {...}`` runs its region once for every combination
    of the dimensions, the last one fastest.  Each binding gives the region one element; the values that the region
    yields are stored to the elements of the last bindings, as many as are yielded.  A dimension marked ``reduce`` is
    one along which stored elements are read again.

    Raises an error for an index outside its buffer.

    Example::

        graph @example(%A: memref<f32[S, 8]>, %C: memref<f32[S]>) {
          linalg.generic(p < S, reduce q < 8, %x = %A[p, q], %o = %C[p]) {
            %f = math.fma(%x, %x, %o) : f32
            yield %f
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("generic", "linalg", result_count=0, pure=False, exact=True)

    def verify(self, op: Operation) -> None:
        """Loop dimensions first, then bindings of accesses, and one region."""
        layout = layout_of(op)
        names: set[str] = set()
        bindings = False
        for argument in layout:
            if isinstance(argument, LoopDim) and not bindings:
                if argument.name in names:
                    raise TypeProblem(f"loop dimension {argument.name} is given twice")
                names.add(argument.name)
            elif isinstance(argument, BindArg) and isinstance(argument.source, AccessArg):
                bindings = True
                if any(i.size is not None for i in argument.source.indices):
                    raise TypeProblem("an access here has single elements, not runs (:+)", operand=argument.source.position)
            else:
                raise TypeProblem("expected loop dimensions (i < N), then bindings of accesses (%x = %A[i])")
        if len(op.regions) != 1:
            raise TypeProblem("expected one region")

    def _accesses(self, op: Operation) -> list[AccessArg]:
        return [a.source for a in layout_of(op) if isinstance(a, BindArg) and isinstance(a.source, AccessArg)]

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        types: list[Type] = []
        for access in self._accesses(op):
            buffer = operand_types[access.position]
            if isinstance(buffer, UnknownType):
                types.append(buffer)
                continue
            if not isinstance(buffer, MemRefType):
                raise TypeProblem(f"expected a memref, found {buffer}", operand=access.position)
            if len(buffer.shape) != len(access.indices):
                raise TypeProblem(f"{buffer} has {len(buffer.shape)} dimensions, found {len(access.indices)} indices", operand=access.position)
            types.append(ScalarType(buffer.dtype))
        return types

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        accesses = self._accesses(op)
        count = len(yielded or ())
        if not 0 < count <= len(accesses):
            raise TypeProblem(f"the region yields {count} values for {len(accesses)} bindings")
        for access, type_ in zip(accesses[-count:], yielded or (), strict=True):
            buffer = operand_types[access.position]
            if isinstance(buffer, MemRefType) and isinstance(type_, ScalarType) and buffer.dtype != type_.dtype:
                raise TypeProblem(f"the region yields {type_} for an element of {buffer}", operand=access.position)
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        layout = layout_of(op)
        dims = [a for a in layout if isinstance(a, LoopDim)]
        accesses = self._accesses(op)
        block = op.regions[0].block
        yielded = block.terminator.operands if block.terminator is not None else []
        extents = [range(evaluate_expr(d.bound, operands, environment.names)) for d in dims]
        names = dict(environment.names)
        for point in itertools.product(*extents):
            names.update((d.name, i) for d, i in zip(dims, point, strict=True))
            places = [self._place(a, operands, names) for a in accesses]
            for argument, access, place in zip(block.arguments, accesses, places, strict=True):
                environment.arrays[argument] = operands[access.position][place]
                environment.dtypes[argument] = environment.dtypes[op.operands[access.position]]
            interpreter.run_block(block, environment, keep=True)
            first = len(accesses) - len(yielded)
            for access, place, value in zip(accesses[first:], places[first:], yielded, strict=True):
                dtype = environment.dtypes[value]
                array = environment.arrays[value]
                operands[access.position][place] = round_to(array, dtype) if dtype.is_float and not interpreter.double else array
        return ()

    def _place(self, access: AccessArg, operands: list[Any], names: dict[str, int]) -> tuple[int, ...]:
        place = tuple(evaluate_expr(i.expr, operands, names) for i in access.indices)
        for axis, (number, size) in enumerate(zip(place, operands[access.position].shape, strict=True)):
            if not 0 <= number < size:
                raise ExecutionError(f"index {number} is outside dimension {axis} of size {size}")
        return place


register(Generic())
