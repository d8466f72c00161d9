"""``memref`` operations, ``vector.load`` and ``vector.store``: addresses, checks, blocks of memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from codegen.llvm.polynomials import Poly, add, constant, divisor_of, multiply, product, scale
from codegen.llvm.space import SMALL
from codegen.llvm.tiles import in_tiles, load_tile, store_tile
from codegen.llvm.types import element_text, in_memory, lanes_of, splat_text, suffix, vector_of
from codegen.llvm.writer import Buffer, Writer, emits
from dialects._access import block_shape
from ir.core import Operation, Value
from ir.diagnostics import Diagnostic, GraphError
from ir.dims import DimExpr
from ir.layout import AccessArg, OperandArg, layout_of
from ir.types import DType, MemRefType


def _indices(w: Writer, op: Operation, access: AccessArg) -> list[Poly]:
    operands = [u.value for u in op.operand_uses]
    return [w.space.convert(i.expr, operands) for i in access.indices]


def _offset(buffer: Buffer, indices: Sequence[Poly]) -> Poly:
    total: Poly = {}
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = add(total, multiply(index, stride))
    return total


def _check_element(w: Writer, buffer: Buffer, indices: Sequence[Poly]) -> None:
    for axis, (at, size) in enumerate(zip(indices, buffer.shape, strict=True)):
        if w.space.inside(at, 1, size):
            continue
        found = w.integer(at)
        inside = w.set(f"icmp ult i64 {found}, {w.integer(size)}")  # sizes are not negative
        w.check(inside, f"index {{0}} is outside dimension {axis} of size {{2}}", found, dims=[buffer.type.shape[axis]])


def _refuse_readonly(w: Writer, buffer: Buffer) -> None:
    if buffer.readonly:
        w.check("false", "the buffer is read-only")


# -- single elements ---------------------------------------------------------------------------------------------------


@emits("memref.load")
def _load(w: Writer, op: Operation) -> None:
    access = layout_of(op)[0]
    assert isinstance(access, AccessArg)
    buffer = w.buffer(op.operand_uses[access.position].value)
    indices = _indices(w, op, access)
    _check_element(w, buffer, indices)
    w.names[op.results[0]] = load_at(w, buffer, _offset(buffer, indices))


def load_at(w: Writer, buffer: Buffer, offset: Poly) -> str:
    """The element at an offset, in the form of registers."""
    dtype = buffer.type.dtype
    text = w.set(f"load {in_memory(dtype)}, ptr {w.address(buffer, offset)}, align {w.alignment(buffer, offset)}")
    return w.set(f"icmp ne i8 {text}, 0") if dtype.kind == "bool" else text


@emits("memref.store")
def _store(w: Writer, op: Operation) -> None:
    value, access = layout_of(op)
    assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
    buffer = w.buffer(op.operand_uses[access.position].value)
    indices = _indices(w, op, access)
    _check_element(w, buffer, indices)
    _refuse_readonly(w, buffer)
    store_at(w, w.name(op.operand_uses[value.position].value), buffer, _offset(buffer, indices))


def store_at(w: Writer, text: str, buffer: Buffer, offset: Poly) -> None:
    """Writes one element."""
    dtype = buffer.type.dtype
    if dtype.kind == "bool":
        text = w.set(f"zext i1 {text} to i8")
    w.line(f"store {in_memory(dtype)} {text}, ptr {w.address(buffer, offset)}, align {w.alignment(buffer, offset)}")


@emits("memref.prefetch")
def _prefetch(w: Writer, op: Operation) -> None:
    access = layout_of(op)[0]
    assert isinstance(access, AccessArg)
    buffer = w.buffer(op.operand_uses[access.position].value)
    w.checks_indices = False  # an address that is wrong does no harm
    pointer = w.address(buffer, _offset(buffer, _indices(w, op, access)))
    w.checks_indices = True
    function = w.unit.declare("void", "llvm.prefetch.p0", "ptr", "i32 immarg", "i32 immarg", "i32 immarg")
    attributes = op.definition.full_attributes(op.attributes)
    w.line(f"call void {function}(ptr {pointer}, i32 {1 if attributes['write'] else 0}, i32 {attributes['locality']}, i32 1)")  # data, not code


# -- blocks ------------------------------------------------------------------------------------------------------------


def _check_block(w: Writer, op: Operation, buffer: Buffer, access: AccessArg, indices: Sequence[Poly], valid: Value | None) -> None:
    """Checks that the elements of a block (the first ``valid`` ones along its last axis) are inside of the buffer."""
    shape = block_shape(access)
    if all(map(w.space.inside, indices, shape, buffer.shape)):
        return
    counts = [constant(n) for n in shape]
    last = len(counts) - 1
    some = "true"
    if valid is not None:
        size = counts[last]
        count = w.space.value(valid)
        kept = w.space.function("min", (w.space.function("max", (count, {})), size))
        rest = [counts[last], count] if not w.space.prove(add(size, count, -1)) else [count]
    for axis, (start, count, size) in enumerate(zip(indices, counts, buffer.shape, strict=True)):
        ends = rest if valid is not None and axis == last else [count]
        prove = w.space.prove
        if prove(start) and any(prove(add(add(size, start, -1), c, -1)) for c in ends):
            continue
        if valid is not None and some == "true":
            some = _has_some(w, valid)
        found = w.integer(start)
        amount = w.integer(kept if valid is not None and axis == last else count)
        limit = w.set(f"sub i64 {w.integer(size)}, {amount}")
        inside = w.set(f"icmp sle i64 {found}, {limit}")
        inside = w.set(f"and i1 {inside}, {w.set(f'icmp sge i64 {found}, 0')}")
        if some != "true":
            inside = w.set(f"or i1 {inside}, {w.set(f'xor i1 {some}, true')}")
        end = w.set(f"add i64 {found}, {amount}")
        w.check(inside, f"elements {{0}} to {{1}} are outside dimension {axis} of size {{2}}", found, end, [buffer.type.shape[axis]])


def _has_some(w: Writer, valid: Value) -> str:
    return w.set(f"icmp sgt i64 {w.name(valid)}, 0")


def _mask(w: Writer, valid: Value, lanes: int) -> str:
    """Which lanes are valid."""
    count = w.name(valid)
    depth = w.depth(count)
    low = w.unit.declare("i64", "llvm.smax.i64", "i64", "i64")
    high = w.unit.declare("i64", "llvm.smin.i64", "i64", "i64")
    least = w.pure(depth, f"call i64 {low}(i64 {count}, i64 0)")
    clamped = w.pure(depth, f"call i64 {high}(i64 {least}, i64 {lanes})")
    narrow = w.pure(depth, f"trunc i64 {clamped} to i32")
    steps = "<" + ", ".join(f"i32 {i}" for i in range(lanes)) + ">"
    return w.pure(depth, f"icmp ult <{lanes} x i32> {steps}, {w.splat(narrow, 'i32', lanes)}")


def _rows(buffer: Buffer, access: AccessArg, indices: Sequence[Poly]) -> list[Poly]:
    """Offsets of the runs along the last axis, in row-major order."""
    first = _offset(buffer, indices)
    leading = block_shape(access)[:-1]
    found = []
    for position in itertools.product(*map(range, leading)):
        offset = first
        for at, stride in zip(position, buffer.strides, strict=False):
            offset = add(offset, stride, at)
        found.append(offset)
    return found


def _pad(op: Operation, dtype: DType) -> str:
    import numpy as np

    from ir.evaluate import round_to

    pad = op.attribute("pad")
    if dtype.is_float:
        return element_text(round_to(np.array(float(pad)), dtype)[()], dtype)  # type: ignore[arg-type]
    return element_text(np.array(pad, dtype.numpy)[()], dtype)


def _tile_place(w: Writer, op: Operation) -> tuple[str, str]:
    """Where the first row of a tile is, and how many bytes further the next one; checks that all are inside of the buffer."""
    access = layout_of(op)[-1]
    assert isinstance(access, AccessArg)
    buffer = w.buffer(op.operand_uses[access.position].value)
    indices = _indices(w, op, access)
    _check_block(w, op, buffer, access, indices, None)
    axis = next(n for n, index in enumerate(access.indices) if index.size is not None)
    return w.address(buffer, _offset(buffer, indices)), w.integer(scale(buffer.strides[axis], buffer.type.dtype.itemsize))


@emits("vector.load")
def _vector_load(w: Writer, op: Operation) -> None:
    if in_tiles(w, op):
        load_tile(w, op, *_tile_place(w, op))
        return
    access = layout_of(op)[0]
    assert isinstance(access, AccessArg)
    buffer = w.buffer(op.operand_uses[access.position].value)
    valid = op.operand("valid") if len(op.operand_uses) > 1 else None
    indices = _indices(w, op, access)
    _check_block(w, op, buffer, access, indices, valid)
    dtype = buffer.type.dtype
    element, lanes = in_memory(dtype), lanes_of(op.results[0].type)
    shape = block_shape(access)
    count = shape[-1] if shape else 1
    rows = _rows(buffer, access, indices) if shape else [_offset(buffer, indices)]
    if valid is not None:
        pad = _pad(op, dtype)
        pad = ("1" if pad == "true" else "0") if dtype.kind == "bool" else pad
        mask = _mask(w, valid, count)
        read = [_masked_load(w, buffer, row, mask, splat_text(pad, element, count), count) for row in rows]
        text = join(w, read, element, count)
    elif count == 1 and len(rows) > 1:
        text = "poison"
        for lane, row in enumerate(rows):
            scalar = w.set(f"load {element}, ptr {w.address(buffer, row)}, align {w.alignment(buffer, row)}")
            text = w.set(f"insertelement {vector_of(element, lanes)} {text}, {element} {scalar}, i32 {lane}")
    else:
        vector = vector_of(element, count)
        text = join(w, [w.set(f"load {vector}, ptr {w.address(buffer, r)}, align {w.alignment(buffer, r)}") for r in rows], element, count)
    if dtype.kind == "bool":
        text = w.set(f"icmp ne {vector_of('i8', lanes)} {text}, zeroinitializer")
    w.names[op.results[0]] = text


def _masked_load(w: Writer, buffer: Buffer, offset: Poly, mask: str, pad: str, lanes: int) -> str:
    element = in_memory(buffer.type.dtype)
    vector, flags = vector_of(element, lanes), vector_of("i1", lanes)
    function = w.unit.declare(vector, f"llvm.masked.load.{suffix(element, lanes)}.p0", "ptr", "i32 immarg", flags, vector)
    align = w.alignment(buffer, offset)
    return w.set(f"call {vector} {function}(ptr {w.address(buffer, offset)}, i32 {align}, {flags} {mask}, {vector} {pad})")


def join(w: Writer, rows: Sequence[str], element: str, count: int) -> str:
    """Vectors one after the other as one, by halves."""
    parts, width = list(rows), count
    while len(parts) > 1:
        if len(parts) % 2:
            parts.append("poison")
        vector = vector_of(element, width)
        mask = ", ".join(f"i32 {i}" for i in range(2 * width))
        parts = [
            w.set(f"shufflevector {vector} {a}, {vector} {b}, <{2 * width} x i32> <{mask}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        width *= 2
    wanted = len(rows) * count
    return parts[0] if width == wanted else w.shuffle(parts[0], element, width, range(wanted))


@emits("vector.store")
def _vector_store(w: Writer, op: Operation) -> None:
    value, access = layout_of(op)
    assert isinstance(value, OperandArg) and isinstance(access, AccessArg)
    if in_tiles(w, op):
        _refuse_readonly(w, w.buffer(op.operand_uses[access.position].value))
        store_tile(w, op.operand_uses[value.position].value, *_tile_place(w, op))
        return
    buffer = w.buffer(op.operand_uses[access.position].value)
    valid = op.operand("valid") if len(op.operand_uses) > 2 else None
    indices = _indices(w, op, access)
    _check_block(w, op, buffer, access, indices, valid)
    if buffer.readonly:
        nothing = "false" if valid is None else w.set(f"icmp sle i64 {w.name(valid)}, 0")
        w.check(nothing, "the buffer is read-only")
    dtype = buffer.type.dtype
    element = in_memory(dtype)
    vector_value = op.operand_uses[value.position].value
    lanes = lanes_of(vector_value.type)
    text = w.name(vector_value)
    if dtype.kind == "bool":
        text = w.set(f"zext {vector_of('i1', lanes)} {text} to {vector_of('i8', lanes)}")
    shape = block_shape(access)
    count = shape[-1] if shape else 1
    for number, row in enumerate(_rows(buffer, access, indices) if shape else [_offset(buffer, indices)]):
        part = w.shuffle(text, element, lanes, range(number * count, (number + 1) * count))
        vector, align = vector_of(element, count), w.alignment(buffer, row)
        if valid is None:
            past = ", !nontemporal !1" if op.attribute("nontemporal") else ""  # plain, where the alignment isn't that of a register
            w.line(f"store {vector} {part}, ptr {w.address(buffer, row)}, align {align}{past}")
            continue
        flags = vector_of("i1", count)
        function = w.unit.declare("void", f"llvm.masked.store.{suffix(element, count)}.p0", vector, "ptr", "i32 immarg", flags)
        mask = _mask(w, valid, count)
        w.line(f"call void {function}({vector} {part}, ptr {w.address(buffer, row)}, i32 {align}, {flags} {mask})")


def _check_shape(w: Writer, op: Operation, type_: MemRefType) -> list[Poly]:
    """The dimensions of a new buffer; those that may be negative are checked, since index checks rely on it."""
    shape = w.unit.shape_of(type_, op)
    for size in shape:
        w.space.magnitude(size)  # products of named dimensions are checked when the program starts
        if not w.space.prove(size):
            found = w.integer(size)
            places = ", ".join(f"{{{2 + i}}}" for i in range(len(shape)))
            text = str(MemRefType(type_.dtype, (), type_.space, type_.align)).replace("[]", f"[{places}]")
            w.check(w.set(f"icmp sge i64 {found}, 0"), f"a dimension of {text} is negative", dims=type_.shape)
    return shape


def _bytes(w: Writer, shape: Sequence[Poly], item: int) -> str:
    """The size of a buffer, checked for overflow where it may be too large."""
    size = scale(product(shape), item)
    if w.space.magnitude(size) <= SMALL:
        return w.integer(size)
    total = str(item)
    times = w.unit.declare("{ i64, i1 }", "llvm.umul.with.overflow.i64", "i64", "i64")
    for dim in shape:
        pair = w.set(f"call {{ i64, i1 }} {times}(i64 {total}, i64 {w.integer(dim)})")
        total = w.set(f"extractvalue {{ i64, i1 }} {pair}, 0")
        fits = w.set(f"xor i1 {w.set(f'extractvalue {{ i64, i1 }} {pair}, 1')}, true")
        w.check(w.set(f"and i1 {fits}, {w.set(f'icmp ule i64 {total}, {SMALL}')}"), "the buffer is larger than any memory")
    return total


# -- buffers -----------------------------------------------------------------------------------------------------------


@emits("memref.dim")
def _dim(w: Writer, op: Operation) -> None:
    buffer = w.buffer(op.operand_uses[0].value)
    axis = op.attributes["axis"]
    assert isinstance(axis, int)
    w.names[op.results[0]] = w.integer(buffer.shape[axis])
    w.space.values[op.results[0]] = buffer.shape[axis]


@emits("memref.reshape")
def _reshape(w: Writer, op: Operation) -> None:
    old = w.buffer(op.operand_uses[0].value)
    type_ = op.results[0].type
    assert isinstance(type_, MemRefType)
    shape = _check_shape(w, op, type_)
    if type_.align > old.align:
        ok = _is_multiple(w, old, type_.align)
        if not w.space.prove(add(product(shape), constant(-1))):  # an empty buffer may be anywhere
            ok = w.set(f"or i1 {ok}, {w.set(f'icmp eq i64 {w.integer(product(shape))}, 0')}")
        w.check(ok, f"the buffer is not aligned to {type_.align} bytes")
    w.buffers[op.results[0]] = Buffer(old.pointer, type_, shape, max(old.align, type_.align), old.readonly)


def _is_multiple(w: Writer, buffer: Buffer, align: int) -> str:
    address = w.set(f"ptrtoint ptr {buffer.pointer} to i64")
    return w.set(f"icmp eq i64 {w.set(f'and i64 {address}, {align - 1}')}, 0")


@emits("memref.is_aligned")
def _is_aligned(w: Writer, op: Operation) -> None:
    align = op.attributes["align"]
    assert isinstance(align, int)
    w.names[op.results[0]] = _is_multiple(w, w.buffer(op.operand_uses[0].value), align)


@emits("memref.view")
def _view(w: Writer, op: Operation) -> None:
    arena = w.buffer(op.operand_uses[0].value)
    type_, offset = op.results[0].type, op.attributes["offset"]
    assert isinstance(type_, MemRefType) and isinstance(offset, (int, DimExpr))
    shape = _check_shape(w, op, type_)
    start, item = w.space.convert(offset), type_.dtype.itemsize
    size = scale(product(shape), item)
    total = product(arena.shape)
    if divisor_of(start) % item:
        found = w.integer(start)
        fits = w.set(f"icmp eq i64 {w.set(f'urem i64 {found}, {item}')}, 0")
        w.check(fits, f"offset {{0}} is not a multiple of {item}, the bytes of {type_.dtype}", found)
    exact = w.space.magnitude(size) <= SMALL and w.space.magnitude(start) <= SMALL
    inside = exact and w.space.prove(start) and w.space.prove(add(add(total, start, -1), size, -1))
    if not inside:
        found, amount = w.integer(start), _bytes(w, shape, item)
        limit = w.set(f"sub i64 {w.integer(total)}, {amount}")
        ok = w.set(f"and i1 {w.set(f'icmp sle i64 {found}, {limit}')}, {w.set(f'icmp sge i64 {found}, 0')}")
        end = w.set(f"add i64 {found}, {amount}")
        sizes = ", ".join(f"{{{n + 2}}}" for n in range(len(arena.shape)))
        outside = f"bytes {{0}} to {{1}} are outside {MemRefType(arena.type.dtype, ())}".replace("[]", f"[{sizes}]")
        w.check(ok, outside, found, end, arena.type.shape)
    bytes_ = Buffer(arena.pointer, arena.type, arena.shape, arena.align)
    align = w.alignment(bytes_, start)
    w.buffers[op.results[0]] = Buffer(w.address(bytes_, start), type_, shape, max(align, 1), arena.readonly)


@emits("memref.alloc")
def _alloc(w: Writer, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, MemRefType)
    shape, align = _check_shape(w, op, type_), w.memory_alignment(op, type_)
    if type_.align > align:
        raise GraphError(Diagnostic(f"codegen: memory begins at multiples of {align} bytes here, not of {type_.align}", op.loc))
    w.buffers[op.results[0]] = Buffer(w.memory(op, type_), type_, shape, align)


@emits("memref.copy")
def _copy(w: Writer, op: Operation) -> None:
    source, target = (w.buffer(u.value) for u in op.operand_uses)
    _refuse_readonly(w, target)
    copy_bytes(w, source, target)


def copy_bytes(w: Writer, source: Buffer, target: Buffer) -> None:
    """Copies all elements; the two may overlap."""
    function = w.unit.declare("void", "llvm.memmove.p0.p0.i64", "ptr", "ptr", "i64", "i1 immarg")
    size = w.integer(scale(product(source.shape), source.type.dtype.itemsize))
    w.line(f"call void {function}(ptr align {target.align} {target.pointer}, ptr align {source.align} {source.pointer}, i64 {size}, i1 false)")


