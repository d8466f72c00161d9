"""Loop programs over buffers that are parameters, and running them: what the tests of dependence-driven passes share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pass_checks import apply, load, optimize

from ir.core import Module
from ir.dims import substitute
from ir.interpreter import Interpreter
from ir.types import MemRefType
from passes.infra.verify_exec import describe_difference, same_bits


def program(body: str, parameters: str = "%A: memref<f32[M, N]>, %C: memref<f32[M, N]>") -> str:
    """A graph that works on its parameters."""
    return f"graph @main({parameters}) {{\n{body}\n  return\n}}\n"


def run_buffers(module: Module, sizes: Mapping[str, int], seed: int = 0, *, reverse: bool = False) -> list[np.ndarray]:
    """What the parameters hold after a run on random numbers."""
    graph = module.graphs["main"]
    rng = np.random.default_rng(seed)
    arrays = []
    for parameter in graph.parameters:
        assert isinstance(parameter.type, MemRefType)
        shape = [substitute(d, sizes) for d in parameter.type.shape]
        arrays.append(rng.standard_normal(shape).astype(parameter.type.dtype.numpy))
    Interpreter(module, reverse_parallel=reverse).run(graph, arrays)
    return arrays


def assert_same_memory(before: Module, after: Module, sizes: list[dict[str, int]], *, reverse: bool = True) -> None:
    """Both leave the same bits in all buffers; the later one in any order of parallel rounds."""
    for given in sizes:
        want = run_buffers(before, given)
        for backwards in (False, True) if reverse else (False,):
            found = run_buffers(after, given, reverse=backwards)
            for a, b in zip(want, found, strict=True):
                assert same_bits(a, b), f"{given}, reverse={backwards}: {describe_difference(a, b)}\n{after}"


def changed(text: str, pipeline: str, sizes: list[dict[str, int]]) -> Module:
    """The program after a pipeline that does something; it leaves the same memory behind."""
    before = load(text)
    after = optimize(text, pipeline)
    assert str(after) != str(before)
    assert_same_memory(before, after, sizes)
    return after


def left(text: str, pipeline: str) -> list[str]:
    """The statistics that say why a pipeline left the program as it was."""
    module = load(text)
    once = str(module)
    manager = apply(module, pipeline)
    assert str(module) == once
    return [what for record in manager.records for what, count in record.statistics.items() if ": " in what and count]
