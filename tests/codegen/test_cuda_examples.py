"""The examples of the lower dialects' docstrings as kernels, built for the CPU: the bits of the interpreter, on all kinds of inputs."""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest

from codegen.cuda.emit import emit_program
from ir.core import Module
from passes.gpu.map_serial import MapSerial
from passes.infra.base import PassContext
from passes.linalg.lower_to_loops import LowerToLoops
from passes.vector.expand_math import EXPANSIONS, ExpandMath
from tests.checks import all_examples, assert_same, baseline, is_written, load
from tests.codegen.cuda_graph import CudaGraph, build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are built for the CPU by g++")

DIALECTS = ("arith", "math", "affine", "memref", "vector", "scf", "cf")
HIGHER = {"memref.to_tensor-0", "scf.for-0"}  # they have operations on tensors
EXAMPLES = {
    f"{name}-{number}": text for name, number, text in all_examples() if name.split(".")[0] in DIALECTS and f"{name}-{number}" not in HIGHER
}


def kernels_of(text: str, name: str) -> Module:
    """The example with everything in launches."""
    module = load(text.replace("@example(", f"@{name}("))
    LowerToLoops().run(module, PassContext())
    MapSerial().run(module, PassContext())
    return module


@functools.cache
def everything() -> dict[str, CudaGraph]:
    """All examples in one library: building it takes seconds."""
    modules = {key: kernels_of(text, f"e{n}") for n, (key, text) in enumerate(EXAMPLES.items())}
    graphs = {key: next(iter(m.graphs.values())) for key, m in modules.items()}
    programs = {key: emit_program(modules[key], graphs[key]) for key in modules}
    library = build(list(programs.values()))
    return {key: CudaGraph(programs[key], graphs[key], library) for key in modules}


@pytest.mark.parametrize("key", EXAMPLES)
def test_same_bits(key: str) -> None:
    cuda = everything()[key]
    module = load(EXAMPLES[key].replace("@example(", "@main("))
    LowerToLoops().run(module, PassContext())
    if any(name in EXAMPLES[key] for name in EXPANSIONS):
        ExpandMath().run(module, PassContext())
    runs = baseline(module)
    assert runs.cases
    for case in runs.cases:
        given = [np.array(a) for a in case.inputs]
        results = cuda.run(given)
        found = [*results, *(given[p.index] for p in cuda.graph.parameters if is_written(p))]
        assert_same(found, case.outputs, str(case), module)
