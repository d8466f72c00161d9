"""Every kind of kernel compiles for every target, keeps its registers, and has the instructions that it is for; the table is :mod:`cuda_kinds`.

All kinds are compiled as one text for each target.  GRAPH_OPT_CUDA_ALL=1 (``make gpu-compile``) compiles all of them for all targets, and also the
examples of the gpu dialect, the samples and SmolLM2.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from cuda_kinds import KINDS, MADE, WRITTEN, Kind

import graph_opt
from codegen.cuda import compilers
from codegen.cuda.cubin import Usage, count, instructions
from codegen.cuda.emit import emit_program
from codegen.cuda.module import CudaProgram
from codegen.cuda.targets import TARGETS
from codegen.cuda.toolchain import compile_cubin, disassemble
from graph_opt.api import find_graph
from ir.docs import example_texts
from ir.opdef import REGISTRY
from passes.infra.manager import PassManager
from passes.pipelines import load_pipeline, preset_for_gpu

ROOT = Path(__file__).parents[2]
ALL = os.environ.get("GRAPH_OPT_CUDA_ALL") == "1"
ONLY_ALL = pytest.mark.skipif(not ALL, reason="GRAPH_OPT_CUDA_ALL=1 runs it")
HAS_DISASSEMBLER = next(compilers.find_programs("nvdisasm"), None) is not None
LINES = [(k, t) for k in KINDS.values() for t in TARGETS if ALL or t in k.quick]
ANGLES = 40
"""Bytes of local memory that sin, cos and tan of doubles have."""
INCLUDE = '#include "graph_opt_device.h"\n'

pytestmark = pytest.mark.skipif(not any(compilers.find_compilers()), reason="there is neither NVRTC nor nvcc (pip install nvidia-cuda-nvrtc)")


@dataclass(frozen=True)
class MachineCode:
    """The kernels of a kind on a target: what they need, and their instructions (none where there is no nvdisasm)."""

    usage: dict[str, Usage]
    instructions: dict[str, Counter[str]]


def emitted(text: str, pipeline: str, name: str) -> CudaProgram:
    """The CUDA C of a program's main graph."""
    module = graph_opt.parse(text, name)
    PassManager(load_pipeline(pipeline)).run(module)
    return emit_program(module, find_graph(module, None))


@cache
def of_kind(name: str, pipeline: str) -> CudaProgram | Exception:
    """The CUDA C of a kind; what is raised where it has none concerns the tests of that kind alone."""
    try:
        return emitted(KINDS[name].program, pipeline, f"{name}.graph")
    except Exception as error:
        return error


def prefixed(prefix: str, program: CudaProgram) -> str:
    """The kernels of a program, without what they include, with names that no other program has."""
    names = "|".join(re.escape(k.name) for k in program.kernels)
    return "\n".join(re.sub(rf"\b({names})\b", rf"{prefix}__\1", k.source) for k in program.kernels)


@cache
def all_kinds(target: str) -> dict[str, MachineCode]:
    """All kinds in one text, compiled for a target."""
    wanted = [k for k, t in LINES if t == target]
    programs = {k.name: p for k in wanted if isinstance(p := of_kind(k.name, k.passes(TARGETS[target])), CudaProgram)}
    prefixes = {name: re.sub(r"\W", "_", name) for name in programs}
    compiled = compile_cubin(INCLUDE + "\n".join(prefixed(prefixes[n], p) for n, p in programs.items()), target, cache=None)
    found = instructions(disassemble(compiled.image)) if HAS_DISASSEMBLER else {}
    own = {n: [f"{prefixes[n]}__{k.name}" for k in p.kernels] for n, p in programs.items()}
    return {n: MachineCode({k: compiled.usage[k] for k in names}, {k: found[k] for k in names if k in found}) for n, names in own.items()}


def spilled(usage: Mapping[str, Usage], source: str) -> list[str]:
    """The kernels whose threads need memory for registers or arrays, except that in which the library reduces large angles."""
    stack = ANGLES if re.search(r"\b(sin|cos|tan)\(", source) else 0
    return [f"{name}: {u}" for name, u in usage.items() if u.stack > stack or u.spill_stores or u.spill_loads]


@pytest.mark.parametrize(("kind", "target"), LINES, ids=[f"{k.name}-{t}" for k, t in LINES])
def test_kind(kind: Kind, target: str) -> None:
    program = of_kind(kind.name, kind.passes(TARGETS[target]))
    if isinstance(program, Exception):
        raise program
    code = all_kinds(target)[kind.name]
    assert program.kernels and not spilled(code.usage, program.source)
    assert [k.threads for k in program.kernels] == [u.threads for u in code.usage.values()]
    assert max(k.shared_bytes for k in program.kernels) <= TARGETS[target].shared
    if not HAS_DISASSEMBLER:
        pytest.skip("there is no nvdisasm (pip install nvidia-cuda-nvdisasm)")
    expected = kind.expected(TARGETS[target])
    missing = {name: [p for p in expected if not count(of, p)] for name, of in code.instructions.items()}
    assert not all(missing.values()), f"no kernel has all of {expected}; missing: {missing}"
    for pattern in kind.never:
        assert not any(count(of, pattern) for of in code.instructions.values()), pattern


def test_kinds_have_names_of_their_own() -> None:
    assert len(KINDS) == len(WRITTEN) + len(MADE)


# -- the long form -----------------------------------------------------------------------------------------------------

SAMPLES = [*sorted((ROOT / "samples").glob("*.graph")), ROOT / "samples" / "minilm" / "minilm.graph"]
SHAPES = {"mlp_bare": {"x": "f32[B, 4]", "w1": "f32[4, 6]", "b1": "f32[6]", "w2": "f32[6, 3]"}}
EXAMPLES = [(d.text_name, n, text) for d in REGISTRY.values() if d.dialect == "gpu" for n, text in enumerate(example_texts(d.doc))]


@ONLY_ALL
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_sample(path: Path, target: str, tmp_path: Path) -> None:
    from graph_opt.cli import main

    shapes = [f"--shape={name}={type_}" for name, type_ in SHAPES.get(path.stem, {}).items()]
    out = tmp_path / "out.cu"
    assert main([str(path), "--emit", "cuda", "--target", target, "-o", str(out), *shapes]) == 0
    compiled = compile_cubin(out.read_text(), target, cache=None)
    assert compiled.usage and not spilled(compiled.usage, out.read_text())


@ONLY_ALL
@pytest.mark.parametrize("target", TARGETS)
def test_smollm2(target: str, tmp_path: Path) -> None:
    """The program of a real model, imported from its file, which has its weights' types."""
    from graph_opt.cli import main
    from tests.llm.smollm2 import needed_model

    model, program, out = needed_model(), tmp_path / "model.graph", tmp_path / "out.cu"
    assert main(["import", str(model), "-o", str(program)]) == 0
    assert main([str(program), "--file", f"model={model}", "--emit", "cuda", "--target", target, "-o", str(out)]) == 0
    compiled = compile_cubin(out.read_text(), target, cache=None)
    assert compiled.usage and not spilled(compiled.usage, out.read_text())


@ONLY_ALL
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "number", "text"), EXAMPLES, ids=[f"{n}-{i}" for n, i, _ in EXAMPLES])
def test_example(name: str, number: int, text: str, target: str) -> None:
    program = emitted(text, "infer-types,plan-shared", f"{name}.graph")
    assert not spilled(compile_cubin(program.source, target, cache=None).usage, program.source)


SHARED = {(7, 5): 65536, (8, 0): 166912, (8, 6): 101376, (8, 9): 101376, (9, 0): 166912, (12, 0): 101376}


@pytest.mark.parametrize(("capability", "shared"), SHARED.items())
def test_kernels_fit_into_what_a_device_has(capability: tuple[int, int], shared: int) -> None:
    text = KINDS["attention"].program.replace("64]", "256]")
    program = emitted(text, preset_for_gpu(capability), "attention.graph")
    assert shared * 3 // 10 < max(k.shared_bytes for k in program.kernels) <= shared
