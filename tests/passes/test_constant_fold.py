"""constant-fold: the bits of the interpreter, nothing large, nothing that fails."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pass_checks import NO_SOURCES, apply, check, load, operations, optimize, outputs

from ir.attributes import Dense
from ir.clone import clone_module
from ir.docs import example_texts
from ir.inputs import generate_inputs
from ir.opdef import REGISTRY
from ir.parser import parse_module
from ir.printer import format_attribute, print_module
from ir.types import ELEMENT_DTYPES as DTYPES
from ir.types import q4_1, q8_0
from ir.weights import ArraySource
from passes.infra.verify_exec import same_bits


def fold(text: str, pipeline: str = "constant-fold", sources=NO_SOURCES) -> list[str]:
    return operations(optimize(text, pipeline, sources))


# -- every operation ---------------------------------------------------------------------------------------------------


def closed_program(text: str, kind: str, seed: int) -> str | None:
    """The last graph of a text with its parameters replaced by constants; None when that can't be said."""
    module = load(text)
    graph = list(module.graphs.values())[-1]
    if len(module.graphs) > 1 or module.files or any(p.inout or p.type.dtype.is_block for p in graph.parameters):
        return None
    sizes = dict.fromkeys((s for p in graph.parameters for s in _symbols(p.type)), 3)
    arrays = generate_inputs(module, graph, sizes, kind, seed)
    for name, size in sizes.items():
        text = "\n".join(_substituted(line, name, size) for line in text.splitlines())
    module = parse_module(text)
    graph = list(module.graphs.values())[-1]
    lines = text.splitlines()
    end = next(i for i, line in enumerate(lines) if line.endswith("{"))
    constants = []
    for parameter, array in zip(graph.parameters, arrays, strict=True):
        dtype = parameter.type.dtype
        constants.append(f"  %{parameter.name} = constant({format_attribute(Dense(array, dtype))}) : {parameter.type}")
    return "\n".join(["graph @main() {", *constants, *lines[end + 1 :]]) + "\n"


def _symbols(type_):
    from ir.types import type_symbols

    return type_symbols(type_)


def _substituted(line: str, name: str, size: int) -> str:
    import re

    return re.sub(rf"(?<![\w%@.\"]){name}(?![\w.=])", str(size), line)


def _examples():
    for name, definition in sorted(REGISTRY.items()):
        if definition.dialect == "graph" and definition.pure and definition.body is not None:
            for i, text in enumerate(example_texts(definition.doc)):
                yield pytest.param(name, text, id=f"{definition.name}-{i}")


@pytest.mark.parametrize(("name", "text"), list(_examples()))
def test_examples_fold_to_the_same_bits(name, text):
    """Trap 23: the folder rounds, saturates and wraps like a run."""
    for kind, seed in (("real", 0), ("special", 1), ("exact", 2)):
        closed = closed_program(text, kind, seed)
        if closed is None:
            return
        before = load(closed)
        after = optimize(closed, "constant-fold")
        left = {op.definition.text_name for op in after.walk() if not op.definition.is_terminator}
        want = outputs(before, "main", [], NO_SOURCES)
        assert left <= {"constant", "full", "iota"}, print_module(after)
        for a, b in zip(want, outputs(after, "main", [], NO_SOURCES), strict=True):
            assert same_bits(a, b)


def test_blocks_are_never_unpacked():
    """However small they are: the program would grow by what quantizing saved."""
    text = """
    file @w = "w.npz"
    graph @main(%x: f32[1, 32]) -> (f32[1, 1], f32[1, 32], f32[2, 32], i64[]) {
      %a = weight(@w, "a") : q4_1[1, 32]
      %t = weight(@w, "t") : q8_0[3, 32]
      %y = linear(%x, %a)
      %d = dequantize(%a)
      %i = constant([0, 2]) : i64[2]
      %e = embedding(%t, %i)
      %n = dim(%t, axis=1)
      return %y, %d, %e, %n
    }
    """
    source = ArraySource({"a": np.zeros((1, 1), q4_1.numpy), "t": np.zeros((3, 1), q8_0.numpy)})
    assert fold(text, sources={"w": source}) == [*("weight", "weight", "linear", "dequantize", "constant", "embedding", "constant")]


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("target", list(DTYPES))
def test_casts_of_uniform_tensors(dtype, target):
    kind = DTYPES[dtype]
    if "index" in (dtype, target):
        return
    numbers = ["nan", "inf", "-inf", "-0.0", "300.0", "-1.5", "1e20", "65520.0", "1e-40"]
    if not kind.is_float:
        numbers = ["true", "false"] if dtype == "bool" else [str(kind.min_value), str(kind.max_value), "1", "0"]
    body = ""
    for i, number in enumerate(numbers):
        body += f"  %c{i} = full(shape=[B, 2], value={number}, dtype={dtype})\n  %r{i} = cast(%c{i}, dtype={target})\n"
    results = ", ".join(f"%r{i}" for i in range(len(numbers)))
    before = load(f"graph @main(%x: f32[B]) {{\n{body}  return {results}\n}}\n")
    after = clone_module(before)
    apply(after, "constant-fold")
    assert operations(after) == ["full"] * len(numbers)
    arrays = [np.zeros(3, np.float32)]
    for a, b in zip(outputs(before, "main", arrays, NO_SOURCES), outputs(after, "main", arrays, NO_SOURCES), strict=True):
        assert same_bits(a, b)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_large_results_are_neither_computed_nor_written():
    """Trap 66: iota of 1e9, broadcasts of a splat, random numbers by the gigabyte."""
    body = """\
  %i = iota(shape=[1000000000])
  %j = neg(%i)
  %c = constant(1.5) : f32[]
  %e = expand(%c, shape=[100000, 100000])
  %d = sin(%e)
  %s = constant(7)
  %u = uniform(%s, shape=[100000, 10000])
  %r = reshape(%i, shape=[1000, 1000000])
  %t = sum(%i)
  %m = matmul(%e, %e)
  %p = argmax(%i)
  %h = slice(%i, starts=[5], ends=[9])
"""
    text = f"graph @main() {{\n{body}  return %j, %d, %u, %r, %t, %m, %p, %h\n}}\n"
    start = time.perf_counter()
    module = load(text)
    apply(module, "constant-fold")
    assert time.perf_counter() - start < 2
    assert operations(module) == ["iota", "neg", "full", "sin", "constant", "uniform", "reshape", "sum", "matmul", "argmax", "slice"]
    assert len(print_module(module)) < 2000


def test_budget():
    text = "graph @main() -> f32[16] {\n  %i = iota(shape=[16], dtype=f32)\n  %r = exp(%i)\n  return %r\n}\n"
    assert fold(text) == ["constant"]
    assert fold(text, "constant-fold{budget=64}") == ["constant"]
    assert fold(text, "constant-fold{budget=63}") == ["iota", "exp"]
    assert fold(text, "constant-fold{budget=0}") == ["iota", "exp"]


def test_products_of_everything_with_everything_are_not_computed():
    text = """\
graph @main() {
  %a = iota(shape=[16000, 1000], dtype=f32)
  %b = iota(shape=[1000, 1], dtype=f32)
  %c = matmul(%a, %b)
  return %c
}
"""
    assert fold(text) == ["iota", "iota", "matmul"]


def test_operations_that_fail_are_left_alone():
    for call, dtype in (("floordiv", "i32"), ("mod", "i8"), ("truncdiv", "i64"), ("rem", "u8")):
        body = f"  %a = constant(3) : {dtype}[2]\n  %z = constant([1, 0]) : {dtype}[2]\n  %r = {call}(%a, %z)\n"
        assert fold(f"graph @main() {{\n{body}  return %r\n}}\n") == ["constant", "constant", call]
        assert fold(f"graph @main() {{\n{body.replace('[1, 0]', '[1, 2]')}  return %r\n}}\n") == ["constant"]
    for number, left in ((5, ["constant", "constant", "gather"]), (1, ["constant"])):
        body = f"  %a = constant([3, 4]) : i32[2]\n  %i = constant({number})\n  %r = gather(%a, %i)\n  return %r\n"
        assert fold(f"graph @main() {{\n{body}}}\n") == left
    shift = "  %a = constant(3) : i32[]\n  %i = constant(32) : i32[]\n  %r = shift_left(%a, %i)\n  return %r\n"
    assert fold(f"graph @main() {{\n{shift}}}\n") == ["constant", "constant", "shift_left"]


def test_effects_and_inputs_stay():
    body = "  %a = constant([1.0, 2.0])\n  print(%a)\n  %t = constant(true)\n  assert(%t)\n  %r = add(%x, %a)\n"
    assert fold(f"graph @main(%x: f32[2]) {{\n{body}  return %r\n}}\n") == ["constant", "print", "constant", "assert", "add"]


def test_integers_wrap_and_types_stay():
    """Trap 66: no promotion by numpy."""
    body = "  %a = constant(100) : i8[]\n  %b = add(%a, %a)\n  %c = mul(%b, %a)\n  return %b, %c\n"
    module = check(f"graph @main() {{\n{body}}}\n", "constant-fold")
    assert [str(v.type) for v in module.main.results] == ["i8[]", "i8[]"]
    assert [int(a) for a in outputs(module, "main", [], NO_SOURCES)] == [-56, 32]


# -- special cases -----------------------------------------------------------------------------------------------------


def test_dim():
    text = "graph @main(%x: f32[B, 4]) {\n  %n = dim(%x, axis=1)\n  %m = dim(%x, axis=-2)\n  %k = mul(%n, %n)\n  return %n, %m, %k\n}\n"
    module = check(text, "constant-fold")
    assert operations(module) == ["constant", "dim", "constant"]


def test_symbolic_shapes_of_uniform_tensors():
    body = """\
  %c = constant(2.0) : f32[]
  %e = expand(%c, shape=[B, 4])
  %m = mul(%e, %e)
  %t = transpose(%m)
  %r = reshape(%t, shape=[2, 2*B])
  %f = exp(%r)
"""
    module = check(f"graph @main(%x: f32[B]) {{\n{body}  return %f, %t\n}}\n", "constant-fold")
    assert operations(module) == ["full", "full", "exp"]  # exp is not exact: it may differ in one element alone
    assert [op.attribute("value") for op in module.walk() if op.definition.text_name == "full"] == [4.0, 4.0]


def test_several_results():
    text = "graph @main() {\n  %c = constant([3.0, 1.0, 2.0])\n  %v, %i = topk(%c, k=2)\n  return %v, %i\n}\n"
    module = check(text, "constant-fold")
    assert operations(module) == ["constant", "constant"] and [v.name for v in module.main.results] == ["v", "i"]


def test_names_and_comments():
    text = "graph @main() {\n  %c = constant(1.0)\n\n  // what it is for\n  %r = exp(%c)\n  return %r\n}\n"
    assert print_module(optimize(text, "constant-fold")) == (
        "graph @main() -> f32[] {\n  // what it is for\n  %r = constant(2.7182817) : f32[]\n  return %r\n}\n"
    )


WEIGHTS = """\
file @w = "w.npz"

graph @main(%x: f32[4]) {
  %s = weight(@w, "scale") : f32[4]
  %b = weight(@w, "big") : f32[64, 64]
  %e = exp(%s)
  %t = transpose(%b)
  %m = max(%b)
  %y = add(%x, %e)
  return %y, %t, %m
}
"""


def test_weights_when_they_are_at_hand():
    rng = np.random.default_rng(0)
    arrays = {"scale": rng.standard_normal(4).astype(np.float32), "big": rng.standard_normal((64, 64)).astype(np.float32)}
    sources = {"w": ArraySource(arrays)}
    assert fold(WEIGHTS) == ["weight", "weight", "exp", "transpose", "max", "add"]
    module = check(WEIGHTS, "constant-fold", sources)
    # the transpose has 16 KB: it stays with the file
    assert operations(module) == ["weight", "constant", "transpose", "constant", "add"]


def test_statistics():
    module = load("graph @main() {\n  %c = constant(1.0)\n  %r = exp(%c)\n  return %r\n}\n")
    manager = apply(module, "constant-fold")
    assert manager.records[0].statistics == {"operations folded": 1}
