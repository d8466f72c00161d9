"""Changing a graph: replacing operations while names, comments and uses stay right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ir.builder import Builder
from ir.core import DROPPED, Block, Graph, Module, Operation, Trivia, Value
from ir.opdef import OpDef

Rewrite = Callable[[Operation], "Sequence[Value] | Value | None"]
"""Looks at one operation inside an active builder that stands before it.  Returns the values that replace its results,
or None to leave it."""


def replace_op(op: Operation, values: Sequence[Value]) -> None:
    """Uses ``values`` instead of the operation's results and erases it.

    A value that the rewrite made (its name was derived) takes over the result's name; the operation's comments move to
    the operation that makes the first such value.
    """
    heir: Operation | None = None
    block_graph = op.graph
    for old, new in zip(op.results, values, strict=True):
        if new is old:
            raise ValueError(f"%{old.name} can't replace itself")
        old.replace_all_uses_with(new)
        if new.auto_named and heir is None:
            heir = new.defining_op
    names = [(new, old.name) for old, new in zip(op.results, values, strict=True)]
    trivia = op.trivia
    if heir is not None and heir.trivia is None and trivia is not None:
        heir.trivia = Trivia(trivia.blank_before, trivia.detached, trivia.leading, trivia.trailing)
        op.trivia = None
    op.erase()
    if block_graph is not None:
        for value, name in names:
            if (value.auto_named or value.name == DROPPED) and name != DROPPED:
                block_graph.rename(value, name)


def is_pure(op: Operation) -> bool:
    """Whether neither the operation nor one in its regions has an effect."""
    if not op.definition.pure:
        return False
    return all(inner.definition.pure or inner.definition.is_terminator for inner in op.walk()) if op.regions else True


def erase_if_dead(op: Operation) -> bool:
    """Erases a pure operation without uses; returns whether it did."""
    if not any(r.has_uses for r in op.results) and is_pure(op):
        op.erase()
        return True
    return False


def rewrite_greedily(graph: Graph, rewrites: Mapping[OpDef, Sequence[Rewrite]], on_rewrite: Callable[[Operation], None] | None = None) -> bool:
    """Applies rewrites until none applies; returns whether any did.

    Operations are visited in order; those that a rewrite made, and users of replaced values, are visited again.
    Raises RuntimeError when the rewrites don't come to an end, which is a fault in a rewrite.
    """
    worklist: dict[Operation, None] = dict.fromkeys(graph.walk())
    budget = 64 * (len(worklist) + 16)
    changed = False
    while worklist:
        op = next(iter(worklist))
        del worklist[op]
        if op.block is None:
            continue
        for rewrite in rewrites.get(op.definition, ()):
            again = _apply(op, rewrite)
            if again is None:
                continue
            changed = True
            budget -= 1
            if budget < 0:
                raise RuntimeError(f"rewrites of {op.name} in @{graph.name} do not come to an end")
            if on_rewrite is not None:
                on_rewrite(op)
            worklist.update(dict.fromkeys(again))
            break
    return changed


def _apply(op: Operation, rewrite: Rewrite) -> list[Operation] | None:
    """Tries one rewrite; the operations to look at again when it applied."""
    builder = Builder.before_op(op)
    users = [user for result in op.results for user in result.users]
    with builder:
        values = rewrite(op)
    if values is None:
        for made in reversed(builder.created):
            if made.block is not None:
                made.erase()
        return None
    sources = [v.defining_op for v in op.operands]
    if isinstance(values, Value):
        values = [values]
    _check_types(op, values)
    replace_op(op, values)
    again = [*(o for o in builder.created if o.block is not None), *users]
    for source in sources:
        if source is not None and source.block is not None and not erase_if_dead(source):
            again.append(source)
    return [o for o in again if o.block is not None]


def _check_types(op: Operation, values: Iterable[Value]) -> None:
    for old, new in zip(op.results, values, strict=True):
        if old.type != new.type:
            raise RuntimeError(f"a rewrite of {op.name} replaced {old.type} by {new.type}")


def move_before(op: Operation, anchor: Operation | None, block: Block) -> None:
    """Moves an operation with all inside it within its graph (to the end of the block for None); its names stay."""
    assert op.block is not None and op.graph is block.graph, "moving is within a graph"
    op.block._unlink(op)
    block._link(anchor, op)


def walk_graphs(module: Module) -> list[Graph]:
    """The graphs of a module, as a list that stays valid while graphs are added or removed."""
    return list(module.graphs.values())
