"""reshape, transpose, expand, squeeze, unsqueeze, flatten."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.shape import expand, flatten, reshape, squeeze, transpose, unsqueeze
from ir.diagnostics import GraphError
from ir.dims import UNKNOWN_DIM, floordiv, symbol
from ir.inference import infer_module
from ir.interpreter import Interpreter
from ir.opdef import TypeProblem
from ir.parser import parse_module
from ir.types import UNKNOWN, TensorType, f32

B, H, S = symbol("B"), symbol("H"), symbol("S")
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.int64, np.int8, np.uint8, np.bool_]


def infer(definition, have, /, **attributes):
    (result,) = definition.infer([TensorType(f32, tuple(have))], ["x"], attributes)
    return result.shape if isinstance(result, TensorType) else result


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == b.tobytes()


# -- reshape -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_reshape_values(dtype):
    x = numbers(2, 3, 4, dtype=dtype)
    same_bits(reshape(x, shape=(4, -1)), x.reshape(4, 6))
    same_bits(reshape(x[:1, :1, :1], shape=()), x[0, 0, 0].reshape(()))
    same_bits(reshape(numbers(dtype=dtype), shape=(1, 1)), numbers(1, 1, dtype=dtype))


def test_reshape_keeps_bits():
    x = np.array([0x7FC00001, 0x80000000, 0xFF800000, 0x7F800001], np.uint32).view(np.float32)
    assert reshape(x, shape=(2, 2)).view(np.uint32).tolist() == [[0x7FC00001, 0x80000000], [0xFF800000, 0x7F800001]]


@pytest.mark.parametrize(
    ("have", "shape", "want"),
    [
        ((B, 4), (-1, 2), (2 * B, 2)),
        ((B, S, 6), (B, 3 * S, 2), (B, 3 * S, 2)),
        ((B, S, 4 * H), (B, S, 4, -1), (B, S, 4, H)),
        ((B, S + 1, 4), (-1, S + 1), (4 * B, S + 1)),
        ((B, S), (-1,), (B * S,)),
        ((S + 1, S + 2), (S * S + 3 * S + 2,), (S * S + 3 * S + 2,)),
        ((B, S), (-1, S), (B, S)),
        ((), (1, -1), (1, 1)),
        ((0, 4), (-1, 2), (0, 2)),
        ((3, 0), (-1, 0), (3, 0)),
        ((0, 4), (4, 0), (4, 0)),
        ((UNKNOWN_DIM, 4), (-1, 8), (UNKNOWN_DIM, 8)),
        ((UNKNOWN_DIM, 4), (B, 8), (B, 8)),
    ],
)
def test_reshape_infers(have, shape, want):
    assert infer(reshape, have, shape=shape) == want


@pytest.mark.parametrize(
    ("have", "shape", "message"),
    [
        ((2, 3), (-1, -1), "more than one -1"),
        ((2, 3), (4, -1), "has 6 elements, the other dimensions of .* make 4"),
        ((2, 3), (5,), r"f32\[2, 3\] has 6 elements, shape=\[5\] has 5"),
        ((B, 4), (4,), r"has 4\*B elements, shape=\[4\] has 4"),
        ((B, S), (S, S), r"has B\*S elements, shape=\[S, S\] has S\*S"),
        ((S,), (floordiv(S, 2), 2), "elements"),
        ((B, S), (-1, 2), "divide"),
        ((0, 3), (-1, 0, 0), "could be anything"),
        ((2, 3), (-1, 0), "could be anything"),
        ((2, 3), (0, 6), "has 0"),
        ((2, 3), (-2, -3), "contains -2"),
        ((2, 3), (UNKNOWN_DIM, 3), "unknown dimension"),
    ],
)
def test_reshape_refuses(have, shape, message):
    with pytest.raises(TypeProblem, match=message) as caught:
        infer(reshape, have, shape=shape)
    assert caught.value.attribute == "shape"


def test_reshape_to_the_same_dimension_when_it_is_zero():
    module = parse_module("graph @main(%x: f32[B, S]) -> f32[B, S] {\n  %y = reshape(%x, shape=[-1, S])\n  return %y\n}\n")
    infer_module(module)
    assert Interpreter(module).run(module.graphs["main"], [np.zeros((3, 0), np.float32)])[0].shape == (3, 0)


# -- transpose ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("perm", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1), (2, 0, 3)])
def test_transpose_values(perm, shape):
    x = numbers(*shape)
    y = transpose(x, perm=perm)
    assert y.shape == tuple(shape[a] for a in perm)
    for index in np.ndindex(y.shape):
        source = [0, 0, 0]
        for i, a in enumerate(perm):
            source[a] = index[i]
        assert y[index] == x[tuple(source)]
    same_bits(transpose(x, perm=tuple(a - 3 for a in perm)).copy(), y.copy())


def test_transpose_reverses_and_keeps_rank_zero():
    assert transpose(numbers(2, 3, 4)).shape == (4, 3, 2)
    assert transpose(numbers()).shape == ()
    assert infer(transpose, (B, UNKNOWN_DIM, 4)) == (4, UNKNOWN_DIM, B)
    assert infer(transpose, (), perm=()) == ()


@pytest.mark.parametrize("perm", [(0, 0), (0, -2), (0,), (0, 1, 2), (0, 2), (0, -3), ()])
def test_transpose_refuses(perm):
    with pytest.raises(TypeProblem) as caught:
        infer(transpose, (2, 3), perm=perm)
    assert caught.value.attribute == "perm"


# -- expand ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "shape", "want"),
    [
        ((3, 1), (2, 3, 4), (2, 3, 4)),
        ((3, 1), (-1, 4), (3, 4)),
        ((), (2, 0), (2, 0)),
        ((1,), (0,), (0,)),
        ((0, 1), (2, 0, 3), (2, 0, 3)),
        ((1, 1), (1, 1), (1, 1)),
    ],
)
def test_expand_values(have, shape, want):
    x = numbers(*have)
    y = expand(x, shape=shape)
    same_bits(y, np.broadcast_to(x, want).copy())
    assert y.flags.writeable


@pytest.mark.parametrize(
    ("have", "shape", "want"),
    [
        ((1, S), (B, S), (B, S)),
        ((B, 1), (2, -1, S), (2, B, S)),
        ((UNKNOWN_DIM, 1), (4, 3), (4, 3)),
        ((UNKNOWN_DIM,), (-1,), (UNKNOWN_DIM,)),
        ((UNKNOWN_DIM,), (B,), (B,)),
    ],
)
def test_expand_infers(have, shape, want):
    assert infer(expand, have, shape=shape) == want


@pytest.mark.parametrize(
    ("have", "shape"),
    [
        ((3,), (4,)),
        ((3,), (1,)),
        ((0,), (1,)),
        ((3, 4), (4,)),
        ((S,), (B,)),
        ((S,), (4,)),
        ((4,), (S,)),
        ((3,), (-1, 3)),
        ((1,), (-2,)),
        ((1,), (UNKNOWN_DIM,)),
    ],
)
def test_expand_refuses(have, shape):
    with pytest.raises(TypeProblem) as caught:
        infer(expand, have, shape=shape)
    assert caught.value.attribute == "shape"


def test_expand_does_not_grow_a_symbol_that_is_one():
    module = parse_module("graph @main(%x: f32[S], %y: f32[T]) {\n  %z = expand(%x, shape=[T])\n  return %z\n}\n")
    with pytest.raises(GraphError, match="S can't become T"):
        infer_module(module)


# -- squeeze, unsqueeze, flatten ---------------------------------------------------------------------------------------


def test_squeeze():
    x = numbers(2, 1, 3, 1)
    same_bits(squeeze(x), x.reshape(2, 3))
    same_bits(squeeze(x, axes=(-1,)), x.reshape(2, 1, 3))
    same_bits(squeeze(x, axes=(3, 1)), x.reshape(2, 3))
    same_bits(squeeze(x, axes=()), x)
    assert squeeze(numbers(1, 1)).shape == ()
    assert squeeze(numbers()).shape == ()
    assert squeeze(numbers(0, 1)).shape == (0,)


def test_squeeze_infers():
    assert infer(squeeze, (B, 1, UNKNOWN_DIM), axes=(1,)) == (B, UNKNOWN_DIM)
    assert infer(squeeze, (B, UNKNOWN_DIM), axes=(1,)) == (B,)
    assert infer(squeeze, (1, UNKNOWN_DIM)) == UNKNOWN
    for shape, axes in [((B, 1), (0,)), ((2, 1), (0,)), ((2, 1), (1, -1)), ((2, 1), (2,)), ((), (0,)), ((0,), (0,))]:
        with pytest.raises(TypeProblem):
            infer(squeeze, shape, axes=axes)
    with pytest.raises(TypeProblem, match="symbolic") as caught:
        infer(squeeze, (B, 1))
    assert caught.value.hint is not None


def test_unsqueeze():
    x = numbers(2, 3)
    same_bits(unsqueeze(x, axes=(0, -1)), x.reshape(1, 2, 3, 1))
    same_bits(unsqueeze(x, axes=(-2, 1)), x.reshape(2, 1, 1, 3))
    same_bits(unsqueeze(x, axes=()), x)
    assert unsqueeze(numbers(), axes=(0,)).shape == (1,)
    assert infer(unsqueeze, (B, UNKNOWN_DIM), axes=(1,)) == (B, 1, UNKNOWN_DIM)
    for axes in [(3,), (-4,), (0, 0), (0, -4)]:
        with pytest.raises(TypeProblem):
            infer(unsqueeze, (2, 3), axes=axes)


def test_flatten():
    x = numbers(2, 3, 4, 5)
    same_bits(flatten(x), x.reshape(2, 60))
    same_bits(flatten(x, start_axis=0), x.reshape(120))
    same_bits(flatten(x, start_axis=-3, end_axis=2), x.reshape(2, 12, 5))
    same_bits(flatten(x, start_axis=2, end_axis=2), x)
    assert flatten(numbers(0, 2, 3)).shape == (0, 6)
    assert infer(flatten, (B, S, 4, UNKNOWN_DIM), end_axis=2) == (B, 4 * S, UNKNOWN_DIM)
    assert infer(flatten, (B, S, UNKNOWN_DIM)) == (B, UNKNOWN_DIM)
    for shape, attributes in [((), {}), ((3,), {}), ((2, 3), {"start_axis": 1, "end_axis": 0}), ((2, 3), {"end_axis": 2})]:
        with pytest.raises(TypeProblem):
            infer(flatten, shape, **attributes)


def test_problem_points_at_the_attribute():
    module = parse_module("graph @main(%x: f32[B, 4]) {\n  %y = reshape(%x, shape=[B, 5])\n  return %y\n}\n")
    with pytest.raises(GraphError, match=r"4\*B elements, shape=\[B, 5\] has 5\*B") as caught:
        infer_module(module)
    assert ":2:20: error" in str(caught.value)
