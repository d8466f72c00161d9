"""The public functions: load, parse, compile, run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dialects
from codegen.cuda.drivers import is_cuda
from graph_opt.binding import Sources, at_location, bind_constants, bind_files, given_arrays, plain_array
from graph_opt.executable import Executable
from graph_opt.kept import READING, Kept, place_in_cache, tell_nobody
from ir.clone import clone_module
from ir.core import Graph, Module
from ir.diagnostics import Diagnostic, Diagnostics, GraphError, NamedLocation, Source, did_you_mean
from ir.parser import check_text, decode_text, parse_module
from ir.references import all_references, reachable_graphs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

assert dialects  # defines the operations

Device = str
DEVICES: tuple[str, ...] = ("cpu", "cuda", "reference")
"""What runs programs; ``cuda:1`` is another GPU than the first, ``cuda-emulated`` runs kernels on the CPU, for tests."""
MAX_THREADS = 256
MAX_PROGRAM = 1 << 28
"""Bytes of a program's text."""

DEFAULT_DEVICE: Device = "cpu"


def parse(text: str, name: str = "<string>") -> Module:
    """The module that a text spells out, checked.  ``str(module)`` gives the text back.

    Raises :class:`GraphError` with every syntax and type error, each located as ``name:line:col``.
    """
    if not isinstance(text, str):
        raise GraphError(Diagnostic(f"expected a text, found {type(text).__name__}", NamedLocation(name, 1, 1)))
    from ir.verifier import verify_module

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
        with open(name, "rb") as file:
            data = file.read(MAX_PROGRAM + 1)
    except FileNotFoundError:
        raise GraphError(Diagnostic("there is no such file", start, near_file(name))) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GraphError(Diagnostic(f"can't be read: {reason}", start)) from None
    if len(data) > MAX_PROGRAM:  # a device without end, for instance
        raise GraphError(Diagnostic(f"a program has at most {MAX_PROGRAM} bytes", start))
    return data


def near_file(name: str) -> str | None:
    """A hint that names a file beside the one that is not there."""
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
    if device not in DEVICES and not is_cuda(device):
        raise GraphError(Diagnostic(f"there is no device '{device}'", hint=f"devices: {', '.join(DEVICES)}"))
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= MAX_THREADS:
        raise GraphError(Diagnostic(f"threads: expected an integer from 0 to {MAX_THREADS}, found {threads!r}"))
    if device == "reference" and threads != 1:
        raise GraphError(Diagnostic("device 'reference' has one thread"))
    if is_cuda(device) and threads not in (0, 1):
        raise GraphError(Diagnostic(f"threads: expected 0 or 1, found {threads}: they are threads of device 'cpu'"))


def compile(
    program: str | os.PathLike[str] | Module,
    graph: str | None = None,
    *,
    pipeline: str | None = None,
    device: str = DEFAULT_DEVICE,
    threads: int = 1,
    constants: Mapping[str, ArrayLike] | None = None,
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    precision: str | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Executable:
    """A callable from a file or a module (which is left as it is).

    ``graph`` names the graph (see :func:`find_graph`); ``device`` is ``"cpu"`` for machine code, ``"cuda"`` for kernels on a GPU
    (``"cuda:1"``: on the second one; see :class:`graph_opt.cuda.CudaExecutable`), or ``"reference"`` for the interpreter; ``pipeline`` the
    passes, by default those that the device wants.  ``threads`` is how many threads machine
    code may use, 0 for one per processor; the results have the same bits for any number.
    ``constants`` binds parameters to arrays, which are then folded like weights; ``files`` binds declared files of
    weights to paths.  ``precision`` says how exact activations are in products with block-quantized weights: ``"f32"`` (the default),
    ``"int16"``, ``"int8"``, or ``"float"`` for arithmetic of floats (``quantize-products``).
    Machine code for a file is kept in the user's cache, and taken from there when nothing has changed; with ``cache=False`` it is not.
    ``progress`` is told what is being done.
    Raises :class:`GraphError` for everything that is wrong with the program, the pipeline or the files.
    """
    asked = _Asked(graph, pipeline, device, threads, constants or {}, files, precision, progress or tell_nobody)
    name, folder = _name_and_folder(program)
    try:
        check_device(device, threads)
        if not isinstance(pipeline, str | None):
            raise GraphError(Diagnostic(f"expected a pipeline string, found {type(pipeline).__name__}"))
        if isinstance(program, Module):
            return asked.compiled(clone_module(program), folder, None)
        return asked.executable(decode_text(read_program(name), name), name, folder, cache)
    except GraphError as error:
        raise at_location(error, NamedLocation(name, 1, 1)) from error


def compile_text(
    text: str,
    name: str,
    graph: str | None = None,
    *,
    threads: int = 1,
    files: Mapping[str, str | os.PathLike[str]] | None = None,
    precision: str | None = None,
    cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Executable:
    """Like :func:`compile` for a text that is in no file; messages call it ``name``."""
    try:
        check_device(DEFAULT_DEVICE, threads)
        asked = _Asked(graph, None, DEFAULT_DEVICE, threads, {}, files, precision, progress or tell_nobody)
        return asked.executable(text, name, None, cache)
    except GraphError as error:
        raise at_location(error, NamedLocation(name, 1, 1)) from error


@dataclass(frozen=True)
class _Asked:
    """What the caller of :func:`compile` asks for."""

    graph: str | None
    pipeline: str | None
    device: str
    threads: int
    constants: Mapping[str, ArrayLike]
    files: Mapping[str, str | os.PathLike[str]] | None
    precision: str | None
    tell: Callable[[str], None]

    def key(self) -> list[str] | None:
        """What of it decides about the code; None when something is wrong with it."""
        try:
            arrays = {n: plain_array(a, n, None) for n, a in self.constants.items()}
        except GraphError:
            return None
        return [repr(self.graph), repr(self.pipeline), repr(self.precision), *(f"{n!r}: {a.dtype.str}{a.shape}" for n, a in arrays.items())]

    def executable(self, text: str, name: str, folder: Path | None, cache: bool) -> Executable:
        """The program with this text, out of the cache if that has it."""
        text = check_text(text, name)
        key = self.key() if cache and self.device == "cpu" else None
        kept = place_in_cache(Source(name, text), key) if key is not None else None
        found = self._from_cache(kept, folder) if kept is not None else None
        if found is not None:
            return found
        self.tell(READING)
        return self.compiled(parse(text, name), folder, kept)

    def _from_cache(self, kept: Kept, folder: Path | None) -> Executable | None:
        """The program that the cache has, with this caller's weights; None when it has none that fits."""
        image = kept.image()
        if image is None:
            return None
        self.tell("loading")
        sources = bind_files(image.module, self.files, folder, required=True)
        if image.given is not None:
            sources[image.given] = given_arrays(self.constants, image.graph.loc)
        anew = replace(self, tell=tell_nobody)
        text = kept.source.text
        return kept.load(
            image, sources, self.threads, lambda: anew.compiled(parse(text, kept.source.name), folder, None).module, self.tell
        )

    def compiled(self, module: Module, folder: Path | None, kept: Kept | None) -> Executable:
        """The program, compiled; it is kept where ``kept`` says."""
        from graph_opt.build import default_pipeline, make_executable, with_precision
        from passes.infra.manager import Instrumentation
        from passes.pipelines import load_pipeline

        entry = find_graph(module, self.graph)
        keep_reachable(module, entry)
        sources: Sources = bind_files(module, self.files, folder, required=True)
        given = bind_constants(module, entry, self.constants, sources)
        if kept is not None:
            kept.given = given
        passes = with_precision(load_pipeline(default_pipeline(module, self.device) if self.pipeline is None else self.pipeline), self.precision)
        return make_executable(module, entry, sources, self.device, self.threads, passes, Instrumentation(progress=self.tell), kept)


def _name_and_folder(program: str | os.PathLike[str] | Module) -> tuple[str, Path | None]:
    """What messages call a program, and the folder that its files of weights are looked up in."""
    if not isinstance(program, Module):
        name = os.fspath(program)
        return name, Path(name).parent
    name = program.source.name if program.source is not None else "<module>"
    return name, Path(name).parent if program.source is not None and Path(name).is_file() else None


def run(program: str | os.PathLike[str] | Module, /, *args: ArrayLike, **kwargs: ArrayLike) -> Any:
    """Compiles a program with the default passes and calls it once; see :func:`compile`."""
    return compile(program)(*args, **kwargs)
