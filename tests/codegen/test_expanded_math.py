"""What expand-math makes: native code gives the interpreter's bits on all kinds of floats, in straight vector code."""

from __future__ import annotations

import numpy as np
import pytest

from ir.core import Module
from ir.interpreter import Interpreter
from passes.infra.base import PassContext
from passes.infra.verify_exec import describe_difference, same_bits
from passes.pipelines import load_pipeline
from passes.vector.expand_math import EXPANSIONS
from tests.checks import load
from tests.codegen.native_graph import NativeGraph

WIDTH = 40  # two machine vectors and a half
FUNCTIONS = [name.removeprefix("math.") for name in EXPANSIONS if name != "math.powf"]


def program(function: str, width: int, dtype: str = "f32") -> Module:
    """Results of a buffer, ``width`` at a time."""
    return load(f"""\
graph @main(%A: memref<{dtype}[N]>, %C: memref<{dtype}[N]>) {{
  scf.parallel(%i = 0 to N step {width}) {{
    %x = vector.load(%A[%i:+{width}]) : vector<{dtype}[{width}]>
    %y = math.{function}(%x) : vector<{dtype}[{width}]>
    vector.store(%y, %C[%i:+{width}])
    yield
  }}
  return
}}
""")


def apply(module: Module, pipeline: str) -> Module:
    for pass_ in load_pipeline(pipeline):
        pass_.run(module, PassContext())
    return module


def sample(dtype: np.dtype) -> np.ndarray:
    """Every exponent with either sign, and more where functions are steep; NaN and infinities."""
    generator = np.random.default_rng(3)
    bits = generator.integers(0, 2 ** (8 * dtype.itemsize), 60_000, dtype=np.uint64).astype(f"u{dtype.itemsize}")
    parts = [bits.view(dtype), generator.uniform(-110, 90, 20_000), generator.uniform(-15, 15, 20_000), generator.uniform(-2, 2, 19_960)]
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.72284, -103.97208, -87.33655, *range(30)]
    with np.errstate(all="ignore"):
        return np.concatenate([np.asarray(p).astype(dtype) for p in (*parts, ends)])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_same_bits(function: str) -> None:
    x = sample(np.dtype(np.float32))
    assert len(x) % WIDTH == 0
    wanted, found = np.zeros_like(x), np.zeros_like(x)
    whole = apply(program(function, len(x)), "expand-math")  # one vector: the interpreter computes it at once
    Interpreter(whole).run(whole.main, [x, wanted])
    pieces = apply(program(function, WIDTH), "expand-math,unroll-vectors,cse,dce")
    NativeGraph(pieces, pieces.main).run([x, found])
    assert same_bits(wanted, found), describe_difference(wanted, found)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_scalars_have_the_same_bits(function: str) -> None:
    x = sample(np.dtype(np.float32))
    scalars = load(f"""\
graph @main(%A: memref<f32[N]>, %C: memref<f32[N]>) {{
  scf.parallel(%i = 0 to N) {{
    %x = memref.load(%A[%i]) : f32
    %y = math.{function}(%x) : f32
    memref.store(%y, %C[%i])
    yield
  }}
  return
}}
""")
    wanted, found = np.zeros_like(x), np.zeros_like(x)
    whole = apply(program(function, len(x)), "expand-math")
    Interpreter(whole).run(whole.main, [x, wanted])
    apply(scalars, "expand-math")
    NativeGraph(scalars, scalars.main).run([x, found])
    assert same_bits(wanted, found), describe_difference(wanted, found)


def test_powers_have_the_same_bits() -> None:
    x = sample(np.dtype(np.float32))
    y = np.roll(x, 12_345)
    y[-20_000:] = np.rint(y[-20_000:])

    def powers(width: int, pipeline: str) -> Module:
        return apply(
            load(f"""\
graph @main(%A: memref<f32[N]>, %B: memref<f32[N]>, %C: memref<f32[N]>) {{
  scf.parallel(%i = 0 to N step {width}) {{
    %x = vector.load(%A[%i:+{width}]) : vector<f32[{width}]>
    %y = vector.load(%B[%i:+{width}]) : vector<f32[{width}]>
    %z = math.powf(%x, %y) : vector<f32[{width}]>
    vector.store(%z, %C[%i:+{width}])
    yield
  }}
  return
}}
"""),
            pipeline,
        )

    wanted, found = np.zeros_like(x), np.zeros_like(x)
    whole, pieces = powers(len(x), "expand-math"), powers(WIDTH, "expand-math,unroll-vectors,cse,dce")
    Interpreter(whole).run(whole.main, [x, y, wanted])
    NativeGraph(pieces, pieces.main).run([x, y, found])
    assert same_bits(wanted, found), describe_difference(wanted, found)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_calls(function: str) -> None:
    """Nothing of the C library is needed."""
    pieces = apply(program(function, WIDTH), "expand-math,unroll-vectors,cse,dce")
    text = NativeGraph(pieces, pieces.main).native.text
    declared = {line.split("@")[1].split("(")[0] for line in text.splitlines() if line.startswith("declare")}
    assert {n for n in declared if not n.startswith("llvm.")} <= {"sched_yield"}


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_storage_types(dtype: str) -> None:
    width = 65536
    pieces, whole = program("exp", 64, dtype), program("exp", width, dtype)
    x = np.arange(width).astype(np.uint16).view(whole.main.parameters[0].type.dtype.numpy)  # type: ignore[union-attr]
    wanted, found = np.zeros_like(x), np.zeros_like(x)
    apply(whole, "expand-math")
    Interpreter(whole).run(whole.main, [x, wanted])
    apply(pieces, "expand-math,unroll-vectors,cse,dce")
    NativeGraph(pieces, pieces.main).run([x, found])
    assert same_bits(wanted, found), describe_difference(wanted, found)
