"""Folding: what passes make of one nest of every kind, copied, is what they make of all of them."""

from __future__ import annotations

import re

import pytest
from pass_checks import load

from ir.clone import clone_module
from ir.core import Graph, Module, Operation
from ir.dims import Dim
from ir.printer import print_module
from ir.structure import structure_of
from ir.types import MemRefType
from ir.verifier import verify_module
from passes.infra.manager import Instrumentation, PassManager
from passes.infra.pipeline import format_pass
from passes.infra.registry import find_pass, pass_files
from passes.infra.twins import FENCE, Folding
from passes.pipelines import load_pipeline
from tests.generators import random_module
from tests.twin_programs import LAYERS, decoder, doubled

NAME = re.compile(r'%"(?:[^"\\]|\\.)*"|%[A-Za-z0-9_.]+')


def without_names(module: Module) -> str:
    """The text with values numbered in the order in which they appear, and dimensions in the place of buffers that have them."""
    numbers: dict[str, str] = {}
    sizes = (str(dimension(op)) for op in module.walk() if op.name == "memref.dim")
    text = re.sub(r"memref\.dim\(.*?\)", lambda match: f"dim({next(sizes)})", print_module(module))
    return NAME.sub(lambda match: numbers.setdefault(match.group(), f"%v{len(numbers)}"), text)


def dimension(op: Operation) -> Dim:
    type_, axis = op.operands[0].type, op.attribute("axis")
    assert isinstance(type_, MemRefType) and isinstance(axis, int)
    return type_.shape[axis]


def both_ways(module: Module, pipeline: str) -> tuple[Module, PassManager]:
    """Runs a pipeline with and without folding, and compares."""
    plain, folded = clone_module(module), clone_module(module)
    PassManager(load_pipeline(pipeline)).run(plain)
    manager = PassManager(load_pipeline(pipeline), fold_twins=True)
    manager.run(folded)
    verify_module(folded)
    stood_in = clone_module(module)
    other = PassManager(load_pipeline(pipeline), fold_twins=True, stand_in=module.main.name)
    other.run(stood_in)
    other.complete()
    assert print_module(stood_in) == print_module(folded)
    verify_module(stood_in)
    if without_names(folded) != without_names(plain):  # nests that are folded share constants that others have one by one
        for module in (plain, folded):
            PassManager(load_pipeline("cse")).run(module)
        assert without_names(folded) == without_names(plain)
    return folded, manager


@pytest.mark.parametrize("end", ["lower-to-loops", "split-reduction", "unroll-vectors"])
def test_layers(end):
    passes = load_pipeline("cpu")
    last = max(n for n, p in enumerate(passes) if format_pass(p).startswith(end))
    both_ways(load(LAYERS), ",".join(map(format_pass, passes[: last + 1])))


@pytest.mark.parametrize("preset", ["cpu", "cpu-amx", "cpu-zen"])
@pytest.mark.parametrize("end", ["tile{loop=\"m\"", "split-reduction", "plan-memory", "unroll-vectors"])
def test_nests_that_are_never_made(end, preset, monkeypatch):
    """Attentions and products that are like others are left out; what copies come to is what making all of them gives."""
    left: list[Operation] = []
    leave_out = Folding.leave_out
    monkeypatch.setattr(Folding, "leave_out", lambda self, made, op, *buffers: (left.append(op), leave_out(self, made, op, *buffers))[1])
    passes = load_pipeline(preset)
    last = max(n for n, p in enumerate(passes) if format_pass(p).startswith(end))
    both_ways(load(decoder(3)), ",".join(map(format_pass, passes[: last + 1])))
    kinds = 5  # what the first layer splits is a parameter's memory
    assert len(left) == 2 * (3 * 5 - kinds)  # with copies and with stand-ins: a split, two products and two attentions of three layers


def test_what_is_left_out_is_not_made():
    """With nine layers as many operations are made in front of the loops as with three, but for the marks and buffers of each."""
    passes = load_pipeline("cpu")
    at = next(n for n, p in enumerate(passes) if format_pass(p) == "lower-to-loops")
    counts = []
    for layers in (3, 6, 9):
        found: list[int] = []
        behind = {id(passes[at - 1]): lambda module, found=found: found.append(sum(1 for _ in module.walk()))}
        PassManager(passes, fold_twins=True, behind=behind).run(load(decoder(layers)))
        counts += found
    assert counts[2] - counts[1] == counts[1] - counts[0] < counts[0] // 8


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_twice(seed):
    program = doubled(random_module(seed))
    if program is None:
        pytest.skip("it updates arrays")
    both_ways(program, ",".join(format_pass(p) for p in load_pipeline("cpu") if format_pass(p) != "cse"))


def fold(module: Module) -> Folding:
    folding = Folding()
    folding.fold(module)
    return folding


def nests(graph: Graph) -> list[Operation]:
    return [op for op in graph.block if op.regions]


TWO = """graph @main(%A: memref<f32[8]>, %B: memref<f32[8]>) {
  %C = memref.alloc() : memref<f32[8]>
  // first
  linalg.generic(i < 8, %a = %A[i], %c = %C[i]) {
    %n = arith.negf(%a) : f32
    %m = arith.negf(%n) : f32
    yield %m
  }
  // second
  linalg.generic(i < 8, %c2 = %C[i], %b = %B[i]) {
    %n2 = arith.negf(%c2) : f32
    %m2 = arith.negf(%n2) : f32
    yield %m2
  }
  linalg.generic(i < 8, %c3 = %C[i], %b3 = %B[i]) {
    %n3 = arith.negf(%c3) : f32
    %m3 = arith.negf(%n3) : f32
    yield %m3
  }
  return
}
"""


def test_kinds_are_told_apart():
    """A buffer that nothing else is has not the kind of a parameter; comments and names come back."""
    module = load(TWO)
    before = print_module(module)
    folding = fold(module)
    assert folding.kinds and len(nests(module.main)) == 2
    assert sum(op.definition is FENCE for op in module.main.block) == 3
    folding.unfold()
    assert print_module(module) == before
    verify_module(module)


def test_stand_ins_have_the_first_ones_regions():
    """They are nests without copies of their operations; afterwards everything is as if they had never been there."""
    module = load(TWO)
    before = print_module(module)
    folding = fold(module)
    assert not any(copy.locations for copy in folding.stand_in("main").values())  # its buffers are the caller's: they are copies
    assert print_module(module) == before

    inside = "".join(f"  %{n} = memref.alloc() : memref<f32[8]>\n" for n in "AB")
    module = load(TWO.replace("%A: memref<f32[8]>, %B: memref<f32[8]>", "").replace("  %C =", f"{inside}  %C ="))
    before = print_module(module)
    folding = fold(module)
    copies = folding.stand_in("main")
    assert copies and all(c.regions == copy.original.regions and c.block is module.main.block for c, copy in copies.items())
    assert not any(op.definition is FENCE for op in module.main.block)
    folding.unfold()
    assert print_module(module) == before
    verify_module(module)


def test_nothing_to_fold():
    assert not fold(load("graph @main(%x: f32[4]) -> f32[4] {\n  %y = neg(%x)\n  return %y\n}\n")).kinds


def test_same_memory_is_a_kind_of_its_own():
    text = TWO.replace("%c3 = %C[i], %b3 = %B[i]", "%c3 = %C[i], %b3 = %C[i]")
    module = load(text)
    assert not fold(module).kinds


def test_zeros_of_two_signs_differ():
    def structure(number: str) -> object:
        op = next(iter(load(f"graph @main() {{\n  %c = arith.constant({number}) : f32\n  return\n}}\n").main.block))
        return structure_of(op, lambda v: v.type)[0]

    assert structure("0.0") == structure("0.0") != structure("-0.0")


def test_not_while_somebody_looks():
    module = load(LAYERS)
    texts: list[str] = []
    watch = Instrumentation(print_after=("tile",), emit=texts.append)
    PassManager(load_pipeline("cpu"), watch, fold_twins=True).run(module)
    assert texts and not any("fence" in t for t in texts)


def test_a_fault_shows_a_program(monkeypatch):
    from passes.infra.manager import PassFault

    def broken(self, module, context):
        raise KeyError("broken")

    monkeypatch.setattr(find_pass("peel"), "run", broken)
    with pytest.raises(PassFault) as caught:
        PassManager(load_pipeline("cpu"), fold_twins=True).run(load(LAYERS))
    assert "fence" not in caught.value.before
    load(caught.value.before)


def test_local_passes_keep_types():
    """While nests are folded nothing is inferred."""
    for name in pass_files():
        assert find_pass(name).keeps_types or not find_pass(name).local, name


@pytest.mark.parametrize(("tag", "folds"), [("n.tile", 2), ("nothing", 1)])
def test_folded_while_others_have_nothing_to_do(tag, folds, monkeypatch):
    """``pack`` has to see all nests if it packs anything; ``hoist-to-init`` doesn't look at them."""
    count: list[Module] = []
    search = Folding.fold
    monkeypatch.setattr(Folding, "fold", lambda self, module: (count.append(module), search(self, module))[1])
    texts = [format_pass(p) for p in load_pipeline("cpu")]
    pack = next(n for n, t in enumerate(texts) if t.startswith("pack{"))
    module = load(LAYERS)
    PassManager(load_pipeline(",".join(texts[: pack - 3]))).run(module)
    both_ways(module, ",".join([*texts[pack - 3 : pack], f'pack{{loop="{tag}", stored_only=false, rows=32}}', *texts[pack + 1 : pack + 5]]))
    assert len(count) == 2 * folds  # with copies, and with stand-ins
