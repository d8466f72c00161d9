"""Taking tensors apart, putting them together, and reading and writing by index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dialects.graph._shapes import normalize_axes, normalize_axis, require_rank, require_same_dtype
from dialects.graph._symbolic import Bound, at_least_zero, check_dims, concrete_shape, slice_length
from ir.blocks import dequantize
from ir.dims import Dim, UnknownDim, compatible, exact_div, merge, product
from ir.evaluate import round_to
from ir.opdef import ExecutionError, Integer, Shape, Stored, Tensor, TypeProblem, op
from ir.types import DType, TensorType, f32, f64

# -- concat and split --------------------------------------------------------------------------------------------------


def _infer_concat(*xs: TensorType, axis: int) -> TensorType:
    if not xs:
        raise TypeProblem("expected at least one tensor")
    first = xs[0]
    along = normalize_axis(axis, first.rank)
    shape = list(first.shape)
    for i, x in enumerate(xs[1:], 1):
        if x.dtype != first.dtype:
            hint = f"nothing is converted implicitly; write cast(..., dtype={first.dtype.name})"
            raise TypeProblem(f"element types differ: operand 0 is {first}, operand {i} is {x}", operand=i, hint=hint)
        if x.rank != first.rank:
            raise TypeProblem(f"ranks differ: operand 0 is {first}, operand {i} is {x}", operand=i)
        for k, dim in enumerate(x.shape):
            if k == along:
                shape[k] = shape[k] + dim
            elif compatible(shape[k], dim):
                shape[k] = merge(shape[k], dim)
            else:
                message = f"operand 0 is {first}, operand {i} is {x}: only dimension {along} may differ, but dimension {k} is {shape[k]} and {dim}"
                raise TypeProblem(message, operand=i)
    return first.with_shape(tuple(shape))


@op(infer=_infer_concat, exact_bits=True)
def concat(*xs: Tensor, axis: int) -> Tensor:
    """Puts tensors one behind the other along an axis.

    One or more tensors of the same element type and rank (at least 1); their dimensions other than ``axis`` are equal,
    those along it are added.  The axis may be negative.  A tensor may be empty, and the same one may stand twice.
    Nothing is broadcast.

    Example::

        graph @example(%x: f32[B, 2], %y: f32[B, S]) -> f32[B, S+4] {
          %z = concat(%x, %y, %x, axis=1)
          return %z
        }

    Example, one tensor::

        graph @example(%x: i8[B, 2]) -> i8[B, 2] {
          %z = concat(%x, axis=-2)
          return %z
        }
    """
    return np.concatenate(xs, axis=axis)


_MAX_SECTIONS = 2**16  # every part is a result that the program names


def _part_sizes(size: Dim, sections: int | None, sizes: Shape | None) -> tuple[Dim, ...]:
    if (sections is None) == (sizes is None):
        raise TypeProblem("expected either sections or sizes", hint="sections=3 makes three equal parts, sizes=[2, 5] parts of 2 and 5")
    if sections is not None:
        if not 1 <= sections <= _MAX_SECTIONS:
            raise TypeProblem(f"sections={sections}: expected 1 to {_MAX_SECTIONS}", attribute="sections")
        part = exact_div(size, sections)
        if part is None:
            hint = "give the sizes of the parts instead: sizes=[...]"
            raise TypeProblem(f"{size} can't be split into {sections} equal parts", attribute="sections", hint=hint)
        return (part,) * sections
    assert sizes is not None
    check_dims(sizes, "sizes")
    if not sizes:
        raise TypeProblem("expected at least one size", attribute="sizes")
    total: Dim = 0
    for part in sizes:
        total = total + part
    if not compatible(total, size):
        raise TypeProblem(f"the sizes make {total}, the dimension is {size}", attribute="sizes")
    return sizes


def _infer_split(x: TensorType, axis: int, sections: int | None, sizes: Shape | None) -> tuple[TensorType, ...]:
    along = normalize_axis(axis, x.rank)
    parts = _part_sizes(x.shape[along], sections, sizes)
    return tuple(x.with_shape((*x.shape[:along], p, *x.shape[along + 1 :])) for p in parts)


@op(infer=_infer_split, exact_bits=True, result_count=None)
def split(x: Tensor, *, axis: int, sections: int | None = None, sizes: Shape | None = None) -> tuple[Tensor, ...]:
    """Takes a tensor apart along an axis; the inverse of ``concat``.

    Either ``sections`` gives the number of parts, which are equal (the dimension must be a multiple of it, for every
    value of its symbols), or ``sizes`` gives the dimension of each part; they add up to that of the operand, and 0 is
    allowed.  The program names as many results as there are parts.  Any element type.

    Example::

        graph @example(%x: f32[B, 3*H]) -> (f32[B, H], f32[B, H], f32[B, H]) {
          %q, %k, %v = split(%x, axis=1, sections=3)
          return %q, %k, %v
        }

    Example, with sizes::

        graph @example(%x: i32[B, 5]) -> (i32[B, 2], i32[B, 0], i32[B, 3]) {
          %a, %b, %c = split(%x, axis=-1, sizes=[2, 0, 3])
          return %a, %b, %c
        }
    """
    parts = _part_sizes(x.shape[axis], sections, sizes)
    ends = np.cumsum([int(p) for p in parts])  # type: ignore[arg-type]
    return tuple(np.split(x, ends[:-1], axis=axis))


# -- slice, flip and pad -----------------------------------------------------------------------------------------------


def _slice_axes(rank: int, starts: Sequence[Bound], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """The axis of each bound, in the order of the bounds."""
    if axes is None:
        if len(starts) > rank:
            raise TypeProblem(f"starts has {len(starts)} entries, the tensor has {rank} axes", attribute="starts")
        return tuple(range(len(starts)))
    normalize_axes(axes, rank)  # reports what is out of range or given twice
    return tuple(normalize_axis(a, rank) for a in axes)


def _check_bounds(bounds: Sequence[Bound], attribute: str) -> None:
    for bound in bounds:
        if isinstance(bound, UnknownDim):
            raise TypeProblem(f"{attribute} can't contain an unknown dimension", attribute=attribute)
        if bound is not None and not isinstance(bound, int) and not at_least_zero(bound):
            raise TypeProblem(
                f"{attribute} contains {bound}, which may be negative: whether it counts from the end is not known",
                attribute=attribute,
                hint=f"write max(0, {bound}), or an integer",
            )


def _infer_slice(
    x: TensorType, starts: tuple[Bound, ...], ends: tuple[Bound, ...], axes: tuple[int, ...] | None, steps: tuple[int, ...] | None
) -> TensorType:
    lengths = {"ends": ends, "axes": axes, "steps": steps}
    for name, given in lengths.items():
        if given is not None and len(given) != len(starts):
            raise TypeProblem(f"{name} has {len(given)} entries, starts has {len(starts)}", attribute=name)
    places = _slice_axes(x.rank, starts, axes)
    _check_bounds(starts, "starts")
    _check_bounds(ends, "ends")
    shape = list(x.shape)
    for axis, start, end, step in zip(places, starts, ends, steps or (1,) * len(starts), strict=True):
        if step == 0:
            raise TypeProblem("a step can't be 0", attribute="steps")
        shape[axis] = slice_length(shape[axis], start, end, step)
    return x.with_shape(tuple(shape))


@op(infer=_infer_slice, exact_bits=True, name="slice")
def slice_(
    x: Tensor,
    *,
    starts: tuple[Dim | None, ...],
    ends: tuple[Dim | None, ...],
    axes: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
) -> Tensor:
    """Every ``step``-th element from ``start`` to before ``end``, along some axes (numpy's ``x[start:end:step]``).

    ``starts`` and ``ends`` have an entry for each of ``axes`` (without them: for the first axes), ``steps`` are 1 unless
    given.  The rules are numpy's: a negative bound counts from the end, bounds out of range are clamped (so any 64-bit
    integer is allowed), the result is empty when the start lies behind the end, and a negative step walks backwards.
    ``none`` as a start or end means as far as the tensor goes in the direction of the step.  A step of 0 is an error.

    A bound may be a symbolic dimension that can't be negative (``S``, ``2*S+1``, ``max(0, S-1)``); one that may be, like
    ``S-1``, is an error, as it is not known whether it would count from the end.  The dimension of the result is exact
    for every value of the symbols: where their order is not known it contains ``min`` or ``max``, like ``max(0, S-1)``
    for everything but the first of S elements.  Any element type.

    Example::

        graph @example(%x: f32[B, 8]) -> f32[B, 3] {
          %y = slice(%x, starts=[1], ends=[-1], axes=[1], steps=[2])
          return %y
        }

    Example, backwards::

        graph @example(%x: i32[B, 5]) -> i32[B, 3] {
          %y = slice(%x, starts=[none, 3], ends=[none, 0], steps=[-1, -1])
          return %y
        }

    Example, symbolic bounds::

        graph @example(%x: f16[S, 2], %y: f16[T, 2]) -> (f16[S, 2], f16[T, 2]) {
          %z = concat(%x, %y, axis=0)
          %head = slice(%z, starts=[0], ends=[S])
          %tail = slice(%z, starts=[S], ends=[none])
          return %head, %tail
        }
    """
    selected: list[slice] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(_slice_axes(x.ndim, starts, axes), starts, ends, steps or (1,) * len(starts), strict=True):
        selected[axis] = slice(start, end, step)
    return x[tuple(selected)]


def _infer_flip(x: TensorType, axes: tuple[int, ...] | None) -> TensorType:
    normalize_axes(axes, x.rank)
    return x


@op(infer=_infer_flip, exact_bits=True)
def flip(x: Tensor, *, axes: tuple[int, ...] | None = None) -> Tensor:
    """The elements in reverse order along some axes, or along all of them.

    Axes may be negative, in any order; none may stand twice.  Any element type.

    Example::

        graph @example(%x: f32[B, S, 3]) -> f32[B, S, 3] {
          %y = flip(%x, axes=[1, -1])
          return %y
        }
    """
    return np.flip(x, axis=axes)


def _fill_value(value: bool | int | float, dtype: DType) -> Any:
    """``value`` as one element.  Raises TypeProblem when it is none of ``dtype``."""
    if dtype.is_float and not isinstance(value, bool):
        try:
            return round_to(np.asarray(value, np.float64), dtype)
        except OverflowError:
            raise TypeProblem(f"value={value} is too large", attribute="value") from None
    if dtype.kind == "bool":
        if value in (0, 1) and not isinstance(value, float):
            return np.asarray(bool(value))
        raise TypeProblem(f"value={value} is not a bool", attribute="value")
    if isinstance(value, (bool, float)):
        raise TypeProblem(f"value={value} is not an element of {dtype}", attribute="value")
    if not dtype.min_value <= value <= dtype.max_value:
        raise TypeProblem(f"value={value} does not fit in {dtype} ({dtype.min_value} to {dtype.max_value})", attribute="value")
    return np.asarray(value, dtype.numpy)


def _infer_pad(x: TensorType, low: Shape, high: Shape, value: bool | int | float) -> TensorType:
    for name, amounts in (("low", low), ("high", high)):
        if len(amounts) != x.rank:
            raise TypeProblem(f"{name} has {len(amounts)} entries, {x} has {x.rank} axes", attribute=name)
        check_dims(amounts, name)
    _fill_value(value, x.dtype)
    return x.with_shape(tuple(a + d + b for a, d, b in zip(low, x.shape, high, strict=True)))


@op(infer=_infer_pad, exact_bits=True, needs_output_type=True)
def pad(x: Tensor, *, low: Shape, high: Shape, value: bool | int | float = 0, output_type: TensorType) -> Tensor:
    """Adds elements of one value around a tensor: ``low[i]`` in front and ``high[i]`` behind along axis i.

    ``low`` and ``high`` have an entry for each axis, 0 or more; they may be symbolic.  ``value`` is an element of the
    tensor's type: for floats any number, rounded once (``-inf`` in front of a maximum, ``0`` in front of a sum), for
    integers one in range, for bool ``true`` or ``false`` (or 1 and 0).

    Example::

        graph @example(%x: f32[B, 3]) -> f32[B, 6] {
          %y = pad(%x, low=[0, 1], high=[0, 2], value=-inf)
          return %y
        }

    Example, integers::

        graph @example(%x: i32[S]) -> i32[2*S+1] {
          %y = pad(%x, low=[S], high=[1], value=-1)
          return %y
        }
    """
    # the value is rounded to the declared type even where the arrays are wider
    result = np.full(concrete_shape(output_type), _fill_value(value, output_type.dtype).astype(x.dtype), x.dtype)
    result[tuple(slice(int(a), int(a) + d) for a, d in zip(low, x.shape, strict=True))] = x  # type: ignore[arg-type]
    return result


# -- reading and writing by index --------------------------------------------------------------------------------------


def _check_axis_has_elements(x: TensorType, axis: int, indices: TensorType, operand: str) -> None:
    count = product(indices.shape)
    if x.shape[axis] == 0 and isinstance(count, int) and count > 0:
        raise TypeProblem(f"no index is in range: dimension {axis} of {x} is 0", operand=operand)


def _gathered(x: TensorType, indices: TensorType, axis: int, names: tuple[str, str]) -> TensorType:
    if x.rank == 0:
        raise TypeProblem(f"expected a tensor of rank 1 or more, found {x}", operand=names[0])
    along = normalize_axis(axis, x.rank)
    _check_axis_has_elements(x, along, indices, names[1])
    if x.dtype.is_block:
        if along == x.rank - 1:
            hint = "dequantize it first, or take rows: axis=0"
            raise TypeProblem(f"the last axis of {x} is stored in blocks, which are taken as a whole", operand=names[0], hint=hint)
        x = x.with_dtype(f32)
    return x.with_shape((*x.shape[:along], *indices.shape, *x.shape[along + 1 :]))


def checked_indices(operation: str, indices: Tensor, size: int, axis: int) -> Tensor:
    """The indices counted from 0, as int64.  Raises ExecutionError for the first that is out of range."""
    wide = np.asarray(indices).astype(np.int64)
    bad = (wide < -size) | (wide >= size)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f" at position {list(place)}" if place else ""
        allowed = f"expected {-size} <= index < {size}" if size else "it has no elements"
        raise ExecutionError(f"{operation} index {int(wide[place])}{where} is out of range for axis {axis}: {allowed}")
    return np.where(wide < 0, wide + size, wide)


def _numbers(taken: Tensor) -> Tensor:
    """What was taken, blocks as their exact numbers."""
    return dequantize(taken, f64) if taken.dtype.names is not None else taken


def _infer_gather(x: TensorType, indices: TensorType, axis: int) -> TensorType:
    return _gathered(x, indices, axis, ("x", "indices"))


@op(infer=_infer_gather, exact_bits=True, traps=True, index_operands={"indices": ("x", "axis")})
def gather(x: Stored, indices: Integer, *, axis: int = 0) -> Tensor:
    """The slices of ``x`` along an axis that the indices name (numpy's ``take``).

    The axis is replaced by the dimensions of ``indices``: ``x[A, N, C]`` and ``indices[I, J]`` give ``[A, I, J, C]`` along
    axis 1, and a rank-0 index removes the axis.  Indices of any integer type; -N to -1 count from the end.  An index
    outside -N to N-1 is an error that names its position and value; so is any index into a dimension of 0, while an
    empty tensor of indices is fine.  Any element type of ``x``, rank 1 or more; of a tensor of blocks (``q4_0``, ``q4_1``,
    ``q8_0``) the result is f32, as if by ``dequantize``, and the axis is not the last.

    Example::

        graph @example(%x: f32[N, 4], %indices: i64[B, 2]) -> f32[B, 2, 4] {
          %y = gather(%x, %indices)
          return %y
        }

    Example, along another axis::

        graph @example(%x: f16[B, 5], %indices: i32[]) -> f16[B] {
          %y = gather(%x, %indices, axis=-1)
          return %y
        }
    """
    return _numbers(np.take(x, checked_indices("gather", indices, x.shape[axis], axis), axis=axis))


def _infer_embedding(table: TensorType, ids: TensorType) -> TensorType:
    return _gathered(table, ids, 0, ("table", "ids"))


@op(infer=_infer_embedding, exact_bits=True, traps=True, composite=True, index_operands={"ids": ("table", 0)})
def embedding(table: Stored, ids: Integer) -> Tensor:
    """The rows of a table that the ids name: ``gather(table, ids, axis=0)``.

    The dimensions of ``ids`` replace the table's first.  An id outside -N to N-1 (negative ones count from the end) is an
    error that names its position and value, as in ``gather``.  The rows of a table of blocks come as f32.

    Example::

        graph @example(%table: f32[V, 8], %ids: i64[B, S]) -> f32[B, S, 8] {
          %y = embedding(%table, %ids)
          return %y
        }

    Example, a table in blocks::

        graph @example(%table: q8_0[V, 32], %ids: i64[S]) -> f32[S, 32] {
          %y = embedding(%table, %ids)
          return %y
        }
    """
    return _numbers(np.take(table, checked_indices("embedding", ids, table.shape[0], 0), axis=0))


def _infer_scatter(x: TensorType, indices: TensorType, updates: TensorType, axis: int) -> TensorType:
    require_same_dtype(("x", x), ("updates", updates))
    expected = _gathered(x, indices, axis, ("x", "indices"))
    if updates.rank != expected.rank or not all(map(compatible, updates.shape, expected.shape)):
        raise TypeProblem(f"expected {expected} as updates (what gather would give), found {updates}", operand="updates")
    return x


@op(infer=_infer_scatter, exact_bits=True, traps=True, index_operands={"indices": ("x", "axis")})
def scatter(x: Tensor, indices: Integer, updates: Tensor, *, axis: int = 0) -> Tensor:
    """``x`` with the slices along an axis that the indices name replaced by ``updates``.

    ``updates`` has the shape that ``gather(x, indices)`` gives, and the element type of ``x``: nothing is broadcast.  The
    result is a new tensor, ``x`` stays what it is.  When an index occurs more than once (-1 and N-1 are the same), the
    last one in row-major order of ``indices`` wins.  Indices are checked as in ``gather``; an index out of range is an
    error that names its position and value.

    Example::

        graph @example(%x: f32[4, D], %indices: i64[B], %updates: f32[B, D]) -> f32[4, D] {
          %y = scatter(%x, %indices, %updates)
          return %y
        }

    Example, along another axis::

        graph @example(%x: i32[B, 5], %indices: i32[2, 2], %updates: i32[B, 2, 2]) -> i32[B, 5] {
          %y = scatter(%x, %indices, %updates, axis=1)
          return %y
        }
    """
    axis = axis + x.ndim if axis < 0 else axis
    flat = checked_indices("scatter", indices, x.shape[axis], axis).reshape(-1)
    # first occurrences in the reversed list are last occurrences
    targets, reversed_at = np.unique(flat[::-1], return_index=True)
    lines = updates.reshape((*x.shape[:axis], flat.size, *x.shape[axis + 1 :]))
    result = x.copy()
    np.moveaxis(result, axis, 0)[targets] = np.moveaxis(lines, axis, 0)[flat.size - 1 - reversed_at]
    return result


def _infer_gather_elements(x: TensorType, indices: TensorType, axis: int) -> TensorType:
    if x.rank == 0:
        raise TypeProblem(f"expected a tensor of rank 1 or more, found {x}", operand="x")
    along = normalize_axis(axis, x.rank)
    if indices.rank != x.rank:
        raise TypeProblem(f"ranks differ: 'x' is {x}, 'indices' is {indices}", operand="indices")
    _check_axis_has_elements(x, along, indices, "indices")
    shape: list[Dim] = []
    for i, (have, want) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if i != along and not compatible(have, want):
            message = f"'x' is {x}, 'indices' is {indices}: only dimension {along} may differ, but dimension {i} is {want} and {have}"
            raise TypeProblem(message, operand="indices")
        shape.append(have if i == along else merge(have, want))
    return x.with_shape(tuple(shape))


@op(infer=_infer_gather_elements, exact_bits=True, traps=True, index_operands={"indices": ("x", "axis")})
def gather_elements(x: Tensor, indices: Integer, *, axis: int) -> Tensor:
    """Element by element, the one that an index names along an axis (numpy's ``take_along_axis``).

    For axis 1 of a matrix: ``y[i, j] = x[i, indices[i, j]]``.  The indices have the rank of ``x``, their dimensions other
    than ``axis`` are equal to those of ``x`` (nothing is broadcast), and the result has their shape.  They are checked as
    in ``gather``: -N to -1 count from the end, and one out of range is an error that names its position and value.

    Example::

        graph @example(%x: f32[B, 5], %indices: i64[B, 2]) -> f32[B, 2] {
          %y = gather_elements(%x, %indices, axis=1)
          return %y
        }
    """
    return np.take_along_axis(x, checked_indices("gather_elements", indices, x.shape[axis], axis), axis=axis)


# -- triangles ---------------------------------------------------------------------------------------------------------


def _infer_triangle(x: TensorType, diagonal: int) -> TensorType:
    require_rank(x, "x", at_least=2)
    return x


def _above(x: Tensor, diagonal: int) -> Tensor:
    """Where the column is greater than the row plus ``diagonal``, for the last two axes."""
    rows, columns = x.shape[-2:]
    limit = min(max(diagonal, -rows - 1), columns + 1)  # the same triangle, without overflow
    above: Tensor = np.arange(columns) - np.arange(rows)[:, None] > limit
    return above


@op(infer=_infer_triangle, exact_bits=True)
def tril(x: Tensor, *, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two axes; the rest becomes 0 (false for bool).

    Element ``[..., i, j]`` is kept where ``j - i <= diagonal``: 0 keeps the main diagonal, 1 one more above it, -1 leaves it
    out.  The rest is selected away, not multiplied: NaN and inf there become +0.  Rank 2 or more, any element type.

    Example::

        graph @example(%x: f32[B, S, 4]) -> f32[B, S, 4] {
          %y = tril(%x)
          return %y
        }
    """
    return np.where(_above(x, diagonal), np.zeros((), x.dtype), x)


@op(infer=_infer_triangle, exact_bits=True)
def triu(x: Tensor, *, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two axes; the rest becomes 0 (false for bool).

    Element ``[..., i, j]`` is kept where ``j - i >= diagonal``: 0 keeps the main diagonal, 1 leaves it out, -1 keeps one more
    below it.  The rest is selected away, not multiplied: NaN and inf there become +0.  Rank 2 or more, any element type.

    Example::

        graph @example(%x: i32[S, 4]) -> i32[S, 4] {
          %y = triu(%x, diagonal=1)
          return %y
        }
    """
    return np.where(_above(x, diagonal - 1), x, np.zeros((), x.dtype))
