"""What ``fuse`` makes simpler before it joins nests: loops of one round, reads of reshaped buffers, tensors taken out early."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dialects.arith.constant import constant
from ir.attributes import Dense
from ir.builder import Builder
from ir.core import Graph, Operation
from ir.dims import Dim, exact_div
from ir.layout import LAYOUT, LoopDim, layout_of
from ir.rewriter import move_before
from ir.substitute import substitute_attribute
from ir.types import MemRefType, index
from passes.infra.base import PassContext
from passes.linalg._fusion import Indices, Read, nested_nests, root, set_bindings, top_level
from passes.linalg._nest_index import Nests


def sink_tensors(nests: Nests, context: PassContext) -> None:
    """Moves ``memref.to_tensor`` to where the tensor is used, as far as its buffer stays as it is."""
    for op in reversed(list(nests.graph.block)):
        if op.name != "memref.to_tensor" or not op.results[0].has_uses:
            continue
        stops = [top_level(u) for u in op.results[0].users] + nests.written_behind(root(op.operands[0]), op)
        place = min(stops, key=nests.position.__getitem__)
        step = op.next
        while step is not None and step is not place and step.name == "memref.to_tensor":
            step = step.next
        if step is not place:
            move_before(op, place, nests.graph.block)
            nests.moved_before(op, place)
            context.count("tensors taken out later")


# -- simpler index maps ------------------------------------------------------------------------------------------------


def drop_unit_dims(graph: Graph, context: PassContext) -> None:
    """Takes loop dimensions of one round out of nests; there the index is 0."""
    for top in list(graph.block):
        if top.name != "linalg.generic":
            continue
        for inner in [o for o in top.walk() if LAYOUT in o.attributes]:
            units = [a.name for a in layout_of(inner) if isinstance(a, LoopDim) and a.bound == 1]
            if not units:
                continue
            for op in list(inner.walk()):
                if op.name == "linalg.index" and op.attributes["dim"] in units:
                    with Builder.before_op(op):
                        op.results[0].replace_all_uses_with(constant(Dense(np.array(0, np.int64), index)))
                    op.erase()
            layout = [a for a in layout_of(inner) if not (isinstance(a, LoopDim) and a.name in units)]
            inner.set_attribute(LAYOUT, tuple(layout))  # type: ignore[arg-type]
            zeros: dict[str, Dim] = dict.fromkeys(units, 0)
            for op in inner.walk():
                if LAYOUT in op.attributes:
                    op.set_attribute(LAYOUT, substitute_attribute(op.attributes[LAYOUT], zeros))
            context.count("loops of one round dropped", len(units))


# -- reads through reshapes --------------------------------------------------------------------------------------------


def through_reshapes(graph: Graph, context: PassContext) -> None:
    """Reads of a reshaped buffer become reads of the buffer itself where the place in it is a sum of loop dimensions."""
    for top in list(graph.block):
        if top.name != "linalg.generic":
            continue
        for nest in list(nested_nests(top)) if _meets_reshapes(top) else ():
            reads = [_through_reshape(r) for r in nest.reads]
            if any(a is not b for a, b in zip(reads, nest.reads, strict=True)):
                set_bindings(nest.op, reads, nest.outputs)
                context.count("reads through reshapes")


def _meets_reshapes(top: Operation) -> bool:
    return any((made := v.defining_op) is not None and made.name == "memref.reshape" for op in top.walk() for v in op.operands)


def _through_reshape(read: Read) -> Read:
    op = read.buffer.defining_op
    while op is not None and op.name == "memref.reshape":
        source = op.operands[0]
        indices = split_place(source.type, read.buffer.type, read.indices)
        if indices is None:
            return read
        read = Read(read.argument, source, indices)
        op = source.defining_op
    return read


def _product_groups(a: Sequence[Dim], b: Sequence[Dim]) -> list[tuple[list[int], list[int]]] | None:
    """Neighbouring dimensions of two shapes of equally many elements, the smallest groups with equal products.

    None where that can't be told.
    """
    if 0 in a or 0 in b:
        return None
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        if i < len(a) and a[i] == 1:
            groups.append(([i], []))
            i += 1
        elif j < len(b) and b[j] == 1:
            groups.append(([], [j]))
            j += 1
        elif i < len(a) and j < len(b):
            here, there, left, right = [i], [j], a[i], b[j]
            i, j = i + 1, j + 1
            while left != right:
                if exact_div(left, right) is not None and j < len(b):
                    right, there, j = right * b[j], [*there, j], j + 1
                elif exact_div(right, left) is not None and i < len(a):
                    left, here, i = left * a[i], [*here, i], i + 1
                else:
                    return None
            groups.append((here, there))
        else:
            return None
    return groups


def split_place(source: object, reshaped: object, indices: Indices) -> Indices | None:
    """The place in a buffer of a place in its reshaped form, None where that is no sum of products.

    A dimension of the buffer that was split into several has the place Σ index * stride; of dimensions that were merged
    the place is unknown.
    """
    assert isinstance(source, MemRefType) and isinstance(reshaped, MemRefType)
    groups = _product_groups(source.shape, reshaped.shape)
    if groups is None:
        return None
    found: list[Dim] = [0] * len(source.shape)
    for here, there in groups:
        large = [a for a in here if source.shape[a] != 1]
        parts = [a for a in there if reshaped.shape[a] != 1]
        if not large:
            continue
        if len(large) > 1:
            if len(large) != len(parts) or any(source.shape[a] != reshaped.shape[b] for a, b in zip(large, parts, strict=True)):
                return None
            for a, b in zip(large, parts, strict=True):
                found[a] = indices[b]
            continue
        place: Dim = 0
        for part in parts:
            place = place * reshaped.shape[part] + indices[part]
        found[large[0]] = place
    return tuple(found)


