"""The device ``cuda-emulated``: kernels run on the CPU, block by block, and an implementation of the driver's interface around them.

It is there for tests and for machines without a GPU; nothing it takes time for says anything about a GPU.  Numbers are those of the CPU's
arithmetic, rounded at every step; products of 16 x 8 x 16 sum in double.  Memory of the device is memory of the host between zones that are
looked at when work is waited for, so that a kernel that writes beyond a buffer is found; what sanitizers find is in
:mod:`codegen.cuda.sanitized`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from codegen.cuda.driver import Driver, DriverError, Packed, Properties
from codegen.cuda.host_build import build_library

GUARD = 256
"""Bytes in front of and behind every buffer that nobody may write."""
_GUARD_BYTE = 0xAB
_MEMORY = 16 << 30


class LaunchFailed(Exception):
    """What went wrong in a kernel: which block and thread, and in which line of the text."""


class Kernels:
    """Kernels of one text, built as a library and loaded into this process.

    ``launch`` runs one kernel after the other, whoever calls it, also those of other libraries: they share the stacks of threads.
    """

    _running = threading.Lock()
    _stacks: int | None = None

    def __init__(self, library: Path) -> None:
        loaded: Any = ctypes.CDLL(str(library))
        self._launch = loaded.go_launch
        self._launch.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
        self._find = loaded.go_find
        self._find.argtypes, self._find.restype = [ctypes.c_char_p], ctypes.c_void_p
        self._message = loaded.go_message
        self._message.restype = ctypes.c_char_p
        self._reverse, self._remove = loaded.go_reverse, loaded.go_remove
        share = loaded.go_stacks
        share.argtypes, share.restype = [ctypes.c_void_p], ctypes.c_void_p
        with Kernels._running:
            Kernels._stacks = share(Kernels._stacks)

    def find(self, name: str) -> int | None:
        """A handle of a kernel, None when there is none of that name."""
        found: int | None = self._find(name.encode())
        return found

    def run(self, kernel: int, grid: Sequence[int], threads: int, shared: int, arguments: Packed) -> None:
        """Runs a kernel that :meth:`find` gave.  Raises LaunchFailed."""
        with Kernels._running:
            if self._launch(kernel, (ctypes.c_uint * 3)(*grid), threads, shared, arguments.address):
                raise LaunchFailed(self._message().decode(errors="replace"))

    def launch(self, name: str, grid: Sequence[int], threads: int, shared: int, arguments: Sequence[int | np.ndarray[Any, Any]]) -> None:
        """Runs a kernel on arrays and integers.  Raises LaunchFailed, and KeyError for a name that is none."""
        kernel = self.find(name)
        if kernel is None:
            raise KeyError(name)
        values = [a.ctypes.data if isinstance(a, np.ndarray) else int(a) for a in arguments]
        self.run(kernel, (*grid, 1, 1)[:3], threads, shared, Packed(values))

    def reverse(self, on: bool) -> None:
        """Whether blocks and threads run from the last one to the first."""
        self._reverse(int(on))

    def remove(self, mark: int) -> None:
        """Leaves out what ``GO_MARK_*(mark, ...)`` marks; -1: nothing."""
        self._remove(mark)


def load_kernels(source: str) -> Kernels:
    """The kernels of a text, built for this process.  Raises MissingPackage without g++, BuildFailed where it doesn't take the text."""
    return Kernels(build_library(source))


class _Memory:
    """Buffers between guard zones; their addresses are aligned to 256 bytes."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[np.ndarray[Any, Any], int, int]] = {}  # by address: all of it, where the buffer starts, its size

    def allocate(self, size: int) -> int:
        whole = np.empty(size + 3 * GUARD, np.uint8)
        start = GUARD + -whole.ctypes.data % GUARD
        whole[:start] = whole[start + size :] = _GUARD_BYTE
        whole[start : start + size : 2], whole[start + 1 : start + size : 2] = 0xFF, 0x7F  # NaN of every float type
        address = int(whole.ctypes.data) + start
        self._buffers[address] = (whole, start, size)
        return address

    def free(self, address: int) -> bool:
        return self._buffers.pop(address, None) is not None

    def holds(self, address: int) -> bool:
        return any(a <= address < a + size for a, (_, _, size) in self._buffers.items())

    def used(self) -> int:
        return sum(size for _, _, size in self._buffers.values())

    def damaged(self) -> str | None:
        """Which buffer something was written in front of or behind."""
        for whole, start, size in self._buffers.values():
            for zone, where in ((whole[:start], "in front of"), (whole[start + size :], "behind")):
                if (zone != _GUARD_BYTE).any():
                    zone[:] = _GUARD_BYTE
                    return f"something was written {where} a buffer of {size} bytes"
        return None


class EmulatedDriver(Driver):
    """A device that is this process.  Everything is done when a call returns; streams and events are numbers."""

    name = "cuda-emulated"
    emulated = True

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.properties = Properties("the CPU, emulating CUDA", (9, 0), _MEMORY, 1, 227 << 10, (13, 0))
        self._lock = threading.RLock()
        self._device, self._host = _Memory(), _Memory()
        self._modules: dict[int, Kernels] = {}
        self._functions: dict[int, tuple[int, Kernels, int, str]] = {}  # module, its kernels, the kernel, its name
        self._events: dict[int, float | None] = {}
        self._streams: set[int] = set()
        self._captured: dict[int, list[Callable[[], None]]] = {}
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._last = 0

    def _new(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    # -- context

    def enter(self) -> int:
        return 0

    def leave(self, token: int) -> None:
        return None

    def synchronize(self) -> None:
        with self._lock:
            damage = self._device.damaged() or self._host.damaged()
        if damage:
            raise DriverError("synchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", damage)

    # -- code

    def build(self, source: str) -> bytes:
        return os.fsencode(build_library(source))

    def load_module(self, image: bytes) -> int:
        path = Path(os.fsdecode(image))
        if not path.is_file():
            raise DriverError("load_module", "CUDA_ERROR_INVALID_IMAGE", "it is none that this process has built")
        module = self._new()
        self._modules[module] = Kernels(path)
        return module

    def unload_module(self, module: int) -> None:
        self._modules.pop(module, None)
        for function in [f for f, (owner, *_) in list(self._functions.items()) if owner == module]:
            del self._functions[function]

    def function(self, module: int, name: str) -> int:
        kernels = self._modules[module]
        found = kernels.find(name)
        if found is None:
            raise DriverError("function", "CUDA_ERROR_NOT_FOUND", name)
        handle = self._new()
        self._functions[handle] = (module, kernels, found, name)
        return handle

    def allow_shared(self, function: int, size: int) -> None:
        if size > self.properties.shared:
            raise DriverError("allow_shared", "CUDA_ERROR_INVALID_VALUE", f"{size} bytes, a block can have {self.properties.shared}")

    # -- memory

    def allocate(self, size: int) -> int:
        with self._lock:
            if size <= 0 or self._device.used() + size > _MEMORY:
                name = "CUDA_ERROR_INVALID_VALUE" if size <= 0 else "CUDA_ERROR_OUT_OF_MEMORY"
                raise DriverError("allocate", name, f"{size} bytes")
            return self._device.allocate(size)

    def free(self, address: int) -> None:
        self._free(self._device, address)

    def allocate_host(self, size: int) -> int:
        with self._lock:
            return self._host.allocate(size)

    def free_host(self, address: int) -> None:
        self._free(self._host, address)

    def _free(self, memory: _Memory, address: int) -> None:
        with self._lock:
            damage = memory.damaged()
            if not memory.free(address):
                raise DriverError("free", "CUDA_ERROR_INVALID_VALUE", f"nothing was allocated at {address:#x}")
        if damage:
            raise DriverError("free", "CUDA_ERROR_ILLEGAL_ADDRESS", damage)

    def memory_free(self) -> tuple[int, int]:
        with self._lock:
            return _MEMORY - self._device.used(), _MEMORY

    def device_of(self, address: int) -> int | None:
        with self._lock:
            return self.number if self._device.holds(address) else None

    # -- streams and events

    def new_stream(self, blocking: bool = False) -> int:
        stream = self._new()
        self._streams.add(stream)
        return stream

    def destroy_stream(self, stream: int) -> None:
        self._streams.discard(stream)
        self._captured.pop(stream, None)

    def synchronize_stream(self, stream: int) -> None:
        self.synchronize()

    def new_event(self, timing: bool = False) -> int:
        event = self._new()
        self._events[event] = None
        return event

    def destroy_event(self, event: int) -> None:
        self._events.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        self._events[event] = time.perf_counter()

    def wait(self, stream: int, event: int) -> None:
        return None

    def synchronize_event(self, event: int) -> None:
        self.synchronize()

    def elapsed(self, first: int, second: int) -> float:
        start, end = self._events[first], self._events[second]
        if start is None or end is None:
            raise DriverError("elapsed", "CUDA_ERROR_INVALID_HANDLE", "an event was never recorded")
        return end - start

    # -- work

    def _do(self, stream: int, work: Callable[[], None]) -> None:
        captured = self._captured.get(stream)
        if captured is not None:
            captured.append(work)
        else:
            work()

    def copy_to_device(self, target: int, source: int, size: int, stream: int) -> None:
        self._do(stream, lambda: _copy(target, source, size))

    copy_to_host = copy_on_device = copy_to_device

    def fill(self, target: int, byte: int, size: int, stream: int) -> None:
        self._do(stream, lambda: _fill(target, byte, size))

    def launch(self, function: int, grid: tuple[int, int, int], threads: int, shared: int, stream: int, arguments: Packed) -> None:
        _, kernels, kernel, name = self._functions[function]
        values = Packed(list(arguments.values)[: arguments.count])

        def run() -> None:
            try:
                kernels.run(kernel, grid, threads, shared, values)
            except LaunchFailed as error:
                raise DriverError(f"launching {name}", "CUDA_ERROR_LAUNCH_FAILED", str(error)) from None

        self._do(stream, run)

    # -- graphs

    def begin_capture(self, stream: int) -> None:
        self._captured[stream] = []

    def end_capture(self, stream: int) -> int:
        graph = self._new()
        self._graphs[graph] = self._captured.pop(stream)
        return graph

    def abandon_capture(self, stream: int) -> None:
        self._captured.pop(stream, None)

    def launch_graph(self, graph: int, stream: int) -> None:
        for work in self._graphs[graph]:
            self._do(stream, work)

    def destroy_graph(self, graph: int) -> None:
        self._graphs.pop(graph, None)


def _copy(target: int, source: int, size: int) -> None:
    ctypes.memmove(target, source, size)


def _fill(target: int, byte: int, size: int) -> None:
    ctypes.memset(target, byte, size)
