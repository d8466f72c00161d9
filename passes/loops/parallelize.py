"""Pass ``parallelize``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.core import Block, Module, Operation, Value
from ir.dims import Dim, DimensionTooLarge, DimExpr, apply_function, ceildiv, substitute, symbols_of
from ir.layout import ExpressionArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure, walk_graphs
from ir.types import VectorType
from passes.infra.base import Pass, PassContext
from passes.loops._loops import body, depends_on, extent, inner_loop, is_loop, move_into, ranges, read_layout, upper_bound, write_layout
from passes.loops.interchange import obstacle, swap_loops

LANES = 16
COSTS = {
    "arith.constant": 0, "arith.divf": 4, "arith.divsi": 16, "arith.remsi": 16, "memref.store": 8, "vector.store": 8,
    "math.fma": 1, "math.tanh": 24, "math.sigmoid": 24, "math.silu": 36, "math.gelu": 46, "math.gelu_tanh": 40,
    "math.erf": 30, "math.normcdf": 44, "math.powf": 40,
}  # fmt: skip
"""What an operation costs, in simple ones; others of ``math`` count as 16."""


@dataclass(frozen=True)
class Parallelize(Pass):
    """Lets the threads that run a program share its loops.

    Before::

        scf.parallel(%jt = 0 to 1536 step 48, tag="n.tile") {
          scf.parallel(%it = 0 to M step 8, tag="m.tile") {
            ...

    After::

        scf.parallel(%jt = 0 to 1536 step 48, tag="n.tile", mapping="threads", work=491520*(M ceildiv 8)) {
          scf.parallel(%it = 0 to M step 8, tag="m.tile") {
            ...

    The outermost ``scf.parallel`` of every nest of a graph is shared when the nest may be ``work`` simple operations or more (on
    scalars or vectors of 16 lanes); so are those in ``scf.for`` and ``scf.if`` of a graph that have no results and make no
    memory.  How many operations a nest is, as far as that is known, is written down: when the program runs, the sizes decide whether
    it is worth sharing.  Loops inside it run as before.

    An outermost loop of less than ``few`` rounds is too short to share.  Then the first longer parallel loop of the perfect
    nest changes places with it.  Where there is none, but the loop stands in the graph's own block and holds only loops,
    of which one is longer, it becomes an ``scf.for``, and those inside are shared.

    A loop that may have less than ``many`` rounds is merged with the next loop of its perfect nest, unless there is little to do in
    a round of that (``grain``): ``scf.parallel(%b = 0 to B, %h = 0 to 9)`` can be shared evenly where
    ``scf.parallel(%b = 0 to B)`` can't.

    The rounds of an ``scf.parallel`` don't depend on each other, so they may run in any order and at the same time; the
    results have the same bits for any number of threads.
    """

    work: int = 4096
    """simple operations from which on a nest is shared"""
    few: int = 4
    """an outermost loop of fewer rounds gives way to a longer one"""
    many: int = 16
    """a loop of fewer rounds is merged with the next one in it, so that threads can share them evenly"""
    grain: int = 512
    """but not when a round of that one is less than so many simple operations, eight times as many where the rounds are known"""

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        sharing = _Sharing(self, context)
        for graph in walk_graphs(module):
            sharing.block(graph.block)
        return sharing.changed


class _Sharing:
    def __init__(self, options: Parallelize, context: PassContext) -> None:
        self.work, self.few, self.many, self.grain = options.work, options.few, options.many, options.grain
        self.context = context
        self.changed = False

    def block(self, block: Block, inside: bool = False) -> None:
        """Shares the loops of a block that all threads run; ``inside`` says that it stands in a serial loop or a choice."""
        if inside and any(op.name == "memref.alloc" for op in block):
            return  # memory made inside a loop is that of one thread
        for op in list(block):
            if op.name == "scf.parallel":
                self._nest(op, inside)
            elif op.name in ("scf.for", "scf.if") and not op.results:
                for region in op.regions:
                    self.block(region.block, inside=True)

    def _nest(self, loop: Operation, inside: bool) -> None:
        if any(op.attributes.get("mapping") == "threads" for op in loop.walk()) or not self._is_worth_it(loop):
            return
        longer = None if self._is_long(loop) else self._longer(loop)
        if longer is not None:
            swap_loops(loop, longer)
            self.context.count("loops swapped")
        elif not inside and not self._is_long(loop) and self._can_open(loop):
            loop.definition = REGISTRY["scf.for"]
            self.block(body(loop), inside=True)
            self.context.count("loops made serial")
            self.changed = True
            return
        elif most_rounds(loop) == 1:
            return
        self._merge(loop)
        loop.set_attribute("mapping", "threads")
        amount = work_of(loop)
        if amount is not None:
            loop.set_attribute("work", amount)
        self.context.count("loops shared")
        self.changed = True

    def _merge(self, loop: Operation) -> None:
        """Makes one loop of a short one and the next ones of its perfect nest, so that all threads get about the same."""
        while (inner := inner_loop(loop)) is not None and inner.name == "scf.parallel":
            count, each = most_rounds(loop), work_of_rounds(inner)
            least = self.grain if count is None else 8 * self.grain if count < self.many else None
            if least is None or (isinstance(each, int) and each < least):
                return
            if any(depends_on(e, body(loop).arguments) for r in ranges(inner) for e in (r.start, r.stop, r.step)):
                return
            merge_loops(loop, inner)
            self.context.count("loops merged")

    def _is_worth_it(self, loop: Operation) -> bool:
        amount = work_of(loop)
        return not isinstance(amount, int) or amount >= self.work

    def _can_open(self, loop: Operation) -> bool:
        """Whether all threads may run a loop, to share the loops inside it."""
        inside = [op for op in body(loop) if not op.definition.is_terminator]
        if len(ranges(loop)) != 1 or not all(op.name == "scf.parallel" or _is_for_all(op) for op in inside):
            return False
        return any(op.name == "scf.parallel" and (self._is_long(op) or self._longer(op)) and self._is_worth_it(op) for op in inside)

    def _is_long(self, loop: Operation) -> bool:
        count = most_rounds(loop)
        return count is None or count >= self.few

    def _longer(self, loop: Operation) -> Operation | None:
        """The first loop of a perfect nest of parallel loops that is long, when it can go where ``loop`` is."""
        nest = [loop]
        while (inner := inner_loop(nest[-1])) is not None and inner.name == "scf.parallel":
            nest.append(inner)
            if self._is_long(inner) and obstacle(nest) is None:
                return inner
        return None


def _is_for_all(op: Operation) -> bool:
    """Whether all threads may run an operation that is not shared: it changes nothing."""
    return not is_loop(op) and (is_pure(op) or op.name == "memref.prefetch")


def most_rounds(loop: Operation) -> int | None:
    """How often a loop runs at most; None when that is not known."""
    total = 1
    for bounds in ranges(loop):
        size = upper_bound(extent(bounds))
        if size is None or not isinstance(bounds.step, int):
            return None
        total *= max(0, -(-size // bounds.step))
    return total


def _rounds(loop: Operation) -> Dim | None:
    """How often a loop runs, from named dimensions, or at most; None when that is not known."""
    most = most_rounds(loop)
    if most == 0:
        return 0
    total: Dim = 1
    for bounds in ranges(loop):
        size = extent(bounds)
        if isinstance(size, DimExpr):
            size = _at_most(size, loop)
        if not isinstance(bounds.step, int) or not isinstance(size, int | DimExpr) or any(n.startswith("%") for n in symbols_of(size)):
            return most
        total = total * ceildiv(size, bounds.step)
    return total


def _at_most(size: DimExpr, loop: Operation) -> Dim:
    """About how large an expression gets, as far as loops and ``affine.min`` around say how large its values get."""
    graph = loop.graph
    assert graph is not None
    found: Dim = size
    for _ in range(8):
        names = [n for n in symbols_of(found) if n.startswith("%")] if isinstance(found, DimExpr) else []
        if not names:
            break
        limits = {n: limit for n in names if (limit := _limit(graph.names[n[1:]])) is not None}
        if not limits:
            break
        found = substitute(_without_less(found), limits)
    return found


def _without_less(dim: Dim) -> Dim:
    """The expression without what values take away from it: they are 0 at least."""
    if not isinstance(dim, DimExpr):
        return dim
    terms = tuple((m, c) for m, c in dim.terms if c > 0 or not any(n.startswith("%") for n in symbols_of(DimExpr(((m, 1),)))))
    return DimExpr(terms) if any(m for m, _ in terms) else sum(c for _, c in terms)


def _limit(value: Value) -> Dim | None:
    """An expression that an index never exceeds."""
    op = value.defining_op
    if op is None:
        around = value.owner.parent.parent if isinstance(value.owner, Block) and value.owner.parent is not None else None
        if around is None or not is_loop(around) or value.index >= len(ranges(around)):
            return None
        return ranges(around)[value.index].stop
    if op.definition.full_name not in ("affine.min", "affine.apply", "affine.max"):
        return None
    choices = [f.expr for f in read_layout(op) if isinstance(f, ExpressionArg)]
    if op.definition.full_name == "affine.max":
        return apply_function("max", *choices)
    free = [c for c in choices if not any(n.startswith("%") for n in symbols_of(c))]
    return (free or choices)[0]


def work_of(op: Operation) -> Dim | None:
    """How many simple operations an operation is, with all inside it; None when the rounds of a loop are not known."""
    if not op.regions:
        return _cost(op)
    rounds = _rounds(op) if is_loop(op) else 1
    if rounds is None or rounds == 0:
        return rounds
    total = work_of_rounds(op)
    try:
        return None if total is None else rounds * total
    except DimensionTooLarge:
        return None


def work_of_rounds(op: Operation) -> Dim | None:
    """The same for what is inside an operation, once."""
    total: Dim = 0
    for region in op.regions:
        for inner in region.block:
            amount = work_of(inner)
            if amount is None:
                return None
            total = total + amount
    return total


def merge_loops(outer: Operation, inner: Operation) -> None:
    """Makes one parallel loop of two of which the first holds nothing but the second."""
    forms = [*read_layout(outer), *read_layout(inner)]
    into, block = body(outer), body(inner)
    for argument in block.arguments:
        argument.owner, argument.index = into, len(into.arguments)
        into.arguments.append(argument)
    block.arguments = []
    for op in list(block):
        if not op.definition.is_terminator:
            move_into(op, into, inner)
    inner.erase()
    write_layout(outer, forms)


def _cost(op: Operation) -> int:
    if op.definition.is_terminator:
        return 0
    types: list[Any] = [v.type for v in (*op.results, *op.operands)]
    sizes = [math.prod(t.shape) for t in types if isinstance(t, VectorType)]
    return COSTS.get(op.name, LANES if op.definition.dialect == "math" else 1) * -(-max(sizes, default=1) // LANES)
