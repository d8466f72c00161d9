"""Pass ``collapse``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dialects.memref import reshape
from ir.builder import Builder
from ir.core import Graph, Module, Operation, Value
from ir.dims import Dim, symbol, symbols_of
from ir.layout import LAYOUT, AccessArg, Argument, BindArg, ExpressionArg, IndexExpr, LoopDim, RangeArg, layout_of
from ir.rewriter import walk_graphs
from ir.types import MemRefType
from passes.infra.base import Pass, PassContext
from passes.linalg._fusion import Nest, is_nest, plain_name


@dataclass(frozen=True)
class Collapse(Pass):
    """Makes one loop dimension of two neighbouring ones that every access treats as one.

    Before::

        graph @main(%A: memref<f32[B, S, 8]>, %C: memref<f32[B, S, 8]>) {
          linalg.generic(i < B, j < S, k < 8, %a = %A[i, j, k], %c = %C[i, j, k]) {
            %r = arith.negf(%a) : f32
            yield %r
          }
          return
        }

    After::

        graph @main(%A: memref<f32[B, S, 8]>, %C: memref<f32[B, S, 8]>) {
          %A.flat = memref.reshape(%A) : memref<f32[8*B*S]>
          %C.flat = memref.reshape(%C) : memref<f32[8*B*S]>
          linalg.generic(i < 8*B*S, %a = %A.flat[i], %c = %C.flat[i]) {
            %r = arith.negf(%a) : f32
            yield %r
          }
          return
        }

    Two dimensions are one where every access of the nest, nests inside it included, has them as its indices side by
    side, over the whole of the buffer's second dimension, or has neither.
    """

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            flat: dict[tuple[Value, int], Value] = {}
            for op in list(graph.block):
                while op.name == "linalg.generic" and is_nest(op) and _collapse_one(graph, op, flat):
                    context.count("dimensions collapsed")
                    changed = True
        return changed


def _collapse_one(graph: Graph, op: Operation, flat: dict[tuple[Value, int], Value]) -> bool:
    dims = Nest(op).dims
    used = {o.attributes["dim"] for o in op.walk() if o.name == "linalg.index"}
    for first, second in zip(dims, dims[1:], strict=False):
        if first.name in used or second.name in used:
            continue
        if all(_side_by_side(inner, first, second) for inner in op.walk() if LAYOUT in inner.attributes):
            for inner in op.walk():
                if LAYOUT in inner.attributes:
                    _merge(inner, first, second, op, flat)
            layout = [a for a in layout_of(op) if not (isinstance(a, LoopDim) and a.name == second.name)]
            merged = LoopDim(first.name, first.bound * second.bound)
            changed: Any = tuple(merged if isinstance(a, LoopDim) and a.name == first.name else a for a in layout)
            op.set_attribute(LAYOUT, changed)
            return True
    return False


def _accesses(op: Operation) -> list[AccessArg]:
    sources = [a.source if isinstance(a, BindArg) else a for a in layout_of(op)]
    return [s for s in sources if isinstance(s, AccessArg)]


def _position(op: Operation, access: AccessArg, first: LoopDim, second: LoopDim) -> int | None:
    """Where an access has the two dimensions side by side; -1 for nowhere, None when it has them in another way."""
    exprs = [i.expr for i in access.indices]
    touched = [n for n, e in enumerate(exprs) if first.name in symbols_of(e) or second.name in symbols_of(e)]
    if not touched:
        return -1
    at = touched[0]
    buffer = op.operand_uses[access.position].value.type
    if touched != [at, at + 1] or plain_name(exprs[at]) != first.name or plain_name(exprs[at + 1]) != second.name:
        return None
    if any(access.indices[n].size is not None for n in touched) or not isinstance(buffer, MemRefType):
        return None
    return at if buffer.shape[at + 1] == second.bound else None


def _expressions(argument: Argument) -> tuple[Dim, ...]:
    """The expressions in an argument that is no access."""
    if isinstance(argument, LoopDim):
        return (argument.bound,)
    if isinstance(argument, RangeArg):
        return (argument.start, argument.stop, argument.step)
    return (argument.expr,) if isinstance(argument, ExpressionArg) else ()


def _side_by_side(op: Operation, first: LoopDim, second: LoopDim) -> bool:
    names = (first.name, second.name)
    for argument in layout_of(op):
        if any(n in symbols_of(e) for e in _expressions(argument) for n in names):
            return False
    return all(_position(op, a, first, second) is not None for a in _accesses(op))


def _merge(op: Operation, first: LoopDim, second: LoopDim, nest: Operation, flat: dict[tuple[Value, int], Value]) -> None:
    operands = op.operands
    merged: dict[int, AccessArg] = {}
    shared = [a.position for a in _accesses(op)]
    for access in _accesses(op):
        at = _position(op, access, first, second)
        if at is None or at < 0:
            continue
        indices = (*access.indices[:at], IndexExpr(symbol(first.name)), *access.indices[at + 2 :])
        position = access.position
        if shared.count(position) > 1:  # the operand is used in another way as well
            position = len(operands)
            operands.append(operands[access.position])
        operands[position] = _flat_buffer(op.operand_uses[access.position].value, at, nest, flat)
        merged[id(access)] = AccessArg(position, indices)

    def changed(argument: object) -> object:
        if isinstance(argument, BindArg):
            return BindArg(merged.get(id(argument.source), argument.source))  # type: ignore[arg-type]
        return merged.get(id(argument), argument)

    layout = tuple(changed(a) for a in layout_of(op))
    op.set_operands(operands)
    op.set_attribute(LAYOUT, layout)  # type: ignore[arg-type]


def _flat_buffer(buffer: Value, at: int, nest: Operation, flat: dict[tuple[Value, int], Value]) -> Value:
    if (buffer, at) not in flat:
        type_ = buffer.type
        assert isinstance(type_, MemRefType)
        shape: tuple[Dim, ...] = (*type_.shape[:at], type_.shape[at] * type_.shape[at + 1], *type_.shape[at + 2 :])
        owner = buffer.defining_op
        block = nest.block
        assert block is not None
        before = owner.next if owner is not None and owner.block is block else block.first
        builder = Builder(block, before, loc=nest.loc)
        name = buffer.name if buffer.name.endswith(".flat") else f"{buffer.name}.flat"
        flat[buffer, at] = builder.create(reshape, [buffer], result_types=[MemRefType(type_.dtype, shape)], name=name).result
    return flat[buffer, at]
