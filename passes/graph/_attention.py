"""What ``decompose`` leaves of attention for ``lower-attention``, and in which form."""

from __future__ import annotations

from collections.abc import Sequence

from dialects.graph.attention import attention, head_group
from dialects.graph.cast import cast
from dialects.graph.indexing import concat
from ir.core import Operation, Value
from ir.dims import UnknownDim
from ir.types import TensorType, f32, i64, is_known

WIDEST = 512
"""Numbers of a key or value: a tile of them is on the stack."""


def is_tiled(op: Operation) -> bool:
    """Whether there are nests for an attention: of f32 and known widths, in the graph's own block."""
    if not all(isinstance(v.type, TensorType) and is_known(v.type) for v in (*op.operands, *op.results)):
        return False
    q, k, v = (_shape(op, name) for name in "qkv")
    if q.dtype != f32 or op.block is None or op.graph is None or op.block is not op.graph.block:
        return False
    if not all(isinstance(d, int) and 1 <= d <= WIDEST for d in (q.shape[-1], v.shape[-1])):
        return False
    return group_of(op) is not None and not any(isinstance(d, UnknownDim) or d == 0 for t in (q, k, v) for d in t.shape)


def group_of(op: Operation) -> int | None:
    """How many query heads share a key head, where that is known."""
    q, k = _shape(op, "q"), _shape(op, "k")
    found = head_group(q.shape[-3], k.shape[-3]) if q.rank > 2 else 1
    return found if isinstance(found, int) and found >= 1 else None


def is_plain(op: Operation) -> bool:
    """Whether an attention has one tensor of keys, and its length as i64."""
    length = op.operand("length")
    return op.operand("past_k") is None and (length is None or (isinstance(length.type, TensorType) and length.type.dtype == i64))


def plain(op: Operation) -> Sequence[Value]:
    """The same with past keys and values put in front of the others, and with its length as i64."""
    q, k, v = (op.operand(name) for name in "qkv")
    past_k, past_v, length = (op.operand(name) for name in ("past_k", "past_v", "length"))
    if past_k is not None and past_v is not None:
        k, v = concat(past_k, k, axis=-2), concat(past_v, v, axis=-2)
    if length is not None and not is_plain(op):
        length = length if isinstance(length.type, TensorType) and length.type.dtype == i64 else cast(length, dtype=i64)
    options = {name: op.attributes[name] for name in ("causal", "scale") if name in op.attributes}
    return [attention(q, k, v, mask=op.operand("mask"), length=length, **options)]


def _shape(op: Operation, name: str) -> TensorType:
    value = op.operand(name)
    assert value is not None and isinstance(value.type, TensorType)
    return value.type
