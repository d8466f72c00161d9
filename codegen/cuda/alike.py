"""Launches that do the same, up to where their memory is: a deep model is written once for each kind of layer.

Two launches are alike when one is the other with other values from outside (see :mod:`ir.structure`), and a kernel would see the same of
these: types and alignments of buffers, whether anything writes them, which of them are one, and how scalars are computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from codegen.cuda.kernels import Surroundings
from codegen.cuda.module import BufferRef
from codegen.llvm.native import Site
from ir.attributes import attribute_key
from ir.core import Operation, Value
from ir.dims import Dim
from ir.layout import LAYOUT
from ir.structure import structure_of
from ir.types import MemRefType


@dataclass(frozen=True, slots=True)
class Outside:
    """The memory of a value from outside, by its position."""

    position: int


SITE = object()
"""The number of the first site of the launch."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel, the first launch of it, its sites, and where its arguments come from."""

    kernel: str
    op: Operation
    sites: tuple[Site, ...]
    arguments: tuple[Any, ...]

    def arguments_for(self, outside: Sequence[Value], around: Surroundings, base: int) -> tuple[BufferRef | Dim | None, ...]:
        """The arguments of a launch with these values from outside, whose first site is ``base``."""
        found: list[BufferRef | Dim | None] = []
        for source in self.arguments:
            if isinstance(source, Outside):
                found.append(around.place(outside[source.position]).ref)
            else:
                found.append(base if source is SITE else source)
        return tuple(found)

    def sites_for(self, op: Operation) -> list[Site]:
        """The sites with the places of another launch."""
        if op is self.op or not self.sites:
            return list(self.sites)
        here = dict(zip(self.op.walk(), op.walk(), strict=True))
        found = []
        for site in self.sites:
            there = here.get(site.operation) if site.operation is not None else None
            found.append(site if there is None else replace(site, operation=there, location=there.loc))
        return found


def alike(op: Operation, around: Surroundings) -> tuple[Any, list[Value]]:
    """What is equal for launches that may share a kernel, None where that can't be told; and values from outside.

    Behind those that the launch uses itself come buffers that are read again for it.
    """
    kept = op.attributes
    op.attributes = {n: a for n, a in kept.items() if n != "name"}
    try:
        structure, outside = structure_of(op, lambda value: None)
    finally:
        op.attributes = kept
    look = _Look(op, around)
    described = tuple(look.at(value) for value in outside)
    return (structure, described) if all(d is not None for d in described) else None, [*outside, *look.buffers]


class _Look:
    """What a kernel sees of values from outside; ``buffers`` are those behind scalars that were read."""

    def __init__(self, launch: Operation, around: Surroundings) -> None:
        self.launch = launch
        self.around = around
        self.buffers: list[Value] = []
        self._seen: dict[Any, int] = {}

    def at(self, value: Value) -> Any:
        """What is seen of a value; None where it may differ in a way that isn't told."""
        type_ = value.type
        if isinstance(type_, MemRefType):
            place = self.around.place(value)
            return type_, place.align, place.constant, self._number((place.ref, type_.dtype))
        op = value.defining_op
        if op is None or op.regions or not self._computed_again(op):
            return None
        self.buffers += [v for v in op.operands if isinstance(v.type, MemRefType)]
        operands = [self.at(v) for v in op.operands]
        if any(o is None for o in operands):
            return None
        attributes = tuple((n, a if n == LAYOUT else attribute_key(a)) for n, a in sorted(op.attributes.items()))
        return op.definition.full_name, type_, attributes, tuple(operands), self._number(value)

    def _number(self, key: Any) -> int:
        return self._seen.setdefault(key, len(self._seen))

    def _computed_again(self, op: Operation) -> bool:
        if op.definition.full_name in ("memref.load", "vector.load"):
            return self.around.may_read_again(op, self.launch)
        return op.definition.dialect in ("arith", "math", "affine") or op.definition.full_name == "memref.dim"
