"""A sum in tiles of steps: while the block works on one tile, the next ones are on their way to shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ir.core import Value
from ir.dims import Dim, ceildiv, exact_div, floordiv, mod
from passes.gpu._async_copies import cp_commit, cp_wait
from passes.gpu._kernels import barrier, less, named, when
from passes.gpu._product_staging import Tile
from passes.loops._blocks import loop

Work = Callable[[Dim, Dim, Sequence[Value]], Sequence[Value]]
"""Continues sums with the tile in a slot: gets the slot, how many steps it has, and the sums."""


def pipelined(tiles: Sequence[Tile], steps: Dim, depth: int, sums: Sequence[Value], whole: Work, rest: Work) -> list[Value]:
    """The sums after all steps, tile by tile in order: ``whole`` for tiles of ``depth`` steps, ``rest`` for a last one of fewer.

    All stages but one are on their way while one is worked on.  A slot is written behind the barrier that ends the
    work on its last tile.
    """
    total, full = ceildiv(steps, depth), floordiv(steps, depth)
    exact = total == full
    stages = tiles[0].stages
    ahead = stages - 1
    copies = any(t.mode == "async" for t in tiles)

    def begin(tile: Dim, slot: Dim, whole: bool) -> None:
        for one in tiles:
            if one.mode == "async":
                one.begin(tile, slot, whole)

    def bring(first: Dim) -> None:
        if isinstance(full, int) and full >= ahead:
            begin(first, first, True)
        elif exact:
            when(less(first, total, "is_tile"), lambda: begin(first, first, True))
        else:
            begin(first, first, False)
        if copies:
            cp_commit()
        for one in tiles:
            if one.mode != "async":
                one.finish(first, first, one.begin(first, first))

    if ahead == 1:
        bring(0)
    else:
        loop("first", 0, ahead, 1, bring)

    def step(tile: Dim, *carried: Value) -> Sequence[Value]:
        if copies:
            cp_wait(ahead - 1)
        barrier()
        following = named("next", tile + ahead)
        slot = named("next.slot", mod(following, stages))
        held: dict[int, list[Value]] = {}
        if copies:
            rest_of = None if exact else lambda: begin(following, slot, False)
            when(less(following, full, "is_whole"), lambda: begin(following, slot, True), rest_of)
            cp_commit()
        for number, tile_ in enumerate(tiles):
            if tile_.mode != "async":
                held[number] = tile_.begin(following, slot)
        found = whole(named("slot", mod(tile, stages)), depth, carried)
        for number, values in held.items():
            tiles[number].finish(following, slot, values)
        return found

    found = list(sums) if full == 0 else loop("tile", 0, full, 1, step, sums)
    if exact_div(steps, depth) is None:
        if copies:
            cp_wait(0)
        barrier()
        found = list(rest(named("slot", mod(full, stages)), named("steps.left", steps - depth * full), found))
    return found
