"""Random choices: pure functions of a seed (see :mod:`dialects.graph._random` for the generator)."""

from __future__ import annotations

import numpy as np

from dialects.graph import _random
from dialects.graph._shapes import require_rank
from dialects.graph._symbolic import check_dims, concrete_shape
from ir.opdef import ExecutionError, Float, Integer, Shape, Tensor, TypeProblem, op
from ir.types import DType, TensorType, f32, i64

# -- uniform -----------------------------------------------------------------------------------------------------------

_PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}  # bits of a significand


def _infer_uniform(seed: TensorType, shape: Shape, dtype: DType) -> TensorType:
    require_rank(seed, "seed", exactly=0)
    check_dims(shape, "shape")
    if not dtype.is_float:
        raise TypeProblem(f"expected a float type, found {dtype}", attribute="dtype", hint=f"one of {', '.join(_PRECISION)}")
    return TensorType(dtype, shape)


@op(infer=_infer_uniform, needs_output_type=True)
def uniform(seed: Integer, *, shape: Shape, dtype: DType = f32, output_type: TensorType) -> Tensor:
    """Random numbers in [0, 1), made from a seed.

    The seed is a rank-0 tensor of any integer type; the same seed gives the same numbers everywhere.  Element number c (in
    row-major order) is ``floor(u * 2**p) / 2**p`` with u from this 64-bit arithmetic:

        mix(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
                 z = (z ^ (z >> 27)) * 0x94D049BB133111EB
                 return z ^ (z >> 31)       (splitmix64's finalizer)
        G = 0x9E3779B97F4A7C15
        u = (mix(mix(seed + G) + (c + 1) * G) >> 11) / 2**53

    (unsigned, modulo 2**64; a negative seed is sign-extended to 64 bits) and p the precision of the element type: 53 for
    f64, 24 for f32, 11 for f16, 8 for bf16.  It is cut off, not rounded, so 1 never occurs.

    Example::

        graph @example(%seed: i64[], %x: f32[B, 4]) -> (f32[B, 4], f32[B, 4]) {
          %u = uniform(%seed, shape=[B, 4])
          return %u, %x
        }

    Example, half precision::

        graph @example(%seed: i32[]) -> f16[2, 3] {
          %u = uniform(%seed, shape=[2, 3], dtype=f16)
          return %u
        }
    """
    sizes = concrete_shape(output_type)
    count = int(np.prod(sizes, dtype=np.int64))
    scale = 2.0 ** _PRECISION[dtype.name]
    numbers = np.floor(_random.uniform(seed, np.arange(count, dtype=np.uint64)) * scale) / scale
    return np.asarray(numbers.reshape(sizes))


# -- choosing by probability -------------------------------------------------------------------------------------------


def _infer_multinomial(probs: TensorType, seed: TensorType, num_samples: int) -> TensorType:
    require_rank(probs, "probs", at_least=1)
    require_rank(seed, "seed", exactly=0)
    if num_samples < 0:
        raise TypeProblem(f"num_samples={num_samples}: expected 0 or more", attribute="num_samples")
    if probs.shape[-1] == 0:
        raise TypeProblem(f"{probs} has nothing to choose from: its last dimension is 0", operand="probs")
    return TensorType(i64, (*probs.shape[:-1], num_samples))


def _check_weights(rows: Tensor, totals: Tensor, leading: tuple[int, ...]) -> None:
    bad = (rows < 0).any(axis=-1) | ~((totals > 0) & (totals < np.inf))
    if not bad.any():
        return
    row = int(np.argmax(bad))
    place = [int(i) for i in np.unravel_index(row, leading)]
    where = f"row {place} of probs" if place else "probs"
    negative = np.flatnonzero(rows[row] < 0)
    if negative.size:
        first = int(negative[0])
        raise ExecutionError(f"multinomial: element {first} of {where} is negative: {rows[row, first]}")
    raise ExecutionError(f"multinomial: the sum of {where} is {totals[row]}, expected a finite number > 0")


@op(infer=_infer_multinomial, traps=True)
def multinomial(probs: Float, seed: Integer, *, num_samples: int = 1) -> Tensor:
    """Random indices along the last axis, chosen with given probabilities, with replacement.

    The last axis is replaced by ``num_samples`` indices (i64).  The weights in a row need not add up to 1: they are scaled by
    the row's total.  The seed is a rank-0 tensor of any integer type; the same seed gives the same choice everywhere.
    Sample s of row r (rows in row-major order) takes the number u in [0, 1) that ``uniform`` makes in f64 for counter
    ``r * num_samples + s``, and is the first index i with ``u * total < p[0] + ... + p[i]``, where the running sums (the
    last of which is the total) are taken in float64 in the order of the index.  So the index is always valid, and an
    element of weight 0 is never chosen, not even where the weights add up to slightly less than 1.

    A negative weight, or a total that is 0, infinite or NaN, is an error that names the row and the value; a last
    dimension of 0 is one too.  Rank 1 or more.

    Example::

        graph @example(%x: f32[B, 6], %seed: i64[]) -> i64[B, 3] {
          %p = softmax(%x)
          %i = multinomial(%p, %seed, num_samples=3)
          return %i
        }
    """
    leading, size = probs.shape[:-1], probs.shape[-1]
    count = int(np.prod(leading, dtype=np.int64))
    if size == 0:
        raise ExecutionError(f"multinomial: probs of shape {list(probs.shape)} has nothing to choose from")
    rows = probs.reshape(count, size)
    running = np.add.accumulate(rows, axis=-1)
    _check_weights(rows, running[:, -1], leading)
    numbers = _random.uniform(seed, np.arange(count * num_samples, dtype=np.uint64)).reshape(count, num_samples)
    result = np.zeros((count, num_samples), np.int64)
    for r in range(count):
        chosen = np.searchsorted(running[r], numbers[r] * running[r, -1], side="right")
        # where u * total rounds up to a tiny total
        result[r] = np.minimum(chosen, np.flatnonzero(rows[r])[-1])
    return result.reshape((*leading, num_samples))


def _infer_top_p(probs: TensorType, p: float) -> TensorType:
    require_rank(probs, "probs", at_least=1)
    if not 0 <= p <= 1:
        raise TypeProblem(f"p={p}: expected 0 <= p <= 1", attribute="p")
    return probs


@op(infer=_infer_top_p)
def top_p(probs: Float, *, p: float) -> Tensor:
    """Keeps the highest probabilities along the last axis until their sum reaches p, and sets the others to 0.

    The elements of a row are taken in descending order (of equal ones the one with the lower index first) until their sum,
    taken in that order in float64, is at least p; at least one is kept, and all of them are where the sum never reaches p
    (because it is 1 - eps, or holds a NaN: a NaN counts as the largest).  What is kept keeps its bits, the rest is +0;
    the row is not scaled to add up to 1 (``multinomial`` does that itself).  0 <= p <= 1; rank 1 or more.

    Example::

        graph @example(%x: f32[B, 6]) -> f32[B, 6] {
          %p = softmax(%x)
          %q = top_p(%p, p=0.9)
          return %q
        }
    """
    size = probs.shape[-1]
    if size == 0:
        return probs
    order = size - 1 - np.flip(np.argsort(np.flip(probs, -1), axis=-1, kind="stable"), -1)
    sums = np.add.accumulate(np.take_along_axis(probs, order, axis=-1), axis=-1)
    reached = np.logical_or.accumulate(sums >= p, axis=-1)
    keep_sorted = np.ones(probs.shape, bool)
    keep_sorted[..., 1:] = ~reached[..., :-1]  # the element that reaches p still counts
    keep = np.zeros(probs.shape, bool)
    np.put_along_axis(keep, order, keep_sorted, axis=-1)
    return np.where(keep, probs, 0.0)
