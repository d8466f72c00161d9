"""The benchmarks on a GPU, without one: the emulated device beside numpy, which tells no times; a fake driver; what a report says."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_opt
from bench.gpu import report
from bench.gpu.__main__ import main
from bench.gpu.llama import SMOLLM2, TINY, choosing, text, weights, write_safetensors
from bench.gpu.row import Row
from bench.gpu.timing import Plan, Timing
from bench.gpu.work import COMPILED, COPY, EAGER, OURS, Wanted, distance
from bench.gpu.works import all_works
from interop import open_weights
from ir.inference import infer_module
from tests.cuda import fake_driver
from tests.cuda.test_runtime_drivers import is_there

ROOT = Path(__file__).parents[2]
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_gxx
def test_the_whole_flow_on_the_emulated_device_tells_no_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda-emulated", "--tiny", "--no-torch", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["label"] == "emulated" and len(found["rows"]) == 17
    assert not any(r["seconds"] or r["bad"] or r["met"] is not None for r in found["rows"])
    assert all(" from " in r["check"] for r in found["rows"])
    markdown = (tmp_path / "gpu.md").read_text()
    assert "nothing is said about speed" in markdown and "decode bf16, tiny" in markdown
    for said in (out, markdown):
        assert not any(unit in said for unit in (" us", " ms", "GB/s", "FLOP/s", "tokens/s"))
    assert not (tmp_path / "gpu-paragraph.md").exists()


FAKE = """
import sys
import tests.cuda.on_fake_driver
from bench.gpu.__main__ import main
sys.exit(main(["--device", "cuda", "--tiny", "--quick", "--no-torch", "--part", "rows,launch,decode", "--match", "f", "--out", sys.argv[1]]))
"""


@needs_gxx
def test_what_is_timed_goes_through_a_driver(tmp_path: Path) -> None:
    """On a fake one the numbers mean nothing; graphs, events and copies are those of a card."""
    if not is_there("cuda-core"):
        pytest.skip("cuda-bindings is not installed")
    environment = fake_driver.environment(GRAPH_OPT_CUDA_DRIVER="cuda-core", PYTHONPATH=str(ROOT))
    command = [sys.executable, "-c", FAKE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    rows = {r["name"]: r for r in found["rows"]}
    assert found["label"] == "measured" and found["card"]["card"] == "Fake GPU"
    assert set(rows["softmax 3x72"]["seconds"]) == {OURS, COPY} and rows["softmax 3x72"]["beside"][COPY] > 0
    assert set(rows["add f32[1024], calls in a row"]["seconds"]) == {OURS, "empty kernel", "graph of an empty kernel"}
    assert rows["decode f32, tiny"]["seconds"][OURS]["median"] > 0 and rows["decode f32, tiny"]["met"] is None
    assert "softmax 3x72" in (tmp_path / "gpu-paragraph.md").read_text()


def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPH_OPT_CUDA_DRIVER", "none such")
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert "bench.gpu needs a card" in capsys.readouterr().out and not (tmp_path / "out").exists()
    assert main(["--device", "cuda-emulated"]) == 2 and main(["--part", "rows,columns"]) == 2
    assert "there is no part columns" in capsys.readouterr().out


def timed(*seconds: float) -> Timing:
    return Timing(list(seconds))


def test_what_a_report_says() -> None:
    softmax = {OURS: timed(1e-3, 1e-3, 1.3e-3), COPY: timed(0.95e-3), EAGER: timed(1.5e-3)}
    rows = [
        Row("softmax", "rows", 4e9, 0, Wanted(COPY, 0.9), softmax, "1e-7 from torch"),
        Row("matmul", "products", 1e8, 2e12, Wanted(EAGER, 0.85), {OURS: timed(2e-3), EAGER: timed(1e-3)}),
        Row("mlp", "mlp", 1e8, 2e12, Wanted(COMPILED, 1.0), {OURS: timed(2e-3)}),
        Row("add, calls in a row", "launch", wanted=Wanted("", 10.0), timings={OURS: timed(4e-6), "empty kernel": timed(2e-6)}),
        Row("wrong", "rows", check="0.5 from torch", bad=True, notes=["results differ"]),
    ]
    assert [r.met for r in rows] == [True, False, None, True, None]
    clocks = {"clocks.sm": "1980 MHz", "clocks.max.sm": "1980 MHz"}
    run = report.Run("measured", {"card": "C"}, {"torch": "2"}, Plan(), {"driver_version": "580"}, clocks, rows)
    text = report.text(run)
    lines = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in text.splitlines() if line.startswith("|")}
    assert lines["softmax"] == ["1.00 ms ~", "4000 GB/s", "950 us", "1.50 ms", "", ">= 90% of copy", "95%", "met"]
    assert lines["matmul"] == ["2.00 ms", "1000.0 TFLOP/s", "", "1.00 ms", "", ">= 85% of torch", "50%", "missed"]
    assert lines["mlp"] == ["2.00 ms", "1000.0 TFLOP/s", "", "", "", ">= 1 x torch.compile", "", ""]
    assert lines["add, calls in a row"] == ["4.00 us", "", "2.00 us", "", "at most 10 us", "4.00 us", "met"]
    assert lines["wrong"][-1] == "WRONG" and "- wrong: 0.5 from torch; results differ" in text and [r.name for r in run.failed] == ["wrong"]
    assert "on C (driver 580; clock 1980 MHz of 1980 MHz; torch 2)" in report.paragraph(run)
    assert json.loads(report.as_json(run))["rows"][0]["beside"] == {COPY: 0.95, EAGER: 1.5}


def test_distances() -> None:
    one = np.array([1.0, 2.0, np.inf], np.float32)
    assert distance(one, one) == 0 and distance(one, np.array([1, 1.5, np.inf])) == 1 / 3
    assert distance(one, np.array([1, 2, 3.0])) == np.inf and distance(one, one[:2]) == np.inf and distance(one[:0], one[:0]) == 0


def test_works_in_full_size_are_programs() -> None:
    """What is too large to run here has types, and moves as many bytes as it says."""
    for work in all_works():
        module = graph_opt.parse(work.text)
        infer_module(module)
        graph = module.graphs["main"]
        types: list[Any] = [*(p.type for p in graph.parameters), *(v.type for v in graph.results)]
        counted = [t for t in types if len(t.shape) > 1 or work.part == "mlp"]  # vectors of norms stay in caches
        assert sum(math.prod(t.shape) * t.dtype.numpy.itemsize for t in counted) == work.nbytes, work.name
        assert [t.shape for t in types[: len(work.inputs)]] == [i.shape for i in work.inputs]
    for dtype in ("f32", "bf16"):
        infer_module(graph_opt.parse(text(SMOLLM2, dtype)))
    infer_module(graph_opt.parse(choosing(SMOLLM2)))
    assert 130e6 < SMOLLM2.parameters < 140e6


def test_weights_are_read_as_they_were_written(tmp_path: Path) -> None:
    for dtype in ("f32", "bf16"):
        given = weights(TINY, dtype)
        write_safetensors(tmp_path / "w.safetensors", given)
        source = open_weights(tmp_path / "w.safetensors")
        for name, array in given.items():
            assert np.array_equal(np.asarray(source.read(name)).view(np.uint8), array.view(np.uint8)), name
