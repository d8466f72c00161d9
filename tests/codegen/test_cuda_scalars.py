"""Every elementwise operation on every element type in kernels that are built for the CPU: scalars, and vectors with a remainder.

The bits are the interpreter's; functions of f32 and narrower are compared as ``expand-math`` writes them out.
"""

from __future__ import annotations

import functools
import shutil

import numpy as np
import pytest

from codegen.cuda.emit import emit_program
from ir.core import Module
from ir.interpreter import Interpreter
from passes.infra.base import PassContext
from passes.vector.expand_math import EXPANSIONS, ExpandMath
from tests.checks import load
from tests.codegen.cuda_graph import CudaGraph, build
from tests.codegen.test_scalar_code import VARIANTS, compare, inputs, scalar_loop, vector_loop

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are built for the CPU by g++")

WIDTHS = (0, 3)  # lanes; 0 is for scalars
COUNT = 259


def program(key: str, name: str, widths: tuple[int, ...]) -> Module:
    """All elements by one thread."""
    operation, dtypes, result, attributes = VARIANTS[key]
    body = "".join(
        vector_loop(operation, dtypes, result, attributes, n) if n else scalar_loop(operation, dtypes, result, attributes) for n in widths
    )
    parameters = [*(f"%A{i}: memref<{d}[N]>" for i, d in enumerate(dtypes)), *(f"%C{n}: memref<{result}[N]>" for n in widths)]
    return load(f"graph @{name}({', '.join(parameters)}) {{\ngpu.launch(%b = 0 to 1, threads=1) {{\n{body}\nyield\n}}\nreturn\n}}\n")


@functools.cache
def everything() -> dict[str, CudaGraph]:
    """All variants in one library."""
    modules = {key: program(key, f"e{n}", WIDTHS) for n, key in enumerate(VARIANTS)}
    graphs = {key: next(iter(m.graphs.values())) for key, m in modules.items()}
    programs = {key: emit_program(modules[key], graphs[key]) for key in modules}
    library = build(list(programs.values()))
    return {key: CudaGraph(programs[key], graphs[key], library) for key in modules}


@pytest.mark.parametrize("key", VARIANTS)
def test_same_bits(key: str) -> None:
    name, dtypes, result, _ = VARIANTS[key]
    cuda = everything()[key]
    judge = program(key, "main", (COUNT,))  # one vector: the interpreter computes it at once
    if name in EXPANSIONS:
        ExpandMath().run(judge, PassContext())
    arrays, wanted = inputs(name, dtypes, COUNT), np.zeros(COUNT, result.numpy)
    Interpreter(judge).run(judge.main, [*map(np.array, arrays), wanted])
    for count in (COUNT, 1, 0):
        outputs = [np.zeros(count, result.numpy) for _ in WIDTHS]
        given = [a[:count] for a in arrays]
        cuda.run([*map(np.array, given), *outputs])
        for lanes, found in zip(WIDTHS, outputs, strict=True):
            compare(key, given, wanted[:count], found, f"{lanes} lanes\n{cuda.program.source}")
