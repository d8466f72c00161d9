"""The tutorial's graph on its way down: what is joined, what needs memory, and that each printed level is the program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graph_opt
from graph_opt.cli import main
from ir.core import Operation

ROOT = Path(__file__).parents[2]
MLP = ROOT / "samples" / "mlp.graph"
LEVELS = ("graph", "linalg", "loops")


def emitted(path: Path, level: str, folder: Path) -> Path:
    """A program at a level, as the command writes it."""
    target = folder / f"{path.stem}.{level}.graph"
    assert main([str(path), "--emit", level, "-o", str(target)]) == 0
    return target


def nests_and_buffers(path: Path) -> tuple[list[Operation], list[str]]:
    graph = graph_opt.load(path).graphs["mlp"]
    nests = [op for op in graph.block if op.name == "linalg.generic"]
    return nests, [op.result.name for op in graph.walk() if op.name == "memref.alloc"]


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((15, 64), (64, 256), (256,), (256, 64))]


def test_the_first_layer_is_one_nest_without_a_buffer_between(tmp_path: Path) -> None:
    nests, buffers = nests_and_buffers(emitted(MLP, "linalg", tmp_path))
    assert buffers == ["h2.buffer", "out.buffer"]
    assert len(nests) == 2
    inside = [op.name for op in nests[0].walk()]
    assert inside.count("linalg.reduce") == 1 and inside.count("math.fma") == 1 and "arith.addf" in inside
    assert not any(name.startswith("memref.") for name in inside)


def test_a_layer_that_is_returned_too_is_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "both.graph"
    text = MLP.read_text(encoding="utf-8").replace("-> f32[B, 64]", "-> (f32[B, 256], f32[B, 64])").replace("return %out", "return %h1, %out")
    path.write_text(text, encoding="utf-8")
    nests, buffers = nests_and_buffers(emitted(path, "linalg", tmp_path))
    assert sorted(buffers) == ["h1.buffer", "h2.buffer", "out.buffer"] and len(nests) == 2
    written = [name for name in ("h1.buffer", "h2.buffer") if any(v.name == name for v in nests[0].operands)]
    assert written == ["h1.buffer", "h2.buffer"]
    assert not any(v.name == "h1.buffer" for v in nests[1].operands)


def test_memory_of_the_first_layer(tmp_path: Path) -> None:
    """At the level of loops there is room for h2 alone; the result has its own."""
    text = emitted(MLP, "loops", tmp_path).read_text(encoding="utf-8")
    assert text.count("memref.alloc()") == 2
    assert "%arena = memref.alloc() : memref<u8[1024*B]>" in text and "%out.buffer = memref.alloc() : memref<f32[B, 64]>" in text
    assert text.count("memref.view(") == 1 and "%h2.buffer = memref.view(%arena, offset=0) : memref<f32[B, 256]>" in text


def test_the_printed_loops_run_again_with_the_same_bits(tmp_path: Path, arrays: list[np.ndarray]) -> None:
    flags = []
    for name, array in zip(("x", "w1", "b1", "w2"), arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
        flags += ["--input", f"{name}={tmp_path / name}.npy"]
    wanted = graph_opt.compile(MLP)(*arrays)
    loops = emitted(MLP, "loops", tmp_path)
    for device in (["--device", "cpu"], ["--device", "cpu", "--threads", "2"], ["--device", "reference"]):
        assert main(["run", str(loops), *flags, *device, "--output", f"out={tmp_path / 'out.npy'}"]) == 0
        found = np.load(tmp_path / "out.npy")
        assert found.shape == (15, 64) and found.tobytes() == wanted.tobytes(), device


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_prints_reads_and_runs_as_machine_code(level: str, tmp_path: Path, arrays: list[np.ndarray]) -> None:
    path = emitted(MLP, level, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert str(graph_opt.parse(text)) == text
    assert graph_opt.compile(path)(*arrays).tobytes() == graph_opt.compile(MLP)(*arrays).tobytes()
