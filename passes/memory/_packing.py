"""Places in an arena for blocks of memory that are needed at different times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ir.dims import Dim
from passes.memory._lifetimes import Buffer
from passes.memory._sizes import Sizes


@dataclass(eq=False)
class Block:
    """Memory for buffers that take it over from each other: one size, needed from the first operation to the last."""

    buffers: list[Buffer] = field(default_factory=list)

    @property
    def size(self) -> Dim:
        return self.buffers[0].size

    @property
    def first(self) -> int:
        return self.buffers[0].first

    @property
    def last(self) -> int:
        return self.buffers[-1].last


@dataclass(frozen=True)
class Packing:
    """Offsets of blocks, and how large the arena is."""

    offsets: dict[Block, Dim]
    total: Dim


def pack(blocks: Sequence[Block], sizes: Sizes) -> Packing:
    """The smallest arena of some that are tried: blocks by size, by size and time, and in their own order."""
    best: tuple[int, Packing] | None = None
    number = {b: i for i, b in enumerate(blocks)}
    roundings = [{b: sizes.aligned(b.size, coarse) for b in blocks} for coarse in (False, True)]
    for aligned in roundings if roundings[0] != roundings[1] else roundings[:1]:
        example = {b: sizes.example(aligned[b]) for b in blocks}
        orders = [
            sorted(blocks, key=lambda b: (-example[b], b.first, number[b])),
            sorted(blocks, key=lambda b: (-example[b] * (b.last - b.first + 1), b.first, number[b])),
            sorted(blocks, key=lambda b: (b.first, -example[b], number[b])),
        ]
        for order in orders:
            found = _place(order, aligned, sizes)
            total = sizes.example(found.total)
            if best is None or total < best[0]:
                best = total, found
    assert best is not None
    return best[1]


def _place(order: Iterable[Block], aligned: dict[Block, Dim], sizes: Sizes) -> Packing:
    """Each block at the lowest offset that is free all the time that it is needed."""
    offsets: dict[Block, Dim] = {}
    ends: dict[Block, Dim] = {}  # of those that are not empty
    for block in order:
        size = aligned[block]
        if size == 0:
            offsets[block] = 0
            continue
        others = [(offsets[o], ends[o]) for o in ends if o.first <= block.last and block.first <= o.last]
        offsets[block] = _lowest(size, list(dict.fromkeys(others)), sizes)
        ends[block] = offsets[block] + size
    return Packing(offsets, sizes.largest(dict.fromkeys(ends.values())))


def _lowest(size: Dim, others: list[tuple[Dim, Dim]], sizes: Sizes) -> Dim:
    """The lowest offset at which a block overlaps none of the others, given by where they begin and end."""
    ends = list(dict.fromkeys(end for _, end in others))
    for candidate in sorted([0, *ends], key=sizes.example):
        behind = candidate + size
        if all(sizes.at_most(behind, start) or sizes.at_most(end, candidate) for start, end in others):
            return candidate
    return sizes.largest(ends)  # behind all of them
