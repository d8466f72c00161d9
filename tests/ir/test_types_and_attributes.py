"""Texts of types; attributes as keys; floats as text."""

from __future__ import annotations

import itertools
import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dialects  # noqa: F401
from ir.attributes import Attribute, Dense, FileRef, GraphRef, attribute_key, is_attribute
from ir.dims import UNKNOWN_DIM, Dim, floordiv, symbol
from ir.parser import parse_module, parse_type
from ir.printer import format_attribute, format_dense, format_float, format_name
from ir.types import (
    DTYPES,
    ELEMENT_DTYPES,
    UNKNOWN,
    MemRefType,
    ScalarType,
    TensorType,
    Type,
    VectorType,
    boolean,
    f32,
    f64,
    i32,
    i64,
    merge_types,
    q4_0,
    q4_1,
    q8_0,
    u8,
)

DIMS = st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([symbol("B"), symbol("S") + 1, floordiv(symbol("N"), 2), UNKNOWN_DIM]))
ANY_DTYPE = st.sampled_from(list(ELEMENT_DTYPES.values()))
BLOCK_SIZES = st.one_of(st.integers(0, 2**58 - 1).map(lambda n: 32 * n), st.sampled_from([32 * symbol("B"), symbol("S") * 64 + 32, UNKNOWN_DIM]))


def types() -> st.SearchStrategy[Type]:
    shape = st.lists(DIMS, max_size=4).map(tuple)
    static = st.lists(st.integers(1, 64), min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.just(UNKNOWN),
        st.builds(TensorType, ANY_DTYPE, shape),
        st.builds(lambda d, s, last: TensorType(d, (*s, last)), st.sampled_from([q4_0, q4_1, q8_0]), shape, BLOCK_SIZES),
        st.builds(ScalarType, ANY_DTYPE),
        st.builds(VectorType, ANY_DTYPE, static),
        st.builds(MemRefType, ANY_DTYPE, shape, st.sampled_from(["", "shared"]), st.sampled_from([0, 64, 128])),
    )


@given(types())
def test_type_text_reads_back(type_: Type) -> None:
    assert parse_type(str(type_)) == type_


def test_rank_0_is_not_a_scalar() -> None:
    assert parse_type("f32[]") == TensorType(f32, ()) != ScalarType(f32) == parse_type("f32")
    assert merge_types(TensorType(f32, ()), ScalarType(f32)) is None


@given(types(), types())
def test_merging(a: Type, b: Type) -> None:
    assert merge_types(a, a) == a and merge_types(a, UNKNOWN) == a and merge_types(UNKNOWN, b) == b
    merged = merge_types(a, b)
    assert (merged is None) == (merge_types(b, a) is None)
    if merged is not None:
        assert merge_types(merged, a) == merged and merge_types(merged, b) == merged


def test_merging_takes_what_is_known() -> None:
    b: Dim = symbol("B")
    assert merge_types(TensorType(f32, (UNKNOWN_DIM, 4)), TensorType(f32, (b, UNKNOWN_DIM))) == TensorType(f32, (b, 4))
    assert merge_types(TensorType(f32, (b,)), TensorType(f32, (symbol("S"),))) is None
    assert merge_types(TensorType(f32, (4,)), TensorType(f64, (4,))) is None


# -- keys --------------------------------------------------------------------------------------------------------------

QUIET, PAYLOAD = (struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8000000000000, 0x7FF8000000000001))
DISTINCT: list[Attribute] = [
    *(None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, "1", "", "f32", 2**63, math.inf, -math.inf, QUIET, PAYLOAD),
    *(f32, f64, boolean, ScalarType(f32), TensorType(f32, ()), TensorType(f32, (1,)), VectorType(f32, (1,)), MemRefType(f32, (1,)), UNKNOWN),
    *(symbol("B"), symbol("S"), UNKNOWN_DIM, GraphRef("a"), FileRef("a"), GraphRef("b")),
    *((), (1,), (1.0,), (True,), (0.0,), (-0.0,), (1, 2), ((1,), 2), ("1",), (None,)),
    *(Dense(np.array(v, np.float32), f32) for v in (0.0, -0.0, 1.0, np.nan)),
    *(Dense(np.array([1], d)) for d in (np.int32, np.int64, np.uint8, np.float32, np.bool_)),
    Dense(np.array([[1]], np.int32)),
    Dense(np.array([], np.float32)),
    Dense(np.zeros((0, 2), np.float32)),
    Dense(np.array(0x7FC00001, np.uint32).view(np.float32), f32),
]


def test_python_would_confuse_them() -> None:
    assert len(dict.fromkeys([1, True, 1.0])) == 1 and 0.0 == -0.0 and QUIET != QUIET


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(range(len(DISTINCT)), 2)))
def test_keys_of_different_attributes_differ(a: int, b: int) -> None:
    assert attribute_key(DISTINCT[a]) != attribute_key(DISTINCT[b])


@pytest.mark.parametrize("value", DISTINCT, ids=lambda v: type(v).__name__)
def test_keys_of_the_same_attribute(value: Attribute) -> None:
    assert is_attribute(value)
    key = attribute_key(value)
    assert key == attribute_key(value) and hash(key) == hash(attribute_key(value)) and {key: 1}[attribute_key(value)] == 1


def test_nan_is_a_key() -> None:
    """NaN is not equal to itself, but the same attribute as one with the same bits."""
    other = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    assert attribute_key((PAYLOAD,)) == attribute_key((other,)) != attribute_key((QUIET,))


def test_dense_does_not_change_with_its_array() -> None:
    array = np.array([1, 2], np.int32)
    dense = Dense(array)
    key = attribute_key(dense)
    array[0] = 7
    assert attribute_key(dense) == key == attribute_key(Dense(np.array([1, 2], np.int32))) and not dense.array.flags.writeable
    assert Dense(np.asfortranarray([[1, 2], [3, 4]])) == Dense(np.array([[1, 2], [3, 4]]))
    assert Dense(np.array([1, 2], ">i4")) == Dense(np.array([1, 2], "<i4"))


# -- floats as text ----------------------------------------------------------------------------------------------------

KINDS = {"f64": (np.float64, np.uint64), "f32": (np.float32, np.uint32), "f16": (np.float16, np.uint16), "bf16": (ml_dtypes.bfloat16, np.uint16)}


def reread(text: str, dtype: str) -> np.ndarray:
    module = parse_module(f"graph @main() -> {dtype}[] {{\n  %c = constant({text}) : {dtype}[]\n  return %c\n}}\n")
    value = next(iter(module.main.block)).attributes["value"]
    assert isinstance(value, Dense)
    return value.array


def check_bits(bits: int, dtype: str) -> str:
    kind, unsigned = KINDS[dtype]
    array = np.array(bits, unsigned).view(kind)
    text = format_dense(Dense(array, DTYPES[dtype]))
    assert int(reread(text, dtype).view(unsigned)[()]) == bits, text
    return text


@pytest.mark.parametrize("dtype", KINDS)
@given(data=st.data())
def test_float_elements_read_back(dtype: str, data: st.DataObject) -> None:
    check_bits(data.draw(st.integers(0, 2 ** DTYPES[dtype].bits - 1)), dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_16_bit_float_reads_back(dtype: str) -> None:
    kind, _ = KINDS[dtype]
    array = np.arange(2**16, dtype=np.uint16).view(kind)
    text = format_dense(Dense(array, DTYPES[dtype]))
    module = parse_module(f"graph @main() -> {dtype}[65536] {{\n  %c = constant({text}) : {dtype}[65536]\n  return %c\n}}\n")
    value = next(iter(module.main.block)).attributes["value"]
    assert isinstance(value, Dense) and np.array_equal(value.array.view(np.uint16), array.view(np.uint16))


def digits(text: str) -> int:
    return len(text.lstrip("-").partition("e")[0].replace(".", "").strip("0")) or 1


@pytest.mark.parametrize("dtype", KINDS)
@given(data=st.data())
def test_float_text_is_the_shortest(dtype: str, data: st.DataObject) -> None:
    """No decimal with one digit less rounds to the same element."""
    kind, unsigned = KINDS[dtype]
    element = np.array(data.draw(st.integers(0, 2 ** DTYPES[dtype].bits - 1)), unsigned).view(kind)[()]
    if not math.isfinite(float(element)):
        return
    count = digits(format_dense(Dense(np.array(element), DTYPES[dtype])))
    if count > 1:
        shorter = f"{float(element):.{count - 2}e}"
        assert kind(float(shorter)) != element, shorter


@pytest.mark.parametrize(
    ("dtype", "bits", "text"),
    [
        ("f32", 0x00000000, "0.0"),
        ("f32", 0x80000000, "-0.0"),
        ("f32", 0x3DCCCCCD, "0.1"),
        ("f32", 0x7F800000, "inf"),
        ("f32", 0xFF800000, "-inf"),
        ("f32", 0x7FC00000, "nan"),
        ("f32", 0x7F800001, "bits(0x7f800001)"),
        ("f32", 0xFFC00000, "bits(0xffc00000)"),
        ("f32", 0x00000001, "1e-45"),
        ("f32", 0x7F7FFFFF, "3.4028235e38"),
        ("f64", 0x3FB999999999999A, "0.1"),
        ("f64", 0x0000000000000001, "5e-324"),
        ("f64", 0x7FF0000000000001, "bits(0x7ff0000000000001)"),
        ("f16", 0x7BFF, "6.55e4"),
        ("f16", 0x7C01, "bits(0x7c01)"),
        ("bf16", 0x3DCD, "0.1"),
        ("bf16", 0x7FC1, "bits(0x7fc1)"),
    ],
)
def test_float_texts(dtype: str, bits: int, text: str) -> None:
    assert check_bits(bits, dtype) == text


@given(st.floats())
def test_float_attributes_read_back(value: float) -> None:
    module = parse_module(f"graph @main(%x: f32[2]) -> f32[2] {{\n  %y = abs(%x, t.a={format_float(value)})\n  return %y\n}}\n")
    found = next(iter(module.main.block)).attributes["t.a"]
    assert attribute_key(found) == attribute_key(value)


@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64), st.floats(allow_nan=False), ANY_DTYPE), st.lists, max_leaves=6))
def test_attributes_read_back(value: object) -> None:
    def freeze(v: object) -> Attribute:
        return tuple(map(freeze, v)) if isinstance(v, list) else v  # type: ignore[return-value]

    attribute = freeze(value)
    module = parse_module(f"graph @main(%x: f32[2]) -> f32[2] {{\n  %y = abs(%x, t.a={format_attribute(attribute)})\n  return %y\n}}\n")
    assert attribute_key(next(iter(module.main.block)).attributes["t.a"]) == attribute_key(attribute)


@given(st.text(st.characters(blacklist_categories=("Cs",))))
def test_strings_read_back(value: str) -> None:
    module = parse_module(f"graph @main(%x: f32[2]) -> f32[2] {{\n  %y = abs(%x, t.a={format_attribute(value)})\n  return %y\n}}\n")
    assert next(iter(module.main.block)).attributes["t.a"] == value


@given(st.text(st.characters(blacklist_categories=("Cs",)), min_size=1).filter(str.isprintable))
def test_names_read_back(name: str) -> None:
    if name == "_":
        return
    module = parse_module(f"graph @main({format_name(name)}: f32[2]) -> f32[2] {{\n  return {format_name(name)}\n}}\n")
    assert module.main.parameters[0].name == name


def test_integers_of_all_widths() -> None:
    for dtype in (i32, i64, u8, DTYPES["i8"], DTYPES["i16"]):
        for value in (dtype.min_value, dtype.max_value, 0):
            assert int(reread(str(value), dtype.name)) == value
