"""Pass ``quantize-products``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from dialects.graph.arithmetic import add
from dialects.graph.digits import FORMATS, LARGEST, digit_linear, pack_rows, packed_embedding, packed_linear, split_digits
from dialects.graph.indexing import embedding, gather, slice_
from dialects.graph.matmul import linear
from ir.builder import Builder
from ir.core import Block, Graph, Module, Operation, Value
from ir.diagnostics import FusedLocation
from ir.rewriter import move_before, replace_op, walk_graphs
from ir.types import TensorType
from passes.graph.hoist_to_init import known_at_load_time
from passes.infra.base import Pass, PassContext

PRECISIONS: Mapping[str, int] = {"f32": 3, "int16": 2, "int8": 1, "float": 0}
"""Names of what ``digits`` may be: about the accuracy of f32, of 16 bits, of 8 bits; floats on both sides."""
_ERROR_BITS = {3: 23, 2: 16, 1: 8, 0: 24}
"""How many bits of the largest element of a block of activations are right; without digits, of a weight."""


@dataclass(frozen=True)
class QuantizeProducts(Pass):
    """Multiplies by block-quantized weights as they are: activations become exact int8 digits, weights are packed once.

    Before::

        graph @main(%x: f32[B, 64]) -> f32[B, 24] {
          %wq = weight(@f, "wq") : q4_1[48, 64]
          %wk = weight(@f, "wk") : q4_1[16, 64]
          %q = linear(%x, %wq)
          %k = linear(%x, %wk)
          ...
        }

    After::

        graph @main(%x: f32[B, 64]) -> f32[B, 24] {
          %wq = weight(@f, "wq") : q4_1[48, 64]
          %wk = weight(@f, "wk") : q4_1[16, 64]
          %q.packed = pack_rows(%wq, %wk) : u8[2, 2, 640]
          %x.digits, %x.scales, %x.sums = split_digits(%x, digits=3) : i8[B, 2, 3, 32], f32[B, 2, 2], i32[B, 2, 3]
          %q.linear = digit_linear(%x.digits, %x.scales, %x.sums, %q.packed, rows=64) : f32[B, 64]
          %q = slice(%q.linear, starts=[0], ends=[48], axes=[1]) : f32[B, 48]
          %k = slice(%q.linear, starts=[48], ends=[64], axes=[1]) : f32[B, 16]
          ...
        }

    This is for ``linear`` with a weight of ``q4_0``, ``q4_1`` or ``q8_0``; a bias is added to the product.  All products of one tensor
    share its digits, those whose weights have one type become one product, of which pieces are taken.  ``embedding`` and ``gather`` of
    rows of such a table read it from the packed form, that of the product where it is a weight, too (tied embeddings).  A weight is
    packed once; one that different groups of products share, or that is a table, is packed alone.  ``hoist-to-init`` has that done
    when the program is loaded; so weights that are not known then (parameters) stay what they are, and empty ones do.

    ``digits`` is how many digits of 8 bits an activation has, in units of a scale of its own for every 32 of them (``split_digits``).  With the
    largest magnitude m of 32 activations, each is off by at most m * 2^-22.91 with three digits, m * 2^-15.91 with two and m * 2^-7.90 with
    one, or by 2^-101 where that is more, as scales stop at 2^-100; sums over them are exact integers, and blocks of 32 are added in f32.
    With 0 activations stay floats, and weights are rounded to f32 (``packed_linear``).
    """

    preserves: ClassVar[Literal["bits", "values", "approximate"]] = "approximate"
    keeps_types: ClassVar[bool] = True

    digits: int = 3
    """digits of 8 bits for each activation, 1 to 3; 0 for floats"""

    def __post_init__(self) -> None:
        if self.digits not in (0, *LARGEST):
            raise ValueError(f"digits={self.digits}: expected 0, 1, 2 or 3")

    def tolerance(self) -> float:
        return 16 * 2.0 ** -_ERROR_BITS[self.digits]

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in walk_graphs(module):
            found = _Found(graph)
            if found.products or found.tables:
                _Rewriting(graph, found, self.digits).run()
                context.count("products with packed weights", len(found.products))
                context.count("tables that are packed", len(found.tables))
                changed = True
        return changed


@dataclass(frozen=True)
class _Product:
    """A product; its operands are asked for when they are needed, as they may be results of what is replaced before it."""

    op: Operation

    @property
    def x(self) -> Value:
        return _operand(self.op, "x")

    @property
    def weight(self) -> Value:
        return _operand(self.op, "weight")

    @property
    def bias(self) -> Value | None:
        return self.op.operand("bias")

    @property
    def rows(self) -> int:
        return _rows(self.weight)


def _operand(op: Operation, name: str) -> Value:
    found = op.operand(name)
    assert found is not None
    return found


def _rows(weight: Value) -> int:
    assert isinstance(weight.type, TensorType)
    size = weight.type.shape[0]
    assert isinstance(size, int)
    return size


class _Found:
    """What can be rewritten in a graph: products, and operations that look rows up in a table."""

    def __init__(self, graph: Graph) -> None:
        self.products: list[_Product] = []
        self.tables: list[tuple[Operation, Value]] = []
        self.order: dict[Operation, int] = {}
        known = known_at_load_time(graph)
        for op in graph.walk():
            self.order[op] = len(self.order)
            if op.definition is linear:
                if _is_packable(_operand(op, "weight"), known):
                    self.products.append(_Product(op))
            elif op.definition is embedding or (op.definition is gather and op.attribute("axis") in (0, -2)):
                if _is_packable(op.operands[0], known):
                    self.tables.append((op, op.operands[0]))

    def groups(self) -> Iterator[list[_Product]]:
        """The products that become one, in order of the first of each."""
        shared: dict[tuple[object, ...], list[_Product]] = {}
        for product in self.products:
            assert isinstance(product.weight.type, TensorType)
            key: tuple[object, ...] = (product.op.block, product.x, product.weight.type.dtype)
            first = shared[key][0] if key in shared else product
            if not self._is_ready(product.weight, first.op):
                key = (*key, product.op)
            shared.setdefault(key, []).append(product)
        alone = self._alone(shared.values())
        for group in shared.values():
            together = [p for p in group if p.weight not in alone]
            if together:
                yield together
            single: dict[Value, list[_Product]] = {}
            for product in group:
                if product.weight in alone:
                    single.setdefault(product.weight, []).append(product)
            yield from single.values()

    def _is_ready(self, weight: Value, at: Operation) -> bool:
        """Whether a weight is there in front of an operation, or can be brought there."""
        made = weight.defining_op
        assert made is not None
        return not made.operand_uses or self.order[made] < self.order[at]

    def _alone(self, groups: Iterable[list[_Product]]) -> set[Value]:
        """Weights that are packed alone, since they would be packed several times otherwise: tables, and those of several groups."""
        alone = {table for _, table in self.tables}
        seen: dict[Value, tuple[Value, ...]] = {}
        for group in groups:
            weights = _weights(group)
            for weight in weights:
                if seen.setdefault(weight, weights) != weights:
                    alone.add(weight)
        return alone


def _is_packable(weight: Value, known: Mapping[Operation, None]) -> bool:
    """Whether a value is a matrix of blocks that is there when the program is loaded, and not empty."""
    type_ = weight.type
    if not isinstance(type_, TensorType) or type_.dtype.name not in FORMATS or type_.rank != 2 or 0 in type_.shape:
        return False
    return weight.defining_op in known


def _weights(group: list[_Product]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(p.weight for p in group))


@dataclass
class _Rewriting:
    graph: Graph
    found: _Found
    digits: int
    packed: dict[tuple[Value, ...], Value] = field(default_factory=dict)
    split: dict[tuple[Block | None, Value], tuple[Value, ...]] = field(default_factory=dict)

    def run(self) -> None:
        work: list[tuple[Operation, list[_Product] | Value]] = [(group[0].op, group) for group in self.found.groups()]
        work += self.found.tables
        for op, what in sorted(work, key=lambda w: self.found.order[w[0]]):  # so that what is shared stands in front of all
            if isinstance(what, list):
                self._products(what)
            else:
                self._table(op, what)

    def _pack(self, weights: tuple[Value, ...], op: Operation, name: str) -> Value:
        """The packed form of weights; made in front of the operation of the graph's own block that ``op`` is, or stands in."""
        if weights not in self.packed:
            anchor = self._top_level(op)
            for weight in weights:
                made = weight.defining_op
                if made is not None and made.block is anchor.block and self.found.order[made] > self.found.order[anchor]:
                    move_before(made, anchor, self.graph.block)
            with Builder.before_op(anchor):
                self.packed[weights] = pack_rows(*weights, name=f"{name}.packed")
        return self.packed[weights]

    def _top_level(self, op: Operation) -> Operation:
        """The operation of the graph's own block that an operation is, or stands in."""
        while op.block is not self.graph.block:
            assert op.block is not None and op.block.parent is not None and op.block.parent.parent is not None
            op = op.block.parent.parent
        return op

    def _table(self, op: Operation, table: Value) -> None:
        packed = self._pack((table,), op, table.name)
        with Builder.before_op(op):
            rows = packed_embedding(packed, op.operands[1], rows=_rows(table), named=op.definition.text_name)
        replace_op(op, [rows])

    def _products(self, group: list[_Product]) -> None:
        first, weights = group[0], _weights(group)
        packed = self._pack(weights, first.op, first.weight.name if len(weights) == 1 else first.op.result.name)
        starts, total = {}, 0
        for weight in weights:
            starts[weight] = total
            total += _rows(weight)
        with Builder.before_op(first.op) as builder:
            if len(group) > 1:
                builder.loc = FusedLocation([p.op.loc for p in group if p.op.loc is not None])
            whole = self._multiply(first, packed, total, "" if len(weights) == 1 else f"{first.op.result.name}.linear")
        for product in group:
            with Builder.before_op(product.op):
                result = self._piece(product, whole, starts[product.weight], total)
            replace_op(product.op, [result])

    def _multiply(self, product: _Product, packed: Value, rows: int, name: str) -> Value:
        x = product.x
        if not self.digits:
            return packed_linear(x, packed, rows=rows, **_named(name))  # type: ignore[no-any-return]
        key = product.op.block, x
        if key not in self.split:
            self.split[key] = split_digits(x, digits=self.digits)
            for value, what in zip(self.split[key], ("digits", "scales", "sums"), strict=True):
                self.graph.rename(value, f"{x.name}.{what}")
        return digit_linear(*self.split[key], packed, rows=rows, **_named(name))  # type: ignore[no-any-return]

    def _piece(self, product: _Product, whole: Value, start: int, total: int) -> Value:
        assert isinstance(whole.type, TensorType)
        piece = whole
        if product.rows != total:
            piece = slice_(whole, starts=(start,), ends=(start + product.rows,), axes=(whole.type.rank - 1,))
        return piece if product.bias is None else add(piece, product.bias)


def _named(name: str) -> dict[str, str]:
    return {"name": name} if name else {}
