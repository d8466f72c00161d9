"""Unary functions: accuracy in ulp, special values, wrapping."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from dialects.graph import _special
from dialects.graph import elementwise as e
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import OpDef, TypeProblem
from ir.types import TensorType, boolean, f32, i32

NAN, INF = np.nan, np.inf
B = symbol("B")


def same(found: np.ndarray, expected: list[float]) -> None:
    """Equal values, equal signs of zeros, NaN where NaN is expected."""
    wanted = np.array(expected, found.dtype)
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    assert (np.signbit(found) == np.signbit(wanted))[numbers].all(), (found, wanted)


OPS = [v for v in vars(e).values() if isinstance(v, OpDef)]
CLASSIFY = (e.isnan, e.isinf, e.isfinite)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_shape_and_type(op: OpDef) -> None:
    for shape in ((), (0, 3), (2, 3)):
        result = op(np.ones(shape, np.float32))
        assert isinstance(result, np.ndarray) and result.shape == shape
        assert result.dtype == (np.bool_ if op in CLASSIFY else np.float32)
    assert op(np.ones(3, ml_dtypes.bfloat16)).shape == (3,)
    found = op.infer([TensorType(f32, (B, UNKNOWN_DIM))], ["x"], {})
    assert found == (TensorType(boolean if op in CLASSIFY else f32, (B, UNKNOWN_DIM)),)
    with pytest.raises(TypeProblem, match="expected a tensor of"):
        op.infer([TensorType(boolean, (B,))], ["x"], {})
    assert op.elementwise and op.pure


def test_integers_where_they_make_sense() -> None:
    numeric = {"neg", "abs", "sign", "square"}
    for op in OPS:
        if op.name in numeric:
            op.infer([TensorType(i32, (B,))], ["x"], {})
        else:
            with pytest.raises(TypeProblem, match="expected a tensor of floats, found i32"):
                op.infer([TensorType(i32, (B,))], ["x"], {})


FUNCTIONS: list[tuple[OpDef, Callable[[float], float], float, float]] = [
    (e.exp, math.exp, -103, 88.7),
    (e.expm1, math.expm1, -20, 88.7),
    (e.log, math.log, 1e-38, 1e38),
    (e.log1p, math.log1p, -0.999, 100),
    (e.sqrt, math.sqrt, 0, 1e38),
    (e.rsqrt, lambda v: 1 / math.sqrt(v), 1e-38, 1e38),
    (e.reciprocal, lambda v: 1 / v, 0.01, 1000),
    (e.square, lambda v: v * v, -100, 100),
    (e.sin, math.sin, -1e5, 1e5),
    (e.cos, math.cos, -1e5, 1e5),
    (e.tan, math.tan, -1.5, 1.5),
    (e.tanh, math.tanh, -10, 10),
    (e.erf, math.erf, -5, 5),
]


@pytest.mark.parametrize("op, function, low, high", FUNCTIONS, ids=lambda v: getattr(v, "name", ""))
def test_accuracy(op: OpDef, function: Callable[[float], float], low: float, high: float) -> None:
    x = np.random.default_rng(3).uniform(low, high, 2000)
    x = np.concatenate([x[(x > low) & (x < high)], [v for v in (1e-30, 1e-10, 1e-4, -1e-4, -1e-10) if low < v < high]])
    for dtype, ulps in ((np.float64, 4), (np.float32, 1)):
        narrow = x.astype(dtype)
        exact = np.array([function(float(v)) for v in narrow])
        error = np.abs(op(narrow).astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(dtype)).astype(np.float64)
        assert error.max() <= ulps


def test_erf_and_erfc_to_full_accuracy() -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([np.linspace(-28, 28, 30001), rng.normal(size=10000), 10.0 ** rng.uniform(-300, 0, 1000), [0.46875, -0.46875, 4, -4]])
    for function, exact in ((_special.erf, math.erf), (_special.erfc, math.erfc)):
        wanted = np.array([exact(v) for v in x])
        with np.errstate(all="ignore"):
            found = function(x)
        normal = np.abs(wanted) > 1e-300
        assert (np.abs(found - wanted)[normal] <= 1e-15 * np.abs(wanted)[normal]).all()
        assert (np.abs(found - wanted)[~normal] <= 1e-305).all()


def test_erf_special_values() -> None:
    same(e.erf(np.float64([0.0, -0.0, INF, -INF, NAN])), [0.0, -0.0, 1, -1, NAN])
    assert e.erf(np.float32(1e-21)) == np.float32(2 / math.sqrt(math.pi) * 1e-21)
    with np.errstate(all="ignore"):
        same(_special.erfc(np.float64([0.0, -0.0, INF, -INF, NAN])), [1, 1, 0.0, 2, NAN])
    assert e.erf(np.zeros((0,), np.float32)).shape == (0,)


SPECIAL: list[tuple[OpDef, list[float], list[float]]] = [
    (e.neg, [0.0, -0.0, INF, NAN], [-0.0, 0.0, -INF, NAN]),
    (e.abs_, [-0.0, -INF, NAN, -2], [0.0, INF, NAN, 2]),
    (e.sign, [-0.0, 0.0, -3, 3, INF, NAN], [-0.0, 0.0, -1, 1, 1, NAN]),
    (e.floor, [-0.0, 0.5, -0.5, INF, NAN], [-0.0, 0.0, -1, INF, NAN]),
    (e.ceil, [-0.0, 0.5, -0.5, -INF, NAN], [-0.0, 1, -0.0, -INF, NAN]),
    (e.round_, [0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5, INF, NAN], [0.0, 2, 2, -0.0, -2, 8388608, INF, NAN]),
    (e.trunc, [1.7, -1.7, -0.5, INF, NAN], [1, -1, -0.0, INF, NAN]),
    (e.exp, [-INF, INF, NAN, 0.0, 88.73, -104], [0.0, INF, NAN, 1, INF, 0.0]),
    (e.expm1, [-0.0, -INF, INF, NAN], [-0.0, -1, INF, NAN]),
    (e.log, [0.0, -0.0, INF, -1, NAN, 1], [-INF, -INF, INF, NAN, NAN, 0.0]),
    (e.log1p, [-0.0, -1, -2, INF, NAN], [-0.0, -INF, NAN, INF, NAN]),
    (e.sqrt, [-0.0, INF, -1, NAN], [-0.0, INF, NAN, NAN]),
    (e.rsqrt, [0.0, -0.0, INF, -1, NAN, 4], [INF, -INF, 0.0, NAN, NAN, 0.5]),
    (e.reciprocal, [0.0, -0.0, INF, -INF, NAN], [INF, -INF, 0.0, -0.0, NAN]),
    (e.square, [-0.0, -INF, NAN, 1e20], [0.0, INF, NAN, INF]),
    (e.sin, [-0.0, INF, NAN], [-0.0, NAN, NAN]),
    (e.cos, [0.0, -INF, NAN], [1, NAN, NAN]),
    (e.tan, [-0.0, INF, NAN], [-0.0, NAN, NAN]),
    (e.tanh, [-0.0, INF, -INF, NAN, 1e-20], [-0.0, 1, -1, NAN, 1e-20]),
]


@pytest.mark.parametrize("op, x, expected", SPECIAL, ids=lambda v: getattr(v, "name", ""))
def test_special_values(op: OpDef, x: list[float], expected: list[float]) -> None:
    same(op(np.float32(x)), expected)


def test_exp_overflow_point_and_denormals() -> None:
    assert np.isfinite(e.exp(np.float32(88.72)))
    assert e.exp(np.float32(-103.9)) == np.float32(2.0**-149)
    assert e.exp(np.float32(-87.4)) < np.finfo(np.float32).tiny


def test_rsqrt_of_a_denormal() -> None:
    x = np.float32(1e-42)
    assert e.rsqrt(x) == np.float32(1 / math.sqrt(float(x)))


def test_large_angles() -> None:
    x = np.float32([131071, 1e6, 1e10])
    np.testing.assert_array_equal(e.sin(x), np.float32([math.sin(float(v)) for v in x]))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integers_wrap(dtype: type) -> None:
    low = np.iinfo(dtype).min
    x = np.array([low, -3, 0, 3], dtype)
    assert e.neg(x).tolist() == [low, 3, 0, -3]
    assert e.abs_(x).tolist() == [low, 3, 0, 3]
    assert e.sign(x).tolist() == [-1, -1, 0, 1]
    assert e.square(x).tolist() == [0, 9, 0, 9]


def test_unsigned() -> None:
    x = np.uint8([0, 1, 200])
    assert e.neg(x).tolist() == [0, 255, 56]
    assert e.abs_(x).tolist() == [0, 1, 200]
    assert e.sign(x).tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_classification(dtype: type) -> None:
    x = np.array([NAN, INF, -INF, 0.0, -1]).astype(dtype)
    assert e.isnan(x).tolist() == [True, False, False, False, False]
    assert e.isinf(x).tolist() == [False, True, True, False, False]
    assert e.isfinite(x).tolist() == [False, False, False, True, True]
