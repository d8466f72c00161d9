"""What emitting gives: the text, and what a caller needs to know in order to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ir.core import Operation
from ir.diagnostics import AnyLocation, Diagnostic, GraphError
from ir.dims import Dim, substitute
from ir.types import MemRefType, TensorType

STORED = ("graph.weight", "graph.constant", "graph.initial")
"""Operations of a graph's own block whose results are there before it runs."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the program that can fail, or that calls back.

    ``template`` is the message: {0} and {1} stand for the numbers that ``state`` holds after a failure, {2} and so on for
    ``dims`` with the dimensions of the run; only the places in ``given`` are filled.  ``kind`` is "error", or "print" for
    a callback with a tensor of ``type``.  ``operation`` is the operation at the place; a module that comes out of a cache has none.
    """

    kind: str
    name: str
    template: str
    dims: tuple[Dim, ...] = ()
    location: AnyLocation | None = None
    type: TensorType | None = None
    label: str = ""
    given: tuple[int, ...] = ()
    operation: Operation | None = field(default=None, compare=False, repr=False)

    def message(self, first: int, second: int, names: Mapping[str, int]) -> str:
        """The text of the error, as the reference interpreter writes it."""
        text = self.template
        for place, value in enumerate((first, second, *(substitute(d, names) for d in self.dims))):
            if place in self.given:
                text = text.replace(f"{{{place}}}", str(value))
        return text if not self.name or text.startswith(f"{self.name}:") else f"{self.name}: {text}"

    def error(self, first: int, second: int, names: Mapping[str, int]) -> GraphError:
        """The error that the run ends with."""
        return GraphError(Diagnostic(self.message(first, second, names), self.location))


@dataclass(frozen=True, slots=True)
class Argument:
    """One pointer of ``args``: a "parameter" or "result" of the graph, or a "stored" tensor (weight or constant).

    ``operation`` is the one that a stored tensor comes from; ``written`` says that running changes the memory.
    """

    kind: str
    name: str
    type: TensorType | MemRefType
    written: bool = False
    operation: Operation | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class NativeModule:
    """LLVM's assembly language for one graph.

    ``function`` is the main entry; ``workspace_function``, ``shapes_function`` and ``work_function`` are the others.  ``symbols`` are the
    graph's dimension names in the order of ``dims``, ``arguments`` what each pointer of ``args`` is: parameters, results,
    stored tensors.  ``externals`` are functions of the C library that it calls.  ``parallel`` says whether some loop is
    shared by threads, ``prints`` whether a run may call back.  ``timed`` are the operations whose times code with
    clocks adds up, in ticks of the processor's clock, in the i64 numbers at ``clocks_name``; the last one is ``return``, which stands
    for the whole function.
    """

    text: str
    function: str
    symbols: list[str]
    arguments: list[Argument]
    sites: Sequence[Site]
    externals: list[str]
    parallel: bool
    timed: list[Operation] = field(default_factory=list, compare=False, repr=False)
    prints: bool | None = None

    def __post_init__(self) -> None:
        if self.prints is None:
            self.prints = any(s.kind == "print" for s in self.sites)

    @property
    def workspace_function(self) -> str:
        return f"{self.function}_workspace"

    @property
    def work_function(self) -> str:
        return f"{self.function}_work"

    @property
    def clocks_name(self) -> str:
        return f"{self.function}_clocks"

    @property
    def shapes_function(self) -> str:
        return f"{self.function}_shapes"
