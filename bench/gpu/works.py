"""The table of works: elementwise nests and norms, products, layers, in full size and tiny."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.gpu.work import COMPILED, COPY, EAGER, Array, Input, Wanted, Work

ROWS = (1024, 8192, 65536)
COLUMNS = 4096
BANDWIDTH = 0.9
"""Of the bandwidth of a copy, at least."""

_WIDTH = {"f32": 4, "bf16": 2}
_ROUNDING = {"f32": 1e-5, "bf16": 2e-2}


def graph(parameters: Sequence[str], results: Sequence[str], lines: Sequence[str], returned: str) -> str:
    """The text of a program with one graph."""
    head = f"graph @main({', '.join(parameters)}) -> ({', '.join(results)}) {{"
    return "\n".join([head, *(f"  {line}" for line in lines), f"  return {returned}", "}", ""])


# -- rows --------------------------------------------------------------------------------------------------------------


def _gelu(x: Array) -> Array:
    erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _layernorm(x: Array, w: Array, b: Array) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * w + b)


def _rmsnorm(x: Array, w: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w)


def _rows(name: str, rows: int, columns: int) -> Work:
    """One work over rows; how it is named in :data:`_ROW_WORKS`."""
    line, arrays, vectors, results, torch, numpy = _ROW_WORKS[name]
    type_, vector = f"f32[{rows}, {columns}]", f"f32[{columns}]"
    names = "xyz"[:arrays]
    parameters = [*(f"%{n}: {type_}" for n in names), *(f"%{n}: {vector}" for n in "wb"[:vectors])]
    inputs = (*(Input((rows, columns)) for _ in names), *(Input((columns,), scale=0.1, mean=1.0) for _ in range(vectors)))
    returned = ["%o", "%h"][:results]
    text = graph(parameters, [f"{n.removeprefix('%')}: {type_}" for n in returned], line, ", ".join(returned))
    nbytes = 4.0 * rows * columns * (arrays + results)
    peers = (COPY, EAGER, COMPILED) if len(line) > 1 else (COPY, EAGER)
    return Work(f"{name} {rows}x{columns}", "rows", text, inputs, torch, numpy, nbytes, peers=peers, wanted=Wanted(COPY, BANDWIDTH))


_ROW_WORKS: dict[str, tuple[list[str], int, int, int, Callable[..., Any], Callable[..., Any]]] = {
    "neg (our copy)": (["%o = neg(%x)"], 1, 0, 1, lambda t, x: t.neg(x), lambda x: -x),
    "add": (["%o = add(%x, %y)"], 2, 0, 1, lambda t, x, y: x + y, lambda x, y: x + y),
    "gelu": (["%o = gelu(%x)"], 1, 0, 1, lambda t, x: t.nn.functional.gelu(x), _gelu),
    "silu mul": (["%s = silu(%x)", "%o = mul(%s, %y)"], 2, 0, 1, lambda t, x, y: t.nn.functional.silu(x) * y, lambda x, y: _silu(x) * y),
    "softmax": (["%o = softmax(%x)"], 1, 0, 1, lambda t, x: t.softmax(x, -1), _softmax),
    "layernorm": (
        ["%o = layernorm(%x, weight=%w, bias=%b, eps=1e-5)"], 1, 2, 1,
        lambda t, x, w, b: t.nn.functional.layer_norm(x, (x.shape[-1],), w, b, 1e-5), _layernorm,
    ),
    "rmsnorm": (["%o = rmsnorm(%x, weight=%w, eps=1e-5)"], 1, 1, 1, lambda t, x, w: t.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-5), _rmsnorm),
    "add rmsnorm": (
        ["%h = add(%x, %y)", "%o = rmsnorm(%h, weight=%w, eps=1e-5)"], 2, 1, 2,
        lambda t, x, y, w: (t.nn.functional.rms_norm(x + y, (x.shape[-1],), w, 1e-5), x + y), lambda x, y, w: (_rmsnorm(x + y, w), x + y),
    ),
}  # fmt: skip
"""Statements, how many matrices and vectors go in, how many come out, and the same in torch and numpy."""


# -- products ----------------------------------------------------------------------------------------------------------


def _matmul(dtype: str, m: int, n: int, k: int, least: float) -> Work:
    parameters = [f"%x: {dtype}[{m}, {k}]", f"%w: {dtype}[{k}, {n}]"]
    text = graph(parameters, [f"o: {dtype}[{m}, {n}]"], ["%o = matmul(%x, %w)"], "%o")
    inputs = (Input((m, k), dtype), Input((k, n), dtype, k**-0.5))
    nbytes = float(_WIDTH[dtype] * (m * k + k * n + m * n))
    return Work(
        f"matmul {dtype} {m}x{n}x{k}", "products", text, inputs, lambda t, x, w: t.matmul(x, w), lambda x, w: x @ w, nbytes, 2.0 * m * n * k,
        wanted=Wanted(EAGER, least), tolerance=_ROUNDING[dtype],
    )  # fmt: skip


def _mlp(dtype: str, b: int, d: int, h: int) -> Work:
    """Two layers, with a bias and silu between them."""
    parameters = [f"%x: {dtype}[{b}, {d}]", f"%w1: {dtype}[{d}, {h}]", f"%b1: {dtype}[{h}]", f"%w2: {dtype}[{h}, {d}]"]
    lines = ["%h0 = matmul(%x, %w1)", "%h1 = add(%h0, %b1)", "%h2 = silu(%h1)", "%o = matmul(%h2, %w2)"]
    inputs = (Input((b, d), dtype), Input((d, h), dtype, d**-0.5), Input((h,), dtype, 0.1), Input((h, d), dtype, h**-0.5))
    nbytes = float(_WIDTH[dtype] * (2 * b * d + 2 * d * h + h))
    return Work(
        f"mlp {dtype} {b},{d},{h}", "mlp", graph(parameters, [f"o: {dtype}[{b}, {d}]"], lines, "%o"), inputs,
        lambda t, x, w1, b1, w2: t.nn.functional.silu(x @ w1 + b1) @ w2, lambda x, w1, b1, w2: _silu(x @ w1 + b1) @ w2,
        nbytes, 4.0 * b * d * h, peers=(EAGER, COMPILED), wanted=Wanted(COMPILED, 1.0), tolerance=_ROUNDING[dtype],
    )  # fmt: skip


def all_works(tiny: bool = False) -> list[Work]:
    """Everything; ``tiny``: in sizes that an emulated device computes in a moment."""
    if tiny:
        products = [_matmul("bf16", 72, 40, 48, 0.5), _matmul("f32", 72, 40, 48, 0.85)]
        return [*(_rows(name, 3, 72) for name in _ROW_WORKS), *products, _mlp("f32", 5, 16, 24), _mlp("bf16", 16, 16, 24)]
    rows = [_rows(name, r, COLUMNS) for r in ROWS for name in _ROW_WORKS]
    products = [_matmul("bf16", n, n, n, 0.5) for n in (4096, 8192)] + [_matmul("f32", n, n, n, 0.85) for n in (2048, 4096)]
    return [*rows, *products, _mlp("f32", 4096, 1024, 4096), _mlp("bf16", 4096, 1024, 4096)]
