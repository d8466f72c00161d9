"""Buffers inside of loops: on the stack, where loops one after the other share memory."""

from __future__ import annotations

import numpy as np
import pytest

from ir.diagnostics import GraphError
from tests.codegen.code_checks import check, main_program
from tests.codegen.native_graph import NativeGraph


def fill_and_copy(name: str, size: int, into: int) -> str:
    """A loop that writes a buffer of its own, and then all of it to the result; an inner loop has another one meanwhile."""
    return f"""scf.for(%{name} = 0 to 2) {{
  %{name}.m = memref.alloc() : memref<f32[{size}]>
  scf.for(%{name}.i = 0 to {size}) {{
    %{name}.t = memref.alloc() : memref<f32[4]>
    %{name}.x = memref.load(%A[%{name}.i]) : f32
    memref.store(%{name}.x, %{name}.t[3])
    %{name}.y = memref.load(%{name}.t[3]) : f32
    memref.store(%{name}.y, %{name}.m[%{name}.i])
    yield
  }}
  scf.for(%{name}.j = 0 to {size}) {{
    %{name}.z = memref.load(%{name}.m[%{name}.j]) : f32
    memref.store(%{name}.z, %C[{into}, %{name}.j])
    yield
  }}
  yield
}}"""


def test_loops_one_after_the_other_share_the_stack() -> None:
    """Each has 700 KB, and all of them may have 1 MB; smaller buffers take over what larger ones had."""
    body = "\n".join(fill_and_copy(name, size, into) for into, (name, size) in enumerate((("a", 170000), ("b", 170000), ("c", 1000))))
    module = main_program("%A: memref<f32[170000]>, %C: memref<f32[3, 170000]>", f"scf.for(%n = 0 to 1) {{\n{body}\nyield\n}}")
    rng = np.random.default_rng(1)
    a, c = rng.standard_normal(170000, np.float32), np.zeros((3, 170000), np.float32)
    native = NativeGraph(module, module.main)
    native.run([a, c])
    assert np.array_equal(c[0], a) and np.array_equal(c[1], a) and np.array_equal(c[2, :1000], a[:1000]) and not c[2, 1000:].any()
    assert native.native.text.count("alloca [680000 x i8]") == 1


def test_loops_inside_of_each_other_do_not() -> None:
    inner = fill_and_copy("a", 9, 0).replace("memref<f32[4]>", "memref<f32[9]>")
    module = main_program("%A: memref<f32[9]>, %C: memref<f32[1, 9]>", inner)
    check(module, np.arange(9, dtype=np.float32), np.zeros((1, 9), np.float32))


def test_too_much_at_once_is_refused() -> None:
    text = fill_and_copy("a", 170000, 0).replace("memref<f32[4]>", "memref<f32[170000]>")
    module = main_program("%A: memref<f32[170000]>, %C: memref<f32[1, 170000]>", text)
    with pytest.raises(GraphError, match="need 1360000 bytes on the stack, the limit is 1048576"):
        NativeGraph(module, module.main)
