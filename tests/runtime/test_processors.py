"""How many processors there are, from made-up control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codegen.runtime import processors
from codegen.runtime.processors import affinity, available_processors, quota

UNLIMITED = 1 << 20


def system(root: Path, groups: str, mounts: list[tuple[str, str, str, str]], files: dict[str, str]) -> Path:
    """A folder like ``/``; mounts are (group at the mount, folder, kind, options)."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    lines = [f"{30 + i} 25 0:{i} {group} /{folder} rw,relatime - {kind} none {options}\n" for i, (group, folder, kind, options) in enumerate(mounts)]
    (root / "proc/self/mountinfo").write_text("".join(lines))
    for _, folder, _, _ in mounts:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = [("/", "sys/fs/cgroup", "cgroup2", "rw")]
V1 = [("/", "sys/fs/cgroup/cpu", "cgroup", "rw,cpu,cpuacct"), ("/", "sys/fs/cgroup/memory", "cgroup", "rw,memory")]


@pytest.mark.parametrize(("text", "wanted"), [
    ("max 100000\n", UNLIMITED),
    ("200000 100000\n", 2),
    ("150000 100000\n", 2),
    ("1000 100000\n", 1),
    ("250000 50000\n", 5),
    ("", UNLIMITED),
    ("much 100000\n", UNLIMITED),
    ("100000 0\n", UNLIMITED),
    ("-1 100000\n", UNLIMITED),
])  # fmt: skip
def test_version_2(tmp_path: Path, text: str, wanted: int) -> None:
    assert quota(system(tmp_path, "0::/\n", V2, {"sys/fs/cgroup/cpu.max": text})) == wanted


def test_groups_around_limit_too(tmp_path: Path) -> None:
    limits = {"": "max 1", "a/": "300000 100000", "a/b/": "800000 100000", "a/c/": "100000 100000"}
    files = {f"sys/fs/cgroup/{group}cpu.max": text for group, text in limits.items()}
    assert quota(system(tmp_path, "0::/a/b\n", V2, files)) == 3


@pytest.mark.parametrize(("amount", "wanted"), [("-1", UNLIMITED), ("100000", 1), ("350000", 4)])
def test_version_1(tmp_path: Path, amount: str, wanted: int) -> None:
    files = {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": f"{amount}\n", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n"}
    files |= {"sys/fs/cgroup/memory/x/cpu.cfs_quota_us": "1\n", "sys/fs/cgroup/memory/x/cpu.cfs_period_us": "1\n"}
    assert quota(system(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/x\n", V1, files)) == wanted


def test_both_versions_at_a_time(tmp_path: Path) -> None:
    mounts = [*V1, ("/", "sys/fs/cgroup/unified", "cgroup2", "rw")]
    files = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "600000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}
    files["sys/fs/cgroup/unified/y/cpu.max"] = "400000 100000"
    assert quota(system(tmp_path, "3:cpu:/\n0::/y\n", mounts, files)) == 4


def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path) -> None:
    """Docker with version 1: the group's path is that of the host, and what is mounted is the group itself."""
    mounts = [("/docker/1234", "sys/fs/cgroup/cpu", "cgroup", "rw,cpu")]
    files = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}
    assert quota(system(tmp_path, "3:cpu:/docker/1234\n", mounts, files)) == 2
    other = system(tmp_path / "b", "0::/../elsewhere\n", V2, {"sys/fs/cgroup/cpu.max": "300000 100000"})
    assert quota(other) == 3


def test_no_groups_at_all(tmp_path: Path) -> None:
    assert quota(tmp_path) == UNLIMITED
    assert quota(system(tmp_path / "a", "nonsense\n\n::\n", [], {})) == UNLIMITED


def test_mask_quota_and_the_users_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processors.PROCESSORS, raising=False)
    monkeypatch.setattr(processors, "_quota_here", lambda: 1000)
    monkeypatch.setattr(processors, "affinity", lambda: [3, 5, 6])
    assert available_processors() == 3
    monkeypatch.setattr(processors, "_quota_here", lambda: 2)
    assert available_processors() == 2
    monkeypatch.setenv(processors.PROCESSORS, "7")
    assert available_processors() == 7
    for word in ("0", "-2", "many", ""):
        monkeypatch.setenv(processors.PROCESSORS, word)
        assert available_processors() == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs masks")
def test_the_mask_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processors.PROCESSORS, raising=False)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_processors() == 1 and affinity() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)
