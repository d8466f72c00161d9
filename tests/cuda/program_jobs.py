"""Programs as jobs for sanitizers: every buffer is memory of its own, allocated to the byte, so that what goes beyond it is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import graph_opt
from codegen.cuda.device import open_device
from codegen.cuda.emit import emit_program
from codegen.cuda.module import CudaProgram, KernelParameter, number
from codegen.cuda.plan import Copy, Fail, Launch, Place, Plan
from codegen.cuda.sanitized import Job
from codegen.cuda.sanitized import Place as Memory
from graph_opt.api import find_graph
from graph_opt.cuda import _Stored
from ir.core import Graph, Module
from ir.dims import product
from ir.signature import array_type, bind_shapes
from ir.types import TensorType, substitute_type
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Compiled:
    """A program's kernels with marks."""

    module: Module
    graph: Graph
    program: CudaProgram
    stored: tuple[Array, ...]


def compile_marked(text: str, pipeline: str) -> Compiled:
    """The main graph of a text as kernels in which synchronisation and bounds are marked.

    Without a plan of memory in the pipeline all buffers are in different places of the arena.
    """
    module = graph_opt.parse(text)
    PassManager(load_pipeline(pipeline)).run(module)
    graph = find_graph(module, None)
    program = emit_program(module, graph, marks=True)
    arrays = _Stored(module, {}, open_device("cuda-emulated"), None).tensors(graph)
    return Compiled(module, graph, program, tuple(arrays[a.operation] for a in program.stored if a.operation is not None))


def job_of(
    compiled: Compiled, inputs: Sequence[Array], reverse: bool = False, make: Callable[[str], Job] = Job
) -> tuple[Job, list[TensorType]]:
    """A job that runs the program on these arrays; its outputs are the results, of these types, and then the parameters that it writes."""
    program, graph = compiled.program, compiled.graph
    names = bind_shapes(graph, [array_type(a, p) for a, p in zip(inputs, graph.parameters, strict=True)])
    plan = Plan.of(program, names)
    work = list(plan.all_work())
    results = [_tensor(substitute_type(a.type, names)) for a in program.results]
    job = make(program.source)
    job.reverse(reverse)
    bases: dict[tuple[str, int], Memory] = {}
    for kind, arrays in (("parameter", inputs), ("stored", compiled.stored)):
        for n, array in enumerate(arrays):
            bases[kind, n] = job.buffer(np.ascontiguousarray(array))
    for n, type_ in enumerate(results):
        bases["result", n] = job.garbage(_bytes(type_))
    pieces = {start: job.garbage(end - start) for start, end in _pieces(program, plan.names, work)}
    state = job.buffer(bytes(64))

    def memory(place: Place) -> Memory:
        if place.base[0] != "arena":
            return Memory(bases[place.base].index, place.offset)
        start = max(s for s in pieces if s <= place.offset)
        return Memory(pieces[start].index, place.offset - start)

    for item in work:
        if isinstance(item, Launch):
            kernel = program.kernel(item.kernel)
            arguments = [state if a is None else memory(a) if isinstance(a, Place) else a for a in item.arguments]
            job.launch(kernel.name, item.grid, kernel.threads, kernel.shared_bytes, arguments)
        elif isinstance(item, Copy):
            job.copy(memory(item.target), memory(item.source), item.size)
        elif isinstance(item, Fail):
            raise AssertionError(program.sites[item.site].error(item.first, item.second, names))
    for n, type_ in enumerate(results):
        job.output(bases["result", n], _bytes(type_))
    for n in program.written:
        job.output(bases["parameter", n], inputs[n].nbytes)
    job.output(state, 4)
    return job, results


def _tensor(type_: Any) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_


def _bytes(type_: Any, names: Mapping[str, int] | None = None) -> int:
    return number(product([*type_.shape, type_.dtype.numpy.itemsize]), names or {})


def _pieces(program: CudaProgram, names: Mapping[str, int], work: Sequence[Any]) -> list[tuple[int, int]]:
    """The parts of the arena that are used as one buffer: where they start and end, what overlaps is one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(_uses(program, names, work)):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif end > start:
            found.append((start, end))
    return found


def _uses(program: CudaProgram, names: Mapping[str, int], work: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for item in work:
        if isinstance(item, Launch):
            for parameter, argument in zip(program.kernel(item.kernel).parameters, item.arguments, strict=True):
                if isinstance(argument, Place) and argument.base[0] == "arena":
                    yield argument.offset, argument.offset + _parameter_bytes(parameter, names)
        elif isinstance(item, Copy):
            for place in (item.source, item.target):
                if place.base[0] == "arena":
                    yield place.offset, place.offset + item.size


def _parameter_bytes(parameter: KernelParameter, names: Mapping[str, int]) -> int:
    assert parameter.type is not None
    return _bytes(parameter.type, names)
