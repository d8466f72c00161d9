"""Arithmetic of integers, of scalars and vectors.

The element type says whether an integer has a sign: operations with ``si`` in their name are for i8 to i64 and index,
those with ``ui`` for u8.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects._numerics import refuse_zero, truncated_quotient
from dialects._scalars import binary
from ir.opdef import IntegerScalar, SignedScalar, UnsignedScalar, op


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def addi(x: IntegerScalar, y: IntegerScalar) -> Any:
    """x + y of integers, wrapping around (two's complement).

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.addi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    return x + y


@op(infer=binary, dialect="arith", elementwise=True, exact=True)
def subi(x: IntegerScalar, y: IntegerScalar) -> Any:
    """x - y of integers, wrapping around (two's complement).

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.subi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    return x - y


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def muli(x: IntegerScalar, y: IntegerScalar) -> Any:
    """x * y of integers, wrapping around (two's complement).

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<i64[S]>, %B: memref<i64[S]>, %C: memref<i64[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.muli(%a, %b) : i64
            yield %r
          }
          return
        }
    """
    return x * y


@op(infer=binary, dialect="arith", elementwise=True, exact=True, traps=True)
def divsi(x: SignedScalar, y: SignedScalar) -> Any:
    """The quotient of signed integers rounded toward zero, as in C: -7 by 2 is -3.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  A division by zero is refused when
    the program runs; the smallest integer by -1 wraps around to itself.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.divsi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    refuse_zero("arith.divsi", x, y)
    return truncated_quotient(x, y)


@op(infer=binary, dialect="arith", elementwise=True, exact=True, traps=True)
def floordivsi(x: SignedScalar, y: SignedScalar) -> Any:
    """The quotient of signed integers rounded down: -7 by 2 is -4.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  A division by zero is refused when
    the program runs; the smallest integer by -1 wraps around to itself.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.floordivsi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    refuse_zero("arith.floordivsi", x, y)
    return np.floor_divide(x, y)


@op(infer=binary, dialect="arith", elementwise=True, exact=True, traps=True)
def remsi(x: SignedScalar, y: SignedScalar) -> Any:
    """The remainder of ``divsi``, with the sign of x: of -7 and 2 it is -1.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  A division by zero is refused when
    the program runs; the remainder of the smallest integer and -1 is 0.

    Example::

        graph @example(%A: memref<i64[S]>, %B: memref<i64[S]>, %C: memref<i64[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.remsi(%a, %b) : i64
            yield %r
          }
          return
        }
    """
    refuse_zero("arith.remsi", x, y)
    return np.fmod(x, y)


@op(infer=binary, dialect="arith", elementwise=True, exact=True, traps=True)
def modsi(x: SignedScalar, y: SignedScalar) -> Any:
    """The remainder of ``floordivsi``, with the sign of y: of -7 and 2 it is 1.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  A division by zero is refused when
    the program runs; the remainder of the smallest integer and -1 is 0.

    Example::

        graph @example(%A: memref<i64[S]>, %B: memref<i64[S]>, %C: memref<i64[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.modsi(%a, %b) : i64
            yield %r
          }
          return
        }
    """
    refuse_zero("arith.modsi", x, y)
    return np.mod(x, y)


@op(infer=binary, dialect="arith", elementwise=True, exact=True, traps=True)
def divui(x: UnsignedScalar, y: UnsignedScalar) -> Any:
    """The quotient of unsigned integers, rounded down.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  A division by zero is refused when
    the program runs.

    Example::

        graph @example(%A: memref<u8[S]>, %B: memref<u8[S]>, %C: memref<u8[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.divui(%a, %b) : u8
            yield %r
          }
          return
        }
    """
    refuse_zero("arith.divui", x, y)
    return np.floor_divide(x, y)


@op(infer=binary, dialect="arith", elementwise=True, exact=True, traps=True)
def remui(x: UnsignedScalar, y: UnsignedScalar) -> Any:
    """The remainder of the division of unsigned integers.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  A division by zero is refused when
    the program runs.

    Example::

        graph @example(%A: memref<u8[S]>, %B: memref<u8[S]>, %C: memref<u8[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.remui(%a, %b) : u8
            yield %r
          }
          return
        }
    """
    refuse_zero("arith.remui", x, y)
    return np.mod(x, y)


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def maxsi(x: SignedScalar, y: SignedScalar) -> Any:
    """The larger of two signed integers.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.maxsi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    return np.maximum(x, y)


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def minsi(x: SignedScalar, y: SignedScalar) -> Any:
    """The smaller of two signed integers.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<i32[S]>, %B: memref<i32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.minsi(%a, %b) : i32
            yield %r
          }
          return
        }
    """
    return np.minimum(x, y)


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def maxui(x: UnsignedScalar, y: UnsignedScalar) -> Any:
    """The larger of two unsigned integers.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<u8[S]>, %B: memref<u8[S]>, %C: memref<u8[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.maxui(%a, %b) : u8
            yield %r
          }
          return
        }
    """
    return np.maximum(x, y)


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def minui(x: UnsignedScalar, y: UnsignedScalar) -> Any:
    """The smaller of two unsigned integers.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<u8[S]>, %B: memref<u8[S]>, %C: memref<u8[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.minui(%a, %b) : u8
            yield %r
          }
          return
        }
    """
    return np.minimum(x, y)
