"""The examples of the lower dialects' docstrings, natively and in the interpreter, on all kinds of inputs."""

from __future__ import annotations

import numpy as np
import pytest

from ir.diagnostics import GraphError
from passes.infra.base import PassContext
from passes.linalg.lower_to_loops import LowerToLoops
from tests.checks import all_examples, assert_same, baseline, is_written, load
from tests.codegen.native_graph import NativeGraph

DIALECTS = ("arith", "math", "affine", "memref", "vector", "scf", "cf")
HIGHER = {"memref.to_tensor-0", "scf.for-0"}  # they have operations on tensors
EXAMPLES = {f"{name}-{number}": text for name, number, text in all_examples() if name.split(".")[0] in DIALECTS}
IN_DOUBLE = 4  # units in the last place, for functions of f64: numpy's and the C library's are not the same


@pytest.mark.parametrize("key", EXAMPLES)
def test_same_bits(key: str) -> None:
    module = load(EXAMPLES[key].replace("@example(", "@main("))
    runs = baseline(module)
    LowerToLoops().run(module, PassContext())
    graph = module.graphs["main"]
    if key in HIGHER:
        with pytest.raises(GraphError, match="codegen: "):
            NativeGraph(module, graph)
        return
    native = NativeGraph(module, graph)
    assert runs.cases
    for case in runs.cases:
        for threads in (1, 2):
            given = [np.array(a) for a in case.inputs]
            results = native.run(given, threads)
            found = [*results, *(given[p.index] for p in graph.parameters if is_written(p))]
            assert_same(found, case.outputs, f"{case}, {threads} threads", module)
