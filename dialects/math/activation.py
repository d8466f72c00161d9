"""Activations of scalars and vectors, which a fused nest shows as one operation.

Those that the graph dialect has too give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects._scalars import same
from dialects.graph import _special
from ir.opdef import FloatScalar, op


@op(infer=same, dialect="math", elementwise=True)
def gelu(x: FloatScalar) -> Any:
    """x * normcdf(x), rounded once.

    A product of its own would lose digits where ``normcdf`` is denormal and the result is not.  gelu(-0) is -0, gelu(-inf) is
    -0 (the limit), gelu(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.gelu(%a) : f32
            yield %r
          }
          return
        }
    """
    return np.where(np.isneginf(x), -0.0, x * _special.normcdf(np.asarray(x)))


@op(infer=same, dialect="math", elementwise=True)
def gelu_tanh(x: FloatScalar) -> Any:
    """x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 * x^3)), which is gelu with tanh in the place of erf, rounded once.

    gelu_tanh(-0) is -0, gelu_tanh(-inf) is -0 (the limit), gelu_tanh(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.gelu_tanh(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.gelu_tanh(x)


@op(infer=same, dialect="math", elementwise=True)
def sigmoid(x: FloatScalar) -> Any:
    """1 / (1 + exp(-x)).

    Accurate where it is small too, down to denormals: below 0 it is exp(x) / (1 + exp(x)).  sigmoid(-inf) is 0,
    sigmoid(inf) is 1, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.sigmoid(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.sigmoid(np.asarray(x))


@op(infer=same, dialect="math", elementwise=True)
def silu(x: FloatScalar) -> Any:
    """x * sigmoid(x), rounded once.

    A product of its own would lose digits where ``sigmoid`` is denormal and the result is not.  silu(-0) is -0, silu(-inf) is
    -0 (the limit), silu(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = math.silu(%a) : f32
            yield %r
          }
          return
        }
    """
    return _special.silu(np.asarray(x))
