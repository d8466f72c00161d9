"""concat, split, slice, flip, pad, gather, embedding, scatter, gather_elements, tril, triu."""

from __future__ import annotations

import itertools
import random

import ml_dtypes
import numpy as np
import pytest

from dialects.graph._symbolic import at_least_zero, slice_length
from dialects.graph.indexing import concat, embedding, flip, gather, gather_elements, pad, scatter, slice_, split, tril, triu
from ir.diagnostics import GraphError
from ir.dims import UNKNOWN_DIM, ceildiv, dim_max, dim_min, mod, substitute, symbol
from ir.inference import infer_module
from ir.interpreter import Interpreter
from ir.opdef import ExecutionError, TypeProblem, check_attributes
from ir.parser import parse_module
from ir.types import TensorType, f16, f32, i32, i64

B, N, S, T = map(symbol, "BNST")
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int8, np.uint8, np.bool_]
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def shapes(definition, *operands, names=None, **attributes):
    types = [t if isinstance(t, TensorType) else TensorType(f32, tuple(t)) for t in operands]
    names = names or [o.name for o in definition.required_operands]
    result = definition.infer(types, names, check_attributes(definition, attributes))
    return result[0].shape if len(result) == 1 else [r.shape for r in result]


def numbers(*shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == b.tobytes()


# -- concat and split --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_concat_values(dtype):
    x, y = numbers(2, 3, dtype=dtype), numbers(2, 1, dtype=dtype)
    same_bits(concat(x, y, x, axis=1), np.hstack([x, y, x]))
    same_bits(concat(x, axis=-2), x)
    same_bits(concat(x, x[:0], x[:0], axis=0), x)
    assert concat(x[:0], x[:0], axis=0).shape == (0, 3)


def test_concat_many():
    parts = [np.full((1, 2), i, np.int32) for i in range(10_000)]
    same_bits(concat(*parts, axis=0), np.repeat(np.arange(10_000, dtype=np.int32), 2).reshape(-1, 2))


def concat_shape(*operands, axis):
    return shapes(concat, *operands, names=["xs"] * len(operands), axis=axis)


def test_concat_infers():
    assert concat_shape((B, S), (B, 2), (B, S), axis=1) == (B, 2 * S + 2)
    assert concat_shape((UNKNOWN_DIM, 2), (B, 3), axis=-1) == (B, 5)
    assert concat_shape((B, 2), (B, UNKNOWN_DIM), axis=1) == (B, UNKNOWN_DIM)
    assert concat_shape((UNKNOWN_DIM, 2), (UNKNOWN_DIM, 2), axis=0) == (UNKNOWN_DIM, 2)


@pytest.mark.parametrize(
    ("operands", "axis", "operand"),
    [
        ([(2, 3), (3, 3)], 1, 1),
        ([(B, 3), (S, 3)], 1, 1),
        ([(2, 3), (2, 3), (2, 3, 1)], 1, 2),
        ([(2, 3), TensorType(f16, (2, 3))], 1, 1),
        ([(2, 3)], 2, None),
        ([()], 0, None),
        ([], 0, None),
    ],
)
def test_concat_refuses(operands, axis, operand):
    with pytest.raises(TypeProblem) as caught:
        concat_shape(*operands, axis=axis)
    assert caught.value.operand == operand


def test_split_values():
    x = numbers(2, 6)
    for part, want in zip(split(x, axis=1, sections=3), np.split(x, 3, axis=1), strict=True):
        same_bits(part.copy(), want.copy())
    a, b, c = split(x, axis=-1, sizes=(2, 0, 4))
    assert a.tolist() == [[0, 1], [6, 7]] and b.shape == (2, 0) and c.tolist() == [[2, 3, 4, 5], [8, 9, 10, 11]]
    same_bits(split(x, axis=0, sections=1), x)
    assert [p.shape for p in split(x[:, :0], axis=1, sections=2)] == [(2, 0), (2, 0)]


def test_split_infers():
    assert shapes(split, (B, 3 * S), axis=1, sections=3) == [(B, S)] * 3
    assert shapes(split, (B, S + T), axis=1, sizes=(S, T)) == [(B, S), (B, T)]
    assert shapes(split, (UNKNOWN_DIM,), axis=0, sections=2) == [(UNKNOWN_DIM,)] * 2
    assert shapes(split, (UNKNOWN_DIM,), axis=0, sizes=(2, 3)) == [(2,), (3,)]


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((5,), {"sections": 2}),
        ((S,), {"sections": 2}),
        ((5,), {"sections": 0}),
        ((5,), {"sections": 10**12}),
        ((5,), {"sizes": (2, 2)}),
        ((5,), {"sizes": (7, -2)}),
        ((0,), {"sizes": ()}),
        ((5,), {}),
        ((5,), {"sections": 1, "sizes": (5,)}),
    ],
)
def test_split_refuses(shape, attributes):
    with pytest.raises(TypeProblem):
        shapes(split, shape, axis=0, **attributes)


def test_split_in_a_program_counts_results():
    good = parse_module("graph @main(%x: f32[B, 3*H]) {\n  %q, %k, %v = split(%x, axis=1, sections=3)\n  return %q, %k, %v\n}\n")
    infer_module(good)
    x = numbers(2, 6)
    for found, want in zip(Interpreter(good).run(good.graphs["main"], [x]), np.split(x, 3, axis=1), strict=True):
        same_bits(found, want.copy())
    bad = parse_module("graph @main(%x: f32[B, 6]) {\n  %q, %k = split(%x, axis=1, sections=3)\n  return %q, %k\n}\n")
    with pytest.raises(GraphError, match="3 results here, but 2 are named"):
        infer_module(bad)


# -- slice -------------------------------------------------------------------------------------------------------------

BOUNDS = [None, INT64_MIN, -7, -6, -5, -1, 0, 1, 2, 4, 5, 6, INT64_MAX]


@pytest.mark.parametrize("step", [1, 2, 3, 7, -1, -2, -5, INT64_MAX, INT64_MIN])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_slice_is_numpys(size, step):
    x = numbers(size)
    for start, end in itertools.product(BOUNDS, BOUNDS):
        want = x[start:end:step]
        assert slice_length(size, start, end, step) == len(want), (start, end)
        same_bits(slice_(x, starts=(start,), ends=(end,), steps=(step,)).copy(), want.copy())


def test_slice_axes_keep_their_order():
    x = numbers(4, 5, 6)
    found = slice_(x, starts=(1, -1), ends=(3, none := None), axes=(2, 0), steps=(1, -2))
    same_bits(found.copy(), x[-1:none:-2, :, 1:3].copy())
    same_bits(slice_(x, starts=(2,), ends=(4,)).copy(), x[2:4].copy())
    same_bits(slice_(x, starts=(), ends=()), x)
    assert slice_(numbers(), starts=(), ends=()).shape == ()


@pytest.mark.parametrize(
    ("size", "start", "end", "step", "want"),
    [
        (S, 0, None, 1, S),
        (S, 0, INT64_MAX, 1, dim_min(S, INT64_MAX)),
        (S, None, S, 1, S),
        (S + T, 0, S, 1, S),
        (S + T, S, None, 1, T),
        (S + T + 4, S, S + 4, 1, 4),
        (S + 3, 3, None, 1, S),
        (S + 3, 0, -3, 1, S),
        (S + 3, -3, None, 1, 3),
        (S + 3, 1, -1, 1, S + 1),
        (S, 0, 4, 1, dim_min(S, 4)),
        (S, 1, None, 1, dim_max(0, S - 1)),
        (S, -1, None, 1, dim_min(1, S)),
        (S, 0, T, 1, dim_min(S, T)),
        (8, 0, S, 1, dim_min(8, S)),
        (S, T, None, 1, dim_max(0, S - T)),
        (S, None, None, -1, S),
        (S, None, None, 2, ceildiv(S, 2)),
        (2 * S, None, None, 2, S),
        (2 * S, None, None, -2, S),
        (S, 3, 1, 1, 0),
        (S, 0, 0, 1, 0),
        (S, T, T, 1, 0),
        (S, T + 1, T, 1, 0),
        (UNKNOWN_DIM, 0, 4, 1, UNKNOWN_DIM),
    ],
)
def test_slice_of_symbols(size, start, end, step, want):
    assert shapes(slice_, (size, B), starts=(start,), ends=(end,), steps=(step,)) == (want, B)


def test_slice_of_symbols_is_exact():
    rng = random.Random(5)
    sizes = [S, S + T, 2 * S, S + 3, T, 6, S * T]
    bounds = [None, 0, 1, 3, -1, -2, S, T, S + 1, S + T, 2 * S, dim_max(0, S - 1), dim_min(S, T), INT64_MIN, INT64_MAX]
    for _ in range(1500):
        size, start, end, step = rng.choice(sizes), rng.choice(bounds), rng.choice(bounds), rng.choice([1, 2, 3, -1, -2])
        length = slice_length(size, start, end, step)
        for s, t in itertools.product(range(4), range(4)):
            names = {"S": s, "T": t}
            n, a, b = (v if v is None else substitute(v, names) for v in (size, start, end))
            assert substitute(length, names) == len(range(n)[a:b:step]), (size, start, end, step, names)


@pytest.mark.parametrize(
    ("shape", "attributes", "attribute"),
    [
        ((5,), {"starts": (0,), "ends": (1,), "steps": (0,)}, "steps"),
        ((5,), {"starts": (0,), "ends": (1, 2)}, "ends"),
        ((5,), {"starts": (0,), "ends": (1,), "axes": ()}, "axes"),
        ((5,), {"starts": (0,), "ends": (1,), "steps": (1, 1)}, "steps"),
        ((5,), {"starts": (0, 0), "ends": (1, 1)}, "starts"),
        ((5,), {"starts": (0,), "ends": (1,), "axes": (1,)}, "axes"),
        ((5, 5), {"starts": (0, 0), "ends": (1, 1), "axes": (1, -1)}, "axes"),
        ((S,), {"starts": (S - 1,), "ends": (S,)}, "starts"),
        ((S,), {"starts": (0,), "ends": (S - T,)}, "ends"),
        ((S,), {"starts": (0,), "ends": (UNKNOWN_DIM,)}, "ends"),
    ],
)
def test_slice_refuses(shape, attributes, attribute):
    with pytest.raises(TypeProblem) as caught:
        shapes(slice_, shape, **attributes)
    assert caught.value.attribute == attribute


def test_slice_with_symbols_runs():
    module = parse_module(
        "graph @main(%x: i32[T], %y: f32[S]) {\n"
        "  %a = slice(%x, starts=[0], ends=[S])\n"
        "  %b = slice(%x, starts=[max(0, S-1)], ends=[none])\n"
        "  %c = slice(%x, starts=[none], ends=[S], steps=[-2])\n"
        "  return %a, %b, %c, %y\n}\n"
    )
    infer_module(module)
    for t, s in itertools.product(range(5), range(7)):
        x = numbers(t, dtype=np.int32)
        a, b, c, _ = Interpreter(module).run(module.graphs["main"], [x, np.zeros(s, np.float32)])
        assert [v.tolist() for v in (a, b, c)] == [x[:s].tolist(), x[max(0, s - 1) :].tolist(), x[:s:-2].tolist()]


def test_order_of_dimensions():
    assert at_least_zero(S * T + 2) and at_least_zero(mod(S, 4)) and at_least_zero(dim_max(0, S - 5)) and at_least_zero(S - dim_min(S, T))
    assert at_least_zero(dim_max(S, T) - S)
    assert not at_least_zero(S - 1) and not at_least_zero(S - T) and not at_least_zero(UNKNOWN_DIM) and not at_least_zero(S - dim_max(S, T))


# -- flip and pad ------------------------------------------------------------------------------------------------------


def test_flip():
    x = numbers(2, 3, 4)
    same_bits(flip(x, axes=(-1, 0)).copy(), x[::-1, :, ::-1].copy())
    same_bits(flip(x).copy(), x[::-1, ::-1, ::-1].copy())
    same_bits(flip(x, axes=()).copy(), x)
    assert flip(numbers()).shape == () and flip(numbers(0, 2), axes=(0,)).shape == (0, 2)
    for axes in [(3,), (0, -3)]:
        with pytest.raises(TypeProblem):
            shapes(flip, (2, 3, 4), axes=axes)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [*((d, 0) for d in DTYPES), (np.float32, float("-inf")), (np.float16, 1.5), (np.int64, INT64_MIN), (np.bool_, True)],
)
def test_pad_values(dtype, value):
    x = numbers(2, 3, dtype=dtype)
    want = np.full((3, 6), value, dtype)
    want[1:, 2:5] = x
    same_bits(pad(x, low=(1, 2), high=(0, 1), value=value), want)
    same_bits(pad(x, low=(0, 0), high=(0, 0)), x)
    same_bits(pad(x[:0], low=(1, 0), high=(1, 0), value=value), np.full((2, 3), value, dtype))
    assert pad(x[0, 0], low=(), high=()).shape == ()


def test_pad_value_is_rounded_once_and_keeps_nan():
    assert pad(np.zeros(0, np.float16), low=(1,), high=(0,), value=1 + 2**-11 + 2**-40)[0] == np.float16(1 + 2**-10)
    assert np.isnan(pad(np.zeros(0, np.float32), low=(1,), high=(0,), value=float("nan"))[0])
    assert np.signbit(pad(np.zeros(0, np.float32), low=(1,), high=(0,), value=-0.0)[0])
    assert pad(np.zeros(0, np.float32), low=(1,), high=(0,), value=0.1)[0] == np.float32(0.1)
    narrow = pad.evaluate([np.zeros(1)], ["x"], {"low": (1,), "high": (0,), "value": 0.1}, [TensorType(f32, (2,))], [f32], True)[0]
    assert narrow.tolist() == [float(np.float32(0.1)), 0]


def test_pad_infers():
    assert shapes(pad, (B, S), low=(0, S), high=(1, 2)) == (B + 1, 2 * S + 2)
    assert shapes(pad, (UNKNOWN_DIM, 2), low=(1, 1), high=(0, 0)) == (UNKNOWN_DIM, 3)


@pytest.mark.parametrize(
    ("operand", "attributes", "attribute"),
    [
        ((2,), {"low": (0, 0), "high": (0,)}, "low"),
        ((2,), {"low": (0,), "high": ()}, "high"),
        ((2,), {"low": (-1,), "high": (0,)}, "low"),
        ((2,), {"low": (0,), "high": (UNKNOWN_DIM,)}, "high"),
        (TensorType(i32, (2,)), {"low": (0,), "high": (0,), "value": 2**31}, "value"),
        (TensorType(i32, (2,)), {"low": (0,), "high": (0,), "value": 1.5}, "value"),
        (TensorType(i32, (2,)), {"low": (0,), "high": (0,), "value": True}, "value"),
        ((2,), {"low": (0,), "high": (0,), "value": 10**400}, "value"),
    ],
)
def test_pad_refuses(operand, attributes, attribute):
    with pytest.raises(TypeProblem) as caught:
        shapes(pad, operand, **attributes)
    assert caught.value.attribute == attribute


# -- gather ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_gather_values(dtype, axis):
    x = numbers(3, 4, 5, dtype=dtype)
    for indices in (np.array([[0, -1], [2, -3]]), np.int32(1), np.zeros((0, 2), np.int64), np.array([2, 2], np.uint8)):
        same_bits(gather(x, indices, axis=axis), np.take(x, indices, axis=axis))


def test_gather_infers():
    indices = TensorType(i64, (S, 2))
    assert shapes(gather, (B, N, 4), indices, axis=1) == (B, S, 2, 4)
    assert shapes(gather, (B, N), TensorType(i64, ()), axis=-1) == (B,)
    assert shapes(gather, (UNKNOWN_DIM, N), TensorType(i64, (UNKNOWN_DIM,))) == (UNKNOWN_DIM, N)
    assert shapes(gather, (0, 3), TensorType(i64, (0,))) == (0, 3)
    for operand, index in [((), indices), ((0, 2), TensorType(i64, (1,))), ((2,), TensorType(f32, (1,)))]:
        with pytest.raises(TypeProblem):
            shapes(gather, operand, index)
    with pytest.raises(TypeProblem):
        shapes(gather, (2, 3), indices, axis=2)


@pytest.mark.parametrize("value", [3, -4, 2**32, -(2**32), INT64_MIN, INT64_MAX, 2**32 + 1])
def test_gather_checks_every_index(value):
    indices = np.array([[0, -3, 2], [1, value, value]])
    for run in (
        lambda: gather(numbers(3, 2), indices),
        lambda: embedding(numbers(3, 2), indices),
        lambda: scatter(numbers(3), indices, numbers(2, 3)),
        lambda: gather_elements(numbers(3, 3)[:2], indices, axis=1),
    ):
        with pytest.raises(ExecutionError, match=rf"index {value} at position \[1, 1\] is out of range.*-3 <= index < 3"):
            run()


def test_gather_checks_without_elements():
    with pytest.raises(ExecutionError, match="index 3 is out of range for axis 0"):
        gather(numbers(3), np.int64(3))
    evaluate = gather.evaluate
    with pytest.raises(ExecutionError, match="no elements"):
        evaluate([numbers(0), np.array([0])], ["x", "indices"], {}, [TensorType(f32, (1,))], [f32, i64])
    with pytest.raises(ExecutionError, match="255"):
        gather(numbers(3), np.array([255], np.uint8))


def test_index_out_of_range_is_located():
    module = parse_module("graph @main(%x: f32[N, 2], %i: i64[B]) {\n  %y = gather(%x, %i)\n  return %y\n}\n")
    infer_module(module)
    with pytest.raises(GraphError, match=r":2:8: error: gather: .*index 5 at position \[1\]"):
        Interpreter(module).run(module.graphs["main"], [numbers(5, 2), np.array([4, 5])])


def test_embedding():
    table, ids = numbers(5, 3), np.array([[4, 0], [-1, 2]])
    same_bits(embedding(table, ids), table[ids])
    assert shapes(embedding, (N, 8), TensorType(i32, (B, S))) == (B, S, 8)
    with pytest.raises(TypeProblem) as caught:
        shapes(embedding, (), TensorType(i32, (B,)))
    assert caught.value.operand == "table"


# -- scatter -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_scatter_last_wins(dtype, axis):
    rng = np.random.default_rng(axis + 10)
    x = rng.integers(0, 100, (3, 4, 5)).astype(dtype)
    indices = rng.integers(-3, 3, (4, 2))
    size = x.shape[axis]
    updates = rng.integers(0, 100, np.take(x, indices, axis=axis).shape).astype(dtype)
    before = x.copy()
    want = x.copy()
    along = axis % 3
    for place in np.ndindex(indices.shape):
        target = [slice(None)] * 3
        target[along] = int(indices[place]) % size
        source = (*(slice(None),) * along, *place)
        want[tuple(target)] = updates[source]
    same_bits(scatter(x, indices, updates, axis=axis), want)
    same_bits(x, before)


def test_scatter_small_cases():
    x = numbers(4)
    assert scatter(x, np.int64(-1), np.float32(9)).tolist() == [0, 1, 2, 9]
    assert scatter(x, np.zeros(0, np.int64), np.zeros(0, np.float32)).tolist() == x.tolist()
    assert scatter(x, np.array([3, -1, 0]), np.array([5, 6, 7], np.float32)).tolist() == [7, 1, 2, 6]
    assert scatter(numbers(0), np.zeros(0, np.int64), numbers(0)).shape == (0,)


def test_scatter_infers():
    names = {"axis": 1}
    assert shapes(scatter, (B, N, 3), TensorType(i64, (S,)), (B, S, 3), **names) == (B, N, 3)
    assert shapes(scatter, (UNKNOWN_DIM, N), TensorType(i64, (S,)), (B, S), **names) == (UNKNOWN_DIM, N)
    for updates in [(B, T, 3), (B, S), (B, 1, 3), TensorType(f16, (B, S, 3))]:
        with pytest.raises(TypeProblem) as caught:
            shapes(scatter, (B, N, 3), TensorType(i64, (S,)), updates, **names)
        assert caught.value.operand == "updates"


def test_gather_elements():
    x, rng = numbers(3, 4, 5), np.random.default_rng(0)
    for axis in (0, 1, 2, -1, -2):
        shape = list(x.shape)
        shape[axis] = 2
        indices = rng.integers(-3, 3, shape)
        same_bits(gather_elements(x, indices, axis=axis), np.take_along_axis(x, indices, axis=axis))
    assert gather_elements(x, np.zeros((3, 0, 5), np.int64), axis=1).shape == (3, 0, 5)
    assert shapes(gather_elements, (B, N), TensorType(i64, (UNKNOWN_DIM, S)), axis=1) == (B, S)
    for indices in [(B,), (1, S), (S, S), (B, S, 1)]:
        with pytest.raises(TypeProblem):
            shapes(gather_elements, (B, N), TensorType(i64, indices), axis=1)
    with pytest.raises(TypeProblem):
        shapes(gather_elements, (B, 0), TensorType(i64, (2, 3)), axis=1)


# -- triangles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 5), (5, 2), (0, 3), (3, 0), (1, 1)])
def test_triangles(dtype, shape):
    x = np.ones(shape, dtype)
    for diagonal in (-6, -2, -1, 0, 1, 2, 6, INT64_MIN, INT64_MAX):
        lower, upper = x.copy(), x.copy()
        for *_, i, j in np.ndindex(shape):
            if j - i > diagonal:
                lower[..., i, j] = 0
            if j - i < diagonal:
                upper[..., i, j] = 0
        same_bits(tril(x, diagonal=diagonal), lower)
        same_bits(triu(x, diagonal=diagonal), upper)


def test_triangles_select():
    x = np.array([[-0.0, np.nan], [np.inf, -np.inf]], np.float32)
    same_bits(tril(x), np.array([[-0.0, 0.0], [np.inf, -np.inf]], np.float32))
    same_bits(triu(x), np.array([[-0.0, np.nan], [0.0, -np.inf]], np.float32))
    with pytest.raises(TypeProblem, match="rank 2 or more"):
        shapes(tril, (3,))
