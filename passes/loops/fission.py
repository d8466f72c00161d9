"""Pass ``fission``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Block, Graph, Module, Operation, Value
from ir.dims import Dim, substitute, symbols_of
from ir.layout import LAYOUT, IndexExpr, RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure, walk_graphs
from ir.types import MemRefType, ScalarType, index
from passes.infra.base import Pass, PassContext
from passes.loops._dependence import is_inside, may_conflict
from passes.loops._loops import (
    Access,
    body,
    clone_before,
    create_loop,
    end_loop,
    inner_loop,
    is_nonnegative,
    loops_tagged,
    minimum_terms,
    move_into,
    number_layout,
    parent_loop,
    single_range,
    tag_of,
    value_symbol,
    variable,
)
from passes.loops._loops import accesses as written_accesses
from passes.loops._memory import accesses_of, alias, all_accesses, is_movable, memory_of


@dataclass(frozen=True)
class Fission(Pass):
    """Splits a band of parallel loops behind the reduction inside it.

    Before::

        scf.parallel(%i = %it to %it+8, tag="m") {
          scf.parallel(%j = %jt to %jt+48, tag="n") {
            %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {...} : f32
            %y = math.exp(%s) : f32
            memref.store(%y, %C[%i, %j])
            yield
          }
          yield
        }

    After ``fission{loops=[m, n], after=k}``::

        scf.parallel(%i = %it to %it+8, tag="m") {
          scf.parallel(%j = %jt to %jt+48, tag="n") {
            %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {...} : f32
            memref.store(%s, %C[%i, %j])
            yield
          }
          yield
        }
        scf.parallel(%i.1 = %it to %it+8, tag="m.e") {
          scf.parallel(%j.1 = %jt to %jt+48, tag="n.e") {
            %s.load = memref.load(%C[%i.1, %j.1]) : f32
            %y = math.exp(%s.load) : f32
            memref.store(%y, %C[%i.1, %j.1])
            yield
          }
          yield
        }

    The band is a perfect nest of ``scf.parallel`` with the tags ``loops``; it is split behind the last loop with tag
    ``after`` in its body, and the tags of the second band end in ``suffix``.  What the first part needs only for the second
    moves there; constants, indices and loads are made again.  Other scalars go through memory: through the
    element that the second part stores, where it has their type and the second part does not touch that buffer otherwise,
    else through a new buffer of the size of the band, which must be known (a number, or cut to one by ``min``) inside loops.

    Rounds of parallel loops don't depend on each other, so that splitting them is always right.
    """

    loops: tuple[str, ...] = ("m", "n")
    after: str = "k"
    suffix: str = ".e"

    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.loops:
            raise ValueError("a band has one loop or more")

    def run(self, module: Module, context: PassContext) -> bool:
        split = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loops[0]):
                band = self._band(loop)
                parts = _Parts(band, self.after) if band is not None else None
                if parts is None or not parts.worthwhile():
                    continue
                reason = parts.obstacle()
                if reason is None:
                    parts.split(self.suffix)
                    split += 1
                    context.count("scalars kept in the output", len(parts.kept))
                    context.count("scalars kept in a new buffer", len(parts.crossing) - len(parts.kept))
                else:
                    context.count(f"bands not split: {reason}")
        context.count("bands split", split)
        return split > 0

    def _band(self, loop: Operation) -> list[Operation] | None:
        band = [loop]
        for tag in self.loops[1:]:
            inner = inner_loop(band[-1])
            if inner is None or tag_of(inner) != tag:
                return None
            band.append(inner)
        return band if all(op.name == "scf.parallel" and single_range(op) is not None for op in band) else None


@dataclass
class _Parts:
    """What becomes of the operations of a band's body."""

    band: list[Operation]
    after: str
    first: list[Operation] = field(default_factory=list)
    second: list[Operation] = field(default_factory=list)
    again: list[Operation] = field(default_factory=list)  # of the first part; the second one makes them again
    crossing: list[Value] = field(default_factory=list)
    kept: dict[Value, Access] = field(default_factory=dict)  # scalars that go through an element of the output

    def __post_init__(self) -> None:
        self.block = body(self.band[-1])
        ops = [op for op in self.block if not op.definition.is_terminator]
        cut = max((i for i, op in enumerate(ops) if tag_of(op) == self.after), default=-1)
        self.first, self.second = ops[: cut + 1], ops[cut + 1 :]
        if self.first:
            self._sink()
            self._find_crossing()
            for value in self.crossing:
                access = self._output(value)
                if access is not None:
                    self.kept[value] = access

    @property
    def graph(self) -> Graph:
        graph = self.block.graph
        assert graph is not None
        return graph

    def worthwhile(self) -> bool:
        """Whether the second part computes anything."""
        return bool(self.first) and any(op.name != "memref.store" for op in self.second)

    def obstacle(self) -> str | None:
        """Why the band may not be split."""
        if any(not isinstance(v.type, ScalarType) for v in self.crossing):
            return "a value that is no scalar is needed in both parts"
        if len(self.kept) < len(self.crossing) and self._shape() is None:
            return "the size of the band is not known"
        return None

    # -- what goes where -------------------------------------------------------------------------------------------

    def _sink(self) -> None:
        """Moves what only the second part uses from the first one there."""
        for op in reversed(list(self.first)):
            later = set(self.second)
            used = [user for result in op.results for user in result.users]
            if not used or op.regions or not all(_top(user, self.block) in later for user in used):
                continue
            behind = self.first[self.first.index(op) + 1 :]
            if _moves(op) and not may_conflict(accesses_of(op), all_accesses(behind), self.block):
                self.first.remove(op)
                self.second.insert(0, op)

    def _find_crossing(self) -> None:
        later = {inner for op in self.second for inner in op.walk()}
        needed = {v: None for op in self.second for inner in op.walk() for v in inner.operands}
        for op in reversed(self.first):
            if not any(r in needed for r in op.results):
                continue
            if self._made_again(op):
                self.again.insert(0, op)
                needed.update(dict.fromkeys(op.operands))
            else:
                self.crossing[:0] = [r for r in op.results if r in needed]
        assert not any(op in later for op in self.first)

    def _made_again(self, op: Operation) -> bool:
        """Whether computing a value twice is better than keeping it, and gives the same."""
        if op.name == "memref.load":
            behind = self.first[self.first.index(op) + 1 :]
            return not may_conflict(accesses_of(op), all_accesses(behind), self.block)
        if op.regions or not is_pure(op):
            return False
        cheap = all(r.type == ScalarType(index) or isinstance(r.type, MemRefType) for r in op.results)
        return cheap or op.name == "arith.constant"

    def _output(self, value: Value) -> Access | None:
        """The element that the second part stores, if the scalar may wait in it."""
        for op in self.second:
            if op.name != "memref.store":
                continue
            (access,) = written_accesses(op)
            memory = memory_of(access.buffer)
            assert isinstance(access.buffer.type, MemRefType)
            if ScalarType(access.buffer.type.dtype) != value.type or memory.kind == "tensor" or access in self.kept.values():
                continue
            used = [access.buffer, *(self.graph.names[n[1:]] for i in access.indices for n in symbols_of(i.expr) if n.startswith("%"))]
            others = [a for a in all_accesses([*self.again, *self.second]) if a.op is not op]
            if any(is_inside(v, self.block) for v in used if v is not variable(self.band[-1])):
                continue
            if all(alias(memory, a.memory) == "never" for a in others):
                return access
        return None

    # -- buffers ---------------------------------------------------------------------------------------------------

    def _shape(self) -> tuple[Dim, ...] | None:
        """The dimensions of a buffer with an element for every point of the band; None where they are not known."""
        shape: list[Dim] = []
        for loop in self.band:
            bounds = _bounds(loop)
            extents = [t - bounds.start for t in minimum_terms(bounds.stop)]
            numbers = [e for e in extents if isinstance(e, int)]
            if numbers:
                shape.append(max(0, min(numbers)))
                continue
            extent = bounds.stop - bounds.start
            local = any(n.startswith("%") for n in symbols_of(extent))
            if local or parent_loop(self.band[0]) is not None or not is_nonnegative(extent, self.graph):
                return None
            shape.append(extent)
        return tuple(shape)

    def _buffer(self, value: Value) -> Access:
        """An element of a new buffer for the current point of the band."""
        shape = self._shape()
        assert shape is not None and isinstance(value.type, ScalarType) and self.band[0].block is not None
        builder = Builder(self.band[0].block, self.band[0], origin=value.name, loc=self.band[0].loc)
        attributes: Any = {LAYOUT: ()}
        alloc = builder.create(
            REGISTRY["memref.alloc"], [], attributes, result_types=[MemRefType(value.type.dtype, shape)], name=f"{value.name}.buffer"
        )
        return Access(alloc.result, tuple(IndexExpr(value_symbol(variable(b)) - _bounds(b).start) for b in self.band))

    # -- splitting -------------------------------------------------------------------------------------------------

    def split(self, suffix: str) -> None:
        """Moves the second part into a band of its own behind the first one."""
        places = {v: self.kept.get(v) or self._buffer(v) for v in self.crossing}
        replaced: dict[Value, Value] = {}
        inner = self._second_band(suffix, replaced)
        names: dict[str, Dim] = {f"%{old.name}": value_symbol(new) for old, new in replaced.items()}
        target = body(inner)
        take = Builder(target, loc=self.band[0].loc)
        for value, access in places.items():
            operands, layout = number_layout([value, access], self.graph)
            attributes: Any = {LAYOUT: layout}
            keep = Builder(self.block, self._end_of(value, access), loc=self.band[0].loc)
            keep.create(REGISTRY["memref.store"], operands, attributes, result_types=())
            moved = Access(access.buffer, tuple(IndexExpr(substitute(i.expr, names)) for i in access.indices))
            operands, layout = number_layout([moved], self.graph)
            attributes = {LAYOUT: layout}
            load = take.create(REGISTRY["memref.load"], operands, attributes, result_types=[value.type], name=f"{value.name}.load")
            load.result.auto_named = True
            replaced[value] = load.result
        for op in self.again:
            clone_before(op, None, target, replaced)
        for op in self.second:
            move_into(op, target)
            for nested in op.walk():
                for use in nested.operand_uses:
                    use.set(replaced.get(use.value, use.value))
        end_loop(inner)

    def _end_of(self, value: Value, access: Access) -> Operation | None:
        """The operation in front of which a value is stored: at once, unless the first part still uses the output."""
        op = value.defining_op
        assert op is not None
        behind = self.first[self.first.index(op) + 1 :]
        memory = memory_of(access.buffer)
        free = all(alias(memory, a.memory) == "never" for a in all_accesses(behind))
        return op.next if free else self.block.terminator

    def _second_band(self, suffix: str, replaced: dict[Value, Value]) -> Operation:
        """Loops like those of the band, behind it; returns the innermost one, which has no end yet."""
        first = self.band[0]
        assert first.block is not None
        builder = Builder(first.block, first.next, loc=first.loc)
        made: list[Operation] = []
        for loop in self.band:
            names: dict[str, Dim] = {f"%{old.name}": value_symbol(new) for old, new in replaced.items()}
            bounds = _bounds(loop)
            bounds = RangeArg(*(substitute(d, names) for d in (bounds.start, bounds.stop, bounds.step)))
            new = create_loop(builder, loop.name, bounds, name=variable(loop).name, tag=tag_of(loop) + suffix)
            for key, attribute in loop.attributes.items():
                if key not in (LAYOUT, "tag"):
                    new.set_attribute(key, attribute)
            replaced[variable(loop)] = variable(new)
            made.append(new)
            builder = Builder(body(new), loc=first.loc)
        for loop in reversed(made[:-1]):
            end_loop(loop)
        return made[-1]


def _bounds(loop: Operation) -> RangeArg:
    bounds = single_range(loop)
    assert bounds is not None
    return bounds


def _top(op: Operation, block: Block) -> Operation:
    """The operation of a block that is or holds ``op``."""
    while op.block is not block:
        assert op.block is not None and op.block.parent is not None and op.block.parent.parent is not None
        op = op.block.parent.parent
    return op


def _moves(op: Operation) -> bool:
    return is_movable(op) or op.name == "memref.load"
