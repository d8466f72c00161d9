"""GGUF files: what is written reads back, nothing is believed that the file can't hold, and other writers' files read the same."""

from __future__ import annotations

import gc
import os
import resource
import struct
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from interop import open_weights
from interop.gguf import DTYPES, GgufFile
from ir.blocks import dequantize
from ir.diagnostics import GraphError
from ir.types import bf16, f16, f32, q4_0, q4_1, q8_0
from ir.weights import WeightSource
from tests.gguf_files import Stored, Tiny, Typed, gguf_bytes, stored, string, tiny_llama, value_bytes

TYPES = {"f32": f32, "f16": f16, "bf16": bf16, "q4_0": q4_0, "q4_1": q4_1, "q8_0": q8_0}
STRING, ARRAY = 8, 9


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refused(path: Path, data: bytes, *parts: str) -> None:
    with pytest.raises(GraphError) as caught:
        GgufFile(write(path, data))
    for part in (str(path), *parts):
        assert part in str(caught.value)


def header(tensors: int = 0, pairs: int = 0, body: bytes = b"", magic: bytes = b"GGUF", version: int = 3, room: int = 0) -> bytes:
    return struct.pack("<4sIQQ", magic, version, tensors, pairs) + body + bytes(room)


def pair(key: str, value: bytes) -> bytes:
    return string(key) + value


def tensor(name: str = "t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, rank: int | None = None) -> bytes:
    sizes = b"".join(struct.pack("<Q", d) for d in reversed(shape))
    return string(name) + struct.pack("<I", len(shape) if rank is None else rank) + sizes + struct.pack("<IQ", kind, offset)


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return struct.pack("<IIQ", ARRAY, kind, count) + body


def raw_string(length: int, text: bytes) -> bytes:
    return struct.pack("<Q", length) + text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.gguf"


# -- what is good ----------------------------------------------------------------------------------------------------------


def test_tensors_of_every_type(path: Path) -> None:
    array = np.random.default_rng(1).standard_normal((3, 2, 64)).astype(np.float32)
    tensors = {kind: stored(array, kind) for kind in TYPES} | {"vector": stored(array[0, 0])}
    source = open_weights(write(path, gguf_bytes({}, tensors)))
    assert isinstance(source, WeightSource) and isinstance(source, GgufFile)
    assert source.names() == list(tensors)
    for name, tensor in tensors.items():
        dtype = TYPES[tensor.kind]
        found = source.read(name)
        assert source.info(name) == (dtype, tensor.shape)
        assert found.dtype == dtype.numpy and found.tobytes() == tensor.data
        assert found.shape == ((*tensor.shape[:-1], tensor.shape[-1] // 32) if dtype.is_block else tensor.shape)
        assert not found.flags.writeable and found.flags.c_contiguous and not found.flags.owndata
        if dtype.is_block:
            assert np.abs(dequantize(found, f32) - array).max() < 0.3
    with pytest.raises(GraphError, match=r"no tensor 'vectr'(.|\n)*did you mean 'vector'"):
        source.read("vectr")
    source.close()
    source.close()
    with pytest.raises(GraphError, match="closed"):
        source.read("f32")


@pytest.mark.parametrize(("version", "alignment"), [(2, 32), (3, 8), (3, 64), (3, 4096)])
def test_versions_and_alignments(path: Path, version: int, alignment: int) -> None:
    tensors = {"a": stored(np.arange(3, dtype=np.float32)), "b": stored(np.arange(5, dtype=np.float32))}
    data = gguf_bytes({"general.alignment": alignment}, tensors, version=version, alignment=alignment)
    source = GgufFile(write(path, data))
    assert source.read("a").tolist() == [0, 1, 2] and source.read("b").tolist() == [0, 1, 2, 3, 4]
    assert GgufFile(write(path, data[: len(data) - -20 % alignment])).read("b").tolist() == [0, 1, 2, 3, 4]  # padding at the end may be missing


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "u8": Typed("u8", 255),
    "i8": Typed("i8", -128),
    "u16": Typed("u16", 65535),
    "i16": Typed("i16", -32768),
    "u32": Typed("u32", 2**32 - 1),
    "i32": Typed("i32", -(2**31)),
    "u64": Typed("u64", 2**64 - 1),
    "i64": Typed("i64", -(2**63)),
    "f32": Typed("f32", 0.5),
    "f64": Typed("f64", 0.1),
    "yes": True,
    "no": False,
    "empty": "",
    "text": "Ġé\0\U0001f600",
    "numbers": Typed("i32", [3, -1, 4]),
    "flags": Typed("bool", [True, False]),
    "reals": Typed("f64", [0.1, float("inf")]),
    "nothing": [],
    "strings": ["", "a", "é" * 200, "\0", "x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 70_000, "end"],
    "many": ["", "a", "é" * 200, "\0", "x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 700, "end"] * 50,
}


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Typed) else value


def test_metadata(path: Path) -> None:
    source = GgufFile(write(path, gguf_bytes(METADATA, {})))
    assert list(source.metadata) == list(METADATA) and len(source.metadata) == len(METADATA) and source.architecture == "llama"
    for key, value in METADATA.items():
        found = source.metadata[key]
        assert type(found) is type(plain(value)) or isinstance(found, np.ndarray)
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == plain(value)
    lengths = {key: source.metadata.length(key) for key in ("strings", "many", "numbers", "nothing")}
    assert lengths == {"strings": 10, "many": 500, "numbers": 3, "nothing": 0}
    assert not source.metadata.numbers("numbers").flags.writeable


def test_typed_questions(path: Path) -> None:
    metadata = GgufFile(write(path, gguf_bytes(METADATA, {}))).metadata
    assert metadata.text("text") == METADATA["text"] and metadata.integer("u16") == 65535 and metadata.real("f32") == 0.5
    assert metadata.real("u8") == 255.0 and metadata.flag("yes") is True and metadata.strings("strings") == METADATA["strings"]
    assert metadata.text("none", "x") == "x" and metadata.integer("none", 7) == 7 and metadata.flag("none", False) is False
    for ask, message in [
        (lambda: metadata.text("u8"), "'u8': expected a string, found 255"),
        (lambda: metadata.text("nope"), "no 'nope'"),
        (lambda: metadata.integer("yes"), "'yes': expected an integer, found True"),
        (lambda: metadata.integer("f32"), "'f32': expected an integer, found 0.5"),
        (lambda: metadata.integer("i8"), "'i8': expected 0 to"),
        (lambda: metadata.integer("u8", low=1, high=254), "'u8': expected 1 to 254, found 255"),
        (lambda: metadata.real("text"), "expected a number, found the string"),
        (lambda: metadata.flag("u8"), "expected true or false, found 255"),
        (lambda: metadata.strings("numbers"), "expected an array of strings, found an array of 3 int32"),
        (lambda: metadata.numbers("strings"), "expected an array of numbers, found an array of 10 strings"),
        (lambda: metadata.length("text"), "expected an array, found the string"),
    ]:
        with pytest.raises(GraphError, match=message):
            ask()
    nan = GgufFile(write(path, gguf_bytes({"x": float("nan")}, {}))).metadata
    with pytest.raises(GraphError, match="'x': expected a finite number, found nan"):
        nan.real("x")


def test_long_headers_are_read_piece_by_piece(path: Path) -> None:
    """Strings across the borders of what is read at once, short and long ones in every mixture."""
    rng = np.random.default_rng(2)
    lengths = np.where(rng.random(30_000) < 0.01, rng.integers(200, 9000, 30_000), rng.integers(0, 20, 30_000))
    words = ["w" * int(n) for n in lengths]
    others = ["é" * int(n) for n in lengths[:9000]]
    big = "t" * 3_000_000
    data = gguf_bytes({"words": words, "big": big, "others": others, "n": Typed("i64", list(range(200_000)))}, {"a": stored(np.ones(4, np.float32))})
    source = GgufFile(write(path, data))
    assert source.metadata["words"] == words and source.metadata["others"] == others and source.metadata["big"] == big
    assert source.metadata.numbers("n").tolist() == list(range(200_000)) and source.read("a").tolist() == [1] * 4


MANY: dict[str, bytes] = {
    "empty strings": header(pairs=1, body=pair("k", array(STRING, 1_200_000, bytes(9_600_000)))),
    "long strings": header(pairs=1, body=pair("k", array(STRING, 37_000, raw_string(256, b"x" * 256) * 37_000))),
    "short and long in turn": header(pairs=1, body=pair("k", array(STRING, 66_000, (raw_string(1, b"x") + raw_string(270, b"x" * 270)) * 33_000))),
    "keys": header(pairs=65_000, body=b"".join(pair(f"{i:0140}", value_bytes(1)) for i in range(65_000))),
    "small arrays": header(pairs=65_000, body=b"".join(pair(f"{i}", array(STRING, 1, raw_string(99, b"y" * 99))) for i in range(65_000))),
    "tensors": header(tensors=65_000, body=b"".join(tensor(f"{i:090}", (1,), offset=32 * i) for i in range(65_000))),
}


@pytest.mark.parametrize("data", MANY.values(), ids=MANY)
@pytest.mark.parametrize("spoilt", [False, True])
def test_large_headers_take_little_time_and_memory(path: Path, data: bytes, spoilt: bool) -> None:
    write(path, data[:-1] + b"\xff" if spoilt else data + bytes(2_100_000))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        GgufFile(path)
    except GraphError:
        assert spoilt
    assert time.process_time() - start < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


def test_another_writers_files_read_the_same(path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_custom_alignment(64)
    writer.add_token_list(["a", "é", "", "\0"])
    writer.add_token_scores([0.5, -1.0, 0.0, 2.0])
    writer.add_bool("flag", True)
    arrays = {}
    for kind in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"):
        values = rng.standard_normal((4, 96)).astype(np.float32)
        quantized = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        arrays[kind.lower()] = gguf.quants.dequantize(quantized, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(kind.lower(), quantized, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = GgufFile(path)
    assert source.architecture == "llama" and source.metadata["llama.block_count"] == 3 and source.metadata["flag"] is True
    assert source.metadata["tokenizer.ggml.tokens"] == ["a", "é", "", "\0"]
    assert source.metadata.numbers("tokenizer.ggml.scores").tolist() == [0.5, -1.0, 0.0, 2.0]
    for name, expected in arrays.items():
        dtype, shape = source.info(name)
        found = source.read(name)
        assert dtype.name == name and shape == (4, 96)
        assert np.array_equal(dequantize(found, f32) if dtype.is_block else found.astype(np.float32), expected)


# -- what is not -----------------------------------------------------------------------------------------------------------


def strings(rest: bytes) -> bytes:
    """A file with an array of 200 strings, the last 50 of which are given."""
    return header(pairs=1, body=pair("k", array(STRING, 200, raw_string(1, b"a") * 150 + rest)))


HUGE = (2**60, 2**63, 2**64 - 1)
BAD: list[tuple[bytes, str]] = [
    (b"", "0 bytes are too few"),
    (b"GGUF", "4 bytes are too few"),
    (header(magic=b"GGML"), "the magic is b'GGML'"),
    (header(version=1), "version 1 is not supported"),
    (header(version=4), "version 4 is not supported"),
    (header(version=3 << 24), "big-endian"),
    *[(header(tensors=n), f"tensor_count is {n}, at most 65536") for n in HUGE],
    *[(header(pairs=n), f"metadata_kv_count is {n}, at most 65536") for n in HUGE],
    (header(tensors=100, room=100), "100 tensors and 0 metadata values take 3300 bytes or more, the file has 100 more"),
    (header(pairs=100, room=100), "0 tensors and 100 metadata values take 1400 bytes or more"),
    (header(pairs=1, body=raw_string(2**16, b"k"), room=2**17), "metadata key 0 has 65536 bytes, at most 65535"),
    *[(header(pairs=1, body=raw_string(n, b"k"), room=20), f"metadata key 0 has {n} bytes") for n in HUGE],
    (header(pairs=1, body=raw_string(50, b"k"), room=20), "truncated: metadata key 0 takes 50 bytes, the file has 21 more"),
    (header(pairs=1, body=raw_string(2, b"\xff\xff"), room=20), "metadata key 0 is not UTF-8"),
    (header(pairs=1, body=pair("", value_bytes(1)), room=20), "metadata key 0 is empty"),
    (header(pairs=2, body=pair("k", value_bytes(1)) * 2), "the metadata key 'k' appears twice"),
    (header(pairs=1, body=pair("k", struct.pack("<I", 13)), room=20), "metadata 'k' has the unknown type 13"),
    (header(pairs=1, body=pair("k", struct.pack("<IB", 7, 2)), room=20), "metadata 'k': a bool is 0 or 1, found 2"),
    (header(pairs=1, body=pair("k", array(7, 2, b"\1\2")), room=20), "metadata 'k': a bool is 0 or 1, found 2"),
    (header(pairs=1, body=pair("k", struct.pack("<I", STRING) + raw_string(1, b"\x80")), room=20), "metadata 'k' is not UTF-8"),
    *[(header(pairs=1, body=pair("k", struct.pack("<I", STRING) + raw_string(n, b"x"))), f"metadata 'k' has {n} bytes") for n in HUGE],
    *[(header(pairs=1, body=pair("k", array(STRING, n)), room=90), f"truncated: metadata 'k' takes {8 * n} bytes") for n in HUGE],
    *[(header(pairs=1, body=pair("k", array(0, n)), room=90), f"metadata 'k', an array of {n} u8, takes {n} bytes") for n in HUGE],
    *[(header(pairs=1, body=pair("k", array(12, n)), room=90), f"metadata 'k', an array of {n} f64, takes {8 * n} bytes") for n in HUGE],
    (header(pairs=1, body=pair("k", array(STRING, 3, raw_string(1, b"a") + raw_string(99, b"b"))), room=40), "metadata 'k'[1] takes 99 bytes"),
    (header(pairs=1, body=pair("k", array(STRING, 2, raw_string(1, b"a") + raw_string(2**64 - 1, b"b"))), room=40), "metadata 'k'[1] has"),
    (header(pairs=1, body=pair("k", array(STRING, 2, raw_string(1, b"a") + raw_string(3, b"\xe2\x82b"))), room=40), "metadata 'k'[1] is not UTF-8"),
    (header(pairs=1, body=pair("k", array(STRING, 2, raw_string(1, b"\xc3") + raw_string(1, b"\xa9"))), room=40), "metadata 'k'[0] is not UTF-8"),
    (strings(raw_string(2, b"\xe2\x82") + raw_string(1, b"\xac") * 49), "metadata 'k'[150] is not UTF-8"),
    (strings(raw_string(2**60, b"a") + bytes(600)), "metadata 'k'[150] takes 1152921504606846976 bytes"),
    (strings(raw_string(2000, b"a") + bytes(600)), "truncated: metadata 'k'[150] takes 2000 bytes"),
    (strings(bytes(8 * 49 + 7)), "truncated: the length of metadata 'k'[199] takes 8 bytes, the file has 7 more"),
    (header(pairs=1, body=pair("k", array(ARRAY, 1, array(0, 1, b"\0"))), room=40), "metadata 'k': arrays of arrays are not supported"),
    (header(pairs=1, body=pair("k", array(99, 1, b"\0")), room=40), "metadata 'k' has elements of the unknown type 99"),
    *[
        (header(pairs=1, body=pair("general.alignment", value_bytes(n)), room=99), "'general.alignment': expected a power of two from 8 to 1048576")
        for n in (0, 1, 4, 12, 33, 2**21)
    ],
    (header(pairs=1, body=pair("general.alignment", value_bytes("32")), room=99), "'general.alignment': expected an integer, found the string '32'"),
    (header(pairs=1, body=pair("general.architecture", value_bytes(1)), room=99), "'general.architecture': expected a string, found 1"),
    *[(header(1, body=raw_string(n, b"t"), room=99), f"the name of tensor 0 has {n} bytes, at most 1024") for n in (1025, *HUGE)],
    (header(1, body=tensor(""), room=99), "the name of tensor 0 is empty"),
    (header(1, body=raw_string(1, b"\xff"), room=99), "the name of tensor 0 is not UTF-8"),
    (header(2, body=tensor() * 2, room=99), "the tensor 't' appears twice"),
    *[(header(1, body=tensor(rank=n), room=99), f"'t': it has {n} dimensions, 1 to 4 are allowed") for n in (0, 5, 2**32 - 1)],
    (header(1, body=tensor(shape=(4, 0)), room=99), "'t': a dimension of [4, 0] is 0"),
    (header(1, body=tensor(shape=(2**33, 2**33)), room=99), "'t': the shape [8589934592, 8589934592] is too large"),
    (header(1, body=tensor(shape=(2**64 - 1,) * 4), room=99), "is too large"),
    (header(1, body=tensor(shape=(2**61,)), room=99), "too large"),
    (header(1, body=tensor(shape=(2**40,)), room=99), "'t': offset 0 and 4398046511104 bytes are more than the file has"),
    (header(1, body=tensor(shape=(2, 33), kind=2), room=99), "33 is not a multiple"),
    (header(1, body=tensor(shape=(32, 16), kind=8), room=99), "16 is not a multiple"),
    (header(1, body=tensor(kind=12), room=99), "'t': it has the type q4_K; supported are f32, f16, q4_0, q4_1, q8_0, bf16"),
    (header(1, body=tensor(kind=6), room=99), "'t': it has the type q5_0"),
    (header(1, body=tensor(kind=4), room=99), "'t': it has the unknown type 4"),
    (header(1, body=tensor(kind=2**32 - 1), room=99), "'t': it has the unknown type 4294967295"),
    (header(1, body=tensor(offset=8), room=199), "'t': its offset 8 is not a multiple of the alignment, 32"),
    *[(header(1, body=tensor(offset=n), room=99), f"'t': offset {n} and 16 bytes are more than the file has") for n in (2**63, 2**64 - 32)],
    (header(1, body=tensor(offset=64), room=70), "truncated: tensor 't' ends at byte 80 of the data"),
    (header(1, body=tensor()), "truncated: tensor 't' ends at byte 16 of the data, which have 0"),
    (header(2, body=tensor("a", (9,)) + tensor("b", (4,), offset=32), room=199), "the tensors 'a' and 'b' overlap at byte 32 of the data"),
    (header(2, body=tensor("a") + tensor("b"), room=199), "the tensors 'a' and 'b' overlap at byte 0"),
    (header(1, 1, pair("general.quantization_version", value_bytes(1)) + tensor("a", (32,), 2), room=199), "only 2 is supported, found 1"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), BAD, ids=range(len(BAD)))
def test_bad_files(path: Path, data: bytes, message: str) -> None:
    refused(path, data, message)


def test_messages_are_short_and_safe_to_print(path: Path) -> None:
    name = "\x1b[31m\u202e" + "x" * 900
    refused(path, header(1, body=tensor(name, kind=6), room=99), r"'\x1b[31m\u202exxx", "...'")
    with pytest.raises(GraphError) as caught:
        GgufFile(write(path, header(pairs=1, body=pair(name * 20, array(STRING, 2**60)), room=99)))
    assert len(str(caught.value)) < 600


def test_types_that_are_not_supported_are_named(path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    for kind in gguf.GGMLQuantizationType:
        if kind.value in DTYPES:
            assert DTYPES[kind.value].name == kind.name.lower()
        else:
            refused(path, header(1, body=tensor(kind=kind.value), room=99), f"it has the type {kind.name}".lower().split("_")[0])


CLAIMS = [data for data, message in BAD if "truncated" in message or " bytes" in message or "at most" in message]


@pytest.mark.parametrize("data", CLAIMS, ids=range(len(CLAIMS)))
def test_claims_cost_nothing(path: Path, data: bytes) -> None:
    write(path, data)
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(GraphError):
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 400_000 + 3 * len(data)
    finally:
        tracemalloc.stop()


SMALL = gguf_bytes(
    {"general.architecture": "llama", "n": 7, "words": ["a", "bc", "é" * 150], "ids": Typed("i32", [1, 2]), "f": True, "general.alignment": 32},
    {"x": stored(np.ones(3, np.float32)), "y": stored(np.ones((2, 32), np.float32), "q4_1")},
)
DATA = 40  # bytes of y, the last tensor, whose padding goes to 64


def check(path: Path, content: bytes) -> bool:
    """Whether a file is taken; then all of it can be looked at, and lies in the file."""
    with open(path, "r+b" if path.exists() else "wb") as stream:  # writing over it is much faster than making it again
        stream.write(content)
        stream.truncate()
    try:
        source = GgufFile(path)
    except GraphError as error:
        assert str(error).startswith(f"error: {path}: ")
        return False
    for key in source.metadata:
        source.metadata[key]
    total = 0
    for name in source.names():
        found = source.read(name)
        total += found.nbytes
        found.tobytes()
    assert total <= len(content)
    return True


def test_every_truncation_is_refused(path: Path) -> None:
    last = len(SMALL) - (64 - DATA)
    for size in range(len(SMALL)):
        assert check(path, SMALL[:size]) == (size >= last), size


def test_flipped_bits_are_read_or_refused(path: Path) -> None:
    taken = 0
    for position in range(len(SMALL) - 96):
        for bit in range(8):
            content = bytearray(SMALL)
            content[position] ^= 1 << bit
            taken += check(path, bytes(content))
    assert taken > 100


def test_hostile_numbers_anywhere_are_read_or_refused(path: Path) -> None:
    tracemalloc.start()
    try:
        for position in range(len(SMALL) - 96):
            for number in (0, 2**31, 2**60, 2**64 - 1):
                check(path, SMALL[:position] + struct.pack("<Q", number) + SMALL[position + 8 :])
                check(path, SMALL[:position] + struct.pack("<I", number % 2**32) + SMALL[position + 4 :])
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_random_damage_is_read_or_refused(path: Path) -> None:
    whole = tiny_llama(Tiny(layers=1, width=32, feed_forward=32))
    begin = whole.index(b"blk.0.ffn_norm") + 200
    rng = np.random.default_rng(4)
    for _ in range(500):
        content = bytearray(whole)
        for position in rng.integers(0, begin, rng.integers(1, 4)):
            content[position] = rng.integers(256)
        check(path, bytes(content[: rng.integers(begin, len(content))] if rng.random() < 0.2 else content))


# -- files that change, and what is held open ------------------------------------------------------------------------------


def test_a_file_that_changes_after_the_check(path: Path) -> None:
    source = GgufFile(write(path, SMALL))
    with open(path, "r+b") as stream:
        stream.truncate(len(SMALL) - 90)
    with pytest.raises(GraphError, match="changed while in use"):
        source.read("x")
    source = GgufFile(write(path, SMALL))
    os.utime(path, ns=(1, 1))
    with pytest.raises(GraphError, match="changed while in use"):
        source.read("y")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc/self")
def test_the_mapping_lives_as_long_as_its_arrays(path: Path) -> None:
    def mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    descriptors = len(os.listdir("/proc/self/fd"))
    source = GgufFile(write(path, SMALL))
    assert not mapped()
    x, y = source.read("x"), source.read("y")
    assert mapped()
    del x
    source.close()
    assert mapped() and y["d"].shape == (2, 1)
    del y
    gc.collect()
    assert not mapped()
    for _ in range(5):
        with pytest.raises(GraphError):
            GgufFile(write(path, SMALL[:100]))
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_digest_and_folder_rules_hold_for_gguf_files(path: Path) -> None:
    write(path, SMALL)
    with pytest.raises(GraphError, match="wrong SHA-256 digest"):
        open_weights(path, sha256="0" * 64)
    link = path.parent / "link.gguf"
    link.symlink_to(path)
    assert open_weights(link).names() == ["x", "y"]
    with pytest.raises(GraphError, match="symbolic link"):
        open_weights(link, follow_symlinks=False)
    with pytest.raises(GraphError, match="a folder"):
        GgufFile(path.parent)


def test_values_at_the_edges_of_narrow_floats(path: Path) -> None:
    bits = np.array([0x7F81, 0x8000, 0x0001, 0x7F80], "<u2")
    source = GgufFile(write(path, gguf_bytes({}, {"b": Stored("bf16", (4,), bits.tobytes())})))
    assert source.read("b").dtype == ml_dtypes.bfloat16 and source.read("b").view(np.uint16).tolist() == bits.tolist()


def test_a_file_that_is_open_is_not_read_twice(tmp_path: Path) -> None:
    """Its header is shared while somebody has it, and read anew when the file is another one."""
    path = tmp_path / "model.gguf"
    first = GgufFile(write(path, gguf_bytes({"name": "first"}, {})))
    assert GgufFile(path).metadata is first.metadata
    path.unlink()
    second = GgufFile(write(path, gguf_bytes({"name": "second, and longer"}, {})))
    assert (first.metadata.text("name"), second.metadata.text("name")) == ("first", "second, and longer")


@pytest.mark.parametrize("texts", [["", "é", "", "Ġab"], ["\0", "", "a\0b", "\0" * 8]])
def test_long_arrays_of_strings(texts: list[str], tmp_path: Path) -> None:
    """Empty ones, and zeros in them, among those that are decoded together."""
    written = [f"{n}" for n in range(200)] + texts * 3 + [""]
    metadata = GgufFile(write(tmp_path / "model.gguf", gguf_bytes({"texts": written}, {}))).metadata
    assert metadata.strings("texts") == written
