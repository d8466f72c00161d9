"""SHA-256 digests of files, remembered so that checking a file of weights does not cost every start.

A digest is remembered for (device, inode, size, time of change): in this process, and in ``digests.json`` in the user's
cache folder ($XDG_CACHE_HOME/graph-opt or ~/.cache/graph-opt).  The folder must be the user's own and closed to others; what
is not as it should be there is ignored, never followed or repaired by trust.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from interop._files import FileKey, RegularFile
from ir.diagnostics import Diagnostic, GraphError
from ir.weights import quoted

_BLOCK = 1 << 20
_CACHE_NAME = "digests.json"
_CACHE_VERSION = 1
_MAX_CACHE_BYTES = 1 << 20
_MAX_REMEMBERED = 2000
_SETTLED_NS = 2_000_000_000  # a file written to more recently may change again without a new time
_HEX = re.compile(r"[0-9a-f]{64}")

_known: dict[FileKey, str] = {}
_warned = False


def sha256_of(file: RegularFile | str | os.PathLike[str]) -> str:
    """The digest of a file's contents as 64 hexadecimal digits, computed now.

    Raises GraphError when the file can't be read or changes meanwhile.
    """
    if not isinstance(file, RegularFile):
        with RegularFile(file) as opened:
            return sha256_of(opened)
    digest = hashlib.sha256()
    buffer = bytearray(min(_BLOCK, file.size))
    view = memoryview(buffer)
    for offset in range(0, file.size, _BLOCK):
        block = view[: min(_BLOCK, file.size - offset)]
        file.read_into(offset, block)
        digest.update(block)
    file.require_unchanged()
    return digest.hexdigest()


def cached_sha256_of(file: RegularFile) -> str:
    """Like :func:`sha256_of`, but computed only when the file is not known by its inode, size and times."""
    found = _known.get(file.key)
    if found is None:
        found = _read_cache().get(file.key)
        if found is None:
            found = sha256_of(file)
            if not _is_settled(file.key):
                return found
            _write_cache(file.key, found)
        _known[file.key] = found
    return found


def check_digest(file: RegularFile | str | os.PathLike[str], expected: str, *, fresh: bool = False) -> None:
    """Raises GraphError unless the file has the digest ``expected``; with ``fresh`` it is computed in any case."""
    if not isinstance(file, RegularFile):
        with RegularFile(file) as opened:
            check_digest(opened, expected, fresh=fresh)
        return
    wanted = expected.lower()
    if not _HEX.fullmatch(wanted):
        raise GraphError(f"{quoted(expected)} is not a SHA-256 digest (64 hexadecimal digits)")
    actual = sha256_of(file) if fresh else cached_sha256_of(file)
    if actual != wanted:
        hint = "the file is not the one that the program was written for"
        raise GraphError(Diagnostic(f"{file.path}: wrong SHA-256 digest: expected {wanted}, found {actual}", hint=hint))


def _is_settled(key: FileKey) -> bool:
    return max(key[3], key[4]) + _SETTLED_NS < time.time_ns()


# -- the cache folder --------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where this user's caches are: $XDG_CACHE_HOME/graph-opt, or ~/.cache/graph-opt.  Need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # relative ones are to be ignored, says the standard
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "graph-opt"


def _open_folder(create: bool) -> int | None:
    """A descriptor of the cache folder; None when it can't be had or others could write there."""
    path = cache_folder()
    try:
        if create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if path.is_symlink():
            _warn(path, "it is a symbolic link")
        elif create and not isinstance(error, FileNotFoundError):
            _warn(path, str(error))
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


@contextmanager
def _folder(create: bool) -> Iterator[int | None]:
    folder = _open_folder(create)
    try:
        yield folder
    finally:
        if folder is not None:
            os.close(folder)


def _read_cache() -> dict[FileKey, str]:
    """What is remembered; empty when there is nothing, or anything is wrong with it."""
    with _folder(create=False) as folder:
        data = None if folder is None else _read_own_file(folder, _CACHE_NAME)
    return {} if data is None else _decode(data)


def _read_own_file(folder: int, name: str) -> bytes | None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1 and not status.st_mode & 0o022
        if not own or status.st_size > _MAX_CACHE_BYTES:
            return None
        return os.pread(descriptor, _MAX_CACHE_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _decode(data: bytes) -> dict[FileKey, str]:
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(stored, dict) or stored.get("version") != _CACHE_VERSION or not isinstance(stored.get("digests"), dict):
        return {}
    if stored.get("check") != _checksum(stored["digests"]):
        return {}
    found: dict[FileKey, str] = {}
    for text, digest in stored["digests"].items():
        parts = text.split(":")
        if len(parts) != 5 or not all(re.fullmatch(r"-?[0-9]{1,20}", p) for p in parts) or not isinstance(digest, str) or not _HEX.fullmatch(digest):
            return {}
        device, inode, size, modified, changed = map(int, parts)
        found[device, inode, size, modified, changed] = digest
    return found


def _encode(digests: dict[FileKey, str]) -> bytes:
    entries = {":".join(map(str, key)): digest for key, digest in digests.items()}
    return json.dumps({"version": _CACHE_VERSION, "check": _checksum(entries), "digests": entries}, indent=0).encode()


def _checksum(entries: object) -> str:
    """Tells a damaged file; who can write here could make a right one, but then it is the user."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _write_cache(key: FileKey, digest: str) -> None:
    """Adds one digest to the file, if that can be done; a concurrent writer's addition may get lost, nothing worse."""
    with _folder(create=True) as folder:
        if folder is None:
            return
        digests = _decode(_read_own_file(folder, _CACHE_NAME) or b"")
        for old in [k for k in digests if k[:2] == key[:2]]:  # what was known of this inode before
            del digests[old]
        digests[key] = digest
        while len(digests) > _MAX_REMEMBERED:
            del digests[next(iter(digests))]
        temporary = f".{_CACHE_NAME}.{secrets.token_hex(8)}"
        try:
            _write_new_file(folder, temporary, _encode(digests))
            os.rename(temporary, _CACHE_NAME, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:  # a full disk, a folder where the file should be: do without
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)


def _write_new_file(folder: int, name: str, data: bytes) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)
