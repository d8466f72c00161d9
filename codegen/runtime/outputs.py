"""The arrays that a caller gives for the results (``out=``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ir.core import Graph
from ir.diagnostics import Diagnostic, GraphError
from ir.signature import is_masked, overlap, overlaps_itself
from ir.types import TensorType, dtype_from_numpy, tensor_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = list[NDArray[Any]]


def as_outputs(graph: Graph, out: Any, is_other: Callable[[object], bool] | None = None) -> Arrays:
    """The arrays of ``out=``: one for a single result, or a tuple or list of one for each.  What ``is_other`` knows is taken as it is.

    Raises :class:`GraphError` for anything else, and for arrays that can't be written.
    """
    given = list(out) if isinstance(out, (tuple, list)) else [out]
    if len(given) != len(graph.results):
        message = f"out: graph @{graph.name} has {_count(len(graph.results), 'result')}, found {_count(len(given), 'array')}"
        raise GraphError(Diagnostic(message, graph.loc))
    for value, array in zip(graph.results, given, strict=True):
        if is_other is not None and is_other(array):
            continue
        if not isinstance(array, np.ndarray) or is_masked(array):
            raise GraphError(Diagnostic(f"out: %{value.name} takes a numpy array, found {type(array).__name__}", value.location))
        if not array.flags.writeable:
            raise GraphError(Diagnostic(f"out: the array for %{value.name} is read-only", value.location))
        if overlaps_itself(array):
            raise GraphError(Diagnostic(f"out: elements of the array for %{value.name} share memory", value.location))
    return given


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def check_outputs(graph: Graph, out: Arrays, results: Sequence[tuple[tuple[int, ...], Any]], arguments: Arrays) -> None:
    """Raises :class:`GraphError` for arrays that don't fit the results, or that share memory with each other or what is updated."""
    for value, array, (shape, dtype) in zip(graph.results, out, results, strict=True):
        if array.shape != shape or array.dtype.newbyteorder("=") != dtype:
            wanted = dtype_from_numpy(np.dtype(dtype))
            assert wanted is not None
            found = dtype_from_numpy(array.dtype)
            name = str(array.dtype) if found is None else str(TensorType(found, tensor_shape(found, array.shape)))
            type_ = TensorType(wanted, tensor_shape(wanted, shape))
            raise GraphError(Diagnostic(f"out: %{value.name} is {type_}, but the array is {name}", value.location))
    for at, (value, array) in enumerate(zip(graph.results, out, strict=True)):
        for other, earlier in zip(graph.results[:at], out[:at], strict=True):
            if overlap(array, earlier):
                raise GraphError(Diagnostic(f"out: the arrays for %{other.name} and %{value.name} share memory", value.location))
        for parameter, argument in zip(graph.parameters, arguments, strict=True):
            if parameter.inout and overlap(array, argument):
                raise GraphError(Diagnostic(f"out: the array for %{value.name} shares memory with %{parameter.name}, which is inout", value.location))


def run_into(out: Arrays, arguments: Arrays) -> list[NDArray[Any]]:
    """Where a run should put its results: in the arrays themselves, or in new ones where it can't (gaps, alignment, byte order) or
    where an argument would change before it is read."""
    targets = []
    for array in out:
        direct = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
        if direct and not any(np.may_share_memory(array, a) for a in arguments):
            targets.append(array)
        else:
            targets.append(np.empty(array.shape, array.dtype.newbyteorder("=")))
    return targets


def bring(out: Arrays, results: Arrays) -> None:
    """Copies what was not put where it belongs."""
    for array, result in zip(out, results, strict=True):
        if array is not result:
            array[...] = result
