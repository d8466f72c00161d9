"""Normalizations along an axis: softmax, RMS and layer normalization, unit vectors."""

from __future__ import annotations

import math

import numpy as np

from dialects.graph._shapes import normalize_axis, require_rank, require_same_dtype
from dialects.graph._wide import rounded
from ir.dims import compatible
from ir.opdef import Float, Tensor, TypeProblem, op
from ir.types import TensorType


def _along_axis(x: TensorType, *, axis: int) -> TensorType:
    normalize_axis(axis, x.rank)
    return x


@op(infer=_along_axis, composite=True)
def softmax(x: Float, *, axis: int = -1) -> Tensor:
    """exp(x) divided by its sum along an axis.

    ``exp(x - m) / sum(exp(x - m))`` with the maximum ``m`` along ``axis``, so that large values don't overflow
    (3e38 is fine).  The shape and the element type stay; the computation is wide (f16 and bf16 in f32 at least) and
    rounds once.  A negative ``axis`` counts from the end; an empty axis gives an empty result, an axis of one
    element gives 1.

    Special values: a row (all elements along the axis) that holds a NaN or +inf is NaN throughout, and so is a row
    that is -inf throughout; -inf beside a finite value gives 0.  (``attention`` gives zeros for a masked row
    instead.)

    Example::

        graph @example(%x: f32[B, 8]) -> f32[B, 8] {
          %p = softmax(%x)
          return %p
        }

    Example, along the first axis::

        graph @example(%x: f16[N, 3]) -> f16[N, 3] {
          %p = softmax(%x, axis=0)
          return %p
        }
    """
    if x.shape[axis] == 0:
        return x
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)  # type: ignore[no-any-return]


@op(infer=_along_axis, composite=True)
def log_softmax(x: Float, *, axis: int = -1) -> Tensor:
    """The logarithm of softmax along an axis.

    ``x - m - log(sum(exp(x - m)))`` with the maximum ``m`` along ``axis``: no overflow, and no log of a probability
    that was rounded to zero.  Shape, element type, axis and rounding are as for ``softmax``.  A row that holds a
    NaN or +inf, or is -inf throughout, is NaN; -inf beside a finite value gives -inf; an empty axis gives an empty
    result.

    Example::

        graph @example(%x: f32[B, 8]) -> f32[B, 8] {
          %l = log_softmax(%x)
          return %l
        }
    """
    if x.shape[axis] == 0:
        return x
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))  # type: ignore[no-any-return]


def require_eps(eps: float) -> None:
    """Raises TypeProblem unless ``eps`` is finite and not negative."""
    if not math.isfinite(eps) or eps < 0:
        raise TypeProblem(f"eps={eps} is not a finite number >= 0", attribute="eps")


def _check_vector(x: TensorType, name: str, vector: TensorType | None) -> None:
    """A weight or bias is one vector along the last axis."""
    if vector is None:
        return
    require_same_dtype(("x", x), (name, vector))
    if vector.rank != 1 or not compatible(vector.shape[0], x.shape[-1]):
        expected = TensorType(x.dtype, (x.shape[-1],))
        raise TypeProblem(f"expected {name} {expected} for the last axis of 'x' ({x}), found {vector}", operand=name)


def _rmsnorm_type(x: TensorType, *, weight: TensorType | None, eps: float) -> TensorType:
    require_rank(x, "x", at_least=1)
    require_eps(eps)
    _check_vector(x, "weight", weight)
    return x


@op(infer=_rmsnorm_type, composite=True, needs_output_type=True)
def rmsnorm(x: Float, *, weight: Tensor | None = None, eps: float = 1e-6, output_type: TensorType) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Root mean square normalization (Zhang and Sennrich, 2019): no mean is subtracted.  ``weight`` is ``[D]`` for
    ``x`` of ``[..., D]``; without it the last factor is left out.  ``weight`` has the element type of ``x``.
    Computed wide and rounded once: f16 and bf16 square and sum in f32 at least, so that f16 values above 256 don't
    overflow.  Here, in the reference, f32 values square in f64; compiled code may square them in f32, where ``|x| >
    1.8e19`` overflows and the row becomes 0.

    A row of zeros is 0 for ``eps > 0`` and NaN (0 / 0) for ``eps = 0``.  NaN in a row makes it NaN; with an
    infinity that element is NaN and the finite ones 0.  An empty last axis gives an empty result.  ``eps`` is rounded to
    the type of the computation, f32 or f64; a negative one is an error.

    Example::

        graph @example(%x: f32[B, S, 8], %weight: f32[8]) -> f32[B, S, 8] {
          %y = rmsnorm(%x, weight=%weight, eps=1e-5)
          return %y
        }

    Example, without weight::

        graph @example(%x: f16[B, D]) -> f16[B, D] {
          %y = rmsnorm(%x)
          return %y
        }
    """
    mean = np.sum(x * x, axis=-1, keepdims=True) / np.float64(x.shape[-1])
    y = x / np.sqrt(mean + rounded(eps, output_type.dtype))
    return y if weight is None else y * weight  # type: ignore[no-any-return]


def _layernorm_type(x: TensorType, *, weight: TensorType | None, bias: TensorType | None, eps: float) -> TensorType:
    require_rank(x, "x", at_least=1)
    require_eps(eps)
    _check_vector(x, "weight", weight)
    _check_vector(x, "bias", bias)
    return x


@op(infer=_layernorm_type, composite=True, needs_output_type=True)
def layernorm(
    x: Float, *, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, output_type: TensorType
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis.

    Layer normalization (Ba, Kiros and Hinton, 2016).  The variance is the mean of ``(x - mean)^2`` (divided by D,
    not D - 1), in two passes: it is never negative and nothing cancels when the mean is large against the
    deviations.  ``weight`` and ``bias`` are ``[D]`` for ``x`` of ``[..., D]``, of its element type; either may be
    left out.  Computed wide (f16 and bf16 in f32 at least) and rounded once; compiled code may square f32 in f32,
    where deviations above 1.8e19 overflow.

    A constant row is ``bias`` (or 0) for ``eps > 0`` and NaN (0 / 0) for ``eps = 0``, as far as its mean is exact: compiled
    code has it in f32, and deviations below an ulp or two of the mean are its rounding.  NaN or an infinity in a row
    makes it NaN.  An empty last axis gives an empty result.  ``eps`` is rounded to the
    type of the computation, f32 or f64; a negative one is an error.

    Example::

        graph @example(%x: f32[B, 8], %weight: f32[8], %bias: f32[8]) -> f32[B, 8] {
          %y = layernorm(%x, weight=%weight, bias=%bias)
          return %y
        }

    Example, without weight and bias::

        graph @example(%x: bf16[B, S, D]) -> bf16[B, S, D] {
          %y = layernorm(%x, eps=0.001)
          return %y
        }
    """
    count = np.float64(x.shape[-1])
    centered = x - np.sum(x, axis=-1, keepdims=True) / count
    variance = np.sum(centered * centered, axis=-1, keepdims=True) / count
    y = centered / np.sqrt(variance + rounded(eps, output_type.dtype))
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias  # type: ignore[no-any-return]


def _l2_type(x: TensorType, *, axis: int, eps: float) -> TensorType:
    normalize_axis(axis, x.rank)
    require_eps(eps)
    return x


@op(infer=_l2_type, composite=True, needs_output_type=True)
def l2_normalize(x: Float, *, axis: int = -1, eps: float = 1e-12, output_type: TensorType) -> Tensor:
    """x / max(norm(x), eps): vectors of length one along an axis.

    ``norm`` is the square root of the sum of squares along ``axis``, as ``torch.nn.functional.normalize`` has it.
    Computed wide (f16 and bf16 in f32 at least) and rounded once; compiled code may square f32 in f32, where ``|x|
    > 1.8e19`` overflows and the vector becomes 0.

    A zero vector stays zero for ``eps > 0`` and is NaN for ``eps = 0``.  NaN makes its vector NaN; with an infinity
    that element is NaN and the finite ones 0.  An empty axis gives an empty result.  A negative ``eps`` is an
    error.

    Example::

        graph @example(%x: f32[B, 8]) -> f32[B, 8] {
          %y = l2_normalize(%x)
          return %y
        }

    Example, along another axis::

        graph @example(%x: f16[N, 3]) -> f16[N, 3] {
          %y = l2_normalize(%x, axis=0, eps=0.001)
          return %y
        }
    """
    norm = np.sqrt(np.sum(x * x, axis=axis, keepdims=True))
    return x / np.maximum(norm, rounded(eps, output_type.dtype))  # type: ignore[no-any-return]
