"""Arithmetic of dimensions: it agrees with Python's integers, and its text reads back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ir.dims import (
    UNKNOWN_DIM,
    Dim,
    DimExpr,
    apply_function,
    ceildiv,
    compatible,
    dim_max,
    dim_min,
    exact_div,
    floordiv,
    format_dim,
    merge,
    mod,
    product,
    substitute,
    symbol,
    symbols_of,
)
from ir.parser import parse_type
from ir.types import TensorType

NAMES = ("B", "S", "N")
PYTHON = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}
Tree = Any


def trees() -> st.SearchStrategy[Tree]:
    leaves = st.one_of(st.integers(0, 9), st.sampled_from(NAMES))
    return st.recursive(leaves, lambda inner: st.tuples(st.sampled_from(list(PYTHON)), inner, inner), max_leaves=8)


def build(tree: Tree) -> Dim:
    """The dimension that an expression tree stands for."""
    if isinstance(tree, tuple):
        kind, a, b = tree[0], build(tree[1]), build(tree[2])
        return PYTHON[kind](a, b) if kind in "+-*" else apply_function(kind, a, b)
    return symbol(tree) if isinstance(tree, str) else tree


def evaluate(tree: Tree, values: dict[str, int]) -> int:
    """The same with Python's integers."""
    if isinstance(tree, tuple):
        return PYTHON[tree[0]](evaluate(tree[1], values), evaluate(tree[2], values))
    return values[tree] if isinstance(tree, str) else tree


VALUES = st.fixed_dictionaries({n: st.integers(0, 12) for n in NAMES})


@given(trees(), VALUES)
def test_agrees_with_python(tree: Tree, values: dict[str, int]) -> None:
    try:
        wanted = evaluate(tree, values)
        found = build(tree)
    except ZeroDivisionError:
        return
    assert substitute(found, values) == wanted


@given(trees(), trees(), VALUES)
def test_equal_expressions_have_equal_values(a: Tree, b: Tree, values: dict[str, int]) -> None:
    """Equality is never wrong: what compares equal is equal for all values."""
    try:
        left, right = build(a), build(b)
        if left == right:
            assert hash(left) == hash(right)
            assert evaluate(a, values) == evaluate(b, values)
    except ZeroDivisionError:
        return


@given(trees(), VALUES, st.sampled_from(NAMES))
def test_substituting_in_steps(tree: Tree, values: dict[str, int], first: str) -> None:
    try:
        dim = build(tree)
        rest = {n: v for n, v in values.items() if n != first}
        assert substitute(substitute(dim, {first: values[first]}), rest) == substitute(dim, values)
        renamed = substitute(dim, {n: symbol(f"{n}2") for n in NAMES})
        assert substitute(renamed, {f"{n}2": v for n, v in values.items()}) == substitute(dim, values)
    except ZeroDivisionError:
        return


@given(trees())
def test_text_reads_back(tree: Tree) -> None:
    try:
        dim = build(tree)
    except ZeroDivisionError:
        return
    type_ = parse_type(f"f32[{format_dim(dim)}]") if isinstance(dim, DimExpr) else None
    if type_ is not None:
        assert isinstance(type_, TensorType)
        assert type_.shape[0] == dim
        assert format_dim(type_.shape[0]) == format_dim(dim)


@given(trees(), trees(), trees())
def test_ring(a: Tree, b: Tree, c: Tree) -> None:
    try:
        x, y, z = build(a), build(b), build(c)
    except ZeroDivisionError:
        return
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x - x == 0 and x + 0 == x and x * 1 == x and x * 0 == 0
    assert 7 - (7 - x) == x


@given(trees(), st.integers(1, 7), VALUES)
def test_division(tree: Tree, divisor: int, values: dict[str, int]) -> None:
    try:
        x = build(tree)
        assert substitute(floordiv(x, divisor) * divisor + mod(x, divisor), values) == substitute(x, values)
        assert exact_div(x * divisor, divisor) == x
        assert floordiv(x - mod(x, divisor), divisor) == floordiv(x, divisor)
        assert floordiv(x * divisor, divisor) == x and mod(x * divisor, divisor) == 0 and ceildiv(x * divisor, divisor) == x
    except ZeroDivisionError:
        return


def test_exact_div_only_when_exact() -> None:
    b, s = symbol("B"), symbol("S")
    assert exact_div(6 * b * s, 2 * s) == 3 * b
    assert exact_div(4 * b + 2, 2) == 2 * b + 1
    assert exact_div(4 * b + 1, 2) is None
    assert exact_div(b, s) is None
    assert exact_div(b * s + s, s) == b + 1
    assert exact_div(b, 0) is None
    assert exact_div(b, b + s) is None
    assert exact_div(b + s, b + s) == 1
    assert exact_div(UNKNOWN_DIM, 3) is UNKNOWN_DIM


@pytest.mark.parametrize("function", [floordiv, ceildiv, mod])
def test_division_by_zero(function: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        function(symbol("B"), 0)
    with pytest.raises(ZeroDivisionError):
        function(3, 0)


def test_unknown_absorbs() -> None:
    b = symbol("B")
    for other in (0, 1, 5, b, UNKNOWN_DIM):
        for function in (floordiv, ceildiv, mod, dim_min, dim_max, *(PYTHON[k] for k in "+-*")):
            assert function(UNKNOWN_DIM, other) is UNKNOWN_DIM
            assert function(other, UNKNOWN_DIM) is UNKNOWN_DIM
    assert compatible(UNKNOWN_DIM, b) and compatible(3, 3) and not compatible(3, b) and not compatible(b, symbol("S"))
    assert merge(UNKNOWN_DIM, b) == b and merge(b, UNKNOWN_DIM) == b
    assert product([]) == 1 and product([2, b, 3]) == 6 * b and product([2**62, 4]) == 2**64


def test_min_max() -> None:
    b, s = symbol("B"), symbol("S")
    assert dim_min(b, s) == dim_min(s, b)
    assert dim_min(b, b) == b and dim_max(3, 5) == 5 and dim_min(b, 3, 5) == dim_min(3, b)
    assert list(symbols_of(dim_max(b * s, floordiv(symbol("N"), 2)))) == ["B", "S", "N"]


def test_order_of_terms_is_fixed() -> None:
    b, s, n = symbol("B"), symbol("S"), symbol("N")
    texts = {format_dim(x + y + z + 1) for x, y, z in itertools.permutations([b * s, 2 * n, s])}
    assert len(texts) == 1
    assert format_dim(2 * b - 3) == "2*B-3" and format_dim(-1 * b) == "-B" and format_dim(floordiv(b + 1, 2) * 2) == "2*((B+1) floordiv 2)"
