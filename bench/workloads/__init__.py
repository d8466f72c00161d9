"""The workloads."""

from __future__ import annotations

from bench.case import Case
from bench.workloads import attention, calls, matmul, minilm, mlp, rows

GROUPS = {"matmul": matmul, "mlp": mlp, "rows": rows, "attention": attention, "minilm": minilm, "call": calls}
"""The files with cases."""


def all_cases() -> dict[str, Case]:
    """All cases by name."""
    return {case.name: case for group in GROUPS.values() for case in group.cases()}
