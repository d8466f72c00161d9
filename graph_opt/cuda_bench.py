"""How fast a program is on a GPU, launch by launch, beside what the card can do by its data sheet.

A call is timed by events on the device around many calls in a row, with all arrays on the device, so as a replayed graph where the program
can be one; launches are timed one by one, in calls that are not replayed.  What a nest has to do is counted where
:mod:`graph_opt.bench` counts it, before nests become kernels.

An emulated device has no speed: what is reported of one are the launches and their work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from codegen.cuda.arrays import DeviceArray, empty, to_device
from codegen.cuda.device import Device
from codegen.cuda.plan import Launch
from graph_opt.bench import COUNTED_BEFORE, Counted, Part, mark, nests_of, places_of, source_operations
from graph_opt.bench_report import described, duration, lines_of, spread, table
from graph_opt.build import make_on_device
from graph_opt.cuda import CudaExecutable
from graph_opt.levels import has_accesses
from graph_opt.work import least_bytes, memories_used, work_of
from ir.core import Graph, Module
from ir.types import TensorType, substitute_type
from passes.infra.base import Pass
from passes.infra.manager import Instrumentation, PassManager
from passes.infra.pipeline import pass_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from graph_opt.binding import Sources

BLOCK = 0.03
"""Seconds of a block of calls."""


@dataclass
class CudaSubject:
    """A program that is ready to be measured.  ``parts`` are the nests that launches have come from, by the objects that are their locations."""

    executable: CudaExecutable
    parts: dict[int, Part]
    flops: float
    nbytes: float
    names: dict[str, int]


@dataclass
class CudaRow:
    """One launch of a call: its kernel, its grid, how long it took in every round, and the work that it has come from."""

    launch: Launch
    threads: int
    shared: int
    part: Part | None
    seconds: list[float] = field(default_factory=list)


@dataclass
class CudaReport:
    """What was measured.  ``calls`` are the seconds of a call in every round by the device's events, ``host`` by the host's clock."""

    graph: str
    device: Device
    names: dict[str, int]
    inputs: dict[str, str]
    flops: float
    nbytes: float
    rows: list[CudaRow]
    calls: list[float]
    host: list[float]
    block: int


def prepare(
    module: Module,
    entry: Graph,
    sources: Sources,
    passes: Sequence[Pass],
    device: Device,
    names: Mapping[str, int],
    watch: Instrumentation | None = None,
) -> CudaSubject:
    """Compiles a program whose dimensions will be ``names``, and counts what it does.  Raises GraphError as compiling does."""
    written, checked = source_operations(module), has_accesses(module)
    split = next((i for i, p in enumerate(passes) if pass_name(p) in COUNTED_BEFORE), 0)
    PassManager(passes[:split], watch or Instrumentation(), sources).run(module)
    nests = nests_of(module.graphs[entry.name])
    works = [work_of(op, names) for op in nests]
    used = memories_used(module.graphs[entry.name])
    for number, op in enumerate(nests):
        mark(op, number)
    everything = least_bytes(works, [m for m, users in used.items() if users - set(nests)], names)
    found = Counted(nests, works, used, written, [places_of(op) for op in nests], names)
    executable = make_on_device(module, entry.name, sources, passes[split:], watch or Instrumentation(), device, checked=checked)
    launches = [op for op in executable.graph.walk() if op.definition.full_name == "gpu.launch"]
    parts = {id(launches[at].loc): part for part, positions in found.parts(launches) for at in positions}
    return CudaSubject(executable, parts, sum(w.flops for w in works), everything, dict(names))


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(subject: CudaSubject, arrays: Sequence[NDArray[Any]], inputs: dict[str, str], rounds: int = 15) -> CudaReport:
    """Times the program on arrays, which are copied to the device first; on an emulated one it runs once, without times."""
    program = subject.executable
    device, driver = program.device, program.device.driver
    given = [to_device(device, a) for a in arrays]
    out = _outputs(program, subject.names)
    rows = _rows(subject, program.engine.profile(given, out))
    calls: list[float] = []
    host: list[float] = []
    block = 0
    if not driver.emulated:
        for _ in range(3):
            program.engine.call(given, out)
        block = _fitting(program, given, out)
        for _ in range(rounds):
            on_device, on_host = _block(program, given, out, block)
            calls.append(on_device)
            host.append(on_host)
            for row, (_, seconds) in zip(rows, program.engine.profile(given, out), strict=True):
                row.seconds.append(seconds)
    return CudaReport(program.graph.name, device, subject.names, inputs, subject.flops, subject.nbytes, rows, calls, host, block)


def _outputs(program: CudaExecutable, names: Mapping[str, int]) -> list[DeviceArray]:
    types = [substitute_type(a.type, names) for a in program.engine.program.results]
    return [empty(program.device, t) for t in types if isinstance(t, TensorType)]


def _rows(subject: CudaSubject, launches: Sequence[tuple[Launch, float]]) -> list[CudaRow]:
    """A row for each launch of a run."""
    kernels = {k.name: k for k in subject.executable.engine.program.kernels}
    return [CudaRow(w, kernels[w.kernel].threads, kernels[w.kernel].shared_bytes, subject.parts.get(id(w.location))) for w, _ in launches]


def _fitting(program: CudaExecutable, given: Sequence[Any], out: Sequence[Any]) -> int:
    """How many calls take about as long as a block should."""
    calls = 1
    while (once := _block(program, given, out, calls)[1]) * calls < BLOCK / 8 and calls < 100_000:
        calls *= 2
    return max(1, min(100_000, round(BLOCK / once)))


def _block(program: CudaExecutable, given: Sequence[Any], out: Sequence[Any], calls: int) -> tuple[float, float]:
    """Seconds of one call among so many in a row: between events on the device, and of the host until all is done."""
    device, driver, call = program.device, program.device.driver, program.__call__
    results = tuple(out)
    with device:
        first, second = driver.new_event(timing=True), driver.new_event(timing=True)
        driver.synchronize_stream(device.stream)
        start = time.perf_counter()
        driver.record(first, device.stream)
        for _ in range(calls):
            call(*given, out=results)
        driver.record(second, device.stream)
        driver.synchronize_stream(device.stream)
        took = time.perf_counter() - start
        seconds = driver.elapsed(first, second)
        driver.destroy_event(first)
        driver.destroy_event(second)
    return seconds / calls, took / calls


# -- reporting ---------------------------------------------------------------------------------------------------------


def bandwidth(device: Device) -> float:
    """Bytes in a second that the card's memory can give by its clock and width; 0 where the driver doesn't tell."""
    properties = device.driver.properties
    return 2e3 * properties.memory_clock * properties.bus / 8


def to_json(report: CudaReport) -> dict[str, Any]:
    """Everything, in seconds, operations and bytes; ``label`` is "measured" or "emulated", which has no times."""
    emulated = report.device.driver.emulated
    properties = report.device.driver.properties
    call: dict[str, Any] = {"flops": report.flops, "bytes": report.nbytes}
    if not emulated:
        call |= {"seconds": spread(report.calls), "host_seconds": spread(report.host)}
    return {
        "label": "emulated" if emulated else "measured",
        "graph": report.graph,
        "device": report.device.name,
        "card": properties.name,
        "target": properties.target,
        "cuda": ".".join(map(str, properties.driver)),
        "implementation": report.device.driver.name,
        "dims": report.names,
        "inputs": report.inputs,
        "rounds": len(report.calls),
        "calls_per_round": report.block,
        "bandwidth": bandwidth(report.device),
        "call": call,
        "launches": [_row_json(row) for row in report.rows],
    }


def _row_json(row: CudaRow) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel": row.launch.kernel, "grid": list(row.launch.grid), "threads": row.threads, "shared_bytes": row.shared}
    if row.seconds:
        found["seconds"] = spread(row.seconds)
    if row.part is not None:
        found["ops"] = [{"op": o.name, "result": o.result, "file": o.file, "line": o.line} for o in row.part.ops]
        found |= {"stored": row.part.stored, "counted": row.part.known, "flops": row.part.flops, "bytes": row.part.nbytes}
    return found


def to_text(report: CudaReport) -> str:
    """The call in some lines, then a table of its launches: those that take longest first, or in their order on an emulated device."""
    emulated = report.device.driver.emulated
    whole = sum(statistics.median(r.seconds) for r in report.rows if r.seconds)
    groups = _alike(report.rows)
    if not emulated:
        groups.sort(key=lambda g: -sum(statistics.median(r.seconds) for r in g))
    times = [] if emulated else ["time", "share", "GFLOP/s", "GB/s"]
    heads = ["n", *times, "grid", "threads", "shared", "MFLOP", "MB", "kernel", "lines", "what"]
    cells = [_cells(group, whole) for group in groups]
    return "\n".join([*_head(report, whole), "", *table([heads, *cells])]) + "\n"


def _head(report: CudaReport, whole: float) -> list[str]:
    properties = report.device.driver.properties
    inputs = ", ".join(f"{name}: {type_}" for name, type_ in report.inputs.items())
    dims = "".join(f", {name} = {size}" for name, size in report.names.items())
    lines = [f"@{report.graph}({inputs}){dims}"]
    work = f"{report.flops / 1e6:.6g} MFLOP and {report.nbytes / 1e6:.6g} MB at least"
    if report.device.driver.emulated:
        lines.append(f"emulated: kernels ran on the CPU, one thread after the other, so no times are told; {len(report.rows)} launches")
        return [*lines, work]
    read = bandwidth(report.device)
    about = f"; {read / 1e9:.0f} GB/s of memory by its data sheet" if read else ""
    version = ".".join(map(str, properties.driver))
    lines.append(f"measured on {properties.name} ({properties.target}), driver for CUDA {version}, by {report.device.driver.name}{about}")
    device, host = spread(report.calls), spread(report.host)
    lines.append(
        f"a call: {duration(device['median'])} on the device, {duration(host['median'])} for the host (least {duration(host['min'])}; "
        f"{len(report.calls)} rounds of {report.block} calls); {len(report.rows)} launches, {duration(whole)} one by one"
    )
    median = device["median"]
    lines.append(f"{work}: {report.flops / median / 1e9:.1f} GFLOP/s, {report.nbytes / median / 1e9:.1f} GB/s" if median else work)
    return lines


def _alike(rows: Sequence[CudaRow]) -> list[list[CudaRow]]:
    """Launches of the same kernel that do the same to other buffers, as the layers of a model do."""
    found: dict[Any, list[CudaRow]] = {}
    for row in rows:
        work = (row.part.flops, row.part.nbytes, row.part.known, tuple((o.name, o.file, o.line) for o in row.part.ops)) if row.part else None
        found.setdefault((row.launch.kernel, row.launch.grid, work), []).append(row)
    return list(found.values())


def _cells(rows: list[CudaRow], whole: float) -> list[str]:
    """How many launches, the time of one, what all of them take of the whole."""
    row, part = rows[0], rows[0].part
    known = part is not None and part.known
    flops, nbytes = (part.flops, part.nbytes) if part is not None and known else (0.0, 0.0)
    cells = [str(len(rows))]
    if row.seconds:
        all_of_them = sum(statistics.median(r.seconds) for r in rows)
        seconds = max(all_of_them / len(rows), 1e-12)
        rates = [f"{flops / seconds / 1e9:.1f}", f"{nbytes / seconds / 1e9:.1f}"] if known else ["", ""]
        cells += [duration(seconds), f"{all_of_them / whole:.1%}" if whole else "", *rates]
    grid = "x".join(str(n) for n in row.launch.grid).removesuffix("x1").removesuffix("x1")
    cells += [grid, str(row.threads), str(row.shared or ""), f"{flops / 1e6:.6g}" if known else "", f"{nbytes / 1e6:.6g}" if known else ""]
    return [*cells, row.launch.kernel, lines_of(part.ops) if part is not None else "", described(part) if part is not None else ""]
