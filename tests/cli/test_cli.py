"""The command line in process: printing, files, run, list, explain, watching passes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dialects  # noqa: F401  defines the operations
from graph_opt import listing
from graph_opt.cli import main
from graph_opt.levels import preset_of
from ir.opdef import REGISTRY
from ir.types import DTYPES
from passes.infra.registry import find_pass, pass_files, pass_summaries
from passes.pipelines import PRESETS, load_pipeline

SAMPLES = Path(__file__).parents[2] / "samples"
BARE = """\
%x    = input()
%w1   = input()
%b1   = input()
%w2   = input()
%h0   = matmul(%x, %w1)
%h1   = add(%h0, %b1)
%h2   = silu(%h1)
%out  = matmul(%h2, %w2)
"""


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_bare_listing_comes_back_byte_for_byte(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(monkeypatch, BARE.encode())
    assert main(["-"]) == 0
    assert capsys.readouterr().out == BARE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "// only a comment\n",
        "%a    = input()\n// about b\n%b    = exp(%a)\n%c    = input()  // later\n%d    = add(%b, %c)\n",
        "%long_name = input() : f32[2]\n%v, %i = topk(%long_name, k=1)\n",
        '%"odd name" = input()\n%y    = relu(%"odd name")\n',
    ],
)
def test_other_bare_programs_too(text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(monkeypatch, text.encode())
    assert main(["-"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf%x    = input()\r\n%y    = relu(%x)", b"%x    = input()\n%y    = relu(%x)\n"])
def test_byte_order_mark_crlf_and_missing_newline(data: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(monkeypatch, data)
    assert main(["-"]) == 0
    assert capsys.readouterr().out == "%x    = input()\n%y    = relu(%x)\n"


@pytest.mark.parametrize(("data", "place"), [(b"%x = input()\n%y = \xff", "2:6"), ("%x = input()".encode("utf-16"), "1:1"), (b"%x = \0", "1:6")])
def test_bad_bytes(data: bytes, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stdin(monkeypatch, data)
    assert main(["-"]) == 1
    assert capsys.readouterr().err.startswith(f"<stdin>:{place}: error: ")


def test_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.graph"
    assert main([str(SAMPLES / "mlp.graph"), "--pipeline", "O0", "-o", str(target)]) == 0
    assert "%h0 = matmul(%x, %w1) : f32[B, 256]" in target.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.graph"]
    before = target.read_text()
    assert main([str(target), "-o", str(target)]) == 1
    (tmp_path / "link").symlink_to(target)
    assert main([str(SAMPLES / "mlp.graph"), "-o", str(tmp_path / "link")]) == 1
    assert main([str(SAMPLES / "mlp.graph"), "-o", str(tmp_path / "nowhere" / "x")]) == 1
    assert target.read_text() == before


def test_run_generates_what_is_not_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ["run", str(SAMPLES / "mlp.graph"), "--input", f"x={tmp_path / 'x.npy'}", "--output", f"out={tmp_path / 'y.npy'}"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("out: f32[5, 64] -> ")
    assert "generated %w1: f32[64, 256] (normal random numbers, seed 0)" in captured.err
    assert "%x" not in captured.err
    first = np.load(tmp_path / "y.npy")
    assert main([*arguments, "--seed", "1"]) == 0
    assert not np.array_equal(first, np.load(tmp_path / "y.npy"))
    assert main(arguments) == 0
    np.testing.assert_array_equal(first, np.load(tmp_path / "y.npy"))


def test_run_a_bare_program_with_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ["x=f32[4,64]", "w1=f32[64,256]", "b1=f32[256]", "w2=f32[256,64]"]
    assert main(["run", str(SAMPLES / "mlp_bare.graph"), *(f"--shape={s}" for s in shapes)]) == 0
    assert capsys.readouterr().out.startswith("out: f32[4, 64]\n")
    assert main(["run", str(SAMPLES / "mlp_bare.graph")]) == 1
    err = capsys.readouterr().err
    assert all(f"%{name} has no known type" in err and f"give --shape {name}=f32[4,64]" in err for name in ("x", "w1", "b1", "w2"))


def test_run_with_named_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(SAMPLES / "mlp.graph"), "--dims", "B=3"]) == 0
    assert capsys.readouterr().out.startswith("out: f32[3, 64]\n")
    assert main(["run", str(SAMPLES / "mlp.graph"), "--dims", "C=3"]) == 2
    assert "--dims C: graph @mlp has no dimension C (its dimensions: B)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["FILE", "--device", "cuda"], "--device is a flag of graph-opt run, graph-opt bench, graph-opt generate"),
        (["run", "FILE", "--emit", "asm"], "--emit is a flag of graph-opt"),
        (["run", "FILE", "--sed", "3"], "did you mean '--seed'?"),
        (["bench", "FILE", "--rouds=3"], "did you mean '--rounds'?"),
        (["generat", "FILE"], "did you mean 'generate'?"),
    ],
)
def test_unknown_words_on_the_command_line(command: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(SAMPLES / "mlp.graph") if word == "FILE" else word for word in command])
    assert left.value.code == 2 and capsys.readouterr().err.endswith(f"\nhint: {hint}\n")


def test_run_rejects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 63), np.float32))
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    program = str(SAMPLES / "mlp.graph")
    for flags, words in [
        (["--input", f"x={tmp_path / 'x.npy'}"], "f32[5, 63]"),
        (["--input", f"x={tmp_path / 'o.npy'}"], "o.npy:1:1: error: "),
        (["--input", f"y={tmp_path / 'x.npy'}"], "has no input 'y'"),
        (["--output", "z=z.npy"], "has no result 'z'"),
        (["--shape", "x=f32[4,65]"], "f32[4, 65]"),
        (["--shape", "x=f33[4]"], "<--shape>:1:1: error: there is no element type 'f33'"),
        (["--shape", "x=2,64"], "hint: write x=f32[4,64]"),
        (["--file", "w=x"], "declares no file @w"),
        (["--graph", "mpl"], "did you mean 'mlp'"),
    ]:
        assert main(["run", program, *flags]) == 1, flags
        err = capsys.readouterr().err
        assert words in err, err
        assert "Traceback" not in err


def test_inout_array_is_a_result_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "cache.graph"
    program.write_text(
        "graph @main(%c: f32[8, 2] inout, %n: f32[1, 2], %p: i64[]) {\n  %u = cache_update(%c, %n, %p)\n  return\n}\n",
    )
    np.save(tmp_path / "c.npy", np.zeros((8, 2), np.float32))
    np.save(tmp_path / "n.npy", np.ones((1, 2), np.float32))
    np.save(tmp_path / "p.npy", np.int64(3))
    inputs = [f"--input={n}={tmp_path / n}.npy" for n in "cnp"]
    assert main(["run", str(program), *inputs, f"--output=c={tmp_path / 'out.npy'}"]) == 0
    expected = np.zeros((8, 2), np.float32)
    expected[3] = 1
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), np.zeros((8, 2)))


def test_lists_agree_with_what_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    loaded = {d.text_name: " ".join(d.summary.split()) for d in REGISTRY.values()}
    listed = listing.op_summaries()
    assert listed.keys() == loaded.keys()
    for name, summary in listed.items():
        assert summary == loaded[name], name
    assert main(["list", "ops"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(loaded)
    assert pass_summaries().keys() == pass_files().keys()
    for name, summary in pass_summaries().items():
        assert summary and summary == (find_pass(name).__doc__ or "").split("\n")[0]


def test_a_preset_is_explained_pass_by_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each pass, which are a pipeline as they stand; and which preset this processor gets."""
    assert main(["explain", "cpu"]) == 0
    pipeline, last = capsys.readouterr().out.split("\n\n", 1)[1].rsplit("\n\n", 1)
    assert pipeline.count("\n") + 1 == len(load_pipeline(PRESETS["cpu"])) - len(load_pipeline("O1")) + 1
    assert [str(p) for p in load_pipeline(pipeline)] == [str(p) for p in load_pipeline(PRESETS["cpu"])]
    assert last == f"This processor gets {preset_of('loops')}.\n"


def test_every_page_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for name in [*(d.text_name for d in REGISTRY.values()), *pass_files(), "O0", "O1"]:
        assert main(["explain", name]) == 0
        assert name in capsys.readouterr().out
    assert main(["explain", "matmull"]) == 1
    assert "did you mean 'matmul'?" in capsys.readouterr().err


def test_watching_passes(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--pipeline", "infer-types,dce", "--timing", "--statistics", "--verify-each", "--verify-exec"]
    assert main([str(SAMPLES / "mlp.graph"), *flags]) == 0
    err = capsys.readouterr().err
    assert "infer-types" in err and " ms" in err and "verified" in err
    program = [str(SAMPLES / "mlp.graph"), "--pipeline", "infer-types,dce"]
    for flags, count in [
        (["--print-ir-before-all"], 2),
        (["--print-ir-after-all"], 2),
        (["--print-ir-after-changed"], 1),
        (["--print-ir-before-changed"], 1),
        (["--print-ir-before", "dce"], 1),
        (["--print-ir-after", "infer-types"], 1),
    ]:
        assert main([*program, *flags]) == 0
        assert capsys.readouterr().err.count("graph @mlp(") == count, flags


def test_checks_are_reported_as_they_are_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def run(self: object, module: object, context: object) -> bool:
        seen.append(capsys.readouterr().err)
        return False

    monkeypatch.setattr("passes.graph.dce.Dce.run", run)
    assert main([str(SAMPLES / "mlp.graph"), "--pipeline", "infer-types,cse,dce", "--verify-exec"]) == 0
    assert seen == ["infer-types  verified\ncse          unchanged\n"]
    assert capsys.readouterr().err == "dce          unchanged\n"


def test_locations_print_and_parse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLES / "mlp.graph"), "--print-locs"]) == 0
    text = capsys.readouterr().out
    assert f'loc("{SAMPLES / "mlp.graph"}":3:9)' in text
    stdin(monkeypatch, text.encode())
    assert main(["-", "--print-locs"]) == 0
    assert capsys.readouterr().out == text


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m graph_opt.cli list ops | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SAMPLES.parent)}, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("abs ")


def test_the_cache_of_compiled_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from codegen import cache as cache_module

    monkeypatch.setattr(cache_module, "_BEGAN_NS", 1 << 62)
    monkeypatch.setenv("GRAPH_OPT_CACHE", str(tmp_path / "cache"))
    program = tmp_path / "p.graph"
    program.write_text("graph @main(%x: f32[N]) -> (y: f32[N]) {\n  %y = neg(%x)\n  return %y\n}\n")
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float32))
    command = ["run", str(program), "--input", f"x={tmp_path / 'x.npy'}"]
    generated = []
    for _ in range(2):  # with inputs that are generated, too
        assert main(["run", str(program)]) == 0
        ran = capsys.readouterr()
        assert main(["cache"]) == 0
        generated.append((ran, capsys.readouterr().out))
    assert generated[0] == generated[1] and "0 entries" not in generated[0][1]
    assert main(["cache", "--clear"]) == 0
    capsys.readouterr()
    said = []
    for _ in range(2):
        assert main(command) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "-2" in said[0]
    assert main(["cache"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{tmp_path / 'cache'}: ") and "0 entries" not in told
    assert main(["cache", "--clear"]) == 0 and "removed" in capsys.readouterr().out
    assert main([*command, "--no-cache"]) == 0
    assert capsys.readouterr().out == said[0]
    assert main(["cache"]) == 0 and capsys.readouterr().out == "nothing is kept\n"
    monkeypatch.setenv("GRAPH_OPT_CACHE", str(tmp_path / "cache"))
    assert main(["cache"]) == 0 and " 0 entries" in capsys.readouterr().out


TWO_GRAPHS = """\
graph @twice(%x: f32[4]) -> f32[4] {
  %y = add(%x, %x)
  return %y
}

graph @layer(%x: f32[4]) -> f32[4] {
  %y = call(@twice, %x)
  return %y
}

graph @other(%x: f32[S]) -> f32[S] {
  %y = neg(%x)
  return %y
}
"""


@pytest.mark.parametrize("flags", [[], ["--pipeline", "infer-types"], ["--emit", "graph"]])
def test_a_graph_that_is_named_is_printed_with_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    (tmp_path / "p.graph").write_text(TWO_GRAPHS)
    assert main([str(tmp_path / "p.graph"), "--graph", "layer", *flags]) == 0
    out = capsys.readouterr().out
    assert "@layer" in out and "@other" not in out
    assert main([str(tmp_path / "p.graph"), *flags]) == 0
    assert "@other" in capsys.readouterr().out


def test_a_graph_that_is_named_is_all_that_is_lowered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.graph").write_text(TWO_GRAPHS)
    assert main([str(tmp_path / "p.graph"), "--graph", "layer", "--emit", "loops"]) == 0
    out = capsys.readouterr().out
    assert "graph @layer" in out and "affine" not in out.split("graph @layer")[0] and "@other" not in out


@pytest.mark.parametrize("command", [[], ["run"], ["bench"]])
def test_a_model_is_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF\x03\x00\x00\x00\x1b[31m\xc3(")
    assert main([*command, str(model)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"{model}:1:1: error: this is a GGUF file") and "graph-opt import" in err and "graph-opt generate" in err


def test_bytes_are_not_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.graph").write_bytes(b"\x00\x01\x1b[31m\xc3(")
    assert main([str(tmp_path / "b.graph")]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'b.graph'}:1:8: error: not UTF-8: byte 0xc3\n  hint: save the file as UTF-8\n"


MANY = """\
graph @main(%ids: i64[2], %x: f32[2], %a: f32[3] inout, %b: f32[3] inout, %c: f32[3] inout, %d: f32[3] inout, %e: f32[3] inout) -> f32[2] {
  %n = cast(%ids, dtype=f32)
  %y = add(%n, %x)
  return %y
}
"""


def test_generated_inputs_are_called_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.graph").write_text(MANY)
    assert main(["run", str(tmp_path / "p.graph"), "--device", "reference"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "generated %ids: i64[2] (small random integers, seed 0)",
        "generated %x: f32[2] (normal random numbers, seed 0)",
        "generated %a ... %e, 5 inputs: each f32[3] (normal random numbers, seed 0)",
    ]


def test_generated_integers_that_had_to_be_zeros(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "graph @main(%x: f32[1, 4], %i: i64[2]) -> f32[2, 4] {\n  %j = mul(%i, %i)\n  %y = gather(%x, %j)\n  return %y\n}\n"
    (tmp_path / "p.graph").write_text(text)
    assert main(["run", str(tmp_path / "p.graph"), "--device", "reference"]) == 0
    err = capsys.readouterr().err
    assert "%x: f32[1, 4] (positive random numbers, seed 0)" in err and "%i: i64[2] (zeros, seed 0)" in err


def test_a_misspelt_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["list", "pases"])
    assert left.value.code == 2 and "did you mean 'passes'?" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [("f32", "a float, 32 bits; see docs/language.md"), ("q4_1", "20 bytes each; see docs/quantized.md")])
def test_explain_tells_where_types_are_described(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{name} is an element type: ") and words in out


def test_every_element_type_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in DTYPES:
        assert main(["explain", name]) == 0, name
