"""Operations and bytes of nests, counted by hand and by the program."""

from __future__ import annotations

import pytest

import graph_opt
from graph_opt.api import find_graph
from graph_opt.work import FLOPS, dots_of, least_bytes, memories_used, work_of
from ir.opdef import REGISTRY
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline

NO_FLOPS = {
    "arith.constant", "arith.negf", "arith.extf", "arith.truncf", "arith.sitofp", "arith.uitofp", "arith.bitcast", "arith.select",
    "math.absf", "math.floor", "math.ceil", "math.trunc", "math.roundeven", "math.copysign", "math.ldexp",
}  # fmt: skip
INTEGER = {"math.isnan", "math.absi", "arith.cmpf"}


def counted(text: str, names: dict[str, int] | None = None, pipeline: str = "O2") -> list[tuple[float, float]]:
    """Operations and bytes of every nest."""
    module = graph_opt.parse(text)
    PassManager(load_pipeline(pipeline)).run(module)
    graph = find_graph(module, None)
    used = memories_used(graph)
    found = []
    for op in graph.block:
        if op.regions:
            work = work_of(op, names or {})
            assert work.known
            found.append((work.flops, least_bytes([work], [m for m, users in used.items() if users - {op}], names or {})))
    return found


def test_matmul() -> None:
    text = "graph @main(%a: f32[M, 5], %b: f32[5, 7]) -> f32[M, 7] {\n  %c = matmul(%a, %b)\n  return %c\n}\n"
    for rows in (1, 3, 100):
        assert counted(text, {"M": rows}) == [(2 * rows * 5 * 7, 4 * (rows * 5 + 5 * 7 + rows * 7))]


def test_mlp() -> None:
    batch, width, hidden = 4, 64, 256
    text = """graph @main(%x: f32[B, 64], %w1: f32[64, 256], %b1: f32[256], %w2: f32[256, 64]) -> f32[B, 64] {
  %h0 = matmul(%x, %w1)
  %h1 = add(%h0, %b1)
  %h2 = silu(%h1)
  %out = matmul(%h2, %w2)
  return %out
}
"""
    product = 2 * batch * width * hidden
    first = product + (1 + FLOPS["math.silu"]) * batch * hidden, 4 * (batch * width + width * hidden + hidden + batch * hidden)
    second = product, 4 * (batch * hidden + hidden * width + batch * width)
    assert counted(text, {"B": batch}) == [first, second]


SOFTMAX = """graph @main(%A: memref<f32[M, N]>, %C: memref<f32[M, N]>) {
  %E = memref.alloc() : memref<f32[M, N]>
  linalg.generic(i < M) {
    %low = arith.constant(-inf) : f32
    %max = linalg.reduce(j < N, %a = %A[i, j], %m = %low) {
      %t = arith.maximumf(%m, %a) : f32
      yield %t
    } : f32
    linalg.generic(j < N, %a1 = %A[i, j], %e = %E[i, j]) {
      %d = arith.subf(%a1, %max) : f32
      %x = math.exp(%d) : f32
      yield %x
    }
    %zero = arith.constant(0.0) : f32
    %sum = linalg.reduce(j < N, %e1 = %E[i, j], %s = %zero) {
      %t1 = arith.addf(%s, %e1) : f32
      yield %t1
    } : f32
    linalg.generic(j < N, %e2 = %E[i, j], %c = %C[i, j]) {
      %q = arith.divf(%e2, %sum) : f32
      yield %q
    }
    yield
  }
  return
}
"""


def test_softmax() -> None:
    """Maximum, difference, exp, sum and quotient of every element; the buffer in between is nobody's traffic."""
    m, n = 6, 50
    assert counted(SOFTMAX, {"M": m, "N": n}, "") == [((4 + FLOPS["math.exp"]) * m * n, 2 * 4 * m * n)]


def test_softmax_as_it_is_lowered() -> None:
    text = "graph @main(%x: f32[M, 50]) -> f32[M, 50] {\n  %y = softmax(%x)\n  return %y\n}\n"
    found = counted(text, {"M": 6})
    assert sum(flops for flops, _ in found) >= (3 + FLOPS["math.exp"]) * 300
    assert sum(nbytes for _, nbytes in found) >= 2 * 4 * 300


@pytest.mark.parametrize(
    ("nest", "elements"),
    [
        ("linalg.generic(i < 8, j < 8, %a = %A[i, j], %c = %C[i, j])", 64 + 64),
        ("linalg.generic(i < 8, j < 8, %a = %A[j, i], %c = %C[i, j])", 64 + 64),
        ("linalg.generic(i < 8, j < 8, %a = %A[0, j], %c = %C[i, j])", 8 + 64),  # a row for all
        ("linalg.generic(i < 4, j < 2, %a = %A[i + 4, j], %c = %C[i, j])", 8 + 8),  # a part
        ("linalg.generic(i < 2, j < 4, %a = %A[0, 4*i + j], %c = %C[i, j])", 8 + 8),
        ("linalg.generic(i < 8, j < 5, k < 4, %a = %A[i, j + k], %c = %C[i, j])", 64 + 40),  # windows
        ("linalg.generic(i < 8, j < 8, %b = %A[i, j], %a = %A[i, j], %c = %C[i, j])", 64 + 64),  # twice the same
        ("linalg.generic(i < 0, j < 8, %a = %A[i, j], %c = %C[i, j])", 0),
    ],
)
def test_elements(nest: str, elements: int) -> None:
    text = f"graph @main(%A: memref<f32[8, 8]>, %C: memref<f32[8, 8]>) {{\n  {nest} {{\n    yield %a\n  }}\n  return\n}}\n"
    assert counted(text, pipeline="") == [(0, 4 * elements)]


def test_gather_reads_as_many_rows_as_there_are_indices() -> None:
    text = "graph @main(%table: f32[1000, 16], %ids: i64[N]) -> f32[N, 16] {\n  %y = gather(%table, %ids, axis=0)\n  return %y\n}\n"
    assert counted(text, {"N": 10})[-1] == (0, 8 * 10 + 2 * 4 * 160)


def attention(queries: int, keys: int, causal: bool) -> tuple[float, float]:
    flag = ", causal=true" if causal else ""
    text = f"""graph @main(%q: f32[2, 4, S, 8], %k: f32[2, 2, T, 8], %v: f32[2, 2, T, 6]) -> f32[2, 4, S, 6] {{
  %o = attention(%q, %k, %v{flag})
  return %o
}}
"""
    module = graph_opt.parse(text)
    PassManager(load_pipeline("O1")).run(module)
    (op,) = [op for op in module.main.block if op.name == "graph.attention"]
    names = {"S": queries, "T": keys}
    work = work_of(op, names)
    assert work.known
    return work.flops, least_bytes([work], work.memories(), names)


def test_attention_as_one_operation() -> None:
    pair = 2 * 8 + 2 * 6 + FLOPS["math.exp"] + 4
    for queries, keys, causal, seen in ((3, 5, False, 15), (3, 5, True, 3 + 4 + 5), (5, 3, True, 0 + 0 + 1 + 2 + 3), (1, 5, True, 5)):
        nbytes = 4 * 2 * (4 * queries * 8 + 2 * keys * 8 + 2 * keys * 6 + 4 * queries * 6)
        assert attention(queries, keys, causal) == (8 * (seen * pair + queries * 6), nbytes)


PACKED = """graph @main(%x: f32[S, 96], %w: FORMAT[40, 96], %ids: i64[S]) -> (f32[S, 40], f32[S, 40], f32[S, 96]) {
  %p = pack_rows(%w)
  %d, %s, %t = split_digits(%x, digits=2)
  %y = digit_linear(%d, %s, %t, %p, rows=40)
  %z = packed_linear(%x, %p, rows=40)
  %e = packed_embedding(%p, %ids, rows=40)
  return %y, %z, %e
}
"""


@pytest.mark.parametrize(("format_", "row", "unpack"), [("q4_0", 18, 1), ("q4_1", 20, 2), ("q8_0", 34, 1)])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_products_with_packed_weights(format_: str, row: int, unpack: int, rows: int) -> None:
    """64 packed rows of three blocks are read by products, the named ones by an embedding."""
    module = graph_opt.parse(PACKED.replace("FORMAT", format_))
    PassManager(load_pipeline("infer-types")).run(module)
    works = {op.name.removeprefix("graph."): work_of(op, {"S": rows}) for op in module.main.block}
    packed, x, product = 64 * 3 * row, 4 * rows * 96, 2 * rows * 40 * 96
    split = rows * 3 * (2 * 32 + 2 * 4 + 2 * 4)
    expected = {
        "split_digits": (2 * rows * 96, x + split),
        "digit_linear": (product, split + packed + 4 * rows * 40),
        "packed_linear": (product, x + packed + 4 * rows * 40),
        "packed_embedding": (unpack * rows * 96, 8 * rows + rows * 3 * row + 4 * rows * 96),
    }
    for name, found in expected.items():
        work = works[name]
        assert work.known and (work.flops, least_bytes([work], work.memories(), {"S": rows})) == found, name
    assert works["digit_linear"].dots == {2: product} and dots_of(works[name] for name in expected) == {2: product}
    assert dots_of([works["digit_linear"], works["digit_linear"]]) == {2: 2 * product}


def test_an_updated_cache_is_read_and_a_part_of_it_written() -> None:
    text = """graph @main(%C: memref<f32[100, 4]>, %x: memref<f32[4]>, %s: memref<f32[4]>) {
  linalg.generic(j < 4) {
    linalg.generic(k < 1, %a = %x[j], %o = %C[7, j]) {
      yield %a
    }
    %zero = arith.constant(0.0) : f32
    %sum = linalg.reduce(i < 100, %c = %C[i, j], %acc = %zero) {
      %t = arith.addf(%acc, %c) : f32
      yield %t
    } : f32
    memref.store(%sum, %s[0])
    yield
  }
  return
}
"""
    ((flops, nbytes),) = counted(text, pipeline="")
    assert flops == 400
    assert nbytes == 4 * (4 + (400 - 4) + 4 + 1)


def test_loops_whose_bounds_depend_on_others() -> None:
    """A triangle, in blocks of four columns with a shorter last one."""
    text = """graph @main(%A: memref<f32[N, N]>, %C: memref<f32[N]>) {
  scf.parallel(%i = 0 to N) {
    scf.for(%jt = 0 to %i + 1 step 4) {
      %n = affine.min(4, %i + 1 - %jt) : index
      scf.for(%j = 0 to %n) {
        %a = memref.load(%A[%i, %jt + %j]) : f32
        %b = math.fma(%a, %a, %a) : f32
        memref.store(%b, %C[%i])
        yield
      }
      yield
    }
    yield
  }
  return
}
"""
    for size in (1, 4, 9):
        ((flops, nbytes),) = counted(text, {"N": size}, "")
        assert flops == 2 * size * (size + 1) / 2
        assert nbytes <= 4 * (size * size + size)


def test_bounds_that_depend_on_data_are_said_to_be_unknown() -> None:
    text = """graph @main(%n: memref<index[1]>, %A: memref<f32[8]>) {
  scf.for(%r = 0 to 1) {
    %m = memref.load(%n[0]) : index
    scf.for(%i = 0 to %m) {
      %a = memref.load(%A[%i]) : f32
      %b = arith.addf(%a, %a) : f32
      memref.store(%b, %A[%i])
      yield
    }
    yield
  }
  return
}
"""
    module = graph_opt.parse(text)
    (loop,) = [op for op in module.main.block if op.regions]
    assert not work_of(loop, {}).known


def test_every_function_of_floats_has_a_number_of_operations() -> None:
    graph_opt.parse("")
    floats = {name for name in REGISTRY if name.startswith("math.") or (name.startswith("arith.") and name.endswith("f"))}
    assert floats - set(FLOPS) - NO_FLOPS - INTEGER == set()
    assert set(FLOPS) <= set(REGISTRY)
