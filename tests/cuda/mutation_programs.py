"""The programs of the mutation test: for every kind of kernel that the preset ``cuda`` makes, sizes that need all of its bounds.

A line is a program and the sizes to run it with.  Sizes are ragged: not multiples of tiles, with more than one tile and less than one, so that
each bound has something to guard; where the host chooses between kernels by the size, there is a line of sizes for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.core import Graph
from ir.types import TensorType, substitute_type
from passes.gpu._product_schedules import CORES, TILES
from passes.pipelines import PRESETS
from tests.digit_programs import FORMATS, product_text

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Subject:
    """A program to remove things from.

    ``sizes`` are the values of its symbolic dimensions, for each run, and of inputs (``%n``) that must have certain ones; other integers of
    its inputs are below ``below``.  ``short``: it belongs to the default run of tests.  ``products`` are options of the pass map-products.
    ``spare`` is what guards nothing here, though it does in other programs: (name in CUDA C, or operation, and kernel; why).
    """

    name: str
    program: str
    sizes: tuple[dict[str, int], ...] = ({},)
    below: int = 3
    short: bool = False
    products: str = ""
    spare: tuple[tuple[str, str, str], ...] = ()

    @property
    def pipeline(self) -> str:
        """The preset ``cuda``, with the options ``products`` of map-products, and with every buffer in a place of its own."""
        preset = PRESETS["cuda"].removesuffix(",plan-memory")
        return preset.replace("map-products", f"map-products{{{self.products}}}") if self.products else preset

    def inputs(self, graph: Graph, sizes: dict[str, int]) -> list[Array]:
        """Arrays for the parameters: random numbers, all different where they are floats."""
        rng = np.random.default_rng(sum(map(ord, self.name)))
        found = [self._array(rng, substitute_type(p.type, sizes)) for p in graph.parameters]
        return [np.full_like(a, sizes[f"%{p.name}"]) if f"%{p.name}" in sizes else a for a, p in zip(found, graph.parameters, strict=True)]

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


def _tiles() -> Iterator[Subject]:
    """Products in f32 by each of the schedules: ragged ones, and some whose rows are copied 16 bytes at a time."""
    for schedule in TILES:
        m, n, k = schedule.rows + 5, schedule.columns + 9, schedule.depth * (schedule.stages + 2) + 5
        options = f"tier=tiles, tile={schedule.name}, versions=false"
        sizes = ({"M": m, "K": k, "N": n}, {"M": 3, "K": schedule.depth + 1, "N": 5})
        text = graph("%a: f32[M, K], %b: f32[K, N]", "f32[M, N]", "%c = matmul(%a, %b)", "%d = silu(%c)")
        yield Subject(f"tile-{schedule.name}", text, sizes, products=options)
        text = graph("%a: f32[M, 4*J], %w: f32[4*L, 4*J]", "f32[M, 4*L]", "%c = linear(%a, %w)")
        wide = ({"M": m, "J": k // 4, "L": n // 4}, {"M": 3, "J": schedule.depth // 4 + 1, "L": 1})
        yield Subject(f"tile-{schedule.name}-wide", text, wide, products=options)


def _cores() -> Iterator[Subject]:
    """Products by tensor cores, by each of the schedules."""
    for schedule in CORES:
        m, n, k = schedule.rows + 5, schedule.columns + 8, schedule.depth * (schedule.stages + 2) + 8
        options = f"tier=cores, tile={schedule.name}, versions=false"
        sizes = ({"M": m, "J": k // 8, "L": n // 8}, {"M": 3, "J": schedule.depth // 8 + 1, "L": 1})
        text = graph("%a: bf16[M, 8*J], %b: bf16[8*J, 8*L]", "bf16[M, 8*L]", "%c = matmul(%a, %b)")
        yield Subject(f"cores-{schedule.name}-bf16", text, sizes, products=options)
        text = graph("%a: f16[M, 8*J], %w: f16[8*L, 8*J]", "f16[M, 8*L]", "%c = linear(%a, %w)")
        yield Subject(f"cores-{schedule.name}-f16", text, sizes, products=options)


def _digits() -> Iterator[Subject]:
    """Products with packed weights: one row, a few, and many."""
    for format_ in FORMATS:
        yield Subject(f"digits-{format_}", product_text(format_, 37, 160, 2), ({"S": 1}, {"S": 7}, {"S": 69}), below=60)
    text = graph(
        "%x: f32[S, 160], %w: f32[160], %p: u8[2, 5, 640]", "f32[S, 197]",
        "%u = exp(%x)", "%a = rmsnorm(%u, weight=%w)", "%d, %s, %t = split_digits(%a)", "%y = digit_linear(%d, %s, %t, %p, rows=37)",
        "%c = concat(%y, %u, axis=1)",
    )  # fmt: skip
    spare = (("gpu.barrier", "k_main_a", "each thread reads again what it has stored itself"),)
    yield Subject("digits-norm", text, ({"S": 1}, {"S": 3}, {"S": 69}), below=60, spare=spare)


_ALL_SEEN = tuple(("is_seen", k, "without a length every block of threads sees a key") for k in ("k_main_o", "k_main_o_blocks"))

SUBJECTS: tuple[Subject, ...] = (
    # elementwise
    Subject("elements", graph("%x: f32[M, N], %y: f32[N]", "f32[M, N]", "%s = add(%x, %y)", "%z = silu(%s)"), ({"M": 5, "N": 77},)),
    Subject("elements-bf16", graph("%x: bf16[N]", "bf16[N]", "%y = gelu(%x)"), ({"N": 2 * 8 * 128 + 5},)),
    Subject("elements-static", graph("%x: f32[3, 100]", "f32[3, 100]", "%y = exp(%x)")),
    Subject("transposed", graph("%x: f32[M, N]", "f32[N, M]", "%y = transpose(%x, perm=[1, 0])"), ({"M": 37, "N": 41},), short=True),
    Subject("gather", graph("%w: f32[V, D], %i: i64[S]", "f32[S, D]", "%y = gather(%w, %i)"), ({"V": 3, "D": 33, "S": 7},)),
    Subject("rope", graph("%x: f32[B, 2, S, 8], %p: i64[S]", "f32[B, 2, S, 8]", "%y = rope(%x, %p)"), ({"B": 2, "S": 5},)),
    Subject(
        "cache",
        graph(
            "%a: f32[2, T, 8] inout, %b: f32[2, T, 8] inout, %x: f32[2, S, 8], %y: f32[S, 2, 8], %at: i64[], %p: i64[S]", "f32[2, T, 8]",
            "%k = rope(%x, %p, interleaved=true)", "%v = transpose(%y, perm=[1, 0, 2])", "%k2 = cache_update(%a, %k, %at)",
            "%v2 = cache_update(%b, %v, %at)", "%r = add(%k2, %v2)",
        ),
        ({"S": 70, "T": 75}, {"S": 3, "T": 5}),
    ),
    Subject("concat", graph("%x: f32[M, 5], %y: f32[M, 7]", "f32[M, 12]", "%z = concat(%x, %y, axis=1)"), ({"M": 11},)),
    # rows
    Subject("softmax", graph("%x: f32[M, N]", "f32[M, N]", "%y = softmax(%x)"), ({"M": 5, "N": 77}, {"M": 2, "N": 2100}), short=True),
    Subject("softmax-static", graph("%x: f32[7, 1001]", "f32[7, 1001]", "%y = softmax(%x)")),
    Subject("rmsnorm", graph("%x: f32[M, 100], %w: f32[100]", "f32[M, 100]", "%y = rmsnorm(%x, weight=%w)"), ({"M": 5},)),
    Subject(
        "layernorm",
        graph("%x: f32[M, N], %w: f32[N], %b: f32[N]", "f32[M, N]", "%y = layernorm(%x, weight=%w, bias=%b)"),
        ({"M": 5, "N": 133}, {"M": 2, "N": 2100}),
    ),
    Subject("argmax", graph("%x: f32[M, N]", "i64[M]", "%y = argmax(%x, axis=1)"), ({"M": 5, "N": 133}, {"M": 2, "N": 2100})),
    Subject("sum-rows", graph("%x: f32[M, N]", "f32[M]", "%y = sum(%x, axes=[1])"), ({"M": 5, "N": 133}, {"M": 2, "N": 2100})),
    Subject("sum-columns", graph("%x: f32[M, N]", "f32[N]", "%y = sum(%x, axes=[0])"), ({"M": 37, "N": 43},)),
    Subject("running-sum", graph("%x: f32[B, N]", "f32[B, N]", "%y = cumsum(%x, axis=1)"), ({"B": 3, "N": 77}, {"B": 2, "N": 2100})),
    Subject("top-k", graph("%x: f32[B, N]", "f32[B, 3]", "%y, %i = topk(%x, k=3)"), ({"B": 3, "N": 77}, {"B": 1, "N": 2100})),
    Subject("argsort", graph("%x: f32[B, N]", "i64[B, N]", "%y = argsort(%x)"), ({"B": 3, "N": 77}, {"B": 1, "N": 2100})),
    Subject("top-p", graph("%p: f32[B, N]", "f32[B, N]", "%s = softmax(%p)", "%q = top_p(%s, p=0.9)"), ({"B": 3, "N": 77}, {"B": 1, "N": 2100})),
    Subject(
        "sample",
        graph("%p: f32[B, N], %s: i64[]", "i64[B, 2]", "%q = softmax(%p)", "%i = multinomial(%q, %s, num_samples=2)"),
        ({"B": 3, "N": 77}, {"B": 1, "N": 2100}),
    ),
    Subject("sort", graph("%x: f32[B, N]", "f32[B, N]", "%y = sort(%x)"), ({"B": 3, "N": 77}, {"B": 1, "N": 2100})),
    # products: few rows; every schedule of tiles comes below
    Subject("row", graph("%a: f32[1, 1300], %w: f32[37, 1300]", "f32[1, 37]", "%c = linear(%a, %w)"), short=True),
    Subject(
        "rows",
        graph("%a: f32[M, K], %b: f32[K, N]", "f32[M, N]", "%c = matmul(%a, %b)", "%d = silu(%c)"),
        ({"M": 1, "K": 1801, "N": 37}, {"M": 13, "K": 1300, "N": 69}, {"M": 2, "K": 100, "N": 3}),
        products="tier=rows",
    ),
    Subject(
        "rows-wide",
        graph("%a: f32[M, 4*J], %b: f32[4*J, 4*L]", "f32[M, 4*L]", "%c = matmul(%a, %b)"),
        ({"M": 13, "J": 451, "L": 11}, {"M": 1, "J": 25, "L": 1}),
        products="tier=rows",
    ),
    Subject(
        "versions",
        graph("%a: f32[M, 4*J], %b: f32[4*J, 72]", "f32[M, 72]", "%c = matmul(%a, %b)"),
        tuple({"M": m, "J": j} for m, j in ((5, 331), (8, 331), (5, 25), (20, 41), (20, 3), (70, 41), (70, 3), (1030, 25), (1030, 3))),
    ),
    *_tiles(),
    *_cores(),
    *_digits(),
    # attention
    Subject(
        "attention",
        graph("%q: f32[B, 2, S, 16], %k: f32[B, 1, S, 16], %v: f32[B, 1, S, 16]", "f32[B, 2, S, 16]", "%o = attention(%q, %k, %v, causal=true)"),
        ({"B": 2, "S": 37}, {"B": 1, "S": 1}, {"B": 1, "S": 5}, {"B": 1, "S": 261}),
        spare=(*_ALL_SEEN, ("gpu.barrier", "k_main_o", "it orders the first values of sums, which are used where no key is seen: needs a length")),
    ),
    Subject(
        "attention-length",
        graph(
            "%q: f32[B, 2, S, 16], %k: f32[B, 1, T, 16], %v: f32[B, 1, T, 16], %n: i64[]",
            "f32[B, 2, S, 16]",
            "%o = attention(%q, %k, %v, length=%n, causal=true)",
        ),
        (
            *({"B": 1, "S": 37, "T": t, "%n": n} for t, n in ((261, 150), (40, 0), (40, 40), (150, 150))),
            *({"B": 2, "S": 5, "T": t, "%n": n} for t, n in ((9, 7), (9, 9))),
            *({"B": 2, "S": 1, "T": t, "%n": n} for t, n in ((300, 150), (300, 0), (37, 37))),
        ),
    ),
    Subject(
        "attention-decode",
        graph("%q: f32[B, 4, 1, 16], %k: f32[B, 2, S, 16], %v: f32[B, 2, S, 16]", "f32[B, 4, 1, 16]", "%o = attention(%q, %k, %v)"),
        ({"B": 2, "S": 37}, {"B": 1, "S": 301}),
        spare=_ALL_SEEN,
    ),
)
"""Kinds whose kernels are not there yet are added when they are."""

IDLE: dict[tuple[str, str], str] = {
    ("", "adds"): "only one half-warp adds; the other threads would add the same numbers of shared memory, and what they have is not used",
    ("attention", "any_keys"): "no keys in this part of the block: copies would have no valid elements, and scores of keys that none sees are masked",
    ("", "is_needed"): "threads without an element of a tile of few rows would compute another one's again, and store nothing",
    ("digits", "busy"): "warps without rows would read the last row again, and a bound on rows guards what they would store",
}
"""Conditions that guard no memory but save work, and why nothing changes without them: (start of the name of a subject, name in CUDA C)."""
