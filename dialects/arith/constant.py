"""Constants of the lower levels."""

from __future__ import annotations

from typing import Any

from dialects._scalars import Operand
from ir.attributes import Dense
from ir.opdef import op
from ir.types import ScalarType, VectorType


def _constant(value: Dense) -> Operand:
    type_ = value.type
    return VectorType(value.dtype, tuple(map(int, value.array.shape))) if type_.shape else ScalarType(value.dtype)


@op(infer=_constant, dialect="arith", exact_bits=True)
def constant(value: Dense) -> Any:
    """The scalar or vector written in place.

    The declared type gives the element type: ``arith.constant(0) : index``.  A single number fills a vector, nested lists
    spell one out.  Without a declared type integers make i64, true and false make bool, everything else f32.  Decimal
    numbers are rounded once; ``inf``, ``nan`` and ``bits(0x7fc00001)`` (the stored bits) are written as such.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %half = arith.constant(0.5) : f32
            %r = arith.mulf(%a, %half) : f32
            yield %r
          }
          return
        }

    Example, a vector::

        graph @example(%A: memref<i32[8]>, %C: memref<i32[8]>) {
          %k = arith.constant([1, 2, 3, 4, -1, -2, -3, -4]) : vector<i32[8]>
          %a = vector.load(%A[0:+8]) : vector<i32[8]>
          %r = arith.muli(%a, %k) : vector<i32[8]>
          vector.store(%r, %C[0:+8])
          return
        }
    """
    return value.array
