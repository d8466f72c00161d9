"""Products as CUDA C: what the compiler makes of each tier, and the bits of machine code for a processor."""

from __future__ import annotations

import numpy as np
import pytest

import graph_opt
from codegen.cuda.compilers import find_compilers, find_programs
from codegen.cuda.cubin import count, instructions
from codegen.cuda.emit import emit_program
from codegen.cuda.toolchain import compile_cubin, disassemble
from ir.inference import infer_module
from ir.parser import parse_module
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline
from tests.cuda.device import DEVICE, needs_device

MATMUL = "graph @main(%x: T[512, 512], %w: T[512, 512], %b: T[512]) { %h = matmul(%x, %w) %s = add(%h, %b) %y = silu(%s) return %y }"
LINEAR = "graph @main(%x: T[ROWS, 512], %w: T[512, 512]) { %h = linear(%x, %w) return %h }"
RAGGED = "graph @main(%x: T[M, K], %w: T[K, N]) { %h = matmul(%x, %w) return %h }"
TIERS = {
    "tiles": (MATMUL.replace("T[", "f32["), '{tile="128x128"}', "sm_75", {"FFMA": 1024, "LDS.128": 64}),
    "tiles with copies": (MATMUL.replace("T[", "f32["), '{tile="128x128"}', "sm_90", {"FFMA": 1024, "LDGSTS": 10, "STG.E.128": 16}),
    "ragged tiles": (RAGGED.replace("T[", "f32["), '{tile="128x128"}', "sm_90a", {"FFMA": 1024, "LDGSTS": 16}),
    "bf16": (MATMUL.replace("T[", "bf16["), '{tile="128x128"}', "sm_90a", {"HMMA.16816.F32.BF16": 32, "LDSM": 12, "LDGSTS.E.BYPASS.128": 4}),
    "f16": (LINEAR.replace("T[", "f16[").replace("ROWS", "512"), '{tile="128x128"}', "sm_80", {"HMMA.16816.F32": 32, "LDSM": 12, "LDGSTS": 4}),
    "tf32": (MATMUL.replace("T[", "f32["), '{tile="128x128", tf32=true}', "sm_80", {"HMMA": 64, "LDGSTS": 8}),
    "a row": (LINEAR.replace("T[", "f32[").replace("ROWS", "1"), "", "sm_90", {"FFMA": 16, "LDS.128": 8, "LDGSTS": 3}),
}


@pytest.mark.parametrize("tier", TIERS)
def test_what_kernels_consist_of(tier: str) -> None:
    """Nothing is spilled, sums stay in registers, and the instructions are those that the tier is about."""
    if not any(find_compilers()) or next(find_programs("nvdisasm"), None) is None:
        pytest.skip("no compiler for CUDA here, or nothing that lists machine code")
    text, options, target, expected = TIERS[tier]
    module = parse_module(text)
    infer_module(module)
    PassManager(load_pipeline(f"O2,collapse,lower-to-loops,map-products{options},map-elements,plan-shared")).run(module)
    compiled = compile_cubin(emit_program(module, module.graphs["main"]).source, target)
    for name, usage in compiled.usage.items():
        assert (usage.spill_stores, usage.spill_loads, usage.stack) == (0, 0, 0), (name, usage)
    found = max(instructions(disassemble(compiled.image)).values(), key=lambda kernel: sum(kernel.values()))
    for pattern, least in expected.items():
        assert count(found, pattern) >= least, (pattern, found)


@needs_device
def test_the_bits_of_a_processor() -> None:
    """On real data, for all kernels that the host chooses between."""
    text = """graph @main(%x: f32[M, 300], %g: f32[133, 300], %u: f32[300, 133], %b: f32[133]) {
      %a = linear(%x, %g, bias=%b) %s = silu(%a) %c = matmul(%x, %u) %y = mul(%s, %c) return %y
    }"""
    on_cpu, on_device = graph_opt.compile(graph_opt.parse(text)), graph_opt.compile(graph_opt.parse(text), device=DEVICE)
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype(np.float32) for shape in ((133, 300), (300, 133), (133,))]
    for rows in (0, 1, 7, 33, 65):
        x = random.standard_normal((rows, 300)).astype(np.float32)
        assert np.array_equal(np.asarray(on_cpu(x, *weights)).view(np.int32), np.asarray(on_device(x, *weights)).view(np.int32)), rows
