"""What the loops of a program have to do: operations and bytes, counted in its text for given sizes.

Operations are those of scalars in the bodies of nests, times the points of the index ranges around them: one for each of
``+ - * /``, minimum, maximum and square root, two for a multiply-add, for other functions what :data:`FLOPS` says.  Index
arithmetic, comparisons, choices and conversions are free.  Attention and products with packed weights are operations of tensors
still: what they do follows from their sizes.  A product counts two for each element of x and of a row, also where it is computed with
digits; ``dots`` says for how many.

Bytes are the least that a nest can move: each element of a buffer that it reads or writes counts once, however often it is
read, and buffers that nobody else uses don't count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dialects.graph.digits import BLOCK, ROWS, packed_format
from ir.attributes import Dense
from ir.core import Block, Graph, Operation, Value
from ir.dims import Dim, substitute, symbol, symbols_of
from ir.layout import LAYOUT, AccessArg, BindArg, ExpressionArg, IndexExpr, LoopDim, RangeArg, evaluate_expr, layout_of
from ir.types import MemRefType, ScalarType, TensorType, VectorType, buffer_of, index, substitute_type

FLOPS: dict[str, int] = {
    **dict.fromkeys(("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maximumf", "arith.minimumf", "math.sqrt"), 1),
    "math.fma": 2,
    "math.rsqrt": 4,
    "arith.remf": 4,
    "math.exp": 20,
    "math.expm1": 22,
    "math.sigmoid": 22,
    "math.log": 24,
    "math.log1p": 24,
    "math.silu": 24,
    "math.sin": 26,
    "math.cos": 26,
    "math.tanh": 30,
    "math.erf": 36,
    "math.gelu_tanh": 36,
    "math.tan": 36,
    "math.gelu": 44,
    "math.erfc": 54,
    "math.normcdf": 54,
    "math.powf": 80,
}
"""Operations of scalar operations, by name; about those of the polynomials of ``expand-math``, for its functions."""

TENSORS = ("graph.attention", "graph.split_digits", "graph.digit_linear", "graph.packed_linear", "graph.packed_embedding")
"""Operations of tensors that are counted as they are; everything else is one of loops or of no work."""

_SAME = ("memref.reshape", "memref.from_tensor", "memref.of_inout", "memref.to_tensor")
_LIMIT = 100_000
"""Rounds of loops that are gone through one by one, because bounds inside depend on them."""


def memory_of(value: Value) -> Value:
    """The buffer or tensor whose memory a value is."""
    op = value.defining_op
    while op is not None and op.definition.full_name in _SAME:
        value = op.operand_uses[0].value
        op = value.defining_op
    return value


@dataclass
class Work:
    """What operations do: ``flops``, and the elements that each form of access reads or writes, by buffer.

    ``dots`` are those of the flops that are computed with dot products of bytes, by the number of digits: so many times.
    ``known`` is False where a loop's bounds depend on data: it counts as one round.
    """

    flops: float = 0.0
    dots: dict[int, float] = field(default_factory=dict)
    read: dict[Value, dict[str, float]] = field(default_factory=dict)
    written: dict[Value, dict[str, float]] = field(default_factory=dict)
    known: bool = True

    def memories(self) -> set[Value]:
        """All buffers that are accessed."""
        return {*self.read, *self.written}


def work_of(op: Operation, names: Mapping[str, int]) -> Work:
    """What one operation does, with all inside of it; ``names`` are the graph's dimensions."""
    counter = _Counter(names)
    counter.operation(op, 1)
    return counter.work


def dots_of(works: Iterable[Work]) -> dict[int, float]:
    """The flops of several pieces of work that are computed with digits, by the number of digits."""
    found: dict[int, float] = {}
    for work in works:
        for digits, flops in work.dots.items():
            found[digits] = found.get(digits, 0.0) + flops
    return found


def least_bytes(works: Sequence[Work], used_elsewhere: Iterable[Value], names: Mapping[str, int]) -> float:
    """The least traffic of several pieces of work together; what they write counts where it is used elsewhere."""
    kept = set(used_elsewhere)
    total = 0.0
    for memory in {m: None for w in works for m in (*w.read, *w.written)}:
        type_ = memory.type
        assert isinstance(type_, (MemRefType, TensorType))
        size = float(_elements(type_, names))
        read, written = (min(size, sum(_merged(part).values())) for part in _forms(works, memory))
        elements = max(0.0, read - written) + (written if memory in kept else 0.0)
        total += elements * (1 if type_.dtype.is_block else type_.dtype.itemsize)
    return total


def _forms(works: Sequence[Work], memory: Value) -> Iterator[list[dict[str, float]]]:
    yield [w.read.get(memory, {}) for w in works]
    yield [w.written.get(memory, {}) for w in works]


def _merged(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The elements of each form of access: the same form means the same elements."""
    found: dict[str, float] = {}
    for part in parts:
        for form, elements in part.items():
            found[form] = max(found.get(form, 0.0), elements)
    return found


def _elements(type_: MemRefType | TensorType, names: Mapping[str, int]) -> int:
    concrete = substitute_type(type_, dict(names))
    assert isinstance(concrete, (MemRefType, TensorType))
    if isinstance(concrete, TensorType):
        concrete = buffer_of(concrete)  # blocks are read as bytes
    return math.prod(d for d in concrete.shape if isinstance(d, int))


def has_work(op: Operation) -> bool:
    """Whether an operation of the top level is one whose work is counted."""
    return bool(op.regions) or op.definition.full_name in ("memref.copy", *TENSORS)


def memories_used(graph: Graph) -> dict[Value, set[Operation]]:
    """Which operations of the top level use each buffer or tensor; those that give it another name don't count."""
    found: dict[Value, set[Operation]] = {}
    for top in graph.block:
        if top.definition.full_name in _SAME:
            continue
        for op in (top, *top.walk()):
            for use in op.operand_uses:
                if isinstance(use.value.type, (MemRefType, TensorType)):
                    found.setdefault(memory_of(use.value), set()).add(top)
    for parameter in graph.parameters:
        if parameter.inout or isinstance(parameter.type, MemRefType):
            found.setdefault(parameter, set()).add(graph.return_op)
    return found


class _Counter:
    """Goes through an operation; what is in scope are the extents of loop dimensions and variables, and known numbers."""

    def __init__(self, names: Mapping[str, int]) -> None:
        self.names = dict(names)
        self.work = Work()
        self.extents: dict[str | Value, int] = {}  # of a dimension of linalg by name, of a loop variable by value
        self.made_of: dict[Value, tuple[Value, ...]] = {}  # the loop variables in the results of affine operations
        self.numbers: dict[Value, int] = {}
        self.rounds = 0

    def block(self, block: Block, times: float) -> None:
        for op in block:
            self.operation(op, times)

    def operation(self, op: Operation, times: float) -> None:
        name = op.definition.full_name
        if name in ("scf.for", "scf.parallel"):
            self._loop(op, times)
        elif name in ("linalg.generic", "linalg.reduce"):
            self._nest(op, times)
        elif op.regions:
            for region in op.regions:
                self.block(region.block, times)
        elif op.definition.dialect == "affine":
            self._affine(op)
        elif name == "memref.copy":
            self._whole(op.operands[0], self.work.read)
            self._whole(op.operands[1], self.work.written)
        elif name in TENSORS:
            count = {"attention": self._attention, "split_digits": self._split, "packed_embedding": self._rows}
            count.get(op.definition.text_name, self._product)(op)
        elif name != "memref.prefetch":
            self._plain(op, name, times)

    def _plain(self, op: Operation, name: str, times: float) -> None:
        if name == "arith.constant" and op.results[0].type == ScalarType(index):
            value = op.attribute("value")
            self.numbers[op.results[0]] = int(value.array if isinstance(value, Dense) else value)  # type: ignore[arg-type]
        if name in FLOPS:
            type_ = op.results[0].type
            self.work.flops += times * FLOPS[name] * (math.prod(type_.shape) if isinstance(type_, VectorType) else 1)
        for argument in layout_of(op) if LAYOUT in op.attributes else ():
            if isinstance(argument, AccessArg):
                self._access(op, argument, times, self.work.read if op.results else self.work.written)

    def _whole(self, value: Value, part: dict[Value, dict[str, float]]) -> None:
        """Counts all elements of a buffer or tensor."""
        assert isinstance(value.type, (MemRefType, TensorType))
        part.setdefault(memory_of(value), {})["all"] = float(_elements(value.type, self.names))

    def _attention(self, op: Operation) -> None:
        """Attention that no pass has taken apart: two products, and exp and four operations, for each pair of a query and a key it sees."""
        query, key, value, past = (self._shape(op, name) for name in ("q", "k", "v", "past_k"))
        queries, keys, width = query[-2], key[-2] + (past[-2] if past else 0), value[-1]
        seen = sum(min(keys, max(0, i + keys - queries + 1)) for i in range(queries)) if op.attribute("causal") else queries * keys
        heads = math.prod(query[:-2])
        self.work.flops += heads * (seen * (2 * query[-1] + 2 * width + FLOPS["math.exp"] + 4) + queries * width)
        self.work.known = op.operand("length") is None
        self._everything(op)

    def _everything(self, op: Operation) -> None:
        """Counts all elements of all operands and results."""
        for operand in op.operands:
            self._whole(operand, self.work.read)
        for result in op.results:
            self._whole(result, self.work.written)

    def _split(self, op: Operation) -> None:
        """Digits: a comparison with the largest, and a product, for each element."""
        self.work.flops += 2 * math.prod(self._shape(op, "x"))
        self._everything(op)

    def _product(self, op: Operation) -> None:
        """``digit_linear`` and ``packed_linear``: the product of floats that they stand for."""
        packed, digits = self._shape(op, "packed"), self._shape(op, "digits")
        flops = 2.0 * self._size(op.results[0]) * packed[1] * BLOCK
        self.work.flops += flops
        if digits:
            self.work.dots[digits[-2]] = self.work.dots.get(digits[-2], 0.0) + flops
        self._everything(op)

    def _rows(self, op: Operation) -> None:
        """``packed_embedding``: of each row that is named a part of every block of its panel, and a product or multiply-add for each element."""
        table, ids, result = op.operands[0], op.operands[1], op.results[0]
        assert isinstance(table.type, TensorType)
        form, size = packed_format(table.type), self._size(result)
        self.work.flops += size * (2 if form.minimum else 1)
        rows = min(float(self._size(table)), size / BLOCK * form.bytes / ROWS)
        self.work.read.setdefault(memory_of(table), {})["rows"] = rows
        self._whole(ids, self.work.read)
        self._whole(result, self.work.written)

    def _size(self, value: Value) -> int:
        assert isinstance(value.type, TensorType)
        return _elements(value.type, self.names)

    def _shape(self, op: Operation, name: str) -> list[int]:
        """The dimensions of an operand, none where it is left out."""
        operand = op.operand(name)
        type_ = None if operand is None else substitute_type(operand.type, dict(self.names))
        return [int(d) for d in type_.shape if isinstance(d, int)] if isinstance(type_, TensorType) else []

    # -- loops ---------------------------------------------------------------------------------------------------------

    def _nest(self, op: Operation, times: float) -> None:
        hidden = dict(self.extents)
        for argument in layout_of(op):
            if isinstance(argument, LoopDim):
                extent = max(0, self._number(op, argument.bound, 1))
                self.extents[argument.name] = extent
                times *= extent
        block = op.regions[0].block
        bound = [a.source for a in layout_of(op) if isinstance(a, BindArg) and isinstance(a.source, AccessArg)]
        stored = len(block.terminator.operand_uses) if op.name == "linalg.generic" and block.terminator is not None else 0
        for position, access in enumerate(bound):
            writes = position >= len(bound) - stored
            if writes:
                self._access(op, access, times, self.work.written)
            if not writes or block.arguments[position].has_uses:
                self._access(op, access, times, self.work.read)
        self.block(block, times)
        self.extents = hidden

    def _loop(self, op: Operation, times: float) -> None:
        """A loop, over all its ranges; where bounds inside depend on a variable, the rounds are gone through one by one."""
        block = op.regions[0].block
        bounding = _bounding(op)
        single: list[tuple[Value, range]] = []
        for bounds, variable in zip([a for a in layout_of(op) if isinstance(a, RangeArg)], block.arguments, strict=False):
            start, step = self._number(op, bounds.start, 0), max(1, self._number(op, bounds.step, 1))
            values = range(start, self._number(op, bounds.stop, start + step), step)
            self.extents[variable] = len(values)
            if variable in bounding and self.rounds + len(values) <= _LIMIT:
                single.append((variable, values))
            else:
                times *= len(values)
        for point in itertools.product(*(values for _, values in single)):
            self.rounds += 1
            self.numbers.update((variable, value) for (variable, _), value in zip(single, point, strict=True))
            self.block(block, times)
        for variable, _ in single:
            self.numbers.pop(variable, None)

    def _affine(self, op: Operation) -> None:
        result = op.results[0]
        variables = [v for use in op.operand_uses for v in self._variables(use.value)]
        self.made_of[result] = tuple(dict.fromkeys(variables))
        self.numbers.pop(result, None)
        expressions = [a.expr for a in layout_of(op) if isinstance(a, ExpressionArg)] if LAYOUT in op.attributes else []
        numbers = [self._known(op, e) for e in expressions]
        choose = {"affine.min": min, "affine.max": max, "affine.apply": min}.get(op.definition.full_name)
        if choose is not None and numbers and None not in numbers:
            self.numbers[result] = choose(n for n in numbers if n is not None)

    def _variables(self, value: Value) -> tuple[Value, ...]:
        return (value,) if value in self.extents else self.made_of.get(value, ())

    def _known(self, op: Operation, expression: Dim) -> int | None:
        operands = [self.numbers.get(v, 0) for v in op.operands]
        needed = [n for n in symbols_of(expression) if n.startswith("%")]
        if any(op.operands[int(n[1:])] not in self.numbers for n in needed):
            return None
        try:
            return evaluate_expr(expression, operands, self.names)
        except (KeyError, ZeroDivisionError):
            return None

    def _number(self, op: Operation, expression: Dim, otherwise: int) -> int:
        """The value of a bound; what depends on data is not known."""
        found = self._known(op, expression)
        if found is None:
            self.work.known = False
        return otherwise if found is None else found

    # -- accesses ------------------------------------------------------------------------------------------------------

    def _access(self, op: Operation, access: AccessArg, times: float, part: dict[Value, dict[str, float]]) -> None:
        """Counts the elements of an access: as many as the loops that it depends on have rounds."""
        buffer = op.operands[access.position]
        assert isinstance(buffer.type, MemRefType)
        run = math.prod(i.size or 1 for i in access.indices)
        form, extents = self._form(op, access.indices)
        elements = times * run if extents is None else min(times, float(math.prod(extents))) * run
        size = float(_elements(buffer.type, self.names))
        forms = part.setdefault(memory_of(buffer), {})
        forms[form] = max(forms.get(form, 0.0), min(elements, size))

    def _form(self, op: Operation, indices: Sequence[IndexExpr]) -> tuple[str, list[int] | None]:
        """How an access is written, names of loops aside, and the extents of those loops; None where data are an index."""
        loops: dict[str | Value, str] = {}
        renamed: dict[str, Dim] = {}
        data = False
        for name in dict.fromkeys(n for i in indices for n in symbols_of(i.expr)):
            value: str | Value = op.operands[int(name[1:])] if name.startswith("%") else name
            variables = (value,) if value in self.extents else self.made_of.get(value, ()) if isinstance(value, Value) else ()
            for variable in variables:
                loops.setdefault(variable, f"d{len(loops)}")
            if variables:
                renamed[name] = symbol("+".join(loops[v] for v in variables))
            elif isinstance(value, Value) and value not in self.numbers:
                renamed[name] = symbol("?")
                data = True
        text = ", ".join(f"{substitute(i.expr, renamed)}" + (f":+{i.size}" if i.size else "") for i in indices)
        return text, None if data else [self.extents[v] for v in loops]


def _bounding(loop: Operation) -> set[Value]:
    """Values that bounds of loops inside depend on."""
    found: set[Value] = set()
    for op in reversed(list(loop.walk())):
        if op.definition.dialect == "affine" and op.results[0] in found:
            found.update(op.operands)
        if LAYOUT in op.attributes and op is not loop:
            operands = op.operands
            for argument in layout_of(op):
                bounds = (
                    (argument.start, argument.stop, argument.step) if isinstance(argument, RangeArg)
                    else (argument.bound,) if isinstance(argument, LoopDim) else ()
                )  # fmt: skip
                found.update(operands[int(n[1:])] for b in bounds for n in symbols_of(b) if n.startswith("%"))
    return found
