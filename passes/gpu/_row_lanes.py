"""Short rows: 16 threads each, which keep the elements they are lanes of in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ir.builder import Builder
from ir.core import Block, Operation, Value
from ir.dims import Dim, ceildiv, dim_max, floordiv, mod, symbols_of
from passes.gpu._bodies import Copier, drop_unused
from passes.gpu._kernels import barrier, both, equal, is_multiple, launch, less, local, named, split_index, thread, when
from passes.gpu._nests import hand_over, parallel_nest
from passes.gpu._rows import LANES, Reduction, Rows, chosen, has_large_elements, part_size, row_kernel_name
from passes.loops._blocks import buffer_type, index_value, load, loop, store
from passes.loops._loops import Access, accesses, body, extent, ranges, value_symbol
from passes.loops._memory import alias, all_accesses, memory_of, stored_value

Key = tuple[Value, tuple[Dim, ...], Dim]
"""What a load along a row loads: the buffer, its other indices, and how many rounds the loop has."""

_BLOCKS = 4
"""Blocks of 128 threads at a time for rows of f64, so 128 registers for each thread: left alone, compilers spill them to have more blocks."""


class ShortRows:
    """A kernel for rows whose loops have a known, small number of rounds."""

    def __init__(self, rows: Rows, threads: int) -> None:
        self.rows, self.nest = rows, rows.nest
        self.total = rows.nest.total
        self.per_block = threads // LANES
        if isinstance(self.total, int):
            self.per_block = min(self.per_block, -(-self.total // 2) * 2)  # whole warps
        outer = rows.nest.loops[0]
        assert outer.graph is not None
        self.copier = Copier(outer.graph)
        self.local: dict[Value, Value] = {}
        self.known: dict[Value, Value] = {}
        self.staged: dict[Key, Value] = {}
        self.lane: Dim = 0
        self.valid: Value | None = None

    def build(self) -> None:
        """Replaces the nest."""
        outer = self.nest.loops[0]
        name = row_kernel_name(self.rows)
        self.shared_loads = self._loads_of_several_loops()
        with Builder.before_op(outer):
            grid = [("block", ceildiv(self.total, self.per_block))]
            blocks = _BLOCKS if has_large_elements(self.rows) else 0
            made = launch(grid, self.per_block * LANES, self._kernel, name=name, tag="rows", min_blocks=blocks)
        hand_over(outer, made)
        outer.erase()
        for buffer in self.rows.private:
            if not buffer.has_uses and buffer.defining_op is not None:
                buffer.defining_op.erase()
        self.copier.rename()

    def _kernel(self, block: Dim) -> None:
        for buffer, type_ in self.rows.private.items():
            if buffer not in self.rows.scalars:
                self.local[buffer] = local(f"{buffer.name}.lanes", type_.dtype, -(-part_size(type_) // LANES))
        at = thread()
        self.lane = named("lane", mod(at, LANES))
        row = named("row", self.per_block * block + floordiv(at, LANES))
        if not is_multiple(self.total, self.per_block):
            # threads without a row go through the last one, and store nothing: all threads of a warp have to come along
            self.valid = less(row, self.total, "valid")
            row = value_symbol(index_value("min", row, dim_max(self.total, 1) - 1, name="row"))
        for variable, place in zip(self.nest.variables, split_index(row, self.nest.counts), strict=True):
            self.copier.set(variable, place)
        stored: list[Operation] = []
        for step in self.rows.steps:
            if self._meets(step, stored):
                barrier("warp")
                stored = []
            stored += [step] if any(a.writes for a in all_accesses([step])) else []
            self._step(step)

    def _meets(self, step: Operation, stored: Sequence[Operation]) -> bool:
        """Whether a step touches memory that other lanes have stored to since they met."""
        before = [a for a in all_accesses(stored) if a.writes and a.buffer not in self.rows.private]
        return any(alias(a.memory, b.memory) != "never" for a in all_accesses([step]) for b in before)

    def _step(self, step: Operation) -> None:
        if step.name == "scf.parallel":
            nest = parallel_nest(step)
            (count,) = nest.counts
            assert isinstance(count, int)
            self._stage(nest.body, count)
            self._guarded(lambda: self._rounds(count, lambda k, at: self._element(nest.variables[0], nest.body, k, at)))
        elif step.name == "scf.for":
            self._reduce(self.rows.reductions[step])
        elif step.name == "memref.store" and accesses(step)[0].buffer in self.rows.scalars:
            self.known[accesses(step)[0].buffer] = self.copier.now(stored_value(step))
        elif step.name == "memref.store":
            first = equal(self.lane, 0, "first")
            when(first if self.valid is None else both(self.valid, first), lambda: self.copier.copy([step]))
        else:
            self.copier.copy([step], self._knows)

    def _guarded(self, work: Callable[[], object]) -> None:
        if self.valid is None:
            work()
        else:
            when(self.valid, work)

    def _rounds(self, count: int, element: Callable[[Dim, Dim], object]) -> None:
        """All elements of a lane; ``element`` gets the number among them, and the place in the row."""
        full, rest = divmod(count, LANES)
        if full:
            loop("k", 0, full, 1, lambda k: element(k, self.lane + LANES * k) and None)
        if rest:
            when(less(self.lane, rest, "used"), lambda: element(full, self.lane + LANES * full))

    def _element(self, variable: Value, block: Block, k: Dim, at: Dim) -> None:
        place = self.copier.set(variable, at)
        self.copier.copy(block, lambda op: self._near(op, k))
        drop_unused(place)

    # -- what stays with the lanes ------------------------------------------------------------------------------------

    def _loads_of_several_loops(self) -> dict[Key, int]:
        """Loads of elements along the row that several loops have, by what they load; memory that the nest writes is left out."""
        written = [a.memory for a in all_accesses([self.nest.loops[0]]) if a.writes]
        found: dict[Key, int] = {}
        for step in self.rows.steps:
            if step.regions:
                keys = {key for op in self._straight(step) if (key := self._key(op)) is not None}
                found.update({key: found.get(key, 0) + 1 for key in keys})
        return {key: n for key, n in found.items() if n > 1 and all(alias(memory_of(key[0]), m) == "never" for m in written)}

    def _straight(self, step: Operation) -> list[Operation]:
        block = body(step) if step.name == "scf.for" else parallel_nest(step).body
        return list(block)

    def _key(self, op: Operation) -> Key | None:
        """What a load along the row loads: the buffer, the other indices, and how many rounds its loop has."""
        if op.name != "memref.load" or op.block is None or op.block.parent is None or op.block.parent.parent is None:
            return None
        (access,) = accesses(op)
        variable = op.block.arguments[0]
        return self._place_key(access, variable, op.block.parent.parent)

    def _place_key(self, access: Access, variable: Value, around: Operation) -> Key | None:
        known = {f"%{v.name}" for v in self.nest.variables}
        *front, last = [i.expr for i in access.indices] or [0]
        if access.buffer in self.rows.private or last != value_symbol(variable):
            return None
        if any(n.startswith("%") and n not in known for p in front for n in symbols_of(p)):
            return None
        return access.buffer, tuple(front), extent(ranges(around)[0])

    def _stage(self, block: Block, count: int) -> None:
        """Loads what this loop and later ones have in common, once."""
        for op in block:
            key = self._key(op)
            if key is None or key not in self.shared_loads or key in self.staged:
                continue
            buffer, front, _ = key
            line = self.staged[key] = local(f"{buffer.name}.lanes", buffer_type(buffer).dtype, -(-count // LANES))
            places = [self.copier.expr(p) for p in front]

            def one(k: Dim, at: Dim, buffer: Value = buffer, places: list[Dim] = places, line: Value = line) -> None:
                store(load(buffer, *places, at), line, k)

            full, rest = divmod(count, LANES)
            if full:
                loop("k", 0, full, 1, lambda k, one=one: one(k, self.lane + LANES * k))  # type: ignore[misc]
            if rest:
                one(full, self._last(count))

    def _last(self, count: int) -> Dim:
        """The place of the last element of a lane, or of the row for lanes that have none."""
        return value_symbol(index_value("min", self.lane + count // LANES * LANES, count - 1, name="last"))

    def _knows(self, op: Operation) -> bool:
        """Gives a load the value that the row itself has stored."""
        if op.name != "memref.load" or accesses(op)[0].buffer not in self.known:
            return False
        self.copier.mapping[op.results[0]] = self.known[accesses(op)[0].buffer]
        return True

    def _near(self, op: Operation, k: Dim) -> bool:
        """Builds an access to what a lane has for itself."""
        if op.name not in ("memref.load", "memref.store"):
            return False
        if self._knows(op):
            return True
        (access,) = accesses(op)
        line = self.local.get(access.buffer)
        if line is None:
            key = self._key(op)
            line = self.staged.get(key) if key is not None else None
        if line is None:
            return False
        if op.name == "memref.store":
            store(self.copier.now(stored_value(op)), line, k)
        else:
            self.copier.become(op.results[0], load(line, k, name=op.results[0].name))
        return True

    # -- reductions ---------------------------------------------------------------------------------------------------

    def _reduce(self, step: Reduction) -> None:
        count = step.count
        assert isinstance(count, int)
        block = body(step.op)
        self._stage(block, count)
        variable, *carried = block.arguments
        full, rest = divmod(count, LANES)

        def one(k: Dim, at: Dim, values: Sequence[Value]) -> list[Value]:
            self.copier.mapping.update(zip(carried, values, strict=True))
            self._element(variable, block, k, at)
            assert block.terminator is not None
            return [self.copier.now(v) for v in block.terminator.operands]

        values = step.identities()
        if full:
            values = loop("k", 0, full, 1, lambda k, *acc: one(k, self.lane + LANES * k, acc), values)
        if rest:
            used = less(self.lane, rest, "used")
            values = [chosen(used, new, old) for new, old in zip(one(full, self._last(count), values), values, strict=True)]
        for n, value in enumerate(values):
            whole = step.across(n, value, LANES)
            self.copier.become(step.op.results[n], step.combine(n, self.copier.now(step.initial[n]), whole))


def can_be_short(rows: Rows, most: int) -> bool:
    """Whether rows are for :class:`ShortRows`: what is private is at the place of a lane, and nothing that others read is written.

    ``most`` is for elements of 4 bytes; of 8 it is an eighth, since functions of f64 want many registers, too.
    """
    if not rows.is_short(most // 8 if has_large_elements(rows) else most):
        return False
    found = all_accesses([rows.nest.loops[0]])
    for access in found:
        if access.buffer in rows.private and access.buffer not in rows.scalars:
            around = access.op.block
            if around is None or not around.arguments or access.indices is None:
                return False
            *front, last = access.indices[rows.prefix :] or (0,)
            if any(p != 0 for p in front) or last != value_symbol(around.arguments[0]):
                return False
    public = [a for a in found if a.buffer not in rows.private]
    return not any(alias(a.memory, b.memory) != "never" for a in public if a.writes for b in public if not b.writes)
