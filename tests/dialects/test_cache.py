"""cache_update and call."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.cache import cache_update
from dialects.graph.control import call
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import ExecutionError, TypeProblem
from ir.types import TensorType, f16, f32, i64

B, S, T = map(symbol, "BST")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int8, np.bool_])
def test_writes_a_copy(dtype):
    cache = np.zeros((2, 6, 3), dtype)
    new = np.ones((2, 2, 3), dtype)
    before = cache.copy()
    result = cache_update(cache, new, np.int64(3))
    want = np.zeros((2, 6, 3), dtype)
    want[:, 3:5] = 1
    assert result.dtype == dtype
    assert np.array_equal(result, want)
    assert np.array_equal(cache, before)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("position", [0, 2])
def test_axes(axis, position):
    cache = np.arange(64, dtype=np.int32).reshape(4, 4, 4)
    new = -np.ones([2 if i == axis % 3 else 4 for i in range(3)], np.int32)
    want = np.moveaxis(cache.copy(), axis, 0)
    want[position : position + 2] = -1
    assert np.array_equal(cache_update(cache, new, np.int32(position), axis=axis), np.moveaxis(want, 0, axis))


def test_bits_are_kept():
    new = np.uint32([[0x7FC12345, 0x80000000]]).view(np.float32)
    result = cache_update(np.zeros((3, 2), np.float32), new, np.int64(1))
    assert result.view(np.uint32)[1].tolist() == [0x7FC12345, 0x80000000]


@pytest.mark.parametrize(("position", "size"), [(5, 2), (6, 1), (7, 0), (2**62, 1), (0, 7)])
def test_past_capacity(position, size):
    if size == 7:
        with pytest.raises(Exception, match="does not fit"):
            cache_update(np.zeros((6, 3), np.float32), np.zeros((size, 3), np.float32), np.int64(position))
        return
    with pytest.raises(ExecutionError, match=rf"position {position} plus {size} new entries is {position + size}, past the capacity of 6"):
        cache_update(np.zeros((6, 3), np.float32), np.zeros((size, 3), np.float32), np.int64(position))


def test_negative_position():
    with pytest.raises(ExecutionError, match="position -1 is negative"):
        cache_update(np.zeros((6, 3), np.float32), np.zeros((1, 3), np.float32), np.int64(-1))


def test_nothing_new():
    cache = np.ones((6, 3), np.float32)
    assert np.array_equal(cache_update(cache, np.zeros((0, 3), np.float32), np.int64(6)), cache)
    assert cache_update(np.zeros((2, 0), np.float32), np.zeros((1, 0), np.float32), np.int64(1)).shape == (2, 0)


def infer(cache, new, position=(), **attributes):
    types = [TensorType(f32, cache), TensorType(f32, new), TensorType(i64, position)]
    return cache_update.infer(types, ["cache", "new", "position"], attributes)[0].shape


def test_types():
    assert infer((B, 4, T, 64), (B, 4, S, 64)) == (B, 4, T, 64)
    assert infer((B, 4, 16, 64), (B, 4, UNKNOWN_DIM, 64)) == (B, 4, 16, 64)
    assert infer((T,), (1,), axis=0) == (T,)
    assert not cache_update.pure and cache_update.traps and cache_update.updates == "cache"


@pytest.mark.parametrize(
    ("arguments", "attributes", "message"),
    [
        (((B, T, 64), (S, 1, 64)), {}, r"in axis 1 only.*\(S and B in axis 0\)"),
        (((B, T, 64), (B, 1, 32)), {}, r"\(32 and 64 in axis 2\)"),
        (((B, T, 64), (1, 64)), {}, "rank 3"),
        (((B, 8, 64), (B, 9, 64)), {}, "does not fit"),
        (((B, T, 64), (B, 1, 64), (1,)), {}, "rank 0"),
        (((T,), (1,)), {}, "axis=-2 is out of range"),
        (((), ()), {}, "rank 1 or more"),
    ],
)
def test_errors(arguments, attributes, message):
    with pytest.raises(TypeProblem, match=message):
        infer(*arguments, **attributes)


def test_no_promotion():
    types = [TensorType(f32, (4, 2)), TensorType(f16, (1, 2)), TensorType(i64, ())]
    with pytest.raises(TypeProblem, match="element types differ"):
        cache_update.infer(types, ["cache", "new", "position"], {})


def test_call_has_a_positional_callee_and_any_number_of_results():
    assert [a.name for a in call.positional_attributes] == ["callee"]
    assert call.result_count is None and not call.pure
