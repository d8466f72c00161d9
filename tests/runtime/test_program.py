"""What a user's arrays can look like, and what comes back."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import pytest
from native_text import ADD_GRAPH, NO_WORKSPACE, add_program, interpret, native, shapes

from ir.diagnostics import GraphError

f = np.float32
X = np.arange(12, dtype=f).reshape(4, 3)


class Subclass(np.ndarray):
    """An array of another type."""


def forms() -> dict[str, np.ndarray]:
    unaligned = np.zeros(X.nbytes + 1, np.uint8)[1:]
    unaligned[:] = np.frombuffer(X.tobytes(), np.uint8)
    read_only = X.copy()
    read_only.setflags(write=False)
    return {
        "plain": X.copy(),
        "fortran": np.asfortranarray(X),
        "every second column": np.repeat(X, 2, axis=1)[:, ::2],
        "negative strides": X[::-1, ::-1].copy()[::-1, ::-1],
        "transposed": X.T.copy().T,
        "big-endian": X.astype(">f4"),
        "unaligned": unaligned.view(f).reshape(X.shape),
        "read-only": read_only,
        "from bytes": np.frombuffer(X.tobytes(), f).reshape(X.shape),
        "subclass": X.view(Subclass),
        "broadcast": np.broadcast_to(X[1], X.shape),
        "window": np.lib.stride_tricks.as_strided(X, (4, 3), (4, 4)),
        "no rows": X[:0],
        "one row": X[1:2, :],
    }


@pytest.mark.parametrize("form", forms())
def test_every_memory_layout(form: str) -> None:
    given = forms()[form]
    before = np.array(given)
    (z,) = add_program().run([given, given])
    (wanted,) = interpret(ADD_GRAPH, given, given)
    assert type(z) is np.ndarray and z.dtype == f and z.flags.c_contiguous and z.flags.writeable
    np.testing.assert_array_equal(z, wanted)
    np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [X],
        [X, X, X],
        [X, X[:3]],
        [X, X[0]],
        [X, X.astype(np.float64)],
        [X, X.astype(np.int32)],
        [X, X.astype(object)],
        [X, X.astype(np.complex64)],
        [X, np.array("text")],
        [X[:, :2], X[:, :2]],
        [X[None], X],
        [X, X.view(np.dtype([("re", f)]))],
    ],
    ids=str,
)
def test_arrays_that_do_not_fit(arrays: list[np.ndarray]) -> None:
    with pytest.raises(GraphError) as wanted:
        interpret(ADD_GRAPH, *arrays)
    with pytest.raises(GraphError) as found:
        add_program().run(arrays)
    assert str(found.value) == str(wanted.value)


def test_conditions() -> None:
    graph = ADD_GRAPH.replace("-> f32[B, 3] {", "-> f32[B, 3]\n  where 2 <= B <= 5, B mod 2 == 0 {")
    program = native(graph, add_program().text.text, ["B"])
    assert program.run([X, X])[0].shape == (4, 3)
    for rows in (1, 3, 6):
        wide = np.ones((rows, 3), f)
        with pytest.raises(GraphError) as wanted:
            interpret(graph, wide, wide)
        with pytest.raises(GraphError) as found:
            program.run([wide, wide])
        assert str(found.value) == str(wanted.value)


def test_results_are_new_memory() -> None:
    program = add_program()
    first = program.run([X, X])[0]
    kept = first.copy()
    second = program.run([X, X * 2])[0]
    assert not np.shares_memory(first, second) and not np.shares_memory(first, X)
    del program
    gc.collect()
    np.testing.assert_array_equal(first, kept)
    first[:] = 0


COPY = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %a = load ptr, ptr %args
  %pc = getelementptr ptr, ptr %args, i64 1
  %c = load ptr, ptr %pc
  call void @llvm.memcpy.p0.p0.i64(ptr %c, ptr %a, i64 BYTES, i1 false)
  ret i32 0
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{NO_WORKSPACE}
"""


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f64", np.float64(1.5)),
        ("f32", f(-0.0)),
        ("f16", np.float16(65504)),
        ("i64", np.int64(-(2**63))),
        ("i32", np.int32(-7)),
        ("i16", np.int16(300)),
        ("i8", np.int8(-128)),
        ("u8", np.uint8(255)),
        ("bool", np.bool_(True)),
    ],
)
def test_rank_zero_and_every_element_type(dtype: str, value: np.generic) -> None:
    graph = f"graph @main(%x: {dtype}[]) -> {dtype}[] {{\n  return %x\n}}\n"
    program = native(graph, COPY.replace("BYTES", str(value.nbytes)) + shapes(), [])
    (y,) = program.run([np.asarray(value)])
    assert type(y) is np.ndarray and y.shape == () and y.dtype == value.dtype and y.tobytes() == value.tobytes()
    (swapped,) = program.run([np.asarray(value).astype(value.dtype.newbyteorder())])
    assert swapped.tobytes() == value.tobytes()


def test_bf16() -> None:
    import ml_dtypes

    x = np.array([1.5, -2, np.nan], ml_dtypes.bfloat16)
    program = native("graph @main(%x: bf16[3]) -> bf16[3] {\n  return %x\n}\n", COPY.replace("BYTES", "6") + shapes("3"), [])
    for given in (x, np.repeat(x, 2)[::2]):
        (y,) = program.run([given])
        assert y.dtype == x.dtype and y.tobytes() == x.tobytes()


@pytest.mark.parametrize("step", [1, 2])
def test_bytes_of_bool_are_normalised(step: int) -> None:
    raw = np.repeat(np.uint8([0, 1, 2, 255, 128, 0]), step)
    program = native("graph @main(%x: bool[6]) -> bool[6] {\n  return %x\n}\n", COPY.replace("BYTES", "6") + shapes("6"), [])
    (y,) = program.run([raw.view(np.bool_)[::step]])
    assert y.view(np.uint8).tolist() == [0, 1, 1, 1, 1, 0]


def test_nothing_outside_an_array_is_touched() -> None:
    """Arrays that end where the process may read no further."""
    size = mmap.PAGESIZE
    import ctypes

    memory = mmap.mmap(-1, 2 * size)
    base = np.frombuffer(memory, np.uint8).ctypes.data
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(size), 0) == 0
    x = np.frombuffer(memory, f, 12, offset=size - 48).reshape(4, 3)
    x[:] = X
    np.testing.assert_array_equal(add_program().run([x, x])[0], X + X)


def test_memory_that_is_not_there() -> None:
    graph = "graph @main(%x: f32[B]) -> f32[B, B] {\n  %t = unsqueeze(%x, axes=[1])\n  %y = expand(%t, shape=[B, B])\n  return %y\n}\n"
    program = native(graph, COPY.replace("BYTES", "0") + shapes("d0", "d0"), ["B"])
    large = np.broadcast_to(f(1), (10**7,))
    with pytest.raises(GraphError) as wanted:
        interpret(graph, large)
    with pytest.raises(GraphError) as found:
        program.run([large])
    assert str(found.value) == str(wanted.value) and "the limit is" in str(found.value)
    graph = "graph @main(%y: u8[], %x: u8[B]) -> u8[] {\n  return %y\n}\n"
    with pytest.raises(MemoryError, match=f"a copy of an argument needs {2**50} bytes, the limit is"):
        native(graph, COPY.replace("BYTES", "1") + shapes(), ["B"]).run([np.array(1, np.uint8), np.broadcast_to(np.uint8(1), (2**50,))])


# -- workspaces ---------------------------------------------------------------------------------------------------------

THROUGH_WORKSPACE = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %a = load ptr, ptr %args
  %pc = getelementptr ptr, ptr %args, i64 1
  %c = load ptr, ptr %pc
  %n = load i64, ptr %dims
  %address = ptrtoint ptr %workspace to i64
  %rest = urem i64 %address, 64
  %aligned = icmp eq i64 %rest, 0
  br i1 %aligned, label %fine, label %bad
fine:
  call void @llvm.memcpy.p0.p0.i64(ptr %workspace, ptr %a, i64 %n, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %c, ptr %workspace, i64 %n, i1 false)
  ret i32 0
bad:
  ret i32 1
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @f_workspace(ptr %dims) {{
  %n = load i64, ptr %dims
  ret i64 %n
}}
{shapes("d0")}
"""
BYTES = "graph @main(%x: u8[N]) -> u8[N] {\n  return %x\n}\n"


def test_the_workspace_grows_and_stays() -> None:
    program = native(BYTES, THROUGH_WORKSPACE, ["N"])
    for size in (0, 1, 100, 10**6, 7, 10**6):
        x = (np.arange(size) % 251).astype(np.uint8)
        np.testing.assert_array_equal(program.run([x])[0], x)
    assert program.workspace_size() == 10**6
    for size in range(200):  # more plans than are kept
        assert program.run([np.ones(size, np.uint8)])[0].sum() == size


def test_a_workspace_too_large() -> None:
    code = THROUGH_WORKSPACE.replace("  ret i64 %n\n", "  ret i64 -1\n")
    with pytest.raises(GraphError, match="needs a workspace of more than the limit"):
        native(BYTES, code, ["N"]).run([np.ones(3, np.uint8)])
    code = THROUGH_WORKSPACE.replace("  ret i64 %n\n", f"  ret i64 {2**55}\n")
    with pytest.raises(GraphError, match=f"needs a workspace of {2**55} bytes, the limit is"):
        native(BYTES, code, ["N"]).run([np.ones(3, np.uint8)])


def test_poison_shows_what_was_never_written() -> None:
    code = THROUGH_WORKSPACE.replace("  call void @llvm.memcpy.p0.p0.i64(ptr %workspace, ptr %a, i64 %n, i1 false)\n", "")
    program = native(BYTES, code, ["N"], poison=True)
    assert program.run([np.ones(5, np.uint8)])[0].tolist() == [255] * 5


def test_stored_tensors_are_aligned_and_normalised() -> None:
    graph = "graph @main() -> u8[8] {\n  %c = constant([1, 2, 3, 4, 5, 6, 7, 8]) : u8[8]\n  return %c\n}\n"
    code = COPY.replace("%a = load ptr, ptr %args", "%pa = getelementptr ptr, ptr %args, i64 1\n  %a = load ptr, ptr %pa")
    code = code.replace("%pc = getelementptr ptr, ptr %args, i64 1\n  %c = load ptr, ptr %pc", "%c = load ptr, ptr %args")
    for stored in (np.arange(9, dtype=np.uint8)[1:], np.arange(16, dtype=np.uint8)[::2]):
        program = native(graph, code.replace("BYTES", "8") + shapes("8"), [], stored=[stored])
        assert program.stored[0].ctypes.data % 64 == 0
        np.testing.assert_array_equal(program.run([])[0], stored)
    program = native(graph, code.replace("BYTES", "8") + shapes("8"), [], stored=[np.uint8([0, 2] * 4).view(np.bool_)])
    assert program.run([])[0].tolist() == [0, 1] * 4


# -- errors and callbacks ----------------------------------------------------------------------------------------------

FAIL = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %a = load ptr, ptr %args
  %v = load i32, ptr %a
  %bad = icmp sgt i32 %v, 9
  br i1 %bad, label %fail, label %fine
fail:
  store i32 1, ptr %state
  %p0 = getelementptr i8, ptr %state, i64 8
  %w = sext i32 %v to i64
  store i64 %w, ptr %p0
  %p1 = getelementptr i8, ptr %state, i64 16
  store i64 -5, ptr %p1
  ret i32 1
fine:
  %pc = getelementptr ptr, ptr %args, i64 1
  %c = load ptr, ptr %pc
  store i32 %v, ptr %c
  ret i32 0
}}
{NO_WORKSPACE}{shapes()}
"""
FAILING = "graph @main(%x: i32[]) -> i32[] {\n  %y = neg(%x)\n  return %y\n}\n"


def test_an_error_is_told_with_its_place_and_numbers() -> None:
    program = native(FAILING, FAIL, [], {"neg": "index {0} is outside, {1} is not"})
    assert program.run([np.int32(3)])[0] == 3
    for value in (10, 11):
        with pytest.raises(GraphError) as caught:
            program.run([np.int32(value)])
        assert str(caught.value).startswith(f"<string>:2:8: error: neg: index {value} is outside, -5 is not\n")
    assert program.run([np.int32(4)])[0] == 4


PRINT = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %a = load ptr, ptr %args
  %place = getelementptr i8, ptr %state, i64 192
  %host = load ptr, ptr %place
  %status = call i32 %host(i64 0, ptr %a, ptr %dims)
  %bad = icmp ne i32 %status, 0
  br i1 %bad, label %fail, label %fine
fail:
  store i32 1, ptr %state
  ret i32 1
fine:
  ret i32 0
}}
{NO_WORKSPACE}{shapes()}
"""
PRINTING = 'graph @main(%x: f32[B]) {\n  print(%x, label="x")\n  return\n}\n'


def test_print_calls_back(capsys: pytest.CaptureFixture[str]) -> None:
    program = native(PRINTING, PRINT, ["B"], {"print": ""})
    for x in (f([1, 2.5]), np.ones(2000, f), f([])):
        assert program.run([x]) == []
        found = capsys.readouterr().out
        interpret(PRINTING, x)
        assert found == capsys.readouterr().out


def test_what_a_callback_raises_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    class Closed:
        def write(self, text: str) -> int:
            raise BrokenPipeError("closed")

        def flush(self) -> None:
            pass

    program = native(PRINTING, PRINT, ["B"], {"print": ""})
    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):
        program.run([f([1])])
