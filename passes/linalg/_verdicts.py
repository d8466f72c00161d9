"""What ``fuse`` decided, read off what it left: for every pair of a nest and a reader a rule or what blocked it."""

from __future__ import annotations

from collections.abc import Iterator

from ir.core import Operation, Value
from ir.layout import LoopDim, layout_of
from ir.types import MemRefType
from passes.infra.decisions import Blocker, Decision, Decisions, Group
from passes.linalg._fusion import Nest, Read, is_nest, root
from passes.linalg._joining import may_join
from passes.linalg._nest_index import Nests, tensor_name
from passes.linalg._repeating import may_repeat, scope_of
from passes.linalg._rows import may_share_rows

_SPECIFIC = (Blocker.PRODUCTS, Blocker.OVERWRITTEN, Blocker.EFFECT, Blocker.IN_BETWEEN, Blocker.OWN_LOOPS)
"""What only is asked about two nests that run through the same places."""


def decisions_of(nests: Nests) -> Decisions:
    """The record of a graph whose nests are joined."""
    found = Decisions(nests.graph.name, nests.steps, [], [])
    nest_of: dict[int, Operation] = {}
    for op in nests.graph.block:
        if op in nests.members:
            steps = sorted(nests.members[op])
            nest_of.update((step, op) for step in reversed(steps))
            stores = [tensor_name(m) for m in dict.fromkeys(nests.facts(op).writes)]
            found.groups.append(Group(_loops(op), steps, stores))
    for memory, makers in nests.makers.items():
        for step in makers:
            found.decisions += _about(nests, memory, step)
    found.decisions.sort(key=lambda d: (d.step, isinstance(d.reader, str), d.reader if isinstance(d.reader, int) else 0))
    return found


def _loops(op: Operation) -> str:
    return ", ".join(f"{a.name} < {a.bound}" for a in layout_of(op) if isinstance(a, LoopDim))


def _about(nests: Nests, memory: Value, step: int) -> Iterator[Decision]:
    for reader in nests.readers.get(memory, ()):
        if reader == step:
            continue
        rule = nests.rules.get((memory, reader))
        if rule is not None:
            yield Decision(step, reader, rule)
            continue
        for user in nests.users.get(memory, ()):
            if reader in nests.members.get(user, ()) and step not in nests.members[user]:
                yield Decision(step, reader, _why_apart(nests, memory, user))
                break
    for user in nests.users.get(memory, ()):
        if user not in nests.members and memory not in nests.facts(user).writes:
            yield from (Decision(step, name, blocker) for name, blocker in _other_readers(user))


def _other_readers(op: Operation) -> Iterator[tuple[str, Blocker]]:
    """Readers of memory that are no nests: the graph's end, operations on tensors, loops."""
    if op.name in ("memref.dim", "memref.prefetch"):
        return
    if op.name != "memref.to_tensor":
        yield op.definition.text_name, Blocker.NO_NEST
        return
    for user in op.results[0].users:
        yield ("return", Blocker.RESULT) if user.definition.is_terminator else (user.definition.text_name, Blocker.TENSOR)


def _why_apart(nests: Nests, memory: Value, consumer: Operation) -> Blocker:
    producer = nests.sole_writer(memory)
    if producer is None:
        return Blocker.WRITERS if all(map(is_nest, nests.writers.get(memory, ()))) else Blocker.NO_NEST
    if not is_nest(consumer):
        return Blocker.ORDERED
    found = [(nest, read) for nest in nests.views(consumer) for read in nest.reads if root(read.buffer) is memory]
    if len(found) < sum(1 for buffer, _ in nests.accesses(consumer) if root(buffer) is memory):
        return Blocker.COMPUTED_PLACE
    reasons = [_why_read(nests, nests.view(producer), consumer, nest, read) for nest, read in found]
    return min(reasons, key=list(Blocker).index)


def _why_read(nests: Nests, producer: Nest, consumer: Operation, nest: Nest, read: Read) -> Blocker:
    """Of the reasons why each rule did not apply the one that says most."""
    facts, later = nests.facts(producer.op), nests.facts(consumer)
    joined = may_join(nests, producer, nest, read) if nest.op is consumer else Blocker.LOOPS
    if joined in _SPECIFIC:
        return joined  # type: ignore[return-value]
    if (facts.contraction and later.reduction) or (facts.reduction and later.contraction):
        return Blocker.PRODUCTS
    if isinstance(read.buffer.type, MemRefType) and read.buffer is not root(read.buffer):
        return Blocker.RESHAPED
    repeated = may_repeat(nests, producer, nest, read, scope_of(nest.op), consumer)
    if isinstance(repeated, Blocker) and repeated is not Blocker.REDUCED:
        return repeated
    if (facts.reduction or later.reduction) and not (facts.contraction or later.contraction):
        rows = may_share_rows(nests, producer.op, consumer)
        if isinstance(rows, Blocker) and rows is not Blocker.LOOPS:
            return rows
    return Blocker.REDUCED if facts.reduction else Blocker.LOOPS
