"""What several workloads need."""

from __future__ import annotations

import numpy as np

from bench.case import Array

LINE = 64
"""Bytes of a cache line."""


def aligned(array: Array) -> Array:
    """A copy that starts with a cache line, so that no engine has the luck, or the bad luck, of where numpy put it."""
    memory = np.empty(array.nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Normal random numbers in f32."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    np.multiply(values, np.float32(scale), out=values)
    return aligned(values)


def silu_in_place(x: Array, scratch: Array) -> Array:
    """x / (1 + exp(-x))."""
    np.negative(x, out=scratch)
    np.exp(scratch, out=scratch)
    np.add(scratch, 1, out=scratch)
    return np.divide(x, scratch, out=x)


def quick_erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26 in f32, as one writes it in numpy for speed; off by some 1e-7."""
    f = np.float32
    z = np.abs(x)
    t = 1 / (1 + f(0.3275911) * z)
    p = t * (f(0.254829592) + t * (f(-0.284496736) + t * (f(1.421413741) + t * (f(-1.453152027) + t * f(1.061405429)))))
    erf: Array = np.copysign(1 - p * np.exp(-z * z), x)
    return erf


def quick_gelu(x: Array) -> Array:
    """The exact gelu with that."""
    f = np.float32
    gelu: Array = x * f(0.5) * (1 + quick_erf(x * f(0.5**0.5)))
    return gelu
