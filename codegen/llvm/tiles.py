"""Tiles in registers of their own: AMX of x86.

Loads of tiles (:mod:`dialects._tiles`) fill such a register from memory, row by row, and stores write it.  LLVM's code generator numbers
the registers and configures their shapes; they live in one block of code.
"""

from __future__ import annotations

import platform

from codegen.llvm.helpers import X86
from codegen.llvm.writer import Writer
from dialects._tiles import tile_shape
from ir.core import Operation, Value
from ir.types import VectorType

TILE = "x86_amx"
"""LLVM's type of a tile."""

FEATURE = "amx-int8"
"""What a processor with products of tiles of bytes has, by LLVM's name."""


def in_tiles(w: Writer, op: Operation) -> bool:
    """Whether a load, store or product is one of tiles, on a processor that has them.

    A function has tiles of the shapes of its first product alone: its registers are configured once, and LLVM does not return when they
    don't suffice for all shapes.
    """
    if FEATURE not in w.unit.features or platform.machine().lower() not in X86:
        return False
    shape = tile_shape(op)
    if shape is not None and w.tile_shape is None:
        w.tile_shape = shape
    return shape is not None and shape == w.tile_shape


def matrix_shape(value: Value) -> tuple[int, int]:
    """Rows of a matrix, and words in a row."""
    assert isinstance(value.type, VectorType)
    rows, words = value.type.shape
    return rows, words


def load_tile(w: Writer, op: Operation, pointer: str, stride: str) -> None:
    """The result of an operation: rows that are so many bytes apart, as a tile."""
    rows, words = matrix_shape(op.results[0])
    function = w.unit.declare(TILE, "llvm.x86.tileloadd64.internal", "i16", "i16", "ptr", "i64")
    w.result(op, f"call {TILE} {function}(i16 {rows}, i16 {4 * words}, ptr {pointer}, i64 {stride})")


def store_tile(w: Writer, value: Value, pointer: str, stride: str) -> None:
    """A tile to rows that are so many bytes apart."""
    rows, words = matrix_shape(value)
    function = w.unit.declare("void", "llvm.x86.tilestored64.internal", "i16", "i16", "ptr", "i64", TILE)
    w.line(f"call void {function}(i16 {rows}, i16 {4 * words}, ptr {pointer}, i64 {stride}, {TILE} {w.name(value)})")


def multiply_tiles(w: Writer, op: Operation) -> None:
    """The result of ``vector.dot4``."""
    a, b = (u.value for u in op.operand_uses)
    (rows, words), (_, columns) = matrix_shape(a), matrix_shape(b)
    zero = w.unit.declare(TILE, "llvm.x86.tilezero.internal", "i16", "i16")
    product = w.unit.declare(TILE, "llvm.x86.tdpbsud.internal", "i16", "i16", "i16", TILE, TILE, TILE)
    none = w.set(f"call {TILE} {zero}(i16 {rows}, i16 {4 * columns})")
    shape = f"i16 {rows}, i16 {4 * columns}, i16 {4 * words}"
    w.result(op, f"call {TILE} {product}({shape}, {TILE} {none}, {TILE} {w.name(a)}, {TILE} {w.name(b)})")
