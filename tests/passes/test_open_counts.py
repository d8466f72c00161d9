"""Means along dimensions of open size: how many elements there are is asked for once, so the nests around are joined."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load

import graph_opt
from passes.infra.verify_exec import same_bits


def layernorm(rows: object, columns: object) -> str:
    return f"""graph @main(%x: f32[{rows}, {columns}], %g: f32[{columns}], %b: f32[{columns}]) -> f32[{rows}, {columns}] {{
  %y = layernorm(%x, weight=%g, bias=%b, eps=1e-5)
  return %y
}}
"""


@pytest.mark.parametrize(("rows", "columns"), [(128, 576), (128, "C"), ("R", 576), ("R", "C")])
def test_layernorm_is_one_nest(rows: object, columns: object) -> None:
    apply(module := load(layernorm(rows, columns)), "O2")
    assert sum(op.name == "linalg.generic" for op in module.main.block) == 1
    assert sum(op.name == "memref.dim" for op in module.walk()) == (columns == "C")


def test_other_dimensions_are_asked_for_again() -> None:
    text = "graph @main(%x: f32[R, C]) -> (f32[R], f32[C], f32[]) {\n  %a = mean(%x, axes=[1])\n  %b = mean(%x, axes=[0])\n  %c = mean(%x)\n"
    module = load(text + "  return %a, %b, %c\n}\n")
    apply(module, "O2")
    assert sum(op.name == "arith.sitofp" for op in module.walk()) == 3


def test_same_bits_as_for_known_sizes() -> None:
    numbers = np.random.default_rng(0)
    open_sizes = graph_opt.compile(graph_opt.parse(layernorm("R", "C")))
    for rows, columns in ((1, 1), (3, 16), (5, 83), (2, 576)):
        x, g, b = (numbers.standard_normal(s).astype(np.float32) for s in ((rows, columns), columns, columns))
        assert same_bits(open_sizes(x, g, b), graph_opt.compile(graph_opt.parse(layernorm(rows, columns)))(x, g, b))
