"""The programs of the mutation test: for every kind of kernel that the preset ``cuda`` makes, sizes that need all of its bounds.

A line is a program and the sizes to run it with.  Sizes are ragged: not multiples of tiles, with more than one tile and less than one, so that
each bound has something to guard; where the host chooses between kernels by the size, there is a line of sizes for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.core import Graph
from ir.types import TensorType, substitute_type

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subject:
    """A program to remove things from.

    ``sizes`` are the values of its symbolic dimensions, for each run; integers of its inputs are below ``below``.  ``short``: it belongs to
    the default run of tests.
    """

    name: str
    program: str
    sizes: tuple[dict[str, int], ...] = ({},)
    below: int = 3
    short: bool = False

    def inputs(self, graph: Graph, sizes: dict[str, int]) -> list[Array]:
        """Arrays for the parameters: random numbers, all different where they are floats."""
        rng = np.random.default_rng(sum(map(ord, self.name)))
        return [self._array(rng, substitute_type(p.type, sizes)) for p in graph.parameters]

    def _array(self, rng: np.random.Generator, type_: Any) -> Array:
        assert isinstance(type_, TensorType)
        shape = tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]
        if type_.dtype.is_float:
            return rng.standard_normal(shape).astype(type_.dtype.numpy)
        if type_.dtype.kind == "bool":
            return rng.integers(0, 2, shape).astype(np.bool_)
        return rng.integers(0, self.below, shape).astype(type_.dtype.numpy)


def graph(parameters: str, result: str, *lines: str) -> str:
    """The text of a program with one graph; the first value of the last line is returned."""
    last = lines[-1].partition("=")[0].partition(",")[0].strip()
    return "\n".join([f"graph @main({parameters}) -> {result} {{", *(f"  {line}" for line in lines), f"  return {last}", "}", ""])


SUBJECTS: tuple[Subject, ...] = (
    # elementwise
    Subject("elements", graph("%x: f32[M, N], %y: f32[N]", "f32[M, N]", "%s = add(%x, %y)", "%z = silu(%s)"), ({"M": 5, "N": 77}, {"M": 3, "N": 1028})),
    Subject("elements-bf16", graph("%x: bf16[N]", "bf16[N]", "%y = gelu(%x)"), ({"N": 2 * 8 * 128 + 5},)),
    Subject("elements-static", graph("%x: f32[3, 100]", "f32[3, 100]", "%y = exp(%x)")),
    Subject("transposed", graph("%x: f32[M, N]", "f32[N, M]", "%y = transpose(%x, perm=[1, 0])"), ({"M": 37, "N": 41},), short=True),
    Subject("gather", graph("%w: f32[V, D], %i: i64[S]", "f32[S, D]", "%y = gather(%w, %i)"), ({"V": 3, "D": 33, "S": 7},)),
    Subject("rope", graph("%x: f32[B, 2, S, 8], %p: i64[S]", "f32[B, 2, S, 8]", "%y = rope(%x, %p)"), ({"B": 2, "S": 5},)),
    Subject("concat", graph("%x: f32[M, 5], %y: f32[M, 7]", "f32[M, 12]", "%z = concat(%x, %y, axis=1)"), ({"M": 11},)),
    # rows
    Subject("softmax", graph("%x: f32[M, N]", "f32[M, N]", "%y = softmax(%x)"), ({"M": 5, "N": 77}, {"M": 2, "N": 1500}), short=True),
    Subject("softmax-static", graph("%x: f32[7, 1001]", "f32[7, 1001]", "%y = softmax(%x)")),
    Subject("rmsnorm", graph("%x: f32[M, 100], %w: f32[100]", "f32[M, 100]", "%y = rmsnorm(%x, weight=%w)"), ({"M": 5},)),
    Subject("layernorm", graph("%x: f32[M, N], %w: f32[N], %b: f32[N]", "f32[M, N]", "%y = layernorm(%x, weight=%w, bias=%b)"), ({"M": 5, "N": 133},)),
    Subject("argmax", graph("%x: f32[M, N]", "i64[M]", "%y = argmax(%x, axis=1)"), ({"M": 5, "N": 133},)),
    Subject("sum-rows", graph("%x: f32[M, N]", "f32[M]", "%y = sum(%x, axes=[1])"), ({"M": 5, "N": 133},)),
    Subject("sum-columns", graph("%x: f32[M, N]", "f32[N]", "%y = sum(%x, axes=[0])"), ({"M": 37, "N": 43},)),
    Subject("running-sum", graph("%x: f32[B, N]", "f32[B, N]", "%y = cumsum(%x, axis=1)"), ({"B": 3, "N": 77},)),
    Subject("top-k", graph("%x: f32[B, N]", "f32[B, 3]", "%y, %i = topk(%x, k=3)"), ({"B": 3, "N": 77},)),
    Subject("sort", graph("%x: f32[B, N]", "f32[B, N]", "%y = sort(%x)"), ({"B": 3, "N": 77},)),
    # products
    Subject(
        "product-f32",
        graph("%a: f32[M, K], %b: f32[K, N]", "f32[M, N]", "%c = matmul(%a, %b)", "%d = silu(%c)"),
        ({"M": 70, "K": 37, "N": 75}, {"M": 1, "K": 77, "N": 133}, {"M": 5, "K": 70, "N": 133}, {"M": 140, "K": 36, "N": 140}),
    ),
    Subject("product-static", graph("%a: f32[M, 44], %b: f32[44, 72]", "f32[M, 72]", "%c = matmul(%a, %b)"), ({"M": 70}, {"M": 1}, {"M": 6}, {"M": 133})),
    Subject("linear", graph("%a: f32[M, 76], %b: f32[72, 76]", "f32[M, 72]", "%c = linear(%a, %b)"), ({"M": 70}, {"M": 1}, {"M": 6}, {"M": 133})),
    Subject("row", graph("%a: f32[1, 200], %w: f32[37, 200]", "f32[1, 37]", "%c = linear(%a, %w)"), short=True),
    Subject("product-bf16", graph("%a: bf16[M, 72], %b: bf16[72, 136]", "bf16[M, 136]", "%c = matmul(%a, %b)"), ({"M": 133}, {"M": 1}, {"M": 20})),
    Subject("linear-f16", graph("%a: f16[M, 72], %b: f16[136, 72]", "f16[M, 136]", "%c = linear(%a, %b)"), ({"M": 133}, {"M": 1}, {"M": 20})),
    # attention
    Subject(
        "attention",
        graph("%q: f32[B, 4, S, 16], %k: f32[B, 2, S, 16], %v: f32[B, 2, S, 16]", "f32[B, 4, S, 16]", "%o = attention(%q, %k, %v, causal=true)"),
        ({"B": 2, "S": 37}, {"B": 1, "S": 1}),
    ),
    Subject(
        "attention-decode",
        graph("%q: f32[B, 4, 1, 16], %k: f32[B, 2, S, 16], %v: f32[B, 2, S, 16]", "f32[B, 4, 1, 16]", "%o = attention(%q, %k, %v)"),
        ({"B": 2, "S": 37}, {"B": 1, "S": 700}),
    ),
)
"""Kinds whose kernels are not there yet are added when they are."""
