"""What a kernel does with its sums: the scalars of the nest behind them, for the elements that a thread has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ir.core import Value
from ir.dims import Dim, exact_div
from passes.gpu._kernels import both, less, named, when
from passes.gpu._product_nests import Product, ProductNest
from passes.gpu._product_scalars import Scalars, varying
from passes.loops._blocks import index_value, load, loop


@dataclass(frozen=True)
class Patches:
    """The elements of a thread: loops over ``counts``, and for each round ``width`` neighbouring columns.

    ``place`` gives the row and the first column of a round; the sums lie in local buffers with one dimension for each loop and one for
    the columns.  ``rows`` and ``columns`` are the size of the block's tile.
    """

    counts: Sequence[tuple[str, int]]
    width: int
    place: Callable[..., tuple[Dim, Dim]]
    rows: int
    columns: int


def write_results(nest: ProductNest, patches: Patches, places: Mapping[Value, Dim], sums: Mapping[Product, Value]) -> None:
    """Builds everything of a nest that is not a sum."""
    differs = varying(nest.rest, nest.column, [p.result for p in nest.products])
    all_rows = exact_div(nest.rows, patches.rows) is not None
    all_columns = exact_div(nest.columns, patches.columns) is not None

    def one(*at: Dim) -> None:
        row, column = patches.place(*at)
        row = named("row", row)
        inside = [] if all_rows else [less(row, nest.rows, "in_rows")]

        def elements() -> None:
            if differs is not None and patches.width > 1:
                _several(at, row, named("column", column))
            elif patches.width == 1:
                _single(at, row, named("column", column), 0)
            else:
                loop("c", 0, patches.width, 1, lambda c: _single(at, row, named("column", column + c), c))

        if inside:
            when(both(*inside), elements)
        else:
            elements()

    def _at(row: Dim, column: Dim) -> dict[Value, Dim]:
        found = {**places, nest.column: column}
        return found if nest.row is None else {**found, nest.row: row}

    def _several(at: Sequence[Dim], row: Dim, column: Dim) -> None:
        assert differs is not None
        valid = None if all_columns else index_value("apply", nest.columns - column, name="valid")
        values = {p.result: load(buffer, *at, (0, patches.width), name=p.result.name) for p, buffer in sums.items()}
        Scalars(_at(row, column), values, nest.column, patches.width, differs, valid).build(nest.rest)

    def _single(at: Sequence[Dim], row: Dim, column: Dim, c: Dim) -> None:
        def build() -> None:
            values = {p.result: load(buffer, *at, c, name=p.result.name) for p, buffer in sums.items()}
            Scalars(_at(row, column), values).build(nest.rest)

        if all_columns:
            build()
        else:
            when(less(column, nest.columns, "in_columns"), build)

    _nested(patches.counts, one)


def _nested(counts: Sequence[tuple[str, int]], inside: Callable[..., None], *outer: Dim) -> None:
    """Loops around each other."""
    if not counts:
        inside(*outer)
        return
    (name, count), *rest = counts
    if count == 1:
        _nested(rest, inside, *outer, 0)
    else:
        loop(name, 0, count, 1, lambda i: _nested(rest, inside, *outer, i))
