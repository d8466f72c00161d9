"""The workloads."""

from __future__ import annotations

from bench.case import Case
from bench.workloads import attention, calls, matmul, minilm, mlp, rows, smollm2

GROUPS = {"matmul": matmul, "mlp": mlp, "rows": rows, "attention": attention, "minilm": minilm, "smollm2": smollm2, "call": calls}
"""The files with cases."""


def all_cases() -> dict[str, Case]:
    """All cases by name."""
    return {case.name: case for group in GROUPS.values() for case in group.cases()}
