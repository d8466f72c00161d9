"""What generated code needs to know about CPython and numpy in this process: addresses and the layout of arrays."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field

import numpy as np

TYPE_OFFSET = 8
DATA_OFFSET, RANK_OFFSET, SHAPE_OFFSET, STRIDES_OFFSET, DTYPE_OFFSET, FLAGS_OFFSET = 16, 24, 32, 40, 56, 64
"""Where an array keeps what compiled extensions read from it (numpy's binary interface, the same in numpy 1 and 2)."""

HANDLER_OFFSET = 88
"""Where it names what manages its memory (since numpy 1.22)."""

C_CONTIGUOUS, OWNS_DATA, ALIGNED, WRITEABLE = 0x1, 0x4, 0x100, 0x400

_ARRAY_TYPE, _NEW_FROM_DESCR, _GET_HANDLER = 2, 94, 305  # places in numpy's table of functions, fixed once they are there
_ABI_VERSIONS = (0x01000009, 0x02000000)

_FUNCTIONS = (
    "PyBytes_FromStringAndSize",
    "PyErr_Clear",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyObject_Vectorcall",
    "PyTuple_GetItem",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyTuple_Size",
    "Py_DecRef",
    "Py_IncRef",
)


@dataclass(frozen=True)
class Interface:
    """Addresses in this process."""

    functions: dict[str, int] = field(hash=False)
    array_type: int
    new_array: int
    knows_handlers: bool
    """whether arrays name what manages their memory, where we think"""


def _address_of(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def _table() -> ctypes.Array[ctypes.c_void_p]:
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return (ctypes.c_void_p * (_GET_HANDLER + 1)).from_address(get(_multiarray_umath._ARRAY_API, None))


def _layout_fits() -> bool:
    """Whether arrays look in memory as this module says."""
    for array in (np.zeros((3, 5), np.float32), np.zeros((2, 3, 4), np.int64)[:, ::2], np.zeros((), np.bool_)):
        base = id(array)

        def word(offset: int, base: int = base) -> int:
            return ctypes.c_int64.from_address(base + offset).value

        rank = ctypes.c_int32.from_address(base + RANK_OFFSET).value
        if (word(TYPE_OFFSET), word(DATA_OFFSET), rank, word(DTYPE_OFFSET)) != (id(np.ndarray), array.ctypes.data, array.ndim, id(array.dtype)):
            return False
        for offset, wanted in ((SHAPE_OFFSET, array.shape), (STRIDES_OFFSET, array.strides)):
            if rank and tuple((ctypes.c_int64 * rank).from_address(word(offset))) != wanted:
                return False
        if ctypes.c_int32.from_address(base + FLAGS_OFFSET).value & 0x7FF != array.flags.num & 0x7FF:
            return False
    return True


def find_interface() -> Interface | None:
    """The interface of this process; None where it is not the one that is known here (then the slow path does everything)."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8 or hasattr(sys, "_is_gil_enabled") or not _layout_fits():
        return None
    try:
        table = _table()
        functions = {name: _address_of(name) for name in _FUNCTIONS}
    except (ImportError, AttributeError, ValueError):
        return None
    version = ctypes.CFUNCTYPE(ctypes.c_uint32)(table[0] or 0)()
    array_type, new_array = table[_ARRAY_TYPE] or 0, table[_NEW_FROM_DESCR] or 0
    if version not in _ABI_VERSIONS or array_type != id(np.ndarray) or not new_array:
        return None
    return Interface(functions, array_type, new_array, _knows_handlers(table))


def _knows_handlers(table: ctypes.Array[ctypes.c_void_p]) -> bool:
    if np.lib.NumpyVersion(np.__version__) < "1.22.0" or not table[_GET_HANDLER]:
        return False
    handler = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER] or 0)()
    array = np.zeros(5)
    found = [ctypes.c_uint64.from_address(id(a) + HANDLER_OFFSET).value for a in (array, array[1:])]
    return found == [id(handler), 0]
