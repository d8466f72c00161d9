"""How element types, vectors and constants are written in CUDA C.

A value of f16 or bf16 is its bits in a struct, a bool is a ``bool`` in registers and a byte in memory.  Vectors of any rank are flat,
row-major ``go_vec``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from codegen.cuda.expressions import PRIMARY, UNARY, Expr, integer
from ir.types import DType, ScalarType, Type, VectorType

C_TYPES = {
    "f64": "double", "f32": "float", "f16": "go_half", "bf16": "go_bf16", "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char",
    "u8": "unsigned char", "bool": "bool", "index": "go_index",
}  # fmt: skip
"""C types of scalars."""

COMPUTED = {"f64": "double", "f32": "float", "f16": "float", "bf16": "float"}
"""C types that floats are computed in."""


def in_memory(dtype: DType) -> str:
    """The C type of an element in memory."""
    return "unsigned char" if dtype.kind == "bool" else C_TYPES[dtype.name]


def lanes_of(type_: Type) -> int:
    """Number of elements of a vector; 1 for a scalar."""
    return math.prod(type_.shape) if isinstance(type_, VectorType) else 1


def c_type(type_: ScalarType | VectorType) -> str:
    """The C type of a scalar or vector."""
    element = C_TYPES[type_.dtype.name]
    return f"go_vec<{element}, {lanes_of(type_)}>" if isinstance(type_, VectorType) else element


def element_constant(element: Any, dtype: DType) -> Expr:
    """One element of a numpy array as a literal."""
    name = dtype.name
    if name == "bool":
        return Expr("true" if element else "false")
    if name == "index":
        return integer(int(element))
    if name in ("f16", "bf16"):
        return Expr(f"{'go_half' if name == 'f16' else 'go_bf16'}_bits(0x{int(np.asarray(element).view(np.uint16)):04x})")
    if name in ("f32", "f64"):
        return _float(element, name)
    return _integer(int(element), dtype)


def _integer(value: int, dtype: DType) -> Expr:
    if dtype.bits < 32:
        return Expr(f"({C_TYPES[dtype.name]}){value if value >= 0 else f'({value})'}", UNARY)
    suffix = "LL" if dtype.bits == 64 else ""
    if value == dtype.min_value:
        return Expr(f"(-{-(value + 1)}{suffix} - 1)")
    return Expr(f"{value}{suffix}", PRIMARY if value >= 0 else UNARY)


def _float(element: Any, name: str) -> Expr:
    single = name == "f32"
    if np.isnan(element):
        if single:
            return Expr(f"go_as_float(0x{int(np.asarray(element).view(np.uint32)):08x})")
        return Expr(f"go_as_double(0x{int(np.asarray(element).view(np.uint64)):016x}LL)")
    if np.isinf(element):
        infinity = "GO_INFINITY" if single else "GO_INFINITY64"
        return Expr(infinity if element > 0 else f"-{infinity}", PRIMARY if element > 0 else UNARY)
    text = str(np.float32(element)) if single else repr(float(element))  # the shortest text that reads back the same
    if "." not in text and "e" not in text:
        text += ".0"
    return Expr(f"{text}f" if single else text, UNARY if np.signbit(element) else PRIMARY)


def vector_constant(array: Any, dtype: DType) -> Expr:
    """A numpy array as a ``go_vec``."""
    flat = np.asarray(array).reshape(-1)
    rows = flat.view(np.uint8).reshape(flat.size, -1) if flat.size else flat
    element = C_TYPES[dtype.name]
    if flat.size and (rows == rows[0]).all():
        return Expr(f"go_splat<{element}, {flat.size}>({element_constant(flat[0], dtype).text})")
    items = ", ".join(element_constant(e, dtype).text for e in flat)
    return Expr(f"go_vec<{element}, {flat.size}>{{{{{items}}}}}", cost=2)
