"""Caches that grow with the sequence."""

from __future__ import annotations

import numpy as np

from dialects.graph._shapes import normalize_axis, require_rank, require_same_dtype
from ir.dims import compatible
from ir.opdef import ExecutionError, Integer, Tensor, TypeProblem, op
from ir.types import TensorType


def _cache_type(cache: TensorType, new: TensorType, position: TensorType, *, axis: int) -> TensorType:
    require_same_dtype(("cache", cache), ("new", new))
    require_rank(cache, "cache", at_least=1)
    require_rank(position, "position", exactly=0)
    require_rank(new, "new", exactly=cache.rank)
    along = normalize_axis(axis, cache.rank)
    for i, (have, want) in enumerate(zip(new.shape, cache.shape, strict=True)):
        if i != along and not compatible(have, want):
            message = f"'new' may differ from 'cache' in axis {along} only: 'new' is {new}, 'cache' is {cache} ({have} and {want} in axis {i})"
            raise TypeProblem(message, operand="new")
    size, capacity = new.shape[along], cache.shape[along]
    if isinstance(size, int) and isinstance(capacity, int) and size > capacity:
        raise TypeProblem(f"'new' does not fit into 'cache' along axis {along}: 'new' is {new}, 'cache' is {cache}", operand="new")
    return cache


@op(infer=_cache_type, exact_bits=True, pure=False, traps=True, updates="cache", index_operands={"position": ("cache", "axis")})
def cache_update(cache: Tensor, new: Tensor, position: Integer, *, axis: int = -2) -> Tensor:
    """Writes new entries into a cache, from a position on.

    The result is ``cache`` with the elements ``position .. position + n - 1`` along ``axis`` replaced by ``new``,
    whose shape is that of ``cache`` but for the ``n`` elements along ``axis``; both have the same element type,
    any.  ``position`` is an integer tensor of rank 0.  The bits are copied unchanged.

    The result is a value as that of any op, and ``cache`` itself is not changed; but the op counts as an effect: it
    is kept even if its result is not used, and its order among other effects stays.  The chain of updates must
    start at an ``inout`` parameter, whose array is updated in place.

    Raises an error at run time, before anything is written, when ``position`` is negative or when ``position + n``
    is more than the capacity (the size of ``cache`` along ``axis``), for ``n = 0`` too.

    Example::

        graph @example(%cache: f32[B, 2, T, 8] inout, %new: f32[B, 2, 1, 8], %position: i64[]) -> f32[B, 2, T, 8] {
          %updated = cache_update(%cache, %new, %position)
          return %updated
        }

    Example, along the first axis::

        graph @example(%cache: i32[T] inout, %new: i32[1], %position: i32[]) -> i32[T] {
          %updated = cache_update(%cache, %new, %position, axis=0)
          return %updated
        }
    """
    along = axis % cache.ndim
    start, size, capacity = int(position), new.shape[along], cache.shape[along]
    if start < 0:
        raise ExecutionError(f"position {start} is negative")
    if start + size > capacity:
        raise ExecutionError(f"position {start} plus {size} new entries is {start + size}, past the capacity of {capacity}")
    updated = np.array(cache)
    updated[(slice(None),) * along + (slice(start, start + size),)] = new
    return updated
