"""What a nest of a product is made of: loops, factors, sums, and the scalars around the sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.core import Operation, Value
from ir.dims import Dim, DimExpr, exact_div, substitute, symbol, symbols_of
from ir.layout import IndexExpr
from ir.types import DType, MemRefType, ScalarType
from passes.gpu._nests import ParallelNest, is_host_value, parallel_nest
from passes.loops._dependence import is_inside
from passes.loops._loops import Access, accesses, body, depends_on, initial_values, single_range, tag_of, value_symbol
from passes.loops._memory import accesses_of, alias, memory_of


class NoProduct(Exception):
    """Why a nest is left to other passes."""


@dataclass(frozen=True)
class Factor:
    """One side of a product: what it is computed from in the loop over k.

    ``own`` is the variable of its rows (or columns), None where it has only one; ``ops`` compute ``value`` from loads, in order.
    """

    value: Value
    ops: tuple[Operation, ...]
    own: Value | None
    k: Value

    @property
    def loads(self) -> list[Operation]:
        """The loads among its operations."""
        return [o for o in self.ops if o.name == "memref.load"]

    @property
    def is_plain(self) -> bool:
        """Whether it is one load."""
        return len(self.ops) == 1 and self.ops[0].name == "memref.load"

    @property
    def is_stored(self) -> bool:
        """Whether it is one load, widened or not."""
        return len(self.loads) == 1 and all(o.name in ("memref.load", "arith.extf") for o in self.ops)

    @property
    def access(self) -> Access:
        """What its (first) load reads."""
        return accesses(self.loads[0])[0]

    @property
    def stored(self) -> DType:
        """The type of the elements in memory."""
        type_ = self.access.buffer.type
        assert isinstance(type_, MemRefType)
        return type_.dtype

    @property
    def dtype(self) -> DType:
        """The type in which it is multiplied."""
        assert isinstance(self.value.type, ScalarType)
        return self.value.type.dtype

    @property
    def key(self) -> object:
        """Equal for factors that read the same places in the same way, whatever the variable of the sum is called."""
        places = []
        for load in self.loads:
            access = accesses(load)[0]
            places.append((access.buffer, tuple(_renamed(i.expr, self.k) for i in access.indices)))
        names = tuple(o.name for o in self.ops)
        return (tuple(places), names, self.own) if self.is_stored else self.value

    def runs_along(self, variable: Value | None) -> bool:
        """Whether neighbours along a variable are neighbours in memory."""
        if variable is None or not self.is_stored:
            return False
        *front, last = self.access.indices
        return _coefficient(last, variable) == 1 and not any(depends_on(i.expr, [variable]) for i in front)

    def unit(self, variable: Value, most: int) -> int:
        """How many neighbours along a variable start at a multiple of their size, where the variable does: a power of two up to ``most``."""
        type_ = self.access.buffer.type
        assert isinstance(type_, MemRefType)
        rest = self.access.indices[-1].expr - value_symbol(variable)
        sizes = [rest] if len(type_.shape) == 1 else [rest, type_.shape[-1]]
        while most > 1 and any(exact_div(s, most) is None for s in sizes):
            most //= 2
        return most


def _renamed(dim: Dim, k: Value) -> Dim:
    """An expression in which the variable of a sum has a name that all sums share."""
    return substitute(dim, {f"%{k.name}": symbol("%")})


def _coefficient(part: IndexExpr, variable: Value) -> int:
    """By how much an index grows with a variable; 0 where it is not that simple."""
    name = f"%{variable.name}"
    found = 0
    for monomial, coefficient in part.expr.terms if isinstance(part.expr, DimExpr) else ():
        if monomial == (name,):
            found = coefficient
        elif any(a == name if isinstance(a, str) else name in symbols_of(DimExpr((((a,), 1),))) for a in monomial):
            return 0
    return found


@dataclass(frozen=True)
class Product:
    """One sum: a chain of multiply-adds over ascending k."""

    loop: Operation
    k: Value
    extent: Dim
    rows: Factor
    columns: Factor
    start: Value
    rows_first: bool

    @property
    def result(self) -> Value:
        """The sum."""
        return self.loop.results[0]

    @property
    def dtype(self) -> DType:
        """The type of the sum."""
        assert isinstance(self.result.type, ScalarType)
        return self.result.type.dtype


@dataclass(frozen=True)
class ProductNest:
    """Loops over batches, rows and columns around sums, and what is done with these.

    ``groups`` are products that have equally many steps, which one loop computes; ``rest`` is everything else in the body, in order.
    """

    nest: ParallelNest
    around: tuple[tuple[Value, Dim], ...]
    row: Value | None
    rows: Dim
    column: Value
    columns: Dim
    groups: tuple[tuple[Product, ...], ...]
    rest: tuple[Operation, ...]

    @property
    def top(self) -> Operation:
        """The outermost loop."""
        return self.nest.loops[0]

    @property
    def products(self) -> list[Product]:
        """All sums."""
        return [p for g in self.groups for p in g]


def find_product(top: Operation) -> ProductNest:
    """What a nest with a loop ``k`` in it is made of.  Raises NoProduct."""
    nest = parallel_nest(top)
    if not nest.starts_at_zero():
        raise NoProduct("a loop that does not run from 0 in steps of 1")
    if tag_of(nest.loops[-1]) != "n":
        raise NoProduct("no loop over columns around a product")
    column = nest.variables[-1]
    row = nest.variables[-2] if len(nest.loops) > 1 and tag_of(nest.loops[-2]) == "m" else None
    counts = nest.counts
    split = len(counts) - (1 if row is None else 2)
    for dim in counts:
        _check_known(dim, top)
    products, rest = _parts(nest, row, column)
    groups: list[list[Product]] = []
    for product in products:
        if groups and groups[-1][0].extent == product.extent and groups[-1][0].dtype == product.dtype:
            groups[-1].append(product)
        else:
            groups.append([product])
    _check_memory(products, rest)
    around = tuple(zip(nest.variables[:split], counts[:split], strict=True))
    rows = counts[-2] if row is not None else 1
    return ProductNest(nest, around, row, rows, column, counts[-1], tuple(tuple(g) for g in groups), tuple(rest))


def _check_known(dim: Dim, top: Operation) -> None:
    graph = top.graph
    assert graph is not None
    for name in symbols_of(dim):
        if name.startswith("%") and (is_inside(graph.names[name[1:]], body(top)) or not is_host_value(graph.names[name[1:]])):
            raise NoProduct("a size that a kernel computes")


def _parts(nest: ParallelNest, row: Value | None, column: Value) -> tuple[list[Product], list[Operation]]:
    products: list[Product] = []
    rest: list[Operation] = []
    for op in nest.body:
        if op.definition.is_terminator:
            continue
        if op.name == "scf.for" and tag_of(op) == "k":
            if any(a.writes for o in rest for a in accesses_of(o)):
                raise NoProduct("a store in front of a sum")
            products.append(_product(op, row, column, nest))
        elif op.regions or op.name in ("cf.assert", "memref.prefetch") or op.definition.dialect in ("graph", "gpu", "linalg"):
            raise NoProduct(f"{op.definition.text_name} beside a product")
        else:
            rest.append(op)
    if not products:
        raise NoProduct("no sum")
    return products, rest


def _product(loop: Operation, row: Value | None, column: Value, nest: ParallelNest) -> Product:
    bounds, block = single_range(loop), body(loop)
    if bounds is None or len(loop.results) != 1 or (bounds.start, bounds.step) != (0, 1):
        raise NoProduct("another loop than over k")
    _check_known(bounds.stop, nest.loops[0])
    (start,) = initial_values(loop)
    if start.defining_op is None or start.defining_op.name != "arith.constant":
        raise NoProduct("a sum that starts from something")
    last = block.terminator
    assert last is not None
    fma = last.operands[0].defining_op
    if fma is None or fma.name != "math.fma" or fma.block is not block or fma.operands[2] is not block.arguments[1]:
        raise NoProduct("no chain of multiply-adds")
    first, second = (_factor(v, loop, row, column, nest) for v in fma.operands[:2])
    if first.own is column and second.own is not column:
        return Product(loop, block.arguments[0], bounds.stop, second, first, start, False)
    if second.own is column and first.own is not column:
        return Product(loop, block.arguments[0], bounds.stop, first, second, start, True)
    raise NoProduct("a factor that goes along rows and columns")


def _factor(value: Value, loop: Operation, row: Value | None, column: Value, nest: ParallelNest) -> Factor:
    """The operations in the loop that a value comes from."""
    block, found = body(loop), list[Operation]()

    def visit(at: Value) -> None:
        op = at.defining_op
        if at is block.arguments[1]:
            raise NoProduct("a factor that depends on the sum")
        if op is None or op.block is not block:
            if is_inside(at, body(nest.loops[0])) and at not in (*nest.variables, block.arguments[0]):
                raise NoProduct("a factor that something else in the nest computes")
            return
        if op in found:
            return
        if op.regions or (op.name != "memref.load" and not op.definition.pure):
            raise NoProduct(f"{op.definition.text_name} in a product")
        for operand in op.operands:
            visit(operand)
        found.append(op)

    visit(value)
    if not any(o.name == "memref.load" for o in found):
        raise NoProduct("a factor that is no matrix")
    used = {v for o in found for v in o.operands}
    owns = [v for v in (row, column) if v is not None and v in used]
    if len(owns) > 1:
        raise NoProduct("a factor that goes along rows and columns")
    return Factor(value, tuple(found), owns[0] if owns else None, block.arguments[0])


def _check_memory(products: Sequence[Product], rest: Sequence[Operation]) -> None:
    """Sums are computed in front of everything else: nothing that they read may be stored there."""
    stored = [a.memory for o in rest for a in accesses_of(o) if a.writes]
    for product in products:
        for load in (*product.rows.loads, *product.columns.loads):
            if any(alias(memory_of(accesses(load)[0].buffer), m) != "never" for m in stored):
                raise NoProduct("a factor that is written")
