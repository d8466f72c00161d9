"""Arrays in a device's memory: ours, and those of other libraries, seen where they are."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.cuda import dlpack
from codegen.cuda.device import Block, Device
from ir.diagnostics import AnyLocation, Diagnostic, GraphError
from ir.types import DType, TensorType, array_shape, bf16, dtype_from_numpy, tensor_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEGACY, PER_THREAD = 1, 2
"""Handles of the default streams, in CUDA's interfaces between libraries."""
_ADDRESSES = 1 << 63
"""There are not so many."""


_kinds: dict[tuple[int, TensorType], int] = {}
"""Numbers of devices (which live as long as the process) and types."""
_numbers = itertools.count()


class DeviceArray:
    """An array in a device's memory: row-major, without gaps.

    ``numpy()`` copies it to the host.  torch, cupy and others see it where it is, by DLPack (``torch.from_dlpack(array)``) or
    ``__cuda_array_interface__``.  Work on it is in the order of our calls; another library's work on it, on a stream other than the default
    one, is ordered by DLPack, or by passing that stream with ``stream=``.  ``shape`` and ``dtype`` are those of :meth:`numpy`.
    """

    __slots__ = ("__weakref__", "_block", "_type", "address", "device", "key", "nbytes", "shape")

    def __init__(self, device: Device, type_: TensorType, block: Block, address: int | None = None) -> None:
        self.device = device
        self._type = type_
        self._block = block
        self.address = block.address if address is None else address
        self.shape: tuple[int, ...] = array_shape(type_)
        self.nbytes = math.prod(self.shape) * type_.dtype.numpy.itemsize
        kind = _kinds.get((id(device), type_))
        if kind is None:
            kind = _kinds.setdefault((id(device), type_), next(_numbers))
        self.key = self.address << 32 | kind
        """A number that arrays of one device, type and address have in common."""

    @property
    def type(self) -> TensorType:
        """The type of its elements and its shape, as programs write it."""
        return self._type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of :meth:`numpy`."""
        return self._type.dtype.numpy

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("this array has no dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self._type}, {self.device.name})"

    def __reduce__(self) -> Any:
        raise TypeError("an array of a device can't be pickled or copied by the module copy: numpy() is a copy on the host")

    # -- copies --------------------------------------------------------------------------------------------------------

    def numpy(self) -> NDArray[Any]:
        """A copy on the host, made when everything that writes it is done."""
        array = np.empty(self.shape, self.dtype)
        self.device.download(array.ctypes.data, self.address, self.nbytes)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("an array of a device can't be seen by numpy without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def copy_from(self, array: Any) -> None:
        """Sets all elements from an array of the host with the same shape.  Raises GraphError for one that doesn't fit."""
        given = np.asarray(array)
        found = dtype_from_numpy(given.dtype)
        if given.shape != self.shape or found is None or found.numpy != self.dtype:
            raise GraphError(Diagnostic(f"the array on the device is {self._type}, the other one is {given.dtype} of shape {given.shape}"))
        plain = host_copy(given, self._type.dtype)
        self.device.upload(self.address, plain.ctypes.data, plain.nbytes)

    # -- for other libraries -------------------------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Raises AttributeError for element types that the interface doesn't know (bf16, blocks): DLPack has bf16."""
        if self._type.dtype == bf16 or self._type.dtype.is_block:
            raise AttributeError(f"__cuda_array_interface__ has no element type {self._type.dtype}")
        self._block.lent = True
        with self.device, self.device.lock:
            self.device.follow(self.device.stream)
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3, "strides": None,
            "stream": self.device.stream,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0) if self.device.driver.emulated else (dlpack.CUDA, self.device.driver.number)

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None
    ) -> Any:
        """A capsule; the taker's ``stream`` waits for what writes the array (None: the default stream, -1: no waiting)."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("this array is handed over where it is, without a copy")
        if not dlpack.has_code(self._type.dtype):
            raise BufferError(f"DLPack has no element type {self._type.dtype}")
        self._block.lent = True
        device = self.device
        if device.driver.emulated:
            with device:
                device.driver.synchronize()
        elif stream != -1:
            with device, device.lock:
                device.follow(device.stream)
                event = device.driver.new_event()
                try:
                    device.driver.record(event, device.stream)
                    device.driver.wait(LEGACY if stream in (None, 0) else int(stream or LEGACY), event)
                finally:
                    device.driver.destroy_event(event)
        return dlpack.export(self, self.address, self.shape, self._type.dtype, self.__dlpack_device__())


def empty(device: Device, type_: TensorType) -> DeviceArray:
    """A new array of a static type, with any contents."""
    with device:
        block = device.allocate(math.prod(array_shape(type_)) * type_.dtype.numpy.itemsize)
    return DeviceArray(device, type_, block)


def zeros(device: Device, type_: TensorType) -> DeviceArray:
    """A new array whose bytes are 0."""
    array = empty(device, type_)
    if array.nbytes:
        with device, device.lock:
            device.follow(device.stream)
            device.driver.fill(array.address, 0, array.nbytes, device.stream)
    return array


def to_device(device: Device, array: Any) -> DeviceArray:
    """A copy of an array in a device's memory.  Raises GraphError for what is no array, or of an element type that we don't have."""
    try:
        given = np.asarray(array)
    except ValueError as error:
        raise GraphError(Diagnostic(f"this is no array: {error}")) from None
    dtype = dtype_from_numpy(given.dtype)
    if dtype is None or (dtype.is_block and not given.ndim):
        raise GraphError(Diagnostic(f"arrays of {given.dtype} are not supported"))
    plain = host_copy(given, dtype)
    result = empty(device, TensorType(dtype, tensor_shape(dtype, given.shape)))
    device.upload(result.address, plain.ctypes.data, plain.nbytes)
    return result


def host_copy(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """The array itself, or a copy, as it is in a device's memory: row-major without gaps, native bytes, truth values 0 and 1."""
    from codegen.runtime.arguments import is_plain, plain_copy

    return array if is_plain(array, dtype) else plain_copy(array, dtype)


class Seen:
    """An array of another library in a device's memory.  ``keep`` is what keeps the memory."""

    __slots__ = ("address", "dtype", "keep", "shape", "writeable")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DType, writeable: bool, keep: Any) -> None:
        self.address = address
        self.shape = shape
        self.dtype = dtype
        self.writeable = writeable
        self.keep = keep


def is_device_array(value: object) -> bool:
    """Whether a value is an array of ours, or says that it is an array of a device, or of another library that isn't numpy."""
    if isinstance(value, DeviceArray):
        return True
    if isinstance(value, (np.ndarray, np.generic, int, float, list, tuple)):
        return False
    return _has(value, "__dlpack_device__") or _has(value, "__cuda_array_interface__")


def _has(value: object, name: str) -> bool:
    """Whether a value has an attribute, which is not computed for that: some libraries' raise what they like."""
    return hasattr(type(value), name) or name in getattr(value, "__dict__", ())


def see(value: Any, device: Device, stream: int, name: str, location: AnyLocation | None) -> Seen:
    """An array in a device's memory, seen where it is; work for ``stream`` waits for what its library does with it.

    DLPack is asked first, since torch says nothing of its streams otherwise.

    Raises GraphError for one of the host, of another device, with gaps, or of an element type that we don't have.
    """
    if isinstance(value, DeviceArray):
        if value.device is not device:
            raise GraphError(Diagnostic(f"%{name}: the array is on {value.device.name}, the program on {device.name}", location))
        return Seen(value.address, value.shape, value.type.dtype, True, value)
    seen = (_from_dlpack if _has(value, "__dlpack_device__") else _from_interface)(value, device, stream, name, location)
    _check_place(seen, device, name, location)
    return seen


def type_of(seen: Seen) -> TensorType:
    """The type of an array of another library."""
    return TensorType(seen.dtype, tensor_shape(seen.dtype, seen.shape))


def _from_interface(value: Any, device: Device, stream: int, name: str, location: AnyLocation | None) -> Seen:
    try:
        interface = value.__cuda_array_interface__
        shape = tuple(int(n) for n in interface["shape"])
        typestr, (address, read_only) = str(interface["typestr"]), interface["data"]
        given = np.dtype(typestr)
        dtype = dtype_from_numpy(given) if given.isnative else None
        given_strides, theirs = interface.get("strides"), interface.get("stream")
        strides = None if given_strides is None else tuple(int(s) for s in given_strides)
        theirs = None if theirs is None else int(theirs)
        if strides is not None and len(strides) != len(shape):
            raise ValueError(f"it has {len(shape)} dimensions, but {len(strides)} strides")
    except Exception as error:  # it is the code of another library
        raise GraphError(Diagnostic(f"%{name}: its __cuda_array_interface__ is not understood: {error}", location)) from None
    if dtype is None or dtype.is_block:
        raise GraphError(Diagnostic(f"%{name}: arrays of {typestr} are not supported", location))
    if strides is not None:
        _check_strides(shape, tuple(s // dtype.itemsize for s in strides), name, location)
    own = (device.stream, LEGACY) if stream in (device.stream, 0, LEGACY) else (device.stream, stream)  # our stream and the default one wait
    if theirs is not None and theirs not in own:
        _wait_for(device, theirs, stream)
    return Seen(int(address or 0), shape, dtype, not read_only, value)


def _wait_for(device: Device, theirs: int, stream: int) -> None:
    event = device.driver.new_event()
    try:
        device.driver.record(event, theirs)
        device.driver.wait(stream, event)
    finally:
        device.driver.destroy_event(event)


def _from_dlpack(value: Any, device: Device, stream: int, name: str, location: AnyLocation | None) -> Seen:
    try:
        kind, number = (int(n) for n in value.__dlpack_device__())
    except Exception as error:  # it is the code of another library, here and below
        raise GraphError(Diagnostic(f"%{name}: its __dlpack_device__ is not understood: {error}", location)) from None
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED) or not hasattr(value, "__dlpack__"):
        what = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
        hint = "pass a numpy array (of torch: x.numpy()), or an array on the device (x.cuda(), graph_opt.cuda.to_device(x))"
        raise GraphError(Diagnostic(f"%{name}: this {what} is not in a CUDA device's memory (DLPack's device {kind})", location, hint))
    if number != device.driver.number:
        raise GraphError(Diagnostic(f"%{name}: the array is on device {number}, the program on {device.name}", location))
    try:
        imported = dlpack.Imported(value.__dlpack__(stream=stream or LEGACY))
    except Exception as error:
        raise GraphError(Diagnostic(f"%{name}: the array isn't handed over: {error}", location)) from None
    if imported.dtype is None:
        raise GraphError(Diagnostic(f"%{name}: arrays of {imported.dtype_text} are not supported", location))
    if imported.strides is not None:
        _check_strides(imported.shape, imported.strides, name, location)
    return Seen(imported.address, imported.shape, imported.dtype, True, (value, imported))


def _check_strides(shape: Sequence[int], strides: Sequence[int], name: str, location: AnyLocation | None) -> None:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step and 0 not in shape:
            hint = "make a copy without gaps first (of torch: x.contiguous())"
            message = f"%{name}: an array on the device must be row-major without gaps, its strides are {tuple(strides)}"
            raise GraphError(Diagnostic(message, location, hint))
        step *= size


def _check_place(seen: Seen, device: Device, name: str, location: AnyLocation | None) -> None:
    if any(n < 0 for n in seen.shape):
        raise GraphError(Diagnostic(f"%{name}: a dimension of its shape is negative: {seen.shape}", location))
    if 0 in seen.shape:
        return
    number = device.driver.device_of(seen.address)
    if number is None:
        raise GraphError(Diagnostic(f"%{name}: the array's address is not in a CUDA device's memory", location))
    last = seen.address + math.prod(seen.shape) * seen.dtype.numpy.itemsize - 1
    if last >= _ADDRESSES or device.driver.device_of(last) != number:
        raise GraphError(Diagnostic(f"%{name}: the array of shape {seen.shape} goes on behind the device's memory", location))
    if number != device.driver.number:
        raise GraphError(Diagnostic(f"%{name}: the array is on device {number}, the program on {device.name}", location))


def ghost(seen: Seen) -> NDArray[Any]:
    """A numpy array with the shape, the element type and the address of one that numpy can't reach: for checks that read none of it."""
    dtype = seen.dtype.numpy
    size = math.prod(seen.shape) * dtype.itemsize
    if not size:
        return np.empty(seen.shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(seen.address)
    array: NDArray[Any] = np.frombuffer(memory, dtype).reshape(seen.shape)
    array.flags.writeable = seen.writeable
    return array

