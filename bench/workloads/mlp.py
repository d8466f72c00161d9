"""The two-layer MLP of the tutorial in three sizes, its weights known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.case import Array, Arrays, Case, Data, Target
from bench.onnx_model import ModelBuilder
from bench.workloads.helpers import normal, silu_in_place


@dataclass(frozen=True)
class Mlp(Case):
    """``silu(x @ w1 + b1) @ w2`` of ``b`` rows of width ``d`` with ``h`` hidden units."""

    b: int
    d: int
    h: int
    target: Target
    graph = "mlp.graph"
    fused_onnx = True

    @property
    def name(self) -> str:
        """Its sizes."""
        return f"mlp {self.b},{self.d},{self.h}"

    @property
    def flops(self) -> float:
        """Those of both products."""
        return 4.0 * self.b * self.d * self.h

    @property
    def nbytes(self) -> float:
        """x, the result, and the weights."""
        return 4.0 * (2 * self.b * self.d + 2 * self.d * self.h + self.h)

    def data(self) -> Data:
        """Normal numbers, and weights that keep them so."""
        w1, w2 = normal(self.d, self.h, seed=1, scale=self.d**-0.5), normal(self.h, self.d, seed=3, scale=self.h**-0.5)
        return Data({"x": normal(self.b, self.d)}, {"w1": w1, "b1": normal(self.h, seed=2), "w2": w2})

    def numpy(self, weights: Arrays, *inputs: Array) -> Callable[[], Any]:
        """BLAS; silu in place."""
        w1, b1, w2 = weights.values()
        hidden, scratch = (np.empty((self.b, self.h), np.float32) for _ in range(2))
        out = np.empty((self.b, self.d), np.float32)

        def work() -> Array:
            np.matmul(inputs[0], w1, out=hidden)
            np.add(hidden, b1, out=hidden)
            silu_in_place(hidden, scratch)
            return np.matmul(hidden, w2, out=out)

        return work

    def torch(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """addmm for the bias."""
        return torch.nn.functional.silu(torch.addmm(weights["b1"], inputs[0], weights["w1"])) @ weights["w2"]

    def jax(self, jax: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """As written."""
        return jax.nn.silu(inputs[0] @ weights["w1"] + weights["b1"]) @ weights["w2"]

    def onnx(self, model: ModelBuilder, weights: Arrays, inputs: Sequence[str]) -> Sequence[str]:
        """MatMul, Add, silu, MatMul."""
        h = model.silu(model.linear(inputs[0], weights["w1"], weights["b1"]))
        return [model.node("MatMul", h, model.constant(weights["w2"]))]


def cases() -> list[Case]:
    """The sizes."""
    share = Target(share=0.94)
    return [Mlp(4, 64, 256, Target(microseconds=2.0)), Mlp(64, 512, 2048, share), Mlp(256, 1024, 4096, share)]
