"""arith and math: the bits of the graph dialect on all kinds of values, types, errors."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from dialects.arith import bits, cast, comparison, floats, integers
from dialects.arith.constant import constant
from dialects.graph import arithmetic, elementwise, special
from dialects.graph import cast as graph_cast
from dialects.graph import comparison as graph_comparison
from dialects.math import exact, functions
from ir.attributes import Dense
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.opdef import ExecutionError
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import DTYPES, ScalarType, VectorType
from ir.verifier import verify_module

FLOATS = ["f64", "f32", "f16", "bf16"]
SIGNED = ["i64", "i32", "i16", "i8"]
INTEGERS = [*SIGNED, "u8"]

LINE = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 0.1, 65519.0, 65520.0, -65520.0, 1e-40, -1e-40, 3e38, -3e38, 88.8, -104.5]
LINE += [np.inf, -np.inf, np.nan, 2.0**63, -(2.0**63), 127.5, 128.0, 255.9, -128.9, 1e-8, 1e300, 5e-324, 0.3, -0.75, 100.25]


def line(name):
    """Values of every kind of an element type."""
    dtype = DTYPES[name]
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return np.array(LINE, np.float64).astype(dtype.numpy)
    if name == "bool":
        return np.array([False, True])
    low, high = dtype.min_value, dtype.max_value
    numbers = [low, low + 1, high, high - 1, high // 2, 0, 1, 2, 3, 7, 100, *([] if name == "u8" else [-1, -2, -3, -7, -100])]
    return np.array(numbers).astype(dtype.numpy)


def pairs(name):
    values = line(name)
    x, y = np.meshgrid(values, values)
    return x.reshape(-1), y.reshape(-1)


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    unsigned = f"u{a.dtype.itemsize}"
    assert np.array_equal(a.reshape(-1).view(unsigned), b.reshape(-1).view(unsigned))


def vector(dtype, array):
    return VectorType(DTYPES[dtype], array.shape)


BINARY_FLOATS = [
    (floats.addf, arithmetic.add),
    (floats.subf, arithmetic.sub),
    (floats.mulf, arithmetic.mul),
    (floats.divf, arithmetic.div),
    (floats.remf, arithmetic.rem),
    (floats.maximumf, arithmetic.maximum),
    (floats.minimumf, arithmetic.minimum),
    (functions.powf, arithmetic.pow_),
]
BINARY_SIGNED = [
    (integers.addi, arithmetic.add),
    (integers.subi, arithmetic.sub),
    (integers.muli, arithmetic.mul),
    (integers.maxsi, arithmetic.maximum),
    (integers.minsi, arithmetic.minimum),
    (bits.andi, arithmetic.bit_and),
    (bits.ori, arithmetic.bit_or),
    (bits.xori, arithmetic.bit_xor),
]
DIVISIONS = [
    (integers.divsi, arithmetic.truncdiv),
    (integers.floordivsi, arithmetic.floordiv),
    (integers.remsi, arithmetic.rem),
    (integers.modsi, arithmetic.mod),
]
UNARY = [
    (floats.negf, elementwise.neg),
    (functions.erfc, special.erfc),
    (exact.absf, elementwise.abs_),
    (exact.roundeven, elementwise.round_),
    *((getattr(functions, n), getattr(elementwise, n)) for n in ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh")),
    (functions.erf, elementwise.erf),
    *((getattr(exact, n), getattr(elementwise, n)) for n in ("floor", "ceil", "trunc", "isnan")),
]


def name_of(case):
    return case.full_name if hasattr(case, "full_name") else None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("lower", "graph"), BINARY_FLOATS, ids=name_of)
def test_two_floats(lower, graph, dtype):
    x, y = pairs(dtype)
    same_bits(lower(x, y), graph(x, y))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("lower", "graph"), UNARY, ids=name_of)
def test_one_float(lower, graph, dtype):
    same_bits(lower(line(dtype)), graph(line(dtype)))
    same_bits(lower(line(dtype)[5]), graph(line(dtype)[5]))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize(("lower", "graph"), BINARY_SIGNED, ids=name_of)
def test_two_signed_integers(lower, graph, dtype):
    x, y = pairs(dtype)
    same_bits(lower(x, y), graph(x, y))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize(("lower", "graph"), DIVISIONS, ids=name_of)
def test_divisions(lower, graph, dtype):
    x, y = pairs(dtype)
    x, y = x[y != 0], y[y != 0]
    same_bits(lower(x, y), graph(x, y))
    with pytest.raises(ExecutionError, match=r"division by zero at \[1\]: x is 7, y is 0"):
        lower(np.array([1, 7], x.dtype), np.array([1, 0], x.dtype))


def test_unsigned():
    x, y = pairs("u8")
    for lower, graph in [
        (integers.addi, arithmetic.add),
        (integers.subi, arithmetic.sub),
        (integers.muli, arithmetic.mul),
        (integers.maxui, arithmetic.maximum),
        (integers.minui, arithmetic.minimum),
        (bits.xori, arithmetic.bit_xor),
    ]:
        same_bits(lower(x, y), graph(x, y))
    x, y = x[y != 0], y[y != 0]
    same_bits(integers.divui(x, y), arithmetic.floordiv(x, y))
    same_bits(integers.remui(x, y), arithmetic.mod(x, y))
    for definition in (integers.divui, integers.remui):
        with pytest.raises(ExecutionError, match="division by zero"):
            definition(np.uint8(3), np.uint8(0))
    for definition in (integers.divsi, integers.maxsi, bits.shrsi):
        with pytest.raises(GraphError, match="signed integers"):
            definition(np.uint8(3), np.uint8(1))
    for definition in (integers.divui, integers.maxui):
        with pytest.raises(GraphError, match="unsigned integers"):
            definition(np.int32(3), np.int32(1))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(dtype):
    width = DTYPES[dtype].bits
    x, y = (a.reshape(-1) for a in np.meshgrid(line(dtype), np.arange(width).astype(DTYPES[dtype].numpy)))
    same_bits(bits.shli(x, y), arithmetic.shift_left(x, y))
    logical = [(int(a) % 2**width) >> int(b) for a, b in zip(x, y, strict=True)]
    same_bits(bits.shrui(x, y), np.array([v - 2**width if dtype != "u8" and v >= 2 ** (width - 1) else v for v in logical]).astype(x.dtype))
    if dtype != "u8":
        same_bits(bits.shrsi(x, y), arithmetic.shift_right(x, y))
    for definition in (bits.shli, bits.shrui):
        with pytest.raises(ExecutionError, match=rf"shift amount outside 0..{width - 1}"):
            definition(x[:1], np.array([width]).astype(x.dtype))


def test_logic_on_bool():
    x, y = pairs("bool")
    same_bits(bits.andi(x, y), graph_comparison.logical_and(x, y))
    same_bits(bits.ori(x, y), graph_comparison.logical_or(x, y))
    same_bits(bits.xori(x, y), graph_comparison.logical_xor(x, y))
    with pytest.raises(GraphError, match="integer"):
        integers.addi(x, y)


PREDICATES = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_comparisons(dtype, predicate):
    x, y = pairs(dtype)
    definition = comparison.cmpf if dtype in FLOATS else comparison.cmpi
    same_bits(definition(x, y, predicate=predicate), getattr(graph_comparison, PREDICATES[predicate])(x, y))


def test_comparisons_of_bool_have_no_order():
    x, y = pairs("bool")
    same_bits(comparison.cmpi(x, y, predicate="eq"), x == y)
    same_bits(comparison.cmpi(x, y, predicate="ne"), x != y)
    with pytest.raises(GraphError, match="bool has no order"):
        comparison.cmpi(x, y, predicate="lt")


def test_select_keeps_bits():
    nan = np.array([0x7FC00001, 0x80000000], np.uint32).view(np.float32)
    cond = np.array([True, False])
    same_bits(comparison.select(cond, nan, nan[::-1].copy()), np.array([0x7FC00001, 0x7FC00001], np.uint32).view(np.float32))
    same_bits(comparison.select(np.True_, nan, np.float32(0)), nan)
    same_bits(comparison.select(cond, np.array([False, False]), np.array([True, True])), ~cond)


def casts_between(source, target):
    """The operation that casts by value, None where it takes two."""
    a, b = DTYPES[source], DTYPES[target]
    if a.is_float and b.is_float:
        return cast.extf if b.bits > a.bits else cast.truncf if b.bits < a.bits else None
    if a.is_float:
        return {"int": cast.fptosi, "uint": cast.fptoui}.get(b.kind)
    if b.is_float:
        return cast.sitofp if a.kind == "int" else cast.uitofp
    if b.kind == "bool":
        return None
    if a.kind == "bool":
        return cast.extui
    if b.bits > a.bits:
        return cast.extsi if a.kind == "int" else cast.extui
    return cast.trunci if b.bits < a.bits else None


@pytest.mark.parametrize(("source", "target"), list(itertools.product([*FLOATS, *INTEGERS, "bool"], repeat=2)))
def test_casts(source, target):
    definition = casts_between(source, target)
    x = line(source)
    if definition is None:
        for each in (cast.extf, cast.truncf, cast.extsi, cast.extui, cast.trunci, cast.fptosi, cast.fptoui):
            with pytest.raises(GraphError):
                each(x, result_type=vector(target, x))
        return
    same_bits(definition(x, result_type=vector(target, x)), graph_cast.cast(x, dtype=DTYPES[target]))
    same_bits(definition(x[1], result_type=ScalarType(DTYPES[target])), graph_cast.cast(x[1:2], dtype=DTYPES[target])[0])


def test_large_integers_round_once():
    x = np.array([2**62 + 2**54 + 1, -(2**62) - 2**54 - 1, 2**63 - 1], np.int64)
    same_bits(cast.sitofp(x, result_type=vector("bf16", x)), graph_cast.cast(x, dtype=DTYPES["bf16"]))
    same_bits(cast.sitofp(x, result_type=vector("f32", x)), x.astype(np.float32))


@pytest.mark.parametrize(("source", "target"), [("f32", "i32"), ("i32", "f32"), ("f64", "i64"), ("bf16", "i16"), ("f16", "bf16"), ("u8", "i8")])
def test_bitcast(source, target):
    x = line(source)
    same_bits(cast.bitcast(x, result_type=vector(target, x)), x.view(DTYPES[target].numpy))
    same_bits(cast.bitcast(x[3], result_type=ScalarType(DTYPES[target])), x.view(DTYPES[target].numpy)[3])


def test_bitcast_keeps_the_payload():
    x = np.array([0x7F800001, 0x7FC12345], np.uint32).view(np.float32)
    same_bits(cast.bitcast(x, result_type=vector("i32", x)), x.view(np.int32))


INDEX_CAST = """
graph @main(%A: memref<{0}[S]>, %C: memref<{1}[S]>) {{
  linalg.generic(i < S, %a = %A[i], %c = %C[i]) {{
    %r = arith.index_cast(%a) : {1}
    yield %r
  }}
  return
}}
"""


def test_index_cast():
    source = INDEX_CAST
    for dtype in [*INTEGERS, "bool"]:
        x = line(dtype)
        out = np.zeros(x.shape, np.int64)
        run(source.format(dtype, "index"), x, out)
        assert out.tolist() == x.astype(np.int64).tolist()
    wide = np.array([2**40 + 5, -1, 300], np.int64)
    out = np.zeros(3, np.uint8)
    run(source.format("index", "u8"), wide, out)
    assert out.tolist() == [5, 255, 44]
    for wrong in [("i32", "i64"), ("index", "index"), ("index", "f32")]:
        with pytest.raises(GraphError, match="index_cast"):
            verify_module(parse_module(source.format(*wrong)))


def test_the_remaining_functions():
    for dtype in FLOATS:
        x, y = pairs(dtype)
        sign = np.signbit(y)
        got = exact.copysign(x, y)
        assert np.array_equal(np.signbit(got), sign) and np.array_equal(np.abs(got), np.abs(x), equal_nan=True)
    x = line("i32")
    same_bits(exact.absi(x), elementwise.abs_(x))


def test_ldexp():
    x = np.float32([1.5, -1.5, 0, -0.0, np.inf, np.nan, 1, 1, 1, 3e38, 1e-45, 1.5])
    n = np.array([4, -3, 7, 7, -9, 9, 127, 128, -149, -200, 149, -150], np.int32)
    with np.errstate(over="ignore"):
        want = np.ldexp(x.astype(np.float64), n).astype(np.float32)
    same_bits(exact.ldexp(x, n), want)
    same_bits(exact.ldexp(x, np.int64(2**62)), np.float32([np.inf, -np.inf, 0, -0.0, np.inf, np.nan, *[np.inf] * 6]))
    same_bits(exact.ldexp(x[:4], np.int64(-(2**62))), np.float32([0, -0.0, 0, -0.0]))
    assert exact.ldexp(np.float64(3.0), np.int8(-128)) == 3.0 * 2.0**-128
    assert exact.ldexp(np.array([1.0, 3.0]).astype(ml_dtypes.bfloat16), np.uint8(3)).astype(float).tolist() == [8, 24]


def exact_fma(a, b, c, dtype):
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    low = dtype(float(exact)) if abs(exact) < 2**1000 else dtype(np.inf if exact > 0 else -np.inf)
    candidates = [low, np.nextafter(low, dtype(np.inf)), np.nextafter(low, dtype(-np.inf))]
    best = min((c for c in candidates if np.isfinite(c)), key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(f"u{c.itemsize}")) & 1))
    return best


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(dtype):
    generator = np.random.default_rng(7)
    digits = 2.0 ** -np.finfo(dtype).nmant
    a = (1 + generator.integers(1, 9, 400) * digits).astype(dtype)
    b = (1 + generator.integers(1, 9, 400) * digits).astype(dtype)
    c = (-(a.astype(np.longdouble) * b) + generator.integers(-3, 3, 400) * digits * digits * 64).astype(dtype)
    got = exact.fma(a, b, c)
    for i in range(len(a)):
        if Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i])) != 0:
            assert got[i] == exact_fma(a[i], b[i], c[i], dtype), i
    tie = exact.fma(dtype(1), dtype(1 + digits), dtype(digits / 2))
    assert tie == 1 + 2 * digits  # halfway: to even
    over = exact.fma(np.finfo(dtype).max, dtype(2), dtype(0))
    assert over == np.inf and np.signbit(exact.fma(dtype(-0.0), dtype(1), dtype(-0.0)))
    assert exact.fma(np.finfo(dtype).max, dtype(2), -np.finfo(dtype).max) == np.finfo(dtype).max
    assert np.isnan(exact.fma(dtype(np.inf), dtype(0), dtype(1)))


def test_broadcasting():
    x, y = np.float32([[1], [2]]), np.float32([10, 20, 30])
    same_bits(floats.addf(x, y), x + y)
    same_bits(floats.addf(x, np.float32(1)), x + 1)
    result = floats.addf.infer([ScalarType(DTYPES["f32"]), VectorType(DTYPES["f32"], (4,))], ["x", "y"], {})
    assert result == (VectorType(DTYPES["f32"], (4,)),)
    one = floats.addf.infer([ScalarType(DTYPES["f32"]), VectorType(DTYPES["f32"], (1,))], ["x", "y"], {})
    assert one == (VectorType(DTYPES["f32"], (1,)),)  # a vector of one element is no scalar
    with pytest.raises(GraphError, match="can't be broadcast"):
        floats.addf(np.float32([1, 2]), y)
    with pytest.raises(GraphError, match="element types differ"):
        floats.addf(np.float32(1), np.float64(1))
    with pytest.raises(GraphError, match="float"):
        floats.addf(np.int32(1), np.int32(1))


# -- in programs -------------------------------------------------------------------------------------------------------


def run(text, *arrays, **options):
    module = parse_module(text)
    verify_module(module)
    return Interpreter(module, **options).run(module.graphs["main"], list(arrays))


def in_program(body, result, size=3):
    return f"graph @main(%C: memref<{result}[{size}]>) {{\n{body}  return\n}}\n"


@pytest.mark.parametrize(
    ("literal", "type_", "want"),
    [
        ("1.5", "f32", np.float32(1.5)),
        ("0", "index", np.int64(0)),
        ("-3", "i8", np.int8(-3)),
        ("true", "bool", np.True_),
        ("-inf", "bf16", ml_dtypes.bfloat16(-np.inf)),
        ("0.1", "f16", np.float16(0.1)),
        ("bits(0x7fc00001)", "f32", np.array(0x7FC00001, np.uint32).view(np.float32)[()]),
    ],
)
def test_constants(literal, type_, want):
    text = in_program(f"  %c = arith.constant({literal}) : {type_}\n  memref.store(%c, %C[1])\n", type_)
    module = parse_module(text)
    assert print_module(module) == text
    verify_module(module)
    assert next(iter(module.walk())).result.type == ScalarType(DTYPES[type_])
    out = np.zeros(3, DTYPES[type_].numpy)
    Interpreter(module).run(module.graphs["main"], [out])
    same_bits(out[1], want)


def test_vector_constants():
    text = in_program("  %c = arith.constant(2.5) : vector<f32[3]>\n  vector.store(%c, %C[0:+3])\n", "f32")
    assert print_module(parse_module(text)) == text
    out = np.zeros(3, np.float32)
    run(text, out)
    assert out.tolist() == [2.5] * 3
    run(text.replace("2.5", "[1, -0.0, nan]"), out)
    same_bits(out, np.float32([1, -0.0, np.nan]))
    assert constant(Dense(np.float32(2))) == 2
    assert constant(Dense(np.float32([2, 3]))).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("arith.constant(1.5) : f32[]", "scalar or vector"),
        ("arith.constant(1.5) : i32", "expected an integer"),
        ("arith.constant(300) : u8", "does not fit"),
        ("arith.constant([1, 2]) : vector<f32[3]>", "declared"),
        ("arith.constant(true) : index", "expected an integer"),
        ("constant(1.5) : f32", "a constant is a tensor"),
        ("arith.extf(%h)", "the type of the result is not written"),
        ("arith.extf(%h) : vector<f32[4]>", "shape of the operand"),
        ("arith.extf(%h) : bf16", "a wider float type"),
        ("arith.truncf(%h) : f32", "a narrower float type"),
        ("arith.bitcast(%h) : i32", "same width"),
        ("arith.bitcast(%h) : bool", "bool has no bits"),
        ('arith.cmpf(%h, %h, predicate="olt")', "one of"),
        ("arith.negf(%t)", "expected a float scalar or vector, found f32"),
        ("arith.addi(%h, %h)", "integer scalar or vector"),
    ],
)
def test_errors(call, message):
    text = f"graph @main(%t: f32[]) {{\n  %h = arith.constant(1.0) : f16\n  %x = {call}\n  return\n}}\n"
    with pytest.raises(GraphError, match=message):
        verify_module(parse_module(text))


def test_division_by_zero_names_the_operation():
    text = in_program("  %a = memref.load(%C[0]) : i32\n  %q = arith.divsi(%a, %a) : i32\n  memref.store(%q, %C[1])\n", "i32")
    with pytest.raises(GraphError) as caught:
        run(text, np.zeros(3, np.int32))
    message = str(caught.value)
    assert "arith.divsi: integer division by zero: x is 0, y is 0" in message and ":3:" in message
    assert message.count("arith.divsi") == 2  # once in the message, once in the line that is shown
