"""sort, argsort, topk."""

from __future__ import annotations

import functools
import math

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.sorting import argsort, sort, topk
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import ExecutionError, TypeProblem
from ir.types import TensorType, boolean, f32, i64

B, S = symbol("B"), symbol("S")
NAN, INF = math.nan, math.inf
FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
DTYPES = [*FLOATS, np.int64, np.int32, np.int16, np.int8, np.uint8]


def compare(a, b):
    """-1, 0 or 1 in the documented order."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) - math.isnan(b)
    return (a > b) - (a < b)


def expected_order(values, descending=False):
    key = functools.cmp_to_key(lambda i, j: (compare(values[j], values[i]) if descending else compare(values[i], values[j])) or i - j)
    return sorted(range(len(values)), key=key)


def samples(dtype):
    rng = np.random.default_rng(7)
    for length in (0, 1, 2, 3, 5, 16, 17, 33, 100, 700):
        x = rng.integers(0, 7, length).astype(np.float64)
        if dtype in FLOATS:
            x = np.where(rng.random(length) < 0.2, NAN, x - 3)
            x = np.where(rng.random(length) < 0.1, rng.choice([INF, -INF, 0.0, -0.0], length), x)
        yield x.astype(dtype)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_order(dtype, descending):
    for x in samples(dtype):
        want = expected_order([float(v) for v in x], descending)
        order = argsort(x, descending=descending)
        assert order.dtype == np.int64 and order.tolist() == want
        found = sort(x, descending=descending)
        assert found.dtype == dtype and found.tobytes() == x[want].tobytes()
        for k in {0, 1, len(x) // 2, len(x)} if len(x) else {0}:
            values, indices = topk(x, k=k, largest=descending)
            assert indices.dtype == np.int64 and indices.tolist() == want[:k]
            assert values.dtype == dtype and values.tobytes() == x[want[:k]].tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_axes(axis):
    x = np.random.default_rng(8).integers(0, 4, (3, 4, 5)).astype(np.int32)
    assert np.array_equal(sort(x, axis=axis), np.sort(x, axis=axis))
    assert np.array_equal(argsort(x, axis=axis), np.argsort(x, axis=axis, kind="stable"))
    assert np.array_equal(sort(x, axis=axis, descending=True), np.flip(np.sort(x, axis=axis), axis))
    values, indices = topk(x, k=2, axis=axis)
    assert values.shape[axis] == indices.shape[axis] == 2
    assert np.array_equal(values, np.take_along_axis(x, indices, axis=axis))
    assert np.array_equal(values, np.take(np.flip(np.sort(x, axis=axis), axis), [0, 1], axis=axis))


def test_ties_and_nan():
    values, indices = topk(np.array([1, 5, NAN, 5, NAN, 0], np.float32), k=4)
    assert indices.tolist() == [2, 4, 1, 3] and values.tolist()[2:] == [5, 5]
    _, indices = topk(np.array([2, 1, NAN, 1], np.float32), k=4, largest=False)
    assert indices.tolist() == [1, 3, 0, 2]
    assert argsort(np.array([0.0, -0.0, 0.0], np.float32), descending=True).tolist() == [0, 1, 2]


def test_payloads_stay():
    x = np.array([0x7FC00002, 0x3F800000, 0xFFC00001, 0x80000000], np.uint32).view(np.float32)
    assert sort(x).view(np.uint32).tolist() == [0x80000000, 0x3F800000, 0x7FC00002, 0xFFC00001]


def test_empty():
    x = np.zeros((2, 0), np.float32)
    assert sort(x).shape == argsort(x).shape == (2, 0)
    assert sort(x, axis=0, descending=True).shape == (2, 0)
    values, indices = topk(x, k=0)
    assert values.shape == indices.shape == (2, 0)
    assert topk(np.zeros((2, 3)), k=0)[0].shape == (2, 0)


def test_inference():
    def infer(definition, have, /, **attributes):
        type_ = have if isinstance(have, TensorType) else TensorType(f32, have)
        return definition.infer([type_], ["x"], attributes)

    assert infer(topk, (B, S), k=3) == (TensorType(f32, (B, 3)), TensorType(i64, (B, 3)))
    assert infer(topk, (UNKNOWN_DIM, 4), k=2, axis=0) == (TensorType(f32, (2, 4)), TensorType(i64, (2, 4)))
    assert infer(sort, (B, UNKNOWN_DIM)) == (TensorType(f32, (B, UNKNOWN_DIM)),)
    assert infer(argsort, (B, S), axis=0) == (TensorType(i64, (B, S)),)
    for k in (5, -1):
        with pytest.raises(TypeProblem) as caught:
            infer(topk, (B, 4), k=k)
        assert caught.value.attribute == "k"
    for definition, attributes in [(sort, {}), (argsort, {}), (topk, {"k": 1})]:
        for have, axis in [((), -1), ((2,), 1)]:
            with pytest.raises(TypeProblem) as caught:
                infer(definition, have, axis=axis, **attributes)
            assert caught.value.attribute == "axis"
        with pytest.raises(TypeProblem, match="numbers"):
            infer(definition, TensorType(boolean, (2,)), **attributes)


def test_k_too_large_at_run_time():
    types = [TensorType(f32, (3,)), TensorType(i64, (3,))]
    with pytest.raises(ExecutionError, match=r"k=3.* has 2 elements"):
        topk.evaluate([np.zeros(2)], ["x"], {"k": 3}, types, [f32])
