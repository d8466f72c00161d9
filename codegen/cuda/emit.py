"""Graphs whose top-level nests are launches, as CUDA C.

Every launch becomes a function of the device, equal ones one function; what is around them becomes steps of the host.  See
:func:`emit_program`.
"""

from __future__ import annotations

import dialects  # noqa: F401
from codegen.cuda import control, elementwise, gpu_ops, indices, memory, vectors  # noqa: F401
from codegen.cuda.module import CudaProgram
from codegen.cuda.names import comment
from codegen.cuda.steps import HostWriter
from codegen.llvm.emit import graph_symbols
from codegen.llvm.native import Argument
from ir.core import Graph, Module
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import product, symbol
from ir.types import MemRefType, TensorType, UnknownType

HEADER = '#include "graph_opt_device.h"'


def emit_program(module: Module, graph: Graph, *, marks: bool = False, checked: bool = False) -> CudaProgram:
    """The kernels of a graph as text, and the steps that run them.

    The text includes ``graph_opt_device.h``, which has a part for the device (``codegen/cuda/include``); a build for the host gives a file
    of that name that includes ``graph_opt_host.h``.  With ``marks`` every barrier, wait and bound is written in a macro with a number
    (see :class:`~codegen.cuda.module.Mark`), so that a test can leave them out one by one.

    With ``checked`` accesses that are not proved to be inside of their buffers are checked; kernels that passes make of operations on tensors
    don't need that.

    The same program gives the same text.  Sums and products of floats are written as the program has them: the text must be compiled
    without contraction to fused multiply-adds, and without fast math.

    Raises GraphError for an operation that is in no launch and that the host can't run, for what a launch takes from outside and can't
    compute again, and for parameters and results that are no tensors.
    """
    symbols = graph_symbols(graph)
    parameters = _parameters(graph)
    results = _results(graph)
    host = HostWriter(graph, symbols, parameters, marks, checked)
    steps = host.run(graph.block)
    stored = []
    for op in host.stored:
        type_ = op.results[0].type
        assert isinstance(type_, TensorType)
        stored.append(Argument("stored", op.results[0].name, type_, False, op))
    title = comment(f"kernels of @{graph.name}")
    source = "\n".join([f"// {title}", HEADER, "", *(k.source for k in host.kernels)])
    guards = tuple(product(map(symbol, names)) for names in host.guards)
    return CudaProgram(
        graph.name, source, tuple(host.kernels), steps, tuple(parameters), tuple(results), tuple(stored), tuple(symbols), host.arena,
        tuple(host.sites), guards, tuple(host.marks),
    )  # fmt: skip


def _parameters(graph: Graph) -> list[Argument]:
    found = []
    for p in graph.parameters:
        if not isinstance(p.type, (TensorType, MemRefType)):
            raise GraphError(Diagnostic(f"codegen: parameter %{p.name} of type {p.type} is no tensor or buffer", p.loc))
        found.append(Argument("parameter", p.name, p.type, p.inout or isinstance(p.type, MemRefType)))
    return found


def _results(graph: Graph) -> list[Argument]:
    found = []
    for name, value in zip([*graph.result_names, *[""] * len(graph.results)], graph.results, strict=False):
        if not isinstance(value.type, TensorType):
            hint = "--shape NAME=f32[4,64] gives a parameter its type" if isinstance(value.type, UnknownType) else None
            raise GraphError(Diagnostic(f"codegen: a result of type {value.type} is no tensor", graph.return_op.loc, hint))
        found.append(Argument("result", name or value.name, value.type, True))
    return found
