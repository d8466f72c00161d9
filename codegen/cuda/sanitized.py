"""Running kernels on the CPU under a sanitizer, in a process of their own; with synchronisation and bounds left out, where marks are given.

A :class:`Job` is buffers, launches and copies in order, and which memory is its result.  :meth:`Job.run` builds the kernels with
AddressSanitizer and UndefinedBehaviorSanitizer ("address"), with ThreadSanitizer ("thread") or without ("") and says what happened, once
with everything in place and once without each mark.  Buffers are allocated to the byte.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from codegen.cuda.host_build import Sanitizer, build_program

_MAGIC = b"GOJOB001"
_END, _BUFFER, _LAUNCH, _COPY, _OUTPUT, _MARKS, _REVERSE = range(7)
REFUSED = 97
"""The exit code of a run that the emulation ended: threads that don't meet, misaligned accesses, copies nobody waited for."""
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=99:abort_on_error=0:handle_segv=1:symbolize=1",
    "UBSAN_OPTIONS": "print_stacktrace=0:exitcode=99",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=98:history_size=0:report_signal_unsafe=0:atexit_sleep_ms=0",
}


class JobFailed(Exception):
    """The program around the kernels did not do a job: the job is broken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Memory of a job: ``offset`` bytes behind the start of buffer ``index``."""

    index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in one run.

    ``mark`` is what was left out (-1: nothing), ``code`` the exit code (0: it came to its end; negative: a signal), ``differs`` whether
    the results are not those of the run with everything in place, ``report`` what was written about it.
    """

    mark: int
    code: int
    differs: bool
    report: str

    @property
    def noticed(self) -> bool:
        """Whether something was found: a report, or other results."""
        return self.code != 0 or self.differs

    @property
    def what(self) -> str:
        """In a word: by what."""
        if self.code == 0:
            return "wrong result" if self.differs else "nothing"
        names = {REFUSED: "emulation", 98: "ThreadSanitizer", 99: "AddressSanitizer or UndefinedBehaviorSanitizer", -14: "no end"}
        return names.get(self.code, f"exit code {self.code}")


@dataclass
class Job:
    """What a program with kernels is to do."""

    source: str
    _commands: bytearray = field(default_factory=lambda: bytearray(_MAGIC))
    _buffers: list[int] = field(default_factory=list)
    _outputs: list[int] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    """The kernels, in the order of their launches."""

    def _numbers(self, *numbers: int) -> None:
        self._commands += struct.pack(f"<{len(numbers)}q", *numbers)

    def _blob(self, data: bytes) -> None:
        self._numbers(len(data))
        self._commands += data + bytes(-len(data) % 8)

    def buffer(self, data: np.ndarray[Any, Any] | bytes) -> Place:
        """Memory of the device with these contents."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self._numbers(_BUFFER)
        self._blob(raw)
        self._buffers.append(len(raw))
        return Place(len(self._buffers) - 1)

    def garbage(self, size: int) -> Place:
        """Memory of the device that nobody has written: NaN of every float type."""
        return self.buffer((b"\xff\x7f" * (size // 2 + 1))[:size])

    def launch(self, name: str, grid: Sequence[int], threads: int, shared: int, arguments: Sequence[Place | int]) -> None:
        """Launches a kernel; without blocks it is left out."""
        if not all(grid):
            return
        self.launched.append(name)
        self._numbers(_LAUNCH)
        self._blob(name.encode())
        self._numbers(*(*grid, 1, 1)[:3], threads, shared, len(arguments))
        for a in arguments:
            self._numbers(*(1, a.index, a.offset) if isinstance(a, Place) else (0, a, 0))

    def copy(self, target: Place, source: Place, size: int) -> None:
        """Copies within the device's memory."""
        self._numbers(_COPY, target.index, target.offset, source.index, source.offset, size)

    def output(self, place: Place, size: int) -> None:
        """These bytes, as they are then, belong to the results."""
        self._numbers(_OUTPUT, place.index, place.offset, size)
        self._outputs.append(size)

    def reverse(self, on: bool = True) -> None:
        """From here on threads and blocks run from the last one to the first."""
        self._numbers(_REVERSE, int(on))

    def run(self, sanitize: Sanitizer, marks: Sequence[int] = (), seconds: int = 60) -> tuple[list[bytes], list[Outcome]]:
        """The results of the run with everything in place (none, when it did not come to its end), and the outcomes of all runs.

        The first outcome is that of the run with everything in place, the others are in the order of ``marks``.  ``seconds``: for each.
        Raises MissingPackage without g++, BuildFailed, JobFailed.
        """
        program = build_program(self.source, sanitize)
        with tempfile.TemporaryDirectory(prefix="graph-opt-job-") as folder:
            job, results = Path(folder, "job"), Path(folder, "results")
            tail = struct.pack(f"<{3 + len(marks)}q", _MARKS, len(marks), *marks, _END)
            job.write_bytes(bytes(self._commands) + tail)
            _run([str(program), str(job), str(results), str(seconds)])
            return self._read(results.read_bytes(), 1 + len(marks))

    def _read(self, data: bytes, count: int) -> tuple[list[bytes], list[Outcome]]:
        outputs: list[bytes] = []
        outcomes = []
        at = 0
        for n in range(count):
            end = data.index(b"\n", at)
            mark, code, differs, length = map(int, data[at:end].split())
            at = end + 1
            outcomes.append(Outcome(mark, code, bool(differs), data[at : at + length].decode(errors="replace")))
            at += length
            if n == 0 and code == 0:
                for size in self._outputs:
                    outputs.append(data[at : at + size])
                    at += size
        return outputs, outcomes


def _run(command: list[str]) -> None:
    environment = {**os.environ, **_OPTIONS}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0 and b"unexpected memory mapping" in done.stderr and (setarch := shutil.which("setarch")):
        # ThreadSanitizer's runtime refuses some of the address layouts that Linux draws: without a draw it gets one that it takes.
        done = subprocess.run([setarch, "-R", *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise JobFailed(f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()[-1000:]}")
