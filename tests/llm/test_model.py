"""Loading a small model, and what generate does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_opt
from graph_opt.llm import Model, load
from graph_opt.llm.model import step_seed
from interop.gguf import GgufFile
from interop.llama import import_llama
from ir.diagnostics import GraphError
from tests.gguf_files import Tiny, gguf_bytes, stored, tiny_llama, tiny_metadata, tiny_tensors, tokenizer_metadata

pytest.importorskip("tokenizers")

CONTEXT = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "tiny.gguf"
    file.write_bytes(tiny_llama(Tiny(context=CONTEXT)))
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(path, device="reference")


def fresh(model: Model) -> Model:
    """The same program with empty caches."""
    return Model(model.program, model.tokenizer, model.capacity)


def greedy(model: Model, prompt: list[int], count: int) -> list[int]:
    """By the logits of everything so far, computed anew for every token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(fresh(model).logits(tokens).argmax()))
    return tokens[len(prompt) :]


def test_greedy(model: Model) -> None:
    prompt = model.tokenizer.encode("hello world")
    wanted = greedy(model, prompt, 12)
    assert list(fresh(model).generate("hello world", max_tokens=12, stop=False, ids=True)) == wanted
    assert list(fresh(model).generate(prompt_ids=np.array(prompt), max_tokens=12, stop=False, ids=True)) == wanted
    assert list(fresh(model).generate(prompt_ids=[np.int64(i) for i in prompt], max_tokens=5, stop=False, ids=True)) == wanted[:5]
    assert "".join(fresh(model).generate("hello world", max_tokens=12, stop=False)) == model.tokenizer.decode(wanted)


def test_splits_give_the_same_bits(model: Model) -> None:
    ids = np.random.default_rng(0).integers(0, model.vocabulary, 20).tolist()
    whole = fresh(model).logits(ids)
    for first in (1, 7, 19):
        split = fresh(model)
        split.logits(ids[:first])
        np.testing.assert_array_equal(split.logits(ids), whole)
    steps = fresh(model)
    for count in range(1, 21):
        logits = steps.logits(ids[:count])
    np.testing.assert_array_equal(logits, whole)


def test_a_prompt_in_several_parts(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(1).integers(0, model.vocabulary, 23).tolist()
    whole = fresh(model).logits(ids)
    monkeypatch.setattr("graph_opt.llm.model.PREFILL", 5)
    np.testing.assert_array_equal(fresh(model).logits(ids), whole)


def test_what_is_known_is_not_computed_again(model: Model) -> None:
    several = fresh(model)
    first = list(several.generate("hello world", max_tokens=6, stop=False, ids=True))
    assert several.statistics.reused == 0
    assert list(several.generate("hello world", max_tokens=6, stop=False, ids=True)) == first
    prompt = several.tokenizer.encode("hello world")
    assert several.statistics.reused == len(prompt) - 1
    longer = [*prompt, *first[:4], 77]
    assert list(several.generate(prompt_ids=longer, max_tokens=5, stop=False, ids=True)) == greedy(model, longer, 5)
    assert several.statistics.reused == len(longer) - 1
    other = [5, *prompt]
    assert list(several.generate(prompt_ids=other, max_tokens=5, stop=False, ids=True)) == greedy(model, other, 5)
    assert several.statistics.reused == 0


def test_generations_at_the_same_time(model: Model) -> None:
    several = fresh(model)
    prompts = ["hello", "world", "hello world"]
    wanted = [greedy(model, model.tokenizer.encode(p), 5) for p in prompts]
    running = [several.generate(p, max_tokens=5, stop=False, ids=True) for p in prompts]
    assert [list(tokens) for tokens in zip(*zip(*running, strict=True), strict=True)] == wanted


def test_an_answer_that_is_not_read_to_its_end(model: Model) -> None:
    several = fresh(model)
    answer = several.generate("hello world", stop=False, ids=True)
    first = [next(answer), next(answer)]
    answer.close()
    assert list(several.generate("hello world", max_tokens=2, stop=False, ids=True)) == first


def test_the_end_token(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = model.tokenizer.encode("hello world")
    wanted = greedy(model, prompt, 6)
    end = wanted[3]
    assert end not in wanted[:3]
    monkeypatch.setattr(model.tokenizer, "ends", frozenset({end}))
    assert list(fresh(model).generate(prompt_ids=prompt, max_tokens=6, ids=True)) == wanted[:4]
    assert "".join(fresh(model).generate(prompt_ids=prompt, max_tokens=6)) == model.tokenizer.decode(wanted[:3])
    assert list(fresh(model).generate(prompt_ids=prompt, max_tokens=6, ids=True, stop=False)) == wanted


def test_capacity(path: Path, model: Model) -> None:
    assert model.capacity == CONTEXT
    prompt = [7] * 30
    assert len(list(fresh(model).generate(prompt_ids=prompt, stop=False, ids=True))) == 11  # the last is not put into the cache
    assert len(list(fresh(model).generate(prompt_ids=prompt, stop=False, ids=True, max_tokens=11))) == 11
    with pytest.raises(GraphError, match="a prompt of 30 tokens and 12 new ones are more than the capacity of 40"):
        model.generate(prompt_ids=prompt, max_tokens=12)
    with pytest.raises(GraphError, match="the prompt has 41 tokens, the capacity is 40"):
        model.generate(prompt_ids=[7] * 41)
    with pytest.raises(GraphError, match="41 tokens, the capacity is 40"):
        model.logits([7] * 41)
    assert len(list(fresh(model).generate(prompt_ids=[7] * 40, stop=False, ids=True))) == 1
    assert not list(model.generate(prompt_ids=[7], max_tokens=0))
    with pytest.raises(GraphError, match="capacity: 41 tokens, the model was made for 40"):
        load(path, device="reference", capacity=41)
    small = Model(model.program, model.tokenizer, 8)
    assert list(small.generate(prompt_ids=[7, 8, 9], stop=False, ids=True)) == greedy(model, [7, 8, 9], 6)


def test_samples(model: Model) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "stop": False, "ids": True, "temperature": 1.5}
    made = [list(fresh(model).generate("hello", seed=seed, **options)) for seed in range(6)]
    assert len({tuple(m) for m in made}) == 6
    assert made[3] == list(fresh(model).generate("hello", seed=3, **options))
    prompt = model.tokenizer.encode("hello")
    continued = list(fresh(model).generate(prompt_ids=[*prompt, *made[3][:5]], seed=3, **{**options, "max_tokens": 7}))
    assert continued == made[3][5:]  # chance depends on the seed and the position
    assert list(fresh(model).generate("hello", top_k=1, **options)) == greedy(model, prompt, 12)
    cut = list(fresh(model).generate("hello", top_k=3, top_p=0.9, **options))
    for place, token in enumerate(cut):
        assert token in np.argsort(-fresh(model).logits([*prompt, *cut[:place]]))[:3]


def test_seeds() -> None:
    steps = {int(step_seed(seed, position)) for seed in range(-50, 50) for position in range(50)}
    assert len(steps) == 5000
    assert step_seed(0, 5) == 5 and step_seed((1 << 64) - 1, 0) == step_seed(-1, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected a prompt or prompt_ids, one of the two"),
        ({"prompt": "a", "prompt_ids": [1]}, "expected a prompt or prompt_ids"),
        ({"prompt": 3}, "prompt: expected a string, found int"),
        ({"prompt": "\udcff"}, "the text is not valid Unicode"),
        ({"prompt_ids": []}, "the prompt is empty"),
        ({"prompt_ids": [1, 272]}, r"prompt_ids\[1\] is 272: expected an integer from 0 to 271"),
        ({"prompt_ids": [1, -1]}, r"prompt_ids\[1\] is -1"),
        ({"prompt_ids": [1.5]}, r"prompt_ids\[0\] is 1.5"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens: expected an integer from 0 on, found -1"),
        ({"prompt": "a", "temperature": -1.0}, "temperature: expected 0 or a number"),
        ({"prompt": "a", "temperature": float("nan")}, "temperature: expected"),
        ({"prompt": "a", "temperature": 1e-9}, "temperature: expected 0 or a number from 1e-06"),
        ({"prompt": "a", "top_k": -1}, "top_k: expected"),
        ({"prompt": "a", "top_p": 0}, "top_p: expected"),
        ({"prompt": "a", "seed": 1.5}, "seed: expected an integer"),
        ({"prompt": "a", "seed": 1 << 64}, "seed: expected an integer"),
    ],
)
def test_what_makes_no_sense(model: Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        model.generate(**options)


def test_statistics(model: Model) -> None:
    some = fresh(model)
    assert len(list(some.generate("hello world", max_tokens=5, stop=False))) >= 1
    s = some.statistics
    assert (s.prompt_tokens, s.tokens, s.reused) == (2, 5, 0)
    assert s.first_token > 0 and s.rate > 0 and s.prompt_rate > 0


def test_an_imported_program(path: Path, model: Model, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(path.read_bytes())
    program = tmp_path / "tiny.graph"
    program.write_text(import_llama(GgufFile(tmp_path / "tiny.gguf")))
    imported = load(program, device="reference")
    ids = model.tokenizer.encode("hello world")
    np.testing.assert_array_equal(imported.logits(ids), fresh(model).logits(ids))
    (tmp_path / "tiny.gguf").rename(tmp_path / "moved.gguf")
    with pytest.raises(GraphError, match=r"no file 'tiny\.gguf' beside the program"):
        load(program, device="reference")
    moved = load(program, device="reference", files={"model": tmp_path / "moved.gguf"})
    np.testing.assert_array_equal(moved.logits(ids), fresh(model).logits(ids))


def test_what_is_no_model(tmp_path: Path) -> None:
    program = tmp_path / "p.graph"
    program.write_text("graph @main(%x: f32[4]) -> f32[4] {\n  %y = exp(%x)\n  return %y\n}\n")
    with pytest.raises(GraphError, match="expected one GGUF file"):
        load(program, device="reference")
    with pytest.raises(GraphError, match="there is no such file"):
        load(tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(GraphError, match="too few"):
        load(tmp_path / "bad.gguf")
    with pytest.raises(GraphError, match="it is a folder, not a regular file"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GraphError, match="it is a pipe, not a regular file"):
        load(tmp_path / "pipe")
    with pytest.raises(GraphError, match=r"/dev/zero:1:1: error: .*it is a device, not a regular file"):
        load("/dev/zero")


def test_a_graph_of_another_form(path: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(path.read_bytes())
    program = tmp_path / "p.graph"
    program.write_text(
        'file @model = "tiny.gguf"\ngraph @main(%x: f32[64]) -> f32[64] {\n  %w = weight(@model, "output_norm.weight") : f32[64]\n'
        "  %y = mul(%x, %w)\n  return %y\n}\n"
    )
    with pytest.raises(GraphError, match="graph @main is no language model"):
        load(program, device="reference")


def test_a_tokenizer_of_another_size(path: Path, tmp_path: Path) -> None:
    words = tokenizer_metadata()
    file = tmp_path / "t.gguf"
    metadata = {**tiny_metadata(Tiny(), words), "tokenizer.ggml.tokens": words["tokenizer.ggml.tokens"][:-1]}
    file.write_bytes(gguf_bytes(metadata, tiny_tensors(Tiny(), 272)))
    with pytest.raises(GraphError, match=r"272|271"):
        load(file, device="reference")


def test_llm_is_found_by_name() -> None:
    assert graph_opt.llm.load is load


def test_machine_code(path: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_OPT_CACHE", str(tmp_path))
    told: list[str] = []
    cold = load(path, 1, progress=told.append)
    assert "reading the model" in told
    ids = model.tokenizer.encode("hello world, hello")
    wanted = cold.logits(ids)
    np.testing.assert_allclose(wanted, fresh(model).logits(ids), atol=2e-5, rtol=0)
    warm = load(path, 2)  # out of the cache
    np.testing.assert_array_equal(warm.logits(ids), wanted)
    options: dict[str, Any] = {"max_tokens": 8, "stop": False, "ids": True}
    assert list(warm.generate("hello world", **options)) == list(fresh(model).generate("hello world", **options))
    for precision, off in (("int16", 2e-3), ("int8", 0.2), ("float", 2e-5)):
        coarse = load(path, 1, precision=precision).logits(ids)
        assert 0 < np.abs(coarse - wanted).max() < off
    with pytest.raises(GraphError, match="there is no precision 'f16'"):
        load(path, 1, precision="f16")


def test_caches_take_memory_as_they_are_filled(model: Model) -> None:
    cache = model.program.new_cache(CONTEXT)
    assert [a.shape for a in cache.arrays] == [(1, CONTEXT, 32)] * 4
    assert all(a.dtype == np.float32 and not a.any() and a.flags.c_contiguous and a.flags.writeable and a.ctypes.data % 64 == 0 for a in cache.arrays)
    cache.arrays[0][...] = 1
    assert not any(a.any() for a in cache.arrays[1:])
    before = list(cache.arrays)
    for count in (1, CONTEXT // 4 - 1, CONTEXT // 4, CONTEXT):
        cache.reserve(count)
    assert all(a is b for a, b in zip(cache.arrays, before, strict=True))
    assert (cache.arrays[0] == 1).all() and not any(a.any() for a in cache.arrays[1:])
    assert cache.common([1]) == 0
    cache.ids = [3, 4, 5]
    assert (cache.common([3, 4, 6]), cache.common([3, 4, 5, 6]), cache.common([3]), cache.common([])) == (2, 3, 1, 0)


def test_texts_that_can_not_fit_are_not_looked_at(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = max(len(t.encode()) for t in model.tokenizer.tokens)
    assert model.tokenizer.longest == longest == len("<|endoftext|>")
    with pytest.raises(GraphError, match=f"the prompt has {longest * CONTEXT} tokens"):
        model.generate("x" * (longest * CONTEXT))
    monkeypatch.setattr(model.tokenizer, "_backend", None)
    message = f"the prompt has {longest * CONTEXT + 1} bytes: more than the capacity of {CONTEXT} tokens, of which none has more than {longest} bytes"
    with pytest.raises(GraphError, match=message):
        model.generate("x" * (longest * CONTEXT + 1))
    with pytest.raises(GraphError, match="bytes: more than the capacity"):
        model.chat([{"role": "user", "content": "é" * (longest * CONTEXT // 2)}])


def test_a_bad_tokenizer_is_found_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_OPT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "t.gguf"
    metadata = {**tiny_metadata(Tiny()), "tokenizer.ggml.merges": ["a zz"]}
    file.write_bytes(gguf_bytes(metadata, tiny_tensors(Tiny(), 272)))
    for device in ("cpu", "reference"):
        told: list[str] = []
        with pytest.raises(GraphError, match=r"t\.gguf:1:1: error: .*merge 0, 'a zz': 'zz' is no token"):
            load(file, device=device, progress=told.append)  # type: ignore[arg-type]
        assert set(told) <= {"reading the model", "reading the program"}
    program = tmp_path / "t.graph"
    program.write_text(import_llama(GgufFile(file)))
    for device in ("cpu", "reference"):
        told = []
        with pytest.raises(GraphError, match=r"t\.graph:1:1: error: .*merge 0, 'a zz': 'zz' is no token"):
            load(program, device=device, progress=told.append)  # type: ignore[arg-type]
        assert told == ["reading the program"]


def test_a_name_that_is_no_text(path: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_OPT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / 'a\udcff"$.gguf'
    file.write_bytes(path.read_bytes())
    ids = model.tokenizer.encode("hello world")
    np.testing.assert_array_equal(load(file, device="reference").logits(ids), fresh(model).logits(ids))
    cold = load(file, 1).logits(ids)
    np.testing.assert_array_equal(load(file, 1).logits(ids), cold)


def test_numbers_of_numpy(model: Model) -> None:
    options: dict[str, Any] = {"max_tokens": 6, "stop": False, "ids": True}
    plain = list(fresh(model).generate("hello", temperature=0.5, top_k=9, top_p=0.5, seed=-5, **options))
    kinds: Any = ((np.int64, np.float64), (np.int8, np.float32))
    for integer, real in kinds:
        found = fresh(model).generate("hello", temperature=real(0.5), top_k=integer(9), top_p=real(0.5), seed=integer(-5), **options)
        assert list(found) == plain
    wanted = list(fresh(model).generate("hello", temperature=1, seed=(1 << 64) - 1, **options))
    options |= {"temperature": np.int64(1), "seed": np.uint64((1 << 64) - 1)}
    assert list(fresh(model).generate("hello", **options)) == wanted


@pytest.mark.parametrize("ids", [5, np.array(5), np.int64(5), 1.5])
def test_ids_that_are_no_list(model: Model, ids: Any) -> None:
    for ask in (model.logits, lambda i: model.generate(prompt_ids=i)):
        with pytest.raises(GraphError, match="prompt_ids: expected a list of integers, found "):
            ask(ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "there is no device 'gpu'"),
        ({"device": None}, "device: expected a string, found None"),
        ({"precision": None}, "precision: expected a string, found None"),
        ({"path": None}, "path: expected the name of a file, found None"),
        ({"path": 5}, "path: expected the name of a file, found 5"),
        ({"path": b"x"}, "path: expected the name of a file, found b'x'"),
        ({"threads": 1000}, "threads: expected an integer from 0 to 256, found 1000"),
        ({"threads": 2, "device": "reference"}, "device 'reference' has one thread"),
    ],
)
def test_what_can_not_be_loaded(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        load(**{"path": path, **options})


def test_logits_that_are_no_numbers(tmp_path: Path) -> None:
    tensors = tiny_tensors(Tiny(), 272)
    tensors["output_norm.weight"] = stored(np.full(64, np.nan, np.float32))
    (tmp_path / "t.gguf").write_bytes(gguf_bytes(tiny_metadata(Tiny()), tensors))
    damaged = load(tmp_path / "t.gguf", device="reference")
    for temperature in (0, 1.0):
        with pytest.raises(GraphError, match=r"t\.gguf: the logits of token 2 are no numbers \(NaN\)"):
            list(damaged.generate("hello world", temperature=temperature))
    assert np.isnan(damaged.logits([1])).all()


def test_conditions_of_a_program_limit_the_capacity(path: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(path.read_bytes())
    program = tmp_path / "tiny.graph"
    text = import_llama(GgufFile(tmp_path / "tiny.gguf"))
    for condition, capacity in (("T <= 24", 24), ("T mod 16 == 0", 32), ("T < 8", 7)):
        program.write_text(text.replace("T <= 40", condition))
        assert load(program, device="reference").capacity == capacity
        with pytest.raises(GraphError, match=f"graph @main wants {condition}, but T = 30"):
            load(program, device="reference", capacity=30)
    program.write_text(text.replace("T <= 40", "3000 <= T"))
    with pytest.raises(GraphError, match="no capacity up to 2048 fits the conditions of graph @main"):
        load(program, device="reference")
