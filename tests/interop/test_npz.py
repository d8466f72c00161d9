"""Numpy's files: what numpy wrote reads back bit for bit; pickles, bombs and odd names are refused."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interop import open_weights
from interop.npz import NpyFile, NpzFile
from ir.diagnostics import GraphError
from ir.types import dtype_from_numpy, f32, q4_0, q4_1, q8_0
from ir.weights import ArraySource, WeightSource

SAMPLES = [
    np.arange(6, dtype=np.float64).reshape(2, 3),
    np.float32([1.5, -0.0, np.nan]),
    np.float16([[65504.0]]),
    np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(2, 0, 1),
    np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
    np.int16([-5]),
    np.int8([-128, 127]),
    np.uint8([0, 255]),
    np.array([[True], [False]]),
    np.array(3.25, np.float32),
    np.zeros((0, 3), np.float32),
    np.arange(5, dtype=">f4"),
    np.arange(5, dtype=">i8"),
]


def npy_bytes(array: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def raw_npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin-1")
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + data


def make_zip(path: Path, entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("dtype", [q4_0, q4_1, q8_0], ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (0, 1), (4, 0), (2,), (2, 1, 3)], ids=str)
def test_blocks(tmp_path: Path, dtype: Any, shape: tuple[int, ...]) -> None:
    """Records as GGUF files have them; the shape counts elements, not blocks."""
    count = int(np.prod(shape))
    array = np.frombuffer(np.random.default_rng(1).bytes(dtype.block_bytes * count), dtype.numpy).reshape(shape)
    np.savez(tmp_path / "w.npz", w=array)
    np.save(tmp_path / "w.npy", array)
    for path, name in ((tmp_path / "w.npz", "w"), (tmp_path / "w.npy", "arr_0")):
        source = open_weights(path)
        assert source.info(name) == (dtype, (*shape[:-1], 32 * shape[-1]))
        found = source.read(name)
        assert found.dtype == array.dtype and found.shape == shape and found.tobytes() == array.tobytes() and not found.flags.writeable
    assert ArraySource({"w": array}).info("w") == (dtype, (*shape[:-1], 32 * shape[-1]))


def test_a_single_block_is_no_tensor(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.zeros((), q4_1.numpy))
    with pytest.raises(GraphError, match="a single block of q4_1 is no tensor"):
        open_weights(tmp_path / "w.npy")
    with pytest.raises(GraphError, match="a single block of q4_1, not a tensor"):
        ArraySource({"w": np.zeros((), q4_1.numpy)})


def refused(path: Path, message: str) -> str:
    with pytest.raises(GraphError) as caught:
        open_weights(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def same(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype.newbyteorder("=") and found.dtype.isnative
    assert found.tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes()
    assert found.flags.c_contiguous and not found.flags.writeable


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Any) -> None:
    arrays = {f"t.{i}": a for i, a in enumerate(SAMPLES)}
    save(tmp_path / "w.npz", **arrays)
    source = open_weights(tmp_path / "w.npz")
    assert isinstance(source, WeightSource) and isinstance(source, NpzFile)
    assert source.names() == list(arrays)
    for name, array in arrays.items():
        assert source.info(name) == (dtype_from_numpy(array.dtype), array.shape)
        same(source.read(name), array)
    with pytest.raises(GraphError, match=r"no tensor 't.99'"):
        source.read("t.99")
    source.close()
    with pytest.raises(GraphError, match="closed"):
        source.read("t.0")


@pytest.mark.parametrize("array", SAMPLES, ids=lambda a: f"{a.dtype.str}{a.shape}")
def test_npy(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "w.npy", array)
    source = open_weights(tmp_path / "w.npy")
    assert isinstance(source, NpyFile) and source.names() == ["arr_0"]
    assert source.info("arr_0") == (dtype_from_numpy(array.dtype), array.shape)
    same(source.read("arr_0"), array)
    with pytest.raises(GraphError, match="no tensor 'w'"):
        source.read("w")


def test_npy_versions_and_other_writers(tmp_path: Path) -> None:
    path = tmp_path / "w.npy"
    for version in (1, 2, 3):
        path.write_bytes(raw_npy('{"shape":(2,),"descr":"<f4","fortran_order":False}\n', bytes(8), version))
        assert open_weights(path).info("arr_0") == (f32, (2,))
    path.write_bytes(raw_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 1L), }", bytes(8)))
    assert open_weights(path).info("arr_0") == (f32, (2, 1))


class _Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    objects = np.array([_Bomb()], dtype=object)
    (tmp_path / "o.npy").write_bytes(npy_bytes(objects, allow_pickle=True))
    refused(tmp_path / "o.npy", "Python objects")
    make_zip(tmp_path / "o.npz", [("x.npy", npy_bytes(objects, allow_pickle=True))])
    refused(tmp_path / "o.npz", "Python objects")
    (tmp_path / "model.pt").write_bytes(pickle.dumps({"w": 1}))
    assert "save the tensors as safetensors" in refused(tmp_path / "model.pt", "never read")
    (tmp_path / "plain").write_bytes(pickle.dumps(_Bomb(), 4))
    refused(tmp_path / "plain", "never read")
    make_zip(tmp_path / "model.bin", [("archive/data.pkl", pickle.dumps(1)), ("archive/data/0", b"abcd")])
    refused(tmp_path / "model.bin", "never read")
    (tmp_path / "old.pth").write_bytes(b"x" * 100)
    refused(tmp_path / "old.pth", "never read")


@pytest.mark.parametrize("name", ["../x.npy", "/etc/x.npy", "a/b.npy", "a\\b.npy", "..npy", "a..b.npy", "x\0.npy"])
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    info = zipfile.ZipInfo("placeholder.npy")
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w") as archive:
        info.filename = name
        archive.writestr(info, npy_bytes(np.float32([1])))
    refused(path, "must not hold")


def test_odd_entries(tmp_path: Path) -> None:
    good = npy_bytes(np.float32([1, 2]))
    refused(make_zip(tmp_path / "a.npz", [("readme.txt", b"hello")]), "not an array")
    with pytest.warns(UserWarning, match="Duplicate"):
        make_zip(tmp_path / "b.npz", [("x.npy", good), ("x.npy", good)])
    refused(tmp_path / "b.npz", "appears twice")
    refused(make_zip(tmp_path / "c.npz", [("x.npy", good)], zipfile.ZIP_BZIP2), "compression method 12 is not supported")
    refused(make_zip(tmp_path / "d.npz", [("x.npy", good + b"tail")]), "takes 8 bytes, the file holds 12")
    refused(make_zip(tmp_path / "e.npz", [("x.npy", b"not numpy at all")]), "not an .npy array")
    encrypted = bytearray(make_zip(tmp_path / "f.npz", [("x.npy", good)]).read_bytes())
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "f.npz").write_bytes(encrypted)
    refused(tmp_path / "f.npz", "encrypted")
    assert open_weights(make_zip(tmp_path / "g.npz", [])).names() == []


def test_compression_bombs(tmp_path: Path) -> None:
    zeros = np.zeros(70 << 18, np.float32)  # 70 MB
    np.savez_compressed(tmp_path / "bomb.npz", x=zeros)
    assert (tmp_path / "bomb.npz").stat().st_size < 200_000
    refused(tmp_path / "bomb.npz", "more than 200 times as many")
    several = {f"t{i}": np.zeros(9 << 18, np.float32) for i in range(8)}  # each small enough, together 72 MB
    np.savez_compressed(tmp_path / "many.npz", **several)
    refused(tmp_path / "many.npz", "more than 200 times as many")
    np.savez_compressed(tmp_path / "fine.npz", x=zeros[: 1 << 22])
    assert not open_weights(tmp_path / "fine.npz").read("x").any()  # 16 MB: any ratio
    np.savez(tmp_path / "big.npz", x=zeros)
    assert open_weights(tmp_path / "big.npz").info("x") == (f32, (70 << 18,))


def test_a_lie_about_the_size(tmp_path: Path) -> None:
    """The directory says how many bytes come out: no more are ever made, and fewer are an error."""
    np.savez_compressed(tmp_path / "w.npz", x=np.zeros(1000, np.float32))
    content = bytearray((tmp_path / "w.npz").read_bytes())
    place = content.index(b"PK\x01\x02") + 24
    struct.pack_into("<I", content, place, 1 << 30)
    (tmp_path / "w.npz").write_bytes(content)
    refused(tmp_path / "w.npz", "more than 200 times")
    struct.pack_into("<I", content, place, 128 + 4 * 999)
    (tmp_path / "w.npz").write_bytes(content)
    refused(tmp_path / "w.npz", "takes 4000 bytes, the file holds 3996")


def test_overlapping_entries(tmp_path: Path) -> None:
    """Many directory entries for the same compressed bytes."""
    path = make_zip(tmp_path / "w.npz", [("a.npy", npy_bytes(np.zeros(1 << 16, np.uint8)))])
    content = path.read_bytes()
    begin, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    entry = content[begin:end]
    copies = b"".join(entry.replace(b"a.npy", bytes([c]) + b".npy") for c in b"abcdefgh")
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 8, 8, len(copies), begin, 0)
    path.write_bytes(content[:begin] + copies + tail)
    refused(path, "entries overlap")


def test_checksum_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, x=np.arange(1000))
    content = bytearray(path.read_bytes())
    content[4000] ^= 1
    path.write_bytes(content)
    source = open_weights(path)
    with pytest.raises(GraphError, match="damaged zip file"):
        source.read("x")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", "'<c8' is not supported"),
        ("{'descr': '<U4', 'fortran_order': False, 'shape': (1,), }", "'<U4' is not supported"),
        ("{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }", "'<u4' is not supported"),
        ("{'descr': '|V2', 'fortran_order': False, 'shape': (4,), }", "bf16"),
        ("{'descr': '|f4', 'fortran_order': False, 'shape': (2,), }", "not supported"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", "structured"),
        ("{'descr': [('d', '>f2'), ('qs', '|u1', (16,))], 'fortran_order': False, 'shape': (1,), }", "structured"),
        ("{'descr': [('d', '<f2'), ('qs', '|u1', (16,))], 'fortran_order': False, 'shape': (1,), }", "takes 18 bytes, the file holds 8"),
        ("{'descr': '<f4', 'fortran_order': [1], 'shape': (2,), }", "bad .npy header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "takes 12 bytes, the file holds 8"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", "bad .npy header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296), }", "too large"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 65 + "), }", "65 dimensions"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }", "bad .npy header"),
        ("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,), }", "bad .npy header"),
        ("{'descr': '<f4', 'shape': (2,), }", "bad .npy header"),
        ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "bad .npy header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", "bad .npy header"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os'), }", "bad .npy header"),
        ("[" * 5000, "bad .npy header"),
        ("", "bad .npy header"),
    ],
)
def test_bad_npy_headers(tmp_path: Path, header: str, message: str) -> None:
    (tmp_path / "w.npy").write_bytes(raw_npy(header, bytes(8)))
    refused(tmp_path / "w.npy", message)
    refused(make_zip(tmp_path / "w.npz", [("x.npy", raw_npy(header, bytes(8)))]), message)


def test_bfloat16_saved_by_numpy_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(3, ml_dtypes.bfloat16))
    refused(tmp_path / "w.npy", "numpy stores bf16 as raw bytes")


def test_lengths_are_checked_first(tmp_path: Path) -> None:
    path = tmp_path / "w.npy"
    path.write_bytes(b"\x93NUMPY\x02\0" + struct.pack("<I", 2**32 - 1) + b"{}")
    refused(path, "header would take 4294967295")
    path.write_bytes(b"\x93NUMPY\x09\0\x02\0{}")
    refused(path, "version 9.0")
    for data in (b"", b"\x93NUMPY\x01", b"\x93NUMPY\x01\0\x05"):
        path.write_bytes(data)
        refused(path, "")


def test_format_is_told_by_content_then_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.float32([1]))
    (tmp_path / "x.npz").rename(tmp_path / "weights.safetensors")
    assert isinstance(open_weights(tmp_path / "weights.safetensors"), NpzFile)
    for name, data, message in [
        ("a.bin", b"hello there, nothing known", "known are: safetensors, GGUF, .npz, .npy"),
        ("a.gguf", b"GGUF\x03\0\0\0rest", "GGUF"),
        ("a.npz", b"hello there, nothing known", "damaged zip"),
        ("a.npy", b"hello there, nothing known", "not an .npy array"),
        ("a.safetensors", b"hello there, nothing known", "not a safetensors file"),
        ("empty.npz", b"", "damaged zip"),
    ]:
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, message)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_files_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    stream = io.BytesIO()
    (np.savez_compressed if data.draw(st.booleans()) else np.savez)(stream, a=np.arange(4), b=np.zeros((2, 2), np.float32))
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "w.npz"
    path.write_bytes(content)
    try:
        source = open_weights(path)
        for name in source.names():
            assert source.read(name).shape == source.info(name)[1]
    except GraphError as error:
        assert str(path) in str(error)


def test_arrays_as_a_source() -> None:
    given_array = np.arange(6, dtype=">f4").reshape(2, 3).T
    source = ArraySource({"w": given_array, "n": 3.5})
    assert isinstance(source, WeightSource)
    assert source.names() == ["w", "n"] and source.info("w") == (f32, (3, 2)) and source.info("n")[1] == ()
    same(source.read("w"), given_array)
    given_array[:] = 0
    assert source.read("w")[2, 1] == 5.0
    with pytest.raises(GraphError, match=r"no tensor 'W'(.|\n)*did you mean|no tensor 'W'"):
        source.read("W")
    with pytest.raises(GraphError, match="complex128"):
        ArraySource({"z": np.array(1j)})
    source.close()
