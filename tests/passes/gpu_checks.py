"""What the tests of passes that make kernels share: what may stay on top of a graph, and comparing with the loops before."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from pass_checks import apply, load, outputs

from ir.clone import clone_module
from ir.core import Block, Module
from ir.diagnostics import GraphError
from ir.inputs import CAUTION_LEVELS, GeneratedWeights, Kind, choose_sizes, generate_inputs
from ir.interpreter import Interpreter
from ir.printer import print_module
from ir.references import load_time_graphs
from passes.gpu._nests import is_host_control
from passes.infra.verify_exec import describe_difference, entry_graphs, same_bits
from passes.pipelines import PRESETS

TO_LOOPS = "O2,collapse,lower-to-loops,widen-sums"
CANONICAL = "split-reduction"
"""What brings the sums of loops into the order that they have in machine code."""
SIZES = ((3, 4, 2, 5, 8, 16, 1, 0), (1, 2, 8, 0), (0, 1, 2, 4, 8))
KINDS: tuple[Kind, ...] = ("real", "special")

_ON_TOP = {
    "memref.from_tensor", "memref.of_inout", "memref.alloc", "memref.view", "memref.reshape", "memref.dim", "memref.to_tensor", "memref.copy",
    "gpu.launch",
}  # fmt: skip


def loops(text: str, keep: Sequence[str] = ()) -> Module:
    """A program at the level from which kernels are made; ``keep`` names operations that stay tensor operations."""
    module = load(text)
    lowering = f"lower-to-linalg{{keep=[{', '.join(keep)}]}}"
    apply(module, TO_LOOPS.replace("O2", PRESETS["O2"]).replace("lower-to-linalg", lowering))
    return module


def left_on_top(block: Block) -> list[str]:
    """Names of operations of a host block that belong into kernels."""
    found = []
    for op in block:
        if is_host_control(op):
            for region in op.regions:
                found += left_on_top(region.block)
        elif op.definition.dialect in ("scf", "memref", "linalg", "vector", "cf", "gpu") and op.name not in _ON_TOP:
            found.append(op.name)
    return found


def assert_mapped(module: Module) -> None:
    """All that computes with elements is in kernels, which hold what kernels may hold."""
    for name, graph in module.graphs.items():
        if name in load_time_graphs(module):
            continue
        assert not left_on_top(graph.block), f"{left_on_top(graph.block)}\n{print_module(module)}"
        for op in graph.walk():
            if op.name == "gpu.launch":
                inside = {n.name for n in op.walk() if n is not op}
                assert not inside & {"scf.parallel", "memref.alloc", "memref.copy", "gpu.launch"}, print_module(module)


def same_as_before(before: Module, after: Module, *, sizes: Sequence[Sequence[int]] = SIZES, kinds: Sequence[Kind] = KINDS) -> None:
    """Both modules compute the same bits, in whatever order threads and rounds run; or both fail alike."""
    sources = {f: GeneratedWeights(before, f) for f in before.files}
    compared = 0
    for name in entry_graphs(after):
        graph = after.graphs[name]
        for candidates, kind in itertools.product(sizes, kinds):
            chosen = choose_sizes(graph, sizes=candidates)
            for caution in range(CAUTION_LEVELS):
                arrays = generate_inputs(after, graph, chosen, kind, 0, caution)
                try:
                    want = outputs(before, name, arrays, sources)
                except GraphError as error:
                    _fails_alike(after, name, arrays, sources, error)
                    continue
                for reverse in (False, True):
                    given = [np.array(a) for a in arrays]
                    found = Interpreter(after, sources, quiet=True, reverse_parallel=reverse).run(after.graphs[name], given)
                    found = [*found, *(given[p.index] for p in graph.parameters if p.inout)]
                    for position, (a, b) in enumerate(zip(want, found, strict=True)):
                        what = f"result {position} of @{name}, {kind} inputs, {chosen}, reverse={reverse}"
                        assert same_bits(a, b), f"{what}: {describe_difference(a, b)}\n{print_module(after)}"
                compared += 1
                break
    assert compared, "no inputs were found on which the program runs"


def _fails_alike(after: Module, name: str, arrays: list[np.ndarray], sources: dict[str, GeneratedWeights], want: GraphError) -> None:
    try:
        outputs(after, name, arrays, sources)
    except GraphError:
        return
    raise AssertionError(f"expected an error: {want}\n{print_module(after)}")


def mapped(text: str, pipeline: str, keep: Sequence[str] = (), **options: Any) -> Module:
    """The program with kernels, which computes the same bits as its loops with canonical sums."""
    before = loops(text)
    after = loops(text, keep) if keep else clone_module(before)
    apply(after, pipeline)
    apply(before, CANONICAL)
    same_as_before(before, after, **options)
    once = print_module(after)
    assert print_module(load(once)) == once
    apply(after, pipeline)
    assert print_module(after) == once, "a second run changes something"
    return after
