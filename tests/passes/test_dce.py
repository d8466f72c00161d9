"""dce: what nothing uses goes, what does something stays."""

from __future__ import annotations

from pass_checks import apply, check, load, operations, optimize

from ir.printer import print_module


def test_chains():
    body = "".join(f"  %a{i + 1} = exp(%a{i})\n" for i in range(50))
    text = f"graph @main(%a0: f32[4]) {{\n{body}  %y = neg(%a0)\n  return %y\n}}\n"
    assert operations(check(text, "dce")) == ["neg"]


def test_effects_stay():
    """Trap 65: updates of a cache, print, assert, calls."""
    text = """\
graph @f(%x: f32[1, 2]) -> f32[1, 2] {
  print(%x)
  return %x
}

graph @main(%c: f32[4, 2] inout, %x: f32[1, 2], %p: i64[]) {
  %t = constant(true)
  assert(%t)
  print(%x)
  %u = cache_update(%c, %x, %p)
  %y = call(@f, %x)
  %z = exp(%u)
  return %x
}
"""
    assert operations(check(text, "dce")) == ["print", "constant", "assert", "print", "cache_update", "call"]


def test_one_of_several_results_is_enough():
    text = "graph @main(%x: f32[4]) {\n  %v, %i = topk(%x, k=2)\n  %_, %_ = topk(%x, k=3)\n  return %i\n}\n"
    assert operations(check(text, "dce")) == ["topk"]


def test_regions():
    text = """\
graph @main(%x: f32[4]) {
  %a = exp(%x)
  %gone = scf.for(%i = 0 to 3, %acc = %a) {
    %n = neg(%acc)
    yield %n
  }
  %kept = scf.for(%j = 0 to 3, %acc2 = %x) {
    %m = neg(%acc2)
    %dead = exp(%m)
    print(%m)
    yield %m
  }
  return %x
}
"""
    assert operations(check(text, "dce")) == ["scf.for", "neg", "print"]


def test_results_parameters_and_comments_stay():
    text = """\
// about the graph
graph @main(%x: f32[4], %unused: f32[4]) -> (y: f32[4]) {
  // section

  // about a
  %a = exp(%x)
  %b = neg(%x) : f32[4]  // about b
  return %b
}
"""
    after = print_module(optimize(text, "dce"))
    assert "%unused" in after and "// section" in after and "// about a\n" not in after and "// about b" in after


def test_operations_that_may_fail_go():
    """A program may fail less than before, never more."""
    text = "graph @main(%x: i32[4], %y: i32[4]) {\n  %q = floordiv(%x, %y)\n  return %x\n}\n"
    assert operations(optimize(text, "dce")) == []


def test_statistics():
    module = load("graph @main(%x: f32[4]) {\n  %a = exp(%x)\n  %b = exp(%a)\n  return %x\n}\n")
    assert apply(module, "dce").records[0].statistics == {"operations removed": 2}
    assert not apply(module, "dce").records[0].changed
