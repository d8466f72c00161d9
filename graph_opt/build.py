"""From a module to what runs it: the passes, then machine code, or the interpreter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from codegen.cuda.drivers import is_cuda, open_driver
from graph_opt.binding import Sources
from graph_opt.collector import fewer_collections
from graph_opt.executable import DeferredExecutable, Executable, ReferenceExecutable
from graph_opt.kept import POISON, Kept
from graph_opt.levels import has_accesses, is_lowered, preset_of
from ir.clone import clone_module
from ir.core import Graph, Module
from ir.diagnostics import Diagnostic, GraphError
from ir.types import is_known
from passes.graph.hoist_to_init import HoistToInit
from passes.graph.quantize_products import PRECISIONS, QuantizeProducts
from passes.infra.base import Pass
from passes.infra.manager import Instrumentation, PassManager
from passes.memory.plan_memory import PlanMemory
from passes.memory.poison import Poison

if TYPE_CHECKING:
    from codegen.cuda.device import Device
    from graph_opt.cuda import CudaExecutable


def default_pipeline(module: Module, device: str) -> str:
    """The passes that a device wants for a program: none but inference where it is at the level of loops already.

    A GPU is opened for that, as older ones want others.  Raises GraphError where there is none.
    """
    if device == "reference":
        return "O1"
    if is_cuda(device):
        if is_lowered(module, "cuda"):
            return "O0"
        return preset_of("cuda", open_driver(device).properties.capability)
    return "O0" if is_lowered(module, "loops") else preset_of("loops")


def with_precision(passes: Sequence[Pass], precision: str | None) -> Sequence[Pass]:
    """The passes with another precision of products with quantized weights; None for what they have.  Raises GraphError for an unknown one."""
    if precision is None:
        return passes
    if precision not in PRECISIONS:
        raise GraphError(Diagnostic(f"there is no precision {precision!r}", hint=f"precisions: {', '.join(PRECISIONS)}"))
    return [QuantizeProducts(PRECISIONS[precision]) if isinstance(p, QuantizeProducts) else p for p in passes]


def make_executable(
    module: Module,
    entry: Graph,
    sources: Sources,
    device: str,
    threads: int,
    passes: Sequence[Pass],
    watch: Instrumentation | None = None,
    kept: Kept | None = None,
) -> Executable:
    """Runs the passes and makes what runs the program.

    Machine code needs types: where a parameter has none, or an open dimension, it is made for the arrays of each call.
    ``kept`` is where what is made is kept, for a module that is as it was read.
    """
    watch = watch or Instrumentation()
    if device == "reference":
        PassManager(passes, watch, sources).run(module)
        return ReferenceExecutable(module, module.graphs[entry.name], sources)
    if is_cuda(device):
        return _make_cuda(module, entry, sources, device, passes, watch)

    def make(module: Module, kept: Kept | None) -> Executable:
        return _make_native(module, entry.name, sources, threads, passes, watch, kept)

    if all(is_known(p.type) for p in entry.parameters):
        return make(module, kept)

    def make_later(module: Module) -> Executable:
        if kept is None:
            return make(module, None)
        here = kept.narrowed(*(f"{p.name}: {p.type}" for p in module.graphs[entry.name].parameters))
        found = here.load(here.image(), sources, threads, lambda: make(clone_module(module), None).module)
        return make(module, here) if found is None else found

    return DeferredExecutable(module, entry, make_later)


def load_or_make(
    module: Module,
    entry: Graph,
    sources: Sources,
    threads: int,
    passes: Sequence[Pass],
    watch: Instrumentation,
    kept: Kept | None,
) -> Executable:
    """The program out of the cache, if it is there; else it is made and kept."""
    if kept is not None:
        found = kept.load(kept.image(), sources, threads, lambda: make_executable(module, entry, sources, "cpu", threads, passes).module)
        if found is not None:
            return found
    return make_executable(module, entry, sources, "cpu", threads, passes, watch, kept)


def _make_native(
    module: Module, name: str, sources: Sources, threads: int, passes: Sequence[Pass], watch: Instrumentation, kept: Kept | None
) -> Executable:
    from graph_opt.load_time import LoadTime
    from graph_opt.native import compile_native

    load_time = LoadTime(sources)
    last = max((n for n, p in enumerate(passes) if isinstance(p, HoistToInit)), default=None)
    begin = {id(passes[last]): load_time.begin} if last is not None else {}
    seen = sources if kept is None else kept.observe(sources)
    try:
        with fewer_collections():
            manager = PassManager(poisoning(passes), watch, seen, fold_twins=True, behind=begin, stand_in=name)
            manager.run(module)
            watch.progress("machine code")
            keep = None if kept is None else kept.keep
            complete = None if manager.is_complete else manager.complete
            return compile_native(module, module.graphs[name], sources, threads, load_time, keep, manager.copies, complete)
    finally:
        load_time.wait()


def _make_cuda(module: Module, entry: Graph, sources: Sources, device: str, passes: Sequence[Pass], watch: Instrumentation) -> Executable:
    """Kernels for a device, which is opened first: without one nothing else is worth doing."""
    from graph_opt.cuda import DeferredCudaExecutable, open_device

    opened, checked = open_device(device), has_accesses(module)
    if all(is_known(p.type) for p in entry.parameters):
        return make_on_device(module, entry.name, sources, passes, watch, opened, checked=checked)

    def make(module: Module) -> CudaExecutable:
        return make_on_device(module, entry.name, sources, passes, watch, opened, checked=checked)

    return DeferredCudaExecutable(module, entry, make, opened)


def make_on_device(
    module: Module, name: str, sources: Sources, passes: Sequence[Pass], watch: Instrumentation, device: Device, *, checked: bool = False
) -> CudaExecutable:
    """Runs the passes, makes kernels for an open device, and runs what the program has for load time meanwhile.

    ``checked`` is for programs that were read with accesses to memory in them (:func:`has_accesses`).
    """
    from graph_opt.cuda import compile_cuda
    from graph_opt.load_time import LoadTime

    load_time = LoadTime(sources)
    last = max((n for n, p in enumerate(passes) if isinstance(p, HoistToInit)), default=None)
    begin = {id(passes[last]): load_time.begin} if last is not None else {}
    try:
        with fewer_collections():
            PassManager(poisoning(passes), watch, sources, fold_twins=True, behind=begin).run(module)
            watch.progress("kernels")
            return compile_cuda(module, module.graphs[name], sources, device, load_time, checked=checked)
    finally:
        load_time.wait()


def poisoning(passes: Sequence[Pass]) -> Sequence[Pass]:
    """The passes; with ``GRAPH_OPT_POISON=1``, memory that a plan says is free is filled with garbage."""
    if os.environ.get(POISON) != "1":
        return passes
    return [each for p in passes for each in ((p, Poison()) if isinstance(p, PlanMemory) else (p,))]
