"""The README is true: its commands print what it says, its Python runs, its files are there."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from graph_opt.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SESSIONS = {c: out for kind, text in BLOCKS if not kind for c, out in re.findall(r"^\$ graph-opt (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with the samples where commands may leave files."""
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pieces(text: str) -> list[str]:
    """What stands between lines of dots."""
    return re.split(r"^\.\.\.\n", text, flags=re.MULTILINE)


MEASURED = [c for c in SESSIONS if c.startswith("bench ")]


def without_measures(text: str) -> list[str]:
    """Lines without times, rates and names of processors, in an order that doesn't depend on them."""
    plain = re.sub(r"\b[\d.]+%?( [num]?s\b)?", "0", re.sub(r" on \S+:", " on it:", text))
    return sorted(" ".join(line.split()) for line in plain.splitlines())


@pytest.mark.parametrize("command", MEASURED)
def test_measurements_look_like_that(command: str, folder: Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(command.split()) == 0
    (_, shown) = pieces(SESSIONS[command])
    assert without_measures(shown) == without_measures(out.getvalue().partition("\n")[2])


@pytest.mark.parametrize("command", [c for c in SESSIONS if c not in MEASURED])
def test_commands_print_what_it_says(command: str, folder: Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert main(command.split()) == 0
    printed, at = out.getvalue(), 0
    texts = pieces(SESSIONS[command])
    for number, piece in enumerate(texts):
        found = printed.find(piece, at)
        if found < 0 or (number == 0 and found > 0):
            pytest.fail(f"graph-opt {command} does not print\n{piece}")  # without what it prints, which may be long
        at = found + len(piece)
    assert len(texts) > 1 or at == len(printed)


def test_there_are_commands_of_all_kinds() -> None:
    assert len(SESSIONS) >= 5 and any("--emit" in c for c in SESSIONS) and any(c.startswith("run ") for c in SESSIONS)


def test_python_runs(folder: Path) -> None:
    (code,) = (text for kind, text in BLOCKS if kind == "python")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert getattr(scope["y"], "shape", None) == (4, 64)


def test_the_error_is_one_that_the_command_prints() -> None:
    (text,) = (text for kind, text in BLOCKS if "error:" in text)
    assert text in (ROOT / "tests" / "cli" / "errors" / "misspelt_op.stderr").read_text(encoding="utf-8")


def test_the_first_program_is_a_sample() -> None:
    program = BLOCKS[0][1]
    assert program.strip() in (ROOT / "samples" / "mlp_bare.graph").read_text(encoding="utf-8")


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
