"""Joining a nest with those that it reads: by repeating the producer where it is read, or by sharing the loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dialects.arith.constant import constant
from ir.attributes import Dense
from ir.builder import Builder
from ir.clone import clone_operation
from ir.core import Graph, Operation, Value
from ir.dims import Dim, DimExpr, exact_div, symbol, symbols_of
from ir.layout import LAYOUT, IndexExpr, LoopDim, layout_of
from ir.rewriter import move_before
from ir.substitute import substitute_attribute
from ir.types import MemRefType, index
from passes.infra.base import PassContext
from passes.linalg._fusion import (
    Indices,
    Nest,
    Output,
    Read,
    accesses_of,
    aliases,
    build_nest,
    compose,
    dimension_names,
    fresh_name,
    has_effects_beside_memory,
    has_reduction,
    is_contraction,
    is_nest,
    is_sum_of_names,
    nested_nests,
    place_dims,
    plain_name,
    rename_dims,
    root,
    take_body,
    top_level,
    users_of_memory,
    written_memory,
)
from passes.loops._loops import Access, Bind, read_layout, write_layout
from passes.loops._memory import alias, memory_of

CHEAP = 3
"""Operations that are rather done again than stored and read."""

_FREE = ("arith.constant", "linalg.index")
_CHEAP_MATH = ("fma", "absf", "absi", "copysign")
_COSTLY = ("arith.divf", "arith.remf", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.floordivsi", "arith.modsi", "math.sqrt")


def cost(nest: Nest) -> int:
    """What computing one element takes, in simple operations."""
    total = 0
    for op in nest.block:
        if op.name in _FREE or op.definition.is_terminator:
            continue
        costly = op.regions or op.name in _COSTLY or (op.definition.dialect == "math" and op.definition.name not in _CHEAP_MATH)
        total += 100 if costly else 1
    return total


# -- memory ------------------------------------------------------------------------------------------------------------


def may_alias(a: Value, b: Value) -> bool:
    """Whether two root buffers may share memory: views of one arena, or parameters, for which a caller may pass one array."""
    return a is b or alias(memory_of(a), memory_of(b)) != "never"


def _touches(memory: Sequence[Value], other: Sequence[Value]) -> bool:
    return any(may_alias(a, b) for a in memory for b in other)


def read_memory(op: Operation) -> list[Value]:
    """The memory that a nest, with all inside it, accesses, but for what it only writes."""
    outputs = {id(o.argument): o for n in nested_nests(op) if n.op.name == "linalg.generic" for o in n.outputs}
    written_only = [o for o in outputs.values() if not o.argument.has_uses]
    counts: dict[Value, int] = {}
    for buffer, _ in accesses_of(op):
        counts[root(buffer)] = counts.get(root(buffer), 0) + 1
    for output in written_only:
        counts[root(output.buffer)] -= 1
    return [b for b, n in counts.items() if n]


def between(first: Operation, last: Operation) -> Iterator[Operation]:
    """The operations behind one and before another of the same block."""
    op = first.next
    while op is not None and op is not last:
        yield op
        op = op.next


def is_before(first: Operation, last: Operation) -> bool:
    if first.block is not last.block or first is last:
        return False
    op: Operation | None = first
    while op is not None and op is not last:
        op = op.next
    return op is last


def can_move_to(producer: Operation, consumer: Operation) -> bool:
    """Whether the producer may run as late as the consumer, as far as what stands between them goes."""
    reads, effects = read_memory(producer), has_effects_beside_memory(producer)
    for op in between(producer, consumer):
        if _touches(written_memory(op), reads):
            return False
        if effects and not op.definition.pure and op.name not in ("memref.alloc", "memref.prefetch", "memref.to_tensor", "linalg.generic"):
            return False
    return True


def sole_writer(buffer: Value) -> Operation | None:
    """The top-level nest that alone writes to the memory of a buffer, which is the graph's own."""
    memory = root(buffer)
    if memory.defining_op is None or memory.defining_op.name != "memref.alloc":
        return None
    users = list(dict.fromkeys(top_level(u) for u in users_of_memory(memory)))
    writers = [u for u in users if any(w is memory for w in written_memory(u))]
    if len(writers) != 1 or not is_nest(writers[0]) or writers[0].block is not memory.defining_op.block:
        return None
    return writers[0]


def writer_of(buffer: Value) -> Nest | None:
    """The nest of :func:`sole_writer` when it stores what it yields."""
    op = sole_writer(buffer)
    nest = Nest(op) if op is not None else None
    return nest if nest is not None and any(o.buffer is root(buffer) for o in nest.outputs) else None


def output_to(nest: Nest, buffer: Value) -> Output | None:
    """The output that fills the buffer: every element once, in a place that is made of plain loop dimensions."""
    found = [o for o in nest.outputs if o.buffer is buffer]
    if len(found) != 1 or not isinstance(buffer.type, MemRefType):
        return None
    names = [plain_name(e) for e, size in zip(found[0].indices, buffer.type.shape, strict=True) if not (e == 0 and size == 1)]
    if None in names or sorted(map(str, names)) != sorted(nest.names):
        return None
    return None if found[0].argument.has_uses else found[0]


# -- editing a nest in place -------------------------------------------------------------------------------------------


def set_bindings(op: Operation, reads: Sequence[Read], outputs: Sequence[Output]) -> None:
    """Replaces the bindings of accesses of a nest; loop dimensions and accumulated values stay."""
    graph = op.graph
    assert graph is not None
    block = op.regions[0].block
    layout = read_layout(op)
    dims = [a for a in layout if isinstance(a, LoopDim)]
    inits = [a.source for a in layout if isinstance(a, Bind) and isinstance(a.source, Value)]
    carried = block.arguments[len(block.arguments) - len(inits) :] if inits else []
    places = [(r.buffer, r.indices) for r in reads] + [(o.buffer, o.indices) for o in outputs]
    arguments = [*(r.argument for r in reads), *(o.argument for o in outputs), *carried]
    for old in block.arguments:
        if old not in arguments and graph.names.get(old.name) is old:
            graph._release(old.name)
    for position, value in enumerate(arguments):
        value.owner, value.index = block, position
        if graph.names.get(value.name) is not value:
            graph._claim(value)
    block.arguments = arguments
    bindings = [Bind(Access(buffer, tuple(map(IndexExpr, indices)))) for buffer, indices in places]
    write_layout(op, [*dims, *bindings, *map(Bind, inits)])
    if op.name == "linalg.generic" and block.terminator is not None:
        block.terminator.set_operands([o.value for o in outputs])


def only_writes(op: Operation, buffer: Value) -> bool:
    """Whether an operation does nothing with some memory but write it in nests."""
    memory = root(buffer)
    if op.name not in ("linalg.generic",):
        return False
    nest = Nest(op)
    if any(root(r.buffer) is memory for r in nest.reads):
        return False
    return all(root(o.buffer) is not memory or not o.argument.has_uses for o in nest.outputs)


def drop_output(op: Operation, buffer: Value) -> None:
    """Takes a buffer that nothing reads out of a nest; a nest without any effect left is erased."""
    nest = Nest(op)
    memory = root(buffer)
    set_bindings(op, nest.reads, [o for o in nest.outputs if root(o.buffer) is not memory])
    while op.block is not None and not written_memory(op) and not has_effects_beside_memory(op) and op.name == "linalg.generic":
        parent = op.block.parent.parent if op.block.parent is not None else None
        op.erase()
        if parent is None:
            return
        op = parent


def remove_unread(buffer: Value) -> bool:
    """Erases a buffer of the graph's own that is only written, with what only writes to it; returns whether it was one."""
    memory = root(buffer)
    op = memory.defining_op
    if op is None or op.name != "memref.alloc":
        return False
    users = users_of_memory(memory)
    if any(not only_writes(u, memory) for u in users):
        return False
    for user in users:
        if user.block is not None:
            drop_output(user, memory)
    for view in reversed(aliases(memory)[1:]):
        if view.defining_op is not None:
            view.defining_op.erase()
    op.erase()
    return True


# -- a simpler program -------------------------------------------------------------------------------------------------


def sink_tensors(graph: Graph, context: PassContext) -> None:
    """Moves ``memref.to_tensor`` to where the tensor is used, as far as its buffer stays as it is."""
    for op in reversed(list(graph.block)):
        if op.name != "memref.to_tensor" or not op.results[0].has_uses:
            continue
        users = {id(top_level(u)) for u in op.results[0].users}
        memory = root(op.operands[0])
        place = op.next
        while place is not None and id(place) not in users and not any(may_alias(memory, w) for w in written_memory(place)):
            place = place.next
        if place is not op.next and place is not None and any(o.name != "memref.to_tensor" for o in between(op, place)):
            move_before(op, place, graph.block)
            context.count("tensors taken out later")


# -- simpler index maps ------------------------------------------------------------------------------------------------


def drop_unit_dims(graph: Graph, context: PassContext) -> None:
    """Takes loop dimensions of one round out of nests; there the index is 0."""
    for top in list(graph.block):
        if top.name != "linalg.generic":
            continue
        for nest in list(nested_nests(top)):
            units = [d.name for d in nest.dims if d.bound == 1]
            if not units:
                continue
            for op in list(nest.op.walk()):
                if op.name == "linalg.index" and op.attributes["dim"] in units:
                    with Builder.before_op(op):
                        op.results[0].replace_all_uses_with(constant(Dense(np.array(0, np.int64), index)))
                    op.erase()
            layout = [a for a in layout_of(nest.op) if not (isinstance(a, LoopDim) and a.name in units)]
            nest.op.set_attribute(LAYOUT, tuple(layout))  # type: ignore[arg-type]
            zeros: dict[str, Dim] = dict.fromkeys(units, 0)
            for op in nest.op.walk():
                if LAYOUT in op.attributes:
                    op.set_attribute(LAYOUT, substitute_attribute(op.attributes[LAYOUT], zeros))
            context.count("loops of one round dropped", len(units))


# -- reads through reshapes --------------------------------------------------------------------------------------------


def through_reshapes(graph: Graph, context: PassContext) -> None:
    """Reads of a reshaped buffer become reads of the buffer itself where the place in it is a sum of loop dimensions."""
    for top in list(graph.block):
        if top.name != "linalg.generic":
            continue
        for nest in list(nested_nests(top)):
            reads = [_through_reshape(r) for r in nest.reads]
            if any(a is not b for a, b in zip(reads, nest.reads, strict=True)):
                set_bindings(nest.op, reads, nest.outputs)
                context.count("reads through reshapes")


def _through_reshape(read: Read) -> Read:
    op = read.buffer.defining_op
    while op is not None and op.name == "memref.reshape":
        source = op.operands[0]
        indices = split_place(source.type, read.buffer.type, read.indices)
        if indices is None:
            return read
        read = Read(read.argument, source, indices)
        op = source.defining_op
    return read


def _product_groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """Neighbouring dimensions of two shapes of equally many elements, the smallest groups with equal products.

    None where that can't be told.
    """
    if 0 in a or 0 in b:
        return None
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        if i < len(a) and a[i] == 1:
            groups.append(([i], []))
            i += 1
        elif j < len(b) and b[j] == 1:
            groups.append(([], [j]))
            j += 1
        elif i < len(a) and j < len(b):
            here, there, left, right = [i], [j], a[i], b[j]
            i, j = i + 1, j + 1
            while left != right:
                if exact_div(left, right) is not None and j < len(b):
                    right, there, j = right * b[j], [*there, j], j + 1
                elif exact_div(right, left) is not None and i < len(a):
                    left, here, i = left * a[i], [*here, i], i + 1
                else:
                    return None
            groups.append((here, there))
        else:
            return None
    return groups


def split_place(source: object, reshaped: object, indices: Indices) -> Indices | None:
    """The place in a buffer of a place in its reshaped form, None where that is no sum of products.

    A dimension of the buffer that was split into several has the place Σ index * stride; of dimensions that were merged
    the place is unknown.
    """
    assert isinstance(source, MemRefType) and isinstance(reshaped, MemRefType)
    groups = _product_groups(source.shape, reshaped.shape)
    if groups is None:
        return None
    found: list[Dim] = [0] * len(source.shape)
    for here, there in groups:
        large = [a for a in here if source.shape[a] != 1]
        parts = [a for a in there if reshaped.shape[a] != 1]
        if not large:
            continue
        if len(large) > 1:
            if len(large) != len(parts) or any(source.shape[a] != reshaped.shape[b] for a, b in zip(large, parts, strict=True)):
                return None
            for a, b in zip(large, parts, strict=True):
                found[a] = indices[b]
            continue
        place: Dim = 0
        for part in parts:
            place = place * reshaped.shape[part] + indices[part]
        found[large[0]] = place
    return tuple(found)


# -- repeating a producer where it is read -----------------------------------------------------------------------------


def inline_producer(consumer: Operation, context: PassContext, moves_only: bool) -> Operation | None:
    """Computes one value that the nest reads where it is read; returns the nest, or None when nothing can be done."""
    scopes: dict[Operation, list[LoopDim]] = {}
    for nest in list(nested_nests(consumer)):
        outer = nest.op.block.parent.parent if nest.op.block is not None and nest.op.block.parent is not None else None
        around = scopes.get(outer, []) if outer is not None else []
        scopes[nest.op] = [*around, *nest.dims]
        for read in nest.reads:
            producer = writer_of(read.buffer)
            if producer is None or producer.op is consumer or not is_before(producer.op, consumer):
                continue
            output = output_to(producer, read.buffer)
            if output is None or len(producer.outputs) != 1 or not _may_repeat(producer, output, read, scopes[nest.op], consumer, moves_only):
                continue
            _repeat(producer, output, nest, read)
            context.count("nests repeated where they are read")
            remove_unread(output.buffer)
            return consumer
    return None


def _may_repeat(producer: Nest, output: Output, read: Read, scope: Sequence[LoopDim], consumer: Operation, moves_only: bool) -> bool:
    if any(o.regions or o.name in ("memref.store", "cf.assert") for o in producer.block) or not can_move_to(producer.op, consumer):
        return False
    if _touches(written_memory(consumer), read_memory(producer.op)):
        return False  # some rounds of the consumer would store before others read
    places = _places(output.indices, read.indices)
    if any(n.startswith("%") for e in places.values() for n in symbols_of(e)):
        return False
    if any(o.name == "linalg.index" for o in producer.block) and not all(is_sum_of_names(e, [d.name for d in scope]) for e in places.values()):
        return False
    spent = cost(producer)
    if spent == 0:
        return True
    if moves_only or not _covers(places, scope):
        return False
    users = users_of_memory(output.buffer)
    readers = [u for u in users if u is not producer.op]
    if all(u is read.argument.owner.parent.parent for u in readers) and _sole_read(readers, output.buffer):  # type: ignore[union-attr]
        return True
    return spent <= CHEAP and all(_reads_all_once(u, output) for u in readers)


def _sole_read(readers: Sequence[Operation], buffer: Value) -> bool:
    return len(readers) == 1 and len({r.indices for r in Nest(readers[0]).reads if root(r.buffer) is root(buffer)}) == 1


def _reads_all_once(reader: Operation, output: Output) -> bool:
    """Whether an operation is a nest whose every read of a buffer takes place once for each element."""
    if reader.name not in ("linalg.generic", "linalg.reduce"):
        return False
    scope: list[LoopDim] = []
    op: Operation | None = reader
    while op is not None:
        scope += Nest(op).dims if op.name in ("linalg.generic", "linalg.reduce") else []
        op = op.block.parent.parent if op.block is not None and op.block.parent is not None else None
    reads = [r for r in Nest(reader).reads if root(r.buffer) is root(output.buffer)]
    return bool(reads) and all(r.buffer is output.buffer and _covers(_places(output.indices, r.indices), scope) for r in reads)


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


def _repeat(producer: Nest, output: Output, nest: Nest, read: Read) -> None:
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
    read.argument.replace_all_uses_with(value)
    outputs = [Output(o.argument, o.buffer, o.indices, value if o.value is read.argument else o.value) for o in nest.outputs]
    position = nest.reads.index(read)
    set_bindings(nest.op, [*nest.reads[:position], *added, *nest.reads[position + 1 :]], outputs)
    place_dims(clones, places)


# -- sharing the loops -------------------------------------------------------------------------------------------------


def join_nests(consumer: Operation, context: PassContext) -> Operation | None:
    """Joins the nest with one that it reads at the place that is being stored; returns the joined nest."""
    nest = Nest(consumer)
    for read in nest.reads:
        producer = writer_of(read.buffer)
        if producer is None or producer.op is consumer or not is_before(producer.op, consumer):
            continue
        output = output_to(producer, read.buffer)
        if output is None:
            continue
        names = _same_space(producer, output, nest, read)
        if names is None or not _may_join(producer, nest, names):
            continue
        context.count("nests joined")
        return _join(producer, nest, names)
    return None


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


def _may_join(producer: Nest, nest: Nest, names: dict[str, str]) -> bool:
    if is_contraction(producer.op) and has_reduction(nest.op):
        return False
    if is_contraction(nest.op) and has_reduction(producer.op):
        return False
    return same_places(producer, nest, names) and can_move_to(producer.op, nest.op) and not _used_between(producer, nest.op)


def same_places(producer: Nest, nest: Nest, names: dict[str, str]) -> bool:
    """Whether the consumer meets the producer's memory only by reading, at its start, what was stored in the same round."""
    outputs = {o.buffer: o for o in producer.outputs}
    memory = written_memory(producer.op)
    if len({id(m) for m in memory}) != len(producer.outputs) or any(output_to(producer, b) is None for b in outputs):
        return False  # nests inside it store as well, or one place is stored twice
    if _touches(written_memory(nest.op), [*memory, *read_memory(producer.op)]):
        return False
    places: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    good = 0
    for read in nest.reads:
        found = outputs.get(read.buffer)
        if found is not None and compose(read.indices, places) == found.indices:
            good += 1
    return good == sum(1 for buffer, _ in accesses_of(nest.op) if any(may_alias(root(buffer), m) for m in memory))


def _used_between(producer: Nest, consumer: Operation) -> bool:
    users = {id(top_level(u)) for o in producer.outputs for u in users_of_memory(o.buffer)}
    return any(id(op) in users for op in between(producer.op, consumer))


def _join(producer: Nest, nest: Nest, names: dict[str, str]) -> Operation:
    """One nest in the consumer's place, over the loops of the producer if that sums up products, else of the consumer."""
    keep_first = is_contraction(producer.op)
    base, other = (producer, nest) if keep_first else (nest, producer)
    renamed = names if keep_first else {new: old for old, new in names.items()}
    taken = {*base.names, *dimension_names(base.op), *dimension_names(other.op)}
    for name in dimension_names(other.op) - set(other.names):
        if name in base.names:
            renamed = {**renamed, name: fresh_name(taken)}
    rename_dims([other.op], renamed)
    producer, nest = Nest(producer.op), Nest(nest.op)
    stored = {o.buffer: o for o in producer.outputs}
    forwarded: dict[Value, Value] = {r.argument: stored[r.buffer].value for r in nest.reads if r.buffer in stored}
    for argument, value in forwarded.items():
        argument.replace_all_uses_with(value)
    still_read = [o for o in producer.outputs if any(u is not producer.op and top_level(u) is not nest.op for u in users_of_memory(o.buffer))]
    dropped = [o.buffer for o in producer.outputs if o not in still_read]
    outputs = [
        *still_read,
        *(Output(o.argument, o.buffer, o.indices, forwarded.get(o.value, o.value)) for o in nest.outputs),
    ]
    body = [*take_body(producer), *take_body(nest)]
    reads = [*producer.reads, *(r for r in nest.reads if r.argument not in forwarded)]
    dims = (producer if keep_first else nest).dims
    assert nest.op.block is not None
    following = nest.op.next
    joined = build_nest(following, nest.op.block, dims, reads, body, outputs, [producer.op, nest.op])
    for buffer in dropped:
        remove_unread(buffer)
    return joined
