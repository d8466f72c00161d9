"""lower-to-linalg: uniform, dropout, multinomial, top_p."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_checks import assert_same, assert_same_error, error_of, lowered

from ir.types import DTYPES

FLOATS = ("f32", "f64", "f16", "bf16")
SEEDS = (0, 1, -1, 12345, 2**63 - 1, -(2**63))


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: str) -> None:
    text = f"graph @main(%seed: i64[], %x: f32[A, B]) {{\n  %y = uniform(%seed, shape=[A, 3, B], dtype={dtype})\n  return %y\n}}\n"
    programs = lowered(text)
    for seed in SEEDS:
        assert_same(programs, np.array(seed), np.zeros((2, 5), np.float32))
    assert_same(programs, np.array(7), np.zeros((0, 5), np.float32))


@pytest.mark.parametrize("integer", ["i32", "i16", "i8", "u8"])
@pytest.mark.parametrize("shape", ["[]", "[9]", "[2, 3, 4]"])
def test_seeds_of_other_types(integer: str, shape: str) -> None:
    programs = lowered(f"graph @main(%seed: {integer}[]) {{\n  %y = uniform(%seed, shape={shape})\n  return %y\n}}\n")
    for seed in (0, DTYPES[integer].min_value, DTYPES[integer].max_value):
        assert_same(programs, np.array(seed, DTYPES[integer].numpy))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0, 0.25, 0.9])
def test_dropout(dtype: str, p: float) -> None:
    for seed in SEEDS:
        text = f"graph @main(%x: {dtype}[B, 3, S]) {{\n  %y = dropout(%x, p={p}, seed={seed}, training=true)\n  return %y\n}}\n"
        x = np.random.default_rng(0).standard_normal((2, 3, 4))
        x[0, 0] = [np.nan, np.inf, -0.0, 65504]
        assert_same(lowered(text), x.astype(DTYPES[dtype].numpy))


def test_dropout_without_training() -> None:
    programs = lowered("graph @main(%x: f32[B]) {\n  %y = dropout(%x)\n  %z = neg(%y)\n  return %y, %z\n}\n")
    assert_same(programs, np.float32([1, np.nan, -0.0]))


# -- choosing ----------------------------------------------------------------------------------------------------------


def multinomial_text(dtype: str, shape: str, samples: int) -> str:
    return f"graph @main(%p: {dtype}{shape}, %seed: i64[]) {{\n  %i = multinomial(%p, %seed, num_samples={samples})\n  return %i\n}}\n"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("samples", [0, 1, 7])
@pytest.mark.parametrize("shape", ["[A, B, S]", "[2, 3, 5]"])
def test_multinomial(dtype: str, samples: int, shape: str) -> None:
    programs = lowered(multinomial_text(dtype, shape, samples))
    weights = np.random.default_rng(0).random((2, 3, 5))
    weights[0] = [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 5]]
    weights[1, 0] = [0.5, 0, 0.5, 0, 0]
    for seed in SEEDS:
        assert_same(programs, weights.astype(DTYPES[dtype].numpy), np.array(seed))


def test_multinomial_of_tiny_weights() -> None:
    """u * total rounds up to the total."""
    programs = lowered(multinomial_text("f64", "[B, S]", 50))
    tiny = 5e-324
    assert_same(programs, np.array([[tiny, 0, 0], [0, tiny, 0], [0, 0, tiny], [tiny, tiny, 0]]), np.array(3))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 9])
def test_multinomial_sizes(size: int) -> None:
    for declared in ("S", str(size)):
        programs = lowered(multinomial_text("f32", f"[{declared}]", 20))
        assert_same(programs, np.random.default_rng(size).random(size).astype(np.float32), np.array(1))
    assert_same(lowered(multinomial_text("f32", f"[B, {size}]", 2)), np.zeros((0, size), np.float32), np.array(1))


def test_multinomial_errors() -> None:
    seed = np.array(0)
    one = lowered(multinomial_text("f32", "[S]", 1))
    for weights in ([0, 0], [np.inf, 1], [np.nan, 1], [1, np.inf]):
        message = assert_same_error(one, np.float32(weights), seed)
        assert message.startswith("multinomial: the sum of probs is ")
    assert_same_error(one, np.zeros(0, np.float32), seed)
    assert error_of(one[1], np.float32([1, -1]), seed) == "multinomial: element 1 of probs is negative"
    for type_, shape in (("[B, S]", (3, 2)), ("[1, B, S]", (1, 3, 2))):
        rows = lowered(multinomial_text("f32", type_, 1))
        weights = np.ones(shape, np.float32)
        weights[..., -1, :] = 0
        assert_same_error(rows, weights, seed)
        weights[..., 1, :] = -1, np.nan
        assert "multinomial: element 0 of row [" in error_of(rows[1], weights, seed)


def test_multinomial_error_without_room_for_the_row() -> None:
    weights = np.full((1, 2, 2, 2), -1, np.float32)
    assert error_of(lowered(multinomial_text("f32", "[A, B, C, S]", 1))[1], weights, np.array(0)) == (
        "multinomial: element 0 of a row of probs is negative"
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_top_p(dtype: str, p: float) -> None:
    for shape in ("[A, B, S]", "[2, 3, 6]"):
        programs = lowered(f"graph @main(%x: {dtype}{shape}) {{\n  %y = top_p(%x, p={p})\n  return %y\n}}\n")
        x = np.random.default_rng(0).random((2, 3, 6))
        x /= x.sum(axis=-1, keepdims=True)
        x[0, 0] = [0.1, 0.3, 0.1, 0.3, 0.1, 0.1]
        x[0, 1] = [np.nan, 0.5, 0.5, -0.0, 0, np.nan]
        x[0, 2] = [0, -0.0, 0, 0, -0.0, 0]
        assert_same(programs, x.astype(DTYPES[dtype].numpy))
    for size in (0, 1, 3):
        programs = lowered(f"graph @main(%x: {dtype}[S]) {{\n  %y = top_p(%x, p={p})\n  return %y\n}}\n")
        assert_same(programs, np.full(size, 0.25, DTYPES[dtype].numpy))
