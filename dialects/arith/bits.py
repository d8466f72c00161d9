"""Bits of integers, of scalars and vectors; and logic on bool."""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects._numerics import refuse_amount
from dialects._scalars import binary
from ir.opdef import BitsScalar, IntegerScalar, SignedScalar, op


@op(infer=binary, dialect="arith", elementwise=True, commutative=True)
def andi(x: BitsScalar, y: BitsScalar) -> Any:
    """The bits set in both x and y; of bool, whether both are true.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.andi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    return np.bitwise_and(x, y)


@op(infer=binary, dialect="arith", elementwise=True, commutative=True)
def ori(x: BitsScalar, y: BitsScalar) -> Any:
    """The bits set in x or y; of bool, whether one of them is true.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<bool[S]>, %B: memref<bool[S]>, %C: memref<bool[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.ori(%a, %b) : bool
            yield %r
          }
          return
        }
    """
    return np.bitwise_or(x, y)


@op(infer=binary, dialect="arith", elementwise=True, commutative=True)
def xori(x: BitsScalar, y: BitsScalar) -> Any:
    """The bits set in one of x and y; of bool, whether they differ.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.xori(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    return np.bitwise_xor(x, y)


@op(infer=binary, dialect="arith", elementwise=True, traps=True)
def shli(x: IntegerScalar, y: IntegerScalar) -> Any:
    """The bits of x moved up by y places; zeros come in.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  Bits that leave are lost.  An
    amount below 0, or not below the number of bits of the type, is refused when the program runs.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.shli(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    refuse_amount("arith.shli", x, y)
    return np.left_shift(x, y)


@op(infer=binary, dialect="arith", elementwise=True, traps=True)
def shrsi(x: SignedScalar, y: SignedScalar) -> Any:
    """The bits of x moved down by y places; the sign bit is repeated, so that it rounds down.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  An amount below 0, or not below the
    number of bits of the type, is refused when the program runs.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.shrsi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    refuse_amount("arith.shrsi", x, y)
    return np.right_shift(x, y)


@op(infer=binary, dialect="arith", elementwise=True, traps=True)
def shrui(x: IntegerScalar, y: IntegerScalar) -> Any:
    """The bits of x moved down by y places; zeros come in, for signed types too.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  An amount below 0, or not below the
    number of bits of the type, is refused when the program runs.

    Example::

        graph @example(%A: memref<u8[S]>, %B: memref<u8[S]>, %C: memref<u8[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.shrui(%a, %b) : u8
            yield %r
          }
          return
        }
    """
    refuse_amount("arith.shrui", x, y)
    x, y = np.asarray(x), np.asarray(y)
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return np.right_shift(x.astype(unsigned), y.astype(unsigned)).astype(x.dtype)
