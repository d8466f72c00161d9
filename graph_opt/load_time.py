"""What a program needs before it can run: its weights and constants, what is computed from them, and its loaded code.

Nothing here generates code or runs passes: this is all that a program out of the cache goes through.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from codegen.llvm.jit import Code
from codegen.llvm.native import STORED
from codegen.runtime.pages import aligned_arrays
from codegen.runtime.program import NativeProgram
from codegen.runtime.threads import shared_pool
from graph_opt.ahead import Ahead
from graph_opt.kept import POISON
from graph_opt.packing import LoadTimeInterpreter, unmapped
from ir.attributes import GraphRef
from ir.clone import clone_module
from ir.core import Graph, Module, Operation
from ir.interpreter import Environment, Interpreter
from ir.printer import print_module
from ir.references import INITIAL, load_time_graphs
from ir.types import TensorType, array_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from codegen.llvm.native import NativeModule
    from codegen.runtime.facts import Facts
    from codegen.runtime.threads import Pool
    from ir.weights import WeightSource

def load_quickly(text: str) -> Code:
    """For code without loops: the least effort gives the same speed."""
    return Code.from_text(text, level=0)


def new_program(
    text: NativeModule, code: Code, graph: Graph, stored: Sequence[NDArray[Any]], threads: int, facts: Facts | None = None
) -> NativeProgram:
    """A program that uses the pool of threads of this process; ``threads`` where it can share work at all."""
    poison = os.environ.get(POISON) == "1"
    return NativeProgram(text, code, graph, stored, threads=threads if text.parallel else 1, pool=_pool, poison=poison, facts=facts)


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
        interpreter = LoadTimeInterpreter(part, self.sources)
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
    return not has_loops(graph) and all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.results)


def _run_in_place(interpreter: Interpreter, graph: Graph) -> list[NDArray[Any]]:
    """The results of a graph, each where it stays."""
    interpreter.check_sizes(graph, {})
    types: list[Any] = [v.type for v in graph.results]
    targets = aligned_arrays([(array_shape(t), t.dtype.numpy) for t in types])
    interpreter.run_into(graph, targets)
    return targets


class Stored:
    """Finds the tensors that a program has before it runs: weights, constants, and results of graphs that run at load time.

    ``ready`` makes programs of graphs that are compiled already; ``loaded`` receives those that were compiled here.
    """

    def __init__(
        self,
        module: Module,
        sources: Mapping[str, WeightSource],
        threads: int,
        begun: LoadTime | None = None,
        *,
        ready: Mapping[str, Callable[[], NativeProgram]] | None = None,
        loaded: dict[str, NativeProgram] | None = None,
    ) -> None:
        self.module = module
        self.sources = sources
        self.threads = threads
        self.ready = ready or {}
        self.loaded = {} if loaded is None else loaded
        part = _load_time_part(module)
        self._interpreter = LoadTimeInterpreter(part, sources, threads=threads)
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
        return unmapped(environment.arrays[op.results[0]])

    def _run(self, source: Graph) -> list[NDArray[Any]]:
        """The results of a graph that runs at load time, where they stay."""
        if source.name in self.ready:
            return self.ready[source.name]().run([], lasting=True)
        if has_loops(source):
            program = self.loaded[source.name] = self._compiled(source)
            return program.run([], lasting=True)
        if _is_plain(source):
            return _run_in_place(self._interpreter, source)
        return Interpreter(self._interpreter.module, self.sources).run(source, [])

    def _compiled(self, source: Graph) -> NativeProgram:
        from graph_opt.native import make_program

        return make_program(self.module, source, self.sources, self.threads, loaded=self.loaded)


def _load_time_part(module: Module) -> Module:
    """The graphs that run when the program is loaded, and the files that they read."""
    part = Module(module.source)
    part.files = module.files
    for name in load_time_graphs(module):
        part.graphs[name] = module.graphs[name]
    return part


def has_loops(graph: Graph) -> bool:
    """Whether a graph was lowered, so that it is machine code that should run it."""
    return any(op.definition.dialect in ("scf", "memref") for op in graph.walk())
