"""affine: index expressions as operations; memref.prefetch, whose indices are such expressions, too."""

import numpy as np
import pytest

import dialects  # noqa: F401
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.parser import parse_module
from ir.printer import print_module
from ir.rewriter import erase_if_dead
from ir.verifier import verify_module


def load(text) -> Module:
    module = parse_module(text)
    verify_module(module)
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def main(body):
    lines = "".join(f"  {line}\n" for line in body.strip().splitlines())
    return f"graph @main(%J: memref<index[2]>, %A: memref<f32[M, N]>, %C: memref<index[1]>) {{\n{lines}  return\n}}\n"


START = "%i = memref.load(%J[0]) : index\n%j = memref.load(%J[1]) : index\n"


def value_of(code, i, j):
    """The value of one operation on %i, %j and the dimensions M = 3, N = 5."""
    module = load(main(f"{START}%n = {code}\nmemref.store(%n, %C[0])"))
    c = np.zeros(1, np.int64)
    Interpreter(module).run(module.graphs["main"], [np.int64([i, j]), np.zeros((3, 5), np.float32), c])
    return int(c[0])


@pytest.mark.parametrize(("i", "j"), [(0, 1), (100, 7), (-100, 7), (47, 48), (48, 48), (-1, 48), (-48, 48)])
def test_values(i, j):
    assert value_of("affine.apply(%i)", i, j) == i
    assert value_of("affine.apply(7)", i, j) == 7
    assert value_of("affine.apply(48*(%i floordiv 48) + N)", i, j) == 48 * (i // 48) + 5
    assert value_of("affine.apply(%i mod %j + M*N)", i, j) == i % j + 15
    assert value_of("affine.apply(%i ceildiv %j)", i, j) == -(-i // j)
    assert value_of("affine.apply(min(%i, %j) * max(%i, M))", i, j) == min(i, j) * max(i, 3)
    assert value_of("affine.min(%i + 8, M, %j)", i, j) == min(i + 8, 3, j)
    assert value_of("affine.max(%i - 8, 0, -%j)", i, j) == max(i - 8, 0, -j)
    assert value_of("affine.min(%j)", i, j) == value_of("affine.max(%j)", i, j) == j
    assert value_of("affine.align_down(%i, 48)", i, j) == i - i % 48
    assert value_of("affine.align_down(%i + M, %j)", i, j) == (i + 3) // j * j


LARGE, SMALL = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("code", "i", "j", "value"),
    [
        ("affine.apply(%i + 1)", LARGE, 0, SMALL),
        ("affine.apply(2*%i)", LARGE, 0, -2),
        ("affine.apply((%i + 1) floordiv 4)", LARGE, 0, SMALL // 4),
        ("affine.apply(%i ceildiv %j)", SMALL, 3, -(2**63 // 3)),
        ("affine.apply(%i ceildiv %j)", SMALL, -1, SMALL),
        ("affine.min(%i + 1, 0)", LARGE, 0, SMALL),
        ("affine.max(%i - 1, 0)", SMALL, 0, LARGE),
        ("affine.align_down(%i, %j)", SMALL, 3, LARGE),  # what is below the smallest number
    ],
)
def test_numbers_wrap_around(code, i, j, value):
    assert value_of(code, i, j) == value


@pytest.mark.parametrize(
    ("code", "j", "message"),
    [
        ("affine.apply(%i floordiv %j)", 0, "affine.apply: division by zero in an index"),
        ("affine.min(%i mod %j, 3)", 0, "affine.min: division by zero in an index"),
        ("affine.align_down(%i, %j)", 0, "affine.align_down: the alignment is 0, it must be positive"),
        ("affine.align_down(%i, %j - 5)", 1, "affine.align_down: the alignment is -4, it must be positive"),
        ("affine.align_down(%i ceildiv %j, %j)", 0, "affine.align_down: division by zero in an index"),
    ],
)
def test_failures(code, j, message):
    with pytest.raises(GraphError, match=message):
        value_of(code, 1, j)


@pytest.mark.parametrize(
    ("code", "message", "column"),
    [
        ("%n = affine.apply(%f + 1)", "expected an index here, found f32", 21),
        ("%n = affine.apply(K)", "dimension K is in no parameter's type", 8),
        ("%n = affine.apply()", "expected one expression: affine.apply", 8),
        ("%n = affine.apply(%i, %j)", "expected one expression: affine.apply", 8),
        ("%n = affine.min()", "expected one expression or more: affine.min", 8),
        ("%n = affine.max()", "expected one expression or more: affine.max", 8),
        ("%n = affine.align_down(%i)", "expected two expressions", 8),
        ("%n = affine.align_down(%i, 0)", "the alignment is 0, it must be positive", 8),
        ("%n = affine.align_down(%i, -8)", "the alignment is -8, it must be positive", 8),
        ("%n = affine.apply(%i floordiv 0)", "division by zero", 24),
        ("%n = affine.apply(%J[0])", "expected an index expression", 21),
        ("%n = affine.apply(%k = 0 to 4)", "expected an index expression", 21),
        ("%n = affine.apply(1.5)", "'1.5' is not a dimension", 21),
        ("%n = affine.apply(?)", "an expression is '?'", 8),
        ("%n = affine.apply(%i, tag=\"m\")", "has no attribute 'tag'", 25),
        ("affine.apply(%i)", "needs a name", 3),
        ("%n = affine.apply(%i) : f32", "declared f32", 8),
        ("memref.prefetch(%A[%i])", "has 2 dimensions, found 1 indices", 19),
        ("memref.prefetch(%A[%i, %j:+4])", "single elements, not runs", 19),
        ("memref.prefetch(%A[%f, 0])", "expected an index here, found f32", 22),
        ("memref.prefetch(%f[0])", "expected a memref, found f32", 19),
        ("memref.prefetch(%A)", "expected one access", 3),
        ("memref.prefetch()", "expected one access", 3),
        ("%n = memref.prefetch(%A[0, 0])", "has no result", 3),
    ],
)
def test_errors(code, message, column):
    with pytest.raises(GraphError, match=message) as error:
        load(main(f"{START}%f = memref.load(%A[0, 0])\n{code}"))
    assert f":5:{column}: error" in str(error.value)


def test_text():
    text = main(f"{START}%n = affine.min( (%i+8) , M*1, min(%j,N) ) : index\n%m = affine.align_down(%n,48)\nmemref.store(%m, %C[0])")
    printed = print_module(load(text))
    assert "%n = affine.min(%i+8, M, min(%j, N)) : index" in printed
    assert "%m = affine.align_down(%n, 48)" in printed


def test_loop_dimensions():
    text = """
graph @main(%C: memref<index[M, N]>) {
  linalg.generic(i < M, j < N, %c = %C[i, j]) {
    %n = affine.apply(10*i + j)
    %m = affine.max(%n - i, M)
    yield %m
  }
  return
}
"""
    module = load(text)
    c = np.zeros((2, 3), np.int64)
    Interpreter(module).run(module.graphs["main"], [c])
    assert c.tolist() == [[max(9 * i + j + 0, 2) for j in range(3)] for i in range(2)]
    with pytest.raises(GraphError, match="dimension k is in no parameter's type"):
        load(text.replace("10*i + j", "k"))


def test_dead_ones_go_and_prefetches_stay():
    module = load(main(f"{START}%n = affine.min(%i, %j)\nmemref.prefetch(%A[%i, %j])"))
    removed = [op.name for op in reversed(list(module.graphs["main"].block)) if erase_if_dead(op)]
    assert removed == ["affine.min"]


@pytest.mark.parametrize(("i", "j"), [(0, 0), (2, 4), (3, 5), (-1, 0), (2**62, 2**62), (-(2**63), 2**63 - 1)])
def test_a_prefetch_does_nothing(i, j):
    module = load(main(f"{START}memref.prefetch(%A[%i floordiv %j, %i + %j])"))
    arrays = [np.int64([i, j]), np.ones((3, 5), np.float32), np.zeros(1, np.int64)]
    Interpreter(module).run(module.graphs["main"], arrays)
    assert (arrays[1] == 1).all() and arrays[2] == 0
