"""Rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dialects.graph._shapes import require_rank
from ir.dims import Dim, UnknownDim, compatible, exact_div, mod
from ir.opdef import ExecutionError, Float, Integer, Tensor, TypeProblem, op
from ir.types import TensorType


def inverse_frequencies(rotary_dim: int, base: float) -> NDArray[np.float64]:
    """``base ** (-2 i / rotary_dim)`` for every pair ``i``."""
    return np.asarray(float(base) ** (-2.0 * np.arange(rotary_dim // 2) / max(rotary_dim, 1)), np.float64)


def _check_rotary_dim(width: Dim, rotary_dim: int | None) -> None:
    if rotary_dim is None:
        if isinstance(width, UnknownDim) or mod(width, 2) == 0:
            return
        hint = "write the dimension as a number or as 2*D" if not isinstance(width, int) else "give rotary_dim to rotate a part of it"
        raise TypeProblem(f"the last dimension is rotated in pairs, so it must be even, found {width}", operand="x", hint=hint)
    if rotary_dim <= 0 or rotary_dim % 2:
        raise TypeProblem(f"rotary_dim={rotary_dim} is not a positive even number", attribute="rotary_dim")
    if isinstance(width, int) and rotary_dim > width:
        raise TypeProblem(f"rotary_dim={rotary_dim} is more than the last dimension, {width}", attribute="rotary_dim")
    if not isinstance(width, (int, UnknownDim)):
        raise TypeProblem(f"rotary_dim={rotary_dim} needs a last dimension that is known, found {width}", operand="x")


def _check_positions(x: TensorType, positions: TensorType) -> None:
    steps = x.shape[-2]
    expected = f"[{steps}]" if x.rank == 2 else f"[{steps}] or [{x.shape[0]}, {steps}]"
    problem = TypeProblem(f"expected positions of shape {expected} for 'x' of type {x}, found {positions}", operand="positions")
    if not 1 <= positions.rank <= min(2, x.rank - 1):
        raise problem
    if not compatible(positions.shape[-1], steps):
        raise problem
    if positions.rank == 2 and positions.shape[0] != 1 and not compatible(positions.shape[0], x.shape[0]):
        raise problem


def _check_factors(x: TensorType, factors: TensorType, rotary_dim: int | None) -> None:
    pairs = exact_div(x.shape[-1] if rotary_dim is None else rotary_dim, 2)
    if not factors.dtype.is_float:
        raise TypeProblem(f"expected a tensor of floats, found {factors}", operand="factors")
    if factors.rank != 1 or (pairs is not None and not compatible(factors.shape[0], pairs)):
        raise TypeProblem(f"expected a factor for each pair, of shape [{'?' if pairs is None else pairs}], found {factors}", operand="factors")


def _rope_type(
    x: TensorType, positions: TensorType, *, factors: TensorType | None, base: float, interleaved: bool, rotary_dim: int | None
) -> TensorType:
    require_rank(x, "x", at_least=2)
    if not math.isfinite(base) or base <= 0:
        raise TypeProblem(f"base={base} is not a finite number > 0", attribute="base")
    _check_rotary_dim(x.shape[-1], rotary_dim)
    _check_positions(x, positions)
    if factors is not None:
        _check_factors(x, factors, rotary_dim)
    return x


def aligned_positions_shape(x_rank: int, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape of ``positions`` with ones put in, so that it broadcasts against ``x`` without its last axis."""
    if len(shape) == 1:
        return (1,) * (x_rank - 2) + shape
    return (shape[0], *((1,) * (x_rank - 3)), shape[1])


@op(infer=_rope_type, composite=True)
def rope(
    x: Float, positions: Integer, *, factors: Tensor | None = None, base: float = 10000.0, interleaved: bool = False, rotary_dim: int | None = None
) -> Tensor:
    """Rotary position embedding: rotates pairs of elements by angles that grow with the position.

    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.  ``x`` is ``[..., S, D]``,
    usually queries or keys as ``[B, H, S, D]``; the result has its type.  ``positions`` is ``[S]``, the same for
    all leading axes, or for ``x`` of rank 3 or more ``[B, S]`` with one row for each index of the first axis of
    ``x`` (``[1, S]`` repeats); the axes between, such as heads, share it. (For ``[B, S, H, D]`` transpose first.)
    Positions may be any integers, negative ones rotate backwards.

    Pair ``i`` of ``rotary_dim / 2`` is rotated by the angle ``t = position * base^(-2 i / rotary_dim)``: ``(a, b)``
    becomes ``(a cos(t) - b sin(t), a sin(t) + b cos(t))``.

    Which elements are a pair: ``(i, i + rotary_dim / 2)`` by default (half-split: GPT-NeoX, Llama in Hugging Face
    files), ``(2 i, 2 i + 1)`` with ``interleaved`` (the original paper, Llama in GGUF files).  ``rotary_dim`` is D
    when left out; a smaller even number rotates the elements in front and passes the others on unchanged.  D (or
    ``rotary_dim``) must be even.

    ``factors``, floats ``[rotary_dim / 2]``, divide the angles of the pairs (Llama 3.1 turns slow pairs even slower, to reach
    farther; a factor for all pairs interpolates positions).  A factor of 0 gives NaN.

    The angle is computed in f64 for every element type, so that position 1000000 is as good as position 1.  The
    rotation is computed wide (f16 and bf16 in f32 at least) and rounded once.  NaN and infinities spoil only their
    pair.

    Example::

        graph @example(%x: f32[B, H, S, 8], %positions: i64[S]) -> f32[B, H, S, 8] {
          %y = rope(%x, %positions)
          return %y
        }

    Example, positions for each row of the batch and interleaved pairs::

        graph @example(%x: f16[B, 2, S, 8], %positions: i32[B, S]) -> f16[B, 2, S, 8] {
          %y = rope(%x, %positions, base=500000.0, interleaved=true, rotary_dim=4)
          return %y
        }

    Example, the slow pairs slower::

        graph @example(%x: f32[H, S, 8], %positions: i64[S], %factors: f32[4]) -> f32[H, S, 8] {
          %y = rope(%x, %positions, factors=%factors)
          return %y
        }
    """
    width = rotary_dim if rotary_dim is not None else x.shape[-1]
    if width % 2 or width > x.shape[-1]:  # only for dimensions that inference did not know
        raise ExecutionError(f"can't rotate {width} of {x.shape[-1]} elements in pairs")
    rotated, rest = x[..., :width], x[..., width:]
    aligned = positions.reshape(aligned_positions_shape(x.ndim, positions.shape))
    frequencies = inverse_frequencies(width, base)
    if factors is not None:
        if len(factors) != len(frequencies):
            raise ExecutionError(f"{len(factors)} factors for {len(frequencies)} pairs")
        with np.errstate(divide="ignore"):
            frequencies = frequencies / factors.astype(np.float64)
    angle = aligned[..., None].astype(np.float64) * frequencies
    cos, sin = np.cos(angle), np.sin(angle)
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        turned = np.stack((a * cos - b * sin, a * sin + b * cos), axis=-1).reshape(rotated.shape)
    else:
        a, b = rotated[..., : width // 2], rotated[..., width // 2 :]
        turned = np.concatenate((a * cos - b * sin, a * sin + b * cos), axis=-1)
    return np.concatenate((turned, rest), axis=-1)
