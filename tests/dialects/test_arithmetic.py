"""Binary arithmetic: rounding, wrapping, special values, broadcasting, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dialects.graph import arithmetic as a
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import ExecutionError, OpDef, TypeProblem
from ir.types import DTYPES, TensorType, bf16, f16, f32, i8, i32, i64, u8

INTEGERS = [np.int8, np.int16, np.int32, np.int64]
B, S = symbol("B"), symbol("S")


def bits(array: np.ndarray) -> list[int]:
    return np.asarray(array).reshape(-1).view(f"u{array.dtype.itemsize}").tolist()


def result_type(op: OpDef, *types: TensorType) -> TensorType:
    inferred = op.infer(types, [o.name for o in op.required_operands], {})
    assert inferred is not None
    return inferred[0]  # type: ignore[return-value]


# -- shapes and element types ------------------------------------------------------------------------------------------

BINARY = [a.add, a.sub, a.mul, a.floordiv, a.mod, a.truncdiv, a.rem, a.maximum, a.minimum, a.pow_]


@pytest.mark.parametrize("op", [*BINARY, a.div], ids=lambda op: op.name)
def test_shapes_broadcast(op: OpDef) -> None:
    assert result_type(op, TensorType(f32, (B, 1, 4)), TensorType(f32, (S, 4))) == TensorType(f32, (B, S, 4))
    assert result_type(op, TensorType(f32, ()), TensorType(f32, (0, B))) == TensorType(f32, (0, B))
    assert result_type(op, TensorType(bf16, (UNKNOWN_DIM,)), TensorType(bf16, (4,))).dtype == bf16


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.name)
def test_differing_symbols_and_types_are_refused(op: OpDef) -> None:
    with pytest.raises(TypeProblem, match="can't be broadcast"):
        result_type(op, TensorType(f32, (B,)), TensorType(f32, (S,)))
    with pytest.raises(TypeProblem, match="element types differ") as problem:
        result_type(op, TensorType(f16, (B,)), TensorType(bf16, (B,)))
    assert problem.value.hint is not None and "cast(..., dtype=f16)" in problem.value.hint


@pytest.mark.parametrize("op", [*BINARY, a.div], ids=lambda op: op.name)
def test_empty_and_rank_zero(op: OpDef) -> None:
    assert op(np.zeros((0, 3), np.float32), np.ones(3, np.float32)).shape == (0, 3)
    result = op(np.float32(3), np.float32(2))
    assert isinstance(result, np.ndarray) and result.shape == () and result.dtype == np.float32


def test_kinds() -> None:
    with pytest.raises(TypeProblem, match="expected a tensor of floats, found i32"):
        result_type(a.div, TensorType(i32, (2,)), TensorType(i32, (2,)))
    with pytest.raises(TypeProblem, match="expected a tensor of numbers, found bool"):
        result_type(a.add, TensorType(DTYPES["bool"], (2,)), TensorType(DTYPES["bool"], (2,)))
    for op in (a.shift_left, a.bit_and):
        with pytest.raises(TypeProblem, match="expected a tensor of integers"):
            result_type(op, TensorType(f32, (2,)), TensorType(f32, (2,)))


# -- floats ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f64", "f32", "f16"])
@pytest.mark.parametrize("op, function", [(a.add, np.add), (a.sub, np.subtract), (a.mul, np.multiply), (a.div, np.divide)])
def test_floats_round_once(op: OpDef, function: np.ufunc, name: str) -> None:
    rng = np.random.default_rng(1)
    dtype = DTYPES[name].numpy
    x, y = (rng.normal(size=1000) * 10.0 ** rng.integers(-3, 4, 1000) for _ in range(2))
    x, y = x.astype(dtype), y.astype(dtype)
    with np.errstate(all="ignore"):
        assert bits(op(x, y)) == bits(function(x, y))


def test_denormals_are_kept() -> None:
    tiny = a.mul(np.float32(1e-40), np.float32(0.5))
    assert tiny == np.float32(5e-41) and tiny != 0


def test_zero_times_infinity_and_difference_of_infinities() -> None:
    inf = np.float32(np.inf)
    assert np.isnan(a.mul(np.float32(0), inf))
    assert np.isnan(a.sub(inf, inf))
    assert bits(a.add(np.float32(-0.0), np.float32(0.0))) == [0]
    assert bits(a.add(np.float32(-0.0), np.float32(-0.0))) == [0x80000000]


def test_division_by_zero_of_floats() -> None:
    result = a.div(np.float32([1, -1, 1, 0]), np.float32([0, 0, -0.0, 0]))
    assert result[:3].tolist() == [np.inf, -np.inf, -np.inf] and np.isnan(result[3])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_maximum_and_minimum(dtype: type) -> None:
    nan, zero, minus = dtype(np.nan), dtype(0.0), dtype(-0.0)
    for op in (a.maximum, a.minimum):
        assert np.isnan(op(nan, dtype(1))) and np.isnan(op(dtype(1), nan))
    for x, y in ((minus, zero), (zero, minus)):
        assert not np.signbit(a.maximum(x, y)) and np.signbit(a.minimum(x, y))
    assert np.signbit(a.maximum(minus, minus)) and not np.signbit(a.minimum(zero, zero))
    assert a.maximum(np.array([1, 5], dtype), dtype(3)).tolist() == [3, 5]
    assert a.minimum(np.array([1, np.inf], dtype), dtype(3)).tolist() == [1, 3]


def test_maximum_of_integers() -> None:
    assert a.maximum(np.int64([2**62 + 1, -1]), np.int64([2**62, 0])).tolist() == [2**62 + 1, 0]
    assert a.minimum(np.uint8([255, 3]), np.uint8(7)).tolist() == [7, 3]


def test_pow_of_floats() -> None:
    result = a.pow_(np.float32([0, -8, np.nan, 1, 2, -0.0, 0.0]), np.float32([0, 1 / 3, 0, np.nan, -1, -1, -2]))
    assert result[0] == 1 and np.isnan(result[1]) and result[2] == 1 and result[3] == 1 and result[4] == 0.5
    assert result[5] == -np.inf and result[6] == np.inf


# -- quotients and remainders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*INTEGERS, np.uint8])
def test_integer_division(dtype: type) -> None:
    low = 0 if dtype is np.uint8 else -9
    pairs = [(x, y) for x in range(low, 10) for y in range(low, 10) if y]
    x, y = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    assert a.floordiv(x, y).tolist() == [p // q for p, q in pairs]
    assert a.mod(x, y).tolist() == [p % q for p, q in pairs]
    assert a.truncdiv(x, y).tolist() == [math.trunc(p / q) for p, q in pairs]
    assert a.rem(x, y).tolist() == [int(math.fmod(p, q)) for p, q in pairs]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_smallest_integer_by_minus_one(dtype: type) -> None:
    low, one = np.array([np.iinfo(dtype).min], dtype), np.array([-1], dtype)
    assert a.floordiv(low, one) == low and a.truncdiv(low, one) == low
    assert a.mod(low, one) == 0 and a.rem(low, one) == 0
    assert a.floordiv(low[0], one[0]) == low and a.rem(low[0], one[0]) == 0


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_truncdiv_at_the_ends(dtype: type) -> None:
    info = np.iinfo(dtype)
    values = [info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max]
    for y in [v for v in values if v]:
        for x in values:
            exact = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            if exact <= info.max:
                assert int(a.truncdiv(dtype(x), dtype(y))) == exact
                assert int(a.rem(dtype(x), dtype(y))) == x - exact * y


@pytest.mark.parametrize("op", [a.floordiv, a.mod, a.truncdiv, a.rem], ids=lambda op: op.name)
def test_integer_division_by_zero(op: OpDef) -> None:
    with pytest.raises(ExecutionError, match=rf"{op.name}: integer division by zero at \[1, 2\]: x is 7, y is 0"):
        op(np.full((2, 3), 7, np.int32), np.int32([[1, 1, 1], [1, 1, 0]]))
    with pytest.raises(ExecutionError, match=r"at \[0, 1\]"):
        op(np.int32([[1, 1]]), np.int32([2, 0]))
    with pytest.raises(ExecutionError, match="by zero: x is 1"):
        op(np.int64(1), np.int64(0))
    assert op(np.zeros((0,), np.int32), np.int32([0])).shape == (0,)  # no element is divided


def test_floor_of_the_exact_quotient() -> None:
    assert a.floordiv(1.0, 0.1) == 9  # 1 / 0.1 rounds to 10
    assert a.truncdiv(-1.0, 0.1) == -9
    assert a.floordiv(np.float32([7, -7, 7, -7]), np.float32([2, 2, -2, -2])).tolist() == [3, -4, -4, 3]
    assert a.truncdiv(np.float32([7, -7, 7, -7]), np.float32([2, 2, -2, -2])).tolist() == [3, -3, -3, 3]
    assert a.mod(np.float32([7, -7, 7, -7]), np.float32([2, 2, -2, -2])).tolist() == [1, 1, -1, -1]
    assert a.rem(np.float32([7, -7, 7, -7]), np.float32([2, 2, -2, -2])).tolist() == [1, -1, 1, -1]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_float_quotients_against_exact_integers(dtype: type) -> None:
    from fractions import Fraction

    rng = np.random.default_rng(2)
    x = (rng.normal(size=300) * 100).astype(dtype)
    y = rng.normal(size=300).astype(dtype)
    exact = [Fraction(float(p)) / Fraction(float(q)) for p, q in zip(x, y, strict=True)]
    assert a.floordiv(x, y).tolist() == [float(dtype(math.floor(q))) for q in exact]
    assert a.truncdiv(x, y).tolist() == [float(dtype(math.trunc(q))) for q in exact]
    assert a.rem(x, y).tolist() == [math.fmod(p, q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]


def test_float_quotients_of_special_values() -> None:
    inf, nan = np.inf, np.nan
    x, y = np.float32([1, -1, 0, inf, 1, -1, nan, -0.0]), np.float32([0, 0, 0, 2, inf, inf, 1, 3])
    expected = {
        a.floordiv: [inf, -inf, nan, nan, 0.0, -1.0, nan, -0.0],
        a.truncdiv: [inf, -inf, nan, nan, 0.0, -0.0, nan, -0.0],
        a.mod: [nan, nan, nan, nan, 1.0, inf, nan, 0.0],
        a.rem: [nan, nan, nan, nan, 1.0, -1.0, nan, -0.0],
    }
    for op, values in expected.items():
        found = op(x, y)
        np.testing.assert_array_equal(found, np.float32(values), err_msg=op.name)
        known = ~np.isnan(found)
        assert (np.signbit(found) == np.signbit(values))[known].all(), op.name


# -- integers ----------------------------------------------------------------------------------------------------------


def test_integers_wrap() -> None:
    assert a.add(np.int8([127]), np.int8([1])).tolist() == [-128]
    assert a.add(np.int64(2**63 - 1), np.int64(1)) == -(2**63)
    assert a.sub(np.uint8([0]), np.uint8([1])).tolist() == [255]
    assert a.mul(np.int32([2**31 - 1]), np.int32([2])).tolist() == [-2]


def test_pow_of_integers() -> None:
    assert a.pow_(np.int8([2, 0, -2, 3]), np.int8([7, 0, 3, 5])).tolist() == [-128, 1, -8, -13]
    with pytest.raises(ExecutionError, match=r"pow: negative exponent of an integer at \[1\]: x is 5, y is -1"):
        a.pow_(np.int32([2, 5]), np.int32([3, -1]))
    assert a.pow_(np.zeros((0, 1), np.int32), np.int32([-1])).shape == (0, 1)


@pytest.mark.parametrize("dtype", [i8, i32, i64, u8], ids=str)
def test_shifts(dtype: object) -> None:
    kind = dtype.numpy.type  # type: ignore[attr-defined]
    width = dtype.bits  # type: ignore[attr-defined]
    top = kind(dtype.min_value) if dtype.min_value else kind(128)  # type: ignore[attr-defined]
    assert a.shift_left(np.array([1, 3], kind), np.array([width - 1, 1], kind)).tolist() == [int(top), 6]
    assert a.shift_right(np.array([top]), np.array([width - 1], kind)).tolist() == [-1 if top < 0 else 1]
    for amount in (width, 100, *((-1,) if top < 0 else ())):
        for op in (a.shift_left, a.shift_right):
            with pytest.raises(ExecutionError, match=rf"{op.name}: shift amount outside 0..{width - 1} at \[1\]: x is 2, y is {amount}"):
                op(np.array([1, 2], kind), np.array([0, amount], kind))


def test_bits() -> None:
    x, y = np.int32([0b1100, -1]), np.int32([0b1010, 5])
    assert a.bit_and(x, y).tolist() == [0b1000, 5]
    assert a.bit_or(x, y).tolist() == [0b1110, -1]
    assert a.bit_xor(x, y).tolist() == [0b0110, -6]
    assert a.bit_not(x).tolist() == [-13, 0]
    assert a.bit_not(np.uint8([0, 255])).tolist() == [255, 0]


def test_flags() -> None:
    commutative = {"add", "mul", "maximum", "minimum", "bit_and", "bit_or", "bit_xor"}
    traps = {"floordiv", "mod", "truncdiv", "rem", "pow", "shift_left", "shift_right"}
    ops = [v for v in vars(a).values() if isinstance(v, OpDef)]
    assert {o.name for o in ops if o.commutative} == commutative
    assert {o.name for o in ops if o.traps} == traps
    assert all(o.elementwise and o.pure for o in ops)
