"""How many processors a process may use: its mask (``taskset``, cpusets), the quota of its control groups, and the user's word."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

PROCESSORS = "GRAPH_OPT_PROCESSORS"
"""Set to a number, that is how many processors there are, whatever else says."""

_ROOT = Path("/")


def available_processors() -> int:
    """Processors that this process may use: those of its mask, but not more than its quota of processor time pays for."""
    told = os.environ.get(PROCESSORS, "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return max(1, min(len(affinity()) or os.cpu_count() or 1, _quota_here()))


def affinity() -> list[int]:
    """The processors that the calling thread may run on; empty where the system doesn't tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@lru_cache(maxsize=1)
def _quota_here() -> int:
    return quota(_ROOT)


def quota(root: Path) -> int:
    """Processors that the control groups of this process pay for, rounded up; a large number where nothing limits them.

    ``root`` is the folder that ``proc`` and the mounts are looked up in.  A group is limited by those around it as well;
    version 1 says so in ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``, version 2 in ``cpu.max``.
    """
    least = 1 << 20
    for folder, top in _groups(root):
        while True:
            share = _share(folder)
            if share is not None:
                least = min(least, share)
            if folder == top or top not in folder.parents:
                break
            folder = folder.parent
    return least


def _groups(root: Path) -> list[tuple[Path, Path]]:
    """The folders of this process's groups that may limit processor time, each with the one where its hierarchy is mounted."""
    paths: dict[str, str] = {}  # controllers of a hierarchy ("" for version 2) -> the group's path in it
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "" or "cpu" in controllers.split(","):
            paths["cpu" if controllers else ""] = path
    found = []
    for line in _lines(root / "proc/self/mountinfo"):
        head, _, tail = line.partition(" - ")
        words, kinds = head.split(" "), tail.split(" ")
        if len(words) < 5 or len(kinds) < 3:
            continue
        version2 = kinds[0] == "cgroup2"
        if not version2 and (kinds[0] != "cgroup" or "cpu" not in kinds[2].split(",")):
            continue
        group = paths.get("" if version2 else "cpu")
        if group is None:
            continue
        top = root / words[4].lstrip("/")
        mounted = words[3].rstrip("/")  # the group that is seen at the mount, when it is not the outermost one
        inside = group.removeprefix(mounted) if group == mounted or group.startswith(f"{mounted}/") else group
        folder = top / inside.strip("/")
        found.append((folder if folder.is_dir() and ".." not in inside.split("/") else top, top))
    return found


def _share(folder: Path) -> int | None:
    """Processors that one group pays for; None when it has no limit."""
    words = " ".join(_lines(folder / "cpu.max")).split()
    if not words:
        words = [w for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for w in _lines(folder / name)]
    try:
        amount, period = (int(w) for w in words)
    except ValueError:  # "max", or no such file
        return None
    return max(1, -(-amount // period)) if amount > 0 and period > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
