"""Control flow that leaves: checks at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dialects._access import check_expressions, number
from ir.core import Operation
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import UnknownDim
from ir.layout import OperandArg, layout_of
from ir.opdef import AttributeSpec, OperandKind, OperandSpec, RegionOpDef, Shape, TypeProblem, register
from ir.types import ScalarType, Type, UnknownType, boolean

_NUMBER = OperandKind("an index or i64", (), (ScalarType,))
_VALUES = ("v0", "v1")


def fill_message(message: str, values: Sequence[int | None]) -> str:
    """The message of a check that failed: ``{0}``, ``{1}`` and so on stand for the values, where they are given."""
    for place, value in enumerate(values):
        if value is not None:
            message = message.replace(f"{{{place}}}", str(value))
    return message


class Assert(RegionOpDef):
    """Stops the program with ``message`` when a bool is false.

    The message is all that is said, so it should name what was checked.  ``{0}`` and ``{1}`` in it stand for the values
    of ``v0`` and ``v1``, each an index or i64; ``{2}`` and so on stand for ``dims``, dimensions of the program.  Without
    the operand, or the dimension, they stand for themselves.

    Has no result, and is never removed or moved past another effect.

    Example::

        graph @example(%A: memref<f32[4]>, %J: memref<index[S]>, %C: memref<f32[S]>) {
          scf.for(%i = 0 to S) {
            %j = memref.load(%J[%i]) : index
            %four = arith.constant(4) : index
            %less = arith.cmpi(%j, %four, predicate="lt") : bool
            cf.assert(%less, v0=%j, v1=%i, message="index {0} at position {1} is not below 4")
            %a = memref.load(%A[%j]) : f32
            memref.store(%a, %C[%i])
            yield
          }
          return
        }

    Example, dimensions::

        graph @example(%A: memref<f32[S, T]>) {
          %s = memref.dim(%A, axis=0) : index
          %t = memref.dim(%A, axis=1) : index
          %fits = arith.cmpi(%s, %t, predicate="le") : bool
          cf.assert(%fits, message="{2} rows and {3} columns", dims=[S, T])
          return
        }
    """

    def __init__(self) -> None:
        attributes = [
            AttributeSpec("message", str, "", required=True, positional=False),
            AttributeSpec("dims", Shape, (), required=False, positional=False),
        ]
        values = [OperandSpec(name, _NUMBER, optional=True) for name in _VALUES]
        super().__init__("assert", "cf", attributes, values, result_count=0, pure=False, exact_bits=True, traps=True)

    def verify(self, op: Operation) -> None:
        """One plain operand, and no region."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], OperandArg) or op.regions:
            raise TypeProblem('expected one operand: cf.assert(%cond, message="...")')

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        if not isinstance(operand_types[0], UnknownType) and operand_types[0] != ScalarType(boolean):
            raise TypeProblem(f"expected a scalar of bool, found {operand_types[0]}", operand=0)
        for name in _VALUES:
            position = self.operand_position(op, name)
            if position is None or isinstance(operand_types[position], UnknownType):
                continue
            type_ = operand_types[position]
            if not isinstance(type_, ScalarType) or type_.dtype.name not in ("index", "i64"):
                raise TypeProblem(f"expected an index or i64, found {type_}", operand=position)
        dims: Any = op.attribute("dims")
        if any(isinstance(d, UnknownDim) for d in dims):
            raise TypeProblem("a dimension is '?'", attribute="dims")
        check_expressions(op, operand_types, dims)
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        if not bool(operands[0]):
            message: Any = op.attribute("message")
            dims: Any = op.attribute("dims")
            places = [self.operand_position(op, name) for name in _VALUES]
            values = [None if p is None else int(operands[p]) for p in places]
            values += [number(d, operands, environment.names) for d in dims]
            raise GraphError(Diagnostic(fill_message(message, values), op.loc))
        return ()


register(Assert())
