"""lower-to-linalg: gather, gather_elements, scatter, assert, and powers of integers."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_checks import assert_same, assert_same_error, error_of, lowered

from ir.types import DTYPES

ELEMENTS = ("f32", "f64", "f16", "bf16", "i64", "i8", "u8", "bool")


def numbers(dtype: str, *shape: int) -> np.ndarray:
    """Distinct numbers as far as the type has them; the first of floats are NaN and -0."""
    found = np.arange(int(np.prod(shape)))
    if DTYPES[dtype].is_float:
        special = found.astype(np.float64)
        special[:2] = [np.nan, -0.0][: special[:2].size]
        return special.astype(DTYPES[dtype].numpy).reshape(shape)
    return found.astype(DTYPES[dtype].numpy).reshape(shape)


def gather_text(x: str, indices: str, axis: int, result: str = "gather") -> str:
    return f"graph @main(%x: {x}, %i: {indices}) {{\n  %y = {result}(%x, %i, axis={axis})\n  return %y\n}}\n"


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("integer", ["i64", "i32", "i16", "i8", "u8"])
def test_gather_element_types(dtype: str, integer: str) -> None:
    programs = lowered(gather_text(f"{dtype}[N, 3]", f"{integer}[B, 2]", 0))
    indices = np.array([[0, 3], [2, 2]] + ([[-1, -4]] if integer != "u8" else []))
    assert_same(programs, numbers(dtype, 4, 3), indices.astype(DTYPES[integer].numpy))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("indices", [np.int32(1), np.int32([0, -2, 1, 1]), np.int32([[1], [-1]]), np.zeros((0, 2), np.int32)])
def test_gather_axes(axis: int, indices: np.ndarray) -> None:
    declared = {0: "i32[]", 1: "i32[I]", 2: "i32[I, J]"}[np.ndim(indices)]
    for shape in ("2, 3, 4", "A, B, C"):
        assert_same(lowered(gather_text(f"f32[{shape}]", declared, axis)), numbers("f32", 2, 3, 4), np.asarray(indices))


def test_gather_of_nothing() -> None:
    programs = lowered(gather_text("f32[N, D]", "i64[B]", 0))
    assert_same(programs, numbers("f32", 0, 3), np.zeros(0, np.int64))
    assert_same(programs, numbers("f32", 2, 0), np.int64([1, 0]))
    assert_same(programs, numbers("f32", 1, 1), np.int64([0, -1, 0]))


@pytest.mark.parametrize("bad", [3, -4, 2**62, -(2**63)])
def test_gather_errors(bad: int) -> None:
    programs = lowered(gather_text("f32[3, D]", "i64[B]", 0))
    message = assert_same_error(programs, numbers("f32", 3, 2), np.int64([0, bad, 7]))
    assert message == f"gather: gather index {bad} at position [1] is out of range for axis 0: expected -3 <= index < 3"
    assert_same_error(programs, numbers("f32", 3, 0), np.int64([bad]))  # although there is nothing to read
    assert_same_error(lowered(gather_text("f32[N, D]", "i64[B]", 0)), numbers("f32", 0, 2), np.int64([bad]))
    assert_same_error(lowered(gather_text("f32[A, 0]", "i64[B]", 1)), numbers("f32", 2, 0), np.int64([bad]))
    rank_0 = lowered(gather_text("f32[N]", "i64[]", -1))
    assert_same_error(rank_0, numbers("f32", 3), np.array(bad))
    assert_same_error(lowered(gather_text("f32[N, 2]", "i64[B]", 0)), numbers("f32", 3, 2), np.int64([bad]))
    # where there is no room for the position, all but it is said
    matrix = lowered(gather_text("f32[N, D]", "i64[B, 2]", 0))[1]
    assert error_of(matrix, numbers("f32", 3, 2), np.int64([[0, 1], [bad, 0]])) == (
        f"gather: gather index {bad} is out of range for axis 0: expected -3 <= index < 3"
    )


def test_embedding() -> None:
    programs = lowered("graph @main(%t: f16[V, 4], %i: i64[B, S]) {\n  %y = embedding(%t, %i)\n  return %y\n}\n")
    assert_same(programs, numbers("f16", 5, 4), np.int64([[0, 4, 2], [-1, -5, 1]]))


@pytest.mark.parametrize(("shape", "axis"), [("B, 5", 1), ("B, 5", -1), ("A, B, C", 1), ("N", 0)])
def test_gather_elements(shape: str, axis: int) -> None:
    sizes = {1: (4,), 2: (2, 5), 3: (2, 3, 2)}[len(shape.split(","))]
    declared = [d.strip() for d in shape.split(",")]
    declared[axis] = "K"
    indices_shape = list(sizes)
    indices_shape[axis] = 7
    programs = lowered(gather_text(f"f32[{shape}]", f"i64[{', '.join(declared)}]", axis, "gather_elements"))
    size = sizes[axis]
    indices = np.random.default_rng(0).integers(-size, size, indices_shape)
    assert_same(programs, numbers("f32", *sizes), indices)
    indices[...] = size
    message = error_of(programs[1], numbers("f32", *sizes), indices)
    assert f"gather_elements index {size}" in message and message.endswith(f"expected {-size} <= index < {size}")


@pytest.mark.parametrize("dtype", ELEMENTS)
def test_scatter_the_last_one_wins(dtype: str) -> None:
    text = f"graph @main(%x: {dtype}[N, D], %i: i32[B, 2], %u: {dtype}[B, 2, D]) {{\n  %y = scatter(%x, %i, %u)\n  return %x, %y\n}}\n"
    programs = lowered(text)
    assert_same(programs, numbers(dtype, 3, 2), np.int32([[0, 2], [-1, 0], [2, -3]]), numbers(dtype, 3, 2, 2))
    assert_same(programs, numbers(dtype, 0, 2), np.zeros((0, 2), np.int32), numbers(dtype, 0, 2, 2))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_axes(axis: int) -> None:
    shape, updates = (2, 3, 4), [2, 3, 4]
    updates[axis : axis + 1 or None] = [5]
    names = [["5", "B", "C"], ["A", "5", "C"], ["A", "B", "5"]][axis]
    text = f"graph @main(%x: f32[A, B, C], %i: i8[5], %u: f32[{', '.join(names)}]) {{\n  %y = scatter(%x, %i, %u, axis={axis})\n  return %y\n}}\n"
    assert_same(lowered(text), numbers("f32", *shape), np.int8([1, 0, -1, 1, -2]), -numbers("f32", *updates))


def test_scatter_errors() -> None:
    text = "graph @main(%x: f32[4, D], %i: i64[B], %u: f32[B, D]) {\n  %y = scatter(%x, %i, %u)\n  return %y\n}\n"
    message = assert_same_error(lowered(text), numbers("f32", 4, 1), np.int64([0, 4]), numbers("f32", 2, 1))
    assert message == "scatter: scatter index 4 at position [1] is out of range for axis 0: expected -4 <= index < 4"


# -- assert ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["", "N", "N, 2"])
@pytest.mark.parametrize("message", ["", 'message="ids are {negative}"'])
def test_assert(shape: str, message: str) -> None:
    programs = lowered(f"graph @main(%c: bool[{shape}]) {{\n  assert(%c{', ' * bool(message)}{message})\n  return %c\n}}\n")
    sizes = {"": (), "N": (3,), "N, 2": (3, 2)}[shape]
    assert_same(programs, np.ones(sizes, np.bool_))
    wrong = np.arange(int(np.prod(sizes))).reshape(sizes) % 3 == 1 - bool(shape)
    found = assert_same_error(programs, wrong)
    assert ("ids are {negative}" if message else "an element is false") in found
    if shape:
        assert_same(programs, np.ones((0, *sizes[1:]), np.bool_))


def test_assert_without_room_for_the_position() -> None:
    text = 'graph @main(%c: bool[{}]) {{\n  assert(%c, message="{}")\n  return %c\n}}\n'
    assert error_of(lowered(text.format("2, 2, 2", "no"))[1], np.zeros((2, 2, 2), np.bool_)) == "assert: no"
    assert error_of(lowered(text.format("2", "no {0}"))[1], np.zeros(2, np.bool_)) == "assert: no {0}"


def test_effects_keep_their_order() -> None:
    text = """graph @main(%c: bool[], %x: i64[N], %i: i64[B]) -> i64[B] {
  assert(%c, message="first")
  %y = gather(%x, %i)
  return %y
}
"""
    programs = lowered(text)
    assert assert_same_error(programs, np.array(False), np.int64([1]), np.int64([5])) == "assert: first"
    assert "gather index" in error_of(programs[1], np.array(True), np.int64([1]), np.int64([5]))


# -- powers ------------------------------------------------------------------------------------------------------------

INTEGERS = ("i64", "i32", "i16", "i8", "u8")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_powers(dtype: str) -> None:
    type_ = DTYPES[dtype]
    programs = lowered(f"graph @main(%x: {dtype}[N, 1], %y: {dtype}[M]) {{\n  %z = pow(%x, %y)\n  return %z\n}}\n")
    bases = [v for v in (0, 1, 2, 3, -1, -2, 7, type_.min_value, type_.max_value) if v >= type_.min_value]
    exponents = [0, 1, 2, 3, 7, 8, 31, 62, 100, type_.max_value]
    assert_same(programs, np.array(bases, type_.numpy)[:, None], np.array(exponents, type_.numpy))


def test_negative_powers() -> None:
    text = "graph @main(%x: i32[{0}], %y: i32[{1}]) {{\n  %z = pow(%x, %y)\n  return %z\n}}\n"
    assert assert_same_error(lowered(text.format("", "")), np.array(2, np.int32), np.array(-3, np.int32)).endswith("x is 2, y is -3")
    programs = lowered(text.format("N, 1", "M"))
    assert error_of(programs[1], np.int32([[5]]), np.int32([1, -1])) == "pow: negative exponent of an integer: x is 5, y is -1"
    assert_same(programs, np.zeros((0, 1), np.int32), np.int32([-1]))  # nothing is computed
