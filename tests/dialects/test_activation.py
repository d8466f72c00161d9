"""Activations: tails against formulas in higher precision, special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import ml_dtypes
import numpy as np
import pytest

from dialects.graph import activation as act
from ir.diagnostics import GraphError
from ir.dims import UNKNOWN_DIM, symbol
from ir.opdef import OpDef
from ir.types import TensorType, f32

NAN, INF = np.nan, np.inf
OPS = [v for v in vars(act).values() if isinstance(v, OpDef)]


def same(found: np.ndarray, expected: list[float]) -> None:
    wanted = np.array(expected, found.dtype)
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    assert (np.signbit(found) == np.signbit(wanted))[numbers].all(), (found, wanted)


def exact_exp(v: float) -> Decimal:
    return Decimal(v).exp()


def exact_sigmoid(v: float) -> float:
    return float(1 / (1 + exact_exp(-v)))


def exact_silu(v: float) -> float:
    return float(Decimal(v) / (1 + exact_exp(-v)))


def exact_gelu(v: float) -> float:
    return 0.5 * v * math.erfc(-v / math.sqrt(2))  # well within an ulp of f32


def exact_gelu_tanh(v: float) -> float:
    inner = Decimal(2 / math.pi).sqrt() * (Decimal(v) + Decimal("0.044715") * Decimal(v) ** 3)
    return float(Decimal(v) / (1 + (-2 * inner).exp()))


def exact_softplus(v: float) -> float:
    return float((1 + exact_exp(v)).ln()) if v > -50 else float(exact_exp(v))


ACCURACY: list[tuple[str, Callable[..., np.ndarray], Callable[[float], float], float]] = [
    ("sigmoid", act.sigmoid, exact_sigmoid, -103),
    ("silu", act.silu, exact_silu, -108),
    ("gelu", act.gelu, exact_gelu, -14.2),
    ("gelu_tanh", lambda x: act.gelu(x, approximate="tanh"), exact_gelu_tanh, -10.5),
    ("softplus", act.softplus, exact_softplus, -103),
]


@pytest.mark.parametrize("name, op, exact, low", ACCURACY, ids=[row[0] for row in ACCURACY])
def test_whole_line(name: str, op: Callable[..., np.ndarray], exact: Callable[[float], float], low: float) -> None:
    x = np.concatenate([np.linspace(low, 20, 1500), [-17.5, -5, -6, -6.08, -1e-3, 1e-30, -1e-30, 88.0, 100.0]]).astype(np.float32)
    with localcontext() as context:
        context.prec = 60
        wanted = np.array([exact(float(v)) for v in x])
    found = op(x).astype(np.float64)
    error = np.abs(found - wanted) / np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
    assert error.max() <= 1, (name, x[error.argmax()])
    assert found[np.abs(wanted) > 1e-44].all()


def test_tails_named_in_the_traps() -> None:
    assert act.silu(np.float32(-89)) == np.float32(-89 * math.exp(-89))
    assert act.silu(np.float32(-100)) == np.float32(-100 * math.exp(-100))
    assert act.sigmoid(np.float32(-17.5)) == np.float32(1 / (1 + math.exp(17.5)))


def test_silu_of_f64_has_the_digits_of_its_tail() -> None:
    """exp(x) is denormal below -708.4, where x * exp(x) still is not; there the exact results have few digits themselves."""
    x = np.concatenate([np.linspace(-751, -700, 500), np.linspace(-40, 40, 200)])
    with localcontext() as context:
        context.prec = 60
        wanted = np.array([float(exact_silu(float(v))) for v in x])
    error = np.abs(act.silu(x) - wanted) / np.spacing(np.abs(wanted))
    assert error.max() <= 4, x[error.argmax()]


SPECIAL: list[tuple[str, Callable[..., np.ndarray], list[float], list[float]]] = [
    ("relu", act.relu, [NAN, -0.0, 0.0, -INF, INF, -1, 2], [NAN, 0.0, 0.0, 0.0, INF, 0.0, 2]),
    ("leaky_relu", lambda x: act.leaky_relu(x, alpha=0.5), [NAN, -0.0, -INF, INF, -4, 3], [NAN, -0.0, -INF, INF, -2, 3]),
    ("leaky_relu 0", lambda x: act.leaky_relu(x, alpha=0), [-INF, -1], [NAN, -0.0]),
    ("elu", act.elu, [NAN, -0.0, -INF, INF, 3, -1e-20], [NAN, -0.0, -1, INF, 3, -1e-20]),
    ("elu 2", lambda x: act.elu(x, alpha=2.0), [-INF, 1], [-2, 1]),
    ("sigmoid", act.sigmoid, [NAN, -INF, INF, 0.0, -0.0], [NAN, 0.0, 1, 0.5, 0.5]),
    ("silu", act.silu, [NAN, -INF, INF, 0.0, -0.0], [NAN, -0.0, INF, 0.0, -0.0]),
    ("gelu", act.gelu, [NAN, -INF, INF, 0.0, -0.0, -40, 3e38], [NAN, -0.0, INF, 0.0, -0.0, -0.0, 3e38]),
    ("gelu tanh", lambda x: act.gelu(x, approximate="tanh"), [NAN, -INF, INF, -0.0, -3e38, 3e38], [NAN, -0.0, INF, -0.0, -0.0, 3e38]),
    ("softplus", act.softplus, [NAN, -INF, INF, 3e38], [NAN, 0.0, INF, 3e38]),
]


@pytest.mark.parametrize("name, op, x, expected", SPECIAL, ids=[row[0] for row in SPECIAL])
def test_special_values(name: str, op: Callable[..., np.ndarray], x: list[float], expected: list[float]) -> None:
    same(op(np.float32(x)), expected)
    same(op(np.float64(x)), expected)


def test_relu_of_integers() -> None:
    assert act.relu(np.int8([-128, -1, 0, 5])).tolist() == [0, 0, 0, 5]
    assert act.relu(np.uint8([0, 200])).tolist() == [0, 200]


def test_alpha_is_rounded() -> None:
    x = np.float32([-3.0])
    assert act.leaky_relu(x, alpha=0.1) == x * np.float32(0.1)
    half = np.float16([-3.0])
    assert act.leaky_relu(half, alpha=0.1) == np.float16(np.float32(-3.0) * np.float32(0.1))
    for op in (act.leaky_relu, act.elu):
        with pytest.raises(GraphError, match="alpha is a finite number, found inf"):
            op(x, alpha=INF)


def test_approximate_is_one_of_two() -> None:
    with pytest.raises(GraphError, match='expected one of "none", "tanh", found "fast"'):
        act.gelu(np.float32([1]), approximate="fast")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_shapes_and_flags(op: OpDef) -> None:
    for shape in ((), (0, 3), (2, 3)):
        result = op(np.ones(shape, ml_dtypes.bfloat16))
        assert isinstance(result, np.ndarray) and result.shape == shape and result.dtype == ml_dtypes.bfloat16
    type_ = TensorType(f32, (symbol("B"), UNKNOWN_DIM))
    assert op.infer([type_], ["x"], {}) == (type_,)
    assert op.elementwise and op.pure and op.composite
