"""Nests in two versions, one of which is chosen by sizes that are known when the program runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dialects.arith.bits import andi
from dialects.arith.comparison import cmpi
from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Operation, Region, Value
from ir.dims import Dim
from ir.layout import LAYOUT, OperandArg
from ir.opdef import REGISTRY, OpDef
from passes.loops._indices import Index, compute, find_dimensions, number
from passes.loops._loops import clone_before, move_into, parent


def two_versions(nest: Operation, conditions: Sequence[tuple[Dim, int]]) -> bool:
    """Puts the nest into the first region of a ``scf.if`` for sizes that are large enough, and a copy into the second one.

    The nest stays where a size is no value that can be had in front of it, which is returned.
    """
    block = nest.block
    parts = [Index(size) for size, _ in conditions]
    dimensions = find_dimensions(parts, nest)
    if isinstance(dimensions, str) or block is None:
        return False
    builder = Builder(block, nest, origin="rows", loc=nest.loc)

    def make(definition: OpDef, operands: Sequence[Value], attributes: Mapping[str, Any]) -> Value:
        return builder.create(definition, list(operands), dict(attributes)).result

    large: Value | None = None
    for part, (_, least) in zip(parts, conditions, strict=True):
        size = compute(part, dimensions, make)
        enough = builder.create(cmpi, [size, number(least, make)], {"predicate": "ge"}).result
        large = enough if large is None else builder.create(andi, [large, enough]).result
    assert large is not None
    regions = [Region(), Region()]
    attributes: Any = {LAYOUT: (OperandArg(0),)}
    choice = builder.create(REGISTRY["scf.if"], [large], attributes, regions=regions, result_types=())
    choice.trivia, nest.trivia = nest.trivia, None
    first, second = (r.block for r in choice.regions)
    move_into(nest, first)
    clone_before(nest, None, second)
    for inside in (first, second):
        Builder(inside, loc=nest.loc).create(yield_, [])
    return True


def is_for_few(op: Operation) -> bool:
    """Whether an operation stands in the second version of a nest, that for small sizes."""
    at, outer = op, parent(op)
    while outer is not None:
        if outer.name == "scf.if" and at.block is outer.regions[-1].block:
            return True
        at, outer = outer, parent(outer)
    return False
