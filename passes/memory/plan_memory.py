"""Pass ``plan-memory``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dialects.memref import view
from ir.builder import Builder
from ir.core import Graph, Module, Operation
from ir.dims import Dim, symbols_of
from ir.layout import LAYOUT
from ir.opdef import REGISTRY
from ir.rewriter import move_before, replace_op
from ir.types import MemRefType, u8
from passes.infra.base import Pass, PassContext
from passes.memory._inplace import TakingOver
from passes.memory._lifetimes import Buffer, Lifetimes
from passes.memory._packing import Block, Packing, pack
from passes.memory._sizes import Sizes


@dataclass(frozen=True)
class PlanMemory(Pass):
    """Puts the buffers of a graph into one arena, those that are needed at different times into the same memory.

    Before::

        %a = memref.alloc() : memref<f32[B, 64]>
        linalg.generic(i < B, j < 64, %p = %x[i, j], %o = %a[i, j]) {...}
        %b = memref.alloc() : memref<f32[B, 64]>
        linalg.generic(i < B, j < 64, %q = %a[i, j], %r = %b[i, j]) {...}
        %c = memref.alloc() : memref<f32[64]>
        linalg.generic(j < 64, reduce i < B, %s = %b[i, j], %t = %c[j]) {...}

    After (the second nest reads each element just before it writes the same place, so it works in place)::

        %arena = memref.alloc() : memref<u8[256*B+256]>
        %a = memref.view(%arena, offset=0) : memref<f32[B, 64]>
        linalg.generic(i < B, j < 64, %p = %x[i, j], %o = %a[i, j]) {...}
        %b = memref.view(%arena, offset=0) : memref<f32[B, 64]>
        linalg.generic(i < B, j < 64, %q = %a[i, j], %r = %b[i, j]) {...}
        %c = memref.view(%arena, offset=256*B) : memref<f32[64]>
        linalg.generic(j < 64, reduce i < B, %s = %b[i, j], %t = %c[j]) {...}

    A buffer is needed from the first operation of the top level that touches it (or a reshape of it, or does so inside its
    regions) to the last one.  Offsets are multiples of 64.  Sizes may be symbolic: two buffers that are needed together lie
    apart for all sizes that the graph may have, by comparison of polynomials of named dimensions, which are 0 or more
    (``where`` says more).  Several orders of placing are tried; which plan is best is judged by example sizes, at the worst
    of them.

    A nest's output takes over the memory of an input that nothing needs afterwards when both have the same size and it is
    proved that every element is read before its place is written (``inplace=false`` leaves that out).  What only the nest needs that
    makes a result of the graph lies in the memory of the result, if it is of the same type.

    Left alone are buffers inside of regions, those that become a result of the graph (taken out by ``memref.to_tensor``,
    only returned, not written afterwards: they are the result's own memory), what leaves by other ways than reading and
    writing, and arenas.  ``--statistics`` tells how large the arena is, the most bytes that are needed at once, and how
    large it would be without sharing.
    """

    inplace: bool = True
    """let outputs take over the memory of inputs"""

    keeps_types: ClassVar[bool] = True

    def run(self, module: Module, context: PassContext) -> bool:
        changed = False
        for graph in module.graphs.values():
            changed |= _plan(graph, context, self.inplace)
        return changed


def _plan(graph: Graph, context: PassContext, inplace: bool) -> bool:
    lifetimes = Lifetimes(graph)
    for alloc in lifetimes.unused:
        alloc.erase()
    if not lifetimes.buffers:
        return bool(lifetimes.unused)
    taking_over = TakingOver(lifetimes.names)
    blocks = _blocks(lifetimes, taking_over) if inplace else [Block([b]) for b in lifetimes.buffers]
    lent = _lent_by_results(lifetimes, blocks, taking_over) if inplace else {}
    arena = [b for b in blocks if b not in lent]
    sizes = Sizes(graph)
    packing = pack(arena, sizes) if arena else Packing({}, 0, 0)
    moved = sum(len(b.buffers) for b in lent)
    _report(context, packing, lifetimes.buffers, len(lifetimes.buffers) - len(blocks), moved, sizes)
    for block, result in lent.items():
        _lend(block, result)
    if arena:
        _rewrite(graph, {b: packing.offsets[block] for block in arena for b in block.buffers}, packing.total)
    return True


def _blocks(lifetimes: Lifetimes, taking_over: TakingOver) -> list[Block]:
    """Buffers in order of their first use, joined with the one whose memory they may take over."""
    blocks: list[Block] = []
    ending: dict[int, list[Block]] = {}
    for buffer in sorted(lifetimes.buffers, key=lambda b: (b.first, b.last)):
        nest = lifetimes.order[buffer.first]
        candidates = ending.get(buffer.first, [])
        block = next((b for b in candidates if taking_over.may(nest, b.buffers[-1], buffer)), None)
        if block is None:
            block = Block()
            blocks.append(block)
        else:
            candidates.remove(block)
        block.buffers.append(buffer)
        ending.setdefault(buffer.last, []).append(block)
    return blocks


def _lent_by_results(lifetimes: Lifetimes, blocks: list[Block], taking_over: TakingOver) -> dict[Block, Buffer]:
    """Blocks that can lie in the memory of a result before it is written: only the nest that makes the result needs them."""
    lent: dict[Block, Buffer] = {}
    for result in lifetimes.results:
        nest = lifetimes.order[result.first]
        for block in blocks:
            last = block.buffers[-1]
            fits = block.first == block.last == result.first and all(b.type == result.type for b in block.buffers)
            if fits and block not in lent and taking_over.may(nest, last, result):
                lent[block] = result
                break
    return lent


def _lend(block: Block, result: Buffer) -> None:
    """Puts the memory of a result in the place of buffers; it is made before the first of them."""
    ops = [b.value.defining_op for b in (*block.buffers, result)]
    alloc = ops.pop()
    graph = alloc.graph if alloc is not None else None
    assert alloc is not None and graph is not None
    first = next(op for op in graph.block if op in ops or op is alloc)
    if first is not alloc:
        move_before(alloc, first, graph.block)
    for op in ops:
        assert op is not None
        op.result.replace_all_uses_with(result.value)
        op.erase()


def _report(context: PassContext, packing: Packing, buffers: list[Buffer], joined: int, lent: int, sizes: Sizes) -> None:
    """Tells the figures for example sizes, and what they are for any."""
    alone: Dim = sum((sizes.aligned(b.size) for b in buffers), 0)
    figures = {"bytes in the arena": packing.total, "bytes needed at once": packing.bound, "bytes without sharing": alone}
    for name, dim in figures.items():
        if isinstance(dim, int):
            context.count(name, dim)
        else:
            at = ", ".join(f"{n}={sizes.example[n]}" for n in symbols_of(dim))
            context.count(f"{name} ({dim}), for {at}", sizes.examples(dim)[0])
    context.count("buffers in the arena", len(buffers) - lent)
    context.count("buffers in the memory of a result", lent)
    context.count("buffers that took over the memory of an input", joined)


def _rewrite(graph: Graph, offsets: dict[Buffer, Dim], total: Dim) -> None:
    allocs: dict[Operation, Dim] = {}
    for buffer, offset in offsets.items():
        op = buffer.value.defining_op
        assert op is not None
        allocs[op] = offset
    first = next(op for op in graph.block if op in allocs)
    attributes: Any = {LAYOUT: ()}
    builder = Builder(graph.block, first, loc=first.loc)
    arena = builder.create(REGISTRY["memref.alloc"], [], attributes, result_types=[MemRefType(u8, (total,))], name="arena").result
    for op in list(graph.block):
        if op in allocs:
            made = Builder.before_op(op).create(view, [arena], {"offset": allocs[op]}, result_types=[op.result.type])
            replace_op(op, [made.result])
