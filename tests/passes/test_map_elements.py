"""map-elements: runs of neighbours, what is left over, tiles for what is read across."""

from __future__ import annotations

import pytest
from gpu_checks import assert_mapped, loops, mapped

from ir.core import Module, Operation
from ir.printer import print_module
from passes.gpu.map_elements import MapElements
from passes.infra.base import PassContext


def launches(module: Module) -> list[Operation]:
    return [op for op in module.walk() if op.name == "gpu.launch"]


def tags(module: Module) -> list[str]:
    return [str(op.attributes.get("tag")) for op in launches(module)]


def count(module: Module, name: str) -> int:
    return sum(op.name == name for op in module.walk())


def test_rows_are_taken_in_runs_of_16_bytes_and_a_bias_too() -> None:
    text = """graph @main(%x: f32[B, 8], %b: f32[8]) -> f32[B, 8] {
      %z = add(%x, %b)
      %y = silu(%z)
      return %y
    }"""
    module = mapped(text, "map-elements")
    assert tags(module) == ["elements"]
    assert "vector.load(%x.buffer[%i, 4*%piece:+4])" in print_module(module)
    assert "vector.load(%b.buffer[4*%piece:+4])" in print_module(module)
    assert_mapped(module)


def test_what_does_not_follow_the_variable_is_a_scalar() -> None:
    text = "graph @main(%x: f32[B, 8], %s: f32[B, 1]) -> f32[B, 8] {\n  %y = mul(%x, %s)\n  return %y\n}"
    module = mapped(text, "map-elements")
    assert count(module, "vector.load") == 2  # the run of x, and what is stored at the end
    assert "memref.load(%s.buffer[%i, 0])" in print_module(module)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 8, 13])
def test_one_loop_of_any_length_has_a_rest(size: int) -> None:
    text = "graph @main(%x: f32[B]) -> f32[B] {\n  %y = exp(%x)\n  return %y\n}"
    module = mapped(text, "map-elements", sizes=((size,), (0,)))
    assert count(module, "vector.load") == 2 and count(module, "math.exp") == 2


@pytest.mark.parametrize(("dtype", "width"), [("f16", 8), ("bf16", 8), ("f64", 2), ("i8", 16), ("i64", 2)])
def test_a_run_is_16_bytes_of_every_type(dtype: str, width: int) -> None:
    text = f"graph @main(%x: {dtype}[B, 32]) -> {dtype}[B, 32] {{\n  %y = add(%x, %x)\n  return %y\n}}"
    module = mapped(text, "map-elements", sizes=((2,), (0,)))
    assert f":+{width}]" in print_module(module)


def test_types_of_different_sizes_share_a_run() -> None:
    text = "graph @main(%x: bf16[B, 16], %y: f32[B, 16]) -> f32[B, 16] {\n  %a = cast(%x, dtype=f32)\n  %z = add(%a, %y)\n  return %z\n}"
    printed = print_module(mapped(text, "map-elements", sizes=((3,), (1,))))
    assert "8*%run:+8]" in printed and "8*%run:+4]" in printed and "8*%run+4:+4]" in printed


@pytest.mark.parametrize("row", [6, 7])
def test_rows_that_are_not_aligned_are_taken_in_shorter_runs_or_element_by_element(row: int) -> None:
    text = f"graph @main(%x: f32[B, {row}], %s: f32[B, 1]) -> f32[B, {row}] {{\n  %y = mul(%x, %s)\n  return %y\n}}"
    printed = print_module(mapped(text, "map-elements", sizes=((3,), (0,))))
    assert (":+2]" in printed) == (row == 6)


def test_pieces_of_a_concat_are_aligned_by_what_is_added() -> None:
    text = "graph @main(%x: f32[B, 8], %y: f32[B, 4]) -> f32[B, 12] {\n  %z = concat(%x, %y, axis=1)\n  return %z\n}"
    printed = print_module(mapped(text, "map-elements", sizes=((3,), (0,))))
    assert ", 8:+4]" in printed


def test_two_symbolic_dimensions() -> None:
    text = "graph @main(%x: f32[B, S], %s: f32[B, 1]) -> f32[B, S] {\n  %y = mul(%x, %s)\n  return %y\n}"
    module = mapped(text, "map-elements", sizes=((3, 5), (0, 2), (2, 0)))
    assert tags(module) == ["elements"] and count(module, "vector.load") == 0


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (67, 33)])
def test_a_transpose_goes_through_a_padded_tile(rows: int, columns: int) -> None:
    text = f"graph @main(%x: f32[{rows}, {columns}]) -> f32[{columns}, {rows}] {{\n  %y = transpose(%x, perm=[1, 0])\n  return %y\n}}"
    module = mapped(text, "map-elements", sizes=((1,),), kinds=("special",))
    assert tags(module) == ["transposed"]
    assert "memref<f32[64, 65], shared>" in print_module(module)
    assert_mapped(module)


@pytest.mark.parametrize(("dtype", "tile"), [("f64", "32, 33"), ("bf16", "64, 66")])
def test_a_tile_is_padded_by_a_bank(dtype: str, tile: str) -> None:
    text = f"graph @main(%x: {dtype}[A, 1, B], %z: {dtype}[B]) -> {dtype}[1, B, A] {{\n  %t = transpose(%x, perm=[1, 2, 0])\n"
    text += "  %w = unsqueeze(%z, axes=[1])\n  %y = add(%t, %w)\n  return %y\n}"
    module = mapped(text, "map-elements", sizes=((17, 18), (0, 2)), kinds=("special",))
    assert f"memref<{dtype}[{tile}], shared>" in print_module(module)


def test_a_check_stays_for_another_pass() -> None:
    text = "graph @main(%x: f32[B, 4], %i: i64[C]) -> f32[C, 4] {\n  %y = gather(%x, %i, axis=0)\n  return %y\n}"
    before = loops(text)
    MapElements().run(before, PassContext())
    assert tags(before) == ["elements"] and count(before, "cf.assert") > 0
    assert tags(mapped(text, "map-elements,map-serial")) == ["serial", "elements"]


def test_a_nest_that_reads_what_it_writes_is_left_in_order() -> None:
    text = """graph @main(%C: memref<f32[B, 8]>) {
      scf.parallel(%i = 0 to B, %j = 0 to 8, tag="col") {
        %c = memref.load(%C[%i, %j]) : f32
        %e = math.exp(%c) : f32
        memref.store(%e, %C[%i, %j])
        %d = memref.load(%C[%i, %j]) : f32
        %f = arith.addf(%d, %d) : f32
        memref.store(%f, %C[%i, %j])
        yield
      }
      return
    }"""
    module = mapped(text, "map-elements")
    assert tags(module) == ["elements"] and count(module, "vector.load") == 0


def test_a_load_behind_the_store_sees_it() -> None:
    text = """graph @main(%A: memref<f32[B, 8]>, %C: memref<f32[B, 8]>, %D: memref<f32[B, 8]>) {
      scf.parallel(%i = 0 to B, %j = 0 to 8, tag="col") {
        %a = memref.load(%A[%i, %j]) : f32
        memref.store(%a, %C[%i, %j])
        %c = memref.load(%C[%i, %j]) : f32
        memref.store(%c, %D[%i, %j])
        yield
      }
      return
    }"""
    assert count(mapped(text, "map-elements"), "vector.load") == 0


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="threads"):
        MapElements(threads=100)
