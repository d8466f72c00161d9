"""The levels of programs, from tensors down to machine code, and which one a program is at."""

from __future__ import annotations

from ir.core import Module

LEVELS = ("graph", "linalg", "loops")
"""Levels that are programs of ours, the highest first."""

TARGETS = ("llvm", "asm", "obj")
"""What the last level is turned into."""


def preset_of(level: str) -> str:
    """The passes that lead to a level or a target, on this machine."""
    if level in ("graph", "linalg"):
        return {"graph": "O1", "linalg": "O2"}[level]
    from codegen.llvm.jit import host_features
    from passes.pipelines import preset_for

    return preset_for(host_features())


def level_of(module: Module) -> str:
    """The level of a program: that of its lowest operations.

    Nests of ``linalg`` make it "linalg", also beside loops that are written out already; other operations on buffers or
    vectors "loops"; a program of tensors, in loops or not, is at level "graph".
    """
    dialects = {op.definition.dialect for op in module.walk()}
    if "linalg" in dialects:
        return "linalg"
    return "loops" if dialects & {"memref", "vector"} else "graph"
