"""CUDA's compilers: found, called, kept in the cache; what a cubin says.  No GPU; what a machine lacks is skipped."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from codegen.cache import Cache
from codegen.cuda import compilers, toolchain
from codegen.cuda.compilers import Compiler, CompilerFault, Nvcc, Nvrtc, Result, TargetUnknown, ToolFailure, find_compilers, find_disassembler
from codegen.cuda.cubin import NotACubin, Usage, count, instructions, kernel_names, kernel_usage
from codegen.cuda.targets import TARGETS, Target, any_target, find_target, target_of_device
from codegen.cuda.toolchain import compile_cubin, compile_ptx, disassemble, headers_of, self_contained
from ir.diagnostics import GraphError, MissingPackage

FOUND = list(find_compilers())
NVRTC = next((c for c in FOUND if isinstance(c, Nvrtc)), None)
NVCC = next((c for c in FOUND if isinstance(c, Nvcc)), None)

TEXT = """
extern "C" __global__ void __launch_bounds__(128) rows(const float *__restrict__ x, float *y, long long M)
{
  __shared__ float part[128];
  const float4 v = reinterpret_cast<const float4 *>(x)[threadIdx.x];
  part[threadIdx.x] = v.x * v.y + v.z * v.w;
  __syncthreads();
  y[threadIdx.x] = part[threadIdx.x ^ 1];
}
extern "C" __global__ void __launch_bounds__(256) plain(const float *__restrict__ x, float *y, long long M)
{
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < M) y[i] = x[i] + 1.0f;
}
"""
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(const float *x, float *y)
{
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; i++) v[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) y[i * 1024 + threadIdx.x] = v[63 - i] * v[i];
}
"""


def _needed(kind: str) -> Compiler:
    found = {"nvrtc": NVRTC, "nvcc": NVCC}[kind]
    if found is None:
        pytest.skip(f"there is no {kind} here")
    return found


def _any() -> Compiler:
    if not FOUND:
        pytest.skip("there is neither NVRTC nor nvcc here")
    return FOUND[0]


def _sass(image: bytes) -> dict[str, Mapping[str, int]]:
    try:
        find_disassembler()
    except MissingPackage as missing:
        pytest.skip(str(missing))
    return dict(instructions(disassemble(image)))


# -- compiling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["nvrtc", "nvcc"])
def test_machine_code_and_what_it_needs(kind: str, target: str) -> None:
    compiled = compile_cubin(TEXT, target, compiler=_needed(kind), cache=None)
    assert compiled.image.startswith(b"\x7fELF") and kernel_names(compiled.image) == ["plain", "rows"]
    rows, plain = compiled.usage["rows"], compiled.usage["plain"]
    assert (rows.shared, rows.stack, rows.spill_stores, rows.spill_loads, rows.barriers, rows.threads) == (512, 0, 0, 0, 1, 128)
    assert (plain.shared, plain.stack, plain.barriers, plain.threads) == (0, 0, 0, 256)
    assert 4 <= plain.registers < 32 and f"Used {plain.registers} registers" in compiled.log


@pytest.mark.parametrize("kind", ["nvrtc", "nvcc"])
def test_ptx(kind: str) -> None:
    text = compile_ptx(TEXT, "sm_90a", compiler=_needed(kind))
    assert ".target sm_90a" in text and ".visible .entry rows" in text and text.isprintable() is False and "\0" not in text


@pytest.mark.parametrize("kind", ["nvrtc", "nvcc"])
def test_spilled_registers_are_seen(kind: str) -> None:
    usage = compile_cubin(SPILLING, "sm_80", compiler=_needed(kind), cache=None).usage["spills"]
    assert usage.registers <= 32 and usage.stack > 0 and usage.spill_stores and usage.spill_loads


@pytest.mark.parametrize("kind", ["nvrtc", "nvcc"])
def test_products_and_sums_round_on_their_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-use_fast_math -fmad=true")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-use_fast_math")
    text = 'extern "C" __global__ void f(float *x) { x[0] = x[1] * x[2] + x[3]; }'
    found = _sass(compile_cubin(text, "sm_80", compiler=_needed(kind), cache=None).image)["f"]
    assert (count(found, "FMUL"), count(found, "FADD"), count(found, "FFMA"), count(found, "FADD.FTZ")) == (1, 1, 0, 0)
    ptx = compile_ptx(text.replace("x[3]", "x[3] / x[4] + sqrtf(x[5])"), "sm_80", compiler=_needed(kind))
    assert "div.rn.f32" in ptx and "sqrt.rn.f32" in ptx and "fma." not in ptx and ".ftz" not in ptx


def test_instructions_of_a_listing() -> None:
    found = _sass(compile_cubin(TEXT, "sm_90", compiler=_any(), cache=None).image)
    assert sorted(found) == ["plain", "rows"]
    assert count(found["rows"], "LDG.E.128") == 1 and count(found["plain"], "LDG.E") == 1 and count(found["plain"], "LDG.128") == 0
    assert count(found["rows"], "BAR.SYNC") == 1 and count(found["plain"], "BAR*") == 0 and count(found["rows"], "STS") == 1


def test_how_instructions_match() -> None:
    found = {"HMMA.16816.F32.BF16": 4, "LDGSTS.E.BYPASS.128": 2, "LDG.E": 1, "UTMALDG.2D": 1}
    pairs = {"HMMA": 4, "HMMA.16816": 4, "HMMA.BF16": 4, "HMMA.BF16.F32": 0, "LDG": 1, "LDG*": 3, "LDGSTS.128": 2, "LDGSTS.64": 0, "UTMALDG": 1}
    assert {p: count(found, p) for p in pairs} == pairs


def test_a_listing_in_the_form_of_cuobjdump() -> None:
    text = "\tcode for sm_80\n\t\tFunction : one\n        /*0000*/                   MOV R1, c[0x0][0x28] ;      /* 0x00000a0000017a02 */\n"
    text += "  /* 0x000fe40000000f00 */\n   /*0010*/    @!P0 STG.E [R2.64], R7 ;  /* 0x1 */\n /*0020*/ @P1 BRA 0x10 ;\n"
    text += "\t\tFunction : two\n /*0000*/ EXIT ;\n"
    assert instructions(text) == {"one": {"MOV": 1, "STG.E": 1, "BRA": 1}, "two": {"EXIT": 1}}


# -- headers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "a.h").write_text('#pragma once\n#include "b.h"\n#define A (B + 1)\n')
    (folder / "b.h").write_text("#ifndef B\n#define B 41\n#endif\n")
    (folder / "unused.h").write_text("#error never\n")
    monkeypatch.setattr(toolchain, "INCLUDE", folder)
    return folder


WITH_HEADERS = '#include "a.h"\n#include "b.h"\nextern "C" __global__ void f(int *x) { *x = A; }\n'


@pytest.mark.parametrize("kind", ["nvrtc", "nvcc"])
def test_headers_are_found_by_name_and_put_into_one_file(kind: str, headers: Path, tmp_path: Path) -> None:
    assert sorted(headers_of(WITH_HEADERS)) == ["a.h", "b.h"]
    first = compile_cubin(WITH_HEADERS, "sm_80", compiler=_needed(kind), cache=None)
    alone = self_contained(WITH_HEADERS)
    assert "#include" not in alone and "pragma once" not in alone
    assert compile_cubin(alone, "sm_80", compiler=_needed(kind), cache=None).usage == first.usage


@pytest.mark.parametrize("kind", ["nvrtc", "nvcc"])
@pytest.mark.parametrize("wrong", ["int x[", 'extern "C" __global__ void f() { asm("no.such.instruction;"); }'], ids=["text", "assembly"])
def test_text_that_does_not_compile_is_our_fault(kind: str, wrong: str, headers: Path) -> None:
    with pytest.raises(CompilerFault) as raised:
        compile_cubin(WITH_HEADERS + wrong, "sm_80", compiler=_needed(kind), cache=None)
    fault = raised.value
    assert "does not compile the generated CUDA C for sm_80" in str(fault) and "error" in str(fault)
    assert fault.source.endswith(wrong) and "#define B 41" in fault.source and "error" in fault.log


# -- targets -----------------------------------------------------------------------------------------------------------


def test_targets() -> None:
    assert list(TARGETS) == ["sm_75", "sm_80", "sm_90", "sm_90a"]
    assert find_target("sm_90a").virtual == "compute_90a" and find_target("sm_90a").capability == (9, 0)
    assert target_of_device((9, 0)).name == "sm_90a" and target_of_device((8, 6)).name == "sm_86" and target_of_device((12, 0)).capability == (12, 0)
    assert any_target("sm_100a").virtual == "compute_100a"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sm90", "there is no target 'sm90'\n  hint: did you mean 'sm_90'?"),
        ("turing", "targets: sm_75, sm_80, sm_90, sm_90a"),
        ("sm_70", "there is no target 'sm_70'"),
        ("", "targets: sm_75"),
    ],
)
def test_no_such_target(name: str, words: str) -> None:
    with pytest.raises(GraphError, match="there is no target") as raised:
        find_target(name)
    assert words in str(raised.value)


def test_devices_that_are_too_old() -> None:
    with pytest.raises(GraphError, match="sm_70 is older than sm_75"):
        target_of_device((7, 0))


@pytest.mark.parametrize("kind", ["nvrtc", "nvcc"])
def test_a_target_that_the_compiler_does_not_know(kind: str) -> None:
    with pytest.raises(ToolFailure) as raised:
        compile_cubin(TEXT, Target("sm_99"), compiler=_needed(kind), cache=None)
    text = str(raised.value)
    assert "no compiler knows sm_99" in text and "compiles for sm_75, sm_80" in text and "pip install 'nvidia-cuda-nvrtc" in text


def test_another_compiler_may_know_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _any()
    monkeypatch.setattr(toolchain, "find_compilers", lambda: [Old(Path("/old")), found])
    assert kernel_names(compile_cubin(TEXT, "sm_80", cache=None).image) == ["plain", "rows"]
    assert ".entry" in compile_ptx(TEXT, "sm_80")


@dataclass(frozen=True)
class Old(Compiler):
    """A compiler that knows no target."""

    name: ClassVar[str] = "old"

    def files(self) -> list[Path]:
        return []

    def compile(self, source: str, headers: Mapping[str, str], target: Target, result: Result) -> tuple[bytes, str]:
        raise TargetUnknown("old", ["sm_60"])


# -- finding -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No toolkit anywhere; a folder to put some in."""
    for name in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if not Path("/usr/bin/nvcc").exists() else "/bin")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(compilers, "_usual_places", list)
    monkeypatch.setattr(compilers, "_SYSTEM_LIBRARIES", ())
    return tmp_path


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _toolkit(folder: Path) -> Path:
    _program(folder / "bin" / "nvcc", "exit 1")
    (folder / "bin" / "nvcc.profile").touch()
    (folder / "lib64").mkdir()
    (folder / "lib64" / "libnvrtc.so.13").touch()
    return folder


def test_nothing_is_found(nowhere: Path) -> None:
    assert list(find_compilers()) == []
    for call in (lambda: compile_cubin(TEXT, "sm_80", cache=None), lambda: compile_ptx(TEXT, "sm_80")):
        with pytest.raises(MissingPackage) as raised:
            call()
        assert str(raised.value) == (
            "error: CUDA C can't be compiled: there is neither NVRTC nor nvcc\n"
            "  hint: pip install 'nvidia-cuda-nvrtc>=13,<14' (58 MB, no GPU needed); or set CUDA_HOME to the folder of a CUDA toolkit"
        )
    with pytest.raises(MissingPackage, match="there is no nvdisasm") as raised:
        disassemble(b"")
    assert "pip install 'nvidia-cuda-nvdisasm>=13.2,<14'" in str(raised.value)


def test_where_compilers_are_looked_for(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit, packages, old = _toolkit(nowhere / "kit"), _toolkit(nowhere / "site" / "nvidia" / "cu13"), nowhere / "site" / "nvidia" / "cuda_nvrtc" / "lib"
    old.mkdir(parents=True)
    for name in ("libnvrtc.so.12", "libnvrtc.alt.so.12", "libnvrtc-builtins.so.12.9"):
        (old / name).touch()
    libraries = [packages / "lib64" / "libnvrtc.so.13", old / "libnvrtc.so.12"]
    assert list(find_compilers()) == [*map(Nvrtc, libraries), Nvcc(packages / "bin" / "nvcc")]
    assert Nvrtc(libraries[1]).files() == [libraries[1], old / "libnvrtc-builtins.so.12.9"]
    monkeypatch.setenv("CUDA_HOME", str(kit))
    libraries.insert(0, kit / "lib64" / "libnvrtc.so.13")
    assert list(find_compilers()) == [*map(Nvrtc, libraries), Nvcc(kit / "bin" / "nvcc"), Nvcc(packages / "bin" / "nvcc")]
    monkeypatch.setenv("CUDA_HOME", "kit")  # relative: of the folder somebody happens to be in
    monkeypatch.chdir(nowhere)
    assert len(list(find_compilers())) == 3


def test_scripts_on_the_path_lead_to_the_toolkit(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = _toolkit(nowhere / "kit")
    script = _program(nowhere / "scripts" / "nvcc", f'echo "#\\$ _HERE_={kit}/bin" >&2')
    _program(nowhere / "other" / "nvcc", "echo no compiler at all")
    monkeypatch.setenv("PATH", f"relative::{script.parent}:{nowhere / 'other'}:{os.environ['PATH']}")
    _program(nowhere / "relative" / "nvcc", "exit 0")
    monkeypatch.chdir(nowhere)
    assert list(find_compilers()) == [Nvcc(kit / "bin" / "nvcc"), Nvcc(nowhere / "other" / "nvcc")]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("sleep 1000 & sleep 1000", "has not finished after 0.3 seconds"),
        ("kill -SEGV $$", "fails with status -11"),
        ("echo 'nvcc fatal   : odd'; exit 1", "fails with status 1: nvcc fatal   : odd"),
        ("echo 'nvcc fatal : Failed to preprocess host compiler properties.'; exit 1", "nvcc needs a host compiler"),
    ],
)
def test_tools_that_do_not_work(script: str, words: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "SECONDS", 0.3)
    tool = Nvcc(_program(nowhere / "bin" / "nvcc", script))
    with pytest.raises(MissingPackage) as raised:
        compile_cubin(TEXT, "sm_80", compiler=tool, cache=None)
    assert words in str(raised.value)


def test_a_library_that_does_not_work(tmp_path: Path) -> None:
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(b"no library")
    with pytest.raises(ToolFailure, match=r"libnvrtc\.so\.13 does not work: .*(invalid ELF header|file too short)"):
        compile_cubin(TEXT, "sm_80", compiler=Nvrtc(library), cache=None)
    with pytest.raises(ToolFailure, match="can't be started"):
        compile_cubin(TEXT, "sm_80", compiler=Nvcc(tmp_path / "none"), cache=None)


def test_the_default_target_follows_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for devices, wanted in (((), "sm_80"), (((7, 0),), "sm_80"), (((7, 5), (9, 0)), "sm_90a"), (((8, 9),), "sm_89")):
        monkeypatch.setattr(toolchain, "device_capabilities", lambda devices=devices: devices)
        target, why = toolchain.choose_target()
        assert target.name == wanted and ("no device" in why) == (wanted == "sm_80")


# -- the cache ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting(Compiler):
    """A compiler that says how often it was called."""

    name: ClassVar[str] = "counting"
    image: bytes = b""
    calls: list[str] = field(default_factory=list, compare=False)

    def files(self) -> list[Path]:
        return [self.path]

    def compile(self, source: str, headers: Mapping[str, str], target: Target, result: Result) -> tuple[bytes, str]:
        self.calls.append(target.name)
        return self.image, "a log"


@pytest.fixture
def counting(tmp_path: Path) -> Counting:
    tool = tmp_path / "tool"
    tool.write_text("one")
    return Counting(tool, image=compile_cubin(TEXT, "sm_80", compiler=_any(), cache=None).image)


def test_machine_code_is_kept(counting: Counting, headers: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")

    def calls(source: str = WITH_HEADERS, target: str = "sm_80") -> int:
        before = len(counting.calls)
        compiled = compile_cubin(source, target, compiler=counting, cache=cache)
        assert compiled.image == counting.image and compiled.log == "a log" and compiled.usage["rows"].shared == 512
        return len(counting.calls) - before

    assert [calls(), calls()] == [1, 0]
    assert [calls(target="sm_90"), calls(target="sm_90a"), calls(target="sm_90")] == [1, 1, 0]
    assert [calls(WITH_HEADERS + " "), calls(WITH_HEADERS + " ")] == [1, 0]
    (headers / "b.h").write_text("#define B 40\n")
    assert [calls(), calls()] == [1, 0]
    (headers / "unused.h").write_text("#error no\n")
    assert calls() == 0
    counting.path.write_text("two, another version")
    assert [calls(), calls()] == [1, 0]


@pytest.mark.parametrize("damage", ["header", "contents", "truncated", "no cubin"])
def test_damaged_entries_are_made_anew(damage: str, counting: Counting, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    compile_cubin(TEXT, "sm_80", compiler=counting, cache=cache)
    (entry,) = (p for p in cache.folder.iterdir())
    data = bytearray(entry.read_bytes())
    if damage == "no cubin":  # whole, but written by something else
        cache.put(bytes.fromhex(entry.name), struct.pack("<Q", 3) + b"log" + b"no cubin")
    elif damage == "truncated":
        entry.write_bytes(data[:-100])
    else:
        data[20 if damage == "header" else 2000] ^= 1
        entry.write_bytes(data)
    assert compile_cubin(TEXT, "sm_80", compiler=counting, cache=cache).image == counting.image and len(counting.calls) == 2
    assert compile_cubin(TEXT, "sm_80", compiler=counting, cache=cache).image == counting.image and len(counting.calls) == 2


# -- cubins ------------------------------------------------------------------------------------------------------------


def test_damaged_cubins_are_no_cubins() -> None:
    image = compile_cubin(TEXT, "sm_80", compiler=_any(), cache=None).image
    for size in (0, 4, 19, 63, 64, 200, len(image) // 2, len(image) - 1):
        with pytest.raises(NotACubin):
            kernel_usage(image[:size])
    with pytest.raises(NotACubin, match="no cubin"):
        kernel_usage(b"\x7fELF\x02\x01" + bytes(200))
    for at in range(0, len(image), 7):  # whatever else it is, it is nothing worse
        broken = image[:at] + bytes([image[at] ^ 0x81]) + image[at + 1 :]
        try:
            found = kernel_usage(broken)
        except NotACubin:
            continue
        assert all(isinstance(u, Usage) for u in found.values())


def test_the_worker_keeps_what_libraries_print_apart(tmp_path: Path) -> None:
    worker = Path(compilers.__file__).with_name("_worker.py")
    done = subprocess.run([sys.executable, "-I", "-S", worker], input=b'{"do": "devices", "library": "none.so"}\n', capture_output=True, check=False)
    assert done.returncode == 1 and done.stdout == b"" and b"none.so" in done.stderr
