"""Pass ``widen-sums``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dialects.arith.cast import extf, truncf
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.rewriter import walk_graphs
from ir.types import ScalarType, f32, f64
from passes.infra.base import Pass, PassContext
from passes.loops._loops import body, initial_values, loops_tagged, parent_loop, set_initial_values, tag_of

_F32, _F64 = ScalarType(f32), ScalarType(f64)


@dataclass(frozen=True)
class WidenSums(Pass):
    """Carries the sums of loops that run in order in f64, and rounds them once.

    Before::

        %s = scf.for(%k = 0 to N, %acc = %zero, tag="serial") {
          %a = memref.load(%A[%k, %j]) : f32
          %t = arith.addf(%acc, %a) : f32
          yield %t
        } : f32

    After::

        %zero.extf = arith.extf(%zero) : f64
        %s.wide = scf.for(%k = 0 to N, %acc = %zero.extf, tag="serial") {
          %a = memref.load(%A[%k, %j]) : f32
          %a.extf = arith.extf(%a) : f64
          %t = arith.addf(%acc, %a.extf) : f64
          yield %t
        } : f64
        %s = arith.truncf(%s.wide) : f32

    A chain of f32 additions loses what is 2^24 times smaller than the sum so far; a sum in lanes (``split-reduction``) does
    much later.  Only chains of ``addf`` that nothing else looks at are carried so, through loops inside as well; products
    (``math.fma``) stay the chains of f32 that they are.
    """

    loop: str = "serial"
    """tag of the loops whose sums are widened"""

    preserves: ClassVar[Literal["bits", "values", "approximate"]] = "values"
    keeps_types: ClassVar[bool] = True
    local: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        widened = 0
        for graph in walk_graphs(module):
            for loop in loops_tagged(graph, self.loop):
                outer = parent_loop(loop)
                if loop.name == "scf.for" and not (outer is not None and tag_of(outer) == self.loop and outer.results):
                    widened += sum(_widen(loop, n) for n in range(len(loop.results)))
        context.count("sums widened", widened)
        return widened > 0


def _widen(loop: Operation, number: int) -> bool:
    """Carries one value of a loop in f64; returns whether it is a sum of f32."""
    chain = _chain(loop, number)
    if chain is None:
        return False
    block = loop.block
    assert block is not None
    values = initial_values(loop)
    with Builder(block, loop, origin=values[number].name, loc=loop.loc):
        values[number] = extf(values[number], result_type=_F64)
    set_initial_values(loop, values)
    result = loop.results[number]
    graph = loop.graph
    assert graph is not None
    name = result.name
    graph.rename(result, f"{name}.wide")
    result.auto_named = True
    users = list(result.uses)
    result.type = _F64
    with Builder(block, loop.next, origin=name, loc=loop.loc):
        narrow: Value = truncf(result, result_type=_F32)
    for use in users:
        use.set(narrow)
    graph.rename(narrow, name)
    narrow.auto_named = True
    for op, accumulated, place in chain:
        _widen_step(op, accumulated, place)
    return True


def _widen_step(op: Operation, accumulated: Value, place: int) -> None:
    """One link of a chain: an addition, or a loop that goes on with the sum."""
    accumulated.type = _F64
    if op.name == "arith.addf":
        block = op.block
        assert block is not None
        use = op.operand_uses[1 - place]
        with Builder(block, op, origin=use.value.name, loc=op.loc):
            use.set(extf(use.value, result_type=_F64))
        op.results[0].type = _F64
    elif op.name == "scf.for":
        op.results[place].type = _F64


Link = tuple[Operation, Value, int]
"""An operation that goes on with a sum, the sum so far, and which operand (carried value) that is."""


def _chain(loop: Operation, number: int) -> list[Link] | None:
    """The links from a carried value to what the loop yields for it; None when it is anything but a sum of f32."""
    if loop.results[number].type != _F32:
        return None
    terminator = body(loop).terminator
    assert terminator is not None
    links: list[Link] = []
    value = body(loop).arguments[1 + number]
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return None
        op = uses[0].owner
        if op is terminator:
            return links if uses[0].index == number and links else None
        if op.block is not body(loop):
            return None
        if op.name == "arith.addf":
            links.append((op, value, uses[0].index))
            value = op.results[0]
        elif op.name == "scf.for" and initial_values(op).count(value) == 1:
            place = initial_values(op).index(value)
            inner = _chain(op, place)
            if inner is None:
                return None
            links += [(op, value, place), *inner]
            value = op.results[place]
        else:
            return None
