"""Kernels of a program as CUDA C, PTX, machine code or a listing of that, for ``--emit``."""

from __future__ import annotations

from codegen.cuda.emit import emit_program
from codegen.cuda.module import CudaProgram, IfStep, LaunchStep, LoopStep, Step
from codegen.cuda.targets import Target
from codegen.cuda.toolchain import compile_cubin, compile_ptx, disassemble
from ir.core import Graph, Module
from ir.diagnostics import AnyLocation, Diagnostic, GraphError


def emit_cuda(module: Module, graph: Graph, emit: str, target: Target, *, checked: bool = False) -> str | bytes:
    """CUDA C ("cuda"), or what compilers make of it for a target: "ptx", "cubin", "sass".

    Raises GraphError for what can't be a kernel, or needs more memory than a block has; MissingPackage, ToolFailure and CompilerFault
    as :mod:`codegen.cuda.toolchain` does.
    """
    program = emit_program(module, graph, checked=checked)
    _check_shared(program, target)
    if emit == "cuda":
        return program.source
    if emit == "ptx":
        return compile_ptx(program.source, target)
    image = compile_cubin(program.source, target).image
    return image if emit == "cubin" else disassemble(image)


def _check_shared(program: CudaProgram, target: Target) -> None:
    """Every kernel must fit into what a block of the target can have."""
    places = _launch_places(program.steps)
    has = f"{target.name} has {target.shared} for a block"
    wrong = [
        Diagnostic(f"kernel {k.name} needs {k.shared_bytes} bytes of shared memory, {has}", places.get(k.name))
        for k in program.kernels
        if target.shared and k.shared_bytes > target.shared
    ]
    if wrong:
        raise GraphError(wrong)


def _launch_places(steps: tuple[Step, ...]) -> dict[str, AnyLocation | None]:
    """Where kernels are launched, the first time."""
    found: dict[str, AnyLocation | None] = {}
    for step in steps:
        if isinstance(step, LaunchStep):
            found.setdefault(step.kernel, step.location)
        elif isinstance(step, LoopStep):
            found = {**_launch_places(step.body), **found}
        elif isinstance(step, IfStep):
            found = {**_launch_places(step.then), **_launch_places(step.otherwise), **found}
    return found
