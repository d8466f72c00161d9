"""Operands of elementwise operations: brought to one shape, and narrow floats to the type that is computed in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codegen.llvm.types import REGISTER, lanes_of, vector_of
from codegen.llvm.writer import Writer
from ir.core import Operation, Value
from ir.types import DType, VectorType


def operand(w: Writer, value: Value, shape: Sequence[int] | None) -> str:
    """A value broadcast to a vector's shape (None: a scalar)."""
    text = w.name(value)
    type_ = value.type
    own = type_.shape if isinstance(type_, VectorType) else None
    if own == shape:
        return text
    assert shape is not None
    return broadcast(w, text, REGISTER[type_.dtype.name], own, shape)  # type: ignore[union-attr]


def broadcast(w: Writer, text: str, element: str, own: Sequence[int] | None, shape: Sequence[int]) -> str:
    """Numpy's rule, on flat vectors."""
    lanes = int(np.prod(shape, dtype=np.int64))
    if own is None:
        return w.splat(text, element, lanes)
    count = int(np.prod(own, dtype=np.int64))
    mask = np.broadcast_to(np.arange(count).reshape(own), shape).reshape(-1)
    return w.shuffle(text, element, count, mask.tolist())


def shape_of(value: Value) -> tuple[int, ...] | None:
    """The shape of a vector; None for a scalar."""
    type_ = value.type
    return type_.shape if isinstance(type_, VectorType) else None


def operands(w: Writer, op: Operation) -> list[str]:
    """All operands, broadcast to the shape of the result."""
    shape = shape_of(op.results[0])
    found = []
    for use in op.operand_uses:
        value = use.value
        type_ = value.type
        if (type_.shape if isinstance(type_, VectorType) else None) == shape:
            found.append(w.names.get(value) or w.name(value))
        else:
            found.append(operand(w, value, shape))
    return found


# -- narrow floats -----------------------------------------------------------------------------------------------------


def widened(w: Writer, text: str, dtype: DType, lanes: int) -> tuple[str, str]:
    """(value, LLVM element type) for computing: f16 and bf16 as float, f32 and f64 as they are."""
    name = dtype.name
    if name == "f32":
        return text, "float"
    if name == "f64":
        return text, "double"
    if name == "f16":
        return w.set(f"fpext {vector_of('half', lanes)} {text} to {vector_of('float', lanes)}"), "float"
    wide = vector_of("i32", lanes)
    bits = w.set(f"zext {vector_of('i16', lanes)} {text} to {wide}")
    high = w.set(f"shl {wide} {bits}, {w.splat('16', 'i32', lanes)}")
    return w.set(f"bitcast {wide} {high} to {vector_of('float', lanes)}"), "float"


def narrowed(w: Writer, text: str, dtype: DType, lanes: int) -> str:
    """A float (of f64: a double) rounded to a type, nearest and ties to even."""
    name = dtype.name
    if name in ("f32", "f64"):
        return text
    if name == "f16":
        return w.set(f"fptrunc {vector_of('float', lanes)} {text} to {vector_of('half', lanes)}")
    wide, vector = vector_of("i32", lanes), vector_of("float", lanes)
    bits = w.set(f"bitcast {vector} {text} to {wide}")
    high = w.set(f"lshr {wide} {bits}, {w.splat('16', 'i32', lanes)}")
    last = w.set(f"and {wide} {high}, {w.splat('1', 'i32', lanes)}")
    half = w.set(f"add {wide} {last}, {w.splat('32767', 'i32', lanes)}")
    rounded = w.set(f"lshr {wide} {w.set(f'add {wide} {bits}, {half}')}, {w.splat('16', 'i32', lanes)}")
    quiet = w.set(f"or {wide} {high}, {w.splat('64', 'i32', lanes)}")
    nan = w.set(f"fcmp uno {vector} {text}, {text}")
    chosen = w.set(f"select {vector_of('i1', lanes)} {nan}, {wide} {quiet}, {wide} {rounded}")
    return w.set(f"trunc {wide} {chosen} to {vector_of('i16', lanes)}")


def to_double(w: Writer, text: str, dtype: DType, lanes: int) -> str:
    """A value of any float type as a double."""
    wide, element = widened(w, text, dtype, lanes)
    if element == "double":
        return wide
    return w.set(f"fpext {vector_of('float', lanes)} {wide} to {vector_of('double', lanes)}")


def from_double(w: Writer, text: str, dtype: DType, lanes: int) -> str:
    """A double rounded once to a float type."""
    name = dtype.name
    if name == "f64":
        return text
    if name == "f32":
        return w.set(f"fptrunc {vector_of('double', lanes)} {text} to {vector_of('float', lanes)}")
    return narrowed(w, odd_float(w, text, lanes), dtype, lanes)


def odd_float(w: Writer, text: str, lanes: int) -> str:
    """A double rounded to float such that a second rounding, to 16 bits, gives what one rounding would.

    To odd: where it is inexact the last bit is 1.
    """
    wide, single, integer, flag = (vector_of(t, lanes) for t in ("double", "float", "i32", "i1"))
    near = w.set(f"fptrunc {wide} {text} to {single}")
    back = w.set(f"fpext {single} {near} to {wide}")
    bits = w.set(f"bitcast {single} {near} to {integer}")
    inexact = w.set(f"fcmp one {wide} {back}, {text}")
    size, wanted = absolute(w, back, "double", lanes), absolute(w, text, "double", lanes)
    finite = w.set(f"fcmp one {wide} {size}, {w.splat('0x7FF0000000000000', 'double', lanes)}")
    changed = w.set(f"and {flag} {inexact}, {finite}")
    away = w.set(f"fcmp ogt {wide} {size}, {wanted}")
    less = w.set(f"sext {flag} {away} to {integer}")
    toward = w.set(f"add {integer} {bits}, {less}")
    odd = w.set(f"or {integer} {toward}, {w.splat('1', 'i32', lanes)}")
    chosen = w.set(f"select {flag} {changed}, {integer} {odd}, {integer} {bits}")
    return w.set(f"bitcast {integer} {chosen} to {single}")


def absolute(w: Writer, text: str, element: str, lanes: int) -> str:
    """|x| of float or double."""
    return intrinsic(w, "fabs", element, lanes, text)


def intrinsic(w: Writer, name: str, element: str, lanes: int, *args: str) -> str:
    """A call of an intrinsic whose operands and result have one type."""
    from codegen.llvm.types import suffix

    vector = vector_of(element, lanes)
    function = w.unit.declare(vector, f"llvm.{name}.{suffix(element, lanes)}", *([vector] * len(args)))
    return w.set(f"call {vector} {function}({', '.join(f'{vector} {a}' for a in args)})")


def result_lanes(op: Operation) -> int:
    """Lanes of the result; 0 for a scalar."""
    return lanes_of(op.results[0].type)
