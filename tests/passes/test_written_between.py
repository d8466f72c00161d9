"""Whether something between two operations writes a memory, by those that use it and by all that stand there."""

from __future__ import annotations

import random

import pytest
from pass_checks import load

from ir.core import Operation
from passes.loops._memory import alias, all_accesses, memory_of, written_between

LINES = (
    "%r{n} = memref.reshape(%{b}) : memref<f32[2, 4]>",
    "memref.store(%f, %{b}[%zero])",
    "%l{n} = memref.load(%{b}[%zero]) : f32",
    'scf.parallel(%i{n} = 0 to 8, tag="i") {{ memref.store(%f, %{b}[%i{n}]) yield }}',
    "memref.copy(%{b}, %{c})",
    "%t{n} = memref.to_tensor(%{b}) : f32[8]",
    "linalg.generic(i < 8, %a{n} = %{b}[i], %o{n} = %{c}[i]) {{ yield %a{n} }}",
)


def _program(seed: int) -> str:
    generator = random.Random(seed)
    buffers = ["a", "b", "p", "q", "c"]
    lines = []
    for n in range(12):
        lines.append("  " + generator.choice(LINES).format(n=n, b=generator.choice(buffers), c=generator.choice(buffers)))
    body = "\n".join(lines)
    return f"""graph @main(%p: memref<f32[8]>, %q: memref<f32[8]>, %x: f32[8] inout) -> f32[8] {{
  %f = arith.constant(1.0) : f32
  %zero = arith.constant(0) : index
  %a = memref.alloc() : memref<f32[8]>
  %b = memref.alloc() : memref<f32[8]>
  %c = memref.of_inout(%x) : memref<f32[8]>
{body}
  %y = memref.to_tensor(%a) : f32[8]
  return %y
}}
"""


@pytest.mark.parametrize("seed", range(12))
def test_same_as_looking_at_everything(seed: int) -> None:
    graph = load(_program(seed)).graphs["main"]
    ops = list(graph.block)
    buffers = [r for op in ops for r in op.results if op.name in ("memref.alloc", "memref.of_inout", "memref.reshape")]
    for at in range(5, len(ops)):
        for until in range(at + 1, len(ops)):
            for buffer in [*buffers, *graph.parameters[:2]]:
                assert written_between(memory_of(buffer), ops[at], ops[until]) == _by_all(buffer, ops[at + 1 : until])


def _by_all(buffer: object, between: list[Operation]) -> bool:
    memory = memory_of(buffer)  # type: ignore[arg-type]
    return any(a.writes and alias(a.memory, memory) != "never" for a in all_accesses(between))
