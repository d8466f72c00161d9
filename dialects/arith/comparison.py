"""Comparisons and choices, of scalars and vectors."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from dialects._scalars import Operand, broadcast, require_same_dtype
from ir.opdef import BitsScalar, BooleanScalar, FloatScalar, Scalar, TypeProblem, op
from ir.types import boolean

Predicate = Literal["eq", "ne", "lt", "le", "gt", "ge"]

_COMPARE: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _compare(x: Operand, y: Operand, predicate: str) -> Operand:
    dtype = require_same_dtype(("x", x), ("y", y))
    if dtype == boolean and predicate not in ("eq", "ne"):
        raise TypeProblem(f'bool has no order: expected "eq" or "ne", found "{predicate}"', attribute="predicate")
    return broadcast(boolean, ("x", x), ("y", y))


def _select(cond: Operand, x: Operand, y: Operand) -> Operand:
    return broadcast(require_same_dtype(("x", x), ("y", y)), ("cond", cond), ("x", x), ("y", y))


@op(infer=_compare, dialect="arith", elementwise=True, exact_bits=True)
def cmpf(x: FloatScalar, y: FloatScalar, *, predicate: Predicate) -> Any:
    """Whether floats compare as ``predicate`` says: a bool.

    ``"eq"``, ``"ne"``, ``"lt"``, ``"le"``, ``"gt"`` and ``"ge"`` are those of IEEE 754: with a NaN on either side
    ``"ne"`` is true and all others are false; -0 and +0 are equal.  Scalars and vectors broadcast like numpy's arrays.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<bool[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.cmpf(%a, %b, predicate="lt") : bool
            yield %r
          }
          return
        }
    """
    return _COMPARE[predicate](x, y)


@op(infer=_compare, dialect="arith", elementwise=True, exact_bits=True)
def cmpi(x: BitsScalar, y: BitsScalar, *, predicate: Predicate) -> Any:
    """Whether integers compare as ``predicate`` says: a bool.

    The element type says whether there is a sign.  Operands of bool can be compared with ``"eq"`` and ``"ne"`` only.
    Scalars and vectors broadcast like numpy's arrays.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<bool[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.cmpi(%a, %b, predicate="ge") : bool
            yield %r
          }
          return
        }
    """
    return _COMPARE[predicate](x, y)


@op(infer=_select, dialect="arith", elementwise=True, exact_bits=True)
def select(cond: BooleanScalar, x: Scalar, y: Scalar) -> Any:
    """x where cond is true, y where it is false.

    Scalars and vectors broadcast like numpy's arrays; x and y have one element type.  The chosen element keeps its bits,
    and the other one has no influence, whatever it is.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %less = arith.cmpf(%a, %b, predicate="lt") : bool
            %r = arith.select(%less, %a, %b) : f32
            yield %r
          }
          return
        }
    """
    return np.where(cond, x, y)
