"""Nests that read across: tiles of shared memory, which are filled along rows of what is read and used along rows of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ir.builder import Builder
from ir.core import Operation, Value
from ir.dims import Dim, ceildiv, floordiv, mod, product, substitute, symbols_of
from ir.types import MemRefType
from passes.gpu._kernels import barrier, both, is_multiple, launch, less, named, shared, split_index, thread, value_of, when
from passes.gpu._nests import ParallelNest, hand_over, kernel_name, make_serial, move_body, set_variable
from passes.loops._blocks import active, load, loop, store
from passes.loops._loops import accesses, depends_on, tag_of, value_symbol
from passes.loops._memory import alias, all_accesses, memory_of

_BANK = 4
"""Bytes of a bank of shared memory."""
_FEWEST = 16
"""Rows or columns below which a tile would be mostly empty."""
_MOST_BYTES = 48 * 1024
"""Shared memory that the tiles of a block take at most."""


@dataclass(frozen=True)
class Across:
    """A load whose neighbours lie along the loop around the innermost one; ``places`` are its indices."""

    op: Operation
    buffer: Value
    places: tuple[Dim, ...]

    @property
    def type(self) -> MemRefType:
        assert isinstance(self.buffer.type, MemRefType)
        return self.buffer.type


def find_across(nest: ParallelNest) -> list[Across] | None:
    """The loads of a nest that read across; None where there are none, or a tile is no use."""
    if len(nest.variables) < 2 or len(nest.variables) != len(nest.loops) or tag_of(nest.loops[-2]) != "cross" or not nest.starts_at_zero():
        return None
    if any(isinstance(n, int) and n < _FEWEST for n in nest.counts[-2:]):
        return None
    row, column = nest.variables[-2:]
    written = [a.memory for a in all_accesses(list(nest.body)) if a.writes]
    inside = {f"%{r.name}" for o in nest.body for r in o.results}
    found = []
    for op in nest.body:
        if op.name != "memref.load":
            continue
        (access,) = accesses(op)
        *front, last = [i.expr for i in access.indices] or [0]
        across = not depends_on(last - value_symbol(row), [row, column]) and any(depends_on(p, [column]) for p in front)
        straight = not any(depends_on(p, [row]) for p in front) and not any(n in inside for p in (*front, last) for n in symbols_of(p))
        if across and straight and all(alias(memory_of(access.buffer), m) == "never" for m in written):
            found.append(Across(op, access.buffer, (*front, last)))
    size = _tile_size(found) if found else 0
    total = sum(size * (size + _padding(a)) * a.type.dtype.itemsize for a in found)
    return found if found and total <= _MOST_BYTES else None


def _tile_size(across: Sequence[Across]) -> int:
    """Rows and columns of a tile: a line of 128 bytes at least, and enough bytes on the way for each thread."""
    return 64 if max(a.type.dtype.itemsize for a in across) <= 4 and len(across) < 3 else 32


def _padding(across: Across) -> int:
    """Elements that move each row of a tile by one bank."""
    return max(1, _BANK // across.type.dtype.itemsize)


def launch_tiles(nest: ParallelNest, across: Sequence[Across], threads: int) -> None:
    """Replaces a nest by a kernel whose blocks go through tiles of its two innermost loops."""
    loop_ = nest.loops[0]
    block, anchor, name = loop_.block, loop_.next, kernel_name(loop_) or "transposed"
    assert block is not None
    size = _tile_size(across)
    *outer, rows, columns = nest.counts
    grid = [*outer, ceildiv(rows, size), ceildiv(columns, size)]
    variables, symbols = nest.variables, [f"%{v.name}" for v in nest.variables]
    loop_.remove()

    def kernel(at_block: Dim) -> None:
        tiles = [shared(f"{a.buffer.name}.tile", a.type.dtype, size, size + _padding(a)) for a in across]
        names = [*(v.name for v in variables[:-2]), "rows", "columns"]
        *front, row_tile, column_tile = [named(n, p) for n, p in zip(names, split_index(at_block, grid), strict=True)]
        at = thread()
        near, far = named("near", mod(at, size)), named("far", floordiv(at, size))
        for variable, place in zip(variables, front, strict=False):
            variable.replace_all_uses_with(value_of(place, variable.name))
        where = dict(zip(symbols, front, strict=False))

        def guarded(row: Dim, column: Dim, work: Callable[[], None]) -> None:
            ragged = [less(place, count) for place, count in ((row, rows), (column, columns)) if not is_multiple(count, size)]
            if ragged:
                when(both(*ragged), work)
            else:
                work()

        def fill(k: Dim) -> None:
            # neighbouring threads along the rows of what is read
            beside = named("beside", far + (threads // size) * k)
            row, column = named("row", size * row_tile + near), named("column", size * column_tile + beside)

            def put() -> None:
                at = {**where, symbols[-2]: row, symbols[-1]: column}
                for a, tile in zip(across, tiles, strict=True):
                    store(load(a.buffer, *(substitute(p, at) for p in a.places)), tile, beside, near)

            guarded(row, column, put)

        def use(k: Dim) -> None:
            # neighbouring threads along the rows of what is stored
            beside = named("beside", far + (threads // size) * k)
            row, column = named("row", size * row_tile + beside), named("column", size * column_tile + near)
            guarded(row, column, lambda: _body(nest, across, tiles, (near, beside), (row, column)))

        loop("k", 0, size * size // threads, 1, fill)
        barrier()
        loop("k", 0, size * size // threads, 1, use)

    with Builder(block, anchor, loc=loop_.loc):
        made = launch([("block", product(grid))], threads, kernel, name=name, tag="transposed")
    hand_over(loop_, made)


def _body(nest: ParallelNest, across: Sequence[Across], tiles: Sequence[Value], place: tuple[Dim, Dim], at: tuple[Dim, Dim]) -> None:
    block = active().block
    move_body(nest.body, block)
    for a, tile in zip(across, tiles, strict=True):
        with Builder.before_op(a.op):
            value = load(tile, *place, name=a.op.results[0].name)
        a.op.results[0].replace_all_uses_with(value)
        a.op.erase()
    with Builder(block, block.first):
        for variable, expr in zip(nest.variables[-2:], at, strict=True):
            set_variable(variable, expr)
    for op in list(block):
        make_serial(op)


