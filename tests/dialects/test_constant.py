"""constant, full, iota, weight, dim."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from dialects.graph.constant import constant, dim, full, iota, weight
from ir.attributes import Dense, FileRef
from ir.diagnostics import GraphError
from ir.dims import UNKNOWN_DIM, floordiv, symbol
from ir.opdef import ExecutionError, TypeProblem
from ir.parser import parse_module
from ir.printer import print_module
from ir.types import UNKNOWN, TensorType, bf16, boolean, f16, f32, i8, i32, i64, u8

B, S = symbol("B"), symbol("S")


def only_constant(text: str) -> np.ndarray:
    module = parse_module(text)
    assert print_module(module) == text
    op = next(iter(next(iter(module.graphs.values())).block))
    assert op.definition is constant
    value = op.attributes["value"]
    assert isinstance(value, Dense)
    types = constant.infer([], [], op.attributes)
    assert types == (value.type,)
    (result,) = constant.evaluate([], [], op.attributes, types, [])
    return result


def graph(line: str) -> str:
    return f"graph @main() {{\n  {line}\n  return %c\n}}\n"


def test_constant_keeps_bits() -> None:
    found = only_constant(graph("%c = constant([[1.0, -inf], [-0.0, bits(0x7fc00001)]]) : f32[2, 2]"))
    assert found.view(np.uint32).tolist() == [[0x3F800000, 0xFF800000], [0x80000000, 0x7FC00001]]
    found = only_constant(graph("%c = constant([1.5, nan]) : bf16[2]"))
    assert found.dtype == ml_dtypes.bfloat16 and found.view(np.uint16).tolist() == [0x3FC0, 0x7FC0]


def test_constant_of_integers_and_bool() -> None:
    assert only_constant(graph("%c = constant([-9223372036854775808, 9223372036854775807]) : i64[2]")).tolist() == [-(2**63), 2**63 - 1]
    assert only_constant(graph("%c = constant([true, false]) : bool[2]")).tolist() == [True, False]
    assert only_constant(graph("%c = constant(7) : i32[3, 4]")).tolist() == [[7] * 4] * 3


def test_constant_of_rank_zero_and_empty() -> None:
    assert only_constant(graph("%c = constant(2.0) : f32[]")).shape == ()
    assert only_constant(graph("%c = constant([]) : f32[0]")).shape == (0,)


def test_constant_from_python() -> None:
    found = constant(Dense(np.float32([1, 2])))
    assert found.tolist() == [1, 2] and found.dtype == np.float32
    with pytest.raises(GraphError, match="expected a constant"):
        constant(1.0)


# -- full --------------------------------------------------------------------------------------------------------------


def test_full() -> None:
    for dtype, value in ((f32, 0.1), (f16, 0.1), (bf16, 0.1), (i64, 2**63 - 1), (u8, 255), (i8, -128), (boolean, True), (f32, 3)):
        found = full(shape=(2, 3), value=value, dtype=dtype)
        assert found.dtype == dtype.numpy and found.shape == (2, 3)
        assert (found == np.array(value).astype(dtype.numpy)).all()
    assert full(shape=(), value=1, dtype=i32).shape == ()
    assert full(shape=(0, 3), value=1.0, dtype=f32).shape == (0, 3)
    assert full(shape=(1,), value=70000, dtype=f16).tolist() == [np.inf]
    assert np.signbit(full(shape=(1,), value=-0.0, dtype=f32)).all()


def test_full_rounds_even_where_floats_are_kept_wider() -> None:
    attributes = {"shape": (1,), "value": 0.1, "dtype": f32}
    (found,) = full.evaluate([], [], attributes, [TensorType(f32, (1,))], [], double=True)
    assert found.dtype == np.float64 and found[0] == float(np.float32(0.1))


def test_full_with_symbols() -> None:
    attributes = {"shape": (B, 2 * S), "value": 1.0, "dtype": f32}
    assert full.infer([], [], attributes) == (TensorType(f32, (B, 2 * S)),)
    (found,) = full.evaluate([], [], attributes, [TensorType(f32, (2, 6))], [])
    assert found.shape == (2, 6)
    with pytest.raises(ExecutionError, match=r"full: a dimension of f32\[2, -1\] is negative"):
        full.evaluate([], [], attributes, [TensorType(f32, (2, -1))], [])


@pytest.mark.parametrize(
    "attributes, message",
    [
        ({"value": 1.5, "dtype": i32}, "the value of a tensor of i32 is an integer, found 1.5"),
        ({"value": 300, "dtype": i8}, r"300 does not fit in i8 \(-128 to 127\)"),
        ({"value": -1, "dtype": u8}, "-1 does not fit in u8"),
        ({"value": True, "dtype": f32}, "the value of a tensor of f32 is a number, found true"),
        ({"value": 1, "dtype": boolean}, "the value of a tensor of bool is true or false, found 1"),
        ({"shape": (-1,)}, "a dimension is between 0 and .*, found -1"),
        ({"shape": (2**63,)}, "a dimension is between 0 and"),
        ({"shape": (2, UNKNOWN_DIM)}, r"a dimension of this shape is '\?'"),
        ({"shape": (1,) * 65}, "at most 64 dimensions"),
    ],
)
def test_full_refuses(attributes: dict[str, object], message: str) -> None:
    given = {"shape": (2,), "value": 1, "dtype": f32, **attributes}
    with pytest.raises(TypeProblem, match=message):
        full.infer([], [], given)  # type: ignore[arg-type]


# -- iota --------------------------------------------------------------------------------------------------------------


def test_iota() -> None:
    assert iota(shape=(4,)).tolist() == [0, 1, 2, 3] and iota(shape=(4,)).dtype == np.int64
    assert iota(shape=(2, 3)).tolist() == [[0, 1, 2]] * 2
    assert iota(shape=(2, 3), axis=0, dtype=f32).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert iota(shape=(3, 0, 2)).shape == (3, 0, 2)
    assert iota(shape=(2, 0), axis=1).shape == (2, 0)
    assert iota(shape=(2, 3), axis=-2).tolist() == iota(shape=(2, 3), axis=0).tolist()
    assert iota(shape=(2, 3)).flags.writeable


def test_iota_wraps_and_rounds() -> None:
    assert iota(shape=(130,), dtype=i8)[127:].tolist() == [127, -128, -127]
    found = iota(shape=(260,), dtype=bf16).astype(np.float64)
    assert found[256:].tolist() == [256, 256, 258, 260]


def test_iota_inference() -> None:
    assert iota.infer([], [], {"shape": (B, floordiv(S, 2))}) == (TensorType(i64, (B, floordiv(S, 2))),)
    with pytest.raises(TypeProblem, match="axis=2 is out of range: expected -2 <= axis < 2"):
        iota.infer([], [], {"shape": (B, S), "axis": 2})
    with pytest.raises(TypeProblem, match="a rank-0 tensor has no axes"):
        iota.infer([], [], {"shape": ()})
    with pytest.raises(TypeProblem, match="counting needs numbers, not bool"):
        iota.infer([], [], {"shape": (2,), "dtype": boolean})


# -- weight and dim ----------------------------------------------------------------------------------------------------


def test_weight_has_the_declared_type() -> None:
    text = 'file @w = "model.safetensors"\n\ngraph @main() -> f32[4] {\n  %b = weight(@w, "bias") : f32[4]\n  return %b\n}\n'
    module = parse_module(text)
    assert print_module(module) == text
    op = next(iter(module.graphs["main"].block))
    assert op.definition is weight and op.attributes["file"] == FileRef("w") and op.attributes["name"] == "bias"
    assert weight.infer([], [], op.attributes) == (UNKNOWN,)
    with pytest.raises(ExecutionError, match='"bias" of file @w has not been read'):
        weight.evaluate([], [], op.attributes, [TensorType(f32, (4,))], [])


def test_dim() -> None:
    x = np.zeros((2, 0, 5), np.float32)
    assert [int(dim(x, axis=i)) for i in (0, 1, 2, -1)] == [2, 0, 5, 5]
    assert dim(x, axis=0).shape == () and dim(x, axis=0).dtype == np.int64
    assert dim.infer([TensorType(f32, (B, UNKNOWN_DIM))], ["x"], {"axis": 1}) == (TensorType(i64, ()),)
    with pytest.raises(TypeProblem, match="axis=2 is out of range"):
        dim.infer([TensorType(f32, (B, S))], ["x"], {"axis": 2})
