"""The dependence test: known answers, and random nests whose accesses are counted out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import pytest
from memory_programs import program
from pass_checks import load

from ir.core import Module, Operation
from ir.dims import Dim, substitute
from passes.loops._dependence import Dependence, is_carried, is_in_bounds, may_conflict, variables_of
from passes.loops._loops import is_loop, ranges
from passes.loops._memory import Access, alias, all_accesses, has_other_effect, memory_of


def nest(headers: list[str], body: list[str], parameters: str = "%C: memref<f32[N]>") -> Module:
    """A perfect nest of loops."""
    text = "%v = arith.constant(1.0) : f32\n"
    text += "".join(f"{h} {{\n" for h in headers) + "\n".join(body) + "\nyield\n}" * len(headers)
    return load(program(text, parameters))


def store(index: str) -> str:
    return f"memref.store(%v, %C[{index}])"


def found(module: Module) -> list[tuple[str, ...]]:
    """The directions of the first two accesses over all loops."""
    source, sink = all_accesses(module.main.block)[:2]
    loops = [(v, v) for op in module.walk() if is_loop(op) for v in variables_of(op)]
    return sorted(Dependence(source, sink, loops, module.main.block).directions())


BY_I, BY_J = "scf.for(%i = 0 to N)", "scf.for(%j = 0 to M)"
STEP = "scf.for(%i = 0 to N step 8)"


@pytest.mark.parametrize(
    ("headers", "first", "second", "expected"),
    [
        ([BY_I], "%i", "%i", ["="]),
        ([BY_I], "%i", "%i+1", [">"]),
        ([BY_I], "%i", "%i-3", ["<"]),
        ([BY_I], "2*%i", "2*%i+1", []),  # even and odd
        ([BY_I], "2*%i", "%i", ["<", "="]),
        ([BY_I], "%i", "0", ["<", "="]),
        (["scf.for(%i = 1 to N)"], "%i", "0", []),
        (["scf.for(%i = 0 to 4)"], "%i", "%i+4", []),
        (["scf.for(%i = 0 to 1)"], "0", "0", ["="]),
        ([BY_I], "%i", "%i+N", []),  # N is the number of rounds
        ([BY_I], "%i", "-%i+N-1", ["<", "=", ">"]),
        ([STEP], "%i", "%i+7", []),
        ([STEP], "%i", "%i+8", [">"]),
        ([BY_I, "scf.for(%j = %i to N)"], "%j", "%i", ["<<", "<=", "<>", "=<", "=="]),
        ([STEP, "scf.for(%j = %i to min(%i+8, N))"], "%j", "%j", ["=="]),
        ([STEP, "scf.for(%j = %i to min(%i+9, N))"], "%j", "%j", ["<>", "==", "><"]),
        ([BY_I, BY_J], "%i+%j", "%i+%j", ["<>", "==", "><"]),
        ([BY_I, "scf.for(%j = 0 to 8)"], "8*%i+%j", "8*%i+%j", ["=="]),
        ([BY_I, "scf.for(%j = 0 to 8)"], "8*%i+%j", "8*%i+%j+1", ["=>", "><"]),
        ([BY_I], "%i floordiv 2", "%i floordiv 2", ["<", "=", ">"]),
        ([BY_I], "8*(%i floordiv 3)", "8*(%i floordiv 3)+1", []),
        (["scf.for(%i = 0 to N step 4)"], "%i floordiv 4", "%i floordiv 4", ["="]),
        ([BY_I], "%i mod 4", "%i mod 4+4", []),
        ([BY_I], "%i*M", "%i*M", ["<", "=", ">"]),
    ],
)
def test_known_answers(headers: list[str], first: str, second: str, expected: list[str]) -> None:
    parameters = "%C: memref<f32[N]>, %D: memref<f32[M]>"
    assert ["".join(d) for d in found(nest(headers, [store(first), store(second)], parameters))] == expected


def test_runs_of_elements() -> None:
    def directions(first: str, second: str) -> list[str]:
        body = [f"%x = vector.load(%C[{first}]) : vector<f32[4]>", f"vector.store(%x, %C[{second}])"]
        return ["".join(d) for d in found(nest([STEP], body))]

    assert directions("%i:+4", "%i:+4") == ["="]
    assert directions("%i:+4", "%i+4:+4") == []
    assert directions("%i:+4", "%i+5:+4") == [">"]
    assert directions("%i+3:+4", "%i:+4") == ["="]


def test_values_that_are_computed() -> None:
    """They are equal in equal rounds, and anything otherwise."""
    parameters = "%C: memref<f32[N]>, %I: memref<index[N]>"
    body = ["%q = memref.load(%I[%i]) : index", store("%q"), store("%q+1")]
    module = nest([BY_I], body, parameters)
    accesses = all_accesses(module.main.block)
    (loop,) = (op for op in module.walk() if is_loop(op))
    pair = [(v, v) for v in variables_of(loop)]
    assert sorted(Dependence(accesses[1], accesses[1], pair, module.main.block).directions()) == [("<",), ("=",), (">",)]
    assert sorted(Dependence(accesses[1], accesses[2], pair, module.main.block).directions()) == [("<",), (">",)]


def test_memory() -> None:
    text = program("""
  %X = memref.alloc() : memref<f32[M, N]>
  %Y = memref.alloc() : memref<f32[M, N]>
  %R = memref.reshape(%X) : memref<f32[M*N]>
  %Z = memref.alloc() : memref<u8[8*N+8*M]>
  %V = memref.view(%Z, offset=0) : memref<f32[2*N]>
  %W = memref.view(%Z, offset=8*N) : memref<f32[2*M]>
  %U = memref.view(%Z, offset=4*N) : memref<f32[N]>
  %x = memref.to_tensor(%X) : f32[M, N]
  %T = memref.from_tensor(%x) : memref<f32[M, N]>
  memref.copy(%A, %C)""")
    names = load(text).main.names
    memory = {n: memory_of(names[n]) for n in "ACXYRVWUT"}
    related = {a + b: alias(memory[a], memory[b]) for a, b in itertools.combinations("ACXYRVWUT", 2)}
    assert {k for k, v in related.items() if v == "same"} == {"XR"}
    assert {k for k, v in related.items() if v == "maybe"} == {"AC", "VU"}


def test_views_of_views() -> None:
    """Where they are is counted from the outermost one."""
    text = program("""
  %Z = memref.alloc() : memref<u8[64*N]>
  %P = memref.view(%Z, offset=0) : memref<i8[16*N]>
  %Q = memref.view(%Z, offset=16*N) : memref<i8[N, 16]>
  %V = memref.view(%Q, offset=0) : memref<i32[N]>
  %F = memref.reshape(%Q) : memref<i8[16*N]>
  %W = memref.view(%F, offset=4*N) : memref<i32[3*N]>""")
    names = load(text).main.names
    memory = {n: memory_of(names[n]) for n in "PQVFW"}
    related = {a + b: alias(memory[a], memory[b]) for a, b in itertools.combinations("PQVFW", 2)}
    assert {k for k, v in related.items() if v == "never"} == {"PQ", "PV", "PF", "PW", "VW"}
    assert {k for k, v in related.items() if v == "same"} == {"QF"}


def test_reshaped_buffers() -> None:
    body = """
  %X = memref.alloc() : memref<f32[M, 3, 4]>
  %R = memref.reshape(%X) : memref<f32[M, 12]>
  %v = arith.constant(1.0) : f32
  scf.for(%i = 0 to M) {
    scf.for(%j = 0 to 4) {
      memref.store(%v, %X[%i, 1, %j])
      memref.store(%v, %R[%i, %j+{offset}])
      yield
    }
    yield
  }"""
    assert found(load(program(body.replace("{offset}", "4")))) == [("=", "=")]
    assert found(load(program(body.replace("{offset}", "8")))) == []
    assert found(load(program(body.replace("{offset}", "5")))) == [("=", ">")]


def pieces(tiles: tuple[int, ...], ends: tuple[str, ...], width: int) -> list[Operation]:
    """Loops that go on from each other; the first one reads ``width`` elements, the others write one."""
    text, start = "%v = arith.constant(1.0) : f32\n", "0"
    for name, step, end in zip("ijk", tiles, ends, strict=True):
        body = f"%x = vector.load(%C[%i:+{width}]) : vector<f32[{width}]>" if name == "i" else f"memref.store(%v, %C[%{name}])"
        text += f"scf.for(%{name} = {start} to {end} step {step}) {{\n{body}\nyield\n}}\n"
        start = end
    return [op for op in load(program(text, "%C: memref<f32[N]>")).main.block if is_loop(op)]


@pytest.mark.parametrize(
    ("tiles", "ends"),
    [
        ((64, 16, 16), ("N-(N mod 64)", "N-(N mod 16)", "N")),
        ((48, 32, 16), ("N-(N mod 48)", "N-((N mod 48) mod 32)", "N")),
        ((48, 16, 4), ("N-(N mod 48)", "N-(N mod 16)", "N")),
    ],
)
def test_pieces_of_a_peeled_loop(tiles: tuple[int, ...], ends: tuple[str, ...]) -> None:
    """Whole tiles and the pieces of the remainder touch different elements."""
    for extra in (0, 1):
        whole, *rest = pieces(tiles, ends, tiles[0] + extra)
        assert whole.block is not None
        assert may_conflict(all_accesses([whole]), all_accesses([rest[0]]), whole.block) == bool(extra)
        assert not may_conflict(all_accesses([rest[0]]), all_accesses([rest[1]]), whole.block)
        assert extra or not may_conflict(all_accesses([whole]), all_accesses([rest[1]]), whole.block)


def test_memory_of_a_round() -> None:
    body = ["%T = memref.alloc() : memref<f32[4]>", "memref.store(%v, %T[0])", "%x = memref.load(%T[0]) : f32"]
    assert found(nest([BY_I, "scf.for(%j = 0 to 4)"], body)) == [("=", "=")]
    module = nest([BY_I], [*body, "scf.for(%j = 0 to 4) {", "memref.store(%v, %T[1])", "yield", "}"])
    accesses = all_accesses(module.main.block)
    loops = [op for op in module.walk() if is_loop(op)]
    assert not is_carried(accesses, accesses, loops[0])
    assert is_carried(accesses, accesses, loops[1])


def test_bounds() -> None:
    module = nest(
        ["scf.for(%it = 0 to N step 8)", "scf.for(%i = %it to min(%it+8, N))"],
        [store("%i"), store("%i-%it"), store("%i+1"), store("-%i+N-1"), store("N-1"), store("%i mod 4")],
    )
    assert [is_in_bounds(a) for a in all_accesses(module.main.block)] == [True, True, False, True, False, False]
    fixed = nest(["scf.for(%i = 1 to 8)"], [store("%i"), store("%i-1"), store("%i+1"), store("%i mod 8")], "%C: memref<f32[8]>")
    assert [is_in_bounds(a) for a in all_accesses(fixed.main.block)] == [True, True, False, True]


def test_effects() -> None:
    module = load(program("memref.copy(%A, %C)\n%x = memref.to_tensor(%C) : f32[M, N]\nprint(%x)"))
    copy, take, show, _ = module.main.block
    assert not has_other_effect(copy) and not has_other_effect(take) and has_other_effect(show)
    assert may_conflict(all_accesses([copy]), all_accesses([take]), module.main.block)


# -- random nests ------------------------------------------------------------------------------------------------------


def random_headers(rng: random.Random, depth: int) -> list[str]:
    """Loops of few rounds, of which inner ones may run through a tile or a triangle of outer ones."""
    headers: list[str] = []
    names: list[str] = []
    for name in "ijk"[:depth]:
        kind = rng.randrange(4)
        if kind == 0 and names:
            outer = rng.choice(names)
            header = f"%{name} = %{outer} to min(%{outer}+{rng.randint(1, 3)}, {rng.randint(2, 6)})"
        elif kind == 1 and names:
            header = f"%{name} = {rng.randint(0, 1)} to %{rng.choice(names)}+{rng.randint(0, 2)}"
        else:
            start = rng.randint(0, 2)
            header = f"%{name} = {start} to {start + rng.randint(0, 5)} step {rng.randint(1, 3)}"
        headers.append(f"scf.for({header})")
        names.append(name)
    return headers


def random_index(rng: random.Random, names: str) -> str:
    terms = [f"{rng.choice([1, 1, 1, 2, 3, -1, 4])}*%{n}" for n in names if rng.random() < 0.6]
    if rng.random() < 0.2:
        terms.append(f"(%{rng.choice(names)} {rng.choice(['floordiv', 'mod'])} {rng.randint(1, 3)})")
    return "+".join([*terms, str(rng.randint(0, 4))])


def points(loops: list[Operation], at: dict[str, Dim]) -> Iterator[dict[str, Dim]]:
    """All combinations of the variables of nested loops, with the numbers of the rounds."""
    if not loops:
        yield dict(at)
        return
    (bounds,) = ranges(loops[0])
    start, stop, step = (substitute(d, at) for d in (bounds.start, bounds.stop, bounds.step))
    assert isinstance(start, int) and isinstance(stop, int) and isinstance(step, int)
    name = variables_of(loops[0])[0].name
    for number, value in enumerate(range(start, stop, step)):
        yield from points(loops[1:], {**at, f"%{name}": value, f"round {name}": number})


def elements(access: Access, at: Mapping[str, Dim]) -> set[int]:
    """The places in memory that an access means."""
    assert access.indices is not None
    strides = [1]
    for dim in reversed(access.type.shape[1:]):
        assert isinstance(dim, int)
        strides.insert(0, strides[0] * dim)
    axes = [[substitute(e, at) + n for n in range(s)] for e, s in zip(access.indices, access.sizes, strict=True)]
    return {sum(i * s for i, s in zip(point, strides, strict=True)) for point in itertools.product(*axes)}  # type: ignore[misc]


def counted(module: Module, source: Access, sink: Access) -> set[tuple[str, ...]]:
    """The directions in which two accesses meet, by trying all rounds."""
    loops = [op for op in module.walk() if is_loop(op)]
    result: set[tuple[str, ...]] = set()
    everything = list(points(loops, {}))
    for a, b in itertools.product(everything, everything):
        if elements(source, a) & elements(sink, b):
            result.add(tuple("=" if a[n] == b[n] else "<" if a[n] < b[n] else ">" for n in a if n.startswith("round")))  # type: ignore[operator]
    return result


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_random_nests(depth: int) -> None:
    """No meeting is overlooked; and most that are claimed are there."""
    rng = random.Random(depth)
    claimed = really = 0
    for _ in range(250 if depth < 3 else 60):
        names = "ijk"[:depth]
        rank = rng.randint(1, 2)
        shape = "f32[999]" if rank == 1 else "f32[99, 99]"
        accesses = []
        for number in range(2):
            indices = [random_index(rng, names) for _ in range(rank)]
            if rng.random() < 0.3:
                sizes = [rng.choice(["", ":+2", ":+3"]) for _ in range(rank)]
                vector = ", ".join(s.removeprefix(":+") or "1" for s in sizes)
                place = ", ".join(i + s for i, s in zip(indices, sizes, strict=True))
                accesses.append(f"%x{number} = vector.load(%C[{place}]) : vector<f32[{vector}]>\nvector.store(%x{number}, %C[{place}])")
            else:
                accesses.append(f"%x{number} = memref.load(%C[{', '.join(indices)}]) : f32\nmemref.store(%v, %C[{', '.join(indices)}])")
        module = nest(random_headers(rng, depth), accesses, f"%C: memref<{shape}>")
        _, source, sink, _ = all_accesses(module.main.block)
        loops = [(v, v) for op in module.walk() if is_loop(op) for v in variables_of(op)]
        answer = set(Dependence(source, sink, loops, module.main.block).directions())
        truth = counted(module, source, sink)
        assert truth <= answer, f"{module}\noverlooked: {truth - answer}"
        if next(points([op for op in module.walk() if is_loop(op)], {}), None):
            claimed, really = claimed + len(answer), really + len(truth)
    assert really > (0.5 if depth < 3 else 0.25) * claimed, (really, claimed)
