"""Nests that read tensors of blocks: ``dequantize``, ``gather`` of their rows, and ``pack_rows``.

Correct for everything that is left when no pass made packed products of it (see ``quantize-products``), and not fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dialects.arith.bits import andi, ori, shli, shrui, xori
from dialects.arith.cast import bitcast, extf, extsi, extui, index_cast, sitofp
from dialects.arith.floats import mulf
from dialects.arith.integers import muli, subi
from dialects.graph.digits import FORMATS, ROWS
from dialects.math.exact import fma
from ir.core import Value
from ir.dims import Dim, floordiv, mod
from ir.types import DType, ScalarType, TensorType, f16, f32, f64, i8, i16, i32, q4_0, q4_1, q8_0, storage_shape, u8
from passes.linalg._bodies import Place, buffer_type, from_start, load, to_index
from passes.linalg._nests import Access, Loop, Lowering, narrow, number, tensor_type

_HEAD = {q4_0: 2, q4_1: 4, q8_0: 2}
"""Bytes of a block before its quants."""


def dequantized(low: Lowering) -> list[Value]:
    """``dequantize``: a nest over the halves of blocks."""
    source, result = low.operand("x"), tensor_type(low.op.result)
    buffer, loops = _pieces(low)
    names = [n.name for n in loops]
    dtype = tensor_type(low.op.operands[0]).dtype

    def body(_: Value) -> Value:
        return _element(low, source, dtype, names[:-2], loops[-2:], result.dtype)

    low.generic(loops, [], Access(buffer, tuple(names)), body)
    return [low.reshaped(buffer, result.shape)]


def gathered_blocks(low: Lowering, source: Value, indices: Value, axis: int, count: Callable[[], Value]) -> Value:
    """``gather`` along an axis that is not the last: the same with an index in the body."""
    result, rank = tensor_type(low.op.result), tensor_type(low.op.operands[1]).rank
    buffer, loops = _pieces(low)
    names = [n.name for n in loops]
    dtype = tensor_type(low.op.operands[0]).dtype

    def body(stored: Value, _: Value) -> Value:
        at = from_start(to_index(stored), count())
        return _element(low, source, dtype, [*names[:axis], at, *names[axis + rank : -2]], loops[-2:], result.dtype)

    low.generic(loops, [Access(indices, tuple(names[axis : axis + rank]))], Access(buffer, tuple(names)), body)
    return low.reshaped(buffer, result.shape)


def packed(low: Lowering) -> list[Value]:
    """``pack_rows`` of what is not known when the program is loaded: nests that move bytes."""
    result, buffer = tensor_type(low.op.result), low.result_buffer()
    weights = [tensor_type(w) for w in low.op.operands]
    format_ = FORMATS[weights[0].dtype.name]
    rows = sum((w.shape[0] for w in weights[1:]), weights[0].shape[0])
    if rows != result.shape[0] * ROWS:
        low.fill(buffer, 0)
    first: Dim = 0
    for weight, type_ in zip(low.op.operands, weights, strict=True):
        source, words = low.buffer(weight), format_.numbers // (4 * ROWS)
        _moved_bytes(low, source, buffer, first, (words, 4), _HEAD[type_.dtype], 0, flip=format_.bits == 8)
        _moved_bytes(low, source, buffer, first, (1 + format_.minimum, 2), 0, format_.numbers, flip=False)
        first = first + type_.shape[0]
    return [buffer]


def _moved_bytes(low: Lowering, source: Value, target: Value, first: Dim, unit: tuple[int, int], start: int, end: int, *, flip: bool) -> None:
    """Moves words of each block, from the byte ``start`` on, to where those of 32 rows lie side by side, from ``end`` on."""
    rows, blocks = buffer_type(source).shape[:2]
    loops = low.loops([rows, blocks, *unit])
    r, b, word, byte = (n.name for n in loops)
    size = unit[1]
    row = r + first
    place = (floordiv(row, ROWS), b, size * ROWS * word + size * mod(row, ROWS) + byte + end)
    read = Access(source, (r, b, size * word + byte + start))
    low.generic(loops, [read], Access(target, place), lambda x, _: xori(x, number(128, u8)) if flip else x)


def _pieces(low: Lowering) -> tuple[Value, list[Loop]]:
    """New memory for the result, [..., blocks, halves, elements of one], and loops over it."""
    result = tensor_type(low.op.result)
    blocks = storage_shape(TensorType(q8_0, result.shape))
    shape: list[Dim] = [*blocks, 2, 16]
    return low.alloc(result.dtype, shape, f"{low.origin}.blocks"), low.loops(shape)


def _element(low: Lowering, source: Value, dtype: DType, block: Sequence[Place], inside: Sequence[Loop], result: DType) -> Value:
    """One number: in f32 it is rounded once by the fma; narrower ones are computed in f64, where they are exact."""
    wide = f32 if result == f32 else f64
    half, j = inside
    scale = _float(source, [*block], 0, wide)
    if dtype == q8_0:
        byte = load(source, [*block, 16 * half.name + j.name + _HEAD[dtype]])
        q = extsi(bitcast(byte, result_type=ScalarType(i8)), result_type=ScalarType(i32))
    else:
        byte = extui(load(source, [*block, j.name + _HEAD[dtype]]), result_type=ScalarType(i32))
        shift = muli(index_cast(low.index(half), result_type=ScalarType(i32)), number(4, i32))
        q = andi(shrui(byte, shift), number(15, i32))
        if dtype == q4_0:
            q = subi(q, number(8, i32))
    x = sitofp(q, result_type=ScalarType(wide))
    found = fma(scale, x, _float(source, [*block], 2, wide)) if dtype == q4_1 else mulf(scale, x)
    return narrow(found, result)


def _float(source: Value, block: list[Place], at: int, wide: DType) -> Value:
    """The f16 at a byte of a block, which may lie at an odd address."""
    low, high = (extui(load(source, [*block, at + n]), result_type=ScalarType(i16)) for n in (0, 1))
    bits = ori(low, shli(high, number(8, i16)))
    return extf(bitcast(bits, result_type=ScalarType(f16)), result_type=ScalarType(wide))  # type: ignore[no-any-return]
