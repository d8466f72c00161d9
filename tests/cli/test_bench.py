"""graph-opt bench: what it prints, as a table and as JSON, and what it complains about.  No time is judged here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_opt.bench_report import duration, spread
from graph_opt.cli import main
from graph_opt.limits import host_dtypes

MLP = str(Path(__file__).parents[2] / "samples" / "mlp.graph")
FAST = ["--rounds", "2"]


def measured(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["bench", *arguments, *FAST, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured([MLP, "--dims", "B=4"], capsys)
    assert found["graph"] == "mlp" and found["threads"] == 1 and found["dims"] == {"B": 4}
    assert found["inputs"] == {"x": "f32[4, 64]", "w1": "f32[64, 256]", "b1": "f32[256]", "w2": "f32[256, 64]"}
    assert set(found["limits"]["peak"]) == {"f32"} and {"L2", "L3"} <= set(found["limits"]["read"])
    call = found["call"]
    product = 2 * 4 * 64 * 256
    assert call["flops"] == 2 * product + 25 * 4 * 256
    assert call["bytes"] == 4 * (2 * 4 * 64 + 2 * 64 * 256 + 256)
    assert call["flops_per_second"] == pytest.approx(call["flops"] / call["seconds"]["median"])
    assert call["of_limit"] == pytest.approx(call["limit_seconds"] / call["seconds"]["median"])
    assert call["seconds"]["min"] <= call["seconds"]["median"] <= call["seconds"]["max"]
    assert [[(o["op"], o["line"]) for o in p["ops"]] for p in found["parts"]] == [[("matmul", 3), ("add", 4), ("silu", 5)], [("matmul", 6)]]
    assert [p["stored"] for p in found["parts"]] == [["h2"], ["out"]]
    assert sum(p["flops"] for p in found["parts"]) == call["flops"]
    assert found["parts"][1]["flops"] == product and found["parts"][1]["bytes"] == 4 * (4 * 256 + 256 * 64 + 4 * 64)
    assert all(p["seconds"]["min"] > 0 and p["counted"] and p["bound"] in ("f32", "L2", "L3", "DRAM") for p in found["parts"])
    assert sum(p["share"] for p in found["parts"]) + found["between"]["share"] + found["calling"]["share"] == pytest.approx(1)


def test_sizes_given_by_types_and_by_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 64), np.float32))
    for flags in (["--shape", "x=f32[5,64]"], ["--input", f"x={tmp_path / 'x.npy'}"]):
        found = measured([MLP, *flags], capsys)
        assert found["inputs"]["x"] == "f32[5, 64]" and found["dims"] == {}
        assert found["call"]["flops"] == 4 * 5 * 64 * 256 + 25 * 5 * 256


def test_threads(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured([MLP, "--dims", "B=64", "--threads", "2"], capsys)
    assert found["threads"] == 2 and len(found["parts"]) == 2


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", MLP, "--dims", "B=4", *FAST]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "@mlp(x: f32[4, 64], w1: f32[64, 256], b1: f32[256], w2: f32[256, 64]), B = 4"
    assert re.match(r"1 thread on \S+: \d+ GFLOP/s of f32; read in GB/s: L1 \d+, L2 \d+, L3 \d+", lines[1])
    assert re.match(r"a call: .* \(least .*, most .*; 2 rounds of \d+ calls, middle half within .*%\)", lines[2])
    assert re.match(r"0\.287744 MFLOP and 0\.134144 MB at least: \S+ GFLOP/s, \S+ GB/s, \d+% of the limit \(.*, (f32|L2)\)", lines[3])
    assert lines[5].split() == ["time", "n", "share", "GFLOP/s", "GB/s", "limit", "of", "limit", "bound", "lines", "what"]
    assert {line.split("  ")[-1] for line in lines[6:8]} == {"matmul, add, silu -> %h2", "matmul -> %out"}
    assert lines[8].endswith("lost to barriers, and to what is between loops") and lines[9].endswith("lost to the call")
    assert lines[10].split()[2:] == ["100.0%", "all", "of", "it"] and len(lines) == 11
    assert "generated %x: f32[4, 64]" in err


def test_layers_of_a_model_are_one_row_and_weights_are_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "layers.graph"
    program.write_text("""file @w = "nowhere.safetensors"
graph @layer(%x: f32[B, 32], %w: f32[32, 32]) -> f32[B, 32] {
  %y = matmul(%x, %w)
  %z = silu(%y)
  return %z
}
graph @main(%x: f32[B, 32]) -> f32[B, 32] {
  %a = weight(@w, "a") : f32[32, 32]
  %b = weight(@w, "b") : f32[32, 32]
  %y = call(@layer, %x, %a)
  %z = call(@layer, %y, %b)
  return %z
}
""")
    assert main(["bench", str(program), "--dims", "B=3", *FAST]) == 0
    out, err = capsys.readouterr()
    assert "generated weights @w" in err
    (row,) = [line for line in out.splitlines() if "matmul, silu" in line]
    assert row.split()[2] == "2" and "3-4" in row


def test_quantized_products(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is a row with its lines and its work; equal ones are one row, other shapes another; weights read together are one product."""
    program = tmp_path / "quantized.graph"
    program.write_text("""file @w = "nowhere.gguf"
graph @layer(%x: f32[B, 64], %w: q4_1[64, 64], %v: q4_1[96, 64]) -> f32[B, 64] {
  %y = linear(%x, %w)
  %z = linear(%x, %v)
  %s = slice(%z, starts=[0], ends=[64], axes=[1])
  %m = mul(%y, %s)
  return %m
}
graph @main(%ids: i64[B]) -> f32[B, 40] {
  %table = weight(@w, "t") : q8_0[40, 64]
  %a = weight(@w, "a") : q4_1[64, 64]
  %b = weight(@w, "b") : q4_1[64, 64]
  %c = weight(@w, "c") : q4_1[96, 64]
  %d = weight(@w, "d") : q4_1[96, 64]
  %x = embedding(%table, %ids)
  %y = call(@layer, %x, %a, %c)
  %z = call(@layer, %y, %b, %d)
  %o = linear(%z, %table)
  return %o
}
""")
    found = measured([str(program), "--dims", "B=3"], capsys)
    rows = [([o["line"] for o in p["ops"]], p["flops"]) for p in found["parts"]]
    assert all(p["counted"] and p["ops"] and p["bytes"] > 0 and p["bound"] in ("f32", "i8", "L2") for p in found["parts"])
    assert rows.count(([3, 4], 2 * 3 * 64 * 160)) == 2 and rows.count(([18], 2 * 3 * 64 * 40)) == 1
    assert rows.count(([15], 3 * 64)) == 1 and sum(flops == 2 * 3 * 64 for _, flops in rows) == 3  # digits of two layers and of %z
    assert set(found["limits"]["peak"]) == {d for d in host_dtypes() if d in ("f32", "i8")}
    assert main(["bench", str(program), "--dims", "B=3", *FAST]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("linear -> %y.y.linear")]
    assert row.split()[2] == "2" and "3-4" in row


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([MLP], 1, r"mlp.graph:2:12: error: %x has no size to be measured with: it is f32\[B, 64\]\n(.*\n)*  hint: --dims B=64"),
        ([MLP, "--dims", "C=4"], 2, r"--dims C: graph @mlp has no dimension C \(.*B.*\)"),
        ([MLP, "--dims", "B"], 2, "--dims B: expected NAME=VALUE"),
        ([MLP, "--dims", "B=x"], 2, "--dims B=x: expected an integer from 0 on"),
        ([MLP, "--dims", "B=4,B=5"], 2, "--dims B is given twice"),
        ([MLP, "--shape", "y=f32[4]"], 1, "y"),
        (["nowhere.graph"], 1, "nowhere.graph:1:1: error: there is no such file"),
        ([MLP, "--dims", "B=4", "--pipeline", "O3"], 1, "O3"),
        ([MLP, "--dims", "B=4", "--input", "x=nowhere.npy"], 1, "nowhere.npy"),
        ([MLP, "--dims", "B=4", "--graph", "other"], 1, "there is no graph @other"),
    ],
)
def test_complaints(arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == status
    out, err = capsys.readouterr()
    assert not out and re.search(message, err)


@pytest.mark.parametrize("arguments", [[], [MLP, "--rounds", "0"], [MLP, "--threads", "1000"], [MLP, "--nonsense"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", *arguments])
    assert caught.value.code == 2
    assert "usage: graph-opt bench" in capsys.readouterr().err


def test_parameters_without_a_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "bare.graph"
    program.write_text("%x = input()\n%y = relu(%x)\n")
    assert main(["bench", str(program)]) == 1
    assert "hint: --shape x=f32[4,64] or --input x=FILE.npy gives it one" in capsys.readouterr().err
    assert measured([str(program), "--shape", "x=f32[100]"], capsys)["call"]["bytes"] == 800


def test_a_program_that_prints_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "prints.graph"
    program.write_text("graph @main(%x: f32[4]) -> f32[4] {\n  print(%x)\n  %y = relu(%x)\n  return %y\n}\n")
    assert main(["bench", str(program)]) == 1
    assert "prints.graph:2:3: error: a program that prints can't be measured" in capsys.readouterr().err


def test_numbers() -> None:
    assert [duration(s) for s in (1e-9, 123e-9, 1.5e-6, 15e-6, 150e-6, 2e-3, 1.5)] == [
        "1.00 ns", "123 ns", "1.50 us", "15.0 us", "150 us", "2.00 ms", "1.50 s",
    ]  # fmt: skip
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "spread": 1.0}
    assert spread([2.0])["spread"] == 0
