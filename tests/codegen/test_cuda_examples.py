"""The examples of the lower dialects' docstrings as kernels, built for the CPU: the bits of the interpreter, on all kinds of inputs."""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest

from codegen.cuda.emit import emit_program
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.gpu.map_serial import MapSerial
from passes.infra.base import PassContext
from passes.linalg.lower_to_loops import LowerToLoops
from passes.vector.expand_math import EXPANSIONS, ExpandMath
from tests.checks import all_examples, assert_same, baseline, is_written, load
from tests.codegen.cuda_graph import CudaGraph, build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are built for the CPU by g++")

DIALECTS = ("arith", "math", "affine", "memref", "vector", "scf", "cf", "gpu")
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


REFUSED = {
    "a divisor": ("%x: memref<i32[N]>, %y: memref<i32[N]>", "%r = arith.floordivsi(%a, %b) : i32", [[7, 8, 9], [1, 0, 0]]),
    "an amount": ("%x: memref<i64[N]>, %y: memref<i64[N]>", "%r = arith.shli(%a, %b) : i64", [[7, 8, 9], [1, 64, 3]]),
    "a negative amount": ("%x: memref<i8[N]>, %y: memref<i8[N]>", "%r = arith.shrui(%a, %b) : i8", [[7, 8, 9], [7, 1, -1]]),
}
LANES = {
    "a lane": ("%x: memref<i32[4]>, %y: memref<i32[4]>", "%r = arith.remsi(%a, %b) : vector<i32[2, 2]>", [[7, 8, 9, 1], [1, 2, 0, 0]]),
}


@functools.cache
def refused() -> dict[str, tuple[Module, CudaGraph]]:
    """Programs that fail, each with a check, in one library."""
    texts = {}
    for number, (key, (parameters, line, _)) in enumerate({**REFUSED, **LANES}.items()):
        dtype = parameters.split("<")[1].split("[")[0]
        load_, store = "memref.load(%{}[%i]) : " + dtype, "memref.store(%r, %x[%i])"
        loop, end = "scf.for(%i = 0 to N) {", "yield\n}"
        if key in LANES:
            load_, store, loop, end = f"vector.reshape(%{{0}}{number}) : vector<{dtype}[2, 2]>", "", "", ""
            loop = "\n".join(f"%{v}{number} = vector.load(%{v}[0:+4]) : vector<{dtype}[4]>" for v in "xy")
            store = f"%q = vector.reshape(%r) : vector<{dtype}[4]>\nvector.store(%q, %x[0:+4])"
        body = f"{loop}\n%a = {load_.format('x')}\n%b = {load_.format('y')}\n{line}\n{store}\n{end}"
        texts[key] = f"graph @r{number}({parameters}) {{\ngpu.launch(%block = 0 to 1, threads=1) {{\n{body}\nyield\n}}\nreturn\n}}\n"
    modules = {key: load(text) for key, text in texts.items()}
    graphs = {key: next(iter(m.graphs.values())) for key, m in modules.items()}
    programs = {key: emit_program(modules[key], graphs[key]) for key in modules}
    library = build(list(programs.values()))
    return {key: (modules[key], CudaGraph(programs[key], graphs[key], library)) for key in modules}


@pytest.mark.parametrize("key", [*REFUSED, *LANES])
def test_same_errors(key: str) -> None:
    module, cuda = refused()[key]
    _, _, numbers = {**REFUSED, **LANES}[key]
    arrays = [np.array(n, p.type.dtype.numpy) for n, p in zip(numbers, cuda.graph.parameters, strict=True)]
    with pytest.raises(GraphError) as wanted:
        Interpreter(module).run(cuda.graph, [a.copy() for a in arrays])
    with pytest.raises(GraphError) as found:
        cuda.run([a.copy() for a in arrays])
    assert str(found.value) == str(wanted.value)
