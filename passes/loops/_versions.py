"""Nests in two versions, one of which is chosen by sizes that are known when the program runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dialects.arith.bits import andi
from dialects.arith.comparison import cmpi
from ir.attributes import Dense
from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Operation, Region, Value
from ir.dims import Dim, DimExpr, dim_max, dim_min, floordiv, mod
from ir.layout import LAYOUT, OperandArg
from ir.opdef import REGISTRY, OpDef
from ir.types import MemRefType
from passes.loops._indices import Index, compute, find_dimensions, number
from passes.loops._loops import clone_before, move_into, parent


def two_versions(nest: Operation, conditions: Sequence[tuple[Dim, int]], also: Sequence[Value] = ()) -> bool:
    """Puts the nest into the first region of a ``scf.if`` for sizes that are large enough, and a copy into the second one.

    ``also`` are bools in front of it that must be true, too.  The nest stays where a size is no value that can be had in front of it,
    which is returned.
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
    for value in also:
        large = value if large is None else builder.create(andi, [large, value]).result
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
    """Whether an operation stands in the second version of a nest, that for small sizes.

    A choice that asks whether there is room for something, or what divides it, which is a number less a size, says nothing of that kind.
    """
    at, outer = op, parent(op)
    while outer is not None:
        if outer.name == "scf.if" and at.block is outer.regions[-1].block:
            if not any(isinstance(size, DimExpr) and any(not m for m, _ in size.terms) for size, _ in asked_by(outer.operands[0])):
                return True
        at, outer = outer, parent(outer)
    return False


def nest_of(op: Operation) -> Operation:
    """The nest that an operation stands in: outermost, but for the choice between versions of it."""
    outer = parent(op)
    while outer is not None and outer.name != "scf.if":
        op, outer = outer, parent(outer)
    return op


def answers(op: Operation, size: Dim, least: int) -> bool | None:
    """Whether a version that an operation stands in is for a ``size`` of so many at least, or for smaller ones; None where no choice looks at it."""
    at, outer = op, parent(op)
    while outer is not None:
        if outer.name == "scf.if":
            asked = _least(outer.operands[0], size)
            if at.block is outer.regions[0].block and asked is not None and asked >= least:
                return True
            if at.block is not outer.regions[0].block and asked == least:
                return False
        at, outer = outer, parent(outer)
    return None


def is_at_least(op: Operation, size: Dim, least: int) -> bool:
    """Whether the versions that an operation stands in show that a size is so large."""
    at, outer = op, parent(op)
    while outer is not None:
        if outer.name == "scf.if":
            first = at.block is outer.regions[0].block
            known = _least(outer.operands[0], size) if first else _least_otherwise(outer.operands[0], size)
            if known is not None and known >= least:
                return True
        at, outer = outer, parent(outer)
    return False


def is_chosen_by(op: Operation, least: int) -> bool:
    """Whether an operation stands in one of the versions for what has at least so many of something, or less.

    What that is need not be the same any more: loops may have been split since.
    """
    outer = parent(op)
    while outer is not None:
        if outer.name == "scf.if" and any(n == least for _, n in asked_by(outer.operands[0])):
            return True
        outer = parent(outer)
    return False


def asked_by(condition: Value) -> list[tuple[Dim, int]]:
    """What a condition of ``two_versions`` says: the sizes, and how large they are at least."""
    op = condition.defining_op
    if op is None or op.name not in ("arith.andi", "arith.cmpi"):
        return []
    if op.name == "arith.andi":
        return [asked for v in op.operands for asked in asked_by(v)]
    size, least = _dim_of(op.operands[0]), _dim_of(op.operands[1])
    return [(size, least)] if size is not None and isinstance(least, int) and op.attributes.get("predicate") == "ge" else []


def _least(condition: Value, size: Dim) -> int | None:
    """What a size is at least where a condition of ``two_versions`` holds; None where it is not looked at."""
    found = [(least, size - asked) for asked, least in asked_by(condition)]
    return max((least + more for least, more in found if isinstance(more, int)), default=None)


def _least_otherwise(condition: Value, size: Dim) -> int | None:
    """What a size is at least where a condition does not hold, which is that there is room for it."""
    found = asked_by(condition)
    total = size + found[0][0] if len(found) == 1 and condition.defining_op is not None and condition.defining_op.name == "arith.cmpi" else None
    return total - found[0][1] + 1 if isinstance(total, int) else None


def _dim_of(value: Value) -> Dim | None:
    """The size that a value is, which ``compute`` has made."""
    op = value.defining_op
    if op is None:
        return None
    if op.name == "arith.constant":
        number = op.attributes["value"]
        return int(number.array) if isinstance(number, Dense) and number.array.ndim == 0 else None
    if op.name == "memref.dim":
        type_, axis = op.operands[0].type, op.attributes["axis"]
        return type_.shape[axis] if isinstance(type_, MemRefType) and isinstance(axis, int) else None
    function = _FUNCTIONS.get(op.name)
    parts = [_dim_of(v) for v in op.operands] if function is not None else []
    known = [p for p in parts if p is not None]
    return function(*known) if function is not None and len(known) == len(parts) else None


_FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.minsi": dim_min,
    "arith.maxsi": dim_max,
    "arith.floordivsi": floordiv,
    "arith.modsi": mod,
}
