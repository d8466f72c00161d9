"""specialize: dimensions and types are fixed everywhere, or the complaint says why not."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import NO_SOURCES, apply, load, operations, outputs

from ir.clone import clone_module
from ir.diagnostics import GraphError
from ir.inputs import generate_inputs
from ir.parser import parse_type
from ir.printer import print_module
from passes.graph.specialize import specialize_graph
from passes.infra.pipeline import format_pipeline
from passes.infra.verify_exec import same_bits
from passes.pipelines import load_pipeline

TEXT = """\
graph @main(%x: f32[B, H], %y: f32[2*H+2], %n: ?) -> (f32[B*H], f32[2*H+2], f32[B, 2*B])
  where 1 <= B <= 8, H mod 2 == 0, B <= H {
  %r = reshape(%x, shape=[B*H])
  %s = slice(%y, starts=[0], ends=[2*H+2])
  %f = full(shape=[B, 2*B], value=1.0, dtype=f32)
  return %r, %s, %f
}
"""


def specialized(options: str, text: str = TEXT) -> str:
    module = load(text)
    apply(module, f"specialize{{{options}}}")
    after = print_module(module)
    assert print_module(load(after)) == after
    return after


def test_a_dimension():
    assert specialized("dims=B=4") == (
        "graph @main(%x: f32[4, H], %y: f32[2*H+2], %n: ?) -> (f32[4*H], f32[2*H+2], f32[4, 8])\n"
        "  where H mod 2 == 0, 4 <= H {\n"
        "  %r = reshape(%x, shape=[4*H]) : f32[4*H]\n  %s = slice(%y, starts=[0], ends=[2*H+2]) : f32[2*H+2]\n"
        "  %f = full(shape=[4, 8], value=1.0, dtype=f32) : f32[4, 8]\n  return %r, %s, %f\n}\n"
    )


def test_all_dimensions():
    text = specialized("dims=[B=4, H=6]")
    assert "where" not in text and "f32[24]" in text and "B" not in text and "H" not in text


def test_types_bind_symbols():
    whole = specialized("dims=[B=4, H=6]")
    assert specialized('types="x=f32[4, 6]"') == whole
    assert specialized('types=["%x=f32[4, H]", "y=f32[14]"]') == whole
    assert specialized('types="y=f32[14]", dims="B=4"') == whole


def test_unknown_types_become_known():
    text = "graph @main(%x: ?, %w: f32[K, 8]) {\n  %y = matmul(%x, %w)\n  %z = exp(%y)\n  return %z\n}\n"
    assert specialized('types=["x=f32[2, 4]", "w=f32[4, 8]"]', text).count("f32[2, 8]") == 3
    bare = "%x    = input()\n%y    = exp(%x)\n"
    module = load(bare)
    specialize_graph(module, module.main, {"x": parse_type("f32[S, 4]")}, {})
    assert print_module(module) == "%x    = input() : f32[S, 4]\n%y    = exp(%x) : f32[S, 4]\n"


def test_renamed_and_swapped_symbols():
    text = "graph @main(%x: f32[B, S]) -> f32[S, B] {\n  %y = transpose(%x)\n  return %y\n}\n"
    assert "(%x: f32[S, B]) -> f32[B, S]" in specialized('types="x=f32[S, B]"', text)
    assert "(%x: f32[N, S]) -> f32[S, N]" in specialized('types="x=f32[N, S]"', text)
    assert "(%x: f32[3, 3]) -> f32[3, 3]" in specialized('types="x=f32[S, S]", dims="S=3"', text)


def test_the_same_numbers():
    module = load(TEXT.replace("%n: ?", "%n: i64[]"))
    after = clone_module(module)
    apply(after, "specialize{dims=[B=2, H=4]}")
    for kind in ("real", "special"):
        arrays = generate_inputs(module, module.main, {"B": 2, "H": 4}, kind)
        for a, b in zip(outputs(module, "main", arrays, NO_SOURCES), outputs(after, "main", arrays, NO_SOURCES), strict=True):
            assert same_bits(a, b)
    with pytest.raises(GraphError, match=r"%x is f32\[2, 4\]"):
        outputs(after, "main", [np.zeros((3, 4), np.float32), *arrays[1:]], NO_SOURCES)


def test_callees_keep_their_symbols():
    text = """\
graph @f(%x: f32[N]) -> f32[2*N] {
  %y = concat(%x, %x, axis=0)
  return %y
}

graph @main(%x: f32[B]) -> f32[2*B] {
  %y = call(@f, %x)
  return %y
}
"""
    after = specialized("dims=B=4", text)
    assert "graph @f(%x: f32[N]) -> f32[2*N]" in after and "%y = call(@f, %x) : f32[8]" in after
    assert "graph @f(%x: f32[4])" in specialized("dims=N=4, graph=f", text.replace("f32[B]", "f32[4]").replace("2*B", "8"))


def test_regions():
    text = """\
graph @main(%x: f32[B]) -> f32[B] {
  %s = scf.for(%i = 0 to B, %acc = %x) {
    %c = full(shape=[B], value=1.0, dtype=f32)
    %y = add(%acc, %c)
    yield %y
  }
  return %s
}
"""
    after = specialized("dims=B=4", text)
    assert "0 to 4" in after and "shape=[4]" in after and "B" not in after


@pytest.mark.parametrize(
    ("options", "message", "place"),
    [
        ("dims=B=9", "wants 1 <= B <= 8, but B = 9", "<string>:1"),
        ("dims=H=3", "wants H mod 2 == 0, but H = 3", "<string>:1"),
        ("dims=[B=4, H=2]", "wants B <= H", "<string>:1"),
        ("dims=Q=3", "no dimension Q", "<string>:1"),
        ('types="z=f32[3]"', "no parameter %z", "<string>:1"),
        ('types="x=f32[3]"', "it can't be f32[3]", "<string>:1"),
        ('types="x=i32[3, 4]"', "it can't be i32[3, 4]", "<string>:1"),
        ('types="y=f32[7]"', "it can't be f32[7]", "<string>:1"),
        ('types=["x=f32[3, 4]", "y=f32[14]"]', "%y is f32[2*H+2], here f32[10]: it can't be f32[14]", "<string>:1"),
        ('types="x=f32[3, 4]", dims=B=2', "makes B 3", "<string>:1"),
        ("graph=other", "no graph @other", ""),
    ],
)
def test_what_does_not_fit(options, message, place):
    with pytest.raises(GraphError) as caught:
        specialized(options)
    assert message in str(caught.value) and place in str(caught.value)


BAD_DIMS = ["dims=B", "dims=B=x", "dims=B=-1", 'dims="=3"', "dims=[B=1, B=2]", "dims=B=" + "9" * 30]
BAD_TYPES = ["types=x", 'types="x=f33[2]"', 'types="x=f32[2"', 'types="x=?"', 'types=["x=f32[]", "%x=f32[1]"]']


@pytest.mark.parametrize("options", [*BAD_DIMS, *BAD_TYPES])
def test_bad_options_are_located_in_the_pipeline(options):
    with pytest.raises(GraphError, match=r"<pipeline>:1:7"):
        load_pipeline(f"dce,  specialize{{{options}}}")


def test_options_print_and_parse():
    text = 'specialize{dims=["B=4"], types=["x=f32[4, H]"], graph="f"}'
    assert format_pipeline(load_pipeline(text)) == text


def test_errors_in_the_body_are_found():
    text = "graph @main(%x: f32[B, 4], %w: ?) {\n  %y = matmul(%x, %w)\n  return %y\n}\n"
    module = load(text)
    with pytest.raises(GraphError, match=r"<string>:2"):
        apply(module, 'specialize{types="w=f32[5, 8]"}')


def test_reshape_that_needed_the_numbers():
    text = "graph @main(%x: f32[B, 4]) -> ? {\n  %y = reshape(%x, shape=[B, 4])\n  return %y\n}\n"
    assert "-> f32[3, 4]" in specialized("dims=B=3", text)
    assert operations(load(text)) == ["reshape"]
