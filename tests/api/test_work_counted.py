"""Counts of work beside what the interpreter does: it counts the operations that it computes, and the elements that it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dialects.linalg
import dialects.memref
import dialects.vector
from graph_opt.work import FLOPS, least_bytes, work_of
from ir.core import Graph, Module, Operation
from ir.diagnostics import GraphError
from ir.inputs import CAUTION_LEVELS, choose_sizes, generate_inputs
from ir.interpreter import Environment, Interpreter
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline
from tests.checks import all_examples, load

PROGRAMS = {
    "layer": """graph @example(%x: f32[B, 6], %wt: f32[10, 6], %b: f32[10], %g: f32[10]) -> f32[B, 10] {
  %y = linear(%x, %wt, bias=%b)
  %a = gelu(%y)
  %r = rmsnorm(%a, weight=%g)
  %s = softmax(%r)
  return %s
}
""",
    "attention": """graph @example(%q: f32[1, 4, S, 4], %k: f32[1, 2, S, 4], %v: f32[1, 2, S, 3], %x: f32[1, 4, S, 3]) -> f32[1, 4, S, 3] {
  %o = attention(%q, %k, %v, causal=true)
  %n = add(%o, %x)
  %r = layernorm(%n)
  return %r
}
""",
}
EXAMPLES = {
    # kernels are made of nests that were counted
    **{f"{name}-{number}": text for name, number, text in all_examples() if not name.startswith("gpu.")},
    **PROGRAMS,
}

DATA_DECIDE = {
    "affine.max-0", "arith.index_cast-1", "cf.assert-0", "graph.embedding-0", "graph.embedding-1", "graph.gather-0", "graph.gather_elements-0",
    "graph.scatter-0", "graph.scatter-1", "scf.if-0", "scf.if-1",
}  # fmt: skip
"""Which elements are touched, and whether, is not known before: as many are counted as there can be."""


class Counting(Interpreter):
    """Counts what each operation of the top level does: operations, and bytes of all elements that it reads or writes."""

    def __init__(self, module: Module) -> None:
        super().__init__(module, {})
        self.flops = 0
        self.touched: dict[int, int] = {}
        self.found: dict[Operation, tuple[int, int]] = {}
        self.top = module.main.block

    def run_operation(self, op: Operation, environment: Environment) -> None:
        if op.block is self.top:
            self.flops = 0
            self.touched.clear()
        super().run_operation(op, environment)
        if op.definition.full_name in FLOPS:
            self.flops += FLOPS[op.definition.full_name] * np.asarray(environment.arrays[op.results[0]]).size
        if op.block is self.top:
            self.found[op] = self.flops, sum(self.touched.values())


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Counting], None]:
    """Has accesses to elements noted in an interpreter."""
    watching: list[Counting] = []

    def noted(access: Callable[..., Any]) -> Callable[..., Any]:
        def note(argument: Any, operands: Any, *rest: Any) -> Any:
            place = access(argument, operands, *rest)
            array = operands[argument.position]
            for point in elements(place) if place is not None else ():
                address = array.ctypes.data + sum(i * s for i, s in zip(point, array.strides, strict=True))
                watching[-1].touched[address] = array.itemsize
            return place

        return note

    for module in (dialects.linalg, dialects.memref, dialects.vector):
        for name in ("element", "block"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, noted(getattr(module, name)))
    return watching.append


def elements(place: tuple[Any, ...]) -> Iterator[tuple[int, ...]]:
    """The elements of a place: one, or those of a block."""
    starts = [p.start if isinstance(p, slice) else p for p in place]
    for offset in np.ndindex(*(p.stop - p.start if isinstance(p, slice) else 1 for p in place)):
        yield tuple(s + o for s, o in zip(starts, offset, strict=True))


def executed(module: Module, graph: Graph, sizes: dict[str, int], watch: Callable[[Counting], None]) -> Counting | None:
    """A run with the least tame inputs that does not fail."""
    for caution in range(CAUTION_LEVELS):
        interpreter = Counting(module)
        watch(interpreter)
        try:
            interpreter.run(graph, generate_inputs(module, graph, sizes, "real", 0, caution))
        except GraphError:
            continue
        return interpreter
    return None


@pytest.mark.parametrize("key", EXAMPLES)
def test_counts(key: str, watch: Callable[[Counting], None]) -> None:
    module = load(EXAMPLES[key].replace("@example(", "@main("))
    PassManager(load_pipeline("O2")).run(module)
    if module.files or not any(op.regions for op in module.main.block):
        return
    sizes = choose_sizes(module.main)
    ran = executed(module, module.main, sizes, watch)
    assert ran is not None
    for op, (flops, nbytes) in ran.found.items():
        work = work_of(op, sizes)
        if not op.regions or not work.known:
            continue
        counted = least_bytes([work], work.memories(), sizes)
        if key in DATA_DECIDE:
            assert work.flops >= flops and counted >= nbytes
        else:
            assert (work.flops, counted) == (flops, nbytes)
