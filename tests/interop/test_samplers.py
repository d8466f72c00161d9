"""The programs that choose a token, beside numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graph_opt
from dialects.graph import _random
from interop.samplers import greedy_text, sampler_text, samplers_text
from ir.diagnostics import GraphError

SIZE = 500
DEVICES = ("cpu", "reference")
CUTS = [(None, None), (0, 1), (40, None), (None, 0.9), (40, 0.9), (1, 0.5), (SIZE, 0.3), (9999, None), (3, 1.0)]
WRONG: list[dict[str, Any]] = [{"top_k": -1}, {"top_k": 1.5}, {"top_k": True}, {"top_p": 0}, {"top_p": 1.1}, {"top_p": np.nan}, {"top_p": "x"}]


def logits(seed: int = 0, size: int = SIZE) -> Any:
    return (3 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def program(text: str, device: str) -> Any:
    return graph_opt.compile(graph_opt.parse(text), device=device)


def chosen(x: Any, temperature: float, top_k: int | None, top_p: float | None, seed: int) -> int:
    """What numpy takes, all in f64."""
    order = np.argsort(-x, kind="stable")[: top_k or len(x)]
    z = x[order].astype(np.float64) / temperature
    probs = np.exp(z - z.max())
    probs /= probs.sum()
    if top_p is not None and top_p < 1:
        probs[np.searchsorted(np.cumsum(probs), top_p) + 1 :] = 0
    if not top_k or top_k >= len(x):  # the chance is laid on in the order of the vocabulary
        probs, order = probs[np.argsort(order)], np.arange(len(x))
    running = np.cumsum(probs)
    return int(order[np.searchsorted(running, float(_random.uniform(seed, np.zeros(1))[0]) * running[-1], side="right")])


@pytest.mark.parametrize("device", DEVICES)
def test_greedy(device: str) -> None:
    greedy = program(greedy_text(SIZE), device)
    for seed in range(20):
        assert greedy(logits(seed)) == logits(seed).argmax()
    equal = np.zeros(SIZE, np.float32)
    assert greedy(equal) == 0
    equal[[7, 9]] = 1
    token = greedy(equal)
    assert token == 7 and token.shape == () and token.dtype == np.int64


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("top_k", "top_p"), CUTS)
def test_samples_are_those_of_numpy(device: str, top_k: int | None, top_p: float | None) -> None:
    sample = program(sampler_text(SIZE, top_k, top_p), device)
    tokens = set()
    for seed in range(60):
        for temperature in (0.5, 1.0, 1.7):
            token = sample(logits(seed % 5), np.float32(temperature), np.int64(seed - 20))
            assert token == chosen(logits(seed % 5), np.float32(temperature), top_k, top_p, seed - 20), (seed, temperature)
            tokens.add(int(token))
    assert len(tokens) == 5 if top_k == 1 else len(tokens) > 5


@pytest.mark.parametrize("device", DEVICES)
def test_chances(device: str) -> None:
    x = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sample = program(sampler_text(4, 3, None), device)
    counts = np.bincount([int(sample(x, np.float32(1), np.int64(seed))) for seed in range(2000)], minlength=4)
    assert counts[3] == 0
    np.testing.assert_allclose(counts[:3] / 2000, np.array([0.5, 0.3, 0.15]) / 0.95, atol=0.04)


@pytest.mark.parametrize("device", DEVICES)
def test_extreme_logits(device: str) -> None:
    x = np.full(SIZE, -np.inf, np.float32)
    x[3] = 1e4
    assert program(sampler_text(SIZE, 40, 0.9), device)(x, np.float32(1e-6), np.int64(1)) == 3
    x[3] = np.nan
    with pytest.raises(GraphError, match="multinomial"):
        program(sampler_text(SIZE, 40, 0.9), device)(x, np.float32(1), np.int64(1))


def test_texts_print_as_they_are() -> None:
    text = samplers_text(SIZE)
    module = graph_opt.parse(text)
    assert list(module.graphs) == ["greedy", "sample"]
    assert "topk(%scaled, k=40)" in text and "top_p(%probs, p=0.95)" in text
    for graph in module.graphs:
        graph_opt.compile(module, graph, device="reference")


@pytest.mark.parametrize("wrong", WRONG)
def test_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match=f"{next(iter(wrong))}: expected"):
        sampler_text(SIZE, **wrong)
