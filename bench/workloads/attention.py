"""Attention with 9 query heads, 3 key heads and 64 values a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.case import Array, Arrays, Case, Data, Target
from bench.onnx_model import FUSED, ModelBuilder
from bench.workloads.helpers import normal

HEADS, KEY_HEADS, WIDTH = 9, 3, 64
GROUP = HEADS // KEY_HEADS
SCALE = WIDTH**-0.5
HIDDEN = -1e9


@dataclass(frozen=True)
class Attention(Case):
    """``queries`` over ``keys``: one query over all keys, or as many as keys, each seeing the keys up to its own."""

    queries: int
    keys: int
    target: Target
    fused_onnx = True
    openvino_from_torch = True

    @property
    def decode(self) -> bool:
        """Whether it is one query over a cache."""
        return self.queries == 1

    @property
    def name(self) -> str:
        """Its form and size."""
        return f"attention decode {self.keys}" if self.decode else f"attention prefill {self.keys}"

    @property
    def graph(self) -> str:
        """The file of our program."""
        return "decode.graph" if self.decode else "prefill.graph"

    @property
    def flops(self) -> float:
        """Those of both products, for the keys that are seen."""
        seen = self.keys if self.decode else (self.keys + 1) / 2
        return 4.0 * HEADS * self.queries * seen * WIDTH

    @property
    def nbytes(self) -> float:
        """Queries, keys, values and the result."""
        return 4.0 * WIDTH * (2 * HEADS * self.queries + 2 * KEY_HEADS * self.keys)

    def data(self) -> Data:
        """Normal numbers."""
        keys = (1, KEY_HEADS, self.keys, WIDTH)
        return Data({"q": normal(1, HEADS, self.queries, WIDTH), "k": normal(*keys, seed=1), "v": normal(*keys, seed=2)}, {})

    def _hidden(self) -> Array:
        """What is added to the scores, so that later keys aren't seen."""
        return np.triu(np.full((self.queries, self.keys), HIDDEN, np.float32), 1)

    def numpy(self, weights: Arrays, *inputs: Array) -> Callable[[], Any]:
        """All scores, a softmax in place, and the product with the values."""
        q, k, v = inputs
        grouped = q.reshape(KEY_HEADS, GROUP * self.queries, WIDTH)
        hidden = None if self.decode else np.tile(self._hidden(), (GROUP, 1))
        scores = np.empty((KEY_HEADS, GROUP * self.queries, self.keys), np.float32)
        out = np.empty_like(grouped)

        def work() -> Array:
            np.matmul(grouped * np.float32(SCALE), k[0].swapaxes(1, 2), out=scores)
            if hidden is not None:
                np.add(scores, hidden, out=scores)
            np.subtract(scores, scores.max(axis=-1, keepdims=True), out=scores)
            np.exp(scores, out=scores)
            total = scores.sum(axis=-1, keepdims=True)
            np.matmul(scores, v[0], out=out)
            np.divide(out, total, out=out)
            return out.reshape(q.shape)

        return work

    def torch(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """Its own operation."""
        return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=not self.decode, enable_gqa=True)

    def torch_for_openvino(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """The same with repeated key heads, which OpenVINO looks for."""
        q, k, v = inputs
        shape = (1, KEY_HEADS, GROUP, self.keys, WIDTH)
        k, v = (t[:, :, None].expand(shape).reshape(1, HEADS, self.keys, WIDTH) for t in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=not self.decode)

    def jax(self, jax: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """Products by heads and a softmax."""
        q, k, v = inputs
        scores = jax.numpy.einsum("grqd,gkd->grqk", q.reshape(KEY_HEADS, GROUP, self.queries, WIDTH), k[0]) * SCALE
        if not self.decode:
            seen = jax.numpy.tril(jax.numpy.ones((self.queries, self.keys), bool))
            scores = jax.numpy.where(seen, scores, HIDDEN)
        return jax.numpy.einsum("grqk,gkd->grqd", jax.nn.softmax(scores, -1), v[0]).reshape(q.shape)

    def onnx(self, model: ModelBuilder, weights: Arrays, inputs: Sequence[str]) -> Sequence[str]:
        """Products and a softmax, or GroupQueryAttention."""
        return [self._grouped(model, *inputs) if model.fused else self._plain(model, *inputs)]

    def _plain(self, model: ModelBuilder, q: str, k: str, v: str) -> str:
        grouped = model.node("Reshape", q, model.integers(1, KEY_HEADS, GROUP * self.queries, WIDTH))
        scores = model.node("MatMul", grouped, model.node("Transpose", k, perm=[0, 1, 3, 2]))
        scores = model.node("Mul", scores, model.constant(SCALE))
        if not self.decode:
            scores = model.node("Add", scores, model.constant(np.tile(self._hidden(), (GROUP, 1))))
        mixed = model.node("MatMul", model.node("Softmax", scores, axis=-1), v)
        return model.node("Reshape", mixed, model.integers(1, HEADS, self.queries, WIDTH))

    def _grouped(self, model: ModelBuilder, q: str, k: str, v: str) -> str:
        """It wants rows of all heads, and what is new apart from what was there."""

        def rows(t: str, heads: int, length: int) -> str:
            turned = model.node("Transpose", t, perm=[0, 2, 1, 3]) if length > 1 else t
            return model.node("Reshape", turned, model.integers(1, length, heads * WIDTH))

        def part(t: str, first: int, end: int) -> str:
            return model.node("Slice", t, model.integers(first), model.integers(end), model.integers(2))

        if self.decode:
            last = self.keys - 1
            new = [rows(part(t, last, self.keys), KEY_HEADS, 1) for t in (k, v)]
            past = [part(t, 0, last) for t in (k, v)]
        else:
            new = [rows(t, KEY_HEADS, self.keys) for t in (k, v)]
            past = [model.constant(np.zeros((1, KEY_HEADS, 0, WIDTH), np.float32))] * 2
        lengths = model.constant([self.keys - 1], np.int32), model.constant(self.keys, np.int32)
        heads = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS}
        joined, *_ = model.nodes(
            "GroupQueryAttention", rows(q, HEADS, self.queries), *new, *past, *lengths, results=[True, True, True], domain=FUSED, **heads
        )
        split = model.node("Reshape", joined, model.integers(1, self.queries, HEADS, WIDTH))
        return model.node("Transpose", split, perm=[0, 2, 1, 3])


def cases() -> list[Case]:
    """Prefill and decode."""
    share = Target(share=0.70)
    prefill = [Attention(128, 128, Target()), *(Attention(size, size, share) for size in (512, 2048))]
    return [*prefill, *(Attention(1, size, share) for size in (512, 2048))]
