"""Values that need no operand: constants, filled and counting tensors, weights, load-time results; and the size of a dimension."""

from __future__ import annotations

import math

import numpy as np

from dialects.graph._shapes import normalize_axis
from ir.attributes import Dense, FileRef, GraphRef
from ir.dims import Dim, UnknownDim
from ir.evaluate import round_to
from ir.opdef import ExecutionError, Shape, Stored, Tensor, TypeProblem, op
from ir.types import UNKNOWN, DType, TensorType, UnknownType, dtype_from_numpy, i64, tensor_shape

_MAX_RANK = 64


def _constant(value: Dense) -> TensorType:
    return value.type


def _weight(file: FileRef, name: str) -> UnknownType:
    return UNKNOWN  # only the declaration in the program says it


def _initial(source: GraphRef, result: int) -> UnknownType:
    return UNKNOWN  # the type inference of the module knows the graph


def _check_shape(shape: tuple[Dim, ...]) -> None:
    if len(shape) > _MAX_RANK:
        raise TypeProblem(f"a tensor has at most {_MAX_RANK} dimensions, this has {len(shape)}", attribute="shape")
    for dim in shape:
        if isinstance(dim, UnknownDim):
            raise TypeProblem("a dimension of this shape is '?'", attribute="shape", hint="write a number or a symbolic dimension")
        if isinstance(dim, int) and not 0 <= dim < 2**63:
            raise TypeProblem(f"a dimension is between 0 and 2**63 - 1, found {dim}", attribute="shape")


def _full(shape: tuple[Dim, ...], value: bool | int | float, dtype: DType) -> TensorType:
    _check_shape(shape)
    _check_value(value, dtype)
    return TensorType(dtype, shape)


def _check_value(value: bool | int | float, dtype: DType) -> None:
    if isinstance(value, bool) != (dtype.kind == "bool"):
        found = "true" if value is True else "false" if value is False else value
        expected = "true or false" if dtype.kind == "bool" else "a number"
        raise TypeProblem(f"the value of a tensor of {dtype} is {expected}, found {found}", attribute="value")
    if not dtype.is_integer:
        return
    if isinstance(value, float):
        hint = f"write value={int(value)}" if math.isfinite(value) and value.is_integer() else None
        raise TypeProblem(f"the value of a tensor of {dtype} is an integer, found {value}", attribute="value", hint=hint)
    if not dtype.min_value <= value <= dtype.max_value:
        raise TypeProblem(f"{value} does not fit in {dtype} ({dtype.min_value} to {dtype.max_value})", attribute="value")


def _iota(shape: tuple[Dim, ...], axis: int, dtype: DType) -> TensorType:
    _check_shape(shape)
    normalize_axis(axis, len(shape))
    if dtype.kind == "bool":
        raise TypeProblem("counting needs numbers, not bool", attribute="dtype")
    return TensorType(dtype, shape)


def _dim(x: TensorType, axis: int) -> TensorType:
    normalize_axis(axis, x.rank)
    return TensorType(i64, ())


def _concrete(name: str, type_: TensorType) -> tuple[int, ...]:
    """The shape as integers.  Raises ExecutionError for one that its symbols make negative."""
    shape = tuple(int(d) for d in type_.shape)  # type: ignore[arg-type]
    if any(d < 0 for d in shape):
        raise ExecutionError(f"{name}: a dimension of {type_} is negative")
    return shape


@op(infer=_constant, exact_bits=True)
def constant(value: Dense) -> Tensor:
    """The tensor written in place.

    Nested lists give the shape; a single number fills the declared type's shape, and is a rank-0 tensor without one.  The
    declared type gives the element type; without it integers make i64, true and false make bool, everything else f32.
    Decimal numbers are rounded once; ``inf``, ``nan`` and ``bits(0x7fc00001)`` (the stored bits of one element) are
    written as such.  Large tensors belong into a file, see ``weight``.

    Example::

        graph @example() -> f32[2, 2] {
          %c = constant([[1.0, -inf], [-0.0, bits(0x7fc00001)]]) : f32[2, 2]
          return %c
        }

    Example, one number for all elements::

        graph @example() -> i32[3, 4] {
          %c = constant(7) : i32[3, 4]
          return %c
        }
    """
    return value.array


@op(infer=_full, exact=True, needs_output_type=True)
def full(*, shape: Shape, value: bool | int | float, dtype: DType, output_type: TensorType) -> Tensor:
    """A tensor whose elements are all ``value``.

    ``shape`` may be symbolic and may have dimensions of 0.  The value of a float type is rounded to it once, to nearest,
    ties to even (so 70000 in f16 is inf); that of an integer type is an integer that fits; that of bool is true or false.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %c = full(shape=[B, 4], value=0.5, dtype=f32)
          %y = add(%x, %c)
          return %y
        }

    Example, integers::

        graph @example() -> i64[2, 3] {
          %c = full(shape=[2, 3], value=-1, dtype=i64)
          return %c
        }
    """
    shape_ = _concrete("full", output_type)
    if dtype.is_float:
        return np.full(shape_, round_to(np.array(float(value), np.float64), dtype))
    return np.full(shape_, value, dtype.numpy)


@op(infer=_iota, exact=True, needs_output_type=True)
def iota(*, shape: Shape, axis: int = -1, dtype: DType = i64, output_type: TensorType) -> Tensor:
    """A tensor whose elements are their own index along ``axis``: 0, 1, 2, ...

    ``shape`` may be symbolic and may have dimensions of 0, but not rank 0.  A negative axis counts from the last.
    Integers that don't fit wrap around, floats are rounded to nearest, ties to even.

    Example::

        graph @example(%x: i64[B, S]) -> i64[B, S] {
          %p = iota(shape=[S])
          %y = add(%x, %p)
          return %y
        }

    Example, along the first axis::

        graph @example() -> f32[3, 2] {
          %y = iota(shape=[3, 2], axis=0, dtype=f32)
          return %y
        }
    """
    shape_ = _concrete("iota", output_type)
    axis = normalize_axis(axis, len(shape_))
    count = np.arange(shape_[axis], dtype=np.int64)
    numbers = round_to(count.astype(np.float64), dtype) if dtype.is_float else count.astype(dtype.numpy)
    column = [1] * len(shape_)
    column[axis] = -1
    return np.array(np.broadcast_to(numbers.reshape(column), shape_))


@op(infer=_weight, exact_bits=True)
def weight(file: FileRef, name: str) -> Tensor:
    """The tensor called ``name`` in a file of weights that the program declares.

    The declared result type says what is expected; the file must agree with it.  The data is read when the program is
    prepared to run, never written into its text.

    Example::

        file @w = "model.safetensors"

        graph @example(%x: f32[B, 64]) -> f32[B, 64] {
          %b = weight(@w, "layer.bias") : f32[64]
          %y = add(%x, %b)
          return %y
        }
    """
    raise ExecutionError(f'weight: "{name}" of file @{file.name} has not been read')


@op(infer=_initial, exact_bits=True)
def initial(source: GraphRef, *, result: int) -> Tensor:
    """A result of a graph that runs once, when the program is loaded.

    ``source`` is a graph of the module that has no parameters and no effects, and does not depend on itself; ``result``
    is the number of one of its results, counted from 0.  What depends on weights and constants alone is computed there,
    once, however often the program runs: weights in another layout, padded, scaled.  The pass ``hoist-to-init`` moves
    such operations.

    Example::

        file @w = "model.safetensors"

        graph @prepared() -> (turned: f32[8, 4]) {
          %a = weight(@w, "linear") : f32[4, 8]
          %turned = transpose(%a, perm=[1, 0]) : f32[8, 4]
          return %turned
        }

        graph @example(%x: f32[B, 8]) -> f32[B, 4] {
          %t = initial(@prepared, result=0) : f32[8, 4]
          %y = matmul(%x, %t) : f32[B, 4]
          return %y
        }
    """
    raise ExecutionError(f"initial: @{source.name} has not been run")


@op(infer=_dim, exact_bits=True)
def dim(x: Stored, *, axis: int) -> Tensor:
    """The size of x along ``axis`` when the program runs, as ``i64[]``.

    A negative axis counts from the last.

    Example::

        graph @example(%x: f32[B, S, 4]) -> i64[] {
          %n = dim(%x, axis=1)
          return %n
        }
    """
    dtype = dtype_from_numpy(x.dtype)
    shape = tensor_shape(dtype, x.shape) if dtype is not None else x.shape
    return np.array(shape[axis], np.int64)
