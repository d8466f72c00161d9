"""The words of the headers: they compile for every target and spill nothing; what the CPU gives is what they mean; differences are found."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codegen.cuda import compilers, host_build
from codegen.cuda.drivers import open_driver
from codegen.cuda.emulation import EmulatedDriver
from codegen.cuda.targets import TARGETS
from codegen.cuda.toolchain import compile_cubin
from tests.cuda.conformance import compare, differences, main, run, source_of
from tests.cuda.conformance_cases import all_cases
from tests.cuda.device import DEVICE, EMULATED

CASES = all_cases()
BY_NAME = {c.name: c for c in CASES}
TRIED = list(TARGETS) if os.environ.get("GRAPH_OPT_CUDA_ALL") == "1" else ["sm_75", "sm_90a"]
"""The header has one text for the first target and one for the others: the rest with GRAPH_OPT_CUDA_ALL=1."""
INTERNAL = {
    "go_swap", "go_peek", "go_move", "go_move_aligned", "go_carried", "go_join_add", "go_join_mul", "go_join_max", "go_join_min", "go_join_and",
    "go_join_or", "go_pair", "go_mma_step", "go_tf32_bits", "go_half_bits_to_float", "go_float_to_half_bits", "go_float_to_bf16_bits", "go_odd_float",
}  # fmt: skip
"""What other words of the headers consist of."""

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def words_of_the_headers() -> Iterator[str]:
    """Every function that the device's headers define, with those that macros make."""
    for name in ("device", "vector", "scalar", "math"):
        text = (host_build.INCLUDE / f"graph_opt_{name}.h").read_text(encoding="utf-8")
        functions = re.findall(r"GO_DEVICE (?:[\w:]+(?:<[^>]*>)? [*&]?)+(go_\w+(?:##\w+)?)\(", text)
        for found in functions + re.findall(r"GO_DEVICE T (go_to_##NAME(?:##_64)?)\(", text):
            ends = ("i8", "u8", "i16", "i32", "i64") if found.startswith("go_to_##") else ("i32", "i64")
            ends = ("add", "mul", "max", "min", "and", "or") if "KIND" in found else ends
            yield from (re.sub(r"##(NAME|KIND)", end, found).replace("##", "") for end in ends) if "##" in found else (found,)


def test_every_word_is_in_the_table() -> None:
    text = source_of(CASES)
    words = set(words_of_the_headers())
    assert {"go_max", "go_floordiv_i64", "go_to_u8_64", "go_mma_tf32", "go_warp_reduce_or", "go_exp", "go_fail", "go_cp_wait"} <= words
    assert not [w for w in sorted(words - INTERNAL) if not re.search(rf"\b{w}\b", text)]
    assert words >= INTERNAL


@pytest.mark.skipif(not any(compilers.find_compilers()), reason="there is neither NVRTC nor nvcc (pip install nvidia-cuda-nvrtc)")
@pytest.mark.parametrize("target", TRIED)
def test_every_word_compiles_for_every_target(target: Any) -> None:
    usage = compile_cubin(source_of(CASES), target, cache=None).usage
    assert set(usage) == set(BY_NAME)
    assert not [n for n, u in usage.items() if u.spill_stores]


@needs_gxx
def test_the_cpu_gives_what_the_words_mean() -> None:
    found = dict(zip(BY_NAME, run(EmulatedDriver(), CASES), strict=True))
    with np.errstate(all="ignore"):
        for name, dtype in (("half", np.float16), ("bf16", ml_dtypes.bfloat16)):
            for case in (BY_NAME[f"to_{name}"], BY_NAME[f"to_{name}64"]):
                expected = case.inputs[0].astype(dtype).view(np.uint16)
                if not case.name.endswith("64"):  # numpy and ml_dtypes round doubles twice
                    assert not differences(case, expected, found[case.name])
            case = BY_NAME[f"from_{name}"]
            assert not differences(case, case.inputs[0].view(dtype).astype(np.float32), found[case.name])
        case = BY_NAME["floats"]
        a, b = case.inputs
        parts = dict(zip(case.words, found["floats"].reshape(len(case.words), -1), strict=True))
        meant = {"go_max": np.maximum(a, b), "go_min": np.minimum(a, b), "a / b": a / b, "sqrtf": np.sqrt(a), "rintf": np.rint(a)}
        for word, expected in meant.items():
            assert np.array_equal(parts[word], expected, equal_nan=True), word
    for size in (4, 8, 16):
        x, got = BY_NAME[f"copies_{size}"].inputs[0], found[f"copies_{size}"].reshape(size + 3, 2, 64, size)
        rows = x[: 64 * size].reshape(64, size)
        t = np.arange(64)
        for valid in range(-1, size + 2):
            kept = np.where(np.arange(size) < valid, rows, 0)
            assert np.array_equal(got[valid + 1, 0], kept[t ^ 5])
            assert np.array_equal(got[valid + 1, 1], rows[63 - (t ^ 9)])
    for name in ("ldmatrix_4_false_half", "ldmatrix_4_true_bf16"):
        rows = BY_NAME[name].inputs[0].reshape(32, 8)[np.arange(32) ^ 2].reshape(4, 8, 8)
        matrices = rows.transpose(0, 2, 1) if "true" in name else rows
        assert np.array_equal(found[name].reshape(32, 4, 2), matrices.reshape(4, 32, 2).transpose(1, 0, 2))
    x = BY_NAME["tf32_rounding"].inputs[0].view(np.uint32)  # of a, rows are g and g + 8, columns t and t + 4; of the result 2 t and 2 t + 1
    a, d = np.zeros((16, 8), np.uint32), found["tf32_rounding"].view(np.uint32).reshape(32, 4)
    for lane in range(32):
        for i in range(4):
            a[lane // 4 + 8 * (i % 2), lane % 4 + 4 * (i // 2)] = x[4 * lane + i]
    for lane in range(32):
        for i in range(4):
            assert d[lane, i] == ((a[lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2] + 0x1000) & 0xFFFFE000)
    state = found["fail"]
    assert state[0] == 6 and state[2] == 101 and state[4:6].view(np.int64)[0] == -3000000000


@pytest.mark.skipif(EMULATED, reason="the CPU is the same as itself")
def test_a_device_beside_the_cpu() -> None:
    """On a machine with a card; ``make gpu-conformance`` does the same, word by word."""
    assert not [line for line in compare(EmulatedDriver(), open_driver(DEVICE), CASES) if line[1]]


def with_header(folder: Path, header: str, line: str, other: str) -> tuple[str, ...]:
    """Options for g++ with which one line of a header is another one; the headers are copied to a folder."""
    shutil.copytree(host_build.INCLUDE, folder)
    text = (folder / header).read_text(encoding="utf-8")
    assert text.count(line) == 1, "the line to change is not there"
    (folder / header).write_text(text.replace(line, other), encoding="utf-8")
    return tuple(f"-I{folder}" if o == f"-I{host_build.INCLUDE}" else o for o in host_build._COMMON)


PLANTED = (
    ("graph_opt_scalar.h", "x > y ? x : y; /* -0", "x < y ? x : y; /* -0", "floats", {"go_max"}),
    ("graph_opt_scalar.h", "(bits + 0x7fff + (bits >> 16 & 1)) >> 16", "(bits + 0x8000) >> 16", "to_bf16", {"go_to_bf16"}),
    (
        "graph_opt_host.h", "4 * g + lane, line", "4 * g + (lane ^ 1), line", "mma_half_exact",
        {"go_mma(go_half) of exact numbers", "go_mma(go_half) of magnitudes"},
    ),
)  # fmt: skip
"""A header, a line of it and another one in its place, the kernels that are compared, words that differ then."""


@needs_gxx
@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: str(p[3]))
def test_planted_differences_are_found(
    planted: tuple[str, str, str, str, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    header, line, other, match, words = planted
    options = with_header(tmp_path / "include", header, line, other)

    class Planted(EmulatedDriver):
        def build(self, source: str) -> bytes:
            with monkeypatch.context() as patch:
                patch.setattr(host_build, "_COMMON", options)
                return super().build(source + "\n// with another header\n")

    monkeypatch.setattr("tests.cuda.conformance.open_driver", lambda name: Planted() if name == "cuda" else EmulatedDriver())
    assert main(["--match", match, "--floats", "64"]) == 1
    differing = {line.split(": ")[1] for line in capsys.readouterr().out.splitlines() if " differ, the first at " in line}
    assert words == differing
    assert main(["--match", match, "--floats", "64", "--device", "cuda-emulated"]) == 0


def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPH_OPT_CUDA_DRIVER", "none such")
    assert main(["--match", "fail"]) == 1
    assert "GRAPH_OPT_CUDA_DRIVER=none such: expected pycuda or cuda-core" in capsys.readouterr().out
