"""Products with packed weights as loops: bits for every number of rows, kind of processor and thread, and errors that are bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import graph_opt
from dialects.graph import digits as d
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.infra.manager import Instrumentation, PassManager
from passes.pipelines import OTHER_TARGETS, PRESETS, load_pipeline
from tests.digit_programs import FORMATS, product_text, random_weights

COUNTS = (1, 2, 3, 4, 5, 7, 8, 33, 128)
CASES = [(f, n) for f in FORMATS for n in range(4)]
TARGETS = {"cpu": PRESETS["cpu"], **OTHER_TARGETS}


def activations(count: int, size: int, seed: int = 1) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    return np.float32(generator.standard_normal((count, size)) * np.where(generator.random((count, size)) < 0.03, 100, 1))


def reference(x: NDArray[np.float32], packed: NDArray[np.uint8], rows: int, digits: int) -> Any:
    """The result, and how far f32 may be off."""
    if not digits:
        y = d.packed_linear(x, packed, rows=rows)
        values = d.packed_values(packed)[:rows]
        return y, x.shape[1] * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(values).T)
    split = d.split_digits(x, digits=digits)
    y = d.digit_linear(*split, packed, rows=rows)
    numbers, scales, minimums = d.unpack_rows(packed)
    found = np.abs((split[0].astype(np.int64) * (256 ** np.arange(digits))[:, None]).sum(axis=-2)) * split[1][..., :1].astype(np.float64)
    sizes = (np.abs(numbers) * np.abs(scales)[..., None])[:rows].reshape(rows, -1)
    terms = found.reshape(len(x), -1) @ sizes.T + np.abs(split[1][..., 1].astype(np.float64)) @ np.abs(minimums)[:rows].T
    return y, (6 + 2 * packed.shape[1]) * 2.0**-24 * terms


@pytest.mark.parametrize(("format_", "digits"), CASES)
@pytest.mark.parametrize(("rows", "size"), [(70, 96), (64, 32), (3, 1600)])
def test_bits_do_not_depend_on_the_number_of_rows(format_: str, digits: int, rows: int, size: int) -> None:
    packed, x = d.pack_rows(random_weights(format_, rows, size)), activations(COUNTS[-1], size)
    program = graph_opt.compile(graph_opt.parse(product_text(format_, rows, size, digits)))
    found = {count: program(x[:count], packed) for count in COUNTS}
    for count, y in found.items():
        assert y.tobytes() == found[COUNTS[-1]][:count].tobytes(), count
    y, bound = reference(x, packed, rows, digits)
    assert (np.abs(found[COUNTS[-1]] - y.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize(("format_", "digits"), CASES)
@pytest.mark.parametrize("count", [1, 5, 9])
def test_known_rows_have_the_same_bits(format_: str, digits: int, count: int) -> None:
    packed, x = d.pack_rows(random_weights(format_, 40, 64)), activations(count, 64)
    texts = [product_text(format_, 40, 64, digits, n) for n in ("S", count)]
    a, b = (graph_opt.compile(graph_opt.parse(t))(x, packed) for t in texts)
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("format_", "digits"), [("q4_1", 3), ("q4_0", 1), ("q8_0", 2), ("q8_0", 0)])
def test_loops_give_the_bits_of_machine_code_for_every_processor(target: str, format_: str, digits: int) -> None:
    """In the interpreter, with few rows and with many."""
    packed, x = d.pack_rows(random_weights(format_, 40, 64)), activations(9, 64)
    text = product_text(format_, 40, 64, digits)
    program = graph_opt.compile(graph_opt.parse(text))
    module = graph_opt.parse(text)
    PassManager(load_pipeline(TARGETS[target])).run(module)
    for count in (3, 9):
        (y,) = Interpreter(module).run(module.graphs["main"], [x[:count], packed])
        assert y.tobytes() == program(x[:count], packed).tobytes(), count


@pytest.mark.parametrize("digits", range(4))
def test_two_threads_give_the_same_bits(digits: int) -> None:
    packed = d.pack_rows(random_weights("q4_1", 200, 256))
    text = product_text("q4_1", 200, 256, digits)
    one, two = (graph_opt.compile(graph_opt.parse(text), threads=n) for n in (1, 2))
    for count in (1, 4, 40):
        x = activations(count, 256)
        assert one(x, packed).tobytes() == two(x, packed).tobytes()


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_whole_row_and_no_other(digits: int, value: float) -> None:
    packed, x = d.pack_rows(random_weights("q4_0", 40, 64)), activations(12, 64)
    program = graph_opt.compile(graph_opt.parse(product_text("q4_0", 40, 64, digits)))
    clean = program(x, packed)
    x[4, 50] = value
    y = program(x, packed)
    assert np.isnan(y[4]).all() and np.delete(y, 4, 0).tobytes() == np.delete(clean, 4, 0).tobytes()


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("format_", FORMATS)
def test_large_activations_are_finite_up_to_the_bound(format_: str, digits: int) -> None:
    """Whatever finite weights there are, if the magnitudes of a row add up to less than 2^102."""
    stored, x = random_weights(format_, 40, 64), activations(5, 64)
    for name in ("d", "m") if "m" in (stored.dtype.names or ()) else ("d",):
        stored[name] = np.where(stored[name] < 0, -65504, 65504)
    x *= np.float32(2.0**101) / np.abs(x).sum(axis=1, keepdims=True)
    x[4, 1:], x[4, 0] = 0.0, 2.0**101
    packed = d.pack_rows(stored)
    found = graph_opt.compile(graph_opt.parse(product_text(format_, 40, 64, digits)))(x, packed)
    y, bound = reference(x, packed, 40, digits)
    assert np.isfinite(found).all() and (np.abs(found - y.astype(np.float64)) <= bound).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_split_digits_gives_the_bits_of_the_reference(count: int) -> None:
    special = [0.0, -0.0, 1e-45, 1.2e-38, 2.0**-126, 3.4e38, -3.4e38, 7896959, 7896960, 1.5, -2.5, np.nan, np.inf, 120, 120.5, 0.5]
    x = np.float32(np.random.default_rng(2).standard_normal((40, 32)) * 10.0 ** np.arange(-40, 40, 2)[:, None])
    for n, value in enumerate(special):
        x[n, n] = value
        x[n, n + 1 :] = 0.0 if n % 2 else x[n, n + 1 :]
    text = f"graph @main(%x: f32[S, 32]) -> (i8[S, 1, {count}, 32], f32[S, 1, 2], i32[S, 1, {count}]) {{\n"
    text += f"  %d, %s, %t = split_digits(%x, digits={count})\n  return %d, %s, %t\n}}\n"
    found = graph_opt.compile(graph_opt.parse(text))(x)
    for a, b in zip(found, d.split_digits(x, digits=count), strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("blocks", [*range(1, 10), 11, 18])
def test_blocks_that_are_split_together(blocks: int, count: int) -> None:
    """As many as divide those of a row: each has the bits that it has alone, beside one with a NaN, an infinity, or nothing but zeros."""
    x = np.random.default_rng(blocks).standard_normal((3, 32 * blocks), dtype=np.float32)
    x[0, 5], x[1, -1], x[2, :32] = np.nan, -np.inf, -0.0
    x[0, -32:] *= np.float32(1e-39)
    shapes = f"(i8[N, {blocks}, {count}, 32], f32[N, {blocks}, 2], i32[N, {blocks}, {count}])"
    text = f"graph @main(%x: f32[N, {32 * blocks}]) -> {shapes} {{\n  %d, %s, %t = split_digits(%x, digits={count})\n  return %d, %s, %t\n}}\n"
    for a, b in zip(graph_opt.compile(graph_opt.parse(text))(x), d.split_digits(x, digits=count), strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_lies_between_two_integers_goes_to_the_even_one(count: int) -> None:
    """With both signs, up to the largest integers, and in the interpreter as in machine code; the scale is 1 here."""
    limit = d.LARGEST[count]
    found = np.random.default_rng(count).integers(-2 * limit, 2 * limit + 1, (2, 64)) / 2
    found[:, ::32], found[:, 1::32], found[0, 2:8] = limit, -limit, [0.5, -0.5, 1.5, -1.5, limit - 0.5, 0.5 - limit]
    x = found.astype(np.float32)
    text = f"graph @main(%x: f32[S, 64]) -> (i8[S, 2, {count}, 32], f32[S, 2, 2], i32[S, 2, {count}]) {{\n"
    module = graph_opt.parse(text + f"  %d, %s, %t = split_digits(%x, digits={count})\n  return %d, %s, %t\n}}\n")
    program = graph_opt.compile(module)
    PassManager(load_pipeline(PRESETS["cpu"])).run(module)
    expected = d.split_digits(x, digits=count)
    integers = (expected[0].astype(np.int64) * (256 ** np.arange(count))[:, None]).sum(axis=-2)
    assert np.array_equal(integers.reshape(2, 64), np.rint(x).astype(np.int64))
    for results in (program(x), Interpreter(module).run(module.graphs["main"], [x])):
        for a, b in zip(results, expected, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_of_a_packed_table(format_: str) -> None:
    packed = d.pack_rows(random_weights(format_, 70, 96))
    types = f"%p: u8[3, 3, {d.FORMATS[format_].bytes}], %i: i64[S]"
    text = f"graph @main({types}) -> f32[S, 96] {{\n  %y = packed_embedding(%p, %i, rows=70)\n  return %y\n}}\n"
    program = graph_opt.compile(graph_opt.parse(text))
    ids = np.array([0, 69, -70, 31, 32, -1])
    assert program(packed, ids).tobytes() == d.packed_embedding(packed, ids, rows=70).tobytes()
    assert program(packed, ids[:0]).shape == (0, 96)
    for bad in (70, -71, 2**62):
        with pytest.raises(GraphError, match=rf"embedding index {bad} at position \[1\] is out of range for axis 0: expected -70 <= index < 70"):
            program(packed, np.array([0, bad]))


def test_copied_loops_come_from_their_own_operation() -> None:
    text = "graph @main(%p: u8[1, 2, 640], %q: u8[1, 2, 640], %i: i64[S]) -> (f32[S, 64], f32[S, 64]) {\n"
    text += "  %a = packed_embedding(%p, %i, rows=32)\n  %b = packed_embedding(%q, %i, rows=32)\n  return %a, %b\n}\n"
    module = graph_opt.parse(text)
    PassManager(load_pipeline("infer-types,lower-to-linalg,lower-digits")).run(module)
    loops = [op for op in module.main.block if op.regions]
    found = [{line for inner in (op, *op.walk()) if inner.loc for _, line, _ in inner.loc.places} for op in loops]
    assert found and found == [{2}] * (len(found) // 2) + [{3}] * (len(found) // 2)


def test_equal_products_are_compiled_once() -> None:
    """Loops of products of one shape are copies, so that they fold."""
    names = [f"%p{n}" for n in range(3)]
    types = ", ".join(f"{n}: u8[1, 2, 640]" for n in names)
    lines = "".join(f"  %y{i} = digit_linear(%d, %s, %t, {n}, rows=32)\n" for i, n in enumerate(names))
    text = f"graph @main(%x: f32[S, 64], {types}) -> (f32[S, 32], f32[S, 32], f32[S, 32]) {{\n"
    text += f"  %d, %s, %t = split_digits(%x)\n{lines}  return %y0, %y1, %y2\n}}\n"
    packed = [d.pack_rows(random_weights("q4_1", 32, 64, seed)) for seed in range(3)]
    x = activations(9, 64)
    found = graph_opt.compile(graph_opt.parse(text))(x, *packed)
    single = graph_opt.compile(graph_opt.parse(product_text("q4_1", 32, 64, 3)))
    for y, p in zip(found, packed, strict=True):
        assert y.tobytes() == single(x, p).tobytes()


def test_sums_that_f32_has_not_are_no_fault_of_the_pass() -> None:
    """Sums of bytes times two digits need more than 24 bits, and are exact where the checks keep floats wide."""
    manager = PassManager(load_pipeline("infer-types,lower-to-linalg,lower-digits"), Instrumentation(verify_exec=True))
    manager.run(graph_opt.parse(product_text("q8_0", 3, 32, 2, 17)))
    assert manager.records[-1].note == "verified"


@pytest.mark.parametrize("result", ["%d", "%t"])
def test_poison_leaves_results_alone_that_products_read(result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits that are a result are no part of what a plan shares, though products read them as words."""
    type_ = {"%d": "i8[S, 2, 3, 32]", "%t": "i32[S, 2, 3]"}[result]
    text = f"""graph @main(%x: f32[S, 64], %p: u8[2, 2, 640], %q: u8[2, 2, 1088]) -> (f32[S, 40], f32[S, 40], {type_}) {{
      %d, %s, %t = split_digits(%x)
      %y = digit_linear(%d, %s, %t, %p, rows=40)
      %z = digit_linear(%d, %s, %t, %q, rows=40)
      return %y, %z, {result}
    }}"""
    weights = [d.pack_rows(random_weights(f, 40, 64)) for f in ("q4_1", "q8_0")]
    x = np.random.default_rng(0).standard_normal((19, 64)).astype(np.float32)
    wanted = graph_opt.compile(graph_opt.parse(text), pipeline="cpu")(x, *weights)
    monkeypatch.setenv("GRAPH_OPT_POISON", "1")
    found = graph_opt.compile(graph_opt.parse(text), pipeline="cpu")(x, *weights)
    for a, b in zip(wanted, found, strict=True):
        assert a.tobytes() == b.tobytes()
