"""How fast a program is on this machine, loop nest by loop nest, beside what the machine can do.

The program is compiled twice: as always, which tells the time of a call, and with clocks around its top-level loops
(``emit_graph(clocks=True)``), which tells how that time is divided while caches are in the state in which real calls find them.
Both are timed in turns with samples of the machine's limits.  What a nest has to do is counted before ``lower-to-loops``, where
nests have index ranges and accesses (:mod:`graph_opt.work`); a mark in the locations of operations says afterwards which loops
have come from which nest.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from codegen.llvm.clock import tick_function
from codegen.llvm.jit import Code
from graph_opt.limits import READ, Limits, Meter, host_dtypes, level_of
from graph_opt.native import compile_native, compile_timed
from graph_opt.work import Work, dots_of, has_work, least_bytes, memories_used, work_of
from ir.core import Graph, Module, Operation, Value
from ir.diagnostics import AnyLocation, FusedLocation, NamedLocation
from passes.infra.base import Pass
from passes.infra.manager import Instrumentation, PassManager
from passes.infra.pipeline import pass_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from graph_opt.binding import Sources
    from graph_opt.executable import Executable

_MARK = "<nest>"
COUNTED_BEFORE = ("lower-attention", "map-attention", "lower-digits", "map-digits", "lower-to-loops")
"""Passes that replace nests whose work can be counted."""
_STREAM = 128 << 20  # bytes of memory that a sample reads at most, for a program that reads more than caches hold
_STORED = ("graph.weight", "graph.constant", "graph.initial")


@dataclass(frozen=True, slots=True)
class SourceOp:
    """An operation of the program as it was written: its name, its first result, its place."""

    name: str
    result: str
    file: str
    line: int


@dataclass
class Part:
    """Loops that belong together, as they came from the same nests: what they compute, and how long they took in every round.

    ``stored`` are the buffers that they leave to others; ``known`` says whether ``flops`` and ``nbytes`` don't depend on data;
    ``dots`` are the flops that are computed with digits, by the number of digits.
    """

    ops: list[SourceOp]
    stored: list[str]
    flops: float
    nbytes: float
    known: bool
    dots: dict[int, float]
    seconds: list[float] = field(default_factory=list)


@dataclass
class Report:
    """What was measured.  ``calls`` are the seconds of a call in every round, ``timed_calls`` those of code with clocks."""

    graph: str
    threads: int
    dims: dict[str, int]
    inputs: dict[str, str]
    limits: Limits
    flops: float
    nbytes: float
    dots: dict[int, float]
    parts: list[Part]
    calls: list[float]
    timed_calls: list[float]
    block: int
    """Calls in a round."""

    inside: list[float]
    """Seconds of a call inside the program's main function, in every round."""

    @property
    def calling(self) -> list[float]:
        """Seconds of a call outside the main function: arguments, results, and waiting until all threads are back."""
        return [whole - inside for whole, inside in zip(self.timed_calls, self.inside, strict=True)]

    @property
    def between(self) -> list[float]:
        """Seconds in the main function, but in no part: barriers, and what is computed between loops."""
        return [inside - sum(p.seconds[i] for p in self.parts) for i, inside in enumerate(self.inside)]

    @property
    def undisturbed(self) -> float:
        """The sum of the medians of all parts and of what is lost: a pause in one round touches few of them."""
        lost = statistics.median(self.between) + statistics.median(self.calling)
        return lost + sum(statistics.median(p.seconds) for p in self.parts)


@dataclass
class Subject:
    """A program that is ready to be measured."""

    graph: Graph
    plain: Executable
    timed: Executable
    counts: Any
    """Ticks in each timed loop, and in the main function, of the code with clocks; can be set to zero."""
    parts: list[tuple[Part, list[int]]]
    """With the timed loops of each."""
    flops: float
    nbytes: float
    dots: dict[int, float]
    names: dict[str, int]
    threads: int


# -- compiling ---------------------------------------------------------------------------------------------------------


def prepare(
    module: Module,
    entry: Graph,
    sources: Sources,
    passes: Sequence[Pass],
    threads: int,
    names: Mapping[str, int],
    watch: Instrumentation | None = None,
) -> Subject:
    """Compiles a program whose dimensions will be ``names``, and counts what it does.

    Raises :class:`GraphError` for everything that compiling complains about.
    """
    written = source_operations(module)
    split = next((i for i, p in enumerate(passes) if pass_name(p) in COUNTED_BEFORE), 0)
    PassManager(passes[:split], watch or Instrumentation(), sources).run(module)
    nests = nests_of(module.graphs[entry.name])
    works = [work_of(op, names) for op in nests]
    used = memories_used(module.graphs[entry.name])
    for number, op in enumerate(nests):
        mark(op, number)
    places = [places_of(op) for op in nests]
    everything = least_bytes(works, [m for m, users in used.items() if users - set(nests)], names)
    found = Counted(nests, works, used, written, places, names)
    PassManager(passes[split:], watch or Instrumentation(), sources).run(module)
    graph = module.graphs[entry.name]
    plain = compile_native(module, graph, sources, threads)
    timed, loops, counts = compile_timed(module, graph, sources, threads)
    flops = sum(w.flops for w in works)
    return Subject(graph, plain, timed, counts, found.parts(loops[:-1]), flops, everything, dots_of(works), dict(names), threads)


Place = tuple[str, int, int]


def source_operations(module: Module) -> dict[Place, SourceOp]:
    """What stands where in the program as it was written."""
    found: dict[Place, SourceOp] = {}
    for op in module.walk():
        if op.loc is not None and op.definition.full_name not in _STORED and not op.definition.is_terminator:
            place = op.loc.places[0]
            result = op.results[0].name if op.results else ""
            found[place] = SourceOp(op.definition.text_name, result, place[0], place[1])
    return found


def nests_of(graph: Graph) -> list[Operation]:
    return [op for op in graph.block if has_work(op)]


def mark(nest: Operation, number: int) -> None:
    mark = NamedLocation(_MARK, number, 1)
    for op in (nest, *nest.walk()):
        op.loc = FusedLocation([mark] if op.loc is None else [op.loc, mark])


def _marks(loop: Operation) -> set[int]:
    """The nests that a loop has come from: what it repeats and stores tells, as constants may stand anywhere."""
    telling = [op for op in (loop, *loop.walk()) if op.regions or not op.results]
    return {line for op in telling for file, line, _ in _all_places(op.loc) if file == _MARK}


def places_of(nest: Operation) -> set[Place]:
    return {place for op in (nest, *nest.walk()) for place in _all_places(op.loc)}


def _all_places(location: AnyLocation | None) -> tuple[Place, ...]:
    return () if location is None else location.places


@dataclass
class Counted:
    """The nests of a program, with what each does and the places that it has come from, among those of written operations."""

    nests: list[Operation]
    works: list[Work]
    used: Mapping[Value, set[Operation]]
    written: Mapping[Place, SourceOp]
    places: list[set[Place]]
    names: Mapping[str, int]

    def parts(self, loops: Sequence[Operation]) -> list[tuple[Part, list[int]]]:
        """Loops and nests that are connected are one part; in the order of the loops."""
        groups: list[tuple[set[int], list[int]]] = []
        for position, loop in enumerate(loops):
            marks, positions = _marks(loop), [position]
            for group in [g for g in groups if g[0] & marks]:
                marks, positions = marks | group[0], group[1] + positions
                groups.remove(group)
            groups.append((marks, positions))
        groups.sort(key=lambda g: g[1][0])
        return [(self._part(sorted(marks), [loops[p] for p in positions]), positions) for marks, positions in groups]

    def _part(self, numbers: list[int], loops: list[Operation]) -> Part:
        inside = {self.nests[n] for n in numbers}
        works = [self.works[n] for n in numbers]
        kept = [memory for memory, users in self.used.items() if users - inside]
        stored = [m.name for w in works for m in w.written if m in kept]
        origins = [self.places[n] for n in numbers] or [places_of(loop) for loop in loops]  # of no nest: what a pass has put in
        ops = list(dict.fromkeys(self.written[p] for there in origins for p in sorted(there & self.written.keys())))
        known = bool(works) and all(w.known for w in works)
        names = [name.removesuffix(".buffer") for name in dict.fromkeys(stored)]
        return Part(ops, names, sum(w.flops for w in works), least_bytes(works, kept, self.names), known, dots_of(works))


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(subject: Subject, arrays: Sequence[NDArray[Any]], inputs: dict[str, str], rounds: int = 15, seconds: float = 0.03) -> Report:
    """Times the program on arrays: in each round a sample of the limits, and a block of calls of either code."""
    needed = {level_of(n) for n in (subject.nbytes, *(p.nbytes for p, _ in subject.parts))}
    dtypes = [dtype for dtype in host_dtypes() if dtype == "f32" or (dtype == "i8" and subject.dots)]
    levels = [level for level in READ if level != "DRAM" or level in needed]
    meter = Meter(subject.threads, levels, dtypes, min(int(subject.nbytes), _STREAM) if "DRAM" in levels else 0)
    ticks, code = _tick_reader()
    for part, _ in subject.parts:
        part.seconds.clear()
    calls = _fitting(subject.plain, arrays, seconds)
    _block(subject.timed, arrays, 1)
    whole: list[float] = []
    timed: list[float] = []
    counted: list[list[int]] = []
    begin, first = time.perf_counter(), ticks()
    for _ in range(rounds):
        meter.sample()
        whole.append(_block(subject.plain, arrays, calls))
        ctypes.memset(subject.counts, 0, ctypes.sizeof(subject.counts))
        timed.append(_block(subject.timed, arrays, calls))
        counted.append(list(subject.counts))
    tick = (time.perf_counter() - begin) / (ticks() - first)
    for part, positions in subject.parts:
        part.seconds = [sum(counts[p] for p in positions) * tick / calls for counts in counted]
    parts = [part for part, _ in subject.parts]
    inside = [counts[-1] * tick / calls for counts in counted]
    limits = meter.limits(max)
    assert code is not None  # keeps the function of ``ticks``
    return Report(
        subject.graph.name, subject.threads, subject.names, inputs, limits, subject.flops, subject.nbytes, subject.dots,
        parts, whole, timed, calls, inside,
    )  # fmt: skip


def _tick_reader() -> tuple[Callable[[], int], Code]:
    """The clock that code with clocks reads."""
    code = Code.from_text(tick_function("ticks"))
    return ctypes.CFUNCTYPE(ctypes.c_int64)(code.address("ticks")), code


def _fitting(program: Executable, arrays: Sequence[NDArray[Any]], seconds: float) -> int:
    """How many calls take about so long."""
    _block(program, arrays, 1)
    calls = 1
    while (once := _block(program, arrays, calls)) * calls < seconds / 8 and calls < 1_000_000:
        calls *= 2
    return max(1, min(1_000_000, round(seconds / once)))


def _block(program: Executable, arrays: Sequence[NDArray[Any]], calls: int) -> float:
    """Seconds of one call, among so many in a row."""
    call = program.__call__
    start = time.perf_counter()
    for _ in range(calls):
        call(*arrays)
    return (time.perf_counter() - start) / calls
