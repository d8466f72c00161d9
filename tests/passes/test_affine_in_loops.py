"""Passes meet index expressions as operations, and prefetches: same bits, and neither is in the way more than it must be."""

from __future__ import annotations

import pytest
from memory_programs import changed, program
from memory_programs import left as reasons
from pass_checks import apply, load
from vector_checks import body, check, transformed

SIZES = [{"M": m, "N": n} for m, n in [(9, 3), (1, 1), (0, 2), (16, 2), (7, 5)]]


def lines_with(module: object, name: str) -> list[str]:
    return [line.strip() for line in str(module).splitlines() if name in line]


# -- loops -------------------------------------------------------------------------------------------------------------


def tiled(inside: str) -> str:
    return program(f"""
  scf.parallel(%i = 0 to M, tag="m") {{
    scf.parallel(%j = 0 to N, tag="n") {{
      {inside}
      memref.store(%x, %C[%i, %j])
      yield
    }}
    yield
  }}""")


VARYING = """%p = affine.apply(M - %i - 1) : index
      %q = affine.min(%j + 1, N - 1) : index
      %b = affine.align_down(max(%p, 0), 4) : index
      memref.prefetch(%A[%p + 8, %q])
      %x = memref.load(%A[%b, %q]) : f32"""


def test_tile_and_peel() -> None:
    after = changed(tiled(VARYING), "tile{loop=m, size=4},peel{loop=m.tile, sizes=[2, 1]}", SIZES)
    assert lines_with(after, "affine.apply")[0] == "%p = affine.apply(-%i+M-1) : index"
    assert len(lines_with(after, "prefetch")) == 3


def test_peel_what_mentions_the_tile() -> None:
    """The start of the tile, where a smaller piece is not at its start, stays what it was."""
    text = program("""
  scf.parallel(%it = 0 to M step 4, tag="m.tile") {
    %p = affine.apply(%it floordiv 4) : index
    memref.prefetch(%A[%it, 0])
    scf.parallel(%i = %it to min(%it+4, M), tag="m") {
      %q = affine.max(%it, %p) : index
      %a = memref.load(%A[%q, 0]) : f32
      %b = memref.load(%A[%p, 0]) : f32
      %x = arith.addf(%a, %b) : f32
      memref.store(%x, %C[%i, 0])
      yield
    }
    yield
  }""")
    after = changed(text, "peel{loop=m.tile, sizes=[2, 1]}", SIZES)
    assert lines_with(after, "affine.max")[1] == "%q.1 = affine.max(M-(M mod 4), %p.1) : index"


def test_interchange() -> None:
    changed(tiled(VARYING), "interchange{outer=m, inner=n}", SIZES)


@pytest.mark.parametrize("between", ["", "memref.prefetch(%A[0, 0])"])
def test_fuse_loops_with_prefetches(between: str) -> None:
    text = program(f"""
  scf.for(%i = 0 to M, tag="i") {{
    memref.prefetch(%A[%i + 4, 0])
    %a = memref.load(%A[%i, 0]) : f32
    memref.store(%a, %C[%i, 0])
    yield
  }}
  {between}
  scf.for(%p = 0 to M, tag="i") {{
    memref.prefetch(%C[%p + 4, 0])
    %b = memref.load(%C[%p, 0]) : f32
    %x = arith.addf(%b, %b) : f32
    memref.store(%x, %C[%p, 0])
    yield
  }}""").replace("%A: memref<f32[M, N]>, %C: memref<f32[M, N]>", "%x: f32[M, N], %C: memref<f32[M, N]>")
    text = text.replace("{\n", "{\n  %A = memref.from_tensor(%x) : memref<f32[M, N]>\n", 1).replace("%x = arith.addf", "%y = arith.addf")
    module = load(text.replace("store(%x", "store(%y"))
    apply(module, "fuse-loops{loop=i}")
    assert len(lines_with(module, "scf.for")) == 1 and len(lines_with(module, "prefetch")) == (3 if between else 2)


def test_fuse_loops_stops_at_what_may_fail() -> None:
    loop = "scf.for(%{0} = 0 to M, tag=\"i\") {{\n%a{0} = memref.load(%A[%{0}, 0]) : f32\nmemref.store(%a{0}, %C[%{0}, 0])\nyield\n}}\n"
    text = program(loop.format("i") + "%e = affine.apply(M floordiv N) : index\n" + loop.format("p"))
    assert reasons(text, "fuse-loops{loop=i}") == ["loops not fused: something stands between them"]


# -- vectors -----------------------------------------------------------------------------------------------------------

NEST = """
graph @main(%A: memref<f32[M, 8]>, %C: memref<f32[M, 8]>) {{
  scf.for(%r = 0 to M) {{
    scf.parallel(%i = %r to %r+1, tag="m") {{
      scf.parallel(%j = 0 to 8, tag="n") {{
        {0}
        memref.store(%a, %C[%i, %j])
        yield
      }}
      yield
    }}
    yield
  }}
  return
}}
"""
VECTORIZE = "vectorize{loops=[m, n]}"


def test_vectorize_keeps_what_is_the_same_in_all_lanes() -> None:
    inside = "%p = affine.align_down(%i, 2) : index\nmemref.prefetch(%A[%i+1, 0])\n%a = memref.load(%A[%p, %j]) : f32"
    after = check(NEST.format(inside), VECTORIZE, {"M": 5}, {"M": 1})
    assert body(after)[1:4] == [
        "%p = affine.align_down(%r, 2) : index",
        "memref.prefetch(%A[%r+1, 0])",
        "%a = vector.load(%A[%p, 0:+8]) : vector<f32[1, 8]>",
    ]
    unrolled = check(str(after), "unroll-vectors", {"M": 5})
    assert body(unrolled)[1:3] == body(after)[1:3]


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("%p = affine.max(%j, 3) : index\n%a = memref.load(%A[%i, %p]) : f32", "affine.max of an index that varies"),
        ("%a = memref.load(%A[%i, %j]) : f32\nmemref.prefetch(%A[%i+1, %j])", "memref.prefetch of an index that varies"),
    ],
)
def test_vectorize_leaves_what_varies(inside: str, reason: str) -> None:
    before, after, statistics = transformed(NEST.format(inside), VECTORIZE)
    assert str(before) == str(after) and statistics == {f"left: {reason}": 1}


# -- nests and memory --------------------------------------------------------------------------------------------------

COLLAPSE = """
graph @main(%A: memref<f32[M, 4]>, %C: memref<f32[M, 4]>) {{
  linalg.generic(i < M, j < 4, %a = %A[i, j], %c = %C[i, j]) {{
    {0}
    yield {1}
  }}
  return
}}
"""


def test_collapse_leaves_dimensions_that_an_expression_mentions() -> None:
    plain = load(COLLAPSE.format("%n = affine.apply(M - 1) : index\n%z = memref.load(%A[%n, 0]) : f32", "%z"))
    apply(plain, "collapse")
    assert "i < 4*M" in str(plain)
    for code in ("%n = affine.apply(i) : index", "%n = affine.max(i - 1, 0) : index"):
        text = COLLAPSE.format(code + "\n%z = memref.load(%A[%n, 0]) : f32", "%z")
        module = load(text)
        apply(module, "collapse")
        assert str(module) == str(load(text))


def test_lower_to_loops() -> None:
    after = check(COLLAPSE.format("%n = affine.max(i - 1, 0) : index\n%z = memref.load(%A[%n, j]) : f32", "%z"), "lower-to-loops", {"M": 4}, {"M": 1})
    assert "%n = affine.max(%i-1, 0) : index" in body(after)


PLAN = """
graph @main(%x: f32[B, 8]) -> f32[B, 8] {{
  %X = memref.from_tensor(%x) : memref<f32[B, 8]>
  %A = memref.alloc() : memref<f32[B, 8]>
  %C = memref.alloc() : memref<f32[B, 8]>
  %Y = memref.alloc() : memref<f32[B, 8]>
  linalg.generic(i < B, j < 8, %a = %X[i, j], %b = %A[i, j]) {{
    yield %a
  }}
  linalg.generic(i < B, j < 8, %c = %A[i, j], %d = %C[i, j]) {{
    {0}
    yield %c
  }}
  {1}
  linalg.generic(i < B, j < 8, %e = %C[B-1-i, j], %f = %Y[i, j]) {{
    yield %e
  }}
  %y = memref.to_tensor(%Y) : f32[B, 8]
  return %y
}}
"""


@pytest.mark.parametrize("loops", ["", "lower-to-loops,"])
@pytest.mark.parametrize(("inside", "behind"), [("", ""), ("memref.prefetch(%A[i+8, j])", ""), ("", "memref.prefetch(%A[0, 0])")])
def test_a_prefetch_is_no_use_of_memory(loops: str, inside: str, behind: str) -> None:
    module = load(PLAN.format(inside, behind))
    apply(module, loops + "plan-memory")
    offsets = {op.result.name: str(op.attributes["offset"]) for op in module.graphs["main"].block if op.name == "memref.view"}
    assert offsets["A"] == offsets["C"]
