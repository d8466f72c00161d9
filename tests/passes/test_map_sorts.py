"""map-sorts: networks for pieces of rows, merging, the first elements of a row."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_checks import assert_mapped, loops, mapped
from lowering_checks import run
from pass_checks import apply, load

from interop.samplers import samplers_text
from ir.core import Module
from ir.interpreter import Interpreter
from passes.gpu.map_sorts import SORTS
from passes.infra.verify_exec import same_bits

PIPELINE = "map-sorts,map-elements,map-serial"


def kernels(module: Module) -> int:
    return sum(op.name == "gpu.launch" and op.attributes.get("tag") == "sort" for op in module.walk())


def special(*shape: int) -> np.ndarray:
    """Few different numbers, so there are ties, among them NaN, infinities and both zeros."""
    numbers = np.array([np.nan, -np.inf, np.inf, 0.0, -0.0, 1.5, -2.0, 3.0], np.float32)
    return numbers[np.random.default_rng(3).integers(0, len(numbers), shape)]


def check(text: str, *shapes: tuple[int, ...]) -> Module:
    """The program with kernels computes what its tensor operations do."""
    before, module = load(text), loops(text, SORTS)
    apply(module, PIPELINE)
    assert_mapped(module)
    for shape in shapes:
        want, found = (run(m, [special(*shape)]) for m in (before, module))
        for a, b in zip(want, found, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and same_bits(a, b)
    return module


@pytest.mark.parametrize("descending", ["false", "true"])
@pytest.mark.parametrize("size", [2, 5, 64, 65, 200])
def test_short_rows_are_one_piece(size: int, descending: str) -> None:
    text = f"graph @main(%x: f32[B, {size}]) -> (f32[B, {size}], i64[B, {size}]) {{\n"
    text += f"  %s = sort(%x, descending={descending})\n  %a = argsort(%x, descending={descending})\n  return %s, %a\n}}"
    assert kernels(check(text, (4, size), (0, size))) == 2


def test_long_rows_are_merged() -> None:
    text = "graph @main(%x: f32[5000]) -> (f32[5000], i64[5000]) {\n  %s = sort(%x)\n  %a = argsort(%x, descending=true)\n  return %s, %a\n}"
    assert kernels(check(text, (5000,))) == 4


@pytest.mark.parametrize("rows", [0, 5, 1100])
def test_rows_of_unknown_length(rows: int) -> None:
    text = "graph @main(%x: f32[B, 2]) -> (f32[B, 2], i64[B, 2]) {\n"
    text += "  %s = sort(%x, axis=0)\n  %a = argsort(%x, axis=0)\n  return %s, %a\n}"
    assert kernels(check(text, (rows, 2))) == 4


FIRST = [(100, 7, "true", 1), (100, 100, "false", 1), (5000, 40, "true", 2), (5000, 300, "false", 2)]


@pytest.mark.parametrize(("size", "k", "largest", "count"), FIRST)
def test_the_first_of_a_row(size: int, k: int, largest: str, count: int) -> None:
    text = f"graph @main(%x: f32[{size}]) -> (f32[{k}], i64[{k}]) {{\n  %v, %i = topk(%x, k={k}, largest={largest})\n  return %v, %i\n}}"
    assert kernels(check(text, (size,))) == count


def test_the_first_of_a_long_row_are_found_in_three_steps() -> None:
    text = "graph @main(%x: f32[12000]) -> (f32[200], i64[200]) {\n  %v, %i = topk(%x, k=200)\n  return %v, %i\n}"
    assert kernels(check(text, (12000,))) == 3


def test_more_elements_than_there_are() -> None:
    text = "graph @main(%x: f32[B]) -> (f32[3], i64[3]) {\n  %v, %i = topk(%x, k=3)\n  return %v, %i\n}"
    module = check(text, (3,), (1500,))
    with pytest.raises(Exception, match="topk: k=3 is more than the 2 elements along axis 0"):
        run(module, [special(2)])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i8", "u8", "i64"])
def test_all_types(dtype: str) -> None:
    text = f"graph @main(%x: {dtype}[B, 33]) -> ({dtype}[B, 33], i64[B, 33]) {{\n  %s = sort(%x)\n  %a = argsort(%x)\n  return %s, %a\n}}"
    assert kernels(mapped(text, PIPELINE, keep=SORTS, sizes=((2,),), kinds=("special",))) == 2


def test_what_is_between_other_operations_needs_no_tensor() -> None:
    text = "graph @main(%x: f32[B, 8]) -> f32[B, 8] {\n  %e = exp(%x)\n  %s = sort(%e)\n  %n = neg(%s)\n  return %n\n}"
    module = check(text, (3, 8))
    assert sum(op.name == "memref.to_tensor" for op in module.walk()) == 1


@pytest.mark.parametrize("size", ["40", "N"])
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_the_most_probable(size: str, p: float) -> None:
    text = f"graph @main(%x: f32[B, {size}]) -> f32[B, {size}] {{\n  %p = softmax(%x)\n  %y = top_p(%p, p={p})\n  return %y\n}}"
    module = mapped(text, "map-rows,map-sorts,map-serial", keep=SORTS, sizes=((2, 7),), kinds=("special",))
    assert_mapped(module)
    assert kernels(module) == (2 if size == "40" else 3)


def test_a_choice_by_chance_has_its_kernels() -> None:
    text = samplers_text(3000)
    module = loops(text, SORTS)
    apply(module, "map-rows,map-sorts,map-elements,map-serial")
    assert_mapped(module)
    logits = np.random.default_rng(1).normal(size=3000).astype(np.float32)
    for seed in range(3):
        given = [logits, np.float32(0.8), np.int64(seed)]
        want, found = (Interpreter(m, quiet=True).run(m.graphs["sample"], [np.array(a) for a in given]) for m in (load(text), module))
        assert want[0] == found[0]
