"""Operations that are alike: what a pass makes of the first one is copied for the others, or left out (:mod:`passes.infra.twins`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from ir.builder import Builder
from ir.core import Operation, Value
from passes.infra.twins import Folding, Made, how_made
from passes.loops._loops import clone_before


@dataclass
class Alike:
    """What was made of operations, by what it depends on."""

    folding: Folding | None = None
    made: dict[Hashable, Made] = field(default_factory=dict)

    def make(
        self, op: Operation, builder: Builder, kind: Hashable, reads: Sequence[Value], writes: Sequence[Value], build: Callable[[], None]
    ) -> tuple[Made, list[Operation]]:
        """Puts what ``build`` makes in front of an operation, or a copy of what was made of one of the same kind.

        What is made depends on ``kind``, on the types of the buffers that it reads and writes, and on which of them are the same; all else
        that it uses from outside is the same for all operations of a kind.  A kind that is None is like no other.  Returns what was made of the
        first one of a kind, and the copies of it, if there are any.
        """
        read = [v for v in dict.fromkeys(reads) if v not in writes]
        buffers = [*reads, *writes]
        pattern = tuple((b.type, buffers.index(b)) for b in buffers)
        how = how_made([*read, *writes]) if self.folding is not None else None
        key = (op.graph, kind, pattern, how)
        found = self.made.get(key) if kind is not None else None
        if found is None:
            begin = len(builder.created)
            build()
            new = Made(op.results[0].name, builder.created[begin:], read, writes, op.loc)
            if kind is not None:
                self.made[key] = new
            return new, []
        if self.folding is not None and self.folding.leave_out(found, op, read, writes):
            return found, []
        assert op.block is not None
        mapping = dict(zip((*found.reads, *found.writes), (*read, *writes), strict=True))
        copies = [clone_before(made, op, op.block, mapping) for made in found.ops]
        for copy in copies:
            for inner in copy.walk():
                inner.loc = op.loc
        return found, copies
