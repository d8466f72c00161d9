"""Products of matrices: square ones, and those of a model's layers with few rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.case import Array, Arrays, Case, Data, Target
from bench.onnx_model import ModelBuilder
from bench.workloads.helpers import normal, silu_in_place


@dataclass(frozen=True)
class Matmul(Case):
    """``x[m, k] @ w[k, n]``, with a bias and silu when ``layer``; ``weight``: w and the bias are known beforehand."""

    m: int
    k: int
    n: int
    target: Target
    weight: bool
    layer: bool = False

    @property
    def name(self) -> str:
        """Its sizes, and what is done with them."""
        return f"matmul {self.m}x{self.k}x{self.n}" + (" weight" if self.weight else "") + (" bias silu" if self.layer else "")

    @property
    def graph(self) -> str:
        """The file of our program."""
        return "matmul_bias_silu.graph" if self.layer else "matmul.graph"

    @property
    def flops(self) -> float:
        """A multiply-add for each element of x and column of w."""
        return 2.0 * self.m * self.k * self.n

    @property
    def nbytes(self) -> float:
        """Both factors, the bias and the product."""
        return 4.0 * (self.m * self.k + self.k * self.n + self.m * self.n + (self.n if self.layer else 0))

    def data(self) -> Data:
        """Normal numbers; those of w such that the product's are, too."""
        factors = {"w": normal(self.k, self.n, seed=1, scale=self.k**-0.5)}
        if self.layer:
            factors["b"] = normal(self.n, seed=2)
        x = {"x": normal(self.m, self.k)}
        return Data(x, factors) if self.weight else Data({**x, **factors}, {})

    def _factors(self, weights: Mapping[str, Any], inputs: Sequence[Any]) -> tuple[Any, Any]:
        """w and the bias, wherever they are."""
        known = weights if self.weight else dict(zip(("w", "b"), inputs[1:], strict=False))
        return known["w"], known.get("b")

    def numpy(self, weights: Arrays, *inputs: Array) -> Callable[[], Any]:
        """BLAS; silu in place."""
        x, (w, b) = inputs[0], self._factors(weights, inputs)
        out, scratch = (np.empty((self.m, self.n), np.float32) for _ in range(2))

        def plain() -> Array:
            return np.matmul(x, w, out=out)

        def layer() -> Array:
            np.matmul(x, w, out=out)
            np.add(out, b, out=out)
            return silu_in_place(out, scratch)

        return layer if self.layer else plain

    def torch(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """addmm for a bias."""
        w, b = self._factors(weights, inputs)
        return torch.nn.functional.silu(torch.addmm(b, inputs[0], w)) if self.layer else inputs[0] @ w

    def jax(self, jax: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """As written."""
        w, b = self._factors(weights, inputs)
        return jax.nn.silu(inputs[0] @ w + b) if self.layer else inputs[0] @ w

    def onnx(self, model: ModelBuilder, weights: Arrays, inputs: Sequence[str]) -> Sequence[str]:
        """MatMul, Add, and silu."""
        w, b = self._factors({n: model.constant(a) for n, a in weights.items()}, inputs)
        y = model.node("MatMul", inputs[0], w)
        return [model.silu(model.node("Add", y, b)) if self.layer else y]

    @property
    def fused_onnx(self) -> bool:
        """silu may be one operator."""
        return self.layer


def cases() -> list[Case]:
    """The products."""
    square = [
        Matmul(size, size, size, Target(share=0.95), weight, layer)
        for size in (512, 1024, 2048)
        for weight in (False, True)
        for layer in (False, True)
    ]
    shares = {(1, 576, 1536): 0.95, (4, 576, 1536): 0.88, (16, 4096, 4096): 0.86, (128, 576, 1536): 0.96}
    skinny = [Matmul(*shape, Target(share=share), weight=True) for shape, share in shares.items()]
    return [*square, *skinny]
