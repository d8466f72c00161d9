"""Who holds which element when the 32 threads of a warp hold a matrix together (PTX ISA, "Matrix Fragments"), in numpy.

A matrix of a warp is an array whose first axis is the lane: ``[32, n]`` for n elements in each thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ir.evaluate import round_to
from ir.types import f32

_LANE = np.arange(32)[:, None]
_GROUP, _IN_GROUP = _LANE // 4, _LANE % 4


def _numbers(count: int) -> Any:
    return np.arange(count)[None, :]


def _places_a16() -> tuple[Any, Any]:
    i = _numbers(8)
    return _GROUP + 8 * (i // 2 % 2), 2 * _IN_GROUP + i % 2 + 8 * (i // 4)


def _places_b16() -> tuple[Any, Any]:
    i = _numbers(4)
    return 2 * _IN_GROUP + i % 2 + 8 * (i // 2), _GROUP + 0 * i


def _places_a32() -> tuple[Any, Any]:
    i = _numbers(4)
    return _GROUP + 8 * (i % 2), _IN_GROUP + 4 * (i // 2)


def _places_b32() -> tuple[Any, Any]:
    i = _numbers(2)
    return _IN_GROUP + 4 * i, _GROUP + 0 * i


def _places_c() -> tuple[Any, Any]:
    i = _numbers(4)
    return _GROUP + 8 * (i // 2), 2 * _IN_GROUP + i % 2


A16, B16, A32, B32, C = _places_a16(), _places_b16(), _places_a32(), _places_b32(), _places_c()
"""Row and column of each thread's elements: A and B of m16n8k16 and m16n8k8, and the sums of both."""


def matrix(fragments: Any, places: tuple[Any, Any]) -> Any:
    """The matrix that the threads of a warp hold, from ``[32, n]``."""
    rows, columns = places
    result = np.empty((rows.max() + 1, columns.max() + 1), fragments.dtype)
    result[places] = fragments
    return result


def multiply(a: Any, b: Any, c: Any, double: bool) -> Any:
    """``a @ b + c`` of fragments: ``[..., 32, n]``, with the warps in front.

    The sum of each element is computed in f64, from c on with k ascending, and rounded once to f32 (not with ``double``).
    """
    wide = a.shape[-1] == 8
    places_a, places_b = (A16, B16) if wide else (A32, B32)
    result = np.empty(c.shape, np.float64 if double else np.float32)
    flat = [x.reshape(-1, *x.shape[-2:]).astype(np.float64) for x in (a, b, c)]
    out = result.reshape(-1, *c.shape[-2:])
    with np.errstate(all="ignore"):
        for number, (fa, fb, fc) in enumerate(zip(*flat, strict=True)):
            left, right, total = matrix(fa, places_a), matrix(fb, places_b), matrix(fc, C)
            for k in range(left.shape[1]):
                total = total + left[:, k, None] * right[k]
            out[number] = (total if double else round_to(total, f32))[C]
    return result


def to_tf32(x: Any) -> Any:
    """f32 rounded to the 10 bits of mantissa of tf32, to nearest with ties away from zero (``cvt.rna.tf32.f32``)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def distribute(matrices: Any, transposed: bool) -> Any:
    """What ldmatrix gives each lane of 8x8 matrices ``[warp, matrix, row, column]``: ``[warp, 32, 2 * matrices]``."""
    i = np.arange(2)[None, :]
    line, place = _GROUP + 0 * i, 2 * _IN_GROUP + i
    found = matrices[:, :, place, line] if transposed else matrices[:, :, line, place]
    return np.moveaxis(found, 1, 2).reshape(len(matrices), 32, -1)
