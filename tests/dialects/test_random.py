"""The generator, uniform, multinomial, top_p."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from dialects.graph import _random
from dialects.graph.random import multinomial, top_p, uniform
from ir.dims import UNKNOWN_DIM, symbol
from ir.inference import infer_module
from ir.interpreter import Interpreter
from ir.opdef import ExecutionError, TypeProblem, check_attributes
from ir.parser import parse_module
from ir.types import TensorType, bf16, f16, f32, f64, i32, i64

B, S = symbol("B"), symbol("S")
SEED = TensorType(i64, ())
MASK = 2**64 - 1
G = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def number(seed, counter):
    return (mix((mix((seed + G) & MASK) + (counter + 1) * G) & MASK) >> 11) / 2**53


def infer(definition, *types, **attributes):
    names = [o.name for o in definition.required_operands]
    return definition.infer(list(types), names, check_attributes(definition, attributes))[0]


# -- the generator -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 42, -1, 2**63 - 1, -(2**63)])
def test_generator_is_what_the_page_says(seed):
    counters = np.array([0, 1, 2, 1000, 2**40, 2**63 - 1], np.uint64)
    assert _random.uniform(seed, counters).tolist() == [number(seed, int(c)) for c in counters]
    assert _random.uniform(np.int64(seed), counters[:0]).shape == (0,)
    assert _random.uniform(np.array(seed), np.zeros((), np.int64)).shape == ()


def test_generator_matches_splitmix64():
    # Reference outputs of splitmix64 started at 0: state += G, output mix(state).
    assert mix(G) == 0xE220A8397B1DCDAF and mix(2 * G & MASK) == 0x6E789E6AA1B965F4


def test_negative_seeds_do_not_depend_on_the_width():
    want = uniform(np.int64(-5), shape=(3,))
    for dtype in (np.int32, np.int16, np.int8):
        assert uniform(dtype(-5), shape=(3,)).tolist() == want.tolist()
    assert uniform(np.uint8(251), shape=(3,)).tolist() != want.tolist()


def test_numbers_look_random():
    u = _random.uniform(7, np.arange(200_000))
    assert u.min() >= 0 and u.max() < 1 and len(set(u.tolist())) == len(u)
    assert abs(u.mean() - 0.5) < 4 / math.sqrt(12 * len(u))
    counts = np.histogram(u, 64, (0, 1))[0]
    chi = ((counts - len(u) / 64) ** 2 / (len(u) / 64)).sum()
    assert 25 < chi < 120  # 63 degrees of freedom
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(u, _random.uniform(8, np.arange(200_000)))[0, 1]) < 0.01


@pytest.mark.parametrize(
    ("dtype", "numpy_dtype", "bits"),
    [(f64, np.float64, 53), (f32, np.float32, 24), (f16, np.float16, 11), (bf16, ml_dtypes.bfloat16, 8)],
)
def test_uniform(dtype, numpy_dtype, bits):
    u = uniform(np.int64(3), shape=(50, 40), dtype=dtype)
    assert u.dtype == numpy_dtype and u.shape == (50, 40)
    want = [math.floor(number(3, c) * 2**bits) / 2**bits for c in range(2000)]
    assert u.astype(np.float64).reshape(-1).tolist() == want
    assert u.astype(np.float64).max() < 1
    assert uniform(np.int64(3), shape=(), dtype=dtype).shape == ()
    assert uniform(np.int64(3), shape=(2, 0), dtype=dtype).shape == (2, 0)


def test_uniform_is_cut_off_not_rounded():
    seed = next(s for s in range(10_000) if number(s, 0) > 1 - 2**-12)
    assert uniform(np.int64(seed), shape=(1,), dtype=f16).astype(float)[0] == 1 - 2**-11


def test_uniform_infers():
    assert infer(uniform, SEED, shape=(B, 4)) == TensorType(f32, (B, 4))
    assert infer(uniform, TensorType(i32, ()), shape=(), dtype=f16) == TensorType(f16, ())
    for attributes in ({"shape": (-1,)}, {"shape": (UNKNOWN_DIM,)}, {"dtype": i32}):
        with pytest.raises(TypeProblem) as caught:
            infer(uniform, SEED, **{"shape": (2,), **attributes})
        assert caught.value.attribute in attributes
    for seed in (TensorType(i64, (1,)), TensorType(f32, ())):
        with pytest.raises(TypeProblem):
            infer(uniform, seed, shape=(2,))


def test_uniform_with_symbols_runs():
    module = parse_module("graph @main(%s: i64[], %x: f32[B]) {\n  %u = uniform(%s, shape=[B, 2])\n  return %u, %x\n}\n")
    infer_module(module)
    found, _ = Interpreter(module).run(module.graphs["main"], [np.int64(9), np.zeros(3, np.float32)])
    assert found.tolist() == uniform(np.int64(9), shape=(3, 2)).tolist()


# -- multinomial -------------------------------------------------------------------------------------------------------


def choose(weights, u):
    """The definition, in exact steps of float64."""
    total = 0.0
    for w in weights:
        total += w
    running = 0.0
    for i, w in enumerate(weights):
        running += w
        if u * total < running:
            return i
    raise AssertionError


def test_multinomial_is_what_the_page_says():
    probs = np.random.default_rng(0).random((2, 3, 5)).astype(np.float32)
    found = multinomial(probs, np.int64(11), num_samples=4)
    assert found.dtype == np.int64 and found.shape == (2, 3, 4)
    rows = probs.reshape(6, 5).astype(np.float64).tolist()
    want = [[choose(rows[r], number(11, 4 * r + s)) for s in range(4)] for r in range(6)]
    assert found.reshape(6, 4).tolist() == want
    assert multinomial(probs, np.int64(11), num_samples=4).tolist() == found.tolist()
    assert multinomial(probs, np.int64(12), num_samples=4).tolist() != found.tolist()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_multinomial_never_chooses_zeros(dtype):
    probs = np.array([0, 0.25, 0, 0, 0.5, 0, 0.2, 0, 0]).astype(dtype)
    found = multinomial(probs, np.int32(5), num_samples=5000)
    assert set(found.tolist()) == {1, 4, 6}
    one = np.zeros(7).astype(dtype)
    one[3] = 1e-5
    assert set(multinomial(one, np.int32(0), num_samples=100).tolist()) == {3}
    negative_zero = np.array([-0.0, 1, -0.0]).astype(dtype)
    assert set(multinomial(negative_zero, np.int32(0), num_samples=100).tolist()) == {1}


def test_multinomial_follows_the_weights():
    weights = np.array([1, 2, 0, 3, 4], np.float32)  # not normalized
    found = multinomial(weights, np.int64(1), num_samples=50_000)
    counts = np.bincount(found, minlength=5)
    want = 50_000 * weights / 10
    assert counts[2] == 0 and (((counts - want)[want > 0] ** 2 / want[want > 0]).sum() < 25)
    assert multinomial(weights * np.float32(2**-20), np.int64(1), num_samples=500).tolist() == found[:500].tolist()


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-300, 1e300])
def test_multinomial_index_is_valid_at_the_edges(scale):
    for weights in ([1.0], [1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [1.0] * 7):
        found = multinomial(np.array(weights) * scale, np.int64(2), num_samples=2000)
        assert all(weights[i] > 0 for i in found)


def test_multinomial_sums_below_one():
    probs = np.full(1000, np.float32(0.001) * np.float32(1 - 2**-20), np.float32)
    found = multinomial(probs, np.int64(4), num_samples=20_000)
    assert found.min() >= 0 and found.max() < 1000 and len(set(found.tolist())) > 990


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.0, 0.0], "sum of row .1. of probs is 0.0"),
        ([math.nan, 1.0], "is nan"),
        ([math.inf, 1.0], "is inf"),
        ([2.0, -0.5], "element 1 of row .1. of probs is negative: -0.5"),
        ([-1.0, -2.0], "element 0 .* negative"),
        ([-math.inf, 1.0], "negative: -inf"),
    ],
)
def test_multinomial_refuses(row, message):
    with pytest.raises(ExecutionError, match=message):
        multinomial(np.array([[0.5, 0.5], row], np.float32), np.int64(0))
    with pytest.raises(ExecutionError, match=r"probs"):
        multinomial(np.array(row, np.float32), np.int64(0), num_samples=0)


def test_multinomial_empty():
    assert multinomial(np.ones((0, 3), np.float32), np.int64(0), num_samples=2).shape == (0, 2)
    assert multinomial(np.ones((2, 3), np.float32), np.int64(0), num_samples=0).shape == (2, 0)
    with pytest.raises(ExecutionError, match="nothing to choose"):
        multinomial.evaluate([np.ones((2, 0)), np.int64(0)], ["probs", "seed"], {}, [TensorType(i64, (2, 1))], [f32, i64])


def test_multinomial_infers():
    assert infer(multinomial, TensorType(f32, (B, S)), SEED, num_samples=3) == TensorType(i64, (B, 3))
    assert infer(multinomial, TensorType(f16, (UNKNOWN_DIM,)), SEED) == TensorType(i64, (1,))
    for probs, seed, count in [((), SEED, 1), ((2, 0), SEED, 1), ((2,), TensorType(i64, (1,)), 1), ((2,), SEED, -1)]:
        with pytest.raises(TypeProblem):
            infer(multinomial, TensorType(f32, probs), seed, num_samples=count)


# -- top_p -------------------------------------------------------------------------------------------------------------


def kept(row, p):
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    found, total = set(), 0.0
    for i in order:
        found.add(i)
        total += row[i]
        if total >= p:
            break
    return found


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_top_p(dtype, p):
    rng = np.random.default_rng(6)
    x = rng.integers(0, 5, (20, 9)) * rng.random((20, 1))
    x[:, 0] += 0.1
    x = (x / x.sum(axis=1, keepdims=True)).astype(dtype)
    found = top_p(x, p=p)
    assert found.dtype == dtype
    for row, result in zip(x, found, strict=True):
        keep = kept([float(v) for v in row], p)
        want = np.array([row[i] if i in keep else 0 for i in range(9)]).astype(dtype)
        assert result.tobytes() == want.tobytes()


def test_top_p_cases():
    equal = np.full(4, 0.25, np.float32)
    assert top_p(equal, p=0.5).tolist() == [0.25, 0.25, 0, 0]
    assert top_p(equal, p=0.51).tolist() == [0.25, 0.25, 0.25, 0]
    assert top_p(equal, p=1).tolist() == equal.tolist()
    assert top_p(equal, p=0).tolist() == [0.25, 0, 0, 0]
    below = np.array([0.5, 0.25, 0.2], np.float32)
    assert top_p(below, p=1).tolist() == below.tolist()
    with_nan = np.array([0.5, math.nan, 0.25], np.float32)
    assert top_p(with_nan, p=0.1).tobytes() == with_nan.tobytes()
    assert top_p(np.zeros((2, 0), np.float32), p=0.5).shape == (2, 0)
    filtered = top_p(np.array([[0.1, 0.6, 0.3]], np.float32), p=0.8)
    assert set(multinomial(filtered, np.int64(0), num_samples=200).reshape(-1).tolist()) == {1, 2}


def test_top_p_infers():
    assert infer(top_p, TensorType(f32, (B, UNKNOWN_DIM)), p=0.5) == TensorType(f32, (B, UNKNOWN_DIM))
    for probs, p in [((2,), -0.1), ((2,), 1.5), ((2,), math.nan), ((), 0.5)]:
        with pytest.raises(TypeProblem):
            infer(top_p, TensorType(f32, probs), p=p)
