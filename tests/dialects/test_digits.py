"""Split activations and packed weights against independent formulas."""

from __future__ import annotations

import numpy as np
import pytest

from dialects.graph import digits as d
from ir.blocks import dequantize
from ir.diagnostics import GraphError
from ir.opdef import ExecutionError
from ir.types import f32, f64
from tests.digit_programs import FORMATS, random_weights

LIMITS = {1: 120, 2: 30847, 3: 7896959}


def integers(found: np.ndarray) -> np.ndarray:
    """The integers of digits [..., digits, 32]."""
    return (found.astype(np.int64) * (256 ** np.arange(found.shape[-2]))[:, None]).sum(axis=-2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_digits_are_within_half_a_step(count: int) -> None:
    generator = np.random.default_rng(count)
    x = np.float32(generator.standard_normal((50, 96)) * np.exp(generator.uniform(-20, 20, (50, 1))))
    found, scales, sums = d.split_digits(x, digits=count)
    blocks, s = x.reshape(50, 3, 32).astype(np.float64), scales[..., 0].astype(np.float64)
    assert np.abs(integers(found)).max() <= LIMITS[count]
    slack = 0 if count == 3 else 2.0**-23 * np.abs(blocks)  # the quotient is rounded unless it is a power of two
    assert (np.abs(integers(found) * s[..., None] - blocks) <= s[..., None] / 2 + slack).all()
    assert (sums == found.astype(np.int64).sum(axis=-1)).all()
    assert (scales[..., 1] == scales[..., 0] * integers(found).sum(axis=-1).astype(np.float32)).all()


def test_scale_of_three_digits_is_the_next_power_of_two() -> None:
    x = np.zeros((6, 32), np.float32)
    x[:, 7] = [7896959, 7896960, -7896959, 1.0, 3948479.5, 3.4e38]
    _, scales, _ = d.split_digits(x)
    assert scales[:, 0, 0].tolist() == [1.0, 2.0, 1.0, 2.0**-22, 0.5, 2.0**106]


def test_integers_are_exact() -> None:
    x = np.float32(np.random.default_rng(0).integers(-(2**22), 2**22 + 1, (40, 64)))
    found, scales, _ = d.split_digits(x)
    assert (integers(found) * scales[..., :1].astype(np.float64) == x.reshape(40, 2, 32)).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_blocks(count: int) -> None:
    x = np.float32([[0.0] * 32, [1e-45] * 32, [2.0**-100] * 32, [-(2.0**-100)] * 32])
    found, scales, _ = d.split_digits(x, digits=count)
    assert (scales[:, 0, 0] == np.float32(2.0**-100)).all()
    assert integers(found)[:, 0, 0].tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize(("count", "bits"), [(3, 22.91), (2, 15.91), (1, 7.90)])
def test_small_blocks_are_within_their_bound(count: int, bits: float) -> None:
    x = np.float32(np.random.default_rng(4).standard_normal((60, 32)) * 2.0 ** np.arange(-130, -70)[:, None])
    found, scales, _ = d.split_digits(x, digits=count)
    off = np.abs(integers(found)[:, 0] * scales[:, 0, :1].astype(np.float64) - x).max(axis=1)
    bound = np.abs(x).max(axis=1).astype(np.float64) * 2.0**-bits
    assert (off <= np.maximum(bound, 2.0**-101)).all() and (off > bound).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_is_not_finite_makes_its_block_nan(value: float, count: int) -> None:
    x = np.ones((1, 96), np.float32)
    x[0, 40] = value
    found, scales, sums = d.split_digits(x, digits=count)
    assert np.isnan(scales[0, 1]).all() and not found[0, 1].any() and not sums[0, 1].any()
    assert np.isfinite(scales[0, [0, 2]]).all() and found[0, [0, 2]].any()


@pytest.mark.parametrize("format_", FORMATS)
def test_packing_keeps_every_weight(format_: str) -> None:
    weights = random_weights(format_, 70, 96)
    packed = d.pack_rows(weights[:33], weights[33:])
    assert packed.shape == (3, 3, d.FORMATS[format_].bytes) and not packed.shape[2] % 64
    values = dequantize(weights, f32)
    assert np.array_equal(d.packed_embedding(packed, np.arange(-70, 70), rows=70), np.concatenate([values, values]))


@pytest.mark.parametrize("format_", FORMATS)
def test_packed_bytes(format_: str) -> None:
    weights = random_weights(format_, 40, 64)
    packed = d.pack_rows(weights)
    row, block = 37, 1
    part, stored = packed[row // 32, block], weights[row, block]["qs"].view(np.uint8)
    for k in range(32):
        if format_ == "q8_0":
            assert int(part[128 * (k // 4) + 4 * (row % 32) + k % 4]) == int(stored.view(np.int8)[k]) + 128
        else:
            byte = part[128 * (k % 16 // 4) + 4 * (row % 32) + k % 4]
            assert byte == stored[k % 16]
    at = d.FORMATS[format_].numbers + 2 * (row % 32)
    assert part[at : at + 2].tobytes() == weights[row, block]["d"].tobytes()


@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_products_are_within_their_bound(format_: str, count: int, outliers: bool) -> None:
    generator = np.random.default_rng(5)
    weights = random_weights(format_, 40, 128)
    x = np.float32(generator.standard_normal((20, 128)))
    if outliers:
        x *= np.where(generator.random(x.shape) < 0.03, 100, 1).astype(np.float32)
    w = dequantize(weights, f64)
    y = d.digit_linear(*d.split_digits(x, digits=count), d.pack_rows(weights), rows=40)
    largest = np.abs(x).reshape(20, 4, 32).max(axis=-1).astype(np.float64)
    step = {1: 2.0**-7.90, 2: 2.0**-15.90, 3: 2.0**-22.91}[count]
    bound = step * np.einsum("bk,nk->bn", largest, np.abs(w).reshape(40, 4, 32).sum(axis=-1)) + 2.0**-24 * (np.abs(x) @ np.abs(w).T) * 2
    assert (np.abs(y - x.astype(np.float64) @ w.T) <= bound).all()


def test_refused() -> None:
    x, packed = np.zeros((1, 64), np.float32), d.pack_rows(random_weights("q4_1", 40, 64))
    split = d.split_digits(x)
    with pytest.raises(GraphError, match="no multiple of 32"):
        d.split_digits(x[:, :48])
    with pytest.raises(GraphError, match="expected 1, 2 or 3"):
        d.split_digits(x, digits=4)
    with pytest.raises(GraphError, match="rows=65 are 3 panels"):
        d.digit_linear(*split, packed, rows=65)
    with pytest.raises(GraphError, match="digits are 2 blocks"):
        d.digit_linear(*split, d.pack_rows(random_weights("q4_1", 40, 32)), rows=40)
    with pytest.raises(GraphError, match="one element type and width"):
        d.pack_rows(random_weights("q4_1", 40, 64), random_weights("q4_0", 40, 64))
    with pytest.raises(ExecutionError, match=r"embedding index 40 at position \[1\] is out of range"):
        d.packed_embedding(packed, np.array([0, 40]), rows=40)
    with pytest.raises(ExecutionError, match=r"gather index -41 at position \[0\] is out of range"):
        d.packed_embedding(packed, np.array([-41, 0]), rows=40, named="gather")
