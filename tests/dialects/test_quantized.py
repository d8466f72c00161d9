"""Tensors of blocks: what they are worth, which operations read them, how everything else refuses them."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import pytest

import graph_opt
from dialects.graph.indexing import embedding, gather
from dialects.graph.matmul import linear
from dialects.graph.quantized import dequantize
from ir.blocks import quants, storage_shape, tensor_shape
from ir.diagnostics import Diagnostics, GraphError
from ir.dims import UNKNOWN_DIM, symbol
from ir.evaluate import round_to
from ir.inputs import generate_array
from ir.interpreter import Interpreter
from ir.opdef import REGISTRY, ExecutionError
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import DType, TensorType, bf16, dtype_from_numpy, f16, f32, f64, merge_types, q4_0, q4_1, q8_0, type_problem
from ir.verifier import verify_module
from ir.weights import ArraySource
from passes.infra.manager import PassManager
from passes.infra.verify_exec import same_bits
from passes.pipelines import load_pipeline

BLOCKS = [q4_0, q4_1, q8_0]
FLOATS = [f64, f32, f16, bf16]


def random_blocks(dtype: DType, shape: tuple[int, ...], seed: int = 0, scale: Any = None) -> Any:
    """Any bytes as quants, scales that are numbers (or the given one)."""
    rng = np.random.default_rng(seed)
    array = np.frombuffer(bytearray(rng.bytes(dtype.block_bytes * int(np.prod(shape)))), dtype.numpy).reshape(shape)
    for name in {"d", "m"} & set(array.dtype.names or ()):
        array[name] = rng.standard_normal(shape).astype(np.float16) if scale is None else scale
    return array


def number(dtype: DType, block: Any, i: int) -> float:
    """One element, byte by byte as the format says."""
    raw = block.tobytes()
    d = float(np.frombuffer(raw[:2], "<f2")[0])
    if dtype == q8_0:
        return d * int(np.int8(np.uint8(raw[2 + i])))
    head = 4 if dtype == q4_1 else 2
    q = raw[head + i % 16] >> 4 if i >= 16 else raw[head + i % 16] & 15
    return d * q + float(np.frombuffer(raw[2:4], "<f2")[0]) if dtype == q4_1 else d * (q - 8)  # type: ignore[no-any-return]


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (1,), (0, 2), (2, 0), (2, 1, 3)], ids=str)
def test_dequantize(dtype: DType, target: DType, shape: tuple[int, ...]) -> None:
    array = random_blocks(dtype, shape)
    wanted = np.array([number(dtype, b, i) for b in array.reshape(-1) for i in range(32)], np.float64).reshape(tensor_shape(dtype, shape))
    assert same_bits(dequantize(array, dtype=target), round_to(wanted, target))


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 6e-8, -6e-8, 0.0, -0.0, 65504.0], ids=str)
def test_special_scales(dtype: DType, scale: float) -> None:
    """Trap 29: IEEE arithmetic; f32 is one fma, and a product and a sum, too."""
    array = random_blocks(dtype, (4, 2), 1, np.float16(scale))
    found = dequantize(array)
    d, q = array["d"].astype(np.float32)[..., None], quants(array).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = d * q + array["m"].astype(np.float32)[..., None] if dtype == q4_1 else d * q
    assert same_bits(found, wanted.reshape(4, 64))


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_as_the_gguf_package(dtype: DType) -> None:
    gguf = pytest.importorskip("gguf")
    for seed in range(4):
        array = random_blocks(dtype, (5, 3), seed)
        kind = gguf.GGMLQuantizationType[dtype.name.upper()]
        wanted = gguf.quants.dequantize(array.view(np.uint8).reshape(5, -1), kind)
        assert same_bits(dequantize(array), wanted)


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
def test_linear_and_tables(dtype: DType) -> None:
    weight, x = random_blocks(dtype, (5, 2), 2), np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)
    numbers = dequantize(weight, dtype=f64)
    assert np.array_equal(linear(x, weight), (x.astype(np.float64) @ numbers.T).astype(np.float32))
    bias = np.arange(5, dtype=np.float32)
    assert np.array_equal(linear(x, weight, bias=bias), (x.astype(np.float64) @ numbers.T + bias).astype(np.float32))
    ids = np.array([[0, -1], [4, 2]])
    assert same_bits(embedding(weight, ids), dequantize(weight)[ids]) and same_bits(gather(weight, ids), dequantize(weight)[ids])
    deep = random_blocks(dtype, (2, 3, 1), 4)
    assert same_bits(gather(deep, np.array(1), axis=-2), dequantize(deep)[:, 1])
    with pytest.raises(ExecutionError, match="embedding index 5 at position"):
        embedding(weight, np.array([5]))


@pytest.mark.parametrize("dtype", BLOCKS, ids=str)
@pytest.mark.parametrize("kind", ["real", "exact", "special"])
@pytest.mark.parametrize("caution", [0, 1, 2])
def test_generated_blocks(dtype: DType, kind: Any, caution: int) -> None:
    array = generate_array(np.random.default_rng(5), dtype, (7, 96), kind, caution)
    assert array.dtype == dtype.numpy and array.shape == (7, 3)
    numbers = dequantize(array, dtype=f64)
    if kind == "exact":
        assert np.array_equal(numbers, np.round(numbers)) and np.abs(numbers).max() <= 24
    elif kind == "real" or caution:
        assert np.isfinite(numbers).all() and 0.1 < numbers.std() < 4
    else:
        assert not np.isfinite(numbers).all()
    assert not caution or (numbers >= 0).all()


# -- types -------------------------------------------------------------------------------------------------------------


def test_sizes() -> None:
    n, k = symbol("N"), symbol("K")
    assert TensorType(q4_1, (576, 1536)).nbytes == 576 * 48 * 20 and storage_shape(TensorType(q4_1, (576, 1536))) == (576, 48)
    assert TensorType(q8_0, (n, 32 * k)).nbytes == 34 * n * k and storage_shape(TensorType(q8_0, (n, 32 * k))) == (n, k)
    assert TensorType(q4_0, (0, 64)).nbytes == 0
    for dtype in BLOCKS:
        assert dtype.numpy.itemsize == dtype.block_bytes and dtype_from_numpy(dtype.numpy) == dtype
        with pytest.raises(TypeError, match="no bytes of its own"):
            assert dtype.itemsize
    assert merge_types(TensorType(q4_1, (n, UNKNOWN_DIM)), TensorType(q4_1, (4, 64))) is None
    assert merge_types(TensorType(q4_1, (4, UNKNOWN_DIM)), TensorType(q4_1, (4, 64))) == TensorType(q4_1, (4, 64))
    assert type_problem(TensorType(q4_1, (4, 33))) and type_problem(TensorType(q4_1, ())) and type_problem(TensorType(q4_1, (4, k)))
    assert dtype_from_numpy(np.dtype([("d", "<f2"), ("qs", "u1", (15,))])) is None


BAD_TYPES = [
    ("q4_1[4, 33]", "33 is not a multiple", "33"),
    ("q4_0[4, K]", "K is not known to be a multiple", "K"),
    ("q8_0[4, 32*K + 16]", "is not known to be a multiple", "32"),
    ("q8_0[]", "a tensor of rank 0 has none", "q8_0"),
    ("q4_1", "is an element type of tensors only", "q4_1"),
    ("vector<q4_1[32]>", "is an element type of tensors only", "q4_1"),
    ("memref<q4_1[4, 32]>", "is an element type of tensors only", "q4_1"),
    ("q4_2[4, 32]", "there is no element type 'q4_2'", "q4_2"),
]


@pytest.mark.parametrize(("text", "message", "at"), BAD_TYPES, ids=[t for t, _, _ in BAD_TYPES])
def test_types_that_cannot_be(text: str, message: str, at: str) -> None:
    line = f"graph @main(%w: {text}) {{ return }}"
    report = Diagnostics()
    parse_module(line, "<test>", report)
    first = report.items[0]
    assert message in first.message and first.location.offset == line.index(at, line.index("%w: "))  # type: ignore[union-attr]


# what reads tensors of blocks, all other operands of all other operations refuse them
READERS = {
    *(("graph.dequantize", "x"), ("graph.linear", "weight"), ("graph.embedding", "table"), ("graph.gather", "x")),
    *(("graph.dim", "x"), ("graph.print", "x"), ("graph.call", "args"), ("graph.return", "values"), ("graph.yield", "values")),
    *(("memref.from_tensor", "x"), ("graph.pack_rows", "ws")),
}


def test_everything_else_refuses_blocks() -> None:
    for name, definition in REGISTRY.items():
        for operand in definition.operand_specs:
            for dtype in BLOCKS:
                type_ = TensorType(dtype, (4, 64))
                problem = operand.kind.problem(type_)
                assert (problem is None) == ((name, operand.name) in READERS), (name, operand.name)
                assert problem is None or "dequantize" in (operand.kind.hint(type_) or "")


REFUSED = [
    ("%y = reshape(%w, shape=[64, 4])", "expected a tensor whose elements stand alone, found q4_1[4, 64]"),
    ("%y = transpose(%w, perm=[1, 0])", "whose elements stand alone"),
    ("%y = concat(%w, %w, axis=0)", "whose elements stand alone"),
    ("%y = slice(%w, starts=[0], ends=[2])", "whose elements stand alone"),
    ("%y = cast(%w, dtype=f32)", "found q4_1[4, 64]"),
    ("%y = cast(%x, dtype=q4_1)", "attribute 'dtype': expected an element type, found q4_1"),
    ("%y = add(%w, %w)", "expected a tensor of numbers, found q4_1[4, 64]"),
    ("%y = where(%c, %w, %w)", "found q4_1[4, 64]"),
    ("%y = matmul(%x, %w, transpose_b=true)", "expected a tensor of numbers, found q4_1[4, 64]"),
    ("%y = linear(%w, %x)", "expected a tensor of numbers, found q4_1[4, 64]"),
    ("%y = linear(%h, %w)", "a weight of blocks is multiplied in f32: 'x' is f16[2, 64]"),
    ("%y = gather(%w, %i, axis=1)", "the last axis of q4_1[4, 64] is stored in blocks"),
    ("%y = full(shape=[4, 64], value=0, dtype=q8_0)", "found q8_0"),
    ("%y = constant(0) : q4_1[4, 64]", "there are no constants of q4_1"),
    ("%y = dequantize(%x)", "expected a tensor of blocks (q4_0, q4_1 or q8_0), found f32[2, 64]"),
    ("%y = dequantize(%w, dtype=i8)", "blocks hold real numbers: expected a float type, found i8"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[t.split(" = ")[1] for t, _ in REFUSED])
def test_refused_at_the_right_place(line: str, message: str) -> None:
    text = f"graph @main(%w: q4_1[4, 64], %x: f32[2, 64], %h: f16[2, 64], %i: i64[3], %c: bool[4, 64]) {{\n  {line}\n  return\n}}\n"
    report = Diagnostics()
    module = parse_module(text, "<test>", report)
    verify_module(module, report)
    first = report.items[0]
    assert message in first.message, first.message
    assert first.location.offset >= text.index(line) + len("%y = ")  # type: ignore[union-attr]


# -- programs ----------------------------------------------------------------------------------------------------------

PROGRAM = """
graph @layer(%x: f32[S, 64], %w: q4_1[32, 64]) -> f32[S, 32] {
  %y = linear(%x, %w)
  return %y
}

graph @main(%x: f32[S, 64], %w: q4_1[32, 64], %t: q8_0[V, 32*K], %u: q4_0[2, 3, 32], %ids: i64[S]) -> (
  f32[S, 32], f32[S, 32*K], f32[2, S, 32], bf16[2, 3, 32], q4_1[32, 64], i64[]
) {
  %y = call(@layer, %x, %w)
  %e = embedding(%t, %ids)
  %g = gather(%u, %ids, axis=1)
  %b = dequantize(%u, dtype=bf16)
  %n = dim(%t, axis=1)
  return %y, %e, %g, %b, %w, %n
}
"""


def test_text() -> None:
    text = print_module(parse_module(PROGRAM))
    assert print_module(parse_module(text)) == text and "%t: q8_0[V, 32*K]" in text


@pytest.mark.parametrize("sizes", [(3, 5, 2), (1, 3, 1), (0, 3, 1), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("pipeline", ["O1", "cpu", "cpu-avx2"])
def test_programs(sizes: tuple[int, int, int], pipeline: str) -> None:
    s, v, k = sizes
    rng = np.random.default_rng(6)
    arrays = [
        rng.integers(-3, 4, (s, 64)).astype(np.float32),
        generate_array(rng, q4_1, (32, 64), "exact"),
        random_blocks(q8_0, (v, k), 7),
        random_blocks(q4_0, (2, 3, 1), 8),
        rng.integers(0, 3, s),
    ]
    wanted = graph_opt.compile(parse_module(PROGRAM), "main", device="reference")(*arrays)
    found = graph_opt.compile(parse_module(PROGRAM), "main", pipeline=pipeline, device="reference" if pipeline == "O1" else "cpu")(*arrays)
    for a, b in zip(wanted, found, strict=True):
        assert same_bits(np.asarray(a), np.asarray(b))
    assert found[5] == 32 * k


def test_a_wrong_index_is_told_in_elements() -> None:
    arrays = [np.zeros((1, 64), np.float32), random_blocks(q4_1, (32, 2)), random_blocks(q8_0, (0, 1)), random_blocks(q4_0, (2, 3, 1)), np.array([0])]
    messages = []
    for device in ("reference", "cpu"):
        with pytest.raises(GraphError) as caught:
            graph_opt.compile(parse_module(PROGRAM), "main", device=device)(*arrays)
        messages.append(str(caught.value).splitlines()[0].partition("error: ")[2])
    assert "dimension 0 of q8_0[0, 32] is 0" in messages[0] and "dimension 0 of q8_0[0, 32] is 0" in messages[1], messages


def test_arguments_that_do_not_fit() -> None:
    executable = graph_opt.compile(parse_module("graph @main(%w: q4_1[4, 64]) -> f32[4, 64] {\n  %y = dequantize(%w)\n  return %y\n}\n"))
    with pytest.raises(GraphError, match=r"%w is q4_1\[4, 64\], but the array is q4_1\[4, 32\]"):
        executable(random_blocks(q4_1, (4, 1)))
    with pytest.raises(GraphError, match=r"but the array is q4_0\[4, 64\]"):
        executable(random_blocks(q4_0, (4, 2)))
    with pytest.raises(GraphError, match=r"but the array is u8\[4, 40\]"):
        executable(np.zeros((4, 40), np.uint8))
    with pytest.raises(GraphError, match="a single block of q4_1 is no tensor"):
        executable(random_blocks(q4_1, (1,))[0])
    strided = random_blocks(q4_1, (8, 4))[::2, ::2]
    assert same_bits(executable(strided), dequantize(strided))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_print(device: str) -> None:
    program = 'graph @main(%w: q8_0[1, 32]) -> f32[] {\n  print(%w, label="w")\n  %c = constant(1.0) : f32[]\n  return %c\n}\n'
    array = np.zeros((1, 1), q8_0.numpy)
    array["d"], array["qs"] = 0.5, np.arange(32) - 16
    out = io.StringIO()
    with redirect_stdout(out):
        graph_opt.compile(parse_module(program), device=device)(array)
    assert out.getvalue().startswith("w: q8_0[1, 32]\n[[-8. , -7.5,") and "7.5]]" in out.getvalue()


WEIGHTS = """
file @w = "w.npz"

graph @main(%x: f32[2, 64]) -> (f32[2, 8], f32[2, 8], f32[3, 64], f16[8, 64]) {
  %a = weight(@w, "a") : q8_0[8, 64]
  %b = weight(@w, "b") : q8_0[8, 64]
  %p = linear(%x, %a) : f32[2, 8]
  %q = linear(%x, %b) : f32[2, 8]
  %i = constant([0, 1, 7]) : i64[3]
  %e = embedding(%a, %i) : f32[3, 64]
  %h = dequantize(%a, dtype=f16) : f16[8, 64]
  return %p, %q, %e, %h
}
"""


@pytest.mark.parametrize("pipeline", ["O1", "O1,merge-products,decompose,cse,hoist-to-init", "O1,decompose,merge-products,hoist-to-init"])
def test_weights_are_not_unpacked_in_advance(pipeline: str) -> None:
    """q8_0 would be less than four times as large in f32, which is what hoist-to-init allows others."""
    module = parse_module(WEIGHTS)
    sources: Any = {"w": ArraySource({"a": random_blocks(q8_0, (8, 2), 1), "b": random_blocks(q8_0, (8, 2), 2)})}
    PassManager(load_pipeline(pipeline), sources=sources).run(module)
    assert list(module.graphs) == ["main"]
    names = [op.definition.text_name for op in module.walk()]
    assert names.count("weight") == 2 and "initial" not in names
    x = np.random.default_rng(3).integers(-4, 5, (2, 64)).astype(np.float32)
    wanted = Interpreter(parse_module(WEIGHTS), sources).run(parse_module(WEIGHTS).graphs["main"], [x])
    found = Interpreter(module, sources).run(module.graphs["main"], [x])
    assert all(np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-3) for a, b in zip(wanted, found, strict=True))
