"""Small GGUF files for tests, written by hand: the bytes of any header, quantized blocks, and a tiny model with a tokenizer.

What is written follows the format's description (version 3, little-endian); nothing here reads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 32
VALUE_TYPES = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"),
               "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}  # fmt: skip
STRING, ARRAY = 8, 9
TENSOR_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}
BLOCK = 32


@dataclass(frozen=True)
class Typed:
    """A number, or a list of numbers, of one of ``VALUE_TYPES``.  Without it integers are u32, floats f32."""

    kind: str
    value: Any


@dataclass(frozen=True)
class Stored:
    """A tensor as it stands in the file; ``shape`` is that of numpy (the file has it the other way round)."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


# -- values ----------------------------------------------------------------------------------------------------------------


def string(text: str) -> bytes:
    """A length and UTF-8."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "f32" if isinstance(value, float) else "u32" if value >= 0 else "i32"


def value_bytes(value: Any) -> bytes:
    """The type and the bytes of a metadata value."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + string(value)
    if isinstance(value, Typed):
        number, code = VALUE_TYPES[value.kind]
        if not isinstance(value.value, Sequence):
            return struct.pack("<I" + code, number, value.value)
        return struct.pack("<IIQ", ARRAY, number, len(value.value)) + struct.pack(f"<{len(value.value)}{code}", *value.value)
    if isinstance(value, Sequence):
        if value and not isinstance(value[0], str):
            return value_bytes(Typed(_kind_of(value[0]), list(value)))
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(string, value))
    return value_bytes(Typed(_kind_of(value), value))


# -- tensors ---------------------------------------------------------------------------------------------------------------


def stored(array: NDArray[Any], kind: str = "f32") -> Stored:
    """An f32 array as a tensor of that kind; blocks of 32 lie along the last axis."""
    if kind in ("f32", "f16"):
        return Stored(kind, array.shape, np.ascontiguousarray(array, "<f4" if kind == "f32" else "<f2").tobytes())
    if kind == "bf16":
        return Stored(kind, array.shape, (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2").tobytes())
    rows = np.asarray(array, np.float32).reshape(-1, BLOCK)
    return Stored(kind, array.shape, _BLOCKS[kind](rows).tobytes())


def _scaled(values: NDArray[Any], scale: NDArray[Any]) -> NDArray[Any]:
    return np.rint(np.divide(values, scale[:, None], out=np.zeros_like(values), where=scale[:, None] != 0))


def _nibbles(q: NDArray[Any]) -> NDArray[Any]:
    """Element i < 16 of a block is the low half of byte i, element i + 16 the high one."""
    u = q.astype(np.uint8)
    return u[:, :16] | u[:, 16:] << 4


def _q4_0(rows: NDArray[Any]) -> NDArray[Any]:
    blocks = np.zeros(len(rows), [("d", "<f2"), ("qs", "u1", (16,))])
    blocks["d"] = np.abs(rows).max(-1) / 7
    blocks["qs"] = _nibbles(np.clip(_scaled(rows, blocks["d"].astype(np.float32)) + 8, 0, 15))
    return blocks


def _q4_1(rows: NDArray[Any]) -> NDArray[Any]:
    blocks = np.zeros(len(rows), [("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))])
    blocks["m"] = rows.min(-1)
    blocks["d"] = (rows.max(-1) - rows.min(-1)) / 15
    above = rows - blocks["m"].astype(np.float32)[:, None]
    blocks["qs"] = _nibbles(np.clip(_scaled(above, blocks["d"].astype(np.float32)), 0, 15))
    return blocks


def _q8_0(rows: NDArray[Any]) -> NDArray[Any]:
    blocks = np.zeros(len(rows), [("d", "<f2"), ("qs", "i1", (32,))])
    blocks["d"] = np.abs(rows).max(-1) / 127
    blocks["qs"] = np.clip(_scaled(rows, blocks["d"].astype(np.float32)), -127, 127)
    return blocks


_BLOCKS = {"q4_0": _q4_0, "q4_1": _q4_1, "q8_0": _q8_0}


# -- files -----------------------------------------------------------------------------------------------------------------


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Stored], *, version: int = 3, alignment: int = ALIGNMENT) -> bytes:
    """A whole file; ``alignment`` other than 32 belongs into the metadata, too (``general.alignment``)."""
    head = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    head += [string(key) + value_bytes(value) for key, value in metadata.items()]
    offset = 0
    for name, tensor in tensors.items():
        sizes = [len(tensor.shape), *reversed(tensor.shape)]
        head.append(string(name) + struct.pack(f"<I{len(tensor.shape)}Q", *sizes) + struct.pack("<IQ", TENSOR_TYPES[tensor.kind], offset))
        offset += _rounded(len(tensor.data), alignment)
    begin = b"".join(head)
    parts = [begin.ljust(_rounded(len(begin), alignment), b"\0")]
    return b"".join(parts + [t.data.ljust(_rounded(len(t.data), alignment), b"\0") for t in tensors.values()])


def _rounded(n: int, to: int) -> int:
    return -(-n // to) * to


# -- a tokenizer and a model -----------------------------------------------------------------------------------------------

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ Ġ", "i n", "t h", "Ġ a")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """The letter that byte-level vocabularies write for each byte: itself where it can be seen, else one from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(b) if b in seen else chr(next(others)) for b in range(256)]


def tokenizer_metadata(pre: str = "smollm") -> dict[str, Any]:
    """A byte-level tokenizer: three special tokens, 256 bytes, and the merges."""
    tokens = [*SPECIAL, *byte_letters(), *(m.replace(" ", "") for m in MERGES)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed("i32", [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


@dataclass(frozen=True)
class Tiny:
    """The sizes of a model for tests."""

    layers: int = 2
    width: int = 64
    feed_forward: int = 96
    heads: int = 2
    kv_heads: int = 1
    context: int = 128
    kind: str = "q4_1"
    """Of the products' weights."""
    table: str = "q8_0"
    """Of the embedding, which is the output's weight, too."""
    seed: int = 0


def tiny_metadata(tiny: Tiny, tokenizer: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The metadata of a Llama with those sizes."""
    words = dict(tokenizer_metadata() if tokenizer is None else tokenizer)
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": tiny.layers,
        "llama.context_length": tiny.context,
        "llama.embedding_length": tiny.width,
        "llama.feed_forward_length": tiny.feed_forward,
        "llama.attention.head_count": tiny.heads,
        "llama.attention.head_count_kv": tiny.kv_heads,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(words["tokenizer.ggml.tokens"]),
        "llama.rope.dimension_count": tiny.width // tiny.heads,
        **words,
    }


def tiny_tensors(tiny: Tiny, vocabulary: int) -> dict[str, Stored]:
    """Random weights, under the names that llama.cpp gives them."""
    random = np.random.default_rng(tiny.seed)

    def weight(rows: int, columns: int, kind: str) -> Stored:
        return stored((random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32), kind)

    def norm() -> Stored:
        return stored((1 + 0.1 * random.standard_normal(tiny.width)).astype(np.float32))

    kv = tiny.width // tiny.heads * tiny.kv_heads
    tensors = {"token_embd.weight": weight(vocabulary, tiny.width, tiny.table)}
    for i in range(tiny.layers):
        for name, rows, columns in (("attn_q", tiny.width, tiny.width), ("attn_k", kv, tiny.width), ("attn_v", kv, tiny.width),
                                    ("attn_output", tiny.width, tiny.width), ("ffn_gate", tiny.feed_forward, tiny.width),
                                    ("ffn_up", tiny.feed_forward, tiny.width), ("ffn_down", tiny.width, tiny.feed_forward)):  # fmt: skip
            tensors[f"blk.{i}.{name}.weight"] = weight(rows, columns, tiny.kind)
        tensors[f"blk.{i}.attn_norm.weight"] = norm()
        tensors[f"blk.{i}.ffn_norm.weight"] = norm()
    return {**tensors, "output_norm.weight": norm()}


def tiny_llama(tiny: Tiny | None = None, tokenizer: Mapping[str, Any] | None = None) -> bytes:
    """A whole model in a file."""
    tiny = tiny or Tiny()
    metadata = tiny_metadata(tiny, tokenizer)
    return gguf_bytes(metadata, tiny_tensors(tiny, metadata["llama.vocab_size"]))
