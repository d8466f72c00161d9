"""What the tests of the vector passes share: programs over buffers, run before and after a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pass_checks import apply, load

from ir.clone import clone_module
from ir.core import Module
from ir.dims import UnknownDim
from ir.interpreter import Interpreter
from ir.printer import print_module
from ir.types import DTYPES, MemRefType, VectorType
from passes.infra.verify_exec import describe_difference, same_bits


def random_arrays(module: Module, sizes: dict[str, int], seed: int = 0, exact: bool = False) -> list[np.ndarray]:
    """An array for each parameter of @main, a buffer."""
    rng = np.random.default_rng(seed)
    arrays = []
    for parameter in module.graphs["main"].parameters:
        type_ = parameter.type
        assert isinstance(type_, MemRefType) and not any(isinstance(d, UnknownDim) for d in type_.shape)
        shape = tuple(d if isinstance(d, int) else sizes[str(d)] for d in type_.shape)
        if not type_.dtype.is_float or exact:
            low = 0 if type_.dtype.kind in ("uint", "bool") else -9
            values = rng.integers(low, 2 if type_.dtype.kind == "bool" else 10, shape)
        else:
            values = rng.standard_normal(shape)
        arrays.append(np.asarray(values).astype(DTYPES[type_.dtype.name].numpy))
    return arrays


def assert_same(before: Module, after: Module, arrays: Sequence[np.ndarray]) -> bool:
    """Both programs leave the same bits in all buffers; whether they store anything new."""
    want, found = [a.copy() for a in arrays], [a.copy() for a in arrays]
    Interpreter(before).run(before.graphs["main"], want)
    Interpreter(after).run(after.graphs["main"], found)
    for position, (a, b) in enumerate(zip(want, found, strict=True)):
        assert same_bits(a, b), f"buffer {position}: {describe_difference(a, b)}\n{print_module(after)}"
    return any(a.tobytes() != b.tobytes() for a, b in zip(want, arrays, strict=True))


def transformed(text: str, pipeline: str) -> tuple[Module, Module, dict[str, int]]:
    """The program, what a pipeline makes of it, and the statistics; the result is stable and parses back."""
    before = load(text)
    after = clone_module(before)
    manager = apply(after, pipeline)
    printed = print_module(after)
    assert print_module(load(printed)) == printed
    again = apply(clone_module(after), pipeline)
    assert not any(r.changed for r in again.records), "a second run changes something"
    statistics: dict[str, int] = {}
    for record in manager.records:
        statistics.update(record.statistics)
    return before, after, statistics


def check(text: str, pipeline: str, *sizes: dict[str, int], exact: bool = False) -> Module:
    """The program after a pipeline, which computes the same bits for the given sizes."""
    before, after, _ = transformed(text, pipeline)
    runs = [assert_same(before, after, random_arrays(before, names, seed, exact)) for seed, names in enumerate(sizes or ({},))]
    assert any(runs) or any(0 in names.values() for names in sizes), "the program stores nothing new"
    return after


def body(module: Module) -> list[str]:
    """The lines of @main between its header and ``return``, without indentation."""
    lines = [line.strip() for line in print_module(module).splitlines()]
    return lines[next(n for n, line in enumerate(lines) if line.endswith("{")) + 1 : lines.index("return")]


def vector_types(module: Module) -> set[VectorType]:
    """The types of all vectors."""
    values = [v for op in module.walk() for v in (*op.results, *(a for r in op.regions for a in r.block.arguments))]
    return {v.type for v in values if isinstance(v.type, VectorType)}


MATMUL = """
graph @main(%A: memref<f32[M, K]>, %B: memref<f32[K, N]>, %bias: memref<f32[N]>, %C: memref<f32[M, N]>) where M mod 8 == 0 {
  %zero = arith.constant(0.0) : f32
  scf.parallel(%jt = 0 to N step 48, tag="n.tile") {
    scf.parallel(%it = 0 to M step 8, tag="m.tile") {
      scf.parallel(%i = %it to %it+8, tag="m") {
        scf.parallel(%j = %jt to min(%jt+48, N), tag="n") {
          %s = scf.for(%k = 0 to K, %acc = %zero, tag="k") {
            %a = memref.load(%A[%i, %k]) : f32
            %b = memref.load(%B[%k, %j]) : f32
            %t = math.fma(%a, %b, %acc) : f32
            yield %t
          } : f32
          %c = memref.load(%bias[%j]) : f32
          %d = arith.addf(%s, %c) : f32
          %r = arith.maximumf(%d, %zero) : f32
          memref.store(%r, %C[%i, %j])
          yield
        }
        yield
      }
      yield
    }
    yield
  }
  return
}
"""
