"""Pass ``share-checks``."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from ir.attributes import attribute_key
from ir.core import Module, Operation, Value
from ir.layout import LAYOUT
from ir.opdef import PRESENT
from ir.rewriter import is_pure, walk_graphs
from ir.types import MemRefType
from passes.infra.base import Pass, PassContext
from passes.loops._loops import Access, read_layout
from passes.loops._memory import memory_of


@dataclass(frozen=True)
class ShareChecks(Pass):
    """Leaves out checks that stand in the graph's own block a second time: the same condition, computed from the same numbers.

    Before (the caches of all layers are updated at one position)::

        %p = memref.load(%position.buffer[]) : i64
        %ok = arith.cmpi(%p, %zero, predicate="ge") : bool
        cf.assert(%ok, v0=%p, message="position {0} is negative")
        ...
        %p.1 = memref.load(%position.buffer[]) : i64
        %ok.1 = arith.cmpi(%p.1, %zero, predicate="ge") : bool
        cf.assert(%ok.1, v0=%p.1, message="position {0} is negative")

    After::

        %p = memref.load(%position.buffer[]) : i64
        %ok = arith.cmpi(%p, %zero, predicate="ge") : bool
        cf.assert(%ok, v0=%p, message="position {0} is negative")
        ...
        %p.1 = memref.load(%position.buffer[]) : i64
        %ok.1 = arith.cmpi(%p.1, %zero, predicate="ge") : bool

    On a GPU every check of its own is a kernel of its own.  Numbers are the same when pure operations compute them from equal ones, and when
    they are loaded from one place of a tensor that nobody changes; sizes are the same when the types say so.
    """

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            seen: set[Hashable] = set()
            keys: dict[Value, Hashable] = {}
            for op in [o for o in graph.block if o.name == "cf.assert"]:
                key = _attributes(op), tuple(_key(v, keys) for v in op.operands)
                if key in seen:
                    op.erase()
                    context.count("checks left out")
                    changed = True
                seen.add(key)
        return changed


def _attributes(op: Operation) -> Hashable:
    return op.name, tuple((n, attribute_key(a)) for n, a in sorted(op.attributes.items()) if n not in (LAYOUT, PRESENT))


def _key(value: Value, keys: dict[Value, Hashable]) -> Hashable:
    """What two values have in common only if they are equal."""
    if value not in keys:
        keys[value] = _compute(value, keys)
    return keys[value]


def _compute(value: Value, keys: dict[Value, Hashable]) -> Hashable:
    op = value.defining_op
    if op is None or op.regions or len(op.results) != 1:
        return value
    if op.name == "memref.dim":
        buffer, axis = op.operands[0].type, op.attribute("axis")
        known: Any = buffer.shape[axis] if isinstance(buffer, MemRefType) and isinstance(axis, int) else None
        return value if known is None else ("size", str(known))
    if op.name == "memref.load":
        memory = memory_of(op.operands[0])
        if memory.kind != "tensor" or memory.view is not None:
            return value
    elif not is_pure(op):
        return value
    forms: list[str] = []
    if LAYOUT in op.attributes:
        forms = [str([str(i) for i in f.indices]) if isinstance(f, Access) else str(f) for f in read_layout(op) if not isinstance(f, Value)]
        if any(f"%{o.name}" in f for o in op.operands for f in forms):
            return value  # an expression that mentions a value by its name
    operands = tuple(memory_of(v).base if isinstance(v.type, MemRefType) else _key(v, keys) for v in op.operands)
    return _attributes(op), tuple(forms), operands, str(op.results[0].type)
