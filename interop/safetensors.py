"""Weights from safetensors files.

A file is an 8-byte little-endian length, a JSON header of that length, and the data::

    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "value"}}

Everything the header says is checked against the size of the file before the first element is read: each entry's bytes
agree with its dtype and shape, and all entries together cover the data without overlap, gap or rest.  The header is read
entry by entry, because a JSON reader would make gigabytes of objects out of a hostile one.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interop._files import RegularFile, array_from_bytes, byte_count, new_buffer
from ir.diagnostics import GraphError
from ir.types import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8
from ir.weights import no_such_tensor, quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_HEADER = 100_000_000
MAX_TENSORS = 1 << 16
_MAX_ENTRY = 4096  # bytes of one entry's {...}
_MAX_NAME = 1 << 16  # bytes of a name as written

DTYPES: Mapping[str, DType] = {
    "F64": f64,
    "F32": f32,
    "F16": f16,
    "BF16": bf16,
    "I64": i64,
    "I32": i32,
    "I16": i16,
    "I8": i8,
    "U8": u8,
    "BOOL": boolean,
}

# Possessive (no backtracking), so that scanning stays linear in time and memory.
_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_SPACE = rb"[ \t\r\n]*+"
_KEY = re.compile(_SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE)
_PAIR = re.compile(_SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE + _STRING + _SPACE)
_ENTRY = re.compile(rb"\{[^{}]*+\}")
_BLANK = re.compile(_SPACE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header; ``begin`` and ``end`` count from the start of the data."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """A :class:`~ir.weights.WeightSource` over one safetensors file.  Tensors are read (not mapped) when asked for."""

    def __init__(self, file: RegularFile | str | os.PathLike[str]) -> None:
        self.file = file if isinstance(file, RegularFile) else RegularFile(file)
        try:
            self._entries, self._data_start = read_header(self.file)
        except BaseException:
            self.file.close()
            raise

    def _find(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise no_such_tensor(name, self._entries, str(self.file.path))
        return entry

    def names(self) -> list[str]:
        return list(self._entries)

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        entry = self._find(name)
        return entry.dtype, entry.shape

    def read(self, name: str) -> NDArray[Any]:
        entry = self._find(name)
        buffer = new_buffer(entry.end - entry.begin)
        self.file.read_into(self._data_start + entry.begin, buffer.data)
        return array_from_bytes(buffer, entry.dtype, entry.shape)

    def close(self) -> None:
        self.file.close()


def read_header(file: RegularFile) -> tuple[dict[str, Entry], int]:
    """The checked entries in the order of the header, and where the data start."""
    if file.size < 10:
        raise GraphError(f"{file.path}: not a safetensors file: {file.size} bytes are too few")
    (length,) = struct.unpack("<Q", file.read_at(0, 8))
    if length > MAX_HEADER:
        raise GraphError(f"{file.path}: not a safetensors file: its header would take {length} bytes, at most {MAX_HEADER} are allowed")
    if length > file.size - 8:
        raise GraphError(f"{file.path}: truncated: its header takes {length} bytes, the file has {file.size - 8} after the length")
    entries = _HeaderScanner(file, file.read_at(8, length)).scan()
    _check_layout(file, entries, file.size - 8 - length)
    return entries, 8 + length


class _HeaderScanner:
    """Reads the header's JSON front to back."""

    def __init__(self, file: RegularFile, text: bytes) -> None:
        self.where = str(file.path)
        self.text = text
        self.position = 0
        self.entries: dict[str, Entry] = {}
        self.metadata_seen = False

    def fail(self, what: str) -> GraphError:
        return GraphError(f"{self.where}: bad safetensors header at byte {8 + self.position}: {what}")

    def scan(self) -> dict[str, Entry]:
        self._require_utf8()
        if self.text[:1] != b"{":
            raise self.fail("expected '{'")
        self.position = 1
        self._skip_blank()
        if not self._accept(b"}"):
            while True:
                self._one_entry()
                if self._accept(b"}"):
                    break
                if not self._accept(b","):
                    raise self.fail("expected ',' or '}'")
        self._skip_blank()
        if self.position != len(self.text):
            raise self.fail("unexpected text after the closing '}'")
        return self.entries

    def _require_utf8(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")()
        step = 1 << 20
        for start in range(0, len(self.text), step):
            try:
                decoder.decode(self.text[start : start + step], start + step >= len(self.text))
            except UnicodeDecodeError:
                self.position = start
                raise self.fail("not UTF-8 from here on") from None

    def _accept(self, character: bytes) -> bool:
        if self.text[self.position : self.position + 1] != character:
            return False
        self.position += 1
        return True

    def _skip_blank(self) -> None:
        match = _BLANK.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def _one_entry(self) -> None:
        key = _KEY.match(self.text, self.position)
        if key is None:
            raise self.fail('expected a name: "..." and ":"')
        name = self._name(key)
        if name == "__metadata__":
            self.position = key.end()
            self._metadata()
        else:
            if name in self.entries:
                raise self.fail(f"the tensor {quoted(name)} appears twice")
            if len(self.entries) >= MAX_TENSORS:
                raise self.fail(f"more than {MAX_TENSORS} tensors")
            self.position = key.end()
            body = _ENTRY.match(self.text, self.position, self.position + _MAX_ENTRY)
            if body is None:
                raise self.fail(f"tensor {quoted(name)}: expected {{dtype, shape, data_offsets}} in at most {_MAX_ENTRY} bytes")
            self.entries[name] = self._entry(name, body.group())
            self.position = body.end()
        self._skip_blank()

    def _name(self, match: re.Match[bytes]) -> str:
        if match.end(1) - match.start(1) > _MAX_NAME:
            raise self.fail(f"a name of more than {_MAX_NAME} bytes")
        literal = match.group(1)
        try:
            text = json.loads(literal)
            text.encode("utf-8")  # an escape may have made a lone surrogate
        except ValueError:
            raise self.fail("a name has a bad escape") from None
        assert isinstance(text, str)
        return text

    def _metadata(self) -> None:
        """Skips the file's notes about itself: strings by name."""
        if self.metadata_seen:
            raise self.fail("__metadata__ appears twice")
        self.metadata_seen = True
        if not self._accept(b"{"):
            raise self.fail("__metadata__ must be an object of strings")
        self._skip_blank()
        if self._accept(b"}"):
            return
        keys: set[str] = set()
        while True:
            pair = _PAIR.match(self.text, self.position)
            if pair is None:
                raise self.fail("__metadata__ must be an object of strings")
            name = self._name(pair)
            if name in keys:
                raise self.fail(f"the key {quoted(name)} appears twice in __metadata__")
            if len(keys) >= MAX_TENSORS:
                raise self.fail(f"more than {MAX_TENSORS} keys in __metadata__")
            keys.add(name)
            self.position = pair.end()
            if self._accept(b"}"):
                return
            if not self._accept(b","):
                raise self.fail("expected ',' or '}'")

    def _entry(self, name: str, body: bytes) -> Entry:
        what = f"tensor {quoted(name)}"
        try:
            pairs = json.loads(body, object_pairs_hook=list)
        except (ValueError, RecursionError):
            raise self.fail(f"{what}: not JSON") from None
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise self.fail(f"{what}: a key appears twice")
        if fields.keys() != {"dtype", "shape", "data_offsets"}:
            raise self.fail(f"{what}: expected dtype, shape and data_offsets, found {quoted(', '.join(fields))}")
        shape, offsets, dtype_name = fields["shape"], fields["data_offsets"], fields["dtype"]
        if not _is_counts(shape):
            raise self.fail(f"{what}: its shape must be a list of integers >= 0")
        if not _is_counts(offsets) or len(offsets) != 2:
            raise self.fail(f"{what}: its data_offsets must be two integers >= 0")
        if not isinstance(dtype_name, str):
            raise self.fail(f"{what}: its dtype must be a string")
        dtype = DTYPES.get(dtype_name)
        if dtype is None:
            raise self.fail(f"{what}: the dtype {quoted(dtype_name)} is not supported; known are {', '.join(DTYPES)}")
        begin, end = offsets
        if begin > end:
            raise self.fail(f"{what}: its data_offsets [{begin}, {end}] run backwards")
        needed = byte_count(dtype, shape, f"{self.where}: {what}")
        if needed != end - begin:
            raise self.fail(f"{what}: {dtype_name} {shape} takes {needed} bytes, its data_offsets [{begin}, {end}] hold {end - begin}")
        return Entry(dtype, tuple(shape), begin, end)


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _check_layout(file: RegularFile, entries: Mapping[str, Entry], data_size: int) -> None:
    """Whether the entries cover the data: no overlap, no gap, nothing behind the last."""
    position = 0
    previous = ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > data_size:
            raise GraphError(f"{file.path}: truncated: tensor {quoted(name)} ends at byte {entry.end} of the data, which have {data_size}")
        if entry.begin < position:
            raise GraphError(f"{file.path}: the tensors {quoted(previous)} and {quoted(name)} overlap at byte {entry.begin} of the data")
        if entry.begin > position:
            raise GraphError(f"{file.path}: the bytes {position} to {entry.begin} of the data, before tensor {quoted(name)}, belong to no tensor")
        position, previous = entry.end, name
    if position != data_size:
        raise GraphError(f"{file.path}: {data_size - position} bytes after the last tensor")
