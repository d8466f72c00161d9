"""Matrix products."""

from __future__ import annotations

import numpy as np

from dialects.graph._shapes import broadcast_dim, require_rank, require_same_dtype
from ir.blocks import dequantize
from ir.dims import Dim, compatible
from ir.opdef import Numeric, NumericOrBlocks, Tensor, TypeProblem, op
from ir.types import TensorType, f32, f64

_SYMBOL_HINT = "dimensions are equal only when they are written alike; give both the same name, or specialize them"


def inner_problem(a: tuple[str, TensorType], b: tuple[str, TensorType], k_a: Dim, k_b: Dim, hint: str | None) -> TypeProblem:
    """The complaint about a contraction over dimensions that differ; it points at the second operand."""
    if hint is None and not (isinstance(k_a, int) and isinstance(k_b, int)):
        hint = _SYMBOL_HINT
    return TypeProblem(f"inner dimensions differ: '{a[0]}' is {a[1]}, '{b[0]}' is {b[1]} ({k_a} and {k_b})", operand=b[0], hint=hint)


def _matrix_dims(name: str, type_: TensorType, transposed: bool) -> tuple[Dim, Dim]:
    """Rows and columns of an operand of rank 2 or more."""
    rows, columns = type_.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _transpose_hint(a: TensorType, b: TensorType, transpose_a: bool, transpose_b: bool, k_a: Dim, k_b: Dim) -> str | None:
    """Suggests the transposition that would make the product fit."""
    if b.rank >= 2:
        rows, columns = _matrix_dims("b", b, transpose_b)
        if columns == k_a and rows != k_a:
            return f"{'leave out' if transpose_b else 'write'} transpose_b=true to contract with the other axis of 'b'"
    if a.rank >= 2:
        rows, columns = _matrix_dims("a", a, transpose_a)
        if rows == k_b and columns != k_b:
            return f"{'leave out' if transpose_a else 'write'} transpose_a=true to contract with the other axis of 'a'"
    return None


def _batch(a: TensorType, b: TensorType) -> tuple[Dim, ...]:
    """The broadcast batch dimensions."""
    left, right = list(a.shape[:-2]), list(b.shape[:-2])
    rank = max(len(left), len(right))
    result: list[Dim] = []
    for i, (p, q) in enumerate(zip([1] * (rank - len(left)) + left, [1] * (rank - len(right)) + right, strict=True)):
        dim = broadcast_dim(p, q)
        if dim is None:
            hint = None if isinstance(p, int) and isinstance(q, int) else _SYMBOL_HINT
            message = f"batch dimensions can't be broadcast: 'a' is {a}, 'b' is {b} ({p} and {q} in batch dimension {i - rank})"
            raise TypeProblem(message, operand="b", hint=hint)
        result.append(dim)
    return tuple(result)


def _matmul_type(a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool) -> TensorType:
    for name, type_, transposed in (("a", a, transpose_a), ("b", b, transpose_b)):
        require_rank(type_, name, at_least=1)
        if transposed and type_.rank == 1:
            raise TypeProblem(f"transpose_{name}=true needs a matrix, '{name}' is {type_}", attribute=f"transpose_{name}")
    dtype = require_same_dtype(("a", a), ("b", b))
    outer: list[Dim] = []
    if a.rank == 1:
        k_a = a.shape[0]
    else:
        rows, k_a = _matrix_dims("a", a, transpose_a)
        outer.append(rows)
    if b.rank == 1:
        k_b = b.shape[0]
    else:
        k_b, columns = _matrix_dims("b", b, transpose_b)
        outer.append(columns)
    if not compatible(k_a, k_b):
        raise inner_problem(("a", a), ("b", b), k_a, k_b, _transpose_hint(a, b, transpose_a, transpose_b, k_a, k_b))
    return TensorType(dtype, (*_batch(a, b), *outer))


@op(infer=_matmul_type, exact=True)
def matmul(a: Numeric, b: Numeric, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Matrix product.

    ``a`` is ``[..., M, K]`` and ``b`` is ``[..., K, N]``; the result is ``[..., M, N]``, its element ``m, n`` the
    sum over ``k`` of ``a[m, k] * b[k, n]``.  The batch dimensions in front broadcast by numpy's rule.  With
    ``transpose_a`` the last two axes of ``a`` are swapped first (it is given as ``[..., K, M]``), likewise ``b``
    with ``transpose_b`` (``[..., N, K]``); no data is moved for it.  An operand of rank 1 is a row (``a``) or a
    column (``b``) whose axis is missing from the result: ``[K]`` times ``[K]`` is rank 0.  Rank 0 is an error, and
    so is transposing rank 1.

    Both operands have the same element type, which the result has too.  Floats are multiplied and summed wide (f16
    and bf16 at least in f32) and rounded once; integers wrap around in their type (two's complement), whatever K
    is.  ``K = 0`` gives zeros.  The sum starts from +0, so a sum of -0 is +0.  NaN propagates and ``inf * 0`` is
    NaN: no term is skipped because one factor is zero.

    Raises an error when the inner dimensions differ.

    Example::

        graph @example(%a: f32[B, 4], %b: f32[4, 3]) -> f32[B, 3] {
          %c = matmul(%a, %b)
          return %c
        }

    Example, a batch of products with a transposed factor::

        graph @example(%q: f16[B, 2, S, 8], %k: f16[2, T, 8]) -> f16[B, 2, S, T] {
          %scores = matmul(%q, %k, transpose_b=true)
          return %scores
        }

    Example, a vector and integers::

        graph @example(%v: i32[K], %m: i32[N, K]) -> i32[N] {
          %w = matmul(%m, %v)
          return %w
        }
    """
    left = np.swapaxes(a, -1, -2) if transpose_a else a
    right = np.swapaxes(b, -1, -2) if transpose_b else b
    return np.matmul(left, right)  # type: ignore[no-any-return]


def require_f32_beside_blocks(x: tuple[str, TensorType], weight: TensorType) -> None:
    """Raises TypeProblem unless what is multiplied with blocks is f32."""
    if x[1].dtype != f32:
        hint = "write cast(..., dtype=f32)"
        raise TypeProblem(f"a weight of blocks is multiplied in f32: '{x[0]}' is {x[1]}, 'weight' is {weight}", operand=x[0], hint=hint)


def _linear_type(x: TensorType, weight: TensorType, *, bias: TensorType | None) -> TensorType:
    require_rank(x, "x", at_least=1)
    require_rank(weight, "weight", exactly=2)
    if weight.dtype.is_block:
        require_f32_beside_blocks(("x", x), weight)
        dtype = x.dtype
    else:
        dtype = require_same_dtype(("x", x), ("weight", weight))
    features, columns = weight.shape
    if not compatible(x.shape[-1], columns):
        hint = None
        if x.shape[-1] == features:
            hint = "weight is [out, in], as torch stores it; use matmul for [in, out]"
        raise inner_problem(("x", x), ("weight", weight), x.shape[-1], columns, hint)
    if bias is not None:
        require_same_dtype(("x", x), ("bias", bias))
        if bias.rank != 1 or not compatible(bias.shape[0], features):
            raise TypeProblem(f"expected bias {TensorType(dtype, (features,))} for weight {weight}, found {bias}", operand="bias")
    return TensorType(dtype, (*x.shape[:-1], features))


@op(infer=_linear_type, exact=True, composite=True)
def linear(x: Numeric, weight: NumericOrBlocks, *, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias, a fully connected layer.

    ``x`` is ``[..., in]``, ``weight`` is ``[out, in]`` (as torch stores it), ``bias`` is ``[out]``; the result is
    ``[..., out]``.  All have the same element type.  The product is that of ``matmul`` and the bias is added before
    the one rounding: f16 and bf16 accumulate in f32 at least.  Integers wrap around.  ``in = 0`` gives the bias, or
    zeros.

    The weight may be stored in blocks (``q4_0``, ``q4_1``, ``q8_0``) beside an f32 ``x``: then this is
    ``linear(x, dequantize(weight))``, but for the rounding of the weight.

    Example::

        graph @example(%x: f32[B, S, 4], %weight: f32[6, 4], %bias: f32[6]) -> f32[B, S, 6] {
          %y = linear(%x, %weight, bias=%bias)
          return %y
        }

    Example, without bias::

        graph @example(%x: bf16[B, 4], %weight: bf16[N, 4]) -> bf16[B, N] {
          %y = linear(%x, %weight)
          return %y
        }

    Example, a weight in blocks::

        graph @example(%x: f32[B, 64], %weight: q4_1[N, 64]) -> f32[B, N] {
          %y = linear(%x, %weight)
          return %y
        }
    """
    if weight.dtype.names is not None:
        weight = dequantize(weight, f64)
    y = np.matmul(x, weight.T)
    return y if bias is None else y + bias  # type: ignore[no-any-return]
