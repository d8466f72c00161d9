"""``pack_rows`` by machine code, for when a program is loaded: weights go from the mapped file to their place in one step.

What is compiled is text: loops over the rows of one matrix, which move its words.  The reference body is several times as slow
and needs its results twice.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.runtime.pages import aligned_bytes
from dialects.graph.digits import FORMATS, ROWS, Format, pack_rows
from ir.core import Graph, Operation, Value
from ir.interpreter import Environment, Interpreter
from ir.types import DTYPES, u8

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from graph_opt.executable import Executable

_PROGRAM = """graph @pack(%w: u8[N, B, {block}], %before: u8[F], %packed: memref<u8[P, B, {bytes}]>) {{
  %W = memref.from_tensor(%w) : memref<u8[N, B, {block}]>
  %S = memref.view(%W, offset=0) : memref<{word}[N, B, {count}]>
  %H = memref.view(%W, offset=0) : memref<i16[N, B, {halves}]>
  %T = memref.view(%packed, offset=0) : memref<{word}[P, B, {words_out}]>
  %U = memref.view(%packed, offset=0) : memref<i16[P, B, {halves_out}]>
{constant}  scf.parallel(%p = 0 to P, mapping="threads", work=64*N*B) {{
    scf.for(%r = max(32*%p - F, 0) to min(32*%p - F + 32, N)) {{
      scf.for(%b = 0 to B) {{
{moves}
        yield
      }}
      yield
    }}
    yield
  }}
  return
}}
"""
"""%packed begins at a panel of which F rows are there already."""


def program_text(format_: Format) -> str:
    """The loops that pack the rows of one matrix."""
    halves = DTYPES[format_.dtype].block_bytes // 2
    scales = 1 + format_.minimum
    lane = f"%r + F - {ROWS}*%p"
    wide = halves % 2 == 0  # scales and numbers are whole words of 32 bits
    size = 2 if wide else 1
    moves = []
    for n in range(halves // size - scales // size):
        place = f"{ROWS * n} + {lane}" if wide else f"{2 * ROWS * (n // 2) + n % 2} + 2*({lane})"
        value = f"%v{n}"
        moves.append(f"{value} = memref.load(%S[%r, %b, {n + scales // size}]) : {'i32' if wide else 'i16'}")
        if format_.bits == 8:
            moves.append(f"%u{n} = arith.xori({value}, %signs) : i16")
            value = f"%u{n}"
        moves.append(f"memref.store({value}, %T[%p, %b, {place}])")
    for n in range(scales):
        moves.append(f"%h{n} = memref.load(%H[%r, %b, {n}]) : i16")
        moves.append(f"memref.store(%h{n}, %U[%p, %b, {format_.numbers // 2 + ROWS * n} + {lane}])")
    return _PROGRAM.format(
        block=2 * halves, bytes=format_.bytes, word="i32" if wide else "i16", count=halves // size, halves=halves,
        words_out=format_.bytes // (2 * size), halves_out=format_.bytes // 2,
        constant="  %signs = arith.constant(-32640) : i16\n" if format_.bits == 8 else "",
        moves="\n".join(f"        {line}" for line in moves),
    )  # fmt: skip


@lru_cache(maxsize=2 * len(FORMATS))
def _program(dtype: str, threads: int) -> Executable:
    from graph_opt.api import compile_text

    return compile_text(program_text(FORMATS[dtype]), f"<pack {dtype}>", threads=threads)


_STORED = {DTYPES[name].block_bytes: name for name in FORMATS}


def pack(matrices: Sequence[NDArray[Any]], threads: int = 1, packed: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """The result of ``pack_rows``; in ``packed`` where that is given."""
    rows, dtype = sum(map(len, matrices)), _STORED[matrices[0].itemsize]
    if packed is None:
        packed = np.empty((-(-rows // ROWS), matrices[0].shape[1], FORMATS[dtype].bytes), np.uint8)
    if rows % ROWS:
        packed[-1] = 0  # what no row of a weight gets
    program, first = _program(dtype, threads), 0
    for matrix in matrices:
        stored = np.ascontiguousarray(matrix)
        if stored.size:
            panel, lane = divmod(first, ROWS)
            end = panel + -(-(lane + len(matrix)) // ROWS)
            program(stored.view(np.uint8).reshape(*stored.shape, stored.itemsize), np.empty(lane, np.uint8), packed[panel:end])
        first += len(matrix)
    return packed


def mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The mapped file that an array lies in, if any."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


def let_go(array: NDArray[Any]) -> None:
    """Gives back the memory in which the system holds a mapped array; it is read from the file again if it is needed."""
    mapping = mapping_of(array)
    if mapping is None or not array.flags.c_contiguous or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    start = begin - begin % mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, start, begin + array.nbytes - start)


def unmapped(array: NDArray[Any]) -> NDArray[Any]:
    """An array that needs no file: a copy where it lies in a mapped one, which others may cut off, and which takes memory itself."""
    if mapping_of(array) is None:
        return array
    copy = aligned_bytes(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class LoadTimeInterpreter(Interpreter):
    """The interpreter of graphs that run when a program is loaded: weights are packed by machine code, where they stay."""

    def __init__(self, *args: Any, threads: int = 1, **options: Any) -> None:
        super().__init__(*args, **options)
        self.threads = threads
        self._places: dict[Value, NDArray[Any]] = {}

    def run_into(self, graph: Graph, targets: Sequence[NDArray[Any]]) -> None:
        self._places = dict(zip(graph.results, targets, strict=True))
        super().run_into(graph, targets)

    def run_operation(self, op: Operation, environment: Environment) -> None:
        if op.definition is not pack_rows or self.double:
            super().run_operation(op, environment)
            return
        matrices = [environment.arrays[v] for v in op.operands]
        environment.dtypes[op.result] = u8
        environment.arrays[op.result] = pack(matrices, self.threads, self._places.get(op.result))
        for matrix in matrices:
            let_go(matrix)
