"""Pass ``map-digits``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dialects.arith.comparison import cmpi
from dialects.memref import to_tensor
from ir.core import Module, Operation, Value
from ir.dims import Dim, product
from ir.references import load_time_graphs
from ir.rewriter import walk_graphs
from passes.gpu._digits import LaneFloats, LaneProduct, OwnDigits, StoredDigits, WarpSplit, gather_rows
from passes.infra.base import Pass, PassContext
from passes.loops._alike import Alike
from passes.loops._blocks import alloc, buffer_type, choose, index_value
from passes.loops._digits import activations_of
from passes.loops._weights import weights_of
from passes.loops.lower_digits import Lowering, format_of, has_known_sizes, lower_op


@dataclass(frozen=True)
class MapDigits(Pass):
    """Turns products with packed weights, and what feeds them, into kernels with a lane of a warp for each of the 32 rows of a panel.

    These are ``split_digits``, ``digit_linear``, ``packed_linear`` and ``packed_embedding``; weights stay packed as for the CPU.

    Before::

        graph @main(%x: f32[1, 576], %p: u8[18, 18, 640]) -> f32[1, 576] {
          %d, %s, %t = split_digits(%x)
          %y = digit_linear(%d, %s, %t, %p, rows=576)
          return %y
        }

    After (what ``digit_linear`` becomes, for one word of weights and one digit of three)::

        gpu.launch(%panel = 0 to 18, %tile = 0 to 1, threads=288, name="y", tag="digits") {
          ...
          %stored = memref.load(%p.words[%panel, %block, %lane]) : i32
          %lower = arith.andi(%stored, %low) : i32
          ...
          %exact.0 = arith.dot4(%lower, %four, %nothings) : vector<i32[1, 1]>

    One row, or a few, are bound by the memory of the weights: the warps of a block of threads share the blocks of 32 steps of a panel, so
    that all of them are under way at once; their exact sums meet in shared memory, where a warp for each row adds them in order.  A single
    row is split by the warps that multiply it, where nothing else needs its digits: one kernel less to wait for.  ``few`` rows are worked on at
    a time then.  From ``enough`` rows on a warp goes through a panel for ``many`` rows at a time, which share what it loads.  The number of
    rows chooses, when the program runs where it is open.  All forms give the bits of machine code on the CPU (:mod:`passes.gpu._digits`).
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    few: int = 4
    """rows that are worked on at a time where they are more than one, but not many: 1 to 8"""
    many: int = 8
    """rows that a warp works on at a time where they are many: 1 to 16"""
    enough: int = 64
    """from so many rows on they are many"""

    def __post_init__(self) -> None:
        if not 1 <= self.few <= 8 or not 1 <= self.many <= 16:
            raise ValueError("few: expected 1 to 8; many: 1 to 16")
        if self.enough < 2:
            raise ValueError("enough: expected 2 or more")

    def run(self, module: Module, context: PassContext) -> bool:
        lowerings: dict[str, Callable[[Operation], Lowering]] = {
            "split_digits": lambda op: _split,
            "digit_linear": lambda op: self._digits,
            "packed_linear": lambda op: self._floats,
            "packed_embedding": lambda op: _embedding,
        }
        changed, alike = False, Alike()
        at_load_time = load_time_graphs(module)
        for graph in walk_graphs(module):
            for op in list(graph.block) if graph.name not in at_load_time else ():
                lower = lowerings.get(op.definition.text_name)
                if lower is None or not has_known_sizes(op) or _is_split_later(op):
                    continue
                split = _own_split(op)
                if split is not None:
                    self._together(op, split, alike)
                else:
                    lower_op(op, lower(op), alike)
                context.count(f"{op.definition.text_name} mapped")
                changed = True
        return changed

    def _together(self, op: Operation, split: Operation, alike: Alike) -> None:
        """A product with the digits that only it reads."""
        x, packed = split.operand("x"), op.operand("packed")
        assert x is not None and packed is not None
        lower_op(op, self._with_split, alike, [x, packed], extra=split.attribute("digits"))
        split.erase()
        source = x.defining_op
        if source is not None and source.definition is to_tensor and not x.has_uses:
            source.erase()

    def _with_split(self, op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
        split = _own_split(op)
        assert split is not None
        count: Any = split.attribute("digits")
        own, weights = OwnDigits(operands[0], count), weights_of(operands[1], format_of(op))
        one = LaneProduct(own, weights, results[0], 1, True, op.result.name).build
        if own.rows == 1:
            one()
            return
        buffers = [alloc(f"{r.name}.buffer", r.type.dtype, *r.type.shape) for r in split.results]  # type: ignore[union-attr]
        stored, first = StoredDigits(activations_of(*buffers)), WarpSplit(split.results[0].name, operands[0], *buffers)

        def form(rows: int, shared_steps: bool) -> Callable[[], None]:
            def build() -> None:
                first.build()
                LaneProduct(stored, weights, results[0], rows, shared_steps, op.result.name).build()

            return build

        _by_rows(own.rows, [(1, one), (self.enough - 1, form(self.few, True))], form(self.many, False))

    def _digits(self, op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
        digits, scales, sums, packed = operands
        x, weights = StoredDigits(activations_of(digits, scales, sums)), weights_of(packed, format_of(op))

        def form(rows: int, shared_steps: bool) -> Callable[[], None]:
            return LaneProduct(x, weights, results[0], rows, shared_steps, op.result.name).build

        one, few, many = form(1, True), form(self.few, True), form(self.many, False)
        _by_rows(x.rows, [(1, one), (self.enough - 1, few)], many)

    def _floats(self, op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
        x, packed = operands
        weights, rows = weights_of(packed, format_of(op)), product(buffer_type(x).shape[:-1])

        def form(size: int) -> Callable[[], None]:
            return LaneFloats(x, weights, results[0], size, op.result.name).build

        _by_rows(rows, [(self.enough - 1, form(1))], form(self.many))


def _own_split(op: Operation) -> Operation | None:
    """The ``split_digits`` of a ``digit_linear`` that nothing else reads."""
    digits = op.operand("digits") if op.definition.text_name == "digit_linear" else None
    split = digits.defining_op if digits is not None else None
    if split is None or split.definition.text_name != "split_digits" or split.block is not op.block or not has_known_sizes(split):
        return None
    found = [op.operand(name) for name in ("digits", "scales", "sums")]
    return split if found == list(split.results) and all(r.users == [op] for r in split.results) else None


def _is_split_later(op: Operation) -> bool:
    """Whether it is a ``split_digits`` that is mapped with its only reader."""
    users = op.results[0].users if op.definition.text_name == "split_digits" else []
    return len(users) == 1 and has_known_sizes(users[0]) and _own_split(users[0]) is op


def _by_rows(rows: Dim, forms: Sequence[tuple[int, Callable[[], None]]], last: Callable[[], None]) -> None:
    """The first form whose limit the number of rows does not exceed; chosen when the program runs where the number is open."""
    if not forms:
        last()
        return
    (limit, form), *rest = forms
    if isinstance(rows, int):
        form() if rows <= limit else _by_rows(rows, rest, last)
        return
    fits = cmpi(index_value("apply", rows, name="rows"), index_value("apply", limit, name="limit"), predicate="le")
    choose(fits, form, lambda: _by_rows(rows, rest, last))


def _split(op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
    WarpSplit(op.results[0].name, operands[0], *results).build()


def _embedding(op: Operation, operands: Sequence[Value], results: Sequence[Value]) -> None:
    rows: Any = op.attribute("rows")
    gather_rows(weights_of(operands[0], format_of(op)), operands[1], results[0], int(rows), str(op.attribute("named")), op.result.name)
