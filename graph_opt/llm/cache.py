"""Keys and values of the tokens that a model has seen."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ir.types import TensorType, substitute_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.core import Graph


class KeyValueCache:
    """The arrays that a model's graph updates in place, and the tokens that they hold.

    They are pages of zeros that the system has not given yet: memory is taken where something is written, not by the capacity.
    """

    def __init__(self, graph: Graph, capacity: int, dimension: str) -> None:
        self.ids: list[int] = []
        types = [substitute_type(p.type, {dimension: capacity}) for p in graph.parameters if p.inout]
        self.arrays = _zeros([t for t in types if isinstance(t, TensorType)])

    def common(self, ids: Sequence[int]) -> int:
        """How many tokens at the beginning of ``ids`` it holds."""
        for place, (have, want) in enumerate(zip(self.ids, ids, strict=False)):
            if have != want:
                return place
        return min(len(self.ids), len(ids))


def _zeros(types: Sequence[TensorType]) -> list[NDArray[Any]]:
    """Arrays of zeros, each from the beginning of a page (``numpy.zeros`` would write into memory that was used before)."""
    shapes = [tuple(int(str(d)) for d in t.shape) for t in types]
    sizes = [math.prod(s) * t.dtype.numpy.itemsize for s, t in zip(shapes, types, strict=True)]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
    memory = np.frombuffer(mmap.mmap(-1, max(starts[-1], 1)), np.uint8)
    places = zip(starts[:-1], sizes, shapes, types, strict=True)
    return [memory[at : at + size].view(t.dtype.numpy).reshape(shape) for at, size, shape, t in places]
