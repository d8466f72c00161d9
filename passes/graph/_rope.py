"""Which rotary embeddings ``decompose`` leaves for ``lower-rope``."""

from __future__ import annotations

from ir.core import Operation
from ir.dims import UnknownDim
from ir.types import TensorType, f32, i64, is_known

WIDEST = 4096
"""Numbers of a row: the loop over its pieces is written out."""


def is_whole(op: Operation) -> bool:
    """Whether there is a nest for a rotary embedding: whole rows of f32 in interleaved pairs, positions for all leading axes alike."""
    if not all(isinstance(v.type, TensorType) and is_known(v.type) for v in (*op.operands, *op.results)):
        return False
    x, positions, factors = (op.operand(name) for name in ("x", "positions", "factors"))
    if x is None or positions is None or factors is not None or op.block is None or op.graph is None or op.block is not op.graph.block:
        return False
    assert isinstance(x.type, TensorType) and isinstance(positions.type, TensorType)
    shape, width = x.type.shape, op.attribute("rotary_dim")
    return (
        bool(op.attribute("interleaved"))
        and x.type.dtype == f32
        and len(shape) <= 4
        and isinstance(shape[-1], int)
        and 2 <= shape[-1] <= WIDEST
        and width in (None, shape[-1])
        and positions.type.dtype == i64
        and positions.type.rank == 1
        and not any(isinstance(d, UnknownDim) for d in shape)
    )
