"""Arrays as native code wants them: row-major without gaps, aligned, native byte order; copies where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.runtime.facts import Writing
from ir.core import Graph, Parameter
from ir.diagnostics import Diagnostic, GraphError
from ir.interpreter import MEMORY_LIMIT
from ir.signature import check_updatable
from ir.types import DType, MemRefType

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARE_EFFORT = 10_000
"""Steps that the exact test for shared memory may take; what is not settled then counts as shared."""


@dataclass(slots=True)
class Arguments:
    """The arrays that a run gets, and the copies whose elements go back to the caller's arrays afterwards."""

    arrays: list[NDArray[Any]]
    updates: list[tuple[Parameter, NDArray[Any], NDArray[Any]]] = field(default_factory=list)

    def write_back(self) -> None:
        """Brings what was written to copies into the caller's arrays.  Raises GraphError for one that is read-only."""
        for parameter, target, copy in self.updates:
            if not target.flags.writeable:
                raise GraphError(Diagnostic(f"%{parameter.name} is inout, but the array is read-only", parameter.loc))
            target[...] = copy


def is_plain(array: NDArray[Any], dtype: DType) -> bool:
    """Whether native code can work on the array where it is."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and array.dtype == dtype.numpy and array.dtype.isnative):
        return False
    return dtype.kind != "bool" or array.size == 0 or bool(array.view(np.uint8).max() <= 1)


def plain_copy(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The same elements in new memory that native code can work on.  Raises MemoryError when they are too many."""
    size = array.size * dtype.numpy.itemsize
    if size > MEMORY_LIMIT:
        raise MemoryError(f"a copy of an argument needs {size} bytes, the limit is {MEMORY_LIMIT}")
    if dtype.kind == "bool":
        return np.array(array.view(np.uint8) != 0, order="C")  # other bytes than 0 and 1 count as true
    return np.array(array, dtype.numpy, order="C", copy=True)


def prepare(graph: Graph, arrays: Sequence[NDArray[Any]], dtypes: Sequence[DType], written: dict[int, Writing]) -> Arguments:
    """Arguments for a run.  Raises GraphError for arrays that overlap where one is written, and for read-only ones.

    The arrays fit the signature already.
    """
    check_updatable(graph, arrays)
    check_written_buffers(graph, arrays, written)
    ready = Arguments([])
    direct: list[NDArray[Any]] = []  # the caller's memory that the run writes
    for parameter, array, dtype in zip(graph.parameters, arrays, dtypes, strict=True):
        updated = parameter.inout or parameter.index in written
        if is_plain(array, dtype) and (array.flags.writeable or not updated):
            ready.arrays.append(array)
            if updated:
                direct.append(array)
        else:
            ready.arrays.append(plain_copy(array, dtype))
            if updated:
                ready.updates.append((parameter, array, ready.arrays[-1]))
    if direct:
        for parameter, dtype in zip(graph.parameters, dtypes, strict=True):
            given = ready.arrays[parameter.index]
            if not parameter.inout and parameter.index not in written and any(np.may_share_memory(given, d) for d in direct):
                ready.arrays[parameter.index] = plain_copy(given, dtype)  # it is read as it was before the run
    return ready


def check_written_buffers(graph: Graph, arrays: Sequence[NDArray[Any]], written: dict[int, Writing]) -> None:
    """Buffers are the caller's memory: one that is written must be writable and apart from the others."""
    for position, first in written.items():
        parameter, array = graph.parameters[position], arrays[position]
        if not array.flags.writeable:
            raise GraphError(Diagnostic(f"{first.name}: the buffer is read-only", first.loc))
        if array.size and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)):
            raise GraphError(Diagnostic(f"%{parameter.name} is written, but elements of the array share memory", parameter.loc))
        for other in graph.parameters:
            if other is parameter or not (isinstance(other.type, MemRefType) or other.inout):
                continue
            if _share_memory(array, arrays[other.index]):
                raise GraphError(Diagnostic(f"%{parameter.name} is written, but its array shares memory with that of %{other.name}", parameter.loc))


def _share_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=_SHARE_EFFORT))  # type: ignore[arg-type]  # its stubs know two values only
    except np.exceptions.TooHardError:
        return True
