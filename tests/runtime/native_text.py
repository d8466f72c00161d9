"""Native programs from hand-written LLVM IR: the call path without the emitter."""

from __future__ import annotations

from typing import Any

import numpy as np

import dialects  # noqa: F401  defines the operations
from codegen.llvm.jit import Code
from codegen.llvm.native import Argument, NativeModule, Site
from codegen.runtime.program import NativeProgram
from ir.core import Module
from ir.inference import infer_module
from ir.interpreter import Interpreter
from ir.parser import parse_module


def load(text: str) -> Module:
    module = parse_module(text)
    infer_module(module)
    return module


def native(graph: str, ir: str, symbols: list[str], failing: dict[str, str] | None = None, **options: Any) -> NativeProgram:
    """A program whose code is ``ir``; ``failing`` names operations that can fail, in the order of the sites."""
    module = load(graph)
    sites = []
    for name, message in (failing or {}).items():
        for op in module.main.walk():
            if op.definition.text_name == name:
                kind = "print" if name == "print" else "error"
                type_ = op.operands[0].type if kind == "print" else None
                sites.append(Site(kind, name, message, location=op.loc, type=type_, label=str(op.attributes.get("label", "")), given=(0, 1)))  # type: ignore[arg-type]
    arguments = [Argument("parameter", p.name, p.type) for p in module.main.parameters]  # type: ignore[arg-type]
    if "@f_work(" not in ir:
        ir += f"define double @f_work(ptr %dims) {{\n  ret double {MUCH}\n}}\n"
    text = NativeModule(ir, "f", symbols, arguments, sites, [], "threads" in ir)
    return NativeProgram(text, Code.from_text(ir), module.main, **options)


def interpret(graph: str, *arrays: Any) -> list[np.ndarray]:
    module = load(graph)
    return Interpreter(module).run(module.main, [np.asarray(a) for a in arrays])


MUCH = "1.0e9"
NO_WORKSPACE = "define i64 @f_workspace(ptr %dims) {\n  ret i64 0\n}\n"


def shapes(*dims: str) -> str:
    """``f_shapes`` that copies named dimensions (by number, "d0") and constants."""
    lines = []
    for i, dim in enumerate(dims):
        if dim.startswith("d"):
            lines += [f"  %p{i} = getelementptr i64, ptr %dims, i64 {dim[1:]}", f"  %v{i} = load i64, ptr %p{i}"]
            value = f"%v{i}"
        else:
            value = dim
        lines += [f"  %o{i} = getelementptr i64, ptr %out, i64 {i}", f"  store i64 {value}, ptr %o{i}"]
    return "define void @f_shapes(ptr %dims, ptr %out) {\n" + "\n".join(lines) + "\n  ret void\n}\n"


ADD_GRAPH = """graph @main(%x: f32[B, 3], %y: f32[B, 3]) -> f32[B, 3] {
  %z = add(%x, %y)
  return %z
}
"""

ADD = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
entry:
  %a = load ptr, ptr %args
  %pb = getelementptr ptr, ptr %args, i64 1
  %b = load ptr, ptr %pb
  %pc = getelementptr ptr, ptr %args, i64 2
  %c = load ptr, ptr %pc
  %rows = load i64, ptr %dims
  %n = mul i64 %rows, 3
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %end
body:
  %pa = getelementptr float, ptr %a, i64 %i
  %va = load float, ptr %pa
  %pv = getelementptr float, ptr %b, i64 %i
  %vb = load float, ptr %pv
  %s = fadd float %va, %vb
  %po = getelementptr float, ptr %c, i64 %i
  store float %s, ptr %po
  %next = add i64 %i, 1
  br label %test
end:
  ret i32 0
}}
{NO_WORKSPACE}{shapes("d0", "3")}
"""


def add_program(**options: Any) -> NativeProgram:
    return native(ADD_GRAPH, ADD, ["B"], **options)


# A copy whose rows are shared out; then a barrier; then each thread adds what its left neighbour wrote last.  Rows of the
# workspace tell who did what.
PARALLEL_GRAPH = """graph @main(%x: i64[N]) -> i64[N] {
  %y = add(%x, %x)
  return %y
}
"""

PARALLEL = f"""
define i32 @f(ptr %args, ptr %dims, ptr %workspace, ptr %state, i64 %thread, i64 %threads) {{
entry:
  %a = load ptr, ptr %args
  %pc = getelementptr ptr, ptr %args, i64 1
  %c = load ptr, ptr %pc
  %n = load i64, ptr %dims
  %m1 = mul i64 %n, %thread
  %from = sdiv i64 %m1, %threads
  %after = add i64 %thread, 1
  %m2 = mul i64 %n, %after
  %to = sdiv i64 %m2, %threads
  br label %test
test:
  %i = phi i64 [ %from, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %to
  br i1 %more, label %body, label %barrier
body:
  %pa = getelementptr i64, ptr %a, i64 %i
  %va = load i64, ptr %pa
  %po = getelementptr i64, ptr %workspace, i64 %i
  store i64 %va, ptr %po
  %next = add i64 %i, 1
  br label %test
barrier:
  %count = getelementptr i8, ptr %state, i64 64
  %before = atomicrmw add ptr %count, i32 1 acq_rel
  %t32 = trunc i64 %threads to i32
  br label %spin
spin:
  %now = load atomic i32, ptr %count acquire, align 4
  %all = icmp eq i32 %now, %t32
  br i1 %all, label %second, label %spin
second:
  %j = phi i64 [ %from, %spin ], [ %jn, %second_body ]
  %more2 = icmp slt i64 %j, %to
  br i1 %more2, label %second_body, label %end
second_body:
  %j1 = sub i64 %n, 1
  %r = sub i64 %j1, %j
  %p1 = getelementptr i64, ptr %workspace, i64 %j
  %v1 = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %workspace, i64 %r
  %v2 = load i64, ptr %p2
  %s = add i64 %v1, %v2
  %p3 = getelementptr i64, ptr %c, i64 %j
  store i64 %s, ptr %p3
  %jn = add i64 %j, 1
  br label %second
end:
  ret i32 0
}}
define i64 @f_workspace(ptr %dims) {{
  %n = load i64, ptr %dims
  %bytes = mul i64 %n, 8
  ret i64 %bytes
}}
{shapes("d0")}
"""


def parallel_program(**options: Any) -> NativeProgram:
    """x + reversed(x), with a barrier between writing the workspace and reading what others wrote."""
    return native(PARALLEL_GRAPH, PARALLEL, ["N"], **options)
