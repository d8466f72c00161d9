"""Digests: right, checked on the file that is read, remembered only where nobody else can write."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from interop import digest, open_weights
from interop._files import RegularFile
from interop.digest import cache_folder, cached_sha256_of, check_digest, sha256_of
from ir.diagnostics import GraphError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digest, "_known", {})
    monkeypatch.setattr(digest, "_warned", False)
    yield


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read, in order."""
    read: list[Path] = []
    original = digest.sha256_of

    def counting(file: RegularFile) -> str:
        read.append(file.path)
        return original(file)

    monkeypatch.setattr(digest, "sha256_of", counting)
    return read


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes files for old enough at once."""
    monkeypatch.setattr(digest, "_SETTLED_NS", -(10**12))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new process knows."""
    monkeypatch.setattr(digest, "_known", {})


def test_sha256(tmp_path: Path) -> None:
    for size in (0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1):
        data = bytes(range(256)) * (size // 256 + 1)
        (tmp_path / "f").write_bytes(data[:size])
        assert sha256_of(tmp_path / "f") == hashlib.sha256(data[:size]).hexdigest()
    with pytest.raises(GraphError, match="No such file"):
        sha256_of(tmp_path / "none")


def test_check(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    right = hashlib.sha256(b"abc").hexdigest()
    check_digest(path, right)
    check_digest(path, right.upper())
    with pytest.raises(GraphError, match=f"expected {'0' * 64}, found {right}"):
        check_digest(path, "0" * 64)
    for bad in ("", "abc", right + "0", "g" * 64):
        with pytest.raises(GraphError, match="not a SHA-256 digest"):
            check_digest(path, bad)


def test_open_weights_checks(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.float32([1, 2]))
    right = sha256_of(tmp_path / "w.npy")
    assert open_weights(tmp_path / "w.npy", sha256=right).read("arr_0").tolist() == [1, 2]
    with pytest.raises(GraphError, match="wrong SHA-256 digest"):
        open_weights(tmp_path / "w.npy", sha256="0" * 64)


def test_remembered_in_the_process_and_on_disk(tmp_path: Path, counted: list[Path], settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    right = hashlib.sha256(b"abc").hexdigest()
    check_digest(path, right)
    check_digest(path, right)
    assert len(counted) == 1
    forget(monkeypatch)
    check_digest(path, right)
    assert len(counted) == 1
    check_digest(path, right, fresh=True)
    assert len(counted) == 2
    folder = cache_folder()
    assert folder == tmp_path / "cache" / "graph-opt"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in folder.iterdir()] == ["digests.json"]
    assert (folder / "digests.json").stat().st_mode & 0o777 == 0o600


def test_a_changed_file_is_read_again(tmp_path: Path, counted: list[Path], settled: None) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    check_digest(path, hashlib.sha256(b"abc").hexdigest())
    before = path.stat()
    time.sleep(0.02)
    path.write_bytes(b"abd")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size and time of the contents: the inode's time tells
    with pytest.raises(GraphError, match="wrong SHA-256"):
        check_digest(path, hashlib.sha256(b"abc").hexdigest())
    assert len(counted) == 2


def test_a_file_just_written_is_not_remembered(tmp_path: Path, counted: list[Path]) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    for _ in range(2):
        check_digest(path, hashlib.sha256(b"abc").hexdigest())
    assert len(counted) == 2 and not cache_folder().exists()


def _fill(path: Path) -> bytes:
    path.write_bytes(b"abc")
    with RegularFile(path) as file:
        cached_sha256_of(file)
    return (cache_folder() / "digests.json").read_bytes()


def test_a_damaged_cache_is_ignored_and_rewritten(tmp_path: Path, counted: list[Path], settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    good = _fill(path)
    right = hashlib.sha256(b"abc").hexdigest()
    stored = cache_folder() / "digests.json"
    flipped = good.replace(right.encode(), b"0" * 64)
    other_version = good.replace(b'"version": 1', b'"version": 2')
    assert flipped != good and other_version != good
    damaged = [b"", b"{}", b"[]", b"null", b"\xff" * 10, good[: len(good) // 2], flipped, other_version, b"[" * 100_000, b"x" * (2 << 20)]
    for content in damaged:
        stored.write_bytes(content)
        forget(monkeypatch)
        before = len(counted)
        check_digest(path, right)
        assert len(counted) == before + 1
        assert stored.read_bytes() == good
    for place in range(0, len(good), max(1, len(good) // 64)):
        stored.write_bytes(good[:place])
        forget(monkeypatch)
        check_digest(path, right)
        assert stored.read_bytes() == good


def test_wrong_entries_with_a_right_checksum_are_ignored(tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    _fill(path)
    for entries in ({"1:2": "0" * 64}, {"a:b:c:d:e": "0" * 64}, {"1:2:3:4:5": 7}, {"1:2:3:4:5": "zz"}):
        text = json.dumps({"version": 1, "check": digest._checksum(entries), "digests": entries})
        (cache_folder() / "digests.json").write_text(text)
        forget(monkeypatch)
        check_digest(path, hashlib.sha256(b"abc").hexdigest())


@pytest.mark.parametrize("kind", ["mode", "link", "file"])
@pytest.mark.usefixtures("settled")
def test_a_folder_that_others_could_write_is_not_used(tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = cache_folder()
    folder.parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    if kind == "mode":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "link":
        elsewhere.mkdir(mode=0o700)
        folder.symlink_to(elsewhere)
    else:
        folder.write_text("")
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    right = hashlib.sha256(b"abc").hexdigest()
    with pytest.warns(RuntimeWarning, match="is not used"):
        check_digest(path, right)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        check_digest(path, right)
        forget(monkeypatch)
        check_digest(path, right)
    assert len(counted) == 2
    assert kind != "mode" or not list(folder.iterdir())
    assert kind != "link" or not list(elsewhere.iterdir())


def test_links_in_the_folder_are_not_followed(tmp_path: Path, counted: list[Path], settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    good = _fill(path)
    stored = cache_folder() / "digests.json"
    right = hashlib.sha256(b"abc").hexdigest()
    outside = tmp_path / "outside"
    for make in (os.symlink, os.link):
        outside.write_bytes(good)
        stored.unlink()
        make(outside, stored)
        forget(monkeypatch)
        before = len(counted)
        check_digest(path, right)
        assert len(counted) == before + 1
        assert outside.read_bytes() == good and not stored.is_symlink() and stored.stat().st_nlink == 1
        outside.unlink()


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    _fill(path)
    stored = cache_folder() / "digests.json"
    stored.unlink()
    stored.mkdir()  # the rename fails
    forget(monkeypatch)
    check_digest(path, hashlib.sha256(b"abc").hexdigest())
    assert [p.name for p in cache_folder().iterdir()] == ["digests.json"]

    def full(folder: int, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(digest, "_write_new_file", full)
    forget(monkeypatch)
    check_digest(path, hashlib.sha256(b"abc").hexdigest())


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder() == tmp_path / ".cache" / "graph-opt"


def test_the_number_remembered_is_bounded(tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_MAX_REMEMBERED", 3)
    for i in range(5):
        path = tmp_path / f"f{i}"
        path.write_bytes(bytes([i]))
        check_digest(path, hashlib.sha256(bytes([i])).hexdigest())
    assert len(digest._read_cache()) == 3
