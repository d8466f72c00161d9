"""lower-to-linalg: sort, argsort, topk, argmax, argmin, cumsum, and extremes that may have nothing to choose from."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_checks import assert_same, assert_same_error, lowered

import graph_opt
from ir.types import DTYPES
from passes.linalg import _sorting

NUMERIC = ("f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8")
SPECIAL = [0.0, np.nan, 1.0, -0.0, -np.inf, np.nan, 1.0, np.inf, -1.5, 0.0, -0.0, np.inf, 3.0, -np.inf]


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Few values, so that many are equal; of floats NaN (of two kinds), infinities and both zeros."""
    generator = np.random.default_rng(seed)
    type_ = DTYPES[dtype]
    if type_.is_float:
        found = generator.choice(SPECIAL, shape)
        return np.copysign(found, generator.choice([1.0, -1.0], shape), where=np.isnan(found), out=found).astype(type_.numpy)
    return generator.choice([type_.min_value, type_.max_value, 0, 1, 5], shape).astype(type_.numpy)


def program(call: str, type_: str, results: str = "%y") -> str:
    return f"graph @main(%x: {type_}) {{\n  {results} = {call}\n  return {results}\n}}\n"


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("descending", ["false", "true"])
def test_sort_and_argsort(dtype: str, descending: str) -> None:
    for op in ("sort", "argsort"):
        programs = lowered(program(f"{op}(%x, descending={descending})", f"{dtype}[B, S]"))
        for size in (0, 1, 2, 3, 8, 13):
            assert_same(programs, numbers(dtype, 3, size, seed=size))
        for size in (1, 2, 5, 8, 9):
            assert_same(lowered(program(f"{op}(%x, descending={descending})", f"{dtype}[2, {size}]")), numbers(dtype, 2, size))


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
@pytest.mark.parametrize("type_", ["f32[A, B, C]", "f32[4, 3, 5]"])
def test_sort_axes(axis: int, type_: str) -> None:
    for op in ("sort", "argsort"):
        assert_same(lowered(program(f"{op}(%x, axis={axis})", type_)), numbers("f32", 4, 3, 5))
    assert_same(lowered(program(f"topk(%x, k=2, axis={axis})", type_, "%y, %z")), numbers("f32", 4, 3, 5))


def test_sort_of_one_row() -> None:
    assert_same(lowered(program("sort(%x, axis=0)", "i32[S]")), numbers("i32", 20))


def test_every_length_sorts() -> None:
    """Against numpy alone: the runs of a merge sort end at odd places."""
    programs = lowered(program("sort(%x)", "i64[S]"))
    for size in range(20):
        assert_same(programs, np.random.default_rng(size).permutation(size))


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("largest", ["false", "true"])
@pytest.mark.parametrize("selected", [0, 64])
def test_topk(dtype: str, largest: str, selected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of finding them."""
    monkeypatch.setattr(_sorting, "_SELECTED", selected)
    for k, size in ((0, 3), (1, 9), (3, 3), (4, 13)):
        for declared in ("S", str(size)):
            programs = lowered(program(f"topk(%x, k={k}, largest={largest})", f"{dtype}[B, {declared}]", "%v, %i"))
            for seed in range(3):
                assert_same(programs, numbers(dtype, 2, size, seed=seed))
    assert_same(programs, numbers(dtype, 0, 13))


def test_topk_errors() -> None:
    for type_, shape in (("f32[2, S]", (2, 2)), ("f32[B, S]", (4, 1)), ("f32[A, B, S]", (4, 5, 2)), ("f32[B, B, S]", (0, 0, 2)), ("i32[S]", (0,))):
        programs = lowered(program("topk(%x, k=3)", type_, "%v, %i"))
        message = assert_same_error(programs, np.zeros(shape, DTYPES[type_[:3]].numpy))
        assert message == f"topk: k=3 is more than the {shape[-1]} elements along axis {len(shape) - 1} of {type_[:3]}{list(shape)}"


# -- places of extremes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_places_of_extremes(dtype: str, op: str) -> None:
    programs = lowered(program(f"{op}(%x)", f"{dtype}[B, S]"))
    for seed in range(6):
        assert_same(programs, numbers(dtype, 4, 5, seed=seed))
    type_ = DTYPES[dtype]
    worst = np.array([type_.min_value, type_.max_value]) if not type_.is_float else np.array([-np.inf, np.inf])
    assert_same(programs, np.array([[v] * 3 for v in worst]).astype(type_.numpy))
    assert_same(programs, np.array([[worst[0], worst[1]], [worst[1], worst[0]]]).astype(type_.numpy))
    assert_same(programs, numbers(dtype, 0, 3))
    assert_same(programs, numbers(dtype, 3, 1))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8"])
def test_places_along_a_known_axis(dtype: str) -> None:
    """They are numbers of 32 bits until the last one is found."""
    for op, axis in (("argmax", 1), ("argmin", 1), ("argmax", 0)):
        for size in (1, 2, 5):
            programs = lowered(program(f"{op}(%x, axis={axis})", f"{dtype}[{size}, {size}]"))
            for seed in range(4):
                assert_same(programs, numbers(dtype, size, size, seed=seed))
        assert "minsi" in str(programs[-1]) and "linalg.reduce" in str(programs[-1])


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_machine_code_finds_the_first_place(op: str) -> None:
    for rows, size in ((1, 1), (3, 15), (5, 16), (2, 63), (4, 64), (1, 65), (7, 130), (5, 1000)):
        for axis in (0, 1):
            run = graph_opt.compile(graph_opt.parse(program(f"{op}(%x, axis={axis})", f"f32[{rows}, {size}]")))
            for seed in range(3):
                x = numbers("f32", rows, size, seed=seed)
                for found in (x, np.where(np.isnan(x), np.float32(-0.0), x), np.full_like(x, 2)):
                    assert np.array_equal(run(found), getattr(np, op)(found, axis=axis))


@pytest.mark.parametrize(("axis", "keepdims"), [(0, "false"), (1, "true"), (-1, "false"), (-3, "true")])
def test_axes_of_places(axis: int, keepdims: str) -> None:
    programs = lowered(program(f"argmin(%x, axis={axis}, keepdims={keepdims})", "f32[A, 3, C]"))
    assert_same(programs, numbers("f32", 2, 3, 4))


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_no_place(op: str) -> None:
    programs = lowered(program(f"{op}(%x)", "f32[B, S]"))
    for rows in (0, 3):
        message = assert_same_error(programs, np.zeros((rows, 0), np.float32))
        assert message == f"{op}: f32[{rows}, 0] has no elements along axis 1, so there is none to choose"


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_of_symbolic_dimensions(dtype: str, op: str) -> None:
    for options, type_ in (("", "[B, S]"), (", axes=[1]", "[B, S]"), (", axes=[0], keepdims=true", "[B, 3]"), (", axes=[0, 2]", "[B, 2, S]")):
        programs = lowered(program(f"{op}(%x{options})", dtype + type_))
        sizes = {"B": 2, "S": 4, "2": 2, "3": 3}
        for seed in range(4):
            assert_same(programs, numbers(dtype, *(sizes[d] for d in type_[1:-1].split(", ")), seed=seed))


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_of_nothing(op: str) -> None:
    programs = lowered(program(f"{op}(%x)", "i32[B, S]"))
    for shape, axis in (((0, 3), 0), ((3, 0), 1), ((0, 0), 0)):
        message = assert_same_error(programs, np.zeros(shape, np.int32))
        assert message == f"{op}: i32{list(shape)} has no elements along axis {axis}, so there is none to choose"
    rows = lowered(program(f"{op}(%x, axes=[-1])", "i32[B, S]"))
    assert_same(rows, np.zeros((0, 3), np.int32))
    assert_same_error(rows, np.zeros((0, 0), np.int32))


# -- running sums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_sums(dtype: str, axis: int) -> None:
    programs = lowered(program(f"cumsum(%x, axis={axis})", f"{dtype}[B, S]"))
    for shape in ((3, 5), (1, 1), (0, 3), (3, 0)):
        assert_same(programs, numbers(dtype, *shape))
    real = (np.random.default_rng(1).standard_normal((4, 33)) * 10).astype(DTYPES[dtype].numpy)
    assert_same(programs, real)


def test_running_sums_are_rounded_once() -> None:
    programs = lowered(program("cumsum(%x)", "f32[S]"))
    assert_same(programs, np.float32([2**24, 1, 1, 1, 1, -(2**24)]))
    assert_same(programs, np.float32([-0.0, -0.0, 1, -1, -0.0]))
