"""Runs programs on the fake driver through one of the real implementations: a process that test_fake_driver.py starts with it in its way.

Usage: python -m tests.cuda.fake_session pycuda|cuda-core.  It prints "done" at its end, or ends with an exception.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

import graph_opt
from codegen.cuda.drivers import open_driver
from tests.cuda import on_fake_driver  # noqa: F401  # compiles for it

SOFTMAX = "graph @main(%x: f32[M, N]) -> f32[M, N] {\n  %y = softmax(%x)\n  return %y\n}\n"
PRODUCT = """graph @main(%a: f32[M, 70], %b: f32[70, 75], %c: f32[75]) -> f32[M, 75] {
  %h = matmul(%a, %b)
  %s = add(%h, %c)
  %y = relu(%s)
  return %y
}
"""


def fake_count(what: int) -> int:
    """How often the driver was called: 0 launches, 1 launches of graphs, 2 captures, 3 allocations, 4 copies."""
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_cuda_count.restype = ctypes.c_long
    return int(library.fake_cuda_count(what))


def main(name: str) -> None:
    driver = open_driver("cuda")
    assert driver.name == name, driver.name
    assert driver.properties.name == "Fake GPU"
    rng = np.random.default_rng(5)
    softmax = graph_opt.compile(graph_opt.parse(SOFTMAX), device="cuda")
    emulated = graph_opt.compile(graph_opt.parse(SOFTMAX), device="cuda-emulated")
    for shape in ((3, 77), (1, 5), (3, 77), (0, 4)):
        x = rng.standard_normal(shape).astype(np.float32)
        assert np.array_equal(softmax(x), emulated(x))
    product, reference = graph_opt.compile(graph_opt.parse(PRODUCT), device="cuda"), graph_opt.compile(graph_opt.parse(PRODUCT))
    for rows in (1, 19, 19, 19, 133, 19):
        a, b, c = (rng.integers(-3, 4, s).astype(np.float32) for s in ((rows, 70), (70, 75), (75,)))
        assert np.array_equal(product(a, b, c), reference(a, b, c))
    assert fake_count(2) > 0, "nothing was captured"
    assert fake_count(1) > 0, "no graph was replayed"


if __name__ == "__main__":
    main(sys.argv[1])
    print("done")
