"""sum, mean, variance, prod, cumsum, max, min, argmax, argmin, any, all, logsumexp."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.reduction import all_, any_, argmax, argmin, cumsum, logsumexp, max_, mean, min_, prod, sum_, variance
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import ExecutionError, TypeProblem
from ir.types import TensorType, boolean, f32, i32, i64

B, S = symbol("B"), symbol("S")
NAN, INF = math.nan, math.inf
FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
INTEGERS = [np.int64, np.int32, np.int16, np.int8, np.uint8]


def infer(definition, have, /, **attributes):
    type_ = have if isinstance(have, TensorType) else TensorType(f32, have)
    (result,) = definition.infer([type_], ["x"], attributes)
    return result


def array(*values, dtype=np.float32):
    return np.array(values, dtype)


# -- axes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("definition", [sum_, mean, variance, prod, max_, min_])
def test_axes_and_keepdims(definition):
    reference = {sum_: np.sum, mean: np.mean, variance: np.var, prod: np.prod, max_: np.max, min_: np.min}[definition]
    x = np.random.default_rng(1).standard_normal((2, 3, 4))
    for count in range(4):
        for axes in itertools.permutations(range(-3, 3), count):
            if len({a % 3 for a in axes}) < count:
                continue
            for keepdims in (False, True):
                want = reference(x, axis=axes, keepdims=keepdims)
                found = definition(x, axes=axes, keepdims=keepdims)
                assert found.shape == np.shape(want) == infer(definition, x.shape, axes=axes, keepdims=keepdims).shape
                assert np.allclose(found, want, rtol=1e-14, atol=1e-14)
    assert definition(x).shape == ()
    assert definition(x, keepdims=True).shape == (1, 1, 1)
    assert definition(np.float32(2)).shape == ()
    assert not variance(x, axes=()).any()


def test_axes_of_symbols():
    assert infer(sum_, (B, S, UNKNOWN_DIM), axes=(1,)).shape == (B, UNKNOWN_DIM)
    assert infer(max_, (B, UNKNOWN_DIM), axes=(-1,), keepdims=True).shape == (B, 1)
    assert infer(argmax, (B, S)) == TensorType(i64, (B,))
    assert infer(argmin, (B, S), axis=0, keepdims=True) == TensorType(i64, (1, S))
    assert infer(any_, TensorType(boolean, (B, S))) == TensorType(boolean, ())
    assert infer(logsumexp, (B, S), axis=-2).shape == (S,)
    assert infer(cumsum, (B, UNKNOWN_DIM)).shape == (B, UNKNOWN_DIM)


@pytest.mark.parametrize("definition", [sum_, mean, variance, prod, max_, min_])
@pytest.mark.parametrize("axes", [(2,), (-3,), (0, 0), (1, -1)])
def test_wrong_axes(definition, axes):
    with pytest.raises(TypeProblem) as caught:
        infer(definition, (2, 3), axes=axes)
    assert caught.value.attribute == "axes"


@pytest.mark.parametrize("definition", [argmax, argmin, cumsum, logsumexp])
def test_wrong_axis(definition):
    for have, axis in [((2, 3), 2), ((2, 3), -3), ((), 0), ((), -1)]:
        with pytest.raises(TypeProblem) as caught:
            infer(definition, have, axis=axis)
        assert caught.value.attribute == "axis"


def test_element_types():
    with pytest.raises(TypeProblem, match="a tensor of floats"):
        infer(mean, TensorType(i32, (2,)))
    with pytest.raises(TypeProblem, match="a tensor of numbers"):
        infer(sum_, TensorType(boolean, (2,)))
    with pytest.raises(TypeProblem, match="a tensor of bool"):
        infer(all_, TensorType(i32, (2,)))


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype):
    x = np.random.default_rng(2).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (5, 40), dtype, endpoint=True)
    wide = x.astype(object)
    for definition, want in [(sum_, wide.sum(axis=1)), (prod, wide.prod(axis=1))]:
        found = definition(x, axes=(1,))
        assert found.dtype == dtype
        assert [int(v) for v in found] == [int(np.array(int(w) % 2**64, np.uint64).astype(dtype)) for w in want]
    running = cumsum(x)
    assert running.dtype == dtype and np.array_equal(running, np.cumsum(x, axis=1, dtype=dtype))
    assert np.array_equal(running[:, -1], sum_(x, axes=(1,)))


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_floats_round_once(dtype):
    x = np.random.default_rng(3).standard_normal((4, 300)).astype(dtype)
    exact = [math.fsum(map(float, row)) for row in x]
    assert sum_(x, axes=(1,)).tolist() == np.array(exact).astype(dtype).tolist()
    assert mean(x, axes=(1,)).tolist() == (np.array(exact) / 300).astype(dtype).tolist()
    runs = [[math.fsum(map(float, row[: i + 1])) for i in range(300)] for row in x]
    assert cumsum(x).tolist() == np.array(runs).astype(dtype).tolist()
    assert sum_(x).dtype == mean(x).dtype == prod(x).dtype == cumsum(x).dtype == dtype


def test_long_sums():
    assert sum_(np.ones(2**25, np.float32)) == 2**25
    assert mean(np.ones(2**24 + 3, np.float32)) == 1
    alternating = np.tile(array(1e8, -1e8), 1000)
    assert sum_(np.append(alternating, np.float32(0.5))) == 0.5
    assert mean(array(60000, 60000, 60000, dtype=np.float16)) == 60000  # the sum alone is too large
    assert sum_(array(60000, 60000, dtype=np.float16)) == INF


def test_special_sums():
    for zero in (sum_(array(-0.0, -0.0)), sum_(array(-0.0), axes=()), cumsum(array(-0.0, -0.0)), mean(array(-0.0))):
        assert not zero.any() and not np.signbit(zero).any()
    assert cumsum(array(-0.0, -1.0)).tolist() == [0, -1]
    assert np.isnan(sum_(array(INF, -INF))) and np.isnan(sum_(array(1, NAN)))
    assert sum_(array(INF, 1)) == INF
    assert np.isnan(cumsum(array(1, NAN, 2))).tolist() == [False, True, True]
    assert np.isnan(prod(array(0, INF))) and np.isnan(prod(array(NAN, 0)))
    assert np.signbit(prod(array(-1, 0)))


def test_empty_sums():
    x = np.zeros((2, 0, 3), np.float32)
    assert sum_(x, axes=(1,)).tolist() == [[0] * 3] * 2 and not np.signbit(sum_(x)).any()
    assert prod(x, axes=(1,)).tolist() == [[1] * 3] * 2
    assert np.isnan(mean(x, axes=(1,))).all() and mean(x, axes=(1,)).shape == (2, 3)
    assert np.isnan(variance(x)) and np.isnan(mean(x))
    assert mean(x, axes=(0,)).shape == (0, 3)
    assert cumsum(x, axis=1).shape == (2, 0, 3)
    assert prod(np.zeros(0, np.int8)) == 1


def test_variance():
    x = (1e4 + 1e-2 * np.arange(64)).astype(np.float32)
    want = np.var(x.astype(np.float64))
    assert abs(float(variance(x)) - want) <= want * 2**-23
    for value in (0.1, 1e30, -3.3e-30, 1e4 + 0.01):
        found = variance(np.full(97, value, np.float32))
        assert found >= 0 and found <= (value * 1e-15) ** 2
    assert variance(array(3)) == 0
    assert np.isnan(variance(array(1, INF))) and np.isnan(variance(array(1, NAN)))
    assert variance(array(1, 2, 3, 4)) == 1.25


# -- extremes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 16, 17, 33])
def test_nan_propagates_from_every_place(dtype, length):
    for place in range(length):
        x = np.arange(length).astype(dtype)
        x[place] = NAN
        assert np.isnan(max_(x)) and np.isnan(min_(x))
        assert argmax(x) == argmin(x) == place


@pytest.mark.parametrize("dtype", FLOATS)
def test_signed_zeros(dtype):
    for length in (2, 3, 8, 17):
        for place in range(length):
            x = np.full(length, -0.0).astype(dtype)
            x[place] = 0.0
            assert max_(x) == 0 and not np.signbit(max_(x))
            assert np.signbit(max_(np.delete(x, place)))
            y = np.full(length, 0.0).astype(dtype)
            y[place] = -0.0
            assert min_(y) == 0 and np.signbit(min_(y))
            assert not np.signbit(min_(np.delete(y, place)))
    assert max_(array(-0.0, 1)) == 1 and min_(array(0.0, -1)) == -1
    mixed = np.array([[0.0, -0.0], [-0.0, -0.0], [-1.0, -0.0]]).astype(dtype)
    assert np.signbit(max_(mixed, axes=(1,))).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_extremes_of_all_types(dtype):
    x = np.random.default_rng(4).integers(0, 100, (3, 5)).astype(dtype)
    assert max_(x, axes=(0,)).tolist() == x.max(axis=0).tolist() and max_(x).dtype == dtype
    assert min_(x, axes=(1,)).tolist() == x.min(axis=1).tolist()
    wide = x.astype(np.float64)
    assert argmax(x, axis=0).tolist() == wide.argmax(axis=0).tolist() and argmin(x).tolist() == wide.argmin(axis=1).tolist()
    assert argmax(x).dtype == np.int64


def test_argmax_ties():
    assert argmax(array(1, 3, 3, 2)) == 1 and argmin(array(2, 1, 1)) == 1
    assert argmax(array(-0.0, 0.0)) == 0 and argmin(array(0.0, -0.0)) == 0
    assert argmax(array(1, NAN, 3, NAN)) == 1 and argmax(array(INF, NAN)) == 1 and argmin(array(-INF, NAN)) == 1
    assert argmax(array(5)).shape == () and argmax(np.ones((2, 3)), axis=0, keepdims=True).shape == (1, 3)
    assert argmax(np.zeros((0, 3)), axis=1).shape == (0,)


@pytest.mark.parametrize(("definition", "attributes"), [(max_, {"axes": (1,)}), (min_, {}), (argmax, {"axis": 1}), (argmin, {})])
def test_no_elements(definition, attributes):
    with pytest.raises(TypeProblem, match="no elements along axis 1") as caught:
        infer(definition, (2, 0), **attributes)
    assert caught.value.operand == "x"
    infer(definition, (2, S), **attributes)  # known only at run time
    with pytest.raises(ExecutionError, match="no elements"):
        definition.evaluate([np.zeros((2, 0))], ["x"], attributes, [TensorType(f32, (2,))], [f32])


@pytest.mark.parametrize(("definition", "reference"), [(max_, np.max), (min_, np.min)])
@pytest.mark.parametrize("shape", [(2, 3), (2, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("axes", [None, (0,), (1,), ()])
@pytest.mark.parametrize("initial", [-2, 0, 5])
def test_initial(definition, reference, shape, axes, initial):
    for dtype in (np.float32, np.int8, np.int64):
        x = np.random.default_rng(7).integers(-4, 5, shape).astype(dtype)
        for keepdims in (False, True):
            found = definition(x, axes=axes, initial=initial, keepdims=keepdims)
            expected = reference(x, axis=axes, initial=initial, keepdims=keepdims)
            assert found.dtype == dtype and found.shape == expected.shape and np.array_equal(found, expected)


def test_initial_of_special_values():
    empty = np.zeros((2, 0), np.float32)
    assert max_(empty, axes=(1,), initial=-INF).tolist() == [-INF, -INF] and min_(empty, initial=INF) == INF
    assert np.isnan(max_(array(1, NAN), initial=INF)) and np.isnan(max_(array(1, 2), initial=NAN)) and np.isnan(max_(empty, initial=NAN))
    assert np.signbit(max_(array(-0.0), initial=-0.0)) and not np.signbit(max_(array(-0.0), initial=0.0))
    assert np.signbit(min_(array(0.0), initial=-0.0)) and np.signbit(min_(array(-0.0), initial=0.0))
    assert max_(np.zeros((0,), np.float16), initial=70000) == INF  # rounded to the element type
    big = 2**63 - 1
    assert min_(np.zeros((0,), np.int64), initial=big) == big  # not by way of a float


def test_initial_must_fit():
    assert infer(max_, (2, 0), axes=(1,), initial=-INF).shape == (2,)
    for dtype, value, text in [(i32, 0.5, "is an integer"), (i32, 2**31, "does not fit in i32"), (f32, 10**400, "too large")]:
        with pytest.raises(TypeProblem, match=text) as caught:
            infer(max_, TensorType(dtype, (2,)), initial=value)
        assert caught.value.attribute == "initial"


def test_max_of_other_empty_axes():
    assert max_(np.zeros((0, 3), np.float32), axes=(1,)).shape == (0,)
    assert max_(array(1, 2), axes=()).tolist() == [1, 2]


def test_flags():
    assert all(d.exact for d in (sum_, cumsum, max_, min_, argmax, argmin, any_, all_))
    assert not any(d.exact for d in (mean, variance, logsumexp))


# -- truth and log-sum-exp ---------------------------------------------------------------------------------------------


def test_truth():
    x = np.array([[True, False], [True, True]])
    assert any_(x, axes=(1,)).tolist() == [True, True] and all_(x, axes=(-1,)).tolist() == [False, True]
    assert any_(x).shape == () and all_(x, keepdims=True).tolist() == [[False]]
    empty = np.zeros((2, 0), bool)
    assert any_(empty, axes=(1,)).tolist() == [False, False] and all_(empty, axes=(1,)).tolist() == [True, True]
    assert any_(x).dtype == np.bool_


def test_logsumexp():
    x = np.random.default_rng(5).standard_normal((4, 7)).astype(np.float32)
    want = np.log(np.exp(x.astype(np.float64)).sum(axis=1)).astype(np.float32)
    assert np.allclose(logsumexp(x), want, rtol=2**-23)
    assert logsumexp(x, axis=0, keepdims=True).shape == (1, 7)
    assert logsumexp(array(1000, 1000)) == np.float32(1000 + math.log(2))
    assert logsumexp(array(-1000, -1000)) == np.float32(-1000 + math.log(2))
    assert logsumexp(array(3e38, 0)) == np.float32(3e38)
    assert logsumexp(array(5)) == 5 and logsumexp(array(-INF, 5)) == 5
    assert logsumexp(array(-INF, -INF)) == -INF and logsumexp(array(INF, 1)) == INF and logsumexp(array(INF, -INF)) == INF
    assert np.isnan(logsumexp(array(NAN, 1))) and np.isnan(logsumexp(array(INF, NAN)))
    assert logsumexp(np.zeros((2, 0), np.float32)).tolist() == [-INF, -INF]
