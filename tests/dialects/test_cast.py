"""Casts by value and by bits."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.cast import bitcast, cast
from ir.diagnostics import GraphError
from ir.dims import UNKNOWN_DIM, symbol
from ir.types import ELEMENT_DTYPES, DType, TensorType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8

NAN, INF = np.nan, np.inf
INTEGERS = [i8, i16, i32, i64, u8]
FLOATS = [f64, f32, f16, bf16]


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_float_to_integer_saturates(source: DType, target: DType) -> None:
    values = [NAN, INF, -INF, 1e20, -1e20, 300, -300, -1, 2.9, -2.9, 0.5, -0.0, 127, 128, -128, -129, 255, 256]
    values += [2.0**k * s for k in (15, 31, 32, 62, 63, 64) for s in (1, -1)]
    with np.errstate(all="ignore"):
        x = np.array(values).astype(source.numpy)
    expected = []
    for v in x.astype(np.float64).tolist():
        if v != v:
            expected.append(0)
        elif abs(v) == INF:
            expected.append(target.max_value if v > 0 else target.min_value)
        else:
            expected.append(min(max(int(v), target.min_value), target.max_value))
    found = cast(x, dtype=target)
    assert found.dtype == target.numpy and found.tolist() == expected


def test_edges_of_i64() -> None:
    below = np.nextafter(2.0**63, 0)
    assert cast(np.float64([below, 2.0**63, -(2.0**63), np.nextafter(-(2.0**63), -INF)]), dtype=i64).tolist() == [
        int(below),
        2**63 - 1,
        -(2**63),
        -(2**63),
    ]


@pytest.mark.parametrize("length", [1, 7, 37])
def test_saturation_does_not_depend_on_the_position(length: int) -> None:
    assert set(cast(np.full(length, 300, np.float32), dtype=i8).tolist()) == {127}


@pytest.mark.parametrize("source", [*INTEGERS, boolean], ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_integer_to_integer_wraps(source: DType, target: DType) -> None:
    values = [source.min_value, source.max_value, 0, 1]
    x = np.array(values, source.numpy)
    span = 1 << target.bits
    expected = [(v - target.min_value) % span + target.min_value for v in values]
    assert cast(x, dtype=target).tolist() == expected


def nearest(value: int, dtype: DType) -> Fraction:
    """``value`` rounded to nearest even with the precision of ``dtype``; exact arithmetic."""
    precision = {"f64": 53, "f32": 24, "bf16": 8}[dtype.name]
    shift = max(0, abs(value).bit_length() - precision)
    quotient, rest = divmod(abs(value), 1 << shift)
    half = 1 << shift >> 1
    if shift and (rest > half or (rest == half and quotient & 1)):
        quotient += 1
    return Fraction((quotient << shift) * (1 if value >= 0 else -1))


@pytest.mark.parametrize("target", [f64, f32, bf16], ids=str)
def test_integer_to_float_rounds_once(target: DType) -> None:
    rng = np.random.default_rng(5)
    values = [2**62 + 2**54 + 1, 2**62 + 2**54, 2**62 + 2**54 - 1, 2**53 + 1, 2**54 + 3, 2**24 + 1, 257, 1025, 2**63 - 1, -(2**63), -(2**63) + 1]
    values += [2**62 + 2**38 + 1, 2**62 + 2**38 - 1, 2**30 + 2**22 + 1]
    values += [-v for v in values if v > -(2**63)] + rng.integers(-(2**63), 2**63 - 1, 500).tolist()
    values += [v >> int(k) for v, k in zip(values, rng.integers(0, 60, len(values)), strict=True)]
    found = cast(np.array(values, np.int64), dtype=target).astype(np.float64)
    for value, result in zip(values, found.tolist(), strict=True):
        assert Fraction(result) == nearest(value, target), value


def test_integer_to_half() -> None:
    assert cast(np.int32([2049, 2051, 65519, 65520, -70000]), dtype=f16).tolist() == [2048, 2052, 65504, INF, -INF]
    assert cast(np.int64([2**40, 65519, 65520]), dtype=f16).tolist() == [INF, 65504, INF]


@pytest.mark.parametrize("source", [*INTEGERS, *FLOATS], ids=str)
def test_to_bool(source: DType) -> None:
    x = np.array([0, 1, 2, 100]).astype(source.numpy)
    assert cast(x, dtype=boolean).tolist() == [False, True, True, True]
    if source.is_float:
        special = np.array([NAN, -0.0, INF, 6e-8]).astype(source.numpy)
        assert cast(special, dtype=boolean).tolist() == [True, False, True, True]


@pytest.mark.parametrize("target", [*INTEGERS, *FLOATS, boolean], ids=str)
def test_from_bool(target: DType) -> None:
    found = cast(np.array([False, True]), dtype=target)
    assert found.dtype == target.numpy and found.astype(np.float64).tolist() == [0, 1]


def test_bool_bytes_are_normalised() -> None:
    x = np.uint8([0, 1, 2, 255]).view(np.bool_)
    assert cast(x, dtype=i32).tolist() == [0, 1, 1, 1]
    assert cast(x, dtype=f32).tolist() == [0, 1, 1, 1]
    assert cast(x, dtype=boolean).view(np.uint8).tolist() == [0, 1, 1, 1]


def test_narrowing_to_half() -> None:
    x = np.float32([65519, 65520, 2049, 2051, 2.0**-24, 2.0**-25, 2.0**-25 * 1.001, -0.0, NAN])
    found = cast(x, dtype=f16)
    assert found[:-1].tolist() == [65504, INF, 2048, 2052, 2.0**-24, 0, 2.0**-24, -0.0] and np.isnan(found[-1])
    assert np.signbit(found[7])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_narrowing_to_bf16(kind: type) -> None:
    x = kind([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-9, 3.4e38, -3.4e38, 3.38e38, 1e-40, -0.0])
    expected = [1, 1 + 2.0**-6, 1, INF, -INF, float(ml_dtypes.bfloat16(3.38e38)), float(ml_dtypes.bfloat16(np.float32(1e-40))), -0.0]
    assert cast(x, dtype=bf16).astype(np.float64).tolist() == expected


def test_float64_to_bf16_rounds_once() -> None:
    x = np.float64([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40])  # float32 in between would make both ties
    assert cast(x, dtype=bf16).astype(np.float64).tolist() == [1 + 2.0**-7, 1]


def test_nan_stays_nan() -> None:
    x = np.uint32([0x7F800001, 0xFF800001, 0x7FC12345]).view(np.float32)
    for target in FLOATS:
        assert np.isnan(cast(x, dtype=target).astype(np.float64)).all()


def test_two_casts_round() -> None:
    x = np.float32([65520, 1 + 2.0**-9])
    assert cast(cast(x, dtype=f16), dtype=f32).tolist() == [INF, 1 + 2.0**-9]
    assert cast(cast(x, dtype=bf16), dtype=f32).tolist() == [65536, 1]


@pytest.mark.parametrize("target", list(ELEMENT_DTYPES.values()), ids=str)
def test_shapes(target: DType) -> None:
    for shape in ((), (0, 2), (2, 3)):
        assert cast(np.ones(shape, np.float32), dtype=target).shape == shape
    found = cast.infer([TensorType(f32, (symbol("B"), UNKNOWN_DIM))], ["x"], {"dtype": target})
    assert found == (TensorType(target, (symbol("B"), UNKNOWN_DIM)),)


# -- bitcast -----------------------------------------------------------------------------------------------------------


SAME_WIDTH = [(f32, i32), (i32, f32), (f64, i64), (i64, f64), (f16, i16), (bf16, i16), (i16, bf16), (f16, bf16), (i8, u8)]


@pytest.mark.parametrize("source, target", SAME_WIDTH, ids=str)
def test_bitcast_keeps_every_bit(source: DType, target: DType) -> None:
    raw = np.random.default_rng(6).integers(0, 256, (8, 16 * source.itemsize), dtype=np.uint8)
    x = raw.view(source.numpy)
    found = bitcast(x, dtype=target)
    assert found.dtype == target.numpy and found.shape == x.shape
    np.testing.assert_array_equal(found.view(np.uint8), raw)
    np.testing.assert_array_equal(bitcast(x[:, ::2], dtype=target).view(np.uint8), np.ascontiguousarray(x[:, ::2]).view(np.uint8))
    assert bitcast(x[0, 0], dtype=target).shape == ()
    assert bitcast(x[:0], dtype=target).shape == (0, 16)


def test_bitcast_of_values_kept_wider() -> None:
    for dtype, bits in ((f16, 0x3C00), (bf16, 0x3F80)):
        types = [TensorType(i16, (1,))]
        (found,) = bitcast.evaluate([np.float64([1.0])], ["x"], {"dtype": i16}, types, [dtype], double=True)
        assert found.tolist() == [bits]


def test_bitcast_refuses() -> None:
    with pytest.raises(GraphError, match=r"i64 has 64 bits, the elements of f32\[2\] have 32"):
        bitcast(np.zeros(2, np.float32), dtype=i64)
    with pytest.raises(GraphError, match="bool has no bits to reinterpret"):
        bitcast(np.zeros(2, np.int8), dtype=boolean)
    with pytest.raises(GraphError, match="expected a tensor of numbers, found bool"):
        bitcast(np.zeros(2, np.bool_), dtype=i8)
    with pytest.raises(GraphError, match="needs attribute 'dtype'"):
        cast(np.zeros(2, np.float32))


@pytest.mark.parametrize("target", [f64, f32, f16, bf16], ids=str)
def test_float_to_float_keeps_all_digits_in_double_mode(target: DType) -> None:
    x = np.array([0.1, 1 + 2.0**-40, 65520.0, 1e300])
    (found,) = cast.evaluate([x], ["x"], {"dtype": target}, [TensorType(target, (4,))], [f32], double=True)
    assert found.dtype == np.float64 and found.tobytes() == x.tobytes()


def test_integer_to_float_keeps_all_digits_in_double_mode() -> None:
    """As many as float64 has; without it there is one rounding."""
    x = np.array([2**24 + 1, -(2**30) - 1], np.int32)
    (found,) = cast.evaluate([x], ["x"], {"dtype": f32}, [TensorType(f32, (2,))], [i32], double=True)
    assert found.dtype == np.float64 and found.tolist() == x.tolist()
    (found,) = cast.evaluate([x], ["x"], {"dtype": f32}, [TensorType(f32, (2,))], [i32], double=False)
    assert found.dtype == np.float32 and found.tolist() == [2**24, -(2**30)]
