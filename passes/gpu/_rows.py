"""Nests over rows, and what their steps are: loops along the row that many threads share, and scalars between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.core import Operation, Value
from ir.dims import Dim, product
from ir.layout import RangeArg
from ir.opdef import REGISTRY
from ir.rewriter import is_pure
from ir.types import DType, MemRefType, ScalarType
from passes.gpu._kernels import warp_reduce
from passes.gpu._nests import ParallelNest, is_lowered, own_buffers, parallel_nest
from passes.loops._blocks import active, number
from passes.loops._loops import Access, accesses, body, depends_on, extent, initial_values, ranges, read_layout, tag_of, value_symbol
from passes.loops._memory import alias, all_accesses, memory_of
from passes.loops.split_reduction import combiners, identity_of, is_rounded

LANES = 16
"""Lanes of a canonical sum (see ``split-reduction``)."""

_KINDS = {
    "arith.addf": "add", "arith.addi": "add", "arith.mulf": "mul", "arith.muli": "mul", "arith.andi": "and", "arith.ori": "or",
    "arith.maximumf": "max", "arith.maxsi": "max", "arith.maxui": "max", "gt": "max",
    "arith.minimumf": "min", "arith.minsi": "min", "arith.minui": "min", "lt": "min",
}  # fmt: skip
"""How ``gpu.warp_reduce`` calls what combines lanes."""


@dataclass(frozen=True)
class Reduction:
    """A loop along the row that carries values.

    ``combiners`` are what combines partial values, empty where the loop has to run in order: what ``split-reduction`` leaves alone, sums
    that are tagged ``serial``, and running sums, which rounds store.
    """

    op: Operation
    combiners: tuple[str, ...]

    @property
    def bounds(self) -> RangeArg:
        return ranges(self.op)[0]

    @property
    def count(self) -> Dim:
        return extent(self.bounds)

    @property
    def in_order(self) -> bool:
        """Whether one chain of all rounds has to run."""
        return not self.combiners

    @property
    def is_free(self) -> bool:
        """Whether any order gives the same bits."""
        return bool(self.combiners) and not any(is_rounded(c) for c in self.combiners)

    @property
    def initial(self) -> list[Value]:
        """What the carried values start as."""
        return initial_values(self.op)

    def dtype(self, n: int) -> DType:
        """The type of a carried value."""
        type_ = self.op.results[n].type
        assert isinstance(type_, ScalarType)
        return type_.dtype

    def identities(self) -> list[Value]:
        """What changes nothing, one for each carried value."""
        return [number(identity_of(c, self.dtype(n)), self.dtype(n), f"{self.op.results[n].name}.none") for n, c in enumerate(self.combiners)]

    def across(self, n: int, value: Value, width: int) -> Value:
        """One value of ``width`` neighbouring threads, by halves."""
        return warp_reduce(value, _KINDS[self.combiners[n]], width, name=f"{self.op.results[n].name}.lanes")

    def combine(self, n: int, x: Value, y: Value) -> Value:
        """One of two partial values."""
        combiner, name = self.combiners[n], self.op.results[n].name
        if combiner not in ("gt", "lt"):
            return active().create(REGISTRY[combiner], [x, y], {}, result_types=[x.type], name=name).result
        better = active().create(REGISTRY["arith.cmpf"], [y, x], {"predicate": combiner}, name=f"{name}.better").result
        return active().create(REGISTRY["arith.select"], [better, y, x], {}, result_types=[x.type], name=name).result


@dataclass(frozen=True)
class Rows:
    """A nest over rows: ``steps`` are the operations of its body, ``private`` memory that is used within one row only.

    ``scalars`` is private memory of one element, which only steps of the row itself store: all threads know what is in it.
    """

    nest: ParallelNest
    steps: list[Operation]
    reductions: dict[Operation, Reduction]
    private: dict[Value, MemRefType]
    scalars: frozenset[Value]

    @property
    def prefix(self) -> int:
        """How many first indices of private memory are those of the row."""
        return len(_row_variables(self.nest))

    @property
    def counts(self) -> list[Dim]:
        """The rounds of each loop along the row."""
        return [r.count for r in self.reductions.values()] + [parallel_nest(o).total for o in self.steps if o.name == "scf.parallel"]

    def is_short(self, most: int) -> bool:
        """Whether all loops have a known number of rounds, at most so many, and one variable, and none has to run in order."""
        if any(r.in_order for r in self.reductions.values()):
            return False
        if any(len(parallel_nest(o).variables) != 1 for o in self.steps if o.name == "scf.parallel"):
            return False
        return all(isinstance(n, int) and n <= most for n in self.counts)


def find_rows(op: Operation) -> Rows | None:
    """The rows of a nest; None where it is none whose loops many threads can share."""
    nest = parallel_nest(op)
    if not nest.starts_at_zero() or nest.total == 0 or not is_lowered(op) or own_buffers(op):
        return None
    if any(n.name == "cf.assert" for n in op.walk()):
        return None
    steps = [o for o in nest.body if not o.definition.is_terminator]
    reductions: dict[Operation, Reduction] = {}
    for step in steps:
        if step.name == "scf.for":
            reduction = reduction_of(step)
            if reduction is None or (reduction.in_order and _goes_across(step, nest.variables[-1])):
                return None
            reductions[step] = reduction
        elif step.name == "scf.parallel":
            if not parallel_nest(step).starts_at_zero() or any(n.name == "scf.parallel" for o in parallel_nest(step).body for n in o.walk()):
                return None
        elif step.regions or not (is_pure(step) or step.name in ("memref.load", "memref.store")):
            return None
    if not any(o.name in ("scf.for", "scf.parallel") for o in steps):
        return None
    if not reductions and len([o for o in steps if o.name == "scf.parallel"]) < 2:
        return None
    private = _private(op, nest)
    scalars = frozenset(b for b, t in private.items() if part_size(t) == 1 and all(u in steps for u in b.users if u.name == "memref.store"))
    return Rows(nest, steps, reductions, private, scalars)


def _row_variables(nest: ParallelNest) -> list[Value]:
    """The variables that tell rows apart."""
    return [v for v, n in zip(nest.variables, nest.counts, strict=True) if n != 1]


def reduction_of(loop: Operation) -> Reduction | None:
    """A loop along the row; None where it does something else than to carry values."""
    bounds = ranges(loop)[0]
    inside = [o for o in body(loop) if not o.definition.is_terminator]
    if not loop.results or bounds.start != 0 or bounds.step != 1 or not all(isinstance(r.type, ScalarType) for r in loop.results):
        return None
    stores = [o for o in inside if o.name == "memref.store"]
    if any(o.regions or not (is_pure(o) or o.name in ("memref.load", "memref.store")) for o in inside) or not _apart(loop, stores):
        return None
    if tag_of(loop) == "serial" and not _follows(loop):
        return None  # neighbouring threads take neighbouring columns
    found = combiners(loop) or []
    free = bool(found) and not any(is_rounded(c) for c in found)
    if stores or any(c not in _KINDS for c in found) or (not free and tag_of(loop) != "reduce"):
        found = []
    return Reduction(loop, tuple(found))


def _apart(loop: Operation, stores: Sequence[Operation]) -> bool:
    """Whether each round stores to places of its own, which no round loads."""
    own = value_symbol(body(loop).arguments[0])
    loaded = [a.memory for a in all_accesses([loop]) if not a.writes]
    for op in stores:
        (access,) = accesses(op)
        if not any(i.expr == own for i in access.indices) or any(alias(memory_of(access.buffer), m) != "never" for m in loaded):
            return False
    return len({accesses(op)[0].buffer for op in stores}) == len(stores)


def _goes_across(loop: Operation, row: Value) -> bool:
    """Whether neighbours of what a loop loads belong to the next row, so that neighbouring threads had better take rows."""
    variable = body(loop).arguments[0]
    places = [a.indices[-1].expr for o in body(loop) if o.name == "memref.load" for a in accesses(o) if a.indices]
    return any(depends_on(p, [row]) and not depends_on(p, [variable]) for p in places)


def _follows(loop: Operation) -> bool:
    """Whether a loop goes through neighbouring elements."""
    variable = body(loop).arguments[0]
    places = [a.indices[-1].expr for o in body(loop) if o.name == "memref.load" for a in accesses(o) if a.indices]
    return any(depends_on(p, [variable]) for p in places)


def _private(op: Operation, nest: ParallelNest) -> dict[Value, MemRefType]:
    """Memory that only this nest uses, each row its own part: the type of a part."""
    rows = [value_symbol(v) for v in _row_variables(nest)]
    found: dict[Value, MemRefType] = {}
    # what stands deeper, in choices, is copied as it is
    loops = [o for o in nest.body if o.name in ("scf.for", "scf.parallel")]
    blocks = [nest.body, *(body(o) if o.name == "scf.for" else parallel_nest(o).body for o in loops)]
    used = {v for n in op.walk() for v in n.operands}
    for buffer in [v for v in used if v.defining_op is not None and v.defining_op.name == "memref.alloc"]:
        type_ = buffer.type
        assert isinstance(type_, MemRefType)
        if len(type_.shape) < len(rows) or not all(isinstance(d, int) for d in type_.shape[len(rows) :]):
            continue
        if all(user.block in blocks and _of_row(user, buffer, rows) for user in buffer.users):
            found[buffer] = MemRefType(type_.dtype, type_.shape[len(rows) :])
    return dict(sorted(found.items(), key=lambda item: item[0].name))


def _of_row(user: Operation, buffer: Value, rows: Sequence[Dim]) -> bool:
    """Whether an operation accesses the part of a row alone."""
    if user.name not in ("memref.load", "memref.store"):
        return False
    accesses = [f for f in read_layout(user) if isinstance(f, Access) and f.buffer is buffer]
    return len(accesses) == 1 and tuple(i.expr for i in accesses[0].indices[: len(rows)]) == tuple(rows)


def part_size(type_: MemRefType) -> int:
    """Elements of a part of static size."""
    size = product(type_.shape)
    assert isinstance(size, int)
    return size


def chosen(condition: Value, value: Value, other: Value) -> Value:
    """One of two values."""
    return active().create(REGISTRY["arith.select"], [condition, value, other], {}, result_types=[value.type], name=value.name).result


def row_kernel_name(rows: Rows) -> str:
    """What a kernel for rows is called: after the last memory that is stored for others."""
    names = [a.buffer.name for a in all_accesses([rows.nest.loops[0]]) if a.writes and a.buffer not in rows.private]
    return names[-1].removesuffix(".flat").removesuffix(".buffer") if names else "rows"


def has_large_elements(rows: Rows) -> bool:
    """Whether loops along rows load or store elements of 8 bytes."""
    return any(a.type.dtype.itemsize > 4 for a in all_accesses([rows.nest.loops[0]]) if a.op.block is not rows.nest.body)
