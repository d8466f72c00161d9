"""Which graphs an operation mentions: those it calls, and those whose results it takes as known from load time on."""

from __future__ import annotations

from collections.abc import Iterable

from ir.attributes import GraphRef
from ir.core import Graph, Module, Operation
from ir.opdef import REGISTRY

INITIAL = "graph.initial"
"""The operation that stands for a result of a graph that runs when the program is loaded."""


def referenced_graphs(op: Operation) -> list[str]:
    """Names of the graphs among an operation's attributes."""
    return [value.name for value in op.attributes.values() if isinstance(value, GraphRef)]


def all_references(module: Module) -> dict[str, None]:
    """Names of the graphs that some operation of the module mentions: they are no entries of their own."""
    return {name: None for op in module.walk() for name in referenced_graphs(op)}


def reachable_graphs(module: Module, roots: Iterable[str]) -> dict[str, None]:
    """Names of the given graphs and of all that they mention, directly or through others."""
    needed: dict[str, None] = {}
    names = list(roots)
    while names:
        name = names.pop()
        if name in module.graphs and name not in needed:
            needed[name] = None
            names += [n for op in module.graphs[name].walk() for n in referenced_graphs(op)]
    return needed


def load_time_graphs(module: Module) -> dict[str, None]:
    """Names of the graphs that run when the program is loaded: those that an ``initial`` mentions, and what they mention."""
    initial = REGISTRY.get(INITIAL)
    blocks = [graph.block for graph in reversed(module.graphs.values())]
    roots = []
    while blocks:  # without Module.walk: many passes ask, and only they would be slow
        op = blocks.pop().first
        while op is not None:
            if op.definition is initial:
                roots += referenced_graphs(op)
            for region in op.regions:
                blocks += region.blocks
            op = op.next
    return reachable_graphs(module, roots)


def first_effect(module: Module, graph: Graph) -> Operation | None:
    """The first operation of a graph, or of one that it calls, that does something besides computing.

    Buffers are no effect: without parameters a graph can only write to its own.
    """
    for name in reachable_graphs(module, [graph.name]):
        for op in module.graphs[name].walk():
            definition = op.definition
            if not definition.pure and definition.dialect == "graph" and definition.name != "call" and not definition.is_terminator:
                return op
    return None
