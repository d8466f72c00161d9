"""From a program at the level of loops to machine code that can be called.

LLVM is imported here, when code is generated, and not before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from codegen.llvm.emit import emit_graph
from codegen.llvm.jit import Code, assembly, compile_object, host_attributes, host_features
from codegen.llvm.main import STORED
from codegen.runtime.pages import aligned_arrays
from codegen.runtime.program import NativeProgram
from codegen.runtime.threads import shared_pool
from graph_opt.ahead import Ahead
from graph_opt.executable import NativeExecutable
from ir.attributes import GraphRef
from ir.clone import clone_module
from ir.core import Graph, Module, Operation
from ir.interpreter import Environment, Interpreter
from ir.printer import print_module
from ir.references import INITIAL, load_time_graphs
from ir.types import TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from codegen.runtime.threads import Pool
    from ir.weights import WeightSource

POISON = "GRAPH_OPT_POISON"
"""Set to 1, workspaces are filled with NaN before every run, so that reads of what was never written show."""


def compile_native(
    module: Module, graph: Graph, sources: Mapping[str, WeightSource], threads: int = 1, begun: LoadTime | None = None
) -> NativeExecutable:
    """Machine code for one graph of a module at the level of loops.  ``begun`` are graphs for load time that run already.

    Raises GraphError for operations that have no machine code, and for weights that are missing or don't fit.
    """
    return NativeExecutable(module, graph, _program(module, graph, sources, threads, begun=begun), _load_quickly)


def compile_timed(
    module: Module, graph: Graph, sources: Mapping[str, WeightSource], threads: int = 1
) -> tuple[NativeExecutable, list[Operation], ctypes.Array[ctypes.c_int64]]:
    """The same with clocks: also the loops that are timed, and the numbers where the ticks of each are added up.

    The numbers are good as long as the executable lives.
    """
    program = _program(module, graph, sources, threads, clocks=True)
    loops = program.text.timed
    counts = (ctypes.c_int64 * len(loops)).from_address(program.code.address(program.text.clocks_name))
    return NativeExecutable(module, graph, program, _load_quickly), loops, counts


def _load_quickly(text: str) -> Code:
    """For code without loops: the least effort gives the same speed."""
    return Code.from_text(text, level=0)


def _program(
    module: Module, graph: Graph, sources: Mapping[str, WeightSource], threads: int, *, clocks: bool = False, begun: LoadTime | None = None
) -> NativeProgram:
    Interpreter(module, sources).check_sizes(graph, {})
    stored = Ahead(lambda: _Stored(module, sources, threads, begun).tensors(graph))  # reads and copies, while others compute
    try:
        text = emit_graph(module, graph, attributes=host_attributes(), features=host_features(), clocks=clocks)
        code = Code.from_program(text.text, text.function)
    finally:
        stored.wait()
    arrays = stored.result()
    return NativeProgram(
        text, code, graph, [arrays[a.operation] for a in text.arguments if a.kind == "stored" and a.operation is not None],
        threads=threads if text.parallel else 1, pool=_pool, poison=os.environ.get(POISON) == "1",
    )  # fmt: skip


def _pool() -> Pool:
    return shared_pool(Code.from_text)


class LoadTime:
    """Graphs of tensor operations that run at load time, in a thread, while passes still work on the graphs that use them."""

    def __init__(self, sources: Mapping[str, WeightSource]) -> None:
        self.sources = sources
        self._text = ""
        self._work: Ahead[dict[str, list[NDArray[Any]]]] | None = None

    def begin(self, module: Module) -> None:
        """Begins to run what the module has for load time, as it is now."""
        part = clone_module(_load_time_part(module))
        if self._work is not None or not part.graphs or not all(_is_plain(g) for g in part.graphs.values()):
            return
        self._text = print_module(part)
        interpreter = Interpreter(part, self.sources)
        self._work = Ahead(lambda: {n: _run_in_place(interpreter, g) for n, g in part.graphs.items() if not g.parameters})

    def results(self, part: Module) -> dict[str, list[NDArray[Any]]]:
        """The results of the graphs of ``part``, if they are those that were begun."""
        if self._work is None or print_module(part) != self._text:
            return {}
        return self._work.result()

    def wait(self) -> None:
        """Returns when nothing runs any more."""
        if self._work is not None:
            self._work.wait()


def _is_plain(graph: Graph) -> bool:
    """Whether a graph is only tensor operations, with results of known size."""
    return not _has_loops(graph) and all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.results)


def _run_in_place(interpreter: Interpreter, graph: Graph) -> list[NDArray[Any]]:
    """The results of a graph, each where it stays."""
    interpreter.check_sizes(graph, {})
    types: list[Any] = [v.type for v in graph.results]
    targets = aligned_arrays([(t.shape, t.dtype.numpy) for t in types])
    interpreter.run_into(graph, targets)
    return targets


class _Stored:
    """Finds the tensors that a program has before it runs: weights, constants, and results of graphs that run at load time."""

    def __init__(self, module: Module, sources: Mapping[str, WeightSource], threads: int, begun: LoadTime | None = None) -> None:
        self.module = module
        self.sources = sources
        self.threads = threads
        part = _load_time_part(module)
        self._interpreter = Interpreter(part, sources)
        self._initial = begun.results(part) if begun is not None else {}

    def tensors(self, graph: Graph) -> dict[Operation, NDArray[Any]]:
        """The arrays behind the stored tensors of a native graph."""
        return {op: self._tensor(op) for op in graph.block if op.definition.full_name in STORED}

    def _tensor(self, op: Operation) -> NDArray[Any]:
        reference = op.attributes.get("source")
        if op.name == INITIAL and isinstance(reference, GraphRef):
            source = self.module.graphs[reference.name]
            number = op.attributes["result"]
            assert isinstance(number, int)
            if source.name not in self._initial:
                self._initial[source.name] = self._run(source)
            return self._initial[source.name][number]
        environment = Environment({})
        self._interpreter.run_operation(op, environment)
        array: NDArray[Any] = environment.arrays[op.results[0]]
        return array

    def _run(self, source: Graph) -> list[NDArray[Any]]:
        """The results of a graph that runs at load time, where they stay."""
        if _has_loops(source):
            return _program(self.module, source, self.sources, self.threads).run([], lasting=True)
        if _is_plain(source):
            return _run_in_place(self._interpreter, source)
        return Interpreter(self._interpreter.module, self.sources).run(source, [])


def _load_time_part(module: Module) -> Module:
    """The graphs that run when the program is loaded, and the files that they read."""
    part = Module(module.source)
    part.files = module.files
    for name in load_time_graphs(module):
        part.graphs[name] = module.graphs[name]
    return part


def _has_loops(graph: Graph) -> bool:
    """Whether a graph was lowered, so that it is machine code that should run it."""
    return any(op.definition.dialect in ("scf", "memref") for op in graph.walk())


def emit_target(module: Module, graph: Graph, target: str) -> str | bytes:
    """LLVM's assembly language ("llvm"), this machine's ("asm") or an object file ("obj") for one graph."""
    text = emit_graph(module, graph, attributes=host_attributes(), features=host_features()).text
    if target == "llvm":
        return text
    return assembly(text) if target == "asm" else compile_object(text)
