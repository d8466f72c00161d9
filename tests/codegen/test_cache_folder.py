"""The cache of compiled code as a folder: what is found there is what was written, or nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codegen import cache as cache_module
from codegen.cache import VARIABLE, Cache, default_cache, make_key, own_sources

KEY = make_key("test", ["a"])
DATA = bytes(range(256)) * 20


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr(cache_module, "_warned", False)
    return Cache(tmp_path / "code")


def _file(cache: Cache) -> Path:
    return cache.folder / KEY.hex()


def test_what_was_written_is_found(cache: Cache) -> None:
    assert cache.get(KEY) is None and not cache.folder.exists()
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA
    assert cache.get(make_key("test", ["b"])) is None
    cache.put(KEY, b"")
    assert cache.get(KEY) == b""
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700 and stat.S_IMODE(_file(cache).stat().st_mode) == 0o600
    assert os.listdir(cache.folder) == [KEY.hex()]
    assert cache.size() == (1, _file(cache).stat().st_size)
    cache.remove(KEY)
    assert cache.get(KEY) is None
    cache.remove(KEY)


def test_keys_tell_parts_from_each_other() -> None:
    keys = [make_key("k", p) for p in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], [], [""], [b"\0"])] + [make_key("ka", ["b", "c"])]
    assert len(set(keys)) == len(keys)
    assert make_key("k", ["ab"]) == make_key("k", [b"ab"])


def test_every_damage_is_noticed_and_heals(cache: Cache) -> None:
    cache.put(KEY, DATA[:300])
    good = _file(cache).read_bytes()
    for at in range(0, len(good), 7):
        for bit in (0, 7):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            _file(cache).write_bytes(bad)
            assert cache.get(KEY) is None and not _file(cache).exists()
    for bad in (b"", good[:10], good[:88], good[:-1], good + b"\0", good[88:], b"\0" * len(good), good[:88] + good):
        _file(cache).write_bytes(bad)
        assert cache.get(KEY) is None
        cache.put(KEY, DATA)
        assert cache.get(KEY) == DATA


def test_an_entry_under_another_key(cache: Cache) -> None:
    other = make_key("test", ["other"])
    cache.put(other, DATA)
    os.rename(cache.folder / other.hex(), _file(cache))
    assert cache.get(KEY) is None


def test_links_and_other_things_are_not_read(cache: Cache, tmp_path: Path) -> None:
    cache.put(KEY, DATA)
    elsewhere = tmp_path / "elsewhere"
    os.rename(_file(cache), elsewhere)
    _file(cache).symlink_to(elsewhere)
    assert cache.get(KEY) is None
    assert elsewhere.exists()
    cache.put(KEY, DATA)  # takes the place of the link
    assert cache.get(KEY) == DATA and not _file(cache).is_symlink()
    os.link(_file(cache), tmp_path / "second")  # someone else may have it under another name
    assert cache.get(KEY) is None
    for make in (os.mkdir, os.mkfifo):
        make(_file(cache))
        assert cache.get(KEY) is None
        cache.put(KEY, DATA)
        if _file(cache).is_dir():
            assert cache.get(KEY) is None
            _file(cache).rmdir()
        else:
            _file(cache).unlink(missing_ok=True)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_an_entry_that_others_can_write(cache: Cache, mode: int) -> None:
    cache.put(KEY, DATA)
    _file(cache).chmod(mode)
    assert cache.get(KEY) is None


@pytest.mark.parametrize("mode", [0o777, 0o701, 0o710, 0o755])
def test_a_folder_open_to_others_is_not_used(cache: Cache, mode: int) -> None:
    cache.put(KEY, DATA)
    cache.folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"its mode is {mode:04o}"):
        assert cache.get(KEY) is None
    cache.put(make_key("test", ["b"]), DATA)
    assert len(os.listdir(cache.folder)) == 1


def test_a_folder_of_another_user(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEY, DATA)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user"):
        assert cache.get(KEY) is None
    cache.put(make_key("test", ["b"]), DATA)
    assert len(os.listdir(cache.folder)) == 1


def test_a_link_in_the_place_of_the_folder(cache: Cache, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    cache.folder.symlink_to(real)
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        cache.put(KEY, DATA)
    assert not os.listdir(real) and cache.get(KEY) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_can_not_be_written(cache: Cache) -> None:
    cache.put(KEY, DATA)
    cache.folder.chmod(0o500)
    cache.put(make_key("test", ["b"]), DATA)
    assert cache.get(KEY) == DATA
    cache.folder.chmod(0o700)


def test_no_place_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "code", Path("/proc/nowhere/code"), Path("a\0b")):
        nowhere = Cache(folder)
        nowhere.put(KEY, DATA)
        assert nowhere.get(KEY) is None and nowhere.size() == (0, 0) and nowhere.clear() == 0


def test_a_full_disk(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    cache.put(KEY, DATA)
    assert cache.get(KEY) is None and os.listdir(cache.folder) == []


def test_the_oldest_make_room(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "code", limit=10 * 1088)
    keys = [make_key("test", [str(i)]) for i in range(14)]
    for i, key in enumerate(keys[:10]):
        cache.put(key, bytes(1000))
        os.utime(cache.folder / key.hex(), (i, i))
    assert cache.size() == (10, 10 * 1088)
    assert cache.get(keys[0]) is not None  # used just now
    cache.put(keys[10], bytes(1000))
    kept = [i for i, key in enumerate(keys) if cache.get(key) is not None]
    assert kept == [0, 5, 6, 7, 8, 9, 10]  # three quarters of the limit
    cache.put(keys[11], bytes(20_000))  # more than all may take
    assert cache.get(keys[11]) is None
    assert cache.clear() == 7 and cache.size() == (0, 0)


def test_what_a_killed_process_left_is_removed(cache: Cache) -> None:
    cache.put(KEY, DATA)
    old, new = (cache.folder / f".{c * 16}.new" for c in "ab")
    for path in (old, new, cache.folder / "something else"):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    cache.put(KEY, DATA)
    assert not old.exists() and new.exists() and (cache.folder / "something else").exists()


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert default_cache() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert default_cache() == Cache(tmp_path)
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == Cache(tmp_path / "graph-opt" / "code")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == Cache(tmp_path / ".cache" / "graph-opt" / "code")
    monkeypatch.setenv("HOME", "nowhere")
    assert default_cache() is None


def test_sources_that_changed_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_BEGAN_NS", time.time_ns() + 10**9)
    listed = own_sources()
    assert listed is not None and "dialects/graph/matmul.py:" in listed and listed == own_sources()
    monkeypatch.setattr(cache_module, "_BEGAN_NS", 10**9)
    assert own_sources() is None


_WRITER = """
import sys
from codegen.cache import *
cache = Cache(Path(sys.argv[1]), limit=200_000)
for i in range(int(sys.argv[2])):
    key = make_key("test", [str(i % 7)])
    cache.put(key, bytes([i % 7]) * (1000 + 37 * (i % 11)))
    found = cache.get(key)
    assert found is None or set(found) == {i % 7}, "half an entry"
print("done")
"""


def test_processes_write_at_the_same_time_and_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "code")]
    steady = [subprocess.Popen([*command, "300"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for _ in range(4):
        killed = subprocess.Popen([*command, "1000000"])
        time.sleep(0.25)
        killed.kill()
        killed.wait()
    assert [p.communicate()[0] for p in steady] == ["done\n", "done\n"]
    cache = Cache(tmp_path / "code")
    for i in range(7):
        found = cache.get(make_key("test", [str(i)]))
        assert found is not None and set(found) == {i}
