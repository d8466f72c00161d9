"""cse: merges what is equal bit by bit, and nothing else."""

from __future__ import annotations

import itertools

import pytest
from pass_checks import apply, check, load, operations, optimize

from ir.attributes import attribute_key
from ir.printer import print_module
from passes.graph.cse import operation_key


def merged(body: str, parameters: str = "%x: f32[4], %y: f32[4]") -> bool:
    """Whether %a and %b of a body become one."""
    text = f"graph @main({parameters}) {{\n  {body.replace('; ', chr(10) + '  ')}\n  return %a, %b\n}}\n"
    module = check(text, "cse")
    return module.main.results[0] is module.main.results[1]


@pytest.mark.parametrize(
    "body",
    [
        "%a = exp(%x); %b = exp(%x)",
        "%a = add(%x, %y); %b = add(%y, %x)",
        "%a = maximum(%x, %y); %b = maximum(%y, %x)",
        "%a = equal(%x, %y); %b = equal(%y, %x)",
        "%a = constant(1.0); %b = constant(1.0)",
        "%a = constant(nan); %b = constant(nan)",
        "%a = full(shape=[2], value=1.0, dtype=f32); %b = full(shape=[2], value=1.0, dtype=f32)",
        "%a = sum(%x, axes=[0], keepdims=false); %b = sum(%x, axes=[0])",
        "%c = constant(7); %a = uniform(%c, shape=[3]); %d = constant(7); %b = uniform(%d, shape=[3])",
        "%c = exp(%x); %d = exp(%x); %e = neg(%c); %f = neg(%d); %a = mul(%e, %d); %b = mul(%c, %f)",
    ],
)
def test_equal(body):
    assert merged(body)


@pytest.mark.parametrize(
    "body",
    [
        "%a = sub(%x, %y); %b = sub(%y, %x)",
        "%a = less(%x, %y); %b = less(%y, %x)",
        "%a = constant(0.0); %b = constant(-0.0)",
        "%a = constant(bits(0x7fc00001)) : f32[]; %b = constant(nan) : f32[]",
        "%a = constant(1) : i32[]; %b = constant(1) : i64[]",
        "%a = constant(1) : i8[]; %b = constant(1) : u8[]",
        "%a = constant(1.0) : f32[]; %b = constant(1.0) : f32[1]",
        "%a = constant(0) : f16[]; %b = constant(0) : i16[]",
        "%a = full(shape=[2], value=0.0, dtype=f32); %b = full(shape=[2], value=-0.0, dtype=f32)",
        "%a = full(shape=[1], value=1, dtype=f32); %b = full(shape=[1], value=1, dtype=i32)",
        "%a = pad(%x, low=[1], high=[0], value=0.0); %b = pad(%x, low=[1], high=[0], value=-0.0)",
        "%a = cast(%x, dtype=i32); %b = cast(%x, dtype=i64)",
        "%a = sum(%x, axes=[0]); %b = sum(%x, axes=[0], keepdims=true)",
        "%a = clamp(%x, low=0.0); %b = clamp(%x, low=-0.0)",
        "%a = clamp(%x, low=0); %b = clamp(%x, high=0)",
        "%c = constant(7); %d = constant(8); %a = uniform(%c, shape=[3]); %b = uniform(%d, shape=[3])",
        "%a = softmax(%x); %b = log_softmax(%x)",
        '%a = exp(%x, tune.x="1"); %b = exp(%x, tune.x="2")',
    ],
)
def test_different(body):
    """Trap 64: attributes, element types, signs of zeros, payloads."""
    assert not merged(body)


def test_python_equality():
    """1 == 1.0 == True, and 0.0 == -0.0, but they are different attributes."""
    values = [1, 1.0, True, 0, 0.0, -0.0, False, None, "1", (1,), (1.0,), (True,), (0.0,), (-0.0,)]
    keys = {attribute_key(v) for v in values}
    assert len(keys) == len(values)
    nan = float("nan")
    assert attribute_key(nan) == attribute_key(float("nan"))


def test_optional_operands_count():
    text = """\
graph @main(%x: f32[2, 4], %w: f32[4]) {
  %a = layernorm(%x, weight=%w)
  %b = layernorm(%x, bias=%w)
  %c = layernorm(%x, weight=%w)
  return %a, %b, %c
}
"""
    module = check(text, "cse")
    assert operations(module) == ["layernorm", "layernorm"]
    a, b, c = module.main.results
    assert a is c and a is not b


def test_effects_stay():
    """Trap 64: cache updates, prints, asserts and calls are not merged."""
    text = """\
graph @twice(%x: f32[1, 4]) -> f32[1, 4] {
  %y = add(%x, %x)
  return %y
}

graph @main(%x: f32[1, 4], %c: f32[8, 4] inout, %p: i64[]) {
  %t = constant(true)
  assert(%t)
  assert(%t)
  print(%x)
  print(%x)
  %u = cache_update(%c, %x, %p)
  %v = cache_update(%u, %x, %p)
  %a = call(@twice, %x)
  %b = call(@twice, %x)
  return %a, %b
}
"""
    module = check(text, "cse")
    assert operations(module)[1:] == ["constant", "assert", "assert", "print", "print", "cache_update", "cache_update", "call", "call"]


def test_dropped_results():
    text = "graph @main(%x: f32[4]) {\n  %_, %i = topk(%x, k=2)\n  %v, %_ = topk(%x, k=2)\n  return %v, %i\n}\n"
    module = check(text, "cse")
    assert operations(module) == ["topk"] and [v.name for v in module.main.results] == ["v", "i"]


def test_first_name_wins():
    text = "graph @main(%x: f32[4]) {\n  // kept\n  %a = exp(%x)\n  %b = exp(%x)  // gone\n  return %a, %b\n}\n"
    assert print_module(optimize(text, "cse")) == (
        "graph @main(%x: f32[4]) -> (a: f32[4], b: f32[4]) {\n  // kept\n  %a = exp(%x) : f32[4]\n  return %a, %a\n}\n"
    )


REGIONS = """\
graph @main(%x: f32[4], %n: i64[]) -> f32[4] {
  %before = exp(%x)
  %s = scf.for(%i = 0 to 3, %acc = %before) {
    %inner = exp(%x)
    %again = exp(%inner)
    %sum = add(%acc, %inner)
    %sum2 = add(%sum, %again)
    yield %sum2
  }
  %after = exp(%before)
  %r = add(%s, %after)
  return %r
}
"""


def test_regions():
    """Inside a region what stands before it counts; what stands inside does not count behind it."""
    module = optimize(REGIONS, "cse")
    assert operations(module) == ["exp", "scf.for", "exp", "add", "add", "exp", "add"]


def test_keys_of_all_operations_of_the_examples():
    """A key is the same for a copy of an operation, and differs between different examples of an operation."""
    from ir.docs import example_texts
    from ir.opdef import REGISTRY

    for definition in REGISTRY.values():
        if definition.dialect != "graph":
            continue
        keys = []
        for text in example_texts(definition.doc):
            module = load(text)
            keys += [operation_key(op)[2:] for op in module.walk() if op.definition is definition]
        for a, b in itertools.combinations(keys, 2):
            assert a != b, definition


def test_idempotent_with_the_others():
    text = """\
graph @main(%x: f32[B, 4]) {
  %one = constant(1.0) : f32[]
  %uno = constant(1.0) : f32[]
  %a = mul(%x, %one)
  %b = mul(%uno, %x)
  %c = add(%a, %b)
  %d = add(%b, %a)
  %e = div(%c, %d)
  return %e
}
"""
    module = check(text, "canonicalize,constant-fold,cse,canonicalize,dce")
    assert operations(module) == ["add", "div"]


def test_statistics():
    module = load("graph @main(%x: f32[4]) {\n  %a = exp(%x)\n  %b = exp(%x)\n  return %a, %b\n}\n")
    assert apply(module, "cse").records[0].statistics == {"operations merged": 1}
