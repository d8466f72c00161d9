"""What the 32 threads of a warp do together: pass values to each other, and reduce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dialects.gpu._execution import WARP, Lanes, block_of
from dialects.gpu._places import check_groups
from dialects.gpu._uniformity import check_together
from dialects.graph._special import ieee_maximum, ieee_minimum
from ir.core import Operation
from ir.evaluate import round_to
from ir.layout import OperandArg, layout_of
from ir.opdef import AttributeSpec, OperandKind, OperandSpec, RegionOpDef, TypeProblem, register
from ir.types import DType, ScalarType, Type, UnknownType, f64, index

_MODES = ("xor", "down", "up", "index")
_LANE = OperandSpec("lane", OperandKind("an index", ("index",), (ScalarType,)), optional=True)
_WIDTH = AttributeSpec("width", int, WARP, required=False, positional=False)

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": ieee_maximum,
    "min": ieee_minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
"""What ``warp_reduce`` combines two values by."""


class Shuffle(RegionOpDef):
    """The value that another thread of the warp has.

    ``gpu.shuffle(%x, mode="xor", by=1)`` gives thread t the x of thread t xor 1; ``"down"`` is that of thread t + by, ``"up"`` that of
    t - by, ``"index"`` that of thread number ``by``, all within groups of ``width`` neighbours (a power of two); a thread outside of the
    group stands for the thread itself.  ``gpu.shuffle(%x, mode="index", lane=%l)`` takes the number from a value, modulo the width; each
    thread may have another one.  All threads of the warp must come here.

    Example::

        graph @example(%A: memref<f32[32]>, %C: memref<f32[32]>) {
          gpu.launch(%b = 0 to 1, threads=32) {
            %t = gpu.thread_id() : index
            %a = memref.load(%A[%t]) : f32
            %c = gpu.shuffle(%a, by=1) : f32
            memref.store(%c, %C[%t])
            yield
          }
          return
        }

    Example, a lane of each thread's own::

        graph @example(%A: memref<i32[32]>, %C: memref<i32[32]>) {
          gpu.launch(%b = 0 to 1, threads=32) {
            %t = gpu.thread_id() : index
            %a = memref.load(%A[%t]) : i32
            %l = affine.apply(-%t+31) : index
            %c = gpu.shuffle(%a, lane=%l, mode="index") : i32
            memref.store(%c, %C[%t])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        attributes = [
            AttributeSpec("mode", str, "xor", required=False, positional=False),
            AttributeSpec("by", int | None, None, required=False, positional=False),
            _WIDTH,
        ]
        super().__init__("shuffle", "gpu", attributes, [_LANE], result_count=1, pure=False, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """One scalar, a known mode, a width that is a power of two up to 32, and a distance within it or a lane."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], OperandArg) or op.regions:
            raise TypeProblem('expected one operand: gpu.shuffle(%x, mode="xor", by=1)')
        mode, by = op.attribute("mode"), op.attribute("by")
        width = check_width(op)
        if mode not in _MODES:
            raise TypeProblem(f'expected one of {", ".join(_MODES)}, found "{mode}"', attribute="mode")
        lane = self.operand_position(op, "lane")
        if lane is not None and (mode != "index" or by is not None):
            raise TypeProblem("a lane is the number of a thread", operand=lane, hint='write mode="index", without by')
        if lane is None and by is None:
            raise TypeProblem("whose value is not said", hint="write by=1, or lane=%l for a value")
        if by is not None and not 0 <= by < width:  # type: ignore[operator]
            raise TypeProblem(f"expected 0 to {width - 1}, found {by}", attribute="by")
        check_together(op, "warp")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        if not isinstance(operand_types[0], (ScalarType, UnknownType)):
            raise TypeProblem(f"expected a scalar, found {operand_types[0]}", operand=0)
        lane = self.operand_position(op, "lane")
        if lane is not None and not isinstance(operand_types[lane], UnknownType) and operand_types[lane] != ScalarType(index):
            raise TypeProblem(f"expected an index as the number of a thread, found {operand_types[lane]}", operand=lane)
        return (operand_types[0],)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        state.meet(op, WARP)
        if not isinstance(operands[0], Lanes):
            return (operands[0],)
        width: Any = op.attribute("width")
        position = self.operand_position(op, "lane")
        by: Any = op.attribute("by") if position is None else state.all_of(operands[position]) % width
        at = np.arange(state.threads)
        first = at // width * width
        source = {"xor": at ^ by, "down": at + by, "up": at - by, "index": first + by}[str(op.attribute("mode"))]
        inside = (first <= source) & (source < first + width)
        return (Lanes(operands[0].array[np.where(inside, source, at)]),)


class WarpReduce(RegionOpDef):
    """The sum, product, maximum, minimum, and or or of the values that ``width`` neighbouring threads have; all of them get it.

    In a fixed order: for d = width/2, width/4, ... 1 each thread's x becomes x op the x of thread number ``lane xor d``, rounded at each
    step.  ``"max"`` and ``"min"`` of floats are IEEE 754-2019 ``maximum`` and ``minimum`` (NaN wins, -0 is smaller than +0), integers
    wrap around, ``"and"`` and ``"or"`` take integers (bit by bit) and bools.  All threads of the warp must come here.

    Example::

        graph @example(%A: memref<f32[M, 32]>, %C: memref<f32[M]>) {
          gpu.launch(%m = 0 to M, threads=32) {
            %t = gpu.thread_id() : index
            %a = memref.load(%A[%m, %t]) : f32
            %s = gpu.warp_reduce(%a, kind="add") : f32
            %zero = arith.constant(0) : index
            %first = arith.cmpi(%t, %zero, predicate="eq") : bool
            scf.if(%first) {
              memref.store(%s, %C[%m])
              yield
            }
            yield
          }
          return
        }

    Example, groups of 8::

        graph @example(%A: memref<i32[64]>, %C: memref<i32[64]>) {
          gpu.launch(%b = 0 to 1, threads=64) {
            %t = gpu.thread_id() : index
            %a = memref.load(%A[%t]) : i32
            %s = gpu.warp_reduce(%a, kind="max", width=8) : i32
            memref.store(%s, %C[%t])
            yield
          }
          return
        }
    """

    def __init__(self) -> None:
        kind = AttributeSpec("kind", str, "", required=True, positional=False)
        super().__init__("warp_reduce", "gpu", [kind, _WIDTH], result_count=1, pure=False)

    def verify(self, op: Operation) -> None:
        """One scalar, a known kind, and a width that is a power of two up to 32."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], OperandArg) or op.regions:
            raise TypeProblem('expected one operand: gpu.warp_reduce(%x, kind="add")')
        if op.attribute("kind") not in REDUCTIONS:
            raise TypeProblem(f'expected one of {", ".join(REDUCTIONS)}, found "{op.attribute("kind")}"', attribute="kind")
        check_width(op)
        check_together(op, "warp")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        type_ = operand_types[0]
        if isinstance(type_, UnknownType):
            return (type_,)
        if not isinstance(type_, ScalarType):
            raise TypeProblem(f"expected a scalar, found {type_}", operand=0)
        bits = op.attribute("kind") in ("and", "or")
        if type_.dtype.is_float if bits else type_.dtype.kind == "bool":
            wanted = "an integer or a bool" if bits else "a number"
            raise TypeProblem(f'expected {wanted} for kind="{op.attribute("kind")}", found {type_}', operand=0)
        return (type_,)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        state = block_of(environment)
        state.meet(op, WARP)
        width: Any = op.attribute("width")
        dtype = interpreter.result_dtype(op.results[0])
        if interpreter.double and dtype.is_float:
            dtype = f64
        values = state.all_of(operands[0])
        return (Lanes(butterfly(values.reshape(-1, width), str(op.attribute("kind")), dtype).reshape(values.shape)),)


def check_width(op: Operation) -> int:
    """The size of a group of threads.  Raises TypeProblem when it is no power of two up to 32, or the block is not made of whole groups."""
    width = op.attribute("width")
    assert isinstance(width, int)
    if width not in (1, 2, 4, 8, 16, 32):
        raise TypeProblem(f"expected a power of two up to {WARP}, found {width}", attribute="width")
    check_groups(op, width)
    return width


def butterfly(values: Any, kind: str, dtype: DType) -> Any:
    """The reduction of each group, in the order of ``warp_reduce``: ``[..., width]``, with other groups in front."""
    combine = REDUCTIONS[kind]
    width = values.shape[-1]
    lanes = np.arange(width)
    distance = width // 2
    with np.errstate(all="ignore"):
        while distance:
            other = values[..., lanes ^ distance]
            values = round_to(combine(values.astype(np.float64), other.astype(np.float64)), dtype) if dtype.is_float else combine(values, other)
            distance //= 2
    return values


register(Shuffle())
register(WarpReduce())
