"""nontemporal-stores: which stores go past the caches, and the same bits wherever memory lies."""

from __future__ import annotations

import platform

import numpy as np
import pytest
from pass_checks import load, optimize

import graph_opt
from codegen.llvm import jit
from codegen.llvm.emit import emit_graph
from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.infra.manager import PassManager
from passes.infra.verify_exec import same_bits
from passes.pipelines import OTHER_TARGETS, PRESETS, load_pipeline

ALL = "nontemporal-stores{least=0}"
RMSNORM = "graph @main(%x: f32[R, C], %w: f32[C]) -> f32[R, C] {\n  %o = rmsnorm(%x, weight=%w, eps=1e-5)\n  return %o\n}\n"
GATE = "graph @main(%x: f32[R, C], %y: f32[R, C]) -> f32[R, C] {\n  %s = silu(%x)\n  %o = mul(%s, %y)\n  return %o\n}\n"
SOFTMAX = "graph @main(%x: f32[R, C]) -> f32[R, C] {\n  %o = softmax(%x, axis=-1)\n  return %o\n}\n"
BOTH = "graph @main(%x: f32[R, C]) -> (f32[R, C], f16[R, C]) {\n  %o = relu(%x)\n  %h = cast(%x, dtype=f16)\n  return %o, %h\n}\n"


def flat(n: str = "4096", dtype: str = "f32", source: str = "%X", size: int = 32, start: str = "0") -> str:
    """``y = -x`` over all elements."""
    return f"""graph @main(%x: {dtype}[{n}], %Y: memref<{dtype}[{n}]>) {{
  %X = memref.from_tensor(%x) : memref<{dtype}[{n}]>
  scf.parallel(%i = {start} to {n} step {size}, tag="col.tile") {{
    memref.prefetch(%Y[%i+64], write=true)
    %a = vector.load({source}[%i:+{size}]) : vector<{dtype}[{size}]>
    %b = arith.negf(%a) : vector<{dtype}[{size}]>
    vector.store(%b, %Y[%i:+{size}])
    yield
  }}
  return
}}
"""


def stores(text: str, pipeline: str = ALL) -> list[str]:
    return [line.strip() for line in print_module(optimize(text, pipeline)).splitlines() if "store(" in line]


def pipeline(least: int) -> str:
    return PRESETS["cpu"].replace("prefetch-rows", f"prefetch-rows,nontemporal-stores{{least={least}}}")


def test_two_versions() -> None:
    """One for buffers that begin with a line, without hints for what is written, and one that is as it was."""
    text = print_module(optimize(flat(), ALL))
    assert "%Y.is.aligned = memref.is_aligned(%Y, align=64) : bool" in text and "scf.if(%Y.is.aligned)" in text
    assert "%Y.aligned = memref.reshape(%Y) : memref<f32[4096], align=64>" in text
    assert stores(flat()) == ["vector.store(%b, %Y.aligned[%i:+32], nontemporal=true)", "vector.store(%b.1, %Y[%i.1:+32])"]
    assert text.count("memref.prefetch") == 1


def test_what_is_not_known_is_asked() -> None:
    text = print_module(optimize(flat("N"), "nontemporal-stores{least=8192}"))
    assert text.count('predicate="ge"') == 1 and "arith.constant(8192) : index" in text and text.count("nontemporal") == 1


@pytest.mark.parametrize(
    "text",
    [
        flat(source="%Y"),
        flat(size=8),
        flat(start="8"),
        flat().replace("store(%b, %Y[%i:", "store(%b, %Y[%i+8:"),
        flat().replace("store(%b, %Y[%i:+32]", "store(%b, %Y[%i:+32], valid=%i"),
        flat().replace("col.tile", "m.tile"),
        flat().replace("%x: f32[4096]", "%x: f32[4096], %Z: memref<f32[4096]>").replace("load(%X", "load(%Z"),
    ],
    ids=["read", "half lines", "start", "shifted", "valid", "tag", "may be the same"],
)
def test_what_stays(text: str) -> None:
    assert not any("nontemporal" in line for line in stores(text))


def test_small_buffers_stay() -> None:
    assert not any("nontemporal" in line for line in stores(flat(), "nontemporal-stores{least=16385}"))
    assert any("nontemporal" in line for line in stores(flat(), "nontemporal-stores{least=16384}"))
    with pytest.raises(GraphError, match="a size is not negative"):
        load_pipeline("nontemporal-stores{least=-1}")
    assert "nontemporal-stores" in OTHER_TARGETS["cpu-zen"] and "nontemporal-stores" not in PRESETS["cpu"]


def unaligned(shape: tuple[int, ...], dtype: np.dtype, offset: int) -> np.ndarray:
    """An array that begins so many bytes behind a line."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.zeros(size + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    return memory[start : start + size].view(dtype).reshape(shape)


@pytest.mark.parametrize("text", [RMSNORM, GATE, SOFTMAX, BOTH], ids=["rmsnorm", "gate", "softmax", "both"])
@pytest.mark.parametrize("threads", [1, 2])
def test_same_bits(text: str, threads: int) -> None:
    """Known and open sizes, rows of whole lines and others, results that begin with a line and others."""
    for shape in ((64, 128), (65, 144), (64, 100), (3, 1040), (1, 16), (0, 64)):
        known = text.replace("R, C", "{}, {}".format(*shape)).replace("[C]", f"[{shape[1]}]")
        given = [np.random.default_rng(n).standard_normal(s, dtype=np.float32) for n, s in enumerate(shapes(text, shape))]
        wanted = graph_opt.compile(graph_opt.parse(known), pipeline="cpu", threads=threads)(*given)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for program in (known, text):
            call = graph_opt.compile(graph_opt.parse(program), pipeline=pipeline(4096), threads=threads)
            for offset in (0, 4, 32):
                made = tuple(unaligned(shape, w.dtype, offset) for w in wanted)
                call(*given, out=made if len(made) > 1 else made[0])
                assert all(same_bits(a, b) for a, b in zip(made, wanted, strict=True)), (shape, offset)


def shapes(text: str, shape: tuple[int, int]) -> list[tuple[int, ...]]:
    parameters = text.split("->")[0]
    return [shape if kind == "R, C" else shape[1:] for kind in ("R, C",) * parameters.count("f32[R, C]") + ("C",) * parameters.count("f32[C]")]


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="instructions of x86")
def test_instructions() -> None:
    """What is asked for is what the processor gets."""
    known = RMSNORM.replace("R, C", "64, 4096").replace("[C]", "[4096]")
    for least, found in ((1 << 20, True), ((1 << 20) + 1, False)):
        module = load(known)
        PassManager(load_pipeline(pipeline(least))).run(module)
        assert ("movnt" in jit.assembly(emit_graph(module, module.main, features=jit.host_features()).text)) == found


def test_alignment_is_checked() -> None:
    """A buffer that is said to begin with a line must do so."""
    text = """graph @main(%A: memref<f32[4]>) {
  %B = memref.reshape(%A) : memref<f32[4], align=64>
  %one = arith.constant(1.0) : f32
  memref.store(%one, %B[0])
  return
}
"""
    module = load(text)
    for offset in (0, 4, 32):
        array = unaligned((4,), np.dtype(np.float32), offset)
        for run in (lambda a: Interpreter(module).run(module.main, [a]), graph_opt.compile(graph_opt.parse(text))):
            if offset:
                with pytest.raises(GraphError, match=r"memref\.reshape: the buffer is not aligned to 64 bytes"):
                    run(array)
            else:
                run(array)


@pytest.mark.parametrize("align", [16, 64])
def test_memory_has_the_alignment_of_its_type(align: int) -> None:
    """What is allocated begins where its type says, whether it becomes a result or not."""
    text = f"""graph @main(%x: f32[N]) -> (f32[N], f32[N]) {{
  %A = memref.from_tensor(%x) : memref<f32[N]>
  %C = memref.alloc() : memref<f32[N], align={align}>
  %D = memref.reshape(%C) : memref<f32[N], align={align}>
  memref.copy(%A, %D)
  %E = memref.alloc() : memref<f32[N], align={align}>
  %F = memref.reshape(%E) : memref<f32[N], align={align}>
  memref.copy(%C, %F)
  %G = memref.alloc() : memref<f32[N]>
  memref.copy(%F, %G)
  %o = memref.to_tensor(%C) : f32[N]
  %p = memref.to_tensor(%G) : f32[N]
  return %o, %p
}}
"""
    module = load(text)
    native = graph_opt.compile(graph_opt.parse(text))
    kept = []
    for n in range(40):
        x = np.arange(n, dtype=np.float32)
        for run in (lambda a: Interpreter(module).run(module.main, [a]), lambda a: Interpreter(module, double=True).run(module.main, [a]), native):
            kept.append(run(x))
            assert all(np.array_equal(found, x) for found in kept[-1])


def test_alignments_that_are_too_large() -> None:
    def graph(*lines: str) -> str:
        return "\n  ".join(("graph @main(%A: memref<f32[4]>) {", *lines, "return")) + "\n}\n"

    with pytest.raises(GraphError, match="an alignment of 8192 bytes is more than 4096"):
        load(graph("%B = memref.reshape(%A) : memref<f32[4], align=8192>"))
    with pytest.raises(GraphError, match="expected a power of two up to 4096, found 8192"):
        load(graph("%b = memref.is_aligned(%A, align=8192) : bool"))
    text = graph("%B = memref.alloc() : memref<f32[4], align=128>", "memref.copy(%A, %B)")
    with pytest.raises(GraphError, match="memory begins at multiples of 64 bytes here, not of 128"):
        graph_opt.compile(graph_opt.parse(text), pipeline="O0")


def test_an_empty_buffer_may_be_anywhere() -> None:
    text = """graph @main(%A: memref<f32[N]>, %C: memref<f32[N]>) {
  %B = memref.reshape(%A) : memref<f32[N], align=64>
  memref.copy(%C, %B)
  return
}
"""
    module = load(text)
    for run in (lambda *a: Interpreter(module).run(module.main, list(a)), graph_opt.compile(graph_opt.parse(text))):
        run(unaligned((0,), np.dtype(np.float32), 4), np.zeros(0, np.float32))
