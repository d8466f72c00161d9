"""Programs on a GPU: from a program at the level of kernels to what can be called; arrays in a device's memory.

    run = graph_opt.compile("mlp.graph", device="cuda")
    x = graph_opt.cuda.to_device(numpy_array)
    y = run(x)                      # stays on the device
    y.numpy(), torch.from_dlpack(y)
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.cuda import arrays as device_arrays
from codegen.cuda.arrays import DeviceArray, is_device_array, see, type_of
from codegen.cuda.device import Device, open_device
from codegen.cuda.emit import emit_program
from codegen.cuda.runtime import Engine
from codegen.runtime.outputs import as_outputs
from graph_opt.binding import at_location
from graph_opt.executable import DeferredExecutable, Executable, as_array
from graph_opt.kept import POISON
from graph_opt.load_time import LoadTime, Stored
from ir.core import Graph, Module
from ir.diagnostics import Diagnostic, GraphError
from ir.interpreter import Interpreter
from ir.signature import array_type, check_count, match_arguments
from ir.types import TensorType

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from graph_opt.executable import Arrays, OnOperation
    from ir.weights import WeightSource

__all__ = ["CudaExecutable", "DeviceArray", "compile_cuda", "empty", "open_device", "to_device"]


def to_device(array: ArrayLike, device: str = "cuda") -> DeviceArray:
    """A copy of an array in a device's memory.  Raises GraphError for what is no array, and where there is no such device."""
    return device_arrays.to_device(open_device(device), array)


def empty(shape: Sequence[int], dtype: Any = np.float32, device: str = "cuda") -> DeviceArray:
    """A new array in a device's memory, with any contents, of a numpy dtype or the name of an element type ("bf16")."""
    from ir.types import DTYPES, dtype_from_numpy, tensor_shape

    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise GraphError(Diagnostic(f"shape: expected integers, found {shape!r}")) from None
    found = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if found is None:
        try:
            found = dtype_from_numpy(np.dtype(dtype))
        except TypeError as error:
            raise GraphError(Diagnostic(f"dtype: {error}")) from None
    if found is None or (found.is_block and not sizes):
        raise GraphError(Diagnostic(f"arrays of {dtype if isinstance(dtype, str) else np.dtype(dtype)} are not supported"))
    return device_arrays.empty(open_device(device), TensorType(found, tensor_shape(found, sizes)))


class CudaExecutable(Executable):
    """Runs a graph on a GPU.

    Arguments are numpy arrays, which are copied there, or arrays on the device: :class:`DeviceArray`, or what torch, cupy and others have
    there, which is used where it is.  Results are numpy arrays when all arguments are, else :class:`DeviceArray`; ``out=`` takes arrays of
    either kind.  ``stream=`` is the stream for the work: its handle, or a stream of torch, cupy, pycuda or cuda-core; by default our own,
    which the default stream waits for.  With results on the device the call returns before they are computed, unless the program has
    something to check.
    """

    def __init__(self, module: Module, graph: Graph, engine: Engine) -> None:
        super().__init__(module, graph)
        self.engine = engine
        names = {p.name for p in graph.parameters}
        self._options = tuple(n for n in ("out", "stream") if n not in names)
        self._count = len(graph.parameters)
        self._results = len(graph.results)

    @property
    def device(self) -> Device:
        """Where it runs."""
        return self.engine.device

    def to_device(self, array: ArrayLike) -> DeviceArray:
        """A copy of an array in the memory of this program's device."""
        return device_arrays.to_device(self.device, array)

    def _call(self, /, *args: Any, **kwargs: Any) -> Any:
        out = stream = None
        if kwargs:
            out, stream = (kwargs.pop(n, None) if n in self._options else None for n in ("out", "stream"))
        handle = None if stream is None else stream_handle(stream)
        results = None
        if not kwargs and len(args) == self._count:
            outputs = out if out is None or isinstance(out, (tuple, list)) else (out,)
            if outputs is None or len(outputs) == self._results:
                try:
                    results = self.engine.quick(args, outputs, handle)
                except GraphError as error:
                    raise at_location(error, self.graph.loc) from error
        if results is None:
            results = self.run(match_arguments(self.graph, args, kwargs), out=out, stream=handle)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, arrays: Sequence[Any], on_operation: OnOperation | None = None, *, out: Any = None, stream: int | None = None) -> list[Any]:
        """The results for arrays in parameter order; operations don't run one by one here, so ``on_operation`` is never called."""
        try:
            outputs = None if out is None else as_outputs(self.graph, out, is_device_array)
            check_count(self.graph, len(arrays))
            checked = [a if is_device_array(a) else as_array(a, p) for a, p in zip(arrays, self.graph.parameters, strict=True)]
            return self.engine.call(checked, outputs, stream)
        except MemoryError as error:
            raise GraphError(Diagnostic(f"not enough memory: {error}", self.graph.loc)) from error
        except GraphError as error:
            raise at_location(error, self.graph.loc) from error

    def _run(self, arrays: Arrays, on_operation: OnOperation | None, out: Arrays | None) -> Arrays:
        return self.engine.call(arrays, out)


class DeferredCudaExecutable(DeferredExecutable):
    """Makes kernels for the types of the arrays that it is called with, which may be on the device."""

    def __init__(self, module: Module, graph: Graph, make: Callable[[Module], Executable], device: Device) -> None:
        super().__init__(module, graph, make)
        self._device = device

    def _call(self, /, *args: Any, **kwargs: Any) -> Any:
        names = {p.name for p in self.graph.parameters}
        out, stream = (kwargs.pop(n, None) if n not in names else None for n in ("out", "stream"))
        given = match_arguments(self.graph, args, kwargs)
        try:
            checked = [a if is_device_array(a) else as_array(a, p) for a, p in zip(given, self.graph.parameters, strict=True)]
            program = self._program([self._type(a, n) for n, a in enumerate(checked)])
        except GraphError as error:
            raise at_location(error, self.graph.loc) from error
        options = {name: value for name, value in (("out", out), ("stream", stream)) if value is not None}
        return program(*checked, **options)

    def _type(self, value: Any, index: int) -> TensorType:
        parameter = self.graph.parameters[index]
        if not is_device_array(value):
            return array_type(value, parameter)
        with self._device:
            return type_of(see(value, self._device, self._device.stream, parameter.name, parameter.loc))


def stream_handle(stream: Any) -> int:
    """The handle of a stream of torch, cupy, pycuda, cuda-core, or the handle itself.  Raises GraphError for anything else."""
    handle: Any = None
    if isinstance(stream, int):
        handle = None if isinstance(stream, bool) else stream
    elif hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        try:
            handle = int((protocol() if callable(protocol) else protocol)[1])
        except Exception as error:  # it is the code of another library
            raise GraphError(Diagnostic(f"stream: its __cuda_stream__ is not understood: {error}")) from None
    else:
        handle = next((h for n in ("cuda_stream", "ptr", "handle") if isinstance(h := getattr(stream, n, None), int)), None)
    if handle is None:
        raise GraphError(Diagnostic(f"stream: expected a stream, or its handle, found {type(stream).__name__}"))
    if not 0 <= handle < 1 << 64:
        raise GraphError(Diagnostic(f"stream: {handle} is no handle of a stream"))
    return int(handle)


def compile_cuda(
    module: Module, graph: Graph, sources: Mapping[str, WeightSource], device: Device, begun: LoadTime | None = None, *, checked: bool = False
) -> CudaExecutable:
    """What runs one graph of a module at the level of kernels.  ``begun`` are graphs for load time that run already; ``checked`` is for
    programs whose accesses to memory were written by others (:func:`~codegen.cuda.emit.emit_program`).

    Raises GraphError for operations that have no kernel, for weights that are missing or don't fit, and where kernels can't be compiled
    or loaded.
    """
    Interpreter(module, sources).check_sizes(graph, {})
    program = emit_program(module, graph, checked=checked)
    arrays = _Stored(module, sources, device, begun, checked).tensors(graph)
    stored = [arrays[a.operation] for a in program.stored if a.operation is not None]
    return CudaExecutable(module, graph, Engine(program, graph, stored, device, poison=os.environ.get(POISON) == "1"))


class _Stored(Stored):
    """Tensors that a program has before it runs; graphs that have become kernels run on the device."""

    def __init__(self, module: Module, sources: Mapping[str, WeightSource], device: Device, begun: LoadTime | None, checked: bool = False) -> None:
        super().__init__(module, sources, 0, begun)
        self._device = device
        self._checked = checked

    def _run(self, source: Graph) -> list[NDArray[Any]]:
        if any(op.definition.dialect == "gpu" for op in source.walk()):
            return compile_cuda(self.module, source, self.sources, self._device, checked=self._checked).run([])
        return super()._run(source)
