"""The scalars of a nest, built again in a kernel: for one element, or for several neighbouring columns at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ir.core import Operation, Value
from ir.dims import Dim, substitute
from ir.layout import LAYOUT
from ir.types import ScalarType, Type, VectorType
from passes.gpu._kernels import value_of
from passes.loops._blocks import active, filled, load, store
from passes.loops._loops import Access, Form, accesses, change_form, depends_on, has_layout, number_layout, read_layout, value_symbol


def varying(ops: Sequence[Operation], column: Value, sums: Sequence[Value]) -> set[Value] | None:
    """The values that differ from column to column, when operations can be done for several columns at once; None when they can't.

    Accesses that go along columns must do so along their last axis, one by one.
    """
    found = set(sums)
    for op in ops:
        if op.name in ("memref.load", "memref.store"):
            (access,) = accesses(op)
            along = _runs_along(access, column)
            if along is None or any(depends_on(i.expr, found) for i in access.indices) or (op.name == "memref.store" and not along):
                return None
            if along and op.results:
                found.add(op.results[0])
            continue
        differs = any(v in found for v in op.operands)
        if column in op.operands or (differs and has_layout(op)):
            return None
        if differs:
            if not op.definition.elementwise or op.definition.dialect == "graph" or not all(isinstance(r.type, ScalarType) for r in op.results):
                return None
            found.update(op.results)
    return found


def _runs_along(access: Access, column: Value) -> bool | None:
    """Whether an access goes along columns (its last index is one, with nothing else of it); None for another way of going there."""
    if not any(depends_on(i.expr, [column]) for i in access.indices):
        return False
    last = access.indices[-1].expr
    if any(depends_on(i.expr, [column]) for i in access.indices[:-1]) or depends_on(last - value_symbol(column), [column]):
        return None
    return True


@dataclass
class Scalars:
    """Copies of scalar operations at one place: ``places`` are the loop variables, ``values`` what takes the place of other values.

    With a ``width`` values in ``varying`` are vectors of neighbouring columns from ``places[column]`` on, of which ``valid`` are there
    (all for None).
    """

    places: Mapping[Value, Dim]
    values: dict[Value, Value]
    column: Value | None = None
    width: int = 0
    varying: set[Value] = field(default_factory=set)
    valid: Value | None = None

    def build(self, ops: Sequence[Operation]) -> None:
        """Builds the operations in order."""
        builder = active()
        loc = builder.loc
        for op in ops:
            builder.loc = op.loc
            self._one(op)
        builder.loc = loc

    def _one(self, op: Operation) -> None:
        if self.width and op.name in ("memref.load", "memref.store"):
            (access,) = accesses(op)
            assert self.column is not None
            if depends_on(access.indices[-1].expr, [self.column]):
                self._run(op, access)
                return
        vector = bool(self.width) and any(r in self.varying for r in op.results)
        types: list[Type] = [VectorType(r.type.dtype, (self.width,)) if vector else r.type for r in op.results]  # type: ignore[union-attr]
        attributes: dict[str, Any] = dict(op.attributes)
        if has_layout(op):
            graph = active().block.graph
            assert graph is not None
            operands, attributes[LAYOUT] = number_layout([self._form(f) for f in read_layout(op)], graph)
        else:
            operands = [self.value(v) for v in op.operands]
        name = op.results[0].name if op.results else None
        made = active().create(op.definition, operands, attributes, result_types=types, name=name)
        self.values.update(zip(op.results, made.results, strict=True))

    def _run(self, op: Operation, access: Access) -> None:
        """A load or store of neighbouring columns."""
        places = as_run([self._dim(i.expr) for i in access.indices], self.width)
        if op.name == "memref.load":
            self.values[op.results[0]] = load(access.buffer, *places, valid=self.valid, name=op.results[0].name)
            return
        value = self.value(next(f for f in read_layout(op) if isinstance(f, Value)))
        if isinstance(value.type, ScalarType):
            value = filled(value, self.width)
        store(value, access.buffer, *places, valid=self.valid)

    def value(self, value: Value) -> Value:
        """What takes the place of a value; loop variables become operations."""
        if value in self.values:
            return self.values[value]
        if value in self.places:
            self.values[value] = value_of(self.places[value], value.name)
            return self.values[value]
        return value

    def _form(self, form: Form) -> Form:
        return self.value(form) if isinstance(form, Value) else change_form(form, self._dim)

    def _dim(self, dim: Dim) -> Dim:
        names: dict[str, Dim] = {f"%{v.name}": value_symbol(n) for v, n in self.values.items() if not isinstance(n.type, VectorType)}
        names.update({f"%{v.name}": place for v, place in self.places.items()})
        return substitute(dim, names)


def placed(access: Access, places: Mapping[Value, Dim]) -> list[Dim]:
    """The indices of an access with expressions in the place of loop variables."""
    names = {f"%{v.name}": place for v, place in places.items()}
    return [substitute(i.expr, names) for i in access.indices]


def as_run(indices: Sequence[Dim], size: int) -> list[Any]:
    """Indices with a run along the last axis."""
    return [*indices[:-1], (indices[-1], size)]
