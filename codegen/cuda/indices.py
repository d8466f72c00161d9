"""Index expressions: ``affine`` operations, loop bounds, places in memory.  Divisions round down, as in the program."""

from __future__ import annotations

from collections.abc import Sequence

from codegen.cuda.expressions import NARROW, PRIMARY, PRODUCT, WIDE, Expr, integer, minus, plus, times, widened
from codegen.cuda.writer import Writer, emits
from codegen.llvm.polynomials import Poly, add, as_number, constant, multiply
from dialects.affine import expressions_of
from ir.core import Operation, Value
from ir.dims import Dim, DimExpr, DimFunction

Factor = str | DimFunction


def index_expr(w: Writer, expr: Dim, operands: Sequence[Value] = ()) -> Expr:
    """An expression of an access, a bound or a type; ``%0`` in it is operand 0."""
    if isinstance(expr, int):
        return integer(expr)
    assert isinstance(expr, DimExpr), expr
    total: Expr | None = None
    for monomial, coefficient in sorted(expr.terms, key=lambda t: (t[1] < 0, not t[0])):  # what is added first, numbers last
        term = _term(w, monomial, abs(coefficient), operands)
        if total is None:
            total = term if coefficient > 0 else _negated(term)
            continue
        total = plus(total, term) if coefficient > 0 else minus(total, term)
    assert total is not None
    bound = w.space.magnitude(w.space.expand(w.space.convert(expr, operands)))
    return total if total.bound <= bound else Expr(total.text, total.level, total.cost, min(bound, WIDE), total.wide)


def _negated(x: Expr) -> Expr:
    if x.text.isdigit() or x.text.removesuffix("LL").isdigit():
        return integer(-int(x.text.removesuffix("LL")))
    return minus(integer(0), x) if x.level > PRIMARY or x.bound >= WIDE else Expr(f"-{x.text}", PRIMARY + 1, x.cost + 1, x.bound, x.wide)


def _term(w: Writer, monomial: Sequence[Factor], coefficient: int, operands: Sequence[Value]) -> Expr:
    total, poly = integer(coefficient), constant(coefficient)
    for factor in monomial:
        poly = multiply(poly, w.space.factor(factor, operands))
        total = times(total, _factor(w, factor, operands), w.space.magnitude(poly))
    return total


def _factor(w: Writer, factor: Factor, operands: Sequence[Value]) -> Expr:
    if not isinstance(factor, str):
        return index_function(w, factor.kind, [index_expr(w, a, operands) for a in factor.args], [w.space.convert(a, operands) for a in factor.args])
    if factor.startswith("%"):
        return w.value(operands[int(factor[1:])])
    return w.symbol(factor)


def index_function(w: Writer, kind: str, args: Sequence[Expr], polys: Sequence[Poly]) -> Expr:
    """``floordiv``, ``ceildiv``, ``mod``, ``min`` or ``max`` of integers of type index."""
    if kind in ("min", "max"):
        total, sign = args[0], all(map(w.space.prove, polys))
        for arg in args[1:]:
            bound = min(total.bound, arg.bound) if kind == "min" and sign else max(total.bound, arg.bound)
            wide = total.wide or arg.wide
            total = Expr(f"go_{kind}_{'i64' if wide else 'i32'}({total.text}, {arg.text})", PRIMARY, total.cost + arg.cost + 1, bound, wide)
        return total
    return _division(w, kind, args[0], args[1], polys[0], polys[1])


def _division(w: Writer, kind: str, x: Expr, y: Expr, x_poly: Poly, y_poly: Poly) -> Expr:
    divisor = as_number(w.space.expand(y_poly))
    positive = divisor > 0 if divisor is not None else w.space.prove(add(y_poly, constant(-1)))
    if not positive and not (divisor or 0) < 0:
        _refuse_zero(w, y)
    least = divisor if divisor is not None and divisor > 0 else 1
    bound = y.bound if kind == "mod" else min(x.bound // least + 1, WIDE)
    if kind == "mod" and divisor:
        bound = abs(divisor)
    cost = x.cost + y.cost + 1
    wide = x.wide or y.wide
    if positive and w.space.prove(x_poly):
        if kind != "ceildiv":
            bound = min(bound, x.bound)
            return Expr(f"{x.left(PRODUCT)} {'/' if kind == 'floordiv' else '%'} {y.right(PRODUCT)}", PRODUCT, cost, bound, wide)
        if divisor is not None and x.bound + divisor < WIDE:
            above = plus(x, integer(divisor - 1))
            return Expr(f"{above.left(PRODUCT)} / {y.right(PRODUCT)}", PRODUCT, cost, bound, above.wide)
    return Expr(f"go_{kind}_{'i64' if wide else 'i32'}({x.text}, {y.text})", PRIMARY, cost, bound, wide)


def _refuse_zero(w: Writer, y: Expr) -> None:
    if w.current is None:
        return
    site = w.site("division by zero", given=())
    w.fail_unless(f"{y.at(PRODUCT)} != 0", str(site))


def finish(w: Writer, op: Operation, expr: Expr, poly: Poly) -> None:
    """Gives an operation of type index its result, and tells proofs what it is."""
    w.space.describe(op.results[0], poly)
    w.result(op, expr)


@emits("affine.apply")
def _apply(w: Writer, op: Operation) -> None:
    (expr,) = expressions_of(op)
    finish(w, op, index_expr(w, expr, op.operands), w.space.convert(expr, op.operands))


@emits("affine.min", "affine.max")
def _extremum(w: Writer, op: Operation) -> None:
    exprs = expressions_of(op)
    polys = tuple(w.space.convert(e, op.operands) for e in exprs)
    kind = op.definition.name
    finish(w, op, index_function(w, kind, [index_expr(w, e, op.operands) for e in exprs], polys), w.space.function(kind, polys))


@emits("affine.align_down")
def _align_down(w: Writer, op: Operation) -> None:
    value, alignment = expressions_of(op)
    x, y = index_expr(w, value, op.operands), index_expr(w, alignment, op.operands)
    x_poly, y_poly = w.space.convert(value, op.operands), w.space.convert(alignment, op.operands)
    positive = add(y_poly, constant(-1))
    if not w.space.prove(positive):
        y = w.atomic(y, "go_index", "alignment")
        site = w.site("the alignment is {0}, it must be positive")
        w.fail_unless(f"{y.text} > 0", str(site), y.text)
        w.space.hypotheses.append(positive)  # for the rest of the region; its end forgets it
    whole = times(_division(w, "floordiv", x, y, x_poly, y_poly), y)
    finish(w, op, whole, multiply(w.space.function("floordiv", (x_poly, y_poly)), y_poly))


def as_wide(x: Expr) -> str:
    """The text of an integer of type index, as a ``go_index``."""
    return widened(x).text if x.bound >= NARROW and not x.wide else x.text
