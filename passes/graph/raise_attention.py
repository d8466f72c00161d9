"""Pass ``raise-attention``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dialects.graph.arithmetic import add, div, mul, sub
from dialects.graph.attention import attention
from dialects.graph.cast import cast
from dialects.graph.comparison import greater_equal, less_equal, where
from dialects.graph.constant import constant, full, iota
from dialects.graph.elementwise import neg
from dialects.graph.indexing import slice_
from dialects.graph.matmul import matmul
from dialects.graph.normalization import softmax
from dialects.graph.shape import expand, flatten, reshape, squeeze, transpose, unsqueeze
from ir.attributes import Dense
from ir.core import Module, Operation, Value
from ir.dims import Dim
from ir.opdef import REGISTRY, OpDef
from ir.rewriter import rewrite_greedily, walk_graphs
from ir.types import TensorType, f32
from passes.infra.base import Pass, PassContext

_MOVES = (reshape, flatten, squeeze, unsqueeze, transpose, expand, slice_)
"""Operations whose elements are those of their operand."""


@dataclass(frozen=True)
class RaiseAttention(Pass):
    """Makes one ``attention`` of the products and the softmax that it is written with.

    Before::

        %kt = transpose(%k, perm=[0, 1, 3, 2])
        %s0 = matmul(%q, %kt)
        %s1 = mul(%s0, %scale)
        %s2 = add(%s1, %mask)
        %p = softmax(%s2)
        %o = matmul(%p, %v)

    After::

        %o = attention(%q, %k, %v, mask=%mask, scale=0.125)

    The scores may be multiplied by a constant (or divided by a power of two), then a mask may be added, or ``where`` may hide the
    keys behind the query with -inf; heads of keys and values that are repeated by ``unsqueeze``, ``expand`` and ``reshape`` are
    shared instead.  Nothing but the next operation may use what comes in between, and no result of the graph.

    It is done for f32, where no query loses all its keys to a mask: the softmax of such a row is NaN, and attention gives zeros.  So
    the mask that is added must be made of finite constants, as far as can be seen.  (A row that is -inf throughout because of
    infinite operands is NaN before and zeros afterwards.)
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            changed |= rewrite_greedily(graph, {REGISTRY["graph.matmul"]: [_raised]}, lambda op: context.count("attentions raised"))
        return changed


def _raised(op: Operation) -> Value | None:
    """The attention that a product of weights and values is."""
    if op.attribute("transpose_a") or op.attribute("transpose_b"):
        return None
    weights, v = op.operands
    soft = _only_used(weights, softmax)
    if soft is None or not _is_last(soft):
        return None
    scores, causal = _without_causal(soft.operands[0])
    mask = None
    if not causal:
        scores, mask = _without_mask(scores)
    scores, scale = _without_scale(scores)
    product = _only_used(scores, matmul)
    if product is None or product.attribute("transpose_a"):
        return None
    q, k = product.operands[0], _keys(product)
    if k is None or not all(_is_tensor(x) for x in (q, k, v)):
        return None
    shared = _shared_heads(k), _shared_heads(v)
    if shared[0] is not None and shared[1] is not None:
        k, v = shared[0], shared[1]
    if not _fits(_shape(q), _shape(k), _shape(v), _shape(product.result)) or (causal and not _is_causal(causal, _shape(product.result))):
        return None
    if mask is not None and (not _is_tensor(mask) or len(_shape(mask)) > len(_shape(scores))):
        return None
    return attention(q, k, v, mask=mask, scale=scale, causal=causal is not None)  # type: ignore[no-any-return]


# -- what stands between the products ----------------------------------------------------------------------------------


def _only_used(value: Value, definition: OpDef) -> Operation | None:
    """The operation that makes a value, when it is of a kind and nothing else uses it."""
    op = value.defining_op
    return op if op is not None and op.definition is definition and len(list(value.uses)) == 1 else None


def _is_last(op: Operation) -> bool:
    axis = op.attribute("axis")
    return isinstance(op.operands[0].type, TensorType) and axis in (-1, op.operands[0].type.rank - 1)


def _without_causal(scores: Value) -> tuple[Value, Value | None]:
    """Scores before ``where(seen, scores, -inf)``, and what says which are seen."""
    op = _only_used(scores, where)
    if op is None or _number(op.operands[2]) != -math.inf:
        return scores, None
    return op.operands[1], op.operands[0]


def _is_causal(seen: Value, shape: tuple[Dim, ...]) -> bool:
    """Whether it is ``query >= key`` for as many keys as queries, so that every query sees the first key."""
    op = seen.defining_op
    if op is None or op.definition not in (greater_equal, less_equal) or shape[-1] != shape[-2]:
        return False
    query, key = op.operands if op.definition is greater_equal else reversed(op.operands)
    return _counts(query, (shape[-2], 1), -2) and _counts(key, (shape[-1],), -1)


def _counts(value: Value, shape: tuple[Dim, ...], axis: int) -> bool:
    """Whether a value is the numbers 0, 1, 2, ... along an axis that is counted from the end, with dimensions of size 1 in front."""
    op = value.defining_op
    if op is None or op.definition is not iota or not isinstance(value.type, TensorType):
        return False
    found, along = value.type.shape, op.attribute("axis")
    assert isinstance(along, int)
    ones = len(found) - len(shape)
    return ones >= 0 and found == (1,) * ones + shape and along % len(found) - len(found) == axis


def _without_mask(scores: Value) -> tuple[Value, Value | None]:
    """Scores before a mask of finite numbers is added, and the mask."""
    op = _only_used(scores, add)
    if op is None:
        return scores, None
    for plain, mask in (op.operands, list(reversed(op.operands))):
        if plain.type == scores.type and _bound(mask) < float(np.finfo(np.float32).max) and _leads_to_product(plain):
            return plain, mask
    return scores, None


def _leads_to_product(scores: Value) -> bool:
    return _only_used(_without_scale(scores)[0], matmul) is not None


def _without_scale(scores: Value) -> tuple[Value, float]:
    """Scores before they are multiplied by a constant, and that."""
    product, quotient = _only_used(scores, mul), _only_used(scores, div)
    if product is not None:
        for plain, factor in (product.operands, list(reversed(product.operands))):
            number = _number(factor)
            if number is not None and math.isfinite(number) and plain.type == scores.type:
                return plain, number
    if quotient is not None:
        number = _number(quotient.operands[1])
        if number is not None and number != 0 and math.frexp(abs(number))[0] == 0.5 and quotient.operands[0].type == scores.type:
            return quotient.operands[0], 1 / number
    return scores, 1.0


def _keys(product: Operation) -> Value | None:
    """The keys as rows."""
    k = product.operands[1]
    if product.attribute("transpose_b"):
        return k
    op = k.defining_op
    if op is None or op.definition is not transpose or not _is_tensor(k):
        return None
    rank, perm = len(_shape(k)), op.attribute("perm")
    return op.operands[0] if perm == (*range(rank - 2), rank - 1, rank - 2) else None


def _shared_heads(x: Value) -> Value | None:
    """``[B, H, T, D]`` that is repeated to ``[B, G*H, T, D]``, each head G times in a row; None when it is not."""
    merged = x.defining_op
    spread = merged.operands[0].defining_op if merged is not None and merged.definition is reshape else None
    apart = spread.operands[0].defining_op if spread is not None and spread.definition is expand else None
    if merged is None or spread is None or apart is None or apart.definition is not unsqueeze:
        return None
    source = apart.operands[0]
    if not all(_is_tensor(v) for v in (x, spread.result, source)):
        return None
    one, many, before = _shape(x), _shape(spread.result), _shape(source)
    rank = len(before)
    if rank not in (3, 4) or len(one) != rank or len(many) != rank + 1 or apart.attribute("axes") not in ((rank - 2,), (-3,)):
        return None
    group = many[rank - 2]
    kept = (*before[: rank - 2], group, *before[rank - 2 :])
    return source if many == kept and one == (*before[: rank - 3], group * before[rank - 3], *before[rank - 2 :]) else None


def _fits(q: tuple[Dim, ...], k: tuple[Dim, ...], v: tuple[Dim, ...], scores: tuple[Dim, ...]) -> bool:
    """Whether these are queries, keys and values of one attention; products broadcast where attention does not."""
    if not 2 <= len(q) == len(k) == len(v) <= 4 or k[:-1] != v[:-1] or len(scores) != len(q):
        return False
    if len(q) == 4 and q[0] != k[0]:
        return False
    heads, shared = (q[-3], k[-3]) if len(q) > 2 else (1, 1)
    return heads == shared or (isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared == 0 and scores[-3] == heads)


# -- values ------------------------------------------------------------------------------------------------------------


def _is_tensor(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype == f32


def _shape(value: Value) -> tuple[Dim, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape


def _number(value: Value) -> float | None:
    """The number that all elements of a constant are."""
    op = value.defining_op
    while op is not None and op.definition in _MOVES:
        op = op.operands[0].defining_op
    if op is None or op.definition not in (constant, full):
        return None
    given = op.attributes["value"]
    if isinstance(given, Dense):
        found = np.unique(given.array.astype(np.float64))
        return float(found[0]) if found.size == 1 else None
    return float(given) if isinstance(given, (int, float)) else None


def _bound(value: Value) -> float:
    """No element is larger than this, or smaller than its negative; infinity where nothing is known."""
    op = value.defining_op
    if op is None:
        return math.inf
    parts: dict[OpDef, Callable[[], float]] = {
        constant: lambda: _largest(op),
        full: lambda: abs(_number(value) or 0.0),
        cast: lambda: _range(op.operands[0]),
        where: lambda: max(_bound(op.operands[1]), _bound(op.operands[2])),
        mul: lambda: _bound(op.operands[0]) * _bound(op.operands[1]),
        add: lambda: _bound(op.operands[0]) + _bound(op.operands[1]),
        sub: lambda: _bound(op.operands[0]) + _bound(op.operands[1]),
        neg: lambda: _bound(op.operands[0]),
        **{move: lambda: _bound(op.operands[0]) for move in _MOVES},
    }
    found = parts[op.definition]() if op.definition in parts else math.inf
    return math.inf if math.isnan(found) else found


def _largest(op: Operation) -> float:
    given = op.attributes["value"]
    assert isinstance(given, Dense)
    found = np.abs(given.array.astype(np.float64))
    return math.inf if np.isnan(found).any() else float(found.max(initial=0.0))


def _range(value: Value) -> float:
    """The bound of what is made a float."""
    if not isinstance(value.type, TensorType):
        return math.inf
    dtype = value.type.dtype
    if dtype.kind == "bool":
        return 1.0
    return float(dtype.max_value) + 1 if dtype.is_integer else _bound(value)
