"""SmolLM2-135M-Instruct from its Q4_1 file: the tokens, logits and answers of a float32 evaluation.

``smollm2_greedy.json`` has continuations of prompts on which llama.cpp (F32) and a torch program agree; ``smollm2_reference.npz`` the
logits behind a text (every sixteenth), the most probable token behind each of its beginnings, and an answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_opt.llm import Model, load
from tests.llm.smollm2 import needed_model

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

DATA = Path(__file__).parents[1] / "data"
PROMPTS: list[dict[str, Any]] = json.loads((DATA / "smollm2_greedy.json").read_text(encoding="utf-8"))["prompts"]


@pytest.fixture(scope="module")
def model() -> Model:
    return load(needed_model(), 1, capacity=256)


@pytest.fixture(scope="module")
def reference() -> Any:
    with np.load(DATA / "smollm2_reference.npz") as stored:
        return dict(stored)


def fresh(model: Model) -> Model:
    return Model(model.program, model.tokenizer, model.capacity)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["text"][:20])
def test_greedy_tokens(model: Model, prompt: dict[str, Any]) -> None:
    assert model.tokenizer.encode(prompt["text"]) == prompt["prompt_ids"]
    assert list(model.generate(prompt_ids=prompt["prompt_ids"], max_tokens=64, stop=False, ids=True)) == prompt["ids"]
    assert "".join(model.generate(prompt["text"], max_tokens=64, stop=False)) == prompt["output"]


def test_an_answer(model: Model, reference: Any) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert model.chat_ids(messages) == reference["prompt_ids"].tolist()
    assert list(model.chat(messages, ids=True)) == reference["greedy"].tolist()
    assert "".join(model.chat(messages)) == "The capital of France is Paris."


def test_logits(model: Model, reference: Any) -> None:
    ids = reference["text_ids"].tolist()
    np.testing.assert_allclose(model.logits(ids)[::16], reference["logits_last"], atol=2e-3, rtol=0)
    for count in range(1, len(ids) + 1):
        assert model.logits(ids[:count]).argmax() == reference["logits_argmax"][count - 1]


def test_splits_give_the_same_bits(model: Model, reference: Any) -> None:
    ids = reference["text_ids"].tolist() * 4
    whole = fresh(model).logits(ids)
    for first in (1, 27, 64, len(ids) - 1):
        split = fresh(model)
        split.logits(ids[:first])
        np.testing.assert_array_equal(split.logits(ids), whole)


def test_threads_give_the_same_bits(model: Model, reference: Any) -> None:
    ids = reference["text_ids"].tolist()
    two = load(needed_model(), 2, capacity=256)
    np.testing.assert_array_equal(two.logits(ids), fresh(model).logits(ids))
    np.testing.assert_array_equal(two.logits([*ids, 28]), fresh(model).logits([*ids, 28]))
