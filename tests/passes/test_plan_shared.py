"""plan-shared: places are right for random kernels (the interpreter lets buffers share memory as planned), and limits are kept."""

import random

import numpy as np
import pytest

from ir.diagnostics import GraphError
from ir.interpreter import Interpreter
from ir.printer import print_module
from passes.gpu.plan_shared import PlanShared
from passes.infra.base import PassContext
from tests.checks import load

THREADS = 64


def random_kernel(seed):
    """Phases between barriers, at the top or in a loop, in which some buffers are written, and some of those written before read."""
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    sizes = [rng.choice([64, 65, 96, 200]) for _ in range(count)]
    lines = [f"%s{i} = gpu.alloc() : memref<f32[{n}], shared>" for i, n in enumerate(sizes)]
    written = set()
    total, number = "%x", 0

    def phase(indent):
        nonlocal total, number
        chosen = rng.sample(range(count), rng.randint(1, min(count, 2)))
        for i in chosen:
            number += 1
            if i in written and rng.random() < 0.6:
                lines.append(f"{indent}%r{number} = memref.load(%s{i}[({THREADS - 1}-%t+{number}) mod {THREADS}]) : f32")
                if not indent:
                    lines.append(f"%sum{number} = arith.addf({total}, %r{number}) : f32")
                    total = f"%sum{number}"
                else:
                    lines.append(f"{indent}memref.store(%r{number}, %C[%t])")
            elif i not in written and rng.random() < 0.3:
                lines.append(f"{indent}gpu.cp_async(%A[%t:+1], %s{i}[%t:+1])\n{indent}gpu.cp_commit()\n{indent}gpu.cp_wait(pending=0)")
                written.add(i)
            else:
                lines.append(f"{indent}memref.store({total}, %s{i}[%t])")
                written.add(i)
        lines.append(f"{indent}gpu.barrier()")

    for _ in range(rng.randint(2, 8)):
        if rng.random() < 0.25:
            number += 1
            lines.append(f"scf.for(%i{number} = 0 to 2) {{")
            for _ in range(rng.randint(1, 3)):
                phase("  ")
            lines += ["  yield", "}"]
        else:
            phase("")
    lines.append(f"memref.store({total}, %D[%t])")
    body = "".join(f"    {line}\n" for text in lines for line in text.splitlines())
    return f"""graph @main(%A: memref<f32[{THREADS}]>, %C: memref<f32[{THREADS}]>, %D: memref<f32[{THREADS}]>) {{
  gpu.launch(%b = 0 to 1, threads={THREADS}) {{
    %t = gpu.thread_id() : index
    %x = memref.load(%A[%t]) : f32
{body}    yield
  }}
  return
}}
"""


def run(module):
    arrays = [np.arange(THREADS, dtype=np.float32), np.zeros(THREADS, np.float32), np.zeros(THREADS, np.float32)]
    Interpreter(module).run(module.graphs["main"], arrays)
    return arrays


def plan(module, **options):
    context = PassContext()
    changed = PlanShared(**options).run(module, context)
    return changed, context.statistics


@pytest.mark.parametrize("chunk", range(4))
def test_random_kernels(chunk):
    shared = 0
    for seed in range(50 * chunk, 50 * chunk + 50):
        module = load(random_kernel(seed))
        before = run(module)
        changed, figures = plan(module)
        assert changed
        for a, b in zip(before, run(module), strict=True):
            assert np.array_equal(a, b, equal_nan=True), f"seed {seed}\n{print_module(module)}"
        assert not plan(module)[0], "nothing changes the second time"
        shared += figures.get("bytes of shared memory planned", 0) < figures.get("bytes without sharing", 0)
    assert shared > 10, "some kernels need less than all their buffers together"


def kernel(*allocs):
    lines = "".join(f"    %s{i} = gpu.alloc() : memref<{t}, shared>\n    memref.store(%x, %s{i}[%t])\n" for i, t in enumerate(allocs))
    return load(f"""graph @main(%A: memref<f32[{THREADS}]>) {{
  gpu.launch(%b = 0 to 1, threads={THREADS}, name="big") {{
    %t = gpu.thread_id() : index
    %x = memref.load(%A[%t]) : f32
{lines}    yield
  }}
  return
}}
""")


def test_what_is_too_large_is_refused():
    assert plan(kernel("f32[57856]", "f32[128]"), limit=57856 * 4 + 512)[0]
    with pytest.raises(GraphError) as caught:
        plan(kernel("f32[57856]", "f32[128]", "f32[129]"))
    message = str(caught.value)
    assert "<string>:2:3: error: plan-shared: kernel big needs 232576 bytes of shared memory, a block has 232448" in message
    assert "note: %s0 needs 231424 bytes" in message and "note: %s2 needs 640 bytes" in message
    with pytest.raises(GraphError, match="needs 256 bytes of shared memory, a block has 128"):
        plan(kernel("f32[64]"), limit=128)


def test_nothing_to_plan():
    assert not plan(load("graph @main(%x: f32[4]) -> f32[4] {\n  return %x\n}\n"))[0]
    assert not plan(kernel())[0]
