"""softmax, log_softmax, rmsnorm, layernorm, l2_normalize."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dialects.graph.normalization import l2_normalize, layernorm, log_softmax, rmsnorm, softmax
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import TypeProblem
from ir.types import TensorType, f16, f32

B, D = symbol("B"), symbol("D")
INF, NAN = np.inf, np.nan
ALL = (softmax, log_softmax, rmsnorm, layernorm, l2_normalize)


def test_softmax_values():
    x = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
    wide = np.exp(x.astype(np.float64))
    for axis in (0, 1, 2, -1):
        want = wide / wide.sum(axis, keepdims=True)
        assert np.allclose(softmax(x, axis=axis), want, rtol=1e-7)
        assert np.allclose(log_softmax(x, axis=axis), np.log(want), rtol=1e-6, atol=1e-7)


def test_softmax_rounds_f16_once():
    x = np.linspace(-3, 3, 50).astype(np.float16)
    wide = np.exp(x.astype(np.float64))
    assert np.array_equal(softmax(x), (wide / wide.sum()).astype(np.float16))


@pytest.mark.parametrize(
    ("row", "want"),
    [
        ([3e38, -3e38], [1, 0]),
        ([3e38, 3e38], [0.5, 0.5]),
        ([-INF, 0.0], [0, 1]),
        ([-INF, -INF], [NAN, NAN]),
        ([INF, 0.0], [NAN, NAN]),
        ([NAN, 0.0], [NAN, NAN]),
        ([0.0, NAN], [NAN, NAN]),
        ([-1e30], [1]),
    ],
)
def test_softmax_special_values(row, want):
    x = np.float32([row])
    assert np.array_equal(softmax(x), np.float32([want]), equal_nan=True)
    with np.errstate(divide="ignore"):
        expected = np.log(np.float32([want])) if row != [3e38, -3e38] else np.float32([[0, -INF]])
    assert np.array_equal(log_softmax(x), expected, equal_nan=True)


def test_log_softmax_of_rare_elements():
    assert log_softmax(np.float32([0.0, -200.0])).tolist() == [0.0, -200.0]


def test_rmsnorm():
    x = np.random.default_rng(2).standard_normal((3, 8)).astype(np.float32)
    w = np.random.default_rng(3).standard_normal(8).astype(np.float32)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    assert np.array_equal(rmsnorm(x), want.astype(np.float32))
    assert np.array_equal(rmsnorm(x, weight=w), (want * w).astype(np.float32))
    assert not np.array_equal(rmsnorm(x, eps=0.5), rmsnorm(x))


def test_rmsnorm_special_values():
    zeros = np.zeros((1, 4), np.float32)
    assert rmsnorm(zeros).tolist() == [[0, 0, 0, 0]]
    assert np.isnan(rmsnorm(zeros, eps=0)).all()
    assert np.array_equal(rmsnorm(np.float32([INF, 1, -2])), np.float32([NAN, 0, -0.0]), equal_nan=True)
    assert np.isnan(rmsnorm(np.float32([NAN, 1]))).all()
    assert rmsnorm(np.float16([60000, 60000])).tolist() == [1, 1]  # squares overflow f16
    assert rmsnorm(np.float32([1e20, 1e20])).tolist() == [1, 1]  # squares overflow f32


def test_layernorm():
    x = np.random.default_rng(4).standard_normal((3, 8)).astype(np.float32)
    w, b = np.random.default_rng(5).standard_normal((2, 8)).astype(np.float32)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    assert np.allclose(layernorm(x), want, rtol=1e-6, atol=1e-7)
    assert np.allclose(layernorm(x, weight=w), want * w, rtol=1e-6, atol=1e-7)
    assert np.allclose(layernorm(x, weight=w, bias=b), want * w + b, rtol=1e-6, atol=1e-7)
    assert np.allclose(layernorm(x, bias=b), want + b, rtol=1e-6, atol=1e-7)


def test_layernorm_cancellation():
    x = (1e4 + np.arange(16) * 1e-2).astype(np.float32)
    wide = x.astype(np.float64)
    want = (wide - wide.mean()) / wide.std()
    assert np.abs(layernorm(x, eps=0) - want).max() < 1e-6


def test_layernorm_of_constant_rows():
    x = np.full((2, 5), 0.1, np.float32)
    assert np.abs(layernorm(x)).max() < 1e-9
    assert np.isnan(layernorm(np.full((1, 4), 2, np.float32), eps=0)).all()
    b = np.float32([1, 2, 3, 4])
    assert layernorm(np.full((1, 4), 2, np.float32), bias=b).tolist() == [[1, 2, 3, 4]]
    assert np.isnan(layernorm(np.float32([INF, 1]))).all()


def test_l2_normalize():
    assert l2_normalize(np.float32([[3, 4], [0, 0]])).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]
    assert l2_normalize(np.float32([[3], [4]]), axis=0).ravel().tolist() == [np.float32(0.6), np.float32(0.8)]
    assert l2_normalize(np.float32([1e-13])).tolist() == [np.float32(np.float64(np.float32(1e-13)) / 1e-12)]
    assert np.isnan(l2_normalize(np.float32([0, 0]), eps=0)).all()
    assert np.isnan(l2_normalize(np.float32([NAN, 0]))).all()
    assert np.array_equal(l2_normalize(np.float32([INF, 1])), np.float32([NAN, 0]), equal_nan=True)
    assert l2_normalize(np.float16([30000, 40000])).tolist() == [np.float16(0.6), np.float16(0.8)]


@pytest.mark.parametrize("definition", ALL)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_empty(definition, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert definition(np.zeros(shape, np.float32)).shape == shape


@pytest.mark.parametrize("definition", ALL)
def test_types(definition):
    type_ = TensorType(f32, (B, UNKNOWN_DIM, D))
    assert definition.infer([type_], ["x"], {}) == (type_,)
    assert definition.composite
    with pytest.raises(TypeProblem):
        definition.infer([TensorType(f32, ())], ["x"], {})


@pytest.mark.parametrize("definition", [softmax, log_softmax, l2_normalize])
def test_axis_errors(definition):
    with pytest.raises(TypeProblem, match="axis=2 is out of range") as caught:
        definition.infer([TensorType(f32, (B, D))], ["x"], {"axis": 2})
    assert caught.value.attribute == "axis"


@pytest.mark.parametrize("definition", [rmsnorm, layernorm, l2_normalize])
@pytest.mark.parametrize("eps", [-1e-6, INF, NAN])
def test_eps_errors(definition, eps):
    with pytest.raises(TypeProblem, match="eps=") as caught:
        definition.infer([TensorType(f32, (B, D))], ["x"], {"eps": eps})
    assert caught.value.attribute == "eps"


@pytest.mark.parametrize(("definition", "name"), [(rmsnorm, "weight"), (layernorm, "weight"), (layernorm, "bias")])
def test_weight_errors(definition, name):
    x = TensorType(f32, (B, D))
    assert definition.infer([x, TensorType(f32, (D,))], ["x", name], {}) == (x,)
    for wrong in ((B,), (1, D), (), (1,)):
        with pytest.raises(TypeProblem, match=rf"expected {name} f32\[D\]") as caught:
            definition.infer([x, TensorType(f32, wrong)], ["x", name], {})
        assert caught.value.operand == name
    with pytest.raises(TypeProblem, match="element types differ"):
        definition.infer([x, TensorType(f16, (D,))], ["x", name], {})
