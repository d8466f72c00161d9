"""compile(precision=...): how many digits activations have in products with weights in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graph_opt
from ir.blocks import dequantize
from ir.diagnostics import GraphError
from ir.types import f64, q4_1
from passes.graph.quantize_products import PRECISIONS

PROGRAM = """file @f = "w.npz"

graph @main(%x: f32[B, 96]) -> f32[B, 40] {
  %w = weight(@f, "w") : q4_1[40, 96]
  %y = linear(%x, %w)
  return %y
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    w = rng.integers(0, 256, 40 * 3 * 20, np.uint8).view(q4_1.numpy).reshape(40, 3)
    w["d"], w["m"] = rng.uniform(0.01, 0.1, (2, 40, 3))
    np.savez(tmp_path / "w.npz", w=w)
    path = tmp_path / "p.graph"
    path.write_text(PROGRAM)
    return path


def test_precisions(program: Path) -> None:
    """Each is about as exact as its name says, alone and among other rows, out of the cache too."""
    w = dequantize(np.load(program.parent / "w.npz")["w"], f64)
    x = np.random.default_rng(1).standard_normal((11, 96)).astype(np.float32)
    exact = x.astype(np.float64) @ w.T
    size = np.abs(x).max() * np.abs(w).sum(axis=1)
    errors = {}
    for name in PRECISIONS:
        for _ in range(2):
            run = graph_opt.compile(program, precision=name)
            y = run(x)
            errors[name] = float(np.max(np.abs(y - exact) / size))
            assert all(np.array_equal(run(x[i : i + 1])[0], y[i]) for i in (0, 10))
    assert errors["f32"] < 2.0**-22 and errors["float"] < 2.0**-22
    assert 2.0**-22 < errors["int16"] < 2.0**-15.9 and 2.0**-15.9 < errors["int8"] < 2.0**-7.9
    assert np.array_equal(graph_opt.compile(program)(x), graph_opt.compile(program, precision="f32")(x))
    reference = graph_opt.compile(program, device="reference", precision="int8")
    assert np.allclose(reference(x), exact, rtol=1e-5, atol=1e-4), "the interpreter has no digits"


def test_unknown_precision(program: Path) -> None:
    for wrong in ("f16", "", 3):
        with pytest.raises(GraphError, match="there is no precision"):
            graph_opt.compile(program, precision=wrong)  # type: ignore[arg-type]
