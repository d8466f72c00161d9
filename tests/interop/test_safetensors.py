"""Safetensors files: what another writer made reads back bit for bit, and hostile headers are told apart before any data is read."""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy as official  # the PyPI package, not interop.safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interop import open_weights
from interop.safetensors import SafetensorsFile
from ir.diagnostics import GraphError
from ir.types import bf16, boolean, f32, i64
from ir.weights import WeightSource


def write(path: Path, header: object, data: bytes = b"") -> Path:
    """A file with this header: a dictionary, or raw text."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(GraphError) as caught:
        SafetensorsFile(path)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_reads_what_the_official_writer_wrote(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "f64": rng.standard_normal((2, 3)),
        "f32": rng.standard_normal((5,)).astype(np.float32),
        "f16": rng.standard_normal((1, 4)).astype(np.float16),
        "i64": rng.integers(-(2**62), 2**62, (3,)),
        "i32": rng.integers(-9, 9, (2, 2)).astype(np.int32),
        "i16": np.int16([-32768, 32767]),
        "i8": np.int8([[-128], [127]]),
        "u8": np.uint8([0, 255]),
        "bool": np.array([True, False]),
        "rank0": np.array(2.5, np.float32),
        "empty": np.zeros((3, 0, 2), np.float32),
        "bf16": np.array([1.5, -0.0, np.inf], ml_dtypes.bfloat16),
        "nan": np.array([0x7FA00001], np.uint32).view(np.float32),
    }
    path = tmp_path / "w.safetensors"
    official.save_file(arrays, path, metadata={"format": "np", "note": 'braces {}, "quotes"'})
    source = open_weights(path)
    assert isinstance(source, WeightSource)
    assert sorted(source.names()) == sorted(arrays)
    for name, array in arrays.items():
        dtype, shape = source.info(name)
        found = source.read(name)
        assert dtype.numpy == array.dtype and shape == array.shape
        assert found.dtype == array.dtype and found.shape == array.shape
        assert found.tobytes() == array.tobytes()
        assert not found.flags.writeable and found.flags.c_contiguous
    source.close()
    source.close()
    with pytest.raises(GraphError, match="closed"):
        source.read("f32")


def test_every_dtype_and_raw_bits(tmp_path: Path) -> None:
    path = write(
        tmp_path / "w.safetensors",
        {"a": entry("BF16", [2], 0, 4), "b": entry("BOOL", [3], 4, 7), "c": entry("F32", [1], 7, 11)},
        bytes([0x80, 0x3F, 0x81, 0x7F, 0, 1, 7, 0, 0, 0x80, 0x3F]),
    )
    source = SafetensorsFile(path)
    assert source.info("a") == (bf16, (2,)) and source.info("b") == (boolean, (3,)) and source.info("c") == (f32, (1,))
    assert source.read("a").view(np.uint16).tolist() == [0x3F80, 0x7F81]
    assert source.read("b").view(np.uint8).tolist() == [0, 1, 1]  # 7 is no bool: made a 1
    assert source.read("c").tolist() == [1.0]  # at an odd offset of the file


def test_header_may_be_padded_spaced_and_empty(tmp_path: Path) -> None:
    assert SafetensorsFile(write(tmp_path / "a", b"{}")).names() == []
    assert SafetensorsFile(write(tmp_path / "b", b'{"__metadata__": {}}   ')).names() == []
    text = b'{ "x\\u0041\\n" : { "shape":[ ] , "data_offsets":[0, 8],"dtype":"I64" } , "__metadata__":{"a":"}","b":"\\""} }  '
    source = SafetensorsFile(write(tmp_path / "c", text, bytes(8)))
    assert source.names() == ["xA\n"] and source.info("xA\n") == (i64, ())


def test_unknown_name(tmp_path: Path) -> None:
    source = SafetensorsFile(write(tmp_path / "w", {"layer.weight": entry("U8", [1], 0, 1)}, b"x"))
    with pytest.raises(GraphError, match=r"no tensor 'layer.wieght'(.|\n)*did you mean 'layer.weight'"):
        source.read("layer.wieght")
    with pytest.raises(GraphError, match="it holds 1 tensor"):
        source.info("zzz")


GOOD = entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12, "'a' and 'b' overlap at byte 4"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 0, 8)}, 8, "overlap"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 12, 20)}, 20, "bytes 8 to 12 of the data, before tensor 'b', belong to no tensor"),
        ({"a": entry("F32", [2], 4, 12)}, 12, "bytes 0 to 4"),
        ({"a": GOOD}, 9, "1 bytes after the last tensor"),
        ({}, 3, "3 bytes after the last tensor"),
        ({"a": GOOD}, 7, "truncated: tensor 'a' ends at byte 8 of the data, which have 7"),
        ({"a": entry("F32", [2], 0, 7)}, 7, "F32 [2] takes 8 bytes, its data_offsets [0, 7] hold 7"),
        ({"a": entry("F16", [2], 0, 8)}, 8, "takes 4 bytes"),
        ({"a": entry("F32", [2], 8, 0)}, 8, "run backwards"),
        ({"a": entry("F32", [-2], 0, 8)}, 8, "shape must be"),
        ({"a": entry("F32", [2.0], 0, 8)}, 8, "shape must be"),
        ({"a": entry("F32", [True], 0, 4)}, 4, "shape must be"),
        ({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}, 8, "shape must be"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}}, 8, "data_offsets must be"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}, 8, "data_offsets must be"),
        ({"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, 8, "dtype must be a string"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "expected dtype, shape and data_offsets, found 'dtype, shape'"),
        ({"a": {**GOOD, "more": 1}}, 8, "found 'dtype, shape, data_offsets, more'"),
        ({"a": entry("F8_E4M3", [8], 0, 8)}, 8, "dtype 'F8_E4M3' is not supported; known are F64, F32"),
        ({"a": entry("U64", [1], 0, 8)}, 8, "dtype 'U64' is not supported"),
        ({"a": entry("F32", [2**33, 2**33], 0, 0)}, 0, "too large"),
        ({"a": entry("F32", [0, 2**62, 2**62], 0, 0)}, 0, "too large"),
        ({"a": entry("U8", [1] * 65, 0, 1)}, 1, "65 dimensions"),
        ({"a": entry("F32", [2**31], 0, 2**33)}, 8, "truncated"),
        ({"a": entry("U8", [2**60], 0, 2**60)}, 8, "truncated"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', 2, "'a' appears twice"),
        (b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "a key appears twice"),
        (b'{"__metadata__":{"k":"v","k":"w"}}', 0, "'k' appears twice in __metadata__"),
        (b'{"__metadata__":{},"__metadata__":{}}', 0, "__metadata__ appears twice"),
        (b'{"__metadata__":{"k":1}}', 0, "__metadata__ must be an object of strings"),
        (b'{"__metadata__":[]}', 0, "__metadata__ must be an object of strings"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},}', 1, "expected a name"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]} "b":1}', 1, "expected ',' or '}'"),
        (b'{"a":{"dtype":"U8","shape":[1,],"data_offsets":[0,1]}}', 1, "not JSON"),
        (b'{"a":[1]}', 1, "expected {dtype, shape, data_offsets}"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}', 1, "expected ',' or '}'"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} x', 1, "unexpected text"),
        (b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "bad escape"),
        (b'{"\\x41":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "bad escape"),
        (b'{"\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "not UTF-8"),
        (b'{"a":{"dtype":"U8","shape":[' + b"1" * 5000 + b'],"data_offsets":[0,1]}}', 1, "at most 4096 bytes"),
        (b'{"a":{"dtype":"U8","shape":' + b"[" * 2000 + b',"data_offsets":[0,1]}}', 1, "not JSON"),
        (b'{"' + b"n" * 70_000 + b'":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "a name of more than 65536 bytes"),
        (b'{"__metadata__":{"' + b"n" * 70_000 + b'":""}}', 0, "a name of more than 65536 bytes"),
        (b"[]", 0, "expected '{'"),
        (b" {}", 0, "expected '{'"),
    ],
)
def test_bad_headers(tmp_path: Path, header: Any, data: int, message: str) -> None:
    refused(write(tmp_path / "w.safetensors", header, bytes(data)), message)


def test_sizes_are_compared_before_anything_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    lengths = [(2**63, "header would take 9223372036854775808"), (2**64 - 1, "would take"), (100_000_001, "would take"), (1000, "truncated")]
    for length, message in lengths:
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        refused(path, message)
    for data in (b"", b"\x02\0\0\0\0\0\0\0{"):
        path.write_bytes(data)
        refused(path, "too few")


def test_names_are_safe_to_print(tmp_path: Path) -> None:
    name = "\x1b[31m\u202e" + "x" * 500
    refused(write(tmp_path / "w", {name: entry("F32", [1], 0, 3)}, b"abc"), r"'\x1b[31m\u202exxx", "...'")


def test_too_many_entries(tmp_path: Path) -> None:
    path = write(tmp_path / "w", {f"t{i}": entry("U8", [0], 0, 0) for i in range(100_000)})
    refused(path, "more than 65536 tensors")


@pytest.mark.parametrize("unit", [b"[[],", b'{"a":', b'"a":{},', b'"a":"",', b'"\\', b"\xc3\xa9"])
def test_long_hostile_headers_take_little_time_and_memory(tmp_path: Path, unit: bytes) -> None:
    body = unit * (10_000_000 // len(unit))
    for lead in (b"{", b'{"__metadata__":{', b'{"x":{"shape":'):
        path = write(tmp_path / "w", lead + body)
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        with pytest.raises(GraphError):
            SafetensorsFile(path)
        assert time.monotonic() - start < 5
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cases = {tmp_path: "a folder", tmp_path / "pipe": "a pipe", Path("/dev/zero"): "a device", tmp_path / "none": "No such file"}
    for path, message in cases.items():
        with pytest.raises(GraphError, match=message):
            open_weights(path)
    with pytest.raises(GraphError, match="can't read"):
        open_weights("a\0b")
    target = write(tmp_path / "w.safetensors", {"a": GOOD}, bytes(8))
    link = tmp_path / "link.safetensors"
    link.symlink_to(target)
    assert open_weights(link).names() == ["a"]
    with pytest.raises(GraphError, match="symbolic link"):
        open_weights(link, follow_symlinks=False)


def test_a_file_that_changes_after_the_check(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", {"a": GOOD}, bytes(range(8)))
    source = open_weights(path)
    kept = source.read("a")
    copy = kept.copy()
    with open(path, "r+b") as stream:
        stream.truncate(path.stat().st_size - 4)
    with pytest.raises(GraphError, match="changed while in use"):
        source.read("a")
    assert np.array_equal(kept, copy)  # not mapped: what was read stays
    write(path, {"a": GOOD}, bytes(8))
    source = open_weights(path)
    with open(path, "r+b") as stream:  # same size, other contents
        stream.seek(-1, os.SEEK_END)
        stream.write(b"!")
    os.utime(path, ns=(1, 1))
    with pytest.raises(GraphError, match="changed while in use"):
        source.read("a")
    source = open_weights(path)
    os.replace(write(tmp_path / "other", {"b": GOOD}, bytes(8)), path)  # another file by the same name: ours stays open
    assert source.read("a").shape == (2,)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("counts the entries of /proc/self/fd")
    path = write(tmp_path / "w.safetensors", {"a": GOOD}, bytes(9))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(GraphError):
            open_weights(path)
    assert len(os.listdir("/proc/self/fd")) == before


def _valid_file() -> bytes:
    header = {"w": entry("F32", [2, 2], 0, 16), "b": entry("I64", [1], 16, 24), "__metadata__": {"k": "v"}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(range(24))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Never another exception; what is accepted can be read, and the official reader does not see other shapes."""
    content = bytearray(_valid_file())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    path = tmp_path / "w.safetensors"
    path.write_bytes(content[:cut] if data.draw(st.booleans()) else content)
    try:
        source = SafetensorsFile(path)
    except GraphError as error:
        assert str(path) in str(error)
        return
    for name in source.names():
        dtype, shape = source.info(name)
        array = source.read(name)
        assert array.shape == shape and array.dtype == dtype.numpy
    if all(n.isascii() for n in source.names()):
        found = official.load(path.read_bytes())
        assert {n: a.shape for n, a in found.items()} == {n: source.info(n)[1] for n in source.names()}
