"""What op bodies of several families share: erf and erfc, sigmoid and silu, IEEE maximum and minimum, places of elements in messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Rational approximations of W. J. Cody, "Rational Chebyshev approximations for the error function",
# Math. Comp. 23 (1969) 631-637.  Numerator and denominator each, highest power first.
_ERF_SMALL = (  # erf(x) / x in x*x, for |x| <= 0.46875
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_ERFC_MIDDLE = (  # exp(x*x) * erfc(x) in x, for 0.46875 <= x <= 4
    (
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594e0,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ),
)
_ERFC_LARGE = (  # (1/sqrt(pi) - x * exp(x*x) * erfc(x)) * x*x in 1/(x*x), for x >= 4
    (
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ),
    (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3),
)
_INV_SQRT_PI = 5.6418958354775628695e-1
_SMALL = 0.46875
_UNDERFLOW = 30.0  # erfc is 0 in float64 from about 27.3 on
_SILU_UNDERFLOW = -1500.0  # silu is -0 in float64 below about -752
_GELU_TANH_UNDERFLOW = -50.0  # it is -0 in float64 below about -21.4
_NORMAL_UNDERFLOW = 40.0  # normcdf is 0 in float64 below about -38.6


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: NDArray[Any]) -> NDArray[Any]:
    numerator, denominator = (np.full_like(x, c[0]) for c in coefficients)
    for a, b in zip(coefficients[0][1:], coefficients[1][1:], strict=True):
        numerator = numerator * x + a
        denominator = denominator * x + b
    return numerator / denominator  # type: ignore[no-any-return]


def _exp_minus_square(x: NDArray[Any]) -> NDArray[Any]:
    """exp(-x*x) without the rounding error of x*x, which large x would magnify."""
    head = np.trunc(x * 16.0) / 16.0  # its square is exact
    return np.exp(-head * head) * np.exp(-(x - head) * (x + head))


def _erfc_scaled(x: NDArray[Any]) -> NDArray[Any]:
    """exp(x*x) * erfc(x) of a vector of numbers >= 0.46875."""
    scaled = np.empty_like(x)
    large = x > 4.0
    scaled[~large] = _ratio(_ERFC_MIDDLE, x[~large])
    far = x[large]
    inverse = 1.0 / (far * far)
    scaled[large] = (_INV_SQRT_PI - inverse * _ratio(_ERFC_LARGE, inverse)) / far
    return scaled


def _erfc_upper(x: NDArray[Any]) -> NDArray[Any]:
    """erfc of a vector of numbers >= 0.46875."""
    return _exp_minus_square(x) * _erfc_scaled(x)  # type: ignore[no-any-return]


def erf(x: NDArray[Any]) -> NDArray[Any]:
    """The error function in float64, within 1e-15 of the exact value (relative)."""
    flat = np.asarray(x, np.float64).reshape(-1)
    size = np.minimum(np.abs(flat), _UNDERFLOW)
    result = flat.copy()  # keeps NaN
    small = size <= _SMALL
    result[small] = flat[small] * _ratio(_ERF_SMALL, flat[small] * flat[small])
    tail = size > _SMALL
    result[tail] = np.copysign(1.0 - _erfc_upper(size[tail]), flat[tail])
    return result.reshape(np.shape(x))


def erfc(x: NDArray[Any]) -> NDArray[Any]:
    """1 - erf(x) in float64, within 1e-15 of the exact value (relative) down to where it underflows."""
    flat = np.asarray(x, np.float64).reshape(-1)
    size = np.minimum(np.abs(flat), _UNDERFLOW)
    result = flat.copy()
    small = size <= _SMALL
    result[small] = 1.0 - flat[small] * _ratio(_ERF_SMALL, flat[small] * flat[small])
    tail = size > _SMALL
    upper = _erfc_upper(size[tail])
    result[tail] = np.where(flat[tail] < 0.0, 2.0 - upper, upper)
    return result.reshape(np.shape(x))


def normcdf(x: NDArray[Any]) -> NDArray[Any]:
    """0.5 * erfc(-x / sqrt(2)) in float64, within a few 1e-16 of the exact value (relative), far below 0 too.

    Only the slow factor of the tail sees the rounded quotient: exp(-x*x/2) is computed from x itself.
    """
    flat = np.asarray(x, np.float64).reshape(-1)
    size = np.minimum(np.abs(flat), _NORMAL_UNDERFLOW)
    scaled = size * math.sqrt(0.5)
    result = flat.copy()
    small = scaled <= _SMALL
    result[small] = 0.5 + 0.5 * math.sqrt(0.5) * flat[small] * _ratio(_ERF_SMALL, scaled[small] * scaled[small])
    tail = scaled > _SMALL
    head = np.trunc(size[tail] * 16.0) / 16.0
    exponential = np.exp(-0.5 * head * head) * np.exp(-0.5 * (size[tail] - head) * (size[tail] + head))
    upper = 0.5 * exponential * _erfc_scaled(scaled[tail])
    result[tail] = np.where(flat[tail] < 0.0, upper, 1.0 - upper)
    return result.reshape(np.shape(x))


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    """1 / (1 + exp(-x)) in float64, far below 0 too."""
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1.0 / (1.0 + small), small / (1.0 + small))  # type: ignore[no-any-return]


def silu(x: NDArray[Any]) -> NDArray[Any]:
    """x * sigmoid(x) in float64, within a few 1e-16 of the exact value (relative) down to where it underflows.

    exp(x) is denormal where x * exp(x) is not; its root is not denormal there.
    """
    root = np.exp(-0.5 * np.abs(x))
    finite = np.maximum(x, _SILU_UNDERFLOW)  # -inf * 0 would be NaN
    return np.where(x >= 0, x, finite * root * root) / (1.0 + root * root)  # type: ignore[no-any-return]


def gelu_tanh(x: NDArray[Any]) -> NDArray[Any]:
    """x * sigmoid(2 * sqrt(2/pi) * (x + 0.044715 * x^3)), with the limit -0 at -inf."""
    finite = np.maximum(x, _GELU_TANH_UNDERFLOW)
    return finite * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))  # type: ignore[no-any-return]


def ieee_maximum(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """The larger element by IEEE 754-2019 ``maximum``: NaN wins, -0 < +0.  Integers too."""
    larger = np.maximum(x, y)
    if larger.dtype.kind != "f":
        return larger  # type: ignore[no-any-return]
    return np.where(x == y, np.where(np.signbit(x), y, x), larger)  # numpy leaves the order of zeros open


def ieee_minimum(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    """The smaller element by IEEE 754-2019 ``minimum``: NaN wins, -0 < +0.  Integers too."""
    smaller = np.minimum(x, y)
    if smaller.dtype.kind != "f":
        return smaller  # type: ignore[no-any-return]
    return np.where(x == y, np.where(np.signbit(x), x, y), smaller)


def first_position(mask: NDArray[Any]) -> tuple[int, ...] | None:
    """Index of the first true element in row-major order; None when there is none."""
    if not mask.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def format_position(position: tuple[int, ...]) -> str:
    """`` at [0, 3]``; empty for rank 0."""
    return f" at [{', '.join(map(str, position))}]" if position else ""
