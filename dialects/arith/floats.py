"""Arithmetic of floats, of scalars and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects._scalars import binary, same
from dialects.graph._special import ieee_maximum, ieee_minimum
from ir.opdef import FloatScalar, op


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def addf(x: FloatScalar, y: FloatScalar) -> Any:
    """x + y of floats, rounded once.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  -0 + +0 is +0,
    inf + -inf is NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.addf(%a, %b) : f32
            yield %r
          }
          return
        }

    Example, a scalar and a vector::

        graph @example(%A: memref<f32[16, 8]>, %B: memref<f32[16]>, %C: memref<f32[16, 8]>) {
          scf.for(%i = 0 to 16) {
            %a = vector.load(%A[%i, 0:+8]) : vector<f32[1, 8]>
            %b = memref.load(%B[%i]) : f32
            %r = arith.addf(%a, %b) : vector<f32[1, 8]>
            vector.store(%r, %C[%i, 0:+8])
            yield
          }
          return
        }
    """
    return x + y


@op(infer=binary, dialect="arith", elementwise=True, exact=True)
def subf(x: FloatScalar, y: FloatScalar) -> Any:
    """x - y of floats, rounded once.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  x - x is NaN where x is
    infinite or NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.subf(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return x - y


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def mulf(x: FloatScalar, y: FloatScalar) -> Any:
    """x * y of floats, rounded once; denormals are kept.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  0 * inf is NaN, the sign of
    a zero is the product of the signs.

    Example::

        graph @example(%A: memref<f16[S]>, %B: memref<f16[S]>, %C: memref<f16[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.mulf(%a, %b) : f16
            yield %r
          }
          return
        }
    """
    return x * y


@op(infer=binary, dialect="arith", elementwise=True)
def divf(x: FloatScalar, y: FloatScalar) -> Any:
    """x / y of floats, rounded once.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  By IEEE 754 x / 0 is inf
    with the sign of the quotient, 0 / 0 and inf / inf are NaN; nothing is raised.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.divf(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return x / y


@op(infer=binary, dialect="arith", elementwise=True, exact=True)
def remf(x: FloatScalar, y: FloatScalar) -> Any:
    """The remainder of x / y rounded toward zero, exactly (C's ``fmod``); it has the sign of x.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.  A zero result has the sign
    of x.  For y = 0 and for infinite x the result is NaN; for infinite y it is x.  NaN gives NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.remf(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return np.fmod(x, y)


@op(infer=same, dialect="arith", elementwise=True, exact=True)
def negf(x: FloatScalar) -> Any:
    """-x of floats: only the sign changes, so that +0 gives -0.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.negf(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.negative(x)


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def maximumf(x: FloatScalar, y: FloatScalar) -> Any:
    """The larger of x and y by IEEE 754-2019 ``maximum``: NaN wins, and -0 is smaller than +0.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.maximumf(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return ieee_maximum(np.asarray(x), np.asarray(y))


@op(infer=binary, dialect="arith", elementwise=True, commutative=True, exact=True)
def minimumf(x: FloatScalar, y: FloatScalar) -> Any:
    """The smaller of x and y by IEEE 754-2019 ``minimum``: NaN wins, and -0 is smaller than +0.

    Scalars and vectors broadcast like numpy's arrays; both operands have one element type.

    Example::

        graph @example(%A: memref<f32[S]>, %B: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %b = %B[i], %c = %C[i]) {
            %r = arith.minimumf(%a, %b) : f32
            yield %r
          }
          return
        }
    """
    return ieee_minimum(np.asarray(x), np.asarray(y))
