"""A GGUF file of a Llama-like model as ``.graph`` text: one layer, called for every layer of the file, and weights by reference.

The text is for people to read and change; nothing of the file but names, sizes and constants is in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import dialects
from interop._llama_config import ROPE_FACTORS, LlamaConfig, Slot, check_tensors, layer_slots, read_config
from interop.digest import cached_sha256_of
from interop.gguf import GgufFile
from interop.samplers import samplers_text
from ir.parser import parse_module
from ir.printer import format_attribute, print_module
from ir.types import DType, TensorType, f32
from ir.weights import quoted

assert dialects  # defines the operations

FILE = "model"
"""What the file of weights is called in the text."""


def import_llama(gguf: GgufFile, path: str | None = None) -> str:
    """The text of the model in a file, as it prints.

    ``path`` is where the text says that the weights are (default: the file's name).  Raises GraphError, which names the
    metadata key or tensor, for a model that is not complete or not supported.
    """
    return print_module(parse_module(draft_llama(gguf, path), "<imported>"))


def draft_llama(gguf: GgufFile, path: str | None = None) -> str:
    """The same program as :func:`import_llama` writes, as text that nobody has read yet: quicker, for who compiles it at once."""
    config = read_config(gguf)
    check_tensors(gguf, config)
    return _Writer(gguf, config).text(gguf.file.path.name if path is None else path)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A graph for layers whose tensors have the same types; those that a file leaves out are no parameters."""

    name: str
    weights: tuple[tuple[Slot, DType], ...]

    @property
    def types(self) -> dict[str, DType]:
        return {slot.parameter: dtype for slot, dtype in self.weights}


class _Writer:
    """Writes the text, front to back."""

    def __init__(self, gguf: GgufFile, config: LlamaConfig) -> None:
        self.gguf = gguf
        self.c = config
        self.lines: list[str] = []
        self.turned = ROPE_FACTORS in gguf.names() or config.position_scale != 1
        """Whether rotary positions have factors."""
        self.layers: list[_Layer] = []
        """For each layer of the model the graph that computes it."""
        kinds: dict[tuple[tuple[Slot, DType], ...], _Layer] = {}
        names = set(gguf.names())
        for number in range(config.layers):
            present = [(s, f"blk.{number}.{s.tensor}") for s in layer_slots(config) if f"blk.{number}.{s.tensor}" in names]
            weights = tuple((slot, gguf.info(name)[0]) for slot, name in present)
            kinds.setdefault(weights, _Layer(f"layer.{len(kinds)}" if kinds else "layer", weights))
            self.layers.append(kinds[weights])

    def text(self, path: str) -> str:
        self._head(path)
        for layer in dict.fromkeys(self.layers):
            self._layer(layer)
        self._main()
        self._add("", samplers_text(self.c.vocabulary).rstrip())
        return "\n".join(self.lines) + "\n"

    def _add(self, *lines: str) -> None:
        self.lines += lines

    # -- what the model is -------------------------------------------------------------------------------------------

    def _head(self, path: str) -> None:
        c, metadata = self.c, self.gguf.metadata
        name = quoted(metadata.text("general.name", self.gguf.file.path.name))
        counts = Counter(self.gguf.info(n)[0].name for n in self.gguf.names())
        kinds = ", ".join(f"{count} {dtype}" for dtype, count in counts.most_common())
        tied = "output.weight" not in self.gguf.names()
        self._add(
            f"// {name}, architecture {c.architecture}.",
            "//",
            f"// {c.layers} layers of width {c.width}; {c.heads} query and {c.kv_heads} key heads of {c.head_dim}; {c.hidden} hidden units; "
            f"{c.vocabulary} tokens",
            f"// ({'the embedding is the output, too' if tied else 'an output of its own'}); up to {c.context} positions. Tensors: {kinds}.",
            "// S tokens are added to a cache of T positions: many to begin with, then one at a time. S and T are open in compiled code.",
            f'file @{FILE} = {format_attribute(path)} sha256 "{cached_sha256_of(self.gguf.file)}"',
            "",
        )

    # -- the layer ---------------------------------------------------------------------------------------------------

    def _layer(self, layer: _Layer) -> None:
        c, types = self.c, layer.types
        parameters = [
            f"%x: f32[S, {c.width}]",
            "%positions: i64[S]",
            *([f"%factors: f32[{c.rotary_dim // 2}]"] if self.turned else []),
            "%position: i64[]",
            "%length: i64[]",
            f"%keys: f32[{c.kv_heads}, T, {c.head_dim}] inout",
            f"%values: f32[{c.kv_heads}, T, {c.value_dim}] inout",
            *(f"%{slot.parameter}: {TensorType(dtype, slot.shape)}" for slot, dtype in layer.weights),
        ]
        self._add(
            "// One layer: attention, then the feed-forward part, each on the normalized input and added to it.",
            "// positions: of the S tokens; position: of the first; length: of the sequence with them."
            + (" factors: what angles of positions are divided by." if self.turned else ""),
            f"graph @{layer.name}(",
            *(f"  {p}," for p in parameters[:-1]),
            f"  {parameters[-1]}",
            f") -> f32[S, {c.width}] {{",
        )
        self._casts(types)
        self._attention(types)
        self._feed_forward(types)
        self._add("  return %out", "}", "")

    def _casts(self, types: dict[str, DType]) -> None:
        """Narrow floats become f32; blocks stay what they are."""
        narrow = [p for p, dtype in types.items() if dtype.is_float and dtype != f32]
        if narrow:
            self._add("  // Everything is computed in f32.", *(f"  %{p}.f32 = cast(%{p}, dtype=f32)" for p in narrow), "")
        self.names = {p: f"{p}.f32" if p in narrow else p for p in types}

    def _linear(self, result: str, x: str, weight: str, bias: str) -> str:
        extra = f", bias=%{self.names[bias]}" if bias in self.names else ""
        return f"  %{result} = linear(%{x}, %{self.names[weight]}{extra})"

    def _attention(self, types: dict[str, DType]) -> None:
        c = self.c
        rope = "%positions" + (", factors=%factors" if self.turned else "") + f", base={format_attribute(c.base)}"
        rope += ", interleaved=true" if c.interleaved else ""
        rope += f", rotary_dim={c.rotary_dim}" if c.rotary_dim != c.head_dim else ""
        shared = c.heads // c.kv_heads
        pairs = "neighbours (2i, 2i+1)" if c.interleaved else "halves (i, i + D/2)"
        self._add(
            f"  %a = rmsnorm(%x, weight=%{self.names['norm1']}, eps={_short(c.eps)})",
            self._linear("q.flat", "a", "wq", "bq"),
            self._linear("k.flat", "a", "wk", "bk"),
            self._linear("v.flat", "a", "wv", "bv"),
            "",
            f"  // Heads go in front of the sequence; positions turn {pairs} of queries and keys.",
            f"  %q.split = reshape(%q.flat, shape=[S, {c.heads}, {c.head_dim}])",
            f"  %k.split = reshape(%k.flat, shape=[S, {c.kv_heads}, {c.head_dim}])",
            f"  %v.split = reshape(%v.flat, shape=[S, {c.kv_heads}, {c.value_dim}])",
            "  %q.heads = transpose(%q.split, perm=[1, 0, 2])",
            "  %k.heads = transpose(%k.split, perm=[1, 0, 2])",
            "  %v = transpose(%v.split, perm=[1, 0, 2])",
            f"  %q = rope(%q.heads, {rope})",
            f"  %k = rope(%k.heads, {rope})",
            "",
            "  // The cache takes the new keys and values, in place; no token sees a later one."
            + (f" {shared} query heads share a key head." if shared > 1 else ""),
            "  %keys.new = cache_update(%keys, %k, %position)",
            "  %values.new = cache_update(%values, %v, %position)",
            "  %heads = attention(%q, %keys.new, %values.new, length=%length, causal=true)",
            "  %heads.last = transpose(%heads, perm=[1, 0, 2])",
            f"  %joined = reshape(%heads.last, shape=[S, {c.heads * c.value_dim}])",
            self._linear("o", "joined", "wo", "bo"),
            "  %mid = add(%x, %o)",
            "",
        )

    def _feed_forward(self, types: dict[str, DType]) -> None:
        self._add(
            "  // Feed-forward: silu(gate) * up.",
            f"  %f = rmsnorm(%mid, weight=%{self.names['norm2']}, eps={_short(self.c.eps)})",
            self._linear("gate", "f", "w_gate", "b_gate"),
            self._linear("up", "f", "w_up", "b_up"),
            "  %gate.silu = silu(%gate)",
            "  %hidden = mul(%gate.silu, %up)",
            self._linear("down", "hidden", "w_down", "b_down"),
            "  %out = add(%mid, %down)",
        )

    # -- the whole ---------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        c = self.c
        widths = (("keys", c.head_dim), ("values", c.value_dim))
        caches = [f"%{what}{n}: f32[{c.kv_heads}, T, {width}] inout" for n in range(c.layers) for what, width in widths]
        self._add(
            "// ids: the next S tokens; position: how many are in the caches already. logits: for the token behind the last one.",
            "graph @main(",
            "  %ids: i64[S],",
            "  %position: i64[],",
            *(f"  {cache}," for cache in caches[:-1]),
            f"  {caches[-1]}",
            f") -> (logits: f32[{c.vocabulary}])",
            f"  where 1 <= S, S <= T, T <= {c.context} {{",
            "  %count = dim(%ids, axis=0)",
            "  %length = add(%position, %count)",
            "  %from_zero = iota(shape=[S])",
            "  %positions = add(%from_zero, %position)",
            *self._factors(),
        )
        self._add(self._weight("embedding", "token_embd.weight"), *self._embedded())
        for number, layer in enumerate(self.layers):
            self._call(number, layer)
        self._logits()
        self._add("  return %logits", "}")

    def _factors(self) -> list[str]:
        """One for each pair: those of the file times that of all positions."""
        shape, scale = f"shape=[{self.c.rotary_dim // 2}]", self.c.position_scale
        if not self.turned:
            return []
        if ROPE_FACTORS not in self.gguf.names():
            return [f"  %factors = full({shape}, value={_short(scale)}, dtype=f32)"]
        name = "factors" if scale == 1 else "factors.file"
        lines = [self._weight(name, ROPE_FACTORS)]
        if self._is_narrow(ROPE_FACTORS):
            lines = [self._weight(f"{name}.narrow", ROPE_FACTORS), f"  %{name} = cast(%{name}.narrow, dtype=f32)"]
        if scale != 1:
            lines += [f"  %scale = full({shape}, value={_short(scale)}, dtype=f32)", "  %factors = mul(%factors.file, %scale)"]
        return lines

    def _weight(self, name: str, tensor: str) -> str:
        return f"  %{name} = weight(@{FILE}, {format_attribute(tensor)}) : {TensorType(*self.gguf.info(tensor))}"

    def _is_narrow(self, tensor: str) -> bool:
        dtype = self.gguf.info(tensor)[0]
        return dtype.is_float and dtype != f32

    def _embedded(self) -> list[str]:
        if self._is_narrow("token_embd.weight"):
            return ["  %x0.narrow = embedding(%embedding, %ids)", "  %x0 = cast(%x0.narrow, dtype=f32)"]
        return ["  %x0 = embedding(%embedding, %ids)"]

    def _call(self, number: int, layer: _Layer) -> None:
        weights = [(slot, f"blk.{number}.{slot.tensor}") for slot, _ in layer.weights]
        names = [name.removesuffix(".weight") for _, name in weights]
        turned = ["%factors"] if self.turned else []
        caches = [f"%keys{number}", f"%values{number}"]
        arguments = [f"%x{number}", "%positions", *turned, "%position", "%length", *caches, *(f"%{n}" for n in names)]
        self._add(
            "",
            f"  // layer {number}",
            *(self._weight(name, tensor) for name, (_, tensor) in zip(names, weights, strict=True)),
            f"  %x{number + 1}, %_, %_ = call(@{layer.name}, {', '.join(arguments)})",
        )

    def _logits(self) -> None:
        c = self.c
        tied = "output.weight" not in self.gguf.names()
        output = "embedding" if tied else "output"
        self._add(
            "",
            "  // The last token alone goes on to the output" + (", whose weights are those of the embedding." if tied else "."),
            self._weight("norm", "output_norm.weight"),
            *([] if tied else [self._weight("output", "output.weight")]),
            "  %end = constant([-1]) : i64[1]",
            f"  %last = gather(%x{c.layers}, %end)",
        )
        for name, tensor in (("norm", "output_norm.weight"), (output, "token_embd.weight" if tied else "output.weight")):
            if self._is_narrow(tensor):
                self._add(f"  %{name}.f32 = cast(%{name}, dtype=f32)")
        norm = "norm.f32" if self._is_narrow("output_norm.weight") else "norm"
        matrix = f"{output}.f32" if self._is_narrow("token_embd.weight" if tied else "output.weight") else output
        self._add(
            f"  %last.norm = rmsnorm(%last, weight=%{norm}, eps={_short(c.eps)})",
            f"  %row = linear(%last.norm, %{matrix})",
            f"  %logits = reshape(%row, shape=[{c.vocabulary}])",
        )


def _short(value: float) -> str:
    """A number that the file has as f32, as the shortest decimal of that f32: operations round it to f32 anyway."""
    import numpy as np

    return format_attribute(float(str(np.float32(value))))
