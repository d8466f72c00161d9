"""The levels of programs, from tensors down to machine code, and which one a program is at."""

from __future__ import annotations

from ir.core import Module

LEVELS = ("graph", "linalg", "loops", "gpu")
"""Levels that are programs of ours, the highest first; "loops" is the last one on the way to the CPU, "gpu" on that to CUDA C."""

CUDA = ("cuda", "ptx", "cubin", "sass")
"""What kernels are turned into: CUDA C, and what its compilers make of it."""

TARGETS = ("llvm", "asm", "obj", *CUDA)
"""What the last level is turned into."""

BYTES = ("obj", "cubin")
"""Those that are not text."""


def preset_of(level: str, capability: tuple[int, int] | None = None) -> str:
    """The passes that lead to a level or a target, on this machine; for kernels on a GPU of this compute capability."""
    if level in ("graph", "linalg"):
        return {"graph": "O1", "linalg": "O2"}[level]
    if level in ("gpu", *CUDA):
        from passes.pipelines import preset_for_gpu

        return "cuda" if capability is None else preset_for_gpu(capability)
    from codegen.llvm.jit import host_features
    from passes.pipelines import preset_for

    return preset_for(host_features())


def is_lowered(module: Module, emit: str) -> bool:
    """Whether a program is taken as it is, since it is at the last level before ``emit`` already."""
    level = level_of(module)
    return level == "gpu" or (level == "loops" and preset_of(emit) != "cuda")


def has_accesses(module: Module) -> bool:
    """Whether a program as it was read is at a level where it says what memory it touches: nobody has checked that it is inside of buffers."""
    return level_of(module) != "graph"


def level_of(module: Module) -> str:
    """The level of a program: that of its lowest operations.

    Nests of ``linalg`` make it "linalg", also beside loops that are written out already; other operations on buffers or
    vectors "loops", and kernels "gpu"; a program of tensors, in loops or not, is at level "graph".
    """
    dialects = {op.definition.dialect for op in module.walk()}
    if "linalg" in dialects:
        return "linalg"
    if "gpu" in dialects:
        return "gpu"
    return "loops" if dialects & {"memref", "vector"} else "graph"
