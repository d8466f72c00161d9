"""Keys and values of the tokens that a model has seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codegen.runtime.abi import ALIGNMENT
from codegen.runtime.pages import Untouched
from ir.types import TensorType, substitute_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from codegen.cuda.device import Device
    from ir.core import Graph


LARGE_FROM = 4
"""A cache goes to large pages when one n-th of its capacity is used: it takes at most n times the memory then."""


class KeyValueCache:
    """The arrays that a model's graph updates in place, and the tokens that they hold.

    With a ``device`` they are zeros in its memory, and stay there.  Else they are pages of zeros that the system has not given yet: memory
    is taken where something is written, not by the capacity.  When a quarter of the capacity is used, all of it goes to large pages: many
    keys on ordinary ones take a tenth longer to read, or more.
    """

    def __init__(self, graph: Graph, capacity: int, dimension: str, device: Device | None = None) -> None:
        self.ids: list[int] = []
        given = [substitute_type(p.type, {dimension: capacity}) for p in graph.parameters if p.inout]
        types = [t for t in given if isinstance(t, TensorType)]
        self.arrays: Sequence[Any]
        if device is not None:
            from codegen.cuda.arrays import zeros

            self._memory, self.arrays = None, [zeros(device, t) for t in types]
        else:
            self._memory, self.arrays = _zeros(types)
        self._worthwhile = capacity // LARGE_FROM
        self._is_large = device is not None

    def reserve(self, count: int) -> None:
        """To be called before so many tokens are in it; only time depends on it."""
        if count >= self._worthwhile and not self._is_large and self._memory is not None:
            self._is_large = True
            self._memory.enlarge()

    def common(self, ids: Sequence[int]) -> int:
        """How many tokens at the beginning of ``ids`` it holds."""
        for place, (have, want) in enumerate(zip(self.ids, ids, strict=False)):
            if have != want:
                return place
        return min(len(self.ids), len(ids))


def _zeros(types: Sequence[TensorType]) -> tuple[Untouched, list[NDArray[Any]]]:
    """Arrays of zeros, side by side, and what they are in."""
    shapes = [tuple(int(str(d)) for d in t.shape) for t in types]
    sizes = [math.prod(s) * t.dtype.numpy.itemsize for s, t in zip(shapes, types, strict=True)]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    memory = Untouched(starts[-1])
    places = zip(starts[:-1], sizes, shapes, types, strict=True)
    return memory, [memory.bytes[at : at + size].view(t.dtype.numpy).reshape(shape) for at, size, shape, t in places]
