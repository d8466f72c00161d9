"""Index arithmetic: operations whose arguments are the expressions that accesses and loop bounds are written in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dialects._access import check_expressions, number
from ir.core import Operation
from ir.dims import Dim, UnknownDim
from ir.layout import ExpressionArg, layout_of, wrap
from ir.opdef import ExecutionError, RegionOpDef, TypeProblem, register
from ir.types import ScalarType, Type, index


def expressions_of(op: Operation) -> list[Dim]:
    """The arguments of an operation of this dialect."""
    return [a.expr for a in layout_of(op) if isinstance(a, ExpressionArg)]


class _IndexOpDef(RegionOpDef):
    """An operation without effects on index expressions that gives an index."""

    takes_expressions = True
    form = ""  # how it is written, for messages

    def __init__(self, name: str, dialect: str) -> None:
        super().__init__(name, dialect, result_count=1, exact_bits=True, traps=True)

    def accepts(self, count: int) -> bool:
        """Whether it takes this many arguments."""
        return count >= 1

    def verify(self, op: Operation) -> None:
        """Expressions only, as many as the operation takes, and no region."""
        found = expressions_of(op)
        if len(found) != len(layout_of(op)) or not self.accepts(len(found)) or op.regions:
            raise TypeProblem(f"expected {self.form}")
        if any(isinstance(e, UnknownDim) for e in found):
            raise TypeProblem("an expression is '?'", hint="write a number, a dimension or a value of type index")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        check_expressions(op, operand_types, expressions_of(op))
        return (ScalarType(index),)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        values = [number(e, operands, environment.names, wraps=True) for e in expressions_of(op)]
        return (np.int64(wrap(self.compute(values))),)

    def compute(self, values: Sequence[int]) -> int:
        """The result for the values of the arguments."""
        raise NotImplementedError(self.full_name)


class Apply(_IndexOpDef):
    """The value of an index expression.

    Expressions are those of accesses: integers, named dimensions, loop dimensions of the nests around and values of type
    ``index``, with ``+``, ``-``, ``*``, ``floordiv``, ``ceildiv``, ``mod``, ``min`` and ``max``.  Numbers wrap around at
    64 bits, as those of ``arith`` do.

    Raises an error for a division by zero.

    Example::

        graph @example(%A: memref<f32[B, 4]>, %C: memref<f32[4*B]>) {
          scf.for(%i = 0 to 4*B) {
            %r = affine.apply(%i floordiv 4) : index
            %a = memref.load(%A[%r, %i-4*%r]) : f32
            memref.store(%a, %C[%i])
            yield
          }
          return
        }

    Example, in a nest::

        graph @example(%A: memref<f32[B]>, %C: memref<index[B]>) {
          linalg.generic(i < B, %a = %A[i], %c = %C[i]) {
            %n = affine.apply(B-i-1) : index
            yield %n
          }
          return
        }
    """

    form = "one expression: affine.apply(48*(%i floordiv 48) + B)"

    def __init__(self) -> None:
        super().__init__("apply", "affine")

    def accepts(self, count: int) -> bool:
        return count == 1

    def compute(self, values: Sequence[int]) -> int:
        return values[0]


class Min(_IndexOpDef):
    """The smallest of one or more index expressions (see ``affine.apply``).

    Raises an error for a division by zero.

    Example, where a tile ends::

        graph @example(%A: memref<f32[B]>, %C: memref<f32[B]>) {
          scf.for(%it = 0 to B step 8) {
            %e = affine.min(%it+8, B) : index
            scf.for(%i = %it to %e) {
              %a = memref.load(%A[%i]) : f32
              memref.store(%a, %C[%i])
              yield
            }
            yield
          }
          return
        }
    """

    form = "one expression or more: affine.min(%i + 8, B)"

    def __init__(self) -> None:
        super().__init__("min", "affine")

    def compute(self, values: Sequence[int]) -> int:
        return min(values)


class Max(_IndexOpDef):
    """The largest of one or more index expressions (see ``affine.apply``).

    Raises an error for a division by zero.

    Example, the element before, or the first one::

        graph @example(%A: memref<f32[B]>, %C: memref<f32[B]>) {
          scf.for(%i = 0 to B) {
            %p = affine.max(%i-1, 0) : index
            %a = memref.load(%A[%p]) : f32
            memref.store(%a, %C[%i])
            yield
          }
          return
        }
    """

    form = "one expression or more: affine.max(%i - 8, 0)"

    def __init__(self) -> None:
        super().__init__("max", "affine")

    def compute(self, values: Sequence[int]) -> int:
        return max(values)


class AlignDown(_IndexOpDef):
    """The largest multiple of the second expression that is not above the first (see ``affine.apply``).

    ``affine.align_down(%i, 48)`` is ``48 * (%i floordiv 48)``.

    Raises an error for a second one that is not positive, and for a division by zero.

    Example, where the last whole tile ends::

        graph @example(%A: memref<f32[B]>, %C: memref<f32[B]>) {
          %e = affine.align_down(B, 8) : index
          scf.for(%it = 0 to %e step 8) {
            %t = vector.load(%A[%it:+8]) : vector<f32[8]>
            vector.store(%t, %C[%it:+8])
            yield
          }
          scf.for(%i = %e to B) {
            %a = memref.load(%A[%i]) : f32
            memref.store(%a, %C[%i])
            yield
          }
          return
        }
    """

    form = "two expressions: affine.align_down(%i, 48)"

    def __init__(self) -> None:
        super().__init__("align_down", "affine")

    def accepts(self, count: int) -> bool:
        return count == 2

    def verify(self, op: Operation) -> None:
        """Two expressions, of which the second one is not a number below 1."""
        super().verify(op)
        alignment = expressions_of(op)[1]
        if isinstance(alignment, int) and alignment < 1:
            raise TypeProblem(f"the alignment is {alignment}, it must be positive")

    def compute(self, values: Sequence[int]) -> int:
        value, alignment = values
        if alignment < 1:
            raise ExecutionError(f"the alignment is {alignment}, it must be positive")
        return value // alignment * alignment


register(Apply())
register(Min())
register(Max())
register(AlignDown())
