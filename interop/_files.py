"""Reading files that nobody vouches for: only regular ones, by position, noticing when they change underneath."""

from __future__ import annotations

import io
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ir.diagnostics import GraphError
from ir.types import DType

if TYPE_CHECKING:
    import mmap

    import numpy as np
    from numpy.typing import NDArray

MAX_RANK = 32  # what every supported numpy can hold
_LARGEST = 1 << 62

FileKey = tuple[int, int, int, int, int]
"""Device, inode, size, time of the last change of the contents, and of the inode (the latter can't be set back)."""


class RegularFile:
    """A file open for reading.  The same descriptor serves every check and every read."""

    def __init__(self, path: str | os.PathLike[str], *, follow_symlinks: bool = True) -> None:
        self._descriptor: int | None = None
        self.path = Path(path)
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            # Looked at before opening too: opening some devices has effects.
            self._require_regular(os.stat(self.path, follow_symlinks=follow_symlinks))
            self._descriptor = os.open(self.path, flags if follow_symlinks else flags | os.O_NOFOLLOW)
            status = os.fstat(self._descriptor)
            self._require_regular(status)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            self.close()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise GraphError(f"can't read {self.path}: {reason}") from None
        except GraphError:
            self.close()
            raise
        self.key: FileKey = _key_of(status)
        self.size = status.st_size

    def _require_regular(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise GraphError(f"can't read {self.path}: it is {_kind_of(status.st_mode)}, not a regular file")

    def __enter__(self) -> RegularFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the descriptor; may be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor is None:
            raise GraphError(f"can't read {self.path}: it was closed")
        return self._descriptor

    def require_unchanged(self) -> None:
        """Raises GraphError when the file is not what it was when it was opened and checked."""
        status = os.fstat(self._open_descriptor())
        if status.st_size != self.size:
            raise GraphError(f"{self.path}: the file changed while in use: {self.size} bytes when it was opened, now {status.st_size}")
        if status.st_mtime_ns != self.key[3]:
            raise GraphError(f"{self.path}: the file changed while in use: it was written to after it was opened")

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills ``buffer`` from ``offset`` on.  Raises GraphError when the file is too short or changed."""
        descriptor = self._open_descriptor()
        wanted = len(buffer)
        done = 0
        try:
            while done < wanted:
                count = os.preadv(descriptor, [buffer[done : done + (1 << 30)]], offset + done)
                if count == 0:
                    self.require_unchanged()
                    raise GraphError(f"{self.path}: truncated: expected {wanted} bytes at {offset}, the file has {self.size}")
                done += count
        except OSError as error:
            raise GraphError(f"can't read {self.path}: {error.strerror}") from None
        self.require_unchanged()

    def read_at(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset`` on; the caller has compared ``count`` with the size of the file."""
        data = bytearray(count)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def map(self) -> mmap.mmap:
        """A read-only mapping of the whole file, which outlives this object."""
        import mmap

        try:
            mapping = mmap.mmap(self._open_descriptor(), self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file is shorter by now
            raise GraphError(f"can't map {self.path}: {error}") from None
        self.require_unchanged()
        return mapping


def _key_of(status: os.stat_result) -> FileKey:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _kind_of(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((text for test, text in kinds if test(mode)), "something else")


class FileView(io.RawIOBase):
    """A :class:`RegularFile` as the file object that library code wants.

    ``largest_read`` bounds a single request, for library code that believes a length in the file.
    """

    def __init__(self, file: RegularFile, largest_read: int) -> None:
        self._file = file
        self._position = 0
        self.largest_read = largest_read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        if start + offset < 0:
            raise OSError("a position before the start of the file")
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._file.size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        if count > self.largest_read:
            raise GraphError(f"{self._file.path}: a block of {count} bytes where at most {self.largest_read} are allowed")
        data = self._file.read_at(self._position, count)
        self._position += count
        return data

    def readall(self) -> bytes:
        return self.read(-1)


def byte_count(dtype: DType, shape: Sequence[int], problem: str) -> int:
    """Bytes of an array, of records when ``dtype`` is one of blocks.

    Raises GraphError, beginning with ``problem``, for a shape that no array can have.
    """
    item = dtype.block_bytes if dtype.is_block else dtype.itemsize
    if len(shape) > MAX_RANK:
        raise GraphError(f"{problem}: {len(shape)} dimensions, at most {MAX_RANK} are allowed")
    if math.prod(d for d in shape if d) * item > _LARGEST:  # numpy refuses these even beside a 0
        raise GraphError(f"{problem}: the shape {list(shape)} is too large")
    return math.prod(shape) * item


LINE = 64
"""Where tensors that are read begin: at a multiple of a line of the cache, so that machine code can take them as they are."""


def new_buffer(size: int) -> NDArray[np.uint8]:
    """Memory for ``size`` bytes of a tensor.  Raises MemoryError."""
    import numpy as np

    raw = np.empty(size + LINE, np.uint8)
    start = -int(raw.ctypes.data) % LINE
    return raw[start : start + size]


def array_from_bytes(
    buffer: NDArray[np.uint8], dtype: DType, shape: Sequence[int], *, big_endian: bool = False, fortran_order: bool = False
) -> NDArray[Any]:
    """The read-only array that the bytes in ``buffer`` (which is not copied if that can be helped) stand for."""
    import sys

    import numpy as np

    flat: NDArray[Any]
    if dtype.kind == "bool":
        flat = buffer != 0  # numpy takes any bit pattern for a bool; only 0 and 1 are safe
    else:
        flat = buffer.view(dtype.numpy)
        if big_endian != (sys.byteorder == "big"):
            flat = flat.byteswap()
    array = flat.reshape(tuple(shape), order="F" if fortran_order else "C")
    if not array.flags.c_contiguous:
        array = np.array(array, order="C")
    array.setflags(write=False)
    return array
