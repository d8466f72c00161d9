"""Structured control flow: loops and choices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dialects._access import carried_types, check_expressions, number
from ir.core import Operation
from ir.dims import Dim, UnknownDim
from ir.layout import BindArg, OperandArg, RangeArg, layout_of
from ir.opdef import AttributeSpec, ExecutionError, RegionOpDef, TypeProblem, register
from ir.types import ScalarType, Type, UnknownType, boolean, index, merge_types

_TAG = AttributeSpec("tag", str, "", required=False, positional=False)
_MAPPING = AttributeSpec("mapping", Literal["none", "threads"], "none", required=False, positional=False)
_WORK = AttributeSpec("work", Dim | None, None, required=False, positional=False)


def _rounds(bounds: RangeArg, operands: Sequence[Any], environment: Any) -> range:
    """The numbers that a range runs through.  Raises ExecutionError for a step that is not positive."""
    start, stop, step = (number(e, operands, environment.names) for e in (bounds.start, bounds.stop, bounds.step))
    if step <= 0:
        raise ExecutionError(f"the step is {step}, it must be positive")
    return range(start, stop, step)


def _check_range(op: Operation, operand_types: Sequence[Type], bounds: RangeArg) -> None:
    check_expressions(op, operand_types, (bounds.start, bounds.stop, bounds.step))
    if isinstance(bounds.step, int) and bounds.step <= 0:
        raise TypeProblem(f"the step is {bounds.step}, it must be positive")


class For(RegionOpDef):
    """A counted loop that may carry values from one round to the next.

    ``scf.for(%i = a to b step c, %acc = %init)`` runs its region for i = a, a + c, ... while i < b (c > 0).  The region
    gets i, of type ``index``, and the carried values; what it yields are the carried values of the next round, and
    after the last round the results.  A loop that runs no round gives its initial values.  ``tag`` is a name by which
    passes address the loop; it means nothing.

    Raises an error for a step that is not positive.

    Example::

        graph @example(%x: f32[B, 4], %n: f32[B, 4]) -> f32[B, 4] {
          %s = scf.for(%i = 0 to B step 2, %acc = %x) {
            %t = add(%acc, %n) : f32[B, 4]
            yield %t
          } : f32[B, 4]
          return %s
        }

    Example, a sum in a register::

        graph @example(%A: memref<f32[S, 8]>, %C: memref<f32[8]>) {
          %zero = arith.constant(0.0) : vector<f32[1, 8]>
          %s = scf.for(%i = 0 to S, %acc = %zero) {
            %a = vector.load(%A[%i, 0:+8]) : vector<f32[1, 8]>
            %t = math.fma(%a, %a, %acc) : vector<f32[1, 8]>
            yield %t
          } : vector<f32[1, 8]>
          %r = vector.reshape(%s) : vector<f32[8]>
          vector.store(%r, %C[0:+8])
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("for", "scf", [_TAG], result_count=None, exact=True)

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
        bounds = layout_of(op)[0]
        assert isinstance(bounds, RangeArg)
        _check_range(op, operand_types, bounds)
        return [ScalarType(index), *(operand_types[p] for p in self._inits(op))]

    def _inits(self, op: Operation) -> list[int]:
        sources = [a.source for a in layout_of(op) if isinstance(a, BindArg)]
        return [s.position for s in sources if isinstance(s, OperandArg)]

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        inits = self._inits(op)
        return carried_types(operand_types, inits, yielded or (), "carried")

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        bounds = layout_of(op)[0]
        assert isinstance(bounds, RangeArg)
        block = op.regions[0].block
        inits = self._inits(op)
        carried = [operands[p] for p in inits]
        dtypes = [environment.dtypes[op.operands[p]] for p in inits]
        for at in _rounds(bounds, operands, environment):
            values = [np.int64(at), *carried]
            for argument, value, dtype in zip(block.arguments, values, [index, *dtypes], strict=True):
                environment.arrays[argument] = value
                environment.dtypes[argument] = dtype
            interpreter.run_block(block, environment, keep=True)
            terminator = block.terminator
            carried = [environment.arrays[v] for v in terminator.operands] if terminator is not None else []
        return tuple(carried)


class Parallel(RegionOpDef):
    """A loop whose rounds may run in any order, or at the same time.

    ``scf.parallel(%i = a to b step c, %j = d to e)`` runs its region for all combinations of the numbers that the ranges
    run through (see ``scf.for``).  It carries nothing: its rounds have an effect by what they store, and none may read or
    write what another one writes.  ``tag`` is a name by which passes address the loop; ``mapping="threads"`` says that
    the threads that run the program share its rounds, when they are worth it: ``work`` is about how many simple operations
    (a multiply-add of up to 16 lanes, say) all rounds are, ``work=96*B*S``; without it they are always shared.

    Raises an error for a step that is not positive.

    Example::

        graph @example(%A: memref<f32[B, S]>, %C: memref<f32[B, S]>) {
          scf.parallel(%i = 0 to B, %j = 0 to S) {
            %a = memref.load(%A[%i, %j]) : f32
            %r = math.tanh(%a) : f32
            memref.store(%r, %C[%i, %j])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("parallel", "scf", [_TAG, _MAPPING, _WORK], result_count=0, exact=True)

    def verify(self, op: Operation) -> None:
        """One range or more, and one region."""
        layout = layout_of(op)
        if not layout or not all(isinstance(a, RangeArg) for a in layout):
            raise TypeProblem("expected ranges: scf.parallel(%i = a to b step c, ...)")
        if len(op.regions) != 1:
            raise TypeProblem("expected one region")

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        for bounds in layout_of(op):
            assert isinstance(bounds, RangeArg)
            _check_range(op, operand_types, bounds)
        work: Any = op.attribute("work")
        if isinstance(work, UnknownDim):
            raise TypeProblem("the work is '?'", attribute="work")
        if work is not None:
            check_expressions(op, operand_types, (work,))
        return [ScalarType(index) for _ in layout_of(op)]

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        if yielded:
            raise TypeProblem(f"the region yields {len(yielded)} values, but nothing is carried")
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        ranges = [_rounds(a, operands, environment) for a in layout_of(op) if isinstance(a, RangeArg)]
        if interpreter.reverse_parallel:
            ranges = [r[::-1] for r in ranges]
        block = op.regions[0].block
        for point in itertools.product(*ranges):
            for argument, at in zip(block.arguments, point, strict=True):
                environment.arrays[argument] = np.int64(at)
                environment.dtypes[argument] = index
            interpreter.run_block(block, environment, keep=True)
        return ()


class If(RegionOpDef):
    """Runs its first region when a bool is true, its second one when it is false.

    ``scf.if(%cond) {...} {...}``: the results are what the region that ran yields; both yield values of the same types.
    A choice without results may leave the second region out.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          %zero = arith.constant(0.0) : f32
          scf.for(%i = 0 to S) {
            %a = memref.load(%A[%i]) : f32
            %less = arith.cmpf(%a, %zero, predicate="lt") : bool
            %r = scf.if(%less) {
              %e = math.exp(%a) : f32
              yield %e
            } {
              yield %a
            } : f32
            memref.store(%r, %C[%i])
            yield
          }
          return
        }

    Example, one region::

        graph @example(%A: memref<i32[S]>, %C: memref<i32[S]>) {
          %zero = arith.constant(0) : i32
          scf.for(%i = 0 to S) {
            %a = memref.load(%A[%i]) : i32
            %more = arith.cmpi(%a, %zero, predicate="gt") : bool
            scf.if(%more) {
              memref.store(%a, %C[%i])
              yield
            }
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("if", "scf", result_count=None, exact=True)

    def verify(self, op: Operation) -> None:
        """One plain operand; two regions, or one without results."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], OperandArg):
            raise TypeProblem("expected one operand: scf.if(%cond)")
        if not 1 <= len(op.regions) <= 2:
            raise TypeProblem(f"expected one or two regions, found {len(op.regions)}")
        if len(op.regions) == 1 and op.results:
            raise TypeProblem("a choice with results needs two regions")

    def region_argument_types(self, op: Operation, operand_types: Sequence[Type]) -> list[Type]:
        type_ = operand_types[0]
        if not isinstance(type_, UnknownType) and type_ != ScalarType(boolean):
            raise TypeProblem(f"expected a scalar of bool, found {type_}", operand=0)
        return []

    def merge_yielded(self, op: Operation, yields: Sequence[Sequence[Type]]) -> Sequence[Type]:
        if len(yields) == 1:
            return yields[0]
        first, second = yields
        if len(first) != len(second):
            raise TypeProblem(f"the first region yields {len(first)} values, the second one {len(second)}")
        merged = []
        for a, b in zip(first, second, strict=True):
            type_ = merge_types(a, b)
            if type_ is None:
                raise TypeProblem(f"the first region yields {a} where the second one yields {b}")
            merged.append(type_)
        return merged

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        if len(op.regions) == 1 and yielded:
            raise TypeProblem("the region yields a value, but there is no second one for the other case")
        return tuple(yielded or ())

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        chosen = 0 if bool(operands[0]) else 1
        if chosen == len(op.regions):
            return ()
        block = op.regions[chosen].block
        interpreter.run_block(block, environment, keep=True)
        return tuple(environment.arrays[v] for v in block.terminator.operands) if block.terminator is not None else ()


register(For())
register(Parallel())
register(If())
