"""Structured operations: loop nests with index maps and a scalar body."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dialects._access import carried_types, check_access, check_expressions, check_single, element, number, surrounding_dims, write
from ir.core import Operation
from ir.evaluate import round_to
from ir.layout import AccessArg, BindArg, LoopDim, OperandArg, layout_of
from ir.opdef import AttributeSpec, ExecutionError, RegionOpDef, TypeProblem, register
from ir.types import UNKNOWN, MemRefType, ScalarType, Type, index


def _dims(op: Operation) -> list[LoopDim]:
    return [a for a in layout_of(op) if isinstance(a, LoopDim)]


def _accesses(op: Operation) -> list[AccessArg]:
    return [a.source for a in layout_of(op) if isinstance(a, BindArg) and isinstance(a.source, AccessArg)]


def _inits(op: Operation) -> list[int]:
    return [a.source.position for a in layout_of(op) if isinstance(a, BindArg) and isinstance(a.source, OperandArg)]


def _check_dims(op: Operation) -> None:
    """Raises TypeProblem for a loop dimension whose name is taken."""
    names = set(surrounding_dims(op))
    for dim in _dims(op):
        if dim.name in names:
            raise TypeProblem(f"loop dimension {dim.name} is given twice")
        names.add(dim.name)


def _access_types(op: Operation, operand_types: Sequence[Type]) -> list[Type]:
    dims = _dims(op)
    check_expressions(op, operand_types, [d.bound for d in dims])
    buffers = [check_access(op, a, operand_types, [d.name for d in dims]) for a in _accesses(op)]
    return [UNKNOWN if b is None else ScalarType(b.dtype) for b in buffers]


def _points(op: Operation, operands: Sequence[Any], environment: Any) -> Iterator[list[tuple[int, ...]]]:
    """For each combination of the dimensions, the places that are accessed; the names have their values meanwhile."""
    dims = _dims(op)
    accesses = _accesses(op)
    extents = [range(number(d.bound, operands, environment.names)) for d in dims]
    names = environment.names
    hidden = {d.name: names[d.name] for d in dims if d.name in names}
    for point in itertools.product(*extents):
        names.update((d.name, i) for d, i in zip(dims, point, strict=True))
        yield [element(a, operands, names) for a in accesses]
    for dim in dims:
        names.pop(dim.name, None)
    names.update(hidden)


class Generic(RegionOpDef):
    """A perfect loop nest: index maps from the loop dimensions to buffer elements, and a body of scalars.

    ``linalg.generic(i < N, reduce k < K, %a = %A[i, k], %o = %C[i]) {...}`` runs its region once for every combination
    of the dimensions, the last one fastest.  Each binding gives the region one element; the values that the region
    yields are stored to the elements of the last bindings, as many as are yielded.  A dimension marked ``reduce`` is
    one along which stored elements are read again; the others may be run in any order, or at the same time.

    The region may hold nests of its own (``linalg.reduce``, ``linalg.generic``), which can use the dimensions of this
    one in their index maps; a region that yields nothing works by what those store.

    Raises an error for an index outside its buffer.

    Example::

        graph @example(%A: memref<f32[S, 8]>, %C: memref<f32[S]>) {
          linalg.generic(p < S, reduce q < 8, %x = %A[p, q], %o = %C[p]) {
            %f = math.fma(%x, %x, %o) : f32
            yield %f
          }
          return
        }

    Example, every row divided by its sum::

        graph @example(%A: memref<f32[S, 8]>, %C: memref<f32[S, 8]>) {
          linalg.generic(i < S) {
            %zero = arith.constant(0.0) : f32
            %sum = linalg.reduce(j < 8, %a = %A[i, j], %acc = %zero) {
              %t = arith.addf(%acc, %a) : f32
              yield %t
            } : f32
            linalg.generic(j < 8, %a1 = %A[i, j], %c = %C[i, j]) {
              %q = arith.divf(%a1, %sum) : f32
              yield %q
            }
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("generic", "linalg", result_count=0, pure=False, exact=True)

    def verify(self, op: Operation) -> None:
        """Loop dimensions first, then bindings of accesses, and one region."""
        bindings = False
        for argument in layout_of(op):
            if isinstance(argument, LoopDim) and not bindings:
                continue
            if isinstance(argument, BindArg) and isinstance(argument.source, AccessArg):
                bindings = True
                check_single(argument.source)
            else:
                raise TypeProblem("expected loop dimensions (i < N), then bindings of accesses (%x = %A[i])")
        _check_dims(op)
        if len(op.regions) != 1:
            raise TypeProblem("expected one region")

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        return _access_types(op, operand_types)

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        accesses = _accesses(op)
        count = len(yielded or ())
        if count > len(accesses):
            raise TypeProblem(f"the region yields {count} values for {len(accesses)} bindings")
        for access, type_ in zip(accesses[len(accesses) - count :], yielded or (), strict=True):
            buffer = operand_types[access.position]
            if isinstance(buffer, MemRefType) and isinstance(type_, ScalarType) and buffer.dtype != type_.dtype:
                raise TypeProblem(f"the region yields {type_} for an element of {buffer}", operand=access.position)
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        accesses = _accesses(op)
        block = op.regions[0].block
        yielded = block.terminator.operands if block.terminator is not None else []
        first = len(accesses) - len(yielded)
        for places in _points(op, operands, environment):
            for argument, access, place in zip(block.arguments, accesses, places, strict=True):
                environment.arrays[argument] = operands[access.position][place]
                environment.dtypes[argument] = environment.dtypes[op.operands[access.position]]
            interpreter.run_block(block, environment, keep=True)
            for access, place, value in zip(accesses[first:], places[first:], yielded, strict=True):
                dtype = environment.dtypes[value]
                array = environment.arrays[value]
                write(operands[access.position], place, round_to(array, dtype) if dtype.is_float and not interpreter.double else array)
        return ()


class Reduce(RegionOpDef):
    """Scalars accumulated over a loop nest, in ascending order, the last dimension fastest.

    ``linalg.reduce(k < K, %a = %A[i, k], %acc = %init) {...}``: the region gets the elements that are read and the
    scalars accumulated so far, and yields their next values; the results are the last ones.  A nest without rounds gives
    the initial values.  Index maps may use the dimensions of the nests around it.

    The order is that of the reference; a pass that splits a sum says so by changing the program.

    Raises an error for an index outside its buffer.

    Example::

        graph @example(%A: memref<f32[S, 8]>, %B: memref<f32[8, N]>, %C: memref<f32[S, N]>) {
          linalg.generic(i < S, j < N, %c = %C[i, j]) {
            %zero = arith.constant(0.0) : f32
            %sum = linalg.reduce(k < 8, %a = %A[i, k], %b = %B[k, j], %acc = %zero) {
              %t = math.fma(%a, %b, %acc) : f32
              yield %t
            } : f32
            yield %sum
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("reduce", "linalg", result_count=None, pure=False, exact=True)

    def verify(self, op: Operation) -> None:
        """Loop dimensions first, then bindings of accesses, then bindings of plain values, and one region."""
        rank = 0
        for argument in layout_of(op):
            here = 0 if isinstance(argument, LoopDim) else 1
            if isinstance(argument, BindArg) and isinstance(argument.source, OperandArg):
                here = 2
            elif not isinstance(argument, (LoopDim, BindArg)):
                here = -1
            if here < rank:
                raise TypeProblem("expected loop dimensions (k < N), bindings of accesses (%a = %A[k]), then of scalars (%acc = %init)")
            rank = here
            if isinstance(argument, BindArg) and isinstance(argument.source, AccessArg):
                check_single(argument.source)
        if not _inits(op):
            raise TypeProblem("nothing is accumulated: expected a binding %acc = %init")
        _check_dims(op)
        if len(op.regions) != 1:
            raise TypeProblem("expected one region")

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        return [*_access_types(op, operand_types), *(operand_types[p] for p in _inits(op))]

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        inits = _inits(op)
        return carried_types(operand_types, inits, yielded or (), "accumulated")

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        accesses, inits = _accesses(op), _inits(op)
        block = op.regions[0].block
        yielded = block.terminator.operands if block.terminator is not None else []
        carried = [operands[p] for p in inits]
        dtypes = [environment.dtypes[op.operands[p]] for p in (*(a.position for a in accesses), *inits)]
        for places in _points(op, operands, environment):
            values = [*(operands[a.position][p] for a, p in zip(accesses, places, strict=True)), *carried]
            for argument, value, dtype in zip(block.arguments, values, dtypes, strict=True):
                environment.arrays[argument] = value
                environment.dtypes[argument] = dtype
            interpreter.run_block(block, environment, keep=True)
            carried = [environment.arrays[v] for v in yielded]
        return tuple(carried)


class Index(RegionOpDef):
    """The value of a loop dimension of a nest around it.

    Example::

        graph @example(%C: memref<i64[S, 4]>) {
          linalg.generic(i < S, j < 4, %c = %C[i, j]) {
            %i = linalg.index(dim="i") : index
            %n = arith.index_cast(%i) : i64
            yield %n
          }
          return
        }
    """

    def __init__(self) -> None:
        attributes = [AttributeSpec("dim", str, "", required=True, positional=False)]
        super().__init__("index", "linalg", attributes, result_count=1, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """No operand, and the name of a dimension of a nest around it."""
        if layout_of(op) or op.regions:
            raise TypeProblem('expected no operands: linalg.index(dim="i")')
        if op.attribute("dim") not in surrounding_dims(op):
            raise TypeProblem(f"no nest around here has a dimension {op.attribute('dim')}", attribute="dim")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        return (ScalarType(index),)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        name = op.attribute("dim")
        if name not in environment.names:
            raise ExecutionError(f"{name} has no value here")
        return (np.int64(environment.names[name]),)


register(Generic())
register(Reduce())
register(Index())
