"""Operations that memory bounds: rows in, rows out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.case import Array, Arrays, Case, Data, Target
from bench.onnx_model import FUSED, ModelBuilder
from bench.workloads.helpers import normal, quick_gelu, silu_in_place

EPS = 1e-5
Words = Callable[..., Any]


@dataclass(frozen=True)
class RowOp:
    """An operation in the words of every engine: functions of the inputs ``x`` (and ``y``) and then the weights ``w`` (and ``b``)."""

    inputs: int
    weights: int
    results: int
    numpy: Words
    torch: Words
    jax: Words
    onnx: Words
    fused: bool = False
    c: bool = True


@dataclass(frozen=True)
class Rows(Case):
    """``op`` on ``r`` rows of ``c`` elements."""

    op: str
    r: int
    c: int
    target: Target
    flops = 0.0  # they hardly count

    @property
    def name(self) -> str:
        """The operation and its size."""
        return f"{self.op} {self.r}x{self.c}"

    @property
    def graph(self) -> str:
        """The file of our program."""
        return f"{self.op}.graph"

    @property
    def nbytes(self) -> float:
        """Every row in and every row out."""
        return 4.0 * self.r * self.c * (OPS[self.op].inputs + OPS[self.op].results)

    @property
    def _weights(self) -> tuple[str, ...]:
        """Their names in order, which JAX doesn't keep."""
        return ("w", "b")[: OPS[self.op].weights]

    def data(self) -> Data:
        """Normal numbers."""
        op = OPS[self.op]
        inputs = {name: normal(self.r, self.c, seed=i) for i, name in enumerate(("x", "y")[: op.inputs])}
        return Data(inputs, {name: normal(self.c, seed=2 + i) for i, name in enumerate(self._weights)})

    def numpy(self, weights: Arrays, *inputs: Array) -> Callable[[], Any]:
        """In place, where numpy can."""
        first, second = (np.empty((self.r, self.c), np.float32) for _ in range(2))
        function, known = OPS[self.op].numpy, [weights[name] for name in self._weights]
        return lambda: function(first, second, *inputs, *known)

    def torch(self, torch: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """Its own operation, where it has one."""
        return OPS[self.op].torch(torch, *inputs, *(weights[name] for name in self._weights))

    def jax(self, jax: Any, weights: Mapping[str, Any], *inputs: Any) -> Any:
        """Its own operation, where it has one."""
        return OPS[self.op].jax(jax, *inputs, *(weights[name] for name in self._weights))

    def onnx(self, model: ModelBuilder, weights: Arrays, inputs: Sequence[str]) -> Sequence[str]:
        """Its own operator, where there is one."""
        results = OPS[self.op].onnx(model, *inputs, *(model.constant(weights[name]) for name in self._weights))
        return [results] if isinstance(results, str) else list(results)

    @property
    def fused_onnx(self) -> bool:
        """Whether onnxruntime has an operator of its own."""
        return OPS[self.op].fused

    @property
    def c_function(self) -> str | None:
        """Called as the operation."""
        return self.op


# -- numpy: two arrays for what is between and what comes out, then inputs and weights ----------------------------------------


def _numpy_softmax(out: Array, _: Array, x: Array) -> Array:
    np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=-1, keepdims=True), out=out)
    return out


def _numpy_layernorm(out: Array, scratch: Array, x: Array, w: Array, b: Array) -> Array:
    np.subtract(x, x.mean(axis=-1, keepdims=True), out=out)
    np.square(out, out=scratch)
    np.multiply(out, 1 / np.sqrt(scratch.mean(axis=-1, keepdims=True) + np.float32(EPS)), out=out)
    np.multiply(out, w, out=out)
    return np.add(out, b, out=out)


def _numpy_rmsnorm(out: Array, scratch: Array, x: Array, w: Array) -> Array:
    np.square(x, out=scratch)
    np.multiply(x, 1 / np.sqrt(scratch.mean(axis=-1, keepdims=True) + np.float32(EPS)), out=out)
    return np.multiply(out, w, out=out)


def _numpy_add_rmsnorm(out: Array, scratch: Array, x: Array, y: Array, w: Array) -> tuple[Array, Array]:
    h = np.add(x, y)
    return _numpy_rmsnorm(out, scratch, h, w), h


def _numpy_gelu_tanh(out: Array, scratch: Array, x: Array) -> Array:
    f = np.float32
    np.square(x, out=scratch)
    np.multiply(scratch, f(0.044715), out=scratch)
    np.add(scratch, 1, out=scratch)
    np.multiply(scratch, x, out=scratch)
    np.multiply(scratch, f(0.7978845608), out=scratch)
    np.tanh(scratch, out=scratch)
    np.add(scratch, 1, out=scratch)
    np.multiply(x, f(0.5), out=out)
    return np.multiply(out, scratch, out=out)


def _numpy_silu_mul(out: Array, scratch: Array, x: Array, y: Array) -> Array:
    np.copyto(out, x)
    return np.multiply(silu_in_place(out, scratch), y, out=out)


# -- torch ----------------------------------------------------------------------------------------------------------------


def _torch_add_rmsnorm(torch: Any, x: Any, y: Any, w: Any) -> tuple[Any, Any]:
    h = x + y
    return torch.nn.functional.rms_norm(h, w.shape, w, EPS), h


# -- JAX ------------------------------------------------------------------------------------------------------------------


def _jax_rmsnorm(jax: Any, x: Any, w: Any) -> Any:
    return x * jax.lax.rsqrt(jax.numpy.mean(x * x, -1, keepdims=True) + EPS) * w


def _jax_layernorm(jax: Any, x: Any, w: Any, b: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + EPS) * w + b


def _jax_add_rmsnorm(jax: Any, x: Any, y: Any, w: Any) -> tuple[Any, Any]:
    return _jax_rmsnorm(jax, x + y, w), x + y


# -- ONNX -----------------------------------------------------------------------------------------------------------------


def _onnx_rmsnorm(model: ModelBuilder, x: str, w: str) -> str:
    if model.fused:
        return model.node("SimplifiedLayerNormalization", x, w, axis=-1, epsilon=EPS)
    mean = model.node("ReduceMean", model.node("Mul", x, x), model.integers(-1), keepdims=1)
    root = model.node("Sqrt", model.node("Add", mean, model.constant(EPS)))
    return model.node("Mul", model.node("Div", x, root), w)


def _onnx_add_rmsnorm(model: ModelBuilder, x: str, y: str, w: str) -> tuple[str, str]:
    if model.fused:
        wanted = [True, False, False, True]
        norm, total = model.nodes("SkipSimplifiedLayerNormalization", x, y, w, results=wanted, domain=FUSED, epsilon=EPS)
        return norm, total
    total = model.node("Add", x, y)
    return _onnx_rmsnorm(model, total, w), total


OPS: dict[str, RowOp] = {
    "softmax": RowOp(
        1, 0, 1, _numpy_softmax,
        lambda torch, x: torch.softmax(x, -1),
        lambda jax, x: jax.nn.softmax(x, -1),
        lambda model, x: model.node("Softmax", x, axis=-1),
    ),
    "layernorm": RowOp(
        1, 2, 1, _numpy_layernorm,
        lambda torch, x, w, b: torch.nn.functional.layer_norm(x, w.shape, w, b, EPS),
        _jax_layernorm,
        lambda model, x, w, b: model.node("LayerNormalization", x, w, b, axis=-1, epsilon=EPS),
    ),
    "rmsnorm": RowOp(
        1, 1, 1, _numpy_rmsnorm,
        lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, EPS),
        _jax_rmsnorm, _onnx_rmsnorm, fused=True,
    ),
    "add_rmsnorm": RowOp(2, 1, 2, _numpy_add_rmsnorm, _torch_add_rmsnorm, _jax_add_rmsnorm, _onnx_add_rmsnorm, fused=True),
    "gelu": RowOp(
        1, 0, 1, lambda out, scratch, x: quick_gelu(x),
        lambda torch, x: torch.nn.functional.gelu(x),
        lambda jax, x: jax.nn.gelu(x, approximate=False),
        lambda model, x: model.node("Gelu", x),
    ),
    "gelu_tanh": RowOp(
        1, 0, 1, _numpy_gelu_tanh,
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        lambda jax, x: jax.nn.gelu(x, approximate=True),
        lambda model, x: model.node("Gelu", x, approximate="tanh"),
    ),
    "silu_mul": RowOp(
        2, 0, 1, _numpy_silu_mul,
        lambda torch, x, y: torch.nn.functional.silu(x) * y,
        lambda jax, x, y: jax.nn.silu(x) * y,
        lambda model, x, y: model.node("Mul", model.silu(x), y), fused=True,
    ),
}  # fmt: skip

NORMS = ("layernorm", "rmsnorm", "add_rmsnorm")


def cases() -> list[Case]:
    """All operations in a size that caches hold and in one that they don't."""
    small = [Rows(op, 128, 576, Target(c_loop=0.9, peers=2.0 if op in NORMS else 1.0)) for op in OPS]
    return [*small, *(Rows(op, 1024, 4096, Target(c_loop=0.9)) for op in OPS)]
