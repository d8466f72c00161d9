"""lower-to-loops: what loops say when something goes wrong in them."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import apply, load

from ir.diagnostics import GraphError
from ir.interpreter import Interpreter

TEXT = """graph @main(%A: memref<f32[N]>, %C: memref<f32[M]>) {
  linalg.generic(i < N, %c = %C[i]) {
    %z = arith.constant(0.0) : f32
    %s = linalg.reduce(j < 2, %a = %A[i+j], %acc = %z) {
      %t = arith.addf(%a, %acc) : f32
      yield %t
    } : f32
    yield %s
  }
  return
}
"""


@pytest.mark.parametrize(("sizes", "line"), [((3, 3), 4), ((0, 0), 0)])
def test_errors_are_where_the_nest_is(sizes: tuple[int, int], line: int) -> None:
    module = load(TEXT)
    apply(module, "lower-to-loops")
    given = [np.zeros(n, np.float32) for n in sizes]
    if not line:
        Interpreter(module).run(module.graphs["main"], given)
        return
    with pytest.raises(GraphError, match=rf":{line}:\d+: error: memref.load: index 3 is outside dimension 0 of size 3"):
        Interpreter(module).run(module.graphs["main"], given)


def test_every_operation_has_a_place() -> None:
    module = load(TEXT)
    apply(module, "lower-to-loops")
    assert all(op.loc is not None for op in module.graphs["main"].walk() if op.definition.dialect == "memref")
