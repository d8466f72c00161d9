"""Rules of ``canonicalize`` for shapes, indexing and reductions that reduce nothing."""

from __future__ import annotations

from dialects.graph._shapes import normalize_axes, normalize_axis
from dialects.graph.indexing import concat, flip, pad, slice_, split, tril, triu
from dialects.graph.reduction import all_, any_, max_, min_, prod, sum_
from dialects.graph.shape import expand, flatten, reshape, squeeze, transpose, unsqueeze
from ir.attributes import attribute_key
from ir.core import Operation, Value
from passes.graph._rules import Rule, Table, element_type, first, result_shape, source, tensor_type

_ROW_MAJOR = (reshape, flatten, squeeze, unsqueeze)
"""Operations that keep the elements in row-major order: what they do is said by the two types."""


# -- row-major shapes --------------------------------------------------------------------------------------------------


def _same_type(op: Operation) -> Value | None:
    return first(op) if first(op).type == op.result.type else None


def _reshape_of_reshape(op: Operation) -> Value | None:
    inner = source(first(op), *_ROW_MAJOR)
    if inner is None:
        return None
    x = first(inner)
    return x if x.type == op.result.type else reshape(x, shape=result_shape(op))


# -- transpose, expand, flip -------------------------------------------------------------------------------------------


def _permutation(op: Operation) -> tuple[int, ...] | None:
    """The axes counted from 0."""
    type_ = tensor_type(first(op))
    if type_ is None:
        return None
    perm = op.attribute("perm")
    assert perm is None or isinstance(perm, tuple)
    return tuple(reversed(range(type_.rank))) if perm is None else tuple(normalize_axis(a, type_.rank) for a in perm)  # type: ignore[arg-type]


def _transpose_of_nothing(op: Operation) -> Value | None:
    perm = _permutation(op)
    return first(op) if perm is not None and perm == tuple(range(len(perm))) else None


def _transpose_of_transpose(op: Operation) -> Value | None:
    inner = source(first(op), transpose)
    outer_perm = _permutation(op)
    inner_perm = _permutation(inner) if inner is not None else None
    if inner is None or outer_perm is None or inner_perm is None:
        return None
    return transpose(first(inner), perm=tuple(inner_perm[a] for a in outer_perm))  # type: ignore[no-any-return]


def _expand_of_expand(op: Operation) -> Value | None:
    inner = source(first(op), expand)
    return None if inner is None else expand(first(inner), shape=result_shape(op))


def _flipped_axes(op: Operation) -> tuple[int, ...] | None:
    type_, axes = tensor_type(first(op)), op.attribute("axes")
    assert axes is None or isinstance(axes, tuple)
    return None if type_ is None else normalize_axes(axes, type_.rank)  # type: ignore[arg-type]


def _flip_of_nothing(op: Operation) -> Value | None:
    type_, axes = tensor_type(first(op)), _flipped_axes(op)
    if type_ is None or axes is None:
        return None
    return first(op) if all(type_.shape[a] in (0, 1) for a in axes) else None


def _flip_of_flip(op: Operation) -> Value | None:
    inner = source(first(op), flip)
    if inner is None:
        return None
    outer_axes, inner_axes = _flipped_axes(op), _flipped_axes(inner)
    if outer_axes is None or inner_axes is None:
        return None
    once = tuple(sorted(set(outer_axes) ^ set(inner_axes)))
    return flip(first(inner), axes=once) if once else first(inner)


# -- slice, pad, concat, split -----------------------------------------------------------------------------------------


def _slice_of_everything(op: Operation) -> Value | None:
    steps = op.attribute("steps")
    assert steps is None or isinstance(steps, tuple)
    forward = steps is None or all(isinstance(s, int) and s > 0 for s in steps)
    return _same_type(op) if forward else None  # as many elements as there are, in order, are all of them


def _pad_of_nothing(op: Operation) -> Value | None:
    low, high = op.attribute("low"), op.attribute("high")
    assert isinstance(low, tuple) and isinstance(high, tuple)
    return first(op) if all(amount == 0 for amount in (*low, *high)) else None


_CONCAT_LIMIT = 32
"""Operands of a concat that is made from several."""


def _concat_of_one(op: Operation) -> Value | None:
    return first(op) if len(op.operands) == 1 else None


def _concat_without_empties(op: Operation) -> Value | None:
    axis = op.attribute("axis")
    assert isinstance(axis, int)
    types = [tensor_type(v) for v in op.operands]
    kept = [v for v, t in zip(op.operands, types, strict=True) if t is None or t.shape[axis] != 0]
    if len(kept) == len(op.operands) or not kept:
        return None
    return concat(*kept, axis=axis)  # type: ignore[no-any-return]


def _concat_of_concat(op: Operation) -> Value | None:
    axis, type_ = op.attribute("axis"), tensor_type(op.result)
    assert isinstance(axis, int)
    if type_ is None:
        return None
    along = normalize_axis(axis, type_.rank)
    parts: list[Value] = []
    total = len(op.operands)
    for value in op.operands:
        inner = source(value, concat)
        number = inner.attribute("axis") if inner is not None else None
        grown = total + len(inner.operands) - 1 if inner is not None else total
        # not by the number of uses, which later rewrites change; not without a limit, as a chain of doublings explodes
        if inner is not None and grown <= _CONCAT_LIMIT and isinstance(number, int) and normalize_axis(number, type_.rank) == along:
            parts += inner.operands
            total = grown
        else:
            parts.append(value)
    return None if len(parts) == len(op.operands) else concat(*parts, axis=axis)


def _same_triangle(op: Operation) -> Value | None:
    inner = source(first(op), op.definition)
    if inner is None or attribute_key(inner.attribute("diagonal")) != attribute_key(op.attribute("diagonal")):
        return None
    return first(op)


# -- reductions of one element -----------------------------------------------------------------------------------------


def _reduces_nothing(integers_only: bool = False) -> Rule:
    """Along axes of size 1 (or none) the only element is the result."""

    def rule(op: Operation) -> Value | None:
        type_, axes, dtype = tensor_type(first(op)), op.attribute("axes"), element_type(first(op))
        if type_ is None or dtype is None or (integers_only and dtype.is_float):
            return None
        assert axes is None or isinstance(axes, tuple)
        if any(type_.shape[a] != 1 for a in normalize_axes(axes, type_.rank)):  # type: ignore[arg-type]
            return None
        if op.definition in (max_, min_) and op.attribute("initial") is not None:
            return None
        return first(op) if type_ == op.result.type else reshape(first(op), shape=result_shape(op))

    return rule


TABLE: Table = {
    # reshape to its own shape -> x; reshape(reshape(x)) -> reshape(x), likewise flatten, squeeze and unsqueeze
    reshape: [_same_type, _reshape_of_reshape],
    flatten: [_same_type, _reshape_of_reshape],
    squeeze: [_same_type, _reshape_of_reshape],
    unsqueeze: [_same_type, _reshape_of_reshape],
    transpose: [
        # transpose without effect -> x
        _transpose_of_nothing,
        # transpose(transpose(x, p), q) -> transpose(x, p[q])
        _transpose_of_transpose,
    ],
    expand: [
        # expand to its own shape -> x
        _same_type,
        # expand(expand(x, s), t) -> expand(x, t)
        _expand_of_expand,
    ],
    flip: [
        # flip along nothing, or dimensions of 1 -> x
        _flip_of_nothing,
        # flip(flip(x, a), b) -> flip along the axes in one of them only
        _flip_of_flip,
    ],
    slice_: [
        # slice of everything -> x
        _slice_of_everything,
    ],
    pad: [
        # pad of nothing -> x
        _pad_of_nothing,
    ],
    concat: [
        # concat(x) -> x
        _concat_of_one,
        # concat(x, empty) -> concat(x)
        _concat_without_empties,
        # concat(concat(x, y), z) -> concat(x, y, z)
        _concat_of_concat,
    ],
    split: [
        # split into one part -> x
        _same_type,
    ],
    # tril(tril(x)) -> tril(x)
    tril: [_same_triangle],
    triu: [_same_triangle],
    # max along dimensions of 1 -> the elements themselves
    max_: [_reduces_nothing()],
    min_: [_reduces_nothing()],
    prod: [_reduces_nothing()],
    any_: [_reduces_nothing()],
    all_: [_reduces_nothing()],
    # the sum too, but not of floats: it starts from +0, so that of -0.0 is 0.0
    sum_: [_reduces_nothing(integers_only=True)],
}
