"""graph-opt explain-fusion: which computations became one nest by which rule, and what kept others apart."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from graph_opt.cli import main
from ir.parser import parse_module
from passes.infra.base import PassContext
from passes.infra.decisions import Blocker, Rule
from passes.infra.manager import Instrumentation, PassManager
from passes.pipelines import load_pipeline


def explained(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    file = tmp_path / "p.graph"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    assert main(["explain-fusion", str(file), *flags]) == 0
    return capsys.readouterr().out


EPILOGUE = """\
graph @main(%x: f32[B, 64], %w: f32[64, 256], %b: f32[256], %r: f32[B, 256], %g: f32[256]) -> (f32[B, 256], f32[B, 256]) {
  %h = matmul(%x, %w)
  %s = add(%h, %b)
  %a = silu(%s)
  %y = add(%a, %r)
  %z = rmsnorm(%y, weight=%g)
  return %y, %z
}
"""

TEXTS = {
    # what follows a product is in its nest; its result is returned, and read by the rows of a norm
    "epilogue": (
        EPILOGUE,
        """\
        graph @main: 10 steps in 2 loop nests

        nest 1: i < B, j < 256; stores %y
          2:8  matmul  %h
          3:8  add     %s  %h: used where it is stored
          4:8  silu    %a  %s: used where it is stored
          5:8  add     %y  %a: used where it is stored

        nest 2: i < B; stores %z
          6:8  rmsnorm  %z.square
          6:8  rmsnorm  %z.mean    %z.square: computed where it is read, nothing else reads it
          6:8  rmsnorm  %z.add     %z.mean: used where it is stored
          6:8  rmsnorm  %z.rsqrt   %z.add: used where it is stored
          6:8  rmsnorm  %z.mul     %z.rsqrt: shares the loop over rows
          6:8  rmsnorm  %z         %z.mul: used where it is stored

        apart:
          %y -> %z.square  a product and another sum in one nest
          %y -> %z.mul     a product and another sum in one nest
          %y -> return     a result of the graph is a value of its own
          %z -> return     a result of the graph is a value of its own
        """,
    ),
    "costly": (
        """\
        graph @main(%x: f32[B, 4], %w: f32[4, 6]) -> f32[B, 6] {
          %e = exp(%x)
          %n = neg(%w)
          %h = matmul(%e, %n)
          return %h
        }
        """,
        """\
        graph @main: 3 steps in 3 loop nests

        nest 1: i < B, j < 4; stores %e
          2:8  exp  %e

        nest 2: i < 4, j < 6; stores %n
          3:8  neg  %n

        nest 3: i < B, j < 6; stores %h
          4:8  matmul  %h

        apart:
          %e -> %h      too costly to compute again: elements are read more than once
          %n -> %h      too costly to compute again: elements are read more than once
          %h -> return  a result of the graph is a value of its own
        """,
    ),
    "several readers": (
        """\
        graph @main(%x: f32[S, S]) -> f32[S, S] {
          %a = exp(%x)
          print(%a)
          %t = transpose(%a)
          %y = add(%a, %t)
          return %y
        }
        """,
        """\
        graph @main: 3 steps in 2 loop nests

        nest 1: i < S, j < S; stores %a
          2:8  exp  %a

        nest 2: i < S, j < S; stores %y
          4:8  transpose  %t
          5:8  add        %y  %t: its elements are read where they came from

        apart:
          %a -> %t      too costly to compute again: there are several readers
          %a -> %y      too costly to compute again: there are several readers
          %a -> print   read as a whole by an operation on tensors
          %y -> return  a result of the graph is a value of its own
        """,
    ),
    "in pieces": (
        """\
        graph @main(%x: f32[B, 4], %i: i64[B]) -> f32[B, 4] {
          %a = exp(%x)
          %c = concat(%a, %x, axis=0)
          %d = gather(%c, %i)
          return %d
        }
        """,
        """\
        graph @main: 5 steps in 4 loop nests

        nest 1: i < B, j < 4; stores %c
          2:8  exp     %a
          3:8  concat  %c  %a: used where it is stored

        nest 2: i < B, j < 4; stores %c
          3:8  concat  %c

        nest 3: i < B; stores nothing
          4:8  gather  %d (check)

        nest 4: i < B, j < 4; stores %d
          4:8  gather  %d

        apart:
          %c -> %d      more than one nest writes it
          %c -> %d      more than one nest writes it
          %d -> return  a result of the graph is a value of its own
        """,
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, want = TEXTS[name]
    assert explained(program, tmp_path, capsys) == textwrap.dedent(want)


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = json.loads(explained(EPILOGUE, tmp_path, capsys, "--json"))
    assert found["graph"] == "main" and [n["loops"] for n in found["groups"]] == ["i < B, j < 256", "i < B"]
    last = found["groups"][0]["steps"][-1]
    assert (last["tensor"], last["operation"], last["line"], last["column"]) == ("y", "add", 5, 8) and last["file"].endswith("p.graph")
    assert last["fused"] == [{"from": "a", "rule": "joined", "how": Rule.JOINED.value}]
    assert {"from": "y", "to": "return", "blocker": "result", "why": Blocker.RESULT.value} in found["apart"]


def test_merged_products(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(
        """\
        graph @main(%x: f32[B, 2]) -> f32[B, B] {
          %w = constant([[1.0, 2.0], [3.0, 4.0]]) : f32[2, 2]
          %v = constant([[5.0, 6.0], [7.0, 8.0]]) : f32[2, 2]
          %q = matmul(%x, %w)
          %k = matmul(%x, %v)
          %s = matmul(%q, %k, transpose_b=true)
          return %s
        }
        """,
        tmp_path,
        capsys,
    )
    want = """\
        graph @main: 2 steps in 1 product

        product 1: %x by 4 columns
          4:8  matmul  %q
          5:8  matmul  %k  %q: one product for all that read the same factor

        graph @main: 4 steps in 2 loop nests

        nest 1: i < B, j < 4; stores %q.matmul
          4:8  matmul  %q.matmul

        nest 2: i < B, j < B; stores %s
          4:8  matmul  %q
          4:8  matmul  %k
          6:8  matmul  %s  %q: its elements are read where they came from
                           %k: its elements are read where they came from

        apart:
          %q.matmul -> %q  a product and another sum in one nest
          %q.matmul -> %k  a product and another sum in one nest
          %s -> return     a result of the graph is a value of its own
        """
    assert found == textwrap.dedent(want)


def test_every_pair_has_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the transformer block: whatever reads what a step makes is in its nest or apart from it."""
    sample = Path(__file__).parents[2] / "samples" / "transformer_block.graph"
    assert main(["explain-fusion", str(sample), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    steps = [s for n in found["groups"] for s in n["steps"]]
    told = {f["from"] for s in steps for f in s["fused"]} | {a["from"] for a in found["apart"]}
    assert {s["tensor"] for s in steps if "(check)" not in s["tensor"]} <= told
    assert {a["blocker"] for a in found["apart"]} <= {b.name.lower().replace("_", "-") for b in Blocker}


def test_other_pipelines_and_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.graph"
    file.write_text("%x = input()\n%a = exp(%x)\nreturn %a\n", encoding="utf-8")
    assert main(["explain-fusion", str(file)]) == 1
    assert "%x has no known type" in capsys.readouterr().err
    assert main(["explain-fusion", str(file), "--shape", "x=f32[4]", "--pipeline", "O1"]) == 0
    assert "no pass 'fuse'" in capsys.readouterr().err
    assert main(["explain-fusion", str(file), "--shape", "x=f32[4]", "--pipeline", "O1,lower-to-linalg,fuse"]) == 0
    assert capsys.readouterr().out.startswith("graph @main: 1 step in 1 loop nest\n")
    with pytest.raises(SystemExit):
        main(["explain-fusion"])


def test_nothing_is_recorded_that_is_not_asked_for() -> None:
    manager = PassManager(load_pipeline("O2"), Instrumentation())
    manager.run(parse_module(EPILOGUE))
    assert PassContext().decisions is None and not any(r.decisions for r in manager.records)
