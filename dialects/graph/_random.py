"""The random numbers of the toolkit: a pure function of a seed and a counter, so they are the same everywhere.

All arithmetic is on unsigned 64-bit integers modulo 2**64 (the finalizer and the constant are those of splitmix64)::

    mix(z):        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
                   z = (z ^ (z >> 27)) * 0x94D049BB133111EB
                   return z ^ (z >> 31)
    bits(seed, c): return mix(mix(seed + G) + (c + 1) * G)      with G = 0x9E3779B97F4A7C15
    uniform:       (bits >> 11) / 2**53

A negative seed is taken in two's complement (sign-extended from its type to 64 bits).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def random_bits(seed: int | NDArray[Any], counters: NDArray[Any]) -> NDArray[np.uint64]:
    """64 random bits for each counter (integers >= 0); see the module's docstring."""
    start = np.array([int(seed) & 0xFFFFFFFFFFFFFFFF], np.uint64)
    steps = np.asarray(counters).astype(np.uint64)
    shape = steps.shape
    return _mix(_mix(start + _GOLDEN) + (steps.reshape(-1) + np.uint64(1)) * _GOLDEN).reshape(shape)


def uniform(seed: int | NDArray[Any], counters: NDArray[Any]) -> NDArray[np.float64]:
    """A number in [0, 1) for each counter: the upper 53 of its random bits, divided by 2**53."""
    return (random_bits(seed, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53
