"""The driver through NVIDIA's own packages, which are wheels: nothing is compiled to install them.

cuda-core stands on cuda-bindings, the functions of cuda.h one by one; those are what is needed here, and all of them are there.
"""

from __future__ import annotations

from typing import Any, ClassVar

from codegen.cuda.driver import Driver, DriverError, Packed, Properties
from codegen.cuda.libcuda import load_library


class CudaCoreDriver(Driver):
    """One device by cuda-bindings, with its primary context."""

    name: ClassVar[str] = "cuda-core"

    def __init__(self, number: int = 0) -> None:
        """Raises ImportError where the packages are missing, DriverError where there is no such device."""
        self.number = number
        load_library()
        from cuda.bindings import driver

        self._cu = driver
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", number)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._push, self._pop = driver.cuCtxPushCurrent, driver.cuCtxPopCurrent
        self._kernel, self._graph = driver.cuLaunchKernel, driver.cuGraphLaunch
        self.properties = self._properties()

    def _properties(self) -> Properties:
        names = self._cu.CUdevice_attribute

        def attribute(name: str) -> int:
            return int(self._call("cuDeviceGetAttribute", getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), self._device))

        version = int(self._call("cuDriverGetVersion"))
        name = self._call("cuDeviceGetName", 256, self._device).split(b"\0")[0].decode(errors="replace")
        capability = (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR"))
        return Properties(
            name, capability, int(self._call("cuDeviceTotalMem", self._device)), attribute("MULTIPROCESSOR_COUNT"),
            attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") or attribute("MAX_SHARED_MEMORY_PER_BLOCK"), (version // 1000, version % 1000 // 10),
            attribute("CLOCK_RATE"), attribute("MEMORY_CLOCK_RATE"), attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        )  # fmt: skip

    def _call(self, name: str, *arguments: Any, what: str = "") -> Any:
        """What a function of the driver returns besides the error.  Raises DriverError."""
        status, *results = getattr(self._cu, name)(*arguments)
        if status:
            self._fail(what or name, status)
        return results[0] if len(results) == 1 else tuple(results)

    def _fail(self, what: str, status: Any) -> None:
        texts = [getattr(self._cu, f)(status)[1] for f in ("cuGetErrorName", "cuGetErrorString")]
        name, text = ((t or b"").decode(errors="replace") for t in texts)
        raise DriverError(what, name or f"error {int(status)}", text)

    # -- context -------------------------------------------------------------------------------------------------------

    def enter(self) -> int:
        (status,) = self._push(self._context)
        if status:
            self._fail("cuCtxPushCurrent", status)
        return 0

    def leave(self, token: int) -> None:
        status = self._pop()[0]
        if status:
            self._fail("cuCtxPopCurrent", status)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    # -- code ----------------------------------------------------------------------------------------------------------

    def load_module(self, image: bytes) -> int:
        return int(self._call("cuModuleLoadData", image))

    def unload_module(self, module: int) -> None:
        self._call("cuModuleUnload", module)

    def function(self, module: int, name: str) -> int:
        return int(self._call("cuModuleGetFunction", module, name.encode(), what=f"cuModuleGetFunction {name}"))

    def allow_shared(self, function: int, size: int) -> None:
        attribute = self._cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call("cuFuncSetAttribute", function, attribute, size)

    # -- memory --------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        return int(self._call("cuMemAlloc", size))

    def free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def allocate_host(self, size: int) -> int:
        return int(self._call("cuMemAllocHost", size))

    def free_host(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def memory_free(self) -> tuple[int, int]:
        free, whole = self._call("cuMemGetInfo")
        return int(free), int(whole)

    def device_of(self, address: int) -> int | None:
        names = self._cu.CUpointer_attribute
        status, kind = self._cu.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        if status or int(kind) != int(self._cu.CUmemorytype.CU_MEMORYTYPE_DEVICE):
            return None
        return int(self._call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address))

    # -- streams and events --------------------------------------------------------------------------------------------

    def new_stream(self, blocking: bool = False) -> int:
        flags = self._cu.CUstream_flags
        return int(self._call("cuStreamCreate", int(flags.CU_STREAM_DEFAULT if blocking else flags.CU_STREAM_NON_BLOCKING)))

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy", stream)

    def synchronize_stream(self, stream: int) -> None:
        self._call("cuStreamSynchronize", stream)

    def new_event(self, timing: bool = False) -> int:
        flags = self._cu.CUevent_flags
        return int(self._call("cuEventCreate", int(flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING)))

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def synchronize_event(self, event: int) -> None:
        self._call("cuEventSynchronize", event)

    def elapsed(self, first: int, second: int) -> float:
        return float(self._call("cuEventElapsedTime", first, second)) * 1e-3

    # -- work ----------------------------------------------------------------------------------------------------------

    def copy_to_device(self, target: int, source: int, size: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync", target, source, size, stream)

    def copy_to_host(self, target: int, source: int, size: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync", target, source, size, stream)

    def copy_on_device(self, target: int, source: int, size: int, stream: int) -> None:
        self._call("cuMemcpyDtoDAsync", target, source, size, stream)

    def fill(self, target: int, byte: int, size: int, stream: int) -> None:
        self._call("cuMemsetD8Async", target, byte, size, stream)

    def launch(self, function: int, grid: tuple[int, int, int], threads: int, shared: int, stream: int, arguments: Packed) -> None:
        (status,) = self._kernel(function, *grid, threads, 1, 1, shared, stream, arguments.address, 0)
        if status:
            self._fail("cuLaunchKernel", status)

    # -- graphs --------------------------------------------------------------------------------------------------------

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture", stream, self._cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        graph = self._call("cuStreamEndCapture", stream)
        try:
            return int(self._call("cuGraphInstantiate", graph, 0))
        finally:
            self._call("cuGraphDestroy", graph)

    def abandon_capture(self, stream: int) -> None:
        status, graph = self._cu.cuStreamEndCapture(stream)
        if not status:
            self._cu.cuGraphDestroy(graph)

    def launch_graph(self, graph: int, stream: int) -> None:
        (status,) = self._graph(graph, stream)
        if status:
            self._fail("cuGraphLaunch", status)

    def destroy_graph(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", graph)
