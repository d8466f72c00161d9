"""decompose: composites become primitives; test_decompositions.py checks the numbers of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from pass_checks import load, operations, optimize

from ir.diagnostics import GraphError
from ir.opdef import REGISTRY
from passes.graph._decompositions import DECOMPOSITIONS
from passes.infra.pipeline import format_pipeline
from passes.infra.verify_exec import compare_modules
from passes.pipelines import load_pipeline

SAMPLES = sorted((Path(__file__).parents[2] / "samples").glob("*.graph"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_samples(path):
    text = path.read_text(encoding="utf-8")
    module = optimize(text, "decompose")
    typed = all("?" not in str(r.type) for op in module.walk() for r in op.results)
    assert not typed or not any(op.definition.composite for op in module.walk())
    outcome = compare_modules(load(text), module, "values", budget=1e8)
    assert outcome.mismatch is None


def test_selected_operations():
    text = "graph @main(%x: f32[B, 4]) {\n  %a = softmax(%x)\n  %b = gelu(%a)\n  return %b\n}\n"
    assert operations(optimize(text, "decompose{ops=gelu}"))[0] == "softmax"
    assert "gelu" in operations(optimize(text, "decompose{ops=[softmax, graph.relu]}"))


def test_names_and_signature_stay():
    text = "graph @main(%x: f32[B, 4]) -> f32[B, 4] {\n  // weights\n  %p = softmax(%x)\n  return %p\n}\n"
    module = optimize(text, "decompose")
    assert module.main.result_names == ["p"]
    assert all(r.name == "p" or r.name.startswith("p.") for op in module.walk() for r in op.results)


def test_unknown_operation_is_located():
    with pytest.raises(GraphError, match=r"<pipeline>:1:5(.|\n)*'softmux' is no composite"):
        load_pipeline("dce,decompose{ops=[softmux]}")
    with pytest.raises(GraphError, match="'matmul' is no composite"):
        load_pipeline("decompose{ops=matmul}")


def test_round_trip():
    text = 'decompose{ops=["softmax", "gelu"]}'
    assert format_pipeline(load_pipeline(text)) == text


def test_inside_regions():
    text = """\
graph @main(%x: f32[4]) -> f32[4] {
  %s = scf.for(%i = 0 to 3, %acc = %x) {
    %y = softmax(%acc)
    yield %y
  }
  return %s
}
"""
    names = operations(optimize(text, "decompose"))
    assert "softmax" not in names and "exp" in names


def test_parts_are_primitives():
    assert not any(REGISTRY[f"graph.{n}"].composite for n in ("matmul", "exp", "max", "sum", "where"))
    assert all(REGISTRY[n].composite for n in DECOMPOSITIONS)
