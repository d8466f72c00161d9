"""inline: the same program without calls."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pass_checks import NO_SOURCES, apply, assert_same_bits, check, load, operations, optimize, outputs

from ir.clone import clone_module
from ir.diagnostics import GraphError
from ir.printer import print_module

LAYER = """\
graph @layer(%x: f32[N, 4], %w: f32[4, K]) -> (f32[N, K], f32[N, 4]) {
  // not copied
  %h = matmul(%x, %w)
  %r = relu(%h)
  return %r, %x
}

"""


def test_names_and_symbols():
    text = LAYER + (
        "graph @main(%a: f32[B, 4], %w: f32[4, 8]) -> f32[B, 8] {\n"
        "  // stays\n  %y, %same = call(@layer, %a, %w)\n  %z, %_ = call(@layer, %same, %w)\n  %s = add(%y, %z)\n  return %s\n}\n"
    )
    assert print_module(check(text, "inline")) == (
        "graph @main(%a: f32[B, 4], %w: f32[4, 8]) -> f32[B, 8] {\n"
        "  %y.h = matmul(%a, %w) : f32[B, 8]\n  // stays\n  %y = relu(%y.h) : f32[B, 8]\n"
        "  %z.h = matmul(%a, %w) : f32[B, 8]\n  %z = relu(%z.h) : f32[B, 8]\n  %s = add(%y, %z) : f32[B, 8]\n  return %s\n}\n"
    )


def test_symbols_that_are_called_the_same():
    """N of the callee is 2*M of the caller, whose own N is something else."""
    callee = "graph @f(%x: f32[N, M]) -> f32[N*M] {\n  %r = reshape(%x, shape=[N*M])\n  return %r\n}\n\n"
    text = callee + "graph @main(%x: f32[2*M, N], %l: f32[M, N]) -> f32[2*M*N] {\n  %r = call(@f, %x)\n  return %r\n}\n"
    module = check(text, "inline")
    assert str(module.main.results[0].type) == "f32[2*M*N]"
    text = callee + "graph @main(%x: f32[3, 4]) -> f32[12] {\n  %r = call(@f, %x)\n  return %r\n}\n"
    assert operations(check(text, "inline")) == ["reshape"]


def test_names_that_are_taken():
    text = LAYER + "graph @main(%a: f32[4, 4]) {\n  %y.h = exp(%a)\n  %y, %_ = call(@layer, %a, %y.h)\n  return %y, %y.h\n}\n"
    module = check(text, "inline")
    assert [op.results[0].name for op in module.walk() if op.results] == ["y.h", "y.h.1", "y"]


def test_parameters_handed_through_and_results_doubled():
    text = """\
graph @f(%x: f32[N], %y: f32[N]) -> (a: f32[N], b: f32[N], c: f32[N], d: f32[N]) {
  %s = add(%x, %y)
  return %y, %x, %s, %s
}

graph @main(%p: f32[B], %q: f32[B]) {
  %a, %b, %c, %d = call(@f, %p, %q)
  %e = sub(%a, %b)
  return %a, %b, %c, %d, %e
}
"""
    module = check(text, "inline")
    assert operations(module) == ["add", "sub"]
    p, q = module.main.parameters
    assert module.main.results[:2] == [q, p]
    assert module.main.result_names == ["a", "b", "c", "d", "e"]


CACHE = """\
graph @write(%c: f32[T, 2] inout, %x: f32[1, 2], %p: i64[]) -> f32[T, 2] {
  %before = exp(%c)
  %u = cache_update(%c, %x, %p)
  %after = add(%u, %before)
  return %after
}

graph @both(%c: f32[T, 2] inout, %x: f32[1, 2], %p: i64[], %q: i64[]) -> f32[T, 2] {
  %a, %c1 = call(@write, %c, %x, %p)
  %b, %c2 = call(@write, %c1, %x, %q)
  %s = add(%a, %b)
  return %s
}

"""


@pytest.mark.parametrize("order", [1, -1])
def test_inout(order):
    """Traps 59 and 65: the caller's array is updated, older versions are still read, in nested calls too."""
    main = "graph @main(%c: f32[4, 2] inout, %x: f32[1, 2], %p: i64[], %q: i64[]) -> (f32[4, 2], f32[4, 2], f32[4, 2]) {\n"
    main += "  %r, %n = call(@both, %c, %x, %p, %q)\n  return %r, %n, %c\n}\n\n"
    graphs = [*CACHE.strip().split("\n\n"), main.strip()][::order]
    text = "\n\n".join(graphs) + "\n"
    module = check(text, "inline")
    assert operations(module).count("cache_update") == 2 and "call" not in operations(module) and list(module.graphs) == ["main"]
    cache, x = np.zeros((4, 2), np.float32), np.float32([[1, 2]])
    for program in (load(text), module):
        *_, final = outputs(program, "main", [cache, x, np.int64(0), np.int64(3)], NO_SOURCES)
        assert final.tolist() == [[1, 2], [0, 0], [0, 0], [1, 2]]


def test_inout_of_calls_that_stay():
    """The last version of an array may come from a call that is too large to go."""
    text = CACHE + "graph @main(%c: f32[4, 2] inout, %x: f32[1, 2], %p: i64[], %q: i64[]) -> (f32[4, 2], f32[4, 2]) {\n"
    text += "  %r, %n = call(@both, %c, %x, %p, %q)\n  return %r, %n\n}\n"
    module = load(text)
    apply(module, "inline{limit=4}")
    assert operations(module)[-3:] == ["call", "call", "add"] and list(module.graphs) == ["write", "main"]
    assert_same_bits(load(text), module)


def test_constraints_go_to_the_caller():
    callee = "graph @f(%x: f32[N]) -> f32[N]\n  where 2 <= N <= 8, N mod 2 == 0 {\n  %r = exp(%x)\n  return %r\n}\n\n"
    text = callee + "graph @main(%x: f32[B]) -> f32[B] {\n  %r = call(@f, %x)\n  %s = call(@f, %r)\n  return %s\n}\n"
    module = check(text, "inline")
    assert "where 2 <= B <= 8, B mod 2 == 0 {" in print_module(module)
    for program in (load(text), module):
        with pytest.raises(GraphError, match=r"wants B mod 2 == 0|wants N mod 2 == 0"):
            outputs(program, "main", [np.zeros(3, np.float32)], NO_SOURCES)
    text = callee + "graph @main(%x: f32[4]) -> f32[4] {\n  %r = call(@f, %x)\n  return %r\n}\n"
    assert "where" not in print_module(check(text, "inline"))
    text = callee + "graph @main(%x: f32[5]) -> f32[5] {\n  %r = call(@f, %x)\n  return %r\n}\n"
    with pytest.raises(GraphError, match="wants N mod 2 == 0") as caught:
        apply(load(text), "inline")
    assert ":8:8" in str(caught.value)


def test_errors_keep_their_place():
    """What fails in the body of the callee is reported there, as before."""
    text = """\
graph @f(%x: i32[N], %y: i32[N]) -> i32[N] {
  %q = floordiv(%x, %y)
  return %q
}

graph @main(%x: i32[2]) -> i32[2] {
  %y = sub(%x, %x)
  %r = call(@f, %x, %y)
  return %r
}
"""
    messages = []
    for module in (load(text), optimize(text, "inline")):
        with pytest.raises(GraphError) as caught:
            outputs(module, "main", [np.int32([1, 2])], NO_SOURCES)
        messages.append(str(caught.value))
    assert ":2:8" in messages[0] and (messages[1] == messages[0] or ":2:" in messages[1])


def test_unknown_types_stay_calls():
    text = LAYER + "graph @main(%x: ?, %w: f32[4, 8]) {\n  %y, %s = call(@layer, %x, %w)\n  return %y, %s\n}\n"
    module = load(text)
    apply(module, "inline")
    assert "call" in operations(module) and "layer" in module.graphs
    text = LAYER + "graph @main(%x: f32[?, 4], %w: f32[4, 8]) {\n  %y, %s = call(@layer, %x, %w)\n  return %y, %s\n}\n"
    module = load(text)
    apply(module, "inline")
    assert "call" in operations(module)


def test_which_graphs_stay():
    text = """\
graph @leaf(%x: f32[4]) -> f32[4] {
  %y = exp(%x)
  return %y
}

graph @main(%x: f32[4]) -> f32[4] {
  %y = call(@leaf, %x)
  return %y
}

graph @other(%x: f32[4]) -> f32[4] {
  %y = call(@main, %x)
  return %y
}
"""
    assert list(check(text, "inline").graphs) == ["main", "other"]
    module = load(text)
    apply(module, "inline{keep=true}")
    assert list(module.graphs) == ["leaf", "main", "other"] and "call" not in operations(module)


def test_graphs_that_double_do_not_explode():
    """Thirty graphs that call the one before twice would be 2**30 operations."""
    text = "graph @g0(%x: f32[4]) -> f32[4] {\n  %y = exp(%x)\n  return %y\n}\n\n"
    for i in range(1, 31):
        text += f"graph @g{i}(%x: f32[4]) -> f32[4] {{\n  %a = call(@g{i - 1}, %x)\n  %b = call(@g{i - 1}, %a)\n  return %b\n}}\n\n"
    start = time.perf_counter()
    module = load(text)
    apply(module, "inline{limit=1000}")
    assert len(operations(module)) < 60_000 and time.perf_counter() - start < 20
    again = clone_module(module)
    assert not any(r.changed for r in apply(again, "inline{limit=1000}").records)


def test_calls_in_regions():
    text = """\
graph @step(%x: f32[N]) -> f32[N] {
  %e = exp(%x)
  %n = neg(%e)
  return %n
}

graph @main(%x: f32[4]) -> f32[4] {
  %s = scf.for(%i = 0 to 3, %acc = %x) {
    %y = call(@step, %acc)
    yield %y
  }
  return %s
}
"""
    module = check(text, "inline")
    assert operations(module) == ["scf.for", "exp", "neg"]


def test_entry_that_is_called_can_be_compiled():
    import graph_opt

    text = LAYER + "graph @main(%a: f32[B, 4], %w: f32[4, 4]) -> f32[B, 4] {\n  %y, %_ = call(@layer, %a, %w)\n  return %y\n}\n"
    module = graph_opt.parse(text)
    x, w = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    result, same = graph_opt.compile(module, "layer")(x, w)
    assert result.tolist() == [[4.0] * 3] * 2 and same.tolist() == x.tolist()
