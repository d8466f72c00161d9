"""Examples of operations as kernels beside the interpreter: some of them here, all with GRAPH_OPT_CUDA_ALL=1 and in ``make gpu-numerics``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codegen.cuda import host_build
from tests.cuda.device import DEVICE, EMULATED, needs_device
from tests.cuda.numerics import examples, run_example
from tests.cuda.test_conformance import needs_gxx, with_header

SOME = ("graph.linear-0", "graph.layernorm-0")
KEYS = examples("graph.") if os.environ.get("GRAPH_OPT_CUDA_ALL") == "1" else SOME


@needs_device
@pytest.mark.parametrize("key", KEYS)
def test_an_operation_on_a_device(key: str) -> None:
    assert run_example(DEVICE, key).startswith("ok ")


@needs_gxx
@pytest.mark.skipif(not EMULATED, reason="headers of a card stay as they are")
def test_a_wrong_operation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = with_header(tmp_path / "include", "graph_opt_scalar.h", "x > y ? x : y; /* -0", "x < y ? x : y; /* -0")
    monkeypatch.setattr(host_build, "_COMMON", options)
    monkeypatch.setattr(host_build, "_built", {})
    assert "output 0: -inf at [0]" in run_example("cuda-emulated", "graph.max-0")
