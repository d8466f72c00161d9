"""Code for processors that this machine need not be: which preset they get, and what their loops are made of.  Nothing is run."""

from __future__ import annotations

import platform
import re
from functools import cache

import pytest

from codegen.llvm import jit
from codegen.llvm.emit import emit_graph
from codegen.llvm.helpers import X86
from graph_opt.levels import preset_of
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline
from tests.checks import load

pytestmark = pytest.mark.skipif(platform.machine().lower() not in X86, reason="LLVM's assembly language for this machine is not that of x86")

AVX2 = "+64bit,+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
AVX512 = f"{AVX2},+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd,+avx512vnni,+avx512bf16,+avx512vbmi,+avx512vbmi2,+avxvnni,-amx-tile,-amx-int8"
NAMES = {
    **dict.fromkeys(("znver4", "znver5"), f"{AVX512},+sse4a"),
    **dict.fromkeys(("generic", "skylake-avx512", "rocketlake", "sapphirerapids"), AVX512),
    "znver3": f"{AVX2},+sse4a",
    "haswell": AVX2,
}

PRODUCT = (
    "graph @main(%x: f32[128, 64], %w: f32[64, 512], %b: f32[512]) -> f32[128, 512] {\n"
    "  %y = matmul(%x, %w)\n  %z = add(%y, %b)\n  %s = silu(%z)\n  return %s\n}\n"
)
ATTENTION = (
    "graph @main(%q: f32[1, 3, 128, 64], %k: f32[1, 1, 128, 64], %v: f32[1, 1, 128, 64]) -> f32[1, 3, 128, 64] {\n"
    "  %o = attention(%q, %k, %v, causal=true)\n  return %o\n}\n"
)


@cache
def lowered(text: str, preset: str, features: frozenset[str]) -> str:
    """A program's text for LLVM, without attributes."""
    module = load(text)
    PassManager(load_pipeline(preset)).run(module)
    return emit_graph(module, module.main, features=features).text


def assembly(monkeypatch: pytest.MonkeyPatch, text: str, name: str, features: str) -> str:
    """What a program becomes on a processor."""
    monkeypatch.setattr(jit, "host", lambda: (name, features))
    attributes = "".join(f' "{k}"="{v}"' for k, v in jit.host_attributes().items())
    lines = lowered(text, preset_of("asm"), jit.host_features())
    assert "attributes #0 = { nounwind }" in lines
    return jit.assembly(lines.replace("attributes #0 = { nounwind }", f"attributes #0 = {{ nounwind{attributes} }}"))


def loops(text: str) -> list[list[str]]:
    """The instructions of the loops that have none inside."""
    found: list[list[str]] = []
    places: dict[str, int] = {}
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    for n, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            places[label[1]] = n
        elif (jump := re.match(r"j\w+\s+(\.L\w+)$", line)) and jump[1] in places:
            body = lines[places[jump[1]] + 1 : n + 1]
            if not any((inner := re.match(r"j\w+\s+(\.L\w+)$", b)) and places.get(inner[1], -1) > places[jump[1]] for b in body[:-1]):
                found.append([b for b in body if b and not b.startswith(".")])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_chosen(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(jit, "host", lambda: (name, NAMES[name]))
    wide = "+avx512f" in NAMES[name]
    preset = "cpu-zen" if name in ("znver4", "znver5") else "cpu" if wide else "cpu-avx2"
    assert preset_of("loops") == preset_of("asm") == preset
    assert jit.host_attributes() == ({"prefer-vector-width": "512", "tune-cpu": "sapphirerapids"} if wide else {})


def test_an_unknown_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "host", lambda: ("generic", AVX2))
    assert jit.host_attributes() == {"tune-cpu": "znver3"}
    monkeypatch.setattr(jit, "host", lambda: ("generic", "+64bit,+sse,+sse2"))
    assert jit.host_attributes() == {}
    monkeypatch.setattr(jit, "host", lambda: ("generic", "+neon"))
    assert jit.host_attributes() == {}


@pytest.mark.parametrize("name", NAMES)
def test_sums_of_a_product_stay_in_registers(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = assembly(monkeypatch, PRODUCT, name, NAMES[name])
    register, sums = ("zmm", 24) if "+avx512f" in NAMES[name] else ("ymm", 12)
    product = max(loops(text), key=lambda b: sum(i.startswith("vfmadd231ps") for i in b) if not any("div" in i for i in b) else 0)
    multiplied = [i for i in product if i.startswith("vfmadd231ps") and register in i]
    assert len(multiplied) == sums
    assert not [i for i in product if "%rsp" in i or re.match(r"vmov\w+\s+%\wmm\d+, %\wmm", i)]
    assert ("zmm" in text) == (register == "zmm")


@pytest.mark.parametrize("name", [n for n, features in NAMES.items() if "+avx512f" in features])
def test_scores_of_attention_load_each_element_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = assembly(monkeypatch, ATTENTION, name, NAMES[name])
    products = [b for b in loops(text) if sum(i.startswith("vfmadd231ps") for i in b) >= 96]
    assert len(products) == 2
    for body in products:
        assert not [i for i in body if "%rsp" in i]


def test_weights_in_blocks_are_multiplied_on_full_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "graph @main(%d: i8[8, 2, 1, 32], %s: f32[8, 2, 2], %t: i32[8, 2, 1], %p: u8[2, 2, 640]) -> f32[8, 64] {\n"
        "  %y = digit_linear(%d, %s, %t, %p, rows=64)\n  return %y\n}\n"
    )
    text = assembly(monkeypatch, program, "znver5", NAMES["znver5"])
    dots = re.findall(r"vpdpbusd\s.*", text)
    assert dots and all("%zmm" in d for d in dots)
