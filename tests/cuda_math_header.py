"""Makes ``codegen/cuda/include/graph_opt_math.h`` from the expansions of ``expand-math``: ``python -m tests.cuda_math_header``.

Every function of f32 becomes a function in C, statement by statement what native code computes, so that a GPU gives the same bits.
"""

from __future__ import annotations

from pathlib import Path

from codegen.cuda import control, elementwise, gpu_ops, indices, memory, vectors  # noqa: F401
from codegen.cuda.expressions import Expr
from codegen.cuda.scalars import function_name
from codegen.cuda.writer import Writer
from ir.core import Graph
from passes.infra.base import PassContext
from passes.vector.expand_math import EXPANSIONS, ExpandMath
from tests.checks import load

PATH = Path(__file__).parent.parent / "codegen" / "cuda" / "include" / "graph_opt_math.h"

_PROGRAM = """graph @main(%A: memref<f32[{count}]>, %C: memref<f32[]>) {{
{loads}
  %result = {operation}
  memref.store(%result, %C[])
  return
}}
"""
_HEAD = """/* Functions of float, made by tests/cuda_math_header.py from passes/vector: do not edit.

   Straight code of arithmetic that rounds once, comparisons, choices and shifts of bits; the device and the host get the bits of native
   code and of the interpreter.  Compile without contraction of products and sums.  */
#ifndef GRAPH_OPT_MATH_H
#define GRAPH_OPT_MATH_H
"""
_NAMES = ("x", "y")
_TWO = ("math.powf",)


def expanded(operation: str, count: int) -> Graph:
    """A graph that loads ``count`` floats, computes an operation of them, expanded, and stores it."""
    loads = "\n".join(f"  %{_NAMES[n]} = memref.load(%A[{n}]) : f32" for n in range(count))
    module = load(_PROGRAM.format(count=count, loads=loads, operation=operation))
    ExpandMath().run(module, PassContext())
    return module.graphs["main"]


def function(name: str, operation: str, count: int) -> str:
    """The function in C for an operation on ``count`` floats."""
    graph = expanded(operation, count)
    writer = Writer(comments=False)
    loads = [op for op in graph.block if op.name == "memref.load"]
    store = next(op for op in graph.block if op.name == "memref.store")
    for read, parameter in zip(loads, _NAMES, strict=False):
        writer.values[read.result] = Expr(writer.token(parameter))
    for op in graph.block:
        if op.definition.dialect in ("arith", "math"):
            for value in op.results:
                value.name = value.name.removeprefix("result.")
            writer.operation(op)
    writer.line(f"return {writer.value(store.operands[0]).text};")
    parameters = ", ".join(f"float {_NAMES[n]}" for n in range(count))
    return f"GO_DEVICE float {name}({parameters})\n{{\n{writer.finished().text()}\n}}\n"


def header() -> str:
    """The text of the header."""
    parts = [_HEAD]
    for operation in EXPANSIONS:
        count = 2 if operation in _TWO else 1
        arguments = ", ".join(f"%{n}" for n in _NAMES[:count])
        parts.append(function(function_name(operation), f"{operation}({arguments}) : f32", count))
        if operation == "math.exp":
            parts.append("/* for x of at most 0 */\n" + function(function_name(operation, True), "math.exp(%x, decaying=true) : f32", 1))
    return "\n".join([*parts, "#endif\n"])


if __name__ == "__main__":
    PATH.write_text(header(), encoding="utf-8")
