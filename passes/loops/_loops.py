"""What the passes on loops share: loops by tag, layouts in terms of values, expressions, building and copying loops.

The layout of an operation numbers its operands, so an expression of one operation means nothing in another one.  Here
layouts are read in *value form*: a value stands in expressions under its name in the graph, ``%jt``.  So expressions can
be compared, substituted and moved between operations of one graph; :func:`write_layout` numbers them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ir.builder import Builder
from ir.builtin import yield_
from ir.clone import clone_operation
from ir.core import DROPPED, Block, Graph, Operation, Region, Value
from ir.dims import Dim, DimExpr, DimFunction, apply_function, is_static, mod, substitute, symbol, symbols_of
from ir.layout import LAYOUT, AccessArg, Argument, BindArg, ExpressionArg, IndexExpr, LoopDim, OperandArg, RangeArg, operand_symbol
from ir.opdef import PRESENT, REGISTRY
from ir.types import ScalarType, index

LOOPS = ("scf.for", "scf.parallel")


@dataclass(frozen=True)
class Access:
    """``%A[%i, %j]`` in value form."""

    buffer: Value
    indices: tuple[IndexExpr, ...]


@dataclass(frozen=True)
class Bind:
    """``%acc = %init`` or ``%x = %A[i]`` in value form."""

    source: Value | Access


Form = Union[Value, Access, Bind, RangeArg, LoopDim, ExpressionArg]
"""One argument of an operation in value form."""

Change = Callable[[Dim], Dim]


# -- layouts in value form ---------------------------------------------------------------------------------------------


def value_symbol(value: Value) -> DimExpr:
    """The expression that stands for a value; a value without a name of its own gets one."""
    if value.name == DROPPED:
        graph = _graph_of(value)
        if graph is not None:
            graph.rename(value, "i")
    return symbol(f"%{value.name}")


def _graph_of(value: Value) -> Graph | None:
    return value.owner.graph


def read_layout(op: Operation) -> list[Form]:
    """The arguments of an operation in value form."""
    operands = op.operands
    layout: tuple[Argument, ...] = op.attributes[LAYOUT]  # type: ignore[assignment]
    return [_in_value_form(a, operands) for a in layout]


def _in_value_form(argument: Argument, operands: Sequence[Value]) -> Form:
    if isinstance(argument, OperandArg):
        return operands[argument.position]
    if isinstance(argument, AccessArg):
        return Access(operands[argument.position], tuple([IndexExpr(_over_values(i.expr, operands), i.size) for i in argument.indices]))
    if isinstance(argument, RangeArg):
        return RangeArg(*(_over_values(d, operands) for d in (argument.start, argument.stop, argument.step)))
    if isinstance(argument, LoopDim):
        return LoopDim(argument.name, _over_values(argument.bound, operands), argument.reduce)
    if isinstance(argument, ExpressionArg):
        return ExpressionArg(_over_values(argument.expr, operands))
    source = _in_value_form(argument.source, operands)
    assert isinstance(source, (Value, Access))
    return Bind(source)


def _over_values(dim: Dim, operands: Sequence[Value]) -> Dim:
    """An expression with values in the place of numbers of operands."""
    if isinstance(dim, int):
        return dim
    names = [n for n in symbols_of(dim) if n.startswith("%")]
    return substitute(dim, {n: value_symbol(operands[int(n[1:])]) for n in names}) if names else dim


def number_layout(forms: Sequence[Form], graph: Graph) -> tuple[list[Value], tuple[Argument, ...]]:
    """The operands and the layout that say the same as arguments in value form."""
    positions: dict[Value, int] = {}
    layout = tuple([_numbered(f, positions, graph) for f in forms])
    return list(positions), layout


def _numbered(form: Form, positions: dict[Value, int], graph: Graph) -> Argument:
    """An argument with operands by number; those that have none yet get the next ones."""
    if isinstance(form, Value):
        return OperandArg(positions.setdefault(form, len(positions)))
    if isinstance(form, Access):
        at = positions.setdefault(form.buffer, len(positions))
        return AccessArg(at, tuple([IndexExpr(_over_operands(i.expr, positions, graph), i.size) for i in form.indices]))
    if isinstance(form, RangeArg):
        return RangeArg(*(_over_operands(d, positions, graph) for d in (form.start, form.stop, form.step)))
    if isinstance(form, LoopDim):
        return LoopDim(form.name, _over_operands(form.bound, positions, graph), form.reduce)
    if isinstance(form, ExpressionArg):
        return ExpressionArg(_over_operands(form.expr, positions, graph))
    source = _numbered(form.source, positions, graph)
    assert isinstance(source, (OperandArg, AccessArg))
    return BindArg(source)


def _over_operands(dim: Dim, positions: dict[Value, int], graph: Graph) -> Dim:
    if isinstance(dim, int):
        return dim
    names = [n for n in symbols_of(dim) if n.startswith("%")]
    if not names:
        return dim
    return substitute(dim, {n: operand_symbol(positions.setdefault(graph.names[n[1:]], len(positions))) for n in names})


def write_layout(op: Operation, forms: Sequence[Form]) -> None:
    """Gives an operation of a graph other arguments; optional operands behind them stay."""
    graph = op.graph
    assert graph is not None, "the operation must stand in a graph"
    present: Any = op.attributes.get(PRESENT, ())
    optional = op.operands[len(op.operand_uses) - len(present) :] if present else []
    operands, layout = number_layout(forms, graph)
    attributes: Any = {**op.attributes, LAYOUT: layout}
    op.set_operands([*operands, *optional])
    op.attributes = attributes


def has_layout(op: Operation) -> bool:
    """Whether the operation has arguments with expressions."""
    return LAYOUT in op.attributes


def change_form(form: Form, change: Change) -> Form:
    """An argument with all its expressions changed."""
    if isinstance(form, Access):
        return Access(form.buffer, tuple(IndexExpr(change(i.expr), i.size) for i in form.indices))
    if isinstance(form, RangeArg):
        return RangeArg(change(form.start), change(form.stop), change(form.step))
    if isinstance(form, LoopDim):
        return LoopDim(form.name, change(form.bound), form.reduce)
    if isinstance(form, ExpressionArg):
        return ExpressionArg(change(form.expr))
    if isinstance(form, Bind) and isinstance(form.source, Access):
        source = change_form(form.source, change)
        assert isinstance(source, Access)
        return Bind(source)
    return form


def plain_uses(value: Value) -> list[Operation]:
    """Users that take the value as an operand, not inside an expression."""
    found = []
    for op in value.users:
        if not has_layout(op):
            found.append(op)
            continue
        forms = read_layout(op)
        sources = [f.source if isinstance(f, Bind) else f for f in forms]
        present: Any = op.attributes.get(PRESENT, ())
        optional = op.operands[len(op.operand_uses) - len(present) :] if present else []
        if value in optional or any(s is value or (isinstance(s, Access) and s.buffer is value) for s in sources):
            found.append(op)
    return found


# -- expressions -------------------------------------------------------------------------------------------------------


def replace_atom(dim: Dim, atom: DimFunction, by: Dim) -> Dim:
    """``dim`` with ``by`` in the place of a function."""
    if not isinstance(dim, DimExpr):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        value: Dim = coefficient
        for part in monomial:
            if part == atom:
                value = value * by
            elif isinstance(part, str):
                value = value * symbol(part)
            else:
                value = value * apply_function(part.kind, *(replace_atom(a, atom, by) for a in part.args))
        total = total + value
    return total


def depends_on(dim: Dim, values: Iterable[Value]) -> bool:
    """Whether an expression mentions one of the values."""
    names = symbols_of(dim)
    return any(f"%{v.name}" in names for v in values)


def minimum_terms(dim: Dim) -> tuple[Dim, ...]:
    """The arguments of ``min(...)``, or the expression itself."""
    if isinstance(dim, DimExpr) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
        atom = dim.terms[0][0][0]
        if isinstance(atom, DimFunction) and atom.kind == "min":
            return atom.args
    return (dim,)


def remainder(dim: Dim, size: int) -> Dim:
    """``dim mod size``; of a remainder by a multiple of the size it is the remainder itself that counts."""
    if isinstance(dim, DimExpr) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
        atom = dim.terms[0][0][0]
        if isinstance(atom, DimFunction) and atom.kind == "mod" and isinstance(atom.args[1], int) and atom.args[1] % size == 0:
            return remainder(atom.args[0], size)
    return mod(dim, size)


def upper_bound(dim: Dim) -> int | None:
    """A number that an expression never exceeds, from remainders and minima in it; None where none is seen."""
    if isinstance(dim, int):
        return dim
    if not isinstance(dim, DimExpr):
        return None
    total = 0
    for monomial, coefficient in dim.terms:
        if not monomial:
            total += coefficient
            continue
        atom = monomial[0]
        if coefficient < 0 and len(monomial) == 1 and isinstance(atom, DimFunction) and atom.kind == "mod" and _is_positive(atom.args[1]):
            continue  # a remainder is 0 at least
        bound = _atom_bound(atom) if len(monomial) == 1 and coefficient > 0 else None
        if bound is None:
            return None
        total += coefficient * bound
    return total


def _is_positive(dim: Dim) -> bool:
    return isinstance(dim, int) and dim > 0


def _atom_bound(atom: str | DimFunction) -> int | None:
    if isinstance(atom, str):
        return None
    if atom.kind == "mod" and isinstance(atom.args[1], int) and atom.args[1] > 0:
        return atom.args[1] - 1
    bounds = [upper_bound(a) for a in atom.args]
    known = [b for b in bounds if b is not None]
    if atom.kind == "min" and known:
        return min(known)
    return max(known) if atom.kind == "max" and len(known) == len(bounds) else None


def is_nonnegative(dim: Dim, graph: Graph) -> bool:
    """Whether an expression is never negative: sums and products of dimensions, remainders, and such."""
    if isinstance(dim, int):
        return dim >= 0
    if not isinstance(dim, DimExpr):
        return False
    return all(c > 0 and all(_atom_nonnegative(a, graph) for a in m) for m, c in _without_remainders(dim))


def _without_remainders(dim: DimExpr) -> Sequence[tuple[tuple[str | DimFunction, ...], int]]:
    """The terms without those that cancel out: ``N mod 64`` is not less than ``N mod 16``."""
    terms = dict(dim.terms)
    for monomial, factor in dim.terms:
        small = monomial[0] if len(monomial) == 1 and factor < 0 else None
        if not isinstance(small, DimFunction) or small.kind != "mod" or not isinstance(small.args[1], int) or small.args[1] <= 0:
            continue
        for other, has in terms.items():
            if has > 0 and _is_at_least(other, small):
                taken = min(has, -terms[monomial])
                terms[other] -= taken
                terms[monomial] += taken
    return [(m, c) for m, c in terms.items() if c]


def _is_at_least(monomial: tuple[str | DimFunction, ...], small: DimFunction) -> bool:
    """Whether a term is at least the remainder ``x mod n``: it is the remainder x itself, or ``x mod 2*n``."""
    large = monomial[0] if len(monomial) == 1 else None
    if not isinstance(large, DimFunction) or large.kind != "mod" or not isinstance(large.args[1], int) or large.args[1] <= 0:
        return False
    if small.args[0] == DimExpr(((monomial, 1),)):
        return True
    assert isinstance(small.args[1], int)
    return large.args[0] == small.args[0] and large.args[1] % small.args[1] == 0


def _atom_nonnegative(atom: str | DimFunction, graph: Graph) -> bool:
    if isinstance(atom, DimFunction):
        if atom.kind == "mod":
            return isinstance(atom.args[1], int) and atom.args[1] > 0
        checks = [is_nonnegative(a, graph) for a in atom.args]
        return any(checks) if atom.kind == "max" else all(checks)
    if not atom.startswith("%"):
        return True
    value = graph.names[atom[1:]]
    if isinstance(value.owner, Operation):
        return value.owner.name == "memref.dim"
    loop = value.owner.parent.parent if value.owner.parent is not None else None
    if loop is None or loop.name not in LOOPS:
        return False
    ranges = [f for f in read_layout(loop) if isinstance(f, RangeArg)]
    return value.index < len(ranges) and is_nonnegative(ranges[value.index].start, graph)


# -- loops -------------------------------------------------------------------------------------------------------------


def is_loop(op: Operation) -> bool:
    """Whether the operation is ``scf.for`` or ``scf.parallel``."""
    return op.name in LOOPS


def tag_of(op: Operation) -> str:
    """The name by which passes address a loop; empty for one without."""
    return str(op.attributes.get("tag", ""))


def loops_tagged(graph: Graph, tag: str) -> list[Operation]:
    """All loops with a tag, outer ones first."""
    return [op for op in graph.walk() if is_loop(op) and tag_of(op) == tag]


def body(loop: Operation) -> Block:
    """The block that a loop repeats."""
    return loop.regions[0].block


def ranges(loop: Operation) -> list[RangeArg]:
    """What the variables of a loop run through, in value form."""
    return [f for f in read_layout(loop) if isinstance(f, RangeArg)]


def single_range(loop: Operation) -> RangeArg | None:
    """The range of a loop with one variable; None for more."""
    found = ranges(loop)
    return found[0] if len(found) == 1 else None


def set_range(loop: Operation, bounds: RangeArg) -> None:
    """Gives a loop with one variable another range."""
    forms = read_layout(loop)
    write_layout(loop, [bounds, *forms[1:]])


def variable(loop: Operation) -> Value:
    """The (first) variable of a loop."""
    return body(loop).arguments[0]


def initial_values(loop: Operation) -> list[Value]:
    """The values that a loop starts to carry."""
    return [f.source for f in read_layout(loop) if isinstance(f, Bind) and isinstance(f.source, Value)]


def set_initial_values(loop: Operation, values: Sequence[Value]) -> None:
    """Carries other values into a loop with one variable."""
    write_layout(loop, [read_layout(loop)[0], *map(Bind, values)])


def parent_loop(op: Operation) -> Operation | None:
    """The operation whose region the given one stands in, when that is a loop."""
    outer = parent(op)
    return outer if outer is not None and is_loop(outer) else None


def parent(op: Operation) -> Operation | None:
    """The operation whose region the given one stands in."""
    region = op.block.parent if op.block is not None else None
    return region.parent if region is not None else None


def inner_loop(loop: Operation) -> Operation | None:
    """The loop that is all that the body of another one holds (a perfect nest)."""
    first = body(loop).first
    if first is None or not is_loop(first) or first.next is None or not first.next.definition.is_terminator:
        return None
    return first


def extent(bounds: RangeArg) -> Dim:
    """Stop minus start."""
    return bounds.stop - bounds.start


def rounds(bounds: RangeArg) -> int | None:
    """How often a range of known extent runs."""
    size = extent(bounds)
    if isinstance(size, int) and isinstance(bounds.step, int):
        return max(0, -(-size // bounds.step))
    return None


def create_loop(
    builder: Builder, kind: str, bounds: RangeArg, *, name: str, tag: str = "", initial: Sequence[Value] = (), like: Operation | None = None
) -> Operation:
    """A loop with an empty body, which the caller fills and ends (:func:`end_loop`).

    Bounds are in value form.  ``like`` gives names to carried values and results.
    """
    graph = builder.block.graph
    assert graph is not None
    region = Region()
    region.block.add_argument(name, ScalarType(index))
    names = [a.name for a in body(like).arguments[1:]] if like is not None else []
    for i, value in enumerate(initial):
        region.block.add_argument(names[i] if i < len(names) else "acc", value.type)
    operands, layout = number_layout([bounds, *map(Bind, initial)], graph)
    attributes: Any = {LAYOUT: layout}
    if tag:
        attributes["tag"] = tag
    result = like.results[0].name if like is not None and like.results else None
    return builder.create(REGISTRY[kind], operands, attributes, regions=[region], result_types=[v.type for v in initial], name=result)


def end_loop(loop: Operation, values: Sequence[Value] = ()) -> None:
    """Puts the ``yield`` at the end of a body."""
    Builder(body(loop), loc=loop.loc).create(yield_, list(values))


def outermost(op: Operation) -> Operation:
    """The operation of the graph's own block that ``op`` is or stands in."""
    while (outer := parent(op)) is not None:
        op = outer
    return op


def move_into(op: Operation, block: Block, anchor: Operation | None = None) -> None:
    """Moves an operation with all its regions within its graph (before ``anchor``, to the end for None)."""
    op.remove()
    block.insert_before(anchor, op)


def clone_before(op: Operation, anchor: Operation | None, block: Block, mapping: dict[Value, Value] | None = None) -> Operation:
    """A copy of an operation and all inside it, in front of ``anchor``; ``mapping`` replaces values and is extended."""
    copy = clone_operation(op, {} if mapping is None else mapping)
    for old, new in zip(op.results, copy.results, strict=True):
        new.auto_named = old.auto_named
    block.insert_before(anchor, copy)
    return copy


def accesses(op: Operation) -> list[Access]:
    """The accesses among the arguments of one operation."""
    if not has_layout(op):
        return []
    sources = [f.source if isinstance(f, Bind) else f for f in read_layout(op)]
    return [s for s in sources if isinstance(s, Access)]


def static_extent(bounds: RangeArg) -> int | None:
    """Stop minus start when that is a number (not below 0)."""
    size = extent(bounds)
    return max(0, size) if is_static(size) and isinstance(size, int) else None
