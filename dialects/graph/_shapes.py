"""What inference functions of the graph dialect share: element types, broadcasting, axes."""

from __future__ import annotations

from collections.abc import Sequence

from ir.dims import Dim, UnknownDim, compatible, merge
from ir.opdef import TypeProblem
from ir.types import DType, TensorType


def require_same_dtype(first: tuple[str, TensorType], *others: tuple[str, TensorType]) -> DType:
    """The common element type of (operand name, type) pairs.  Raises TypeProblem at the first that differs."""
    dtype = first[1].dtype
    for name, type_ in others:
        if type_.dtype != dtype:
            raise TypeProblem(
                f"element types differ: '{first[0]}' is {first[1]}, '{name}' is {type_}",
                operand=name,
                hint=f"nothing is converted implicitly; write cast(..., dtype={dtype.name})",
            )
    return dtype


def broadcast_dim(a: Dim, b: Dim) -> Dim | None:
    """The dimension that numpy's rule makes of two; None when they don't fit.

    Two different symbolic dimensions don't fit: they may differ at run time.
    """
    if a == 1 and not isinstance(a, UnknownDim):
        return b
    if b == 1:
        return a
    return merge(a, b) if compatible(a, b) else None


def broadcast_shapes(first: tuple[str, TensorType], *others: tuple[str, TensorType]) -> tuple[Dim, ...]:
    """The shape that numpy's rule makes of (operand name, type) pairs.  Raises TypeProblem at the operand that doesn't fit."""
    shape = list(first[1].shape)
    for name, type_ in others:
        other = list(type_.shape)
        rank = max(len(shape), len(other))
        left: list[Dim] = [1] * (rank - len(shape)) + shape
        right: list[Dim] = [1] * (rank - len(other)) + other
        merged: list[Dim] = []
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            dim = broadcast_dim(a, b)
            if dim is None:
                raise TypeProblem(
                    f"shapes can't be broadcast: '{first[0]}' is {first[1]}, '{name}' is {type_} ({a} and {b} in dimension {i - rank})",
                    operand=name,
                    hint=_symbol_hint(a, b),
                )
            merged.append(dim)
        shape = merged
    return tuple(shape)


def _symbol_hint(a: Dim, b: Dim) -> str | None:
    if isinstance(a, int) and isinstance(b, int):
        return None
    return "dimensions are equal only when they are written alike; give both the same name, or specialize them"


def normalize_axis(axis: int, rank: int, *, attribute: str = "axis") -> int:
    """``axis`` counted from 0.  Raises TypeProblem when it is out of range."""
    if not -rank <= axis < rank:
        where = "a rank-0 tensor has no axes" if rank == 0 else f"expected {-rank} <= {attribute} < {rank}"
        raise TypeProblem(f"{attribute}={axis} is out of range: {where}", attribute=attribute)
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int] | None, rank: int, *, attribute: str = "axes") -> tuple[int, ...]:
    """Axes counted from 0, sorted; all of them for None.  Raises TypeProblem for one out of range or given twice."""
    if axes is None:
        return tuple(range(rank))
    found = [normalize_axis(a, rank, attribute=attribute) for a in axes]
    if len(set(found)) != len(found):
        raise TypeProblem(f"{attribute}={list(axes)} names an axis twice", attribute=attribute)
    return tuple(sorted(found))


def require_rank(type_: TensorType, operand: str, *, at_least: int = 0, exactly: int | None = None) -> None:
    """Raises TypeProblem unless the rank fits."""
    if exactly is not None and type_.rank != exactly:
        raise TypeProblem(f"expected a tensor of rank {exactly}, found {type_}", operand=operand)
    if type_.rank < at_least:
        raise TypeProblem(f"expected a tensor of rank {at_least} or more, found {type_}", operand=operand)
