"""Arguments that a run writes: updated in place, through copies, and where they overlap others."""

from __future__ import annotations

import numpy as np
import pytest
from native_text import NO_WORKSPACE, interpret, native, shapes

from codegen.runtime.program import NativeProgram
from ir.diagnostics import GraphError

f = np.float32

UPDATE_GRAPH = """graph @main(%c: f32[T] inout, %x: f32[1], %p: i64[]) -> f32[1] {
  %u = cache_update(%c, %x, %p, axis=0)
  return %x
}
"""

# c[p] = x[0] + 100 when p is in range; then the result is x[0], read after the update
UPDATE = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %c = load ptr, ptr %args
  %px = getelementptr ptr, ptr %args, i64 1
  %x = load ptr, ptr %px
  %pp = getelementptr ptr, ptr %args, i64 2
  %p = load ptr, ptr %pp
  %pr = getelementptr ptr, ptr %args, i64 3
  %r = load ptr, ptr %pr
  %at = load i64, ptr %p
  %n = load i64, ptr %dims
  %inside = icmp ult i64 %at, %n
  br i1 %inside, label %fine, label %fail
fail:
  store i32 1, ptr %state
  ret i32 1
fine:
  %v = load float, ptr %x
  %place = getelementptr float, ptr %c, i64 %at
  store float %v, ptr %place
  %w = load float, ptr %x
  store float %w, ptr %r
  ret i32 0
}}
{NO_WORKSPACE}{shapes("1")}
"""


def update_program() -> NativeProgram:
    return native(UPDATE_GRAPH, UPDATE, ["T"], {"cache_update": "out of range"})


def check_like_interpreter(make: object) -> None:
    """``make`` gives the three arguments, views of one base array; the base is the same afterwards, and so are the results."""
    bases, results = [], []
    for run in (lambda *a: update_program().run(list(a)), lambda *a: interpret(UPDATE_GRAPH, *a)):
        base, arguments = make()  # type: ignore[operator]
        try:
            results.append([r.tolist() for r in run(*arguments)])
        except GraphError as error:
            results.append([str(error)])
        bases.append(base)
    np.testing.assert_array_equal(bases[0], bases[1])
    assert results[0] == results[1]


def case(name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    base = np.arange(8, dtype=f)
    p = np.array(2)
    x = f([9])
    if name == "direct":
        return base, [base, x, p]
    if name == "every second":
        return base, [base[::2], x, p]
    if name == "backwards":
        return base, [base[::-1], x, p]
    if name == "big-endian":
        base = base.astype(">f4")
        return base, [base, x, p]
    if name == "unaligned":
        raw = np.zeros(33, np.uint8)
        return raw, [raw[1:].view(f), x, p]
    if name == "overlaps the value":
        return base, [base, base[2:3], p]
    if name == "overlaps the value elsewhere":
        return base, [base, base[5:6], p]
    if name == "strided, overlaps":
        return base, [base[::2], base[4:5], p]
    if name == "beside the value":
        return base, [base[:4], base[4:5], p]
    if name == "overlaps the position":
        base = np.zeros(4, np.int64)
        base[1] = 1
        return base, [base.view(f), x, base[1:2].reshape(())]
    if name == "read-only":
        base.setflags(write=False)
        return base, [base, x, p]
    if name == "broadcast":
        return base, [np.broadcast_to(base[:1], (8,)), x, p]
    if name == "window":
        return base, [np.lib.stride_tricks.as_strided(base, (4, ), (2, )), x, p]
    if name == "fails":
        return base, [base, x, np.array(8)]
    if name == "fails, strided":
        return base, [base[::2], x, np.array(7)]
    assert name == "empty"
    return base, [base[:0], x, np.array(0)]


CASES = [
    *("direct", "every second", "backwards", "big-endian", "unaligned", "read-only", "broadcast", "window"),
    *("overlaps the value", "overlaps the value elsewhere", "strided, overlaps", "beside the value", "overlaps the position"),
]


@pytest.mark.parametrize("name", CASES)
def test_like_the_interpreter(name: str) -> None:
    check_like_interpreter(lambda: case(name))


@pytest.mark.parametrize("name", ["fails", "fails, strided", "empty"])
def test_a_failed_run_changes_nothing(name: str) -> None:
    base, arguments = case(name)
    before = base.copy()
    with pytest.raises(GraphError, match="cache_update: out of range"):
        update_program().run(arguments)
    np.testing.assert_array_equal(base, before)


def test_what_is_direct_is_not_copied() -> None:
    """A large array that is updated in one place stays where it is."""
    program = update_program()
    base = np.zeros(1000, f)
    view = base[3:]
    program.run([view, f([5]), np.array(0)])
    assert base[3] == 5 and np.count_nonzero(base) == 1


# -- buffers -----------------------------------------------------------------------------------------------------------

BUFFER_GRAPH = """graph @main(%a: memref<f32[N]>, %c: memref<f32[N]>) {
  scf.for(%i = 0 to N) {
    %v = memref.load(%a[%i]) : f32
    memref.store(%v, %c[%i])
    yield
  }
  return
}
"""

BUFFER = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %a = load ptr, ptr %args
  %pc = getelementptr ptr, ptr %args, i64 1
  %c = load ptr, ptr %pc
  %n = load i64, ptr %dims
  %bytes = mul i64 %n, 4
  call void @llvm.memcpy.p0.p0.i64(ptr %c, ptr %a, i64 %bytes, i1 false)
  ret i32 0
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{NO_WORKSPACE}{shapes()}
"""


@pytest.mark.parametrize("layout", ["direct", "strided", "backwards", "big-endian"])
def test_buffers_are_the_callers_memory(layout: str) -> None:
    base = np.zeros(12, ">f4" if layout == "big-endian" else f)
    target = {"direct": base[:6], "strided": base[::2], "backwards": base[5::-1], "big-endian": base[:6]}[layout]
    wanted = base.copy()
    source = np.arange(6, dtype=f)
    assert native(BUFFER_GRAPH, BUFFER, ["N"]).run([source, target]) == []
    {"direct": wanted[:6], "strided": wanted[::2], "backwards": wanted[5::-1], "big-endian": wanted[:6]}[layout][:] = source
    np.testing.assert_array_equal(base, wanted)


def test_buffers_that_can_not_be_written() -> None:
    program = native(BUFFER_GRAPH, BUFFER, ["N"])
    base = np.zeros(8, f)
    read_only = base[:4].copy()
    read_only.setflags(write=False)
    program.run([read_only, base[:4]])
    with pytest.raises(GraphError) as wanted:
        interpret(BUFFER_GRAPH, base[:4], read_only)
    with pytest.raises(GraphError) as found:
        program.run([base[:4], read_only])
    assert str(found.value) == str(wanted.value)
    for arrays, words in [
        ([base[:4], base[2:6]], "shares memory with that of %a"),
        ([base[:4], base[:4]], "shares memory with that of %a"),
        ([base[:4], np.lib.stride_tricks.as_strided(base, (4,), (0,))], "elements of the array share memory"),
    ]:
        with pytest.raises(GraphError, match=words):
            program.run(arrays)
    program.run([base[::2], base[1::2]])
