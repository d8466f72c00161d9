"""Runs the CUDA C of a graph on numpy arrays, built for the CPU, simply: for tests, and as the shortest description of a program's steps.

Many programs can share one library, since building one takes seconds: see :func:`build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.cuda.emit import HEADER
from codegen.cuda.emulation import Kernels, load_kernels
from codegen.cuda.module import (
    SIZE_LIMIT,
    AssertStep,
    BufferRef,
    CopyStep,
    CudaProgram,
    IfStep,
    LaunchStep,
    LoopStep,
    PrintStep,
    Step,
    holds,
    number,
)
from ir.attributes import Dense
from ir.core import Graph
from ir.dims import substitute
from ir.signature import array_type, bind_shapes
from ir.types import storage_shape
from tests.codegen.native_graph import aligned

_ALIGNMENT = 256
_GUARD = 256


def build(programs: Sequence[CudaProgram]) -> Kernels:
    """The kernels of several programs, whose names must differ, in one library."""
    return load_kernels("\n".join([HEADER, *(k.source for p in programs for k in p.kernels)]))


class CudaGraph:
    """A program with its graph and kernels.  ``stored`` gives arrays for weights by the name of their value."""

    def __init__(self, program: CudaProgram, graph: Graph, kernels: Kernels, stored: Mapping[str, NDArray[Any]] | None = None) -> None:
        self.program = program
        self.graph = graph
        self.kernels = kernels
        self.printed: list[NDArray[Any]] = []
        self._stored = []
        for argument in program.stored:
            assert argument.operation is not None
            value = argument.operation.attributes.get("value")
            self._stored.append(_copy(value.array if isinstance(value, Dense) else np.asarray((stored or {})[argument.name])))

    def run(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The results; arrays of buffers are updated in place.  Raises GraphError as the reference interpreter does."""
        program = self.program
        names = bind_shapes(self.graph, [array_type(a, p) for a, p in zip(arrays, self.graph.parameters, strict=True)])
        if any(number(g, names) > SIZE_LIMIT for g in program.guards):
            raise program.sites[0].error(0, 0, names)
        shapes = [tuple(number(d, names) for d in storage_shape(a.type)) for a in program.results]
        arena = aligned(number(program.arena_bytes, names) + 2 * _GUARD, _ALIGNMENT)
        arena[...] = 0xA5
        self._memory = {
            "parameter": [_copy(a) for a in arrays],
            "result": [_copy(np.empty(s, a.type.dtype.numpy)) for s, a in zip(shapes, program.results, strict=True)],
            "stored": self._stored,
            "arena": [arena],
        }
        self._state = aligned(64)
        self._state[...] = 0
        self._steps(program.steps, dict(names))
        failed = int(self._state[:4].view(np.int32)[0])
        if failed:
            first, second = (int(self._state[at : at + 8].view(np.int64)[0]) for at in (8, 16))
            raise program.sites[failed - 1].error(first, second, names)
        assert (arena[len(arena) - _GUARD :] == 0xA5).all(), "a kernel wrote behind the arena"
        for position in program.written:
            arrays[position][...] = self._memory["parameter"][position]
        return self._memory["result"]

    def _address(self, ref: BufferRef, names: Mapping[str, int]) -> int:
        return int(self._memory[ref.kind][ref.index].ctypes.data) + number(ref.offset, names)

    def _steps(self, steps: Sequence[Step], names: dict[str, int]) -> None:
        for step in steps:
            if isinstance(step, LoopStep):
                for at in range(*(number(d, names) for d in (step.start, step.stop, step.step))):
                    self._steps(step.body, {**names, step.variable: at})
            elif isinstance(step, IfStep):
                self._steps(step.then if holds(step.condition, names) else step.otherwise, names)
            elif isinstance(step, AssertStep):
                if not holds(step.condition, names):
                    raise self.program.sites[step.site].error(number(step.first, names), number(step.second, names), names)
            elif isinstance(step, CopyStep):
                source, target, size = self._address(step.source, names), self._address(step.target, names), number(step.size, names)
                _bytes(target, size)[...] = _bytes(source, size).copy()
            elif isinstance(step, PrintStep):
                shape = [number(d, names) for d in storage_shape(step.type)]
                count = int(np.prod(shape)) * step.type.dtype.numpy.itemsize
                self.printed.append(_bytes(self._address(step.source, names), count).copy().view(step.type.dtype.numpy).reshape(shape))
            else:
                self._launch(step, names)

    def _launch(self, step: LaunchStep, names: Mapping[str, int]) -> None:
        kernel = self.program.kernel(step.kernel)
        grid = [number(d, names) for d in step.grid]
        if 0 in grid:
            return
        assert len(step.arguments) == len(kernel.parameters)
        values = []
        for parameter, argument in zip(kernel.parameters, step.arguments, strict=True):
            if parameter.kind == "state":
                values.append(int(self._state.ctypes.data))
            elif isinstance(argument, BufferRef):
                values.append(self._address(argument, names))
            else:
                assert argument is not None
                values.append(number(substitute(argument, names), names))
        self.kernels.launch(kernel.name, grid, kernel.threads, kernel.shared_bytes, values)


def _bytes(address: int, size: int) -> NDArray[np.uint8]:
    import ctypes

    return np.frombuffer((ctypes.c_uint8 * max(size, 1)).from_address(address), np.uint8)[:size]


def _copy(array: NDArray[Any]) -> NDArray[Any]:
    """The elements in memory that is aligned as arrays on the device are."""
    memory = aligned(max(array.nbytes, 1), _ALIGNMENT)[: array.nbytes]
    result = memory.view(array.dtype).reshape(array.shape)
    result[...] = array
    return result
