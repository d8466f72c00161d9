"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dialects.graph._shapes import require_rank, require_same_dtype
from dialects.graph._wide import rounded
from ir.dims import Dim, UnknownDim, compatible, exact_div
from ir.opdef import Float, Integer, Tensor, TypeProblem, op
from ir.types import DType, TensorType

Optional = TensorType | None


def head_group(q_heads: Dim, k_heads: Dim) -> Dim | None:
    """How many query heads share a key head; None when they don't divide."""
    if isinstance(q_heads, UnknownDim) or isinstance(k_heads, UnknownDim):
        return q_heads if isinstance(q_heads, UnknownDim) else k_heads
    return 1 if q_heads == k_heads else exact_div(q_heads, k_heads)


def _require_equal(message: str, left: Dim, right: Dim, operand: str) -> None:
    if not compatible(left, right):
        raise TypeProblem(f"{message} ({left} and {right})", operand=operand)


def _check_projections(q: TensorType, k: TensorType, v: TensorType) -> None:
    if not 2 <= q.rank <= 4:
        raise TypeProblem(f"expected q of rank 2 to 4 ([B, H, S, D], [H, S, D] or [S, D]), found {q}", operand="q")
    for name, other in (("k", k), ("v", v)):
        require_rank(other, name, exactly=q.rank)
    require_same_dtype(("q", q), ("k", k), ("v", v))
    _require_equal(f"q and k have different last dimensions: 'q' is {q}, 'k' is {k}", q.shape[-1], k.shape[-1], "k")
    _require_equal(f"k and v have different lengths: 'k' is {k}, 'v' is {v}", k.shape[-2], v.shape[-2], "v")
    if q.rank == 4:
        _require_equal(f"q and k have different batch dimensions: 'q' is {q}, 'k' is {k}", q.shape[0], k.shape[0], "k")
        _require_equal(f"k and v have different batch dimensions: 'k' is {k}, 'v' is {v}", k.shape[0], v.shape[0], "v")
    if q.rank >= 3:
        _require_equal(f"k and v have different numbers of heads: 'k' is {k}, 'v' is {v}", k.shape[-3], v.shape[-3], "v")
        if head_group(q.shape[-3], k.shape[-3]) is None:
            hint = "each key head serves the same number of query heads"
            message = f"{q.shape[-3]} query heads can't be shared out among {k.shape[-3]} key heads: 'q' is {q}, 'k' is {k}"
            raise TypeProblem(message, operand="k", hint=hint)


def _check_past(k: TensorType, v: TensorType, past_k: Optional, past_v: Optional) -> Dim:
    """The number of past keys."""
    if past_k is None and past_v is None:
        return 0
    if past_k is None or past_v is None:
        given, missing = ("past_v", "past_k") if past_k is None else ("past_k", "past_v")
        raise TypeProblem(f"'{given}' is given without '{missing}'", operand=given)
    for name, past, now in (("past_k", past_k, k), ("past_v", past_v, v)):
        current = name[-1]
        require_same_dtype((current, now), (name, past))
        require_rank(past, name, exactly=now.rank)
        for axis in range(now.rank):
            if axis != now.rank - 2:
                message = f"'{name}' may differ from '{current}' in the next to last axis only: '{name}' is {past}, '{current}' is {now}"
                _require_equal(message, past.shape[axis], now.shape[axis], name)
    message = f"past_k and past_v have different lengths: 'past_k' is {past_k}, 'past_v' is {past_v}"
    _require_equal(message, past_k.shape[-2], past_v.shape[-2], "past_v")
    return past_k.shape[-2]


def _check_mask(q: TensorType, mask: Optional, total: Dim) -> None:
    if mask is None:
        return
    scores = TensorType(q.dtype, (*q.shape[:-1], total))
    if mask.dtype.kind != "bool" and mask.dtype != q.dtype:
        hint = "a mask is bool (true: may attend) or has the element type of q and is added"
        raise TypeProblem(f"expected a mask of bool or {q.dtype}, found {mask}", operand="mask", hint=hint)
    fits = mask.rank <= scores.rank
    for have, want in zip(reversed(mask.shape), reversed(scores.shape), strict=False):
        fits = fits and (have == 1 or compatible(have, want))
    if not fits:
        expected = TensorType(mask.dtype, scores.shape)
        raise TypeProblem(f"the mask must broadcast to {expected}, found {mask}", operand="mask")


def _check_length(q: TensorType, length: Optional) -> None:
    if length is None:
        return
    fits = length.rank == 0 or (length.rank == 1 and q.rank == 4 and compatible(length.shape[0], q.shape[0]))
    if not fits:
        expected = f"[] or [{q.shape[0]}]" if q.rank == 4 else "[]"
        raise TypeProblem(f"expected a length of shape {expected}, found {length}", operand="length")


def _attention_type(
    q: TensorType, k: TensorType, v: TensorType, *,
    mask: Optional, past_k: Optional, past_v: Optional, length: Optional, causal: bool, scale: float | None,
) -> TensorType:
    _check_projections(q, k, v)
    total = _check_past(k, v, past_k, past_v) + k.shape[-2]
    _check_mask(q, mask, total)
    _check_length(q, length)
    if scale is not None and not math.isfinite(scale):
        raise TypeProblem(f"scale={scale} is not a finite number", attribute="scale")
    return TensorType(q.dtype, (*q.shape[:-1], v.shape[-1]))


def _positions_allowed(steps: int, total: int, length: NDArray[Any] | None, causal: bool) -> NDArray[np.bool_] | None:
    """Which keys a query may see by their positions: [S, T], or [B, 1, S, T] for lengths of a batch."""
    if length is None and not causal:
        return None
    key = np.arange(total)
    to_last = np.arange(steps)[::-1, None]  # how many queries follow
    if length is None:
        return key <= total - 1 - to_last  # type: ignore[no-any-return]
    valid = length.astype(np.int64).reshape(length.shape + (1,) * 3) if length.ndim else length
    seen = key < valid
    return seen & (key + to_last < valid) if causal else np.broadcast_to(seen, (*seen.shape[:-2], steps, total))


def scale_factor(scale: float | None, width: int, dtype: DType) -> float:
    """What the scores are multiplied with: ``scale`` or 1 / sqrt(D), in the type of the computation."""
    if scale is None:
        scale = 1.0 / math.sqrt(width) if width else 1.0
    return rounded(scale, dtype)


def masked_softmax(scores: NDArray[Any]) -> NDArray[Any]:
    """Softmax over the last axis with zeros for a row that is -inf throughout (or empty)."""
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(top == -np.inf, 0.0, top))
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where(total == 0.0, 1.0, total)  # type: ignore[no-any-return]


@op(infer=_attention_type, composite=True, needs_output_type=True)
def attention(
    q: Float, k: Float, v: Float, *,
    mask: Tensor | None = None, past_k: Tensor | None = None, past_v: Tensor | None = None, length: Integer | None = None,
    causal: bool = False, scale: float | None = None, output_type: TensorType,
) -> Tensor:
    """Scaled dot-product attention: softmax(q @ k^T * scale + mask) @ v for each head.

    ``q`` is ``[B, Hq, S, D]``, ``k`` is ``[B, Hk, T, D]``, ``v`` is ``[B, Hk, T, Dv]``; the result is ``[B, Hq, S,
    Dv]``.  Rank 3 leaves out ``B``, rank 2 the heads as well.  ``Hk`` divides ``Hq`` (grouped queries): query head
    ``h`` uses key head ``h floordiv (Hq floordiv Hk)``. ``scale`` is ``1 / sqrt(D)`` when left out, and is
    rounded to the type of the computation, f32 or f64.  All tensors
    have the same element type, which the result has too.

    * ``past_k`` ``[B, Hk, P, D]`` and ``past_v`` ``[B, Hk, P, Dv]``, given together, are put in front of ``k`` and
      ``v``: there are ``Tt = P + T`` keys.
    * ``mask`` broadcasts to ``[B, Hq, S, Tt]``.  bool: true says that the query may see the key.  Float (of the
      element type of ``q``): it is added to the scaled scores; -inf hides a key.
    * ``causal``: query ``i`` sees key ``j`` only if ``j <= i + Tt - S``, that is, the last query sees all keys.
    * ``length`` (integers, ``[]`` or ``[B]``) is the number of valid keys, for a cache of fixed capacity that is
      filled from the front: query ``i`` sees key ``j`` only if ``j < length``.  With ``causal`` the queries are the
      last ``S`` of these ``length`` positions, and the condition is ``j <= i + length - S`` instead. Any value is
      allowed: above ``Tt`` no key is hidden by the first condition, at or below 0 all are.

    The conditions combine: a key is seen if all allow it.  A query that sees no key (or whose scores are all -inf,
    or ``Tt = 0``) gives zeros, not NaN.  NaN in a seen score makes the row NaN, and so does +inf.  A hidden key's
    score does not matter, whatever it is.  Keys and values at or beyond ``length`` may hold anything, NaN included;
    the values of keys hidden in another way are multiplied by zero, so they must be finite.

    Computed wide (f16 and bf16 in f32 at least), with the maximum of a row subtracted before ``exp``, and rounded
    once.

    Example::

        graph @example(%q: f32[B, 4, S, 8], %k: f32[B, 2, S, 8], %v: f32[B, 2, S, 6]) -> f32[B, 4, S, 6] {
          %o = attention(%q, %k, %v, causal=true)
          return %o
        }

    Example, with a mask and past keys::

        graph @example(
          %q: f16[B, 4, S, 8],
          %k: f16[B, 2, S, 8],
          %v: f16[B, 2, S, 8],
          %past_k: f16[B, 2, P, 8],
          %past_v: f16[B, 2, P, 8],
          %mask: f16[S, P+S]
        ) -> f16[B, 4, S, 8] {
          %o = attention(%q, %k, %v, mask=%mask, past_k=%past_k, past_v=%past_v, scale=0.5)
          return %o
        }

    Example, over a cache that holds some valid keys::

        graph @example(%q: f32[B, 4, S, 8], %k: f32[B, 2, T, 8], %v: f32[B, 2, T, 8], %n: i64[]) -> f32[B, 4, S, 8] {
          %o = attention(%q, %k, %v, length=%n, causal=true)
          return %o
        }
    """
    if past_k is not None and past_v is not None:
        k, v = np.concatenate((past_k, k), axis=-2), np.concatenate((past_v, v), axis=-2)
    rank = q.ndim
    q4, k4, v4 = (t.reshape((1,) * (4 - rank) + t.shape) for t in (q, k, v))
    group = q4.shape[1] // k4.shape[1] if k4.shape[1] else 1
    k4, v4 = np.repeat(k4, group, axis=1), np.repeat(v4, group, axis=1)
    scores = np.matmul(q4, np.swapaxes(k4, -1, -2)) * scale_factor(scale, q.shape[-1], output_type.dtype)
    if mask is not None and mask.dtype != np.bool_:
        scores = scores + mask
    steps, total = scores.shape[-2:]
    hidden = np.zeros((), np.bool_) if mask is None or mask.dtype != np.bool_ else ~mask
    allowed = _positions_allowed(steps, total, length, causal)
    if allowed is not None:
        hidden = hidden | ~allowed
    scores = np.where(hidden, -np.inf, scores)
    if length is not None:  # what lies beyond the valid keys must not matter
        valid = length.reshape(length.shape + (1,) * 3) if length.ndim else length
        v4 = np.where(np.arange(total)[:, None] < valid, v4, 0.0)
    result = np.matmul(masked_softmax(scores), v4)
    return result.reshape(result.shape[4 - rank :])  # type: ignore[no-any-return]
