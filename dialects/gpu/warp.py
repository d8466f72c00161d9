"""What the 32 threads of a warp do together: pass values to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dialects.gpu._execution import WARP, thread_environment
from ir.core import Operation
from ir.layout import OperandArg, layout_of
from ir.opdef import AttributeSpec, RegionOpDef, TypeProblem, register
from ir.types import ScalarType, Type, UnknownType

_MODES = ("xor", "down", "up", "index")


class Shuffle(RegionOpDef):
    """The value that another thread of the warp has.

    ``gpu.shuffle(%x, mode="xor", by=1)`` gives thread t the x of thread t xor 1; ``"down"`` is that of thread t + by, ``"up"`` that of
    t - by, ``"index"`` that of thread number ``by``, all within groups of ``width`` neighbours (a power of two); a thread outside of the
    group stands for the thread itself.  All threads of the warp must come here.

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
    """

    def __init__(self) -> None:
        attributes = [
            AttributeSpec("mode", str, "xor", required=False, positional=False),
            AttributeSpec("by", int, 1, required=True, positional=False),
            AttributeSpec("width", int, WARP, required=False, positional=False),
        ]
        super().__init__("shuffle", "gpu", attributes, result_count=1, pure=False, exact_bits=True)

    def verify(self, op: Operation) -> None:
        """One scalar, a known mode, a width that is a power of two up to 32, and a distance within it."""
        layout = layout_of(op)
        if len(layout) != 1 or not isinstance(layout[0], OperandArg) or op.regions:
            raise TypeProblem('expected one operand: gpu.shuffle(%x, mode="xor", by=1)')
        mode, by, width = (op.attribute(n) for n in ("mode", "by", "width"))
        if mode not in _MODES:
            raise TypeProblem(f'expected one of {", ".join(_MODES)}, found "{mode}"', attribute="mode")
        assert isinstance(by, int) and isinstance(width, int)
        if width not in (1, 2, 4, 8, 16, 32):
            raise TypeProblem(f"expected a power of two up to {WARP}, found {width}", attribute="width")
        if not 0 <= by < width:
            raise TypeProblem(f"expected 0 to {width - 1}, found {by}", attribute="by")

    def infer_op(self, op: Operation, operand_types: Sequence[Type], yielded: Sequence[Type] | None) -> tuple[Type, ...]:
        if not isinstance(operand_types[0], (ScalarType, UnknownType)):
            raise TypeProblem(f"expected a scalar, found {operand_types[0]}", operand=0)
        return (operand_types[0],)

    def execute(self, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        thread = thread_environment(environment)
        at = thread.thread
        values = thread.block_state.meet(at, op, WARP, operands[0])
        mode, by, width = (op.attribute(n) for n in ("mode", "by", "width"))
        assert isinstance(by, int) and isinstance(width, int)
        first = at // width * width
        source = {"xor": at ^ by, "down": at + by, "up": at - by, "index": first + by}[str(mode)]
        return (np.array(values[source if first <= source < first + width and source in values else at]),)


register(Shuffle())
