"""Elementwise operations on scalars and vectors: :mod:`codegen.cuda.scalars` says what they are, this module where they go."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from codegen.cuda import expressions as ex
from codegen.cuda.expressions import Expr, call, minus, plus, times
from codegen.cuda.indices import index_function
from codegen.cuda.scalars import ELEMENTS, dtype_of, is_64, is_known_amount
from codegen.cuda.types import C_TYPES, c_type
from codegen.cuda.writer import Writer, element_type, emits
from codegen.llvm.polynomials import Poly, add, constant, multiply
from ir.core import Operation, Value
from ir.types import ScalarType, VectorType, index

CAN_FAIL = {
    **dict.fromkeys(("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.modsi", "arith.divui", "arith.remui"), "integer division by zero"),
    **dict.fromkeys(("arith.shli", "arith.shrsi", "arith.shrui"), "shift amount outside 0..{most}"),
}
"""What is said of a second operand that is refused."""

_WHOLE = {"arith.addf": "+", "arith.subf": "-", "arith.mulf": "*", "arith.divf": "/"}
"""Operations that ``go_vec`` has as operators, for f32 and f64."""


@emits(*ELEMENTS)
def _elementwise(w: Writer, op: Operation) -> None:
    result = op.results[0]
    if op.definition.full_name in CAN_FAIL:
        _refuse(w, op)
    if isinstance(result.type, VectorType):
        _on_vectors(w, op)
    elif result.type == ScalarType(index):
        _on_index(w, op)
    else:
        w.result(op, ELEMENTS[op.definition.full_name](op, dtype_of(op.operands[0]), [_operand(w, op, v) for v in op.operands]))


def _operand(w: Writer, op: Operation, value: Value) -> Expr:
    """A scalar operand; one that the expression has more than once becomes a variable."""
    found = w.value(value)
    return w.atomic(found, element_type(value), value.name) if op.definition.name == "isnan" else found


@emits("arith.constant")
def _constant(w: Writer, op: Operation) -> None:
    w.constant(op)


# -- integers of type index --------------------------------------------------------------------------------------------


def _on_index(w: Writer, op: Operation) -> None:
    """Sums and products in 32 bits where they are enough, and what proofs know of the result."""
    name = op.definition.full_name
    exprs = [w.value(v) for v in op.operands]
    polys = [w.space.value(v) for v in op.operands] if all(v.type == ScalarType(index) for v in op.operands) else []
    poly: Poly | None = None
    if name in ("arith.addi", "arith.subi", "arith.muli"):
        expr = {"addi": plus, "subi": minus, "muli": times}[op.definition.name](*exprs)
        poly = {"addi": add, "muli": multiply}[op.definition.name](*polys) if name != "arith.subi" else add(polys[0], polys[1], -1)
    elif name in ("arith.maxsi", "arith.minsi"):
        kind = op.definition.name[:3]
        expr, poly = index_function(w, kind, exprs, polys), w.space.function(kind, (polys[0], polys[1]))
    elif name in ("arith.floordivsi", "arith.modsi") and set(polys[1]) == {()} and polys[1][()] > 0:
        kind = "floordiv" if name == "arith.floordivsi" else "mod"
        expr, poly = index_function(w, kind, exprs, polys), w.space.function(kind, (polys[0], polys[1]))
    else:
        expr = ELEMENTS[name](op, dtype_of(op.operands[0]), exprs)
        if name != "arith.select":
            expr = Expr(expr.text, expr.level, expr.cost)
        if name == "arith.index_cast" and dtype_of(op.operands[0]).bits < 64:
            expr = Expr(expr.text, expr.level, expr.cost, 1 << (dtype_of(op.operands[0]).bits - 1 if dtype_of(op.operands[0]).kind == "int" else 8))
    if poly is not None:
        w.space.describe(op.results[0], poly)
    w.result(op, expr)


# -- vectors -----------------------------------------------------------------------------------------------------------


def shape_of(value: Value) -> tuple[int, ...] | None:
    """The shape of a vector; None for a scalar."""
    return value.type.shape if isinstance(value.type, VectorType) else None


def _on_vectors(w: Writer, op: Operation) -> None:
    result = op.results[0]
    assert isinstance(result.type, VectorType)
    name, dtype = op.definition.full_name, dtype_of(op.operands[0])
    alike = all(shape_of(v) == result.type.shape for v in op.operands)
    if alike and dtype.name in ("f32", "f64") and name in _WHOLE:
        x, y = (w.value(v) for v in op.operands)
        w.declare(result, ex.binary(x, _WHOLE[name], y, ex.SUM if _WHOLE[name] in "+-" else ex.PRODUCT))
        return
    if alike and dtype.name in ("f32", "f64") and name == "math.fma":
        w.declare(result, call("go_fma", *(w.value(v) for v in op.operands)))
        return
    lane_by_lane(w, result, op.operands, lambda elements: ELEMENTS[name](op, dtype, elements))


def lane_by_lane(w: Writer, result: Value, operands: Sequence[Value], make: Callable[[list[Expr]], Expr]) -> None:
    """A loop over the elements of a vector, unrolled; operands broadcast as numpy's arrays do."""
    type_ = result.type
    assert isinstance(type_, VectorType)
    values = [w.value(v) for v in operands]
    name = w.token(result.name)
    w.line(f"{c_type(type_)} {name};")
    for_lanes(w, type_.shape, [shape_of(v) for v in operands], lambda at, places: w.line(
        f"{name}[{at}] = {make([v if p is None else Expr(f'{v.text}[{p}]') for v, p in zip(values, places, strict=True)]).text};"))  # fmt: skip
    w.values[result] = Expr(name)


def for_lanes(
    w: Writer, shape: Sequence[int], shapes: Sequence[tuple[int, ...] | None], body: Callable[[str, list[str | None]], None]
) -> None:  # fmt: skip
    """Unrolled loops over a vector of ``shape``; ``body`` gets the place, and the places in what is broadcast to it (None: scalars)."""
    count = math.prod(shape)
    if all(s is None or math.prod(s) == 1 or tuple(s) == tuple(shape) for s in shapes):
        lane = w.fixed("lane")
        with unrolled(w, lane, count):
            body(lane, [None if s is None else lane if tuple(s) == tuple(shape) else "0" for s in shapes])
        return
    axes = [n for n, size in enumerate(shape) if size != 1]
    variables = {n: w.fixed(f"i{n}") for n in axes}

    def place(own: Sequence[int]) -> str:
        offset = len(shape) - len(own)
        terms = []
        for axis, size in enumerate(own):
            stride = math.prod(own[axis + 1 :])
            if size != 1:
                terms.append(variables[axis + offset] if stride == 1 else f"{stride} * {variables[axis + offset]}")
        return " + ".join(terms) or "0"

    def level(number: int) -> None:
        if number == len(axes):
            body(place(shape), [None if s is None else place(s) for s in shapes])
            return
        with unrolled(w, variables[axes[number]], shape[axes[number]]):
            level(number + 1)

    level(0)


def unrolled(w: Writer, variable: str, count: int):  # type: ignore[no-untyped-def]  # a context manager
    """A loop over a known number of rounds that compilers unroll."""
    w.pragma()
    return w.block(f"for (int {variable} = 0; {variable} < {count}; ++{variable})")


# -- what can fail -----------------------------------------------------------------------------------------------------


def _refuse(w: Writer, op: Operation) -> None:
    """Fails where a divisor is 0 or a shift amount is out of range, with both operands, and the position in a vector."""
    name = op.definition.full_name
    amount, dtype = op.operands[1], dtype_of(op.operands[0])
    shifts = "shift" in CAN_FAIL[name]
    if shifts and is_known_amount(amount, dtype.bits):
        return
    what = CAN_FAIL[name].format(most=dtype.bits - 1)
    result = op.results[0]
    shape = shape_of(result)
    positions = [""] if shape is None else [f" at [{', '.join(map(str, p))}]" for p in itertools.product(*map(range, shape))]
    if not shifts and _is_nonzero_constant(w, amount):
        return
    sites = [w.site(f"{name}: {what}{p}: x is {{0}}, y is {{1}}") for p in positions]

    def check(x: Expr, y: Expr, site: str) -> None:
        good = f"{y.at(ex.SUM)} != 0"
        if shifts:
            unsigned = "unsigned long long" if is_64(dtype) else "unsigned"
            good = f"({unsigned}){y.at(ex.PRIMARY)} < {dtype.bits}u"
        w.fail_unless(good, site, x.text, y.text)

    if shape is None:
        x, y = (w.atomic(w.value(v), C_TYPES[dtype_of(v).name], v.name) for v in op.operands)
        w.values.update(zip(op.operands, (x, y), strict=True))
        check(x, y, str(sites[0]))
        return
    values = [w.value(v) for v in op.operands]

    def lane(at: str, places: list[str | None]) -> None:
        x, y = (v if p is None else Expr(f"{v.text}[{p}]") for v, p in zip(values, places, strict=True))
        check(x, y, f"{sites[0]} + {at}")

    for_lanes(w, shape, [shape_of(v) for v in op.operands], lane)


def _is_nonzero_constant(w: Writer, value: Value) -> bool:
    if value.type == ScalarType(index):
        poly = w.space.value(value)
        return set(poly) == {()} or w.space.prove(add(poly, constant(-1)))
    op = value.defining_op
    if op is None or op.name != "arith.constant":
        return False
    given = op.attribute("value")
    return bool(given.array.all())  # type: ignore[union-attr]
