"""The metadata of a GGUF file: values by key, checked when the file is opened, long arrays decoded when asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from interop._files import RegularFile
from ir.diagnostics import Diagnostic, GraphError, did_you_mean
from ir.weights import quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_HEADER = 1 << 27  # a vocabulary of 256k tokens with its merges takes about 15 MB
MAX_NAME = 65535
_FIRST_READ = 1 << 20
_CHUNK = 1 << 12  # strings that are scanned at once
_FEW = 100  # strings that are made at once
_LARGEST_F32, _SMALLEST_F32 = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
_SEARCHED_KEYS = 1000  # for "did you mean"
_STRING, _ARRAY, _BOOL = 8, 9, 7

_SCALARS: Mapping[int, tuple[str, str]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    _BOOL: ("bool", "?"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
"""Number of a type in the file: its name, and the letter that struct and numpy know it by."""

_FORMATS = {code: struct.Struct("<" + letter) for code, (_, letter) in _SCALARS.items()}
_U64 = struct.Struct("<Q")

Value = Union[int, float, bool, str, "list[str]", "NDArray[Any]"]
"""What a key stands for.  Arrays of numbers are read-only numpy arrays, arrays of strings are lists."""


class Header:
    """Reads the header front to back.  Whatever it says takes so and so many bytes is compared with the file first."""

    def __init__(self, file: RegularFile) -> None:
        self.file = file
        self.position = 0
        self.data = file.read_at(0, min(file.size, _FIRST_READ))

    def fail(self, what: str) -> GraphError:
        return GraphError(f"{self.file.path}: bad GGUF header at byte {self.position}: {what}")

    def left(self) -> int:
        """Bytes of the file that were not read yet."""
        return self.file.size - self.position

    def need(self, count: int, what: str) -> None:
        """Makes ``count`` more bytes of the header available.  Raises GraphError when the file does not have them."""
        end = self.position + count
        if end <= len(self.data):
            return
        if end > self.file.size:
            raise self.fail(f"truncated: {what} takes {count} bytes, the file has {self.left()} more")
        if end > MAX_HEADER:
            raise self.fail(f"{what} takes {count} bytes, a header has at most {MAX_HEADER}")
        grown = min(self.file.size, max(end, 2 * len(self.data)))
        self.data += self.file.read_at(len(self.data), grown - len(self.data))

    def number(self, format_: struct.Struct, what: str) -> Any:
        self.need(format_.size, what)
        (value,) = format_.unpack_from(self.data, self.position)
        self.position += format_.size
        return value

    def u32(self, what: str) -> int:
        return int(self.number(_FORMATS[4], what))

    def u64(self, what: str) -> int:
        return int(self.number(_U64, what))

    def string(self, what: str, limit: int = MAX_HEADER) -> str:
        begin = self.position
        length = self.u64(f"the length of {what}")
        if length > limit:
            self.position = begin
            raise self.fail(f"{what} has {length} bytes, at most {limit} are allowed")
        self.need(length, what)
        try:
            text = self.data[self.position : self.position + length].decode()
        except UnicodeDecodeError as error:
            self.position += error.start
            raise self.fail(f"{what} is not UTF-8") from None
        self.position += length
        return text

    def strings(self, count: int, what: str) -> NDArray[np.int64]:
        """Passes ``count`` strings; where their texts begin.  All are valid UTF-8, which is found out without making them."""
        self.need(8 * count, what)
        begin, done = self.position, 0
        pieces: list[NDArray[np.int64]] = []  # arrays, as a list of so many integers would take four times the memory
        while done < count:
            chunk = min(_CHUNK, count - done)
            found = self._short_strings(chunk)
            long = []
            for number in range(done + len(found), done + chunk):  # one that is not short is among them: slowly
                length = self.u64(f"the length of {what}[{number}]")
                self.need(length, f"{what}[{number}]")
                long.append(self.position)
                self.position += length
            pieces += [found, np.array(long, np.int64)]
            done += chunk
        places = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
        self._check_texts(begin, places, what)
        return places

    def _short_strings(self, count: int) -> NDArray[np.int64]:
        """Passes up to ``count`` strings of less than 256 bytes; where their texts begin."""
        data, position = self.data, self.position
        last = len(data) - 8
        starts: list[int] = []
        for _ in range(count):
            if position > last:
                break
            starts.append(position + 8)
            position += 8 + data[position]
        places = np.array(starts, np.int64)
        octets = np.frombuffer(data, np.uint8)
        upper = np.zeros(len(places), np.uint8)
        for byte in range(1, 8):
            upper |= octets[places - byte]
        wrong = np.flatnonzero(upper)
        good = int(wrong[0]) if len(wrong) else len(places)
        if good == len(places) and position > len(data):  # the last one needs more of the file
            good -= 1
        self.position = position if good == len(places) else int(places[good]) - 8
        return places[:good]

    def _check_texts(self, begin: int, places: NDArray[np.int64], what: str) -> None:
        """Whether texts in [begin, position) are UTF-8: they are when all of it is with zeros in place of the lengths."""
        texts = without_lengths(self.data, begin, self.position, places)
        try:
            texts.decode()
        except UnicodeDecodeError as error:
            self.position = begin + error.start
            number = int(np.searchsorted(places, self.position, "right")) - 1
            raise self.fail(f"{what}[{number}] is not UTF-8") from None


def without_lengths(data: bytes, begin: int, end: int, places: NDArray[np.int64]) -> bytes:
    """The bytes of texts that begin at ``places``, with zeros where the file has the lengths in front of them."""
    texts = np.frombuffer(data, np.uint8)[begin:end].copy()
    for byte in range(1, 9):
        texts[places - begin - byte] = 0
    return texts.tobytes()


@dataclass(frozen=True, slots=True)
class _Strings:
    """An array of strings that were not decoded yet."""

    data: bytes
    starts: NDArray[np.int64]
    end: int

    def decode(self) -> list[str]:
        blank = without_lengths(self.data, int(self.starts[0]) - 8, self.end, self.starts)
        if blank.count(0) == 8 * len(self.starts):  # none in a text: they are what is between zeros
            return blank.decode().split("\0" * 8)[1:]
        starts = self.starts.tolist()
        ends = [*(s - 8 for s in starts[1:]), self.end]
        data = self.data
        return [data[a:b].decode() for a, b in zip(starts, ends, strict=True)]


class Metadata(Mapping[str, Value]):
    """What a file says about itself, by key.  The typed questions name the file and the key in their complaints."""

    def __init__(self, where: str, values: dict[str, Value | _Strings]) -> None:
        self.where = where
        self._values = values

    def __getitem__(self, key: str) -> Value:
        value = self._values[key]
        if isinstance(value, _Strings):
            value = value.decode()
            self._values[key] = value
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def fail(self, key: str, what: str) -> GraphError:
        return GraphError(f"{self.where}: metadata {quoted(key)}: {what}")

    def missing(self, key: str) -> GraphError:
        """The complaint that a key is not there."""
        hint = did_you_mean(key, (k for k in islice(self._values, _SEARCHED_KEYS) if k.isprintable()))
        return GraphError(Diagnostic(f"{self.where}: the metadata have no {quoted(key)}", None, hint))

    def _get(self, key: str, default: Value | None) -> Value:
        if key in self._values:
            return self[key]
        if default is None:
            raise self.missing(key)
        return default

    def text(self, key: str, default: str | None = None) -> str:
        """A string.  Without ``default`` the key must be there."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"expected a string, found {kind_of(value)}")
        return value

    def integer(self, key: str, default: int | None = None, *, low: int = 0, high: int = 1 << 62) -> int:
        """An integer from ``low`` to ``high``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"expected an integer, found {kind_of(value)}")
        if not low <= value <= high:
            raise self.fail(key, f"expected {low} to {high}, found {value}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number, also as f32, which programs compute in; above or below 0 it is so there, too."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, f"expected a number, found {kind_of(value)}")
        if not np.isfinite(value):
            raise self.fail(key, f"expected a finite number, found {value}")
        if abs(value) > _LARGEST_F32 or 0 < abs(value) < _SMALLEST_F32:
            raise self.fail(key, f"{value} is outside of f32: expected a magnitude from {_SMALLEST_F32:.4g} to {_LARGEST_F32:.4g}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"expected true or false, found {kind_of(value)}")
        return value

    def strings(self, key: str, default: list[str] | None = None) -> list[str]:
        """An array of strings, decoded at the first question."""
        value = self._get(key, default)
        if not isinstance(value, list):
            raise self.fail(key, f"expected an array of strings, found {kind_of(value)}")
        return value

    def length(self, key: str) -> int:
        """The number of elements of an array, which is not decoded for this."""
        value = self._values[key]
        if isinstance(value, (list, np.ndarray)):
            return len(value)
        if isinstance(value, _Strings):
            return len(value.starts)
        raise self.fail(key, f"expected an array, found {kind_of(value)}")

    def sizes(self, key: str) -> NDArray[np.int64]:
        """The bytes that each string of an array takes; strings are not decoded for this."""
        value = self._values[key]
        if isinstance(value, list):
            return np.array([len(text.encode()) for text in value], np.int64)
        if isinstance(value, _Strings):
            return np.diff(value.starts, append=value.end + 8) - 8
        raise self.fail(key, f"expected an array of strings, found {kind_of(value)}")

    def numbers(self, key: str, default: NDArray[Any] | None = None) -> NDArray[Any]:
        """An array of numbers, read-only."""
        value = self._get(key, default)
        if not isinstance(value, np.ndarray):
            raise self.fail(key, f"expected an array of numbers, found {kind_of(value)}")
        return value


def kind_of(value: Value) -> str:
    """A value in words; of an array how long it is."""
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {value.dtype}"
    if isinstance(value, list):
        return f"an array of {len(value)} strings"
    return f"the string {quoted(value)}" if isinstance(value, str) else str(value)


def read_metadata(header: Header, count: int) -> Metadata:
    """The ``count`` keys and values that follow in the header."""
    values: dict[str, Value | _Strings] = {}
    for number in range(count):
        key = header.string(f"metadata key {number}", MAX_NAME)
        what = f"metadata {quoted(key)}"
        if not key:
            raise header.fail(f"metadata key {number} is empty")
        if key in values:
            raise header.fail(f"the metadata key {quoted(key)} appears twice")
        code = header.u32(f"the type of {what}")
        values[key] = _array(header, what) if code == _ARRAY else _scalar(header, code, what)
    return Metadata(str(header.file.path), values)


def _scalar(header: Header, code: int, what: str) -> Value:
    if code == _STRING:
        return header.string(what)
    if code not in _SCALARS:
        raise header.fail(f"{what} has the unknown type {code}")
    if code == _BOOL:
        octet = int(header.number(_FORMATS[0], what))
        if octet > 1:
            raise header.fail(f"{what}: a bool is 0 or 1, found {octet}")
        return octet == 1
    value = header.number(_FORMATS[code], what)
    assert isinstance(value, (int, float))
    return value


def _array(header: Header, what: str) -> Value | _Strings:
    code = header.u32(f"the element type of {what}")
    count = header.u64(f"the length of {what}")
    if code == _STRING:
        if count <= _FEW:
            header.need(8 * count, what)
            return [header.string(f"{what}[{number}]") for number in range(count)]
        starts = header.strings(count, what)
        return _Strings(header.data, starts, header.position)
    if code == _ARRAY:
        raise header.fail(f"{what}: arrays of arrays are not supported")
    if code not in _SCALARS:
        raise header.fail(f"{what} has elements of the unknown type {code}")
    size = _FORMATS[code].size
    header.need(size * count, f"{what}, an array of {count} {_SCALARS[code][0]},")
    letter = "B" if code == _BOOL else _SCALARS[code][1]
    array = np.frombuffer(header.data, np.dtype("<" + letter), count, header.position)
    if code == _BOOL:
        if np.any(array > 1):
            raise header.fail(f"{what}: a bool is 0 or 1, found {int(array.max())}")
        array = array != 0
        array.setflags(write=False)
    header.position += size * count
    return array
