"""Layouts in value form and what is known about expressions."""

from __future__ import annotations

import itertools

import pytest
from loop_programs import matmul, total
from pass_checks import load, optimize

from ir.dims import Dim, dim_max, dim_min, floordiv, mod, substitute, symbol
from ir.printer import print_module
from passes.loops._loops import has_layout, is_nonnegative, loops_tagged, minimum_terms, read_layout, remainder, upper_bound, variable, write_layout

N, S = symbol("N"), symbol("S")
VALUES = (0, 1, 7, 15, 16, 47, 48, 97)
EXPRESSIONS: list[Dim] = [
    5, -3, N, N - 1, 2 * N + S, N * S, mod(N, 16), mod(N, 16) - mod(N, 4), mod(N, 8) + 3, dim_min(N, 9), dim_max(4, mod(N, 16)),
    dim_max(N, 4), N - mod(N, 16), dim_min(N, S) - N, floordiv(N, 2), mod(N - S, 8), 3 - mod(N, 4), dim_min(mod(N, 3), mod(S, 5)),
]  # fmt: skip


def value_of(expr: Dim, n: int, s: int) -> int:
    value = substitute(expr, {"N": n, "S": s})
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_bounds_hold(expr: Dim) -> None:
    graph = load(total("N")).main
    bound = upper_bound(expr)
    for n, s in itertools.product(VALUES, VALUES):
        value = value_of(expr, n, s)
        assert bound is None or value <= bound
        assert value >= 0 or not is_nonnegative(expr, graph)


def test_bounds_are_found() -> None:
    assert upper_bound(mod(N, 8) - mod(N, 4)) == 7
    assert upper_bound(dim_min(N, 9) + 1) == 10
    assert upper_bound(N) is None and upper_bound(-1 * N) is None
    graph = load(total("N")).main
    assert is_nonnegative(2 * N + mod(S, 3), graph)
    assert is_nonnegative(mod(N, 48) - mod(mod(N, 48), 32), graph)
    assert is_nonnegative(2 * mod(N, 64) - mod(N, 16), graph) and not is_nonnegative(mod(N, 64) - mod(N, 48), graph)
    assert not is_nonnegative(mod(N, 64) - 2 * mod(N, 16), graph) and not is_nonnegative(mod(N, 64) - mod(S, 16), graph)


@pytest.mark.parametrize(("first", "second"), [(48, 16), (16, 4), (48, 32), (8, 8), (5, 1)])
def test_remainders_of_remainders(first: int, second: int) -> None:
    found = remainder(mod(N, first), second)
    assert found == (mod(N, second) if first % second == 0 else mod(mod(N, first), second))
    for n in VALUES:
        assert value_of(found, n, 0) == n % first % second


def test_variables_of_loops_are_not_negative() -> None:
    module = optimize(matmul("M", "N", "K"), "tile{loop=m, size=8}")
    (loop,) = loops_tagged(module.main, "m")
    at = symbol(f"%{variable(loop).name}")
    assert is_nonnegative(at + 1, module.main) and not is_nonnegative(at - 1, module.main)
    (column,) = loops_tagged(load(matmul("M", "N", "K").replace("%j = 0", "%j = 0-3")).main, "n")
    assert not is_nonnegative(symbol(f"%{variable(column).name}"), column.graph)  # type: ignore[arg-type]


def test_layouts_read_back_as_they_were_written() -> None:
    module = optimize(matmul("M", "97", "K"), "tile{loop=n, size=48, outside=m},tile{loop=m, size=8},pack{stored_only=false},peel")
    text = print_module(module)
    for op in module.walk():
        if has_layout(op):
            forms = read_layout(op)
            write_layout(op, forms)
            assert read_layout(op) == forms
            assert len(set(op.operands)) == len(op.operands)
    assert print_module(module) == text


def test_terms_of_a_minimum() -> None:
    assert minimum_terms(dim_min(N, S, 4)) == dim_min(N, S, 4).terms[0][0][0].args  # type: ignore[union-attr]
    assert minimum_terms(N + dim_min(N, S)) == (N + dim_min(N, S),)
    assert minimum_terms(7) == (7,)
