"""What the loops of a nest are for: rows, columns, sums."""

from __future__ import annotations

from collections.abc import Iterable

from ir.core import Operation
from ir.dims import Dim, DimExpr, symbols_of
from ir.layout import LoopDim
from passes.linalg._fusion import Nest, is_product, nested_nests, plain_name, share_factor


class Roles:
    """Tags of the loops of a top-level nest and of the nests inside it; see ``lower-to-loops``."""

    def __init__(self, op: Operation) -> None:
        self.top = op
        self._order: dict[Operation, list[LoopDim]] = {}
        self._tags: dict[tuple[Operation, str], str] = {}
        nests = list(nested_nests(op))
        for nest in nests:
            self._order[nest.op] = _columns_last(nest)
        products = [n for n in nests if is_product(n)]
        if products:
            self._tag_product(products[0])
        for other in products[1:]:
            if share_factor(products[0], other, {}):
                self._tags.update({(other.op, dim.name): "k" for dim in other.dims})
        for nest in nests:
            self._tag_other(nest)
        if len(nests) == 1:
            self._tag_cross(nests[0])

    def order(self, op: Operation) -> list[LoopDim]:
        """The loop dimensions from the outermost to the innermost."""
        return self._order[op]

    def tag(self, op: Operation, dim: str) -> str:
        """The tag of a loop dimension."""
        return self._tags[op, dim]

    def _tag_product(self, nest: Nest) -> None:
        """``m`` and ``n`` are the last loops that only one factor depends on; ``n`` is the innermost of all."""
        for dim in nest.dims:
            self._tags[nest.op, dim.name] = "k"
        order = self._order[self.top]
        factors = [_mentioned(nest, i) for i in range(2)]
        names = [d.name for d in order]
        if not names or not any(names[-1] in f for f in factors):
            return
        self._tags[self.top, names[-1]] = "n"
        other = factors[0] if names[-1] not in factors[0] else factors[1]
        mine = factors[1] if other is factors[0] else factors[0]
        rows = [n for n in names[:-1] if n in other and n not in mine]
        if rows and names[-1] not in other:
            self._tags[self.top, rows[-1]] = "m"
            row = next(d for d in order if d.name == rows[-1])
            order.remove(row)
            order.insert(len(order) - 1, row)

    def _tag_other(self, nest: Nest) -> None:
        inner = [n for n in nested_nests(nest.op) if n.op is not nest.op]
        for dim in nest.dims:
            if (nest.op, dim.name) in self._tags:
                continue
            tag = "row"
            last = self._order[nest.op][-1].name == dim.name
            if nest.op.name == "linalg.reduce":
                tag = "reduce" if last and _runs_along(nest, dim.name) else "serial"
            elif last and not any(_has_columns(n) for n in inner) and not any(t in ("m", "n") for (o, _), t in self._tags.items() if o is nest.op):
                tag = "col"
            self._tags[nest.op, dim.name] = tag

    def _tag_cross(self, nest: Nest) -> None:
        """``cross`` is the loop along which something is read by neighbours, while ``col`` goes across: the next one around that."""
        order = self._order[nest.op]
        if not order or self._tags[nest.op, order[-1].name] != "col":
            return
        column = order[-1].name
        for dim in order[:-1]:
            if any(r.indices and _has_unit(r.indices[-1], dim.name) and column in _symbols(r.indices[:-1]) for r in nest.reads):
                self._tags[nest.op, dim.name] = "cross"
                order.remove(dim)
                order.insert(len(order) - 1, dim)
                return


def _symbols(indices: Iterable[Dim]) -> set[str]:
    return {n for e in indices for n in symbols_of(e)}


def _mentioned(nest: Nest, read: int) -> set[str]:
    return _symbols(nest.reads[read].indices)


def _columns_last(nest: Nest) -> list[LoopDim]:
    """The dimensions with that over neighbouring elements of the last output at the end."""
    dims = list(nest.dims)
    if nest.op.name == "linalg.generic" and nest.outputs and nest.outputs[-1].indices:
        name = plain_name(nest.outputs[-1].indices[-1])
        column = next((d for d in dims if d.name == name and not d.reduce), None)
        if column is not None and not any(d.reduce for d in dims):
            dims.remove(column)
            dims.append(column)
    return dims


def _runs_along(nest: Nest, name: str) -> bool:
    """Whether some read meets neighbouring elements along a loop."""
    return any(r.indices and _has_unit(r.indices[-1], name) for r in nest.reads)


def _has_unit(expr: Dim, name: str) -> bool:
    return isinstance(expr, DimExpr) and any(m == (name,) and c == 1 for m, c in expr.terms)


def _has_columns(nest: Nest) -> bool:
    """Whether a nest inside another one has a loop to be vectorized of its own."""
    if not nest.dims:
        return False
    return nest.op.name == "linalg.generic" or (_runs_along(nest, nest.dims[-1].name) and not is_product(nest))
