"""expand-math: how far each function is from exact on all kinds of floats, special values, and what the code is made of."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from pass_checks import load, operations, optimize

from dialects.graph import _special
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.infra.base import PassContext
from passes.infra.verify_exec import compare_modules
from passes.pipelines import load_pipeline
from passes.vector._trigonometry import TWO_OVER_PI
from passes.vector.expand_math import EXPANSIONS, ExpandMath

WIDE = np.longdouble


def _gelu(x):
    return np.where(np.isneginf(x), -0.0, x * _special.normcdf(x))


def _silu(x):
    wide = np.maximum(x.astype(WIDE), -1000)
    return wide / (1 + np.exp(-wide))


def _gelu_tanh(x):
    wide = np.maximum(x.astype(WIDE), -100)
    slope = 2 * np.sqrt(2 / WIDE("3.14159265358979323846264338327950288"))
    return wide / (1 + np.exp(-slope * (wide + WIDE(0.044715) * wide**3)))


EXACT = {
    "exp": lambda x: np.exp(x.astype(WIDE)),
    "expm1": lambda x: np.expm1(x.astype(WIDE)),
    "tanh": lambda x: np.tanh(x.astype(WIDE)),
    "log": lambda x: np.log(x.astype(WIDE)),
    "log1p": lambda x: np.log1p(x.astype(WIDE)),
    "rsqrt": lambda x: 1 / np.sqrt(x.astype(WIDE)),
    "sigmoid": lambda x: np.exp(np.minimum(x.astype(WIDE), 0)) / (1 + np.exp(-np.abs(x.astype(WIDE)))),
    "silu": _silu,
    "erf": _special.erf,
    "erfc": _special.erfc,
    "normcdf": _special.normcdf,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "sin": lambda x: np.sin(x.astype(WIDE)),
    "cos": lambda x: np.cos(x.astype(WIDE)),
    "tan": lambda x: np.tan(x.astype(WIDE)),
}
"""In more than f32 has; f64 is enough."""

BOUNDS = {
    "exp": 0.9,
    "expm1": 1.6,
    "tanh": 1.6,
    "sigmoid": 2.5,
    "silu": 2.4,
    "erf": 2.0,
    "erfc": 3.0,
    "normcdf": 3.0,
    "gelu": 3.5,
    "gelu_tanh": 2.4,
    "log": 1.0,
    "log1p": 1.6,
    "rsqrt": 0.9,
    "sin": 1.6,
    "cos": 1.6,
    "tan": 3.5,
}
"""In ulp of the exact result; that of denormals is 2**-149."""

RANGES = {
    "exp": [(-104.5, -86), (-88, 89), (-1, 1)],
    "expm1": [(-20, 89), (-2, 2), (-0.2, 0.2)],
    "tanh": [(-10, 10), (-0.6, 0.6)],
    "sigmoid": [(-104.5, 20), (-2, 2), (-88, -86)],
    "silu": [(-109, 20), (-2, 2), (-109, -100)],
    "erf": [(-4, 4), (-0.5, 0.5)],
    "erfc": [(-4.5, 10.5), (-1, 1), (9, 10.3)],
    "normcdf": [(-14.6, 6), (-2, 2), (-14.4, -12)],
    "gelu": [(-14.6, 6), (-2, 2), (-14.4, -12)],
    "gelu_tanh": [(-11.1, 6.5), (-2, 2), (-10.6, -10)],
    "log": [(0, 4), (0.5, 1.5), (0.95, 1.05)],
    "log1p": [(-1, 4), (-0.6, 0.6), (-1, -0.99)],
    "rsqrt": [(0, 4)],
    "sin": [(-10, 10), (-1, 1), (-1e6, 1e6), (-1e20, 1e20)],
    "cos": [(-10, 10), (-1, 1), (-1e6, 1e6), (-1e20, 1e20)],
    "tan": [(-10, 10), (-1, 1), (-1e6, 1e6), (-1e20, 1e20)],
}
"""Where the results are interesting."""

SPECIAL = {
    # function: at -inf, -0, +0, inf
    "exp": (0.0, 1.0, 1.0, math.inf),
    "expm1": (-1.0, -0.0, 0.0, math.inf),
    "tanh": (-1.0, -0.0, 0.0, 1.0),
    "sigmoid": (0.0, 0.5, 0.5, 1.0),
    "silu": (-0.0, -0.0, 0.0, math.inf),
    "erf": (-1.0, -0.0, 0.0, 1.0),
    "erfc": (2.0, 1.0, 1.0, 0.0),
    "normcdf": (0.0, 0.5, 0.5, 1.0),
    "gelu": (-0.0, -0.0, 0.0, math.inf),
    "gelu_tanh": (-0.0, -0.0, 0.0, math.inf),
    "log": (math.nan, -math.inf, -math.inf, math.inf),
    "log1p": (math.nan, -0.0, 0.0, math.inf),
    "rsqrt": (math.nan, -math.inf, math.inf, 0.0),
    "sin": (math.nan, -0.0, 0.0, math.nan),
    "cos": (math.nan, 1.0, 1.0, math.nan),
    "tan": (math.nan, -0.0, 0.0, math.nan),
}


def program(function: str, shape: tuple[int, ...], dtype: str = "f32") -> str:
    """A graph that computes a vector of results at once."""
    type_ = f"{dtype}[{', '.join(map(str, shape))}]"
    place = ", ".join(f"0:+{s}" for s in shape)
    return f"""\
graph @main(%A: memref<{type_}>, %C: memref<{type_}>) {{
  %x = vector.load(%A[{place}]) : vector<{type_}>
  %y = math.{function}(%x) : vector<{type_}>
  vector.store(%y, %C[{place}])
  return
}}
"""


def run(module: Module, x: np.ndarray) -> np.ndarray:
    """What the program stores for ``x``."""
    y = np.zeros_like(x)
    Interpreter(module).run(module.main, [x, y])
    return y


def expanded(function: str, x: np.ndarray) -> np.ndarray:
    module = load(program(function, x.shape))
    assert ExpandMath().run(module, PassContext())
    return run(module, x)


def neighbours(values: list[float]) -> np.ndarray:
    """Some floats on either side of each value, and of its negative."""
    bits = np.array(values, np.float32).view(np.int32)
    around = (bits[:, None] + np.arange(-40, 41, dtype=np.int32)).reshape(-1).view(np.float32)
    return np.concatenate([around, -around])


THRESHOLDS = [
    *(88.72284, 89.0, 104.0, 103.97208, 87.33655, 20.0, 17.32868, 10.0, 9.010913, 0.3, 3.93, 3.8325, 14.5, 14.17, 10.25, 10.05, 12.98),
    *(1.0, 2.0, 4.0, 0.5, 0.25, math.sqrt(0.5), math.sqrt(2.0), 2.0**-25, 2.0**-24, 2.0**24, 2.0**126, 2.0**-126, 2.0**-64, 2.0**-32),
    *(0.34657359 * n for n in range(1, 60)),
    *(math.sqrt(0.34657359 * n) for n in range(1, 60)),
    *(math.pi / 4 * n for n in (1, 2, 3, 4, 5, 8, 100, 355, 12345, 10**8)),
    *(16367173.0 * 2.0**72, 13176795.0),  # near multiples of pi / 2
]


def sample(function: str) -> np.ndarray:
    """Every exponent with either sign, the interesting ranges, denormals, and what is next to thresholds."""
    generator = np.random.default_rng(1)
    anything = generator.integers(0, 2**32, 60_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ranges = [generator.uniform(low, high, 40_000).astype(np.float32) for low, high in RANGES[function]]
    denormal = generator.integers(0, 2**23, 2_000).astype(np.uint32).view(np.float32)
    ends = np.array([np.finfo(np.float32).max, np.finfo(np.float32).tiny, 1e-45], np.float32)
    return np.concatenate([anything, *ranges, denormal, -denormal, ends, -ends, neighbours(THRESHOLDS)])


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The error in units of the last place of the exact result."""
    exact = exact.astype(WIDE)
    exponent = np.frexp(np.maximum(np.abs(exact), WIDE(2.0) ** -126))[1] - 24
    return np.abs(found.astype(WIDE) - exact) / np.ldexp(WIDE(1.0), exponent)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", BOUNDS)
def test_errors(function: str) -> None:
    x = sample(function)
    found, exact = expanded(function, x), EXACT[function](x)
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True)
    assert np.array_equal(np.signbit(found[finite]), np.signbit(rounded[finite]))
    errors = ulps(found[finite], exact[finite])
    worst = int(np.argmax(errors))
    assert errors[worst] <= BOUNDS[function], f"{errors[worst]} ulp at {x[finite][worst]!r}"


def test_every_expansion_is_measured() -> None:
    assert {f"math.{n}" for n in (*BOUNDS, "powf")} == set(EXPANSIONS) and set(BOUNDS) == set(EXACT) == set(SPECIAL) == set(RANGES)


@pytest.mark.parametrize("function", SPECIAL)
def test_special_values(function: str) -> None:
    x = np.array([-np.inf, -0.0, 0.0, np.inf, np.nan, -np.nan], np.float32)
    x = np.concatenate([x, np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)])
    found = expanded(function, x)
    want = np.array(SPECIAL[function], np.float32)
    assert np.array_equal(found[:4], want, equal_nan=True)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(found[:4])[numbers], np.signbit(want)[numbers])
    assert np.isnan(found[4:]).all()
    before = run(load(program(function, x.shape)), x)  # the table says what the operation does
    assert np.array_equal(before[:4], want, equal_nan=True) and np.isnan(before[4:]).all()


def test_exp_of_what_is_not_positive() -> None:
    x = np.concatenate([-np.abs(sample("exp")), np.array([-np.inf, -0.0, np.nan], np.float32)])
    module = load(program("exp", x.shape).replace("exp(%x)", "exp(%x, decaying=true)"))
    assert ExpandMath().run(module, PassContext())
    assert np.array_equal(run(module, x), expanded("exp", x), equal_nan=True)


def test_bits_of_two_over_pi() -> None:
    """By Machin's formula."""

    def arctan_of_inverse(n: int) -> int:
        power, total, k = (1 << 300) // n, 0, 0
        while power:
            total, power, k = total + (-1) ** k * (power // (2 * k + 1)), power // n**2, k + 1
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    two_over_pi = (2 << 600) // pi
    words = [two_over_pi >> (300 - 32 * n) & 0xFFFFFFFF for n in range(1, 8)]
    assert [0, *words] == list(TWO_OVER_PI)


def test_outside_the_domain() -> None:
    x = np.array([-1.0, -1e-45, -3e38, -1.5], np.float32)
    assert np.isnan(expanded("log", x)).all() and np.isnan(expanded("rsqrt", x)).all()
    found = expanded("log1p", x)
    assert found[0] == -np.inf and found[1] == x[1] and np.isnan(found[2:]).all()


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """powf as it is expanded."""
    n = len(x)
    module = load(f"""\
graph @main(%A: memref<f32[{n}]>, %B: memref<f32[{n}]>, %C: memref<f32[{n}]>) {{
  %x = vector.load(%A[0:+{n}]) : vector<f32[{n}]>
  %y = vector.load(%B[0:+{n}]) : vector<f32[{n}]>
  %z = math.powf(%x, %y) : vector<f32[{n}]>
  vector.store(%z, %C[0:+{n}])
  return
}}
""")
    assert ExpandMath().run(module, PassContext())
    result = np.zeros_like(x)
    Interpreter(module).run(module.main, [x, y, result])
    return result


def pairs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    count = 40_000
    x = np.exp2(generator.uniform(-149, 128, count))
    if kind == "any bits":
        x, y = generator.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32).view(np.float32)
    elif kind == "any result":
        y = generator.uniform(-150, 130, count) / np.log2(x)
    elif kind == "large exponents":
        x = 1 + generator.normal(size=count) * 10 ** generator.uniform(-7, -1, count)
        y = generator.uniform(-150, 130, count) / np.log2(np.abs(x.astype(np.float32)) + 1e-9)
    else:
        x, y = generator.normal(size=count) * 5, generator.integers(-20, 21, count)
        if kind == "halves":
            y = y / 2
    with np.errstate(all="ignore"):
        return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["any bits", "any result", "large exponents", "integers", "halves"])
def test_errors_of_powers(kind: str) -> None:
    x, y = pairs(kind)
    found, exact = power(x, y), np.power(x.astype(np.float64), y.astype(np.float64))
    rounded = exact.astype(np.float32)
    finite = np.isfinite(rounded)
    assert np.array_equal(found[~finite], rounded[~finite], equal_nan=True)
    assert np.array_equal(np.signbit(found[finite]), np.signbit(rounded[finite]))
    assert ulps(found[finite], exact[finite]).max() <= 1.0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_powers() -> None:
    line = [0.0, 1.0, np.inf, np.nan, 0.5, 2.0, 3.0, 1e-45, 3e38, 1.5, 2.0**24, 2.0**24 - 1, 2.0**23 + 1, 1e30, 2.5, 127.0, 128.0, 149.0, 150.0]
    line += [1 + 2.0**-23, 1 - 2.0**-24]
    x, y = (a.reshape(-1) for a in np.meshgrid(*[np.array([*line, *(-v for v in line)], np.float32)] * 2))
    found, want = power(x, y), np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(want))
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(found)[numbers], np.signbit(want)[numbers])
    exact = ~np.isfinite(want) | (want == 0) | (np.abs(want) == 1)
    assert np.array_equal(found[numbers & exact], want[numbers & exact])
    assert np.allclose(found[numbers & ~exact], want[numbers & ~exact], rtol=2e-7, atol=2e-45)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_of_halves() -> None:
    text = """\
graph @main(%A: memref<f16[4096]>, %B: memref<f16[]>, %C: memref<f16[4096]>) {
  %x = vector.load(%A[0:+4096]) : vector<f16[4096]>
  %y = memref.load(%B[]) : f16
  %z = math.powf(%x, %y) : vector<f16[4096]>
  vector.store(%z, %C[0:+4096])
  return
}
"""
    module = optimize(text, "expand-math")
    x = np.arange(0, 65536, 16).astype(np.uint16).view(np.float16)
    for exponent in (2.0, -0.5, 3.0, 0.3):
        y, found = np.array(exponent, np.float16), np.zeros_like(x)
        Interpreter(module).run(module.main, [x, y, found])
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float16)
        steps = np.abs(found.view(np.int16).astype(int) - want.view(np.int16))[~np.isnan(want)]
        assert np.array_equal(np.isnan(found), np.isnan(want)) and steps.max() <= 1 and np.count_nonzero(steps) <= 2


def test_powers_broadcast() -> None:
    text = """\
graph @main(%A: memref<f32[4]>, %B: memref<f32[]>, %C: memref<f32[3, 4]>) {
  %x = vector.load(%A[0:+4]) : vector<f32[4]>
  %y = memref.load(%B[]) : f32
  %v = vector.broadcast(%y) : vector<f32[3, 1]>
  %z = math.powf(%x, %v) : vector<f32[3, 4]>
  %w = math.powf(%y, %z) : vector<f32[3, 4]>
  vector.store(%w, %C[0:+3, 0:+4])
  return
}
"""
    module = optimize(text, "expand-math")
    x, y, result = np.array([1, 2, 3, 0.5], np.float32), np.array(1.5, np.float32), np.zeros((3, 4), np.float32)
    Interpreter(module).run(module.main, [x, y, result])
    assert np.allclose(result, np.broadcast_to(y ** (x**y), (3, 4)), rtol=1e-6)


@pytest.mark.parametrize("function", BOUNDS)
def test_scalars_and_vectors_are_the_same(function: str) -> None:
    x = sample(function)[::1500]
    x = x[: len(x) // 4 * 4].copy()
    want = expanded(function, x)
    assert same(expanded(function, x.reshape(-1, 1, 4)), want)
    loops = f"""\
graph @main(%A: memref<f32[N]>, %C: memref<f32[N]>) {{
  linalg.generic(i < N, %a = %A[i], %c = %C[i]) {{
    %r = math.{function}(%a) : f32
    yield %r
  }}
  return
}}
"""
    assert same(run(optimize(loops, "expand-math"), x), want)


def same(found: np.ndarray, want: np.ndarray) -> bool:
    """Bits, all NaNs counting as one."""
    found, want = found.reshape(-1), want.reshape(-1)
    return bool(np.all((found.view(np.uint32) == want.view(np.uint32)) | (np.isnan(found) & np.isnan(want))))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("function", BOUNDS)
def test_storage_types(function: str, dtype: str) -> None:
    """Computed in f32 and rounded once more: all but the nearest numbers to halves come out as before."""
    before, after = load(program(function, (65536,), dtype)), optimize(program(function, (65536,), dtype), "expand-math")
    assert {"arith.extf", "arith.truncf"} <= set(operations(after))
    x = np.arange(65536).astype(np.uint16).view(load(f"graph @g(%x: {dtype}[]) {{\n  return %x\n}}\n").main.parameters[0].type.dtype.numpy)
    want, found = run(before, x), run(after, x)
    steps = found.view(np.int16).astype(np.int64) - want.view(np.int16)
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), nan)
    assert np.abs(steps[~nan]).max() <= 1
    assert np.count_nonzero(steps[~nan]) <= 16


LOOPS = """\
graph @main(%A: memref<f32[N]>, %C: memref<f32[N]>) {
  %half = arith.constant(0.5) : f32
  scf.for(%i = 0 to N) {
    %x = memref.load(%A[%i]) : f32
    %y = math.exp(%x) : f32
    %z = math.tanh(%y) : f32
    %w = math.exp(%z) : f32
    memref.store(%w, %C[%i])
    yield
  }
  return
}
"""


def test_constants_are_made_once_at_the_top() -> None:
    module = optimize(LOOPS, "expand-math")
    constants = [op for op in module.walk() if op.name == "arith.constant"]
    assert len(constants) == len({(op.result.type, op.attribute("value").array.tobytes()) for op in constants})
    assert list(module.main.block)[: len(constants)] == constants
    assert constants[0].result.name == "half" and len(constants) > 10


def test_what_is_left() -> None:
    """Operations that round once or move bits: no calls of a library, nothing that needs a table; f64 and i64 in large angles alone."""
    text = "graph @main(%A: memref<f32[4]>, %C: memref<f32[4]>) {\n  %x = vector.load(%A[0:+4]) : vector<f32[4]>\n"
    for function in BOUNDS:
        text += f"  %{function} = math.{function}(%x) : vector<f32[4]>\n  vector.store(%{function}, %C[0:+4])\n"
    text += "  %powf = math.powf(%x, %exp) : vector<f32[4]>\n  vector.store(%powf, %C[0:+4])\n"
    module = optimize(text + "  return\n}\n", "expand-math")
    names = set(operations(module))
    assert {n for n in names if n.startswith("math.")} == {"math.fma", "math.absf", "math.copysign", "math.sqrt", "math.roundeven"}
    assert {str(r.type).split("<")[-1].split("[")[0] for op in module.walk() for r in op.results} == {"f32", "i32", "bool", "f64", "i64"}
    wide = [op.name for op in module.walk() if op.name != "arith.constant" and any("f64" in str(r.type) for r in op.results)]
    assert wide == ["arith.sitofp", "arith.mulf"] * 3
    assert all(op.block is module.main.block for op in module.walk())


SIZES = {
    "exp": 20,
    "expm1": 21,
    "tanh": 25,
    "sigmoid": 18,
    "silu": 19,
    "erf": 25,
    "erfc": 40,
    "normcdf": 40,
    "gelu": 33,
    "gelu_tanh": 29,
    "log": 27,
    "log1p": 26,
    "rsqrt": 12,
}


@pytest.mark.parametrize("function", SIZES)
def test_how_much_code(function: str) -> None:
    """Operations without constants and bitcasts; a comparison with its choice counts as two, but may be one instruction."""
    count = Counter(operations(optimize(program(function, (16,)), "expand-math")))
    del count["arith.constant"], count["arith.bitcast"], count["vector.load"], count["vector.store"]
    assert sum(count.values()) <= SIZES[function]


def test_selected_functions() -> None:
    names = operations(optimize(LOOPS, "expand-math{functions=[tanh]}"))
    assert names.count("math.exp") == 2 and "math.tanh" not in names
    names = operations(optimize(LOOPS, "expand-math{functions=math.exp}"))
    assert "math.exp" not in names and "math.tanh" in names


def test_unknown_function_is_located() -> None:
    with pytest.raises(GraphError, match=r"<pipeline>:1:5(.|\n)*there is no expansion of 'tanhh'; .*tanh"):
        load_pipeline("dce,expand-math{functions=[tanhh]}")


def test_f64_and_tensors_stay() -> None:
    for text in (program("exp", (4,), "f64"), "graph @main(%x: f32[4]) {\n  %y = exp(%x)\n  return %y\n}\n"):
        module = load(text)
        context = PassContext()
        assert not ExpandMath().run(module, context) and not context.statistics


def test_statistics_and_names() -> None:
    module = load(LOOPS.replace("  %half = arith.constant(0.5) : f32\n", ""))
    context = PassContext()
    assert ExpandMath().run(module, context)
    assert context.statistics == {"math.exp expanded": 2, "math.tanh expanded": 1}
    names = [r.name for op in module.walk() for r in op.results]
    assert {"y", "z", "w"} <= set(names) and "half" in names


def test_verify_exec_sees_a_wrong_polynomial(monkeypatch: pytest.MonkeyPatch) -> None:
    text = program("exp", (64,))
    before, after = load(text), load(text)
    ExpandMath().run(after, PassContext())
    assert compare_modules(before, after, ExpandMath.preserves).mismatch is None
    monkeypatch.setattr("passes.vector._exponential.EXP", (1.0, 1.0, 0.5, 0.1666, 0.0420, 0.0083, 0.0014))
    wrong = load(text)
    ExpandMath().run(wrong, PassContext())
    assert compare_modules(before, wrong, ExpandMath.preserves).mismatch is not None


def test_float64_runs_need_the_wider_tolerance() -> None:
    text = program("tanh", (64,))
    before, after = load(text), load(text)
    ExpandMath().run(after, PassContext())
    assert compare_modules(before, after, "approximate").mismatch is None
    assert compare_modules(before, after, "values").mismatch is not None
