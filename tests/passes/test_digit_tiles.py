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
from tests.digit_programs import FORMATS, product_text, random_weights

CASES = [(f, n) for f in FORMATS for n in (1, 2, 3)]
COUNTS = (1, 15, 16, 17, 31, 32, 33, 48, 77, 128, 129, 300)


def extreme_weights(format_: str, rows: int, size: int) -> np.ndarray:
    """Random ones, of which some blocks have the largest, some the smallest numbers alone."""
    found = random_weights(format_, rows, size)
    found["qs"][0::3] = -1 if found["qs"].dtype == np.int8 else 0xFF
    found["qs"][1::3] = -128 if found["qs"].dtype == np.int8 else 0
    return found


def activations(count: int, size: int) -> np.ndarray:
    """Rows of all kinds: outliers, one magnitude of both signs, the numbers at which terms and digits carry, zeros, denormals, NaN."""
    generator = np.random.default_rng(count)
    x = np.float32(generator.standard_normal((count, size)) * np.where(generator.random((count, size)) < 0.03, 100, 1))
    carries = np.array([2047, 2048, 2049, 127, 128, 255, 256, 32767, 32768, 8388607, 4095, 4096, 15, 16])
    x[2 % count] = np.where(generator.random(size) < 0.5, -1.0, 1.0)
    x[5 % count] = generator.choice(carries, size) * generator.choice([-1.0, 1.0], size)
    x[6 % count] = 8355000.0 - generator.integers(0, 3, size)
    x[7 % count], x[8 % count] = 0.0, 1e-41
    x[9 % count, 3] = np.nan
    return x


@pytest.mark.parametrize(
    ("format_", "digits", "rows", "size"),
    [*((f, n, 70, 96) for f, n in CASES), ("q4_1", 3, 32, 32), ("q4_0", 3, 3, 1600), ("q8_0", 1, 3, 1600)],
)
def test_machine_code_has_the_bits_of_other_loops(format_: str, digits: int, rows: int, size: int) -> None:
    packed, text = d.pack_rows(extreme_weights(format_, rows, size)), product_text(format_, rows, size, digits)
    tiles, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-amx", "cpu"))
    for count in COUNTS:
        x = activations(count, size)
        assert tiles(x, packed).tobytes() == plain(x, packed).tobytes(), count


@pytest.mark.parametrize(("format_", "digits"), CASES)
def test_loops_have_the_bits_of_machine_code(format_: str, digits: int) -> None:
    """In the interpreter; a known number of rows as well as an open one."""
    packed, x = d.pack_rows(extreme_weights(format_, 40, 64)), activations(19, 64)
    expected = graph_opt.compile(graph_opt.parse(product_text(format_, 40, 64, digits)), pipeline="cpu")(x, packed)
    for count in ("S", 19):
        module = graph_opt.parse(product_text(format_, 40, 64, digits, count))
        PassManager(load_pipeline(OTHER_TARGETS["cpu-amx"])).run(module)
        assert any(is_tile(op) for op in module.walk())
        for reverse in (False, True):
            (y,) = Interpreter(module, reverse_parallel=reverse).run(module.graphs["main"], [x, packed])
            assert y.tobytes() == expected.tobytes()


def test_rows_of_several_groups_in_the_interpreter() -> None:
    packed, x = d.pack_rows(extreme_weights("q4_0", 32, 32)), activations(131, 32)
    module = graph_opt.parse(product_text("q4_0", 32, 32, 3))
    PassManager(load_pipeline(OTHER_TARGETS["cpu-amx"])).run(module)
    (y,) = Interpreter(module, reverse_parallel=True).run(module.graphs["main"], [x, packed])
    assert y.tobytes() == graph_opt.compile(graph_opt.parse(product_text("q4_0", 32, 32, 3)), pipeline="cpu")(x, packed).tobytes()


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_two_threads_give_the_same_bits(digits: int) -> None:
    packed, text = d.pack_rows(random_weights("q4_1", 200, 256)), product_text("q4_1", 200, 256, digits)
    one, two = (graph_opt.compile(graph_opt.parse(text), pipeline="cpu-amx", threads=n) for n in (1, 2))
    for count in (16, 40, 129):
        x = activations(count, 256)
        assert one(x, packed).tobytes() == two(x, packed).tobytes()


@pytest.mark.parametrize("few", [1, 4, 40])
def test_less_than_a_tile_is_never_many(few: int) -> None:
    packed, text = d.pack_rows(random_weights("q4_1", 40, 64)), product_text("q4_1", 40, 64, 3)
    pipeline = OTHER_TARGETS["cpu-amx"].replace("tiles=true", f"tiles=true, few={few}")
    assert f"few={few}" in pipeline
    tiles, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in (pipeline, "cpu"))
    for count in (1, 3, 4, 5, 15, 16, 17, 39, 40):
        x = activations(count, 64)
        assert tiles(x, packed).tobytes() == plain(x, packed).tobytes(), count


def test_few_known_rows_have_no_terms() -> None:
    module = graph_opt.parse(product_text("q4_1", 40, 64, 3, 15))
    PassManager(load_pipeline(OTHER_TARGETS["cpu-amx"])).run(module)
    assert not any(op.definition.full_name == "vector.dot4" for op in module.walk())


def test_tiles_take_a_whole_panel() -> None:
    with pytest.raises(graph_opt.GraphError, match="32 columns"):
        load_pipeline("lower-digits{columns=16, tiles=true}")
