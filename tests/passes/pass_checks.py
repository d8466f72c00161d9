"""What the tests of passes share: running a pipeline with all checks on, and comparing two programs bit by bit."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

import dialects  # noqa: F401
from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.inference import infer_module
from ir.inputs import CAUTION_LEVELS, GeneratedWeights, Kind, choose_sizes, generate_inputs
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.verifier import verify_module
from ir.weights import WeightSource
from passes.infra.manager import Instrumentation, PassManager
from passes.infra.verify_exec import describe_difference, entry_graphs, same_bits
from passes.pipelines import load_pipeline

SIZES = ((3, 4, 2, 5, 8, 16, 1, 0), (1, 2, 8, 0), (0, 1, 2, 4, 8))
KINDS: tuple[Kind, ...] = ("real", "exact", "special")
NO_SOURCES: Mapping[str, WeightSource] = {}


def load(text: str, sources: Mapping[str, WeightSource] = NO_SOURCES) -> Module:
    """A module with inferred types."""
    module = parse_module(text)
    verify_module(module, sources=sources)
    infer_module(module, sources)
    return module


def apply(module: Module, pipeline: str, sources: Mapping[str, WeightSource] = NO_SOURCES) -> PassManager:
    """Runs a pipeline in place, with the checks of every pass."""
    manager = PassManager(load_pipeline(pipeline), Instrumentation(verify_each=True), sources)
    manager.run(module)
    return manager


def optimize(text: str, pipeline: str, sources: Mapping[str, WeightSource] = NO_SOURCES) -> Module:
    """The module after a pipeline: it parses back from its text, and nothing changes the second time."""
    module = load(text, sources)
    apply(module, pipeline, sources)
    once = print_module(module)
    assert print_module(load(once, sources)) == once
    again = clone_module(module)
    manager = apply(again, pipeline, sources)
    assert print_module(again) == once
    assert not any(r.changed for r in manager.records)
    reread = load(once, sources)
    apply(reread, pipeline, sources)
    assert print_module(reread) == once
    return module


def operations(module: Module) -> list[str]:
    """Names of all operations but ``return``, in order."""
    return [op.definition.text_name for op in module.walk() if not op.definition.is_terminator]


def outputs(module: Module, name: str, arrays: Sequence[np.ndarray], sources: Mapping[str, WeightSource], double: bool = False) -> list[np.ndarray]:
    """Results, and what ``inout`` parameters hold afterwards."""
    graph = module.graphs[name]
    given = [np.array(a) for a in arrays]
    results = Interpreter(module, sources, double=double, quiet=True).run(graph, given)
    return [*results, *(given[p.index] for p in graph.parameters if p.inout)]


def assert_same_bits(before: Module, after: Module, sources: Mapping[str, WeightSource] = NO_SOURCES, seeds: Sequence[int] = (0, 1)) -> None:
    """Both modules compute the same bits (NaN equals NaN) for real, exact and special inputs and several sizes."""
    sources = {f: sources.get(f) or GeneratedWeights(before, f) for f in before.files}
    compared = 0
    for name in entry_graphs(after):
        graph = after.graphs[name]
        for candidates, kind, seed in itertools.product(SIZES, KINDS, seeds):
            sizes = choose_sizes(graph, sizes=candidates)
            for caution in range(CAUTION_LEVELS):
                arrays = generate_inputs(after, graph, sizes, kind, seed, caution)
                try:
                    want = outputs(before, name, arrays, sources)
                except GraphError:
                    continue
                found = outputs(after, name, arrays, sources)
                assert len(want) == len(found)
                for position, (a, b) in enumerate(zip(want, found, strict=True)):
                    what = f"result {position} of @{name}, {kind} inputs, {sizes}"
                    assert same_bits(a, b), f"{what}: {describe_difference(a, b)}\n{print_module(after)}"
                compared += 1
                break
    assert compared, "no inputs were found on which the program runs"


def check(text: str, pipeline: str, sources: Mapping[str, WeightSource] = NO_SOURCES) -> Module:
    """:func:`optimize`, and the same bits as before."""
    after = optimize(text, pipeline, sources)
    assert_same_bits(load(text, sources), after, sources)
    return after
