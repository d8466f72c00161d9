"""What is measured: one piece of work in the words of our programs, of torch, and of numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

OURS, COPY, EAGER, COMPILED = "ours", "copy", "torch", "torch.compile"
"""Who takes part: our kernels; the driver's copy of as many bytes; torch's own kernels, and those that torch.compile makes."""


@dataclass(frozen=True)
class Input:
    """Random numbers around ``mean``."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    scale: float = 1.0
    mean: float = 0.0


@dataclass(frozen=True)
class Wanted:
    """Our speed is to be at least ``least`` of that of ``peer``; where ``peer`` is "", a call takes at most ``least`` microseconds."""

    peer: str
    least: float

    @property
    def text(self) -> str:
        """In words."""
        if not self.peer:
            return f"at most {self.least:g} us"
        return f">= {self.least:.0%} of {self.peer}" if self.least < 1 else f">= {self.least:g} x {self.peer}"


@dataclass(frozen=True)
class Work:
    """A program, and functions of the same inputs.

    ``nbytes`` are those that have to be moved, ``flops`` the operations.  ``torch`` takes the module and tensors, ``numpy`` arrays in double;
    both give one result or several.  Results may be ``tolerance`` of the largest element apart.  ``peers`` say who is measured besides us.
    """

    name: str
    part: str
    text: str
    inputs: tuple[Input, ...]
    torch: Callable[..., Any]
    numpy: Callable[..., Any]
    nbytes: float
    flops: float = 0.0
    peers: tuple[str, ...] = (EAGER,)
    wanted: Wanted | None = None
    tolerance: float = 1e-5


def listed(results: Any) -> list[Any]:
    """One result or several, as a list."""
    return list(results) if isinstance(results, (tuple, list)) else [results]


def distance(found: Array, expected: Array) -> float:
    """The largest difference, of the largest element; infinite where one is no number and the other is."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    kept = np.isfinite(b)
    largest = float(np.abs(b[kept]).max(initial=0.0))
    return float(np.abs(a[kept] - b[kept]).max(initial=0.0)) / (largest or 1.0)
