"""--verify-exec stops at a pass that changes the numbers, whichever pass and however small the change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from graph_opt.cli import main
from ir.attributes import Dense
from ir.builder import Builder
from ir.clone import clone_module
from ir.core import Graph, Module, Operation
from ir.interpreter import Interpreter
from ir.opdef import REGISTRY
from ir.parser import parse_module
from ir.printer import print_module
from passes.infra.base import PassContext
from passes.infra.registry import find_pass, pass_files
from passes.infra.verify_exec import KeptRuns, close_in_double, compare_modules, error_is_bounded, same_bits
from passes.pipelines import PRESETS

SAMPLES = Path(__file__).parents[2] / "samples"
PROGRAM = """\
graph @main(%x: f32[B, 4], %y: f32[B, 4], %w: f32[6, 4], %n: i64[B]) -> (a: f32[B, 6], b: f32[B, 4], c: i64[B]) {
  %one = constant([1.0, 2.0, 3.0, 4.0]) : f32[4]
  %s = sub(%x, %y)
  %k = mul(%s, %one)
  %l = linear(%k, %w)
  %g = gelu(%l)
  %m = softmax(%s, axis=1)
  %t = add(%m, %k)
  %c = add(%n, %n)
  return %g, %t, %c
}
"""


def first(module: Module, name: str) -> Operation:
    return next(op for op in module.walk() if op.definition.name == name)


def swap_operands(module: Module) -> str:
    op = first(module, "sub")
    op.set_operands(list(reversed(op.operands)))
    return "%s = sub(%y, %x)"


def nudge_a_constant(module: Module) -> str:
    op = next(op for op in module.walk() if op.definition.name == "constant" and op.result.name == "one")
    value = op.attributes["value"]
    assert isinstance(value, Dense)
    array = value.array.copy()
    array[2] = np.nextafter(array[2], np.float32(9))
    op.set_attribute("value", Dense(array))
    return "%one = constant([1.0, 2.0, 3.0000002, 4.0])"


def use_another_value(module: Module) -> str:
    op = first(module, "mul")
    op.operand_uses[0].set(module.main.parameters[0])
    return "%k = mul(%x, %one)"


def double_an_integer(module: Module) -> str:
    op = next(op for op in module.walk() if op.result.name == "c")
    op.operand_uses[0].set(first(module, "constant").block.graph.parameters[3])  # type: ignore[union-attr]
    with Builder.before_op(op):
        square = REGISTRY["graph.mul"](op.operands[0], op.operands[1])
    op.operand_uses[1].set(square)
    return "%c = add(%n, %c.mul)"


GRAPH_PASSES = [name for name, path in pass_files().items() if path.parent.name == "graph"]
SABOTAGE = [swap_operands, nudge_a_constant, use_another_value, double_an_integer]


@pytest.mark.parametrize("sabotage", SABOTAGE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", GRAPH_PASSES)
def test_a_wrong_rewrite_in_any_pass_is_named(
    name: str, sabotage: Callable[[Module], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cls = find_pass(name)
    if cls.preserves == "approximate" and sabotage is nudge_a_constant:
        pytest.skip("a pass that approximates may be off by that")
    right = cls.run
    where: list[str] = []

    def wrong(self: object, module: Module, context: PassContext) -> bool:
        right(self, module, context)  # type: ignore[arg-type]
        where.append(sabotage(module))
        return True

    monkeypatch.setattr(cls, "run", wrong)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = tmp_path / "p.graph"
    program.write_text(PROGRAM)
    assert main([str(program), "--pipeline", f"infer-types,{name}" if name != "infer-types" else name, "--verify-exec"]) == 3
    err = capsys.readouterr().err
    assert any(line.startswith(f"graph-opt: pass '{name}' broke the numbers: ") for line in err.splitlines()), err
    assert where[0] in err, err
    assert "before" in err
    assert "reproducer: " in err


def test_a_right_pass_is_let_through(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = tmp_path / "p.graph"
    program.write_text(PROGRAM)
    for pipeline in [*PRESETS, ",".join(pass_files())]:
        assert main([str(program), "--pipeline", pipeline, "--verify-exec"]) == 0
        assert "not verified" not in capsys.readouterr().err


@pytest.mark.parametrize("preset", ["O0", "O1"])
@pytest.mark.parametrize("path", [p for p in sorted(SAMPLES.rglob("*.graph")) if p.stem != "mlp_bare"], ids=lambda p: p.stem)
def test_presets_pass_on_all_samples(path: Path, preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path), "--pipeline", preset, "--verify-exec", "--verify-each"]) == 0
    err = capsys.readouterr().err
    assert "verified" in err and "not verified" not in err, err


@pytest.mark.parametrize("preset", ["O2", "cpu"])
def test_presets_pass_on_a_small_sample(preset: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Loops take their time in the interpreter: the tutorial's graph with fewer columns, which still fill a block and more."""
    program = tmp_path / "small.graph"
    program.write_text((SAMPLES / "mlp.graph").read_text().replace("256", "50").replace("64", "5"))
    assert main([str(program), "--pipeline", preset, "--verify-exec", "--verify-each"]) == 0
    err = capsys.readouterr().err
    assert "lower-to-linalg" in err and "verified" in err and "not verified" not in err, err


def test_loops_too_long_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = tmp_path / "p.graph"
    program.write_text("graph @main(%x: f32[B, 999], %y: f32[999, 999]) -> f32[B, 999] {\n  %z = matmul(%x, %y)\n  return %z\n}\n")
    assert main([str(program), "--pipeline", "infer-types,lower-to-linalg,lower-to-loops,tile", "--verify-exec"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().err.splitlines()}
    assert "not verified" not in lines["infer-types"]
    for name in ("lower-to-linalg", "lower-to-loops", "tile"):
        assert lines[name].endswith("not verified: budget"), lines


def test_presets_pass_on_the_bare_sample(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SAMPLES / "mlp_bare.graph")
    assert main([path, "--pipeline", "O1", "--verify-exec"]) == 0
    assert "not verified: %x has no known type" in capsys.readouterr().err
    shapes = [f"--shape={s}" for s in ("x=f32[B,64]", "w1=f32[64,256]", "b1=f32[256]", "w2=f32[256,64]")]
    assert main([path, "--pipeline", "O1", "--verify-exec", *shapes]) == 0
    assert "not verified" not in capsys.readouterr().err


def test_a_program_too_large_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = tmp_path / "p.graph"
    program.write_text("graph @main(%x: f32[4096, 4096]) -> f32[4096, 4096] {\n  %y = matmul(%x, %x)\n  return %y\n}\n")
    assert main([str(program), "--pipeline", "O1", "--verify-exec"]) == 0
    assert "not verified: budget" in capsys.readouterr().err


def test_comparisons() -> None:
    a = np.float32([1, np.nan, -0.0])
    assert same_bits(a, a.copy())
    assert not same_bits(a, np.float32([1, np.nan, 0.0]))
    assert not same_bits(a, a.astype(np.float64))
    assert not same_bits(a, a[:2])
    assert close_in_double(np.array([1.0, np.inf]), np.array([1.0 + 1e-12, np.inf]))
    assert not close_in_double(np.array([1.0, np.inf]), np.array([1.0 + 1e-12, -np.inf]))
    assert not close_in_double(np.array([1.0, 2.0]), np.array([1.0, 2.00001]))
    exact = np.array([1.0, 2.0])
    assert error_is_bounded(np.float32(exact), np.float32(exact), exact)
    assert not error_is_bounded(np.float32(exact), np.float32([1.0, 2.001]), exact)


def test_a_result_that_disappears_is_seen() -> None:
    before = parse_module("graph @main(%x: f32[2]) -> (f32[2], f32[2]) {\n  %y = exp(%x)\n  return %y, %x\n}\n")
    after = parse_module("graph @main(%x: f32[2]) -> f32[2] {\n  %y = exp(%x)\n  return %y\n}\n")
    found = compare_modules(before, after)
    assert found.mismatch is not None and "1 results, before 2" in found.mismatch.message


def test_a_wrong_nest_in_the_lowering_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """lower-to-linalg leaves other operations behind, so it has a sabotage of its own: x - y computed as y - x."""
    cls = find_pass("lower-to-linalg")
    right = cls.run

    def wrong(self: object, module: Module, context: PassContext) -> bool:
        right(self, module, context)  # type: ignore[arg-type]
        op = first(module, "subf")
        op.set_operands(list(reversed(op.operands)))
        return True

    monkeypatch.setattr(cls, "run", wrong)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = tmp_path / "p.graph"
    program.write_text("graph @main(%x: f32[B, 4], %y: f32[B, 4]) -> f32[B, 4] {\n  %s = sub(%x, %y)\n  return %s\n}\n")
    assert main([str(program), "--pipeline", "lower-to-linalg", "--verify-exec"]) == 3
    err = capsys.readouterr().err
    assert "graph-opt: pass 'lower-to-linalg' broke the numbers: result 's' changed" in err
    assert "at %s = memref.to_tensor(" in err


def test_a_buffer_written_otherwise_is_seen() -> None:
    text = "graph @main(%A: memref<f32[4]>, %x: f32[4]) {{\n  linalg.generic(i < 4, %o = %A[i]) {{\n    %c = arith.constant({})"
    text += " : f32\n    yield %c\n  }}\n  return\n}}\n"
    found = compare_modules(parse_module(text.format("1.0")), parse_module(text.format("2.0")))
    assert found.mismatch is not None and "%A after the call changed" in found.mismatch.message
    assert compare_modules(parse_module(text.format("1.0")), parse_module(text.format("1.0"))).mismatch is None


def test_a_program_runs_once_between_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = parse_module(PROGRAM)
    ran: list[str] = []
    run = Interpreter.run

    def counted(self: Interpreter, graph: Graph, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        ran.append(print_module(self.module))
        return run(self, graph, arrays)

    monkeypatch.setattr(Interpreter, "run", counted)
    kept = KeptRuns()
    copies = [clone_module(module) for _ in range(3)]
    for copy in copies[1:]:
        nudge_a_constant(copy)
    assert compare_modules(copies[0], copies[0], kept=kept).mismatch is None
    first_time = len(ran)
    assert first_time == 6  # two programs, three kinds of inputs
    found = compare_modules(clone_module(copies[0]), copies[1], kept=kept)
    assert found.mismatch is not None and len(ran) == first_time + 1 and ran[-1] == print_module(copies[1])
    assert compare_modules(copies[0], copies[2], kept=kept).mismatch is not None  # not what ran before: both run
    assert len(ran) == first_time + 3
