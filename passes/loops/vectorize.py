"""Pass ``vectorize``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dialects.arith.comparison import cmpi
from ir.builtin import yield_
from ir.core import Block, Module, Operation, Region, Trivia, Value
from ir.dims import DimExpr, DimFunction, dim_min
from ir.layout import LAYOUT, OperandArg, RangeArg, layout_of, operand_symbol
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from ir.types import ScalarType, boolean
from passes.infra.base import Pass, PassContext
from passes.loops._indices import Dimensions, Index, combine, compute, difference, find_dimensions, index_of, number
from passes.loops._vectorizer import Analysis, Axis, CannotVectorize, Emitter


@dataclass(frozen=True)
class Vectorize(Pass):
    """Turns parallel loops of known size into vectors: their rounds become lanes.

    Before::

        scf.parallel(%i = %it to %it+8, tag="m") {
          scf.parallel(%j = %jt to %jt+48, tag="n") {
            %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {
              %a = memref.load(%A[%i, %k]) : f32
              %b = memref.load(%B[%k, %j]) : f32
              %t = math.fma(%a, %b, %acc) : f32
              yield %t
            } : f32
            memref.store(%s, %C[%i, %j])
            yield
          }
          yield
        }

    After ``vectorize{loops=[m, n]}``::

        %zero.broadcast = vector.broadcast(%zero) : vector<f32[8, 48]>
        %s = scf.for(%k = 0 to K, %acc = %zero.broadcast, tag="k") {
          %a = vector.load(%A[%it:+8, %k]) : vector<f32[8, 1]>
          %b = vector.load(%B[%k, %jt:+48]) : vector<f32[1, 48]>
          %t = math.fma(%a, %b, %acc) : vector<f32[8, 48]>
          yield %t
        } : vector<f32[8, 48]>
        vector.store(%s, %C[%it:+8, %jt:+48])

    ``loops`` are the tags of a perfect nest of ``scf.parallel``, outermost first; each becomes an axis.  A value has size
    1 along axes that it does not differ along, and stays a scalar when there are none.  Loops inside stay loops.  The last
    loop may end at ``min(start+K, N)``: then its vectors have K lanes, of which ``N - start`` are loaded and stored
    (``valid=``).

    A nest stays as it is, and the statistics say why, when a loop has no constant number of rounds, the block has more
    than ``limit`` elements, or the body has something that is not one operation on vectors: a variable in two indices or
    with a factor, an index that is computed from what varies, a choice that varies, a store that all rounds do to one
    place, an integer division in lanes that may be unused, an allocation.
    """

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    loops: tuple[str, ...] = ("m", "n")
    limit: int = 1024

    def __post_init__(self) -> None:
        if not self.loops:
            raise ValueError("loops: expected one tag or more")

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            changed |= self._block(graph.block, context)
        return changed

    def _block(self, block: Block, context: PassContext) -> bool:
        changed = False
        for op in block:
            nest = find_nest(op, self.loops)
            if nest is not None:
                try:
                    _Nest(nest, self.limit).run()
                except CannotVectorize as problem:
                    context.count(f"left: {problem.reason}")
                else:
                    context.count("nests vectorized")
                    changed = True
                    continue
            for region in op.regions:
                changed |= self._block(region.block, context)
        return changed


def find_nest(op: Operation, tags: Sequence[str]) -> list[Operation] | None:
    """The loops with these tags, each the only operation in the one before."""
    nest: list[Operation] = []
    for tag in tags:
        if nest:
            block = nest[-1].regions[0].block
            if block.first is None or block.first.next is not block.terminator:
                return None
            op = block.first
        if op.definition.full_name != "scf.parallel" or op.attribute("tag") != tag or len(layout_of(op)) != 1:
            return None
        nest.append(op)
    return nest


class _Nest:
    """One nest that becomes vectors.  Raises CannotVectorize before anything has changed."""

    def __init__(self, loops: list[Operation], limit: int) -> None:
        self.loops = loops
        self.starts: dict[Value, Index] = {}
        self.end: Index | None = None  # of the last loop, where it may stop before its last lane
        axes = [self._axis(op) for op in loops]
        size = math.prod(a.size for a in axes)
        if size > limit:
            raise CannotVectorize(f"more than {limit} elements")
        self.analysis = Analysis(axes)

    def _axis(self, op: Operation) -> Axis:
        bounds = layout_of(op)[0]
        assert isinstance(bounds, RangeArg)
        variable = op.regions[0].block.arguments[0]
        start, stop = index_of(op, bounds.start), index_of(op, bounds.stop)
        self.starts[variable] = start
        if bounds.step != 1:
            raise CannotVectorize("a loop with a step")
        if any(v in self.starts for v in (*start.values, *stop.values)):
            raise CannotVectorize("a loop whose bounds depend on another one")
        size = difference(stop, start).dim
        if isinstance(size, int) and size > 0:
            return Axis(variable, size)
        partial = _partial(start, stop)
        if partial is None or op is not self.loops[-1]:
            raise CannotVectorize("a loop without a constant number of rounds")
        self.end = partial[1]
        return Axis(variable, partial[0], masked=True)

    def run(self) -> None:
        """Replaces the nest."""
        outer, inner = self.loops[0], self.loops[-1]
        self.analysis.block(inner.regions[0].block)
        needed = [self.starts[v] for v in self.starts if v in self.analysis.used]
        if self.end is not None:
            needed += [self.starts[self.analysis.axes[-1].variable], self.end]
        dimensions = find_dimensions(needed, outer)
        if isinstance(dimensions, str):
            raise CannotVectorize(f"no buffer around has dimension {dimensions}")
        may_be_empty = self.end is not None and not self._has_a_round(outer)
        block, anchor, previous = outer.block, outer.next, outer.prev
        assert block is not None
        outer.remove()  # so that its names are free
        emitter = Emitter(self.analysis, block, anchor, self.starts)
        emitter.loc = inner.loc
        emitter.origin = f"{self.analysis.axes[-1].variable.name}."
        self._emit(emitter, dimensions, may_be_empty)
        first = previous.next if previous is not None else block.first
        if outer.trivia is not None and first is not None and first is not anchor:
            trivia, outer.trivia = outer.trivia, None
            first.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)
        outer.erase()

    def _has_a_round(self, outer: Operation) -> bool:
        """Whether the last loop surely runs: a loop around the nest runs through its starts and ends where it does."""
        start = self.starts[self.analysis.axes[-1].variable]
        around = outer.block.parent.parent if outer.block is not None and outer.block.parent is not None else None
        while around is not None:
            bounds = layout_of(around)[0] if around.definition.full_name in ("scf.for", "scf.parallel") else None
            if isinstance(bounds, RangeArg) and start.values == (around.regions[0].block.arguments[0],) and _is_first(start):
                return index_of(around, bounds.stop) == self.end
            around = around.block.parent.parent if around.block is not None and around.block.parent is not None else None
        return isinstance(start.dim, int) and self.end is not None and isinstance(self.end.dim, int) and start.dim < self.end.dim

    def _emit(self, emitter: Emitter, dimensions: Dimensions, may_be_empty: bool) -> None:
        body = self.loops[-1].regions[0].block
        if self.end is not None:
            left = difference(self.end, self.starts[self.analysis.axes[-1].variable])
            emitter.valid = compute(left, dimensions, emitter.make_index)
        if not may_be_empty:
            emitter.begin(dimensions)
            emitter.body(body)
            return
        assert emitter.valid is not None
        zero = number(0, emitter.make_index)
        some = emitter.make(cmpi, [emitter.valid, zero], {"predicate": "gt"}, [ScalarType(boolean)], ["some"]).results[0]
        region = Region()
        outside, emitter.block = emitter.block, region.block
        anchor, emitter.anchor = emitter.anchor, None
        emitter.begin(dimensions)
        emitter.body(body)
        emitter.make(yield_, [], {}, ())
        emitter.block, emitter.anchor = outside, anchor
        emitter.make(REGISTRY["scf.if"], [some], {LAYOUT: (OperandArg(0),)}, (), (), [region])


def _is_first(part: Index) -> bool:
    """Whether the expression is nothing but its first value."""
    return part.dim == operand_symbol(0)


def _partial(start: Index, stop: Index) -> tuple[int, Index] | None:
    """For a stop ``min(start + K, ...)``: K and the rest."""
    dim = stop.dim
    if not isinstance(dim, DimExpr) or len(dim.terms) != 1 or dim.terms[0][1] != 1 or len(dim.terms[0][0]) != 1:
        return None
    atom = dim.terms[0][0][0]
    if not isinstance(atom, DimFunction) or atom.kind != "min":
        return None
    ends = [Index(a, stop.values) for a in atom.args]
    sizes = [difference(e, start).dim for e in ends]
    known = [(s, n) for n, s in enumerate(sizes) if isinstance(s, int)]
    if not known or min(known)[0] < 1:
        return None
    size, chosen = min(known)
    return size, combine(dim_min, *(e for n, e in enumerate(ends) if n != chosen))
