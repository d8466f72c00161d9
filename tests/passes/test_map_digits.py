"""map-digits: kernels of products with packed weights have the bits of machine code of the CPU, in every form, and fail like it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pass_checks import apply, load

import graph_opt
from dialects.graph import digits as d
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from passes.gpu.map_digits import MapDigits
from passes.infra.verify_exec import same_bits
from tests.digit_programs import FORMATS, product_text, random_weights

BEFORE = "O1,lower-to-linalg,fuse,collapse"
CASES = [(f, n) for f in FORMATS for n in range(4)]


def mapped(text: str, options: str = "") -> Module:
    """The kernels."""
    module = load(text)
    apply(module, f"{BEFORE},map-digits{options}")
    assert not {op.definition.text_name for op in module.walk()} & {"split_digits", "digit_linear", "packed_linear", "packed_embedding"}
    return module


def run(module: Module, arrays: Sequence[Any], reverse: bool = False) -> list[np.ndarray]:
    return Interpreter(module, quiet=True, reverse_parallel=reverse).run(module.main, [np.array(a) for a in arrays])


def activations(count: int, size: int) -> np.ndarray:
    generator = np.random.default_rng(count)
    x = np.float32(generator.standard_normal((count, size)) * np.where(generator.random((count, size)) < 0.03, 100, 1))
    if count > 2:
        x[1, :32] = 0.0
        x[2, 5] = np.nan
    return x


@pytest.mark.parametrize(("format_", "digits"), CASES)
def test_all_forms_have_the_bits_of_machine_code(format_: str, digits: int) -> None:
    """One row, few, and many; rows that fill no tile, and columns that fill no panel."""
    text = product_text(format_, 40, 96, digits)
    packed = d.pack_rows(random_weights(format_, 40, 96))
    program, module = graph_opt.compile(graph_opt.parse(text), threads=1), mapped(text, "{few=2, many=3, enough=5}")
    for count in (1, 3, 4, 7):
        x = activations(count, 96)
        assert same_bits(program(x, packed), run(module, [x, packed], reverse=bool(count % 2))[0]), count


@pytest.mark.parametrize(("size", "count", "options"), [(32, 1, ""), (544, 1, ""), (3264, 1, ""), (640, 6, "{few=8}"), (64, 64, "")])
@pytest.mark.parametrize("format_", ["q4_1", "q4_0"])
def test_known_sizes(format_: str, size: int, count: int, options: str) -> None:
    """Fewer blocks than warps, some more, more than wait in shared memory at a time; a single row is split by those who multiply it."""
    text = product_text(format_, 32, size, 3, count)
    packed, x = d.pack_rows(random_weights(format_, 32, size)), activations(count, size)
    program = graph_opt.compile(graph_opt.parse(text), threads=1)
    assert same_bits(program(x, packed), run(mapped(text, options), [x, packed])[0])


@pytest.mark.parametrize("count", [1, 5])
def test_digits_that_two_products_read(count: int) -> None:
    """They are made once, by a kernel of their own."""
    body = "  %d, %s, %t = split_digits(%x)\n" + "".join(f"  %{n} = digit_linear(%d, %s, %t, %p{n}, rows=40)\n" for n in "ab")
    types = "".join(f", %p{n}: u8[2, 18, {d.FORMATS[f].bytes}]" for n, f in zip("ab", ("q4_1", "q8_0"), strict=True))
    text = f"graph @main(%x: f32[{count}, 576]{types}) -> (f32[{count}, 40], f32[{count}, 40]) {{\n{body}  return %a, %b\n}}\n"
    arrays = [activations(count, 576), *(d.pack_rows(random_weights(f, 40, 576)) for f in ("q4_1", "q8_0"))]
    module = mapped(text)
    assert [op.attribute("tag") for op in module.main.block if op.name == "gpu.launch"] == ["digits.split", "digits", "digits"]
    for a, b in zip(graph_opt.compile(graph_opt.parse(text), threads=1)(*arrays), run(module, arrays), strict=True):
        assert same_bits(a, b)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_split_digits(count: int) -> None:
    special = [0.0, -0.0, 1e-45, 1.2e-38, 2.0**-126, 3.4e38, -3.4e38, 7896959, 7896960, 1.5, -2.5, np.nan, np.inf, 120, 120.5, 0.5]
    x = np.float32(np.random.default_rng(2).standard_normal((20, 32)) * 10.0 ** np.arange(-40, 40, 4)[:, None])
    for n, value in enumerate(special):
        x[n, n] = value
        x[n, n + 1 :] = 0.0 if n % 2 else x[n, n + 1 :]
    text = f"graph @main(%x: f32[S, 32]) -> (i8[S, 1, {count}, 32], f32[S, 1, 2], i32[S, 1, {count}]) {{\n"
    text += f"  %d, %s, %t = split_digits(%x, digits={count})\n  return %d, %s, %t\n}}\n"
    for a, b in zip(run(mapped(text), [x]), d.split_digits(x, digits=count), strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_of_a_packed_table(format_: str) -> None:
    packed = d.pack_rows(random_weights(format_, 70, 96))
    types = f"%p: u8[3, 3, {d.FORMATS[format_].bytes}], %i: i64[S]"
    module = mapped(f"graph @main({types}) -> f32[S, 96] {{\n  %y = packed_embedding(%p, %i, rows=70)\n  return %y\n}}\n")
    ids = np.array([0, 69, -70, 31, 32, -1])
    for reverse in (False, True):
        assert same_bits(run(module, [packed, ids], reverse)[0], d.packed_embedding(packed, ids, rows=70))
    assert run(module, [packed, ids[:0]])[0].shape == (0, 96)
    for bad in (70, -71, 2**62):
        with pytest.raises(GraphError, match=rf"embedding index {bad} at position \[1\] is out of range for axis 0: expected -70 <= index < 70"):
            run(module, [packed, np.array([0, bad])])


def test_no_rows() -> None:
    for digits in (0, 3):
        module = mapped(product_text("q4_1", 40, 64, digits))
        assert run(module, [np.zeros((0, 64), np.float32), d.pack_rows(random_weights("q4_1", 40, 64))])[0].shape == (0, 40)


def test_options() -> None:
    for options in ({"few": 0}, {"few": 9}, {"many": 17}, {"enough": 1}):
        with pytest.raises(ValueError, match="expected"):
            MapDigits(**options)
