"""Pass ``map-rope``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ir.core import Module
from ir.dims import Dim, ceildiv, product
from passes.gpu._kernels import launch, less, named, split_index, thread, when
from passes.infra.base import Pass, PassContext
from passes.loops.lower_rope import Loops, lower_all

_THREADS = 256


@dataclass(frozen=True)
class MapRope(Pass):
    """Turns rotary embeddings of interleaved pairs into kernels, with tables of cosines and sines that all layers share.

    Before::

        graph @main(%x: f32[4, S, 64], %positions: i64[S]) -> f32[4, S, 64] {
          %y = rope(%x, %positions, interleaved=true)
          return %y
        }

    After (the rotation)::

        gpu.launch(%x.1 = 0 to (64*S) ceildiv 256, threads=256, name="y", tag="rope") {
          ...
          scf.if(%inside) {
            %x.2 = vector.load(%x.buffer.view[0, %h, %s, %d:+4]) : vector<f32[4]>
            %swapped = vector.shuffle(%x.2, %x.2, mask=[1, 0, 3, 2]) : vector<f32[4]>
            %cos.1 = vector.load(%cos[%s, %d:+4]) : vector<f32[4]>
            %sin.1 = vector.load(%sin[%s, %d:+4]) : vector<f32[4]>
            ...

    A thread turns two pairs; another kernel fills the tables, once for all embeddings that have the same positions.  Mapped are those that
    ``lower-rope`` lowers, with the same numbers, and what it reads in place is read in place here, too.
    """

    preserves: ClassVar[Literal["bits", "values"]] = "values"
    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        return lower_all(module, context, Kernels())


class Kernels(Loops):
    """A thread for four numbers, or for two where rows are no multiple of four; and for each pair of a table."""

    def rotate(self, sizes: Sequence[Dim], width: int, turn: Callable[[Dim, Dim, Dim, Dim, int], None], name: str) -> None:
        batch, heads, steps = sizes
        run = 4 if width % 4 == 0 else 2

        def one(places: Sequence[Dim]) -> None:
            b, s, h, d = (named(n, p) for n, p in zip("bshd", places, strict=True))
            turn(b, h, s, named("d", run * d), run)

        _each((batch, steps, heads, width // run), one, name, "rope")

    def fill_tables(self, steps: Dim, pairs: int, fill: Callable[[Dim, Dim], None], name: str) -> None:
        _each((steps, pairs), lambda places: fill(*(named(n, p) for n, p in zip("si", places, strict=True))), name, "rope.table")


def _each(sizes: Sequence[Dim], inside: Callable[[Sequence[Dim]], None], name: str, tag: str) -> None:
    """A launch with a thread for all places of a space."""
    total, first = product(sizes), [0] if sizes[0] == 1 else []

    def kernel(x: Dim) -> None:
        at = named("at", _THREADS * x + thread())
        when(less(at, total), lambda: inside([*first, *split_index(at, sizes[len(first) :])]))

    launch([("x", ceildiv(total, _THREADS))], _THREADS, kernel, name=name, tag=tag)
