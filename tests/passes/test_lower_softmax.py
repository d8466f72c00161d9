"""lower-to-linalg of softmax and log_softmax: rows with special values, any axis and type, and what the loops are made of."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load

from ir.interpreter import Interpreter
from ir.types import DTYPES
from passes.loops._loops import is_loop

LOWER = "inline,decompose{keep=[softmax, log_softmax]},lower-to-linalg"
ROWS = np.float32(
    [
        [1, 2, 3, 4],
        [np.nan, 0, 1, 2],
        [0, 1, 2, np.nan],
        [5, np.nan, -200, 2],
        [np.nan] * 4,
        [np.inf, 0, 1, 2],
        [np.inf, -np.inf, 1, 2],
        [-np.inf, 0, 1, 2],
        [-np.inf] * 4,
        [3e38, -3e38, 3e38, 0],
        [0, 0, 0, 0],
        [-0.0, 0, -0.0, 0],
    ]
)


def text(call: str, type_: str) -> str:
    return f"graph @main(%x: {type_}) -> {type_} {{\n  %y = {call}\n  return %y\n}}\n"


def compare(program: str, x: np.ndarray, pipeline: str = LOWER) -> None:
    """The lowered program is as near to the operation as a few roundings are."""
    after = load(program)
    apply(after, pipeline)
    assert not any("softmax" in op.name for op in after.walk())
    with np.errstate(all="ignore"):
        (want,) = Interpreter(load(program)).run(load(program).main, [x])
        (found,) = Interpreter(after).run(after.main, [x])
    assert want.dtype == found.dtype and want.shape == found.shape
    want, found = want.astype(np.float64), found.astype(np.float64)
    tolerance = {"float64": 1e-15, "float32": 2e-6, "float16": 1e-3}.get(x.dtype.name, 1e-2)
    assert np.array_equal(np.isnan(want), np.isnan(found))
    size = np.maximum(np.abs(want), 1.0 if "log" in program else 1e-30)  # logarithms of sums near 1 have the error of the sum
    with np.errstate(invalid="ignore"):
        near = (want == found) | (np.abs(want - found) <= tolerance * size) | np.isnan(want)
    assert near.all(), (want[~near], found[~near])


@pytest.mark.parametrize("call", ["softmax(%x)", "log_softmax(%x)", "softmax(%x, axis=0)", "log_softmax(%x, axis=0)"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_special_rows(call: str, dtype: str) -> None:
    with np.errstate(over="ignore"):
        rows = ROWS.astype(DTYPES[dtype].numpy)
    compare(text(call, f"{dtype}[N, 4]"), rows)
    compare(text(call, f"{dtype}[N, 4]"), rows[:1])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_every_axis(axis: int) -> None:
    for shape in ((2, 3, 5), (1, 1, 1), (2, 0, 3), (0, 3, 2), (2, 3, 0)):
        x = np.random.default_rng(4 + axis).normal(size=shape).astype(np.float32) * 5
        for type_ in ("f32[A, B, C]", f"f32[{', '.join(map(str, shape))}]"):
            for call in ("softmax", "log_softmax"):
                compare(text(f"{call}(%x, axis={axis})", type_), x)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 63, 64, 65, 127, 130])
def test_as_machine_loops(size: int) -> None:
    x = np.random.default_rng(size).normal(size=(3, size)).astype(np.float32) * 5
    x[1, size // 2] = -np.inf
    x[2, -1] = np.nan
    for type_ in (f"f32[3, {size}]", "f32[M, N]"):
        compare(text("softmax(%x)", type_), x, "cpu")
        compare(text("log_softmax(%x)", type_), x, "cpu")


def test_three_loops_for_a_row() -> None:
    """The largest element, exponentials with their sum, the product."""
    after = load(text("softmax(%x)", "f32[M, 256]"))
    apply(after, "cpu")
    row, _ = (op for op in after.main.block if is_loop(op))  # four rows at once, and what is left over
    loops = [op for op in row.regions[0].block if is_loop(op)]
    assert [op.name for op in loops] == ["scf.for", "scf.for", "scf.parallel"]
    assert not any(op.name in ("arith.maximumf", "arith.divf") for loop in loops for op in loop.walk())
    assert sum(op.name == "vector.store" for op in loops[1].walk()) == 4
