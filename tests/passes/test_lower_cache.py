"""lower-to-linalg: updates of inout parameters happen in their memory, and older versions stay what they were."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_checks import assert_same, assert_same_error, error_of, lowered, run
from pass_checks import apply, load, operations

from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import DTYPES
from ir.verifier import verify_module
from passes.infra.verify_exec import compare_modules


def copies(programs: tuple[Module, Module]) -> int:
    """How often a whole tensor is taken out of memory."""
    return operations(programs[1]).count("memref.to_tensor")


def program(body: str, results: str, cache: str = "f32[T, 2]", new: str = "f32[N, 2]") -> str:
    lines = "".join(f"  {line.strip()}\n" for line in body.strip().splitlines())
    return f"graph @main(%c: {cache} inout, %a: {new}, %b: {new}, %p: i64[], %q: i64[]) {{\n{lines}  return {results}\n}}\n"


def arrays(capacity: int = 6, count: int = 2, first: int = 1, second: int = 3) -> list[np.ndarray]:
    cache = np.arange(capacity * 2, dtype=np.float32).reshape(capacity, 2)
    new = 100 + np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    return [cache, new, -new, np.array(first), np.array(second)]


ONE = "%u = cache_update(%c, %a, %p)"
TWO = f"{ONE}\n%v = cache_update(%u, %b, %q)"


@pytest.mark.parametrize(
    ("body", "results", "taken"),
    [
        (ONE, "", 0),
        (ONE, "%u", 1),
        (ONE, "%c", 1),
        (ONE, "%u, %c", 2),
        (TWO, "", 0),
        (TWO, "%v", 1),
        (TWO, "%u", 1),
        (TWO, "%c, %u, %v", 3),
        (f"{ONE}\n%x = exp(%u)\n%v = cache_update(%u, %b, %q)", "%x", 1),  # read before it is overwritten
        (f"{TWO}\n%x = exp(%u)", "%x, %v", 3),  # read afterwards
        (f"{TWO}\n%x = exp(%c)", "%x", 2),
        (f"%r = reshape(%c, shape=[2*T])\n{ONE}\n%x = neg(%r)", "%x", 2),  # the same memory under another shape
        (f"%r = reshape(%c, shape=[2*T])\n{ONE}", "%r", 1),
        (f"{ONE}\n%r = reshape(%u, shape=[2*T])\n%v = cache_update(%u, %b, %q)\n%x = neg(%r)", "%x, %r", 2),
        (f"%d = dropout(%c)\n{ONE}\n%x = add(%d, %u)", "%x", 2),
        (f"%s = sum(%c)\n{ONE}\n%t = sum(%u)", "%s, %t", 2),
        (f'{TWO}\nprint(%u, label="u")\nprint(%c)', "", 2),
    ],
)
def test_versions(body: str, results: str, taken: int) -> None:
    programs = lowered(program(body, results))
    assert copies(programs) == taken
    for count in (1, 2, 0):
        assert_same(programs, *arrays(count=count))
    assert_same(programs, *arrays(first=4, second=4))
    assert_same(programs, *arrays(first=0, second=1))


def test_all_at_once_with_itself() -> None:
    programs = lowered(program("%u = cache_update(%c, %c, %p)", "%u"))
    assert_same(programs, *arrays(first=0))


@pytest.mark.parametrize("moved", ["%n = slice(%c, starts=[0], ends=[3])", "%t = slice(%c, starts=[0], ends=[3])\n%n = neg(%t)"])
def test_entries_moved_within_the_cache(moved: str) -> None:
    """Fusion keeps apart what is read from the cache and what is stored there."""
    text = program(f"{moved}\n%u = cache_update(%c, %n, %p)", "%u")
    programs = lowered(text)
    apply(programs[1], "fuse,lower-to-loops")
    for first in range(4):
        assert_same(programs, *arrays(first=first))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i64", "i8", "u8", "bool"])
@pytest.mark.parametrize("position", ["i64", "i32", "i8", "u8"])
def test_element_types(dtype: str, position: str) -> None:
    for axis in (0, 1, -1, -2):
        new = ["B", "T", "2"]
        new[axis] = "1"
        text = f"""graph @main(%c: {dtype}[B, T, 2] inout, %a: {dtype}[{", ".join(new)}], %p: {position}[]) {{
  %u = cache_update(%c, %a, %p, axis={axis})
  return %u
}}
"""
        cache = (np.arange(12) % 2).astype(DTYPES[dtype].numpy).reshape(2, 3, 2)
        shape = [2, 3, 2]
        shape[axis] = 1
        new_array = np.arange(12)[: int(np.prod(shape))].reshape(shape).astype(DTYPES[dtype].numpy)
        assert_same(lowered(text), cache, new_array, np.array(1, DTYPES[position].numpy))


def test_errors() -> None:
    fixed = lowered(program(ONE, "%u", "f32[6, 2]", "f32[2, 2]"))
    for first in (-1, 5, 6, 2**62, -(2**63)):
        assert_same_error(fixed, *arrays(first=first))
    for cache, new in (("f32[T, 2]", "f32[2, 2]"), ("f32[6, 2]", "f32[N, 2]"), ("f32[T, 2]", "f32[N, 2]")):
        programs = lowered(program(ONE, "%u", cache, new))
        message = assert_same_error(programs, *arrays(first=5))
        assert message == "cache_update: position 5 plus 2 new entries is 7, past the capacity of 6"
        assert "past the capacity of 6" in error_of(programs[1], *arrays(first=2**63 - 1))
        assert_same_error(programs, *arrays(first=-3))
    assert_same_error(programs, *arrays(capacity=1))


def test_nothing_is_written_before_the_checks() -> None:
    given = arrays(first=0, second=5)
    kept = [np.array(a) for a in given]
    programs = lowered(program(TWO, "%v"))
    with pytest.raises(GraphError):
        Interpreter(programs[1]).run(programs[1].graphs["main"], given)
    assert np.array_equal(given[0], kept[0])


def test_arrays_in_another_order() -> None:
    programs = lowered(program(f"%r = reshape(%c, shape=[2*T])\n{ONE}", "%r, %u"))
    given = arrays()
    given[0] = np.asfortranarray(given[0])
    wanted = run(programs[0], given)
    cache = np.asfortranarray(np.array(given[0]))
    found = Interpreter(programs[1]).run(programs[1].graphs["main"], [cache, *given[1:]])
    assert all(np.array_equal(a, b) for a, b in zip([*found, cache], wanted, strict=True))


def test_float64_runs() -> None:
    before, after = lowered(program(TWO, "%u, %v"))
    for a, b in zip(run(before, arrays(), double=True), run(after, arrays(), double=True), strict=True):
        assert np.array_equal(a, b)


CALLED = """
graph @step(%cache: f32[T, 2] inout, %x: f32[N, 2], %at: i64[]) -> f32[] {
  %u = cache_update(%cache, %x, %at)
  %s = sum(%u)
  return %s
}

graph @main(%c: f32[T, 2] inout, %a: f32[N, 2], %b: f32[N, 2], %p: i64[], %q: i64[]) -> (f32[], f32[], f32[T, 2]) {
  %s, %u = call(@step, %c, %a, %p)
  %t, %v = call(@step, %u, %b, %q)
  return %s, %t, %u
}
"""


def test_calls_that_stay() -> None:
    """Without ``inline`` the callee works in memory of its own."""
    before = load(CALLED)
    after = clone_module(before)
    apply(after, "lower-to-linalg")
    verify_module(after)
    assert "memref.of_inout" in print_module(after) and "call(@step" in print_module(after)
    for a, b in zip(run(before, arrays()), run(after, arrays()), strict=True):
        assert np.array_equal(a, b)


def test_calls_that_are_inlined() -> None:
    programs = lowered(CALLED)
    assert operations(programs[1]).count("memref.of_inout") == 1
    assert_same(programs, *arrays())


def test_a_call_in_the_chain_leaves_the_updates_alone() -> None:
    text = CALLED.replace("%t, %v = call(@step, %u, %b, %q)", "%v = cache_update(%u, %b, %q)\n  %t = sum(%v)")
    before = load(text)
    after = clone_module(before)
    apply(after, "lower-to-linalg")
    assert "cache_update" in operations(after)
    assert compare_modules(before, after, "values").mismatch is None


def test_memory_that_is_looked_at_is_left_alone() -> None:
    text = """graph @main(%c: f32[4] inout, %a: f32[1], %p: i64[]) -> f32[4] {
  %C = memref.from_tensor(%c)
  %u = cache_update(%c, %a, %p, axis=0)
  %y = memref.to_tensor(%C)
  return %y
}
"""
    before = load(text)
    after = clone_module(before)
    apply(after, "lower-to-linalg")
    assert "cache_update" in operations(after)
    given = [np.float32([1, 2, 3, 4]), np.float32([9]), np.array(2)]
    for a, b in zip(run(before, given), run(after, given), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("operand", ["%x", "%y"])
def test_only_inout_parameters_have_memory(operand: str) -> None:
    text = f"graph @main(%x: f32[4]) {{\n  %y = neg(%x)\n  %C = memref.of_inout({operand})\n  return\n}}\n"
    with pytest.raises(GraphError, match="is no parameter that is inout"):
        verify_module(parse_module(text))
