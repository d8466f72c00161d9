"""matmul and linear."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.matmul import linear, matmul
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import TypeProblem
from ir.types import TensorType, f16, f32, i32

B, S, K, N = map(symbol, "BSKN")


def infer(a, b, **attributes):
    return matmul.infer([TensorType(f32, a), TensorType(f32, b)], ["a", "b"], attributes)[0].shape


def test_result_shapes():
    assert infer((B, 4), (4, N)) == (B, N)
    assert infer((B, 1, S, K), (8, K, N)) == (B, 8, S, N)
    assert infer((K,), (K,)) == ()
    assert infer((K,), (B, K, N)) == (B, N)
    assert infer((B, S, K), (K,)) == (B, S)
    assert infer((K, S), (N, K), transpose_a=True, transpose_b=True) == (S, N)


def test_unknown_dimensions_are_tolerated():
    shape = infer((UNKNOWN_DIM, UNKNOWN_DIM), (4, UNKNOWN_DIM))
    assert shape == (UNKNOWN_DIM, UNKNOWN_DIM)
    assert infer((UNKNOWN_DIM, 2, 3), (5, 3, 4)) == (5, 2, 4)


@pytest.mark.parametrize(
    ("a", "b", "attributes", "message", "operand"),
    [
        ((2, 64), (32, 8), {}, r"inner dimensions differ: 'a' is f32\[2, 64\], 'b' is f32\[32, 8\] \(64 and 32\)", "b"),
        ((B, K), (N, B), {}, r"\(K and N\)", "b"),
        ((K,), (4,), {}, r"\(K and 4\)", "b"),
        ((2, 3, 4), (3, 4, 5), {}, r"batch dimensions can't be broadcast.*\(2 and 3 in batch dimension -1\)", "b"),
        ((), (3,), {}, "rank 1 or more", "a"),
    ],
)
def test_shape_errors(a, b, attributes, message, operand):
    with pytest.raises(TypeProblem, match=message) as caught:
        infer(a, b, **attributes)
    assert caught.value.operand == operand


def test_transposing_a_vector_is_an_error():
    with pytest.raises(TypeProblem, match="transpose_a=true needs a matrix") as caught:
        infer((3,), (3, 4), transpose_a=True)
    assert caught.value.attribute == "transpose_a"


def test_hints():
    with pytest.raises(TypeProblem) as caught:
        infer((B, 64), (256, 64))
    assert "transpose_b=true" in caught.value.hint
    with pytest.raises(TypeProblem) as caught:
        infer((64, 2), (64, 8))
    assert "transpose_a=true" in caught.value.hint
    with pytest.raises(TypeProblem) as caught:
        infer((2, K), (S, 8))
    assert "written alike" in caught.value.hint


def test_no_promotion():
    with pytest.raises(TypeProblem, match="element types differ") as caught:
        matmul.infer([TensorType(f32, (2, 3)), TensorType(f16, (3, 2))], ["a", "b"], {})
    assert "cast" in caught.value.hint


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rounds_once(dtype):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((3, 5, 17)).astype(dtype)
    b = rng.standard_normal((1, 17, 4)).astype(dtype)
    want = np.einsum("bik,bkj->bij", a.astype(np.float64), np.broadcast_to(b, (3, 17, 4)).astype(np.float64))
    assert np.array_equal(matmul(a, b), want.astype(np.float32).astype(dtype) if dtype is ml_dtypes.bfloat16 else want.astype(dtype))


def test_f16_accumulates_wide():
    a = np.full((1, 4096), 1.0, np.float16)
    assert matmul(a, a.T).item() == 4096.0  # a sum in f16 would stop at 2048
    assert linear(a, a, bias=np.float16([-4096])).item() == 0.0


def test_transposes():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, 6, 3)), rng.standard_normal((5, 6))
    want = np.swapaxes(a, 1, 2) @ b.T
    assert np.allclose(matmul(a, b, transpose_a=True, transpose_b=True), want, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_integers_wrap(dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(3)
    a = rng.integers(info.min, info.max, (3, 40), dtype, endpoint=True)
    b = rng.integers(info.min, info.max, (40, 2), dtype, endpoint=True)
    exact = [[sum(int(x) * int(y) for x, y in zip(row, column, strict=True)) for column in b.T] for row in a]
    modulus = 1 << info.bits
    want = [[(v - info.min) % modulus + info.min for v in row] for row in exact]
    result = matmul(a, b)
    assert result.dtype == dtype
    assert result.tolist() == want


def test_empty():
    zeros = matmul(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32))
    assert zeros.tolist() == [[0, 0, 0], [0, 0, 0]] and not np.signbit(zeros).any()
    assert matmul(np.ones((0,), np.int32), np.ones((0,), np.int32)).shape == ()
    assert matmul(np.ones((0, 2), np.float32), np.ones((2, 3), np.float32)).shape == (0, 3)
    assert matmul(np.ones((0, 2, 3), np.float32), np.ones((3, 4), np.float32)).shape == (0, 2, 4)
    assert linear(np.ones((2, 0), np.float32), np.ones((3, 0), np.float32), bias=np.float32([1, 2, 3])).tolist() == [[1, 2, 3]] * 2


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_special_values(size):
    a = np.zeros((size, size), np.float32)
    b = np.zeros((size, size), np.float32)
    a[0, -1] = np.inf
    result = matmul(a, b)
    assert np.isnan(result[0]).all() and not np.isnan(result[1:]).any()
    b[-1, 0] = np.nan
    assert np.isnan(matmul(a, b)[:, 0]).all()
    negative = matmul(np.full((size, size), -1, np.float32), np.zeros((size, size), np.float32))
    assert not np.signbit(negative).any()


def test_vectors():
    v = np.float32([1, 2, 3])
    m = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert matmul(v, v).shape == () and matmul(v, v) == 14
    assert matmul(v, m).tolist() == (v @ m).tolist()
    assert matmul(m.T, v).tolist() == (m.T @ v).tolist()


def test_linear():
    rng = np.random.default_rng(4)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 5), (4, 5), (4,)))
    want = np.einsum("bsi,oi->bso", x.astype(float), w.astype(float))
    assert np.array_equal(linear(x, w), want.astype(np.float32))
    assert np.array_equal(linear(x, w, bias=b), (want + b).astype(np.float32))
    assert linear(np.int8([[100, 100]]), np.int8([[2, 1]]), bias=np.int8([1])).tolist() == [[45]]


def test_linear_types():
    x, w = TensorType(f32, (B, S, K)), TensorType(f32, (N, K))
    assert linear.infer([x, w], ["x", "weight"], {})[0].shape == (B, S, N)
    with pytest.raises(TypeProblem, match="inner dimensions differ") as caught:
        linear.infer([x, TensorType(f32, (K, N))], ["x", "weight"], {})
    assert "[out, in]" in caught.value.hint and caught.value.operand == "weight"
    with pytest.raises(TypeProblem, match=r"expected bias f32\[N\].*found f32\[K\]") as caught:
        linear.infer([x, w, TensorType(f32, (K,))], ["x", "weight", "bias"], {})
    assert caught.value.operand == "bias"
    with pytest.raises(TypeProblem, match="rank 2"):
        linear.infer([x, TensorType(f32, (K,))], ["x", "weight"], {})
    with pytest.raises(TypeProblem, match="element types differ"):
        linear.infer([x, w, TensorType(i32, (N,))], ["x", "weight", "bias"], {})
