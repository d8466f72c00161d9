"""``scf`` operations and ``cf.assert``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import cast

from codegen.cuda.expressions import NARROW, PRIMARY, Expr, plus
from codegen.cuda.indices import index_expr
from codegen.cuda.types import c_type
from codegen.cuda.writer import Writer, emits
from codegen.llvm.polynomials import Poly, add, as_number, constant
from ir.core import Block, Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim
from ir.layout import AccessArg, BindArg, OperandArg, RangeArg, layout_of
from ir.types import MemRefType, ScalarType, VectorType, index

UNROLLED = 64
"""Rounds of loops over registers that are unrolled, at most."""
LONGEST = 4096
"""Values that an unrolled loop computes, at most, unless memory that is to be registers is indexed by its rounds."""


# -- loops -------------------------------------------------------------------------------------------------------------


@emits("scf.for")
def _for(w: Writer, op: Operation) -> None:
    layout = layout_of(op)
    bounds, block = layout[0], op.regions[0].block
    assert isinstance(bounds, RangeArg)
    inits = [a.source.position for a in layout if isinstance(a, BindArg) and isinstance(a.source, OperandArg)]
    carried = [_carried(w, a, w.value(op.operands[p])) for a, p in zip(block.arguments[1:], inits, strict=True)]
    w.values.update(zip(block.arguments[1:], carried, strict=True))
    with _rounds(w, op, bounds, block.arguments[0]):
        yielded = w.run(block)
        _assign(w, carried, yielded)
    w.values.update(zip(op.results, carried, strict=True))


def _carried(w: Writer, argument: Value, start: Expr) -> Expr:
    return w.variable(argument, start)


@contextmanager
def _rounds(w: Writer, op: Operation, bounds: RangeArg, variable: Value) -> Iterator[None]:
    """``for (...) { ... }``."""
    operands = op.operands
    start, stop, step = (w.space.convert(e, operands) for e in (bounds.start, bounds.stop, bounds.step))
    first, end, stride = (index_expr(w, e, operands) for e in (bounds.start, bounds.stop, bounds.step))
    if as_number(step) is None and not w.space.prove(add(step, constant(-1))):
        stride = w.atomic(stride, "go_index", "step")
        site = w.site("the step is {0}, it must be positive")
        w.fail_unless(f"{stride.text} > 0", str(site), stride.text)
    end = _simple(w, end, "end")
    stride = _simple(w, stride, "step")
    w.space.counter(variable, start, stop, step)
    bound = max(first.bound, end.bound)
    wide = first.wide or end.wide or stride.wide or plus(Expr("", bound=bound, wide=False), stride).bound >= NARROW
    name = w.token(variable.name)
    w.values[variable] = Expr(name, PRIMARY, 0, bound, wide)
    more = f"++{name}" if stride.text == "1" else f"{name} += {stride.text}"
    rounds = _static_rounds(start, stop, step)
    if _waits(op) or _goes_on(op):
        w.line("#pragma unroll 1")
    elif rounds is not None and rounds <= UNROLLED and _in_registers(op) and (rounds * _weight(op) <= LONGEST or _chooses_registers(op)):
        w.pragma()
    with w.block(f"for ({'go_index' if wide else 'int'} {name} = {first.text}; {name} < {end.at(4)}; {more})"):
        yield


def _simple(w: Writer, x: Expr, hint: str) -> Expr:
    """A bound that costs more than an operation is computed once."""
    return x if x.cost <= 1 and "(" not in x.text else w.atomic(x, "go_index" if x.wide else "int", hint)


def _static_rounds(start: Poly, stop: Poly, step: Poly) -> int | None:
    distance, size = as_number(add(stop, start, -1)), as_number(step)
    return None if distance is None or not size else max(0, -(-distance // size))


def _waits(op: Operation) -> bool:
    """Whether threads wait for each other in a loop, which gains nothing from being unrolled: it would only be long."""
    return any(inner.definition.full_name == "gpu.barrier" and inner.attribute("scope") == "block" for inner in op.walk())


def _goes_on(op: Operation) -> bool:
    """Whether a loop around loops over registers picks none of these by its variable: what it loads ahead stays ahead when it is not unrolled."""
    if not any(inner is not op and inner.definition.full_name == "scf.for" and _in_registers(inner) for inner in op.walk()):
        return False
    places = {op.regions[0].block.arguments[0]}
    for inner in op.walk():
        if inner is not op and any(v in places for v in inner.operands):
            if any(isinstance(v.type, MemRefType) and v.type.space == "local" for v in inner.operands):
                return False
            places.update(r for r in inner.results if r.type == ScalarType(index))
    return True


def _in_registers(op: Operation) -> bool:
    """Whether a loop goes over local memory or vectors, or carries vectors: they are registers only where it is unrolled."""
    if any(isinstance(r.type, VectorType) for r in op.results):
        return True
    for inner in op.walk():
        if inner is not op and inner.definition.full_name == "scf.for":
            continue
        if any(isinstance(v.type, MemRefType) and v.type.space == "local" for v in inner.operands):
            return True
        if any(isinstance(r.type, VectorType) for r in inner.results):
            return True
    return False


def _weight(op: Operation) -> int:
    """The numbers that a round of a loop computes; inner loops count once."""
    types = [r.type for inner in op.walk() for r in inner.results if inner is not op]
    return sum(prod(t.shape) if isinstance(t, VectorType) else 1 for t in types)


def _chooses_registers(op: Operation) -> bool:
    """Whether a place in local memory depends on the round of a loop."""
    known: set[Value] = {op.regions[0].block.arguments[0]}
    for inner in op.walk():
        if inner is op or not known.intersection(inner.operands):
            continue
        known.update(r for r in inner.results if r.type == ScalarType(index))
        if any(isinstance(v.type, MemRefType) and v.type.space == "local" for v in inner.operands):
            return True
    return False


def _assign(w: Writer, variables: Sequence[Expr], values: Sequence[Value]) -> None:
    """Gives variables new values, all at once."""
    exprs = [w.value(v) for v in values]
    for number, (variable, value) in enumerate(zip(variables, values, strict=True)):
        for later in range(number + 1, len(exprs)):
            if variable.text in exprs[later].text and exprs[number].text != variable.text:
                type_ = values[later].type
                assert isinstance(type_, (ScalarType, VectorType))
                exprs[later] = w.atomic(Expr(exprs[later].text, exprs[later].level, 1), c_type(type_), f"{value.name}.next")
    for variable, expr in zip(variables, exprs, strict=True):
        if expr.text != variable.text:
            w.line(f"{variable.text} = {expr.text};")


# -- choices -----------------------------------------------------------------------------------------------------------

_MEMORY = ("memref.load", "memref.store", "vector.load", "vector.store", "gpu.cp_async")


@emits("scf.if")
def _if(w: Writer, op: Operation) -> None:
    condition = op.operands[0]
    chosen = [w.variable(r, None) for r in op.results]
    text = w.value(condition).text
    if w.marked and _guards(op):
        text = f"GO_MARK_BOUND({w.mark('bound')}, ({text}))"
    for number, region in enumerate(op.regions):
        if number and not chosen and _is_empty(region.block):
            break
        if number:
            w.lines.pop()  # the closing brace
        with w.block(f"if ({text})" if not number else "} else"):
            _assign(w, chosen, w.run(region.block, facts(w, condition, number == 0)))
    w.values.update(zip(op.results, chosen, strict=True))


def _is_empty(block: Block) -> bool:
    return all(op.definition.is_terminator for op in block)


def _guards(op: Operation) -> bool:
    """Whether memory is read or written in a choice (not memory of the thread alone)."""
    for inner in op.walk():
        if inner.definition.full_name not in _MEMORY:
            continue
        for access in layout_of(inner):
            if isinstance(access, AccessArg):
                type_ = inner.operands[access.position].type
                if isinstance(type_, MemRefType) and type_.space != "local":
                    return True
    return False


def facts(w: Writer, condition: Value, holds: bool) -> list[Poly]:
    """What is not negative where a condition holds (or does not): comparisons of index values joined by ``andi``."""
    op = condition.defining_op
    if op is None:
        return []
    if op.definition.full_name == "arith.andi" and holds:
        return [f for v in op.operands for f in facts(w, v, True)]
    if op.definition.full_name != "arith.cmpi" or any(v.type != ScalarType(index) for v in op.operands):
        return []
    x, y = (w.space.value(v) for v in op.operands)
    if not (w.space.is_exact(x) and w.space.is_exact(y)):
        return []
    predicate = str(op.attributes["predicate"])
    if not holds:
        predicate = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}[predicate]
    more, less, one = add(x, y, -1), add(y, x, -1), constant(1)
    found = {"lt": [add(less, one, -1)], "le": [less], "gt": [add(more, one, -1)], "ge": [more], "eq": [more, less], "ne": []}
    return found[predicate]


# -- checks ------------------------------------------------------------------------------------------------------------


@emits("cf.assert")
def _assert(w: Writer, op: Operation) -> None:
    condition = op.operands[0]
    if w.together:
        raise GraphError(Diagnostic("codegen: a check in a kernel whose threads wait for each other", op.loc))
    numbers, given = ["0", "0"], []
    for number, name in enumerate(("v0", "v1")):
        value = op.operand(name)
        if value is not None:
            numbers[number] = w.value(value).text
            given.append(number)
    dims = cast("tuple[Dim, ...]", op.attribute("dims"))
    site = w.site(str(op.attributes["message"]), dims, name="", given=(*given, *range(2, 2 + len(dims))))
    w.fail_unless(w.value(condition).text, str(site), *numbers)
    w.space.hypotheses += facts(w, condition, True)  # for the rest of the region; its end forgets them
