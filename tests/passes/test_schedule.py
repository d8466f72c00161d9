"""schedule: never more memory, never other bits, effects in order."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from pass_checks import NO_SOURCES, apply, assert_same_bits, check, load, operations, optimize, outputs

from ir.clone import clone_module
from ir.printer import print_module
from ir.updates import updated_operands


def peak_of(module, name: str = "main") -> int:
    """Bytes in use at most, counted in the plainest way (static shapes)."""
    graph = module.graphs[name]
    order = list(graph.block)
    versions = {r for op in order for _, r in updated_operands(op, module)}
    worst = 0
    for i, _ in enumerate(order):
        live = 0
        for j, op in enumerate(order[: i + 1]):
            for result in op.results:
                readers = [k for k, user in enumerate(order) for n in user.walk() if result in n.operands]
                alive = max(readers, default=j) >= i
                if alive and op.definition.name not in ("constant", "weight") and result not in versions:
                    live += int(result.type.nbytes)
        worst = max(worst, live)
    return worst


def random_program(seed: int) -> str:
    """Elementwise operations, reductions and concatenations of random values; some results, constants and effects."""
    rng = random.Random(seed)
    lines, values, small = [], ["x", "y"], []
    for i in range(rng.randint(5, 40)):
        kind = rng.random()
        pick = rng.choice(values[-6:])
        if kind < 0.35:
            lines.append(f"%v{i} = {rng.choice(['exp', 'neg', 'abs'])}(%{pick})")
            values.append(f"v{i}")
        elif kind < 0.6:
            lines.append(f"%v{i} = {rng.choice(['add', 'maximum'])}(%{pick}, %{rng.choice(values)})")
            values.append(f"v{i}")
        elif kind < 0.7:
            lines.append(f"%v{i} = constant({i}.0) : f32[8, 4]")
            values.append(f"v{i}")
        elif kind < 0.75:
            lines.append(f"print(%{pick})")
        elif kind < 0.8 and small:
            lines.append(f"%v{i} = add(%{pick}, %{rng.choice(small)})")
            values.append(f"v{i}")
        else:
            lines.append(f"%v{i} = sum(%{pick})")
            small.append(f"v{i}")
    returned = ", ".join(f"%{v}" for v in [*small, values[-1]])
    return "graph @main(%x: f32[8, 4], %y: f32[8, 4]) {\n" + "".join(f"  {line}\n" for line in lines) + f"  return {returned}\n}}\n"


def printed(module) -> list[str]:
    return [op.operands[0].name for op in module.walk() if op.definition.text_name == "print"]


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    text = random_program(seed)
    before = load(text)
    after = optimize(text, "schedule")
    assert peak_of(after) <= peak_of(before)
    assert (print_module(after) == print_module(before)) or peak_of(after) < peak_of(before)
    assert sorted(operations(after)) == sorted(operations(before)) and printed(after) == printed(before)
    arrays = [np.float32(np.random.default_rng(seed).standard_normal((8, 4))) for _ in range(2)]
    for a, b in zip(outputs(before, "main", arrays, NO_SOURCES), outputs(after, "main", arrays, NO_SOURCES), strict=True):
        assert a.tobytes() == b.tobytes()


def test_random_programs_do_improve():
    better = 0
    for seed in range(60):
        before = load(random_program(seed))
        after = clone_module(before)
        apply(after, "schedule")
        better += peak_of(after) < peak_of(before)
    assert better > 15


def test_peaks_are_reported():
    text = "graph @main(%x: f32[8, 4]) {\n  %a = exp(%x)\n  %b = neg(%x)\n  %s = sum(%a)\n  %t = sum(%b)\n  return %s, %t\n}\n"
    module = load(text)
    before = peak_of(module)
    statistics = apply(module, "schedule").records[0].statistics
    assert statistics == {"bytes at the peak before": before, "bytes at the peak after": peak_of(module)}
    assert (before, peak_of(module)) == (260, 136)


def test_constants_stay_in_front():
    text = """\
graph @main(%x: f32[64, 4]) {
  %c = constant(1.0) : f32[]
  %d = constant(2.0) : f32[]
  %a = add(%x, %c)
  %b = add(%x, %d)
  %s = sum(%a)
  %e = constant(3.0) : f32[]
  %t = sum(%b)
  %u = add(%t, %e)
  return %s, %u
}
"""
    module = check(text, "schedule")
    assert [op.results[0].name for op in module.walk() if op.results] == ["c", "d", "a", "s", "b", "e", "t", "u"]


BETTER = "  %b1 = exp(%w)\n  %b2 = neg(%w)\n  %b3 = sum(%b1)\n  %b4 = sum(%b2)\n"
"""Has a better order, so that the candidate is taken."""


def names_after(body: str, parameters: str, results: str) -> list[str]:
    """Names of the results in the new order; ``assert`` for an assert."""
    text = f"graph @main(%w: f32[64, 64], {parameters}) {{\n{BETTER}{body}  return %b3, %b4, {results}\n}}\n"
    module = check(text, "schedule")
    names = [op.results[0].name if op.results else op.definition.text_name for op in module.walk()]
    assert names.index("b3") < names.index("b2")
    return names


@pytest.mark.parametrize("read", ["exp(%c)", "exp(%view)"])
def test_updates_stay_behind_the_reads_of_the_older_version(read):
    """Trap 59: the update costs nothing and would come first; reads by way of a reshape count too."""
    body = f"  %view = reshape(%c, shape=[128])\n  %old = {read}\n  %u = cache_update(%c, %x, %p)\n  %s = sum(%old)\n  %new = sum(%u)\n"
    names = names_after(body, "%c: f32[32, 4] inout, %x: f32[1, 4], %p: i64[]", "%s, %new")
    assert names.index("old") < names.index("u") < names.index("new")


def test_what_may_fail_stays_behind_an_assert():
    body = "  %zero = constant(0)\n  %ok = greater_equal(%i, %zero)\n  assert(%ok)\n  %g = gather(%x, %j)\n"
    names = names_after(body, "%i: i64[512], %x: f32[4], %j: i64[2]", "%g")
    assert names.index("assert") < names.index("g")


def test_effects_keep_their_order():
    text = """\
graph @note(%x: f32[4]) -> f32[4] {
  print(%x)
  return %x
}

graph @main(%x: f32[4], %i: i64[2]) -> (f32[4], f32[2]) {
  %big = full(shape=[512], value=1.0, dtype=f32)
  print(%big, label="first")
  %zero = constant(0)
  %ok = greater_equal(%i, %zero)
  assert(%ok)
  %g = gather(%x, %i)
  %y = call(@note, %x)
  print(%x, label="last")
  return %y, %g
}
"""
    module = check(text, "schedule")
    effects = [op.definition.text_name for op in module.main.walk() if not op.definition.pure]
    assert effects == ["print", "assert", "call", "print", "return"]
    names = [op.definition.text_name for op in module.main.walk()]
    assert names.index("assert") < names.index("gather")


def test_symbolic_sizes_and_unknown_types():
    text = "graph @main(%x: f32[B, 9], %y: f32[B, 9]) {\n  %a = exp(%x)\n  %b = exp(%y)\n  %s = sum(%a)\n  %t = sum(%b)\n  return %s, %t\n}\n"
    assert operations(check(text, "schedule")) == ["exp", "sum", "exp", "sum"]
    unknown = text.replace("f32[B, 9]", "f32[?, 9]")
    assert operations(optimize(unknown, "schedule")) == ["exp", "exp", "sum", "sum"]


def test_source_order_is_the_order_of_the_source():
    module = optimize(random_program(1), "schedule{order=source}")
    assert print_module(module) == print_module(load(random_program(1)))


def test_regions_move_as_a_whole():
    text = """\
graph @main(%x: f32[64], %y: f32[64]) -> (f32[], f32[]) {
  %a = exp(%x)
  %b = exp(%y)
  %s = scf.for(%i = 0 to 3, %acc = %a) {
    %n = neg(%acc)
    %m = add(%n, %b)
    yield %m
  }
  %big = exp(%x)
  %t = sum(%big)
  %u = sum(%s)
  return %t, %u
}
"""
    module = check(text, "schedule")
    assert operations(module).count("neg") == 1


def test_comments_and_names_travel():
    text = "graph @main(%x: f32[8, 4]) {\n  // A\n  %a = exp(%x)\n  // B\n  %b = neg(%x)\n  %s = sum(%a)  // S\n  %t = sum(%b)\n  return %s, %t\n}\n"
    lines = print_module(optimize(text, "schedule")).splitlines()
    assert [line.strip().split(" =")[0] for line in lines[1:-2]] == ["// A", "%a", "%s", "// B", "%b", "%t"]
    assert lines[3].endswith("// S")


def test_many_operations_take_linear_time():
    count = 5000
    body = "".join(f"  %a{i} = exp(%x)\n" for i in range(count)) + "".join(f"  %s{i} = sum(%a{i})\n" for i in range(count))
    module = load(f"graph @main(%x: f32[8]) {{\n{body}  return {', '.join(f'%s{i}' for i in range(count))}\n}}\n")
    from passes.graph.schedule import Schedule
    from passes.infra.base import PassContext

    start = time.perf_counter()
    assert Schedule().run(module, PassContext())
    assert time.perf_counter() - start < 10
    assert operations(module)[:4] == ["exp", "sum", "exp", "sum"]


def test_samples():
    from pathlib import Path

    for path in sorted((Path(__file__).parents[2] / "samples").glob("*.graph")):
        optimize(path.read_text(encoding="utf-8"), "schedule")
        if path.stem == "mlp":
            assert_same_bits(load(path.read_text(encoding="utf-8")), optimize(path.read_text(encoding="utf-8"), "O1,schedule"))
