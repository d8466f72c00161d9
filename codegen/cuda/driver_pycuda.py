"""The driver through pycuda: context, modules, launches, memory, streams.

pycuda knows no graphs, no events of other streams and no streams that somebody else made; that goes to the same driver by ctypes
(:mod:`codegen.cuda.libcuda`), which takes the handles of pycuda's streams.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from codegen.cuda.driver import Driver, DriverError, Packed, Properties
from codegen.cuda.libcuda import CudaLibrary, RawWork


class PycudaDriver(RawWork, Driver):
    """One device by pycuda, with its primary context."""

    name: ClassVar[str] = "pycuda"

    def __init__(self, number: int = 0) -> None:
        """Raises ImportError where pycuda is missing, DriverError where there is no such device."""
        self.number = number
        self.library = CudaLibrary()
        import pycuda.driver as cuda

        self._cuda = cuda
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()
        self._modules: dict[int, Any] = {}
        self._functions: dict[int, Any] = {}
        self._owned: dict[int, list[int]] = {}
        self._memory: dict[int, Any] = {}
        self._locked: dict[int, Any] = {}
        self._streams: dict[int, Any] = {}
        self._count = 0
        self._checked("cuInit", cuda.init)
        self._device = self._checked("cuDeviceGet", cuda.Device, number)
        self._context = self._checked("cuDevicePrimaryCtxRetain", self._device.retain_primary_context)
        self._push, self._pop = self._context.push, cuda.Context.pop
        self.properties = self._properties()

    def _properties(self) -> Properties:
        device, names = self._device, self._cuda.device_attribute
        version = self.library.value("cuDriverGetVersion")

        def attribute(name: str) -> int:
            return int(device.get_attribute(getattr(names, name))) if hasattr(names, name) else 0

        return Properties(
            str(device.name()), tuple(device.compute_capability()), int(device.total_memory()), attribute("MULTIPROCESSOR_COUNT"),
            attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") or attribute("MAX_SHARED_MEMORY_PER_BLOCK"), (version // 1000, version % 1000 // 10),
            attribute("CLOCK_RATE"), attribute("MEMORY_CLOCK_RATE"), attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        )  # fmt: skip

    def _checked(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._cuda.Error as error:
            text = str(error).partition(" failed: ")[2].partition(" - ")[0] or str(error)
            raise DriverError(what, self._name_of(text), text) from None

    def _name_of(self, text: str) -> str:
        """CUDA's name of the error with this description: pycuda tells the description only."""
        if not self._names:
            self._names = self.library.error_names()
        return self._names.get(text, "CUDA error")

    # -- context -------------------------------------------------------------------------------------------------------

    def enter(self) -> int:
        self._push()
        return 0

    def leave(self, token: int) -> None:
        self._pop()

    def synchronize(self) -> None:
        self._checked("cuCtxSynchronize", self._cuda.Context.synchronize)

    # -- code ----------------------------------------------------------------------------------------------------------

    def load_module(self, image: bytes) -> int:
        module = self._checked("cuModuleLoadData", self._cuda.module_from_buffer, image)
        return self._keep(self._modules, module)

    def _keep(self, where: dict[int, Any], what: Any) -> int:
        with self._lock:
            self._count += 1
            where[self._count] = what
            return self._count

    def unload_module(self, module: int) -> None:
        for function in self._owned.pop(module, ()):
            del self._functions[function]
        del self._modules[module]  # pycuda unloads it, as its functions are gone

    def function(self, module: int, name: str) -> int:
        handle = self._keep(self._functions, self._checked(f"cuModuleGetFunction {name}", self._modules[module].get_function, name))
        self._owned.setdefault(module, []).append(handle)
        return handle

    def allow_shared(self, function: int, size: int) -> None:
        attribute = self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._checked("cuFuncSetAttribute", self._functions[function].set_attribute, attribute, size)

    # -- memory --------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        memory = self._checked("cuMemAlloc", self._cuda.mem_alloc, size)
        address = int(memory)
        self._memory[address] = memory
        return address

    def free(self, address: int) -> None:
        self._checked("cuMemFree", self._memory.pop(address).free)

    def allocate_host(self, size: int) -> int:
        array = self._checked("cuMemHostAlloc", self._cuda.pagelocked_empty, size, "u1")
        address = int(array.ctypes.data)
        self._locked[address] = array
        return address

    def free_host(self, address: int) -> None:
        self._checked("cuMemFreeHost", self._locked.pop(address).base.free)

    def memory_free(self) -> tuple[int, int]:
        free, whole = self._checked("cuMemGetInfo", self._cuda.mem_get_info)
        return int(free), int(whole)

    # -- streams -------------------------------------------------------------------------------------------------------

    def new_stream(self, blocking: bool = False) -> int:
        flags = self._cuda.stream_flags if hasattr(self._cuda, "stream_flags") else None
        number = 0 if blocking else int(getattr(flags, "NON_BLOCKING", 1))
        stream = self._checked("cuStreamCreate", self._cuda.Stream, number)
        handle = int(stream.handle)
        self._streams[handle] = stream
        return handle

    def destroy_stream(self, stream: int) -> None:
        self._streams.pop(stream)

    # -- launches ------------------------------------------------------------------------------------------------------

    def launch(self, function: int, grid: tuple[int, int, int], threads: int, shared: int, stream: int, arguments: Packed) -> None:
        """Streams that others made are no objects of pycuda: the launch then goes through one of ours, and theirs waits for it."""
        own = self._streams.get(stream)
        if own is None and stream:
            self._launch_apart(function, grid, threads, shared, stream, arguments)
            return
        launch = self._functions[function]._launch_kernel
        self._checked("cuLaunchKernel", launch, grid, (threads, 1, 1), ctypes.string_at(arguments.values, 8 * arguments.count), shared, own)

    def _launch_apart(self, function: int, grid: tuple[int, int, int], threads: int, shared: int, stream: int, arguments: Packed) -> None:
        own, event = self.new_stream(), self.new_event()
        try:
            self.record(event, stream)
            self.wait(own, event)
            self.launch(function, grid, threads, shared, own, arguments)
            self.record(event, own)
            self.wait(stream, event)
        finally:
            self.destroy_event(event)
            with suppress(KeyError):
                self.destroy_stream(own)
