"""The benchmark harness: that it runs, what it leaves out, what it reports.  No timing is judged."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graph_opt
from bench import plots, report
from bench.case import Case, Target
from bench.engines import ENGINES, MACHINE, OURS, PEERS, READ, C
from bench.engines.ours import GraphOpt
from bench.engines.read import Read
from bench.engines.with_numpy import Numpy
from bench.measure import Row, Timing, differences
from bench.quiet import pick_processors
from bench.worker import block
from bench.workloads import all_cases
from bench.workloads.attention import Attention
from bench.workloads.calls import Add
from bench.workloads.matmul import Matmul
from bench.workloads.mlp import Mlp
from bench.workloads.rows import OPS, Rows
from bench.workloads.smollm2 import Step
from graph_opt.limits import LOADS

ROOT = Path(__file__).parents[2]
ANY = Target()
SMALL: list[Case] = [
    Matmul(5, 16, 24, ANY, weight=False),
    Matmul(5, 16, 24, ANY, weight=True),
    Matmul(5, 16, 24, ANY, weight=False, layer=True),
    Matmul(5, 16, 24, ANY, weight=True, layer=True),
    Mlp(3, 8, 16, ANY),
    *(Rows(op, 3, 64, ANY) for op in OPS),
    Attention(6, 6, ANY),
    Attention(1, 9, ANY),
    Add(4, ANY),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_machine_code_and_numpy_compute_the_same(case: Case) -> None:
    ours, theirs = GraphOpt(1).prepare(case), Numpy(1).prepare(case)
    assert theirs is not None
    ours.run(2)
    theirs.run(2)
    assert differences({"numpy": list(theirs.results()), "ours": list(ours.results())}, case.tolerance) == []


def test_every_case_has_a_program_of_its_own_name() -> None:
    cases = all_cases()
    assert {"matmul 512x512x512", "mlp 4,64,256", "rmsnorm 1024x4096", "attention decode 2048", "add f32[4]"} <= set(cases)
    for case in cases.values():
        if not isinstance(case, Step):  # it is imported from the model's file
            graph_opt.load(case.path)


def test_a_limit_is_the_larger_of_operations_and_bytes() -> None:
    rates = {"f32": [2e11, 1e11, 3e11], "L2": [1e11], "L3": [5e10], "DRAM": [1e10]}
    matmul, rows = Matmul(512, 512, 512, ANY, weight=False), Rows("softmax", 1024, 4096, ANY)
    assert Row(matmul, rates=rates).limit() == (matmul.flops / 2e11, "f32")
    assert Row(rows, rates=rates).limit() == (rows.nbytes / 1e10, "DRAM")
    assert Row(Rows("softmax", 8, 64, ANY), rates=rates).limit() == (2 * 4 * 8 * 64 / 1e11, "L2")
    assert Row(matmul).limit() is None
    assert Row(Add(4, ANY), rates=rates).limit() is None


def test_results_are_compared_with_those_of_the_first() -> None:
    one, other = np.arange(4.0), np.array([0, 1, 2, 3.3])
    assert differences({"a": [one], "b": [one.astype(np.float32)]}, 1e-4) == []
    assert differences({"a": [one], "b": [other]}, 1e-4) == ["b and a differ by 9.1e-02 of the largest element"]
    assert differences({"a": [one], "b": [one, one]}, 1e-4) == ["b and a differ by 0.0e+00 of the largest element"]
    assert "differ" in differences({"a": [one], "b": [one * math.nan]}, 1e-4)[0]
    assert "inf" in differences({"a": [one], "b": [one[:3]]}, 1e-4)[0]


def measured(target: Target, **milliseconds: float) -> Row:
    case = Matmul(512, 512, 512, target, weight=True)
    rates = {"f32": [2e11], LOADS: [1.95e11], "L2": [1e11], "L3": [5e10], "DRAM": [1e10]}  # the limit is 1.34 ms
    names = {"ours": OURS, "c": C}
    return Row(case, {names.get(n, n): Timing([t / 1e3] * 3, t / 1e3) for n, t in milliseconds.items()}, rates)


@pytest.mark.parametrize(
    ("row", "threads", "wanted", "said"),
    [
        (measured(Target(share=0.95), ours=1.4, numpy=1.5), 1, "95% of limit, 1 x peers", "met"),
        (measured(Target(share=0.95), ours=2.0, numpy=2.1, jax=2.2), 1, "95% of limit, 1 x peers", "95% of limit missed by 29%"),
        (measured(Target(), ours=2.0, numpy=1.5, jax=1.7), 1, "1 x peers", "1 x peers missed by 25%"),
        (measured(Target(share=0.95), ours=2.0, numpy=3.0), 2, "1 x peers", "met"),
        (measured(Target(c_loop=0.9, peers=2.0), ours=1.0, c=0.8, numpy=2.5), 1, "0.9 x C, 2 x peers", "0.9 x C missed by 11%"),
        (measured(Target(microseconds=2000), ours=1.0), 1, "2000 us", "met"),
        (measured(Target(share=0.95), numpy=1.5), 1, "", ""),
    ],
)
def test_what_is_wanted(row: Row, threads: int, wanted: str, said: str) -> None:
    assert report.verdict(row, threads) == (wanted, said)


def test_the_report_names_limits_engines_and_notes() -> None:
    row = measured(Target(share=0.95), ours=1.4, numpy=1.5)
    row.notes.append("jax: it is broken")
    run = report.Run(1, 3, 10, {"numpy": "numpy 2"}, [row])
    text = report.text(run)
    assert "| matmul 512x512x512 weight | 1.34 ms | f32 | 1.40 ms |      96% |        98% |     numpy | 1.50 ms |  1.07 |" in text
    assert "limits: f32 200.0 (200.0 to 200.0) GFLOP/s, f32 with loads 195.0 (195.0 to 195.0) GFLOP/s" in text
    assert "- matmul 512x512x512 weight: jax: it is broken" in text
    (found,) = json.loads(report.as_json(run))["rows"]
    assert found["engines"]["numpy"]["median"] == pytest.approx(1.5e-3)
    assert found["wishes"][0] == {"what": "95% of limit", "value": pytest.approx(0.9587, abs=1e-3), "least": 0.95}


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "threads-1.json"
    target.write_text(report.as_json(report.Run(1, 3, 10, {}, [measured(ANY, ours=1.4, numpy=1.5, c=1.2)])))
    drawn = plots.plot(target)
    assert [p.name for p in drawn] == ["threads-1-roofline.svg", "threads-1-ratios.svg", "threads-1-shares.svg"]
    assert all("</svg>" in p.read_text() for p in drawn)


def test_a_block_ends_and_repeats_what_is_short() -> None:
    counts: list[int] = []
    times = block(counts.append, 0.002)
    assert times and min(times) > 0
    assert max(counts) > 1


def test_processors_are_those_that_may_be_used() -> None:
    usable = pick_processors(1)
    assert pick_processors(1, str(usable[0])) == usable
    with pytest.raises(ValueError, match="are wanted"):
        pick_processors(1, "100000")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A short run of ours and numpy, with one engine whose interpreter has nothing installed."""
    folder = tmp_path_factory.mktemp("bench")
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    words = ["--match", "add f32", "silu_mul 128", "--engines", f"{OURS},numpy,jax", "--python", f"jax={bare}", "--rounds", "2", "--ms", "2"]
    command = [sys.executable, "-m", "bench", *words, "--out", str(folder)]
    environment = {**os.environ, "TMPDIR": str(folder)}  # the lock is there: nobody is waited for
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def test_a_run_reports_what_it_measured(run: tuple[str, Path]) -> None:
    out, folder = run
    found = json.loads((folder / "threads-1.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["silu_mul 128x576", "add f32[4]"]
    for row in found["rows"]:
        assert set(row["engines"]) == {OURS, "numpy"}
        assert all(len(timing["blocks"]) == 2 and timing["best"] > 0 for timing in row["engines"].values())
        assert set(row["rates"]) == {"f32", LOADS, "L3" if row["bytes"] else "L2"}
        assert row["notes"] == []
    assert found["rows"][0]["limit"][1] == "L3"
    assert (folder / "threads-1.md").read_text() in out


def test_a_missing_engine_is_left_out_with_a_line(run: tuple[str, Path]) -> None:
    out, _ = run
    assert [line for line in out.splitlines() if line.startswith("jax is left out: ")]


def test_unknown_words_are_refused() -> None:
    for words, said in ((["--engines", "nobody"], "unknown engines: nobody"), (["--match", "nothing"], "no work has such a name")):
        done = subprocess.run([sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, said in done.stderr) == (1, True)


def test_peers_are_what_is_compared() -> None:
    assert set(PEERS) < set(ENGINES)
    assert not {OURS, C, READ} & set(PEERS)
    assert set(plots.COLORS) == set(ENGINES) - {MACHINE}


def test_steps_of_a_model() -> None:
    decode, prefill = Step(128, 1, Target(read=0.85)), Step(0, 128, ANY, "int8")
    assert (decode.name, prefill.name) == ("smollm2 decode 128", "smollm2 prefill 128 int8")
    assert len(decode.ids) == 129 and decode.ids == Step(128, 1, ANY).ids
    assert prefill.flops > 50 * decode.flops
    assert Step(2048, 1, ANY).nbytes - decode.nbytes == 4 * 2 * 30 * 3 * 64 * 1920
    assert Numpy(1).prepare(Add(4, ANY)) is not None and Read(1).prepare(Add(4, ANY)) is None


def test_a_plain_read_is_wanted_where_the_case_says_so() -> None:
    row = Row(Step(128, 1, Target(read=0.85)), {OURS: Timing([2.0]), READ: Timing([1.8])})
    assert report.verdict(row, 1) == ("0.85 x read", "met")
    assert report.verdict(row, 2) == ("", "")
    slow = Row(row.case, {OURS: Timing([4.0]), READ: Timing([1.7])})
    assert report.verdict(slow, 1)[1] == "0.85 x read missed by 50%"


def test_plain_reads_are_timed() -> None:
    case = Matmul(5, 16, 24, Target(read=1.0), weight=False)
    ready = Read(1).prepare(case)
    assert ready is not None and list(ready.results()) == []
    ready.run(2)
