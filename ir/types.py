"""Types of values.  All are immutable and hashable; ``str(type)`` is the text that the parser reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from ir.dims import Dim, UnknownDim, compatible, floordiv, format_dim, merge, mod, product, substitute, symbols_of

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.  ``kind`` is one of float, int, uint, bool, index, block; ``bits`` is the stored width.

    Elements of kind ``block`` are stored in blocks of ``block`` along the last axis of a tensor, ``block_bytes`` each:
    numbers of ``bits`` bits, and the scale (and minimum) that they share.
    """

    name: str
    kind: str
    bits: int
    block: int = 1
    block_bytes: int = 0

    def __hash__(self) -> int:
        """That of the name, which tells element types apart: types are looked up by the million."""
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Whether values are integers (``index`` included, ``bool`` not)."""
        return self.kind in ("int", "uint", "index")

    @property
    def is_block(self) -> bool:
        """Whether elements are stored in blocks, and have no bytes of their own."""
        return self.kind == "block"

    @property
    def itemsize(self) -> int:
        """Bytes of one element.  Raises TypeError for blocks, whose elements share bytes: ask :attr:`TensorType.nbytes`."""
        if self.is_block:
            raise TypeError(f"one element of {self.name} has no bytes of its own: {self.block_bytes} bytes hold {self.block}")
        return max(1, self.bits // 8)

    @property
    def min_value(self) -> int:
        """Smallest integer of an integer type."""
        return 0 if self.kind in ("uint", "bool") else -(1 << (self.bits - 1))

    @property
    def max_value(self) -> int:
        """Largest integer of an integer type."""
        if self.kind == "bool":
            return 1
        return (1 << self.bits) - 1 if self.kind == "uint" else (1 << (self.bits - 1)) - 1

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype that holds such elements (``bf16`` through ml_dtypes), or one block of them."""
        return _numpy_dtype(self)


f64 = DType("f64", "float", 64)
f32 = DType("f32", "float", 32)
f16 = DType("f16", "float", 16)
bf16 = DType("bf16", "float", 16)
i64 = DType("i64", "int", 64)
i32 = DType("i32", "int", 32)
i16 = DType("i16", "int", 16)
i8 = DType("i8", "int", 8)
u8 = DType("u8", "uint", 8)
boolean = DType("bool", "bool", 8)
index = DType("index", "index", 64)
q4_0 = DType("q4_0", "block", 4, 32, 18)
q4_1 = DType("q4_1", "block", 4, 32, 20)
q8_0 = DType("q8_0", "block", 8, 32, 34)

DTYPES: dict[str, DType] = {d.name: d for d in (f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, index, q4_0, q4_1, q8_0)}
ELEMENT_DTYPES: dict[str, DType] = {n: d for n, d in DTYPES.items() if not d.is_block}
"""The element types whose elements stand alone: those of scalars, vectors and buffers."""

_NUMPY_NAMES = {"f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1", "u8": "u1", "bool": "?", "index": "i8"}
_BLOCK_FIELDS: dict[str, list[Any]] = {  # the layout of GGUF files, little-endian
    "q4_0": [("d", "<f2"), ("qs", "u1", (16,))],
    "q4_1": [("d", "<f2"), ("m", "<f2"), ("qs", "u1", (16,))],
    "q8_0": [("d", "<f2"), ("qs", "i1", (32,))],
}
_numpy_cache: dict[DType, Any] = {}


def _numpy_dtype(dtype: DType) -> np.dtype[Any]:
    found = _numpy_cache.get(dtype)
    if found is None:
        import numpy as np

        if dtype is bf16 or dtype == bf16:
            import ml_dtypes

            found = np.dtype(ml_dtypes.bfloat16)
        else:
            found = np.dtype(_BLOCK_FIELDS[dtype.name] if dtype.is_block else _NUMPY_NAMES[dtype.name])
        _numpy_cache[dtype] = found
    return found  # type: ignore[no-any-return]


def dtype_from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The element type of a numpy array in native or foreign byte order; None when there is none."""
    native = dtype.newbyteorder("=")
    for candidate in DTYPES.values():
        if candidate is bf16 and "ml_dtypes" not in sys.modules:
            continue  # loading it takes long, and nobody has such an array before it is loaded
        if candidate is not index and candidate.numpy == native:
            return candidate
    return None


def byte_count(dtype: DType, shape: tuple[Dim, ...]) -> Dim:
    """Bytes of a tensor or buffer, stored without gaps."""
    if dtype.is_block:
        return product(shape[:-1]) * block_count(dtype, shape[-1]) * dtype.block_bytes
    return product(shape) * dtype.itemsize


def block_count(dtype: DType, size: Dim) -> Dim:
    """How many blocks a last axis of ``size`` elements has: exact for the sizes that :func:`block_problem` allows."""
    return floordiv(size, dtype.block)


def storage_shape(type_: TensorType) -> tuple[Dim, ...]:
    """The shape of the numpy array that holds a tensor: its own, with blocks in place of elements on the last axis."""
    if not type_.dtype.is_block:
        return type_.shape
    return (*type_.shape[:-1], block_count(type_.dtype, type_.shape[-1]))


def array_shape(type_: TensorType) -> tuple[int, ...]:
    """:func:`storage_shape` of a tensor whose dimensions are numbers."""
    return tuple(int(d) for d in storage_shape(type_))  # type: ignore[arg-type]


def tensor_shape(dtype: DType, stored: Sequence[int]) -> tuple[int, ...]:
    """The shape of the tensor that an array of shape ``stored`` holds: the inverse of :func:`storage_shape`."""
    shape = tuple(int(d) for d in stored)
    return (*shape[:-1], shape[-1] * dtype.block) if dtype.is_block and shape else shape


def buffer_of(type_: TensorType) -> MemRefType:
    """The buffer that a tensor is read from: its elements, or the bytes of its blocks, [..., blocks, bytes of one]."""
    if not type_.dtype.is_block:
        return MemRefType(type_.dtype, type_.shape)
    return MemRefType(u8, (*storage_shape(type_), type_.dtype.block_bytes))


def type_problem(type_: Type) -> str | None:
    """Why a type can't be; None when it can: blocks are elements of tensors only, along the last axis."""
    if isinstance(type_, UnknownType) or not type_.dtype.is_block:
        return None
    if not isinstance(type_, TensorType):
        return f"{type_}: {type_.dtype} is an element type of tensors only"
    return block_problem(type_.dtype, type_.shape)


def block_problem(dtype: DType, shape: tuple[Dim, ...]) -> str | None:
    """Why a tensor of blocks can't have this shape; None when it can.

    The last axis must be known to be a multiple of the block: a number, or a symbolic size such as ``32*K``.
    """
    if not dtype.is_block:
        return None
    if not shape:
        return f"{dtype} has blocks of {dtype.block} along the last axis, a tensor of rank 0 has none"
    last = shape[-1]
    if isinstance(last, UnknownDim) or mod(last, dtype.block) == 0:
        return None
    verdict = "is not a multiple" if isinstance(last, int) else "is not known to be a multiple"
    return f"{dtype} has blocks of {dtype.block} along the last axis, {format_dim(last)} {verdict}"


@dataclass(frozen=True, slots=True)
class UnknownType:
    """``?``: not known until inferred."""

    def __str__(self) -> str:
        return "?"


UNKNOWN = UnknownType()


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A single element of the lower levels, ``f32``; never the same as the rank-0 tensor ``f32[]``."""

    dtype: DType

    def __str__(self) -> str:
        return self.dtype.name


@dataclass(frozen=True, slots=True)
class TensorType:
    """``f32[B, 64]``: element type and dimensions."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(format_dim(d) for d in self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> Dim:
        """Bytes of the elements, stored without gaps."""
        return byte_count(self.dtype, self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        return TensorType(self.dtype, shape)


@dataclass(frozen=True, slots=True)
class VectorType:
    """``vector<f32[8, 48]>``: a register block; its dimensions are static."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"vector<{self.dtype.name}[{', '.join(map(str, self.shape))}]>"


@dataclass(frozen=True, slots=True)
class MemRefType:
    """``memref<f32[M, 64], shared, align=128>``: a buffer.  ``space`` is "" for plain memory."""

    dtype: DType
    shape: tuple[Dim, ...]
    space: str = ""
    align: int = 0

    def __str__(self) -> str:
        parts = [f"{self.dtype.name}[{', '.join(format_dim(d) for d in self.shape)}]"]
        if self.space:
            parts.append(self.space)
        if self.align:
            parts.append(f"align={self.align}")
        return f"memref<{', '.join(parts)}>"


Type = Union[UnknownType, ScalarType, TensorType, VectorType, MemRefType]
TYPE_CLASSES = (UnknownType, ScalarType, TensorType, VectorType, MemRefType)


def merge_types(a: Type, b: Type) -> Type | None:
    """The better known of two types that may be equal; None when they can't be."""
    if isinstance(a, UnknownType):
        return b
    if isinstance(b, UnknownType) or a == b:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.dtype == b.dtype and a.rank == b.rank and all(map(compatible, a.shape, b.shape)):
            return TensorType(a.dtype, tuple(map(merge, a.shape, b.shape)))
    if isinstance(a, MemRefType) and isinstance(b, MemRefType) and len(a.shape) == len(b.shape):
        if (a.dtype, a.space, a.align) == (b.dtype, b.space, b.align) and all(map(compatible, a.shape, b.shape)):
            return MemRefType(a.dtype, tuple(map(merge, a.shape, b.shape)), a.space, a.align)
    return None


def is_known(type_: Type) -> bool:
    """Whether neither the type nor one of its dimensions is unknown."""
    if isinstance(type_, (TensorType, MemRefType)):
        return not any(isinstance(d, UnknownDim) for d in type_.shape)
    return not isinstance(type_, UnknownType)


def substitute_type(type_: Type, bindings: Mapping[str, Dim]) -> Type:
    """``type_`` with symbolic dimensions replaced."""
    if isinstance(type_, TensorType):
        return TensorType(type_.dtype, tuple(substitute(d, bindings) for d in type_.shape))
    if isinstance(type_, MemRefType):
        return MemRefType(type_.dtype, tuple(substitute(d, bindings) for d in type_.shape), type_.space, type_.align)
    return type_


def type_symbols(type_: Type) -> dict[str, None]:
    """Names of the symbolic dimensions of a type, in order."""
    found: dict[str, None] = {}
    if isinstance(type_, (TensorType, MemRefType)):
        for dim in type_.shape:
            found.update(symbols_of(dim))
    return found
