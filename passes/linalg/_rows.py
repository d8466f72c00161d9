"""Joining nests over the same rows, of which some reduce along the rows, into one loop over the rows."""

from __future__ import annotations

from collections.abc import Iterator

from ir.core import Graph, Operation, Value
from ir.dims import Dim, symbol
from ir.layout import LAYOUT, LoopDim, layout_of
from passes.infra.base import PassContext
from passes.linalg._fusion import (
    Indices,
    Nest,
    Output,
    accesses_of,
    build_nest,
    compose,
    dimension_names,
    fresh_name,
    has_reduction,
    is_contraction,
    is_nest,
    nested_nests,
    plain_name,
    rename_dims,
    root,
    take_body,
    top_level,
    users_of_memory,
    written_memory,
)
from passes.linalg._joining import can_move_to, is_before, may_alias, read_memory, remove_unread, set_bindings, sole_writer


def join_rows(graph: Graph, context: PassContext) -> None:
    """Joins what can be, from the first nest of the graph to the last."""
    for op in list(graph.block):
        consumer: Operation | None = op if op.block is not None and is_nest(op) else None
        while consumer is not None:
            joined = None
            for producer in _producers(consumer):
                rows = _rows(producer, consumer)
                if rows is not None and _may_share_rows(producer, consumer, rows):
                    joined = _join(producer, consumer, rows)
                    context.count("nests joined over rows")
                    break
            consumer = joined


def _producers(consumer: Operation) -> Iterator[Operation]:
    seen: set[int] = set()
    for buffer, _ in list(accesses_of(consumer)):
        writer = sole_writer(buffer)
        if writer is not None and id(writer) not in seen and writer is not consumer and is_before(writer, consumer):
            seen.add(id(writer))
            yield writer


def _rows(producer: Operation, consumer: Operation) -> int | None:
    """How many leading loop dimensions are the rows of both; None when they have no rows in common."""
    if is_contraction(producer) or is_contraction(consumer):
        return None
    reducing = [Nest(op) for op in (producer, consumer) if has_reduction(op)]
    if not reducing or not reducing[0].dims or len({len(n.dims) for n in reducing}) != 1:
        return None
    count = len(reducing[0].dims)
    first, second = Nest(producer).dims, Nest(consumer).dims
    if len(first) < count or len(second) < count:
        return None
    same = all(a.bound == b.bound for a, b in zip(first[:count], second[:count], strict=True))
    return count if same else None


def _may_share_rows(producer: Operation, consumer: Operation, rows: int) -> bool:
    if not can_move_to(producer, consumer):
        return False
    first, second = Nest(producer), Nest(consumer)
    outputs = {id(top_level(u)) for m in written_memory(producer) for u in users_of_memory(m)}
    op = producer.next
    while op is not None and op is not consumer:
        if id(op) in outputs:
            return False
        op = op.next
    names = _row_names(first, second, rows)
    shared = [m for m in (*written_memory(producer), *written_memory(consumer)) if _meets(m, producer) and _meets(m, consumer)]
    if any(may_alias(m, r) for m in written_memory(consumer) for r in (*read_memory(producer), *written_memory(producer))):
        return False
    return all(_same_rows(m, first, second, names, rows) for m in shared) and _start_reads_are_values(first, second, names, rows)


def _row_names(first: Nest, second: Nest, rows: int) -> dict[str, str]:
    """The consumer's rows as those of the producer; other loops of the consumer that are called like a row get another name."""
    names = {b.name: a.name for a, b in zip(first.dims[:rows], second.dims[:rows], strict=True)}
    own = {d.name for d in first.dims[:rows]}
    taken = {*own, *dimension_names(first.op), *dimension_names(second.op)}
    names.update({name: fresh_name(taken) for name in sorted(dimension_names(second.op) - set(names)) if name in own})
    return names


def _meets(memory: Value, op: Operation) -> bool:
    return any(may_alias(root(b), memory) for b, _ in accesses_of(op))


def _same_rows(memory: Value, first: Nest, second: Nest, names: dict[str, str], rows: int) -> bool:
    """Whether rounds of the two nests meet in this memory only when they are of the same row."""
    renamed: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    places: list[Indices] = []
    for nest, mapping in ((first, {}), (second, renamed)):
        for buffer, indices in accesses_of(nest.op):
            if root(buffer) is memory:
                if buffer is not memory:
                    return False
                places.append(compose(indices, mapping))
    wanted = [d.name for d in first.dims[:rows] if d.bound != 1]
    return all(any(all(plain_name(p[axis]) == name for p in places) for axis in range(len(places[0]))) for name in wanted)


def _row_values(nest: Nest, rows: int) -> dict[Value, Output]:
    """What a nest over the rows alone stores for each row: values that the rest of the row can use."""
    return {o.buffer: o for o in nest.outputs} if len(nest.dims) == rows else {}


def _start_reads_are_values(first: Nest, second: Nest, names: dict[str, str], rows: int) -> bool:
    """Whether what the joined nest would read at the start of a round is not stored in that round."""
    values = _row_values(first, rows)
    renamed: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    memory = written_memory(first.op)
    for nest in nested_nests(second.op):
        for read in nest.reads:
            if not any(may_alias(root(read.buffer), m) for m in memory):
                continue
            value = values.get(read.buffer)
            if value is not None:
                if compose(read.indices, renamed) != value.indices:
                    return False
            elif nest.op is second.op and len(second.dims) == rows:
                return False
    stored_by_values = [root(b) for b in values]
    loads = [i for i in second.op.walk() if i.name in ("memref.load", "memref.store")]
    return not any(root(v) is m for i in loads for v in i.operands if v.type.__class__.__name__ == "MemRefType" for m in stored_by_values)


def _join(producer: Operation, consumer: Operation, rows: int) -> Operation:
    first, second = Nest(producer), Nest(consumer)
    row_dims = first.dims[:rows]
    names = {d.name for d in row_dims}
    rename_dims([consumer], _row_names(first, second, rows))
    first, second = Nest(producer), Nest(consumer)
    values = _row_values(first, rows)
    second_value = _forward(consumer, values)
    still_read = [o for o in values.values() if any(u is not producer and top_level(u) is not consumer for u in users_of_memory(o.buffer))]
    dropped = [b for b, o in values.items() if o not in still_read]
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
    for buffer in dropped:
        remove_unread(buffer)
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


