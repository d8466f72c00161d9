"""Structured operations: a loop nest with index maps and a scalar body."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from dialects._access import check_access, check_expressions, check_single, element, number, write
from ir.core import Operation
from ir.evaluate import round_to
from ir.layout import AccessArg, BindArg, LoopDim, layout_of
from ir.opdef import RegionOpDef, TypeProblem, register
from ir.types import UNKNOWN, MemRefType, ScalarType, Type


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
                check_single(argument.source)
            else:
                raise TypeProblem("expected loop dimensions (i < N), then bindings of accesses (%x = %A[i])")
        if len(op.regions) != 1:
            raise TypeProblem("expected one region")

    def _accesses(self, op: Operation) -> list[AccessArg]:
        return [a.source for a in layout_of(op) if isinstance(a, BindArg) and isinstance(a.source, AccessArg)]

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        dims = [a for a in layout_of(op) if isinstance(a, LoopDim)]
        check_expressions(op, operand_types, (d.bound for d in dims))
        buffers = [check_access(op, a, operand_types, [d.name for d in dims]) for a in self._accesses(op)]
        return [UNKNOWN if b is None else ScalarType(b.dtype) for b in buffers]

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
        extents = [range(number(d.bound, operands, environment.names)) for d in dims]
        names = dict(environment.names)
        for point in itertools.product(*extents):
            names.update((d.name, i) for d, i in zip(dims, point, strict=True))
            places = [element(a, operands, names) for a in accesses]
            for argument, access, place in zip(block.arguments, accesses, places, strict=True):
                environment.arrays[argument] = operands[access.position][place]
                environment.dtypes[argument] = environment.dtypes[op.operands[access.position]]
            interpreter.run_block(block, environment, keep=True)
            first = len(accesses) - len(yielded)
            for access, place, value in zip(accesses[first:], places[first:], yielded, strict=True):
                dtype = environment.dtypes[value]
                array = environment.arrays[value]
                write(operands[access.position], place, round_to(array, dtype) if dtype.is_float and not interpreter.double else array)
        return ()


register(Generic())
