"""rope."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dialects.graph.rope import rope
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import TypeProblem
from ir.types import TensorType, f16, f32, i32, i64

B, H, S, D = map(symbol, "BHSD")


def rotated(vector, position, pairs, base):
    """One vector rotated in plain Python."""
    out = [float(v) for v in vector]
    for i, (p, q) in enumerate(pairs):
        angle = position * base ** (-2 * i / (2 * len(pairs)))
        a, b = float(vector[p]), float(vector[q])
        out[p] = a * math.cos(angle) - b * math.sin(angle)
        out[q] = a * math.sin(angle) + b * math.cos(angle)
    return out


def pairs_of(width, interleaved):
    half = width // 2
    return [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [2, 6, 8])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_against_plain_python(interleaved, width, base):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 5, 8)).astype(np.float32)
    positions = np.int64([0, 1, -2, 131071, 1000000])
    result = rope(x, positions, base=base, interleaved=interleaved, rotary_dim=width)
    for b, h, s in np.ndindex(2, 3, 5):
        want = rotated(x[b, h, s], int(positions[s]), pairs_of(width, interleaved), base)
        assert np.allclose(result[b, h, s], want, rtol=1e-7, atol=1e-7)
    assert np.array_equal(result[..., width:], x[..., width:])


def test_positions_of_a_batch():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 3, 4, 6)).astype(np.float32)
    positions = np.int32([[0, 1, 2, 3], [7, 8, 9, 10]])
    result = rope(x, positions)
    for b in range(2):
        assert np.array_equal(result[b], rope(x[b], positions[b]))
    assert np.array_equal(rope(x, positions[:1]), rope(x, positions[0]))
    assert np.array_equal(rope(x[:, 0], positions), result[:, 0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_factors_divide_angles(interleaved):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 5, 8)).astype(np.float32)
    positions = np.int64([0, 1, 7, 4096, 100000])
    factors = np.float32([1, 2, 8, 0.5])
    result = rope(x, positions, factors=factors, interleaved=interleaved)
    for h, s in np.ndindex(3, 5):
        want = list(x[h, s])
        for i, (p, q) in enumerate(pairs_of(8, interleaved)):
            t = positions[s] * 10000.0 ** (-i / 4) / factors[i]
            a, b = float(x[h, s, p]), float(x[h, s, q])
            want[p], want[q] = a * math.cos(t) - b * math.sin(t), a * math.sin(t) + b * math.cos(t)
        assert np.allclose(result[h, s], want, rtol=1e-7, atol=1e-7)
    assert np.array_equal(rope(x, positions, factors=np.ones(4, np.float32)), rope(x, positions))
    assert np.array_equal(rope(x, positions, factors=np.full(4, 4, np.float32))[:, 3], rope(x, positions // 4)[:, 3])
    assert np.flatnonzero(np.isnan(rope(x, positions, factors=np.float32([1, 0, 1, 1]))[0, 1])).tolist() == [1, 5]


def test_position_zero_changes_nothing():
    x = np.float32([[1, -0.0, 3, 4]])
    result = rope(x, np.int64([0]))
    assert result.tolist() == x.tolist()


def test_f16_rounds_once():
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float16)
    positions = np.int64([3, 1000, 5, 77777])
    assert np.array_equal(rope(x, positions), rope(x.astype(np.float64), positions).astype(np.float16))


def test_special_values_stay_in_their_pair():
    x = np.ones((1, 8), np.float32)
    x[0, 1] = np.nan
    assert np.flatnonzero(np.isnan(rope(x, np.int64([5])))).tolist() == [1, 5]
    assert np.flatnonzero(np.isnan(rope(x, np.int64([5]), interleaved=True))).tolist() == [0, 1]


def test_empty():
    assert rope(np.zeros((2, 0, 4), np.float32), np.zeros(0, np.int64)).shape == (2, 0, 4)
    assert rope(np.zeros((3, 0), np.float32), np.zeros(3, np.int64)).shape == (3, 0)


def infer(x, positions, dtype=i64, **attributes):
    return rope.infer([TensorType(f32, x), TensorType(dtype, positions)], ["x", "positions"], attributes)


def test_types():
    for positions in ((S,), (B, S), (1, S), (UNKNOWN_DIM,), (UNKNOWN_DIM, S)):
        assert infer((B, H, S, 8), positions) == (TensorType(f32, (B, H, S, 8)),)
    infer((S, 2 * D), (S,), i32)
    infer((UNKNOWN_DIM, S, UNKNOWN_DIM), (S,))


@pytest.mark.parametrize(
    ("x", "positions", "attributes", "message"),
    [
        ((B, H, S, 7), (S,), {}, "must be even, found 7"),
        ((B, H, S, D), (S,), {}, "must be even, found D"),
        ((B, H, S, 8), (H,), {}, r"expected positions of shape \[S\] or \[B, S\].*found i64\[H\]"),
        ((B, H, S, 8), (H, S), {}, "expected positions"),
        ((B, H, S, 8), (B, 1, S), {}, "expected positions"),
        ((B, H, S, 8), (), {}, "expected positions"),
        ((B, H, S, 8), (1,), {}, "expected positions"),
        ((S, 8), (1, S), {}, "expected positions"),
        ((8,), (8,), {}, "rank 2 or more"),
        ((S, 8), (S,), {"rotary_dim": 10}, "more than the last dimension, 8"),
        ((S, 8), (S,), {"rotary_dim": 3}, "positive even"),
        ((S, 8), (S,), {"rotary_dim": 0}, "positive even"),
        ((S, D), (S,), {"rotary_dim": 4}, "needs a last dimension that is known"),
        ((S, 8), (S,), {"base": 0.0}, "base="),
    ],
)
def test_errors(x, positions, attributes, message):
    with pytest.raises(TypeProblem, match=message):
        infer(x, positions, **attributes)


@pytest.mark.parametrize(("dtype", "shape"), [(f32, (3,)), (f32, (8,)), (f32, (1, 4)), (f32, ()), (i32, (4,))])
def test_wrong_factors(dtype, shape):
    factors = TensorType(dtype, shape)
    types = [TensorType(f32, (S, 8)), TensorType(i64, (S,))]
    with pytest.raises(TypeProblem, match=r"a factor for each pair|a tensor of floats"):
        rope.infer([*types, factors], ["x", "positions", "factors"], {})
    rope.infer([*types, TensorType(f16, (4,))], ["x", "positions", "factors"], {})
    rope.infer([*types, TensorType(f32, (2,))], ["x", "positions", "factors"], {"rotary_dim": 4})


def test_element_types():
    with pytest.raises(TypeProblem, match="a tensor of integers"):
        infer((S, 8), (S,), f16)
    with pytest.raises(TypeProblem, match="a tensor of floats"):
        rope.infer([TensorType(i32, (S, 8)), TensorType(i32, (S,))], ["x", "positions"], {})
