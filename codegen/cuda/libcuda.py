"""The driver's own library, ``libcuda.so.1``, through ctypes: what Python packages for it don't offer, or do more slowly.

Functions are called by the names that cuda.h gives them; the table says which version of each is meant, and its parameters.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from codegen.cuda.driver import DriverError
from ir.diagnostics import Diagnostic, MissingPackage

LIBRARY = "libcuda.so.1"

_INT, _U32, _U64, _SIZE, _POINTER = ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p

_FUNCTIONS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "cuDriverGetVersion": ("cuDriverGetVersion", (_POINTER,)),
    "cuPointerGetAttribute": ("cuPointerGetAttribute", (_POINTER, _INT, _U64)),
    "cuMemcpyHtoDAsync": ("cuMemcpyHtoDAsync_v2", (_U64, _POINTER, _SIZE, _POINTER)),
    "cuMemcpyDtoHAsync": ("cuMemcpyDtoHAsync_v2", (_POINTER, _U64, _SIZE, _POINTER)),
    "cuMemcpyDtoDAsync": ("cuMemcpyDtoDAsync_v2", (_U64, _U64, _SIZE, _POINTER)),
    "cuMemsetD8Async": ("cuMemsetD8Async", (_U64, ctypes.c_ubyte, _SIZE, _POINTER)),
    "cuStreamSynchronize": ("cuStreamSynchronize", (_POINTER,)),
    "cuStreamWaitEvent": ("cuStreamWaitEvent", (_POINTER, _POINTER, _U32)),
    "cuEventCreate": ("cuEventCreate", (_POINTER, _U32)),
    "cuEventDestroy": ("cuEventDestroy_v2", (_POINTER,)),
    "cuEventRecord": ("cuEventRecord", (_POINTER, _POINTER)),
    "cuEventSynchronize": ("cuEventSynchronize", (_POINTER,)),
    "cuEventElapsedTime": ("cuEventElapsedTime", (_POINTER, _POINTER, _POINTER)),
    "cuStreamBeginCapture": ("cuStreamBeginCapture_v2", (_POINTER, _INT)),
    "cuStreamEndCapture": ("cuStreamEndCapture", (_POINTER, _POINTER)),
    "cuGraphInstantiate": ("cuGraphInstantiateWithFlags", (_POINTER, _POINTER, _U64)),
    "cuGraphLaunch": ("cuGraphLaunch", (_POINTER, _POINTER)),
    "cuGraphDestroy": ("cuGraphDestroy", (_POINTER,)),
    "cuGraphExecDestroy": ("cuGraphExecDestroy", (_POINTER,)),
}
"""Name: the symbol (of the version whose parameters these are), its parameters.  All return CUresult."""

CAPTURE_THREAD_LOCAL = 1
EVENT_TIMING, EVENT_DISABLE_TIMING = 0, 2
STREAM_BLOCKING, STREAM_NON_BLOCKING = 0, 1
POINTER_MEMORY_TYPE, POINTER_DEVICE = 2, 9
MEMORY_DEVICE = 2
_ERRORS = 1000


def load_library() -> ctypes.CDLL:
    """The library.  Raises MissingPackage when there is no driver on this machine."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        message = f"there is no CUDA driver: {error}"
        hint = "a machine with an NVIDIA GPU has one (nvidia-smi shows it); device 'cuda-emulated' runs kernels on the CPU, for tests"
        raise MissingPackage(Diagnostic(message, hint=hint)) from None


class CudaLibrary:
    """Functions of the driver that raise :class:`DriverError` where CUDA's return an error."""

    def __init__(self) -> None:
        self._library = load_library()
        self._lock = threading.Lock()
        self._found: dict[str, Callable[..., int]] = {}

    def raw(self, name: str) -> Callable[..., int]:
        """The function itself, which returns CUDA's number of an error, 0 for none."""
        function = self._found.get(name)
        if function is not None:
            return function
        symbol, parameters = _FUNCTIONS[name]
        with self._lock:
            try:
                found: Any = getattr(self._library, symbol)
            except AttributeError:
                raise DriverError(name, "CUDA_ERROR_NOT_FOUND", f"the driver has no {symbol}", "it is too old: install a newer one") from None
            found.argtypes, found.restype = parameters, _INT
            self._found[name] = found
        return self._found[name]

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function.  Raises DriverError."""
        status = self.raw(name)(*arguments)
        if status:
            self.fail(name, status)

    def value(self, name: str, *arguments: Any) -> int:
        """What a function stores through its first parameter, up to 64 bits; the others are ``arguments``."""
        place = _U64(0)
        self.call(name, ctypes.addressof(place), *arguments)
        return place.value

    def fail(self, what: str, status: int) -> None:
        """Raises the error with this number."""
        raise DriverError(what, self._text("cuGetErrorName", status) or f"error {status}", self._text("cuGetErrorString", status))

    def error_names(self) -> dict[str, str]:
        """Names of errors by their descriptions."""
        numbers = range(1, _ERRORS)
        return {text: self._text("cuGetErrorName", n) for n in numbers if (text := self._text("cuGetErrorString", n))}

    def _text(self, function: str, status: int) -> str:
        place = ctypes.c_char_p()
        getter = getattr(self._library, function)
        getter.argtypes, getter.restype = (_INT, ctypes.POINTER(ctypes.c_char_p)), _INT
        return (place.value or b"").decode(errors="replace") if getter(status, ctypes.byref(place)) == 0 else ""


class RawWork:
    """Work for streams, events and graphs of a driver, by ctypes: all handles are those that CUDA gives, whoever made them."""

    library: CudaLibrary

    def device_of(self, address: int) -> int | None:
        kind, number = ctypes.c_uint(0), _INT(0)
        get = self.library.raw("cuPointerGetAttribute")
        if get(ctypes.addressof(kind), POINTER_MEMORY_TYPE, address) or kind.value != MEMORY_DEVICE:
            return None
        self.library.call("cuPointerGetAttribute", ctypes.addressof(number), POINTER_DEVICE, address)
        return number.value

    def synchronize_stream(self, stream: int) -> None:
        self.library.call("cuStreamSynchronize", stream)

    def new_event(self, timing: bool = False) -> int:
        return self.library.value("cuEventCreate", EVENT_TIMING if timing else EVENT_DISABLE_TIMING)

    def destroy_event(self, event: int) -> None:
        self.library.call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self.library.call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self.library.call("cuStreamWaitEvent", stream, event, 0)

    def synchronize_event(self, event: int) -> None:
        self.library.call("cuEventSynchronize", event)

    def elapsed(self, first: int, second: int) -> float:
        milliseconds = ctypes.c_float(0)
        self.library.call("cuEventElapsedTime", ctypes.addressof(milliseconds), first, second)
        return milliseconds.value * 1e-3

    def copy_to_device(self, target: int, source: int, size: int, stream: int) -> None:
        self.library.call("cuMemcpyHtoDAsync", target, source, size, stream)

    def copy_to_host(self, target: int, source: int, size: int, stream: int) -> None:
        self.library.call("cuMemcpyDtoHAsync", target, source, size, stream)

    def copy_on_device(self, target: int, source: int, size: int, stream: int) -> None:
        self.library.call("cuMemcpyDtoDAsync", target, source, size, stream)

    def fill(self, target: int, byte: int, size: int, stream: int) -> None:
        self.library.call("cuMemsetD8Async", target, byte, size, stream)

    def begin_capture(self, stream: int) -> None:
        self.library.call("cuStreamBeginCapture", stream, CAPTURE_THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        graph = _U64(0)
        self.library.call("cuStreamEndCapture", stream, ctypes.addressof(graph))
        try:
            return self.library.value("cuGraphInstantiate", graph.value, 0)
        finally:
            self.library.call("cuGraphDestroy", graph.value)

    def abandon_capture(self, stream: int) -> None:
        graph = _U64(0)
        if self.library.raw("cuStreamEndCapture")(stream, ctypes.addressof(graph)) == 0 and graph.value:
            self.library.raw("cuGraphDestroy")(graph.value)

    def launch_graph(self, graph: int, stream: int) -> None:
        self.library.call("cuGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        self.library.call("cuGraphExecDestroy", graph)
