"""Golden messages: every program in errors/ is rejected with the text beside it.

After a deliberate change of a message, ``GRAPH_OPT_BLESS=1 pytest tests/cli/test_errors.py`` writes the texts anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import graph_opt
from graph_opt.cli import main

FOLDER = Path(__file__).parent / "errors"
CASES = sorted(FOLDER.glob("*.graph"))


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        status = main(argv)
    except SystemExit as leaving:
        status = int(leaving.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_rejected_with_these_words(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    status, out, err = run([path.name], capsys)
    golden = path.with_suffix(".stderr")
    if os.environ.get("GRAPH_OPT_BLESS"):
        golden.write_text(err, encoding="utf-8")
    assert (status, out) == (1, "")
    assert err == golden.read_text(encoding="utf-8")
    assert "Traceback" not in err
    assert err.startswith(f"{path.name}:")


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_python_raises_the_same(path: Path) -> None:
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.parse(path.read_text(encoding="utf-8"))
    assert str(caught.value).startswith("<string>:")


def lines(name: str) -> list[str]:
    return [line for line in (FOLDER / f"{name}.stderr").read_text(encoding="utf-8").splitlines() if ": error: " in line]


def test_all_errors_are_reported_in_one_run() -> None:
    assert [line.split(":")[1] for line in lines("two_syntax_two_type")] == ["2", "3", "4", "5"]
    assert [line.split(":")[1] for line in lines("syntax_and_type")] == ["3", "3"]


@pytest.mark.parametrize(
    ("pipeline", "expected"),
    [
        ("infer-typs", "<pipeline>:1:1: error: there is no pass 'infer-typs'"),
        ("dce,nonsense", "<pipeline>:1:5: error: there is no pass 'nonsense'"),
        ("dce,", "<pipeline>:1:5: error: expected a pass after ','"),
        ("dce dce", "<pipeline>:1:5: error: expected ',' or the end, found 'd'"),
        ("constant-fold{budgt=1}", "<pipeline>:1:15: error: pass 'constant-fold' has no option 'budgt'"),
        ("constant-fold{budget=x}", "<pipeline>:1:22: error: option 'budget' of 'constant-fold' is an integer"),
        ("constant-fold{budget=1", "<pipeline>:1:23: error: expected an option or '}'"),
    ],
)
def test_pipeline_errors(pipeline: str, expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = tmp_path / "p.graph"
    program.write_text("%x    = input()\n%y    = relu(%x)\n")
    status, out, err = run([str(program), "--pipeline", pipeline], capsys)
    assert (status, out) == (1, "")
    assert err.splitlines()[0] == expected


def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["x.graph", "--no-such-flag"], capsys)[0] == 2
    assert run([], capsys)[0] == 2
    assert run(["run", "x.graph", "--device", "abacus"], capsys)[0] == 2
    assert run(["list", "things"], capsys)[0] == 2
    assert run(["x.graph", "--file", "w"], capsys)[0] in (1, 2)


def test_missing_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run([str(tmp_path / "none.graph")], capsys)
    assert status == 1
    assert err.startswith(f"{tmp_path / 'none.graph'}:1:1: error: there is no such file")


def test_text_in_the_place_of_a_file_name() -> None:
    with pytest.raises(graph_opt.GraphError, match=r"text of a program, not the name of a file\n  hint: graph_opt.parse\(text\)"):
        graph_opt.compile("graph @main(%x: f32[4]) -> f32[4] { return %x }")
