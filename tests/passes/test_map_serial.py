"""map-serial: one thread per round, kernels of one thread, scalars that kernels compute again, control that stays for the host."""

from __future__ import annotations

import pytest
from gpu_checks import CANONICAL, assert_mapped, left_on_top, loops, mapped, same_as_before
from pass_checks import apply, load

from dialects.gpu.launch import captured_values
from ir.clone import clone_module
from ir.core import Module, Operation
from ir.diagnostics import GraphError
from ir.printer import print_module
from ir.types import ScalarType
from passes.gpu._nests import is_host_value
from passes.gpu.map_serial import MapSerial
from tests.checks import all_examples

# what is written for one vector lane at a time, or takes long: not looked at in the default run
EXAMPLES = [(f"{name}-{number}", text) for name, number, text in all_examples() if not name.startswith(("gpu.", "vector."))]


def launches(module: Module) -> list[Operation]:
    return [op for op in module.walk() if op.name == "gpu.launch"]


def test_a_row_is_a_thread() -> None:
    text = "graph @main(%x: f32[B, 5]) -> f32[B, 5] {\n  %y = cumsum(%x, axis=1)\n  return %y\n}"
    module = mapped(text, "map-serial")
    assert_mapped(module)
    assert [op.attributes["threads"] for op in launches(module)] == [64]


def test_a_store_on_top_is_a_kernel_of_one_thread() -> None:
    text = """graph @main(%A: memref<f32[4]>, %C: memref<f32[2]>) {
      %a = memref.load(%A[1]) : f32
      %b = arith.addf(%a, %a) : f32
      memref.store(%b, %C[0])
      memref.store(%a, %C[1])
      return
    }"""
    module = mapped(text, "map-serial")
    (kernel,) = launches(module)
    assert kernel.attributes["threads"] == 1 and not left_on_top(module.graphs["main"].block)


def test_a_scalar_whose_memory_is_written_before_its_use_is_kept() -> None:
    text = """graph @main(%A: memref<f32[4]>, %C: memref<f32[4]>) {
      %a = memref.load(%A[1]) : f32
      scf.parallel(%i = 0 to 4) {
        memref.store(%a, %A[%i])
        yield
      }
      scf.parallel(%j = 0 to 4) {
        %b = memref.load(%A[%j]) : f32
        %c = arith.addf(%a, %b) : f32
        memref.store(%c, %C[%j])
        yield
      }
      return
    }"""
    module = mapped(text, "map-serial")
    assert_mapped(module)
    assert "a.kept" in print_module(module)


def test_what_a_serial_loop_results_in_is_kept() -> None:
    text = """graph @main(%A: memref<i32[S]>, %C: memref<i32[4]>) {
      %zero = arith.constant(0) : i32
      %s = scf.for(%i = 0 to S, %acc = %zero) {
        %a = memref.load(%A[%i]) : i32
        %t = arith.addi(%acc, %a) : i32
        yield %t
      } : i32
      %d = arith.addi(%s, %s) : i32
      scf.parallel(%j = 0 to 4) {
        memref.store(%d, %C[%j])
        yield
      }
      return
    }"""
    module = mapped(text, "map-serial")
    assert_mapped(module)
    for kernel in launches(module):
        assert all(is_host_value(v) for v in captured_values(kernel) if isinstance(v.type, ScalarType))


def test_loops_around_nests_stay_on_the_host() -> None:
    text = """graph @main(%x: f32[B, 4]) -> f32[B, 4] {
      %y = scf.for(%k = 0 to 3, %acc = %x) {
        %z = add(%acc, %x)
        yield %z
      } : f32[B, 4]
      return %y
    }"""
    module = mapped(text, "map-serial")
    assert_mapped(module)
    assert [op.name for op in module.graphs["main"].block if op.name == "scf.for"]


def test_rows_of_scatter_are_written_by_columns() -> None:
    text = "graph @main(%x: f32[B, 4], %i: i64[C], %u: f32[C, 4]) -> f32[B, 4] {\n  %y = scatter(%x, %i, %u, axis=0)\n  return %y\n}"
    module = mapped(text, "map-serial")
    assert_mapped(module)
    assert 1 not in [op.attributes["threads"] for op in launches(module)]


def test_a_loop_whose_rounds_meet_keeps_its_order() -> None:
    text = """graph @main(%A: memref<f32[4]>, %C: memref<f32[8]>) {
      scf.for(%k = 0 to 4) {
        scf.parallel(%i = 0 to 4) {
          %a = memref.load(%C[%i+3-%k]) : f32
          memref.store(%a, %C[%i+4])
          yield
        }
        yield
      }
      return
    }"""
    # the rounds of the inner loop meet, too, so only the order of the outer one is looked at here
    before = loops(text)
    after = clone_module(before)
    apply(after, "map-serial")
    kinds = [op.name for op in after.graphs["main"].block]
    assert "scf.for" in kinds  # it stays on the host, with a kernel inside


def test_memory_of_a_round_is_a_part_of_one() -> None:
    text = """graph @main(%A: memref<f32[B, 4]>, %C: memref<f32[B, 4]>) {
      scf.parallel(%b = 0 to B) {
        %r = memref.alloc() : memref<f32[4]>
        scf.for(%i = 0 to 4) {
          %a = memref.load(%A[%b, %i]) : f32
          memref.store(%a, %r[3-%i])
          yield
        }
        scf.for(%j = 0 to 4) {
          %c = memref.load(%r[%j]) : f32
          memref.store(%c, %C[%b, %j])
          yield
        }
        yield
      }
      return
    }"""
    module = mapped(text, "map-serial")
    assert_mapped(module)
    assert "memref<f32[B, 4]>" in str(next(op for op in module.walk() if op.name == "memref.alloc").result.type)


@pytest.mark.parametrize(("key", "text"), EXAMPLES[::9], ids=[k for k, _ in EXAMPLES[::9]])
def test_every_program_goes_through(key: str, text: str) -> None:
    before = loops(text.replace("@example(", "@main("))
    after = clone_module(before)
    apply(after, "map-rows,map-elements,map-serial")
    assert_mapped(after)
    apply(before, CANONICAL)
    same_as_before(before, after, sizes=((3, 4, 2, 5, 8, 16, 1, 0),))


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="threads"):
        MapSerial(threads=0)


def test_other_shapes_of_a_buffer_of_each_round_are_refused() -> None:
    text = """graph @main(%A: memref<f32[N]>, %C: memref<f32[N]>) {
  scf.parallel(%i = 0 to N) {
    %b = memref.alloc() : memref<f32[4]>
    %v = memref.reshape(%b) : memref<f32[2, 2]>
    %a = memref.load(%A[%i]) : f32
    memref.store(%a, %v[1, 1])
    %c = memref.load(%b[3]) : f32
    memref.store(%c, %C[%i])
    yield
  }
  return
}
"""
    with pytest.raises(GraphError, match=r"4:10: error: memref.reshape: kernels can't have this of %b"):
        apply(load(text), "map-serial")
