"""Operations that do something besides computing, and dropout, which needs no random state."""

from __future__ import annotations

from typing import Any

import numpy as np

from dialects.graph._random import uniform
from dialects.graph._special import first_position, format_position
from ir.blocks import dequantize
from ir.opdef import Boolean, ExecutionError, Float, Stored, Tensor, TypeProblem, op
from ir.types import TensorType, dtype_from_numpy, f32, tensor_shape


def _nothing(*_: Any, **__: Any) -> tuple[()]:
    return ()


def _dropout(x: TensorType, p: float, seed: int, training: bool) -> TensorType:
    if not 0 <= p < 1:
        raise TypeProblem(f"p is the share of elements that are dropped: expected 0 <= p < 1, found {p}", attribute="p")
    return x


@op(infer=_nothing, pure=False, exact_bits=True)
def print_(x: Stored, *, label: str = "") -> None:
    """Writes the label, type and elements of x to the standard output.

    Has no result, and is never removed, doubled or moved past another effect.  Tensors of more than 1000 elements are
    shortened.  Those of blocks are shown as numbers.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          print(%x, label="x")
          return %x
        }
    """
    dtype = dtype_from_numpy(x.dtype)
    type_ = TensorType(dtype, tensor_shape(dtype, x.shape)) if dtype is not None else x.dtype
    if dtype is not None and dtype.is_block:
        x = dequantize(x, f32)
    head = f"{label}: {type_}" if label else str(type_)
    print(f"{head}\n{np.array2string(x, separator=', ', threshold=1000, edgeitems=3, max_line_width=120)}")


@op(infer=_nothing, name="assert", pure=False, traps=True, exact_bits=True)
def assert_(cond: Boolean, *, message: str = "") -> None:
    """Stops the program with ``message`` unless every element of cond is true.

    An empty tensor passes.  Has no result, and is never removed or moved past another effect.

    Example::

        graph @example(%x: i32[N]) -> i32[N] {
          %k = constant(0) : i32[]
          %c = greater_equal(%x, %k)
          assert(%c, message="ids are not negative")
          return %x
        }
    """
    position = first_position(np.logical_not(cond))
    if position is not None:
        raise ExecutionError(f"assert: {message or 'an element is false'}{format_position(position)}")


@op(infer=_dropout)
def dropout(x: Float, *, p: float = 0.5, seed: int = 0, training: bool = False) -> Tensor:
    """x; while training, with a share ``p`` of its elements set to 0 and the others divided by 1 - p.

    Without ``training=true`` this is x itself.  With it, which elements are dropped depends on ``seed`` and on their
    place alone, never on threads or on earlier runs: with the output function mix of splitmix64 (G. Steele, D. Lea,
    C. Flood, OOPSLA 2014), in unsigned 64-bit integers that wrap around, and G = 0x9e3779b97f4a7c15, the element at
    row-major position i (from 0) has the number h = mix(mix(seed + G) + (i + 1) * G), and is kept when
    (h >> 11) / 2^53 >= p.  mix(z) multiplies z by 0xbf58476d1ce4e5b9 after z ^= z >> 30, then by 0x94d049bb133111eb
    after z ^= z >> 27, and ends with z ^= z >> 31.  A negative seed is taken in two's complement.

    A dropped element is +0 even if it was NaN or infinite.  ``p`` is at least 0 and less than 1.

    Example::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = dropout(%x)
          return %y
        }

    Example, while training::

        graph @example(%x: f32[B, 4]) -> f32[B, 4] {
          %y = dropout(%x, p=0.25, seed=7, training=true)
          return %y
        }
    """
    if not training:
        return x
    kept = (uniform(seed, np.arange(x.size)) >= p).reshape(x.shape)
    return np.where(kept, x / (1.0 - p), 0.0)
