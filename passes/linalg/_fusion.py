"""Looking at ``linalg.generic`` nests and joining them: what ``fuse`` and ``collapse`` share.

A nest here is a top-level ``linalg.generic``.  Its reads are bindings of accesses at the start of a round, its outputs
what its region yields.  Loop dimensions are names in index expressions, which are in value form
(:mod:`passes.loops._loops`); joining two nests is renaming dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dialects.arith.constant import constant
from dialects.arith.integers import addi, muli
from ir.attributes import Dense
from ir.builder import Builder
from ir.builtin import yield_
from ir.core import Block, Operation, Region, Trivia, Value
from ir.dims import Dim, DimExpr, substitute, symbol, symbols_of
from ir.layout import LAYOUT, AccessArg, BindArg, IndexExpr, LoopDim, OperandArg, layout_of
from ir.opdef import REGISTRY
from ir.substitute import substitute_attribute
from ir.types import MemRefType, ScalarType, index
from passes.loops._loops import Access, Bind, Form, number_layout, read_layout, write_layout

Indices = tuple[Dim, ...]

ALIASES = ("memref.reshape",)
"""Operations whose result is the memory of their operand."""


@dataclass
class Read:
    """A binding that reads: the region's argument, the buffer and the place in it."""

    argument: Value
    buffer: Value
    indices: Indices


@dataclass
class Output:
    """A value that is stored: the region's argument for the old element, the buffer, the place in it."""

    argument: Value
    buffer: Value
    indices: Indices
    value: Value


class Nest:
    """A view of a ``linalg.generic`` or ``linalg.reduce``."""

    def __init__(self, op: Operation) -> None:
        self.op = op
        layout = read_layout(op)
        self.dims = [a for a in layout if isinstance(a, LoopDim)]
        accesses = [a.source for a in layout if isinstance(a, Bind) and isinstance(a.source, Access)]
        block = op.regions[0].block
        yielded = block.terminator.operands if block.terminator is not None and op.name == "linalg.generic" else []
        first = len(accesses) - len(yielded)
        places = [(a.buffer, tuple(i.expr for i in a.indices)) for a in accesses]
        self.reads = [Read(arg, *place) for arg, place in zip(block.arguments, places[:first], strict=False)]
        self.outputs = [
            Output(arg, *place, value) for arg, place, value in zip(block.arguments[first:], places[first:], yielded, strict=False)
        ]

    @property
    def block(self) -> Block:
        return self.op.regions[0].block

    @property
    def names(self) -> list[str]:
        return [d.name for d in self.dims]


def is_nest(op: Operation) -> bool:
    """Whether the operation is a nest whose rounds may run in any order."""
    if op.name != "linalg.generic":
        return False
    return not any(a.reduce for a in layout_of(op) if isinstance(a, LoopDim))


def root(buffer: Value) -> Value:
    """The buffer whose memory this is."""
    while (op := buffer.defining_op) is not None and op.name in ALIASES:
        buffer = op.operands[0]
    return buffer


def aliases(buffer: Value) -> list[Value]:
    """The buffer and all that share its memory."""
    found = [buffer]
    for value in found:
        found += [u.results[0] for u in value.users if u.name in ALIASES]
    return found


def users_of_memory(buffer: Value) -> list[Operation]:
    """Operations that use the memory of a buffer by any name."""
    return list(dict.fromkeys(u for a in aliases(root(buffer)) for u in a.users if u.name not in ALIASES))


def top_level(op: Operation) -> Operation:
    """The operation of the graph's own block that this one stands in."""
    while op.block is not None and op.block.parent is not None and op.block.parent.parent is not None:
        op = op.block.parent.parent
    return op


def written_memory(op: Operation) -> list[Value]:
    """The memory that an operation, with all inside it, may write to."""
    found: list[Value] = []
    for inner in op.walk() if op.regions else (op,):
        name = inner.name
        if name == "linalg.generic":
            found += [root(b) for b in _output_buffers(inner)]
        elif name in ("memref.store", "vector.store"):
            access = layout_of(inner)[1]
            assert isinstance(access, AccessArg)
            found.append(root(inner.operand_uses[access.position].value))
        elif name in ("memref.load", "vector.load", "memref.to_tensor", "memref.dim", "memref.prefetch", "linalg.reduce", "builtin.reads", *ALIASES):
            continue
        elif not inner.definition.pure and not inner.regions:
            found += [root(v) for v in inner.operands if isinstance(v.type, MemRefType)]
    return found


def _output_buffers(op: Operation) -> list[Value]:
    """The buffers that a ``linalg.generic`` stores to itself."""
    terminator = op.regions[0].block.terminator
    count = len(terminator.operand_uses) if terminator is not None else 0
    layout = layout_of(op)
    sources = [a.source for a in layout[len(layout) - count :] if isinstance(a, BindArg)]
    return [op.operand_uses[s.position].value for s in sources]


def nested_nests(op: Operation) -> Iterator[Nest]:
    """All nests inside an operation, itself first."""
    for inner in op.walk():
        if inner.name in ("linalg.generic", "linalg.reduce"):
            yield Nest(inner)


def is_product(nest: Nest) -> bool:
    """Whether a reduction is a chain of fused multiply-adds of two elements."""
    return nest.op.name == "linalg.reduce" and any(o.name == "math.fma" for o in nest.block) and len(nest.reads) > 1


def share_factor(first: Nest, second: Nest, names: Mapping[str, str]) -> bool:
    """Whether two products of as many terms have a factor in common, and have it at the same side.

    ``names`` are loop dimensions around the second one by those around the first one.
    """
    if [d.bound for d in first.dims] != [d.bound for d in second.dims]:
        return False
    places: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    places.update((b.name, symbol(a.name)) for a, b in zip(first.dims, second.dims, strict=True))
    pairs = zip(first.reads, second.reads, strict=False)
    return any(a.buffer is b.buffer and a.indices == compose(b.indices, places) for a, b in pairs)


def has_effects_beside_memory(op: Operation) -> bool:
    """Whether something inside may stop the program."""
    return any(o.name == "cf.assert" for o in op.walk())


# -- names -------------------------------------------------------------------------------------------------------------


def dimension_names(op: Operation) -> set[str]:
    """All names of loop dimensions inside an operation."""
    return {d.name for n in nested_nests(op) for d in n.dims}


def used_names(op: Operation) -> set[str]:
    """All names in index expressions and bounds inside an operation."""
    found = dimension_names(op)
    for inner in op.walk():
        if LAYOUT in inner.attributes:
            found |= {n for form in read_layout(inner) for e in _expressions(form) for n in symbols_of(e)}
    return found


def _expressions(form: Form) -> list[Dim]:
    source = form.source if isinstance(form, Bind) else form
    if isinstance(source, Access):
        return [i.expr for i in source.indices]
    return [source.bound] if isinstance(source, LoopDim) else []


def fresh_name(taken: set[str]) -> str:
    """A short name for a loop dimension that is not taken yet; it is then."""
    for name in (*"ijklmnpq", *(f"i{n}" for n in range(len(taken) + 1))):
        if name not in taken:
            taken.add(name)
            return str(name)
    raise AssertionError("names never run out")


def rename_dims(ops: Iterable[Operation], names: Mapping[str, str]) -> None:
    """Gives loop dimensions other names, all at once, in everything that mentions them."""
    bindings: dict[str, Dim] = {old: symbol(new) for old, new in names.items()}
    for op in ops:
        for inner in op.walk():
            if LAYOUT not in inner.attributes:
                continue
            layout = substitute_attribute(inner.attributes[LAYOUT], bindings)
            assert isinstance(layout, tuple)
            renamed = tuple(LoopDim(names.get(a.name, a.name), a.bound, a.reduce) if isinstance(a, LoopDim) else a for a in layout)
            inner.set_attribute(LAYOUT, renamed)  # type: ignore[arg-type]
            if inner.name == "linalg.index":
                name = inner.attributes["dim"]
                assert isinstance(name, str)
                inner.set_attribute("dim", names.get(name, name))


def place_dims(ops: Sequence[Operation], places: Mapping[str, Dim]) -> None:
    """Puts expressions in the place of loop dimensions that no longer exist around the operations."""
    for op in ops:
        for inner in list(op.walk()):
            if LAYOUT not in inner.attributes:
                continue
            inner.set_attribute(LAYOUT, substitute_attribute(inner.attributes[LAYOUT], places))
            name = inner.attributes.get("dim")
            if inner.name == "linalg.index" and name in places:
                _place_index(inner, places[name])  # type: ignore[index]


def plain_name(expr: Dim) -> str | None:
    """The name that an expression is, None when it is anything else."""
    if isinstance(expr, DimExpr) and len(expr.terms) == 1:
        monomial, coefficient = expr.terms[0]
        atom = monomial[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(atom, str):
            return str(atom)
    return None


def is_sum_of_names(expr: Dim, names: Sequence[str]) -> bool:
    """Whether an expression is a constant, or a sum of multiples of some of the names: what an index value can be made of."""
    if isinstance(expr, int):
        return True
    return isinstance(expr, DimExpr) and all(len(m) <= 1 and all(isinstance(a, str) and a in names for a in m) for m, _ in expr.terms)


def _place_index(op: Operation, expr: Dim) -> None:
    """Replaces ``linalg.index`` by the value of an expression (see :func:`is_sum_of_names`)."""
    name = plain_name(expr)
    if name is not None:
        op.set_attribute("dim", name)
        return
    with Builder.before_op(op) as builder:
        total: Value | None = None
        terms = expr.terms if isinstance(expr, DimExpr) else (((), expr),)
        for monomial, coefficient in terms:
            assert isinstance(coefficient, int)
            value: Value = _index_number(coefficient)
            if monomial:
                attributes: Any = {LAYOUT: (), "dim": str(monomial[0])}
                at = builder.create(REGISTRY["linalg.index"], [], attributes, result_types=[ScalarType(index)]).result
                value = at if coefficient == 1 else muli(at, value)
            total = value if total is None else addi(total, value)
    assert total is not None
    op.results[0].replace_all_uses_with(total)
    op.erase()


def _index_number(value: int) -> Value:
    import numpy as np

    return constant(Dense(np.array(value, np.int64), index))  # type: ignore[no-any-return]


def compose(indices: Indices, places: Mapping[str, Dim]) -> Indices:
    """Index expressions with expressions in the place of names."""
    return tuple(substitute(e, places) for e in indices)


# -- building ----------------------------------------------------------------------------------------------------------


def take_body(nest: Nest) -> list[Operation]:
    """Takes the operations out of a nest's region, but for its terminator."""
    ops = [op for op in nest.block if not op.definition.is_terminator]
    for op in ops:
        op.remove()
    return ops


def build_nest(
    before: Operation | None,
    block: Block,
    dims: Sequence[LoopDim],
    reads: Sequence[Read],
    body: Sequence[Operation],
    outputs: Sequence[Output],
    retired: Sequence[Operation],
) -> Operation:
    """A ``linalg.generic`` of operations that stand nowhere; old arguments are replaced by those of the new region.

    Reads of the same place share an argument.  The ``retired`` nests, whose parts it is made of, are erased; their
    comments stay.
    """
    region = Region()
    bindings: list[tuple[Value, Indices]] = []
    shared: dict[tuple[Value, Indices], Value] = {}
    for read in reads:
        place = (read.buffer, read.indices)
        if place not in shared:
            shared[place] = region.block.add_argument(read.argument.name, read.argument.type)
            bindings.append(place)
        read.argument.replace_all_uses_with(shared[place])
    for output in outputs:
        argument = region.block.add_argument(output.argument.name, output.argument.type)
        output.argument.replace_all_uses_with(argument)
        bindings.append((output.buffer, output.indices))
    values = [shared_value(o.value, reads, shared) for o in outputs]
    for op in body:
        region.block.append(op)
    loc, trivia = retired[-1].loc, joined_trivia(retired)
    Builder(region.block, loc=loc).create(yield_, values)
    for op in retired:
        op.trivia = None
        op.erase()
    graph = block.graph
    assert graph is not None
    forms: list[Form] = [*dims, *(Bind(Access(buffer, tuple(map(IndexExpr, indices)))) for buffer, indices in bindings)]
    operands, layout = number_layout(forms, graph)
    attributes: Any = {LAYOUT: layout}
    op = Builder(block, before, loc=loc).create(REGISTRY["linalg.generic"], operands, attributes, regions=[region], result_types=())
    op.trivia = trivia
    return op


def set_bindings(op: Operation, reads: Sequence[Read], outputs: Sequence[Output], dims: Sequence[LoopDim] | None = None) -> None:
    """Replaces the bindings of accesses of a nest, and its loop dimensions where others are given; accumulated values stay."""
    graph = op.graph
    assert graph is not None
    block = op.regions[0].block
    layout = read_layout(op)
    dims = [a for a in layout if isinstance(a, LoopDim)] if dims is None else dims
    inits = [a.source for a in layout if isinstance(a, Bind) and isinstance(a.source, Value)]
    carried = block.arguments[len(block.arguments) - len(inits) :] if inits else []
    places = [(r.buffer, r.indices) for r in reads] + [(o.buffer, o.indices) for o in outputs]
    arguments = [*(r.argument for r in reads), *(o.argument for o in outputs), *carried]
    kept = set(arguments)
    for old in block.arguments:
        if old not in kept and graph.names.get(old.name) is old:
            graph._release(old.name)
    for position, value in enumerate(arguments):
        value.owner, value.index = block, position
        if graph.names.get(value.name) is not value:
            graph._claim(value)
    block.arguments = arguments
    bindings = [Bind(Access(buffer, tuple(map(IndexExpr, indices)))) for buffer, indices in places]
    write_layout(op, [*dims, *bindings, *map(Bind, inits)])
    if op.name == "linalg.generic" and block.terminator is not None:
        block.terminator.set_operands([o.value for o in outputs])


def joined_trivia(ops: Sequence[Operation]) -> Trivia | None:
    found = [op.trivia for op in ops if op.trivia is not None]
    if not found:
        return None
    return Trivia(
        any(t.blank_before for t in found),
        tuple(c for t in found for c in t.detached),
        tuple(line for t in found for line in t.leading),
        next((t.trailing for t in reversed(found) if t.trailing), ()),
    )


def shared_value(value: Value, reads: Sequence[Read], shared: Mapping[tuple[Value, Indices], Value]) -> Value:
    """What stands for a yielded value: an argument of an old region is one of the new region now."""
    for read in reads:
        if read.argument is value:
            return shared[(read.buffer, read.indices)]
    return value


def carried_operands(op: Operation) -> list[Value]:
    """The initial values of a ``linalg.reduce``."""
    return [op.operand_uses[a.source.position].value for a in layout_of(op) if isinstance(a, BindArg) and isinstance(a.source, OperandArg)]
