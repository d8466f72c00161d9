"""Proofs about index expressions: what they must find, and, on random loops, that they never prove what is false."""

from __future__ import annotations

import random

import numpy as np
import pytest

import dialects  # noqa: F401
from codegen.llvm.polynomials import Poly, add, constant
from codegen.llvm.space import Space
from ir.core import Value
from ir.dims import Dim, apply_function, symbol
from ir.layout import evaluate_expr
from ir.parser import parse_module
from ir.types import ScalarType, index

N, M, K = (symbol(n) for n in "NMK")


class Loops:
    """Loops around a place, as the space sees them."""

    def __init__(self, where: str = "") -> None:
        self.space = Space()
        for name in "NMK":  # first, as for a graph: proofs look at what was made last first
            self.space.symbol(name)
        self.values: list[Value] = []
        if where:
            text = f"graph @main(%a: f32[N, M, K]) -> f32[N, M, K]\n  where {where} {{\n  return %a\n}}\n"
            self.space.constrain(parse_module(text).main.constraints)

    def loop(self, start: Dim, stop: Dim, step: int = 1) -> Dim:
        value = Value(f"i{len(self.values)}", ScalarType(index), None, 0)  # type: ignore[arg-type]
        self.space.counter(value, self.poly(start), self.poly(stop), constant(step))
        self.values.append(value)
        return symbol(f"%{len(self.values) - 1}")

    def poly(self, expr: Dim) -> Poly:
        return self.space.convert(expr, self.values)

    def inside(self, at: Dim, size: Dim) -> bool:
        """Whether an index is known to be in a dimension."""
        low = self.space.prove(self.poly(at))
        return low and self.space.prove(add(add(self.poly(size), self.poly(at), -1), constant(-1)))


def test_tiles() -> None:
    loops = Loops()
    t = loops.loop(0, N, 48)
    i = loops.loop(t, apply_function("min", t + 48, N))
    panels = apply_function("ceildiv", N, 48)
    assert loops.inside(i, N) and not loops.inside(i + 1, N)
    assert loops.inside(i - t, 48) and not loops.inside(i - t, 47)
    assert loops.inside(apply_function("floordiv", t, 48), panels)
    assert loops.inside(apply_function("floordiv", i, 48), panels)
    assert loops.inside(apply_function("mod", i, 48), 48)
    assert not loops.inside(apply_function("floordiv", t, 48) + 1, panels)


def test_full_tiles_and_rests() -> None:
    loops = Loops()
    rest = N - apply_function("mod", N, 48)
    t = loops.loop(0, rest, 48)
    i = loops.loop(t, t + 48)
    j = loops.loop(rest, N)
    assert loops.inside(i, N) and loops.inside(j, N) and loops.inside(j - rest, 47)
    assert loops.inside(apply_function("floordiv", t, 48), apply_function("floordiv", N, 48))


def test_flat_buffers() -> None:
    loops = Loops()
    i, k = loops.loop(0, M), loops.loop(0, K)
    assert loops.inside(i * K + k, M * K)
    assert not loops.inside(i * K + k + 1, M * K)


def test_conditions_of_the_graph() -> None:
    loops = Loops("N mod 16 == 0, 4 <= M <= 8, K >= 2*M")
    i = loops.loop(0, N, 16)
    assert loops.inside(i + 15, N) and not loops.inside(i + 16, N)
    assert loops.inside(3, M) and not loops.inside(4, M)
    assert loops.space.prove(loops.poly(8 - M))
    k = loops.loop(0, M)
    assert loops.inside(2 * k, K) and loops.inside(k + M, K)
    plain = Loops()
    assert not plain.inside(plain.loop(0, N, 16) + 15, N)


def test_sizes_that_may_wrap_prove_nothing() -> None:
    loops = Loops()
    i = loops.loop(0, (0 - N) * N * N * (2**50))
    assert not loops.inside(i, N)


SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 16, 17)


def random_expr(generator: random.Random, atoms: list[Dim], depth: int = 0) -> Dim:
    kind = generator.randrange(9)
    if kind < 3 or depth > 2:
        return generator.choice(atoms)
    if kind == 3:
        return generator.randrange(-3, 9)
    left = random_expr(generator, atoms, depth + 1)
    if kind == 4:
        return left * generator.choice((2, 3, 4, -1))
    if kind == 5:
        return apply_function(generator.choice(("floordiv", "ceildiv", "mod")), left, generator.choice((2, 3, 4, 8)))
    right = random_expr(generator, atoms, depth + 1)
    if kind == 6:
        return apply_function(generator.choice(("min", "max")), left, right)
    return left + right if kind == 7 else left - right


def rounds(loops: list[tuple[Dim, Dim, int]], names: dict[str, int], found: list[int]):
    """All values of the loop variables."""
    if len(found) == len(loops):
        yield list(found)
        return
    start, stop, step = loops[len(found)]
    for at in list(range(evaluate_expr(start, found, names), evaluate_expr(stop, found, names), step))[:40]:
        yield from rounds(loops, names, [*found, at])


@pytest.mark.parametrize("seed", range(60))
def test_nothing_false_is_proved(seed: int) -> None:
    generator = random.Random(seed)
    proved = 0
    for _ in range(12):
        space = Loops()
        atoms: list[Dim] = [N, M]
        loops = []
        for _ in range(generator.randrange(1, 4)):
            start = generator.choice([0, 0, atoms[-1], random_expr(generator, atoms)])
            stop = generator.choice([random_expr(generator, atoms), N, apply_function("min", start + 8, N), start + 4])
            step = generator.choice((1, 1, 2, 3, 8))
            loops.append((start, stop, step))
            atoms.append(space.loop(start, stop, step))
        claims = [e for e in (random_expr(generator, atoms) for _ in range(25)) if space.space.prove(space.poly(e))]
        proved += len(claims)
        for n in SIZES:
            for m in generator.sample(SIZES, 4):
                names = {"N": n, "M": m}
                for values in rounds(loops, names, []):
                    for claim in claims:
                        assert evaluate_expr(claim, values, names) >= 0, f"{claim} with {names}, {values}, loops {loops}"
    assert proved > 20


def test_the_numbers_of_the_test_can_fail() -> None:
    loops = Loops()
    i = loops.loop(0, N)
    assert np.min([evaluate_expr(i - 1, [0], {"N": 1})]) < 0 and not loops.space.prove(loops.poly(i - 1))


def test_products_of_what_is_rounded_up() -> None:
    """Looked at before a run like products of dimensions; a remainder of something else is not known to be small."""
    space = Space()
    for name in "NMK":
        space.symbol(name)
    sizes = [192 * K * apply_function("ceildiv", N, 48), M * apply_function("ceildiv", 4 * N * K, 16)]
    for size in sizes:
        assert space.is_exact(space.convert(size))
    names = {tuple(space.atoms[n].name for n in m) for m in space.guarded}
    assert {("N", "K"), ("N", "M", "K")} <= names
    assert not space.is_exact(space.convert(K * apply_function("floordiv", N, M)))
    space.guarded.clear()
    assert space.is_exact(space.convert(M * apply_function("ceildiv", N + K + 1, 128)))
    assert {tuple(space.atoms[n].name for n in m) for m in space.guarded} == {("N", "M"), ("M", "K")}, "M alone is looked at anyway"
    assert not space.is_exact(space.convert(M * apply_function("ceildiv", N - K, 128))), "which may be below 0"
