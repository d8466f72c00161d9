"""What passes have to know of tensors of blocks."""

from __future__ import annotations

from ir.core import Operation
from ir.types import TensorType


def unpacks_blocks(op: Operation) -> bool:
    """Whether an operation makes floats of stored blocks, which takes 4 to 7 times their memory.

    So it is done when the program runs, piece by piece: never in advance.
    """
    stored = any(isinstance(v.type, TensorType) and v.type.dtype.is_block for v in op.operands)
    return stored and any(isinstance(r.type, TensorType) and r.type.dtype.is_float for r in op.results)
