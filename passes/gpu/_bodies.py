"""Copying bodies of loops into a kernel while the nest still stands, so that names in expressions mean what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ir.clone import clone_operation
from ir.core import Graph, Operation, Value
from ir.dims import Dim, substitute, symbols_of
from passes.gpu._kernels import value_of
from passes.gpu._nests import make_serial
from passes.loops._blocks import active
from passes.loops._loops import value_symbol

Special = Callable[[Operation], bool]
"""Builds something else in the place of an operation and enters its results in the mapping; False where it has no other form."""


class Copier:
    """Copies operations to where the active builder stands; ``mapping`` says what values have become."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.mapping: dict[Value, Value] = {}
        self._names: dict[Value, str] = {}

    def copy(self, ops: Iterable[Operation], special: Special | None = None) -> None:
        """Copies all operations but terminators."""
        builder = active()
        for op in ops:
            if op.definition.is_terminator or (special is not None and special(op)):
                continue
            made = clone_operation(op, self.mapping)
            builder.block.insert_before(builder.before, made)
            make_serial(made)
            self._names.update({new: old.name for old, new in zip(op.results, made.results, strict=True)})

    def now(self, value: Value) -> Value:
        """What a value of the nest is in the kernel."""
        return self.mapping.get(value, value)

    def become(self, old: Value, new: Value) -> None:
        """Says what a value of the nest is in the kernel, and gives it its name."""
        self.mapping[old] = new
        self._names[new] = old.name

    def expr(self, dim: Dim) -> Dim:
        """An expression of values of the nest as one of the kernel."""
        names = [n for n in symbols_of(dim) if n.startswith("%")]
        values = {n: self.graph.names[n[1:]] for n in names}
        return substitute(dim, {n: value_symbol(self.mapping[v]) for n, v in values.items() if v in self.mapping})

    def set(self, variable: Value, place: Dim) -> Value:
        """An expression in the place of a variable; to be dropped (:func:`drop_unused`) where nothing uses it."""
        value = self.mapping[variable] = value_of(place, variable.name)
        if value.defining_op is not None and value.defining_op.block is active().block:
            self._names[value] = variable.name
        return value

    def rename(self) -> None:
        """Gives the names of the nest, which is gone, to what it has become."""
        for value, name in self._names.items():
            if value.owner is not None and name not in self.graph.names and self.graph.names.get(value.name) is value:
                self.graph.rename(value, name)


def drop_unused(value: Value) -> None:
    """Erases an index expression without uses."""
    op = value.defining_op
    if op is not None and op.name in ("affine.apply", "arith.constant") and not value.has_uses and op.block is not None:
        op.erase()
