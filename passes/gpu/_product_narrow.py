"""Factors that a nest of its own has widened, read where they are narrow: the tensor cores multiply bf16 and f16 as they are."""

from __future__ import annotations

from dataclasses import dataclass

from dialects.arith.cast import extf
from dialects.memref import reshape
from ir.builder import Builder
from ir.core import Operation, Value
from ir.dims import Dim, substitute
from ir.inference import plain_symbol
from ir.types import MemRefType, f32
from passes.gpu._nests import parallel_nest
from passes.gpu._product_nests import Factor, ProductNest
from passes.loops._blocks import buffer_type, load
from passes.loops._loops import accesses, outermost
from passes.loops._memory import accesses_of, memory_of, stored_value, written_between

NARROW = ("bf16", "f16")


@dataclass(frozen=True)
class _Source:
    """Where the narrow elements of a factor are (in a buffer, seen under a shape), and the nest that widens them."""

    buffer: Value
    shape: tuple[Dim, ...]
    indices: tuple[Dim, ...]
    widening: Operation


def narrow_factors(nest: ProductNest) -> bool:
    """Reads the factors of a nest as narrow elements when all are, or were before they were widened; whether it changed anything.

    The widening goes when nothing else reads it.
    """
    sources: dict[Operation, _Source] = {}
    types = set()
    for factor in (f for p in nest.products for f in (p.rows, p.columns)):
        if not factor.is_stored or factor.dtype != f32:
            return False
        if factor.stored.name in NARROW:
            types.add(factor.stored)
            continue
        source = _narrow_source(factor, nest.top)
        if source is None:
            return False
        sources[factor.loads[0]] = source
        types.add(buffer_type(source.buffer).dtype)
    if len(types) != 1 or not sources:
        return False
    for op, source in sources.items():
        _read_narrow(op, source, nest.top)
    for widening in {s.widening: None for s in sources.values()}:
        _erase_unread(widening)
    return True


def _narrow_source(factor: Factor, reader: Operation) -> _Source | None:
    """The narrow buffer that a nest widens, element by element, into the one that a factor reads."""
    memory = memory_of(factor.access.buffer)
    if memory.kind != "alloc" or memory.view is not None:
        return None
    writers = [op for op in _readers_and_writers(memory.base) if any(a.writes and a.memory.base is memory.base for a in accesses_of(op))]
    if len(writers) != 1:
        return None
    top = outermost(writers[0])
    if top.name != "scf.parallel" or top.block is not reader.block:
        return None
    nest = parallel_nest(top)
    ops = [o for o in nest.body if not o.definition.is_terminator]
    if [o.name for o in ops] != ["memref.load", "arith.extf", "memref.store"] or ops[2] is not writers[0]:
        return None
    if ops[1].operands[0] is not ops[0].results[0] or stored_value(ops[2]) is not ops[1].results[0]:
        return None
    (source,), (target,) = accesses(ops[0]), accesses(ops[2])
    if buffer_type(source.buffer).dtype.name not in NARROW or written_between(memory_of(source.buffer), top, reader):
        return None
    read = tuple(i.expr for i in factor.access.indices)
    narrow, goal, shape = buffer_type(source.buffer), buffer_type(target.buffer), buffer_type(factor.access.buffer).shape
    if source.indices == target.indices and narrow.shape == goal.shape:
        return _Source(source.buffer, shape, read, top)
    names = [plain_symbol(i.expr) for i in target.indices]
    if goal.shape != shape or None in names or len(set(names)) < len(names) or not {f"%{v.name}" for v in nest.variables} <= set(names):
        return None
    places: dict[str, Dim] = dict(zip(names, read, strict=True))  # type: ignore[arg-type]
    return _Source(source.buffer, narrow.shape, tuple(substitute(i.expr, places) for i in source.indices), top)


def _reshaped(source: Value, shape: tuple[Dim, ...]) -> Value:
    """A buffer under another shape."""
    type_ = MemRefType(buffer_type(source).dtype, shape)
    return source if source.type == type_ else reshape(source, result_type=type_, name=f"{source.name}.flat")  # type: ignore[no-any-return]


def _readers_and_writers(base: Value) -> list[Operation]:
    """Operations that use a memory under any shape."""
    found: list[Operation] = []
    for user in base.users:
        if user.name == "memref.reshape":
            found += _readers_and_writers(user.result)
        else:
            found.append(user)
    return found


def _read_narrow(op: Operation, source: _Source, top: Operation) -> None:
    with Builder.before_op(top):
        buffer = _reshaped(source.buffer, source.shape)
    with Builder.before_op(op):
        narrow = load(buffer, *source.indices, name=op.result.name)
        wide = extf(narrow, result_type=op.result.type)
    op.result.replace_all_uses_with(wide)
    op.erase()


def _erase_unread(widening: Operation) -> None:
    """Erases a nest that widens, and its memory, when nothing reads that."""
    stores = [o for o in widening.walk() if o.name == "memref.store"]
    (target,) = accesses(stores[0])
    base = memory_of(target.buffer).base
    if _readers_and_writers(base) == stores:
        widening.erase()
        _erase_names(base)


def _erase_names(buffer: Value) -> None:
    for user in list(buffer.users):
        _erase_names(user.result)
    assert buffer.defining_op is not None
    buffer.defining_op.erase()

