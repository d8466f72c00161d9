"""Arrays for results (``out=``): what is written where it is, what goes through a copy, and what is refused; on both devices."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import graph_opt
from ir.diagnostics import GraphError

f = np.float32
ONE = "graph @main(%x: f32[B, 3], %y: f32[B, 3]) -> f32[B, 3] {\n  %z = add(%x, %y)\n  return %z\n}\n"
TWO = "graph @main(%x: f32[B]) -> (f32[B], f32[2*B]) {\n  %n = neg(%x)\n  %c = concat(%x, %n, axis=0)\n  return %n, %c\n}\n"
CACHE = """graph @main(%c: f32[4] inout, %x: f32[1], %at: i64[]) -> f32[4] {
  %d = cache_update(%c, %x, %at, axis=0)
  %y = neg(%d)
  return %y
}
"""
X = np.arange(12, dtype=f).reshape(4, 3)


@pytest.fixture(params=["cpu", "reference"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def program(text: str, device: str) -> Any:
    return graph_opt.compile(graph_opt.parse(text), device=device)


def test_the_given_array_is_returned(device: str) -> None:
    call = program(ONE, device)
    out = np.full((4, 3), np.nan, f)
    assert call(X, X, out=out) is out
    np.testing.assert_array_equal(out, X * 2)
    assert call(y=X, x=X, out=out) is out and call(X, y=X, out=(out,)) is out and call(X, X, out=[out]) is out
    assert call(X, X, out=None) is not out
    assert call.run([X, X], out=out)[0] is out


def test_several_results(device: str) -> None:
    call = program(TWO, device)
    x = np.array([1, -2, 3], f)
    outs = (np.zeros(3, f), np.zeros(6, f))
    found = call(x, out=outs)
    assert type(found) is tuple and found[0] is outs[0] and found[1] is outs[1]
    assert outs[0].tolist() == [-1, 2, -3] and outs[1].tolist() == [1, -2, 3, -1, 2, -3]
    assert call(x, out=list(outs))[1] is outs[1]


@pytest.mark.parametrize("form", [
    lambda: np.full((4, 6), 7, f)[:, ::2],
    lambda: np.full((4, 3), 7, f)[::-1],
    lambda: np.full((3, 4), 7, f).T,
    lambda: np.full((4, 3), 7, ">f4"),
    lambda: np.ndarray((4, 3), f, bytearray(49), 1),
    lambda: np.full((4, 3), 7, f).view(type("Sub", (np.ndarray,), {})),
])  # fmt: skip
def test_any_layout(device: str, form: Any) -> None:
    out = form()
    assert program(ONE, device)(X, X, out=out) is out
    np.testing.assert_array_equal(np.asarray(out), X * 2)


def test_only_its_own_elements_are_written(device: str) -> None:
    base = np.full((6, 6), 7, f)
    program(ONE, device)(X, X, out=base[1:5, 1:4])
    assert (base == 7).sum() == 24
    np.testing.assert_array_equal(base[1:5, 1:4], X * 2)


def test_an_argument_may_be_the_output(device: str) -> None:
    """As in numpy: the result is what it would be with an array apart."""
    call = program("graph @main(%x: f32[B]) -> f32[B] {\n  %y = flip(%x, axes=[0])\n  return %y\n}\n", device)
    x = np.arange(9, dtype=f)
    assert call(x, out=x) is x and x.tolist() == list(range(8, -1, -1))
    base = np.arange(9, dtype=f)
    call(base[:8], out=base[1:])
    assert base.tolist() == [0, 7, 6, 5, 4, 3, 2, 1, 0]


def test_what_is_refused(device: str) -> None:
    one, two = program(ONE, device), program(TWO, device)
    readonly = np.zeros((4, 3), f)
    readonly.flags.writeable = False
    for out, words in [
        (np.zeros((4, 3)), r"%z is f32\[4, 3\], but the array is f64\[4, 3\]"),
        (np.zeros((3, 4), f), r"but the array is f32\[3, 4\]"),
        (np.zeros((4, 3, 1), f), r"but the array is f32\[4, 3, 1\]"),
        (np.zeros((4, 3), "c8"), "but the array is complex64"),
        (readonly, "read-only"),
        (np.lib.stride_tricks.as_strided(np.zeros(3, f), (4, 3), (0, 4)), "elements of the array for %z share memory"),
        (np.lib.stride_tricks.as_strided(np.zeros(12, f), (4, 3), (4, 4)), "elements of the array for %z share memory"),
        (7, "takes a numpy array, found int"),
        (np.ma.masked_array(np.zeros((4, 3), f)), "takes a numpy array, found MaskedArray"),
        ((), "has 1 result, found 0 arrays"),
        ((np.zeros((4, 3), f),) * 2, "has 1 result, found 2 arrays"),
    ]:
        with pytest.raises(GraphError, match=f"<string>:.*error: out: .*{words}"):
            one(X, X, out=out)
    base = np.zeros(9, f)
    with pytest.raises(GraphError, match="the arrays for %n and %c share memory"):
        two(X[0], out=(base[:3], base[2:8]))
    with pytest.raises(GraphError, match="has 2 results, found 1 array"):
        two(X[0], out=base)


def test_interleaved_arrays(device: str) -> None:
    """Memory between that of another result is not shared."""
    call = program(TWO, device)
    plain = call(X[0])
    base = np.zeros(12, f)
    found = call(X[0], out=(base[:6:2], base[1::2]))
    assert all(np.array_equal(a, b) for a, b in zip(found, plain, strict=True)) and np.array_equal(base[:6:2], plain[0])


def test_updated_arguments_are_no_outputs(device: str) -> None:
    call = program(CACHE, device)
    cache = np.zeros(4, f)
    with pytest.raises(GraphError, match=r"the array for %y shares memory with %c, which is inout"):
        call(cache, f([5]), np.array(0), out=cache)
    assert cache.tolist() == [0] * 4
    out = np.zeros(4, f)
    assert call(cache, f([5]), np.array(0), out=out) is out and out.tolist() == [-5, 0, 0, 0] and cache.tolist() == [5, 0, 0, 0]


def test_a_parameter_called_out(device: str) -> None:
    call = program("graph @main(%out: f32[2]) -> f32[2] {\n  %y = neg(%out)\n  return %y\n}\n", device)
    assert call(out=f([1, 2])).tolist() == [-1, -2] and call(f([1, 2])).tolist() == [-1, -2]


def test_a_graph_that_returns_what_it_gets(device: str) -> None:
    call = program("graph @main(%x: f32[2]) -> (f32[2], f32[2]) {\n  return %x, %x\n}\n", device)
    x, outs = f([1, 2]), (np.zeros(2, f), np.zeros(2, f))
    call(x, out=outs)
    assert [o.tolist() for o in outs] == [[1, 2]] * 2


def test_types_that_are_not_known_before(device: str) -> None:
    call = program("graph @main(%x: ?) {\n  %y = neg(%x)\n  return %y\n}\n", device)
    out = np.zeros(3)
    assert call(np.ones(3), out=out) is out and out.tolist() == [-1] * 3
    with pytest.raises(GraphError, match="out: "):
        call(np.ones(3, f), out=out)


def test_plain_outputs_stay_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = program(ONE, "cpu"), program(TWO, "cpu")
    out, outs = np.zeros((4, 3), f), (np.zeros(3, f), np.zeros(6, f))
    one(X, X), two(X[0])
    slow: list[int] = []
    for executable in (one, two):
        run = executable._program.run
        monkeypatch.setattr(executable._program, "run", lambda *a, run=run, **k: slow.append(1) or run(*a, **k))
    objects = [out, *outs, X, out.dtype, outs, "out"]
    before = [sys.getrefcount(o) for o in objects]
    for _ in range(1000):
        one(X, X, out=out)
        two(X[0], out=outs)
    assert not slow
    one(X, X, out=X[::-1])
    one(X, X, out=(out,))
    assert len(slow) == 2
    with pytest.raises(GraphError):
        one(X, X, out=out[:2])
    assert all(abs(sys.getrefcount(o) - b) < 20 for o, b in zip(objects, before, strict=True))


def test_empty_results(device: str) -> None:
    call = program(ONE, device)
    empty = np.zeros((0, 3), f)
    assert call(empty, empty, out=empty) is empty
