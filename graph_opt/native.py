"""From a program at the level of loops to machine code that can be called.

LLVM is imported here, when code is generated, and not before.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from codegen.llvm.emit import emit_graph
from codegen.llvm.jit import Code, assembly, compile_object, host_attributes, host_features
from codegen.runtime.program import NativeProgram
from graph_opt.ahead import Ahead
from graph_opt.executable import NativeExecutable
from graph_opt.load_time import LoadTime, Stored, load_quickly, new_program
from ir.core import Graph, Module, Operation
from ir.interpreter import Interpreter
from ir.structure import Copies

if TYPE_CHECKING:
    from ir.weights import WeightSource

Keep = Callable[[Module, NativeProgram, Mapping[str, NativeProgram]], None]
"""What is told of a program that was made: the module, the program, and those that run when it is loaded, by the names of their graphs."""


def compile_native(
    module: Module,
    graph: Graph,
    sources: Mapping[str, WeightSource],
    threads: int = 1,
    begun: LoadTime | None = None,
    keep: Keep | None = None,
    copies: Copies | None = None,
    complete: Callable[[], None] | None = None,
) -> NativeExecutable:
    """Machine code for one graph of a module at the level of loops.  ``begun`` are graphs for load time that run already.

    With stand-ins among ``copies``, ``complete`` makes the module what it is without them, when somebody asks for it.

    Raises GraphError for operations that have no machine code, and for weights that are missing or don't fit.
    """
    loaded: dict[str, NativeProgram] = {}
    program = make_program(module, graph, sources, threads, begun=begun, loaded=loaded, copies=copies)
    if keep is not None:
        keep(module, program, loaded)
    return NativeExecutable(module if complete is None else _completed(module, complete), graph, program, load_quickly, module.files)


def _completed(module: Module, complete: Callable[[], None]) -> Callable[[], Module]:
    """What gives the module when it is complete; several threads may ask."""
    lock = threading.Lock()

    def give() -> Module:
        with lock:
            complete()
        return module

    return give


def compile_timed(
    module: Module, graph: Graph, sources: Mapping[str, WeightSource], threads: int = 1
) -> tuple[NativeExecutable, list[Operation], ctypes.Array[ctypes.c_int64]]:
    """The same with clocks: also the loops that are timed, and the numbers where the ticks of each are added up.

    The numbers are good as long as the executable lives.
    """
    program = make_program(module, graph, sources, threads, clocks=True)
    loops = program.text.timed
    counts = (ctypes.c_int64 * len(loops)).from_address(program.code.address(program.text.clocks_name))
    return NativeExecutable(module, graph, program, load_quickly), loops, counts


def make_program(
    module: Module,
    graph: Graph,
    sources: Mapping[str, WeightSource],
    threads: int,
    *,
    clocks: bool = False,
    begun: LoadTime | None = None,
    loaded: dict[str, NativeProgram] | None = None,
    copies: Copies | None = None,
) -> NativeProgram:
    """The program that :func:`compile_native` makes callable; ``loaded`` receives those that it has run at load time."""
    Interpreter(module, sources).check_sizes(graph, {})
    stored = Ahead(lambda: Stored(module, sources, threads, begun, loaded=loaded).tensors(graph))  # reads and copies, while others compute
    try:
        text = emit_graph(module, graph, attributes=host_attributes(), features=host_features(), clocks=clocks, copies=copies)
        code = Code.from_program(text.text, text.function)
    finally:
        stored.wait()
    arrays = stored.result()
    return new_program(text, code, graph, [arrays[a.operation] for a in text.arguments if a.kind == "stored" and a.operation is not None], threads)


def emit_target(module: Module, graph: Graph, target: str) -> str | bytes:
    """LLVM's assembly language ("llvm"), this machine's ("asm") or an object file ("obj") for one graph."""
    text = emit_graph(module, graph, attributes=host_attributes(), features=host_features()).text
    if target == "llvm":
        return text
    return assembly(text) if target == "asm" else compile_object(text)
