"""Attribute values: the compile-time arguments of operations.

An attribute is one of: None, bool, int, float, str, :class:`DType`, a type, a dimension, :class:`Dense`,
:class:`GraphRef`, :class:`FileRef`, or a tuple of these.  Python's ``==`` says ``1 == 1.0 == True`` and
``0.0 == -0.0``; :func:`attribute_key` does not, and is what passes compare and hash.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from ir.dims import DimExpr, UnknownDim
from ir.types import TYPE_CLASSES, DType, TensorType, Type, dtype_from_numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Dense:
    """A constant tensor: a read-only numpy array with its element type.  Compared bit by bit."""

    __slots__ = ("array", "dtype", "_key")

    def __init__(self, array: NDArray[Any], dtype: DType | None = None) -> None:
        import numpy as np

        dtype = dtype or dtype_from_numpy(array.dtype)
        if dtype is None:
            raise TypeError(f"no element type for numpy dtype {array.dtype}")
        if dtype.is_block:
            raise TypeError(f"there are no constants of {dtype}: blocks come from files of weights and parameters")
        stored = np.array(array, dtype=dtype.numpy, order="C")  # order, not ascontiguousarray: rank 0 stays rank 0
        stored.setflags(write=False)
        self.array = stored
        self.dtype = dtype
        self._key: tuple[Any, ...] | None = None

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, tuple(int(d) for d in self.array.shape))

    @property
    def key(self) -> tuple[Any, ...]:
        if self._key is None:
            self._key = (self.dtype.name, self.array.shape, self.array.tobytes())
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dense) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, slots=True)
class GraphRef:
    """``@layer``: another graph of the module."""

    name: str


@dataclass(frozen=True, slots=True)
class FileRef:
    """``@w``: a file of weights declared in the module."""

    name: str


Attribute = Union[None, bool, int, float, str, DType, Type, DimExpr, UnknownDim, Dense, GraphRef, FileRef, "tuple[Attribute, ...]"]


def attribute_key(value: Attribute) -> tuple[Any, ...]:
    """A hashable key that is equal for two attributes exactly when they have the same type and the same bits."""
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, tuple):
        return ("tuple", *(attribute_key(v) for v in value))
    if isinstance(value, Dense):
        return ("dense", *value.key)
    return (type(value).__name__, value)


def is_attribute(value: object) -> bool:
    """Whether ``value`` may be stored as an attribute."""
    if isinstance(value, tuple):
        return all(is_attribute(v) for v in value)
    simple = (bool, int, float, str, DType, DimExpr, UnknownDim, Dense, GraphRef, FileRef)
    return value is None or isinstance(value, simple) or isinstance(value, TYPE_CLASSES)
