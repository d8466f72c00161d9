"""Products of small matrices that the 32 threads of a warp compute together, and loading their operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dialects._access import check_access
from dialects.gpu._execution import WARP, Lanes, block_of
from dialects.gpu._fragments import distribute, multiply, to_tf32
from dialects.gpu._lane_memory import Places, spread
from dialects.gpu._places import check_groups
from dialects.gpu._uniformity import check_together
from ir.core import Operation
from ir.layout import AccessArg, OperandArg, layout_of
from ir.opdef import AttributeSpec, RegionOpDef, TypeProblem, register
from ir.types import UNKNOWN, Type, UnknownType, VectorType, f32

_SHORT = ("bf16", "f16")


class LoadMatrix(RegionOpDef):
    """8x8 matrices of 16-bit elements from shared memory, as the threads of a warp hold them for ``gpu.mma``.

    ``gpu.ldmatrix(%S[%r, %c:+8], count=4) : vector<bf16[8]>`` loads ``count`` matrices (1, 2 or 4): each access names one row of 8
    neighbours, that of thread l (of the warp) is row ``l mod 8`` of matrix ``l floordiv 8``; rows beyond the last matrix are not looked at.
    A row starts at a multiple of 16 bytes.  Elements 2*m and 2*m + 1 of the result are those of matrix m in row ``l floordiv 4``, columns
    ``2*(l mod 4)`` and the next; with ``transposed`` those in column ``l floordiv 4``, rows ``2*(l mod 4)`` and the next.

    All threads of the warp come here together.  What others have stored is seen behind a barrier.

    Raises an error for elements outside the buffer, and for a row that is not aligned.

    Example::

        graph @example(%A: memref<bf16[8, 8]>, %C: memref<bf16[8, 8]>) {
          gpu.launch(%b = 0 to 1, threads=32) {
            %t = gpu.thread_id() : index
            %s = gpu.alloc() : memref<bf16[8, 8], shared>
            %a = vector.load(%A[%t floordiv 4, 2*(%t mod 4):+2]) : vector<bf16[1, 2]>
            vector.store(%a, %s[%t floordiv 4, 2*(%t mod 4):+2])
            gpu.barrier()
            %c = gpu.ldmatrix(%s[%t mod 8, 0:+8], count=1, transposed=true) : vector<bf16[2]>
            vector.store(%c, %C[%t floordiv 4, 2*(%t mod 4):+2])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        attributes = [
            AttributeSpec("count", int, 1, required=True, positional=False),
            AttributeSpec("transposed", bool, False, required=False, positional=False),
        ]
        super().__init__("ldmatrix", "gpu", attributes, result_count=1, pure=False, exact_bits=True, traps=True)

    def verify(self, op: Operation) -> None:
        """One access to 8 neighbours along the last axis; 1, 2 or 4 matrices."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], AccessArg) or op.regions:
            raise TypeProblem("expected one access: gpu.ldmatrix(%S[%r, %c:+8], count=4)")
        sizes = [i.size for i in layout[0].indices]
        if not sizes or sizes[-1] != 8 or any(s is not None for s in sizes[:-1]):
            raise TypeProblem("expected a run of 8 elements along the last axis alone", operand=0, hint="write %S[%r, %c:+8]")
        if op.attribute("count") not in (1, 2, 4):
            raise TypeProblem(f"expected 1, 2 or 4, found {op.attribute('count')}", attribute="count")
        check_groups(op, WARP)
        check_together(op, "warp")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        buffer = check_access(op, access, operand_types)
        if buffer is None:
            return (UNKNOWN,)
        if buffer.space != "shared" or buffer.dtype.name not in _SHORT:
            raise TypeProblem(f"expected a shared buffer of bf16 or f16, found {buffer}", operand=0)
        count: Any = op.attribute("count")
        return (VectorType(buffer.dtype, (2 * count,)),)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        state.meet(op, WARP)
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg)
        count: Any = op.attribute("count")
        with state.only(state.active[state.active % WARP < 8 * count]):  # the others' rows are not looked at
            places = Places(op, access, operands, environment)
            places.refuse_unaligned()
            places.touch_together()
            rows = places.read().reshape(places.shape[0], 8)
        rows = np.broadcast_to(rows, (len(state.active) // WARP * 8 * count, 8)).reshape(-1, count, 8, 8)
        return (spread(state, distribute(rows, bool(op.attribute("transposed"))).reshape(-1, 2 * count)),)


class Multiply(RegionOpDef):
    """A product of small matrices plus sums: ``a @ b + c``, by the tensor cores.  The threads of a warp hold all of them together.

    With a of ``vector<bf16[8]>`` or ``vector<f16[8]>`` in each thread and b of 4 elements, a has 16 rows of 16, b 16 rows of 8 (m16n8k16).
    With a of ``vector<f32[4]>`` and b of ``vector<f32[2]>`` a has 16 rows of 8, b 8 rows of 8 (m16n8k8); ``precision="tf32"`` must be
    said, since the elements of a and b are rounded to 10 bits of mantissa (to nearest, ties away from zero: ``cvt.rna.tf32.f32``).
    c and the result are ``vector<f32[4]>``: 16 rows of 8.

    Thread l of the warp, with g = l floordiv 4 and q = l mod 4, holds (PTX ISA, "Matrix Fragments"):

    =====================  =============================================================================================
    a, 16 bits             rows g, g, g+8, g+8, g, g, g+8, g+8; columns 2q, 2q+1, 2q, 2q+1, and 8 more for the last four
    b, 16 bits             rows 2q, 2q+1, 2q+8, 2q+9; column g
    a, tf32                rows g, g+8, g, g+8; columns q, q, q+4, q+4
    b, tf32                rows q, q+4; column g
    c and the result       rows g, g, g+8, g+8; columns 2q, 2q+1, 2q, 2q+1
    =====================  =============================================================================================

    Products are exact here; each element is summed in f64, from c on with k ascending, and rounded once.  A processor adds in an order of
    its own in about f32, so what it gives is the same on data that is exact, and close on other.

    Example::

        graph @example(%A: memref<bf16[16, 16]>, %B: memref<bf16[16, 8]>, %C: memref<f32[16, 8]>) {
          gpu.launch(%x = 0 to 1, threads=32) {
            %t = gpu.thread_id() : index
            %sa = gpu.alloc() : memref<bf16[16, 24], shared>
            %sb = gpu.alloc() : memref<bf16[16, 8], shared>
            gpu.cp_async(%A[%t floordiv 2, 8*(%t mod 2):+8], %sa[%t floordiv 2, 8*(%t mod 2):+8])
            gpu.cp_async(%B[%t floordiv 2, 4*(%t mod 2):+4], %sb[%t floordiv 2, 4*(%t mod 2):+4])
            gpu.cp_commit()
            gpu.cp_wait(pending=0)
            gpu.barrier()
            %a = gpu.ldmatrix(%sa[%t mod 16, 8*(%t floordiv 16):+8], count=4) : vector<bf16[8]>
            %b = gpu.ldmatrix(%sb[%t mod 16, 0:+8], count=2, transposed=true) : vector<bf16[4]>
            %zero = arith.constant(0.0) : vector<f32[4]>
            %c = gpu.mma(%a, %b, %zero) : vector<f32[4]>
            %low = vector.shuffle(%c, %c, mask=[0, 1]) : vector<f32[2]>
            %high = vector.shuffle(%c, %c, mask=[2, 3]) : vector<f32[2]>
            vector.store(%low, %C[%t floordiv 4, 2*(%t mod 4):+2])
            vector.store(%high, %C[(%t floordiv 4)+8, 2*(%t mod 4):+2])
            yield
          }
          return
        }

    Example, tf32::

        graph @example(%A: memref<f32[128]>, %B: memref<f32[64]>, %C: memref<f32[128]>) {
          gpu.launch(%x = 0 to 1, threads=32) {
            %t = gpu.thread_id() : index
            %a = vector.load(%A[4*%t:+4]) : vector<f32[4]>
            %b = vector.load(%B[2*%t:+2]) : vector<f32[2]>
            %c = vector.load(%C[4*%t:+4]) : vector<f32[4]>
            %r = gpu.mma(%a, %b, %c, precision="tf32") : vector<f32[4]>
            vector.store(%r, %C[4*%t:+4])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        precision = AttributeSpec("precision", str, "", required=False, positional=False)
        super().__init__("mma", "gpu", [precision], result_count=1, pure=False)

    def verify(self, op: Operation) -> None:
        """Three plain operands; the precision is tf32 or not said."""
        layout = layout_of(op)
        if len(layout) != 3 or not all(isinstance(a, OperandArg) for a in layout) or op.regions:
            raise TypeProblem("expected three operands: gpu.mma(%a, %b, %c)")
        if op.attribute("precision") not in ("", "tf32"):
            raise TypeProblem(f'expected "tf32", or nothing for bf16 and f16, found "{op.attribute("precision")}"', attribute="precision")
        check_groups(op, WARP)
        check_together(op, "warp")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        a, b, c = operand_types
        result = VectorType(f32, (4,))
        if not isinstance(a, UnknownType):
            short = isinstance(a, VectorType) and a.dtype.name in _SHORT and a.shape == (8,)
            if not isinstance(a, VectorType) or not (short or a == result):
                raise TypeProblem(f"expected vector<bf16[8]>, vector<f16[8]> or, for tf32, vector<f32[4]>, found {a}", operand=0)
            if short == (op.attribute("precision") == "tf32"):
                found = "tf32 multiplies f32" if short else "products of f32 are rounded to tf32"
                hint = "leave precision out" if short else 'write precision="tf32" if that is meant'
                raise TypeProblem(f"{found}, a is {a}", operand=0, hint=hint)
            expected = VectorType(a.dtype, (4 if short else 2,))
            if not isinstance(b, UnknownType) and b != expected:
                raise TypeProblem(f"expected {expected} beside {a}, found {b}", operand=1)
        if not isinstance(c, UnknownType) and c != result:
            raise TypeProblem(f"expected {result}, found {c}", operand=2)
        return (result,)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        state.meet(op, WARP)
        a, b, c = (state.all_of(v).reshape(state.threads // WARP, WARP, -1) for v in operands)
        if op.attribute("precision") == "tf32" and not interpreter.double:
            a, b = to_tf32(a), to_tf32(b)
        return (Lanes(multiply(a, b, c, interpreter.double).reshape(state.threads, 4)),)


register(LoadMatrix())
register(Multiply())
