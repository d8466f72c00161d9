"""Programs at the level of loops or kernels, whose accesses anybody may have written: what is outside of a buffer is an error, not a crash."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graph_opt
from codegen.cuda.emit import emit_program
from codegen.cuda.plan import Fail, Plan
from graph_opt.cli import main
from ir.diagnostics import GraphError
from tests.checks import load

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
FAR = 1_000_000_000_000


def kernel(body: str, threads: int = 32) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"""graph @main(%A: memref<f32[N]>, %H: memref<bf16[N]>, %B: memref<bool[N]>) {{
  gpu.launch(%x = 0 to 1, threads={threads}) {{
    %t = gpu.thread_id() : index
    %s = gpu.alloc() : memref<f32[64], shared>
    %sh = gpu.alloc() : memref<bf16[8, 8], shared>
    %l = gpu.alloc() : memref<f32[4], local>
    %zero = arith.constant(0.0) : f32
    %three = arith.constant(3) : index
    %v = arith.constant(0.0) : vector<f32[4]>
{lines}
    yield
  }}
  return
}}
"""


WAIT = "\ngpu.cp_commit()\ngpu.cp_wait(pending=0)"
OUTSIDE = [
    (f"%a = memref.load(%A[{FAR}*%t]) : f32\nmemref.store(%a, %l[0])", f"memref.load: index {FAR}.* is outside dimension 0 of size 64"),
    ("%a = memref.load(%B[%t-1]) : bool", "index -1 is outside dimension 0 of size 64"),
    ("%a = memref.load(%H[%t+40]) : bf16", "index 6. is outside dimension 0 of size 64"),
    (f"memref.store(%zero, %A[{FAR}*%t])", "memref.store: index .* is outside dimension 0 of size 64"),
    ("memref.store(%zero, %l[%t])", "index .* is outside dimension 0 of size 4"),
    ("memref.store(%zero, %s[3*%t])", "index .* is outside dimension 0 of size 64"),
    (f"%a = vector.load(%A[{FAR}*%t:+4]) : vector<f32[4]>", rf"vector.load: elements {FAR}.* to {FAR + 4}.* are outside dimension 0 of size 64"),
    ("%a = vector.load(%A[2*%t+1:+4], valid=%three) : vector<f32[4]>", "elements 63 to 66 are outside dimension 0 of size 64"),
    (f"%a = vector.load(%sh[{FAR}*%t:+2, 0:+4]) : vector<bf16[2, 4]>", "are outside dimension 0 of size 8"),
    (f"vector.store(%v, %A[{FAR}*%t:+4])", "vector.store: elements .* are outside dimension 0 of size 64"),
    (f"vector.store(%v, %A[{FAR}*%t:+4], valid=%t)", "vector.store: elements .* are outside dimension 0 of size 64"),
    (f"gpu.cp_async(%A[{FAR}*%t:+1], %s[%t:+1])" + WAIT, "gpu.cp_async: elements .* are outside dimension 0 of size 64"),
    (f"gpu.cp_async(%A[%t:+1], %s[{FAR}*%t:+1])" + WAIT, "gpu.cp_async: elements .* are outside dimension 0 of size 64"),
    (
        f"%m = gpu.ldmatrix(%sh[{FAR}*(%t mod 8), 0:+8], count=1) : vector<bf16[2]>\ngpu.barrier()",
        "gpu.ldmatrix: index .* is outside dimension 0 of size 8",
    ),
]


def arrays() -> list[np.ndarray[Any, Any]]:
    import ml_dtypes

    return [np.zeros(64, np.float32), np.zeros(64, ml_dtypes.bfloat16), np.zeros(64, np.bool_)]


def test_every_access_that_may_be_outside_is_checked() -> None:
    for body, message in OUTSIDE:
        module = load(kernel(body))
        checked, trusted = (emit_program(module, module.graphs["main"], checked=c) for c in (True, False))
        assert any("outside dimension" in s.template for s in checked.sites), message
        assert checked.kernels[0].checks and not trusted.kernels[0].checks


def test_what_is_proved_is_not_checked() -> None:
    inside = """%i = affine.min(%t, 3) : index
memref.store(%zero, %l[%i])
memref.store(%zero, %s[2*%t+1])
%n = memref.dim(%A, axis=0) : index
%c = arith.cmpi(%t, %n, predicate="lt") : bool
scf.if(%c) {
  memref.store(%zero, %A[%t])
  yield
}"""
    module = load(kernel(inside))
    assert "go_fail" not in emit_program(module, module.graphs["main"], checked=True).source


@needs_compiler
@pytest.mark.parametrize("number", [0, 6, 7, 10, 12, 13])
def test_an_access_outside_is_an_error(number: int) -> None:
    body, message = OUTSIDE[number]
    run = graph_opt.compile(graph_opt.parse(kernel(body)), device="cuda-emulated")
    for _ in range(2):
        with pytest.raises(GraphError, match=message):
            run(*arrays())


LOOP = f"""graph @main(%A: memref<f32[64]>, %C: memref<f32[64]>) {{
  scf.for(%i = 0 to 64) {{
    %a = memref.load(%A[{FAR}*%i]) : f32
    memref.store(%a, %C[%i])
    yield
  }}
  return
}}
"""


@needs_compiler
def test_loops_fail_as_on_the_cpu() -> None:
    x = np.zeros(64, np.float32)
    said = []
    for device in ("cpu", "cuda-emulated"):
        with pytest.raises(GraphError) as error:
            graph_opt.compile(graph_opt.parse(LOOP), device=device)(x, x.copy())
        said.append(str(error.value))
    assert said[0] == said[1] and f"index {FAR} is outside dimension 0 of size 64" in said[0]


def test_operations_on_tensors_are_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = "graph @main(%x: f32[N, 8], %w: f32[8, M]) {\n  %y = matmul(%x, %w)\n  %z = softmax(%y)\n  return %z\n}\n"
    for text, checked in ((graph, False), (LOOP, True)):
        path = tmp_path / "a.graph"
        path.write_text(text)
        assert main([str(path), "--emit", "cuda", "--target", "sm_80"]) == 0
        assert ("const bool inside = " in capsys.readouterr().out) == checked


def test_views() -> None:
    """The host checks its own; those of kernels have to be proved."""
    text = """graph @main(%C: memref<f32[64]>, %Q: f32[N]) {
  %b = memref.alloc() : memref<u8[256]>
  %v = memref.view(%b, offset=OFFSET) : memref<f32[8]>
  gpu.launch(%x = 0 to 1, threads=8) {
    %t = gpu.thread_id() : index
    %a = memref.load(%v[%t]) : f32
    memref.store(%a, %C[%t])
    yield
  }
  return
}
"""
    outside = r"bytes 300000000 to 300000032 are outside memref<u8.256.>"
    for offset, message in (("64*N", ""), ("100000000*N", outside), ("3*N", "9 is not a multiple of 4")):
        program = emit_program(module := load(text.replace("OFFSET", offset)), module.graphs["main"], checked=True)
        if not message:
            assert Plan.of(program, {"N": 3}).work is not None
            continue
        failed = [w for w in Plan.of(program, {"N": 3}).all_work() if isinstance(w, Fail)]
        with pytest.raises(GraphError, match=message):
            raise program.sites[failed[0].site].error(failed[0].first, failed[0].second, {"N": 3})
    inside = "%u = gpu.alloc() : memref<u8[64], shared>\n%w = memref.view(%u, offset=1000000*N) : memref<f32[8], shared>\nmemref.store(%zero, %w[0])"
    with pytest.raises(GraphError, match="it isn't known that"):
        emit_program(module := load(kernel(inside)), module.graphs["main"], checked=True)
