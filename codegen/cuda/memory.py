"""``memref`` operations, ``vector.load`` and ``vector.store``, memory on the chip."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence

import numpy as np

from codegen.cuda.elementwise import unrolled
from codegen.cuda.expressions import NARROW, PRIMARY, Expr, integer, plus, times
from codegen.cuda.indices import as_wide, index_expr
from codegen.cuda.types import C_TYPES, element_constant, in_memory, lanes_of
from codegen.cuda.writer import Buffer, Writer, emits
from codegen.llvm.polynomials import Poly, add, constant, divisor_of, multiply
from dialects._access import block_shape
from ir.core import Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import Dim, product
from ir.evaluate import round_to
from ir.layout import AccessArg, OperandArg, layout_of
from ir.types import DType, MemRefType

ALIGNMENT = 128
"""Bytes to which shared buffers are aligned."""


def place(w: Writer, op: Operation, access: AccessArg, buffer: Buffer) -> tuple[Expr, Poly]:
    """The row-major number of the (first) element of an access, as an expression and for proofs.

    Elements are inside of their buffer, whose size is no number of more than 62 bits: so products need not wrap around, but sums of
    32 bits are taken only where they are proved to be enough.
    """
    total, poly, rows = integer(0), constant(0), constant(1)
    operands = op.operands
    for index, size in zip(access.indices, buffer.shape, strict=True):
        at = index_expr(w, index.expr, operands)
        count = w.space.convert(size)
        rows = multiply(rows, count)
        if total.text != "0":
            most = max(w.space.magnitude(rows), NARROW)
            total = times(total, index_expr(w, size), most)
        total = at if total.text == "0" else total if at.text == "0" else plus(total, at, 2 * max(w.space.magnitude(rows), NARROW))
        poly = add(multiply(poly, count), w.space.convert(index.expr, operands))
    return total, poly


def alignment(w: Writer, buffer: Buffer, poly: Poly) -> int:
    """A power of two that divides the address of an element."""
    divisor = divisor_of(w.space.expand(poly)) * buffer.type.dtype.itemsize
    return min(buffer.align, divisor & -divisor) if divisor else buffer.align


def address(buffer: Buffer, at: Expr) -> str:
    """The address of an element."""
    return buffer.pointer if at.text == "0" else f"{buffer.pointer} + {at.left(3)}"


def _element(buffer: Buffer, at: Expr) -> str:
    return f"{buffer.pointer}[{at.text}]"


def _access(op: Operation, number: int) -> AccessArg:
    access = layout_of(op)[number]
    assert isinstance(access, AccessArg)
    return access


# -- checks ------------------------------------------------------------------------------------------------------------


def check_inside(w: Writer, op: Operation, access: AccessArg, buffer: Buffer, valid: Value | None = None, unless: str = "") -> str:
    """Text for whether an access is inside of its buffer, "" where that is known: proved, or the writer trusts the program.

    What isn't inside is a failure of the program; the thread goes on without the access, as others may wait for it.  ``valid`` is how many
    elements along the last axis are touched; nothing is where the text ``unless`` holds.
    """
    if not w.checked:
        return ""
    kept = ""
    found = []
    last = len(buffer.shape) - 1
    for axis, (part, size) in enumerate(zip(access.indices, buffer.shape, strict=True)):
        start, limit = w.space.convert(part.expr, op.operands), w.space.convert(size)
        count = 1 if part.size is None else part.size
        if w.space.prove(start) and w.space.prove(add(add(limit, start, -1), constant(count), -1)):
            continue
        if valid is not None and not kept:
            most = 1 if access.indices[last].size is None else access.indices[last].size
            text = f"go_max_i64(0, go_min_i64({as_wide(w.value(valid))}, {most}))"
            kept = w.atomic(Expr(text, PRIMARY, 1), "go_index", "touched").text
        at = w.atomic(Expr(as_wide(index_expr(w, part.expr, op.operands)), cost=1), "go_index", "at").text
        touched = kept if kept and axis == last else str(count)
        ok = f"{at} >= 0 && {at} <= {as_wide(index_expr(w, size))} - {touched}"
        free = " || ".join(t for t in (unless, f"{kept} == 0" if kept else "") if t)
        inside = w.token("inside")
        w.line(f"const bool {inside} = {f'{free} || ({ok})' if free else ok};")
        what = "index {0} is" if part.size is None else "elements {0} to {1} are"
        site = w.site(f"{what} outside dimension {axis} of size {{2}}", [buffer.type.shape[axis]])
        w.complain_unless(inside, str(site), at, f"{at} + {touched}")
        found.append(inside)
    return " && ".join(found)


def _if_inside(inside: str, text: str, dtype: DType) -> str:
    """An element that is read, 0 where it is not inside."""
    if not inside:
        return text
    return f"{inside} && {text}" if dtype.kind == "bool" else f"{inside} ? {text} : {element_constant(np.zeros((), dtype.numpy)[()], dtype).text}"


# -- single elements ---------------------------------------------------------------------------------------------------


@emits("memref.load")
def _load(w: Writer, op: Operation) -> None:
    access = _access(op, 0)
    buffer = w.buffer(op.operands[access.position])
    at, _ = place(w, op, access, buffer)
    inside = check_inside(w, op, access, buffer)
    if op.results[0].has_uses:
        w.declare(op.results[0], Expr(_if_inside(inside, f"{_element(buffer, at)}{_as_bool(buffer.type.dtype)}", buffer.type.dtype)))


@emits("memref.store")
def _store(w: Writer, op: Operation) -> None:
    value, access = layout_of(op)
    assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
    buffer = w.buffer(op.operands[access.position])
    at, _ = place(w, op, access, buffer)
    inside = check_inside(w, op, access, buffer)
    w.line(f"{f'if ({inside}) ' if inside else ''}{_element(buffer, at)} = {w.value(op.operands[value.position]).text};")


@emits("memref.prefetch")
def _prefetch(w: Writer, op: Operation) -> None:
    """Nothing: a processor with so many threads waits for memory by running others."""


# -- blocks ------------------------------------------------------------------------------------------------------------


def whole_load(buffer: Buffer, at: Expr, count: int, align: int) -> str:
    """The text that loads neighbours; by one instruction where they are aligned."""
    aligned = "_aligned" if is_aligned(count * buffer.type.dtype.itemsize, align) else ""
    return f"go_load{aligned}<{count}>({address(buffer, at)})"


def is_aligned(size: int, align: int) -> bool:
    """Whether so many bytes are one or more loads of 4, 8 or 16 bytes."""
    return (size in (4, 8, 16) and align >= size) or (size % 16 == 0 and align >= 16)


def _pad(op: Operation, dtype: DType) -> str:
    pad = op.attribute("pad")
    if dtype.is_float:
        rounded = round_to(np.array(float(pad)), dtype)[()]  # type: ignore[arg-type]
        return element_constant(rounded, dtype).text
    text = element_constant(np.array(pad, dtype.numpy)[()], dtype).text
    return f"(go_index)({text})" if dtype.kind == "index" else text


def valid_count(w: Writer, value: Value, count: int) -> str:
    """How many elements are valid; a mark where bounds are marked."""
    text = w.value(value).text
    return f"GO_MARK_VALID({w.mark('valid')}, {text}, {count})" if w.marked else text


@emits("vector.load")
def _vector_load(w: Writer, op: Operation) -> None:
    access = _access(op, 0)
    buffer = w.buffer(op.operands[access.position])
    dtype, result = buffer.type.dtype, op.results[0]
    shape = block_shape(access)
    count = shape[-1] if shape else 1
    at, poly = place(w, op, access, buffer)
    valid = op.operand("valid")
    valid_text = "" if valid is None else valid_count(w, valid, count)

    inside = check_inside(w, op, access, buffer, valid)
    nothing = f"go_vec<{in_memory(dtype)}, {count}>()"

    def row(start: Expr, aligned: int) -> str:
        text = touched_row(start, aligned)
        return f"({inside} ? {text} : {nothing})" if inside else text

    def touched_row(start: Expr, aligned: int) -> str:
        if valid is None:
            return whole_load(buffer, start, count, aligned)
        kind = "_aligned" if is_aligned(count * dtype.itemsize, aligned) else ""
        pad = _pad(op, dtype) if dtype.kind != "bool" else f"(unsigned char){int(bool(op.attribute('pad')))}"
        return f"go_load_valid{kind}<{count}>({address(buffer, start)}, {valid_text}, {pad})"

    rows = math.prod(shape[:-1])
    lanes = lanes_of(result.type)
    if rows == 1 and dtype.kind != "bool":
        w.declare(result, Expr(row(at, alignment(w, buffer, poly)), PRIMARY, 2))
        return
    name = w.token(result.name)
    w.line(f"go_vec<{C_TYPES[dtype.name]}, {lanes}> {name};")
    for number, start, aligned in _rows(w, buffer, shape, at, poly):
        if count == 1 and valid is None:
            w.line(f"{name}[{number}] = {_if_inside(inside, f'{_element(buffer, start)}{_as_bool(dtype)}', dtype)};")
        else:
            _read_row(w, name, number * count, row(start, aligned), dtype, count)
    w.values[result] = Expr(name)


def _as_bool(dtype: DType) -> str:
    """What makes a bool of an element in memory."""
    return " != 0" if dtype.kind == "bool" else ""


def _read_row(w: Writer, name: str, first: int, text: str, dtype: DType, count: int) -> None:
    lane = w.fixed("lane")
    with w.block(""):
        part = w.fixed("part")
        w.line(f"const go_vec<{in_memory(dtype)}, {count}> {part} = {text};")
        with unrolled(w, lane, count):
            w.line(f"{name}[{lane if not first else f'{first} + {lane}'}] = {part}[{lane}]{_as_bool(dtype)};")


def _rows(w: Writer, buffer: Buffer, shape: Sequence[int], at: Expr, poly: Poly) -> list[tuple[int, Expr, int]]:
    """The runs along the last axis of a block: number, place of the first element, alignment."""
    if len(shape) <= 1:
        return [(0, at, alignment(w, buffer, poly))]
    at = w.atomic(at, "go_index", "first")
    strides = [product(buffer.shape[axis + 1 :]) for axis in range(len(shape) - 1)]
    found = []
    for number, position in enumerate(itertools.product(*map(range, shape[:-1]))):
        more: Dim = sum((p * s for p, s in zip(position, strides, strict=True)), 0)
        start = at if more == 0 else plus(at, index_expr(w, more))
        found.append((number, start, alignment(w, buffer, add(poly, w.space.convert(more)))))
    return found


@emits("vector.store")
def _vector_store(w: Writer, op: Operation) -> None:
    value, access = layout_of(op)
    assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
    buffer = w.buffer(op.operands[access.position])
    vector = w.value(op.operands[value.position])
    shape = block_shape(access)
    count = shape[-1] if shape else 1
    at, poly = place(w, op, access, buffer)
    valid = op.operand("valid")
    valid_text = "" if valid is None else valid_count(w, valid, count)
    rows = _rows(w, buffer, shape, at, poly)
    inside = check_inside(w, op, access, buffer, valid)
    with w.block(f"if ({inside})") if inside else contextlib.nullcontext():
        _store_rows(w, buffer, rows, vector, count, valid_text)


def _store_rows(w: Writer, buffer: Buffer, rows: Sequence[tuple[int, Expr, int]], vector: Expr, count: int, valid_text: str) -> None:
    dtype = buffer.type.dtype
    for number, start, aligned in rows:
        kind = "_aligned" if is_aligned(count * dtype.itemsize, aligned) else ""

        def put(text: str, start: Expr = start, kind: str = kind) -> None:
            if not valid_text:
                w.line(f"go_store{kind}({address(buffer, start)}, {text});")
            else:
                w.line(f"go_store_valid{kind}({address(buffer, start)}, {text}, {valid_text});")

        if len(rows) == 1 and dtype.kind != "bool":
            put(vector.text)
            continue
        if count == 1 and not valid_text:
            w.line(f"{_element(buffer, start)} = {vector.text}[{number}];")
            continue
        lane, part = w.fixed("lane"), w.fixed("part")
        with w.block(""):
            w.line(f"go_vec<{in_memory(dtype)}, {count}> {part};")
            first = number * count
            with unrolled(w, lane, count):
                w.line(f"{part}[{lane}] = {vector.text}[{lane if not first else f'{first} + {lane}'}];")
            put(part)


# -- buffers -----------------------------------------------------------------------------------------------------------


@emits("memref.dim")
def _dim(w: Writer, op: Operation) -> None:
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    type_ = op.operands[0].type
    assert isinstance(type_, MemRefType)
    w.space.describe(op.results[0], w.space.convert(type_.shape[axis]))
    w.result(op, index_expr(w, type_.shape[axis]))


@emits("memref.is_aligned")
def _is_aligned(w: Writer, op: Operation) -> None:
    w.result(op, Expr("false"))


@emits("memref.reshape")
def _reshape(w: Writer, op: Operation) -> None:
    old = w.buffer(op.operands[0])
    type_ = op.results[0].type
    assert isinstance(type_, MemRefType)
    w.buffers[op.results[0]] = Buffer(old.pointer, type_, type_.shape, old.align, old.readonly)


@emits("memref.view")
def _view(w: Writer, op: Operation) -> None:
    result = op.results[0]
    if not result.has_uses:
        return
    old, offset = w.buffer(op.operands[0]), op.attributes["offset"]
    type_ = result.type
    assert isinstance(type_, MemRefType)
    start = index_expr(w, offset)  # type: ignore[arg-type]
    poly = w.space.convert(offset)  # type: ignore[arg-type]
    size = w.space.convert(product((*type_.shape, type_.dtype.itemsize)))
    total = w.space.convert(product(old.shape))
    if w.checked and not (w.space.prove(poly) and w.space.prove(add(add(total, poly, -1), size, -1))):
        raise GraphError(Diagnostic(f"memref.view: codegen: it isn't known that {type_} is inside of {old.type}", op.loc))
    name = w.token(result.name)
    const = "const " if old.readonly else ""
    item = in_memory(type_.dtype)
    w.line(f"{const}{item} *{name} = ({const}{item} *)({address(old, start)});")
    bytes_ = Buffer(old.pointer, MemRefType(old.type.dtype, ()), (), old.align)
    w.buffers[result] = Buffer(name, type_, type_.shape, alignment(w, bytes_, poly), old.readonly)


def static_count(type_: MemRefType) -> int:
    """Elements of a buffer of static shape."""
    count = product(type_.shape)
    assert isinstance(count, int)
    return count


@emits("gpu.alloc")
def _alloc(w: Writer, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, MemRefType)
    count = static_count(type_)
    item = in_memory(type_.dtype)
    name = w.token(op.results[0].name)
    if type_.space == "local":
        w.line(f"alignas(16) {item} {name}[{max(count, 1)}];")
        w.buffers[op.results[0]] = Buffer(name, type_, type_.shape, 16)
        return
    start = w.shared(op, count * type_.dtype.itemsize)
    shape = ", ".join(map(str, type_.shape))
    w.line(f"{item} *{name} = ({item} *)({w.fixed('shared')}{f' + {start}' if start else ''});  // [{shape}]")
    w.buffers[op.results[0]] = Buffer(name, type_, type_.shape, ALIGNMENT)
