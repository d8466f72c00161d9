"""An open device: its driver, the order of all work on it, and memory that is used again.

All our work on a device happens in the order in which it was submitted, whichever streams it is given to: that makes arrays and memory safe
to use again without asking who used them last.  What others do with our arrays (torch, cupy) is theirs to order; memory that they have
seen is used again only after the device has done everything.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

from codegen.cuda.driver import Driver, DriverError
from codegen.cuda.drivers import open_driver, refuse_forked
from ir.diagnostics import Diagnostic, GraphError

SMALL = 1 << 20
_GRAIN, _COARSE = 512, 2 << 20


class Block:
    """Memory of a device; it is given back when nothing refers to this object any more.

    ``lent`` says that others have seen its address.
    """

    __slots__ = ("__weakref__", "address", "lent", "size", "_device")

    def __init__(self, device: Device, address: int, size: int) -> None:
        self._device = device
        self.address = address
        self.size = size
        self.lent = False

    def __del__(self) -> None:
        if self.address:
            self._device.given_back.append((self.address, self.size, self.lent))


class Device:
    """A driver with what all programs on the device share; :func:`open_device` gives it.

    ``with device:`` makes its context current in this thread.  ``lock`` is held while work is submitted.
    """

    def __init__(self, name: str, driver: Driver) -> None:
        self.name = name
        self.driver = driver
        self.lock = threading.RLock()
        self.given_back: deque[tuple[int, int, bool]] = deque()
        self._dismissed: deque[Callable[[], None]] = deque()
        self._free: dict[int, list[int]] = {}
        self._lent: list[tuple[int, int]] = []
        self._tokens = threading.local()
        self.reserved = 0
        """Bytes that were asked of the driver, and not given back to it."""
        with self:
            self.stream = driver.new_stream(blocking=True)
            """Our own stream: it and the default stream wait for each other, so whoever names no stream needs not care."""
            self.capture_stream = driver.new_stream()
            self._event = driver.new_event()
        self._last = self.stream
        self._has_event = False

    # -- context -------------------------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Makes the context current, for the driver's ``leave``.  Raises GraphError in a process that was forked."""
        refuse_forked()
        return self.driver.enter()

    def __enter__(self) -> Device:
        token = self.begin()
        try:
            self._tokens.stack.append(token)
        except AttributeError:
            self._tokens.stack = [token]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.driver.leave(self._tokens.stack.pop())

    # -- order ---------------------------------------------------------------------------------------------------------

    def follow(self, stream: int) -> None:
        """What is submitted to ``stream`` from now on waits for all that was submitted before; the lock is held."""
        if stream == self._last:
            return
        if self._last == self.stream:
            self.driver.record(self._event, self.stream)
            self._has_event = True
        if self._has_event:
            self.driver.wait(stream, self._event)
        self._last = stream

    def submitted(self, stream: int) -> None:
        """To be called behind work for a stream of somebody else: the stream may be gone when the next one comes."""
        if stream != self.stream:
            self.driver.record(self._event, stream)
            self._has_event = True

    def dismiss(self, work: Callable[[], None]) -> None:
        """Does that, which gives something back to the driver, when it is safe: not while a graph is captured, and when all work is done.

        May be called from finalizers, in any thread.
        """
        self._dismissed.append(work)

    def tidy(self) -> None:
        """Does what was dismissed; the lock is held."""
        if self._dismissed:
            self.driver.synchronize()
            while self._dismissed:
                self._dismissed.popleft()()

    # -- memory --------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> Block:
        """Memory, aligned to 256 bytes, with any contents.  Raises GraphError when there is not enough."""
        if size <= 0:
            return Block(self, 0, 0)
        grain = 1 if self.driver.emulated else _GRAIN if size < SMALL else _COARSE  # emulated, what is written behind the end is found
        whole = -(-size // grain) * grain
        with self.lock:
            self._collect()
            free = self._free.get(whole)
            if not free and any(n == whole for _, n in self._lent):
                self._settle()
                free = self._free.get(whole)
            if free:
                return Block(self, free.pop(), whole)
            return Block(self, self._reserve(whole), whole)

    def _reserve(self, size: int) -> int:
        """Memory from the driver; what is kept for later is given back when there is none."""
        try:
            address = self.driver.allocate(size)
        except DriverError as error:
            if error.name != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            self.trim()
            try:
                address = self.driver.allocate(size)
            except DriverError as again:
                if again.name != "CUDA_ERROR_OUT_OF_MEMORY":
                    raise
                free, everything = self.driver.memory_free()
                message = f"not enough memory on {self.driver.properties.name}: {size} bytes are needed, {free} of {everything} are free"
                raise GraphError(Diagnostic(message)) from None
        self.reserved += size
        return address

    def _collect(self) -> None:
        """Sorts what finalizers have given back."""
        while self.given_back:
            address, size, lent = self.given_back.popleft()
            if lent:
                self._lent.append((address, size))
            else:
                self._free.setdefault(size, []).append(address)

    def _settle(self) -> None:
        """Waits until others have done what they do with memory that they had."""
        self.driver.synchronize()
        for address, size in self._lent:
            self._free.setdefault(size, []).append(address)
        self._lent.clear()

    def trim(self) -> None:
        """Gives memory that is kept for later back to the driver."""
        with self, self.lock:
            self._collect()
            self._settle()
            for size, addresses in self._free.items():
                while addresses:
                    self.driver.free(addresses.pop())
                    self.reserved -= size
            self._free.clear()

    # -- copies --------------------------------------------------------------------------------------------------------

    def upload(self, target: int, source: int, size: int) -> None:
        """Copies from the host's memory, in the order of all work; done when it returns."""
        if size:
            with self, self.lock:
                self.follow(self.stream)
                self.driver.copy_to_device(target, source, size, self.stream)
                self.driver.synchronize_stream(self.stream)

    def download(self, target: int, source: int, size: int) -> None:
        """Copies to the host's memory, in the order of all work; done when it returns."""
        if size:
            with self, self.lock:
                self.follow(self.stream)
                self.driver.copy_to_host(target, source, size, self.stream)
                self.driver.synchronize_stream(self.stream)


_devices: dict[Driver, Device] = {}
_lock = threading.Lock()


def open_device(name: str) -> Device:
    """A device by its name, opened when it is first asked for.  Raises what :func:`codegen.cuda.drivers.open_driver` raises."""
    driver = open_driver(name)
    with _lock:
        if driver not in _devices:
            _devices[driver] = Device(name, driver)
        return _devices[driver]
