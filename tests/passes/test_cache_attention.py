"""Attention over caches that are updated in place: one program for any number of queries, the same bits at every split."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from pass_checks import apply, load

import graph_opt
from dialects._access import element
from dialects.memref import Prefetch
from ir.core import Module, Operation
from ir.dims import substitute
from ir.interpreter import Interpreter
from ir.layout import AccessArg, layout_of
from ir.types import VectorType
from passes.infra.verify_exec import same_bits
from passes.pipelines import PRESETS
from tests.memory_checker import check_plan

HEADS, KEY_HEADS, WIDTH, CAPACITY = 6, 2, 16, 300

TEXT = """graph @main(
  %q: f32[6, S, 16], %k: f32[2, S, 16], %v: f32[2, S, 16], %position: i64[], %length: i64[],
  %keys: f32[2, T, 16] inout, %values: f32[2, T, 16] inout
) -> f32[6, S, 16] where 1 <= S, S <= T {
  %keys.1 = cache_update(%keys, %k, %position)
  %values.1 = cache_update(%values, %v, %position)
  %o = attention(%q, %keys.1, %values.1, length=%length, causal=true)
  return %o
}
"""
"""What a layer does with its cache."""

LAYERS = """graph @layer(
  %x: f32[S, 96], %positions: i64[S], %position: i64[], %length: i64[],
  %keys: f32[2, T, 16] inout, %values: f32[2, T, 16] inout, %w: f32[160, 96], %o: f32[96, 96]
) -> f32[S, 96] {
  %y = linear(%x, %w)
  %q.0 = slice(%y, starts=[0], ends=[96], axes=[1])
  %k.0 = slice(%y, starts=[96], ends=[128], axes=[1])
  %v.0 = slice(%y, starts=[128], ends=[160], axes=[1])
  %q.1 = reshape(%q.0, shape=[S, 6, 16])
  %k.1 = reshape(%k.0, shape=[S, 2, 16])
  %v.1 = reshape(%v.0, shape=[S, 2, 16])
  %q.2 = transpose(%q.1, perm=[1, 0, 2])
  %k.2 = transpose(%k.1, perm=[1, 0, 2])
  %v.2 = transpose(%v.1, perm=[1, 0, 2])
  %q = rope(%q.2, %positions, interleaved=true)
  %k = rope(%k.2, %positions, interleaved=true)
  %keys.1 = cache_update(%keys, %k, %position)
  %values.1 = cache_update(%values, %v.2, %position)
  %a = attention(%q, %keys.1, %values.1, length=%length, causal=true)
  %t = transpose(%a, perm=[1, 0, 2])
  %j = reshape(%t, shape=[S, 96])
  %p = linear(%j, %o)
  %r = add(%x, %p)
  return %r
}
graph @main(
  %x: f32[S, 96], %positions: i64[S], %position: i64[], %length: i64[],
  %keys0: f32[2, T, 16] inout, %values0: f32[2, T, 16] inout, %keys1: f32[2, T, 16] inout, %values1: f32[2, T, 16] inout,
  %w0: f32[160, 96], %o0: f32[96, 96], %w1: f32[160, 96], %o1: f32[96, 96]
) -> f32[S, 96] where 1 <= S, S <= T {
  %y, %keys0.1, %values0.1 = call(@layer, %x, %positions, %position, %length, %keys0, %values0, %w0, %o0)
  %z, %keys1.1, %values1.1 = call(@layer, %y, %positions, %position, %length, %keys1, %values1, %w1, %o1)
  return %z
}
"""


class Session:
    """A sequence that is fed piece by piece to the program of one layer."""

    def __init__(self, threads: int, capacity: int = CAPACITY) -> None:
        self.run = graph_opt.compile(graph_opt.parse(TEXT), threads=threads)
        self.capacity = capacity

    def feed(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, pieces: list[int]) -> np.ndarray:
        """The rows of all pieces; what lies behind them in the caches is NaN."""
        keys, values = (np.full((KEY_HEADS, self.capacity, WIDTH), np.nan, np.float32) for _ in range(2))
        found, at = [], 0
        for size in pieces:
            part = [np.ascontiguousarray(x[:, at : at + size]) for x in (q, k, v)]
            found.append(self.run(*part, np.array(at), np.array(at + size), keys, values))
            at += size
        assert same_bits(keys[:, :at], k[:, :at]) and np.isnan(keys[:, at:]).all() and same_bits(values[:, :at], v[:, :at])
        return np.concatenate(found, axis=1)


def rows(total: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((h, total, WIDTH), dtype=np.float32) for h in (HEADS, KEY_HEADS, KEY_HEADS)]


def test_the_same_bits_at_every_split() -> None:
    total = 270
    q, k, v = rows(total)
    sessions = [Session(1), Session(2)]
    want = sessions[0].feed(q, k, v, [total])
    assert np.isfinite(want).all()
    splits = [[1] * total, [4] * 67 + [2], [5] * 54, [3, 2, 1] * 45, [128, 142], [127] + [1] * 143, [129, 1, 140], [256] + [1] * 14]
    splits += [[n, total - n] for n in (1, 2, 4, 5, 11, 12, 13, 48, 49, 200, 265, 266, 268, 269)]
    for pieces in splits:
        for session in sessions:
            assert same_bits(session.feed(q, k, v, pieces), want), pieces
    for capacity in (total, 271, 384, 400):
        assert same_bits(Session(1, capacity).feed(q, k, v, [130, 1, 1, 138]), want), capacity


def test_values() -> None:
    """What the operation is, for few queries and for many."""
    q, k, v = rows(140, 3)
    reference = graph_opt.compile(graph_opt.parse(TEXT), device="reference")
    caches = [np.zeros((KEY_HEADS, CAPACITY, WIDTH), np.float32) for _ in range(2)]
    want = np.concatenate([reference(q[:, a:b], k[:, a:b], v[:, a:b], np.array(a), np.array(b), *caches) for a, b in ((0, 138), (138, 140))], axis=1)
    assert np.abs(Session(1).feed(q, k, v, [138, 2]) - want).max() < 1e-5


@pytest.mark.parametrize("steps", [1, 3, 30])
def test_past_the_capacity(steps: int) -> None:
    """An error, before anything is written."""
    program = graph_opt.compile(graph_opt.parse(TEXT), threads=2)
    q, k, v = rows(steps)
    for position in (41 - steps, -1, 2**40):
        keys, values = (np.full((KEY_HEADS, 40, WIDTH), 7, np.float32) for _ in range(2))
        with pytest.raises(graph_opt.GraphError, match=r"past the capacity of 40|is negative"):
            program(q, k, v, np.array(position), np.array(position + steps), keys, values)
        assert (keys == 7).all() and (values == 7).all()


def test_layers_that_are_called() -> None:
    """Once they are inlined it is one program, with the same bits at every split; its angles are computed once."""
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal(s, dtype=np.float32) * np.float32(0.1) for s in ((160, 96), (96, 96)) * 2]
    x = rng.standard_normal((150, 96), dtype=np.float32)
    found = []
    for threads in (1, 2):
        program = graph_opt.compile(graph_opt.parse(LAYERS), threads=threads)
        for pieces in ([150], [1] * 150, [140, 3, 7], [9, 128, 13]):
            caches, parts, at = [np.full((2, 160, 16), np.nan, np.float32) for _ in range(4)], [], 0
            for size in pieces:
                positions = np.arange(at, at + size)
                parts.append(program(x[at : at + size], positions, np.array(at), np.array(at + size), *caches, *weights))
                at += size
            found.append(np.concatenate(parts))
    assert np.isfinite(found[0]).all() and all(same_bits(found[0], f) for f in found)
    module = lowered(LAYERS)
    cosines = [op for op in module.walk() if op.name == "math.cos"]
    assert len(cosines) == 1


def lowered(text: str, pipeline: str = "cpu") -> Module:
    module = load(text)
    apply(module, pipeline)
    return module


def test_caches_are_read_and_written_in_place() -> None:
    """Nothing is copied, and the workspace does not hold a matrix of scores."""
    module = lowered(TEXT)
    assert not any(op.name in ("memref.copy", "graph.cache_update") for op in module.walk())
    assert sum(op.name == "memref.to_tensor" for op in module.walk()) == 1, "the result"
    assert sum(op.name == "memref.of_inout" for op in module.walk()) == 2
    arena = next(op for op in module.walk() if op.name == "memref.alloc" and str(op.result.type).startswith("memref<u8"))
    (size,) = arena.result.type.shape  # type: ignore[union-attr]
    total = substitute(size, {"S": 128, "T": 2048})
    assert isinstance(total, int) and total <= 2 * (2 * 2048 * 16 * 4), "the keys once more, in panels, and what few queries make of blocks"


def test_the_plan() -> None:
    module = lowered(TEXT, PRESETS["cpu"].split(",unroll-jam")[0])
    for steps in (1, 6):
        q, k, v = rows(steps)
        caches = [np.zeros((KEY_HEADS, 20, WIDTH), np.float32) for _ in range(2)]
        check_plan(module, "main", [q, k, v, np.array(3), np.array(3 + steps), *caches])


@pytest.mark.parametrize("steps", [1, 4, 5, 13])
def test_the_last_level_has_the_bits_of_machine_code(steps: int) -> None:
    module = lowered(TEXT)
    q, k, v = rows(steps)
    caches = [np.random.default_rng(n).standard_normal((KEY_HEADS, 20, WIDTH), dtype=np.float32) for n in range(4)]
    given = [q, k, v, np.array(2), np.array(2 + steps)]
    (found,) = Interpreter(module).run(module.main, [*given, *(c.copy() for c in caches[:2])])
    want = graph_opt.compile(graph_opt.parse(TEXT))(*given, *(c.copy() for c in caches[:2]))
    assert same_bits(np.asarray(found), want)


def test_layers_have_constants_in_common() -> None:
    """Vectors, and how far queries see, are made once: so that later passes and code generation find the layers' nests alike."""
    module = lowered(LAYERS, PRESETS["cpu"].split(",lower-to-loops")[0])
    names = [op.name for op in module.main.block]
    assert names.count("scf.if") == 2 and names.count("vector.step") == 1 and names.count("memref.load") - 4 == 1
    assert sum(isinstance(op.result.type, VectorType) for op in module.main.block if op.name == "arith.constant") == 1


@pytest.mark.parametrize("length", [228, 256])
@pytest.mark.parametrize("columns", [16, 32, 128])
@pytest.mark.parametrize(("width", "value_width"), [(16, 16), (80, 80), (32, 64), (48, 24)])
def test_the_next_block_is_asked_for(width: int, value_width: int, columns: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a block is worked on, all lines of the next one, of the next head behind the last; nothing but keys that are seen.

    A last block of fewer keys asks for so much less.
    """
    size = 300
    text = f"""graph @main(
      %q: f32[4, S, {width}], %k: f32[2, {size}, {width}], %v: f32[2, {size}, {value_width}], %length: i64[]
    ) -> f32[4, S, {value_width}] where 1 <= S, S <= {size} {{
      %o = attention(%q, %k, %v, length=%length, causal=true)
      return %o
    }}"""
    module = lowered(text, PRESETS["cpu"].split(",lower-attention")[0] + f",lower-attention{{rows=12, columns={columns}}}")
    asked: dict[str, list[tuple[int, int, int]]] = {}

    def note(self: Prefetch, interpreter: Any, op: Operation, operands: list[Any], environment: Any) -> tuple[Any, ...]:
        access = layout_of(op)[0]
        assert isinstance(access, AccessArg) and op.attributes["locality"] == 2
        *_, head, row, column = element(access, operands, environment.names)
        asked.setdefault(op.operand_uses[access.position].value.name, []).append((head, row, column // 16))
        return ()

    monkeypatch.setattr(Prefetch, "execute", note)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s, dtype=np.float32) for s in ((4, 1, width), (2, size, width), (2, size, value_width)))
    Interpreter(module).run(module.main, [q, k, v, np.array(length)])
    assert len(asked) == 2
    for (name, found), numbers in zip(sorted(asked.items()), (width, value_width), strict=True):
        lines = {(head, row, line) for head in (0, 1) for row in range(128 * (1 - head), length) for line in range(-(-numbers // 16))}
        assert set(found) <= lines, name
        assert {place for place in lines if place[1] >= 128 or length == 256} <= set(found), name
        counts = Counter(found)
        assert all(count <= 2 for (_, row, _), count in counts.items() if row != length - 1), name
