"""Hand-written kernels under sanitizers: right, and every barrier, wait and bound that is missing is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest

from codegen.cuda.host_build import why_not
from codegen.cuda.sanitized import Job, Outcome
from tests.cuda import hand_kernels

KERNELS: dict[str, tuple[Callable[[], tuple[Job, np.ndarray[Any, Any]]], Sequence[int]]] = {
    "reduction": (hand_kernels.reduction_job, hand_kernels.REDUCTION_MARKS),
    "matmul": (hand_kernels.matmul_job, hand_kernels.MATMUL_MARKS),
    "product": (hand_kernels.product_job, hand_kernels.PRODUCT_MARKS),
}
_NEIGHBOURS = """  float *s = (float *)go_shared();
  s[go_thread()] = 1.0f;
  BARRIER
  y[64 * go_block_x() + go_thread()] = s[go_thread() ^ 1];"""
SANITIZERS: tuple[Literal["address", "thread"], ...] = ("address", "thread")


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right_and_every_removal_is_found(name: str) -> None:
    make, marks = KERNELS[name]
    found: dict[int, list[Outcome]] = {mark: [] for mark in marks}
    for sanitize in SANITIZERS:
        if (reason := why_not(sanitize)) is not None:
            pytest.skip(reason)
        job, expected = make()
        results, (whole, *others) = job.run(sanitize, marks)
        assert not whole.noticed, whole.report
        assert np.array_equal(np.frombuffer(results[0], np.float32).reshape(expected.shape), expected)
        for outcome in others:
            found[outcome.mark].append(outcome)
    missed = [mark for mark, outcomes in found.items() if not any(o.noticed for o in outcomes)]
    assert not missed


@pytest.mark.parametrize(
    ("body", "sanitize", "report"),
    [
        ("  if (go_thread() < 33) go_barrier();", "thread", "has ended"),
        ("  y[go_block_x() % 2] = 1.0f;", "thread", "data race"),
        ("  if (go_thread() == 0) y[go_block_x() / 2] = 1.0f;", "thread", "data race"),
        (_NEIGHBOURS.replace("BARRIER", ""), "thread", "data race"),
        ("  go_cp_async<16>(go_shared() + 16 * (go_thread() % 9), y);\n  go_cp_commit();\n  go_cp_wait<0>();", "thread", "data race"),
        ("  y[64 * go_block_x() + go_thread() + 64] = 1.0f;", "address", "heap-buffer-overflow"),
        ("  float *s = (float *)go_shared();\n  s[go_thread() + 1] = 1.0f;", "address", "heap-buffer-overflow"),
        ("  float local[4];\n  local[go_thread()] = 1.0f;\n  y[go_thread()] = local[0];", "address", "out of bounds"),
        ("  const int n = 0x7fffffff;\n  y[0] = (float)(n + (int)go_thread());", "address", "signed integer overflow"),
    ],
    ids=["divergent", "warps-race", "blocks-race", "shared-race", "copies-race", "heap", "shared-end", "local", "overflow"],
)
def test_planted_errors(body: str, sanitize: Literal["address", "thread"], report: str) -> None:
    if (reason := why_not(sanitize)) is not None:
        pytest.skip(reason)
    job = Job(f'{hand_kernels.HEADER}extern "C" __global__ void __launch_bounds__(64) planted(float *y)\n{{\n{body}\n}}\n')
    job.launch("planted", (4,), 64, 256, [job.buffer(np.zeros(256, np.float32))])
    _, (outcome,) = job.run(sanitize)
    assert outcome.code != 0
    assert report in outcome.report


def test_blocks_may_use_the_same_shared_memory() -> None:
    if (reason := why_not("thread")) is not None:
        pytest.skip(reason)
    body = _NEIGHBOURS.replace("BARRIER", "go_barrier();")
    job = Job(f'{hand_kernels.HEADER}extern "C" __global__ void __launch_bounds__(64) shares(float *y)\n{{\n{body}\n}}\n')
    y = job.buffer(np.zeros(256, np.float32))
    for _ in range(2):
        job.launch("shares", (4,), 64, 256, [y])
    job.output(y, 1024)
    (result,), (outcome,) = job.run("thread")
    assert not outcome.noticed, outcome.report
    assert (np.frombuffer(result, np.float32) == 1).all()
