"""What emitting gives: kernels in CUDA C, and the steps that a host goes through to run a program with them.

All of it is data that a runtime interprets; nothing here knows a driver.  Sizes are :data:`ir.dims.Dim`: numbers, or expressions over the
program's named dimensions and, inside of a :class:`LoopStep`, over its ``variable``; :func:`number` gives their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Union

from codegen.llvm.native import Argument, Site
from ir.diagnostics import AnyLocation
from ir.dims import Dim, substitute
from ir.types import MemRefType, TensorType

SIZE_LIMIT = 1 << 40
"""Named dimensions, and the products of them in ``CudaProgram.guards``, are at most this in a run: 64 bits then hold every place."""

ARENA_ALIGNMENT = 256
"""Bytes to which pieces of the arena are aligned; the arena itself, and memory of results and stored tensors, must be, too."""


@dataclass(frozen=True, slots=True)
class BufferRef:
    """Where memory is: ``offset`` bytes behind the start of parameter, result or stored tensor ``index``, or of the arena (0)."""

    kind: Literal["parameter", "result", "stored", "arena"]
    index: int = 0
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """What a kernel takes at one position: a pointer to memory, a 64-bit integer, or the pointer to the state of the run.

    ``name`` is the name in CUDA C.  A buffer has the type of its elements and shape; ``const``: nothing in the whole program writes it.
    """

    kind: Literal["buffer", "dim", "state"]
    name: str
    type: MemRefType | None = None
    const: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function of the device.

    ``source`` is its text alone, without the ``#include`` that stands in front of all.  ``shared_bytes`` are dynamic shared memory to
    launch it with; above 48 KiB the driver must be told (``cuFuncSetAttribute``).  ``barriers`` says whether its threads wait for each
    other (barriers, shuffles, matrix products), ``checks`` whether it can fail with one of the program's ``sites``.
    """

    name: str
    source: str
    parameters: tuple[KernelParameter, ...]
    threads: int
    shared_bytes: int = 0
    barriers: bool = False
    checks: bool = False


# -- conditions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    """Whether two sizes compare as ``predicate`` says."""

    predicate: Literal["eq", "ne", "lt", "le", "gt", "ge"]
    left: Dim
    right: Dim


@dataclass(frozen=True, slots=True)
class Logic:
    """Two conditions by a bit operation of bool."""

    kind: Literal["and", "or", "xor"]
    left: Condition
    right: Condition


Condition = Union[bool, Compare, Logic]
"""What the host can know without looking at data."""


# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """Runs a kernel on ``grid`` blocks, x first; without blocks (one of the sizes is 0) it is left out.

    ``arguments`` are one for each of the kernel's parameters: memory for "buffer", a size for "dim", None for "state".
    """

    kernel: str
    grid: tuple[Dim, Dim, Dim]
    arguments: tuple[BufferRef | Dim | None, ...]
    location: AnyLocation | None = None


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copies ``size`` bytes from one place of the device's memory to another; the two may overlap only where ``overlaps`` says so."""

    source: BufferRef
    target: BufferRef
    size: Dim
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Runs ``body`` with the name ``variable`` (it begins with ``%``) as start, start + step, ... below stop; step is positive."""

    variable: str
    start: Dim
    stop: Dim
    step: Dim
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class IfStep:
    """Runs one of two lists of steps."""

    condition: Condition
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class AssertStep:
    """Ends the run with the error of ``sites[site]`` unless the condition holds; ``first`` and ``second`` are its two numbers."""

    condition: Condition
    site: int
    first: Dim = 0
    second: Dim = 0


@dataclass(frozen=True, slots=True)
class PrintStep:
    """Prints a tensor with its label, as ``print`` of the graph dialect does; whatever came before has run by then.

    ``site`` is the number of the site of kind "print", which has the type, the label and the place.
    """

    source: BufferRef
    type: TensorType
    label: str
    site: int


Step = Union[LaunchStep, CopyStep, LoopStep, IfStep, AssertStep, PrintStep]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a kernel that ``emit_program(marks=True)`` has numbered, so that a test can leave it out.

    "sync": a barrier, a commit of copies or a wait for them; "bound": the condition of a choice that guards memory; "valid": the number
    of valid elements of a load, store or copy.
    """

    number: int
    kind: Literal["sync", "bound", "valid"]
    kernel: str
    operation: str


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """One graph as kernels and steps.

    ``source`` is the text of all kernels, with the ``#include`` of ``graph_opt_device.h`` on top.  ``parameters``, ``results`` and
    ``stored`` (weights, constants, what the init graph computes) are what :class:`BufferRef` counts, ``symbols`` the graph's named
    dimensions.  ``arena_bytes`` is the memory that the program needs besides.  ``guards`` are products of dimensions that must not
    exceed ``SIZE_LIMIT``, as no dimension may, else a run is refused with ``sites[0]``.  A kernel that fails leaves
    the number of a site in the state.  ``written``: positions of the parameters that a run changes.
    """

    name: str
    source: str
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    parameters: tuple[Argument, ...]
    results: tuple[Argument, ...]
    stored: tuple[Argument, ...]
    symbols: tuple[str, ...]
    arena_bytes: Dim
    sites: tuple[Site, ...]
    guards: tuple[Dim, ...] = ()
    marks: tuple[Mark, ...] = ()

    def kernel(self, name: str) -> Kernel:
        """The kernel called ``name``.  Raises KeyError."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(name)

    @property
    def written(self) -> tuple[int, ...]:
        return tuple(n for n, p in enumerate(self.parameters) if p.written)

    @property
    def is_static(self) -> bool:
        """Whether all steps are the same in every run: no sizes are symbolic, nothing is printed."""
        return not self.symbols and all(isinstance(s, (LaunchStep, CopyStep)) for s in self.steps)


def number(size: Dim, names: Mapping[str, int]) -> int:
    """The value of a size in a run.  Raises KeyError for a name that has none, ZeroDivisionError for a division by 0."""
    if isinstance(size, int):
        return size
    found = substitute(size, names)
    if not isinstance(found, int):
        raise KeyError(str(found))
    return found


def holds(condition: Condition, names: Mapping[str, int]) -> bool:
    """Whether a condition is true in a run."""
    if isinstance(condition, bool):
        return condition
    if isinstance(condition, Logic):
        left, right = holds(condition.left, names), holds(condition.right, names)
        return {"and": left and right, "or": left or right, "xor": left != right}[condition.kind]
    a, b = number(condition.left, names), number(condition.right, names)
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[condition.predicate]
