"""Pass ``lower-rope``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dialects.arith.cast import sitofp, truncf
from dialects.arith.floats import addf, mulf, negf
from dialects.graph.constant import constant
from dialects.graph.rope import inverse_frequencies
from dialects.math.functions import cos, sin
from dialects.memref import from_tensor, to_tensor
from dialects.vector import shuffle
from ir.attributes import Dense
from ir.builder import Builder
from ir.core import Module, Operation, Value
from ir.dims import Dim
from ir.references import load_time_graphs
from ir.rewriter import walk_graphs
from ir.types import ScalarType, TensorType, f32, f64
from passes.graph._rope import is_whole
from passes.infra.base import Pass, PassContext
from passes.loops._blocks import alloc, load, loop, parallel, store
from passes.loops._tensors import Sources, buffer_of, replace, whole

LANES = 16
"""Numbers of a row that are turned at a time, an even number of them."""

Tables = dict[tuple[Value, int, float], tuple[Value, Value]]
"""Cosines and sines by positions, width and base."""


@dataclass(frozen=True)
class LowerRope(Pass):
    """Turns rotary embeddings of interleaved pairs into loops over vectors of neighbours.

    Before::

        graph @main(%x: f32[4, S, 64], %positions: i64[S]) -> f32[4, S, 64] {
          %y = rope(%x, %positions, interleaved=true)
          return %y
        }

    After (the rotation)::

        scf.parallel(%b = 0 to 1, %s = 0 to S, %h = 0 to 4, tag="row") {
          scf.for(%d = 0 to 64 step 16) {
            %x.1 = vector.load(%x.buffer.view[%b, %h, %s, %d:+16]) : vector<f32[16]>
            %swapped = vector.shuffle(%x.1, %x.1, mask=[1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14]) : vector<f32[16]>
            %cos.1 = vector.load(%cos[%s, %d:+16]) : vector<f32[16]>
            %sin.1 = vector.load(%sin[%s, %d:+16]) : vector<f32[16]>
            ...

    A pair (a, b) becomes (a cos - b sin, b cos + a sin): each number times a cosine, plus the other one of its pair times a sine,
    which is negative for the first of them.  Both tables have a row for each position, with f32 of angles in f64, and are made once
    for all embeddings that have the same positions: queries and keys of all layers.  Numbers are multiplied, added and rounded as
    those of the parts that ``decompose`` makes, and have their bits; the operation itself rounds once.

    Lowered are whole rows of f32, of known width, with one list of positions, in the graph's own block (``decompose`` takes apart the
    others, and halves that lie apart, which are vectors already).  Heads that are only split off are read where they are.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        return lower_all(module, context, Loops())


def lower_all(module: Module, context: PassContext, form: Loops) -> bool:
    """Lowers the embeddings of every graph, each graph with tables of its own; returns whether there are any."""
    changed = False
    at_load_time = load_time_graphs(module)
    for graph in walk_graphs(module):
        tables: Tables = {}
        for op in [o for o in graph.block if o.name == "graph.rope" and graph.name not in at_load_time]:
            if is_whole(op):
                lower_op(op, tables, form)
                context.count("rotary embeddings")
                changed = True
    return changed


class Loops:
    """How the work of rotary embeddings is run: by loops here; other kinds of code have forms of their own."""

    def rotate(self, sizes: Sequence[Dim], width: int, turn: Callable[[Dim, Dim, Dim, Dim, int], None], name: str) -> None:
        """``turn(b, h, s, d, count)`` for all rows of batches, heads and steps (``sizes``), ``count`` numbers of a row at a time."""

        def row(b: Dim, s: Dim, h: Dim) -> None:
            rest = width % LANES
            if width > rest:
                loop("d", 0, width - rest, LANES, lambda d: turn(b, h, s, d, LANES))
            if rest:
                turn(b, h, s, width - rest, rest)

        batch, heads, steps = sizes
        parallel([("b", 0, batch), ("s", 0, steps), ("h", 0, heads)], row, tag="row")

    def fill_tables(self, steps: Dim, pairs: int, fill: Callable[[Dim, Dim], None], name: str) -> None:
        """``fill(s, i)`` for all positions and pairs."""

        def row(s: Dim) -> None:
            loop("i", 0, pairs, 1, lambda i: fill(s, i))

        parallel([("s", 0, steps)], row, tag="row")


def lower_op(op: Operation, tables: Tables, forms: Loops) -> None:
    """Puts code in the place of an embedding, and makes tables where there are none for its positions."""
    result, x, positions = op.result, op.operand("x"), op.operand("positions")
    assert isinstance(result.type, TensorType) and x is not None and positions is not None
    width, base = result.type.shape[-1], op.attribute("base")
    assert isinstance(width, int) and isinstance(base, float)
    with Builder.before_op(op) as builder:
        sources = Sources(op)
        key = positions, width, base
        if key not in tables:
            tables[key] = _tables(buffer_of(op, positions), width, base, forms)
        cosines, sines = tables[key]
        source = sources.view(buffer_of(op, x))
        made = alloc(f"{result.name}.buffer", f32, *result.type.shape)
        target = whole(made)

        def turn(b: Dim, h: Dim, s: Dim, d: Dim, size: int) -> None:
            found = load(source.buffer, *source.at(b, h, s, (d, size)), name="x")
            swapped = shuffle(found, found, mask=tuple(n ^ 1 for n in range(size)), name="swapped")
            c, t = (load(table, s, (d, size), name=table.name) for table in (cosines, sines))
            store(addf(mulf(found, c), mulf(swapped, t), name="turned"), target.buffer, b, h, s, (d, size))

        forms.rotate(target.shape[:3], width, turn, result.name)
        tensor: Value = to_tensor(made)
        first = builder.created[0]
    replace(op, made, tensor, first)
    sources.remove()


def _tables(positions: Value, width: int, base: float, forms: Loops) -> tuple[Value, Value]:
    """The cosine for each number of a row, and what the other one of its pair is multiplied with: ``-sin`` or ``sin``."""
    assert isinstance(positions.type.shape, tuple)  # type: ignore[union-attr]  # a buffer
    (steps,) = positions.type.shape  # type: ignore[union-attr]
    frequencies = from_tensor(constant(Dense(inverse_frequencies(width, base), f64), name="frequencies"), name="frequencies.buffer")
    cosines, sines = (alloc(name, f32, steps, width) for name in ("cos", "sin"))

    def pair(s: Dim, i: Dim) -> None:
        position = sitofp(load(positions, s, name="position"), result_type=ScalarType(f64))
        angle = mulf(position, load(frequencies, i, name="frequency"), name="angle")
        c, t = (truncf(f(angle), result_type=ScalarType(f32), name=name) for f, name in ((cos, "cos"), (sin, "sin")))
        for place in (2 * i, 2 * i + 1):
            store(c, cosines, s, place)
        store(negf(t), sines, s, 2 * i)
        store(t, sines, s, 2 * i + 1)

    forms.fill_tables(steps, width // 2, pair, "angles")
    return cosines, sines
