"""What inference functions of operations on scalars and vectors share: element types and broadcasting."""

from __future__ import annotations

from typing import Union

from ir.opdef import TypeProblem
from ir.types import DType, ScalarType, Type, VectorType

Operand = Union[ScalarType, VectorType]


def shape_of(type_: Operand) -> tuple[int, ...]:
    """The dimensions of a vector; none for a scalar."""
    return type_.shape if isinstance(type_, VectorType) else ()


def with_dtype(type_: Operand, dtype: DType) -> Operand:
    """The same scalar or vector of another element type."""
    return VectorType(dtype, type_.shape) if isinstance(type_, VectorType) else ScalarType(dtype)


def require_same_dtype(first: tuple[str, Operand], *others: tuple[str, Operand]) -> DType:
    """The common element type of (operand name, type) pairs.  Raises TypeProblem at the first that differs."""
    dtype = first[1].dtype
    for name, type_ in others:
        if type_.dtype != dtype:
            raise TypeProblem(
                f"element types differ: '{first[0]}' is {first[1]}, '{name}' is {type_}",
                operand=name,
                hint="nothing is converted implicitly; the arith dialect has operations for it (extf, extsi, index_cast, ...)",
            )
    return dtype


def broadcast(dtype: DType, first: tuple[str, Operand], *others: tuple[str, Operand]) -> Operand:
    """The type with ``dtype`` and the shape that numpy's rule makes of (operand name, type) pairs.

    Scalars make a scalar; with a vector among them the result is a vector.  Raises TypeProblem at the operand that
    doesn't fit.
    """
    shape = list(shape_of(first[1]))
    for name, type_ in others:
        other = shape_of(type_)
        rank = max(len(shape), len(other))
        left, right = [1] * (rank - len(shape)) + shape, [1] * (rank - len(other)) + list(other)
        if any(a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)):
            raise TypeProblem(f"shapes can't be broadcast: '{first[0]}' is {first[1]}, '{name}' is {type_}", operand=name)
        shape = [b if a == 1 else a for a, b in zip(left, right, strict=True)]
    vector = any(isinstance(t, VectorType) for _, t in (first, *others))
    return VectorType(dtype, tuple(shape)) if vector else ScalarType(dtype)


def same(x: Operand) -> Operand:
    """Inference of a function of one operand."""
    return x


def binary(x: Operand, y: Operand) -> Operand:
    """Inference of an operation on two operands of one element type."""
    return broadcast(require_same_dtype(("x", x), ("y", y)), ("x", x), ("y", y))


def require_shape(x: Operand, result_type: Type) -> Operand:
    """The declared type of a conversion, which keeps the shape.  Raises TypeProblem when it doesn't."""
    if not isinstance(result_type, (ScalarType, VectorType)) or result_type != with_dtype(x, result_type.dtype):
        raise TypeProblem(f"the result has the shape of the operand, {x}, so it can't be declared {result_type}")
    return result_type
