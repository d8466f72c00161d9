"""Programs with long main functions: two texts, the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt
from codegen.llvm import parts
from codegen.llvm.jit import Code, CompileError, compile_object
from codegen.llvm.parts import in_parts

PROGRAM = """
graph @main(%x: f32[B, 64], %w: f32[64, 64], %at: i64[2]) -> (f32[B, 64], f32[2, 64]) {
  %a = matmul(%x, %w)
  %b = softmax(%a)
  %c = matmul(%b, %w)
  %d = gather(%c, %at, axis=0)
  return %c, %d
}
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_same_results(monkeypatch, threads):
    module = graph_opt.parse(PROGRAM)
    x = np.linspace(-1, 1, 5 * 64, dtype=np.float32).reshape(5, 64)
    w = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    at = np.array([4, 0])
    whole = graph_opt.compile(module, threads=threads)
    monkeypatch.setattr(parts, "LONG", 1)
    cut = graph_opt.compile(module, threads=threads)
    for a, b in zip(whole(x, w, at), cut(x, w, at), strict=True):
        np.testing.assert_array_equal(a, b)
    for executable in (whole, cut):
        with pytest.raises(graph_opt.GraphError, match="gather"):
            executable(x, w, np.array([5, 0]))


TEXT = """define i32 @f(i32 %x) #0 {
  %y = call i32 @f.half(i32 %x)
  ret i32 %y
}

define internal i32 @f.half(i32 %x) #0 {
  %y = sdiv i32 %x, 2
  ret i32 %y
}

attributes #0 = { nounwind }
"""


def test_parts(monkeypatch):
    assert in_parts(TEXT, "f") == [(TEXT, 2)]
    monkeypatch.setattr(parts, "LONG", 1)
    (rest, _), (main, effort) = in_parts(TEXT, "f")
    assert effort == 0
    assert "define i32 @f.half(i32 %x) #0 {" in rest and "@f(" not in rest
    assert "declare i32 @f.half(i32 %x)" in main and "sdiv" not in main
    code = Code.from_program(TEXT, "f")
    assert code.address("f") and code.address("f.half")


def test_what_uses_variables_stays_whole(monkeypatch):
    monkeypatch.setattr(parts, "LONG", 1)
    text = "@n = internal global i32 2\n" + TEXT.replace("%y = call i32 @f.half(i32 %x)", "%y = load i32, ptr @n")
    assert in_parts(text, "f") == [(text, 2)]


def test_other_parts_are_not_believed(monkeypatch):
    """A part may only call what the ones before it have."""
    monkeypatch.setattr(parts, "LONG", 1)
    (_, _), (main, _) = in_parts(TEXT, "f")
    with pytest.raises(CompileError, match=r"unknown functions: f\.half"):
        compile_object(main)
