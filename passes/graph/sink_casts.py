"""Pass ``sink-casts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dialects.graph.cast import cast
from dialects.graph.indexing import concat, gather, slice_
from dialects.graph.shape import flatten, reshape, squeeze, transpose, unsqueeze
from ir.builder import Builder
from ir.clone import clone_operation
from ir.core import Graph, Module, Operation, Value
from ir.opdef import OpDef
from ir.rewriter import erase_if_dead, replace_op, walk_graphs
from ir.types import DType, TensorType, f32
from passes.graph.hoist_to_init import is_widening, known_at_load_time
from passes.infra.base import Pass, PassContext

_MOVES: dict[OpDef, bool] = {
    transpose: False,
    reshape: False,
    flatten: False,
    squeeze: False,
    unsqueeze: False,
    slice_: False,
    concat: True,
    gather: False,
}
"""Operations that only move elements of their first operand; whether of all operands."""


@dataclass(frozen=True)
class SinkCasts(Pass):
    """Widens weights (f16, bf16 to f32) behind what only moves their elements, not in front of it.

    Before::

        graph @main(%x: f32[B, 4], %ids: i64[B]) -> (f32[B, 8], f32[B, 4]) {
          %w = weight(@f, "w") : bf16[8, 4]
          %wide = cast(%w, dtype=f32)
          %t = transpose(%wide, perm=[1, 0])
          %y = matmul(%x, %t)
          %e = gather(%wide, %ids)
          return %y, %e
        }

    After::

        graph @main(%x: f32[B, 4], %ids: i64[B]) -> (f32[B, 8], f32[B, 4]) {
          %w = weight(@f, "w") : bf16[8, 4]
          %t.narrow = transpose(%w, perm=[1, 0]) : bf16[4, 8]
          %t = cast(%t.narrow, dtype=f32) : f32[4, 8]
          %y = matmul(%x, %t) : f32[B, 8]
          %e.narrow = gather(%w, %ids) : bf16[B, 4]
          %e = cast(%e.narrow, dtype=f32) : f32[B, 4]
          return %y, %e
        }

    Widening is exact, so the numbers are the same.  Products get the cast itself, which ``hoist-to-init`` leaves to them and ``fuse``
    puts into their loops: so a weight stays as narrow in memory as it is stored.
    """

    def run(self, module: Module, context: PassContext) -> bool:
        sunk = 0
        for graph in walk_graphs(module):
            sunk += _sink(graph)
        context.count("casts sunk", sunk)
        return sunk > 0


def _sink(graph: Graph) -> int:
    known: dict[Operation, None] | None = None
    sunk = 0
    for op in list(graph.walk()):
        moved = _moved(op)
        if not moved or not all(is_widening(v.defining_op) for v in moved):
            continue
        known = known_at_load_time(graph) if known is None else known
        casts = [v.defining_op for v in moved]
        if all(c in known for c in casts) and len({_dtype(c.operands[0]) for c in casts if c is not None}) == 1:
            known.update((o, None) for o in _swap(op, moved) if op in known)
            sunk += 1
    return sunk


def _moved(op: Operation) -> Sequence[Value]:
    every = _MOVES.get(op.definition)
    return () if every is None else op.operands if every else op.operands[:1]


def _swap(op: Operation, moved: Sequence[Value]) -> tuple[Operation, ...]:
    """Puts a move of narrow elements and a cast in the place of the move of wide ones."""
    casts = [v.defining_op for v in moved]
    narrow = {v: c.operands[0] for v, c in zip(moved, casts, strict=True) if c is not None}
    type_ = op.results[0].type
    dtype = _dtype(next(iter(narrow.values())))
    assert isinstance(type_, TensorType) and dtype is not None and op.block is not None
    move = clone_operation(op, dict(narrow), lambda name: f"{name}.narrow")
    op.block.insert_before(op, move)
    move.results[0].type = TensorType(dtype, type_.shape)
    move.results[0].auto_named = True
    with Builder.before_op(op):
        wide = cast(move.results[0], dtype=f32)
    replace_op(op, [wide])
    for old in dict.fromkeys(c for c in casts if c is not None):
        erase_if_dead(old)
    assert wide.defining_op is not None
    return move, wide.defining_op


def _dtype(value: Value) -> DType | None:
    return value.type.dtype if isinstance(value.type, TensorType) else None
