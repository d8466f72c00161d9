"""Keeping the rest of the machine out of a timing: processors, priorities, and a lock."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import resource
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LOCK = Path(tempfile.gettempdir()) / f"graph-opt-bench-{getpass.getuser()}.lock"
"""Held while something is timed, so that benchmarks of one user take turns."""


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
def undisturbed() -> Iterator[None]:
    """Alone with other benchmarks."""
    with LOCK.open("w") as lock:
        if not _inherited(lock.fileno()):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def first(process: int) -> Iterator[None]:
    """A process before all others where that is permitted, those among them that spin a while after their turn.

    Its threads get the real-time class: it goes before the rest whatever priority and group that has, and the kernel moves them
    apart at once where two are on one processor.
    """
    _schedule(_threads(process), "SCHED_RR", 1)
    try:
        yield
    finally:
        _schedule(_threads(process), "SCHED_OTHER", 0)


def _inherited(lock: int) -> bool:
    """Whether whoever started this process holds the lock, and passed it on: waiting for it would never end."""
    wanted = os.fstat(lock)
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if int(name) != lock and os.path.samestat(os.fstat(int(name)), wanted):
                    return True
    return False


def _threads(process: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return []


def _schedule(threads: Iterable[int], kind: str, priority: int) -> None:
    if not hasattr(os, kind):  # not Linux
        return
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended, or we may not
            os.sched_setscheduler(thread, getattr(os, kind), os.sched_param(priority))


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
