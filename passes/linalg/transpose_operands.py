"""Pass ``transpose-operands``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Module, Operation, Region, Value
from ir.dims import Dim, product, symbol, symbols_of
from ir.layout import LAYOUT, AccessArg, BindArg, IndexExpr, LoopDim
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from ir.types import MemRefType, ScalarType
from passes.infra.base import Pass, PassContext
from passes.linalg._fusion import Nest, Read, is_nest, nested_nests, plain_name, root, set_bindings
from passes.linalg._roles import Roles
from passes.memory._sizes import Sizes

_STORED = ("graph.weight", "graph.constant", "graph.initial")


@dataclass(frozen=True)
class TransposeOperands(Pass):
    """Copies the factors of products so that neighbouring columns are neighbours in memory.

    Before::

        graph @main(%A: memref<f32[S, 8]>, %B: memref<f32[T, 8]>, %C: memref<f32[S, T]>) {
          linalg.generic(i < S, j < T, %c = %C[i, j]) {
            %zero = arith.constant(0.0) : f32
            %sum = linalg.reduce(k < 8, %a = %A[i, k], %b = %B[j, k], %acc = %zero) {
              %s = math.fma(%a, %b, %acc) : f32
              yield %s
            } : f32
            yield %sum
          }
          return
        }

    After::

        graph @main(%A: memref<f32[S, 8]>, %B: memref<f32[T, 8]>, %C: memref<f32[S, T]>) {
          %b.columns = memref.alloc() : memref<f32[8, T]>
          linalg.generic(k < 8, j < T, %b.element = %B[j, k], %b.old = %b.columns[k, j]) {
            yield %b.element
          }
          linalg.generic(i < S, j < T, %c = %C[i, j]) {
            %zero = arith.constant(0.0) : f32
            %sum = linalg.reduce(k < 8, %a = %A[i, k], %b = %b.columns[k, j], %acc = %zero) {
              %s = math.fma(%a, %b, %acc) : f32
              yield %s
            } : f32
            yield %sum
          }
          return
        }

    Weights and constants stay: ``pack`` arranges them once, when the program is loaded.  With ``near`` matrices stay whose
    columns have so many bytes at most: ``pack`` makes a panel of some columns where they are read, while it is in the cache; of a batch it makes
    panels in front.

    The statistics tell the bytes that nests transpose when the program runs, those of this pass among them.
    """

    near: int = 0
    """most bytes of a column of a matrix that is left to ``pack``"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            for op in list(graph.block):
                if op.name == "linalg.generic" and is_nest(op):
                    changed |= _transpose(op, self.near, context)
            turned = [_turned_bytes(op) for op in graph.block if op.name == "linalg.generic" and is_nest(op)]
            if any(turned):
                Sizes(graph).report(context, "bytes transposed by nests", sum(turned, 0))
        return changed


def _turned_bytes(op: Operation) -> Dim:
    """How much a nest stores in another order than it reads it in."""
    nest, roles = Nest(op), Roles(op)
    if not any(roles.tag(op, d.name) == "cross" for d in nest.dims):
        return 0
    type_ = nest.outputs[0].buffer.type
    assert isinstance(type_, MemRefType)
    return product(d.bound for d in nest.dims) * type_.dtype.itemsize


def _transpose(op: Operation, near: int, context: PassContext) -> bool:
    roles = Roles(op)
    columns = [d.name for d in Nest(op).dims if roles.tag(op, d.name) == "n"]
    rows = [d.name for d in Nest(op).dims if roles.tag(op, d.name) == "m"]
    if not columns or not rows:
        return False
    changed = False
    for nest in list(nested_nests(op)):
        if nest.op.name != "linalg.reduce" or not all(roles.tag(nest.op, d.name) == "k" for d in nest.dims):
            continue
        for position, read in enumerate(nest.reads):
            bounds = {d.name: d for d in (*Nest(op).dims, *nest.dims)}
            if not _is_crosswise(read, columns[0], bounds) or _is_near(read, columns[0], near):
                continue
            copy = _copy_nest(op, read, columns[0], bounds)
            set_bindings(nest.op, [*nest.reads[:position], copy, *nest.reads[position + 1 :]], nest.outputs)
            nest = Nest(nest.op)
            context.count("factors transposed in front of a product")
            changed = True
    return changed


def _is_crosswise(read: Read, column: str, bounds: dict[str, LoopDim]) -> bool:
    """Whether neighbouring columns are apart in memory that is made while the program runs."""
    used = [symbols_of(e) for e in read.indices]
    if not any(column in u for u in used) or column in used[-1]:
        return False
    if not all(n in bounds or not n.startswith("%") for u in used for n in u):
        return False
    maker = root(read.buffer).defining_op
    return maker is None or maker.name != "memref.from_tensor" or maker.operands[0].defining_op is None or (
        maker.operands[0].defining_op.name not in _STORED
    )


def _is_near(read: Read, column: str, near: int) -> bool:
    """Whether ``pack`` arranges a factor where it is read."""
    type_ = read.buffer.type
    assert isinstance(type_, MemRefType)
    if len(type_.shape) < 2 or read.indices[-2] != symbol(column) or any(plain_name(i) is None for i in read.indices):
        return False
    lines = type_.shape[-1]
    return isinstance(lines, int) and lines * type_.dtype.itemsize <= near


def _copy_nest(op: Operation, read: Read, column: str, bounds: dict[str, LoopDim]) -> Read:
    """A nest in front of ``op`` that copies what a read meets; returns the read of the copy."""
    names = dict.fromkeys(n for e in read.indices for n in symbols_of(e) if n in bounds)
    order = [n for n in bounds if n in names and n != column] + [column]
    type_ = read.buffer.type
    assert isinstance(type_, MemRefType) and op.block is not None
    builder = Builder(op.block, op, loc=op.loc)
    shape = tuple(bounds[n].bound for n in order)
    made = MemRefType(type_.dtype, shape)
    name = read.argument.name
    buffer: Value = builder.create(REGISTRY["memref.alloc"], [], {LAYOUT: ()}, result_types=[made], name=f"{name}.columns").result
    region = Region()
    element = region.block.add_argument(f"{name}.element", ScalarType(type_.dtype))
    region.block.add_argument(f"{name}.old", ScalarType(type_.dtype))
    Builder(region.block, loc=op.loc).create(yield_, [element])
    place: tuple[Dim, ...] = tuple(map(symbol, order))
    layout: Any = (
        *(LoopDim(n, bounds[n].bound) for n in order),
        BindArg(AccessArg(0, tuple(map(IndexExpr, read.indices)))),
        BindArg(AccessArg(1, tuple(map(IndexExpr, place)))),
    )
    builder.create(REGISTRY["linalg.generic"], [read.buffer, buffer], {LAYOUT: layout}, regions=[region], result_types=())
    return Read(read.argument, buffer, place)
