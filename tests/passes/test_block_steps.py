"""block-steps: blocks for loads across lines, and the same steps in the same order."""

from __future__ import annotations

import numpy as np
import pytest
from loop_programs import assert_same_runs
from pass_checks import load, optimize

import graph_opt
from ir.diagnostics import GraphError
from ir.printer import print_module
from passes.pipelines import load_pipeline


def across(steps: str, body: str = "", access: str = "%B[%j, %k]") -> str:
    """Sums of products with one line of B for each result."""
    return f"""graph @main(%A: memref<f32[{steps}]>, %B: memref<f32[32, {steps}]>, %C: memref<f32[32]>) {{
  %zero = arith.constant(0.0) : f32
  scf.parallel(%jt = 0 to 32 step 16, tag="n.tile") {{
    scf.parallel(%j = %jt to %jt+16, tag="n") {{
      %s = scf.for(%k = 0 to {steps}, %acc = %zero, tag="k") {{
        %a = memref.load(%A[%k]) : f32
        %b = memref.load({access}) : f32
        {body}
        %t = math.fma(%a, %b, %acc) : f32
        yield %t
      }} : f32
      memref.store(%s, %C[%j])
      yield
    }}
    yield
  }}
  return
}}
"""


PASSES = "vectorize{loops=[n]},block-steps{size=4}"


@pytest.mark.parametrize("steps", ["4", "7", "8", "K"])
def test_blocks(steps: str) -> None:
    text = across(steps)
    after = optimize(text, PASSES)
    printed = print_module(after)
    assert "vector.load(%B[%jt:+16, %kt:+4]) : vector<f32[16, 4]>" in printed
    assert printed.count("math.fma") == (4 if steps in ("4", "8") else 5), "what fills no block is left to a loop"
    assert_same_runs(load(text), after, [((k,), (32, k), (32,)) for k in ([int(steps)] if steps != "K" else [0, 1, 3, 4, 5, 8, 11])])


@pytest.mark.parametrize(
    ("steps", "body", "access"),
    [
        ("3", "", "%B[%j, %k]"),  # no block is full
        ("8", "", "%B[%k, %j]"),  # neighbours already
        ("8", "memref.store(%a, %A[%k])", "%B[%j, %k]"),  # later steps might read it
        ("8", "", "%B[%j, 2*%k]"),  # no neighbours along the loop
        ("8", "%i = arith.index_cast(%k) : i64", "%B[%j, %k]"),  # the number of the step is needed
    ],
)
def test_what_stays(steps: str, body: str, access: str) -> None:
    assert "vector.transpose" not in print_module(optimize(across(steps, body, access), PASSES))
    with pytest.raises(GraphError, match="two steps or more"):
        load_pipeline("block-steps{size=1}")


@pytest.mark.parametrize("pipeline", ["cpu", "cpu-avx2", "cpu-neon"])
def test_products_of_one_row_or_column(pipeline: str) -> None:
    """Bits of one chain of fused multiply-adds: those of the product with two equal rows, which goes another way."""
    one = "graph @main(%a: f32[1, K], %b: f32[N, K]) -> f32[1, N] {\n  %t = transpose(%b, perm=[1, 0])\n  %c = matmul(%a, %t)\n  return %c\n}\n"
    column = "graph @main(%b: f32[N, K], %a: f32[K, 1]) -> f32[N, 1] {\n  %c = matmul(%b, %a)\n  return %c\n}\n"
    rows, columns = (graph_opt.compile(graph_opt.parse(text), pipeline=pipeline) for text in (one, column))
    two = graph_opt.compile(graph_opt.parse(one.replace("f32[1,", "f32[2,")), pipeline=pipeline)
    rng = np.random.default_rng(0)
    for n in (1, 15, 16, 33, 64):
        for k in (0, 1, 15, 16, 17, 40):
            a, b = rng.standard_normal((1, k), np.float32), rng.standard_normal((n, k), np.float32)
            wanted = two(np.repeat(a, 2, axis=0), b)[0]
            assert np.array_equal(rows(a, b)[0], wanted)
            assert np.array_equal(columns(b, a.T)[:, 0], wanted)
