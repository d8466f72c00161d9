"""attention."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dialects.graph.attention import attention
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import TypeProblem
from ir.types import TensorType, boolean, f16, f32, i64

B, S, T, P, H = map(symbol, "BSTPH")
INF, NAN = np.inf, np.nan


def one_query(q, keys, values, bias, scale):
    """softmax(q . keys * scale + bias) over the keys that may be seen (bias None hides one)."""
    seen = [j for j, b in enumerate(bias) if b is not None]
    scores = [float(np.dot(q, keys[j])) * scale + bias[j] for j in seen]
    if not scores or max(scores) == -INF:
        return np.zeros(values.shape[-1])
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    return sum(w * values[j] for w, j in zip(weights, seen, strict=True)) / sum(weights)


def reference(q, k, v, bias_of, scale=None):
    """Attention in plain loops; ``bias_of(b, h, i, j)`` is None for a hidden key."""
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    batch, heads, steps, width = q.shape
    group = heads // k.shape[1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    out = np.zeros((batch, heads, steps, v.shape[-1]))
    for b, h, i in np.ndindex(batch, heads, steps):
        bias = [bias_of(b, h, i, j) for j in range(k.shape[2])]
        out[b, h, i] = one_query(q[b, h, i], k[b, h // group], v[b, h // group], bias, scale)
    return out


def make(batch=2, heads=4, key_heads=2, steps=3, keys=5, width=8, value_width=6, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads, steps, width), (batch, key_heads, keys, width), (batch, key_heads, keys, value_width))
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)


def close(result, want):
    assert result.shape == want.shape
    assert np.allclose(result, want, rtol=1e-6, atol=1e-7)


def test_plain_and_scaled():
    q, k, v = make()
    close(attention(q, k, v), reference(q, k, v, lambda *_: 0.0))
    close(attention(q, k, v, scale=0.1), reference(q, k, v, lambda *_: 0.0, 0.1))
    close(attention(q, k, v, scale=0.0), np.repeat(np.broadcast_to(v.mean(2, keepdims=True, dtype=np.float64), (2, 2, 3, 6)), 2, axis=1))


@pytest.mark.parametrize(("steps", "keys"), [(3, 5), (5, 5), (5, 3), (1, 4)])
def test_causal_counts_from_the_end(steps, keys):
    q, k, v = make(steps=steps, keys=keys)
    close(attention(q, k, v, causal=True), reference(q, k, v, lambda b, h, i, j: 0.0 if j <= i + keys - steps else None))


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (2, 1, 1, 5), (4, 3, 1), (2, 4, 3, 5), ()])
def test_masks(shape):
    q, k, v = make()
    rng = np.random.default_rng(7)
    seen = rng.random(shape) < 0.6
    full = np.broadcast_to(seen, (2, 4, 3, 5))
    close(attention(q, k, v, mask=np.asarray(seen)), reference(q, k, v, lambda *at: 0.0 if full[at] else None))
    added = np.where(rng.random(shape) < 0.3, -INF, rng.standard_normal(shape)).astype(np.float32)
    wide = np.broadcast_to(added, (2, 4, 3, 5))
    close(attention(q, k, v, mask=added, causal=True), reference(q, k, v, lambda b, h, i, j: float(wide[b, h, i, j]) if j <= i + 2 else None))


def test_past_is_put_in_front():
    q, k, v = make(keys=7, steps=3)
    result = attention(q, k[:, :, 4:], v[:, :, 4:], past_k=k[:, :, :4], past_v=v[:, :, :4], causal=True)
    assert np.array_equal(result, attention(q, k, v, causal=True))
    empty = attention(q, k, v, past_k=k[:, :, :0], past_v=v[:, :, :0])
    assert np.array_equal(empty, attention(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_length(causal):
    q, k, v = make(keys=6)
    for length in (0, 1, 3, 6):
        def bias(b, h, i, j, length=length):
            return 0.0 if j < length and (not causal or j <= i + length - 3) else None

        want = reference(q, k, v, bias)
        for dtype in (np.int64, np.int32, np.uint8):
            close(attention(q, k, v, length=np.asarray(length, dtype), causal=causal), want)
    lengths = np.int64([2, 5])
    close(
        attention(q, k, v, length=lengths, causal=causal),
        reference(q, k, v, lambda b, h, i, j: 0.0 if j < lengths[b] and (not causal or j <= i + lengths[b] - 3) else None),
    )


def test_any_length_is_allowed():
    q, k, v = make()
    assert np.array_equal(attention(q, k, v, length=np.int64(99)), attention(q, k, v))
    assert np.array_equal(attention(q, k, v, length=np.int64(2**63 - 1), causal=True), attention(q, k, v))
    for length in (-1, -(2**63)):
        assert not attention(q, k, v, length=np.int64(length), causal=True).any()


def test_decode_equals_prefill():
    q, k, v = make(heads=2, steps=4, keys=4, batch=1)
    prefill = attention(q, k, v, causal=True)
    capacity = np.full((1, 2, 9, 8), NAN, np.float32), np.full((1, 2, 9, 6), NAN, np.float32)
    for t in range(4):
        capacity[0][:, :, t], capacity[1][:, :, t] = k[:, :, t], v[:, :, t]
        step = attention(q[:, :, t : t + 1], *capacity, length=np.int64(t + 1), causal=True)
        close(step, prefill[:, :, t : t + 1].astype(np.float64))


def test_masked_rows_are_zero():
    q, k, v = make()
    assert not attention(q, k, v, mask=np.zeros((3, 5), np.bool_)).any()
    assert not attention(q, k, v, mask=np.full((3, 5), -INF, np.float32)).any()
    mask = np.ones((3, 5), np.bool_)
    mask[1] = False
    result = attention(q, k, v, mask=mask)
    assert not result[:, :, 1].any() and result[:, :, [0, 2]].all()


def test_special_values():
    q, k, v = make(batch=1, heads=1, key_heads=1)
    nan_key = k.copy()
    nan_key[0, 0, 4] = NAN
    assert np.isnan(attention(q, nan_key, v)).all()
    hidden = np.ones(5, np.bool_)
    hidden[4] = False
    assert np.array_equal(attention(q, nan_key, v, mask=hidden), attention(q, k, v, mask=hidden))
    big = attention(np.full((1, 2), 1e18, np.float32), np.float32([[1e18, 1e18], [0, 0]]), np.float32([[1], [2]]))
    assert big.tolist() == [[1.0]]
    infinite = attention(np.float32([[1, 0]]), np.float32([[INF, 1], [1, 1]]), np.float32([[1], [2]]))
    assert np.isnan(infinite).all()


def test_ranks():
    q, k, v = make(batch=1)
    full = attention(q, k, v, causal=True)
    assert np.array_equal(attention(q[0], k[0], v[0], causal=True), full[0])
    assert np.array_equal(attention(q[0, 1], k[0, 0], v[0, 0], causal=True), full[0, 1])
    assert np.array_equal(attention(q[0, 1], k[0, 0], v[0, 0], length=np.int64(2)), attention(q, k, v, length=np.int64(2))[0, 1])


def test_f16_rounds_once():
    q, k, v = (t.astype(np.float16) for t in make())
    want = attention(*(t.astype(np.float64) for t in (q, k, v)))
    assert np.array_equal(attention(q, k, v), want.astype(np.float16))


@pytest.mark.parametrize("sizes", [{"keys": 0}, {"steps": 0}, {"batch": 0}, {"width": 0}, {"value_width": 0}, {"heads": 0, "key_heads": 0}])
@pytest.mark.parametrize("causal", [False, True])
def test_empty(sizes, causal):
    q, k, v = make(**sizes)
    result = attention(q, k, v, causal=causal)
    assert result.shape == (*q.shape[:-1], v.shape[-1])
    assert np.isfinite(result).all()
    if "keys" in sizes:
        assert not result.any()


def infer(types, **attributes):
    named = {n: t if isinstance(t, TensorType) else TensorType(f32, t) for n, t in types.items()}
    return attention.infer(list(named.values()), list(named), attributes)[0]


def test_types():
    qkv = {"q": (B, 8, S, 64), "k": (B, 2, T, 64), "v": (B, 2, T, 32)}
    result = TensorType(f32, (B, 8, S, 32))
    assert infer(qkv) == result
    assert infer({**qkv, "mask": TensorType(boolean, (B, 1, S, T))}) == result
    assert infer({**qkv, "mask": (S, P + T), "past_k": (B, 2, P, 64), "past_v": (B, 2, P, 32)}) == result
    assert infer({**qkv, "length": TensorType(i64, (B,))}, causal=True) == result
    assert infer({"q": (2 * H, S, 64), "k": (H, T, 64), "v": (H, T, 64)}) == TensorType(f32, (2 * H, S, 64))
    assert infer({"q": (H, S, 64), "k": (H, T, 64), "v": (H, T, 64)}) == TensorType(f32, (H, S, 64))
    unknown = (UNKNOWN_DIM,) * 4
    assert infer({"q": unknown, "k": unknown, "v": unknown}).shape == unknown


QKV = {"q": (B, 8, S, 64), "k": (B, 2, T, 64), "v": (B, 2, T, 32)}


@pytest.mark.parametrize(
    ("change", "message", "operand"),
    [
        ({"q": (64,)}, "rank 2 to 4", "q"),
        ({"k": (2, T, 64)}, "rank 4", "k"),
        ({"k": (B, 3, T, 64), "v": (B, 3, T, 32)}, "8 query heads can't be shared out among 3 key heads", "k"),
        ({"k": (B, 2, T, 32)}, r"different last dimensions.*\(64 and 32\)", "k"),
        ({"v": (B, 2, S, 32)}, r"different lengths.*\(T and S\)", "v"),
        ({"v": (B, 1, T, 32)}, "different numbers of heads", "v"),
        ({"k": (1, 2, T, 64)}, r"different batch dimensions.*\(B and 1\)", "k"),
        ({"v": TensorType(f16, (B, 2, T, 32))}, "element types differ", "v"),
        ({"past_k": (B, 2, P, 64)}, "'past_k' is given without 'past_v'", "past_k"),
        ({"past_k": (B, 2, P, 32), "past_v": (B, 2, P, 32)}, "next to last axis only", "past_k"),
        ({"past_k": (B, 2, P, 64), "past_v": (B, 2, S, 32)}, "past_k and past_v have different lengths", "past_v"),
        ({"mask": (T, S)}, r"must broadcast to f32\[B, 8, S, T\], found f32\[T, S\]", "mask"),
        ({"mask": (1, B, 8, S, T)}, "must broadcast", "mask"),
        ({"mask": TensorType(f16, (S, T))}, "expected a mask of bool or f32", "mask"),
        ({"mask": TensorType(i64, (S, T))}, "expected a mask of bool or f32", "mask"),
        ({"length": TensorType(i64, (S,))}, r"length of shape \[\] or \[B\]", "length"),
        ({"length": (B,)}, "a tensor of integers", 3),
    ],
)
def test_errors(change, message, operand):
    with pytest.raises(TypeProblem, match=message) as caught:
        infer({**QKV, **change})
    assert caught.value.operand == operand


def test_scale_must_be_finite():
    with pytest.raises(TypeProblem, match="scale="):
        infer(QKV, scale=NAN)
