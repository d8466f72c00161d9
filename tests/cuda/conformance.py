"""Whether a device computes what ``graph_opt_host.h`` says: every word of the headers, on a device and on the CPU, bit by bit.

``python -m tests.cuda.conformance [cuda | cuda:1]`` prints a line for each kernel.  What may differ: the payload of NaN, and functions of
double that come from the vendor's library (none of these is here).  Products of tensor cores are compared on integers, which are exact in
any order.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.cuda.driver import Driver, Packed
from codegen.cuda.drivers import open_driver
from codegen.cuda.host_build import INCLUDE

Array = np.ndarray[Any, Any]
THREADS = 64


@dataclass(frozen=True)
class Case:
    """A kernel on inputs; its last parameter is an array of ``count`` values of ``dtype``."""

    name: str
    source: str
    inputs: tuple[Array, ...]
    dtype: Any
    count: int
    blocks: int = 1
    shared: int = 0
    threads: int = THREADS


def kernel(name: str, parameters: str, body: str, threads: int = THREADS) -> str:
    """The text of a kernel whose result is ``y``."""
    return f'extern "C" __global__ void __launch_bounds__({threads})\n{name}({parameters})\n{{\n{body}\n}}\n'


def _patterns() -> Array:
    """Floats of all kinds: every exponent, both signs, special ones, and random ones."""
    rng = np.random.default_rng(3)
    exponents = np.arange(256, dtype=np.uint32) << 23
    mantissas = np.array([0, 1, 0x400000, 0x7FFFFF, 0x1000, 0xFFF, 0x8000, 0x7FFF], np.uint32)
    bits = (exponents[:, None] | mantissas).reshape(-1)
    found = np.concatenate([bits, bits | 0x80000000, rng.integers(0, 1 << 32, 4096).astype(np.uint32)]).view(np.float32)
    return np.concatenate([found, rng.standard_normal(4096).astype(np.float32) * 8])


FLOATS = _patterns()
_MAP = "  const go_index i = go_block_x() * 64 + go_thread();\n  if (i < n) y[i] = {};"


def _map(name: str, parameter: str, result: str, expression: str, x: Array, dtype: Any) -> Case:
    text = kernel(name, f"const {parameter} *x, go_index n, {result} *y", _MAP.format(expression))
    return Case(name, text, (x,), dtype, len(x), -(-len(x) // THREADS))


def _three(type_: str) -> str:
    return ", ".join(f"go_{type_}_bits(x[{at}])" for at in ("i", "i * 7 % n", "i * 3 % n"))


def _scalars() -> list[Case]:
    """Conversions, extrema and saturation; every function of graph_opt_math.h."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    cases = [
        _map("to_half", "float", "unsigned short", "go_to_half(x[i]).bits", FLOATS, np.uint16),
        _map("to_bf16", "float", "unsigned short", "go_to_bf16(x[i]).bits", FLOATS, np.uint16),
        _map("from_half", "unsigned short", "float", "go_to_float(go_half_bits(x[i]))", halves, np.float32),
        _map("from_bf16", "unsigned short", "float", "go_to_float(go_bf16_bits(x[i]))", halves, np.float32),
        _map("to_i8", "float", "signed char", "go_to_i8(x[i])", FLOATS, np.int8),
        _map("to_i32", "float", "int", "go_to_i32(x[i])", FLOATS, np.int32),
        _map("to_i64", "float", "long long", "go_to_i64(x[i])", FLOATS, np.int64),
        _map("largest", "float", "float", "go_max(x[i], x[(i * 7 + 3) % n])", FLOATS, np.float32),
        _map("smallest", "float", "float", "go_min(x[i], x[(i * 7 + 3) % n])", FLOATS, np.float32),
        *(_map(f"fma_{t}", "unsigned short", "unsigned short", f"go_fma_{t}({_three(t)}).bits", halves, np.uint16) for t in ("half", "bf16")),
        _map("dot4", "int", "int", "go_dot4(x[i], x[(i * 7 + 3) % n], x[i * 3 % n])", FLOATS.view(np.int32), np.int32),
        _map("floordiv", "int", "int", "go_floordiv_i32(x[i], x[(i * 7 + 3) % n])", FLOATS.view(np.int32), np.int32),
        _map("mod", "int", "int", "go_mod_i32(x[i], x[(i * 7 + 3) % n])", FLOATS.view(np.int32), np.int32),
        _map("arithmetic", "float", "float", "go_fma(x[i], x[(i * 7 + 3) % n], x[i * 3 % n]) + sqrtf(x[i]) / x[(i * 5 + 1) % n]", FLOATS, np.float32),
    ]  # fmt: skip
    text = (INCLUDE / "graph_opt_math.h").read_text(encoding="utf-8")
    for name, parameters in re.findall(r"^GO_DEVICE float (go_\w+)\(([^)]*)\)", text, re.MULTILINE):
        second = ", x[(i * 7 + 3) % n]" if "," in parameters else ""
        cases.append(_map(f"math_{name}", "float", "float", f"{name}(x[i]{second})", FLOATS, np.float32))
    return cases


def _shuffles() -> list[Case]:
    """Shuffles in all modes and widths, and reductions, of all types."""
    cases = []
    types = (("float", "go_as_float(b)"), ("double", "(double)b * 0.37"), ("int", "b"), ("long long", "(long long)b * 3000000007LL"),
             ("short", "(short)b"), ("signed char", "(signed char)b"), ("unsigned char", "(unsigned char)b"), ("bool", "(b & 1) != 0"),
             ("go_half", "go_half_bits(b & 0x7bff)"), ("go_bf16", "go_bf16_bits(b & 0x7f7f)"))  # fmt: skip
    bits = {"float": "go_as_int({})", "double": "(int)(go_as_long({}) >> 20)", "go_half": "{}.bits", "go_bf16": "{}.bits",
            "long long": "(int)({} >> 3)"}  # fmt: skip
    for type_, made in types:
        lines = [f"  const int t = (int)go_thread(), b = x[t];\n  const {type_} v = {made};\n  int k = 0;"]
        as_bits = bits.get(type_, "(int){}")
        modes = (("xor", 1), ("xor", 2), ("down", 3), ("up", 2), ("index", 3))
        shuffles = [f"go_shuffle_{mode}(v, {by}, {w})" for w in (32, 16, 4) for mode, by in modes]
        kinds: tuple[str, ...] = ("max", "min") if type_ != "bool" else ("and", "or")
        kinds += () if type_ in ("float", "double", "go_half", "go_bf16", "bool") else ("add", "mul", "and", "or")
        kinds += ("add",) if type_ in ("float", "double", "go_half", "go_bf16") else ()
        reductions = [f"go_warp_reduce_{kind}(v, {w})" for kind in kinds for w in (32, 8, 2)]
        for call in (*shuffles, *reductions):
            lines.append(f"  y[64 * k++ + t] = {as_bits.format(call)};")
        name = f"shuffle_{type_.replace(' ', '_')}"
        x = np.random.default_rng(11).integers(-(1 << 31), 1 << 31, THREADS).astype(np.int32) & 0x7F7FFFFF
        cases.append(Case(name, kernel(name, "const int *x, int *y", "\n".join(lines)), (x,), np.int32, 64 * (len(lines) - 1)))
    return cases


def _copies() -> list[Case]:
    """Asynchronous copies of all sizes, with all numbers of valid bytes; vectors in memory."""
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
        cases.append(Case(f"copies_{size}", text, (x,), np.uint8, (size + 3) * 128 * size, shared=128 * size))
    vectors = (("float", 4), ("float", 8), ("double", 2), ("unsigned short", 8), ("unsigned short", 2), ("unsigned char", 16), ("float", 3))
    for type_, count in vectors:
        n, name = count, f"vectors_{type_.replace(' ', '_')}_{count}"
        aligned = "_aligned" if count != 3 else ""
        body = f"""  const {type_} *x = (const {type_} *)bytes;
  {type_} *y = ({type_} *)out;
  const int t = (int)go_thread();
  go_store{aligned}(y + {n} * t, go_load{aligned}<{n}>(x + {n} * (t ^ 3)));
  go_store(y + {n} * (64 + t), go_load<{n}>(x + {n} * t + 1));
  go_store_valid(y + {n} * (128 + t), go_load_valid<{n}>(x + {n} * t, t % {n + 3} - 1, ({type_})7), (t + 1) % {n + 2});"""
        width = np.dtype({"float": "f4", "double": "f8", "unsigned short": "u2", "unsigned char": "u1"}[type_]).itemsize
        text = kernel(name, "const unsigned char *bytes, unsigned char *out", body)
        cases.append(Case(name, text, (x,), np.uint8, 192 * count * width))
    return cases


def _tensor_cores() -> list[Case]:
    """ldmatrix in all forms; products of integers."""
    rng = np.random.default_rng(9)
    halves = rng.integers(0, 1 << 16, 32 * 8).astype(np.uint16)
    cases = []
    for count in (1, 2, 4):
        for transposed in ("false", "true"):
            name = f"ldmatrix_{count}_{transposed}"
            body = f"""  go_half *s = (go_half *)go_shared();
  const int t = (int)go_thread();
  go_store_aligned(s + 16 * t, go_load_aligned<8>((const go_half *)x + 8 * t));
  go_barrier();
  const go_vec<go_half, {2 * count}> v = go_ldmatrix<{count}, {transposed}>(s + 16 * (t ^ 2));
  for (int i = 0; i < {2 * count}; ++i) y[{2 * count} * t + i] = v[i].bits;"""
            text = kernel(name, "const unsigned short *x, unsigned short *y", body, 32)
            cases.append(Case(name, text, (halves,), np.uint16, 64 * count, shared=1024, threads=32))
    for type_, made in (("go_half", "go_to_half"), ("go_bf16", "go_to_bf16")):
        body = f"""  const int t = (int)go_thread();
  go_vec<{type_}, 8> a;
  go_vec<{type_}, 4> b;
  go_vec<float, 4> c;
  for (int i = 0; i < 8; ++i) a[i] = {made}(x[8 * t + i]);
  for (int i = 0; i < 4; ++i) b[i] = {made}(x[256 + 4 * t + i]);
  for (int i = 0; i < 4; ++i) c[i] = x[384 + 4 * t + i];
  go_store_aligned(y + 4 * t, go_mma(a, b, c));"""
        name = f"mma_{type_}"
        x = rng.integers(-8, 9, 512).astype(np.float32)
        cases.append(Case(name, kernel(name, "const float *x, float *y", body, 32), (x,), np.float32, 128, threads=32))
    body = """  const int t = (int)go_thread();
  const go_vec<float, 4> c = go_load_aligned<4>(x + 384 + 4 * t);
  go_store_aligned(y + 4 * t, go_mma_tf32(go_load_aligned<4>(x + 4 * t), go_load_aligned<2>(x + 128 + 2 * t), c));"""
    x = rng.integers(-1024, 1025, 512).astype(np.float32)
    cases.append(Case("mma_tf32", kernel("mma_tf32", "const float *x, float *y", body, 32), (x,), np.float32, 128, threads=32))
    return cases


def all_cases() -> list[Case]:
    """Every word of the headers."""
    return [*_scalars(), *_shuffles(), *_copies(), *_tensor_cores()]


def source_of(cases: Sequence[Case]) -> str:
    """The text of all kernels."""
    return '#include "graph_opt_device.h"\n#include "graph_opt_math.h"\n\n' + "\n".join(c.source for c in cases)


def run(driver: Driver, cases: Sequence[Case]) -> list[Array]:
    """What a device gives for each case."""
    token = driver.enter()
    try:
        module = driver.load_module(driver.build(source_of(cases)))
        found = [_run_case(driver, driver.function(module, case.name), case) for case in cases]
        driver.unload_module(module)
        return found
    finally:
        driver.leave(token)


def _run_case(driver: Driver, function: int, case: Case) -> Array:
    result = np.zeros(case.count, case.dtype)
    places = [driver.allocate(a.nbytes) for a in (*case.inputs, result)]
    try:
        for place, array in zip(places, (*case.inputs, result), strict=True):
            driver.copy_to_device(place, array.ctypes.data, array.nbytes, 0)
        sizes = [len(case.inputs[0])] if "go_index n" in case.source else []
        arguments = Packed([*places[:-1], *sizes, places[-1]])
        driver.launch(function, (case.blocks, 1, 1), case.threads, case.shared, 0, arguments)
        driver.synchronize()
        driver.copy_to_host(result.ctypes.data, places[-1], result.nbytes, 0)
        driver.synchronize()
    finally:
        for place in places:
            driver.free(place)
    return result


def differences(case: Case, expected: Array, found: Array) -> str:
    """What differs, "" if nothing does; one NaN is as good as another."""
    if expected.dtype.kind == "f":
        same = (expected.view(f"u{expected.itemsize}") == found.view(f"u{found.itemsize}")) | (np.isnan(expected) & np.isnan(found))
    elif case.name in ("to_half", "to_bf16", "fma_half", "fma_bf16"):
        limit = 0x7C00 if "half" in case.name else 0x7F80
        same = (expected == found) | ((expected & 0x7FFF > limit) & (found & 0x7FFF > limit))
    else:
        same = expected == found
    if same.all():
        return ""
    at = int(np.argmin(same))
    return f"{(~same).sum()} of {len(same)} differ, the first at {at}: {expected[at]!r} on the CPU, {found[at]!r} on the device"


def main(device: str) -> int:
    cases = all_cases()
    expected, found = run(open_driver("cuda-emulated"), cases), run(open_driver(device), cases)
    failed = 0
    for case, e, f in zip(cases, expected, found, strict=True):
        text = differences(case, e, f)
        failed += bool(text)
        print(f"{case.name}: {text or 'ok'}")
    print(f"{len(cases)} kernels, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "cuda"))
