"""How element types, vectors and constants are written in LLVM's assembly language.

Vectors of any rank are flat, row-major.  A value of bf16 is its bits, an i16; a bool is an i1 in registers and a byte in
memory.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from ir.types import DType, ScalarType, Type, VectorType

REGISTER = {
    "f64": "double", "f32": "float", "f16": "half", "bf16": "i16", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "u8": "i8",
    "bool": "i1", "index": "i64",
}  # fmt: skip
"""LLVM types of elements in registers."""
SUFFIX = {"double": "f64", "float": "f32", "half": "f16", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "i1": "i1"}
"""How intrinsics spell types in their names."""


def in_memory(dtype: DType) -> str:
    """The LLVM type of an element in memory."""
    return "i8" if dtype.kind == "bool" else REGISTER[dtype.name]


MAX_LANES = 4096


class BadVector(Exception):
    """A vector without elements, or with so many that LLVM would not come to an end."""


def lanes_of(type_: Type) -> int:
    """Number of elements of a vector; 0 for a scalar."""
    if not isinstance(type_, VectorType):
        return 0
    lanes = math.prod(type_.shape)
    if not 0 < lanes <= MAX_LANES:
        raise BadVector(f"{type_} has {lanes} elements, native code has vectors of 1 to {MAX_LANES}")
    return lanes


@lru_cache(maxsize=1024)
def vector_of(element: str, lanes: int) -> str:
    """The LLVM type of so many elements; of a scalar for 0."""
    return f"<{lanes} x {element}>" if lanes else element


@lru_cache(maxsize=1024)
def llvm_type(type_: ScalarType | VectorType) -> str:
    """The LLVM type of a scalar or vector in registers."""
    return vector_of(REGISTER[type_.dtype.name], lanes_of(type_))


@lru_cache(maxsize=1024)
def suffix(element: str, lanes: int) -> str:
    """``v16f32``: a type in the name of an intrinsic."""
    return f"v{lanes}{SUFFIX[element]}" if lanes else SUFFIX[element]


def float_bits(number: float, element: str) -> str:
    """A number as a constant of an LLVM float type that has it exactly (float or double)."""
    assert element in ("float", "double")
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def element_text(element: Any, dtype: DType) -> str:
    """One element of a numpy array as a constant."""
    name = dtype.name
    if name == "bool":
        return "true" if element else "false"
    if name == "bf16":
        return str(int(np.asarray(element).view(np.int16)))
    if name == "f16":
        return f"0xH{int(np.asarray(element).view(np.uint16)):04X}"
    if name == "f64":
        return f"0x{int(np.asarray(element).view(np.uint64)):016X}"
    if name == "f32":
        if np.isnan(element):  # the payload would not survive the way over double
            return f"bitcast (i32 {int(np.asarray(element).view(np.int32))} to float)"
        return float_bits(float(element), "float")
    if name == "u8":
        return str(int(element) - 256 if element > 127 else int(element))
    return str(int(element))


def constant_text(array: Any, dtype: DType) -> str:
    """A numpy array as a constant: a scalar for rank 0, else a flat vector."""
    array = np.asarray(array)
    if array.ndim == 0:
        return element_text(array[()], dtype)
    element = REGISTER[dtype.name]
    if not array.size:
        return "zeroinitializer"
    flat = array.reshape(-1)
    if is_uniform(flat):
        return splat_text(element_text(flat[0], dtype), element, flat.size)
    return "<" + ", ".join(f"{element} {element_text(e, dtype)}" for e in flat) + ">"


def is_uniform(flat: Any) -> bool:
    """Whether all elements have the same bits."""
    rows = flat.view(np.uint8).reshape(flat.size, -1)
    return bool((rows == rows[0]).all())


def splat_text(text: str, element: str, lanes: int) -> str:
    """A constant vector of equal elements."""
    return f"splat ({element} {text})" if lanes else text


def is_constant(text: str) -> bool:
    """Whether the text of an operand is a constant (and no register)."""
    return not text.startswith("%")
