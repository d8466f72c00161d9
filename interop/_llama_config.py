"""What a GGUF file of a Llama-like model must say and hold: sizes, and the tensors that they call for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from interop._gguf_metadata import Metadata, kind_of
from interop.gguf import GgufFile
from ir.diagnostics import Diagnostic, GraphError
from ir.types import DType, TensorType
from ir.weights import quoted

INTERLEAVED: Mapping[str, bool] = {"llama": True, "qwen2": False}
"""The architectures that are known, and whether rotary positions turn neighbours (2i, 2i+1) or halves (i, i + D/2)."""

ROPE_FACTORS = "rope_freqs.weight"
"""Divides the angles of the pairs that positions turn, in Llama 3.1 and later."""

MAX_LAYERS = 512
_MAX_SIZE = 1 << 24
_SHOWN_PROBLEMS = 20

# Keys that change what the model computes, and the values with which they change nothing.
_WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (1.0,),
    "rope.scaling.type": ("none", "linear"),
    "use_parallel_residual": (False,),
}
_READ = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "vocab_size",
)
_NOTES = ("attention.layer_norm_epsilon", "rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout")
"""Keys that say nothing about the computation."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of a model, and the constants of its operations."""

    architecture: str
    layers: int
    context: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    rotary_dim: int
    base: float
    position_scale: float
    """What positions are divided by."""
    eps: float
    vocabulary: int

    @property
    def interleaved(self) -> bool:
        return INTERLEAVED[self.architecture]


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor that the model has, or may have: its name in the file (of a layer: behind ``blk.N.``), its parameter's, its shape."""

    tensor: str
    parameter: str
    shape: tuple[int, ...]
    optional: bool = False


def layer_slots(c: LlamaConfig) -> list[Slot]:
    """The tensors of a layer, in the order in which they are used.  Biases are there in some models only."""
    q, k, v, joined = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.value_dim, c.heads * c.value_dim
    bias = c.architecture != "qwen2"  # whose queries, keys and values always have one
    return [
        Slot("attn_norm.weight", "norm1", (c.width,)),
        Slot("attn_q.weight", "wq", (q, c.width)),
        Slot("attn_q.bias", "bq", (q,), bias),
        Slot("attn_k.weight", "wk", (k, c.width)),
        Slot("attn_k.bias", "bk", (k,), bias),
        Slot("attn_v.weight", "wv", (v, c.width)),
        Slot("attn_v.bias", "bv", (v,), bias),
        Slot("attn_output.weight", "wo", (c.width, joined)),
        Slot("attn_output.bias", "bo", (c.width,), True),
        Slot("ffn_norm.weight", "norm2", (c.width,)),
        Slot("ffn_gate.weight", "w_gate", (c.hidden, c.width)),
        Slot("ffn_gate.bias", "b_gate", (c.hidden,), True),
        Slot("ffn_up.weight", "w_up", (c.hidden, c.width)),
        Slot("ffn_up.bias", "b_up", (c.hidden,), True),
        Slot("ffn_down.weight", "w_down", (c.width, c.hidden)),
        Slot("ffn_down.bias", "b_down", (c.width,), True),
    ]


def other_slots(c: LlamaConfig) -> list[Slot]:
    """The tensors around the layers.  Without ``output.weight`` the embedding is used for the output, too."""
    return [
        Slot("token_embd.weight", "embedding", (c.vocabulary, c.width)),
        Slot("output_norm.weight", "norm", (c.width,)),
        Slot("output.weight", "output", (c.vocabulary, c.width), True),
        Slot(ROPE_FACTORS, "factors", (c.rotary_dim // 2,), True),
    ]


def read_config(gguf: GgufFile) -> LlamaConfig:
    """The sizes that the metadata give.  Raises GraphError for an unknown architecture, and for what is missing, wrong or not supported."""
    metadata, architecture = gguf.metadata, gguf.architecture
    if architecture not in INTERLEAVED:
        known = f"known are {', '.join(INTERLEAVED)}"
        raise GraphError(Diagnostic(f"{metadata.where}: the architecture {quoted(architecture)} is not supported", None, known))
    _check_keys(metadata, architecture)

    def size(key: str, default: int | None = None, high: int = _MAX_SIZE) -> int:
        return metadata.integer(f"{architecture}.{key}", default, low=1, high=high)

    width, heads = size("embedding_length"), size("attention.head_count")
    kv_heads = size("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise metadata.fail(f"{architecture}.attention.head_count_kv", f"{kv_heads} key heads can't be shared by {heads} query heads")
    if width % heads and f"{architecture}.attention.key_length" not in metadata:
        raise metadata.fail(f"{architecture}.attention.head_count", f"{heads} heads can't share {width} elements evenly")
    head_dim = size("attention.key_length", max(1, width // heads))
    config = LlamaConfig(
        architecture,
        layers=size("block_count", high=MAX_LAYERS),
        context=size("context_length", high=1 << 31),
        width=width,
        hidden=size("feed_forward_length"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=size("attention.value_length", head_dim),
        rotary_dim=size("rope.dimension_count", head_dim),
        base=metadata.real(f"{architecture}.rope.freq_base", 10000.0),
        position_scale=_position_scale(metadata, architecture),
        eps=metadata.real(f"{architecture}.attention.layer_norm_rms_epsilon"),
        vocabulary=_vocabulary(gguf, architecture),
    )
    _check_config(metadata, config)
    return config


def _check_keys(metadata: Metadata, architecture: str) -> None:
    """Refuses what would change the computation in a way that is not known here."""
    prefix = architecture + "."
    for key in metadata:
        name = key.removeprefix(prefix)
        if name == key or name in _READ or name in _NOTES:
            continue
        if name not in _WITHOUT_EFFECT:
            raise metadata.fail(key, "this key is not known, and might change what the model computes")
        _check_without_effect(metadata, key, _WITHOUT_EFFECT[name])
    if metadata.integer("split.count", 1) > 1:
        raise metadata.fail("split.count", f"the model is split into {metadata['split.count']} files; join them first")


def _check_without_effect(metadata: Metadata, key: str, allowed: tuple[object, ...]) -> None:
    """Raises GraphError unless a key has one of some values, of that type; a whole number does for a float."""
    value, kind = metadata[key], type(allowed[0])
    fits = type(value) is kind or (kind is float and type(value) is int)  # bools are ints, and arrays compare element by element
    if not fits or value not in allowed:
        found = quoted(str(value)) if isinstance(value, (bool, int, float, str)) else kind_of(value)
        raise metadata.fail(key, f"{found} is not supported, only {' or '.join(str(v) for v in allowed)}")


def _check_config(metadata: Metadata, c: LlamaConfig) -> None:
    prefix = c.architecture + "."
    if c.rotary_dim % 2 or c.rotary_dim > c.head_dim:
        raise metadata.fail(prefix + "rope.dimension_count", f"expected an even number up to the width of a head, {c.head_dim}, found {c.rotary_dim}")
    if not c.base > 0:
        raise metadata.fail(prefix + "rope.freq_base", f"expected a number above 0, found {c.base}")
    if not c.eps >= 0:
        raise metadata.fail(prefix + "attention.layer_norm_rms_epsilon", f"expected a number from 0 on, found {c.eps}")
    window = metadata.integer(prefix + "attention.sliding_window", 0)
    if 0 < window < c.context:
        raise metadata.fail(prefix + "attention.sliding_window", f"a window of {window} tokens in a context of {c.context} is not supported")


def _position_scale(metadata: Metadata, architecture: str) -> float:
    """The factor of linear scaling, which is meant where a factor has no type."""
    prefix = architecture + ".rope."
    if metadata.text(prefix + "scaling.type", "linear") == "none":
        return 1.0
    key = prefix + ("scale_linear" if prefix + "scaling.factor" not in metadata else "scaling.factor")
    factor = metadata.real(key, 1.0)
    if not factor > 0:
        raise metadata.fail(key, f"expected a number above 0, found {factor}")
    return factor


def _vocabulary(gguf: GgufFile, architecture: str) -> int:
    """How many tokens there are: the rows of the embedding, which the metadata must agree with."""
    metadata = gguf.metadata
    dtype, shape = gguf.info("token_embd.weight")
    if len(shape) != 2:
        raise GraphError(f"{metadata.where}: tensor 'token_embd.weight' is {TensorType(dtype, shape)}, expected two dimensions")
    key = f"{architecture}.vocab_size"
    if metadata.integer(key, shape[0]) != shape[0]:
        raise metadata.fail(key, f"{metadata[key]} tokens, but the embedding has {shape[0]} rows")
    tokens = "tokenizer.ggml.tokens"
    if tokens in metadata and metadata.length(tokens) != shape[0]:
        raise metadata.fail(tokens, f"{metadata.length(tokens)} tokens, but the embedding has {shape[0]} rows")
    return shape[0]


def check_tensors(gguf: GgufFile, c: LlamaConfig) -> None:
    """Raises GraphError with every tensor that is missing, has another shape or type than the model needs, or is none of its own."""
    wanted = dict(_all_slots(c))
    where = gguf.metadata.where
    found = set(gguf.names())
    problems = []
    for name, slot in wanted.items():
        if name in found:
            problems += _tensor_problems(*gguf.info(name), slot, f"tensor {quoted(name)}")
        elif not slot.optional:
            problems.append(f"tensor {quoted(name)} of shape {list(slot.shape)} is missing")
    for name in gguf.names():
        if name not in wanted:
            problems.append(f"tensor {quoted(name)} of shape {list(gguf.info(name)[1])} is not known in a model of {c.layers} layers")
    if problems:
        rest = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + [f"{rest} more of this kind"] * (rest > 0)
        raise GraphError([Diagnostic(f"{where}: {problem}") for problem in shown])


def _all_slots(c: LlamaConfig) -> Iterator[tuple[str, Slot]]:
    for slot in other_slots(c):
        yield slot.tensor, slot
    slots = layer_slots(c)
    for layer in range(c.layers):
        for slot in slots:
            yield f"blk.{layer}.{slot.tensor}", slot


def _tensor_problems(dtype: DType, shape: tuple[int, ...], slot: Slot, what: str) -> list[str]:
    if shape != slot.shape:
        return [f"{what} is {TensorType(dtype, shape)}, expected the shape {list(slot.shape)}"]
    if len(shape) == 1 and dtype.is_block:
        return [f"{what} is {TensorType(dtype, shape)}, expected f32, f16 or bf16"]
    return []
