"""Pass ``poison``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dialects.arith.constant import constant
from ir.attributes import Dense
from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Block, Graph, Module, Operation, Region, Value
from ir.layout import LAYOUT, AccessArg, IndexExpr, OperandArg, RangeArg, operand_symbol
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from ir.types import DType, MemRefType, ScalarType, index, u8
from passes.infra.base import Pass, PassContext

_ORIGIN = "poison"


@dataclass(frozen=True)
class Poison(Pass):
    """Fills the buffers of an arena with garbage behind their last use, so that a plan that frees memory too early shows.

    Before::

        %arena = memref.alloc() : memref<u8[512*B]>
        %a = memref.view(%arena, offset=0) : memref<f32[B, 64]>
        linalg.generic(i < B, j < 64, %p = %x[i, j], %o = %a[i, j]) {...}
        linalg.generic(i < B, j < 64, %q = %a[i, j], %r = %b[i, j]) {...}

    After::

        %arena = memref.alloc() : memref<u8[512*B]>
        %a = memref.view(%arena, offset=0) : memref<f32[B, 64]>
        linalg.generic(i < B, j < 64, %p = %x[i, j], %o = %a[i, j]) {...}
        linalg.generic(i < B, j < 64, %q = %a[i, j], %r = %b[i, j]) {...}
        scf.parallel(%poison.i = 0 to B) {
          scf.parallel(%poison.i.1 = 0 to 64) {
            %poison.constant = arith.constant(nan) : f32
            memref.store(%poison.constant, %a[%poison.i, %poison.i.1])
            yield
          }
          yield
        }

    NaN for floats, a large number for integers, ``true`` for booleans.  A view of the same place that is touched first where this
    one is touched last has taken its memory over, which then is left alone.  A right plan gives the same bits as before.
    Nothing of the planner is used: what is free follows from the views and who touches them.  For tests; ``GRAPH_OPT_POISON=1``
    runs it behind ``plan-memory`` in everything that is compiled.
    """

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        poisoned = sum(map(_poison, walk_graphs(module)))
        context.count("buffers poisoned", poisoned)
        return poisoned > 0


def _poison(graph: Graph) -> int:
    views = [op for op in graph.block if op.name == "memref.view" and _is_of_arena(op)]
    touching = {op: touching_operations(op.result, graph) for op in views}
    count = 0
    for op, touched in touching.items():
        if touched and not _is_poison(touched[-1]) and not any(_takes_over(other, by, op, touched[-1]) for other, by in touching.items()):
            _store_garbage(graph, touched[-1], op.result)
            count += 1
    return count


def _is_of_arena(view: Operation) -> bool:
    """Whether it is a part of memory that a plan shares: a view of a weight, of what is a part itself, or of a buffer used as it is, is not."""
    made = view.operands[0].defining_op
    if made is None or made.name != "memref.alloc" or any(user.name != "memref.view" for user in made.result.users):
        return False
    type_ = made.result.type
    return isinstance(type_, MemRefType) and type_.dtype == u8 and len(type_.shape) == 1


def _takes_over(other: Operation, touched: list[Operation], view: Operation, last: Operation) -> bool:
    """Whether another view of the same place is touched first by the operation that touches this one last."""
    return other is not view and other.attributes["offset"] == view.attributes["offset"] and bool(touched) and touched[0] is last


def touching_operations(buffer: Value, graph: Graph) -> list[Operation]:
    """Operations of the top level that read or write a buffer, in order."""
    names = {buffer}
    pending = [buffer]
    found: dict[Operation, None] = {}
    for value in pending:
        for user in value.users:
            if user.name in ("memref.reshape", "memref.view") and user.result not in names:
                names.add(user.result)
                pending.append(user.result)
            elif user.name not in ("memref.reshape", "memref.view", "memref.dim", "memref.prefetch", "memref.is_aligned"):
                found[_top_level(user, graph)] = None
    return [op for op in graph.block if op in found]


def _top_level(op: Operation, graph: Graph) -> Operation:
    while op.block is not graph.block:
        assert op.block is not None and op.block.parent is not None and op.block.parent.parent is not None
        op = op.block.parent.parent
    return op


def _is_poison(op: Operation) -> bool:
    """Whether a loop is one of those that this pass makes."""
    while op.name == "scf.parallel" and (first := op.regions[0].block.first) is not None:
        op = first
    store = op.next
    if op.name != "arith.constant" or store is None or store.name != "memref.store":
        return False
    value = op.attributes["value"]
    return isinstance(value, Dense) and value == garbage(value.dtype)


def garbage(dtype: DType) -> Dense:
    """What ``memref.alloc`` fills memory with: NaN of every float type."""
    if dtype.kind == "bool":
        return Dense(np.array(True), dtype)
    raw = np.tile(np.frombuffer(bytes((0xFF, 0x7F)), np.uint8), 4)[: dtype.itemsize]
    return Dense(raw.view(dtype.numpy).reshape(()), dtype)


def _store_garbage(graph: Graph, anchor: Operation, buffer: Value) -> None:
    type_ = buffer.type
    assert isinstance(type_, MemRefType)
    builder = Builder(graph.block, anchor.next, origin=_ORIGIN)
    variables: list[Value] = []
    for dim in type_.shape:
        region = Region()
        region.block.add_argument("poison.i", ScalarType(index))
        layout: Any = {LAYOUT: (RangeArg(0, dim, 1),)}
        builder.create(REGISTRY["scf.parallel"], [], layout, regions=[region], result_types=())
        variables.append(region.block.arguments[0])
        builder = Builder(region.block, origin=_ORIGIN)
    made = builder.create(constant, [], {"value": garbage(type_.dtype)}, result_types=[ScalarType(type_.dtype)])
    access = AccessArg(1, tuple(IndexExpr(operand_symbol(2 + i)) for i in range(len(variables))))
    store: Any = {LAYOUT: (OperandArg(0), access)}
    builder.create(REGISTRY["memref.store"], [made.result, buffer, *variables], store, result_types=())
    for variable in variables:
        assert isinstance(variable.owner, Block)
        Builder(variable.owner).create(yield_, [])
