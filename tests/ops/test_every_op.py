"""Every operation, through the examples of its docstring: text, types, numbers, and every pass.

Nothing here names an operation: one that is added to ``dialects/`` is tested without a change.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from ir.core import Module
from ir.diagnostics import GraphError
from ir.docs import example_texts
from ir.opdef import REGISTRY, RegionOpDef
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import UNKNOWN, TensorType, is_known
from ir.verifier import verify_module
from tests.checks import (
    Baseline,
    all_examples,
    baseline,
    check_inference,
    check_pass,
    check_rounded_once,
    check_text,
    default_passes,
    infer_module,
    load,
    registered_passes,
)

EXAMPLES = {f"{name}-{number}": (name, text) for name, number, text in all_examples()}


@cache
def runs_of(key: str) -> Baseline:
    """The example with inferred types, and its runs.  The graph is called @main, as passes expect."""
    return baseline(load(EXAMPLES[key][1].replace("@example(", "@main(")))


@pytest.fixture(params=EXAMPLES)
def key(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("name", REGISTRY)
def test_is_documented(name: str) -> None:
    definition = REGISTRY[name]
    texts = example_texts(definition.doc)
    assert texts, f"{name} has no example in its docstring"
    summary = definition.doc.strip().splitlines()[0]
    assert summary.endswith("."), f"the docstring of {name} begins with a line that is a sentence"
    for text in texts:
        assert any(op.name == name for op in parse_module(text).walk()), f"an example of {name} does not use it"


def test_text_is_a_fixpoint(key: str) -> None:
    name, text = EXAMPLES[key]
    module = parse_module(text)
    assert print_module(module) == text, f"the example of {name} is not written as the printer does"
    verify_module(module)
    check_text(module)
    infer_module(module)
    check_text(module)


def test_all_types_are_inferred(key: str) -> None:
    module = load(EXAMPLES[key][1])
    for op in module.walk():
        for result in op.results:
            assert is_known(result.type), f"%{result.name}: {result.type}\n{print_module(module)}"


def test_declared_types_are_the_inferred_ones(key: str) -> None:
    declared = parse_module(EXAMPLES[key][1])
    bare = parse_module(EXAMPLES[key][1])
    forget_types(bare)
    infer_module(bare)
    for name, graph in declared.graphs.items():
        assert graph.result_types == bare.graphs[name].result_types
        for written, found in zip(graph.walk(), bare.graphs[name].walk(), strict=True):
            for a, b in zip(written.results, found.results, strict=True):
                assert a.type in (UNKNOWN, b.type), f"%{a.name} is declared {a.type}, inferred {b.type}"


def forget_types(module: Module) -> None:
    """Removes all declared result types but those that only the program can say."""
    for graph in module.graphs.values():
        graph.result_types = [UNKNOWN] * len(graph.result_types)
    for op in module.walk():
        if not op.definition.declared_result and op.name != "graph.weight":
            for result in op.results:
                result.type = UNKNOWN


def test_runs_on_generated_inputs(key: str) -> None:
    runs = runs_of(key)
    kinds = {c.kind for c in runs.cases}
    assert kinds == {"real", "exact", "special"}, runs.failed


def test_inference_agrees_with_execution(key: str) -> None:
    runs = runs_of(key)
    assert runs.cases, runs.failed
    check_inference(runs.module, runs)


def rounds_once(module: Module) -> bool:
    """Whether the program has one operation that computes, on tensors."""
    computing = [op for op in module.walk() if op.operand_uses and not op.definition.is_terminator]
    tensors = all(isinstance(v.type, TensorType) for v in module.graphs["main"].results)
    return len(computing) <= 1 and tensors and not any(isinstance(op.definition, RegionOpDef) for op in module.walk())


def test_rounds_once(key: str) -> None:
    runs = runs_of(key)
    if not rounds_once(runs.module):
        pytest.skip("more than one operation")
    assert check_rounded_once(runs.module, runs) or not runs.module.graphs["main"].results


FLOATS = [f"{key}-{dtype}" for key, (_, text) in EXAMPLES.items() if re.search(r"\bf32\b", text) for dtype in ("f64", "f16", "bf16")]


@pytest.mark.parametrize("variant", FLOATS)
def test_other_float_types(variant: str) -> None:
    """The example with another element type in the place of f32, if the operation takes it."""
    key, _, dtype = variant.rpartition("-")
    text = re.sub(r"\bf32\b", dtype, EXAMPLES[key][1]).replace("@example(", "@main(")
    try:
        module = load(text)
    except GraphError as error:
        pytest.skip(str(error).splitlines()[0])
    check_text(module)
    runs = baseline(module)
    assert runs.cases, runs.failed
    check_inference(module, runs)
    if rounds_once(module):
        check_rounded_once(module, runs)
    for pass_ in default_passes().values():
        check_pass(pass_, runs, strict=True)


@pytest.mark.parametrize("pass_name", registered_passes())
def test_pass_preserves_it(key: str, pass_name: str) -> None:
    check_pass(default_passes()[pass_name], runs_of(key), strict=True)
