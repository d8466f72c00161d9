"""--emit, --device and --threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graph_opt.cli import main

ROOT = Path(__file__).parents[2]
MLP = str(ROOT / "samples" / "mlp.graph")

LOOPS = """graph @twice(%x: f32[B]) -> f32[B] {
  %a = memref.from_tensor(%x) : memref<f32[B]>
  %c = memref.alloc() : memref<f32[B]>
  scf.parallel(%i = 0 to B, mapping="threads") {
    %p = memref.load(%a[%i]) : f32
    %s = arith.addf(%p, %p) : f32
    memref.store(%s, %c[%i])
    yield
  }
  %y = memref.to_tensor(%c) : f32[B]
  return %y
}
"""
LINALG = """graph @twice(%x: f32[B]) -> f32[B] {
  %a = memref.from_tensor(%x) : memref<f32[B]>
  %c = memref.alloc() : memref<f32[B]>
  linalg.generic(i < B, %p = %a[i], %o = %c[i]) {
    %s = arith.addf(%p, %p) : f32
    yield %s
  }
  %y = memref.to_tensor(%c) : f32[B]
  return %y
}
"""


@pytest.fixture
def loops(tmp_path: Path) -> str:
    path = tmp_path / "loops.graph"
    path.write_text(LOOPS)
    return str(path)


@pytest.fixture
def linalg(tmp_path: Path) -> str:
    path = tmp_path / "linalg.graph"
    path.write_text(LINALG)
    return str(path)


def test_graph_is_the_clean_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, "--emit", "graph"]) == 0
    emitted = capsys.readouterr().out
    assert main([MLP, "--pipeline", "O1"]) == 0
    assert emitted == capsys.readouterr().out and "matmul(" in emitted


def test_linalg(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, "--emit", "linalg"]) == 0
    out = capsys.readouterr().out
    assert "linalg.generic(" in out and "matmul(" not in out


def test_a_program_of_loops_is_taken_as_it_is(loops: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([loops, "--emit", "loops"]) == 0
    assert capsys.readouterr().out == LOOPS
    assert main([loops, "--emit", "llvm"]) == 0
    out = capsys.readouterr().out
    assert "define i32 @g_twice(ptr" in out and "define i64 @g_twice_workspace(ptr" in out and "define void @g_twice_shapes(ptr" in out
    assert main([loops, "--emit", "asm"]) == 0
    assert "g_twice:" in capsys.readouterr().out


@pytest.mark.parametrize(("level", "emit"), [("loops", "graph"), ("loops", "linalg"), ("linalg", "graph")])
def test_a_level_that_was_left_can_not_be_emitted(level: str, emit: str, loops: str, linalg: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = {"loops": loops, "linalg": linalg}[level]
    for pipeline in ([], ["--pipeline", "O0"]):
        assert main([path, "--emit", emit, *pipeline]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == f"{path}:1:1: error: the program is at the level '{level}', it can't be emitted as '{emit}'\n  hint: --emit {level}\n"


def test_an_explicit_pipeline_runs_instead(linalg: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, "--emit", "graph", "--pipeline", "O0"]) == 0
    assert "%h2 = silu(%h1)" in capsys.readouterr().out
    assert main([MLP, "--emit", "graph", "--pipeline", "O1,decompose,lower-to-linalg"]) == 1
    assert "is at the level 'linalg', it can't be emitted as 'graph'" in capsys.readouterr().err
    assert main([MLP, "--emit", "llvm", "--pipeline", "O1"]) == 1
    assert "no native code for 'matmul'" in capsys.readouterr().err
    assert main([linalg, "--emit", "llvm", "--pipeline", "O0"]) == 1
    assert f"{linalg}:4:3: error: codegen: no native code for 'linalg.generic'" in capsys.readouterr().err


def test_objects_go_to_files_and_pipes(loops: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    target = tmp_path / "out.o"
    assert main([loops, "--emit", "obj", "-o", str(target)]) == 0
    data = target.read_bytes()
    assert data.startswith(b"\x7fELF") and b"g_twice_workspace" in data
    command = [sys.executable, "-m", "graph_opt.cli", loops, "--emit", "obj"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    assert done.stdout == data and done.stderr == b""
    assert main([loops, "--emit", "llvm", "-o", str(tmp_path / "out.ll")]) == 0
    assert (tmp_path / "out.ll").read_text().startswith("define i32 @g_twice(")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loops.graph", "out.ll", "out.o"]


def test_objects_do_not_go_to_a_terminal(loops: str) -> None:
    leader, follower = os.openpty()
    try:
        command = [sys.executable, "-m", "graph_opt.cli", loops, "--emit", "obj"]
        done = subprocess.run(command, stdout=follower, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    finally:
        os.close(leader)
        os.close(follower)
    assert done.returncode == 2 and done.stderr == "graph-opt: error: --emit obj writes bytes: give a file with -o, or a pipe\n"


def test_which_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.graph"
    path.write_text(LOOPS + "\n" + LOOPS.replace("@twice", "@again"))
    assert main([str(path), "--emit", "llvm"]) == 1
    assert "which graph?" in capsys.readouterr().err
    assert main([str(path), "--emit", "llvm", "--graph", "again"]) == 0
    out = capsys.readouterr().out
    assert "@g_again(" in out and "@g_twice(" not in out
    assert main([str(path), "--emit", "loops"]) == 0
    assert "@again" in (out := capsys.readouterr().out) and "@twice" in out


def test_names_are_mangled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.graph"
    path.write_text(LOOPS.replace("@twice", "@a.b-c").replace("%x", '%"}\\"; ret"'), encoding="utf-8")
    if main([str(path), "--emit", "loops"]) == 0:
        assert main([str(path), "--emit", "asm"]) == 0
        assert "ret\"" not in capsys.readouterr().out.split("g_a_b")[1]
    else:
        assert f"{path}:1:" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--emit", "hip"], ["--emit"], ["--emit", "llvm", "--target", "sm_80"], ["--emit", "llvm", "--print-locs"]])
def test_wrong_usage(flags: list[str], loops: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main([loops, *flags])
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    assert status == 2 and "--" in capsys.readouterr().err


# -- run ---------------------------------------------------------------------------------------------------------------


def test_run_on_devices(loops: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for flags in (["--device", "reference"], ["--device", "cpu"], ["--device", "cpu", "--threads", "2"], ["--device", "cpu", "--threads", "0"]):
        assert main(["run", loops, "--shape", "x=f32[5]", "--seed", "3", *flags]) == 0
        captured = capsys.readouterr()
        assert "generated %x: f32[5]" in captured.err
        texts.append(captured.out)
    assert texts[0].startswith("y: f32[5]\n") and all(t == texts[0] for t in texts)
    np.save(tmp_path / "x.npy", np.arange(6, dtype=">f4")[::2])
    assert main(["run", loops, "--device", "cpu", "--input", f"x={tmp_path / 'x.npy'}", "--output", f"y={tmp_path / 'y.npy'}"]) == 0
    assert np.load(tmp_path / "y.npy").tolist() == [0, 4, 8]


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--device", "abacus"], 2, "there is no device 'abacus' (devices: cpu, cuda, reference)"),
        (["--device", "cup"], 2, "did you mean 'cpu'?"),
        (["--device", "reference", "--threads", "2"], 2, "--threads is for --device cpu"),
        (["--device", "cpu", "--threads", "-1"], 2, "--threads"),
        (["--device", "cpu", "--threads", "many"], 2, "expected an integer from 0 to 256, found 'many'"),
        (["--device", "cpu", "--threads", "1000"], 2, "found '1000'"),
    ],
)
def test_run_rejects(flags: list[str], status: int, words: str, loops: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = main(["run", loops, *flags])
    except SystemExit as leaving:
        found = int(leaving.code or 0)
    assert found == status and words in capsys.readouterr().err


@pytest.mark.parametrize("level", ["linalg", "loops", "llvm", "asm"])
def test_levels_below_tensors_need_types(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    bare = str(ROOT / "samples" / "mlp_bare.graph")
    assert main([bare, "--emit", level]) == 1
    err = capsys.readouterr().err
    assert all(f"%{name} has no known type, which --emit {level} needs" in err for name in ("x", "w1", "b1", "w2"))
    shapes = [f"--shape={n}=f32[{s}]" for n, s in (("x", "2,4"), ("w1", "4,6"), ("b1", "6"), ("w2", "6,3"))]
    assert main([bare, "--emit", level, *shapes]) == 0
    assert main([bare, "--emit", "graph"]) == 0
