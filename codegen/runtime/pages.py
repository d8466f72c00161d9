"""Memory that machine code reads and writes for long: aligned, and on large pages where the system has them.

A product goes through megabytes of panels and workspace; with pages of 4 KiB the processor spends a tenth of the time on
finding out where they are.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
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


_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1 and later, for which Python has no name."""


class Untouched:
    """Zeros that take memory where something is written: ``bytes``, from the beginning of a large page on.

    They are on ordinary pages until somebody says that most will be used.  Raises MemoryError.
    """

    def __init__(self, size: int) -> None:
        whole = -(-size // LARGE_PAGE) * LARGE_PAGE + LARGE_PAGE
        self._pages = _mapped(whole)
        raw = np.frombuffer(self._pages, np.uint8)
        self._start = -raw.ctypes.data % LARGE_PAGE
        self._end = self._start + size
        self.bytes = raw[self._start : self._end]

    def enlarge(self) -> None:
        """Puts them on large pages, also what is written already: all of them may be taken then.

        A system that doesn't have such pages, or can't change those that are in use, leaves them.
        """
        size = (self._end - self._start) // LARGE_PAGE * LARGE_PAGE
        for advice in (getattr(mmap, "MADV_HUGEPAGE", None), _COLLAPSE):
            if size and sys.platform == "linux" and advice is not None:
                with contextlib.suppress(OSError):
                    self._pages.madvise(advice, self._start, size)


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
    pages = _mapped(whole)
    with contextlib.suppress(OSError):  # a kernel without large pages: ordinary ones do
        pages.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(pages, np.uint8)
    start = -raw.ctypes.data % LARGE_PAGE
    return raw[start : start + size]


def _mapped(size: int) -> mmap.mmap:
    """Pages of zeros of our own."""
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, size)
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes") from error
