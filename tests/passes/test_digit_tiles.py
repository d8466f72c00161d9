"""Products with packed weights as tiles: the bits of all other loops, for every number of rows, on processors with and without tiles."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt
from dialects._tiles import is_tile
from dialects.graph import digits as d
from ir.interpreter import Interpreter
from passes.infra.manager import PassManager
from passes.pipelines import OTHER_TARGETS, load_pipeline
from tests.digit_programs import FORMATS, extreme_weights, product_text, random_weights, read_by_several, varied_activations

CASES = [(f, n) for f in FORMATS for n in (1, 2, 3)]
COUNTS = (1, 8, 9, 10, 11, 15, 16, 17, 24, 31, 32, 33, 77, 128, 129, 175, 187, 192, 300)


@pytest.mark.parametrize(
    ("format_", "digits", "rows", "size"),
    [*((f, n, 70, 96) for f, n in CASES), ("q4_1", 3, 32, 32), ("q4_0", 3, 3, 1600), ("q8_0", 1, 3, 1600)],
)
def test_machine_code_has_the_bits_of_other_loops(format_: str, digits: int, rows: int, size: int) -> None:
    packed, text = d.pack_rows(extreme_weights(format_, rows, size)), product_text(format_, rows, size, digits)
    tiles, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-amx", "cpu"))
    for count in COUNTS:
        x = varied_activations(count, size)
        assert tiles(x, packed).tobytes() == plain(x, packed).tobytes(), count


@pytest.mark.parametrize(("format_", "digits"), CASES)
def test_loops_have_the_bits_of_machine_code(format_: str, digits: int) -> None:
    """In the interpreter; a known number of rows as well as an open one."""
    packed, x = d.pack_rows(extreme_weights(format_, 40, 64)), varied_activations(19, 64)
    expected = graph_opt.compile(graph_opt.parse(product_text(format_, 40, 64, digits)), pipeline="cpu")(x, packed)
    for count in ("S", 19):
        module = graph_opt.parse(product_text(format_, 40, 64, digits, count))
        PassManager(load_pipeline(OTHER_TARGETS["cpu-amx"])).run(module)
        assert any(is_tile(op) for op in module.walk())
        for reverse in (False, True):
            (y,) = Interpreter(module, reverse_parallel=reverse).run(module.graphs["main"], [x, packed])
            assert y.tobytes() == expected.tobytes()


def test_rows_of_several_groups_in_the_interpreter() -> None:
    packed, x = d.pack_rows(extreme_weights("q4_0", 32, 32)), varied_activations(131, 32)
    module = graph_opt.parse(product_text("q4_0", 32, 32, 3))
    PassManager(load_pipeline(OTHER_TARGETS["cpu-amx"])).run(module)
    (y,) = Interpreter(module, reverse_parallel=True).run(module.graphs["main"], [x, packed])
    assert y.tobytes() == graph_opt.compile(graph_opt.parse(product_text("q4_0", 32, 32, 3)), pipeline="cpu")(x, packed).tobytes()


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_two_threads_give_the_same_bits(digits: int) -> None:
    packed, text = d.pack_rows(random_weights("q4_1", 200, 256)), product_text("q4_1", 200, 256, digits)
    one, two = (graph_opt.compile(graph_opt.parse(text), pipeline="cpu-amx", threads=n) for n in (1, 2))
    for count in (16, 40, 129):
        x = varied_activations(count, 256)
        assert one(x, packed).tobytes() == two(x, packed).tobytes()


@pytest.mark.parametrize("few", [1, 4, 40])
def test_few_is_for_loops_without_tiles(few: int) -> None:
    packed, text = d.pack_rows(random_weights("q4_1", 40, 64)), product_text("q4_1", 40, 64, 3)
    pipeline = OTHER_TARGETS["cpu-amx"].replace("tiles=true", f"tiles=true, few={few}")
    assert f"few={few}" in pipeline
    tiles, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in (pipeline, "cpu"))
    for count in (1, 3, 4, 5, 9, 10, 15, 16, 17, 39, 40):
        x = varied_activations(count, 64)
        assert tiles(x, packed).tobytes() == plain(x, packed).tobytes(), count


@pytest.mark.parametrize("result", [False, True])
@pytest.mark.parametrize(("digits", "rows"), [(1, "S"), (2, "S"), (3, "S"), (1, "3, S"), (3, "3, S"), (3, "21"), (3, "7"), (1, "16"), (3, "2, 8")])
def test_digits_that_several_read(digits: int, rows: str, result: bool) -> None:
    """Terms of two kinds, and digits besides where others than products read them."""
    weights = [d.pack_rows(extreme_weights(f, 40, 64)) for f in ("q4_1", "q8_0")]
    text = read_by_several(digits, rows, result)
    tiles, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-amx", "cpu"))
    for size in (1, 5, 6, 15, 16, 17, 43, 130) if "S" in rows else (0,):
        shape = tuple(int(n) for n in rows.replace("S", str(size)).split(", "))
        x = varied_activations(int(np.prod(shape)), 64).reshape(*shape, 64)
        for a, b in zip(tiles(x, *weights), plain(x, *weights), strict=True):
            assert a.tobytes() == b.tobytes(), shape


def test_digits_from_elsewhere() -> None:
    """A product of digits that the graph is given has no terms, and the bits of others."""
    types = "%d: i8[S, 2, 3, 32], %s: f32[S, 2, 2], %t: i32[S, 2, 3], %p: u8[2, 2, 640]"
    text = f"graph @main({types}) -> f32[S, 40] {{\n  %y = digit_linear(%d, %s, %t, %p, rows=40)\n  return %y\n}}\n"
    results = "i8[S, 2, 3, 32], f32[S, 2, 2], i32[S, 2, 3]"
    split = f"graph @main(%x: f32[S, 64]) -> ({results}) {{\n  %d, %s, %t = split_digits(%x)\n  return %d, %s, %t\n}}\n"
    packed, x = d.pack_rows(extreme_weights("q4_1", 40, 64)), varied_activations(37, 64)
    whole = graph_opt.compile(graph_opt.parse(product_text("q4_1", 40, 64, 3)), pipeline="cpu-amx")(x, packed)
    parts = graph_opt.compile(graph_opt.parse(split), pipeline="cpu-amx")(x)
    assert graph_opt.compile(graph_opt.parse(text), pipeline="cpu-amx")(*parts, packed).tobytes() == whole.tobytes()


@pytest.mark.parametrize(("format_", "digits", "fewest"), [("q4_1", 3, 10), ("q4_0", 3, 10), ("q8_0", 3, 16), ("q4_1", 2, 16), ("q4_1", 1, 16)])
def test_few_known_rows_have_no_terms(format_: str, digits: int, fewest: int) -> None:
    for count in (fewest - 1, fewest):
        module = graph_opt.parse(product_text(format_, 40, 64, digits, count))
        PassManager(load_pipeline(OTHER_TARGETS["cpu-amx"])).run(module)
        assert any(op.definition.full_name == "vector.dot4" for op in module.walk()) == (count == fewest)


def test_tiles_take_a_whole_panel() -> None:
    with pytest.raises(graph_opt.GraphError, match="32 columns"):
        load_pipeline("lower-digits{columns=16, tiles=true}")
