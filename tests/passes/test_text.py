"""Runs the text tests: each file says on its ``// RUN:`` lines how, and checks the output with filecheck.

A line is ``// RUN: graph-opt %s FLAGS | filecheck %s``.  It is run in this process, so that the files take milliseconds.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser

import dialects  # noqa: F401
from graph_opt.cli import main

FOLDER = Path(__file__).parent / "text"
DIRECTIVE = re.compile(r"\s*// ?(RUN|[A-Z]+(-[A-Z]+)?):")
FILES = sorted(FOLDER.glob("*.graph"))


def run_lines(path: Path) -> list[list[str]]:
    """The words of each RUN line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [shlex.split(line.partition("RUN:")[2]) for line in lines if line.startswith("// RUN:")]


def graph_opt(words: list[str]) -> str:
    """What graph-opt prints; its messages too when ``2>&1`` stands at the end."""
    out, err = io.StringIO(), io.StringIO()
    both = words[-1:] == ["2>&1"]
    expect_failure = words[0] == "not"
    arguments = [w for w in words if w not in ("not", "2>&1")]
    assert arguments[0] == "graph-opt", words
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments[1:])
    assert (status != 0) == expect_failure, f"exit status {status}\n{err.getvalue()}"
    return out.getvalue() + (err.getvalue() if both else "")


def filecheck(path: Path, text: str, flags: list[str]) -> bool:
    prefixes = [f.partition("=")[2] for f in flags if f.startswith("--check-prefix=")]
    options = Options(match_filename=str(path), check_prefixes=prefixes or ["CHECK"])
    return Matcher(options, FInput("-", text), Parser.from_opts(options)).run() == 0


def without_directives(text: str) -> str:
    """Comments stay in the program, so its output has the expectations in it, which would match themselves."""
    return "".join(line for line in text.splitlines(keepends=True) if not DIRECTIVE.match(line))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file(path: Path) -> None:
    lines = run_lines(path)
    assert lines, "no // RUN: line"
    for words in lines:
        words = [str(path) if w == "%s" else w for w in words]
        bar = words.index("|")
        command, checker = words[:bar], words[bar + 1 :]
        assert checker[0] == "filecheck" and checker[1] == str(path)
        text = without_directives(graph_opt(command))
        assert filecheck(path, text, checker[2:]), f"{shlex.join(command)} printed\n{text}"


def test_driver_sees_a_wrong_expectation(tmp_path: Path) -> None:
    path = tmp_path / "wrong.graph"
    program = "graph @main(%x: f32[2]) -> f32[2] {\n  // CHECK: exp(%x)\n  return %x\n}\n"
    path.write_text("// RUN: graph-opt %s | filecheck %s\n// CHECK: graph @main\n" + program)
    with pytest.raises(AssertionError, match="printed"):
        test_file(path)
    path.write_text("// RUN: graph-opt %s | filecheck %s\n// CHECK: graph @main\n" + program.replace("exp(%x)", "return %x"))
    test_file(path)


def test_every_pass_has_a_text_test() -> None:
    from passes.infra.registry import pass_files

    graph_passes = {p.stem for p in pass_files().values() if p.parent.name == "graph"}
    assert graph_passes <= {f.stem for f in FILES}
