"""``vector`` operations without memory.  Vectors are flat, so most of them are a choice of lanes."""

from __future__ import annotations

import numpy as np

from codegen.llvm.operands import broadcast, from_double, intrinsic, narrowed, result_lanes, shape_of, to_double, widened
from codegen.llvm.types import REGISTER, constant_text, lanes_of, vector_of
from codegen.llvm.writer import Writer, dtype_of, emits
from ir.core import Operation
from ir.types import VectorType


def _lane_numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)


@emits("vector.broadcast")
def _broadcast(w: Writer, op: Operation) -> None:
    x, result = op.operand_uses[0].value, op.results[0]
    shape = shape_of(result)
    assert shape is not None
    w.names[result] = broadcast(w, w.name(x), REGISTER[dtype_of(x).name], shape_of(x), shape)


@emits("vector.reshape")
def _reshape(w: Writer, op: Operation) -> None:
    w.names[op.results[0]] = w.name(op.operand_uses[0].value)


@emits("vector.transpose")
def _transpose(w: Writer, op: Operation) -> None:
    v, perm = op.operand_uses[0].value, op.attributes["perm"]
    shape = shape_of(v)
    assert shape is not None and isinstance(perm, tuple)
    mask = np.transpose(_lane_numbers(shape), perm).reshape(-1)  # type: ignore[arg-type]
    w.names[op.results[0]] = w.shuffle(w.name(v), REGISTER[dtype_of(v).name], mask.size, mask.tolist())


@emits("vector.shuffle")
def _shuffle(w: Writer, op: Operation) -> None:
    x, y = (u.value for u in op.operand_uses)
    mask, element = op.attributes["mask"], REGISTER[dtype_of(x).name]
    assert isinstance(mask, tuple)
    vector = vector_of(element, lanes_of(x.type))
    numbers = ", ".join(f"i32 {m}" for m in mask)
    w.result(op, f"shufflevector {vector} {w.name(x)}, {vector} {w.name(y)}, <{len(mask)} x i32> <{numbers}>")


@emits("vector.step")
def _step(w: Writer, op: Operation) -> None:
    type_ = op.results[0].type
    assert isinstance(type_, VectorType)
    w.names[op.results[0]] = constant_text(np.arange(type_.shape[0]).astype(type_.dtype.numpy), type_.dtype)


@emits("vector.extract")
def _extract(w: Writer, op: Operation) -> None:
    v, result, position = op.operand_uses[0].value, op.results[0], op.attributes["position"]
    shape, element = shape_of(v), REGISTER[dtype_of(v).name]
    assert shape is not None and isinstance(position, tuple)
    lanes = _lane_numbers(shape)[position].reshape(-1)  # type: ignore[index]
    total = lanes_of(v.type)
    if isinstance(result.type, VectorType):
        w.names[result] = w.shuffle(w.name(v), element, total, lanes.tolist())
    else:
        w.result(op, f"extractelement {vector_of(element, total)} {w.name(v)}, i32 {int(lanes[0])}")


@emits("vector.insert")
def _insert(w: Writer, op: Operation) -> None:
    x, v = (u.value for u in op.operand_uses)
    position, shape, element = op.attributes["position"], shape_of(v), REGISTER[dtype_of(v).name]
    assert shape is not None and isinstance(position, tuple)
    lanes = _lane_numbers(shape)[position].reshape(-1)  # type: ignore[index]
    total = lanes_of(v.type)
    vector = vector_of(element, total)
    if not isinstance(x.type, VectorType):
        w.result(op, f"insertelement {vector} {w.name(v)}, {element} {w.name(x)}, i32 {int(lanes[0])}")
        return
    first, count = int(lanes[0]), lanes.size
    wide = w.shuffle(w.name(x), element, count, [*range(count), *([0] * (total - count))])
    mask = [total + i - first if first <= i < first + count else i for i in range(total)]
    numbers = ", ".join(f"i32 {m}" for m in mask)
    w.result(op, f"shufflevector {vector} {w.name(v)}, {vector} {wide}, <{total} x i32> <{numbers}>")


@emits("vector.multi_reduction")
def _multi_reduction(w: Writer, op: Operation) -> None:
    """One step per element of the reduced axes, on vectors of all results at once.

    Floats are added and multiplied in double from their neutral element on, in ascending order, and rounded once.
    """
    v, result = op.operand_uses[0].value, op.results[0]
    shape, dtype, kind, axes = shape_of(v), dtype_of(v), str(op.attributes["kind"]), op.attributes["axes"]
    assert shape is not None and isinstance(axes, tuple)
    reduced = sorted(int(a) % len(shape) for a in axes)  # type: ignore[arg-type]
    moved = np.moveaxis(_lane_numbers(shape), reduced, range(len(reduced)))
    count = int(np.prod([shape[a] for a in reduced], dtype=np.int64))
    rows = moved.reshape(count, -1)
    lanes = result_lanes(op)
    total = lanes_of(v.type)

    def part(text: str, element: str, row: np.ndarray) -> str:
        if lanes:
            return w.shuffle(text, element, total, row.tolist())
        return w.set(f"extractelement {vector_of(element, total)} {text}, i32 {int(row[0])}")

    text = w.name(v)
    if dtype.is_float and kind in ("add", "mul"):
        wide, vector = to_double(w, text, dtype, total), vector_of("double", lanes)
        value = w.splat("0.0" if kind == "add" else "1.0", "double", lanes)
        for row in rows:
            value = w.set(f"f{kind} {vector} {value}, {part(wide, 'double', row)}")
        w.names[result] = from_double(w, value, dtype, lanes)
        return
    if dtype.is_float:
        wide, element = widened(w, text, dtype, total)
        value = part(wide, element, rows[0])
        for row in rows[1:]:
            value = intrinsic(w, "maximum" if kind == "max" else "minimum", element, lanes, value, part(wide, element, row))
        w.names[result] = narrowed(w, value, dtype, lanes)
        return
    element = REGISTER[dtype.name]
    vector = vector_of(element, lanes)
    value = w.splat("0" if kind == "add" else "1", element, lanes) if kind in ("add", "mul") else part(text, element, rows[0])
    for row in rows if kind in ("add", "mul") else rows[1:]:
        other = part(text, element, row)
        if kind in ("add", "mul"):
            value = w.set(f"{kind} {vector} {value}, {other}")
        else:
            value = intrinsic(w, f"{'u' if dtype.kind == 'uint' else 's'}{kind}", element, lanes, value, other)
    w.names[result] = value
