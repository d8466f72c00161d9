"""What a program does for certain sizes: its steps one after the other, without loops and conditions, and how much memory it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Union

from codegen.cuda.module import (
    SIZE_LIMIT,
    AssertStep,
    BufferRef,
    CopyStep,
    CudaProgram,
    IfStep,
    LaunchStep,
    LoopStep,
    PrintStep,
    Step,
    holds,
    number,
)
from ir.diagnostics import AnyLocation, Diagnostic, GraphError
from ir.dims import Dim
from ir.types import TensorType, substitute_type

MOST_BLOCKS = ((1 << 31) - 1, 65535, 65535)
"""Blocks along each axis of a grid; kernels count with it."""

LISTED = 1 << 16
"""Steps that are kept as a list; longer programs (loops of many rounds) are walked anew in each run."""


@dataclass(frozen=True, slots=True)
class Place:
    """``offset`` bytes behind the start of memory ``base``: its kind and number, as in :class:`~codegen.cuda.module.BufferRef`."""

    base: tuple[str, int]
    offset: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch with everything but addresses.  ``arguments``: a place, a number, or None for the state of the run."""

    kernel: str
    grid: tuple[int, int, int]
    arguments: tuple[Place | int | None, ...]
    location: AnyLocation | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy on the device; ``overlaps``: its two places have bytes in common, so it goes through scratch memory."""

    source: Place
    target: Place
    size: int
    overlaps: bool


@dataclass(frozen=True, slots=True)
class Print:
    """A tensor that is printed."""

    source: Place
    type: TensorType
    site: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The end of the run: a condition doesn't hold."""

    site: int
    first: int
    second: int


Work = Union[Launch, Copy, Print, Fail]


@dataclass(frozen=True, slots=True)
class Plan:
    """A program for certain sizes.  ``work`` is None where there is too much of it for a list: :meth:`all_work` goes through it anyway."""

    program: CudaProgram
    names: Mapping[str, int]
    arena: int
    work: tuple[Work, ...] | None
    capturable: bool
    scratch: int
    """Bytes that the largest copy between overlapping places needs besides."""

    @staticmethod
    def of(program: CudaProgram, names: Mapping[str, int]) -> Plan:
        """Raises GraphError for sizes that the program can't count with."""
        sizes = {s: names.get(s, 0) for s in program.symbols}
        too_large = any(not 0 <= n <= SIZE_LIMIT for n in (*sizes.values(), *(number(g, sizes) for g in program.guards)))
        if too_large:
            raise program.sites[0].error(0, 0, sizes) if program.sites else GraphError(f"graph @{program.name}: a dimension is too large")
        work = tuple(islice(concrete(program.steps, sizes), LISTED + 1))
        short = len(work) <= LISTED
        capturable = short and all(isinstance(w, (Launch, Copy)) for w in work)
        through = max((w.size for w in (work if short else concrete(program.steps, sizes)) if isinstance(w, Copy) and w.overlaps), default=0)
        return Plan(program, sizes, number(program.arena_bytes, sizes), work if short else None, capturable, through)

    def all_work(self) -> Iterator[Work]:
        """Everything in its order."""
        return iter(self.work) if self.work is not None else concrete(self.program.steps, self.names)


def concrete(steps: Sequence[Step], names: Mapping[str, int]) -> Iterator[Work]:
    """The work of steps for certain sizes; it ends behind a :class:`Fail`."""
    for step in steps:
        if isinstance(step, LoopStep):
            rounds = range(number(step.start, names), number(step.stop, names), number(step.step, names))
            inside: Iterator[Work] = (w for at in rounds for w in concrete(step.body, {**names, step.variable: at}))
        elif isinstance(step, IfStep):
            inside = concrete(step.then if holds(step.condition, names) else step.otherwise, names)
        else:
            inside = _single(step, names)
        for work in inside:
            yield work
            if isinstance(work, Fail):
                return


def _single(step: LaunchStep | CopyStep | AssertStep | PrintStep, names: Mapping[str, int]) -> Iterator[Work]:
    if isinstance(step, LaunchStep):
        x, y, z = (number(n, names) for n in step.grid)
        if x > 0 and y > 0 and z > 0:
            if x > MOST_BLOCKS[0] or y > MOST_BLOCKS[1] or z > MOST_BLOCKS[2]:
                most = " x ".join(map(str, MOST_BLOCKS))
                message = f"kernel {step.kernel}: a grid of {x} x {y} x {z} blocks is too large, the limit is {most}"
                raise GraphError(Diagnostic(message, step.location))
            yield Launch(step.kernel, (x, y, z), tuple(_argument(a, names) for a in step.arguments), step.location)
    elif isinstance(step, CopyStep):
        size = number(step.size, names)
        source, target = _place(step.source, names), _place(step.target, names)
        if size > 0 and source != target:
            yield Copy(source, target, size, step.overlaps and source.base == target.base and abs(source.offset - target.offset) < size)
    elif isinstance(step, AssertStep):
        if not holds(step.condition, names):
            yield Fail(step.site, number(step.first, names), number(step.second, names))
    else:
        type_ = substitute_type(step.type, dict(names))
        assert isinstance(type_, TensorType)
        yield Print(_place(step.source, names), type_, step.site)


def _argument(argument: BufferRef | Dim | None, names: Mapping[str, int]) -> Place | int | None:
    if argument is None:
        return None
    return _place(argument, names) if isinstance(argument, BufferRef) else number(argument, names)


def _place(reference: BufferRef, names: Mapping[str, int]) -> Place:
    return Place((reference.kind, reference.index), number(reference.offset, names))
