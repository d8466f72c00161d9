"""Generating text on the emulated device: the tokens of the CPU, caches that stay on the device, one launch of a graph for each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_opt.cli import main
from graph_opt.cuda import DeviceArray, open_device
from graph_opt.llm import Model, load
from tests.cuda.device import DEVICE, needs_device
from tests.gguf_files import Tiny, tiny_llama

pytest.importorskip("tokenizers")

pytestmark = needs_device


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "tiny.gguf"
    file.write_bytes(tiny_llama(Tiny(layers=1, context=40)))
    return file


@pytest.fixture(scope="module")
def models(path: Path) -> tuple[Model, Model]:
    return load(path), load(path, device=DEVICE)


def test_logits_and_tokens_are_those_of_the_cpu(models: tuple[Model, Model]) -> None:
    ids = models[0].tokenizer.encode("hello world")
    logits = [m.logits(ids) for m in models]
    assert type(logits[1]) is np.ndarray and np.abs(logits[0] - logits[1]).max() <= 1e-5 * np.abs(logits[0]).max()
    for options in ({}, {"temperature": 0.8, "top_k": 7, "top_p": 0.9, "seed": 5}):
        texts = ["".join(m.generate("hello world", max_tokens=9, stop=False, **options)) for m in models]  # type: ignore[arg-type]
        assert texts[0] == texts[1]
    assert all(isinstance(a, DeviceArray) for a in models[1]._idle[0].arrays)


def test_a_token_is_two_launches(models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the model and one of what chooses the token."""
    driver, seen = open_device(DEVICE).driver, []
    for name in ("launch", "launch_graph"):
        original = getattr(driver, name)

        def watched(*args: Any, name: str = name, original: Any = original) -> Any:
            seen.append(name)
            return original(*args)

        monkeypatch.setattr(driver, name, watched)
    tokens = models[1].generate("world", max_tokens=9, stop=False, ids=True)
    for _ in range(5):
        next(tokens)
    seen.clear()
    assert len(list(tokens)) == 4 and seen == ["launch_graph"] * 8


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(path), "--device", "abacus", "--prompt", "hello"]) == 2
    assert "there is no device 'abacus'" in capsys.readouterr().err
    assert main(["generate", str(path), "--device", DEVICE, "--threads", "2", "--prompt", "hello"]) == 2
    texts = []
    for device in (DEVICE, "cpu"):
        assert main(["generate", str(path), "--device", device, "--prompt", "hello", "--max-tokens", "4", "--capacity", "20"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
