"""Runs native code of one graph on numpy arrays, simply: for tests, and as the shortest description of the interface."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.llvm.emit import emit_graph
from codegen.llvm.helpers import CALLBACK
from codegen.llvm.jit import Code, host_attributes, host_features
from codegen.llvm.native import NativeModule
from ir.attributes import Dense
from ir.core import Graph, Module
from ir.diagnostics import Diagnostic, GraphError
from ir.signature import array_type, bind_shapes, check_count

_MAIN = ctypes.CFUNCTYPE(ctypes.c_int32, *([ctypes.c_void_p] * 4), ctypes.c_int64, ctypes.c_int64)
_WORKSPACE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_SHAPES = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def aligned(size: int, alignment: int = 64) -> NDArray[np.uint8]:
    """Bytes that begin at a multiple of ``alignment``."""
    memory = np.zeros(size + alignment, np.uint8)
    skip = -memory.ctypes.data % alignment
    return memory[skip : skip + size]


class NativeGraph:
    """A graph compiled for this machine.  ``stored`` gives arrays for weights by the name of their value."""

    def __init__(
        self, module: Module, graph: Graph, stored: Mapping[str, NDArray[Any]] | None = None, *, clocks: bool = False,
        features: Collection[str] | None = None, **options: Any
    ) -> None:  # fmt: skip
        self.graph = graph
        self.native: NativeModule = emit_graph(
            module, graph, attributes=host_attributes(), features=host_features() if features is None else features, clocks=clocks
        )
        self.code = Code.from_text(self.native.text, **options)
        self._main = _MAIN(self.code.address(self.native.function))
        self._workspace = _WORKSPACE(self.code.address(self.native.workspace_function))
        self._shapes = _SHAPES(self.code.address(self.native.shapes_function))
        self._stored = []
        for argument in self.native.arguments:
            if argument.kind == "stored":
                assert argument.operation is not None
                value = argument.operation.attributes.get("value")
                array = value.array if isinstance(value, Dense) else np.asarray((stored or {})[argument.name])
                self._stored.append(_copy(array))

    def run(self, arrays: Sequence[NDArray[Any]], threads: int = 1) -> list[NDArray[Any]]:
        """The results; arrays of buffers are updated in place.  Raises GraphError as the reference interpreter does."""
        check_count(self.graph, len(arrays))
        names = bind_shapes(self.graph, [array_type(a, p) for a, p in zip(arrays, self.graph.parameters, strict=True)])
        dims = np.array([names[s] for s in self.native.symbols] or [0], np.int64)
        size = self._workspace(dims.ctypes.data)
        if size < 0:
            raise GraphError(Diagnostic("the buffers do not fit in memory", self.graph.loc))
        given = [np.ascontiguousarray(a) if a.ndim else a for a in arrays]
        results = self._results(dims)
        pointers = np.array([a.ctypes.data for a in (*given, *results, *self._stored)] or [0], np.uint64)
        workspace, state = aligned(size), aligned(256)
        workspace[...] = 0xAA
        self.printed: list[int] = []
        callback = _CALLBACK(lambda site, data, shape: self.printed.append(site) or 0)  # type: ignore[func-returns-value]
        state[CALLBACK : CALLBACK + 8].view(np.uint64)[0] = ctypes.cast(callback, ctypes.c_void_p).value or 0
        passed = (pointers.ctypes.data, dims.ctypes.data, workspace.ctypes.data, state.ctypes.data)
        workers = [threading.Thread(target=self._main, args=(*passed, t, threads)) for t in range(1, threads)]
        for worker in workers:
            worker.start()
        self._main(*passed, 0, threads)
        for worker in workers:
            worker.join()
        failed = int(state[:4].view(np.int32)[0])
        if failed:
            first, second = (int(state[at : at + 8].view(np.int64)[0]) for at in (8, 16))
            raise self.native.sites[failed - 1].error(first, second, names)
        for array, used in zip(arrays, given, strict=True):
            if used is not array:
                array[...] = used
        return results

    def _results(self, dims: NDArray[np.int64]) -> list[NDArray[Any]]:
        types = [a.type for a in self.native.arguments if a.kind == "result"]
        sizes = np.zeros(sum(len(t.shape) for t in types) + 1, np.int64)
        self._shapes(dims.ctypes.data, sizes.ctypes.data)
        results, at = [], 0
        for type_ in types:
            results.append(np.empty(sizes[at : at + len(type_.shape)].tolist(), type_.dtype.numpy))
            at += len(type_.shape)
        return results


def _copy(array: NDArray[Any]) -> NDArray[Any]:
    """The elements in memory that is aligned as stored tensors must be."""
    memory = aligned(max(array.nbytes, 1))[: array.nbytes]
    result = memory.view(array.dtype).reshape(array.shape)
    result[...] = array
    return result
