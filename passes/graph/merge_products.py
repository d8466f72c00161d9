"""Pass ``merge-products``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from dialects.graph.arithmetic import add
from dialects.graph.constant import full, iota
from dialects.graph.indexing import concat, slice_
from dialects.graph.matmul import linear, matmul
from dialects.graph.shape import flatten, reshape, squeeze, transpose, unsqueeze
from ir.builder import Builder
from ir.core import Graph, Module, Operation, Value
from ir.rewriter import move_before, replace_op, walk_graphs
from ir.types import TensorType
from passes.graph.hoist_to_init import known_at_load_time
from passes.infra.base import Pass, PassContext
from passes.infra.decisions import Decision, Decisions, Group, Rule, Step

_MOVES = (reshape, flatten, squeeze, unsqueeze, transpose)
"""What stands between a product and the operation that computes with it."""
_MADE_UP = (full, iota)
"""What takes no memory before the program runs."""


@dataclass(frozen=True)
class MergeProducts(Pass):
    """Makes one product of several that multiply the same tensor by weights: queries, keys and values.

    Before::

        graph @main(%x: f32[B, 8]) -> f32[2, 2, B] {
          %w = weight(@f, "wq") : f32[4, 8]
          %v = weight(@f, "wk") : f32[4, 8]
          %q = linear(%x, %w)
          %k = linear(%x, %v)
          ...
        }

    After::

        graph @main(%x: f32[B, 8]) -> f32[2, 2, B] {
          %w = weight(@f, "wq") : f32[4, 8]
          %v = weight(@f, "wk") : f32[4, 8]
          %q.concat = concat(%w, %v, axis=0) : f32[8, 8]
          %q.linear = linear(%x, %q.concat) : f32[B, 8]
          %q = slice(%q.linear, starts=[0], ends=[4], axes=[1]) : f32[B, 4]
          %k = slice(%q.linear, starts=[4], ends=[8], axes=[1]) : f32[B, 4]
          ...
        }

    The tensor is read once, threads meet once, and narrow products (grouped keys and values) share the blocks of a wide one.
    ``hoist-to-init`` puts the weights together when the program is loaded; the slices become places in the loops that read them.
    Each element is the same sum as before, with the same bits in machine code, whose sums have one order; the interpreter leaves
    the order to numpy, where it depends on the shape.

    Merged are ``linear`` with a bias and without, and ``matmul`` by a matrix, with a vector that is added to it or without.  All
    weights must be known when the program is loaded.  A product stays when what follows works on its elements one by one: that goes
    into the loops of the product (see ``fuse``), as do gate and up; and when it is a result of the graph, which a slice would
    have to copy.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            groups = [g for g in _groups(graph).values() if len(g) > 1]
            if groups and context.decisions is not None:
                context.decisions.append(_record(graph, groups))
            for group in groups:
                _merge(graph, group)
                context.count("products merged", len(group))
                changed = True
        return changed


@dataclass(frozen=True)
class _Product:
    """A product and what is added to it.  ``last`` makes the sum; the weight has its columns along ``axis``."""

    op: Operation
    last: Operation
    x: Value
    weight: Value
    bias: Value | None
    axis: int

    @property
    def columns(self) -> int:
        assert isinstance(self.weight.type, TensorType)
        size = self.weight.type.shape[self.axis]
        assert isinstance(size, int)
        return size


def _groups(graph: Graph) -> dict[tuple[object, ...], list[_Product]]:
    """The products that could be one, by what they have in common."""
    known = known_at_load_time(graph)
    found: dict[tuple[object, ...], list[_Product]] = {}
    for op in graph.block:
        product = _product(op, known)
        if product is not None and not _is_worked_on(product.last):
            key = (product.x, op.definition, product.axis, product.bias is None, product.last.definition)
            found.setdefault(key, []).append(product)
    return found


def _product(op: Operation, known: Mapping[Operation, None]) -> _Product | None:
    if op.definition is linear:
        x, weight, bias = op.operand("x"), op.operand("weight"), op.operand("bias")
        assert x is not None and weight is not None
        if not _is_stored(weight, 2, known) or (bias is not None and not _is_stored(bias, 1, known)):
            return None
        return _Product(op, op, x, weight, bias, 0)
    if op.definition is not matmul or op.attribute("transpose_a"):
        return None
    x, weight = op.operands
    if not _is_stored(weight, 2, known) or not isinstance(x.type, TensorType) or x.type.rank < 2:
        return None
    product = _Product(op, op, x, weight, None, 0 if op.attribute("transpose_b") else 1)
    users = op.result.users
    if len(users) == 1 and users[0].definition is add and users[0].block is op.block:
        other = next((v for v in users[0].operands if v is not op.result), None)
        if other is not None and _is_stored(other, 1, known) and other.type.shape == (product.columns,):  # type: ignore[union-attr]
            return _Product(op, users[0], x, weight, other, product.axis)
    return product


def _is_stored(value: Value, rank: int, known: Mapping[Operation, None]) -> bool:
    """Whether a value is made of weights and constants, and has so many dimensions."""
    if not isinstance(value.type, TensorType) or value.type.rank != rank or value.type.dtype.is_block or value.defining_op not in known:
        return False
    return not any(op.definition in _MADE_UP for op in _makers(value))


def _makers(value: Value) -> Iterator[Operation]:
    """The operations that a value is made by, the last one first."""
    pending, seen = [value], {value}
    while pending:
        op = pending.pop().defining_op
        if op is not None:
            yield op
            pending += [v for v in op.operands if v not in seen]
            seen.update(op.operands)


def _is_worked_on(op: Operation) -> bool:
    """Whether elements of a result are computed with one by one, or are handed out, before anything else happens to them."""
    (result,) = op.results
    for user in result.users:
        if user.definition in _MOVES:
            if user.definition is not transpose and _is_handed_out(user):
                return True
            if user.definition is transpose and _is_worked_on(user):
                return True
        elif user.definition.elementwise or _hands_out(user):
            return True
    return not result.has_uses


def _is_handed_out(op: Operation) -> bool:
    """Whether a tensor under another shape is a result of the graph, or leaves it in another way."""
    return any(_is_handed_out(u) if u.definition in _MOVES and u.definition is not transpose else _hands_out(u) for u in op.results[0].users)


def _hands_out(op: Operation) -> bool:
    """Whether an operation takes tensors as they are: the graph's end, print, calls; updates of caches are loops like others."""
    definition = op.definition
    return definition.is_terminator or definition.dialect != "graph" or not (definition.pure or definition.updates is not None)


def _merge(graph: Graph, group: list[_Product]) -> None:
    first = group[0]
    anchor = first.op
    assert anchor.block is not None
    _bring_weights(graph, group, anchor)
    builder = Builder.before_op(anchor)
    with builder:
        weight = concat(*(p.weight for p in group), axis=first.axis)
        bias = None if first.bias is None else concat(*(p.bias for p in group), axis=0)
        if anchor.definition is linear:
            whole = linear(first.x, weight, bias=bias) if bias is not None else linear(first.x, weight)
        else:
            whole = matmul(first.x, weight, transpose_b=first.axis == 0)
            whole = whole if bias is None else add(whole, bias)
        parts = []
        start = 0
        for product in group:
            axis = whole.type.rank - 1
            parts.append(slice_(whole, starts=(start,), ends=(start + product.columns,), axes=(axis,)))
            start += product.columns
    for product, part in zip(group, parts, strict=True):
        replace_op(product.last, [part])
        if product.last is not product.op:
            product.op.erase()


def _bring_weights(graph: Graph, group: list[_Product], anchor: Operation) -> None:
    """Moves what makes the weights in front of the first product."""
    behind: set[Operation] = set()
    op = anchor.next
    while op is not None:
        behind.add(op)
        op = op.next
    needed = {m for p in group for v in (p.weight, p.bias) if v is not None for m in _makers(v)} & behind
    for op in [o for o in graph.block if o in needed]:
        move_before(op, anchor, graph.block)


def _record(graph: Graph, groups: list[list[_Product]]) -> Decisions:
    found = Decisions(graph.name, what="product")
    for group in groups:
        numbers = list(range(len(found.steps), len(found.steps) + len(group)))
        found.steps += [Step(p.last.results[0].name, p.op.loc) for p in group]
        found.groups.append(Group(f"%{group[0].x.name} by {sum(p.columns for p in group)} columns", numbers, []))
        found.decisions += [Decision(numbers[0], n, Rule.MERGED) for n in numbers[1:]]
    return found
