"""Factors of products that lie crosswise are turned panel by panel, where they are read, or in front of the product."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load

import graph_opt
from ir.inputs import generate_inputs
from passes.infra.verify_exec import same_bits
from passes.pipelines import PRESETS
from tests.memory_checker import check_plan

VECTORS = PRESETS["cpu"].partition(",expand-math")[0]


def linear(m: object, k: object, n: object) -> str:
    return f"graph @main(%x: f32[{m}, {k}], %w: f32[{n}, {k}]) -> f32[{m}, {n}] {{\n  %y = linear(%x, %w)\n  return %y\n}}\n"


KNOWN = [(1, 64, 100), (4, 65, 48), (33, 100, 130), (40, 16, 7), (3, 3000, 20)]
OPEN = [("M", 33, 70), ("M", "K", 50), ("M", 20, "N")]


@pytest.mark.parametrize(("m", "k", "n"), [*KNOWN, *OPEN])
def test_products_with_crosswise_factors(m: object, k: object, n: object) -> None:
    """Panels are made by squares where a column is short enough, else the whole factor is; the bits are those of any order."""
    multiply = graph_opt.compile(graph_opt.parse(linear(m, k, n)))
    numbers = np.random.default_rng(0)
    for rows in (0, 1, 5, 32, 70) if m == "M" else (m,):
        inner, columns = (40 if k == "K" else k), (83 if n == "N" else n)
        x = numbers.integers(-9, 9, (rows, inner)).astype(np.float32)  # type: ignore[arg-type]
        w = numbers.integers(-9, 9, (columns, inner)).astype(np.float32)  # type: ignore[arg-type]
        assert same_bits(multiply(x, w), x @ w.T), (rows, inner, columns)


def batch(b: object, m: object, k: object, n: object) -> str:
    parameters = f"%x: f32[{b}, {m}, {k}], %w: f32[{b}, {n}, {k}]"
    body = "  %t = transpose(%w, perm=[0, 2, 1])\n  %y = matmul(%x, %t)\n  return %y\n"
    return f"graph @main({parameters}) -> f32[{b}, {m}, {n}] {{\n{body}}}\n"


BATCHES = [(3, 1, 64, 100), (2, 4, 65, 48), (2, 33, 100, 130), (5, 40, 16, 7), (2, 3, 3000, 20), ("B", "M", 33, 70), ("B", 7, "K", 50)]


@pytest.mark.parametrize(("b", "m", "k", "n"), BATCHES)
def test_batches_of_crosswise_factors(b: object, m: object, k: object, n: object) -> None:
    multiply = graph_opt.compile(graph_opt.parse(batch(b, m, k, n)))
    numbers = np.random.default_rng(0)
    for rows in (0, 1, 5, 32, 70) if m == "M" else (m,):
        count, inner = (2 if b == "B" else b), (40 if k == "K" else k)
        x = numbers.integers(-9, 9, (count, rows, inner)).astype(np.float32)  # type: ignore[arg-type]
        w = numbers.integers(-9, 9, (count, n, inner)).astype(np.float32)  # type: ignore[arg-type]
        assert same_bits(multiply(x, w), x @ w.swapaxes(1, 2)), (rows, inner)


def test_batches_are_turned_into_panels() -> None:
    """Once, and not into columns first, of which panels were made then."""
    for rows, copies in ((64, [".panels"]), (5, [".panels"]), (1, []), ("M", [".panels"])):
        apply(module := load(batch(4, rows, 256, 256)), VECTORS)
        names = [op.result.name for op in module.walk() if op.name in ("memref.alloc", "memref.view")]
        assert [n[n.rindex(".") :] for n in names if n.endswith((".panels", ".columns", ".panel"))] == copies, rows
    apply(module := load(batch(4, 64, 4096, 256)), VECTORS)
    assert any(op.result.name.endswith(".columns") for op in module.walk() if op.name in ("memref.alloc", "memref.view"))


def test_near_or_in_front() -> None:
    def has(text: str) -> tuple[bool, bool]:
        apply(module := load(text), VECTORS)
        names = [op.result.name for op in module.walk() if op.name in ("memref.alloc", "memref.view")]
        return any(n.endswith(".panel") for n in names), any(n.endswith(".columns") for n in names)

    assert has(linear("M", 512, 1024)) == has(linear(2, 512, 1024)) == (True, False) and has(linear(1, 512, 1024)) == (False, False)
    assert has(linear("M", "K", 1024)) == (True, True), "which one is known when it runs"
    assert has(linear("M", 4096, 1024)) == (False, True)


def test_statistics() -> None:
    """Bytes that are transposed while the program runs."""
    for text, wanted in ((linear("M", 4096, 64), {"bytes transposed by nests": 4 * 4096 * 64}), (linear("M", 64, 64), {})):
        records = apply(load(text), VECTORS).records
        (statistics,) = [r.statistics for r in records if r.text.startswith("transpose-operands")]
        assert {n: v for n, v in statistics.items() if n.startswith("bytes")} == wanted
    records = apply(load("graph @main(%x: f32[M, N]) -> f32[N, M] {\n  %y = transpose(%x, perm=[1, 0])\n  return %y\n}\n"), VECTORS).records
    assert any(r.statistics == {"bytes transposed by nests (4*M*N), for M=128, N=128": 4 * 128 * 128} for r in records)


def test_plans() -> None:
    apply(module := load(linear(5, 20, 70)), VECTORS)
    check_plan(module, "main", generate_inputs(module, module.main, {}, "real"))
