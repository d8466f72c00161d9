"""Pass ``hoist-accumulators``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.builder import Builder
from ir.core import Block, Module, Operation, Value
from ir.layout import LAYOUT, IndexExpr
from ir.opdef import REGISTRY
from ir.rewriter import walk_graphs
from ir.types import ScalarType, VectorType
from passes.infra.base import Pass, PassContext
from passes.loops._dependence import is_carried, is_in_bounds, is_inside, may_conflict, mentions_inside
from passes.loops._loops import Access as Place
from passes.loops._loops import Bind, body, number_layout, parent, read_layout, rounds, single_range, write_layout
from passes.loops._memory import Access, accesses_of, all_accesses, same_place, stored_value


@dataclass(frozen=True)
class HoistAccumulators(Pass):
    """Turns elements that a loop updates in memory into values that it carries.

    Before::

        scf.for(%k = 0 to K, tag="k") {
          %c = memref.load(%C[%i, %j]) : f32
          %t = math.fma(%a, %b, %c) : f32
          memref.store(%t, %C[%i, %j])
          yield
        }

    After::

        %c.in = memref.load(%C[%i, %j]) : f32
        %c.out = scf.for(%k = 0 to K, %c = %c.in, tag="k") {
          %t = math.fma(%a, %b, %c) : f32
          yield %t
        } : f32
        memref.store(%c.out, %C[%i, %j])

    This is done for ``scf.for`` loops, inner ones first, for scalars and vectors, when in the loop's body

    - loads and stores of the element stand in the body itself, at the same index, which does not change in the loop;
    - no other access may mean the same memory in any round;
    - the load and the store around the loop are no new accesses in a run: the loop has a round, or the element is stored in
      front of it in the same block, or is provably inside the buffer and no other round of a parallel loop has it.

    Vectors that are read or written in part (``valid=``) stay in memory.
    """

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        hoisted = 0
        for graph in walk_graphs(module):
            for loop in reversed([op for op in graph.walk() if op.name == "scf.for"]):
                places = list(_accumulators(loop, context))
                if places:
                    _carry(loop, places)
                    hoisted += len(places)
        context.count("accumulators hoisted", hoisted)
        return hoisted > 0


def _accumulators(loop: Operation, context: PassContext) -> Iterator[list[Access]]:
    """For each element that the loop may carry: its accesses, in order."""
    block = body(loop)
    inside = all_accesses(block)
    seen: list[Access] = []
    for access in inside:
        if not access.writes or any(same_place(access, s) for s in seen):
            continue
        seen.append(access)
        group = [a for a in inside if same_place(a, access) and _is_vector(a) == _is_vector(access)]
        reason = _obstacle(loop, access, group, inside)
        if reason is None:
            yield group
        else:
            context.count(f"elements left in memory: {reason}")


def _obstacle(loop: Operation, access: Access, group: list[Access], inside: list[Access]) -> str | None:
    """Why an element can't be carried, or need not be."""
    block = body(loop)
    if access.indices is None or access.partial or access.memory.kind == "tensor":
        return "it is written in part or as a whole buffer"
    if any(a.op.block is not block for a in group):
        return "it is accessed in an inner region"
    if is_inside(access.buffer, block) or mentions_inside(access.indices, block):
        return "its index changes"
    others = [a for a in inside if a not in group]
    assert loop.block is not None
    if may_conflict([access], others, loop.block):
        return "another access may mean it"
    if not _may_access(loop, access):
        return "the loop may run no round"
    return None


def _may_access(loop: Operation, access: Access) -> bool:
    """Whether reading and writing the element around the loop does no harm in a run where the loop does not."""
    bounds = single_range(loop)
    assert bounds is not None
    if (rounds(bounds) or 0) > 0:
        return True
    before = loop.prev
    while before is not None:  # it is stored there anyway
        if any(a.writes and same_place(a, access) for a in accesses_of(before)):
            return True
        before = before.prev
    if not is_in_bounds(access):
        return False
    around = parent(loop)
    while around is not None:
        if around.name == "scf.parallel" and is_carried([access], [access], around):
            return False
        around = parent(around)
    return True


def _carry(loop: Operation, places: list[list[Access]]) -> None:
    """Makes the loop carry the elements: loads in front of it, stores behind it, none inside."""
    block, inside, graph = loop.block, body(loop), loop.graph
    assert block is not None and graph is not None
    names = [_name(group) for group in places]
    starts = [_load(Builder(block, loop, loc=loop.loc), group[0], f"{name}.in") for group, name in zip(places, names, strict=True)]
    write_layout(loop, [*read_layout(loop), *map(Bind, starts)])
    current = [inside.add_argument(name, start.type) for name, start in zip(names, starts, strict=True)]
    arguments = list(current)
    _use_registers(inside, places, current)
    for argument, name in zip(arguments, names, strict=True):
        graph.rename(argument, name)  # the load that had it is gone
        argument.auto_named = True
    terminator = inside.terminator
    assert terminator is not None
    terminator.set_operands([*terminator.operands, *current])
    behind = loop.next
    loop.remove()
    count = len(loop.results)
    added = [Value(f"{name}.out", start.type, loop, count + i) for i, (name, start) in enumerate(zip(names, starts, strict=True))]
    loop.results = (*loop.results, *added)
    block.insert_before(behind, loop)
    for group, result in zip(places, added, strict=True):
        result.auto_named = True
        _store(Builder(block, behind, loc=loop.loc), group[0], result)


def _use_registers(block: Block, places: list[list[Access]], current: list[Value]) -> None:
    """Removes loads and stores of carried elements; ``current`` has their values, at the end those of the next round."""
    places_of = {a.op: number for number, group in enumerate(places) for a in group}
    for op in block:
        number = places_of.get(op)
        if number is None:
            continue
        if op.results:
            op.result.replace_all_uses_with(current[number])
        else:
            current[number] = stored_value(op)
        op.erase()


def _name(group: list[Access]) -> str:
    """A name for the value of an element: that of its first load, else of its buffer."""
    return next((a.op.result.name for a in group if not a.writes), group[0].buffer.name)


def _is_vector(access: Access) -> bool:
    return access.op.name.startswith("vector.")


def _load(builder: Builder, access: Access, name: str) -> Value:
    vector = _is_vector(access)
    type_ = VectorType(access.type.dtype, access.sizes) if vector else ScalarType(access.type.dtype)
    operands, attributes = _arguments(access, [])
    op = builder.create(REGISTRY["vector.load" if vector else "memref.load"], operands, attributes, result_types=[type_], name=name)
    op.result.auto_named = True
    return op.result


def _store(builder: Builder, access: Access, value: Value) -> None:
    operands, attributes = _arguments(access, [value])
    builder.create(REGISTRY["vector.store" if _is_vector(access) else "memref.store"], operands, attributes, result_types=())


def _arguments(access: Access, values: list[Value]) -> tuple[list[Value], dict[str, Any]]:
    """Operands and layout for the same place in front of or behind the loop."""
    graph = access.buffer.owner.graph
    assert graph is not None and access.indices is not None
    place = Place(access.buffer, tuple(IndexExpr(e, s) for e, s in zip(access.indices, access.runs, strict=True)))
    operands, layout = number_layout([*values, place], graph)
    return operands, {LAYOUT: layout}
