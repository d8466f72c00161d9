"""lower-to-linalg: every operation as nests over buffers; the programs compute what they did."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
from pass_checks import apply, assert_same_bits, load, operations, optimize

from ir.clone import clone_module
from ir.core import Module
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.printer import print_module
from ir.references import load_time_graphs
from ir.types import MemRefType
from ir.verifier import verify_module
from passes.infra.base import PassContext
from passes.infra.verify_exec import compare_modules
from passes.linalg.lower_to_linalg import _LOWERINGS, LowerToLinalg
from tests.checks import all_examples, baseline, check_numbers, check_text, execute

SAMPLES = Path(__file__).parents[2] / "samples"
PIPELINE = "inline,decompose,lower-to-linalg"
LATER = ("split_digits", "digit_linear", "packed_linear", "packed_embedding")
"""Products with packed weights: lower-digits makes loops of them, behind the nests."""
SLOW = ("graph.attention",)  # whole models of operations; test_every_op.py runs the pass on them as they are
EXAMPLES = {
    f"{name}-{number}": text.replace("@example(", "@main(")
    for name, number, text in all_examples()
    if (name.startswith("graph.") or name == "scf.for") and name not in SLOW
}

LEFT = {"print", "constant", "weight", "initial", "call", *LATER}
"""What stays a tensor operation in the examples."""


def lowered(text: str, pipeline: str = PIPELINE) -> tuple[Module, Module]:
    """The module before and after; nothing changes the second time, and the text reads back."""
    before = load(text)
    return before, optimize(text, pipeline)


@pytest.mark.parametrize("key", EXAMPLES)
def test_examples(key: str) -> None:
    before = load(EXAMPLES[key])
    after = clone_module(before)
    apply(after, PIPELINE)
    verify_module(after)
    check_text(after)
    at_load_time = load_time_graphs(after)
    running = [op for name, g in after.graphs.items() if name not in at_load_time for op in g.walk()]
    found = {op.definition.text_name for op in running if op.definition.dialect == "graph" and not op.definition.is_terminator}
    assert found <= LEFT
    outcome = compare_modules(before, after, "values")
    assert outcome.mismatch is None and outcome.skipped is None, outcome


HALVES = [f"{key}-{dtype}" for key, text in EXAMPLES.items() if "f32" in text for dtype in ("f64", "f16", "bf16")]


@pytest.mark.parametrize("variant", HALVES)
def test_other_float_types(variant: str) -> None:
    key, _, dtype = variant.rpartition("-")
    text = re.sub(r"\bf32\b", dtype, EXAMPLES[key])
    try:
        before = load(text)
    except GraphError as error:
        pytest.skip(str(error).splitlines()[0])
    after = clone_module(before)
    apply(after, PIPELINE)
    outcome = compare_modules(before, after, "values")
    assert outcome.mismatch is None and outcome.skipped is None, outcome


SUMS = ("sum", "mean", "prod", "matmul")
EXACT = [
    (f"{key}-{dtype}", re.sub(r"\bf32\b", dtype, text))
    for key, text in EXAMPLES.items()
    for dtype in ("f32", "f16", "bf16")
    if dtype == "f32" or re.search(r"\bf32\b", text)
]
ROUND_OTHERWISE = {*SUMS, "gelu", "softplus", "elu", "softmax", "log_softmax"}
ROUND_TWICE = {"exp", "expm1", "log", "log1p", "rsqrt", "sin", "cos", "tan", "tanh", "erf", "erfc", "sigmoid", "silu", "pow"}
"""Of f16 and bf16 their f32 result is rounded again, which may miss the nearest number."""


@pytest.mark.parametrize(("variant", "text"), EXACT, ids=[v for v, _ in EXACT])
def test_single_operations_keep_the_bits(variant: str, text: str) -> None:
    """On special values too: NaN, infinities, signed zeros, denormals."""
    try:
        before = load(text)
    except GraphError as error:
        pytest.skip(str(error).splitlines()[0])
    names = [n for n in operations(before) if n != "constant"]
    halves = any(re.search(r"\b(f16|bf16)\b", str(v.type)) for op in before.walk() for v in op.results)
    if not names or not set(names) <= set(_LOWERINGS) - ROUND_OTHERWISE or (halves and ROUND_TWICE & set(names)):
        pytest.skip("rounds otherwise")
    after = clone_module(before)
    assert LowerToLinalg().run(after, PassContext())
    assert not set(operations(after)) & set(_LOWERINGS)
    assert_same_bits(before, after, seeds=(0,))


def test_samples_mlp() -> None:
    """The sample with dimensions that the interpreter's loops get through."""
    text = (SAMPLES / "mlp.graph").read_text(encoding="utf-8").replace("256", "6").replace("64", "4")
    before, after = lowered(text)
    assert after.graphs["mlp"].result_names == before.graphs["mlp"].result_names == ["out"]
    assert not [n for n in operations(after) if "." not in n and n != "constant"]
    assert "// The two-layer MLP of the tutorial. B is a symbolic dimension." in print_module(after)
    assert "// result types may be left out" in print_module(after)
    assert compare_modules(before, after, "values").mismatch is None


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        ("[M, K]", "[K, N]", ""),
        ("[K, M]", "[K, N]", "transpose_a=true"),
        ("[M, K]", "[N, K]", "transpose_b=true"),
        ("[K, M]", "[N, K]", "transpose_a=true, transpose_b=true"),
        ("[K]", "[K, N]", ""),
        ("[M, K]", "[K]", ""),
        ("[K]", "[K]", ""),
        ("[K]", "[2, K, N]", ""),
        ("[2, M, K]", "[K]", ""),
        ("[2, 1, M, K]", "[B, K, N]", ""),
        ("[B, 1, K, M]", "[1, 3, N, K]", "transpose_a=true, transpose_b=true"),
        ("[K, M]", "[N, K, 2]", "transpose_a=true"),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i32", "i8"])
def test_matmul(a: str, b: str, options: str, dtype: str) -> None:
    text = f"graph @main(%a: {dtype}{a}, %b: {dtype}{b}) {{\n  %c = matmul(%a, %b{', ' * bool(options)}{options})\n  return %c\n}}\n"
    before, after = lowered(text, "lower-to-linalg")
    check_numbers(baseline(before, limit=2), after, "values", "lower-to-linalg", strict=True)
    assert compare_modules(before, after, "bits" if dtype.startswith("i") else "values").mismatch is None


def test_matmul_is_one_chain_over_ascending_k() -> None:
    after = optimize("graph @main(%a: f32[1, 3], %b: f32[3, 1]) {\n  %c = matmul(%a, %b)\n  return %c\n}\n", "lower-to-linalg")
    a, b = np.array([[2.0**24, 1.0, 1.0]], np.float32), np.array([[1.0], [1.0], [1.0]], np.float32)
    (c,) = execute(after, "main", [a, b])
    assert c[0, 0] == 2.0**24  # each 1 is lost in turn
    (c,) = execute(after, "main", [a[:, ::-1].copy(), b])
    assert c[0, 0] == 2.0**24 + 2


def test_half_sums_are_rounded_once() -> None:
    """2049 does not exist in f16, but 2048 + 1 + 1 does."""
    for body in ("sum(%x)", "matmul(%x, %one)"):
        text = f"graph @main(%x: f16[3]) -> f16[] {{\n  %one = full(shape=[3], value=1.0, dtype=f16)\n  %y = {body}\n  return %y\n}}\n"
        (y,) = execute(optimize(text, "lower-to-linalg"), "main", [np.array([2048, 1, 1], np.float16)])
        assert y == 2050


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("axes", ["", "axes=[0]", "axes=[-1, 0], keepdims=true", "axes=[]", "keepdims=true"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "u8"])
def test_reductions(reduction: str, axes: str, dtype: str) -> None:
    if reduction == "mean" and dtype in ("i32", "u8"):
        pytest.skip("floats only")
    options = f", {axes}" if axes else ""
    text = f"graph @main(%x: {dtype}[B, 2, S]) {{\n  %y = {reduction}(%x{options})\n  return %y\n}}\n"
    before, after = lowered(text, "lower-to-linalg")
    check_numbers(baseline(before), after, "values", "lower-to-linalg", strict=True)


CASTS = ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"]


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_casts(source: str, target: str) -> None:
    text = f"graph @main(%x: {source}[N]) -> {target}[N] {{\n  %y = cast(%x, dtype={target})\n  return %y\n}}\n"
    before, after = lowered(text, "lower-to-linalg")
    assert_same_bits(before, after, seeds=(0,))
    dtype = before.main.parameters[0].type.dtype
    if dtype.is_float:
        edges = np.array([np.nan, np.inf, -np.inf, -0.0, 0.5, -1.5, 127.5, 255.5, 300, -129, 65519, 65520, 2.0**31, 2.0**63, -(2.0**70)])
        with np.errstate(over="ignore"):
            array = edges.astype(dtype.numpy)
    else:
        array = np.array([dtype.min_value, dtype.max_value, 0, 1], dtype.numpy)
    wanted, found = execute(before, "main", [array]), execute(after, "main", [array])
    assert np.array_equal(wanted[0].astype(np.float64), found[0].astype(np.float64), equal_nan=True)


@pytest.mark.parametrize("operation", ["floordiv", "mod", "truncdiv", "rem"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_division_of_floats(operation: str, dtype: str) -> None:
    text = f"graph @main(%x: {dtype}[A, 1], %y: {dtype}[1, B]) -> {dtype}[A, B] {{\n  %z = {operation}(%x, %y)\n  return %z\n}}\n"
    before, after = lowered(text, "lower-to-linalg")
    edges = np.array([0.0, -0.0, 1, -1, 0.1, -0.1, 3, -7, 7.5, 1e-7, np.inf, -np.inf, np.nan, 1000.25])
    numpy = before.main.parameters[0].type.dtype.numpy
    arrays = [edges.astype(numpy).reshape(-1, 1), edges.astype(numpy).reshape(1, -1)]
    wanted, found = (execute(m, "main", arrays)[0].astype(np.float64) for m in (before, after))
    assert np.array_equal(wanted, found, equal_nan=True)
    assert np.array_equal(np.signbit(wanted) & ~np.isnan(wanted), np.signbit(found) & ~np.isnan(found))


def test_integer_division_by_zero_is_an_error() -> None:
    after = optimize("graph @main(%x: i32[2], %y: i32[2]) {\n  %z = floordiv(%x, %y)\n  return %z\n}\n", "lower-to-linalg")
    with pytest.raises(GraphError, match="division by zero"):
        execute(after, "main", [np.ones(2, np.int32), np.zeros(2, np.int32)])


PROGRAMS = {
    "slices": """\
graph @main(%x: f32[S, 7], %y: f32[T, 7]) {
  %a = slice(%x, starts=[-2, 9], ends=[none, 0], steps=[1, -3])
  %b = slice(%x, starts=[T], ends=[none])
  %c = slice(%x, starts=[T], ends=[none], steps=[-1])
  %d = slice(%y, starts=[-100], ends=[100], axes=[-1], steps=[2])
  %e = slice(%y, starts=[5], ends=[5], axes=[1])
  return %a, %b, %c, %d, %e
}
""",
    "shapes": """\
graph @main(%x: i32[i, 1, j]) {
  %a = transpose(%x, perm=[2, 0, 1])
  %b = reshape(%a, shape=[j*i, 1])
  %c = expand(%b, shape=[3, -1, 2])
  %d = flip(%c, axes=[0, 2])
  %e = pad(%d, low=[1, j, 0], high=[0, 2, i], value=-5)
  %f = reshape(%x, shape=[-1])
  return %d, %e, %f
}
""",
    "broadcasts": """\
graph @main(%x: f32[B, 1, 4], %y: f32[S, 1], %c: bool[1, 1], %z: f32[]) {
  %a = add(%x, %y)
  %b = where(%c, %z, %a)
  %d = mul(%z, %z)
  return %b, %d
}
""",
    "counting": """\
graph @main(%x: f16[i, j]) {
  %a = iota(shape=[i, j], axis=0, dtype=u8)
  %b = iota(shape=[j], dtype=bf16)
  %n = dim(%x, axis=-2)
  %t = tril(%x, diagonal=-1)
  %u = triu(%x, diagonal=9223372036854775807)
  return %a, %b, %n, %t, %u
}
""",
    "loops": """\
graph @main(%x: f32[B, 4], %w: f32[4]) -> f32[B, 4] {
  %k = add(%w, %w)
  %s = scf.for(%i = 0 to 3, %acc = %x) {
    %t = mul(%acc, %k)
    %u = sub(%t, %w)
    yield %u
  }
  %y = neg(%s)
  return %y
}
""",
    "returned twice": """\
graph @main(%x: f32[B]) {
  %y = reshape(%x, shape=[B, 1])
  %z = abs(%x)
  return %x, %y, %z, %z
}
""",
    "unused": "graph @main(%x: f32[B]) {\n  %_ = abs(%x)\n  %a, %_, %c = split(%x, axis=0, sizes=[0, B, 0])\n  return %a, %c\n}\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """Nothing in them rounds otherwise, so the bits stay; sizes are ones and zeros too."""
    before, after = lowered(PROGRAMS[name], "lower-to-linalg")
    assert_same_bits(before, after, seeds=(0,))
    assert not set(operations(after)) & set(_LOWERINGS)


def test_loop_names_are_no_dimensions() -> None:
    after = optimize("graph @main(%x: f32[i, k]) {\n  %y = neg(%x)\n  return %y\n}\n", "lower-to-linalg")
    assert "linalg.generic(j < i, l < k," in print_module(after)


def test_buffers_are_written_by_one_operation() -> None:
    """No nest writes what another tensor's buffer holds, and none writes into a view of a tensor."""
    for text in PROGRAMS.values():
        for op in optimize(text, "lower-to-linalg").walk():
            if op.name == "linalg.generic":
                target = op.operands[-1]
                assert target.defining_op is not None and target.defining_op.name == "memref.alloc"
                assert isinstance(target.type, MemRefType)


EFFECTS = """\
graph @main(%cache: f32[4, 2] inout, %x: f32[1, 2], %p: i64[]) -> f32[4, 2] {
  %a = add(%x, %x)
  print(%a, label="a")
  %zero = constant(0.0) : f32[]
  %ok = greater_equal(%a, %zero)
  assert(%ok, message="negative")
  %new = cache_update(%cache, %a, %p)
  %y = neg(%new)
  print(%y, label="y")
  %old = add(%cache, %y)
  return %old
}
"""


def test_effects_keep_order_and_meaning() -> None:
    before, after = lowered(EFFECTS, "lower-to-linalg")
    effects = [n for n in operations(after) if n in ("print", "cf.assert")]
    assert effects == ["print", "cf.assert", *["cf.assert"] * 2, "print"]
    results = []
    for module in (before, after):
        cache = np.arange(8, dtype=np.float32).reshape(4, 2)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            (y,) = Interpreter(module).run(module.main, [cache, np.ones((1, 2), np.float32), np.array(2)])
        results.append((y.tolist(), cache.tolist(), out.getvalue()))
        with pytest.raises(GraphError, match="negative"), contextlib.redirect_stdout(io.StringIO()):
            Interpreter(module).run(module.main, [cache, -np.ones((1, 2), np.float32), np.array(2)])
    assert results[0] == results[1]


def test_arrays_with_gaps() -> None:
    """The program may get any array; a buffer has no gaps."""
    after = optimize("graph @main(%x: f32[2, 3]) {\n  %y = reshape(%x, shape=[6])\n  return %y\n}\n", "lower-to-linalg")
    (y,) = Interpreter(after).run(after.main, [np.arange(6, dtype=np.float32).reshape(3, 2).T])
    assert y.tolist() == [0, 2, 4, 1, 3, 5]


def test_statistics_name_what_stays() -> None:
    text = "graph @main(%x: f32[4]) {\n  %i = argsort(%x)\n  %g = gather(%x, %i)\n  print(%g)\n  %y = neg(%g)\n  return %y\n}\n"
    context = PassContext()
    module = load(text)
    assert LowerToLinalg().run(module, context)
    assert context.statistics == {"argsort lowered": 1, "gather lowered": 1, "print left as a tensor operation": 1, "neg lowered": 1}
    assert "memref.to_tensor" in operations(module)


@pytest.mark.parametrize("key", EXAMPLES)
def test_only_what_calls_back_stays_in_the_examples(key: str) -> None:
    module = load(EXAMPLES[key])
    apply(module, "inline,decompose")
    context = PassContext()
    LowerToLinalg().run(module, context)
    assert {name.split()[0] for name in context.statistics if name.endswith("left as a tensor operation")} <= {"print", "call", *LATER}


def test_open_types_stay() -> None:
    module = load("graph @main(%x: ?) {\n  %y = neg(%x)\n  return %y\n}\n")
    assert not LowerToLinalg().run(module, PassContext())


def test_a_wrong_nest_is_seen() -> None:
    """What the comparison of two programs is worth here: every nest of this one counts."""
    text = """\
graph @main(%x: f32[B, 4], %y: f32[4], %w: f32[4, 3]) -> f32[B] {
  %s = sub(%x, %y)
  %m = matmul(%s, %w)
  %t = sum(%m, axes=[1])
  return %t
}
"""
    before, after = lowered(text, "lower-to-linalg")
    assert compare_modules(before, after, "values").mismatch is None
    nests = [op for op in after.walk() if op.name == "linalg.generic"]
    assert len(nests) == 3
    for position, nest in enumerate(nests):
        wrong = clone_module(after)
        same = [op for op in wrong.walk() if op.name == "linalg.generic"][position]
        assert print_module(wrong) == print_module(after) and same.operands != nest.operands
        same.erase()
        assert compare_modules(before, wrong, "values").mismatch is not None
    swapped = clone_module(after)
    difference = next(op for op in swapped.walk() if op.name == "arith.subf")
    difference.set_operands(difference.operands[::-1])
    assert compare_modules(before, swapped, "values").mismatch is not None
