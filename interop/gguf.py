"""Weights and metadata from GGUF files, versions 2 and 3, little-endian.

A file is a header (magic, version, counts, metadata, the tensors' names, shapes, types and places), and the data, each
tensor at a multiple of the alignment.  All of the header is checked against the size of the file, and the tensors against each
other, when it is opened.  Tensors are then mapped, not read: an array is a view of the file, in blocks where the file has blocks.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from interop._files import FileKey, RegularFile
from interop._gguf_metadata import Header, Metadata, read_metadata
from ir.blocks import storage_shape
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim
from ir.types import DType, TensorType, bf16, block_problem, byte_count, f16, f32, q4_0, q4_1, q8_0
from ir.weights import no_such_tensor, quoted

if TYPE_CHECKING:
    import mmap

    from numpy.typing import NDArray

MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 16
MAX_RANK = 4
DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_TENSOR_NAME = 1024
_MAX_BYTES = 1 << 62
_SMALLEST_PAIR = 8 + 1 + 4 + 1  # a key of one letter with a value of one byte
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8

DTYPES: Mapping[int, DType] = {0: f32, 1: f16, 2: q4_0, 3: q4_1, 8: q8_0, 30: bf16}

_OTHER_TYPES: Mapping[int, str] = {
    6: "q5_0",
    7: "q5_1",
    9: "q8_1",
    10: "q2_K",
    11: "q3_K",
    12: "q4_K",
    13: "q5_K",
    14: "q6_K",
    15: "q8_K",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
    41: "q1_0",
}
"""Element types of ggml that are refused, by their number in the file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header; ``begin`` and ``end`` count from the start of the data."""

    type: TensorType
    begin: int
    end: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Contents:
    """What the header of a file says: its metadata, its checked tensors, and where the data start."""

    metadata: Metadata
    entries: dict[str, Entry]
    data_start: int


_read: WeakValueDictionary[FileKey, Contents] = WeakValueDictionary()
"""Of the files that are open: a model's file is opened for its tokenizer, and once more for its weights."""


class GgufFile:
    """A :class:`~ir.weights.WeightSource` over one GGUF file, with its :class:`~interop._gguf_metadata.Metadata`.

    Arrays are read-only views of a mapping of the file, which goes when the last of them is gone.  Somebody who makes the file shorter
    meanwhile ends the process when the lost bytes are looked at, as with every mapped file.
    """

    def __init__(self, file: RegularFile | str | os.PathLike[str]) -> None:
        self.file = file if isinstance(file, RegularFile) else RegularFile(file)
        self._mapping: weakref.ref[mmap.mmap] | None = None  # arrays keep it alive
        try:
            contents = _read.get(self.file.key)
            if contents is None:
                contents = _read[self.file.key] = Contents(*read_header(self.file))
        except BaseException:
            self.file.close()
            raise
        self._contents = contents  # keeps it for others that open the file
        self.metadata, self._entries, self._data_start = contents.metadata, contents.entries, contents.data_start

    @property
    def architecture(self) -> str:
        """What kind of model it is, such as "llama".  Raises GraphError when the file does not say."""
        return self.metadata.text("general.architecture")

    def _find(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise no_such_tensor(name, self._entries, str(self.file.path))
        return entry

    def names(self) -> list[str]:
        return list(self._entries)

    def info(self, name: str) -> tuple[DType, tuple[int, ...]]:
        type_ = self._find(name).type
        return type_.dtype, _sizes(type_.shape)

    def read(self, name: str) -> NDArray[Any]:
        import numpy as np

        entry = self._find(name)
        self.file.require_unchanged()
        mapping = self._mapping() if self._mapping is not None else None
        if mapping is None:
            mapping = self.file.map()
            self._mapping = weakref.ref(mapping)
        dtype = entry.type.dtype.numpy
        count = (entry.end - entry.begin) // dtype.itemsize
        flat: NDArray[Any] = np.frombuffer(mapping, dtype, count, self._data_start + entry.begin)
        return flat.reshape(_sizes(storage_shape(entry.type)))

    def close(self) -> None:
        self.file.close()


def _sizes(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    """A shape that is known to have numbers only."""
    return tuple(d for d in shape if isinstance(d, int))


def read_header(file: RegularFile) -> tuple[Metadata, dict[str, Entry], int]:
    """The metadata, the checked tensors in the order of the header, and where the data start."""
    header = Header(file)
    _check_lead(header)
    tensor_count = header.u64("tensor_count")
    pair_count = header.u64("metadata_kv_count")
    for what, count, limit in (("tensor_count", tensor_count, MAX_TENSORS), ("metadata_kv_count", pair_count, MAX_KEYS)):
        if count > limit:
            raise header.fail(f"{what} is {count}, at most {limit} are allowed")
    smallest = tensor_count * _SMALLEST_TENSOR + pair_count * _SMALLEST_PAIR
    if smallest > header.left():
        raise header.fail(
            f"truncated: {tensor_count} tensors and {pair_count} metadata values take {smallest} bytes or more, the file has {header.left()} more"
        )
    metadata = read_metadata(header, pair_count)
    alignment = _check_known_keys(metadata)
    entries: dict[str, Entry] = {}
    for number in range(tensor_count):
        _read_tensor(header, number, alignment, entries)
    data_start = -(-header.position // alignment) * alignment
    _check_layout(file, entries, data_start, metadata)
    return metadata, entries, data_start


def _check_lead(header: Header) -> None:
    path = header.file.path
    if header.file.size < 24:
        raise GraphError(f"{path}: not a GGUF file: {header.file.size} bytes are too few")
    if header.data[:4] != b"GGUF":
        raise GraphError(f"{path}: not a GGUF file: the magic is {header.data[:4]!r}, not b'GGUF'")
    header.position = 4
    version = header.u32("version")
    if version not in (2, 3):
        big = version and version & 0xFFFF == 0
        note = "the file is big-endian; known are little-endian ones" if big else "known are 2 and 3"
        raise GraphError(Diagnostic(f"{path}: GGUF version {version} is not supported", None, note))


def _check_known_keys(metadata: Metadata) -> int:
    """Checks what matters for reading; the alignment of the data."""
    if "general.architecture" in metadata:
        metadata.text("general.architecture")
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise metadata.fail("general.alignment", f"expected a power of two from 8 to {_MAX_ALIGNMENT}, found {alignment}")
    return alignment


def _read_tensor(header: Header, number: int, alignment: int, entries: dict[str, Entry]) -> None:
    name = header.string(f"the name of tensor {number}", _MAX_TENSOR_NAME)
    what = f"tensor {quoted(name)}"
    if not name:
        raise header.fail(f"the name of tensor {number} is empty")
    if name in entries:
        raise header.fail(f"the {what} appears twice")
    rank = header.u32(f"the rank of {what}")
    if not 1 <= rank <= MAX_RANK:
        raise header.fail(f"{what}: it has {rank} dimensions, 1 to {MAX_RANK} are allowed")
    shape = tuple(header.u64(f"a dimension of {what}") for _ in range(rank))[::-1]  # the file has the last axis first
    code = header.u32(f"the type of {what}")
    offset = header.u64(f"the offset of {what}")
    dtype = DTYPES.get(code)
    if dtype is None:
        known = f"the type {_OTHER_TYPES[code]}" if code in _OTHER_TYPES else f"the unknown type {code}"
        raise header.fail(f"{what}: it has {known}; supported are {', '.join(map(str, DTYPES.values()))}")
    if 0 in shape:
        raise header.fail(f"{what}: a dimension of {list(shape)} is 0")
    problem = block_problem(dtype, shape)
    if problem is not None:
        raise header.fail(f"{what}: {problem}")
    size = byte_count(dtype, shape)
    assert isinstance(size, int)
    if size > _MAX_BYTES:
        raise header.fail(f"{what}: the shape {list(shape)} is too large")
    if offset % alignment:
        raise header.fail(f"{what}: its offset {offset} is not a multiple of the alignment, {alignment}")
    if offset > header.file.size or size > header.file.size:
        raise header.fail(f"{what}: offset {offset} and {size} bytes are more than the file has, {header.file.size}")
    entries[name] = Entry(TensorType(dtype, shape), offset, offset + size)


def _check_layout(file: RegularFile, entries: Mapping[str, Entry], data_start: int, metadata: Metadata) -> None:
    """Whether every tensor is inside of the file and none overlaps another; gaps are padding."""
    available = file.size - data_start
    position = 0
    previous = ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > available:
            raise GraphError(f"{file.path}: truncated: tensor {quoted(name)} ends at byte {entry.end} of the data, which have {max(0, available)}")
        if entry.begin < position:
            raise GraphError(f"{file.path}: the tensors {quoted(previous)} and {quoted(name)} overlap at byte {entry.begin} of the data")
        position, previous = entry.end, name
    if any(entry.type.dtype.is_block for entry in entries.values()):
        metadata_version = metadata.integer("general.quantization_version", 2)
        if metadata_version != 2:  # earlier blocks had other scales
            raise metadata.fail("general.quantization_version", f"only 2 is supported, found {metadata_version}")
