"""map-rows: short rows by 16 threads, long ones by a block, with the sums of machine code."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_checks import assert_mapped, loops, mapped
from pass_checks import apply, load

from graph_opt import compile as compile_graph
from ir.core import Module, Operation
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.gpu.map_rows import MapRows
from passes.infra.base import PassContext
from passes.infra.verify_exec import describe_difference, same_bits

SOFTMAX = "graph @main(%x: f32[B, N]) -> f32[B, N] {\n  %y = softmax(%x)\n  return %y\n}"
NORM = "graph @main(%x: f32[B, N], %w: f32[N]) -> f32[B, N] {\n  %y = rmsnorm(%x, weight=%w)\n  return %y\n}"
PLACES = "graph @main(%x: f32[B, N]) -> i64[B] {\n  %y = argmax(%x, axis=1)\n  return %y\n}"
LOG = "graph @main(%x: f32[B, N]) -> f32[B, N] {\n  %y = log_softmax(%x)\n  return %y\n}"
PROGRAMS = {"softmax": SOFTMAX, "norm": NORM, "argmax": PLACES, "log": LOG}


def kinds_of(size: int) -> tuple[str, ...]:
    """Special inputs for one size are enough."""
    return ("real", "special") if size == 17 else ("real",)


def launches(module: Module) -> list[Operation]:
    return [op for op in module.walk() if op.name == "gpu.launch"]


def rows_of(module: Module) -> list[int]:
    """Threads of the kernels for rows."""
    return [int(str(op.attributes["threads"])) for op in launches(module) if op.attributes.get("tag") == "rows"]


def count(module: Module, name: str) -> int:
    return sum(op.name == name for op in module.walk())


@pytest.mark.parametrize("size", [1, 16, 17, 100])
@pytest.mark.parametrize("program", PROGRAMS)
def test_short_rows(program: str, size: int) -> None:
    module = mapped(PROGRAMS[program].replace("N", str(size)), "map-rows,map-elements,map-serial", sizes=((5,),), kinds=kinds_of(size))
    assert_mapped(module)
    assert not count(module, "gpu.barrier")
    if size > 1:
        assert rows_of(module) == [128]


@pytest.mark.parametrize("size", [17, 515])
@pytest.mark.parametrize("program", PROGRAMS)
def test_long_rows(program: str, size: int) -> None:
    module = mapped(PROGRAMS[program].replace("N", str(size)), "map-rows{short=0},map-elements,map-serial", sizes=((3,),), kinds=kinds_of(size))
    assert_mapped(module)
    if size > 1:
        assert rows_of(module) == [128] and count(module, "gpu.barrier")


@pytest.mark.parametrize("program", PROGRAMS)
def test_rows_of_unknown_length(program: str) -> None:
    module = mapped(PROGRAMS[program], "map-rows,map-elements,map-serial", sizes=((3, 5), (2, 200), (0, 4)))
    assert_mapped(module)
    assert rows_of(module) == [128]


def test_a_sum_of_more_than_a_piece_is_added_piece_by_piece() -> None:
    text = "graph @main(%x: f32[B, 5000]) -> f32[B] {\n  %y = sum(%x, axes=[1])\n  return %y\n}"
    module = mapped(text, "map-rows", sizes=((2,),))
    assert rows_of(module) == [256]
    assert "scf.for(%piece = 0 to 5000 step 4096" in print_module(module)


REDUCED = [("f64", "sum"), ("f16", "mean"), ("bf16", "sum"), ("i64", "sum"), ("i8", "max"), ("f32", "prod"), ("f16", "min")]


@pytest.mark.parametrize(("dtype", "op"), REDUCED)
@pytest.mark.parametrize("short", [0, 1024])
def test_reductions_of_all_types(dtype: str, op: str, short: int) -> None:
    text = f"graph @main(%x: {dtype}[B, 37]) -> {dtype}[B] {{\n  %y = {op}(%x, axes=[1])\n  return %y\n}}"
    assert rows_of(mapped(text, f"map-rows{{short={short}}},map-serial", sizes=((3,),))) == [128]


@pytest.mark.parametrize("op", ["any", "all"])
@pytest.mark.parametrize("short", [0, 1024])
def test_reductions_of_bool(op: str, short: int) -> None:
    text = f"graph @main(%x: bool[B, 37]) -> bool[B] {{\n  %y = {op}(%x, axes=[1])\n  return %y\n}}"
    assert rows_of(mapped(text, f"map-rows{{short={short}}},map-serial", sizes=((3,),))) == [128]


def test_memory_of_one_row_is_on_the_chip() -> None:
    short = mapped(SOFTMAX.replace("N", "64"), "map-rows", sizes=((3,),))
    assert count(short, "memref.alloc") == 1
    assert "memref<f32[4], local>" in print_module(short)
    long = mapped(SOFTMAX.replace("N", "64"), "map-rows{short=0}", sizes=((3,),))
    assert count(long, "memref.alloc") == 1
    assert "memref<f32[64], shared>" in print_module(long)
    assert ".terms" not in print_module(long)  # the exponentials are added where they lie


def test_columns_that_are_aligned_are_taken_in_runs() -> None:
    module = mapped(NORM.replace("N", "2048"), "map-rows", sizes=((2,),))
    assert "vector.load(%w.buffer[" in print_module(module)


@pytest.mark.parametrize(("dtype", "threads"), [("f32", 128), ("f64", 128)])
def test_registers_hold_fewer_large_elements(dtype: str, threads: int) -> None:
    text = f"graph @main(%x: {dtype}[B, 300]) -> {dtype}[B] {{\n  %y = max(%x, axes=[1])\n  return %y\n}}"
    module = mapped(text, "map-rows", sizes=((2,),), kinds=("real",))
    assert rows_of(module) == [threads]
    assert bool(count(module, "gpu.barrier")) == (dtype == "f64")


def test_few_rows_take_whole_warps() -> None:
    text = "graph @main(%x: f32[3, 64]) -> f32[3, 64] {\n  %y = softmax(%x)\n  return %y\n}"
    assert rows_of(mapped(text, "map-rows", sizes=((1,),))) == [64]


def test_sums_across_columns_stay_for_a_thread_per_column() -> None:
    module = mapped("graph @main(%x: f32[B, 64]) -> f32[64] {\n  %y = sum(%x, axes=[0])\n  return %y\n}", "map-rows,map-serial", sizes=((3,), (0,)))
    assert not rows_of(module)


def test_what_may_fail_stays() -> None:
    text = "graph @main(%x: f32[B, 8], %i: i64[C]) -> f32[C, 8] {\n  %y = gather(%x, %i, axis=0)\n  return %y\n}"
    module = loops(text)
    assert not MapRows().run(module, PassContext())


@pytest.mark.parametrize("short", [0, 1024])
@pytest.mark.parametrize("program", ["softmax", "norm", "log"])
def test_the_bits_are_those_of_machine_code(program: str, short: int) -> None:
    text = PROGRAMS[program].replace("N", "77")
    given = [np.random.default_rng(5).normal(size=(5, 77)).astype(np.float32)]
    if program == "norm":
        given.append(np.linspace(-2, 2, 77, dtype=np.float32))


    module = loops(text)
    apply(module, f"map-rows{{short={short}}},map-elements,map-serial,expand-math")
    found = Interpreter(module, quiet=True).run(module.graphs["main"], [np.array(a) for a in given])
    want = compile_graph(load(text), device="cpu")(*given)
    assert same_bits(np.asarray(want), found[0]), describe_difference(np.asarray(want), found[0])


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="threads"):
        MapRows(threads=48)
    with pytest.raises(ValueError, match="short"):
        MapRows(short=-1)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i64"])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_running_sums_are_a_chain_that_all_threads_feed(dtype: str, size: int) -> None:
    text = f"graph @main(%x: {dtype}[B, {size}]) -> {dtype}[B, {size}] {{\n  %y = cumsum(%x, axis=1)\n  return %y\n}}"
    module = mapped(text, "map-rows,map-serial", sizes=((2,),))
    assert_mapped(module)
    assert len(rows_of(module)) == 1


def test_running_sums_of_unknown_length() -> None:
    text = "graph @main(%x: f32[B, N]) -> f32[B, N] {\n  %y = cumsum(%x, axis=1)\n  return %y\n}"
    module = mapped(text, "map-rows,map-serial", sizes=((2, 3), (2, 0)))
    assert rows_of(module) == [128] and "running" in print_module(module)


def test_running_sums_go_on_in_the_next_piece() -> None:
    text = "graph @main(%x: i32[N]) -> i32[N] {\n  %y = cumsum(%x)\n  return %y\n}"
    module = loops(text)
    apply(module, "map-rows")
    given = np.random.default_rng(2).integers(-9, 9, 1030).astype(np.int32)
    (found,) = Interpreter(module, quiet=True).run(module.graphs["main"], [given])
    assert (found == np.cumsum(given)).all()


ONE = """graph @main(%x: f32[N], %y: f32[1, N]) -> (i64[], f32[N], f32[], f32[1, N], f32[1, N]) {
  %a = argmax(%x)
  %s = softmax(%x)
  %m = sum(%x)
  %n = rmsnorm(%y)
  %l = log_softmax(%n)
  return %a, %s, %m, %n, %l
}"""


@pytest.mark.parametrize("pipeline", ["map-rows", "map-rows{short=0}"])
@pytest.mark.parametrize("size", [1, 16, 77])
def test_a_single_row(size: int, pipeline: str) -> None:
    module = mapped(ONE.replace("N", str(size)), f"{pipeline},map-elements,map-serial", sizes=((1,),))
    assert_mapped(module)
    if size > 1:
        assert all(op.attributes["threads"] != 1 for op in launches(module))
        assert "shared" in print_module(module) or "local" in print_module(module)


def test_a_single_row_of_unknown_length() -> None:
    module = mapped(ONE, "map-rows,map-elements,map-serial", sizes=((5,), (200,)))
    assert_mapped(module)
    alone = [op for op in launches(module) if op.attributes["threads"] == 1]  # the check that argmax has something to choose from
    assert not any(n.name == "scf.for" for op in alone for n in op.walk())


def test_scalars_of_a_single_row_that_others_use_are_kept() -> None:
    text = """graph @main(%A: memref<f32[40]>, %C: memref<f32[B]>) {
      %zero = arith.constant(0.0) : f32
      %s = scf.for(%i = 0 to 40, %acc = %zero, tag="reduce") {
        %a = memref.load(%A[%i]) : f32
        %t = arith.addf(%acc, %a) : f32
        yield %t
      } : f32
      %d = arith.addf(%s, %s) : f32
      scf.parallel(%j = 0 to B) {
        memref.store(%d, %C[%j])
        yield
      }
      return
    }"""
    module = mapped(text, "map-rows,map-elements,map-serial")
    assert_mapped(module)
    assert rows_of(module) == [32] and "s.kept" in print_module(module)


IN_A_CHOICE = """graph @main(%A: memref<f32[B, 16]>, %w: memref<f32[16]>, %C: memref<f32[B, 16]>) {
  %R = memref.alloc() : memref<f32[B, 16]>
  %zero = arith.constant(0.0) : f32
  scf.parallel(%i = 0 to B) {
    scf.parallel(%j = 0 to 16) {
      %a = memref.load(%A[%i, %j]) : f32
      memref.store(%a, %R[%i, %j])
      yield
    }
    %s = scf.for(%k = 0 to 16, %acc = %zero, tag="reduce") {
      %b = memref.load(%R[%i, %k]) : f32
      %t = arith.addf(%acc, %b) : f32
      yield %t
    } : f32
    scf.parallel(%l = 0 to 16) {
      %c = memref.load(%A[%i, %l]) : f32
      %less = arith.cmpf(%c, %s, predicate="lt") : bool
      %r = scf.if(%less) {
        %d = memref.load(%R[%i, %l]) : f32
        yield %d
      } {
        yield %s
      } : f32
      memref.store(%r, %C[%i, %l])
      yield
    }
    yield
  }
  return
}"""


@pytest.mark.parametrize("short", [0, 1024])
def test_memory_of_a_row_that_a_choice_reads_stays_where_it_is(short: int) -> None:
    module = mapped(IN_A_CHOICE, f"map-rows{{short={short}}},map-serial", sizes=((3,), (17,)))
    assert len(rows_of(module)) == 1 and count(module, "memref.alloc") == 1


def test_an_element_of_the_row_number_is_no_element_of_the_lane() -> None:
    text = """graph @main(%A: memref<f32[16, 16]>, %w: memref<f32[16]>, %C: memref<f32[16, 16]>) {
      %zero = arith.constant(0.0) : f32
      scf.parallel(%i = 0 to 16) {
        %s = scf.for(%k = 0 to 16, %acc = %zero, tag="reduce") {
          %a = memref.load(%A[%i, %k]) : f32
          %b = memref.load(%w[%k]) : f32
          %t = math.fma(%a, %b, %acc) : f32
          yield %t
        } : f32
        %own = memref.load(%w[%i]) : f32
        scf.parallel(%l = 0 to 16) {
          %c = memref.load(%w[%l]) : f32
          %d = arith.addf(%c, %s) : f32
          %e = arith.mulf(%d, %own) : f32
          memref.store(%e, %C[%i, %l])
          yield
        }
        yield
      }
      return
    }"""
    assert rows_of(mapped(text, "map-rows", sizes=((1,),))) == [128]
