"""Pass ``lower-to-linalg``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, Literal

from ir.core import Block, Graph, Module, Operation, Trivia, Value
from ir.references import load_time_graphs
from ir.rewriter import replace_op, walk_graphs
from ir.types import TensorType, is_known
from passes.infra.base import Pass, PassContext
from passes.linalg import _carried, _effects, _elementwise, _indexing, _moves, _powers, _quantized, _reductions, _sampling, _scans, _softmax, _sorting
from passes.linalg._nests import Lowering

_LOWERINGS: dict[str, Callable[[Lowering], list[Value]]] = {
    **dict.fromkeys((*_elementwise.COMPUTED, *_elementwise.MOVED), _elementwise.elementwise),
    "pow": _powers.power,
    "matmul": _reductions.matmul,
    "sum": _reductions.summed,
    "prod": _reductions.multiplied,
    "mean": _reductions.averaged,
    "max": _reductions.extreme,
    "min": _reductions.extreme,
    "softmax": _softmax.softmax,
    "log_softmax": _softmax.log_softmax,
    "any": _reductions.truth,
    "all": _reductions.truth,
    **dict.fromkeys(("reshape", "squeeze", "unsqueeze", "flatten"), _moves.reshaped),
    "transpose": _moves.transposed,
    "expand": _moves.expanded,
    "flip": _moves.flipped,
    "slice": _moves.sliced,
    "concat": _moves.concatenated,
    "split": _moves.divided,
    "pad": _moves.padded,
    "full": _moves.filled,
    "iota": _moves.counted,
    "dim": _moves.dimension,
    "tril": _moves.triangle,
    "triu": _moves.triangle,
    "dequantize": _quantized.dequantized,
    "pack_rows": _quantized.packed,
    "gather": _indexing.gathered,
    "gather_elements": _indexing.gathered_elements,
    "scatter": _indexing.scattered,
    "argmax": _scans.place_of_extreme,
    "argmin": _scans.place_of_extreme,
    "sort": _sorting.in_order,
    "argsort": _sorting.in_order,
    "topk": _sorting.largest,
    "cumsum": _scans.running_sum,
    "uniform": _sampling.uniform,
    "dropout": _sampling.dropout,
    "multinomial": _sampling.multinomial,
    "top_p": _sampling.top_p,
    "cache_update": _effects.cache_updated,
    "assert": _effects.asserted,
}

_STORED = ("graph.constant", "graph.weight", "graph.initial")
"""Tensors that are there before the program runs; they are read where they are."""


@dataclass(frozen=True)
class LowerToLinalg(Pass):
    """Turns tensor operations into loop nests over buffers.

    Before::

        graph @main(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %z = add(%x, %y) : f32[B, 4]
          return %z
        }

    After::

        graph @main(%x: f32[B, 4], %y: f32[4]) -> f32[B, 4] {
          %x.buffer = memref.from_tensor(%x) : memref<f32[B, 4]>
          %y.buffer = memref.from_tensor(%y) : memref<f32[4]>
          %z.buffer = memref.alloc() : memref<f32[B, 4]>
          linalg.generic(i < B, j < 4, %z.a = %x.buffer[i, j], %z.b = %y.buffer[j], %z.o = %z.buffer[i, j]) {
            %z.addf = arith.addf(%z.a, %z.b) : f32
            yield %z.addf
          }
          %z = memref.to_tensor(%z.buffer) : f32[B, 4]
          return %z
        }

    Run ``inline`` and ``decompose`` before it.  The signature of a graph stays.  Every buffer is written by the nests of
    one operation and only read afterwards; reshapes share memory.  f16 and bf16 are computed in f32 and rounded once,
    sums of them at the end; an element of a matrix product is one chain of ``math.fma`` over ascending k from zero.

    ``cache_update`` writes into the memory of its ``inout`` parameter (``memref.of_inout``); what may fail is checked by
    ``cf.assert``.  An operation without a lowering (print, calls, what has open types) stays as it is, between
    ``memref.to_tensor`` and ``memref.from_tensor``; the statistics name those.  Graphs that run once, when the program is
    loaded (see ``hoist-to-init``), stay tensor operations.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    keep: tuple[str, ...] = ()
    """operations that stay as they are, for a pass that has another form for them"""

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        at_load_time = load_time_graphs(module)
        for graph in walk_graphs(module):
            if graph.name in at_load_time:
                continue
            changed |= _lower_graph(graph, self.keep, context)
        return changed


def _lower_graph(graph: Graph, keep: Collection[str], context: PassContext) -> bool:
    low = Lowering(graph, _effects.updated_parameters(graph))
    changed = _lower_block(low, graph.block, keep, context)
    for op in reversed(low.tensors):
        if not op.result.has_uses:
            op.erase()
    return changed


def _lower_block(low: Lowering, block: Block, keep: Collection[str], context: PassContext) -> bool:
    changed = False
    for op in list(block):
        if op.regions:
            buffers = _carried.enter(low, op) if _carried.hands_on_tensors(op) else None
            for region in op.regions:
                changed |= _lower_block(low, region.block, keep, context)
            if buffers is not None:
                _carried.leave(low, op, buffers)
                context.count(f"{op.definition.text_name} without tensors")
                changed = True
        if op.definition.dialect != "graph" or op.definition.is_terminator:
            continue
        name = op.definition.text_name
        if name not in keep and _can_lower(low, op):
            _lower(low, op)
            context.count(f"{name} lowered")
            changed = True
        elif op.name not in _STORED:
            context.count(f"{name} left as a tensor operation")
    return changed


def _can_lower(low: Lowering, op: Operation) -> bool:
    name = op.definition.name
    if name not in _LOWERINGS or not all(isinstance(v.type, TensorType) and is_known(v.type) for v in (*op.operands, *op.results)):
        return False
    if op.definition.updates is not None:
        version = op.operand(op.definition.updates)
        return version is not None and op.block is low.graph.block and low.is_in_place(version)
    if name in _elementwise.COMPUTED or name in _elementwise.MOVED:
        return _elementwise.can_lower(op)
    if name in ("matmul", "sum", "prod", "mean", "any", "all", "max", "min"):
        return name == "matmul" or _reductions.can_reduce(op)
    return True


def _lower(low: Lowering, op: Operation) -> None:
    """Replaces one operation by nests and what they leave in its buffers."""
    low.begin(op)
    buffers = _LOWERINGS[op.definition.name](low)
    values = [low.tensor_of(b, r) for b, r in zip(buffers, op.results, strict=True)]
    first, trivia = low.builder.created[0], op.trivia
    if trivia is not None:
        first.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)
        op.trivia = None
    replace_op(op, values)
