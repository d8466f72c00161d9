"""The public functions: load, parse, compile, run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import dialects
from graph_opt.binding import Sources, at_location, bind_constants, bind_files
from graph_opt.collector import fewer_collections
from graph_opt.executable import DeferredExecutable, Executable, ReferenceExecutable
from graph_opt.levels import level_of, preset_of
from ir.clone import clone_module
from ir.core import Graph, Module
from ir.diagnostics import Diagnostic, Diagnostics, GraphError, NamedLocation, did_you_mean
from ir.parser import check_text, decode_text, parse_module
from ir.references import all_references, reachable_graphs
from ir.types import is_known
from ir.verifier import verify_module
from passes.graph.hoist_to_init import HoistToInit
from passes.infra.base import Pass
from passes.infra.manager import Instrumentation, PassManager
from passes.memory.plan_memory import PlanMemory
from passes.memory.poison import Poison
from passes.pipelines import load_pipeline

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

assert dialects  # defines the operations

Device = Literal["cpu", "reference"]
DEVICES: tuple[str, ...] = ("cpu", "reference")
MAX_THREADS = 256
DEFAULT_DEVICE: Device = "cpu"


def parse(text: str, name: str = "<string>") -> Module:
    """The module that a text spells out, checked.  ``str(module)`` gives the text back.

    Raises :class:`GraphError` with every syntax and type error, each located as ``name:line:col``.
    """
    if not isinstance(text, str):
        raise GraphError(Diagnostic(f"expected a text, found {type(text).__name__}", NamedLocation(name, 1, 1)))
    report = Diagnostics()
    module = parse_module(check_text(text, name), name, report)
    verify_module(module, report)
    report.raise_if_any()
    return module


def load(path: str | os.PathLike[str]) -> Module:
    """The module in a file of UTF-8 text; see :func:`parse`."""
    name = os.fspath(path)
    return parse(decode_text(read_program(name), name), name)


def read_program(name: str) -> bytes:
    """The bytes of a program's file.  Raises :class:`GraphError` when it can't be read."""
    if "\n" in name or "{" in name:
        message = "this is the text of a program, not the name of a file"
        raise GraphError(Diagnostic(message, NamedLocation("<text>", 1, 1), "graph_opt.parse(text) reads it"))
    start = NamedLocation(name, 1, 1)
    try:
        return Path(name).read_bytes()
    except FileNotFoundError:
        raise GraphError(Diagnostic("there is no such file", start, _near_file(name))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GraphError(Diagnostic(f"can't be read: {reason}", start)) from None


def _near_file(name: str) -> str | None:
    folder = Path(name).parent
    try:
        return did_you_mean(Path(name).name, sorted(os.listdir(folder))[:1000])
    except OSError:
        return None


def find_graph(module: Module, name: str | None) -> Graph:
    """The graph called ``name``; for None ``@main``, the only graph, or the only one that no other mentions.

    Raises :class:`GraphError` when there is none.
    """
    if name is not None:
        wanted = name.removeprefix("@")
        if wanted not in module.graphs:
            raise GraphError(Diagnostic(f"there is no graph @{wanted}", hint=did_you_mean(wanted, module.graphs)))
        return module.graphs[wanted]
    if "main" in module.graphs:
        return module.graphs["main"]
    referenced = all_references(module)
    entries = [g for n, g in module.graphs.items() if n not in referenced]
    if len(entries) == 1:
        return entries[0]
    if not module.graphs:
        raise GraphError(Diagnostic("the program has no graph"))
    raise GraphError(Diagnostic("which graph? there is no @main", hint=f"name one of {', '.join('@' + n for n in module.graphs)}"))


def keep_reachable(module: Module, entry: Graph) -> None:
    """Removes the graphs that ``entry`` neither calls nor has run at load time, callers of it among them: nothing calls it then."""
    needed = reachable_graphs(module, [entry.name])
    for name in [n for n in module.graphs if n not in needed]:
        del module.graphs[name]


def check_device(device: str, threads: int) -> None:
    """Raises :class:`GraphError` for a device that is not there, or can't have so many threads."""
    if device not in DEVICES:
        raise GraphError(Diagnostic(f"there is no device '{device}'", hint=f"devices: {', '.join(DEVICES)}"))
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= MAX_THREADS:
        raise GraphError(Diagnostic(f"threads: expected an integer from 0 to {MAX_THREADS}, found {threads!r}"))
    if device == "reference" and threads != 1:
        raise GraphError(Diagnostic("device 'reference' has one thread"))


def default_pipeline(module: Module, device: str) -> str:
    """The passes that a device wants for a program: none but inference where it is at the level of loops already."""
    if device == "reference":
        return "O1"
    return "O0" if level_of(module) == "loops" else preset_of("loops")


def make_executable(
    module: Module, entry: Graph, sources: Sources, device: str, threads: int, passes: Sequence[Pass], watch: Instrumentation | None = None
) -> Executable:
    """Runs the passes and makes what runs the program.

    Machine code needs types: where a parameter has none, or an open dimension, it is made for the arrays of each call.
    """
    manager = PassManager(passes, watch or Instrumentation(), sources)
    if device == "reference":
        manager.run(module)
        return ReferenceExecutable(module, module.graphs[entry.name], sources)

    def make(module: Module) -> Executable:
        from graph_opt.native import LoadTime, compile_native

        load_time = LoadTime(sources)
        last = max((n for n, p in enumerate(passes) if isinstance(p, HoistToInit)), default=None)
        begin = {id(passes[last]): load_time.begin} if last is not None else {}
        try:
            with fewer_collections():
                PassManager(poisoning(passes), watch or Instrumentation(), sources, fold_twins=True, behind=begin).run(module)
                return compile_native(module, module.graphs[entry.name], sources, threads, load_time)
        finally:
            load_time.wait()

    if all(is_known(p.type) for p in entry.parameters):
        return make(module)
    return DeferredExecutable(module, entry, make)


def poisoning(passes: Sequence[Pass]) -> Sequence[Pass]:
    """The passes; with ``GRAPH_OPT_POISON=1``, memory that a plan says is free is filled with garbage."""
    if os.environ.get("GRAPH_OPT_POISON") != "1":
        return passes
    return [each for p in passes for each in ((p, Poison()) if isinstance(p, PlanMemory) else (p,))]


def compile(
    program: str | os.PathLike[str] | Module,
    graph: str | None = None,
    *,
    pipeline: str | None = None,
    device: str = DEFAULT_DEVICE,
    threads: int = 1,
    constants: Mapping[str, ArrayLike] | None = None,
    files: Mapping[str, str | os.PathLike[str]] | None = None,
) -> Executable:
    """A callable from a file or a module (which is left as it is).

    ``graph`` names the graph (see :func:`find_graph`); ``device`` is ``"cpu"`` for machine code or ``"reference"`` for the
    interpreter; ``pipeline`` the passes, by default those that the device wants.  ``threads`` is how many threads machine
    code may use, 0 for one per processor; the results have the same bits for any number.
    ``constants`` binds parameters to arrays, which are then folded like weights; ``files`` binds declared files of
    weights to paths.  Raises :class:`GraphError` for everything that is wrong with the program, the pipeline or the files.
    """
    folder: Path | None = None
    if isinstance(program, Module):
        module = clone_module(program)
        name = module.source.name if module.source is not None else "<module>"
        if module.source is not None and Path(name).is_file():
            folder = Path(name).parent
    else:
        name = os.fspath(program)
        module = load(name)
        folder = Path(name).parent
    try:
        check_device(device, threads)
        if not isinstance(pipeline, str | None):
            raise GraphError(Diagnostic(f"expected a pipeline string, found {type(pipeline).__name__}"))
        entry = find_graph(module, graph)
        keep_reachable(module, entry)
        sources: Sources = bind_files(module, files, folder, required=True)
        bind_constants(module, entry, constants or {}, sources)
        passes = load_pipeline(default_pipeline(module, device) if pipeline is None else pipeline)
        return make_executable(module, entry, sources, device, threads, passes)
    except GraphError as error:
        raise at_location(error, NamedLocation(name, 1, 1)) from error


def run(program: str | os.PathLike[str] | Module, /, *args: ArrayLike, **kwargs: ArrayLike) -> Any:
    """Compiles a program with the default passes and calls it once; see :func:`compile`."""
    return compile(program)(*args, **kwargs)
