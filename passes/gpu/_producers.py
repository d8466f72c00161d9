"""Nests that make the rows a kernel reads: what an element is, as code that the kernel runs itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ir.builder import Builder
from ir.core import Block, Operation, Value
from ir.dims import Dim, mod, product, symbols_of
from ir.rewriter import is_pure
from ir.types import DType, MemRefType, ScalarType
from passes.gpu._bodies import Copier, drop_unused
from passes.gpu._kernels import barrier, both, equal, less, shared, thread, when
from passes.gpu._nests import is_lowered, own_buffers, parallel_nest
from passes.gpu._rows import LANES, Reduction, chosen, find_rows
from passes.loops._blocks import buffer_type, index_value, load, loop, store
from passes.loops._loops import accesses, body, extent, ranges, value_symbol
from passes.loops._memory import Access, alias, all_accesses, memory_of, stored_value


@dataclass(frozen=True)
class Column:
    """A loop along a row whose body stores elements: its variable, how many there are, and the body."""

    variable: Value
    count: int
    body: Block


@dataclass(frozen=True)
class Producer:
    """A nest over rows of known length, each of which is computed on its own.

    ``steps`` are columns, reductions and scalars in their order; ``stores`` says which column stores a buffer, and by which operation.
    ``row`` are the first indices of all that is stored: variables of the nest, and 0 where there is only one place.  ``flat``: the only
    variable counts through the elements of all rows.  ``scalars`` is memory of one element that scalar steps store for the others.
    """

    nest: Operation
    variables: list[Value]
    row: list[Dim]
    steps: list[Column | Reduction | Operation]
    stores: Mapping[Value, tuple[Column, Operation]]
    flat: bool = False
    scalars: frozenset[Value] = frozenset()

    @property
    def has_sums(self) -> bool:
        """Whether an element depends on the whole row."""
        return any(isinstance(s, Reduction) for s in self.steps)

    @property
    def accesses(self) -> list[Access]:
        """What the nest reads and writes."""
        return all_accesses([self.nest])


def find_producer(op: Operation) -> Producer | None:
    """What a nest produces; None where it is none whose elements others could compute for themselves."""
    if op.name != "scf.parallel" or not is_lowered(op) or own_buffers(op):
        return None
    flat = _flat(op)
    if flat is not None:
        return flat
    found = _elements(op) or _rows(op)
    if found is None:
        return None
    variables, steps, scalars = found
    stores: dict[Value, tuple[Column, Operation]] = {}
    rows: list[list[Dim]] = []
    for column in [s for s in steps if isinstance(s, Column)]:
        for inner in [o for o in column.body if o.name == "memref.store"]:
            (access,) = accesses(inner)
            made, (*row, last) = access.buffer.defining_op, [i.expr for i in access.indices] or [0]
            if made is None or made.name != "memref.alloc" or access.buffer in stores or last != value_symbol(column.variable):
                return None
            stores[access.buffer] = column, inner
            rows.append(row)
    if not stores or any(row != rows[0] for row in rows) or not _is_row(rows[0], variables):
        return None
    producer = Producer(op, variables, rows[0], steps, stores, scalars=scalars)
    return producer if _reads_own_rows(producer) else None


def _is_row(row: Sequence[Dim], variables: Sequence[Value]) -> bool:
    """Whether indices are each variable that takes more than one value, once, and otherwise 0."""
    known = [value_symbol(v) for v in variables]
    found = [p for p in row if p != 0]
    many = [value_symbol(v) for v in variables if not _is_single(v)]
    return all(p in known for p in found) and all(found.count(p) == 1 for p in many) and len(set(map(str, found))) == len(found)


def _is_single(variable: Value) -> bool:
    """Whether a loop variable is always 0."""
    block = variable.owner
    assert isinstance(block, Block) and block.parent is not None and block.parent.parent is not None
    return extent(ranges(block.parent.parent)[variable.index]) == 1


Steps = list[Column | Reduction | Operation]


def _elements(op: Operation) -> tuple[list[Value], Steps, frozenset[Value]] | None:
    """A nest of parallel loops around a straight body."""
    nest = parallel_nest(op)
    count = nest.counts[-1]
    if not nest.starts_at_zero() or not isinstance(count, int) or count < 1 or not _is_straight(nest.body):
        return None
    return nest.variables[:-1], [Column(nest.variables[-1], count, nest.body)], frozenset()


def _flat(op: Operation) -> Producer | None:
    """One loop over the elements of all rows, which are stored through a flat view."""
    nest = parallel_nest(op)
    stores = [o for o in nest.body if o.name == "memref.store"]
    if len(nest.variables) != 1 or not nest.starts_at_zero() or not _is_straight(nest.body) or len(stores) != 1:
        return None
    (variable,), (access,) = nest.variables, accesses(stores[0])
    view = access.buffer.defining_op
    if view is None or view.name != "memref.reshape" or [i.expr for i in access.indices] != [value_symbol(variable)]:
        return None
    buffer = view.operands[0]
    made, type_ = buffer.defining_op, buffer.type
    if made is None or made.name != "memref.alloc" or not isinstance(type_, MemRefType) or product(type_.shape) != nest.total:
        return None
    count = type_.shape[-1]
    if not isinstance(count, int) or count < 1:
        return None
    column = Column(variable, count, nest.body)
    producer = Producer(op, [], [0] * (len(type_.shape) - 1), [column], {buffer: (column, stores[0])}, flat=True)
    read = [a for a in producer.accesses if not a.writes]
    return producer if all(alias(a.memory, memory_of(buffer)) == "never" for a in read) else None


def _rows(op: Operation) -> tuple[list[Value], Steps, frozenset[Value]] | None:
    """A nest over rows with loops along them."""
    rows = find_rows(op)
    if rows is None:
        return None
    steps: Steps = []
    for step in rows.steps:
        if step.name == "scf.for":
            reduction = rows.reductions[step]
            if reduction.in_order or not isinstance(reduction.count, int) or reduction.count < 1 or not _is_straight(body(step)):
                return None
            steps.append(reduction)
        elif step.name == "scf.parallel":
            inner = parallel_nest(step)
            count = inner.counts[0]
            if len(inner.variables) != 1 or not isinstance(count, int) or count < 1 or not _is_straight(inner.body):
                return None
            steps.append(Column(inner.variables[0], count, inner.body))
        elif not step.regions and (is_pure(step) or accesses(step)[0].buffer in rows.scalars):
            steps.append(step)
        else:
            return None
    return list(rows.nest.variables), steps, rows.scalars


def _is_straight(block: Block) -> bool:
    inside = [o for o in block if not o.definition.is_terminator]
    return all(not o.regions and (is_pure(o) or o.name in ("memref.load", "memref.store")) for o in inside)


def _reads_own_rows(producer: Producer) -> bool:
    """Whether what the nest stores is read as elements of the same row only, and by no other name."""
    written = {a.memory.base for a in producer.accesses if a.writes}
    for access in producer.accesses:
        if access.memory.base not in written or access.buffer in producer.scalars:
            continue
        if access.buffer not in producer.stores or access.indices is None or list(access.indices[:-1]) != producer.row:
            return False
    return True


@dataclass
class RowInKernel:
    """A row of a producer, in a kernel: sums along it are made by all threads of a block, elements by those who want them."""

    producer: Producer
    row: Sequence[Dim]
    threads: int
    copier: Copier = field(init=False)
    known: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.producer.nest.graph
        assert graph is not None
        self.copier = Copier(graph)

    def build(self, kept: Sequence[Value], owner: Sequence[Dim]) -> None:
        """Computes what elements need, and stores those of ``kept``, in the block for which all of ``owner`` are 0."""
        places = dict(zip(map(str, self.producer.row), self.row, strict=True))
        for variable in self.producer.variables:
            self.copier.set(variable, places.get(str(value_symbol(variable)), 0))
        at = thread()
        for step in self.producer.steps:
            if isinstance(step, Reduction):
                self._reduce(step, at)
            elif isinstance(step, Operation) and step.name == "memref.store":
                self.known[accesses(step)[0].buffer] = self.copier.now(stored_value(step))
            elif isinstance(step, Operation):
                self.copier.copy([step], partial(self._own, self.copier))
            else:
                for buffer in [b for b in kept if self.producer.stores[b][0] is step]:
                    self._keep(buffer, at, owner)

    def element(self, buffer: Value, place: Dim) -> Value:
        """What a buffer holds at a place of the row."""
        column, op = self.producer.stores[buffer]
        if self.producer.flat:
            place = _count_through([*self.row, place], buffer_type(buffer).shape)
        (found,) = self._evaluate(column.variable, place, [stored_value(op)])
        return found

    def _keep(self, buffer: Value, at: Dim, owner: Sequence[Dim]) -> None:
        column, _ = self.producer.stores[buffer]

        def store_all() -> None:
            loop("kept", at, column.count, self.threads, lambda place: store(self.element(buffer, place), buffer, *self.row, place))

        if owner:
            when(both(*(equal(p, 0, "is_owner") for p in owner)), store_all)
        else:
            store_all()

    def _evaluate(self, variable: Value, place: Dim, wanted: Sequence[Value]) -> list[Value]:
        """Values of a body at a place, with all that they are made of."""
        block = variable.owner
        assert isinstance(block, Block)
        inner = Copier(self.copier.graph)
        inner.mapping.update(self.copier.mapping)
        value = inner.set(variable, place)
        inner.copy(_needed(block, wanted), partial(self._own, inner))
        found = [inner.now(v) for v in wanted]
        drop_unused(value)
        return found

    def _own(self, copier: Copier, op: Operation) -> bool:
        """Computes again what the nest itself stores, where a load would read it."""
        if op.name != "memref.load":
            return False
        (access,) = accesses(op)
        if access.buffer in self.known:
            copier.become(op.results[0], self.known[access.buffer])
            return True
        if access.buffer not in self.producer.stores:
            return False
        copier.become(op.results[0], self.element(access.buffer, copier.expr(access.indices[-1].expr)))
        return True

    # -- sums ----------------------------------------------------------------------------------------------------------

    def _reduce(self, step: Reduction, at: Dim) -> None:
        """Terms go to shared memory, from which every warp takes the lanes of a sum: in the order of ``split-reduction``."""
        block, count = body(step.op), step.count
        assert isinstance(count, int) and block.terminator is not None
        variable, *carried = block.arguments
        terms, carrying = terms_of(step)
        lines = [shared(f"{v.name}.row", _dtype(v), count) for v in terms]

        def stage(place: Dim) -> None:
            for line, value in zip(lines, self._evaluate(variable, place, terms), strict=True):
                store(value, line, place)

        loop("staged", at, count, self.threads, stage)
        barrier()
        lane, (full, rest) = mod(at, LANES), divmod(count, LANES)

        def one(place: Dim, values: Sequence[Value]) -> list[Value]:
            inner = Copier(self.copier.graph)
            inner.mapping.update(self.copier.mapping)
            inner.mapping.update(zip(carried, values, strict=True))
            inner.mapping.update((v, load(line, place, name=v.name)) for v, line in zip(terms, lines, strict=True))
            index = inner.set(variable, place)
            inner.copy(carrying)
            assert block.terminator is not None
            found = [inner.now(v) for v in block.terminator.operands]
            drop_unused(index)
            return found

        values = step.identities()
        if full:
            values = loop("k", 0, full, 1, lambda k, *acc: one(lane + LANES * k, acc), values)
        if rest:
            used = less(lane, rest, "used")
            last = value_symbol(index_value("min", lane + full * LANES, count - 1, name="last"))
            values = [chosen(used, new, old) for new, old in zip(one(last, values), values, strict=True)]
        for n, value in enumerate(values):
            whole = step.across(n, value, LANES)
            self.copier.mapping[step.op.results[n]] = step.combine(n, self.copier.now(step.initial[n]), whole)


def terms_of(step: Reduction) -> tuple[list[Value], list[Operation]]:
    """Of the body of a reduction: values that no carried one is in, but that are combined with those; and the operations that combine them."""
    block = body(step.op)
    carried = set(block.arguments[1:])
    carrying: list[Operation] = []
    for op in block:
        if not op.definition.is_terminator and any(v in carried for v in op.operands):
            carrying.append(op)
            carried.update(op.results)
    assert block.terminator is not None
    ends = [*(v for op in carrying for v in op.operands), *block.terminator.operands]
    inside = {r for op in block for r in op.results} - carried
    return list(dict.fromkeys(v for v in ends if v in inside)), carrying


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


def _count_through(places: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The number of an element in row-major order."""
    at: Dim = 0
    for place, size in zip(places, shape, strict=True):
        at = at * size + place
    return at


def _needed(block: Block, wanted: Sequence[Value]) -> list[Operation]:
    """The operations of a straight body that values are made of, in their order."""
    pending, found = [v.defining_op for v in wanted], set()
    while pending:
        op = pending.pop()
        if op is not None and op.block is block and op not in found:
            found.add(op)
            pending += [v.defining_op for v in op.operands]
    return [op for op in block if op in found]


def fuse(producer: Producer, launch: Operation, kept: Sequence[Value]) -> None:
    """Makes a kernel compute what it loads of a producer; ``kept`` are buffers that others read, too."""
    loads = loads_of(producer, launch)
    row = rows_of(loads[0])
    block = launch.regions[0].block
    first = next(op for op in block if any(inner in loads for inner in op.walk()))
    threads = launch.attribute("threads")
    assert isinstance(threads, int)
    inside = RowInKernel(producer, row, threads)
    names = {n for p in row for n in symbols_of(p)}
    owner = [value_symbol(a) for a in block.arguments if f"%{a.name}" not in names]
    if producer.has_sums or kept:
        with Builder.before_op(first):
            inside.build(kept, owner)
    for op in loads:
        (access,) = accesses(op)
        with Builder.before_op(op):
            one = inside
            if not (producer.has_sums or kept):
                one = RowInKernel(producer, rows_of(op), threads)
                one.build((), ())
            value = one.element(access.buffer, access.indices[-1].expr)
        op.results[0].replace_all_uses_with(value)
        op.erase()


def rows_of(op: Operation) -> list[Dim]:
    """The places of the row that a load reads from."""
    return [i.expr for i in accesses(op)[0].indices[:-1]]


def loads_of(producer: Producer, launch: Operation) -> list[Operation]:
    """What a kernel loads of a producer's buffers."""
    return [op for op in launch.walk() if op.name == "memref.load" and accesses(op)[0].buffer in producer.stores]
