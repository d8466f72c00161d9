"""Activation functions, elementwise.

They are accurate on the whole line: the tails are computed from forms that neither cancel nor overflow there.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dialects.graph import _special
from dialects.graph._special import erfc, ieee_maximum
from dialects.graph._wide import rounded
from ir.opdef import Float, Numeric, Tensor, TypeProblem, op
from ir.types import TensorType


def _same(x: TensorType, **_: Any) -> TensorType:
    return x


def _with_alpha(x: TensorType, alpha: float) -> TensorType:
    if not math.isfinite(alpha):
        raise TypeProblem(f"alpha is a finite number, found {alpha}", attribute="alpha")
    return x


def _times_gate(x: NDArray[Any], gate: NDArray[Any]) -> NDArray[Any]:
    """x * gate with the limit -0 at -inf, where the gate is 0."""
    return np.where(np.isneginf(x), -0.0, x * gate)


@op(infer=_same, elementwise=True, exact=True, composite=True)
def relu(x: Numeric) -> Tensor:
    """maximum(x, 0), elementwise.

    NaN stays NaN; relu(-0) is +0.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = relu(%x)
          return %y
        }

    Example, integers::

        graph @example(%x: i32[N]) -> i32[N] {
          %y = relu(%x)
          return %y
        }
    """
    return ieee_maximum(x, np.zeros_like(x))


@op(infer=_with_alpha, elementwise=True, composite=True, needs_output_type=True)
def leaky_relu(x: Float, *, alpha: float = 0.01, output_type: TensorType) -> Tensor:
    """x where x >= 0, else alpha * x, elementwise.

    ``alpha`` is finite and is rounded to the type computed in (f32 for f16 and bf16, else the element
    type).  Zeros keep their sign (-0 counts as >= 0); NaN stays NaN; -inf gives -inf for positive alpha and NaN for
    alpha = 0.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = leaky_relu(%x)
          return %y
        }

    Example, with another slope::

        graph @example(%x: f16[B, 4]) -> f16[B, 4] {
          %y = leaky_relu(%x, alpha=0.25)
          return %y
        }
    """
    return np.where(x >= 0, x, rounded(alpha, output_type.dtype) * x)


@op(infer=_with_alpha, elementwise=True, composite=True, needs_output_type=True)
def elu(x: Float, *, alpha: float = 1.0, output_type: TensorType) -> Tensor:
    """x where x > 0, else alpha * expm1(x), elementwise.

    ``alpha`` is finite and is rounded to the type computed in (f32 for f16 and bf16, else the element
    type).  Accurate near 0; elu(-inf) is -alpha, elu(-0) is -0 for positive alpha; NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = elu(%x)
          return %y
        }

    Example, with another scale::

        graph @example(%x: f32[B]) -> f32[B] {
          %y = elu(%x, alpha=0.5)
          return %y
        }
    """
    return np.where(x > 0, x, rounded(alpha, output_type.dtype) * np.expm1(x))


@op(infer=_same, elementwise=True, composite=True)
def sigmoid(x: Float) -> Tensor:
    """1 / (1 + exp(-x)), elementwise.

    At most 4 ulp from exact on the whole line: below 0 it is computed as exp(x) / (1 + exp(x)), so that nothing
    overflows and the small results keep their digits, down to denormals.  sigmoid(-inf) is 0, sigmoid(inf) is 1, NaN
    stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = sigmoid(%x)
          return %y
        }
    """
    return _special.sigmoid(x)


@op(infer=_same, elementwise=True, composite=True)
def silu(x: Float) -> Tensor:
    """x * sigmoid(x), elementwise.

    At most 4 ulp from exact on the whole line for types up to f32, also below -88.73, where exp(-x) overflows in f32.
    silu(-0) is -0, silu(-inf) is -0 (the limit), silu(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = silu(%x)
          return %y
        }
    """
    return _special.silu(x)


@op(infer=_same, elementwise=True, composite=True)
def gelu(x: Float, *, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """x times the normal distribution function of x, elementwise.

    With ``approximate="none"`` that is 0.5 * x * (1 + erf(x / sqrt(2))), computed as 0.5 * x * erfc(-x / sqrt(2)), which
    does not cancel for negative x.  With ``approximate="tanh"`` it is
    0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))), computed as x * sigmoid(2 * sqrt(2/pi) * (...)) for the same
    reason.  Either is at most 4 ulp from its formula on the whole line for types up to f32.  gelu(-0) is -0, gelu(-inf)
    is -0 (the limit), gelu(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = gelu(%x)
          return %y
        }

    Example, approximated::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = gelu(%x, approximate="tanh")
          return %y
        }
    """
    if approximate == "none":
        return _times_gate(x, 0.5 * erfc(-x * math.sqrt(0.5)))
    return _special.gelu_tanh(x)


@op(infer=_same, elementwise=True, composite=True)
def softplus(x: Float) -> Tensor:
    """log(1 + exp(x)), elementwise.

    Computed as maximum(x, 0) + log1p(exp(-abs(x))): nothing overflows, and far below 0 the result is exp(x), down to
    denormals.  softplus(-inf) is 0, softplus(inf) is inf, NaN stays NaN.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = softplus(%x)
          return %y
        }
    """
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
