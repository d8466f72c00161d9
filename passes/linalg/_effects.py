"""Nests of operations that do something besides computing: checks and updates in place."""

from __future__ import annotations

from typing import Any

from dialects.arith.comparison import cmpi
from dialects.arith.integers import addi, subi
from dialects.graph._shapes import normalize_axis
from ir.core import Graph, Parameter, Value
from ir.dims import Dim, DimExpr
from ir.types import index, is_known
from passes.linalg._bodies import Described, buffer_type, check, load, size, to_index
from passes.linalg._nests import OFFSET, Access, Lowering, number, tensor_type
from passes.loops._blocks import index_value


def asserted(low: Lowering) -> list[Value]:
    """``assert``: a check of every element."""
    message = low.op.attribute("message") or "an element is false"
    loops = low.loops(tensor_type(low.op.operands[0]).shape)
    # a message has room for two numbers, and none if it would be confused with its own text
    shown = loops if len(loops) <= 2 and "{0}" not in str(message) and "{1}" not in str(message) else []
    where = f" at [{', '.join(f'{{{i}}}' for i in range(len(shown)))}]" if shown else ""

    def body(condition: Value) -> None:
        check(condition, f"assert: {message}{where}", [low.index(loop) for loop in shown])

    low.generic(loops, [Access(low.operand("cond"), tuple(n.name for n in loops))], None, body)
    return []


# -- updates in place --------------------------------------------------------------------------------------------------


def updated_parameters(graph: Graph) -> set[Value]:
    """The ``inout`` parameters all of whose versions are made by ``cache_update`` at the top of the graph.

    A call that might update one, or an operation of a lower level that looks at its memory, leaves it to the tensor
    operations.
    """
    origin: dict[Value, Parameter] = {p: p for p in graph.parameters if p.inout}
    found: set[Value] = set()
    refused: set[Value] = set()
    for op in graph.block:
        for inner in op.walk():
            versions = {origin[v] for v in inner.operands if v in origin}
            foreign = inner.definition.dialect != "graph" and not inner.definition.is_terminator
            if foreign or inner.definition.full_name == "graph.call":
                refused |= versions
        if op.definition.updates is None:
            continue
        parameter = origin.get(op.operand(op.definition.updates))  # type: ignore[arg-type]  # present: it is required
        if parameter is None:
            continue
        origin[op.result] = parameter
        found.add(parameter)
        if not all(is_known(v.type) for v in (*op.operands, *op.results)):
            refused.add(parameter)
    return found - refused


def cache_updated(low: Lowering) -> list[Value]:
    """``cache_update``: checks, then a nest that stores into the memory of the parameter."""
    op = low.op
    cache, new, position = (op.operand(n) for n in ("cache", "new", "position"))
    assert cache is not None and new is not None and position is not None
    written: Any = op.attribute("axis")
    axis = normalize_axis(written, tensor_type(cache).rank)
    source, place = low.buffer(new), low.buffer(position)
    buffer = low.overwrite(cache)
    with low.builder:
        start = to_index(load(place, []))
        _check_update(buffer, source, axis, start)
    loops = low.loops(tensor_type(new).shape)
    names: tuple[Dim, ...] = tuple(n.name for n in loops)
    target = tuple(n + OFFSET if i == axis else n for i, n in enumerate(names))
    low.copy(loops, Access(source, names), Access(buffer, target, start))
    return [buffer]


def _check_update(buffer: Value, new: Value, axis: int, start: Value) -> None:
    """What ``cache_update`` demands of its sizes and of the position."""
    capacity, count = (buffer_type(b).shape[axis] for b in (buffer, new))
    # of a named dimension no buffer need be asked: where ``new`` is moved from is all that reads it, its own nest can go
    entries = index_value("apply", count, name=f"{new.name}.entries") if isinstance(count, DimExpr) else size(new, axis)
    zero = number(0, index)
    room = subi(size(buffer, axis), entries)
    if not isinstance(capacity, int) or not isinstance(count, int):
        described = Described()
        types = f"'new' is {described.type(new)}, 'cache' is {described.type(buffer)}"
        message = f"cache_update: 'new' does not fit into 'cache' along axis {axis}: {types}"
        check(cmpi(room, zero, predicate="ge"), message, (), described)
    check(cmpi(start, zero, predicate="ge"), "cache_update: position {0} is negative", [start])
    described = Described()
    past = f"{described.dim(count)} new entries is {{1}}, past the capacity of {described.dim(capacity)}"
    check(cmpi(start, room, predicate="le"), f"cache_update: position {{0}} plus {past}", [start, addi(start, entries)], described)
