"""Pass ``map-sorts``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dialects.graph._shapes import normalize_axis
from dialects.memref import from_tensor, to_tensor
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.rewriter import replace_op
from ir.types import TensorType, is_known
from passes.gpu._nests import device_graphs, host_blocks
from passes.gpu._sorts import RowsOf, keep_most_probable, sort_rows
from passes.infra.base import Pass, PassContext
from passes.linalg._sorting import check_count
from passes.loops._blocks import alloc

SORTS = ("sort", "argsort", "topk", "top_p")
"""Operations that ``lower-to-linalg`` keeps for this pass."""


@dataclass(frozen=True)
class MapSorts(Pass):
    """Turns operations that put rows in order into kernels, in which a block sorts a piece of a row in shared memory.

    Before::

        %t = memref.to_tensor(%A) : f32[B, 4096]
        %s = sort(%t)
        %C = memref.from_tensor(%s) : memref<f32[B, 4096]>

    After::

        %C = memref.alloc() : memref<f32[B, 4096]>
        %s.work = memref.alloc() : memref<f32[2, B, 4096]>
        gpu.launch(%block = 0 to 2*B, threads=1024, name="s", tag="sort") {...}
        gpu.launch(%block.1 = 0 to B, threads=1024, name="s", tag="sort") {...}

    It runs on what ``lower-to-linalg{keep=[sort, argsort, topk, top_p]}`` has left. A piece of up to 2048
    elements goes through a bitonic network; the places that elements came from go along and decide between equal ones, so the order is
    that of a stable sort. The pieces of longer rows are merged in a second kernel, by a block for each row, in which every element
    looks for its place in the run beside its own. For the first up to 256 of a row the first of each piece are enough, and the first of those.
    ``top_p`` sorts a row and adds up the most probable, in f64.
    """

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in device_graphs(module):
            for block in list(host_blocks(graph.block)):
                for op in list(block):
                    if op.definition.dialect == "graph" and op.definition.name in SORTS and is_known(op.operands[0].type):
                        _map(op)
                        context.count(f"{op.definition.name} mapped")
                        changed = True
        return changed


def _map(op: Operation) -> None:
    """Replaces one operation."""
    name = op.definition.name
    x = op.operands[0]
    assert isinstance(x.type, TensorType)
    written: Any = -1 if name == "top_p" else op.attribute("axis")
    axis = normalize_axis(written, x.type.rank)
    with Builder.before_op(op):
        source = _buffer_of(x)
        if name == "topk" and not isinstance(x.type.shape[axis], int):
            count: Any = op.attribute("k")
            check_count(source, axis, count)
        results = []
        for result in op.results:
            assert isinstance(result.type, TensorType)
            results.append(alloc(f"{result.name}.buffer", result.type.dtype, *result.type.shape))
        rows = [RowsOf(r, axis) for r in results]
        if name == "top_p":
            limit: Any = op.attribute("p")
            keep_most_probable(op.results[0].name, RowsOf(source, axis), rows[0], limit)
        else:
            descending = bool(op.attribute("largest" if name == "topk" else "descending"))
            values = None if name == "argsort" else rows[0]
            places = None if name == "sort" else rows[-1]
            sort_rows(op.results[0].name, RowsOf(source, axis), descending, values, places)
        _hand_on(op, results)
    made = x.defining_op
    if made is not None and made.name == "memref.to_tensor" and not x.has_uses:
        made.erase()


def _buffer_of(x: Value) -> Value:
    """The buffer that a tensor was taken out of, or one that shows it."""
    made = x.defining_op
    if made is not None and made.name == "memref.to_tensor":
        return made.operands[0]
    return from_tensor(x)  # type: ignore[no-any-return]


def _hand_on(op: Operation, buffers: list[Value]) -> None:
    """Uses buffers in the place of results; the tensor only where something wants it."""
    values = []
    for result, buffer in zip(op.results, buffers, strict=True):
        for user in result.users:
            if user.name == "memref.from_tensor":
                user.results[0].replace_all_uses_with(buffer)
                user.erase()
        values.append(to_tensor(buffer))
    replace_op(op, values)
    for value in values:
        made = value.defining_op
        if not value.has_uses and made is not None:
            made.erase()
