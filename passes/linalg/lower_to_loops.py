"""Pass ``lower-to-loops``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Block, Module, Operation, Trivia, Value
from ir.dims import Dim, substitute
from ir.layout import LAYOUT, IndexExpr, LoopDim, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from ir.types import MemRefType, ScalarType
from passes.infra.base import Pass, PassContext
from passes.linalg._fusion import Nest, Output, Read, carried_operands
from passes.linalg._roles import Roles
from passes.loops._loops import Access, change_form, create_loop, end_loop, move_into, number_layout, read_layout, value_symbol, write_layout


@dataclass(frozen=True)
class LowerToLoops(Pass):
    """Turns loop nests with index maps into loops that load and store.

    Before::

        graph @main(%A: memref<f32[B, 8]>, %W: memref<f32[8, 4]>, %C: memref<f32[B, 4]>) {
          linalg.generic(i < B, j < 4, %c = %C[i, j]) {
            %zero = arith.constant(0.0) : f32
            %sum = linalg.reduce(k < 8, %a = %A[i, k], %w = %W[k, j], %acc = %zero) {
              %s = math.fma(%a, %w, %acc) : f32
              yield %s
            } : f32
            yield %sum
          }
          return
        }

    After::

        graph @main(%A: memref<f32[B, 8]>, %W: memref<f32[8, 4]>, %C: memref<f32[B, 4]>) {
          scf.parallel(%i = 0 to B, tag="m") {
            scf.parallel(%j = 0 to 4, tag="n") {
              %zero = arith.constant(0.0) : f32
              %sum = scf.for(%k = 0 to 8, %acc = %zero, tag="k") {
                %a = memref.load(%A[%i, %k]) : f32
                %w = memref.load(%W[%k, %j]) : f32
                %s = math.fma(%a, %w, %acc) : f32
                yield %s
              } : f32
              memref.store(%sum, %C[%i, %j])
              yield
            }
            yield
          }
          return
        }

    Each loop gets a tag that says what it is, by which other passes address it:

    - of a sum of products: ``m`` rows, ``n`` columns, ``k`` what is summed over, ``row`` for what is around them;
    - of other nests: ``col`` the innermost loop over neighbouring elements, ``row`` those around it, ``reduce`` what is
      accumulated over neighbouring elements, ``serial`` any other accumulation.

    The loop over neighbouring elements of the result becomes the innermost of its nest.  A dimension marked ``reduce``
    becomes a loop that runs in order.
    """

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            for op in list(graph.walk()):
                if op.name == "linalg.generic" and op.block is not None:
                    _Lowering(Roles(op), context).nest(op, op.block, op, {})
                    changed = True
        return changed


class _Lowering:
    """The lowering of one nest with all inside it.  ``places`` are the loop dimensions as expressions of loop variables."""

    def __init__(self, roles: Roles, context: PassContext) -> None:
        self.roles = roles
        self.context = context
        self._wanted: list[tuple[Value, str]] = []

    def nest(self, op: Operation, block: Block, before: Operation | None, places: dict[str, Dim]) -> None:
        """Builds the loops of a ``linalg.generic`` in front of an operation and erases it."""
        view = Nest(op)
        places = dict(places)
        inside = block
        anchor: Operation | None = before
        loops: list[Operation] = []
        for dim in self.roles.order(op):
            kind = "scf.for" if dim.reduce else "scf.parallel"
            loop = self._loop(op, kind, dim, inside, anchor, places, ())
            loops.append(loop)
            inside, anchor = loop.regions[0].block, None
        if loops and op.trivia is not None:
            trivia = op.trivia
            loops[0].trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)
            op.trivia = None
        self._reads(view.op, view.reads, inside, anchor, places)
        self._reads(op, [o for o in view.outputs if o.argument.has_uses], inside, anchor, places)
        self._body(view, inside, anchor, places)
        for output, value in zip(view.outputs, self._yielded(op), strict=True):
            self._access(op, "memref.store", Access(output.buffer, self._indices(output.indices, places)), inside, anchor, value)
        for loop in loops:
            end_loop(loop)
        self.context.count("loops made", len(loops))
        op.erase()
        self._rename(block)

    def _rename(self, block: Block) -> None:
        """What is loaded gets the name of the argument that it stands for, which is free now."""
        assert block.graph is not None
        for value, name in self._wanted:
            block.graph.rename(value, name)
            value.auto_named = True
        self._wanted.clear()

    def reduce(self, op: Operation, places: dict[str, Dim]) -> None:
        """Replaces a ``linalg.reduce`` by loops that carry what is accumulated."""
        view = Nest(op)
        places = dict(places)
        assert op.block is not None
        inside = op.block
        anchor: Operation | None = op
        carried: list[Value] = carried_operands(op)
        loops: list[Operation] = []
        for dim in view.dims:
            loop = self._loop(op, "scf.for", dim, inside, anchor, places, carried)
            loops.append(loop)
            inside, anchor = loop.regions[0].block, None
            carried = inside.arguments[1:]
        arguments = op.regions[0].block.arguments[len(view.reads) :]
        for old, new in zip(arguments, carried, strict=True):
            old.replace_all_uses_with(new)
        self._reads(view.op, view.reads, inside, anchor, places)
        self._body(view, inside, anchor, places)
        values = self._yielded(op)
        for loop in reversed(loops):
            end_loop(loop, values)
            values = list(loop.results)
        results = list(op.results)
        for old, new in zip(results, values, strict=True):
            old.replace_all_uses_with(new)
        names = [r.name for r in results]
        graph = op.graph
        op.erase()
        if graph is not None and loops:
            for value, name in zip(loops[0].results, names, strict=True):
                graph.rename(value, name)
        self._rename(inside)
        self.context.count("loops made", len(loops))

    def _loop(
        self, nest: Operation, kind: str, dim: LoopDim, block: Block, before: Operation | None, places: dict[str, Dim], carried: Sequence[Value]
    ) -> Operation:
        builder = Builder(block, before, loc=nest.loc)
        tag = self.roles.tag(nest, dim.name)
        loop = create_loop(builder, kind, RangeArg(0, substitute(dim.bound, places), 1), name=dim.name, tag=tag, initial=carried)
        places[dim.name] = value_symbol(loop.regions[0].block.arguments[0])
        return loop

    def _body(self, view: Nest, block: Block, before: Operation | None, places: dict[str, Dim]) -> None:
        for op in list(view.block):
            if op.definition.is_terminator:
                continue
            if op.name == "linalg.index":
                expr = places[str(op.attributes["dim"])]
                op.results[0].replace_all_uses_with(_variable(expr, view.op))
                op.erase()
                continue
            move_into(op, block, before)
            if op.name == "linalg.generic":
                self.nest(op, block, op, places)
            elif op.name == "linalg.reduce":
                self.reduce(op, places)
            else:
                self._place(op, places)

    def _place(self, op: Operation, places: dict[str, Dim]) -> None:
        """Loop variables in the place of loop dimensions, in everything an operation and those inside it say."""
        for inner in list(op.walk()):
            if inner.name == "linalg.index":
                inner.results[0].replace_all_uses_with(_variable(places[str(inner.attributes["dim"])], inner))
                inner.erase()
            elif inner is not op and inner.name in ("linalg.generic", "linalg.reduce"):
                raise NotImplementedError(f"{inner.name} inside {op.name}")
            elif LAYOUT in inner.attributes:
                write_layout(inner, [change_form(f, lambda e: substitute(e, places)) for f in read_layout(inner)])

    def _yielded(self, op: Operation) -> list[Value]:
        terminator = op.regions[0].block.terminator
        return [] if terminator is None else terminator.operands

    def _indices(self, indices: Sequence[Dim], places: dict[str, Dim]) -> tuple[IndexExpr, ...]:
        return tuple(IndexExpr(substitute(e, places)) for e in indices)

    def _reads(self, nest: Operation, reads: Sequence[Read | Output], block: Block, before: Operation | None, places: dict[str, Dim]) -> None:
        for read in reads:
            loaded = self._access(nest, "memref.load", Access(read.buffer, self._indices(read.indices, places)), block, before)
            assert loaded is not None
            read.argument.replace_all_uses_with(loaded)
            self._wanted.append((loaded, read.argument.name))

    def _access(
        self, nest: Operation, name: str, access: Access, block: Block, before: Operation | None, value: Value | None = None
    ) -> Value | None:
        graph = block.graph
        assert graph is not None and isinstance(access.buffer.type, MemRefType)
        operands, layout = number_layout([access] if value is None else [value, access], graph)
        attributes: Any = {LAYOUT: layout}
        types = [ScalarType(access.buffer.type.dtype)] if value is None else []
        op = Builder(block, before, loc=nest.loc).create(REGISTRY[name], operands, attributes, result_types=types, name="x")
        return op.results[0] if value is None else None


def _variable(expr: Dim, op: Operation) -> Value:
    """The loop variable that an expression is."""
    graph = op.graph
    assert graph is not None
    return graph.names[str(expr).removeprefix("%")]
