"""A model with the shape of SmolLM2-135M and random weights: its text for us, its file, and the same for torch."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bench.gpu.work import Array

BASE = 100000.0
EPSILON = 1e-5
_LAYER = ("norm1", "wq", "wk", "wv", "wo", "norm2", "gate", "up", "down")


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama whose embedding is its output, too."""

    layers: int = 30
    width: int = 576
    hidden: int = 1536
    heads: int = 9
    kv_heads: int = 3
    vocabulary: int = 49152
    capacity: int = 512

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer."""
        kv = self.kv_heads * self.head
        return {
            "wq": (self.width, self.width), "wk": (kv, self.width), "wv": (kv, self.width), "wo": (self.width, self.width),
            "gate": (self.hidden, self.width), "up": (self.hidden, self.width), "down": (self.width, self.hidden),
        }  # fmt: skip

    @property
    def parameters(self) -> int:
        """Numbers that a token needs."""
        return self.layers * sum(math.prod(s) for s in self.matrices().values()) + self.vocabulary * self.width


SMOLLM2, TINY = Shape(), Shape(1, 32, 48, 4, 2, 64, 16)
WIDTHS = {"f32": 4, "bf16": 2}


def weights(shape: Shape, dtype: str, seed: int = 0) -> dict[str, Array]:
    """Random ones; norms in f32."""
    rng = np.random.default_rng(seed)
    kind: Any = np.float32 if dtype == "f32" else ml_dtypes.bfloat16
    found = {"embedding": (rng.standard_normal((shape.vocabulary, shape.width), np.float32) * 0.05).astype(kind)}
    for n in range(shape.layers):
        for name, size in shape.matrices().items():
            found[f"{n}.{name}"] = (rng.standard_normal(size, np.float32) * np.float32(size[1] ** -0.5)).astype(kind)
        for name in ("norm1", "norm2"):
            found[f"{n}.{name}"] = (1 + 0.1 * rng.standard_normal(shape.width)).astype(np.float32)
    return found | {"norm": (1 + 0.1 * rng.standard_normal(shape.width)).astype(np.float32)}


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """A file of tensors: the length of a JSON text, that text, the bytes."""
    head: dict[str, Any] = {}
    at = 0
    for name, array in tensors.items():
        head[name] = {"dtype": "F32" if array.dtype == np.float32 else "BF16", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())


# -- for us ------------------------------------------------------------------------------------------------------------


def text(shape: Shape, dtype: str) -> str:
    """The program: one token at a time, caches updated in place; narrow weights are widened where they are used."""
    w, h, d, kv = shape.width, shape.heads, shape.head, shape.kv_heads
    matrices = ", ".join(f"%{n}: {dtype}[{a}, {b}]" for n, (a, b) in shape.matrices().items())
    wide = [f"  %{n}.f32 = cast(%{n}, dtype=f32)" for n in shape.matrices()] if dtype != "f32" else []
    end = "" if dtype == "f32" else ".f32"
    layer = [
        f"graph @layer(%x: f32[1, {w}], %at: i64[1], %position: i64[], %length: i64[], %keys: f32[{kv}, {shape.capacity}, {d}] inout,",
        f"    %values: f32[{kv}, {shape.capacity}, {d}] inout, %norm1: f32[{w}], %norm2: f32[{w}], {matrices}) -> f32[1, {w}] {{",
        *wide,
        f"  %a = rmsnorm(%x, weight=%norm1, eps={EPSILON})",
        *(f"  %{n}.flat = linear(%a, %w{n}{end})" for n in "qkv"),
        *(f"  %{n}.split = reshape(%{n}.flat, shape=[1, {heads}, {d}])" for n, heads in (("q", h), ("k", kv), ("v", kv))),
        *(f"  %{n}.heads = transpose(%{n}.split, perm=[1, 0, 2])" for n in "qkv"),
        *(f"  %{n} = rope(%{n}.heads, %at, base={BASE}, interleaved=true)" for n in "qk"),
        "  %keys.new = cache_update(%keys, %k, %position)",
        "  %values.new = cache_update(%values, %v.heads, %position)",
        "  %found = attention(%q, %keys.new, %values.new, length=%length, causal=true)",
        "  %found.last = transpose(%found, perm=[1, 0, 2])",
        f"  %joined = reshape(%found.last, shape=[1, {w}])",
        f"  %o = linear(%joined, %wo{end})",
        "  %mid = add(%x, %o)",
        f"  %f = rmsnorm(%mid, weight=%norm2, eps={EPSILON})",
        f"  %g = linear(%f, %gate{end})",
        f"  %u = linear(%f, %up{end})",
        "  %g.silu = silu(%g)",
        "  %both = mul(%g.silu, %u)",
        f"  %d = linear(%both, %down{end})",
        "  %out = add(%mid, %d)",
        "  return %out",
        "}",
    ]
    return "\n".join(['file @model = "model.safetensors"', "", *layer, "", *_main(shape, dtype), ""])


def _main(shape: Shape, dtype: str) -> list[str]:
    w, kv, d = shape.width, shape.kv_heads, shape.head
    caches = [f"    %{what}{n}: f32[{kv}, {shape.capacity}, {d}] inout" for n in range(shape.layers) for what in ("keys", "values")]
    narrow, end = dtype != "f32", "" if dtype == "f32" else ".f32"
    lines = [
        "graph @main(%ids: i64[1], %position: i64[],",
        ",\n".join(caches),
        f") -> (logits: f32[{shape.vocabulary}]) {{",
        "  %one = full(shape=[], value=1, dtype=i64)",
        "  %length = add(%position, %one)",
        "  %at = reshape(%position, shape=[1])",
        f'  %embedding = weight(@model, "embedding") : {dtype}[{shape.vocabulary}, {w}]',
        f"  %x0{'.narrow' if narrow else ''} = embedding(%embedding, %ids)",
        *(["  %x0 = cast(%x0.narrow, dtype=f32)"] if narrow else []),
    ]
    for n in range(shape.layers):
        lines += [f'  %n{n}.{name} = weight(@model, "{n}.{name}") : f32[{w}]' for name in ("norm1", "norm2")]
        lines += [f'  %n{n}.{name} = weight(@model, "{n}.{name}") : {dtype}[{a}, {b}]' for name, (a, b) in shape.matrices().items()]
        given = ", ".join(f"%n{n}.{name}" for name in ("norm1", "norm2", *shape.matrices()))
        lines.append(f"  %x{n + 1}, %_, %_ = call(@layer, %x{n}, %at, %position, %length, %keys{n}, %values{n}, {given})")
    lines += [
        f'  %norm = weight(@model, "norm") : f32[{w}]',
        f"  %last = rmsnorm(%x{shape.layers}, weight=%norm, eps={EPSILON})",
        *(["  %embedding.f32 = cast(%embedding, dtype=f32)"] if narrow else []),
        f"  %row = linear(%last, %embedding{end})",
        f"  %logits = reshape(%row, shape=[{shape.vocabulary}])",
        "  return %logits",
        "}",
    ]
    return lines


def choosing(shape: Shape) -> str:
    """The program that chooses the most probable token, and counts."""
    return f"""graph @main(%logits: f32[{shape.vocabulary}], %position: i64[]) -> (ids: i64[1], next: i64[]) {{
  %token = argmax(%logits)
  %ids = reshape(%token, shape=[1])
  %one = full(shape=[], value=1, dtype=i64)
  %next = add(%position, %one)
  return %ids, %next
}}
"""


# -- for torch ---------------------------------------------------------------------------------------------------------


def tensors(torch: Any, arrays: Mapping[str, Array], device: Any) -> dict[str, Any]:
    """The weights there; bf16 goes as its bits."""
    found = {}
    for name, array in arrays.items():
        narrow = array.dtype != np.float32
        tensor = torch.from_numpy(array.view(np.int16) if narrow else array).to(device)
        found[name] = tensor.view(torch.bfloat16) if narrow else tensor
    return found


class TorchLlama:
    """The same model in torch: static caches, everything in one type, whatever that of the weights is; ``step`` is what is compiled.

    Query heads that share a key head are rows of one product, so that no key is copied (``scaled_dot_product_attention`` repeats them).
    """

    def __init__(self, torch: Any, shape: Shape, dtype: str, given: Mapping[str, Any], device: Any) -> None:
        self.torch = torch
        self.shape = shape
        self.dtype = torch.float32 if dtype == "f32" else torch.bfloat16
        self.embedding = given["embedding"].to(self.dtype)
        self.norm = given["norm"].to(self.dtype)
        self.layers = [{k: given[f"{n}.{k}"].to(self.dtype) for k in _LAYER} for n in range(shape.layers)]
        size = (1, shape.kv_heads, shape.capacity, shape.head)
        self.keys = [torch.zeros(size, dtype=self.dtype, device=device) for _ in self.layers]
        self.values = [torch.zeros(size, dtype=self.dtype, device=device) for _ in self.layers]
        self.places = torch.arange(shape.capacity, device=device)
        self.frequencies = BASE ** (-torch.arange(0, shape.head, 2, dtype=torch.float32, device=device) / shape.head)
        for tensor in (self.embedding, self.norm, *self.keys, *self.values, *(t for layer in self.layers for t in layer.values())):
            torch._dynamo.mark_static_address(tensor)  # graphs may use them, and write the caches, where they are

    def _rope(self, x: Any, position: Any) -> Any:
        angle = position.to(self.torch.float32) * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., 0::2].float(), x[..., 1::2].float()
        return self.torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(self.dtype)

    def logits(self, ids: Any, position: Any) -> Any:
        """Behind one token at a position (two tensors of one element)."""
        torch, shape = self.torch, self.shape
        functional = torch.nn.functional
        x = self.embedding[ids]
        is_seen = self.places <= position
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            a = functional.rms_norm(x, (shape.width,), layer["norm1"], EPSILON)
            q, k, v = (functional.linear(a, layer[f"w{n}"]).view(1, -1, 1, shape.head) for n in "qkv")
            q, k = self._rope(q, position), self._rope(k, position)
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            together = q.view(1, shape.kv_heads, -1, shape.head)
            scores = (together @ keys.transpose(-1, -2)).float() * shape.head**-0.5
            found = scores.masked_fill(~is_seen, float("-inf")).softmax(-1).to(self.dtype) @ values
            x = x + functional.linear(found.reshape(1, shape.width), layer["wo"])
            f = functional.rms_norm(x, (shape.width,), layer["norm2"], EPSILON)
            both = functional.silu(functional.linear(f, layer["gate"])) * functional.linear(f, layer["up"])
            x = x + functional.linear(both, layer["down"])
        last = functional.rms_norm(x, (shape.width,), self.norm, EPSILON)
        return functional.linear(last, self.embedding)[0].float()

    def step(self, ids: Any, position: Any) -> tuple[Any, Any]:
        """The next token, and its position."""
        return self.logits(ids, position).argmax(-1, keepdim=True), position + 1
