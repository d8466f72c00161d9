"""How composite operations are made of primitives: one function per operation, used by the pass ``decompose``.

A function gets the operation and builds its parts with the active builder, in front of it; it returns what stands for
the results.  What it builds agrees with the operation on every value, special ones included, up to rounding: f16 and
bf16 are computed in f32 and rounded once at the end, as the operation says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dialects.graph._wide import rounded, wide_dtype
from dialects.graph.arithmetic import add, div, maximum, mul, pow_, sub
from dialects.graph.attention import head_group, scale_factor
from dialects.graph.cast import bitcast, cast
from dialects.graph.comparison import greater, greater_equal, less, logical_and, where
from dialects.graph.constant import constant, dim, full, iota
from dialects.graph.elementwise import abs_, cos, exp, expm1, isfinite, log, log1p, neg, rsqrt, sin, sqrt, square
from dialects.graph.indexing import concat, gather, slice_
from dialects.graph.matmul import matmul
from dialects.graph.quantized import dequantize
from dialects.graph.reduction import max_, mean, sum_
from dialects.graph.rope import inverse_frequencies
from dialects.graph.shape import reshape, squeeze, unsqueeze
from dialects.graph.special import erfc
from ir.attributes import Dense
from ir.core import Operation, Value
from ir.dims import Dim, exact_div
from ir.evaluate import round_to
from ir.types import DType, TensorType, f64, i32, i64, is_known

Decomposition = Callable[[Operation], Sequence[Value]]


def can_decompose(op: Operation) -> bool:
    """Whether there is a decomposition, and the types it has to know are known."""
    return op.name in DECOMPOSITIONS and all(is_known(v.type) for v in (*op.operands, *op.results))


# -- what they share ---------------------------------------------------------------------------------------------------


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _shape(value: Value) -> tuple[Dim, ...]:
    return _type(value).shape


def _dtype(value: Value) -> DType:
    return _type(value).dtype


def _number(value: float | int, dtype: DType) -> Value:
    """A rank-0 constant."""
    array = round_to(np.array(value, np.float64), dtype) if dtype.is_float else np.array(value)
    return constant(Dense(array, dtype))  # type: ignore[no-any-return]


def _operand(op: Operation, name: str) -> Value:
    value = op.operand(name)
    assert value is not None
    return value


def _wide(value: Value) -> Value:
    """f16 and bf16 as f32."""
    return _as(value, wide_dtype(_dtype(value)))


def _wide_operand(op: Operation, name: str) -> Value | None:
    value = op.operand(name)
    return None if value is None else _wide(value)


def _as(value: Value, dtype: DType) -> Value:
    return value if _dtype(value) == dtype else cast(value, dtype=dtype)  # type: ignore[no-any-return]


def _rounded_to_result(op: Operation, value: Value) -> list[Value]:
    return [_as(value, _dtype(op.result))]


def _lowest(dtype: DType) -> float:
    """The finite number of the computation's type that is farthest below zero."""
    return float(np.finfo(np.float64 if dtype == f64 else np.float32).min)


def _float(op: Operation, name: str) -> float:
    value = op.attribute(name)
    assert isinstance(value, (int, float))
    return float(value)


def _axis(op: Operation, rank: int) -> int:
    axis = op.attribute("axis")
    assert isinstance(axis, int)
    return axis % rank


# -- the maximum of a row ----------------------------------------------------------------------------------------------


def _row_max(x: Value, axis: int) -> Value:
    """The maximum along an axis, kept with size 1; -inf where the axis is empty."""
    return max_(x, axes=(axis,), keepdims=True, initial=-math.inf)  # type: ignore[no-any-return]


def _row_sum(x: Value, axis: int) -> Value:
    return sum_(x, axes=(axis,), keepdims=True)  # type: ignore[no-any-return]


# -- activations -------------------------------------------------------------------------------------------------------


def _relu(op: Operation) -> Sequence[Value]:
    x = _operand(op, "x")
    return [maximum(x, _number(0, _dtype(x)))]


def _leaky_relu(op: Operation) -> Sequence[Value]:
    x = _wide(_operand(op, "x"))
    zero, alpha = _number(0, _dtype(x)), _number(_float(op, "alpha"), _dtype(x))
    return _rounded_to_result(op, where(greater_equal(x, zero), x, mul(alpha, x)))


def _elu(op: Operation) -> Sequence[Value]:
    x = _wide(_operand(op, "x"))
    below = mul(_number(_float(op, "alpha"), _dtype(x)), expm1(x))
    return _rounded_to_result(op, where(greater(x, _number(0, _dtype(x))), x, below))


def _gate(x: Value) -> Value:
    """sigmoid(x) without overflow, and with all digits of small results."""
    zero, one = _number(0, _dtype(x)), _number(1, _dtype(x))
    small = exp(neg(abs_(x)))
    return div(where(greater_equal(x, zero), one, small), add(one, small))  # type: ignore[no-any-return]


def _sigmoid(op: Operation) -> Sequence[Value]:
    return _rounded_to_result(op, _gate(_wide(_operand(op, "x"))))


def _silu(op: Operation) -> Sequence[Value]:
    """With s = exp(-abs(x) / 2): x / (1 + s*s) for x >= 0, x*s*s / (1 + s*s) below.

    exp(x) itself is denormal below -87.3, where x*exp(x) still is not; s is not.  At -inf the result is that of the
    lowest finite number, -0.
    """
    x = _wide(_operand(op, "x"))
    dtype = _dtype(x)
    zero, one = _number(0, dtype), _number(1, dtype)
    root = exp(mul(abs_(x), _number(-0.5, dtype)))
    finite = maximum(x, _number(_lowest(dtype), dtype))
    above = where(greater_equal(x, zero), x, mul(mul(finite, root), root))
    return _rounded_to_result(op, div(above, add(one, square(root))))


def _gelu(op: Operation) -> Sequence[Value]:
    """In f64: the tail multiplies the relative error of its argument by the square of it."""
    x = cast(_operand(op, "x"), dtype=f64) if _dtype(_operand(op, "x")) != f64 else _operand(op, "x")
    finite = maximum(x, _number(_lowest(f64), f64))  # -inf * 0 would be NaN
    if op.attribute("approximate") == "none":
        gate = mul(_number(0.5, f64), erfc(mul(x, _number(-math.sqrt(0.5), f64))))
    else:
        cubic = mul(mul(mul(_number(0.044715, f64), x), x), x)
        gate = _gate(mul(_number(2.0 * math.sqrt(2.0 / math.pi), f64), add(x, cubic)))
    return _rounded_to_result(op, mul(finite, gate))


def _softplus(op: Operation) -> Sequence[Value]:
    x = _wide(_operand(op, "x"))
    return _rounded_to_result(op, add(maximum(x, _number(0, _dtype(x))), log1p(exp(neg(abs_(x))))))


# -- products and tables -----------------------------------------------------------------------------------------------


def _linear(op: Operation) -> Sequence[Value]:
    x, weight, bias = _operand(op, "x"), _operand(op, "weight"), op.operand("bias")
    if _dtype(weight).is_block:
        weight = dequantize(weight)
    if bias is None:
        return [matmul(x, weight, transpose_b=True)]
    return _rounded_to_result(op, add(matmul(_wide(x), _wide(weight), transpose_b=True), _wide(bias)))


def _embedding(op: Operation) -> Sequence[Value]:
    return [gather(_operand(op, "table"), _operand(op, "ids"))]


# -- normalizations ----------------------------------------------------------------------------------------------------


def _softmax(op: Operation) -> Sequence[Value]:
    x = _operand(op, "x")
    axis = _axis(op, _type(x).rank)
    if _shape(x)[axis] == 0:
        return [x]
    x = _wide(x)
    e = exp(sub(x, _row_max(x, axis)))
    return _rounded_to_result(op, div(e, _row_sum(e, axis)))


def _log_softmax(op: Operation) -> Sequence[Value]:
    x = _operand(op, "x")
    axis = _axis(op, _type(x).rank)
    if _shape(x)[axis] == 0:
        return [x]
    x = _wide(x)
    shifted = sub(x, _row_max(x, axis))
    return _rounded_to_result(op, sub(shifted, log(_row_sum(exp(shifted), axis))))


def _logsumexp(op: Operation) -> Sequence[Value]:
    x = _wide(_operand(op, "x"))
    axis = _axis(op, _type(x).rank)
    if _shape(x)[axis] == 0:
        return [full(shape=_shape(op.result), value=-math.inf, dtype=_dtype(op.result))]
    largest = _row_max(x, axis)
    shift = where(isfinite(largest), largest, _number(0, _dtype(x)))
    result = add(log(_row_sum(exp(sub(x, shift)), axis)), shift)
    if not op.attribute("keepdims"):
        result = squeeze(result, axes=(axis,))
    return _rounded_to_result(op, result)


def _last_mean(x: Value) -> Value:
    return mean(x, axes=(-1,), keepdims=True)  # type: ignore[no-any-return]


def _with_eps(op: Operation, x: Value) -> Value:
    """``x + eps``."""
    return add(x, _number(rounded(_float(op, "eps"), _dtype(x)), _dtype(x)))  # type: ignore[no-any-return]


def _variance(op: Operation) -> Sequence[Value]:
    x = _wide(_operand(op, "x"))
    axes = op.attribute("axes")
    distance = sub(x, mean(x, axes=axes, keepdims=True))
    return _rounded_to_result(op, mean(square(distance), axes=axes, keepdims=op.attribute("keepdims")))


def _rmsnorm(op: Operation) -> Sequence[Value]:
    x, weight = _wide(_operand(op, "x")), _wide_operand(op, "weight")
    y = mul(x, rsqrt(_with_eps(op, _last_mean(square(x)))))
    return _rounded_to_result(op, y if weight is None else mul(y, weight))


def _layernorm(op: Operation) -> Sequence[Value]:
    x, weight, bias = _wide(_operand(op, "x")), _wide_operand(op, "weight"), _wide_operand(op, "bias")
    centered = sub(x, _last_mean(x))
    y = mul(centered, rsqrt(_with_eps(op, _last_mean(square(centered)))))
    y = y if weight is None else mul(y, weight)
    return _rounded_to_result(op, y if bias is None else add(y, bias))


def _l2_normalize(op: Operation) -> Sequence[Value]:
    x = _wide(_operand(op, "x"))
    norm = sqrt(_row_sum(square(x), _axis(op, _type(x).rank)))
    least = _number(rounded(_float(op, "eps"), _dtype(x)), _dtype(x))
    return _rounded_to_result(op, div(x, maximum(norm, least)))


# -- rotary position embedding -----------------------------------------------------------------------------------------


def _frequencies(x: Value, width: Dim, base: float) -> Value:
    """``base ** (-2 i / width)`` in f64, [width / 2]."""
    if isinstance(width, int):
        return constant(Dense(inverse_frequencies(width, base), f64))  # type: ignore[no-any-return]
    pair = iota(shape=(exact_div(width, 2),), dtype=f64)
    exponent = div(mul(_number(-2.0, f64), pair), cast(dim(x, axis=-1), dtype=f64))
    return pow_(_number(base, f64), exponent)  # type: ignore[no-any-return]


def _angles(x: Value, positions: Value, frequencies: Value) -> Value:
    """In f64, to be broadcast against the pairs of ``x``."""
    rank = _type(x).rank
    axes = (rank - 1,) if _type(positions).rank == 2 and rank > 2 else (1,)
    if _type(positions).rank == 2:
        axes = (*range(1, rank - 2), *axes)
    return mul(unsqueeze(_as(positions, f64), axes=axes), frequencies)  # type: ignore[no-any-return]


def _part(x: Value, start: Dim, end: Dim) -> Value:
    """``x[..., start:end]``."""
    return slice_(x, starts=(start,), ends=(end,), axes=(-1,))  # type: ignore[no-any-return]


def _rope(op: Operation) -> Sequence[Value]:
    x, positions = _operand(op, "x"), _operand(op, "positions")
    size = _shape(x)[-1]
    given = op.attribute("rotary_dim")
    width: Dim = given if isinstance(given, int) else size
    half = exact_div(width, 2)
    assert half is not None
    interleaved = bool(op.attribute("interleaved"))
    frequencies, factors = _frequencies(x, width, _float(op, "base")), op.operand("factors")
    angle = _angles(x, positions, frequencies if factors is None else div(frequencies, _as(factors, f64)))
    wide = _wide(x if width == size else _part(x, 0, width))
    if interleaved:  # the two of a pair get an axis of their own
        angle = unsqueeze(angle, axes=(-1,))
        wide = reshape(wide, shape=(*_shape(x)[:-1], half, 2))
    middle = 1 if interleaved else half
    a, b = _part(wide, 0, middle), _part(wide, middle, _shape(wide)[-1])
    c, s = (_as(f(angle), _dtype(wide)) for f in (cos, sin))
    turned = concat(sub(mul(a, c), mul(b, s)), add(mul(a, s), mul(b, c)), axis=-1)
    if interleaved:
        turned = reshape(turned, shape=(*_shape(x)[:-1], width))
    turned = _as(turned, _dtype(x))
    return [turned if width == size else concat(turned, _part(x, width, size), axis=-1)]


# -- attention ---------------------------------------------------------------------------------------------------------


def _extent(x: Value) -> Value:
    """The size of the next to last axis as a value, i64."""
    size = _shape(x)[-2]
    return _number(size, i64) if isinstance(size, int) else dim(x, axis=-2)


def _key_is_valid(k: Value, length: Value) -> Value:
    """Which keys lie before ``length``: [T], or [B, 1, 1, T] for lengths of a batch."""
    return less(iota(shape=(_shape(k)[-2],)), length)  # type: ignore[no-any-return]


def _seen_by_position(q: Value, k: Value, length: Value | None, causal: bool) -> Value | None:
    """Which keys a query may see by their positions; None for all."""
    steps, total = _shape(q)[-2], _shape(k)[-2]
    if not causal or steps == 1:  # a single query is the last one, it sees all that is valid
        return None if length is None else _key_is_valid(k, length)
    key, query = iota(shape=(total,)), iota(shape=(steps, 1), axis=0)
    if length is None and steps == total:
        return greater_equal(query, key)  # type: ignore[no-any-return]
    following = sub(sub(_extent(q), _number(1, i64)), query)
    return less(add(key, following), _extent(k) if length is None else length)  # type: ignore[no-any-return]


def _visible(op: Operation, q: Value, k: Value, length: Value | None) -> Value | None:
    """All that hides keys from queries, but for a float mask; None when nothing does."""
    seen = _seen_by_position(q, k, length, bool(op.attribute("causal")))
    mask = op.operand("mask")
    if mask is None or _dtype(mask).is_float:
        return seen
    return mask if seen is None else logical_and(mask, seen)  # type: ignore[no-any-return]


def _length(op: Operation) -> Value | None:
    """The length as i64, [] or [B, 1, 1, 1]."""
    length = op.operand("length")
    if length is None:
        return None
    length = _as(length, i64)
    return unsqueeze(length, axes=(1, 2, 3)) if _type(length).rank else length


def _weights(op: Operation, scores: Value) -> Value:
    """Softmax of the scores; zeros for a row that is -inf throughout.

    The maximum counts as finite, so that such a row becomes exp(-inf) = 0; its sum, which is at least 1 in all
    others, counts as 1.
    """
    dtype = _dtype(scores)
    top = maximum(_row_max(scores, _type(scores).rank - 1), _number(_lowest(dtype), dtype))
    e = exp(sub(scores, top))
    return div(e, maximum(_row_sum(e, -1), _number(1, dtype)))  # type: ignore[no-any-return]


def _attention(op: Operation) -> Sequence[Value]:
    q, k, v = (_operand(op, n) for n in "qkv")
    past_k, past_v = op.operand("past_k"), op.operand("past_v")
    if past_k is not None and past_v is not None:
        k, v = concat(past_k, k, axis=-2), concat(past_v, v, axis=-2)
    if _shape(k)[-2] == 0:
        return [full(shape=_shape(op.result), value=0.0, dtype=_dtype(q))]
    length = _length(op)
    visible = _visible(op, q, k, length)
    scale, width = op.attribute("scale"), _shape(q)[-1]
    q, k, v = _wide(q), _wide(k), _wide(v)
    dtype = _dtype(q)
    if length is not None:  # what lies beyond the valid keys must not matter, even NaN
        v = where(less(iota(shape=(_shape(k)[-2], 1), axis=0), length), v, _number(0, dtype))
    group = head_group(_shape(q)[-3], _shape(k)[-3]) if _type(q).rank > 2 else 1
    assert group is not None
    factor = _scale(q, scale if isinstance(scale, float) else None, width)
    scores = mul(_per_key_head(q, k, group, transpose=True), factor)
    mask = op.operand("mask")
    if mask is not None and _dtype(mask).is_float:
        scores = add(scores, _wide(mask))
    if visible is not None:
        scores = where(visible, scores, _number(-math.inf, dtype))
    return _rounded_to_result(op, _per_key_head(_weights(op, scores), v, group, transpose=False))


def _scale(q: Value, scale: float | None, width: Dim) -> Value:
    dtype = _dtype(q)
    if scale is None and not isinstance(width, int):
        factor = rsqrt(maximum(cast(dim(q, axis=-1), dtype=f64), _number(1.0, f64)))
        # by way of the stored bits: the operation has a rounded factor even where a run keeps floats wider
        return factor if dtype == f64 else bitcast(bitcast(_as(factor, dtype), dtype=i32), dtype=dtype)  # type: ignore[no-any-return]
    return _number(scale_factor(scale, width if isinstance(width, int) else 1, dtype), dtype)


def _per_key_head(x: Value, y: Value, group: Dim, transpose: bool) -> Value:
    """x @ y (or y^T) where ``group`` heads of ``x`` share one of ``y``: their rows are one matrix."""
    if group == 1:
        return matmul(x, y, transpose_b=transpose)  # type: ignore[no-any-return]
    *batch, heads, rows, columns = _shape(x)
    shared = reshape(x, shape=(*batch, _shape(y)[-3], group * rows, columns))
    product = matmul(shared, y, transpose_b=transpose)
    return reshape(product, shape=(*batch, heads, rows, _shape(product)[-1]))  # type: ignore[no-any-return]


DECOMPOSITIONS: dict[str, Decomposition] = {
    "graph.attention": _attention,
    "graph.elu": _elu,
    "graph.embedding": _embedding,
    "graph.gelu": _gelu,
    "graph.l2_normalize": _l2_normalize,
    "graph.layernorm": _layernorm,
    "graph.leaky_relu": _leaky_relu,
    "graph.linear": _linear,
    "graph.log_softmax": _log_softmax,
    "graph.logsumexp": _logsumexp,
    "graph.relu": _relu,
    "graph.rmsnorm": _rmsnorm,
    "graph.rope": _rope,
    "graph.sigmoid": _sigmoid,
    "graph.silu": _silu,
    "graph.softmax": _softmax,
    "graph.softplus": _softplus,
    "graph.variance": _variance,
}
"""By full name; every operation flagged ``composite`` has an entry."""
