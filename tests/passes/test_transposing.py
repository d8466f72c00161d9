"""Nests that read across what they write: loops in squares, numbers that only move."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import optimize

import graph_opt
from ir.printer import print_module

TEXT = """graph @main(%a: f32[{rows}, {columns}]) -> f32[{columns}, {rows}] {{
  %t = transpose(%a, perm=[1, 0])
  return %t
}}
"""


def test_tags() -> None:
    """The loop over neighbours of what is read is next to the one over neighbours of what is written."""
    text = "graph @main(%a: f32[4, B, 3, C]) -> f32[C, 4, 3, B] {\n  %t = transpose(%a, perm=[3, 0, 2, 1])\n  return %t\n}\n"
    lines = [line.strip() for line in print_module(optimize(text, "lower-to-linalg,lower-to-loops")).splitlines()]
    assert [line.split('tag="')[1].split('"')[0] for line in lines if "tag=" in line] == ["row", "row", "cross", "col"]
    moved = "graph @main(%a: f32[4, B, C]) -> f32[B, 4, C] {\n  %t = transpose(%a, perm=[1, 0, 2])\n  return %t\n}\n"
    assert "cross" not in print_module(optimize(moved, "lower-to-linalg,lower-to-loops")), "neighbours stay neighbours"


def test_squares() -> None:
    """Whole vectors are read and written; no element is read alone."""
    program = graph_opt.compile(graph_opt.parse(TEXT.format(rows=64, columns=32)), pipeline="cpu")
    assert "memref.load" not in str(program) and "vector.shuffle" in str(program)


@pytest.mark.parametrize("pipeline", ["cpu", "cpu-avx2", "cpu-neon"])
def test_every_size(pipeline: str) -> None:
    program = graph_opt.compile(graph_opt.parse(TEXT.format(rows="R", columns="C")), pipeline=pipeline)
    rng = np.random.default_rng(0)
    for rows in (0, 1, 15, 16, 17, 63, 64, 65, 83):
        for columns in (0, 1, 15, 16, 17, 31, 64, 66):
            a = rng.standard_normal((rows, columns), np.float32)
            assert np.array_equal(program(a), a.T)


@pytest.mark.parametrize("type_", ["bool", "u8", "bf16", "i64"])
def test_other_elements(type_: str) -> None:
    from ir.types import DTYPES

    program = graph_opt.compile(graph_opt.parse(TEXT.replace("f32", type_).format(rows="R", columns="C")))
    a = (np.arange(37 * 50).reshape(37, 50) % 2).astype(DTYPES[type_].numpy)
    assert np.array_equal(program(a), a.T)


def test_computing_nests() -> None:
    """What computes on the way, and reads others along their rows, gives the numbers of numpy."""
    text = """graph @main(%a: f32[R, C], %b: f32[C, R]) -> f32[C, R] {
  %t = transpose(%a, perm=[1, 0])
  %s = add(%t, %b)
  %m = mul(%s, %b)
  return %m
}
"""
    program = graph_opt.compile(graph_opt.parse(text))
    rng = np.random.default_rng(1)
    for rows, columns in [(16, 64), (40, 70), (3, 130)]:
        a, b = rng.standard_normal((rows, columns), np.float32), rng.standard_normal((columns, rows), np.float32)
        assert np.array_equal(program(a, b), (a.T + b) * b)
