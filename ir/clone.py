"""Independent copies of operations, graphs and modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir.core import Block, Graph, Module, Operation, Region, Trivia, Value
from ir.diagnostics import AnyLocation
from ir.types import Type


def clone_operation(
    op: Operation,
    mapping: dict[Value, Value],
    rename: Callable[[str], str] = lambda n: n,
    locations: Mapping[AnyLocation, AnyLocation] | None = None,
) -> Operation:
    """A detached copy of ``op`` and its regions with operands replaced through ``mapping`` (extended with its results).

    Values that ``mapping`` lacks are used as they are.  ``locations`` says which ones stand for others.  Comments are not copied,
    nor that names were derived.
    """
    regions: list[Region] = []
    if op.regions:
        blocks: list[tuple[Block, Block]] = []
        for region in op.regions:
            copies = []
            for block in region.blocks:
                copy = Block()
                for argument in block.arguments:
                    value = Value(rename(argument.name), argument.type, copy, argument.index)
                    copy.arguments.append(value)
                    mapping[argument] = value
                copies.append(copy)
                blocks.append((block, copy))
            regions.append(Region(copies))
        for block, copy in blocks:
            inner = block.first
            while inner is not None:
                copy._link(None, clone_operation(inner, mapping, rename, locations))  # it is in no graph yet that knows names
                inner = inner.next
    get = mapping.get
    loc = op.loc
    if locations is not None and loc is not None:
        loc = locations.get(loc, loc)
    results = op.results
    if len(results) == 1:  # most operations; written out, since programs have many
        (result,) = results
        types: Sequence[Type] = (result.type,)
        names: Sequence[str] = (rename(result.name),)
    else:
        types, names = [r.type for r in results], [rename(r.name) for r in results]
    clone = Operation(op.definition, [get(u.value, u.value) for u in op.operand_uses], None, regions, types, names, loc)
    clone.attributes = op.attributes  # never changed, see Operation.set_attribute
    for old, new in zip(results, clone.results, strict=True):
        mapping[old] = new
    return clone


def clone_graph(graph: Graph) -> Graph:
    """An independent copy of a graph, comments included."""
    copy = Graph(graph.name, bare=graph.bare, loc=graph.loc)
    mapping: dict[Value, Value] = {}
    operations: dict[Operation, Operation] = {}
    for parameter in graph.parameters:
        new = copy.add_parameter(parameter.name, parameter.type, inout=parameter.inout, loc=parameter.loc)
        new.trivia = parameter.trivia
        mapping[parameter] = new
    for op in graph.block:
        clone = copy.block.append(clone_operation(op, mapping))
        for old_op, new_op in zip(op.walk(), clone.walk(), strict=True):
            new_op.trivia = _copy_trivia(old_op.trivia)
            for old_region, new_region in zip(old_op.regions, new_op.regions, strict=True):
                for old_block, new_block in zip(old_region.blocks, new_region.blocks, strict=True):
                    new_block.comments = old_block.comments
        operations[op] = clone
        for old, fresh in zip(op.results, clone.results, strict=True):
            fresh.auto_named = old.auto_named
    for parameter, new in zip(graph.parameters, copy.parameters, strict=True):
        new.anchor = operations.get(parameter.anchor) if parameter.anchor is not None else None
    copy.block.comments = graph.block.comments
    copy.result_names = list(graph.result_names)
    copy.result_types = list(graph.result_types)
    copy.names_results = graph.names_results
    copy.constraints = graph.constraints
    copy.trivia = _copy_trivia(graph.trivia)
    return copy


def _copy_trivia(trivia: Trivia | None) -> Trivia | None:
    if trivia is None:
        return None
    return Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)


def clone_module(module: Module) -> Module:
    """An independent copy of a module (files are shared, they don't change)."""
    copy = Module(module.source)
    for graph in module.graphs.values():
        copy.add(clone_graph(graph))
    copy.files = dict(module.files)
    copy.version_line = module.version_line
    copy.comments = module.comments
    copy.version_trivia = module.version_trivia
    return copy
