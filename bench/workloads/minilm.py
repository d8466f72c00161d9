"""The sentence encoder all-MiniLM-L6-v2 of ``samples/minilm``, with its published weights.

Our program is the sample: it takes a mask of padding and gives an embedding besides the hidden states.  The other engines get less
to do, in the form that suits them best: hidden states alone, of sentences without padding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.case import ROOT, Array, Arrays, Case, Data, Target
from bench.onnx_model import FUSED, ModelBuilder
from bench.workloads.helpers import quick_gelu
from tests.samples import minilm_reference

FOLDER = "GRAPH_OPT_BENCH_MINILM"
"""The environment variable that names the folder of the model, where the package is not installed."""
LAYERS, WIDTH, HEADS, HIDDEN, EPS = 6, 384, 12, 1536, 1e-12
PARTS = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value", "output": "attention.output.dense",
    "norm1": "attention.output.LayerNorm", "up": "intermediate.dense", "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip


def model_folder() -> Path | None:
    """Where the model is, if anywhere."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else minilm_reference.model_folder()


@lru_cache(maxsize=1)
def published() -> dict[str, Array]:
    """The tensors of the model, without what an encoder doesn't use."""
    folder = model_folder()
    assert folder is not None
    tensors = minilm_reference.load_weights(folder / "model.safetensors")
    return {name: a for name, a in tensors.items() if a.dtype == np.float32 and not name.startswith("pooler")}


class Layer:
    """The weights of one layer, by part; ``tensors`` are arrays of any engine."""

    def __init__(self, tensors: Mapping[str, Any], number: int) -> None:
        self._tensors, self._prefix = tensors, f"encoder.layer.{number}."

    def __call__(self, part: str) -> tuple[Any, Any]:
        """Weight and bias."""
        name = self._prefix + PARTS[part]
        return self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]


def embedding_norm(tensors: Mapping[str, Any]) -> tuple[Any, Any]:
    """Weight and bias of the first norm."""
    return tensors["embeddings.LayerNorm.weight"], tensors["embeddings.LayerNorm.bias"]


@dataclass(frozen=True)
class MiniLM(Case):
    """``b`` sentences of ``s`` tokens."""

    b: int
    s: int
    target: Target
    graph = "minilm.graph"
    results = slice(1, 2)
    tolerance = 1e-3
    fused_onnx = True
    openvino_from_torch = True

    @property
    def name(self) -> str:
        """Its size."""
        return f"minilm {self.b}x{self.s}"

    @property
    def path(self) -> Path:
        """The sample."""
        return ROOT / "samples" / "minilm" / "minilm.graph"

    @property
    def files(self) -> Mapping[str, Path]:
        """The file of weights."""
        folder = model_folder()
        return {} if folder is None else {"w": folder / "model.safetensors"}

    @property
    def flops(self) -> float:
        """Those of the products."""
        linear = 2.0 * self.b * self.s * WIDTH * (4 * WIDTH + 2 * HIDDEN)
        return LAYERS * (linear + 4.0 * self.b * self.s * self.s * WIDTH)

    @property
    def nbytes(self) -> float:
        """The weights of the layers and the result."""
        return 4.0 * (LAYERS * WIDTH * (4 * WIDTH + 2 * HIDDEN) + self.b * self.s * WIDTH)

    def data(self) -> Data:
        """Random words; the mask hides none.  Our program reads the weights itself."""
        ids = np.random.default_rng(0).integers(1000, 30_000, (self.b, self.s))
        return Data({"ids": ids}, published(), {"mask": np.ones((self.b, self.s), np.int64)})

    def numpy(self, weights: Arrays, *inputs: Array) -> Callable[[], Any]:
        """The reference of the tests in f32, with the quick gelu."""
        minilm_reference.gelu = quick_gelu
        model = minilm_reference.MiniLM(dict(weights), np.float32)
        mask = np.ones((self.b, self.s), np.int64)
        return lambda: model.hidden(inputs[0], mask)

    def torch(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """Its own operations."""
        f = torch.nn.functional
        e = "embeddings."
        h = f.embedding(inputs[0], weights[e + "word_embeddings.weight"]) + weights[e + "position_embeddings.weight"][: self.s]
        h = f.layer_norm(h + weights[e + "token_type_embeddings.weight"][0], (WIDTH,), *embedding_norm(weights), EPS)

        def heads(t: Any) -> Any:
            return t.view(self.b, self.s, HEADS, WIDTH // HEADS).transpose(1, 2)

        for number in range(LAYERS):
            layer = Layer(weights, number)
            q, k, v = (heads(f.linear(h, *layer(part))) for part in ("query", "key", "value"))
            mixed = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(self.b, self.s, WIDTH)
            h = f.layer_norm(f.linear(mixed, *layer("output")) + h, (WIDTH,), *layer("norm1"), EPS)
            h = f.layer_norm(f.linear(f.gelu(f.linear(h, *layer("up"))), *layer("down")) + h, (WIDTH,), *layer("norm2"), EPS)
        return h

    def jax_weights(self, weights: Arrays) -> Arrays:
        """Matrices turned, so that it has not to turn them."""
        return {n: np.ascontiguousarray(a.T) if a.ndim == 2 and "embeddings" not in n else a for n, a in weights.items()}

    def jax(self, jax: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """As written."""
        np_, e = jax.numpy, "embeddings."

        def norm(x: Any, weight: Any, bias: Any) -> Any:
            d = x - x.mean(-1, keepdims=True)
            return d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + EPS) * weight + bias

        def linear(x: Any, weight: Any, bias: Any) -> Any:
            return x @ weight + bias

        def heads(t: Any) -> Any:
            return t.reshape(self.b, self.s, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

        h = weights[e + "word_embeddings.weight"][inputs[0]] + weights[e + "position_embeddings.weight"][: self.s]
        h = norm(h + weights[e + "token_type_embeddings.weight"][0], *embedding_norm(weights))
        for number in range(LAYERS):
            layer = Layer(weights, number)
            q, k, v = (heads(linear(h, *layer(part))) for part in ("query", "key", "value"))
            shares = jax.nn.softmax(np_.einsum("bhqd,bhkd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5, -1)
            mixed = np_.einsum("bhqk,bhkd->bhqd", shares, v).transpose(0, 2, 1, 3).reshape(self.b, self.s, WIDTH)
            h = norm(linear(mixed, *layer("output")) + h, *layer("norm1"))
            wide = jax.nn.gelu(linear(h, *layer("up")), approximate=False)
            h = norm(linear(wide, *layer("down")) + h, *layer("norm2"))
        return h

    def onnx(self, model: ModelBuilder, weights: Arrays, inputs: Sequence[str]) -> Sequence[str]:
        """Plain operators, or the fused ones for attention, bias with gelu, and sums with norms."""
        e = "embeddings."
        places = weights[e + "position_embeddings.weight"][: self.s] + weights[e + "token_type_embeddings.weight"][0]
        words = model.node("Gather", model.constant(weights[e + "word_embeddings.weight"]), inputs[0], axis=0)
        h = _norm(model, model.node("Add", words, model.constant(places)), *embedding_norm(weights))
        for number in range(LAYERS):
            layer = Layer(weights, number)
            h = self._fused(model, h, layer) if model.fused else self._plain(model, h, layer)
        return [h]

    def _plain(self, model: ModelBuilder, h: str, layer: Layer) -> str:
        split, joined = model.integers(self.b, self.s, HEADS, WIDTH // HEADS), model.integers(self.b, self.s, WIDTH)

        def heads(part: str, perm: list[int]) -> str:
            return model.node("Transpose", model.node("Reshape", _linear(model, h, *layer(part)), split), perm=perm)

        scores = model.node("MatMul", heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]))
        shares = model.node("Softmax", model.node("Mul", scores, model.constant((WIDTH // HEADS) ** -0.5)), axis=-1)
        mixed = model.node("Transpose", model.node("MatMul", shares, heads("value", [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        h = _norm(model, model.node("Add", _linear(model, model.node("Reshape", mixed, joined), *layer("output")), h), *layer("norm1"))
        down = _linear(model, model.node("Gelu", _linear(model, h, *layer("up"))), *layer("down"))
        return _norm(model, model.node("Add", down, h), *layer("norm2"))

    def _fused(self, model: ModelBuilder, h: str, layer: Layer) -> str:
        def product(x: str, part: str) -> str:
            return model.node("MatMul", x, model.constant(layer(part)[0].T))

        def norm(x: str, added: str, part: str, bias: Array) -> str:
            constants = (model.constant(a) for a in (*layer(part), bias))
            return model.node("SkipLayerNormalization", x, added, *constants, domain=FUSED, epsilon=EPS)

        weight, bias = (np.concatenate([layer(part)[i] for part in ("query", "key", "value")]) for i in (0, 1))
        mixed = model.node("Attention", h, model.constant(weight.T), model.constant(bias), domain=FUSED, num_heads=HEADS)
        h = norm(product(mixed, "output"), h, "norm1", layer("output")[1])
        wide = model.node("BiasGelu", product(h, "up"), model.constant(layer("up")[1]), domain=FUSED)
        return norm(product(wide, "down"), h, "norm2", layer("down")[1])


def _linear(model: ModelBuilder, x: str, weight: Array, bias: Array) -> str:
    return model.linear(x, weight.T, bias)


def _norm(model: ModelBuilder, x: str, weight: Array, bias: Array) -> str:
    return model.node("LayerNormalization", x, model.constant(weight), model.constant(bias), axis=-1, epsilon=EPS)


def cases() -> list[Case]:
    """One sentence and eight, where the model is there."""
    if model_folder() is None:
        return []
    return [MiniLM(b, 128, Target(share=0.91)) for b in (1, 8)]
