"""Calling graphs: binding of arrays and sizes, in-place updates, calls, and errors on the way."""

from __future__ import annotations

import numpy as np
import pytest

import dialects  # noqa: F401
from ir.core import Module
from ir.diagnostics import GraphError
from ir.inference import infer_module
from ir.inputs import choose_sizes, generate_inputs
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.signature import match_arguments


def load(text: str) -> Module:
    module = parse_module(text)
    infer_module(module)
    return module


def run(text: str, *arrays: object, **options: object) -> list[np.ndarray]:
    module = load(text)
    return Interpreter(module, **options).run(module.main, [np.asarray(a) if not isinstance(a, np.ndarray) else a for a in arrays])  # type: ignore[arg-type]


def error(text: str, *arrays: object) -> str:
    with pytest.raises(GraphError) as caught:
        run(text, *arrays)
    return str(caught.value)


f = np.float32
CACHE = """graph @main(%c: f32[T] inout, %x: f32[1], %p: i64[]) -> f32[T] {
  %old = neg(%c)
  %u = cache_update(%c, %x, %p, axis=0)
  %y = add(%u, %old)
  return %y
}
"""


# -- in place ----------------------------------------------------------------------------------------------------------


def test_inout_is_written_back_and_older_versions_stay() -> None:
    cache = f([1, 2, 3])
    (y,) = run(CACHE, cache, f([9]), np.int64(1))
    assert cache.tolist() == [1, 9, 3] and y.tolist() == [0, 7, 0]


def test_inout_without_an_update_is_left_alone() -> None:
    cache = f([1, 2])
    (y,) = run("graph @main(%c: f32[T] inout) -> f32[T] {\n  return %c\n}\n", cache)
    y[0] = 7
    assert cache.tolist() == [1, 2]


def test_inout_that_fails_is_not_written() -> None:
    cache = f([1, 2])
    assert "past the capacity of 2" in error(CACHE, cache, f([9]), np.int64(2))
    assert cache.tolist() == [1, 2]


def test_inout_read_only() -> None:
    cache = f([1, 2])
    cache.setflags(write=False)
    assert "%c is inout, but the array is read-only" in error(CACHE, cache, f([9]), np.int64(0))


def test_inout_through_a_view() -> None:
    base = np.zeros((4, 2), np.float32)
    run(CACHE, base[:, 1], f([9]), np.int64(3))
    assert base.tolist() == [[0, 0], [0, 0], [0, 0], [0, 9]]


def test_inout_of_a_called_graph() -> None:
    text = CACHE.replace("@main", "@step") + (
        "\ngraph @main(%c: f32[4] inout, %x: f32[1], %p: i64[]) -> f32[4] {\n"
        "  %y, %c1 = call(@step, %c, %x, %p)\n  %z, %c2 = call(@step, %c1, %y0, %p)\n  return %z\n}\n"
    ).replace("%y0", "%x")
    cache = f([1, 2, 3, 4])
    (z,) = run(text, cache, f([9]), np.int64(2))
    assert cache.tolist() == [1, 2, 9, 4] and z.tolist() == [0, 0, 0, 0]


def test_results_share_no_memory() -> None:
    x = f([1, 2])
    a, b = run("graph @main(%x: f32[2]) -> (f32[2], f32[2]) {\n  return %x, %x\n}\n", x)
    a[0] = 7
    assert x.tolist() == [1, 2] and b.tolist() == [1, 2]
    module = load("graph @main() -> f32[2] {\n  %c = constant([1.0, 2.0])\n  return %c\n}\n")
    interpreter = Interpreter(module)
    interpreter.run(module.main, [])[0][:] = 0
    assert interpreter.run(module.main, [])[0].tolist() == [1, 2]


@pytest.mark.parametrize("form", ["fortran", "negative", "broadcast", "big-endian", "list of one"])
def test_any_array_is_accepted(form: str) -> None:
    wanted = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = {
        "fortran": np.asfortranarray(wanted),
        "negative": wanted[::-1, ::-1].copy()[::-1, ::-1],
        "broadcast": np.broadcast_to(f([1, 2, 3]), (2, 3)),
        "big-endian": wanted.astype(">f4"),
        "list of one": np.frombuffer(b"\0" + wanted.tobytes(), np.float32, offset=1).reshape(2, 3),
    }[form]
    (y,) = run("graph @main(%x: f32[A, B]) -> f32[A, B] {\n  %y = neg(%x)\n  return %y\n}\n", given)
    assert np.array_equal(y, -given) and y.flags.c_contiguous and y.dtype == np.float32


# -- symbols -----------------------------------------------------------------------------------------------------------

TWO = "graph @main(%x: f32[B, S], %y: f32[S, B+1]) -> f32[B, B+1] {\n  %z = matmul(%x, %y)\n  return %z\n}\n"


def test_one_name_with_two_sizes() -> None:
    message = error(TWO, np.ones((2, 3), f), np.ones((4, 3), f))
    assert "%y is f32[S, B+1], but the array is f32[4, 3]: S is 3 with S=3 (from %x), not 4" in message
    assert "B+1 is 3 with B=2 (from %x), not 5" in error(TWO, np.ones((2, 3), f), np.ones((3, 5), f))


def test_expressions_are_solved() -> None:
    text = "graph @main(%x: f32[2*B+1]) -> i64[] {\n  %n = full(shape=[B], value=1, dtype=i64)\n  %s = sum(%n)\n  return %s\n}\n"
    assert run(text, np.ones(7, f))[0] == 3
    assert run(text, np.ones(1, f))[0] == 0
    assert "no B gives 2*B+1 = 4" in error(text, np.ones(4, f))
    assert "no B gives 2*B+1 = 0" in error(text, np.ones(0, f))
    assert "B, S can't be found from B*S = 6" in error("graph @main(%x: f32[B*S]) -> f32[B*S] {\n  return %x\n}\n", np.ones(6, f))


def test_a_later_parameter_gives_the_name() -> None:
    text = "graph @main(%x: f32[B*2], %y: f32[B]) -> f32[B*2] {\n  return %x\n}\n"
    assert run(text, np.ones(6, f), np.ones(3, f))[0].shape == (6,)


WHERE = "graph @main(%x: f32[B, T]) -> f32[B, T]\n  where 1 <= B <= 8, T mod 16 == 0, B < T {\n  return %x\n}\n"


def test_conditions() -> None:
    assert run(WHERE, np.ones((8, 16), f))[0].shape == (8, 16)
    assert "graph @main wants 1 <= B <= 8, but B = 9" in error(WHERE, np.ones((9, 16), f))
    assert "graph @main wants 1 <= B <= 8, but B = 0" in error(WHERE, np.ones((0, 16), f))
    assert "graph @main wants T mod 16 == 0, but T = 20" in error(WHERE, np.ones((2, 20), f))
    assert "graph @main wants B < T, but B = 1, T = 0" in error(WHERE, np.ones((1, 0), f))


def test_chosen_sizes_keep_the_conditions() -> None:
    sizes = choose_sizes(load(WHERE).main)
    assert 1 <= sizes["B"] <= 8 and sizes["T"] % 16 == 0 and sizes["B"] < sizes["T"]
    assert choose_sizes(load(WHERE).main, {"B": 5})["B"] == 5
    with pytest.raises(GraphError, match="no sizes were found"):
        choose_sizes(load(WHERE.replace("B < T", "0 < T, T < B")).main)


def test_declared_result_that_does_not_come_out() -> None:
    text = "graph @main(%x: f32[?]) -> f32[4] {\n  %y = neg(%x) : f32[4]\n  return %y\n}\n"
    assert run(text, np.ones(4, f))[0].shape == (4,)
    assert "%y is declared f32[4]" in error(text, np.ones(5, f))


# -- arrays that don't fit ---------------------------------------------------------------------------------------------

ONE = "graph @main(%x: f32[2, 3]) -> f32[2, 3] {\n  return %x\n}\n"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "graph @main takes 1 inputs (%x), found 0"),
        ([np.ones((2, 3), f)] * 2, "graph @main takes 1 inputs (%x), found 2"),
        ([np.ones((2, 4), f)], "%x is f32[2, 3], but the array is f32[2, 4]"),
        ([np.ones(6, f)], "%x is f32[2, 3], but the array is f32[6]"),
        ([np.ones((2, 3))], "%x is f32[2, 3], but the array is f64[2, 3]"),
        ([np.ones((2, 3), object)], "%x: arrays of object are not supported"),
        ([np.ones((2, 3), np.complex64)], "%x: arrays of complex64 are not supported"),
        ([np.array([["a"] * 3] * 2)], "%x: arrays of <U1 are not supported"),
        ([np.ones((2, 3), np.uint64)], "%x: arrays of uint64 are not supported"),
    ],
)
def test_arrays_that_do_not_fit(arrays: list[np.ndarray], message: str) -> None:
    assert message in error(ONE, *arrays)


def test_matching_arguments_by_name() -> None:
    graph = load("graph @main(%x: f32[1], %y: f32[1]) -> f32[1] {\n  return %x\n}\n").main
    assert match_arguments(graph, [1], {"y": 2}) == [1, 2] == match_arguments(graph, [], {"y": 2, "x": 1})
    for args, kwargs, message in (
        ([1, 2, 3], {}, "takes 2 inputs, found 3"),
        ([1], {"z": 2}, "has no input %z"),
        ([1], {"x": 2}, "input %x is given twice"),
        ([1], {}, "lacks input %y"),
        ([], {}, "lacks inputs %x, %y"),
    ):
        with pytest.raises(GraphError, match=message):
            match_arguments(graph, args, kwargs)


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_double_keeps_floats_wide() -> None:
    text = "graph @main(%x: f16[1], %y: f16[1]) -> f16[1] {\n  %s = add(%x, %y)\n  %d = sub(%s, %x)\n  return %d\n}\n"
    x, y = np.float16([2048]), np.float16([1])
    assert run(text, x, y)[0].tolist() == [0.0] and run(text, x, y)[0].dtype == np.float16
    assert run(text, x, y, double=True)[0].tolist() == [1.0]


def test_double_rounds_only_where_bits_are_looked_at() -> None:
    text = "graph @main(%x: f32[1]) -> DTYPE[1] {\n  %y = exp(%x)\n  %z = bitcast(%y, dtype=DTYPE)\n  return %z\n}\n"
    x = f([1])
    assert run(text.replace("DTYPE", "f32"), x, double=True)[0][0] == np.exp(1.0) != run(text.replace("DTYPE", "f32"), x)[0][0]
    assert run(text.replace("DTYPE", "i32"), x, double=True)[0][0] == f(np.exp(1.0)).view(np.int32)


def test_errors_name_the_operation_and_its_place() -> None:
    message = error("graph @main(%x: i32[2], %y: i32[2]) -> i32[2] {\n  %z = floordiv(%x, %y)\n  return %z\n}\n", np.int32([1, 1]), np.int32([1, 0]))
    assert message.startswith("<string>:2:") and "floordiv: integer division by zero at [1]" in message


def test_generated_inputs() -> None:
    module = load("graph @main(%x: f32[N, 3], %i: i64[B]) -> f32[B, 3] {\n  %y = gather(%x, %i, axis=0)\n  return %y\n}\n")
    x, i = generate_inputs(module, module.main, {"N": 2, "B": 500}, "real", seed=3)
    assert x.shape == (2, 3) and set(i.tolist()) == {0, 1}
    again = generate_inputs(module, module.main, {"N": 2, "B": 500}, "real", seed=3)
    assert np.array_equal(x, again[0]) and np.array_equal(i, again[1])
    assert not np.array_equal(x, generate_inputs(module, module.main, {"N": 2, "B": 500}, "real", seed=4)[0])
    exact = generate_inputs(module, module.main, {"N": 50, "B": 1}, "exact")[0]
    assert np.array_equal(exact, np.round(exact)) and np.abs(exact).max() <= 4 and exact.min() < 0
    special = generate_inputs(module, module.main, {"N": 500, "B": 1}, "special")[0]
    assert np.isnan(special).any() and np.isinf(special).any() and (np.signbit(special) & (special == 0)).any()


def test_sizes_that_are_given_have_to_keep_the_where_clause() -> None:
    module = load("graph @main(%x: f32[B]) -> f32[B] where B mod 8 == 0 {\n  %y = relu(%x)\n  return %y\n}\n")
    with pytest.raises(GraphError, match="wants B mod 8 == 0, but B = 12"):
        choose_sizes(module.graphs["main"], {"B": 12})
