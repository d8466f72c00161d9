"""Arithmetic of bytes, four in each i32: what processors have instructions for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dialects._scalars import Operand, broadcast, require_same_dtype
from ir.opdef import SignedScalar, TypeProblem, op
from ir.types import i32


def _words(**operands: Operand) -> Operand:
    """The type of words, four bytes each, that are made of others."""
    named = tuple(operands.items())
    dtype = require_same_dtype(*named)
    if dtype != i32:
        name, found = named[0]
        raise TypeProblem(f"expected i32, four bytes, found {found}", operand=name)
    return broadcast(dtype, *named)


def _dot4(x: Operand, y: Operand, acc: Operand, *, small: bool) -> Operand:
    return _words(acc=acc, x=x, y=y)


def _add4(x: Operand, y: Operand) -> Operand:
    return _words(x=x, y=y)


def four_bytes(x: Any, dtype: type[np.generic]) -> NDArray[Any]:
    """The four bytes of every element along a new last axis, the lowest first, as i32."""
    words = np.ascontiguousarray(x, "<i4")
    return words.reshape(-1, 1).view(dtype).reshape(*np.shape(x), 4).astype(np.int32)


@op(infer=_dot4, dialect="arith", elementwise=True, exact=True)
def dot4(x: SignedScalar, y: SignedScalar, acc: SignedScalar, *, small: bool = False) -> Any:
    """acc + x0 * y0 + x1 * y1 + x2 * y2 + x3 * y3, the bytes of x without a sign, those of y with one.

    Each element of x and y is an i32 that holds four bytes, the lowest one first: 0 to 255 in x, -128 to 127 in y.  The sum is
    exact and wraps around at 32 bits (two's complement).  Scalars and vectors broadcast like numpy's arrays.

    ``small`` promises that no byte of x is above 127; what is made of it then takes fewer instructions on some processors, and is
    wrong for larger ones.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.dot4(%a, %b, %c) : i32
            yield %r
          }
          return
        }
    """
    products = four_bytes(x, np.uint8) * four_bytes(y, np.int8)  # below 2**15 each, so that their sum is exact
    return products.sum(axis=-1, dtype=np.int32) + acc


@op(infer=_add4, dialect="arith", elementwise=True, commutative=True, exact=True)
def add4(x: SignedScalar, y: SignedScalar) -> Any:
    """The sums of the bytes of x and y, one by one.

    Each element of x and y is an i32 that holds four bytes.  A sum wraps around at 8 bits, and nothing is carried to its neighbour: so it
    is that of bytes with a sign as well as without.  Scalars and vectors broadcast like numpy's arrays.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.add4(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    sums = (four_bytes(x, np.uint8) + four_bytes(y, np.uint8)).astype(np.uint8)
    return sums.view("<i4")[..., 0]
