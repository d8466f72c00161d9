"""--emit gpu, cuda, ptx, cubin, sass, and --target."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.cuda import compilers, toolchain
from codegen.cuda.compilers import Nvcc, find_compilers
from codegen.cuda.cubin import instructions, kernel_names
from codegen.cuda.targets import TARGETS
from graph_opt.cli import main

ROOT = Path(__file__).parents[2]
MLP = str(ROOT / "samples" / "mlp.graph")
BARE = str(ROOT / "samples" / "mlp_bare.graph")

KERNEL = """graph @twice(%x: f32[B]) -> f32[B] {
  %a = memref.from_tensor(%x) : memref<f32[B]>
  %c = memref.alloc() : memref<f32[B]>
  gpu.launch(%b = 0 to B, threads=1, name="twice") {
    %p = memref.load(%a[%b]) : f32
    %s = arith.addf(%p, %p) : f32
    memref.store(%s, %c[%b])
    yield
  }
  %y = memref.to_tensor(%c) : f32[B]
  return %y
}
"""
LARGE = """graph @main(%C: memref<f32[B]>) {
  gpu.launch(%b = 0 to B, threads=32, name="large") {
    %s = gpu.alloc() : memref<f32[20000], shared>
    %t = gpu.thread_id() : index
    %one = arith.constant(1.0) : f32
    memref.store(%one, %s[%t])
    gpu.barrier()
    %r = memref.load(%s[-%t+31]) : f32
    memref.store(%r, %C[%b])
    yield
  }
  return
}
"""

needs_compiler = pytest.mark.skipif(not any(find_compilers()), reason="there is neither NVRTC nor nvcc (pip install nvidia-cuda-nvrtc)")


def _has_disassembler() -> bool:
    return next(compilers.find_programs("nvdisasm"), None) is not None


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    path = tmp_path / "kernel.graph"
    path.write_text(KERNEL)
    return str(path)


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "device_capabilities", tuple)


# -- levels ------------------------------------------------------------------------------------------------------------


def test_the_level_of_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, "--emit", "gpu"]) == 0
    emitted = capsys.readouterr().out
    assert main([MLP, "--pipeline", "cuda"]) == 0
    assert emitted == capsys.readouterr().out and "gpu.launch(" in emitted and "matmul(" not in emitted


def test_older_targets_have_other_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "product.graph"
    path.write_text("graph @main(%a: bf16[M, 512], %b: bf16[512, 512]) -> bf16[M, 512] {\n  %c = matmul(%a, %b)\n  return %c\n}\n")
    emitted = {}
    for target in ("sm_75", "sm_80"):
        assert main([str(path), "--emit", "gpu", "--target", target]) == 0
        emitted[target] = capsys.readouterr().out
        assert main([str(path), "--emit", "cuda", "--target", target]) == 0
        assert ("gpu.mma(" in emitted[target]) == ("go_mma(" in capsys.readouterr().out) == (target != "sm_75")
    assert main([str(path), "--pipeline", "cuda-sm75"]) == 0
    assert capsys.readouterr().out == emitted["sm_75"]


def test_a_program_of_kernels_is_taken_as_it_is(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel, "--emit", "gpu"]) == 0
    assert capsys.readouterr().out == KERNEL
    for emit in ("graph", "linalg", "loops"):
        assert main([kernel, "--emit", emit]) == 1
        assert f"error: the program is at the level 'gpu', it can't be emitted as '{emit}'\n  hint: --emit gpu" in capsys.readouterr().err
    assert main([kernel, "--emit", "llvm"]) == 1
    assert f"{kernel}:4:3: error: codegen: no native code for 'gpu.launch'" in capsys.readouterr().err


def test_types_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    for emit in ("gpu", "cuda", "cubin"):
        assert main([BARE, "--emit", emit]) == 1
        assert f"%w1 has no known type, which --emit {emit} needs" in capsys.readouterr().err
    shapes = [f"--shape={n}=f32[{s}]" for n, s in (("x", "B,4"), ("w1", "4,6"), ("b1", "6"), ("w2", "6,3"))]
    assert main([BARE, "--emit", "cuda", *shapes]) == 0
    assert 'extern "C" __global__' in capsys.readouterr().out


def test_the_preset_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "cuda"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("cuda is the pipeline\n\n  O1,") and out.index("lower-to-loops") < out.index("map-serial") < out.index("plan-memory")


# -- CUDA C ------------------------------------------------------------------------------------------------------------


def test_cuda(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel, "--emit", "cuda", "--target", "sm_75"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "" and '#include "graph_opt_device.h"' in captured.out and re.search(r"\bk_twice\w*\(", captured.out)


def test_open_dimensions_are_parameters_of_kernels(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, "--emit", "cuda"]) == 0
    assert re.search(r"(long long|go_index) B\b", capsys.readouterr().out)


def test_which_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.graph"
    path.write_text(KERNEL + "\n" + KERNEL.replace("twice", "again"))
    assert main([str(path), "--emit", "cuda"]) == 1
    assert "which graph?" in capsys.readouterr().err
    assert main([str(path), "--emit", "cuda", "--graph", "again"]) == 0
    out = capsys.readouterr().out
    assert "again" in out and "twice" not in out


def test_what_is_no_kernel_is_said_where_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, "--emit", "cuda", "--pipeline", "O1"]) == 1
    assert re.search(r"mlp\.graph:3:9: error: codegen: matmul", capsys.readouterr().err)


# -- compilers ---------------------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("target", TARGETS)
def test_targets(target: str, kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel, "--emit", "ptx", "--target", target]) == 0
    captured = capsys.readouterr()
    assert f".target {target}\n" in captured.out and captured.err == ""
    assert main([kernel, "--emit", "cubin", "--target", target, "-o", str(tmp_path / "out.cubin")]) == 0
    assert len(kernel_names((tmp_path / "out.cubin").read_bytes())) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernel.graph", "out.cubin"]


@needs_compiler
def test_without_a_target_one_is_chosen_and_said(kernel: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([kernel, "--emit", "ptx"]) == 0
    captured = capsys.readouterr()
    assert ".target sm_80\n" in captured.out and captured.err == "target sm_80: there is no device here; --target names another one\n"
    monkeypatch.setattr(toolchain, "device_capabilities", lambda: ((7, 5), (9, 0)))
    assert main([kernel, "--emit", "ptx"]) == 0
    captured = capsys.readouterr()
    assert ".target sm_90a\n" in captured.out and captured.err.startswith("target sm_90a: of the newest device here, compute capability 9.0;")


@needs_compiler
@pytest.mark.skipif(not _has_disassembler(), reason="there is no nvdisasm (pip install nvidia-cuda-nvdisasm)")
def test_sass(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel, "--emit", "sass", "--target", "sm_90a"]) == 0
    out = capsys.readouterr().out
    assert any("twice" in name and found["FADD"] == 1 for name, found in instructions(out).items())


@needs_compiler
def test_machine_code_goes_to_files_and_pipes(kernel: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "graph_opt.cli", kernel, "--emit", "cubin", "--target", "sm_80"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    assert done.stdout.startswith(b"\x7fELF") and done.stderr == b""
    leader, follower = os.openpty()
    try:
        refused = subprocess.run(command, stdout=follower, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    finally:
        os.close(leader)
        os.close(follower)
    assert refused.returncode == 2 and refused.stderr == "graph-opt: error: --emit cubin writes bytes: give a file with -o, or a pipe\n"


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--target", "sm_80"], "--target is for --emit gpu, cuda, ptx, cubin, sass"),
        (["--emit", "loops", "--target", "sm_80"], "--target is for --emit gpu, cuda, ptx, cubin, sass"),
        (["--emit", "cuda", "--target", "sm_90b"], "there is no target 'sm_90b'; did you mean 'sm_90"),
        (["--emit", "cuda", "--target", "hopper"], "there is no target 'hopper'; targets: sm_75, sm_80, sm_90, sm_90a, sm_86"),
        (["--emit", "cubin", "--print-locs"], "--print-locs is for programs, not for --emit cubin"),
    ],
)
def test_wrong_usage(flags: list[str], words: str, kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([kernel, *flags]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.out == ""


def test_without_a_compiler(kernel: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_compilers", tuple)
    assert main([kernel, "--emit", "cubin", "--target", "sm_80"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("graph-opt: error: CUDA C can't be compiled: there is neither NVRTC nor nvcc\n") and "pip install 'nvidia-cuda-nvrtc" in err
    assert main([kernel, "--emit", "cuda", "--target", "sm_80"]) == 0


def test_shared_memory_that_a_target_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "large.graph"
    path.write_text(LARGE)
    assert main([str(path), "--emit", "cuda", "--pipeline", "infer-types,plan-shared", "--target", "sm_80"]) == 0
    capsys.readouterr()
    assert main([str(path), "--emit", "cuda", "--pipeline", "infer-types,plan-shared", "--target", "sm_75"]) == 1
    assert capsys.readouterr().err.startswith(f"{path}:2:3: error: kernel ")


def test_text_that_does_not_compile(kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvcc"
    said = ("kernels.cu(3): error: odd text", '1 error detected in the compilation of "kernels.cu".')
    tool.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}' >&2" for line in said), "exit 1", ""]))
    tool.chmod(0o755)
    monkeypatch.setattr(toolchain, "find_compilers", lambda: [Nvcc(tool)])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("GRAPH_OPT_CACHE", "off")
    assert main([kernel, "--emit", "cubin", "--target", "sm_90a"]) == 3
    err = capsys.readouterr().err
    assert "nvcc does not compile the generated CUDA C for sm_90a: kernels.cu(3): error: odd text" in err and "please report it" in err
    saved = Path(re.search(r"^reproducer: (.*\.cu)$", err, re.MULTILINE)[1]).read_text()  # type: ignore[index]
    assert saved.startswith("// nvcc -cubin -arch=sm_90a -fmad=false THIS-FILE\n") and "twice" in saved
    assert saved.endswith("".join(f"// {line}\n" for line in said))
    assert "graph_opt_device.h" in saved and "go_barrier" in saved
