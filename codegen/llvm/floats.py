"""``arith`` operations on floats and the ``math`` dialect.

f32 and f64 are computed as they are, f16 and bf16 in f32 and rounded, which for +, -, *, / and sqrt gives the bits of
one rounding.  The other functions of f32 and narrower are those of the C library in double, lane by lane, rounded once.
"""

from __future__ import annotations

from codegen.llvm import helpers
from codegen.llvm.operands import from_double, intrinsic, narrowed, operands, result_lanes, to_double, widened
from codegen.llvm.types import vector_of
from codegen.llvm.writer import Writer, dtype_of, emits
from ir.core import Operation

_BINARY = {"arith.addf": "fadd", "arith.subf": "fsub", "arith.mulf": "fmul", "arith.divf": "fdiv"}


@emits(*_BINARY)
def _binary(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    x, element = widened(w, x, dtype, lanes)
    y, _ = widened(w, y, dtype, lanes)
    value = w.set(f"{_BINARY[op.definition.full_name]} {vector_of(element, lanes)} {x}, {y}")
    w.names[op.results[0]] = narrowed(w, value, dtype, lanes)


@emits("arith.negf", "math.absf")
def _sign(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    negate = op.definition.full_name == "arith.negf"
    if dtype.name in ("f32", "f64"):
        element = "float" if dtype.name == "f32" else "double"
        w.names[op.results[0]] = w.set(f"fneg {vector_of(element, lanes)} {x}") if negate else intrinsic(w, "fabs", element, lanes, x)
        return
    bits = _bits16(w, x, dtype.name, lanes)
    vector = vector_of("i16", lanes)
    changed = w.set(f"xor {vector} {bits}, {w.splat('-32768', 'i16', lanes)}" if negate else f"and {vector} {bits}, {w.splat('32767', 'i16', lanes)}")
    w.names[op.results[0]] = _from_bits16(w, changed, dtype.name, lanes)


def _bits16(w: Writer, x: str, name: str, lanes: int) -> str:
    return x if name == "bf16" else w.set(f"bitcast {vector_of('half', lanes)} {x} to {vector_of('i16', lanes)}")


def _from_bits16(w: Writer, x: str, name: str, lanes: int) -> str:
    return x if name == "bf16" else w.set(f"bitcast {vector_of('i16', lanes)} {x} to {vector_of('half', lanes)}")


@emits("math.copysign")
def _copysign(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    if dtype.name in ("f32", "f64"):
        w.names[op.results[0]] = intrinsic(w, "copysign", "float" if dtype.name == "f32" else "double", lanes, x, y)
        return
    vector = vector_of("i16", lanes)
    size = w.set(f"and {vector} {_bits16(w, x, dtype.name, lanes)}, {w.splat('32767', 'i16', lanes)}")
    sign = w.set(f"and {vector} {_bits16(w, y, dtype.name, lanes)}, {w.splat('-32768', 'i16', lanes)}")
    w.names[op.results[0]] = _from_bits16(w, w.set(f"or {vector} {size}, {sign}"), dtype.name, lanes)


_INTRINSICS = {"math.sqrt": "sqrt", "math.floor": "floor", "math.ceil": "ceil", "math.trunc": "trunc", "math.roundeven": "roundeven"}


@emits(*_INTRINSICS)
def _intrinsic(w: Writer, op: Operation) -> None:
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    wide = [widened(w, x, dtype, lanes) for x in operands(w, op)]
    value = intrinsic(w, _INTRINSICS[op.definition.full_name], wide[0][1], lanes, *(x for x, _ in wide))
    w.names[op.results[0]] = narrowed(w, value, dtype, lanes)


_EXTREMES = {"arith.maximumf": "maximum", "arith.minimumf": "minimum"}


@emits(*_EXTREMES)
def _extreme(w: Writer, op: Operation) -> None:
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    (x, element), (y, _) = [widened(w, v, dtype, lanes) for v in operands(w, op)]
    largest, constants = op.definition.full_name == "arith.maximumf", [u.value.defining_op for u in op.operand_uses]
    if _has_range(w, element, lanes) and not any(c is not None and c.definition.full_name == "arith.constant" for c in constants):
        value = _of_range(w, element, lanes, x, y, largest)
    else:
        value = intrinsic(w, _EXTREMES[op.definition.full_name], element, lanes, x, y)
    w.names[op.results[0]] = narrowed(w, value, dtype, lanes)


def _has_range(w: Writer, element: str, lanes: int) -> bool:
    """Whether the processor has ``vrangeps`` (AVX-512) for such vectors."""
    bits = lanes * (64 if element == "double" else 32)
    wanted = ["avx512dq"] if bits == 512 else ["avx512dq", "avx512vl"]
    return bits in (128, 256, 512) and all(f in w.unit.features for f in wanted)


def _of_range(w: Writer, element: str, lanes: int, x: str, y: str, largest: bool) -> str:
    """``vrangeps``, which knows that -0 is below +0, and x + y where one is NaN: three instructions, where LLVM makes six of its own."""
    suffix, bits = ("pd", 64 * lanes) if element == "double" else ("ps", 32 * lanes)
    vector, mask = vector_of(element, lanes), f"i{max(8, lanes)}"
    rounding = ["i32"] if bits == 512 else []
    function = w.unit.declare(vector, f"llvm.x86.avx512.mask.range.{suffix}.{bits}", vector, vector, "i32", vector, mask, *rounding)
    way = "".join(f", {t} 4" for t in rounding)
    chosen = w.set(f"call {vector} {function}({vector} {x}, {vector} {y}, i32 {5 if largest else 4}, {vector} zeroinitializer, {mask} -1{way})")
    unordered = w.set(f"fcmp uno {vector} {x}, {y}")
    return w.set(f"select {vector_of('i1', lanes)} {unordered}, {vector} {w.set(f'fadd {vector} {x}, {y}')}, {vector} {chosen}")


@emits("math.rsqrt")
def _rsqrt(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    root = intrinsic(w, "sqrt", "double", lanes, to_double(w, x, dtype, lanes))
    value = w.set(f"fdiv {vector_of('double', lanes)} {w.splat('1.0', 'double', lanes)}, {root}")
    w.names[op.results[0]] = from_double(w, value, dtype, lanes)


@emits("math.fma")
def _fma(w: Writer, op: Operation) -> None:
    a, b, c = operands(w, op)
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    if dtype.name in ("f32", "f64"):
        element = "float" if dtype.name == "f32" else "double"
        w.names[op.results[0]] = intrinsic(w, "fma", element, lanes, a, b, c)
        return
    # In double the product is exact; the sum is rounded to odd there, then to float, and only then to 16 bits.
    a, b, c = (to_double(w, x, dtype, lanes) for x in (a, b, c))
    double, integer, flag = (vector_of(t, lanes) for t in ("double", "i64", "i1"))
    product = w.set(f"fmul {double} {a}, {b}")
    total = w.set(f"fadd {double} {product}, {c}")
    back = w.set(f"fsub {double} {total}, {product}")
    left = w.set(f"fsub {double} {product}, {w.set(f'fsub {double} {total}, {back}')}")
    error = w.set(f"fadd {double} {left}, {w.set(f'fsub {double} {c}, {back}')}")
    inexact = w.set(f"fcmp one {double} {error}, {w.splat('0.0', 'double', lanes)}")  # false for NaN, which infinities give
    bits = w.set(f"bitcast {double} {total} to {integer}")
    signs = w.set(f"xor {integer} {bits}, {w.set(f'bitcast {double} {error} to {integer}')}")
    away = w.set(f"icmp slt {integer} {signs}, {w.splat('0', 'i64', lanes)}")
    toward = w.set(f"add {integer} {bits}, {w.set(f'sext {flag} {away} to {integer}')}")
    odd = w.set(f"or {integer} {toward}, {w.splat('1', 'i64', lanes)}")
    chosen = w.set(f"select {flag} {inexact}, {integer} {odd}, {integer} {bits}")
    w.names[op.results[0]] = from_double(w, w.set(f"bitcast {integer} {chosen} to {double}"), dtype, lanes)


@emits("math.isnan")
def _isnan(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    lanes = result_lanes(op)
    wide, element = widened(w, x, dtype_of(op.operand_uses[0].value), lanes)
    w.result(op, f"fcmp uno {vector_of(element, lanes)} {wide}, {wide}")


_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


@emits("arith.cmpf")
def _cmpf(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    dtype, lanes = dtype_of(op.operand_uses[0].value), result_lanes(op)
    x, element = widened(w, x, dtype, lanes)
    y, _ = widened(w, y, dtype, lanes)
    w.result(op, f"fcmp {_COMPARE[str(op.attributes['predicate'])]} {vector_of(element, lanes)} {x}, {y}")


# -- functions of the C library ----------------------------------------------------------------------------------------

_LIBRARY = {
    "math.exp": "exp", "math.expm1": "expm1", "math.log": "log", "math.log1p": "log1p", "math.sin": "sin", "math.cos": "cos", "math.tan": "tan",
    "math.tanh": "tanh", "math.erf": "erf", "math.erfc": "erfc", "math.powf": "pow", "arith.remf": "fmod",
}  # fmt: skip


@emits(*_LIBRARY)
def _library(w: Writer, op: Operation) -> None:
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    wide = [to_double(w, x, dtype, lanes) for x in operands(w, op)]
    function = w.unit.external("double", _LIBRARY[op.definition.full_name], *(["double"] * len(wide)))
    w.names[op.results[0]] = from_double(w, _lane_by_lane(w, function, wide, ["double"] * len(wide), lanes), dtype, lanes)


def _lane_by_lane(w: Writer, function: str, args: list[str], elements: list[str], lanes: int) -> str:
    """Calls a function of scalars, with a double as its result, for every lane."""
    if not lanes:
        return w.set(f"call double {function}({', '.join(f'{e} {a}' for e, a in zip(elements, args, strict=True))})")
    vector = vector_of("double", lanes)
    total = "poison"
    for lane in range(lanes):
        scalars = [w.set(f"extractelement {vector_of(e, lanes)} {a}, i32 {lane}") for e, a in zip(elements, args, strict=True)]
        value = w.set(f"call double {function}({', '.join(f'{e} {s}' for e, s in zip(elements, scalars, strict=True))})")
        total = w.set(f"insertelement {vector} {total}, double {value}, i32 {lane}")
    return total


_OWN = {
    "math.normcdf": helpers.normal_distribution,
    "math.gelu": helpers.gelu,
    "math.gelu_tanh": helpers.gelu_tanh,
    "math.sigmoid": helpers.sigmoid,
    "math.silu": helpers.silu,
}


@emits(*_OWN)
def _own(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    function = _OWN[op.definition.full_name](w.unit)
    wide = [to_double(w, x, dtype, lanes)]
    w.names[op.results[0]] = from_double(w, _lane_by_lane(w, function, wide, ["double"], lanes), dtype, lanes)


@emits("math.ldexp")
def _ldexp(w: Writer, op: Operation) -> None:
    x, n = operands(w, op)
    dtype, lanes = dtype_of(op.results[0]), result_lanes(op)
    exponent = dtype_of(op.operand_uses[1].value)
    wide = vector_of("i64", lanes)
    if exponent.bits < 64:
        extend = "zext" if exponent.kind == "uint" else "sext"
        n = w.set(f"{extend} {vector_of(f'i{exponent.bits}', lanes)} {n} to {wide}")
    n = intrinsic(w, "smax", "i64", lanes, intrinsic(w, "smin", "i64", lanes, n, w.splat("5000", "i64", lanes)), w.splat("-5000", "i64", lanes))
    n = w.set(f"trunc {wide} {n} to {vector_of('i32', lanes)}")
    function = w.unit.external("double", "ldexp", "double", "i32")
    value = _lane_by_lane(w, function, [to_double(w, x, dtype, lanes), n], ["double", "i32"], lanes)
    w.names[op.results[0]] = from_double(w, value, dtype, lanes)


# -- conversions -------------------------------------------------------------------------------------------------------


@emits("arith.extf", "arith.truncf")
def _resize(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    lanes = result_lanes(op)
    source, target = dtype_of(op.operand_uses[0].value), dtype_of(op.results[0])
    if target.name == "f64":
        w.names[op.results[0]] = to_double(w, x, source, lanes)
    elif source.name == "f64":
        w.names[op.results[0]] = from_double(w, x, target, lanes)
    else:
        w.names[op.results[0]] = narrowed(w, widened(w, x, source, lanes)[0], target, lanes)


@emits("arith.sitofp", "arith.uitofp")
def _to_float(w: Writer, op: Operation) -> None:
    (x,) = operands(w, op)
    lanes = result_lanes(op)
    source, target = dtype_of(op.operand_uses[0].value), dtype_of(op.results[0])
    bits = 1 if source.kind == "bool" else source.bits
    convert = "sitofp" if op.definition.full_name == "arith.sitofp" else "uitofp"
    vector = vector_of(f"i{bits}", lanes)
    if target.name == "bf16" and bits > 16:
        w.names[op.results[0]] = from_double(w, _exact_enough(w, x, bits, lanes), target, lanes)
        return
    element = "double" if target.name == "f64" else "float"  # f16: what float rounds is infinite in f16
    value = w.set(f"{convert} {vector} {x} to {vector_of(element, lanes)}")
    w.names[op.results[0]] = narrowed(w, value, target, lanes)


def _exact_enough(w: Writer, x: str, bits: int, lanes: int) -> str:
    """A double that rounds to bf16 as an i32 or i64 does: of large numbers the low bits are put into one."""
    double = vector_of("double", lanes)
    vector = vector_of(f"i{bits}", lanes)
    exact = w.set(f"sitofp {vector} {x} to {double}")
    if bits == 32:
        return exact
    high = w.set(f"ashr {vector} {x}, {w.splat('10', 'i64', lanes)}")
    low = w.set(f"and {vector} {x}, {w.splat('1023', 'i64', lanes)}")
    sticky = w.set(f"zext {vector_of('i1', lanes)} {w.set(f'icmp ne {vector} {low}, ' + w.splat('0', 'i64', lanes))} to {vector}")
    kept = w.set(f"sitofp {vector} {w.set(f'or {vector} {high}, {sticky}')} to {double}")
    scaled = w.set(f"fmul {double} {kept}, {w.splat('0x4090000000000000', 'double', lanes)}")
    moved = w.set(f"add {vector} {x}, {w.splat(str(2**53), 'i64', lanes)}")
    small = w.set(f"icmp ule {vector} {moved}, {w.splat(str(2**54), 'i64', lanes)}")
    return w.set(f"select {vector_of('i1', lanes)} {small}, {double} {exact}, {double} {scaled}")


@emits("arith.fptosi", "arith.fptoui")
def _to_integer(w: Writer, op: Operation) -> None:
    from codegen.llvm.types import suffix

    (x,) = operands(w, op)
    lanes = result_lanes(op)
    wide, element = widened(w, x, dtype_of(op.operand_uses[0].value), lanes)
    integer = f"i{dtype_of(op.results[0]).bits}"
    kind = "fptosi" if op.definition.full_name == "arith.fptosi" else "fptoui"
    result, vector = vector_of(integer, lanes), vector_of(element, lanes)
    function = w.unit.declare(result, f"llvm.{kind}.sat.{suffix(integer, lanes)}.{suffix(element, lanes)}", vector)
    w.result(op, f"call {result} {function}({vector} {wide})")
