"""Buffers: row-major, contiguous memory that operations read and write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dialects._access import check_access, check_single, element, write
from ir.core import Operation, Parameter, Value
from ir.dims import Dim, UnknownDim, product
from ir.layout import AccessArg, OperandArg, layout_of
from ir.opdef import AttributeSpec, Buffer, ExecutionError, RegionOpDef, Stored, Tensor, TypeProblem, op, register
from ir.types import UNKNOWN, MemRefType, ScalarType, TensorType, Type, UnknownType, boolean, buffer_of, i8, index, u8

MOST_ALIGNED = 4096
"""Bytes of the largest alignment: a page."""
_LOCALITY = AttributeSpec("locality", int, 3, required=False, positional=False)
_WRITE = AttributeSpec("write", bool, False, required=False, positional=False)

# -- making and viewing ------------------------------------------------------------------------------------------------


class OfInout(RegionOpDef):
    """The memory of an ``inout`` parameter as a buffer that can be written.

    What it holds at the end is the parameter's last version, which the caller's array holds afterwards.  A tensor
    operation that reads the parameter itself behind a store sees what was stored.

    Example::

        graph @example(%cache: f32[T, 4] inout, %x: f32[4]) -> f32[4] {
          %C = memref.of_inout(%cache) : memref<f32[T, 4]>
          %A = memref.from_tensor(%x) : memref<f32[4]>
          linalg.generic(i < T, j < 4, %a = %A[j], %c = %C[i, j]) {
            yield %a
          }
          return %x
        }
    """

    def __init__(self) -> None:
        super().__init__("of_inout", "memref", result_count=1, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """One plain operand, a parameter that is inout."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], OperandArg) or op.regions:
            raise TypeProblem("expected one operand: memref.of_inout(%cache)")
        value = op.operands[0]
        if not isinstance(value, Parameter) or not value.inout:
            raise TypeProblem(f"%{value.name} is no parameter that is inout", operand=0)

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        type_ = operand_types[0]
        if isinstance(type_, TensorType):
            return (MemRefType(type_.dtype, type_.shape),)
        if isinstance(type_, UnknownType):
            return (UNKNOWN,)
        raise TypeProblem(f"expected a tensor, found {type_}", operand=0)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        return (operands[0],)


def _from_tensor(x: TensorType) -> MemRefType:
    return buffer_of(x)


def _to_tensor(m: MemRefType) -> TensorType:
    return TensorType(m.dtype, m.shape)


@op(infer=_from_tensor, dialect="memref", exact_bits=True)
def from_tensor(x: Stored) -> Any:
    """The elements of a tensor as a buffer that can be read only.

    Nothing is copied; a store into it is refused when the program runs.  Blocks (``q4_0``, ``q4_1``, ``q8_0``) come as their
    bytes: ``memref<u8[N, blocks, bytes]>``.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %A = memref.from_tensor(%x) : memref<f32[B, 4]>
          %C = memref.alloc() : memref<f32[B, 4]>
          linalg.generic(i < B, j < 4, %a = %A[i, j], %c = %C[i, j]) {
            %r = arith.negf(%a) : f32
            yield %r
          }
          %y = memref.to_tensor(%C) : f32[B, 4]
          return %y
        }
    """
    view = np.asarray(x, order="C").view()  # an array from outside may have gaps
    if view.dtype.names is not None:
        view = view.view(np.uint8).reshape(*view.shape, view.dtype.itemsize)
    view.setflags(write=False)
    return view


@op(infer=_to_tensor, dialect="memref", pure=False, exact_bits=True)
def to_tensor(m: Buffer) -> Tensor:
    """The elements that a buffer holds at this moment, as a tensor.

    They are copied: later stores into the buffer don't change the tensor.

    Example::

        graph @example(%A: memref<f32[B, 4]>) -> f32[B, 4] {
          %x = memref.to_tensor(%A) : f32[B, 4]
          %y = exp(%x) : f32[B, 4]
          return %y
        }
    """
    return np.array(m, order="C")


_GARBAGE = bytes((0xFF, 0x7F))  # makes NaN of every float type, and large numbers of integers


class Alloc(RegionOpDef):
    """New memory for a buffer of the declared type.

    What it holds before something is stored is not specified.  The reference interpreter fills it with NaN in every float
    type and large numbers in integer types, so that a read of what was never written shows.

    Example::

        graph @example(%A: memref<f32[B, 4]>, %C: memref<f32[4, B]>) {
          %T = memref.alloc() : memref<f32[4, B]>
          linalg.generic(i < B, j < 4, %a = %A[i, j], %t = %T[j, i]) {
            yield %a
          }
          memref.copy(%T, %C)
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("alloc", "memref", result_count=1, pure=False, exact_bits=True, declared_result=True)

    def verify(self, op: Operation) -> None:
        """No operand, and a declared buffer of known shape."""
        if layout_of(op) or op.regions:
            raise TypeProblem("expected no operands: memref.alloc() : memref<f32[4]>")
        _declared_buffer(op.results[0].type)

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        return (op.results[0].type,)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        type_ = interpreter.concrete_type(op.results[0], environment)
        interpreter.check_memory(op.results[0], type_)
        if any(d < 0 for d in type_.shape):
            raise ExecutionError(f"a dimension of {type_} is negative")
        count = math.prod(type_.shape)
        if interpreter.double and type_.dtype.is_float:
            return (_placed(np.full(type_.shape, np.nan), type_.align),)
        if interpreter.double and type_.dtype.itemsize == 1 and _holds_floats(op.results[0]):
            # eight bytes for each, so that views of narrow floats have room for float64 (see ``view``)
            return (_placed(_garbage(8 * count), type_.align)[::8].reshape(type_.shape),)
        if type_.dtype.kind == "bool":
            return (_placed(np.ones(type_.shape, np.bool_), type_.align),)
        return (_placed(_garbage(count * type_.dtype.itemsize), type_.align).view(type_.dtype.numpy).reshape(type_.shape),)


def _placed(array: Any, align: int) -> Any:
    """The same elements, from a multiple of so many bytes on."""
    if not align or _address(array) % align == 0:
        return array
    memory = np.empty(array.nbytes + align, np.uint8)
    start = -_address(memory) % align
    result = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def _holds_floats(buffer: Value) -> bool:
    """Whether some view of a buffer of bytes has elements that are floats."""
    for user in buffer.users:
        if user.name in ("memref.view", "memref.reshape"):
            type_ = user.result.type
            assert isinstance(type_, MemRefType)
            if type_.dtype.is_float or (type_.dtype.itemsize == 1 and _holds_floats(user.result)):
                return True
    return False


def _garbage(count: int) -> Any:
    return np.tile(np.frombuffer(_GARBAGE, np.uint8), count // 2 + 1)[:count]


def _declared_buffer(type_: Type) -> MemRefType:
    if isinstance(type_, UnknownType):
        raise TypeProblem("the type of the result is not written", hint="write it behind the operation: ... : memref<f32[4]>")
    if not isinstance(type_, MemRefType):
        raise TypeProblem(f"the result is a memref, so it can't be declared {type_}")
    if any(isinstance(d, UnknownDim) for d in type_.shape):
        raise TypeProblem(f"a dimension of {type_} is '?'", hint="write a number or a symbolic dimension")
    if type_.align > MOST_ALIGNED:
        raise TypeProblem(f"an alignment of {type_.align} bytes is more than {MOST_ALIGNED}")
    return type_


def _same_space(of: MemRefType, result: MemRefType, operand: str) -> None:
    if of.space != result.space:
        raise TypeProblem(f"{result} is no memory of {of}", operand=operand, hint="a view lies in the same space: shared, local or none")


def _reshape(m: MemRefType, result_type: Type) -> MemRefType:
    result = _declared_buffer(result_type)
    if result.dtype != m.dtype:
        raise TypeProblem(f"a buffer of {m.dtype} has no elements of {result.dtype}", operand="m")
    _same_space(m, result, "m")
    if any(isinstance(d, UnknownDim) for d in m.shape):
        return result
    if product(m.shape) != product(result.shape):
        raise TypeProblem(f"{m} has {product(m.shape)} elements, {result} has {product(result.shape)}", operand="m")
    return result


@op(infer=_reshape, dialect="memref", exact_bits=True, declared_result=True, needs_output_type=True)
def reshape(m: Buffer, *, output_type: MemRefType) -> Any:
    """The same memory under the declared shape, which has equally many elements.

    A store through one of them is seen through the other.  Where the declared type has an alignment, the memory must have it when
    the program runs (``memref.is_aligned`` tells).

    Example::

        graph @example(%A: memref<f32[B, 4]>, %C: memref<f32[2*B, 2]>) {
          %F = memref.reshape(%A) : memref<f32[2*B, 2]>
          memref.copy(%F, %C)
          return
        }
    """
    if output_type.align and m.size and _address(m) % output_type.align:
        raise ExecutionError(f"memref.reshape: the buffer is not aligned to {output_type.align} bytes")
    result = np.reshape(m, [int(d) for d in output_type.shape])  # type: ignore[arg-type]  # concrete here
    if result.size and not np.may_share_memory(result, m):
        raise ExecutionError("memref.reshape: the buffer is not contiguous")
    return result


def _view(arena: MemRefType, offset: Dim, result_type: Type) -> MemRefType:
    result = _declared_buffer(result_type)
    if arena.dtype not in (u8, i8):
        raise TypeProblem(f"expected an arena, memref<u8[bytes]>, or other bytes (u8 or i8), found {arena}", operand="arena")
    _same_space(arena, result, "arena")
    if isinstance(offset, UnknownDim):
        raise TypeProblem("the offset is '?'", attribute="offset")
    size = product(result.shape) * result.dtype.itemsize
    if isinstance(offset, int):
        if offset % result.dtype.itemsize:
            raise TypeProblem(f"offset {offset} is not a multiple of {result.dtype.itemsize}, the bytes of {result.dtype}", attribute="offset")
        total = None if any(isinstance(d, UnknownDim) for d in arena.shape) else product(arena.shape)
        if offset < 0 or (isinstance(size, int) and isinstance(total, int) and offset + size > total):
            raise TypeProblem(f"bytes {offset} to {offset + size} are outside {arena}", attribute="offset")
    return result


@op(infer=_view, dialect="memref", exact_bits=True, declared_result=True, needs_output_type=True)
def view(arena: Buffer, *, offset: Dim, output_type: MemRefType) -> Any:
    """A buffer of the declared type inside of bytes, from the byte ``offset`` on.

    The bytes are an arena, ``memref<u8[bytes]>``, or any other buffer of u8 or i8, counted in row-major order: packed weights.  The
    offset may be symbolic; it is a multiple of the bytes of one element.  Both that and the bounds are checked, at the latest
    when the program runs.  Several bytes make an element with the lowest first.

    Example::

        graph @example(%A: memref<f32[B]>, %C: memref<f32[B]>) {
          %M = memref.alloc() : memref<u8[8*B]>
          %T = memref.view(%M, offset=4*B) : memref<f32[B]>
          memref.copy(%A, %T)
          memref.copy(%T, %C)
          return
        }
    """
    dtype, shape = output_type.dtype, [int(d) for d in output_type.shape]  # type: ignore[arg-type]
    assert isinstance(offset, int)  # and inside the arena: inference has checked it for this run
    size = math.prod(shape) * dtype.itemsize
    flat = arena.reshape(-1)
    part = flat[offset : offset + size]
    if size and not np.may_share_memory(part, arena):
        raise ExecutionError("memref.view: the buffer is not contiguous")
    if size and flat.strides[0] == 8:  # float64 in place of narrow floats: one for each element, at its first byte
        spread = 8 if dtype.is_float else 1  # integers lie together, so that other views of the same place have their bytes
        wide = np.dtype(np.float64) if dtype.is_float else dtype.numpy
        strides = [spread * dtype.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return np.ndarray(shape, wide, part.base, _address(part) - _address(part.base), strides)
    return part.view(dtype.numpy).reshape(shape)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _dim(m: MemRefType, axis: int) -> ScalarType:
    if not 0 <= axis < len(m.shape):
        raise TypeProblem(f"axis={axis} is out of range: {m} has {len(m.shape)} dimensions", attribute="axis")
    return ScalarType(index)


@op(infer=_dim, dialect="memref", exact_bits=True)
def dim(m: Buffer, *, axis: int) -> Any:
    """The size of a buffer along ``axis``, counted from 0, as an index.

    Example::

        graph @example(%A: memref<f32[B, S]>, %C: memref<index[2]>) {
          %b = memref.dim(%A, axis=0) : index
          memref.store(%b, %C[0])
          %s = memref.dim(%A, axis=1) : index
          memref.store(%s, %C[1])
          return
        }
    """
    return np.int64(m.shape[axis])


def _is_aligned(m: MemRefType, align: int) -> ScalarType:
    if not 1 <= align <= MOST_ALIGNED or align & (align - 1):
        raise TypeProblem(f"expected a power of two up to {MOST_ALIGNED}, found {align}", attribute="align")
    return ScalarType(boolean)


@op(infer=_is_aligned, dialect="memref", exact_bits=True)
def is_aligned(m: Buffer, *, align: int) -> Any:
    """Whether a buffer begins at a multiple of ``align`` bytes, a power of two up to 4096.

    Where memory lies is no part of what a program computes, so both answers must lead to the same numbers.  Kernels do not know, and
    say no.

    Example::

        graph @example(%A: memref<f32[B, 16]>, %C: memref<f32[B, 16]>) {
          %whole = memref.is_aligned(%C, align=64) : bool
          scf.for(%i = 0 to B) {
            %a = vector.load(%A[%i, 0:+16]) : vector<f32[1, 16]>
            scf.if(%whole) {
              %D = memref.reshape(%C) : memref<f32[B, 16], align=64>
              vector.store(%a, %D[%i, 0:+16], nontemporal=true)
              yield
            } {
              vector.store(%a, %C[%i, 0:+16])
              yield
            }
            yield
          }
          return
        }
    """
    return np.bool_(_address(m) % align == 0)


# -- reading and writing -----------------------------------------------------------------------------------------------


class Load(RegionOpDef):
    """One element of a buffer as a scalar.

    ``memref.load(%A[%i, %j + 1])``: an index is an expression of integers, named dimensions and values of type ``index``,
    with ``+``, ``-``, ``*``, ``floordiv``, ``ceildiv``, ``mod``, ``min`` and ``max``.

    Raises an error for an index outside the buffer.

    Example::

        graph @example(%A: memref<f32[B, 4]>, %C: memref<f32[4, B]>) {
          scf.for(%i = 0 to B) {
            scf.for(%j = 0 to 4) {
              %a = memref.load(%A[-%i+B-1, %j]) : f32
              memref.store(%a, %C[%j, %i])
              yield
            }
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("load", "memref", result_count=1, pure=False, exact_bits=True, traps=True)

    def verify(self, op: Operation) -> None:
        """One access to a single element, and no region."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], AccessArg) or op.regions:
            raise TypeProblem("expected one access: memref.load(%A[%i, 0])")
        check_single(layout[0])

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        buffer = check_access(op, access, operand_types)
        return (UNKNOWN if buffer is None else ScalarType(buffer.dtype),)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        return (operands[access.position][element(access, operands, environment.names)],)


class Store(RegionOpDef):
    """Writes a scalar to one element of a buffer.

    ``memref.store(%value, %A[%i, %j])``; indices are those of ``memref.load``.

    Raises an error for an index outside the buffer, and for a buffer that is read-only (``memref.from_tensor``).

    Example::

        graph @example(%A: memref<f32[B, 4]>, %C: memref<f32[B]>) {
          scf.for(%i = 0 to B) {
            %x = memref.load(%A[%i, 0]) : f32
            %y = memref.load(%A[%i, 3]) : f32
            %s = arith.addf(%x, %y) : f32
            memref.store(%s, %C[%i])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("store", "memref", result_count=0, pure=False, exact_bits=True, traps=True)

    def verify(self, op: Operation) -> None:
        """A value and an access to a single element, and no region."""
        layout = layout_of(op)
        if len(layout) != 2 or not isinstance(layout[0], OperandArg) or not isinstance(layout[1], AccessArg) or op.regions:
            raise TypeProblem("expected a value and an access: memref.store(%x, %A[%i, 0])")
        check_single(layout[1])

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        value, access = layout_of(op)
        assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
        buffer, type_ = check_access(op, access, operand_types), operand_types[value.position]
        if buffer is not None and not isinstance(type_, UnknownType) and type_ != ScalarType(buffer.dtype):
            raise TypeProblem(f"an element of {buffer} is {buffer.dtype}, found {type_}", operand=value.position)
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        value, access = layout_of(op)
        assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
        write(operands[access.position], element(access, operands, environment.names), operands[value.position])
        return ()


class Prefetch(RegionOpDef):
    """A hint that an element of a buffer will be read (or written) soon: its memory may be brought into the caches.

    ``memref.prefetch(%B[%k + 8, %j])``; indices are those of ``memref.load``.  Nothing is read and nothing is checked: the
    element may be outside the buffer, and an index beyond a dimension counts on from where the dimension ends in memory.
    ``locality`` says how near it should be: 3, the default, for the nearest cache, 2 and 1 for those behind it, 0 for what
    is read once and not kept.  With ``write`` the element will be written, and its cache line is to be had alone.

    Example::

        graph @example(%A: memref<f32[B, 16]>, %C: memref<f32[B, 16]>) {
          scf.for(%i = 0 to B) {
            memref.prefetch(%A[%i+8, 0])
            memref.prefetch(%C[%i+8, 0], write=true)
            %a = vector.load(%A[%i, 0:+16]) : vector<f32[1, 16]>
            vector.store(%a, %C[%i, 0:+16])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        super().__init__("prefetch", "memref", [_LOCALITY, _WRITE], result_count=0, pure=False, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """One access to a single element, no region, and a locality from 0 to 3."""
        layout = layout_of(op)
        locality = self.full_attributes(op.attributes)["locality"]
        if not isinstance(locality, int) or not 0 <= locality <= 3:
            raise TypeProblem(f"expected 0, 1, 2 or 3, found {locality}", attribute="locality")
        if len(layout) != 1 or not isinstance(layout[0], AccessArg) or op.regions:
            raise TypeProblem("expected one access: memref.prefetch(%A[%i + 8, 0])")
        check_single(layout[0])

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        check_access(op, access, operand_types)
        return ()

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        return ()


def _copy(source: MemRefType, target: MemRefType) -> tuple[()]:
    if source.dtype != target.dtype or len(source.shape) != len(target.shape):
        raise TypeProblem(f"{source} can't be copied to {target}", operand="target")
    for a, b in zip(source.shape, target.shape, strict=True):
        if a != b and not isinstance(a, UnknownDim) and not isinstance(b, UnknownDim):
            raise TypeProblem(f"{source} can't be copied to {target}", operand="target")
    return ()


@op(infer=_copy, dialect="memref", pure=False, exact_bits=True)
def copy(source: Buffer, target: Buffer) -> None:
    """Writes the elements of one buffer into another of the same shape.

    All are read before one is written, so the two may overlap.

    Raises an error for a target that is read-only (``memref.from_tensor``).

    Example::

        graph @example(%A: memref<f32[B, 4]>, %C: memref<f32[B, 4]>) {
          memref.copy(%A, %C)
          return
        }
    """
    if source.shape != target.shape:
        raise ExecutionError(f"memref.copy: a buffer of shape {list(source.shape)} can't be copied to one of {list(target.shape)}")
    write(target, ..., source)


register(OfInout())
register(Alloc())
register(Load())
register(Store())
register(Prefetch())
