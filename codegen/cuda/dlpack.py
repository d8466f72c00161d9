"""DLPack: handing memory from one library to another in a capsule, in either direction, without copying it.

https://dmlc.github.io/dlpack: a capsule called "dltensor" has the address of a DLManagedTensor; who takes it renames the capsule and calls
its deleter when the memory isn't used any more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ir.types import DTYPES, DType

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_CODES = {
    "f64": (_FLOAT, 64), "f32": (_FLOAT, 32), "f16": (_FLOAT, 16), "bf16": (_BFLOAT, 16), "i64": (_INT, 64), "i32": (_INT, 32),
    "i16": (_INT, 16), "i8": (_INT, 8), "u8": (_UINT, 8), "bool": (_BOOL, 8), "index": (_INT, 64),
}  # fmt: skip
_NAMES = {code: name for name, code in reversed(_CODES.items())}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("number", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))

_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR)(("PyCapsule_New", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

_NAME, _USED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")  # capsules keep these addresses
_exported: dict[int, tuple[Any, ...]] = {}


def has_code(dtype: DType) -> bool:
    """Whether DLPack knows an element type."""
    return dtype.name in _CODES


def _delete(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    """Of a capsule that nobody took."""
    if _raw_is_valid(capsule, _NAME):
        _exported.pop(_raw_pointer(capsule, _NAME), None)


_deleter, _destructor = _DELETER(_delete), _DESTRUCTOR(_destroy)  # as long as the process lives


def export(owner: object, address: int, shape: Sequence[int], dtype: DType, device: tuple[int, int]) -> Any:
    """A capsule for row-major memory that ``owner`` keeps alive; the taker's reference to it ends with the deleter."""
    code, bits = _CODES[dtype.name]
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    strides, step = (ctypes.c_int64 * max(1, len(shape)))(), 1
    for axis in reversed(range(len(shape))):
        strides[axis], step = step, step * max(1, shape[axis])
    pointer = ctypes.POINTER(ctypes.c_int64)
    tensor = _Tensor(address, _Device(*device), len(shape), _Type(code, bits, 1), ctypes.cast(sizes, pointer), ctypes.cast(strides, pointer), 0)
    managed = _Managed(tensor, None, _deleter)
    place = ctypes.addressof(managed)
    _exported[place] = (managed, sizes, strides, owner)
    return _new(place, _NAME, _destructor)


class Imported:
    """Memory of another library, ours until this object goes.

    ``dtype`` is None for an element type that we don't have, which ``dtype_text`` names; ``strides`` are in elements.
    """

    def __init__(self, capsule: Any) -> None:
        """Takes a capsule.  Raises ValueError for what is none, or was taken before."""
        if not _is_valid(capsule, _NAME):
            raise ValueError("this is no capsule called 'dltensor'")
        place = _pointer(capsule, _NAME)
        _rename(capsule, _USED)
        self._managed = _Managed.from_address(place)
        tensor = self._managed.tensor
        self.device = (int(tensor.device.type), int(tensor.device.number))
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
        self.address = (tensor.data or 0) + tensor.byte_offset
        kind = tensor.dtype
        name = _NAMES.get((kind.code, kind.bits)) if kind.lanes == 1 else None
        self.dtype = DTYPES[name] if name is not None else None
        self.dtype_text = f"DLPack's type {kind.code} of {kind.bits} bits{f' and {kind.lanes} lanes' if kind.lanes != 1 else ''}"

    def __del__(self) -> None:
        managed = getattr(self, "_managed", None)
        if managed is not None and managed.deleter:
            managed.deleter(ctypes.byref(managed))
