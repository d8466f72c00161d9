"""Order along an axis: sort, argsort and the k largest.

One order for all of them: numbers ascending, -0 equal to +0, NaN after everything and all NaNs equal; of equal elements
the one with the lower index comes first, in descending order as well.
"""

from __future__ import annotations

import numpy as np

from dialects.graph._shapes import normalize_axis
from ir.opdef import ExecutionError, Numeric, Tensor, TypeProblem, op
from ir.types import TensorType, i64


def _order(x: Tensor, axis: int, descending: bool) -> Tensor:
    """The indices along ``axis`` that put the elements in order."""
    keys = x.astype(np.float32) if x.dtype.kind == "V" else x  # numpy doesn't know the order of bf16 itself
    if not descending:
        return np.argsort(keys, axis=axis, kind="stable")
    # ascending from the end, read backwards: equal elements come out in their first order again
    mirrored = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(mirrored, axis))


def _infer_sort(x: TensorType, axis: int, descending: bool) -> TensorType:
    normalize_axis(axis, x.rank)
    return x


def _infer_argsort(x: TensorType, axis: int, descending: bool) -> TensorType:
    return _infer_sort(x, axis, descending).with_dtype(i64)


def _infer_topk(x: TensorType, k: int, axis: int, largest: bool) -> tuple[TensorType, TensorType]:
    along = normalize_axis(axis, x.rank)
    size = x.shape[along]
    if k < 0:
        raise TypeProblem(f"k={k}: expected 0 or more", attribute="k")
    if isinstance(size, int) and k > size:
        raise TypeProblem(f"k={k} is more than the {size} elements along axis {along} of {x}", attribute="k")
    values = x.with_shape((*x.shape[:along], k, *x.shape[along + 1 :]))
    return values, values.with_dtype(i64)


@op(infer=_infer_sort, exact_bits=True)
def sort(x: Numeric, *, axis: int = -1, descending: bool = False) -> Tensor:
    """The elements in order along an axis.

    The sort is stable, in both directions: equal elements, -0 and +0 among them, stay in the order they had.  A NaN
    counts as larger than everything: NaNs come last, or first when descending, and keep their bits.  Rank 1 or more.

    Example::

        graph @example(%x: f32[B, 6]) -> f32[B, 6] {
          %y = sort(%x)
          return %y
        }

    Example, descending::

        graph @example(%x: i32[S, 3]) -> i32[S, 3] {
          %y = sort(%x, axis=0, descending=true)
          return %y
        }
    """
    return np.take_along_axis(x, _order(x, axis, descending), axis=axis)


@op(infer=_infer_argsort, exact_bits=True)
def argsort(x: Numeric, *, axis: int = -1, descending: bool = False) -> Tensor:
    """The indices that put the elements in order along an axis, as i64.

    The order is that of ``sort``: stable in both directions (of equal elements the one with the lower index comes first,
    -0 and +0 are equal), and a NaN counts as larger than everything.  ``gather_elements`` with these indices sorts.
    Rank 1 or more.

    Example::

        graph @example(%x: f32[B, 6]) -> i64[B, 6] {
          %i = argsort(%x)
          return %i
        }

    Example, descending::

        graph @example(%x: i32[S, 3]) -> i64[S, 3] {
          %i = argsort(%x, axis=0, descending=true)
          return %i
        }
    """
    return _order(x, axis, descending)


@op(infer=_infer_topk, exact_bits=True)
def topk(x: Numeric, *, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest elements along an axis, in descending order, and their indices as i64.

    With ``largest=false`` the k smallest, in ascending order.  The order is that of ``sort``: of equal elements the one
    with the lower index comes first (-0 and +0 are equal), and a NaN counts as larger than everything, so it is the first
    of the largest and the last of the smallest.  k may be 0, and may be the whole dimension; more is an error, when the
    program is compiled if the dimension is known then, else when it runs.  Rank 1 or more.

    Example::

        graph @example(%x: f32[B, 6]) -> (f32[B, 2], i64[B, 2]) {
          %v, %i = topk(%x, k=2)
          return %v, %i
        }

    Example, the smallest::

        graph @example(%x: i32[5, S]) -> (i32[3, S], i64[3, S]) {
          %v, %i = topk(%x, k=3, axis=0, largest=false)
          return %v, %i
        }
    """
    if k > x.shape[axis]:
        raise ExecutionError(f"topk with k={k} of a tensor of shape {list(x.shape)}: axis {axis} has {x.shape[axis]} elements")
    indices = np.take(_order(x, axis, largest), np.arange(k), axis=axis)
    return np.take_along_axis(x, indices, axis=axis), indices
