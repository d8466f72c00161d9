"""``map-products``: the kernels of products, in every tier, give the bits of the loops that they come from."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
from gpu_checks import loops
from pass_checks import apply, load

from ir.clone import clone_module
from ir.core import Module
from ir.inputs import Kind, generate_inputs
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.infra.verify_exec import describe_difference, same_bits

TILES, ROWS, AUTO = '{tile="16x32", tier=tiles}', "{tier=rows}", "{versions=false}"
CORES = '{tile="16x32"}'
LONG = bool(os.environ.get("LONG_TESTS"))
EDGES = ((1, 1, 1), (15, 15, 31), (16, 16, 32), (17, 17, 33), (5, 67, 7), (16, 80, 32), (3, 0, 2), (0, 5, 4), (4, 3, 0))
"""M, K, N: one, a tile less one, a tile, a tile and one, more steps than there are stages, and nothing."""
FEW = ((1, 1, 1), (3, 67, 9), (8, 32, 8), (5, 525, 17), (9, 40, 8), (2, 0, 3), (0, 5, 4))
if not LONG:
    EDGES, FEW = ((17, 3, 5), (2, 67, 33), (3, 0, 2), (0, 5, 4)), ((1, 525, 3), (3, 19, 9), (0, 5, 4))

MATMUL = """graph @main(%x: f32[M, K], %w: f32[K, N], %b: f32[N], %r: f32[M, N]) {
  %h = matmul(%x, %w) %s = add(%h, %b) %a = silu(%s) %y = add(%a, %r) return %y, %s
}"""
LINEAR = "graph @main(%x: f32[M, K], %w: f32[N, K], %b: f32[N]) { %h = linear(%x, %w, bias=%b) %y = relu(%h) return %y }"
TURNED = "graph @main(%x: f32[K, M], %w: f32[K, N]) { %t = transpose(%x, perm=[1, 0]) %h = matmul(%t, %w) %y = transpose(%h, perm=[1, 0]) return %y }"
GATED = """graph @main(%x: f32[M, K], %g: f32[N, K], %u: f32[K, N]) {
  %a = linear(%x, %g) %s = silu(%a) %b = matmul(%x, %u) %y = mul(%s, %b) return %y
}"""
BATCHES = "graph @main(%x: f32[2, 3, M, K], %w: f32[3, K, N]) { %h = matmul(%x, %w) return %h }"
WIDENED = "graph @main(%x: f32[M, K], %w: bf16[K, N]) { %c = cast(%w, dtype=f32) %h = matmul(%x, %c) %y = cast(%h, dtype=f16) return %y }"
NARROW = "graph @main(%x: bf16[M, K], %w: bf16[K, N], %b: bf16[N]) { %h = matmul(%x, %w) %s = add(%h, %b) %y = gelu(%s) return %y, %h }"
NARROW_LINEAR = "graph @main(%x: f16[M, K], %w: f16[N, K]) { %h = linear(%x, %w) return %h }"
NARROW_TURNED = "graph @main(%x: bf16[K, M], %w: bf16[N, K]) { %t = transpose(%x, perm=[1, 0]) %h = linear(%t, %w) return %h }"
DOUBLE = "graph @main(%x: f64[M, K], %w: f64[K, N]) { %h = matmul(%x, %w) return %h }"
VECTOR = "graph @main(%x: f32[K], %w: f32[K, N]) { %h = matmul(%x, %w) return %h }"
MATRIX_VECTOR = "graph @main(%x: f32[N, K], %w: f32[K]) { %a = relu(%x) %h = matmul(%a, %w) return %h }"


def outputs(module: Module, arrays: Sequence[np.ndarray], reverse: bool = False) -> list[np.ndarray]:
    """The results of a program."""
    return Interpreter(module, {}, quiet=True, reverse_parallel=reverse).run(module.graphs["main"], [np.array(a) for a in arrays])


def assert_same(before: Module, after: Module, sizes: dict[str, int], kinds: Sequence[Kind]) -> None:
    """Both give the same bits, whatever order threads and blocks run in."""
    for kind in kinds:
        arrays = generate_inputs(after, after.graphs["main"], sizes, kind, 0, 0)
        want = outputs(before, arrays)
        for reverse in (False, True) if LONG or kind == kinds[0] else (False,):
            for a, b in zip(want, outputs(after, arrays, reverse), strict=True):
                assert same_bits(a, b), f"{kind} inputs, {sizes}, reverse={reverse}: {describe_difference(a, b)}\n{print_module(after)}"


def check(text: str, options: str, sizes: Sequence[tuple[int, int, int]], kinds: Sequence[Kind] = ("special",)) -> Module:
    """The program with kernels: no loop of a product is left, it reads back, and computes the bits of its loops."""
    before = loops(text)
    after = clone_module(before)
    apply(after, f"map-products{options}")
    printed = print_module(after)
    assert 'tag="k"' not in printed
    assert print_module(load(printed)) == printed
    for m, k, n in sizes:
        assert_same(before, after, {"M": m, "K": k, "N": n}, kinds)
    return after


def launches(module: Module) -> list[str]:
    """The names of the kernels."""
    return [str(op.attributes["name"]) for op in module.graphs["main"].walk() if op.name == "gpu.launch"]


def operations(module: Module) -> set[str]:
    """What the kernels consist of."""
    return {op.name for op in module.graphs["main"].walk()}


@pytest.mark.parametrize("text", [MATMUL, LINEAR, TURNED, GATED, WIDENED, DOUBLE])
def test_tiles(text: str) -> None:
    check(text, TILES, EDGES)


@pytest.mark.parametrize("text", [MATMUL, LINEAR, TURNED, GATED, WIDENED, DOUBLE])
def test_few_rows(text: str) -> None:
    check(text, ROWS, FEW)


@pytest.mark.parametrize("text", [VECTOR, MATRIX_VECTOR])
@pytest.mark.parametrize("options", [AUTO, TILES])
def test_a_matrix_times_a_vector(text: str, options: str) -> None:
    check(text, options, FEW)


@pytest.mark.parametrize("options", [TILES, ROWS])
def test_batches(options: str) -> None:
    check(BATCHES, options, ((3, 5, 2), (1, 17, 9)))


@pytest.mark.parametrize("text", [NARROW, NARROW_LINEAR, NARROW_TURNED])
def test_tensor_cores(text: str) -> None:
    after = check(text, CORES, EDGES, ("exact",))
    assert {"gpu.mma", "gpu.ldmatrix"} <= operations(after)
    assert launches(after) == [launches(after)[0]], "what widened factors is gone"


@pytest.mark.parametrize("text", [NARROW, NARROW_LINEAR])
def test_narrow_factors_without_tensor_cores(text: str) -> None:
    assert "gpu.mma" not in operations(check(text, '{tile="16x32", tensor_cores=false}', [s for s in EDGES if 0 not in s], ("special",)))


@pytest.mark.parametrize("text", [NARROW, NARROW_LINEAR])
def test_few_narrow_rows(text: str) -> None:
    check(text, ROWS, FEW)


@pytest.mark.parametrize("text", [MATMUL, LINEAR, TURNED])
def test_tf32_is_asked_for_by_name(text: str) -> None:
    check(text, '{tile="16x32", tf32=true}', [s for s in EDGES if 0 not in s], ("exact",))
    assert "gpu.mma" not in operations(check(text, '{tile="16x32"}', ()))


@pytest.mark.parametrize(("text", "options"), [(MATMUL, TILES), (MATMUL, ROWS), (LINEAR, ROWS)])
def test_known_sizes(text: str, options: str) -> None:
    """Rows that are multiples of 16 bytes are copied by several elements at a time."""
    after = check(text.replace("K", "24").replace("N", "36"), options, ((17, 0, 0), (16, 0, 0)) if LONG else ((3, 0, 0),))
    assert ":+1]" not in next(line for line in print_module(after).splitlines() if "gpu.cp_async(%w" in line)


def test_narrow_known_sizes() -> None:
    after = check(NARROW.replace("K", "48").replace("N", "40"), CORES, ((17 if LONG else 3, 0, 0),), ("exact",))
    assert all(":+8]" in line for line in print_module(after).splitlines() if "gpu.cp_async" in line)


def test_infinity_stays_in_its_row() -> None:
    """Nothing comes from behind the last step, or from other rows, that 0 in the place of a factor would make NaN."""
    for text, options in ((MATMUL, TILES), (MATMUL, ROWS), (NARROW.replace("gelu", "relu"), CORES)):
        after = check(text, options, ())
        graph = after.graphs["main"]
        arrays = [np.ones_like(a) for a in generate_inputs(after, graph, {"M": 5, "K": 19, "N": 7}, "exact", 0, 0)]
        arrays[0][2] = np.inf
        found = outputs(after, arrays)[0].astype(np.float32)
        assert np.isinf(found[2]).all() and np.isfinite(np.delete(found, 2, 0)).all()


@pytest.mark.parametrize("options", ['{tile="128x128"}', '{tile="64x64"}', '{tile="32x32"}'])
def test_schedules_of_full_size(options: str) -> None:
    after = check(MATMUL.replace("silu", "relu"), options, ())
    arrays = generate_inputs(after, after.graphs["main"], {"M": 33, "K": 19, "N": 65}, "exact", 0, 0)
    x, w, b, r = (a.astype(np.float64) for a in arrays)
    assert same_bits((np.maximum(x @ w + b, 0) + r).astype(np.float32), outputs(after, arrays)[0])


def test_cores_of_full_size() -> None:
    after = check(NARROW.replace("gelu", "relu"), '{tile="128x128"}', ())
    arrays = generate_inputs(after, after.graphs["main"], {"M": 33, "K": 35, "N": 40}, "exact", 0, 0)
    x, w = (a.astype(np.float64) for a in arrays[:2])
    assert same_bits((x @ w).astype(arrays[0].dtype), outputs(after, arrays)[1])


def test_the_host_chooses_by_rows() -> None:
    before = loops(LINEAR.replace("K", "16").replace("N", "32"))
    after = clone_module(before)
    apply(after, "map-products")
    assert "scf.if" in {op.name for op in after.graphs["main"].block}
    for m in (0, 1, 8, 9, 17) if LONG else (0, 2, 9):
        assert_same(before, after, {"M": m}, ("special",))


def test_what_is_no_product_is_left() -> None:
    module = loops("graph @main(%x: i32[M, K], %w: i32[K, N]) { %h = matmul(%x, %w) return %h }")
    printed = print_module(module)
    apply(module, "map-products")
    assert print_module(module) == printed


def test_a_tile_must_be_known() -> None:
    with pytest.raises(Exception, match="tile: expected one of 128x128"):
        loops_and_pass('map-products{tile="3x5"}')


def loops_and_pass(pipeline: str) -> None:
    """Runs a pass on a product."""
    apply(loops(LINEAR), pipeline)


TWO_SUMS = """
graph @main(%x: f32[M, K], %w: f32[K, N], %z: f32[M, L], %v: f32[N, L]) -> f32[M, N] {
  %X = memref.from_tensor(%x) : memref<f32[M, K]>
  %W = memref.from_tensor(%w) : memref<f32[K, N]>
  %Z = memref.from_tensor(%z) : memref<f32[M, L]>
  %V = memref.from_tensor(%v) : memref<f32[N, L]>
  %Y = memref.alloc() : memref<f32[M, N]>
  scf.parallel(%i = 0 to M, tag="m") {
    scf.parallel(%j = 0 to N, tag="n") {
      %zero = arith.constant(0.0) : f32
      %one = arith.constant(1.0) : f32
      %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {
        %a = memref.load(%X[%i, %k]) : f32
        %b = memref.load(%W[%k, %j]) : f32
        %f = math.fma(%a, %b, %acc) : f32
        yield %f
      } : f32
      %t = scf.for(%l = 0 to L, %sum = %one, tag="k") {
        %c = memref.load(%V[%j, %l]) : f32
        %d = memref.load(%Z[%i, %l]) : f32
        %g = math.fma(%c, %d, %sum) : f32
        yield %g
      } : f32
      %u = arith.index_cast(%j) : i32
      %r = arith.sitofp(%u) : f32
      %p = arith.mulf(%s, %t) : f32
      %q = arith.addf(%p, %r) : f32
      memref.store(%q, %Y[%i, %j])
      yield
    }
    yield
  }
  %y = memref.to_tensor(%Y) : f32[M, N]
  return %y
}
"""


@pytest.mark.parametrize("options", [TILES, ROWS])
def test_sums_with_other_numbers_of_steps(options: str) -> None:
    """They follow each other; what starts from something else than zero does so, and columns may be numbers."""
    before = load(TWO_SUMS)
    after = clone_module(before)
    apply(after, f"map-products{options}")
    assert 'tag="k"' not in print_module(after)
    for k, other in ((19, 35), (0, 3)):
        assert_same(before, after, {"M": 3, "K": k, "N": 5, "L": other}, ("special",))
