"""Products with packed weights in pairs: the bits of all other loops, for every number of rows, and the ends of what bytes hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import graph_opt
from dialects.graph import digits as d
from ir.core import Module
from ir.interpreter import Interpreter
from ir.types import VectorType
from passes.infra.manager import Instrumentation, PassManager
from passes.pipelines import OTHER_TARGETS, PRESETS, load_pipeline
from tests.digit_programs import FORMATS, extreme_weights, product_text, random_weights, read_by_several, varied_activations

CASES = [(f, n) for f in FORMATS for n in (1, 2, 3)]
COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 33, 128)
ZEN = OTHER_TARGETS["cpu-zen"]
FEWEST = {1: 8, 2: 4, 3: 4}
"""Rows from which on the preset multiplies in pairs, by digits."""


def lowered(text: str, pipeline: str = ZEN) -> Module:
    module = graph_opt.parse(text)
    PassManager(load_pipeline(pipeline)).run(module)
    return module


def is_paired(module: Module) -> bool:
    return any(op.definition.full_name == "arith.add4" for op in module.walk())


@pytest.mark.parametrize(
    ("format_", "digits", "rows", "size"),
    [*((f, n, 70, 96) for f, n in CASES), ("q4_1", 3, 32, 32), ("q4_0", 3, 3, 1600), ("q4_1", 1, 40, 1632), ("q4_0", 2, 33, 736)],
)
def test_machine_code_has_the_bits_of_other_loops(format_: str, digits: int, rows: int, size: int) -> None:
    packed, text = d.pack_rows(extreme_weights(format_, rows, size)), product_text(format_, rows, size, digits)
    pairs, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-zen", "cpu"))
    for count in COUNTS:
        x = varied_activations(count, size)
        assert pairs(x, packed).tobytes() == plain(x, packed).tobytes(), count


@pytest.mark.parametrize(("format_", "digits"), CASES)
def test_loops_have_the_bits_of_machine_code(format_: str, digits: int) -> None:
    """In the interpreter; a known number of rows as well as an open one."""
    packed, x = d.pack_rows(extreme_weights(format_, 40, 64)), varied_activations(11, 64)
    expected = graph_opt.compile(graph_opt.parse(product_text(format_, 40, 64, digits)), pipeline="cpu")(x, packed)
    for count in ("S", 11):
        module = lowered(product_text(format_, 40, 64, digits, count))
        assert is_paired(module) == (format_ != "q8_0")
        for reverse in (False, True):
            (y,) = Interpreter(module, reverse_parallel=reverse).run(module.graphs["main"], [x, packed])
            assert y.tobytes() == expected.tobytes()


def ends(digits: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Activations whose digits are the smallest and the largest ones, in all combinations of both halves, and weights likewise."""
    limit = d.LARGEST[digits]
    low = sum(128 << 8 * n for n in range(digits - 1))
    numbers = np.array([limit, -limit, limit - low, low - limit, low, -low, 0], np.float32)
    first, second = (np.repeat(m.reshape(-1, 1), 16, axis=1) for m in np.meshgrid(numbers, numbers))
    x = np.concatenate([first, second], axis=1)
    x[:, 0] = np.where(np.abs(x).max(axis=1) < limit, limit, x[:, 0])  # so that the scale is 1
    weights = random_weights("q4_1", 32, 32)
    patterns = np.array([[a | b << 4] * 16 for a in (0, 15, 7) for b in (0, 15, 8)], np.uint8)
    weights["qs"][: len(patterns), 0] = patterns
    return x, d.pack_rows(weights)


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_sums_of_bytes_reach_their_ends_and_stay_bytes(digits: int) -> None:
    x, packed = ends(digits)
    split = d.split_digits(x, digits=digits)
    assert {-d.HIGHEST, d.HIGHEST} <= {*split[0][:, 0, -1].ravel().tolist()} and (split[1][..., 0] == 1.0).all()
    text = product_text("q4_1", 32, 32, digits)
    pairs, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-zen", "cpu"))
    y = pairs(x, packed)
    assert y.tobytes() == plain(x, packed).tobytes()
    exact = d.digit_linear(*split, packed, rows=32).astype(np.float64)
    assert (np.abs(y - exact) <= 8 * 2.0**-24 * 32 * 16 * float(d.LARGEST[digits])).all()


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("power", [-149, -126, -101, -100, -99, -77, 0, 60, 100, 105, 126, 127])
def test_magnitudes_at_both_ends_of_f32(power: int, digits: int) -> None:
    """Scales of weights as large and as small as f16 has them; infinities and NaNs are where other loops have them."""
    generator = np.random.default_rng(power + 200)
    x = np.float32(np.clip(generator.standard_normal((9, 64)) * 2.0**power, -3.4e38, 3.4e38))
    text = product_text("q4_1", 40, 64, digits)
    pairs, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-zen", "cpu"))
    for scale in (65504.0, 2.0**-24, 0.02, 0.0, np.inf, np.nan):
        weights = random_weights("q4_1", 40, 64)
        weights["d"], weights["m"] = scale, -scale / 2
        packed = d.pack_rows(weights)
        for _ in range(2):
            np.testing.assert_array_equal(pairs(x, packed), plain(x, packed))
            weights["m"] = 0.0
            packed = d.pack_rows(weights)


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_two_threads_give_the_same_bits(digits: int) -> None:
    packed, text = d.pack_rows(random_weights("q4_1", 200, 256)), product_text("q4_1", 200, 256, digits)
    one, two = (graph_opt.compile(graph_opt.parse(text), pipeline="cpu-zen", threads=n) for n in (1, 2))
    for count in (4, 16, 40, 129):
        x = varied_activations(count, 256)
        assert one(x, packed).tobytes() == two(x, packed).tobytes()


@pytest.mark.parametrize("result", [False, True])
@pytest.mark.parametrize(("digits", "rows"), [(1, "S"), (2, "S"), (3, "S"), (1, "3, S"), (3, "3, S"), (3, "21"), (3, "3"), (1, "8"), (3, "2, 8")])
def test_digits_that_several_read(digits: int, rows: str, result: bool) -> None:
    """Pairs, and digits besides for weights of 8 bits, and where others than products read them."""
    weights = [d.pack_rows(extreme_weights(f, 40, 64)) for f in ("q4_1", "q8_0")]
    text = read_by_several(digits, rows, result)
    pairs, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-zen", "cpu"))
    for size in (1, 2, 3, 4, 7, 8, 17, 43) if "S" in rows else (0,):
        shape = tuple(int(n) for n in rows.replace("S", str(size)).split(", "))
        x = varied_activations(int(np.prod(shape)), 64).reshape(*shape, 64)
        for a, b in zip(pairs(x, *weights), plain(x, *weights), strict=True):
            assert a.tobytes() == b.tobytes(), shape


def test_digits_from_elsewhere() -> None:
    """A product of digits that the graph is given has none in pairs, and takes digits that pairs could not."""
    types = "%d: i8[S, 2, 3, 32], %s: f32[S, 2, 2], %t: i32[S, 2, 3], %p: u8[2, 2, 640]"
    text = f"graph @main({types}) -> f32[S, 40] {{\n  %y = digit_linear(%d, %s, %t, %p, rows=40)\n  return %y\n}}\n"
    packed = d.pack_rows(extreme_weights("q4_1", 40, 64))
    digits = np.random.default_rng(0).integers(-128, 128, (20, 2, 3, 32)).astype(np.int8)
    scales = np.float32(np.random.default_rng(1).uniform(0.5, 2, (20, 2, 2)))
    given = digits, scales, digits.sum(axis=-1, dtype=np.int32), packed
    pairs, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-zen", "cpu"))
    assert not is_paired(lowered(text)) and pairs(*given).tobytes() == plain(*given).tobytes()


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("format_", ["q4_0", "q4_1"])
@pytest.mark.parametrize("operands", ["%d, %u, %t", "%d, %s2, %t", "%d, %s, %u2", "%d, %e, %t", "%d, %s, %f", "%d, %e, %f"])
def test_scales_and_sums_from_elsewhere(operands: str, format_: str, digits: int) -> None:
    """Pairs hold the scales of the digits, and their sums: a product that reads others is none in pairs, beside one that is."""
    size = d.FORMATS[format_].bytes
    types = f"%x: f32[S, 64], %z: f32[S, 64], %u: f32[S, 2, 2], %u2: i32[S, 2, {digits}], %p: u8[2, 2, {size}]"
    text = f"""graph @main({types}) -> (f32[S, 40], f32[S, 40]) {{
      %d, %s, %t = split_digits(%x, digits={digits})
      %c, %e, %f = split_digits(%z, digits={digits})
      %s2 = add(%s, %s)
      %y = digit_linear({operands}, %p, rows=40)
      %own = digit_linear(%d, %s, %t, %p, rows=40)
      return %y, %own
    }}"""
    packed, (x, z) = d.pack_rows(random_weights(format_, 40, 64)), np.random.default_rng(5).standard_normal((2, 11, 64)).astype(np.float32)
    u = np.random.default_rng(6).uniform(0.5, 2, (11, 2, 2)).astype(np.float32)
    pairs, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in ("cpu-zen", "cpu"))
    assert is_paired(lowered(text))
    for count in (3, 11):
        given = x[:count], z[:count], u[:count], np.full((count, 2, digits), 1234567, np.int32), packed
        for a, b in zip(pairs(*given), plain(*given), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_few_known_rows_are_not_paired(digits: int) -> None:
    for count in (FEWEST[digits] - 1, FEWEST[digits]):
        assert is_paired(lowered(product_text("q4_0", 40, 64, digits, count))) == (count == FEWEST[digits])


@pytest.mark.parametrize("rows", [(1, 1, 1), (5, 3, 3), (2, 7, 9)])
def test_rows_at_a_time_and_columns_do_not_matter(rows: tuple[int, ...]) -> None:
    for columns in (16, 32):
        pipeline = ZEN.replace("columns=32, ahead=0, near=0, pairs=[8, 3, 3]", f"columns={columns}, ahead=0, near=0, pairs={[*rows]}")
        assert f"columns={columns}, ahead=0, near=0, pairs={[*rows]}" in pipeline
        for digits in (1, 2, 3):
            packed, text = d.pack_rows(random_weights("q4_0", 40, 96)), product_text("q4_0", 40, 96, digits)
            pairs, plain = (graph_opt.compile(graph_opt.parse(text), pipeline=p) for p in (pipeline, "cpu"))
            for count in (1, 2, 5, 14, 19):
                x = varied_activations(count, 96)
                assert pairs(x, packed).tobytes() == plain(x, packed).tobytes(), (columns, digits, count)


@pytest.mark.parametrize(("format_", "digits"), [("q4_1", 1), ("q4_0", 2), ("q4_1", 3)])
def test_every_pass_keeps_the_numbers(format_: str, digits: int) -> None:
    """Also where checks keep floats wide, so that bits of floats are no wider than they say."""
    manager = PassManager(load_pipeline(ZEN), Instrumentation(verify_exec=True))
    manager.run(graph_opt.parse(product_text(format_, 40, 64, digits, 9)))
    assert {"verified"} <= {record.note for record in manager.records}


@pytest.mark.parametrize("target", ["cpu-zen", "cpu-amx", "cpu"])
@pytest.mark.parametrize("digits", [1, 2, 3])
def test_loops_use_no_vectors_from_outside(digits: int, target: str) -> None:
    """Nests that do are never alike (:mod:`passes.infra.twins`), so each of many layers would be made and compiled."""
    passes = {**PRESETS, **OTHER_TARGETS}[target]
    module = lowered(product_text("q4_1", 40, 64, digits), passes[: passes.index(",lower-to-loops")])
    assert sum(bool(op.regions) for op in module.main.block) > 1
    assert not any(isinstance(result.type, VectorType) for op in module.main.block for result in op.results)


@pytest.mark.parametrize("options", ["pairs=[1, 2]", "pairs=[1, 0, 2]", "pairs=[4, 4, 2], tiles=true", "pairs=[1, 2, 3, 4]"])
def test_options(options: str) -> None:
    with pytest.raises(graph_opt.GraphError, match="pairs: expected none, or three numbers of 1 or more and no tiles"):
        load_pipeline(f"lower-digits{{{options}}}")
