"""``vector`` operations that move and combine elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from codegen.cuda import expressions as ex
from codegen.cuda.elementwise import lane_by_lane, shape_of, unrolled
from codegen.cuda.expressions import Expr, call
from codegen.cuda.scalars import computed, dtype_of, from_double, narrowed, rounded, suffix, to_double
from codegen.cuda.types import C_TYPES, c_type, lanes_of
from codegen.cuda.writer import Writer, emits
from ir.core import Operation, Value
from ir.types import DType, ScalarType, VectorType


def _lane_numbers(shape: Sequence[int]) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape)


@emits("vector.broadcast")
def _broadcast(w: Writer, op: Operation) -> None:
    x, result = op.operands[0], op.results[0]
    assert isinstance(result.type, VectorType)
    if isinstance(x.type, VectorType):
        lane_by_lane(w, result, [x], lambda elements: elements[0])
    else:
        splat = f"go_splat<{C_TYPES[result.type.dtype.name]}, {lanes_of(result.type)}>"
        w.result(op, call(splat, w.value(x)))


@emits("vector.reshape")
def _reshape(w: Writer, op: Operation) -> None:
    w.values[op.results[0]] = w.value(op.operands[0])


@emits("vector.transpose")
def _transpose(w: Writer, op: Operation) -> None:
    v, result = op.operands[0], op.results[0]
    shape, perm = shape_of(v), op.attributes["perm"]
    assert shape is not None and isinstance(perm, tuple)
    _moved(w, result, w.value(v), _lane_numbers(shape).transpose(perm).reshape(-1).tolist())  # type: ignore[arg-type]


def _moved(w: Writer, result: Value, source: Expr, lanes: Sequence[int]) -> None:
    """Elements of one vector in another order: by a loop where they are neighbours, or far ones at one distance."""
    type_ = result.type
    assert isinstance(type_, VectorType)
    name = w.token(result.name)
    steps = {b - a for a, b in zip(lanes, lanes[1:], strict=False)} or {1}
    if len(steps) == 1:
        (step,), lane, first = steps, w.fixed("lane"), lanes[0]
        at = lane if step == 1 else f"{step} * {lane}" if step > 0 else f"{first} - {-step} * {lane}" if step < -1 else f"{first} - {lane}"
        at = f"{first} + {at}" if first and step > 0 else at if step else str(first)
        w.line(f"{c_type(type_)} {name};")
        with unrolled(w, lane, len(lanes)):
            w.line(f"{name}[{lane}] = {source.text}[{at}];")
    else:
        items = ", ".join(f"{source.text}[{n}]" for n in lanes)
        w.line(f"const {c_type(type_)} {name} = {{{{{items}}}}};")
    w.values[result] = Expr(name)


@emits("vector.extract")
def _extract(w: Writer, op: Operation) -> None:
    v, result = op.operands[0], op.results[0]
    shape, position = shape_of(v), op.attributes["position"]
    assert shape is not None and isinstance(position, tuple)
    lanes = _lane_numbers(shape)[position].reshape(-1).tolist()  # type: ignore[index]
    if isinstance(result.type, VectorType):
        _moved(w, result, w.value(v), lanes)
    else:
        w.values[result] = Expr(f"{_named(w, v).text}[{lanes[0]}]")


def _named(w: Writer, v: Value) -> Expr:
    """A vector as a variable."""
    assert isinstance(v.type, VectorType)
    found = w.value(v)
    if found.cost or found.text.endswith(")"):
        found = w.values[v] = w.atomic(Expr(found.text, found.level, 1), c_type(v.type), v.name)
    return found


@emits("vector.insert")
def _insert(w: Writer, op: Operation) -> None:
    x, v = op.operands
    result, shape, position = op.results[0], shape_of(v), op.attributes["position"]
    assert shape is not None and isinstance(position, tuple)
    first = int(_lane_numbers(shape)[position].reshape(-1)[0])  # type: ignore[index]
    made = w.variable(result, w.value(v))
    if isinstance(x.type, VectorType):
        lane, source = w.fixed("lane"), _named(w, x)
        with unrolled(w, lane, lanes_of(x.type)):
            w.line(f"{made.text}[{f'{first} + ' if first else ''}{lane}] = {source.text}[{lane}];")
    else:
        w.line(f"{made.text}[{first}] = {w.value(x).text};")
    w.values[result] = made


@emits("vector.shuffle")
def _shuffle(w: Writer, op: Operation) -> None:
    x, y = op.operands
    result, mask = op.results[0], op.attributes["mask"]
    assert isinstance(mask, tuple) and isinstance(result.type, VectorType)
    lanes, count = [int(m) for m in mask], lanes_of(x.type)  # type: ignore[arg-type]
    for source, start in ((x, 0), (y, count)):
        if all(start <= m < start + count for m in lanes) or x is y:
            _moved(w, result, _named(w, source), [m % count if x is y else m - start for m in lanes])
            return
    left, right = _named(w, x), _named(w, y)
    items = ", ".join(f"{left.text}[{m}]" if m < count else f"{right.text}[{m - count}]" for m in lanes)
    w.declare(result, Expr(f"{c_type(result.type)}{{{{{items}}}}}"))


@emits("vector.step")
def _step(w: Writer, op: Operation) -> None:
    result = op.results[0]
    assert isinstance(result.type, VectorType)
    name, lane = w.token(result.name), w.fixed("lane")
    w.line(f"{c_type(result.type)} {name};")
    with unrolled(w, lane, lanes_of(result.type)):
        w.line(f"{name}[{lane}] = {lane};")
    w.values[result] = Expr(name)


@emits("vector.dot4")
def _dot4(w: Writer, op: Operation) -> None:
    """Element by element, one word after the other."""
    a, b = (_named(w, v) for v in op.operands)
    result = op.results[0]
    shape, inner = shape_of(result), shape_of(op.operands[0])
    assert shape is not None and inner is not None and isinstance(result.type, VectorType)
    (rows, columns), words = shape, inner[1]
    name, row, column, word = w.token(result.name), w.fixed("row"), w.fixed("column"), w.fixed("word")
    w.line(f"{c_type(result.type)} {name};")
    with unrolled(w, row, rows), unrolled(w, column, columns):
        at = f"{name}[{columns} * {row} + {column}]"
        w.line(f"{at} = 0;")
        with unrolled(w, word, words):
            w.line(f"{at} = go_dot4({b.text}[{columns} * {word} + {column}], {a.text}[{words} * {row} + {word}], {at});")
    w.values[result] = Expr(name)


@emits("vector.multi_reduction")
def _multi_reduction(w: Writer, op: Operation) -> None:
    """Floats are added and multiplied in double from their neutral element on, in ascending order, and rounded once."""
    v, result = op.operands[0], op.results[0]
    shape, dtype, kind, axes = shape_of(v), dtype_of(v), str(op.attributes["kind"]), op.attributes["axes"]
    assert shape is not None and isinstance(axes, tuple) and isinstance(result.type, (ScalarType, VectorType))
    reduced = sorted({int(a) % len(shape) for a in axes})  # type: ignore[arg-type]
    kept = [a for a in range(len(shape)) if a not in reduced]
    source = _named(w, v)
    total = w.token(f"{result.name}.total")
    type_, first = _accumulator(dtype, kind)

    def place(axes: Sequence[int], skip: Sequence[int] = ()) -> str:
        terms = []
        for axis in axes:
            stride = math.prod(shape[axis + 1 :])
            if shape[axis] != 1 and axis not in skip:
                terms.append(w.fixed(f"i{axis}") if stride == 1 else f"{stride} * {w.fixed(f'i{axis}')}")
        return " + ".join(terms) or "0"

    def reduce_at() -> Expr:
        """A loop over what is reduced, for one element of the result."""
        start = first or _read(Expr(f"{source.text}[{place(kept)}]"), dtype)
        w.line(f"{type_} {total} = {start};")

        def level(number: int) -> None:
            if number == len(reduced):
                element = Expr(f"{source.text}[{place(range(len(shape)))}]")
                w.line(f"{total} = {_combined(Expr(total), element, dtype, kind)};")
            elif shape[reduced[number]] == 1:
                level(number + 1)
            else:
                with unrolled(w, w.fixed(f"i{reduced[number]}"), shape[reduced[number]]):
                    level(number + 1)

        level(0)
        return _finished(Expr(total), dtype, kind)

    if isinstance(result.type, ScalarType):
        w.values[result] = reduce_at()
        return
    name = w.token(result.name)
    w.line(f"{c_type(result.type)} {name};")

    def outer(number: int) -> None:
        if number == len(kept):
            with w.block(""):
                found = reduce_at()
                at = _result_place(w, shape, kept)
                w.line(f"{name}[{at}] = {found.text};")
        elif shape[kept[number]] == 1:
            outer(number + 1)
        else:
            with unrolled(w, w.fixed(f"i{kept[number]}"), shape[kept[number]]):
                outer(number + 1)

    outer(0)
    w.values[result] = Expr(name)


def _result_place(w: Writer, shape: Sequence[int], kept: Sequence[int]) -> str:
    terms = []
    for number, axis in enumerate(kept):
        stride = math.prod(shape[a] for a in kept[number + 1 :])
        if shape[axis] != 1:
            terms.append(w.fixed(f"i{axis}") if stride == 1 else f"{stride} * {w.fixed(f'i{axis}')}")
    return " + ".join(terms) or "0"


def _accumulator(dtype: DType, kind: str) -> tuple[str, str]:
    """The type of what a reduction carries, and what it starts with ("": the first element)."""
    if dtype.is_float and kind in ("add", "mul"):
        return "double", "0.0" if kind == "add" else "1.0"
    if dtype.is_float:
        return "double" if dtype.name == "f64" else "float", ""
    return C_TYPES[dtype.name], {"add": "0", "mul": "1"}.get(kind, "")


def _read(x: Expr, dtype: DType) -> str:
    return computed(x, dtype).text


def _combined(total: Expr, x: Expr, dtype: DType, kind: str) -> str:
    if dtype.is_float and kind in ("add", "mul"):
        return ex.binary(total, "+" if kind == "add" else "*", to_double(x, dtype), ex.SUM if kind == "add" else ex.PRODUCT).text
    if dtype.is_float:
        return call(f"go_{kind}{'64' if dtype.name == 'f64' else ''}", total, computed(x, dtype)).text
    return narrowed(call(f"go_{kind}_{suffix(dtype)}", total, x), dtype).text


def _finished(total: Expr, dtype: DType, kind: str) -> Expr:
    if dtype.is_float and kind in ("add", "mul"):
        return from_double(total, dtype)
    return rounded(total, dtype) if dtype.is_float else total
