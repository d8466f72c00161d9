"""Pass ``cse``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ir.attributes import attribute_key
from ir.core import DROPPED, Block, Module, Operation
from passes.infra.base import Pass, PassContext

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Cse(Pass):
    """Computes equal things once (common subexpression elimination).

    Before::

        %a = add(%x, %y)
        %b = add(%y, %x)
        %c = mul(%a, %b)

    After::

        %a = add(%x, %y)
        %c = mul(%a, %a)

    Operations are equal when their definition, operands (the two of a commutative one in either order), attributes and
    result types are.  Attributes are compared with their types and bit by bit: 1, 1.0 and true are three values, 0.0
    and -0.0 two, and a NaN is equal to one with the same payload.  Only operations without effect are merged; random
    ones are functions of their seed, so equal seeds give equal numbers.  Inside a region, operations in front of the
    region count too, but not the other way round.  Operations with regions are not compared.
    """

    def run(self, module: Module, context: PassContext) -> bool:
        merged = 0
        for graph in module.graphs.values():
            merged += _Merger().block(graph.block)
        context.count("operations merged", merged)
        return merged > 0


class _Merger:
    """Walks blocks; ``seen`` has a table for each block around the current one, whose operations dominate it."""

    def __init__(self) -> None:
        self.seen: list[dict[Key, Operation]] = []

    def block(self, block: Block) -> int:
        """Merges the operations of a block into earlier ones; returns how many."""
        merged = 0
        self.seen.append({})
        for op in block:
            for region in op.regions:
                merged += sum(map(self.block, region.blocks))
            if not op.definition.pure or op.regions or not op.results:
                continue
            key = operation_key(op)
            first = next((table[key] for table in self.seen if key in table), None)
            if first is None:
                self.seen[-1][key] = op
            else:
                _merge(op, first)
                merged += 1
        self.seen.pop()
        return merged


def operation_key(op: Operation) -> Key:
    """Equal for two operations exactly when they compute the same from the same values."""
    definition = op.definition
    operands = [id(v) for v in op.operands]  # only compared with each other while all values live
    if definition.commutative:
        operands[:2] = sorted(operands[:2])
    attributes = {**definition.full_attributes(op.attributes), **{k: v for k, v in op.attributes.items() if k not in definition.attribute_specs}}
    keys = tuple((name, attribute_key(attributes[name])) for name in sorted(attributes))
    return (definition.full_name, tuple(operands), keys, tuple(r.type for r in op.results))


def _merge(op: Operation, first: Operation) -> None:
    """Uses the results of ``first`` instead of those of ``op``; a name that a person gave wins over a derived one."""
    graph = op.graph
    pairs = [(old.name, old.auto_named, new) for old, new in zip(op.results, first.results, strict=True)]
    for old, new in zip(op.results, first.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
    for name, derived, new in pairs:
        if graph is not None and name != DROPPED and (new.name == DROPPED or (new.auto_named and not derived)):
            graph.rename(new, name)
