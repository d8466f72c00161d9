"""Products with block-quantized weights: activations as exact int8 digits, weights packed in the order in which they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dialects.graph._shapes import require_rank
from dialects.graph.indexing import checked_indices
from ir.dims import Dim, UnknownDim, ceildiv, compatible, exact_div
from ir.opdef import Blocks, Float, Integer, Tensor, TypeProblem, op
from ir.types import TensorType, f32, i8, i32, u8

BLOCK = 32
"""Elements of a row that share a scale."""
WORDS = BLOCK // 4
"""Words of four digits in a block."""
ROWS = 32
"""Rows of a panel: what is packed together."""
HIGHEST = 120
"""The largest magnitude of the highest digit of an integer: with a weight of 4 bits added, it is still a byte."""
LARGEST = {n + 1: (HIGHEST << 8 * n) + sum(127 << 8 * m for m in range(n)) for n in range(3)}
"""The largest integer that is split into so many digits, the lower of which are -128 to 127: 120, 30847 and 7896959."""
LEAST_SCALE = 2.0**-100
"""The smallest scale, that of a block of zeros: its product with the smallest f16 is no denormal, which would be slow."""
_INFINITY = 0x7F800000


# -- digits ------------------------------------------------------------------------------------------------------------


def _infer_split(x: TensorType, digits: int) -> tuple[TensorType, TensorType, TensorType]:
    require_rank(x, "x", at_least=1)
    if x.dtype != f32:
        raise TypeProblem(f"expected f32, found {x}", operand="x")
    if digits not in LARGEST:
        raise TypeProblem(f"digits={digits}: expected 1, 2 or 3", attribute="digits")
    blocks = _blocks_of(x.shape[-1], x)
    front = (*x.shape[:-1], blocks)
    return TensorType(i8, (*front, digits, BLOCK)), TensorType(f32, (*front, 2)), TensorType(i32, (*front, digits))


def _blocks_of(size: Dim, x: TensorType) -> Dim:
    blocks = size if isinstance(size, UnknownDim) else exact_div(size, BLOCK)
    if blocks is None:
        raise TypeProblem(f"the last dimension of {x} is no multiple of {BLOCK}", operand="x")
    return blocks


@op(infer=_infer_split)
def split_digits(x: Float, *, digits: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks of 32 floats as integers of 1, 2 or 3 digits of 8 bits, and a scale for each block.

    For ``x`` of ``[..., K]``, K a multiple of 32, the results are

    * ``i8[..., K/32, digits, 32]``: digit t of every element, the lowest first, each from -128 to 127, the highest from -120 to 120.
      The integer of an element is X = d0 + 256 * d1 + 65536 * d2, the nearest one to x / s (ties to even);
    * ``f32[..., K/32, 2]``: the scale s, and s times the sum of the block's integers (rounded to f32 first);
    * ``i32[..., K/32, digits]``: the sum of every digit over the block.

    With m the largest magnitude of a block, s is the smallest power of two that is not below m / 7896959 for three digits; m / 30847
    for two; m / 120 for one, both rounded to f32 (and x is multiplied by the rounded quotient the other way round).  So an element is
    off by at most s / 2: by m * 2^-22.91 with three digits, m * 2^-15.91 with two, m * 2^-7.90 with one (the last two to 2^-23 of x
    besides).  Three digits keep integers below 2^22 exact, as a scale that is no power of two would not.

    s is never below 2^-100: with m below 7896959 * 2^-100 = 2^-77.1 (30847 * 2^-100 = 2^-85.1, 120 * 2^-100 = 2^-93.1), multiples of
    2^-100 remain, and an element is off by at most 2^-101 instead.  Where a block has a NaN or an infinity, its digits and sums are 0
    and its scale and total are NaN: so is every number that is made of it.

    Example::

        graph @example(%x: f32[B, 64]) -> (i8[B, 2, 3, 32], f32[B, 2, 2], i32[B, 2, 3]) {
          %d, %s, %t = split_digits(%x)
          return %d, %s, %t
        }

    Example, with two digits::

        graph @example(%x: f32[32]) -> (i8[1, 2, 32], f32[1, 2], i32[1, 2]) {
          %d, %s, %t = split_digits(%x, digits=2)
          return %d, %s, %t
        }
    """
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    magnitude = (np.ascontiguousarray(blocks).view(np.int32) & np.int32(0x7FFFFFFF)).max(axis=-1)
    finite = magnitude < _INFINITY
    limit = np.float32(LARGEST[digits])
    bits = np.where(finite, magnitude, 0).astype(np.int32)
    largest: NDArray[np.float32] = np.maximum(bits.view(np.float32), limit * np.float32(LEAST_SCALE))
    scale: NDArray[np.float32] = _power_above(largest) if digits == 3 else largest / limit
    factor: NDArray[np.float32] = np.where(finite, np.float32(1.0) / scale if digits == 3 else limit / largest, np.float32(0.0))
    integers = np.where(finite[..., None], np.rint(blocks * factor[..., None]), np.float32(0.0)).astype(np.int32)
    found = np.stack([_digit(integers, t) for t in range(digits)], axis=-2)
    scale = np.where(finite, scale, np.float32(np.nan))
    total = scale * integers.sum(axis=-1, dtype=np.int32).astype(np.float32)
    return found, np.stack([scale, total], axis=-1), found.sum(axis=-1, dtype=np.int32)


def _power_above(largest: NDArray[np.float32]) -> NDArray[np.float32]:
    """The smallest power of two that is not below ``largest / LARGEST[3]``, by its bits."""
    up, down = POWER_STEPS
    return ((largest.view(np.int32) + np.int32(up) & np.int32(_INFINITY)) - np.int32(down)).view(np.float32)


def _power_steps() -> tuple[int, int]:
    """What is added to the bits of m, so that cutting off the fraction rounds up beyond the fraction of 7896959; what is subtracted then."""
    bits = int(np.array(LARGEST[3], np.float32).view(np.int32))
    fraction, exponent = bits & 0x7FFFFF, (bits >> 23) - 127
    return 0x7FFFFF - fraction, exponent << 23


POWER_STEPS = _power_steps()
"""How the bits of a float become those of the scale of three digits: the first is added, the fraction is cut off, the second is subtracted."""


def _digit(integers: NDArray[np.int32], number: int) -> NDArray[np.int8]:
    """A digit of balanced integers: the lower digits are from -128 to 127 each, so what they leave is rounded."""
    half = sum(128 << 8 * n for n in range(number))
    return (integers + np.int32(half) >> np.int32(8 * number)).astype(np.int8)


# -- packed weights ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """How a block of 32 rows by 32 elements is packed: numbers, then a scale for every row, then a minimum if there is one.

    Numbers are unsigned: 4 bits, or 8 bits to which 128 is added.  Value of a number q: ``d * (q - offset)``, or ``d * q + m``.
    """

    dtype: str
    bits: int
    offset: int
    minimum: bool

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return ROWS * (BLOCK * self.bits // 8 + 2 + 2 * self.minimum)

    @property
    def numbers(self) -> int:
        """Bytes of the numbers, which are in front."""
        return ROWS * BLOCK * self.bits // 8


FORMATS = {f.dtype: f for f in (Format("q4_0", 4, 8, False), Format("q4_1", 4, 0, True), Format("q8_0", 8, 128, False))}
BY_BYTES = {f.bytes: f for f in FORMATS.values()}
"""Formats by the bytes of a block, by which packed weights are known."""


def packed_format(packed: TensorType) -> Format:
    """The format of packed weights.  Raises TypeProblem where it is none."""
    require_rank(packed, "packed", exactly=3)
    found = BY_BYTES.get(packed.shape[2]) if isinstance(packed.shape[2], int) else None
    if packed.dtype != u8 or found is None:
        sizes = ", ".join(f"{b} ({f.dtype})" for b, f in BY_BYTES.items())
        raise TypeProblem(f"expected u8[panels, blocks, bytes] with bytes {sizes}, found {packed}", operand="packed")
    return found


def _infer_pack(*ws: TensorType) -> TensorType:
    rows: Dim = 0
    for w in ws:
        require_rank(w, "ws", exactly=2)
        if w.dtype.name not in FORMATS:
            raise TypeProblem(f"expected a matrix of {', '.join(FORMATS)}, found {w}", operand="ws")
        if w.dtype != ws[0].dtype or not compatible(w.shape[1], ws[0].shape[1]):
            raise TypeProblem(f"weights that are packed together have one element type and width, found {ws[0]} and {w}", operand="ws")
        rows = rows + w.shape[0]
    if not ws:
        raise TypeProblem("expected one weight or more")
    return TensorType(u8, (ceildiv(rows, ROWS), _blocks_of(ws[0].shape[1], ws[0]), FORMATS[ws[0].dtype.name].bytes))


@op(infer=_infer_pack, exact_bits=True)
def pack_rows(*ws: Blocks) -> Tensor:
    """Matrices of block-quantized weights, one below the other, in the order in which products read them.

    The weights ``[N0, K]``, ``[N1, K]``, ... have one element type, q4_0, q4_1 or q8_0.  The result is ``u8[panels, K/32, bytes]``: a
    panel is 32 rows of all of them (zeros behind the last), and of a panel and 32 elements of K there are, without gaps,

    * the numbers, word by word: four bytes of row 0, four bytes of row 1, and so on.  For q4_0 and q4_1 a row has four words; byte i
      of word j has element 4*j + i in its low half and element 16 + 4*j + i in its high half, as in the file.  For q8_0 it has
      eight, and byte i of word j is element 4*j + i plus 128;
    * 32 scales in f16;
    * 32 minimums in f16 for q4_1.

    That are 576 bytes for q4_0, 640 for q4_1 and 1088 for q8_0, all multiples of 64; no bit of a weight is changed.

    Example::

        graph @example(%q: q4_1[24, 64], %k: q4_1[16, 64]) -> u8[2, 2, 640] {
          %p = pack_rows(%q, %k)
          return %p
        }

    Example, of one matrix::

        graph @example(%w: q8_0[32, 32]) -> u8[1, 1, 1088] {
          %p = pack_rows(%w)
          return %p
        }
    """
    rows = np.concatenate(ws)
    count, blocks = rows.shape
    panels = -(-count // ROWS)
    names = rows.dtype.names or ()
    stored = rows["qs"]
    if stored.dtype == np.int8:
        stored = stored.view(np.uint8) ^ np.uint8(0x80)
    words = np.zeros((panels * ROWS, blocks, stored.shape[-1] // 4), "<u4")
    words[:count] = np.ascontiguousarray(stored).view("<u4")
    turned = np.ascontiguousarray(words.reshape(panels, ROWS, blocks, words.shape[-1]).transpose(0, 2, 3, 1))
    parts = [turned.reshape(panels, blocks, ROWS * words.shape[-1]).view(np.uint8)]
    for name in (n for n in ("d", "m") if n in names):
        halves = np.zeros((panels * ROWS, blocks), "<f2")
        halves[:count] = rows[name]
        parts.append(np.ascontiguousarray(halves.reshape(panels, ROWS, blocks).transpose(0, 2, 1)).view(np.uint8))
    return np.concatenate(parts, axis=-1)


def unpack_rows(packed: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Numbers ``[panels * 32, blocks, 32]`` as they are multiplied by the scales, scales and minimums ``[panels * 32, blocks]``."""
    format_ = BY_BYTES[packed.shape[2]]
    panels, blocks = packed.shape[:2]
    stored = packed[..., : format_.numbers].reshape(panels, blocks, -1, ROWS, 4).transpose(0, 3, 1, 2, 4).reshape(panels * ROWS, blocks, -1)
    numbers = stored if format_.bits == 8 else np.concatenate([stored & 15, stored >> 4], axis=-1)

    def halves(at: int) -> NDArray[np.float64]:
        found = np.ascontiguousarray(packed[..., at : at + 2 * ROWS]).view("<f2").astype(np.float64)
        return found.transpose(0, 2, 1).reshape(panels * ROWS, blocks)

    scales = halves(format_.numbers)
    minimums = halves(format_.numbers + 2 * ROWS) if format_.minimum else np.zeros_like(scales)
    return numbers.astype(np.int32) - format_.offset, scales, minimums


# -- products ----------------------------------------------------------------------------------------------------------


def _check_rows(packed: TensorType, rows: int) -> None:
    if rows < 0 or not compatible(packed.shape[0], ceildiv(rows, ROWS)):
        raise TypeProblem(f"rows={rows} are {ceildiv(max(rows, 0), ROWS)} panels, packed is {packed}", attribute="rows")


def _infer_digit_linear(digits: TensorType, scales: TensorType, sums: TensorType, packed: TensorType, rows: int) -> TensorType:
    packed_format(packed)
    _check_rows(packed, rows)
    require_rank(digits, "digits", at_least=3)
    front = digits.shape[:-2]
    count = digits.shape[-2]
    if digits.dtype != i8 or digits.shape[-1] != BLOCK or count not in LARGEST:
        raise TypeProblem(f"expected digits of split_digits, i8[..., K/32, 1 to 3, 32], found {digits}", operand="digits")
    for name, found, dtype, last in (("scales", scales, f32, 2), ("sums", sums, i32, count)):
        expected = TensorType(dtype, (*front, last))
        if found.dtype != dtype or found.rank != expected.rank or not all(map(compatible, found.shape, expected.shape)):
            raise TypeProblem(f"expected {expected} for digits {digits}, found {found}", operand=name)
    if not compatible(front[-1], packed.shape[1]):
        raise TypeProblem(f"digits are {front[-1]} blocks, packed rows {packed.shape[1]}", operand="packed")
    return TensorType(f32, (*front[:-1], rows))


@op(infer=_infer_digit_linear)
def digit_linear(digits: Integer, scales: Float, sums: Integer, packed: Integer, *, rows: int) -> Tensor:
    """Products of split activations with packed weights: ``x @ W^T`` of x = s * X.

    ``digits``, ``scales`` and ``sums`` are what ``split_digits`` gives for ``x[..., K]``, ``packed`` what ``pack_rows`` gives for
    ``rows`` rows of weights; the result is ``f32[..., rows]``:

        y[..., n] = sum over blocks b of  d[n, b] * s[b] * (sum over k of (q[n, k] - offset) * X[k])  +  m[n, b] * (s * sum X)[b]

    with offset 8 for q4_0, 0 for q4_1 and 128 for q8_0 (as packed).  The sums of integers are exact.  Here they are joined in float64 and rounded
    once; machine code does it in f32, block after block: with i0, i1, i2 the exact sums of each digit,

        f = fma(float((i2 << 8) + i1), 256, float(i0))
        y = fma(d * s, f, y);  y = fma(m, s * sum X, y)

    which is 6 roundings a block; so y is within (6 + K/32 * 2) * 2^-24 of the sum of magnitudes of what is added, and a row has the same bits
    whatever the other rows are.  Next to x @ W^T there is the error of ``split_digits`` besides.

    Near the limits of f32 there may be infinities and NaNs where x @ W^T is finite, as d * q and m are multiplied by x apart, m by a sum of
    32: so 3.4e38 times the weight -0.1 = 0.1 * 15 - 1.6 is an infinity.  There are none where the sum of abs(x) in every block, and the
    sum over k of (abs(d * (q - offset)) + abs(m)) * abs(x[k]), are below 2^126, and elements of x below 2^118.  That is so for
    all finite weights if the sum over k of abs(x[k]) is below 2^102 = 5e30.

    Example::

        graph @example(%x: f32[B, 64], %w: q4_1[40, 64]) -> f32[B, 40] {
          %d, %s, %t = split_digits(%x)
          %p = pack_rows(%w)
          %y = digit_linear(%d, %s, %t, %p, rows=40)
          return %y
        }

    Example, a row and bytes::

        graph @example(%x: f32[32], %w: q8_0[3, 32]) -> f32[3] {
          %d, %s, %t = split_digits(%x, digits=1)
          %p = pack_rows(%w)
          %y = digit_linear(%d, %s, %t, %p, rows=3)
          return %y
        }
    """
    numbers, d, m = unpack_rows(packed)
    weights = np.array([1 << 8 * t for t in range(digits.shape[-2])], np.int64)
    integers = (digits.astype(np.int64) * weights[:, None]).sum(axis=-2)  # [..., blocks, 32]
    products = np.einsum("...bk,nbk->...nb", integers.astype(np.float64), numbers.astype(np.float64))  # below 2**53
    found: Tensor = (d * scales[..., None, :, 0] * products).sum(axis=-1)
    if BY_BYTES[packed.shape[2]].minimum:
        found = found + np.einsum("nb,...b->...n", m, scales[..., 1])
    return found[..., :rows]


def _infer_packed_linear(x: TensorType, packed: TensorType, rows: int) -> TensorType:
    packed_format(packed)
    _check_rows(packed, rows)
    require_rank(x, "x", at_least=1)
    if x.dtype != f32:
        raise TypeProblem(f"expected f32, found {x}", operand="x")
    if not compatible(_blocks_of(x.shape[-1], x), packed.shape[1]):
        raise TypeProblem(f"'x' is {x}, packed rows are {packed.shape[1]} blocks of {BLOCK}", operand="packed")
    return TensorType(f32, (*x.shape[:-1], rows))


@op(infer=_infer_packed_linear)
def packed_linear(x: Float, packed: Integer, *, rows: int) -> Tensor:
    """Products of floats with packed weights, which become floats first: ``x @ W^T``.

    ``packed`` is what ``pack_rows`` gives for ``rows`` rows of weights; the result is ``f32[..., rows]``.  A weight is d * (q - offset)
    or d * q + m, rounded to f32.  Machine code adds in the order of a matrix product: one chain of multiply-adds over ascending k.

    Example::

        graph @example(%x: f32[B, 64], %w: q4_0[40, 64]) -> f32[B, 40] {
          %p = pack_rows(%w)
          %y = packed_linear(%x, %p, rows=40)
          return %y
        }
    """
    table = packed_values(packed)[:rows]
    return np.asarray(np.matmul(x, np.swapaxes(table, 0, 1)))


def packed_values(packed: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The rows of packed weights, rounded to f32, and those that pad them."""
    numbers, d, m = unpack_rows(packed)
    with np.errstate(all="ignore"):
        values = d[..., None] * numbers
        if BY_BYTES[packed.shape[2]].minimum:
            values = values + m[..., None]
    return values.reshape(len(values), -1).astype(np.float32).astype(np.float64)


def _infer_packed_embedding(packed: TensorType, ids: TensorType, rows: int, named: str) -> TensorType:
    packed_format(packed)
    _check_rows(packed, rows)
    return TensorType(f32, (*ids.shape, packed.shape[1] * BLOCK))


@op(infer=_infer_packed_embedding, traps=True)
def packed_embedding(packed: Integer, ids: Integer, *, rows: int, named: Literal["embedding", "gather"] = "embedding") -> Tensor:
    """Rows of packed weights that the ids name, as floats: ``embedding`` of the table that ``pack_rows`` has packed.

    The table has ``rows`` rows.  An id outside -rows to rows-1 (negative ones count from the end) is an error that names its position and
    value, and what the operation was ``named`` before.  A value is d * (q - offset) or d * q + m, rounded to f32.

    Example::

        graph @example(%table: q8_0[40, 64], %ids: i64[S]) -> f32[S, 64] {
          %p = pack_rows(%table)
          %y = packed_embedding(%p, %ids, rows=40)
          return %y
        }
    """
    return packed_values(packed)[checked_indices(named, ids, rows, 0)]
