"""The compiled callable: what it takes itself, what it leaves to the slow path, and that it keeps count of references."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from native_text import ADD, ADD_GRAPH, NO_WORKSPACE, add_program, load, native, parallel_program, shapes
from test_updates import update_program

from codegen.llvm.jit import Code
from codegen.runtime import entry as entry_module
from codegen.runtime.entry import Entry, make_entry
from codegen.runtime.program import NativeProgram
from codegen.runtime.threads import Pool, shared_pool
from graph_opt.executable import NativeExecutable
from ir.diagnostics import GraphError
from ir.signature import match_arguments

f = np.float32


class Caller:
    """A program behind its entry; counts how often the slow path is taken."""

    def __init__(self, program: NativeProgram) -> None:
        self.program = program
        self.slow = self.failed = 0
        made = make_entry(program, self.run, self.fail, Code.from_text)
        assert made is not None
        self.entry: Entry = made
        self.call = made.callable

    def fail(self, state: bytes, dims: bytes) -> None:
        self.failed += 1
        raise self.program.error(state, dims)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.slow += 1
        results = self.program.run([np.asarray(a) for a in match_arguments(self.program.graph, args, kwargs)])
        self.entry.adopt()
        return results[0] if len(results) == 1 else tuple(results)


X = np.arange(12, dtype=f).reshape(4, 3)


def test_plain_arrays_take_the_fast_path() -> None:
    caller = Caller(add_program())
    for rows in (4, 0, 1, 3):
        z = caller.call(X[:rows], X[:rows])
        assert type(z) is np.ndarray and z.dtype == f and z.flags.owndata and z.flags.writeable and z.flags.c_contiguous
        np.testing.assert_array_equal(z, X[:rows] * 2)
    large = np.ones((10**5, 3), f)  # others may run meanwhile
    np.testing.assert_array_equal(caller.call(large, large), large * 2)
    assert caller.slow == 0


@pytest.mark.parametrize(
    "form",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        lambda a: a[::-1],
        lambda a: a.astype(">f4"),
        lambda a: np.ndarray(a.shape, f, b"\0" + a.tobytes(), 1),
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: a.view(type("Sub", (np.ndarray,), {})),
        lambda a: a.tolist() and memoryview(a),
    ],
)
def test_other_arrays_take_the_slow_path(form: Any) -> None:
    caller = Caller(add_program())
    given = form(X)
    np.testing.assert_array_equal(caller.call(X, given), X + np.asarray(given))
    np.testing.assert_array_equal(caller.call(given, X), X + np.asarray(given))
    assert caller.slow == 2


def test_names_and_counts() -> None:
    caller = Caller(add_program())
    np.testing.assert_array_equal(caller.call(X, y=X), X * 2)
    np.testing.assert_array_equal(caller.call(y=X, x=X), X * 2)
    assert caller.slow == 2
    for args, kwargs, words in [((), {}, "lacks inputs"), ((X,), {}, "lacks input %y"), ((X, X, X), {}, "takes 2"), ((X,), {"z": X}, "no input %z")]:
        with pytest.raises(GraphError, match=words):
            caller.call(*args, **kwargs)


@pytest.mark.parametrize(
    "args",
    [
        *((X, X[:3]), (X, X[:, :2]), (X[0], X), (X, X.astype(np.float64)), (X, None)),
        *((1, X), ("x", X), (X, np.float32(1)), (X[None], X), (X, X.astype(object))),
    ],
    ids=str,
)
def test_errors_come_from_the_slow_path(args: tuple[Any, ...]) -> None:
    caller = Caller(add_program())
    with pytest.raises(GraphError, match="%"):
        caller.call(*args)
    assert caller.slow == 1


def test_references_are_counted() -> None:
    caller = Caller(add_program())
    bad = np.zeros((4, 2), f)
    objects = [X, bad, X.dtype, np.ndarray, None, caller.call, caller.run]
    gc.collect()
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(1000):
        caller.call(X, X)
        with pytest.raises(GraphError):
            caller.call(X, bad)
        with pytest.raises(GraphError):
            caller.call(X)
        caller.call(X[::-1], y=X)
    gc.collect()
    after = [sys.getrefcount(o) for o in objects]
    assert all(abs(a - b) < 500 for a, b in zip(after, before, strict=True)), (before, after)
    z = caller.call(X, X)
    assert sys.getrefcount(z) == 2
    gone = weakref.ref(z)
    del z
    assert gone() is None


def test_memory_does_not_grow() -> None:
    import resource

    caller = Caller(add_program())
    large = np.ones((1000, 3), f)
    for _ in range(100):
        caller.call(large, large)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(20_000):
        caller.call(large, large)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB; 240 MB would have been returned


def copies(count: int, size: str, *dims: str) -> str:
    """The first argument (``size`` bytes, an expression of %d0) to ``count`` results; fails when its first byte is 7."""
    results = "".join(
        f"  %p{i} = getelementptr ptr, ptr %args, i64 {1 + i}\n  %r{i} = load ptr, ptr %p{i}\n"
        f"  call void @llvm.memcpy.p0.p0.i64(ptr %r{i}, ptr %a, i64 %bytes, i1 false)\n"
        for i in range(count)
    )
    return f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %a = load ptr, ptr %args
  %d0 = load i64, ptr %dims
  {size}
  %first = load i8, ptr %a
  %bad = icmp eq i8 %first, 7
  br i1 %bad, label %fail, label %fine
fail:
  store i32 1, ptr %state
  ret i32 1
fine:
{results}  ret i32 0
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{NO_WORKSPACE}{shapes(*dims * count)}
"""


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_any_number_of_results(count: int) -> None:
    types = ", ".join(["u8[N]"] * count)
    graph = f"graph @main(%x: u8[N]){f' -> ({types})' if count else ''} {{\n  return{' ' * bool(count)}{', '.join(['%x'] * count)}\n}}\n"
    caller = Caller(native(graph, copies(count, "%bytes = add i64 %d0, 0", "d0"), ["N"], {"return": "seven"}))
    x = np.arange(5, dtype=np.uint8)
    seven = np.full(5, 7, np.uint8)
    found = caller.call(x)
    found = (found,) if count == 1 else found
    assert isinstance(found, tuple) and len(found) == count
    for i, y in enumerate(found):
        np.testing.assert_array_equal(y, x)
        assert not any(np.shares_memory(y, z) for z in (x, *found[:i]))
    assert caller.slow == 0
    before = [sys.getrefcount(o) for o in (x, seven, x.dtype, ())]
    for _ in range(1000):
        with pytest.raises(GraphError, match="seven"):
            caller.call(seven)
        caller.call(x)
    assert caller.slow == 0 and caller.failed == 1000
    assert all(abs(sys.getrefcount(o) - b) < 20 for o, b in zip((x, seven, x.dtype, ()), before, strict=True))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("f64", np.float64(2)), ("f16", np.float16(2)), ("i64", np.int64(3)), ("i32", np.int32(3))),
        *(("i16", np.int16(3)), ("i8", np.int8(3)), ("bool", np.True_)),
    ],
)
def test_rank_zero(dtype: str, value: np.generic) -> None:
    graph = f"graph @main(%x: {dtype}[]) -> {dtype}[] {{\n  return %x\n}}\n"
    caller = Caller(native(graph, copies(1, f"%bytes = add i64 0, {value.nbytes}").replace("  %d0 = load i64, ptr %dims\n", ""), []))
    y = caller.call(np.array(value))
    assert type(y) is np.ndarray and y.shape == () and y.dtype == value.dtype and y == value and caller.slow == 0
    assert caller.call(value) == value and caller.slow == 1  # numpy's scalars are no arrays


def test_bf16() -> None:
    import ml_dtypes

    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    caller = Caller(native("graph @main(%x: bf16[N]) -> bf16[N] {\n  return %x\n}\n", copies(1, "%bytes = mul i64 %d0, 2", "d0"), ["N"]))
    y = caller.call(x)
    assert y.dtype == x.dtype and y.tobytes() == x.tobytes() and caller.slow == 0


def test_bytes_of_bool() -> None:
    caller = Caller(native("graph @main(%x: bool[N]) -> bool[N] {\n  return %x\n}\n", copies(1, "%bytes = add i64 %d0, 0", "d0"), ["N"]))
    for size, slow in [(0, 0), (1, 0), (4096, 0), (4097, 1)]:
        x = np.arange(size) % 3 == 0
        np.testing.assert_array_equal(caller.call(x), x)
        assert caller.slow == slow
    odd = np.uint8([0, 1, 2]).view(np.bool_)
    assert caller.call(odd).view(np.uint8).tolist() == [0, 1, 1] and caller.slow == 2


EXPRESSIONS = """graph @main(%x: u8[2*B+1], %y: u8[S, B-1], %z: u8[B floordiv 2, B mod 3, min(S, 4)]) -> u8[2*B+1]
  where 2 <= B <= 9, S mod 4 == 0, B < S + 3 {
  return %x
}
"""


@pytest.mark.parametrize("b", range(12))
@pytest.mark.parametrize("s", [0, 2, 4, 8, 12])
def test_sizes_that_are_expressions(b: int, s: int) -> None:
    code = copies(1, "%twice = mul i64 %d0, 2\n  %bytes = add i64 %twice, 1", "d0")
    code = code.replace("i64 1\n  %r0", "i64 3\n  %r0")
    caller = Caller(native(EXPRESSIONS, code, ["B", "S"]))
    x, y, z = np.ones(2 * b + 1, np.uint8), np.ones((s, max(b - 1, 0)), np.uint8), np.ones((b // 2, b % 3, min(s, 4)), np.uint8)
    if 2 <= b <= 9 and s % 4 == 0 and b < s + 3:
        np.testing.assert_array_equal(caller.call(x, y, z), x)
        assert caller.slow == 0
        wrong = [(x[:-1], y, z), (np.ones(2 * b + 3, np.uint8), y, z), (x, y, np.ones((b // 2 + 1, b % 3, min(s, 4)), np.uint8))]
        for arrays in wrong:
            with pytest.raises(GraphError):
                caller.call(*arrays)
        assert caller.slow == len(wrong)
    else:
        with pytest.raises(GraphError, match=r"wants|gives|but the array"):
            caller.call(x, y, z)


@pytest.mark.parametrize("text", ["%x: u8[B*S], %y: u8[B*S]", "%x: u8[B floordiv 2]", "%x: u8[?]"])
def test_sizes_that_it_does_not_take(text: str) -> None:
    graph = f"graph @main({text}) -> u8[1] {{\n  %c = constant([1]) : u8[1]\n  return %c\n}}\n"
    program = native(graph, copies(1, "%bytes = add i64 0, 1", "1"), ["B", "S"])
    assert make_entry(program, print, print, Code.from_text) is None


def test_sizes_too_large_for_it() -> None:
    """Huge dimensions of empty arrays go the slow way; a product of four named ones might not fit in 64 bits."""
    caller = Caller(native(ADD_GRAPH.replace("B, 3", "B, C"), ADD, ["B", "C"]))
    empty = np.zeros((0, 2**40), f)
    assert caller.call(empty, empty).shape == (0, 2**40) and caller.slow == 1
    graph = "graph @main(%x: u8[A, B, C, D]) -> u8[A*B*C*D] {\n  %y = reshape(%x, shape=[-1])\n  return %y\n}\n"
    program = native(graph, copies(1, "%bytes = add i64 0, 1", "1"), ["A", "B", "C", "D"])
    assert make_entry(program, print, print, Code.from_text) is None


def test_a_result_too_large_for_memory() -> None:
    graph = "graph @main(%x: u8[B]) -> u8[B, B] {\n  %t = unsqueeze(%x, axes=[1])\n  %y = expand(%t, shape=[B, B])\n  return %y\n}\n"
    caller = Caller(native(graph, copies(1, "%bytes = add i64 %d0, 0", "d0", "d0"), ["B"]))
    caller.call(np.ones(10, np.uint8))
    assert caller.slow == 0
    with pytest.raises(GraphError, match="the limit is"):
        caller.call(np.ones(10**6, np.uint8))


# -- workspaces, threads, lifetime -------------------------------------------------------------------------------------

WORKSPACE_GRAPH = "graph @main(%x: i64[N]) -> i64[N] {\n  %y = add(%x, %x)\n  return %y\n}\n"


def test_the_workspace_is_taken_over_from_the_slow_path() -> None:
    caller = Caller(parallel_program())
    for size, slow in [(100, 1), (100, 1), (50, 1), (0, 1), (125, 1), (126, 2), (10**5, 3), (10**5, 3)]:
        x = np.arange(size)
        np.testing.assert_array_equal(caller.call(x), x + x[::-1])
        assert caller.slow == slow


def test_a_workspace_in_use_is_left_alone() -> None:
    """Callers at the same time, on arrays so large that the lock is given up: each gets its own answer."""
    caller = Caller(parallel_program())
    caller.call(np.arange(50_000))
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).integers(0, 99, 50_000)
        wanted = x + x[::-1]
        for _ in range(100):
            if not np.array_equal(caller.call(x), wanted):
                wrong.append(f"caller {seed}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong


def test_no_entry_for_what_it_can_not_do() -> None:
    graph = "graph @main(%x: f32[B, 3], %y: f32[B, 3]) -> f32[B, 3] {\n  print(%x)\n  return %y\n}\n"
    for program in (native(graph, ADD, ["B"], {"print": ""}), add_program(poison=True)):
        assert make_entry(program, print, print, Code.from_text) is None


def test_an_unknown_numpy_has_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "find_interface", lambda: None)
    program = add_program()
    assert make_entry(program, print, print, Code.from_text) is None
    executable = NativeExecutable(load(ADD_GRAPH), program.graph, program, Code.from_text)
    np.testing.assert_array_equal(executable(X, X), X * 2)


def test_the_executable_is_freed_with_its_code() -> None:
    program = add_program()
    executable = NativeExecutable(load(ADD_GRAPH), program.graph, program, Code.from_text)
    assert executable.input_names == ["x", "y"] and str(executable).startswith("graph @main")
    np.testing.assert_array_equal(executable(X, X), executable.run([X, X])[0])
    np.testing.assert_array_equal(executable(X, X), X * 2)
    gone, call = weakref.ref(executable), executable.__call__
    del executable, program
    gc.collect()
    assert gone() is not None  # the callable holds on to it
    np.testing.assert_array_equal(call(X, y=X), X * 2)
    result = call(X, X)
    del call
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(result, X * 2)


def test_many_executables_come_and_go() -> None:
    for _ in range(20):
        program = add_program()
        executable = NativeExecutable(load(ADD_GRAPH), program.graph, program, Code.from_text)
        np.testing.assert_array_equal(executable(X, X), X * 2)
        del executable, program
        gc.collect()


def test_slow_paths_that_raise_anything() -> None:
    class Odd(Exception):
        pass

    def slow(*args: Any, **kwargs: Any) -> Any:
        raise Odd(len(args), sorted(kwargs))

    made = make_entry(add_program(), slow, slow, Code.from_text)
    assert made is not None
    with pytest.raises(Odd) as caught:
        made.callable(X, z=1)
    assert caught.value.args == (1, ["z"])
    assert made.callable(X, X)[0, 1] == 2


# -- programs that write to arguments ----------------------------------------------------------------------------------


def test_inout_arrays_that_lie_apart() -> None:
    caller = Caller(update_program())
    cache, x = np.zeros(8, f), f([5])
    address = cache.ctypes.data
    for p in range(8):
        x[:] = p
        assert caller.call(cache, x, np.array(p)) == p
    assert cache.tolist() == list(range(8)) and cache.ctypes.data == address and caller.slow == 0


@pytest.mark.parametrize(("value", "slow"), [(slice(0, 1), True), (slice(7, 8), True), (slice(8, 9), False)])
def test_inout_arrays_that_overlap(value: slice, slow: bool) -> None:
    caller = Caller(update_program())
    base = np.arange(9, dtype=f)
    before = base[value][0]
    assert caller.call(base[:8], base[value], np.array(7)) == before
    assert base[7] == before and caller.slow == slow


def test_inout_arrays_that_can_not_be_written() -> None:
    caller = Caller(update_program())
    cache = np.zeros(8, f)
    caller.call(cache[::2], f([5]), np.array(1))
    assert cache[2] == 5 and caller.slow == 1
    cache.setflags(write=False)
    with pytest.raises(GraphError, match="read-only"):
        caller.call(cache, f([5]), np.array(1))
    assert caller.slow == 2


def test_a_failed_run_is_not_run_again() -> None:
    """It would update its argument twice."""
    graph = "graph @main(%c: i64[1] inout) -> i64[1] {\n  %y = neg(%c)\n  return %y\n}\n"
    code = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
  %c = load ptr, ptr %args
  %v = load i64, ptr %c
  %w = add i64 %v, 1
  store i64 %w, ptr %c
  store i32 1, ptr %state
  %place = getelementptr i64, ptr %state, i64 1
  store i64 %w, ptr %place
  ret i32 0
}}
{NO_WORKSPACE}{shapes("1")}
"""
    caller = Caller(native(graph, code, [], {"neg": "counted to {0}"}))
    c = np.zeros(1, np.int64)
    before = sys.getrefcount(c)
    for n in range(1, 1000):
        with pytest.raises(GraphError, match=f":2:8: error: neg: counted to {n}\n"):
            caller.call(c)
    assert caller.slow == 0 and caller.failed == 999 and sys.getrefcount(c) == before


# -- threads -----------------------------------------------------------------------------------------------------------


def the_pool() -> Pool:
    return shared_pool(Code.from_text)


def test_runs_on_threads() -> None:
    caller = Caller(parallel_program(threads=2, pool=the_pool))
    x = np.arange(1000)
    for _ in range(300):
        np.testing.assert_array_equal(caller.call(x), x + x[::-1])
    assert caller.slow == 1  # starts the workers, brings the workspace


def test_callers_with_threads_at_the_same_time() -> None:
    callers = [Caller(parallel_program(threads=2, pool=the_pool)) for _ in range(2)]
    wrong: list[str] = []

    def work(seed: int) -> None:
        for i in range(200):
            x = np.random.default_rng(i).integers(0, 99, 1 + (37 * i * seed) % 3000)
            if not np.array_equal(callers[(seed + i) % 2].call(x), x + x[::-1]):
                wrong.append(f"caller {seed}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


def test_a_forked_child() -> None:
    caller = Caller(parallel_program(threads=2, pool=the_pool))
    x = np.arange(100)
    for _ in range(3):
        caller.call(x)
    caller.entry.busy.value = 1  # as if another thread were in the middle of a run
    child = os.fork()
    if child == 0:
        status = 1
        try:
            slow = caller.slow
            same = all(np.array_equal(caller.call(x), x + x[::-1]) for _ in range(5))
            status = 0 if same and caller.slow == slow + 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    slow = caller.slow
    np.testing.assert_array_equal(caller.call(x), x + x[::-1])
    assert caller.slow == slow + 1


def test_numbers_take_the_fast_path_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    import graph_opt

    text = "graph @main(%p: i64[], %c: i64[T] inout) -> i64[T] {\n  %n = reshape(%p, shape=[1])\n"
    text += "  %d = cache_update(%c, %n, %p, axis=0)\n  return %d\n}\n"
    program = graph_opt.compile(graph_opt.parse(text))
    cache = np.zeros(4, np.int64)
    program(np.array(0), cache)  # brings the workspace

    def slow(*args: object, **kwargs: object) -> None:
        raise AssertionError("the slow path")

    monkeypatch.setattr(NativeExecutable, "run", slow)
    for position in (np.int64(1), 2):
        assert program(position, cache)[position] == position
    assert cache.tolist() == [0, 1, 2, 0]
    monkeypatch.undo()
    with pytest.raises(GraphError, match=r"%p is i64\[\], but the array is f64\[\]"):
        program(1.0, cache)
    with pytest.raises(GraphError, match="%c is inout: it takes a numpy array, found int"):
        program(1, 5)
    with pytest.raises(GraphError, match="past the capacity of 4"):
        program(np.int64(4), cache)
