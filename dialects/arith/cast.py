"""Changing the element type of scalars and vectors, by value or by bits.

The program says the type of the result: ``arith.extf(%x) : f32``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from dialects._numerics import saturate, to_float
from dialects._scalars import Operand, require_shape
from ir.opdef import BitsScalar, FloatScalar, IntegerScalar, OperandKind, Scalar, SignedScalar, TypeProblem, op
from ir.types import DType, ScalarType, Type, VectorType, index

if TYPE_CHECKING:
    UnsignedOrBool = Any
else:
    UnsignedOrBool = Annotated[Any, OperandKind("a scalar or vector of unsigned integers or bool", ("uint", "bool"), (ScalarType, VectorType))]


def _require(condition: bool, x: Operand, result: Operand, expected: str) -> Operand:
    if not condition:
        raise TypeProblem(f"{x} can't become {result} here: expected {expected}", operand="x")
    return result


def _width(dtype: DType) -> int:
    return 1 if dtype.kind == "bool" else dtype.bits


def _extf(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    return _require(result.dtype.is_float and result.dtype.bits > x.dtype.bits, x, result, "a wider float type")


def _truncf(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    return _require(result.dtype.is_float and result.dtype.bits < x.dtype.bits, x, result, "a narrower float type")


def _to_float(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    return _require(result.dtype.is_float, x, result, "a float type")


def _fptosi(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    return _require(result.dtype.kind in ("int", "index"), x, result, "a type of signed integers")


def _fptoui(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    return _require(result.dtype.kind == "uint", x, result, "a type of unsigned integers")


def _extend(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    wider = _width(result.dtype) > _width(x.dtype) and index not in (x.dtype, result.dtype)
    kinds = ("int",) if x.dtype.kind == "int" else ("int", "uint")
    return _require(wider and result.dtype.kind in kinds, x, result, "a wider integer type that has its values")


def _trunci(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    narrower = result.dtype.bits < x.dtype.bits and index not in (x.dtype, result.dtype)
    return _require(narrower and result.dtype.kind in ("int", "uint"), x, result, "a narrower integer type")


def _index_cast(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    one = (x.dtype == index) != (result.dtype == index)
    return _require(one and result.dtype.is_integer, x, result, "index on one side and an integer on the other")


def _bitcast(x: Operand, result_type: Type) -> Operand:
    result = require_shape(x, result_type)
    if "bool" in (x.dtype.kind, result.dtype.kind):
        raise TypeProblem("bool has no bits to reinterpret", operand="x", hint="write extui, or cmpi with 0")
    return _require(x.dtype.bits == result.dtype.bits, x, result, "a type of the same width")


@op(infer=_extf, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def extf(x: FloatScalar, *, output_type: Operand) -> Any:
    """x of a float type in a wider one; nothing is rounded.

    From f16 or bf16 to f32 or f64, from f32 to f64.  NaN stays NaN (its payload is not specified), denormals are kept.

    Example::

        graph @example(%A: memref<f16[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.extf(%a) : f32
            yield %r
          }
          return
        }
    """
    return to_float(x, output_type.dtype)


@op(infer=_truncf, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def truncf(x: FloatScalar, *, output_type: Operand) -> Any:
    """x of a float type in a narrower one, rounded once to nearest, ties to even.

    What is too large becomes inf (f16: from 65520 on), denormals are kept, NaN stays NaN (its payload is not specified).

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<bf16[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.truncf(%a) : bf16
            yield %r
          }
          return
        }
    """
    return to_float(x, output_type.dtype)


@op(infer=_to_float, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def sitofp(x: SignedScalar, *, output_type: Operand) -> Any:
    """The float nearest to a signed integer, ties to even.

    One rounding, from 64 bits too; what is too large for f16 becomes inf.

    Example::

        graph @example(%A: memref<i32[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.sitofp(%a) : f32
            yield %r
          }
          return
        }
    """
    return to_float(np.asarray(x), output_type.dtype)


@op(infer=_to_float, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def uitofp(x: UnsignedOrBool, *, output_type: Operand) -> Any:
    """The float of the value of an unsigned integer or bool (0 or 1).

    Example::

        graph @example(%A: memref<u8[S]>, %C: memref<f32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.uitofp(%a) : f32
            yield %r
          }
          return
        }
    """
    return to_float(np.asarray(x).astype(np.uint8), output_type.dtype)


@op(infer=_fptosi, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def fptosi(x: FloatScalar, *, output_type: Operand) -> Any:
    """The signed integer that a float is without its fraction.

    Rounds toward zero and saturates: what is too large gives the largest integer, what is too small the smallest, and NaN
    gives 0.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<i8[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.fptosi(%a) : i8
            yield %r
          }
          return
        }
    """
    return saturate(np.asarray(x), output_type.dtype)


@op(infer=_fptoui, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def fptoui(x: FloatScalar, *, output_type: Operand) -> Any:
    """The unsigned integer that a float is without its fraction.

    Rounds toward zero and saturates: what is too large gives the largest integer, what is below 0 gives 0, as NaN does.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<u8[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.fptoui(%a) : u8
            yield %r
          }
          return
        }
    """
    return saturate(np.asarray(x), output_type.dtype)


@op(infer=_extend, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def extsi(x: SignedScalar, *, output_type: Operand) -> Any:
    """A signed integer in a wider type; its value stays.

    For ``index`` write ``index_cast``.

    Example::

        graph @example(%A: memref<i8[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.extsi(%a) : i32
            yield %r
          }
          return
        }
    """
    return np.asarray(x).astype(output_type.dtype.numpy)


@op(infer=_extend, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def extui(x: UnsignedOrBool, *, output_type: Operand) -> Any:
    """An unsigned integer or bool (0 or 1) in a wider or signed type; its value stays.

    bool also extends to u8 and i8.  For ``index`` write ``index_cast``.

    Example::

        graph @example(%A: memref<bool[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.extui(%a) : i32
            yield %r
          }
          return
        }
    """
    return np.asarray(x).astype(output_type.dtype.numpy)


@op(infer=_trunci, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def trunci(x: IntegerScalar, *, output_type: Operand) -> Any:
    """The low bits of an integer, as a narrower type: it wraps around.

    Whether an integer is not 0 is asked by ``cmpi``.  For ``index`` write ``index_cast``.

    Example::

        graph @example(%A: memref<i32[S]>, %C: memref<u8[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.trunci(%a) : u8
            yield %r
          }
          return
        }
    """
    return np.asarray(x).astype(output_type.dtype.numpy)


@op(infer=_index_cast, dialect="arith", elementwise=True, exact=True, declared_result=True, needs_output_type=True)
def index_cast(x: BitsScalar, *, output_type: Operand) -> Any:
    """An index as another integer type, or the reverse.

    An index has 64 bits: narrower signed integers keep their value, and so do u8 and bool (0 or 1); an index in a
    narrower type wraps around.

    Example::

        graph @example(%A: memref<i32[S]>, %C: memref<i32[S]>) {
          scf.for(%i = 0 to S) {
            %r = arith.index_cast(%i) : i32
            memref.store(%r, %C[%i])
            yield
          }
          return
        }

    Example, to an index::

        graph @example(%A: memref<f32[4]>, %J: memref<i32[S]>, %C: memref<f32[S]>) {
          scf.for(%i = 0 to S) {
            %j = memref.load(%J[%i]) : i32
            %k = arith.index_cast(%j) : index
            %r = memref.load(%A[%k]) : f32
            memref.store(%r, %C[%i])
            yield
          }
          return
        }
    """
    return np.asarray(x).astype(output_type.dtype.numpy)


@op(infer=_bitcast, dialect="arith", elementwise=True, exact_bits=True, declared_result=True, needs_output_type=True)
def bitcast(x: Scalar, *, output_type: Operand) -> Any:
    """The bits of x taken as another element type of the same width.

    f32 and i32, f64 and i64, f16, bf16 and i16, i8 and u8.  Nothing is rounded: the payload of a NaN survives.

    Example::

        graph @example(%A: memref<f32[S]>, %C: memref<i32[S]>) {
          linalg.generic(i < S, %a = %A[i], %c = %C[i]) {
            %r = arith.bitcast(%a) : i32
            yield %r
          }
          return
        }
    """
    array = np.array(x, order="C")
    return array.reshape(-1).view(output_type.dtype.numpy).reshape(array.shape)
