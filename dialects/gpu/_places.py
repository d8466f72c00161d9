"""Where operations of a kernel may stand."""

from __future__ import annotations

from typing import Any

from ir.core import Operation
from ir.opdef import TypeProblem


def launch_around(op: Operation) -> Operation | None:
    """The launch that an operation stands in; None outside of one."""
    outer = op
    while outer.block is not None and outer.block.parent is not None and outer.block.parent.parent is not None:
        outer = outer.block.parent.parent
        if outer.definition.full_name == "gpu.launch":
            return outer
    return None


def require_launch(op: Operation) -> Operation:
    """The launch around an operation.  Raises TypeProblem when there is none."""
    launch = launch_around(op)
    if launch is None:
        raise TypeProblem("only the threads of a gpu.launch can do this", hint="put it into gpu.launch(%x = 0 to 1, threads=32) {...}")
    return launch


def check_groups(op: Operation, size: int) -> None:
    """Raises TypeProblem when the threads of the launch around ``op`` are no whole groups of ``size``."""
    threads: Any = require_launch(op).attribute("threads")
    if threads % size:
        raise TypeProblem(f"the {threads} threads of the launch are no whole groups of {size}", hint=f"give it a multiple of {size} threads")
