"""Repeating a nest where its result is read."""

from __future__ import annotations

from collections.abc import Sequence

from ir.clone import clone_operation
from ir.core import Operation, Value
from ir.dims import Dim, DimExpr, symbols_of
from ir.layout import LoopDim
from passes.infra.base import PassContext
from passes.infra.decisions import Blocker, Rule
from passes.linalg._fusion import (
    Indices,
    Nest,
    Output,
    Read,
    compose,
    is_product,
    is_sum_of_names,
    place_dims,
    plain_name,
    root,
    set_bindings,
)
from passes.linalg._nest_index import Nests, erase_buffer, output_to

CHEAP = 3
"""Operations that are rather done again than stored and read."""


def repeat_producer(nests: Nests, consumer: Operation, context: PassContext, moves_only: bool) -> bool:
    """Computes one value that the nest reads where it is read; returns whether that could be done."""
    scopes: dict[Operation, list[LoopDim]] = {}
    for nest in nests.views(consumer):
        scopes[nest.op] = [*scopes.get(outer(nest.op), []), *nest.dims]  # type: ignore[arg-type]
        for read in nest.reads:
            producer = nests.writer_of(read.buffer)
            if producer is None or producer.op is consumer or not nests.is_before(producer.op, consumer):
                continue
            verdict = may_repeat(nests, producer, nest, read, scopes[nest.op], consumer)
            if isinstance(verdict, Blocker) or (moves_only and verdict is not Rule.MOVED):
                continue
            _repeat(nests, producer, nest, read, consumer, verdict)
            context.count("nests repeated where they are read")
            return True
    return False


def outer(op: Operation) -> Operation | None:
    """The operation around one."""
    return op.block.parent.parent if op.block is not None and op.block.parent is not None else None


def scope_of(op: Operation) -> list[LoopDim]:
    """The loop dimensions of a nest and of those around it."""
    scope: list[LoopDim] = []
    at: Operation | None = op
    while at is not None:
        scope += Nest(at).dims if at.name in ("linalg.generic", "linalg.reduce") else []
        at = outer(at)
    return scope


def may_repeat(nests: Nests, producer: Nest, nest: Nest, read: Read, scope: Sequence[LoopDim], consumer: Operation) -> Rule | Blocker:
    """By which rule a nest may be repeated at a read of ``nest``, which is the consumer or inside it, or why it may not."""
    facts = nests.facts(producer.op)
    output = output_to(producer, read.buffer)
    if facts.loops or facts.stores or len(producer.outputs) != 1:
        return Blocker.REDUCED if facts.loops else Blocker.SEVERAL
    if output is None:
        return Blocker.PLACE
    blocked = may_move(nests, producer.op, consumer)
    if blocked is not None:
        return blocked
    if facts.effects:
        return Blocker.EFFECT
    if nests.touch(nests.facts(consumer).writes, facts.reads):
        return Blocker.OVERWRITTEN  # some rounds of the consumer would store before others read
    places = _places(output.indices, read.indices)
    if any(n.startswith("%") for e in places.values() for n in symbols_of(e)):
        return Blocker.COMPUTED_PLACE
    if facts.indices and not all(is_sum_of_names(e, [d.name for d in scope]) for e in places.values()):
        return Blocker.COMPUTED_PLACE
    if facts.cost == 0:
        return Rule.MOVED
    if facts.cost <= CHEAP and not facts.reads:
        return Rule.REPEATED  # made of loop variables alone
    if _is_wide_factor(nests, producer, nest, read, consumer):
        return Rule.WIDENED
    if not _covers(places, scope):
        return Blocker.REREAD
    if _is_sole(nests, producer, output, nest, read, consumer):
        return Rule.INLINED
    return Rule.REPEATED if facts.cost <= CHEAP and _all_read_once(nests, producer.op, output) else Blocker.SEVERAL


def _is_wide_factor(nests: Nests, producer: Nest, nest: Nest, read: Read, consumer: Operation) -> bool:
    """Whether a nest only widens f16 or bf16 for the factor of a product that has its columns.

    That is exact, costs little where vectors are loaded, and halves what is read.  The other factor is read once for every
    block of columns, element by element: it is widened before.
    """
    body = [op for op in producer.block if not op.definition.is_terminator]
    if len(body) != 1 or body[0].name != "arith.extf" or not is_product(nest):
        return False
    outputs = nests.view(consumer).outputs
    column = plain_name(outputs[-1].indices[-1]) if outputs and outputs[-1].indices else None
    return column is not None and any(column in symbols_of(e) for e in read.indices)


def may_move(nests: Nests, producer: Operation, consumer: Operation) -> Blocker | None:
    """Why a nest may not run as late as one that reads it, as far as what stands between them goes."""
    facts = nests.facts(producer)
    if any(nests.written_between(m, producer, consumer) for m in facts.reads):
        return Blocker.OVERWRITTEN
    return Blocker.EFFECT if facts.effects and nests.barrier_between(producer, consumer) else None


def _is_sole(nests: Nests, producer: Nest, output: Output, nest: Nest, read: Read, consumer: Operation) -> bool:
    """Whether nothing reads what a nest makes but one nest, at one place."""
    memory = root(output.buffer)
    if set(nests.users[memory]) != {producer.op, consumer}:
        return False
    here = [(inner.op, r) for inner in nests.views(consumer) for r in inner.reads if root(r.buffer) is memory]
    if any(op is not nest.op or r.indices != read.indices for op, r in here):
        return False
    return len(here) == sum(1 for buffer, _ in nests.accesses(consumer) if root(buffer) is memory)


def _all_read_once(nests: Nests, producer: Operation, output: Output) -> bool:
    """Whether every read of what a nest makes takes place once for each element."""
    memory = root(output.buffer)
    if memory in nests.read_once:
        return True
    for user in nests.users[memory]:
        if user is producer:
            continue
        if user.name != "linalg.generic":
            return False
        reads = [(n.op, r) for n in nests.views(user) for r in n.reads if root(r.buffer) is memory]
        if len(reads) != sum(1 for buffer, _ in nests.accesses(user) if root(buffer) is memory):
            return False
        if not all(r.buffer is output.buffer and _covers(_places(output.indices, r.indices), scope_of(op)) for op, r in reads):
            return False
    nests.read_once.add(memory)
    return True


def _places(written: Indices, read: Indices) -> dict[str, Dim]:
    """For each loop dimension of a producer the expression that it is at a reader's place."""
    return {name: there for here, there in zip(written, read, strict=True) if (name := plain_name(here)) is not None}


def _covers(places: dict[str, Dim], scope: Sequence[LoopDim]) -> bool:
    """Whether every round of the loops around a reader has a place of its own."""
    names = [_single_name(e) for e in places.values() if not isinstance(e, int)]
    return None not in names and len(set(names)) == len(names) and {d.name for d in scope if d.bound != 1} <= set(names)


def _single_name(expr: Dim) -> str | None:
    """The only name in an expression that is a multiple of it plus a constant."""
    names = [m for m, _ in expr.terms if m] if isinstance(expr, DimExpr) else []
    return str(names[0][0]) if len(names) == 1 and len(names[0]) == 1 and isinstance(names[0][0], str) else None


def _repeat(nests: Nests, producer: Nest, nest: Nest, read: Read, consumer: Operation, rule: Rule) -> None:
    output = output_to(producer, read.buffer)
    assert output is not None
    memory = root(output.buffer)
    nests.disturb(producer.op, consumer, [memory])
    places = _places(output.indices, read.indices)
    mapping: dict[Value, Value] = {}
    added = []
    known = {(r.buffer, r.indices): r.argument for r in nest.reads if r is not read}
    for old in producer.reads:
        indices = compose(old.indices, places)
        value = known.get((old.buffer, indices))
        if value is None:
            value = known[old.buffer, indices] = Value(old.argument.name, old.argument.type, nest.block, 0)
            added.append(Read(value, old.buffer, indices))
        mapping[old.argument] = value
    clones = [clone_operation(op, mapping) for op in producer.block if not op.definition.is_terminator]
    first = nest.block.first
    for clone in clones:
        nest.block.insert_before(first, clone)
    value = mapping.get(output.value, output.value)
    outputs = [Output(o.argument, o.buffer, o.indices, value if o.value is read.argument else o.value) for o in nest.outputs]
    read.argument.replace_all_uses_with(value)
    position = nest.reads.index(read)
    set_bindings(nest.op, [*nest.reads[:position], *added, *nest.reads[position + 1 :]], outputs)
    place_dims(clones, places)
    nests.changed(consumer)
    nests.members[consumer].update(nests.members[producer.op])
    nests.note(rule, [memory], consumer)
    if set(nests.users[memory]) == {producer.op}:
        producer.op.erase()
        nests.removed(producer.op)
        erase_buffer(memory)
