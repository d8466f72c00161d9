"""``arith`` and ``math``: what an operation is for one element, as an expression; vectors repeat it lane by lane.

f16 and bf16 are computed in float and rounded, which for +, -, *, / and sqrt gives the bits of one rounding.  Functions of f32 and narrower
are those of ``graph_opt_math.h``, made of the expansions that native code has; those of f64 are the C library's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from codegen.cuda import expressions as ex
from codegen.cuda.expressions import Expr, binary, call, cast
from codegen.cuda.types import C_TYPES
from ir.attributes import Dense
from ir.core import Operation, Value
from ir.types import DType, ScalarType, VectorType

Element = Callable[[Operation, DType, Sequence[Expr]], Expr]
"""Makes an expression of the operands' elements; the type is that of the first operand."""

ELEMENTS: dict[str, Element] = {}
"""By full name of the operation."""


def element(*names: str) -> Callable[[Element], Element]:
    """Registers the expression for operations."""

    def register(function: Element) -> Element:
        for name in names:
            ELEMENTS[name] = function
        return function

    return register


def dtype_of(value: Value) -> DType:
    """The element type of a scalar or vector."""
    assert isinstance(value.type, (ScalarType, VectorType))
    return value.type.dtype


# -- floats ------------------------------------------------------------------------------------------------------------


def computed(x: Expr, dtype: DType) -> Expr:
    """A float in the type that is computed in."""
    return call("go_to_float", x) if dtype.name in ("f16", "bf16") else x


def rounded(x: Expr, dtype: DType) -> Expr:
    """What was computed, in its type."""
    return call("go_to_half" if dtype.name == "f16" else "go_to_bf16", x) if dtype.name in ("f16", "bf16") else x


def to_double(x: Expr, dtype: DType) -> Expr:
    """A float of any type as a double."""
    return x if dtype.name == "f64" else cast("double", computed(x, dtype))


def from_double(x: Expr, dtype: DType) -> Expr:
    """A double rounded once to a float type."""
    if dtype.name == "f64":
        return x
    return cast("float", x) if dtype.name == "f32" else call("go_to_half64" if dtype.name == "f16" else "go_to_bf16_64", x)


_ARITHMETIC = {"arith.addf": ("+", ex.SUM), "arith.subf": ("-", ex.SUM), "arith.mulf": ("*", ex.PRODUCT), "arith.divf": ("/", ex.PRODUCT)}


@element(*_ARITHMETIC)
def _arithmetic(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    operator, level = _ARITHMETIC[op.definition.full_name]
    a, b = (computed(e, dtype) for e in x)
    if b.level == ex.UNARY and operator in "+-":  # a - -b
        b = Expr(f"({b.text})", ex.PRIMARY, b.cost)
    return rounded(binary(a, operator, b, level), dtype)


_SIGNS = {"arith.negf": "neg", "math.absf": "abs", "math.copysign": "copysign"}


@element(*_SIGNS)
def _sign(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    name = _SIGNS[op.definition.full_name]
    if dtype.name in ("f16", "bf16"):
        return call(f"go_{name}_{'half' if dtype.name == 'f16' else 'bf16'}", *x)
    if name == "neg":
        return Expr(f"-{x[0].at(ex.PRIMARY)}", ex.UNARY, x[0].cost + 1)
    return call({"abs": "fabs", "copysign": "copysign"}[name] + ("f" if dtype.name == "f32" else ""), *x)


_ROUNDING = {"math.sqrt": "sqrt", "math.floor": "floor", "math.ceil": "ceil", "math.trunc": "trunc", "math.roundeven": "rint"}


@element(*_ROUNDING)
def _rounding(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    name = _ROUNDING[op.definition.full_name] + ("" if dtype.name == "f64" else "f")
    return rounded(call(name, computed(x[0], dtype)), dtype)


@element("arith.maximumf", "arith.minimumf")
def _extremum(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    name = "go_max" if op.definition.name == "maximumf" else "go_min"
    return rounded(call(name + ("64" if dtype.name == "f64" else ""), *(computed(e, dtype) for e in x)), dtype)


@element("arith.remf")
def _remainder(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    """The remainder is exact, in float as in double."""
    return rounded(call("fmod" if dtype.name == "f64" else "fmodf", *(computed(e, dtype) for e in x)), dtype)


@element("math.fma")
def _fma(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    return call({"f64": "fma", "f32": "fmaf", "f16": "go_fma_half", "bf16": "go_fma_bf16"}[dtype.name], *x)


_FUNCTIONS = {
    "math.exp": "exp", "math.expm1": "expm1", "math.log": "log", "math.log1p": "log1p", "math.sin": "sin", "math.cos": "cos", "math.tan": "tan",
    "math.tanh": "tanh", "math.erf": "erf", "math.erfc": "erfc", "math.powf": "pow", "math.normcdf": "go_normcdf64", "math.gelu": "go_gelu64",
    "math.gelu_tanh": "go_gelu_tanh64", "math.sigmoid": "go_sigmoid64", "math.silu": "go_silu64",
}  # fmt: skip
"""Functions of f64."""


def function_name(name: str, decaying: bool = False) -> str:
    """The function of ``graph_opt_math.h`` for an operation on f32: ``go_exp`` for math.exp."""
    return f"go_{name.removeprefix('math.')}{'_decaying' if decaying else ''}"


@element(*_FUNCTIONS, "math.rsqrt")
def _function(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    name = op.definition.full_name
    if dtype.name != "f64":
        decaying = name == "math.exp" and bool(op.attribute("decaying"))
        return rounded(call(function_name(name, decaying), *(computed(e, dtype) for e in x)), dtype)
    if name == "math.rsqrt":
        return binary(Expr("1.0"), "/", call("sqrt", *x), ex.PRODUCT)
    return call(_FUNCTIONS[name], *x)


@element("math.ldexp")
def _ldexp(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    return from_double(call("go_ldexp64", to_double(x[0], dtype), x[1]), dtype)


@element("math.isnan")
def _isnan(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    if dtype.name in ("f16", "bf16"):
        return binary(Expr(f"({x[0].at(ex.PRIMARY)}.bits & 0x7fff)"), ">", Expr("0x7c00" if dtype.name == "f16" else "0x7f80"), ex.ORDER)
    same = Expr(x[0].at(ex.PRIMARY), ex.PRIMARY, x[0].cost)
    return binary(same, "!=", same, ex.EQUALITY)


_COMPARISONS = {
    "eq": ("==", ex.EQUALITY), "ne": ("!=", ex.EQUALITY), "lt": ("<", ex.ORDER), "le": ("<=", ex.ORDER), "gt": (">", ex.ORDER),
    "ge": (">=", ex.ORDER),
}  # fmt: skip


@element("arith.cmpf")
def _cmpf(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    operator, level = _COMPARISONS[str(op.attributes["predicate"])]
    return binary(computed(x[0], dtype), operator, computed(x[1], dtype), level)


# -- integers, bits, bool ----------------------------------------------------------------------------------------------


def is_64(dtype: DType) -> bool:
    """Whether integers of a type are computed in 64 bits."""
    return dtype.bits == 64


def suffix(dtype: DType) -> str:
    """What the functions of ``graph_opt_scalar.h`` for integers of a type end with; narrow ones are computed in int."""
    return "i64" if is_64(dtype) else "i32"


def narrowed(x: Expr, dtype: DType) -> Expr:
    """A result in int (or 64 bits) in its type."""
    return cast(C_TYPES[dtype.name], x) if dtype.bits < 32 else x


_SUMS = {"arith.addi": ("+", ex.SUM, "add"), "arith.subi": ("-", ex.SUM, "sub"), "arith.muli": ("*", ex.PRODUCT, "mul")}


@element(*_SUMS)
def _sum(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    operator, level, name = _SUMS[op.definition.full_name]
    if dtype.bits < 32:
        return narrowed(binary(x[0], operator, x[1], level), dtype)
    return call(f"go_{name}_{suffix(dtype)}", *x)


_EXTREMA = {"arith.maxsi": "max", "arith.minsi": "min", "arith.maxui": "max", "arith.minui": "min"}


@element(*_EXTREMA)
def _integer_extremum(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    return narrowed(call(f"go_{_EXTREMA[op.definition.full_name]}_{suffix(dtype)}", *x), dtype)


@element("math.absi")
def _absi(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    return narrowed(call(f"go_abs_{suffix(dtype)}", *x), dtype)


_DIVISIONS = {
    "arith.divsi": "div", "arith.remsi": "rem", "arith.floordivsi": "floordiv", "arith.modsi": "mod", "arith.divui": "div", "arith.remui": "rem",
}  # fmt: skip


@element(*_DIVISIONS)
def _division(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    """The divisor has been checked; unsigned integers are bytes, which int has."""
    return narrowed(call(f"go_{_DIVISIONS[op.definition.full_name]}_{suffix(dtype)}", *x), dtype)


_BITS = {
    "arith.andi": ("&", ex.BIT_AND, "&&", ex.AND), "arith.ori": ("|", ex.BIT_OR, "||", ex.OR),
    "arith.xori": ("^", ex.BIT_XOR, "!=", ex.EQUALITY),
}  # fmt: skip


@element(*_BITS)
def _bits(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    bits, level, logic, logic_level = _BITS[op.definition.full_name]
    if dtype.kind == "bool":
        return binary(x[0], logic, x[1], logic_level)
    return narrowed(binary(x[0], bits, x[1], level), dtype)


@element("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    """The amount has been checked; the functions take it as an int."""
    name = op.definition.name
    amount = x[1] if dtype.bits <= 32 else cast("int", x[1])
    if name == "shrsi":
        return narrowed(binary(x[0], ">>", amount, ex.SHIFT), dtype)
    value = x[0]
    if name == "shrui" and dtype.bits < 32 and dtype.kind == "int":
        value = cast({8: "unsigned char", 16: "unsigned short"}[dtype.bits], value)
    return narrowed(call(f"go_{'shl' if name == 'shli' else 'shr'}_{suffix(dtype)}", value, amount), dtype)


@element("arith.dot4")
def _dot4(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    return call("go_dot4_small" if op.attribute("small") else "go_dot4", *x)


@element("arith.add4")
def _add4(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    return call("go_add4", *x)


@element("arith.cmpi")
def _cmpi(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    operator, level = _COMPARISONS[str(op.attributes["predicate"])]
    return binary(x[0], operator, x[1], level)


@element("arith.select")
def _select(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    condition, yes, no = x
    bound, wide = max(yes.bound, no.bound), yes.wide or no.wide
    yes_text, no_text = (e.at(ex.OR) for e in (yes, no))
    return Expr(f"{condition.at(ex.OR)} ? {yes_text} : {no_text}", ex.CHOICE, sum(e.cost for e in x) + 1, bound, wide)


# -- conversions -------------------------------------------------------------------------------------------------------


@element("arith.extf", "arith.truncf")
def _resize(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    target = dtype_of(op.results[0])
    if target.name == "f64":
        return to_double(x[0], dtype)
    if dtype.name == "f64":
        return from_double(x[0], target)
    return rounded(computed(x[0], dtype), target)


@element("arith.sitofp", "arith.uitofp")
def _to_float(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    target = dtype_of(op.results[0])
    if target.name == "bf16" and dtype.bits > 16:
        return call("go_i64_to_bf16", x[0]) if is_64(dtype) else call("go_to_bf16_64", cast("double", x[0]))
    value = cast("double" if target.name == "f64" else "float", x[0])  # f16: what float rounds is infinite in f16
    return rounded(value, target)


@element("arith.fptosi", "arith.fptoui")
def _to_integer(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    target = dtype_of(op.results[0])
    name = "i64" if target.name == "index" else target.name
    return call(f"go_to_{name}{'_64' if dtype.name == 'f64' else ''}", computed(x[0], dtype))


@element("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")
def _resize_integer(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    return cast(C_TYPES[dtype_of(op.results[0]).name], x[0])


@element("arith.bitcast")
def _bitcast(op: Operation, dtype: DType, x: Sequence[Expr]) -> Expr:
    target = dtype_of(op.results[0])
    if dtype == target:
        return x[0]
    bits = Expr(f"{x[0].at(ex.PRIMARY)}.bits", ex.PRIMARY, x[0].cost) if dtype.name in ("f16", "bf16") else x[0]
    if target.name in ("f16", "bf16"):
        return call("go_half_bits" if target.name == "f16" else "go_bf16_bits", bits)
    moved = {("f32", "i32"): "go_as_int", ("i32", "f32"): "go_as_float", ("f64", "i64"): "go_as_long", ("i64", "f64"): "go_as_double",
             ("f64", "index"): "go_as_long", ("index", "f64"): "go_as_double"}  # fmt: skip
    if (dtype.name, target.name) in moved:
        return call(moved[dtype.name, target.name], bits)
    return cast(C_TYPES[target.name], bits)


def is_known_amount(value: Value, bits: int) -> bool:
    """Whether shift amounts are known to be in range: constants, and what a constant masks."""
    most = _largest(value)
    return most is not None and most < bits


def _largest(value: Value) -> int | None:
    """The largest of integers that are known not to be negative; None when that isn't known."""
    op = value.defining_op
    if op is None:
        return None
    if op.name == "arith.constant":
        given = op.attribute("value")
        assert isinstance(given, Dense)
        numbers = given.array
        return int(numbers.max()) if numbers.size and np.all(numbers >= 0) else None
    if op.name in ("vector.broadcast", "vector.reshape", "arith.extsi", "arith.extui"):
        return _largest(op.operands[0])
    if op.name == "arith.andi":
        known = [n for n in map(_largest, op.operands) if n is not None]
        return min(known, default=None)
    return None
