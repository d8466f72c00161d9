"""Joining a nest with one that it reads, by sharing the loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ir.core import Operation, Value
from ir.dims import Dim, symbol
from ir.layout import LoopDim
from ir.rewriter import move_before
from passes.infra.base import PassContext
from passes.infra.decisions import Blocker, Rule
from passes.linalg._fusion import (
    Nest,
    Output,
    Read,
    compose,
    dimension_names,
    fresh_name,
    is_product,
    joined_trivia,
    plain_name,
    rename_dims,
    root,
    set_bindings,
    share_factor,
    used_names,
)
from passes.linalg._nest_index import Nests, erase_buffer, output_to
from passes.linalg._repeating import may_move

Wanted = Callable[[Nests, Nest, Operation], bool]
"""Whether a producer is to be joined with a consumer now."""


def join_nests(nests: Nests, consumer: Operation, context: PassContext, wanted: Wanted | None = None) -> Operation | None:
    """Joins the nest with one that it reads at the place that is being stored; returns the joined nest.

    ``wanted`` chooses among those that it reads.
    """
    nest = nests.view(consumer)
    for read in nest.reads:
        producer = nests.writer_of(read.buffer)
        if producer is None or producer.op is consumer or not nests.is_before(producer.op, consumer):
            continue
        if wanted is not None and not wanted(nests, producer, consumer):
            continue
        names = may_join(nests, producer, nest, read)
        if isinstance(names, Blocker):
            continue
        context.count("nests joined")
        return _join(nests, producer, nest, names)
    return None


def has_one_reader(nests: Nests, producer: Nest, consumer: Operation) -> bool:
    """Whether nothing but the consumer uses what the producer makes."""
    mine = {producer.op, consumer}
    return all(nests.users[root(o.buffer)].keys() <= mine for o in producer.outputs)


def is_plain(nests: Nests, producer: Nest, consumer: Operation) -> bool:
    """Whether, besides, the producer has no loops inside."""
    return not nests.facts(producer.op).loops and has_one_reader(nests, producer, consumer)


def may_join(nests: Nests, producer: Nest, nest: Nest, read: Read) -> dict[str, str] | Blocker:
    """The consumer's loop dimensions as those of the producer when both can be one nest, or why they can't be."""
    output = output_to(producer, read.buffer)
    if output is None:
        return Blocker.PLACE if any(o.buffer is read.buffer for o in producer.outputs) else Blocker.OWN_LOOPS
    names = _same_space(producer, output, nest, read)
    if names is None:
        return Blocker.REDUCED if nests.facts(producer.op).reduction else Blocker.LOOPS
    first, second = nests.facts(producer.op), nests.facts(nest.op)
    if (first.contraction and second.reduction) or (second.contraction and first.reduction):
        if not _are_products_of_one(nests, producer.op, nest.op, names):
            return Blocker.PRODUCTS
    blocked = _meets_elsewhere(nests, producer, nest, names) or may_move(nests, producer.op, nest.op) or _used_between(nests, producer, nest.op)
    return names if blocked is None else blocked


def _are_products_of_one(nests: Nests, producer: Operation, consumer: Operation, names: dict[str, str]) -> bool:
    """Whether all that two nests sum up are products with one factor in common: gate and up, which read it while it is near."""
    sums = [[n for n in nests.views(op) if n.op.name == "linalg.reduce"] for op in (producer, consumer)]
    if not all(map(is_product, (*sums[0], *sums[1]))):
        return False
    return all(share_factor(sums[0][0], other, names) for other in sums[1])


def _same_space(producer: Nest, output: Output, nest: Nest, read: Read) -> dict[str, str] | None:
    """The consumer's loop dimensions as those of the producer, when both run through the same places."""
    bounds = {d.name: d.bound for d in producer.dims}
    names: dict[str, str] = {}
    for here, there in zip(output.indices, read.indices, strict=True):
        mine, theirs = plain_name(here), plain_name(there)
        if mine is None and here == there:
            continue
        if mine is None or theirs is None or theirs in names:
            return None
        names[theirs] = mine
    if sorted(names) != sorted(nest.names) or sorted(names.values()) != sorted(producer.names):
        return None
    return names if all(bounds[names[d.name]] == d.bound for d in nest.dims) else None


def _meets_elsewhere(nests: Nests, producer: Nest, nest: Nest, names: dict[str, str]) -> Blocker | None:
    """Why the consumer meets the producer's memory otherwise than by reading, at its start, what was stored in the same round."""
    facts = nests.facts(producer.op)
    outputs = {o.buffer: o for o in producer.outputs}
    if len(set(facts.writes)) != len(producer.outputs) or any(output_to(producer, b) is None for b in outputs):
        return Blocker.OWN_LOOPS  # nests inside it store as well, or one place is stored twice
    if nests.touch(nests.facts(nest.op).writes, [*facts.writes, *facts.reads]):
        return Blocker.OVERWRITTEN
    places: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    good = sum(1 for r in nest.reads if r.buffer in outputs and compose(r.indices, places) == outputs[r.buffer].indices)
    met = sum(1 for buffer, _ in nests.accesses(nest.op) if any(nests.may_alias(root(buffer), m) for m in facts.writes))
    return None if good == met else Blocker.PLACE


def _used_between(nests: Nests, producer: Nest, consumer: Operation) -> Blocker | None:
    memory = [root(o.buffer) for o in producer.outputs]
    return Blocker.IN_BETWEEN if nests.used_between(memory, producer.op, consumer) else None


def _join(nests: Nests, producer: Nest, nest: Nest, names: dict[str, str]) -> Operation:
    """One nest in the consumer's place, in the order of the producer's loops if that sums up products, else of the consumer's."""
    nests.disturb(producer.op, nest.op, [root(o.buffer) for o in producer.outputs])
    keep_first = nests.facts(producer.op).contraction
    larger = producer if nests.facts(producer.op).size > nests.facts(nest.op).size else nest
    dims = _shared_dims(producer, nest, names, keep_first, larger)
    stored = {o.buffer: o for o in producer.outputs}
    forwarded = {r.argument: stored[r.buffer].value for r in nest.reads if r.buffer in stored}
    used = [r.buffer for r in nest.reads if r.buffer in stored]
    outputs = [Output(o.argument, o.buffer, o.indices, forwarded.get(o.value, o.value)) for o in nest.outputs]
    for argument, value in forwarded.items():
        argument.replace_all_uses_with(value)
    mine = {producer.op, nest.op}
    dropped = [o for o in producer.outputs if nests.users[root(o.buffer)].keys() <= mine]
    outputs = [*(o for o in producer.outputs if o not in dropped), *outputs]
    reads = [*producer.reads, *(r for r in nest.reads if r.argument not in forwarded)]
    joined = merge_bodies(producer, nest, larger, dims, reads, outputs)
    nests.joined(producer.op, nest.op, joined, map(root, used), [root(o.buffer) for o in dropped])
    nests.note(Rule.JOINED, map(root, used), joined)
    for output in dropped:
        erase_buffer(root(output.buffer))
    return joined


def _shared_dims(producer: Nest, nest: Nest, names: dict[str, str], keep_first: bool, larger: Nest) -> list[LoopDim]:
    """Gives the loops of the smaller nest the names of the larger one's; returns them in the order to keep."""
    other, renamed = (nest, names) if larger is producer else (producer, {new: old for old, new in names.items()})
    base = producer if keep_first else nest
    by_name = {d.name: d for d in larger.dims}
    dims = larger.dims if base is larger else [by_name[renamed[d.name]] for d in other.dims]
    renamed = {old: new for old, new in renamed.items() if old != new}
    hidden = sorted((dimension_names(other.op) - set(other.names)) & set(by_name))
    if hidden:
        taken = {*used_names(larger.op), *used_names(other.op)}
        renamed.update((name, fresh_name(taken)) for name in hidden)
    if renamed:
        rename_dims([other.op], renamed)
        bound = {old: symbol(new) for old, new in renamed.items()}
        for read in other.reads:
            read.indices = compose(read.indices, bound)
        for output in other.outputs:
            output.indices = compose(output.indices, bound)
    return dims


def merge_bodies(first: Nest, second: Nest, larger: Nest, dims: Sequence[LoopDim], reads: Sequence[Read], outputs: Sequence[Output]) -> Operation:
    """One nest of the bodies of two, in the place of the second; the larger one stays, the other one goes.

    Reads of the same place share an argument.  Comments of both stay.
    """
    other = second if larger is first else first
    shared: dict[object, Read] = {}
    same: dict[Value, Value] = {}
    for read in sorted(reads, key=lambda r: r.argument.owner is not larger.block):  # the larger one's keep theirs
        kept = shared.setdefault((read.buffer, read.indices), read)
        if kept is not read:
            same[read.argument] = kept.argument
            read.argument.replace_all_uses_with(kept.argument)
    anchor = larger.block.first if other is first else larger.block.terminator
    for op in list(other.block):
        if not op.definition.is_terminator:
            move_before(op, anchor, larger.block)
    taken = {r.argument for r in shared.values()} | {o.argument for o in outputs}
    other.block.arguments = [a for a in other.block.arguments if a not in taken]
    kept_reads = [r for r in reads if shared[r.buffer, r.indices] is r]
    set_bindings(larger.op, kept_reads, [Output(o.argument, o.buffer, o.indices, same.get(o.value, o.value)) for o in outputs], dims)
    larger.op.trivia, larger.op.loc = joined_trivia([first.op, second.op]), second.op.loc
    if larger is first:
        assert second.op.block is not None
        move_before(larger.op, second.op.next, second.op.block)
    other.op.trivia = None
    other.op.erase()
    return larger.op
