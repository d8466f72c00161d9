"""Mathematical functions of scalars and vectors, the bodies of loop nests."""

from __future__ import annotations

from typing import Any

import numpy as np

from ir.opdef import FloatScalar, TypeProblem, op
from ir.types import ScalarType, Type, VectorType


def _same_type(a: Type, b: Type, c: Type) -> Type:
    for name, other in (("b", b), ("c", c)):
        if other != a:
            raise TypeProblem(f"operand types differ: 'a' is {a}, '{name}' is {other}", operand=name)
    assert isinstance(a, (ScalarType, VectorType))
    return a


@op(infer=_same_type, dialect="math", elementwise=True, exact=True)
def fma(a: FloatScalar, b: FloatScalar, c: FloatScalar) -> Any:
    """a * b + c with one rounding (fused multiply-add, IEEE 754-2019 section 5.4.1).

    The reference computes f32 and narrower in float64, where the product is exact and the sum is rounded to odd, so
    that the rounding to the result's type is the only one.  For f64 the product rounds first.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(p < S, %x = %A[p], %o = %C[p]) {
            %f = math.fma(%x, %x, %o) : f32
            yield %f
          }
          return
        }
    """
    product = a * b  # exact for widened f32 operands: 24 + 24 bits
    total = product + c
    with np.errstate(all="ignore"):
        # error of the sum, exactly (Knuth, TAOCP vol. 2, 4.2.2 theorem B); round to odd when there is one
        back = total - product
        error = (product - (total - back)) + (c - back)
    return _round_to_odd(np.asarray(total), np.asarray(error))


def _round_to_odd(total: Any, error: Any) -> Any:
    bits = total.reshape(-1).view(np.uint64).copy()
    wrong = error.reshape(-1)
    inexact = np.isfinite(total.reshape(-1)) & np.isfinite(wrong) & (wrong != 0)
    away = np.signbit(wrong) != np.signbit(total.reshape(-1))  # the true sum is nearer to zero
    bits = np.where(inexact & away, bits - np.uint64(1), bits)
    bits = np.where(inexact, bits | np.uint64(1), bits)
    return bits.view(np.float64).reshape(total.shape)
