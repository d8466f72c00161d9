"""print, assert and dropout."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.effects import assert_, dropout, print_
from ir.diagnostics import GraphError
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import ExecutionError
from ir.types import TensorType, f32

MASK = (1 << 64) - 1


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_(np.float32([[1, -0.0]]), label="x") == ()
    assert capsys.readouterr().out == "x: f32[1, 2]\n[[ 1., -0.]]\n"
    print_(np.array(True))
    assert capsys.readouterr().out == "bool[]\nTrue\n"
    print_(np.zeros((0, 3), ml_dtypes.bfloat16))
    assert capsys.readouterr().out.startswith("bf16[0, 3]\n[]")
    print_(np.arange(10**6), label="big")
    assert len(capsys.readouterr().out) < 200


def test_assert() -> None:
    assert assert_(np.array([True, True]), message="m") == ()
    assert assert_(np.zeros((0, 2), np.bool_)) == ()
    with pytest.raises(ExecutionError, match=r"assert: ids are negative at \[1, 0\]"):
        assert_(np.array([[True, True], [False, True]]), message="ids are negative")
    with pytest.raises(ExecutionError, match=r"assert: an element is false$"):
        assert_(np.array(False))
    with pytest.raises(GraphError, match="expected a tensor of bool, found i64"):
        assert_(np.array([1]))


def test_effects_stay() -> None:
    assert not print_.pure and not assert_.pure and assert_.traps and dropout.pure
    assert print_.name == "print" and assert_.name == "assert"
    assert print_.result_count == 0 and assert_.result_count == 0


def reference_kept(seed: int, count: int, p: float) -> list[bool]:
    """The docstring's formula in Python's integers."""
    golden = 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
        return z ^ (z >> 31)

    start = mix((seed + golden) & MASK)
    return [(mix((start + (i + 1) * golden) & MASK) >> 11) / 2.0**53 >= p for i in range(count)]


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1])
@pytest.mark.parametrize("p", [0, 0.25, 0.9])
def test_dropout_mask(seed: int, p: float) -> None:
    x = np.arange(1, 61, dtype=np.float32).reshape(3, 4, 5)
    found = dropout(x, p=p, seed=seed, training=True)
    kept = np.array(reference_kept(seed, x.size, p)).reshape(x.shape)
    np.testing.assert_array_equal(found, np.where(kept, (x.astype(np.float64) / (1 - p)).astype(np.float32), 0))


def test_dropout_share_and_seeds() -> None:
    x = np.ones(100_000, np.float32)
    first, second = (dropout(x, p=0.3, seed=s, training=True) == 0 for s in (0, 1))
    assert abs(first.mean() - 0.3) < 0.01 and abs((first & second).mean() - 0.09) < 0.01


def test_dropout_drops_nan_and_keeps_identity() -> None:
    x = np.full(100, np.nan, np.float32)
    found = dropout(x, training=True)
    zeros = found[~np.isnan(found)]
    assert 0 < zeros.size < 100 and not np.signbit(zeros).any() and (zeros == 0).all()
    y = np.float32([1, -0.0, np.inf])
    np.testing.assert_array_equal(dropout(y), y)
    for shape in ((), (0, 3)):
        assert dropout(np.ones(shape, np.float16), training=True).shape == shape
    type_ = TensorType(f32, (symbol("B"), UNKNOWN_DIM))
    assert dropout.infer([type_], ["x"], {}) == (type_,)


@pytest.mark.parametrize("p", [1, -0.1, 1.5, np.nan])
def test_dropout_refuses(p: float) -> None:
    with pytest.raises(GraphError, match="expected 0 <= p < 1"):
        dropout(np.ones(2, np.float32), p=p)
