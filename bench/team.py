"""The processes of the engines, as the harness sees them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from bench.case import ROOT
from bench.engines import EXTRAS

Answer = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How engines are run: with how many threads, on which processors, by which interpreters (the one for "" where none is named)."""

    threads: int
    processors: Sequence[int]
    pythons: Mapping[str, str]

    def python(self, engine: str) -> str:
        """The interpreter of an engine."""
        return self.pythons.get(engine) or self.pythons.get("") or sys.executable

    def environment(self) -> dict[str, str]:
        """The environment of an engine: the threads of every library, none of the user's settings of OpenBLAS."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        more = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
        if self.threads == 1:
            more["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        return {**kept, **threads, **more}


class Member:
    """One engine in its process."""

    def __init__(self, name: str, setting: Setting, log: IO[str]) -> None:
        self.name = name
        self.python = setting.python(name)
        command = [self.python, "-m", "bench.worker", name, str(setting.threads), ",".join(map(str, setting.processors))]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=setting.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self.hello: Answer = {}

    @property
    def process(self) -> int:
        """Its number."""
        return self._process.pid

    def tell(self, do: str, **request: Any) -> None:
        """Sends a request; every one has an answer, in order."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, as the answer will tell
            print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)

    def hear(self) -> Answer:
        """The next answer; an ``error`` when the process has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return {"error": f"the process ended with status {self._process.wait()}"}
        answer: Answer = json.loads(line)
        return answer

    def ask(self, do: str, **request: Any) -> Answer:
        """A request and its answer."""
        self.tell(do, **request)
        return self.hear()

    def stop(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, with requests unread
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def gather(names: Sequence[str], setting: Setting, log: IO[str]) -> tuple[list[Member], list[str]]:
    """The engines that start, and a line for each that doesn't."""
    members = [Member(name, setting, log) for name in names]
    there, lines = [], []
    for member in members:
        member.hello = member.hear()
        if "versions" in member.hello:
            there.append(member)
            continue
        extra = EXTRAS.get(member.name, "bench")
        why = f"{member.hello['missing']}; pip install -e '.[{extra}]'" if "missing" in member.hello else member.hello.get("error")
        lines.append(f"{member.name} is left out: {why} ({member.python})")
        member.stop()
    return there, lines
