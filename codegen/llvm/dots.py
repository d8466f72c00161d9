"""``arith.dot4``, ``vector.dot4`` and ``arith.add4``: the instructions that processors have for it, and what does the same where there are none.

A vector is cut into pieces of the widest register that has an instruction.  All forms give the same bits: sums of products of
bytes are exact, and wrap around where 32 bits do.  ``vpmaddubsw`` adds two products in 16 bits and saturates, so it is for operations
that promise bytes below 128 (``small``): 2 * 127 * 128 is below 2**15.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection
from dataclasses import dataclass

from codegen.llvm.helpers import X86
from codegen.llvm.memory import join
from codegen.llvm.operands import operands, result_lanes
from codegen.llvm.tiles import in_tiles, matrix_shape, multiply_tiles
from codegen.llvm.types import vector_of
from codegen.llvm.writer import Writer, emits
from ir.core import Operation

Dot = Callable[[Writer, str, str, str, int], str]
"""x, y and what is added to, as vectors of so many i32; gives the sums."""


@dataclass(frozen=True)
class Form:
    """Instructions for vectors of ``lanes`` i32, on processors that have all of ``features``; ``small`` ones for bytes of x below 128."""

    features: Collection[str]
    lanes: int
    dot: Dot
    small: bool = False


def _byte_sums(w: Writer, x: str, y: str, acc: str, lanes: int) -> str:
    """``vpdpbusd``."""
    vector = vector_of("i32", lanes)  # LLVM 22 has bytes as operands, and still takes what was before
    function = w.unit.declare(vector, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", vector, vector, vector)
    return w.set(f"call {vector} {function}({vector} {acc}, {vector} {x}, {vector} {y})")


_PAIRS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


def _pair_sums(w: Writer, x: str, y: str, acc: str, lanes: int) -> str:
    """``vpmaddwd`` of the even bytes, and of the odd ones: two products of 16 bits each, which 32 bits hold."""
    vector, words = vector_of("i32", lanes), vector_of("i16", 2 * lanes)
    function = w.unit.declare(vector, _PAIRS[lanes], words, words)
    eight, low = w.splat("8", "i16", 2 * lanes), w.splat("255", "i16", 2 * lanes)
    x, y = (w.set(f"bitcast {vector} {v} to {words}") for v in (x, y))
    even_x, odd_x = w.set(f"and {words} {x}, {low}"), w.set(f"lshr {words} {x}, {eight}")
    even_y = w.set(f"ashr {words} {w.set(f'shl {words} {y}, {eight}')}, {eight}")
    odd_y = w.set(f"ashr {words} {y}, {eight}")
    even = w.set(f"call {vector} {function}({words} {even_x}, {words} {even_y})")
    odd = w.set(f"call {vector} {function}({words} {odd_x}, {words} {odd_y})")
    return w.set(f"add {vector} {w.set(f'add {vector} {even}, {odd}')}, {acc}")


_NARROW_PAIRS = {4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}


def _small_sums(w: Writer, x: str, y: str, acc: str, lanes: int) -> str:
    """``vpmaddubsw``, whose pairs ``vpmaddwd`` adds."""
    vector, words, narrow = vector_of("i32", lanes), vector_of("i16", 2 * lanes), vector_of("i8", 4 * lanes)
    pairs = w.unit.declare(words, _NARROW_PAIRS[lanes], narrow, narrow)
    sums = w.unit.declare(vector, _PAIRS[lanes], words, words)
    x, y = (w.set(f"bitcast {vector} {v} to {narrow}") for v in (x, y))
    both = w.set(f"call {words} {pairs}({narrow} {x}, {narrow} {y})")
    return w.set(f"add {vector} {w.set(f'call {vector} {sums}({words} {both}, {words} ' + w.splat('1', 'i16', 2 * lanes) + ')')}, {acc}")


def _mixed_sums(w: Writer, x: str, y: str, acc: str, lanes: int) -> str:
    """``usdot``."""
    return _neon(w, "usdot", acc, x, y)


def _signed_sums(w: Writer, x: str, y: str, acc: str, lanes: int) -> str:
    """``sdot`` of x - 128, which has a sign, and of -128, which is taken away again."""
    less = w.set(f"xor <4 x i32> {x}, {w.splat('-2139062144', 'i32', 4)}")  # 0x80 in every byte
    low = _neon(w, "sdot", w.splat("0", "i32", 4), w.splat("-2139062144", "i32", 4), y)
    return w.set(f"sub <4 x i32> {_neon(w, 'sdot', acc, less, y)}, {low}")


def _small_signed_sums(w: Writer, x: str, y: str, acc: str, lanes: int) -> str:
    """``sdot`` of bytes that are the same with a sign."""
    return _neon(w, "sdot", acc, x, y)


def _neon(w: Writer, name: str, acc: str, x: str, y: str) -> str:
    """A dot product of 16 bytes by 16."""
    function = w.unit.declare("<4 x i32>", f"llvm.aarch64.neon.{name}.v4i32.v16i8", "<4 x i32>", "<16 x i8>", "<16 x i8>")
    x, y = (w.set(f"bitcast <4 x i32> {v} to <16 x i8>") for v in (x, y))
    return w.set(f"call <4 x i32> {function}(<4 x i32> {acc}, <16 x i8> {x}, <16 x i8> {y})")


_X86 = (
    Form(("avx512vnni",), 16, _byte_sums),
    Form(("avx512bw",), 16, _small_sums, small=True),
    Form(("avx512bw",), 16, _pair_sums),
    Form(("avx512vnni", "avx512vl"), 8, _byte_sums),
    Form(("avxvnni",), 8, _byte_sums),
    Form(("avx2",), 8, _small_sums, small=True),
    Form(("avx2",), 8, _pair_sums),
    Form(("avx512vnni", "avx512vl"), 4, _byte_sums),
    Form(("avxvnni",), 4, _byte_sums),
    Form(("ssse3",), 4, _small_sums, small=True),
    Form(("sse2",), 4, _pair_sums),
)
_ARM = (Form(("i8mm",), 4, _mixed_sums), Form(("dotprod",), 4, _small_signed_sums, small=True), Form(("dotprod",), 4, _signed_sums))
"""The best ones first."""


def forms(features: Collection[str], machine: str, small: bool = False) -> list[Form]:
    """What a processor with these features has, one for each width, the widest first; with ``small`` for bytes of x below 128."""
    found: dict[int, Form] = {}
    for form in _X86 if machine.lower() in X86 else _ARM:
        if (small or not form.small) and all(f in features for f in form.features):
            found.setdefault(form.lanes, form)
    return list(found.values())


@emits("arith.dot4")
def _dot4(w: Writer, op: Operation) -> None:
    x, y, acc = operands(w, op)
    w.names[op.results[0]] = dot_of_lanes(w, x, y, acc, result_lanes(op), op.attribute("small") is True)


@emits("arith.add4")
def _add4(w: Writer, op: Operation) -> None:
    x, y = operands(w, op)
    lanes = result_lanes(op)
    words, narrow = vector_of("i32", lanes), vector_of("i8", 4 * max(lanes, 1))
    x, y = (w.set(f"bitcast {words} {v} to {narrow}") for v in (x, y))
    w.names[op.results[0]] = w.set(f"bitcast {narrow} {w.set(f'add {narrow} {x}, {y}')} to {words}")


@emits("vector.dot4")
def _matrix4(w: Writer, op: Operation) -> None:
    if in_tiles(w, op):
        multiply_tiles(w, op)
        return
    a, b = (u.value for u in op.operand_uses)
    (rows, words), (_, columns) = matrix_shape(a), matrix_shape(b)
    lines = [w.shuffle(w.name(b), "i32", words * columns, range(n * columns, (n + 1) * columns)) for n in range(words)]
    found = []
    for row in range(rows):
        total = w.splat("0", "i32", columns)
        for word, line in enumerate(lines):
            four = w.shuffle(w.name(a), "i32", rows * words, [row * words + word] * columns)
            total = dot_of_lanes(w, line, four, total, columns)
        found.append(total)
    w.names[op.results[0]] = join(w, found, "i32", columns)


def dot_of_lanes(w: Writer, x: str, y: str, acc: str, lanes: int, small: bool = False) -> str:
    """``arith.dot4`` of vectors of so many lanes (0 for scalars)."""
    pieces, at = [], 0
    for form in forms(w.unit.features, platform.machine(), small):
        while lanes - at >= form.lanes:
            a, b, total = (_part(w, v, lanes, at, form.lanes) for v in (x, y, acc))
            pieces.append((form.dot(w, a, b, total, form.lanes), form.lanes))
            at += form.lanes
    if at < lanes or not lanes:
        a, b, total = (_part(w, v, lanes, at, lanes - at) for v in (x, y, acc))
        pieces.append((_plain(w, a, b, total, lanes - at), lanes - at))
    return _joined(w, pieces, lanes)


def _plain(w: Writer, x: str, y: str, acc: str, lanes: int) -> str:
    """Shifts, products and sums of 32 bits."""
    vector = vector_of("i32", lanes)
    top, total = w.splat("24", "i32", lanes), acc
    for left in (24, 16, 8, 0):
        count = w.splat(str(left), "i32", lanes)
        a = w.set(f"lshr {vector} {w.set(f'shl {vector} {x}, {count}')}, {top}")
        b = w.set(f"ashr {vector} {w.set(f'shl {vector} {y}, {count}')}, {top}")
        total = w.set(f"add {vector} {total}, {w.set(f'mul {vector} {a}, {b}')}")
    return total


def _part(w: Writer, text: str, lanes: int, at: int, count: int) -> str:
    """So many lanes from a place on."""
    return text if count == lanes else w.shuffle(text, "i32", lanes, list(range(at, at + count)))


def _joined(w: Writer, pieces: list[tuple[str, int]], lanes: int) -> str:
    """The pieces behind each other; none is wider than what is in front of it."""
    total, at = pieces[0]
    for text, count in pieces[1:]:
        wide = w.shuffle(text, "i32", count, [*range(count), *([0] * (at - count))])
        mask = ", ".join(f"i32 {n}" for n in range(at + count))
        both = vector_of("i32", at)
        total = w.set(f"shufflevector {both} {total}, {both} {wide}, <{at + count} x i32> <{mask}>")
        at += count
    return total
