"""Memory that machine code reads and writes for long: aligned, and on large pages where the system has them.

A product goes through megabytes of panels and workspace; with pages of 4 KiB the processor spends a tenth of the time on
finding out where they are.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.runtime.abi import ALIGNMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGE_PAGE = 2 << 20
"""Bytes of a large page, on the machines that we know."""

_WORTHWHILE = 512 << 10
"""Less than this stays on ordinary pages: a large one is taken whole."""


def aligned_bytes(size: int) -> NDArray[Any]:
    """New memory of at least ``size`` bytes that begins at a multiple of ALIGNMENT.  Raises MemoryError."""
    size = max(size, ALIGNMENT)  # numpy moves the address of nothing
    if size >= _WORTHWHILE and hasattr(mmap, "MADV_HUGEPAGE"):
        return _on_large_pages(size)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def aligned_arrays(types: Sequence[tuple[tuple[int, ...], Any]]) -> list[NDArray[Any]]:
    """New arrays of such shapes and element types, side by side in one piece of memory.  Raises MemoryError."""
    starts, end = [], 0
    for shape, dtype in types:
        starts.append(end)
        end += -(-np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)) // ALIGNMENT) * ALIGNMENT
    memory = aligned_bytes(end)
    arrays = []
    for (shape, dtype), start in zip(types, starts, strict=True):
        arrays.append(np.ndarray(shape, dtype, memory.data, start))
    return arrays


def _on_large_pages(size: int) -> NDArray[Any]:
    whole = -(-size // LARGE_PAGE) * LARGE_PAGE + LARGE_PAGE
    try:
        pages = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{whole} bytes") from error
    with contextlib.suppress(OSError):  # a kernel without large pages: ordinary ones do
        pages.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(pages, np.uint8)
    start = -raw.ctypes.data % LARGE_PAGE
    return raw[start : start + size]
