"""A folder of what was compiled, for the next process: bytes by key, which survive everything but a wrong disk.

The folder is the user's own: mode 0700, owner checked, symbolic links not followed; what is not as it should be is ignored, never
repaired by trust.  An entry is a file: magic word, key, SHA-256 and length of its contents, contents.  It is written under another
name, synced and renamed, so a process that is killed at any time leaves a whole entry or none, and others never see half of one.
Everything is compared before anybody reads the contents; a damaged entry is removed, and made again by whoever needs it.

Nothing here raises: where there is no folder, or it can't be written (a full or read-only disk, no home), there is no cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import struct
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "GRAPH_OPT_CACHE"
"""``off`` for no cache, or the path of its folder."""

LIMIT = 256 << 20
"""Bytes of all entries; those that were not used for the longest time make room."""

_LARGEST = 64 << 20
_MAGIC = b"graph-opt code 1"
_HEADER = struct.Struct(f"<{len(_MAGIC)}s32s32sQ")
_NAME = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.new")
_STALE_SECONDS = 3600.0
_warned = False


def make_key(kind: str, parts: Iterable[str | bytes]) -> bytes:
    """32 bytes that stand for the kind of an entry and all that it depends on."""
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.digest()


@dataclass(frozen=True)
class Cache:
    """The entries in one folder.  ``limit`` bounds their bytes."""

    folder: Path
    limit: int = LIMIT

    def get(self, key: bytes) -> bytes | None:
        """The contents of an entry; None when there is none, or it is not what was written (then it is removed)."""
        with self._opened(create=False) as folder:
            if folder is None:
                return None
            name = key.hex()
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
            except OSError:
                return None
            try:
                contents = _read_entry(descriptor, key)
                if contents is not None:
                    with suppress(OSError):
                        os.utime(descriptor)  # the order in which entries make room
                    return contents
            except OSError:
                return None
            finally:
                os.close(descriptor)
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            return None

    def put(self, key: bytes, contents: bytes) -> None:
        """Writes an entry, if that can be done."""
        header = _HEADER.pack(_MAGIC, key, hashlib.sha256(contents).digest(), len(contents))
        if len(header) + len(contents) > min(self.limit, _LARGEST):
            return
        with self._opened(create=True) as folder:
            if folder is None:
                return
            temporary = f".{secrets.token_hex(8)}.new"
            try:
                _write_new_file(folder, temporary, header + contents)
                os.rename(temporary, key.hex(), src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:  # a full disk, a folder where the file should be
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                return
            self._make_room(folder)

    def remove(self, key: bytes) -> None:
        """Removes an entry whose contents turned out to be of no use."""
        with self._opened(create=False) as folder, suppress(OSError):
            if folder is not None:
                os.unlink(key.hex(), dir_fd=folder)

    def size(self) -> tuple[int, int]:
        """How many entries there are, and how many bytes they take."""
        with self._opened(create=False) as folder:
            sizes = [] if folder is None else [s.st_size for n, s in _files(folder) if _NAME.fullmatch(n)]
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Removes all entries; returns how many."""
        removed = 0
        with self._opened(create=False) as folder:
            for name, _ in [] if folder is None else _files(folder):
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                    removed += bool(_NAME.fullmatch(name))
        return removed

    def _make_room(self, folder: int) -> None:
        files = _files(folder)
        for name, status in files:
            if _TEMPORARY.fullmatch(name) and status.st_mtime < time.time() - _STALE_SECONDS:  # left by a process that was killed
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
        entries = sorted((s.st_mtime_ns, n, s.st_size) for n, s in files if _NAME.fullmatch(n))
        total = sum(size for _, _, size in entries)
        for _, name, size in entries if total > self.limit else ():
            if total <= self.limit * 3 // 4:
                break
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            total -= size

    @contextmanager
    def _opened(self, *, create: bool) -> Iterator[int | None]:
        folder = _open_folder(self.folder, create)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)


def default_cache() -> Cache | None:
    """The cache that the environment asks for: the user's own, unless there is none or it is off."""
    told = os.environ.get(VARIABLE, "")
    if told == "off":
        return None
    if told:
        return Cache(Path(told))
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # relative ones are to be ignored, says the standard
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Cache(Path(base) / "graph-opt" / "code") if os.path.isabs(base) else None


def _read_entry(descriptor: int, key: bytes) -> bytes | None:
    """The contents of an open file, if it is an entry of this key and of our own making."""
    status = os.fstat(descriptor)
    own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1 and not status.st_mode & 0o022
    if not own or not _HEADER.size <= status.st_size <= _LARGEST:
        return None
    parts = []
    left = status.st_size
    while left:
        part = os.read(descriptor, left)
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    data = b"".join(parts)
    magic, of_key, digest, length = _HEADER.unpack_from(data)
    contents = data[_HEADER.size :]
    if magic != _MAGIC or of_key != key or length != len(contents) or hashlib.sha256(contents).digest() != digest:
        return None
    return contents


def _files(folder: int) -> list[tuple[str, os.stat_result]]:
    """The entries and the unfinished ones, with what the system knows of them."""
    found = []
    with suppress(OSError):
        for name in os.listdir(folder):
            if _NAME.fullmatch(name) or _TEMPORARY.fullmatch(name):
                with suppress(OSError):  # another process has removed it
                    found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
    return found


def _open_folder(path: Path, create: bool) -> int | None:
    """A descriptor of the folder; None when it can't be had, or others could write there."""
    try:
        if create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        if path.is_symlink():
            _warn(path, "it is a symbolic link")
        return None
    status = os.fstat(folder)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return folder
    os.close(folder)
    _warn(path, "it belongs to another user" if status.st_uid != os.geteuid() else f"its mode is {stat.S_IMODE(status.st_mode):04o}, not 0700")
    return None


def _warn(path: Path, reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"the cache folder {path} is not used: {reason}", RuntimeWarning, stacklevel=2)


def _write_new_file(folder: int, name: str, data: bytes) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


PACKAGES = ("ir", "dialects", "passes", "codegen", "interop", "graph_opt")
"""Where code is that decides what a program becomes."""


def own_sources() -> str | None:
    """What tells one state of this package's Python code from another: names, sizes and times of all files, as Python's own
    cache of bytecode does it.

    None where files can't be listed, and when one was written after this process began: what runs here may be older than it.
    """
    root = Path(__file__).resolve().parent.parent
    lines: list[str] = []
    folders = [str(root / name) for name in PACKAGES]
    try:
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    if entry.name.endswith((".py", ".lark")):
                        status = entry.stat()
                        if status.st_mtime_ns > _BEGAN_NS:
                            return None
                        lines.append(f"{entry.path}:{status.st_size}:{status.st_mtime_ns}")
                    elif entry.name.isidentifier() and entry.is_dir():
                        folders.append(entry.path)
    except OSError:
        return None
    return "\n".join(lines)


def _began_ns() -> int:
    """When this process began (where the system tells), or imported this module; a forked child has its parent's modules."""
    now = time.time_ns()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        alive = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now
    return now - int(max(0.0, alive) * 1e9)


_BEGAN_NS = _began_ns()
