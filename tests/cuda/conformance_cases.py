"""The table of :mod:`tests.cuda.conformance`: kernels that use every word of the headers, most of them many words each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.cuda.host_build import INCLUDE

Array = np.ndarray[Any, Any]
THREADS = 64
SEED = 3


@dataclass(frozen=True)
class Case:
    """A kernel on inputs; its last parameter is an array of ``count`` values of ``dtype``.

    The result consists of equal parts, one for each of ``words``.  ``compare`` says when two results are the same: "bits" (of floats all
    NaN are one), "f16" and "bf16" (floats in integers of 16 bits), "near" (at most ``near`` steps between neighbouring numbers),
    "sums" (the parts are sums of products, and sums of magnitudes, which say how far those may be apart).
    """

    name: str
    source: str
    inputs: tuple[Array, ...]
    dtype: Any
    count: int
    words: tuple[str, ...]
    compare: str = "bits"
    near: int = 0
    grid: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    threads: int = THREADS


def kernel(name: str, parameters: str, body: str, threads: int = THREADS) -> str:
    """The text of a kernel whose result is ``y``."""
    return f'extern "C" __global__ void __launch_bounds__({threads})\n{name}({parameters})\n{{\n{body}\n}}\n'


# -- data --------------------------------------------------------------------------------------------------------------


def floats(count: int = 4096) -> Array:
    """Floats of all kinds: every exponent, both signs, special ones, and ``count`` random ones of all sizes, as many about 1."""
    rng = np.random.default_rng(SEED)
    exponents = np.arange(256, dtype=np.uint32) << 23
    mantissas = np.array([0, 1, 0x400000, 0x7FFFFF, 0x1000, 0xFFF, 0x8000, 0x7FFF], np.uint32)
    bits = (exponents[:, None] | mantissas).reshape(-1)
    found = np.concatenate([bits, bits | 0x80000000, rng.integers(0, 1 << 32, count).astype(np.uint32)]).view(np.float32)
    return np.concatenate([found, rng.standard_normal(count).astype(np.float32) * 8])


FLOATS = floats()
HALVES = np.arange(1 << 16, dtype=np.uint16)
"""All bit patterns of f16 and bf16."""


def _between(narrow: Array) -> Array:
    """Floats in the middle between neighbouring numbers of 16 bits, which are given as floats, and their own neighbours."""
    finite = np.sort(narrow[np.isfinite(narrow)].astype(np.float64))
    middle = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    bits = middle.view(np.int32)
    return np.concatenate([middle, (bits + 1).view(np.float32), (bits - 1).view(np.float32)])


def pairs(special: Array, some: Array) -> tuple[Array, Array]:
    """All pairs of special values, and some others in pairs."""
    a, b = np.repeat(special, len(special)), np.tile(special, len(special))
    return np.concatenate([a, some]), np.concatenate([b, some[::-1]])


_SPECIAL = np.array([0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x3F800001, 0x40490FDB, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000], np.uint32)
_FLOAT_PAIRS = pairs(np.concatenate([_SPECIAL, _SPECIAL | 0x80000000]).view(np.float32), FLOATS)
_DOUBLE_SPECIAL = np.array([0, 5e-324, 2.2250738585072014e-308, 1, np.nextafter(1, 2), np.pi, 1.7e308, np.inf, np.nan, 2.0**53 + 2, 2.0**31, 2.0**63])
_WIDE = np.random.default_rng(SEED).standard_normal(4096) * np.exp2(np.random.default_rng(SEED).integers(-60, 60, 4096))
_DOUBLE_PAIRS = pairs(np.concatenate([_DOUBLE_SPECIAL, -_DOUBLE_SPECIAL]), _WIDE)


def _integer_pairs(bits: int) -> tuple[Array, Array]:
    dtype = np.dtype(f"i{bits // 8}")
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    special = np.array([0, 1, 2, 3, 7, 255, 256, 65535, high - 1, high, low, low + 1, -1, -2, -3, -7, -256], dtype)
    rng = np.random.default_rng(SEED)
    some = np.concatenate([rng.integers(low, high, 1024, dtype=dtype), rng.integers(-9, 10, 1024).astype(dtype)])
    return pairs(special, some)


# -- words of single values --------------------------------------------------------------------------------------------


def _map(
    name: str, types: tuple[str, str], words: Mapping[str, str], inputs: tuple[Array, ...], dtype: Any, compare: str = "bits", near: int = 0
) -> Case:
    """Expressions of a, b and c, elements of the inputs (the last of them again, further on, where there are fewer)."""
    parameter, result = types
    n = len(inputs[0])
    parameters = ", ".join([*(f"const {parameter} *x{i}" for i in range(len(inputs))), "go_index n", f"{result} *y"])
    last = f"x{len(inputs) - 1}"
    second = "x1[i]" if len(inputs) > 1 else f"{last}[(i * 7 + 3) % n]"
    third = "x2[i]" if len(inputs) > 2 else f"{last}[i * 3 % n]"
    lines = [
        "  const go_index i = go_block_x() * 64 + go_thread();",
        "  if (i >= n) return;",
        f"  const {parameter} a = x0[i], b = {second}, c = {third};",
        *(f"  y[{at} * n + i] = {text};" for at, text in enumerate(words.values())),
    ]
    text, grid = kernel(name, parameters, "\n".join(lines)), (-(-n // THREADS), 1, 1)
    return Case(name, text, inputs, dtype, n * len(words), tuple(words), compare, near, grid)


def _narrow() -> list[Case]:
    """f16 and bf16: conversions of all bit patterns, and of floats in the middle between two; their arithmetic."""
    cases = []
    with np.errstate(over="ignore", invalid="ignore"):
        middles = {"half": _between(HALVES.view(np.float16).astype(np.float32)), "bf16": _between((HALVES.astype(np.uint32) << 16).view(np.float32))}
    doubles = np.concatenate([_DOUBLE_PAIRS[0], _DOUBLE_PAIRS[1], middles["half"].astype(np.float64) * (1 + 2.0**-50)])
    for type_, kind in (("half", "f16"), ("bf16", "bf16")):
        wrap = f"go_{type_}_bits"
        sixty_four = "go_to_half64" if type_ == "half" else "go_to_bf16_64"
        floats_in = np.concatenate([FLOATS, middles[type_]])
        three = ", ".join(f"{wrap}({v})" for v in "abc")
        own = {
            f"go_fma_{type_}": f"go_fma_{type_}({three}).bits",
            f"go_neg_{type_}": f"go_neg_{type_}({wrap}(a)).bits",
            f"go_abs_{type_}": f"go_abs_{type_}({wrap}(a)).bits",
            f"go_copysign_{type_}": f"go_copysign_{type_}({wrap}(a), {wrap}(b)).bits",
        }
        cases += [
            _map(f"to_{type_}", ("float", "unsigned short"), {f"go_to_{type_}": f"go_to_{type_}(a).bits"}, (floats_in,), np.uint16, kind),
            _map(f"to_{type_}64", ("double", "unsigned short"), {sixty_four: f"{sixty_four}(a).bits"}, (doubles,), np.uint16, kind),
            _map(f"from_{type_}", ("unsigned short", "float"), {f"go_to_float(go_{type_})": f"go_to_float({wrap}(a))"}, (HALVES,), np.float32),
            _map(f"in_{type_}", ("unsigned short", "unsigned short"), own, (HALVES,), np.uint16, kind),
        ]
    words = {"go_i64_to_bf16": "go_i64_to_bf16(a).bits"}
    cases.append(_map("i64_to_bf16", ("long long", "unsigned short"), words, _integer_pairs(64)[:1], np.uint16, "bf16"))
    return cases


_ROUNDINGS = ("sqrt", "floor", "ceil", "trunc", "rint", "fabs")


def _floats() -> list[Case]:
    """Arithmetic, extrema, rounding and bits of float and double."""
    single = {
        "a + b": "a + b", "a - b": "a - b", "a * b": "a * b", "a / b": "a / b", "go_max": "go_max(a, b)", "go_min": "go_min(a, b)",
        "go_fma(float)": "go_fma(a, b, c)", "fmodf": "fmodf(a, b)", "copysignf": "copysignf(a, b)", "a < b": "a < b ? 1.0f : 0.0f",
        "go_as_float": "go_as_float(go_as_int(a))", "GO_INFINITY": "a < b ? GO_INFINITY : GO_NAN", **{f"{n}f": f"{n}f(a)" for n in _ROUNDINGS},
    }  # fmt: skip
    double = {
        "a + b (double)": "a + b", "a - b (double)": "a - b", "a * b (double)": "a * b", "a / b (double)": "a / b", "go_max64": "go_max64(a, b)",
        "go_min64": "go_min64(a, b)", "go_fma(double)": "go_fma(a, b, c)", "fmod": "fmod(a, b)", "copysign": "copysign(a, b)",
        "go_ldexp64": "go_ldexp64(a, (go_as_long(b) >> 40) % 1200)", "go_as_double": "go_as_double(go_as_long(a))",
        "GO_INFINITY64": "a < b ? GO_INFINITY64 : GO_NAN64", "(float)a": "(double)(float)a", "go_odd_fma": "go_odd_fma((float)a, (float)b, (float)c)",
        **{n: f"{n}(a)" for n in _ROUNDINGS},
    }  # fmt: skip
    library = ("exp", "expm1", "log", "log1p", "sin", "cos", "tan", "tanh", "erf", "erfc")
    own = ("go_normcdf64", "go_gelu64", "go_sigmoid64", "go_silu64", "go_gelu_tanh64")
    near = {**{n: f"{n}(a)" for n in library}, **{n: f"{n}(a)" for n in own}, "pow": "pow(a < 0 ? -a : a, b > 30 ? 30 : b)"}
    moderate = np.concatenate([_DOUBLE_SPECIAL, -_DOUBLE_SPECIAL, np.random.default_rng(SEED).standard_normal(4096) * 6])
    return [
        _map("floats", ("float", "float"), single, _FLOAT_PAIRS, np.float32),
        _map("doubles", ("double", "double"), double, _DOUBLE_PAIRS, np.float64),
        _map("library", ("double", "double"), near, (moderate,), np.float64, "near", 64),
    ]


def _integers() -> list[Case]:
    """Conversions that saturate, arithmetic that wraps around, products of bytes."""
    cases = []
    powers = np.exp2(np.array([7, 8, 15, 16, 31, 32, 63, 64], np.float64))
    edges = np.array([powers, np.nextafter(powers, 0), np.nextafter(powers, np.inf), powers - 0.5, powers - 1]).ravel()
    edges = np.concatenate([edges, -edges])
    with np.errstate(invalid="ignore"):
        wide = FLOATS.astype(np.float64)  # signaling NaN
    singles = np.concatenate([FLOATS, edges.astype(np.float32), np.nextafter(edges.astype(np.float32), np.float32(0))])
    doubles = np.concatenate([edges, wide, _WIDE])
    of_float, of_double = ({f"go_to_{name}{end}": f"go_to_{name}{end}(a)" for name in ("i8", "u8", "i16", "i32", "i64")} for end in ("", "_64"))
    cases += [
        _map("saturated", ("float", "long long"), of_float, (singles,), np.int64),
        _map("saturated64", ("double", "long long"), of_double, (doubles,), np.int64),
    ]
    for bits, type_ in ((32, "int"), (64, "long long")):
        s = f"i{bits}"
        two = ("add", "sub", "mul", "max", "min", "div", "rem", "mod", "floordiv", "ceildiv")
        words = {f"go_{w}_{s}": f"go_{w}_{s}(a, b)" for w in two}
        words |= {f"go_{w}_{s}": f"go_{w}_{s}(a)" for w in ("neg", "abs")}
        words |= {f"go_{w}_{s}": f"go_{w}_{s}(a, (int)(b & {bits - 1}))" for w in ("shl", "shr")}
        if bits == 32:
            words |= {"go_dot4": "go_dot4(a, b, c)", "go_dot4_small": "go_dot4_small(a & 0x7f7f7f7f, b, c)", "go_add4": "go_add4(a, b)"}
        words |= {f"(float)a ({s})": "go_as_int((float)a)", f"(double)a ({s})": f"({type_})(go_as_long((double)a) >> 7)"}
        cases.append(_map(f"integers_{bits}", (type_, type_), words, _integer_pairs(bits), np.dtype(f"i{bits // 8}")))
    return cases


def _functions(x: Array) -> list[Case]:
    """Every function of graph_opt_math.h."""
    text = (INCLUDE / "graph_opt_math.h").read_text(encoding="utf-8")
    found = re.findall(r"^GO_DEVICE float (go_\w+)\(([^)]*)\)", text, re.MULTILINE)
    words = {name: f"{name}(a, b)" if "," in parameters else f"{name}(a)" for name, parameters in found}
    return [_map(f"math_{name}", ("float", "float"), {name: call}, (x,), np.float32) for name, call in words.items()]


# -- words of warps and blocks -----------------------------------------------------------------------------------------

_WIDTHS = (32, 16, 8, 4, 2)
_TYPES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("float", "go_as_float((int)((b & 0x80ffffff) | 0x3f000000))", "go_as_int({})", ("add", "mul", "max", "min")),
    ("double", "(double)b * 0.37", "(int)(go_as_long({}) >> 20)", ("add", "mul", "max", "min")),
    ("int", "b", "{}", ("add", "mul", "max", "min", "and", "or")),
    ("long long", "(long long)b * 3000000007LL", "(int)({} >> 3)", ("add", "mul", "max", "min", "and", "or")),
    ("short", "(short)b", "(int){}", ("add", "mul", "max", "min", "and", "or")),
    ("signed char", "(signed char)b", "(int){}", ("add", "mul", "max", "min", "and", "or")),
    ("unsigned char", "(unsigned char)b", "(int){}", ("add", "mul", "max", "min", "and", "or")),
    ("bool", "(b & 1) != 0", "(int){}", ("and", "or")),
    ("go_half", "go_half_bits(b & 0xbbff)", "{}.bits", ("add", "mul", "max", "min")),
    ("go_bf16", "go_bf16_bits(b & 0xbf7f)", "{}.bits", ("add", "mul", "max", "min")),
)
"""A type, a value of it made of an int (no NaN, and so small that none comes of it), its bits as an int, what warps reduce of it."""


def _shuffle_calls() -> dict[str, list[str]]:
    """Shuffles in all modes and widths, by word; as many of each."""
    distances = [(by, w) for w in _WIDTHS for by in (1, w // 2, w - 1)]
    found = {f"go_shuffle_{mode}": [f"go_shuffle_{mode}(v, {by}, {w})" for by, w in distances] for mode in ("xor", "down", "up")}
    found["go_shuffle_index"] = [f"go_shuffle_index(v, {lane}, {w})" for w in _WIDTHS for lane in (str(w - 1), "t / 3", "(int)(x[t] & 31)")]
    return found


def _lanes() -> list[Case]:
    """Shuffles and reductions of warps, of all types, and of vectors."""
    cases = []
    for type_, made, bits, kinds in _TYPES:
        reductions = {f"go_warp_reduce_{k}": [f"go_warp_reduce_{k}(v, {w})" for w in _WIDTHS] for k in kinds}
        for name, groups in (("shuffle", _shuffle_calls()), ("reduce", reductions)):
            lines = [f"  const int t = (int)go_thread(), b = x[t];\n  const {type_} v = {made};"]
            calls = [call for group in groups.values() for call in group]
            lines += [f"  y[{64 * k} + t] = {bits.format(call)};" for k, call in enumerate(calls)]
            words = tuple(f"{word}({type_})" for word in groups)
            cases.append(_lane_case(f"{name}_{type_.replace(' ', '_')}", lines, len(calls), words))
    lines = ["  const int t = (int)go_thread();\n  go_vec<int, 2> v, w;\n  v[0] = x[t];\n  v[1] = x[t] * 5;"]
    for k, mode in enumerate(("xor", "down", "up", "index")):
        lines.append(f"  w = go_shuffle_{mode}(v, 3, 8);\n  y[{128 * k} + t] = w[0];\n  y[{128 * k + 64} + t] = w[1];")
    cases.append(_lane_case("shuffle_vectors", lines, 8, tuple(f"go_shuffle_{mode}(go_vec)" for mode in ("xor", "down", "up", "index"))))
    return cases


def _lane_case(name: str, lines: list[str], rows: int, words: tuple[str, ...]) -> Case:
    x = np.random.default_rng(11).integers(-(1 << 31), 1 << 31, THREADS).astype(np.int32)
    return Case(name, kernel(name, "const int *x, int *y", "\n".join(lines)), (x,), np.int32, 64 * rows, words)


def _copies() -> list[Case]:
    """Asynchronous copies of all sizes, with all numbers of valid bytes."""
    x = np.random.default_rng(5).integers(0, 256, 4096).astype(np.uint8)
    cases = []
    for size in (4, 8, 16):
        body = f"""  unsigned char *s = go_shared();
  const int t = (int)go_thread();
  for (int valid = -1; valid <= {size + 1}; ++valid) {{
    go_cp_async<{size}>(s + {size} * t, x + {size} * t, valid);
    go_cp_commit();
    go_cp_async<{size}>(s + {64 * size} + {size} * t, x + {size} * (63 - t));
    go_cp_commit();
    go_cp_wait<1>();
    go_barrier();
    for (int k = 0; k < {size}; ++k) y[(valid + 1) * {128 * size} + {size} * t + k] = s[{size} * (t ^ 5) + k];
    go_cp_wait<0>();
    go_barrier();
    for (int k = 0; k < {size}; ++k) y[(valid + 1) * {128 * size} + {64 * size} + {size} * t + k] = s[{64 * size} + {size} * (t ^ 9) + k];
    go_barrier();
  }}"""
        text = kernel(f"copies_{size}", "const unsigned char *x, unsigned char *y", body)
        words = (f"go_cp_async<{size}>, go_cp_commit, go_cp_wait",)
        cases.append(Case(f"copies_{size}", text, (x,), np.uint8, (size + 3) * 128 * size, words, shared=128 * size))
    return cases


_SIZES = {"float": 4, "double": 8, "unsigned short": 2, "unsigned char": 1}


def _vectors() -> list[Case]:
    """Loads and stores, whole and in part, aligned and not; arithmetic of vectors."""
    x = np.random.default_rng(5).integers(0, 256, 8192).astype(np.uint8)
    cases = []
    shapes = (("float", 1), ("float", 2), ("float", 4), ("float", 8), ("double", 1), ("double", 2), ("double", 4), ("unsigned short", 8),
              ("unsigned short", 4), ("unsigned short", 2), ("unsigned char", 16), ("unsigned char", 4), ("float", 3))  # fmt: skip
    for type_, n in shapes:
        aligned = "_aligned" if n != 3 else ""
        body = f"""  const {type_} *x = (const {type_} *)bytes;
  {type_} *y = ({type_} *)out;
  const int t = (int)go_thread();
  go_store{aligned}(y + {n} * t, go_load{aligned}<{n}>(x + {n} * (t ^ 3)));
  go_store(y + {n} * (64 + t), go_load<{n}>(x + {n} * t + 1));
  go_store_valid(y + {n} * (128 + t), go_load_valid<{n}>(x + {n} * t, t % {n + 3} - 1, ({type_})7), (t + 1) % {n + 2});
  go_store_valid{aligned}(y + {n} * (192 + t), go_load_valid{aligned}<{n}>(x + {n} * t, t % {n + 3} - 1, ({type_})9), (t + 1) % {n + 2});"""
        name = f"vectors_{type_.replace(' ', '_')}_{n}"
        text = kernel(name, "const unsigned char *bytes, unsigned char *out", body)
        words = tuple(f"go_load{end}, go_store{end} ({type_} x {n})" for end in ("_aligned", "", "_valid", "_valid_aligned"))
        cases.append(Case(name, text, (x,), np.uint8, 256 * n * _SIZES[type_], words))
    operations = ("u + v", "u - v", "u * v", "u / v", "go_fma(u, v, u)", "go_splat<float, 4>(u[2])")
    lines = ["  const int t = (int)go_thread();", "  const go_vec<float, 4> u = go_load<4>(x + 4 * t), v = go_load<4>(x + 4 * (t ^ 7));"]
    lines += [f"  go_store(y + {256 * k} + 4 * t, {text});" for k, text in enumerate(operations)]
    text = kernel("vector_arithmetic", "const float *x, float *y", "\n".join(lines))
    cases.append(Case("vector_arithmetic", text, (FLOATS[::48][:256].copy(),), np.float32, 256 * len(operations), operations))
    return cases


def _errors() -> list[Case]:
    """One thread fails, twice; who asks sees it, and the first failure is kept.  Where blocks are."""
    body = """  go_state *state = (go_state *)y;
  const go_index i = go_block_x() * 64 + go_thread();
  if (x[i] < 0) {
    go_fail(state, 5, i, -3000000000LL);
    go_fail(state, 6, 1, 2);
  }"""
    x = np.zeros(192, np.int32)
    x[101] = -1
    asking = "  y[go_block_x() * 64 + go_thread()] = go_failed((const go_state *)(x + 16 * go_thread()));"
    states = np.zeros((64, 16), np.int32)
    states[::3, 0] = np.arange(1, 23)
    states[:, 1:] = 9
    where = "  y[((go_block_z() * 3 + go_block_y()) * 2 + go_block_x()) * 64 + go_thread()] = (int)(go_thread() + 64 * go_block_z());"
    return [
        Case("fail", kernel("fail", "const int *x, int *y", body), (x,), np.int32, 16, ("go_fail",), grid=(3, 1, 1)),
        Case("failed", kernel("failed", "const int *x, int *y", asking), (states.reshape(-1),), np.int32, 64, ("go_failed",)),
        Case("blocks", kernel("blocks", "const int *x, int *y", where), (x,), np.int32, 768, ("go_block_x, _y, _z, go_thread",), grid=(2, 3, 2)),
    ]


# -- tensor cores ------------------------------------------------------------------------------------------------------


def _matrices() -> list[Case]:
    """ldmatrix in all forms; rows that a warp writes and reads."""
    halves = np.random.default_rng(9).integers(0, 1 << 16, 32 * 8).astype(np.uint16)
    cases = []
    for count in (1, 2, 4):
        for transposed in ("false", "true"):
            for type_ in ("go_half", "go_bf16"):
                name = f"ldmatrix_{count}_{transposed}_{type_.removeprefix('go_')}"
                body = f"""  {type_} *s = ({type_} *)go_shared();
  const int t = (int)go_thread();
  go_store_aligned(s + 16 * t, go_load_aligned<8>((const {type_} *)x + 8 * t));
  go_warp_barrier();
  const go_vec<{type_}, {2 * count}> v = go_ldmatrix<{count}, {transposed}>(s + 16 * (t ^ 2));
  for (int i = 0; i < {2 * count}; ++i) y[{2 * count} * t + i] = v[i].bits;"""
                text = kernel(name, "const unsigned short *x, unsigned short *y", body, 32)
                words = (f"go_ldmatrix<{count}, {transposed}>({type_}), go_warp_barrier",)
                cases.append(Case(name, text, (halves,), np.uint16, 64 * count, words, shared=1024, threads=32))
    return cases


_PRODUCT = """  const int t = (int)go_thread();
  for (int row = 0; row < {rows}; ++row) {{
    const float *x = all + 512 * row;
    go_vec<{type}, {a}> a;
    go_vec<{type}, {b}> b;
    go_vec<float, 4> c;
    for (int i = 0; i < {a}; ++i) a[i] = {made}(x[{a} * t + i]);
    for (int i = 0; i < {b}; ++i) b[i] = {made}(x[256 + {b} * t + i]);
    for (int i = 0; i < 4; ++i) c[i] = x[384 + 4 * t + i];
    go_store_aligned(y + 128 * row + 4 * t, {word}(a, b, c));
    for (int i = 0; i < {a}; ++i) a[i] = {made}(fabsf(x[{a} * t + i]));
    for (int i = 0; i < {b}; ++i) b[i] = {made}(fabsf(x[256 + {b} * t + i]));
    for (int i = 0; i < 4; ++i) c[i] = fabsf(x[384 + 4 * t + i]);
    go_store_aligned(y + 128 * {rows} + 128 * row + 4 * t, {word}(a, b, c));
  }}"""

_ROWS = 16


def _products() -> list[Case]:
    """Products of integers, which are exact in any order; of real numbers, which are not; tf32's rounding."""
    rng = np.random.default_rng(9)
    cases = []
    kinds = (("go_half", "go_to_half", "go_mma", 8), ("go_bf16", "go_to_bf16", "go_mma", 8), ("float", "", "go_mma_tf32", 1024))
    for type_, made, word, largest in kinds:
        a, b = (8, 4) if made else (4, 2)
        name = f"mma_{type_.removeprefix('go_') if made else 'tf32'}"
        exact = rng.integers(-largest, largest + 1, _ROWS * 512).astype(np.float32)
        real = (rng.standard_normal(_ROWS * 512) * np.exp2(rng.integers(-4, 5, _ROWS * 512))).astype(np.float32)
        for data, suffix, compare in ((exact, "exact", "bits"), (real, "real", "sums")):
            body = _PRODUCT.format(type=type_, made=made, word=word, a=a, b=b, rows=_ROWS)
            text = kernel(f"{name}_{suffix}", "const float *all, float *y", body, 32)
            words = (f"{word}({type_}) of {suffix} numbers", f"{word}({type_}) of magnitudes")
            cases.append(Case(f"{name}_{suffix}", text, (data,), np.float32, 2 * _ROWS * 128, words, compare, threads=32))
    exponents = (rng.integers(64, 190, 128).astype(np.uint32) << 23) | rng.integers(0, 1 << 23, 128).astype(np.uint32)
    exponents[::2] = (exponents[::2] & ~np.uint32(0x1FFF)) | 0x1000  # ties
    exponents[::3] |= 0x80000000
    body = """  const int t = (int)go_thread();
  const go_vec<float, 4> zero = go_splat<float, 4>(0.0f);
  go_vec<float, 2> unit;
  unit[0] = t / 4 == t % 4 ? 1.0f : 0.0f;
  unit[1] = t / 4 == t % 4 + 4 ? 1.0f : 0.0f;
  go_store_aligned(y + 4 * t, go_mma_tf32(go_load_aligned<4>(x + 4 * t), unit, zero));"""
    text = kernel("tf32_rounding", "const float *x, float *y", body, 32)
    cases.append(Case("tf32_rounding", text, (exponents.view(np.float32),), np.float32, 128, ("go_mma_tf32 by 1: rounding to tf32",), threads=32))
    return cases


def all_cases(x: Array = FLOATS) -> list[Case]:
    """Every word of the headers; ``x`` is what the functions of graph_opt_math.h are computed of."""
    lists = (_narrow(), _floats(), _integers(), _functions(x), _lanes(), _copies(), _vectors(), _errors(), _matrices(), _products())
    return [case for cases in lists for case in cases]
