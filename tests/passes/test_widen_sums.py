"""widen-sums: sums over other axes than the last one keep their digits."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, assert_same_bits, load, operations

import graph_opt
from ir.clone import clone_module
from ir.printer import print_module
from tests.checks import execute

LOOPS = "inline,decompose,lower-to-linalg,fuse,collapse,lower-to-loops"


@pytest.mark.parametrize(
    "body",
    [
        "%y = sum(%x, axes=[0])",
        "%y = mean(%x, axes=[0])",
        "%y = sum(%x)",
        "%q = exp(%x)\n  %y = sum(%q, axes=[0], keepdims=true)",
        "%f = full(shape=[B, 3], value=0.5, dtype=f32)\n  %y = sum(%f, axes=[1])",
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_sums(body: str, dtype: str) -> None:
    module = load(f"graph @main(%x: {dtype}[B, 3]) {{\n  {body.replace('f32', dtype)}\n  return %y\n}}\n")
    apply(module, LOOPS)
    before = clone_module(module)
    (record,) = apply(module, "widen-sums").records
    assert record.statistics["sums widened"] == 1, print_module(module)
    assert "arith.truncf" in operations(module)
    again = print_module(module)
    assert not apply(module, "widen-sums").records[0].changed and print_module(module) == again
    x = np.arange(9).reshape(3, 3).astype(np.float16 if dtype == "f16" else np.float32)
    if "exp" not in body:
        a, b = (execute(m, "main", [x]) for m in (before, module))
        assert np.array_equal(a[0], b[0])


@pytest.mark.parametrize("body", ["%y = max(%x, axes=[0], initial=0.0)", "%y = prod(%x, axes=[0])", "%y = matmul(%x, %x, transpose_a=true)"])
def test_others_stay(body: str) -> None:
    module = load(f"graph @main(%x: f32[B, 3]) {{\n  {body}\n  return %y\n}}\n")
    apply(module, LOOPS)
    before = clone_module(module)
    assert not apply(module, "widen-sums").records[0].changed
    assert_same_bits(before, module, seeds=(0,))


@pytest.mark.parametrize("width", [1, 2, 3])
def test_many_ones(width: int) -> None:
    """More than 2^24 of them: f32 would stop counting."""
    ones = np.ones((2**24 + 1000, width), np.float32)
    text = f"graph @main(%x: f32[N, {width}]) {{\n  %m = mean(%x, axes=[0])\n  %s = sum(%x)\n  return %m, %s\n}}\n"
    mean, total = graph_opt.compile(graph_opt.parse(text))(ones)
    assert np.array_equal(mean, np.ones(width, np.float32)) and total == np.float32(ones.size)
