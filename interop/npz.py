"""Weights from numpy's files: ``.npz`` (a zip of arrays) and ``.npy`` (one array, called ``arr_0`` as numpy would).

Nothing is ever unpickled.  All names, sizes and headers are checked when the file is opened; elements are read when they
are asked for.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interop._files import FileView, RegularFile, array_from_bytes, byte_count, new_buffer
from ir.diagnostics import Diagnostic, GraphError
from ir.types import DType, boolean, f16, f32, f64, i8, i16, i32, i64, q4_0, q4_1, q8_0, tensor_shape, u8
from ir.weights import no_such_tensor, quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

NPY_MAGIC = b"\x93NUMPY"
SINGLE_NAME = "arr_0"
MAX_DIRECTORY = 16 << 20  # bytes of a zip's table of contents
MAX_ENTRIES = 1 << 16
MAX_RATIO = 200
FREE_BYTES = 64 << 20  # below this any ratio is harmless
_MAX_NPY_HEADER = 1 << 16
_BLOCK = 1 << 20

_KINDS: dict[str, DType] = {"f8": f64, "f4": f32, "f2": f16, "i8": i64, "i4": i32, "i2": i16, "i1": i8, "u1": u8, "b1": boolean}
_RECORDS: dict[str, DType] = {  # as numpy writes them, without spaces
    "[('d','<f2'),('qs','|u1',(16,))]": q4_0,
    "[('d','<f2'),('m','<f2'),('qs','|u1',(16,))]": q4_1,
    "[('d','<f2'),('qs','|i1',(32,))]": q8_0,
}
_NUMPY_NAMES = "f8 f4 f2 i8 i4 i2 i1 u1 b1"

_FIELD = re.compile(r"""\s*(['"])(descr|fortran_order|shape)\1\s*:\s*('[^'\\]*+'|"[^"\\]*+"|\[[^][]*+\]|True|False|\([0-9L,\s]*+\))\s*(,|$)""")


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What stands before the elements of an ``.npy``; ``start`` counts from its first byte, ``shape`` is that of the array."""

    dtype: DType
    shape: tuple[int, ...]
    fortran_order: bool
    big_endian: bool
    start: int
    nbytes: int


def _parse_header(take: Callable[[int], bytes], total: int, what: str) -> ArrayHeader:
    """The header of an ``.npy`` of ``total`` bytes; ``take(n)`` gives its next n bytes, fewer at the end."""
    lead = take(8)
    if len(lead) < 8 or lead[:6] != NPY_MAGIC:
        raise GraphError(f"{what}: not an .npy array")
    form = {1: "<H", 2: "<I", 3: "<I"}.get(lead[6])
    if form is None:
        raise GraphError(f"{what}: version {lead[6]}.{lead[7]} of the .npy format is not known")
    raw = take(struct.calcsize(form))
    if len(raw) < struct.calcsize(form):
        raise GraphError(f"{what}: truncated .npy header")
    (length,) = struct.unpack(form, raw)
    start = 8 + len(raw) + length
    if start > total or length > _MAX_NPY_HEADER:
        raise GraphError(f"{what}: its .npy header would take {length} bytes")
    text = take(length)
    if len(text) < length:
        raise GraphError(f"{what}: truncated .npy header")
    descr, fortran_order, shape = _header_fields(text.decode("latin-1"), what)
    dtype, big_endian = _dtype_of(descr, what)
    if dtype.is_block and not shape:
        raise GraphError(f"{what}: a single block of {dtype} is no tensor")
    nbytes = byte_count(dtype, shape, what)
    if nbytes != total - start:
        raise GraphError(f"{what}: {dtype}{list(shape)} takes {nbytes} bytes, the file holds {total - start}")
    return ArrayHeader(dtype, shape, fortran_order, big_endian, start, nbytes)


def _header_fields(text: str, what: str) -> tuple[str, bool, tuple[int, ...]]:
    """The three fields of the header's dictionary, read without evaluating anything."""
    inner = text.strip()
    bad = GraphError(f"{what}: bad .npy header")
    if not (inner.startswith("{") and inner.endswith("}")):
        raise bad
    inner = inner[1:-1].rstrip()
    fields: dict[str, str] = {}
    position = 0
    while position < len(inner):
        match = _FIELD.match(inner, position)
        if match is None or match.group(2) in fields:
            raise bad
        fields[match.group(2)] = match.group(3)
        position = match.end()
    descr, order, shape = fields.get("descr", ""), fields.get("fortran_order", ""), fields.get("shape", "")
    if descr[:1] not in ("'", '"', "[") or order not in ("True", "False") or shape[:1] != "(":
        raise bad
    try:
        dims = tuple(int(part.strip().rstrip("L")) for part in shape[1:-1].split(",") if part.strip())
    except ValueError:
        raise bad from None
    return descr if descr[0] == "[" else descr[1:-1], order == "True", dims


def _dtype_of(descr: str, what: str) -> tuple[DType, bool]:
    if descr.startswith("["):
        record = _RECORDS.get("".join(descr.split()))
        if record is None:
            raise GraphError(f"{what}: structured arrays are not supported, but for blocks of {', '.join(d.name for d in _RECORDS.values())}")
        return record, sys.byteorder == "big"  # read as it is: the fields say that they are little-endian
    if descr.lstrip("<>|=") == "O":
        raise GraphError(f"{what}: holds Python objects; they would have to be unpickled, which is never done")
    order, kind = (descr[0], descr[1:]) if descr[:1] in ("<", ">", "|", "=") else ("", descr)
    dtype = _KINDS.get(kind)
    if dtype is None or not order or (order == "|" and dtype.itemsize > 1):
        hint = "numpy stores bf16 as raw bytes (V2), without saying so; write safetensors instead" if kind == "V2" else None
        raise GraphError(Diagnostic(f"{what}: the dtype {quoted(descr)} is not supported; known are {_NUMPY_NAMES}", hint=hint))
    return dtype, order == ">" or (order == "=" and sys.byteorder == "big")


class NpyFile:
    """A :class:`~ir.weights.WeightSource` with one array."""

    def __init__(self, file: RegularFile | str | os.PathLike[str]) -> None:
        self.file = file if isinstance(file, RegularFile) else RegularFile(file)
        try:
            view = FileView(self.file, _MAX_NPY_HEADER)
            self._header = _parse_header(view.read, self.file.size, str(self.file.path))
        except BaseException:
            self.file.close()
            raise

    def _require(self, name: str) -> None:
        if name != SINGLE_NAME:
            raise no_such_tensor(name, [SINGLE_NAME], str(self.file.path))

    def names(self) -> list[str]:
        return [SINGLE_NAME]

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        self._require(name)
        return self._header.dtype, tensor_shape(self._header.dtype, self._header.shape)

    def read(self, name: str) -> NDArray[Any]:
        self._require(name)
        header = self._header
        buffer = new_buffer(header.nbytes)
        self.file.read_into(header.start, buffer.data)
        return array_from_bytes(buffer, header.dtype, header.shape, big_endian=header.big_endian, fortran_order=header.fortran_order)

    def close(self) -> None:
        self.file.close()


class NpzFile:
    """A :class:`~ir.weights.WeightSource` over a zip of ``.npy`` arrays, stored or deflated."""

    def __init__(self, file: RegularFile | str | os.PathLike[str]) -> None:
        self.file = file if isinstance(file, RegularFile) else RegularFile(file)
        try:
            self._view = FileView(self.file, MAX_DIRECTORY)
            with self._zip_problems():
                self._zip = zipfile.ZipFile(self._view)
            self._arrays = self._check()
        except BaseException:
            self.file.close()
            raise

    @contextmanager
    def _zip_problems(self, what: str | None = None) -> Iterator[None]:
        """Turns what zipfile and zlib raise for damaged files into our error."""
        try:
            yield
        except (
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            zlib.error,
            struct.error,
            EOFError,
            OSError,
            ValueError,
            NotImplementedError,
            RuntimeError,
            IndexError,
            OverflowError,
        ) as error:
            raise GraphError(f"{what or self.file.path}: damaged zip file: {quoted(str(error), 200)}") from None

    def _check(self) -> dict[str, tuple[zipfile.ZipInfo, ArrayHeader]]:
        members = self._zip.infolist()
        where = str(self.file.path)
        if any(m.orig_filename.rpartition("/")[2] == "data.pkl" for m in members):
            raise pickle_refusal(where)
        if len(members) > MAX_ENTRIES:
            raise GraphError(f"{where}: {len(members)} arrays, at most {MAX_ENTRIES} are allowed")
        names: set[str] = set()
        for member in members:
            self._check_member(member, names)
        packed = sum(m.compress_size for m in members)
        if packed > self.file.size:
            raise GraphError(f"{where}: its entries overlap: they take {packed} bytes, the file has {self.file.size}")
        _check_ratio(where, sum(m.file_size for m in members), packed)
        return {m.filename.removesuffix(".npy"): (m, self._header_of(m)) for m in members}

    def _check_member(self, member: zipfile.ZipInfo, names: set[str]) -> None:
        name = member.orig_filename
        what = f"{self.file.path}: entry {quoted(name)}"
        if "/" in name or "\\" in name or ".." in name or "\0" in name or name != member.filename:
            raise GraphError(f"{what}: a name must not hold '/', '\\' or '..'")
        if not name.endswith(".npy"):
            raise GraphError(f"{what}: not an array (its name does not end in .npy)")
        if name in names:
            raise GraphError(f"{what}: appears twice")
        names.add(name)
        if member.flag_bits & 1:
            raise GraphError(f"{what}: is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise GraphError(f"{what}: compression method {member.compress_type} is not supported, only stored and deflated")
        if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
            raise GraphError(f"{what}: stored with two different sizes, {member.compress_size} and {member.file_size}")
        _check_ratio(what, member.file_size, member.compress_size)

    def _header_of(self, member: zipfile.ZipInfo) -> ArrayHeader:
        what = f"{self.file.path}: entry {quoted(member.filename)}"
        with self._zip_problems(what), self._zip.open(member) as stream:
            return _parse_header(stream.read, member.file_size, what)

    def _find(self, name: str) -> tuple[zipfile.ZipInfo, ArrayHeader]:
        found = self._arrays.get(name)
        if found is None:
            raise no_such_tensor(name, self._arrays, str(self.file.path))
        return found

    def names(self) -> list[str]:
        return list(self._arrays)

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        _, header = self._find(name)
        return header.dtype, tensor_shape(header.dtype, header.shape)

    def read(self, name: str) -> NDArray[Any]:
        member, header = self._find(name)
        what = f"{self.file.path}: entry {quoted(member.filename)}"
        buffer = new_buffer(header.nbytes)
        target = buffer.data
        with self._zip_problems(what), self._zip.open(member) as stream:
            stream.read(header.start)
            done = 0
            while done < header.nbytes:
                block = stream.read(min(_BLOCK, header.nbytes - done))
                if not block:
                    raise GraphError(f"{what}: truncated: {header.nbytes} bytes expected, {done} found")
                target[done : done + len(block)] = block
                done += len(block)
            stream.read(1)  # the end: makes zipfile compare the checksum
        return array_from_bytes(buffer, header.dtype, header.shape, big_endian=header.big_endian, fortran_order=header.fortran_order)

    def close(self) -> None:
        self.file.close()


def pickle_refusal(where: str) -> GraphError:
    """The complaint about a file that only running its code could read."""
    hint = "load it where you trust it, and save the tensors as safetensors"
    return GraphError(Diagnostic(f"{where}: a pickle (PyTorch checkpoint?); pickles can run any code and are never read", hint=hint))


def _check_ratio(what: str, unpacked: int, packed: int) -> None:
    if unpacked > FREE_BYTES and unpacked > MAX_RATIO * packed:
        raise GraphError(f"{what}: {packed} bytes would unpack to {unpacked}, more than {MAX_RATIO} times as many")
