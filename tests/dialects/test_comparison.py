"""Comparisons, logic, where and clamp."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dialects.graph import comparison as c
from ir.diagnostics import GraphError
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import OpDef, TypeProblem
from ir.types import TensorType, boolean, f16, f32, i32

NAN, INF = np.nan, np.inf
B, S = symbol("B"), symbol("S")
COMPARE = {c.equal: "==", c.not_equal: "!=", c.less: "<", c.less_equal: "<=", c.greater: ">", c.greater_equal: ">="}
LOGIC = (c.logical_and, c.logical_or, c.logical_xor)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", COMPARE, ids=lambda op: op.name)
def test_floats(op: OpDef, dtype: type) -> None:
    values = [NAN, -INF, -1.0, -0.0, 0.0, 0.5, INF]
    x = np.array(values).astype(dtype)
    expected = [[eval(f"p {COMPARE[op]} q", {"p": p, "q": q}) for q in values] for p in values]
    found = op(x.reshape(-1, 1), x)
    assert found.dtype == np.bool_ and found.tolist() == expected


@pytest.mark.parametrize("op", COMPARE, ids=lambda op: op.name)
def test_integers_are_not_compared_as_floats(op: OpDef) -> None:
    x, y = np.int64([2**62 + 1]), np.int64([2**62])
    assert op(x, y).tolist() == [eval(f"2 {COMPARE[op]} 1")]


@pytest.mark.parametrize("op", [*COMPARE, *LOGIC], ids=lambda op: op.name)
def test_inference(op: OpDef) -> None:
    dtype = boolean if op in LOGIC else f32
    assert op.infer([TensorType(dtype, (B, 1)), TensorType(dtype, (S,))], ["x", "y"], {}) == (TensorType(boolean, (B, S)),)
    assert op.infer([TensorType(dtype, (UNKNOWN_DIM,)), TensorType(dtype, ())], ["x", "y"], {}) == (TensorType(boolean, (UNKNOWN_DIM,)),)
    with pytest.raises(TypeProblem, match="can't be broadcast"):
        op.infer([TensorType(dtype, (B,)), TensorType(dtype, (S,))], ["x", "y"], {})
    with pytest.raises(TypeProblem, match=r"element types differ|expected a tensor of bool"):
        op.infer([TensorType(dtype, (B,)), TensorType(f16, (B,))], ["x", "y"], {})
    kind = np.bool_ if op in LOGIC else np.float32
    assert op(np.zeros((0, 2), kind), np.ones(2, kind)).shape == (0, 2)
    assert op(np.array(True, kind), np.array(True, kind)).shape == ()


def test_bool_can_be_equal_but_not_less() -> None:
    assert c.equal(np.array([True, False]), np.array(True)).tolist() == [True, False]
    assert c.not_equal(np.array([True, False]), np.array(True)).tolist() == [False, True]
    with pytest.raises(GraphError, match="expected a tensor of numbers, found bool"):
        c.less(np.array([True]), np.array([True]))


def test_logic() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert c.logical_and(x, y).tolist() == [False, False, False, True]
    assert c.logical_or(x, y).tolist() == [False, True, True, True]
    assert c.logical_xor(x, y).tolist() == [False, True, True, False]
    assert c.logical_not(x).tolist() == [True, True, False, False]
    with pytest.raises(GraphError, match="expected a tensor of bool, found i64"):
        c.logical_not(np.array([1]))


def test_bytes_other_than_one_are_true() -> None:
    x = np.uint8([0, 1, 2, 255]).view(np.bool_)
    found = c.logical_and(x, np.ones(4, np.bool_))
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]
    assert c.logical_not(x).view(np.uint8).tolist() == [1, 0, 0, 0]
    assert c.equal(x, np.ones(4, np.bool_)).tolist() == [False, True, True, True]


def test_where_moves_bits() -> None:
    x = np.uint32([0x7F800001, 0x80000000, 0x7FC12345]).view(np.float32)
    found = c.where(np.array([True, True, False]), x, np.float32(NAN))
    assert found.view(np.uint32).tolist() == [0x7F800001, 0x80000000, 0x7FC00000]
    narrow = np.uint16([0x7F81, 0x8000, 0x7FC1]).view(ml_dtypes.bfloat16)
    assert c.where(np.array(False), narrow, narrow[::-1]).view(np.uint16).tolist() == narrow[::-1].copy().view(np.uint16).tolist()
    assert c.where(np.array([True, False]), np.int64([2**62 + 1, 0]), np.int64(-1)).tolist() == [2**62 + 1, -1]


def test_where_broadcasts_all_three() -> None:
    found = c.where(np.array([[True], [False]]), np.float32([1, 2, 3]), np.float32(0))
    assert found.tolist() == [[1, 2, 3], [0, 0, 0]]
    names = ["cond", "x", "y"]
    types = [TensorType(boolean, (B, 1)), TensorType(f32, (S,)), TensorType(f32, ())]
    assert c.where.infer(types, names, {}) == (TensorType(f32, (B, S)),)
    with pytest.raises(TypeProblem, match="element types differ: 'x' is f32"):
        c.where.infer([types[0], types[1], TensorType(i32, ())], names, {})
    with pytest.raises(TypeProblem, match="expected a tensor of bool, found f32"):
        c.where.infer([types[1], types[1], types[1]], names, {})
    assert c.where(np.array(True), np.zeros((0,), np.float32), np.float32(1)).shape == (0,)


def test_clamp_floats() -> None:
    x = np.float32([NAN, -INF, -2, -0.0, 0.25, 2, INF])
    found = c.clamp(x, low=0, high=1)
    np.testing.assert_array_equal(found, np.float32([NAN, 0, 0, 0, 0.25, 1, 1]))
    assert not np.signbit(found[1:]).any()
    assert np.signbit(c.clamp(x, low=-0.0)[3])
    np.testing.assert_array_equal(c.clamp(x), x)
    assert c.clamp(np.float32(1), high=0.1) == np.float32(0.1)
    assert c.clamp(np.float16([-INF, INF]), low=-1e9, high=1e9).tolist() == [-INF, INF]


def test_clamp_integers() -> None:
    assert c.clamp(np.int64([2**62 + 1, 5]), high=2**62).tolist() == [2**62, 5]
    assert c.clamp(np.uint8([0, 9, 255]), low=3, high=200).tolist() == [3, 9, 200]


@pytest.mark.parametrize(
    "dtype, bounds, message",
    [
        (np.float32, {"low": 2, "high": 1}, "low=2 is above high=1"),
        (np.float32, {"low": NAN}, "low can't be nan"),
        (np.int32, {"high": 1.5}, "high of a tensor of i32 is an integer, found 1.5"),
        (np.int8, {"low": -129}, r"low=-129 does not fit in i8 \(-128 to 127\)"),
        (np.uint8, {"low": -1}, "low=-1 does not fit in u8"),
        (np.float32, {"low": "a"}, "expected an integer or a number or none"),
    ],
)
def test_clamp_refuses(dtype: type, bounds: dict[str, object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        c.clamp(np.zeros(2, dtype), **bounds)


def test_flags() -> None:
    ops = [v for v in vars(c).values() if isinstance(v, OpDef)]
    assert {o.name for o in ops if o.commutative} == {"equal", "not_equal", "logical_and", "logical_or", "logical_xor"}
    assert all(o.elementwise and o.pure and o.exact and not o.traps for o in ops)
