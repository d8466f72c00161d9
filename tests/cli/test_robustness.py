"""Things that once went wrong: names in headers, reserved attributes, spurious errors, closed or full outputs, odd flags."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graph_opt
from graph_opt.cli import main
from ir.parser import _tables
from ir.tokens import KEYWORDS
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline

ROOT = Path(__file__).parents[2]
MLP = str(ROOT / "samples" / "mlp.graph")


def messages(text: str) -> list[str]:
    with pytest.raises(graph_opt.GraphError) as caught:
        graph_opt.parse(text)
    return [line.split(": error: ")[0] + " " + line.split(": error: ")[1] for line in str(caught.value).splitlines() if ": error: " in line]


@pytest.mark.parametrize(
    "text",
    [
        "%0 = input() : f32[2]\n%1 = neg(%0)\n%2 = neg(%0)\n",
        '%x = input() : f32[2]\n%"/l.0/N" = neg(%x)\n%"/l.1/N" = neg(%x)\n',
        "%x = input() : f32[2]\n%to = neg(%x)\n%step = neg(%x)\n%where = exp(%x)\n%mod = exp(%x)\n",
        'graph @f(%x: f32[2]) -> (a: f32[2], f32[2]) {\n  %"q r" = neg(%x)\n  return %x, %"q r"\n}\n',
    ],
)
def test_any_name_may_be_a_results_name(text: str) -> None:
    module = graph_opt.parse(text)
    for pipeline in ("O0", "O1"):
        PassManager(load_pipeline(pipeline)).run(module)
        assert str(graph_opt.parse(str(module))) == str(module)


def test_keywords_are_those_of_the_grammar() -> None:
    assert set(_tables().lexer.keywords) == KEYWORDS


@pytest.mark.parametrize("written", ["operand.present=1", 'operand.present=["x"]', "operand.layout=[]"])
def test_internal_attributes_are_reserved(written: str) -> None:
    found = messages(f"graph @f(%x: f32[2]) -> f32[2] {{\n  %c = neg(%x, {written})\n  return %c\n}}\n")
    assert found == [f"<string>:2:16 the name '{written.split('=')[0]}' is reserved"]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("graph @f(%x: f32[to], %b: f32[B]) -> f32[B] {\n  return %b\n}\n", ["1:18"]),
        ('graph @f(%x: f32["B"]) {\n  return\n}\n', ["1:18"]),
        ("graph @f(%x: f32[4]) {\n  return %x loc(1)\n}\n", ["2:17"]),
        ("graph @f(%x: f32[4]) -> f32[4] {\n  %s = neg(%x) : f32[5]\n  return %s\n}\n", ["2:8"]),
        ("graph @f(%b: f32[B])\n  where Q <= 1 {\n  return\n}\n", ["2:9"]),
        ("graph_format 1\ngraph_format 1\n", ["2:1"]),
    ],
)
def test_one_mistake_one_error(text: str, places: list[str]) -> None:
    assert [m.split(" ")[0] for m in messages(text)] == [f"<string>:{p}" for p in places]


def test_dimensions_do_not_explode() -> None:
    product = "*".join(["(A+B+C+D+E+F+G+H)"] * 18)
    assert "at most 1000 terms" in messages(f"graph @f(%x: f32[{product}]) {{\n  return\n}}\n")[0]
    assert "less than 2**63" in messages("graph @f(%x: f32[9223372036854775807*2]) {\n  return\n}\n")[0]
    lines = ["%a0 = constant([1.0]) : f32[1]", *(f"%a{i + 1} = concat(%a{i}, %a{i}, axis=0)" for i in range(70))]
    assert "less than 2**63" in messages("\n".join(lines))[0]


def test_line_ends_and_surrogates() -> None:
    assert len(graph_opt.parse("// a\r%x = input()\r%y = neg(%x)\r").main.parameters) == 1
    assert messages("// \ud800\n")[0] == "<string>:1:4 unexpected character U+D800"


def test_types_are_inferred_again_after_inlining() -> None:
    text = "graph @g(%x: ?) -> ? {\n  %y = neg(%x)\n  %z = neg(%y)\n  return %z\n}\n"
    text += "graph @main(%x: f32[C]) -> f32[C] {\n  %z = call(@g, %x)\n  return %z\n}\n"
    module = graph_opt.parse(text)
    PassManager(load_pipeline("O1")).run(module)
    assert "neg" not in str(module)


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--graph", "nope"], 1, "no graph @nope"),
        (["--print-ir-after", "nope"], 2, "no pass 'nope'"),
        (["--pipeline", "infer-types,dce", "--print-ir-before", "fuse"], 2, "the pipeline has no such pass; it runs infer-types, dce"),
        (["--pipeline", "constant-fold{budget=-1}"], 1, "out of range"),
        (["--shape", "x=f32[4]) { return } graph @u(%y: f32[2]"], 1, "<--shape>:1:7: error: unexpected ')'"),
        (["--shape", "x=f32[4, 64] // c"], 1, "a type has no comment"),
        (["-o", ""], 2, "expected a file name"),
    ],
)
def test_flags(flags: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([MLP, *flags]) == status
    captured = capsys.readouterr()
    assert words in captured.err and captured.out == ""


def test_seed_is_not_negative(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["run", MLP, "--seed", "-1"])
    assert leaving.value.code == 2


@pytest.mark.parametrize(("redirect", "status"), [(">/dev/full", 1), ("-o /dev/full", 1), (">&-", 0), ("-o /dev/null", 0)])
def test_outputs_that_take_nothing(redirect: str, status: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m graph_opt.cli {MLP} {redirect}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr and "fault" not in done.stderr


def test_parameters_may_have_any_name() -> None:
    module = graph_opt.parse("graph @main(%self: f32[2], %args: f32[2], %files: f32[2]) -> f32[2] {\n  %y = add(%self, %args)\n  return %y\n}\n")
    ones = np.ones(2, np.float32)
    np.testing.assert_array_equal(graph_opt.run(module, self=ones, args=ones, files=ones), 2)


def test_what_is_no_text_and_no_array() -> None:
    for wrong in (None, b"%x = input()"):
        with pytest.raises(graph_opt.GraphError, match="expected a text"):
            graph_opt.parse(wrong)  # type: ignore[arg-type]
    with pytest.raises(graph_opt.GraphError, match="expected a pipeline string"):
        graph_opt.compile(MLP, pipeline=b"O1")  # type: ignore[arg-type]
    for value, words in [([[1], [1, 2]], "no array"), (np.ma.array(np.ones(256, np.float32), mask=True), "masked array")]:
        with pytest.raises(graph_opt.GraphError, match=words):
            graph_opt.compile(MLP, constants={"b1": value})


def test_inout_arrays_may_not_overlap() -> None:
    text = "graph @main(%a: f32[4] inout, %b: f32[4] inout, %n: f32[1], %p: i64[]) {\n"
    text += "  %c = cache_update(%a, %n, %p, axis=0)\n  %d = cache_update(%b, %n, %p, axis=0)\n  return\n}\n"
    program = graph_opt.compile(graph_opt.parse(text))
    memory, one, place = np.zeros(8, np.float32), np.ones(1, np.float32), np.int64(0)
    program(memory[:4], memory[4:], one, place)
    assert memory.tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    program(memory[::2], memory[1::2], one, place)
    for a, b in [(memory[:4], memory[2:6]), (memory[:4], memory[:4])]:
        with pytest.raises(graph_opt.GraphError, match="share memory"):
            program(a, b, one, place)
    with pytest.raises(graph_opt.GraphError, match="share memory"):
        program(np.lib.stride_tricks.as_strided(memory, (4,), (0,)), memory[4:], one, place)


def test_a_program_has_an_end() -> None:
    with pytest.raises(graph_opt.GraphError, match=r"/dev/zero:1:1: error: a program has at most 268435456 bytes"):
        graph_opt.load("/dev/zero")
