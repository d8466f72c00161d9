"""What shape and indexing operations share about symbolic dimensions: attributes with dimensions, order, slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ir.dims import UNKNOWN_DIM, Atom, Dim, DimExpr, DimFunction, UnknownDim, ceildiv, dim_max, dim_min
from ir.opdef import ExecutionError, TypeProblem
from ir.types import TensorType

_MAX_SPLITS = 4  # how deep, and over how many arguments, min and max are taken apart in a proof


def check_dims(dims: Sequence[Dim], attribute: str, *, wildcard: bool = False) -> None:
    """Raises TypeProblem for a dimension that is unknown or negative; ``wildcard`` allows -1."""
    for dim in dims:
        if isinstance(dim, UnknownDim):
            hint = "write -1 for a dimension that follows from the others" if wildcard else None
            raise TypeProblem(f"{attribute} can't contain an unknown dimension", attribute=attribute, hint=hint)
        if isinstance(dim, int) and dim < (-1 if wildcard else 0):
            raise TypeProblem(f"{attribute} contains {dim}, a dimension can't be negative", attribute=attribute)


def concrete_shape(type_: Any) -> tuple[int, ...]:
    """The shape of a result while a program runs: integers."""
    assert isinstance(type_, TensorType)
    for dim in type_.shape:
        if not isinstance(dim, int):
            raise ExecutionError(f"dimension {dim} of the result {type_} has no value here")
    return tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]


# -- order -------------------------------------------------------------------------------------------------------------


def at_least_zero(dim: Dim, splits: int = _MAX_SPLITS) -> bool:
    """Whether ``dim`` is provably >= 0, symbols being any integers >= 0.  False means only that no proof was found."""
    if isinstance(dim, UnknownDim):
        return False
    if isinstance(dim, int):
        return dim >= 0
    if all(c > 0 and all(map(_atom_at_least_zero, m)) for m, c in dim.terms):
        return True
    for monomial, coefficient in dim.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        if splits and isinstance(atom, DimFunction) and atom.kind in ("min", "max") and len(atom.args) <= _MAX_SPLITS:
            rest = dim - DimExpr(((monomial, coefficient),))
            # the value is that of one argument, and min is <= each of them, max >= each
            needed = all if (atom.kind == "min") == (coefficient > 0) else any
            return needed(at_least_zero(rest + a * coefficient, splits - 1) for a in atom.args)
    return False


def _atom_at_least_zero(atom: Atom) -> bool:
    if isinstance(atom, str):
        return True
    if atom.kind == "mod":
        return at_least_zero(atom.args[1])
    if atom.kind == "max":
        return any(map(at_least_zero, atom.args))
    return all(map(at_least_zero, atom.args))  # min, floordiv, ceildiv


# -- slices ------------------------------------------------------------------------------------------------------------

Bound = Dim | None


def slice_length(size: Dim, start: Bound, end: Bound, step: int) -> Dim:
    """How many elements ``[start:end:step]`` selects of ``size``, by numpy's rule.

    Bounds may be symbolic if they are provably >= 0.  The result is exact: where the order of symbolic bounds is not
    known it contains ``min`` and ``max``.
    """
    if isinstance(size, UnknownDim):
        return UNKNOWN_DIM
    if step > 0:
        return ceildiv(_gap(_limits(end, size, size), _limits(start, size, 0)), step)
    return ceildiv(_gap(_limits(start, size, size - 1), _limits(end, size, -1)), -step)


def _limits(bound: Bound, size: Dim, last: Dim) -> list[Dim]:
    """``last``, and the position that ``bound`` names when it counts."""
    if bound is None:
        return [last]
    return [last, size + bound if isinstance(bound, int) and bound < 0 else bound]


def _gap(uppers: Sequence[Dim], lowers: Sequence[Dim]) -> Dim:
    """``max(0, min(uppers) - max(lowers))``, without what is provably not needed."""
    gaps = list(dict.fromkeys(u - low for u in uppers for low in lowers))
    for gap in list(gaps):
        if any(other is not gap and at_least_zero(gap - other) for other in gaps):
            gaps.remove(gap)
    if any(at_least_zero(0 - g) for g in gaps):
        return 0
    smallest = dim_min(*gaps)
    return smallest if all(map(at_least_zero, gaps)) else dim_max(0, smallest)
