"""Memory on the chip: what the threads of a block share, and what each thread has for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dialects.gpu._execution import Lanes, block_of
from dialects.gpu._places import LOCAL_LIMIT, SHARED_ALIGNMENT, SHARED_LIMIT, byte_size, require_launch, shared_size
from ir.core import Operation
from ir.layout import layout_of
from ir.opdef import AttributeSpec, RegionOpDef, TypeProblem, register
from ir.types import MemRefType, Type

SPACES = ("shared", "local")
_GARBAGE = bytes((0xFF, 0x7F))  # NaN of every float type, large numbers of integers


class Alloc(RegionOpDef):
    """A buffer on the chip, of static size: ``shared`` by the threads of a block, or ``local`` to each thread.

    Its contents are not specified before something is stored.  Local buffers whose indices are known when the loops around them are
    unrolled are registers.  Shared ones stand at the top of the launch; ``offset`` is their place in the block's shared memory in bytes, once
    ``plan-shared`` has planned it: buffers that are needed at different times may lie in the same place.

    Example::

        graph @example(%A: memref<f32[4, 4]>, %C: memref<f32[4, 4]>) {
          gpu.launch(%b = 0 to 1, threads=4) {
            %t = gpu.thread_id() : index
            %row = gpu.alloc() : memref<f32[4], local>
            scf.for(%i = 0 to 4) {
              %a = memref.load(%A[%t, %i]) : f32
              memref.store(%a, %row[%i])
              yield
            }
            scf.for(%j = 0 to 4) {
              %c = memref.load(%row[-%j+3]) : f32
              memref.store(%c, %C[%t, %j])
              yield
            }
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        offset = AttributeSpec("offset", int, -1, required=False, positional=False)
        super().__init__("alloc", "gpu", [offset], result_count=1, pure=False, exact_bits=True, declared_result=True)

    def verify(self, op: Operation) -> None:
        """No operand, and a declared buffer of static shape, shared or local."""
        if layout_of(op) or op.regions:
            raise TypeProblem("expected no operands: gpu.alloc() : memref<f32[4], shared>")
        type_ = op.results[0].type
        if not isinstance(type_, MemRefType) or type_.space not in SPACES:
            raise TypeProblem(f"expected a declared buffer, shared or local, found {type_}", hint="write memref<f32[4], shared>")
        if not all(isinstance(d, int) for d in type_.shape):
            raise TypeProblem(f"the size of {type_} is not known when it is compiled")
        launch = require_launch(op)
        offset: Any = op.attribute("offset")
        if type_.space == "local":
            if offset != -1:
                raise TypeProblem("only shared buffers have a place in shared memory", attribute="offset")
            if byte_size(op) > LOCAL_LIMIT:
                raise TypeProblem(f"{type_} needs {byte_size(op)} bytes, a thread has {LOCAL_LIMIT} bytes of local memory")
            return
        if op.block is not launch.regions[0].block:
            raise TypeProblem("a shared buffer is for the whole run of a block", hint="put it at the top of the launch, outside of loops")
        if offset != -1 and (offset < 0 or offset % SHARED_ALIGNMENT):
            raise TypeProblem(f"expected a multiple of {SHARED_ALIGNMENT}, found {offset}", attribute="offset")
        if max(offset, 0) + byte_size(op) > SHARED_LIMIT:
            where = f" from byte {offset} on" if offset > 0 else ""
            raise TypeProblem(f"{type_} needs {byte_size(op)} bytes{where}, a block has {SHARED_LIMIT} bytes of shared memory")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        return (op.results[0].type,)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        type_: Any = op.results[0].type
        dtype = np.dtype(np.float64) if interpreter.double and type_.dtype.is_float else type_.dtype.numpy
        if type_.space == "local":
            return (Lanes(garbage(dtype, (state.threads, *type_.shape))),)
        offset: Any = op.attribute("offset")
        if offset >= 0 and dtype == type_.dtype.numpy:  # numbers that are kept wider would not fit in their place
            if state.arena is None:
                state.arena = garbage(np.dtype(np.uint8), (shared_size(require_launch(op)),))
            return (state.arena[offset : offset + byte_size(op)].view(dtype).reshape(type_.shape),)
        if op not in state.shared:
            state.shared[op] = garbage(dtype, type_.shape)
        return (state.shared[op],)


def garbage(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """What memory holds that nothing was stored in."""
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(bytearray((_GARBAGE * (count // 2 + 1))[:count]), dtype).reshape(shape)


register(Alloc())
