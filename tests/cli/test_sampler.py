"""The syntax sampler, made type-correct: every form of the language in one program is a fixpoint, and keeps its comments."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_opt.cli import main

SAMPLER = Path(__file__).parents[1] / "data" / "sampler.graph"


@pytest.mark.parametrize("flags", [[], ["--pipeline", "O0"]])
def test_the_sampler_comes_back_byte_for_byte(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLER), *flags]) == 0
    assert capsys.readouterr().out == SAMPLER.read_text(encoding="utf-8")


def test_comments_and_names_survive_o1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "p.graph"
    program.write_text(
        "// about main\ngraph @main(\n  %x: f32[B, 4],  // the input\n  %y: f32[4]\n) -> f32[B, 4] {\n"
        "  // sums\n  %sum = add(%x, %y)  // behind\n\n  // of the block\n\n  %twice = exp(%sum)\n  %same = exp(%sum)\n"
        "  %out = mul(%twice, %same)\n  return %out\n\n  // the end\n}\n"
    )
    assert main([str(program), "--pipeline", "O1"]) == 0
    out = capsys.readouterr().out
    for kept in ("// about main", "// the input", "// sums", "// behind", "// of the block", "// the end", "%sum = ", "%twice = ", "%out = "):
        assert kept in out, out
    program.write_text(out)
    assert main([str(program)]) == 0
    assert capsys.readouterr().out == out


def test_a_licence_above_an_inlined_graph_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "p.graph"
    program.write_text(
        "// licence\n\n// about f\ngraph @f(%x: f32[N]) -> f32[N] {\n  %y = exp(%x)\n  return %y\n}\n\n"
        "graph @main(%x: f32[N]) -> f32[N] {\n  // the call\n  %y = call(@f, %x)  // tail\n  return %y\n}\n"
    )
    assert main([str(program), "--pipeline", "O1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("// licence\n\ngraph @main(")
    assert "// the call" in out and "// tail" in out
