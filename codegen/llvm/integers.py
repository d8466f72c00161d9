"""``arith`` operations on integers, bits and bool; comparisons, choices, constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codegen.llvm.operands import intrinsic, operand, operands, result_lanes, shape_of
from codegen.llvm.polynomials import Poly, add, constant, multiply
from codegen.llvm.types import REGISTER, constant_text, llvm_type, vector_of
from codegen.llvm.writer import Writer, dtype_of, emits
from ir.attributes import Dense
from ir.core import Operation, Value
from ir.types import ScalarType, index

_SIMPLE = {"arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul", "arith.andi": "and", "arith.ori": "or", "arith.xori": "xor"}
_EXTREMA = {"arith.maxsi": "smax", "arith.minsi": "smin", "arith.maxui": "umax", "arith.minui": "umin"}


@emits(*_SIMPLE)
def _simple(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    w.result(op, f"{_SIMPLE[op.definition.full_name]} {llvm_type(op.results[0].type)} {x}, {y}")  # type: ignore[arg-type]
    _describe(w, op)


@emits(*_EXTREMA)
def _extremum(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    w.names[op.results[0]] = intrinsic(w, _EXTREMA[op.definition.full_name], f"i{dtype_of(op.results[0]).bits}", result_lanes(op), x, y)
    _describe(w, op)


@emits("math.absi")
def _absolute(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    element, lanes = f"i{dtype_of(op.results[0]).bits}", result_lanes(op)
    zero = w.splat("0", element, lanes)
    vector = vector_of(element, lanes)
    w.names[op.results[0]] = intrinsic(w, "smax", element, lanes, x, w.set(f"sub {vector} {zero}, {x}"))


def _describe(w: Writer, op: Operation) -> None:
    """Tells the index arithmetic what a scalar of type index is."""
    result = op.results[0]
    if not isinstance(result.type, ScalarType) or result.type.dtype != index:
        return
    x, y = (w.space.value(u.value) for u in op.operand_uses)
    name = op.definition.full_name
    poly: Poly | None = None
    if name == "arith.addi":
        poly = add(x, y)
    elif name == "arith.subi":
        poly = add(x, y, -1)
    elif name == "arith.muli":
        poly = multiply(x, y)
    elif name in ("arith.maxsi", "arith.minsi"):
        poly = w.space.function("max" if name == "arith.maxsi" else "min", (x, y))
    elif name in ("arith.floordivsi", "arith.modsi") and set(y) == {()} and y[()] > 0:
        poly = w.space.function("floordiv" if name == "arith.floordivsi" else "mod", (x, y))
    if poly is not None:
        w.space.describe(result, poly)


# -- what can fail -----------------------------------------------------------------------------------------------------


def _positions(shape: Sequence[int] | None) -> list[str]:
    """`` at [0, 3]`` for every lane."""
    if shape is None:
        return [""]
    import itertools

    return [f" at [{', '.join(map(str, p))}]" if p else "" for p in itertools.product(*map(range, shape))]


def _refuse(w: Writer, op: Operation, bad: str, what: str, x: str, y: str) -> None:
    """Fails when a lane of ``bad`` is true, with its position and both operands."""
    shape, lanes = shape_of(op.results[0]), result_lanes(op)
    dtype = dtype_of(op.operand_uses[0].value)
    element = REGISTER[dtype.name]
    name = op.definition.full_name
    sites = [w.site(f"{name}: {what}{p}: x is {{0}}, y is {{1}}") for p in _positions(shape)]
    if not sites:
        return
    extend = "zext" if dtype.kind == "uint" else "sext"

    def widen(text: str) -> str:
        return text if element == "i64" else w.set(f"{extend} {element} {text} to i64")

    if shape is None:
        ok = w.set(f"xor i1 {bad}, true")
        w.check_site(ok, str(sites[0]), "0", "0", lambda: (str(sites[0]), widen(x), widen(y)))
        return
    mask = w.set(f"bitcast <{lanes} x i1> {bad} to i{lanes}")
    ok = w.set(f"icmp eq i{lanes} {mask}, 0")

    def find() -> tuple[str, str, str]:
        counter = w.unit.declare(f"i{lanes}", f"llvm.cttz.i{lanes}", f"i{lanes}", "i1")
        lane = w.set(f"call i{lanes} {counter}(i{lanes} {mask}, i1 false)")
        lane = lane if lanes == 64 else w.set(f"{'zext' if lanes < 64 else 'trunc'} i{lanes} {lane} to i64")
        numbers = [widen(w.set(f"extractelement {vector_of(element, lanes)} {v}, i64 {lane}")) for v in (x, y)]
        return w.set(f"add i64 {lane}, {sites[0]}"), numbers[0], numbers[1]

    w.check_site(ok, "0", "0", "0", find)


@emits("arith.divsi", "arith.remsi", "arith.floordivsi", "arith.modsi", "arith.divui", "arith.remui")
def _divide(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    name, lanes = op.definition.full_name, result_lanes(op)
    element = f"i{dtype_of(op.results[0]).bits}"
    vector, flag = vector_of(element, lanes), vector_of("i1", lanes)
    zero = w.splat("0", element, lanes)
    bad = w.set(f"icmp eq {vector} {y}, {zero}")
    _refuse(w, op, bad, "integer division by zero", x, y)
    if name.endswith("ui"):
        w.result(op, f"{'udiv' if name == 'arith.divui' else 'urem'} {vector} {x}, {y}")
        return
    minus = w.set(f"icmp eq {vector} {y}, {w.splat('-1', element, lanes)}")  # the smallest by -1 would trap
    safe = w.set(f"select {flag} {minus}, {vector} {w.splat('1', element, lanes)}, {vector} {y}")
    rest = w.set(f"srem {vector} {x}, {safe}")
    if name == "arith.remsi":
        w.names[op.results[0]] = rest
        return
    inexact = w.set(f"icmp ne {vector} {rest}, {zero}")
    differ = w.set(f"icmp slt {vector} {w.set(f'xor {vector} {rest}, {safe}')}, {zero}")
    down = w.set(f"and {flag} {inexact}, {differ}")
    if name == "arith.modsi":
        more = w.set(f"add {vector} {rest}, {safe}")
        w.result(op, f"select {flag} {down}, {vector} {more}, {vector} {rest}")
        _describe(w, op)
        return
    quotient = w.set(f"sdiv {vector} {x}, {safe}")
    if name == "arith.floordivsi":
        quotient = w.set(f"add {vector} {quotient}, {w.set(f'sext {flag} {down} to {vector}')}")
    negated = w.set(f"sub {vector} {zero}, {x}")
    w.result(op, f"select {flag} {minus}, {vector} {negated}, {vector} {quotient}")
    if name == "arith.floordivsi":
        _describe(w, op)


def _is_known_amount(value: Value, bits: int) -> bool:
    """Whether shift amounts are constants in range."""
    op = value.defining_op
    while op is not None and op.name == "vector.broadcast":
        op = op.operands[0].defining_op
    if op is None or op.name != "arith.constant":
        return False
    constant_value = op.attribute("value")
    assert isinstance(constant_value, Dense)
    return bool(np.all((constant_value.array >= 0) & (constant_value.array < bits)))


@emits("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    name, lanes = op.definition.full_name, result_lanes(op)
    bits = dtype_of(op.results[0]).bits
    vector = vector_of(f"i{bits}", lanes)
    if not _is_known_amount(op.operand_uses[1].value, bits):
        bad = w.set(f"icmp uge {vector} {y}, {w.splat(str(bits), f'i{bits}', lanes)}")
        _refuse(w, op, bad, f"shift amount outside 0..{bits - 1}", x, y)
    w.result(op, f"{ {'arith.shli': 'shl', 'arith.shrsi': 'ashr', 'arith.shrui': 'lshr'}[name] } {vector} {x}, {y}")


# -- comparisons and choices -------------------------------------------------------------------------------------------


@emits("arith.cmpi")
def _cmpi(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    dtype, predicate = dtype_of(op.operand_uses[0].value), str(op.attributes["predicate"])
    sign = "" if predicate in ("eq", "ne") else "u" if dtype.kind == "uint" else "s"
    w.result(op, f"icmp {sign}{predicate} {vector_of(REGISTER[dtype.name], result_lanes(op))} {x}, {y}")


@emits("arith.select")
def _select(w: Writer, op: Operation) -> None:
    result = op.results[0]
    shape, vector = shape_of(result), llvm_type(result.type)  # type: ignore[arg-type]
    condition = op.operand_uses[0].value
    one = isinstance(condition.type, ScalarType)
    chosen = w.name(condition) if one else operand(w, condition, shape)
    x, y = (operand(w, u.value, shape) for u in op.operand_uses[1:])
    w.result(op, f"select {'i1' if one else vector_of('i1', result_lanes(op))} {chosen}, {vector} {x}, {vector} {y}")


def facts(w: Writer, condition: Value, holds: bool) -> list[Poly]:
    """What is not negative where a condition holds (or does not): comparisons of index values joined by ``andi``."""
    op = condition.defining_op
    if op is None:
        return []
    if op.definition.full_name == "arith.andi" and holds:
        return [f for u in op.operand_uses for f in facts(w, u.value, True)]
    if op.definition.full_name != "arith.cmpi" or any(u.value.type != ScalarType(index) for u in op.operand_uses):
        return []
    x, y = (w.space.value(u.value) for u in op.operand_uses)
    if not (w.space.is_exact(x) and w.space.is_exact(y)):
        return []
    predicate = str(op.attributes["predicate"])
    if not holds:
        predicate = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}[predicate]
    more, less = add(x, y, -1), add(y, x, -1)
    one = constant(1)
    found = {"lt": [add(less, one, -1)], "le": [less], "gt": [add(more, one, -1)], "ge": [more], "eq": [more, less], "ne": []}
    return found[predicate]


# -- constants and conversions -----------------------------------------------------------------------------------------


@emits("arith.constant")
def _constant(w: Writer, op: Operation) -> None:
    value = op.attributes["value"]
    assert isinstance(value, Dense)
    result = op.results[0]
    w.names[result] = constant_text(value.array, value.dtype)
    if isinstance(result.type, ScalarType) and value.dtype == index:
        w.space.describe(result, constant(int(value.array)))


@emits("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
def _convert(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    lanes = result_lanes(op)
    source, target = dtype_of(op.operand_uses[0].value), dtype_of(op.results[0])
    bits = 1 if source.kind == "bool" else source.bits
    if bits == target.bits:
        w.names[op.results[0]] = x
        return
    kind = "trunc" if bits > target.bits else "zext" if source.kind in ("uint", "bool") else "sext"
    w.result(op, f"{kind} {vector_of(f'i{bits}', lanes)} {x} to {vector_of(f'i{target.bits}', lanes)}")


@emits("arith.bitcast")
def _bitcast(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    lanes = result_lanes(op)
    source, target = (REGISTER[dtype_of(v).name] for v in (op.operand_uses[0].value, op.results[0]))
    if source == target:
        w.names[op.results[0]] = x
    else:
        w.result(op, f"bitcast {vector_of(source, lanes)} {x} to {vector_of(target, lanes)}")
