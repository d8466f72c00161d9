"""What the runtime asks of a CUDA driver: modules, memory, launches, streams, events, graphs; and who answers.

Three implementations: ``pycuda`` (the first choice), ``cuda-core`` (the package cuda-bindings, where pycuda is absent), and
``cuda-emulated``, which runs the same kernels on the CPU and is chosen only by name.  Handles (modules, functions, streams, events,
executable graphs) are integers, as CUDA's own are; addresses of device memory and of page-locked memory, too.

All calls but the constructor want the driver's context to be current in the calling thread: they stand between :meth:`Driver.enter` and
:meth:`Driver.leave`.  Where CUDA's calls return an error, :class:`DriverError` with CUDA's name and text for it is raised.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ir.diagnostics import Diagnostic, GraphError

STATIC_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may have without asking; more is asked for with :meth:`Driver.allow_shared`."""

BUILDERS = 8
"""Compilers that run at the same time, at most; each takes some 160 MB."""


class DriverError(GraphError):
    """A call of the driver failed.  ``name`` is what CUDA calls the error (CUDA_ERROR_OUT_OF_MEMORY), ``text`` its description."""

    def __init__(self, what: str, name: str, text: str, hint: str | None = None) -> None:
        super().__init__(Diagnostic(f"{what}: {name}{f' ({text})' if text else ''}", hint=hint))
        self.what = what
        self.name = name
        self.text = text


@dataclass(frozen=True, slots=True)
class Properties:
    """What a device is.

    ``capability`` is its compute capability (9, 0); ``target`` what kernels are compiled for (``sm_90``).  ``memory`` are its bytes of
    memory, ``processors`` its multiprocessors, ``shared`` the bytes of shared memory that a block can ask for.  ``driver`` is the version of
    CUDA that the driver supports, as (13, 0).  ``clock`` and ``memory_clock`` are in kHz, ``bus`` bits; 0 where unknown.
    """

    name: str
    capability: tuple[int, int]
    memory: int
    processors: int
    shared: int
    driver: tuple[int, int]
    clock: int = 0
    memory_clock: int = 0
    bus: int = 0

    @property
    def target(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


class Packed:
    """The arguments of a launch, as ``cuLaunchKernel`` wants them: the address of an array with the address of each value.

    All parameters of our kernels are 8 bytes: addresses of buffers, dimensions (``long long``), the address of the state.  A driver has read
    the values when a launch returns (also while a graph is captured), so they can be changed for the next one.
    """

    __slots__ = ("_addresses", "address", "count", "values")

    def __init__(self, values: Sequence[int]) -> None:
        self.count = len(values)
        self.values = (ctypes.c_int64 * max(1, len(values)))(*(v - (1 << 64) if v >> 63 > 0 else v for v in values))
        first = ctypes.addressof(self.values)
        self._addresses = (ctypes.c_void_p * max(1, len(values)))(*(first + 8 * n for n in range(len(values))))
        self.address = ctypes.addressof(self._addresses)


class Driver(ABC):
    """One device, through its primary context, which it shares with torch, cupy and the others in the process."""

    name: ClassVar[str]
    """What messages call the implementation: pycuda, cuda-core, cuda-emulated."""
    emulated: ClassVar[bool] = False
    """Whether kernels run on the CPU: then times mean nothing."""
    number: int
    """The device's number."""
    properties: Properties

    # -- context -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def enter(self) -> int:
        """Makes the context current in this thread; what :meth:`leave` wants.  Calls may be nested."""

    @abstractmethod
    def leave(self, token: int) -> None:
        """Makes current what was before :meth:`enter`."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all work of the context.  Raises DriverError for errors of kernels (an illegal address)."""

    # -- code ----------------------------------------------------------------------------------------------------------

    def build(self, source: str) -> bytes:
        """What :meth:`load_module` takes, from the text of kernels: a cubin for this device, out of the cache of cubins if it is there.

        Raises GraphError where there is no compiler, or no compiler for this device.
        """
        from codegen.cuda.targets import target_of_device
        from codegen.cuda.toolchain import compile_cubin

        return compile_cubin(source, target_of_device(self.properties.capability)).image

    def build_all(self, sources: Sequence[str]) -> list[bytes]:
        """What :meth:`build` makes of several texts, by compilers that run at the same time."""
        if len(sources) < 2:
            return [self.build(s) for s in sources]
        from concurrent.futures import ThreadPoolExecutor  # where devices are only told apart, it is not needed

        with ThreadPoolExecutor(len(sources)) as pool:  # they wait for processes
            return list(pool.map(self.build, sources))

    def builders(self) -> int:
        """How many compilers may run at the same time."""
        return min(BUILDERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

    @abstractmethod
    def load_module(self, image: bytes) -> int:
        """Loads what :meth:`build` made."""

    @abstractmethod
    def unload_module(self, module: int) -> None:
        """Its functions can't be launched any more."""

    @abstractmethod
    def function(self, module: int, name: str) -> int:
        """A kernel of a module, by its name in the text.  Raises DriverError when there is none."""

    @abstractmethod
    def allow_shared(self, function: int, size: int) -> None:
        """A kernel will be launched with so many bytes of dynamic shared memory (more than :data:`STATIC_SHARED`)."""

    # -- memory --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Memory of the device, aligned to 256 bytes at least; ``size`` is not 0.  Raises DriverError (CUDA_ERROR_OUT_OF_MEMORY)."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Gives back what :meth:`allocate` gave; work that uses it is waited for."""

    @abstractmethod
    def allocate_host(self, size: int) -> int:
        """Page-locked memory of the host; ``size`` is not 0.  Asynchronous copies from and to it don't stop the host."""

    @abstractmethod
    def free_host(self, address: int) -> None:
        """Gives back what :meth:`allocate_host` gave."""

    @abstractmethod
    def memory_free(self) -> tuple[int, int]:
        """Bytes of the device that are free, and all."""

    @abstractmethod
    def device_of(self, address: int) -> int | None:
        """The number of the device whose memory an address is in; None for memory of the host and for what is no address."""

    # -- streams and events --------------------------------------------------------------------------------------------

    @abstractmethod
    def new_stream(self, blocking: bool = False) -> int:
        """A stream; a ``blocking`` one and the default stream, where others work who name no stream, wait for each other."""

    @abstractmethod
    def destroy_stream(self, stream: int) -> None: ...

    @abstractmethod
    def synchronize_stream(self, stream: int) -> None:
        """Waits for all work of a stream.  Raises DriverError for errors of kernels."""

    @abstractmethod
    def new_event(self, timing: bool = False) -> int: ...

    @abstractmethod
    def destroy_event(self, event: int) -> None: ...

    @abstractmethod
    def record(self, event: int, stream: int) -> None:
        """The event happens when the stream has done what it has to do now."""

    @abstractmethod
    def wait(self, stream: int, event: int) -> None:
        """Later work of the stream waits for the event."""

    @abstractmethod
    def synchronize_event(self, event: int) -> None:
        """Waits for an event."""

    @abstractmethod
    def elapsed(self, first: int, second: int) -> float:
        """Seconds between two events that were made with ``timing`` and have happened."""

    # -- work ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def copy_to_device(self, target: int, source: int, size: int, stream: int) -> None:
        """Copies from the host.  From page-locked memory the call returns before it is done; else when the source was read."""

    @abstractmethod
    def copy_to_host(self, target: int, source: int, size: int, stream: int) -> None:
        """Copies to the host; to page-locked memory the call returns before it is done."""

    @abstractmethod
    def copy_on_device(self, target: int, source: int, size: int, stream: int) -> None:
        """Copies within the device's memory; the two places don't overlap."""

    @abstractmethod
    def fill(self, target: int, byte: int, size: int, stream: int) -> None:
        """Sets every byte."""

    @abstractmethod
    def launch(self, function: int, grid: tuple[int, int, int], threads: int, shared: int, stream: int, arguments: Packed) -> None:
        """Launches a kernel with blocks of ``threads`` threads; no size of the grid is 0."""

    # -- graphs --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def begin_capture(self, stream: int) -> None:
        """From now on work for the stream is written down instead of done (copies, fills, launches, and nothing else of this thread)."""

    @abstractmethod
    def end_capture(self, stream: int) -> int:
        """Ends it: an executable graph of that work."""

    @abstractmethod
    def abandon_capture(self, stream: int) -> None:
        """Ends it, for nothing, after an error; raises none."""

    @abstractmethod
    def launch_graph(self, graph: int, stream: int) -> None:
        """Does all of that work once more."""

    @abstractmethod
    def destroy_graph(self, graph: int) -> None: ...
