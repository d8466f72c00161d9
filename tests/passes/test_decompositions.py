"""Composite operations and what they are made of compute the same."""

from __future__ import annotations

import numpy as np
import pytest

import dialects  # noqa: F401
from ir.builder import Builder
from ir.clone import clone_module
from ir.core import Graph, Module
from ir.diagnostics import Diagnostics
from ir.docs import example_texts
from ir.inference import Inference
from ir.inputs import generate_inputs
from ir.interpreter import Interpreter
from ir.opdef import REGISTRY
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import DTYPES
from passes.graph._decompositions import DECOMPOSITIONS, can_decompose

EPS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def numpy_dtype(name: str):
    return DTYPES[name].numpy


def load(text: str) -> Module:
    """A module with inferred types."""
    module = parse_module(text)
    report = Diagnostics()
    types = Inference(module, report).run()
    report.raise_if_any()
    for value, type_ in types.items():
        value.type = type_
    return module


def decompose(module: Module) -> Module:
    """A copy with every composite operation replaced."""
    copy = clone_module(module)
    for op in list(copy.walk()):
        if op.name not in DECOMPOSITIONS:
            continue
        assert can_decompose(op)
        with Builder.before_op(op):
            values = DECOMPOSITIONS[op.name](op)
        for old, new in zip(op.results, values, strict=True):
            assert new.type == old.type, (op.name, new.type, old.type)
            old.replace_all_uses_with(new)
        op.erase()
    assert not any(op.definition.composite for op in copy.walk())
    load(print_module(copy))  # what was built prints, parses and is well typed
    return copy


def run(module: Module, arrays, double: bool = False):
    graph: Graph = list(module.graphs.values())[-1]
    return Interpreter(module, double=double).run(graph, [np.array(a) for a in arrays])


def both(text: str, arrays, double: bool = False):
    module = load(text)
    return run(module, arrays, double), run(decompose(module), arrays, double)


def check(text: str, arrays) -> None:
    """Equal in float64 but for noise, and within a few roundings otherwise; special values equal throughout."""
    for want, found in zip(*both(text, arrays, double=True), strict=True):
        agree(want, found, 1e-9)
    for want, found in zip(*both(text, arrays), strict=True):
        assert want.dtype == found.dtype
        unit = EPS.get(want.dtype.name, 0.0)
        agree(want, found, 64 * max(unit, 2.0**-24))


def agree(want, found, tolerance: float) -> None:
    want, found = np.asarray(want, np.float64), np.asarray(found, np.float64)
    assert want.shape == found.shape
    assert np.array_equal(np.isnan(want), np.isnan(found)), (want, found)
    infinite = np.isinf(want)
    assert np.array_equal(infinite, np.isinf(found)) and np.array_equal(want[infinite], found[infinite]), (want, found)
    finite = np.isfinite(want)
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0.0)))
    assert np.abs(want[finite] - found[finite]).max(initial=0.0) <= tolerance * scale


def test_every_composite_has_a_decomposition():
    assert sorted(DECOMPOSITIONS) == sorted(n for n, d in REGISTRY.items() if d.composite)


@pytest.mark.parametrize("name", sorted(DECOMPOSITIONS))
@pytest.mark.parametrize("size", [0, 1, 3, 4])
def test_examples(name, size):
    for text in example_texts(REGISTRY[name].doc):
        module = load(text)
        graph = list(module.graphs.values())[-1]
        symbols = [s for s in "ABCDHIJKMNPSTV" if any(s in str(p.type) for p in graph.parameters)]
        if size == 0 and name == "graph.embedding":
            continue  # no id is in range
        arrays = generate_inputs(module, graph, dict.fromkeys(symbols, size))
        check(text, arrays)


@pytest.mark.parametrize("call", ["relu", "leaky_relu", "elu", "sigmoid", "silu", "gelu", "softplus"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_activations_on_the_whole_line(call, dtype):
    line = np.concatenate([np.linspace(-120, 120, 2001), [0.0, -0.0, 1e-30, -1e-30, np.inf, -np.inf, np.nan, 1e30, -1e30]])
    text = f"graph @main(%x: {dtype}[N]) -> {dtype}[N] {{\n  %y = {call}(%x)\n  return %y\n}}\n"
    with np.errstate(over="ignore"):
        x = line.astype(numpy_dtype(dtype))
    (want,), (found,) = both(text, [x])
    assert np.array_equal(np.isnan(want), np.isnan(found))
    assert ulps(want, found) <= (4 if dtype != "f64" else 1000)
    assert np.array_equal(np.signbit(want[~np.isnan(want)]), np.signbit(found[~np.isnan(want)]))


def test_gelu_tails():
    x = np.linspace(-15, 6, 4001, dtype=np.float32)
    for form in ("none", "tanh"):
        text = f'graph @main(%x: f32[N]) -> f32[N] {{\n  %y = gelu(%x, approximate="{form}")\n  return %y\n}}\n'
        (want,), (found,) = both(text, [x])
        assert ulps(want, found) <= 1


def ulps(want, found) -> float:
    """The largest distance in units of the last place."""
    finite = np.isfinite(want) & np.isfinite(found)
    assert np.array_equal(want[~finite], found[~finite], equal_nan=True) or np.array_equal(np.isfinite(want), np.isfinite(found))
    a, b = want[finite], found[finite]
    spacing = np.spacing(np.abs(a).astype(np.float32 if a.dtype.itemsize <= 4 else np.float64)).astype(np.float64)
    if a.dtype.itemsize == 2:
        spacing = spacing * (2.0**13 if a.dtype == np.float16 else 2.0**16)
        spacing = np.maximum(spacing, 2.0**-24 if a.dtype == np.float16 else 2.0**-133)
    return float((np.abs(a.astype(np.float64) - b.astype(np.float64)) / spacing).max(initial=0.0))


ROWS = np.float32(
    [
        [1, 2, 3, 4],
        [np.nan, 0, 1, 2],
        [0, 1, 2, np.nan],
        [np.inf, 0, 1, 2],
        [np.inf, -np.inf, 1, 2],
        [-np.inf, 0, 1, 2],
        [-np.inf] * 4,
        [3e38, -3e38, 3e38, 0],
        [0, 0, 0, 0],
        [-0.0, 0, -0.0, 0],
    ]
)


@pytest.mark.parametrize("call", ["softmax(%x)", "log_softmax(%x)", "logsumexp(%x)", "softmax(%x, axis=0)", "logsumexp(%x, axis=0, keepdims=true)"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_softmax_special_rows(call, dtype):
    with np.errstate(over="ignore"):
        rows = ROWS.astype(numpy_dtype(dtype))
    result = {"logsumexp(%x)": "[N]", "logsumexp(%x, axis=0, keepdims=true)": "[1, 4]"}.get(call, "[N, 4]")
    check(f"graph @main(%x: {dtype}[N, 4]) -> {dtype}{result} {{\n  %y = {call}\n  return %y\n}}\n", [rows])


@pytest.mark.parametrize(
    "call", ["rmsnorm(%x)", "rmsnorm(%x, eps=0)", "layernorm(%x)", "layernorm(%x, eps=0)", "l2_normalize(%x)", "l2_normalize(%x, axis=0)"]
)
def test_norms_of_special_rows(call):
    rows = np.delete(ROWS, 7, 0)  # squares overflow in f32
    check(f"graph @main(%x: f32[N, 4]) -> f32[N, 4] {{\n  %y = {call}\n  return %y\n}}\n", [rows])


def test_f16_norms_do_not_overflow():
    x = np.float16([[60000, -60000, 300, 0], [1e-4, 2e-4, 0, 0]])
    for call in ("rmsnorm(%x)", "layernorm(%x)", "l2_normalize(%x)"):
        (want,), (found,) = both(f"graph @main(%x: f16[N, 4]) -> f16[N, 4] {{\n  %y = {call}\n  return %y\n}}\n", [x])
        assert ulps(want, found) <= 1


def test_linear_on_exact_data():
    rng = np.random.default_rng(1)
    for dtype in ("f32", "f16", "bf16", "i8"):
        header = f"graph @main(%x: {dtype}[B, 64], %w: {dtype}[5, 64], %b: {dtype}[5]) -> {dtype}[B, 5]"
        text = f"{header} {{\n  %y = linear(%x, %w, bias=%b)\n  return %y\n}}\n"
        arrays = [rng.integers(-40, 40, s).astype(numpy_dtype(dtype)) for s in ((3, 64), (5, 64), (5,))]
        (want,), (found,) = both(text, arrays)
        assert want.tobytes() == found.tobytes()


@pytest.mark.parametrize("interleaved", ["false", "true"])
@pytest.mark.parametrize("rotary", ["", ", rotary_dim=4"])
@pytest.mark.parametrize(
    ("x", "positions"),
    [
        ("S, 8", "S"),
        ("H, S, 8", "S"),
        ("B, S, 8", "B, S"),
        ("B, H, S, 8", "B, S"),
        ("B, H, S, 8", "1, S"),
        ("B, C, H, S, 8", "B, S"),
        ("S, 2*D", "S"),
    ],
)
def test_rope(interleaved, rotary, x, positions):
    if rotary and "D" in x:
        return
    sizes = {"B": 2, "C": 2, "H": 3, "S": 5, "D": 4}
    header = f"graph @main(%x: f32[{x}], %p: i64[{positions}]) -> f32[{x}]"
    text = f"{header} {{\n  %y = rope(%x, %p, interleaved={interleaved}{rotary})\n  return %y\n}}\n"
    rng = np.random.default_rng(2)
    shape = [8 if t == "2*D" else sizes.get(t) or int(t) for t in x.split(", ")]
    where = [sizes.get(t) or int(t) for t in positions.split(", ")]
    arrays = [rng.standard_normal(shape).astype(np.float32), rng.integers(0, 1_000_000, where)]
    check(text, arrays)
    pairs = 2 if rotary else shape[-1] // 2
    divided = text.replace(") -> ", f", %f: f32[{'D' if 'D' in x else pairs}]) -> ").replace("%p, inter", "%p, factors=%f, inter")
    check(divided, [*arrays, rng.random(pairs).astype(np.float32) + 0.5])


QKV = "%q: f32[B, 4, S, 8], %k: f32[B, 2, T, 8], %v: f32[B, 2, T, 6]"


def attention_text(arguments: str, extra: str = "", parameters: str = QKV, result: str = "f32[B, 4, S, 6]", where: str = "") -> str:
    return f"graph @main({parameters}{extra}) -> {result}{where} {{\n  %y = attention(%q, %k, %v{arguments})\n  return %y\n}}\n"


def qkv(steps=3, keys=5, batch=2):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s).astype(np.float32) for s in ((batch, 4, steps, 8), (batch, 2, keys, 8), (batch, 2, keys, 6))]


@pytest.mark.parametrize("arguments", ["", ", causal=true", ", scale=0.3", ", scale=0"])
@pytest.mark.parametrize(("steps", "keys"), [(3, 5), (5, 3), (1, 4), (4, 4), (3, 0), (0, 3), (0, 0)])
def test_attention(arguments, steps, keys):
    check(attention_text(arguments), qkv(steps, keys))


def test_attention_of_equal_lengths_and_of_one_query():
    square = QKV.replace("T", "S")
    check(attention_text(", causal=true", parameters=square), qkv(4, 4))
    one = QKV.replace("4, S", "4, 1")
    check(attention_text(", causal=true", parameters=one, result="f32[B, 4, 1, 6]"), qkv(1, 4))
    check(attention_text(", causal=true, length=%n", ", %n: i32[]", one, "f32[B, 4, 1, 6]"), [*qkv(1, 4), np.int32(2)])


@pytest.mark.parametrize("causal", ["", ", causal=true"])
@pytest.mark.parametrize("shape", ["S, T", "B, 1, 1, T", "4, 1, 1", "B, 4, S, T", ""])
@pytest.mark.parametrize("dtype", ["bool", "f32"])
def test_attention_masks(causal, shape, dtype):
    sizes = {"B": 2, "S": 3, "T": 5, "1": 1, "4": 4}
    rng = np.random.default_rng(4)
    seen = rng.random([sizes[t] for t in shape.split(", ") if t]) < 0.5
    mask = np.asarray(seen) if dtype == "bool" else np.where(seen, rng.standard_normal(seen.shape), -np.inf).astype(np.float32)
    check(attention_text(f", mask=%m{causal}", f", %m: {dtype}[{shape}]"), [*qkv(), mask])


def test_fully_masked_rows_are_zero():
    for mask in (np.zeros((3, 5), np.bool_), np.full((3, 5), -np.inf, np.float32)):
        dtype = "bool" if mask.dtype == np.bool_ else "f32"
        (want,), (found,) = both(attention_text(", mask=%m", f", %m: {dtype}[S, T]"), [*qkv(), mask])
        assert not want.any() and not found.any()


@pytest.mark.parametrize("causal", ["", ", causal=true"])
@pytest.mark.parametrize("length", [0, 1, 3, 5, 99, -1, -(2**63), 2**63 - 1, [2, 5]])
def test_attention_lengths(causal, length):
    arrays = qkv()
    text = attention_text(f", length=%n{causal}", f", %n: i64[{'B' if isinstance(length, list) else ''}]")
    check(text, [*arrays, np.int64(length)])
    if isinstance(length, int) and 0 <= length < 5:
        arrays[1][:, :, length:] = np.nan
        arrays[2][:, :, length:] = np.nan
        check(text, [*arrays, np.int64(length)])


def test_attention_with_past():
    q, k, v = qkv()
    extra = ", %pk: f32[B, 2, P, 8], %pv: f32[B, 2, P, 6]"
    for past in (0, 2):
        arrays = [q, k[:, :, past:], v[:, :, past:], k[:, :, :past], v[:, :, :past]]
        check(attention_text(", past_k=%pk, past_v=%pv, causal=true", extra), arrays)


def test_attention_ranks_and_heads():
    q, k, v = (t[0] for t in qkv())
    parameters = "%q: f32[4, S, 8], %k: f32[2, T, 8], %v: f32[2, T, 6]"
    check(attention_text(", causal=true, length=%n", ", %n: u8[]", parameters, "f32[4, S, 6]"), [q, k, v, np.uint8(4)])
    parameters = "%q: f32[2*H, S, D], %k: f32[H, T, D], %v: f32[H, T, E]"
    check(attention_text("", "", parameters, "f32[2*H, S, E]"), [q, k, v])
    parameters = "%q: f32[S, 8], %k: f32[T, 8], %v: f32[T, 6]"
    check(attention_text(", causal=true", "", parameters, "f32[S, 6]"), [q[0], k[0], v[0]])
    parameters = "%q: f32[H, S, 8], %k: f32[H, T, 8], %v: f32[H, T, 6]"
    check(attention_text(", causal=true", "", parameters, "f32[H, S, 6]"), [q[:2], k, v])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_attention(dtype):
    arrays = [t.astype(numpy_dtype(dtype)) for t in qkv()]
    mask = np.where(np.arange(15).reshape(3, 5) % 4 == 0, -np.inf, 0.5).astype(numpy_dtype(dtype))
    text = attention_text(", mask=%m", f", %m: {dtype}[S, T]", QKV.replace("f32", dtype), f"{dtype}[B, 4, S, 6]")
    (want,), (found,) = both(text, [*arrays, mask])
    assert ulps(want, found) <= 1


def test_special_scores():
    q, k, v = qkv()
    k[0, 0, 1] = np.nan
    k[1, 0, 2, 0] = np.inf
    check(attention_text(""), [q, k, v])
    check(attention_text(", causal=true"), [q, k, v])


def test_unknown_types_are_left_alone():
    module = load("graph @main(%x: f32[B, ?]) -> ? {\n  %y = softmax(%x)\n  return %y\n}\n")
    assert not any(can_decompose(op) for op in module.walk())
