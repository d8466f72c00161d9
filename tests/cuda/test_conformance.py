"""The words of the headers: they compile for every target and spill nothing; what the CPU gives is what they mean."""

from __future__ import annotations

import shutil
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from codegen.cuda import compilers
from codegen.cuda.emulation import EmulatedDriver
from codegen.cuda.targets import TARGETS
from codegen.cuda.toolchain import compile_cubin
from tests.cuda.conformance import FLOATS, all_cases, differences, run, source_of

CASES = all_cases()


@pytest.mark.skipif(not any(compilers.find_compilers()), reason="there is neither NVRTC nor nvcc (pip install nvidia-cuda-nvrtc)")
@pytest.mark.parametrize("target", TARGETS)
def test_every_word_compiles_for_every_target(target: Any) -> None:
    usage = compile_cubin(source_of(CASES), target, cache=None).usage
    assert set(usage) == {c.name for c in CASES}
    assert not [n for n, u in usage.items() if u.spill_stores]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_cpu_gives_what_the_words_mean() -> None:
    found = dict(zip((c.name for c in CASES), run(EmulatedDriver(), CASES), strict=True))
    by_name = {c.name: c for c in CASES}
    with np.errstate(over="ignore", invalid="ignore"):
        assert not differences(by_name["to_half"], FLOATS.astype(np.float16).view(np.uint16), found["to_half"])
        assert not differences(by_name["to_bf16"], FLOATS.astype(ml_dtypes.bfloat16).view(np.uint16), found["to_bf16"])
    halves = np.arange(1 << 16, dtype=np.uint16)
    assert not differences(by_name["from_half"], halves.view(np.float16).astype(np.float32), found["from_half"])
    assert not differences(by_name["from_bf16"], halves.view(ml_dtypes.bfloat16).astype(np.float32), found["from_bf16"])
    for size in (4, 8, 16):
        x, got = by_name[f"copies_{size}"].inputs[0], found[f"copies_{size}"].reshape(size + 3, 2, 64, size)
        rows = x[: 64 * size].reshape(64, size)
        t = np.arange(64)
        for valid in range(-1, size + 2):
            kept = np.where(np.arange(size) < valid, rows, 0)
            assert np.array_equal(got[valid + 1, 0], kept[t ^ 5])
            assert np.array_equal(got[valid + 1, 1], rows[63 - (t ^ 9)])
    for name in ("ldmatrix_4_false", "ldmatrix_4_true"):
        rows = by_name[name].inputs[0].reshape(32, 8)[np.arange(32) ^ 2].reshape(4, 8, 8)
        matrices = rows.transpose(0, 2, 1) if name.endswith("true") else rows
        assert np.array_equal(found[name].reshape(32, 4, 2), matrices.reshape(4, 32, 2).transpose(1, 0, 2))
