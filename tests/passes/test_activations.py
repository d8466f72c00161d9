"""Activations that lower-to-linalg gets whole: their bits or how far from exact they are, and decompose{keep}."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, assert_same_bits, load, operations, optimize

from dialects.graph import activation
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.infra.verify_exec import compare_modules
from passes.linalg._activations import ACTIVATIONS
from passes.pipelines import load_pipeline
from passes.vector._exponential import LOG2_E

CALLS = {
    "relu": "relu(%x)",
    "leaky_relu": "leaky_relu(%x, alpha=0.1)",
    "elu": "elu(%x, alpha=0.7)",
    "sigmoid": "sigmoid(%x)",
    "softplus": "softplus(%x)",
    "silu": "silu(%x)",
    "gelu": "gelu(%x)",
    "gelu_tanh": 'gelu(%x, approximate="tanh")',
}


def text(name: str, dtype: str = "f32") -> str:
    return f"graph @main(%x: {dtype}[N]) {{\n  %y = {CALLS[name]}\n  return %y\n}}\n"


def pipeline(name: str) -> str:
    return f"decompose{{keep={name.removesuffix('_tanh')}}},lower-to-linalg"


def test_all_have_calls() -> None:
    assert {n.removesuffix("_tanh") for n in CALLS} == set(ACTIVATIONS)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", CALLS)
def test_one_nest_with_the_same_values(name: str, dtype: str) -> None:
    before, after = load(text(name, dtype)), optimize(text(name, dtype), pipeline(name))
    assert operations(after).count("linalg.generic") == 1
    assert "math.erfc" not in operations(after) or dtype == "f64"
    outcome = compare_modules(before, after, "values")
    assert outcome.mismatch is None and outcome.skipped is None, outcome


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("name", ["relu", "leaky_relu"])
def test_the_same_bits(name: str, dtype: str) -> None:
    assert_same_bits(load(text(name, dtype)), optimize(text(name, dtype), pipeline(name)))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["sigmoid", "silu"])
def test_one_operation_with_the_same_bits(name: str, dtype: str) -> None:
    after = optimize(text(name, dtype), pipeline(name))
    nest = next(op for op in after.walk() if op.name == "linalg.generic")
    assert [op.name for op in nest.regions[0].block] == [f"math.{name}", "graph.yield"]
    assert_same_bits(load(text(name, dtype)), after)


@pytest.mark.parametrize("dtype", ["i32", "i8", "u8"])
def test_relu_of_integers(dtype: str) -> None:
    assert_same_bits(load(text("relu", dtype)), optimize(text("relu", dtype), pipeline("relu")))


TAIL = [-87.2, -87.4, -88.7, -88.75, -90.0, -100.0, -103.9, -104.1, -106.5, -108.5, -109.0, -126.9, -127.0, -128.5, -200.0, -1e30, -np.inf]
OTHERS = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 64.0, -64.0, -63.99999, 20.0, 90.0, 1e30, 3.4e38, np.inf, np.nan]
BOUNDS = {"elu": 2.5, "sigmoid": 2.5, "softplus": 2.0, "silu": 2.5, "gelu": 4.0, "gelu_tanh": 2.5}
"""In ulp; those of sigmoid, silu and gelu are promised by the operations."""


def line(name: str) -> np.ndarray:
    generator = np.random.default_rng(2)
    deepest = -14.5 if name == "gelu" else -11.2 if name == "gelu_tanh" else -110.0
    parts = [generator.uniform(deepest, -0.75 * deepest, 250), generator.uniform(-4, 4, 250), generator.normal(size=50) * 1e-3]
    return np.concatenate([*parts, np.linspace(deepest, 0.8 * deepest, 150), TAIL, OTHERS]).astype(np.float32)


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    exponent = np.frexp(np.maximum(np.abs(exact), 2.0**-126))[1] - 24
    return np.abs(found.astype(np.float64) - exact) / np.ldexp(1.0, exponent)


@pytest.mark.parametrize("name", BOUNDS)
def test_errors_of_f32(name: str) -> None:
    x = line(name)
    module = load(text(name))
    apply(module, f"{pipeline(name)},expand-math")
    (found,) = Interpreter(module).run(module.main, [x])
    definition = getattr(activation, name.removesuffix("_tanh"))
    attributes = {"elu": {"alpha": float(np.float32(0.7))}, "gelu_tanh": {"approximate": "tanh"}}.get(name, {})
    exact = definition(x.astype(np.float64), **attributes)
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True)
    assert np.array_equal(np.signbit(found[finite]), np.signbit(rounded[finite]))
    errors = ulps(found[finite], exact[finite])
    worst = int(np.argmax(errors))
    assert errors[worst] <= BOUNDS[name], f"{errors[worst]} ulp at {x[finite][worst]!r}"


def test_limits_of_gates() -> None:
    from passes.vector import _gate

    assert (_gate.HIGHEST * LOG2_E - _gate.SHIFT) < 127 and (-_gate.LOWEST * LOG2_E + _gate.SHIFT) < 127  # exponents of ordinary numbers
    assert _gate.HIGHEST * LOG2_E > 25  # 1 + exp(-HIGHEST) is 1
    lowest = _gate.TANH_LOWEST * (_gate.SLOPE + _gate.CUBIC * _gate.TANH_LOWEST**2)
    assert 149 + 4 < -lowest < 127 - _gate.SHIFT  # the result is half of the least denormal or less
    assert float(np.float32(_gate.CUBIC)) == _gate.CUBIC_HIGH and abs(_gate.SLOPE - _gate.SLOPE_HIGH) < 2.0**-10


def test_kept_operations() -> None:
    program = "graph @main(%x: f32[B, 4]) {\n  %a = softmax(%x)\n  %b = gelu(%a)\n  %c = silu(%b)\n  return %c\n}\n"
    names = operations(optimize(program, "decompose{keep=[gelu, graph.silu]}"))
    assert "gelu" in names and "silu" in names and "softmax" not in names
    names = operations(optimize(program, "decompose{ops=[gelu, softmax], keep=gelu}"))
    assert "gelu" in names and "silu" in names and "softmax" not in names
    with pytest.raises(GraphError, match="'gelo' is no composite operation; did you mean 'gelu'"):
        load_pipeline("decompose{keep=gelo}")
