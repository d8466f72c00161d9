"""Shapes of tensors: the elements and their order stay, the dimensions change (transpose moves elements)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dialects.graph._shapes import normalize_axes, normalize_axis
from dialects.graph._symbolic import check_dims, concrete_shape
from ir.dims import Dim, UnknownDim, compatible, exact_div, merge, product
from ir.opdef import Shape, Tensor, TypeProblem, op
from ir.types import UNKNOWN, TensorType, UnknownType

# -- reshape -----------------------------------------------------------------------------------------------------------


def _cancel(have: Sequence[Dim], want: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """Both lists without the dimensions that stand in both."""
    left, right = list(have), []
    for dim in want:
        if dim in left:
            left.remove(dim)
        else:
            right.append(dim)
    return left, right


def _deduce(x: TensorType, shape: Shape) -> Dim:
    """What -1 stands for in ``shape``."""
    given = [d for d in shape if d != -1]
    have, want = _cancel(x.shape, given)
    total, known = product(have), product(want)
    dim = exact_div(total, known)
    if dim is not None:
        return dim
    counts = f"{x} has {x.elements} elements, the other dimensions of {_show(shape)} make {product(given)}"
    if known == 0:
        raise TypeProblem(f"{counts}: -1 could be anything", attribute="shape")
    static = isinstance(total, int) and isinstance(known, int)
    hint = None if static else "the division must come out for every value of the symbolic dimensions"
    raise TypeProblem(f"{counts}, which does not divide them evenly", attribute="shape", hint=hint)


def _show(shape: Sequence[object]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _infer_reshape(x: TensorType, shape: Shape) -> TensorType:
    wildcards = sum(1 for d in shape if d == -1)
    if wildcards > 1:
        raise TypeProblem(f"shape={_show(shape)} has more than one -1", attribute="shape")
    check_dims(shape, "shape", wildcard=True)
    if wildcards:
        found = _deduce(x, shape)
        return TensorType(x.dtype, tuple(found if d == -1 else d for d in shape))
    have, want = x.elements, product(shape)
    if not compatible(have, want):
        raise TypeProblem(
            f"{x} has {have} elements, shape={_show(shape)} has {want}",
            attribute="shape",
            hint=None if isinstance(have, int) and isinstance(want, int) else "the counts must be equal for every value of the symbolic dimensions",
        )
    return TensorType(x.dtype, shape)


@op(infer=_infer_reshape, exact_bits=True, needs_output_type=True)
def reshape(x: Tensor, *, shape: Shape, output_type: TensorType) -> Tensor:
    """The same elements in row-major order, under another shape.

    The number of elements stays the same; with symbolic dimensions the two counts must be equal as polynomials, so
    for every value of the symbols.  One dimension may be -1: it is computed from the others, and the division must come
    out.  (A dimension that stands both in the operand's type and in ``shape`` cancels first, a 0 as well, so that
    ``f32[B, S]`` can become ``[-1, S]`` even when S is 0.  When -1 could still be anything, that is an error.)  A 0 is a
    dimension of size 0, it does not copy the operand's dimension.  Any element type; a rank-0 tensor has one element.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[2*B, 2] {
          %y = reshape(%x, shape=[-1, 2])
          return %y
        }

    Example, symbolic dimensions and integers::

        graph @example(%x: i32[B, S, 6]) -> i32[B, 3*S, 2] {
          %y = reshape(%x, shape=[B, 3*S, 2])
          return %y
        }
    """
    return x.reshape(concrete_shape(output_type))


# -- transpose ---------------------------------------------------------------------------------------------------------


def _permutation(rank: int, perm: tuple[int, ...] | None) -> tuple[int, ...]:
    if perm is None:
        return tuple(reversed(range(rank)))
    if len(perm) != rank:
        raise TypeProblem(f"perm={list(perm)} has {len(perm)} axes, the tensor has {rank}", attribute="perm")
    found = tuple(normalize_axis(a, rank, attribute="perm") for a in perm)
    for axis in range(rank):
        if axis not in found:
            raise TypeProblem(f"perm={list(perm)} names an axis twice and leaves out axis {axis}", attribute="perm")
    return found


def _infer_transpose(x: TensorType, perm: tuple[int, ...] | None) -> TensorType:
    return x.with_shape(tuple(x.shape[a] for a in _permutation(x.rank, perm)))


@op(infer=_infer_transpose, exact_bits=True)
def transpose(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    """The axes in another order: dimension i of the result is dimension ``perm[i]`` of the operand.

    Without ``perm`` the order is reversed.  Axes may be negative (counted from the end); every axis stands exactly once.
    Any element type, any rank (a rank-0 tensor stays what it is).

    Example::

        graph @example(%x: f32[B, S, 4]) -> f32[B, 4, S] {
          %y = transpose(%x, perm=[0, 2, 1])
          return %y
        }

    Example, reversed::

        graph @example(%x: f16[B, 3]) -> f16[3, B] {
          %y = transpose(%x)
          return %y
        }
    """
    return np.transpose(x, _permutation(x.ndim, perm))


# -- expand ------------------------------------------------------------------------------------------------------------


def _expanded_dim(have: Dim, want: Dim) -> Dim | None:
    """The dimension of the result; None when ``have`` can't become ``want``."""
    if want == -1:
        return have
    if have == 1 or isinstance(have, UnknownDim):
        return want
    return merge(want, have) if compatible(have, want) else None


def _infer_expand(x: TensorType, shape: Shape) -> TensorType:
    check_dims(shape, "shape", wildcard=True)
    extra = len(shape) - x.rank
    if extra < 0:
        raise TypeProblem(f"{x} has rank {x.rank}, shape={_show(shape)} only {len(shape)} dimensions", attribute="shape")
    if any(d == -1 for d in shape[:extra]):
        raise TypeProblem(f"-1 keeps a dimension, but the first {extra} of shape={_show(shape)} are new", attribute="shape")
    found: list[Dim] = list(shape[:extra])
    for i, (have, want) in enumerate(zip(x.shape, shape[extra:], strict=True)):
        dim = _expanded_dim(have, want)
        if dim is None:
            raise TypeProblem(
                f"{x} can't be expanded to {_show(shape)}: {have} can't become {want} in dimension {i - x.rank}",
                attribute="shape",
                hint="only a dimension that is 1 can grow; write -1 to keep one as it is",
            )
        found.append(dim)
    return TensorType(x.dtype, tuple(found))


@op(infer=_infer_expand, exact_bits=True, needs_output_type=True)
def expand(x: Tensor, *, shape: Shape, output_type: TensorType) -> Tensor:
    """Repeats dimensions of size 1, and puts new ones in front, to reach the given shape (numpy's ``broadcast_to``).

    Dimensions are aligned at the end.  Each must be equal to the one wanted, or 1; -1 keeps the operand's dimension and
    can't stand for a new one.  This goes one way only: a dimension that is not 1 never becomes 1, and a symbolic
    dimension grows to nothing but itself, even if it happens to be 1 when the program runs.  A dimension of 1 may become
    0.  Any element type; a rank-0 tensor expands to any shape.

    Example::

        graph @example(%x: f32[B, 1, 4]) -> f32[2, B, 3, 4] {
          %y = expand(%x, shape=[2, B, 3, -1])
          return %y
        }

    Example, from rank 0::

        graph @example(%x: i64[], %like: i64[B]) -> (i64[B], i64[B]) {
          %y = expand(%x, shape=[B])
          return %y, %like
        }
    """
    return np.broadcast_to(x, concrete_shape(output_type)).copy()


# -- dimensions of size 1 ----------------------------------------------------------------------------------------------


def _infer_squeeze(x: TensorType, axes: tuple[int, ...] | None) -> TensorType | UnknownType:
    if axes is None:
        if any(isinstance(d, UnknownDim) for d in x.shape):
            return UNKNOWN
        if not x.is_static:
            raise TypeProblem(
                f"{x} has symbolic dimensions, and which of them are 1 is not known: axes can't be left out",
                operand="x",
                hint="name the axes to remove: axes=[...]",
            )
        return x.with_shape(tuple(d for d in x.shape if d != 1))
    removed = normalize_axes(axes, x.rank)
    for axis in removed:
        if not compatible(x.shape[axis], 1):
            raise TypeProblem(
                f"dimension {axis} of {x} is {x.shape[axis]}, only a dimension of 1 can be removed",
                attribute="axes",
                hint=None if isinstance(x.shape[axis], int) else "a symbolic dimension may have other values; make it 1 in the type",
            )
    return x.with_shape(tuple(d for i, d in enumerate(x.shape) if i not in removed))


@op(infer=_infer_squeeze, exact_bits=True)
def squeeze(x: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    """Removes dimensions of size 1.

    ``axes`` names them, in any order, negative ones counted from the end; each must be 1 in the type (a symbolic
    dimension is not, even if it happens to be 1 when the program runs).  Without ``axes`` all dimensions that are 1 go;
    that needs a type without symbolic dimensions, because the rank of the result may not depend on their values.
    Any element type.

    Example::

        graph @example(%x: f32[B, 1, 4, 1]) -> f32[B, 4, 1] {
          %y = squeeze(%x, axes=[1])
          return %y
        }

    Example, all of them::

        graph @example(%x: i32[1, 3, 1]) -> i32[3] {
          %y = squeeze(%x)
          return %y
        }
    """
    removed = axes if axes is not None else tuple(i for i, d in enumerate(x.shape) if d == 1)
    return np.squeeze(x, axis=removed)


def _infer_unsqueeze(x: TensorType, axes: tuple[int, ...]) -> TensorType:
    rank = x.rank + len(axes)
    added = normalize_axes(axes, rank)
    rest = iter(x.shape)
    return x.with_shape(tuple(1 if i in added else next(rest) for i in range(rank)))


@op(infer=_infer_unsqueeze, exact_bits=True)
def unsqueeze(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """Adds dimensions of size 1.

    ``axes`` are their places in the result (numpy's ``expand_dims``), in any order, negative ones counted from the
    result's end; none may stand twice.  Any element type.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[1, B, 4, 1] {
          %y = unsqueeze(%x, axes=[0, -1])
          return %y
        }
    """
    return np.expand_dims(x, axes)


# -- flatten -----------------------------------------------------------------------------------------------------------


def _flat_range(rank: int, start_axis: int, end_axis: int) -> tuple[int, int]:
    start = normalize_axis(start_axis, rank, attribute="start_axis")
    end = normalize_axis(end_axis, rank, attribute="end_axis")
    if start > end:
        raise TypeProblem(f"start_axis={start_axis} lies behind end_axis={end_axis} in a tensor of rank {rank}", attribute="start_axis")
    return start, end


def _infer_flatten(x: TensorType, start_axis: int, end_axis: int) -> TensorType:
    start, end = _flat_range(x.rank, start_axis, end_axis)
    return x.with_shape((*x.shape[:start], product(x.shape[start : end + 1]), *x.shape[end + 1 :]))


@op(infer=_infer_flatten, exact_bits=True)
def flatten(x: Tensor, *, start_axis: int = 1, end_axis: int = -1) -> Tensor:
    """Makes one dimension of those from ``start_axis`` to ``end_axis`` (inclusive), in row-major order.

    The axes may be negative; both must exist, so the default, which keeps the first dimension, needs rank 2 or more.
    When the two are the same axis nothing changes.  Any element type.

    Example::

        graph @example(%x: f32[B, S, 4]) -> f32[B, 4*S] {
          %y = flatten(%x)
          return %y
        }

    Example, the first two::

        graph @example(%x: i32[B, 3, S]) -> i32[3*B, S] {
          %y = flatten(%x, start_axis=0, end_axis=1)
          return %y
        }
    """
    start, end = _flat_range(x.ndim, start_axis, end_axis)
    middle = int(np.prod(x.shape[start : end + 1], dtype=np.int64))
    return x.reshape((*x.shape[:start], middle, *x.shape[end + 1 :]))
