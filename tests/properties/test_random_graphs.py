"""Random programs: text, types, and every pass and preset.  ``GRAPH_OPT_FUZZ=N`` tries N; ``python -m tests.fuzz`` thousands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.inputs import choose_sizes
from ir.opdef import REGISTRY
from ir.types import type_symbols
from ir.verifier import verify_module
from passes.infra.base import PassContext
from passes.pipelines import PRESETS, load_pipeline
from tests.checks import (
    LOOPS,
    Baseline,
    Case,
    apply_pass,
    baseline,
    check_inference,
    check_numbers,
    check_pass,
    check_pipeline,
    check_preset,
    check_sequence,
    check_text,
    default_passes,
    first_success,
    registered_passes,
)
from tests.fuzz import check_rewritten
from tests.generators import modules, random_module
from tests.native_checks import check_native

ROOT = Path(__file__).parents[2]
SEEDS = st.integers(0, 2**16)


@given(modules())
def test_text_is_a_fixpoint(module: Module) -> None:
    check_text(module)


@given(modules(), SEEDS)
def test_comments_and_line_breaks(module: Module, seed: int) -> None:
    check_rewritten(module, seed)


@given(modules())
def test_inference_agrees_with_execution(module: Module) -> None:
    check_inference(module, baseline(module))


@pytest.mark.parametrize("name", registered_passes())
@given(module=modules(), seed=SEEDS)
def test_pass(name: str, module: Module, seed: int) -> None:
    check_pass(default_passes()[name], baseline(module, seed, limit=1))


@pytest.mark.parametrize("name", [name for name in PRESETS if name != LOOPS])
@given(module=modules(), seed=SEEDS)
def test_preset(name: str, module: Module, seed: int) -> None:
    check_preset(name, baseline(module, seed, limit=1))


@settings(max_examples=max(settings().max_examples // 10, 1))
@given(modules(max_steps=3), SEEDS)
def test_preset_for_loops(module: Module, seed: int) -> None:
    """Few and small programs: every pass is followed by a run of loops over elements."""
    check_preset(LOOPS, baseline(module, seed, limit=1))


@given(modules(), SEEDS)
def test_machine_code(module: Module, seed: int) -> None:
    check_native(baseline(module, seed, limit=1), threads=1 + seed % 2)


@given(modules(), st.permutations(registered_passes()), SEEDS)
def test_passes_in_any_order(module: Module, order: list[str], seed: int) -> None:
    check_sequence([default_passes()[n] for n in order], baseline(module, seed, limit=1), ",".join(order))


@given(modules(), st.sampled_from(["B", "S", "N"]), st.sampled_from([0, 1, 2, 5]))
def test_specialized(module: Module, name: str, size: int) -> None:
    """A program for one size computes what the general one does for it."""
    graph = module.main
    if name not in {s for p in graph.parameters for s in type_symbols(p.type)}:
        return
    try:
        sizes = choose_sizes(graph, {name: size})
    except GraphError:
        return
    case = first_success(module, graph.name, sizes, "special", 0)
    before = Baseline(module, [case] if isinstance(case, Case) else [])
    (pass_,) = load_pipeline(f'specialize{{dims=["{name}={size}"]}}')
    after = clone_module(module)
    apply_pass(pass_, after)
    check_numbers(before, after, "bits", f"specialize {name}={size}")
    again = baseline(after, 0, limit=1)
    check_pipeline(load_pipeline("O1"), again, f"O1 after specialize {name}={size}")


def test_generator_covers_every_operation() -> None:
    """Some hundred programs use all tensor operations, and operations of the lower levels."""
    wanted = {name for name in REGISTRY if name.startswith("graph.")}
    met: set[str] = set()
    seed = 0
    while wanted - met and seed < 3000:
        met |= {op.name for op in random_module(seed).walk()}
        seed += 1
    assert wanted <= met, f"not met in {seed} programs: {sorted(wanted - met)}"
    assert met - wanted


def test_random_programs_run() -> None:
    """The generator is of use: nearly all programs run on inputs of all kinds, and one has several operations."""
    found = [baseline(random_module(seed), seed, limit=1) for seed in range(100)]
    assert sum(len(b.cases) == 3 for b in found) >= 90
    assert sum(sum(1 for _ in b.module.walk()) for b in found) / len(found) >= 5


@given(modules(), SEEDS)
def test_a_module_is_sound_after_every_preset(module: Module, seed: int) -> None:
    for name in PRESETS:
        for pass_ in load_pipeline(name):
            pass_.run(module, PassContext())
            verify_module(module)


_PRINT = """
import sys
from passes.infra.manager import PassManager
from passes.pipelines import PRESETS, load_pipeline
from tests.generators import random_module
for seed in range(24):
    for preset in PRESETS:
        module = random_module(seed)
        PassManager(load_pipeline(preset)).run(module)
        print(module)
"""


def test_hash_seed_changes_nothing() -> None:
    texts = []
    for hash_seed in ("0", "4321"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", _PRINT], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0].count("graph @main") >= 80
    assert texts[0] == texts[1]
