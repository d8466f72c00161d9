"""plan-memory: how far plans are from what is needed at once, by a count that knows nothing of the planner."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pass_checks import apply

from ir.clone import clone_module
from ir.core import Graph, Module
from ir.diagnostics import GraphError
from ir.inputs import choose_sizes
from ir.parser import parse_module
from ir.signature import constraint_holds
from ir.types import type_symbols
from passes.pipelines import PRESETS
from tests.generators import random_module
from tests.memory_checker import Demand, demand

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "samples").rglob("*.graph"))
PIPELINES = {"O2": "O2", "cpu": PRESETS["cpu"].partition(",plan-memory")[0]}


def planned(module: Module, pipeline: str) -> Module:
    apply(module, pipeline + ",plan-memory")
    return module


def sizes_of(graph: Graph, values: tuple[int, ...]) -> list[dict[str, int]]:
    """Sizes small and large, in all combinations that the graph allows."""
    names = list(dict.fromkeys(n for p in graph.parameters for n in type_symbols(p.type)))
    every = [dict(zip(names, each, strict=True)) for each in itertools.product(values, repeat=min(len(names), 2))] if len(names) <= 2 else []
    return [s for s in every if all(constraint_holds(c, s) for c in graph.constraints)]


def assert_near(found: Demand, where: str) -> None:
    """At most 5 % above what is needed at once, never more than all; 63 bytes for each buffer are for where it begins."""
    assert found.arena <= 1.05 * found.at_once + 63 * found.views, f"{where}: {found}"
    assert found.arena <= found.separate + 63 * found.buffers, f"{where}: {found}"


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.stem)
def test_samples_are_near_the_bound(sample: Path, pipeline: str) -> None:
    module = planned(parse_module(sample.read_text(), str(sample)), PIPELINES[pipeline])
    for graph in module.graphs.values():
        for sizes in sizes_of(graph, (1, 2, 7, 16, 100, 128, 512, 2000)):
            assert_near(demand(module, graph.name, sizes), f"{sample.name} {pipeline} {sizes}")


def test_the_count() -> None:
    """%A and %C are needed together, %D takes over the memory of %C."""
    text = """graph @main(%x: f32[B, 16]) {
  %arena = memref.alloc() : memref<u8[256*B]>
  %A = memref.view(%arena, offset=0) : memref<f32[B, 16]>
  %C = memref.view(%arena, offset=128*B) : memref<f32[B, 16]>
  %D = memref.view(%arena, offset=128*B) : memref<f32[B, 16]>
  %X = memref.from_tensor(%x) : memref<f32[B, 16]>
  memref.copy(%X, %A)
  memref.copy(%A, %C)
  memref.copy(%C, %D)
  memref.copy(%D, %A)
  return
}
"""
    assert demand(parse_module(text), "main", {"B": 3}) == Demand(arena=768, at_once=384, between=384, separate=576, views=3, buffers=3)


@given(st.integers(0, 2**32))
def test_random_graphs(seed: int) -> None:
    """Never above the sum of all, and near what is needed at once."""
    module = random_module(seed, 16)
    try:
        sizes = choose_sizes(module.main, sizes=(64, 48, 96, 32, 128, 16, 1, 3, 2, 5, 8, 4))
        for pipeline in ("O2", "cpu") if seed % 3 == 0 else ("O2",):
            apply(tried := clone_module(module), PIPELINES[pipeline] + ",plan-memory")
            assert_near(demand(tried, module.main.name, sizes), str(tried))
    except GraphError:
        return
