"""Loop programs that the tests of the passes on loops share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ir.core import Module
from ir.interpreter import Interpreter
from ir.weights import WeightSource
from passes.infra.verify_exec import describe_difference, same_bits


def matmul(m: str, n: str, k: str) -> str:
    """A matrix product with bias and silu on the level of loops; dimensions are numbers or names."""
    return f"""
graph @main(%a: f32[{m}, {k}], %b: f32[{k}, {n}], %bias: f32[{n}]) -> f32[{m}, {n}] {{
  %A = memref.from_tensor(%a) : memref<f32[{m}, {k}]>
  %B = memref.from_tensor(%b) : memref<f32[{k}, {n}]>
  %V = memref.from_tensor(%bias) : memref<f32[{n}]>
  %C = memref.alloc() : memref<f32[{m}, {n}]>
  scf.parallel(%i = 0 to {m}, tag="m") {{
    scf.parallel(%j = 0 to {n}, tag="n") {{
      %zero = arith.constant(0.0) : f32
      %s = scf.for(%k = 0 to {k}, %acc = %zero, tag="k") {{
        %x = memref.load(%A[%i, %k]) : f32
        %y = memref.load(%B[%k, %j]) : f32
        %t = math.fma(%x, %y, %acc) : f32
        yield %t
      }} : f32
      %v = memref.load(%V[%j]) : f32
      %u = arith.addf(%s, %v) : f32
      %n = arith.negf(%u) : f32
      %e = math.exp(%n) : f32
      %one = arith.constant(1.0) : f32
      %d = arith.addf(%one, %e) : f32
      %r = arith.divf(%u, %d) : f32
      memref.store(%r, %C[%i, %j])
      yield
    }}
    yield
  }}
  %c = memref.to_tensor(%C) : f32[{m}, {n}]
  return %c
}}
"""


def total(n: str) -> str:
    """A sum in a register, a count beside it, and an element-wise loop that doesn't start at 0."""
    return f"""
graph @main(%x: f32[{n}], %z: f32[3]) -> (f32[3], f32[{n}]) {{
  %X = memref.from_tensor(%x) : memref<f32[{n}]>
  %Z = memref.from_tensor(%z) : memref<f32[3]>
  %S = memref.alloc() : memref<f32[3]>
  %Y = memref.alloc() : memref<f32[{n}]>
  memref.copy(%Z, %S)
  %zero = arith.constant(0.0) : f32
  %one = arith.constant(1.0) : f32
  %sum, %count = scf.for(%i = 0 to {n}, %acc = %zero, %c = %one, tag="reduce") {{
    %v = memref.load(%X[%i]) : f32
    %w = memref.load(%X[-%i+{n}-1]) : f32
    %p = math.fma(%v, %w, %acc) : f32
    %q = arith.addf(%c, %acc) : f32
    yield %p, %q
  }} : f32, f32
  memref.store(%sum, %S[0])
  memref.store(%count, %S[1])
  memref.copy(%X, %Y)
  scf.parallel(%j = 2 to {n}, tag="col") {{
    %v2 = memref.load(%X[%j-2]) : f32
    memref.store(%v2, %Y[%j])
    yield
  }}
  %s = memref.to_tensor(%S) : f32[3]
  %y = memref.to_tensor(%Y) : f32[{n}]
  return %s, %y
}}
"""


def assert_same_runs(
    before: Module, after: Module, shapes: list[tuple[tuple[int, ...], ...]], seed: int = 0, sources: Mapping[str, WeightSource] | None = None
) -> None:
    """Both compute the same bits for random inputs of these shapes, in any order of parallel rounds."""
    for given in shapes:
        rng = np.random.default_rng(seed)
        arrays = [rng.standard_normal(s).astype(np.float32) for s in given]
        want = Interpreter(before, sources).run(before.graphs["main"], arrays)
        for reverse in (False, True):
            found = Interpreter(after, sources, reverse_parallel=reverse).run(after.graphs["main"], arrays)
            for a, b in zip(want, found, strict=True):
                assert same_bits(a, b), f"{given}, reverse={reverse}: {describe_difference(a, b)}\n{after}"
