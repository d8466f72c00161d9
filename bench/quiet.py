"""Keeping the rest of the machine out of a timing: processors, priorities, and a lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LOCK = Path(tempfile.gettempdir()) / "bench.lock"
"""Held while something is timed, so that benchmarks take turns."""
URGENT = -19
_GROUP = Path("/proc/self/autogroup")


def pick_processors(threads: int, named: str = "") -> list[int]:
    """The processors for so many threads: those named, or the last ones that the process may use.  Raises ValueError for too few."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    chosen = [int(part) for part in named.split(",")] if named else usable[-threads:]
    if len(chosen) < threads or not set(chosen) <= set(usable):
        raise ValueError(f"{threads} of the processors {', '.join(map(str, usable))} are wanted")
    return chosen[:threads]


def keep_to(processors: Iterable[int]) -> None:
    """Keeps this process, and the threads that it starts, to some processors."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(processors))


@contextlib.contextmanager
def undisturbed(processes: Iterable[int]) -> Iterator[None]:
    """Alone with other benchmarks, and before other programs where that is permitted.

    Where the kernel groups the processes of a session, a priority counts only within its group: the group is raised, too.
    """
    with LOCK.open("w") as lock:
        with contextlib.suppress(OSError):
            LOCK.chmod(0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _priorities(processes)
        _raise_group(URGENT)
        _set_priorities(dict.fromkeys(before, URGENT))
        try:
            yield
        finally:
            _set_priorities(before)
            _raise_group(0)


def _threads(process: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return [process]


def _priorities(processes: Iterable[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for process in processes:
        for thread in _threads(process):
            with contextlib.suppress(OSError):
                found[thread] = os.getpriority(os.PRIO_PROCESS, thread)
    return found


def _set_priorities(wanted: dict[int, int]) -> None:
    for thread, value in wanted.items():
        with contextlib.suppress(OSError):  # it has ended, or we may not
            os.setpriority(os.PRIO_PROCESS, thread, value)


def _raise_group(value: int) -> None:
    with contextlib.suppress(OSError):
        _GROUP.write_text(str(value))


def undisturbed_parts(part: Callable[[], object], enough: Callable[[], bool]) -> list[int]:
    """Runs ``part`` until it is ``enough``; gives which runs kept their processors throughout, or all where none did.

    The kernel counts how often it took a processor away; a run that is cut into says nothing about the work.
    """
    count, clean = 0, []
    while True:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        part()
        if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == before:
            clean.append(count)
        count += 1
        if enough():
            return clean or list(range(count))


def spread(work: Callable[[], object], processors: list[int], seconds: float = 0.2) -> None:
    """Runs ``work`` a while and gives each of the busiest threads a processor of its own.

    A busy machine may leave two workers on one processor for long, and they wait for each other.
    """
    before = _busy()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        work()
    after = _busy()
    ranked = sorted(after, key=lambda thread: after[thread] - before.get(thread, 0), reverse=True)
    working = [thread for thread in ranked[: len(processors)] if after[thread] - before.get(thread, 0) >= 2]
    for thread in after:
        own = {processors[working.index(thread)]} if thread in working and len(working) == len(processors) else set(processors)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, own)


def _busy() -> dict[int, int]:
    """Clock ticks that each thread of this process has run."""
    found: dict[int, int] = {}
    for thread in _threads(os.getpid()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
            found[thread] = int(fields[11]) + int(fields[12])
    return found
