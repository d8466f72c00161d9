"""Keys and values of the tokens that a model has seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ir.types import TensorType, substitute_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ir.core import Graph


class KeyValueCache:
    """The arrays that a model's graph updates in place, and the tokens that they hold.

    Memory is zero pages of the system until something is written there, so a large capacity costs nothing by itself.
    """

    def __init__(self, graph: Graph, capacity: int, dimension: str) -> None:
        self.ids: list[int] = []
        types = [substitute_type(p.type, {dimension: capacity}) for p in graph.parameters if p.inout]
        self.arrays: list[NDArray[Any]] = [np.zeros(t.shape, t.dtype.numpy) for t in types if isinstance(t, TensorType)]  # type: ignore[arg-type]

    def common(self, ids: Sequence[int]) -> int:
        """How many tokens at the beginning of ``ids`` it holds."""
        for place, (have, want) in enumerate(zip(self.ids, ids, strict=False)):
            if have != want:
                return place
        return min(len(self.ids), len(ids))
