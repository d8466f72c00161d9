"""What a call costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.case import Array, Arrays, Case, Data, Target
from bench.onnx_model import ModelBuilder
from bench.workloads.helpers import normal


@dataclass(frozen=True)
class Add(Case):
    """The sum of two vectors of ``n``."""

    n: int
    target: Target
    graph = "add.graph"
    flops = 0.0  # there is no limit to speak of
    nbytes = 0.0

    @property
    def name(self) -> str:
        """Its size."""
        return f"add f32[{self.n}]"

    def data(self) -> Data:
        """Normal numbers."""
        return Data({"x": normal(self.n), "y": normal(self.n, seed=1)}, {})

    def numpy(self, weights: Arrays, *inputs: Array) -> Callable[[], Any]:
        """numpy.add into an array that is there."""
        return partial(np.add, inputs[0], inputs[1], np.empty(self.n, np.float32))

    def torch(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """As written."""
        return inputs[0] + inputs[1]

    def jax(self, jax: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """As written."""
        return inputs[0] + inputs[1]

    def onnx(self, model: ModelBuilder, weights: Arrays, inputs: Sequence[str]) -> Sequence[str]:
        """Add."""
        return [model.node("Add", *inputs)]


def cases() -> list[Case]:
    """One."""
    return [Add(4, Target(microseconds=0.25))]
