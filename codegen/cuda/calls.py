"""One call of a program on a device: where each argument and each result is, and what is copied before and behind the work.

A :class:`Call` is made for arguments of one pattern (arrays of the host: types; arrays of the device: addresses) and serves all calls with
that pattern.  Everything that it copies from or to page-locked memory is part of what is captured as a graph.
"""

from __future__ import annotations

import ctypes
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.cuda.arrays import DeviceArray, Seen
from codegen.cuda.device import Device
from codegen.cuda.module import ARENA_ALIGNMENT
from codegen.cuda.plan import Plan
from codegen.runtime.arguments import is_plain, plain_copy
from ir.core import Graph
from ir.types import DType, TensorType, array_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIRECT = 32 << 20
"""Arrays of the host that are larger are copied from where they are: page-locked memory is scarce, and a second copy costs more."""

PARAMETER_ALIGNMENT = 16
"""What kernels may count on for memory of parameters; arrays that are at other addresses are copied."""

GRAPHS = 4
"""Executable graphs that are kept for one call: one for each set of new results."""


@dataclass(slots=True)
class Transfer:
    """An array between the host and the device: through page-locked memory (``view``), or directly where that is None."""

    index: int
    address: int
    size: int
    dtype: DType
    view: NDArray[Any] | None


@dataclass(slots=True)
class Move:
    """A copy on the device."""

    target: int
    source: int
    size: int


class Captured:
    """An executable graph; it is given back when nothing refers to this object any more."""

    __slots__ = ("_device", "handle")

    def __init__(self, device: Device, handle: int) -> None:
        self._device = device
        self.handle = handle

    def __del__(self) -> None:
        driver, handle = self._device.driver, self.handle
        self._device.dismiss(lambda: driver.destroy_graph(handle))


@dataclass(slots=True)
class Call:
    """How calls with arguments of one pattern are done.

    ``bases`` are addresses of parameters and results, by what a :class:`~codegen.cuda.plan.Place` names; of ``fresh`` results, which each
    call makes, there are none.  ``results``: "fresh", "out" (an array of the device that the caller gave), "host".  ``checked`` says that
    arrays of the host are written, so that each call has to look whether they share memory.
    """

    plan: Plan
    bases: dict[tuple[str, int], int] = field(default_factory=dict)
    uploads: list[Transfer] = field(default_factory=list)
    before: list[Move] = field(default_factory=list)
    behind: list[Move] = field(default_factory=list)
    updates: list[Transfer] = field(default_factory=list)
    downloads: list[Transfer] = field(default_factory=list)
    fresh: list[tuple[int, TensorType, int]] = field(default_factory=list)
    """Position, type and bytes."""
    result_types: tuple[TensorType, ...] = ()
    checked: bool = False
    staging: int = 0
    pinned: int = 0
    used: int = 0
    """When it was used last, counted in uses."""
    alone: Captured | None = None
    """The graph, where launching it is all there is to a call."""
    graphs: OrderedDict[tuple[int, ...], Captured | None] = field(default_factory=OrderedDict)
    """By the addresses of fresh results; None for those that were seen once."""

    @property
    def ends_on_host(self) -> bool:
        """Whether the caller gets something that has to be there when the call returns."""
        return bool(self.updates or self.downloads)

    def known(self, addresses: tuple[int, ...]) -> Captured | None:
        """The graph for these addresses of fresh results."""
        found = self.graphs.get(addresses)
        if found is not None:
            self.graphs.move_to_end(addresses)
        return found

    def keep(self, addresses: tuple[int, ...], captured: Captured | None) -> None:
        """Keeps a graph, or that these addresses were seen."""
        self.graphs[addresses] = captured
        self.graphs.move_to_end(addresses)
        while len(self.graphs) > GRAPHS:
            self.graphs.popitem(last=False)


class Layout:
    """Collects what a call needs; addresses are offsets until :meth:`placed`."""

    def __init__(self, plan: Plan, graph: Graph, written: Sequence[int]) -> None:
        self.call = Call(plan)
        self._graph = graph
        self._written = frozenset(written)
        self._later: list[Callable[[int, int], None]] = []

    def _room(self, size: int) -> int:
        at = self.call.staging
        self.call.staging += -(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
        return at

    def _transfer(self, where: list[Transfer], index: int, offset: int, shape: tuple[int, ...], dtype: DType) -> None:
        size = math.prod(shape) * dtype.numpy.itemsize
        if not size:
            return
        transfer = Transfer(index, 0, size, dtype, None)
        place = self.call.pinned
        if size <= DIRECT:
            self.call.pinned += -(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT

        def settle(staging: int, pinned: int) -> None:
            transfer.address = staging + offset
            if size <= DIRECT:
                transfer.view = host_view(pinned + place, shape, dtype)

        self._later.append(settle)
        where.append(transfer)

    def _based(self, base: tuple[str, int], offset: int) -> None:
        def settle(staging: int, pinned: int) -> None:
            self.call.bases[base] = staging + offset

        self._later.append(settle)

    def host_parameter(self, index: int, array: NDArray[Any], dtype: DType) -> None:
        """An array of the host: it is copied, and back if it is written."""
        written = index in self._written
        offset = self._room(array.size * dtype.numpy.itemsize)
        self._based(("parameter", index), offset)
        self._transfer(self.call.uploads, index, offset, array.shape, dtype)
        if written:
            self._transfer(self.call.updates, index, offset, array.shape, dtype)
            self.call.checked = True

    def device_parameter(self, index: int, seen: Seen, *, copied: bool) -> None:
        """An array of the device, where it is; or ``copied``, as kernels can't use it there."""
        size = math.prod(seen.shape) * seen.dtype.numpy.itemsize
        if not copied:
            self.call.bases["parameter", index] = seen.address
            return
        offset = self._room(size)
        self._based(("parameter", index), offset)
        self._move(self.call.before, offset, seen.address, size, back=False)
        if index in self._written:
            self._move(self.call.behind, offset, seen.address, size, back=True)

    def _move(self, where: list[Move], offset: int, address: int, size: int, *, back: bool) -> None:
        if not size:
            return
        move = Move(0, 0, size)

        def settle(staging: int, pinned: int) -> None:
            move.target, move.source = (address, staging + offset) if back else (staging + offset, address)

        self._later.append(settle)
        where.append(move)

    def host_result(self, index: int, type_: TensorType) -> None:
        """A result that the caller gets as an array of the host."""
        shape = array_shape(type_)
        offset = self._room(math.prod(shape) * type_.dtype.numpy.itemsize)
        self._based(("result", index), offset)
        self._transfer(self.call.downloads, index, offset, shape, type_.dtype)

    def fresh_result(self, index: int, type_: TensorType) -> None:
        """A result that each call makes anew on the device."""
        self.call.fresh.append((index, type_, math.prod(array_shape(type_)) * type_.dtype.numpy.itemsize))

    def device_result(self, index: int, seen: Seen, *, copied: bool) -> None:
        """A result in an array of the device that the caller gave; ``copied`` there in the end, as kernels can't write it there."""
        if not copied:
            self.call.bases["result", index] = seen.address
            return
        size = math.prod(seen.shape) * seen.dtype.numpy.itemsize
        offset = self._room(size)
        self._based(("result", index), offset)
        self._move(self.call.behind, offset, seen.address, size, back=True)

    def placed(self, staging: int, pinned: int) -> Call:
        """The call, once it is known where memory for copies is."""
        for settle in self._later:
            settle(staging, pinned)
        return self.call


def host_view(address: int, shape: tuple[int, ...], dtype: DType) -> NDArray[Any]:
    """An array at an address of the host, whose memory somebody else keeps."""
    size = math.prod(shape) * dtype.numpy.itemsize
    memory: Any = (ctypes.c_char * size).from_address(address)
    array: NDArray[Any] = np.frombuffer(memory, dtype.numpy).reshape(shape)
    return array


def put(view: NDArray[Any], array: NDArray[Any], dtype: DType) -> None:
    """Copies an array into page-locked memory, whatever its layout; bytes of truth values other than 0 count as 1."""
    if dtype.kind == "bool":
        np.not_equal(array.view(np.uint8), 0, out=view)
    else:
        view[...] = array


def plain(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The array, or a copy of it, as the device wants it."""
    return array if is_plain(array, dtype) else plain_copy(array, dtype)


def pattern(args: Sequence[Any]) -> list[Any] | None:
    """What of arguments decides how a call is done; None for arguments that must be looked at first (numbers, lists, other libraries')."""
    found: list[Any] = []
    for a in args:
        kind = type(a)
        if kind is DeviceArray:
            found.append(a.key)
        elif kind is np.ndarray:
            found.append((a.dtype, a.shape))
        else:
            return None
    return found
