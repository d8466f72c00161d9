"""Joining nests over the same rows, of which some reduce along the rows, into one loop over the rows."""

from __future__ import annotations

from collections.abc import Iterator

from ir.core import Operation, Value
from ir.dims import Dim, symbol
from ir.layout import LAYOUT, LoopDim, layout_of
from passes.infra.base import PassContext
from passes.infra.decisions import Blocker, Rule
from passes.linalg._fusion import (
    Indices,
    Nest,
    Output,
    build_nest,
    compose,
    dimension_names,
    fresh_name,
    is_nest,
    nested_nests,
    plain_name,
    rename_dims,
    root,
    set_bindings,
    take_body,
    used_names,
)
from passes.linalg._nest_index import Nests, erase_buffer
from passes.linalg._repeating import may_move


def join_rows(nests: Nests, context: PassContext) -> None:
    """Joins what can be, from the first nest of the graph to the last."""
    for op in list(nests.graph.block):
        consumer: Operation | None = op if op.block is not None and is_nest(op) else None
        while consumer is not None:
            joined = None
            for producer in list(_producers(nests, consumer)):
                rows = may_share_rows(nests, producer, consumer)
                if not isinstance(rows, Blocker):
                    joined = _join(nests, producer, consumer, rows)
                    context.count("nests joined over rows")
                    break
            consumer = joined


def _producers(nests: Nests, consumer: Operation) -> Iterator[Operation]:
    seen: set[Operation] = set()
    for buffer, _ in nests.accesses(consumer):
        writer = nests.sole_writer(buffer)
        if writer is not None and writer not in seen and writer is not consumer and nests.is_before(writer, consumer):
            seen.add(writer)
            yield writer


def may_share_rows(nests: Nests, producer: Operation, consumer: Operation) -> int | Blocker:
    """How many leading loop dimensions are the rows of both when they can share them, or why they can't."""
    facts = [nests.facts(op) for op in (producer, consumer)]
    if facts[0].contraction or facts[1].contraction:
        return Blocker.PRODUCTS
    first, second = nests.view(producer), nests.view(consumer)
    counts = {len(nest.dims) for nest, fact in zip((first, second), facts, strict=True) if fact.reduction}
    if len(counts) != 1 or 0 in counts:
        return Blocker.LOOPS
    rows = counts.pop()
    bounds = [[d.bound for d in nest.dims[:rows]] for nest in (first, second)]
    if len(bounds[0]) < rows or bounds[0] != bounds[1]:
        return Blocker.LOOPS
    return _may_share(nests, first, second, rows) or rows


def _may_share(nests: Nests, first: Nest, second: Nest, rows: int) -> Blocker | None:
    facts, later = nests.facts(first.op), nests.facts(second.op)
    blocked = may_move(nests, first.op, second.op)
    if blocked is not None:
        return blocked
    if nests.used_between(facts.writes, first.op, second.op):
        return Blocker.IN_BETWEEN
    names = _row_names(first, second, rows)
    shared = [m for m in (*facts.writes, *later.writes) if nests.touch([m], facts.touched) and nests.touch([m], later.touched)]
    if nests.touch(later.writes, [*facts.reads, *facts.writes]):
        return Blocker.OVERWRITTEN
    if all(_same_rows(nests, m, first, second, names, rows) for m in shared) and _start_reads_are_values(nests, first, second, names, rows):
        return None
    return Blocker.PLACE


def _row_names(first: Nest, second: Nest, rows: int) -> dict[str, str]:
    """The consumer's rows as those of the producer; other loops of the consumer that are called like a row get another name."""
    names = {b.name: a.name for a, b in zip(first.dims[:rows], second.dims[:rows], strict=True)}
    own = {d.name for d in first.dims[:rows]}
    hidden = sorted(name for name in dimension_names(second.op) - set(names) if name in own)
    if hidden:
        taken = {*own, *used_names(first.op), *used_names(second.op)}
        names.update({name: fresh_name(taken) for name in hidden})
    return names


def _same_rows(nests: Nests, memory: Value, first: Nest, second: Nest, names: dict[str, str], rows: int) -> bool:
    """Whether rounds of the two nests meet in this memory only when they are of the same row."""
    renamed: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    places: list[Indices] = []
    for nest, mapping in ((first, {}), (second, renamed)):
        for buffer, indices in nests.accesses(nest.op):
            if root(buffer) is memory:
                if buffer is not memory:
                    return False
                places.append(compose(indices, mapping))
    wanted = [d.name for d in first.dims[:rows] if d.bound != 1]
    return all(any(all(plain_name(p[axis]) == name for p in places) for axis in range(len(places[0]))) for name in wanted)


def _row_values(nest: Nest, rows: int) -> dict[Value, Output]:
    """What a nest over the rows alone stores for each row: values that the rest of the row can use."""
    return {o.buffer: o for o in nest.outputs} if len(nest.dims) == rows else {}


def _start_reads_are_values(nests: Nests, first: Nest, second: Nest, names: dict[str, str], rows: int) -> bool:
    """Whether what the joined nest would read at the start of a round is not stored in that round."""
    values = _row_values(first, rows)
    renamed: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    memory = nests.facts(first.op).writes
    for nest in nests.views(second.op):
        for read in nest.reads:
            if not nests.touch([root(read.buffer)], memory):
                continue
            value = values.get(read.buffer)
            if value is not None:
                if compose(read.indices, renamed) != value.indices:
                    return False
            elif nest.op is second.op and len(second.dims) == rows:
                return False
    stored_by_values = {root(b) for b in values}
    loads = [i for i in nests.facts(second.op).accessing if i.name in ("memref.load", "memref.store")]
    return not any(root(v) in stored_by_values for i in loads for v in i.operands)


def _join(nests: Nests, producer: Operation, consumer: Operation, rows: int) -> Operation:
    first, second = nests.view(producer), nests.view(consumer)
    row_dims = first.dims[:rows]
    names = {d.name for d in row_dims}
    shared = [m for m in nests.facts(producer).writes if m in nests.facts(consumer).touched]
    rename_dims([consumer], _row_names(first, second, rows))
    first, second = Nest(producer), Nest(consumer)
    values = _row_values(first, rows)
    second_value = _forward(consumer, values)
    mine = {producer, consumer}
    still_read = [o for o in values.values() if not nests.users[root(o.buffer)].keys() <= mine]
    dropped = [root(b) for b, o in values.items() if o not in still_read]
    first, second = Nest(producer), Nest(consumer)
    block, following = consumer.block, consumer.next
    assert block is not None
    body: list[Operation] = []
    reads, outputs, retired = [], list(still_read), []
    for nest in (first, second):
        if len(nest.dims) == rows:
            reads += nest.reads
            outputs += [] if nest is first else [Output(o.argument, o.buffer, o.indices, second_value.get(o.value, o.value)) for o in nest.outputs]
            body += take_body(nest)
            retired.append(nest.op)
        else:
            nest.op.remove()
            layout = [a for a in layout_of(nest.op) if not (isinstance(a, LoopDim) and a.name in names)]
            nest.op.set_attribute(LAYOUT, tuple(layout))  # type: ignore[arg-type]
            body.append(nest.op)
    joined = build_nest(following, block, row_dims, reads, body, outputs, retired)
    nests.replaced(producer, consumer, joined)
    nests.note(Rule.ROWS, shared, joined)
    for memory in dropped:
        erase_buffer(memory)
    return joined


def _forward(consumer: Operation, values: dict[Value, Output]) -> dict[Value, Value]:
    """Uses values of a row where the consumer reads them from memory; says which arguments became which values."""
    forwarded: dict[Value, Value] = {}
    for nest in list(nested_nests(consumer)):
        kept = [r for r in nest.reads if r.buffer not in values]
        if len(kept) == len(nest.reads):
            continue
        for read in nest.reads:
            if read.buffer in values:
                forwarded[read.argument] = values[read.buffer].value
                read.argument.replace_all_uses_with(values[read.buffer].value)
        outputs = [Output(o.argument, o.buffer, o.indices, forwarded.get(o.value, o.value)) for o in nest.outputs]
        set_bindings(nest.op, kept, outputs)
    return forwarded
