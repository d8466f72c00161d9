"""The fuzzer itself: a process that dies is noticed, a program that fails is kept, and the others go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests import fuzz


def test_a_death_is_noticed() -> None:
    worker = fuzz.Worker(2)
    try:
        assert "error" not in worker.check(1)[0]
        assert worker.process is not None
        os.kill(worker.process.pid, signal.SIGSEGV)
        (found,) = worker.check(2)
        assert found["kind"] == "deaths" and "SIGSEGV" in found["error"] and "graph @main" in found["report"]
        assert "error" not in worker.check(2)[0]
    finally:
        worker.close()


def test_a_program_that_fails_is_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: fuzz.Worker, *seeds: int) -> list[dict[str, object]]:
        return fuzz.try_seeds(seeds, self.steps, self.device)

    def fails(*_: object, **__: object) -> int:
        raise AssertionError("wrong number")

    monkeypatch.setattr(fuzz.Worker, "check", check)
    monkeypatch.setattr(fuzz, "check_native", fails)
    assert fuzz.main(["--count", "3", "--seed", "1", "--steps", "2", "--jobs", "2", "--out", str(tmp_path)]) == 1
    assert "3 programs, 3 mismatches, 0 deaths" in capsys.readouterr().out
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == [f"fuzz-failure-{seed}.graph" for seed in (1, 2, 3)]
    assert "wrong number" in files[0].read_text() and "graph @main" in files[0].read_text()
