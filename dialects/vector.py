"""Vectors: register blocks of one or more dimensions, read from buffers and written to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dialects._access import block, block_shape, check_access, check_runs, write
from dialects._scalars import Operand, broadcast
from dialects.arith.dot import four_bytes
from dialects.graph._shapes import normalize_axes
from dialects.graph._special import ieee_maximum, ieee_minimum
from ir.core import Operation
from ir.evaluate import round_to
from ir.layout import AccessArg, OperandArg, layout_of
from ir.opdef import AttributeSpec, OperandKind, OperandSpec, RegionOpDef, Scalar, TypeProblem, Vector, op, register
from ir.types import UNKNOWN, DType, ScalarType, Type, UnknownType, VectorType, i32, index

# -- memory ------------------------------------------------------------------------------------------------------------

_VALID = OperandSpec("valid", OperandKind("an index", ("index",), (ScalarType,)), optional=True)
_PAD = AttributeSpec("pad", bool | int | float, 0, required=False, positional=False)
_NONTEMPORAL = AttributeSpec("nontemporal", bool, False, required=False, positional=False)


def _valid_count(op: Operation, operands: Sequence[Any]) -> int | None:
    position = op.definition.operand_position(op, "valid")
    return None if position is None else int(operands[position])


def _check_valid(op: Operation, operand_types: Sequence[Type], access: AccessArg) -> None:
    position = op.definition.operand_position(op, "valid")
    if position is None:
        return
    type_ = operand_types[position]
    if not isinstance(type_, UnknownType) and type_ != ScalarType(index):
        raise TypeProblem(f"expected an index as the number of valid elements, found {type_}", operand=position)
    if not access.indices:
        raise TypeProblem("a buffer without dimensions has no last axis", operand=position)


def _check_pad(pad: Any, dtype: DType) -> None:
    if dtype.kind == "bool":
        fits = isinstance(pad, bool) or pad == 0
    elif dtype.is_float:
        fits = not isinstance(pad, bool)
    else:
        fits = isinstance(pad, int) and not isinstance(pad, bool) and dtype.min_value <= pad <= dtype.max_value
    if not fits:
        raise TypeProblem(f"pad={pad} is no value of {dtype}", attribute="pad")


def _runs_only(access: AccessArg) -> tuple[int, ...]:
    """The sizes of the runs of an access; single indices are no dimensions."""
    return tuple(i.size for i in access.indices if i.size is not None)


class Load(RegionOpDef):
    """A block of a buffer as a vector.

    ``vector.load(%A[%i:+8, %k])`` reads 8 consecutive elements along the first dimension at one index of the second;
    the result has one dimension per index, of size 1 where no run (``:+``) is written.  A declared result type may leave
    out those without a run: ``vector.load(%A[%i, 0:+8]) : vector<f32[8]>``.  Indices are those of ``memref.load``.

    With ``valid=%n`` only the first n elements along the last dimension are read (none for n <= 0, all from the size of
    the run on), and the others are ``pad``, by default 0: remainders of loops need no code of their own.  What is not
    read may be outside the buffer.

    Raises an error for elements outside the buffer.

    Example::

        graph @example(%A: memref<f32[16, B]>, %C: memref<f32[8, B]>) {
          scf.for(%k = 0 to B) {
            %t = vector.load(%A[4:+8, %k]) : vector<f32[8, 1]>
            vector.store(%t, %C[0:+8, %k])
            yield
          }
          return
        }

    Example, a remainder::

        graph @example(%A: memref<f32[N]>, %C: memref<f32[8]>) {
          %n = memref.dim(%A, axis=0) : index
          %t = vector.load(%A[0:+8], valid=%n, pad=-inf) : vector<f32[8]>
          vector.store(%t, %C[0:+8])
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("load", "vector", [_PAD], [_VALID], result_count=1, pure=False, exact_bits=True, traps=True)

    def verify(self, op: Operation) -> None:
        """One access and no region."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], AccessArg) or op.regions:
            raise TypeProblem("expected one access: vector.load(%A[%i:+8, 0])")
        check_runs(layout[0])
        if "pad" in op.attributes and self.operand_position(op, "valid") is None:
            raise TypeProblem("pad is for elements that are not valid: write valid=%n too", attribute="pad")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        buffer = check_access(op, access, operand_types)
        _check_valid(op, operand_types, access)
        if buffer is None:
            return (UNKNOWN,)
        _check_pad(op.attribute("pad"), buffer.dtype)
        short = VectorType(buffer.dtype, _runs_only(access))
        return (short if short.shape and op.results[0].type == short else VectorType(buffer.dtype, block_shape(access)),)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        buffer, valid = operands[access.position], _valid_count(op, operands)
        place = block(access, operands, environment.names, valid)
        shape = interpreter.concrete_type(op.results[0], environment).shape
        if valid is None:
            return (np.array(buffer[place]).reshape(shape),)
        pad: Any = op.attribute("pad")
        dtype = environment.dtypes[op.operands[access.position]]
        filler = round_to(np.array(float(pad)), dtype) if dtype.is_float else np.array(pad, dtype.numpy)
        result = np.full(block_shape(access), filler, buffer.dtype)
        if place is not None:
            result[..., : place[-1].stop - place[-1].start] = buffer[place]
        return (result.reshape(shape),)


class Store(RegionOpDef):
    """Writes a vector to a block of a buffer.

    ``vector.store(%v, %C[%i:+8, %j])``: the vector has one dimension per index, of the size of the run (``:+``) or 1; those
    without a run may be left out.

    With ``valid=%n`` only the first n elements along the last dimension are written (none for n <= 0, all from the size
    of the run on); the others may be outside the buffer.

    With ``nontemporal=true`` it says that the elements will not be read soon: they may go past the caches to memory.

    Raises an error for elements outside the buffer, and for a buffer that is read-only (``memref.from_tensor``).

    Example::

        graph @example(%A: memref<f32[B, 8]>, %C: memref<f32[B, 8]>) {
          scf.for(%i = 0 to B) {
            %a = vector.load(%A[%i, 0:+8]) : vector<f32[1, 8]>
            %r = math.exp(%a) : vector<f32[1, 8]>
            vector.store(%r, %C[%i, 0:+8])
            yield
          }
          return
        }

    Example, a remainder::

        graph @example(%A: memref<i32[N]>, %C: memref<i32[N]>) {
          %n = memref.dim(%A, axis=0) : index
          scf.for(%i = 0 to N step 8) {
            %left = arith.subi(%n, %i) : index
            %a = vector.load(%A[%i:+8], valid=%left) : vector<i32[8]>
            vector.store(%a, %C[%i:+8], valid=%left)
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("store", "vector", [_NONTEMPORAL], [_VALID], result_count=0, pure=False, exact_bits=True, traps=True)

    def verify(self, op: Operation) -> None:
        """A vector, an access and no region."""
        layout = layout_of(op)
        if len(layout) != 2 or not isinstance(layout[0], OperandArg) or not isinstance(layout[1], AccessArg) or op.regions:
            raise TypeProblem("expected a vector and an access: vector.store(%v, %A[%i:+8, 0])")
        check_runs(layout[1])

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        value, access = layout_of(op)
        assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
        buffer, type_ = check_access(op, access, operand_types), operand_types[value.position]
        _check_valid(op, operand_types, access)
        if buffer is not None and not isinstance(type_, UnknownType):
            expected = VectorType(buffer.dtype, block_shape(access))
            if type_ != expected and type_ != VectorType(buffer.dtype, _runs_only(access)):
                raise TypeProblem(f"expected {expected} for this block of {buffer}, found {type_}", operand=value.position)
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        value, access = layout_of(op)
        assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
        buffer, vector = operands[access.position], operands[value.position].reshape(block_shape(access))
        place = block(access, operands, environment.names, _valid_count(op, operands))
        if place is not None:
            write(buffer, place, vector[..., : place[-1].stop - place[-1].start] if place else vector)
        return ()


register(Load())
register(Store())


# -- shapes ------------------------------------------------------------------------------------------------------------


def _declared_vector(type_: Type, dtype: DType | None = None) -> VectorType:
    if not isinstance(type_, VectorType) or (dtype is not None and type_.dtype != dtype):
        raise TypeProblem(f"the result is a vector{f' of {dtype}' if dtype else ''}, so it can't be declared {type_}")
    return type_


def _broadcast(x: Operand, result_type: Type) -> VectorType:
    result = _declared_vector(result_type, x.dtype)
    if broadcast(x.dtype, ("the result", result), ("x", x)) != result:
        raise TypeProblem(f"{x} can't be broadcast to {result}", operand="x")
    return result


@op(infer=_broadcast, dialect="vector", exact_bits=True, declared_result=True, needs_output_type=True)
def broadcast_(x: Scalar, *, output_type: VectorType) -> Any:
    """A scalar or vector as a vector of the declared shape, by numpy's rule.

    Example::

        graph @example(%A: memref<f32[B]>, %C: memref<f32[B, 8]>) {
          scf.for(%i = 0 to B) {
            %a = memref.load(%A[%i]) : f32
            %v = vector.broadcast(%a) : vector<f32[1, 8]>
            vector.store(%v, %C[%i, 0:+8])
            yield
          }
          return
        }
    """
    return np.array(np.broadcast_to(x, output_type.shape))


def _reshape(v: VectorType, result_type: Type) -> VectorType:
    result = _declared_vector(result_type, v.dtype)
    if int(np.prod(v.shape)) != int(np.prod(result.shape)):
        raise TypeProblem(f"{v} and {result} have different numbers of elements", operand="v")
    return result


@op(infer=_reshape, dialect="vector", exact_bits=True, declared_result=True, needs_output_type=True)
def reshape(v: Vector, *, output_type: VectorType) -> Any:
    """The same elements, in row-major order, under the declared shape.

    Example::

        graph @example(%A: memref<f32[2, 4]>, %C: memref<f32[8]>) {
          %a = vector.load(%A[0:+2, 0:+4]) : vector<f32[2, 4]>
          %v = vector.reshape(%a) : vector<f32[8]>
          vector.store(%v, %C[0:+8])
          return
        }
    """
    return np.reshape(v, output_type.shape)


def _transpose(v: VectorType, perm: tuple[int, ...]) -> VectorType:
    if sorted(perm) != list(range(len(v.shape))):
        raise TypeProblem(f"perm={list(perm)} is no order of the {len(v.shape)} axes of {v}", attribute="perm")
    return VectorType(v.dtype, tuple(v.shape[p] for p in perm))


@op(infer=_transpose, dialect="vector", exact_bits=True)
def transpose(v: Vector, *, perm: tuple[int, ...]) -> Any:
    """The axes in another order: dimension i of the result is dimension ``perm[i]`` of the operand.

    Example::

        graph @example(%A: memref<f32[2, 4]>, %C: memref<f32[4, 2]>) {
          %a = vector.load(%A[0:+2, 0:+4]) : vector<f32[2, 4]>
          %v = vector.transpose(%a, perm=[1, 0]) : vector<f32[4, 2]>
          vector.store(%v, %C[0:+4, 0:+2])
          return
        }
    """
    return np.transpose(v, perm)


# -- elements ----------------------------------------------------------------------------------------------------------


def _part(v: VectorType, position: tuple[int, ...]) -> Operand:
    """The type of what stands at a position."""
    if not position or len(position) > len(v.shape):
        raise TypeProblem(f"a position in {v} has 1 to {len(v.shape)} numbers, found {len(position)}", attribute="position")
    for axis, (at, size) in enumerate(zip(position, v.shape, strict=False)):
        if not 0 <= at < size:
            raise TypeProblem(f"position {at} is outside dimension {axis} of {v}", attribute="position")
    rest = v.shape[len(position) :]
    return VectorType(v.dtype, rest) if rest else ScalarType(v.dtype)


def _extract(v: VectorType, position: tuple[int, ...]) -> Operand:
    return _part(v, position)


def _insert(x: Operand, v: VectorType, position: tuple[int, ...]) -> VectorType:
    expected = _part(v, position)
    if x != expected:
        raise TypeProblem(f"expected {expected} at this position of {v}, found {x}", operand="x")
    return v


@op(infer=_extract, dialect="vector", exact_bits=True)
def extract(v: Vector, *, position: tuple[int, ...]) -> Any:
    """What stands at a position that is known when compiling: a scalar, or a vector of the dimensions left.

    Example::

        graph @example(%A: memref<f32[2, 4]>, %C: memref<f32[4]>, %D: memref<f32[]>) {
          %a = vector.load(%A[0:+2, 0:+4]) : vector<f32[2, 4]>
          %row = vector.extract(%a, position=[1]) : vector<f32[4]>
          vector.store(%row, %C[0:+4])
          %x = vector.extract(%a, position=[0, 3]) : f32
          memref.store(%x, %D[])
          return
        }
    """
    return np.array(v[tuple(position)])


@op(infer=_insert, dialect="vector", exact_bits=True)
def insert(x: Scalar, v: Vector, *, position: tuple[int, ...]) -> Any:
    """The vector v with x at a position that is known when compiling.

    x is a scalar, or a vector of the dimensions behind the position.

    Example::

        graph @example(%A: memref<f32[4]>, %C: memref<f32[2, 4]>) {
          %zero = arith.constant(0.0) : vector<f32[2, 4]>
          %a = vector.load(%A[0:+4]) : vector<f32[4]>
          %v = vector.insert(%a, %zero, position=[1]) : vector<f32[2, 4]>
          vector.store(%v, %C[0:+2, 0:+4])
          return
        }
    """
    result = np.array(v)
    result[tuple(position)] = x
    return result


def _shuffle(x: VectorType, y: VectorType, mask: tuple[int, ...]) -> VectorType:
    if len(x.shape) != 1:
        raise TypeProblem(f"expected a vector of one dimension, found {x}", operand="x")
    if y != x:
        raise TypeProblem(f"expected {x} like x, found {y}", operand="y")
    if not mask or not all(0 <= m < 2 * x.shape[0] for m in mask):
        raise TypeProblem(f"mask has numbers from 0 to {2 * x.shape[0] - 1}, one for each element of the result", attribute="mask")
    return VectorType(x.dtype, (len(mask),))


@op(infer=_shuffle, dialect="vector", exact_bits=True)
def shuffle(x: Vector, y: Vector, *, mask: tuple[int, ...]) -> Any:
    """Elements of two vectors of one dimension, in an order that is known when compiling.

    Element i of the result is element ``mask[i]`` of x followed by y.  So a part of a vector, two vectors as one, and
    every other order are one operation.

    Example::

        graph @example(%A: memref<f32[8]>, %C: memref<f32[4]>) {
          %a = vector.load(%A[0:+8]) : vector<f32[8]>
          %low = vector.shuffle(%a, %a, mask=[0, 1, 2, 3]) : vector<f32[4]>
          %high = vector.shuffle(%a, %a, mask=[4, 5, 6, 7]) : vector<f32[4]>
          %r = arith.addf(%low, %high) : vector<f32[4]>
          vector.store(%r, %C[0:+4])
          return
        }
    """
    return np.concatenate([x, y])[list(mask)]


def _step(result_type: Type) -> VectorType:
    result = _declared_vector(result_type)
    if len(result.shape) != 1 or not result.dtype.is_integer or result.shape[0] - 1 > result.dtype.max_value:
        raise TypeProblem(f"the result is a vector of one dimension of integers that can count it, so it can't be declared {result}")
    return result


@op(infer=_step, dialect="vector", exact_bits=True, declared_result=True, needs_output_type=True)
def step(*, output_type: VectorType) -> Any:
    """The numbers 0, 1, 2, ... as a vector of the declared type.

    Example::

        graph @example(%C: memref<i32[8]>) {
          %v = vector.step() : vector<i32[8]>
          vector.store(%v, %C[0:+8])
          return
        }
    """
    return np.arange(output_type.shape[0]).astype(output_type.dtype.numpy)


# -- products ----------------------------------------------------------------------------------------------------------


def _matrix4(a: VectorType, b: VectorType) -> VectorType:
    for name, found in (("a", a), ("b", b)):
        if found.dtype != i32 or len(found.shape) != 2:
            raise TypeProblem(f"expected a matrix of i32, four bytes each, found {found}", operand=name)
    if a.shape[1] != b.shape[0]:
        raise TypeProblem(f"expected {a.shape[1]} rows, as many as a has columns, found {b}", operand="b")
    return VectorType(i32, (a.shape[0], b.shape[1]))


@op(infer=_matrix4, dialect="vector", exact=True)
def dot4(a: Vector, b: Vector) -> Any:
    """The product of two matrices of words with four bytes each: those of a with a sign, those of b without one.

    ``a`` is ``vector<i32[M, K]>``, ``b`` is ``vector<i32[K, N]>``, the result ``vector<i32[M, N]>``: an element is the sum of
    ``arith.dot4`` over the K words of a row and of a column, exact, and wraps around at 32 bits.  Matrices that are loaded
    from buffers, multiplied and stored are tiles of processors that have such registers (:mod:`dialects._tiles`).

    Example::

        graph @example(%A: memref<i32[16, 8]>, %B: memref<i32[8, 16]>, %C: memref<i32[16, 16]>) {
          %a = vector.load(%A[0:+16, 0:+8]) : vector<i32[16, 8]>
          %b = vector.load(%B[0:+8, 0:+16]) : vector<i32[8, 16]>
          %c = vector.dot4(%a, %b) : vector<i32[16, 16]>
          vector.store(%c, %C[0:+16, 0:+16])
          return
        }
    """
    rows, columns = four_bytes(a, np.int8), four_bytes(b, np.uint8)
    return np.einsum("mkn,kcn->mc", rows, columns, dtype=np.int64).astype(np.int32)  # wraps around


# -- reductions --------------------------------------------------------------------------------------------------------


def _multi_reduction(v: VectorType, kind: str, axes: tuple[int, ...]) -> Operand:
    if v.dtype.kind == "bool":
        raise TypeProblem(f"expected a vector of numbers, found {v}", operand="v")
    found = normalize_axes(axes, len(v.shape))
    if kind in ("max", "min") and any(v.shape[a] == 0 for a in found):
        raise TypeProblem(f"{v} has no elements along these axes, so there is none to choose", operand="v")
    rest = tuple(d for i, d in enumerate(v.shape) if i not in found)
    return VectorType(v.dtype, rest) if rest else ScalarType(v.dtype)


@op(infer=_multi_reduction, dialect="vector", exact=True)
def multi_reduction(v: Vector, *, kind: Literal["add", "mul", "max", "min"], axes: tuple[int, ...]) -> Any:
    """The sum, product, maximum or minimum along some axes; a scalar when none is left.

    ``axes`` may be negative (counted from the end).  Integers wrap around.  Floats are added and multiplied in float64
    and rounded once, so that their order does not matter; code that rounds at every step says so by operations on
    vectors.  ``"max"`` and ``"min"`` are IEEE 754-2019 ``maximum`` and ``minimum``: NaN wins, -0 is smaller than +0.
    A sum starts from +0.

    Example::

        graph @example(%A: memref<f32[B, 8]>, %C: memref<f32[B]>) {
          scf.for(%i = 0 to B) {
            %a = vector.load(%A[%i, 0:+8]) : vector<f32[1, 8]>
            %s = vector.multi_reduction(%a, kind="add", axes=[1]) : vector<f32[1]>
            vector.store(%s, %C[%i:+1])
            yield
          }
          return
        }

    Example, everything::

        graph @example(%A: memref<i32[2, 4]>, %C: memref<i32[]>) {
          %a = vector.load(%A[0:+2, 0:+4]) : vector<i32[2, 4]>
          %s = vector.multi_reduction(%a, kind="max", axes=[0, 1]) : i32
          memref.store(%s, %C[])
          return
        }
    """
    found = normalize_axes(axes, v.ndim)
    if kind == "add":
        return np.add.reduce(v, axis=found, dtype=v.dtype, initial=0)
    if kind == "mul":
        return np.multiply.reduce(v, axis=found, dtype=v.dtype, initial=1)
    choose = ieee_maximum if kind == "max" else ieee_minimum
    result = np.moveaxis(v, found, range(len(found)))
    for _ in found:
        rows = list(result)
        result = rows[0]
        for row in rows[1:]:
            result = choose(result, row)
    return np.asarray(result)
